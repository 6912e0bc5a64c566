//! What is to be sent and what is on its way: which segment goes next, what was lost, when nothing was heard for too long.
//! A machine without clock: it takes the time since the network began.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use bytes::{Bytes, BytesMut};

use super::{RECEIVE_BUFFER, SEGMENT, SEND_BUFFER};

/// Three later segments tell that one is lost (RFC 5681 §3.2).
const DUP_ACK_THRESHOLD: u64 = 3;

/// Linux's; RFC 6298 has a second.
const MIN_RTO: Duration = Duration::from_millis(200);

const INITIAL_RTO: Duration = Duration::from_secs(1);

const MAX_RTO: Duration = Duration::from_secs(60);

/// After this many silent times the peer is given up.
const MAX_RETRIES: u32 = 8;

#[derive(Debug)]
pub(super) struct Sender {
    control: Cubic,
    rtt: Option<(Duration, Duration)>,
    unsent: VecDeque<Bytes>,
    /// Bytes in `unsent` and `flight`.
    held: usize,
    finished: bool,
    end_sent: bool,
    next: u64,
    /// The number that the peer does not take yet.
    limit: u64,
    flight: BTreeMap<u64, Flying>,
    again: BTreeSet<u64>,
    /// Bytes that are on their way for all we know.
    pipe: u64,
    order: u64,
    /// The latest order that is known to have arrived.
    latest: u64,
    /// What is lost before this number belongs to a loss that was answered.
    answered: u64,
    deadline: Option<Duration>,
    silent: u32,
}

#[derive(Debug)]
struct Flying {
    data: Bytes,
    last: bool,
    sent: Duration,
    order: u64,
    repeated: bool,
    arrived: bool,
    lost: bool,
}

/// What goes next.
pub(super) struct Next {
    pub(super) seq: u64,
    pub(super) data: Bytes,
    pub(super) last: bool,
}

impl Default for Sender {
    fn default() -> Self {
        Self {
            control: Cubic::new(),
            rtt: None,
            unsent: VecDeque::new(),
            held: 0,
            finished: false,
            end_sent: false,
            next: 0,
            limit: RECEIVE_BUFFER,
            flight: BTreeMap::new(),
            again: BTreeSet::new(),
            pipe: 0,
            order: 0,
            latest: 0,
            answered: 0,
            deadline: None,
            silent: 0,
        }
    }
}

impl Sender {
    /// Takes what there is room for.
    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        let room = SEND_BUFFER.saturating_sub(self.held);
        let (now, _) = bytes.split_at(bytes.len().min(room));
        if !now.is_empty() {
            self.held = self.held.saturating_add(now.len());
            self.unsent.push_back(Bytes::copy_from_slice(now));
        }
        now.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.held < SEND_BUFFER
    }

    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    pub(super) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Whether all has been sent and acknowledged, the end too.
    pub(super) fn is_done(&self) -> bool {
        self.end_sent && self.flight.is_empty()
    }

    pub(super) const fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The next segment, if one may go.
    pub(super) fn next(&mut self, now: Duration) -> Option<Next> {
        let next = if self.has_window() {
            self.repeat(now).or_else(|| self.fresh(now, self.limit))
        } else {
            None
        };
        if next.is_some() || (!self.unsent.is_empty() && self.flight.is_empty()) {
            // Also when the peer takes nothing: it is asked when this is over.
            let rto = self.rto();
            self.deadline.get_or_insert(now + rto);
        }
        next
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "windows are far below 2^53 bytes"
    )]
    fn has_window(&self) -> bool {
        self.pipe == 0 || (self.pipe as f64) / (SEGMENT as f64) + 1.0 <= self.control.window()
    }

    fn repeat(&mut self, now: Duration) -> Option<Next> {
        let seq = self.again.pop_first()?;
        self.order = self.order.wrapping_add(1);
        let flying = self.flight.get_mut(&seq)?;
        (flying.sent, flying.order) = (now, self.order);
        (flying.repeated, flying.lost) = (true, false);
        self.pipe = self.pipe.saturating_add(flying.numbers());
        Some(Next {
            seq,
            data: flying.data.clone(),
            last: flying.last,
        })
    }

    fn fresh(&mut self, now: Duration, limit: u64) -> Option<Next> {
        let room = usize::try_from(limit.saturating_sub(self.next)).unwrap_or(usize::MAX);
        let data = self.cut(room.min(SEGMENT));
        let last = self.finished && !self.end_sent && self.unsent.is_empty();
        if data.is_empty() && !last {
            return None;
        }
        self.end_sent |= last;
        self.order = self.order.wrapping_add(1);
        let flying = Flying {
            data: data.clone(),
            last,
            sent: now,
            order: self.order,
            repeated: false,
            arrived: false,
            lost: false,
        };
        let seq = self.next;
        self.next = self.next.saturating_add(flying.numbers());
        self.pipe = self.pipe.saturating_add(flying.numbers());
        self.flight.insert(seq, flying);
        Some(Next { seq, data, last })
    }

    /// The first `most` bytes of what has not been sent.
    fn cut(&mut self, most: usize) -> Bytes {
        let Some(first) = self.unsent.front_mut() else {
            return Bytes::new();
        };
        if first.len() > most {
            return first.split_to(most);
        }
        let whole = self.unsent.pop_front().unwrap_or_default();
        if whole.len() == most || self.unsent.is_empty() {
            return whole;
        }
        let mut joined = BytesMut::from(whole.as_ref());
        while joined.len() < most && !self.unsent.is_empty() {
            let more = self.cut(most - joined.len());
            joined.extend_from_slice(&more);
        }
        joined.freeze()
    }

    /// The peer says what has come: all before `ack`, and the segment `heard`.
    pub(super) fn acknowledged(
        &mut self,
        ack: u64,
        heard: Option<u64>,
        window: u64,
        now: Duration,
    ) {
        self.limit = self.limit.max(ack.saturating_add(window));
        let rest = self.flight.split_off(&ack);
        let whole = std::mem::replace(&mut self.flight, rest);
        let mut new: u64 = 0;
        for (seq, mut flying) in whole {
            new = new.saturating_add(self.arrived(seq, &mut flying, now));
            self.held = self.held.saturating_sub(flying.data.len());
        }
        if let Some((seq, mut flying)) = heard.and_then(|seq| self.flight.remove_entry(&seq)) {
            new = new.saturating_add(self.arrived(seq, &mut flying, now));
            self.flight.insert(seq, flying);
        }
        if new > 0 {
            self.silent = 0;
            self.deadline = (!self.flight.is_empty()).then(|| now + self.rto());
            self.grow(ack, new, now);
        }
        self.find_lost();
    }

    /// How many numbers of it are new.
    fn arrived(&mut self, seq: u64, flying: &mut Flying, now: Duration) -> u64 {
        if std::mem::replace(&mut flying.arrived, true) {
            return 0;
        }
        self.again.remove(&seq);
        if !std::mem::replace(&mut flying.lost, false) {
            self.pipe = self.pipe.saturating_sub(flying.numbers());
        }
        self.latest = self.latest.max(flying.order);
        if !flying.repeated {
            self.measure(now.saturating_sub(flying.sent));
        }
        flying.numbers()
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "windows are far below 2^53 bytes"
    )]
    fn grow(&mut self, ack: u64, new: u64, now: Duration) {
        let (rtt, _) = self.rtt.unwrap_or_default();
        // While what was lost is repeated the window stays.
        if ack >= self.answered {
            self.control
                .acknowledged(new as f64 / SEGMENT as f64, rtt, now);
        }
    }

    fn find_lost(&mut self) {
        let latest = self.latest;
        let is_late = |flying: &Flying| flying.order.saturating_add(DUP_ACK_THRESHOLD) <= latest;
        if !self.flight.values().next().is_some_and(is_late) {
            return;
        }
        let lost = self.flight.iter_mut();
        let lost = lost.filter(|(_, flying)| !flying.arrived && !flying.lost && is_late(flying));
        let mut fresh = false;
        for (seq, flying) in lost {
            flying.lost = true;
            self.pipe = self.pipe.saturating_sub(flying.numbers());
            self.again.insert(*seq);
            fresh |= *seq >= self.answered;
        }
        if fresh {
            self.answered = self.next;
            self.control.lost();
        }
    }

    /// RFC 6298 §2.
    fn measure(&mut self, sample: Duration) {
        self.rtt = Some(match self.rtt {
            None => (sample, sample / 2),
            Some((rtt, varies)) => (
                (rtt * 7 + sample) / 8,
                (varies * 3 + rtt.abs_diff(sample)) / 4,
            ),
        });
    }

    fn rto(&self) -> Duration {
        let rto = self
            .rtt
            .map_or(INITIAL_RTO, |(rtt, varies)| (rtt + varies * 4).max(MIN_RTO));
        let rto = rto.saturating_mul(1 << self.silent.min(MAX_RETRIES));
        rto.min(MAX_RTO)
    }

    /// The deadline has passed; tells whether there is still hope.
    pub(super) fn silent(&mut self, now: Duration) -> bool {
        self.silent = self.silent.saturating_add(1);
        if self.flight.is_empty() {
            // The peer took nothing: one segment asks whether it does now.
            self.limit = self.limit.max(self.next.saturating_add(1));
        }
        for (seq, flying) in &mut self.flight {
            if !flying.arrived && !std::mem::replace(&mut flying.lost, true) {
                self.again.insert(*seq);
            }
        }
        self.pipe = 0;
        self.answered = self.next;
        self.control.silent();
        let waits = !self.flight.is_empty() || !self.unsent.is_empty();
        self.deadline = waits.then(|| now + self.rto());
        self.silent < MAX_RETRIES
    }
}

impl Flying {
    fn numbers(&self) -> u64 {
        length(&self.data).saturating_add(self.last.into())
    }
}

// The congestion window: slow start, then CUBIC (RFC 9438) with its lower bound, Reno's pace. A machine without clock; in segments.

/// RFC 6928.
const INITIAL_WINDOW: f64 = 10.0;

const MIN_WINDOW: f64 = 2.0;

const C: f64 = 0.4;

const BETA: f64 = 0.7;

/// How fast Reno would grow with this BETA (RFC 9438 §4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

#[derive(Clone, Debug)]
pub(super) struct Cubic {
    window: f64,
    threshold: f64,
    before: f64,
    reno: f64,
    /// Since when the window grows without loss.
    since: Option<Duration>,
}

impl Cubic {
    pub(super) const fn new() -> Self {
        Self {
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            before: 0.0,
            reno: 0.0,
            since: None,
        }
    }

    pub(super) const fn window(&self) -> f64 {
        self.window
    }

    /// This many segments have been acknowledged.
    pub(super) fn acknowledged(&mut self, segments: f64, rtt: Duration, now: Duration) {
        if self.window < self.threshold {
            self.window += segments;
            return;
        }
        let since = *self.since.get_or_insert(now);
        if since == now {
            self.before = self.before.max(self.window);
            self.reno = self.window;
        }
        let climbs = ((self.before * (1.0 - BETA)) / C).cbrt();
        let time = (now.saturating_sub(since) + rtt).as_secs_f64();
        let target = C.mul_add((time - climbs).powi(3), self.before);
        let target = target.clamp(self.window, 1.5 * self.window);
        self.window += (target - self.window) / self.window * segments;
        self.reno += ALPHA * segments / self.window;
        self.window = self.window.max(self.reno);
    }

    /// Something was lost; told once for each window.
    pub(super) fn lost(&mut self) {
        self.before = self.window;
        self.window = (self.window * BETA).max(MIN_WINDOW);
        self.threshold = self.window;
        self.since = None;
    }

    /// Nothing was heard for too long.
    pub(super) fn silent(&mut self) {
        self.lost();
        self.window = 1.0;
    }
}

// What has come, in order for the reader; what came before something that is missing waits for it.

#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// The number of the byte that is missing first.
    expected: u64,
    early: BTreeMap<u64, (Bytes, bool)>,
    ready: VecDeque<Bytes>,
    /// Bytes in `early` and `ready`.
    held: u64,
    ended: bool,
}

impl Receiver {
    /// A segment has come, maybe not for the first time.
    pub(super) fn received(&mut self, seq: u64, data: Bytes, last: bool) {
        if seq < self.expected || self.early.contains_key(&seq) {
            return;
        }
        self.held = self.held.saturating_add(length(&data));
        self.early.insert(seq, (data, last));
        while let Some((data, last)) = self.early.remove(&self.expected) {
            let numbers = length(&data).saturating_add(last.into());
            self.expected = self.expected.saturating_add(numbers);
            self.ended |= last;
            if !data.is_empty() {
                self.ready.push_back(data);
            }
        }
    }

    pub(super) fn take(&mut self) -> Option<Bytes> {
        let data = self.ready.pop_front()?;
        self.held = self.held.saturating_sub(length(&data));
        Some(data)
    }

    /// All before this number has come.
    pub(super) const fn expected(&self) -> u64 {
        self.expected
    }

    pub(super) const fn window(&self) -> u64 {
        RECEIVE_BUFFER.saturating_sub(self.held)
    }

    pub(super) fn has_some(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether all has come, though maybe not been read.
    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }
}

pub(super) fn length(data: &Bytes) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn grow(cubic: &mut Cubic, rounds: u32, from: u32) {
        for round in from..from + rounds {
            let now = RTT * round;
            cubic.acknowledged(cubic.window(), RTT, now);
        }
    }

    #[test]
    fn a_window_doubles_each_round_trip_until_the_first_loss() {
        let mut cubic = Cubic::new();
        grow(&mut cubic, 3, 0);
        assert!((cubic.window() - 80.0).abs() < 0.1);
        cubic.lost();
        assert!((cubic.window() - 56.0).abs() < 0.1);
    }

    #[test]
    fn after_a_loss_it_comes_back_to_where_it_was_and_goes_on_slowly() {
        let mut cubic = Cubic::new();
        grow(&mut cubic, 4, 0);
        cubic.lost();
        // The cube root of 160 * 0.3 / 0.4 is 4.9 s.
        grow(&mut cubic, 49, 10);
        assert!(
            (150.0..190.0).contains(&cubic.window()),
            "{}",
            cubic.window()
        );
    }

    #[test]
    fn silence_begins_anew() {
        let mut cubic = Cubic::new();
        grow(&mut cubic, 4, 0);
        cubic.silent();
        assert!(cubic.window() < 1.1);
        grow(&mut cubic, 6, 10);
        assert!(cubic.window() > 60.0);
    }
}
