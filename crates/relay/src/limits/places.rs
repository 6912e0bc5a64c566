//! Who has a place for a connection: what it costs a client to keep one decides who has to go when places are short.
//!
//! A connection *waits* from its first byte (its handshake counts) until a request of its own is admitted; it is *busy* while it has requests and
//! *rests* between them. Those that wait have fewer places; a newcomer who finds none takes that of the one which has waited for longest,
//! of the same client if that has its share, else of the client with the most of them. So whoever holds many idle connections displaces his own, and
//! a client that is quiet until then and asks for something gets in. When all places are taken, the oldest goes of a client that holds at least two
//! more than the newcomer's, one that waits before one that rests, and one that rests before one that is busy.
//!
//! A connection that was sent away, or never came to anything, still holds memory for a while (the closing period of RFC 9000 §10.2, which the peer can
//! stretch): until then it counts as *leaving*. Twice as many may leave as may wait, and of those places no client has more than are left free: whose connections
//! are still leaving is refused above that.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::{ClientKey, Reached};
use crate::config::Limits;

/// All places.
#[derive(Debug)]
pub(crate) struct Places {
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    all: usize,
    of_client: usize,
    waiting: usize,
    waiting_of_client: usize,
}

/// A connection's place; dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    told: Arc<Notify>,
}

/// An admitted request of a connection: while one lives, the connection is busy.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Place>);

#[derive(Debug, Default)]
struct State {
    bounds: Bounds,
    /// Numbers connections, and moments at which one began to wait or to rest.
    next: u64,
    connections: HashMap<u64, Connection>,
    clients: HashMap<ClientKey, Client>,
    /// Those that are not leaving.
    held: usize,
    leaving: usize,
    waiting: ConnectionQueue,
    resting: ConnectionQueue,
    busy: ConnectionQueue,
}

#[derive(Debug)]
struct Connection {
    client: ClientKey,
    now: Now,
    told: Arc<Notify>,
}

/// What a connection does, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    Waiting(u64),
    Resting(u64),
    /// With this many requests.
    Busy(usize),
    Leaving,
}

#[derive(Debug, Default)]
struct Client {
    held: usize,
    leaving: usize,
}

/// Connections of one kind, of each client by age, and the clients by how many they have.
#[derive(Debug, Default)]
struct ConnectionQueue {
    len: usize,
    of: HashMap<ClientKey, BTreeMap<u64, u64>>,
    most: BTreeSet<(usize, ClientKey)>,
}

impl Places {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        let state = State {
            bounds: Bounds::of(limits),
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    /// From now on newcomers find so many places. Whoever has one keeps it, also where there are fewer now.
    pub(super) fn set_bounds(&self, limits: &Limits) {
        self.state().bounds = Bounds::of(limits);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Gives a newcomer a place; somebody else may lose his.
    pub(super) fn enter(self: &Arc<Self>, client: ClientKey) -> Result<Place, Reached> {
        let mut state = self.state();
        let bounds = state.bounds;
        state.make_room(client, bounds)?;
        let (id, told) = state.enter(client);
        Ok(Place {
            places: self.clone(),
            id,
            told,
        })
    }

    /// How many connections hold a place, and how many of those wait.
    pub(super) fn held(&self) -> (usize, usize) {
        let state = self.state();
        (state.held, state.waiting.len)
    }

    /// Whether a newcomer would get a place.
    pub(super) fn admits(&self, client: ClientKey) -> bool {
        let state = self.state();
        let bounds = state.bounds;
        let of_client = state.clients.get(&client).map_or(0, |client| client.held);
        let own = state.waiting.of(client) + state.resting.of(client);
        !state.is_leaving(client, bounds)
            && (of_client < bounds.of_client || own > 0)
            && (state.held < bounds.all || state.first_of_all(client).is_some())
    }

    /// Sends away the connection that costs its client least, if there is one.
    pub(super) fn free_one(&self) -> bool {
        let mut state = self.state();
        let idle = state.waiting.oldest().or_else(|| state.resting.oldest());
        idle.inspect(|id| state.send_away(*id)).is_some()
    }
}

impl Bounds {
    const fn of(limits: &Limits) -> Self {
        Self {
            all: limits.connections,
            of_client: limits.connections_per_client,
            waiting: limits.waiting,
            waiting_of_client: limits.waiting_per_client,
        }
    }
}

impl State {
    fn is_leaving(&self, client: ClientKey, bounds: Bounds) -> bool {
        let leaving = self.clients.get(&client).map_or(0, |client| client.leaving);
        let free = bounds
            .waiting
            .saturating_mul(2)
            .saturating_sub(self.leaving);
        leaving > 0 && leaving >= bounds.waiting_of_client.min(free)
    }

    fn make_room(&mut self, client: ClientKey, bounds: Bounds) -> Result<(), Reached> {
        if self.is_leaving(client, bounds) {
            return Err(Reached::Client);
        }
        let held = self.clients.get(&client).map_or(0, |client| client.held);
        let first = if self.waiting.of(client) >= bounds.waiting_of_client {
            self.waiting.oldest_of(client)
        } else if held >= bounds.of_client {
            let own = self.waiting.oldest_of(client);
            let own = own.or_else(|| self.resting.oldest_of(client));
            Some(own.ok_or(Reached::Client)?)
        } else if self.waiting.len >= bounds.waiting {
            self.waiting.oldest()
        } else if self.held >= bounds.all {
            Some(self.first_of_all(client).ok_or(Reached::Total)?)
        } else {
            None
        };
        if let Some(first) = first {
            self.send_away(first);
        }
        Ok(())
    }

    /// Whose place a newcomer of this client gets when all are taken: one of a client that holds at least two more, waiting or resting before busy.
    /// Whoever has nothing yet takes also what waits or rests of those that have as little.
    fn first_of_all(&self, client: ClientKey) -> Option<u64> {
        let held_by = |client: ClientKey| self.clients.get(&client).map_or(0, |client| client.held);
        let held = held_by(client);
        let is_richer = |line: &&ConnectionQueue| {
            let most = line.most.last();
            most.is_some_and(|(_, client)| held_by(*client) > held + 1)
        };
        let mut lines = [&self.waiting, &self.resting, &self.busy].into_iter();
        let richer = lines.find(is_richer).and_then(ConnectionQueue::oldest);
        let idle = || self.waiting.oldest().or_else(|| self.resting.oldest());
        richer.or_else(|| (held == 0).then(idle).flatten())
    }

    fn enter(&mut self, client: ClientKey) -> (u64, Arc<Notify>) {
        let id = self.tick();
        let told = Arc::new(Notify::new());
        self.connections.insert(
            id,
            Connection {
                client,
                now: Now::Waiting(id),
                told: told.clone(),
            },
        );
        self.clients.entry(client).or_default().held += 1;
        self.held += 1;
        self.waiting.put(client, id, id);
        (id, told)
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Changes what a connection does; what it did until now.
    fn turn(&mut self, id: u64, next: impl FnOnce(Now) -> Now) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let (client, before) = (connection.client, connection.now);
        connection.now = next(before);
        let after = connection.now;
        match before {
            Now::Waiting(since) => self.waiting.take(client, since),
            Now::Resting(since) => self.resting.take(client, since),
            Now::Busy(_) => self.busy.take(client, id),
            Now::Leaving => {}
        }
        match after {
            Now::Waiting(since) => self.waiting.put(client, since, id),
            Now::Resting(since) => self.resting.put(client, since, id),
            Now::Busy(_) => self.busy.put(client, id, id),
            Now::Leaving => {}
        }
        if before != Now::Leaving && after == Now::Leaving {
            self.held -= 1;
            self.leaving += 1;
            let client = self.clients.entry(client).or_default();
            client.held -= 1;
            client.leaving += 1;
        }
    }

    fn send_away(&mut self, id: u64) {
        self.turn(id, |_| Now::Leaving);
        if let Some(connection) = self.connections.get(&id) {
            connection.told.notify_one();
        }
    }

    fn leave(&mut self, id: u64) {
        self.turn(id, |_| Now::Leaving);
        let Some(Connection { client, .. }) = self.connections.remove(&id) else {
            return;
        };
        self.leaving -= 1;
        if let Some(of) = self.clients.get_mut(&client) {
            of.leaving -= 1;
            if of.held + of.leaving == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

impl Place {
    /// Resolves when somebody else has been given the place.
    pub(crate) async fn lost(&self) {
        self.told.notified().await;
    }

    /// Whether no request of the connection has been admitted yet.
    pub(crate) fn is_waiting(&self) -> bool {
        let state = self.places.state();
        let connection = state.connections.get(&self.id);
        connection.is_some_and(|connection| matches!(connection.now, Now::Waiting(_)))
    }

    /// A request was admitted.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.places.state().turn(self.id, |now| match now {
            Now::Waiting(_) | Now::Resting(_) => Now::Busy(1),
            Now::Busy(requests) => Now::Busy(requests + 1),
            Now::Leaving => Now::Leaving,
        });
        Busy(self.clone())
    }

    /// The connection has ended, though its memory is not free yet. Whether it came to nothing: no request was admitted, or it was sent away.
    pub(crate) fn leave(&self) -> bool {
        let mut nothing = false;
        self.places.state().turn(self.id, |now| {
            nothing = matches!(now, Now::Waiting(_) | Now::Leaving);
            Now::Leaving
        });
        nothing
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.state().leave(self.id);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.places.state();
        let since = state.tick();
        state.turn(self.0.id, |now| match now {
            Now::Busy(1) => Now::Resting(since),
            Now::Busy(requests) => Now::Busy(requests - 1),
            other => other,
        });
    }
}

impl ConnectionQueue {
    fn of(&self, client: ClientKey) -> usize {
        self.of.get(&client).map_or(0, BTreeMap::len)
    }

    fn put(&mut self, client: ClientKey, since: u64, id: u64) {
        let of = self.of.entry(client).or_default();
        self.most.remove(&(of.len(), client));
        of.insert(since, id);
        self.most.insert((of.len(), client));
        self.len += 1;
    }

    fn take(&mut self, client: ClientKey, since: u64) {
        let Some(of) = self.of.get_mut(&client) else {
            return;
        };
        self.most.remove(&(of.len(), client));
        self.len -= usize::from(of.remove(&since).is_some());
        match of.len() {
            0 => drop(self.of.remove(&client)),
            left => drop(self.most.insert((left, client))),
        }
    }

    fn oldest_of(&self, client: ClientKey) -> Option<u64> {
        self.of.get(&client)?.values().next().copied()
    }

    /// The oldest of the client with the most.
    fn oldest(&self) -> Option<u64> {
        self.oldest_of(self.most.last()?.1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MALLORY: ClientKey = ClientKey(1);
    const ALICE: ClientKey = ClientKey(2);

    fn places(
        all: usize,
        of_client: usize,
        waiting: usize,
        waiting_of_client: usize,
    ) -> Arc<Places> {
        Places::new(&Limits {
            connections: all,
            connections_per_client: of_client,
            waiting,
            waiting_per_client: waiting_of_client,
            ..Limits::default()
        })
    }

    fn enter(places: &Arc<Places>, client: ClientKey) -> Arc<Place> {
        Arc::new(places.enter(client).expect("a place"))
    }

    fn has_lost(place: &Place) -> bool {
        matches!(
            place.places.state().connections[&place.id].now,
            Now::Leaving
        )
    }

    #[test]
    fn who_holds_most_without_asking_for_anything_makes_room_for_a_newcomer() {
        let places = places(100, 100, 4, 4);
        let alice = enter(&places, ALICE);
        let mallory = [MALLORY; 3].map(|client| enter(&places, client));
        let bob = enter(&places, ClientKey(3));
        assert!(!has_lost(&alice) && !has_lost(&bob));
        assert_eq!(mallory.map(|place| has_lost(&place)), [true, false, false]);
    }

    #[test]
    fn above_its_share_a_client_displaces_its_own_connections_only() {
        let places = places(100, 100, 100, 2);
        let alice = enter(&places, ALICE);
        let mallory = [MALLORY; 4].map(|client| enter(&places, client));
        assert!(!has_lost(&alice));
        let lost = mallory.map(|place| has_lost(&place));
        assert_eq!(lost, [true, true, false, false]);
    }

    #[test]
    fn those_with_a_request_go_last_and_only_for_a_client_that_has_less() {
        let places = places(4, 4, 4, 4);
        let mallory = [MALLORY; 3].map(|client| enter(&places, client));
        let mut busy: Vec<_> = mallory.iter().map(Place::busy).collect();
        let alice = enter(&places, ALICE);
        let _alice_busy = alice.busy();
        assert_eq!(places.enter(MALLORY).expect_err("full"), Reached::Total);
        assert!(!places.admits(MALLORY) && places.admits(ALICE));
        // Mallory has three, and Alice then as many as he: no more of his go.
        let _second = enter(&places, ALICE).busy();
        assert_eq!(
            mallory.each_ref().map(|place| has_lost(place)),
            [true, false, false]
        );
        assert_eq!(places.enter(ALICE).expect_err("full"), Reached::Total);
        assert!(!places.admits(ALICE));
        // Somebody without any gets in, and what rests goes before what is busy.
        drop(busy.pop());
        assert!(places.admits(ClientKey(3)));
        let _bob = enter(&places, ClientKey(3));
        assert_eq!(mallory.map(|place| has_lost(&place)), [true, false, true]);
        assert!(!has_lost(&alice));
    }

    #[test]
    fn who_holds_much_takes_no_place_from_a_newcomer_who_has_not_asked_yet() {
        let places = places(4, 4, 4, 4);
        let mallory = [MALLORY; 4].map(|client| enter(&places, client));
        let _busy: Vec<_> = mallory.iter().map(Place::busy).collect();
        let alice = enter(&places, ALICE);
        assert_eq!(places.enter(MALLORY).expect_err("full"), Reached::Total);
        assert!(!has_lost(&alice) && !places.admits(MALLORY));
        // Nor when it rests.
        drop(alice.busy());
        assert_eq!(places.enter(MALLORY).expect_err("full"), Reached::Total);
        assert!(!has_lost(&alice));
    }

    #[test]
    fn those_that_never_asked_go_before_those_that_rest() {
        let places = places(2, 2, 2, 2);
        let rests = enter(&places, MALLORY);
        drop(rests.busy());
        let waits = enter(&places, ALICE);
        let _bob = enter(&places, ClientKey(3));
        assert!(has_lost(&waits) && !has_lost(&rests) && !rests.is_waiting());
    }

    #[test]
    fn whose_connections_are_still_being_closed_waits_for_that() {
        let places = places(100, 100, 100, 2);
        let held = [MALLORY; 4].map(|client| enter(&places, client));
        assert_eq!(places.enter(MALLORY).expect_err("full"), Reached::Client);
        assert!(places.enter(ALICE).is_ok());
        drop(held);
        assert!(places.enter(MALLORY).is_ok());
    }

    #[test]
    fn of_those_that_leave_no_client_has_more_than_are_left_for_others() {
        let places = places(100, 100, 8, 20);
        let held: Vec<_> = (0..30).filter_map(|_| places.enter(MALLORY).ok()).collect();
        // He may have eight that wait, and eight of sixteen that leave.
        assert_eq!(held.len(), 16);
        assert_eq!(places.enter(MALLORY).expect_err("full"), Reached::Client);
        assert!(!places.admits(MALLORY) && places.admits(ALICE));
        let alice = [ALICE; 8].map(|client| places.enter(client));
        assert!(alice.iter().take(3).all(Result::is_ok));
        drop(held);
        assert!(places.enter(MALLORY).is_ok());
    }

    proptest! {
        #[test]
        fn the_books_are_right_whatever_happens(steps in prop::collection::vec((0..5u8, 0..8u64), 1..400)) {
            let places = places(6, 4, 4, 3);
            let (mut open, mut busy) = (Vec::new(), Vec::new());
            for (what, which) in steps {
                let at = usize::try_from(which).expect("small");
                match what {
                    0 | 1 => open.extend(places.enter(ClientKey(which % 4)).ok().map(Arc::new)),
                    2 => busy.extend(open.get(at).map(Place::busy)),
                    3 if at < busy.len() => drop(busy.swap_remove(at)),
                    4 if at < open.len() => drop(open.swap_remove(at)),
                    _ => {}
                }
                let state = places.state();
                let count = |kind: fn(&Now) -> bool| {
                    state.connections.values().filter(|one| kind(&one.now)).count()
                };
                prop_assert_eq!(state.waiting.len, count(|now| matches!(now, Now::Waiting(_))));
                prop_assert_eq!(state.resting.len, count(|now| matches!(now, Now::Resting(_))));
                prop_assert_eq!(state.busy.len, count(|now| matches!(now, Now::Busy(_))));
                prop_assert_eq!(state.held, count(|now| *now != Now::Leaving));
                prop_assert_eq!(state.leaving, count(|now| *now == Now::Leaving));
                prop_assert!(state.held <= 6 && state.waiting.len <= 4);
                for (client, of) in &state.clients {
                    prop_assert!(of.held <= 4 && of.leaving <= 4 + 3);
                    prop_assert!(state.waiting.of(*client) <= 3);
                }
            }
            drop((open, busy));
            let state = places.state();
            prop_assert!(state.connections.is_empty() && state.clients.is_empty() && state.held == 0);
            prop_assert!(state.waiting.most.is_empty() && state.resting.of.is_empty() && state.busy.most.is_empty());
        }
    }
}
