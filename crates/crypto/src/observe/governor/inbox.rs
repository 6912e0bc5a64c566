//! Datagrams that were cut out of packets, on their way to their reader. Full, it drops the oldest, as the QUIC stack does.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

/// What a datagram takes beside its octets.
const EACH: usize = size_of::<Bytes>();

#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    most: usize,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Bytes>,
    octets: usize,
    taken: u64,
    dropped: u64,
    reader: Option<Waker>,
}

impl Inbox {
    pub(super) fn new(most: usize) -> Self {
        Self {
            state: Mutex::default(),
            most,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reader is not woken: more may come of the same packet.
    pub(super) fn push(&self, datagram: Bytes) {
        let mut state = self.state();
        state.taken += 1;
        state.octets += datagram.len() + EACH;
        state.waiting.push_back(datagram);
        while state.octets > self.most && state.pop().is_some() {
            state.dropped += 1;
        }
    }

    /// Wakes the reader if there is something.
    pub(super) fn wake(&self) {
        let mut state = self.state();
        let reader = match state.waiting.is_empty() {
            true => None,
            false => state.reader.take(),
        };
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    pub(super) fn pop(&self) -> Option<Bytes> {
        self.state().pop()
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let mut state = self.state();
        if let Some(datagram) = state.pop() {
            return Poll::Ready(datagram);
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn taken(&self) -> u64 {
        self.state().taken
    }

    pub(super) fn dropped(&self) -> u64 {
        self.state().dropped
    }
}

impl State {
    fn pop(&mut self) -> Option<Bytes> {
        let datagram = self.waiting.pop_front()?;
        self.octets -= datagram.len() + EACH;
        Some(datagram)
    }
}
