//! Flows that stand still: programs and targets that do not read cost their own windows, and the others go on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hoplite_masque::{Config, Path};
use hoplite_overlay::{Overlay, Stream, Terms};
use hoplite_relay::Handle;
use hoplite_testing::{
    path::{build, direct},
    soon,
};
use hoplite_wire::Target;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

/// More than the 8 that a window of 8 MiB for all would have let in.
const STANDING: usize = 24;

struct Bench {
    path: Path,
    _relays: Vec<Handle>,
    target: Target,
    /// Bytes that went into standing flows.
    moved: Arc<AtomicUsize>,
}

impl Bench {
    async fn new() -> Self {
        // Each flow that begins waits for the one before it to be known as standing still; a busy machine takes its time for that.
        Self::with(Config {
            open_limit: Duration::from_secs(240),
            ..Config::default()
        })
        .await
    }

    async fn with(config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let target = listener.local_addr().expect("bound").into();
        let moved = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&moved);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&count)));
            }
        });
        let (path, relays) = build(2, &direct(), config);
        Self {
            path,
            _relays: relays,
            target,
            moved,
        }
    }

    /// A flow whose first byte says what the target does.
    async fn open(&self, first: u8) -> Stream {
        let terms = Terms::default();
        let opened = self.path.open_stream(&self.target, &terms).await;
        let mut stream = opened.expect("opened");
        stream.write_all(&[first]).await.expect("open");
        stream
    }

    /// Waits until nothing moves any more. Were it too short, the test would pass in vain, never fail.
    async fn stands_still(&self) {
        let mut before = 0;
        loop {
            sleep(Duration::from_millis(300)).await;
            let now = self.moved.load(Ordering::Relaxed);
            if now > 0 && now == before {
                return;
            }
            before = now;
        }
    }

    async fn another_flow_goes_on(&self) {
        let echo = async {
            let mut stream = self.open(b'e').await;
            stream.write_all(b"x").await.expect("open");
            assert_eq!(stream.read_u8().await.expect("an echo"), b'x');
        };
        soon(echo).await;
    }
}

/// 't' talks without an end, 'd' is deaf, 'e' echoes.
async fn serve(mut stream: TcpStream, count: Arc<AtomicUsize>) {
    match stream.read_u8().await {
        Ok(b't') => pour(stream, count).await,
        Ok(b'd') => std::future::pending().await,
        _ => {
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await.unwrap_or(0);
        }
    }
}

async fn pour(mut stream: impl tokio::io::AsyncWrite + Unpin, count: Arc<AtomicUsize>) {
    while let Ok(len) = stream.write(&[0; 16_384]).await {
        count.fetch_add(len, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn programs_that_do_not_read_leave_room_for_others() {
    let bench = Bench::new().await;
    let mut standing = Vec::new();
    for _ in 0..STANDING {
        standing.push(bench.open(b't').await);
    }
    bench.stands_still().await;
    bench.another_flow_goes_on().await;
}

/// They would keep all others from going on for good.
#[tokio::test]
async fn programs_that_do_not_read_are_given_up_where_there_is_no_room_for_others() {
    let bench = Bench::with(Config {
        window_memory: 0,
        ..Config::default()
    })
    .await;
    let (mut first, _second) = (bench.open(b't').await, bench.open(b't').await);
    let ends = async {
        loop {
            bench.stands_still().await;
            bench.another_flow_goes_on().await;
            // It may not have filled its window before, on a busy machine.
            if let Err(error) = first.read_exact(&mut [0; 1 << 10]).await {
                return error.kind();
            }
        }
    };
    assert_eq!(soon(ends).await, std::io::ErrorKind::TimedOut);
    bench.another_flow_goes_on().await;
}

#[tokio::test]
async fn targets_that_do_not_read_leave_room_for_others() {
    let bench = Bench::new().await;
    for _ in 0..STANDING {
        let stream = bench.open(b'd').await;
        tokio::spawn(pour(stream, Arc::clone(&bench.moved)));
    }
    bench.stands_still().await;
    bench.another_flow_goes_on().await;
}
