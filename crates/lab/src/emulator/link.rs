//! One direction of a link, without a clock: whether UDP may pass, loss, duplication and corruption, a queue (drop-tail, or CoDel of RFC 8289),
//! a bottleneck, delay and jitter, in that order.
//!
//! A packet leaves at max(bottleneck free, arrival) + size / rate + delay + jitter: how late anybody asks does not add up.
//! Call [`Pipe::arrive`] with times that do not go back, and [`Pipe::poll`] whenever [`Pipe::next`] has come.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use super::{
    netem::{Jitters, Losses, Random},
    network::{Cause, Pool, Watch},
    packet,
    trace::Opportunities,
};
use crate::topology::{Direction, Discipline};

/// Whole nanoseconds, at most 2^62 of them.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).map_or(1 << 62, |ns| ns.min(1 << 62))
}

/// What happened on a direction until now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets that came.
    pub packets: u64,
    /// Bytes that came.
    pub bytes: u64,
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
    blocks_udp: bool,
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
            blocks_udp: plan.blocks_udp,
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
        self.count.bytes += packet.len() as u64;
        if self.blocks_udp && packet::is_udp(&packet) {
            return self.discard(now, Cause::Udp, packet, stage);
        }
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
        self.count.bytes += packet.len() as u64;
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

/// The queue of one direction. The packet that is being served is no longer in it.
#[derive(Debug)]
pub struct Queue {
    waiting: VecDeque<(u64, Vec<u8>)>,
    bytes: u64,
    limit: u64,
    codel: Option<CoDel>,
    ecn: bool,
    /// Packets marked CE until now.
    pub marked: u64,
}

impl Queue {
    /// An empty queue for `limit` bytes (`None`: the emulator's memory is the limit) on a link of this MTU.
    #[must_use]
    pub fn new(limit: Option<u64>, discipline: Discipline, mtu: u16) -> Self {
        let (codel, ecn) = match discipline {
            Discipline::DropTail => (None, false),
            Discipline::CoDel {
                target,
                interval,
                ecn,
            } => {
                let (target, interval) = (nanoseconds(target), nanoseconds(interval));
                (Some(CoDel::new(target, interval, mtu.into())), ecn)
            }
        };
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            limit: limit.unwrap_or(u64::MAX),
            codel,
            ecn,
            marked: 0,
        }
    }

    /// Whether this many bytes fit.
    #[must_use]
    pub fn has_room(&self, size: usize) -> bool {
        self.bytes.saturating_add(size as u64) <= self.limit
    }

    /// Since when the packet at the head has waited.
    #[must_use]
    pub fn head(&self) -> Option<u64> {
        self.waiting.front().map(|&(since, _)| since)
    }

    /// Appends a packet that comes at `now`, whether or not it fits.
    pub fn push(&mut self, now: u64, packet: Vec<u8>) {
        self.bytes = self.bytes.saturating_add(packet.len() as u64);
        self.waiting.push_back((now, packet));
    }

    /// The packet to serve at `now`; those that CoDel drops before it go to `dropped`.
    pub fn pop(&mut self, now: u64, mut dropped: impl FnMut(Vec<u8>)) -> Option<Vec<u8>> {
        let mut again = false;
        loop {
            let (since, mut packet) = self.waiting.pop_front()?;
            self.bytes = self.bytes.saturating_sub(packet.len() as u64);
            let Some(codel) = &mut self.codel else {
                return Some(packet);
            };
            let sojourn = now.saturating_sub(since);
            if codel.judge(now, sojourn, self.bytes, again) == Verdict::Pass {
                return Some(packet);
            }
            codel.acted(now);
            if self.ecn && packet::mark_congestion(&mut packet) {
                self.marked += 1;
                return Some(packet);
            }
            dropped(packet);
            again = true;
        }
    }
}

/// What CoDel says about the packet at the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Hand it over.
    Pass,
    /// Drop it, or mark it and hand it over; then tell [`CoDel::acted`].
    Act,
}

/// The state of one queue. All times in nanoseconds.
#[derive(Clone, Debug)]
pub struct CoDel {
    target: u64,
    interval: u64,
    /// A queue of no more bytes is never too long: one packet.
    max_packet: u64,
    /// When the sojourn time will have been above the target for an interval; 0: it is below.
    first_above_time: u64,
    drop_next: u64,
    count: u32,
    last_count: u32,
    dropping: bool,
}

impl CoDel {
    /// A queue that was never too long.
    #[must_use]
    pub fn new(target: u64, interval: u64, max_packet: u64) -> Self {
        Self {
            target,
            interval,
            max_packet,
            first_above_time: 0,
            drop_next: 0,
            count: 0,
            last_count: 0,
            dropping: false,
        }
    }

    /// `now`: a packet that has waited for `sojourn` is at the head; `behind` bytes wait behind it.
    /// `again`: another packet was dropped just before it.
    pub fn judge(&mut self, now: u64, sojourn: u64, behind: u64, again: bool) -> Verdict {
        let above = self.is_above(now, sojourn, behind);
        if !above {
            self.dropping = false;
            return Verdict::Pass;
        }
        let due = self.dropping && now >= self.drop_next;
        let begins = !self.dropping && !again;
        if due || begins {
            Verdict::Act
        } else {
            Verdict::Pass
        }
    }

    /// `ok_to_drop` of the RFC's `dodequeue`.
    fn is_above(&mut self, now: u64, sojourn: u64, behind: u64) -> bool {
        if sojourn < self.target || behind <= self.max_packet {
            self.first_above_time = 0;
            return false;
        }
        if self.first_above_time == 0 {
            self.first_above_time = now.saturating_add(self.interval);
            return false;
        }
        now >= self.first_above_time
    }

    /// The head was dropped or marked.
    pub fn acted(&mut self, now: u64) {
        if self.dropping {
            self.count = self.count.saturating_add(1);
            self.drop_next = self.control_law(self.drop_next);
            return;
        }
        self.dropping = true;
        // "If min went above TARGET close to when it last went below, assume that the drop rate that controlled the queue
        // on the last cycle is a good starting point to control it now."
        let delta = self.count.saturating_sub(self.last_count);
        let recent = now.saturating_sub(self.drop_next) < self.interval.saturating_mul(16);
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = self.control_law(now);
    }

    fn control_law(&self, from: u64) -> u64 {
        // The square root is exact to the last bit on every platform; the interval has fewer bits than a double.
        let gap = Duration::from_nanos(self.interval);
        let gap = gap.div_f64(f64::from(self.count.max(1)).sqrt());
        from.saturating_add(u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX))
    }
}

const NANOSECONDS: u64 = 1_000_000_000;

/// The bottleneck of one direction.
#[derive(Clone, Debug)]
pub enum Bottleneck {
    /// Every packet passes at once.
    Unlimited,
    /// A constant rate.
    Rate(Rate),
    /// Delivery opportunities.
    Trace(Opportunities),
}

/// A constant rate, exact: fractions of a nanosecond are carried on, and the bottleneck is free at `free + rest / rate` ns.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bits per second, not 0.
    rate: u64,
    free: u64,
    rest: u64,
}

impl Rate {
    /// A free bottleneck of this many bits per second; of one at least.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self {
            rate: rate.max(1),
            free: 0,
            rest: 0,
        }
    }

    /// The first whole nanosecond at which it is free.
    fn free(&self) -> u64 {
        self.free.saturating_add(u64::from(self.rest > 0))
    }

    fn serve(&mut self, start: u64, size: u64) -> u64 {
        if start > self.free() {
            (self.free, self.rest) = (start, 0);
        }
        let work = u128::from(size) * 8 * u128::from(NANOSECONDS) + u128::from(self.rest);
        let whole = u64::try_from(work / u128::from(self.rate)).unwrap_or(u64::MAX);
        self.free = self.free.saturating_add(whole);
        self.rest = u64::try_from(work % u128::from(self.rate)).unwrap_or(0);
        self.free()
    }
}

impl Bottleneck {
    /// When a packet that waits since `since` can begin to be served.
    #[must_use]
    pub fn ready(&self, since: u64) -> u64 {
        match self {
            Self::Unlimited => since,
            Self::Rate(rate) => rate.free().max(since),
            Self::Trace(trace) => trace.ready(since),
        }
    }

    /// Serves `size` bytes from `start` on, which [`Self::ready`] gave; says when the last one has passed.
    pub fn serve(&mut self, start: u64, size: u64) -> u64 {
        match self {
            Self::Unlimited => start,
            Self::Rate(rate) => rate.serve(start, size),
            Self::Trace(trace) => trace.serve(start, size),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    fn codel(ecn: bool) -> Queue {
        let discipline = Discipline::CoDel {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn,
        };
        Queue::new(None, discipline, 1500)
    }

    /// One packet comes and one leaves each millisecond, behind a standing queue of `standing` packets: when were some dropped?
    fn drops(queue: &mut Queue, standing: u64, ms: u64, packet: &[u8]) -> Vec<u64> {
        (0..standing).for_each(|_| queue.push(0, packet.to_vec()));
        let mut drops = Vec::new();
        for t in 0..ms {
            queue.push(t * MS, packet.to_vec());
            queue.pop(t * MS, |_| drops.push(t));
        }
        drops
    }

    #[test]
    fn a_standing_queue_is_cut_after_an_interval_and_then_ever_faster() {
        let drops = drops(&mut codel(false), 40, 500, &[0; 1500]);
        // Above the target from 5 ms on: 105 ms, then 100 ms / sqrt(count) apart.
        assert_eq!(drops[..5], [105, 205, 276, 334, 384]);
    }

    #[test]
    fn a_burst_that_drains_within_the_interval_is_let_through() {
        let mut queue = codel(false);
        (0..80).for_each(|_| queue.push(0, vec![0; 1500]));
        for t in 0..80 {
            assert!(queue.pop(t * MS, |_| panic!("dropped at {t} ms")).is_some());
        }
        assert!(queue.pop(80 * MS, drop).is_none());
    }

    #[test]
    fn a_single_packet_behind_a_slow_bottleneck_is_never_dropped() {
        let mut queue = codel(false);
        for t in (0..100_000).step_by(500) {
            queue.push(t * MS, vec![0; 1500]);
            queue.push(t * MS, vec![0; 1500]);
            for later in [100, 400] {
                assert!(queue.pop((t + later) * MS, |_| panic!("dropped")).is_some());
            }
        }
    }

    #[test]
    fn packets_whose_sender_speaks_ecn_are_marked_instead() {
        let mut packet = vec![0; 1500];
        (packet[0], packet[1], packet[2], packet[3]) = (0x45, 2, 0x05, 0xdc);
        let mut queue = codel(true);
        assert!(drops(&mut queue, 40, 300, &packet).is_empty());
        assert_eq!(queue.marked, 3);
        packet[1] = 0;
        assert_eq!(drops(&mut codel(true), 40, 300, &packet).len(), 3);
    }

    #[test]
    fn fractions_of_a_nanosecond_do_not_get_lost() {
        let mut rate = Bottleneck::Rate(Rate::new(3_000_000_007));
        let last = (0..1_000_000).fold(0, |since, _| {
            let start = rate.ready(0);
            assert!(start >= since);
            rate.serve(start, 1500)
        });
        let exact = (1_000_000 * 1500 * 8_000_000_000_u128).div_ceil(3_000_000_007);
        assert_eq!(u128::from(last), exact);
    }

    #[test]
    fn an_idle_bottleneck_saves_nothing_up() {
        let mut rate = Bottleneck::Rate(Rate::new(8_000));
        assert_eq!(rate.serve(0, 1), 1_000_000);
        assert_eq!(rate.ready(5_000_000), 5_000_000);
        assert_eq!(rate.serve(5_000_000, 1), 6_000_000);
        assert_eq!(rate.ready(5_500_000), 6_000_000);
    }
}
