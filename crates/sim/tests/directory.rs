//! The directory's traffic in virtual time: small networks, over which what large ones show holds too.

use std::time::Instant;

use hoplite_sim::directory::{
    Report, Row, SYNTHETIC, Settings,
    consensuses::Consensuses,
    population::{self, Population},
    run,
};
use hoplite_wire::{
    content_coding::{Encoded, Encoding},
    tor::consensus_diff::ConsensusDiff,
};

/// 60 relays and 120 clients over eight hours.
fn small() -> Settings {
    Settings {
        relays: 60,
        clients: 120,
        hours: 8,
        every: 18,
        ..Settings::default()
    }
}

fn report(settings: &Settings) -> Report {
    run(settings, SYNTHETIC).expect("runs")
}

fn row<'a>(report: &'a Report, way: &str) -> &'a Row {
    let mut rows = report.ways.iter();
    rows.find(|row| row.way == way).expect("there")
}

#[test]
fn one_seed_gives_one_report_byte_by_byte_and_another_seed_another() {
    let texts = |settings: &Settings| {
        let report = report(settings);
        let json = serde_json::to_string(&report).expect("written");
        (json, report.to_string())
    };
    let once = texts(&small());
    assert_eq!(once, texts(&small()));
    let other = Settings { seed: 2, ..small() };
    assert_ne!(once, texts(&other));
}

#[test]
fn caches_take_the_renewals_from_the_authorities_and_differences_make_them_small() {
    let report = report(&small());
    let [alone, whole, differences] = [
        "list, authorities alone",
        "list, caches, whole",
        "list, caches, differences",
    ]
    .map(|way| row(&report, way));
    // Each renewal asks all three authorities, or the caches.
    assert!(alone.authorities_to_clients.median > 10.0 * whole.authorities_to_clients.median);
    assert!(differences.renewal.median < whole.renewal.median / 2.0);
    // The first list comes from one of the authorities, and of the others what they have signed.
    let first = report.sizes.list as f64;
    for row in [alone, whole, differences] {
        assert_eq!(row.bootstrap.n, 120);
        let more = row.bootstrap.median / first - 1.0;
        assert!((0.0..0.1).contains(&more), "{}: {more}", row.way);
    }
}

#[test]
fn of_tors_directory_clients_ask_caches_alone_and_differences_leave_their_bootstrap_as_it_is() {
    let report = report(&small());
    let whole = row(&report, "consensus, whole");
    let differences = row(&report, "consensus, differences");
    for row in [whole, differences] {
        assert_eq!(row.authorities_to_beginning_clients.max, 0.0);
        assert_eq!(row.authorities_to_clients.max, 0.0);
        assert_eq!(row.bootstrap.n, 120);
        assert!(row.renewal.n > 120);
    }
    assert_eq!(whole.bootstrap, differences.bootstrap);
    assert!(differences.renewal.median < whole.renewal.median / 2.0);
    assert!(differences.authorities_to_relays.median < whole.authorities_to_relays.median);
}

#[test]
fn who_says_a_descriptor_each_hour_makes_renewals_large() {
    let seldom = report(&small());
    let hourly = report(&Settings {
        every: 1,
        ..small()
    });
    let [seldom, hourly] = [&seldom, &hourly].map(|report| report.sizes.list_difference);
    assert!(hourly > 4 * seldom, "{seldom} and {hourly}");
}

#[test]
fn relays_that_keep_lists_are_what_costs_authorities_and_few_are_enough() {
    let few = report(&Settings {
        keep: 0.2,
        ..small()
    });
    let all = report(&small());
    assert!((5..20).contains(&few.list_caches), "{}", few.list_caches);
    assert_eq!(few.consensus_caches, all.consensus_caches);
    let way = "list, caches, differences";
    let [few, all] = [&few, &all].map(|report| row(report, way));
    assert!(few.authorities_to_relays.median < all.authorities_to_relays.median / 2.0);
    assert!(few.renewal.median < all.renewal.median * 1.5);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let wrong = [
        Settings {
            relays: 0,
            ..small()
        },
        Settings {
            authorities: 33,
            ..small()
        },
        Settings {
            hours: 1,
            ..small()
        },
        Settings {
            every: 0,
            ..small()
        },
        Settings {
            leave: 1.5,
            ..small()
        },
        Settings {
            remeasured: f64::NAN,
            ..small()
        },
    ];
    assert!(
        wrong
            .iter()
            .all(|settings| run(settings, SYNTHETIC).is_err())
    );
    assert!(run(&small(), "").is_err());
}

/// What a directory cache does with each consensus of a network of the public one's size; docs/tor.md has these figures.
#[test]
#[ignore = "a measurement, with --nocapture"]
fn differences_between_consensuses_of_ten_thousand_relays() {
    let settings = Settings {
        relays: 10_000,
        authorities: 9,
        hours: 25,
        ..Settings::default()
    };
    let members = population::sample(SYNTHETIC, settings.relays, settings.seed).expect("read");
    let population = Population::over(&members, &settings);
    let made = Consensuses::made(&population, &settings);
    let last = made.text(24);
    let megabytes = |text: &str| text.len() as f64 / 1e6;
    let deflated = |text: &str| {
        let begin = Instant::now();
        let encoded = Encoded::of(text.to_owned());
        let [zlib, ..] = encoded.parts(Encoding::Deflate);
        (zlib.len() as f64 / 1e6, begin.elapsed().as_secs_f64())
    };
    println!(
        "consensus {:.2} MB, (deflated MB, s) {:.3?}",
        megabytes(last),
        deflated(last)
    );
    let mut took = Vec::new();
    for hours in 1..=24 {
        let begin = Instant::now();
        let earlier = (&[0; 32], made.text(24 - hours));
        let diff = ConsensusDiff::make(earlier, (&[1; 32], last)).expect("made");
        took.push(begin.elapsed().as_secs_f64());
        let begin = Instant::now();
        let read = ConsensusDiff::parse(&diff).expect("read");
        assert_eq!(read.apply(earlier.1).as_deref(), Ok(last));
        let applied = begin.elapsed().as_secs_f64();
        println!(
            "{hours} hours: {:.3} MB, (deflated MB, s) {:.3?}, applied in {applied:.3} s",
            megabytes(&diff),
            deflated(&diff)
        );
    }
    took.sort_by(f64::total_cmp);
    println!(
        "made in {:.3} s (median of 24; {:.3} to {:.3})",
        took[12], took[0], took[23]
    );
}
