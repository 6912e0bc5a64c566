//! A TCP flow through an overlay: read, write, finish.
//! Reading is buffered (`AsyncBufRead`), so that a copy loop takes the overlay's own buffers without one more copy.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

/// What a stream is made of.
///
/// Shutdown finishes the sending side and leaves the receiving side open (half-close). Dropping the stream before
/// both sides have ended resets it: the far end must not take it for a complete transfer.
pub trait Io: AsyncBufRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncBufRead + AsyncWrite + fmt::Debug + Send + Unpin> Io for T {}

/// An open TCP flow. Its I/O errors carry an [`crate::Error`] where the overlay knows more.
#[derive(Debug)]
pub struct Stream(Box<dyn Io>);

impl Stream {
    /// Wraps what carries the flow.
    pub fn new(io: impl Io + 'static) -> Self {
        Self(Box::new(io))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut *self.get_mut().0).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        Pin::new(&mut *self.0).consume(amt);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}
