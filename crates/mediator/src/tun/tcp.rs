//! TCP of the transparent front end: every connection that a program makes ends here and goes on as a stream of the overlay.
//! The router hands segments to the [`TcpTable`]; each connection is a machine without I/O, driven by the table and by a task of its own.
//! RFC 9293 and its neighbours: see `connection`. Optimistic and pessimistic opening: paper 003 (ANONguard) §5.
//!
//! # What a failure is called
//! Before the SYN is answered (pessimistic), by what Linux makes of it in `connect`; afterwards nothing but a reset is left to tell. A flow
//! whose SYN was answered first has an early stream: its first bytes travel with the request, and the overlay says of them what follows.
//!
//! | overlay says | SYN not answered yet | answered |
//! |---|---|---|
//! | target failed: refused | reset: ECONNREFUSED | reset |
//! | target failed: network unreachable; entry unreachable; path failed; bug | ICMP network unreachable: ENETUNREACH | reset |
//! | target failed otherwise: host unreachable, name, resolver; timed out; an address that means nothing any more | ICMP host unreachable: EHOSTUNREACH | reset |
//! | forbidden, unsupported | ICMP prohibited: EHOSTUNREACH (IPv6: EACCES) | reset |
//! | the stream breaks later; no segment comes for `flows.idle_stream` | – | reset |
//! | the target reads no more | – | what comes is acknowledged and dropped; after the last byte down, or 10 s without one, a reset |
//!
//! A segment of a connection that nobody knows is answered by a reset, so that programs notice when the mediator was restarted. When too many
//! connections are being opened, the oldest of those of the user that has most is evicted.
//!
//! # When slots or memory are short
//! There are `flows.tcp` slots, and all flows share `flows.memory` (see [`crate::budget`]): windows sink as it fills, down to a floor.
//! When all slots are taken, the user that has most (see [`crate::users`]) loses one, however busy its flows are, and a user that has most
//! itself loses its own: of its next few flows that are open that whose rest, up to a minute, counts most when it is multiplied by how many
//! flows it has to the same target. So of hundreds that a program leaves lying one is evicted before its only flow to another target, however
//! long that rests. When memory is short for anybody, flows are reset whose bytes nobody has taken for [`STALL_TIMEOUT`], of the user that holds
//! most and the longest first, until half of it is free. When nothing can be evicted, SYNs are dropped and counted: programs send them again.

use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map::RandomState},
    fmt,
    hash::BuildHasher,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use hoplite_wire::{
    Host, Target,
    ip::{
        self,
        icmp::Unreachable,
        tcp::{Flags, Header, Segment},
    },
};
use parking_lot::Mutex;
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};

use self::{
    connection::{Connection, OutgoingSegment, Seq, Settings, memory_floor},
    flow::{FlowTask, OpenRequest, TcpFlow},
};
use super::{
    DeviceContext, FlowKey,
    config::{Flows, Opening},
    outgoing::tell_unreachable,
};
use crate::{
    budget::Account,
    users::{Owner, Slot, Slots, User, UserQueues},
};

mod connection;
mod flow;
mod receive;
mod send;

/// One flow in this many may be half-open.
const HALF_OPEN_SHARE: usize = 4;
/// How many open flows are looked at when one has to be evicted for a new one.
const CANDIDATES: usize = 32;
/// A flow whose first bytes have waited for this long may be reset when memory is short.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How often such flows are looked for.
const RECLAIM_EVERY: Duration = Duration::from_secs(1);
/// How often the log says that the table is full.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// The largest SYN that is kept to be quoted in an ICMP error; a larger one (with data) is refused by a reset.
const QUOTED: usize = 256;

/// All connections of programs. Dropped, it resets them.
pub(crate) struct TcpTable {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    /// Flows that a segment came for since the last flush.
    to_flush: Vec<Arc<TcpFlow>>,
    backlog: SynBacklog,
    /// All flows of each user, in the order in which they are looked at when one has to be evicted; some are over.
    queues: UserQueues<Weak<TcpFlow>>,
    reclaimed: Option<Instant>,
    warned: Option<Instant>,
    secret: RandomState,
    born: Instant,
}

/// What the table and the tasks share.
struct Shared {
    context: Arc<DeviceContext>,
    flows: Mutex<HashMap<FlowKey, Arc<TcpFlow>>>,
    recent: Mutex<RecentTargets>,
}

impl Shared {
    /// Forgets a flow, unless another one has its key by now.
    fn remove(&self, flow: &Arc<TcpFlow>) {
        let mut flows = self.flows.lock();
        let same = |known: &Arc<TcpFlow>| Arc::ptr_eq(known, flow);
        if flows.get(&flow.key).is_some_and(same) {
            flows.remove(&flow.key);
        }
    }
}

impl TcpTable {
    pub(crate) fn new(context: Arc<DeviceContext>) -> Self {
        let backlog = SynBacklog::new(context.config.flows.tcp.div_ceil(HALF_OPEN_SHARE));
        let shared = Shared {
            context,
            flows: Mutex::default(),
            recent: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            tasks: JoinSet::new(),
            to_flush: Vec::new(),
            backlog,
            queues: UserQueues::default(),
            reclaimed: None,
            warned: None,
            secret: RandomState::new(),
            born: Instant::now(),
        }
    }

    /// Takes a segment. `bytes` is the whole packet: the payload stays in it. Nothing is answered before [`Self::flush`].
    pub(crate) fn received(
        &mut self,
        key: FlowKey,
        packet: &ip::Packet<'_>,
        segment: &Segment<'_>,
        bytes: &Bytes,
        now: Instant,
    ) {
        let flow = self.shared.flows.lock().get(&key).cloned();
        if let Some(flow) = flow.filter(|flow| !self.give_way(flow, segment)) {
            let payload = payload_of(packet, segment, bytes);
            if flow.received(segment, payload, now) {
                self.to_flush.push(flow);
            }
            return;
        }
        if is_opening(segment.flags) {
            self.open(key, segment, bytes, now)
        } else {
            self.reset_stranger(key, segment)
        }
    }

    /// Sends what follows from the segments received since the last time: for each flow one acknowledgement of them all.
    pub(crate) fn flush(&mut self, now: Instant) {
        for flow in self.to_flush.drain(..) {
            flow.flush(&*self.shared.context.sink, now);
        }
        while let Some(ended) = self.tasks.try_join_next() {
            report(ended);
        }
        self.reclaim(now);
    }

    /// Whether a SYN ends what is left of the connection before it.
    fn give_way(&self, flow: &Arc<TcpFlow>, segment: &Segment<'_>) -> bool {
        if !is_opening(segment.flags) || !flow.lock().connection.gives_way_to(segment) {
            return false;
        }
        flow.abandon();
        self.shared.remove(flow);
        true
    }

    fn open(&mut self, key: FlowKey, segment: &Segment<'_>, bytes: &Bytes, now: Instant) {
        match self.shared.context.meaning(key.target, now) {
            Some(target) => self.open_to(target, key, segment, bytes, now),
            None => tell_unreachable(&self.shared.context, bytes, Unreachable::Host),
        }
    }

    /// A slot for a new flow, and its account of the memory.
    fn admit(&mut self, key: FlowKey, now: Instant) -> Option<Account> {
        let user = self.shared.context.user(ip::TCP, key);
        let opened = |table: &Self| {
            let (context, flows) = (&table.shared.context, table.shared.flows.lock().len());
            let Flows { tcp, window, .. } = context.config.flows;
            let target = Host::ip(key.target.ip());
            let open = || {
                context
                    .tcp_memory
                    .open(user, target, memory_floor(window) * 2)
            };
            (flows < tcp).then(open).flatten()
        };
        opened(self).or_else(|| {
            self.evict(user, now);
            opened(self)
        })
    }

    /// Of the victim's next few flows the one goes whose eviction weight is largest. Those that are being opened go only for
    /// another user, and last.
    fn evict(&mut self, newcomer: User, now: Instant) {
        let Some(victim) = self.shared.context.tcp_memory.victim(newcomer) else {
            return;
        };
        let next = self.next_flows(victim).into_iter();
        let counted = next.filter_map(|flow| {
            let (open, counts) = (!flow.is_half_open(), flow.lock().eviction_weight(now)?);
            (open || victim != newcomer).then_some(((open, counts), flow))
        });
        if let Some((_, flow)) = counted.max_by_key(|(counts, _)| *counts) {
            self.shared.context.counters.tcp_rested.add(1);
            flow.evict(now);
            self.shared.remove(&flow);
        }
    }

    /// The next flows of a user to be looked at; each has its turn again when all others had theirs.
    fn next_flows(&mut self, user: User) -> Vec<Arc<TcpFlow>> {
        let (mut next, all) = (Vec::new(), self.queues.count(user));
        for _ in 0..all {
            let Some(flow) = self.queues.pop(user).and_then(|weak| weak.upgrade()) else {
                continue;
            };
            self.queues.push(user, Arc::downgrade(&flow));
            next.push(flow);
            if next.len() >= CANDIDATES {
                break;
            }
        }
        next
    }

    /// Resets flows that hold memory for bytes that nobody takes, until enough is free.
    fn reclaim(&mut self, now: Instant) {
        let recent = |then: Instant| now.saturating_duration_since(then) < RECLAIM_EVERY;
        if self.reclaimed.is_some_and(recent) || !self.shared.context.tcp_memory.was_short() {
            return;
        }
        self.reclaimed = Some(now);
        let mut stalled = self.stalled(now);
        while self.shared.context.tcp_memory.excess() > 0 {
            let memory_of = |flows: &Vec<(Instant, Arc<TcpFlow>)>| {
                let memory = flows
                    .last()
                    .and_then(|(_, flow)| flow.lock().memory_of_user());
                memory.unwrap_or_default()
            };
            let Some(flows) = stalled.values_mut().max_by_key(|flows| memory_of(flows)) else {
                return;
            };
            let Some((_, flow)) = flows.pop() else {
                return;
            };
            self.shared.context.counters.tcp_stalled.add(1);
            flow.evict(now);
            self.shared.remove(&flow);
            stalled.retain(|_, flows| !flows.is_empty());
        }
    }

    /// Each user's flows whose bytes nobody has taken for [`STALL_TIMEOUT`], the longest last.
    fn stalled(&self, now: Instant) -> HashMap<User, Vec<(Instant, Arc<TcpFlow>)>> {
        let mut stalled: HashMap<_, Vec<_>> = HashMap::new();
        for flow in self.shared.flows.lock().values() {
            let since = flow.lock().waiting_since();
            let long = |since: &Instant| now.saturating_duration_since(*since) >= STALL_TIMEOUT;
            if let Some(since) = since.filter(long) {
                let of = stalled.entry(flow.user).or_default();
                of.push((since, Arc::clone(flow)));
            }
        }
        for flows in stalled.values_mut() {
            flows.sort_unstable_by_key(|(since, _)| Reverse(*since));
        }
        stalled
    }

    fn drop_syn(&mut self, now: Instant) {
        self.shared.context.counters.tcp_dropped.add(1);
        if self.warned.is_none_or(|then| now - then > WARN_EVERY) {
            self.warned = Some(now);
            tracing::warn!(
                "no more TCP connections of programs fit in: raise flows.tcp, or find the program that opens so many"
            );
        }
    }

    fn open_to(
        &mut self,
        target: Target,
        key: FlowKey,
        segment: &Segment<'_>,
        bytes: &Bytes,
        now: Instant,
    ) {
        let Some(account) = self.admit(key, now) else {
            return self.drop_syn(now);
        };
        let mut connection = Connection::new(segment, self.settings(key, now));
        let mut cause = (bytes.len() <= QUOTED).then(|| Box::from(&bytes[..]));
        let early = self.is_trusted(account.user(), &target, now);
        if early {
            connection.accept(now);
            cause = None;
        }
        let flow = Arc::new(TcpFlow::new(key, connection, account));
        self.remember(&flow);
        self.shared.flows.lock().insert(key, Arc::clone(&flow));
        let task = FlowTask::new(&self.shared, &flow, now);
        let order = OpenRequest {
            target,
            early,
            cause,
        };
        let (half_open, oldest) = self.backlog.admit(&flow);
        if let Some(oldest) = oldest {
            self.shared.context.counters.tcp_evicted.add(1);
            oldest.abort();
        }
        self.tasks.spawn(task.run(order, half_open));
        self.to_flush.push(flow);
    }

    fn remember(&mut self, flow: &Arc<TcpFlow>) {
        // Those that are over are forgotten now and then.
        let many = self.shared.context.config.flows.tcp.saturating_mul(2);
        self.queues.tidy(many, |flow| flow.strong_count() > 0);
        self.queues.push(flow.user, Arc::downgrade(flow));
    }

    /// Whether the SYN is answered before the overlay has. While too many are being opened a target's past answers do not count: the program waits
    /// for its turn, where an answer and then a reset would have it try again at once, and nothing of a thousand tries would ever be opened.
    fn is_trusted(&self, user: User, target: &Target, now: Instant) -> bool {
        match self.shared.context.config.flows.open {
            Opening::Optimistic => true,
            Opening::Pessimistic => false,
            Opening::Auto => {
                !self.backlog.is_full() && self.shared.recent.lock().trusts(user, target, now)
            }
        }
    }

    fn settings(&self, key: FlowKey, now: Instant) -> Settings {
        let (headers, default_mss) = if key.program.is_ipv4() {
            (40, 536)
        } else {
            (60, 1220)
        };
        Settings {
            isn: self.isn(key, now),
            window: self.shared.context.config.flows.window,
            floor: memory_floor(self.shared.context.config.flows.window),
            mss: self.shared.context.sink.mtu().saturating_sub(headers),
            default_mss,
            idle: self.shared.context.config.flows.idle_stream,
        }
    }

    /// RFC 6528 §3: ISN = M + F(localip, localport, remoteip, remoteport, secretkey), M ticking every 4 microseconds.
    fn isn(&self, key: FlowKey, now: Instant) -> u32 {
        let ticks = now.saturating_duration_since(self.born).as_micros() / 4;
        let ticks = u32::try_from(ticks % (1 << 32)).unwrap_or(0);
        let [a, b, c, d, ..] = self.secret.hash_one(key).to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d]).wrapping_add(ticks)
    }

    /// RFC 9293 §3.10.7.1: whoever sends to a connection that is not there is told so.
    fn reset_stranger(&self, key: FlowKey, segment: &Segment<'_>) {
        let flags = segment.flags;
        if flags.contains(Flags::RST) {
            return;
        }
        let counted = [Flags::SYN, Flags::FIN].map(|flag| usize::from(flags.contains(flag)));
        let len = segment.payload.len() + counted[0] + counted[1];
        let header = if flags.contains(Flags::ACK) {
            Header {
                sequence: segment.acknowledgment,
                flags: Flags::RST,
                ..Header::default()
            }
        } else {
            Header {
                acknowledgment: Seq(segment.sequence).plus(len).0,
                flags: Flags::RST | Flags::ACK,
                ..Header::default()
            }
        };
        let (range, sink) = (None, &*self.shared.context.sink);
        flow::send(key, sink, OutgoingSegment { header, range }, [&[]; 2], None);
    }
}

/// A SYN that asks for a new connection.
fn is_opening(flags: Flags) -> bool {
    flags.contains(Flags::SYN) && !flags.intersects(Flags::ACK | Flags::RST | Flags::FIN)
}

fn payload_of(packet: &ip::Packet<'_>, segment: &Segment<'_>, bytes: &Bytes) -> Bytes {
    let at = packet.header_len + segment.header_len;
    match segment.payload.len() {
        0 => Bytes::new(),
        len => bytes.slice(at..at + len),
    }
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a flow's task failed: please report this");
    }
}

impl fmt::Debug for TcpTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpTable")
            .field("flows", &self.shared.flows.lock().len())
            .finish_non_exhaustive()
    }
}

/// The flows that are being opened, each user's oldest first: there may be only this many, so that a program that floods us with SYNs leaves room
/// for others. When there are, of the user that has most of them whoever came first and is still not open is evicted: a flow that opens quickly
/// gets through even a flood of its own user, and those of other users do not feel it. Those whose SYN is not answered go first: their programs
/// ask again and notice nothing, the others would see a reset.
#[derive(Debug)]
struct SynBacklog {
    most: usize,
    slots: Arc<Slots>,
    /// Those whose SYN was not answered when they came.
    unanswered: UserQueues<Weak<TcpFlow>>,
    answered: UserQueues<Weak<TcpFlow>>,
}

/// A flow counts as being opened until this is dropped.
struct HalfOpenSlot {
    _slot: Slot,
    flow: Arc<TcpFlow>,
}

impl SynBacklog {
    fn new(most: usize) -> Self {
        Self {
            most,
            slots: Arc::default(),
            unanswered: UserQueues::default(),
            answered: UserQueues::default(),
        }
    }

    /// Whether the next one that is let in evicts another.
    fn is_full(&self) -> bool {
        self.slots.len() >= self.most
    }

    /// Lets a flow in; answers with the one that has to be evicted, if any.
    fn admit(&mut self, flow: &Arc<TcpFlow>) -> (HalfOpenSlot, Option<Arc<TcpFlow>>) {
        let victim = self
            .is_full()
            .then(|| self.slots.victim(flow.user))
            .flatten();
        let oldest = victim.and_then(|victim| self.oldest(victim));
        let queue = if flow.lock().connection.is_syn_pending() {
            &mut self.unanswered
        } else {
            &mut self.answered
        };
        // Those that are open by now are forgotten now and then.
        let many = self.most.saturating_mul(2);
        queue.tidy(many, |flow| half_open(flow).is_some());
        queue.push(flow.user, Arc::downgrade(flow));
        let half_open = HalfOpenSlot {
            _slot: self.slots.take(flow.user),
            flow: Arc::clone(flow),
        };
        (half_open, oldest)
    }

    /// Takes the user's oldest that is still being opened.
    fn oldest(&mut self, user: User) -> Option<Arc<TcpFlow>> {
        let mut queues = [&mut self.unanswered, &mut self.answered].into_iter();
        queues.find_map(|queue| {
            let mut queued = std::iter::from_fn(|| queue.pop(user));
            queued.find_map(|flow| half_open(&flow))
        })
    }
}

fn half_open(flow: &Weak<TcpFlow>) -> Option<Arc<TcpFlow>> {
    flow.upgrade().filter(|flow| flow.is_half_open())
}

impl Drop for HalfOpenSlot {
    fn drop(&mut self) {
        self.flow.set_opened();
    }
}

impl fmt::Debug for HalfOpenSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HalfOpenSlot")
    }
}

/// How many targets are remembered; the one that worked longest ago is forgotten.
const MAX_TARGETS: usize = 4096;
/// How long a target is remembered.
const TARGET_LIFETIME: Duration = Duration::from_secs(600);

/// Which targets lately worked, by name (or address) and port: their SYNs are answered before the overlay has (`open = "auto"`). Of each owner those
/// that worked for them: when a SYN is answered would tell others' targets otherwise.
#[derive(Debug, Default)]
struct RecentTargets(HashMap<(Owner, Target), Instant>);

impl RecentTargets {
    /// Whether the target worked lately and did not fail since.
    fn trusts(&self, user: User, target: &Target, now: Instant) -> bool {
        let at = self.0.get(&(user.owner, target.clone()));
        at.is_some_and(|at| is_fresh(*at, now))
    }

    fn worked(&mut self, user: User, target: &Target, now: Instant) {
        let key = (user.owner, target.clone());
        if let Some(at) = self.0.get_mut(&key) {
            *at = now;
            return;
        }
        if self.0.len() >= MAX_TARGETS {
            self.evict(now);
        }
        self.0.insert(key, now);
    }

    fn failed(&mut self, user: User, target: &Target) {
        self.0.remove(&(user.owner, target.clone()));
    }

    /// Forgets what is too old; if nothing is, the older half.
    fn evict(&mut self, now: Instant) {
        self.0.retain(|_, at| is_fresh(*at, now));
        if self.0.len() < MAX_TARGETS {
            return;
        }
        let mut times: Vec<_> = self.0.values().copied().collect();
        let (_, middle, _) = times.select_nth_unstable(MAX_TARGETS / 2);
        let middle = *middle;
        self.0.retain(|_, at| *at > middle);
    }
}

fn is_fresh(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < TARGET_LIFETIME
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod recent_tests {
    use super::*;

    const ONE: User = User::local(1, 0);
    const OTHER: User = User::local(2, 0);

    #[test]
    fn what_worked_is_trusted_until_it_fails_or_grows_old() {
        let (mut recent, now) = (RecentTargets::default(), Instant::now());
        let [a, b]: [Target; 2] = ["a:1", "a:2"].map(|text| text.parse().expect("valid"));
        recent.worked(ONE, &a, now);
        assert!(recent.trusts(ONE, &a, now) && !recent.trusts(ONE, &b, now));
        assert!(!recent.trusts(ONE, &a, now + TARGET_LIFETIME));
        assert!(
            !recent.trusts(OTHER, &a, now),
            "nobody learns where others go"
        );
        recent.failed(OTHER, &a);
        assert!(recent.trusts(ONE, &a, now));
        recent.failed(ONE, &a);
        assert!(!recent.trusts(ONE, &a, now));
    }

    #[test]
    fn no_more_than_so_many_are_remembered_and_the_newest_are() {
        let (mut recent, start) = (RecentTargets::default(), Instant::now());
        let target = |n: u32| -> Target { format!("host{n}:1").parse().expect("valid") };
        for n in 0..10_000 {
            recent.worked(ONE, &target(n), start + Duration::from_micros(n.into()));
            assert!(recent.0.len() <= MAX_TARGETS);
        }
        let end = start + Duration::from_millis(10);
        assert!(recent.trusts(ONE, &target(9_999), end) && !recent.trusts(ONE, &target(0), end));
    }
}
