//! What a path does when nobody wants anything of it: a device shall sleep, and relays in memory see when it does not.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hoplite_masque::{Config, Mode};
use hoplite_overlay::{Isolation, Overlay, Terms};
use hoplite_quic::timer;
use tokio::time::{Instant, sleep, timeout};

use crate::early::{CLIENT, Lab};

const SECOND: Duration = Duration::from_secs(1);

/// When the client sends, in seconds since `from`; what leaves within a second of something is left out.
fn moments(lab: &Lab, from: Instant) -> Vec<u64> {
    let seen = lab.network.seen().into_iter();
    let sent = seen.filter(|seen| seen.from.ip() == CLIENT && seen.at >= from);
    let mut sent: Vec<_> = sent.map(|seen| seen.at - from).collect();
    sent.sort_unstable();
    let mut last: Option<Duration> = None;
    sent.retain(|at| last.replace(*at).is_none_or(|last| *at > last + SECOND));
    sent.iter().map(Duration::as_secs).collect()
}

#[tokio::test(start_paused = true)]
async fn all_hops_of_a_path_at_rest_speak_at_one_moment_every_25_seconds() {
    // These relays do not forward: whoever knows looks for no larger packets.
    let config = Config {
        mode: Mode::Tunnelled,
        ..Config::default()
    };
    let mut lab = Lab::with(3, config);
    lab.path.connect().await.expect("connects");
    lab.first_byte(false).await;
    // What stands still is asked about five times, the last time half a minute after it came to rest.
    sleep(100 * SECOND).await;
    let from = Instant::now();
    sleep(500 * SECOND).await;
    let moments = moments(&lab, from);
    assert!((19..=21).contains(&moments.len()), "{moments:?}");
    assert!(
        moments
            .windows(2)
            .all(|pair| (24..=26).contains(&(pair[1] - pair[0]))),
        "{moments:?}"
    );
    lab.first_byte(false).await;
}

/// By a beat that they share, whoever has two connections would know that they are one client's.
#[tokio::test(start_paused = true)]
async fn connections_of_isolation_tokens_do_not_speak_at_one_moment() {
    let config = Config {
        mode: Mode::Tunnelled,
        isolated_idle: 3600 * SECOND,
        ..Config::default()
    };
    let mut lab = Lab::with(2, config);
    for token in [b"one", b"two"] {
        let terms = Terms {
            isolation: Isolation::new(token.to_vec()),
            ..Terms::default()
        };
        lab.first_byte_for(&terms).await;
        sleep(Duration::from_millis(6300)).await;
    }
    sleep(100 * SECOND).await;
    let from = Instant::now();
    sleep(200 * SECOND).await;
    let mut by_socket = BTreeMap::<_, Vec<_>>::new();
    let seen = lab.network.seen().into_iter();
    // What the last relay gets of the first.
    let gets = |ip: IpAddr| ip == IpAddr::from([192, 0, 2, 1]);
    for seen in seen.filter(|seen| gets(seen.from.ip()) && seen.at >= from) {
        if seen.to.ip() == IpAddr::from([192, 0, 2, 2]) {
            by_socket.entry(seen.from).or_default().push(seen.at);
        }
    }
    let sockets: Vec<_> = by_socket.into_values().collect();
    let [one, two] = &sockets[..] else {
        panic!("two connections: {}", sockets.len());
    };
    assert!(one.len() >= 7 && two.len() >= 7, "they are kept alive");
    // Timers that fire together do so at multiples of this.
    let grid = timer::GRID.as_millis();
    for (one, two) in one.iter().zip(two) {
        let apart = (*one.max(two) - *one.min(two)).as_millis() % grid;
        assert!((100..grid - 100).contains(&apart), "{one:?} {two:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_hangs_up_is_dialled_less_and_less_whoever_asks() {
    let count = Arc::new(AtomicUsize::new(0));
    let lab = Lab::hanging_up(&count);
    drop(lab.path.connect().await);
    let target = "192.0.2.99:80".parse().expect("a target");
    let from = Instant::now();
    while from.elapsed() < 60 * SECOND {
        drop(timeout(SECOND, lab.path.open_stream(&target, &Terms::default())).await);
        sleep(Duration::from_millis(10)).await;
    }
    let count = count.load(Ordering::Relaxed);
    assert!((4..=8).contains(&count), "{count} handshakes in a minute");
}
