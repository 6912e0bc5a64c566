//! Finds the packet of the right size that was written down at nearly the time at which a carrier was seen, in any connection that may be
//! inside it. `matching` uses it for what stands on the link, where nothing waits, and for what is forwarded within a tunnel.

use super::{Bounds, Carrier, Content, HEADS, Packet};

/// By how many octets a connection id may be shorter or longer than the one that a relay gave for it. We allow less than QUIC does: a
/// tunnel's own head and tag must not look like it.
const IDS: isize = 12;

/// Seconds by which a packet of a connection further in must be nearer than one of the outermost: that one is written down last before it
/// is sent and first after it came, and small acknowledgements have the same sizes in all.
const RATHER: f64 = 0.001;

/// Carriers that are asked what they have more than packets.
const SAMPLE: usize = 300;

/// Of so many carriers one must be unknown, or nothing is forwarded: else a few whose content is in no record would be explained away.
const UNKNOWN: usize = 50;

/// Of so many unknown carriers at least one must fit a layer's packets, or it is chance.
const CHANCE: usize = 200;

/// What is so near in seconds belongs together, unless the machine is very busy.
const SURELY: f64 = 0.01;

/// So many packets share a datagram at most.
const MOST_TOGETHER: usize = 5;

/// Fills in what carriers hold of which nothing is known yet. At layer 0 that is a packet of layer 0 or of one further in, else only of one
/// further in.
pub(super) fn fill(
    carriers: &[Carrier],
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
    let elsewhere = |carrier: &Carrier| {
        outer.is_none_or(|outer| outer.best(carrier, &taken[outer.layer]).is_none())
    };
    let both = carriers.iter().zip(found.iter());
    let unknown = both.filter(|(carrier, content)| content.count == 0 && elsewhere(carrier));
    let unknown: Vec<Carrier> = unknown.map(|(carrier, _)| *carrier).collect();
    if unknown.len() * UNKNOWN >= carriers.len() {
        let heads = if number == 0 { [0].as_slice() } else { &HEADS };
        let sample: Vec<Carrier> = spread(&unknown).collect();
        for source in sources.iter_mut().filter(|source| source.inside > 0) {
            source.learn(&sample, heads, &taken[source.layer]);
        }
    }
    for (carrier, content) in carriers.iter().zip(found.iter_mut()) {
        if content.count > 0 {
            continue;
        }
        let of_each = sources
            .iter()
            .filter_map(|source| source.best(carrier, &taken[source.layer]));
        let best = of_each.min_by(|one, other| one.0.total_cmp(&other.0));
        if let Some((_, best)) = best {
            taken[best.layer][best.packets()].fill(true);
            *content = best;
        }
    }
}

/// At most `SAMPLE` of them, from all over.
fn spread(carriers: &[Carrier]) -> impl Iterator<Item = Carrier> {
    let step = carriers.len().div_ceil(SAMPLE).max(1);
    carriers.iter().step_by(step).copied()
}

/// A layer whose packets may be in the carriers.
struct Source<'a> {
    layer: usize,
    /// How far in it is.
    inside: usize,
    packets: &'a [Packet],
    /// Octets that a carrier has more than the packet; `None`: nothing of this layer is in these carriers.
    more: Option<isize>,
    bounds: Bounds,
}

impl Source<'_> {
    /// Learns what carriers of which nothing else is known have more than these packets: what fits most of them.
    fn learn(&mut self, unknown: &[Carrier], heads: &[usize], taken: &[bool]) {
        let most = heads.iter().max().copied().unwrap_or(0).cast_signed();
        let bounds = self.bounds;
        self.bounds = Bounds {
            earliest: bounds.earliest.max(-SURELY),
            latest: bounds.latest.min(SURELY),
        };
        let mut fits: Vec<(usize, isize)> = Vec::new();
        for more in -IDS..=IDS + most {
            self.more = Some(more);
            let held = |carrier: &&Carrier| self.best(carrier, taken).is_some();
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
    fn best(&self, carrier: &Carrier, taken: &[bool]) -> Option<(f64, Content)> {
        let size = carrier.size.checked_add_signed(-self.more?)?;
        let begin = carrier.time + self.bounds.earliest;
        let from = self.packets.partition_point(|packet| packet.time < begin);
        let later = self.packets.get(from..)?;
        let until = carrier.time + self.bounds.latest;
        let near = later.iter().take_while(|packet| packet.time <= until);
        let places = (from..).zip(near).filter_map(|(first, packet)| {
            let count = self.together(first, size, taken)?;
            let rather = if self.inside > 0 { RATHER } else { 0.0 };
            let away = (packet.time - carrier.time).abs() + rather;
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
