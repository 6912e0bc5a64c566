//! What an automatic policy learns of one connection, and when it acknowledges for it: at once while the sender still finds out how fast the path is,
//! and then as seldom as is needed for acknowledgements to be a small share of what comes, but four times a round trip. No clock:
//! [`Learner::received`] and [`Learner::acknowledged`] say what happened, [`Learner::delay`] what follows.
//! draft-ietf-quic-ack-frequency §8.1 (congestion control wants some a round trip) and §8.2 (bursts); RFC 9002 §7.3.1 (what slow start needs).
//!
//! A peer that lies gets neither an acknowledgement for each packet nor none: every second packet or one a millisecond is the most, one in a quarter
//! of the round trip or in 25 ms the least.

use std::time::{Duration, Instant};

use hoplite_wire::tuning::{AckPolicy, DELAYS};

/// A round is a round trip, and this at least: shorter ones have too few packets to tell a rate.
const LEAST_ROUND: Duration = Duration::from_millis(10);

/// A sender that has not become faster by a quarter in three rounds has found what the path carries: slow start doubles in one. BBR asks the same
/// (draft-ietf-ccwg-bbr, "BBRCheckFullBWReached").
const GROWTH_DIVISOR: u64 = 4;
const FLAT_ROUNDS: u8 = 3;

/// At once is after every second packet, or after a millisecond where more than this many come in one.
const DENSE: u32 = 2;

/// A gap is a loss if another one was in the same round or the one before: a single one may be a number that the sender has left out
/// (RFC 9000 §21.4).
const GAP_ROUNDS: u8 = 2;

/// A round that lasts as long as this many holds a pause: the sender may begin anew.
const PAUSE: u32 = 4;

/// The fastest round is forgotten by an eighth a round.
const FORGETS: u64 = 8;

/// One byte of this many that arrive may be an acknowledgement's.
const ACK_DIVISOR: u64 = 400;

/// Bytes of a packet with nothing but an acknowledgement, and what the network puts before it, until some were sent.
const ACK_SIZE: u64 = 64;
const HEADERS: u64 = 28;

/// Another delay is only told if it differs by so much of the one before.
const HYSTERESIS: u32 = 4;

/// What is known of one connection.
#[derive(Debug)]
pub(super) struct Learner {
    rtt: Option<Duration>,
    round: Option<Round>,
    /// Bytes a second in the fastest round; what is old fades.
    fastest: u64,
    /// Rounds since the sender was last seen to become faster.
    flat: u8,
    /// Rounds since the last gap.
    since_gap: u8,
    /// More than [`DENSE`] packets came in a millisecond.
    dense: bool,
    ack_size: u64,
    delay: Option<Duration>,
}

/// What has come since.
#[derive(Debug)]
struct Round {
    began: Instant,
    packets: u32,
    bytes: u64,
}

impl Round {
    const fn new(began: Instant, bytes: u64) -> Self {
        Self {
            began,
            packets: 1,
            bytes,
        }
    }
}

impl Default for Learner {
    fn default() -> Self {
        Self {
            rtt: None,
            round: None,
            fastest: 0,
            flat: 0,
            since_gap: u8::MAX,
            dense: false,
            ack_size: ACK_SIZE,
            delay: None,
        }
    }
}

impl Learner {
    /// What the round trip is now.
    pub(super) fn round_trip(&mut self, rtt: Duration) {
        self.rtt = Some(rtt);
        self.decide();
    }

    /// A packet with so many bytes that want to be acknowledged has come. `gap`: one before it seems to be lost.
    pub(super) fn received(&mut self, bytes: usize, gap: bool, now: Instant) {
        self.count(bytes, now);
        if gap {
            self.lost();
        }
    }

    fn count(&mut self, bytes: usize, now: Instant) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let Some(round) = &mut self.round else {
            self.round = Some(Round::new(now, bytes));
            return;
        };
        let passed = now.saturating_duration_since(round.began);
        if passed < self.rtt.unwrap_or_default().max(LEAST_ROUND) {
            round.packets = round.packets.saturating_add(1);
            round.bytes = round.bytes.saturating_add(bytes);
            return;
        }
        let over = std::mem::replace(round, Round::new(now, bytes));
        self.end_round(&over, passed);
        self.decide();
    }

    /// A sender that has lost something is slower than the path, and looks for its rate again.
    fn lost(&mut self) {
        if std::mem::take(&mut self.since_gap) < GAP_ROUNDS {
            self.flat = 0;
            self.decide();
        }
    }

    fn end_round(&mut self, round: &Round, passed: Duration) {
        let usual = self.rtt.unwrap_or_default().max(LEAST_ROUND);
        self.since_gap = self.since_gap.saturating_add(1);
        self.dense = DELAYS.start().saturating_mul(round.packets) > passed.saturating_mul(DENSE);
        if passed >= usual.saturating_mul(PAUSE) {
            (self.fastest, self.flat) = (0, 0);
            return;
        }
        let rate = per_second(round.bytes, passed);
        if rate > self.fastest.saturating_add(self.fastest / GROWTH_DIVISOR) {
            (self.fastest, self.flat) = (rate, 0);
        } else {
            self.flat = self.flat.saturating_add(1).min(FLAT_ROUNDS);
            self.fastest = rate.max(self.fastest - self.fastest / FORGETS);
        }
    }

    /// A packet with nothing but an acknowledgement, of so many bytes, is sent.
    pub(super) fn acknowledged(&mut self, size: usize) {
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        let size = size.saturating_add(HEADERS).min(1500);
        self.ack_size = (7 * self.ack_size + size) / 8;
    }

    /// How long an acknowledgement is held back; `None`: as the QUIC stack likes, after every second packet.
    pub(super) const fn delay(&self) -> Option<Duration> {
        self.delay
    }

    fn decide(&mut self) {
        let wanted = self.wanted();
        let near =
            |now: Duration| wanted.is_some_and(|wanted| wanted.abs_diff(now) <= now / HYSTERESIS);
        if !self.delay.is_some_and(near) {
            self.delay = wanted;
        }
    }

    /// The longest that costs the sender nothing, or less where that is cheap enough.
    fn wanted(&self) -> Option<Duration> {
        let least = *DELAYS.start();
        let most = AckPolicy::Auto.delay(Some(self.rtt?))?;
        if self.flat < FLAT_ROUNDS {
            return self.dense.then_some(least);
        }
        let cheap = self.ack_size.saturating_mul(ACK_DIVISOR);
        let cheap = cheap.saturating_mul(1_000_000) / self.fastest.max(1);
        Some(Duration::from_micros(cheap).clamp(least, most))
    }
}

fn per_second(bytes: u64, passed: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / passed.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

// How disordered a connection's packets come. No clock.

/// What is looked at together, in packets.
const SAMPLE: u32 = 64;
/// So many gaps in it, and losses are told with the next acknowledgement instead of at once; with so few, at once again.
const MANY_GAPS: u32 = 16;
const FEW_GAPS: u32 = 8;

/// Who leaves a gap before each packet would have each acknowledged at once.
#[derive(Debug, Default)]
pub(super) struct Disorder {
    packets: u32,
    gaps: u32,
    much: bool,
}

impl Disorder {
    /// A packet has come, with or without a gap before it. Whether that changes anything.
    pub(super) fn received(&mut self, gap: bool) -> bool {
        self.packets += 1;
        self.gaps += u32::from(gap);
        let before = self.much;
        self.much |= self.gaps >= MANY_GAPS;
        if self.packets >= SAMPLE {
            self.much &= self.gaps > FEW_GAPS;
            (self.packets, self.gaps) = (0, 0);
        }
        self.much != before
    }

    /// Whether there are so many gaps that none is worth an acknowledgement of its own.
    pub(super) const fn is_much(&self) -> bool {
        self.much
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RTT: Duration = Duration::from_millis(40);
    const MS: Duration = Duration::from_millis(1);

    /// A learner that sees packets of 1000 bytes, so many a millisecond for so many rounds each.
    struct Seen(Learner, Instant);

    impl Seen {
        fn new() -> Self {
            let mut learner = Learner::default();
            learner.round_trip(RTT);
            Self(learner, Instant::now())
        }

        fn rounds(&mut self, rounds: u32, per_ms: u32) -> Option<Duration> {
            for _ in 0..rounds * 40 {
                for _ in 0..per_ms {
                    self.0.received(1000, false, self.1);
                }
                self.1 += MS;
            }
            self.0.delay()
        }
    }

    #[test]
    fn nothing_is_delayed_before_the_round_trip_is_known() {
        let mut learner = Learner::default();
        learner.received(1000, false, Instant::now());
        assert_eq!(learner.delay(), None);
    }

    #[test]
    fn while_the_sender_becomes_faster_it_is_told_at_once() {
        let mut seen = Seen::new();
        for (rate, delay) in [
            (1, None),
            (2, None),
            (4, None),
            (8, Some(MS)),
            (16, Some(MS)),
        ] {
            // Of a round it is known when the next one begins.
            assert_eq!(seen.rounds(1, rate), delay, "{rate}");
        }
        assert_eq!(seen.rounds(2, 16), Some(MS), "three rounds make it sure");
        (0..50).for_each(|_| seen.0.acknowledged(64));
        // 92 bytes for 400 are 36,800, which come in 2.3 ms.
        let delay = seen.rounds(4, 16).unwrap();
        assert!((MS * 2..MS * 3).contains(&delay), "{delay:?}");
    }

    #[test]
    fn a_slow_sender_is_told_four_times_a_round_trip() {
        let mut seen = Seen::new();
        assert_eq!(seen.rounds(8, 1), Some(RTT / 4));
        seen.0.round_trip(RTT * 10);
        assert_eq!(seen.0.delay(), Some(MS * 25), "and 25 ms are the most");
    }

    #[test]
    fn a_fast_sender_is_told_after_a_millisecond() {
        let mut seen = Seen::new();
        assert_eq!(seen.rounds(8, 100), Some(MS));
    }

    #[test]
    fn who_pauses_begins_anew() {
        let mut seen = Seen::new();
        assert_eq!(seen.rounds(8, 1), Some(RTT / 4));
        seen.1 += RTT * PAUSE;
        assert_eq!(seen.rounds(1, 1), None);
        assert_eq!(seen.rounds(5, 1), Some(RTT / 4));
    }

    #[test]
    fn who_finds_more_room_is_told_at_once_again() {
        let mut seen = Seen::new();
        assert_eq!(seen.rounds(8, 1), Some(RTT / 4));
        assert_eq!(seen.rounds(2, 2), None);
    }

    #[test]
    fn who_has_lost_something_is_told_at_once_until_its_rate_is_known_again() {
        let mut seen = Seen::new();
        assert_eq!(seen.rounds(8, 1), Some(RTT / 4));
        for rounds in [4, 1] {
            seen.0.received(1000, true, seen.1);
            let delay = seen.rounds(rounds, 1);
            assert_eq!(delay, Some(RTT / 4), "it may have left out a number");
        }
        seen.0.received(1000, true, seen.1);
        assert_eq!(seen.0.delay(), None);
        assert_eq!(seen.rounds(2, 1), None);
        assert_eq!(seen.rounds(3, 1), Some(RTT / 4));
    }

    #[test]
    fn a_rate_that_wavers_changes_nothing() {
        let mut seen = Seen::new();
        seen.rounds(12, 8);
        let told: Vec<_> = (0..20).map(|round| seen.rounds(1, 8 + round % 2)).collect();
        assert!(told.iter().all(|delay| *delay == told[0]), "{told:?}");
    }

    #[test]
    fn who_leaves_gaps_everywhere_gets_no_acknowledgement_for_each() {
        let mut disorder = Disorder::default();
        let until = (1..1000).find(|_| disorder.received(true));
        assert_eq!(until, Some(MANY_GAPS));
        assert!((0..1000).all(|_| !disorder.received(true)));
        assert!(disorder.is_much());
        let until = (1..1000).find(|_| disorder.received(false));
        assert!(until.is_some_and(|packets| packets <= 2 * SAMPLE));
        // One packet in ten is lost, and still told at once.
        assert!((0..1000).all(|packet| !disorder.received(packet % 10 == 0)));
    }

    proptest! {
        #[test]
        fn whatever_a_peer_does_the_delay_keeps_its_bounds(
            packets in proptest::collection::vec((0_usize..70_000, 0_u64..1 << 40, 0_u64..1 << 40, any::<bool>()), 1..200),
        ) {
            let (mut learner, mut now) = (Learner::default(), Instant::now());
            for (bytes, nanos, rtt, tells) in packets {
                now += Duration::from_nanos(nanos);
                learner.received(bytes, tells, now);
                learner.acknowledged(bytes);
                if tells {
                    learner.round_trip(Duration::from_nanos(rtt));
                }
                let bounds = MS..=Duration::from_millis(25);
                prop_assert!(learner.delay().is_none_or(|delay| bounds.contains(&delay)));
                prop_assert!(learner.delay().is_none() || learner.rtt.is_some());
            }
        }
    }
}
