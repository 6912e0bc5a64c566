//! Whole networks in virtual time. Small ones, and small fetches: what is looked at is the same as in large ones.

use std::{sync::Arc, time::Duration};

use hoplite_channel::How;
use hoplite_sim::{
    Failed, Settings, Traffic,
    report::{self, Summary},
    report::{Fetch, Outcome},
    run,
};

const BOTH: [How; 2] = [How::Quic, How::Tls];

/// Five relays, ten clients, a virtual minute.
fn small(channel: How) -> Settings {
    Settings {
        relays: 5,
        clients: 10,
        targets: 2,
        time: Duration::from_secs(60),
        warm_up: Duration::from_secs(10),
        channel,
        traffic: Traffic {
            bulk: 0.2,
            web_bytes: 20_000,
            web_pause: Duration::from_secs(10),
            bulk_bytes: 200_000,
            bulk_pause: Duration::from_secs(10),
            ..Traffic::default()
        },
        ..Settings::default()
    }
}

fn outcome(settings: &Settings) -> Outcome {
    let outcome = run(settings, &Arc::default()).expect("runs");
    assert!(outcome.ledger.is_balanced(), "{:?}", outcome.ledger);
    outcome
}

fn files(settings: &Settings) -> [(&'static str, String); 4] {
    report::files(&outcome(settings)).expect("written")
}

fn ended<'a>(outcome: &'a Outcome, how: &'a str) -> impl Iterator<Item = &'a Fetch> {
    let fetches = outcome.fetches.iter();
    fetches.filter(move |fetch| fetch.end == Some(how))
}

#[test]
fn one_seed_gives_one_outcome_byte_by_byte_and_another_seed_another() {
    for channel in BOTH {
        let lossy = Settings {
            loss: 0.01,
            ..small(channel)
        };
        let first = files(&lossy);
        for ((name, once), (_, again)) in first.iter().zip(files(&lossy)) {
            assert!(
                *once == again,
                "{channel:?}: {name} differs:\n{once}\n{again}"
            );
        }
        let other = Settings { seed: 2, ..lossy };
        assert_ne!(first[1], files(&other)[1]);
    }
}

#[test]
fn all_that_clients_fetch_comes_whole() {
    for channel in BOTH {
        let outcome = outcome(&small(channel));
        let done: Vec<_> = ended(&outcome, "done").collect();
        assert!(done.len() >= 20, "{done:?}");
        assert!(done.iter().all(|fetch| fetch.bytes == fetch.wanted));
        assert!(
            done.iter()
                .all(|fetch| fetch.opened < fetch.first && fetch.first <= fetch.last)
        );
        let left = outcome.fetches.iter().filter(|fetch| fetch.end.is_none());
        assert_eq!(
            done.len() + left.count(),
            outcome.fetches.len(),
            "{channel:?}"
        );
        assert!(outcome.builds.iter().all(|build| build.took.is_some()));
        assert_eq!(outcome.ledger.lost.packets, 0);
    }
}

#[test]
fn fetches_go_on_when_a_relay_goes_and_what_was_sent_to_it_is_accounted_for() {
    let minute = Duration::from_secs(60);
    for channel in BOTH {
        let settings = Settings {
            relays: 9,
            kills: vec![(1, minute)],
            time: 3 * minute,
            ..small(channel)
        };
        let outcome = outcome(&settings);
        assert!(outcome.ledger.no_host.packets > 0, "{channel:?}");
        let later = |fetch: &&Fetch| fetch.begun > minute + Duration::from_secs(15);
        let later = ended(&outcome, "done").filter(later).count();
        assert!(later >= 20, "{channel:?}: {later} of {:?}", outcome.fetches);
    }
}

/// The mean time of the fetches of three networks, and how many packets were lost in each at least.
fn of_three(settings: &Settings) -> (Duration, u64) {
    let outcomes = [1, 2, 3].map(|seed| {
        outcome(&Settings {
            seed,
            ..settings.clone()
        })
    });
    let done = outcomes.iter().flat_map(|outcome| ended(outcome, "done"));
    let times: Vec<_> = done
        .filter_map(|fetch| Some(fetch.last? - fetch.begun))
        .collect();
    let mean = times.iter().sum::<Duration>() / u32::try_from(times.len()).expect("few");
    let lost = outcomes.iter().map(|outcome| outcome.ledger.lost.packets);
    (mean, lost.min().expect("three"))
}

#[test]
fn what_is_lost_is_sent_again_and_delays_who_waits_for_it() {
    for channel in BOTH {
        let lossy = Settings {
            loss: 0.03,
            ..small(channel)
        };
        let spared = Settings {
            lossless_targets: true,
            ..lossy.clone()
        };
        let [lossy, spared, clean] = [&lossy, &spared, &small(channel)].map(of_three);
        assert!(lossy.1 > 100 && spared.1 > 100);
        let means = [lossy, spared, clean].map(|(mean, _)| mean);
        assert!(
            means.is_sorted_by(|more, less| more > less),
            "{channel:?}: {means:?}"
        );
    }
}

/// Over QUIC slow start is not limited, as each relay holds the one before it back.
#[test]
fn much_comes_sooner_over_quic_where_nothing_is_lost() {
    let [quic, tls] = BOTH.map(|channel| {
        of_three(&Settings {
            relays: 3,
            clients: 1,
            targets: 1,
            traffic: Traffic {
                bulk: 1.0,
                bulk_bytes: 10_000_000,
                ..small(channel).traffic
            },
            ..small(channel)
        })
        .0
    });
    assert!(quic < tls * 17 / 20, "{quic:?} {tls:?}");
}

#[test]
fn settings_that_make_no_network_are_refused() {
    let hops = Settings {
        hops: 6,
        ..small(How::Quic)
    };
    let loss = Settings {
        loss: 1.5,
        ..small(How::Quic)
    };
    for wrong in [hops, loss] {
        let refused = run(&wrong, &Arc::default()).map(drop);
        assert!(matches!(refused, Err(Failed::Wrong(_))));
    }
}

#[test]
#[ignore = "a minute without optimisation: cargo test --release -p hoplite-sim -- --ignored"]
fn forty_relays_carry_a_hundred_clients_without_a_stall() {
    for channel in BOTH {
        let settings = Settings {
            time: Duration::from_secs(180),
            channel,
            ..Settings::default()
        };
        let summary = Summary::of(&outcome(&settings));
        for fetches in summary.fetches {
            assert_eq!(
                (fetches.failed, fetches.stalled),
                (0, 0),
                "{channel:?}: {fetches:?}"
            );
        }
    }
}
