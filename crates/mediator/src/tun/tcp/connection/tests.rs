//! The connection against a program's TCP over a bad queue, against anything at all, and case by case.

use std::{io::IoSlice, time::Duration};

use bytes::Bytes;
use hoplite_wire::ip::tcp::{Flags, Header, Options, Segment};
use proptest::prelude::*;
use tokio::time::Instant;

use super::{CloseReason, Connection, Settings, memory_floor};

mod cases;

fn weather() -> impl Strategy<Value = Weather> {
    (0_usize..15, 0_usize..15, 1_u64..50_000).prop_map(|(lost, repeated, jitter)| Weather {
        lost,
        repeated,
        jitter: Duration::from_micros(jitter),
    })
}

fn habits() -> impl Strategy<Value = Habits> {
    let sends = prop_oneof![Just(0_usize), 1_usize..200_000];
    let scale = prop::option::of(0_u8..15);
    let mss = prop::option::of(prop_oneof![88_u16..200, Just(1460), 1000_u16..]);
    let iss = prop_oneof![any::<u32>(), (u32::MAX - 100_000)..];
    let all = (
        sends,
        2000_usize..300_000,
        scale,
        mss,
        iss,
        1_usize..65_000,
        any::<bool>(),
    );
    all.prop_map(
        |(sends, capacity, scale, mss, iss, largest, finishes_last)| Habits {
            sends,
            // A window that can be told.
            capacity: capacity.max(2 << scale.unwrap_or(0)),
            scale,
            mss,
            iss,
            largest: largest.max(sends / 500),
            finishes_last,
        },
    )
}

fn settings() -> impl Strategy<Value = Settings> {
    let isn = prop_oneof![any::<u32>(), (u32::MAX - 100_000)..];
    (
        isn,
        16_384_usize..2_000_000,
        prop_oneof![Just(1460_u16), 500_u16..],
    )
        .prop_map(|(isn, window, mss)| Settings {
            isn,
            window,
            floor: memory_floor(window),
            mss,
            default_mss: 536,
            idle: Duration::ZERO,
        })
}

fn target() -> impl Strategy<Value = Target> {
    let sends = prop_oneof![Just(0_usize), 1_usize..200_000];
    (sends, any::<bool>()).prop_map(|(sends, finishes_last)| Target {
        sends,
        finishes_last,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn bytes_arrive_whole_and_in_order_over_a_queue_that_loses_repeats_and_reorders(
        seed: u64, weather in weather(), habits in habits(), settings in settings(), mut target in target(),
    ) {
        // Somebody must finish first.
        target.finishes_last &= !habits.finishes_last;
        World::new(seed, weather, habits, settings, target).run();
    }
}

/// What anybody may do to a connection.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// A segment with these differences to the expected places, flags, window and bytes.
    Segment(i32, i32, u8, u16, usize),
    Wild(u32, u32, u8, u16, usize),
    Push(usize),
    Consume(usize),
    Finish,
    Discard,
    Stall,
    TimerKind(u64),
    Reset,
    /// The budget allows this many bytes of memory more.
    Allow(usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    let near = || prop_oneof![Just(0), -3..3_i32, -100_000..100_000_i32];
    let flags = || prop_oneof![4 => Just(16_u8), 2 => Just(17), 1 => any::<u8>()];
    let len = || prop_oneof![Just(0_usize), 1_usize..2000, 0_usize..65_000];
    prop_oneof![
        8 => (near(), near(), flags(), any::<u16>(), len())
            .prop_map(|(seq, ack, flags, window, len)| Deed::Segment(seq, ack, flags, window, len)),
        1 => (any::<u32>(), any::<u32>(), any::<u8>(), any::<u16>(), len())
            .prop_map(|(seq, ack, flags, window, len)| Deed::Wild(seq, ack, flags, window, len)),
        2 => len().prop_map(Deed::Push),
        2 => len().prop_map(Deed::Consume),
        1 => Just(Deed::Stall),
        2 => prop_oneof![Just(0), 0_usize..10_000, 0_usize..300_000].prop_map(Deed::Allow),
        2 => (0_u64..20_000).prop_map(Deed::TimerKind),
        1 => prop_oneof![Just(Deed::Finish), Just(Deed::Discard), Just(Deed::Reset)],
    ]
}

fn letter(seq: u32, ack: u32, flags: u8, window: u16, len: usize) -> Letter {
    let header = Header {
        sequence: seq,
        acknowledgment: ack,
        flags: Flags(flags),
        window,
        ..Header::default()
    };
    let payload = vec![7; len];
    Letter { header, payload }
}

fn hear(connection: &mut Connection, letter: &Letter, now: Instant) {
    let payload = Bytes::copy_from_slice(&letter.payload);
    connection.segment(&letter.segment(), payload, now);
}

fn do_one(connection: &mut Connection, deed: Deed, now: &mut Instant) {
    match deed {
        Deed::Segment(seq, ack, flags, window, len) => {
            let seq = connection.receive.next().0.wrapping_add_signed(seq);
            let ack = connection.send.highest().0.wrapping_add_signed(ack);
            hear(connection, &letter(seq, ack, flags, window, len), *now);
        }
        Deed::Wild(seq, ack, flags, window, len) => {
            hear(connection, &letter(seq, ack, flags, window, len), *now);
        }
        Deed::Push(len) => connection.push(&vec![1; len.min(connection.room())]),
        Deed::Consume(len) => connection.consume(len),
        Deed::Finish => connection.finish(*now),
        Deed::Discard => connection.discard(),
        Deed::Stall => connection.stall(*now),
        Deed::TimerKind(milliseconds) => {
            *now += Duration::from_millis(milliseconds);
            connection.expire(*now);
        }
        Deed::Reset => connection.reset(),
        Deed::Allow(more) => connection.set_memory_limit(more),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn whatever_comes_nothing_panics_and_every_bound_is_kept(
        settings in settings(), habits in habits(), deeds in prop::collection::vec(deed(), 0..60),
    ) {
        let mut now = Instant::now();
        let program = Program::new(habits, now);
        let syn = program.out.first().expect("a SYN").clone();
        let mut connection = Connection::new(&syn.segment(), settings);
        connection.accept(now);
        // Together they hold what was allowed last, or what they held then; each has its floor besides.
        let mut most = usize::MAX;
        for deed in deeds {
            do_one(&mut connection, deed, &mut now);
            if let Deed::Allow(more) = deed {
                most = connection.memory().saturating_add(2 * more);
            }
            prop_assert!(connection.memory() <= most.max(2 * settings.floor), "{} of {most}", connection.memory());
            prop_assert!(connection.memory() >= connection.readable());
            let mut sent = 0;
            while let Some(packet) = connection.transmit(now) {
                let (payload, segment) = connection.payload(&packet);
                let len = payload[0].len() + payload[1].len();
                prop_assert_eq!(len, packet.range.map_or(0, |range| range.len));
                prop_assert!(len <= 65_400);
                prop_assert!(segment.is_some() || len <= usize::from(settings.mss));
                sent += 1;
                prop_assert!(sent <= settings.window / 64 + 100, "it does not stop");
            }
            prop_assert!(connection.readable() <= settings.window);
            prop_assert!(connection.send.unsent() <= settings.window);
            prop_assert!(connection.ended().is_none() || connection.timeout().is_none());
        }
    }
}

#[test]
fn dice_are_the_same_for_the_same_seed() {
    let (mut a, mut b) = (Dice(3), Dice(3));
    assert!((0..100).all(|_| a.below(1000) == b.below(1000)));
}

/// What happens to packets, in percent, and how long they take.
#[derive(Clone, Debug)]
struct Weather {
    lost: usize,
    repeated: usize,
    jitter: Duration,
}

/// The overlay's side.
#[derive(Clone, Debug)]
struct Target {
    sends: usize,
    /// It finishes only when it has received everything.
    finishes_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Connection,
    Program,
}

/// A connection, a program and a queue between them that loses, repeats and reorders, in virtual time.
struct World {
    now: Instant,
    dice: Dice,
    weather: Weather,
    under_way: Vec<(Instant, To, Letter)>,
    program: Program,
    connection: Option<Connection>,
    settings: Settings,
    target: Target,
    sent: usize,
    finished: bool,
    received: usize,
}

impl World {
    fn new(
        seed: u64,
        weather: Weather,
        habits: Habits,
        settings: Settings,
        target: Target,
    ) -> Self {
        let now = Instant::now();
        Self {
            now,
            dice: Dice(seed | 1),
            weather,
            under_way: Vec::new(),
            program: Program::new(habits, now),
            connection: None,
            settings,
            target,
            sent: 0,
            finished: false,
            received: 0,
        }
    }

    /// Lets everything happen; fails if a byte is wrong or it does not come to an end.
    fn run(mut self) {
        for _ in 0..1_000_000 {
            self.post();
            if self.is_over() {
                return;
            }
            self.live();
            self.post();
            self.step();
        }
        panic!("no end: {:?}", self.connection);
    }

    fn is_over(&self) -> bool {
        let Some(end) = self.connection.as_ref().and_then(Connection::ended) else {
            return false;
        };
        assert_eq!(end, CloseReason::Complete);
        if self.received < self.program.habits.sends {
            return false;
        }
        assert_eq!(self.received, self.program.habits.sends);
        assert_eq!(self.program.received, self.target.sends);
        assert!(self.program.target_finished);
        true
    }

    /// The program reads, the overlay takes and gives.
    fn live(&mut self) {
        if self.dice.chance(50) {
            let bytes = self.dice.below(100_000);
            self.program.read(bytes);
        }
        self.set_memory_limit();
        if self.dice.chance(50) {
            self.take();
        }
        if self.dice.chance(50) {
            self.give();
        }
    }

    /// What the budget allows changes all the time.
    fn set_memory_limit(&mut self) {
        let more = match self.dice.below(4) {
            0 => 0,
            1 => self.dice.below(5000),
            2 => self.dice.below(300_000),
            _ => usize::MAX,
        };
        if let Some(connection) = &mut self.connection {
            connection.set_memory_limit(more);
        }
    }

    fn take(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let mut slices = [IoSlice::new(&[]); 4];
        let count = connection.read(&mut slices);
        let most = self.dice.below(200_000);
        let bytes = slices[..count].iter().flat_map(|slice| slice.iter());
        let mut taken = 0;
        for found in bytes.take(most) {
            assert_eq!(*found, byte_at(self.received + taken));
            taken += 1;
        }
        connection.consume(taken);
        self.received += taken;
    }

    fn give(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let left = self.target.sends - self.sent;
        let some = self.dice.below(200_000).min(left);
        let room = connection.room();
        let bytes: Vec<u8> = (self.sent..self.sent + some.min(room))
            .map(byte_at)
            .collect();
        if !bytes.is_empty() {
            connection.push(&bytes);
        } else if left > 0 {
            connection.stall(self.now);
        }
        self.sent += bytes.len();
        let may_finish = connection.read_ended() || !self.target.finishes_last;
        if self.sent == self.target.sends && may_finish && !self.finished {
            connection.finish(self.now);
            self.finished = true;
        }
    }

    /// What both have to say goes on its way.
    fn post(&mut self) {
        while let Some(packet) = self.connection.as_mut().and_then(|m| m.transmit(self.now)) {
            let connection = self.connection.as_ref().expect("there");
            let (payload, segment) = connection.payload(&packet);
            let (payload, header) = (payload.concat(), packet.header);
            assert!(segment.is_some() || payload.len() <= usize::from(self.settings.mss));
            self.send(To::Program, &Letter { header, payload });
        }
        for letter in std::mem::take(&mut self.program.out) {
            self.send(To::Connection, &letter);
        }
    }

    fn send(&mut self, to: To, letter: &Letter) {
        let copies = 1 + usize::from(self.dice.chance(self.weather.repeated));
        for _ in 0..copies {
            if self.dice.chance(self.weather.lost) {
                continue;
            }
            let jitter = usize::try_from(self.weather.jitter.as_micros()).expect("small");
            let delay = 10 + self.dice.below(jitter);
            let at = self.now + Duration::from_micros(delay as u64);
            self.under_way.push((at, to, letter.clone()));
        }
    }

    /// The next thing that happens. The overlay and the program's reader act every few milliseconds anyway.
    fn step(&mut self) {
        let soon = self.now + Duration::from_millis(5);
        let arrival = self.under_way.iter().map(|(at, ..)| *at).min();
        let connection = self.connection.as_ref().and_then(Connection::timeout);
        let next = [arrival, connection, self.program.timeout(), Some(soon)];
        self.now = next
            .into_iter()
            .flatten()
            .min()
            .expect("soon")
            .max(self.now);
        self.deliver();
        self.program.expire(self.now);
        if let Some(connection) = &mut self.connection {
            connection.expire(self.now);
        }
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (mut due, later): (Vec<_>, _) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition(|(at, ..)| *at <= now);
        self.under_way = later;
        due.sort_by_key(|(at, ..)| *at);
        for (_, to, letter) in due {
            match to {
                To::Program => self.program.hear(&letter, now),
                To::Connection => self.hear(&letter),
            }
        }
    }

    fn hear(&mut self, letter: &Letter) {
        let segment = letter.segment();
        let payload = Bytes::copy_from_slice(&letter.payload);
        match &mut self.connection {
            Some(connection) => connection.segment(&segment, payload, self.now),
            None => {
                let mut connection = Connection::new(&segment, self.settings);
                connection.accept(self.now);
                self.connection = Some(connection);
            }
        }
    }
}

/// Its timer.
const RTO: Duration = Duration::from_millis(300);

/// A segment on its way.
#[derive(Clone, Debug)]
struct Letter {
    header: Header,
    payload: Vec<u8>,
}

impl Letter {
    fn segment(&self) -> Segment<'_> {
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

/// The byte at `place` of a direction: both ends know it.
fn byte_at(place: usize) -> u8 {
    u32::try_from(place)
        .expect("small")
        .wrapping_mul(2_654_435_761)
        .to_be_bytes()[0]
}

/// Random numbers (xorshift64): the same for the same seed.
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let number = usize::try_from(self.0 >> 16).expect("64 bits");
        number % limit.max(1)
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// What kind of program it is.
#[derive(Clone, Debug)]
struct Habits {
    /// Bytes that it sends.
    sends: usize,
    /// Bytes that wait for it at most.
    capacity: usize,
    scale: Option<u8>,
    mss: Option<u16>,
    iss: u32,
    /// The largest segment that it hands to its device.
    largest: usize,
    /// It finishes only when it has received everything.
    finishes_last: bool,
}

/// A program's TCP, as simple as it can be: it takes bytes in order only, goes back to the first byte that is not acknowledged after a while,
/// and writes down what the connection must never do. Its clock is virtual.
#[derive(Debug)]
struct Program {
    habits: Habits,
    out: Vec<Letter>,
    received: usize,
    target_finished: bool,
    open: bool,
    irs: u32,
    peer_scale: u8,
    peer_window: usize,
    acked: usize,
    sent: usize,
    most_sent: usize,
    finish_sent: bool,
    unread: usize,
    /// The furthest place that the connection was ever told it may send to.
    edge: usize,
    timer: Option<Instant>,
    wait: Duration,
}

impl Program {
    fn new(habits: Habits, now: Instant) -> Self {
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

    fn timeout(&self) -> Option<Instant> {
        self.timer
    }

    fn expire(&mut self, now: Instant) {
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
        // Data in a SYN are ignored by the connection, and come again.
        let payload = (0..self.habits.sends.min(7)).map(byte_at).collect();
        self.out.push(Letter { header, payload });
    }

    fn hear(&mut self, letter: &Letter, now: Instant) {
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
        self.hear_bytes(header, &letter.payload);
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

    fn hear_bytes(&mut self, header: &Header, payload: &[u8]) {
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
            assert_eq!(*found, byte_at(start + n), "at {}", start + n);
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
    fn read(&mut self, bytes: usize) {
        let read = bytes.min(self.unread);
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
            let payload = (self.sent..self.sent + len).map(byte_at).collect();
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
