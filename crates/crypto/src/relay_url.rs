//! The URL of a relay: what its operator hands to whoever may use it, as a link or in a QR code, so that nobody copies pins by hand.
//!
//! ```text
//! hoplite://HOST:PORT/NAME?pin=PIN&onion=KEY&roles=ingress,egress#TOKEN
//! ```
//! The token is a fragment: a browser into which the URL is pasted sends it nowhere (RFC 3986 §3.5). All but host and port is percent-encoded where
//! needed (§2.1). A part that is not known is no part: an older version says so instead of leaving out what matters.

use std::{fmt, str::FromStr};

use hoplite_wire::{OnionKey, Target};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::{Pin, Token};

/// What it begins with.
const SCHEME: &str = "hoplite://";
/// The longest that is read, in bytes: a QR code holds less.
const LONGEST: usize = 2048;
/// The longest name, in bytes.
const LONGEST_NAME: usize = 64;
/// The longest token, in bytes: so that a URL that is read can be written, with all of it encoded.
const LONGEST_TOKEN: usize = 256;
/// What is encoded in a token: all that is not "unreserved" (RFC 3986 §2.3).
const ENCODED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'&')
    .add(b'+')
    .add(b'/')
    .add(b':')
    .add(b'<')
    .add(b'=')
    .add(b'>')
    .add(b'?')
    .add(b'@')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// One relay, as its URL has it. Displays as the URL, with the token.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayUrl {
    /// What clients' files call it: 1 to 64 letters, digits, '-', '_' and '.'.
    pub name: String,
    /// Host and port.
    pub address: Target,
    /// The digest of its key; without one its certificate has to be of a public authority.
    pub pin: Option<Pin>,
    /// Its identity and its onion key, for circuits.
    pub onion: Option<OnionKey>,
    /// Whether it may be the first relay of a path.
    pub ingress: bool,
    /// Whether it may be the last.
    pub egress: bool,
    /// What is shown to it.
    pub token: Option<Token>,
}

/// Why a text is no relay's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayUrlError {
    /// It does not begin as one.
    #[error("it does not begin with hoplite://")]
    Scheme,
    /// It is longer than 2048 bytes.
    #[error("it is longer than 2048 bytes")]
    Long,
    /// Host or port is missing or wrong.
    #[error("host and port are missing or wrong")]
    Address,
    /// The name is missing or has other characters.
    #[error("the name of the relay is missing, or has more than letters, digits, '-', '_' and '.'")]
    Name,
    /// A part of the query is wrong, or there twice.
    #[error("the part {0} is wrong, or there twice")]
    Part(&'static str),
    /// A part is not known.
    #[error("it has a part that this version does not know")]
    Unknown,
    /// The token is empty, longer than 256 bytes, or not of visible ASCII characters.
    #[error(
        "the token is empty, longer than 256 bytes, or has other than visible ASCII characters"
    )]
    Token,
}

/// Whether a relay may be called so.
pub fn is_relay_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

impl FromStr for RelayUrl {
    type Err = RelayUrlError;

    fn from_str(text: &str) -> Result<Self, RelayUrlError> {
        if text.len() > LONGEST {
            return Err(RelayUrlError::Long);
        }
        let rest = text.split_at_checked(SCHEME.len());
        let rest = rest.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
        let (_, rest) = rest.ok_or(RelayUrlError::Scheme)?;
        let (rest, token) = split(rest, '#');
        let (rest, query) = split(rest, '?');
        let (address, name) = split(rest, '/');
        let name = name.unwrap_or_default();
        if !is_relay_name(name) {
            return Err(RelayUrlError::Name);
        }
        let mut url = Self {
            name: name.to_owned(),
            address: address.parse().map_err(|_| RelayUrlError::Address)?,
            pin: None,
            onion: None,
            ingress: true,
            egress: true,
            token: token.map(read_token).transpose()?,
        };
        let mut roles = None;
        for part in query
            .unwrap_or_default()
            .split('&')
            .filter(|p| !p.is_empty())
        {
            let (key, value) = split(part, '=');
            let value = percent_decode_str(value.unwrap_or_default()).decode_utf8();
            let value = value.map_err(|_| RelayUrlError::Unknown)?;
            match key {
                "pin" => once(&mut url.pin, &value, "pin")?,
                "onion" => once(&mut url.onion, &value, "onion")?,
                "roles" => once(&mut roles, &value, "roles")?,
                _ => return Err(RelayUrlError::Unknown),
            }
        }
        if let Some(Roles { ingress, egress }) = roles {
            (url.ingress, url.egress) = (ingress, egress);
        }
        Ok(url)
    }
}

/// What stands before the first `mark`, and behind it.
fn split(text: &str, mark: char) -> (&str, Option<&str>) {
    match text.split_once(mark) {
        Some((before, behind)) => (before, Some(behind)),
        None => (text, None),
    }
}

fn once<T: FromStr>(
    place: &mut Option<T>,
    value: &str,
    part: &'static str,
) -> Result<(), RelayUrlError> {
    let value = value.parse().map_err(|_| RelayUrlError::Part(part))?;
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(RelayUrlError::Part(part)),
    }
}

fn read_token(text: &str) -> Result<Token, RelayUrlError> {
    let token = percent_decode_str(text).decode_utf8();
    let token = token.map_err(|_| RelayUrlError::Token)?;
    if !(1..=LONGEST_TOKEN).contains(&token.len()) || !token.bytes().all(|c| c.is_ascii_graphic()) {
        return Err(RelayUrlError::Token);
    }
    Ok(Token::new(token.into_owned()))
}

/// What a relay does, as in files: one or two words.
struct Roles {
    ingress: bool,
    egress: bool,
}

impl FromStr for Roles {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ingress, egress) = match text {
            "ingress" => (true, false),
            "egress" => (false, true),
            "ingress,egress" | "egress,ingress" => (true, true),
            _ => return Err(()),
        };
        Ok(Self { ingress, egress })
    }
}

impl fmt::Display for RelayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encoded = |text: String| utf8_percent_encode(&text, ENCODED).to_string();
        let roles = match (self.ingress, self.egress) {
            (true, false) => Some("ingress".to_owned()),
            (false, true) => Some("egress".to_owned()),
            _ => None,
        };
        let parts = [
            ("pin", self.pin.map(|pin| pin.to_string())),
            ("onion", self.onion.as_ref().map(ToString::to_string)),
            ("roles", roles),
        ];
        write!(f, "{SCHEME}{}/{}", self.address, self.name)?;
        let there = parts
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)));
        for (mark, (key, value)) in std::iter::once('?')
            .chain(std::iter::repeat('&'))
            .zip(there)
        {
            write!(f, "{mark}{key}={}", encoded(value))?;
        }
        match &self.token {
            Some(token) => write!(f, "#{}", utf8_percent_encode(token.reveal(), ENCODED)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{option, prelude::*};

    use super::*;

    const PIN: &str = "sha256:47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";

    fn error(text: &str) -> RelayUrlError {
        text.parse::<RelayUrl>().expect_err(text)
    }

    #[test]
    fn a_url_says_all_that_a_client_needs() {
        let text = format!("hoplite://relay.example:443/amber?pin={PIN}&roles=ingress#a%20b");
        assert_eq!(error(&text), RelayUrlError::Token, "a space is no token's");
        let text = format!("hoplite://relay.example:443/amber?pin={PIN}&roles=ingress#secret%2F1");
        let url: RelayUrl = text.parse().expect("a URL");
        assert_eq!(
            (url.name.as_str(), url.ingress, url.egress),
            ("amber", true, false)
        );
        assert_eq!(url.address.to_string(), "relay.example:443");
        assert_eq!(url.pin, PIN.parse().ok());
        assert_eq!(url.token.as_ref().map(Token::reveal), Some("secret/1"));
        assert!(!format!("{url:?}").contains("secret"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wrong) in [
            ("https://a.example:443/a".to_owned(), RelayUrlError::Scheme),
            ("höplite://a".to_owned(), RelayUrlError::Scheme),
            ("hoplite://a.example/a".to_owned(), RelayUrlError::Address),
            ("hoplite://a.example:443".to_owned(), RelayUrlError::Name),
            (
                "hoplite://a.example:443/a\"b".to_owned(),
                RelayUrlError::Name,
            ),
            (
                "hoplite://a.example:443/a?pin=sha256:x".to_owned(),
                RelayUrlError::Part("pin"),
            ),
            (
                format!("hoplite://a.example:443/a?pin={PIN}&pin={PIN}"),
                RelayUrlError::Part("pin"),
            ),
            (
                "hoplite://a.example:443/a?roles=exit".to_owned(),
                RelayUrlError::Part("roles"),
            ),
            (
                "hoplite://a.example:443/a?insecure=1".to_owned(),
                RelayUrlError::Unknown,
            ),
            (
                "hoplite://a.example:443/a#".to_owned(),
                RelayUrlError::Token,
            ),
            (
                "hoplite://a.example:443/a#x%0Ay".to_owned(),
                RelayUrlError::Token,
            ),
            (
                format!("hoplite://a.example:443/a#{}", "+".repeat(257)),
                RelayUrlError::Token,
            ),
            (
                format!("hoplite://a.example:443/{}", "a".repeat(3000)),
                RelayUrlError::Long,
            ),
        ] {
            assert_eq!(error(&text), wrong, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            name in "[a-zA-Z0-9._-]{1,64}",
            host in "[a-z][a-z0-9]{0,20}\\.example",
            port in 1..=u16::MAX,
            pinned in any::<bool>(),
            role in 0..3_u8,
            token in option::of("[!-~]{1,256}"),
        ) {
            let url = RelayUrl {
                name,
                address: format!("{host}:{port}").parse().expect("an address"),
                pin: pinned.then(|| PIN.parse().expect("a pin")),
                onion: None,
                ingress: role != 1,
                egress: role != 2,
                token: token.map(Token::new),
            };
            prop_assert_eq!(url.to_string().parse::<RelayUrl>(), Ok(url));
        }
    }
}
