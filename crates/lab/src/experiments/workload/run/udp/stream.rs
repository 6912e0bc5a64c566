//! A stream of datagrams at a constant pace: how its sender keeps the pace, on a thread that sleeps by the nanosecond, and how its receiver counts
//! what arrives: lost, doubled, out of order, changed, late. Jitter as RFC 3550 §6.4.1, order as RFC 4737 §3.3.

use std::{io, thread, time::Duration};

use hoplite_workload::splitmix::mix;

use super::is_full;
use crate::experiments::workload::{
    message::{Head, Stream},
    run::record::monotonic_ns,
};

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    stream: Stream,
    head: Head,
}

impl Pace {
    pub(super) fn new(stream: Stream, head: Head) -> Self {
        Self { stream, head }
    }

    /// Sends all by `send`; answers with how many went. What the kernel has no room for is not sent again: a rate is constant.
    ///
    /// # Errors
    /// Those of `send` that are not about room.
    pub(super) fn run(self, send: impl Fn(&[u8]) -> io::Result<()>) -> io::Result<u32> {
        let (began, mut datagram, mut sent) = (monotonic_ns(), Vec::new(), 0);
        for number in 0..self.stream.count {
            let due = u64::from(number).saturating_mul(self.stream.interval);
            sleep_until(began.saturating_add(due));
            let head = Head {
                number,
                sent: monotonic_ns(),
                ..self.head
            };
            head.fill(self.stream.size, &mut datagram);
            match send(&datagram) {
                Ok(()) => sent += 1,
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

fn sleep_until(due: u64) {
    let left = due.saturating_sub(monotonic_ns());
    if left > 0 {
        thread::sleep(Duration::from_nanos(left));
    }
}

/// How many delays are kept; of more, a fair sample.
const DELAYS: usize = 1 << 18;

/// The counter.
#[derive(Debug)]
pub(super) struct Tally {
    stream: Stream,
    seen: Vec<u64>,
    next: u32,
    transit: Option<i64>,
    jitter: f64,
    delays: Vec<u32>,
    report: Report,
}

/// What came of a stream. Times in microseconds of the monotonic clock, delays in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) received: u64,
    pub(super) bytes: u64,
    pub(super) duplicates: u64,
    pub(super) reordered: u64,
    pub(super) corrupt: u64,
    jitter_ns: u64,
    pub(super) first: Option<u64>,
    pub(super) last: Option<u64>,
    /// Shortest, median, 90th and 99th percentile, longest.
    pub(super) delays: [u64; 5],
}

impl Tally {
    pub(super) fn new(stream: Stream) -> Self {
        let words = usize::try_from(stream.count.min(Stream::MOST)).unwrap_or(0) / 64 + 1;
        Self {
            stream,
            seen: vec![0; words],
            next: 0,
            transit: None,
            jitter: 0.0,
            delays: Vec::new(),
            report: Report::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.report.first.is_none()
    }

    /// Takes one in at `now` (nanoseconds); answers with the bytes that count.
    pub(super) fn take(&mut self, head: &Head, datagram: &[u8], now: u64) -> u64 {
        let stamp = now / 1000;
        self.report.first.get_or_insert(stamp);
        if head.number >= self.stream.count || !head.is_intact(self.stream.size, datagram) {
            self.report.corrupt += 1;
            return 0;
        }
        if !self.mark(head.number) {
            self.report.duplicates += 1;
            return 0;
        }
        self.report.last = Some(stamp);
        self.order(head.number);
        self.delay(head.sent, now);
        let bytes = datagram.len() as u64;
        self.report.received += 1;
        self.report.bytes += bytes;
        bytes
    }

    /// Whether it is the first with this number.
    fn mark(&mut self, number: u32) -> bool {
        let Some(word) = self.seen.get_mut(number as usize / 64) else {
            return false;
        };
        let bit = 1 << (number % 64);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// "If s < NextExp then the packet is designated as reordered."
    fn order(&mut self, number: u32) {
        if number < self.next {
            self.report.reordered += 1
        } else {
            self.next = number.saturating_add(1)
        }
    }

    /// "J(i) = J(i-1) + (|D(i-1,i)| - J(i-1))/16"
    fn delay(&mut self, sent: u64, now: u64) {
        let transit = now.cast_signed().wrapping_sub(sent.cast_signed());
        if let Some(before) = self.transit.replace(transit) {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let difference = transit.wrapping_sub(before).unsigned_abs() as f64;
            self.jitter += (difference - self.jitter) / 16.0;
        }
        let micros = u32::try_from(transit.max(0) / 1000).unwrap_or(u32::MAX);
        if self.delays.len() < DELAYS {
            self.delays.push(micros);
            return;
        }
        let place = mix(self.report.received) % self.report.received;
        let slot = usize::try_from(place)
            .ok()
            .and_then(|place| self.delays.get_mut(place));
        slot.into_iter().for_each(|slot| *slot = micros);
    }

    pub(super) fn report(&self) -> Report {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and far below 2^63"
        )]
        let jitter_ns = self.jitter as u64;
        Report {
            jitter_ns,
            delays: quantiles(self.delays.clone()),
            ..self.report
        }
    }
}

/// Smallest, median, 90th and 99th percentile, largest; zeros if there is nothing.
pub(super) fn quantiles(mut values: Vec<u32>) -> [u64; 5] {
    values.sort_unstable();
    let last = values.len().saturating_sub(1);
    [0, 50, 90, 99, 100].map(|percent| {
        let place = (last * percent).div_ceil(100);
        values.get(place).map_or(0, |value| u64::from(*value))
    })
}

impl Report {
    fn numbers(&self) -> [u64; 13] {
        let [shortest, p50, p90, p99, longest] = self.delays;
        [
            self.received,
            self.bytes,
            self.duplicates,
            self.reordered,
            self.corrupt,
            self.jitter_ns,
            self.first.unwrap_or(0),
            self.last.unwrap_or(0),
            shortest,
            p50,
            p90,
            p99,
            longest,
        ]
    }

    pub(super) fn emit(&self) -> Vec<u8> {
        self.numbers()
            .into_iter()
            .flat_map(u64::to_be_bytes)
            .collect()
    }

    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let (words, rest) = body.as_chunks::<8>();
        let words: [[u8; 8]; 13] = words.try_into().ok()?;
        let n = words.map(u64::from_be_bytes);
        let some = |stamp: u64| (stamp != 0).then_some(stamp);
        rest.is_empty().then_some(Self {
            received: n[0],
            bytes: n[1],
            duplicates: n[2],
            reordered: n[3],
            corrupt: n[4],
            jitter_ns: n[5],
            first: some(n[6]),
            last: some(n[7]),
            delays: [n[8], n[9], n[10], n[11], n[12]],
        })
    }

    /// Its figures by name, beside what the transfer says anyway.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(super) fn figures(&self) -> Vec<(&'static str, f64)> {
        let mut figures = vec![
            ("duplicates", self.duplicates as f64),
            ("reordered", self.reordered as f64),
            ("corrupt", self.corrupt as f64),
        ];
        if self.received == 0 {
            return figures;
        }
        let names = [
            "delay_us_min",
            "delay_us_p50",
            "delay_us_p90",
            "delay_us_p99",
            "delay_us_max",
        ];
        figures.extend(names.into_iter().zip(self.delays.map(|delay| delay as f64)));
        figures.push(("jitter_us", self.jitter_ns as f64 / 1000.0));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::workload::message::Kind;

    const STREAM: Stream = Stream {
        size: 100,
        count: 100,
        interval: 1_000_000,
    };

    fn arrive(tally: &mut Tally, number: u32, delay_us: u64) {
        let sent = u64::from(number) * STREAM.interval + 1_000_000;
        let (token, turned) = (7, 0);
        let head = Head {
            kind: Kind::Data,
            token,
            number,
            sent,
            turned,
        };
        let mut datagram = Vec::new();
        head.fill(STREAM.size, &mut datagram);
        tally.take(&head, &datagram, sent + delay_us * 1000);
    }

    #[test]
    fn loss_doubles_and_disorder_are_told_apart() {
        let mut tally = Tally::new(STREAM);
        for number in [0, 1, 1, 4, 3, 2, 5, 9] {
            arrive(&mut tally, number, 10);
        }
        let report = tally.report();
        assert_eq!(
            (report.received, report.duplicates, report.reordered),
            (7, 1, 2)
        );
        assert_eq!(report.bytes, 700);
    }

    #[test]
    fn a_steady_delay_has_no_jitter_and_a_changing_one_has() {
        let (mut steady, mut shaky) = (Tally::new(STREAM), Tally::new(STREAM));
        for number in 0..100 {
            arrive(&mut steady, number, 500);
            arrive(&mut shaky, number, 500 + u64::from(number % 2) * 160);
        }
        assert_eq!(steady.report().jitter_ns, 0);
        assert_eq!(steady.report().delays, [500; 5]);
        // |D| is always 160 µs, so J comes near it.
        assert!((155_000..=160_000).contains(&shaky.report().jitter_ns));
        assert_eq!(shaky.report().delays, [500, 660, 660, 660, 660]);
    }

    #[test]
    fn a_changed_datagram_does_not_count() {
        let mut tally = Tally::new(STREAM);
        let head = Head {
            kind: Kind::Data,
            token: 1,
            number: 0,
            sent: 5,
            turned: 0,
        };
        let mut datagram = Vec::new();
        head.fill(STREAM.size, &mut datagram);
        datagram[77] ^= 1;
        assert_eq!(tally.take(&head, &datagram, 9), 0);
        assert_eq!(tally.report().corrupt, 1);
    }

    #[test]
    fn a_report_is_read_as_written() {
        let mut tally = Tally::new(STREAM);
        (0..50).for_each(|number| arrive(&mut tally, number, 10));
        let report = tally.report();
        assert_eq!(Report::parse(&report.emit()), Some(report));
    }
}
