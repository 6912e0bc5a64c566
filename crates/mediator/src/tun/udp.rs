//! UDP flows, one for each pair of source and target: the target is named once, when the flow is opened; from then on payloads travel,
//! each as long as it was. Source port and checksum stay here. Paper 003 §5.1.
//! The router fills the table.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::HashMap,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hoplite_overlay::{Batch, Datagrams, Error, Reason};
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
    datagrams::{self, FLOOR, HOLD_OFF, Program, Pushed},
    tun::{
        Ends, Room,
        names::Meaning,
        port::{
            Outgoing, datagram_of, tell_too_big, tell_unreachable, udp_headers, unreachable_for,
        },
    },
    users::{Rings, User},
};

/// How many flows of each kind of a user are looked at when one has to make room.
const CANDIDATES: usize = 8;
/// A question that was asked longer ago has its answer, or hardly gets one any more.
const ANSWERED: Duration = Duration::from_secs(2);

/// The end of a flow that the table holds.
type Sender = datagrams::Sender<Unreachable>;

/// The flows.
#[derive(Debug)]
pub(crate) struct Table {
    room: Arc<Room>,
    /// At most `flows.udp`.
    flows: HashMap<Ends, Place>,
    /// Each of `flows` in one of them once: who is looked at next when one has to make room; some are over. What proves to be a stream
    /// is found among the exchanges when its turn comes there.
    exchanges: Rings<Known>,
    streams: Rings<Known>,
    tasks: JoinSet<Ends>,
}

/// A flow of those ends, until another one has them.
type Known = (Ends, Id);

#[derive(Debug)]
struct Place {
    sender: Sender,
    task: AbortHandle,
}

impl Table {
    pub(crate) fn new(room: Arc<Room>) -> Self {
        Self {
            room,
            flows: HashMap::new(),
            exchanges: Rings::default(),
            streams: Rings::default(),
            tasks: JoinSet::new(),
        }
    }

    /// Datagrams of one program to one target: `payload` cut every `segment` octets.
    pub(crate) fn received(&mut self, ends: Ends, payload: &[u8], segment: usize, now: Instant) {
        let segment = segment.max(1);
        let batch = Batch {
            contents: payload,
            segment,
        };
        let sender = match self.flows.get(&ends) {
            Some(place) if !place.is_over() => Some(&place.sender),
            _ => self.open(ends, now),
        };
        let Some(sender) = sender else {
            return self.room.counters.udp_dropped.add(batch.payloads().count());
        };
        match sender.push(batch, now) {
            Pushed::Dropped(count) => self.room.counters.udp_dropped.add(count),
            Pushed::Failed(why) => {
                self.room.counters.udp_dropped.add(1);
                let first = payload.get(..segment).unwrap_or(payload);
                tell_unreachable(&self.room, &datagram_of(ends, first), why);
            }
        }
    }

    /// `None` when there is no memory for a further flow.
    fn open(&mut self, ends: Ends, now: Instant) -> Option<&Sender> {
        self.forget_those_over();
        let user = self.room.user(ip::UDP, ends);
        let full = self.flows.len() >= self.room.config.flows.udp;
        if full && !self.flows.contains_key(&ends) {
            self.make_room(user, now);
        }
        let account = match self.account(ends, user) {
            Some(account) => account,
            None => {
                self.make_room(user, now);
                self.account(ends, user)?
            }
        };
        let sender = Sender::new(account);
        let flow = Flow::new(Arc::clone(&self.room), ends, sender.clone());
        let task = self.tasks.spawn(async move {
            flow.run().await;
            ends
        });
        let many = self.room.config.flows.udp.saturating_mul(2);
        let flows = &self.flows;
        self.exchanges.tidy(many, |known| is_there(flows, known));
        self.streams.tidy(many, |known| is_there(flows, known));
        self.exchanges.push(user, (ends, task.id()));
        let place = self.flows.entry(ends);
        let place = place.insert_entry(Place { sender, task });
        Some(&place.into_mut().sender)
    }

    fn forget_those_over(&mut self) {
        while let Some(over) = self.tasks.try_join_next() {
            // Those that were ended from here are forgotten already.
            if let Ok(ends) = over
                && self.flows.get(&ends).is_some_and(Place::is_over)
            {
                self.flows.remove(&ends);
            }
        }
    }

    fn account(&self, ends: Ends, user: User) -> Option<Account> {
        let target = Host::ip(ends.target.ip());
        self.room.udp_memory.open(user, target, FLOOR)
    }

    /// Of the next few flows of the user that gives a place the one goes that is missed least.
    fn make_room(&mut self, newcomer: User, now: Instant) {
        let Some(giver) = self.room.udp_memory.gives(newcomer) else {
            return;
        };
        while let Some((ends, task)) = self.next_to_go(giver, now) {
            let known = self.flows.get(&ends);
            if known.is_none_or(|place| place.task.id() != task) {
                continue;
            }
            if let Some(place) = self.flows.remove(&ends)
                && !place.is_over()
            {
                self.room.counters.udp_evicted.add(1);
                place.sender.end();
                place.task.abort();
            }
            return;
        }
    }

    /// Takes it out of its ring; those that are over come first.
    fn next_to_go(&mut self, user: User, now: Instant) -> Option<Known> {
        self.sort_out(user);
        let there = |known: &Known| {
            let place = self.flows.get(&known.0);
            place.filter(|place| place.task.id() == known.1)
        };
        let worth = |known: &Known| there(known).and_then(|place| place.worth(now));
        let least = |ring: &Rings<Known>| {
            let next = ring.next(user).take(CANDIDATES).map(worth).enumerate();
            next.map(|(at, worth)| (worth, at)).min()
        };
        let (ring, at) = match (least(&self.exchanges), least(&self.streams)) {
            (Some((one, at)), Some((other, _))) if one <= other => (&mut self.exchanges, at),
            (Some((_, at)), None) => (&mut self.exchanges, at),
            (_, stream) => (&mut self.streams, stream?.1),
        };
        ring.take(user, at)
    }

    /// Until the first of a user's exchanges is one.
    fn sort_out(&mut self, user: User) {
        let is_stream = |(ends, _): &Known| self.flows.get(ends).is_some_and(Place::is_stream);
        while self.exchanges.next(user).next().is_some_and(is_stream) {
            if let Some(stream) = self.exchanges.pop(user) {
                self.streams.push(user, stream);
            }
        }
    }
}

fn is_there(flows: &HashMap<Ends, Place>, (ends, task): &Known) -> bool {
    flows
        .get(ends)
        .is_some_and(|place| place.task.id() == *task)
}

impl Place {
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
        let counts = self.sender.rest_counts(now)?;
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
struct Flow {
    room: Arc<Room>,
    ends: Ends,
    sender: Sender,
}

impl Flow {
    fn new(room: Arc<Room>, ends: Ends, sender: Sender) -> Self {
        room.counters.udp_opened.add(1);
        Self { room, ends, sender }
    }

    /// Runs until it is over; then its place may be given to another.
    async fn run(self) {
        let (now, address) = (Instant::now(), self.ends.target);
        let _kept = self.room.names.hold(address.ip(), now);
        let failed = match self.room.names.meaning(address, now) {
            Meaning::Target(target) => self.serve(&target).await,
            Meaning::Expired => {
                self.room.counters.expired.add(1);
                Some(Unreachable::Host)
            }
        };
        if let Some(why) = failed {
            self.fail(why);
            sleep(HOLD_OFF).await;
        }
    }

    /// Answers what to tell the program, if it has to be told something.
    async fn serve(&self, target: &Target) -> Option<Unreachable> {
        let terms = self.room.terms();
        let opening = self.room.overlay.open_datagrams(target, &terms);
        let opened = terms.run("opening a datagram flow", opening).await;
        let ended = match opened {
            Ok(datagrams) => datagrams::carry(self, &*datagrams).await,
            Err(error) => Err(error),
        };
        let error = ended.err()?;
        self.room.counters.failed(&error);
        if error.reason() == Some(Reason::NameNotFound) {
            let now = Instant::now();
            self.room.names.fail(self.ends.target.ip(), now);
        }
        Some(unreachable_for(&error))
    }

    fn fail(&self, why: Unreachable) {
        let cause = datagram_of(self.ends, &self.sender.first());
        tell_unreachable(&self.room, &cause, why);
        self.room.counters.udp_dropped.add(self.sender.fail(why));
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
        self.room.counters.udp_down.add(contents.len());
        self.sender.received(batch, Instant::now());
    }

    fn deliver(&self, contents: &[u8], segment: usize, headers: &mut Vec<u8>) {
        let Ends { program, target } = self.ends;
        udp_headers(headers, target, program, contents.len());
        let segment = u16::try_from(segment).ok();
        let packet = Outgoing::udp(headers, [contents, &[]], segment);
        self.room.port.send(packet);
    }
}

impl Program for Flow {
    type Why = Unreachable;

    fn sender(&self) -> &Sender {
        &self.sender
    }

    fn idle(&self) -> Duration {
        let flows = &self.room.config.flows;
        flows.idle(self.ends.target.port(), self.sender.is_stream())
    }

    fn pack_wait(&self) -> Duration {
        self.room.config.flows.pack_wait
    }

    fn sent(&self, octets: usize) {
        self.room.counters.udp_up.add(octets);
    }

    /// QUIC inside finds its own path MTU by this (RFC 8899 §4.6.1), other programs are told by the kernel (EMSGSIZE).
    fn too_large(&self, batch: Batch<'_>, most: usize) {
        self.room.counters.udp_too_big.add(1);
        let headers = if self.ends.target.is_ipv4() { 28 } else { 48 };
        let first = batch.payloads().next().unwrap_or_default();
        let cause = datagram_of(self.ends, first);
        tell_too_big(&self.room, &cause, most + headers);
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

impl Drop for Flow {
    fn drop(&mut self) {
        self.sender.end();
        self.room.counters.udp_closed.add(1);
    }
}

#[cfg(test)]
mod tests;
