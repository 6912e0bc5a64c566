//! UDP over circuits, as a program, a target and a hostile end see it. What every overlay does with datagrams, `conformance` says.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use hoplite_onion::{Config, relay::Policy};
use hoplite_overlay::{
    Batch, Datagrams, ErrorKind, Overlay, Reason, Terms,
    conformance::{Far, FarSocket},
};
use hoplite_testing::soon;
use hoplite_wire::{
    Protocols, Target,
    cell::{
        circuit::DestroyReason,
        datagram::{ConnectUdp, FULL},
        relay::{End, EndReason, Flags, Message, RelayCommand},
    },
};
use tokio::time::Instant;

use crate::{
    raw::{Heard, Raw},
    support::{Kind, World},
};

async fn flow(onion: &dyn Overlay, target: &Target) -> Box<dyn Datagrams> {
    let opened = soon(onion.open_datagrams(target, &Terms::default())).await;
    opened.expect("opens")
}

/// What the far end gets next.
async fn comes(socket: &dyn FarSocket) -> Vec<u8> {
    soon(socket.recv()).await.expect("a datagram").0
}

#[tokio::test]
async fn datagrams_of_every_length_keep_boundaries_and_order() {
    let world = World::new(Duration::ZERO, Kind::default());
    let onion = world.client(Config::default());
    let socket = world.far().bind().await.expect("a socket");
    let flow = flow(&onion, &socket.target()).await;
    for length in [
        0,
        1,
        FULL - 1,
        FULL,
        FULL + 1,
        2 * FULL,
        2 * FULL + 1,
        flow.max_payload(),
        0,
    ] {
        let payload: Vec<u8> = (0..length).map(|n| n.to_le_bytes()[0]).collect();
        soon(flow.send(&payload)).await.expect("taken");
        assert_eq!(comes(&*socket).await, payload, "{length}");
    }
}

#[tokio::test]
async fn streams_and_datagrams_share_a_circuit_and_its_window() {
    let world = World::new(Duration::from_millis(1), Kind::default());
    let config = Config {
        ahead: 0,
        ..Config::default()
    };
    let onion = world.client(config.clone());
    let socket = world.far().bind().await.expect("a socket");
    let flow = flow(&onion, &socket.target()).await;
    // More than a window of 1,000 cells: without acknowledgements it would end.
    for n in 0_u32..1_100 {
        soon(flow.send(&n.to_be_bytes())).await.expect("taken");
        assert_eq!(comes(&*socket).await, n.to_be_bytes());
    }
    let subject = world.subject(config);
    hoplite_overlay::conformance::a_mebibyte_is_echoed_unchanged(&subject).await;
    assert_eq!(world.relays[2].circuits(), 2, "one of each overlay");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_reads_is_dropped_and_the_circuit_goes_on() {
    let world = World::new(Duration::from_millis(1), Kind::default());
    let onion = world.client(Config::default());
    let socket = world.far().bind().await.expect("a socket");
    let flow = flow(&onion, &socket.target()).await;
    soon(flow.send(b"hello")).await.expect("taken");
    let (_, client) = soon(socket.recv()).await.expect("a datagram");
    for n in 0_u32..20_000 {
        socket.send(&n.to_be_bytes(), client).await.expect("sent");
        if n % 64 == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    // The oldest are there, and no more than there is room for.
    let (mut buf, mut found) = (vec![0; 4], 0_u32);
    let receiving = poll_fn(|cx| {
        while let Poll::Ready(received) = flow.poll_recv(cx, &mut buf) {
            received.expect("open");
            assert_eq!(buf, found.to_be_bytes());
            found += 1;
        }
        Poll::Ready(())
    });
    receiving.await;
    assert!((100..=1_000).contains(&found), "{found}");
    soon(flow.send(b"again")).await.expect("taken");
    assert_eq!(comes(&*socket).await, b"again");
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_is_silent_or_given_up_is_ended_at_the_exit() {
    let world = World::new(Duration::from_millis(1), Kind::default());
    let onion = world.client(Config::default());
    let socket = world.far().bind().await.expect("a socket");
    let idle = flow(&onion, &socket.target()).await;
    tokio::time::sleep(world.relays[2].config.idle_datagrams + Duration::from_secs(1)).await;
    let error = soon(idle.recv(&mut [0; 10])).await.expect_err("ended");
    assert_eq!(error.kind(), ErrorKind::TargetFailed, "{error}");
    let error = soon(idle.send(b"late")).await.expect_err("ended");
    assert_eq!(error.kind(), ErrorKind::TargetFailed, "{error}");
    let other = flow(&onion, &socket.target()).await;
    soon(other.send(b"hello")).await.expect("taken");
    let (_, client) = soon(socket.recv()).await.expect("a datagram");
    drop(other);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Nobody is there any more: it goes nowhere, and hurts nobody.
    drop(socket.send(b"late", client).await);
    let again = flow(&onion, &socket.target()).await;
    soon(again.send(b"hello")).await.expect("taken");
    assert_eq!(comes(&*socket).await, b"hello");
}

#[tokio::test]
async fn a_last_relay_that_carries_none_or_permits_none_is_said() {
    let mut world = World::new(Duration::ZERO, Kind::default());
    let target = world.far().bind().await.expect("a socket").target();
    world.path[2].protocols = Protocols::NONE;
    let onion = world.client(Config::default());
    let error = soon(onion.open_datagrams(&target, &Terms::default())).await;
    assert_eq!(error.expect_err("none").kind(), ErrorKind::Unsupported);
    assert_eq!(world.relays[2].circuits(), 0, "and nothing is built for it");
    let strict = world.net.relay(4, &world.network, |relay| {
        relay.policy = Arc::new(Policy {
            ports: vec![1..=1],
            special: true,
        });
    });
    world.path[2] = crate::support::known(&strict, Kind::default());
    let onion = world.client(Config::default());
    let error = soon(onion.open_datagrams(&target, &Terms::default())).await;
    let error = error.expect_err("refused");
    let said = (error.kind(), error.reason());
    assert_eq!(said, (ErrorKind::Forbidden, Some(Reason::Policy)));
}

#[tokio::test(start_paused = true)]
async fn a_batch_waits_while_the_circuit_takes_nothing_and_is_bounded() {
    let world = World::new(Duration::from_millis(1), Kind::default());
    let onion = world.client(Config::default());
    let socket = world.far().bind().await.expect("a socket");
    let flow = flow(&onion, &socket.target()).await;
    let payload = vec![7; 1_200];
    let begun = Instant::now();
    let mut taken = 0;
    poll_fn(|cx| {
        while flow.poll_send(cx, Batch::one(&payload)).is_ready() {
            taken += 1;
            assert!(taken < 200, "as many as one likes");
        }
        Poll::Ready(())
    })
    .await;
    assert!(taken >= 40 && begun.elapsed().is_zero(), "{taken}");
    for _ in 0..taken {
        assert_eq!(comes(&*socket).await, payload);
    }
}

#[tokio::test]
async fn an_exit_refuses_what_is_no_target_and_closes_for_what_breaks_the_protocol() {
    let world = World::new(Duration::ZERO, Kind::default());
    let dialer = world.net.dialer(None);
    let channel = soon(dialer.channel(&world.path[2]))
        .await
        .expect("a channel");
    let mut one = Raw::new(&*channel, &world.path[2], true).await;
    let no_target = b"\0\0\0\0\x05\0";
    one.say(RelayCommand::CONNECT_UDP, 1, no_target).await;
    let Heard::Message(_, RelayCommand::END, _, why, _) = one.hear().await else {
        panic!("it is not refused");
    };
    assert_eq!(End::parse(&why).reason, EndReason::TORPROTOCOL);
    let socket = world.far().bind().await.expect("a socket");
    let (target, flags) = (socket.target(), Flags::IPV6_OKAY);
    let connect = Message::ConnectUdp(ConnectUdp { target, flags });
    one.tell(1, &connect).await;
    one.tell(1, &Message::Datagram(b"at once")).await;
    assert_eq!(comes(&*socket).await, b"at once");
    let answer = one.hear().await;
    assert!(matches!(
        answer,
        Heard::Message(_, RelayCommand::CONNECTED_UDP, ..)
    ));
    // Longer than a message may be that another one continues.
    one.tell(1, &Message::Datagram(&[0; FULL + 1])).await;
    assert_eq!(one.hear().await, Heard::Destroyed(DestroyReason::PROTOCOL));
    let mut other = Raw::new(&*channel, &world.path[2], true).await;
    other.tell(1, &connect).await;
    other.tell(1, &connect).await;
    assert_eq!(
        other.hear_of_the_circuit().await,
        Heard::Destroyed(DestroyReason::PROTOCOL)
    );
}
