//! The end of a flow that a table holds: datagrams wait here for the flow's task.

use std::{
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use hoplite_overlay::Batch;
use tokio::time::{Instant, Sleep, sleep};

use crate::{
    budget::{Account, SHORT},
    queue::Queue,
};

/// What a flow may hold in any case, in octets of memory: a datagram of usual size.
pub(crate) const FLOOR: usize = 2048;
/// So many octets fill a packet: nobody waits for more to share it.
const PACKET: usize = 1000;
/// A question and its answer, each of them twice or in a few pieces, are no more datagrams.
const EXCHANGE: usize = 8;

/// The end. Clones are the same. `W` tells why a flow failed.
#[derive(Debug)]
pub(crate) struct Sender<W>(Arc<Mutex<Shared<W>>>);

#[derive(Debug)]
struct Shared<W> {
    /// Bounded by itself and by the account: datagrams that come when it is full are dropped.
    queue: Queue,
    /// The memory of the queue with which this one changes places, in octets.
    elsewhere: usize,
    /// What both count against; none when the flow is over.
    account: Option<Account>,
    waker: Option<Waker>,
    used: Instant,
    /// How many datagrams came from the program and from the target.
    counts: [usize; 2],
    /// Set when the flow has failed.
    failed: Option<W>,
}

/// What became of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed<W> {
    /// They wait, but for so many that found no room.
    Dropped(usize),
    /// The flow has failed.
    Failed(W),
}

impl<W> Clone for Sender<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Copy> Sender<W> {
    /// The end of a flow that begins.
    pub(crate) fn new(account: Account) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            queue: Queue::default(),
            elsewhere: 0,
            account: Some(account),
            waker: None,
            used: Instant::now(),
            counts: [0; 2],
            failed: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared<W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues copies.
    pub(crate) fn push(&self, batch: Batch<'_>, now: Instant) -> Pushed<W> {
        let mut shared = self.lock();
        shared.used = now;
        if let Some(why) = shared.failed {
            return Pushed::Failed(why);
        }
        shared.count(0, batch);
        let dropped = shared.queue_up(batch);
        let waker = shared.waker.take();
        drop(shared);
        waker.into_iter().for_each(Waker::wake);
        Pushed::Dropped(dropped)
    }

    /// Datagrams came from the target.
    pub(crate) fn received(&self, batch: Batch<'_>, now: Instant) {
        let mut shared = self.lock();
        shared.used = now;
        shared.count(1, batch);
    }

    /// When the program or the target used it last.
    pub(crate) fn used(&self) -> Instant {
        self.lock().used
    }

    /// Whether it has proved to be more than a question that was answered, or not.
    pub(crate) fn is_stream(&self) -> bool {
        let [sent, received] = self.lock().counts;
        received > 0 && sent.saturating_add(received) > EXCHANGE
    }

    /// The flow has failed: what waits is lost, what comes is answered. Answers how many datagrams that were.
    pub(crate) fn fail(&self, why: W) -> usize {
        let mut shared = self.lock();
        shared.failed = Some(why);
        let lost = mem::take(&mut shared.queue).len();
        shared.settle();
        lost
    }

    /// The flow is over: it holds nothing any more.
    pub(crate) fn end(&self) {
        let mut shared = self.lock();
        shared.queue = Queue::default();
        shared.account = None;
    }

    /// How much others miss its place: see [`Account::rest_counts`]. `None` if it is over.
    pub(crate) fn rest_counts(&self, now: Instant) -> Option<(u128, Duration)> {
        let shared = self.lock();
        let rested = now.saturating_duration_since(shared.used);
        Some(shared.account.as_ref()?.rest_counts(rested))
    }

    /// The first datagram that waits.
    pub(crate) fn first(&self) -> Vec<u8> {
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
            let kept = shared
                .account
                .as_ref()
                .is_some_and(|account| account.allowance() >= SHORT);
            shared.queue.release(kept);
            empty.release(kept);
            shared.elsewhere = empty.memory();
            shared.settle();
            return Poll::Pending;
        }
        if shared.queue.octets() < PACKET && wait.poll(cx).is_pending() {
            shared.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        wait.sleep = None;
        mem::swap(&mut shared.queue, empty);
        shared.elsewhere = empty.memory();
        Poll::Ready(())
    }
}

impl<W> Shared<W> {
    /// Queues copies as far as there is room and memory; answers how many found none.
    fn queue_up(&mut self, batch: Batch<'_>) -> usize {
        let more = self.account.as_ref().map_or(0, Account::allowance);
        let floor = FLOOR.saturating_sub(self.elsewhere);
        let most = floor.max(self.queue.memory().saturating_add(more));
        let dropped = self.queue.push_train(batch, most);
        self.settle();
        dropped
    }

    fn settle(&mut self) {
        let held = self.queue.memory() + self.elsewhere;
        if let Some(account) = &mut self.account {
            account.set(held);
        }
    }

    fn count(&mut self, end: usize, batch: Batch<'_>) {
        if let Some(count) = self.counts.get_mut(end) {
            *count = count.saturating_add(batch.payloads().count());
        }
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
