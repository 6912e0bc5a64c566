//! The QUIC stack, and all of ours around it that knows nothing of relays: sockets, steering, congestion control, timers, when one acknowledges,
//! whether the other end is alive, qlog. The only door to the stack, which is `quinn-proto`: a state machine without sockets or time. What brings it
//! these, for an [`Endpoint`] and its [`Connection`]s, is ours (`driver`).
//!
//! [`Hooks`] see the packets of a connection in the clear, and govern when it acknowledges, by wrapping the stack's own cryptography. [`Qlog`] is the
//! observer that writes files; a [`ConnectionController`] steers one connection.
//! RFC 9001 §5 (what is wrapped), draft-ietf-quic-ack-frequency §4 (how acknowledgements are governed).
//!
//! # Not in this room
//! Whom to dial and how it is recognised (`link`), what is spoken on the connection (`http`, `channel`). A clock of the hooks' own: an observer takes the time itself, and [`Hooks::clock`] says who tells the ACK controller. 0-RTT packets, since nobody here sends them.

mod ack_controller;
pub mod coalesce;
pub mod congestion;
mod connection_controller;
mod crypto_wrapper;
mod driver;
mod held;
#[cfg(feature = "without-cipher")]
mod left_out;
pub mod liveness;
mod qlog;
#[cfg(target_os = "linux")]
pub mod server;
#[cfg(test)]
pub(crate) mod tests;
pub mod timer;

use std::{fmt, sync::Arc, time::Instant};

use hoplite_wire::quic_frames::Frames;

pub use self::ack_controller::{AckController, Arrivals, Bounds};
pub use self::connection_controller::ConnectionController;
use self::crypto_wrapper::{Client, Server};
pub use self::driver::{
    AsyncUdpSocket, Connecting, Connection, Endpoint, Incoming, Lately, ReadError, ReadExactError,
    ReadToEndError, Received, RecvStream, RetryError, SendDatagramError, SendStream, SendWindow,
    SharedBudget, StoppedError, UdpSocket, WhenBlocked, WindowBounds, WindowBudget, WriteError,
};
#[cfg(feature = "without-cipher")]
pub use self::left_out::{is_cipher_left_out, leave_out_cipher};
pub use self::qlog::Qlog;
/// The stack without a driver, for who brings packets and time to it (`sim`).
pub use quinn_proto as proto;
pub use quinn_proto::{
    AckFrequencyConfig, ApplicationClose, Chunk, ClientConfig, ClosedStream, ConnectError,
    ConnectionClose, ConnectionError, ConnectionId, ConnectionIdGenerator, ConnectionStats, Dir,
    EndpointConfig, IdleTimeout, MtuDiscoveryConfig, PathStats, ServerConfig, Side, StreamId,
    TransportConfig, TransportErrorCode, VarInt, VarIntBoundsExceeded, Written, crypto,
};
pub use quinn_udp as udp;

/// One packet, as it is before it is encrypted or after it was decrypted.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Which of the three packet number spaces it belongs to.
    pub space: Space,
    /// Its full packet number.
    pub number: u64,
    /// Bytes on the wire: header, payload and tag. Several packets may share one UDP datagram during a handshake.
    pub size: usize,
    /// Its frames, encoded.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Its frames.
    pub const fn frames(&self) -> Frames<'a> {
        Frames::new(self.payload)
    }
}

/// A packet number space (RFC 9000 §12.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Initial packets. The very first one that a server receives is decrypted elsewhere and never observed.
    Initial,
    /// Handshake packets.
    Handshake,
    /// 1-RTT packets.
    Data,
}

/// Is told every packet of one connection. It is called on the packet path: it must not block.
pub trait Observer: Send + Sync {
    /// A packet is about to be sent.
    fn sent(&self, packet: &Packet<'_>);
    /// A packet was received and is authentic. Duplicates are told again.
    fn received(&self, packet: &Packet<'_>);
}

/// Names observers for connections as they begin.
pub trait Watch: Send + Sync {
    /// Who observes this connection; `None` if nobody does.
    fn observe(&self, connection: &Begun<'_>) -> Option<Arc<dyn Observer>>;
}

/// A connection that begins.
#[derive(Clone, Copy, Debug)]
pub struct Begun<'a> {
    /// Which end we are.
    pub side: Side,
    /// What the wrapping room calls it, such as `hop1`.
    pub label: &'a str,
    /// The client's first destination connection id. Both ends know it: it joins their records.
    pub id: ConnectionId,
}

/// What is hooked into the connections of one endpoint, or into one connection. The default hooks nothing, and wraps nothing.
#[derive(Clone)]
pub struct Hooks {
    /// When this end acknowledges what it receives: for one connection, which has it to itself.
    pub ack_controller: Option<Arc<AckController>>,
    /// Who sees its packets.
    pub watch: Option<Arc<dyn Watch>>,
    /// The receive window that connections begin with, in bytes. What their streams hold of packets, which may be much more than flow control counts, is
    /// bounded by a multiple of it, and of what it becomes ([`Connection::set_receive_window`]): beyond that packets are lost. `None`: it is not bounded.
    pub window: Option<u64>,
    /// What time it is.
    pub clock: fn() -> Instant,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            ack_controller: None,
            watch: None,
            window: None,
            clock: Instant::now,
        }
    }
}

impl Hooks {
    /// Whether there is nothing to hook in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ack_controller.is_none() && self.watch.is_none() && self.window.is_none()
    }

    /// These hooks for one connection, with its ACK controller.
    #[must_use]
    pub fn governed(&self, ack_controller: &Arc<AckController>) -> Self {
        Self {
            ack_controller: Some(Arc::clone(ack_controller)),
            ..self.clone()
        }
    }

    /// A client's cryptography with the hooks in it; without hooks it comes back as it is.
    #[must_use]
    pub fn client(
        &self,
        inner: Arc<dyn crypto::ClientConfig>,
        label: &str,
    ) -> Arc<dyn crypto::ClientConfig> {
        if self.is_empty() {
            inner
        } else {
            Arc::new(Client::new(inner, self.clone(), label))
        }
    }

    /// A server's cryptography with the hooks in it; without hooks it comes back as it is.
    #[must_use]
    pub fn server(
        &self,
        inner: Arc<dyn crypto::ServerConfig>,
        label: &str,
    ) -> Arc<dyn crypto::ServerConfig> {
        if self.is_empty() {
            inner
        } else {
            Arc::new(Server::new(inner, self.clone(), label))
        }
    }
}

/// Two are equal when they hook the same in.
impl PartialEq for Hooks {
    fn eq(&self, other: &Self) -> bool {
        same(self.watch.as_ref(), other.watch.as_ref())
            && same(self.ack_controller.as_ref(), other.ack_controller.as_ref())
            && self.window == other.window
    }
}

fn same<T: ?Sized>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("ack_controller", &self.ack_controller)
            .field("watched", &self.watch.is_some())
            .field("window", &self.window)
            .finish()
    }
}
