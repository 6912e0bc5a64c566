//! The sending half of a shard's socket: the batch, and what the network interface is known to take.
//! Used by [`super::Shared`] under its lock. udp(7) UDP_SEGMENT.

use std::io;

use quinn_udp::{Transmit, UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use tokio::net::UdpSocket;

use crate::coalesce::{Coalescer, MOST_SEGMENTS, Pushed};

/// After how many refused batches in a row we take it that the interface cannot segment.
const REFUSALS: u32 = 8;

/// The batch and how to send it.
#[derive(Debug)]
pub(super) struct Outgoing {
    batch: Coalescer,
    state: UdpSocketState,
    /// How many batches in a row were refused although each of their datagrams was taken alone.
    refused: u32,
    /// How many segments the flusher saw; none before the flusher was woken for this batch.
    seen: Option<usize>,
}

impl Outgoing {
    pub(super) fn new(socket: &std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(socket))?;
        let mut outgoing = Self {
            batch: Coalescer::default(),
            refused: 0,
            seen: None,
            state,
        };
        outgoing.batch.limit(outgoing.most_segments());
        Ok(outgoing)
    }

    /// How many datagrams one batch may hold.
    pub(super) fn most_segments(&self) -> usize {
        match self.refused {
            0..REFUSALS => self.state.max_gso_segments().min(MOST_SEGMENTS),
            _ => 1,
        }
    }

    /// Whether the batch took it.
    pub(super) fn push(&mut self, transmit: &Transmit<'_>) -> bool {
        self.batch.push(transmit) == Pushed::Kept
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    pub(super) fn segments(&self) -> usize {
        self.batch.segments()
    }

    /// Whether the flusher has yet to be woken for this batch; says so once.
    pub(super) fn wants_flusher(&mut self) -> bool {
        let fresh = self.seen.is_none();
        self.seen.get_or_insert(0);
        fresh
    }

    /// Whether the batch has grown since the flusher last asked.
    pub(super) fn grew(&mut self) -> bool {
        let now = self.segments();
        self.seen.replace(now) != Some(now)
    }

    /// Sends the batch. The only error is that the kernel's queue is full: then the batch stays.
    /// Whatever else is wrong concerns this batch alone, which UDP may lose.
    pub(super) fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        let Some(transmit) = self.batch.batch() else {
            return Ok(());
        };
        match self.state.try_send(UdpSockRef::from(socket), &transmit) {
            Ok(()) => self.accepted(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Err(error) => self.recover(socket, &error),
        }
        self.batch.clear();
        self.seen = None;
        Ok(())
    }

    /// Sends a batch that somebody else has made, while there is none of ours. The errors are those of [`Self::send`].
    pub(super) fn send_through(
        &mut self,
        socket: &UdpSocket,
        transmit: &Transmit<'_>,
    ) -> io::Result<()> {
        match self.state.try_send(UdpSockRef::from(socket), transmit) {
            Ok(()) => self.refused = 0,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Err(error) => {
                self.push(transmit);
                self.recover(socket, &error);
                self.batch.clear();
                self.seen = None;
            }
        }
        Ok(())
    }

    fn accepted(&mut self) {
        if self.segments() > 1 {
            self.refused = 0;
        }
    }

    /// One datagram is lost: a probe of the MTU that is too long, or no route. Of several, those may be sent that are not too long.
    fn recover(&mut self, socket: &UdpSocket, error: &io::Error) {
        tracing::trace!(%error, "a batch was not sent");
        let errno = Errno::from_io_error(error);
        let impossible = matches!(errno, Some(Errno::IO | Errno::INVAL));
        let several = self.segments() > 1;
        if several && (impossible || errno == Some(Errno::MSGSIZE)) && self.send_singly(socket) {
            self.refused += 1;
        }
        if impossible {
            self.renew_state(socket);
        }
        self.batch.limit(self.most_segments());
    }

    /// Whether all were sent: then only their being together was wrong. A full queue loses the rest, as a network would.
    fn send_singly(&self, socket: &UdpSocket) -> bool {
        let Some(transmit) = self.batch.batch() else {
            return true;
        };
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        let sent = transmit.contents.chunks(segment).map(|contents| {
            let single = Transmit {
                contents,
                segment_size: None,
                ..transmit
            };
            self.state.try_send(UdpSockRef::from(socket), &single)
        });
        // Every one of them is tried.
        sent.filter(Result::is_err).count() == 0
    }

    /// The state takes one refusal for a final one, but a peer may cause it (by an address that cannot be answered): we count instead.
    fn renew_state(&mut self, socket: &UdpSocket) {
        match UdpSocketState::new(UdpSockRef::from(socket)) {
            Ok(state) => self.state = state,
            Err(error) => tracing::debug!(%error, "the socket's options cannot be set again"),
        }
    }
}
