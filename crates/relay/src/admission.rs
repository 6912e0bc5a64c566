//! Who is let in: tokens by `Proxy-Authorization` or `Authorization`, as a bearer or as the password of Basic.
//! Asked once for each request; tokens are compared in constant time and can be replaced while the relay runs.
//! RFC 9110 §11.6 and §11.7, RFC 6750 §2.1, RFC 7617.

use base64::{Engine, engine::general_purpose::STANDARD};
use hoplite_crypto::{Token, Tokens};
use zeroize::Zeroizing;

use crate::config::{Auth, ConfigError};

/// What a refused client is asked for (RFC 9110 §11.7.1).
pub(crate) const CHALLENGE: &str = "Bearer realm=\"hoplite\", Basic realm=\"hoplite\"";

/// The tokens that are accepted.
#[derive(Debug)]
pub(crate) struct Admission {
    tokens: Option<Tokens>,
}

/// A client that may use the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guest {
    /// Nobody needs a token here.
    Anyone,
    /// The holder of the token with this index.
    Holder(usize),
}

impl Admission {
    /// Reads the tokens of `[[auth.token]]`.
    ///
    /// # Errors
    /// A token's file cannot be read or is empty.
    pub(crate) fn new(auth: &Auth) -> Result<Self, ConfigError> {
        let tokens: Vec<Token> = auth
            .token
            .iter()
            .map(|entry| entry.read().map(|text| Token::new(text.to_string())))
            .collect::<Result<_, _>>()?;
        let tokens = (!tokens.is_empty()).then(|| Tokens::new(&tokens));
        Ok(Self { tokens })
    }

    /// Whether nobody needs a token.
    pub(crate) fn is_open(&self) -> bool {
        self.tokens.is_none()
    }

    /// Judges the values of `Proxy-Authorization` and `Authorization`. Browsers send one or the other.
    pub(crate) fn judge<'a>(&self, values: impl IntoIterator<Item = &'a [u8]>) -> Option<Guest> {
        let Some(tokens) = &self.tokens else {
            return Some(Guest::Anyone);
        };
        let mut credentials = values.into_iter().filter_map(credential);
        credentials.find_map(|token| tokens.find(&token).map(Guest::Holder))
    }
}

/// The token in a header's value.
fn credential(value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let value = value.trim_ascii();
    let space = value.iter().position(|octet| *octet == b' ')?;
    let (scheme, rest) = value.split_at(space);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(Zeroizing::new(rest.to_vec()));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let pair = Zeroizing::new(STANDARD.decode(rest).ok()?);
    let colon = pair.iter().position(|octet| *octet == b':')?;
    Some(Zeroizing::new(pair.get(colon + 1..)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TokenEntry;

    fn admission(tokens: &[&str]) -> Admission {
        let entry = |token: &&str| TokenEntry {
            token: Some(Zeroizing::new((*token).to_owned())),
            ..TokenEntry::default()
        };
        let auth = Auth {
            token: tokens.iter().map(entry).collect(),
            ..Auth::default()
        };
        Admission::new(&auth).expect("tokens")
    }

    fn judge(admission: &Admission, value: &str) -> Option<Guest> {
        admission.judge([value.as_bytes()])
    }

    #[test]
    fn a_token_is_taken_as_bearer_and_as_the_password_of_basic() {
        let admission = admission(&["alpha", "beta"]);
        let basic = format!("Basic {}", STANDARD.encode("anybody:beta"));
        for value in [
            "Bearer beta",
            "bearer  beta ",
            "BEARER beta",
            basic.as_str(),
        ] {
            assert_eq!(judge(&admission, value), Some(Guest::Holder(1)), "{value}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let admission = admission(&["alpha"]);
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer alph",
            "Bearer alphaa",
            "Digest alpha",
            "alpha",
            "Basic !!",
            "Basic YWxwaGE=",
        ] {
            assert_eq!(judge(&admission, value), None, "{value}");
        }
        assert_eq!(admission.judge([]), None);
    }

    #[test]
    fn the_second_header_counts_when_the_first_is_wrong() {
        let values = ["Bearer wrong".as_bytes(), b"Bearer alpha"];
        assert_eq!(admission(&["alpha"]).judge(values), Some(Guest::Holder(0)));
    }

    #[test]
    fn without_tokens_everybody_is_let_in() {
        assert_eq!(admission(&[]).judge([]), Some(Guest::Anyone));
    }
}
