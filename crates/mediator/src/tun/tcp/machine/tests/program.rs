//! A program's TCP, as simple as it can be: it takes octets in order only, goes back to the first octet that is not acknowledged
//! after a while, and writes down what the machine must never do. Its clock is virtual.

use std::time::Duration;

use hoplite_wire::ip::tcp::{Flags, Header, Options, Segment};
use tokio::time::Instant;

/// Its timer.
const RTO: Duration = Duration::from_millis(300);

/// A segment on its way.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
}

impl Letter {
    pub(super) fn segment(&self) -> Segment<'_> {
        let header = &self.header;
        Segment {
            source: header.source,
            destination: header.destination,
            sequence: header.sequence,
            acknowledgment: header.acknowledgment,
            flags: header.flags,
            window: header.window,
            urgent: header.urgent,
            options: header.options,
            header_len: 20,
            payload: &self.payload,
        }
    }
}

/// The octet at `place` of a direction: both ends know it.
pub(super) fn octet(place: usize) -> u8 {
    u32::try_from(place)
        .expect("small")
        .wrapping_mul(2_654_435_761)
        .to_be_bytes()[0]
}

/// Random numbers (xorshift64): the same for the same seed.
#[derive(Clone, Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let number = usize::try_from(self.0 >> 16).expect("64 bits");
        number % limit.max(1)
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// What kind of program it is.
#[derive(Clone, Debug)]
pub(super) struct Habits {
    /// Octets that it sends.
    pub(super) sends: usize,
    /// Octets that wait for it at most.
    pub(super) capacity: usize,
    pub(super) scale: Option<u8>,
    pub(super) mss: Option<u16>,
    pub(super) iss: u32,
    /// The largest segment that it hands to its device.
    pub(super) largest: usize,
    /// It finishes only when it has received everything.
    pub(super) finishes_last: bool,
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) habits: Habits,
    pub(super) out: Vec<Letter>,
    pub(super) received: usize,
    pub(super) target_finished: bool,
    open: bool,
    irs: u32,
    peer_scale: u8,
    peer_window: usize,
    acked: usize,
    sent: usize,
    most_sent: usize,
    finish_sent: bool,
    unread: usize,
    /// The furthest place that the machine was ever told it may send to.
    edge: usize,
    timer: Option<Instant>,
    wait: Duration,
}

impl Program {
    pub(super) fn new(habits: Habits, now: Instant) -> Self {
        let mut program = Self {
            habits,
            out: Vec::new(),
            received: 0,
            target_finished: false,
            open: false,
            irs: 0,
            peer_scale: 0,
            peer_window: 0,
            acked: 0,
            sent: 0,
            most_sent: 0,
            finish_sent: false,
            unread: 0,
            edge: 0,
            timer: Some(now),
            wait: RTO,
        };
        program.expire(now);
        program
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        self.timer
    }

    pub(super) fn expire(&mut self, now: Instant) {
        if self.timer.is_none_or(|timer| timer > now) {
            return;
        }
        self.timer = Some(now + self.wait);
        self.wait = (self.wait * 2).min(Duration::from_secs(5));
        if !self.open {
            return self.say_syn();
        }
        self.sent = self.acked.min(self.habits.sends);
        self.finish_sent = false;
        if self.peer_window == 0 {
            self.say_probe();
        }
        self.transmit(now, self.peer_window);
    }

    /// Asks for the window, with a place that was acknowledged before.
    fn say_probe(&mut self) {
        let (mut header, payload) = (self.header(self.acked, Flags::default()), Vec::new());
        header.sequence = header.sequence.wrapping_sub(1);
        self.out.push(Letter { header, payload });
    }

    fn say_syn(&mut self) {
        let options = Options {
            mss: self.habits.mss,
            window_scale: self.habits.scale,
            ..Options::default()
        };
        let window = u16::try_from(self.habits.capacity.min(65_535)).expect("fits");
        self.edge = usize::from(window);
        let header = Header {
            sequence: self.habits.iss,
            flags: Flags::SYN | Flags::ECE | Flags::CWR,
            window,
            options,
            ..Header::default()
        };
        // Data in a SYN are ignored by the machine, and come again.
        let payload = (0..self.habits.sends.min(7)).map(octet).collect();
        self.out.push(Letter { header, payload });
    }

    pub(super) fn hear(&mut self, letter: &Letter, now: Instant) {
        let header = &letter.header;
        assert!(!header.flags.contains(Flags::RST), "a reset: {letter:?}");
        assert!(
            !header
                .flags
                .intersects(Flags::ECE | Flags::CWR | Flags::URG)
        );
        if header.flags.contains(Flags::SYN) {
            return self.hear_syn(header, now);
        }
        if !self.open {
            return;
        }
        self.hear_ack(header);
        self.hear_octets(header, &letter.payload);
        self.transmit(now, self.peer_window);
    }

    fn hear_syn(&mut self, header: &Header, now: Instant) {
        assert_eq!(header.acknowledgment, self.habits.iss.wrapping_add(1));
        if !self.open {
            (self.open, self.irs, self.wait) = (true, header.sequence, RTO);
            self.peer_window = header.window.into();
            let both = self.habits.scale.and(header.options.window_scale);
            self.peer_scale = both.unwrap_or(0);
            assert!(header.options.mss.is_some());
            assert_eq!(
                self.habits.scale.is_some(),
                header.options.window_scale.is_some()
            );
        }
        assert_eq!(self.irs, header.sequence);
        self.say_ack();
        self.transmit(now, self.peer_window);
    }

    fn hear_ack(&mut self, header: &Header) {
        let place = header
            .acknowledgment
            .wrapping_sub(self.habits.iss)
            .wrapping_sub(1);
        let place = usize::try_from(place.cast_signed()).unwrap_or(0);
        assert!(place <= self.most_sent, "acknowledged what was never sent");
        if place < self.acked {
            return;
        }
        self.peer_window = usize::from(header.window) << self.peer_scale;
        if place > self.acked {
            (self.acked, self.wait) = (place, RTO);
            self.sent = self.sent.max(place.min(self.habits.sends));
        }
        if self.acked > self.habits.sends {
            self.timer = None;
        }
    }

    fn hear_octets(&mut self, header: &Header, payload: &[u8]) {
        let start = header
            .sequence
            .wrapping_sub(self.irs)
            .wrapping_sub(1)
            .cast_signed();
        let Ok(start) = usize::try_from(start) else {
            return self.say_ack();
        };
        let end = start + payload.len();
        assert!(
            end <= self.edge,
            "{end} is beyond the window's {}",
            self.edge
        );
        for (n, found) in payload.iter().enumerate() {
            assert_eq!(*found, octet(start + n), "at {}", start + n);
        }
        let fin = header.flags.contains(Flags::FIN);
        if start <= self.received && !self.target_finished {
            let new = end.saturating_sub(self.received);
            self.received += new;
            self.unread += new;
            self.target_finished = fin && end == self.received;
        }
        if !payload.is_empty() || fin || start < self.received {
            self.say_ack();
        }
    }

    /// The program reads some of what it has.
    pub(super) fn read(&mut self, octets: usize) {
        let read = octets.min(self.unread);
        self.unread -= read;
        if read > 0 && self.open {
            self.say_ack();
        }
    }

    fn header(&mut self, place: usize, flags: Flags) -> Header {
        let place = u32::try_from(place).expect("small");
        let (scale, received) = (self.habits.scale.unwrap_or(0), self.received);
        let told = (self.habits.capacity.saturating_sub(self.unread) >> scale).min(65_535);
        self.edge = self.edge.max(received + (told << scale));
        let next = received + usize::from(self.target_finished);
        let next = u32::try_from(next).expect("small");
        Header {
            sequence: self.habits.iss.wrapping_add(1).wrapping_add(place),
            acknowledgment: self.irs.wrapping_add(1).wrapping_add(next),
            flags: flags | Flags::ACK,
            window: u16::try_from(told).expect("fits"),
            ..Header::default()
        }
    }

    fn say_ack(&mut self) {
        let (header, payload) = (self.header(self.most_sent, Flags::default()), Vec::new());
        self.out.push(Letter { header, payload });
    }

    fn transmit(&mut self, now: Instant, window: usize) {
        while self.sent < self.habits.sends.min(self.acked + window) {
            let most = self.habits.sends.min(self.acked + window) - self.sent;
            let len = most.min(self.habits.largest);
            let payload = (self.sent..self.sent + len).map(octet).collect();
            let header = self.header(self.sent, Flags::PSH | Flags::URG);
            self.out.push(Letter { header, payload });
            self.sent += len;
        }
        let may_finish = self.target_finished || !self.habits.finishes_last;
        if self.sent == self.habits.sends && may_finish && !self.finish_sent {
            let header = self.header(self.sent, Flags::FIN);
            let payload = Vec::new();
            self.out.push(Letter { header, payload });
            self.finish_sent = true;
        }
        self.most_sent = self
            .most_sent
            .max(self.sent + usize::from(self.finish_sent));
        let waits =
            self.acked <= self.habits.sends && (self.acked < self.habits.sends || self.finish_sent);
        match (waits, self.timer) {
            (true, None) => self.timer = Some(now + self.wait),
            (false, _) => self.timer = None,
            _ => {}
        }
    }
}
