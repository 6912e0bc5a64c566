//! Traces made by hand with the formulas of proposal 324 §3.3, and those that C tor tests itself with.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Fills the window, and acknowledges the oldest cells with this round trip.
fn round(vegas: &mut Vegas, rtt: Duration) -> u32 {
    while vegas.may_send() {
        vegas.sent();
    }
    vegas.acknowledged(rtt, false);
    vegas.window()
}

#[test]
fn slow_start_grows_by_what_was_acknowledged_up_to_the_cap() {
    let mut vegas = Vegas::new(Parameters::default());
    let mut expected = 124;
    // 124 + 16 * 31 = 620 is the first above the cap of 600.
    for _ in 0..16 {
        expected += 31;
        assert_eq!(round(&mut vegas, ms(100)), expected);
    }
    // RFC 3742: (31 * 600 + 620) / (2 * 620) = 15, then (18600 + 635) / 1270 = 15, (18600 + 650) / 1300 = 14.
    assert_eq!(round(&mut vegas, ms(100)), 635);
    assert_eq!(round(&mut vegas, ms(100)), 650);
    assert_eq!(round(&mut vegas, ms(100)), 664);
    assert!(vegas.slow_start);
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut vegas = Vegas::new(Parameters::default());
    for _ in 0..10 {
        round(&mut vegas, ms(100));
    }
    let before = vegas.window();
    vegas.inflight = 31;
    vegas.full = false;
    vegas.acknowledged(ms(100), false);
    assert_eq!(vegas.window(), before);
}

#[test]
fn a_queue_ends_slow_start_at_gamma_above_what_the_path_holds() {
    let mut vegas = Vegas::new(Parameters::default());
    for _ in 0..12 {
        round(&mut vegas, ms(100));
    }
    assert_eq!(vegas.window(), 496);
    // (2 * 200 + 100) / 3 = 166.666 ms; BDP = 496 * 100 / 166.666 = 297; queue 199 >= 186: 297 + 186.
    assert_eq!(round(&mut vegas, ms(200)), 483);
    assert!(!vegas.slow_start);
}

#[test]
fn a_blocked_channel_is_a_signal_of_congestion() {
    let mut vegas = Vegas::new(Parameters::default());
    round(&mut vegas, ms(100));
    vegas.acknowledged(ms(100), true);
    // BDP = 155 without a queue, + 186.
    assert_eq!((vegas.window(), vegas.slow_start), (341, false));
}

/// A circuit out of slow start whose window may change with the next SENDME, and whose path holds `bdp` of it.
fn steady(window: u32, rtt: u64, least: u64) -> Vegas {
    let mut vegas = Vegas::new(Parameters::default());
    // One sample forgets what was: the smoothed round trip is the sample.
    let phase = Phase {
        slow_start: true,
        at_floor: false,
        samples: 1,
    };
    vegas.rtt.sample(ms(least), phase);
    vegas.rtt.sample(ms(rtt), phase);
    vegas.window = window;
    vegas.slow_start = false;
    vegas.next_change = 1;
    vegas.inflight = window;
    vegas
}

#[test]
fn steady_state_steps_up_below_alpha_and_down_above_beta() {
    // queue = 1000 - 900 = 100 < 186
    let mut vegas = steady(1000, 100, 90);
    vegas.acknowledged(ms(100), false);
    assert_eq!(vegas.window(), 1001);
    // queue = 1000 - 800 = 200: neither
    let mut vegas = steady(1000, 100, 80);
    vegas.acknowledged(ms(100), false);
    assert_eq!(vegas.window(), 1000);
    // queue = 1000 - 740 = 260 > 248
    let mut vegas = steady(1000, 100, 74);
    vegas.acknowledged(ms(100), false);
    assert_eq!(vegas.window(), 999);
    // queue = 1000 - 500 = 500 > 310: 500 + 310 - 1
    let mut vegas = steady(1000, 100, 50);
    vegas.acknowledged(ms(100), false);
    assert_eq!(vegas.window(), 809);
}

#[test]
fn steady_state_grows_by_thirty_one_cells_in_a_window() {
    let mut vegas = steady(1922, 100, 95);
    // (1922 + 480) / 961 = 2 SENDMEs for each step, 1922 / 31 = 62 in a window.
    vegas.next_change = 2;
    for step in 1..=31 {
        assert_eq!(round(&mut vegas, ms(100)), 1921 + step);
        assert_eq!(round(&mut vegas, ms(100)), 1922 + step);
    }
}

#[test]
fn a_channel_that_blocks_and_one_that_does_no_more_change_the_window_at_once() {
    let mut vegas = steady(4000, 100, 100);
    vegas.next_change = 4;
    vegas.acknowledged(ms(100), true);
    assert_eq!(vegas.window(), 3999);
    vegas.acknowledged(ms(100), true);
    assert_eq!(vegas.window(), 3999, "still blocked: once in a while");
    vegas.inflight = vegas.window;
    vegas.acknowledged(ms(100), false);
    assert_eq!(vegas.window(), 4000);
}

/// When the cell left and when its SENDME came (microseconds), whether the channel was blocked, and the cells under way; then the window, whether
/// it is slow start still, and whether the window is full.
type Trace = (u64, u64, bool, u32, u32, bool, bool);

fn replay(trace: &[Trace]) {
    let mut vegas = Vegas::new(Parameters::default());
    for (row, (sent, came, blocked, inflight, window, slow_start, full)) in trace.iter().enumerate()
    {
        vegas.inflight = *inflight;
        vegas.blocked = *blocked;
        vegas.acknowledged(Duration::from_micros(came - sent), *blocked);
        let found = (vegas.window, vegas.slow_start, vegas.full);
        assert_eq!(found, (*window, *slow_start, *full), "row {row}");
    }
}

#[test]
fn the_window_goes_as_that_of_c_tor_through_slow_start_and_every_signal() {
    replay(&[
        (100_000, 200_000, false, 124, 155, true, false),
        (200_000, 300_000, false, 155, 186, true, true),
        (350_000, 500_000, false, 186, 217, true, true),
        (500_000, 550_000, false, 217, 248, true, true),
        (600_000, 700_000, false, 248, 279, true, true),
        (700_000, 750_000, false, 279, 310, true, false),
        (750_000, 875_000, false, 310, 341, true, true),
        (875_000, 900_000, false, 341, 372, true, true),
        (900_000, 950_000, false, 279, 403, true, true),
        (950_000, 1_000_000, false, 279, 434, true, true),
        (1_000_000, 1_050_000, false, 279, 465, true, true),
        (1_050_000, 1_100_000, false, 279, 496, true, true),
        (1_100_000, 1_150_000, false, 279, 527, true, true),
        (1_150_000, 1_200_000, false, 279, 558, true, true),
        (1_200_000, 1_250_000, false, 550, 589, true, true),
        (1_250_000, 1_300_000, false, 550, 620, true, false),
        (1_300_000, 1_350_000, false, 550, 635, true, true),
        (1_350_000, 1_400_000, false, 550, 650, true, true),
        (1_400_000, 1_450_000, false, 150, 650, true, false),
        (1_450_000, 1_500_000, false, 150, 650, true, false),
        (1_500_000, 1_550_000, false, 550, 664, true, true),
        (1_500_000, 1_600_000, false, 550, 584, false, true),
        (1_600_000, 1_650_000, false, 550, 585, false, true),
        (1_650_000, 1_700_000, false, 550, 586, false, true),
        (1_700_000, 1_750_000, false, 100, 586, false, false),
        (1_750_000, 1_900_000, false, 100, 559, false, false),
        (1_900_000, 2_000_000, false, 100, 558, false, false),
        (2_000_000, 2_075_000, false, 500, 558, false, true),
        (2_075_000, 2_125_000, true, 500, 557, false, true),
        (2_125_000, 2_150_000, false, 500, 558, false, true),
        (2_150_000, 2_350_000, false, 500, 451, false, true),
    ]);
}

#[test]
fn the_window_goes_as_that_of_c_tor_where_the_channel_blocks() {
    replay(&[
        (100_000, 200_000, false, 124, 155, true, false),
        (200_000, 300_000, false, 155, 186, true, true),
        (350_000, 500_000, false, 186, 217, true, true),
        (500_000, 550_000, true, 217, 403, false, true),
        (600_000, 700_000, false, 248, 404, false, true),
        (700_000, 750_000, true, 404, 403, false, false),
        (750_000, 875_000, false, 403, 404, false, true),
    ]);
}

#[test]
fn the_window_goes_as_that_of_c_tor_over_a_long_path() {
    replay(&[
        (358_297_091, 358_854_163, false, 83, 155, true, false),
        (358_297_649, 359_123_845, false, 52, 186, true, true),
        (359_492_879, 359_995_330, false, 186, 217, true, true),
        (359_493_043, 360_489_243, false, 217, 248, true, true),
        (359_493_232, 360_489_673, false, 248, 279, true, true),
        (359_493_795, 360_489_971, false, 279, 310, true, false),
        (359_493_918, 360_490_248, false, 310, 341, true, true),
        (359_494_029, 360_716_465, false, 341, 372, true, true),
        (359_996_888, 360_948_867, false, 372, 403, true, true),
        (359_996_979, 360_949_330, false, 403, 434, true, true),
        (360_489_528, 361_113_615, false, 434, 465, true, true),
        (360_489_656, 361_281_604, false, 465, 496, true, true),
        (360_489_837, 361_500_461, false, 496, 482, false, true),
        (360_489_963, 361_500_631, false, 482, 482, false, true),
        (360_490_117, 361_842_481, false, 482, 481, false, true),
    ]);
}

#[test]
fn the_window_never_falls_below_its_floor() {
    let mut vegas = steady(130, 1000, 1);
    vegas.next_change = 0;
    vegas.acknowledged(ms(1000), true);
    assert!(vegas.window() >= 124);
}

#[test]
fn slow_start_ends_at_its_most() {
    let parameters = Parameters {
        slow_start_cap: 100_000,
        ..Parameters::default()
    };
    let mut vegas = Vegas::new(parameters);
    for _ in 0..1000 {
        if !vegas.slow_start {
            break;
        }
        round(&mut vegas, ms(10));
    }
    assert_eq!((vegas.window(), vegas.slow_start), (5000, false));
}

/// A path that passes one cell after the other, and queues what comes too fast.
struct Path {
    vegas: Vegas,
    round_trip: Duration,
    each: Duration,
    now: Duration,
    busy_until: Duration,
    /// For each SENDME that is to come: when it does, and when its cell left.
    awaited: VecDeque<(Duration, Duration)>,
    sent: u32,
}

impl Path {
    fn new(vegas: Vegas, round_trip: Duration, cells_per_second: u32) -> Self {
        Self {
            vegas,
            round_trip,
            each: Duration::from_secs(1) / cells_per_second,
            now: Duration::ZERO,
            busy_until: Duration::ZERO,
            awaited: VecDeque::new(),
            sent: 0,
        }
    }

    /// Sends all that the window allows, until then.
    fn run(&mut self, until: Duration) {
        while self.now < until {
            while self.vegas.may_send() {
                self.vegas.sent();
                self.sent += 1;
                self.busy_until = self.busy_until.max(self.now) + self.each;
                if self.sent.is_multiple_of(31) {
                    let comes = self.busy_until + self.round_trip;
                    self.awaited.push_back((comes, self.now));
                }
            }
            let (comes, left) = self.awaited.pop_front().expect("under way");
            self.now = comes;
            self.vegas.acknowledged(comes - left, false);
        }
    }
}

fn with_backpressure() -> Vegas {
    let mut vegas = Vegas::new(Parameters::default());
    vegas.set_backpressure();
    vegas
}

#[test]
fn with_backpressure_a_long_fat_path_is_filled_and_little_queues() {
    // 160 Mbit/s, 200 ms.
    const HOLDS: u32 = 8000;
    let mut path = Path::new(with_backpressure(), ms(200), 40_000);
    while path.vegas.slow_start {
        let next = path.now + ms(1);
        path.run(next);
    }
    assert!(path.now < ms(2500), "{:?}", path.now);
    let window = path.vegas.window();
    assert!((HOLDS..=HOLDS + HOLDS / 2).contains(&window), "{window}");
    for second in 4..60 {
        path.run(Duration::from_secs(second));
        let window = path.vegas.window();
        assert!((HOLDS..HOLDS + HOLDS / 8).contains(&window), "{window}");
    }
    // By C tor's rules it takes longer.
    let mut path = Path::new(Vegas::new(Parameters::default()), ms(200), 40_000);
    path.run(Duration::from_secs(10));
    assert!(path.vegas.window() < 7000, "{}", path.vegas.window());
}

#[test]
fn with_backpressure_a_short_or_slow_path_has_c_tors_queue() {
    for (round_trip, cells_per_second) in [(20, 2_700), (100, 24_000), (200, 2_000)] {
        let holds = u32::try_from(round_trip).expect("short") * cells_per_second / 1000;
        for vegas in [with_backpressure(), Vegas::new(Parameters::default())] {
            let mut path = Path::new(vegas, ms(round_trip), cells_per_second);
            for second in 20..40 {
                path.run(Duration::from_secs(second));
                let queued = path.vegas.window().saturating_sub(holds);
                assert!((60..=310).contains(&queued), "{queued} of {holds}");
            }
        }
    }
}

#[test]
fn with_backpressure_the_window_falls_once_for_what_queued_before() {
    let mut vegas = steady(8000, 150, 100);
    vegas.set_backpressure();
    vegas.acknowledged(ms(150), false);
    // BDP = 8000 * 100 / 150 = 5333; queue 2667 > 310 + (333 - 186): 5333 + 457.
    assert_eq!(vegas.window(), 5790);
    // 8000 cells had left before, 258 SENDMEs.
    for _ in 1..258 {
        assert_eq!(round(&mut vegas, ms(150)), 5790);
    }
    for _ in 0..184 {
        assert_eq!(round(&mut vegas, ms(100)), 5790);
    }
    // No queue: 31 and 5790 / 16 - 186 more.
    assert_eq!(round(&mut vegas, ms(100)), 5790 + 31 + 175);
}

#[test]
fn with_backpressure_what_is_late_is_no_queue_as_long_as_something_is_not() {
    let mut vegas = steady(8000, 100, 100);
    vegas.set_backpressure();
    for late in [true, false] {
        let before = vegas.window();
        for n in 0..1000 {
            let rtt = if late && n % 100 > 0 { 200 } else { 100 };
            assert!(round(&mut vegas, ms(rtt)) >= before);
        }
    }
}

#[test]
fn with_backpressure_what_is_late_again_and_again_does_not_hold_slow_start_back_for_long() {
    let mut vegas = with_backpressure();
    for n in 0..3000 {
        let rtt = if n % 50 < 10 { 200 } else { 100 };
        round(&mut vegas, ms(rtt));
    }
    assert!(vegas.window() > 5000, "{}", vegas.window());
}

#[test]
fn with_backpressure_a_channel_that_blocks_makes_no_window_wider() {
    let mut vegas = with_backpressure();
    while vegas.window() < 2000 {
        round(&mut vegas, ms(100));
    }
    let before = vegas.window();
    vegas.acknowledged(ms(100), true);
    assert_eq!((vegas.window(), vegas.slow_start), (before, false));
    // It blocks on: 31 cells less once in a round trip.
    for _ in 0..200 {
        while vegas.may_send() {
            vegas.sent();
        }
        vegas.acknowledged(ms(100), true);
    }
    assert!(
        (before - 3 * 31..before).contains(&vegas.window()),
        "{}",
        vegas.window()
    );
}

#[test]
fn with_backpressure_slow_start_ends_at_the_largest() {
    let mut vegas = with_backpressure();
    for _ in 0..2000 {
        round(&mut vegas, ms(100));
    }
    assert_eq!((vegas.window(), vegas.slow_start), (LARGEST, false));
    for _ in 0..2000 {
        round(&mut vegas, ms(200));
    }
    assert!(vegas.window() < LARGEST * 3 / 4, "{}", vegas.window());
}

#[test]
fn with_backpressure_slow_start_goes_on_if_the_queue_that_ended_it_is_gone() {
    let mut vegas = with_backpressure();
    while vegas.window() < 2000 {
        round(&mut vegas, ms(100));
    }
    while vegas.slow_start {
        round(&mut vegas, ms(200));
    }
    let ended_at = vegas.window();
    let again = (0..1000).find(|_| {
        round(&mut vegas, ms(100));
        vegas.slow_start
    });
    assert!(again.is_some());
    let resumed_at = vegas.window();
    assert!(resumed_at > ended_at + 31, "{resumed_at} {ended_at}");
    assert_eq!(round(&mut vegas, ms(100)), resumed_at + 31);
    // What stays ends it.
    while vegas.slow_start {
        round(&mut vegas, ms(200));
    }
    for _ in 0..1000 {
        round(&mut vegas, ms(200));
        assert!(!vegas.slow_start);
    }
}

#[test]
fn with_backpressure_a_window_that_is_not_used_does_not_grow_as_slow_start_ends_and_goes_on() {
    let mut vegas = with_backpressure();
    while vegas.window() < 1000 {
        round(&mut vegas, ms(100));
    }
    while vegas.inflight > 31 {
        vegas.acknowledged(ms(100), false);
    }
    // A SENDME's worth at a time, of which one in twenty is late.
    let mut use_little = || {
        for number in 0..1000 {
            for _ in 0..31 {
                vegas.sent();
            }
            let late = number % 20 == 0;
            vegas.acknowledged(ms(if late { 200 } else { 100 }), false);
        }
        vegas.window()
    };
    let before = use_little();
    let after = use_little();
    assert!(after <= before, "{before} {after}");
}

proptest! {
    #[test]
    fn whatever_the_round_trips_the_window_stays_within_bounds(
        rtts in proptest::collection::vec((0u64..10_000_000, any::<bool>(), any::<bool>()), 1..400),
        backpressure in any::<bool>(),
    ) {
        let mut vegas = Vegas::new(Parameters::default());
        if backpressure {
            vegas.set_backpressure();
        }
        for (micros, blocked, fill) in rtts {
            while fill && vegas.may_send() {
                vegas.sent();
            }
            vegas.acknowledged(Duration::from_micros(micros), blocked);
            prop_assert!(vegas.window() >= 124, "{}", vegas.window());
            prop_assert!(vegas.window() < 20_000, "{}", vegas.window());
            prop_assert!(vegas.inflight <= vegas.window().max(20_000));
        }
    }
}

#[test]
fn a_window_that_is_always_filled_and_never_queues_stops_at_the_largest() {
    let mut vegas = Vegas::new(Parameters::default());
    let grown = (0..3_000_000).find(|_| round(&mut vegas, ms(100)) == LARGEST);
    assert!(grown.is_some(), "{}", vegas.window());
    for _ in 0..1000 {
        assert_eq!(round(&mut vegas, ms(100)), LARGEST);
    }
}
