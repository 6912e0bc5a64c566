//! What waits in all circuits of a process, and which of them end when it is too much: those that move least for what waits with whoever has them. So
//! what is oldest goes, and much that moves a little does not outlast little that stands still for a moment. Before all others go those of whoever has a
//! sixteenth of it and is no relay that asks on behalf of others. Every channel's circuits are entered here, in the [`Counts`](super::Counts) that the
//! channels of a process share; a task looks at them once a second while there are so many that they could hold more than
//! [`Config::queued`](super::Config::queued).
//! C tor does the same with `MaxMemInQueues`; proposal 324 §4.1.3: "MUST close the streams with the oldest chunks".
//!
//! What whoever holds a circuit keeps for it counts as well ([`CircuitBacklog`]): at an exit, bytes that wait for targets.
//! Cells in our queues are counted, and over QUIC what has come of a circuit's stream and was not read. What QUIC keeps for the peer cannot be asked
//! for: a stream that takes nothing more is counted with its whole window, or all that was ever written to it, or all that may wait for acknowledgement on its
//! connection, whichever is least, and one that takes more not at all. On the way of a cell nothing is shared: a circuit keeps a gauge of its own.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use hoplite_quic::{Received, SendWindow};
use hoplite_wire::cell;
use parking_lot::Mutex;

use super::{CircuitBacklog, Config, Count, Origin, queue::Watch};

/// How often they are looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A cell's bytes.
pub(super) const CELL: u64 = cell::LEN as u64;
/// When it is too much, this many percent of the bound are left.
const LOW_WATER_PERCENT: u64 = 90;
/// Whoever has more than this part of the bound makes room first.
const SHARE_DIVISOR: u64 = 16;
/// Of circuits that moved less since they were last looked at, it counts most how much waits.
const STILL: u64 = 64 << 10;
/// DESTROY: no room.
const RESOURCE_LIMIT: u8 = 5;

/// The memory budget of a process's queues: all circuits whose queues count.
#[derive(Debug, Default)]
pub(super) struct QueueBudget(Mutex<Entered>);

/// A circuit in which something waits.
struct Measured {
    /// Bytes that have moved since it was last looked at.
    since: u64,
    /// Bytes that wait.
    bytes: u64,
    gauge: Arc<Gauge>,
}

#[derive(Debug, Default)]
struct Entered {
    circuits: Vec<(Weak<Gauge>, u64)>,
    watched: bool,
}

/// What one circuit holds.
#[derive(Debug)]
pub(super) struct Gauge {
    /// QUIC: how much of what the peer sends may wait, each way.
    window: u64,
    /// QUIC: what has come.
    received: OnceLock<Received>,
    /// QUIC: bytes that were taken of it and are no cell that was read.
    pending: AtomicUsize,
    /// Bytes of whole cells read from QUIC, and bytes written to it: whether anything moves.
    moved: [AtomicU64; 2],
    /// QUIC: bytes that the peer is not sent yet.
    waits: AtomicUsize,
    /// QUIC: what may wait for acknowledgement, in all circuits of the channel.
    send_window: SendWindow,
    /// TLS: our queues, to the peer and from it; the first ends the circuit.
    queues: Option<[Watch; 2]>,
    kept: Arc<CircuitBacklog>,
    /// On whose behalf it was begun here, if it was.
    origin: OnceLock<Origin>,
    /// Who began it at the peer's end, if that is no relay that is known.
    guest: OnceLock<u64>,
    /// It was ended; whoever holds it, and is woken, drops it when he next asks.
    over: AtomicBool,
    holder: Mutex<Option<Waker>>,
}

impl Gauge {
    /// Over QUIC.
    pub(super) fn quic(window: u32, send_window: SendWindow) -> Self {
        Self {
            window: window.into(),
            received: OnceLock::new(),
            pending: AtomicUsize::new(0),
            moved: [AtomicU64::new(0), AtomicU64::new(0)],
            waits: AtomicUsize::new(0),
            send_window,
            queues: None,
            kept: Arc::default(),
            origin: OnceLock::new(),
            guest: OnceLock::new(),
            over: AtomicBool::new(false),
            holder: Mutex::new(None),
        }
    }

    /// Over TLS.
    pub(super) fn tls(outbox: Watch, inbox: Watch) -> Self {
        Self {
            queues: Some([outbox, inbox]),
            ..Self::quic(0, SendWindow::unbounded())
        }
    }

    /// What comes of its stream.
    pub(super) fn receives(&self, received: Received) {
        self.received.get_or_init(|| received);
    }

    /// So many bytes of whole cells were read from it by now, and so many more were taken that are still to be.
    pub(super) fn read(&self, bytes: u64, pending: usize) {
        self.moved[0].store(bytes, Relaxed);
        self.pending.store(pending, Relaxed);
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.moved[1].store(bytes, Relaxed);
    }

    pub(super) fn waits(&self, bytes: usize) {
        self.waits.store(bytes, Relaxed);
    }

    /// Where whoever holds the circuit counts what it keeps.
    pub(super) fn backlog(&self) -> &Arc<CircuitBacklog> {
        &self.kept
    }

    /// Bytes that have moved in it so far.
    pub(super) fn moved(&self) -> u64 {
        self.measure().1
    }

    /// Bytes of cells that were read from QUIC.
    pub(super) fn has_read(&self) -> u64 {
        self.moved[0].load(Relaxed)
    }

    /// It was begun here for somebody.
    pub(super) fn is_for(&self, origin: &Origin) {
        self.origin.get_or_init(|| origin.clone());
    }

    /// Who that is; of those that the peer began it is not known.
    pub(super) fn asked_by(&self) -> Option<u64> {
        self.origin.get().map(|origin| origin.who)
    }

    /// The peer began it, who is no relay that is known.
    pub(super) fn is_of_guest(&self, who: u64) {
        self.guest.get_or_init(|| who);
    }

    /// Whose it is, either way; nobody's of those who ask on behalf of others.
    pub(super) fn owner(&self) -> Option<u64> {
        let origin = self.origin.get().filter(|origin| !origin.is_relay);
        let origin = origin.map(|origin| origin.who);
        origin.or_else(|| self.guest.get().copied())
    }

    /// Ends the circuit and the end that faces whoever asked for it, whose holder may ask for nothing but that.
    pub(super) fn end_whole(&self) {
        self.end();
        if let Some(origin) = self.origin.get() {
            origin.circuit.end();
        }
    }

    pub(super) fn end(&self) {
        self.over.store(true, Relaxed);
        if let Some([outbox, _]) = &self.queues {
            outbox.end(RESOURCE_LIMIT);
        }
        let holder = self.holder.lock().take();
        holder.into_iter().for_each(Waker::wake);
    }

    /// Whether it was ended.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Waits until it is ended.
    pub(super) fn poll_over(&self, cx: &Context<'_>) -> Poll<()> {
        let mut holder = self.holder.lock();
        // Under the lock: who ends it takes the waker after it has said so.
        if self.is_over() {
            return Poll::Ready(());
        }
        match &mut *holder {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *holder = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Bytes that wait, and how many have moved.
    fn measure(&self) -> (u64, u64) {
        let (kept, passed) = self.kept.measure();
        let moved: u64 = self.moved.iter().map(|part| part.load(Relaxed)).sum();
        let (mut bytes, mut moved) = (kept, moved.saturating_add(passed));
        for queue in self.queues.iter().flatten() {
            let (waiting, taken) = queue.measure();
            bytes = bytes.saturating_add(CELL.saturating_mul(waiting as u64));
            moved = moved.saturating_add(CELL.saturating_mul(taken));
        }
        let bytes = bytes.saturating_add(self.unread());
        (bytes.saturating_add(self.unsent()), moved)
    }

    /// QUIC: bytes that have come of its stream and were not taken, where that is known.
    pub(super) fn waiting(&self) -> Option<u64> {
        self.received.get()?.waiting(self.window)
    }

    /// QUIC: bytes that have come and were not read.
    fn unread(&self) -> u64 {
        let received = self.received.get();
        let waiting = received.map(|_| self.waiting().unwrap_or(self.window));
        let pending = self.pending.load(Relaxed) as u64;
        waiting.unwrap_or_default().saturating_add(pending)
    }

    /// QUIC: bytes that the peer is not sent yet, and those that it has not acknowledged.
    fn unsent(&self) -> u64 {
        match self.waits.load(Relaxed) as u64 {
            0 => 0,
            waits => {
                let written = self.moved[1].load(Relaxed);
                let sent = self.window.min(written).min(self.send_window.bytes());
                waits.saturating_add(sent)
            }
        }
    }
}

/// What a circuit may hold at most.
fn most_each(config: &Config) -> u64 {
    let cells = config.inbox.saturating_add(config.outbox);
    let cells = u64::try_from(cells.saturating_mul(cell::LEN)).unwrap_or(u64::MAX);
    let queues = cells.max(u64::from(config.window).saturating_mul(2));
    queues.saturating_add(config.kept)
}

impl super::Counts {
    /// Enters a circuit, for as long as its gauge is held.
    pub(super) fn enter(self: &Arc<Self>, gauge: &Arc<Gauge>, config: &Config) {
        let mut entered = self.queue_budget.0.lock();
        let circuits = &mut entered.circuits;
        if circuits.len() == circuits.capacity() {
            circuits.retain(|(gauge, _)| gauge.strong_count() > 0);
        }
        circuits.push((Arc::downgrade(gauge), 0));
        let worst = most_each(config).saturating_mul(circuits.len() as u64);
        if worst > config.queued && !entered.watched {
            entered.watched = true;
            tokio::spawn(Arc::clone(self).watch(config.clone()));
        }
    }

    /// Bytes that wait in all circuits now, as [`Config::queued`](super::Config::queued) counts them.
    pub fn queued(&self) -> u64 {
        let entered = self.queue_budget.0.lock();
        let here = entered
            .circuits
            .iter()
            .filter_map(|(gauge, _)| gauge.upgrade());
        let here = here.filter(|gauge| !gauge.over.load(Relaxed));
        here.map(|gauge| gauge.measure().0).sum()
    }

    async fn watch(self: Arc<Self>, config: Config) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let mut entered = self.queue_budget.0.lock();
            entered.relieve(config.queued, &self.ended_for_memory);
            let worst = most_each(&config).saturating_mul(entered.circuits.len() as u64);
            if worst <= config.queued {
                entered.watched = false;
                return;
            }
        }
    }
}

impl Entered {
    /// Ends circuits, if too much waits in all of them.
    fn relieve(&mut self, most: u64, ended: &Count) {
        let mut all = self.measured();
        if all.iter().map(|one| one.bytes).sum::<u64>() <= most {
            return;
        }
        let mut held = HashMap::<u64, u64>::new();
        for one in &all {
            if let Some(who) = one.gauge.owner() {
                *held.entry(who).or_default() += one.bytes;
            }
        }
        // By what of it moves, and by what all of its owner's are, where he is known: many circuits of little each gain him nothing, and one that moves keeps
        // no other. Of those that are alike the one that moves least, and then that holds most.
        all.sort_by_cached_key(|one| {
            let owner = one.gauge.owner();
            let of_owner = owner.and_then(|who| held.get(&who).copied());
            let part =
                |bytes: u64, of: u64| (u128::from(bytes) << u64::BITS) / u128::from(of.max(1));
            let moves = part(one.since, one.bytes);
            let still = part(STILL, of_owner.unwrap_or(one.bytes));
            (moves.saturating_add(still), one.since, Reverse(one.bytes))
        });
        let enough = most / 100 * LOW_WATER_PERCENT;
        end_until(enough, &all, ended, |one| {
            let held = one.gauge.owner().and_then(|who| held.get_mut(&who));
            let Some(held) = held.filter(|held| **held > most / SHARE_DIVISOR) else {
                return false;
            };
            *held = held.saturating_sub(one.bytes);
            true
        });
        end_until(enough, &all, ended, |_| true);
    }

    /// The circuits in which something waits. Those that are gone are forgotten.
    fn measured(&mut self) -> Vec<Measured> {
        let mut all = Vec::new();
        self.circuits.retain_mut(|(gauge, before)| {
            let alive = gauge.upgrade();
            let Some(gauge) = alive.filter(|gauge| !gauge.is_over()) else {
                return false;
            };
            let (bytes, moved) = gauge.measure();
            let since = moved.saturating_sub(std::mem::replace(before, moved));
            if bytes > 0 {
                all.push(Measured {
                    since,
                    bytes,
                    gauge,
                });
            }
            true
        });
        all
    }
}

/// Ends those of them that may be, one after the other, until no more waits in the others than is `enough`.
fn end_until(
    enough: u64,
    all: &[Measured],
    ended: &Count,
    mut may_end: impl FnMut(&Measured) -> bool,
) {
    let left: Vec<_> = all.iter().filter(|one| !one.gauge.is_over()).collect();
    let mut waits: u64 = left.iter().map(|one| one.bytes).sum();
    for one in left {
        if waits <= enough {
            return;
        }
        let went_with_its_other_end = one.gauge.is_over();
        if !went_with_its_other_end {
            if !may_end(one) {
                continue;
            }
            one.gauge.end_whole();
            ended.up();
        }
        waits = waits.saturating_sub(one.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Handle;

    const WINDOW: u32 = 1 << 20;

    /// Its peer takes nothing more of a window.
    fn stalled() -> Arc<Gauge> {
        let gauge = Gauge::quic(WINDOW, SendWindow::unbounded());
        gauge.waits(1);
        gauge.wrote(u64::from(WINDOW) - 1);
        Arc::new(gauge)
    }

    fn entered(gauges: &[Arc<Gauge>]) -> Entered {
        Entered {
            circuits: gauges
                .iter()
                .map(|gauge| (Arc::downgrade(gauge), 0))
                .collect(),
            watched: true,
        }
    }

    fn ended(gauges: &[Arc<Gauge>]) -> usize {
        gauges.iter().filter(|gauge| gauge.is_over()).count()
    }

    #[test]
    fn a_stream_that_takes_nothing_more_counts_with_no_more_than_waits_on_its_connection() {
        let connection = SendWindow::unbounded();
        let gauge = Gauge::quic(WINDOW, connection.clone());
        gauge.wrote(u64::from(WINDOW) * 2);
        assert_eq!(gauge.measure().0, 0);
        gauge.waits(1000);
        assert_eq!(gauge.measure().0, 1000 + u64::from(WINDOW));
        connection.set(32 << 10);
        assert_eq!(gauge.measure().0, 1000 + (32 << 10));
    }

    #[test]
    fn whoever_has_much_makes_room_before_those_whose_circuits_stand_still() {
        let gauges: Vec<_> = (0..100).map(|_| stalled()).collect();
        // Of eighty the owner is one, by either end; the others are of five and of a relay.
        for (n, gauge) in (0..).zip(&gauges) {
            let origin = |who, is_relay| Origin {
                who,
                is_relay,
                circuit: Handle::new(&stalled()),
            };
            match n {
                0..40 => gauge.is_of_guest(1),
                40..80 => gauge.is_for(&origin(1, false)),
                80..90 => gauge.is_of_guest(n / 2),
                _ => gauge.is_for(&origin(2, true)),
            }
        }
        gauges[..80].iter().for_each(|gauge| gauge.read(1, 0));
        let (most, counts) = (80 * u64::from(WINDOW), Count::default());
        entered(&gauges).relieve(most, &counts);
        let (his, others) = gauges.split_at(80);
        assert_eq!(
            (ended(his), ended(others)),
            (29, 0),
            "under 72 of 80 MiB are left"
        );
        assert_eq!(counts.get(), 29);
    }

    #[test]
    fn where_nobody_has_much_those_that_move_least_end() {
        let gauges: Vec<_> = (0..100).map(|_| stalled()).collect();
        for (n, gauge) in (0..).zip(&gauges) {
            gauge.is_of_guest(n / 4);
            gauge.read(if n < 50 { 1 } else { 0 }, 0);
        }
        let counts = Count::default();
        entered(&gauges).relieve(80 * u64::from(WINDOW), &counts);
        assert_eq!((ended(&gauges[..50]), ended(&gauges[50..])), (0, 29));
    }

    #[test]
    fn many_who_have_much_and_move_a_little_go_before_little_that_stands_still() {
        // Twenty of fifty mebibytes, none of whom has a sixteenth of all.
        let hogs: Vec<_> = (0..1000).map(|_| stalled()).collect();
        for (n, gauge) in (0..).zip(&hogs) {
            gauge.is_of_guest(n / 50);
            gauge.read(514, 0);
        }
        let small: Vec<_> = (0..100)
            .map(|who| {
                let gauge = Gauge::quic(WINDOW, SendWindow::unbounded());
                gauge.waits(10_000);
                if who % 2 == 0 {
                    gauge.is_of_guest(1000 + who);
                }
                Arc::new(gauge)
            })
            .collect();
        let most = 900 * u64::from(WINDOW);
        let all: Vec<_> = hogs.iter().chain(&small).cloned().collect();
        entered(&all).relieve(most, &Count::default());
        assert_eq!(ended(&small), 0);
        assert!((190..200).contains(&ended(&hogs)), "{}", ended(&hogs));
    }

    #[test]
    fn a_circuit_that_moves_keeps_none_of_its_owners_that_stand_still_before_anothers_pause() {
        let hogs: Vec<_> = (0..1000).map(|_| stalled()).collect();
        for (n, gauge) in (0..).zip(&hogs) {
            gauge.is_of_guest(n / 50);
        }
        let paused: Vec<_> = (0..20)
            .map(|_| {
                let gauge = Gauge::quic(WINDOW, SendWindow::unbounded());
                gauge.waits(1 << 20);
                Arc::new(gauge)
            })
            .collect();
        let most = 900 * u64::from(WINDOW);
        let all: Vec<_> = hogs.iter().chain(&paused).cloned().collect();
        let mut entered = entered(&all);
        drop(entered.measured());
        let moving = hogs.iter().step_by(50);
        moving.for_each(|gauge| gauge.read(1 << 20, 0));
        entered.relieve(most, &Count::default());
        assert_eq!(ended(&paused), 0);
        assert!(ended(&hogs) > 100);
    }

    #[test]
    fn a_stream_that_takes_nothing_counts_with_no_more_than_was_written_to_it() {
        let gauge = Gauge::quic(WINDOW, SendWindow::unbounded());
        gauge.wrote(5140);
        assert_eq!(gauge.measure(), (0, 5140));
        gauge.waits(514);
        assert_eq!(gauge.measure().0, 5654);
        gauge.wrote(1 << 30);
        assert_eq!(gauge.measure().0, u64::from(WINDOW) + 514);
    }
}
