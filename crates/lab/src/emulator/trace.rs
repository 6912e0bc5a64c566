//! Links that follow a recorded cellular network: mahimahi's traces (Netravali et al., ATC 2015, `mm-link`).
//!
//! Each line is a moment in milliseconds at which 1504 bytes may be delivered; after the last moment the trace begins again.
//! As in mahimahi a packet counts with the four bytes of its TUN header, so that an opportunity carries one packet of 1500 bytes
//! or several small ones, a packet may need several opportunities, and an opportunity that finds no packet waiting is lost.

use std::fmt;

/// Bytes that one opportunity delivers.
pub const OPPORTUNITY: u64 = 1504;
/// Bytes that each packet needs beyond its own: mahimahi counts its TUN header.
pub const PACKET_EXTRA: u64 = 4;
/// The latest moment that a trace may have: about 31 years.
const LATEST: u64 = 1_000_000_000_000;
/// The most opportunities that a trace may have.
const MAX_OPPORTUNITIES: usize = 10_000_000;

const MS: u64 = 1_000_000;

/// Why a text is no trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: &'static str,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for TraceError {}

/// The milliseconds of a trace file. Empty lines and lines that begin with `#` are passed over.
///
/// # Errors
/// The first line that is no number, goes back in time or is too late; a trace without an opportunity after its beginning.
pub fn parse(text: &[u8]) -> Result<Vec<u64>, TraceError> {
    let mut moments = Vec::new();
    let mut last = 1;
    for (line, text) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let text = text.trim_ascii();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        last = line;
        let moment = number(text).ok_or(TraceError {
            line,
            why: "not a whole number of milliseconds up to 10^12",
        })?;
        if moments.last().is_some_and(|&before| moment < before) {
            return Err(TraceError {
                line,
                why: "earlier than the line before",
            });
        }
        if moments.len() == MAX_OPPORTUNITIES {
            return Err(TraceError {
                line,
                why: "more than ten million opportunities",
            });
        }
        moments.push(moment);
    }
    match moments.last() {
        None | Some(0) => Err(TraceError {
            line: last,
            why: "no opportunity later than 0 ms",
        }),
        Some(_) => Ok(moments),
    }
}

fn number(text: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number <= LATEST && text[0] != b'+').then_some(number)
}

/// A trace at work: which opportunity is next, and what is left of it.
#[derive(Clone, Debug)]
pub struct Opportunities {
    moments: Vec<u64>,
    at: Place,
    left: u64,
}

/// One opportunity: the `index`th of the `round`th repetition.
#[derive(Clone, Copy, Debug)]
struct Place {
    round: u64,
    index: usize,
}

impl Opportunities {
    /// The trace from its beginning at 0 ns. `None` if it does not go forward, see [`parse`].
    #[must_use]
    pub fn new(moments: &[u64]) -> Option<Self> {
        let forward = moments.is_sorted()
            && moments
                .last()
                .is_some_and(|&last| last > 0 && last <= LATEST);
        forward.then(|| Self {
            moments: moments.to_vec(),
            at: Place { round: 0, index: 0 },
            left: OPPORTUNITY,
        })
    }

    /// When a packet that waits since `since` can begin to be delivered.
    #[must_use]
    pub fn ready(&self, since: u64) -> u64 {
        self.time(self.place(since))
    }

    /// Delivers `size` bytes of IP from `start` on, which [`Self::ready`] gave; says when the last one is delivered.
    pub fn serve(&mut self, start: u64, size: u64) -> u64 {
        let place = self.place(start);
        if self.time(place) != self.time(self.at) || self.left == 0 {
            self.left = OPPORTUNITY;
            self.at = place;
        }
        let mut missing = size + PACKET_EXTRA;
        while missing > self.left {
            missing -= self.left;
            self.left = OPPORTUNITY;
            self.at = self.after(self.at);
        }
        self.left -= missing;
        self.time(self.at)
    }

    /// The first opportunity not before `since` of which something is left.
    fn place(&self, since: u64) -> Place {
        let next = if self.left > 0 {
            self.at
        } else {
            self.after(self.at)
        };
        if self.time(next) >= since {
            next
        } else {
            self.find(since)
        }
    }

    fn after(&self, Place { round, index }: Place) -> Place {
        if index + 1 < self.moments.len() {
            Place {
                round,
                index: index + 1,
            }
        } else {
            Place {
                round: round.saturating_add(1),
                index: 0,
            }
        }
    }

    fn find(&self, since: u64) -> Place {
        let period = self.period();
        // The end of a round belongs to it, not to the next one.
        let round = since.saturating_sub(1) / period;
        let inside = since - round * period;
        let index = self
            .moments
            .partition_point(|&moment| moment.saturating_mul(MS) < inside);
        Place {
            round,
            index: index.min(self.moments.len() - 1),
        }
    }

    fn period(&self) -> u64 {
        self.moments
            .last()
            .copied()
            .unwrap_or(1)
            .max(1)
            .saturating_mul(MS)
    }

    fn time(&self, Place { round, index }: Place) -> u64 {
        let inside = self.moments[index].saturating_mul(MS);
        round.saturating_mul(self.period()).saturating_add(inside)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn delivered(trace: &[u64], packets: &[(u64, u64)]) -> Vec<u64> {
        let mut trace = Opportunities::new(trace).unwrap();
        let mut done = 0;
        let serve = |&(since, size): &(u64, u64)| {
            let start = trace.ready(since.max(done));
            done = trace.serve(start, size);
            done
        };
        packets.iter().map(serve).collect()
    }

    #[test]
    fn an_opportunity_carries_one_large_packet_or_several_small_ones() {
        let large = delivered(&[5, 7, 10], &[(0, 1500), (0, 1500), (0, 1500), (0, 1500)]);
        assert_eq!(large, [5 * MS, 7 * MS, 10 * MS, 15 * MS]);
        let small = delivered(&[5, 7, 10], &[(0, 748), (0, 748), (0, 40)]);
        assert_eq!(small, [5 * MS, 5 * MS, 7 * MS]);
    }

    #[test]
    fn what_finds_no_packet_waiting_is_lost() {
        assert_eq!(delivered(&[1, 2, 3], &[(2 * MS + 1, 1500)]), [3 * MS]);
        assert_eq!(delivered(&[1, 2, 3], &[(3 * MS + 1, 1500)]), [4 * MS]);
        assert_eq!(
            delivered(&[0, 3], &[(3 * MS, 1500), (3 * MS, 1500), (3 * MS, 1500)]),
            [3 * MS, 3 * MS, 6 * MS]
        );
    }

    #[test]
    fn a_large_packet_takes_several_opportunities() {
        assert_eq!(
            delivered(&[1, 2, 3, 9], &[(0, 4000), (0, 40)]),
            [3 * MS, 3 * MS]
        );
    }

    #[test]
    fn a_trace_is_read_line_by_line_and_a_bad_line_is_named() {
        assert_eq!(parse(b"# comment\n0\n5\r\n\n5\n9"), Ok(vec![0, 5, 5, 9]));
        for (text, line) in [
            ("1\nx\n", 2),
            ("3\n2", 2),
            ("", 1),
            ("0\n0\n", 2),
            ("+1", 1),
            ("-1", 1),
            ("1e3", 1),
            ("9999999999999", 1),
        ] {
            assert_eq!(
                parse(text.as_bytes()).map_err(|error| error.line),
                Err(line),
                "{text:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn never_more_than_the_opportunities_that_have_passed(
            mut trace in prop::collection::vec(0..50_u64, 1..20),
            packets in prop::collection::vec((0..200 * MS, 20..3000_u64), 1..50),
        ) {
            trace.sort_unstable();
            prop_assume!(trace.last() > Some(&0));
            let mut packets = packets;
            packets.sort_unstable();
            let done = delivered(&trace, &packets);
            let period = trace[trace.len() - 1] * MS;
            let mut carried = 0;
            for (&done, &(since, size)) in done.iter().zip(&packets) {
                prop_assert!(done >= since);
                carried += size + PACKET_EXTRA;
                let rounds = (done / period + 1) * trace.len() as u64;
                let later = trace.iter().filter(|&&m| m * MS > done % period).count() as u64;
                prop_assert!(carried <= (rounds + 1 - later) * OPPORTUNITY);
            }
        }
    }
}
