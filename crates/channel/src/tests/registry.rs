//! One channel for each pair of relays.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use hoplite_crypto::onion::identity::RelayIdentity;
use hoplite_overlay::{Overlay, Reason, Terms};
use hoplite_testing::soon;
use hoplite_wire::{Target, cell::Command};
use tokio::{task::JoinSet, time::Instant};

use super::harness::{CLIENT, RELAY, SECRET, World, bytes, cell, circuit, ed25519, now, relay};
use crate::{Channels, Config, FAILED_DIAL_TTL, How, Whom, handshake::Us};

/// The registry of another relay, and how many channels it dialled.
fn channels(world: &World) -> (Channels, Arc<AtomicUsize>) {
    let dialled = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&dialled);
    let channels = Channels::new(world.dialer(relay(1)), move |_| {
        count.fetch_add(1, Relaxed);
    });
    (channels, dialled)
}

#[tokio::test(start_paused = true)]
async fn callers_at_the_same_time_share_one_dial_and_later_ones_its_channel() {
    let world = World::new(Config::default());
    let (channels, dialled) = channels(&world);
    let (whom, terms) = (world.whom(), Terms::default());
    let got = join_all((0..20).map(|_| channels.get(&whom, How::Quic, &terms)));
    let got: Vec<_> = soon(got).await.into_iter().map(Result::unwrap).collect();
    let later = soon(channels.get(&whom, How::Raced, &terms)).await.unwrap();
    assert!(got.iter().all(|channel| channel.is_same(&later)));
    assert_eq!((dialled.load(Relaxed), channels.len()), (1, 1));
    world.served().await.unwrap();
    let another = tokio::time::timeout(Duration::from_secs(5), world.served());
    assert!(another.await.is_err(), "it was dialled once");
}

#[tokio::test(start_paused = true)]
async fn a_dial_goes_on_when_the_caller_that_began_it_gives_up() {
    let world = World::new(Config::default());
    let (channels, _) = channels(&world);
    let (whom, terms) = (world.whom(), Terms::default());
    let impatient = channels.get(&whom, How::Tls, &terms);
    let given_up = tokio::time::timeout(Duration::from_millis(1), impatient).await;
    assert!(given_up.is_err());
    soon(channels.get(&whom, How::Tls, &terms)).await.unwrap();
    assert_eq!(channels.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_dial_is_told_to_all_who_waited_and_the_next_caller_dials_again() {
    let world = World::new(Config::default());
    let (channels, _) = channels(&world);
    let (mut whom, terms) = (world.whom(), Terms::default());
    whom.identity = Some([7; 32]);
    for attempt in 1..=2 {
        let refused = join_all((0..5).map(|_| channels.get(&whom, How::Quic, &terms)));
        for refused in soon(refused).await {
            assert_eq!(refused.unwrap_err().reason(), Some(Reason::Identity));
        }
        assert_eq!((world.here.refused.get(), channels.len()), (attempt, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_ended_is_dialled_again() {
    let world = World::new(Config::default());
    let (channels, dialled) = channels(&world);
    let (whom, terms) = (world.whom(), Terms::default());
    let first = soon(channels.get(&whom, How::Quic, &terms)).await.unwrap();
    first.close();
    let second = soon(channels.get(&whom, How::Quic, &terms)).await.unwrap();
    assert!(second.is_open() && !second.is_same(&first));
    assert_eq!(dialled.load(Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_the_peer_dialled_is_used_where_it_is_canonical() {
    let world = World::new(Config::default());
    let (_near, far) = world.pair(How::Quic).await;
    let (channels, dialled) = channels(&world);
    channels.add(&far);
    let mut whom = world.whom();
    whom.identity = Some(ed25519(&relay(1)));
    // It says that it is at another address than the one that it came from.
    whom.address = Target::from(SocketAddr::from((CLIENT, 443)));
    let got = soon(channels.get(&whom, How::Quic, &Terms::default())).await;
    assert!(got.unwrap().is_same(&far), "it came from there");
    for address in [RELAY.ip(), IpAddr::from([203, 0, 113, 77])] {
        whom.address = Target::from(SocketAddr::from((address, 443)));
        let got = soon(channels.get(&whom, How::Quic, &Terms::default())).await;
        assert!(got.is_err(), "the channel does not go there: it is dialled");
    }
    assert_eq!(dialled.load(Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_dials_from_where_it_says_that_it_is_serves_all_its_addresses() {
    let world = World::new(Config::default());
    let us = Us {
        addresses: vec![CLIENT],
        ..relay(1)
    };
    let (_near, far) = world.pair_as(us, How::Tls).await;
    assert!(far.is_canonical(CLIENT) && far.is_canonical(IpAddr::from([203, 0, 113, 77])));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_clients() {
    let world = World::new(Config::default());
    let (_near, far) = world.pair_as(Default::default(), How::Tls).await;
    let (channels, _) = channels(&world);
    channels.add(&far);
    assert!(channels.is_empty());
}

#[tokio::test(start_paused = true)]
async fn channels_without_circuits_are_closed_after_a_while_and_others_are_not() {
    let world = World::new(Config::default());
    let (channels, _) = channels(&world);
    let (whom, terms) = (world.whom(), Terms::default());
    let near = soon(channels.get(&whom, How::Quic, &terms)).await.unwrap();
    let far = world.served().await.unwrap();
    let pair = circuit(&near, &far).await;
    let idle = world.config.idle;
    let start = Instant::now();
    for look in 0..3 {
        channels.sweep(start + look * idle);
    }
    assert!(near.is_open());
    drop(pair);
    super::until(|| near.circuits() == 0).await;
    channels.sweep(start + 3 * idle);
    assert!(near.is_open());
    channels.sweep(start + 4 * idle);
    assert!(!near.is_open() && channels.is_empty());
}

#[tokio::test(start_paused = true)]
async fn there_are_channels_to_so_many_relays_and_no_more() {
    let config = Config {
        channels: 1,
        ..Config::default()
    };
    let world = World::new(config);
    let (channels, _) = channels(&world);
    let (mut whom, terms) = (world.whom(), Terms::default());
    let first = soon(channels.get(&whom, How::Quic, &terms)).await.unwrap();
    whom.identity = Some([7; 32]);
    let refused = soon(channels.get(&whom, How::Quic, &terms)).await;
    assert_eq!(refused.unwrap_err().reason(), Some(Reason::Limit));
    first.close();
    whom.identity = Some(ed25519(&relay(SECRET)));
    soon(channels.get(&whom, How::Quic, &terms)).await.unwrap();
}

/// A relay that remembers dials that failed, and an address at which nobody answers.
fn remembering() -> (World, Channels, Whom) {
    let config = Config {
        failed: FAILED_DIAL_TTL,
        ..Config::default()
    };
    let world = World::new(config);
    let (channels, _) = channels(&world);
    let mut whom = world.whom();
    let nobody = SocketAddr::from(([203, 0, 113, 77], 443));
    // There is such a host.
    drop(world.network.overlay(nobody.ip()));
    world.network.silence(nobody);
    whom.address = Target::from(nobody);
    (world, channels, whom)
}

async fn fails_within(channels: &Channels, whom: &Whom, most: Duration) -> bool {
    let (begun, terms) = (Instant::now(), Terms::default());
    let got = soon(channels.get(whom, How::Tls, &terms)).await;
    got.expect_err("nobody answers");
    begun.elapsed() <= most
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_did_not_answer_is_not_waited_for_again_for_a_while() {
    let (_world, channels, whom) = remembering();
    assert!(!fails_within(&channels, &whom, Duration::from_secs(4)).await);
    for _ in 0..100 {
        assert!(fails_within(&channels, &whom, Duration::ZERO).await);
    }
    tokio::time::sleep(FAILED_DIAL_TTL).await;
    assert!(!fails_within(&channels, &whom, Duration::from_secs(4)).await);
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_did_not_answer_is_reached_at_once_at_another_address() {
    let (world, channels, whom) = remembering();
    assert!(!fails_within(&channels, &whom, Duration::from_secs(4)).await);
    let (answering, terms) = (world.whom(), Terms::default());
    let there = channels.get(&answering, How::Tls, &terms);
    assert!(soon(there).await.unwrap().is_open());
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_did_not_answer_is_there_as_soon_as_it_dials_itself() {
    let (world, channels, mut whom) = remembering();
    whom.identity = Some(ed25519(&relay(1)));
    assert!(!fails_within(&channels, &whom, Duration::from_secs(4)).await);
    let (near, far) = world.pair(How::Tls).await;
    channels.add(&far);
    let elsewhere = fails_within(&channels, &whom, Duration::from_secs(4)).await;
    assert!(
        !elsewhere,
        "it is there: where it did not answer it is tried again"
    );
    whom.address = Target::from(SocketAddr::from((CLIENT, 443)));
    let got = soon(channels.get(&whom, How::Tls, &Terms::default())).await;
    assert!(got.unwrap().is_same(&far));
    drop(near);
}

/// Somebody who passes bytes on between whoever dials him and the relay: he has its identity to show, and an address of his own.
const FORWARDER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 66)), 443);

/// He listens, over TCP and UDP.
fn forwarder(world: &World) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let network = world.network.clone();
    let mut listener = network.listen_at(FORWARDER);
    tasks.spawn(async move {
        let beyond = network.overlay(FORWARDER.ip());
        let mut copies = JoinSet::new();
        loop {
            let mut near = listener.accept().await;
            let (target, terms) = (Target::from(RELAY), Terms::default());
            let mut far = beyond.open_stream(&target, &terms).await.unwrap();
            copies.spawn(async move {
                drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
            });
        }
    });
    let network = world.network.clone();
    tasks.spawn(async move {
        let (near, far) = (network.bind_at(FORWARDER), network.bind(FORWARDER.ip()));
        let mut dialler = None;
        loop {
            tokio::select! {
                (bytes, from) = near.recv() => {
                    dialler = Some(from);
                    far.send(&bytes, RELAY);
                }
                (bytes, _) = far.recv() => near.send(&bytes, dialler.unwrap()),
            }
        }
    });
    tasks
}

#[tokio::test(start_paused = true)]
async fn who_passes_bytes_on_gets_the_circuits_of_those_who_name_his_address_and_no_others() {
    for how in [How::Quic, How::Tls] {
        let world = World::new(Config::default());
        let _forwarder = forwarder(&world);
        let (channels, dialled) = channels(&world);
        let terms = Terms::default();
        let mut named = world.whom();
        named.address = Target::from(FORWARDER);
        let through = soon(channels.get(&named, how, &terms)).await.unwrap();
        assert!(through.established().theirs.contains(&RELAY.ip()));
        let again = soon(channels.get(&named, how, &terms)).await.unwrap();
        assert!(again.is_same(&through), "who asks for his address has it");
        let honest = soon(channels.get(&world.whom(), how, &terms)).await;
        let honest = honest.unwrap();
        assert!(!honest.is_same(&through), "the relay is reached by itself");
        assert!(honest.is_canonical(FORWARDER.ip()) && !through.is_canonical(RELAY.ip()));
        assert_eq!(dialled.load(Relaxed), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_relay_whose_quic_connection_moves_is_where_it_is_now() {
    let mut world = World::new(Config::default());
    let (endpoint, connection) = world.raw_quic().await;
    let mut control = soon(connection.open_bi()).await.unwrap();
    let greeting = crate::quic::tests::greet_as(
        Us {
            addresses: vec![CLIENT],
            ..relay(1)
        },
        &connection,
        &mut control,
    );
    soon(greeting).await;
    let far = world.served().await.unwrap();
    assert!(far.is_canonical(CLIENT) && far.is_canonical(RELAY.ip()));
    let elsewhere = IpAddr::from([203, 0, 113, 5]);
    world.move_to(&endpoint, elsewhere);
    let padding = bytes(&cell(Command::PADDING, 0));
    control.0.write_all(&padding).await.unwrap();
    super::until(|| !far.is_canonical(CLIENT)).await;
    assert!(far.is_canonical(elsewhere) && !far.is_canonical(RELAY.ip()));
}

#[tokio::test(start_paused = true)]
async fn an_address_where_nobody_answers_holds_up_nobody_who_names_another() {
    let (world, channels, black_hole) = remembering();
    let terms = Terms::default();
    for how in [How::Tls, How::Quic] {
        let begun = Instant::now();
        let hole = channels.get(&black_hole, how, &terms);
        let whom = world.whom();
        let honest = async {
            tokio::task::yield_now().await;
            let got = channels.get(&whom, how, &terms).await.unwrap();
            (got, begun.elapsed())
        };
        let (_hole, (honest, took)) = soon(async { tokio::join!(hole, honest) }).await;
        assert!(took < Duration::from_secs(1) && honest.is_canonical(RELAY.ip()));
        honest.close();
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_dial_takes_the_channel_that_the_relay_dials_meanwhile() {
    let (world, channels, mut hole) = remembering();
    hole.identity = Some(ed25519(&relay(1)));
    hole.address = Target::from(SocketAddr::from((CLIENT, 443)));
    world.network.silence(SocketAddr::from((CLIENT, 443)));
    let terms = Terms::default();
    let waiting = channels.get(&hole, How::Tls, &terms);
    let dialling = async {
        let (near, far) = world.pair(How::Tls).await;
        channels.add(&far);
        (near, far)
    };
    let begun = Instant::now();
    let both = Box::pin(async { tokio::join!(waiting, dialling) });
    let (got, (_near, far)) = soon(both).await;
    assert!(got.unwrap().is_same(&far) && begun.elapsed() < Duration::from_secs(1));
}

fn hex<const N: usize>(text: &str) -> [u8; N] {
    bytes_of(text).try_into().unwrap()
}

fn bytes_of(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// A relay with an RSA identity, as OpenSSL made it: what `crypto` is tested with.
fn relay_with_rsa() -> (Us, [u8; 20]) {
    const CERTIFICATE: &str = include_str!("../../../crypto/src/onion/identity/tests/rsa.cert.hex");
    const CROSS: &str = include_str!("../../../crypto/src/onion/identity/tests/rsa.cross.hex");
    let secret = hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
    let identity = RelayIdentity::from_secret(&secret, now()).unwrap();
    let (certificate, cross) = (bytes_of(CERTIFICATE), bytes_of(CROSS));
    let identity = identity.with_rsa(&certificate, &cross, now()).unwrap();
    let us = Us {
        identity: Some(Arc::new(identity)),
        addresses: Vec::new(),
    };
    (us, hex("d443db60b81bb40aafec801a02ea060a637bbdf3"))
}

/// tor-spec, "EXTEND and EXTENDED cells": both identities that are named must be those of the relay.
#[tokio::test(start_paused = true)]
async fn a_relay_serves_who_names_the_rsa_identity_that_it_has_shown_or_none() {
    let world = World::new(Config::default());
    let (channels, _) = channels(&world);
    let (us, rsa) = relay_with_rsa();
    for (us, shown) in [(us, Some(rsa)), (relay(1), None)] {
        let identity = ed25519(&us);
        let (_near, far) = world.pair_as(us, How::Tls).await;
        channels.add(&far);
        for (named, is_right) in [
            (None, true),
            (Some(rsa), shown.is_some()),
            (Some([7; 20]), false),
        ] {
            let whom = Whom {
                name: "amber".into(),
                address: Target::from(SocketAddr::from((CLIENT, 443))),
                identity: Some(identity),
                rsa: named,
            };
            let got = soon(channels.get(&whom, How::Tls, &Terms::default())).await;
            if is_right {
                assert!(got.unwrap().is_same(&far))
            } else {
                assert_eq!(got.unwrap_err().reason(), Some(Reason::Identity))
            }
        }
    }
}
