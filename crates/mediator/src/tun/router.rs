//! Takes each packet of a program to whoever carries it: a TCP or UDP flow, the resolver, whole packets; or drops and counts it.
//! [`super::Transparent`] feeds it in batches. It keeps no clock: `now` comes with each call.

use std::{net::SocketAddr, sync::Arc};

use hoplite_wire::ip::{self, Malformed, Packet};
use tokio::time::Instant;

use super::{
    Counters, Ends, Room,
    device::Incoming,
    dns, icmp, packets,
    policy::{Verdict, Why, judge},
    tcp, udp,
};

/// The tables of flows.
#[derive(Debug)]
pub(crate) struct Router {
    room: Arc<Room>,
    tcp: tcp::Table,
    udp: udp::Table,
    packets: packets::Table,
}

impl Router {
    pub(crate) fn new(room: &Arc<Room>) -> Self {
        Self {
            room: Arc::clone(room),
            tcp: tcp::Table::new(Arc::clone(room)),
            udp: udp::Table::new(Arc::clone(room)),
            packets: packets::Table::new(Arc::clone(room)),
        }
    }

    /// Takes one packet.
    pub(crate) fn take(&mut self, incoming: &Incoming, now: Instant) {
        if self.carry(incoming, now).is_err() {
            self.room.counters.malformed.add(1);
        }
    }

    /// After a batch of packets.
    pub(crate) fn flush(&mut self, now: Instant) {
        self.tcp.flush(now);
    }

    fn carry(&mut self, incoming: &Incoming, now: Instant) -> Result<(), Malformed> {
        let packet = ip::parse(&incoming.octets)?;
        match judge(&packet, &self.room.config.device) {
            Verdict::Drop(why) => {
                why.counter(&self.room.counters).add(1);
                if why == Why::Foreign {
                    self.turn_away(&packet, incoming, now)?;
                }
            }
            _ if !incoming.checked && !packet.fragment && !packet.checksum_is_right() => {
                self.room.counters.bad_checksum.add(1);
            }
            Verdict::Flow if packet.protocol == ip::TCP => self.tcp(&packet, incoming, now)?,
            Verdict::Flow => self.udp(&packet, incoming, now)?,
            Verdict::Whole => self.packets.received(&packet, &incoming.octets, now),
        }
        Ok(())
    }

    /// Tells a program that is bound to another address of this device, most often since before the TUN device was there, that this
    /// leads nowhere: what it has open is reset, what it begins is refused.
    fn turn_away(
        &mut self,
        packet: &Packet<'_>,
        incoming: &Incoming,
        now: Instant,
    ) -> Result<(), Malformed> {
        if packet.protocol == ip::TCP && !packet.fragment {
            let segment = ip::tcp::parse(packet.payload)?;
            if !segment.flags.contains(ip::tcp::Flags::SYN) {
                return self.tcp(packet, incoming, now);
            }
        }
        let why = ip::icmp::Unreachable::Prohibited;
        icmp::tell_unreachable(&self.room, &incoming.octets, why);
        Ok(())
    }

    fn tcp(
        &mut self,
        packet: &Packet<'_>,
        incoming: &Incoming,
        now: Instant,
    ) -> Result<(), Malformed> {
        let segment = ip::tcp::parse(packet.payload)?;
        let ends = ends(packet, segment.source, segment.destination)?;
        self.tcp
            .received(ends, packet, &segment, &incoming.octets, now);
        Ok(())
    }

    fn udp(
        &mut self,
        packet: &Packet<'_>,
        incoming: &Incoming,
        now: Instant,
    ) -> Result<(), Malformed> {
        let datagram = ip::udp::parse(packet.payload)?;
        let ends = ends(packet, datagram.source, datagram.destination)?;
        let payload = datagram.payload;
        let segment = incoming.segment.map_or(payload.len(), usize::from);
        if self.room.config.dns.resolves_at(ends.target) {
            dns::answer(&self.room, ends, payload, segment);
        } else {
            self.udp.received(ends, payload, segment, now);
        }
        Ok(())
    }
}

/// Port 0 belongs to nobody (RFC 6335 §6).
fn ends(packet: &Packet<'_>, source: u16, destination: u16) -> Result<Ends, Malformed> {
    if source == 0 || destination == 0 {
        return Err(Malformed::Length);
    }
    Ok(Ends {
        program: SocketAddr::new(packet.source, source),
        target: SocketAddr::new(packet.destination, destination),
    })
}

impl Why {
    fn counter(self, counters: &Counters) -> &crate::counters::Counter {
        match self {
            Self::Foreign => &counters.foreign,
            Self::Unroutable => &counters.unroutable,
            Self::Fragment => &counters.fragments,
            Self::Options => &counters.options,
        }
    }
}
