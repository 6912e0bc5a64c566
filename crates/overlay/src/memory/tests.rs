use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::conformance::{Memory, Subject};

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn subject() -> Subject {
    let network = Network::new(1);
    Subject::new(
        Arc::new(network.overlay(NEAR)),
        Arc::new(Memory::new(network, FAR)),
    )
}

crate::conformance_tests!(subject());

#[tokio::test(start_paused = true)]
async fn latency_and_rate_delay_what_arrives() {
    let network = Network::new(1);
    network.set_conditions(Conditions {
        latency: Duration::from_millis(50),
        rate: Some(100_000),
        ..Conditions::default()
    });
    let mut listener = network.listen(FAR);
    let overlay = network.overlay(NEAR);
    let (target, terms) = (listener.address().into(), Terms::default());
    let start = Instant::now();
    let mut near = overlay.open_stream(&target, &terms).await.expect("opens");
    assert_eq!(start.elapsed(), Duration::from_millis(100));
    let mut far = listener.accept().await;
    near.write_all(&[0; 10_000]).await.expect("written");
    far.read_exact(&mut [0; 10_000]).await.expect("read");
    assert_eq!(start.elapsed(), Duration::from_millis(250));
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_loses_the_same_datagrams() {
    let arrived = |seed| async move {
        let network = Network::new(seed);
        network.set_conditions(Conditions {
            loss: 0.5,
            ..Conditions::default()
        });
        let (near, far) = (network.bind(NEAR), network.bind(FAR));
        for n in 0..100u8 {
            near.send(&[n], far.address());
        }
        let next = || far.recv().now_or_never().map(|(payload, _)| payload);
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    let first = arrived(7).await;
    assert!((20..80).contains(&first.len()), "{}", first.len());
    assert_eq!(first, arrived(7).await);
    assert_ne!(first, arrived(8).await);
}

#[tokio::test(start_paused = true)]
async fn faults_take_away_udp_or_answers_or_everything() {
    let network = Network::new(1);
    let mut listener = network.listen(FAR);
    let overlay = network.overlay(NEAR);
    let target = listener.address().into();
    let terms = Terms::default().within(Duration::from_secs(5));
    let mut near = overlay.open_stream(&target, &terms).await.expect("opens");
    let mut far = listener.accept().await;

    network.set_fault(Fault::UdpBlocked);
    let (here, there) = (network.bind(NEAR), network.bind(FAR));
    here.send(b"lost", there.address());
    assert!(there.recv().now_or_never().is_none());
    near.write_all(b"a").await.expect("streams work");
    assert_eq!(far.read_u8().await.expect("arrives"), b'a');

    network.set_fault(Fault::Silent);
    near.write_all(b"b").await.expect("queued");
    assert!(far.read_u8().now_or_never().is_none());
    let late = overlay.open_stream(&target, &terms).await;
    assert_eq!(late.expect_err("late").kind(), ErrorKind::TimedOut);

    network.set_fault(Fault::None);
    assert_eq!(far.read_u8().await.expect("arrives"), b'b');

    network.set_fault(Fault::Down);
    assert!(far.read_u8().await.is_err());
    assert!(near.write_all(b"c").await.is_err());
}

#[tokio::test]
async fn the_eavesdropper_sees_ends_and_sizes() {
    let network = Network::new(1);
    let far = network.bind(FAR);
    let overlay = network.overlay(NEAR);
    let (target, terms) = (far.address().into(), Terms::default());
    let flow = overlay
        .open_datagrams(&target, &terms)
        .await
        .expect("opens");
    flow.send(&[0; 33]).await.expect("sent");
    let seen = network.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].from.ip(), seen[0].to), (NEAR, far.address()));
    assert_eq!(seen[0].what, What::Datagram(33));
}

#[tokio::test(start_paused = true)]
async fn an_early_stream_carries_its_first_bytes_behind_the_request() {
    let network = Network::new(1);
    let latency = Duration::from_millis(50);
    network.set_conditions(Conditions {
        latency,
        ..Conditions::default()
    });
    let mut listener = network.listen(FAR);
    let overlay = network.overlay(NEAR);
    let (target, terms) = (listener.address().into(), Terms::default().early(true));
    let start = Instant::now();
    let mut near = overlay.open_stream(&target, &terms).await.expect("opens");
    near.write_all(b"?").await.expect("taken");
    let mut far = listener.accept().await;
    far.read_u8().await.expect("read");
    assert_eq!(start.elapsed(), latency);
    far.write_all(b"!").await.expect("open");
    near.read_u8().await.expect("read");
    assert_eq!(start.elapsed(), latency * 2);
}
