//! The receive side: what the program sends, put in order and kept until the overlay takes it, and the window that follows from that.
//! A part of the machine. RFC 9293 §3.4, §3.8.6.2 (window management), RFC 7323 §2 (window scaling).

use bytes::{Buf, Bytes};
use tokio::time::Instant;

use super::{early::Early, queue::Queue, sequence::Seq};

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
        match in_order {
            true => self.push(payload),
            false => {
                let more = self.more();
                self.early.insert(seq, payload, more);
            }
        }
        self.finish();
        self.owe(in_order);
    }

    fn push(&mut self, payload: Bytes) {
        let mut following = Some(payload).filter(|payload| !payload.is_empty());
        while let Some(payload) = following {
            let (len, more) = (payload.len(), self.more());
            let taken = match self.discarding {
                true => len,
                false => self.queue.push(payload, more),
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
        self.owed = match coalesced {
            true => self.owed.max(1),
            false => self.owed.saturating_add(1).min(OWED),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(receive: &Receive) -> Vec<u8> {
        let mut slices = [std::io::IoSlice::new(&[]); 16];
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
