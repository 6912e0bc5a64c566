//! One request with its answer, from either end, until it goes on as bytes or as datagrams.
//! Dropped before that, it is reset. Heads are checked by the same rules as over HTTP/3; what is handed out counts against the
//! flow-control window until the reader comes back for more.
//! RFC 9113 §5.2, §8.2 and §8.3, RFC 8441 §4.

use std::{
    fmt,
    future::{Future, pending, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use ::h2::{
    Reason, RecvStream, SendStream, client::ResponseFuture, ext::Protocol, server::SendResponse,
};
use bytes::{Buf, Bytes, BytesMut};
use hoplite_overlay::{Error, PendingStream};
use hoplite_wire::http_head::{Header, RequestHead, ResponseHead};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version, request, response,
};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{
    Flow, H2Error,
    window::{Moved, StreamWindow},
};
use crate::{DatagramSink, accepted};

/// A request and its answer.
pub struct Exchange {
    state: State,
    recv: Option<RecvStream>,
    /// What may be received ahead, where it grows: at a client.
    window: Option<Arc<StreamWindow>>,
    max_payload: usize,
}

enum State {
    /// A client waits for the answer.
    Asked(Box<ResponseFuture>, SendStream<Bytes>),
    /// A server has to answer.
    Asking(SendResponse<Bytes>),
    /// Answered; bytes may go both ways.
    Open(SendStream<Bytes>),
    /// Answered, and over.
    Over,
}

impl Exchange {
    pub(super) fn asked(
        answer: ResponseFuture,
        send: SendStream<Bytes>,
        window: Arc<StreamWindow>,
        max_payload: usize,
    ) -> Self {
        Self {
            state: State::Asked(Box::new(answer), send),
            recv: None,
            window: Some(window),
            max_payload,
        }
    }

    pub(super) fn asking(
        answer: SendResponse<Bytes>,
        recv: RecvStream,
        max_payload: usize,
    ) -> Self {
        Self {
            state: State::Asking(answer),
            recv: Some(recv),
            window: None,
            max_payload,
        }
    }

    /// The client waits for the final response.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub async fn response(&mut self) -> Result<ResponseHead, H2Error> {
        let State::Asked(answer, _) = &mut self.state else {
            return Err(H2Error::State);
        };
        let (parts, recv) = answer.await?.into_parts();
        if let State::Asked(_, send) = std::mem::replace(&mut self.state, State::Over) {
            self.state = State::Open(send);
        }
        self.recv = Some(recv);
        read_response(&parts)
    }

    /// The server answers and leaves the stream open.
    ///
    /// # Errors
    /// The client has gone.
    pub fn respond(
        &mut self,
        head: &ResponseHead,
    ) -> impl Future<Output = Result<(), H2Error>> + Send + use<> {
        let answered = self.answer(head, false);
        async { answered }
    }

    /// The server answers and ends the stream.
    ///
    /// # Errors
    /// The client has gone.
    pub fn refuse(
        mut self,
        head: &ResponseHead,
    ) -> impl Future<Output = Result<(), H2Error>> + Send + use<> {
        let answered = self.answer(head, true);
        async { answered }
    }

    /// Resolves when the client has broken off the request before it was answered, or with the connection.
    pub async fn gone(&mut self) {
        match &mut self.state {
            State::Asking(answer) => drop(poll_fn(|cx| answer.poll_reset(cx)).await),
            _ => pending().await,
        }
    }

    fn answer(&mut self, head: &ResponseHead, over: bool) -> Result<(), H2Error> {
        let State::Asking(answer) = &mut self.state else {
            return Err(H2Error::State);
        };
        let send = answer.send_response(write_response(head)?, over)?;
        self.state = if over { State::Over } else { State::Open(send) };
        Ok(())
    }

    /// A client sends a whole body behind the head of its request and ends the sending side; at most some tens of kilobytes,
    /// which wait here for the window.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub fn send(&mut self, content: Bytes) -> Result<(), H2Error> {
        match &mut self.state {
            State::Asked(_, send) => Ok(send.send_data(content, true)?),
            _ => Err(H2Error::State),
        }
    }

    /// The server answers with a whole body, of the same size, as the client gives room for it, and ends the stream.
    ///
    /// # Errors
    /// The client has gone.
    pub(crate) async fn respond_with(
        &mut self,
        head: &ResponseHead,
        content: Bytes,
    ) -> Result<(), H2Error> {
        self.answer(head, false)?;
        let State::Open(send) = std::mem::replace(&mut self.state, State::Over) else {
            return Err(H2Error::State);
        };
        let mut sender = DataSender::new(Some(send));
        sender.write(content).await?;
        sender.finish()
    }

    /// Reads the body to its end; `None` if it is larger than `limit` bytes. Nothing can be read behind it.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub async fn content(&mut self, limit: usize) -> Result<Option<Bytes>, H2Error> {
        let mut receiver = DataReceiver::new(self.recv.take(), self.window.clone());
        let mut content = BytesMut::new();
        while let Some(part) = poll_fn(|cx| receiver.poll_data(cx)).await? {
            if content.len() + part.len() > limit {
                return Ok(None);
            }
            content.extend_from_slice(&part);
        }
        Ok(Some(content.freeze()))
    }

    /// The two directions, once the request is answered; before that both fail.
    pub fn split(self) -> (DataSender, DataReceiver) {
        let send = match self.state {
            State::Open(send) => Some(send),
            _ => None,
        };
        let receiver = DataReceiver::new(self.recv, self.window);
        (DataSender::new(send), receiver)
    }

    /// A TCP flow. The client may call it before the response, which is read by [`hoplite_overlay::PendingStream::poll_answer`] then; the
    /// server calls it after answering.
    pub fn into_stream(self) -> H2Stream {
        let (send, answer) = match self.state {
            State::Asked(answer, send) => (Some(send), Some(answer)),
            State::Open(send) => (Some(send), None),
            _ => (None, None),
        };
        let receiver = DataReceiver::new(self.recv, self.window);
        H2Stream::new(DataSender::new(send), receiver, answer)
    }

    /// A UDP flow, once the request is answered: `sink` gets the peer's payloads.
    pub fn datagrams(self, sink: Arc<dyn DatagramSink>) -> Flow {
        let max_payload = self.max_payload;
        let (sender, receiver) = self.split();
        Flow::new(sender, receiver, sink, max_payload)
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Asked(..) => "Exchange(asked)",
            State::Asking(_) => "Exchange(asking)",
            State::Open(_) => "Exchange(open)",
            State::Over => "Exchange(over)",
        })
    }
}

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

pub(super) fn write_request(head: &RequestHead) -> Result<Request<()>, H2Error> {
    let unfit = |_| H2Error::Malformed("a request that HTTP/2 cannot carry");
    let mut request = Request::builder()
        .method(head.method.as_str())
        .uri(uri(head).map_err(unfit)?)
        .version(Version::HTTP_2)
        .body(())
        .map_err(unfit)?;
    if let Some(protocol) = &head.protocol {
        let protocol = Protocol::from(protocol.as_str());
        request.extensions_mut().insert(protocol);
    }
    fill(request.headers_mut(), &head.headers)?;
    Ok(request)
}

fn uri(head: &RequestHead) -> Result<Uri, http::Error> {
    let mut uri = Uri::builder().authority(head.authority.as_str());
    if let Some(scheme) = &head.scheme {
        uri = uri.scheme(scheme.as_str());
    }
    if let Some(path) = &head.path {
        uri = uri.path_and_query(path.as_str());
    }
    uri.build()
}

fn write_response(head: &ResponseHead) -> Result<Response<()>, H2Error> {
    let mut response = Response::builder()
        .status(head.status)
        .version(Version::HTTP_2)
        .body(())
        .map_err(|_| H2Error::Malformed("a response that HTTP/2 cannot carry"))?;
    fill(response.headers_mut(), &head.headers)?;
    Ok(response)
}

fn fill(map: &mut HeaderMap, headers: &[Header]) -> Result<(), H2Error> {
    for (name, value) in headers {
        let unfit = H2Error::Malformed("a field that HTTP/2 cannot carry");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unfit.clone())?;
        let mut value =
            HeaderValue::from_maybe_shared(Bytes::copy_from_slice(value)).map_err(|_| unfit)?;
        // A token must not enter the compression state: its length could be guessed from sizes (RFC 7541 §7.1.3).
        value.set_sensitive(name.as_str().ends_with("authorization"));
        map.append(name, value);
    }
    Ok(())
}

pub(super) fn read_request(parts: &request::Parts) -> Result<RequestHead, &'static str> {
    let text = |text: &str| text.as_bytes().to_vec();
    let uri = &parts.uri;
    let pseudo = [
        (":method", Some(text(parts.method.as_str()))),
        (
            ":protocol",
            parts.extensions.get().map(|p: &Protocol| text(p.as_str())),
        ),
        (":scheme", uri.scheme_str().map(text)),
        (":authority", uri.authority().map(|a| text(a.as_str()))),
        (":path", uri.path_and_query().map(|p| text(p.as_str()))),
    ];
    let pseudo = pseudo
        .into_iter()
        .filter_map(|(name, value)| Some((text(name), value?)));
    RequestHead::from_fields(pseudo.chain(fields(&parts.headers)).collect())
}

fn read_response(parts: &response::Parts) -> Result<ResponseHead, H2Error> {
    let status = parts.status.as_str().as_bytes().to_vec();
    let mut all: Fields = vec![(b":status".to_vec(), status)];
    all.extend(fields(&parts.headers));
    ResponseHead::from_fields(all).map_err(H2Error::Malformed)
}

fn fields(map: &HeaderMap) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    map.iter()
        .map(|(name, value)| (name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec()))
}

/// What one write asks for at most, in bytes; the window and the send buffer may give less.
const MAX_WRITE: usize = 64 * 1024;

/// The sending direction. Dropped unfinished, together with its receiver, it resets the stream.
pub struct DataSender {
    send: Option<SendStream<Bytes>>,
    finished: bool,
}

/// The receiving direction.
pub struct DataReceiver {
    recv: Option<RecvStream>,
    /// Handed out, not yet given back to the window.
    handed_out: usize,
    moved: Option<Moved>,
}

impl DataSender {
    pub(super) fn new(send: Option<SendStream<Bytes>>) -> Self {
        Self {
            send,
            finished: false,
        }
    }

    /// How many bytes would be taken now, when `wanted` are; gives back what was reserved before.
    pub(super) fn room(&mut self, wanted: usize) -> usize {
        let Some(send) = &mut self.send else { return 0 };
        send.reserve_capacity(wanted);
        send.capacity()
    }

    /// Waits until at least one of `wanted` bytes would be taken.
    pub(super) fn poll_room(
        &mut self,
        cx: &mut Context<'_>,
        wanted: usize,
    ) -> Poll<Result<usize, H2Error>> {
        if self.finished {
            return Poll::Ready(Err(H2Error::State));
        }
        let send = self.send.as_mut().ok_or(H2Error::State)?;
        send.reserve_capacity(wanted);
        loop {
            let room = send.capacity();
            if room > 0 {
                return Poll::Ready(Ok(room));
            }
            match ready!(send.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => return Poll::Ready(Err(Self::why_closed(send, cx))),
            }
        }
    }

    fn why_closed(send: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> H2Error {
        match send.poll_reset(cx) {
            Poll::Ready(Ok(reason)) => H2Error::Reset(reason.into()),
            Poll::Ready(Err(error)) => error.into(),
            Poll::Pending => H2Error::State,
        }
    }

    /// Takes bytes for which there is room.
    pub(super) fn put(&mut self, bytes: Bytes) -> Result<(), H2Error> {
        let send = self.send.as_mut().ok_or(H2Error::State)?;
        Ok(send.send_data(bytes, false)?)
    }

    /// Takes all of `bytes`, waiting for room.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), H2Error> {
        while !bytes.is_empty() {
            let wanted = bytes.len().min(MAX_WRITE);
            let room = poll_fn(|cx| self.poll_room(cx, wanted)).await?;
            self.put(bytes.split_to(room.min(bytes.len())))?;
        }
        Ok(())
    }

    /// Ends this direction; what was written still arrives.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub fn finish(&mut self) -> Result<(), H2Error> {
        if self.finished {
            return Ok(());
        }
        let send = self.send.as_mut().ok_or(H2Error::State)?;
        send.send_data(Bytes::new(), true)?;
        self.finished = true;
        Ok(())
    }

    /// Breaks the stream off because the far side failed: CONNECT_ERROR.
    pub fn reset(&mut self) {
        if let Some(send) = &mut self.send {
            send.send_reset(Reason::CONNECT_ERROR);
        }
    }
}

impl DataReceiver {
    pub(super) fn new(recv: Option<RecvStream>, window: Option<Arc<StreamWindow>>) -> Self {
        Self {
            recv,
            handed_out: 0,
            moved: window.map(Moved::new),
        }
    }

    /// The next bytes; `None` when the peer has finished.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, H2Error>> {
        let recv = self.recv.as_mut().ok_or(H2Error::State)?;
        let done = std::mem::take(&mut self.handed_out);
        recv.flow_control().release_capacity(done)?;
        if let Some(moved) = &mut self.moved {
            moved.read(done);
        }
        loop {
            match ready!(recv.poll_data(cx)).transpose()? {
                Some(bytes) if bytes.is_empty() && !recv.is_end_stream() => {}
                Some(bytes) if bytes.is_empty() => return Poll::Ready(Ok(None)),
                Some(bytes) => {
                    self.handed_out = bytes.len();
                    return Poll::Ready(Ok(Some(bytes)));
                }
                None => return Poll::Ready(Ok(None)),
            }
        }
    }
}

/// A TCP flow on a stream. Dropped before both sides have ended, it is reset.
#[derive(Debug)]
pub struct H2Stream {
    sender: DataSender,
    receiver: DataReceiver,
    /// The response, until it has come.
    answer: Option<Box<ResponseFuture>>,
    current: Bytes,
    read_ended: bool,
}

impl H2Stream {
    pub(super) fn new(
        sender: DataSender,
        receiver: DataReceiver,
        answer: Option<Box<ResponseFuture>>,
    ) -> Self {
        Self {
            sender,
            receiver,
            answer,
            current: Bytes::new(),
            read_ended: false,
        }
    }

    fn poll_current(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.current.is_empty() && !self.read_ended {
            match ready!(self.receiver.poll_data(cx))? {
                Some(bytes) => self.current = bytes,
                None => self.read_ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl PendingStream for H2Stream {
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(answer) = &mut self.answer else {
            return Poll::Ready(Ok(()));
        };
        let response = ready!(pin!(answer).poll(cx)).map_err(H2Error::from)?;
        let (parts, recv) = response.into_parts();
        (self.answer, self.receiver.recv) = (None, Some(recv));
        Poll::Ready(accepted(&read_response(&parts)?))
    }
}

impl AsyncRead for H2Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        ready!(stream.poll_current(cx))?;
        let count = stream.current.len().min(buf.remaining());
        buf.put_slice(&stream.current.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for H2Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let stream = self.get_mut();
        ready!(stream.poll_current(cx))?;
        Poll::Ready(Ok(&stream.current))
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        self.current.advance(amt);
    }
}

impl AsyncWrite for H2Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let wanted = buf.len().min(MAX_WRITE);
        let room = ready!(self.sender.poll_room(cx, wanted))?;
        let piece = buf.get(..room).unwrap_or(buf);
        self.sender.put(Bytes::copy_from_slice(piece))?;
        Poll::Ready(Ok(piece.len()))
    }

    /// The driver flushes.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.sender.finish().map_err(io::Error::from))
    }
}

impl fmt::Debug for DataSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataSender")
    }
}

impl fmt::Debug for DataReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataReceiver")
    }
}
