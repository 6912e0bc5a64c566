//! One request and its response, at either end and of whichever version, and what it becomes: two halves or a byte stream.
//! RFC 9110 §9.3.6: "a tunnel is closed when […] either side has closed its connection"; how a half-closed one is told differs by version.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use hoplite_overlay::{Error, PendingStream};
use hoplite_wire::{ResponseHead, h3::Code};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use crate::{DatagramSink, Flow, HttpError, HttpVersion, h1, h2, h3};

/// A request that is under way. Dropped, it is reset.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the largest is the usual one, and a request is not worth an allocation"
)]
pub enum Exchange {
    /// The server's end.
    H1(h1::Exchange),
    /// Either end.
    H2(h2::Exchange),
    /// Either end.
    H3(h3::Exchange),
}

/// The sending direction. Dropped unfinished, it resets the stream.
#[derive(Debug)]
pub enum DataSender {
    /// A TLS connection.
    H1(h1::DataSender),
    /// A stream of a TLS connection.
    H2(h2::DataSender),
    /// A stream of a QUIC connection.
    H3(h3::DataSender),
}

/// The receiving direction.
#[derive(Debug)]
pub enum DataReceiver {
    /// A TLS connection.
    H1(h1::DataReceiver),
    /// A stream of a TLS connection.
    H2(h2::DataReceiver),
    /// A stream of a QUIC connection.
    H3(h3::DataReceiver),
}

/// Both directions of a CONNECT at the client's end. Shutdown finishes the sending side; dropped before both sides have ended, it resets.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the largest is the usual one, and a tunnel is not worth an allocation"
)]
pub enum ByteStream {
    /// A stream of a TLS connection.
    H2(h2::H2Stream),
    /// A stream of a QUIC connection.
    H3(h3::H3Stream),
}

impl Exchange {
    /// The version that it is spoken in.
    pub fn version(&self) -> HttpVersion {
        match self {
            Self::H1(_) => HttpVersion::H1,
            Self::H2(_) => HttpVersion::H2,
            Self::H3(_) => HttpVersion::H3,
        }
    }

    /// The client's end: waits for the final response.
    ///
    /// # Errors
    /// The peer reset the stream or broke a rule, or the connection is lost.
    pub async fn response(&mut self) -> Result<ResponseHead, HttpError> {
        match self {
            Self::H3(exchange) => Ok(exchange.response().await?),
            Self::H2(exchange) => Ok(exchange.response().await?),
            Self::H1(_) => Err(HttpError::ServedOnly(HttpVersion::H1)),
        }
    }

    /// The client's end: sends a whole body behind the head, at most some tens of kilobytes, and ends the sending side.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn send(&mut self, content: Bytes) -> Result<(), HttpError> {
        match self {
            Self::H3(exchange) => Ok(exchange.send(content).await?),
            Self::H2(exchange) => Ok(exchange.send(content)?),
            Self::H1(_) => Err(HttpError::ServedOnly(HttpVersion::H1)),
        }
    }

    /// The server's end: resolves when the client has broken the request off before it is answered, or with the connection.
    pub async fn gone(&mut self) {
        match self {
            Self::H3(exchange) => exchange.gone().await,
            Self::H2(exchange) => exchange.gone().await,
            Self::H1(exchange) => exchange.gone().await,
        }
    }

    /// The server's end: answers, and leaves the stream open.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn respond(&mut self, head: &ResponseHead) -> Result<(), HttpError> {
        match self {
            Self::H3(exchange) => Ok(exchange.respond(head).await?),
            Self::H2(exchange) => Ok(exchange.respond(head).await?),
            Self::H1(exchange) => Ok(exchange.respond(head).await?),
        }
    }

    /// The server's end: answers, and ends the stream.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn refuse(self, head: &ResponseHead) -> Result<(), HttpError> {
        match self {
            Self::H3(exchange) => Ok(exchange.refuse(head).await?),
            Self::H2(exchange) => Ok(exchange.refuse(head).await?),
            Self::H1(exchange) => Ok(exchange.refuse(head).await?),
        }
    }

    /// The server's end: answers with a whole body, of the same size as requests have, and ends the stream. HTTP/1.1 leaves it out.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn answer(self, head: &ResponseHead, content: Bytes) -> Result<(), HttpError> {
        match self {
            Self::H3(exchange) => Ok(exchange.answer(head, content).await?),
            Self::H2(mut exchange) => Ok(exchange.respond_with(head, content).await?),
            Self::H1(exchange) => Ok(exchange.refuse(head).await?),
        }
    }

    /// Reads the body to its end; `None` if it is larger than `limit` bytes. Requests over HTTP/1.1 have none here.
    ///
    /// # Errors
    /// The peer reset the stream or broke a rule, or the connection is lost.
    pub async fn content(&mut self, limit: usize) -> Result<Option<Bytes>, HttpError> {
        match self {
            Self::H3(exchange) => Ok(exchange.content(limit).await?),
            Self::H2(exchange) => Ok(exchange.content(limit).await?),
            Self::H1(_) => Err(h1::H1Error.into()),
        }
    }

    /// Both directions, once the request is answered.
    pub fn split(self) -> (DataSender, DataReceiver) {
        match self {
            Self::H3(exchange) => {
                let (sender, receiver) = exchange.split();
                (DataSender::H3(sender), DataReceiver::H3(receiver))
            }
            Self::H2(exchange) => {
                let (sender, receiver) = exchange.split();
                (DataSender::H2(sender), DataReceiver::H2(receiver))
            }
            Self::H1(exchange) => {
                let (sender, receiver) = exchange.split();
                (DataSender::H1(sender), DataReceiver::H1(receiver))
            }
        }
    }

    /// A byte stream, for CONNECT. The client may call it before the response, which is read by [`PendingStream::poll_answer`] then.
    ///
    /// # Errors
    /// This version has no client.
    pub fn into_stream(self) -> Result<ByteStream, HttpError> {
        match self {
            Self::H3(exchange) => Ok(ByteStream::H3(exchange.into_stream())),
            Self::H2(exchange) => Ok(ByteStream::H2(exchange.into_stream())),
            Self::H1(_) => Err(HttpError::ServedOnly(HttpVersion::H1)),
        }
    }

    /// A flow of UDP payloads or IP packets, once the request is answered: what arrives goes to `sink`, what came early at once.
    pub fn datagrams(self, sink: Arc<dyn DatagramSink>) -> Flow {
        match self {
            Self::H3(exchange) => Flow::H3(exchange.datagrams(sink)),
            Self::H2(exchange) => Flow::H2(exchange.datagrams(sink)),
            Self::H1(exchange) => Flow::H1(exchange.datagrams(sink)),
        }
    }
}

impl DataSender {
    /// Waits for room and takes the bytes.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), HttpError> {
        match self {
            Self::H3(sender) => Ok(sender.write(bytes).await?),
            Self::H2(sender) => Ok(sender.write(bytes).await?),
            Self::H1(sender) => Ok(sender.write(bytes).await?),
        }
    }

    /// Ends this direction; what was written still arrives. Over HTTP/3 it waits until the peer has all of it.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn finish(&mut self) -> Result<(), HttpError> {
        match self {
            Self::H3(sender) => Ok(sender.finish_read().await?),
            Self::H2(sender) => Ok(sender.finish()?),
            Self::H1(sender) => Ok(sender.finish().await?),
        }
    }

    /// Breaks the stream off because the target did: "A proxy treats any error in the TCP connection […] as a stream error of type
    /// H3_CONNECT_ERROR" (RFC 9114 §4.4, and alike RFC 9113 §8.5).
    pub fn reset(&mut self) {
        match self {
            Self::H3(sender) => sender.reset(Code::CONNECT_ERROR),
            Self::H2(sender) => sender.reset(),
            Self::H1(sender) => sender.reset(),
        }
    }
}

impl DataReceiver {
    /// The next bytes; `None` when the peer has finished.
    ///
    /// # Errors
    /// The stream was reset, the connection is lost, or the peer broke a rule.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, HttpError>> {
        match self {
            Self::H3(receiver) => receiver.poll_data(cx).map_err(HttpError::from),
            Self::H2(receiver) => receiver.poll_data(cx).map_err(HttpError::from),
            Self::H1(receiver) => receiver.poll_data(cx).map_err(HttpError::from),
        }
    }

    /// Bytes that were taken out of the transport and not read yet. Over TCP they wait in it.
    pub fn unread(&self) -> usize {
        match self {
            Self::H3(receiver) => receiver.unread(),
            Self::H1(_) | Self::H2(_) => 0,
        }
    }
}

impl PendingStream for ByteStream {
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self {
            Self::H3(stream) => stream.poll_answer(cx),
            Self::H2(stream) => stream.poll_answer(cx),
        }
    }
}

impl AsyncRead for ByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::H3(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::H2(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncBufRead for ByteStream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        match self.get_mut() {
            Self::H3(stream) => Pin::new(stream).poll_fill_buf(cx),
            Self::H2(stream) => Pin::new(stream).poll_fill_buf(cx),
        }
    }

    fn consume(self: Pin<&mut Self>, amt: usize) {
        match self.get_mut() {
            Self::H3(stream) => Pin::new(stream).consume(amt),
            Self::H2(stream) => Pin::new(stream).consume(amt),
        }
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::H3(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::H2(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::H3(stream) => Pin::new(stream).poll_flush(cx),
            Self::H2(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::H3(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::H2(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
