//! The two halves of a stream.

use std::{
    future::{Future, poll_fn},
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use quinn_proto::{
    Chunk, ClosedStream, ConnectionError, FinishError, ReadableError, StreamId, VarInt, Written,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

use super::connection::{End, Hold, State};
use crate::held::Held;

/// Why a stream takes no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The peer does not want it, for this reason of its.
    #[error("sending stopped by peer: error {0}")]
    Stopped(VarInt),
    /// The connection has ended.
    #[error("connection lost")]
    ConnectionLost(#[from] ConnectionError),
    /// This end has ended or reset it.
    #[error("closed stream")]
    ClosedStream,
}

/// Why nothing more comes of a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The peer gave it up, for this reason of its.
    #[error("stream reset by peer: error {0}")]
    Reset(VarInt),
    /// The connection has ended.
    #[error("connection lost")]
    ConnectionLost(#[from] ConnectionError),
    /// This end does not want it any more.
    #[error("closed stream")]
    ClosedStream,
    /// Nobody has read it for long, while what it held kept the connection's other streams from going on.
    #[error("given up: nobody read it while it kept others from going on")]
    GivenUp,
}

/// Why not as much was read as was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadExactError {
    /// The stream ended after this many bytes.
    #[error("stream finished early ({0} bytes read)")]
    FinishedEarly(usize),
    /// It broke.
    #[error(transparent)]
    ReadError(#[from] ReadError),
}

/// Why a stream was not read to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadToEndError {
    /// It broke.
    #[error("read error: {0}")]
    Read(#[from] ReadError),
    /// There is more of it than was asked for.
    #[error("stream too long")]
    TooLong,
}

/// Why it cannot be said whether the peer has all of a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoppedError {
    /// The connection has ended.
    #[error("connection lost")]
    ConnectionLost(#[from] ConnectionError),
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        let kind = match error {
            WriteError::ConnectionLost(error) => return error.into(),
            WriteError::Stopped(_) => io::ErrorKind::ConnectionReset,
            WriteError::ClosedStream => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        let kind = match error {
            ReadError::ConnectionLost(error) => return error.into(),
            ReadError::Reset(_) | ReadError::GivenUp => io::ErrorKind::ConnectionReset,
            ReadError::ClosedStream => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

impl From<StoppedError> for io::Error {
    fn from(StoppedError::ConnectionLost(error): StoppedError) -> Self {
        error.into()
    }
}

/// Bytes of one look at most.
const MOST_READ: usize = 64 << 10;
/// No packet brings more of a stream on a path of the Internet. What is longer the stack has joined of many that came before they were due: a part of it, kept
/// for long, would keep all of it.
const PACKET: usize = 2048;

/// The half that sends. Dropped, it ends the stream; what was written is still sent.
pub struct SendStream {
    hold: Hold,
    id: StreamId,
}

impl SendStream {
    pub(super) fn new(hold: Hold, id: StreamId) -> Self {
        Self { hold, id }
    }

    /// Which stream it is.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    fn poll_with<T>(
        &self,
        cx: &Context<'_>,
        write: impl FnOnce(quinn_proto::SendStream<'_>) -> Result<T, quinn_proto::WriteError>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Poll<Result<T, WriteError>> {
        let inner = self.hold.inner();
        let mut state = inner.state();
        if let Some(error) = &state.error {
            return Poll::Ready(Err(error.clone().into()));
        }
        match write(state.stack.send_stream(self.id)) {
            Ok(written) => {
                inner.written(&mut state, bytes(&written));
                Poll::Ready(Ok(written))
            }
            Err(quinn_proto::WriteError::Blocked) => {
                state.writers.insert(self.id, cx.waker().clone());
                if state.has_no_room() {
                    inner.wake(&mut state);
                }
                Poll::Pending
            }
            Err(quinn_proto::WriteError::Stopped(code)) => {
                Poll::Ready(Err(WriteError::Stopped(code)))
            }
            Err(quinn_proto::WriteError::ClosedStream) => {
                Poll::Ready(Err(WriteError::ClosedStream))
            }
        }
    }

    /// Takes bytes from the front of `chunks` without copying them, as many as there is room for. What was taken is gone from there.
    ///
    /// # Errors
    /// The stream takes no more.
    pub fn poll_write_chunks(
        &mut self,
        cx: &Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<Written, WriteError>> {
        let write = |mut stream: quinn_proto::SendStream<'_>| stream.write_chunks(chunks);
        self.poll_with(cx, write, |written| written.bytes)
    }

    fn poll_copy(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<Result<usize, WriteError>> {
        self.poll_with(cx, |mut stream| stream.write(bytes), |written| *written)
    }

    /// Copies as many bytes as there is room for.
    ///
    /// # Errors
    /// The stream takes no more.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<usize, WriteError> {
        poll_fn(|cx| self.poll_copy(cx, bytes)).await
    }

    /// Copies all bytes.
    ///
    /// # Errors
    /// The stream takes no more.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), WriteError> {
        while !bytes.is_empty() {
            let written = self.write(bytes).await?;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Takes all of `chunk` without copying it.
    ///
    /// # Errors
    /// The stream takes no more.
    pub async fn write_chunk(&mut self, chunk: Bytes) -> Result<(), WriteError> {
        let mut chunks = [chunk];
        while !chunks[0].is_empty() {
            poll_fn(|cx| self.poll_write_chunks(cx, &mut chunks)).await?;
        }
        Ok(())
    }

    /// Says that nothing follows.
    ///
    /// # Errors
    /// It was said before, or the stream was reset.
    pub fn finish(&mut self) -> Result<(), ClosedStream> {
        let inner = self.hold.inner();
        let mut state = inner.state();
        match state.stack.send_stream(self.id).finish() {
            Ok(()) => {
                inner.wake(&mut state);
                Ok(())
            }
            // Nobody wants it: that is the end as well.
            Err(FinishError::Stopped(_)) => Ok(()),
            Err(FinishError::ClosedStream) => Err(ClosedStream::default()),
        }
    }

    /// Gives the stream up: what the peer does not have it does not get.
    ///
    /// # Errors
    /// It has ended.
    pub fn reset(&mut self, code: VarInt) -> Result<(), ClosedStream> {
        let inner = self.hold.inner();
        let mut state = inner.state();
        state.stack.send_stream(self.id).reset(code)?;
        inner.wake(&mut state);
        Ok(())
    }

    /// Of several streams that have something to send those of the highest priority go first.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn set_priority(&self, priority: i32) -> Result<(), ClosedStream> {
        let mut state = self.hold.inner().state();
        state.stack.send_stream(self.id).set_priority(priority)
    }

    /// Ready when the peer does not want the stream, for this reason of its, or when it has ended: `None`. Else the task is woken then, in the place of one
    /// that waits for room, and is woken when there is room as well.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn poll_stopped(&self, cx: &Context<'_>) -> Poll<Result<Option<VarInt>, StoppedError>> {
        let mut state = self.hold.inner().state();
        if let Some(answer) = stopped(&mut state, self.id) {
            return Poll::Ready(answer);
        }
        state.writers.insert(self.id, cx.waker().clone());
        Poll::Pending
    }

    /// Waits until the peer does not want the stream, for this reason of its, or has all of it: `None`.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn stopped(
        &self,
    ) -> impl Future<Output = Result<Option<VarInt>, StoppedError>> + Send + Sync + 'static {
        let (hold, id) = (self.hold.clone(), self.id);
        async move {
            loop {
                let told = {
                    let mut state = hold.inner().state();
                    if let Some(answer) = stopped(&mut state, id) {
                        return answer;
                    }
                    // Before the lock is given up: nothing is missed.
                    Arc::clone(state.stopped.entry(id).or_default()).notified_owned()
                };
                told.await;
            }
        }
    }
}

fn stopped(state: &mut State, id: StreamId) -> Option<Result<Option<VarInt>, StoppedError>> {
    match (state.stack.send_stream(id).stopped(), &state.error) {
        (Err(_), _) => Some(Ok(None)),
        (Ok(Some(code)), _) => Some(Ok(Some(code))),
        (Ok(None), Some(error)) => Some(Err(error.clone().into())),
        (Ok(None), None) => None,
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        let inner = self.hold.inner();
        let mut state = inner.state();
        state.writers.remove(&self.id);
        // Where nobody waits for its end any more: of what we reset no end is told.
        let waits = |notify: &Arc<Notify>| Arc::strong_count(notify) > 1;
        if !state.stopped.get(&self.id).is_some_and(waits) {
            state.stopped.remove(&self.id);
        }
        if state.error.is_some() {
            return;
        }
        let mut stream = state.stack.send_stream(self.id);
        let changed = match stream.finish() {
            Ok(()) => true,
            Err(FinishError::Stopped(code)) => stream.reset(code).is_ok(),
            Err(FinishError::ClosedStream) => false,
        };
        if changed {
            inner.wake(&mut state);
        }
    }
}

impl AsyncWrite for SendStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(ready!(self.poll_copy(cx, bytes))?))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().finish().map_err(Into::into))
    }
}

impl std::fmt::Debug for SendStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SendStream").field(&self.id).finish()
    }
}

/// The half that receives. Dropped before the end, it tells the peer that the rest is not wanted.
pub struct RecvStream {
    hold: Hold,
    id: StreamId,
    /// Nothing more comes of it, or is wanted.
    is_done: bool,
    reset: Option<VarInt>,
}

/// What has come of a stream and waits for whoever reads it. For as long as it is held, so is a little of its connection.
#[derive(Debug)]
pub struct Received {
    held: Option<Arc<Held>>,
    id: StreamId,
}

impl Received {
    /// Bytes from what was read to the farthest that has come, with the gaps between, where the peer may send `window` of them; more where small pieces of it
    /// keep the packets that they came in. 0 once all was read. `None`: on a connection of which that is not known
    /// ([`Hooks::window`](crate::Hooks::window)).
    #[must_use]
    pub fn waiting(&self, window: u64) -> Option<u64> {
        let held = self.held.as_ref()?;
        Some(held.waiting(self.id.into(), window))
    }
}

/// What has arrived of a stream.
struct Chunks<'a> {
    chunks: quinn_proto::Chunks<'a>,
    /// How much of it was taken.
    bytes: usize,
}

impl Chunks<'_> {
    fn next(&mut self, most: usize) -> Result<Option<Chunk>, quinn_proto::ReadError> {
        let next = self.chunks.next(most);
        if let Ok(Some(chunk)) = &next {
            self.bytes += chunk.bytes.len();
        }
        next
    }

    /// Whether the peer is to be told something, and how much was taken.
    fn finalize(self) -> (bool, usize) {
        (self.chunks.finalize().should_transmit(), self.bytes)
    }
}

/// What a look at what has arrived found.
enum Found {
    /// So much as was asked for.
    Enough,
    End,
    Nothing(quinn_proto::ReadError),
}

impl RecvStream {
    pub(super) fn new(hold: Hold, id: StreamId) -> Self {
        hold.inner().state().begin_receiving(id);
        Self {
            hold,
            id,
            is_done: false,
            reset: None,
        }
    }

    /// Which stream it is.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// What has come of it, for somebody else to ask.
    #[must_use]
    pub fn received(&self) -> Received {
        Received {
            held: self.hold.inner().state().held.clone(),
            id: self.id,
        }
    }

    /// `take` takes what has arrived, and says how it went on; whether that was anything is `any`'s to know.
    fn poll_with<T>(
        &mut self,
        cx: &Context<'_>,
        ordered: bool,
        mut taken: T,
        mut take: impl FnMut(&mut Chunks<'_>, &mut T) -> Found,
        any: impl FnOnce(&T) -> bool,
    ) -> Poll<Result<Option<T>, ReadError>> {
        if self.is_done && self.reset.is_none() {
            return Poll::Ready(Ok(None));
        }
        if let Some(code) = self.reset {
            self.is_done = true;
            return Poll::Ready(Err(ReadError::Reset(code)));
        }
        let inner = self.hold.inner();
        let state = &mut *inner.state();
        match state.ends.get(&self.id).copied() {
            None => {}
            Some(End::Finished) => {
                self.is_done = true;
                return Poll::Ready(Ok(None));
            }
            Some(End::Reset(code)) => {
                self.reset = Some(code);
                self.is_done = true;
                return Poll::Ready(Err(ReadError::Reset(code)));
            }
            Some(End::GivenUp) => return Poll::Ready(Err(ReadError::GivenUp)),
        }
        let mut stream = state.stack.recv_stream(self.id);
        let mut chunks = match stream.read(ordered) {
            Ok(chunks) => Chunks { chunks, bytes: 0 },
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                let error = state.error.clone().map(Into::into);
                return Poll::Ready(Err(error.unwrap_or(ReadError::ClosedStream)));
            }
        };
        let found = take(&mut chunks, &mut taken);
        let (tells, bytes) = chunks.finalize();
        if state.has_read(self.id, bytes) || tells {
            inner.wake(state);
        }
        let any = any(&taken);
        match found {
            Found::Enough => Poll::Ready(Ok(Some(taken))),
            Found::End => {
                state.end_receiving(self.id);
                self.is_done = true;
                Poll::Ready(Ok(any.then_some(taken)))
            }
            Found::Nothing(quinn_proto::ReadError::Reset(code)) => {
                state.has_freed();
                state.end_receiving(self.id);
                inner.wake(state);
                self.reset = Some(code);
                if any {
                    return Poll::Ready(Ok(Some(taken)));
                }
                self.is_done = true;
                Poll::Ready(Err(ReadError::Reset(code)))
            }
            Found::Nothing(quinn_proto::ReadError::Blocked) if any => Poll::Ready(Ok(Some(taken))),
            Found::Nothing(quinn_proto::ReadError::Blocked) => {
                if let Some(error) = &state.error {
                    return Poll::Ready(Err(error.clone().into()));
                }
                state.readers.insert(self.id, cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Puts what has arrived into `pieces`, one after the other, 64 KiB at most, and no more than as many packets bring; how many pieces. `None` at the end.
    ///
    /// # Errors
    /// The stream broke.
    pub fn poll_read_chunks(
        &mut self,
        cx: &Context<'_>,
        pieces: &mut [Bytes],
    ) -> Poll<Result<Option<usize>, ReadError>> {
        let mut left = MOST_READ.min(PACKET.saturating_mul(pieces.len()));
        let take = |chunks: &mut Chunks<'_>, count: &mut usize| {
            for piece in pieces.iter_mut() {
                if left == 0 {
                    return Found::Enough;
                }
                match chunks.next(left) {
                    Ok(Some(chunk)) => {
                        let is_part = chunk.bytes.len() == left || chunk.bytes.len() > PACKET;
                        left -= chunk.bytes.len();
                        *piece = if is_part {
                            Bytes::copy_from_slice(&chunk.bytes)
                        } else {
                            chunk.bytes
                        };
                        *count += 1;
                    }
                    Ok(None) => return Found::End,
                    Err(error) => return Found::Nothing(error),
                }
            }
            Found::Enough
        };
        self.poll_with(cx, true, 0, take, |count| *count > 0)
    }

    /// As [`Self::poll_read_chunks`].
    ///
    /// # Errors
    /// The stream broke.
    pub async fn read_chunks(&mut self, pieces: &mut [Bytes]) -> Result<Option<usize>, ReadError> {
        poll_fn(|cx| self.poll_read_chunks(cx, pieces)).await
    }

    fn poll_read_chunk(
        &mut self,
        cx: &Context<'_>,
        most: usize,
        ordered: bool,
    ) -> Poll<Result<Option<Chunk>, ReadError>> {
        let take = |chunks: &mut Chunks<'_>, taken: &mut Option<Chunk>| match chunks.next(most) {
            Ok(Some(chunk)) => {
                *taken = Some(chunk);
                Found::Enough
            }
            Ok(None) => Found::End,
            Err(error) => Found::Nothing(error),
        };
        let read = self.poll_with(cx, ordered, None, take, Option::is_some);
        read.map_ok(Option::flatten)
    }

    /// The next piece, of `most` bytes at most. `None` at the end.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn read_chunk(
        &mut self,
        most: usize,
        ordered: bool,
    ) -> Result<Option<Chunk>, ReadError> {
        poll_fn(|cx| self.poll_read_chunk(cx, most, ordered)).await
    }

    fn poll_copy(
        &mut self,
        cx: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<Option<()>, ReadError>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(Some(())));
        }
        let before = buffer.filled().len();
        let take = |chunks: &mut Chunks<'_>, count: &mut usize| {
            while buffer.remaining() > 0 {
                match chunks.next(buffer.remaining()) {
                    Ok(Some(chunk)) => buffer.put_slice(&chunk.bytes),
                    Ok(None) => return Found::End,
                    Err(error) => {
                        *count = buffer.filled().len();
                        return Found::Nothing(error);
                    }
                }
                *count = buffer.filled().len();
            }
            Found::Enough
        };
        let read = self.poll_with(cx, true, before, take, |count| *count > before);
        read.map_ok(|read| read.map(|_| ()))
    }

    /// Copies what has arrived; how many bytes. `None` at the end.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, ReadError> {
        let mut buffer = ReadBuf::new(into);
        let read = poll_fn(|cx| self.poll_copy(cx, &mut buffer)).await?;
        Ok(read.map(|()| buffer.filled().len()))
    }

    /// Fills `into`.
    ///
    /// # Errors
    /// The stream broke or ended before.
    pub async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), ReadExactError> {
        let mut buffer = ReadBuf::new(into);
        while buffer.remaining() > 0 {
            if poll_fn(|cx| self.poll_copy(cx, &mut buffer))
                .await?
                .is_none()
            {
                return Err(ReadExactError::FinishedEarly(buffer.filled().len()));
            }
        }
        Ok(())
    }

    /// All that follows, if it is not more than `most` bytes.
    ///
    /// # Errors
    /// The stream broke, or there is more of it.
    pub async fn read_to_end(&mut self, most: usize) -> Result<Vec<u8>, ReadToEndError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.read_chunk(usize::MAX, true).await? {
            if all.len().saturating_add(chunk.bytes.len()) > most {
                return Err(ReadToEndError::TooLong);
            }
            all.extend_from_slice(&chunk.bytes);
        }
        Ok(all)
    }

    /// Waits until the peer gives the stream up, for this reason of its, or it has ended here: `None`. Nobody may read it meanwhile.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn received_reset(&mut self) -> Result<Option<VarInt>, ConnectionError> {
        poll_fn(|cx| {
            let inner = self.hold.inner();
            let mut state = inner.state();
            if let Some(End::Reset(code)) = state.ends.get(&self.id).copied() {
                self.reset = Some(code);
                self.is_done = true;
                return Poll::Ready(Ok(Some(code)));
            }
            match (
                state.stack.recv_stream(self.id).received_reset(),
                &state.error,
            ) {
                (Err(_), Some(error)) if state.is_freed => Poll::Ready(Err(error.clone())),
                (Err(_), _) => Poll::Ready(Ok(None)),
                (Ok(Some(code)), _) => {
                    state.has_freed();
                    state.end_receiving(self.id);
                    inner.wake(&mut state);
                    self.reset = Some(code);
                    self.is_done = true;
                    Poll::Ready(Ok(Some(code)))
                }
                (Ok(None), Some(error)) => Poll::Ready(Err(error.clone())),
                (Ok(None), None) => {
                    state.readers.insert(self.id, cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Tells the peer that the rest is not wanted.
    ///
    /// # Errors
    /// It has ended.
    pub fn stop(&mut self, code: VarInt) -> Result<(), ClosedStream> {
        let inner = self.hold.inner();
        let mut state = inner.state();
        state.stop(self.id, code)?;
        inner.wake(&mut state);
        drop(state);
        self.is_done = true;
        Ok(())
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        let inner = self.hold.inner();
        let mut state = inner.state();
        state.readers.remove(&self.id);
        state.receiving.remove(&self.id);
        state.ends.remove(&self.id);
        state.end_receiving(self.id);
        if self.is_done {
            return;
        }
        drop(state.stop(self.id, 0_u32.into()));
        if state.error.is_none() {
            inner.wake(&mut state);
        }
    }
}

impl AsyncRead for RecvStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.get_mut().poll_copy(cx, buffer))?;
        Poll::Ready(Ok(()))
    }
}

impl std::fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RecvStream").field(&self.id).finish()
    }
}
