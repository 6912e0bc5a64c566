//! Where the datagrams for one address wait in memory.
//! Used by [`super::host`].

use std::{
    collections::VecDeque,
    net::SocketAddr,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Road, arrival};

/// How many datagrams wait; the next one is lost.
const LENGTH: usize = 4096;

/// The datagrams under way to one address.
pub(super) struct Inbox(Mutex<Waiting>);

struct Waiting {
    datagrams: VecDeque<(Instant, Letter)>,
    free_at: Instant,
    waker: Option<Waker>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What arrives.
pub(super) enum Letter {
    From(SocketAddr, Bytes),
    /// Nobody is at the address that a datagram was sent to.
    Refused,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Waiting {
            datagrams: VecDeque::new(),
            free_at: Instant::now(),
            waker: None,
            timer: None,
        }))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, road: &Road, letter: Letter) {
        let mut waiting = self.waiting();
        if waiting.datagrams.len() >= LENGTH {
            return;
        }
        let octets = match &letter {
            Letter::From(_, payload) => payload.len(),
            Letter::Refused => 0,
        };
        let at = arrival(road, &mut waiting.free_at, octets);
        waiting.datagrams.push_back((at, letter));
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }

    pub(super) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Letter> {
        let mut waiting = self.waiting();
        waiting.waker = Some(cx.waker().clone());
        let Some(at) = waiting.datagrams.front().map(|(at, _)| *at) else {
            return Poll::Pending;
        };
        if at > Instant::now() {
            let timer = waiting
                .timer
                .get_or_insert_with(|| Box::pin(sleep_until(at)));
            timer.as_mut().reset(at);
            ready!(timer.as_mut().poll(cx));
        }
        match waiting.datagrams.pop_front() {
            Some((_, letter)) => Poll::Ready(letter),
            None => Poll::Pending,
        }
    }
}
