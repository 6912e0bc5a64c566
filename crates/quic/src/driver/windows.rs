//! How much a connection's peer may send ahead of who reads it here, and how much may wait for the peer: little at first, and more with what moves, so
//! that a long fat path is filled and a short or a slow one is not stuffed. RFC 9000 §4.1 (flow control), §4.2 (when it is widened); a window is doubled
//! as long as half of it has moved within the last round trip or two, as kernels do for TCP. It is halved when half of it took longer than a second twice,
//! without having moved so swiftly between, and when others need room. No clock.
//!
//! The shortest round trip counts, not that of now: behind a queue that the connection itself fills, a wider window would only fill it more.
//!
//! **Who does not read**: the window is that of all streams of the connection, and a stream that nobody reads keeps its part of it. When the peer says
//! that it may send nothing more (DATA_BLOCKED), nothing of a stream comes for a round trip, and nothing is read that would let it, the window is doubled,
//! for the others. So a stream takes at most its own window from them, and all together the most that the connection may have. Where it cannot be wider,
//! [`WhenBlocked`] says what is done, until the peer may go on.
//!
//! What is wider than at first comes out of a [`WindowBudget`]; without room there a window stays as it is. What the peer may send is withdrawn only as it
//! is read: until then it is not given back.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// A window of which half moves within this time is not too wide on any path.
const SWIFT: Duration = Duration::from_millis(2);
/// One of which half takes longer is.
const SLOW: Duration = Duration::from_secs(1);
/// For how long a blocked peer is waited for at least: who reads may only be late.
const LATE: Duration = Duration::from_millis(50);

/// How long streams that nobody reads may keep others from going on until they are given up.
const STILL: Duration = Duration::from_secs(5);

/// What is done where the peer is blocked by what nobody reads, and there is no room for a wider window.
#[derive(Clone, Debug)]
pub enum WhenBlocked {
    /// After five seconds streams that nobody has read since are given up, the oldest first, one after the other.
    GiveUp,
    /// Whoever has the streams is told, at once and again and again: he knows which of them are to end
    /// ([`unread`](super::Connection::unread)).
    Tell(Arc<Notify>),
}

impl WhenBlocked {
    /// How long nothing is done.
    fn patience(&self) -> Duration {
        match self {
            Self::GiveUp => STILL,
            Self::Tell(_) => Duration::ZERO,
        }
    }
}

/// Between what windows are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBounds {
    /// What the peer may send ahead of who reads, on all streams: at first, as the connection was configured, and at most.
    pub receive: (u64, u64),
    /// What may wait for the peer's acknowledgement: the same.
    pub send: (u64, u64),
}

/// Where windows are asked for before they are wider. It is asked while the connection is locked.
pub trait WindowBudget: fmt::Debug + Send + Sync {
    /// Takes so many bytes, if there is room for them.
    fn take(&self, bytes: u64) -> bool;

    /// Gives so many of them back.
    fn give(&self, bytes: u64);

    /// Whether somebody else needs room, so that a window is narrower the next time that it is looked at. Asked once for each time.
    fn wants_some_back(&self) -> bool {
        false
    }
}

/// How much wider than at first the windows of all connections may be that share this, in bytes. Clones are the same.
#[derive(Clone)]
pub struct SharedBudget(Arc<Room>);

struct Room {
    most: AtomicU64,
    used: AtomicU64,
}

impl SharedBudget {
    /// So many bytes.
    #[must_use]
    pub fn new(most: u64) -> Self {
        let used = AtomicU64::new(0);
        let most = AtomicU64::new(most);
        Self(Arc::new(Room { most, used }))
    }

    /// From now on so many bytes; windows that are wider stay so.
    pub fn set_most(&self, most: u64) {
        self.0.most.store(most, Relaxed);
    }

    fn most(&self) -> u64 {
        self.0.most.load(Relaxed)
    }

    /// How much of it is used.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }
}

impl WindowBudget for SharedBudget {
    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.most());
        self.0.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Relaxed);
    }
}

impl fmt::Debug for SharedBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBudget")
            .field("most", &self.most())
            .finish_non_exhaustive()
    }
}

/// Two are the same if they have as much to give.
impl PartialEq for SharedBudget {
    fn eq(&self, other: &Self) -> bool {
        self.most() == other.most()
    }
}

/// The windows of one connection. What changes one says how wide it is from now on.
#[derive(Debug)]
pub(super) struct Windows {
    bounds: WindowBounds,
    budget: Box<dyn WindowBudget>,
    when_blocked: WhenBlocked,
    receive: u64,
    send: u64,
    /// What the peer may send beyond the window, which was wider.
    owed: u64,
    round_trip: Duration,
    /// By how much more the peer may have been allowed since MAX_DATA last left.
    credit: u64,
    /// What was read of late.
    lately: Lately,
    /// What was read since the window was last looked at, and when that began.
    read: u64,
    since: Instant,
    /// Half of it took long once, and none was swift since: that may have been a pause within.
    was_slow: bool,
    heard: Heard,
    /// When the peer is blocked for good, if nothing comes until then; and what was read since it said that it is blocked.
    stuck: Option<Instant>,
    read_since_blocked: u64,
    /// It has said so, and was allowed no more since. It says so once, and may do so before what it may send has come.
    is_blocked: bool,
    /// Since when it has been so, without room for a wider window.
    still: Option<Instant>,
}

/// What was read in the round trip that is under way and in the one before: so a burst after a pause is told from what moves slowly.
#[derive(Debug)]
pub struct Lately {
    /// When the one that is under way began.
    since: Instant,
    current: u64,
    before: u64,
}

impl Lately {
    /// Nothing yet.
    #[must_use]
    pub const fn new(since: Instant) -> Self {
        Self {
            since,
            current: 0,
            before: 0,
        }
    }

    /// So many bytes were read; a round trip takes so long.
    pub fn read(&mut self, bytes: u64, round_trip: Duration, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed >= round_trip {
            let follows = passed < round_trip.saturating_mul(2);
            self.before = if follows { self.current } else { 0 };
            self.current = 0;
            self.since = if follows {
                self.since + round_trip
            } else {
                now
            };
        }
        self.current += bytes;
    }

    /// How many in both.
    fn sum(&self) -> u64 {
        self.before + self.current
    }

    /// How many in the one with fewer: a burst after a pause counts as nothing.
    #[must_use]
    pub fn lesser(&self) -> u64 {
        self.before.min(self.current)
    }
}

/// What helps a peer that is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Help {
    /// The window is so wide from now on.
    Wider(u64),
    /// There is no room: that streams end which nobody reads.
    NoRoom,
}

/// What has come of the peer and was answered, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// DATA_BLOCKED frames.
    pub(super) blocked: u64,
    /// STREAM frames.
    pub(super) stream: u64,
    /// What it was allowed, in MAX_DATA frames of ours.
    pub(super) allowed: u64,
}

impl Windows {
    pub(super) fn new(
        bounds: WindowBounds,
        budget: Box<dyn WindowBudget>,
        when_blocked: WhenBlocked,
        now: Instant,
    ) -> Self {
        Self {
            bounds,
            budget,
            when_blocked,
            receive: bounds.receive.0,
            send: bounds.send.0,
            owed: 0,
            credit: 0,
            round_trip: Duration::MAX,
            lately: Lately::new(now),
            read: 0,
            since: now,
            was_slow: false,
            heard: Heard::default(),
            stuck: None,
            read_since_blocked: 0,
            is_blocked: false,
            still: None,
        }
    }

    pub(super) fn when_blocked(&self) -> &WhenBlocked {
        &self.when_blocked
    }

    /// What the peer may send ahead of who reads.
    pub(super) fn receive(&self) -> u64 {
        self.receive
    }

    /// Whether it matters who reads: the peer is blocked, without room for a wider window.
    pub(super) fn is_still(&self) -> bool {
        self.still.is_some()
    }

    /// So many bytes were read; a round trip took so long of late.
    pub(super) fn read(&mut self, bytes: u64, round_trip: Duration, now: Instant) -> Option<u64> {
        self.round_trip = self.round_trip.min(round_trip);
        if self.read == 0 {
            self.since = now;
        }
        self.read += bytes;
        // What was withdrawn is paid first, and lets the peer send nothing.
        let withdrawn = self.owed.min(bytes);
        self.read_since_blocked += bytes - withdrawn;
        self.credit += bytes - withdrawn;
        if withdrawn > 0 {
            self.owed -= withdrawn;
            self.budget.give(withdrawn);
        }
        self.lately.read(bytes, self.round_trip.max(SWIFT / 2), now);
        // All of it counts also after the window was widened: a sender in slow start has twice as much on its way in each round trip, and a window that
        // only doubles as fast stays in its way.
        let is_swift = self.lately.sum() >= self.receive / 2;
        if !is_swift && self.read < self.receive / 2 {
            return None;
        }
        self.read = 0;
        if self.budget.wants_some_back() {
            return self.narrow(now);
        }
        if is_swift {
            self.was_slow = false;
            let wider = self.widen();
            if wider.is_none() {
                // It is tried again after another half, and not with the next byte.
                self.lately = Lately::new(now);
            }
            return wider;
        }
        let took = now.saturating_duration_since(self.since);
        if took <= SLOW.max(self.round_trip.saturating_mul(2)) {
            return None;
        }
        let twice = std::mem::replace(&mut self.was_slow, true);
        twice.then(|| self.narrow(now)).flatten()
    }

    /// A stream has ended of which not all was read: so much more the peer is allowed, or less.
    pub(super) fn freed(&mut self) {
        self.credit = self.receive;
    }

    /// So many MAX_DATA frames were sent by now. To be told when they leave: a peer that is quick uses one up and is blocked again before the next
    /// [`Self::heard`], and says so once.
    pub(super) fn allowed(&mut self, frames: u64) {
        let before = std::mem::replace(&mut self.heard.allowed, frames);
        // Less than an eighth is told only again, where it may have been lost.
        if before != frames && self.credit >= self.receive / 8 {
            self.credit = 0;
            self.goes_on();
        }
    }

    /// The peer may send again.
    fn goes_on(&mut self) {
        (self.is_blocked, self.stuck, self.still) = (false, None, None);
    }

    /// So much has come by now. Whether the peer is blocked, because of what nobody reads: `unread` tells how much that is, and is asked seldom. Who says that
    /// he is blocked without having sent as much is not helped: he would take from others what they have need of.
    pub(super) fn heard(
        &mut self,
        heard: Heard,
        unread: impl FnOnce() -> u64,
        round_trip: Duration,
        now: Instant,
    ) -> Option<Help> {
        self.round_trip = self.round_trip.min(round_trip);
        self.allowed(heard.allowed);
        let before = std::mem::replace(&mut self.heard, heard);
        let (says_so, goes_on) = (
            heard.blocked != before.blocked,
            heard.stream != before.stream,
        );
        if says_so {
            self.read_since_blocked = 0;
            self.is_blocked = true;
        }
        // An eighth that was read lets the peer go on.
        if self.read_since_blocked >= self.receive / 8 {
            self.goes_on();
        } else if says_so || (goes_on && self.is_blocked) {
            self.stuck = now.checked_add(round_trip.max(LATE));
        }
        self.stuck.take_if(|at| *at <= now)?;
        // The rest may be on its way yet: it is looked at again when something of it has come.
        if unread() < self.receive / 2 {
            self.still = None;
            return None;
        }
        if let Some(wider) = self.widen() {
            (self.is_blocked, self.still) = (false, None);
            return Some(Help::Wider(wider));
        }
        let still = *self.still.get_or_insert(now);
        let patience = self.when_blocked.patience();
        let patient = still.checked_add(patience).filter(|until| *until > now);
        self.stuck = patient.or_else(|| now.checked_add(LATE));
        patient.is_none().then_some(Help::NoRoom)
    }

    /// When [`Self::heard`] is to be asked even if nothing comes.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.stuck
    }

    /// A writer has to wait, while so much may be on its way. The send window does not keep the path from being filled.
    pub(super) fn full(&mut self, congestion_window: u64) -> Option<u64> {
        let is_short = congestion_window > self.send / 2 && self.send < self.bounds.send.1;
        let wider = self.send.saturating_mul(2).min(self.bounds.send.1);
        if !is_short || !self.budget.take(wider - self.send) {
            return None;
        }
        self.send = wider;
        Some(wider)
    }

    fn widen(&mut self) -> Option<u64> {
        let wider = self.receive.saturating_mul(2).min(self.bounds.receive.1);
        if wider <= self.receive || !self.budget.take(wider - self.receive) {
            return None;
        }
        self.credit += wider - self.receive;
        self.receive = wider;
        Some(wider)
    }

    fn narrow(&mut self, now: Instant) -> Option<u64> {
        // What has moved in the wider one is no reason to widen this.
        self.lately = Lately::new(now);
        let narrower = (self.receive / 2).max(self.bounds.receive.0);
        if narrower >= self.receive {
            return None;
        }
        self.owed += self.receive - narrower;
        self.receive = narrower;
        Some(narrower)
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        let WindowBounds { receive, send } = self.bounds;
        let wider = (self.receive - receive.0) + (self.send - send.0);
        self.budget.give(wider + self.owed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    const BOUNDS: WindowBounds = WindowBounds {
        receive: (MB, 64 * MB),
        send: (8 * MB, 64 * MB),
    };

    fn windows(budget: SharedBudget, now: Instant) -> Windows {
        Windows::new(BOUNDS, Box::new(budget), WhenBlocked::GiveUp, now)
    }

    /// Of a peer that has sent all that it may.
    fn hears(windows: &mut Windows, heard: Heard, rtt: Duration, now: Instant) -> Option<Help> {
        windows.heard(heard, || u64::MAX, rtt, now)
    }

    /// The peer said once that it is blocked, and was allowed so much since.
    fn blocked_once(allowed: u64) -> Heard {
        Heard {
            blocked: 1,
            stream: 9,
            allowed,
        }
    }

    /// Reads so many megabytes, three a second; what the last one changes.
    fn read_slowly(
        windows: &mut Windows,
        megabytes: u32,
        rtt: Duration,
        now: &mut Instant,
    ) -> Option<u64> {
        let mut changed = None;
        for _ in 0..megabytes {
            *now += Duration::from_millis(333);
            changed = windows.read(MB, rtt, *now);
        }
        changed
    }

    /// Reads what a path carries, never more than the window within a round trip, for so long; how wide the window is then.
    fn filled(bits: u64, shortest: Duration, queue: Duration, time: Duration) -> u64 {
        let mut now = Instant::now();
        let mut windows = windows(SharedBudget::new(1 << 30), now);
        let end = now + time;
        windows.read(1, shortest, now);
        let round_trip = shortest + queue;
        while now < end {
            let step = Duration::from_millis(1);
            now += step;
            let path = bits * 125 / 1_000_000;
            let window = u64::try_from(
                u128::from(windows.receive) * step.as_nanos() / round_trip.as_nanos(),
            );
            windows.read(path.min(window.expect("small")), round_trip, now);
        }
        windows.receive
    }

    #[test]
    fn a_long_fat_path_is_filled_and_others_have_what_they_need() {
        let ms = Duration::from_millis;
        let filled = |mbit: u64, rtt, time| filled(mbit * 1_000_000, rtt, Duration::ZERO, time);
        let wide = filled(1000, ms(200), ms(3000));
        assert!(wide >= 50 * MB, "{wide}");
        assert!(filled(1000, ms(2), ms(3000)) <= 2 * MB);
        let medium = filled(100, ms(100), ms(3000));
        assert!((2 * MB..=8 * MB).contains(&medium), "{medium}");
        assert_eq!(filled(10, ms(100), ms(10_000)), MB);
    }

    #[test]
    fn whoever_begins_after_a_pause_has_what_a_path_carries_before_it_is_in_the_way() {
        let (rtt, mut now) = (Duration::from_millis(200), Instant::now());
        let mut windows = windows(SharedBudget::new(1 << 30), now);
        windows.read(1000, rtt, now);
        now += Duration::from_secs(60);
        // Twice as much in each round trip, as senders begin; what is on its way in one fits the window when it is sent.
        for trip in 0..6 {
            let sent = 140_000 << trip;
            assert!(sent <= windows.receive, "{trip}: {}", windows.receive);
            for _ in 0..100 {
                now += rtt / 100;
                windows.read(sent / 100, rtt, now);
            }
        }
        assert!(windows.receive >= 8 * MB, "{}", windows.receive);
    }

    #[test]
    fn one_slow_half_narrows_nothing_and_a_second_one_does() {
        let (rtt, mut now) = (Duration::from_millis(100), Instant::now());
        let mut windows = windows(SharedBudget::new(1 << 30), now);
        while windows.read(MB, rtt, now).is_none_or(|wide| wide < 16 * MB) {}
        let mut wide = 16;
        for _ in 0..2 {
            assert_eq!(read_slowly(&mut windows, wide / 2, rtt, &mut now), None);
            let half = u64::from(wide / 2) * MB;
            assert!(windows.read(half, rtt, now).is_some(), "a burst");
            wide *= 2;
        }
        assert_eq!(windows.receive, 64 * MB);
        assert_eq!(read_slowly(&mut windows, 64, rtt, &mut now), Some(32 * MB));
        assert_eq!(windows.read(1, rtt, now), None, "nothing has moved in it");
    }

    #[test]
    fn where_there_is_no_room_a_wider_window_is_asked_for_with_each_half_of_it() {
        #[derive(Debug, Default)]
        struct Full(Arc<AtomicU64>);
        impl WindowBudget for Full {
            fn take(&self, _: u64) -> bool {
                self.0.fetch_add(1, Relaxed);
                false
            }
            fn give(&self, _: u64) {}
        }
        let (rtt, now) = (Duration::from_millis(100), Instant::now());
        let asked = Arc::default();
        let budget = Box::new(Full(Arc::clone(&asked)));
        let mut windows = Windows::new(BOUNDS, budget, WhenBlocked::GiveUp, now);
        for _ in 0..1000 {
            assert_eq!(windows.read(MB / 100, rtt, now), None);
        }
        assert_eq!(asked.load(Relaxed), 20);
    }

    #[test]
    fn a_queue_that_the_connection_fills_itself_makes_no_window_wider() {
        let ms = Duration::from_millis;
        assert_eq!(filled(10 * MB, ms(20), ms(1000), ms(30_000)), MB);
    }

    #[test]
    fn a_peer_that_stays_blocked_gets_as_much_again_and_one_that_goes_on_does_not() {
        let (rtt, now) = (Duration::from_millis(100), Instant::now());
        let mut windows = windows(SharedBudget::new(1 << 30), now);
        let mut heard = |blocked, stream, trips| {
            hears(
                &mut windows,
                Heard {
                    blocked,
                    stream,
                    allowed: 0,
                },
                rtt,
                now + trips * rtt,
            )
        };
        assert_eq!(heard(1, 9, 0), None, "it may be about to be read");
        assert_eq!(heard(1, 9, 1), Some(Help::Wider(2 * MB)));
        assert_eq!(heard(1, 9, 9), None, "nothing was said since");
        assert_eq!(heard(2, 9, 10), None);
        assert_eq!(heard(2, 10, 11), None, "something came");
        assert_eq!(heard(2, 10, 12), Some(Help::Wider(4 * MB)));
        assert_eq!(heard(3, 10, 13), None);
        windows.read(MB, rtt, now + 13 * rtt);
        let later = now + 14 * rtt;
        let heard = Heard {
            allowed: 0,
            blocked: 3,
            stream: 10,
        };
        assert_eq!(
            hears(&mut windows, heard, rtt, later),
            None,
            "something was read"
        );
    }

    #[test]
    fn without_room_streams_that_nobody_reads_are_given_up_one_by_one_until_the_peer_may_go_on() {
        let (rtt, began) = (Duration::from_millis(100), Instant::now());
        let mut windows = windows(SharedBudget::new(0), began);
        let mut heard =
            |allowed, after| hears(&mut windows, blocked_once(allowed), rtt, began + after);
        let blocked = rtt;
        assert_eq!(heard(0, Duration::ZERO), None);
        assert_eq!(heard(0, blocked), None, "they may be read yet");
        assert_eq!(heard(0, blocked + STILL - rtt), None);
        for n in 0..3 {
            assert_eq!(heard(0, blocked + STILL + n * LATE), Some(Help::NoRoom));
            assert_eq!(heard(0, blocked + STILL + n * LATE), None, "not at once");
        }
        windows.freed();
        let later = began + blocked + STILL + 3 * LATE;
        assert_eq!(hears(&mut windows, blocked_once(1), rtt, later), None);
        assert!(!windows.is_still());
    }

    #[test]
    fn whoever_is_to_be_told_is_told_at_once_and_until_the_peer_may_go_on() {
        let (rtt, began) = (Duration::from_millis(100), Instant::now());
        let when_blocked = WhenBlocked::Tell(Arc::default());
        let mut windows = Windows::new(BOUNDS, Box::new(SharedBudget::new(0)), when_blocked, began);
        let mut heard =
            |allowed, after| hears(&mut windows, blocked_once(allowed), rtt, began + after);
        assert_eq!(heard(0, Duration::ZERO), None);
        for n in 0..3 {
            assert_eq!(heard(0, rtt + n * LATE), Some(Help::NoRoom));
        }
        windows.freed();
        let later = began + rtt + 3 * LATE;
        assert_eq!(hears(&mut windows, blocked_once(1), rtt, later), None);
    }

    #[test]
    fn a_peer_that_only_says_that_it_is_blocked_takes_nothing_from_others() {
        let (rtt, mut now) = (Duration::from_millis(100), Instant::now());
        let budget = SharedBudget::new(1 << 30);
        let mut windows = windows(budget.clone(), now);
        for blocked in 1..20 {
            let heard = Heard {
                allowed: 0,
                blocked,
                stream: 0,
            };
            for unread in [0, MB / 2 - 1] {
                for _ in 0..3 {
                    assert_eq!(windows.heard(heard, || unread, rtt, now), None);
                    now += rtt;
                }
            }
        }
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_peer_that_says_that_it_is_blocked_before_all_of_it_has_come_is_helped_when_it_has() {
        let (rtt, began) = (Duration::from_millis(100), Instant::now());
        for room in [1 << 30, 0] {
            let when_blocked = WhenBlocked::Tell(Arc::default());
            let budget = Box::new(SharedBudget::new(room));
            let mut windows = Windows::new(BOUNDS, budget, when_blocked, began);
            let mut heard = |stream, unread, trips| {
                let heard = Heard {
                    blocked: 1,
                    stream,
                    allowed: 0,
                };
                windows.heard(heard, || unread, rtt, began + trips * rtt)
            };
            assert_eq!(heard(1, 0, 0), None);
            assert_eq!(heard(1, 0, 1), None, "a line that was away");
            assert_eq!(heard(1, 0, 60), None);
            assert_eq!(heard(9, MB, 61), None, "it comes");
            let help = heard(9, MB, 62);
            let expected = if room > 0 {
                Help::Wider(2 * MB)
            } else {
                Help::NoRoom
            };
            assert_eq!(help, Some(expected));
        }
    }

    #[test]
    fn windows_of_all_connections_together_are_not_wider_than_their_budget() {
        let (rtt, now) = (Duration::from_millis(100), Instant::now());
        let budget = SharedBudget::new(20 * MB);
        let mut all: Vec<_> = (0..9).map(|_| windows(budget.clone(), now)).collect();
        for times in 1..9 {
            for windows in &mut all {
                let heard = Heard {
                    allowed: 0,
                    blocked: times,
                    stream: 0,
                };
                hears(windows, heard, rtt, now);
                hears(windows, heard, rtt, now + rtt);
                windows.full(1 << 40);
            }
        }
        assert!((19 * MB..=20 * MB).contains(&budget.used()), "{budget:?}");
        drop(all);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_window_that_is_hardly_used_becomes_narrow_again() {
        let (rtt, mut now) = (Duration::from_millis(100), Instant::now());
        let budget = SharedBudget::new(1 << 30);
        let mut windows = windows(budget.clone(), now);
        while windows.read(MB, rtt, now).is_none_or(|wide| wide < 16 * MB) {}
        for _ in 0..200 {
            now += Duration::from_millis(500);
            windows.read(MB / 4, rtt, now);
        }
        assert_eq!((windows.receive, budget.used()), (MB, 0));
    }

    #[test]
    fn a_peer_that_is_blocked_again_as_soon_as_it_was_allowed_more_is_heard() {
        let (rtt, now) = (Duration::from_millis(100), Instant::now());
        let mut windows = windows(SharedBudget::new(1 << 30), now);
        windows.allowed(1);
        assert_eq!(hears(&mut windows, blocked_once(1), rtt, now), None);
        let help = hears(&mut windows, blocked_once(1), rtt, now + rtt);
        assert_eq!(help, Some(Help::Wider(2 * MB)));
    }

    #[test]
    fn what_the_peer_was_allowed_and_is_told_again_does_not_let_it_go_on() {
        let (rtt, now) = (Duration::from_millis(100), Instant::now());
        let mut windows = windows(SharedBudget::new(1 << 30), now);
        windows.read(MB / 8, rtt, now);
        windows.allowed(1);
        assert_eq!(hears(&mut windows, blocked_once(1), rtt, now), None);
        windows.allowed(2);
        let help = hears(&mut windows, blocked_once(2), rtt, now + rtt);
        assert_eq!(help, Some(Help::Wider(2 * MB)));
    }

    #[test]
    fn what_is_read_of_what_was_withdrawn_does_not_let_the_peer_go_on() {
        let (rtt, mut now) = (Duration::from_millis(100), Instant::now());
        let mut windows = windows(SharedBudget::new(1 << 30), now);
        while windows.read(MB, rtt, now).is_none_or(|wide| wide < 16 * MB) {}
        assert_eq!(read_slowly(&mut windows, 16, rtt, &mut now), Some(8 * MB));
        assert_eq!(hears(&mut windows, blocked_once(0), rtt, now), None);
        windows.read(3 * MB, rtt, now);
        let help = hears(&mut windows, blocked_once(0), rtt, now + rtt);
        assert_eq!(help, Some(Help::Wider(16 * MB)));
    }

    #[test]
    fn what_was_withdrawn_is_not_given_back_before_it_is_read() {
        let (rtt, mut now) = (Duration::from_millis(100), Instant::now());
        let budget = SharedBudget::new(1 << 30);
        let mut windows = windows(budget.clone(), now);
        while windows.read(MB, rtt, now).is_none_or(|wide| wide < 16 * MB) {}
        assert_eq!(read_slowly(&mut windows, 16, rtt, &mut now), Some(8 * MB));
        assert_eq!(budget.used(), 15 * MB, "8 may still come beyond the window");
        windows.read(3 * MB, rtt, now);
        assert_eq!(budget.used(), 12 * MB);
        drop(windows);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_waits_for_the_peer_grows_with_what_may_be_on_its_way() {
        let now = Instant::now();
        let mut windows = windows(SharedBudget::new(1 << 30), now);
        assert_eq!(windows.full(4 * MB), None);
        assert_eq!(windows.full(4 * MB + 1), Some(16 * MB));
        assert_eq!(windows.full(1 << 40), Some(32 * MB));
        assert_eq!(windows.full(1 << 40), Some(64 * MB));
        assert_eq!(windows.full(1 << 40), None);
    }
}
