//! One HTTP/3 connection, either end: CONNECT streams and CONNECT-UDP flows over one QUIC connection.
//! The overlay of this room uses the client's end, `relay` the server's.
//! RFC 9114, 9204 (static table only), 9220 (Extended CONNECT), 9297 (HTTP Datagrams, capsules), 9298 (CONNECT-UDP).
//!
//! A [`Session`] hands out [`Exchange`]s, one per request. An exchange becomes a byte stream ([`Exchange::into_stream`]), two
//! halves ([`Exchange::split`]) or a UDP flow ([`Exchange::datagrams`]). What is dropped before its end is reset.
//!
//! Every queue has a bound: early datagrams 32 and 64 KiB a connection, outgoing datagrams what QUIC buffers and one batch,
//! outgoing stream data one write of at most 64 KiB, requests not yet accepted `Config::max_waiting`.
//! What a peer opens and gives up (RFC 9114 §10.5) whoever serves counts: [`Exchange::gone`], [`Session::abandoned`].

mod counters;
mod datagrams;
mod driver;
mod error;
mod exchange;
mod flow;
mod order;
mod outbox;
mod receiver;
mod requests;
mod routes;
mod sender;
mod session;
mod stream;

use std::{sync::Arc, time::Duration};

pub use counters::Counters;
pub use error::H3Error;
pub use exchange::Exchange;
pub use flow::Flow;
pub use receiver::DataReceiver;
pub use sender::DataSender;
pub use session::{Incoming, Session};
pub use stream::H3Stream;

use crate::DatagramSink;
use hoplite_link::{Reins, quic};
use hoplite_wire::h3::Code;

/// The ALPN token.
pub const ALPN: &[u8] = b"h3";

/// How a session behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The largest field section accepted, in octets as RFC 9114 §4.2.2 counts; a larger request is answered with 431.
    pub max_field_section: usize,
    /// How long a client may take to send the head of a request: slow heads would hold memory for ever.
    pub head_timeout: Duration,
    /// Requests that have arrived and are not yet accepted; above it, heads wait unread.
    pub max_waiting: usize,
    /// What was dropped, and why. Sessions may share one.
    pub counters: Arc<Counters>,
    /// What steers the connection below; without it the peer takes us for a plain end.
    pub reins: Option<Reins>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_field_section: 16 * 1024,
            head_timeout: Duration::from_secs(10),
            max_waiting: 64,
            counters: Arc::default(),
            reins: None,
        }
    }
}

/// A QUIC error code out of an HTTP/3 one. All of ours are small; the peer's came out of 62 bits.
fn var(code: Code) -> quic::VarInt {
    quic::VarInt::from_u64(code.0).unwrap_or(quic::VarInt::MAX)
}
