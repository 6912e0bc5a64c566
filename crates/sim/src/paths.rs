//! How a client chooses its paths: by the directory's rules, from the list that all clients have, with a guard of its own.
//! Also notes how long circuits took to be built.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hoplite_crypto::onion::{RelayKeys, identity::stand_in};
use hoplite_directory::{
    Guards,
    select::{Carrier, Network, Wish},
};
use hoplite_onion::{
    channel::Waiting,
    path::{self, Failed, Paths, Relay},
};
use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::directory::{Descriptor, Key, List, SignedDescriptor, Stage};
use tokio::time::Instant;

use crate::{outcome::Book, random::Random};

/// The list, as all clients have it.
#[derive(Debug)]
pub(crate) struct Listed {
    network: Network,
    relays: BTreeMap<Key, Relay>,
}

/// One client's choice.
pub(crate) struct Chooser {
    listed: Arc<Listed>,
    hops: usize,
    began: Instant,
    book: Arc<Book>,
    state: Mutex<State>,
}

struct State {
    guards: Guards,
    random: Random,
    /// Paths that circuits are being built over.
    building: Vec<(Vec<Relay>, Instant)>,
}

impl Listed {
    /// Of these relays.
    pub(crate) fn of(relays: impl Iterator<Item = SignedDescriptor>, control: bool) -> Self {
        let mut relays: Vec<_> = relays.collect();
        relays.sort_by_key(|relay| relay.descriptor.identity);
        let known = relays
            .iter()
            .filter_map(|relay| known(&relay.descriptor, control));
        let known = known.collect();
        let list = List {
            stage: Stage::List,
            valid_after: 0,
            fresh_until: u64::MAX,
            valid_until: u64::MAX,
            params: BTreeMap::new(),
            relays,
        };
        Self {
            network: Network::of(&list),
            relays: known,
        }
    }
}

fn known(relay: &Descriptor, congestion_control: bool) -> Option<(Key, Relay)> {
    let ed25519 = relay.identity.0;
    let known = Relay {
        name: relay.name.as_str().into(),
        keys: RelayKeys {
            rsa_id: stand_in(&ed25519),
            ed25519,
            onion: relay.onion?,
        },
        rsa: false,
        addresses: relay.addresses.clone(),
        ntor3: true,
        congestion_control,
        half_close: true,
        exit: relay.exit.clone().map(Arc::new),
    };
    Some((relay.identity, known))
}

impl Chooser {
    pub(crate) fn new(listed: &Arc<Listed>, hops: usize, random: Random, book: &Arc<Book>) -> Self {
        Self {
            listed: Arc::clone(listed),
            hops,
            began: Instant::now(),
            book: Arc::clone(book),
            state: Mutex::new(State {
                guards: Guards::default(),
                random,
                building: Vec::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose(&self, wish: &path::Wish) -> Option<Vec<Relay>> {
        let mut wish = Wish {
            hops: self.hops,
            ports: wish.ports.clone(),
            carrier: Carrier::Onion,
            ..Wish::default()
        };
        let mut state = self.state();
        let State { guards, random, .. } = &mut *state;
        let network = &self.listed.network;
        let mut draw = |below| random.below(below);
        wish.entry = guards.pick(network, &wish, self.began.elapsed().as_secs(), &mut draw);
        let chosen = network.path(&wish, &mut draw).ok()?;
        let relays = chosen.iter();
        let path: Option<Vec<_>> = relays
            .map(|relay| self.listed.relays.get(&relay.identity).cloned())
            .collect();
        let path = path?;
        state.building.push((path.clone(), Instant::now()));
        Some(path)
    }
}

impl Paths for Chooser {
    fn path<'a>(&'a self, wish: &'a path::Wish) -> Waiting<'a, Result<Vec<Relay>, Error>> {
        Box::pin(async {
            let path = self.choose(wish);
            path.ok_or_else(|| Error::new(ErrorKind::PathFailed, "choosing a path"))
        })
    }

    fn tried(&self, path: &[Relay], outcome: Result<(), Failed>) {
        let now = self.began.elapsed().as_secs();
        let mut state = self.state();
        let begun = state.building.iter().position(|(other, _)| other == path);
        let begun = begun.map(|place| state.building.swap_remove(place).1);
        if let Some(begun) = begun {
            self.book.built(outcome.is_ok().then(|| begun.elapsed()));
        }
        let Some(guard) = path.first().map(|guard| Key(guard.keys.ed25519)) else {
            return;
        };
        match outcome {
            // Nothing is stored.
            Ok(()) => {
                state.guards.worked(&guard, now);
            }
            Err(Failed { hop: 0, .. }) => state.guards.failed(&guard, now),
            Err(_) => {}
        }
    }
}

impl fmt::Debug for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chooser")
    }
}
