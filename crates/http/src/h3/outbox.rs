//! Outgoing QUIC DATAGRAM frames: QUIC's own buffer, and the rest of one batch that waits for room in it.
//! Flows send through it. QUIC drops the oldest datagram when its buffer is full: nothing is handed over without room for it.
//! RFC 9298 §5.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::{Bytes, BytesMut};
use hoplite_overlay::Batch;
use hoplite_wire::http_datagram;
use tokio::sync::Notify;

use super::{counters::add, quic, session::Inner};

/// What QUIC counts for each datagram on top of its octets.
const PER_DATAGRAM: usize = size_of::<Bytes>();

/// A batch that is to become frames of one flow.
#[derive(Clone, Copy)]
pub(super) struct Frames<'a> {
    pub(super) batch: Batch<'a>,
    pub(super) stream: u64,
}

/// One a connection. Its bound is one batch: while any datagram waits here, nobody sends.
#[derive(Debug)]
pub(super) struct Outbox {
    /// How much room QUIC's buffer has while it is empty.
    room: usize,
    state: Mutex<State>,
    work: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Bytes>,
    wakers: Vec<Waker>,
}

impl State {
    fn poll_ready(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.waiting.is_empty() {
            return Poll::Ready(());
        }
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Outbox {
    /// For a connection whose empty buffer has so much room.
    pub(super) fn new(room: usize) -> Self {
        Self {
            room,
            state: Mutex::default(),
            work: Notify::new(),
        }
    }

    /// Whether nothing waits here or in QUIC's buffer.
    pub(super) fn is_drained(&self, inner: &Inner) -> bool {
        inner.conn.datagram_send_buffer_space() >= self.room && self.state().waiting.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready when a batch will be taken whole.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        self.state().poll_ready(cx)
    }

    /// Sends what there is room for and returns how many payloads that were. Of the rest, a caller that can wait leaves
    /// all here; for one that cannot, the rest counts as dropped.
    pub(super) fn send(
        &self,
        inner: &Inner,
        frames: Frames<'_>,
        waiter: Option<&Context<'_>>,
    ) -> Poll<usize> {
        let mut state = self.state();
        if let Some(cx) = waiter
            && state.poll_ready(cx).is_pending()
        {
            return Poll::Pending;
        }
        let fitting = match state.waiting.is_empty() {
            true => frames.fitting(inner.conn.datagram_send_buffer_space()),
            false => 0,
        };
        let taken = if waiter.is_some() {
            frames.count()
        } else {
            fitting
        };
        add(&inner.config.counters.full, frames.count() - taken);
        let lost = self.hand_over(&mut state, inner, frames.encode(taken), fitting);
        Poll::Ready(taken - lost)
    }

    /// The first `fitting` go to QUIC, the others wait. How many QUIC refused.
    fn hand_over(
        &self,
        state: &mut State,
        inner: &Inner,
        frames: impl Iterator<Item = Bytes>,
        fitting: usize,
    ) -> usize {
        let mut refused = 0;
        for (index, frame) in frames.enumerate() {
            if index >= fitting {
                state.waiting.push_back(frame);
            } else if let Err(error) = inner.conn.send_datagram(frame) {
                refused += 1;
                count_refusal(inner, &error);
            }
        }
        if !state.waiting.is_empty() {
            self.work.notify_one();
        }
        refused
    }

    /// Feeds what waits to QUIC. Runs until the connection is lost.
    pub(super) async fn run(&self, inner: &Inner) {
        loop {
            self.work.notified().await;
            while let Some(frame) = self.first() {
                match inner.conn.send_datagram_wait(frame).await {
                    Err(quic::SendDatagramError::ConnectionLost(_)) => return,
                    Err(error) => count_refusal(inner, &error),
                    Ok(()) => {}
                }
                self.forget_first();
            }
        }
    }

    fn first(&self) -> Option<Bytes> {
        self.state().waiting.front().cloned()
    }

    /// The first one has gone; when none wait any more, whoever wanted to send is told.
    fn forget_first(&self) {
        let mut state = self.state();
        state.waiting.pop_front();
        if state.waiting.is_empty() {
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// The connection is lost.
    pub(super) fn clear(&self) {
        let mut state = self.state();
        state.waiting.clear();
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn count_refusal(inner: &Inner, error: &quic::SendDatagramError) {
    if *error == quic::SendDatagramError::TooLarge {
        add(&inner.config.counters.too_large, 1);
    }
}

impl<'a> Frames<'a> {
    fn count(&self) -> usize {
        self.batch
            .contents
            .len()
            .div_ceil(self.batch.segment.max(1))
            .max(1)
    }

    /// How many of the payloads, from the first, QUIC takes when it has `space` octets left.
    fn fitting(&self, space: usize) -> usize {
        let (count, head) = (self.count(), http_datagram::udp_overhead(self.stream));
        let each = self.batch.segment.max(1) + head + PER_DATAGRAM;
        let fitting = (space + PER_DATAGRAM) / each;
        if fitting + 1 != count {
            return fitting.min(count);
        }
        let last = self.batch.contents.len() - fitting * self.batch.segment + head;
        fitting + usize::from(fitting * each + last <= space)
    }

    /// The frames of the first `taken` payloads, all in one allocation.
    fn encode(&self, taken: usize) -> impl Iterator<Item = Bytes> + use<'a> {
        let (segment, head) = (
            self.batch.segment.max(1),
            http_datagram::udp_overhead(self.stream),
        );
        let octets = self.batch.contents.len().min(taken * segment);
        let mut all = BytesMut::with_capacity(octets + taken * head);
        for payload in self.batch.payloads().take(taken) {
            http_datagram::write_udp_head(&mut all, self.stream);
            all.extend_from_slice(payload);
        }
        let mut all = all.freeze();
        (0..taken).map(move |_| all.split_to(all.len().min(head + segment)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// QUIC's own rule, one datagram at a time.
    fn fitting_slowly(frames: Frames<'_>, mut space: isize) -> usize {
        let sizes: Vec<_> = frames
            .encode(frames.count())
            .map(|frame| frame.len())
            .collect();
        let mut count = 0;
        for size in sizes {
            if size as isize > space {
                break;
            }
            space -= (size + PER_DATAGRAM) as isize;
            count += 1;
        }
        count
    }

    proptest! {
        #[test]
        fn never_more_is_handed_over_than_quic_has_room_for(contents in proptest::collection::vec(any::<u8>(), 0..2000), segment in 1_usize..700, space in 0_usize..4000, stream in 0_u64..1 << 20) {
            let frames = Frames { batch: Batch { contents: &contents, segment }, stream: stream * 4 };
            prop_assert_eq!(frames.fitting(space), fitting_slowly(frames, space as isize));
        }

        #[test]
        fn frames_hold_the_payloads_in_order(contents in proptest::collection::vec(any::<u8>(), 0..2000), segment in 1_usize..700, stream in 0_u64..1 << 20) {
            let batch = Batch { contents: &contents, segment };
            let frames = Frames { batch, stream: stream * 4 };
            let expected: Vec<_> = batch.payloads().map(|payload| http_datagram::Udp::Payload(Bytes::copy_from_slice(payload))).collect();
            let read: Vec<_> = frames.encode(frames.count()).map(|frame| http_datagram::split(frame).expect("valid")).collect();
            prop_assert!(read.iter().all(|(id, _)| *id == stream * 4));
            prop_assert_eq!(read.into_iter().map(|(_, rest)| http_datagram::udp(rest)).collect::<Vec<_>>(), expected);
        }
    }
}
