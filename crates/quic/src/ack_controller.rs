//! Governs when one connection acknowledges. Its keys hand it every packet, its owner the acknowledgement policy (ACK policy) and the round trip.
//! The local stack is told by an ACK_FREQUENCY frame that is put before what it receives: it obeys from the next packet on. Where datagrams
//! are not acknowledged it never sees them: they are cut out of the packets and come here by [`AckController::poll_datagram`].
//! draft-ietf-quic-ack-frequency §4, §5, §6; RFC 9221 §5.2 (DATAGRAM frames and acknowledgements).

mod ack_frames;
mod learner;
mod pieces;

use std::{
    collections::VecDeque,
    fmt,
    ops::Range,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use hoplite_wire::{
    quic_frames::{AckFrequency, Content, Frame, Frames, kind},
    tuning::{AckPolicy, DEFAULT_MAX_ACK_DELAY, DELAYS},
};
use parking_lot::Mutex;

use self::{
    ack_frames::{Folder, Sending, Unfolder},
    learner::{Disorder, Learner},
    pieces::Pieces,
};

/// What is fixed when a connection begins.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The longest delay that a policy of this end may come to without the peer's asking: it is told when the connection begins (max_ack_delay).
    pub own_delay: Duration,
    /// The longest delay that the peer may come to have because we ask for it: our stack waits so much longer for what it sends.
    pub peer_delay: Duration,
    /// Bytes of datagrams that may wait for their reader; beyond, the oldest are dropped.
    pub inbox: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            own_delay: DEFAULT_MAX_ACK_DELAY,
            peer_delay: Duration::ZERO,
            inbox: 1 << 20,
        }
    }
}

/// Shared by the keys of one connection and its owner.
pub struct AckController {
    bounds: Bounds,
    state: Mutex<State>,
    inbox: Inbox,
}

/// How many packets have come, of how many. What is missing was lost or is late, but for the few numbers that a peer leaves out (RFC 9000 §21.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Packets that came, each counted once.
    pub received: u64,
    /// Packets that the peer had sent when it sent the last of these: they are numbered one after the other (RFC 9000 §12.3).
    pub numbered: u64,
}

/// No clock in here: `now` is handed in.
#[derive(Debug, Default)]
struct State {
    acks: AckPolicy,
    schedule: Schedule,
    requests: Requests,
    seen: Seen,
    probe: Probe,
    cutter: Cutter,
    folder: Folder,
    unfolder: Unfolder,
    pieces: Pieces,
    /// The congestion controller wants to hear of every lost packet.
    tells_all: bool,
}

/// Which frames that matter here a packet has.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    ack: bool,
    ack_frequency: bool,
    immediate_ack: bool,
    datagram: bool,
    stream: bool,
}

impl Found {
    fn within(payload: &[u8]) -> Self {
        let mut found = Self::default();
        for frame in Frames::new(payload).flatten() {
            match frame.content {
                Content::Ack(_) => found.ack = true,
                Content::Datagram(_) => found.datagram = true,
                Content::Stream { .. } => found.stream = true,
                _ => {
                    found.stream |= frame.kind == kind::RESET_STREAM;
                    found.ack_frequency |= frame.kind == kind::ACK_FREQUENCY;
                    found.immediate_ack |= frame.kind == kind::IMMEDIATE_ACK;
                }
            }
        }
        found
    }
}

impl AckController {
    /// For a connection that begins; it acknowledges as its stack does.
    #[must_use]
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            state: Mutex::new(State {
                acks: AckPolicy::Stack,
                ..State::default()
            }),
            inbox: Inbox::new(bounds.inbox),
        })
    }

    /// From now on this end acknowledges so; a delay begins when `after` packets have been received since the connection began.
    pub fn set(&self, acks: AckPolicy, after: u16) {
        let mut state = self.state.lock();
        state.acks = acks;
        state.schedule.set(acks, after);
    }

    /// Whether the stack hears of every lost datagram, as a congestion controller must that measures how much arrives. Otherwise it hears of one
    /// a round trip.
    pub fn tell_all_losses(&self, all: bool) {
        self.state.lock().tells_all = all;
    }

    /// How this end acknowledges.
    #[must_use]
    pub fn acks(&self) -> AckPolicy {
        self.state.lock().acks
    }

    /// What the round trip is now.
    pub fn round_trip(&self, rtt: Duration) {
        let mut state = self.state.lock();
        state.schedule.round_trip(rtt);
        state.probe.round_trip(rtt);
    }

    /// What has come so far.
    #[must_use]
    pub fn arrivals(&self) -> Arrivals {
        let state = self.state.lock();
        Arrivals {
            received: state.schedule.received,
            numbered: state.seen.next,
        }
    }

    /// A datagram that was cut out of a packet.
    pub fn poll_datagram(&self, cx: &mut Context<'_>) -> Poll<Bytes> {
        self.inbox.poll(cx)
    }

    /// Puts datagrams that were cut out of packets behind what `into` has, until that are `most`.
    pub fn take_datagrams(&self, into: &mut Vec<Bytes>, most: usize) {
        self.inbox.take(into, most);
    }

    /// How many datagrams were cut out: signs of life that the stack does not count.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        self.inbox.taken()
    }

    /// How many of them were dropped because nobody read them in time.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.inbox.dropped()
    }

    pub(super) const fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// A 1-RTT packet was received and is authentic; what the stack gets of it is what this leaves. False: nothing, not even that it came.
    pub(super) fn received(
        &self,
        number: u64,
        payload: &mut BytesMut,
        now: impl Fn() -> Instant,
    ) -> bool {
        let mut state = self.state.lock();
        let Some(gap) = state.seen.insert(number) else {
            return true;
        };
        let found = Found::within(payload);
        if found.stream && !state.pieces.take(payload) {
            return false;
        }
        state.schedule.received(gap);
        if found.ack_frequency {
            state.tame(payload);
        }
        if found.immediate_ack && !obeys(state.acks) && !state.requests.is_heard(now()) {
            replace(payload, |frame| frame.kind == kind::IMMEDIATE_ACK);
        }
        if state.acks == AckPolicy::NoAcks {
            state.probe.gap(gap);
            if found.datagram {
                state.cut(payload, now(), &self.inbox);
            }
        }
        if found.ack {
            if !state.tells_all {
                state.folder.fold(payload);
            }
            state.unfolder.unfold(payload);
        }
        if state.schedule.learns() && payload.len() > NOTHING_LEFT {
            state.schedule.learn(payload.len(), gap, now());
        }
        state.schedule.tell(payload);
        drop(state);
        self.inbox.wake();
        true
    }

    /// A 1-RTT packet is about to be sent.
    pub(super) fn sent(&self, number: u64, size: usize, frames: Frames<'_>, now: Instant) {
        let content = Sending::of(frames);
        let mut state = self.state.lock();
        state.folder.sent(number, size, content);
        state.unfolder.sent(number, now);
        if content.ack && state.acks == AckPolicy::NoAcks {
            state.probe.acknowledged(now);
        }
        if content.ack && content.idle {
            state.schedule.learner.acknowledged(size);
        }
    }
}

impl State {
    /// A peer's own ACK_FREQUENCY frame, where it is not to be obeyed, becomes a PING: it is still acknowledged.
    fn tame(&self, payload: &mut [u8]) {
        let obeyed = obeys(self.acks);
        replace(payload, |frame| {
            let Content::Numbers([sequence, _, delay, _]) = frame.content else {
                return false;
            };
            let is_fine = obeyed && is_reasonable(sequence, delay);
            frame.kind == kind::ACK_FREQUENCY && !is_fine
        });
    }

    fn cut(&mut self, payload: &mut BytesMut, now: Instant, inbox: &Inbox) {
        let cut = self.cutter.cut(payload, |datagram| inbox.push(datagram));
        if cut && self.probe.is_due(now) {
            self.probe.acknowledged(now);
            // In front: a STREAM frame without a length takes all that stands behind it for its own (RFC 9000 §19.8).
            let rest = std::mem::replace(payload, BytesMut::from(&PROBE_FRAMES[..]));
            payload.extend_from_slice(&rest);
        }
    }
}

/// Whether a peer may ask for other acknowledgements: this end acknowledges as its stack does.
const fn obeys(acks: AckPolicy) -> bool {
    matches!(acks, AckPolicy::Stack | AckPolicy::Extension)
}

/// Puts a PING in the place of each such frame, in one pass: a packet has room for more than a thousand.
fn replace(mut payload: &mut [u8], is_unwanted: impl Fn(&Frame<'_>) -> bool) {
    while let Some(Ok(frame)) = Frames::new(payload).next() {
        let (size, is_unwanted) = (frame.size, is_unwanted(&frame));
        let Some((frame, behind)) = payload.split_at_mut_checked(size) else {
            return;
        };
        if let ([first, rest @ ..], true) = (frame, is_unwanted) {
            *first = 0x01;
            rest.fill(0x00);
        }
        payload = behind;
    }
}

/// A peer may ask for an acknowledgement at once (draft-ietf-quic-ack-frequency §5), but no more often than any policy acknowledges: one that asks
/// with each packet would have each acknowledged.
#[derive(Debug, Default)]
struct Requests {
    heard: Option<Instant>,
}

impl Requests {
    fn is_heard(&mut self, now: Instant) -> bool {
        let before = self.heard;
        let long_ago = |heard| now.saturating_duration_since(heard) >= *DELAYS.start();
        let heard = before.is_none_or(long_ago);
        if heard {
            self.heard = Some(now);
        }
        heard
    }
}

impl fmt::Debug for AckController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AckController")
            .field("acks", &self.acks())
            .finish_non_exhaustive()
    }
}

// Which delay the local stack should keep, and whether it was told. No clock.

/// Above every number that a reasonable peer's own frames reach, so that a peer cannot overrule us.
const SEQUENCE: u64 = 1 << 40;

/// This many packets never wait: only the delay counts.
const NO_THRESHOLD: u64 = 1 << 30;

/// An ACK goes out at once when it tells the sender of a loss: the sender takes a packet for lost when the third after it has arrived
/// (RFC 9002 §6.1.1). With less, each reordered packet costs one; with 0, a loss is told only when the delay is over.
const REORDERING_THRESHOLD: u64 = 3;

/// A packet of which so little is left, PADDING or a probe, had nothing but datagrams that are not acknowledged.
const NOTHING_LEFT: usize = 3;

/// RFC 9000 §13.2.2: "A receiver SHOULD send an ACK frame after receiving at least two ack-eliciting packets."
const DEFAULT_ACK_FREQUENCY: AckFrequency = AckFrequency {
    sequence: SEQUENCE,
    threshold: 1,
    delay: DEFAULT_MAX_ACK_DELAY.subsec_micros() as u64,
    reordering: 1,
};

/// What one connection's stack was told, and what it should be told.
#[derive(Debug, Default)]
struct Schedule {
    acks: AckPolicy,
    after: u64,
    received: u64,
    rtt: Option<Duration>,
    learner: Learner,
    disorder: Disorder,
    /// Something has changed since it was last looked at.
    changed: bool,
    /// The delay that the stack keeps; `None` is its own.
    told: Option<Duration>,
    /// Whether it tells of no loss before its time.
    told_disorder: bool,
    frames: u64,
}

/// Whether a peer's own frame asks for something that a sender may want.
fn is_reasonable(sequence: u64, delay: u64) -> bool {
    sequence < SEQUENCE && Duration::from_micros(delay) <= *DELAYS.end()
}

impl Schedule {
    fn set(&mut self, acks: AckPolicy, after: u16) {
        (self.acks, self.after, self.changed) = (acks, after.into(), true);
    }

    fn round_trip(&mut self, rtt: Duration) {
        (self.rtt, self.changed) = (Some(rtt), true);
        self.learner.round_trip(rtt);
    }

    fn received(&mut self, gap: bool) {
        self.received = self.received.saturating_add(1);
        self.changed |= self.received == self.after;
        self.changed |= self.disorder.received(gap);
    }

    const fn learns(&self) -> bool {
        matches!(self.acks, AckPolicy::Auto | AckPolicy::NoAcks)
    }

    fn learn(&mut self, bytes: usize, gap: bool, now: Instant) {
        let before = self.learner.delay();
        self.learner.received(bytes, gap, now);
        self.changed |= self.learner.delay() != before;
    }

    /// What the stack should keep. Where datagrams are not acknowledged, the rest is, as suits.
    fn wanted(&self) -> Option<Duration> {
        if self.received < self.after {
            None
        } else if self.learns() {
            self.learner.delay()
        } else {
            self.acks.delay(self.rtt)
        }
    }

    /// Puts what is to be told before the frames of a packet. Before, because a DATAGRAM frame may run to the packet's end.
    fn tell(&mut self, payload: &mut BytesMut) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let (wanted, disorder) = (self.wanted(), self.disorder.is_much() && !obeys(self.acks));
        if is_near(wanted, self.told) && disorder == self.told_disorder {
            return;
        }
        (self.told, self.told_disorder) = (wanted, disorder);
        self.frames += 1;
        let mut frame = wanted.map_or(DEFAULT_ACK_FREQUENCY, |delay| AckFrequency {
            threshold: NO_THRESHOLD,
            delay: u64::try_from(delay.as_micros()).unwrap_or(u64::MAX),
            reordering: REORDERING_THRESHOLD,
            ..DEFAULT_ACK_FREQUENCY
        });
        if disorder {
            frame.reordering = 0;
        }
        frame.sequence += self.frames;
        let received = std::mem::take(payload);
        payload.reserve(received.len() + 34);
        frame.write(payload);
        payload.extend_from_slice(&received);
    }
}

/// A round trip is never the same twice: an eighth more or less changes nothing.
fn is_near(a: Option<Duration>, b: Option<Duration>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) <= b / 8,
        (a, b) => a == b,
    }
}

// When a connection whose datagrams are not acknowledged acknowledges nevertheless, so that the sender's loss detection, round trip and
// signs of life stay true. No clock. The end of a burst is probed by the sender's own timer (RFC 9002 §6.2).

/// PING and IMMEDIATE_ACK: the stack acknowledges all that it has received, at once.
const PROBE_FRAMES: [u8; 2] = [0x01, 0x1f];

/// No probe sooner than this after the last, but for very many gaps.
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(5);

/// The usual time between two is a round trip and what the sender expects an acknowledgement to be held back (RFC 9002 §6.2.1): so no packet
/// of a slow flow makes the sender's timer fire. On very long paths it is this.
const MAX_PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// More than three bursts of losses told at once look to the sender as if the path took no large packets any more.
const SOME_GAPS: u32 = 3;

/// The stack keeps 64 ranges. Each is told several times before it is forgotten, since acknowledgements are lost, too.
const MANY_GAPS: u32 = 16;

/// When the next one is due.
#[derive(Debug, Default)]
struct Probe {
    rtt: Duration,
    last: Option<Instant>,
    /// When the datagram before came.
    datagram: Option<Instant>,
    gaps: u32,
}

impl Probe {
    fn round_trip(&mut self, rtt: Duration) {
        self.rtt = rtt;
    }

    /// A packet has arrived, with or without a gap before it.
    fn gap(&mut self, gap: bool) {
        self.gaps = self.gaps.saturating_add(gap.into());
    }

    /// All that has arrived was acknowledged, or will be at once.
    fn acknowledged(&mut self, now: Instant) {
        (self.last, self.gaps) = (Some(now), 0);
    }

    /// A datagram has come: whether it should be acknowledged at once. One that comes after a pause should, whatever else was acknowledged
    /// in the pause: the next one may be as far away.
    fn is_due(&mut self, now: Instant) -> bool {
        let before = self.datagram.replace(now);
        let (Some(last), Some(before)) = (self.last, before) else {
            return true;
        };
        let waited = now.saturating_duration_since(last);
        let paused = now.saturating_duration_since(before);
        let usual = self
            .rtt
            .saturating_add(DEFAULT_MAX_ACK_DELAY)
            .min(MAX_PROBE_INTERVAL);
        waited.max(paused) >= usual
            || self.gaps >= MANY_GAPS
            || (self.gaps >= SOME_GAPS && waited >= MIN_PROBE_INTERVAL)
    }
}

// Which packets have arrived: the stack looks for duplicates only after they were decrypted, when their datagrams are already cut out.
// RFC 9000 §12.3: "a receiver MUST discard a newly unprotected packet unless it is certain that it has not processed another packet with the same packet number".

/// How many packets behind the newest one are remembered; what is older counts as a duplicate.
const DUPLICATE_WINDOW: u64 = 1024;

/// A sliding bitmap.
#[derive(Debug, Default)]
struct Seen {
    /// Above every number so far.
    next: u64,
    bits: [u64; 16],
}

impl Seen {
    /// Enters a packet. `None` if it is, or may be, a duplicate; otherwise whether it leaves a gap before it.
    fn insert(&mut self, number: u64) -> Option<bool> {
        if number >= self.next {
            let gap = number > self.next;
            let from = self.next.max(number.saturating_sub(DUPLICATE_WINDOW - 1));
            for skipped in from..=number {
                self.put(skipped, false);
            }
            self.put(number, true);
            self.next = number.saturating_add(1);
            return Some(gap);
        }
        let (word, bit) = place(number);
        let known = self.bits.get(word).is_none_or(|bits| bits & bit != 0);
        if known || self.next - number > DUPLICATE_WINDOW {
            return None;
        }
        self.put(number, true);
        Some(false)
    }

    fn put(&mut self, number: u64, seen: bool) {
        let (word, bit) = place(number);
        if let Some(bits) = self.bits.get_mut(word) {
            *bits = if seen { *bits | bit } else { *bits & !bit };
        }
    }
}

fn place(number: u64) -> (usize, u64) {
    let word = usize::try_from(number % DUPLICATE_WINDOW / 64).unwrap_or_default();
    (word, 1 << (number % 64))
}

// Cuts the DATAGRAM frames out of a packet, without copying them. What is left elicits an acknowledgement only if it did so itself.

/// Its notes are kept from packet to packet, so that they cost no allocation.
#[derive(Debug, Default)]
struct Cutter {
    parts: Vec<Part>,
}

/// A part of a packet from its first datagram on: the bytes of a datagram, or another frame.
#[derive(Debug)]
struct Part {
    is_datagram: bool,
    range: Range<usize>,
}

impl Cutter {
    /// Hands each datagram to `take`; `false`, and nothing is done, if there is none or the packet is malformed.
    fn cut(&mut self, payload: &mut BytesMut, mut take: impl FnMut(Bytes)) -> bool {
        let Some(first) = self.read(payload) else {
            return false;
        };
        // "An endpoint MUST treat receipt of a packet containing no frames as a connection error": PADDING stays.
        let kept = first.max(1);
        let rest = payload.split_off(kept).freeze();
        if first == 0 {
            payload.fill(0x00);
        }
        for part in &self.parts {
            let range = part.range.start - kept..part.range.end - kept;
            if part.is_datagram {
                take(rest.slice(range))
            } else {
                payload.extend_from_slice(rest.get(range).unwrap_or_default())
            }
        }
        true
    }

    /// Where the first DATAGRAM frame begins. The parts are noted.
    fn read(&mut self, payload: &[u8]) -> Option<usize> {
        self.parts.clear();
        let (mut first, mut at) = (None, 0);
        for frame in Frames::new(payload) {
            let frame = frame.ok()?;
            let start = at;
            at += frame.size;
            if let Content::Datagram(data) = frame.content {
                first.get_or_insert(start);
                self.note(true, at - data.len()..at);
            } else if first.is_some() && frame.content != Content::Padding {
                self.note(false, start..at);
            }
        }
        first
    }

    fn note(&mut self, is_datagram: bool, range: Range<usize>) {
        self.parts.push(Part { is_datagram, range });
    }
}

// Datagrams that were cut out of packets, on their way to their reader. Full, it drops the oldest, as the QUIC stack does.

/// What a datagram takes beside its bytes.
const DATAGRAM_OVERHEAD: usize = size_of::<Bytes>();

#[derive(Debug)]
struct Inbox {
    state: Mutex<Waiting>,
    most: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    taken: u64,
    dropped: u64,
    reader: Option<Waker>,
}

impl Inbox {
    fn new(most: usize) -> Self {
        Self {
            state: Mutex::default(),
            most,
        }
    }

    /// The reader is not woken: more may come of the same packet.
    fn push(&self, datagram: Bytes) {
        let mut state = self.state.lock();
        state.taken += 1;
        state.bytes += datagram.len() + DATAGRAM_OVERHEAD;
        state.waiting.push_back(datagram);
        while state.bytes > self.most && state.pop().is_some() {
            state.dropped += 1;
        }
    }

    /// Wakes the reader if there is something.
    fn wake(&self) {
        let mut state = self.state.lock();
        let reader = if state.waiting.is_empty() {
            None
        } else {
            state.reader.take()
        };
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn take(&self, into: &mut Vec<Bytes>, most: usize) {
        let mut state = self.state.lock();
        let count = state.waiting.len().min(most.saturating_sub(into.len()));
        into.reserve(count);
        into.extend(std::iter::from_fn(|| state.pop()).take(count));
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let mut state = self.state.lock();
        if let Some(datagram) = state.pop() {
            return Poll::Ready(datagram);
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn taken(&self) -> u64 {
        self.state.lock().taken
    }

    fn dropped(&self) -> u64 {
        self.state.lock().dropped
    }
}

impl Waiting {
    fn pop(&mut self) -> Option<Bytes> {
        let datagram = self.waiting.pop_front()?;
        self.bytes -= datagram.len() + DATAGRAM_OVERHEAD;
        Some(datagram)
    }
}

#[cfg(test)]
mod tests;
