//! One HTTP/3 connection, either end: CONNECT streams and CONNECT-UDP flows over one QUIC connection.
//! The overlay of this room uses the client's end, `relay` the server's.
//! RFC 9114, 9204 (static table only), 9220 (Extended CONNECT), 9297 (HTTP Datagrams, capsules), 9298 (CONNECT-UDP).
//!
//! A [`Session`] hands out [`Exchange`]s, one per request. An exchange becomes a byte stream ([`Exchange::into_stream`]), two
//! halves ([`Exchange::split`]) or a UDP flow ([`Exchange::datagrams`]). What is dropped before its end is reset.
//!
//! Every queue has a bound: early datagrams 32 and 64 KiB a connection, outgoing datagrams what QUIC buffers, one batch, and one packet of what shares it,
//! outgoing stream data one write of at most 64 KiB, requests not yet accepted `Config::max_waiting`.
//! What a peer opens and gives up (RFC 9114 §10.5) whoever serves counts: [`Exchange::gone`], [`Session::abandoned`].

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hoplite_overlay::{Error, ErrorKind};
use hoplite_quic::{self as quic, ConnectionController};
use hoplite_wire::h3::Code;

use crate::DatagramSink;

mod datagrams;
mod driver;
mod exchange;
mod flow;
mod session;
mod sharing;

pub use exchange::{DataReceiver, DataSender, Exchange, H3Stream};
pub use flow::Flow;
pub use session::{Incoming, Session};
pub use sharing::Share;

/// How a session behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The largest field section accepted, in bytes as RFC 9114 §4.2.2 counts; a larger request is answered with 431.
    pub max_field_section: usize,
    /// How long a client may take to send the head of a request: slow heads would hold memory for ever.
    pub head_timeout: Duration,
    /// Requests that have arrived and are not yet accepted; above it, heads wait unread.
    pub max_waiting: usize,
    /// What was dropped, and why. Sessions may share one.
    pub counters: Arc<Counters>,
    /// What steers the connection below; without it the peer takes us for a plain end.
    pub controller: Option<ConnectionController>,
    /// How long what is small waits for others to share a packet with.
    pub share: Share,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_field_section: 16 * 1024,
            head_timeout: Duration::from_secs(10),
            max_waiting: 64,
            counters: Arc::default(),
            controller: None,
            share: Share::default(),
        }
    }
}

/// A QUIC error code out of an HTTP/3 one. All of ours are small; the peer's came out of 62 bits.
fn var(code: Code) -> quic::VarInt {
    quic::VarInt::from_u64(code.0).unwrap_or(quic::VarInt::MAX)
}

/// A failure of a session or an exchange. Cheap to clone.
#[derive(Clone, Debug, thiserror::Error)]
pub enum H3Error {
    /// The connection is gone.
    #[error("the connection was lost: {0}")]
    Lost(#[from] quic::ConnectionError),
    /// The peer reset its direction of the stream.
    #[error("the peer reset the stream with {0}")]
    Reset(Code),
    /// The peer does not read its end of the stream any more.
    #[error("the peer stopped the stream with {0}")]
    Stopped(Code),
    /// The peer broke a rule; the stream or the connection was closed with this code.
    #[error("the peer broke the protocol: {1} ({0})")]
    Protocol(Code, &'static str),
    /// The peer takes no new requests: open another connection.
    #[error("the peer is going away")]
    GoingAway,
    /// The peer does not offer this at all.
    #[error("the peer does not support {0}")]
    Unsupported(&'static str),
    /// Nobody here has read the stream for long, while what it held kept the connection's others from going on.
    #[error("nobody read the stream while it kept others from going on, so that it was given up")]
    GivenUp,
    /// This end has already finished or reset the stream.
    #[error("the stream is already closed")]
    Closed,
}

impl From<quic::ReadError> for H3Error {
    fn from(error: quic::ReadError) -> Self {
        match error {
            quic::ReadError::Reset(code) => Self::Reset(Code(code.into_inner())),
            quic::ReadError::ConnectionLost(error) => Self::Lost(error),
            quic::ReadError::GivenUp => Self::GivenUp,
            _ => Self::Closed,
        }
    }
}

impl From<quic::WriteError> for H3Error {
    fn from(error: quic::WriteError) -> Self {
        match error {
            quic::WriteError::Stopped(code) => Self::Stopped(Code(code.into_inner())),
            quic::WriteError::ConnectionLost(error) => Self::Lost(error),
            _ => Self::Closed,
        }
    }
}

impl From<H3Error> for Error {
    fn from(error: H3Error) -> Self {
        let kind = match &error {
            H3Error::Reset(Code::CONNECT_ERROR) => ErrorKind::TargetFailed,
            H3Error::Unsupported(_) => ErrorKind::Unsupported,
            H3Error::GivenUp => ErrorKind::TimedOut,
            _ => ErrorKind::PathFailed,
        };
        Self::new(kind, "carrying a flow over HTTP/3").caused_by(error)
    }
}

impl From<H3Error> for io::Error {
    fn from(error: H3Error) -> Self {
        Error::from(error).into()
    }
}

/// Datagrams and requests that came to nothing.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests whose head broke a rule, and datagrams or capsules that ended too early.
    pub malformed: AtomicU64,
    /// Datagrams with a context id other than 0.
    pub unknown_context: AtomicU64,
    /// Payloads too large for the path.
    pub too_large: AtomicU64,
    /// Payloads dropped because the connection takes no more now.
    pub full: AtomicU64,
    /// Datagrams for a request that had not arrived, beyond the bound on those.
    pub early_dropped: AtomicU64,
    /// Datagrams for no request, or for one that is no UDP flow.
    pub unrouted: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    if count > 0 {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}
