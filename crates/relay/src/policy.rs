//! Where an egress goes and where not: refusals by name before the look-up, by address before every connection.
//! `egress` asks it for TCP and UDP alike, for literals at once and for whatever a name resolved to; of IP packets for each.
//! This host is refused at all its addresses and ports, however it is reached, unless it is allowed; see [`crate::host_addresses`].
//! Private and other special ranges (RFC 1918, RFC 6890: what a forged request, SSRF, would be after) are refused: `wire::special`.

use std::{
    collections::HashSet,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    sync::Arc,
};

use hoplite_wire::{
    Host, HostName, Target, special,
    tor::server_descriptor::{EXIT_RULES, ExitRule},
};
use ipnet::{IpNet, Ipv6Net};

use crate::{
    config::{Config, Role},
    host_addresses::HostAddresses,
};

/// Asks for rules that hold whatever the port.
const ANY_PORT: u16 = 0;

/// What the relay's configuration permits.
#[derive(Debug)]
pub(crate) struct Policy {
    egress: bool,
    ingress: bool,
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    relays: HashSet<Target>,
    /// Where the relay listens.
    listen: Vec<SocketAddr>,
    local: Arc<HostAddresses>,
    /// What leads to this host though it does not know it: an address that a router translates.
    translated: Vec<IpNet>,
    /// Behind these are IPv4 addresses: NAT64 of this network.
    nat64: Vec<Ipv6Net>,
}

/// Why a target is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The name stands for something local, or the operator denies it.
    Name,
    /// The address is special or this host's, or the operator denies it.
    Address,
    /// It is this relay: a loop.
    Itself,
    /// This relay forwards to the relays it knows, and this is none of them.
    UnknownRelay,
}

/// What a permitted target still needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyVerdict {
    /// Each of its addresses must be permitted by [`Policy::check_address`].
    Checked,
    /// It is a configured relay: its addresses may be private, but not this relay's own.
    Relay,
}

impl Policy {
    /// The policy of a relay that listens at `listen`, on the host that has the addresses `local`.
    pub(crate) fn new(config: &Config, listen: &[SocketAddr], local: Arc<HostAddresses>) -> Self {
        let relays = if config.is_ingress() {
            config.ingress.relays.iter().cloned().collect()
        } else {
            HashSet::new()
        };
        Self {
            egress: config.is_egress(),
            ingress: config.is_ingress(),
            allow: config.egress.allow.clone(),
            deny: config.egress.deny.clone(),
            relays,
            listen: listen.to_vec(),
            local,
            translated: translated(config),
            nat64: config.egress.nat64.clone(),
        }
    }

    /// The rules of another configuration, for the same relay on the same host: it keeps its roles.
    pub(crate) fn with_rules_of(&self, config: &Config) -> Self {
        let mut roles = Vec::new();
        roles.extend(self.egress.then_some(Role::Egress));
        roles.extend(self.ingress.then_some(Role::Ingress));
        let config = Config {
            roles,
            ..config.clone()
        };
        Self::new(&config, &self.listen, Arc::clone(&self.local))
    }

    /// Judges what the client asks for, before anything is looked up.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn check_target(&self, target: &Target) -> Result<PolicyVerdict, Refusal> {
        if self.relays.contains(target) {
            return self.not_itself(target).map(|()| PolicyVerdict::Relay);
        }
        if !self.egress {
            return Err(Refusal::UnknownRelay);
        }
        match &target.host {
            Host::Name(name) => self.check_name(name, target.port)?,
            Host::Ip(ip) => self.check_address(SocketAddr::new(*ip, target.port))?,
        }
        Ok(PolicyVerdict::Checked)
    }

    /// Judges an address that a permitted name resolved to.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn check_resolved(
        &self,
        permit: PolicyVerdict,
        address: SocketAddr,
    ) -> Result<(), Refusal> {
        match permit {
            PolicyVerdict::Checked => self.check_address(address),
            PolicyVerdict::Relay if self.is_own(address) => Err(Refusal::Itself),
            PolicyVerdict::Relay => Ok(()),
        }
    }

    /// Judges an address.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn check_address(&self, address: SocketAddr) -> Result<(), Refusal> {
        let ip = address.ip().to_canonical();
        if self.is_own(address) {
            return Err(Refusal::Itself);
        }
        let carried = self.carried(ip);
        let denied = |ip| self.deny.iter().any(|r| r.has_address(ip, address.port()));
        if denied(ip) || carried.iter().any(|v4| denied(IpAddr::V4(*v4))) {
            return Err(Refusal::Address);
        }
        if self.allow.iter().any(|r| r.has_address(ip, address.port())) {
            return Ok(());
        }
        if self.is_special_or_ours(ip) {
            return Err(Refusal::Address);
        }
        carried
            .into_iter()
            .try_for_each(|v4| self.check_address(SocketAddr::new(v4.into(), address.port())))
    }

    /// Whether a client may be told what this name resolves to; the addresses are judged by [`Self::may_reveal`].
    pub(crate) fn may_resolve(&self, name: &str) -> bool {
        let denied = self.deny.iter().any(|r| r.has_name(name, ANY_PORT));
        let allowed = || self.allow.iter().any(|r| r.is_about(name));
        self.egress && !denied && (!special::is_local_name(name) || allowed())
    }

    /// Whether a client may be told of this address: it could be let through to some port of it.
    pub(crate) fn may_reveal(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let carried = self.carried(ip);
        let denied = |ip| self.deny.iter().any(|r| r.has_address(ip, ANY_PORT));
        if denied(ip) {
            return false;
        }
        let allowed = self.allow.iter().any(|r| r.contains(ip));
        let fine = || carried.iter().all(|v4| self.may_reveal(IpAddr::V4(*v4)));
        allowed || (!self.is_special_or_ours(ip) && fine())
    }

    /// Whether `[ingress] relays` has a relay there.
    pub(crate) fn is_configured_relay(&self, address: SocketAddr) -> bool {
        self.relays.contains(&Target::from(address))
    }

    /// Whether a rule of `[egress] allow` is about this address.
    pub(crate) fn is_explicitly_allowed(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.allow.iter().any(|r| r.has_address(ip, address.port()))
    }

    /// Judges the address of a relay that a circuit is to be extended to. Its identity will be checked, so it need not be known here.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn check_relay(&self, address: SocketAddr) -> Result<(), Refusal> {
        if !self.ingress {
            return Err(Refusal::UnknownRelay);
        }
        if self.relays.contains(&Target::from(address)) && !self.is_own(address) {
            return Ok(());
        }
        self.check_address(address)
    }

    /// RFC 6761 and RFC 6762: names that stand for this host or this network never reach a resolver.
    pub(crate) fn check_name(&self, name: &HostName, port: u16) -> Result<(), Refusal> {
        if self.deny.iter().any(|r| r.has_name(name.as_str(), port)) {
            return Err(Refusal::Name);
        }
        let allowed = || self.allow.iter().any(|r| r.has_name(name.as_str(), port));
        if special::is_localhost(name.as_str()) {
            let loopback = |ip| self.check_address(SocketAddr::new(ip, port)).is_ok();
            return if special::LOOPBACK.into_iter().any(loopback) {
                Ok(())
            } else {
                Err(Refusal::Name)
            };
        }
        if special::is_local_name(name.as_str()) && !allowed() {
            Err(Refusal::Name)
        } else {
            Ok(())
        }
    }

    fn not_itself(&self, target: &Target) -> Result<(), Refusal> {
        match target.socket_addr() {
            Some(address) if self.is_own(address) => Err(Refusal::Itself),
            _ => Ok(()),
        }
    }

    /// Whether this relay is reached there: a wildcard listener at every address of this host, and all behind a router's address.
    fn is_own(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.listen.iter().any(|own| {
            let same = own.ip().to_canonical() == ip;
            let wild = || own.ip().is_unspecified() && self.local.has(ip);
            own.port() == address.port() && (same || wild() || self.is_translated(ip))
        })
    }

    /// Whether an address is refused where nothing allows it. Of what this network translates, the IPv4 address behind it is judged.
    fn is_special_or_ours(&self, ip: IpAddr) -> bool {
        let special = || special::is_special_purpose(ip) && self.behind_nat64(ip).is_none();
        self.local.has(ip) || self.is_translated(ip) || special()
    }

    fn is_translated(&self, ip: IpAddr) -> bool {
        self.translated.iter().any(|net| net.contains(&ip))
    }

    /// The IPv4 addresses that an IPv6 address leads to.
    fn carried(&self, ip: IpAddr) -> Vec<Ipv4Addr> {
        match self.behind_nat64(ip) {
            Some(v4) => vec![v4],
            None => special::carried(ip),
        }
    }

    /// RFC 6052: the IPv4 address behind a prefix of this network's.
    fn behind_nat64(&self, ip: IpAddr) -> Option<Ipv4Addr> {
        let IpAddr::V6(ip) = ip else {
            return None;
        };
        let net = self.nat64.iter().find(|net| net.contains(&ip))?;
        special::embedded(ip, net.prefix_len())
    }
}

/// What the file says that leads here, and where clients are told to go.
fn translated(config: &Config) -> Vec<IpNet> {
    let published = config.directory.addresses.iter();
    let published = published.map(|address| IpNet::from(address.ip().to_canonical()));
    let pools = config.egress.pool.iter().flat_map(|pool| &pool.addresses);
    let own = config.egress.own.iter().chain(pools).copied();
    own.chain(published).collect()
}

/// Where a relay that listens at `listen` connects to, as Tor's directory is told of it, for IPv4: the first rule that fits counts. Names that are refused
/// cannot be told, nor addresses of this host that the file does not say; groups (multicast) and reserved addresses are not. dir-spec "Nonterminals in server descriptors" (`exitpattern`).
pub fn exit_policy(config: &Config, listen: &[SocketAddr]) -> Vec<ExitRule> {
    let everything = |accepts| ExitRule {
        accepts,
        net: None,
        ports: 1..=u16::MAX,
    };
    if !config.is_egress() {
        return vec![everything(false)];
    }
    let here = translated(config).into_iter();
    let here = here.chain(listen.iter().map(|address| address.ip().into()));
    let here = here.filter_map(|net| match net {
        IpNet::V4(net) if !net.addr().is_unspecified() => Some((net.network(), net.prefix_len())),
        _ => None,
    });
    // Of more than 2^25 refused addresses C tor makes "no port at all" in its summary, by which clients choose; nobody asks for groups and what is reserved.
    let special = special::ipv4_networks().filter(|(_, length)| *length >= 8);
    let refused = here.chain(special).map(|net| ExitRule {
        net: Some(net),
        ..everything(false)
    });
    let denied = config.egress.deny.iter();
    let allowed = config.egress.allow.iter();
    let mut rules: Vec<_> = denied.filter_map(|rule| rule.for_tor(false)).collect();
    rules.extend(listen.iter().filter_map(|address| match address.ip() {
        IpAddr::V4(ip) if !ip.is_unspecified() => Some(ExitRule {
            net: Some((ip, 32)),
            ports: address.port()..=address.port(),
            ..everything(false)
        }),
        _ => None,
    }));
    rules.extend(allowed.filter_map(|rule| rule.for_tor(true)));
    rules.extend(refused);
    rules.truncate(EXIT_RULES - 1);
    rules.push(everything(true));
    rules
}

/// One entry of `[egress] allow` or `deny`: addresses, a name with what is below it, or a port, as an operator writes it.
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
    pub(crate) fn has_name(&self, name: &str, port: u16) -> bool {
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
    pub(crate) fn is_about(&self, name: &str) -> bool {
        self.has_name(name, self.port.unwrap_or(0))
    }

    /// The port, if the rule is about one of all targets: `*:25`.
    pub fn port_everywhere(&self) -> Option<u16> {
        self.port.filter(|_| self.scope == Scope::Everything)
    }

    /// As Tor's directory is told of it, if it can be.
    fn for_tor(&self, accepts: bool) -> Option<ExitRule> {
        let net = match &self.scope {
            Scope::Everything => None,
            Scope::Net(IpNet::V4(net)) => Some((net.network(), net.prefix_len())),
            Scope::Net(IpNet::V6(_)) | Scope::Name { .. } => return None,
        };
        let ports = self.port.map_or(1..=u16::MAX, |port| port..=port);
        Some(ExitRule {
            accepts,
            net,
            ports,
        })
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

#[cfg(test)]
mod tests;
