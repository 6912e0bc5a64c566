//! What two ends agree on, and what becomes of their datagrams and streams then.

use std::sync::Arc;

use hoplite_quic::{self as quic, Connection, ConnectionController};
use hoplite_testing::soon;
use hoplite_wire::tuning::{AckPolicy, Congestion, TuningGrant, TuningRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::pair::{End, Pair, steered, steered_by};

/// Bytes of datagrams that may wait.
const INBOX: usize = 1 << 20;
/// Above it, a congestion window is none.
const NO_WINDOW: u64 = u32::MAX as u64;

/// A client that only carries another link.
fn carrier() -> ConnectionController {
    ConnectionController::client(TuningRequest::default().for_hop(true), INBOX)
}

fn relay(no_acks: bool) -> ConnectionController {
    let grants = TuningGrant {
        no_acks,
        ..TuningGrant::default()
    };
    ConnectionController::relay(grants, INBOX)
}

/// A pair that has exchanged settings, and a flow on it.
async fn agreed(client: &ConnectionController, relay: &ConnectionController) -> (Pair, [End; 2]) {
    let pair = steered([Some(client.clone()), Some(relay.clone())]).await;
    let (near, far) = soon(pair.flow()).await;
    soon(pair.server.settings())
        .await
        .expect("the client's settings");
    (pair, [near, far])
}

fn numbered(number: u32) -> Vec<u8> {
    let mut payload = vec![7; 900];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    payload
}

/// Sends this many payloads, a few at a time, and returns those that arrived.
async fn carry(from: &End, to: &End, count: u32) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    for number in 0..count {
        assert_eq!(from.send(&numbered(number)), 1);
        arrived.extend(to.sink.take(1).await.into_iter().map(Vec::from));
    }
    arrived
}

fn acks(connection: &Connection) -> u64 {
    connection.stats().frame_tx.acks
}

#[tokio::test]
async fn ends_that_agree_carry_datagrams_without_acknowledging_them() {
    let (client, relay) = (carrier(), relay(true));
    let (pair, [near, far]) = agreed(&client, &relay).await;
    assert_eq!(client.agreed(), relay.agreed());
    assert_eq!(
        (client.agreed().up, client.agreed().down),
        (AckPolicy::NoAcks, AckPolicy::NoAcks)
    );
    let ends = [pair.client.connection(), pair.server.connection()];
    let before = ends.map(|end| (acks(end), end.stats().frame_rx.datagram));
    for (from, to) in [(&near, &far), (&far, &near)] {
        let all: Vec<_> = (0..1000).map(numbered).collect();
        assert_eq!(carry(from, to, 1000).await, all);
    }
    for (end, (acks_before, datagrams)) in ends.into_iter().zip(before) {
        let stats = end.stats();
        assert_eq!(stats.frame_rx.datagram, datagrams, "the stack sees none");
        assert!(stats.path.cwnd > NO_WINDOW);
        assert!(
            stats.frame_tx.acks - acks_before < 250,
            "{}",
            stats.frame_tx.acks
        );
    }
    let taken = [&client, &relay].map(|controller| controller.ack_controller().datagrams());
    assert_eq!(taken, [1000, 1000]);
}

#[tokio::test]
async fn a_relay_that_refuses_is_obeyed_and_the_client_knows() {
    let (client, relay) = (carrier(), relay(false));
    let (pair, [near, far]) = agreed(&client, &relay).await;
    let agreed = client.agreed();
    assert_eq!(agreed, relay.agreed());
    assert_eq!((agreed.up, agreed.down), (AckPolicy::Auto, AckPolicy::Auto));
    assert!(agreed.refused.up && agreed.refused.down && !agreed.refused.congestion);
    assert_eq!(carry(&near, &far, 200).await.len(), 200);
    assert_eq!(carry(&far, &near, 200).await.len(), 200);
    for end in [pair.client.connection(), pair.server.connection()] {
        let stats = end.stats();
        assert!(stats.frame_rx.datagram >= 200);
        assert!(stats.path.cwnd < NO_WINDOW);
    }
}

#[tokio::test]
async fn a_plain_end_is_served_as_before() {
    for plain in [0, 1] {
        let controller = [carrier(), relay(true)];
        let steered_end = controller[1 - plain].clone();
        let mut ends = controller.map(Some);
        ends[plain] = None;
        let pair = steered(ends).await;
        let (near, far) = soon(pair.flow()).await;
        soon(pair.server.settings()).await.expect("settings");
        assert_eq!(carry(&near, &far, 200).await.len(), 200);
        assert_eq!(carry(&far, &near, 200).await.len(), 200);
        assert_ne!(steered_end.ack_controller().acks(), AckPolicy::NoAcks);
        for end in [pair.client.connection(), pair.server.connection()] {
            let stats = end.stats();
            assert!(stats.frame_rx.datagram >= 200);
            assert!(stats.path.cwnd < NO_WINDOW);
        }
    }
}

#[tokio::test]
async fn a_stream_is_acknowledged_and_controlled_where_datagrams_are_not() {
    let (client, relay) = (carrier(), relay(true));
    let (pair, _flow) = agreed(&client, &relay).await;
    let ends = [
        pair.client.connection().clone(),
        pair.server.connection().clone(),
    ];
    let window = || ends.each_ref().map(|end| end.stats().path.cwnd);
    assert!(window().iter().all(|window| *window > NO_WINDOW));
    let (near, far) = pair.tunnel().await;
    let (mut near, mut far) = (near.into_stream(), far.into_stream());
    assert!(
        window().iter().all(|window| *window < NO_WINDOW),
        "{:?}",
        window()
    );
    let payload: Vec<u8> = (0..2_000_000_u32)
        .map(|at| (at % 251).to_le_bytes()[0])
        .collect();
    let mut arrived = Vec::new();
    soon(async {
        let write = async {
            near.write_all(&payload).await.expect("written");
            near.shutdown().await.expect("ended");
        };
        tokio::join!(write, async {
            far.read_to_end(&mut arrived).await.expect("read")
        })
        .1
    })
    .await;
    assert!(arrived == payload);
    assert!(acks(&ends[1]) > 3, "{}", acks(&ends[1]));
    drop((near, far));
    soon(async {
        while window().iter().any(|window| *window < NO_WINDOW) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A client whose wish is granted, and who wants a target's whole line poured over its own.
#[tokio::test]
async fn a_client_without_control_switches_it_off_for_datagrams_and_never_for_a_relays_streams() {
    let request = TuningRequest {
        congestion: Congestion::Off,
        ..TuningRequest::default()
    };
    let (client, relay) = (ConnectionController::client(request, INBOX), relay(true));
    let (pair, _flow) = agreed(&client, &relay).await;
    let is_off = || pair.server.connection().stats().path.cwnd > NO_WINDOW;
    assert!(!client.agreed().refused.congestion && is_off());
    let (near, far) = pair.tunnel().await;
    let (mut near, far) = (near.into_stream(), far.into_stream());
    assert!(!is_off(), "a stream's end controls it");
    let (mut from, mut to) = tokio::io::split(far);
    let mut got = vec![0; 1 << 20];
    let send = async { to.write_all(&vec![7; 1 << 20]).await.expect("taken") };
    let read = async { near.read_exact(&mut got).await.map(drop).expect("arrived") };
    soon(async { tokio::join!(send, read) }).await;
    assert!(!is_off());
    near.shutdown().await.expect("ended");
    soon(from.read(&mut [0])).await.expect("the end");
    drop((near, from, to));
    soon(async {
        while !is_off() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_flow_that_goes_as_capsules_is_a_stream_to_the_control() {
    let plain = |controller: &ConnectionController| {
        let mut transport = quic::TransportConfig::default();
        controller.configure_transport(&mut transport);
        transport
    };
    let (client, relay) = (carrier(), relay(true));
    // A client that takes no frames.
    let mut deaf = plain(&client);
    deaf.datagram_receive_buffer_size(None);
    let pair = steered_by(
        [Some(client), Some(relay.clone())],
        [deaf, plain(&relay)].map(Arc::new),
    )
    .await;
    let (near, far) = soon(pair.flow()).await;
    soon(pair.server.settings()).await.expect("settings");
    let is_off = || pair.server.connection().stats().path.cwnd > NO_WINDOW;
    assert!(is_off());
    assert_eq!(far.send(b"down"), 1);
    assert!(!is_off());
    near.sink.take(1).await;
}

#[tokio::test]
async fn a_stream_beside_datagrams_arrives_as_it_was_sent() {
    let (client, relay) = (carrier(), relay(true));
    let (pair, [near_flow, far_flow]) = agreed(&client, &relay).await;
    let (near, far) = pair.tunnel().await;
    let (mut near, mut far) = (near.into_stream(), far.into_stream());
    let payload: Vec<u8> = (0..20_000_000_u32)
        .map(|at| (at % 251).to_le_bytes()[0])
        .collect();
    let mut arrived = Vec::new();
    // Small ones, so that bytes of the stream fill their packets.
    let datagrams = async {
        loop {
            near_flow.send(b"small");
            far_flow.sink.take(1).await;
        }
    };
    let stream = async {
        let write = async {
            near.write_all(&payload).await.expect("written");
            near.shutdown().await.expect("ended");
        };
        tokio::join!(write, async {
            far.read_to_end(&mut arrived).await.expect("read")
        })
    };
    soon(async {
        tokio::select! {
            _ = stream => (),
            () = datagrams => (),
        }
    })
    .await;
    assert!(arrived == payload, "{} bytes", arrived.len());
}

#[tokio::test]
async fn one_direction_may_go_without_acknowledgements_and_the_other_with() {
    let (up, down) = TuningRequest::both("none-up").expect("a policy");
    let request = TuningRequest {
        up,
        down,
        ..TuningRequest::default()
    };
    let (client, relay) = (ConnectionController::client(request, INBOX), relay(true));
    let (pair, [near, far]) = agreed(&client, &relay).await;
    assert_eq!(carry(&near, &far, 300).await.len(), 300);
    assert_eq!(carry(&far, &near, 300).await.len(), 300);
    assert_eq!(relay.ack_controller().datagrams(), 300);
    assert_eq!(client.ack_controller().datagrams(), 0);
    assert!(pair.client.connection().stats().path.cwnd > NO_WINDOW);
    assert!(pair.server.connection().stats().path.cwnd < NO_WINDOW);
}

#[tokio::test]
async fn a_client_that_only_sends_datagrams_is_followed_to_another_port() {
    let (client, relay) = (carrier(), relay(true));
    let (pair, [near, far]) = agreed(&client, &relay).await;
    assert_eq!(carry(&near, &far, 50).await.len(), 50);
    let before = pair.server.connection().remote_address();
    pair.rebind();
    soon(async {
        while pair.server.connection().remote_address() == before {
            near.send(&numbered(0));
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!(carry(&far, &near, 50).await.len(), 50);
}

#[tokio::test]
async fn a_plain_relay_is_asked_by_the_extension() {
    let request = TuningRequest {
        up: AckPolicy::Extension,
        ..TuningRequest::default()
    };
    let client = ConnectionController::client(request, INBOX);
    let pair = steered([Some(client.clone()), None]).await;
    let (near, far) = soon(pair.flow()).await;
    assert_eq!(carry(&near, &far, 300).await.len(), 300);
    assert!(!client.agreed().refused.any());
    let stats = pair.server.connection().stats();
    assert!(
        stats.frame_rx.ack_frequency > 0 && stats.frame_tx.acks < 100,
        "{stats:?}"
    );
}

#[tokio::test]
async fn a_relay_that_insists_on_control_keeps_it_for_what_it_sends() {
    let (client, relay) = (carrier(), relay(true).insisting(Congestion::Cubic));
    let (pair, _flow) = agreed(&client, &relay).await;
    assert_eq!(client.agreed(), relay.agreed());
    assert!(pair.client.connection().stats().path.cwnd > NO_WINDOW);
    assert!(pair.server.connection().stats().path.cwnd < NO_WINDOW);
}

#[tokio::test]
async fn the_controller_that_a_client_chooses_runs_at_both_ends() {
    for (congestion, no_acks, off) in [
        (Congestion::Off, true, true),
        (Congestion::Off, false, false),
        (Congestion::Bbr, false, false),
    ] {
        let request = TuningRequest {
            congestion,
            ..TuningRequest::default()
        };
        let (client, relay) = (ConnectionController::client(request, INBOX), relay(no_acks));
        let (pair, _flow) = agreed(&client, &relay).await;
        assert_eq!(
            client.agreed().refused.congestion,
            congestion == Congestion::Off && !off
        );
        for end in [pair.client.connection(), pair.server.connection()] {
            assert_eq!(end.stats().path.cwnd > NO_WINDOW, off, "{congestion:?}");
        }
    }
}
