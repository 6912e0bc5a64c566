//! The send side: what the overlay has sent, kept until the program acknowledges it, and what of it may leave now.
//! RFC 9293 §3.10.7.4 (acknowledgements), §3.8.6.2.1 (silly windows); RFC 5681 §3.2 and RFC 6582 (fast
//! retransmit, with one segment for each acknowledgement while more is missing); RFC 5961 §5.
//!
//! We do no congestion control, because between the program and us is no network: its window alone limits what is under way.
//! What is lost fell out of a full queue; so after a timeout what is under way starts again from one segment.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::connection::Seq;
use crate::copy::{self, BUFFER};

/// The largest payload: with the headers of either IP version and all their options below 65,536 bytes.
pub(super) const MAX_PAYLOAD: usize = 65_400;
/// This many equal acknowledgements mean that a segment is missing.
const DUP_ACK_THRESHOLD: u8 = 3;

/// What the overlay has sent, kept until the program acknowledges it, and the program's window.
#[derive(Debug)]
pub(super) struct SendSide {
    /// The first byte that is not acknowledged (SND.UNA).
    una: Seq,
    /// What leaves next (SND.NXT); after a timeout it is `una` again.
    next: Seq,
    /// The end of all that has ever left (SND.MAX).
    highest: Seq,
    /// The program's window, in bytes.
    window: usize,
    largest_window: usize,
    /// The segment that the window was last read from (SND.WL1, SND.WL2).
    window_update: (Seq, Seq),
    /// The shift of the program's window.
    scale: u8,
    mss: usize,
    unacked: RetransmitBuffer,
    /// The most memory that is taken for it, in bytes: the budget's.
    memory_limit: usize,
    /// The end of what waited for its acknowledgement at a time, and that time, until all of it is acknowledged.
    waiting_since: Option<(Seq, Instant)>,
    /// The overlay's bytes have ended: after them comes a FIN.
    fin_queued: bool,
    fin_acked: bool,
    dup_acks: u8,
    /// Up to where what is missing is sent again, a segment for each acknowledgement (`recover` of RFC 6582).
    recovery_point: Option<Seq>,
    /// The first segment must leave again.
    retransmit_due: bool,
    /// What may be under way, after a timeout.
    timeout_window: Option<usize>,
}

/// What a segment's acknowledgement and window say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledgement {
    pub(super) seq: Seq,
    pub(super) ack: Seq,
    /// The window field of the header, not scaled.
    pub(super) window: u16,
    /// Whether nothing else is in the segment.
    pub(super) bare: bool,
}

/// What an acknowledgement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckOutcome {
    /// Nobody in this connection can have sent it.
    Invalid,
    /// It acknowledges nothing new.
    Old,
    /// Something was acknowledged for the first time.
    New,
}

/// Which bytes leave in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendRange {
    pub(super) seq: Seq,
    /// Where they are: see [`SendSide::payload`].
    pub(super) offset: usize,
    pub(super) len: usize,
    /// Whether the end is among them.
    pub(super) fin: bool,
    /// Whether nothing follows for now.
    pub(super) last: bool,
}

impl SendSide {
    /// Sends from `next` on, in segments of at most `mss` bytes.
    pub(super) fn new(next: Seq, mss: usize, scale: u8) -> Self {
        Self {
            una: next,
            next,
            highest: next,
            window: 0,
            largest_window: 0,
            window_update: (Seq(0), Seq(0)),
            scale,
            mss: mss.clamp(64, MAX_PAYLOAD),
            unacked: RetransmitBuffer::default(),
            memory_limit: usize::MAX,
            waiting_since: None,
            fin_queued: false,
            fin_acked: false,
            dup_acks: 0,
            recovery_point: None,
            retransmit_due: false,
            timeout_window: None,
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
    pub(super) fn fin_acked(&self) -> bool {
        self.fin_acked
    }

    /// The connection stands: the program's window holds from now on.
    pub(super) fn open(&mut self, first: &Acknowledgement) {
        self.window_update = (first.seq.minus(1), first.ack);
        self.read_window(first);
    }

    /// How many bytes may be handed over now: no more than the program has room for, and none after the end. To whoever was refused
    /// before (`again`), no crumbs as long as acknowledgements will bring more.
    pub(super) fn room(&self, limit: usize, again: bool) -> usize {
        let limit = if self.fin_queued {
            0
        } else {
            self.window.min(limit)
        };
        let unacked = self.unacked.len();
        let limit = limit.min(unacked.saturating_add(self.unacked.room(self.memory_limit)));
        let room = limit.saturating_sub(unacked);
        let crumb = again && room < MAX_PAYLOAD && room < limit.div_ceil(2);
        if crumb { 0 } else { room }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.unacked.push(bytes, self.memory_limit);
    }

    /// What is kept takes this many bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.unacked.memory()
    }

    /// From now on no more memory than this is taken; what is here stays.
    pub(super) fn limit(&mut self, memory_limit: usize) {
        self.memory_limit = memory_limit;
    }

    /// Since when, at least, what is first has waited for the program's acknowledgement.
    pub(super) fn waiting_since(&mut self, now: Instant) -> Option<Instant> {
        let waiting_since = self
            .waiting_since
            .filter(|(place, _)| self.una.is_before(*place));
        let place = self.una.plus(self.unacked.len());
        self.waiting_since = match self.unacked.len() {
            0 => None,
            _ => waiting_since.or(Some((place, now))),
        };
        self.waiting_since.map(|(_, since)| since)
    }

    /// Nothing more will be handed over.
    pub(super) fn finish(&mut self) {
        self.fin_queued = true;
    }

    /// What was handed over and has not left (or must leave again), in bytes.
    pub(super) fn unsent(&self) -> usize {
        self.unacked.len().saturating_sub(self.offset())
    }

    /// Whether all that was handed over is acknowledged.
    pub(super) fn is_drained(&self) -> bool {
        self.unacked.len() == 0
    }

    /// Whether something waits that the program's window does not let through.
    pub(super) fn blocked(&self) -> bool {
        self.usable() == 0 && (self.unsent() > 0 || self.fin_is_next(self.next))
    }

    pub(super) fn window_closed(&self) -> bool {
        self.window == 0
    }

    pub(super) fn payload(&self, range: &SendRange) -> [&[u8]; 2] {
        self.unacked.slices(range.offset, range.len)
    }

    /// The bytes of the next segment; `None` when nothing may leave now.
    pub(super) fn poll(&mut self) -> Option<SendRange> {
        if std::mem::take(&mut self.retransmit_due) {
            return self.retransmit_first();
        }
        let (offset, usable) = (self.offset(), self.usable());
        let len = self.segment_len(self.unsent().min(usable), offset);
        let fin = usable > len && self.fin_is_next(self.next.plus(len));
        if len == 0 && !fin {
            return None;
        }
        let range = self.range(offset, len, fin);
        self.next = self.next.plus(len + usize::from(fin));
        if self.highest.is_before(self.next) {
            self.highest = self.next;
        }
        Some(range)
    }

    /// How much of `possible` bytes is worth a packet: whole segments as long as more follows, nothing that is small while
    /// something is under way (its acknowledgement will bring room), at most what one packet holds.
    fn segment_len(&self, possible: usize, in_flight: usize) -> usize {
        let most = MAX_PAYLOAD - MAX_PAYLOAD % self.mss;
        match possible {
            all if all == self.unsent() => all.min(most),
            small if small < self.mss && in_flight > 0 => 0,
            small if small < self.mss => small,
            some => (some - some % self.mss).min(most),
        }
    }

    /// The first segment once more; what leaves next stays what it was.
    fn retransmit_first(&mut self) -> Option<SendRange> {
        let sent = self.highest.since(self.una);
        let most = MAX_PAYLOAD - MAX_PAYLOAD % self.mss;
        let len = self.unacked.len().min(sent).min(most);
        let fin = sent > len && self.fin_is_next(self.una.plus(len));
        (len > 0 || fin).then(|| self.range(0, len, fin))
    }

    fn range(&self, offset: usize, len: usize, fin: bool) -> SendRange {
        SendRange {
            seq: self.una.plus(offset),
            offset,
            len,
            fin,
            last: offset + len == self.unacked.len(),
        }
    }

    fn offset(&self) -> usize {
        self.next.since(self.una)
    }

    fn usable(&self) -> usize {
        let limit = self.timeout_window.unwrap_or(usize::MAX).min(self.window);
        limit.saturating_sub(self.offset())
    }

    /// Whether the FIN has the sequence number `place`.
    fn fin_is_next(&self, place: Seq) -> bool {
        self.fin_queued && !self.fin_acked && place == self.una.plus(self.unacked.len())
    }

    /// Whether `ack` can be true: RFC 5961 §5, (SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT.
    fn is_valid(&self, ack: Seq) -> bool {
        !self.highest.is_before(ack) && !ack.is_before(self.una.minus(self.largest_window))
    }

    /// Reads what the program acknowledges and how much it has room for.
    pub(super) fn acknowledge(&mut self, heard: &Acknowledgement) -> AckOutcome {
        if !self.is_valid(heard.ack) {
            return AckOutcome::Invalid;
        }
        let before = self.window;
        let progress = self.una.is_before(heard.ack);
        if progress {
            self.advance(heard.ack);
        }
        self.read_window(heard);
        if !progress && heard.bare && heard.ack == self.una && before == self.window {
            self.duplicate_ack();
        }
        if progress {
            AckOutcome::New
        } else {
            AckOutcome::Old
        }
    }

    fn advance(&mut self, ack: Seq) {
        let bytes = ack.since(self.una);
        self.fin_acked |= bytes > self.unacked.len();
        self.unacked.release(bytes);
        self.una = ack;
        self.dup_acks = 0;
        if self.next.is_before(ack) {
            self.next = ack;
        }
        let grown = self.timeout_window.map(|limit| limit + bytes);
        self.timeout_window = grown.filter(|limit| *limit < self.window);
        self.recovery_point = self.recovery_point.filter(|end| ack.is_before(*end));
        self.retransmit_due = self.recovery_point.is_some();
    }

    fn read_window(&mut self, heard: &Acknowledgement) {
        let (seq, ack) = self.window_update;
        let newer = seq.is_before(heard.seq) || (seq == heard.seq && !heard.ack.is_before(ack));
        if newer {
            self.window_update = (heard.seq, heard.ack);
            self.window = usize::from(heard.window) << self.scale;
            self.largest_window = self.largest_window.max(self.window);
        }
    }

    fn duplicate_ack(&mut self) {
        if !self.in_flight() || self.recovery_point.is_some() || self.timeout_window.is_some() {
            return;
        }
        self.dup_acks = self.dup_acks.saturating_add(1);
        if self.dup_acks == DUP_ACK_THRESHOLD {
            self.recovery_point = Some(self.highest);
            self.retransmit_due = true;
        }
    }

    /// Nothing was acknowledged for too long: all that is under way is taken for lost.
    pub(super) fn retransmit_all(&mut self) {
        self.next = self.una;
        self.timeout_window = Some(MAX_PAYLOAD);
        (self.recovery_point, self.retransmit_due, self.dup_acks) = (None, false, 0);
    }

    /// The connection is broken: nothing will leave any more.
    pub(super) fn clear(&mut self) {
        self.unacked = RetransmitBuffer::default();
        self.waiting_since = None;
        self.fin_queued = true;
    }
}

/// What the program has not acknowledged yet, in buffers of 64 KiB from the thread's store: the one copy on the way down. A flow that waits for
/// nothing owns no buffer, and one that is not allowed a whole buffer has one just as large as its bytes.
#[derive(Debug, Default)]
pub(super) struct RetransmitBuffer {
    buffers: VecDeque<Vec<u8>>,
    /// How much of the first buffer is acknowledged.
    start: usize,
    len: usize,
    memory: usize,
}

impl RetransmitBuffer {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How much memory it takes, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// How many bytes more fit in when it may take `memory_limit` bytes of memory.
    pub(super) fn room(&self, memory_limit: usize) -> usize {
        let whole_buffers = |memory: usize| memory / BUFFER * BUFFER;
        match self.buffers.back() {
            Some(last) if last.capacity() >= BUFFER => {
                let more = whole_buffers(memory_limit.saturating_sub(self.memory));
                more.saturating_add(BUFFER.saturating_sub(last.len()))
            }
            _ if memory_limit >= BUFFER => whole_buffers(memory_limit).saturating_sub(self.len),
            _ => memory_limit.saturating_sub(self.len),
        }
    }

    /// Keeps bytes, no more than there is [`Self::room`] for with so much memory.
    pub(super) fn push(&mut self, mut bytes: &[u8], memory_limit: usize) {
        self.len += bytes.len();
        while !bytes.is_empty() {
            let buffer = self.back(bytes.len(), memory_limit);
            let room = BUFFER - buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            buffer.extend_from_slice(now);
            bytes = later;
        }
    }

    /// A buffer with room for some of this many bytes.
    fn back(&mut self, wanted: usize, memory_limit: usize) -> &mut Vec<u8> {
        match self.buffers.back() {
            Some(last) if last.capacity() >= BUFFER && last.len() < BUFFER => {}
            Some(last) if last.capacity() < BUFFER => self.widen(wanted, memory_limit),
            None if memory_limit < BUFFER => self.add(Vec::with_capacity(wanted)),
            _ => {
                let mut fresh = Vec::new();
                copy::provide_buffer(&mut fresh);
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
    fn widen(&mut self, wanted: usize, memory_limit: usize) {
        let Some(mut small) = self.buffers.pop_back() else {
            return;
        };
        self.memory -= small.capacity();
        small.drain(..std::mem::take(&mut self.start));
        match memory_limit {
            BUFFER.. => {
                let content = std::mem::take(&mut small);
                copy::provide_buffer(&mut small);
                small.extend_from_slice(&content);
            }
            _ => small.reserve_exact(wanted.min(BUFFER - small.len())),
        }
        self.add(small);
    }

    /// Forgets the first `bytes`.
    pub(super) fn release(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len);
        self.len -= bytes;
        self.start += bytes;
        while self.start >= BUFFER || (self.len == 0 && !self.buffers.is_empty()) {
            self.start = self.start.saturating_sub(BUFFER);
            if let Some(mut buffer) = self.buffers.pop_front() {
                self.memory -= buffer.capacity();
                copy::take_back_buffer(&mut buffer);
            }
        }
        if self.len == 0 {
            self.start = 0;
        }
    }

    /// At most [`BUFFER`] bytes from `offset` on: they lie in two buffers at most.
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

impl Drop for RetransmitBuffer {
    fn drop(&mut self) {
        self.release(self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(window: u16, scale: u8) -> SendSide {
        let mut send = SendSide::new(Seq(u32::MAX - 10), 1000, scale);
        send.open(&ack(&send, 0, window));
        send
    }

    fn ack(send: &SendSide, bytes: usize, window: u16) -> Acknowledgement {
        let (seq, ack, bare) = (Seq(1), send.una().plus(bytes), true);
        Acknowledgement {
            seq,
            ack,
            window,
            bare,
        }
    }

    fn lens(send: &mut SendSide) -> Vec<usize> {
        std::iter::from_fn(|| send.poll().map(|range| range.len)).collect()
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
        let room = |send: &SendSide| send.room(1 << 20, true);
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
        send.retransmit_all();
        assert_eq!(lens(&mut send), [65_000]);
        send.acknowledge(&ack(&send, 65_000, u16::MAX));
        assert_eq!(lens(&mut send), [65_000, 65_000]);
        send.acknowledge(&ack(&send, 235_001, u16::MAX));
        assert!(send.fin_acked() && !send.in_flight());
    }

    #[test]
    fn an_acknowledgement_of_what_never_left_is_impossible() {
        let mut send = ready(1000, 0);
        assert_eq!(send.acknowledge(&ack(&send, 1, 1000)), AckOutcome::Invalid);
        let mut old = ack(&send, 0, 1000);
        old.ack = send.una().minus(1001);
        assert_eq!(send.acknowledge(&old), AckOutcome::Invalid);
        old.ack = send.una().minus(1000);
        assert_eq!(send.acknowledge(&old), AckOutcome::Old);
    }

    #[test]
    fn the_end_waits_for_the_window() {
        let mut send = ready(0, 0);
        send.finish();
        assert!(send.poll().is_none() && send.blocked());
        send.acknowledge(&ack(&send, 0, 10));
        assert!(send.poll().is_some_and(|range| range.fin));
        assert!(send.poll().is_none() && !send.blocked());
    }
}

#[cfg(test)]
mod unacked_tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_pushed_is_found_at_its_place(
            steps in prop::collection::vec(
                (0_usize..150_000, 0_usize..150_000, prop_oneof![Just(usize::MAX), 0_usize..5000, 0_usize..300_000]), 1..20),
        ) {
            let (mut unacked, mut pushed, mut released) = (RetransmitBuffer::default(), Vec::new(), 0);
            for (push, release, memory_limit) in steps {
                let push = push.min(unacked.room(memory_limit));
                let before = unacked.memory();
                let bytes: Vec<u8> = (0..push).map(|n| u8::try_from((pushed.len() + n) % 251).expect("small")).collect();
                unacked.push(&bytes, memory_limit);
                prop_assert!(unacked.memory() <= memory_limit.max(before), "{} of {memory_limit}", unacked.memory());
                pushed.extend(bytes);
                unacked.release(release);
                released = (released + release).min(pushed.len());
                let expected = &pushed[released..];
                prop_assert_eq!(unacked.len(), expected.len());
                let len = expected.len().min(BUFFER);
                prop_assert_eq!(unacked.slices(0, len).concat(), &expected[..len]);
                let end = unacked.slices(expected.len() - len, len).concat();
                prop_assert_eq!(end, &expected[expected.len() - len..]);
                prop_assert!(!expected.is_empty() || unacked.buffers.is_empty());
                prop_assert_eq!(unacked.memory(), unacked.buffers.iter().map(Vec::capacity).sum::<usize>());
            }
        }
    }
}
