//! Who goes next: the circuit that carried the least of late (Tang and Goldberg 2010; C tor's `CircuitPriorityHalflifeMsec`).
//! The TLS writer takes its turns from here, a circuit's QUIC stream its priority. No clock: callers say what time it is.
//!
//! An activity is a sum of cells that halves with every half-life. It is kept as the logarithm of what it would be if the newest
//! cells weighed more instead of the old ones less: then two activities compare without a clock, and nothing is ever rescaled.

use std::{cmp::Ordering, collections::BinaryHeap, time::Duration};

use tokio::time::Instant;

/// The least half-life, so that nothing divides by zero.
const MIN_HALF_LIFE: Duration = Duration::from_millis(1);
/// How many levels [`Activity::level`] knows above the quietest: 4^16 cells are more than any half-life carries.
const MAX_LEVEL: f64 = 16.0;

/// Turns times into weights.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    start: Instant,
    half_life: Duration,
}

impl Scale {
    /// Counts from `start`; cells of `half_life` ago weigh half.
    #[must_use]
    pub fn new(start: Instant, half_life: Duration) -> Self {
        let half_life = half_life.max(MIN_HALF_LIFE);
        Self { start, half_life }
    }

    /// How many half-lives have passed at `now`.
    #[must_use]
    pub fn at(&self, now: Instant) -> HalfLives {
        let passed = now.saturating_duration_since(self.start);
        HalfLives(passed.as_secs_f64() / self.half_life.as_secs_f64())
    }
}

/// A time, in half-lives.
#[derive(Clone, Copy, Debug)]
pub struct HalfLives(f64);

/// How much a circuit has carried of late.
#[derive(Clone, Copy, Debug)]
pub struct Activity(f64);

impl Activity {
    /// Of a circuit that has carried nothing yet.
    pub const NONE: Self = Self(f64::NEG_INFINITY);

    /// `cells` were carried at `when`.
    pub fn add(&mut self, cells: usize, when: HalfLives) {
        if cells == 0 {
            return;
        }
        let cells = u32::try_from(cells).unwrap_or(u32::MAX);
        let new = when.0 + f64::from(cells).log2();
        let (most, least) = (self.0.max(new), self.0.min(new));
        self.0 = most + (least - most).exp2().ln_1p() / std::f64::consts::LN_2;
    }

    /// What it is worth at `when`, in cells.
    #[must_use]
    pub fn cells(self, when: HalfLives) -> f64 {
        (self.0 - when.0).exp2()
    }

    /// Its worth in coarse steps, each four times the one before: 0 is up to one cell.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "0 to 16")]
    pub fn level(self, when: HalfLives) -> i32 {
        ((self.0 - when.0) / 2.0).ceil().clamp(0.0, MAX_LEVEL) as i32
    }
}

/// Those that have something to send, the quietest first; equally quiet ones in the order in which they came.
#[derive(Debug)]
pub struct Turns<K> {
    waiting: BinaryHeap<Turn<K>>,
    came: u64,
}

#[derive(Debug)]
struct Turn<K> {
    activity: Activity,
    came: u64,
    key: K,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self {
            waiting: BinaryHeap::new(),
            came: 0,
        }
    }
}

impl<K> Turns<K> {
    /// `key` has something to send. Whoever waits already must not be added again.
    pub fn add(&mut self, key: K, activity: Activity) {
        let came = self.came;
        self.came = came.wrapping_add(1);
        self.waiting.push(Turn {
            activity,
            came,
            key,
        });
    }

    /// Whose turn it is; it waits no longer.
    pub fn take(&mut self) -> Option<K> {
        self.waiting.pop().map(|turn| turn.key)
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl<K> Turn<K> {
    /// The greatest goes first: the least active, then the one that came first.
    fn rank(&self, other: &Self) -> Ordering {
        let activity = other.activity.0.total_cmp(&self.activity.0);
        activity.then_with(|| other.came.cmp(&self.came))
    }
}

impl<K> PartialEq for Turn<K> {
    fn eq(&self, other: &Self) -> bool {
        self.rank(other) == Ordering::Equal
    }
}

impl<K> Eq for Turn<K> {}

impl<K> PartialOrd for Turn<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Turn<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_LIFE: Duration = Duration::from_secs(30);

    fn scale() -> (Scale, Instant) {
        let start = Instant::now();
        (Scale::new(start, HALF_LIFE), start)
    }

    #[test]
    fn an_activity_halves_with_every_half_life() {
        let (scale, start) = scale();
        let mut activity = Activity::NONE;
        activity.add(100, scale.at(start));
        for (lives, left) in [(0, 100.0), (1, 50.0), (2, 25.0)] {
            let cells = activity.cells(scale.at(start + lives * HALF_LIFE));
            assert!((cells - left).abs() < 1e-6, "{cells} after {lives}");
        }
    }

    #[test]
    fn cells_add_up_one_by_one_as_at_once() {
        let (scale, start) = scale();
        let (mut single, mut once) = (Activity::NONE, Activity::NONE);
        (0..1000).for_each(|_| single.add(1, scale.at(start)));
        once.add(1000, scale.at(start));
        once.add(0, scale.at(start));
        assert!((single.cells(scale.at(start)) - 1000.0).abs() < 1e-6);
        assert!((once.cells(scale.at(start)) - 1000.0).abs() < 1e-6);
    }

    #[test]
    fn a_year_of_cells_stays_a_number() {
        let (scale, start) = scale();
        let mut activity = Activity::NONE;
        for day in 0..365 {
            let now = start + Duration::from_secs(86_400) * day;
            activity.add(usize::MAX, scale.at(now));
            assert!(activity.cells(scale.at(now)).is_finite());
        }
    }

    #[test]
    fn the_quietest_goes_first_and_equals_in_their_order() {
        let (scale, start) = scale();
        let mut turns = Turns::default();
        let mut loud = Activity::NONE;
        loud.add(10, scale.at(start));
        turns.add("loud", loud);
        turns.add("first", Activity::NONE);
        turns.add("second", Activity::NONE);
        let order: Vec<_> = std::iter::from_fn(|| turns.take()).collect();
        assert_eq!(order, ["first", "second", "loud"]);
        assert!(turns.is_empty());
    }

    #[test]
    fn old_greed_is_forgotten() {
        let (scale, start) = scale();
        let (mut old, mut new) = (Activity::NONE, Activity::NONE);
        old.add(1000, scale.at(start));
        new.add(20, scale.at(start + 6 * HALF_LIFE));
        let mut turns = Turns::default();
        turns.add("new", new);
        turns.add("old", old);
        assert_eq!(turns.take(), Some("old"));
    }

    #[test]
    fn levels_are_powers_of_four_and_start_at_nothing() {
        let (scale, start) = scale();
        let level = |cells| {
            let mut activity = Activity::NONE;
            activity.add(cells, scale.at(start));
            activity.level(scale.at(start))
        };
        assert_eq!([0, 1, 4, 5, 16, 17].map(level), [0, 0, 1, 2, 2, 3]);
        assert_eq!(level(usize::MAX), 16);
    }
}
