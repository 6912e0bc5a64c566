//! A flow of UDP payloads or IP packets, of whichever version: CONNECT-UDP or CONNECT-IP at either end. Over HTTP/3 payloads travel in
//! QUIC DATAGRAM frames as far as they fit, over TCP in capsules (RFC 9297).

use std::{
    task::{Context, Poll},
    time::Duration,
};

use hoplite_overlay::Batch;
use hoplite_wire::{bound_udp, connect_ip, forwarding, h3::Code, http_datagram::UDP_HEAD};

use crate::{HttpError, HttpVersion, h1, h2, h3};

/// An open flow. Dropping it ends it.
#[derive(Debug)]
pub enum Flow {
    /// The server's end: the whole TLS connection.
    H1(h1::Flow),
    /// A stream of a TLS connection.
    H2(h2::Flow),
    /// A stream of a QUIC connection, and its DATAGRAM frames.
    H3(h3::Flow),
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// On their way.
    pub accepted: usize,
    /// Lost, because too much waits for this peer.
    pub full: usize,
    /// Lost, because the way to the peer does not carry their size.
    pub too_large: usize,
}

impl Flow {
    /// The version that carries it.
    pub fn version(&self) -> HttpVersion {
        match self {
            Self::H1(_) => HttpVersion::H1,
            Self::H2(_) => HttpVersion::H2,
            Self::H3(_) => HttpVersion::H3,
        }
    }

    /// The largest payload, in bytes, that is carried now.
    pub fn max_payload(&self) -> usize {
        match self {
            Self::H3(flow) => flow.max_payload(),
            Self::H2(flow) => flow.max_payload(),
            Self::H1(flow) => flow.max_payload(),
        }
    }

    /// Sends what there is room for now and drops the rest.
    pub fn send(&self, batch: Batch<'_>) -> Sent {
        self.send_behind(UDP_HEAD, batch)
    }

    /// As [`send`](Self::send), in another context: `head` is its id and what its format puts before each payload.
    pub fn send_behind(&self, head: &[u8], batch: Batch<'_>) -> Sent {
        let accepted = match self {
            Self::H3(flow) => flow.send_behind(head, batch),
            Self::H2(flow) => flow.send_behind(head, batch),
            Self::H1(flow) => return flow.send(batch),
        };
        let lost = batch.payloads().count().saturating_sub(accepted);
        let most = (self.max_payload() + UDP_HEAD.len()).saturating_sub(head.len());
        let is_too_large = lost > 0 && self.version().is_over_quic() && batch.segment > most;
        let (full, too_large) = if is_too_large { (0, lost) } else { (lost, 0) };
        Sent {
            accepted,
            full,
            too_large,
        }
    }

    /// Takes the whole batch, or none and wakes later; over HTTP/1.1, which servers alone speak, it drops what there is no room for.
    ///
    /// # Errors
    /// The flow has ended.
    pub fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), HttpError>> {
        self.poll_send_behind(cx, UDP_HEAD, batch)
    }

    /// As [`poll_send`](Self::poll_send), in another context: `head` is its id and what its format puts before each payload. HTTP/1.1 has none.
    ///
    /// # Errors
    /// The flow has ended.
    pub fn poll_send_behind(
        &self,
        cx: &mut Context<'_>,
        head: &[u8],
        batch: Batch<'_>,
    ) -> Poll<Result<(), HttpError>> {
        match self {
            Self::H3(flow) => flow
                .poll_send_behind(cx, head, batch)
                .map_err(HttpError::from),
            Self::H2(flow) => flow
                .poll_send_behind(cx, head, batch)
                .map_err(HttpError::from),
            Self::H1(flow) => {
                flow.send(batch);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Sends a capsule of forwarded mode on the request stream, in order with others. `false` when too much waits, when the flow has
    /// ended, or over TCP, where nothing passes a connection by.
    pub fn send_capsule(&self, capsule: &forwarding::Capsule) -> bool {
        match self {
            Self::H3(flow) => flow.send_capsule(capsule),
            Self::H2(_) | Self::H1(_) => false,
        }
    }

    /// Sends a capsule of IP proxying, behind what waits. `false`: there is no room, or the flow has ended.
    pub fn send_ip_capsule(&self, capsule: &connect_ip::Capsule) -> bool {
        match self {
            Self::H3(flow) => flow.send_ip_capsule(capsule),
            Self::H2(flow) => flow.send_ip_capsule(capsule),
            Self::H1(_) => false,
        }
    }

    /// Sends a capsule of bound UDP, behind what waits. `false`: there is no room, or the flow has ended.
    pub fn send_bound_capsule(&self, capsule: &bound_udp::Capsule) -> bool {
        match self {
            Self::H3(flow) => flow.send_bound_capsule(capsule),
            Self::H2(flow) => flow.send_bound_capsule(capsule),
            Self::H1(_) => false,
        }
    }

    /// Resolves when the peer has ended the flow.
    ///
    /// # Errors
    /// It did not end in order, or the connection is lost.
    pub async fn closed(&self) -> Result<(), HttpError> {
        match self {
            Self::H3(flow) => Ok(flow.closed().await?),
            Self::H2(flow) => Ok(flow.closed().await?),
            Self::H1(flow) => {
                flow.closed().await;
                Ok(())
            }
        }
    }

    /// Breaks the flow off: the far side says that nobody is there.
    pub fn reset(&self) {
        match self {
            Self::H3(flow) => flow.reset(Code::CONNECT_ERROR),
            Self::H2(flow) => flow.reset(),
            Self::H1(flow) => flow.reset(),
        }
    }

    /// Breaks the flow off: the peer broke a rule of forwarded mode, of IP proxying or of bound UDP.
    pub fn reset_for_breach(&self) {
        match self {
            Self::H3(flow) => flow.reset(Code::DATAGRAM_ERROR),
            Self::H2(_) | Self::H1(_) => self.reset(),
        }
    }

    /// Makes the peer say that it is still there; what passes the connection by does not count for its idle timeout.
    pub fn keep_alive(&self) {
        if let Self::H3(flow) = self {
            flow.keep_alive();
        }
    }

    /// Whether nothing waits to be sent; whoever asks has waited for that already for this long.
    pub fn is_drained(&self, waited: Duration) -> bool {
        match self {
            Self::H3(flow) => flow.is_drained(waited),
            Self::H2(_) | Self::H1(_) => true,
        }
    }

    /// Packets may have grown while they were forwarded: those that are tunnelled again are carried whatever their size.
    pub fn carry_forwarded(&self) {
        if let Self::H3(flow) = self {
            flow.carry_forwarded();
        }
    }

    /// The payloads are IP packets: those that IPv6 requires of every link are carried.
    pub fn carry_packets(&self) {
        if let Self::H3(flow) = self {
            flow.carry_packets();
        }
    }

    /// How long an answer of the peer takes now; zero over TCP, which does not say.
    pub fn round_trip(&self) -> Duration {
        match self {
            Self::H3(flow) => flow.round_trip(),
            Self::H2(_) | Self::H1(_) => Duration::ZERO,
        }
    }
}
