//! What an endpoint sends and receives through. udp(7) UDP_SEGMENT and UDP_GRO.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering},
    task::{Context, Poll, ready},
};

use parking_lot::RwLock;
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use tokio::io::Interest;

use crate::coalesce::MOST_SEGMENTS;

/// A socket under an endpoint, whose task alone calls it.
pub trait AsyncUdpSocket: Send + Sync + fmt::Debug + 'static {
    /// Sends what others than the endpoint have given to the socket, and remembers whom to wake when they give it more.
    fn poll_flush(&self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Sends all packets of `transmit`, or none.
    ///
    /// # Errors
    /// They are lost.
    fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<()>>;

    /// Receives a batch into each of `buffers`; how many.
    ///
    /// # Errors
    /// Something went wrong once; it may be asked again.
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>>;

    /// Where it is.
    ///
    /// # Errors
    /// The system does not say.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// How many packets one call sends.
    fn max_transmit_segments(&self) -> usize {
        1
    }

    /// How many packets one buffer takes.
    fn max_receive_segments(&self) -> usize {
        1
    }

    /// Whether the network may cut packets up: then the path's MTU is not looked for.
    fn may_fragment(&self) -> bool {
        true
    }
}

/// After how many refused batches in a row we take it that the interface cannot segment.
const REFUSALS: u32 = 8;

/// What the system says of a batch that the interface cannot cut up.
#[cfg(unix)]
const IMPOSSIBLE: &[Errno] = &[Errno::IO, Errno::INVAL];
#[cfg(windows)]
const IMPOSSIBLE: &[Errno] = &[Errno::INVAL];

/// A socket of the system's.
pub struct UdpSocket {
    io: tokio::net::UdpSocket,
    state: RwLock<UdpSocketState>,
    /// How many batches in a row were refused although each of their packets was taken alone.
    refused: AtomicU32,
}

impl UdpSocket {
    /// Takes over a bound socket, in the current runtime.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        Ok(Self {
            state: RwLock::new(UdpSocketState::new(UdpSockRef::from(&socket))?),
            io: tokio::net::UdpSocket::from_std(socket)?,
            refused: AtomicU32::new(0),
        })
    }

    /// Sends at once, from whichever task. Whatever is wrong concerns this batch alone, which UDP may lose.
    ///
    /// # Errors
    /// The kernel's queue is full; nothing was sent.
    pub fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // A packet may come from port 0, but nothing can be sent there: the kernel would refuse the whole batch.
        if transmit.destination.port() == 0 {
            return Ok(());
        }
        let sent = self
            .io
            .try_io(Interest::WRITABLE, || self.attempt(transmit));
        match sent {
            Ok(()) => {
                if transmit.segment_size.is_some() && self.refused.load(Ordering::Relaxed) > 0 {
                    self.refused.store(0, Ordering::Relaxed);
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            Err(error) => {
                self.recover(transmit, &error);
                Ok(())
            }
        }
    }

    fn attempt(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let socket = UdpSockRef::from(&self.io);
        self.state.read().try_send(socket, transmit)
    }

    /// One packet is lost: a probe of the MTU that is too long, or no route. Of several, those may be sent that are not too long.
    fn recover(&self, transmit: &Transmit<'_>, error: &io::Error) {
        tracing::trace!(%error, "a batch was not sent");
        let errno = Errno::from_io_error(error);
        let impossible = errno.is_some_and(|errno| IMPOSSIBLE.contains(&errno));
        let several = transmit.segment_size.is_some();
        if several && (impossible || errno == Some(Errno::MSGSIZE)) && self.send_singly(transmit) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        if impossible {
            self.renew_state();
        }
    }

    /// Whether all were sent: then only their being together was wrong. A full queue loses the rest, as a network would.
    fn send_singly(&self, transmit: &Transmit<'_>) -> bool {
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        let sent = transmit.contents.chunks(segment.max(1)).map(|contents| {
            self.attempt(&Transmit {
                contents,
                segment_size: None,
                ..*transmit
            })
        });
        // Every one of them is tried.
        sent.filter(Result::is_err).count() == 0
    }

    /// The state takes one refusal for a final one, but a peer may cause it (by an address that cannot be answered): we count instead.
    fn renew_state(&self) {
        match UdpSocketState::new(UdpSockRef::from(&self.io)) {
            Ok(state) => *self.state.write() = state,
            Err(error) => tracing::debug!(%error, "the socket's options cannot be set again"),
        }
    }
}

impl AsyncUdpSocket for UdpSocket {
    fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.io.poll_send_ready(cx))?;
            match self.try_send(transmit) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let mut last = None;
            let received = self.io.try_io(Interest::READABLE, || {
                let socket = UdpSockRef::from(&self.io);
                let count = self.state.read().recv(socket, buffers, metas)?;
                if count == buffers.len() {
                    return Ok(count);
                }
                // Less than there was room for: the socket is empty, and is not asked again until the system speaks of more (epoll(7), EPOLLET).
                last = Some(count);
                Err(io::ErrorKind::WouldBlock.into())
            });
            match (last, received) {
                (Some(count), _) => return Poll::Ready(Ok(count)),
                (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                (None, received) => return Poll::Ready(received),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        match self.refused.load(Ordering::Relaxed) {
            0..REFUSALS => self.state.read().max_gso_segments().clamp(1, MOST_SEGMENTS),
            _ => 1,
        }
    }

    fn max_receive_segments(&self) -> usize {
        self.state.read().gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.read().may_fragment()
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UdpSocket").field(&self.io).finish()
    }
}
