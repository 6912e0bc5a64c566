//! Where an egress goes and where not: refusals by name before the look-up, by address before every connection.
//! `egress` asks it for TCP and UDP alike, for literals at once and for whatever a name resolved to.
//! The special ranges are those of the IANA special-purpose registries (RFC 6890); see `wire::special`.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use hoplite_wire::{Host, HostName, Target, special};

use crate::config::Config;

mod rule;

pub use rule::{Rule, RuleError};

/// Asks for rules that hold whatever the port.
const ANY_PORT: u16 = 0;

/// What the relay's configuration permits.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    egress: bool,
    ingress: bool,
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    relays: HashSet<Target>,
    own: Vec<SocketAddr>,
}

/// Why a target is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The name stands for something local, or the operator denies it.
    Name,
    /// The address is special, or the operator denies it.
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
    /// The policy of a relay that listens at `own`.
    pub(crate) fn new(config: &Config, own: &[SocketAddr]) -> Self {
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
            own: own.to_vec(),
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
        let carried = special::carried(ip);
        let denied = |ip| self.deny.iter().any(|r| r.has_address(ip, address.port()));
        if denied(ip) || carried.iter().any(|v4| denied(IpAddr::V4(*v4))) {
            return Err(Refusal::Address);
        }
        if self.allow.iter().any(|r| r.has_address(ip, address.port())) {
            return Ok(());
        }
        if special::is_refused(ip) {
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
        let carried = special::carried(ip);
        let denied = |ip| self.deny.iter().any(|r| r.has_address(ip, ANY_PORT));
        if denied(ip) {
            return false;
        }
        let allowed = self.allow.iter().any(|r| r.contains(ip));
        let fine = || carried.iter().all(|v4| self.tells(IpAddr::V4(*v4)));
        allowed || (!special::is_refused(ip) && fine())
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

    /// A wildcard listener is reached at every address of this host.
    fn is_own(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.own.iter().any(|own| {
            let same = own.ip().to_canonical() == ip;
            let local = || own.ip().is_unspecified() && is_local(ip);
            own.port() == address.port() && (same || local())
        })
    }
}

/// Whether the address is one of this host's: then a socket can be bound to it.
fn is_local(ip: IpAddr) -> bool {
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    let address = SocketAddr::new(ip, 0);
    let domain = socket2::Domain::for_address(address);
    socket2::Socket::new(domain, socket2::Type::DGRAM, None)
        .and_then(|socket| socket.bind(&address.into()))
        .is_ok()
}

#[cfg(test)]
mod tests;
