//! All circuits of a TLS channel as a machine without I/O: cells come in and go to their circuits' queues; the quietest circuit's go out first.
//! The two tasks of `tls` drive it, under one lock.
//! tor-spec: "Choosing circuit IDs in create cells", "Tearing down circuits".

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::BytesMut;
use hoplite_wire::cell::{self, Cell, CircuitId, Command};
use tokio::time::Instant;

use super::{Line, NONE, PROTOCOL, RESOURCE_LIMIT};
use crate::channel::{
    Config, Counts,
    ewma::{Activity, Moment, Scale, Turns},
    ids::{Ids, NoId},
    lane::{self, Refused, lane},
};

/// From so many on, cells that wait get memory of their own: else each keeps the whole buffer that it came in. The copy costs less than a
/// hundredth of what a cell costs.
const FEW: usize = 1;

pub(super) struct Mux {
    ids: Ids,
    lines: BTreeMap<CircuitId, Entry>,
    turns: Turns<Line>,
    /// What the channel itself says: DESTROY. It goes first.
    answers: VecDeque<Cell>,
    scale: Scale,
    serial: u64,
    outbox: usize,
    inbox: usize,
    most_answers: usize,
    counts: Arc<Counts>,
    ended: bool,
}

struct Entry {
    serial: u64,
    inbox: lane::Tx,
    outbox: lane::Rx,
    activity: Activity,
    /// Whether it waits for its turn.
    waiting: bool,
    /// Nobody holds an end: it is gone once the queue is sent.
    abandoned: bool,
    /// The peer does not know yet that it has ended.
    owes: bool,
}

/// A circuit that begins, for whoever holds its ends.
pub(super) struct News {
    pub(super) line: Line,
    pub(super) outbox: lane::Tx,
    pub(super) inbox: lane::Rx,
}

impl Mux {
    pub(super) fn new(ids: Ids, scale: Scale, config: &Config, counts: Arc<Counts>) -> Self {
        Self {
            ids,
            lines: BTreeMap::new(),
            turns: Turns::default(),
            answers: VecDeque::new(),
            scale,
            serial: 0,
            outbox: config.outbox,
            inbox: config.inbox,
            most_answers: config.answers,
            counts,
            ended: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// A circuit of ours begins, if there may be another.
    pub(super) fn open(&mut self) -> Option<News> {
        let id = self.ids.choose()?;
        Some(self.begin(id))
    }

    fn begin(&mut self, id: CircuitId) -> News {
        self.serial = self.serial.wrapping_add(1);
        let line = Line {
            id,
            serial: self.serial,
        };
        let (outbox, from) = lane(self.outbox);
        let (to, inbox) = lane(self.inbox);
        if !self.ended {
            let entry = Entry {
                serial: line.serial,
                inbox: to,
                outbox: from,
                activity: Activity::NONE,
                waiting: false,
                abandoned: false,
                owes: false,
            };
            self.lines.insert(id, entry);
        }
        News {
            line,
            outbox,
            inbox,
        }
    }

    /// A cell came; tells of a circuit that begins by it.
    pub(super) fn arrived(&mut self, cell: Cell) -> Option<News> {
        if cell.circuit.is_channel() || cell.command.is_variable() {
            self.ignore(cell.command);
            return None;
        }
        match cell.command {
            Command::RELAY
            | Command::RELAY_EARLY
            | Command::CREATED
            | Command::CREATED_FAST
            | Command::CREATED2 => self.deliver(cell),
            Command::DESTROY => self.destroyed(cell),
            Command::CREATE | Command::CREATE_FAST | Command::CREATE2 => return self.create(cell),
            command => self.ignore(command),
        }
        None
    }

    /// Padding is meant to be ignored; all else has no place here.
    fn ignore(&self, command: Command) {
        let padding = [
            Command::PADDING,
            Command::VPADDING,
            Command::PADDING_NEGOTIATE,
        ];
        if !padding.contains(&command) {
            self.counts.ignored.up();
        }
    }

    fn deliver(&mut self, mut cell: Cell) {
        let id = cell.circuit;
        let Some(entry) = self.lines.get(&id) else {
            return self.counts.unknown.up();
        };
        if entry.inbox.len() >= FEW {
            cell.detach();
        }
        if entry.inbox.push(cell) == Err(Refused::Full) {
            self.overflow(id);
        }
    }

    /// Nothing stops the peer from sending, and nobody else shall wait: the circuit is destroyed, both ends are told.
    fn overflow(&mut self, id: CircuitId) {
        self.counts.overfull.up();
        if let Some(entry) = self.remove(id) {
            entry.inbox.replace(destroy(id, RESOURCE_LIMIT));
        }
        self.answer(id, RESOURCE_LIMIT);
    }

    fn destroyed(&mut self, cell: Cell) {
        match self.remove(cell.circuit) {
            Some(entry) => entry.inbox.push_last(cell),
            None => self.counts.unknown.up(),
        }
    }

    fn create(&mut self, cell: Cell) -> Option<News> {
        let id = cell.circuit;
        match self.ids.claim(id) {
            Ok(()) => {
                let news = self.begin(id);
                self.deliver(cell);
                return Some(news);
            }
            // The circuit that has the id lives on.
            Err(NoId::Taken) => self.counts.collisions.up(),
            Err(NoId::NotTheirs) => {
                self.counts.wrong_ids.up();
                self.answer(id, PROTOCOL);
            }
            Err(NoId::TooMany) => {
                self.counts.too_many.up();
                self.answer(id, RESOURCE_LIMIT);
            }
        }
        None
    }

    fn answer(&mut self, id: CircuitId, reason: u8) {
        if self.answers.len() < self.most_answers {
            self.answers.push_back(destroy(id, reason));
        } else {
            self.counts.unanswered.up();
        }
    }

    fn remove(&mut self, id: CircuitId) -> Option<Entry> {
        let entry = self.lines.remove(&id)?;
        self.ids.release(id);
        Some(entry)
    }

    fn entry(&mut self, line: Line) -> Option<&mut Entry> {
        let entry = self.lines.get_mut(&line.id);
        entry.filter(|entry| entry.serial == line.serial)
    }

    /// A circuit's queue is no longer empty.
    pub(super) fn has_cells(&mut self, line: Line) {
        let Some(entry) = self.entry(line) else {
            return;
        };
        if !std::mem::replace(&mut entry.waiting, true) {
            let activity = entry.activity;
            self.turns.add(line, activity);
        }
    }

    /// Our side ends the circuit at once.
    pub(super) fn destroy(&mut self, line: Line, reason: u8) {
        if self.entry(line).is_some() {
            self.answer(line.id, reason);
        }
    }

    /// Nobody holds an end of the circuit. What is queued is sent; then the peer is told, unless it is `destroyed` already.
    pub(super) fn abandon(&mut self, line: Line, destroyed: bool) {
        let Some(entry) = self.entry(line) else {
            return;
        };
        entry.abandoned = true;
        entry.owes = !destroyed;
        if !entry.waiting {
            self.bury(line);
        }
    }

    fn bury(&mut self, line: Line) {
        if let Some(entry) = self.remove(line.id)
            && entry.owes
        {
            self.answer(line.id, NONE);
        }
    }

    /// Writes cells behind `out` while it is shorter than `most`: the channel's own, then the quietest circuit's, one by one.
    pub(super) fn take(&mut self, now: Instant, most: usize, out: &mut BytesMut) {
        let now = self.scale.at(now);
        while out.len() < most {
            if let Some(answer) = self.answers.pop_front() {
                put(&answer, out);
            } else if let Some(line) = self.turns.take() {
                self.turn(line, now, out);
            } else {
                return;
            }
        }
    }

    fn turn(&mut self, line: Line, now: Moment, out: &mut BytesMut) {
        let Some(entry) = self.entry(line) else {
            return;
        };
        if let Some(cell) = entry.outbox.pop() {
            put(&cell, out);
            entry.activity.add(1, now);
        }
        entry.waiting = entry.outbox.len() > 0;
        let (waiting, activity, abandoned) = (entry.waiting, entry.activity, entry.abandoned);
        if waiting {
            self.turns.add(line, activity);
        } else if abandoned {
            self.bury(line);
        }
    }

    /// The channel has ended, and all circuits with it.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.lines.clear();
        self.answers.clear();
        self.turns = Turns::default();
    }
}

fn put(cell: &Cell, out: &mut BytesMut) {
    let written = cell::write(cell, out);
    debug_assert!(written.is_ok(), "a cell that fits no frame is left out");
}

/// A DESTROY cell.
pub(in crate::channel) fn destroy(id: CircuitId, reason: u8) -> Cell {
    let mut body = BytesMut::zeroed(cell::BODY);
    if let Some(first) = body.first_mut() {
        *first = reason;
    }
    Cell {
        circuit: id,
        command: Command::DESTROY,
        body,
    }
}
