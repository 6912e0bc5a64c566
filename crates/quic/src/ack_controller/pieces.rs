//! In how many pieces a connection's streams have arrived. The QUIC stack bears 1024 pieces of a stream and closes the connection at more; a wide window has
//! ten times as many packets on their way, and a queue that overflows may lose every other one. So a packet that would begin one piece too many is not
//! taken, as if the network had lost it as well: it is not acknowledged, and what was in it comes again (RFC 9000 §13.3). No clock.
//!
//! What is known here may be less than what the stack knows: of a stream that has ended, bytes may come again. Such a stream looks like one whose beginning
//! is missing, which is no gap; of those with gaps on which nothing comes any more, the gaps are forgotten.

use std::collections::HashMap;

use hoplite_wire::quic_frames::{Content, Frame, Frames, kind};

/// Pieces beyond the first of their stream, of all streams of a connection together: fewer than the stack bears of one.
const MOST: usize = 800;
/// Once so many packets have brought nothing of a stream, its gaps are forgotten where there are too many.
const STALE: u64 = 100_000;
/// Streams that are known; beyond it all are forgotten. A peer that sends bytes of streams that have ended makes each of them known again.
const MOST_STREAMS: usize = 1 << 12;

/// What has arrived of a connection's streams.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    streams: HashMap<u64, Stream>,
    /// Pieces beyond the first of their stream.
    beyond: usize,
    packets: u64,
    /// Up to this packet no gap is stale, for all that was seen when they were looked at last.
    fresh_until: u64,
    /// How often all were looked at.
    #[cfg(test)]
    looked: u64,
}

#[derive(Debug, Default)]
struct Stream {
    /// From where to where; none touches the next.
    pieces: Vec<(u64, u64)>,
    /// Where it ends, once that is known.
    end: Option<u64>,
    /// The last packet that brought something of it.
    packet: u64,
}

impl Pieces {
    /// A packet has come. Whether the stack may have it.
    pub(super) fn take(&mut self, payload: &[u8]) -> bool {
        self.packets += 1;
        if self.beyond >= MOST {
            // Not for each packet: a peer may keep as many gaps, and as many streams, as are known.
            if self.packets > self.fresh_until {
                self.forget();
            }
            if self.beyond >= MOST && frames(payload).any(|frame| self.begins_one_more(&frame)) {
                return false;
            }
        }
        if self.streams.len() > MOST_STREAMS {
            self.streams.clear();
            self.beyond = 0;
        }
        frames(payload).for_each(|frame| self.came(&frame));
        true
    }

    fn begins_one_more(&self, frame: &Frame<'_>) -> bool {
        let Content::Stream {
            id, offset, data, ..
        } = frame.content
        else {
            return false;
        };
        let end = offset.saturating_add(data.len() as u64);
        let stream = self.streams.get(&id);
        !data.is_empty() && stream.is_some_and(|stream| stream.touched(offset, end).is_empty())
    }

    fn came(&mut self, frame: &Frame<'_>) {
        match frame.content {
            Content::Stream {
                id,
                offset,
                data,
                fin,
            } => {
                let end = offset.saturating_add(data.len() as u64);
                let stream = self.streams.entry(id).or_default();
                stream.packet = self.packets;
                if fin {
                    stream.end = Some(end);
                }
                let before = stream.beyond();
                if !data.is_empty() {
                    stream.add(offset, end);
                }
                self.beyond = self.beyond + stream.beyond() - before;
                if stream.is_whole() {
                    self.streams.remove(&id);
                }
            }
            Content::Numbers([id, ..]) if frame.kind == kind::RESET_STREAM => {
                let stream = self.streams.remove(&id);
                self.beyond -= stream.map_or(0, |stream| stream.beyond());
            }
            _ => {}
        }
    }

    fn forget(&mut self) {
        #[cfg(test)]
        {
            self.looked += 1;
        }
        let since = self.packets.saturating_sub(STALE);
        self.streams
            .retain(|_, stream| stream.beyond() == 0 || stream.packet >= since);
        self.beyond = self.streams.values().map(Stream::beyond).sum();
        let with_gaps = self.streams.values().filter(|stream| stream.beyond() > 0);
        let oldest = with_gaps.map(|stream| stream.packet).min();
        self.fresh_until = oldest.unwrap_or(self.packets).saturating_add(STALE);
    }
}

impl Stream {
    fn beyond(&self) -> usize {
        self.pieces.len().saturating_sub(1)
    }

    fn is_whole(&self) -> bool {
        match (self.end, &*self.pieces) {
            (Some(end), []) => end == 0,
            (Some(end), [whole]) => *whole == (0, end),
            _ => false,
        }
    }

    /// The pieces that these bytes join.
    fn touched(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let first = self.pieces.partition_point(|piece| piece.1 < start);
        let rest = self.pieces.get(first..).unwrap_or_default();
        first..first + rest.partition_point(|piece| piece.0 <= end)
    }

    fn add(&mut self, start: u64, end: u64) {
        if let Some(last) = self.pieces.last_mut().filter(|last| last.1 == start) {
            last.1 = end;
            return;
        }
        let touched = self.touched(start, end);
        let joined = self.pieces.get(touched.clone()).unwrap_or_default();
        let whole = joined.iter().fold((start, end), |whole, piece| {
            (whole.0.min(piece.0), whole.1.max(piece.1))
        });
        self.pieces.splice(touched, [whole]);
    }
}

fn frames(payload: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    Frames::new(payload).flatten()
}

#[cfg(test)]
mod tests {
    use hoplite_wire::varint;
    use proptest::prelude::*;

    use super::*;

    fn stream(id: u64, offset: u64, bytes: usize, fin: bool) -> Vec<u8> {
        let mut frame = vec![0x0e | u8::from(fin)];
        varint::write(&mut frame, id);
        varint::write(&mut frame, offset);
        varint::write(&mut frame, bytes as u64);
        frame.resize(frame.len() + bytes, 7);
        frame
    }

    #[test]
    fn of_every_other_packet_no_more_are_taken_than_the_stack_bears_and_each_that_fills_a_gap_is() {
        let mut pieces = Pieces::default();
        let odd = (0..20_000_u64).map(|n| n * 2000);
        let taken = odd
            .clone()
            .filter(|at| pieces.take(&stream(0, *at, 1000, false)));
        let taken: Vec<u64> = taken.collect();
        assert_eq!(taken.len(), MOST + 1);
        assert!(pieces.take(&stream(4, 0, 1000, false)), "of another stream");
        for at in odd {
            assert!(pieces.take(&stream(0, at, 2000, at == 39_998_000)), "{at}");
        }
        assert_eq!((pieces.beyond, pieces.streams.len()), (0, 1));
    }

    #[test]
    fn what_ends_is_forgotten_with_its_gaps() {
        let mut pieces = Pieces::default();
        for at in [0, 2000, 4000] {
            assert!(pieces.take(&stream(0, at, 1000, false)));
        }
        assert_eq!(pieces.beyond, 2);
        assert!(pieces.take(&[0x04, 0, 0, 0x40, 0x10]));
        assert_eq!((pieces.beyond, pieces.streams.len()), (0, 0));
        assert!(pieces.take(&stream(4, 0, 0, true)));
        assert!(pieces.streams.is_empty());
    }

    #[test]
    fn gaps_that_nothing_fills_do_not_stop_a_connection_for_ever() {
        let mut pieces = Pieces::default();
        for n in 0..=MOST as u64 {
            assert!(pieces.take(&stream(0, n * 2000, 1000, false)));
        }
        assert!(!pieces.take(&stream(0, 1 << 30, 1000, false)));
        for n in 0..STALE {
            pieces.take(&stream(4, n, 1, false));
        }
        assert!(pieces.take(&stream(0, 1 << 30, 1000, false)));
    }

    #[test]
    fn a_peer_that_keeps_as_many_gaps_as_may_be_has_them_looked_at_seldom() {
        let mut pieces = Pieces::default();
        let streams = MOST as u64;
        for n in 0..streams {
            for at in [1000, 3000] {
                assert!(pieces.take(&stream(4 * n, at, 1000, false)));
            }
        }
        for n in 0..3 * STALE {
            // Of none is anything older than a few packets.
            assert!(pieces.take(&stream(4 * (n % streams), 1000, 1000, false)));
        }
        assert_eq!(pieces.beyond, MOST);
        assert!((1..=5).contains(&pieces.looked), "{} times", pieces.looked);
        // Those of the one of which nothing comes any more are forgotten, and of no other.
        for n in 0..2 * STALE {
            assert!(pieces.take(&stream(4 * (1 + n % (streams - 1)), 1000, 1000, false)));
        }
        assert_eq!(pieces.beyond, MOST - 1);
        assert!(!pieces.streams.contains_key(&0));
    }

    proptest! {
        #[test]
        fn pieces_are_those_of_the_bytes_that_came(
            parts in prop::collection::vec((0..60_usize, 1..9_usize), 1..60),
        ) {
            let (mut pieces, mut bytes) = (Pieces::default(), [false; 80]);
            for (start, len) in parts {
                bytes[start..start + len].fill(true);
                prop_assert!(pieces.take(&stream(0, start as u64, len, false)));
                let runs = bytes.chunk_by(|a, b| a == b).filter(|run| run[0]).count();
                prop_assert_eq!(pieces.streams[&0].pieces.len(), runs);
                prop_assert_eq!(pieces.beyond, runs - 1);
            }
        }
    }
}
