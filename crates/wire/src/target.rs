//! Where a flow wants to go: a host name or an address, with a port.
//! The last relay alone turns a name into addresses.
//! Names follow RFC 1123 §2.1 with the underscore that real resolvers accept; never more than 253 bytes.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

/// A valid host name in lower case, without a trailing dot.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(Box<str>);

/// A name to be resolved by the last relay, or an address.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name: it travels unresolved.
    Name(HostName),
    /// An address; IPv4-mapped IPv6 addresses are stored as IPv4.
    Ip(IpAddr),
}

/// Host and port. `Debug` hides both (it ends in logs); `Display` shows them (it ends in requests).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Where to.
    pub host: Host,
    /// TCP or UDP port, 1..=65535.
    pub port: u16,
}

/// Why a text is not a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The name is empty, longer than 253 bytes, or has a label that is empty or longer than 63.
    #[error("host name has a wrong length")]
    Length,
    /// Only letters, digits, '-', '_' and '.' may stand in a name.
    #[error("host name has a forbidden character")]
    Character,
    /// The port is missing, zero or no number below 65536.
    #[error("port is missing or not in 1..=65535")]
    Port,
}

impl HostName {
    /// Checks and lower-cases `name`; one trailing dot is dropped. An IPv4 address is no name: written and read
    /// again it would be an address.
    ///
    /// # Errors
    /// [`TargetError::Length`] or [`TargetError::Character`].
    pub fn new(name: &str) -> Result<Self, TargetError> {
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.is_empty() || name.len() > 253 {
            return Err(TargetError::Length);
        }
        for label in name.split('.') {
            Self::check_label(label)?;
        }
        if name.parse::<Ipv4Addr>().is_ok() {
            return Err(TargetError::Character);
        }
        Ok(Self(name.to_ascii_lowercase().into()))
    }

    fn check_label(label: &str) -> Result<(), TargetError> {
        if label.is_empty() || label.len() > 63 {
            return Err(TargetError::Length);
        }
        let fine = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        if !label.bytes().all(fine) {
            return Err(TargetError::Character);
        }
        Ok(())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Host {
    /// An address in its canonical form.
    pub fn ip(ip: IpAddr) -> Self {
        Self::Ip(ip.to_canonical())
    }
}

impl FromStr for Host {
    type Err = TargetError;

    /// Accepts a name, an IPv4 address, or an IPv6 address with or without brackets. An IPv4 address with a dot
    /// behind it is the address, as browsers have it.
    fn from_str(text: &str) -> Result<Self, TargetError> {
        let bare = text
            .strip_prefix('[')
            .and_then(|t| t.strip_suffix(']'))
            .unwrap_or(text);
        if let Ok(v6) = bare.parse::<Ipv6Addr>() {
            return Ok(Self::ip(v6.into()));
        }
        match text.strip_suffix('.').unwrap_or(text).parse::<Ipv4Addr>() {
            Ok(v4) => Ok(Self::Ip(v4.into())),
            Err(_) => HostName::new(text).map(Self::Name),
        }
    }
}

impl Target {
    /// A target from its parts.
    ///
    /// # Errors
    /// [`TargetError::Port`] for port 0.
    pub fn new(host: Host, port: u16) -> Result<Self, TargetError> {
        match port {
            0 => Err(TargetError::Port),
            port => Ok(Self { host, port }),
        }
    }

    /// The address, if the host is one.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self.host {
            Host::Ip(ip) => Some(SocketAddr::new(ip, self.port)),
            Host::Name(_) => None,
        }
    }
}

impl From<SocketAddr> for Target {
    fn from(addr: SocketAddr) -> Self {
        Self {
            host: Host::ip(addr.ip()),
            port: addr.port(),
        }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    /// `host:port`, the authority-form of RFC 9110 §9.3.6: IPv6 addresses in brackets.
    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (host, port) = text.rsplit_once(':').ok_or(TargetError::Port)?;
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port = digits
            .then(|| port.parse().ok())
            .flatten()
            .ok_or(TargetError::Port)?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(TargetError::Character);
        }
        Self::new(host.parse()?, port)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::Ip(IpAddr::V4(ip)) => ip.fmt(f),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostName(hidden)")
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name(_) => "Name(hidden)",
            Self::Ip(IpAddr::V4(_)) => "Ipv4(hidden)",
            Self::Ip(IpAddr::V6(_)) => "Ipv6(hidden)",
        })
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({:?})", self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn authority_forms_are_read_and_written_alike() {
        for text in ["example.com:443", "192.0.2.1:80", "[2001:db8::1]:8443"] {
            let target: Target = text.parse().expect(text);
            assert_eq!(target.to_string(), text);
        }
    }

    #[test]
    fn wrong_targets_are_refused() {
        for text in [
            "",
            "a",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            ":80",
            "a..b:1",
            "2001:db8::1:80",
            "a b:1",
            "[::1:80",
            "é:1",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address_it_maps() {
        let target: Target = "[::ffff:127.0.0.1]:80".parse().expect("parses");
        assert_eq!(target.to_string(), "127.0.0.1:80");
    }

    #[test]
    fn an_address_with_a_dot_behind_it_never_passes_as_a_name() {
        let target: Target = "169.254.169.254.:80".parse().expect("parses");
        assert_eq!(target.host, Host::ip([169, 254, 169, 254].into()));
        assert!(HostName::new("169.254.169.254.").is_err());
        assert!(HostName::new("1.2.3.4").is_err());
    }

    #[test]
    fn debug_output_names_nobody() {
        let target: Target = "secret.example:443".parse().expect("parses");
        let text = format!("{target:?}");
        assert!(!text.contains("secret") && !text.contains("443"), "{text}");
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(name in "[a-z0-9_-]{1,20}(\\.[a-z][a-z0-9-]{0,20}){1,4}", port in 1u16..) {
            let target = Target::new(Host::Name(HostName::new(&name).expect("valid")), port).expect("valid");
            prop_assert_eq!(target.to_string().parse::<Target>(), Ok(target));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in ".{0,300}") {
            drop(text.parse::<Target>());
        }
    }
}
