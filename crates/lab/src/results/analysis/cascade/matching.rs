//! Finds what is inside what: which packets a UDP payload or a DATAGRAM frame carries, by size, order and time.
//!
//! A UDP payload on the link is a packet of hop 1's connection, or, where hop 1 forwards (draft-ietf-masque-quic-proxy), a packet of a
//! connection further in: the same packet with another connection id and scrambled, so that its size differs by what the ids differ, and it
//! is in no record of hop 1. In the same way a DATAGRAM frame of hop k carries a packet of hop k + 1, or of one further in where hop k + 1
//! forwards. Forwarded and tunnelled packets come mixed: long headers and the first packets of a connection are always tunnelled.
//!
//! - What stands on the link was written down by the client within milliseconds, or when it got a processor: the packet of the right size that is nearest in time
//!   of any connection.
//! - DATAGRAM frames may wait for a tunnel's congestion control: the next packet of the right size in order, and for what stays
//!   unknown the nearest one of the connections further in.
//!
//! In a DATAGRAM frame sizes differ by a known head, a quarter stream id and a context id (RFC 9298 §5). In a handshake several packets share
//! a datagram. The client's processes and the capture have the same clock.

use super::{Capture, Layers, Packet, PacketDirection, qlog::Frame};

/// Heads in a DATAGRAM frame: a quarter stream id of 1, 2, 4 or 8 bytes, and the context id 0.
const HEADS: [usize; 4] = [2, 3, 5, 9];

/// Seconds between a packet's record and its sight on the link, at most: as long as a client may wait for a busy processor.
const AT_ONCE: f64 = 1.0;

/// Seconds that a datagram waits for its tunnel, at most.
const QUEUED: f64 = 2.0;

/// Seconds by which clocks of threads that wait for a processor may put things in the wrong order.
const SLACK: f64 = 0.02;

/// What a carrier carries: this many packets of a layer, from this place on; none if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// Its place among all layers: 0 is hop 1's.
    pub(super) layer: usize,
    pub(super) first: usize,
    pub(super) count: usize,
}

/// A UDP payload or a DATAGRAM frame's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Envelope {
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
    fn of(way: PacketDirection, wait: f64) -> Self {
        match way {
            PacketDirection::Out => Self {
                earliest: -wait,
                latest: SLACK,
            },
            PacketDirection::In => Self {
                earliest: -SLACK,
                latest: wait,
            },
        }
    }

    fn hold(self, packet: f64, envelope: f64) -> bool {
        (self.earliest..=self.latest).contains(&(packet - envelope))
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
    pub(super) fn new(capture: &Capture, layers: &Layers, way: PacketDirection) -> Self {
        let packets: Vec<&[Packet]> = layers.0.iter().map(|layer| layer.packets(way)).collect();
        let envelope = |(size, time)| Envelope { size, time };
        let mut carriers: Vec<Envelope> = capture.udp(way).map(envelope).collect();
        let taken = packets.iter().map(|packets| vec![false; packets.len()]);
        let mut taken: Vec<Vec<bool>> = taken.collect();
        let (on_link, in_tunnel) = (Bounds::of(way, AT_ONCE), Bounds::of(way, QUEUED));
        let mut matched = Vec::new();
        for (number, of) in packets.iter().enumerate() {
            let mut found = vec![Content::default(); carriers.len()];
            if number > 0 {
                let heads = (HEADS.as_slice(), in_tunnel);
                found = assign(&carriers, (number, of), heads, &mut taken[number]);
            }
            let bounds = if number > 0 { in_tunnel } else { on_link };
            fill(
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
fn datagrams(packet: &Packet) -> impl Iterator<Item = Envelope> {
    let time = packet.time;
    packet.frames.iter().filter_map(move |frame| match frame {
        Frame::Datagram(_, payload) => Some(Envelope {
            size: *payload,
            time,
        }),
        _ => None,
    })
}

// Finds the packet of the right size that was written down at nearly the time at which a carrier was seen, in any connection that may be
// inside it: what stands on the link, where nothing waits, and what is forwarded within a tunnel.

/// By how many bytes a connection id may be shorter or longer than the one that a relay gave for it. We allow less than QUIC does: a
/// tunnel's own head and tag must not look like it.
const IDS: isize = 12;

/// Seconds by which a packet of a connection further in must be nearer than one of the outermost: that one is written down last before it
/// is sent and first after it came, and small acknowledgements have the same sizes in all.
const RATHER: f64 = 0.001;

/// Carriers that are asked what they have more than packets.
const SAMPLE: usize = 300;

/// Of this many carriers one must be unknown, or nothing is forwarded: else a few whose content is in no record would be explained away.
const UNKNOWN: usize = 50;

/// Of this many unknown carriers at least one must fit a layer's packets, or it is chance.
const CHANCE: usize = 200;

/// What is so near in seconds belongs together, unless the machine is very busy.
const SURELY: f64 = 0.01;

/// This many packets share a datagram at most.
const MOST_TOGETHER: usize = 5;

/// Fills in what carriers hold of which nothing is known yet. At layer 0 that is a packet of layer 0 or of one further in, else only of one
/// further in.
fn fill(
    carriers: &[Envelope],
    packets: &[&[Packet]],
    (number, bounds): (usize, Bounds),
    (taken, found): (&mut [Vec<bool>], &mut [Content]),
) {
    let mut sources: Vec<Source<'_>> = (number..packets.len())
        .filter_map(|layer| {
            let packets = packets.get(layer)?;
            let more = if layer == number { Some(0) } else { None };
            let source = Source {
                layer,
                inside: layer - number,
                packets,
                more,
                bounds,
            };
            (layer > number || number == 0).then_some(source)
        })
        .collect();
    let outer = sources.first().filter(|source| source.inside == 0);
    let elsewhere = |envelope: &Envelope| {
        outer.is_none_or(|outer| outer.best(envelope, &taken[outer.layer]).is_none())
    };
    let both = carriers.iter().zip(found.iter());
    let unknown = both.filter(|(envelope, content)| content.count == 0 && elsewhere(envelope));
    let unknown: Vec<Envelope> = unknown.map(|(envelope, _)| *envelope).collect();
    if unknown.len() * UNKNOWN >= carriers.len() {
        let heads = if number == 0 { [0].as_slice() } else { &HEADS };
        let sample: Vec<Envelope> = spread(&unknown).collect();
        for source in sources.iter_mut().filter(|source| source.inside > 0) {
            source.learn(&sample, heads, &taken[source.layer]);
        }
    }
    for (envelope, content) in carriers.iter().zip(found.iter_mut()) {
        if content.count > 0 {
            continue;
        }
        let of_each = sources
            .iter()
            .filter_map(|source| source.best(envelope, &taken[source.layer]));
        let best = of_each.min_by(|one, other| one.0.total_cmp(&other.0));
        if let Some((_, best)) = best {
            taken[best.layer][best.packets()].fill(true);
            *content = best;
        }
    }
}

/// At most `SAMPLE` of them, from all over.
fn spread(carriers: &[Envelope]) -> impl Iterator<Item = Envelope> {
    let step = carriers.len().div_ceil(SAMPLE).max(1);
    carriers.iter().step_by(step).copied()
}

/// A layer whose packets may be in the carriers.
struct Source<'a> {
    layer: usize,
    /// How far in it is.
    inside: usize,
    packets: &'a [Packet],
    /// Bytes that a carrier has more than the packet; `None`: nothing of this layer is in these carriers.
    more: Option<isize>,
    bounds: Bounds,
}

impl Source<'_> {
    /// Learns what carriers of which nothing else is known have more than these packets: what fits most of them.
    fn learn(&mut self, unknown: &[Envelope], heads: &[usize], taken: &[bool]) {
        let most = heads.iter().max().copied().unwrap_or(0).cast_signed();
        let bounds = self.bounds;
        self.bounds = Bounds {
            earliest: bounds.earliest.max(-SURELY),
            latest: bounds.latest.min(SURELY),
        };
        let mut fits: Vec<(usize, isize)> = Vec::new();
        for more in -IDS..=IDS + most {
            self.more = Some(more);
            let held = |envelope: &&Envelope| self.best(envelope, taken).is_some();
            fits.push((unknown.iter().filter(held).count(), more));
        }
        self.bounds = bounds;
        // The same length is the rule. Small packets of all layers have nearly the same sizes, so that another must fit many times more.
        let usual = heads.first().copied().unwrap_or(0).cast_signed();
        let weight = |count: usize, more: isize| if more == usual { 4 * count } else { count };
        let best = fits
            .into_iter()
            .max_by_key(|(count, more)| (weight(*count, *more), -(more - usual).abs()));
        let worth = |(count, _): &(usize, isize)| *count > 0 && count * CHANCE >= unknown.len();
        self.more = best.filter(worth).map(|(_, more)| more);
    }

    /// The nearest packets that a carrier may hold, and how near they are, less being better.
    fn best(&self, envelope: &Envelope, taken: &[bool]) -> Option<(f64, Content)> {
        let size = envelope.size.checked_add_signed(-self.more?)?;
        let begin = envelope.time + self.bounds.earliest;
        let from = self.packets.partition_point(|packet| packet.time < begin);
        let later = self.packets.get(from..)?;
        let until = envelope.time + self.bounds.latest;
        let near = later.iter().take_while(|packet| packet.time <= until);
        let places = (from..).zip(near).filter_map(|(first, packet)| {
            let count = self.together(first, size, taken)?;
            let rather = if self.inside > 0 { RATHER } else { 0.0 };
            let away = (packet.time - envelope.time).abs() + rather;
            let layer = self.layer;
            let content = Content {
                layer,
                first,
                count,
            };
            Some((away, content))
        });
        places.min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// How many packets from here on have this size together; a 1-RTT packet is the last of its datagram (RFC 9000 §12.2), and only a 1-RTT
    /// packet alone is forwarded.
    fn together(&self, first: usize, size: usize, taken: &[bool]) -> Option<usize> {
        let most = if self.inside == 0 { MOST_TOGETHER } else { 1 };
        let mut sum = 0;
        for (i, packet) in self.packets.iter().skip(first).take(most).enumerate() {
            if taken[first + i] || (self.inside > 0 && !packet.data) {
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
}

// Finds again which packets of a layer the carriers around it hold, where both come in nearly the same order: datagrams that wait in a queue
// and leave it one after the other, as the DATAGRAM frames of a tunnel.

/// How far a packet may be from its place in the order.
const WINDOW: usize = 128;

/// After this many carriers in a row that hold nothing, the order is sought again further on: more packets than a window were dropped at once
/// before anybody carried them.
const ASTRAY: usize = 16;

/// The order is there again where six of eight carriers find their packets one after the other.
const SURE: (usize, usize) = (6, 8);

/// What each carrier holds. The head that fits most often in strict order is tried first: sizes that differ by one byte are frequent.
/// Of `packets` those are left out that `taken` names; what is found is added to it.
fn assign(
    carriers: &[Envelope],
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
    carriers: &[Envelope],
    packets: &[&Packet],
    (heads, bounds): (&[usize], Bounds),
) -> Vec<Content> {
    let mut heads = heads.to_vec();
    heads.sort_by_key(|head| std::cmp::Reverse(in_order(carriers, packets, *head)));
    let (mut open, mut missed) = (Open::new(packets, bounds), 0);
    let find = |(number, envelope): (usize, &Envelope)| {
        open.forget(envelope.time);
        if missed >= ASTRAY {
            missed = 0;
            open.resume(&carriers[number..], &heads);
        }
        let found = heads
            .iter()
            .find_map(|head| open.find(envelope.size.checked_sub(*head)?, envelope.time));
        let content = found.unwrap_or_default();
        missed = if found.is_some() { 0 } else { missed + 1 };
        open.take(content);
        content
    };
    carriers.iter().enumerate().map(find).collect()
}

/// How many carriers find their packet at once, when each looks at the next few only.
fn in_order(carriers: &[Envelope], packets: &[&Packet], head: usize) -> usize {
    let (mut next, mut fits) = (0, 0);
    for envelope in carriers {
        let ahead = packets.iter().skip(next).take(3);
        if let Some(skipped) = ahead
            .map(|packet| packet.size + head)
            .position(|whole| whole == envelope.size)
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
    fn resume(&mut self, carriers: &[Envelope], heads: &[usize]) {
        let (enough, of) = SURE;
        let (Some(carriers), Some(head)) = (carriers.get(..of), heads.first()) else {
            return;
        };
        let Some(time) = carriers.first().map(|envelope| envelope.time) else {
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

    /// Whether this many later packets have been taken that the first open one will not come any more. One of them proves nothing: a carrier
    /// whose own packet is in no record may have taken another of its size from far ahead.
    fn is_left_behind(&self) -> bool {
        let window = self.taken.iter().skip(self.begin).take(WINDOW);
        window.filter(|taken| **taken).count() >= WINDOW / 2
    }
}

#[cfg(test)]
mod tests {
    use super::{HEADS, *};

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
        let envelope = |size: &usize| Envelope {
            size: *size,
            time: 0.0,
        };
        let carriers: Vec<Envelope> = sizes.iter().map(envelope).collect();
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
