//! The directory's traffic in virtual time: the same relays, coming, going and saying other things, on lists of ours and in consensuses of Tor's, and clients
//! that fetch one or the other from relays that keep it. docs/sim.md, "The directory".
//!
//! The documents are real ones, written and compressed as the product does it; the times are those by which it asks ([`Lifetime`]); one seed gives one report,
//! to the byte. What is between those who ask and those who answer is not there: nothing takes time, and nothing is lost.

pub mod consensuses;
pub mod lists;
pub mod population;
mod traffic;

use std::fmt::{self, Write};

use hoplite_directory::Lifetime;
use serde::Serialize;

use consensuses::Consensuses;
use lists::Lists;
use population::Population;
use traffic::{Documents, Traffic};

use crate::report::Figures;

/// 120 relays that do not exist, as a consensus has them: what is sampled from where the user brings none.
pub const SYNTHETIC: &str = include_str!("../populations/synthetic.consensus");

const HOUR: u64 = 3600;
/// When the first list holds from: a multiple of an hour, in seconds since 1970.
const BEGINS: u64 = 1_790_002_800;
/// There is a list each hour, to be used for three: as with Tor.
const HOLDS: u64 = 3 * HOUR;

/// Something that cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("simulating the directory: {0}")]
pub struct Wrong(pub &'static str);

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Relays of each list.
    pub relays: usize,
    /// Clients that begin at some time of the first half.
    pub clients: usize,
    /// Authorities, which all sign.
    pub authorities: usize,
    /// Lists, one each hour.
    pub hours: usize,
    /// Everything is drawn from it.
    pub seed: u64,
    /// After so many hours a relay of ours says as of then what has not changed.
    pub every: u64,
    /// The share of directory caches of Tor's that keep lists of ours, too.
    pub keep: f64,
    /// The share of relays that go within an hour, and have others come in their place.
    pub leave: f64,
    /// The share whose measured bandwidth is another after an hour.
    pub remeasured: f64,
    /// The share that gets or loses the flag Stable in an hour.
    pub reflagged: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            relays: 1000,
            clients: 2000,
            authorities: 3,
            hours: 24,
            seed: 1,
            every: 18,
            keep: 1.0,
            leave: 0.01,
            remeasured: 0.1,
            reflagged: 0.01,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), Wrong> {
        let shares = [self.keep, self.leave, self.remeasured, self.reflagged];
        if !(1..=8192).contains(&self.relays) {
            Err(Wrong("there are 1 to 8192 relays on a list"))
        } else if !(1..=32).contains(&self.authorities) {
            Err(Wrong("there are 1 to 32 authorities"))
        } else if !(2..=168).contains(&self.hours) {
            Err(Wrong("2 to 168 hours can be simulated"))
        } else if !(1..=24).contains(&self.every) {
            Err(Wrong(
                "relays say their descriptors again every 1 to 24 hours",
            ))
        } else if !shares.iter().all(|share| (0.0..=1.0).contains(share)) {
            Err(Wrong("shares are from 0 to 1"))
        } else {
            Ok(())
        }
    }

    fn republish_seconds(&self) -> u64 {
        self.every.saturating_mul(HOUR).max(1)
    }

    fn end(&self) -> u64 {
        valid_after(self.hours)
    }

    /// Which list is the newest.
    fn hour(&self, now: u64) -> usize {
        let passed = now.saturating_sub(BEGINS) / HOUR;
        let hour = usize::try_from(passed).unwrap_or(usize::MAX);
        hour.min(self.hours.saturating_sub(1))
    }
}

/// From when the list of an hour holds, in seconds since 1970.
fn valid_after(hour: usize) -> u64 {
    let hour = u64::try_from(hour).unwrap_or(u64::MAX);
    BEGINS.saturating_add(hour.saturating_mul(HOUR))
}

/// For how long.
fn lifetime(hour: usize) -> Lifetime {
    let valid_after = valid_after(hour);
    Lifetime {
        valid_after,
        fresh_until: valid_after.saturating_add(HOUR),
        valid_until: valid_after.saturating_add(HOLDS),
    }
}

/// Which directory, and what is told of it to who has an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ListsOfAuthorities,
    WholeLists,
    ListDifferences,
    WholeConsensuses,
    ConsensusDifferences,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::ListsOfAuthorities,
        Self::WholeLists,
        Self::ListDifferences,
        Self::WholeConsensuses,
        Self::ConsensusDifferences,
    ];

    const fn is_tor(self) -> bool {
        matches!(self, Self::WholeConsensuses | Self::ConsensusDifferences)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::ListsOfAuthorities => "list, authorities alone",
            Self::WholeLists => "list, caches, whole",
            Self::ListDifferences => "list, caches, differences",
            Self::WholeConsensuses => "consensus, whole",
            Self::ConsensusDifferences => "consensus, differences",
        }
    }
}

/// What was given in a run.
#[derive(Debug, Default)]
struct Totals {
    /// By the authorities, each hour.
    to_relays: Vec<u64>,
    to_clients: Vec<u64>,
    by_caches: u64,
    /// To each client at first, and each time afterwards.
    bootstraps: Vec<u64>,
    renewals: Vec<u64>,
    /// Seconds that clients were there, all together.
    client_seconds: u64,
    /// Questions that brought nothing later.
    in_vain: u64,
}

impl Totals {
    fn new(hours: usize) -> Self {
        Self {
            to_relays: vec![0; hours],
            to_clients: vec![0; hours],
            ..Self::default()
        }
    }

    /// What one question has cost: authorities, and caches.
    fn count(&mut self, hour: usize, client: bool, first: bool, given: (u64, u64)) {
        let (of_authorities, of_caches) = given;
        let hours = if client {
            &mut self.to_clients
        } else {
            &mut self.to_relays
        };
        if let Some(hour) = hours.get_mut(hour) {
            *hour = hour.saturating_add(of_authorities);
        }
        self.by_caches = self.by_caches.saturating_add(of_caches);
        let sum = of_authorities.saturating_add(of_caches);
        match (client, first) {
            // Nobody has answered yet.
            (true, _) if sum == 0 => {}
            (true, true) => self.bootstraps.push(sum),
            (true, false) => self.renewals.push(sum),
            (false, _) => {}
        }
    }
}

/// Sizes of the documents of the last hour, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sizes {
    /// A list of ours, compressed; so is all below.
    pub list: u64,
    /// The difference to the one of an hour before.
    pub list_difference: u64,
    /// A consensus of Tor's.
    pub consensus: u64,
    /// The difference to the one of an hour before.
    pub consensus_difference: u64,
    /// What describes all its relays.
    pub microdescriptors: u64,
    /// Of those that the consensus of an hour before does not name.
    pub new_microdescriptors: u64,
}

/// What one way of asking comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which.
    pub way: &'static str,
    /// Bytes that all authorities together give to relays in an hour, from the second on.
    pub authorities_to_relays: Figures,
    /// The same to clients, in the first half, when they begin.
    pub authorities_to_beginning_clients: Figures,
    /// The same in the second half, when none begins.
    pub authorities_to_clients: Figures,
    /// Bytes that a client is given before it has relays.
    pub bootstrap: Figures,
    /// Bytes of each later time.
    pub renewal: Figures,
    /// Bytes that a client is given in a day, beside the first.
    pub client_day: f64,
    /// Bytes that relays give in an hour, all together, over the whole run.
    pub caches_hour: f64,
    /// Questions that brought nothing later.
    pub in_vain: u64,
}

/// What a run comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Of what.
    pub settings: Settings,
    /// Relays of the first list that keep it for others.
    pub list_caches: usize,
    /// Directory caches of Tor's in the first consensus.
    pub consensus_caches: usize,
    /// Relays that were ever there.
    pub relays_seen: usize,
    /// Of the last hour.
    pub sizes: Sizes,
    /// One for each way.
    pub ways: Vec<Row>,
}

/// Simulates each way in turn, over the same relays: like those of this consensus of Tor's.
///
/// # Errors
/// [`Wrong`]: what was asked for cannot be.
pub fn run(settings: &Settings, consensus: &str) -> Result<Report, Wrong> {
    settings.check()?;
    let members = population::sample(consensus, settings.relays, settings.seed)?;
    let population = Population::over(&members, settings);
    let mut documents = Documents {
        lists: Lists::made(&population, settings)?,
        consensuses: Consensuses::made(&population, settings),
    };
    let mut rows = Vec::with_capacity(Way::ALL.len());
    for way in Way::ALL {
        let totals = Traffic::new(&population, &mut documents, settings, way).run();
        rows.push(Row::of(way, &totals, settings));
    }
    let at_first = population.relays.iter().filter(|relay| relay.from == 0);
    let (lists, consensuses): (Vec<_>, Vec<_>) = at_first
        .map(|relay| (relay.keeps_lists, relay.keeps_consensuses()))
        .unzip();
    let count = |keeps: Vec<bool>| keeps.into_iter().filter(|keeps| *keeps).count();
    Ok(Report {
        settings: settings.clone(),
        list_caches: count(lists),
        consensus_caches: count(consensuses),
        relays_seen: population.relays.len(),
        sizes: Sizes::of(&mut documents, settings),
        ways: rows,
    })
}

impl Sizes {
    fn of(documents: &mut Documents, settings: &Settings) -> Self {
        let last = settings.hours.saturating_sub(1);
        let before = last.saturating_sub(1);
        let (lists, consensuses) = (&documents.lists, &mut documents.consensuses);
        Self {
            list: lists.whole(last),
            list_difference: lists.difference(&[before], last),
            consensus: consensuses.consensus(None, last),
            consensus_difference: consensuses.consensus(Some(before), last),
            microdescriptors: consensuses.microdescriptors_since(None, last),
            new_microdescriptors: consensuses.microdescriptors_since(Some(before), last),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of a run are far below 2^53"
)]
fn number(value: u64) -> f64 {
    value as f64
}

fn figures(values: &[u64]) -> Figures {
    Figures::of(values.iter().map(|value| number(*value)))
}

impl Row {
    fn of(way: Way, totals: &Totals, settings: &Settings) -> Self {
        let half = settings.hours / 2;
        let later = |hours: &[u64], from: usize| figures(hours.get(from..).unwrap_or_default());
        let beginning = totals.to_clients.get(..half).unwrap_or_default();
        let renewed = number(totals.renewals.iter().sum());
        let seconds = number(totals.client_seconds.max(1));
        let hours = u64::try_from(settings.hours).unwrap_or(u64::MAX);
        Self {
            way: way.name(),
            authorities_to_relays: later(&totals.to_relays, 1),
            authorities_to_beginning_clients: figures(beginning),
            // Who has begun just before may ask for the first time a moment later.
            authorities_to_clients: later(&totals.to_clients, half.saturating_add(1)),
            bootstrap: figures(&totals.bootstraps),
            renewal: figures(&totals.renewals),
            client_day: (renewed * 86_400.0 / seconds).round(),
            caches_hour: (number(totals.by_caches) / number(hours)).round(),
            in_vain: totals.in_vain,
        }
    }
}

/// Bytes, in thousands or millions, as a person reads them.
fn bytes(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.2} MB", value / 1e6)
    } else {
        format!("{:.1} kB", value / 1e3)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            relays,
            clients,
            authorities,
            hours,
            seed,
            ..
        } = self.settings;
        writeln!(
            f,
            "{relays} relays, {} of them with lists and {} with consensuses for others, {clients} clients, {authorities} authorities, {hours} hours, seed {seed}; {} relays were ever there\n",
            self.list_caches, self.consensus_caches, self.relays_seen
        )?;
        let size = |value: u64| bytes(number(value));
        let sizes = &self.sizes;
        writeln!(
            f,
            "| document | whole | difference after an hour |\n|---|---|---|\n| list | {} | {} |\n| consensus | {} | {} |\n| microdescriptors | {} | {} (new ones) |\n",
            size(sizes.list),
            size(sizes.list_difference),
            size(sizes.consensus),
            size(sizes.consensus_difference),
            size(sizes.microdescriptors),
            size(sizes.new_microdescriptors)
        )?;
        writeln!(
            f,
            "| way | authorities to relays, an hour | to clients while they begin | to clients later | a client's bootstrap | a renewal | a client's day | caches, an hour |\n|---|---|---|---|---|---|---|---|"
        )?;
        let mut table = String::new();
        for row in &self.ways {
            let cells = [
                row.authorities_to_relays.median,
                row.authorities_to_beginning_clients.median,
                row.authorities_to_clients.median,
                row.bootstrap.median,
                row.renewal.median,
                row.client_day,
                row.caches_hour,
            ];
            let cells = cells.map(bytes).join(" | ");
            writeln!(table, "| {} | {cells} |", row.way)?;
        }
        f.write_str(&table)
    }
}
