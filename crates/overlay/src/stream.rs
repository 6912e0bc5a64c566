//! A TCP flow through an overlay: read, write, finish.
//! Reading is buffered (`AsyncBufRead`), so that a copy loop takes the overlay's own buffers without one more copy.

use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::early::{Asked, Early};

/// What a stream is made of.
///
/// Shutdown finishes the sending side and leaves the receiving side open (half-close). Dropping the stream before
/// both sides have ended resets it: the far end must not take it for a complete transfer.
pub trait Io: AsyncBufRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncBufRead + AsyncWrite + fmt::Debug + Send + Unpin> Io for T {}

/// An open TCP flow. Its I/O errors carry an [`crate::Error`] where the overlay knows more.
#[derive(Debug)]
pub struct Stream {
    io: Box<dyn Io>,
    /// Turns true with the far end's answer, if that was not there when the stream was handed out.
    answered: Option<Arc<AtomicBool>>,
}

impl Stream {
    /// Wraps what carries the flow.
    pub fn new(io: impl Io + 'static) -> Self {
        Self {
            io: Box::new(io),
            answered: None,
        }
    }

    /// Wraps what carries a flow that the far end has not accepted yet, and gives it up at `deadline` if it has not by then.
    pub fn early(io: impl Asked + 'static, deadline: Option<Instant>) -> Self {
        let answered = Arc::<AtomicBool>::default();
        Self {
            io: Box::new(Early::new(io, deadline, Arc::clone(&answered))),
            answered: Some(answered),
        }
    }

    /// Whether the far end has accepted the flow: always, unless the stream was asked for by [`crate::Terms::early`]. Only
    /// reading and writing find that out.
    pub fn is_answered(&self) -> bool {
        let answered = self.answered.as_ref();
        answered.is_none_or(|answered| answered.load(Relaxed))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_read(cx, buf)
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut *self.get_mut().io).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        Pin::new(&mut *self.io).consume(amt);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_shutdown(cx)
    }
}
