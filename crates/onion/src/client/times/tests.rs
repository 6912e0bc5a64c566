//! Samples whose distribution is known, from fixed seeds.

use proptest::prelude::*;

use super::*;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn times() -> BuildTimes {
    BuildTimes::new(ms(100), ms(60_000))
}

/// Numbers from 0 to 1.
fn shares(seed: u64) -> impl FnMut() -> f64 {
    let mut bits = hoplite_testing::seeded(seed);
    move || f64::from(u32::try_from(bits() >> 32).expect("half of it")) / 4_294_967_296.0
}

/// A build time that is distributed so.
fn pareto(scale: f64, shape: f64, share: f64) -> Duration {
    Duration::from_secs_f64(scale * (1.0 - share).powf(-1.0 / shape))
}

/// A network whose circuits take `draw`: each is built, or late and measured.
fn run(times: &mut BuildTimes, circuits: usize, mut draw: impl FnMut() -> Duration) -> usize {
    let mut late = 0;
    for _ in 0..circuits {
        let took = draw();
        if took <= times.limit() {
            times.built(took);
            continue;
        }
        late += 1;
        times.late();
        times.measured((took <= times.patience()).then_some(took));
    }
    late
}

#[test]
fn at_first_there_is_all_the_time() {
    let mut times = times();
    (1..MIN_CIRCUITS).for_each(|_| times.built(ms(10)));
    assert_eq!((times.limit(), times.patience()), (ms(60_000), ms(60_000)));
    times.built(ms(10));
    assert_eq!(times.limit(), ms(100), "never less than the least");
}

#[test]
fn four_of_five_are_built_in_time_once_the_distribution_is_learnt() {
    for seed in 1..=5 {
        let (mut times, mut random) = (times(), shares(seed));
        run(&mut times, 1000, || pareto(0.3, 2.0, random()));
        // Of those that follow, one in five is late, within five standard deviations of 2000 and what the fit is off.
        let late = run(&mut times, 2000, || pareto(0.3, 2.0, random()));
        assert!((250..550).contains(&late), "seed {seed}: {late} of 2000");
    }
}

#[test]
fn what_is_late_is_measured_and_so_not_forgotten() {
    let (mut times, mut random) = (times(), shares(9));
    // One in four crosses the ocean: without the late ones only the near would be learnt, and the limit would creep to them.
    run(&mut times, 3000, || {
        if random() < 0.25 {
            ms(900) + ms(200).mul_f64(random())
        } else {
            ms(200) + ms(100).mul_f64(random())
        }
    });
    assert!(times.limit() > ms(300), "{:?}", times.limit());
    assert!(times.limit() < ms(1200), "{:?}", times.limit());
}

#[test]
fn circuits_that_never_come_lengthen_the_tail_and_not_the_limit_beyond_the_longest() {
    let (mut with, mut without) = (times(), times());
    for n in 0..400u64 {
        let took = ms(500 + n);
        with.built(took);
        without.built(took);
        if n % 4 == 0 {
            with.measured(None);
        }
    }
    assert!(with.limit() > without.limit());
    assert!(with.limit() <= ms(899));
}

#[test]
fn a_network_that_changed_is_learnt_anew() {
    let mut times = times();
    (0..100).for_each(|_| times.built(ms(200)));
    let learnt = times.limit();
    assert!(learnt < ms(300));
    (0..MAX_TIMEOUTS).for_each(|_| times.late());
    assert_eq!(times.limit(), learnt, "one more is needed");
    times.late();
    assert_eq!(times.limit(), ms(60_000));
}

proptest! {
    #[test]
    fn the_limit_stays_within_bounds(
        took in proptest::collection::vec((0u64..200_000, 0..3u8), 0..300),
    ) {
        let mut times = BuildTimes::new(ms(1500), ms(60_000));
        for (took, what) in took {
            match what {
                0 => times.built(ms(took)),
                1 => times.measured(Some(ms(took))),
                _ => times.measured(None),
            }
            prop_assert!(times.limit() >= ms(1500) && times.limit() <= ms(60_000));
            prop_assert!(times.patience() >= ms(60_000));
            prop_assert!(times.times.len() <= MAX_TIMES && times.recent.len() <= RECENT_COUNT);
        }
    }
}
