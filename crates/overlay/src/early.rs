//! A stream that is handed out before the far end has answered ([`crate::Terms::early`]): what is written travels with the request.
//! Overlays make one of their own stream by [`crate::Stream::early`]; whoever has it reads, writes and finishes as ever.
//!
//! At most 64 KiB are taken before the answer. A refusal comes as the error of the next call, and of all that follow. A far end that refuses also stops reading: then the error
//! of a write is held back until the answer is there, for that says more.

use std::{
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
};

use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use crate::{Error, ErrorKind, Io};

/// How many octets are written before the answer: as many as a connection sends in its first round trip, and so few that many flows
/// whose targets never answer do not fill the window that they share with others.
const FIRST: usize = 64 * 1024;

/// A stream on which a flow was asked for, and that takes octets.
pub trait Asked: Io {
    /// The answer: that the flow stands, or why not. Not called again once it is ready; nothing is read before.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>>;
}

/// Such a stream, until its end.
#[derive(Debug)]
pub(crate) struct Early<T> {
    io: T,
    answer: Answer,
    answered: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Answer {
    Awaited(Wait),
    Given,
    Refused(Error),
}

/// Reader and writer may be two tasks, and the stream below wakes the one that asked last: it wakes the other.
#[derive(Debug, Default)]
struct Wait {
    deadline: Option<Pin<Box<Sleep>>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    written: usize,
}

#[derive(Clone, Copy)]
enum Side {
    Reader,
    Writer,
}

impl Wait {
    fn poll<T: Asked>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
        side: Side,
    ) -> Poll<Result<(), Error>> {
        let mut answer = io.poll_answer(cx);
        let deadline = self.deadline.as_mut();
        if answer.is_pending() && deadline.is_some_and(|at| at.as_mut().poll(cx).is_ready()) {
            let late = Error::new(ErrorKind::TimedOut, "opening a stream");
            answer = Poll::Ready(Err(late));
        }
        if answer.is_pending() {
            let waker = match side {
                Side::Reader => &mut self.reader,
                Side::Writer => &mut self.writer,
            };
            *waker = Some(cx.waker().clone());
        }
        answer
    }
}

impl<T: Asked> Early<T> {
    /// With `deadline`, the answer is given up then; `answered` turns true when it was a good one.
    pub(crate) fn new(io: T, deadline: Option<Instant>, answered: Arc<AtomicBool>) -> Self {
        let wait = Wait {
            deadline: deadline.map(|at| Box::pin(sleep_until(at))),
            ..Wait::default()
        };
        Self {
            io,
            answer: Answer::Awaited(wait),
            answered,
        }
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>, side: Side) -> Poll<io::Result<()>> {
        let wait = match &mut self.answer {
            Answer::Given => return Poll::Ready(Ok(())),
            Answer::Refused(error) => return Poll::Ready(Err(error.clone().into())),
            Answer::Awaited(wait) => wait,
        };
        let said = ready!(wait.poll(&mut self.io, cx, side));
        for waker in [wait.reader.take(), wait.writer.take()] {
            waker.into_iter().for_each(Waker::wake);
        }
        self.answered.store(said.is_ok(), Relaxed);
        self.answer = match &said {
            Ok(()) => Answer::Given,
            Err(error) => Answer::Refused(error.clone()),
        };
        Poll::Ready(said.map_err(io::Error::from))
    }

    /// Runs one call of the writing side, which is told how many octets it may write.
    fn poll_writing<R>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut T>, &mut Context<'_>, usize) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        let answer = self.poll_answer(cx, Side::Writer)?;
        let room = self.room();
        match write(Pin::new(&mut self.io), cx, room) {
            // The answer, when it comes, wakes this task.
            Poll::Ready(Err(_)) if answer.is_pending() => Poll::Pending,
            written => written,
        }
    }

    fn room(&self) -> usize {
        match &self.answer {
            Answer::Awaited(wait) => FIRST.saturating_sub(wait.written),
            _ => usize::MAX,
        }
    }
}

impl<T: Asked> AsyncRead for Early<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let early = self.get_mut();
        ready!(early.poll_answer(cx, Side::Reader))?;
        Pin::new(&mut early.io).poll_read(cx, buf)
    }
}

impl<T: Asked> AsyncBufRead for Early<T> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let early = self.get_mut();
        ready!(early.poll_answer(cx, Side::Reader))?;
        Pin::new(&mut early.io).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        Pin::new(&mut self.io).consume(amt);
    }
}

impl<T: Asked> AsyncWrite for Early<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let early = self.get_mut();
        let written = early.poll_writing(cx, |io, cx, room| match room {
            0 => Poll::Pending,
            _ => io.poll_write(cx, buf.get(..room).unwrap_or(buf)),
        });
        if let (Poll::Ready(Ok(octets)), Answer::Awaited(wait)) = (&written, &mut early.answer) {
            wait.written += octets;
        }
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Answer::Given = self.answer {
            return Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs);
        }
        let first = bufs.iter().find(|buf| !buf.is_empty());
        self.poll_write(cx, first.map_or(&[], |buf| buf))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut()
            .poll_writing(cx, |io, cx, _| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut()
            .poll_writing(cx, |io, cx, _| io.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests;
