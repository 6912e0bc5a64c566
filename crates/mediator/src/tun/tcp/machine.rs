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

mod driver;
mod transmit;

use std::time::Duration;

use bytes::Bytes;
use hoplite_wire::ip::tcp::{Flags, Header, Segment};
use tokio::time::Instant;

use super::{
    guard::Guard,
    receive::{Receive, scale_for},
    send::{Acknowledgement, Answer, Portion, Send},
    sequence::Seq,
    timer::{Over, Timer, Wait},
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
        match self.first_to_finish {
            true => {
                self.phase = Phase::TimeWait;
                self.timer.restart(Wait::End, now);
            }
            false => self.close(End::Complete),
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

#[cfg(test)]
mod tests;
