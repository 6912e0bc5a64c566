//! When which share of a payload had passed: deciles and OnionPerf's partial sizes. Plain arithmetic, no clock.
//! Its receiver keeps one for each direction; a sender has one too, for the first and the last byte.

/// Bytes whose passing is noted: 10, 20, 50, 100, 200, 500 KiB, 1, 2, 5 MiB.
pub(crate) const PARTIAL: [u64; 9] = [
    10 << 10,
    20 << 10,
    50 << 10,
    100 << 10,
    200 << 10,
    500 << 10,
    1 << 20,
    2 << 20,
    5 << 20,
];

/// How many points are kept of a payload whose size is not known before its end.
const POINTS: usize = 2048;

/// What has passed, and when. Times are microseconds of any clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    expected: u64,
    bytes: u64,
    first: Option<u64>,
    last: Option<u64>,
    deciles: Vec<u64>,
    partial: Vec<(u64, u64)>,
    points: Vec<(u64, u64)>,
    step: u64,
}

/// What is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) bytes: u64,
    pub(crate) first: Option<u64>,
    pub(crate) last: Option<u64>,
    pub(crate) deciles: Vec<u64>,
    pub(crate) partial: Vec<(u64, u64)>,
}

impl Progress {
    /// A payload of `expected` bytes; 0 if that is not known.
    pub(crate) fn new(expected: u64) -> Self {
        Self {
            expected,
            step: 1,
            ..Self::default()
        }
    }

    /// How many bytes have passed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// This many more have passed by `now`.
    pub(crate) fn add(&mut self, bytes: u64, now: u64) {
        if bytes == 0 {
            return;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.first.get_or_insert(now);
        self.last = Some(now);
        while let Some(size) = PARTIAL.get(self.partial.len()).copied() {
            if self.bytes < size {
                break;
            }
            self.partial.push((size, now));
        }
        match self.expected {
            0 => self.note(now),
            all => self.note_deciles(all, now),
        }
    }

    fn note_deciles(&mut self, all: u64, now: u64) {
        while self.deciles.len() < 9 && self.bytes >= decile(all, self.deciles.len()) {
            self.deciles.push(now);
        }
    }

    /// Keeps every point until there are too many, then every second one.
    fn note(&mut self, now: u64) {
        let last = self.points.last().map_or(0, |point| point.0);
        if self.bytes.saturating_sub(last) < self.step {
            return;
        }
        self.points.push((self.bytes, now));
        if self.points.len() >= POINTS {
            let mut keep = false;
            self.points.retain(|_| {
                keep = !keep;
                keep
            });
            self.step = (self.bytes / (POINTS as u64 / 2)).max(1);
        }
    }

    /// What is told of it.
    pub(crate) fn passed(&self) -> Passed {
        let mut deciles = self.deciles.clone();
        if self.expected == 0 {
            deciles = (0..9)
                .filter_map(|k| self.reached(decile(self.bytes, k)))
                .collect();
        }
        Passed {
            bytes: self.bytes,
            first: self.first,
            last: self.last,
            deciles,
            partial: self.partial.clone(),
        }
    }

    fn reached(&self, bytes: u64) -> Option<u64> {
        let place = self.points.partition_point(|point| point.0 < bytes);
        self.points.get(place).map(|point| point.1).or(self.last)
    }
}

impl Passed {
    /// What has passed, with its times on another clock.
    pub(crate) fn map(self, time: impl Fn(u64) -> u64) -> Self {
        Self {
            bytes: self.bytes,
            first: self.first.map(&time),
            last: self.last.map(&time),
            deciles: self.deciles.into_iter().map(&time).collect(),
            partial: self
                .partial
                .into_iter()
                .map(|(size, at)| (size, time(at)))
                .collect(),
        }
    }
}

/// The bytes that make 0.1, 0.2, … of `all`, rounded up; `place` from 0.
fn decile(all: u64, place: usize) -> u64 {
    let tenths = place as u128 + 1;
    u64::try_from((u128::from(all) * tenths).div_ceil(10)).unwrap_or(u64::MAX)
}

/// Several payloads as one: between their own points their bytes are taken to have passed evenly.
pub(crate) fn sum(parts: &[Passed]) -> Passed {
    let bytes = parts.iter().map(|part| part.bytes).sum();
    let curves: Vec<_> = parts.iter().map(curve).collect();
    let at = |wanted: u64| when(&curves, wanted);
    let sizes = PARTIAL.into_iter().filter(|size| *size <= bytes);
    Passed {
        bytes,
        first: parts.iter().filter_map(|part| part.first).min(),
        last: parts.iter().filter_map(|part| part.last).max(),
        deciles: (0..9).filter_map(|k| at(decile(bytes, k))).collect(),
        partial: sizes.filter_map(|size| Some((size, at(size)?))).collect(),
    }
}

/// Points (time, bytes), ascending in both.
fn curve(part: &Passed) -> Vec<(u64, u64)> {
    let (Some(first), Some(last)) = (part.first, part.last) else {
        return Vec::new();
    };
    let mut points = vec![(first, 0)];
    let deciles = part.deciles.iter().enumerate();
    points.extend(deciles.map(|(k, at)| (*at, decile(part.bytes, k))));
    points.extend(part.partial.iter().map(|(size, at)| (*at, *size)));
    points.push((last, part.bytes));
    points.sort_unstable();
    points
}

/// The first moment by which all curves together have `wanted` bytes.
fn when(curves: &[Vec<(u64, u64)>], wanted: u64) -> Option<u64> {
    if wanted == 0 {
        return None;
    }
    let ends = curves.iter().flatten().map(|point| point.0);
    let (mut low, mut high) = (ends.clone().min()?, ends.max()?);
    while low < high {
        let middle = low.midpoint(high);
        let bytes: u64 = curves.iter().map(|curve| bytes_at(curve, middle)).sum();
        if bytes >= wanted {
            high = middle
        } else {
            low = middle.saturating_add(1)
        }
    }
    Some(low)
}

fn bytes_at(curve: &[(u64, u64)], now: u64) -> u64 {
    let place = curve.partition_point(|point| point.0 <= now);
    let before = place.checked_sub(1).and_then(|place| curve.get(place));
    match (before, curve.get(place)) {
        (None, _) => 0,
        (Some(before), None) => before.1,
        (Some(before), Some(after)) => {
            let share = u128::from(now - before.0) * u128::from(after.1.saturating_sub(before.1));
            let more = share / u128::from((after.0 - before.0).max(1));
            before
                .1
                .saturating_add(u64::try_from(more).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(expected: u64, bytes: u64, step: u64) -> Passed {
        let mut progress = Progress::new(expected);
        (1..=bytes / step).for_each(|i| progress.add(step, i * 10));
        progress.passed()
    }

    #[test]
    fn deciles_and_partial_sizes_are_those_of_a_steady_flow() {
        let passed = steady(20_480, 20_480, 1024);
        assert_eq!(passed.deciles, [20, 40, 60, 80, 100, 120, 140, 160, 180]);
        assert_eq!(passed.partial, [(10 << 10, 100), (20 << 10, 200)]);
        assert_eq!((passed.first, passed.last), (Some(10), Some(200)));
    }

    #[test]
    fn one_large_read_reaches_all_deciles_at_once() {
        let mut progress = Progress::new(100);
        progress.add(100, 5);
        assert_eq!(progress.passed().deciles, [5; 9]);
    }

    #[test]
    fn a_payload_that_breaks_off_has_fewer_deciles() {
        let passed = steady(100_000, 35_000, 1000);
        assert_eq!(passed.deciles, [100, 200, 300]);
    }

    #[test]
    fn deciles_of_an_unknown_size_are_near_those_of_a_known_one() {
        let (unknown, known) = (
            steady(0, 50_000_000, 1000),
            steady(50_000_000, 50_000_000, 1000),
        );
        for (a, b) in unknown.deciles.iter().zip(&known.deciles) {
            assert!(a.abs_diff(*b) <= 1000, "{a} is far from {b}");
        }
        assert_eq!(unknown.deciles.len(), 9);
    }

    #[test]
    fn the_sum_of_two_equal_flows_has_their_deciles() {
        let one = steady(100_000, 100_000, 1000);
        let both = sum(&[one.clone(), one.clone()]);
        assert_eq!(both.bytes, 200_000);
        assert_eq!((both.first, both.last), (one.first, one.last));
        for (a, b) in both.deciles.iter().zip(&one.deciles) {
            assert!(a.abs_diff(*b) <= 1, "{a} is not {b}");
        }
    }

    #[test]
    fn nothing_passed_says_nothing() {
        assert_eq!(sum(&[]), Passed::default());
        assert_eq!(Progress::new(0).passed(), Passed::default());
    }
}
