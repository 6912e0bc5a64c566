//! Finds what is inside what: which packets a UDP payload or a DATAGRAM frame carries, by order and size.
//! Packets of a layer come in nearly the order in which the layer around it carries them, and their sizes differ by a known head: none in a UDP
//! payload, a quarter stream id and a context id in a DATAGRAM frame (RFC 9298 §5). In a handshake several packets share a datagram.

use super::{Capture, Layers, Packet, Way, log::Frame};

/// How far a packet may be from its place in the order.
const WINDOW: usize = 128;

/// After so many carriers in a row that hold nothing, the order is sought again further on: more packets than a window were dropped at once
/// before anybody carried them.
const ASTRAY: usize = 16;

/// The order is there again where six of eight carriers find their packets one after the other.
const SURE: (usize, usize) = (6, 8);

/// So many packets share a datagram at most.
const MOST_TOGETHER: usize = 5;

/// Heads in a DATAGRAM frame: a quarter stream id of 1, 2, 4 or 8 octets, and the context id 0.
const HEADS: [usize; 4] = [2, 3, 5, 9];

/// What a carrier carries: so many packets of the layer within it, from this place on; none if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) first: usize,
    pub(super) count: usize,
}

/// All carriers of one direction.
#[derive(Debug)]
pub(super) struct Matched {
    /// For each layer, outermost first, what each carrier around it holds: UDP packets for hop 1, the DATAGRAM frames of hop k for hop k + 1.
    pub(super) layers: Vec<Vec<Content>>,
}

impl Content {
    pub(super) fn packets(self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }
}

impl Matched {
    pub(super) fn new(capture: &Capture, layers: &Layers, way: Way) -> Self {
        let mut sizes: Vec<usize> = capture.udp(way).map(|(payload, _)| payload).collect();
        let mut matched = Vec::new();
        for (number, layer) in layers.0.iter().enumerate() {
            let packets = layer.packets(way);
            let heads = if number == 0 { [0].as_slice() } else { &HEADS };
            matched.push(assign(&sizes, packets, heads));
            sizes = packets.iter().flat_map(datagrams).collect();
        }
        Self { layers: matched }
    }
}

/// Payload sizes of a packet's DATAGRAM frames, in order.
fn datagrams(packet: &Packet) -> impl Iterator<Item = usize> {
    packet.frames.iter().filter_map(|frame| match frame {
        Frame::Datagram(_, payload) => Some(*payload),
        _ => None,
    })
}

/// What each carrier holds. The head that fits most often in strict order is tried first: sizes that differ by one octet are frequent.
pub(super) fn assign(carriers: &[usize], packets: &[Packet], heads: &[usize]) -> Vec<Content> {
    let mut heads = heads.to_vec();
    heads.sort_by_key(|head| std::cmp::Reverse(in_order(carriers, packets, *head)));
    let (mut open, mut missed) = (Open::new(packets), 0);
    let find = |(number, size): (usize, &usize)| {
        if missed >= ASTRAY {
            missed = 0;
            open.resume(&carriers[number..], &heads);
        }
        let found = heads
            .iter()
            .find_map(|head| open.find(size.checked_sub(*head)?));
        let content = found.unwrap_or_default();
        missed = if found.is_some() { 0 } else { missed + 1 };
        open.take(content);
        content
    };
    carriers.iter().enumerate().map(find).collect()
}

/// How many carriers find their packet at once, when each looks at the next few only.
fn in_order(carriers: &[usize], packets: &[Packet], head: usize) -> usize {
    let (mut next, mut fits) = (0, 0);
    for size in carriers {
        let ahead = packets.iter().skip(next).take(3);
        if let Some(skipped) = ahead
            .map(|packet| packet.size + head)
            .position(|whole| whole == *size)
        {
            next += skipped + 1;
            fits += 1;
        }
    }
    fits
}

/// Packets that no carrier has taken yet.
struct Open<'a> {
    packets: &'a [Packet],
    taken: Vec<bool>,
    /// Before it everything is taken or left behind.
    begin: usize,
}

impl<'a> Open<'a> {
    fn new(packets: &'a [Packet]) -> Self {
        Self {
            packets,
            taken: vec![false; packets.len()],
            begin: 0,
        }
    }

    /// The first packets in the window that have this size together.
    fn find(&self, size: usize) -> Option<Content> {
        let end = self.packets.len().min(self.begin + WINDOW);
        (self.begin..end).find_map(|first| {
            let count = self.together(first, size)?;
            Some(Content { first, count })
        })
    }

    /// Goes on beyond the window where the next carriers find their packets in order, if there is such a place.
    fn resume(&mut self, carriers: &[usize], heads: &[usize]) {
        let (enough, of) = SURE;
        let (Some(carriers), Some(head)) = (carriers.get(..of), heads.first()) else {
            return;
        };
        let is_here = |from: &usize| {
            let to = self.packets.len().min(*from + 2 * of);
            in_order(carriers, &self.packets[*from..to], *head) >= enough
        };
        let beyond = self.begin + WINDOW..self.packets.len();
        if let Some(from) = beyond.into_iter().find(is_here) {
            self.begin = from;
        }
    }

    /// How many packets from here on have this size together; a 1-RTT packet is the last of its datagram (RFC 9000 §12.2).
    fn together(&self, first: usize, size: usize) -> Option<usize> {
        let mut sum = 0;
        for (i, packet) in self
            .packets
            .iter()
            .skip(first)
            .take(MOST_TOGETHER)
            .enumerate()
        {
            if self.taken[first + i] {
                return None;
            }
            sum += packet.size;
            if sum == size {
                return Some(i + 1);
            }
            if sum > size || packet.data {
                return None;
            }
        }
        None
    }

    fn take(&mut self, content: Content) {
        self.taken[content.packets()].fill(true);
        while self.taken.get(self.begin) == Some(&true) || self.is_left_behind() {
            self.begin += 1;
        }
    }

    /// Whether so many later packets have been taken that the first open one will not come any more. One of them proves nothing: a carrier
    /// whose own packet is in no record may have taken another of its size from far ahead.
    fn is_left_behind(&self) -> bool {
        let window = self.taken.iter().skip(self.begin).take(WINDOW);
        window.filter(|taken| **taken).count() >= WINDOW / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(sizes: impl Iterator<Item = usize>) -> Vec<Packet> {
        let packet = |size| Packet {
            size,
            data: true,
            ..Packet::default()
        };
        sizes.map(packet).collect()
    }

    /// How many of them hold nothing that is known.
    fn empty(found: &[Content]) -> usize {
        found.iter().filter(|content| content.count == 0).count()
    }

    #[test]
    fn a_carrier_whose_packet_is_in_no_record_costs_the_others_nothing() {
        let size = |number: usize| 100 + number * 37 % 1009;
        let packets = packets((0..900).map(size));
        let mut carriers: Vec<usize> = packets.iter().map(|packet| packet.size + 2).collect();
        // Its size is that of a packet at the end of the window.
        carriers.insert(5, size(WINDOW) + 2);
        let found = assign(&carriers, &packets, &HEADS);
        assert!(empty(&found) <= 2, "{}", empty(&found));
        assert_eq!(found.last().map(|content| content.first), Some(899));
    }

    #[test]
    fn the_order_is_found_again_after_more_packets_than_a_window_were_dropped_at_once() {
        // Further apart than heads are.
        let size = |number: usize| 100 + number * 37 % 1009 * 20;
        let packets = packets((0..900).map(size));
        let carried = (0..200).chain(500..900);
        let carriers: Vec<usize> = carried.map(|number| size(number) + 3).collect();
        let found = assign(&carriers, &packets, &HEADS);
        assert!(empty(&found) <= ASTRAY + 1, "{}", empty(&found));
        assert_eq!(found.last().map(|content| content.first), Some(899));
    }
}
