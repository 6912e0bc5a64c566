//! What an IP proxying request is about: a host or a prefix or all, one protocol or all, and the path that says so.
//! The overlay's callers make scopes, the relay reads them back. RFC 9484 §3 (well-known template) and §4.6 (variables).
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::{fmt, net::IpAddr};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::Prefix;
use crate::{Host, HostName, template::PathError};

/// Everything but the unreserved characters of RFC 3986 §2.3, and the asterisk, which the standard's example has as it is.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'*');

/// What stands before the variables of `/.well-known/masque/ip/{target}/{ipproto}/`.
const WELL_KNOWN: &str = "/.well-known/masque/ip/";

/// What a request is about.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    /// Where packets may go.
    pub target: ScopeTarget,
    /// The only protocol; `None` is all. ICMP is never shut out.
    pub protocol: Option<u8>,
}

/// Where packets may go.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum ScopeTarget {
    /// Anywhere that the relay allows.
    Any,
    /// To these addresses; most often one.
    Prefix(Prefix),
    /// To what the relay finds for this name.
    Name(HostName),
}

impl Scope {
    /// One host and one protocol.
    pub fn flow(host: &Host, protocol: u8) -> Self {
        let target = match host {
            Host::Name(name) => ScopeTarget::Name(name.clone()),
            Host::Ip(ip) => ScopeTarget::Prefix(Prefix::one(*ip)),
        };
        Self {
            target,
            protocol: Some(protocol),
        }
    }

    /// The `:path` that asks for it, by the well-known template.
    pub fn path(&self) -> String {
        let target = match &self.target {
            ScopeTarget::Any => "*".into(),
            ScopeTarget::Name(name) => name.to_string(),
            ScopeTarget::Prefix(prefix) => match prefix.single() {
                Some(address) => address.to_string(),
                None => format!("{}/{}", prefix.address(), prefix.length()),
            },
        };
        let protocol = self
            .protocol
            .map_or_else(|| "*".into(), |protocol| protocol.to_string());
        format!(
            "{WELL_KNOWN}{}/{protocol}/",
            utf8_percent_encode(&target, RESERVED)
        )
    }

    /// What a `:path` asks for. A slash at the end may be missing.
    ///
    /// # Errors
    /// [`PathError::NoMatch`] when it is another resource's; [`PathError::BadTarget`] when a variable makes no sense.
    pub fn read_path(path: &str) -> Result<Self, PathError> {
        let rest = path.strip_prefix(WELL_KNOWN).ok_or(PathError::NoMatch)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (target, protocol) = rest.split_once('/').ok_or(PathError::NoMatch)?;
        if protocol.contains('/') {
            return Err(PathError::NoMatch);
        }
        let scope = read_target(target).zip(read_protocol(protocol));
        let (target, protocol) = scope.ok_or(PathError::BadTarget)?;
        Ok(Self { target, protocol })
    }
}

/// `target = IPv6prefix / IPv4prefix / reg-name / "*"`.
fn read_target(text: &str) -> Option<ScopeTarget> {
    let text = percent_decode_str(text).decode_utf8().ok()?;
    if text == "*" {
        return Some(ScopeTarget::Any);
    }
    if let Some((address, length)) = text.split_once('/') {
        let length = number(length)?;
        let prefix = Prefix::new(address.parse().ok()?, length)?;
        return Some(ScopeTarget::Prefix(canonical(prefix)));
    }
    match text.parse().ok()? {
        Host::Ip(ip) => Some(ScopeTarget::Prefix(Prefix::one(ip))),
        Host::Name(name) => Some(ScopeTarget::Name(name)),
    }
}

/// An IPv4 address in IPv6 clothes means the IPv4 address, here as everywhere.
fn canonical(prefix: Prefix) -> Prefix {
    match (prefix.single(), prefix.address().to_canonical()) {
        (Some(_), ip @ IpAddr::V4(_)) => Prefix::one(ip),
        _ => prefix,
    }
}

/// `ipproto = 1*3DIGIT / "*"`: the outer `None` is nonsense, the inner one all protocols.
fn read_protocol(text: &str) -> Option<Option<u8>> {
    let text = percent_decode_str(text).decode_utf8().ok()?;
    match text.as_ref() {
        "*" => Some(None),
        text => number(text).map(Some),
    }
}

/// A decimal number of at most three digits.
fn number(text: &str) -> Option<u8> {
    let digits = (1..=3).contains(&text.len()) && text.bytes().all(|octet| octet.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("target", &self.target)
            .field("protocol", &self.protocol)
            .finish()
    }
}

impl fmt::Debug for ScopeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "Any",
            Self::Prefix(_) => "Prefix(hidden)",
            Self::Name(_) => "Name(hidden)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flow(host: &str, protocol: u8) -> Scope {
        Scope::flow(&host.parse().expect("a host"), protocol)
    }

    #[test]
    fn scopes_are_written_as_the_standard_has_them() {
        let all = Scope {
            target: ScopeTarget::Any,
            protocol: None,
        };
        let net = Scope {
            target: ScopeTarget::Prefix(Prefix::new([192, 0, 2, 0].into(), 24).expect("a prefix")),
            protocol: None,
        };
        for (scope, path) in [
            (all, "/.well-known/masque/ip/*/*/"),
            (net, "/.well-known/masque/ip/192.0.2.0%2F24/*/"),
            (
                flow("target.example.com", 132),
                "/.well-known/masque/ip/target.example.com/132/",
            ),
            (
                flow("2001:db8::42", 58),
                "/.well-known/masque/ip/2001%3Adb8%3A%3A42/58/",
            ),
        ] {
            assert_eq!(scope.path(), path);
            assert_eq!(Scope::read_path(path), Ok(scope.clone()));
            assert_eq!(Scope::read_path(path.trim_end_matches('/')), Ok(scope));
        }
    }

    #[test]
    fn other_ways_to_say_the_same_are_understood() {
        for (path, scope) in [
            ("%2A/%2a", "*/*"),
            ("192.0.2.1%2F32/1", "192.0.2.1/1"),
            ("%3A%3Affff%3A192.0.2.1/1", "192.0.2.1/1"),
            ("%3A%3Affff%3A192.0.2.1%2f128/001", "192.0.2.1/1"),
            ("2001:db8::1/58", "2001%3Adb8%3A%3A1/58"),
        ] {
            let full = |rest: &str| Scope::read_path(&format!("{WELL_KNOWN}{rest}/"));
            assert_eq!(full(path), full(scope), "{path}");
            assert!(full(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn other_paths_are_told_apart_from_bad_scopes() {
        for path in [
            "/",
            "",
            "/.well-known/masque/udp/a/1/",
            "/.well-known/masque/ip/a",
            "/.well-known/masque/ip/a/1/x",
        ] {
            assert_eq!(Scope::read_path(path), Err(PathError::NoMatch), "{path}");
        }
        for rest in [
            "a/256",
            "a/-1",
            "a/+1",
            "a/",
            "/1",
            "a/0001",
            "192.0.2.1%2F33/1",
            "192.0.2.1%2F/1",
            "name%2F24/1",
            "::%2F129/1",
            "a b/1",
            "fe80::1%25eth0/1",
            "%ff/1",
            "a%00/1",
            "**/1",
            "a/**",
        ] {
            let path = format!("{WELL_KNOWN}{rest}/");
            assert_eq!(Scope::read_path(&path), Err(PathError::BadTarget), "{path}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(name in "[a-z0-9_-]{1,20}(\\.[a-z][a-z0-9-]{0,20}){0,3}", v4: u32, v6: u128, length in 0_u8..=128, which in 0..4, protocol: Option<u8>) {
            let v4 = IpAddr::V4(v4.into());
            let v6 = IpAddr::V6(v6.into());
            let target = match which {
                0 => ScopeTarget::Any,
                1 => ScopeTarget::Prefix(canonical(Prefix::new(v6, length).expect("a prefix"))),
                2 => ScopeTarget::Prefix(Prefix::new(v4, length % 33).expect("a prefix")),
                _ => match name.parse().expect("a host") {
                    Host::Name(name) => ScopeTarget::Name(name),
                    Host::Ip(ip) => ScopeTarget::Prefix(Prefix::one(ip)),
                },
            };
            let scope = Scope { target, protocol };
            prop_assert_eq!(Scope::read_path(&scope.path()), Ok(scope));
        }

        #[test]
        fn any_path_is_read_without_a_panic(rest in "[/a-z%*:.0-9]{0,60}", text in ".{0,60}") {
            drop(Scope::read_path(&format!("{WELL_KNOWN}{rest}")));
            drop(Scope::read_path(&text));
        }
    }
}
