//! The receiving half of an exchange: heads first, then DATA payloads, in the very chunks that QUIC delivers.
//! Streams, UDP flows (for capsules) and `relay` read through it.
//! RFC 9114 §4.1 (order of frames), §4.4 (CONNECT), §7.1.

use std::{
    collections::VecDeque,
    future::{pending, poll_fn},
    io::IoSlice,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use hoplite_wire::{
    h3::{Code, Frame, FrameReader, Place},
    message::check_trailers,
};

use tokio::io::ReadBuf;

use super::{H3Error, quic, requests::Ticket, session::Session, var};

/// How many chunks one call takes out of QUIC: about 40 KiB of full packets.
const CHUNKS: usize = 32;

/// Reads DATA payloads. Dropped before the peer has ended the stream, it asks the peer to stop with H3_REQUEST_CANCELLED.
#[derive(Debug)]
pub struct DataReceiver {
    stream: quic::RecvStream,
    frames: FrameReader,
    raw: VecDeque<Bytes>,
    ready: VecDeque<Bytes>,
    max_field_section: usize,
    stage: Stage,
    /// Why the stage is `Ended`, unless the peer ended the stream in order.
    failed: Option<H3Error>,
    /// A CONNECT: after the heads, nothing but DATA.
    pub(super) tunnel: bool,
    /// Keeps the connection open as long as it is used.
    pub(super) session: Option<Session>,
    ticket: Arc<Ticket>,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Head,
    Data,
    Trailers,
    Ended,
}

impl DataReceiver {
    pub(super) fn new(
        stream: quic::RecvStream,
        ticket: Arc<Ticket>,
        session: Option<Session>,
    ) -> Self {
        let limit = ticket.inner().config.max_field_section;
        Self {
            stream,
            // Huffman coding only shortens what is worth it; static references make a section smaller than it counts.
            frames: FrameReader::new(Place::Request, limit),
            raw: VecDeque::new(),
            ready: VecDeque::new(),
            max_field_section: limit,
            stage: Stage::Head,
            failed: None,
            tunnel: false,
            session,
            ticket,
        }
    }

    /// Resolves when the peer resets its direction; not when it ends that in order.
    pub(super) async fn reset_by_peer(&mut self) {
        if let Ok(None) = self.stream.received_reset().await {
            pending::<()>().await;
        }
    }

    /// The next frame, straight out of the chunks that QUIC delivers; `None` at the end of the stream.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame>, H3Error>> {
        loop {
            match self.next_raw_frame()? {
                Some(frame) => return Poll::Ready(Ok(Some(frame))),
                None if self.stage == Stage::Ended => {
                    return Poll::Ready(self.failed.clone().map_or(Ok(None), Err));
                }
                None => ready!(self.poll_chunks(cx))?,
            }
        }
    }

    fn next_raw_frame(&mut self) -> Result<Option<Frame>, H3Error> {
        while let Some(chunk) = self.raw.front_mut() {
            match self.frames.next(chunk) {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => drop(self.raw.pop_front()),
                Err(code) => {
                    return Err(self.fail(code, "a frame that is not allowed or badly laid out"));
                }
            }
        }
        Ok(None)
    }

    fn poll_chunks(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), H3Error>> {
        let mut chunks = [const { Bytes::new() }; CHUNKS];
        let read = ready!(pin!(self.stream.read_chunks(&mut chunks)).poll(cx));
        let count = read.map_err(|error| self.end(error.into()))?;
        match count {
            Some(count) => self.raw.extend(chunks.into_iter().take(count)),
            None if self.frames.is_between_frames() => self.stage = Stage::Ended,
            None => {
                return Poll::Ready(Err(
                    self.fail(Code::FRAME_ERROR, "the stream ends inside a frame")
                ));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Breaches of the framing end the connection.
    pub(super) fn fail(&mut self, code: Code, what: &'static str) -> H3Error {
        self.ticket.inner().fail(code, what);
        self.end(H3Error::Protocol(code, what))
    }

    fn end(&mut self, error: H3Error) -> H3Error {
        self.stage = Stage::Ended;
        self.raw.clear();
        self.failed = Some(error.clone());
        error
    }

    /// The field section of a head; `None` when the stream ends before it.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, H3Error>> {
        Poll::Ready(match ready!(self.poll_frame(cx))? {
            None => Ok(None),
            Some(Frame::Headers(section)) => Ok(Some(section)),
            Some(_) => Err(self.fail(Code::FRAME_UNEXPECTED, "a body before its head")),
        })
    }

    /// Whether the final head has not been read.
    pub(super) fn awaits_head(&self) -> bool {
        self.stage == Stage::Head
    }

    /// The last head has been read.
    pub(super) fn heads_end(&mut self) {
        if self.stage == Stage::Head {
            self.stage = Stage::Data;
        }
    }

    /// The next payload, as it came; `None` at the end.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, H3Error>> {
        loop {
            if let Some(payload) = self.ready.pop_front() {
                return Poll::Ready(Ok(Some(payload)));
            }
            let frame = ready!(self.poll_frame(cx))?;
            let Some(frame) = frame else {
                return Poll::Ready(Ok(None));
            };
            if let Some(payload) = self.take_frame(frame)? {
                return Poll::Ready(Ok(Some(payload)));
            }
        }
    }

    fn take_frame(&mut self, frame: Frame) -> Result<Option<Bytes>, H3Error> {
        match frame {
            Frame::Data(payload) if self.stage == Stage::Data => Ok(Some(payload)),
            Frame::Headers(section) if self.stage == Stage::Data && !self.tunnel => {
                self.stage = Stage::Trailers;
                match check_trailers(&section, self.max_field_section) {
                    Ok(()) => Ok(None),
                    Err(_) => Err(self.refuse(Code::MESSAGE_ERROR, "malformed trailers")),
                }
            }
            _ => Err(self.fail(Code::FRAME_UNEXPECTED, "a frame out of order")),
        }
    }

    /// Breaches of the message end the stream alone.
    pub(super) fn refuse(&mut self, code: Code, what: &'static str) -> H3Error {
        self.stop(code);
        self.end(H3Error::Protocol(code, what))
    }

    /// The next payload, as it came; `None` at the end.
    ///
    /// # Errors
    /// The stream was reset, the connection is lost, or the peer broke a rule.
    pub async fn data(&mut self) -> Result<Option<Bytes>, H3Error> {
        poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Makes payloads available to [`DataReceiver::slices`]: all that one look at QUIC yields. `false` at the end.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, H3Error>> {
        if !self.ready.is_empty() {
            return Poll::Ready(Ok(true));
        }
        let Some(first) = ready!(self.poll_data(cx))? else {
            return Poll::Ready(Ok(false));
        };
        self.ready.push_back(first);
        // An error in what follows is kept, and told by the next call.
        while self.stage == Stage::Data
            && let Ok(Some(frame)) = self.next_raw_frame()
        {
            if let Ok(Some(payload)) = self.take_frame(frame) {
                self.ready.push_back(payload);
            }
        }
        Poll::Ready(Ok(true))
    }

    /// What was filled, for a vectored write; how many slices were set.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices
            .iter_mut()
            .zip(&self.ready)
            .map(|(slice, payload)| *slice = IoSlice::new(payload));
        filled.count()
    }

    /// What was filled, as one slice: several chunks are joined, because one copy is cheaper than many writes.
    pub(super) fn joined(&mut self) -> &[u8] {
        if self.ready.len() > 1 {
            let mut all = BytesMut::with_capacity(self.ready.iter().map(Bytes::len).sum());
            for payload in self.ready.drain(..) {
                all.extend_from_slice(&payload);
            }
            self.ready.push_back(all.freeze());
        }
        self.ready.front().map_or(&[], |payload| payload)
    }

    /// Moves what was filled into `buf`, as much as fits.
    pub(super) fn read_into(&mut self, buf: &mut ReadBuf<'_>) {
        while buf.remaining() > 0
            && let Some(front) = self.ready.front_mut()
        {
            buf.put_slice(&front.split_to(buf.remaining().min(front.len())));
            if front.is_empty() {
                self.ready.pop_front();
            }
        }
    }

    /// Marks `count` octets of what was filled as used.
    pub fn consume(&mut self, mut count: usize) {
        while count > 0
            && let Some(front) = self.ready.front_mut()
        {
            let now = count.min(front.len());
            front.advance(now);
            count -= now;
            if front.is_empty() {
                self.ready.pop_front();
            }
        }
    }

    /// Asks the peer to send no more; what was not read is lost.
    pub fn stop(&mut self, code: Code) {
        if self.stage != Stage::Ended {
            self.end(H3Error::Closed);
            self.stream.stop(var(code)).ok();
        }
    }

    pub(super) fn max_field_section(&self) -> usize {
        self.max_field_section
    }

    /// It is no UDP flow: datagrams for it are not kept.
    pub(super) fn refuse_datagrams(&self) {
        let removed = self.ticket.inner().routes().close(self.ticket.id());
        drop(removed);
        self.ticket.streams(true);
    }

    /// The stream's id.
    pub(super) fn id(&self) -> u64 {
        self.ticket.id()
    }

    pub(super) fn ticket(&self) -> &Arc<Ticket> {
        &self.ticket
    }
}

impl Drop for DataReceiver {
    fn drop(&mut self) {
        self.stop(Code::REQUEST_CANCELLED);
    }
}
