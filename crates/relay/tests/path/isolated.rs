//! Isolation tokens: connections of their own, and one path that stands ready for the next.

use std::time::Duration;

use hoplite_masque::{Config, Path};
use hoplite_overlay::{Isolation, Overlay, Terms};
use hoplite_relay::Handle;
use hoplite_testing::{
    path::{build, direct},
    relay::{metric, until_metric},
};
use hoplite_wire::Target;
use tokio::net::TcpListener;

const OPEN: &str = "connections_open{transport=\"quic\"}";

struct Bench {
    relays: Vec<Handle>,
    path: Path,
    target: Target,
    _listener: TcpListener,
}

impl Bench {
    async fn new(client: Config) -> Self {
        let (path, relays) = build(2, &direct(), client);
        path.keep_warm();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let target = listener.local_addr().expect("bound").into();
        Self {
            relays,
            path,
            target,
            _listener: listener,
        }
    }

    /// How many connections the last relay has.
    fn connections(&self) -> f64 {
        metric(&self.relays[1], OPEN)
    }

    /// Waits until it has this many.
    async fn has(&self, count: u8) {
        until_metric(&self.relays[1], OPEN, |open| open == f64::from(count)).await;
    }

    async fn open(&self, user: &str) -> impl Sized {
        let isolation = Isolation::new(user.into());
        let terms = Terms {
            isolation,
            ..Terms::default()
        };
        self.path
            .open_stream(&self.target, &terms)
            .await
            .expect("opened")
    }
}

#[tokio::test]
async fn a_path_stands_ready_for_the_next_token() {
    let soon = Config {
        spare_after: Duration::from_millis(1),
        ..Config::default()
    };
    let bench = Bench::new(soon).await;
    // The warm one, and the spare.
    bench.has(2).await;
    let first = bench.open("a").await;
    // The spare is used, and there is another.
    bench.has(3).await;
    let again = bench.open("a").await;
    let second = bench.open("b").await;
    bench.has(4).await;
    drop((first, again, second));
}

#[tokio::test]
async fn no_path_stands_ready_unless_wanted() {
    let client = Config {
        spare: false,
        ..Config::default()
    };
    let bench = Bench::new(client).await;
    bench.has(1).await;
    let first = bench.open("a").await;
    let second = bench.open("b").await;
    let again = bench.open("a").await;
    assert_eq!(bench.connections(), 3.0);
    drop((first, second, again));
}

/// Else the relay would see that one goes when another one comes, and that both are somebody's.
#[tokio::test]
async fn a_connection_that_a_token_does_not_use_any_more_is_closed_without_another_ones_coming() {
    let client = Config {
        spare: false,
        isolated_idle: Duration::from_millis(200),
        ..Config::default()
    };
    let bench = Bench::new(client).await;
    bench.has(1).await;
    let [first, second] = [bench.open("a").await, bench.open("b").await];
    bench.has(3).await;
    drop(first);
    bench.has(2).await;
    drop(second);
    bench.has(1).await;
}
