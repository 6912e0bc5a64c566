//! Takes an acknowledgement that tells of many losses apart into several that tell of few, as if the peer had acknowledged more often.
//! The stack takes more than three bursts of losses in one acknowledgement for a path that no longer takes large packets (RFC 8899 §4.3), unless
//! the largest packets of all came after them: tunnels' packets differ in size by a few octets, and so one queue that overflowed would cost
//! them most of their size. A path that really takes no large packets acknowledges none of them, however it is told.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use hoplite_wire::quic::Ack;

use super::acks::{self, Range};

/// So many losses at once do no harm, even if one or two that were told before still look suspicious.
const HARMLESS: usize = 1;

/// No more parts than stacks keep ranges: what a peer tells costs no more than that.
const MOST_PARTS: usize = 64;

/// An earlier part is as if it had been held back for longer; beyond this, the sender's stack would take that for the road's length.
const HELD_BACK: Duration = Duration::from_millis(20);

/// When packets were sent is noted this often, until they are acknowledged, and so many times at most.
const NOTED_EVERY: Duration = Duration::from_millis(1);
const NOTES: usize = 512;

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
        if last.is_some_and(|last| now.saturating_duration_since(last) < NOTED_EVERY) {
            return;
        }
        if self.sent.len() == NOTES {
            self.sent.pop_front();
        }
        self.sent.push_back((number, now));
    }

    /// Puts the earlier parts of an acknowledgement before a packet's frames.
    pub(super) fn unfold(&mut self, payload: &mut BytesMut) {
        let Some(ack) = acks::first(payload) else {
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
        if ack.ranges().take_while(is_new).count() <= HARMLESS {
            return Vec::new();
        }
        let ranges: Vec<Range> = ack.ranges().collect();
        let new = ranges.iter().take_while(|range| is_new(range));
        let new = new.take(MOST_PARTS).count();
        let held_back = |range: &Range| self.between(range.1, ack.largest);
        let near = |range: &Range| held_back(range).filter(|held| *held <= HELD_BACK);
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
            acks::write(ranges, delay, ack.ecn.map(|_| marks), out);
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
mod tests {
    use hoplite_wire::quic::{Content, Frames};
    use proptest::prelude::*;

    use super::*;

    fn acks(payload: &[u8]) -> Vec<(Vec<Range>, u64, Option<[u64; 3]>)> {
        let frames = Frames::new(payload).map(|frame| frame.unwrap().content);
        frames
            .map(|content| match content {
                Content::Ack(ack) => (ack.ranges().collect(), ack.delay, ack.ecn),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn payload(ranges: &[Range], marks: Option<[u64; 3]>) -> BytesMut {
        let mut out = BytesMut::new();
        acks::write(ranges, 10, marks, &mut out);
        out
    }

    #[test]
    fn an_acknowledgement_of_many_losses_becomes_several_of_one_the_oldest_first() {
        let (mut unfolder, start) = (Unfolder::default(), Instant::now());
        for number in 0..100_u32 {
            unfolder.sent(number.into(), start + number * Duration::from_millis(1));
        }
        let old = [(0, 50)];
        unfolder.unfold(&mut payload(&old, Some([51, 0, 0])));
        let ranges = [(90, 99), (85, 88), (82, 83), (60, 80), (0, 55)];
        let mut told = payload(&ranges, Some([89, 0, 2]));
        unfolder.unfold(&mut told);
        // Packet 80 was sent 19 ms before the last, packet 55 too long before.
        let one = |range| vec![range];
        assert_eq!(
            acks(&told),
            [
                (vec![(60, 80), (0, 55)], 10 + 19_000 / 8, Some([77, 0, 0])),
                (one((82, 83)), 10 + 16_000 / 8, Some([79, 0, 0])),
                (one((85, 88)), 10 + 11_000 / 8, Some([83, 0, 0])),
                (ranges.to_vec(), 10, Some([89, 0, 2])),
            ]
        );
    }

    #[test]
    fn few_losses_and_losses_that_were_told_before_are_left_alone() {
        let mut unfolder = Unfolder::default();
        unfolder.sent(0, Instant::now());
        let ranges = [(40, 50), (30, 35), (20, 25)];
        for told in [
            &ranges[..],
            &[(60, 70), (40, 50), (30, 35), (20, 25), (0, 3)],
        ] {
            let before = payload(told, None);
            let mut after = before.clone();
            unfolder.unfold(&mut after);
            assert_eq!(before, after);
        }
    }

    #[test]
    fn a_peer_that_tells_of_very_many_losses_is_told_on_in_so_many_parts_at_most() {
        let mut unfolder = Unfolder::default();
        unfolder.sent(0, Instant::now());
        unfolder.sent(2000, Instant::now() + NOTED_EVERY);
        let ranges: Vec<Range> = (0..600).rev().map(|at| (3 * at, 3 * at)).collect();
        let mut told = payload(&ranges, None);
        unfolder.unfold(&mut told);
        let parts = acks(&told);
        assert_eq!(parts.len(), MOST_PARTS);
        assert_eq!(parts[0].0.len(), 600 - MOST_PARTS + 1);
    }

    proptest! {
        #[test]
        fn no_packet_is_acknowledged_that_was_not_and_parts_only_grow(steps in proptest::collection::vec((0_u64..5, 0_u64..5), 1..40), octets: Vec<u8>) {
            let (mut ranges, mut next) = (vec![], 0);
            for (gap, length) in steps {
                ranges.insert(0, (next, next + length));
                next += length + 2 + gap;
            }
            let (mut unfolder, now) = (Unfolder::default(), Instant::now());
            unfolder.sent(0, now);
            unfolder.sent(next, now + NOTED_EVERY);
            let mut told = payload(&ranges, None);
            unfolder.unfold(&mut told);
            let parts = acks(&told);
            prop_assert!(parts.iter().all(|(part, ..)| part.iter().all(|range| ranges.contains(range))));
            prop_assert!(parts.is_sorted_by_key(|(part, ..)| part[0].1));
            prop_assert_eq!(&parts.last().unwrap().0, &ranges);
            unfolder.unfold(&mut BytesMut::from(&octets[..]));
        }
    }
}
