//! Differences between two documents in lines, as a few commands of ed: who has an old one makes the new one of it. Of Tor's consensuses
//! ([`crate::tor::consensus_diff`]) and of lists of ours alike. dir-spec "Limited ed diff format" (proposal 140).
//!
//! Both ways take a time that is linear in what is there, but for the logarithm of a search, whatever stands in the documents: [`make`] matches lines that
//! both have exactly once (Cohen's "patience diff"), and looks closer only at what lies between two of them and is short; [`apply`] goes once through
//! commands and lines, and what it makes is no longer than both together.

use std::{collections::HashMap, fmt::Write, ops::Range};

use crate::directory::Malformed;

/// Lines of the one times lines of the other that are compared with each other between two matches.
const CELLS: usize = 4096;
/// The end of a block of lines.
const DOT: &str = ".";

/// Lines `old` of the one document are lines `new` of the other; from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    old: Range<usize>,
    new: Range<usize>,
}

/// The commands that make `new` of `old`. `None`: there are none, because a document ends in the middle of a line, or has one that is a dot alone.
pub fn make(old: &str, new: &str) -> Option<String> {
    let (old, new) = (lines(old)?, lines(new)?);
    (!new.contains(&DOT)).then_some(())?;
    let mut script = String::new();
    for change in changes(&old, &new).iter().rev() {
        put(change, &new, &mut script);
    }
    Some(script)
}

/// Every line of a text without its end.
fn lines(text: &str) -> Option<Vec<&str>> {
    let whole = text.is_empty() || text.ends_with('\n');
    whole.then(|| text.split_terminator('\n').collect())
}

/// What is to be changed, from front to back.
fn changes(old: &[&str], new: &[&str]) -> Vec<Change> {
    let mut found = Vec::new();
    let (mut from_old, mut from_new) = (0, 0);
    let ends = std::iter::once((old.len(), new.len()));
    for (to_old, to_new) in matches(old, new).into_iter().chain(ends) {
        let gap = Change {
            old: from_old..to_old,
            new: from_new..to_new,
        };
        compare(&gap, old, new, &mut found);
        (from_old, from_new) = (to_old.saturating_add(1), to_new.saturating_add(1));
    }
    found
}

/// Where a line is, of those that are there once.
#[derive(Clone, Copy, Default)]
struct Seen {
    times: (usize, usize),
    at: (usize, usize),
}

/// Lines that both have exactly once, as many as stand in the same order in both: by their places in `old` and in `new`.
fn matches(old: &[&str], new: &[&str]) -> Vec<(usize, usize)> {
    let mut seen = HashMap::<&str, Seen>::with_capacity(old.len().max(new.len()));
    for (at, line) in old.iter().enumerate() {
        let seen = seen.entry(line).or_default();
        (seen.times.0, seen.at.0) = (seen.times.0.saturating_add(1), at);
    }
    for (at, line) in new.iter().enumerate() {
        let seen = seen.entry(line).or_default();
        (seen.times.1, seen.at.1) = (seen.times.1.saturating_add(1), at);
    }
    let once = seen.into_values().filter(|seen| seen.times == (1, 1));
    let mut once: Vec<_> = once.map(|seen| seen.at).collect();
    once.sort_unstable();
    longest_ascent(&once)
}

/// The longest sequence of pairs, sorted by their first, whose second ascends too (Fredman 1975).
fn longest_ascent(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // Of each length so far: the sequence that ends lowest, by its last pair's place; and what stands before each pair.
    let mut lowest: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    let second = |place: usize| pairs.get(place).map_or(0, |pair| pair.1);
    for (place, pair) in pairs.iter().enumerate() {
        let length = lowest.partition_point(|other| second(*other) < pair.1);
        let previous = length.checked_sub(1);
        before.push(previous.and_then(|length| lowest.get(length).copied()));
        match lowest.get_mut(length) {
            Some(lowest) => *lowest = place,
            None => lowest.push(place),
        }
    }
    let mut found = Vec::with_capacity(lowest.len());
    let mut next = lowest.last().copied();
    while let Some(place) = next {
        found.extend(pairs.get(place));
        next = before.get(place).copied().flatten();
    }
    found.reverse();
    found
}

/// What is to be changed between two matches.
fn compare(gap: &Change, old: &[&str], new: &[&str], found: &mut Vec<Change>) {
    let (Some(from), Some(to)) = (old.get(gap.old.clone()), new.get(gap.new.clone())) else {
        return;
    };
    let alike = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
        pairs.take_while(|(one, other)| one == other).count()
    };
    let head = alike(&mut from.iter().zip(to));
    let (from, to) = (
        from.get(head..).unwrap_or_default(),
        to.get(head..).unwrap_or_default(),
    );
    let tail = alike(&mut from.iter().rev().zip(to.iter().rev()));
    let from = from.get(..from.len().saturating_sub(tail));
    let to = to.get(..to.len().saturating_sub(tail));
    let (from, to) = (from.unwrap_or_default(), to.unwrap_or_default());
    let start = (
        gap.old.start.saturating_add(head),
        gap.new.start.saturating_add(head),
    );
    if from.is_empty() && to.is_empty() {
        return;
    }
    let parts = if from.len().saturating_mul(to.len()) <= CELLS {
        shortest(from, to)
    } else {
        vec![Change {
            old: 0..from.len(),
            new: 0..to.len(),
        }]
    };
    let moved = |range: Range<usize>, by: usize| {
        range.start.saturating_add(by)..range.end.saturating_add(by)
    };
    found.extend(parts.into_iter().map(|part| Change {
        old: moved(part.old, start.0),
        new: moved(part.new, start.1),
    }));
}

/// How many lines at most two documents have in common, in the same order, from a line of the one and a line of the other on.
struct Common {
    width: usize,
    cells: Vec<usize>,
}

impl Common {
    fn of(from: &[&str], to: &[&str]) -> Self {
        let width = to.len().saturating_add(1);
        let height = from.len().saturating_add(1);
        let mut common = Self {
            width,
            cells: vec![0; width.saturating_mul(height)],
        };
        for (row, one) in from.iter().enumerate().rev() {
            for (column, other) in to.iter().enumerate().rev() {
                let (below, right) = (row.saturating_add(1), column.saturating_add(1));
                let most = if one == other {
                    common.at(below, right).saturating_add(1)
                } else {
                    common.at(below, column).max(common.at(row, right))
                };
                let cell = row.saturating_mul(width).saturating_add(column);
                if let Some(cell) = common.cells.get_mut(cell) {
                    *cell = most;
                }
            }
        }
        common
    }

    fn at(&self, row: usize, column: usize) -> usize {
        let cell = row.saturating_mul(self.width).saturating_add(column);
        self.cells.get(cell).copied().unwrap_or(0)
    }
}

/// The changes that leave the most lines.
fn shortest(from: &[&str], to: &[&str]) -> Vec<Change> {
    let common = Common::of(from, to);
    let (mut row, mut column) = (0, 0);
    let mut found = Vec::new();
    let mut open = Change {
        old: 0..0,
        new: 0..0,
    };
    while row < from.len() || column < to.len() {
        let (below, right) = (row.saturating_add(1), column.saturating_add(1));
        let both = from.get(row).zip(to.get(column));
        if both.is_some_and(|(one, other)| one == other) {
            close(&mut open, (row, column), &mut found);
            (row, column) = (below, right);
            open = Change {
                old: row..row,
                new: column..column,
            };
        } else if column >= to.len()
            || (row < from.len() && common.at(below, column) >= common.at(row, right))
        {
            row = below;
        } else {
            column = right;
        }
    }
    close(&mut open, (row, column), &mut found);
    found
}

fn close(open: &mut Change, (row, column): (usize, usize), found: &mut Vec<Change>) {
    (open.old.end, open.new.end) = (row, column);
    if !open.old.is_empty() || !open.new.is_empty() {
        found.push(open.clone());
    }
}

fn put(change: &Change, new: &[&str], script: &mut String) {
    let (first, last) = (change.old.start.saturating_add(1), change.old.end);
    let block = new.get(change.new.clone()).unwrap_or_default();
    let command = match (change.old.is_empty(), block.is_empty()) {
        (true, _) => 'a',
        (false, true) => 'd',
        (false, false) => 'c',
    };
    // Writing to a text does not fail.
    let _written = match (command, first == last) {
        ('a', _) => writeln!(script, "{last}a"),
        (_, true) => writeln!(script, "{first}{command}"),
        (_, false) => writeln!(script, "{first},{last}{command}"),
    };
    if command != 'd' {
        for line in block.iter().chain([&DOT]) {
            script.push_str(line);
            script.push('\n');
        }
    }
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Command {
    /// Lines before those that it is about.
    before: usize,
    /// Lines before those that it leaves behind them; `None`: it leaves none (`$`).
    until: Option<usize>,
    /// A block of lines is put there.
    puts: bool,
}

impl Command {
    fn parse(line: &str) -> Option<Self> {
        let command = line.chars().next_back()?;
        let numbers = line.strip_suffix(command)?;
        let (first, last) = match numbers.split_once(',') {
            Some((first, last)) => (number(first)?, Some(last)),
            None => (number(numbers)?, None),
        };
        if command == 'a' {
            let alone = last.is_none();
            return alone.then_some(Self {
                before: first,
                until: Some(first),
                puts: true,
            });
        }
        let until = match last {
            None => Some(first),
            Some("$") if command == 'd' => None,
            Some(last) => Some(number(last)?),
        };
        let fits = first >= 1 && until.is_none_or(|until| until >= first);
        let known = matches!(command, 'c' | 'd');
        (fits && known).then_some(Self {
            before: first.saturating_sub(1),
            until,
            puts: command == 'c',
        })
    }
}

/// Decimal digits, without zeros before them, as one writes a number.
fn number(text: &str) -> Option<usize> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = text == "0" || !text.starts_with('0');
    (digits && plain).then(|| text.parse().ok()).flatten()
}

/// What the commands of `script` make of `old`. "The commands MUST apply to the file from back to front"; `$` is in the first alone. It takes as many
/// bytes as both have together, and eight for each line of `old`, however many commands there are.
///
/// # Errors
/// What is wrong first, by the line of `script`.
pub fn apply(old: &str, script: &str) -> Result<String, Malformed> {
    let cut = Malformed {
        line: 1,
        what: "a difference to a document that ends in the middle of a line",
    };
    let ends = ends(old).ok_or(cut)?;
    let mut rest = Script::new(script);
    // From back to front: what is behind the first `left` lines of the old document is made already.
    let mut left = ends.len().saturating_sub(1);
    let mut made = FromBack::within(old.len().saturating_add(script.len()));
    let mut is_first = true;
    while let Some(command) = rest.command()? {
        let until = command.until.or_else(|| is_first.then_some(left));
        let until = until.filter(|until| command.before <= *until && *until <= left);
        let until = until.ok_or_else(|| rest.wrong("commands that are out of order"))?;
        is_first = false;
        made.put(between(old, &ends, until, left));
        if command.puts {
            made.put(rest.block()?);
        }
        left = command.before;
    }
    made.put(between(old, &ends, 0, left));
    made.whole().ok_or(cut)
}

/// A text that is written from its end on.
struct FromBack {
    /// Its bytes, the last first.
    bytes: Vec<u8>,
}

impl FromBack {
    fn within(most: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(most),
        }
    }

    /// Puts this before what is there.
    fn put(&mut self, text: &str) {
        self.bytes.extend(text.bytes().rev());
    }

    /// All of it. `None` is not to be seen: it is of whole texts.
    fn whole(mut self) -> Option<String> {
        self.bytes.reverse();
        String::from_utf8(self.bytes).ok()
    }
}

/// Where each line begins, and where the last ends. `None`: it ends in the middle of a line.
fn ends(text: &str) -> Option<Vec<usize>> {
    (text.is_empty() || text.ends_with('\n')).then_some(())?;
    let ends = text.match_indices('\n').map(|(at, _)| at.saturating_add(1));
    Some(std::iter::once(0).chain(ends).collect())
}

/// Lines `from` to `to`, which are there.
fn between<'a>(text: &'a str, ends: &[usize], from: usize, to: usize) -> &'a str {
    let range = ends.get(from).zip(ends.get(to));
    let lines = range.and_then(|(from, to)| text.get(*from..*to));
    lines.unwrap_or_default()
}

/// What is left of the commands.
struct Script<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Script<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            line: 0,
        }
    }

    fn wrong(&self, what: &'static str) -> Malformed {
        Malformed {
            line: self.line,
            what,
        }
    }

    fn next_line(&mut self) -> Result<Option<&'a str>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.line = self.line.saturating_add(1);
        let split = self.rest.split_once('\n');
        let (line, rest) = split.ok_or_else(|| self.wrong("cut in the middle of a line"))?;
        self.rest = rest;
        Ok(Some(line))
    }

    fn command(&mut self) -> Result<Option<Command>, Malformed> {
        let Some(line) = self.next_line()? else {
            return Ok(None);
        };
        let command = Command::parse(line);
        command
            .map(Some)
            .ok_or_else(|| self.wrong("no command that is known"))
    }

    /// All lines before the dot, of which there is one at least.
    fn block(&mut self) -> Result<&'a str, Malformed> {
        let begin = self.rest;
        loop {
            let left = self.rest.len();
            let line = self.next_line()?;
            match line.ok_or_else(|| self.wrong("a block without end"))? {
                DOT => {
                    let length = begin.len().saturating_sub(left);
                    let block = begin.get(..length).filter(|block| !block.is_empty());
                    return block.ok_or_else(|| self.wrong("a block without lines"));
                }
                _ => continue,
            }
        }
    }
}

#[cfg(test)]
mod tests;
