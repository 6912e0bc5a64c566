use std::{
    future::pending,
    net::IpAddr,
    task::{Context, Poll},
};

use hoplite_overlay::{
    Batch, Datagrams, Direct, Opening, Overlay, Reason as Why, Received, Stream, Terms,
    conformance::Subject,
};
use hoplite_wire::{Target, http_head::ResponseHead};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, copy_bidirectional, duplex},
    sync::mpsc,
    task::JoinHandle,
};

use super::*;
use crate::DatagramSink;

/// A client and a server that are connected in memory.
async fn pair(config: &Config) -> (Session, Session) {
    let (near, far) = duplex(64 * 1024);
    let (client, server) =
        tokio::join!(Session::client(near, config), Session::server(far, config));
    (client.expect("a client"), server.expect("a server"))
}

/// Keeps what it is given.
struct Kept(mpsc::Sender<Bytes>);

impl DatagramSink for Kept {
    fn push(&self, payload: Bytes) {
        drop(self.0.try_send(payload));
    }

    fn flush(&self) {}
}

fn kept() -> (Arc<Kept>, mpsc::Receiver<Bytes>) {
    let (sender, receiver) = mpsc::channel(4096);
    (Arc::new(Kept(sender)), receiver)
}

/// Both ends of an answered request.
async fn open(client: &Session, server: &Session, head: &RequestHead) -> (Exchange, Exchange) {
    let mut near = client.request(head).await.expect("sent");
    let mut far = server.accept().await.expect("arrives").exchange;
    let answer = far.respond(&ResponseHead::new(200)).await;
    answer.expect("answered");
    let head = near.response().await.expect("answered");
    assert_eq!(head.status, 200);
    (near, far)
}

fn tcp() -> RequestHead {
    RequestHead::connect("example.com:443")
}

fn udp() -> RequestHead {
    RequestHead::connect_udp("relay:443", "/.well-known/masque/udp/example.com/443/")
}

#[tokio::test]
async fn a_request_and_its_answer_arrive_as_they_were_written() {
    let (client, server) = pair(&Config::default()).await;
    for head in [tcp(), udp()] {
        let head = head.with("proxy-authorization", "Bearer x");
        let mut near = client.request(&head).await.expect("sent");
        let incoming = server.accept().await.expect("arrives");
        assert_eq!(incoming.head, head);
        let answer = ResponseHead::new(502).with("proxy-status", "relay; error=dns_error");
        incoming.exchange.refuse(&answer).await.expect("answered");
        assert_eq!(near.response().await.expect("answered"), answer);
    }
}

#[tokio::test]
async fn a_reader_that_stops_holds_its_window_and_no_more() {
    let config = Config {
        stream_window: 128 * 1024,
        send_buffer: 64 * 1024,
        ..Config::default()
    };
    let (client, server) = pair(&config).await;
    let (near, far) = open(&client, &server, &tcp()).await;
    let (mut near, far) = (near.into_stream(), far.into_stream());
    let mut taken = 0;
    loop {
        let write = near.write(&[7; 10_000]);
        let Ok(count) = tokio::time::timeout(Duration::from_millis(300), write).await else {
            break;
        };
        taken += count.expect("still open");
        assert!(taken < 1 << 20, "nobody reads, yet all is taken");
    }
    let (other_near, other_far) = open(&client, &server, &tcp()).await;
    let (mut other_near, mut other_far) = (other_near.into_stream(), other_far.into_stream());
    other_near.write_all(b"x").await.expect("written");
    assert_eq!(other_far.read_u8().await.expect("not disturbed"), b'x');
    drop(near);
    drop(far);
}

#[tokio::test]
async fn datagrams_keep_their_boundaries_and_early_ones_are_kept() {
    let (client, server) = pair(&Config::default()).await;
    let mut near = client.request(&udp()).await.expect("sent");
    let mut far = server.accept().await.expect("arrives").exchange;
    far.respond(&ResponseHead::new(200))
        .await
        .expect("answered");
    near.response().await.expect("answered");
    let (near_sink, mut to_near) = kept();
    let near = near.datagrams(near_sink);
    let batch = Batch {
        contents: &[5; 2500],
        segment: 1000,
    };
    assert_eq!(near.send(batch), 3);
    assert_eq!(near.send(Batch::one(b"")), 1);
    let (far_sink, mut to_far) = kept();
    let far = far.datagrams(far_sink);
    for len in [1000, 1000, 500, 0] {
        assert_eq!(to_far.recv().await.expect("arrives").len(), len);
    }
    assert_eq!(far.send(Batch::one(&[1; 60_000])), 1);
    assert_eq!(to_near.recv().await.expect("arrives").len(), 60_000);
    drop(near);
    drop(far.closed().await);
}

#[tokio::test]
async fn a_finished_flow_ends_in_order() {
    let (client, server) = pair(&Config::default()).await;
    let (near, far) = open(&client, &server, &udp()).await;
    let far = far.datagrams(kept().0);
    let (mut sender, _receiver) = near.split();
    sender.finish().expect("finished");
    assert_eq!(far.closed().await, Ok(()));
}

#[tokio::test]
async fn unknown_capsules_and_contexts_are_skipped() {
    let (client, server) = pair(&Config::default()).await;
    let (near, far) = open(&client, &server, &udp()).await;
    let (sink, mut payloads) = kept();
    let far = far.datagrams(sink);
    let (mut sender, _receiver) = near.split();
    let bytes = [
        &b"\x21\x03abc"[..],
        b"\x00\x02\x01x",
        b"\x00\x02\x00y",
        b"\x00\x05\x00",
    ];
    for bytes in bytes {
        let write = sender.write(Bytes::copy_from_slice(bytes)).await;
        write.expect("written");
    }
    assert_eq!(payloads.recv().await.expect("arrives"), b"y"[..]);
    sender.finish().expect("finished");
    assert!(matches!(far.closed().await, Err(H2Error::Malformed(_))));
}

#[tokio::test]
async fn datagrams_beyond_the_send_buffer_are_dropped_and_not_kept() {
    let config = Config {
        stream_window: 64 * 1024,
        send_buffer: 64 * 1024,
        ..Config::default()
    };
    let (client, server) = pair(&config).await;
    let (near, _far) = open(&client, &server, &udp()).await;
    let (sink, _payloads) = kept();
    let near = near.datagrams(sink);
    let sent: usize = (0..1000).map(|_| near.send(Batch::one(&[0; 1200]))).sum();
    assert!((10..200).contains(&sent), "{sent}");
}

#[tokio::test]
async fn a_server_without_extended_connect_is_noticed() {
    let (near, far) = duplex(64 * 1024);
    tokio::spawn(async move {
        let mut plain = ::h2::server::handshake(far).await.expect("a server");
        while plain.accept().await.is_some() {}
    });
    let client = Session::client(near, &Config::default()).await;
    let client = client.expect("a client");
    let error = client.request(&udp()).await.expect_err("not offered");
    assert_eq!(error, H2Error::NoExtendedConnect);
    assert!(client.is_alive());
}

#[tokio::test]
async fn malformed_requests_are_reset_and_disturb_no_other() {
    let (client, server) = pair(&Config::default()).await;
    let (near, far) = open(&client, &server, &tcp()).await;
    let head = RequestHead {
        authority: "user@relay".into(),
        ..udp()
    };
    let mut bad = client.request(&head).await.expect("sent");
    let accepting = tokio::spawn(async move { server.accept().await.is_some() });
    assert!(matches!(bad.response().await, Err(H2Error::Reset(_))));
    let (mut near, mut far) = (near.into_stream(), far.into_stream());
    near.write_all(b"x").await.expect("written");
    assert_eq!(far.read_u8().await.expect("not disturbed"), b'x');
    accepting.abort();
}

/// A connection on which everything takes so long, each way.
fn far_apart(delay: Duration) -> (DuplexStream, DuplexStream) {
    let ((near, a), (b, far)) = (duplex(BDP), duplex(BDP));
    let ((from_near, to_near), (from_far, to_far)) = (tokio::io::split(a), tokio::io::split(b));
    tokio::spawn(late(from_near, to_far, delay));
    tokio::spawn(late(from_far, to_near, delay));
    (near, far)
}

/// More than anything in these tests has on its way.
const BDP: usize = 64 << 20;

async fn late(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    delay: Duration,
) {
    let (on_its_way, mut arriving) = mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((when, bytes)) = arriving.recv().await {
            tokio::time::sleep_until(when).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut bytes = vec![0; 256 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let when = tokio::time::Instant::now() + delay;
        drop(on_its_way.send((when, bytes[..count].to_vec())));
    }
}

/// How many bytes a writer gets rid of while nobody reads.
async fn taken(writer: &mut H2Stream) -> usize {
    let mut all = 0;
    let piece = vec![7; 64 << 10];
    while let Ok(count) = tokio::time::timeout(Duration::from_secs(10), writer.write(&piece)).await
    {
        all += count.expect("still open");
    }
    all
}

/// Moves so many bytes; the reader takes `pace` of them, and then waits so long.
async fn carry_all(
    (writer, reader): (&mut H2Stream, &mut H2Stream),
    bytes: usize,
    pace: (usize, Duration),
) {
    let write = async {
        for _ in 0..bytes / PIECE {
            writer.write_all(&[7; PIECE]).await.expect("open");
        }
    };
    let read = async {
        let mut left = bytes;
        while left > 0 {
            let mut part = vec![0; pace.0.min(left)];
            reader.read_exact(&mut part).await.expect("open");
            left -= part.len();
            tokio::time::sleep(pace.1).await;
        }
    };
    tokio::join!(write, read);
}

const PIECE: usize = 64 << 10;
const ROUND_TRIP: Duration = Duration::from_millis(200);

/// A download that begins, and what of it is taken in the end without being read, after as much has been moved at this pace.
async fn taken_after(pace: (usize, Duration), up: bool) -> [usize; 2] {
    let (near, far) = far_apart(ROUND_TRIP / 2);
    let config = Config::default();
    let (client, server) = tokio::join!(
        Session::client(near, &config),
        Session::server(far, &config)
    );
    let (client, server) = (client.expect("a client"), server.expect("a server"));
    let (near, far) = open(&client, &server, &tcp()).await;
    let (near, far) = (near.into_stream(), far.into_stream());
    let (mut writer, mut reader) = if up { (near, far) } else { (far, near) };
    let before = taken(&mut writer).await;
    reader.read_exact(&mut vec![0; before]).await.expect("open");
    // What waited was read at once, and says nothing of the path.
    tokio::time::sleep(10 * ROUND_TRIP).await;
    carry_all((&mut writer, &mut reader), 24 << 20, pace).await;
    tokio::time::sleep(10 * ROUND_TRIP).await;
    [before, taken(&mut writer).await]
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_moves_much_in_a_round_trip_may_have_more_on_its_way() {
    let [before, after] = taken_after((PIECE, Duration::ZERO), false).await;
    assert_eq!(before, 1 << 20);
    // A receiver gives room back in large pieces.
    assert!((5 << 19..=4 << 20).contains(&after), "{after}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_moves_little_in_a_round_trip_keeps_its_window() {
    let [before, after] = taken_after((3 * PIECE, ROUND_TRIP), false).await;
    assert_eq!(before, 1 << 20);
    assert!(after <= 1 << 20, "{after}");
}

#[tokio::test(start_paused = true)]
async fn what_a_server_lets_clients_send_ahead_stays_as_it_is() {
    let [before, after] = taken_after((PIECE, Duration::ZERO), true).await;
    assert_eq!(before, 1 << 20);
    assert!(after <= 1 << 20, "{after}");
}

/// A connection that can be cut without either end being told.
fn cut_connection() -> (DuplexStream, DuplexStream, JoinHandle<()>) {
    let ((near, mut a), (mut b, far)) = (duplex(64 * 1024), duplex(64 * 1024));
    let cut = tokio::spawn(async move {
        tokio::select! {
            _ = copy_bidirectional(&mut a, &mut b) => {}
            () = tokio::time::sleep(Duration::from_secs(60)) => {}
        }
        pending().await
    });
    (near, far, cut)
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_noticed_within_seconds() {
    let (near, far, _cut) = cut_connection();
    let config = Config::default();
    let (client, server) = tokio::join!(
        Session::client(near, &config),
        Session::server(far, &config)
    );
    let (client, _server) = (client.expect("a client"), server.expect("a server"));
    let start = tokio::time::Instant::now();
    assert_eq!(client.broken().await, H2Error::Dead);
    let took = start.elapsed().as_secs();
    assert!((60..=72).contains(&took), "{took}");
    assert!(!client.is_alive());
    assert_eq!(
        client.request(&tcp()).await.expect_err("dead"),
        H2Error::Dead
    );
}

#[tokio::test]
async fn closing_ends_every_flow_by_an_error() {
    let (client, server) = pair(&Config::default()).await;
    let (near, _far) = open(&client, &server, &tcp()).await;
    server.close();
    assert!(near.into_stream().read_u8().await.is_err());
    let broken = client.broken().await;
    assert!(matches!(broken, H2Error::Connection(_) | H2Error::Closed));
    assert!(server.accept().await.is_none());
}

/// A relay in miniature behind an HTTP/2 connection, as an overlay.
#[derive(Debug)]
struct Relayed(Session);

async fn relayed() -> Subject {
    let (client, server) = pair(&Config::default()).await;
    tokio::spawn(async move {
        while let Some(incoming) = server.accept().await {
            tokio::spawn(serve(incoming));
        }
    });
    Subject::on_loopback(Arc::new(Relayed(client)))
}

async fn serve(incoming: Incoming) {
    let Incoming { head, mut exchange } = incoming;
    let target = match head.path.as_deref() {
        Some(path) => hoplite_wire::template::Template::well_known().match_path(path),
        None => Ok(head.authority.parse().expect("a target")),
    };
    let (target, terms) = (target.expect("a target"), Terms::default());
    let direct = Direct::new();
    if head.protocol.is_some() {
        let flow = direct.open_datagrams(&target, &terms).await.expect("opens");
        let answer = exchange.respond(&ResponseHead::new(200)).await;
        answer.expect("answered");
        return carry(flow.into(), exchange).await;
    }
    match direct.open_stream(&target, &terms).await {
        Ok(stream) => {
            let answer = exchange.respond(&ResponseHead::new(200)).await;
            answer.expect("answered");
            splice(stream, exchange.into_stream()).await;
        }
        Err(error) => {
            let error = match error.reason() {
                Some(Why::Refused) => "connection_refused",
                _ => "dns_error",
            };
            let answer = ResponseHead::new(502);
            let answer = answer.with("proxy-status", format!("relay; error={error}"));
            drop(exchange.refuse(&answer).await);
        }
    }
}

/// An error on either side drops, hence resets, both.
async fn splice(mut a: Stream, mut b: H2Stream) {
    drop(copy_bidirectional(&mut a, &mut b).await);
}

/// Sends at once or never, as a relay does.
struct ToTarget(Arc<dyn Datagrams>);

impl DatagramSink for ToTarget {
    fn push(&self, payload: Bytes) {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        if let Poll::Ready(sent) = self.0.poll_send(&mut cx, Batch::one(&payload)) {
            sent.expect("sends");
        }
    }

    fn flush(&self) {}
}

async fn carry(target: Arc<dyn Datagrams>, exchange: Exchange) {
    let flow = exchange.datagrams(Arc::new(ToTarget(target.clone())));
    let mut buf = vec![0; 65_536];
    let down = async {
        while let Ok(received) = target.recv(&mut buf).await {
            flow.send(Batch {
                contents: &buf[..received.len],
                segment: received.segment,
            });
        }
    };
    tokio::select! {
        () = down => {}
        _ = flow.closed() => {}
    }
}

/// The client's end of a UDP flow.
#[derive(Debug)]
struct Tunnel {
    flow: Flow,
    payloads: parking_lot::Mutex<mpsc::Receiver<Bytes>>,
}

impl Datagrams for Tunnel {
    fn max_payload(&self) -> usize {
        self.flow.max_payload()
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        self.flow.poll_send(cx, batch).map_err(Error::from)
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        let mut payloads = self.payloads.lock();
        payloads.poll_recv(cx).map(|payload| {
            let payload = payload.ok_or(H2Error::Closed)?;
            buf[..payload.len()].copy_from_slice(&payload);
            Ok(Received {
                len: payload.len(),
                segment: payload.len().max(1),
            })
        })
    }
}

impl Relayed {
    async fn ask(&self, head: &RequestHead) -> Result<Exchange, Error> {
        let mut exchange = self.0.request(head).await?;
        crate::accepted(&exchange.response().await?)?;
        Ok(exchange)
    }
}

impl Overlay for Relayed {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(terms.run("opening", async move {
            let head = RequestHead::connect(target.to_string());
            if terms.early {
                let stream = self.0.request(&head).await?.into_stream();
                return Ok(Stream::early(stream, terms.deadline));
            }
            Ok(Stream::new(self.ask(&head).await?.into_stream()))
        }))
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(terms.run("opening", async move {
            let path = hoplite_wire::template::Template::well_known().expand(target);
            let exchange = self.ask(&RequestHead::connect_udp("relay", path)).await?;
            let (sink, payloads) = kept();
            let tunnel = Tunnel {
                flow: exchange.datagrams(sink),
                payloads: parking_lot::Mutex::new(payloads),
            };
            Ok(Box::new(tunnel) as Box<dyn Datagrams>)
        }))
    }

    fn resolve<'a>(&'a self, _: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async { Err(Error::new(ErrorKind::Unsupported, "resolving")) })
    }
}

mod conforms {
    hoplite_overlay::conformance_tests!(super::relayed().await);
}

#[tokio::test]
async fn many_small_datagrams_at_once_end_no_connection() {
    let config = Config {
        connection_window: 32 * 1024,
        ..Config::default()
    };
    for len in [35, 64] {
        let (near, far) = duplex(1 << 20);
        let (client, server) = tokio::join!(
            Session::client(near, &config),
            Session::server(far, &config)
        );
        let (client, server) = (client.expect("a client"), server.expect("a server"));
        let (near, far) = open(&client, &server, &udp()).await;
        let (sink, mut payloads) = kept();
        let _far = far.datagrams(sink);
        let near = near.datagrams(kept().0);
        let sent: usize = (0..1500)
            .map(|_| near.send(Batch::one(&vec![0; len])))
            .sum();
        assert!(sent > 900, "{sent}");
        for n in 0..sent {
            let one = payloads.recv().await;
            assert!(one.is_some(), "{n} of {sent} came");
        }
    }
}
