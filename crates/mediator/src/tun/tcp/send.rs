//! The send side: what the overlay has sent, kept until the program acknowledges it, and what of it may leave now.
//! A part of the machine. RFC 9293 §3.10.7.4 (acknowledgements), §3.8.6.2.1 (silly windows); RFC 5681 §3.2 and RFC 6582 (fast
//! retransmit, with one segment for each acknowledgement while more is missing); RFC 5961 §5.
//!
//! We do no congestion control, because between the program and us is no network: its window alone limits what is under way.
//! What is lost fell out of a full queue; so after a timeout what is under way starts again from one segment.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::machine::Seq;
use crate::copy::{self, BUFFER};

/// The largest payload: with the headers of either IP version and all their options below 65,536 octets.
pub(super) const LARGEST: usize = 65_400;
/// So many equal acknowledgements mean that a segment is missing.
const DUPLICATES: u8 = 3;

#[derive(Debug)]
pub(super) struct Send {
    /// The first octet that is not acknowledged (SND.UNA).
    una: Seq,
    /// What leaves next (SND.NXT); after a timeout it is `una` again.
    next: Seq,
    /// The end of all that has ever left.
    highest: Seq,
    /// The program's window, in octets.
    window: usize,
    largest_window: usize,
    /// The segment that the window was last read from (SND.WL1, SND.WL2).
    window_seen: (Seq, Seq),
    /// The shift of the program's window.
    scale: u8,
    mss: usize,
    retained: Retained,
    /// The most memory that is taken for it, in octets: the budget's.
    most: usize,
    /// The end of what waited for its acknowledgement at a time, and that time, until all of it is acknowledged.
    waiting: Option<(Seq, Instant)>,
    /// The overlay's octets have ended: after them comes a FIN.
    finishing: bool,
    finished: bool,
    duplicates: u8,
    /// Up to where what is missing is sent again, an acknowledgement at a time.
    recovering: Option<Seq>,
    /// The first segment must leave again.
    lost: bool,
    /// What may be under way, after a timeout.
    cautious: Option<usize>,
}

/// What a segment's acknowledgement and window say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledgement {
    pub(super) seq: Seq,
    pub(super) ack: Seq,
    /// As the header has it.
    pub(super) window: u16,
    /// Whether nothing else is in the segment.
    pub(super) bare: bool,
}

/// What came of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nobody in this connection can have sent it.
    Impossible,
    /// Nothing new.
    Old,
    /// Something was acknowledged for the first time.
    Progress,
}

/// Octets that leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portion {
    pub(super) seq: Seq,
    /// Where they are: see [`Send::payload`].
    pub(super) offset: usize,
    pub(super) len: usize,
    /// Whether the end is among them.
    pub(super) fin: bool,
    /// Whether nothing follows for now.
    pub(super) last: bool,
}

impl Send {
    /// Sends from `next` on, in segments of at most `mss` octets.
    pub(super) fn new(next: Seq, mss: usize, scale: u8) -> Self {
        Self {
            una: next,
            next,
            highest: next,
            window: 0,
            largest_window: 0,
            window_seen: (Seq(0), Seq(0)),
            scale,
            mss: mss.clamp(64, LARGEST),
            retained: Retained::default(),
            most: usize::MAX,
            waiting: None,
            finishing: false,
            finished: false,
            duplicates: 0,
            recovering: None,
            lost: false,
            cautious: None,
        }
    }

    pub(super) fn una(&self) -> Seq {
        self.una
    }

    pub(super) fn highest(&self) -> Seq {
        self.highest
    }

    pub(super) fn mss(&self) -> usize {
        self.mss
    }

    /// Whether something is not acknowledged.
    pub(super) fn in_flight(&self) -> bool {
        self.una != self.highest
    }

    /// Whether the program has acknowledged everything and the end.
    pub(super) fn finished(&self) -> bool {
        self.finished
    }

    /// The connection stands: the program's window holds from now on.
    pub(super) fn open(&mut self, first: &Acknowledgement) {
        self.window_seen = (first.seq.minus(1), first.ack);
        self.read_window(first);
    }

    /// How many octets may be handed over now: no more than the program has room for, and none after the end. To whoever was refused
    /// before (`again`), no crumbs as long as acknowledgements will bring more.
    pub(super) fn room(&self, limit: usize, again: bool) -> usize {
        let limit = if self.finishing {
            0
        } else {
            self.window.min(limit)
        };
        let held = self.retained.len();
        let limit = limit.min(held.saturating_add(self.retained.room(self.most)));
        let room = limit.saturating_sub(held);
        let crumb = again && room < LARGEST && room < limit.div_ceil(2);
        if crumb { 0 } else { room }
    }

    pub(super) fn push(&mut self, octets: &[u8]) {
        self.retained.push(octets, self.most);
    }

    /// What is kept takes so many octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.retained.memory()
    }

    /// From now on no more memory than this is taken; what is here stays.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Since when, at least, what is first has waited for the program's acknowledgement.
    pub(super) fn waits_since(&mut self, now: Instant) -> Option<Instant> {
        let waiting = self.waiting.filter(|(place, _)| self.una.is_before(*place));
        let place = self.una.plus(self.retained.len());
        self.waiting = match self.retained.len() {
            0 => None,
            _ => waiting.or(Some((place, now))),
        };
        self.waiting.map(|(_, since)| since)
    }

    /// Nothing more will be handed over.
    pub(super) fn finish(&mut self) {
        self.finishing = true;
    }

    /// What was handed over and has not left (or must leave again), in octets.
    pub(super) fn unsent(&self) -> usize {
        self.retained.len().saturating_sub(self.offset())
    }

    /// Whether all that was handed over is acknowledged.
    pub(super) fn is_drained(&self) -> bool {
        self.retained.len() == 0
    }

    /// Whether something waits that the program's window does not let through.
    pub(super) fn blocked(&self) -> bool {
        self.usable() == 0 && (self.unsent() > 0 || self.fin_is_next(self.next))
    }

    pub(super) fn window_closed(&self) -> bool {
        self.window == 0
    }

    pub(super) fn payload(&self, portion: &Portion) -> [&[u8]; 2] {
        self.retained.slices(portion.offset, portion.len)
    }

    /// What leaves now.
    pub(super) fn poll(&mut self) -> Option<Portion> {
        if std::mem::take(&mut self.lost) {
            return self.repeat();
        }
        let (offset, usable) = (self.offset(), self.usable());
        let len = self.worth(self.unsent().min(usable), offset);
        let fin = usable > len && self.fin_is_next(self.next.plus(len));
        if len == 0 && !fin {
            return None;
        }
        let portion = self.portion(offset, len, fin);
        self.next = self.next.plus(len + usize::from(fin));
        if self.highest.is_before(self.next) {
            self.highest = self.next;
        }
        Some(portion)
    }

    /// How much of `possible` octets is worth a packet: whole segments as long as more follows, nothing that is small while
    /// something is under way (its acknowledgement will bring room), at most what one packet holds.
    fn worth(&self, possible: usize, in_flight: usize) -> usize {
        let most = LARGEST - LARGEST % self.mss;
        match possible {
            all if all == self.unsent() => all.min(most),
            small if small < self.mss && in_flight > 0 => 0,
            small if small < self.mss => small,
            some => (some - some % self.mss).min(most),
        }
    }

    /// The first segment once more; what leaves next stays what it was.
    fn repeat(&mut self) -> Option<Portion> {
        let sent = self.highest.since(self.una);
        let most = LARGEST - LARGEST % self.mss;
        let len = self.retained.len().min(sent).min(most);
        let fin = sent > len && self.fin_is_next(self.una.plus(len));
        (len > 0 || fin).then(|| self.portion(0, len, fin))
    }

    fn portion(&self, offset: usize, len: usize, fin: bool) -> Portion {
        Portion {
            seq: self.una.plus(offset),
            offset,
            len,
            fin,
            last: offset + len == self.retained.len(),
        }
    }

    fn offset(&self) -> usize {
        self.next.since(self.una)
    }

    fn usable(&self) -> usize {
        let limit = self.cautious.unwrap_or(usize::MAX).min(self.window);
        limit.saturating_sub(self.offset())
    }

    /// Whether the end comes at `place`.
    fn fin_is_next(&self, place: Seq) -> bool {
        self.finishing && !self.finished && place == self.una.plus(self.retained.len())
    }

    /// Whether `ack` can be true: RFC 5961 §5, (SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT.
    fn is_possible(&self, ack: Seq) -> bool {
        !self.highest.is_before(ack) && !ack.is_before(self.una.minus(self.largest_window))
    }

    /// Reads what the program acknowledges and how much it has room for.
    pub(super) fn acknowledge(&mut self, heard: &Acknowledgement) -> Answer {
        if !self.is_possible(heard.ack) {
            return Answer::Impossible;
        }
        let before = self.window;
        let progress = self.una.is_before(heard.ack);
        if progress {
            self.advance(heard.ack);
        }
        self.read_window(heard);
        if !progress && heard.bare && heard.ack == self.una && before == self.window {
            self.duplicate();
        }
        if progress {
            Answer::Progress
        } else {
            Answer::Old
        }
    }

    fn advance(&mut self, ack: Seq) {
        let octets = ack.since(self.una);
        self.finished |= octets > self.retained.len();
        self.retained.release(octets);
        self.una = ack;
        self.duplicates = 0;
        if self.next.is_before(ack) {
            self.next = ack;
        }
        let grown = self.cautious.map(|limit| limit + octets);
        self.cautious = grown.filter(|limit| *limit < self.window);
        self.recovering = self.recovering.filter(|end| ack.is_before(*end));
        self.lost = self.recovering.is_some();
    }

    fn read_window(&mut self, heard: &Acknowledgement) {
        let (seq, ack) = self.window_seen;
        let newer = seq.is_before(heard.seq) || (seq == heard.seq && !heard.ack.is_before(ack));
        if newer {
            self.window_seen = (heard.seq, heard.ack);
            self.window = usize::from(heard.window) << self.scale;
            self.largest_window = self.largest_window.max(self.window);
        }
    }

    fn duplicate(&mut self) {
        if !self.in_flight() || self.recovering.is_some() || self.cautious.is_some() {
            return;
        }
        self.duplicates = self.duplicates.saturating_add(1);
        if self.duplicates == DUPLICATES {
            self.recovering = Some(self.highest);
            self.lost = true;
        }
    }

    /// Nothing was acknowledged for too long: all that is under way is taken for lost.
    pub(super) fn rewind(&mut self) {
        self.next = self.una;
        self.cautious = Some(LARGEST);
        (self.recovering, self.lost, self.duplicates) = (None, false, 0);
    }

    /// The connection is broken: nothing will leave any more.
    pub(super) fn clear(&mut self) {
        self.retained = Retained::default();
        self.waiting = None;
        self.finishing = true;
    }
}

/// What the program has not acknowledged yet, in buffers of 64 KiB from the thread's store: the one copy on the way down. A flow that waits for
/// nothing owns no buffer, and one that is not allowed a whole buffer has one just as large as its bytes.
#[derive(Debug, Default)]
pub(super) struct Retained {
    buffers: VecDeque<Vec<u8>>,
    /// How much of the first buffer is acknowledged.
    start: usize,
    len: usize,
    memory: usize,
}

impl Retained {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What it takes, in octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// How many octets more fit in when it may take `most` octets of memory.
    pub(super) fn room(&self, most: usize) -> usize {
        let whole = |memory: usize| memory / BUFFER * BUFFER;
        match self.buffers.back() {
            Some(last) if last.capacity() >= BUFFER => {
                let more = whole(most.saturating_sub(self.memory));
                more.saturating_add(BUFFER.saturating_sub(last.len()))
            }
            _ if most >= BUFFER => whole(most).saturating_sub(self.len),
            _ => most.saturating_sub(self.len),
        }
    }

    /// Keeps octets, no more than there is [`Self::room`] for with so much memory.
    pub(super) fn push(&mut self, mut octets: &[u8], most: usize) {
        self.len += octets.len();
        while !octets.is_empty() {
            let buffer = self.back(octets.len(), most);
            let room = BUFFER - buffer.len();
            let (now, later) = octets.split_at(room.min(octets.len()));
            buffer.extend_from_slice(now);
            octets = later;
        }
    }

    /// A buffer with room for some of so many octets.
    fn back(&mut self, wanted: usize, most: usize) -> &mut Vec<u8> {
        match self.buffers.back() {
            Some(last) if last.capacity() >= BUFFER && last.len() < BUFFER => {}
            Some(last) if last.capacity() < BUFFER => self.widen(wanted, most),
            None if most < BUFFER => self.add(Vec::with_capacity(wanted)),
            _ => {
                let mut fresh = Vec::new();
                copy::provide(&mut fresh);
                self.add(fresh);
            }
        }
        let last = self.buffers.len() - 1;
        &mut self.buffers[last]
    }

    fn add(&mut self, buffer: Vec<u8>) {
        self.memory += buffer.capacity();
        self.buffers.push_back(buffer);
    }

    /// Makes room in a buffer that is smaller than others, and then the only one.
    fn widen(&mut self, wanted: usize, most: usize) {
        let Some(mut small) = self.buffers.pop_back() else {
            return;
        };
        self.memory -= small.capacity();
        small.drain(..std::mem::take(&mut self.start));
        match most {
            BUFFER.. => {
                let kept = std::mem::take(&mut small);
                copy::provide(&mut small);
                small.extend_from_slice(&kept);
            }
            _ => small.reserve_exact(wanted.min(BUFFER - small.len())),
        }
        self.add(small);
    }

    /// Forgets the first `octets`.
    pub(super) fn release(&mut self, octets: usize) {
        let octets = octets.min(self.len);
        self.len -= octets;
        self.start += octets;
        while self.start >= BUFFER || (self.len == 0 && !self.buffers.is_empty()) {
            self.start = self.start.saturating_sub(BUFFER);
            if let Some(mut buffer) = self.buffers.pop_front() {
                self.memory -= buffer.capacity();
                copy::take_back(&mut buffer);
            }
        }
        if self.len == 0 {
            self.start = 0;
        }
    }

    /// At most [`BUFFER`] octets from `offset` on: they lie in two buffers at most.
    pub(super) fn slices(&self, offset: usize, len: usize) -> [&[u8]; 2] {
        let from = self.start + offset;
        let (index, at) = (from / BUFFER, from % BUFFER);
        let first = self.piece(index, at, len);
        [first, self.piece(index + 1, 0, len - first.len())]
    }

    fn piece(&self, index: usize, at: usize, len: usize) -> &[u8] {
        let rest = self.buffers.get(index).and_then(|buffer| buffer.get(at..));
        let rest = rest.unwrap_or_default();
        rest.get(..len).unwrap_or(rest)
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        self.release(self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(window: u16, scale: u8) -> Send {
        let mut send = Send::new(Seq(u32::MAX - 10), 1000, scale);
        send.open(&ack(&send, 0, window));
        send
    }

    fn ack(send: &Send, octets: usize, window: u16) -> Acknowledgement {
        let (seq, ack, bare) = (Seq(1), send.una().plus(octets), true);
        Acknowledgement {
            seq,
            ack,
            window,
            bare,
        }
    }

    fn lens(send: &mut Send) -> Vec<usize> {
        std::iter::from_fn(|| send.poll().map(|portion| portion.len)).collect()
    }

    #[test]
    fn large_packets_are_whole_segments_and_the_last_one_is_what_is_left() {
        let mut send = ready(u16::MAX, 2);
        send.push(&vec![0; 150_500]);
        assert_eq!(lens(&mut send), [65_000, 65_000, 20_500]);
        send.acknowledge(&ack(&send, 150_500, 1));
        assert!(!send.in_flight());
    }

    #[test]
    fn the_window_is_never_overrun_and_no_silly_segment_leaves() {
        let mut send = ready(2500, 0);
        assert_eq!(send.room(1 << 20, false), 2500);
        send.push(&vec![0; 2600]);
        assert_eq!(lens(&mut send), [2000], "500 are not worth a packet");
        send.acknowledge(&ack(&send, 1000, 2500));
        assert_eq!(lens(&mut send), [600]);
    }

    #[test]
    fn room_comes_back_in_pieces_that_are_worth_a_packet() {
        let mut send = ready(u16::MAX, 1);
        send.push(&vec![0; 131_070]);
        assert_eq!(lens(&mut send).len(), 3);
        let room = |send: &Send| send.room(1 << 20, true);
        send.acknowledge(&ack(&send, 20_000, u16::MAX));
        assert_eq!((room(&send), send.room(1 << 20, false)), (0, 20_000));
        send.acknowledge(&ack(&send, 46_000, u16::MAX));
        assert_eq!(room(&send), 66_000);
        send.acknowledge(&ack(&send, 65_070, 50));
        assert_eq!(room(&send), 100, "nothing more will come");
    }

    #[test]
    fn three_equal_acknowledgements_bring_the_first_segment_again_and_then_the_next_missing() {
        let mut send = ready(u16::MAX, 4);
        send.push(&vec![0; 200_000]);
        assert_eq!(lens(&mut send).len(), 4);
        let same = ack(&send, 0, u16::MAX);
        for _ in 0..2 {
            send.acknowledge(&same);
            assert_eq!(send.poll(), None);
        }
        send.acknowledge(&same);
        let again = send.poll().expect("the first segment");
        assert_eq!((again.offset, again.len), (0, 65_000));
        send.acknowledge(&same);
        assert_eq!(send.poll(), None);
        send.acknowledge(&ack(&send, 130_000, u16::MAX));
        let next = send.poll().expect("the next one that is missing");
        assert_eq!((next.seq, next.len), (send.una(), 65_000));
        send.acknowledge(&ack(&send, 70_000, u16::MAX));
        assert_eq!((send.poll(), send.in_flight()), (None, false));
    }

    #[test]
    fn after_a_timeout_everything_leaves_again_from_one_packet_on() {
        let mut send = ready(u16::MAX, 4);
        send.push(&vec![0; 300_000]);
        send.finish();
        assert_eq!(lens(&mut send).len(), 5);
        send.rewind();
        assert_eq!(lens(&mut send), [65_000]);
        send.acknowledge(&ack(&send, 65_000, u16::MAX));
        assert_eq!(lens(&mut send), [65_000, 65_000]);
        send.acknowledge(&ack(&send, 235_001, u16::MAX));
        assert!(send.finished() && !send.in_flight());
    }

    #[test]
    fn an_acknowledgement_of_what_never_left_is_impossible() {
        let mut send = ready(1000, 0);
        assert_eq!(send.acknowledge(&ack(&send, 1, 1000)), Answer::Impossible);
        let mut old = ack(&send, 0, 1000);
        old.ack = send.una().minus(1001);
        assert_eq!(send.acknowledge(&old), Answer::Impossible);
        old.ack = send.una().minus(1000);
        assert_eq!(send.acknowledge(&old), Answer::Old);
    }

    #[test]
    fn the_end_waits_for_the_window() {
        let mut send = ready(0, 0);
        send.finish();
        assert!(send.poll().is_none() && send.blocked());
        send.acknowledge(&ack(&send, 0, 10));
        assert!(send.poll().is_some_and(|portion| portion.fin));
        assert!(send.poll().is_none() && !send.blocked());
    }
}

#[cfg(test)]
mod retained_tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_pushed_is_found_at_its_place(
            steps in prop::collection::vec(
                (0_usize..150_000, 0_usize..150_000, prop_oneof![Just(usize::MAX), 0_usize..5000, 0_usize..300_000]), 1..20),
        ) {
            let (mut retained, mut pushed, mut released) = (Retained::default(), Vec::new(), 0);
            for (push, release, most) in steps {
                let push = push.min(retained.room(most));
                let before = retained.memory();
                let octets: Vec<u8> = (0..push).map(|n| u8::try_from((pushed.len() + n) % 251).expect("small")).collect();
                retained.push(&octets, most);
                prop_assert!(retained.memory() <= most.max(before), "{} of {most}", retained.memory());
                pushed.extend(octets);
                retained.release(release);
                released = (released + release).min(pushed.len());
                let expected = &pushed[released..];
                prop_assert_eq!(retained.len(), expected.len());
                let len = expected.len().min(BUFFER);
                prop_assert_eq!(retained.slices(0, len).concat(), &expected[..len]);
                let end = retained.slices(expected.len() - len, len).concat();
                prop_assert_eq!(end, &expected[expected.len() - len..]);
                prop_assert!(!expected.is_empty() || retained.buffers.is_empty());
                prop_assert_eq!(retained.memory(), retained.buffers.iter().map(Vec::capacity).sum::<usize>());
            }
        }
    }
}
