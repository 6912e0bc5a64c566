//! Which relays a circuit goes through, and what must be known of each. The choice is the directory's (`directory`), or an experiment's.
//! `client` asks [`Paths`] for each circuit; `relay` makes a [`Relay`] of what EXTEND2 says. path-spec "Choosing nodes for circuits".

use std::{fmt, net::SocketAddr, sync::Arc};

use hoplite_crypto::onion::RelayKeys;
use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::{Protocols, cell::circuit::LinkSpecifier, directory::Ports};

use crate::channel::Waiting;

pub use hoplite_wire::{CircuitFate, ServicePurpose};

/// The longest path.
pub const MOST_HOPS: usize = 8;

/// How many paths are chosen, to find one that leads to where it is to end.
const PATHS_TRIED: usize = 8;

/// A relay, as a client knows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Relay {
    /// What the file or the list calls it: for errors. Empty where only keys are known.
    pub name: Arc<str>,
    /// Its identities and its onion key.
    pub keys: RelayKeys,
    /// It has an RSA identity; else `keys.rsa_id` only stands in for one, and is not named to others.
    pub rsa: bool,
    /// Where it listens, best first.
    pub addresses: Vec<SocketAddr>,
    /// It speaks ntor-v3 (`Relay=4`); else ntor.
    pub ntor3: bool,
    /// It has congestion control (`FlowCtrl=2`).
    pub congestion_control: bool,
    /// Which other subprotocols it speaks.
    pub protocols: Protocols,
    /// It knows half-closed streams ([`crate::endpoint::HALF_CLOSE`]).
    pub half_close: bool,
    /// To which ports it connects as an exit, if that is known.
    pub exit: Option<Arc<Ports>>,
}

/// What a circuit is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CircuitUsage {
    /// Ports that its exit should connect to, the most important first.
    pub ports: Vec<u16>,
    /// It must connect to all of them: a stream waits. Else to as many as can be: the circuit is built ahead.
    pub required: bool,
    /// It must carry datagrams.
    pub datagrams: bool,
}

/// The last relay of a circuit of an onion service.
#[derive(Clone, Copy, Debug)]
pub enum ServiceEnd<'a> {
    /// This one, which somebody else has chosen, or chance for long.
    Given(&'a Relay),
    /// Any other than these, by their Ed25519 identities.
    OtherThan(&'a [[u8; 32]]),
    /// One that somebody else will name: the path is without it. None of the last two relays can be it.
    ToCome,
}

/// Which hop of a path failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// From 0.
    pub hop: usize,
    /// It was reached and did not accept the handshake: what is known of it may be old.
    pub refused: bool,
}

/// Chooses paths.
pub trait Paths: fmt::Debug + Send + Sync {
    /// A path of one to [`MOST_HOPS`] relays.
    fn path<'a>(&'a self, usage: &'a CircuitUsage) -> Waiting<'a, Result<Vec<Relay>, Error>>;

    /// Two paths to one exit, which has Conflux, and with no other relay in both: for the legs of a set. `None`: there are none, or they are not wanted.
    fn pair<'a>(
        &'a self,
        _usage: &'a CircuitUsage,
    ) -> Waiting<'a, Result<Option<[Vec<Relay>; 2]>, Error>> {
        Box::pin(async { Ok(None) })
    }

    /// A path for a circuit of an onion service. Where its end is given it is behind relays that are chosen whatever it is, so that neither the choice nor
    /// the end tells of them.
    fn service_path<'a>(
        &'a self,
        _purpose: ServicePurpose,
        end: ServiceEnd<'a>,
    ) -> Waiting<'a, Result<Vec<Relay>, Error>> {
        Box::pin(async move {
            for _ in 0..PATHS_TRIED {
                let mut path = self.path(&CircuitUsage::default()).await?;
                if ends(&mut path, end) {
                    return Ok(path);
                }
            }
            let doing = "choosing a path for an onion service: each goes through a relay, or ends at one, where it must not";
            Err(Error::new(ErrorKind::PathFailed, doing))
        })
    }

    /// What became of a path: it was built, or a hop failed, then or later.
    fn tried(&self, _path: &[Relay], _outcome: Result<(), Failed>) {}

    /// How a circuit over relays of our choice fares, whose first relay has answered: who chooses that one for months counts it.
    fn fares(&self, _path: &[Relay], _fate: CircuitFate) {}
}

/// Has a path that was chosen as any other end there, if it can.
pub fn ends(path: &mut Vec<Relay>, end: ServiceEnd<'_>) -> bool {
    match end {
        ServiceEnd::Given(last) => {
            let goes_through = |relay: &Relay| relay.keys.ed25519 == last.keys.ed25519;
            let can = path.len() < MOST_HOPS && !path.iter().any(goes_through);
            path.extend(can.then(|| last.clone()));
            can
        }
        ServiceEnd::OtherThan(others) => {
            let last = path.last();
            last.is_some_and(|last| !others.contains(&last.keys.ed25519))
        }
        ServiceEnd::ToCome => path.len() < MOST_HOPS,
    }
}

/// Always the same path, for experiments and tests.
#[derive(Clone, Debug)]
pub struct Fixed(pub Vec<Relay>);

impl Paths for Fixed {
    fn path<'a>(&'a self, usage: &'a CircuitUsage) -> Waiting<'a, Result<Vec<Relay>, Error>> {
        Box::pin(async {
            let carries = self.0.last().is_some_and(Relay::carries_datagrams);
            if usage.datagrams && !carries {
                return Err(no_datagrams());
            }
            Ok(self.0.clone())
        })
    }
}

impl CircuitUsage {
    /// What its exit must speak.
    pub fn protocols(&self) -> Protocols {
        if self.datagrams {
            Protocols::DATAGRAM
        } else {
            Protocols::NONE
        }
    }
}

/// No relay that a circuit may end at carries datagrams.
pub fn no_datagrams() -> Error {
    let doing = "opening a UDP flow through circuits whose last relay carries none";
    Error::new(ErrorKind::Unsupported, doing)
}

impl Relay {
    /// Whether it connects to `port`, as far as is known.
    pub fn permits(&self, port: u16) -> bool {
        self.exit.as_ref().is_none_or(|exit| exit.contains(port))
    }

    /// Whether it carries datagrams to targets.
    pub fn carries_datagrams(&self) -> bool {
        self.protocols.has(Protocols::DATAGRAM)
    }

    /// What EXTEND2 says of it: "IPv4, RSA, Ed25519, IPv6".
    pub fn specifiers(&self) -> Vec<LinkSpecifier<'static>> {
        let mut specifiers = Vec::with_capacity(4);
        let v4 = self.addresses.iter().find_map(|address| match address {
            SocketAddr::V4(address) => Some(LinkSpecifier::Ipv4(*address)),
            SocketAddr::V6(_) => None,
        });
        let v6 = self.addresses.iter().find_map(|address| match address {
            SocketAddr::V6(address) => Some(LinkSpecifier::Ipv6(*address)),
            SocketAddr::V4(_) => None,
        });
        specifiers.extend(v4);
        if self.rsa {
            specifiers.push(LinkSpecifier::Rsa(self.keys.rsa_id));
        }
        specifiers.push(LinkSpecifier::Ed25519(self.keys.ed25519));
        specifiers.extend(v6);
        specifiers
    }
}

/// Who and where stay out of every log.
impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Relay(hidden)")
    }
}
