//! What the stack holds of a connection's streams: all that has come and that nobody has read, with the packets that it came in. The stack keeps the whole
//! packet for each piece of it, and as long as the piece: a peer that sends one byte of a stream in each packet, or leaves gaps behind which nobody can
//! read, has it hold a thousand times what flow control counts. So what is held is bounded beside the window. A packet for which there is no room is not
//! taken, as if the network had lost it: it is not acknowledged, and what was in it comes again (RFC 9000 §13.3). No clock.
//!
//! ```text
//!               decrypted            read, ended
//!   packets ──────────────▶ Held ◀──────────────── streams of the driver
//!           ◀── lost ──────
//! ```
//!
//! **What counts**: a piece that is a third of a full packet or more, and goes on above all that has come of its stream, is left to flow control, which
//! counts a third of it or more. Of the others all is known until it is read, and their packets are copied, without padding: what came with one in a call
//! shares its memory.
//!
//! **Nobody stands still for it**: a packet is taken beyond the bound, up to twice as much, if something of it can be read at once where nothing could; and
//! in any case if it brings nothing else. Who sends what can be read only together with what cannot, again and again, waits.
//!
//! Nothing is known of packets that the stack drops by itself: those that came before, and those before the handshake and after the end.

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    mem,
    sync::Arc,
};

use bytes::BytesMut;
use hoplite_wire::quic_frames::{Content, Frames};
use parking_lot::Mutex;

/// What a connection may hold for each byte of its window: of a cell that has a packet to itself twice as much is held.
const OF_WINDOW: u64 = 4;
/// And beside that, in bytes: what one round trip brings of programs that write a few bytes at a time.
const BESIDE: u64 = 128 << 10;
/// A piece that is a third of its packet or more does not count,
const LARGE: u64 = 3;
/// of one of so many bytes at least.
const FULL: u64 = 1000;
/// The stack knows whether a packet came before, of those so far below the highest; others it takes for such (`Dedup`).
const WINDOW_SIZE: u64 = 129;
/// What the stack keeps for a piece beside its packet, in bytes.
const PIECE: u64 = 64;
/// Pieces of a stream that are known one by one; those beyond that touch are known by so many bytes together.
const SINGLE: usize = 1024;
const TOGETHER: u64 = 64 << 10;

/// What one connection's streams hold. Its hooks tell of packets, its driver of who reads.
#[derive(Debug)]
pub(crate) struct Held(Mutex<Streams>);

#[derive(Debug)]
struct Streams {
    /// What the peer may send ahead of who reads, and what it still may beyond that, as the window was wider.
    window: u64,
    owed: u64,
    /// What is held.
    bytes: u64,
    packets: Packets,
    /// Those that have begun and have not ended.
    streams: BTreeMap<u64, Stream>,
    seen: Seen,
    is_established: bool,
    has_ended: bool,
    /// Of each of the four types (RFC 9000 §2.1): streams below were told of by the driver. One that is not among `streams` has ended.
    begun: [u64; 4],
}

#[derive(Debug, Default)]
struct Stream {
    /// So many bytes of it were read.
    read: u64,
    /// Nothing of it has come from here on.
    highest: u64,
    /// So many bytes have come, and some of them twice.
    came: u64,
    /// What has come of it since, by where it begins.
    pieces: VecDeque<Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    end: u64,
    /// What it came in.
    packet: usize,
    /// What is held for it beside that.
    bytes: u64,
}

/// Packets that pieces keep: how large each is, and how many pieces keep it.
#[derive(Debug, Default)]
struct Packets {
    kept: Vec<(u64, usize)>,
    free: Vec<usize>,
}

thread_local!(static BEGUN: Cell<Option<Arc<Held>>> = const { Cell::new(None) });

impl Held {
    /// Of a connection that begins, with this window.
    pub(crate) fn begin(window: u64) -> Arc<Self> {
        let held = Arc::new(Self(Mutex::new(Streams::new(window))));
        BEGUN.set(Some(Arc::clone(&held)));
        held
    }

    /// What the connection holds that `begin` has the stack begin on this thread, if that is bounded: the stack does not hand out what its hooks have.
    pub(crate) fn of<T>(begin: impl FnOnce() -> T) -> (T, Option<Arc<Self>>) {
        BEGUN.set(None);
        let begun = begin();
        (begun, BEGUN.take())
    }

    /// The peer may send so much ahead of who reads, from now on.
    pub(crate) fn set_window(&self, window: u64) {
        let mut streams = self.0.lock();
        streams.owed += streams.window.saturating_sub(window);
        streams.window = window;
    }

    /// The handshake is over: the stack takes packets of 1-RTT from now on.
    pub(crate) fn establish(&self) {
        self.0.lock().is_established = true;
    }

    /// The connection has ended: the stack takes no more. What has come of streams that somebody has he may still read.
    pub(crate) fn end(&self) {
        let mut streams = self.0.lock();
        let mut left = mem::take(&mut streams.streams);
        for stream in left.values_mut() {
            stream.pieces = VecDeque::new();
        }
        *streams = Streams {
            has_ended: true,
            streams: left,
            ..Streams::new(streams.window)
        };
    }

    /// A packet of 0-RTT or 1-RTT has come, with these frames. Whether the stack may have it.
    pub(crate) fn has_room(&self, payload: &[u8]) -> bool {
        self.0.lock().has_room(payload)
    }

    /// The stack gets it.
    pub(crate) fn keep(&self, number: u64, payload: &mut BytesMut, is_early: bool) {
        let mut streams = self.0.lock();
        let drops = streams.has_ended || !(streams.is_established || is_early);
        if drops || !streams.seen.insert(number) || !streams.counts(payload) {
            return;
        }
        let size = without_padding(payload);
        *payload = BytesMut::from(payload.get(..size).unwrap_or_default());
        streams.keep(payload);
    }

    /// The driver has this stream from now on.
    pub(crate) fn begin_stream(&self, id: u64) {
        let mut streams = self.0.lock();
        let begun = &mut streams.begun[kind(id)];
        *begun = (id + 4).max(*begun);
        streams.streams.entry(id).or_default();
    }

    /// So many bytes of a stream were read.
    pub(crate) fn read(&self, id: u64, bytes: u64) {
        self.0.lock().read(id, bytes);
    }

    /// Nothing more is held of a stream, and nothing will be.
    pub(crate) fn end_stream(&self, id: u64) {
        let streams = &mut *self.0.lock();
        for piece in streams
            .streams
            .remove(&id)
            .into_iter()
            .flat_map(|stream| stream.pieces)
        {
            streams.bytes -= piece.bytes + streams.packets.release(piece.packet);
        }
    }

    /// What is held of a stream, of which `window` bytes may come ahead of who reads: what has come and was not read, with the gaps between, or where that
    /// is more, pieces that count with their packets, as if each were alone in its own.
    pub(crate) fn waiting(&self, id: u64, window: u64) -> u64 {
        let streams = self.0.lock();
        let Some(stream) = streams.streams.get(&id) else {
            return 0;
        };
        // The stack has not looked at it yet, and may refuse what goes beyond.
        let ahead = stream.highest.saturating_sub(stream.read).min(window);
        let packet = |piece: &Piece| streams.packets.kept[piece.packet].0;
        let pieces = stream.pieces.iter();
        ahead.max(pieces.map(|piece| piece.bytes + packet(piece)).sum())
    }

    /// What has come and nobody has read, without gaps.
    pub(crate) fn unread(&self) -> u64 {
        let streams = self.0.lock();
        let all = streams.streams.values();
        let came = all.map(|stream| {
            let came = stream.came.min(stream.highest);
            came.saturating_sub(stream.read)
        });
        came.fold(0, u64::saturating_add)
    }

    /// How many bytes are held.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }
}

const fn kind(id: u64) -> usize {
    (id & 3) as usize
}

/// Where each frame's bytes stand in which stream.
fn pieces(payload: &[u8]) -> impl Iterator<Item = (u64, u64, u64)> {
    let frames = Frames::new(payload).map_while(Result::ok);
    frames.filter_map(|frame| match frame.content {
        Content::Stream {
            id, offset, data, ..
        } if !data.is_empty() => Some((id, offset, offset.saturating_add(data.len() as u64))),
        _ => None,
    })
}

/// Whether a piece is left to flow control, of a packet of this size, if nothing like it has come before.
fn is_large((_, start, end): (u64, u64, u64), size: usize) -> bool {
    (end - start) * LARGE >= FULL.max(size as u64)
}

/// Where the padding begins that a packet ends with.
fn without_padding(payload: &[u8]) -> usize {
    let (mut at, mut end) = (0, 0);
    for frame in Frames::new(payload) {
        let Ok(frame) = frame else {
            return payload.len();
        };
        at += frame.size;
        if frame.content != Content::Padding {
            end = at;
        }
    }
    end
}

impl Streams {
    fn new(window: u64) -> Self {
        Self {
            window,
            owed: 0,
            bytes: 0,
            packets: Packets::default(),
            seen: Seen::default(),
            is_established: false,
            has_ended: false,
            streams: BTreeMap::new(),
            begun: [0; 4],
        }
    }

    fn most(&self) -> u64 {
        let may_come = self.window.saturating_add(self.owed);
        may_come.saturating_mul(OF_WINDOW).saturating_add(BESIDE)
    }

    fn has_room(&self, payload: &[u8]) -> bool {
        if self.has_ended || self.bytes < self.most() {
            return true;
        }
        let reads_on = |(id, start, end)| self.reads_on(id, start, end);
        let is_left = |piece| is_large(piece, payload.len()) && self.is_above_all(piece);
        let mut counted = pieces(payload).filter(|piece| !is_left(*piece));
        match (counted.next(), counted.next()) {
            (None, _) => true,
            (Some(only), None) if reads_on(only) => true,
            _ => self.bytes < self.most().saturating_mul(2) && pieces(payload).any(reads_on),
        }
    }

    fn is_above_all(&self, (id, start, _): (u64, u64, u64)) -> bool {
        self.streams
            .get(&id)
            .is_none_or(|stream| start >= stream.highest)
    }

    /// Whether anything of a packet counts. What does not is known to have come.
    fn counts(&mut self, payload: &[u8]) -> bool {
        let mut counts = false;
        for piece @ (id, start, end) in pieces(payload) {
            if self.has_ended(id) {
                continue;
            }
            let stream = self.streams.entry(id).or_default();
            counts |= !is_large(piece, payload.len()) || start < stream.highest;
            stream.highest = stream.highest.max(end);
            stream.came = stream.came.saturating_add(end - start);
        }
        counts
    }

    fn keep(&mut self, payload: &[u8]) {
        let size = payload.len() as u64;
        let packet = self.packets.begin(size);
        self.bytes += size;
        for (id, start, end) in pieces(payload) {
            if self.has_ended(id) {
                continue;
            }
            let stream = self.streams.entry(id).or_default();
            if end <= stream.read {
                continue;
            }
            let piece = Piece {
                start,
                end,
                packet,
                bytes: PIECE,
            };
            self.bytes += if stream.joins(piece, size) {
                PIECE + size
            } else {
                self.packets.keep(packet);
                PIECE
            };
        }
        self.bytes -= self.packets.release(packet);
    }

    fn has_ended(&self, id: u64) -> bool {
        id < self.begun[kind(id)] && !self.streams.contains_key(&id)
    }

    /// Whether this can be read at once, where nothing could, or is of no use to anybody.
    fn reads_on(&self, id: u64, start: u64, end: u64) -> bool {
        let Some(stream) = self.streams.get(&id) else {
            return self.has_ended(id) || start == 0;
        };
        let waits = stream.pieces.front();
        end <= stream.read
            || (start <= stream.read && waits.is_none_or(|piece| piece.start > stream.read))
    }

    fn read(&mut self, id: u64, bytes: u64) {
        self.owed = self.owed.saturating_sub(bytes);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.read += bytes;
        while let Some(piece) = stream.pieces.pop_front_if(|piece| piece.end <= stream.read) {
            self.bytes -= piece.bytes + self.packets.release(piece.packet);
        }
    }
}

/// Which packets have come.
#[derive(Debug, Default)]
struct Seen {
    /// One above the highest.
    next: u64,
    /// Of those below the highest, the next one first.
    window: u128,
}

impl Seen {
    /// Whether it is new to the stack.
    fn insert(&mut self, number: u64) -> bool {
        if let Some(more) = number.checked_sub(self.next) {
            let before = (self.window << 1) | u128::from(self.next > 0);
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.window = before.checked_shl(more).unwrap_or(0);
            self.next = number.saturating_add(1);
            return true;
        }
        let below = self.next - 1 - number;
        if below == 0 || below >= WINDOW_SIZE {
            return false;
        }
        let bit = 1 << (below - 1);
        let is_new = self.window & bit == 0;
        self.window |= bit;
        is_new
    }
}

impl Packets {
    /// One of so many bytes, kept until it is released.
    fn begin(&mut self, bytes: u64) -> usize {
        let packet = self.free.pop().unwrap_or(self.kept.len());
        if packet == self.kept.len() {
            self.kept.push((bytes, 1));
        } else {
            self.kept[packet] = (bytes, 1);
        }
        packet
    }

    fn keep(&mut self, packet: usize) {
        self.kept[packet].1 += 1;
    }

    /// How many bytes are held no more.
    fn release(&mut self, packet: usize) -> u64 {
        let (bytes, pieces) = &mut self.kept[packet];
        *pieces -= 1;
        if *pieces > 0 {
            return 0;
        }
        self.free.push(packet);
        *bytes
    }
}

impl Stream {
    /// Whether it is known together with a piece that it touches, and not by itself. Its packet is of this size.
    fn joins(&mut self, piece: Piece, size: u64) -> bool {
        let after = |other: &Piece| other.start <= piece.start;
        let at = match self.pieces.back() {
            Some(last) if !after(last) => self.pieces.partition_point(after),
            _ => self.pieces.len(),
        };
        let more = piece.bytes + size;
        if self.pieces.len() >= SINGLE {
            let before = at.checked_sub(1).and_then(|at| self.pieces.get_mut(at));
            let touches = |other: &Piece| other.end >= piece.start && other.bytes < TOGETHER;
            if let Some(before) = before.filter(|before| touches(before)) {
                before.end = before.end.max(piece.end);
                before.bytes += more;
                return true;
            }
            let touches = |other: &Piece| other.start <= piece.end && other.bytes < TOGETHER;
            if let Some(after) = self.pieces.get_mut(at).filter(|after| touches(after)) {
                after.start = piece.start;
                after.end = after.end.max(piece.end);
                after.bytes += more;
                return true;
            }
        }
        self.pieces.insert(at, piece);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bytes::BufMut;
    use hoplite_wire::{quic_frames::kind, varint};
    use proptest::prelude::*;

    use super::*;

    const WINDOW: u64 = 32 << 10;
    const MOST: u64 = OF_WINDOW * WINDOW + BESIDE;
    const PACKET: usize = 1200;

    /// Frames with their lengths, and padding up to so many bytes.
    fn packet(frames: &[(u64, u64, usize)], size: usize) -> BytesMut {
        let mut payload = BytesMut::new();
        for (id, offset, bytes) in frames {
            for number in [kind::STREAM | 0x06, *id, *offset, *bytes as u64] {
                varint::write(&mut payload, number);
            }
            payload.put_bytes(7, *bytes);
        }
        // PING, as what is padded is not kept.
        payload.resize(payload.len().max(size), 1);
        payload
    }

    fn held() -> Held {
        let held = Held(Mutex::new(Streams::new(WINDOW)));
        held.establish();
        held
    }

    impl Held {
        fn take(&self, payload: &mut BytesMut) -> bool {
            let number = self.0.lock().seen.next;
            let has_room = self.has_room(payload);
            if has_room {
                self.keep(number, payload, false);
            }
            has_room
        }
    }

    #[test]
    fn gaps_behind_which_nobody_reads_hold_no_more_than_a_few_windows() {
        let held = held();
        let taken =
            (0..10_000_u64).filter(|n| held.take(&mut packet(&[(n % 256 * 4, 10 + n, 1)], PACKET)));
        assert!(taken.count() < 250);
        assert!(held.bytes() <= MOST + 2 * PACKET as u64);
        let many: Vec<_> = (0..150).map(|n| (4 * n, 7, 1)).collect();
        assert!(!held.take(&mut packet(&many, 0)));
        // With something that can be read it is taken, for a while.
        let with_one = |n| [&[(1000, n, 1)], &*many].concat();
        let taken = (0..1000).filter(|n| {
            let taken = held.take(&mut packet(&with_one(*n), PACKET));
            held.read(1000, u64::from(taken));
            taken
        });
        assert!(taken.count() < 30);
        assert!(held.bytes() <= 2 * MOST + 200 * PIECE);
    }

    #[test]
    fn what_fills_its_packet_is_left_to_flow_control() {
        let held = held();
        for cell in 0..1000 {
            assert!(held.take(&mut packet(&[(0, 514 + 514 * cell, 514)], PACKET)));
            assert!(
                held.take(&mut packet(&[(8, 2 * cell * 1100, 1100)], PACKET)),
                "gaps"
            );
        }
        assert_eq!(held.bytes(), 0);
        assert!(held.take(&mut packet(&[(4, 7, 2)], 0)));
        assert!(
            held.bytes() > 0,
            "small, in a packet that may share another's memory"
        );
        assert!(held.take(&mut packet(&[(0, 0, 1100), (4, 0, 1)], PACKET)));
        assert!(held.bytes() > 1100);
    }

    #[test]
    fn streams_that_are_read_go_on_beside_those_that_are_not() {
        let held = held();
        for n in 0..1000 {
            held.take(&mut packet(&[(4, 10 + 2 * n, 1)], PACKET));
        }
        held.begin_stream(0);
        for n in 0..1000 {
            assert!(held.take(&mut packet(&[(0, n, 1)], PACKET)));
            assert!(
                !held.take(&mut packet(&[(0, n, 1)], PACKET)),
                "that is there already"
            );
            assert!(!held.take(&mut packet(&[(0, n + 1, 1), (4, 9, 1)], PACKET)));
            held.read(0, 1);
        }
        // What was lost is taken and read, and all behind it: there is room again.
        assert!(held.take(&mut packet(&[(4, 0, 10)], PACKET)));
        held.read(4, 3000);
        assert_eq!(held.bytes(), 0);
    }

    #[test]
    fn what_the_stack_drops_does_not_count() {
        let held = Held(Mutex::new(Streams::new(WINDOW)));
        let keep = |number, is_early| {
            let before = held.bytes();
            held.keep(number, &mut packet(&[(0, 5 + number, 1)], 100), is_early);
            held.bytes() > before
        };
        assert!(
            !keep(0, false) && keep(0, true),
            "1-RTT before the handshake"
        );
        held.establish();
        assert!(keep(1000, false) && !keep(1000, false) && keep(900, false));
        assert!(!keep(900, false) && !keep(1000 - WINDOW_SIZE, false) && keep(872, false));
        assert!(keep(5000, false) && keep(4999, false) && !keep(1001, false));
        held.end();
        assert!(held.bytes() == 0 && !keep(6000, false));
    }

    #[test]
    fn pieces_that_touch_are_few_in_whatever_order_they_come() {
        let held = held();
        held.set_window(1 << 24);
        for n in (0..20_000).rev().chain((20_000..40_000).rev()) {
            assert!(held.take(&mut packet(&[(0, 1 + n, 1)], 0)));
        }
        assert!(held.0.lock().streams[&0].pieces.len() < SINGLE + 200);
        assert!(held.take(&mut packet(&[(0, 0, 1)], 0)));
        held.read(0, 40_001);
        assert_eq!(held.bytes(), 0);
    }

    #[test]
    fn of_a_stream_waits_what_was_not_read_or_what_its_pieces_hold_until_it_ends() {
        let held = held();
        let waiting = |id| held.waiting(id, 10_000);
        held.begin_stream(0);
        assert_eq!((waiting(0), waiting(4)), (0, 0));
        held.take(&mut packet(&[(0, 0, 1100)], PACKET));
        held.take(&mut packet(&[(0, 5000, 1)], PACKET));
        held.take(&mut packet(&[(0, 3000, 1100)], PACKET));
        assert_eq!(
            (waiting(0), held.unread()),
            (5001, 2201),
            "with gaps, without"
        );
        held.read(0, 1100);
        assert_eq!((waiting(0), held.unread()), (3901, 1101));
        for n in 0..10 {
            held.take(&mut packet(&[(4, n, 1)], PACKET));
        }
        assert!((12_000..14_000).contains(&waiting(4)), "ten packets");
        assert_eq!(held.unread(), 1111, "of the other ten bytes");
        held.take(&mut packet(&[(8, (1 << 62) - 2000, 1100)], PACKET));
        assert_eq!(waiting(8), 10_000, "the stack does not take that");
        held.end();
        held.read(0, 1000);
        assert_eq!((waiting(0), waiting(4)), (2901, 10));
        held.end_stream(0);
        assert_eq!(waiting(0), 0);
    }

    #[test]
    fn padding_is_not_kept() {
        let held = held();
        let mut padded = packet(&[(0, 1, 1)], 0);
        let size = padded.len();
        padded.resize(PACKET, 0);
        assert!(held.take(&mut padded));
        assert_eq!((padded.len(), held.bytes()), (size, size as u64 + PIECE));
    }

    #[test]
    fn of_streams_that_have_ended_nothing_counts() {
        let held = held();
        assert!(held.take(&mut packet(&[(0, 5, 9), (2, 0, 100)], 0)));
        for id in [0, 2] {
            held.begin_stream(id);
            held.end_stream(id);
        }
        assert!(held.take(&mut packet(&[(0, 0, 14), (2, 0, 100)], 0)));
        assert_eq!(held.bytes(), 0);
        assert!(
            held.take(&mut packet(&[(4, 0, 1)], 0)),
            "the peer has begun it, nobody has it yet"
        );
        assert!(held.bytes() > 0);
    }

    #[test]
    fn what_was_allowed_before_a_window_got_narrow_is_still_taken() {
        let held = held();
        held.set_window(64 * WINDOW);
        held.set_window(WINDOW);
        for n in 1..64 * WINDOW / 350 {
            assert!(held.take(&mut packet(&[(0, 350 * n, 350)], PACKET)));
        }
        assert!(held.take(&mut packet(&[(0, 0, 350)], PACKET)));
        held.read(0, 64 * WINDOW / 350 * 350);
        assert_eq!((held.bytes(), held.0.lock().owed), (0, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        /// All that comes is read, in any order and however often it comes: nothing is left.
        #[test]
        fn what_is_read_is_not_held(
            pieces in proptest::collection::vec((0_u64..3, 0_u64..3000, 1_u64..9), 1..5000),
            reads in proptest::collection::vec(0_u64..900, 0..20),
        ) {
            let held = held();
            let mut reads = reads.into_iter();
            let mut read = [0; 3];
            for (at, (stream, start, bytes)) in pieces.into_iter().enumerate() {
                held.take(&mut packet(&[(4 * stream, start, usize::try_from(bytes).unwrap())], 0));
                if at % 200 != 0 {
                    continue;
                }
                if let Some(more) = reads.next() {
                    held.read(4 * stream, more);
                    read[usize::try_from(stream).unwrap()] += more;
                }
                let streams = held.0.lock();
                let pieces = || streams.streams.values().flat_map(|stream| &stream.pieces);
                let packets: BTreeSet<_> = pieces().map(|piece| piece.packet).collect();
                let packets = packets.into_iter().map(|packet| streams.packets.kept[packet].0);
                let sum = pieces().map(|piece| piece.bytes).sum::<u64>() + packets.sum::<u64>();
                prop_assert_eq!(sum, streams.bytes);
                let single = |stream: &Stream| stream.pieces.len() <= SINGLE + 1500;
                prop_assert!(streams.streams.values().all(single));
            }
            for (stream, read) in (0_u64..).zip(read) {
                held.read(4 * stream, 4000 - read.min(4000));
            }
            prop_assert_eq!(held.bytes(), 0);
        }

        #[test]
        fn any_bytes_are_taken_or_not(payload in proptest::collection::vec(any::<u8>(), 0..100)) {
            let held = held();
            held.take(&mut BytesMut::from(&payload[..]));
            held.read(0, 1);
        }
    }
}
