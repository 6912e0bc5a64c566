//! Where a circuit may be extended to: which relay EXTEND2 names, whether it may be that one, and how often one is asked.
//! [`super::driver`] asks before it dials. tor-spec "EXTEND and EXTENDED cells".

use std::{collections::HashMap, net::SocketAddr};

use hoplite_channel::Recent;
use hoplite_crypto::onion::RelayKeys;
use hoplite_wire::{
    Protocols,
    cell::circuit::{Extend2, LinkSpecifier},
};
use tokio::time::Instant;

use super::{Admit, handshakes::Bucket};
use crate::path;

/// Below this many relays, and clients of one, nobody is forgotten.
const MIN_REMEMBERED: usize = 64;

/// Why a circuit is not extended; to the client each is DESTROY, reason PROTOCOL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Without an Ed25519 identity anybody could answer.
    #[error("EXTEND2 without an Ed25519 identity")]
    NoIdentity,
    /// No address that is a target.
    #[error("EXTEND2 without an address that is allowed")]
    NoAddress,
    /// To this relay.
    #[error("EXTEND2 to the relay itself")]
    Oneself,
    /// To where the circuit came from.
    #[error("EXTEND2 to the previous relay")]
    Back,
}

/// The relay that `extend` names. `own` is this relay's identity, `previous` that of whoever the circuit came from; of its addresses
/// those are taken that `admits` lets pass.
///
/// # Errors
/// [`Refusal`].
pub(crate) fn next_relay(
    extend: &Extend2<'_>,
    own: &[u8; 32],
    previous: Option<[u8; 32]>,
    admits: &dyn Admit,
) -> Result<path::Relay, Refusal> {
    let mut ed25519 = [0; 32];
    let mut rsa_id = None;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for specifier in &extend.specifiers {
        match specifier {
            LinkSpecifier::Ipv4(address) => addresses.push((*address).into()),
            LinkSpecifier::Ipv6(address) => addresses.push((*address).into()),
            LinkSpecifier::Rsa(id) => rsa_id = Some(*id),
            LinkSpecifier::Ed25519(id) => ed25519 = *id,
            LinkSpecifier::Unknown { .. } => {}
        }
    }
    addresses.retain(|address| address.port() != 0 && admits.admits(*address));
    check(&ed25519, own, previous)?;
    if addresses.is_empty() {
        return Err(Refusal::NoAddress);
    }
    // Only who and where matter here: the client makes the handshake.
    Ok(path::Relay {
        name: "".into(),
        keys: RelayKeys {
            rsa_id: rsa_id.unwrap_or_default(),
            ed25519,
            onion: [0; 32],
        },
        rsa: rsa_id.is_some(),
        addresses,
        ntor3: true,
        congestion_control: false,
        protocols: Protocols::NONE,
        half_close: false,
        exit: None,
    })
}

/// How often other relays are asked to begin circuits. Each lets this one begin so many, whoever they are of: without a share
/// for each client one of them could use all that up, and the others' circuits would seem to fail at the next relay.
#[derive(Debug)]
pub struct Extensions {
    /// Of one relay: at once, and each second.
    rate: (u32, u32),
    relays: HashMap<[u8; 32], Asked>,
    sweep_at: usize,
}

/// What one relay was asked.
#[derive(Debug)]
struct Asked {
    bucket: Bucket,
    clients: HashMap<u64, Recent>,
    sweep_at: usize,
}

impl Extensions {
    /// Nobody has been asked; of each relay as much as it permits: this many at once, and then this many a second.
    pub fn new(rate: (u32, u32)) -> Self {
        Self {
            rate,
            relays: HashMap::new(),
            sweep_at: MIN_REMEMBERED,
        }
    }

    /// Whether the relay `next` is asked for this client once more.
    pub fn admits(&mut self, next: &[u8; 32], client: u64, now: Instant) -> bool {
        self.admits_many(next, client, 1, now)
    }

    /// The same for what counts as so many. Who asked for nothing of late, and may have one, has them all; then nobody has anything before what was short
    /// has come back.
    pub fn admits_many(&mut self, next: &[u8; 32], client: u64, count: u32, now: Instant) -> bool {
        if self.relays.len() >= self.sweep_at {
            self.relays.retain(|_, asked| asked.sweep(now) > 0);
            self.sweep_at = MIN_REMEMBERED.max(self.relays.len() * 2);
        }
        let (most, per_second) = self.rate;
        let asked = self.relays.entry(*next).or_insert_with(|| Asked {
            bucket: Bucket::new(most, per_second, now),
            clients: HashMap::new(),
            sweep_at: MIN_REMEMBERED,
        });
        asked.admits(client, count, now)
    }
}

impl Asked {
    fn admits(&mut self, client: u64, count: u32, now: Instant) -> bool {
        if self.clients.len() >= self.sweep_at {
            self.sweep_at = MIN_REMEMBERED.max(self.sweep(now) * 2);
        }
        let left = self.bucket.left(now);
        let recent = self.clients.entry(client);
        let recent = recent.or_insert_with(|| Recent::new(now));
        let must_be_left = if recent.count(now) == 0 { 1 } else { count };
        let rest = (left + 1).saturating_sub(must_be_left);
        let admitted = recent.is_fair(rest, now) && self.bucket.take_many(count, now);
        if admitted {
            recent.add(count);
        }
        admitted
    }

    /// Forgets who has been quiet; how many are left.
    fn sweep(&mut self, now: Instant) -> usize {
        self.clients.retain(|_, recent| recent.count(now) > 0);
        self.clients.len()
    }
}

fn check(named: &[u8; 32], own: &[u8; 32], previous: Option<[u8; 32]>) -> Result<(), Refusal> {
    if *named == [0; 32] {
        return Err(Refusal::NoIdentity);
    }
    if named == own {
        return Err(Refusal::Oneself);
    }
    if previous.as_ref() == Some(named) {
        return Err(Refusal::Back);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hoplite_wire::cell::circuit::{Create2, HandshakeType};

    use super::{super::Policy, *};

    const OWN: [u8; 32] = [1; 32];
    const GUARD: [u8; 32] = [2; 32];
    const OTHER: [u8; 32] = [3; 32];

    fn asked(address: &str, id: Option<[u8; 32]>, special: bool) -> Result<path::Relay, Refusal> {
        let mut specifiers = match address.parse().expect("an address") {
            SocketAddr::V4(address) => vec![LinkSpecifier::Ipv4(address)],
            SocketAddr::V6(address) => vec![LinkSpecifier::Ipv6(address)],
        };
        specifiers.push(LinkSpecifier::Unknown {
            kind: 9,
            value: b"?",
        });
        specifiers.extend(id.map(LinkSpecifier::Ed25519));
        let create = Create2 {
            handshake: HandshakeType::NTOR_V3,
            data: &[],
        };
        let extend = Extend2 { specifiers, create };
        let policy = Policy::everywhere(special);
        next_relay(&extend, &OWN, Some(GUARD), &policy)
    }

    #[test]
    fn a_public_relay_is_extended_to() {
        let relay = asked("8.8.8.8:443", Some(OTHER), false).expect("allowed");
        assert_eq!(relay.keys.ed25519, OTHER);
        assert_eq!(relay.addresses.len(), 1);
    }

    #[test]
    fn nobody_extends_to_the_relay_itself_or_back() {
        assert_eq!(asked("8.8.8.8:443", Some(OWN), true), Err(Refusal::Oneself));
        assert_eq!(asked("8.8.8.8:443", Some(GUARD), true), Err(Refusal::Back));
    }

    #[test]
    fn one_alone_has_nearly_all_and_leaves_something_to_whoever_comes() {
        let mut now = Instant::now();
        let mut extensions = Extensions::new((1600, 800));
        let mut had = 0;
        for ms in 0..60_000 {
            now += Duration::from_millis(1);
            had += (0..4).filter(|_| extensions.admits(&OTHER, 1, now)).count();
            assert!(ms % 100 != 0 || extensions.admits(&OTHER, 2, now), "{ms}");
        }
        assert!(had > 60 * 500, "{had}");
        for client in 100..600 {
            assert!(extensions.admits(&OTHER, client, now), "{client}");
        }
        assert!(extensions.admits(&GUARD, 1, now), "another relay");
    }

    #[test]
    fn two_who_ask_all_the_time_have_the_same_and_the_third_has_what_he_asks_for() {
        let mut now = Instant::now();
        let mut extensions = Extensions::new((1600, 800));
        let mut had = [0, 0];
        for ms in 0..120_000 {
            now += Duration::from_millis(1);
            // One asks more often than the other.
            for (client, times) in [(0, 8), (1, 2)] {
                let admitted = (0..times).filter(|_| extensions.admits(&OTHER, client, now));
                had[usize::try_from(client).expect("0 or 1")] += admitted.count();
            }
            assert!(ms % 50 != 0 || extensions.admits(&OTHER, 2, now), "{ms}");
        }
        let [most, least] = had;
        assert!(least * 10 > most * 9, "{had:?}");
    }

    #[test]
    fn relays_and_clients_that_were_asked_for_once_are_forgotten() {
        let mut now = Instant::now();
        let mut extensions = Extensions::new((1600, 800));
        for n in 0..50_000u64 {
            now += Duration::from_millis(10);
            let mut next = [0; 32];
            next[..8].copy_from_slice(&n.to_be_bytes());
            assert!(extensions.admits(&next, n, now));
            assert!(extensions.admits(&OTHER, n, now));
        }
        let clients = extensions
            .relays
            .get(&OTHER)
            .map_or(0, |asked| asked.clients.len());
        // A hundred came each second, each once.
        assert!(
            clients <= 5000 && extensions.relays.len() <= 5000,
            "{clients}"
        );
    }

    #[test]
    fn nobody_extends_without_an_identity() {
        assert_eq!(asked("8.8.8.8:443", None, true), Err(Refusal::NoIdentity));
        assert_eq!(
            asked("8.8.8.8:443", Some([0; 32]), true),
            Err(Refusal::NoIdentity)
        );
    }

    #[test]
    fn special_addresses_are_extended_to_only_where_that_is_allowed() {
        for address in [
            "127.0.0.1:1",
            "10.1.1.1:1",
            "[::1]:1",
            "[fe80::1]:1",
            "0.0.0.0:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(
                asked(address, Some(OTHER), false),
                Err(Refusal::NoAddress),
                "{address}"
            );
            assert!(asked(address, Some(OTHER), true).is_ok(), "{address}");
        }
        assert_eq!(
            asked("8.8.8.8:0", Some(OTHER), true),
            Err(Refusal::NoAddress)
        );
    }
}
