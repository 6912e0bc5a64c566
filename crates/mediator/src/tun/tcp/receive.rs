//! The receive side: what the program sends, put in order and kept until the overlay takes it, and the window that follows from that.
//! A part of the machine. RFC 9293 §3.4, §3.8.6.2 (window management), RFC 7323 §2 (window scaling).

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, Bytes};
use tokio::time::Instant;

use super::machine::Seq;
use crate::copy::{self, BUFFER};

/// How many acknowledgements one batch of segments may leave owing: as many copies as a sender wants to see.
const OWED: u8 = 8;
/// So many make the program send what was dropped again, now that there is room (RFC 5681 §3.2).
const DUPLICATES: u8 = 3;
/// A window grows by no less than this (silly window syndrome, RFC 9293 §3.8.6.2.2).
const WORTHWHILE: usize = 1460;

#[derive(Debug)]
pub(super) struct Receive {
    /// What is expected next (RCV.NXT).
    next: Seq,
    /// The end of the window that was told (RCV.NXT + RCV.WND); it never moves back.
    edge: Seq,
    /// The most that waits here, in octets.
    capacity: usize,
    /// The most that it takes, in octets of memory: the budget's, so it changes, and may be below what was promised.
    most: usize,
    scale: u8,
    queue: Queue,
    early: Early,
    /// Where the program's octets end, once it has said so.
    end: Option<Seq>,
    ended: bool,
    discarding: bool,
    owed: u8,
    /// Octets within the window were dropped for want of memory.
    dropped: bool,
    /// The end of what waited at a time, and that time, until all of it is taken.
    waiting: Option<(Seq, Instant)>,
}

/// The shift that lets 16 bits tell a window of so many octets.
pub(super) fn scale_for(window: usize) -> u8 {
    let enough = |shift: &u8| window <= 65_535 << shift;
    (0..14).find(enough).unwrap_or(14)
}

impl Receive {
    /// Expects the program's octets from `next` on; without `scale` no window is above 65,535.
    pub(super) fn new(next: Seq, window: usize, scale: Option<u8>) -> Self {
        let scale = scale.unwrap_or(0);
        Self {
            next,
            edge: next,
            capacity: window.clamp(1, 65_535 << scale),
            most: usize::MAX,
            scale,
            queue: Queue::default(),
            early: Early::default(),
            end: None,
            ended: false,
            discarding: false,
            owed: 0,
            dropped: false,
            waiting: None,
        }
    }

    pub(super) fn next(&self) -> Seq {
        self.next
    }

    /// What the overlay may take now.
    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Whether the program has finished; what it sent may still wait in the queue.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether a segment belongs here: it touches what is expected, or the window. More lenient than RFC 9293 §3.4 by the
    /// borders, as other stacks are: a closed window must let acknowledgements and the end in.
    pub(super) fn expects(&self, seq: Seq, len: usize) -> bool {
        !self.edge.is_before(seq) && !seq.plus(len).is_before(self.next)
    }

    /// Takes a segment that is expected: its payload, and whether it ends the program's octets.
    pub(super) fn take(&mut self, seq: Seq, mut payload: Bytes, mut fin: bool) {
        let (old, room) = (self.next.since(seq), self.edge.since(seq));
        if payload.len() > room {
            payload.truncate(room);
            fin = false;
        }
        if fin {
            self.end = Some(seq.plus(payload.len()));
        }
        payload.advance(old.min(payload.len()));
        let in_order = !self.next.is_before(seq);
        if in_order {
            self.push(payload)
        } else {
            let more = self.more();
            self.early.insert(seq, payload, more);
        }
        self.finish();
        self.owe(in_order);
    }

    fn push(&mut self, payload: Bytes) {
        let mut following = Some(payload).filter(|payload| !payload.is_empty());
        while let Some(payload) = following {
            let (len, more) = (payload.len(), self.more());
            let taken = if self.discarding {
                len
            } else {
                self.queue.push(payload, more)
            };
            self.next = self.next.plus(taken);
            if taken < len {
                self.dropped = true;
                return;
            }
            following = self.early.take(self.next);
        }
    }

    /// What it takes, in octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.queue.memory() + self.early.memory()
    }

    /// From now on no more memory than this: what is here stays, what comes above it is dropped, and windows that are told sink.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    fn more(&self) -> usize {
        self.most.saturating_sub(self.memory())
    }

    /// Since when, at least, what is first has waited for the overlay, or for what is missing before it.
    pub(super) fn waits_since(&mut self, now: Instant) -> Option<Instant> {
        let (len, ended) = (self.queue.len(), usize::from(self.ended));
        let end = self.next.minus(ended);
        let place = match (len, self.early.is_empty()) {
            (0, true) => {
                self.waiting = None;
                return None;
            }
            (0, false) => end.plus(1),
            _ => end,
        };
        let head = end.minus(len);
        let waiting = self.waiting.filter(|(place, _)| head.is_before(*place));
        self.waiting = waiting.or(Some((place, now)));
        self.waiting.map(|(_, since)| since)
    }

    /// The end counts as one octet, for which there is always room.
    fn finish(&mut self) {
        if self.ended || self.end != Some(self.next) {
            return;
        }
        self.ended = true;
        self.next = self.next.plus(1);
        if self.edge.is_before(self.next) {
            self.edge = self.next;
        }
    }

    /// An acknowledgement is owed: one for all that came in order, one each for what did not, so that the sender counts them.
    pub(super) fn owe(&mut self, coalesced: bool) {
        self.owed = if coalesced {
            self.owed.max(1)
        } else {
            self.owed.saturating_add(1).min(OWED)
        };
    }

    pub(super) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// One acknowledgement leaves.
    pub(super) fn paid(&mut self) {
        self.owed = self.owed.saturating_sub(1);
    }

    /// The window as a header tells it, moved as far as there is room. `scaled` is false in a SYN.
    pub(super) fn advertise(&mut self, scaled: bool) -> u16 {
        let scale = if scaled { self.scale } else { 0 };
        let room = self.room();
        let grown = room.saturating_sub(self.edge.since(self.next));
        if grown >= WORTHWHILE.min(self.capacity.div_ceil(2)) {
            let told = (room >> scale).min(65_535) << scale;
            let edge = self.next.plus(told);
            if self.edge.is_before(edge) {
                self.edge = edge;
            }
        }
        u16::try_from(self.edge.since(self.next) >> scale).unwrap_or(u16::MAX)
    }

    fn room(&self) -> usize {
        let memory = self.more().saturating_add(self.queue.spare());
        let octets = self.capacity.saturating_sub(self.queue.len());
        octets.min(memory)
    }

    /// The overlay took so many octets. The program hears of it when it may be waiting for room.
    pub(super) fn consume(&mut self, octets: usize) {
        self.queue.consume(octets);
        let (told, room) = (self.edge.since(self.next), self.room());
        let (grown, whole) = (room.saturating_sub(told), room + self.queue.len());
        if self.ended {
            return;
        }
        if told < whole.div_ceil(2) && grown >= whole.div_ceil(4) {
            self.owe(true);
        }
        if self.dropped && room >= WORTHWHILE {
            (self.dropped, self.owed) = (false, self.owed.max(DUPLICATES));
        }
    }

    /// From now on what the program sends is acknowledged and forgotten.
    pub(super) fn discard(&mut self) {
        self.discarding = true;
        let waiting = self.queue.len();
        self.consume(waiting);
    }

    /// The connection is broken: nothing of what waits is worth anything.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.early = Early::default();
        self.waiting = None;
    }
}

/// A payload of at least so many octets is not copied.
pub(super) const LARGE: usize = 16 * 1024;
/// What such a payload counts for: the device's buffer that it lies in.
pub(super) const SLICE: usize = 66 * 1024;
/// What is gathered where no whole buffer is allowed begins with so many octets.
const SMALL: usize = 2048;

/// What the program has sent and the overlay has not taken yet. Large payloads stay in the packets that brought them; small ones are gathered,
/// so that a lone byte holds no packet of 64 KiB. How many there may be is the window's business, and the budget's.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pieces: VecDeque<Piece>,
    len: usize,
    memory: usize,
}

#[derive(Debug)]
enum Piece {
    Sliced(Bytes),
    Gathered { buffer: Vec<u8>, read: usize },
}

impl Piece {
    fn rest(&self) -> &[u8] {
        match self {
            Self::Sliced(octets) => octets,
            Self::Gathered { buffer, read } => buffer.get(*read..).unwrap_or_default(),
        }
    }

    fn advance(&mut self, octets: usize) {
        match self {
            Self::Sliced(slice) => slice.advance(octets),
            Self::Gathered { read, .. } => *read += octets,
        }
    }

    /// How many octets may still be copied behind what was gathered.
    fn spare(&self) -> usize {
        match self {
            Self::Sliced(_) => 0,
            Self::Gathered { buffer, .. } => buffer.capacity() - buffer.len(),
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::Sliced(_) => SLICE,
            Self::Gathered { buffer, .. } => buffer.capacity(),
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Self::Gathered { buffer, .. } = self {
            copy::take_back(buffer);
        }
    }
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What it takes, in octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// How many octets more cost no memory.
    pub(super) fn spare(&self) -> usize {
        self.pieces.back().map_or(0, Piece::spare)
    }

    /// Takes a payload, or what of it fits in when no more than `most` octets of memory may be taken besides; answers how much that was.
    pub(super) fn push(&mut self, payload: Bytes, most: usize) -> usize {
        let whole = payload.len();
        let spare = self.spare();
        if whole > spare && whole >= LARGE && most >= SLICE {
            self.add(Piece::Sliced(payload));
            self.len += whole;
            return whole;
        }
        let (now, later) = payload.split_at(spare.min(whole));
        if let Some(Piece::Gathered { buffer, .. }) = self.pieces.back_mut() {
            buffer.extend_from_slice(now);
        }
        let fitting = match most {
            BUFFER.. => later.len().min(BUFFER),
            _ => later.len().min(most),
        };
        if let Some(fitting) = later.get(..fitting).filter(|rest| !rest.is_empty()) {
            self.add(gathered(fitting, most));
        }
        self.len += now.len() + fitting;
        now.len() + fitting
    }

    fn add(&mut self, piece: Piece) {
        self.memory += piece.memory();
        self.pieces.push_back(piece);
    }

    /// Puts the first pieces into `slices`; answers with how many there are.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pairs = slices.iter_mut().zip(&self.pieces);
        let fill = |(slice, piece): (&mut IoSlice<'a>, &'a Piece)| {
            *slice = IoSlice::new(piece.rest());
        };
        pairs.map(fill).count()
    }

    /// Forgets the first `octets`.
    pub(super) fn consume(&mut self, octets: usize) {
        let mut octets = octets.min(self.len);
        self.len -= octets;
        while let Some(first) = self.pieces.front_mut() {
            let here = first.rest().len().min(octets);
            first.advance(here);
            octets -= here;
            if !first.rest().is_empty() {
                return;
            }
            self.memory -= first.memory();
            self.pieces.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn gathered(payload: &[u8], most: usize) -> Piece {
    let (mut buffer, read) = (Vec::new(), 0);
    match most {
        BUFFER.. => copy::provide(&mut buffer),
        _ => buffer.reserve_exact(payload.len().max(SMALL.min(most))),
    }
    buffer.extend_from_slice(payload);
    Piece::Gathered { buffer, read }
}

/// How many are kept; further ones are dropped and will be sent again.
const KEPT: usize = 32;

/// Segments that came before their turn, in the order of their places, kept so that the program sends only the missing one again; they may
/// overlap. RFC 9293 §3.10.7.4: "segments with higher beginning sequence numbers SHOULD be held for later processing".
#[derive(Debug, Default)]
pub(super) struct Early {
    pieces: Vec<(Seq, Bytes)>,
}

impl Early {
    /// What they take, in octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.pieces.iter().map(|(_, piece)| memory(piece)).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Keeps a piece, unless there are too many, it is here already, or it takes more than `most` octets of memory.
    pub(super) fn insert(&mut self, seq: Seq, payload: Bytes, most: usize) {
        let place = self.pieces.partition_point(|(at, _)| at.is_before(seq));
        let same = |(at, held): &(Seq, Bytes)| *at == seq && held.len() >= payload.len();
        let full = self.pieces.len() >= KEPT || memory(&payload) > most;
        if full || self.pieces.get(place).is_some_and(same) {
            return;
        }
        let payload = match payload.len() {
            LARGE.. => payload,
            _ => Bytes::copy_from_slice(&payload),
        };
        self.pieces.insert(place, (seq, payload));
    }

    /// What continues at `next`, if it is here.
    pub(super) fn take(&mut self, next: Seq) -> Option<Bytes> {
        while let Some((seq, _)) = self.pieces.first() {
            if next.is_before(*seq) {
                return None;
            }
            let (seq, mut payload) = self.pieces.remove(0);
            let old = next.since(seq);
            if old < payload.len() {
                payload.advance(old);
                return Some(payload);
            }
        }
        self.pieces = Vec::new();
        None
    }
}

fn memory(piece: &Bytes) -> usize {
    match piece.len() {
        LARGE.. => SLICE,
        len => len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(receive: &Receive) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let count = receive.queue().slices(&mut slices);
        slices[..count].iter().flat_map(|s| s.to_vec()).collect()
    }

    #[test]
    fn a_window_is_closed_by_what_waits_and_opened_again_by_what_is_taken() {
        let mut receive = Receive::new(Seq(u32::MAX), 1 << 20, Some(scale_for(1 << 20)));
        assert_eq!(receive.advertise(false), u16::MAX);
        assert_eq!(receive.advertise(true), 1 << 15);
        let full = receive.edge.since(receive.next);
        receive.take(Seq(u32::MAX), Bytes::from(vec![0; 2 << 20]), true);
        assert_eq!((receive.queue().len(), receive.ended()), (full, false));
        receive.paid();
        assert_eq!(receive.advertise(true), 0);
        receive.consume(full / 8);
        assert!(!receive.owes(), "too little to tell");
        receive.consume(full / 4);
        assert!(receive.owes());
        assert!(usize::from(receive.advertise(true)) << receive.scale >= full / 4);
    }

    #[test]
    fn segments_out_of_order_are_put_in_order_and_acknowledged_each() {
        let mut receive = Receive::new(Seq(10), 1000, None);
        receive.advertise(true);
        receive.take(Seq(14), Bytes::from_static(b"efg"), true);
        receive.take(Seq(12), Bytes::from_static(b"cde"), false);
        assert_eq!((receive.owed, receive.ended()), (2, false));
        receive.take(Seq(10), Bytes::from_static(b"ab"), false);
        assert_eq!(taken(&receive), b"abcdefg");
        assert_eq!((receive.next, receive.ended()), (Seq(18), true));
    }

    #[test]
    fn a_closed_window_lets_acknowledgements_and_the_end_in() {
        let mut receive = Receive::new(Seq(0), 4, None);
        receive.advertise(true);
        receive.take(Seq(0), Bytes::from_static(b"abcdef"), false);
        assert_eq!(receive.queue().len(), 4);
        assert!(receive.expects(Seq(4), 0) && !receive.expects(Seq(5), 0));
        receive.take(Seq(4), Bytes::from_static(b"ef"), false);
        assert_eq!((receive.next, receive.queue().len()), (Seq(4), 4));
        receive.take(Seq(4), Bytes::new(), true);
        assert!(receive.ended() && receive.expects(Seq(5), 0));
    }
}

#[cfg(test)]
mod queue_tests {
    use proptest::prelude::*;

    use super::*;

    fn content(queue: &Queue) -> Vec<u8> {
        queue.pieces.iter().flat_map(Piece::rest).copied().collect()
    }

    #[test]
    fn a_small_payload_holds_no_large_packet() {
        let packet = Bytes::from(vec![1; 60_000]);
        let mut queue = Queue::default();
        queue.push(packet.slice(..LARGE - 1), usize::MAX);
        assert!(packet.is_unique());
        queue.push(packet.slice(LARGE - 1..), usize::MAX);
        assert!(packet.is_unique(), "there was room behind the first");
        queue.push(packet.slice(..LARGE), usize::MAX);
        assert!(!packet.is_unique());
    }

    proptest! {
        #[test]
        fn octets_leave_in_the_order_in_which_they_came(
            steps in prop::collection::vec(
                (0_usize..65_000, 0_usize..70_000, prop_oneof![Just(usize::MAX), 0_usize..5000, 0_usize..100_000]), 1..20),
        ) {
            let (mut queue, mut expected, mut next) = (Queue::default(), Vec::new(), 0_u8);
            for (push, consume, most) in steps {
                next = next.wrapping_add(1);
                let before = queue.memory();
                let taken = queue.push(Bytes::from(vec![next; push]), most);
                prop_assert!(taken <= push && (taken == push || most < SLICE));
                prop_assert!(queue.memory() - before <= most);
                expected.extend(vec![next; taken]);
                queue.consume(consume);
                expected.drain(..consume.min(expected.len()));
                prop_assert_eq!(queue.len(), expected.len());
                prop_assert_eq!(content(&queue), expected.clone());
                prop_assert!(queue.pieces.iter().all(|piece| !piece.rest().is_empty()));
                prop_assert_eq!(queue.memory(), queue.pieces.iter().map(Piece::memory).sum::<usize>());
            }
        }
    }
}

#[cfg(test)]
mod early_tests {
    use super::*;

    #[test]
    fn overlapping_pieces_are_joined_and_the_number_is_bounded() {
        let mut early = Early::default();
        early.insert(Seq(2), Bytes::from_static(b"cd"), 100);
        early.insert(Seq(1), Bytes::from_static(b"bc"), 100);
        early.insert(Seq(1), Bytes::from_static(b"b"), 100);
        assert_eq!(early.take(Seq(0)), None);
        assert_eq!(early.take(Seq(1)).as_deref(), Some(&b"bc"[..]));
        assert_eq!(early.take(Seq(3)).as_deref(), Some(&b"d"[..]));
        assert_eq!(early.take(Seq(4)), None);
        for n in 0..1000 {
            early.insert(Seq(n * 2), Bytes::from_static(b"x"), 100);
        }
        assert_eq!((early.pieces.len(), early.memory()), (KEPT, KEPT));
        early = Early::default();
        early.insert(Seq(1), Bytes::from_static(b"ab"), 1);
        assert!(early.is_empty());
    }
}
