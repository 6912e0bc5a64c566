//! A relay loses its power under load. Its network is small, so that most circuits cross it.

use std::{sync::Arc, time::Duration};

use hoplite_channel::How;
use hoplite_sim::{
    Settings, Traffic,
    report::Outcome,
    report::{self, Figures},
    run,
};

const RELAYS: usize = 6;
const CLIENTS: usize = 10;
const KILLED: Duration = Duration::from_secs(20);

/// Each client fetches nearly all the time.
fn busy(killed: usize) -> Settings {
    Settings {
        relays: RELAYS,
        clients: CLIENTS,
        targets: 2,
        time: Duration::from_secs(70),
        warm_up: Duration::from_secs(10),
        channel: How::Quic,
        kills: vec![(killed, KILLED)],
        traffic: Traffic {
            bulk: 0.2,
            web_bytes: 20_000,
            web_pause: Duration::from_secs(3),
            bulk_bytes: 200_000,
            bulk_pause: Duration::from_secs(3),
            ..Traffic::default()
        },
        ..Settings::default()
    }
}

fn outcome(settings: &Settings) -> Outcome {
    run(settings, &Arc::default()).expect("runs")
}

fn outages(outcome: &Outcome) -> impl Iterator<Item = f64> {
    (0..CLIENTS).map(|client| outcome.outage(client, KILLED).as_secs_f64())
}

#[test]
fn whichever_relay_goes_clients_have_service_again_within_twenty_seconds() {
    let mut all = Vec::new();
    for killed in 0..RELAYS {
        all.extend(outages(&outcome(&busy(killed))));
    }
    let figures = Figures::of(all.into_iter());
    assert!(figures.median <= 8.0 && figures.max <= 20.0, "{figures:?}");
}

#[test]
fn the_same_relay_goes_twice_with_one_seed_and_one_outcome() {
    let files = || report::files(&outcome(&busy(1))).expect("written");
    assert!(files() == files());
}
