//! A machine, a program and a queue between them that loses, repeats and reorders, in virtual time.

use std::{io::IoSlice, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::program::{Dice, Habits, Letter, Program, octet};
use crate::tun::tcp::machine::{End, Machine, Settings};

/// What happens to packets, in percent, and how long they take.
#[derive(Clone, Debug)]
pub(super) struct Weather {
    pub(super) lost: usize,
    pub(super) repeated: usize,
    pub(super) jitter: Duration,
}

/// The overlay's side.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) sends: usize,
    /// It finishes only when it has received everything.
    pub(super) finishes_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Machine,
    Program,
}

pub(super) struct World {
    now: Instant,
    dice: Dice,
    weather: Weather,
    under_way: Vec<(Instant, To, Letter)>,
    program: Program,
    machine: Option<Machine>,
    settings: Settings,
    target: Target,
    sent: usize,
    finished: bool,
    received: usize,
}

impl World {
    pub(super) fn new(
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
            machine: None,
            settings,
            target,
            sent: 0,
            finished: false,
            received: 0,
        }
    }

    /// Lets everything happen; fails if an octet is wrong or it does not come to an end.
    pub(super) fn run(mut self) {
        for _ in 0..1_000_000 {
            self.post();
            if self.is_over() {
                return;
            }
            self.live();
            self.post();
            self.step();
        }
        panic!("no end: {:?}", self.machine);
    }

    fn is_over(&self) -> bool {
        let Some(end) = self.machine.as_ref().and_then(Machine::ended) else {
            return false;
        };
        assert_eq!(end, End::Complete);
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
            let octets = self.dice.below(100_000);
            self.program.read(octets);
        }
        self.allow();
        if self.dice.chance(50) {
            self.take();
        }
        if self.dice.chance(50) {
            self.give();
        }
    }

    /// What the budget allows changes all the time.
    fn allow(&mut self) {
        let more = match self.dice.below(4) {
            0 => 0,
            1 => self.dice.below(5000),
            2 => self.dice.below(300_000),
            _ => usize::MAX,
        };
        if let Some(machine) = &mut self.machine {
            machine.allow(more);
        }
    }

    fn take(&mut self) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        let mut slices = [IoSlice::new(&[]); 4];
        let count = machine.read(&mut slices);
        let most = self.dice.below(200_000);
        let octets = slices[..count].iter().flat_map(|slice| slice.iter());
        let mut taken = 0;
        for found in octets.take(most) {
            assert_eq!(*found, octet(self.received + taken));
            taken += 1;
        }
        machine.consume(taken);
        self.received += taken;
    }

    fn give(&mut self) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        let left = self.target.sends - self.sent;
        let some = self.dice.below(200_000).min(left);
        let room = machine.room();
        let octets: Vec<u8> = (self.sent..self.sent + some.min(room)).map(octet).collect();
        if !octets.is_empty() {
            machine.push(&octets);
        } else if left > 0 {
            machine.stall(self.now);
        }
        self.sent += octets.len();
        let may_finish = machine.read_ended() || !self.target.finishes_last;
        if self.sent == self.target.sends && may_finish && !self.finished {
            machine.finish(self.now);
            self.finished = true;
        }
    }

    /// What both have to say goes on its way.
    fn post(&mut self) {
        while let Some(packet) = self.machine.as_mut().and_then(|m| m.transmit(self.now)) {
            let machine = self.machine.as_ref().expect("there");
            let (payload, segment) = machine.payload(&packet);
            let (payload, header) = (payload.concat(), packet.header);
            assert!(segment.is_some() || payload.len() <= usize::from(self.settings.mss));
            self.send(To::Program, &Letter { header, payload });
        }
        for letter in std::mem::take(&mut self.program.out) {
            self.send(To::Machine, &letter);
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
        let machine = self.machine.as_ref().and_then(Machine::timeout);
        let next = [arrival, machine, self.program.timeout(), Some(soon)];
        self.now = next
            .into_iter()
            .flatten()
            .min()
            .expect("soon")
            .max(self.now);
        self.deliver();
        self.program.expire(self.now);
        if let Some(machine) = &mut self.machine {
            machine.expire(self.now);
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
                To::Machine => self.hear(&letter),
            }
        }
    }

    fn hear(&mut self, letter: &Letter) {
        let segment = letter.segment();
        let payload = Bytes::copy_from_slice(&letter.payload);
        match &mut self.machine {
            Some(machine) => machine.segment(&segment, payload, self.now),
            None => {
                let mut machine = Machine::new(&segment, self.settings);
                machine.accept(self.now);
                self.machine = Some(machine);
            }
        }
    }
}
