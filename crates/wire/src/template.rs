//! URI templates of UDP and TCP proxies: a target is expanded into a path, a path is matched back to a target.
//! RFC 9298 §2 and §3, RFC 6570 up to level 3 as far as RFC 9298 allows it; draft-ietf-httpbis-connect-tcp asks the same.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::{fmt, str::FromStr};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::{Host, Target};

/// Everything but the unreserved characters of RFC 3986 §2.3, as RFC 6570 §3.2.1 asks.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// What both variables are where there is no target; "the '*' character MUST be percent-encoded before sending".
const ANY: u8 = b'*';
const ANY_ENCODED: &str = "%2A";

const WELL_KNOWN: &str = "/.well-known/masque/udp/{target_host}/{target_port}/";

/// A checked template.
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    authority: Option<String>,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Host,
    Port,
}

/// Why a template is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Neither "https://host/path" nor "/path".
    #[error("a template begins with https://host/ or with /")]
    Form,
    /// An operator that RFC 9298 forbids, or a brace that is not closed.
    #[error("only {{name}}, {{?name}} and {{&name}} are allowed, in path and query")]
    Expression,
    /// A variable is missing or there twice.
    #[error("target_host and target_port must each be there once")]
    Variables,
    /// A variable is followed by what could belong to its value.
    #[error("behind a variable comes a character such as / & , : or the end")]
    Ambiguous,
    /// Characters outside of printable ASCII, or a fragment.
    #[error("a template has only printable ASCII characters and no fragment")]
    Character,
}

/// Why a path yields no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Another resource: 404.
    #[error("the path does not match the template")]
    NoMatch,
    /// It matches, but host or port is wrong: 400.
    #[error("the path names no valid target")]
    BadTarget,
}

impl Template {
    /// `/.well-known/masque/udp/{target_host}/{target_port}/`.
    pub fn well_known() -> Self {
        Self::below("/.well-known/masque/udp/")
    }

    /// `/.well-known/masque/tcp/{target_host}/{target_port}/`.
    pub fn well_known_tcp() -> Self {
        Self::below("/.well-known/masque/tcp/")
    }

    fn below(folder: &str) -> Self {
        let literal = |text: &str| Piece::Literal(text.into());
        Self {
            authority: None,
            pieces: vec![
                literal(folder),
                Piece::Host,
                literal("/"),
                Piece::Port,
                literal("/"),
            ],
        }
    }

    /// The authority, when the template is an absolute URI.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// The `:path` that asks for `target`.
    pub fn expand(&self, target: &Target) -> String {
        let mut path = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => path.push_str(text),
                Piece::Host => path.extend(utf8_percent_encode(&bare_host(&target.host), RESERVED)),
                Piece::Port => path.push_str(&target.port.to_string()),
            }
        }
        path
    }

    /// The target that a `:path` asks for. A slash at the end may be missing.
    ///
    /// # Errors
    /// See [`PathError`].
    pub fn match_path(&self, path: &str) -> Result<Target, PathError> {
        let (host, port) = self.values(path)?;
        read_target(host, port).ok_or(PathError::BadTarget)
    }

    /// The `:path` that asks for no target, or any: both variables are an asterisk, percent-encoded (bound UDP).
    pub fn expand_any(&self) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Literal(text) => text.clone(),
            Piece::Host | Piece::Port => ANY_ENCODED.into(),
        };
        self.pieces.iter().map(piece).collect()
    }

    /// Whether a `:path` asks for no target, or any.
    pub fn is_any(&self, path: &str) -> bool {
        let any = |text| percent_decode_str(text).eq([ANY]);
        self.values(path)
            .is_ok_and(|(host, port)| any(host) && any(port))
    }

    fn values<'a>(&self, path: &'a str) -> Result<(&'a str, &'a str), PathError> {
        let (mut rest, mut host, mut port) = (path, None, None);
        let mut pieces = self.pieces.iter().peekable();
        while let Some(piece) = pieces.next() {
            let last = pieces.peek().is_none();
            let slot = match piece {
                Piece::Literal(text) if last && text == "/" && rest.is_empty() => break,
                Piece::Literal(text) => {
                    rest = rest.strip_prefix(text.as_str()).ok_or(PathError::NoMatch)?;
                    continue;
                }
                Piece::Host => &mut host,
                Piece::Port => &mut port,
            };
            let (value, tail) = split_value(rest, pieces.peek().copied());
            (*slot, rest) = (Some(value), tail);
        }
        match (host, port) {
            (Some(host), Some(port)) if rest.is_empty() => Ok((host, port)),
            _ => Err(PathError::NoMatch),
        }
    }
}

/// A value reaches to the next literal, or to the end. What may stand in it is checked when it is read.
fn split_value<'a>(rest: &'a str, next: Option<&Piece>) -> (&'a str, &'a str) {
    let end = match next {
        Some(Piece::Literal(text)) => rest.find(text.as_str()).unwrap_or(rest.len()),
        _ => rest.len(),
    };
    rest.split_at_checked(end).unwrap_or((rest, ""))
}

fn read_target(host: &str, port: &str) -> Option<Target> {
    // "Using the terms IPv6address, IPv4address, and reg-name from [URI]": no slash, no query, nothing encoded twice.
    let decode = |text| percent_decode_str(text).decode_utf8().ok();
    let (host, port) = (decode(host)?, decode(port)?);
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let host: Host = host.parse().ok()?;
    Target::new(host, port.parse().ok().filter(|_| digits)?).ok()
}

/// IPv6 addresses travel without brackets.
fn bare_host(host: &Host) -> String {
    match host {
        Host::Ip(ip) => ip.to_string(),
        Host::Name(name) => name.to_string(),
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.contains('#') {
            return Err(TemplateError::Character);
        }
        let (authority, path) = split_authority(text)?;
        let pieces = parse_pieces(path)?;
        let count = |wanted| pieces.iter().filter(|piece| **piece == wanted).count();
        match (count(Piece::Host), count(Piece::Port)) {
            (1, 1) if pieces.windows(2).any(is_ambiguous) => Err(TemplateError::Ambiguous),
            (1, 1) => Ok(Self { authority, pieces }),
            _ => Err(TemplateError::Variables),
        }
    }
}

/// Values are unreserved characters and percent signs: anything else ends them.
fn is_ambiguous(pair: &[Piece]) -> bool {
    match pair {
        [Piece::Literal(_), _] => false,
        [_, Piece::Literal(text)] => {
            text.starts_with(|c: char| c.is_ascii_alphanumeric() || "-._~%".contains(c))
        }
        _ => true,
    }
}

fn split_authority(text: &str) -> Result<(Option<String>, &str), TemplateError> {
    if text.starts_with('/') {
        return Ok((None, text));
    }
    let rest = text.strip_prefix("https://").ok_or(TemplateError::Form)?;
    let end = rest.find('/').ok_or(TemplateError::Form)?;
    match rest.split_at_checked(end) {
        Some((authority, path))
            if !authority.is_empty() && !authority.contains(['{', '}', '?', '@']) =>
        {
            Ok((Some(authority.into()), path))
        }
        _ => Err(TemplateError::Form),
    }
}

fn parse_pieces(mut path: &str) -> Result<Vec<Piece>, TemplateError> {
    let mut pieces = Vec::new();
    while let Some((literal, rest)) = path.split_once('{') {
        push_literal(&mut pieces, literal)?;
        let (expression, tail) = rest.split_once('}').ok_or(TemplateError::Expression)?;
        parse_expression(&mut pieces, expression)?;
        path = tail;
    }
    push_literal(&mut pieces, path)?;
    Ok(pieces)
}

/// Joins neighbouring literals, so that a value always ends at the longest text that can follow it.
fn push_literal(pieces: &mut Vec<Piece>, text: &str) -> Result<(), TemplateError> {
    if text.contains('}') {
        return Err(TemplateError::Expression);
    }
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Literal(before)) => before.push_str(text),
        _ => pieces.push(Piece::Literal(text.into())),
    }
    Ok(())
}

fn parse_expression(pieces: &mut Vec<Piece>, expression: &str) -> Result<(), TemplateError> {
    let form = ["?", "&"]
        .into_iter()
        .find(|operator| expression.starts_with(operator));
    let names = form.map_or(expression, |operator| {
        expression.trim_start_matches(operator)
    });
    let mut separator = form.unwrap_or("");
    for name in names.split(',') {
        if name.is_empty()
            || !name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            return Err(TemplateError::Expression);
        }
        let variable = match name {
            "target_host" => Piece::Host,
            "target_port" => Piece::Port,
            // A variable that nobody defines leaves neither name nor separator (RFC 6570 §3.2.1).
            _ => continue,
        };
        push_literal(pieces, separator)?;
        if form.is_some() {
            push_literal(pieces, &format!("{name}="))?;
        }
        separator = if form.is_some() { "&" } else { "," };
        pieces.push(variable);
    }
    Ok(())
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self == &Self::well_known() {
            write!(f, "Template({WELL_KNOWN})")
        } else {
            f.write_str("Template(configured)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(text: &str) -> Target {
        text.parse().expect("valid")
    }

    #[test]
    fn the_examples_of_the_standard_are_expanded_and_matched() {
        let cases = [
            (
                "https://example.org/.well-known/masque/udp/{target_host}/{target_port}/",
                "/.well-known/masque/udp/192.0.2.6/443/",
            ),
            (
                "https://proxy.example.org:4443/masque?h={target_host}&p={target_port}",
                "/masque?h=192.0.2.6&p=443",
            ),
            (
                "https://proxy.example.org:4443/masque{?target_host,target_port}",
                "/masque?target_host=192.0.2.6&target_port=443",
            ),
            ("/m/{target_host},{target_port}", "/m/192.0.2.6,443"),
            ("/m/{target_host,target_port}", "/m/192.0.2.6,443"),
            (
                "/m/{other}/{target_host}/{target_port}{?more}",
                "/m//192.0.2.6/443",
            ),
        ];
        for (template, path) in cases {
            let template: Template = template.parse().expect("valid");
            assert_eq!(template.expand(&target("192.0.2.6:443")), path);
            assert_eq!(
                template.match_path(path),
                Ok(target("192.0.2.6:443")),
                "{path}"
            );
        }
    }

    #[test]
    fn the_well_known_template_is_the_text_that_names_it() {
        assert_eq!(WELL_KNOWN.parse(), Ok(Template::well_known()));
    }

    #[test]
    fn ipv6_colons_travel_encoded_and_are_taken_raw_as_well() {
        let template = Template::well_known();
        let path = "/.well-known/masque/udp/2001%3Adb8%3A%3A42/443/";
        assert_eq!(template.expand(&target("[2001:db8::42]:443")), path);
        for path in [
            path,
            "/.well-known/masque/udp/2001:db8::42/443/",
            "/.well-known/masque/udp/%5B2001%3adb8::42%5D/443",
        ] {
            assert_eq!(
                template.match_path(path),
                Ok(target("[2001:db8::42]:443")),
                "{path}"
            );
        }
    }

    #[test]
    fn other_paths_are_told_apart_from_bad_targets() {
        let template = Template::well_known();
        for path in [
            "/",
            "",
            "/.well-known/masque/udp/a",
            "/.well-known/masque/ip/a/1/",
            "/.well-known/masque/udp/a/1/x",
        ] {
            assert_eq!(template.match_path(path), Err(PathError::NoMatch), "{path}");
        }
        for path in [
            "a/0/",
            "a/65536/",
            "a/+1/",
            "/1/",
            "a%2Fb/1/",
            "a%00/1/",
            "%ff/1/",
            "a b/1/",
            "fe80::1%25eth0/1/",
            "a//",
        ] {
            let path = format!("/.well-known/masque/udp/{path}");
            assert_eq!(
                template.match_path(&path),
                Err(PathError::BadTarget),
                "{path}"
            );
        }
    }

    #[test]
    fn no_target_or_any_is_two_asterisks() {
        for text in [WELL_KNOWN, "/x{?target_host,target_port}"] {
            let template: Template = text.parse().expect("valid");
            assert!(template.is_any(&template.expand_any()));
        }
        let template = Template::well_known();
        assert_eq!(template.expand_any(), "/.well-known/masque/udp/%2A/%2A/");
        for (values, any) in [
            ("%2a/%2A", true),
            ("*/*", true),
            ("%2A/53", false),
            ("192.0.2.1/%2A", false),
            ("%2A%2A/%2A", false),
            ("%252A/%252A", false),
        ] {
            let path = format!("/.well-known/masque/udp/{values}/");
            assert_eq!(template.is_any(&path), any, "{values}");
            assert_eq!(template.match_path(&path), Err(PathError::BadTarget));
        }
        assert!(!template.is_any("/.well-known/masque/tcp/%2A/%2A/"));
    }

    #[test]
    fn templates_that_the_standard_forbids_are_refused() {
        let cases = [
            ("http://a/{target_host}/{target_port}", TemplateError::Form),
            ("https://{target_host}/{target_port}", TemplateError::Form),
            ("https://a", TemplateError::Form),
            ("/{+target_host}/{target_port}", TemplateError::Expression),
            ("/{/target_host}/{target_port}", TemplateError::Expression),
            ("/{target_host/{target_port}", TemplateError::Expression),
            ("/target_host}/{target_port}", TemplateError::Expression),
            ("/{target_host:3}/{target_port}", TemplateError::Expression),
            ("/{target_host}", TemplateError::Variables),
            (
                "/{target_host}/{target_host}/{target_port}",
                TemplateError::Variables,
            ),
            ("/{target_host}/{target_port}/#x", TemplateError::Character),
            ("/{target_host}/é/{target_port}", TemplateError::Character),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<Template>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_was_expanded_is_matched(name in "[a-z0-9_-]{1,20}(\\.[a-z][a-z0-9-]{0,20}){0,3}", address: u128, v6: bool, port in 1_u16.., query: bool) {
            let host = if v6 { std::net::Ipv6Addr::from(address).to_string() } else { name };
            let target = Target::new(host.parse().expect("valid"), port).expect("valid");
            let template = if query { "/x{?target_host,target_port}".parse().expect("valid") } else { Template::well_known() };
            prop_assert_eq!(template.match_path(&template.expand(&target)), Ok(target));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in ".{0,99}", path in "[/{}a-z?&_%:.0-9]{0,99}") {
            for template in [text.parse(), path.parse(), Ok(Template::well_known())].into_iter().flatten() {
                drop(template.match_path(&path));
                drop(template.match_path(&text));
            }
        }
    }
}
