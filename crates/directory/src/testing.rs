//! Relays and authorities by number, for this crate's tests.

use std::collections::BTreeMap;

use hoplite_crypto::SigningKey;
use hoplite_wire::{
    Protocols,
    directory::{
        Descriptor, Key, List, Ports, Roles, SharedRandomLines, Signature, SignedDescriptor,
        SignedList, Stage,
    },
};
use zeroize::Zeroizing;

use crate::{Trust, sign_descriptor};

/// The key of authority or relay `n`.
pub(crate) fn key(n: u8) -> SigningKey {
    SigningKey::from_seed(Zeroizing::new([n; 32])).expect("a key")
}

/// Who that is.
pub(crate) fn public(n: u8) -> Key {
    Key(key(n).public())
}

/// What relay `n` says: both roles, in a network of its own.
pub(crate) fn said(n: u8) -> Descriptor {
    Descriptor {
        name: format!("relay{n}"),
        identity: public(n),
        published: 1_699_999_000,
        addresses: vec![([10, n, 0, 1], 443).into()],
        pin: Some([n; 32]),
        onion: None,
        roles: Roles {
            ingress: true,
            egress: true,
        },
        region: None,
        operator: None,
        family: Vec::new(),
        bandwidth: 1_000_000,
        exit: Some(Ports::all()),
        tokens: None,
        hsdir: false,
        cache: None,
        protocols: Protocols::NONE,
    }
}

/// What relay `n` says of itself, signed by it.
pub(crate) fn descriptor(n: u8) -> SignedDescriptor {
    sign_descriptor(said(n), &key(n)).expect("signed")
}

/// A list from `start` for an hour, to be used for three.
pub(crate) fn list(start: u64, relays: &[SignedDescriptor]) -> List {
    let mut relays = relays.to_vec();
    relays.sort_by_key(|relay| relay.descriptor.identity);
    List {
        stage: Stage::List,
        valid_after: start,
        fresh_until: start + 3600,
        valid_until: start + 3 * 3600,
        params: std::iter::once(("bandwidth-cap".to_owned(), 10_000_000)).collect(),
        shared_random: SharedRandomLines::default(),
        relays,
        opinions: BTreeMap::new(),
    }
}

/// The time of the first list of [`hour`].
pub(crate) const START: u64 = 1_700_000_000;

/// The list of 100 relays of an hour, in which every tenth has said something else since the hour before.
pub(crate) fn hour(hour: u64, signers: &[u8]) -> String {
    hour_of(hour, 10, signers)
}

/// The same where each relay says something else after so many hours.
pub(crate) fn hour_of(hour: u64, every: u64, signers: &[u8]) -> String {
    let says = |n: u8| {
        let changed = (hour + u64::from(n)) / every;
        let descriptor = Descriptor {
            published: 1_699_000_000 + changed,
            cache: Some(9030),
            ..said(n)
        };
        sign_descriptor(descriptor, &key(n)).expect("signed")
    };
    let relays: Vec<_> = (1..=100).map(says).collect();
    signed_by(&list(START + hour * 3600, &relays), signers).to_string()
}

/// It, signed by these authorities.
pub(crate) fn signed_by(list: &List, authorities: &[u8]) -> SignedList {
    let sign = |&n: &u8| (public(n), Signature(key(n).sign(list.text().as_bytes())));
    SignedList {
        list: list.clone(),
        signatures: authorities.iter().map(sign).collect(),
    }
}

/// The first `known` authorities, with clocks a minute apart.
pub(crate) fn trust(known: u8, threshold: usize) -> Trust {
    Trust {
        authorities: (1..=known).map(public).collect(),
        threshold,
        hostile: 0,
        skew: 60,
    }
}
