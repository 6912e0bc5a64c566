//! Finds what is inside what: which packets a UDP payload or a DATAGRAM frame carries, by order and size.
//! Packets of a layer come in nearly the order in which the layer around it carries them, and their sizes differ by a known head: none in a UDP
//! payload, a quarter stream id and a context id in a DATAGRAM frame (RFC 9298 §5). In a handshake several packets share a datagram.

use super::{Capture, Layers, Packet, Way, log::Frame};

/// How far a packet may be from its place in the order.
const WINDOW: usize = 128;

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
        let mut sizes: Vec<usize> = capture.udp(way).map(|(_, payload)| payload).collect();
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
    let mut open = Open::new(packets);
    let find = |size: &usize| {
        let found = heads
            .iter()
            .find_map(|head| open.find(size.checked_sub(*head)?));
        let content = found.unwrap_or_default();
        open.take(content);
        content
    };
    carriers.iter().map(find).collect()
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
    /// Before it everything is taken, or was left behind.
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
        // What is too far behind will not come any more.
        self.begin = self
            .begin
            .max((content.first + content.count).saturating_sub(WINDOW / 2));
        while self.taken.get(self.begin) == Some(&true) {
            self.begin += 1;
        }
    }
}
