//! UDP flows, one for each pair of source and target: the target is named once, when the flow is opened; from then on payloads travel,
//! each as long as it was. Source port and checksum stay here. Paper 003 §5.1.
//! The router fills the table.

mod flow;

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use hoplite_overlay::Batch;
use hoplite_wire::{Host, ip::icmp::Unreachable};
use tokio::{
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use self::flow::Flow;
use super::{
    Ends, Room,
    icmp::{datagram_of, tell_unreachable},
};
use crate::{
    budget::Account,
    datagrams::{self, FLOOR, Pushed},
};

/// How many flows of each kind are looked at when one has to make room.
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
    /// The keys of `flows`, each in one of them once: who is looked at next when one has to make room. What proves to be a stream
    /// is found among the exchanges when it comes first there.
    exchanges: VecDeque<Ends>,
    streams: VecDeque<Ends>,
    tasks: JoinSet<()>,
}

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
            exchanges: VecDeque::new(),
            streams: VecDeque::new(),
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
            Some(place) if !place.task.is_finished() => Some(&place.sender),
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
        while self.tasks.try_join_next().is_some() {}
        let new = !self.flows.contains_key(&ends);
        if new && self.flows.len() >= self.room.config.flows.udp {
            self.make_room(now);
        }
        let account = match self.account(ends) {
            Some(account) => account,
            None => {
                self.make_room(now);
                self.account(ends)?
            }
        };
        if !self.flows.contains_key(&ends) {
            self.exchanges.push_back(ends);
        }
        let sender = Sender::new(account);
        let flow = Flow::new(Arc::clone(&self.room), ends, sender.clone());
        let task = self.tasks.spawn(flow.run());
        let place = self.flows.entry(ends);
        let place = place.insert_entry(Place { sender, task });
        Some(&place.into_mut().sender)
    }

    fn account(&self, ends: Ends) -> Option<Account> {
        let target = Host::ip(ends.target.ip());
        let memory = &self.room.udp_memory;
        memory.open(ends.program.ip(), target, FLOOR)
    }

    /// Of the next few flows the one goes that is missed least.
    fn make_room(&mut self, now: Instant) {
        let Some(ends) = self.next_to_go(now) else {
            return;
        };
        if let Some(place) = self.flows.remove(&ends)
            && !place.task.is_finished()
        {
            self.room.counters.udp_evicted.add(1);
            place.sender.end();
            place.task.abort();
        }
    }

    /// Takes it out of its ring; those that stood before it are looked at again last.
    fn next_to_go(&mut self, now: Instant) -> Option<Ends> {
        self.sort_out();
        let worth = |ends: &Ends| self.flows.get(ends).and_then(|place| place.worth(now));
        let least = |ring: &VecDeque<Ends>| {
            let next = ring.iter().take(CANDIDATES).map(worth).enumerate();
            next.map(|(at, worth)| (worth, at)).min()
        };
        let (ring, at) = match (least(&self.exchanges), least(&self.streams)) {
            (Some((one, at)), Some((other, _))) if one <= other => (&mut self.exchanges, at),
            (Some((_, at)), None) => (&mut self.exchanges, at),
            (_, stream) => (&mut self.streams, stream?.1),
        };
        ring.rotate_left(at);
        ring.pop_front()
    }

    /// Until the first of the exchanges is one.
    fn sort_out(&mut self) {
        let is_stream = |ends: &Ends| self.flows.get(ends).is_some_and(Place::is_stream);
        while let Some(stream) = self.exchanges.pop_front_if(|ends| is_stream(ends)) {
            self.streams.push_back(stream);
        }
    }
}

impl Place {
    fn is_stream(&self) -> bool {
        self.sender.is_stream()
    }

    /// How much it is missed: not at all when it is over, little when it was an exchange that is done, else the more the later it was used
    /// and the fewer flows its source and its target have.
    fn worth(&self, now: Instant) -> Option<(bool, Reverse<(u128, Duration)>)> {
        let used = self.sender.used();
        let lasts = self.is_stream() || now.saturating_duration_since(used) < ANSWERED;
        let counts = self.sender.rest_counts(now)?;
        (!self.task.is_finished()).then_some((lasts, Reverse(counts)))
    }
}

#[cfg(test)]
mod tests;
