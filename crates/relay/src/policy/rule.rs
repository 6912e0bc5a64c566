//! One entry of `[egress] allow` or `deny`: addresses, a name with what is below it, or a port, as an operator writes it.
//! The configuration reads rules, the policy applies them.

use std::{fmt, net::IpAddr, str::FromStr};

use hoplite_wire::HostName;
use ipnet::IpNet;

/// Which targets an entry is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    scope: Scope,
    /// Only this port, or all.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    Everything,
    Net(IpNet),
    /// The name, and if it was written with a leading dot also all names below it.
    Name {
        name: HostName,
        below: bool,
    },
}

/// Why a text is no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an address, a prefix, a name or '*', each perhaps with ':port'")]
pub struct RuleError;

impl Rule {
    /// Whether the rule is about this address and port.
    pub fn has_address(&self, ip: IpAddr, port: u16) -> bool {
        let inside = match &self.scope {
            Scope::Everything => true,
            Scope::Net(net) => net.contains(&ip),
            Scope::Name { .. } => false,
        };
        inside && self.has_port(port)
    }

    /// Whether the rule is about this name and port.
    pub fn has_name(&self, name: &str, port: u16) -> bool {
        let inside = match &self.scope {
            Scope::Everything => true,
            Scope::Net(_) => false,
            Scope::Name { name: own, below } => match name.strip_suffix(own.as_str()) {
                Some("") => true,
                Some(rest) => *below && rest.ends_with('.'),
                None => false,
            },
        };
        inside && self.has_port(port)
    }

    /// Whether the rule is about this address, at some port.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.has_address(ip, self.port.unwrap_or(0))
    }

    /// Whether the rule is about this name, at some port.
    pub fn is_about(&self, name: &str) -> bool {
        self.has_name(name, self.port.unwrap_or(0))
    }

    /// The port, if the rule is about one of all targets: `*:25`.
    pub fn port_everywhere(&self) -> Option<u16> {
        self.port.filter(|_| self.scope == Scope::Everything)
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if let Ok(scope) = text.parse() {
            return Ok(Self { scope, port: None });
        }
        let (scope, port) = text.rsplit_once(':').ok_or(RuleError)?;
        let port = port.parse().map_err(|_| RuleError)?;
        Ok(Self {
            scope: scope.parse()?,
            port: Some(port),
        })
    }
}

impl FromStr for Scope {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if text == "*" {
            return Ok(Self::Everything);
        }
        let bare = text.replace(['[', ']'], "");
        if let Ok(net) = bare.parse::<IpNet>() {
            return Ok(Self::Net(canonical(net)));
        }
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(Self::Net(IpNet::from(ip.to_canonical())));
        }
        let (name, below) = match text.strip_prefix('.') {
            Some(name) => (name, true),
            None => (text, false),
        };
        match HostName::new(name) {
            Ok(name) if !text.contains('/') => Ok(Self::Name { name, below }),
            _ => Err(RuleError),
        }
    }
}

/// IPv4-mapped prefixes mean IPv4: addresses are compared in their canonical form.
fn canonical(net: IpNet) -> IpNet {
    match (net, net.addr().to_canonical()) {
        (IpNet::V6(v6), IpAddr::V4(v4)) if v6.prefix_len() >= 96 => {
            ipnet::Ipv4Net::new(v4, v6.prefix_len() - 96).map_or(net, IpNet::V4)
        }
        _ => net,
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            Scope::Everything => f.write_str("*")?,
            Scope::Net(IpNet::V6(net)) => write!(f, "[{}]/{}", net.addr(), net.prefix_len())?,
            Scope::Net(IpNet::V4(net)) => net.fmt(f)?,
            Scope::Name { name, below } => {
                write!(f, "{}{name}", if *below { "." } else { "" })?;
            }
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}
