//! One direction of a stream in memory, and the stream made of two of them.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, Bytes};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
    time::{Instant, Sleep, sleep_until},
};

use super::{Fault, Network, What, arrival, target_failed};
use crate::{Error, PendingStream, Reason};

/// How many bytes may be under way in one direction; then the writer waits.
const WINDOW: usize = 256 * 1024;

/// The largest piece, in bytes: what the eavesdropper sees as one packet.
const MAX_SEGMENT: usize = 16 * 1024;

/// One direction.
pub(super) struct Pipe(Mutex<PipeState>);

struct PipeState {
    pieces: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    ended: Option<Instant>,
    reset: bool,
    fault: Fault,
    free_at: Instant,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// What a reader finds.
enum Found {
    Piece(Bytes),
    Ended,
    Reset,
    Later(Option<Instant>),
}

impl Pipe {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(PipeState {
            pieces: VecDeque::new(),
            bytes: 0,
            ended: None,
            reset: false,
            fault: Fault::None,
            free_at: Instant::now(),
            reader: None,
            writer: None,
        })))
    }

    pub(super) fn set_fault(&self, fault: Fault) {
        let mut state = self.state();
        state.fault = fault;
        state.reset |= fault == Fault::Down;
        state.wake();
    }

    fn state(&self) -> MutexGuard<'_, PipeState> {
        self.0.lock()
    }

    fn reset(&self) {
        let mut state = self.state();
        state.reset = true;
        state.pieces.clear();
        state.wake();
    }
}

impl PipeState {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()]
            .into_iter()
            .flatten()
        {
            waker.wake();
        }
    }

    fn find(&mut self, cx: &Context<'_>) -> Found {
        if self.reset {
            return Found::Reset;
        }
        self.reader = Some(cx.waker().clone());
        if self.fault == Fault::Silent {
            return Found::Later(None);
        }
        let now = Instant::now();
        match (self.pieces.front(), self.ended) {
            (Some((at, _)), _) if *at > now => Found::Later(Some(*at)),
            (Some(_), _) => self.take(),
            (None, Some(at)) if at > now => Found::Later(Some(at)),
            (None, Some(_)) => Found::Ended,
            (None, None) => Found::Later(None),
        }
    }

    fn take(&mut self) -> Found {
        let Some((_, piece)) = self.pieces.pop_front() else {
            return Found::Later(None);
        };
        self.bytes -= piece.len();
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
        Found::Piece(piece)
    }
}

/// One end of a stream.
pub(super) struct MemoryStream {
    pub(super) network: Network,
    pub(super) here: SocketAddr,
    pub(super) there: SocketAddr,
    pub(super) incoming: Arc<Pipe>,
    pub(super) outgoing: Arc<Pipe>,
    pub(super) current: Bytes,
    pub(super) timer: Option<Pin<Box<Sleep>>>,
    pub(super) read_ended: bool,
    pub(super) write_ended: bool,
    /// What is said of a stream that was handed out early.
    pub(super) answer: Option<oneshot::Receiver<Result<(), Error>>>,
}

impl MemoryStream {
    fn poll_find(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.current.is_empty() && !self.read_ended {
            let found = self.incoming.state().find(cx);
            match found {
                Found::Piece(piece) => self.current = piece,
                Found::Ended => self.read_ended = true,
                Found::Reset => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                Found::Later(None) => return Poll::Pending,
                Found::Later(Some(at)) => ready!(self.poll_until(cx, at)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_until(&mut self, cx: &mut Context<'_>, at: Instant) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        timer.as_mut().reset(at);
        timer.as_mut().poll(cx)
    }

    fn note(&self, what: What) {
        self.network.note(self.here, self.there, what);
    }

    fn poll_send(&self, cx: &Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let conditions = self.network.state().conditions;
        let mut state = self.outgoing.state();
        if state.reset || state.ended.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = buf.len().min(MAX_SEGMENT).min(WINDOW - state.bytes);
        if count == 0 && !buf.is_empty() {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let at = arrival(&conditions, &mut state.free_at, count);
        let piece = buf.get(..count).unwrap_or_default();
        state.pieces.push_back((at, Bytes::copy_from_slice(piece)));
        state.bytes += count;
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(count))
    }

    fn end(&self) {
        let conditions = self.network.state().conditions;
        let mut state = self.outgoing.state();
        state.ended = Some(arrival(&conditions, &mut state.free_at, 0));
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }
}

impl PendingStream for MemoryStream {
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(answer) = &mut self.answer else {
            return Poll::Ready(Ok(()));
        };
        let said = ready!(Pin::new(answer).poll(cx));
        Poll::Ready(said.unwrap_or_else(|_| Err(target_failed(Reason::HostUnreachable))))
    }
}

impl AsyncRead for MemoryStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        ready!(stream.poll_find(cx))?;
        let count = stream.current.len().min(buf.remaining());
        buf.put_slice(&stream.current.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for MemoryStream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let stream = self.get_mut();
        ready!(stream.poll_find(cx))?;
        Poll::Ready(Ok(&stream.current))
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        self.current.advance(amt);
    }
}

impl AsyncWrite for MemoryStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.poll_send(cx, buf))?;
        self.note(What::Data(count));
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.write_ended {
            self.write_ended = true;
            self.end();
            self.note(What::End);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for MemoryStream {
    fn drop(&mut self) {
        if self.read_ended && self.write_ended {
            return;
        }
        self.note(What::Reset);
        self.incoming.reset();
        self.outgoing.reset();
    }
}

impl fmt::Debug for MemoryStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStream")
    }
}
