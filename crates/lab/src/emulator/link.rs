//! One direction of a link, without a clock: loss, duplication and corruption, a queue, a bottleneck, delay and jitter, in that order.
//! `network` owns two of them for each link.
//!
//! A packet leaves at max(bottleneck free, arrival) + size / rate + delay + jitter: how late anybody asks does not add up.
//! Call [`Pipe::arrive`] with times that do not go back, and [`Pipe::poll`] whenever [`Pipe::next`] has come.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use super::{
    jitter::Jitters,
    loss::Losses,
    packet,
    pool::Pool,
    queue::Queue,
    random::Random,
    rate::{Bottleneck, Rate},
    trace::Opportunities,
    watch::{Cause, Watch},
};
use crate::topology::Direction;

/// Whole nanoseconds, at most 2^62 of them.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).map_or(1 << 62, |ns| ns.min(1 << 62))
}

/// What happened on a direction until now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets that came.
    pub packets: u64,
    /// Octets that came.
    pub octets: u64,
    /// Packets dropped, in the order of [`Cause::ALL`].
    pub drops: [u64; Cause::ALL.len()],
    /// Packets that became two.
    pub duplicated: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets that left at the far end.
    pub left: u64,
}

/// One direction.
#[derive(Debug)]
pub struct Pipe {
    direction: usize,
    losses: Losses,
    duplicate: (f64, Random),
    corrupt: (f64, Random),
    queue: Queue,
    bottleneck: Bottleneck,
    /// When the last packet that was served has passed.
    busy_until: u64,
    delay: u64,
    jitters: Option<Jitters>,
    flight: Flight,
    count: Count,
}

/// What a direction needs from outside to do something.
#[expect(
    missing_debug_implementations,
    reason = "it borrows a watcher of any kind"
)]
pub struct Stage<'a, W: ?Sized> {
    /// Where packets come from and go to.
    pub pool: &'a mut Pool,
    /// Who is told.
    pub watch: &'a mut W,
}

impl Pipe {
    /// The direction that `plan` describes, on a link of this MTU. `name` (`LINK>` or `LINK<`) and `seed` decide its random streams.
    ///
    /// # Errors
    /// Why the plan cannot be followed.
    pub fn new(
        plan: &Direction,
        name: &str,
        direction: usize,
        mtu: u16,
        seed: u64,
    ) -> Result<Self, String> {
        let random = |purpose| Random::new(seed, name, purpose);
        let jitters = plan
            .jitter
            .as_ref()
            .map(|jitter| Jitters::new(jitter, random("jitter")));
        let reorder = plan.jitter.as_ref().is_some_and(|jitter| jitter.reorder);
        Ok(Self {
            direction,
            losses: Losses::new(&plan.loss, random("loss")),
            duplicate: (plan.duplicate, random("duplicate")),
            corrupt: (plan.corrupt, random("corrupt")),
            queue: Queue::new(plan.queue, plan.discipline, mtu),
            bottleneck: bottleneck(plan).map_err(|why| format!("{name}: {why}"))?,
            busy_until: 0,
            delay: nanoseconds(plan.delay),
            jitters,
            flight: if reorder {
                Flight::Any(BinaryHeap::new(), 0)
            } else {
                Flight::Fifo(VecDeque::new())
            },
            count: Count::default(),
        })
    }

    /// A packet comes at `now`.
    pub fn arrive<W: Watch + ?Sized>(
        &mut self,
        now: u64,
        packet: Vec<u8>,
        stage: &mut Stage<'_, W>,
    ) {
        stage.watch.entered(now, self.direction, &packet);
        self.count.packets += 1;
        self.count.octets += packet.len() as u64;
        if self.losses.next_is_lost() {
            return self.discard(now, Cause::Loss, packet, stage);
        }
        let copy = self.copy(now, &packet, stage);
        self.enqueue(now, packet, stage);
        if let Some(copy) = copy {
            self.enqueue(now, copy, stage);
        }
    }

    /// A second one of the packet, if chance wants it. It needs room and time of the bottleneck as any other.
    fn copy<W: Watch + ?Sized>(
        &mut self,
        now: u64,
        packet: &[u8],
        stage: &mut Stage<'_, W>,
    ) -> Option<Vec<u8>> {
        let (share, random) = &mut self.duplicate;
        if *share <= 0.0 || !random.happens(*share) {
            return None;
        }
        self.count.duplicated += 1;
        let copy = stage.pool.take(packet);
        if copy.is_none() {
            self.note_drop(now, Cause::Memory, packet, stage);
        }
        copy
    }

    fn enqueue<W: Watch + ?Sized>(
        &mut self,
        now: u64,
        mut packet: Vec<u8>,
        stage: &mut Stage<'_, W>,
    ) {
        let (share, random) = &mut self.corrupt;
        if *share > 0.0 && random.happens(*share) {
            let flipped = packet::flip_bit(&mut packet, |bits| random.below(bits));
            self.count.corrupted += u64::from(flipped);
        }
        self.serve(now, stage);
        let idle = self.queue.head().is_none() && self.busy_until <= now;
        if !idle && !self.queue.has_room(packet.len()) {
            return self.discard(now, Cause::Queue, packet, stage);
        }
        self.queue.push(now, packet);
        self.serve(now, stage);
    }

    /// When the packet at the head can begin to be served.
    fn ready(&self) -> Option<u64> {
        self.queue.head().map(|since| self.bottleneck.ready(since))
    }

    /// Serves what can begin until `now`, at the times at which it could. All that arrived before them is in the queue.
    fn serve<W: Watch + ?Sized>(&mut self, now: u64, stage: &mut Stage<'_, W>) {
        while let Some(start) = self.ready().filter(|&start| start <= now) {
            let mut dropped = Vec::new();
            let packet = self.queue.pop(start, |packet| dropped.push(packet));
            for packet in dropped {
                self.discard(start, Cause::CoDel, packet, stage);
            }
            if let Some(packet) = packet {
                self.launch(start, packet);
            }
        }
    }

    fn launch(&mut self, start: u64, packet: Vec<u8>) {
        self.busy_until = self.bottleneck.serve(start, packet.len() as u64);
        let jitter = self.jitters.as_mut().map_or(0, Jitters::draw);
        let due = self
            .busy_until
            .saturating_add(self.delay)
            .saturating_add(jitter);
        self.flight.push(due, packet);
    }

    /// When to poll next: not after the next packet leaves.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        let served = self.ready().map(|start| start.saturating_add(self.delay));
        let next = [self.flight.next(), served];
        next.into_iter().flatten().min()
    }

    /// The next packet that leaves until `now`, and when it is due.
    pub fn poll<W: Watch + ?Sized>(
        &mut self,
        now: u64,
        stage: &mut Stage<'_, W>,
    ) -> Option<(u64, Vec<u8>)> {
        self.serve(now, stage);
        let due = self.flight.next().filter(|&due| due <= now)?;
        self.count.left += 1;
        self.flight.pop().map(|packet| (due, packet))
    }

    /// Drops a packet that had come this way.
    pub fn discard<W: Watch + ?Sized>(
        &mut self,
        now: u64,
        cause: Cause,
        packet: Vec<u8>,
        stage: &mut Stage<'_, W>,
    ) {
        self.note_drop(now, cause, &packet, stage);
        stage.pool.give(packet);
    }

    /// Counts a drop, and tells of it.
    pub fn note_drop<W: Watch + ?Sized>(
        &mut self,
        now: u64,
        cause: Cause,
        packet: &[u8],
        stage: &mut Stage<'_, W>,
    ) {
        self.count.drops[cause as usize] += 1;
        stage.watch.dropped(now, self.direction, cause, packet);
    }

    /// A packet came that cannot be taken for want of memory.
    pub fn refuse<W: Watch + ?Sized>(&mut self, now: u64, packet: &[u8], stage: &mut Stage<'_, W>) {
        self.count.packets += 1;
        self.count.octets += packet.len() as u64;
        self.note_drop(now, Cause::Memory, packet, stage);
    }

    /// What happened until now, and how many packets were marked.
    #[must_use]
    pub fn count(&self) -> (&Count, u64) {
        (&self.count, self.queue.marked)
    }
}

fn bottleneck(plan: &Direction) -> Result<Bottleneck, &'static str> {
    match (&plan.trace, plan.rate) {
        (Some(_), Some(_)) => Err("a trace and a rate exclude each other"),
        (Some(trace), None) => {
            let trace = Opportunities::new(trace);
            trace
                .map(Bottleneck::Trace)
                .ok_or("the trace must not go back and must end after 0 ms")
        }
        (None, Some(0)) => Err("a rate of 0 lets nothing through"),
        (None, Some(rate)) => Ok(Bottleneck::Rate(Rate::new(rate))),
        (None, None) => Ok(Bottleneck::Unlimited),
    }
}

/// Packets behind the bottleneck. Its bound is the network's memory.
#[derive(Debug)]
enum Flight {
    /// None overtakes another.
    Fifo(VecDeque<(u64, Vec<u8>)>),
    /// Each leaves when it is due; those due at once in the order of their coming.
    Any(BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>, u64),
}

impl Flight {
    fn push(&mut self, due: u64, packet: Vec<u8>) {
        match self {
            Self::Fifo(queue) => {
                let due = queue.back().map_or(due, |&(last, _)| due.max(last));
                queue.push_back((due, packet));
            }
            Self::Any(heap, number) => {
                *number += 1;
                heap.push(Reverse((due, *number, packet)));
            }
        }
    }

    fn next(&self) -> Option<u64> {
        match self {
            Self::Fifo(queue) => queue.front().map(|&(due, _)| due),
            Self::Any(heap, _) => heap.peek().map(|&Reverse((due, ..))| due),
        }
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Fifo(queue) => queue.pop_front().map(|(_, packet)| packet),
            Self::Any(heap, _) => heap.pop().map(|Reverse((.., packet))| packet),
        }
    }
}
