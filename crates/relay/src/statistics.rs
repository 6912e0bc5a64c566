//! What a relay tells of the people who use it: figures of a whole day, each hidden by noise before it leaves memory. dir-spec "Extra-info document
//! format"; Jansen and Johnson, "Safely Measuring Tor" (2016); Goulet, Johnson, Kadianakis and Loesing, "Hidden-service statistics" (proposal 238).
//!
//! [`Recorder`] is a machine without I/O or clock: it is told totals about once a second, and at a period's end makes [`Statistics`] of what they grew by.
//! What counts (channels, circuits, exits, the HSDir) adds to atomics of its own and knows nothing of periods. An exact figure is in memory alone, for one
//! period; on disk and in documents are noised ones only, and the coarse [`ObservedBandwidth`].
//!
//! # What is hidden, and what is not
//! Each figure has a **protected action**: what one person does in a day at most, for the figure not to show whether he was there. By that much
//! (`delta_f`) it changes; the noise is Laplace's with the scale `delta_f / epsilon`. Where one channel, or one circuit, is one person's, what it adds is cut
//! off there; where nobody can tell whose something is, a person who does more in a day is hidden less. docs/statistics.md has the table.

pub mod noise;
mod observed;
mod seen;

use std::fmt;

use hoplite_onion::relay::{BYTES_PER_CIRCUIT, PortTotals, STREAMS_PER_CIRCUIT};
use hoplite_wire::{
    relay_state::RelayState,
    tor::extra_info::{
        ByPort, Directions, DirectoryStatistics, Epsilon, ExitStatistics, History, Interval, Noise,
        OnionServiceStatistics, PaddingStatistics, Statistics,
    },
};

pub(crate) use self::seen::{CIRCUITS_PER_CLIENT, ClientShare, Seen};
pub use self::{noise::Random, observed::ObservedBandwidth};

/// Seconds of a stretch in which a channel is of one class.
pub const DIRECTIONS: u64 = 10;

/// How figures are hidden: all with the budget that Tor's relays state for onion services.
const fn hidden(delta_f: u64, bin_size: u64) -> Noise {
    Noise {
        delta_f,
        epsilon: Epsilon::TOR,
        bin_size,
    }
}

/// 400 MiB that are read, and passed on.
const BYTES: Noise = hidden(2 * (400 << 20), 1 << 20);
/// One channel, all day long.
const CHANNELS: Noise = hidden(24 * 3600 / DIRECTIONS, 16);
const CIRCUITS: Noise = hidden(CIRCUITS_PER_CLIENT, 8);
const EXIT_BYTES: Noise = hidden(BYTES_PER_CIRCUIT, 64 * KIB);
const EXIT_STREAMS: Noise = hidden(STREAMS_PER_CIRCUIT, 4);
/// One channel that rests all day, padded by both ends each 1.5 s: sooner none is.
const PADDING: Noise = hidden(2 * 24 * 3600 * 2 / 3, 10_000);
/// One client that asks each hour.
const CONSENSUSES: Noise = hidden(24, 8);
/// As Tor's relays: 1 MiB to or from an onion service.
const RENDEZVOUS_CELLS: Noise = hidden(2048, 1024);
/// As Tor's relays: a service in all the time periods of a day.
const ONIONS: Noise = hidden(8, 8);

const KIB: u64 = 1 << 10;
/// Intervals of the histories that are told.
const INTERVALS: usize = 5;
/// How far the calendar may be off where one interval follows another.
const SLACK: u64 = 120;
/// For how long it is told that descriptors of files were too few, or the relay overloaded.
const OVERLOADED: u64 = 72 * 3600;
const HOUR: u64 = 3600;
/// How long it is after it was told until a bandwidth that has doubled, or halved, is told at once; as in C tor.
const BANDWIDTH_CHANGE: u64 = 3 * HOUR;

/// What a relay has counted since it began. Totals only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes from peers, clients and targets.
    pub read: u64,
    /// Bytes to them.
    pub written: u64,
    /// Circuits that were begun here.
    pub circuits: u64,
    /// By port; `None` is all others.
    pub exits: Vec<(Option<u16>, PortTotals)>,
    /// Cells that joined circuits passed to each other.
    pub rendezvous_cells: u64,
    /// PADDING cells that came.
    pub padding_read: u64,
    /// PADDING cells that were sent.
    pub padding_written: u64,
    /// Consensuses that were given.
    pub consensuses: u64,
    /// Times that descriptors of files were too few.
    pub descriptors_exhausted: u64,
    /// Times that the relay had no memory left for a newcomer, or no room for a circuit.
    pub overloads: u64,
}

/// Which figures a relay has: what follows from its configuration, and from nothing that anybody does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Seconds of a period; 0: only the bandwidth is told.
    pub period: u64,
    /// It carries circuits.
    pub circuits: bool,
    /// It connects to targets.
    pub exit: bool,
    /// It joins circuits.
    pub services: bool,
    /// It keeps descriptors.
    pub hsdir: bool,
    /// It pads channels.
    pub padding: bool,
    /// It gives the consensus to clients.
    pub directory: bool,
}

/// What is to be said to directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The most of ten seconds, in bytes a second.
    pub rate: u64,
    /// Whether that was seen for a whole day at least.
    pub has_whole_day: bool,
    /// Of the last periods.
    pub statistics: Statistics,
    /// When the relay last had more to do than it can, by the hour, if that is not long ago.
    pub overloaded: Option<u64>,
    /// Grows when it is to be said at once.
    pub edition: u64,
}

impl Said {
    /// A relay that nobody has used yet says that it carries so much (bytes a second), or what its operator says if that is less: Tor's authorities make no
    /// more of a relay that nobody has measured than a fifth of it, and without anything it would never be used.
    const NEW: u64 = 100_000;
    /// Our own directory believes an operator up to so many times what was seen, ...
    const TRUST: u64 = 8;
    /// ... and so much in any case.
    const ALWAYS: u64 = 1_000_000;

    /// What the relay has been seen to carry, as Tor's authorities are told.
    pub fn observed(&self, declared: u64) -> u64 {
        if self.has_whole_day {
            self.rate
        } else {
            self.rate.max(Self::NEW.min(declared))
        }
    }

    /// What our own directory is told: what the operator says, within bounds of what was seen. Little traffic is no proof of a thin line, so a small
    /// network's relays, which nobody fills, keep what they say up to a megabyte a second, and a single download of ten seconds at an eighth of the line
    /// bears out all of it. Nothing is cut off on the first two days.
    pub fn declared(&self, declared: u64) -> u64 {
        if !self.has_whole_day {
            return declared;
        }
        let borne_out = self.rate.saturating_mul(Self::TRUST).max(Self::ALWAYS);
        declared.min(borne_out)
    }
}

/// What there was too little of: how often, as was counted last, and in which hour for the last time.
#[derive(Clone, Copy)]
struct Overload {
    count: u64,
    hour: Option<u64>,
}

impl Overload {
    fn take(&mut self, count: u64, now: u64) {
        if count > self.count {
            *self = Self {
                count,
                hour: Some(now / HOUR * HOUR),
            };
        }
    }

    fn told(self, now: u64) -> Option<u64> {
        self.hour.filter(|at| at.saturating_add(OVERLOADED) > now)
    }
}

/// The machine.
pub struct Recorder {
    scope: Scope,
    observed: ObservedBandwidth,
    statistics: Statistics,
    /// When the period began, and what had been counted.
    began: u64,
    before: Totals,
    directions: Directions,
    /// Descriptors of files were too few.
    exhausted: Overload,
    /// All the relay had more to do than it can.
    overloaded: Overload,
    edition: u64,
    /// The rate that was told last, and when.
    told: (u64, u64),
}

impl Recorder {
    /// Goes on with what was kept; `at` is the time on a clock that only goes forward, `now` that of the calendar, in seconds.
    pub fn new(scope: Scope, kept: RelayState, at: u64, now: u64, totals: Totals) -> Self {
        let observed = ObservedBandwidth::new(kept.observed);
        let exhausted = kept.statistics.descriptors_exhausted;
        Self {
            told: (observed.rate(), at),
            exhausted: Overload {
                count: totals.descriptors_exhausted,
                hour: exhausted,
            },
            overloaded: Overload {
                count: totals.overloads,
                hour: None,
            },
            observed,
            statistics: recent(kept.statistics, now),
            began: at,
            before: totals,
            directions: Directions::default(),
            edition: 0,
            scope,
        }
    }

    /// Takes totals, about once a second. True if the observed bandwidth has changed.
    pub fn take(&mut self, at: u64, now: u64, totals: &Totals) -> bool {
        self.exhausted.take(totals.descriptors_exhausted, now);
        self.overloaded.take(totals.overloads, now);
        let grown = self.observed.take(at, now, (totals.read, totals.written));
        self.tell_bandwidth(at);
        grown
    }

    fn tell_bandwidth(&mut self, at: u64) {
        let (rate, last) = self.told;
        let now = self.observed.rate();
        let is_other = now >= rate.saturating_mul(2).max(Said::NEW) || now <= rate / 2;
        let pause = match self.scope.period {
            0 => BANDWIDTH_CHANGE,
            period => period.min(BANDWIDTH_CHANGE),
        };
        if is_other && now != rate && at.saturating_sub(last) >= pause {
            self.told = (now, at);
            self.edition = self.edition.saturating_add(1);
        }
    }

    /// How channels were used in the last ten seconds.
    pub fn used(&mut self, more: Directions) {
        let all = &mut self.directions;
        all.below = all.below.saturating_add(more.below);
        all.read = all.read.saturating_add(more.read);
        all.written = all.written.saturating_add(more.written);
        all.both = all.both.saturating_add(more.both);
    }

    /// Whether the period is over.
    pub fn is_over(&self, at: u64) -> bool {
        self.scope.period > 0 && at.saturating_sub(self.began) >= self.scope.period
    }

    /// Ends the period and begins the next: `onions` services were seen in it. False where there is no randomness: then nothing is told of it.
    pub fn end(
        &mut self,
        (at, now): (u64, u64),
        totals: Totals,
        onions: u64,
        random: &mut Random<'_>,
    ) -> bool {
        let grown = Grown {
            interval: Interval {
                end: now,
                length: self.scope.period,
            },
            totals: difference(&totals, &self.before),
            directions: std::mem::take(&mut self.directions),
            onions,
        };
        self.began = at;
        self.before = totals;
        let told = grown.hide(self.scope, &self.statistics, random);
        let is_told = told.is_some();
        self.statistics = told.unwrap_or_default();
        self.told = (self.observed.rate(), at);
        self.edition = self.edition.saturating_add(1);
        is_told
    }

    /// What is to be said now.
    pub fn said(&self, now: u64) -> Said {
        let mut statistics = self.statistics.clone();
        statistics.descriptors_exhausted = self.exhausted.told(now);
        Said {
            rate: self.observed.rate(),
            has_whole_day: self.observed.has_whole_day(),
            statistics,
            overloaded: self.overloaded.told(now),
            edition: self.edition,
        }
    }

    /// What is kept on disk.
    pub fn kept(&self, now: u64) -> RelayState {
        RelayState {
            observed: self.observed.days().to_vec(),
            statistics: self.said(now).statistics,
        }
    }
}

/// What is a week old is no longer told.
fn recent(statistics: Statistics, now: u64) -> Statistics {
    let last = statistics.read.as_ref().map(|history| history.last.end);
    let is_recent = last.is_some_and(|end| {
        end.saturating_add(7 * 24 * HOUR) > now && end <= now.saturating_add(SLACK)
    });
    if is_recent {
        statistics
    } else {
        Statistics::default()
    }
}

fn difference(now: &Totals, before: &Totals) -> Totals {
    let ports = now.exits.iter().map(|(port, now)| {
        let before = before.exits.iter().find(|(other, _)| other == port);
        let before = before.map(|(_, totals)| *totals).unwrap_or_default();
        let grown = PortTotals {
            streams: now.streams.saturating_sub(before.streams),
            read: now.read.saturating_sub(before.read),
            written: now.written.saturating_sub(before.written),
        };
        (*port, grown)
    });
    Totals {
        read: now.read.saturating_sub(before.read),
        written: now.written.saturating_sub(before.written),
        circuits: now.circuits.saturating_sub(before.circuits),
        exits: ports.collect(),
        rendezvous_cells: now.rendezvous_cells.saturating_sub(before.rendezvous_cells),
        padding_read: now.padding_read.saturating_sub(before.padding_read),
        padding_written: now.padding_written.saturating_sub(before.padding_written),
        consensuses: now.consensuses.saturating_sub(before.consensuses),
        descriptors_exhausted: 0,
        overloads: 0,
    }
}

/// What was counted in one period, exactly: it does not leave this room.
struct Grown {
    interval: Interval,
    totals: Totals,
    directions: Directions,
    onions: u64,
}

impl Grown {
    /// All figures with their noise; `None` where there is no randomness.
    fn hide(&self, scope: Scope, last: &Statistics, random: &mut Random<'_>) -> Option<Statistics> {
        let (interval, totals) = (self.interval, &self.totals);
        let mut told = Statistics {
            read: Some(self.history(&last.read, totals.read, random)?),
            written: Some(self.history(&last.written, totals.written, random)?),
            noise: named(&["write-history", "read-history"], BYTES),
            ..Statistics::default()
        };
        if scope.circuits {
            told.directions = Some((interval, self.directions(random)?));
            told.circuits = Some((interval, noise::hide(totals.circuits, CIRCUITS, random)?));
            told.noise.extend(named(&["conn-bi-direct"], CHANNELS));
            told.noise.extend(named(&["hoplite-circuits"], CIRCUITS));
        }
        if scope.exit && scope.circuits {
            told.exit = Some(self.exit(random)?);
            let kibibytes = Noise {
                delta_f: EXIT_BYTES.delta_f / KIB,
                bin_size: EXIT_BYTES.bin_size / KIB,
                ..EXIT_BYTES
            };
            let keywords = ["exit-kibibytes-written", "exit-kibibytes-read"];
            told.noise.extend(named(&keywords, kibibytes));
            told.noise
                .extend(named(&["exit-streams-opened"], EXIT_STREAMS));
        }
        if scope.services && scope.circuits {
            told.onion_services = Some(self.onion_services(scope, random)?);
        }
        if scope.padding && scope.circuits {
            let mut hide = |count| noise::hide(count, PADDING, random);
            told.padding = Some(PaddingStatistics {
                interval,
                bin_size: PADDING.bin_size,
                written: hide(totals.padding_written)?,
                read: hide(totals.padding_read)?,
            });
            told.noise.extend(named(&["padding-counts"], PADDING));
        }
        if scope.directory {
            told.directory = Some(DirectoryStatistics {
                interval,
                consensuses: noise::hide(totals.consensuses, CONSENSUSES, random)?,
            });
            told.noise.extend(named(&["dirreq-v3-reqs"], CONSENSUSES));
        }
        Some(told)
    }

    /// The history so far, if this interval follows it, and this one.
    fn history(
        &self,
        last: &Option<History>,
        bytes: u64,
        random: &mut Random<'_>,
    ) -> Option<History> {
        let follows = |history: &&History| {
            let begins = self.interval.end.saturating_sub(self.interval.length);
            history.last.length == self.interval.length
                && history.last.end.abs_diff(begins) <= SLACK
        };
        let before = last.as_ref().filter(follows);
        let mut all = before
            .map(|history| history.bytes.clone())
            .unwrap_or_default();
        all.push(noise::hide(bytes, BYTES, random)?);
        let old = all.len().saturating_sub(INTERVALS);
        all.drain(..old);
        Some(History {
            last: self.interval,
            bytes: all,
        })
    }

    fn directions(&self, random: &mut Random<'_>) -> Option<Directions> {
        let counted = self.directions;
        let mut hide = |count| noise::hide(count, CHANNELS, random);
        Some(Directions {
            below: hide(counted.below)?,
            read: hide(counted.read)?,
            written: hide(counted.written)?,
            both: hide(counted.both)?,
        })
    }

    fn exit(&self, random: &mut Random<'_>) -> Option<ExitStatistics> {
        let mut figures = |of: fn(&PortTotals) -> u64, noise: Noise, unit: u64| {
            let figures = self.totals.exits.iter().map(|(port, totals)| {
                let hidden = noise::hide(of(totals), noise, random)?;
                Some((*port, hidden / unit))
            });
            figures.collect::<Option<ByPort>>()
        };
        Some(ExitStatistics {
            interval: self.interval,
            kibibytes_written: figures(|totals| totals.written, EXIT_BYTES, KIB)?,
            kibibytes_read: figures(|totals| totals.read, EXIT_BYTES, KIB)?,
            streams: figures(|totals| totals.streams, EXIT_STREAMS, 1)?,
        })
    }

    fn onion_services(
        &self,
        scope: Scope,
        random: &mut Random<'_>,
    ) -> Option<OnionServiceStatistics> {
        let cells = self.totals.rendezvous_cells;
        let rendezvous_cells = noise::obfuscate(cells, RENDEZVOUS_CELLS, random)?;
        let onions_seen = if scope.hsdir {
            Some(noise::obfuscate(self.onions, ONIONS, random)?)
        } else {
            None
        };
        Some(OnionServiceStatistics {
            interval: self.interval,
            rendezvous_cells: Some(rendezvous_cells),
            onions_seen,
        })
    }
}

fn named(keywords: &[&str], noise: Noise) -> Vec<(String, Noise)> {
    let named = keywords
        .iter()
        .map(|keyword| ((*keyword).to_owned(), noise));
    named.collect()
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
