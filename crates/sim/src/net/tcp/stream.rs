//! A stream as programs have it: dialled here, or accepted from a [`super::Listener`].

use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use hoplite_overlay::{Error, ErrorKind, Reason};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::connection::{Connection, Stage};
use crate::net::{Network, Node};

/// One end. Dropped before both sides have ended it is reset.
pub struct TcpStream {
    connection: Arc<Connection>,
    current: Bytes,
}

impl TcpStream {
    /// Connects `node` to `there`.
    ///
    /// # Errors
    /// Nobody listens there, or nobody answers within 15 s.
    pub async fn connect(network: &Network, node: Node, there: SocketAddr) -> Result<Self, Error> {
        let here = network.free_address(node);
        let stream = Self::of(Connection::ask(network, here, there));
        let stage = poll_fn(|cx| stream.poll_open(cx)).await;
        let failed = |reason| Error::new(ErrorKind::TargetFailed, "connecting").because(reason);
        match stage {
            Stage::Open => Ok(stream),
            Stage::Reset => Err(failed(Reason::Refused)),
            _ => Err(failed(Reason::HostUnreachable)),
        }
    }

    pub(super) fn of(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            current: Bytes::new(),
        }
    }

    fn poll_open(&self, cx: &Context<'_>) -> Poll<Stage> {
        let mut state = self.connection.state();
        match state.stage {
            Stage::Asking(..) => {
                state.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            stage => Poll::Ready(stage),
        }
    }

    /// Ready with octets in `current`, or at the end.
    fn poll_next(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if !self.current.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.connection.state();
        if let Some(data) = state.receiver.take() {
            self.connection.make_room(&mut state);
            self.current = data;
            return Poll::Ready(Ok(()));
        }
        if state.receiver.has_ended() {
            return Poll::Ready(Ok(()));
        }
        if state.stage != Stage::Open {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let before = buf.filled().len();
        while buf.remaining() > 0 {
            match stream.poll_next(cx) {
                Poll::Ready(Ok(())) if stream.current.is_empty() => break,
                Poll::Ready(Ok(())) => {}
                waiting if buf.filled().len() == before => return waiting,
                _ => break,
            }
            let count = stream.current.len().min(buf.remaining());
            buf.put_slice(&stream.current.split_to(count));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for TcpStream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let stream = self.get_mut();
        ready!(stream.poll_next(cx))?;
        Poll::Ready(Ok(&stream.current))
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        let amt = amt.min(self.current.len());
        self.current.advance(amt);
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.connection.state();
        if state.stage != Stage::Open || state.sender.is_finished() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let taken = state.sender.write(buf);
        if taken == 0 && !buf.is_empty() {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.connection.settle(&mut state);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.connection.state();
        state.sender.finish();
        self.connection.settle(&mut state);
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.connection.release();
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sim::TcpStream")
    }
}
