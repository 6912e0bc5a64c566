//! Finds what is inside what: which packets a UDP payload or a DATAGRAM frame carries, by size, order and time.
//!
//! A UDP payload on the link is a packet of hop 1's connection, or, where hop 1 forwards (draft-ietf-masque-quic-proxy), a packet of a
//! connection further in: the same packet with another connection id and scrambled, so that its size differs by what the ids differ, and it
//! is in no record of hop 1. In the same way a DATAGRAM frame of hop k carries a packet of hop k + 1, or of one further in where hop k + 1
//! forwards. Forwarded and tunnelled packets come mixed: long headers and the first packets of a connection are always tunnelled.
//!
//! - What stands on the link was written down by the client within milliseconds, or when it got a processor: the packet of the right size that is nearest in time
//!   (`nearest`), of any connection.
//! - DATAGRAM frames may wait for a tunnel's congestion control: the next packet of the right size in order (`order`), and for what stays
//!   unknown the nearest one of the connections further in.
//!
//! In a DATAGRAM frame sizes differ by a known head, a quarter stream id and a context id (RFC 9298 §5). In a handshake several packets share
//! a datagram. The client's processes and the capture have the same clock.

mod nearest;
mod order;

use super::{Capture, Layers, Packet, Way, log::Frame};

/// Heads in a DATAGRAM frame: a quarter stream id of 1, 2, 4 or 8 octets, and the context id 0.
const HEADS: [usize; 4] = [2, 3, 5, 9];

/// Seconds between a packet's record and its sight on the link, at most: as long as a client may wait for a busy processor.
const AT_ONCE: f64 = 1.0;

/// Seconds that a datagram waits for its tunnel, at most.
const QUEUED: f64 = 2.0;

/// Seconds by which clocks of threads that wait for a processor may put things in the wrong order.
const SLACK: f64 = 0.02;

/// What a carrier carries: so many packets of a layer, from this place on; none if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// Its place among all layers: 0 is hop 1's.
    pub(super) layer: usize,
    pub(super) first: usize,
    pub(super) count: usize,
}

/// A UDP payload or a DATAGRAM frame's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Carrier {
    pub(super) size: usize,
    /// Seconds since 1970.
    pub(super) time: f64,
}

/// How much earlier (below 0) or later than its carrier a packet may have been written down, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bounds {
    earliest: f64,
    latest: f64,
}

impl Bounds {
    /// Of a way in which things may wait so long between the record and the carrier.
    fn of(way: Way, wait: f64) -> Self {
        match way {
            Way::Out => Self {
                earliest: -wait,
                latest: SLACK,
            },
            Way::In => Self {
                earliest: -SLACK,
                latest: wait,
            },
        }
    }

    fn hold(self, packet: f64, carrier: f64) -> bool {
        (self.earliest..=self.latest).contains(&(packet - carrier))
    }
}

/// All carriers of one direction.
#[derive(Debug)]
pub(super) struct Matched {
    /// The UDP payloads of the link, then the DATAGRAM frames of hop 1, of hop 2 and so on: what each holds.
    pub(super) layers: Vec<Vec<Content>>,
}

impl Content {
    pub(super) fn packets(self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }
}

impl Matched {
    pub(super) fn new(capture: &Capture, layers: &Layers, way: Way) -> Self {
        let packets: Vec<&[Packet]> = layers.0.iter().map(|layer| layer.packets(way)).collect();
        let carrier = |(size, time)| Carrier { size, time };
        let mut carriers: Vec<Carrier> = capture.udp(way).map(carrier).collect();
        let taken = packets.iter().map(|packets| vec![false; packets.len()]);
        let mut taken: Vec<Vec<bool>> = taken.collect();
        let (on_link, in_tunnel) = (Bounds::of(way, AT_ONCE), Bounds::of(way, QUEUED));
        let mut matched = Vec::new();
        for (number, of) in packets.iter().enumerate() {
            let mut found = vec![Content::default(); carriers.len()];
            if number > 0 {
                let heads = (HEADS.as_slice(), in_tunnel);
                found = order::assign(&carriers, (number, of), heads, &mut taken[number]);
            }
            let bounds = if number > 0 { in_tunnel } else { on_link };
            nearest::fill(
                &carriers,
                &packets,
                (number, bounds),
                (&mut taken, &mut found),
            );
            matched.push(found);
            carriers = of.iter().flat_map(datagrams).collect();
        }
        Self { layers: matched }
    }
}

/// A packet's DATAGRAM frames, in order.
fn datagrams(packet: &Packet) -> impl Iterator<Item = Carrier> {
    let time = packet.time;
    packet.frames.iter().filter_map(move |frame| match frame {
        Frame::Datagram(_, payload) => Some(Carrier {
            size: *payload,
            time,
        }),
        _ => None,
    })
}
