//! Small payloads that answer a download wait a little for each other, so that several share one packet of the tunnel.
//! [`crate::Path`] puts it around the UDP flows of its front ends. In nested tunnels an end-to-end acknowledgement of some 35 bytes costs four times
//! as much in wrapping; two in one packet halve that. Paper 001 §6 names packetization as what decides the bytes.
//!
//! Only answers wait: payloads of at most [`SMALL`] bytes, after at least two large ones have come. They wait an eighth of the round trip and 5 ms at most, and
//! not at all where another is hardly to be expected meanwhile, because the one before came longer ago than that (a slow download would become slower for
//! nothing), on a path where that is less than a timer's grain, or where payloads do not share packets (forwarded mode).

#[cfg(test)]
mod tests;

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use hoplite_overlay::{Batch, Datagrams, Ecn, End, Error, Received};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, Sleep};

/// Up to here a payload is small, in bytes: acknowledgements are.
const SMALL: usize = 128;
/// From here on a payload is large, in bytes.
const LARGE: usize = 600;
/// This many payloads wait at most.
const MAX_PAYLOADS: usize = 8;
/// This many large payloads make a download.
const DOWNLOAD: usize = 2;
/// The share of a round trip that a payload may wait.
const SHARE: u32 = 8;
/// What a payload waits at most.
const MAX_DELAY: Duration = Duration::from_millis(5);
/// The grain of the runtime's timer: less cannot be waited.
const TIMER_GRANULARITY: Duration = Duration::from_millis(1);

/// A flow whose payloads may share packets.
pub(crate) trait PackedDatagrams: Datagrams {
    /// The round trip to the relay.
    fn round_trip(&self) -> Duration;

    /// Whether payloads share packets now.
    fn packs(&self) -> bool;
}

/// The flow, with a few payloads that wait.
pub(crate) struct Gather<R> {
    flow: R,
    state: Mutex<State>,
    /// The receiving task: it is always there, and looks after the timer.
    receiver: AtomicWaker,
}

#[derive(Default)]
struct State {
    held: Gathered,
    /// Large payloads that came since the last answer.
    came: usize,
    /// When the last answer was given.
    answered: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// At most [`MAX_PAYLOADS`] payloads of at most [`SMALL`] bytes, in order.
#[derive(Debug, Default)]
struct Gathered {
    bytes: Vec<u8>,
    /// How long each is, and how it is to be marked.
    pieces: Vec<(usize, Option<Ecn>)>,
}

impl<R: PackedDatagrams> Gather<R> {
    /// Around `flow`.
    pub(crate) fn new(flow: R) -> Self {
        Self {
            flow,
            state: Mutex::default(),
            receiver: AtomicWaker::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// How long a payload may wait on this path now.
    fn patience(&self) -> Option<Duration> {
        if !self.flow.packs() {
            return None;
        }
        let wait = (self.flow.round_trip() / SHARE).min(MAX_DELAY);
        (wait >= TIMER_GRANULARITY).then_some(wait)
    }

    /// Keeps the payload, if it is one to keep.
    fn keep(&self, state: &mut State, batch: Batch<'_>, mark: Option<Ecn>) -> bool {
        let payload = batch.contents;
        let small = payload.len() <= SMALL && payload.len() <= batch.segment && !payload.is_empty();
        let answers = state.came >= DOWNLOAD || !state.held.is_empty();
        if !small || !answers || state.held.is_full() {
            return false;
        }
        let Some(wait) = self.patience() else {
            return false;
        };
        let now = Instant::now();
        state.came = 0;
        let before = state.answered.replace(now);
        if before.is_none_or(|before| now - before > wait) {
            return false;
        }
        if state.held.is_empty() {
            state.timer = Some(Box::pin(tokio::time::sleep_until(now + wait)));
            self.receiver.wake();
        }
        state.held.push(payload, mark);
        true
    }

    /// Sends what waits. Pending leaves the rest where it is.
    fn poll_release(&self, state: &mut State, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while let Some((payload, mark)) = state.held.first() {
            std::task::ready!(self.flow.poll_send_marked(cx, Batch::one(payload), mark))?;
            state.held.forget_first();
        }
        state.timer = None;
        Poll::Ready(Ok(()))
    }

    /// Releases what has waited long enough.
    fn poll_timer(&self, cx: &mut Context<'_>) -> Result<(), Error> {
        let mut state = self.state();
        let due = match &mut state.timer {
            Some(timer) => timer.as_mut().poll(cx).is_ready(),
            None => false,
        };
        match due.then(|| self.poll_release(&mut state, cx)) {
            Some(Poll::Ready(sent)) => sent,
            _ => Ok(()),
        }
    }

    fn count(&self, received: Received) {
        if received.segment >= LARGE {
            let mut state = self.state();
            let payloads = received.len.div_ceil(received.segment);
            state.came = state.came.saturating_add(payloads);
        }
    }
}

impl<R: PackedDatagrams> Datagrams for Gather<R> {
    fn max_payload(&self) -> usize {
        self.flow.max_payload()
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        self.poll_send_marked(cx, batch, None)
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        self.poll_recv_marked(cx, buf)
            .map_ok(|(received, _)| received)
    }

    fn poll_send_marked(
        &self,
        cx: &mut Context<'_>,
        batch: Batch<'_>,
        mark: Option<Ecn>,
    ) -> Poll<Result<(), Error>> {
        let mut state = self.state();
        if self.keep(&mut state, batch, mark) {
            return Poll::Ready(Ok(()));
        }
        std::task::ready!(self.poll_release(&mut state, cx))?;
        self.flow.poll_send_marked(cx, batch, mark)
    }

    fn poll_recv_marked(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<(Received, Option<Ecn>), Error>> {
        self.receiver.register(cx.waker());
        self.poll_timer(cx)?;
        let (received, mark) = std::task::ready!(self.flow.poll_recv_marked(cx, buf))?;
        self.count(received);
        Poll::Ready(Ok((received, mark)))
    }

    fn moved(&self) -> bool {
        self.flow.moved()
    }

    fn announce(&self, end: End, id: &[u8]) {
        self.flow.announce(end, id);
    }

    fn withdraw(&self, end: End, id: &[u8]) {
        self.flow.withdraw(end, id);
    }

    fn carries_quic(&self) {
        self.flow.carries_quic();
    }

    fn suspect(&self) -> bool {
        self.flow.suspect()
    }
}

impl Gathered {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn is_full(&self) -> bool {
        self.pieces.len() >= MAX_PAYLOADS
    }

    fn push(&mut self, payload: &[u8], mark: Option<Ecn>) {
        self.bytes.extend_from_slice(payload);
        self.pieces.push((payload.len(), mark));
    }

    fn first(&self) -> Option<(&[u8], Option<Ecn>)> {
        let (length, mark) = self.pieces.first()?;
        Some((self.bytes.get(..*length)?, *mark))
    }

    fn forget_first(&mut self) {
        if !self.pieces.is_empty() {
            let (length, _) = self.pieces.remove(0);
            self.bytes.drain(..length);
        }
    }
}

impl<R: fmt::Debug> fmt::Debug for Gather<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.flow.fmt(f)
    }
}
