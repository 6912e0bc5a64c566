//! The end of a flow that the table holds: datagrams wait here for the flow's task.

use std::{
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use hoplite_overlay::Batch;
use hoplite_wire::ip::icmp::Unreachable;
use tokio::time::{Instant, Sleep, sleep};

use crate::queue::Queue;

/// So many octets fill a packet: nobody waits for more to share it.
const PACKET: usize = 1000;

/// The end. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Sender(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    /// Bounded by itself: datagrams that come when it is full are dropped.
    queue: Queue,
    waker: Option<Waker>,
    used: Instant,
    /// Set when the flow has failed.
    failed: Option<Unreachable>,
}

/// What became of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// They wait, but for so many that found no room.
    Dropped(usize),
    /// The flow has failed.
    Failed(Unreachable),
}

impl Default for Sender {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Shared {
            queue: Queue::default(),
            waker: None,
            used: Instant::now(),
            failed: None,
        })))
    }
}

impl Sender {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues copies.
    pub(super) fn push(&self, batch: Batch<'_>, now: Instant) -> Pushed {
        let mut shared = self.lock();
        shared.used = now;
        if let Some(why) = shared.failed {
            return Pushed::Failed(why);
        }
        let dropped = shared.queue.push_train(batch);
        let waker = shared.waker.take();
        drop(shared);
        waker.into_iter().for_each(Waker::wake);
        Pushed::Dropped(dropped)
    }

    /// When the program or the target used it last.
    pub(super) fn used(&self) -> Instant {
        self.lock().used
    }

    pub(super) fn mark_used(&self, now: Instant) {
        self.lock().used = now;
    }

    /// The flow has failed: what waits is lost, what comes is answered. Answers how many datagrams that were.
    pub(super) fn fail(&self, why: Unreachable) -> usize {
        let mut shared = self.lock();
        shared.failed = Some(why);
        mem::take(&mut shared.queue).len()
    }

    /// The first datagram that waits.
    pub(super) fn first(&self) -> Vec<u8> {
        let shared = self.lock();
        let batch = shared.queue.batch().map(|(batch, _)| batch);
        let first = batch.and_then(|batch| batch.payloads().next());
        first.unwrap_or_default().to_vec()
    }

    /// Takes what waits, in exchange for the empty queue, or wakes later.
    pub(super) fn poll_take(
        &self,
        cx: &mut Context<'_>,
        empty: &mut Queue,
        wait: &mut Wait,
    ) -> Poll<()> {
        let mut shared = self.lock();
        if shared.queue.is_empty() {
            shared.waker = Some(cx.waker().clone());
            // They change places: both have held a burst.
            shared.queue.release();
            empty.release();
            return Poll::Pending;
        }
        if shared.queue.octets() < PACKET && wait.poll(cx).is_pending() {
            shared.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        wait.sleep = None;
        mem::swap(&mut shared.queue, empty);
        Poll::Ready(())
    }
}

/// How long the first of a few small datagrams waits for others (`flows.pack_wait`).
#[derive(Debug)]
pub(super) struct Wait {
    limit: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Wait {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, sleep: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.limit.is_zero() {
            return Poll::Ready(());
        }
        let limit = self.limit;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(limit)));
        sleep.as_mut().poll(cx)
    }
}
