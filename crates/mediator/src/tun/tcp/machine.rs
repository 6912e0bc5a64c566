//! One connection with a program: the passive side of TCP, without socket, task or clock. The flow's task and the table drive it.
//! RFC 9293 §3.10 (events), §3.6 (closing, half-close and simultaneous close); RFC 7323 §2 (window scaling); RFC 5961 (resets, SYNs
//! and acknowledgements that somebody guessed).
//!
//! In this order: [`Machine::new`] with the SYN; [`Machine::accept`] or [`Machine::reset`]; then [`Machine::segment`] for what the program
//! sends, [`Machine::push`], [`Machine::finish`] and [`Machine::consume`] for what the overlay sends and takes, [`Machine::expire`] when
//! [`Machine::timeout`] has come. After each of them [`Machine::transmit`] until it has nothing more.
//!
//! Not offered, because between a program and its own machine they buy nothing: timestamps, selective acknowledgements, ECN, data in a SYN.
//! Urgent data are data like others (RFC 6093).

use std::{io::IoSlice, time::Duration};

use bytes::Bytes;
use hoplite_wire::ip::tcp::{Flags, Header, Options, Segment};
use tokio::time::Instant;

use super::{
    receive::{Receive, scale_for},
    send::{Acknowledgement, Answer, Portion, Send},
};

/// The least octets of memory that a direction makes do with.
const FLOOR: usize = 2048;

/// What a new connection needs to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Our first sequence number (RFC 6528).
    pub(super) isn: u32,
    /// The most that waits in either direction, in octets.
    pub(super) window: usize,
    /// What a direction may take in any case, in octets of memory: see [`floor_for`].
    pub(super) floor: usize,
    /// The largest segment that the device takes.
    pub(super) mss: u16,
    /// The largest that a program takes which says nothing: 536 or 1220 (RFC 9293 §3.7.1).
    pub(super) default_mss: u16,
    /// How long an open connection may go on without a segment of the program's; zero is for ever.
    pub(super) idle: Duration,
}

/// Where a connection is. What RFC 9293 calls ESTABLISHED up to LAST-ACK is one phase here: which of those it is follows from whether
/// either side has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The SYN is not answered yet.
    Held,
    /// It is; the program has not confirmed.
    Answered,
    Open,
    /// Both sides have ended, we first: late packets are answered.
    TimeWait,
    Closed,
}

/// How a connection ended, once it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both directions were finished.
    Complete,
    /// The program broke it, or is gone.
    Broken,
    /// We broke it.
    Reset,
    /// We broke it, since nothing was heard for so long.
    Idle,
}

#[derive(Debug)]
pub(super) struct Machine {
    phase: Phase,
    end: End,
    /// The program's first sequence number.
    irs: Seq,
    settings: Settings,
    /// Whether windows are scaled.
    scaled: bool,
    receive: Receive,
    send: Send,
    timer: Timer,
    /// When the program was last heard.
    heard: Option<Instant>,
    guard: Guard,
    /// Our FIN left before the program's came.
    first_to_finish: bool,
    /// The overlay has something for which there was no room.
    stalled: bool,
    /// The overlay takes no more.
    discarding: bool,
    /// Our SYN is to leave (again).
    syn_due: bool,
    probe_due: bool,
    /// A reset is to leave, with this sequence number.
    reset_due: Option<Seq>,
}

/// A packet that is to leave: its header without ports, and which octets go with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) header: Header,
    pub(super) portion: Option<Portion>,
}

impl Machine {
    /// A connection that the program asks for with `syn`. Nothing leaves before [`Self::accept`].
    pub(super) fn new(syn: &Segment<'_>, settings: Settings) -> Self {
        let irs = Seq(syn.sequence);
        let theirs = syn.options.window_scale.map(|shift| shift.min(14));
        let ours = theirs.map(|_| scale_for(settings.window));
        let mss = syn.options.mss.unwrap_or(settings.default_mss);
        let (mss, iss) = (mss.min(settings.mss).into(), Seq(settings.isn));
        Self {
            phase: Phase::Held,
            end: End::Complete,
            irs,
            settings,
            scaled: theirs.is_some(),
            receive: Receive::new(irs.plus(1), settings.window, ours),
            send: Send::new(iss.plus(1), mss, theirs.unwrap_or(0)),
            timer: Timer::default(),
            heard: None,
            guard: Guard::default(),
            first_to_finish: false,
            stalled: false,
            discarding: false,
            syn_due: false,
            probe_due: false,
            reset_due: None,
        }
    }

    /// Answers the SYN.
    pub(super) fn accept(&mut self, now: Instant) {
        if self.phase == Phase::Held {
            (self.phase, self.syn_due) = (Phase::Answered, true);
        }
        self.rest(now);
    }

    /// Breaks the connection off, or refuses it.
    pub(super) fn reset(&mut self) {
        let seq = match self.phase {
            Phase::Closed => return,
            Phase::Held => Seq(0),
            _ => self.send.highest(),
        };
        self.reset_due = Some(seq);
        self.close(End::Reset);
    }

    /// Ends it without a word.
    pub(super) fn abandon(&mut self) {
        if self.phase != Phase::Closed {
            self.close(End::Reset);
        }
    }

    fn close(&mut self, end: End) {
        (self.phase, self.end, self.timer) = (Phase::Closed, end, Timer::default());
        if end != End::Complete {
            self.receive.clear();
            self.send.clear();
        }
    }

    /// Takes a segment; `payload` is that of the segment.
    pub(super) fn segment(&mut self, segment: &Segment<'_>, payload: Bytes, now: Instant) {
        self.heard = Some(now);
        match self.phase {
            Phase::Held => self.while_held(segment),
            Phase::Answered => self.while_answered(segment, payload, now),
            Phase::Open | Phase::TimeWait => self.synchronized(segment, payload, now),
            Phase::Closed => {}
        }
        self.rest(now);
    }

    /// The program may give up; its SYN again says nothing new.
    fn while_held(&mut self, segment: &Segment<'_>) {
        let ours = Seq(segment.sequence) == self.irs.plus(1);
        if ours && segment.flags.contains(Flags::RST) {
            self.close(End::Broken);
        }
    }

    fn while_answered(&mut self, segment: &Segment<'_>, payload: Bytes, now: Instant) {
        let flags = segment.flags;
        let again = Seq(segment.sequence) == self.irs && flags.contains(Flags::SYN);
        if again && !flags.intersects(Flags::ACK | Flags::RST) {
            self.syn_due = true;
            return;
        }
        if !self.belongs(segment, payload.len(), now) || !flags.contains(Flags::ACK) {
            return;
        }
        // "If the segment acknowledgment is not acceptable, form a reset segment <SEQ=SEG.ACK><CTL=RST> and send it."
        if Seq(segment.acknowledgment) != self.send.una() {
            self.reset_due = Some(Seq(segment.acknowledgment));
            return;
        }
        self.phase = Phase::Open;
        self.send.open(&acknowledgement(segment, false));
        self.believed(segment, payload, now);
    }

    /// RFC 9293 §3.10.7.4, in its order.
    fn synchronized(&mut self, segment: &Segment<'_>, payload: Bytes, now: Instant) {
        // "If the ACK bit is off, drop the segment and return."
        let belongs = self.belongs(segment, payload.len(), now);
        if belongs && segment.flags.contains(Flags::ACK) {
            self.believed(segment, payload, now);
        }
    }

    fn believed(&mut self, segment: &Segment<'_>, payload: Bytes, now: Instant) {
        let fin = segment.flags.contains(Flags::FIN);
        let said = acknowledgement(segment, payload.is_empty() && !fin);
        let answer = self.send.acknowledge(&said);
        self.timer.heard();
        match answer {
            Answer::Impossible => return self.challenge(now),
            Answer::Progress => self.timer.restart(Wait::Nothing, now),
            Answer::Old => {}
        }
        if !payload.is_empty() || fin {
            self.content(Seq(segment.sequence), payload, fin, now);
        }
        self.settle(now);
    }

    /// Sequence number, RST and SYN: whether the rest of the segment is to be read.
    fn belongs(&mut self, segment: &Segment<'_>, payload: usize, now: Instant) -> bool {
        let (seq, flags) = (Seq(segment.sequence), segment.flags);
        let len = payload + usize::from(flags.contains(Flags::FIN));
        let reset = flags.contains(Flags::RST);
        if !self.receive.expects(seq, len) {
            if !reset {
                self.challenge(now);
            }
            return false;
        }
        // RFC 5961 §3.2: only a reset with exactly the next sequence number is believed.
        if reset && seq == self.receive.next() {
            self.close(End::Broken);
            return false;
        }
        // RFC 5961 §4.2: a SYN is never believed.
        if reset || flags.contains(Flags::SYN) {
            self.challenge(now);
            return false;
        }
        true
    }

    fn content(&mut self, seq: Seq, payload: Bytes, fin: bool, now: Instant) {
        if !self.receive.ended() {
            return self.receive.take(seq, payload, fin);
        }
        self.receive.owe(true);
        if self.phase == Phase::TimeWait {
            self.timer.restart(Wait::End, now);
        }
    }

    /// The end, once both directions are finished and acknowledged.
    fn settle(&mut self, now: Instant) {
        if self.phase != Phase::Open || !self.receive.ended() || !self.send.finished() {
            return;
        }
        if self.first_to_finish {
            self.phase = Phase::TimeWait;
            self.timer.restart(Wait::End, now);
        } else {
            self.close(End::Complete)
        }
    }

    /// An acknowledgement that tells whoever sent this where the connection really is; not for too many of them.
    fn challenge(&mut self, now: Instant) {
        if self.guard.allows(now) {
            self.receive.owe(true);
        }
    }

    /// Says what is waited for.
    fn rest(&mut self, now: Instant) {
        let wait = match self.phase {
            Phase::Held | Phase::Closed => Wait::Nothing,
            Phase::Answered => Wait::Handshake,
            Phase::TimeWait => Wait::End,
            Phase::Open if self.send.in_flight() => Wait::Acknowledgement,
            Phase::Open if self.send.blocked() || self.is_stalled() => Wait::Window,
            Phase::Open => Wait::Nothing,
        };
        self.timer.wait(wait, now);
    }

    /// When [`Self::expire`] has something to do.
    pub(super) fn timeout(&self) -> Option<Instant> {
        let both = [self.timer.deadline(), self.idle_at()];
        both.into_iter().flatten().min()
    }

    /// When the connection counts as idle if nothing is heard. What we send makes the program answer, so that is enough.
    fn idle_at(&self) -> Option<Instant> {
        let limited = self.phase == Phase::Open && !self.settings.idle.is_zero();
        Some(self.heard.filter(|_| limited)? + self.settings.idle)
    }

    /// Does what is due.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.idle_at().is_some_and(|at| at <= now) {
            self.reset();
            self.end = End::Idle;
        }
        match self.timer.expire(now) {
            None => {}
            Some(Over::Forget) => self.close(End::Complete),
            Some(Over::GiveUp) => {
                self.reset();
                self.end = End::Broken;
            }
            Some(Over::Again(Wait::Handshake)) => self.syn_due = true,
            Some(Over::Again(Wait::Acknowledgement)) => {
                self.send.rewind();
                self.probe_due = self.send.window_closed();
            }
            Some(Over::Again(_)) => self.probe_due = true,
        }
    }
}

/// What a direction of a connection needs at least in order to go on: a segment, and a window that can be told.
pub(super) fn floor_for(window: usize) -> usize {
    FLOOR.max(2 << scale_for(window))
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
impl Machine {
    /// The next packet that is to leave.
    pub(in crate::tun::tcp) fn transmit(&mut self, now: Instant) -> Option<Packet> {
        if let Some(seq) = self.reset_due.take() {
            return Some(self.reset_packet(seq));
        }
        let packet = match self.phase {
            Phase::Held | Phase::Closed => return None,
            Phase::Answered => self.transmit_syn()?,
            Phase::Open => self.transmit_octets().or_else(|| self.transmit_ack())?,
            Phase::TimeWait => self.transmit_ack()?,
        };
        self.rest(now);
        Some(packet)
    }

    fn transmit_syn(&mut self) -> Option<Packet> {
        // What came before its time is answered by the acknowledgement in our SYN.
        if !std::mem::take(&mut self.syn_due) && !self.receive.owes() {
            return None;
        }
        self.receive.paid();
        let scale = self.scaled.then(|| scale_for(self.settings.window));
        let mut header = self.header(self.send.una().minus(1), Flags::SYN | Flags::ACK);
        header.options = Options {
            mss: Some(self.settings.mss),
            window_scale: scale,
            ..Options::default()
        };
        Some(bare(header))
    }

    fn transmit_octets(&mut self) -> Option<Packet> {
        let portion = self.send.poll()?;
        self.receive.paid();
        let mut flags = Flags::ACK;
        if portion.last {
            flags = flags | Flags::PSH;
        }
        if portion.fin {
            flags = flags | Flags::FIN;
            self.first_to_finish |= !self.receive.ended();
        }
        let header = self.header(portion.seq, flags);
        let portion = Some(portion);
        Some(Packet { header, portion })
    }

    fn transmit_ack(&mut self) -> Option<Packet> {
        // RFC 9293 §3.8.6.1 probes with an octet; one that was acknowledged before does as well and needs no octet (as Linux has it).
        if std::mem::take(&mut self.probe_due) {
            return Some(bare(self.header(self.send.una().minus(1), Flags::ACK)));
        }
        if !self.receive.owes() {
            return None;
        }
        self.receive.paid();
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

    fn reset_packet(&self, seq: Seq) -> Packet {
        bare(Header {
            sequence: seq.0,
            acknowledgment: self.receive.next().0,
            flags: Flags::RST | Flags::ACK,
            ..Header::default()
        })
    }

    /// The octets of a packet from [`Self::transmit`], and the size that they are to be cut into.
    pub(in crate::tun::tcp) fn payload(&self, packet: &Packet) -> ([&[u8]; 2], Option<u16>) {
        let Some(portion) = &packet.portion else {
            return ([&[]; 2], None);
        };
        let cut = portion.len > self.send.mss();
        let segment = cut.then(|| u16::try_from(self.send.mss()).unwrap_or(u16::MAX));
        (self.send.payload(portion), segment)
    }
}

fn bare(header: Header) -> Packet {
    let portion = None;
    Packet { header, portion }
}

/// What the flow's task and the table ask: what may be pushed and taken, and how things stand.
impl Machine {
    /// What waits in either direction, in octets of memory; no less than the floor of each.
    pub(in crate::tun::tcp) fn memory(&self) -> usize {
        let floor = self.settings.floor;
        self.receive.memory().max(floor) + self.send.memory().max(floor)
    }

    /// One direction may take so many octets of memory besides what it has, until this is said again; its floor it may take in any case.
    pub(in crate::tun::tcp) fn allow(&mut self, more: usize) {
        let floor = self.settings.floor;
        self.receive
            .limit(floor.max(self.receive.memory().saturating_add(more)));
        self.send
            .limit(floor.max(self.send.memory().saturating_add(more)));
    }

    /// Since when, at least, what is first in either direction has waited: for the overlay to take it, or for the program to acknowledge it.
    pub(in crate::tun::tcp) fn waits_since(&mut self, now: Instant) -> Option<Instant> {
        let both = [self.receive.waits_since(now), self.send.waits_since(now)];
        both.into_iter().flatten().min()
    }

    /// When the program was last heard.
    pub(in crate::tun::tcp) fn heard(&self) -> Option<Instant> {
        self.heard
    }

    /// How many octets may be pushed now.
    pub(in crate::tun::tcp) fn room(&self) -> usize {
        match self.phase {
            Phase::Open => self.send.room(self.settings.window, self.stalled),
            _ => 0,
        }
    }

    /// Octets for the program; no more than there is [`Self::room`] for.
    pub(in crate::tun::tcp) fn push(&mut self, octets: &[u8]) {
        self.stalled = false;
        self.send.push(octets);
    }

    /// The overlay has octets and there is no room for them.
    pub(in crate::tun::tcp) fn stall(&mut self, now: Instant) {
        self.stalled = true;
        self.rest(now);
    }

    fn is_stalled(&self) -> bool {
        self.stalled && self.send.window_closed()
    }

    /// Whether there is room again for what was stalled, or everything is acknowledged that the overlay waits for.
    pub(in crate::tun::tcp) fn may_go_on(&self) -> bool {
        (self.stalled && self.room() > 0) || (self.discarding && self.is_drained())
    }

    /// Whether the program has acknowledged all octets.
    pub(in crate::tun::tcp) fn is_drained(&self) -> bool {
        self.send.is_drained()
    }

    /// Octets that are pushed and wait to leave.
    pub(in crate::tun::tcp) fn unsent(&self) -> usize {
        self.send.unsent()
    }

    /// The overlay has finished.
    pub(in crate::tun::tcp) fn finish(&mut self, now: Instant) {
        self.send.finish();
        self.rest(now);
    }

    /// How many octets wait for the overlay.
    pub(in crate::tun::tcp) fn readable(&self) -> usize {
        self.receive.queue().len()
    }

    /// The first of them; answers with how many slices there are.
    pub(in crate::tun::tcp) fn read<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.receive.queue().slices(slices)
    }

    /// The overlay took so many.
    pub(in crate::tun::tcp) fn consume(&mut self, octets: usize) {
        self.receive.consume(octets);
    }

    /// The overlay takes no more: what the program still sends is forgotten.
    pub(in crate::tun::tcp) fn discard(&mut self) {
        self.discarding = true;
        self.receive.discard();
    }

    /// Whether the program has finished and all of it is taken.
    pub(in crate::tun::tcp) fn read_ended(&self) -> bool {
        self.receive.ended() && self.readable() == 0
    }

    /// Whether the SYN is not answered yet.
    pub(in crate::tun::tcp) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    /// Whether the program has confirmed the connection.
    pub(in crate::tun::tcp) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::TimeWait)
    }

    /// How it ended, once nothing more will happen.
    pub(in crate::tun::tcp) fn ended(&self) -> Option<End> {
        (self.phase == Phase::Closed).then_some(self.end)
    }

    /// Whether a SYN may begin a new connection in the place of this one: RFC 9293 §3.10.7.4, MAY-2, and a program that begins again.
    pub(in crate::tun::tcp) fn gives_way_to(&self, segment: &Segment<'_>) -> bool {
        let newer = self.receive.next().is_before(Seq(segment.sequence));
        match self.phase {
            Phase::Held => Seq(segment.sequence) != self.irs,
            Phase::TimeWait => newer,
            Phase::Closed => true,
            _ => false,
        }
    }
}

/// The first wait for an acknowledgement; each further one is twice as long.
pub(super) const FIRST: Duration = Duration::from_millis(200);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(10);
/// How long the end of a connection is remembered. RFC 9293 says four minutes, because packets wander about in the
/// Internet; here they cross no network.
const TIME_WAIT: Duration = Duration::from_secs(1);
/// After so many waits without a word from the program the connection is given up: 103 seconds. RFC 9293 §3.8.3 wants at least 100.
const PATIENCE: u32 = 15;
/// The same for an answer to a SYN: 13 seconds.
const SYN_PATIENCE: u32 = 6;

/// What the machine waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wait {
    #[default]
    Nothing,
    /// The program's answer to our SYN.
    Handshake,
    /// An acknowledgement of what was sent.
    Acknowledgement,
    /// The program's window, which is closed while we have something for it.
    Window,
    /// Packets that may still be under way, after the end.
    End,
}

/// What a wait that is over means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// It did not happen: try again.
    Again(Wait),
    /// It did not happen too often.
    GiveUp,
    /// The end is over.
    Forget,
}

#[derive(Debug, Default)]
pub(super) struct Timer {
    wait: Wait,
    deadline: Option<Instant>,
    /// How often this wait was in vain: what the next one takes.
    tries: u32,
    /// How often any was since the program was last heard.
    silent: u32,
}

impl Timer {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Says what is waited for now; going on with the same wait changes nothing.
    pub(super) fn wait(&mut self, wait: Wait, now: Instant) {
        if wait != self.wait {
            self.restart(wait, now);
        }
    }

    /// Waits from the beginning.
    pub(super) fn restart(&mut self, wait: Wait, now: Instant) {
        (self.wait, self.tries) = (wait, 0);
        self.deadline = match wait {
            Wait::Nothing => None,
            Wait::End => Some(now + TIME_WAIT),
            _ => Some(now + FIRST),
        };
    }

    /// The program is alive.
    pub(super) fn heard(&mut self) {
        self.silent = 0;
    }

    /// Whether a wait is over. The next, longer one begins.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Over> {
        self.deadline.filter(|deadline| *deadline <= now)?;
        if self.wait == Wait::End {
            return Some(Over::Forget);
        }
        self.tries += 1;
        self.silent += 1;
        self.deadline = Some(now + FIRST.saturating_mul(1 << self.tries.min(10)).min(LONGEST));
        let patience = match self.wait {
            Wait::Handshake => SYN_PATIENCE,
            _ => PATIENCE,
        };
        Some(if self.silent >= patience {
            Over::GiveUp
        } else {
            Over::Again(self.wait)
        })
    }
}

/// A sequence number, which wraps around (RFC 9293 §3.4): a place among the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seq(pub(super) u32);

impl Seq {
    /// The place `octets` further on.
    pub(super) fn plus(self, octets: usize) -> Self {
        Self(self.0.wrapping_add(whole(octets)))
    }

    /// The place `octets` before.
    pub(super) fn minus(self, octets: usize) -> Self {
        Self(self.0.wrapping_sub(whole(octets)))
    }

    /// Whether this place comes before `other`; true to life for places within 2³¹ octets of each other.
    pub(super) fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }

    /// How many octets lie between `earlier` and here; 0 if `earlier` is later.
    pub(super) fn since(self, earlier: Self) -> usize {
        usize::try_from(self.0.wrapping_sub(earlier.0).cast_signed()).unwrap_or(0)
    }
}

/// Nothing here counts more than a window, which is far below 2³¹.
fn whole(octets: usize) -> u32 {
    u32::try_from(octets).unwrap_or(u32::MAX)
}

/// Answers in each second.
const LIMIT: u8 = 100;

#[derive(Debug, Default)]
pub(super) struct Guard {
    since: Option<Instant>,
    given: u8,
}

impl Guard {
    /// Whether another one may be answered now.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let second = Duration::from_secs(1);
        let old = |since: Instant| now.saturating_duration_since(since) >= second;
        if self.since.is_none_or(old) {
            (self.since, self.given) = (Some(now), 0);
        }
        self.given = self.given.saturating_add(1).min(LIMIT + 1);
        self.given <= LIMIT
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod timer_tests {
    use super::*;

    /// How long a wait lasts until it is given up.
    fn patience(wait: Wait) -> Duration {
        let (start, mut timer) = (Instant::now(), Timer::default());
        timer.wait(wait, start);
        loop {
            let now = timer.deadline().expect("armed");
            if timer.expire(now) == Some(Over::GiveUp) {
                return now - start;
            }
        }
    }

    #[test]
    fn waits_grow_and_end() {
        assert!(patience(Wait::Acknowledgement) > Duration::from_secs(100));
        assert!(patience(Wait::Handshake) < Duration::from_secs(15));
    }

    #[test]
    fn a_program_that_answers_is_never_given_up() {
        let (mut now, mut timer) = (Instant::now(), Timer::default());
        timer.wait(Wait::Window, now);
        for _ in 0..1000 {
            now = timer.deadline().expect("armed");
            assert_eq!(timer.expire(now), Some(Over::Again(Wait::Window)));
            timer.wait(Wait::Window, now);
            timer.heard();
            assert!(timer.deadline().expect("armed") - now <= LONGEST);
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
mod guard_tests {
    use super::*;

    #[test]
    fn strangers_are_answered_so_often_a_second() {
        let (now, mut guard) = (Instant::now(), Guard::default());
        let answered = (0..1000).filter(|_| guard.allows(now)).count();
        assert_eq!(answered, usize::from(LIMIT));
        assert!(guard.allows(now + Duration::from_secs(1)));
    }
}
