//! Where an egress goes and where not: refusals by name before the look-up, by address before every connection.
//! `egress` asks it for TCP and UDP alike, for literals at once and for whatever a name resolved to; of IP packets for each.
//! This host is refused at all its addresses and ports, however it is reached, unless it is allowed; see [`crate::local`].
//! The special ranges are those of the IANA special-purpose registries (RFC 6890); see `wire::special`.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use hoplite_wire::{Host, HostName, Target, special};
use ipnet::{IpNet, Ipv6Net};

use crate::{config::Config, local::Local};

mod rule;

pub use rule::{Rule, RuleError};

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
    local: Arc<Local>,
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
pub(crate) enum Permit {
    /// Each of its addresses must be permitted by [`Policy::address`].
    Checked,
    /// It is a configured relay: its addresses may be private, but not this relay's own.
    Relay,
}

impl Policy {
    /// The policy of a relay that listens at `listen`, on the host that has the addresses `local`.
    pub(crate) fn new(config: &Config, listen: &[SocketAddr], local: Arc<Local>) -> Self {
        let relays = match config.is_ingress() {
            true => config.ingress.relays.iter().cloned().collect(),
            false => HashSet::new(),
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

    /// Judges what the client asks for, before anything is looked up.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn target(&self, target: &Target) -> Result<Permit, Refusal> {
        if self.relays.contains(target) {
            return self.not_itself(target).map(|()| Permit::Relay);
        }
        if !self.egress {
            return Err(Refusal::UnknownRelay);
        }
        match &target.host {
            Host::Name(name) => self.name(name, target.port)?,
            Host::Ip(ip) => self.address(SocketAddr::new(*ip, target.port))?,
        }
        Ok(Permit::Checked)
    }

    /// Judges an address that a permitted name resolved to.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn resolved(&self, permit: Permit, address: SocketAddr) -> Result<(), Refusal> {
        match permit {
            Permit::Checked => self.address(address),
            Permit::Relay if self.is_own(address) => Err(Refusal::Itself),
            Permit::Relay => Ok(()),
        }
    }

    /// Judges an address.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn address(&self, address: SocketAddr) -> Result<(), Refusal> {
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
        if self.is_refused(ip) {
            return Err(Refusal::Address);
        }
        carried
            .into_iter()
            .try_for_each(|v4| self.address(SocketAddr::new(v4.into(), address.port())))
    }

    /// Whether a client may be told what this name resolves to; the addresses are judged by [`Self::tells`].
    pub(crate) fn looks_up(&self, name: &str) -> bool {
        let denied = self.deny.iter().any(|r| r.has_name(name, ANY_PORT));
        let allowed = || self.allow.iter().any(|r| r.is_about(name));
        self.egress && !denied && (!special::is_local_name(name) || allowed())
    }

    /// Whether a client may be told of this address: it could be let through to some port of it.
    pub(crate) fn tells(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let carried = self.carried(ip);
        let denied = |ip| self.deny.iter().any(|r| r.has_address(ip, ANY_PORT));
        if denied(ip) {
            return false;
        }
        let allowed = self.allow.iter().any(|r| r.contains(ip));
        let fine = || carried.iter().all(|v4| self.tells(IpAddr::V4(*v4)));
        allowed || (!self.is_refused(ip) && fine())
    }

    /// Whether `[ingress] relays` has a relay there.
    pub(crate) fn names_relay(&self, address: SocketAddr) -> bool {
        self.relays.contains(&Target::from(address))
    }

    /// Whether a rule of `[egress] allow` is about this address.
    pub(crate) fn names(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.allow.iter().any(|r| r.has_address(ip, address.port()))
    }

    /// Judges the address of a relay that a circuit is to be extended to. Its identity will be checked, so it need not be known here.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn relay(&self, address: SocketAddr) -> Result<(), Refusal> {
        if !self.ingress {
            return Err(Refusal::UnknownRelay);
        }
        if self.relays.contains(&Target::from(address)) && !self.is_own(address) {
            return Ok(());
        }
        self.address(address)
    }

    /// RFC 6761 and RFC 6762: names that stand for this host or this network never reach a resolver.
    pub(crate) fn name(&self, name: &HostName, port: u16) -> Result<(), Refusal> {
        if self.deny.iter().any(|r| r.has_name(name.as_str(), port)) {
            return Err(Refusal::Name);
        }
        let allowed = || self.allow.iter().any(|r| r.has_name(name.as_str(), port));
        if special::is_localhost(name.as_str()) {
            let loopback = |ip| self.address(SocketAddr::new(ip, port)).is_ok();
            return match special::LOOPBACK.into_iter().any(loopback) {
                true => Ok(()),
                false => Err(Refusal::Name),
            };
        }
        match special::is_local_name(name.as_str()) && !allowed() {
            true => Err(Refusal::Name),
            false => Ok(()),
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
    fn is_refused(&self, ip: IpAddr) -> bool {
        let special = || special::is_refused(ip) && self.behind_nat64(ip).is_none();
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
    config.egress.own.iter().copied().chain(published).collect()
}

#[cfg(test)]
mod tests;
