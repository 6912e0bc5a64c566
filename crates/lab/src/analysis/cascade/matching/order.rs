//! Finds again which packets of a layer the carriers around it hold, where both come in nearly the same order: datagrams that wait in a queue
//! and leave it one after the other. `matching` uses it for the DATAGRAM frames of a tunnel.

use super::{Bounds, Carrier, Content, Packet};

/// How far a packet may be from its place in the order.
const WINDOW: usize = 128;

/// After so many carriers in a row that hold nothing, the order is sought again further on: more packets than a window were dropped at once
/// before anybody carried them.
const ASTRAY: usize = 16;

/// The order is there again where six of eight carriers find their packets one after the other.
const SURE: (usize, usize) = (6, 8);

/// So many packets share a datagram at most.
const MOST_TOGETHER: usize = 5;

/// What each carrier holds. The head that fits most often in strict order is tried first: sizes that differ by one octet are frequent.
/// Of `packets` those are left out that `taken` names; what is found is added to it.
pub(super) fn assign(
    carriers: &[Carrier],
    (number, packets): (usize, &[Packet]),
    (heads, bounds): (&[usize], Bounds),
    taken: &mut [bool],
) -> Vec<Content> {
    let open = (0..packets.len()).filter(|place| !taken[*place]);
    let open: Vec<usize> = open.collect();
    let view: Vec<&Packet> = open.iter().map(|place| &packets[*place]).collect();
    let found = in_view(carriers, &view, (heads, bounds));
    let back = |content: Content| match open.get(content.packets()) {
        // Packets that share a datagram follow each other.
        Some([first, .., last]) if last - first + 1 != content.count => Content::default(),
        Some([first, ..]) => Content {
            layer: number,
            first: *first,
            ..content
        },
        _ => Content::default(),
    };
    let found: Vec<Content> = found.into_iter().map(back).collect();
    for content in &found {
        taken[content.packets()].fill(true);
    }
    found
}

fn in_view(
    carriers: &[Carrier],
    packets: &[&Packet],
    (heads, bounds): (&[usize], Bounds),
) -> Vec<Content> {
    let mut heads = heads.to_vec();
    heads.sort_by_key(|head| std::cmp::Reverse(in_order(carriers, packets, *head)));
    let (mut open, mut missed) = (Open::new(packets, bounds), 0);
    let find = |(number, carrier): (usize, &Carrier)| {
        open.forget(carrier.time);
        if missed >= ASTRAY {
            missed = 0;
            open.resume(&carriers[number..], &heads);
        }
        let found = heads
            .iter()
            .find_map(|head| open.find(carrier.size.checked_sub(*head)?, carrier.time));
        let content = found.unwrap_or_default();
        missed = if found.is_some() { 0 } else { missed + 1 };
        open.take(content);
        content
    };
    carriers.iter().enumerate().map(find).collect()
}

/// How many carriers find their packet at once, when each looks at the next few only.
fn in_order(carriers: &[Carrier], packets: &[&Packet], head: usize) -> usize {
    let (mut next, mut fits) = (0, 0);
    for carrier in carriers {
        let ahead = packets.iter().skip(next).take(3);
        if let Some(skipped) = ahead
            .map(|packet| packet.size + head)
            .position(|whole| whole == carrier.size)
        {
            next += skipped + 1;
            fits += 1;
        }
    }
    fits
}

/// Packets that no carrier has taken yet.
struct Open<'a> {
    packets: &'a [&'a Packet],
    bounds: Bounds,
    taken: Vec<bool>,
    /// Before it everything is taken or left behind.
    begin: usize,
}

impl<'a> Open<'a> {
    fn new(packets: &'a [&'a Packet], bounds: Bounds) -> Self {
        Self {
            packets,
            bounds,
            taken: vec![false; packets.len()],
            begin: 0,
        }
    }

    /// The first packets in the window that have this size together, at about this time.
    fn find(&self, size: usize, time: f64) -> Option<Content> {
        let end = self.packets.len().min(self.begin + WINDOW);
        (self.begin..end).find_map(|first| {
            let count = self.together(first, size)?;
            let layer = 0;
            let content = Content {
                layer,
                first,
                count,
            };
            self.fits(first, time).then_some(content)
        })
    }

    fn fits(&self, packet: usize, time: f64) -> bool {
        let packet = self.packets.get(packet);
        packet.is_some_and(|packet| self.bounds.hold(packet.time, time))
    }

    /// Leaves behind what is too old for a carrier of this time.
    fn forget(&mut self, time: f64) {
        let old = |packet: &&Packet| packet.time < time + self.bounds.earliest;
        while self.packets.get(self.begin).is_some_and(old) {
            self.begin += 1;
        }
    }

    /// Goes on beyond the window where the next carriers find their packets in order, if there is such a place.
    fn resume(&mut self, carriers: &[Carrier], heads: &[usize]) {
        let (enough, of) = SURE;
        let (Some(carriers), Some(head)) = (carriers.get(..of), heads.first()) else {
            return;
        };
        let Some(time) = carriers.first().map(|carrier| carrier.time) else {
            return;
        };
        let is_here = |from: &usize| {
            let to = self.packets.len().min(*from + 2 * of);
            self.fits(*from, time) && in_order(carriers, &self.packets[*from..to], *head) >= enough
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
    use super::{super::HEADS, *};

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

    /// All at the same time.
    fn found(sizes: &[usize], packets: &[Packet]) -> Vec<Content> {
        let carrier = |size: &usize| Carrier {
            size: *size,
            time: 0.0,
        };
        let carriers: Vec<Carrier> = sizes.iter().map(carrier).collect();
        let bounds = Bounds {
            earliest: -1.0,
            latest: 1.0,
        };
        let mut taken = vec![false; packets.len()];
        assign(&carriers, (0, packets), (&HEADS, bounds), &mut taken)
    }

    #[test]
    fn a_carrier_whose_packet_is_in_no_record_costs_the_others_nothing() {
        let size = |number: usize| 100 + number * 37 % 1009;
        let packets = packets((0..900).map(size));
        let mut carriers: Vec<usize> = packets.iter().map(|packet| packet.size + 2).collect();
        // Its size is that of a packet at the end of the window.
        carriers.insert(5, size(WINDOW) + 2);
        let found = found(&carriers, &packets);
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
        let found = found(&carriers, &packets);
        assert!(empty(&found) <= ASTRAY + 1, "{}", empty(&found));
        assert_eq!(found.last().map(|content| content.first), Some(899));
    }
}
