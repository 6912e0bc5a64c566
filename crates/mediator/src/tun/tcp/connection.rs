//! One connection with a program: the passive side of TCP, a state machine without socket, task or clock.
//! RFC 9293 §3.10 (events), §3.6 (closing, half-close and simultaneous close); RFC 7323 §2 (window scaling); RFC 5961 (resets, SYNs
//! and acknowledgements that somebody guessed).
//!
//! In this order: [`Connection::new`] with the SYN; [`Connection::accept`] or [`Connection::reset`]; then [`Connection::segment`] for what
//! the program sends, [`Connection::push`], [`Connection::finish`] and [`Connection::consume`] for what the overlay sends and takes,
//! [`Connection::expire`] when [`Connection::timeout`] has come. After each of them [`Connection::transmit`] until it has nothing more.
//!
//! Not offered, because between a program and its own machine they buy nothing: timestamps, selective acknowledgements, ECN, data in a SYN.
//! Urgent data are data like others (RFC 6093).

use std::{io::IoSlice, time::Duration};

use bytes::Bytes;
use hoplite_wire::ip::tcp::{Flags, Header, Options, Segment};
use tokio::time::Instant;

use super::{
    receive::{ReceiveSide, window_scale},
    send::{AckOutcome, Acknowledgement, SendRange, SendSide},
};

/// The least bytes of memory that a direction makes do with.
const MIN_FLOOR: usize = 2048;

/// What a new connection needs to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Our first sequence number (RFC 6528).
    pub(super) isn: u32,
    /// The most that waits in either direction, in bytes.
    pub(super) window: usize,
    /// What a direction may take in any case, in bytes of memory: see [`memory_floor`].
    pub(super) floor: usize,
    /// The largest segment that the device takes.
    pub(super) mss: u16,
    /// The largest that a program takes which says nothing: 536 or 1220 (RFC 9293 §3.7.1).
    pub(super) default_mss: u16,
    /// How long an open connection may go on without a segment of the program's; zero is for ever.
    pub(super) idle: Duration,
}

/// The state of a connection. What RFC 9293 calls ESTABLISHED up to LAST-ACK is one state here: which of those it is follows from whether
/// either side has sent its FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// LISTEN with a SYN that is not answered yet: the overlay is still opening the stream.
    SynPending,
    /// SYN-RECEIVED: it is answered; the program has not confirmed.
    SynReceived,
    /// ESTABLISHED, FIN-WAIT-1 and -2, CLOSE-WAIT, CLOSING and LAST-ACK.
    Established,
    /// TIME-WAIT: both sides have ended, we first: late packets are answered.
    TimeWait,
    Closed,
}

/// How a connection ended, once it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// Both directions were finished.
    Complete,
    /// The program broke it, or is gone.
    Broken,
    /// We reset it.
    Reset,
    /// We reset it, since no segment came for `flows.idle_stream`.
    Idle,
}

/// A connection with a program (RFC 9293 calls its variables the transmission control block).
#[derive(Debug)]
pub(super) struct Connection {
    state: State,
    close_reason: CloseReason,
    /// The program's first sequence number.
    irs: Seq,
    settings: Settings,
    /// Whether windows are scaled.
    scaled: bool,
    receive: ReceiveSide,
    send: SendSide,
    timer: Timer,
    /// When the program was last heard.
    last_heard: Option<Instant>,
    challenges: ChallengeLimit,
    /// Our FIN left before the program's came: TIME-WAIT is ours.
    active_close: bool,
    /// The overlay has something for which there was no room.
    stalled: bool,
    /// The overlay takes no more.
    discarding: bool,
    /// Our SYN is to leave (again).
    syn_ack_due: bool,
    /// A zero-window probe is to leave.
    probe_due: bool,
    /// A reset is to leave, with this sequence number.
    reset_due: Option<Seq>,
}

/// A segment that is to leave: its header without ports, and which bytes go with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutgoingSegment {
    pub(super) header: Header,
    pub(super) range: Option<SendRange>,
}

impl Connection {
    /// A connection that the program asks for with `syn`. Nothing leaves before [`Self::accept`].
    pub(super) fn new(syn: &Segment<'_>, settings: Settings) -> Self {
        let irs = Seq(syn.sequence);
        let theirs = syn.options.window_scale.map(|shift| shift.min(14));
        let ours = theirs.map(|_| window_scale(settings.window));
        let mss = syn.options.mss.unwrap_or(settings.default_mss);
        let (mss, iss) = (mss.min(settings.mss).into(), Seq(settings.isn));
        Self {
            state: State::SynPending,
            close_reason: CloseReason::Complete,
            irs,
            settings,
            scaled: theirs.is_some(),
            receive: ReceiveSide::new(irs.plus(1), settings.window, ours),
            send: SendSide::new(iss.plus(1), mss, theirs.unwrap_or(0)),
            timer: Timer::default(),
            last_heard: None,
            challenges: ChallengeLimit::default(),
            active_close: false,
            stalled: false,
            discarding: false,
            syn_ack_due: false,
            probe_due: false,
            reset_due: None,
        }
    }

    /// Answers the SYN.
    pub(super) fn accept(&mut self, now: Instant) {
        if self.state == State::SynPending {
            (self.state, self.syn_ack_due) = (State::SynReceived, true);
        }
        self.set_timer(now);
    }

    /// Breaks the connection off, or refuses it.
    pub(super) fn reset(&mut self) {
        let seq = match self.state {
            State::Closed => return,
            State::SynPending => Seq(0),
            _ => self.send.highest(),
        };
        self.reset_due = Some(seq);
        self.close(CloseReason::Reset);
    }

    /// Ends it without telling the program.
    pub(super) fn abandon(&mut self) {
        if self.state != State::Closed {
            self.close(CloseReason::Reset);
        }
    }

    fn close(&mut self, reason: CloseReason) {
        (self.state, self.close_reason, self.timer) = (State::Closed, reason, Timer::default());
        if reason != CloseReason::Complete {
            self.receive.clear();
            self.send.clear();
        }
    }

    /// Takes a segment; `payload` is that of the segment.
    pub(super) fn segment(&mut self, segment: &Segment<'_>, payload: Bytes, now: Instant) {
        self.last_heard = Some(now);
        match self.state {
            State::SynPending => self.in_syn_pending(segment),
            State::SynReceived => self.in_syn_received(segment, payload, now),
            State::Established | State::TimeWait => self.synchronized(segment, payload, now),
            State::Closed => {}
        }
        self.set_timer(now);
    }

    /// The program may give up; its SYN again says nothing new.
    fn in_syn_pending(&mut self, segment: &Segment<'_>) {
        let ours = Seq(segment.sequence) == self.irs.plus(1);
        if ours && segment.flags.contains(Flags::RST) {
            self.close(CloseReason::Broken);
        }
    }

    fn in_syn_received(&mut self, segment: &Segment<'_>, payload: Bytes, now: Instant) {
        let flags = segment.flags;
        let again = Seq(segment.sequence) == self.irs && flags.contains(Flags::SYN);
        if again && !flags.intersects(Flags::ACK | Flags::RST) {
            self.syn_ack_due = true;
            return;
        }
        if !self.is_acceptable(segment, payload.len(), now) || !flags.contains(Flags::ACK) {
            return;
        }
        // "If the segment acknowledgment is not acceptable, form a reset segment <SEQ=SEG.ACK><CTL=RST> and send it."
        if Seq(segment.acknowledgment) != self.send.una() {
            self.reset_due = Some(Seq(segment.acknowledgment));
            return;
        }
        self.state = State::Established;
        self.send.open(&acknowledgement(segment, false));
        self.process(segment, payload, now);
    }

    /// RFC 9293 §3.10.7.4, in its order.
    fn synchronized(&mut self, segment: &Segment<'_>, payload: Bytes, now: Instant) {
        // "If the ACK bit is off, drop the segment and return."
        let acceptable = self.is_acceptable(segment, payload.len(), now);
        if acceptable && segment.flags.contains(Flags::ACK) {
            self.process(segment, payload, now);
        }
    }

    fn process(&mut self, segment: &Segment<'_>, payload: Bytes, now: Instant) {
        let fin = segment.flags.contains(Flags::FIN);
        let bare = payload.is_empty() && !fin;
        let outcome = self.send.acknowledge(&acknowledgement(segment, bare));
        self.timer.heard();
        match outcome {
            AckOutcome::Invalid => return self.challenge_ack(now),
            AckOutcome::New => self.timer.restart(TimerKind::Off, now),
            AckOutcome::Old => {}
        }
        if !payload.is_empty() || fin {
            self.receive_payload(Seq(segment.sequence), payload, fin, now);
        }
        self.close_if_finished(now);
    }

    /// Sequence number, RST and SYN: whether the rest of the segment is to be read.
    fn is_acceptable(&mut self, segment: &Segment<'_>, payload: usize, now: Instant) -> bool {
        let (seq, flags) = (Seq(segment.sequence), segment.flags);
        let len = payload + usize::from(flags.contains(Flags::FIN));
        let reset = flags.contains(Flags::RST);
        if !self.receive.is_acceptable(seq, len) {
            if !reset {
                self.challenge_ack(now);
            }
            return false;
        }
        // RFC 5961 §3.2: only a reset with exactly the next sequence number is believed.
        if reset && seq == self.receive.next() {
            self.close(CloseReason::Broken);
            return false;
        }
        // RFC 5961 §4.2: a SYN is never believed.
        if reset || flags.contains(Flags::SYN) {
            self.challenge_ack(now);
            return false;
        }
        true
    }

    fn receive_payload(&mut self, seq: Seq, payload: Bytes, fin: bool, now: Instant) {
        if !self.receive.fin_received() {
            return self.receive.take(seq, payload, fin);
        }
        self.receive.owe_ack(true);
        if self.state == State::TimeWait {
            self.timer.restart(TimerKind::TimeWait, now);
        }
    }

    /// The end, once both directions are finished and acknowledged.
    fn close_if_finished(&mut self, now: Instant) {
        if self.state != State::Established
            || !self.receive.fin_received()
            || !self.send.fin_acked()
        {
            return;
        }
        if self.active_close {
            self.state = State::TimeWait;
            self.timer.restart(TimerKind::TimeWait, now);
        } else {
            self.close(CloseReason::Complete)
        }
    }

    /// An acknowledgement that tells whoever sent this where the connection really is; not for too many of them.
    fn challenge_ack(&mut self, now: Instant) {
        if self.challenges.allows(now) {
            self.receive.owe_ack(true);
        }
    }

    /// Says what the timer runs for.
    fn set_timer(&mut self, now: Instant) {
        let kind = match self.state {
            State::SynPending | State::Closed => TimerKind::Off,
            State::SynReceived => TimerKind::SynAck,
            State::TimeWait => TimerKind::TimeWait,
            State::Established if self.send.in_flight() => TimerKind::Retransmit,
            State::Established if self.send.blocked() || self.is_stalled() => TimerKind::Persist,
            State::Established => TimerKind::Off,
        };
        self.timer.set(kind, now);
    }

    /// When [`Self::expire`] has something to do.
    pub(super) fn timeout(&self) -> Option<Instant> {
        let both = [self.timer.deadline(), self.idle_deadline()];
        both.into_iter().flatten().min()
    }

    /// When the connection counts as idle if nothing is heard. What we send makes the program answer, so that is enough.
    fn idle_deadline(&self) -> Option<Instant> {
        let limited = self.state == State::Established && !self.settings.idle.is_zero();
        Some(self.last_heard.filter(|_| limited)? + self.settings.idle)
    }

    /// Acts on the timeouts that have come.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.idle_deadline().is_some_and(|at| at <= now) {
            self.reset();
            self.close_reason = CloseReason::Idle;
        }
        match self.timer.expire(now) {
            None => {}
            Some(Expiry::TimeWaitOver) => self.close(CloseReason::Complete),
            Some(Expiry::GiveUp) => {
                self.reset();
                self.close_reason = CloseReason::Broken;
            }
            Some(Expiry::Retry(TimerKind::SynAck)) => self.syn_ack_due = true,
            Some(Expiry::Retry(TimerKind::Retransmit)) => {
                self.send.retransmit_all();
                self.probe_due = self.send.window_closed();
            }
            Some(Expiry::Retry(_)) => self.probe_due = true,
        }
    }
}

/// What a direction of a connection needs at least in order to go on: a segment, and a window that can be told.
pub(super) fn memory_floor(window: usize) -> usize {
    MIN_FLOOR.max(2 << window_scale(window))
}

fn acknowledgement(segment: &Segment<'_>, bare: bool) -> Acknowledgement {
    Acknowledgement {
        seq: Seq(segment.sequence),
        ack: Seq(segment.acknowledgment),
        window: segment.window,
        bare,
    }
}

/// What leaves: the next packet, as long as there is one. RFC 9293 §3.10.8 and §3.8.6.
impl Connection {
    /// The next packet that is to leave.
    pub(super) fn transmit(&mut self, now: Instant) -> Option<OutgoingSegment> {
        if let Some(seq) = self.reset_due.take() {
            return Some(self.reset_packet(seq));
        }
        let packet = match self.state {
            State::SynPending | State::Closed => return None,
            State::SynReceived => self.transmit_syn_ack()?,
            State::Established => self.transmit_data().or_else(|| self.transmit_ack())?,
            State::TimeWait => self.transmit_ack()?,
        };
        self.set_timer(now);
        Some(packet)
    }

    fn transmit_syn_ack(&mut self) -> Option<OutgoingSegment> {
        // What came before its time is answered by the acknowledgement in our SYN.
        if !std::mem::take(&mut self.syn_ack_due) && !self.receive.owes_ack() {
            return None;
        }
        self.receive.ack_sent();
        let scale = self.scaled.then(|| window_scale(self.settings.window));
        let mut header = self.header(self.send.una().minus(1), Flags::SYN | Flags::ACK);
        header.options = Options {
            mss: Some(self.settings.mss),
            window_scale: scale,
            ..Options::default()
        };
        Some(bare(header))
    }

    fn transmit_data(&mut self) -> Option<OutgoingSegment> {
        let range = self.send.poll()?;
        self.receive.ack_sent();
        let mut flags = Flags::ACK;
        if range.last {
            flags = flags | Flags::PSH;
        }
        if range.fin {
            flags = flags | Flags::FIN;
            self.active_close |= !self.receive.fin_received();
        }
        let header = self.header(range.seq, flags);
        let range = Some(range);
        Some(OutgoingSegment { header, range })
    }

    fn transmit_ack(&mut self) -> Option<OutgoingSegment> {
        // RFC 9293 §3.8.6.1 probes with a byte; one that was acknowledged before does as well and needs no byte (as Linux has it).
        if std::mem::take(&mut self.probe_due) {
            return Some(bare(self.header(self.send.una().minus(1), Flags::ACK)));
        }
        if !self.receive.owes_ack() {
            return None;
        }
        self.receive.ack_sent();
        Some(bare(self.header(self.send.highest(), Flags::ACK)))
    }

    fn header(&mut self, seq: Seq, flags: Flags) -> Header {
        let scaled = !flags.contains(Flags::SYN);
        Header {
            sequence: seq.0,
            acknowledgment: self.receive.next().0,
            flags,
            window: self.receive.advertise(scaled),
            ..Header::default()
        }
    }

    fn reset_packet(&self, seq: Seq) -> OutgoingSegment {
        bare(Header {
            sequence: seq.0,
            acknowledgment: self.receive.next().0,
            flags: Flags::RST | Flags::ACK,
            ..Header::default()
        })
    }

    /// The bytes of a packet from [`Self::transmit`], and the size that they are to be cut into.
    pub(super) fn payload(&self, packet: &OutgoingSegment) -> ([&[u8]; 2], Option<u16>) {
        let Some(range) = &packet.range else {
            return ([&[]; 2], None);
        };
        let cut = range.len > self.send.mss();
        let segment = cut.then(|| u16::try_from(self.send.mss()).unwrap_or(u16::MAX));
        (self.send.payload(range), segment)
    }
}

fn bare(header: Header) -> OutgoingSegment {
    let range = None;
    OutgoingSegment { header, range }
}

/// What the flow's task and the table ask: what may be pushed and taken, and how things stand.
impl Connection {
    /// What waits in either direction, in bytes of memory; no less than the floor of each.
    pub(super) fn memory(&self) -> usize {
        let floor = self.settings.floor;
        self.receive.memory().max(floor) + self.send.memory().max(floor)
    }

    /// One direction may take this many bytes of memory besides what it has, until this is said again; its floor it may take in any case.
    pub(super) fn set_memory_limit(&mut self, more: usize) {
        let floor = self.settings.floor;
        self.receive
            .limit(floor.max(self.receive.memory().saturating_add(more)));
        self.send
            .limit(floor.max(self.send.memory().saturating_add(more)));
    }

    /// Since when, at least, what is first in either direction has waited: for the overlay to take it, or for the program to acknowledge it.
    pub(super) fn waiting_since(&mut self, now: Instant) -> Option<Instant> {
        let both = [
            self.receive.waiting_since(now),
            self.send.waiting_since(now),
        ];
        both.into_iter().flatten().min()
    }

    /// When the program was last heard.
    pub(super) fn last_heard(&self) -> Option<Instant> {
        self.last_heard
    }

    /// How many bytes may be pushed now.
    pub(super) fn room(&self) -> usize {
        match self.state {
            State::Established => self.send.room(self.settings.window, self.stalled),
            _ => 0,
        }
    }

    /// Bytes for the program; no more than there is [`Self::room`] for.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.stalled = false;
        self.send.push(bytes);
    }

    /// The overlay has bytes and there is no room for them.
    pub(super) fn stall(&mut self, now: Instant) {
        self.stalled = true;
        self.set_timer(now);
    }

    fn is_stalled(&self) -> bool {
        self.stalled && self.send.window_closed()
    }

    /// Whether there is room again for what was stalled, or everything is acknowledged that the overlay waits for.
    pub(super) fn can_send_again(&self) -> bool {
        (self.stalled && self.room() > 0) || (self.discarding && self.is_drained())
    }

    /// Whether the program has acknowledged all bytes.
    pub(super) fn is_drained(&self) -> bool {
        self.send.is_drained()
    }

    /// Bytes that are pushed and wait to leave.
    pub(super) fn unsent(&self) -> usize {
        self.send.unsent()
    }

    /// The overlay has finished.
    pub(super) fn finish(&mut self, now: Instant) {
        self.send.finish();
        self.set_timer(now);
    }

    /// How many bytes wait for the overlay.
    pub(super) fn readable(&self) -> usize {
        self.receive.queue().len()
    }

    /// The first of them; answers with how many slices there are.
    pub(super) fn read<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.receive.queue().slices(slices)
    }

    /// The overlay took this many.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.receive.consume(bytes);
    }

    /// The overlay takes no more: what the program still sends is forgotten.
    pub(super) fn discard(&mut self) {
        self.discarding = true;
        self.receive.discard();
    }

    /// Whether the program has finished and all of it is taken.
    pub(super) fn read_ended(&self) -> bool {
        self.receive.fin_received() && self.readable() == 0
    }

    /// Whether the SYN is not answered yet.
    pub(super) fn is_syn_pending(&self) -> bool {
        self.state == State::SynPending
    }

    /// Whether the program has confirmed the connection.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Established | State::TimeWait)
    }

    /// How it ended, once nothing more will happen.
    pub(super) fn ended(&self) -> Option<CloseReason> {
        (self.state == State::Closed).then_some(self.close_reason)
    }

    /// Whether a SYN may begin a new connection in the place of this one: RFC 9293 §3.10.7.4, MAY-2, and a program that begins again.
    pub(super) fn gives_way_to(&self, segment: &Segment<'_>) -> bool {
        let newer = self.receive.next().is_before(Seq(segment.sequence));
        match self.state {
            State::SynPending => Seq(segment.sequence) != self.irs,
            State::TimeWait => newer,
            State::Closed => true,
            _ => false,
        }
    }
}

/// The first retransmission timeout; each further one is twice as long. No round trip is measured: the program is on this machine, and 200 ms
/// is longer than its kernel holds an acknowledgement back.
pub(super) const INITIAL_RTO: Duration = Duration::from_millis(200);
/// The longest retransmission timeout.
const MAX_RTO: Duration = Duration::from_secs(10);
/// How long the end of a connection is remembered. RFC 9293 says four minutes, because packets wander about in the
/// Internet; here they cross no network.
const TIME_WAIT: Duration = Duration::from_secs(1);
/// After this many timeouts without a segment of the program's the connection is given up: 103 seconds. RFC 9293 §3.8.3 wants at least 100.
const MAX_RETRANSMITS: u32 = 15;
/// After this many timeouts without an answer to our SYN it is: 13 seconds.
const MAX_SYN_ACK_RETRANSMITS: u32 = 6;

/// What the timer is running for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TimerKind {
    /// Nothing.
    #[default]
    Off,
    /// The program's answer to our SYN.
    SynAck,
    /// An acknowledgement of what was sent.
    Retransmit,
    /// The program's window, which is closed while we have something for it (RFC 9293 §3.8.6.1).
    Persist,
    /// Packets that may still be under way, after the end.
    TimeWait,
}

/// What a timeout means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// Nothing was heard: try again.
    Retry(TimerKind),
    /// Nothing was heard too often.
    GiveUp,
    /// TIME-WAIT is over.
    TimeWaitOver,
}

/// The one timer of a connection: it waits for one thing at a time, and says for what after every step. RFC 9293 §3.8.1, §3.8.3 and §3.8.6.1;
/// RFC 6298 §5.
#[derive(Debug, Default)]
pub(super) struct Timer {
    kind: TimerKind,
    deadline: Option<Instant>,
    /// How often this timer has expired: what the next timeout is.
    retransmits: u32,
    /// How often any has since the program was last heard.
    unanswered: u32,
}

impl Timer {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Says what it runs for now; going on with the same changes nothing.
    pub(super) fn set(&mut self, kind: TimerKind, now: Instant) {
        if kind != self.kind {
            self.restart(kind, now);
        }
    }

    /// Begins anew, with the first timeout.
    pub(super) fn restart(&mut self, kind: TimerKind, now: Instant) {
        (self.kind, self.retransmits) = (kind, 0);
        self.deadline = match kind {
            TimerKind::Off => None,
            TimerKind::TimeWait => Some(now + TIME_WAIT),
            _ => Some(now + INITIAL_RTO),
        };
    }

    /// The program is alive.
    pub(super) fn heard(&mut self) {
        self.unanswered = 0;
    }

    /// Whether it has expired. The next, longer timeout begins.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Expiry> {
        self.deadline.filter(|deadline| *deadline <= now)?;
        if self.kind == TimerKind::TimeWait {
            return Some(Expiry::TimeWaitOver);
        }
        self.retransmits += 1;
        self.unanswered += 1;
        let rto = INITIAL_RTO.saturating_mul(1 << self.retransmits.min(10));
        self.deadline = Some(now + rto.min(MAX_RTO));
        let limit = match self.kind {
            TimerKind::SynAck => MAX_SYN_ACK_RETRANSMITS,
            _ => MAX_RETRANSMITS,
        };
        Some(if self.unanswered >= limit {
            Expiry::GiveUp
        } else {
            Expiry::Retry(self.kind)
        })
    }
}

/// A sequence number, which wraps around (RFC 9293 §3.4): a place among the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seq(pub(super) u32);

impl Seq {
    /// The place `bytes` further on.
    pub(super) fn plus(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(distance(bytes)))
    }

    /// The place `bytes` before.
    pub(super) fn minus(self, bytes: usize) -> Self {
        Self(self.0.wrapping_sub(distance(bytes)))
    }

    /// Whether this place comes before `other`; true to life for places within 2³¹ bytes of each other.
    pub(super) fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }

    /// How many bytes lie between `earlier` and here; 0 if `earlier` is later.
    pub(super) fn since(self, earlier: Self) -> usize {
        usize::try_from(self.0.wrapping_sub(earlier.0).cast_signed()).unwrap_or(0)
    }
}

/// Nothing here counts more than a window, which is far below 2³¹.
fn distance(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Challenge ACKs in each second.
const MAX_CHALLENGES: u8 = 100;

/// How often a connection answers segments that do not belong to it (RFC 5961 §7): two ends that both believe the other to be wrong must not go
/// on for ever.
#[derive(Debug, Default)]
pub(super) struct ChallengeLimit {
    since: Option<Instant>,
    given: u8,
}

impl ChallengeLimit {
    /// Whether another one may be answered now.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let second = Duration::from_secs(1);
        let old = |since: Instant| now.saturating_duration_since(since) >= second;
        if self.since.is_none_or(old) {
            (self.since, self.given) = (Some(now), 0);
        }
        self.given = self.given.saturating_add(1).min(MAX_CHALLENGES + 1);
        self.given <= MAX_CHALLENGES
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod timer_tests {
    use super::*;

    /// How long a wait lasts until it is given up.
    fn limit(kind: TimerKind) -> Duration {
        let (start, mut timer) = (Instant::now(), Timer::default());
        timer.set(kind, start);
        loop {
            let now = timer.deadline().expect("armed");
            if timer.expire(now) == Some(Expiry::GiveUp) {
                return now - start;
            }
        }
    }

    #[test]
    fn waits_grow_and_end() {
        assert!(limit(TimerKind::Retransmit) > Duration::from_secs(100));
        assert!(limit(TimerKind::SynAck) < Duration::from_secs(15));
    }

    #[test]
    fn a_program_that_answers_is_never_given_up() {
        let (mut now, mut timer) = (Instant::now(), Timer::default());
        timer.set(TimerKind::Persist, now);
        for _ in 0..1000 {
            now = timer.deadline().expect("armed");
            assert_eq!(timer.expire(now), Some(Expiry::Retry(TimerKind::Persist)));
            timer.set(TimerKind::Persist, now);
            timer.heard();
            assert!(timer.deadline().expect("armed") - now <= MAX_RTO);
        }
    }
}

#[cfg(test)]
mod sequence_tests {
    use super::*;

    #[test]
    fn places_are_ordered_across_the_wrap() {
        let last = Seq(u32::MAX);
        let first = last.plus(1);
        assert_eq!(first, Seq(0));
        assert!(last.is_before(first) && !first.is_before(last) && !last.is_before(last));
        assert_eq!((first.since(last), last.since(first)), (1, 0));
        assert_eq!(first.minus(1), last);
    }
}

#[cfg(test)]
mod challenge_tests {
    use super::*;

    #[test]
    fn strangers_are_answered_so_often_a_second() {
        let (now, mut challenges) = (Instant::now(), ChallengeLimit::default());
        let answered = (0..1000).filter(|_| challenges.allows(now)).count();
        assert_eq!(answered, usize::from(MAX_CHALLENGES));
        assert!(challenges.allows(now + Duration::from_secs(1)));
    }
}
