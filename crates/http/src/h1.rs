//! HTTP/1.1 over TLS over TCP, the server's end: for users of an "HTTPS proxy" (browsers' PAC files, curl, package managers). One request
//! at a time, until one opens a tunnel: then the connection itself is the tunnel, and a UDP flow is DATAGRAM capsules on it.
//! A close of TLS finishes a direction (RFC 8446 §6.1), as over HTTP/3 the end of a stream does; "a tunnel is closed when […] either
//! side has closed its connection" (RFC 9110 §9.3.6).
//! RFC 9112; CONNECT: RFC 9110 §9.3.6; connect-udp by Upgrade: RFC 9298 §3.2, §3.3 and §5; capsules: RFC 9297 §3.5.

mod head;

use std::{
    fmt,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use hoplite_overlay::Batch;
use hoplite_wire::{
    RequestHead, ResponseHead,
    capsule::{self, MAX_DATAGRAM, UDP_OVERHEAD},
};
use http::{HeaderValue, Request, Response, header};
use http_body_util::Empty;
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncReadExt, AsyncWrite},
    net::TcpStream,
    sync::{Mutex as AsyncMutex, Notify, mpsc, oneshot, watch},
    task::AbortHandle,
    time::timeout,
};
use tokio_rustls::server::TlsStream;

use crate::{
    DatagramSink, Sent,
    buffer::read_shared,
    capsules::{self, Malformed},
};

/// The parser's buffer cannot be smaller, in bytes.
const MIN_BUFFER: usize = 8192;

type Stream = TlsStream<TcpStream>;
/// Boxed, so that the queue of a connection without any is small.
type Asked = Box<(RequestHead, Exchange)>;
/// Whoever holds one keeps the session open: its driver while requests may come, then its tunnel.
type Open = mpsc::Sender<Asked>;

/// Times and bounds of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long a client may take to send the head of a request, and to read the answer.
    pub head_timeout: Duration,
    /// The largest head that is read, in bytes; smaller than the parser's least is that.
    pub max_head: usize,
    /// How long a client may take until it has opened a tunnel.
    pub tunnel_timeout: Duration,
    /// What may wait for the client of a UDP flow, in bytes.
    pub datagram_buffer: usize,
}

/// The connection broke, or an answer does not fit HTTP/1.1.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the HTTP/1.1 connection broke")]
pub struct H1Error;

impl From<Malformed> for H1Error {
    fn from(_: Malformed) -> Self {
        Self
    }
}

/// One client's connection.
pub struct Session {
    requests: AsyncMutex<mpsc::Receiver<Asked>>,
    drain: Arc<Notify>,
    driver: AbortHandle,
}

impl Session {
    /// Speaks on `stream`; the driver runs in a task of its own until the stream is handed to a tunnel.
    pub fn server(stream: TlsStream<TcpStream>, config: &Config) -> Self {
        let (open, requests) = mpsc::channel(1);
        let drain = Arc::new(Notify::new());
        let driver = tokio::spawn(drive(stream, config.clone(), open, drain.clone()));
        Self {
            requests: AsyncMutex::new(requests),
            drain,
            driver: driver.abort_handle(),
        }
    }

    /// The next request; `None` when the connection has ended or is a tunnel's.
    pub async fn accept(&self) -> Option<(RequestHead, Exchange)> {
        self.requests.lock().await.recv().await.map(|asked| *asked)
    }

    /// Takes no more requests; a tunnel goes on.
    pub fn drain(&self) {
        self.drain.notify_one();
    }

    /// Ends the connection, unless it is a tunnel's.
    pub fn close(&self) {
        self.driver.abort();
    }
}

/// Answers requests until a tunnel takes the stream over, the client leaves, or it takes too long about it.
async fn drive(stream: Stream, config: Config, open: Open, drain: Arc<Notify>) {
    let service = service_fn(|request| ask(request, open.clone(), &config));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.head_timeout)
        .max_buf_size(config.max_head.max(MIN_BUFFER))
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let served = async {
        tokio::pin!(connection);
        tokio::select! {
            ended = &mut connection => return ended,
            () = drain.notified() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    };
    match timeout(config.tunnel_timeout, served).await {
        Ok(Ok(())) => (),
        Ok(Err(_)) => tracing::trace!("an HTTP/1.1 client broke off, or wrote no HTTP"),
        Err(_) => tracing::trace!("an HTTP/1.1 client asked for no tunnel in time"),
    }
}

/// Hands a request to the session's owner and waits for the answer; without one the connection is closed.
async fn ask(
    mut request: Request<Incoming>,
    open: Open,
    config: &Config,
) -> Result<Response<Empty<Bytes>>, oneshot::error::RecvError> {
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, _) = request.into_parts();
    let head = head::read(&parts);
    let content = head::has_content(&parts.headers);
    let (answer_in, answer) = oneshot::channel();
    let exchange = Exchange::new(answer_in, upgrade, open.clone(), config)
        .describe(head.protocol.clone(), content);
    // If the owner has gone, the exchange is dropped, and there is no answer.
    drop(open.send(Box::new((head, exchange))).await);
    answer.await
}

type Answer = oneshot::Sender<Response<Empty<Bytes>>>;

/// A request and its answer, until the connection itself is the tunnel. Dropped without an answer, it closes the connection.
pub struct Exchange {
    state: State,
    /// It came as a GET that is to be upgraded, to this token.
    upgraded: Option<String>,
    /// It brought content, which is not read.
    content: bool,
    open: Open,
    /// How long the client may take to read the answer.
    patience: Duration,
    /// What may wait for the client of a UDP tunnel, in bytes.
    bound: usize,
}

enum State {
    Asked(Answer, OnUpgrade),
    /// What came right behind the head goes first.
    Open(Arc<Tunnel>, Bytes),
    Over,
}

impl Exchange {
    fn new(answer: Answer, upgrade: OnUpgrade, open: Open, config: &Config) -> Self {
        Self {
            state: State::Asked(answer, upgrade),
            upgraded: None,
            content: false,
            open,
            patience: config.head_timeout,
            bound: config.datagram_buffer,
        }
    }

    /// Remembers what the answer depends on.
    fn describe(self, upgraded: Option<String>, content: bool) -> Self {
        Self {
            upgraded,
            content,
            ..self
        }
    }

    /// Both directions, once the request is answered; before that both fail.
    pub fn split(self) -> (DataSender, DataReceiver) {
        let (tunnel, first) = match self.state {
            State::Open(tunnel, first) => (Some(tunnel), first),
            State::Asked(..) | State::Over => (None, Bytes::new()),
        };
        let sender = DataSender(tunnel.clone());
        (sender, DataReceiver { tunnel, first })
    }

    /// Resolves when the client has gone before it was answered.
    pub async fn gone(&mut self) {
        match &mut self.state {
            State::Asked(answer, _) => answer.closed().await,
            State::Open(..) | State::Over => std::future::pending().await,
        }
    }

    /// Answers, and takes the connection over as a tunnel.
    ///
    /// # Errors
    /// The client has gone, or does not read the answer in time.
    pub async fn respond(&mut self, head: &ResponseHead) -> Result<(), H1Error> {
        let State::Asked(answer, upgrade) = std::mem::replace(&mut self.state, State::Over) else {
            return Err(H1Error);
        };
        let response = match &self.upgraded {
            Some(token) => head::write(&head::switching(head, token)),
            None => head::write(head),
        };
        answer.send(response.ok_or(H1Error)?).map_err(|_| H1Error)?;
        let upgraded = timeout(self.patience, upgrade).await;
        let upgraded = upgraded.map_err(|_| H1Error)?.map_err(|_| H1Error)?;
        let parts = upgraded.downcast::<TokioIo<Stream>>();
        let parts = parts.map_err(|_| H1Error)?;
        let tunnel = Tunnel::new(parts.io.into_inner(), self.open.clone());
        self.state = State::Open(Arc::new(tunnel), parts.read_buf);
        Ok(())
    }

    /// Answers; other requests may follow. HTTP/1.1 sends no content with it.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn refuse(self, head: &ResponseHead) -> Result<(), H1Error> {
        let State::Asked(answer, _) = self.state else {
            return Err(H1Error);
        };
        let mut response = head::write(head).ok_or(H1Error)?;
        if self.content {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        answer.send(response).map_err(|_| H1Error)
    }

    /// A UDP flow, once the request is answered: `sink` gets the client's payloads.
    pub fn datagrams(self, sink: Arc<dyn DatagramSink>) -> Flow {
        let bound = self.bound;
        let (sender, receiver) = self.split();
        Flow::new(sender, receiver, sink, bound)
    }
}

/// The connection. Both directions are used by one task.
struct Tunnel {
    tls: Mutex<Stream>,
    _open: Open,
}

/// From the client.
pub struct DataReceiver {
    tunnel: Option<Arc<Tunnel>>,
    first: Bytes,
}

/// To the client.
pub struct DataSender(Option<Arc<Tunnel>>);

impl Tunnel {
    fn new(tls: Stream, open: Open) -> Self {
        Self {
            tls: Mutex::new(tls),
            _open: open,
        }
    }

    fn tls(&self) -> MutexGuard<'_, Stream> {
        self.tls.lock()
    }

    fn poll_read(&self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let read = read_shared(|buffer| {
            let mut tls = self.tls();
            match pin!(tls.read_buf(buffer)).poll(cx) {
                Poll::Ready(read) => read.map_err(Some),
                Poll::Pending => Err(None),
            }
        });
        match read {
            Ok(bytes) => Poll::Ready(Ok(bytes)),
            Err(Some(error)) => Poll::Ready(Err(error)),
            Err(None) => Poll::Pending,
        }
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &mut Bytes) -> Poll<io::Result<()>> {
        let mut tls = self.tls();
        while !bytes.is_empty() {
            match ready!(Pin::new(&mut *tls).poll_write(cx, bytes))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => bytes.advance(written),
            }
        }
        Pin::new(&mut *tls).poll_flush(cx)
    }
}

impl DataReceiver {
    /// The next bytes; `None` when the client has finished.
    ///
    /// # Errors
    /// A connection that ends without a close of TLS was cut off: what came is not complete.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, H1Error>> {
        if !self.first.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.first))));
        }
        let tunnel = self.tunnel.as_ref().ok_or(H1Error)?;
        let bytes = ready!(tunnel.poll_read(cx)).map_err(|_| H1Error)?;
        Poll::Ready(Ok(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }
}

impl DataSender {
    fn tunnel(&self) -> Result<&Tunnel, H1Error> {
        self.0.as_deref().ok_or(H1Error)
    }

    /// Breaks the connection off: without a close of TLS, and at once.
    pub fn reset(&mut self) {
        let Some(tunnel) = &self.0 else { return };
        if let Err(error) = tunnel.tls().get_ref().0.set_zero_linger() {
            tracing::trace!(%error, "a client's connection closes in order instead of resetting");
        }
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), H1Error> {
        let tunnel = self.tunnel()?;
        let written = poll_fn(|cx| tunnel.poll_write(cx, &mut bytes)).await;
        written.map_err(|_| H1Error)
    }

    /// Ends this direction by a close of TLS.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn finish(&mut self) -> Result<(), H1Error> {
        let tunnel = self.tunnel()?;
        let shut = poll_fn(|cx| Pin::new(&mut *tunnel.tls()).poll_shutdown(cx)).await;
        shut.map_err(|_| H1Error)
    }
}

/// A UDP flow. Dropping it ends the tunnel.
pub struct Flow {
    outbox: Arc<Outbox>,
    ended: watch::Receiver<bool>,
    reset: watch::Sender<bool>,
    driver: AbortHandle,
}

/// Capsules that wait for the client, at most `bound` bytes; the newest are dropped. As many again may be on their way.
struct Outbox {
    bound: usize,
    waiting: Mutex<BytesMut>,
    more: Notify,
}

impl Flow {
    fn new(
        sender: DataSender,
        mut receiver: DataReceiver,
        sink: Arc<dyn DatagramSink>,
        bound: usize,
    ) -> Self {
        let outbox = Arc::new(Outbox::new(bound));
        let (ended_in, ended) = watch::channel(false);
        let (reset, resets) = watch::channel(false);
        let capsules = outbox.clone();
        let driver = tokio::spawn(async move {
            let mut sender = Sender(sender, resets);
            let read = capsules::read(|cx| receiver.poll_data(cx), &*sink);
            tokio::select! {
                _ = read => (),
                Err(H1Error) = capsules.write(&mut sender.0) => (),
            }
            drop((sender, receiver));
            ended_in.send_replace(true);
        });
        Self {
            outbox,
            ended,
            reset,
            driver: driver.abort_handle(),
        }
    }

    /// The largest payload of a capsule, in bytes.
    pub fn max_payload(&self) -> usize {
        MAX_DATAGRAM - 1
    }

    /// Sends what there is room for and drops the rest.
    pub fn send(&self, batch: Batch<'_>) -> Sent {
        self.outbox.put(batch)
    }

    /// Resolves when the client has ended the tunnel, in order or not.
    pub async fn closed(&self) {
        drop(self.ended.clone().wait_for(|ended| *ended).await);
    }

    /// Breaks the tunnel off.
    pub fn reset(&self) {
        self.reset.send_replace(true);
    }
}

/// Resets the connection when it is dropped, if it is to.
struct Sender(DataSender, watch::Receiver<bool>);

impl Drop for Sender {
    fn drop(&mut self) {
        if *self.1.borrow() {
            self.0.reset();
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Outbox {
    fn new(bound: usize) -> Self {
        Self {
            bound,
            waiting: Mutex::default(),
            more: Notify::new(),
        }
    }

    fn put(&self, batch: Batch<'_>) -> Sent {
        let mut sent = Sent::default();
        let mut waiting = self.waiting.lock();
        for payload in batch.payloads() {
            if payload.len() >= MAX_DATAGRAM {
                sent.too_large += 1;
            } else if waiting.len() + payload.len() + UDP_OVERHEAD > self.bound {
                sent.full += 1;
            } else {
                capsule::write_udp(&mut *waiting, payload);
                sent.accepted += 1;
            }
        }
        drop(waiting);
        self.more.notify_one();
        sent
    }

    /// All that waits; the memory goes with it, so that a tunnel at rest has none.
    fn take(&self) -> Bytes {
        let mut waiting = self.waiting.lock();
        std::mem::take(&mut *waiting).freeze()
    }

    /// Writes what is put in, until the client is gone.
    async fn write(&self, sender: &mut DataSender) -> Result<(), H1Error> {
        loop {
            self.more.notified().await;
            sender.write(self.take()).await?;
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session(http/1.1)")
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange(http/1.1)")
    }
}

impl fmt::Debug for DataSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataSender(http/1.1)")
    }
}

impl fmt::Debug for DataReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataReceiver(http/1.1)")
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flow(http/1.1)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_the_bound_is_dropped_and_counted() {
        let outbox = Outbox::new(100);
        let contents = [7; 120];
        let batch = Batch {
            contents: &contents,
            segment: 40,
        };
        let sent = outbox.put(batch);
        assert_eq!((sent.accepted, sent.full, sent.too_large), (2, 1, 0));
        assert_eq!(outbox.take().len(), 2 * 43);
        assert_eq!(outbox.put(Batch::one(b"again")).accepted, 1);
    }
}
