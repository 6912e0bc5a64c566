//! What clients' connections and their streams may take of the relay's memory, in all. A window is a promise: a peer may fill it at any moment and nothing
//! takes it back, so what is promised is counted, not what is there, and never comes to more than the budget.
//!
//! A connection that does nothing counts [`IDLE`], and that alone while it leaves. Its windows begin with [`INITIAL_WINDOWS`], have [`BUSY`] with its first request,
//! and twice as much each time that it moves half of it within two round trips, up to the bound of one connection, while the budget lasts: of what is left
//! no client has more than is free for others. A window is halved when moving half of it took longer than a second twice, and at no time between
//! two round trips or less: once, that may have been a pause. What the client may send is withdrawn only as it sends: until then it counts
//! ([`Promised::owed`]). What waits for it is known to have gone when the narrower window takes more.
//!
//! A stream whose target takes nothing holds what was read for it, and what the client may still send: [`STALLED`] of that is counted beside the others,
//! so that the connection's other streams go on, and twice as much each time that the client says that it is blocked, up to the stream's own window. Without
//! room for that they wait with it. It keeps that for [`REST`] after it stalled last: to withdraw a window and to give it again lets the client send as much
//! more each time, and a slow target stalls again and again.
//!
//! What is read of a target counts before the transport takes it: each request counts [`TUNNEL`], of which a read may fill [`PIECE`], and for larger reads the
//! connection's tunnels share half of what may wait for the client ([`Account::draw`]). While those that nobody takes have all of that, the others read in
//! pieces.
//!
//! Where too little is left, the client that has most makes room, if that is more than twice what the one that asks would have: what rests for longest of its
//! connections is closed, the widest first, and of those that move the widest is narrowed; one that has much and has hardly less [`STUBBORN`] after that is
//! closed as those that rest. So whoever stuffs what nobody reads loses it to others.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

use super::{ClientKey, Reached};
use crate::{config::Limits, metrics::Level};

mod account;

pub(crate) use account::{Account, HeldPart, InHand, MemoryReservation, Stalled, Transport};

/// What a new connection may send, and what may wait for it, in bytes. It is the same for all: clients remember it for what they send before the next
/// handshake ends, and "the server MUST NOT reduce any limits … that might be violated by the client with its 0-RTT data" (RFC 9000 §7.4.1).
pub(crate) const INITIAL_WINDOWS: (u64, u64) = (32 << 10, 16 << 10);
/// What a connection holds beside its streams, in bytes: the state of QUIC or TLS and of HTTP, tasks, entries in tables. Of the kinds that there are, idle
/// ones hold 17 to 52 kB (`--example idle`); the rest is for what lies between in the heap.
const IDLE: u64 = 64 << 10;
/// Of the budget, connections without a request have no more than one in this many bytes, those that leave among them.
const WAITING: u64 = 3;
/// The same, each way, from its first request on.
const BUSY: u64 = 128 << 10;
/// What a request counts while it is served: some 4 kB that its tunnel holds at rest, and a piece.
pub(crate) const TUNNEL: usize = 4096 + PIECE;
/// What a tunnel may hold without asking: of its target, that its client has not taken, or of a capsule that has come in part. It is copied, so that nothing
/// else is held with it.
pub(crate) const PIECE: usize = hoplite_http::COPIED;
/// A window that is moved in less is never too wide.
const SWIFT: Duration = Duration::from_millis(10);
/// One whose half takes longer is too wide.
const SLOW: Duration = Duration::from_secs(1);
/// A connection rests when nothing has moved on it for this long.
const REST: Duration = Duration::from_secs(2);
/// For so long a connection is waited for that is to have less, and moves too little for that.
const STUBBORN: Duration = Duration::from_secs(30);
/// One in this many bytes is kept for connections that begin and their requests, and half of that for the first ones of clients, with a few requests.
const SPARE: u64 = 16;
/// A client may begin a connection while it has no more than this many times what is free.
const MANY: u64 = 4;
/// One in this many bytes is freed at once.
const FREED: u64 = 64;
/// The machine's memory, where the system does not say.
const USUAL: u64 = 4 << 30;
/// Less is not believed.
const LEAST: u64 = 256 << 20;
/// When the budget's use has fallen by so much, and by half, pages that are free go back to the system.
const FALLEN: u64 = 32 << 20;
/// How often room is made, at most.
const EACH: Duration = Duration::from_millis(20);

/// The budget.
#[derive(Debug)]
pub(super) struct Memory {
    books: Mutex<Books>,
}

/// What one connection has moved, and what of it is in hand. Nothing is shared where bytes pass.
#[derive(Debug, Default)]
struct Tally {
    read: AtomicU64,
    written: AtomicU64,
    /// At how many bytes the windows are looked at again.
    next_read: AtomicU64,
    next_written: AtomicU64,
    /// Read, and not taken by targets; as much as the window is let in hand.
    in_hand: AtomicU64,
    may_hand: AtomicU64,
    less: Notify,
    /// For larger reads that the transport has not taken; as much as the window is let.
    drawn: AtomicU64,
    may_draw: AtomicU64,
    begun: AtomicBool,
    lost: Notify,
}

/// What is promised to one connection, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Promised {
    /// What there is beside streams' bytes.
    base: u64,
    /// What it may send and what may wait for it.
    up: u64,
    down: u64,
    /// The windows of streams that stall.
    stalled: u64,
    /// What was read for those.
    stuck: u64,
    /// What was withdrawn and may still come, or may still wait.
    owed: (u64, u64),
    /// What there is for reads of targets that are larger than a piece: half of what may wait, and while that gets narrower as much as they really have.
    may_draw: u64,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// What is known when half a window has moved.
#[derive(Clone, Copy, Debug)]
struct Moved {
    /// So far.
    bytes: u64,
    round_trip: Duration,
    congestion_window: u64,
}

/// Everybody's windows. No clock inside.
#[derive(Debug)]
struct Books {
    most: u64,
    most_up: u64,
    most_down: u64,
    used: u64,
    /// The most that was used since pages were given back.
    highest: u64,
    next: u64,
    entries: HashMap<u64, Entry>,
    clients: HashMap<ClientKey, Client>,
    weights: BTreeSet<(u64, ClientKey)>,
    made_room: Option<Instant>,
    /// Shows what is used.
    level: Level,
}

#[derive(Debug, Default)]
struct Client {
    bytes: u64,
    connections: BTreeSet<u64>,
}

#[derive(Debug)]
struct Entry {
    client: ClientKey,
    windows: Promised,
    /// How much had moved when each window was last looked at, and when that was.
    looked: [(u64, Instant); 2],
    /// Whether half of it took long once, and was never swift since.
    slow: [bool; 2],
    /// How much had moved when others asked for room, and since when it has not moved.
    rests: (u64, Instant),
    /// It is to have less the next time that it moves.
    narrow: bool,
    pressed: Option<Pressed>,
    lost: bool,
    tally: Arc<Tally>,
}

/// That others need what a connection has.
#[derive(Clone, Copy, Debug)]
struct Pressed {
    /// Since when, and what it had then.
    since: Instant,
    had: u64,
    /// When they last did.
    last: Instant,
}

impl Promised {
    /// Of a connection that begins: its windows are those of [`INITIAL_WINDOWS`].
    const NEW: Self = Self {
        base: IDLE,
        up: INITIAL_WINDOWS.0,
        down: INITIAL_WINDOWS.1,
        stalled: 0,
        stuck: 0,
        owed: (0, 0),
        may_draw: INITIAL_WINDOWS.1 / 2,
    };

    /// Of one with a request.
    const BUSY: Self = Self {
        up: BUSY,
        down: BUSY,
        may_draw: BUSY / 2,
        ..Self::NEW
    };

    /// Of a connection that has ended and is not forgotten yet.
    const LEAVING: Self = Self {
        up: 0,
        down: 0,
        may_draw: 0,
        ..Self::NEW
    };

    /// As much as may be sent may also be in hand.
    const fn cost(&self) -> u64 {
        let promised = self.base + 2 * self.up + self.down + self.may_draw;
        promised + self.stalled + self.stuck + self.owed.0 + self.owed.1
    }

    /// What the transport is told.
    fn receive(&self) -> u64 {
        self.up + self.stalled
    }

    fn of(&mut self, way: Way) -> (&mut u64, &mut u64) {
        match way {
            Way::Up => (&mut self.up, &mut self.owed.0),
            Way::Down => (&mut self.down, &mut self.owed.1),
        }
    }

    /// What waits above a narrower window waits within a wider one; what the client may send beyond its window it may still send.
    fn widen(&mut self, way: Way, to: u64) {
        let (size, owed) = self.of(way);
        let more = to.saturating_sub(*size);
        if way == Way::Down {
            *owed = owed.saturating_sub(more);
        }
        *size += more;
    }

    fn narrow(&mut self, way: Way, to: u64) {
        let (size, owed) = self.of(way);
        *owed += size.saturating_sub(to);
        *size = to.min(*size);
    }
}

impl Books {
    fn new(limits: &Limits) -> Self {
        let most_up = u64::from(limits.connection_window);
        Self {
            most: limits.memory,
            most_up,
            most_down: u64::from(limits.send_window),
            used: 0,
            highest: 0,
            next: 0,
            entries: HashMap::new(),
            clients: HashMap::new(),
            weights: BTreeSet::new(),
            made_room: None,
            level: Level::default(),
        }
    }

    fn enter(
        &mut self,
        client: ClientKey,
        tally: &Arc<Tally>,
        now: Instant,
    ) -> Result<u64, Reached> {
        let cost = Promised::NEW.cost();
        let free = self.most.saturating_sub(self.used + cost);
        let has = self.of(client);
        let is_for_others = has > 0 && free < self.most / SPARE / 2;
        let fair = has + cost <= MANY * free && !is_for_others;
        if !fair || free < self.most / SPARE {
            self.make_room(client, cost, now);
        }
        if !fair {
            return Err(if has > 0 {
                Reached::Client
            } else {
                Reached::Total
            });
        }
        self.next += 1;
        let id = self.next;
        let entry = Entry {
            client,
            windows: Promised::NEW,
            looked: [(0, now); 2],
            slow: [false; 2],
            rests: (0, now),
            narrow: false,
            pressed: None,
            lost: false,
            tally: Arc::clone(tally),
        };
        self.entries.insert(id, entry);
        let of = self.clients.entry(client).or_default();
        of.connections.insert(id);
        self.count(client, 0, cost);
        Ok(id)
    }

    fn leave(&mut self, id: u64) {
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        if let Some(client) = self.clients.get_mut(&entry.client) {
            client.connections.remove(&id);
        }
        self.count(entry.client, entry.windows.cost(), 0);
    }

    fn of(&self, client: ClientKey) -> u64 {
        self.clients.get(&client).map_or(0, |of| of.bytes)
    }

    fn count(&mut self, key: ClientKey, before: u64, after: u64) {
        self.used = self.used + after - before;
        self.highest = self.highest.max(self.used);
        self.level.set(i64::try_from(self.used).unwrap_or(i64::MAX));
        let Some(client) = self.clients.get_mut(&key) else {
            return;
        };
        self.weights.remove(&(client.bytes, key));
        client.bytes = client.bytes + after - before;
        if client.connections.is_empty() {
            self.clients.remove(&key);
        } else {
            self.weights.insert((client.bytes, key));
        }
    }

    /// Changes what is promised, if there is room for that.
    fn change(&mut self, id: u64, now: Instant, change: impl FnOnce(&mut Promised)) -> bool {
        let Some(entry) = self.entries.get(&id) else {
            return false;
        };
        let (client, before) = (entry.client, entry.windows.cost());
        let mut windows = entry.windows;
        change(&mut windows);
        let drawn = entry.tally.drawn.load(Relaxed);
        windows.may_draw = drawn.min(windows.may_draw).max(windows.down / 2);
        let after = windows.cost();
        let more = after.saturating_sub(before);
        let has = self.of(client);
        let free = (self.most - self.most / SPARE).saturating_sub(self.used + more);
        if more > 0 && has + more > free {
            self.make_room(client, more, now);
            return false;
        }
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.windows = windows;
        }
        self.count(client, before, after);
        true
    }

    /// A request of the connection was admitted.
    fn begin(&mut self, id: u64, now: Instant) {
        let up = BUSY.min(self.most_up);
        let down = BUSY.min(self.most_down);
        self.change(id, now, |windows| {
            windows.widen(Way::Up, up);
            windows.widen(Way::Down, down);
        });
    }

    /// Half a window has moved: it is as wide as it should be now.
    fn moved(&mut self, id: u64, way: Way, moved: Moved, now: Instant) {
        let most = match way {
            Way::Up => self.most_up,
            Way::Down => self.most_down,
        };
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let narrow = std::mem::take(&mut entry.narrow);
        let index = usize::from(way == Way::Down);
        let size = *entry.windows.of(way).0;
        let (before, since) = std::mem::replace(&mut entry.looked[index], (moved.bytes, now));
        let (passed, took) = (moved.bytes.saturating_sub(before), now - since);
        // Bytes are counted in pieces, which may be many times a narrow window: so long half of it took.
        let halves = passed / (size / 2).max(1);
        let took = took / u32::try_from(halves.max(1)).unwrap_or(u32::MAX);
        let is_swift = took <= SWIFT.max(2 * moved.round_trip);
        let is_slow = took > SLOW && !is_swift;
        let was_slow = entry.slow[index];
        entry.slow[index] = is_slow || (was_slow && !is_swift);
        self.change(id, now, |windows| {
            let owed = windows.of(way).1;
            *owed = owed.saturating_sub(passed);
        });
        let is_filled = way == Way::Up || moved.congestion_window > size / 2;
        let least = if way == Way::Up {
            INITIAL_WINDOWS.0
        } else {
            INITIAL_WINDOWS.1
        };
        if narrow {
            self.change(id, now, |windows| {
                windows.narrow(Way::Up, INITIAL_WINDOWS.0.max(windows.up / 2));
                windows.narrow(Way::Down, INITIAL_WINDOWS.1.max(windows.down / 2));
            });
        } else if is_slow && was_slow && size > least {
            self.change(id, now, |windows| windows.narrow(way, least.max(size / 2)));
        } else if is_swift && is_filled && size < most {
            self.change(id, now, |windows| windows.widen(way, most.min(size * 2)));
        }
    }

    /// A request is admitted, which counts so much: as a connection that begins it has what is kept for those.
    fn admit(&mut self, id: u64, bytes: u64, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else {
            return false;
        };
        let (client, before) = (entry.client, entry.windows.cost());
        let has = self.of(client);
        let free = self.most.saturating_sub(self.used + bytes);
        let is_for_others = has > 2 * Promised::NEW.cost() && free < self.most / SPARE / 2;
        let fair = has + bytes <= MANY * free && !is_for_others;
        if !fair || free < self.most / SPARE {
            self.make_room(client, bytes, now);
        }
        if fair && let Some(entry) = self.entries.get_mut(&id) {
            entry.windows.stuck += bytes;
            self.count(client, before, before + bytes);
        }
        fair
    }

    /// A connection holds so much more until it ends, if there is room for that.
    fn keep(&mut self, id: u64, bytes: u64, now: Instant) -> bool {
        self.change(id, now, |windows| windows.base += bytes)
    }

    /// So much of that it holds no more.
    fn give_back(&mut self, id: u64, bytes: u64, now: Instant) {
        self.change(id, now, |windows| windows.base -= bytes);
    }

    /// Whether it is to have less, for others.
    fn is_to_narrow(&mut self, id: u64) -> bool {
        let entry = self.entries.get_mut(&id);
        entry.is_some_and(|entry| std::mem::take(&mut entry.narrow))
    }

    /// It has ended; nobody reads or writes any more.
    fn end(&mut self, id: u64, now: Instant) {
        self.change(id, now, |windows| {
            (windows.up, windows.down, windows.owed) = (0, 0, (0, 0));
            windows.may_draw = 0;
        });
    }

    /// Whether much less is used than was.
    fn has_fallen(&mut self) -> bool {
        let fallen = self.highest - self.used >= FALLEN && self.used <= self.highest / 2;
        if fallen {
            self.highest = self.used;
        }
        fallen
    }

    /// What waits for the client may be no more than at first, from now on; what was more may still wait.
    fn rest(&mut self, id: u64, now: Instant) {
        self.change(id, now, |windows| {
            windows.narrow(Way::Down, INITIAL_WINDOWS.1)
        });
    }

    /// The narrower window would take more: no more than it allows is waiting.
    fn taken(&mut self, id: u64, now: Instant) {
        self.change(id, now, |windows| windows.owed.1 = 0);
    }

    fn stall(&mut self, id: u64, (window, stuck): (u64, u64), now: Instant) -> bool {
        self.change(id, now, |windows| {
            windows.stalled += window;
            windows.stuck += stuck;
        })
    }

    fn resume(&mut self, id: u64, (window, stuck): (u64, u64), now: Instant) {
        self.change(id, now, |windows| {
            windows.stalled -= window;
            windows.owed.0 += window;
            windows.stuck -= stuck;
        });
    }

    /// Takes from the client that has most, if that is the one that asks, or has more than that would have, twice.
    fn make_room(&mut self, client: ClientKey, more: u64, now: Instant) {
        let Some(&(most, largest)) = self.weights.last() else {
            return;
        };
        let has = self.of(client);
        let early = self.made_room.is_some_and(|last| now - last < EACH);
        let own = largest == client;
        if early || (!own && most <= 2 * (has + more)) {
            return;
        }
        self.made_room = Some(now);
        let mut connections = Vec::new();
        for id in self
            .clients
            .get(&largest)
            .into_iter()
            .flat_map(|of| &of.connections)
        {
            if let Some(entry) = self.entries.get_mut(id).filter(|entry| !entry.lost) {
                let rests = entry.rests(now) >= REST || entry.is_stubborn(now);
                connections.push((rests, entry.windows.cost(), *id));
            }
        }
        connections.sort_unstable_by(|one, other| other.cmp(one));
        let goal = if own {
            more
        } else {
            (self.most / FREED).max(more).min(most - has - more)
        };
        let mut freed = 0;
        for (rests, cost, id) in connections {
            if freed >= goal {
                return;
            }
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            if rests {
                entry.lost = true;
                entry.tally.lost.notify_one();
            } else {
                entry.press(now);
            }
            freed += cost;
        }
    }
}

impl Entry {
    /// For how long nothing has moved, as far as was looked.
    fn rests(&mut self, now: Instant) -> Duration {
        let moved = self.tally.read.load(Relaxed) + self.tally.written.load(Relaxed);
        if self.rests.0 != moved {
            self.rests = (moved, now);
        }
        now - self.rests.1
    }

    /// It is to have less, for others.
    fn press(&mut self, now: Instant) {
        self.narrow = true;
        let before = self.is_pressed(now);
        let had = self.windows.cost();
        self.pressed = Some(Pressed {
            since: before.map_or(now, |before| before.since),
            had: before.map_or(had, |before| before.had),
            last: now,
        });
    }

    /// Whether it still has what others need: not where it has got narrower since, or they have needed nothing for a while.
    fn is_pressed(&self, now: Instant) -> Option<Pressed> {
        let has = self.windows.cost();
        self.pressed
            .filter(|pressed| has > pressed.had / 8 * 7 && now - pressed.last < STUBBORN)
    }

    /// Whether it has much, and did not get narrower when it should have.
    fn is_stubborn(&self, now: Instant) -> bool {
        let waited = |pressed: Pressed| now - pressed.since >= STUBBORN;
        self.windows.cost() > 2 * Promised::BUSY.cost() && self.is_pressed(now).is_some_and(waited)
    }
}

impl Memory {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        let books = Mutex::new(Books::new(limits));
        Arc::new(Self { books })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }

    /// Whether much less is used than was, since this was last so: then pages lie idle.
    pub(super) fn has_fallen(&self) -> bool {
        self.books().has_fallen()
    }

    /// From now on so much may be promised; what is promised stays.
    pub(super) fn set_most(&self, bytes: u64) {
        self.books().most = bytes;
    }

    /// How many bytes are promised, and how many may be.
    pub(super) fn promised(&self) -> (u64, u64) {
        let books = self.books();
        (books.used, books.most)
    }

    /// Shows on this level what is promised.
    pub(super) fn show(&self, level: &Level) {
        self.books().level = level.clone();
    }

    pub(super) fn enter(
        self: &Arc<Self>,
        client: ClientKey,
        stream_window: u32,
    ) -> Result<Account, Reached> {
        let tally = Arc::new(Tally::default());
        let id = self.books().enter(client, &tally, Instant::now())?;
        let memory = Arc::clone(self);
        Ok(Account::new(memory, id, tally, stream_window.into()))
    }
}

/// How many connections of a budget may have no request, where twice as many may be leaving.
pub(super) fn waiting(budget: u64) -> usize {
    let each = Promised::NEW.cost() + 2 * Promised::LEAVING.cost();
    usize::try_from(budget / WAITING / each).unwrap_or(usize::MAX)
}

/// What this process may use of the machine's memory, in bytes (proc(5), cgroups(7)).
pub(super) fn of_machine() -> u64 {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let group = read("/sys/fs/cgroup/memory.max").trim().parse();
    let machine = total(&read("/proc/meminfo")).unwrap_or(USUAL);
    group.unwrap_or(u64::MAX).min(machine).max(LEAST)
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MALLORY: ClientKey = ClientKey(1);
    const ALICE: ClientKey = ClientKey(2);
    const MIB: u64 = 1 << 20;
    const FAST: Duration = Duration::from_millis(100);

    fn books(memory: u64) -> Books {
        Books::new(&Limits {
            memory,
            ..Limits::default()
        })
    }

    struct Connection {
        id: u64,
        tally: Arc<Tally>,
    }

    fn enter(books: &mut Books, client: ClientKey, now: Instant) -> Connection {
        let tally = Arc::default();
        let id = books.enter(client, &tally, now).expect("room");
        books.begin(id, now);
        Connection { id, tally }
    }

    impl Connection {
        fn windows(&self, books: &Books) -> Promised {
            books.entries[&self.id].windows
        }

        /// Moves as much as it can in this time, again and again.
        fn move_all(
            &self,
            books: &mut Books,
            way: Way,
            took: Duration,
            times: u32,
            now: &mut Instant,
        ) {
            let tally = match way {
                Way::Up => &self.tally.read,
                Way::Down => &self.tally.written,
            };
            for _ in 0..times {
                *now += took;
                let mut windows = self.windows(books);
                let bytes = *windows.of(way).0 / 2;
                let moved = Moved {
                    bytes: tally.fetch_add(bytes, Relaxed) + bytes,
                    round_trip: FAST,
                    congestion_window: 1 << 30,
                };
                books.moved(self.id, way, moved, *now);
            }
        }
    }

    #[test]
    fn a_connection_that_moves_all_it_may_fills_a_long_fat_pipe() {
        let (mut books, mut now) = (books(1 << 30), Instant::now());
        let alice = enter(&mut books, ALICE, now);
        assert_eq!(alice.windows(&books).up, BUSY);
        alice.move_all(&mut books, Way::Up, FAST, 9, &mut now);
        alice.move_all(&mut books, Way::Down, FAST, 10, &mut now);
        let windows = alice.windows(&books);
        // 1 Gbit/s and 200 ms, twice.
        assert!(windows.up >= 50 * MIB, "{windows:?}");
        assert!(windows.down >= 50 * MIB, "{windows:?}");
    }

    #[test]
    fn one_that_moves_slowly_gives_back_what_it_was_given_as_it_sends() {
        let (mut books, mut now) = (books(1 << 30), Instant::now());
        let alice = enter(&mut books, ALICE, now);
        alice.move_all(&mut books, Way::Up, FAST, 8, &mut now);
        let wide = books.used;
        now += REST;
        alice.move_all(&mut books, Way::Up, 2 * SLOW, 1, &mut now);
        assert_eq!(books.used, wide, "it may have begun late");
        alice.move_all(&mut books, Way::Up, 2 * SLOW, 1, &mut now);
        assert_eq!(
            books.used,
            wide - alice.windows(&books).up,
            "what may still come counts"
        );
        alice.move_all(&mut books, Way::Up, 2 * SLOW, 2000, &mut now);
        let windows = alice.windows(&books);
        assert_eq!((windows.up, windows.owed.0), (INITIAL_WINDOWS.0, 0));
    }

    #[test]
    fn a_pause_makes_no_window_narrower_and_two_without_a_swift_half_between_do() {
        let (mut books, mut now) = (books(1 << 30), Instant::now());
        let alice = enter(&mut books, ALICE, now);
        let pause = 60 * SLOW;
        for _ in 0..3 {
            alice.move_all(&mut books, Way::Up, FAST, 2, &mut now);
            let wide = alice.windows(&books).up;
            alice.move_all(&mut books, Way::Up, pause, 1, &mut now);
            assert_eq!(alice.windows(&books).up, wide);
        }
        let wide = alice.windows(&books).up;
        alice.move_all(&mut books, Way::Up, 5 * FAST, 3, &mut now);
        alice.move_all(&mut books, Way::Up, pause, 1, &mut now);
        assert_eq!(alice.windows(&books).up, wide / 2);
    }

    #[test]
    fn what_a_client_may_send_beyond_its_window_counts_also_when_that_is_wide_again() {
        let (mut books, mut now) = (books(1 << 30), Instant::now());
        let alice = enter(&mut books, ALICE, now);
        alice.move_all(&mut books, Way::Up, FAST, 8, &mut now);
        let wide = alice.windows(&books).up;
        alice.move_all(&mut books, Way::Up, 2 * SLOW, 2, &mut now);
        alice.move_all(&mut books, Way::Up, FAST, 1, &mut now);
        let windows = alice.windows(&books);
        assert_eq!((windows.up, windows.owed.0), (wide, wide / 4));
    }

    #[test]
    fn of_a_capsule_that_has_come_in_part_a_piece_counts_with_its_request_and_the_rest_where_there_is_room()
     {
        let memory = Memory::new(&Limits {
            memory: 64 * MIB,
            ..Limits::default()
        });
        let account = memory.enter(ALICE, 1 << 20).expect("room");
        let account = Arc::new(account);
        let before = memory.promised().0;
        let part = HeldPart::new(Arc::clone(&account));
        assert!(part.is(PIECE));
        assert_eq!(memory.promised().0, before);
        assert!(part.is(65_536));
        assert_eq!(memory.promised().0, before + 65_536 - PIECE as u64);
        assert!(part.is(0));
        assert_eq!(memory.promised().0, before);
        // Nothing is left.
        memory.set_most(before);
        assert!(!part.is(65_536));
        assert!(part.is(PIECE));
        assert_eq!(memory.promised().0, before);
    }

    #[test]
    fn what_waits_for_a_client_counts_until_the_narrower_window_takes_more() {
        let (mut books, mut now) = (books(1 << 30), Instant::now());
        let alice = enter(&mut books, ALICE, now);
        alice.move_all(&mut books, Way::Down, FAST, 8, &mut now);
        let (wide, down) = (books.used, alice.windows(&books).down);
        let drawn = down / 4;
        alice.tally.drawn.store(drawn, Relaxed);
        books.rest(alice.id, now);
        assert_eq!(books.used, wide - (down / 2 - drawn));
        books.taken(alice.id, now);
        let left = wide - (down - INITIAL_WINDOWS.1) - (down / 2 - drawn);
        assert_eq!(books.used, left, "what tunnels have in hand is still there");
        alice.tally.drawn.store(0, Relaxed);
        books.taken(alice.id, now);
        assert_eq!(books.used, left - drawn + INITIAL_WINDOWS.1 / 2);
    }

    #[test]
    fn a_window_that_was_narrowed_for_rest_grows_again_where_bytes_are_counted_in_large_pieces() {
        let (mut books, mut now) = (books(1 << 30), Instant::now());
        let alice = enter(&mut books, ALICE, now);
        books.rest(alice.id, now);
        books.taken(alice.id, now);
        let (piece, written) = (BUSY, &alice.tally.written);
        for _ in 0..20 {
            // A window each round trip.
            let windows = u32::try_from(piece / alice.windows(&books).down).unwrap_or(1);
            now += FAST * windows.max(1);
            let moved = Moved {
                bytes: written.fetch_add(piece, Relaxed) + piece,
                round_trip: FAST,
                congestion_window: 1 << 30,
            };
            books.moved(alice.id, Way::Down, moved, now);
        }
        let windows = alice.windows(&books);
        assert!(windows.down > BUSY, "{windows:?}");
    }

    #[test]
    fn whoever_takes_all_it_gets_leaves_as_much_for_others() {
        let (mut books, mut now) = (books(64 * MIB), Instant::now());
        for _ in 0..400 {
            let Ok(id) = books.enter(MALLORY, &Arc::default(), now) else {
                break;
            };
            books.begin(id, now);
            let tally = Arc::clone(&books.entries[&id].tally);
            let mallory = Connection { id, tally };
            mallory.move_all(&mut books, Way::Up, FAST, 8, &mut now);
        }
        let alice = enter(&mut books, ALICE, now);
        alice.move_all(&mut books, Way::Up, FAST, 8, &mut now);
        assert!(
            alice.windows(&books).up >= 2 * MIB,
            "{:?}",
            alice.windows(&books)
        );
        assert!(books.used <= 64 * MIB);
    }

    #[test]
    fn a_first_connection_finds_room_while_others_begin_as_many_as_they_may() {
        let (mut books, mut now) = (books(16 * MIB), Instant::now());
        let few: Vec<_> = (3..11).map(ClientKey).collect();
        for client in few.iter().chain(&few).chain([&MALLORY; 9]) {
            let tally = Arc::default();
            if let Ok(id) = books.enter(*client, &tally, now) {
                let one = Connection { id, tally };
                one.move_all(&mut books, Way::Up, FAST, 9, &mut now);
            }
        }
        let mut enters = |client| books.enter(client, &Arc::default(), now).is_ok();
        for _ in 0..9 {
            for client in &few {
                enters(*client);
            }
        }
        assert!(!enters(few[0]) && enters(ALICE));
    }

    #[test]
    fn what_rests_of_the_client_with_most_goes_for_one_who_has_little() {
        let (mut books, mut now) = (books(16 * MIB), Instant::now());
        let others = (3..300).map(ClientKey);
        let mut held = Vec::new();
        for client in std::iter::repeat_n(MALLORY, 20).chain(others) {
            held.extend(books.enter(client, &Arc::default(), now));
        }
        assert!(
            books.enter(ALICE, &Arc::default(), now).is_err(),
            "all is new"
        );
        now += REST;
        assert!(
            books.enter(ALICE, &Arc::default(), now).is_err(),
            "who has to go is told"
        );
        let lost = held.iter().filter(|id| books.entries[id].lost);
        let lost: Vec<u64> = lost.copied().collect();
        assert!((1..10).contains(&lost.len()), "{}", lost.len());
        lost.iter().for_each(|id| books.leave(*id));
        assert!(books.enter(ALICE, &Arc::default(), now).is_ok());
    }

    #[test]
    fn requests_take_nothing_that_is_kept_for_first_connections_but_a_few_of_each_client() {
        let (mut books, now) = (books(64 * MIB), Instant::now());
        for client in 3..8 {
            if let Ok(id) = books.enter(ClientKey(client), &Arc::default(), now) {
                books.begin(id, now);
                while books.admit(id, TUNNEL as u64, now) {}
            }
        }
        assert!(books.used > 56 * MIB, "{}", books.used);
        let alice = books.enter(ALICE, &Arc::default(), now).expect("room");
        assert!(books.admit(alice, TUNNEL as u64, now));
    }

    #[test]
    fn of_connections_that_move_the_widest_is_narrowed_and_none_closed() {
        let (mut books, mut now) = (books(16 * MIB), Instant::now());
        let mallory = enter(&mut books, MALLORY, now);
        mallory.move_all(&mut books, Way::Up, FAST, 10, &mut now);
        let wide = mallory.windows(&books).up;
        let others: Vec<_> = (3..30)
            .map(|client| enter(&mut books, ClientKey(client), now))
            .collect();
        for other in &others {
            other.move_all(&mut books, Way::Up, FAST, 3, &mut now);
            mallory.move_all(&mut books, Way::Up, FAST, 1, &mut now);
        }
        assert!(mallory.windows(&books).up < wide);
        assert!(books.entries.values().all(|entry| !entry.lost));
    }

    #[test]
    fn one_that_drips_and_does_not_get_narrow_is_closed_in_the_end() {
        let (mut books, mut now) = (books(16 * MIB), Instant::now());
        let mallory = enter(&mut books, MALLORY, now);
        mallory.move_all(&mut books, Way::Up, FAST, 10, &mut now);
        let others: Vec<_> = (3..30)
            .map(|client| enter(&mut books, ClientKey(client), now))
            .collect();
        let is_lost = |books: &Books| books.entries[&mallory.id].lost;
        let began = now;
        while !is_lost(&books) {
            for other in &others {
                mallory.tally.read.fetch_add(1, Relaxed);
                other.move_all(&mut books, Way::Up, FAST / 50, 4, &mut now);
                now += FAST;
            }
            assert!(now - began < STUBBORN * 2);
        }
        assert!(now - began >= STUBBORN);
    }

    #[test]
    fn a_stream_that_stalls_takes_nothing_from_the_others_of_its_connection() {
        let (mut books, now) = (books(64 * MIB), Instant::now());
        let alice = enter(&mut books, ALICE, now);
        let before = alice.windows(&books);
        assert!(books.stall(alice.id, (MIB, 1000), now));
        assert_eq!(alice.windows(&books).receive(), before.receive() + MIB);
        books.resume(alice.id, (MIB, 1000), now);
        let after = alice.windows(&books);
        assert_eq!((after.receive(), after.owed.0), (before.receive(), MIB));
        let stalls = (0..100).filter(|_| books.stall(alice.id, (MIB, 0), now));
        assert!(stalls.count() < 31, "no more than half of all");
    }

    #[test]
    fn a_connection_that_leaves_counts_what_it_still_holds() {
        let (mut books, now) = (books(64 * MIB), Instant::now());
        let alice = enter(&mut books, ALICE, now);
        assert!(books.keep(alice.id, MIB, now));
        assert!(!books.keep(alice.id, 64 * MIB, now), "there is no room");
        assert!(books.stall(alice.id, (MIB, 1000), now));
        books.end(alice.id, now);
        assert_eq!(books.used, IDLE + 2 * MIB + 1000);
        // A stream that is dropped after its connection.
        books.resume(alice.id, (MIB, 1000), now);
        books.leave(alice.id);
        assert_eq!(books.used, 0);
    }

    #[test]
    fn it_is_noticed_once_that_much_less_is_used_than_was() {
        let (mut books, now) = (books(256 * MIB), Instant::now());
        let many: Vec<_> = (3..400)
            .filter_map(|client| books.enter(ClientKey(client), &Arc::default(), now).ok())
            .collect();
        assert!(books.used > FALLEN && !books.has_fallen());
        many.iter().for_each(|id| books.leave(*id));
        assert!(books.has_fallen() && !books.has_fallen());
    }

    #[test]
    fn the_systems_memory_is_read() {
        let text = "MemTotal:        8052364 kB\nMemFree:  1 kB\n";
        assert_eq!(total(text), Some(8_052_364 << 10));
        assert_eq!(total("MemTotal: much\n"), None);
    }

    proptest! {
        #[test]
        fn no_more_is_promised_than_there_is_whatever_happens(
            steps in prop::collection::vec((0..11u8, 0..12usize, 0..3000u64), 1..400),
        ) {
            let (mut books, mut now) = (books(16 * MIB), Instant::now());
            let mut open = Vec::<Connection>::new();
            for (what, which, passed) in steps {
                now += Duration::from_millis(passed);
                let one = open.get(which);
                let id = one.map_or(u64::MAX, |one| one.id);
                match what {
                    0 => {
                        let tally = Arc::default();
                        let client = ClientKey(which as u64 % 4);
                        if let Ok(id) = books.enter(client, &tally, now) {
                            books.begin(id, now);
                            open.push(Connection { id, tally });
                        }
                    }
                    1 | 2 => if let Some(one) = one {
                        let way = if what == 1 { Way::Up } else { Way::Down };
                        one.move_all(&mut books, way, FAST, 3, &mut now);
                    },
                    3 => books.rest(id, now),
                    4 => books.taken(id, now),
                    5 => {
                        let stalls = books.stall(id, (MIB, passed), now);
                        if stalls && passed % 2 == 0 {
                            books.resume(id, (MIB, passed), now);
                        }
                    }
                    6 => drop(books.keep(id, passed * 100, now)),
                    9 if books.admit(id, passed * 10, now) && passed % 2 == 0 => {
                        books.resume(id, (0, passed * 10), now);
                    }
                    10 => if let Some(one) = one {
                        one.tally.drawn.store(passed * 1000, Relaxed);
                    },
                    7 if passed > 2000 => books.end(id, now),
                    _ if which < open.len() && passed > 2000 => {
                        books.leave(open.swap_remove(which).id);
                    }
                    _ => {}
                }
                let sum: u64 = books.entries.values().map(|entry| entry.windows.cost()).sum();
                prop_assert_eq!(books.used, sum);
                prop_assert_eq!(books.used, books.clients.values().map(|of| of.bytes).sum::<u64>());
                prop_assert_eq!(books.weights.len(), books.clients.len());
                prop_assert!(books.used <= books.most);
            }
            open.into_iter().for_each(|one| books.leave(one.id));
            prop_assert!(books.used == 0 && books.clients.is_empty() && books.weights.is_empty());
        }
    }
}
