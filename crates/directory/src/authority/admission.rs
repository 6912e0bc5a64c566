//! Which descriptors an authority takes: recent ones, newer than those it has, from relays that its operator does not refuse, not too many of one place.

use std::{collections::BTreeMap, net::SocketAddr};

use hoplite_wire::{
    directory::{Descriptor, Key, SignedDescriptor},
    special,
};

use crate::Refused;

/// The operator's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Relays that are known at once; more are refused, those that are there stay.
    pub relays: usize,
    /// Relays with one address.
    pub per_address: usize,
    /// How old a descriptor may be, in seconds.
    pub life: u64,
    /// Whether relays may have private or loopback addresses: for laboratories.
    pub private: bool,
    /// If there are any: only these relays.
    pub only: Vec<Key>,
    /// Never these.
    pub refuse: Vec<Key>,
}

/// Why a descriptor is not taken, in words for its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It cannot be believed.
    #[error("{0}")]
    Refused(Refused),
    /// It is too old.
    #[error("the descriptor is too old: set the relay's clock")]
    Old,
    /// It is from the future.
    #[error("the descriptor is from the future: set the relay's clock")]
    Early,
    /// A newer one is here.
    #[error(
        "a newer descriptor of this relay is here: sign a new one, and check that no other relay has its key"
    )]
    Superseded,
    /// The operator refuses it.
    #[error("this authority does not list this relay: ask its operator")]
    Forbidden,
    /// An address of it is private.
    #[error(
        "an address of the relay is private or otherwise special: publish those that the Internet reaches"
    )]
    Private,
    /// Too many relays have one of its addresses.
    #[error("too many relays have this address: run fewer on one machine")]
    Crowded,
    /// The table is full.
    #[error("this authority knows as many relays as it can: ask its operator")]
    Full,
}

impl Admission {
    pub(super) fn admit(
        &self,
        relay: &Descriptor,
        pool: &BTreeMap<Key, SignedDescriptor>,
        now: u64,
        skew: u64,
    ) -> Result<(), Rejected> {
        let known = pool
            .get(&relay.identity)
            .map(|known| known.descriptor.published);
        let is_private = |address: &SocketAddr| special::is_refused(address.ip());
        let listed = self.only.is_empty() || self.only.contains(&relay.identity);
        let wrongs = [
            (
                !listed || self.refuse.contains(&relay.identity),
                Rejected::Forbidden,
            ),
            (self.is_old(relay, now), Rejected::Old),
            (relay.published > now.saturating_add(skew), Rejected::Early),
            (
                known.is_some_and(|known| relay.published <= known),
                Rejected::Superseded,
            ),
            (
                !self.private && relay.addresses.iter().any(is_private),
                Rejected::Private,
            ),
            (known.is_none() && pool.len() >= self.relays, Rejected::Full),
            (self.is_crowded(relay, pool), Rejected::Crowded),
        ];
        let wrong = wrongs.into_iter().find(|(is_wrong, _)| *is_wrong);
        wrong.map_or(Ok(()), |(_, rejected)| Err(rejected))
    }

    pub(super) fn is_old(&self, relay: &Descriptor, now: u64) -> bool {
        relay.published.saturating_add(self.life) < now
    }

    fn is_crowded(&self, relay: &Descriptor, pool: &BTreeMap<Key, SignedDescriptor>) -> bool {
        relay.addresses.iter().any(|address| {
            let there = |other: &SocketAddr| other.ip() == address.ip();
            let others = pool.values().filter(|other| {
                let other = &other.descriptor;
                other.identity != relay.identity && other.addresses.iter().any(there)
            });
            others.count() >= self.per_address
        })
    }
}
