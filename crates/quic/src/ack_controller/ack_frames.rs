//! Acknowledgements of a tunnel's datagrams, told to the stack in another way than the peer told them: [`Folder`] tells of one lost datagram
//! where there were many, [`Unfolder`] takes one ACK frame apart into several. RFC 9000 §19.3 (ACK frames).

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::{BufMut, BytesMut};
use hoplite_wire::{
    quic_frames::{Ack, Content, Frames, kind},
    varint,
};

/// Packet numbers, both ends included.
pub(super) type Range = (u64, u64);

/// The first ACK frame of a packet.
pub(super) fn first(payload: &[u8]) -> Option<Ack<'_>> {
    Frames::new(payload)
        .flatten()
        .find_map(|frame| match frame.content {
            Content::Ack(ack) => Some(ack),
            _ => None,
        })
}

/// `ranges` from the highest, with a number at least between any two; `marks` are the counts of ECN.
pub(super) fn write(ranges: &[Range], delay: u64, marks: Option<[u64; 3]>, out: &mut BytesMut) {
    let [first, others @ ..] = ranges else { return };
    out.put_u8(0x02 | u8::from(marks.is_some()));
    for number in [first.1, delay, others.len() as u64, first.1 - first.0] {
        varint::write(out, number);
    }
    let mut above = first.0;
    for (lowest, highest) in others {
        varint::write(out, above.saturating_sub(highest + 2));
        varint::write(out, highest - lowest);
        above = *lowest;
    }
    for count in marks.into_iter().flatten() {
        varint::write(out, count);
    }
}

const _: () = assert!(kind::ACK == 0x02 && kind::ACK_ECN == 0x03);

// Tells the stack of one lost datagram in a round trip, where the peer tells of many.
// A queue that overflows takes a hundred packets of a tunnel. Nobody sends them again, since what they carried repairs itself; and a congestion
// controller hears of the first only, for the others belong to the same congestion event (RFC 9002 §7.3.2). But the stack counts every burst, and
// takes four of them for a path that no longer takes large packets (RFC 8899 §4.3), unless a packet of their very size has come through since: a
// tunnel's packets differ by some bytes, and so one full queue would take the tunnel most of its size for some round trips, and with it all that
// passes. Therefore those that are known to be lost are told as acknowledged, if nothing in them is ever sent again, if packets of about their size
// came through after them, and if one of the same round trip has been told as lost.

/// The third packet after one tells that it is lost (RFC 9002 §6.1.1).
const PACKET_THRESHOLD: u64 = 3;

/// By so much the packets of one tunnel differ that carry full packets of another: an ACK frame of some ranges, longer numbers.
const SIZE_TOLERANCE: u16 = 32;

/// This many packets that were sent last are known.
const MAX_TRACKED: usize = 4096;

/// What is known of the packets that one connection has sent.
#[derive(Debug, Default)]
pub(super) struct Folder {
    /// The number of the first of `sent`.
    base: u64,
    sent: VecDeque<Sent>,
    /// All below are acknowledged or lost, and told.
    decided: u64,
    /// What was sent before this belongs to the event that has been told.
    told: u64,
    /// How many of the lost have been told as acknowledged: their marks are missing from the peer's counts.
    folded: u64,
}

/// A packet's size and whether it may be forgotten: not when it was never sent, not when something in it is sent again, and not when it has been told
/// of already.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    size: u16,
    forgettable: bool,
}

impl Folder {
    /// A packet is about to be sent.
    pub(super) fn sent(&mut self, number: u64, size: usize, content: Sending) {
        let next = self.next();
        if self.sent.is_empty() || number < next || number - next > MAX_TRACKED as u64 {
            self.sent.clear();
            self.base = number;
        }
        // The stack leaves numbers out, to catch peers that acknowledge what they have not seen.
        let left_out = number.saturating_sub(self.next());
        (0..left_out).for_each(|_| self.note(Sent::default()));
        self.note(Sent {
            size: u16::try_from(size).unwrap_or(u16::MAX),
            forgettable: content.forgettable,
        });
    }

    fn note(&mut self, sent: Sent) {
        if self.sent.len() == MAX_TRACKED {
            self.sent.pop_front();
            self.base += 1;
        }
        self.sent.push_back(sent);
    }

    fn next(&self) -> u64 {
        self.base + self.sent.len() as u64
    }

    fn packet(&mut self, number: u64) -> Option<&mut Sent> {
        let at = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.sent.get_mut(at)
    }

    /// Puts what is told instead before a packet's frames, if it differs from the peer's acknowledgement.
    pub(super) fn fold(&mut self, payload: &mut BytesMut) {
        let Some(ack) = first(payload) else {
            return;
        };
        if ack.largest >= self.next() {
            return;
        }
        let lost = self.folded_now(&ack);
        self.folded += lost.len() as u64;
        let mut told = BytesMut::new();
        // Once marks are missing, they are missing from every count.
        if !lost.is_empty() || (self.folded > 0 && ack.ecn.is_some()) {
            let ranges = with(ack.ranges(), &lost);
            write(&ranges, ack.delay, self.marks(&ack), &mut told);
        }
        self.decide(ack.largest);
        if !told.is_empty() {
            told.extend_from_slice(payload);
            *payload = told;
        }
    }

    /// Every acknowledged packet must have been counted (RFC 9000 §13.4.2.1).
    fn marks(&self, ack: &Ack<'_>) -> Option<[u64; 3]> {
        let [first, second, congested] = ack.ecn?;
        Some([first.saturating_add(self.folded), second, congested])
    }

    /// Which of the lost are told as acknowledged, from the highest.
    fn folded_now(&mut self, ack: &Ack<'_>) -> Vec<u64> {
        let mut lost = self.forgettable(ack);
        // The first of those that were sent after the last event was told is an event of its own.
        if let Some(at) = lost.iter().rposition(|number| *number >= self.told) {
            lost.remove(at);
            self.told = self.next();
        }
        lost
    }

    /// What is lost for sure and not told yet, from the highest number, as far as it may be forgotten and packets of its size came through later.
    /// What came is noted.
    fn forgettable(&mut self, ack: &Ack<'_>) -> Vec<u64> {
        let (mut lost, mut through) = (Vec::new(), 0);
        let (largest, mut ranges) = (ack.largest, ack.ranges().peekable());
        for number in (self.decided.max(self.base)..=largest).rev() {
            while ranges.next_if(|(lowest, _)| *lowest > number).is_some() {}
            let came = ranges.peek().is_some_and(|(_, highest)| number <= *highest);
            let Some(sent) = self.packet(number) else {
                continue;
            };
            if came {
                through = through.max(sent.size);
                sent.forgettable = false;
            } else if number + PACKET_THRESHOLD <= largest
                && sent.forgettable
                && sent.size <= through.saturating_add(SIZE_TOLERANCE)
            {
                lost.push(number);
            }
        }
        lost
    }

    fn decide(&mut self, largest: u64) {
        self.decided = self
            .decided
            .max((largest + 1).saturating_sub(PACKET_THRESHOLD));
        while self.base < self.decided && self.sent.pop_front().is_some() {
            self.base += 1;
        }
    }
}

/// `ranges` and single numbers between them, both from the highest, as ranges.
fn with(ranges: impl Iterator<Item = Range>, numbers: &[u64]) -> Vec<Range> {
    let numbers = numbers.iter().map(|number| (*number, *number));
    let mut all: Vec<Range> = numbers.chain(ranges).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    let mut joined: Vec<Range> = Vec::new();
    for (lowest, highest) in all {
        match joined.last_mut() {
            Some(above) if highest + 1 >= above.0 => above.0 = lowest,
            _ => joined.push((lowest, highest)),
        }
    }
    joined
}

/// What is in a packet that is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    /// An acknowledgement.
    pub(super) ack: bool,
    /// Nothing that is to be acknowledged.
    pub(super) idle: bool,
    /// Nothing that is ever sent again, or of which somebody waits to hear whether it came.
    pub(super) forgettable: bool,
}

impl Sending {
    pub(super) fn of(frames: Frames<'_>) -> Self {
        let mut found = Self {
            ack: false,
            idle: true,
            forgettable: true,
        };
        for frame in frames {
            match frame.map(|frame| frame.content) {
                Ok(Content::Ack(_)) => found.ack = true,
                Ok(Content::Padding) => {}
                Ok(Content::Datagram(_)) => found.idle = false,
                _ => (found.idle, found.forgettable) = (false, false),
            }
        }
        found
    }
}

// Takes an acknowledgement that tells of many losses apart into several that tell of few, as if the peer had acknowledged more often.
// The stack takes more than three bursts of losses in one acknowledgement for a path that no longer takes large packets (RFC 8899 §4.3), unless
// the largest packets of all came after them: tunnels' packets differ in size by a few bytes, and so one queue that overflowed would cost
// them most of their size. A path that really takes no large packets acknowledges none of them, however it is told.

/// This many losses at once do no harm, even if one or two that were told before still look suspicious.
const HARMLESS_LOSSES: usize = 1;

/// No more parts than stacks keep ranges: what a peer tells costs no more than that.
const MAX_PARTS: usize = 64;

/// An earlier part is as if it had been held back for longer; beyond this, the sender's stack would take that for the path's length.
const MAX_ACK_AGE: Duration = Duration::from_millis(20);

/// When packets were sent is noted this often, until they are acknowledged, and this many times at most.
const NOTE_INTERVAL: Duration = Duration::from_millis(1);

const MAX_NOTES: usize = 512;

/// "The ACK Delay field … is decoded by multiplying the value in the field by 2 to the power of the ack_delay_exponent": its default.
const EXPONENT: u32 = 3;

/// What is known of the packets that one connection has sent.
#[derive(Debug, Default)]
pub(super) struct Unfolder {
    sent: VecDeque<(u64, Instant)>,
    /// The largest number that was acknowledged.
    known: Option<u64>,
    /// The last counts of ECN marks.
    marks: [u64; 3],
}

impl Unfolder {
    /// A packet is about to be sent.
    pub(super) fn sent(&mut self, number: u64, now: Instant) {
        let last = self.sent.back().map(|(_, time)| *time);
        if last.is_some_and(|last| now.saturating_duration_since(last) < NOTE_INTERVAL) {
            return;
        }
        if self.sent.len() == MAX_NOTES {
            self.sent.pop_front();
        }
        self.sent.push_back((number, now));
    }

    /// Puts the earlier parts of an acknowledgement before a packet's frames.
    pub(super) fn unfold(&mut self, payload: &mut BytesMut) {
        let Some(ack) = first(payload) else {
            return;
        };
        let parts = self.parts(&ack);
        let mut unfolded = BytesMut::new();
        if !parts.is_empty() {
            unfolded.reserve(payload.len() + 512);
            self.write(&ack, &parts, &mut unfolded);
        }
        self.known = self.known.max(Some(ack.largest));
        while self
            .sent
            .get(1)
            .is_some_and(|(number, _)| Some(*number) <= self.known)
        {
            self.sent.pop_front();
        }
        self.marks = ack.ecn.unwrap_or(self.marks);
        if !unfolded.is_empty() {
            unfolded.extend_from_slice(payload);
            *payload = unfolded;
        }
    }

    /// Its parts but the last, which is the acknowledgement itself: the lowest first, the ranges of each from the highest.
    fn parts(&self, ack: &Ack<'_>) -> Vec<(Vec<Range>, Duration)> {
        let is_new = |range: &Range| self.known.is_none_or(|known| range.1 > known);
        if ack.ranges().take_while(is_new).count() <= HARMLESS_LOSSES {
            return Vec::new();
        }
        let ranges: Vec<Range> = ack.ranges().collect();
        let new = ranges.iter().take_while(|range| is_new(range));
        let new = new.take(MAX_PARTS).count();
        let held_back = |range: &Range| self.between(range.1, ack.largest);
        let near = |range: &Range| held_back(range).filter(|held| *held <= MAX_ACK_AGE);
        let parts = (1..new).filter_map(|at| {
            let range = ranges.get(at)?;
            Some((at, near(range)?))
        });
        let mut parts: Vec<_> = parts
            .map(|(at, held)| (ranges.get(at..=at).unwrap_or_default().to_vec(), held, at))
            .collect();
        // What lies below the first part must be told with it, or it would count as lost.
        if let Some((first, _, at)) = parts.last_mut() {
            *first = ranges.get(*at..).unwrap_or_default().to_vec();
        }
        parts.reverse();
        parts
            .into_iter()
            .map(|(ranges, held, _)| (ranges, held))
            .collect()
    }

    /// How long before `later` the packet `earlier` was sent, or a little less.
    fn between(&self, earlier: u64, later: u64) -> Option<Duration> {
        let from = self.sent.partition_point(|(number, _)| *number < earlier);
        let to = self.sent.partition_point(|(number, _)| *number <= later);
        let (_, from) = self.sent.get(from)?;
        let (_, to) = self.sent.get(to.checked_sub(1)?)?;
        Some(to.saturating_duration_since(*from))
    }

    fn write(&self, ack: &Ack<'_>, parts: &[(Vec<Range>, Duration)], out: &mut BytesMut) {
        let (mut marks, known) = (self.marks, self.known);
        for (ranges, held_back) in parts {
            let micros = u64::try_from(held_back.as_micros()).unwrap_or(u64::MAX);
            let delay = ack.delay.saturating_add(micros >> EXPONENT);
            let new = |(lowest, highest): &Range| {
                let from = known.map_or(*lowest, |known| (*lowest).max(known + 1));
                (highest + 1).saturating_sub(from)
            };
            marks = ack.ecn.map_or(marks, |all| {
                shared(marks, all, ranges.iter().map(new).sum())
            });
            write(ranges, delay, ack.ecn.map(|_| marks), out);
        }
    }
}

/// The counts of marks after `new` more packets, on the way from `before` to `all`: a part must count at least what it acknowledges.
fn shared(before: [u64; 3], all: [u64; 3], new: u64) -> [u64; 3] {
    let (mut counts, mut left) = (before, new);
    for (count, all) in counts.iter_mut().zip(all) {
        let more = all.saturating_sub(*count).min(left);
        *count += more;
        left -= more;
    }
    counts
}

#[cfg(test)]
mod tests;
