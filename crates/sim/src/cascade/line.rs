//! A link between two neighbours: in each direction a rate, a queue that drops the newest, and a delay.

use std::time::{Duration, Instant};

use super::Settings;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the client.
    Up,
    /// To the client.
    Down,
}

/// What an IPv4 and a UDP header take of a packet, in bytes.
pub(super) const UDP_HEADERS: usize = 28;

/// Both directions.
#[derive(Debug)]
pub(super) struct Line {
    delay: Duration,
    up: Bottleneck,
    down: Bottleneck,
    half_duplex: bool,
}

#[derive(Debug)]
struct Bottleneck {
    /// Bits a second; 0: no limit.
    rate: u64,
    /// Bytes that may wait.
    queue: u64,
    free: Instant,
    dropped: u64,
}

impl Line {
    /// The client's.
    pub(super) fn access(settings: &Settings, delay: Duration, now: Instant) -> Self {
        let round_trip = 2.0 * settings.delay.as_secs_f64();
        let bottleneck = |rate| Bottleneck {
            rate,
            queue: queue(rate, round_trip * settings.queue),
            free: now,
            dropped: 0,
        };
        Self {
            delay,
            up: bottleneck(settings.up),
            down: bottleneck(settings.down),
            half_duplex: settings.half_duplex,
        }
    }

    /// One without a limit.
    pub(super) fn free(delay: Duration, now: Instant) -> Self {
        let endless = || Bottleneck {
            rate: 0,
            queue: 0,
            free: now,
            dropped: 0,
        };
        Self {
            delay,
            up: endless(),
            down: endless(),
            half_duplex: false,
        }
    }

    /// When a UDP payload of this size that is sent now arrives; `None`: there is no room for it.
    pub(super) fn send(&mut self, now: Instant, way: Way, payload: usize) -> Option<Instant> {
        let other = match way {
            Way::Up => self.down.free,
            Way::Down => self.up.free,
        };
        let line = match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        };
        let size = u64::try_from(payload.saturating_add(UDP_HEADERS)).unwrap_or(u64::MAX);
        let free = if self.half_duplex {
            line.free.max(other)
        } else {
            line.free
        };
        Some(line.pass(now, free, size)? + self.delay)
    }

    /// How many packets found no room.
    pub(super) const fn dropped(&self) -> (u64, u64) {
        (self.up.dropped, self.down.dropped)
    }
}

impl Bottleneck {
    /// When the last of these bytes has left.
    fn pass(&mut self, now: Instant, free: Instant, size: u64) -> Option<Instant> {
        if self.rate == 0 {
            return Some(now);
        }
        let waits = free.saturating_duration_since(now);
        if self.carried(waits).saturating_add(size) > self.queue {
            self.dropped += 1;
            return None;
        }
        let nanos = u128::from(size) * 8_000_000_000 / u128::from(self.rate);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.free = free.max(now) + takes;
        Some(self.free)
    }

    /// The bytes that leave within a time.
    fn carried(&self, time: Duration) -> u64 {
        let bytes = time.as_nanos() * u128::from(self.rate) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The bytes that a line of this rate carries in some seconds; room for two large packets at least.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a queue's size needs no more digits, and the cast saturates"
)]
fn queue(rate: u64, seconds: f64) -> u64 {
    ((rate as f64 * seconds / 8.0) as u64).max(3000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(half_duplex: bool) -> (Line, Instant) {
        let now = Instant::now();
        let settings = Settings {
            half_duplex,
            ..Settings::default()
        };
        (Line::access(&settings, Duration::from_millis(5), now), now)
    }

    #[test]
    fn packets_leave_one_after_the_other_and_the_newest_finds_no_room() {
        let (mut line, now) = line(false);
        // 1250 bytes with headers take a millisecond of 10 Mbit/s; 1.5 × 50 ms of it are 93,750 bytes.
        for packet in 1..=75 {
            let arrives = line.send(now, Way::Down, 1222).unwrap();
            assert_eq!(arrives - now, Duration::from_millis(packet + 5));
        }
        assert_eq!(line.send(now, Way::Down, 1222), None);
        let later = now + Duration::from_millis(1);
        assert!(line.send(later, Way::Down, 1222).is_some());
        assert_eq!(line.dropped(), (0, 1));
        assert!(
            line.send(now, Way::Up, 1222).is_some(),
            "the other way is free"
        );
    }

    #[test]
    fn in_the_air_one_way_waits_for_the_other() {
        let (mut line, now) = line(true);
        for packet in [1, 2, 3] {
            let way = [Way::Up, Way::Down][packet % 2];
            let arrives = line.send(now, way, 1222).unwrap();
            let takes = Duration::from_millis(u64::try_from(packet).unwrap() + 5);
            assert_eq!(arrives - now, takes);
        }
    }
}
