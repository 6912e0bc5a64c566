//! A UDP flow of either front end once it is open: what a program sends waits at a [`FlowSender`] until the flow's task takes it, and
//! datagrams move both ways until the flow is idle or fails. The side towards the program is a [`ProgramSide`].

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use hoplite_overlay::{Batch, Datagrams, Error};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, Sleep, sleep};

use crate::{
    budget::{Account, LOW_ALLOWANCE},
    copy::IdleTimer,
};

/// How long a flow that failed keeps its slot, so that a program that insists does not make us open flows without a pause.
pub(crate) const HOLD_OFF: Duration = Duration::from_secs(1);
/// How many receive calls are made before other tasks have their turn.
const RECEIVE_BUDGET: usize = 32;

/// The program's end of a flow.
pub(crate) trait ProgramSide {
    /// Why a flow failed, as far as programs are told.
    type Failure: Copy;

    /// Where the program's datagrams wait.
    fn sender(&self) -> &FlowSender<Self::Failure>;

    /// How long the flow is kept without any datagram; zero is for ever.
    fn idle(&self) -> Duration;

    /// How long a small datagram may wait for others to share a packet with.
    fn pack_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// The overlay took this many bytes.
    fn sent(&self, bytes: usize);

    /// The first datagram of `batch` is larger than `most`, the largest payload of the overlay's path, and goes no further.
    fn too_large(&self, batch: Batch<'_>, most: usize);

    /// Receives once, into a buffer that nobody keeps, and hands over what came.
    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        datagrams: &dyn Datagrams,
    ) -> Poll<Result<(), Error>>;
}

/// Moves datagrams until nothing moves any more.
pub(crate) async fn pump_datagrams(
    program: &impl ProgramSide,
    datagrams: &dyn Datagrams,
) -> Result<(), Error> {
    let mut pump = DatagramPump {
        program,
        datagrams,
        queue: DatagramQueue::default(),
        wait: PackWait::new(program.pack_wait()),
        moved: 0,
    };
    let mut idle = IdleTimer::default();
    poll_fn(|cx| {
        if let Poll::Ready(Err(error)) = pump.poll_up(cx) {
            return Poll::Ready(Err(error));
        }
        if let Poll::Ready(Err(error)) = pump.poll_down(cx) {
            return Poll::Ready(Err(error));
        }
        idle.poll(cx, program.idle(), pump.moved).map(Ok)
    })
    .await
}

struct DatagramPump<'a, P> {
    program: &'a P,
    datagrams: &'a dyn Datagrams,
    queue: DatagramQueue,
    wait: PackWait,
    /// Changes when something moves.
    moved: usize,
}

impl<P: ProgramSide> DatagramPump<'_, P> {
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            let Some((batch, count)) = self.queue.batch() else {
                let sender = self.program.sender();
                ready!(sender.poll_take(cx, &mut self.queue, &mut self.wait));
                continue;
            };
            let most = self.datagrams.max_payload();
            if batch.contents.len().min(batch.segment) > most {
                self.program.too_large(batch, most);
                self.queue.pop(1);
                continue;
            }
            ready!(self.datagrams.poll_send(cx, batch))?;
            self.program.sent(batch.contents.len());
            self.moved = self.moved.wrapping_add(1);
            self.queue.pop(count);
        }
    }

    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        for _ in 0..RECEIVE_BUDGET {
            ready!(self.program.poll_receive(cx, self.datagrams))?;
            self.moved = self.moved.wrapping_add(1);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// What a flow may hold in any case, in bytes of memory: a datagram of usual size.
pub(crate) const FLOW_FLOOR: usize = 2048;
/// This many bytes fill a packet: nobody waits for more to share it.
const PACKET: usize = 1000;
/// A question and its answer, each of them twice or in a few pieces, are no more datagrams.
const MAX_EXCHANGE: usize = 8;

/// The sending end of a UDP flow: datagrams from the program wait here for the flow's task. Clones are the same end; `W` tells why
/// a flow failed.
#[derive(Debug)]
pub(crate) struct FlowSender<W>(Arc<Mutex<Shared<W>>>);

#[derive(Debug)]
struct Shared<W> {
    /// Bounded by itself and by the account: datagrams that come when it is full are dropped.
    queue: DatagramQueue,
    /// The memory of the queue with which this one changes places, in bytes.
    taken_memory: usize,
    /// What both count against; none when the flow is over.
    account: Option<Account>,
    waker: Option<Waker>,
    used: Instant,
    /// How many datagrams came from the program and from the target.
    counts: [usize; 2],
    /// Set when the flow has failed.
    failed: Option<W>,
}

/// What became of datagrams that were queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushOutcome<W> {
    /// They wait, but for so many that found no room.
    Dropped(usize),
    /// The flow has failed.
    Failed(W),
}

impl<W> Clone for FlowSender<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Copy> FlowSender<W> {
    /// The end of a flow that begins.
    pub(crate) fn new(account: Account) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            queue: DatagramQueue::default(),
            taken_memory: 0,
            account: Some(account),
            waker: None,
            used: Instant::now(),
            counts: [0; 2],
            failed: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared<W>> {
        self.0.lock()
    }

    /// Queues copies.
    pub(crate) fn push(&self, batch: Batch<'_>, now: Instant) -> PushOutcome<W> {
        let mut shared = self.lock();
        shared.used = now;
        if let Some(why) = shared.failed {
            return PushOutcome::Failed(why);
        }
        shared.count(0, batch);
        let dropped = shared.queue_up(batch);
        let waker = shared.waker.take();
        drop(shared);
        waker.into_iter().for_each(Waker::wake);
        PushOutcome::Dropped(dropped)
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
        received > 0 && sent.saturating_add(received) > MAX_EXCHANGE
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
        shared.queue = DatagramQueue::default();
        shared.account = None;
    }

    /// Whether it holds nothing any more.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().account.is_none()
    }

    /// How readily it is evicted: see [`Account::eviction_weight`]. `None` if it is over.
    pub(crate) fn eviction_weight(&self, now: Instant) -> Option<(u128, Duration)> {
        let shared = self.lock();
        let rested = now.saturating_duration_since(shared.used);
        Some(shared.account.as_ref()?.eviction_weight(rested))
    }

    /// The first datagram that waits.
    pub(crate) fn first(&self) -> Vec<u8> {
        let shared = self.lock();
        let batch = shared.queue.batch().map(|(batch, _)| batch);
        let first = batch.and_then(|batch| batch.payloads().next());
        first.unwrap_or_default().to_vec()
    }

    /// Takes what waits, in exchange for the empty queue, or wakes later.
    fn poll_take(
        &self,
        cx: &mut Context<'_>,
        empty: &mut DatagramQueue,
        wait: &mut PackWait,
    ) -> Poll<()> {
        let mut shared = self.lock();
        if shared.queue.is_empty() {
            shared.waker = Some(cx.waker().clone());
            // They change places: both have held a burst.
            let kept = shared
                .account
                .as_ref()
                .is_some_and(|account| account.allowance() >= LOW_ALLOWANCE);
            shared.queue.release(kept);
            empty.release(kept);
            shared.taken_memory = empty.memory();
            shared.settle();
            return Poll::Pending;
        }
        if shared.queue.bytes() < PACKET && wait.poll(cx).is_pending() {
            shared.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        wait.sleep = None;
        mem::swap(&mut shared.queue, empty);
        shared.taken_memory = empty.memory();
        Poll::Ready(())
    }
}

impl<W> Shared<W> {
    /// Queues copies as far as there is room and memory; answers how many found none.
    fn queue_up(&mut self, batch: Batch<'_>) -> usize {
        let more = self.account.as_ref().map_or(0, Account::allowance);
        let floor = FLOW_FLOOR.saturating_sub(self.taken_memory);
        let most = floor.max(self.queue.memory().saturating_add(more));
        let dropped = self.queue.push_train(batch, most);
        self.settle();
        dropped
    }

    fn settle(&mut self) {
        let memory = self.queue.memory() + self.taken_memory;
        if let Some(account) = &mut self.account {
            account.set(memory);
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
struct PackWait {
    limit: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl PackWait {
    fn new(limit: Duration) -> Self {
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

/// The most bytes that wait, and the most datagrams; further ones are dropped.
pub(crate) const MAX_QUEUED_BYTES: usize = 256 * 1024;
pub(crate) const MAX_QUEUED: usize = 512;
/// The most that one batch takes: what UDP_SEGMENT takes.
const MAX_BATCH_BYTES: usize = 65_000;
const MAX_BATCH: usize = 64;
/// The room that an empty queue keeps: a flow in use allocates nothing, a silent one holds little.
const KEPT_BYTES: usize = 16 * 1024;
const KEPT_COUNT: usize = 32;

/// Datagrams on their way to a target, one after the other in one buffer, taken out in batches of one size: what the overlay sends in one call.
#[derive(Debug, Default)]
pub(crate) struct DatagramQueue {
    contents: Vec<u8>,
    lengths: VecDeque<usize>,
    /// Where the first datagram starts.
    head: usize,
}

impl DatagramQueue {
    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// How much memory it takes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.contents.capacity() + self.lengths.capacity() * size_of::<usize>()
    }

    /// Takes a copy, or answers that there is no room, or none that takes no more than `most` bytes of memory in all.
    pub(crate) fn push(&mut self, payload: &[u8], most: usize) -> bool {
        let room = MAX_QUEUED_BYTES.saturating_sub(self.contents.len());
        if payload.len() > room || self.lengths.len() >= MAX_QUEUED {
            return false;
        }
        if !self.grow(payload.len(), most) {
            return false;
        }
        self.contents.extend_from_slice(payload);
        self.lengths.push_back(payload.len());
        true
    }

    /// Makes place for one more, by doubling if that is allowed.
    fn grow(&mut self, bytes: usize, most: usize) -> bool {
        let (len, count) = (self.contents.len() + bytes, self.lengths.len() + 1);
        let (bytes, lengths) = (self.contents.capacity(), self.lengths.capacity());
        if len <= bytes && count <= lengths {
            return true;
        }
        let lengths = if count <= lengths {
            lengths
        } else {
            count.max(4).next_power_of_two()
        };
        let left = most.saturating_sub(lengths * size_of::<usize>());
        let bytes = if len <= bytes {
            bytes
        } else {
            len.max(bytes * 2).min(left)
        };
        if bytes < len || bytes > left {
            return false;
        }
        self.contents.reserve_exact(bytes - self.contents.len());
        self.lengths.reserve_exact(lengths - self.lengths.len());
        true
    }

    /// How many bytes wait.
    pub(crate) fn bytes(&self) -> usize {
        self.contents.len() - self.head
    }

    /// Takes copies of a train's datagrams as far as there is room, and answers how many found none.
    pub(crate) fn push_train(&mut self, train: Batch<'_>, most: usize) -> usize {
        let payloads = train.payloads();
        payloads.filter(|payload| !self.push(payload, most)).count()
    }

    /// The first datagrams that have one size; the last may be shorter. `None` when there are none.
    pub(crate) fn batch(&self) -> Option<(Batch<'_>, usize)> {
        let segment = *self.lengths.front()?;
        let (mut bytes, mut count) = (segment, 1);
        for &len in self.lengths.iter().skip(1).take(MAX_BATCH - 1) {
            if segment == 0 || len == 0 || len > segment || bytes + len > MAX_BATCH_BYTES {
                break;
            }
            (bytes, count) = (bytes + len, count + 1);
            if len < segment {
                break;
            }
        }
        let contents = self.contents.get(self.head..self.head + bytes)?;
        let segment = segment.max(1);
        Some((Batch { contents, segment }, count))
    }

    /// Removes the first `count`.
    pub(crate) fn pop(&mut self, count: usize) {
        let gone: usize = self.lengths.drain(..count.min(self.lengths.len())).sum();
        self.head += gone;
        if self.lengths.is_empty() {
            self.contents.clear();
            self.head = 0;
        }
    }

    /// Gives back what a burst needed; what an ordinary exchange needs stays if it is to be `kept`.
    pub(crate) fn release(&mut self, kept: bool) {
        let (bytes, count) = if kept {
            (KEPT_BYTES, KEPT_COUNT)
        } else {
            (0, 0)
        };
        self.contents.shrink_to(bytes);
        self.lengths.shrink_to(count);
    }
}

#[cfg(test)]
mod queue_tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(queue: &mut DatagramQueue) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while let Some((batch, count)) = queue.batch() {
            let payloads: Vec<_> = batch.payloads().map(<[u8]>::to_vec).collect();
            assert_eq!(payloads.len(), count);
            out.extend(payloads);
            queue.pop(count);
        }
        out
    }

    #[test]
    fn equal_datagrams_leave_as_one_batch_with_a_shorter_one_last() {
        let mut queue = DatagramQueue::default();
        for len in [100, 100, 40, 100] {
            assert!(queue.push(&vec![0; len], usize::MAX));
        }
        let (batch, count) = queue.batch().expect("full");
        assert_eq!((batch.contents.len(), batch.segment, count), (240, 100, 3));
    }

    #[test]
    fn a_full_queue_drops_what_comes() {
        let mut queue = DatagramQueue::default();
        while queue.push(&[0; 1000], usize::MAX) {}
        assert!(!queue.push(&[0; 1000], usize::MAX));
        queue.pop(MAX_QUEUED);
        assert!(queue.push(&[0; 1000], usize::MAX));
    }

    proptest! {
        #[test]
        fn no_more_memory_is_taken_than_is_allowed(
            steps in proptest::collection::vec((0_usize..3000, 0_usize..30_000, 0_usize..4, any::<bool>()), 0..200),
        ) {
            let mut queue = DatagramQueue::default();
            for (len, most, gone, kept) in steps {
                let before = (queue.memory(), queue.len());
                let taken = queue.push(&vec![0; len], most);
                prop_assert!(queue.memory() <= most.max(before.0));
                prop_assert_eq!(queue.len(), before.1 + usize::from(taken));
                queue.pop(gone);
                if queue.is_empty() {
                    queue.release(kept);
                    prop_assert!(kept || queue.memory() == 0);
                }
            }
        }

        #[test]
        fn what_went_in_comes_out_in_order(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..4), 0..300)) {
            let mut queue = DatagramQueue::default();
            for payload in &payloads {
                prop_assert!(queue.push(payload, usize::MAX));
            }
            prop_assert_eq!(drain(&mut queue), payloads);
        }
    }
}
