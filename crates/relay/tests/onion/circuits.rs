//! Circuits that come about, and what they carry.

use hoplite_channel::How;
use hoplite_overlay::{ErrorKind, Overlay, Reason, Terms};
use hoplite_relay::config::LinkKind;
use hoplite_testing::{relay::number, soon, targets};

use crate::support::{client, echoes, known, path, relay, relays, token};

const MEBIBYTE: usize = 1 << 20;

#[tokio::test]
async fn a_circuit_of_three_relays_carries_data_both_ways_over_quic() {
    let relays: [_; 3] = relays(How::Quic);
    let onion = client(path(&relays), How::Quic);
    echoes(&onion, &Terms::default(), 2 * MEBIBYTE).await;
    for relay in &relays {
        assert_eq!(
            number(
                relay,
                "hoplite_relay_onion_circuits_total{what=\"created\"}"
            ),
            1
        );
    }
}

#[tokio::test]
async fn a_circuit_of_three_relays_carries_data_both_ways_over_tls() {
    let relays: [_; 3] = relays(How::Tls);
    let onion = client(path(&relays), How::Tls);
    echoes(&onion, &Terms::default(), 2 * MEBIBYTE).await;
}

#[tokio::test]
async fn a_channel_is_quic_where_both_ends_have_it_and_tls_elsewhere() {
    let first = relay(|_| ());
    let second = relay(|config| config.onion.channels = vec![LinkKind::Tls]);
    let third = relay(|config| config.onion.channels = vec![LinkKind::Tls]);
    let onion = client(path([&first, &second, &third]), How::Raced);
    echoes(&onion, &Terms::default(), MEBIBYTE).await;
    let incoming = |relay, over| {
        let name = format!("hoplite_relay_onion_channels_in_open{{transport=\"{over}\"}}");
        number(relay, &name)
    };
    assert_eq!((incoming(&first, "quic"), incoming(&first, "tls")), (1, 0));
    assert_eq!(
        (incoming(&second, "quic"), incoming(&second, "tls")),
        (0, 1)
    );
    assert_eq!((incoming(&third, "quic"), incoming(&third, "tls")), (0, 1));
}

#[tokio::test]
async fn a_path_may_have_one_relay_or_eight() {
    let one = relay(|_| ());
    echoes(&client(path([&one]), How::Quic), &Terms::default(), 1000).await;
    let eight: [_; 8] = relays(How::Quic);
    echoes(&client(path(&eight), How::Quic), &Terms::default(), 100_000).await;
}

#[tokio::test]
async fn a_hundred_circuits_share_one_channel_between_two_relays() {
    for how in [How::Quic, How::Tls] {
        let relays: [_; 3] = relays(how);
        for relay in &relays {
            assert_eq!(number(relay, "hoplite_relay_onion_circuits_open"), 0);
        }
        hundred(&relays, how).await;
    }
}

async fn hundred(relays: &[hoplite_relay::Handle; 3], how: How) {
    // Two clients: a client alone may have 64 circuits on its channel.
    let clients = [0, 1].map(|_| std::sync::Arc::new(client(path(relays), how)));
    let target = targets::tcp_echo().await;
    let mut circuits = tokio::task::JoinSet::new();
    for n in 0..100 {
        let onion = clients[n % 2].clone();
        let terms = token(u32::try_from(n).expect("small"));
        circuits.spawn(async move {
            let opened = crate::support::open(&onion, target, &terms).await;
            crate::support::echo(opened.expect("opens"), 20_000).await;
        });
    }
    let all = soon(circuits.join_all()).await;
    assert_eq!(all.len(), 100);
    for relay in relays {
        assert_eq!(number(relay, "hoplite_relay_onion_circuits_open"), 100);
    }
    let channels = |relay| number(relay, "hoplite_relay_onion_relay_channels_open");
    assert_eq!(relays.each_ref().map(channels), [1, 2, 1]);
}

#[tokio::test]
async fn a_channel_that_came_in_is_used_to_extend_back_over_it() {
    let relays: [_; 2] = relays(How::Quic);
    let there = client(path(&relays), How::Quic);
    echoes(&there, &Terms::default(), 1000).await;
    let [first, second] = &relays;
    let back = client(vec![known("r2", second), known("r1", first)], How::Quic);
    echoes(&back, &Terms::default(), 1000).await;
    for relay in &relays {
        let channels = number(relay, "hoplite_relay_onion_relay_channels_open");
        assert_eq!(channels, 1, "one channel for the pair");
    }
    let incoming = "hoplite_relay_onion_channels_in_open{transport=\"quic\"}";
    let came = [first, second].map(|relay| number(relay, incoming));
    assert_eq!(
        came,
        [1, 2],
        "a client each, and the first relay at the second"
    );
}

#[tokio::test]
async fn names_are_resolved_by_the_last_relay() {
    let relays: [_; 3] = relays(How::Quic);
    let onion = client(path(&relays), How::Quic);
    let terms = Terms::default();
    let found = soon(onion.resolve("localhost", &terms))
        .await
        .expect("there");
    assert!(
        found.iter().all(|ip| ip.is_loopback()) && !found.is_empty(),
        "{found:?}"
    );
    let none = soon(onion.resolve("nobody.invalid", &terms)).await;
    let none = none.expect_err("no such name");
    assert_eq!(none.reason(), Some(Reason::NameNotFound), "{none}");
    let port = targets::tcp_echo().await.port();
    let target = format!("localhost:{port}").parse().expect("a target");
    let stream = soon(onion.open_stream(&target, &terms))
        .await
        .expect("opens");
    crate::support::echo(stream, 1000).await;
}

#[tokio::test]
async fn a_relay_whose_operator_wants_no_udp_in_circuits_carries_none() {
    let only = relay(|config| config.onion.udp = false);
    // The client believes that it carries UDP.
    let onion = client(path([&only]), How::Quic);
    let target = "127.0.0.1:53".parse().expect("a target");
    let asked = soon(onion.open_datagrams(&target, &Terms::default())).await;
    assert_eq!(asked.expect_err("none").kind(), ErrorKind::Forbidden);
}

/// Cells that a relay has passed forth and back, taken and made.
fn cells(relay: &hoplite_relay::Handle) -> [u64; 4] {
    ["passed_forth", "passed_back", "taken", "made"]
        .map(|what| format!("hoplite_relay_onion_cells_total{{what=\"{what}\"}}"))
        .map(|name| number(relay, &name))
}

#[tokio::test]
async fn every_cell_is_counted_where_it_passes_and_where_it_ends() {
    let relays: [_; 3] = relays(How::Quic);
    let onion = client(path(&relays), How::Quic);
    echoes(&onion, &Terms::default(), 100_000).await;
    // The last ones are still on their way.
    let rested = soon(async {
        loop {
            let [first, second, third] = relays.each_ref().map(cells);
            let forth = first[0] == second[0] + second[2] && second[0] == third[2];
            let back = first[1] == second[1] + second[3] && second[1] == third[3];
            if forth && back {
                return [first, second, third];
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    });
    let [first, second, third] = rested.await;
    // EXTEND2 and EXTENDED2.
    assert_eq!((&first[2..], &second[2..]), (&[1, 1][..], &[1, 1][..]));
    assert_eq!(third[..2], [0, 0]);
    // 498 bytes each at most, and not many more cells than are needed.
    assert!((201..1000).contains(&third[2]), "{third:?}");
    assert!((201..1000).contains(&third[3]), "{third:?}");
}
