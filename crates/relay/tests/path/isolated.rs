//! Isolation tokens: connections of their own, and one path that stands ready for the next.

use std::{sync::Arc, time::Duration};

use hoplite_masque::{Config, Path};
use hoplite_overlay::{Isolation, Overlay, Terms, direct::Direct};
use hoplite_relay::{Handle, Relay};
use hoplite_wire::Target;
use tokio::{net::TcpListener, time::timeout};

use crate::support::{config, identity, known};

struct Bench {
    relays: Vec<Handle>,
    path: Path,
    target: Target,
    _listener: TcpListener,
}

impl Bench {
    async fn new(client: Config) -> Self {
        let start = |_| Relay::start(&config(), &identity()).expect("started");
        let relays: Vec<Handle> = (0..2).map(start).collect();
        let known = ["r0", "r1"]
            .iter()
            .zip(&relays)
            .map(|(name, relay)| known(name, relay));
        let below: Arc<dyn Overlay> = Arc::new(Direct::new());
        let path = Path::new(known.collect(), &below, &Arc::new(client)).expect("a path");
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
    fn connections(&self) -> usize {
        let text = self.relays[1].metrics().text();
        let name = "hoplite_relay_connections_open{transport=\"quic\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Waits until it has so many.
    async fn has(&self, count: usize) {
        let there = async {
            while self.connections() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = timeout(Duration::from_secs(20), there).await;
        assert!(
            in_time.is_ok(),
            "{} connections instead of {count}",
            self.connections()
        );
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
    assert_eq!(bench.connections(), 3);
    drop((first, second));
}
