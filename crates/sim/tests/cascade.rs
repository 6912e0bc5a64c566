//! Tunnels in tunnels, in virtual time: what paper 001 says of acknowledgements, and that `auto` is no worse than what a user could fix.

use std::time::Duration;

use hoplite_sim::cascade::{Failed, Outcome, Policy, Settings, Transfer, run};
use hoplite_wire::tuning::Congestion;

fn with(acks: &str, settings: &Settings) -> Outcome {
    let policy = Policy::named(acks, Congestion::Auto).expect("a policy");
    run(&Settings {
        policy,
        ..settings.clone()
    })
    .expect("a transfer that ends")
}

#[test]
fn one_seed_gives_one_outcome_and_another_seed_another() {
    let seeded = |seed| {
        let settings = Settings {
            hops: 2,
            bytes: 300_000,
            loss: 0.01,
            seed,
            ..Settings::default()
        };
        with("naive", &settings)
    };
    assert_eq!(seeded(1), seeded(1));
    assert_ne!(seeded(1), seeded(2));
}

#[test]
fn the_direct_way_has_no_overhead_and_takes_what_its_line_takes() {
    let direct = with(
        "auto",
        &Settings {
            hops: 0,
            ..Settings::default()
        },
    );
    // 2 MB in packets of 1480 bytes with some 1420 of them in each: 1.67 s at 10 Mbit/s, after two round trips of 50 ms and slow start.
    assert!((1.75..2.0).contains(&direct.ttlb_s), "{direct:?}");
    assert_eq!((direct.ack_share, direct.ack_frames_per_packet), (0.0, 0.0));
    assert!(direct.overhead_share.abs() < 0.001, "{direct:?}");
}

#[test]
fn acknowledgements_of_acknowledgements_grow_with_each_hop_as_the_paper_counts_them() {
    let naive = [1, 2, 4].map(|hops| {
        let settings = Settings {
            hops,
            bytes: 1_000_000,
            ..Settings::default()
        };
        with("naive", &settings)
    });
    // A large packet takes 1.2 ms of this line: after a millisecond each has an acknowledgement of its own, f₁(1) = 2 for one tunnel, less the
    // end-to-end connection's, which are for two. In further tunnels frames share packets.
    for (seen, frames) in naive.iter().zip([1.0..1.8, 2.0..4.0, 5.0..8.0]) {
        let some = frames.contains(&seen.ack_frames_per_packet);
        assert!(some, "{frames:?}: {seen:?}");
    }
    assert!(naive.is_sorted_by(|one, next| one.ack_share < next.ack_share));
    let [.., four] = naive;
    assert!((0.10..0.18).contains(&four.ack_share), "13 %: {four:?}");
    assert!(four.ack_share_up > 10.0 * four.ack_share_down, "{four:?}");
}

#[test]
fn an_acknowledgement_for_every_second_packet_is_about_what_the_theory_says() {
    let settings = Settings {
        hops: 1,
        ..Settings::default()
    };
    let frames = with("default", &settings).ack_frames_per_packet;
    // And some that ride in packets which are sent anyway.
    assert!((0.7..1.1).contains(&frames), "f₂(1) = 0.75: {frames}");
}

#[test]
fn late_acknowledgements_save_what_the_paper_says_where_both_directions_share_the_line() {
    let saved = |half_duplex| {
        let settings = Settings {
            half_duplex,
            ..Settings::default()
        };
        with("naive", &settings).ttlb_s - with("0.25rtt", &settings).ttlb_s
    };
    let (apart, shared) = (saved(false), saved(true));
    assert!((0.0..0.05).contains(&apart), "{apart}");
    assert!((0.07..0.2).contains(&shared), "{shared}");
}

#[test]
fn late_acknowledgements_make_senders_of_tunnels_believe_little_more_lost() {
    let lost = |acks| with(acks, &Settings::default()).lost_in_tunnels_share;
    let naive = lost("naive");
    for late in ["0.25rtt", "1rtt", "none"] {
        let more = lost(late) - naive;
        assert!(more < 0.026, "the paper's most is 2.6 %: {late} has {more}");
    }
}

#[test]
fn auto_is_no_slower_than_any_fixed_delay_and_hardly_dearer() {
    let networks = [
        (2, 10_000_000, 2_000_000, 25, Transfer::Download),
        (2, 10_000_000, 2_000_000, 25, Transfer::Upload),
        (2, 10_000_000, 2_000_000, 25, Transfer::Stream),
        (4, 10_000_000, 2_000_000, 25, Transfer::Download),
        (1, 50_000_000, 4_000_000, 10, Transfer::Stream),
        (3, 2_000_000, 500_000, 100, Transfer::Download),
    ];
    for (hops, rate, bytes, delay, transfer) in networks {
        let settings = Settings {
            hops,
            down: rate,
            up: rate,
            delay: Duration::from_millis(delay),
            bytes,
            transfer,
            ..Settings::default()
        };
        let auto = with("auto", &settings);
        for fixed in ["naive", "default", "0.25rtt", "1rtt"] {
            let other = with(fixed, &settings);
            let slower = auto.ttlb_s / other.ttlb_s;
            assert!(slower < 1.005, "{fixed} in {settings:?}: {slower}");
            let dearer = auto.ack_share / other.ack_share;
            let counts = transfer != Transfer::Stream;
            assert!(
                !counts || dearer < 1.15,
                "{fixed} in {settings:?}: {dearer}"
            );
        }
    }
}

#[test]
fn what_is_no_cascade_is_refused() {
    for wrong in [
        Settings {
            hops: 5,
            ..Settings::default()
        },
        Settings {
            hops: 0,
            transfer: Transfer::Stream,
            ..Settings::default()
        },
        Settings {
            loss: 1.0,
            ..Settings::default()
        },
        Settings {
            queue: 0.0,
            ..Settings::default()
        },
        Settings {
            bytes: 0,
            ..Settings::default()
        },
    ] {
        assert!(matches!(run(&wrong), Err(Failed::Wrong(_))), "{wrong:?}");
    }
}
