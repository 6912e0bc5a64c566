//! How much is transferred to measure one circuit: first little, then as much as takes some seconds, down and then up. After sbws, which takes 5 to 10 s.

use std::time::Duration;

/// What is transferred first, in bytes.
const FIRST: u64 = 64 << 10;
/// What is transferred at most, in bytes.
const MOST: u64 = 1 << 30;
/// A transfer that takes less says too little of what the relay carries for long.
const SHORTEST: Duration = Duration::from_secs(5);
/// What a transfer is to take.
const WANTED: Duration = Duration::from_millis(7500);
/// From one transfer to the next it becomes so much more at most.
const GROWTH: u64 = 16;
/// Transfers in one direction. When the last was still too short it counts all the same.
const TRANSFERS: u32 = 6;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the scanner.
    Down,
    /// From it.
    Up,
}

/// What a circuit carried, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// To the scanner.
    pub down: u64,
    /// From it.
    pub up: u64,
}

impl Rates {
    /// A relay passes on as much one way as the other: who holds one up is as slow as that.
    pub fn slower(self) -> u64 {
        self.down.min(self.up)
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To transfer so many bytes, and say how long it took.
    Transfer(Direction, u64),
    /// Nothing more: these are the rates.
    Done(Rates),
}

/// The transfers over one circuit.
#[derive(Clone, Copy, Debug)]
pub struct Transfers {
    direction: Direction,
    bytes: u64,
    made: u32,
    down: u64,
    done: Option<Rates>,
}

impl Default for Transfers {
    fn default() -> Self {
        Self {
            direction: Direction::Down,
            bytes: FIRST,
            made: 0,
            down: 0,
            done: None,
        }
    }
}

impl Transfers {
    /// What to do now.
    pub fn step(&self) -> Step {
        match self.done {
            Some(rates) => Step::Done(rates),
            None => Step::Transfer(self.direction, self.bytes),
        }
    }

    /// The transfer has moved so many bytes in this time.
    pub fn took(&mut self, bytes: u64, time: Duration) {
        self.made = self.made.saturating_add(1);
        let rate = per_second(bytes, time);
        if time < SHORTEST && self.made < TRANSFERS && self.bytes < MOST {
            let most = self.bytes.saturating_mul(GROWTH).min(MOST);
            self.bytes = wanted(rate).clamp(FIRST, most);
            return;
        }
        match self.direction {
            Direction::Down => {
                self.down = rate;
                (self.direction, self.made) = (Direction::Up, 0);
                self.bytes = wanted(rate).clamp(FIRST, MOST);
            }
            Direction::Up => {
                let down = self.down;
                self.done = Some(Rates { down, up: rate });
            }
        }
    }
}

/// What takes as long as is wanted at that rate.
fn wanted(rate: u64) -> u64 {
    let millis = u64::try_from(WANTED.as_millis()).unwrap_or(u64::MAX);
    rate.saturating_mul(millis) / 1000
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    let rate = u128::from(bytes).saturating_mul(1_000_000_000) / nanos;
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over a circuit of this rate, whose transfers all begin with a delay: the rates found, the bytes moved, and how long it took.
    fn over(rate: u64, delay: Duration) -> (Rates, u64, Duration) {
        let (mut transfers, mut moved, mut took) = (Transfers::default(), 0, Duration::ZERO);
        loop {
            match transfers.step() {
                Step::Done(rates) => return (rates, moved, took),
                Step::Transfer(_, bytes) => {
                    let time = Duration::from_secs_f64(bytes as f64 / rate as f64);
                    transfers.took(bytes, time);
                    moved += bytes;
                    took += time + delay;
                }
            }
        }
    }

    #[test]
    fn circuits_of_any_speed_are_measured_in_seconds() {
        for rate in [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000] {
            let (rates, moved, took) = over(rate, Duration::from_millis(300));
            let near = |found: u64| found.abs_diff(rate) <= rate / 1000;
            assert!(near(rates.down) && near(rates.up), "{rates:?} at {rate}");
            assert!(moved <= rate * 30, "{moved} bytes at {rate}");
            let usual = Duration::from_secs(12)..Duration::from_secs(30);
            assert!(usual.contains(&took), "{took:?} at {rate}");
        }
    }

    #[test]
    fn a_circuit_that_is_too_fast_to_tell_ends_all_the_same() {
        let (rates, moved, _) = over(1 << 40, Duration::ZERO);
        assert_eq!(rates.slower() >> 40, 1);
        assert!(moved <= 4 * MOST);
    }

    #[test]
    fn who_is_fast_one_way_alone_is_as_slow_as_the_other() {
        let mut transfers = Transfers::default();
        loop {
            match transfers.step() {
                Step::Transfer(Direction::Down, bytes) => transfers.took(bytes, WANTED),
                Step::Transfer(Direction::Up, bytes) => transfers.took(bytes, WANTED * 8),
                Step::Done(rates) => {
                    assert!(rates.slower() * 7 < rates.down, "{rates:?}");
                    return;
                }
            }
        }
    }
}
