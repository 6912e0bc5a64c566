//! A UDP socket of a node: under QUIC where relays listen, and as a flow of an overlay where somebody dials.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, IoSliceMut},
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use hoplite_overlay::{Batch, Datagrams, Error, Received};
use hoplite_quic::AsyncUdpSocket;
use parking_lot::{Mutex, MutexGuard};
use quinn_udp::{RecvMeta, Transmit};

use super::{Key, MAX_DATAGRAM, Network, Node, Packet, Payload, Port};

/// Bytes that may wait for their reader; beyond it datagrams are dropped, and counted as [`super::Fate::Overfull`].
const RECEIVE_BUFFER: usize = 4 << 20;
/// Datagrams that the endpoint hands over in one call at most.
const MAX_SEGMENTS: usize = 10;

/// A socket. Its address is free again when it is dropped.
pub struct Socket {
    network: Network,
    address: SocketAddr,
    inbox: Arc<Inbox>,
}

/// A socket that has one peer.
pub struct Flow {
    socket: Socket,
    there: SocketAddr,
}

#[derive(Default)]
struct Inbox(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    datagrams: VecDeque<(SocketAddr, Bytes)>,
    bytes: usize,
    reader: Option<Waker>,
}

impl Inbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock()
    }
}

impl Port for Inbox {
    fn receive(&self, packet: Packet) -> bool {
        let Payload::Udp(payload) = packet.payload else {
            return false;
        };
        let mut waiting = self.waiting();
        let bytes = waiting.bytes.saturating_add(payload.len());
        if bytes > RECEIVE_BUFFER {
            return false;
        }
        waiting.bytes = bytes;
        waiting.datagrams.push_back((packet.from, payload));
        if let Some(reader) = waiting.reader.take() {
            reader.wake();
        }
        true
    }
}

impl Waiting {
    /// As many datagrams of one sender and one size as are there and fit; none are there, and the reader waits.
    fn fill(&mut self, buf: &mut [u8]) -> Option<(SocketAddr, Received)> {
        let (from, first) = self.datagrams.front()?;
        let (from, segment) = (*from, first.len());
        let mut len = 0;
        while let Some((sender, next)) = self.datagrams.front() {
            let room = buf
                .get_mut(len..)
                .and_then(|rest| rest.get_mut(..next.len()));
            let Some(room) = room.filter(|_| *sender == from && next.len() <= segment) else {
                break;
            };
            room.copy_from_slice(next);
            len = len.saturating_add(next.len());
            self.bytes = self.bytes.saturating_sub(next.len());
            let shorter = next.len() < segment;
            self.datagrams.pop_front();
            if shorter {
                break;
            }
        }
        if len == 0 {
            // It does not fit, or is empty: nobody wants it.
            self.datagrams.pop_front();
            self.bytes = self.bytes.saturating_sub(segment);
        }
        Some((from, Received { len, segment }))
    }
}

impl Socket {
    /// At a free port of `node`.
    pub fn new(network: &Network, node: Node) -> Self {
        Self::at(network, network.free_address(node))
    }

    /// At `address`, which must be one of the network's nodes.
    pub fn at(network: &Network, address: SocketAddr) -> Self {
        let inbox = Arc::<Inbox>::default();
        network.open_at(Key::Socket(address), inbox.clone());
        let network = network.clone();
        Self {
            network,
            address,
            inbox,
        }
    }

    /// Sends `contents`, cut every `segment` bytes. What is larger than the network carries is not sent.
    fn send(&self, to: SocketAddr, contents: &[u8], segment: usize) {
        let contents = Bytes::copy_from_slice(contents);
        let mut rest = contents;
        while !rest.is_empty() {
            let payload = rest.split_to(segment.clamp(1, rest.len()));
            if payload.len() <= MAX_DATAGRAM {
                let (from, payload) = (self.address, Payload::Udp(payload));
                self.network.send(Packet { from, to, payload });
            }
        }
    }

    fn poll_fill(&self, cx: &Context<'_>, buf: &mut [u8]) -> Poll<(SocketAddr, Received)> {
        let mut waiting = self.inbox.waiting();
        loop {
            match waiting.fill(buf) {
                Some((_, got)) if got.len == 0 => {}
                Some(filled) => return Poll::Ready(filled),
                None => {
                    waiting.reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.network.close(&Key::Socket(self.address));
    }
}

impl Flow {
    /// From a free port of `node` to `there`.
    pub fn new(network: &Network, node: Node, there: SocketAddr) -> Self {
        let socket = Socket::new(network, node);
        Self { socket, there }
    }
}

impl Datagrams for Flow {
    fn max_payload(&self) -> usize {
        MAX_DATAGRAM
    }

    fn poll_send(&self, _: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        self.socket.send(self.there, batch.contents, batch.segment);
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        loop {
            match self.socket.poll_fill(cx, buf) {
                Poll::Ready((from, got)) if from == self.there => return Poll::Ready(Ok(got)),
                Poll::Ready(_) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl AsyncUdpSocket for Socket {
    fn poll_send(&self, _: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<()>> {
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        self.send(transmit.destination, transmit.contents, segment);
        Poll::Ready(Ok(()))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut filled = 0;
        for (buf, meta) in bufs.iter_mut().zip(metas) {
            let Poll::Ready((addr, got)) = self.poll_fill(cx, buf) else {
                break;
            };
            *meta = RecvMeta {
                addr,
                len: got.len,
                stride: got.segment,
                ..RecvMeta::default()
            };
            filled += 1;
        }
        match filled {
            0 => Poll::Pending,
            filled => Poll::Ready(Ok(filled)),
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn max_transmit_segments(&self) -> usize {
        MAX_SEGMENTS
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sim::Socket")
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sim::Flow")
    }
}
