//! How a client of the simulation asks the product's own chooser for paths, from the list that all clients have. Also notes how long circuits took to be
//! built.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use hoplite_crypto::onion::{RelayKeys, identity::stand_in};
use hoplite_directory::{
    Moment, PathChooser,
    path_selection::{Network, OverlayKind, PathConstraints},
};
use hoplite_onion::{
    channel::Waiting,
    path::{self, Failed, Paths, Relay},
};
use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::{
    Protocols,
    directory::{Descriptor, Key, List, SharedRandomLines, SignedDescriptor, Stage},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{net::Node, random::Random, report::Book};

/// The list, as all clients have it.
#[derive(Debug)]
pub(crate) struct Listed {
    network: Network,
    relays: BTreeMap<Key, Relay>,
    nodes: BTreeMap<Key, Node>,
}

/// One client, as its circuits ask for paths.
pub(crate) struct Chooser {
    listed: Arc<Listed>,
    hops: usize,
    began: Instant,
    book: Arc<Book>,
    state: Mutex<State>,
}

struct State {
    chooser: PathChooser,
    random: Random,
    /// Paths that circuits are being built over.
    building: Vec<(Vec<Relay>, Instant)>,
}

impl Listed {
    /// Of these relays.
    pub(crate) fn of(
        relays: impl Iterator<Item = (Node, SignedDescriptor)>,
        control: bool,
    ) -> Self {
        let mut nodes = BTreeMap::new();
        let relays = relays.inspect(|(node, relay)| {
            nodes.insert(relay.descriptor.identity, *node);
        });
        let mut relays: Vec<_> = relays.map(|(_, relay)| relay).collect();
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
            shared_random: SharedRandomLines::default(),
            relays,
            opinions: BTreeMap::new(),
        };
        Self {
            network: Network::of(&list),
            relays: known,
            nodes,
        }
    }
}

pub(crate) fn known(relay: &Descriptor, congestion_control: bool) -> Option<(Key, Relay)> {
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
        protocols: Protocols::NONE,
        half_close: true,
        exit: relay.exit.clone().map(Arc::new),
    };
    Some((relay.identity, known))
}

impl Chooser {
    /// `distance` is how long a packet takes to a relay: what the product's client measures by a handshake with each of its first guards.
    pub(crate) fn new(
        listed: &Arc<Listed>,
        hops: usize,
        random: Random,
        book: &Arc<Book>,
        distance: impl Fn(Node) -> Option<Duration>,
    ) -> Self {
        let made = Self {
            listed: Arc::clone(listed),
            hops,
            began: Instant::now(),
            book: Arc::clone(book),
            state: Mutex::new(State {
                chooser: PathChooser::guarded(Vec::new()),
                random,
                building: Vec::new(),
            }),
        };
        made.measure_guards(distance);
        made
    }

    fn measure_guards(&self, distance: impl Fn(Node) -> Option<Duration>) {
        let (constraints, now) = (self.constraints(Vec::new()), self.now());
        let mut state = self.state.lock();
        let State {
            chooser, random, ..
        } = &mut *state;
        let (network, draw) = (&self.listed.network, &mut |most| random.below(most));
        let guards = chooser.guards_to_measure(network, &constraints, now, draw);
        let measured = guards.into_iter().map(|guard| {
            let way = self.listed.nodes.get(&guard).copied().and_then(&distance);
            let millis = way.and_then(|way| u32::try_from(way.as_millis().saturating_mul(2)).ok());
            (guard, millis)
        });
        let measured: Vec<_> = measured.collect();
        if !measured.is_empty() {
            chooser.guards_measured(network, &measured, draw);
        }
    }

    fn constraints(&self, ports: Vec<u16>) -> PathConstraints {
        PathConstraints {
            hops: self.hops,
            ports,
            overlay: OverlayKind::Onion,
            ..PathConstraints::default()
        }
    }

    fn now(&self) -> Moment {
        Moment {
            calendar: self.began.elapsed().as_secs(),
            steady: Instant::now().into_std(),
        }
    }

    fn choose(&self, usage: &path::CircuitUsage) -> Option<Vec<Relay>> {
        let constraints = self.constraints(usage.ports.clone());
        let now = self.now();
        let mut state = self.state.lock();
        let State {
            chooser, random, ..
        } = &mut *state;
        let (network, draw) = (&self.listed.network, &mut |most| random.below(most));
        let chosen = chooser.select_circuit(network, &constraints, usage.required, now, draw);
        let chosen = chosen.ok()?;
        let relays = chosen.iter();
        let path: Option<Vec<_>> = relays
            .map(|relay| self.listed.relays.get(&relay.identity).cloned())
            .collect();
        let path = path?;
        state.building.push((path.clone(), Instant::now()));
        Some(path)
    }
}

impl Chooser {
    fn choose_pair(&self, usage: &path::CircuitUsage) -> Option<[Vec<Relay>; 2]> {
        let constraints = self.constraints(usage.ports.clone());
        let now = self.now();
        let mut state = self.state.lock();
        let State {
            chooser, random, ..
        } = &mut *state;
        let (network, draw) = (&self.listed.network, &mut |most| random.below(most));
        let chosen = chooser.select_pair(network, &constraints, usage.required, now, draw);
        let pair = chosen.ok()?.map(|path| {
            let known = |relay: &Descriptor| self.listed.relays.get(&relay.identity).cloned();
            path.into_iter().filter_map(known).collect::<Vec<_>>()
        });
        let began = Instant::now();
        let both = pair.iter().map(|path| (path.clone(), began));
        state.building.extend(both);
        Some(pair)
    }
}

impl Paths for Chooser {
    fn path<'a>(&'a self, usage: &'a path::CircuitUsage) -> Waiting<'a, Result<Vec<Relay>, Error>> {
        Box::pin(async {
            let path = self.choose(usage);
            path.ok_or_else(|| Error::new(ErrorKind::PathFailed, "choosing a path"))
        })
    }

    fn pair<'a>(
        &'a self,
        usage: &'a path::CircuitUsage,
    ) -> Waiting<'a, Result<Option<[Vec<Relay>; 2]>, Error>> {
        Box::pin(async { Ok(self.choose_pair(usage)) })
    }

    fn tried(&self, path: &[Relay], outcome: Result<(), Failed>) {
        let now = self.now();
        let mut state = self.state.lock();
        let begun = state.building.iter().position(|(other, _)| other == path);
        let begun = begun.map(|place| state.building.swap_remove(place).1);
        if let Some(begun) = begun {
            self.book.built(outcome.is_ok().then(|| begun.elapsed()));
        }
        let identity = |hop: usize| path.get(hop).map(|relay| Key(relay.keys.ed25519));
        match outcome {
            // Nothing is stored: there is nothing to be less exact about.
            Ok(()) => {
                if let Some(guard) = identity(0) {
                    state.chooser.guard_worked(&guard, now, &mut |_| 0);
                }
            }
            Err(Failed { hop, .. }) => {
                if let Some(relay) = identity(hop) {
                    state.chooser.circuit_failed(relay, hop, now);
                }
            }
        }
    }
}

impl fmt::Debug for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chooser")
    }
}
