//! From the program to the target: reads into one buffer, which is given back while the program is silent.
//! When the target reads no more, what the program sends is read and thrown away until the download has ended,
//! as a server's lingering close does: the answer that the target gave first must arrive.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use hoplite_overlay::Stream;
use tokio::io::{AsyncReadExt, AsyncWrite};

use crate::app::App;

use super::{Fault, pool};

/// The state of the upload.
#[derive(Debug)]
pub(super) struct Up {
    /// Octets taken over by the stream.
    pub(super) moved: usize,
    buffer: Vec<u8>,
    sent: usize,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Copying,
    /// The program has finished: the stream is being finished.
    Finishing,
    Finished,
    /// The target reads no more, the program still sends.
    Discarding,
    /// The same, and the program has finished.
    Discarded,
}

impl Up {
    pub(super) fn new(early: Vec<u8>) -> Self {
        Self {
            moved: 0,
            buffer: early,
            sent: 0,
            phase: Phase::Copying,
        }
    }

    /// Whether the target broke this direction.
    pub(super) fn refused(&self) -> bool {
        matches!(self.phase, Phase::Discarding | Phase::Discarded)
    }

    /// Moves what can be moved. A fault of the stream is no error here: the download decides.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut App,
        stream: &mut Stream,
    ) -> Poll<Result<(), Fault>> {
        loop {
            let step = match self.phase {
                Phase::Copying => self.copy(cx, app, stream),
                Phase::Finishing => self.finish(cx, stream),
                Phase::Discarding => self.discard(cx, app),
                Phase::Finished | Phase::Discarded => return Poll::Ready(Ok(())),
            };
            match ready!(step) {
                Ok(()) => {}
                Err(Fault::Stream(error)) => self.refuse(&error),
                Err(fault) => return Poll::Ready(Err(fault)),
            }
        }
    }

    fn refuse(&mut self, error: &std::io::Error) {
        tracing::trace!(%error, "the target reads no more");
        self.phase = match self.phase {
            Phase::Copying => Phase::Discarding,
            _ => Phase::Discarded,
        };
    }

    fn copy(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut App,
        stream: &mut Stream,
    ) -> Poll<Result<(), Fault>> {
        while let Some(rest) = self.buffer.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut *stream).poll_write(cx, rest)).map_err(Fault::Stream)? {
                0 => return Poll::Ready(Err(Fault::Stream(std::io::ErrorKind::WriteZero.into()))),
                n => self.advance(n),
            }
        }
        match self.read(cx, app) {
            Poll::Ready(Ok(0)) => self.phase = Phase::Finishing,
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
            Poll::Pending => return self.flush(cx, stream),
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, n: usize) {
        self.sent += n;
        self.moved += n;
    }

    /// Reads into the empty buffer; gives the buffer back when there is nothing to read.
    fn read(&mut self, cx: &mut Context<'_>, app: &mut App) -> Poll<Result<usize, Fault>> {
        self.buffer.clear();
        self.sent = 0;
        if app.poll_readable(cx).map_err(Fault::App)?.is_pending() {
            pool::take_back(&mut self.buffer);
            return Poll::Pending;
        }
        pool::provide(&mut self.buffer);
        let read = Future::poll(pin!(app.read_buf(&mut self.buffer)), cx);
        if self.buffer.is_empty() {
            pool::take_back(&mut self.buffer);
        }
        read.map_err(Fault::App)
    }

    /// Nothing to read: what an overlay still holds back leaves now.
    fn flush(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<Result<(), Fault>> {
        match Pin::new(stream).poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(Fault::Stream(error))),
            _ => Poll::Pending,
        }
    }

    fn finish(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<Result<(), Fault>> {
        ready!(Pin::new(stream).poll_shutdown(cx)).map_err(Fault::Stream)?;
        self.phase = Phase::Finished;
        Poll::Ready(Ok(()))
    }

    fn discard(&mut self, cx: &mut Context<'_>, app: &mut App) -> Poll<Result<(), Fault>> {
        if ready!(self.read(cx, app))? == 0 {
            self.phase = Phase::Discarded;
        }
        Poll::Ready(Ok(()))
    }
}
