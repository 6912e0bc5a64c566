//! TCP by the device's own sockets: connecting, and the stream that reads through a buffer borrowed only while data is there.
//! Used by [`super::Direct`] and by the relay's egress.

use std::{
    cell::RefCell,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpSocket, TcpStream},
};

use super::{Silence, attempts, failure, rights};
use crate::Error;

/// The size of a read buffer, in octets. A flow that has nothing to read owns none.
const READ_BUFFER: usize = 64 * 1024;

/// How many unused read buffers a thread keeps for its next reader.
const SPARE_BUFFERS: usize = 4;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// A TCP connection. Dropped before both sides have ended, it is reset.
#[derive(Debug)]
pub struct TcpFlow {
    socket: TcpStream,
    buffer: BytesMut,
    read_ended: bool,
    write_ended: bool,
}

/// The mark of its packets, and when it is given up.
pub(super) type How = (Option<u32>, Option<Silence>);

/// Connects to whichever of `addresses` answers first (RFC 8305).
///
/// # Errors
/// The most telling error of all attempts.
pub async fn connect_tcp(addresses: &[SocketAddr]) -> Result<TcpFlow, Error> {
    connect_socket(addresses).await.map(TcpFlow::new)
}

/// The same with a mark on every packet, for the system's routing rules and filters (setting one needs CAP_NET_ADMIN), and an end to silence.
pub(super) async fn connect_as(addresses: &[SocketAddr], how: How) -> Result<TcpFlow, Error> {
    let attempt = |address| connect(address, how);
    attempts::race(addresses, attempt).await.map(TcpFlow::new)
}

/// The same for a caller with a copy loop of its own, as the relay has.
///
/// # Errors
/// The most telling error of all attempts.
pub async fn connect_socket(addresses: &[SocketAddr]) -> Result<TcpStream, Error> {
    attempts::race(addresses, |address| connect(address, How::default())).await
}

async fn connect(address: SocketAddr, (mark, silence): How) -> Result<TcpStream, Error> {
    let failed = |error| failure::of_socket(error, "connecting");
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let socket = socket.map_err(failed)?;
    if let Some(mark) = mark {
        rights::mark(&socket, mark).map_err(failed)?;
    }
    if let Some(silence) = silence {
        silence.set(&socket).map_err(failed)?;
    }
    socket.set_nodelay(true).map_err(failed)?;
    socket.connect(address).await.map_err(failed)
}

impl TcpFlow {
    /// Takes a connected socket over.
    pub fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            buffer: BytesMut::new(),
            read_ended: false,
            write_ended: false,
        }
    }

    /// Our own end.
    ///
    /// # Errors
    /// The operating system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The other end.
    ///
    /// # Errors
    /// The operating system's.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    #[cfg(test)]
    pub(super) fn mark(&self) -> u32 {
        socket2::SockRef::from(&self.socket).mark().expect("a mark")
    }

    #[cfg(test)]
    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    #[cfg(test)]
    pub(super) fn buffered_capacity(&self) -> usize {
        self.buffer.capacity()
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.buffer.is_empty() && !self.read_ended {
            ready!(self.socket.poll_read_ready(cx))?;
            self.buffer = spare_buffer();
            let outcome = self.socket.try_read_buf(&mut self.buffer);
            if self.buffer.is_empty() {
                keep_buffer(std::mem::take(&mut self.buffer));
            }
            match outcome {
                Ok(0) => self.read_ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read_into(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
        self.read_ended |= buf.filled().len() == before && buf.remaining() > 0;
        Poll::Ready(Ok(()))
    }
}

fn spare_buffer() -> BytesMut {
    let spare = SPARE.with_borrow_mut(Vec::pop);
    spare.unwrap_or_else(|| BytesMut::with_capacity(READ_BUFFER))
}

fn keep_buffer(mut buffer: BytesMut) {
    buffer.clear();
    if !buffer.try_reclaim(READ_BUFFER) {
        return;
    }
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < SPARE_BUFFERS {
            spare.push(buffer);
        }
    });
}

impl AsyncRead for TcpFlow {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let flow = self.get_mut();
        if flow.buffer.is_empty() {
            return flow.poll_read_into(cx, buf);
        }
        let count = flow.buffer.len().min(buf.remaining());
        buf.put_slice(&flow.buffer[..count]);
        Pin::new(flow).consume(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for TcpFlow {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let flow = self.get_mut();
        ready!(flow.poll_fill(cx))?;
        Poll::Ready(Ok(&flow.buffer))
    }

    fn consume(self: Pin<&mut Self>, amt: usize) {
        let flow = self.get_mut();
        flow.buffer.advance(amt);
        if amt > 0 && flow.buffer.is_empty() {
            keep_buffer(std::mem::take(&mut flow.buffer));
        }
    }
}

impl AsyncWrite for TcpFlow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
        self.write_ended = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpFlow {
    fn drop(&mut self) {
        if !(self.read_ended && self.write_ended) && self.socket.set_zero_linger().is_err() {
            tracing::trace!("a connection could not be reset");
        }
    }
}
