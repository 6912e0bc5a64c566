//! Round trips to relays of the list: of guards before they are used for the first time, of those that come before the one that is used, which may be
//! reached again, and of exits.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::join_all;
use hoplite_crypto::{Pin, Trust};
use hoplite_directory::path_selection::Network;
use hoplite_masque::{self as masque, Paths, TakenBack};
use hoplite_overlay::Overlay;
use hoplite_wire::{Target, directory::Key};
use tokio::time::{Instant, sleep, timeout};

use super::{Known, Listed, hop, moment};
use crate::{client, wallet::Wallets};

/// How long a relay may take to answer whose round trip is measured.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often is looked whether other exits are to be measured.
const MEASURE_INTERVAL: Duration = Duration::from_secs(3600);
/// How often is looked whether the first relay of the path carries, and whether one that comes before it can be reached again.
const GUARD_INTERVAL: Duration = Duration::from_secs(60);
/// How long after that none is looked for that was found already.
const LOOK_AGAIN: Duration = Duration::from_secs(600);
/// After a path that did not stand.
const MEASURE_AGAIN: Duration = Duration::from_secs(60);

impl Listed {
    /// Before a guard is used for the first time: a handshake with each of the first, of which the nearer ones are probably used first.
    pub(super) async fn measure_guards(&self, below: Arc<dyn Overlay>, config: &masque::Config) {
        let (network, guards) = {
            let state = &mut *self.lock();
            // C tor's relays take no handshake of QUIC.
            if !state.needs.explicit.is_empty() || matches!(state.known, Known::Tor(..)) {
                return;
            }
            let (network, mut random) = (Arc::clone(&state.network), client::random());
            let constraints = state.needs.constraints(&state.file);
            let chooser = &mut state.chooser;
            let guards = chooser.guards_to_measure(&network, &constraints, moment(), &mut random);
            (network, guards)
        };
        if guards.is_empty() {
            return;
        }
        let measured = guards.iter().map(|guard| async {
            let millis = measured(&network, guard, 0, Arc::clone(&below), config).await;
            (*guard, millis)
        });
        let measured = join_all(measured).await;
        let state = &mut *self.lock();
        let (chooser, mut random) = (&mut state.chooser, client::random());
        chooser.guards_measured(&network, &measured, &mut random);
        state.keep_guards();
    }

    /// Keeps to the first of the guards, until dropped: notes that the first relay of the path carries, and when one that comes before it has rested looks
    /// whether it can be reached again, before flows are to go that way. So who can keep the first ones away for a minute does not choose the guard of days.
    pub(crate) async fn keep_to_guards(
        &self,
        paths: &Paths,
        below: Arc<dyn Overlay>,
        config: &masque::Config,
    ) {
        let mut looked = None::<(Key, Instant)>;
        loop {
            sleep(GUARD_INTERVAL).await;
            let path = paths.current();
            let over_quic = path.hops().first().and_then(|hop| hop.is_over_quic());
            let (Some(is_over_quic), Some(first)) = (over_quic, self.first_of(paths)) else {
                continue;
            };
            self.worked(&first);
            let (network, better) = self.better_guard(&first);
            // One that does not go with the rest of any path stays the better one.
            let is_new = |guard: &Key| {
                looked.is_none_or(|(last, at)| last != *guard || at.elapsed() >= LOOK_AGAIN)
            };
            let better = better.filter(is_new);
            let Some((guard, place)) = better.and_then(|one| Some((one, network.place(&one)?)))
            else {
                continue;
            };
            looked = Some((guard, Instant::now()));
            // Where UDP does not get through nobody answers, and only a connection can tell.
            let answers = measured(&network, &guard, 0, Arc::clone(&below), config).await;
            let taken = if answers.is_some() || !is_over_quic {
                paths.take_back(place).await
            } else {
                TakenBack::Away
            };
            match taken {
                TakenBack::Taken => self.worked(&guard),
                TakenBack::Away => self.lock().chooser.guard_failed(&guard, moment()),
                TakenBack::NotChosen => {}
            }
        }
    }

    /// The first relay of the path, as the list has it.
    fn first_of(&self, paths: &Paths) -> Option<Key> {
        let first = paths.first()?;
        let network = Arc::clone(&self.lock().network);
        let mut relays = network.relays().iter();
        let found = relays.find(|relay| {
            let pin = relay.pin.map(Pin::from);
            let address = relay.addresses.first().copied().map(Target::from);
            let is_pinned =
                |pin| matches!(&first.peer.trust, Trust::Pins(pins) if pins.contains(&pin));
            pin.is_some_and(is_pinned) && address.as_ref() == Some(&first.peer.address)
        });
        found.map(|relay| relay.identity)
    }

    /// The guard that would be used instead of it, if there is one.
    fn better_guard(&self, first: &Key) -> (Arc<Network>, Option<Key>) {
        let state = &mut *self.lock();
        let (network, mut random) = (Arc::clone(&state.network), client::random());
        let constraints = state.needs.constraints(&state.file);
        let chooser = &mut state.chooser;
        let better = chooser.guard_before(first, &network, &constraints, moment(), &mut random);
        (network, better)
    }

    /// Looks now and then, until dropped, which exits are near, through the first relay of the path; chooses again when that has become known.
    pub(crate) async fn measure_exits(
        &self,
        paths: &Paths,
        below: Arc<dyn Overlay>,
        config: &masque::Config,
    ) {
        loop {
            if paths.current().connect().await.is_err() {
                sleep(MEASURE_AGAIN).await;
                continue;
            }
            let hops = paths.current().hops().to_vec();
            let through: Arc<dyn Overlay> = match hops.as_slice() {
                [first, _, ..] => Arc::new(first.clone()),
                _ => Arc::clone(&below),
            };
            let number = usize::from(hops.len() > 1);
            let first = self.first_of(paths).filter(|_| number > 0);
            let (network, exits) = self.exits_to_measure(first.as_ref());
            let mut is_known = false;
            for exit in exits {
                let through = Arc::clone(&through);
                if let Some(millis) = measured(&network, &exit, number, through, config).await {
                    self.lock().chooser.exit_measured(&exit, millis);
                    is_known = true;
                }
            }
            self.lock().keep_guards();
            if is_known {
                paths.reconsider();
            }
            sleep(MEASURE_INTERVAL).await;
        }
    }

    /// Those that go with the first relay of the path, if there is another one.
    fn exits_to_measure(&self, first: Option<&Key>) -> (Arc<Network>, Vec<Key>) {
        let state = &mut *self.lock();
        let (network, mut random) = (Arc::clone(&state.network), client::random());
        let mut constraints = state.needs.constraints(&state.file);
        if let Some(first) = first {
            let beside = network.not_apart(first, constraints.apart);
            constraints.avoid.extend(beside);
        }
        let chooser = &mut state.chooser;
        let exits = chooser.exits_to_measure(&network, &constraints, moment(), &mut random);
        (network, exits)
    }
}

/// The round trip to a relay of the list in milliseconds; nothing if it does not answer, or not over QUIC.
async fn measured(
    network: &Network,
    relay: &Key,
    number: usize,
    below: Arc<dyn Overlay>,
    config: &masque::Config,
) -> Option<u32> {
    let hop = hop(network.relay(relay)?, None, &BTreeSet::new());
    let relay = client::relay(&hop, &Wallets::default());
    // Circuits' relays need not have a key for it.
    hop.relay.pin?;
    let dialling = Box::pin(masque::round_trip(relay, number, below, config));
    let took = timeout(MEASURE_TIMEOUT, dialling).await.ok()?.ok()?;
    Some(u32::try_from(took.as_millis()).unwrap_or(u32::MAX))
}
