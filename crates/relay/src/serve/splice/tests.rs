//! A tunnel between channels (the client) and a loopback socket (the target).

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
};

use super::*;
use crate::{config::Limits, limits::Gate};

/// The client's octets: `None` breaks the stream, the end of the channel finishes it.
struct Up(mpsc::Receiver<Option<Bytes>>);

struct Down {
    octets: Option<mpsc::Sender<Bytes>>,
    reset: mpsc::Sender<()>,
}

struct Client {
    up: mpsc::Sender<Option<Bytes>>,
    down: mpsc::Receiver<Bytes>,
    reset: mpsc::Receiver<()>,
    done: JoinHandle<()>,
}

impl FromClient for Up {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Broken>> {
        match self.0.poll_recv(cx) {
            Poll::Ready(Some(Some(octets))) => Poll::Ready(Ok(Some(octets))),
            Poll::Ready(Some(None)) => Poll::Ready(Err(Broken)),
            Poll::Ready(None) => Poll::Ready(Ok(None)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl ToClient for Down {
    async fn write(&mut self, octets: Bytes) -> Result<(), Broken> {
        let open = self.octets.as_ref().ok_or(Broken)?;
        open.send(octets).await.map_err(|_| Broken)
    }

    async fn finish(&mut self) -> Result<(), Broken> {
        self.octets = None;
        Ok(())
    }

    fn reset(&mut self) {
        self.reset.try_send(()).expect("reset once");
    }
}

/// A tunnel that breaks after `idle`; zero is never.
#[expect(clippy::disallowed_methods, reason = "both ends are this test's")]
async fn tunnel(idle: Duration) -> (Client, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let near = TcpStream::connect(address).await.expect("connected");
    let (target, _) = listener.accept().await.expect("accepted");
    let (up, up_end) = mpsc::channel(1);
    let (down_end, down) = mpsc::channel(1);
    let (reset_end, reset) = mpsc::channel(1);
    let to = Down {
        octets: Some(down_end),
        reset: reset_end,
    };
    let done = tokio::spawn(async move {
        let gate = Gate::new(Limits::default(), crate::config::Ip::default(), 1);
        let permit = gate.request(gate.by_token(0)).expect("a place");
        let account = gate.account(gate.by_token(0)).expect("room");
        let terms = Terms {
            metrics: &Metrics::new(),
            pace: permit.pace(),
            idle,
            account: &account,
        };
        splice(Up(up_end), to, near, terms).await;
    });
    let client = Client {
        up,
        down,
        reset,
        done,
    };
    (client, target)
}

impl Client {
    async fn read_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(octets) = self.down.recv().await {
            all.extend_from_slice(&octets);
        }
        all
    }
}

#[tokio::test]
async fn octets_pass_both_ways_and_each_side_finishes_alone() {
    let (mut client, mut target) = tunnel(Duration::ZERO).await;
    let sent: Vec<u8> = (0..500_000u32).map(|n| n.to_le_bytes()[0]).collect();
    let octets = sent.clone();
    let up = client.up.clone();
    tokio::spawn(async move {
        for chunk in octets.chunks(1300) {
            let chunk = Bytes::copy_from_slice(chunk);
            up.send(Some(chunk)).await.expect("open");
        }
    });
    drop(std::mem::replace(&mut client.up, mpsc::channel(1).0));
    let mut got = Vec::new();
    target.read_to_end(&mut got).await.expect("finished");
    assert!(got == sent, "the octets changed on the way");
    let writing = async {
        target.write_all(&sent).await.expect("open");
        target.shutdown().await.expect("open");
    };
    let (back, ()) = tokio::join!(client.read_all(), writing);
    assert!(back == sent, "the octets changed on the way back");
    client.done.await.expect("ended");
    assert!(client.reset.recv().await.is_none(), "ended in order");
}

#[tokio::test]
async fn a_client_that_breaks_off_resets_the_target() {
    let (client, mut target) = tunnel(Duration::ZERO).await;
    client.up.send(None).await.expect("open");
    client.done.await.expect("ended");
    let error = target.read(&mut [0; 1]).await.expect_err("reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_target_that_resets_resets_the_client() {
    let (mut client, target) = tunnel(Duration::ZERO).await;
    target.set_zero_linger().expect("set");
    drop(target);
    assert_eq!(client.reset.recv().await, Some(()));
}

#[tokio::test]
async fn a_silent_tunnel_is_closed_after_its_time() {
    let (mut client, _target) = tunnel(Duration::from_millis(1)).await;
    assert_eq!(client.reset.recv().await, Some(()));
}

#[tokio::test]
async fn a_target_that_does_not_read_stops_the_client() {
    let (client, _target) = tunnel(Duration::ZERO).await;
    let chunk = Bytes::from(vec![0; 64 * 1024]);
    let flood = async {
        loop {
            client.up.send(Some(chunk.clone())).await.expect("open");
        }
    };
    timeout(Duration::from_millis(300), flood)
        .await
        .expect_err("stopped");
}
