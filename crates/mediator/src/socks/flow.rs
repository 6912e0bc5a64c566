//! One UDP flow of an association, from a program to one target: opens, then moves datagrams both ways until it is idle,
//! fails, or the association ends. Each runs in a task of its own, so that a slow one holds up nobody.

use std::{
    future::poll_fn,
    mem,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use hoplite_overlay::{Batch, Datagrams, Error, Isolation};
use hoplite_wire::Target;
use tokio::time::{Instant, sleep};

use crate::{copy::idle::Idle, front::Room, queue::Queue};

use super::{
    scratch::{self, Scratch, TRAIN},
    socket::Socket,
};

/// How long a flow that failed keeps its place and drops what comes, so that a program that insists does not
/// make us open flows without a pause.
const HOLD_OFF: Duration = Duration::from_secs(1);
/// How many receive calls are made before other tasks have their turn.
const TURN: usize = 32;

/// The end of a flow that the association holds.
#[derive(Clone, Debug)]
pub(super) struct Sender(Arc<Mutex<Shared>>);

/// What a flow is opened with.
pub(super) struct Flow {
    pub(super) room: Arc<Room>,
    pub(super) socket: Arc<Socket>,
    /// Where the program receives.
    pub(super) program: SocketAddr,
    /// Stands in front of every answer: the target in the very form in which it was asked for.
    pub(super) header: Box<[u8]>,
    pub(super) sender: Sender,
}

#[derive(Debug)]
struct Shared {
    /// Bounded by the queue: datagrams that come when it is full are dropped.
    queue: Queue,
    waker: Option<Waker>,
    used: Instant,
    /// Set when the flow has failed, and when its task has ended.
    failed: bool,
}

impl Sender {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Shared {
            queue: Queue::default(),
            waker: None,
            used: Instant::now(),
            failed: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a copy; answers whether there was room.
    pub(super) fn push(&self, payload: &[u8], now: Instant) -> bool {
        let mut shared = self.lock();
        shared.used = now;
        if shared.failed || !shared.queue.push(payload) {
            return false;
        }
        let waker = shared.waker.take();
        drop(shared);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// When the program or the target used it last.
    pub(super) fn used(&self) -> Instant {
        self.lock().used
    }

    /// Takes what was queued, or wakes later.
    fn poll_take(&self, cx: &mut Context<'_>, empty: &mut Queue) -> Poll<()> {
        let mut shared = self.lock();
        if shared.queue.is_empty() {
            shared.waker = Some(cx.waker().clone());
            // They change places: both have held a burst.
            shared.queue.release();
            empty.release();
            return Poll::Pending;
        }
        mem::swap(&mut shared.queue, empty);
        Poll::Ready(())
    }

    fn fail(&self) -> usize {
        let mut shared = self.lock();
        shared.failed = true;
        mem::take(&mut shared.queue).len()
    }
}

impl Flow {
    /// Runs until it is over; then its place may be given to another.
    pub(super) async fn run(self, target: Target, isolation: Isolation) {
        match self.open(&target, isolation).await {
            Ok(datagrams) => {
                self.room.counters.datagram_flows.add(1);
                if self.carry(&*datagrams).await.is_ok() {
                    return;
                }
            }
            Err(error) => self.room.counters.failed(&error),
        }
        self.room.counters.datagrams_dropped.add(self.sender.fail());
        sleep(HOLD_OFF).await;
    }

    async fn open(
        &self,
        target: &Target,
        isolation: Isolation,
    ) -> Result<Box<dyn Datagrams>, Error> {
        let terms = self.room.terms(isolation);
        let opening = self.room.overlay.open_datagrams(target, &terms);
        terms.run("opening a datagram flow", opening).await
    }

    /// Moves datagrams until nothing moves any more.
    async fn carry(&self, datagrams: &dyn Datagrams) -> Result<(), Error> {
        let (mut queue, mut idle, mut moved) = (Queue::default(), Idle::default(), 0);
        let limit = self.room.limits.idle_datagrams;
        poll_fn(|cx| {
            if let Poll::Ready(Err(error)) = self.poll_up(cx, datagrams, &mut queue, &mut moved) {
                return Poll::Ready(Err(error));
            }
            if let Poll::Ready(Err(error)) = self.poll_down(cx, datagrams, &mut moved) {
                return Poll::Ready(Err(error));
            }
            idle.poll(cx, limit, moved).map(Ok)
        })
        .await
    }

    fn poll_up(
        &self,
        cx: &mut Context<'_>,
        datagrams: &dyn Datagrams,
        queue: &mut Queue,
        moved: &mut usize,
    ) -> Poll<Result<(), Error>> {
        loop {
            let Some((batch, count)) = queue.batch() else {
                ready!(self.sender.poll_take(cx, queue));
                continue;
            };
            if batch.segment > datagrams.max_payload() {
                self.room.counters.datagrams_dropped.add(1);
                queue.pop(1);
                continue;
            }
            ready!(datagrams.poll_send(cx, batch))?;
            self.room.counters.octets_up.add(batch.contents.len());
            *moved = moved.wrapping_add(1);
            queue.pop(count);
        }
    }

    fn poll_down(
        &self,
        cx: &mut Context<'_>,
        datagrams: &dyn Datagrams,
        moved: &mut usize,
    ) -> Poll<Result<(), Error>> {
        for _ in 0..TURN {
            ready!(scratch::with(
                |scratch| self.poll_receive(cx, datagrams, scratch)
            ))?;
            *moved = moved.wrapping_add(1);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        datagrams: &dyn Datagrams,
        scratch: &mut Scratch,
    ) -> Poll<Result<(), Error>> {
        let Scratch { received, sending } = scratch;
        let train = received.get_mut(..TRAIN).unwrap_or_default();
        let got = ready!(datagrams.poll_recv(cx, train))?;
        let contents = train.get(..got.len).unwrap_or_default();
        let segment = got.segment.max(1);
        let batch = Batch { contents, segment };
        let payloads = batch.payloads();
        let dropped = self
            .socket
            .send(self.program, &self.header, payloads, sending);
        self.room.counters.datagrams_dropped.add(dropped);
        self.room.counters.octets_down.add(got.len);
        self.sender.lock().used = Instant::now();
        Poll::Ready(Ok(()))
    }
}
