use hoplite_wire::tor::extra_info::Told;

use super::{noise::tests::seeded, *};

const NOW: u64 = 1_795_737_600;
const DAY: u64 = 86_400;

const SCOPE: Scope = Scope {
    period: DAY,
    circuits: true,
    exit: true,
    services: true,
    hsdir: true,
    padding: true,
    directory: true,
};

fn exits(streams: u64, read: u64, written: u64) -> Vec<(Option<u16>, PortTotals)> {
    let totals = PortTotals {
        streams,
        read,
        written,
    };
    vec![(Some(443), totals), (None, PortTotals::default())]
}

/// A relay with some traffic, and what its next period brings.
fn totals() -> Totals {
    Totals {
        read: 50 << 30,
        written: 50 << 30,
        circuits: 40_000,
        exits: exits(90_000, 20 << 30, 2 << 30),
        rendezvous_cells: 500_000,
        padding_read: 300_000,
        padding_written: 310_000,
        consensuses: 900,
        descriptors_exhausted: 0,
        overloads: 0,
    }
}

fn recorder(scope: Scope) -> Recorder {
    Recorder::new(scope, RelayState::default(), 0, NOW, Totals::default())
}

/// What is told of a period with these totals.
fn told(totals: Totals, onions: u64, seed: u64) -> Statistics {
    let mut recorder = recorder(SCOPE);
    recorder.used(Directions {
        below: 500_000,
        read: 4000,
        written: 5000,
        both: 6000,
    });
    assert!(recorder.is_over(DAY) && !recorder.is_over(DAY - 1));
    assert!(recorder.end((DAY, NOW + DAY), totals, onions, &mut seeded(seed)));
    recorder.said(NOW + DAY).statistics
}

#[test]
fn a_period_is_told_with_all_its_figures_near_what_they_were() {
    let told = told(totals(), 320, 1);
    let near = |figure: u64, right: u64, noise: Noise| {
        let off = figure.abs_diff(right);
        assert!(
            off < 20 * noise.scale() + noise.bin_size,
            "{figure} for {right}"
        );
        assert_eq!(figure % noise.bin_size, 0, "{figure}");
    };
    let last = |history: Option<History>| history.expect("a history").bytes[0];
    near(last(told.read), 50 << 30, BYTES);
    near(last(told.written), 50 << 30, BYTES);
    let (interval, circuits) = told.circuits.expect("circuits");
    assert_eq!((interval.end, interval.length), (NOW + DAY, DAY));
    near(circuits, 40_000, CIRCUITS);
    near(
        told.directions.expect("channels").1.below,
        500_000,
        CHANNELS,
    );
    let exit = told.exit.expect("an exit");
    assert_eq!(exit.streams.len(), 2, "ports that nobody asked for too");
    near(exit.streams[0].1, 90_000, EXIT_STREAMS);
    near(exit.kibibytes_read[0].1 * KIB, 20 << 30, EXIT_BYTES);
    let services = told.onion_services.expect("services");
    let seen = services.onions_seen.expect("services").value;
    assert!((320 - 540..320 + 540).contains(&seen), "{seen}");
    near(
        told.directory.expect("a cache").consensuses,
        900,
        CONSENSUSES,
    );
    near(told.padding.expect("padding").written, 310_000, PADDING);
}

#[test]
fn nothing_that_is_kept_or_told_is_exact() {
    // Of thirty periods with the same traffic no figure is the true one more often than chance has it, nor always the same.
    let all: Vec<Statistics> = (0..30).map(|seed| told(totals(), 320, seed)).collect();
    let figures: [fn(&Statistics) -> u64; 6] = [
        |told| told.read.as_ref().map_or(0, |history| history.bytes[0]),
        |told| told.circuits.map_or(0, |(_, count)| count),
        |told| told.directions.map_or(0, |(_, used)| used.both),
        |told| told.exit.as_ref().map_or(0, |exit| exit.streams[0].1),
        |told| {
            told.exit
                .as_ref()
                .map_or(0, |exit| exit.kibibytes_written[0].1)
        },
        |told| told.padding.map_or(0, |padding| padding.read),
    ];
    for (number, figure) in figures.iter().enumerate() {
        let mut found: Vec<u64> = all.iter().map(figure).collect();
        found.sort_unstable();
        found.dedup();
        assert!(found.len() > 5, "figure {number}: {found:?}");
    }
    let exact = [
        "40000",
        "90000",
        "300000",
        "310000",
        "500000",
        "53687091200",
    ];
    let exact_in = |told: &Statistics| {
        let mut text = String::new();
        told.write(&mut text);
        let words = text.split([' ', ',', '=', '\n']);
        words.filter(|word| exact.contains(word)).count()
    };
    let often: usize = all.iter().map(exact_in).sum();
    assert!(often <= 6, "{often} exact figures in thirty periods");
}

/// How often each figure is told.
fn frequencies(of: impl Fn(u64) -> u64, seeds: std::ops::Range<u64>) -> Vec<(u64, f64)> {
    let all = (seeds.end - seeds.start) as f64;
    let mut told: Vec<u64> = seeds.map(of).collect();
    told.sort_unstable();
    let runs = told.chunk_by(|a, b| a == b);
    runs.map(|run| (run[0], run.len() as f64 / all)).collect()
}

/// The largest logarithm of the ratio of what is likely enough to be counted.
fn furthest(one: &[(u64, f64)], other: &[(u64, f64)]) -> f64 {
    let pairs = one.iter().filter_map(|(figure, share)| {
        let other = other.iter().find(|(told, _)| told == figure)?.1;
        (share.min(other) > 0.002).then(|| (share / other).ln().abs())
    });
    pairs.fold(0.0, f64::max)
}

#[test]
fn a_day_with_one_person_more_looks_like_one_without() {
    // In steps so wide that each is told often.
    const STEP: u64 = 2000;
    let told = |circuits: u64| {
        move |seed: u64| {
            let totals = Totals {
                circuits,
                ..Totals::default()
            };
            let (_, told) = told(totals, 0, seed).circuits.expect("circuits");
            told / STEP
        }
    };
    let (without, with) = (20_000, 20_000 + CIRCUITS_PER_CLIENT);
    let without = frequencies(told(without), 0..12_000);
    let with = frequencies(told(with), 12_000..24_000);
    // The budget, and what chance adds at this many.
    let found = furthest(&without, &with);
    assert!(found < 0.30 + 0.35, "{found}");
    // Twenty persons can be told from none.
    let many = frequencies(told(20_000 + 20 * CIRCUITS_PER_CLIENT), 24_000..36_000);
    assert!(furthest(&without, &many) > 1.5);
}

#[test]
fn histories_go_on_where_a_period_follows_another() {
    let mut recorder = recorder(SCOPE);
    let mut random = seeded(3);
    for day in 1..=7 {
        let at = day * DAY;
        recorder.end((at, NOW + at), totals(), 0, &mut random);
    }
    let history = recorder
        .said(NOW + 7 * DAY)
        .statistics
        .read
        .expect("a history");
    assert_eq!(
        (history.bytes.len(), history.last.end),
        (INTERVALS, NOW + 7 * DAY)
    );
    // After a restart that took a while, the old ones do not belong to it.
    let kept = recorder.kept(NOW + 7 * DAY);
    let again = Recorder::new(SCOPE, kept, 0, NOW + 7 * DAY + 3600, Totals::default());
    let said = again.said(NOW + 7 * DAY + 3600);
    assert_eq!(
        said.statistics
            .read
            .as_ref()
            .map(|history| history.bytes.len()),
        Some(5)
    );
    let mut again = again;
    again.end(
        (DAY, NOW + 8 * DAY + 3600),
        Totals::default(),
        0,
        &mut random,
    );
    let history = again
        .said(NOW + 8 * DAY + 3600)
        .statistics
        .read
        .expect("a history");
    assert_eq!(history.bytes.len(), 1);
}

#[test]
fn what_is_kept_is_there_after_a_restart_and_gone_after_a_week() {
    let mut recorder = recorder(SCOPE);
    for second in 0..30 {
        let bytes = second << 20;
        let totals = Totals {
            read: bytes,
            written: bytes,
            ..Totals::default()
        };
        recorder.take(second, NOW + second, &totals);
    }
    recorder.end((DAY, NOW + DAY), totals(), 9, &mut seeded(4));
    let said = recorder.said(NOW + DAY);
    let kept = RelayState::parse(&recorder.kept(NOW + DAY).write()).expect("read");
    let again = Recorder::new(SCOPE, kept.clone(), 0, NOW + DAY, Totals::default());
    let restarted = again.said(NOW + DAY);
    assert_eq!(
        (restarted.rate, &restarted.statistics),
        (said.rate, &said.statistics)
    );
    assert_eq!(restarted.rate, 1 << 20);
    let late = Recorder::new(SCOPE, kept, 0, NOW + 9 * DAY, Totals::default());
    assert_eq!(late.said(NOW + 9 * DAY).statistics, Statistics::default());
}

#[test]
fn without_randomness_a_period_is_lost_and_not_told() {
    let mut recorder = recorder(SCOPE);
    assert!(!recorder.end((DAY, NOW + DAY), totals(), 9, &mut || None));
    assert_eq!(recorder.said(NOW + DAY).statistics, Statistics::default());
    assert!(!recorder.is_over(DAY + 1), "the next has begun");
}

#[test]
fn figures_follow_from_what_a_relay_is_and_not_from_what_is_done() {
    let nothing = told(Totals::default(), 0, 7);
    assert!(nothing.exit.is_some() && nothing.onion_services.is_some());
    let mut middle = recorder(Scope {
        exit: false,
        hsdir: false,
        directory: false,
        ..SCOPE
    });
    middle.end((DAY, NOW + DAY), totals(), 5, &mut seeded(8));
    let told = middle.said(NOW + DAY).statistics;
    assert!(told.exit.is_none() && told.directory.is_none());
    assert_eq!(told.onion_services.and_then(|told| told.onions_seen), None);
}

#[test]
fn each_figure_says_how_it_is_hidden() {
    let told = told(totals(), 3, 9);
    let mut text = String::from(
        "extra-info amber 0000000000000000000000000000000000000000\npublished 2026-11-27 00:00:00\n",
    );
    told.write(&mut text);
    let told = Told::parse(&text).expect("read").statistics;
    let lines = text.lines().skip(2).filter_map(|line| line.split_once(' '));
    for (keyword, _) in lines {
        let says_itself = keyword.starts_with("hidserv-") || keyword.ends_with("-stats-end");
        let named = told.noise.iter().any(|(name, _)| name == keyword);
        assert!(
            says_itself || named || keyword == "hoplite-noise",
            "{keyword}"
        );
    }
}

#[test]
fn rounding_makes_no_change_of_onion_services_larger() {
    for noise in [RENDEZVOUS_CELLS, ONIONS] {
        assert!(noise.delta_f.is_multiple_of(noise.bin_size));
    }
}

#[test]
fn a_bandwidth_that_has_doubled_is_told_at_once_but_not_all_the_time() {
    let mut recorder = recorder(SCOPE);
    let mut bytes = 0;
    let mut editions = Vec::new();
    for second in 0..4 * 3600 {
        bytes += 1 << (10 + second / 600);
        let totals = Totals {
            read: bytes,
            written: bytes,
            ..Totals::default()
        };
        recorder.take(second, NOW + second, &totals);
        editions.push(recorder.said(NOW + second).edition);
    }
    assert_eq!(editions[3 * 3600 - 1], 0);
    assert_eq!(editions.last(), Some(&1));
}

#[test]
fn a_relay_claims_no_more_than_it_has_borne_out_after_a_day() {
    let said = |rate, has_whole_day| Said {
        rate,
        has_whole_day,
        ..Said::default()
    };
    // A new one in a new network: what the operator says is all that there is.
    assert_eq!(said(0, false).declared(12_500_000), 12_500_000);
    assert_eq!(said(0, false).observed(12_500_000), 100_000);
    assert_eq!(said(0, false).observed(5000), 5000);
    // A small network that nobody fills keeps its weights up to a megabyte.
    assert_eq!(said(10, true).declared(500_000), 500_000);
    assert_eq!(said(10, true).declared(12_500_000), 1_000_000);
    // One that has carried an eighth of it bears out all.
    assert_eq!(said(1_600_000, true).declared(12_500_000), 12_500_000);
    assert_eq!(said(800_000, true).declared(12_500_000), 6_400_000);
    assert_eq!(said(800_000, true).observed(12_500_000), 800_000);
}

#[test]
fn what_there_was_too_little_of_is_told_for_three_days_by_the_hour() {
    let descriptors = Totals {
        descriptors_exhausted: 1,
        ..Totals::default()
    };
    let room = Totals {
        overloads: 1,
        ..Totals::default()
    };
    for (totals, of_all) in [(descriptors, false), (room, true)] {
        let mut recorder = recorder(SCOPE);
        recorder.take(100, NOW + 4000, &totals);
        let told = |now| {
            let said = recorder.said(now);
            (said.statistics.descriptors_exhausted, said.overloaded)
        };
        let hour = Some(NOW + 3600);
        let expected = if of_all { (None, hour) } else { (hour, None) };
        assert_eq!(told(NOW + 4000), expected);
        assert_eq!(told(NOW + 3600 + OVERLOADED), (None, None));
    }
}
