//! Packets that are neither TCP nor UDP: ICMP echo first of all. Each protocol and target is a flow of its own through the overlay
//! (CONNECT-IP), so that nothing ties two of them together. Paper 003 §5.3: "for each IP flow a separate channel".
//! The router fills the table; a name behind a temporary address travels unresolved, as with every flow.

mod flow;
mod rewrite;

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use bytes::Bytes;
use hoplite_wire::ip::{self, Packet, icmp::Unreachable};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use self::flow::Flow;
use super::{Room, icmp::tell_unreachable};

/// Packets that wait for a flow; the next ones are dropped and counted.
const WAITING: usize = 32;
/// IGMP and PIM: they speak of groups on this link.
const LINK_ONLY: [u8; 2] = [2, 103];

/// What packets of one flow have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) protocol: u8,
    pub(super) program: IpAddr,
    pub(super) target: IpAddr,
}

/// The flows.
#[derive(Debug)]
pub(crate) struct Table {
    room: Arc<Room>,
    /// At most `flows.packets`.
    flows: HashMap<Key, Place>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Place {
    packets: mpsc::Sender<Bytes>,
    used: Instant,
    task: AbortHandle,
}

impl Table {
    pub(crate) fn new(room: Arc<Room>) -> Self {
        Self {
            room,
            flows: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// A whole packet of a program; `octets` begin with it.
    pub(crate) fn received(&mut self, packet: &Packet<'_>, octets: &Bytes, now: Instant) {
        if !is_carried(packet) {
            return self.room.counters.other_dropped.add(1);
        }
        let key = Key {
            protocol: packet.protocol,
            program: packet.source,
            target: packet.destination,
        };
        let len = packet.header_len + packet.payload.len();
        let place = self.place(key, now);
        place.used = now;
        if let Err(TrySendError::Full(octets)) = place.packets.try_send(octets.slice(..len)) {
            drop(octets);
            self.room.counters.other_dropped.add(1);
        }
    }

    fn place(&mut self, key: Key, now: Instant) -> &mut Place {
        while self.tasks.try_join_next().is_some() {}
        let is_over = |place: &Place| place.packets.is_closed();
        if self.flows.get(&key).is_some_and(is_over) {
            self.flows.remove(&key);
        }
        if !self.flows.contains_key(&key) {
            self.make_room();
        }
        let Self { room, flows, tasks } = self;
        flows.entry(key).or_insert_with(|| {
            let (packets, waiting) = mpsc::channel(WAITING);
            let flow = Flow::new(Arc::clone(room), key);
            Place {
                packets,
                used: now,
                task: tasks.spawn(flow.run(waiting)),
            }
        })
    }

    /// Those that are over go, then the one that was used longest ago.
    fn make_room(&mut self) {
        let bound = self.room.config.flows.packets;
        if self.flows.len() < bound {
            return;
        }
        self.flows.retain(|_, place| !place.packets.is_closed());
        if self.flows.len() < bound {
            return;
        }
        let oldest = self.flows.iter().min_by_key(|(_, place)| place.used);
        if let Some(place) = oldest
            .map(|(key, _)| *key)
            .and_then(|key| self.flows.remove(&key))
        {
            place.task.abort();
        }
    }
}

/// Of ICMP only echo requests: what a program's system says of packets that we gave it concerns nobody else.
/// Fragments are nobody's: they could not be put together again.
fn is_carried(packet: &Packet<'_>) -> bool {
    match packet.protocol {
        _ if packet.fragment => false,
        ip::ICMP | ip::ICMPV6 => ip::icmp::echo(packet).is_some_and(|echo| !echo.reply),
        protocol => !LINK_ONLY.contains(&protocol),
    }
}

/// Tells the program why a packet of its does not arrive.
pub(super) fn refuse(room: &Room, octets: &[u8], why: Unreachable) {
    room.counters.other_dropped.add(1);
    tell_unreachable(room, octets, why);
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key(protocol {})", self.protocol)
    }
}

#[cfg(test)]
mod tests;
