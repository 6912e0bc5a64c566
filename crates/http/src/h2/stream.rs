//! The octets of an answered request: each direction alone, or both as a TCP flow.
//! What is handed out counts against the flow-control window until the reader comes back for more (RFC 9113 §5.2).

use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use ::h2::{Reason, RecvStream, SendStream, client::ResponseFuture};
use bytes::{Buf, Bytes};
use hoplite_overlay::{Asked, Error};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{H2Error, head::read_response};
use crate::accepted;

/// What one write asks for at most, in octets; the window and the send buffer may give less.
const PIECE: usize = 64 * 1024;

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
}

impl DataSender {
    pub(super) fn new(send: Option<SendStream<Bytes>>) -> Self {
        Self {
            send,
            finished: false,
        }
    }

    /// How many octets would be taken now, when `wanted` are; gives back what was reserved before.
    pub(super) fn room(&mut self, wanted: usize) -> usize {
        let Some(send) = &mut self.send else { return 0 };
        send.reserve_capacity(wanted);
        send.capacity()
    }

    /// Waits until at least one of `wanted` octets would be taken.
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

    /// Takes octets for which there is room.
    pub(super) fn put(&mut self, octets: Bytes) -> Result<(), H2Error> {
        let send = self.send.as_mut().ok_or(H2Error::State)?;
        Ok(send.send_data(octets, false)?)
    }

    /// Takes all of `octets`, waiting for room.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub async fn write(&mut self, mut octets: Bytes) -> Result<(), H2Error> {
        while !octets.is_empty() {
            let wanted = octets.len().min(PIECE);
            let room = poll_fn(|cx| self.poll_room(cx, wanted)).await?;
            self.put(octets.split_to(room.min(octets.len())))?;
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
    pub(super) fn new(recv: Option<RecvStream>) -> Self {
        Self {
            recv,
            handed_out: 0,
        }
    }

    /// The next octets; `None` when the peer has finished.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, H2Error>> {
        let recv = self.recv.as_mut().ok_or(H2Error::State)?;
        let done = std::mem::take(&mut self.handed_out);
        recv.flow_control().release_capacity(done)?;
        loop {
            match ready!(recv.poll_data(cx)).transpose()? {
                Some(octets) if octets.is_empty() && !recv.is_end_stream() => {}
                Some(octets) if octets.is_empty() => return Poll::Ready(Ok(None)),
                Some(octets) => {
                    self.handed_out = octets.len();
                    return Poll::Ready(Ok(Some(octets)));
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
                Some(octets) => self.current = octets,
                None => self.read_ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Asked for H2Stream {
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(answer) = &mut self.answer else {
            return Poll::Ready(Ok(()));
        };
        let response = ready!(pin!(answer).poll(cx)).map_err(H2Error::from)?;
        let (parts, recv) = response.into_parts();
        (self.answer, self.receiver) = (None, DataReceiver::new(Some(recv)));
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
        let wanted = buf.len().min(PIECE);
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
