//! The receive side: what the program sends, put in order and kept until the overlay takes it, and the window that follows from that.
//! RFC 9293 §3.4, §3.8.6.2 (window management), RFC 7323 §2 (window scaling).

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, Bytes};
use tokio::time::Instant;

use super::connection::Seq;
use crate::copy::{self, BUFFER};

/// How many acknowledgements one batch of segments may leave owing: as many copies as a sender wants to see.
const MAX_ACKS_OWED: u8 = 8;
/// This many make the program send what was dropped again, now that there is room (RFC 5681 §3.2).
const DUP_ACK_THRESHOLD: u8 = 3;
/// A window grows by no less than this (silly window syndrome, RFC 9293 §3.8.6.2.2).
const MIN_WINDOW_UPDATE: usize = 1460;

/// What the program sends, put in order and kept until the overlay takes it, and the window that follows from that.
#[derive(Debug)]
pub(super) struct ReceiveSide {
    /// What is expected next (RCV.NXT).
    next: Seq,
    /// The end of the window that was told (RCV.NXT + RCV.WND); it never moves back.
    window_edge: Seq,
    /// The most that waits here, in bytes.
    capacity: usize,
    /// The most that it takes, in bytes of memory: the budget's, so it changes, and may be below what was promised.
    memory_limit: usize,
    scale: u8,
    queue: ReceiveQueue,
    out_of_order: OutOfOrder,
    /// Where the program's bytes end, once it has said so.
    fin_at: Option<Seq>,
    fin_received: bool,
    discarding: bool,
    acks_owed: u8,
    /// Bytes within the window were dropped for want of memory.
    dropped: bool,
    /// The end of what waited at a time, and that time, until all of it is taken.
    waiting_since: Option<(Seq, Instant)>,
}

/// The shift that lets 16 bits tell a window of this many bytes.
pub(super) fn window_scale(window: usize) -> u8 {
    let enough = |shift: &u8| window <= 65_535 << shift;
    (0..14).find(enough).unwrap_or(14)
}

impl ReceiveSide {
    /// Expects the program's bytes from `next` on; without `scale` no window is above 65,535.
    pub(super) fn new(next: Seq, window: usize, scale: Option<u8>) -> Self {
        let scale = scale.unwrap_or(0);
        Self {
            next,
            window_edge: next,
            capacity: window.clamp(1, 65_535 << scale),
            memory_limit: usize::MAX,
            scale,
            queue: ReceiveQueue::default(),
            out_of_order: OutOfOrder::default(),
            fin_at: None,
            fin_received: false,
            discarding: false,
            acks_owed: 0,
            dropped: false,
            waiting_since: None,
        }
    }

    pub(super) fn next(&self) -> Seq {
        self.next
    }

    /// What the overlay may take now.
    pub(super) fn queue(&self) -> &ReceiveQueue {
        &self.queue
    }

    /// Whether the program has finished; what it sent may still wait in the queue.
    pub(super) fn fin_received(&self) -> bool {
        self.fin_received
    }

    /// Whether a segment belongs here: it touches what is expected, or the window. More lenient than RFC 9293 §3.4 by the
    /// borders, as other stacks are: a closed window must let acknowledgements and the end in.
    pub(super) fn is_acceptable(&self, seq: Seq, len: usize) -> bool {
        !self.window_edge.is_before(seq) && !seq.plus(len).is_before(self.next)
    }

    /// Takes a segment that is expected: its payload, and whether it ends the program's bytes.
    pub(super) fn take(&mut self, seq: Seq, mut payload: Bytes, mut fin: bool) {
        let (old, room) = (self.next.since(seq), self.window_edge.since(seq));
        if payload.len() > room {
            payload.truncate(room);
            fin = false;
        }
        if fin {
            self.fin_at = Some(seq.plus(payload.len()));
        }
        payload.advance(old.min(payload.len()));
        let in_order = !self.next.is_before(seq);
        if in_order {
            self.push(payload)
        } else {
            let memory_left = self.memory_left();
            self.out_of_order.insert(seq, payload, memory_left);
        }
        self.finish();
        self.owe_ack(in_order);
    }

    fn push(&mut self, payload: Bytes) {
        let mut following = Some(payload).filter(|payload| !payload.is_empty());
        while let Some(payload) = following {
            let (len, memory_left) = (payload.len(), self.memory_left());
            let accepted = if self.discarding {
                len
            } else {
                self.queue.push(payload, memory_left)
            };
            self.next = self.next.plus(accepted);
            if accepted < len {
                self.dropped = true;
                return;
            }
            following = self.out_of_order.take(self.next);
        }
    }

    /// How much memory it takes, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.queue.memory() + self.out_of_order.memory()
    }

    /// From now on no more memory than this: what is here stays, what comes above it is dropped, and windows that are told sink.
    pub(super) fn limit(&mut self, memory_limit: usize) {
        self.memory_limit = memory_limit;
    }

    fn memory_left(&self) -> usize {
        self.memory_limit.saturating_sub(self.memory())
    }

    /// Since when, at least, what is first has waited for the overlay, or for what is missing before it.
    pub(super) fn waiting_since(&mut self, now: Instant) -> Option<Instant> {
        let (len, fin) = (self.queue.len(), usize::from(self.fin_received));
        let end = self.next.minus(fin);
        let place = match (len, self.out_of_order.is_empty()) {
            (0, true) => {
                self.waiting_since = None;
                return None;
            }
            (0, false) => end.plus(1),
            _ => end,
        };
        let head = end.minus(len);
        let waiting = self.waiting_since;
        let waiting = waiting.filter(|(place, _)| head.is_before(*place));
        self.waiting_since = waiting.or(Some((place, now)));
        self.waiting_since.map(|(_, since)| since)
    }

    /// The end counts as one byte, for which there is always room.
    fn finish(&mut self) {
        if self.fin_received || self.fin_at != Some(self.next) {
            return;
        }
        self.fin_received = true;
        self.next = self.next.plus(1);
        if self.window_edge.is_before(self.next) {
            self.window_edge = self.next;
        }
    }

    /// An acknowledgement is owed: one for all that came in order, one each for what did not, so that the sender counts them.
    pub(super) fn owe_ack(&mut self, coalesced: bool) {
        self.acks_owed = if coalesced {
            self.acks_owed.max(1)
        } else {
            self.acks_owed.saturating_add(1).min(MAX_ACKS_OWED)
        };
    }

    pub(super) fn owes_ack(&self) -> bool {
        self.acks_owed > 0
    }

    /// One acknowledgement leaves.
    pub(super) fn ack_sent(&mut self) {
        self.acks_owed = self.acks_owed.saturating_sub(1);
    }

    /// The window as a header tells it, moved as far as there is room. `scaled` is false in a SYN.
    pub(super) fn advertise(&mut self, scaled: bool) -> u16 {
        let scale = if scaled { self.scale } else { 0 };
        let room = self.room();
        let grown = room.saturating_sub(self.window_edge.since(self.next));
        if grown >= MIN_WINDOW_UPDATE.min(self.capacity.div_ceil(2)) {
            let advertised = (room >> scale).min(65_535) << scale;
            let window_edge = self.next.plus(advertised);
            if self.window_edge.is_before(window_edge) {
                self.window_edge = window_edge;
            }
        }
        u16::try_from(self.window_edge.since(self.next) >> scale).unwrap_or(u16::MAX)
    }

    fn room(&self) -> usize {
        let memory = self.memory_left().saturating_add(self.queue.spare());
        let bytes = self.capacity.saturating_sub(self.queue.len());
        bytes.min(memory)
    }

    /// The overlay took this many bytes. The program hears of it when it may be waiting for room.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.queue.consume(bytes);
        let (advertised, room) = (self.window_edge.since(self.next), self.room());
        let (grown, whole) = (room.saturating_sub(advertised), room + self.queue.len());
        if self.fin_received {
            return;
        }
        if advertised < whole.div_ceil(2) && grown >= whole.div_ceil(4) {
            self.owe_ack(true);
        }
        if self.dropped && room >= MIN_WINDOW_UPDATE {
            (self.dropped, self.acks_owed) = (false, self.acks_owed.max(DUP_ACK_THRESHOLD));
        }
    }

    /// From now on what the program sends is acknowledged and forgotten.
    pub(super) fn discard(&mut self) {
        self.discarding = true;
        self.consume(self.queue.len());
    }

    /// The connection is broken: nothing of what waits is worth anything.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.out_of_order = OutOfOrder::default();
        self.waiting_since = None;
    }
}

/// A payload of at least this many bytes is not copied.
pub(super) const MIN_SHARED: usize = 16 * 1024;
/// What such a payload counts for: the device's buffer that it lies in.
pub(super) const SHARED_MEMORY: usize = 66 * 1024;
/// What is copied where no whole buffer is allowed begins with this many bytes.
const MIN_COPY_BUFFER: usize = 2048;

/// What the program has sent and the overlay has not taken yet. Large payloads stay in the packets that brought them; small ones are gathered,
/// so that a lone byte holds no packet of 64 KiB. How many there may be is the window's business, and the budget's.
#[derive(Debug, Default)]
pub(super) struct ReceiveQueue {
    chunks: VecDeque<Chunk>,
    len: usize,
    memory: usize,
}

#[derive(Debug)]
enum Chunk {
    Shared(Bytes),
    Copied { buffer: Vec<u8>, read: usize },
}

impl Chunk {
    fn rest(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::Copied { buffer, read } => buffer.get(*read..).unwrap_or_default(),
        }
    }

    fn advance(&mut self, bytes: usize) {
        match self {
            Self::Shared(slice) => slice.advance(bytes),
            Self::Copied { read, .. } => *read += bytes,
        }
    }

    /// How many bytes may still be copied behind what was gathered.
    fn spare(&self) -> usize {
        match self {
            Self::Shared(_) => 0,
            Self::Copied { buffer, .. } => buffer.capacity() - buffer.len(),
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::Shared(_) => SHARED_MEMORY,
            Self::Copied { buffer, .. } => buffer.capacity(),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Self::Copied { buffer, .. } = self {
            copy::take_back_buffer(buffer);
        }
    }
}

impl ReceiveQueue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How much memory it takes, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// How many bytes more cost no memory.
    pub(super) fn spare(&self) -> usize {
        self.chunks.back().map_or(0, Chunk::spare)
    }

    /// Takes a payload, or what of it fits in when no more than `memory_limit` bytes of memory may be taken besides; answers how much that was.
    pub(super) fn push(&mut self, payload: Bytes, memory_limit: usize) -> usize {
        let whole = payload.len();
        let spare = self.spare();
        if whole > spare && whole >= MIN_SHARED && memory_limit >= SHARED_MEMORY {
            self.add(Chunk::Shared(payload));
            self.len += whole;
            return whole;
        }
        let (now, later) = payload.split_at(spare.min(whole));
        if let Some(Chunk::Copied { buffer, .. }) = self.chunks.back_mut() {
            buffer.extend_from_slice(now);
        }
        let fitting = match memory_limit {
            BUFFER.. => later.len().min(BUFFER),
            _ => later.len().min(memory_limit),
        };
        if let Some(fitting) = later.get(..fitting).filter(|rest| !rest.is_empty()) {
            self.add(copied(fitting, memory_limit));
        }
        self.len += now.len() + fitting;
        now.len() + fitting
    }

    fn add(&mut self, chunk: Chunk) {
        self.memory += chunk.memory();
        self.chunks.push_back(chunk);
    }

    /// Puts the first pieces into `slices`; answers with how many there are.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pairs = slices.iter_mut().zip(&self.chunks);
        let fill = |(slice, chunk): (&mut IoSlice<'a>, &'a Chunk)| {
            *slice = IoSlice::new(chunk.rest());
        };
        pairs.map(fill).count()
    }

    /// Forgets the first `bytes`.
    pub(super) fn consume(&mut self, bytes: usize) {
        let mut bytes = bytes.min(self.len);
        self.len -= bytes;
        while let Some(first) = self.chunks.front_mut() {
            let here = first.rest().len().min(bytes);
            first.advance(here);
            bytes -= here;
            if !first.rest().is_empty() {
                return;
            }
            self.memory -= first.memory();
            self.chunks.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn copied(payload: &[u8], memory_limit: usize) -> Chunk {
    let (mut buffer, read) = (Vec::new(), 0);
    match memory_limit {
        BUFFER.. => copy::provide_buffer(&mut buffer),
        _ => buffer.reserve_exact(payload.len().max(MIN_COPY_BUFFER.min(memory_limit))),
    }
    buffer.extend_from_slice(payload);
    Chunk::Copied { buffer, read }
}

/// How many are kept; further ones are dropped and will be sent again.
const MAX_OUT_OF_ORDER: usize = 32;

/// Segments that came before their turn, in the order of their places, kept so that the program sends only the missing one again; they may
/// overlap. RFC 9293 §3.10.7.4: "segments with higher beginning sequence numbers SHOULD be held for later processing".
#[derive(Debug, Default)]
pub(super) struct OutOfOrder {
    chunks: Vec<(Seq, Bytes)>,
}

impl OutOfOrder {
    /// How much memory they take, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.chunks.iter().map(|(_, chunk)| memory(chunk)).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Keeps a piece, unless there are too many, it is here already, or it takes more than `memory_limit` bytes of memory.
    pub(super) fn insert(&mut self, seq: Seq, payload: Bytes, memory_limit: usize) {
        let place = self.chunks.partition_point(|(at, _)| at.is_before(seq));
        let same = |(at, piece): &(Seq, Bytes)| *at == seq && piece.len() >= payload.len();
        let full = self.chunks.len() >= MAX_OUT_OF_ORDER || memory(&payload) > memory_limit;
        if full || self.chunks.get(place).is_some_and(same) {
            return;
        }
        let payload = match payload.len() {
            MIN_SHARED.. => payload,
            _ => Bytes::copy_from_slice(&payload),
        };
        self.chunks.insert(place, (seq, payload));
    }

    /// What continues at `next`, if it is here.
    pub(super) fn take(&mut self, next: Seq) -> Option<Bytes> {
        while let Some((seq, _)) = self.chunks.first() {
            if next.is_before(*seq) {
                return None;
            }
            let (seq, mut payload) = self.chunks.remove(0);
            let old = next.since(seq);
            if old < payload.len() {
                payload.advance(old);
                return Some(payload);
            }
        }
        self.chunks = Vec::new();
        None
    }
}

fn memory(chunk: &Bytes) -> usize {
    match chunk.len() {
        MIN_SHARED.. => SHARED_MEMORY,
        len => len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(receive: &ReceiveSide) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let count = receive.queue().slices(&mut slices);
        slices[..count].iter().flat_map(|s| s.to_vec()).collect()
    }

    #[test]
    fn a_window_is_closed_by_what_waits_and_opened_again_by_what_is_taken() {
        let mut receive = ReceiveSide::new(Seq(u32::MAX), 1 << 20, Some(window_scale(1 << 20)));
        assert_eq!(receive.advertise(false), u16::MAX);
        assert_eq!(receive.advertise(true), 1 << 15);
        let full = receive.window_edge.since(receive.next);
        receive.take(Seq(u32::MAX), Bytes::from(vec![0; 2 << 20]), true);
        assert_eq!(
            (receive.queue().len(), receive.fin_received()),
            (full, false)
        );
        receive.ack_sent();
        assert_eq!(receive.advertise(true), 0);
        receive.consume(full / 8);
        assert!(!receive.owes_ack(), "too little to tell");
        receive.consume(full / 4);
        assert!(receive.owes_ack());
        assert!(usize::from(receive.advertise(true)) << receive.scale >= full / 4);
    }

    #[test]
    fn segments_out_of_order_are_put_in_order_and_acknowledged_each() {
        let mut receive = ReceiveSide::new(Seq(10), 1000, None);
        receive.advertise(true);
        receive.take(Seq(14), Bytes::from_static(b"efg"), true);
        receive.take(Seq(12), Bytes::from_static(b"cde"), false);
        assert_eq!((receive.acks_owed, receive.fin_received()), (2, false));
        receive.take(Seq(10), Bytes::from_static(b"ab"), false);
        assert_eq!(received(&receive), b"abcdefg");
        assert_eq!((receive.next, receive.fin_received()), (Seq(18), true));
    }

    #[test]
    fn a_closed_window_lets_acknowledgements_and_the_end_in() {
        let mut receive = ReceiveSide::new(Seq(0), 4, None);
        receive.advertise(true);
        receive.take(Seq(0), Bytes::from_static(b"abcdef"), false);
        assert_eq!(receive.queue().len(), 4);
        assert!(receive.is_acceptable(Seq(4), 0) && !receive.is_acceptable(Seq(5), 0));
        receive.take(Seq(4), Bytes::from_static(b"ef"), false);
        assert_eq!((receive.next, receive.queue().len()), (Seq(4), 4));
        receive.take(Seq(4), Bytes::new(), true);
        assert!(receive.fin_received() && receive.is_acceptable(Seq(5), 0));
    }
}

#[cfg(test)]
mod queue_tests {
    use proptest::prelude::*;

    use super::*;

    fn content(queue: &ReceiveQueue) -> Vec<u8> {
        queue.chunks.iter().flat_map(Chunk::rest).copied().collect()
    }

    #[test]
    fn a_small_payload_holds_no_large_packet() {
        let packet = Bytes::from(vec![1; 60_000]);
        let mut queue = ReceiveQueue::default();
        queue.push(packet.slice(..MIN_SHARED - 1), usize::MAX);
        assert!(packet.is_unique());
        queue.push(packet.slice(MIN_SHARED - 1..), usize::MAX);
        assert!(packet.is_unique(), "there was room behind the first");
        queue.push(packet.slice(..MIN_SHARED), usize::MAX);
        assert!(!packet.is_unique());
    }

    proptest! {
        #[test]
        fn bytes_leave_in_the_order_in_which_they_came(
            steps in prop::collection::vec(
                (0_usize..65_000, 0_usize..70_000, prop_oneof![Just(usize::MAX), 0_usize..5000, 0_usize..100_000]), 1..20),
        ) {
            let (mut queue, mut expected, mut next) = (ReceiveQueue::default(), Vec::new(), 0_u8);
            for (push, consume, memory_limit) in steps {
                next = next.wrapping_add(1);
                let before = queue.memory();
                let taken = queue.push(Bytes::from(vec![next; push]), memory_limit);
                prop_assert!(taken <= push && (taken == push || memory_limit < SHARED_MEMORY));
                prop_assert!(queue.memory() - before <= memory_limit);
                expected.extend(vec![next; taken]);
                queue.consume(consume);
                expected.drain(..consume.min(expected.len()));
                prop_assert_eq!(queue.len(), expected.len());
                prop_assert_eq!(content(&queue), expected.clone());
                prop_assert!(queue.chunks.iter().all(|chunk| !chunk.rest().is_empty()));
                prop_assert_eq!(queue.memory(), queue.chunks.iter().map(Chunk::memory).sum::<usize>());
            }
        }
    }
}

#[cfg(test)]
mod out_of_order_tests {
    use super::*;

    #[test]
    fn overlapping_pieces_are_joined_and_the_number_is_bounded() {
        let mut out_of_order = OutOfOrder::default();
        out_of_order.insert(Seq(2), Bytes::from_static(b"cd"), 100);
        out_of_order.insert(Seq(1), Bytes::from_static(b"bc"), 100);
        out_of_order.insert(Seq(1), Bytes::from_static(b"b"), 100);
        assert_eq!(out_of_order.take(Seq(0)), None);
        assert_eq!(out_of_order.take(Seq(1)).as_deref(), Some(&b"bc"[..]));
        assert_eq!(out_of_order.take(Seq(3)).as_deref(), Some(&b"d"[..]));
        assert_eq!(out_of_order.take(Seq(4)), None);
        for n in 0..1000 {
            out_of_order.insert(Seq(n * 2), Bytes::from_static(b"x"), 100);
        }
        assert_eq!(
            (out_of_order.chunks.len(), out_of_order.memory()),
            (MAX_OUT_OF_ORDER, MAX_OUT_OF_ORDER)
        );
        out_of_order = OutOfOrder::default();
        out_of_order.insert(Seq(1), Bytes::from_static(b"ab"), 1);
        assert!(out_of_order.is_empty());
    }
}
