//! What programs and targets hold of a stream: they read, write and finish it; dropped before both sides have ended, it is reset.
//! `client` hands it out as the overlay's stream, `relay` copies between it and the target. Each circuit's end has a lock of its own.

use std::{
    fmt, io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use hoplite_overlay::{Asked, Error};
use hoplite_wire::cell::relay::StreamId;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{Edge, stream::Answer};

/// One end of a circuit, shared by its driver and its streams.
pub struct Shared(Mutex<Edge>);

/// One stream of it.
pub struct Handle {
    shared: Arc<Shared>,
    id: StreamId,
    current: Bytes,
}

impl Shared {
    /// To be shared.
    pub fn new(edge: Edge) -> Arc<Self> {
        Arc::new(Self(Mutex::new(edge)))
    }

    /// The end itself; never held across an await.
    pub fn lock(&self) -> MutexGuard<'_, Edge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// The handle of a stream that has just been opened, or asked for. There is one for each.
    pub fn new(shared: &Arc<Shared>, id: StreamId) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            current: Bytes::new(),
        }
    }

    /// Which stream it is.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The far end's answer.
    pub fn poll_said(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answer, Error>> {
        let mut edge = self.shared.lock();
        let closed = edge.closed().cloned();
        let Some(stream) = edge.streams.get_mut(&self.id.0) else {
            return Poll::Ready(Err(crate::failure::gone()));
        };
        match (stream.said(), closed) {
            (Some(said), _) => Poll::Ready(said.clone()),
            (None, Some(error)) => Poll::Ready(Err(error)),
            (None, None) => {
                stream.reader = Some(cx.waker().clone());
                stream.writer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The addresses that a look-up found.
    pub fn poll_addresses(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<IpAddr>, Error>> {
        Poll::Ready(match ready!(self.poll_said(cx))? {
            Answer::Addresses(found) => Ok(found),
            Answer::Connected => Err(crate::failure::gone()),
        })
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.current.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut edge = self.shared.lock();
        if let Some(bytes) = edge.fetch(self.id) {
            self.current = bytes;
            return Poll::Ready(Ok(()));
        }
        let closed = edge.closed().cloned();
        let Some(stream) = edge.streams.get_mut(&self.id.0) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        match (stream.read_end(), closed) {
            (Some(end), _) => Poll::Ready(end.map_err(io::Error::from)),
            (None, Some(error)) => Poll::Ready(Err(error.into())),
            (None, None) => {
                stream.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_put(&self, cx: &Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        let edge = &mut *self.shared.lock();
        if let Some(error) = edge.closed() {
            return Poll::Ready(Err(error.clone().into()));
        }
        let most = edge.may_queue();
        let Some(stream) = edge.streams.get_mut(&self.id.0) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if let Some(Err(error)) = stream.said() {
            return Poll::Ready(Err(error.clone().into()));
        }
        if !stream.is_writable() || stream.is_finished() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let taken = stream.write(octets, most, &mut edge.unpredictable);
        if taken == 0 && !octets.is_empty() {
            stream.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        edge.take_turn(self.id);
        Poll::Ready(Ok(taken))
    }
}

impl Asked for Handle {
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_said(cx).map_ok(drop)
    }
}

impl AsyncRead for Handle {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let handle = self.get_mut();
        let before = buf.filled().len();
        // As much as is there: a lock and a wake-up for each cell would cost more than the cell.
        loop {
            match handle.poll_next(cx) {
                Poll::Ready(Ok(())) => {}
                waiting if buf.filled().len() == before => return waiting,
                _ => return Poll::Ready(Ok(())),
            }
            let count = handle.current.len().min(buf.remaining());
            if count == 0 {
                return Poll::Ready(Ok(()));
            }
            buf.put_slice(&handle.current.split_to(count));
        }
    }
}

impl AsyncBufRead for Handle {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let handle = self.get_mut();
        ready!(handle.poll_next(cx))?;
        Poll::Ready(Ok(&handle.current))
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        let amt = amt.min(self.current.len());
        self.current.advance(amt);
    }
}

impl AsyncWrite for Handle {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_put(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut edge = self.shared.lock();
        if let Some(stream) = edge.streams.get_mut(&self.id.0) {
            stream.finish();
        }
        edge.take_turn(self.id);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.lock().drop_stream(self.id);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("onion::Handle")
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("onion::Shared")
    }
}
