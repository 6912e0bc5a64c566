//! Forwarded mode over real paths: how many datagrams of each hop go forwarded, and that whatever happens to them a transfer ends.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use hoplite_masque::{Config, Hop, Mode, Passed, Path};
use hoplite_overlay::{Overlay, Terms};
use hoplite_relay::Handle;
use hoplite_testing::{
    path::{direct, known},
    relay::{relay, relays},
    soon,
};
use hoplite_wire::forwarding::Transform;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::rough::Rough;

const MEGABYTE: usize = 1 << 20;

/// A path, and one more hop above it: a QUIC target for the last relay of the path.
struct Tower {
    path: Path,
    top: Hop,
    _relays: Vec<Handle>,
}

impl Tower {
    /// QUIC is not raced: whatever the machine is busy with, no hop falls back to TCP.
    fn new(hops: usize, below: &Arc<dyn Overlay>, modes: &[Option<Mode>]) -> Self {
        let mut client = Config::default();
        client.link.head_start = Duration::from_secs(5);
        Self::with(hops, below, modes, client)
    }

    fn with(hops: usize, below: &Arc<dyn Overlay>, modes: &[Option<Mode>], client: Config) -> Self {
        Self::over(relays(hops + 1), below, modes, client)
    }

    /// The last of the relays is the target.
    fn over(
        relays: Vec<Handle>,
        below: &Arc<dyn Overlay>,
        modes: &[Option<Mode>],
        client: Config,
    ) -> Self {
        let hops = relays.len() - 1;
        let mut known: Vec<_> = relays.iter().map(|relay| known("relay", relay)).collect();
        for (relay, mode) in known.iter_mut().zip(modes) {
            relay.mode = *mode;
        }
        let top = known.pop().expect("one more");
        let client = Arc::new(client);
        let path = Path::new(known, below, &client).expect("a path");
        let top = Hop::new(top, hops, Arc::new(path.clone()), &client).expect("a hop");
        Self {
            path,
            top,
            _relays: relays,
        }
    }

    fn passed(&self) -> Vec<Passed> {
        self.path.hops().iter().map(Hop::passed).collect()
    }

    /// Bytes from a server through all relays; `meanwhile` is called after each of them.
    async fn download(&self, megabytes: usize, mut meanwhile: impl FnMut(usize)) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let target = listener.local_addr().expect("bound").into();
        let serve = async {
            let (mut socket, _) = listener.accept().await.expect("accepted");
            for _ in 0..megabytes {
                socket.write_all(&vec![7; MEGABYTE]).await.expect("taken");
            }
            socket.shutdown().await.expect("ended");
        };
        let fetch = async {
            let terms = Terms::default().within(Duration::from_secs(60));
            let stream = self.top.open_stream(&target, &terms).await;
            let mut stream = stream.expect("opened");
            let mut buf = vec![0; MEGABYTE];
            for megabyte in 0..megabytes {
                stream.read_exact(&mut buf).await.expect("received");
                meanwhile(megabyte);
            }
        };
        let both = async { tokio::join!(serve, fetch) };
        soon(both).await;
    }

    /// The same, towards the server.
    async fn upload(&self, megabytes: usize, mut meanwhile: impl FnMut(usize)) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let target = listener.local_addr().expect("bound").into();
        let take = async {
            let (mut socket, _): (TcpStream, _) = listener.accept().await.expect("accepted");
            let mut buf = vec![0; MEGABYTE];
            for megabyte in 0..megabytes {
                socket.read_exact(&mut buf).await.expect("received");
                meanwhile(megabyte);
            }
        };
        let give = async {
            let terms = Terms::default().within(Duration::from_secs(60));
            let stream = self.top.open_stream(&target, &terms).await;
            let mut stream = stream.expect("opened");
            for _ in 0..megabytes {
                stream.write_all(&vec![7; MEGABYTE]).await.expect("taken");
            }
            stream.flush().await.expect("taken");
            stream
        };
        let both = async { tokio::join!(take, give) };
        soon(both).await;
    }
}

/// Of all datagrams, in per cent.
fn forwarded(passed: Passed) -> u64 {
    let forwarded = passed.forwarded_received + passed.forwarded_sent;
    let tunnelled = passed.tunnelled_received + passed.tunnelled_sent;
    100 * forwarded / (forwarded + tunnelled).max(1)
}

fn since(now: Passed, before: Passed) -> Passed {
    Passed {
        forwarded_sent: now.forwarded_sent - before.forwarded_sent,
        forwarded_received: now.forwarded_received - before.forwarded_received,
        tunnelled_sent: now.tunnelled_sent - before.tunnelled_sent,
        tunnelled_received: now.tunnelled_received - before.tunnelled_received,
        lost: now.lost - before.lost,
    }
}

/// Each hop begins when the one above it has, so that the first megabytes may still be tunnelled.
async fn a_download_is_forwarded_on_every_hop(hops: usize) {
    let tower = Tower::new(hops, &direct(), &[]);
    let mut shares = Vec::new();
    for _ in 0..20 {
        let before = tower.passed();
        tower.download(4, |_| {}).await;
        let more = tower.passed().into_iter().zip(before);
        shares = more
            .map(|(now, before)| forwarded(since(now, before)))
            .collect();
        if shares.iter().all(|share| *share >= 95) {
            return;
        }
    }
    unreachable!(
        "too little is forwarded: {shares:?} per cent, {:?}",
        tower.passed()
    );
}

#[tokio::test]
async fn a_download_through_one_relay_is_forwarded() {
    a_download_is_forwarded_on_every_hop(1).await;
}

#[tokio::test]
async fn a_download_through_two_relays_is_forwarded_by_both() {
    a_download_is_forwarded_on_every_hop(2).await;
}

#[tokio::test]
async fn a_download_through_three_relays_is_forwarded_by_all() {
    a_download_is_forwarded_on_every_hop(3).await;
}

#[tokio::test]
async fn a_download_through_four_relays_is_forwarded_by_all() {
    a_download_is_forwarded_on_every_hop(4).await;
}

/// What a packet of the innermost connection is on the first link: itself, whatever the number of relays.
#[tokio::test]
async fn four_relays_add_nothing_to_what_crosses_the_first_link() {
    let below = Rough::new();
    let tower = Tower::new(4, &below.overlay, &[]);
    let mut shares = Vec::new();
    for _ in 0..20 {
        let before = below.rough.received.load(SeqCst);
        tower.download(4, |_| {}).await;
        let bytes = below.rough.received.load(SeqCst) - before;
        let overhead = 100.0 * bytes as f64 / (4 * MEGABYTE) as f64 - 100.0;
        // 33 bytes of 1452 are the innermost connection's own; one tunnel would add as many.
        if overhead < 3.0 {
            return;
        }
        shares.push(overhead);
    }
    unreachable!("more than one connection's overhead: {shares:?} per cent");
}

#[tokio::test]
async fn an_upload_is_forwarded_on_every_hop() {
    let tower = Tower::new(3, &direct(), &[]);
    // Until each hop has settled, packets stay behind those that wait in its tunnel.
    tower.upload(8, |_| {}).await;
    let before = tower.passed();
    tower.upload(8, |_| {}).await;
    for (passed, before) in tower.passed().into_iter().zip(before) {
        let passed = since(passed, before);
        assert!(forwarded(passed) >= 90, "{passed:?}");
    }
}

#[tokio::test]
async fn what_one_hop_tunnels_the_others_forward() {
    for tunnelled in 0..3 {
        let mut modes = [None; 3];
        modes[tunnelled] = Some(Mode::Tunnelled);
        let tower = Tower::new(3, &direct(), &modes);
        tower.download(8, |_| {}).await;
        for (hop, passed) in tower.passed().into_iter().enumerate() {
            let enough = if hop == tunnelled { 0..=0 } else { 80..=100 };
            let share = forwarded(passed);
            assert!(
                enough.contains(&share),
                "{tunnelled} tunnels, {hop}: {passed:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_transfer_over_a_path_that_loses_and_reorders_is_forwarded() {
    let below = Rough::new();
    below.rough.bumpy.store(true, SeqCst);
    let tower = Tower::new(2, &below.overlay, &[]);
    tower.download(4, |_| {}).await;
    tower.upload(4, |_| {}).await;
    for passed in tower.passed() {
        assert!(forwarded(passed) >= 80, "{passed:?}");
    }
}

/// Downloads until most of one was forwarded by the first hop.
async fn forwarded_again(tower: &Tower) {
    for _ in 0..100 {
        let before = tower.passed()[0].forwarded_received;
        tower.download(2, |_| {}).await;
        if tower.passed()[0].forwarded_received - before > 1000 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    unreachable!("not forwarded again: {:?}", tower.passed());
}

/// The first relay sees another address, drops its rules and says so.
#[tokio::test]
async fn rules_that_the_relay_closes_in_the_middle_are_made_again() {
    let below = Rough::new();
    let tower = Tower::new(2, &below.overlay, &[]);
    let rebind = |megabyte| {
        if megabyte % 4 == 1 {
            below.rough.rebound.fetch_add(1, SeqCst);
        }
    };
    tower.download(8, rebind).await;
    forwarded_again(&tower).await;
}

#[tokio::test]
async fn a_device_that_moves_in_the_middle_forwards_again() {
    let below = Rough::new();
    let tower = Tower::new(2, &below.overlay, &[]);
    let moves = |megabyte| {
        if megabyte == 1 {
            below.rough.moved.fetch_add(1, SeqCst);
        }
    };
    tower.download(4, moves).await;
    forwarded_again(&tower).await;
}

/// From the second megabyte on.
fn swallows(below: &Rough) -> impl FnMut(usize) {
    |megabyte| below.rough.swallows.store(megabyte >= 1, SeqCst)
}

#[tokio::test]
async fn a_relay_that_acknowledges_and_swallows_does_not_hold_a_download_up() {
    let below = Rough::new();
    let tower = Tower::new(2, &below.overlay, &[]);
    tower.download(8, swallows(&below)).await;
    assert!(below.rough.swallowed.load(SeqCst) > 0);
}

#[tokio::test]
async fn a_relay_that_acknowledges_and_swallows_does_not_hold_an_upload_up() {
    let below = Rough::new();
    let tower = Tower::new(2, &below.overlay, &[]);
    tower.upload(8, swallows(&below)).await;
    assert!(below.rough.swallowed.load(SeqCst) > 0);
}

#[tokio::test]
async fn a_transfer_goes_on_without_udp_and_is_forwarded_when_udp_is_back() {
    let below = Rough::new();
    let mut client = Config::default();
    client.link.suspect_after = Duration::from_millis(300);
    client.link.broken_after = Duration::from_millis(1500);
    client.quic_retry = Duration::from_millis(200);
    client.redial_pause = Duration::from_millis(100);
    let tower = Tower::with(2, &below.overlay, &[], client);
    let block = |megabyte| below.rough.blocked.store(megabyte == 1, SeqCst);
    tower.download(3, block).await;
    forwarded_again(&tower).await;
}

/// Relays that forward as `change` says, and a client that insists on forwarding without a transform.
async fn without_transform(change: impl Fn(&mut hoplite_relay::config::Forwarding)) -> Vec<Passed> {
    let start = |_| relay(|config| change(&mut config.forwarding));
    let relays: Vec<Handle> = (0..3).map(start).collect();
    let client = Config {
        mode: Mode::Forwarded,
        transform: Transform::Identity,
        ..Config::default()
    };
    let tower = Tower::over(relays, &direct(), &[], client);
    tower.download(8, |_| {}).await;
    tower.passed()
}

#[tokio::test]
async fn what_a_relay_refuses_is_tunnelled() {
    for disabled in [false, true] {
        let passed = without_transform(|forwarding| forwarding.enabled = !disabled).await;
        assert!(passed.into_iter().all(|hop| forwarded(hop) == 0));
    }
}

#[tokio::test]
async fn packets_go_without_a_transform_where_both_ends_want_it() {
    let passed = without_transform(|forwarding| forwarding.identity = true).await;
    for hop in passed {
        assert!(forwarded(hop) > 50, "{hop:?}");
    }
}
