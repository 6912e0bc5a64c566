//! Flows of datagrams and of IP packets, and UDP sockets at the far end of an overlay: batches out, batches in, in the shape that UDP_SEGMENT and UDP_GRO use.

use std::{
    fmt,
    future::poll_fn,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::{Context, Poll},
};

use hoplite_wire::connect_ip::{Prefix, Route};

use crate::{Error, ErrorKind};

/// How the network is to mark packets where it is congested, or has marked them (RFC 3168).
pub use quinn_udp::EcnCodepoint as Ecn;

/// Datagrams to send: `contents` cut every `segment` bytes; the last one may be shorter.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// The payloads, one after the other.
    pub contents: &'a [u8],
    /// The size of each payload but the last, in bytes; at least 1.
    pub segment: usize,
}

/// What one receive call brought: `len` bytes, cut every `segment` bytes; the last one may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// How many bytes of the buffer are filled. Zero is an empty datagram.
    pub len: usize,
    /// The size of each payload but the last, in bytes.
    pub segment: usize,
}

/// Whose QUIC connection id: packets that carry it are addressed to that end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// This one: packets that come through the flow carry it.
    Client,
    /// The flow's target: packets that are sent through the flow carry it.
    Target,
}

/// An open UDP flow to one target. One task sends and one receives at a time: the last waker wins.
/// Dropping it closes the flow.
pub trait Datagrams: fmt::Debug + Send + Sync {
    /// The largest payload, in bytes, that the path carries now; it may change as the path MTU is learnt.
    fn max_payload(&self) -> usize;

    /// Takes the whole batch, or none and wakes later. A payload above `max_payload` may be dropped and counted;
    /// it is never split. An error is final for the flow.
    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>>;

    /// Fills `buf` with as many payloads of one size as are there and fit. A payload larger than `buf` is dropped.
    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>>;

    /// As [`Self::poll_send`], in packets that bear this mark where datagrams are packets of the network. Elsewhere, and by default, the mark is lost.
    fn poll_send_marked(
        &self,
        cx: &mut Context<'_>,
        batch: Batch<'_>,
        _mark: Option<Ecn>,
    ) -> Poll<Result<(), Error>> {
        self.poll_send(cx, batch)
    }

    /// As [`Self::poll_recv`], and the mark that the packets bear, all of them the same. `None` as well where marks are lost, as by default.
    fn poll_recv_marked(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<(Received, Option<Ecn>), Error>> {
        self.poll_recv(cx, buf).map_ok(|received| (received, None))
    }

    /// Whether the flow should be opened again, because there is a better path now: the device has another address towards
    /// the target, or the relay another connection. Cheap enough to be asked every second.
    fn moved(&self) -> bool {
        false
    }

    /// Tells the flow that QUIC packets with a short header will carry this connection id, so that a path that treats them
    /// in a way of its own may prepare for it (forwarded mode). Others take no notice.
    fn announce(&self, _end: End, _id: &[u8]) {}

    /// The announced id is used no more.
    fn withdraw(&self, _end: End, _id: &[u8]) {}

    /// Tells the flow that it carries a QUIC connection whose handshake passed elsewhere.
    fn carries_quic(&self) {}

    /// Tells the flow that nothing has answered through it for long, or that much of what should come is lost. Whether something may be to blame that it leaves off for a while
    /// now (forwarded mode): then it may work again, and opening another one would change nothing.
    fn suspect(&self) -> bool {
        false
    }
}

impl<'a> Batch<'a> {
    /// One datagram.
    pub fn one(payload: &'a [u8]) -> Self {
        Self {
            contents: payload,
            segment: payload.len().max(1),
        }
    }

    /// The payloads, in order. An empty batch is one empty payload.
    pub fn payloads(&self) -> impl Iterator<Item = &'a [u8]> {
        let empty = self.contents.is_empty().then_some(self.contents);
        empty
            .into_iter()
            .chain(self.contents.chunks(self.segment.max(1)))
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Batch({} bytes by {})",
            self.contents.len(),
            self.segment
        )
    }
}

impl dyn Datagrams + '_ {
    /// Sends one payload.
    ///
    /// # Errors
    /// The flow's final error.
    pub async fn send(&self, payload: &[u8]) -> Result<(), Error> {
        poll_fn(|cx| self.poll_send(cx, Batch::one(payload))).await
    }

    /// Receives what is there into `buf`.
    ///
    /// # Errors
    /// The flow's final error.
    pub async fn recv(&self, buf: &mut [u8]) -> Result<Received, Error> {
        poll_fn(|cx| self.poll_recv(cx, buf)).await
    }
}

/// A UDP socket at the far end of an overlay. One task receives what comes from those that no flow is with: the last waker wins.
/// Dropping it and its flows closes it.
pub trait Bound: fmt::Debug + Send + Sync {
    /// The addresses and ports by which others know it; at most one of each family that it reaches.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// The flow with one peer, which is of a family of [`Self::addresses`]. Of two with the same peer the newer one receives.
    fn with(self: Arc<Self>, peer: SocketAddr) -> Box<dyn Datagrams>;

    /// Fills `buf` with one payload of somebody that no flow is with, and says who. A payload larger than `buf` is dropped.
    fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<(usize, SocketAddr), Error>>;

    /// Whether it still stands; if not, another one has another address.
    fn is_open(&self) -> bool;
}

impl dyn Bound + '_ {
    /// Whether a peer is of a family that it reaches.
    pub fn reaches(&self, peer: IpAddr) -> bool {
        let own = self.addresses();
        own.iter().any(|own| own.is_ipv4() == peer.is_ipv4())
    }

    /// Receives one payload of somebody that no flow is with.
    ///
    /// # Errors
    /// It is closed.
    pub async fn recv_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr), Error> {
        poll_fn(|cx| self.poll_recv_from(cx, buf)).await
    }
}

// A flow of IP packets through an overlay: ICMP echo, and protocols that are neither TCP nor UDP.
// MASQUE carries it as RFC 9484 says.

/// An open flow of IP packets. One task sends and one receives at a time: the last waker wins. Dropping it closes the flow.
pub trait Packets: fmt::Debug + Send + Sync {
    /// The source addresses that packets sent here may have: assigned by the far end, and meaningless anywhere else.
    fn addresses(&self) -> Vec<Prefix>;

    /// Where packets sent here may go. Of a name that the scope asked for, these are the addresses it has.
    fn routes(&self) -> Vec<Route>;

    /// The largest packet, in bytes, that the path carries now; at least 1280.
    fn mtu(&self) -> usize;

    /// Takes the whole batch of packets, or none and wakes later. What breaks a rule (a source that is not assigned, a destination
    /// off the routes) or exceeds [`Self::mtu`] may be dropped and counted. An error is final for the flow.
    fn poll_send(&self, cx: &mut Context<'_>, packets: Batch<'_>) -> Poll<Result<(), Error>>;

    /// Fills `buf` with as many packets of one size as are there and fit. A packet larger than `buf` is dropped.
    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>>;

    /// Whether the flow should be opened again, because there is a better path now.
    fn moved(&self) -> bool {
        false
    }
}

impl dyn Packets + '_ {
    /// Sends one packet.
    ///
    /// # Errors
    /// The flow's final error.
    pub async fn send(&self, packet: &[u8]) -> Result<(), Error> {
        poll_fn(|cx| self.poll_send(cx, Batch::one(packet))).await
    }

    /// Receives what is there into `buf`.
    ///
    /// # Errors
    /// The flow's final error.
    pub async fn recv(&self, buf: &mut [u8]) -> Result<Received, Error> {
        poll_fn(|cx| self.poll_recv(cx, buf)).await
    }

    /// The assigned address of the same family as `family`, if there is one.
    pub fn source(&self, family: IpAddr) -> Option<IpAddr> {
        let same = |prefix: &Prefix| prefix.address().is_ipv4() == family.is_ipv4();
        let found = self.addresses().into_iter().find(same)?;
        Some(found.address())
    }
}

/// What an overlay without IP packets answers.
pub(crate) fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "opening a flow of IP packets")
}
