//! MASQUE over HTTP/2 on a TLS connection: CONNECT, and CONNECT-UDP by DATAGRAM capsules. Both ends.
//! A hop falls back to it where UDP is blocked; the relay serves it on its TCP port.
//! RFC 9113 §8.5 (CONNECT), RFC 8441 (Extended CONNECT), RFC 9297 §3 (capsules), RFC 9298.
//!
//! What a peer can make us do for nothing (RFC 9113 §10.5) is bounded by the `h2` crate where it comes in one burst: 20 streams reset before they
//! are accepted, 1024 that break a rule, the CONTINUATION frames that `max_head` can need (5 at least), DATA frames without content; above it the connection
//! ends with ENHANCE_YOUR_CALM. It keeps one answer to a SETTINGS and one to a PING, and reads on when that has left. What comes slowly enough to be
//! accepted, whoever serves counts: [`Exchange::gone`], [`Session::abandoned`], [`Session::calm`].

mod driver;
mod exchange;
mod flow;
#[cfg(test)]
mod tests;
mod window;

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::h2::{Reason, client::SendRequest};
use bytes::Bytes;
use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::http_head::RequestHead;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Mutex, Semaphore, mpsc, watch},
};

use self::{
    driver::{CountReads, Ended, Stop},
    window::StreamWindow,
};
pub use self::{
    exchange::{DataReceiver, DataSender, Exchange, H2Stream},
    flow::Flow,
};

use crate::capsules::Malformed;

/// RFC 9113 §6.9.1.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;
/// How many requests wait to be accepted; further ones wait in the connection.
const BACKLOG: usize = 64;

/// Windows, limits and times of one connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What the peer may send on one stream before we have read, in bytes, at first.
    pub stream_window: u32,
    /// The same at most at a client, where one stream moves as much. Up to `stream_window`: it stays as it is.
    pub widest_stream_window: u32,
    /// What the peer may send on all streams before we have read, in bytes: bounds what a connection can hold here.
    pub connection_window: u32,
    /// What waits on one stream for the peer, in bytes; then writers wait, and datagrams are dropped.
    pub send_buffer: usize,
    /// How many requests the peer may have open.
    pub max_streams: u32,
    /// The largest head that is read, in bytes.
    pub max_head: u32,
    /// When nothing has been heard for this long, the peer is asked whether it is there.
    pub ping_after: Duration,
    /// When it says nothing for this long after being asked, the connection counts as dead.
    pub ping_patience: Duration,
    /// The largest UDP payload that a flow reports as carried, in bytes. TCP carries any; the far end's UDP does not.
    pub max_payload: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            stream_window: 1 << 20,
            widest_stream_window: 4 << 20,
            connection_window: 256 << 20,
            send_buffer: 256 << 10,
            max_streams: 10_000,
            max_head: 16 << 10,
            ping_after: Duration::from_secs(5),
            ping_patience: Duration::from_secs(5),
            max_payload: 1452,
        }
    }
}

/// Why a request or a connection failed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum H2Error {
    /// The connection broke, or the peer closed it.
    #[error("the HTTP/2 connection failed: {0}")]
    Connection(String),
    /// Nothing was heard for too long.
    #[error("the peer does not answer any more")]
    Dead,
    /// We closed the connection.
    #[error("the connection was closed here")]
    Closed,
    /// The peer reset this stream with an error code of RFC 9113 §7.
    #[error("the stream was reset with code {0:#x}")]
    Reset(u32),
    /// The peer broke a rule of HTTP or of the Capsule Protocol on this stream.
    #[error("malformed message: {0}")]
    Malformed(&'static str),
    /// The server knows no Extended CONNECT (RFC 8441 §3).
    #[error("the server offers no Extended CONNECT")]
    NoExtendedConnect,
    /// Bytes were asked for before the response, or an answer was given twice.
    #[error("the exchange is not in a state for this")]
    State,
}

impl From<::h2::Error> for H2Error {
    fn from(error: ::h2::Error) -> Self {
        match error.reason() {
            Some(reason) if error.is_reset() => Self::Reset(reason.into()),
            None if !error.is_io() => Self::State,
            _ => Self::Connection(error.to_string()),
        }
    }
}

impl From<Malformed> for H2Error {
    fn from(Malformed(rule): Malformed) -> Self {
        Self::Malformed(rule)
    }
}

impl From<H2Error> for Error {
    fn from(error: H2Error) -> Self {
        let target = H2Error::Reset(Reason::CONNECT_ERROR.into());
        let kind = match &error {
            // "A proxy treats any error in the TCP connection […] as a stream error of type CONNECT_ERROR" (RFC 9113 §8.5).
            error if *error == target => ErrorKind::TargetFailed,
            H2Error::NoExtendedConnect => ErrorKind::Unsupported,
            H2Error::State => ErrorKind::Bug,
            _ => ErrorKind::PathFailed,
        };
        Self::new(kind, "carrying a flow over HTTP/2").caused_by(error)
    }
}

impl From<H2Error> for io::Error {
    fn from(error: H2Error) -> Self {
        Self::new(io::ErrorKind::ConnectionReset, Error::from(error))
    }
}

/// A request that a client has sent, with its answer still to be given.
#[derive(Debug)]
pub struct Incoming {
    /// What it asks.
    pub head: RequestHead,
    /// Where the answer goes.
    pub exchange: Exchange,
}

/// One HTTP/2 connection. Clones are the same connection; a client's ends when all clones and all flows are dropped.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    role: Role,
    stop: watch::Sender<Stop>,
    window: watch::Sender<u32>,
    /// Of a client.
    stream_window: Arc<StreamWindow>,
    ended: Ended,
    /// The server takes no more requests, while flows go on.
    refusing: AtomicBool,
    max_payload: usize,
    /// One permit for each malformed request.
    abandoned: Arc<Semaphore>,
}

enum Role {
    Client {
        requests: SendRequest<Bytes>,
        /// Turns true when the server's settings are known.
        settled: watch::Receiver<bool>,
    },
    /// Boxed, so that the queue of a connection without any is small.
    Server(Mutex<mpsc::Receiver<Box<Incoming>>>),
}

impl Session {
    /// Speaks as a client on `io`; its driver runs in a task of its own.
    ///
    /// # Errors
    /// The connection breaks while the preface is sent.
    pub async fn client(
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        config: &Config,
    ) -> Result<Self, H2Error> {
        let (io, reads) = CountReads::new(io, usize::MAX);
        let mut builder = ::h2::client::Builder::new();
        builder
            .initial_window_size(config.stream_window)
            .initial_connection_window_size(config.connection_window)
            .max_send_buffer_size(config.send_buffer)
            .max_header_list_size(config.max_head)
            .data_frame_budget(budget(config))
            .enable_push(false);
        let (requests, connection) = builder.handshake::<_, Bytes>(io).await?;
        let (settled_in, settled) = watch::channel(false);
        let role = Role::Client { requests, settled };
        let (session, driver) = Self::new(role, config, reads);
        tokio::spawn(driver.client(connection, settled_in));
        Ok(session)
    }

    /// Speaks as a server on `io`; its driver runs in a task of its own.
    ///
    /// # Errors
    /// The connection breaks, or what comes is not HTTP/2.
    pub async fn server(
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        config: &Config,
    ) -> Result<Self, H2Error> {
        let (io, reads) = CountReads::new(io, driver::TURN);
        let mut builder = ::h2::server::Builder::new();
        builder
            .initial_window_size(config.stream_window)
            .initial_connection_window_size(config.connection_window)
            .max_send_buffer_size(config.send_buffer)
            .max_header_list_size(config.max_head)
            .max_concurrent_streams(config.max_streams)
            .enable_connect_protocol();
        let connection = builder.handshake::<_, Bytes>(io).await?;
        let (requests, incoming) = mpsc::channel(BACKLOG);
        let role = Role::Server(Mutex::new(incoming));
        let (session, driver) = Self::new(role, config, reads);
        // Boxed: every future that it passes through would have room for it.
        tokio::spawn(driver.server(Box::new(connection), requests));
        Ok(session)
    }

    fn new(role: Role, config: &Config, reads: driver::ReadCount) -> (Self, driver::Driver) {
        let (stop, stopped) = watch::channel(Stop::No);
        let (window, windows) = watch::channel(config.connection_window);
        let stream_window = StreamWindow::new(config.stream_window, config.widest_stream_window);
        let (ended_in, ended) = watch::channel(None);
        let abandoned = Arc::new(Semaphore::new(0));
        let inner = Inner {
            role,
            abandoned: Arc::clone(&abandoned),
            stop,
            window,
            stream_window: Arc::clone(&stream_window),
            ended,
            refusing: AtomicBool::new(false),
            max_payload: config.max_payload,
        };
        let driver = driver::Driver {
            config: config.clone(),
            reads,
            abandoned,
            stopped,
            windows,
            stream_window,
            ended: ended_in,
        };
        (Self(Arc::new(inner)), driver)
    }

    /// Sends a request; waits while the server allows no more of them.
    ///
    /// # Errors
    /// The connection has failed, or the server offers no Extended CONNECT and `head` needs it.
    pub async fn request(&self, head: &RequestHead) -> Result<Exchange, H2Error> {
        let Role::Client { requests, settled } = &self.0.role else {
            return Err(H2Error::State);
        };
        let request = exchange::write_request(head)?;
        let mut requests = requests.clone().ready().await.map_err(|e| self.why(e))?;
        if head.protocol.is_some() && !requests.is_extended_connect_protocol_enabled() {
            let mut settled = settled.clone();
            let known = settled.wait_for(|settled| *settled).await.is_ok();
            if !known {
                return Err(self.ending());
            }
            if !requests.is_extended_connect_protocol_enabled() {
                return Err(H2Error::NoExtendedConnect);
            }
        }
        let sent = requests.send_request(request, false);
        let (response, send) = sent.map_err(|error| self.why(error))?;
        let window = Arc::clone(&self.0.stream_window);
        Ok(Exchange::asked(response, send, window, self.0.max_payload))
    }

    /// The next request; `None` when the connection has ended.
    pub async fn accept(&self) -> Option<Incoming> {
        match &self.0.role {
            Role::Server(incoming) => incoming.lock().await.recv().await.map(|one| *one),
            Role::Client { .. } => None,
        }
    }

    /// From now on the peer of a server may send so much on all streams before it is read, in bytes. What it was allowed before is not taken back: it
    /// gets no more until as much as was withdrawn has been read.
    pub fn set_connection_window(&self, bytes: u32) {
        self.0.window.send_replace(bytes.min(LARGEST_WINDOW));
    }

    /// Resolves when the connection has ended, with the reason.
    pub async fn broken(&self) -> H2Error {
        let mut ended = self.0.ended.clone();
        let reason = ended.wait_for(Option::is_some).await;
        reason
            .ok()
            .and_then(|r| r.clone())
            .unwrap_or(H2Error::Closed)
    }

    /// Whether requests can still be sent, as far as is known: a GOAWAY is noticed by the next request.
    pub fn is_alive(&self) -> bool {
        let refusing = self.0.refusing.load(Ordering::Relaxed);
        !refusing && self.0.ended.borrow().is_none() && self.0.ended.has_changed().is_ok()
    }

    /// Takes no more requests and says so; the connection ends with the last flow (GOAWAY, RFC 9113 §6.8).
    pub fn drain(&self) {
        self.stop(Stop::Drain);
    }

    /// Ends the connection now, with all its flows.
    pub fn close(&self) {
        self.stop(Stop::Close);
    }

    /// Ends the connection of a client that does nothing but cost, and tells it so (ENHANCE_YOUR_CALM, RFC 9113 §7).
    pub fn calm(&self) {
        self.stop(Stop::Calm);
    }

    /// Resolves once for each malformed request: whoever serves bounds their number.
    pub async fn abandoned(&self) {
        match self.0.abandoned.acquire().await {
            Ok(one) => one.forget(),
            Err(_) => std::future::pending().await,
        }
    }

    fn stop(&self, how: Stop) {
        self.0.stop.send_if_modified(|stop| {
            let more = how > *stop;
            *stop = how.max(*stop);
            more
        });
    }

    fn ending(&self) -> H2Error {
        let ended = self.0.ended.borrow().clone();
        ended.unwrap_or(H2Error::Closed)
    }

    /// What the driver knows of a failed connection says more than what one of its streams knows.
    fn why(&self, error: ::h2::Error) -> H2Error {
        let refused = error.is_go_away() || error.is_io();
        self.0.refusing.fetch_or(refused, Ordering::Relaxed);
        let ended = self.0.ended.borrow().clone();
        ended.unwrap_or_else(|| error.into())
    }
}

/// Small frames may take as much memory as large ones: the crate closes the connection beyond this, in bytes.
fn budget(config: &Config) -> usize {
    usize::try_from(config.connection_window).unwrap_or(usize::MAX)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("alive", &self.is_alive())
            .finish_non_exhaustive()
    }
}
