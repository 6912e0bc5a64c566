//! Moves octets between a machine and the overlay's stream, both ways, and half-closes too. The flow's task runs it once the stream takes
//! octets; if that is before its target has answered, the answer is noted here.
//!
//! Down, no more is taken from the stream than the program has room for; up, the machine's window is all that waits. So whoever
//! is slow stops the other, and a flow in which nothing moves owns no buffer.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use hoplite_overlay::{Error, ErrorKind, Stream};
use hoplite_wire::Target;
use tokio::{
    io::{AsyncBufRead, AsyncWrite},
    time::Instant,
};

use super::{crowd::HalfOpen, flow::State, machine::Machine, send::LARGEST, task::Task};
use crate::copy::idle::Idle;

/// How long a target that reads no more may go on sending nothing before both ends are reset.
const LINGER: Duration = Duration::from_secs(10);
/// How many pieces one write takes.
const PIECES: usize = 16;

/// The way to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Up {
    Copying,
    /// The program has finished: the stream is being finished.
    Finishing,
    Finished,
    /// The target reads no more; the program may still send.
    Discarding,
}

pub(super) struct Pump<'a> {
    task: &'a mut Task,
    half_open: Option<HalfOpen>,
    stream: Stream,
    /// The target, until it is known whether it takes the flow.
    asked: Option<Target>,
    up: Up,
    /// Whether the stream may hold back what was written.
    unflushed: bool,
    down_ended: bool,
    /// Changes when something moves down.
    moved: usize,
    idle: Idle,
}

impl<'a> Pump<'a> {
    /// `asked` is the target of a stream that was handed out before its answer.
    pub(super) fn new(
        task: &'a mut Task,
        stream: Stream,
        asked: Option<Target>,
        half_open: HalfOpen,
    ) -> Self {
        Self {
            task,
            half_open: Some(half_open),
            stream,
            asked,
            up: Up::Copying,
            unflushed: false,
            down_ended: false,
            moved: 0,
            idle: Idle::default(),
        }
    }

    /// Ready when the stream is of no more use: both directions have ended, or one end broke.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let flow = self.task.flow();
        let (mut state, now) = (flow.lock(), Instant::now());
        state.begin(cx, now);
        if state.is_broken() {
            return Poll::Ready(());
        }
        self.poll_down(cx, &mut state, now);
        let up = self.poll_up(cx, &mut state.machine);
        self.note(&state.machine);
        self.task.finish_turn(cx, &mut state, now);
        if state.is_broken() || (up.is_ready() && self.down_ended) {
            return Poll::Ready(());
        }
        ready!(self.poll_refused(cx, &mut state.machine));
        state.machine.reset();
        self.task.finish_turn(cx, &mut state, now);
        Poll::Ready(())
    }

    /// What has come about meanwhile: the target's answer, the program's confirmation.
    fn note(&mut self, machine: &Machine) {
        if self.stream.is_answered()
            && let Some(target) = self.asked.take()
        {
            self.task.worked(&target);
        }
        if self.asked.is_none() && machine.is_open() {
            self.half_open = None;
        }
    }

    /// The stream is of no use any more, or never was.
    fn broke(&mut self, error: &io::Error, machine: &mut Machine) {
        tracing::trace!(%error, "the target's stream broke");
        if let Some(target) = self.asked.take_if(|_| !self.stream.is_answered()) {
            let unknown = || Error::new(ErrorKind::PathFailed, "opening a stream");
            let error = Error::from_io(error).cloned().unwrap_or_else(unknown);
            self.task.failed(&target, &error);
        }
        machine.reset();
    }

    /// A target that reads no more has broken its connection, whatever the way down looks like; but what it sent before is told first.
    /// Ready when the program has that, or when nothing more comes.
    fn poll_refused(&mut self, cx: &mut Context<'_>, machine: &mut Machine) -> Poll<()> {
        if self.up == Up::Discarding && self.down_ended && machine.is_drained() {
            return Poll::Ready(());
        }
        let limit = match self.up {
            Up::Discarding => LINGER,
            _ => Duration::ZERO,
        };
        self.idle.poll(cx, limit, self.moved)
    }

    fn poll_down(&mut self, cx: &mut Context<'_>, state: &mut State, now: Instant) {
        while !self.down_ended {
            let slice = match Pin::new(&mut self.stream).poll_fill_buf(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok([])) => {
                    self.down_ended = true;
                    return self.finish(state, now);
                }
                Poll::Ready(Ok(slice)) => slice,
                Poll::Ready(Err(error)) => return self.broke(&error, &mut state.machine),
            };
            let room = state.room();
            if room == 0 {
                return state.machine.stall(now);
            }
            let piece = slice.get(..room).unwrap_or(slice);
            let len = piece.len();
            state.push(piece, now);
            Pin::new(&mut self.stream).consume(len);
            self.moved = self.moved.wrapping_add(len);
            self.task.counters().tcp_down.add(len);
            if state.machine.unsent() >= LARGEST {
                self.task.transmit(state, now);
            }
        }
    }

    fn finish(&self, state: &mut State, now: Instant) {
        if self.up != Up::Discarding {
            state.machine.finish(now);
        }
    }

    /// Ready when this direction has ended in order.
    fn poll_up(&mut self, cx: &mut Context<'_>, machine: &mut Machine) -> Poll<()> {
        loop {
            let step = match self.up {
                Up::Finished => return Poll::Ready(()),
                Up::Discarding => return Poll::Pending,
                Up::Finishing => self.poll_shutdown(cx),
                Up::Copying if machine.readable() > 0 => self.poll_write(cx, machine),
                Up::Copying if machine.read_ended() => {
                    self.up = Up::Finishing;
                    continue;
                }
                Up::Copying => self.poll_flush(cx),
            };
            if let Err(error) = ready!(step) {
                if self.asked.is_some() && !self.stream.is_answered() {
                    self.broke(&error, machine);
                    return Poll::Pending;
                }
                tracing::trace!(%error, "the target reads no more");
                self.up = Up::Discarding;
                machine.discard();
                return Poll::Pending;
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, machine: &mut Machine) -> Poll<io::Result<()>> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let count = machine.read(&mut slices);
        let slices = slices.get(..count).unwrap_or_default();
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        machine.consume(written);
        self.unflushed = true;
        self.task.counters().tcp_up.add(written);
        Poll::Ready(Ok(()))
    }

    /// Nothing to write: what an overlay still holds back leaves now. Ready only when that fails.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.unflushed {
            return Poll::Pending;
        }
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.unflushed = false;
        match flushed {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        self.up = Up::Finished;
        Poll::Ready(Ok(()))
    }
}
