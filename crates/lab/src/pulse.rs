//! Whether the lab itself stood still, and whether the machine's clock leapt: somebody stopped its processes, the machine slept, its clock was set.
//! What fails meanwhile is nobody's fault.
//!
//! [`Pulse`] is told the clocks at each beat, which should come in time; [`Beating`] does so on a thread of its own. A lab that has no processor for
//! a second stands still as well: from inside the two look the same, and no figure of either is one of a network.
//! Linux `clock_gettime(2)`: CLOCK_BOOTTIME goes on while the machine sleeps and is never set; CLOCK_REALTIME is set.

use std::{
    io,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::experiments::trial::EmulatorHealth;

/// The two clocks are read again, this often at most, if so much time passed between them.
const TOGETHER: i64 = 1_000_000;
const TRIES: usize = 5;

/// The machine's clocks at one moment, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Since the machine began, its sleep included.
    boot: i64,
    /// Since 1970.
    real: i64,
}

impl Moment {
    /// Now.
    pub(crate) fn now() -> Self {
        let mut tries = 0;
        loop {
            let boot = nanoseconds(ClockId::Boottime);
            let real = nanoseconds(ClockId::Realtime);
            tries += 1;
            // Who is interrupted between the two has seen no leap.
            if tries == TRIES || nanoseconds(ClockId::Boottime) - boot < TOGETHER {
                return Self { boot, real };
            }
        }
    }
}

fn nanoseconds(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec)
}

/// What beats have told so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pulse {
    interval: i64,
    last: Moment,
    stood: i64,
    leapt: i64,
}

impl Pulse {
    /// Begins; from here on beats come at least every `interval`.
    pub(crate) fn begin(interval: Duration, now: Moment) -> Self {
        Self {
            interval: i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX),
            last: now,
            stood: 0,
            leapt: 0,
        }
    }

    /// A beat. One that comes early changes nothing.
    pub(crate) fn beat(&mut self, now: Moment) {
        let passed = now.boot.saturating_sub(self.last.boot);
        let told = now.real.saturating_sub(self.last.real);
        self.stood = self.stood.max(passed.saturating_sub(self.interval));
        self.leapt = self.leapt.max(told.saturating_sub(passed).saturating_abs());
        self.last = now;
    }

    /// The longest time that a beat came late.
    pub(crate) fn stood(&self) -> Duration {
        time(self.stood)
    }

    /// The largest leap of the clock between two beats, forwards or back.
    pub(crate) fn leapt(&self) -> Duration {
        time(self.leapt)
    }

    /// Adds it to what is known of an attempt.
    pub(crate) fn tell(&self, health: &mut EmulatorHealth) {
        let milliseconds = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
        health.stood_s = health.stood_s.max(milliseconds(self.stood()));
        health.leapt_s = health.leapt_s.max(milliseconds(self.leapt()));
    }
}

fn time(nanoseconds: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}

/// A pulse on a thread of its own, which ends with its last holder.
#[derive(Clone, Debug)]
pub(crate) struct Beating(Arc<Mutex<Pulse>>);

impl Beating {
    /// Begins to beat; its thread does `first` before.
    ///
    /// # Errors
    /// The operating system's: there is no room for a thread.
    pub(crate) fn start(
        interval: Duration,
        first: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let pulse = Arc::new(Mutex::new(Pulse::begin(interval, Moment::now())));
        let held = Arc::downgrade(&pulse);
        thread::Builder::new().name("pulse".into()).spawn(move || {
            first();
            beat(interval, &held);
        })?;
        Ok(Self(pulse))
    }

    /// What was seen until now. Beats itself: who was frozen knows it at once, whichever of its threads wakes up first.
    pub(crate) fn so_far(&self) -> Pulse {
        let mut pulse = self.0.lock();
        pulse.beat(Moment::now());
        *pulse
    }
}

fn beat(interval: Duration, held: &Weak<Mutex<Pulse>>) {
    loop {
        thread::sleep(interval);
        let Some(pulse) = held.upgrade() else { return };
        let mut pulse = pulse.lock();
        pulse.beat(Moment::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(50);
    const MS: i64 = 1_000_000;

    /// A pulse whose beats come after so many milliseconds of both clocks.
    fn pulse(beats: &[(i64, i64)]) -> Pulse {
        let mut now = Moment { boot: 7, real: 9 };
        let mut pulse = Pulse::begin(INTERVAL, now);
        for (boot, real) in beats {
            now.boot += boot * MS;
            now.real += real * MS;
            pulse.beat(now);
        }
        pulse
    }

    #[test]
    fn a_lab_whose_beats_come_in_time_stands_never_still() {
        let pulse = pulse(&[(50, 50), (3, 3), (0, 0), (47, 47)]);
        assert_eq!(
            (pulse.stood(), pulse.leapt()),
            (Duration::ZERO, Duration::ZERO)
        );
    }

    #[test]
    fn the_longest_time_without_a_beat_is_told_beyond_that_of_a_beat() {
        let pulse = pulse(&[(50, 50), (3050, 3050), (60, 60)]);
        assert_eq!(pulse.stood(), Duration::from_secs(3));
        assert_eq!(pulse.leapt(), Duration::ZERO);
    }

    #[test]
    fn a_clock_that_is_set_leaps_forwards_or_back_and_nothing_stands_still() {
        for leap in [2000, -2000] {
            let pulse = pulse(&[(50, 50), (50, 50 + leap), (50, 51)]);
            assert_eq!(pulse.leapt(), Duration::from_secs(2), "{leap}");
            assert_eq!(pulse.stood(), Duration::ZERO);
        }
    }

    #[test]
    fn what_is_known_of_an_attempt_is_only_ever_worse() {
        let mut health = EmulatorHealth {
            stood_s: 1.0,
            ..EmulatorHealth::default()
        };
        pulse(&[(550, 2550)]).tell(&mut health);
        assert_eq!((health.stood_s, health.leapt_s), (1.0, 2.0));
    }

    #[test]
    fn clocks_that_go_together_show_no_leap() {
        let beating = Beating::start(Duration::from_secs(3600), || {}).unwrap();
        let pulse = (0..1000).fold(beating.so_far(), |_, _| beating.so_far());
        assert!(pulse.leapt() < Duration::from_secs(1), "{pulse:?}");
        assert_eq!(pulse.stood(), Duration::ZERO);
    }
}
