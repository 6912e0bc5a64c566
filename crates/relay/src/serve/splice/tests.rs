//! A tunnel between a client over HTTP/2 in memory and a loopback socket (the target).

use hoplite_http::{DataReceiver, DataSender, H2Error, HttpError, Session, h2};
use hoplite_wire::{RequestHead, ResponseHead};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    net::TcpListener,
    task::JoinHandle,
    time::timeout,
};

use super::*;
use crate::{
    config::Limits,
    limits::{Account, Quotas, Transport, memory::PIECE},
    serve::client_stream,
};

/// RFC 9113 §8.5.
const CONNECT_ERROR: u32 = 0xa;

struct Client {
    up: DataSender,
    down: DataReceiver,
    done: JoinHandle<()>,
    _sessions: [Session; 2],
}

/// An answered request: the client's halves, the server's, and the connection.
async fn connected() -> (
    (DataSender, DataReceiver),
    (Incoming, Outgoing),
    [Session; 2],
) {
    let config = h2::Config::default();
    let (near, far) = duplex(64 * 1024);
    let (client, server) = tokio::join!(
        Session::tls_client(near, &config),
        Session::h2_server(far, &config)
    );
    let (client, server) = (client.expect("a client"), server.expect("a server"));
    let head = RequestHead::connect("example.com:443");
    let mut near = client.request(&head).await.expect("sent");
    let mut far = server.accept().await.expect("arrives").exchange;
    let answered = far.respond(&ResponseHead::new(200)).await;
    answered.expect("answered");
    near.response().await.expect("an answer");
    let far = client_stream::split(far, None);
    (near.split(), far, [client, server])
}

/// A tunnel that breaks after `idle`; zero is never.
async fn tunnel(idle: Duration) -> (Client, TcpStream) {
    let (client, target, _) = tunnel_of(idle).await;
    (client, target)
}

/// The same, and what its connection may hold.
#[expect(clippy::disallowed_methods, reason = "both ends are this test's")]
async fn tunnel_of(idle: Duration) -> (Client, TcpStream, Arc<Account>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let near = TcpStream::connect(address).await.expect("connected");
    let (target, _) = listener.accept().await.expect("accepted");
    let ((up, down), (from, to), sessions) = connected().await;
    let quotas = Quotas::new(Limits::default(), crate::config::Ip::default(), 1);
    let account = Arc::new(quotas.account(quotas.by_token(0)).expect("room"));
    let held_by_task = Arc::clone(&account);
    let done = tokio::spawn(async move {
        let permit = quotas.request(quotas.by_token(0)).expect("a place");
        let terms = Terms {
            metrics: Arc::new(Metrics::new()),
            pace: permit.pace(),
            idle,
            account: held_by_task,
        };
        splice(from, to, near, terms).await;
    });
    let client = Client {
        up,
        down,
        done,
        _sessions: sessions,
    };
    (client, target, account)
}

impl Client {
    /// The next bytes; `None` at the end.
    async fn read(&mut self) -> Result<Option<Bytes>, HttpError> {
        poll_fn(|cx| self.down.poll_data(cx)).await
    }

    async fn is_reset(&mut self) -> bool {
        let reset = H2Error::Reset(CONNECT_ERROR);
        matches!(self.read().await, Err(HttpError::H2(error)) if error == reset)
    }
}

#[tokio::test]
async fn bytes_pass_both_ways_and_each_side_finishes_alone() {
    let (mut client, mut target) = tunnel(Duration::ZERO).await;
    let sent: Vec<u8> = (0..500_000u32).map(|n| n.to_le_bytes()[0]).collect();
    let (mut up, bytes) = (client.up, sent.clone());
    tokio::spawn(async move {
        for chunk in bytes.chunks(1300) {
            let chunk = Bytes::copy_from_slice(chunk);
            up.write(chunk).await.expect("open");
        }
        up.finish().await.expect("open");
    });
    let mut got = Vec::new();
    target.read_to_end(&mut got).await.expect("finished");
    assert!(got == sent, "the bytes changed on the way");
    let writing = async {
        target.write_all(&sent).await.expect("open");
        target.shutdown().await.expect("open");
    };
    let reading = async {
        let mut all = Vec::new();
        while let Some(bytes) = poll_fn(|cx| client.down.poll_data(cx))
            .await
            .expect("in order")
        {
            all.extend_from_slice(&bytes);
        }
        all
    };
    let (back, ()) = tokio::join!(reading, writing);
    assert!(back == sent, "the bytes changed on the way back");
    client.done.await.expect("ended");
}

/// Waits until a read of a target has so much room.
async fn until_there_is_room(account: &Account, bytes: usize) {
    let wait = async {
        while account.draw().room() != bytes {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = timeout(Duration::from_secs(20), wait).await;
    waited.unwrap_or_else(|_| panic!("no room of {bytes} bytes"));
}

#[tokio::test]
async fn what_was_read_of_a_target_and_nobody_takes_leaves_the_connections_tunnels_small_reads() {
    let (mut client, mut target, account) = tunnel_of(Duration::ZERO).await;
    until_there_is_room(&account, PIECE).await;
    account.begin();
    until_there_is_room(&account, 64 << 10).await;
    let sent: Vec<u8> = (0..9_000_000u32)
        .map(|n| (n >> 10).to_le_bytes()[0])
        .collect();
    let bytes = sent.clone();
    let sending = tokio::spawn(async move {
        target.write_all(&bytes).await.expect("open");
        target.shutdown().await.expect("open");
    });
    until_there_is_room(&account, PIECE).await;
    let mut got = Vec::new();
    while let Some(bytes) = client.read().await.expect("in order") {
        got.extend_from_slice(&bytes);
    }
    sending.await.expect("sent");
    assert!(got == sent, "the bytes changed on the way");
    until_there_is_room(&account, 64 << 10).await;
}

#[tokio::test]
async fn a_client_that_breaks_off_resets_the_target() {
    let (client, mut target) = tunnel(Duration::ZERO).await;
    drop((client.up, client.down));
    client.done.await.expect("ended");
    let error = target.read(&mut [0; 1]).await.expect_err("reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_target_that_resets_resets_the_client() {
    let (mut client, target) = tunnel(Duration::ZERO).await;
    target.set_zero_linger().expect("set");
    drop(target);
    assert!(client.is_reset().await);
}

#[tokio::test]
async fn a_silent_tunnel_is_closed_after_its_time() {
    let (mut client, _target) = tunnel(Duration::from_millis(1)).await;
    assert!(client.is_reset().await);
}

#[tokio::test]
async fn a_tunnel_that_waited_takes_nothing_when_others_have_had_the_room_since() {
    let (mut client, mut target, account) = tunnel_of(Duration::ZERO).await;
    let mut got = [0; 6];
    client.up.write("first".into()).await.expect("open");
    target.read_exact(&mut got[..5]).await.expect("it came");
    let others = account.hand(1 << 30);
    client.up.write("second".into()).await.expect("open");
    let early = timeout(Duration::from_millis(200), target.read(&mut got)).await;
    assert!(early.is_err(), "others hold all that there may be");
    drop(others);
    target.read_exact(&mut got).await.expect("it came");
    assert_eq!(&got, b"second");
}

#[tokio::test]
async fn a_target_that_does_not_read_stops_the_client() {
    let (mut client, _target) = tunnel(Duration::ZERO).await;
    let chunk = Bytes::from(vec![0; 64 * 1024]);
    let flood = async {
        loop {
            client.up.write(chunk.clone()).await.expect("open");
        }
    };
    timeout(Duration::from_millis(300), flood)
        .await
        .expect_err("stopped");
}

/// A QUIC connection's windows. To make one wider lets its client send as much more, also where it was made narrower before.
#[derive(Clone, Default)]
struct Credit(Arc<[AtomicU64; 3]>);

impl Credit {
    /// How many bytes the client was allowed beyond what was read.
    fn given(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// What the client may send ahead.
    fn window(&self) -> u64 {
        self.0[1].load(Ordering::Relaxed)
    }

    /// The client says that it may send nothing more.
    fn blocks(&self) {
        self.0[2].fetch_add(1, Ordering::Relaxed);
    }
}

impl Transport for Credit {
    fn set_receive(&self, bytes: u64) {
        let before = self.0[1].swap(bytes, Ordering::Relaxed);
        self.0[0].fetch_add(bytes.saturating_sub(before), Ordering::Relaxed);
    }

    fn set_send(&self, _: u64) {}

    fn path(&self) -> (Duration, u64) {
        (Duration::from_millis(20), u64::MAX)
    }

    fn blocked(&self) -> u64 {
        self.0[2].load(Ordering::Relaxed)
    }
}

/// What a client was allowed for a stream whose target takes each batch in so long, a hundred times; and what it may send ahead more than before, then and
/// after two seconds without anything.
async fn allowed_for_a_slow_target(batch: Duration, is_blocked: bool) -> [u64; 3] {
    let quotas = Quotas::new(Limits::default(), crate::config::Ip::default(), 1);
    let account = quotas.account(quotas.by_token(0)).expect("room");
    let client = Credit::default();
    account.attach(client.clone());
    account.begin();
    let (given, window) = (client.given(), client.window());
    let mut stalled = None;
    for _ in 0..100 {
        let more = unless_over(&mut stalled, async {}).await;
        more.expect("it stalls again and again");
        let written = async {
            tokio::time::sleep(batch).await;
            Ok(())
        };
        if is_blocked {
            client.blocks();
        }
        let hand = account.hand(CHUNK_BYTES);
        let done = written_in_time(written, hand, &mut stalled).await;
        done.expect("taken");
    }
    let given = client.given() - given;
    let more = client.window() - window;
    let nothing = unless_over(&mut stalled, pending::<()>()).await;
    assert!(nothing.is_none() && stalled.is_none());
    [given, more, client.window() - window]
}

#[tokio::test(start_paused = true)]
async fn a_slow_target_has_its_client_allowed_no_more_each_time_that_it_stalls() {
    let most = u64::from(Limits::default().stream_window);
    for batch in [300, 3000].map(Duration::from_millis) {
        let allowed = allowed_for_a_slow_target(batch, false).await;
        assert_eq!(allowed, [1 << 20, 1 << 20, 0]);
        let allowed = allowed_for_a_slow_target(batch, true).await;
        assert_eq!(allowed, [most, most, 0]);
    }
}
