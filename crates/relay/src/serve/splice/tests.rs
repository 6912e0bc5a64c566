//! A tunnel between a client over HTTP/2 in memory and a loopback socket (the target).

use hoplite_http::{DataReceiver, DataSender, H2Error, HttpError, Session, h2};
use hoplite_wire::{RequestHead, ResponseHead};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    net::TcpListener,
    task::JoinHandle,
};

use super::*;
use crate::{config::Limits, limits::Quotas, serve::client_stream};

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
#[expect(clippy::disallowed_methods, reason = "both ends are this test's")]
async fn tunnel(idle: Duration) -> (Client, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let near = TcpStream::connect(address).await.expect("connected");
    let (target, _) = listener.accept().await.expect("accepted");
    let ((up, down), (from, to), sessions) = connected().await;
    let done = tokio::spawn(async move {
        let quotas = Quotas::new(Limits::default(), crate::config::Ip::default(), 1);
        let permit = quotas.request(quotas.by_token(0)).expect("a place");
        let account = quotas.account(quotas.by_token(0)).expect("room");
        let terms = Terms {
            metrics: Arc::new(Metrics::new()),
            pace: permit.pace(),
            idle,
            account: Arc::new(account),
        };
        splice(from, to, near, terms).await;
    });
    let client = Client {
        up,
        down,
        done,
        _sessions: sessions,
    };
    (client, target)
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
