//! How a client chooses its paths: by the directory's rules, from the list that all clients have, with a guard of its own.
//! Also notes how long circuits took to be built.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
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
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{random::Random, report::Book};

/// How long a relay that failed is avoided.
const AVOIDED: Duration = Duration::from_secs(60);

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
    /// Relays that failed lately: they are avoided behind the guard, as the product does.
    failed: BTreeMap<Key, Instant>,
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
                failed: BTreeMap::new(),
                building: Vec::new(),
            }),
        }
    }

    fn choose(&self, wish: &path::Wish) -> Option<Vec<Relay>> {
        let wish = Wish {
            hops: self.hops,
            ports: wish.ports.clone(),
            carrier: Carrier::Onion,
            ..Wish::default()
        };
        let mut state = self.state.lock();
        let avoid = state.avoided();
        let now = self.began.elapsed().as_secs();
        let network = &self.listed.network;
        let mut avoids = [avoid, HashSet::new()].into_iter();
        let chosen = avoids.find_map(|avoid| {
            let wish = Wish {
                avoid,
                ..wish.clone()
            };
            state.choose(network, wish, now)
        })?;
        let relays = chosen.iter();
        let path: Option<Vec<_>> = relays
            .map(|relay| self.listed.relays.get(&relay.identity).cloned())
            .collect();
        let path = path?;
        state.building.push((path.clone(), Instant::now()));
        Some(path)
    }
}

impl State {
    /// From a guard on, whatever failed behind another.
    fn choose<'a>(
        &mut self,
        network: &'a Network,
        mut wish: Wish,
        now: u64,
    ) -> Option<Vec<&'a Descriptor>> {
        let Self { guards, random, .. } = self;
        let mut draw = |below| random.below(below);
        let avoid = std::mem::take(&mut wish.avoid);
        // Guards that do not go with the rest: the only exit may be one.
        let mut unfit = HashSet::new();
        loop {
            wish.avoid.clone_from(&unfit);
            let guard = guards.pick(network, &wish, now, &mut draw)?;
            let mut from = wish.clone();
            from.entry = Some(guard);
            from.avoid.clone_from(&avoid);
            from.avoid.remove(&guard);
            if let Ok(path) = network.path(&from, &mut draw) {
                return Some(path);
            }
            if !unfit.insert(guard) {
                return None;
            }
        }
    }

    fn avoided(&mut self) -> HashSet<Key> {
        self.failed.retain(|_, since| since.elapsed() < AVOIDED);
        self.failed.keys().copied().collect()
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
        let mut state = self.state.lock();
        let begun = state.building.iter().position(|(other, _)| other == path);
        let begun = begun.map(|place| state.building.swap_remove(place).1);
        if let Some(begun) = begun {
            self.book.built(outcome.is_ok().then(|| begun.elapsed()));
        }
        let Some(guard) = path.first().map(|guard| Key(guard.keys.ed25519)) else {
            return;
        };
        match outcome {
            // Nothing is stored: there is nothing to be less exact about.
            Ok(()) => {
                state.guards.worked(&guard, now, &mut |_| 0);
            }
            Err(Failed { hop, .. }) => {
                if hop == 0 {
                    state.guards.failed(&guard, now);
                }
                let failed = path.get(hop).map(|relay| Key(relay.keys.ed25519));
                let failed = failed.map(|relay| (relay, Instant::now()));
                state.failed.extend(failed);
            }
        }
    }
}

impl fmt::Debug for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chooser")
    }
}
