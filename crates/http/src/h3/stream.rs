//! An exchange as a byte stream: what CONNECT carries.
//! It becomes an `overlay::Stream`, before or after the response. RFC 9114 §4.4.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hoplite_overlay::{Asked, Error};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{DataReceiver, DataSender};
use crate::accepted;

/// Both halves of a CONNECT. Reading hands out QUIC's own chunks, or several of them joined; a write makes one DATA frame of at most
/// 64 KiB. Shutdown finishes the sending side; dropped before both sides have ended, it resets.
#[derive(Debug)]
pub struct H3Stream {
    pub(super) sender: DataSender,
    pub(super) receiver: DataReceiver,
}

impl Asked for H3Stream {
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
