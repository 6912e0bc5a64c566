mod harness;

use std::{
    net::Ipv4Addr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use hoplite_crypto::{ALPN_H3, Certificates, Trust, server_tls};
use hoplite_overlay::{
    Direct, ErrorKind, Isolation, Reason, Terms,
    memory::{Conditions, Fault},
};
use hoplite_quic::{ConnectionController, Hooks, server::Secrets};
use hoplite_testing::identity;
use hoplite_wire::{
    Target,
    tuning::{Congestion, TuningGrant, TuningRequest},
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

use self::harness::{Bumpy, LATENCY, Lab, cold, exchange, lossy};
use crate::{Config, Dialer, Link, Peer, QuicLink, server::bind};

async fn quic(lab: &Lab) -> QuicLink {
    lab.dialer(0).quic(&Terms::default()).await.unwrap()
}

fn payload(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251).to_le_bytes()[0]).collect()
}

/// A moment, on the paused clock, in which what is under way arrives.
async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[tokio::test(start_paused = true)]
async fn a_link_over_any_overlay_carries_streams() {
    let lab = Lab::new();
    let link = quic(&lab).await;
    exchange(link.connection(), &payload(3_000_000)).await;
    assert!(link.is_alive());
    assert_eq!(lab.client_ports().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn every_congestion_controller_gets_through_loss() {
    for congestion in [
        Congestion::Cubic,
        Congestion::Bbr,
        Congestion::NewReno,
        Congestion::Off,
    ] {
        let lab = Lab::new();
        lab.network.set_conditions(Conditions {
            latency: LATENCY,
            loss: 0.02,
            ..Conditions::default()
        });
        let config = Config {
            tuning_request: TuningRequest {
                congestion,
                ..TuningRequest::default()
            },
            ..Config::default()
        };
        let dialer = Dialer::new(Arc::new(lab.overlay()), lab.peer(), 0, config);
        let link = dialer.quic(&Terms::default()).await.unwrap();
        exchange(link.connection(), &payload(300_000)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_path_that_pushes_back_loses_nothing_and_changes_no_order() {
    let lab = Lab::new();
    let path = Bumpy::new(&lab, 2);
    let dialer = Dialer::new(path.overlay, lab.peer(), 0, Config::default());
    let link = dialer.quic(&Terms::default()).await.unwrap();
    exchange(link.connection(), &payload(2_000_000)).await;
    assert_eq!(link.connection().stats().path.lost_packets, 0);
}

#[tokio::test(start_paused = true)]
async fn bulk_goes_down_in_batches_that_span_several_turns_of_the_stack() {
    let lab = Lab::new();
    let path = Bumpy::new(&lab, 0);
    let dialer = Dialer::new(Arc::clone(&path.overlay), lab.peer(), 0, Config::default());
    let link = dialer.quic(&Terms::default()).await.unwrap();
    exchange(link.connection(), &payload(5_000_000)).await;
    let longest = path.longest.load(Ordering::Relaxed);
    assert!((30..=64).contains(&longest), "{longest} datagrams");
}

#[tokio::test]
async fn a_link_reaches_a_shard_over_loopback() {
    let identity = identity("relay.example");
    let certificates = Certificates::new(&identity).unwrap();
    let tls = Arc::new(server_tls(certificates, &[ALPN_H3]).unwrap());
    let bound = bind((Ipv4Addr::LOCALHOST, 0).into(), 1, 1 << 20).unwrap();
    let address = Target::from(bound.local_addr());
    let shard = bound.into_shards().remove(0);
    let transport = Arc::new(Config::default().transport(0, 1472));
    let secrets = Secrets::generate().unwrap();
    let shard = shard
        .activate(tls, transport, &secrets, &Hooks::default())
        .unwrap();
    let serving = tokio::spawn(async move {
        let connection = shard.endpoint.accept().await.unwrap().await.unwrap();
        connection.read_datagram().await.unwrap()
    });
    let peer = Peer {
        name: "amber".into(),
        address,
        trust: Trust::Pins(vec![identity.pin()]),
    };
    let dialer = Dialer::new(Arc::new(Direct::new()), peer, 0, Config::default());
    let link = dialer.quic(&Terms::default()).await.unwrap();
    link.connection()
        .send_datagram(b"hello"[..].into())
        .unwrap();
    assert_eq!(serving.await.unwrap()[..], b"hello"[..]);
}

#[tokio::test(start_paused = true)]
async fn quic_wins_the_race_where_udp_passes() {
    let lab = Lab::new();
    let link = lab.dialer(0).race(&Terms::default()).await.unwrap();
    assert!(matches!(link, Link::Quic(_)), "{link:?}");
}

#[tokio::test(start_paused = true)]
async fn quic_keeps_its_head_start_on_a_path_that_has_to_be_made_first() {
    let lab = Lab::new();
    let stands = Instant::now() + 4 * Config::default().head_start;
    let path = cold(lab.overlay(), stands);
    let dialer = Dialer::new(Arc::new(path), lab.peer(), 1, Config::default());
    let link = dialer.race(&Terms::default()).await.unwrap();
    assert!(matches!(link, Link::Quic(_)), "{link:?}");
}

#[tokio::test(start_paused = true)]
async fn tls_wins_the_race_where_udp_is_blocked() {
    let lab = Lab::new();
    lab.network.set_fault(Fault::UdpBlocked);
    let link = lab.dialer(0).race(&Terms::default()).await.unwrap();
    let Link::Tls(link) = link else {
        unreachable!("UDP is blocked")
    };
    let mut stream = link.into_inner();
    stream.write_all(b"hello").await.unwrap();
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"hello");
}

#[tokio::test(start_paused = true)]
async fn tls_does_not_wait_once_quic_was_refused() {
    let mut lab = Lab::deserted();
    lab.serve_tls();
    let start = Instant::now();
    let link = lab.dialer(0).race(&Terms::default()).await.unwrap();
    assert!(matches!(link, Link::Tls(_)));
    assert!(start.elapsed() < Config::default().head_start);
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_not_there_is_the_entrys_fault_or_the_paths() {
    let lab = Lab::deserted();
    for (hop, kind) in [(0, ErrorKind::EntryUnreachable), (1, ErrorKind::PathFailed)] {
        for fault in [Fault::None, Fault::Silent, Fault::Down] {
            lab.network.set_fault(fault);
            let error = lab.dialer(hop).race(&Terms::default()).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{fault:?}: {error}");
            assert!(error.to_string().contains("amber"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_in_a_hurry_is_answered_in_time_by_the_overlay() {
    let lab = Lab::deserted();
    lab.network.set_fault(Fault::Silent);
    let start = Instant::now();
    let terms = Terms::default().within(Duration::from_secs(1));
    assert!(lab.dialer(0).tls(&terms).await.is_err());
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn another_relay_at_the_address_is_told_by_its_key_and_ends_the_race() {
    let mut lab = Lab::new();
    lab.pin = identity("relay.example").pin();
    let (dialer, terms) = (lab.dialer(0), Terms::default());
    let start = Instant::now();
    for error in [
        dialer.quic(&terms).await.err(),
        dialer.tls(&terms).await.err(),
        dialer.race(&terms).await.err(),
    ] {
        assert_eq!(error.unwrap().reason(), Some(Reason::Identity));
    }
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn who_answers_tcp_with_a_certificate_of_his_own_ends_no_quic_handshake_that_is_under_way() {
    let mut lab = Lab::deserted();
    lab.serve_quic();
    lab.intercept_tls();
    let until = Instant::now() + 3 * Config::default().head_start;
    let path = lossy(lab.overlay(), until);
    let dialer = Dialer::new(Arc::new(path), lab.peer(), 0, Config::default());
    let link = dialer.race(&Terms::default()).await.unwrap();
    assert!(matches!(link, Link::Quic(_)), "{link:?}");
    // Where QUIC does not come through it is told soon.
    lab.network.set_fault(Fault::UdpBlocked);
    let start = Instant::now();
    let error = lab.dialer(0).race(&Terms::default()).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Identity));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn whoever_has_the_certificate_but_not_its_key_is_told_as_well() {
    let (expected, impostor) = (rcgen_pair(), rcgen_pair());
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(impostor.signing_key.serialize_der());
    let provider = hoplite_crypto::provider();
    let key = provider.key_provider.load_private_key(key.into()).unwrap();
    let shown = CertifiedKey::new(vec![expected.cert.der().clone()], key);
    let mut tls = server_tls(
        Certificates::new(&identity("relay.example")).unwrap(),
        &[ALPN_H3],
    )
    .unwrap();
    tls.cert_resolver = Arc::new(SingleCertAndKey::from(shown));
    let pin = hoplite_crypto::Pin::of_certificate(expected.cert.der()).unwrap();
    let mut lab = Lab::with(tls, pin);
    lab.serve_quic();
    let error = lab.dialer(0).quic(&Terms::default()).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Identity), "{error:?}");
}

fn rcgen_pair() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(["relay.example".to_owned()]).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_falls_silent_is_noticed_within_seconds() {
    let lab = Lab::new();
    let link = quic(&lab).await;
    exchange(link.connection(), b"hello").await;
    lab.network.set_fault(Fault::Silent);
    let start = Instant::now();
    let (mut send, _receive) = link.connection().open_bi().await.unwrap();
    send.write_all(b"anyone?").await.unwrap();
    link.connection().closed().await;
    assert!(!link.is_alive());
    let noticed = start.elapsed();
    assert!(noticed < Duration::from_secs(8), "{noticed:?}");
}

/// Where what is held is not bounded, nothing is known of it; that it is bounded where it is known, `hoplite_quic` tests.
#[tokio::test(start_paused = true)]
async fn of_a_connection_that_is_dialled_it_is_known_what_is_held() {
    let lab = Lab::new();
    let link = quic(&lab).await;
    let (mut send, receive) = link.connection().open_bi().await.unwrap();
    send.write_all(&payload(5000)).await.unwrap();
    pause(1000).await;
    assert_eq!(receive.received().waiting(1 << 20), Some(5000));
}

/// A relay that does not acknowledge datagrams.
fn silent_lab() -> Lab {
    let mut lab = Lab::deserted();
    let controller = ConnectionController::relay(TuningGrant::default(), 1 << 20);
    controller.agree_tuning(Some(TuningRequest::default().for_hop(true).encode()));
    lab.serve_quic_with(&controller.hooks(&Config::default().hooks));
    lab
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_acknowledges_no_datagrams_is_alive_and_its_end_noticed_as_soon() {
    let lab = silent_lab();
    let link = quic(&lab).await;
    let datagram = || {
        link.connection()
            .send_datagram(vec![7; 500].into())
            .unwrap()
    };
    for gap in [5, 70, 300, 2000] {
        for _ in 0..(20_000 / gap).min(400) {
            datagram();
            pause(gap).await;
            assert!(link.is_answering(), "{gap} ms");
        }
    }
    assert_eq!(lab.client_ports().len(), 1);
    let stats = link.connection().stats();
    assert!(stats.frame_tx.immediate_ack < 20, "timers fired: {stats:?}");
    assert!(stats.frame_rx.acks < 500, "{stats:?}");
    assert_eq!(stats.path.lost_packets, 0);
    lab.network.set_fault(Fault::Silent);
    let start = Instant::now();
    while link.is_alive() {
        datagram();
        pause(20).await;
    }
    let noticed = start.elapsed();
    assert!(noticed < Duration::from_secs(8), "{noticed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_short_silence_is_outlived_from_another_port() {
    let lab = Lab::new();
    let link = quic(&lab).await;
    exchange(link.connection(), b"before").await;
    lab.network.set_fault(Fault::Silent);
    let (mut send, mut receive) = link.connection().open_bi().await.unwrap();
    send.write_all(b"still there?").await.unwrap();
    send.finish().unwrap();
    pause(2600).await;
    lab.network.set_fault(Fault::None);
    assert_eq!(receive.read_to_end(100).await.unwrap(), b"still there?");
    assert!(link.is_alive());
    assert!(lab.client_ports().len() > 1);
}

#[tokio::test(start_paused = true)]
async fn a_link_at_rest_stays_without_moving() {
    let lab = Lab::new();
    let link = quic(&lab).await;
    exchange(link.connection(), b"before").await;
    pause(30 * 60_000).await;
    exchange(link.connection(), b"after").await;
    assert!(link.is_alive());
    assert_eq!(lab.client_ports().len(), 1);
    let kept_alive = lab.network.seen().len();
    assert!(kept_alive < 600, "{kept_alive} packets");
}

#[tokio::test(start_paused = true)]
async fn links_at_rest_speak_seldom_but_often_enough_and_together() {
    let lab = Lab::new();
    let first = quic(&lab).await;
    pause(7300).await;
    let second = quic(&lab).await;
    pause(40_000).await;
    let from = Instant::now();
    pause(200_000).await;
    assert!(first.is_alive() && second.is_alive());
    let seen = lab.network.seen().into_iter();
    let sent =
        seen.filter(|seen| seen.at >= from && lab.client_ports().contains(&seen.from.port()));
    let mut sent: Vec<_> = sent
        .map(|seen| (seen.from.port(), (seen.at - from).as_millis()))
        .collect();
    sent.sort_unstable();
    assert!((14..=16).contains(&sent.len()), "{sent:?}");
    let phase = sent[0].1 % 5000;
    assert!(sent.iter().all(|(_, at)| at % 5000 == phase), "{sent:?}");
    let pairs = sent.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    for pair in pairs {
        assert_eq!(pair[1].1 - pair[0].1, 25_000);
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_that_moves_takes_its_streams_along() {
    let lab = Lab::new();
    let path = Bumpy::new(&lab, 0);
    let dialer = Dialer::new(Arc::clone(&path.overlay), lab.peer(), 0, Config::default());
    let link = dialer.quic(&Terms::default()).await.unwrap();
    let (mut send, mut receive) = link.connection().open_bi().await.unwrap();
    let mut echo = [0; 6];
    for ports in 1..4 {
        send.write_all(b"hello!").await.unwrap();
        receive.read_exact(&mut echo).await.unwrap();
        assert_eq!(lab.client_ports().len(), ports);
        path.move_away();
        pause(2500).await;
    }
    assert!(link.is_alive());
}

/// Links of isolation tokens over `path`, which have carried something and are at rest, each with this many flows.
async fn at_rest<const N: usize>(lab: &Lab, path: &Bumpy, flows: [usize; N]) -> [QuicLink; N] {
    let dialer = Dialer::new(Arc::clone(&path.overlay), lab.peer(), 1, Config::default());
    let mut links = Vec::new();
    for (token, flows) in (0..).zip(flows) {
        let terms = Terms {
            isolation: Isolation::new(vec![token]),
            ..Terms::default()
        };
        let link = dialer.quic(&terms).await.unwrap();
        exchange(link.connection(), b"before").await;
        link.flows().store(flows, Ordering::Relaxed);
        links.push(link);
        pause(3700).await;
    }
    links.try_into().unwrap()
}

/// Who saw all of them move at one moment would know which are one client's.
#[tokio::test(start_paused = true)]
async fn links_of_isolation_tokens_that_carry_nothing_move_when_they_are_used() {
    let lab = Lab::new();
    let path = Bumpy::new(&lab, 0);
    let links = at_rest(&lab, &path, [0; 4]).await;
    let before = lab.client_ports();
    path.move_away();
    pause(3000).await;
    assert_eq!(lab.client_ports().len(), 4);
    links[2].use_now();
    pause(100).await;
    assert_eq!(lab.client_ports().len(), 5);
    // The others, when each speaks to be kept alive.
    pause(30_000).await;
    let mut moves = std::collections::BTreeMap::new();
    for seen in lab.network.seen() {
        if lab.client_ports().contains(&seen.from.port()) && !before.contains(&seen.from.port()) {
            moves.entry(seen.from.port()).or_insert(seen.at);
        }
    }
    let mut at: Vec<_> = moves.into_values().collect();
    at.sort();
    assert_eq!(at.len(), 4);
    for pair in at.windows(2) {
        let apart = pair[1] - pair[0];
        assert!(apart > Duration::from_secs(1), "{apart:?}");
    }
    for link in &links {
        exchange(link.connection(), b"after").await;
    }
}

/// Its relay may have something to send.
#[tokio::test(start_paused = true)]
async fn a_link_of_an_isolation_token_whose_flows_are_at_rest_moves_soon_and_one_in_use_at_once() {
    let lab = Lab::new();
    let path = Bumpy::new(&lab, 0);
    let [resting, used] = at_rest(&lab, &path, [1, 1]).await;
    let (mut send, mut receive) = used.connection().open_bi().await.unwrap();
    let mut say = async |times| {
        for _ in 0..times {
            send.write_all(b"hello!").await.unwrap();
            receive.read_exact(&mut [0; 6]).await.unwrap();
        }
    };
    say(50).await;
    let ports = lab.client_ports().len();
    path.move_away();
    say(20).await;
    assert!(lab.client_ports().len() > ports, "the one in use");
    pause(13_000).await;
    assert_eq!(lab.client_ports().len(), ports + 2);
    assert!(resting.is_alive());
}

#[tokio::test(start_paused = true)]
async fn a_relay_whose_port_is_closed_is_not_stormed() {
    let lab = Lab::new();
    let link = quic(&lab).await;
    exchange(link.connection(), b"hello").await;
    lab.network.set_conditions(Conditions {
        latency: Duration::from_micros(100),
        ..Conditions::default()
    });
    lab.close_port();
    lab.network.forget();
    let start = Instant::now();
    let (mut send, _receive) = link.connection().open_bi().await.unwrap();
    send.write_all(b"anyone?").await.unwrap();
    link.connection().closed().await;
    let noticed = start.elapsed();
    assert!(noticed < Duration::from_secs(8), "{noticed:?}");
    let (sent, ports) = (lab.network.seen().len(), lab.client_ports().len());
    assert!(
        sent < 100 && ports < 20,
        "{sent} packets from {ports} ports"
    );
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_let_go_says_goodbye() {
    let lab = Lab::new();
    let link = quic(&lab).await;
    let connection = link.connection().clone();
    drop(link);
    connection.closed().await;
    lab.network.forget();
    pause(60_000).await;
    let after = lab.network.seen().len();
    assert!(after <= 4, "{after} packets after the end");
}
