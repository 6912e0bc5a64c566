//! Onion services of version 3 over circuits: how a client reaches a service ([`Client`]), and a service its clients ([`Service`]), with nobody
//! between who knows both. rend-spec-v3, "The introduction protocol", "The rendezvous protocol", "Managing streams".
//!
//! ```text
//! client ── guard ── … ── rendezvous point ── … ── guard ── service     the streams: one circuit of each, joined
//!    └───── guard ── … ── introduction point ── … ── guard ────┘        one message, where to meet
//! ```
//!
//! The introduction point learns that somebody asks for a service that it knows by one key; the rendezvous point, that two circuits belong
//! together, by 20 random bytes; neither who either of both is, nor anything that they say.
//!
//! Where a service is introduced at the time, its descriptor tells: a service's [`Publisher`] gives it to HSDirs, and a client's [`Descriptors`] look for
//! it there. [`ServicesOverlay`] makes an overlay of all that a client needs.
//!
//! # Not in this room
//! Which relays keep descriptors, and how they are asked ([`ServiceDirectory`]). Proof of work and single onion services are not built. Vanguards are whoever
//! chooses paths ([`crate::path::Paths::service_path`]).

use std::{
    fmt,
    net::SocketAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use hoplite_crypto::onion::{RelayKeys, identity::stand_in};
use hoplite_wire::{Protocols, cell::circuit::LinkSpecifier};

use crate::{path::Relay, random_below};

mod client;
mod descriptors;
mod directory;
mod introduction;
mod overlay;
mod publisher;
mod reaching;
mod room;
mod service;

pub use client::{Client, ClientConfig};
pub use descriptors::{ClientKeys, Descriptors, DescriptorsConfig};
pub use directory::{Destination, DirectoryCircuits, Placed, ServiceDirectory};
pub use introduction::{Life, Verdict};
pub use overlay::{Reach, ServicesOverlay};
pub use publisher::{Published, Publisher, PublisherConfig};
pub use reaching::Prepared;
pub use service::{Counters, Service, ServiceConfig, ServiceState, ServiceWatch, StreamRequest};

/// DATA cells that one SENDME of ours acknowledges on a circuit with congestion control: what a service's descriptor says (`flow-control`).
pub const SENDME_INCREMENT: u8 = 31;

/// A relay that introduces clients to a service, as its descriptor says.
#[derive(Clone, PartialEq, Eq)]
pub struct IntroductionPoint {
    /// The relay ([`relay`]).
    pub relay: Relay,
    /// By which the relay knows the service, Ed25519 (`KP_hs_ipt_sid`).
    pub auth_key: [u8; 32],
    /// That clients encrypt for, X25519 (`KP_hss_ntor`).
    pub enc_key: [u8; 32],
}

/// A service, as its descriptor of this time period says.
#[derive(Clone, PartialEq, Eq)]
pub struct KnownService {
    /// Its identity (`KP_hs_id`): circuits to it are kept by that.
    pub identity: [u8; 32],
    /// Of this time period (`N_hs_subcred`).
    pub subcredential: [u8; 32],
    /// Where it is introduced.
    pub points: Vec<IntroductionPoint>,
    /// The DATA cells of a SENDME, where the service has congestion control.
    pub sendme_increment: Option<u8>,
}

/// A relay of which no more is known than its link specifiers and its onion key for ntor. `None`: it has no Ed25519 identity or no address, and
/// nobody extends a circuit to it. Specifiers of other kinds are not kept.
pub fn relay(specifiers: &[LinkSpecifier<'_>], onion: [u8; 32]) -> Option<Relay> {
    let ed25519 = specifiers.iter().find_map(|one| match one {
        LinkSpecifier::Ed25519(identity) => Some(*identity),
        _ => None,
    })?;
    let rsa = specifiers.iter().find_map(|one| match one {
        LinkSpecifier::Rsa(identity) => Some(*identity),
        _ => None,
    });
    let addresses: Vec<SocketAddr> = specifiers.iter().filter_map(address).collect();
    (!addresses.is_empty()).then(|| Relay {
        name: Arc::from(""),
        keys: RelayKeys {
            rsa_id: rsa.unwrap_or_else(|| stand_in(&ed25519)),
            ed25519,
            onion,
        },
        rsa: rsa.is_some(),
        addresses,
        // Nobody has said more of it: all relays have ntor.
        ntor3: false,
        congestion_control: false,
        protocols: Protocols::NONE,
        half_close: false,
        exit: None,
    })
}

fn address(specifier: &LinkSpecifier<'_>) -> Option<SocketAddr> {
    match specifier {
        LinkSpecifier::Ipv4(address) => Some((*address).into()),
        LinkSpecifier::Ipv6(address) => Some((*address).into()),
        _ => None,
    }
}

/// The clock, in seconds since 1970.
fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// In an order that nobody can guess.
fn shuffle<T>(list: &mut [T]) {
    for end in (1..list.len()).rev() {
        let at = random_below(u32::try_from(end + 1).unwrap_or(u32::MAX));
        list.swap(end, usize::try_from(at).unwrap_or(0));
    }
}

impl fmt::Debug for IntroductionPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IntroductionPoint(hidden)")
    }
}

impl fmt::Debug for KnownService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KnownService({} points)", self.points.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_what_its_specifiers_say_and_says_them_again() {
        let specifiers = [
            LinkSpecifier::Ipv4("192.0.2.1:9001".parse().expect("an address")),
            LinkSpecifier::Rsa([2; 20]),
            LinkSpecifier::Ed25519([3; 32]),
            LinkSpecifier::Ipv6("[2001:db8::1]:9001".parse().expect("an address")),
        ];
        let made = relay(&specifiers, [4; 32]).expect("a relay");
        assert_eq!(made.specifiers(), specifiers);
        assert_eq!(made.keys.onion, [4; 32]);
        let without = |kind: usize| {
            let mut fewer = specifiers.to_vec();
            fewer.remove(kind);
            relay(&fewer, [4; 32])
        };
        assert_eq!(without(2), None, "no Ed25519 identity");
        let no_rsa = without(1).expect("a relay");
        assert_eq!(no_rsa.keys.rsa_id, stand_in(&[3; 32]));
        assert!(!no_rsa.rsa);
        assert_eq!(relay(&specifiers[1..3], [4; 32]), None, "no address");
    }

    #[test]
    fn every_order_comes_up() {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let mut list = [1, 2, 3];
            shuffle(&mut list);
            seen.insert(list);
        }
        assert_eq!(seen.len(), 6);
    }
}
