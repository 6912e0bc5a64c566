//! Tells the stack of one lost datagram in a round trip, where the peer tells of many.
//! A queue that overflows takes a hundred packets of a tunnel. Nobody sends them again, since what they carried repairs itself; and a congestion
//! controller hears of the first only, for the others belong to the same congestion event (RFC 9002 §7.3.2). But the stack counts every burst, and
//! takes four of them for a path that no longer takes large packets (RFC 8899 §4.3), unless a packet of their very size has come through since: a
//! tunnel's packets differ by some octets, and so one full queue would take the tunnel most of its size for some round trips, and with it all that
//! passes. Therefore those that are known to be lost are told as acknowledged, if nothing in them is ever sent again, if packets of about their size
//! came through after them, and if one of the same round trip has been told as lost.

use std::collections::VecDeque;

use bytes::BytesMut;
use hoplite_wire::quic::{Ack, Content, Frames};

use super::acks::{self, Range};

/// The third packet after one tells that it is lost (RFC 9002 §6.1.1).
const REORDERING: u64 = 3;
/// By so much the packets of one tunnel differ that carry full packets of another: an ACK frame of some ranges, longer numbers.
const ABOUT: u16 = 32;
/// So many packets that were sent last are known.
const KNOWN: usize = 4096;

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
    pub(super) fn sent(&mut self, number: u64, size: usize, frames: Frames<'_>) {
        let next = self.next();
        if self.sent.is_empty() || number < next || number - next > KNOWN as u64 {
            self.sent.clear();
            self.base = number;
        }
        // The stack leaves numbers out, to catch peers that acknowledge what they have not seen.
        let left_out = number.saturating_sub(self.next());
        (0..left_out).for_each(|_| self.note(Sent::default()));
        self.note(Sent {
            size: u16::try_from(size).unwrap_or(u16::MAX),
            forgettable: is_forgettable(frames),
        });
    }

    fn note(&mut self, sent: Sent) {
        if self.sent.len() == KNOWN {
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
        let Some(ack) = acks::first(payload) else {
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
            acks::write(&ranges, ack.delay, self.marks(&ack), &mut told);
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
            } else if number + REORDERING <= largest
                && sent.forgettable
                && sent.size <= through.saturating_add(ABOUT)
            {
                lost.push(number);
            }
        }
        lost
    }

    fn decide(&mut self, largest: u64) {
        self.decided = self.decided.max((largest + 1).saturating_sub(REORDERING));
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

/// Nothing in it is ever sent again, and nobody waits to hear whether it came.
fn is_forgettable(mut frames: Frames<'_>) -> bool {
    frames.all(|frame| {
        frame.is_ok_and(|frame| {
            matches!(
                frame.content,
                Content::Ack(_) | Content::Datagram(_) | Content::Padding
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A datagram of a size, as a payload.
    fn datagram(size: usize) -> Vec<u8> {
        let mut payload = vec![0x30];
        payload.resize(size, 7);
        payload
    }

    fn send(folder: &mut Folder, numbers: std::ops::Range<u64>, size: usize) {
        numbers.for_each(|number| folder.sent(number, size, Frames::new(&datagram(size))));
    }

    fn told(folder: &mut Folder, ranges: &[Range], marks: Option<[u64; 3]>) -> Vec<Range> {
        let mut payload = BytesMut::new();
        acks::write(ranges, 3, marks, &mut payload);
        folder.fold(&mut payload);
        let ack = acks::first(&payload).unwrap();
        assert_eq!(ack.delay, 3);
        ack.ranges().collect()
    }

    #[test]
    fn of_many_lost_datagrams_the_first_is_told_and_no_other_of_the_same_round_trip() {
        let mut folder = Folder::default();
        send(&mut folder, 0..100, 1300);
        let ranges = [(40, 50), (30, 35), (10, 20), (0, 5)];
        assert_eq!(told(&mut folder, &ranges, None), [(7, 50), (0, 5)]);
        let ranges = [(70, 80), (40, 50)];
        assert_eq!(told(&mut folder, &ranges, None), [(40, 80)]);
        // These were sent after the first had been told: another event.
        send(&mut folder, 100..200, 1300);
        let ranges = [(120, 130), (70, 105)];
        assert_eq!(told(&mut folder, &ranges, None), [(107, 130), (70, 105)]);
    }

    #[test]
    fn what_is_sent_again_if_lost_is_told_as_it_is() {
        let mut folder = Folder::default();
        send(&mut folder, 0..1, 1300);
        // PING; then a number that the stack left out.
        (1..20).for_each(|number| folder.sent(number, 1300, Frames::new(&[0x01])));
        send(&mut folder, 21..30, 1300);
        let ranges = [(25, 29), (0, 0)];
        assert_eq!(told(&mut folder, &ranges, None), [(22, 29), (0, 0)]);
    }

    #[test]
    fn a_path_that_takes_no_large_packets_any_more_is_told_as_it_is() {
        let mut folder = Folder::default();
        send(&mut folder, 0..10, 1300);
        send(&mut folder, 10..40, 1400);
        send(&mut folder, 40..50, 1300);
        send(&mut folder, 50..60, 1310);
        send(&mut folder, 60..70, 1300);
        let ranges = [(60, 69), (40, 49), (0, 9)];
        assert_eq!(
            told(&mut folder, &ranges, None),
            [(51, 69), (40, 49), (0, 9)]
        );
    }

    #[test]
    fn what_may_only_be_late_is_not_decided() {
        let mut folder = Folder::default();
        send(&mut folder, 0..20, 1300);
        assert_eq!(told(&mut folder, &[(9, 9), (0, 7)], None), [(9, 9), (0, 7)]);
        assert_eq!(told(&mut folder, &[(0, 10)], None), [(0, 10)]);
        assert_eq!(
            told(&mut folder, &[(19, 19), (13, 15), (0, 11)], None),
            [(19, 19), (13, 16), (0, 11)],
            "12 is told as lost, and 17 and 18 may be late"
        );
    }

    #[test]
    fn what_a_peer_no_longer_tells_of_was_told_before_or_is_lost() {
        let mut folder = Folder::default();
        send(&mut folder, 0..60, 1300);
        assert_eq!(told(&mut folder, &[(0, 20)], None), [(0, 20)]);
        assert_eq!(told(&mut folder, &[(21, 30)], None), [(21, 30)]);
        assert_eq!(told(&mut folder, &[(35, 40)], None), [(32, 40)]);
    }

    #[test]
    fn marks_are_counted_for_what_is_told_as_acknowledged() {
        let mut folder = Folder::default();
        send(&mut folder, 0..20, 1300);
        let mut payload = BytesMut::new();
        acks::write(
            &[(10, 15), (6, 7), (0, 2)],
            0,
            Some([10, 0, 1]),
            &mut payload,
        );
        folder.fold(&mut payload);
        let ack = acks::first(&payload).unwrap();
        assert_eq!(ack.ranges().collect::<Vec<_>>(), [(4, 15), (0, 2)]);
        assert_eq!(ack.ecn, Some([14, 0, 1]));
        let mut payload = BytesMut::new();
        acks::write(&[(10, 17)], 0, Some([12, 0, 1]), &mut payload);
        folder.fold(&mut payload);
        assert_eq!(acks::first(&payload).unwrap().ecn, Some([16, 0, 1]));
    }

    proptest! {
        #[test]
        fn nothing_is_acknowledged_that_was_not_sent_and_nothing_is_left_out(
            sent in proptest::collection::vec((1_u64..3, 1000_usize..1400, any::<bool>()), 1..300),
            acks_of in proptest::collection::vec(proptest::collection::vec((0_u64..5, 0_u64..9), 1..20), 1..5),
            octets: Vec<u8>,
        ) {
            let mut folder = Folder::default();
            let (mut number, mut known) = (0, std::collections::BTreeSet::new());
            for (step, size, lasting) in sent {
                number += step;
                known.insert(number);
                let payload = if lasting { vec![0x01] } else { datagram(size) };
                folder.sent(number, size, Frames::new(&payload));
            }
            for steps in acks_of {
                let (mut ranges, mut next) = (vec![], 0);
                for (gap, length) in steps {
                    ranges.insert(0, (next, next + length));
                    next += length + 2 + gap;
                }
                let told = told(&mut folder, &ranges, None);
                prop_assert_eq!(told[0].1, ranges[0].1);
                let within = |ranges: &[Range], number: u64| ranges.iter().any(|(lowest, highest)| (*lowest..=*highest).contains(&number));
                for number in 0..=next {
                    prop_assert!(!within(&ranges, number) || within(&told, number));
                    prop_assert!(within(&ranges, number) || !within(&told, number) || known.contains(&number));
                }
            }
            folder.fold(&mut BytesMut::from(&octets[..]));
        }
    }
}
