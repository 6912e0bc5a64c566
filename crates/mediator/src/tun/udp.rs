//! UDP flows, one for each pair of source and target: the target is named once, when the flow is opened; from then on payloads travel,
//! each as long as it was. Source port and checksum stay here. Paper 003 §5.1.
//! The router fills the table.

mod flow;
mod sender;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use hoplite_overlay::Batch;
use tokio::{
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use self::{
    flow::Flow,
    sender::{Pushed, Sender},
};
use super::{
    Ends, Room,
    icmp::{datagram_of, tell_unreachable},
};

/// How many flows are looked at when one has to make room.
const CANDIDATES: usize = 8;

/// The flows.
#[derive(Debug)]
pub(crate) struct Table {
    room: Arc<Room>,
    /// At most `flows.udp`.
    flows: HashMap<Ends, Place>,
    /// The keys of `flows`, each once: who is looked at next when one has to make room.
    ring: VecDeque<Ends>,
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
            ring: VecDeque::new(),
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
            Some(place) if !place.task.is_finished() => &place.sender,
            _ => self.open(ends),
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

    fn open(&mut self, ends: Ends) -> &Sender {
        while self.tasks.try_join_next().is_some() {}
        if !self.flows.contains_key(&ends) {
            self.make_room();
            self.ring.push_back(ends);
        }
        let sender = Sender::default();
        let flow = Flow::new(Arc::clone(&self.room), ends, sender.clone());
        let task = self.tasks.spawn(flow.run());
        let place = self.flows.entry(ends);
        let place = place.insert_entry(Place { sender, task });
        &place.into_mut().sender
    }

    /// Keeps the table within its bound: of the next few flows the one used least lately goes, those that are over first.
    fn make_room(&mut self) {
        while self.flows.len() >= self.room.config.flows.udp {
            let next = self.ring.iter().take(CANDIDATES).enumerate();
            let last = next.min_by_key(|(_, ends)| self.flows.get(ends).and_then(Place::used));
            let Some(ends) = last.map(|(at, _)| at).and_then(|at| self.ring.remove(at)) else {
                return;
            };
            let looked_at = CANDIDATES.min(self.ring.len() + 1) - 1;
            self.ring.rotate_left(looked_at.min(self.ring.len()));
            if let Some(place) = self.flows.remove(&ends)
                && !place.task.is_finished()
            {
                self.room.counters.udp_evicted.add(1);
                place.task.abort();
            }
        }
    }
}

impl Place {
    /// When it was used last; `None` when it is over.
    fn used(&self) -> Option<Instant> {
        (!self.task.is_finished()).then(|| self.sender.used())
    }
}

#[cfg(test)]
mod tests;
