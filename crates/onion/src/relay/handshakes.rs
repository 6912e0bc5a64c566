//! Onion skins that wait to be answered: computed by a few threads beside those that pass cells, so that whoever asks for many circuits stops
//! nobody's traffic. [`Queue`] is the machine: who waits, in which order, and who is refused; [`Handshakes`] drives it.
//! tor-spec "Creating circuits"; C tor's onion queue and its DoS mitigation have the like.
//!
//! The queue is bounded, for one client and for all ([`Limits`]). Known relays come first, then whoever has asked for least of late; whoever comes first
//! of two alike is served first. When it is full, the last of that order goes: it is told RESOURCELIMIT, and may try again.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use hoplite_channel::Recent;
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::oneshot, time::Instant};

/// Below this many clients nobody is forgotten.
const MIN_REMEMBERED: usize = 1024;

/// Bounds of what waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Threads that compute answers; 0: they are computed where they are asked for, and nothing waits.
    pub threads: usize,
    /// Onion skins of all clients that wait.
    pub waiting: usize,
    /// Onion skins of one client that wait.
    pub waiting_per_client: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads: 0,
            waiting: 2048,
            waiting_per_client: 128,
        }
    }
}

/// How many circuits may be begun, and asked to go on: this many at once, this many a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creates {
    /// By one client.
    pub client: (u32, u32),
    /// By one known relay, for all of its clients; and by this relay at one other.
    pub relay: (u32, u32),
}

impl Default for Creates {
    fn default() -> Self {
        Self {
            client: (400, 200),
            relay: (1600, 800),
        }
    }
}

/// Who asks, to the limits only.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Requester {
    /// An address or its network, or a relay: nobody's but his.
    pub key: u64,
    /// A relay that is known, and comes first.
    pub known: bool,
}

/// The order of those that wait: known ones, then those that have asked for least, then as they came.
type Rank = (bool, u32, u64);

/// Who waits with what.
#[derive(Debug)]
pub struct Queue<J> {
    limits: Limits,
    creates: Creates,
    waiting: BTreeMap<Rank, (u64, J)>,
    count: u64,
    /// Those of whom something waits, and those whose requests of late are not forgotten yet: of few within seconds, of hundreds within two minutes.
    clients: HashMap<u64, Client>,
    sweep_at: usize,
}

/// What one has asked for of late, and what of it waits.
#[derive(Debug)]
struct Client {
    creates: Bucket,
    recent: Recent,
    waiting: usize,
}

impl<J> Queue<J> {
    /// Nobody waits.
    pub fn new(limits: Limits, creates: Creates) -> Self {
        Self {
            limits,
            creates,
            waiting: BTreeMap::new(),
            count: 0,
            clients: HashMap::new(),
            sweep_at: MIN_REMEMBERED,
        }
    }

    /// Whether a client may begin one more circuit now, or have one go on, on whichever channel.
    pub fn admits(&mut self, requester: Requester, now: Instant) -> bool {
        let client = self.client(requester, now);
        client.recent.count(now);
        let admitted = client.creates.take(now);
        if admitted {
            client.recent.add(1);
        }
        admitted
    }

    /// It waits from now on; answers what is given up for it.
    ///
    /// # Errors
    /// The job: it is what would be given up.
    pub fn push(&mut self, requester: Requester, job: J, now: Instant) -> Result<Option<J>, J> {
        let limits = self.limits;
        let client = self.client(requester, now);
        if client.waiting >= limits.waiting_per_client {
            return Err(job);
        }
        client.waiting += 1;
        let rank = (!requester.known, client.recent.count(now), self.count);
        self.count += 1;
        self.waiting.insert(rank, (requester.key, job));
        if self.waiting.len() <= limits.waiting {
            return Ok(None);
        }
        let last = self.waiting.pop_last();
        let given_up = last.map(|(last, (key, job))| (last == rank, self.leave(key, job)));
        match given_up {
            Some((true, job)) => Err(job),
            Some((false, job)) => Ok(Some(job)),
            None => Ok(None),
        }
    }

    /// What is to be answered next.
    pub fn pop(&mut self) -> Option<J> {
        let (_, (key, job)) = self.waiting.pop_first()?;
        Some(self.leave(key, job))
    }

    fn leave(&mut self, key: u64, job: J) -> J {
        if let Some(client) = self.clients.get_mut(&key) {
            client.waiting = client.waiting.saturating_sub(1);
        }
        job
    }

    fn client(&mut self, requester: Requester, now: Instant) -> &mut Client {
        if self.clients.len() >= self.sweep_at {
            self.clients
                .retain(|_, client| client.waiting > 0 || client.recent.count(now) > 0);
            self.sweep_at = MIN_REMEMBERED.max(self.clients.len() * 2);
        }
        let (most, per_second) = if requester.known {
            self.creates.relay
        } else {
            self.creates.client
        };
        self.clients.entry(requester.key).or_insert_with(|| Client {
            creates: Bucket::new(most, per_second, now),
            recent: Recent::new(now),
            waiting: 0,
        })
    }
}

/// What is computed, on whichever thread.
type Work<T> = Box<dyn FnOnce() -> T + Send>;

/// The queue, and the threads that empty it.
pub(super) struct Handshakes<T> {
    threads: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    queue: Queue<(Work<T>, oneshot::Sender<T>)>,
    /// Threads at work.
    running: usize,
}

/// There are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// One thread at work; dropped, it is not.
struct Worker<T> {
    handshakes: Arc<Handshakes<T>>,
    works: bool,
}

impl<T: Send + 'static> Handshakes<T> {
    pub(super) fn new(limits: Limits, creates: Creates) -> Arc<Self> {
        Arc::new(Self {
            threads: limits.threads,
            state: Mutex::new(State {
                queue: Queue::new(limits, creates),
                running: 0,
            }),
        })
    }

    /// As [`Queue::admits`].
    pub(super) fn admits(&self, requester: Requester) -> bool {
        self.state().queue.admits(requester, Instant::now())
    }

    /// Has it computed when its turn comes. Dropping the future gives the answer up, and what it would cost.
    pub(super) async fn compute(
        self: &Arc<Self>,
        requester: Requester,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, TooMany> {
        if self.threads == 0 {
            return Ok(work());
        }
        self.wait(requester, Box::new(work))
            .await
            .map_err(|_| TooMany)
    }

    fn wait(self: &Arc<Self>, requester: Requester, work: Work<T>) -> oneshot::Receiver<T> {
        let (tell, told) = oneshot::channel();
        let mut state = self.state();
        let pushed = state.queue.push(requester, (work, tell), Instant::now());
        let starts = state.running < self.threads;
        state.running += usize::from(starts);
        drop(state);
        if starts {
            let mut worker = Worker {
                handshakes: Arc::clone(self),
                works: true,
            };
            drop(tokio::task::spawn_blocking(move || worker.run()));
        }
        // Whoever is given up hears that nobody will answer.
        drop(pushed);
        told
    }
}

impl<T> Handshakes<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }
}

impl<T: Send + 'static> Worker<T> {
    /// Works until nobody waits.
    fn run(&mut self) {
        while let Some((work, tell)) = self.next() {
            if !tell.is_closed() {
                // Its asker may have gone meanwhile.
                tell.send(work()).ok();
            }
        }
    }

    /// The end is told under the same lock: whoever comes after it starts another.
    fn next(&mut self) -> Option<(Work<T>, oneshot::Sender<T>)> {
        let mut state = self.handshakes.state();
        let next = state.queue.pop();
        if next.is_none() {
            state.running -= 1;
            self.works = false;
        }
        next
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        if self.works {
            self.handshakes.state().running -= 1;
        }
    }
}

impl fmt::Debug for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Requester(hidden)")
    }
}

// What protects a relay from CREATE2: this many a second for each client, and none twice. tor-spec "Creating circuits";
// C tor's DoS mitigation has the like.

const NANOSECONDS: u128 = Duration::from_secs(1).as_nanos();

/// Tokens that come back at a rate.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    most: u32,
    per_second: u32,
    left: u32,
    /// What was taken beyond all that there was: it comes back before anything is left.
    owed: u32,
    since: Instant,
}

/// Which onion skins have been answered. Two generations: what is asked again after both is answered again, with other keys.
///
/// A replay learns nothing by itself; but a relay that answers it tells a watcher that a circuit was there.
#[derive(Debug)]
pub struct ReplayCache {
    hasher: RandomState,
    most: usize,
    lasts: Duration,
    since: Instant,
    current: HashSet<u64>,
    last: HashSet<u64>,
}

impl Bucket {
    /// A full bucket.
    pub fn new(most: u32, per_second: u32, now: Instant) -> Self {
        Self {
            most,
            per_second,
            left: most,
            owed: 0,
            since: now,
        }
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        self.take_many(1, now)
    }

    /// Takes so many, if there is one; what is short is owed.
    pub fn take_many(&mut self, count: u32, now: Instant) -> bool {
        let left = self.left(now);
        if left == 0 {
            return false;
        }
        self.owed = count.saturating_sub(left);
        self.left = left.saturating_sub(count);
        true
    }

    /// How many there are.
    pub fn left(&mut self, now: Instant) -> u32 {
        let passed = now.saturating_duration_since(self.since).as_nanos();
        let (rate, parts) = (u128::from(self.per_second), NANOSECONDS);
        let came = passed * rate / parts;
        if came > 0 {
            // The part that has come of the next one is not lost, unless there is no room for it.
            let rest = passed * rate % parts / rate;
            let came = u32::try_from(came).unwrap_or(u32::MAX);
            let repaid = self.owed.min(came);
            self.owed = self.owed.saturating_sub(repaid);
            let more = came.saturating_sub(repaid);
            self.left = self.left.saturating_add(more).min(self.most);
            let is_full = self.left == self.most;
            let rest = u64::try_from(rest).unwrap_or(0) * u64::from(!is_full);
            self.since = now - Duration::from_nanos(rest);
        }
        self.left
    }
}

impl ReplayCache {
    /// Remembers each skin for `lasts` at least, unless more than `most` come in that time.
    pub fn new(most: usize, lasts: Duration, now: Instant) -> Self {
        Self {
            hasher: RandomState::new(),
            most,
            lasts,
            since: now,
            current: HashSet::new(),
            last: HashSet::new(),
        }
    }

    /// Whether it has not been seen before. It has now.
    pub fn is_new(&mut self, skin: &[u8], now: Instant) -> bool {
        let old = now.saturating_duration_since(self.since) >= self.lasts;
        if old || self.current.len() >= self.most {
            self.last = std::mem::take(&mut self.current);
            self.since = now;
        }
        // A keyed hash that nobody outside can predict stands for the skin.
        let key = self.hasher.hash_one(skin);
        !self.last.contains(&key) && self.current.insert(key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits = Limits {
        threads: 1,
        waiting: 10,
        waiting_per_client: 4,
    };

    fn each(rate: (u32, u32)) -> Creates {
        Creates {
            client: rate,
            relay: rate,
        }
    }

    fn stranger(key: u64) -> Requester {
        Requester { key, known: false }
    }

    fn relay(key: u64) -> Requester {
        Requester { key, known: true }
    }

    /// Begins a circuit: how it went.
    fn ask(queue: &mut Queue<u64>, requester: Requester, now: Instant) -> Result<Option<u64>, u64> {
        assert!(queue.admits(requester, now));
        queue.push(requester, requester.key, now)
    }

    #[test]
    fn known_relays_come_first_and_then_whoever_asked_for_least() {
        let now = Instant::now();
        let mut queue = Queue::new(LIMITS, each((100, 1)));
        for key in [1, 1, 1, 2, 9, 3, 2] {
            let requester = if key == 9 { relay(9) } else { stranger(key) };
            assert_eq!(ask(&mut queue, requester, now), Ok(None));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [9, 1, 2, 3, 1, 2, 1]);
    }

    #[test]
    fn who_asks_all_the_time_comes_after_who_asks_now_and_then_though_both_keep_to_the_rate() {
        let mut now = Instant::now();
        let mut queue = Queue::new(LIMITS, each((400, 200)));
        for n in 0..10_000 {
            now += Duration::from_millis(10);
            assert!(queue.admits(stranger(1), now));
            if n % 500 == 0 {
                assert!(queue.admits(stranger(2), now));
            }
        }
        for key in [1, 1, 2, 3] {
            assert_eq!(ask(&mut queue, stranger(key), now), Ok(None));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [3, 2, 1, 1]);
        now += Duration::from_secs(200);
        for key in [1, 4] {
            assert_eq!(ask(&mut queue, stranger(key), now), Ok(None));
        }
        assert_eq!(queue.pop(), Some(1), "that was long ago");
    }

    #[test]
    fn one_address_takes_no_more_places_than_its_share_whatever_its_channels_are() {
        let now = Instant::now();
        let mut queue = Queue::new(LIMITS, each((100, 1)));
        let taken = (0..50).filter(|_| ask(&mut queue, stranger(1), now).is_ok());
        assert_eq!(taken.count(), 4);
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(
            ask(&mut queue, stranger(1), now),
            Ok(None),
            "a place is free"
        );
    }

    #[test]
    fn when_all_places_are_taken_the_busiest_guest_gives_way_and_no_relay() {
        let now = Instant::now();
        let mut queue = Queue::new(LIMITS, each((100, 1)));
        for key in [7, 7, 7, 7, 8, 8, 8, 1, 2, 3] {
            assert_eq!(ask(&mut queue, stranger(key), now), Ok(None));
        }
        assert_eq!(
            ask(&mut queue, stranger(4), now),
            Ok(Some(7)),
            "the fourth of 7"
        );
        assert_eq!(
            ask(&mut queue, stranger(7), now),
            Err(7),
            "it has asked most"
        );
        for key in 20..30 {
            let given_up = ask(&mut queue, relay(key), now).expect("relays come in");
            assert!(given_up.is_some_and(|key| key < 10));
        }
        assert_eq!(
            ask(&mut queue, stranger(5), now),
            Err(5),
            "relays alone wait"
        );
        assert_eq!(ask(&mut queue, relay(30), now), Err(30), "alike, and later");
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 10);
    }

    #[test]
    fn an_address_has_one_rate_on_all_its_channels_and_is_forgotten_when_it_is_quiet() {
        let mut now = Instant::now();
        let mut queue = Queue::<()>::new(LIMITS, each((10, 5)));
        assert_eq!(
            (0..30).filter(|_| queue.admits(stranger(1), now)).count(),
            10
        );
        now += Duration::from_secs(1);
        assert_eq!(
            (0..30).filter(|_| queue.admits(stranger(1), now)).count(),
            5
        );
        for key in 0..100_000 {
            now += Duration::from_millis(1);
            assert!(queue.admits(stranger(key + 10), now));
        }
        // A thousand came each second, each once.
        assert!(queue.clients.len() <= 25_000, "{}", queue.clients.len());
    }

    #[test]
    fn a_relay_asks_for_all_of_its_clients_and_may_ask_more() {
        let now = Instant::now();
        let mut queue = Queue::<()>::new(LIMITS, Creates::default());
        let asked =
            |queue: &mut Queue<()>, who| (0..5000).filter(|_| queue.admits(who, now)).count();
        assert_eq!(asked(&mut queue, stranger(1)), 400);
        assert_eq!(asked(&mut queue, relay(2)), 1600);
    }

    #[tokio::test]
    async fn who_waits_is_answered_by_as_many_threads_as_may_be() {
        let handshakes = Handshakes::new(
            Limits {
                threads: 2,
                ..Limits::default()
            },
            each((100, 1)),
        );
        let asked: Vec<_> = (0..100)
            .map(|n| {
                let handshakes = Arc::clone(&handshakes);
                tokio::spawn(async move { handshakes.compute(stranger(n), move || n).await })
            })
            .collect();
        for (n, asked) in (0..).zip(asked) {
            assert_eq!(asked.await.expect("no panic"), Ok(n));
        }
    }
}

#[cfg(test)]
mod skins_tests {
    use super::*;

    #[test]
    fn a_bucket_gives_what_it_has_and_then_what_comes() {
        let mut now = Instant::now();
        let mut bucket = Bucket::new(10, 5, now);
        assert_eq!((0..20).filter(|_| bucket.take(now)).count(), 10);
        now += Duration::from_secs(1);
        assert_eq!((0..20).filter(|_| bucket.take(now)).count(), 5);
        now += Duration::from_secs(100);
        assert_eq!((0..20).filter(|_| bucket.take(now)).count(), 10);
    }

    #[test]
    fn a_bucket_asked_often_still_fills() {
        let mut now = Instant::now();
        let mut bucket = Bucket::new(1, 5, now);
        let taken = (0..1000).filter(|_| {
            now += Duration::from_millis(1);
            bucket.take(now)
        });
        assert_eq!(taken.count(), 6);
    }

    /// At steps in which no whole number of them comes.
    #[test]
    fn a_bucket_asked_steadily_gives_its_whole_rate_and_no_more() {
        for (per_second, step) in [(11, 181), (25, 79), (3, 400), (7, 1), (1000, 3)] {
            let mut now = Instant::now();
            let mut bucket = Bucket::new(100, per_second, now);
            while bucket.take(now) {}
            let mut taken = 0;
            for _ in 0..100_000 / step {
                now += Duration::from_millis(step);
                while bucket.take(now) {
                    taken += 1;
                }
            }
            let most = u64::from(per_second) * (100_000 / step * step) / 1000;
            assert!((most - 1..=most).contains(&taken), "{taken} of {most}");
        }
    }

    #[test]
    fn a_bucket_that_is_full_keeps_nothing_for_later() {
        let mut now = Instant::now();
        let mut bucket = Bucket::new(1, 1, now);
        now += Duration::from_millis(1900);
        assert!(bucket.take(now));
        now += Duration::from_millis(900);
        assert!(!bucket.take(now));
        now += Duration::from_millis(100);
        assert!(bucket.take(now));
    }

    #[test]
    fn a_skin_is_new_once() {
        let mut now = Instant::now();
        let mut skins = ReplayCache::new(1000, Duration::from_secs(60), now);
        assert!(skins.is_new(b"skin", now));
        assert!(!skins.is_new(b"skin", now));
        now += Duration::from_secs(61);
        assert!(!skins.is_new(b"skin", now), "the last generation");
        assert!(skins.is_new(b"another", now));
    }

    #[test]
    fn skins_are_forgotten_rather_than_gathered_without_bound() {
        let now = Instant::now();
        let mut skins = ReplayCache::new(100, Duration::from_secs(3600), now);
        for n in 0..10_000u32 {
            assert!(skins.is_new(&n.to_be_bytes(), now));
            assert!(skins.current.len() + skins.last.len() <= 200);
        }
    }
}
