//! One request and its response, at either end.
//! It becomes a byte stream, two halves, or a UDP flow. Sending puts DATA frames around what the caller gives; receiving hands out
//! the payloads in the very chunks that QUIC delivers.
//! RFC 9114 §4.1 (order of frames), §4.4 (CONNECT), §7.1, §7.2.1.

use std::{
    collections::VecDeque,
    future::{pending, poll_fn},
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use hoplite_overlay::{Error, PendingStream};
use hoplite_wire::{
    RequestHead, ResponseHead,
    h3::{self, Code, Frame, FrameReader, Place},
    http_head::{HeadError, check_trailers},
};
use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::{DatagramSink, Flow, H3Error, quic, session::Session, session::Ticket, var};
use crate::accepted;

/// A request that is under way. Dropped, both directions are reset.
#[derive(Debug)]
pub struct Exchange {
    pub(super) sender: DataSender,
    pub(super) receiver: DataReceiver,
}

impl Exchange {
    pub(super) fn new(sender: DataSender, receiver: DataReceiver) -> Self {
        Self { sender, receiver }
    }

    /// The id of the stream.
    pub fn id(&self) -> u64 {
        self.receiver.id()
    }

    /// The client's end: waits for the final response; informational ones are skipped.
    ///
    /// # Errors
    /// The peer reset the stream or broke a rule, or the connection is lost.
    pub async fn response(&mut self) -> Result<ResponseHead, H3Error> {
        self.receiver.response().await
    }

    /// The server's end: sends the response, or an informational one before it.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn respond(&mut self, head: &ResponseHead) -> Result<(), H3Error> {
        if !head.is_success() {
            self.receiver.tunnel = false;
        }
        self.sender.write_head(&head.encode()).await
    }

    /// The server's end: sends a response without a body, reads no more, and waits until the client has the response.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn refuse(mut self, head: &ResponseHead) -> Result<(), H3Error> {
        self.respond(head).await?;
        let (mut sender, mut receiver) = self.split();
        receiver.stop(Code::NO_ERROR);
        sender.finish_read().await
    }

    /// Sends a whole body behind the head, and ends the sending side.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn send(&mut self, content: Bytes) -> Result<(), H3Error> {
        self.receiver.ticket().streams(true);
        self.sender.write(content).await?;
        self.sender.finish().await
    }

    /// Reads the body to its end; `None` if it is larger than `limit` bytes.
    ///
    /// # Errors
    /// The peer reset the stream or broke a rule, or the connection is lost.
    pub async fn content(&mut self, limit: usize) -> Result<Option<Bytes>, H3Error> {
        let mut content = BytesMut::new();
        while let Some(part) = self.receiver.data().await? {
            if content.len() + part.len() > limit {
                return Ok(None);
            }
            content.extend_from_slice(&part);
        }
        Ok(Some(content.freeze()))
    }

    /// The server's end: sends a response with a whole body, and reads no more.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn answer(mut self, head: &ResponseHead, content: Bytes) -> Result<(), H3Error> {
        self.respond(head).await?;
        self.send(content).await?;
        self.receiver.stop(Code::NO_ERROR);
        Ok(())
    }

    /// The server's end: resolves when the client has broken off the request, by a reset of its own direction or by stopping ours, or with the connection.
    pub async fn gone(&mut self) {
        tokio::select! {
            _ = self.sender.stopped() => {}
            () = self.receiver.reset_by_peer() => {}
        }
    }

    /// Both halves.
    pub fn split(mut self) -> (DataSender, DataReceiver) {
        self.receiver.refuse_datagrams();
        self.sender.share();
        (self.sender, self.receiver)
    }

    /// A byte stream, for CONNECT. The client may call it before the response, which is read by [`hoplite_overlay::PendingStream::poll_answer`] then.
    pub fn into_stream(self) -> H3Stream {
        let (sender, receiver) = self.split();
        H3Stream { sender, receiver }
    }

    /// A UDP flow, for CONNECT-UDP: payloads that arrive go to `sink`, those that came early at once.
    /// The client may call it before the response, and then gets that from [`Flow::response`]; the server calls it after responding.
    pub fn datagrams(self, sink: Arc<dyn DatagramSink>) -> Flow {
        Flow::new(self.sender, self.receiver, sink)
    }

    /// Ends both directions at once with `code`.
    pub fn reset(mut self, code: Code) {
        self.sender.reset(code);
        self.receiver.stop(code);
    }
}

impl DataReceiver {
    /// The final response.
    pub(super) async fn response(&mut self) -> Result<ResponseHead, H3Error> {
        poll_fn(|cx| self.poll_response(cx)).await
    }

    /// The final response, as soon as it is there. To be polled until it is.
    pub(super) fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, H3Error>> {
        loop {
            let Some(section) = ready!(self.poll_head(cx))? else {
                let error = self.refuse(Code::MESSAGE_ERROR, "the stream ends before the response");
                return Poll::Ready(Err(error));
            };
            if let Some(head) = self.read_response(&section)? {
                return Poll::Ready(Ok(head));
            }
        }
    }

    /// The head of a response, unless it is an informational one.
    fn read_response(&mut self, section: &[u8]) -> Result<Option<ResponseHead>, H3Error> {
        match ResponseHead::decode(section, self.max_field_section()) {
            // "HTTP/3 does not support […] the 101 (Switching Protocols) informational status code."
            Ok(head) if head.status == 101 => {
                Err(self.refuse(Code::MESSAGE_ERROR, "switching protocols"))
            }
            Ok(head) if head.is_informational() => Ok(None),
            Ok(head) => {
                self.heads_end();
                self.tunnel &= head.is_success();
                Ok(Some(head))
            }
            Err(error) => Err(self.refuse_head(error)),
        }
    }

    /// The server's end: the head of the request; `None` when the stream ends before it.
    pub(super) async fn request(
        &mut self,
    ) -> Result<Option<Result<RequestHead, HeadError>>, H3Error> {
        let Some(section) = poll_fn(|cx| self.poll_head(cx)).await? else {
            return Ok(None);
        };
        let head = RequestHead::decode(&section, self.max_field_section());
        self.heads_end();
        self.tunnel = head.as_ref().is_ok_and(|head| head.method == "CONNECT");
        Ok(Some(head))
    }

    /// A head that cannot be read fails the connection, one that breaks a rule the stream.
    pub(super) fn refuse_head(&mut self, error: HeadError) -> H3Error {
        match error {
            HeadError::Decompression => self.fail(
                Code::QPACK_DECOMPRESSION_FAILED,
                "an unreadable field section",
            ),
            HeadError::TooLarge => {
                self.refuse(Code::EXCESSIVE_LOAD, "a field section above the limit")
            }
            HeadError::Malformed(rule) => self.refuse(Code::MESSAGE_ERROR, rule),
        }
    }
}

/// The largest DATA frame that one write makes.
pub(super) const MAX_WRITE: usize = 64 * 1024;
/// What is written so soon behind a piece that has waited for others was there before it left.
const TOGETHER: Duration = Duration::from_millis(1);
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
    /// A flow's capsules behind it, in one piece however many they are.
    behind: BytesMut,
    ended: bool,
    /// Keeps the connection open as long as it is used.
    pub(super) session: Option<Session>,
    ticket: Arc<Ticket>,
    /// Whether small pieces wait for others to share a packet with.
    shares: bool,
    /// The packet that the next one waits for.
    waits: Option<u64>,
    /// When the last one that waited left.
    left: Option<Instant>,
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
            behind: BytesMut::new(),
            ended: false,
            session,
            ticket,
            shares: false,
            waits: None,
            left: None,
        }
    }

    /// It is a stream of bytes from now on.
    fn share(&mut self) {
        self.shares = self.ticket.inner().config.share.any();
    }

    /// Ready when a write of so many bytes may be made.
    fn poll_share(&mut self, cx: &Context<'_>, bytes: usize) -> Poll<()> {
        // What gathered behind a piece that waited has waited as well.
        let behind = self.left.is_some_and(|left| left.elapsed() < TOGETHER);
        if !self.shares || behind {
            return Poll::Ready(());
        }
        let inner = self.ticket.inner();
        let waited = self.waits.is_some();
        ready!(inner.outbox.poll_share(inner, bytes, &mut self.waits, cx));
        self.left = waited.then(Instant::now);
        Poll::Ready(())
    }

    /// Ready when the next write is taken at once, but for a small one that is to share a packet.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), H3Error>> {
        while self.has_pending() {
            if self.pending.is_empty() {
                self.pending
                    .push_back(std::mem::take(&mut self.behind).freeze());
            }
            let chunks = self.pending.make_contiguous();
            let written = ready!(self.stream.poll_write_chunks(cx, chunks))?;
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
            ready!(self.poll_share(cx, payload.len()));
            let mut head = BytesMut::with_capacity(2 * DATA_HEAD);
            h3::write_data_head(&mut head, payload.len());
            let payload = std::mem::take(payload);
            self.push(cx, [head.freeze(), payload])?;
        }
        Poll::Ready(Ok(()))
    }

    /// Copies up to 64 KiB of `data` into one DATA frame; how many bytes were taken.
    pub(super) fn poll_write_copy(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<Result<usize, H3Error>> {
        ready!(self.poll_flush(cx))?;
        let data = data.get(..MAX_WRITE).unwrap_or(data);
        if !data.is_empty() {
            ready!(self.poll_share(cx, data.len()));
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
        Ok(!self.has_pending())
    }

    /// Hands a whole frame over without waiting, behind what QUIC has not taken yet and up to `bound` bytes of such frames.
    /// Whether somebody must flush then; `None` when there was no room.
    pub(super) fn write_behind(&mut self, frame: &[u8], bound: usize) -> Option<Waits> {
        if self.behind.len() > bound || self.ended {
            return None;
        }
        self.behind.extend_from_slice(frame);
        match self.poll_flush(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => Some(Waits::Nothing),
            Poll::Pending => Some(Waits::ForFlush),
            Poll::Ready(Err(_)) => None,
        }
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || !self.behind.is_empty()
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

    /// The same, and waits until the peer has read everything: until then it may still break off.
    ///
    /// # Errors
    /// The connection is lost, or the peer stopped the stream.
    pub async fn finish_read(&mut self) -> Result<(), H3Error> {
        self.finish().await?;
        match self.stopped().await {
            None => Ok(()),
            Some(code) => Err(H3Error::Stopped(code)),
        }
    }

    /// Ends the stream at once: the peer must not take it for complete.
    pub fn reset(&mut self, code: Code) {
        if !self.ended {
            self.ended = true;
            self.pending.clear();
            self.behind.clear();
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
        if !self.ended && !self.has_pending() {
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

/// How many chunks one call takes out of QUIC: about 40 KiB of full packets.
const CHUNKS: usize = 32;
/// So many payloads are made ready at once: the smallest ones cost more memory than they are long.
const MOST_READY: usize = 64;

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

    /// The next frame, straight out of the chunks that QUIC delivers; `None` at the end of the stream. Frames that mean nothing are gone through as many at
    /// once as come in one look; then others have their turn.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame>, H3Error>> {
        let mut has_looked = false;
        loop {
            match self.next_raw_frame()? {
                Some(frame) => return Poll::Ready(Ok(Some(frame))),
                None if self.stage == Stage::Ended => {
                    return Poll::Ready(self.failed.clone().map_or(Ok(None), Err));
                }
                None if has_looked => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                None => ready!(self.poll_chunks(cx))?,
            }
            has_looked = true;
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
        // What follows a head may have to wait for a target that is long in coming: it does so where the peer has used up credit for it.
        let most = if self.stage == Stage::Head { 1 } else { CHUNKS };
        let wanted = chunks.get_mut(..most).unwrap_or_default();
        let read = ready!(self.stream.poll_read_chunks(cx, wanted));
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

    /// Bytes that were taken out of QUIC and not read yet.
    pub fn unread(&self) -> usize {
        let all = self.raw.iter().chain(&self.ready);
        all.map(Bytes::len).sum()
    }

    /// Makes payloads available to [`DataReceiver::slices`]: what one look at QUIC yields, in 64 payloads at most. `false` at the end.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, H3Error>> {
        if !self.ready.is_empty() {
            return Poll::Ready(Ok(true));
        }
        let Some(first) = ready!(self.poll_data(cx))? else {
            return Poll::Ready(Ok(false));
        };
        self.ready.push_back(first);
        // An error in what follows is kept, and told by the next call.
        while self.ready.len() < MOST_READY
            && self.stage == Stage::Data
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

    /// Marks `count` bytes of what was filled as used.
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

/// Both halves of a CONNECT. Reading hands out QUIC's own chunks, or several of them joined; a write makes one DATA frame of at most
/// 64 KiB. Shutdown finishes the sending side; dropped before both sides have ended, it resets.
#[derive(Debug)]
pub struct H3Stream {
    pub(super) sender: DataSender,
    pub(super) receiver: DataReceiver,
}

impl PendingStream for H3Stream {
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let answer = ready!(self.receiver.poll_response(cx))?;
        Poll::Ready(accepted(&answer))
    }
}

impl AsyncBufRead for H3Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let receiver = &mut self.get_mut().receiver;
        ready!(receiver.poll_fill(cx))?;
        Poll::Ready(Ok(receiver.joined()))
    }

    fn consume(self: Pin<&mut Self>, amt: usize) {
        self.get_mut().receiver.consume(amt);
    }
}

impl AsyncRead for H3Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let receiver = &mut self.get_mut().receiver;
        ready!(receiver.poll_fill(cx))?;
        receiver.read_into(buf);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for H3Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(ready!(self.get_mut().sender.poll_write_copy(cx, buf))?))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(ready!(self.get_mut().sender.poll_flush(cx))?))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(ready!(self.get_mut().sender.poll_finish(cx))?))
    }
}
