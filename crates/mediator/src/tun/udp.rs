//! UDP flows, one for each pair of source and target: the target is named once, when the flow is opened; from then on payloads travel,
//! each as long as it was. Source port and checksum stay here. Paper 003 §5.1.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::HashMap,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hoplite_overlay::{Batch, Datagrams, Error};
use hoplite_wire::{
    Host, Target,
    ip::{self, icmp::Unreachable},
};
use tokio::{
    task::{AbortHandle, Id, JoinSet},
    time::{Instant, sleep},
};

use crate::{
    budget::Account,
    datagrams::{self, FLOW_FLOOR, HOLD_OFF, ProgramSide, PushOutcome},
    tun::{
        DeviceContext, FlowKey,
        outgoing::{
            OutgoingPacket, datagram_of, tell_too_big, tell_unreachable, udp_headers,
            unreachable_for,
        },
    },
    users::{User, UserQueues},
};

/// How many flows of each kind of a user are looked at when one has to be evicted.
const CANDIDATES: usize = 8;
/// A question that was asked longer ago has its answer, or hardly gets one any more.
const ANSWERED: Duration = Duration::from_secs(2);

/// The end of a flow that the table holds.
type FlowSender = datagrams::FlowSender<Unreachable>;

/// All UDP flows of the device.
#[derive(Debug)]
pub(crate) struct UdpTable {
    context: Arc<DeviceContext>,
    /// At most `flows.udp`.
    flows: HashMap<FlowKey, FlowEntry>,
    /// Each of `flows` in one of them once: who is looked at next when one has to be evicted; some are over. What proves to be a stream
    /// is found among the exchanges when its turn comes there.
    exchanges: UserQueues<FlowId>,
    streams: UserQueues<FlowId>,
    tasks: JoinSet<FlowKey>,
}

/// A flow as its key and its task say: another one may have the key after it.
type FlowId = (FlowKey, Id);

#[derive(Debug)]
struct FlowEntry {
    sender: FlowSender,
    task: AbortHandle,
}

impl UdpTable {
    pub(crate) fn new(context: Arc<DeviceContext>) -> Self {
        Self {
            context,
            flows: HashMap::new(),
            exchanges: UserQueues::default(),
            streams: UserQueues::default(),
            tasks: JoinSet::new(),
        }
    }

    /// Datagrams of one program to one target: `payload` cut every `segment` bytes.
    pub(crate) fn received(&mut self, key: FlowKey, payload: &[u8], segment: usize, now: Instant) {
        let segment = segment.max(1);
        let batch = Batch {
            contents: payload,
            segment,
        };
        let sender = match self.flows.get(&key) {
            Some(entry) if !entry.is_over() => Some(&entry.sender),
            _ => self.open(key, now),
        };
        let Some(sender) = sender else {
            return self
                .context
                .counters
                .udp_dropped
                .add(batch.payloads().count());
        };
        match sender.push(batch, now) {
            PushOutcome::Dropped(count) => self.context.counters.udp_dropped.add(count),
            PushOutcome::Failed(why) => {
                self.context.counters.udp_dropped.add(1);
                let first = payload.get(..segment).unwrap_or(payload);
                tell_unreachable(&self.context, &datagram_of(key, first), why);
            }
        }
    }

    /// `None` when there is no memory for a further flow.
    fn open(&mut self, key: FlowKey, now: Instant) -> Option<&FlowSender> {
        self.forget_those_over();
        let user = self.context.user(ip::UDP, key);
        let full = self.flows.len() >= self.context.config.flows.udp;
        if full && !self.flows.contains_key(&key) {
            self.evict(user, now);
        }
        let account = match self.account(key, user) {
            Some(account) => account,
            None => {
                self.evict(user, now);
                self.account(key, user)?
            }
        };
        let sender = FlowSender::new(account);
        let flow = UdpFlow::new(Arc::clone(&self.context), (key, user), sender.clone());
        let task = self.tasks.spawn(async move {
            flow.run().await;
            key
        });
        let many = self.context.config.flows.udp.saturating_mul(2);
        let flows = &self.flows;
        self.exchanges.tidy(many, |known| is_current(flows, known));
        self.streams.tidy(many, |known| is_current(flows, known));
        self.exchanges.push(user, (key, task.id()));
        let entry = self.flows.entry(key);
        let entry = entry.insert_entry(FlowEntry { sender, task });
        Some(&entry.into_mut().sender)
    }

    fn forget_those_over(&mut self) {
        while let Some(over) = self.tasks.try_join_next() {
            // Those that were ended from here are forgotten already.
            if let Ok(key) = over
                && self.flows.get(&key).is_some_and(FlowEntry::is_over)
            {
                self.flows.remove(&key);
            }
        }
    }

    fn account(&self, key: FlowKey, user: User) -> Option<Account> {
        let target = Host::ip(key.target.ip());
        self.context.udp_memory.open(user, target, FLOW_FLOOR)
    }

    /// Of the victim's next few flows the one goes that is missed least.
    fn evict(&mut self, newcomer: User, now: Instant) {
        let Some(victim) = self.context.udp_memory.victim(newcomer) else {
            return;
        };
        while let Some((key, task)) = self.next_victim(victim, now) {
            let known = self.flows.get(&key);
            if known.is_none_or(|entry| entry.task.id() != task) {
                continue;
            }
            if let Some(entry) = self.flows.remove(&key)
                && !entry.is_over()
            {
                self.context.counters.udp_evicted.add(1);
                entry.sender.end();
                entry.task.abort();
            }
            return;
        }
    }

    /// Takes it out of its ring; those that are over come first.
    fn next_victim(&mut self, user: User, now: Instant) -> Option<FlowId> {
        self.promote_streams(user);
        let there = |known: &FlowId| {
            let entry = self.flows.get(&known.0);
            entry.filter(|entry| entry.task.id() == known.1)
        };
        let worth = |known: &FlowId| there(known).and_then(|entry| entry.worth(now));
        let least = |queue: &UserQueues<FlowId>| {
            let next = queue.next(user).take(CANDIDATES).map(worth).enumerate();
            next.map(|(at, worth)| (worth, at)).min()
        };
        let (queue, at) = match (least(&self.exchanges), least(&self.streams)) {
            (Some((one, at)), Some((other, _))) if one <= other => (&mut self.exchanges, at),
            (Some((_, at)), None) => (&mut self.exchanges, at),
            (_, stream) => (&mut self.streams, stream?.1),
        };
        queue.take(user, at)
    }

    /// Until the first of a user's exchanges is one.
    fn promote_streams(&mut self, user: User) {
        let is_stream = |(key, _): &FlowId| self.flows.get(key).is_some_and(FlowEntry::is_stream);
        while self.exchanges.next(user).next().is_some_and(is_stream) {
            if let Some(stream) = self.exchanges.pop(user) {
                self.streams.push(user, stream);
            }
        }
    }
}

fn is_current(flows: &HashMap<FlowKey, FlowEntry>, (key, task): &FlowId) -> bool {
    flows.get(key).is_some_and(|entry| entry.task.id() == *task)
}

impl FlowEntry {
    fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    fn is_stream(&self) -> bool {
        self.sender.is_stream()
    }

    /// How much it is missed: not at all when it is over, little when it was an exchange that is done, else the more the later it was used
    /// and the fewer flows its user has to its target.
    fn worth(&self, now: Instant) -> Option<(bool, Reverse<(u128, Duration)>)> {
        let used = self.sender.used();
        let lasts = self.is_stream() || now.saturating_duration_since(used) < ANSWERED;
        let counts = self.sender.eviction_weight(now)?;
        (!self.is_over()).then_some((lasts, Reverse(counts)))
    }
}

/// The most that one packet to a program holds, and the most datagrams in it: UDP_MAX_SEGMENTS of older kernels.
const TRAIN: usize = 65_000;
const TRAIN_COUNT: usize = 64;

/// Buffers that live only between two calls, one set for the thread, because a flow at rest is to hold none.
struct Scratch {
    received: Vec<u8>,
    headers: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        received: vec![0; TRAIN],
        headers: Vec::with_capacity(64),
    });
}

/// One UDP flow from a program to one target: opens, then moves datagrams both ways until it is idle or fails. A task of its own.
struct UdpFlow {
    context: Arc<DeviceContext>,
    key: FlowKey,
    user: User,
    sender: FlowSender,
}

impl UdpFlow {
    fn new(context: Arc<DeviceContext>, (key, user): (FlowKey, User), sender: FlowSender) -> Self {
        context.counters.udp_opened.add(1);
        Self {
            context,
            key,
            user,
            sender,
        }
    }

    /// Runs until it is over; then its slot may be given to another.
    async fn run(self) {
        let (now, address) = (Instant::now(), self.key.target);
        let _mapping = self.context.names.hold(address.ip(), now);
        let failed = match self.context.meaning(address, now) {
            Some(target) => self.serve(&target).await,
            None => Some(Unreachable::Host),
        };
        if let Some(why) = failed {
            self.fail(why);
            sleep(HOLD_OFF).await;
        }
    }

    /// Answers what to tell the program, if it has to be told something.
    async fn serve(&self, target: &Target) -> Option<Unreachable> {
        let terms = self.context.terms(Some(self.user));
        let opening = self.context.overlay.open_datagrams(target, &terms);
        let opened = terms.run("opening a datagram flow", opening).await;
        let ended = match opened {
            Ok(datagrams) => datagrams::pump_datagrams(self, &*datagrams).await,
            Err(error) => Err(error),
        };
        let error = ended.err()?;
        self.context.flow_failed(self.key.target.ip(), &error);
        Some(unreachable_for(&error))
    }

    fn fail(&self, why: Unreachable) {
        let cause = datagram_of(self.key, &self.sender.first());
        tell_unreachable(&self.context, &cause, why);
        self.context.counters.udp_dropped.add(self.sender.fail(why));
    }

    /// Hands over what came from the target, in packets as large as programs' kernels take.
    fn take(&self, batch: Batch<'_>, headers: &mut Vec<u8>) {
        let Batch { contents, segment } = batch;
        let train = Batch {
            contents,
            segment: segment.saturating_mul(TRAIN_COUNT),
        };
        for contents in train.payloads() {
            self.deliver(contents, segment, headers);
        }
        self.context.counters.udp_down.add(contents.len());
        self.sender.received(batch, Instant::now());
    }

    fn deliver(&self, contents: &[u8], segment: usize, headers: &mut Vec<u8>) {
        let FlowKey { program, target } = self.key;
        udp_headers(headers, target, program, contents.len());
        let segment = u16::try_from(segment).ok();
        let packet = OutgoingPacket::udp(headers, [contents, &[]], segment);
        self.context.sink.send(packet);
    }
}

impl ProgramSide for UdpFlow {
    type Failure = Unreachable;

    fn sender(&self) -> &FlowSender {
        &self.sender
    }

    fn idle(&self) -> Duration {
        let flows = &self.context.config.flows;
        flows.idle(self.key.target.port(), self.sender.is_stream())
    }

    fn pack_wait(&self) -> Duration {
        self.context.config.flows.pack_wait
    }

    fn sent(&self, bytes: usize) {
        self.context.counters.udp_up.add(bytes);
    }

    /// QUIC inside finds its own path MTU by this (RFC 8899 §4.6.1), other programs are told by the kernel (EMSGSIZE).
    fn too_large(&self, batch: Batch<'_>, most: usize) {
        self.context.counters.udp_too_big.add(1);
        let headers = if self.key.target.is_ipv4() { 28 } else { 48 };
        let first = batch.payloads().next().unwrap_or_default();
        let cause = datagram_of(self.key, first);
        tell_too_big(&self.context, &cause, most + headers);
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        datagrams: &dyn Datagrams,
    ) -> Poll<Result<(), Error>> {
        SCRATCH.with_borrow_mut(|Scratch { received, headers }| {
            let got = ready!(datagrams.poll_recv(cx, received))?;
            let contents = received.get(..got.len).unwrap_or_default();
            let segment = got.segment.max(1);
            self.take(Batch { contents, segment }, headers);
            Poll::Ready(Ok(()))
        })
    }
}

impl Drop for UdpFlow {
    fn drop(&mut self) {
        self.sender.end();
        self.context.counters.udp_closed.add(1);
    }
}

#[cfg(test)]
mod tests;
