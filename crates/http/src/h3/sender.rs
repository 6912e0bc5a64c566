//! The sending half of an exchange: DATA frames around what the caller gives.
//! Streams, UDP flows (for capsules) and `relay` write through it.
//! RFC 9114 §7.2.1.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};
use hoplite_wire::h3::{self, Code};

use super::{H3Error, quic, requests::Ticket, session::Session, var};

/// The largest DATA frame that one write makes.
pub(super) const MAX_WRITE: usize = 64 * 1024;
/// Type and length of a DATA frame of that size.
const DATA_HEAD: usize = 5;

/// Writes DATA frames. Dropped before [`DataSender::finish`], it resets the stream with H3_REQUEST_CANCELLED.
///
/// At most one write waits here, and with it a flow's few capsules: what QUIC does not take at once is kept, and the next write
/// waits until it has gone.
/// Whoever stops writing flushes, or the kept rest waits for the next write.
#[derive(Debug)]
pub struct DataSender {
    stream: quic::SendStream,
    pending: VecDeque<Bytes>,
    ended: bool,
    /// Keeps the connection open as long as it is used.
    pub(super) session: Option<Session>,
    _ticket: Arc<Ticket>,
}

/// Whether something of what was written has to be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    Nothing,
    ForFlush,
}

impl DataSender {
    pub(super) fn new(
        stream: quic::SendStream,
        ticket: Arc<Ticket>,
        session: Option<Session>,
    ) -> Self {
        Self {
            stream,
            pending: VecDeque::new(),
            ended: false,
            session,
            _ticket: ticket,
        }
    }

    /// Ready when the next write is taken at once.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), H3Error>> {
        while !self.pending.is_empty() {
            let written = {
                let chunks = self.pending.make_contiguous();
                ready!(pin!(self.stream.write_chunks(chunks)).poll(cx))?
            };
            self.pending.drain(..written.chunks);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes `payload` whole, without copying it, once the write before has gone. An empty one writes nothing.
    pub fn poll_write_bytes(
        &mut self,
        cx: &mut Context<'_>,
        payload: &mut Bytes,
    ) -> Poll<Result<(), H3Error>> {
        ready!(self.poll_flush(cx))?;
        if !payload.is_empty() {
            let mut head = BytesMut::with_capacity(2 * DATA_HEAD);
            h3::write_data_head(&mut head, payload.len());
            let payload = std::mem::take(payload);
            self.push(cx, [head.freeze(), payload])?;
        }
        Poll::Ready(Ok(()))
    }

    /// Copies up to 64 KiB of `data` into one DATA frame; how many octets were taken.
    pub(super) fn poll_write_copy(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<Result<usize, H3Error>> {
        ready!(self.poll_flush(cx))?;
        let data = data.get(..MAX_WRITE).unwrap_or(data);
        if !data.is_empty() {
            let mut frame = BytesMut::with_capacity(DATA_HEAD + data.len());
            h3::write_data_head(&mut frame, data.len());
            frame.extend_from_slice(data);
            self.push(cx, [frame.freeze()])?;
        }
        Poll::Ready(Ok(data.len()))
    }

    /// Hands whole frames over; what QUIC does not take now is pending. The caller has made sure that little was before.
    fn push<const N: usize>(
        &mut self,
        cx: &mut Context<'_>,
        chunks: [Bytes; N],
    ) -> Result<(), H3Error> {
        if self.ended {
            return Err(H3Error::Closed);
        }
        self.pending.extend(chunks);
        match self.poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Hands a whole frame over without waiting; whether QUIC took all of it. Otherwise somebody must flush.
    pub(super) fn write_now(&mut self, frame: Bytes) -> Result<bool, H3Error> {
        self.push(&mut Context::from_waker(Waker::noop()), [frame])?;
        Ok(self.pending.is_empty())
    }

    /// Hands a whole frame over without waiting, behind up to `bound` octets that QUIC has not taken yet.
    /// Whether somebody must flush then; `None` when there was no room.
    pub(super) fn write_behind(&mut self, frame: Bytes, bound: usize) -> Option<Waits> {
        let waiting: usize = self.pending.iter().map(Bytes::len).sum();
        if waiting > bound || self.ended {
            return None;
        }
        match self.write_now(frame) {
            Ok(true) => Some(Waits::Nothing),
            Ok(false) => Some(Waits::ForFlush),
            Err(_) => None,
        }
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes all of `payload` and waits until QUIC has taken it.
    ///
    /// # Errors
    /// The connection is lost, or the peer stopped the stream.
    pub async fn write(&mut self, mut payload: Bytes) -> Result<(), H3Error> {
        poll_fn(|cx| self.poll_write_bytes(cx, &mut payload)).await?;
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Writes a HEADERS frame.
    pub(super) async fn write_head(&mut self, section: &[u8]) -> Result<(), H3Error> {
        let mut frame = BytesMut::with_capacity(section.len() + 2 * DATA_HEAD);
        h3::write_headers(&mut frame, section);
        poll_fn(|cx| self.poll_flush(cx)).await?;
        self.write_now(frame.freeze())?;
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Ends the stream behind what was written.
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), H3Error>> {
        ready!(self.poll_flush(cx))?;
        if !self.ended {
            self.ended = true;
            self.stream.finish().map_err(|_| H3Error::Closed)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the stream behind what was written.
    ///
    /// # Errors
    /// The connection is lost, or the peer stopped the stream.
    pub async fn finish(&mut self) -> Result<(), H3Error> {
        poll_fn(|cx| self.poll_finish(cx)).await
    }

    /// Ends the stream at once: the peer must not take it for complete.
    pub fn reset(&mut self, code: Code) {
        if !self.ended {
            self.ended = true;
            self.pending.clear();
            self.stream.reset(var(code)).ok();
        }
    }

    /// The code with which the peer stops reading; `None` once it has read everything up to the end.
    pub fn stopped(&self) -> impl Future<Output = Option<Code>> + Send + 'static {
        let stopped = self.stream.stopped();
        async move {
            stopped
                .await
                .ok()
                .flatten()
                .map(|code| Code(code.into_inner()))
        }
    }

    /// Ends the stream in order if nothing is pending, else resets it.
    pub(super) fn close(&mut self) {
        if !self.ended && self.pending.is_empty() {
            self.ended = true;
            self.stream.finish().ok();
        }
        self.reset(Code::REQUEST_CANCELLED);
    }
}

impl Drop for DataSender {
    fn drop(&mut self) {
        self.reset(Code::REQUEST_CANCELLED);
    }
}
