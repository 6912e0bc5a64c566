//! What a run comes to: figures for the terminal and, by name, for programs; a line for each fetch, circuit and relay in CSV.
//! The names of metrics are those of `hoplite-lab report --json` where they mean the same. The same seed gives the same bytes.

/// Writing into a text never fails.
macro_rules! line {
    ($out:expr, $($rest:tt)*) => { writeln!($out, $($rest)*).ok() };
}

use std::{
    fmt::{self, Write},
    fs, io,
    path::Path,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use crate::{net::Ledger, run::Settings};

/// So long without a byte is a stall.
const STALL: Duration = Duration::from_secs(10);

/// Figures of one quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// How many values there are.
    pub n: usize,
    /// Quantiles, of type 7 (Hyndman and Fan); 0 where there is no value.
    pub median: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// What became of one kind of fetches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fetches {
    /// `web` or `bulk`.
    pub workload: &'static str,
    /// How many began after the warm-up.
    pub n: usize,
    /// How many of them were whole.
    pub done: usize,
    /// How many failed.
    pub failed: usize,
    /// How many had not ended when the run did.
    pub running: usize,
    /// How many had no byte for ten seconds.
    pub stalled: usize,
    /// From asking for a stream to the first byte, in seconds.
    pub ttfb_s: Figures,
    /// To the last one.
    pub ttlb_s: Figures,
    /// Bytes over that time, in bits a second.
    pub goodput_bps: Figures,
    /// The 99th percentile of the first byte's time over its median: 3 and more is a stalled network.
    pub ttfb_p99_over_median: f64,
}

/// A run's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Relays.
    pub relays: usize,
    /// Clients.
    pub clients: usize,
    /// Relays of a path.
    pub hops: usize,
    /// What channels run over.
    pub channel: String,
    /// Whether circuits have congestion control.
    pub congestion_control: bool,
    /// As in [`Settings`].
    pub conflux: bool,
    /// The share of packets that is lost.
    pub loss: f64,
    /// Whether none is between exits and targets.
    pub lossless_targets: bool,
    /// The seed.
    pub seed: u64,
    /// How long the run was, in virtual seconds.
    pub virtual_s: f64,
    /// What became of fetches.
    pub fetches: Vec<Fetches>,
    /// Each client's longest time without bytes that it wanted, from when the first relay went, in seconds: [`Outcome::outage`].
    pub outage_s: Figures,
    /// Circuits that were not built.
    pub circuits_failed: usize,
    /// How long building took, with the channel to the guard where there was none, in seconds.
    pub circuit_s: Figures,
    /// How much of relays' lines was used, from 0 to 1, on average in the direction that was used more.
    pub relay_use: Figures,
    /// Packets.
    pub packets: Packets,
    /// Faults of channels that happened, by name.
    pub faults: Vec<(&'static str, u64)>,
    /// When which packets were sent, as one number: [`crate::net::Ledger::trace`].
    pub trace: String,
}

/// What became of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Packets {
    /// Sent.
    pub sent: u64,
    /// Their bytes, with headers.
    #[serde(rename = "bytes")]
    pub bytes: u64,
    /// Received.
    pub received: u64,
    /// Lost on their way.
    pub lost: u64,
    /// Dropped by a full queue.
    pub queue_full: u64,
}

impl Figures {
    /// Of these values.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Self {
            n: values.len(),
            median: rounded(quantile(&values, 0.5)),
            p95: rounded(quantile(&values, 0.95)),
            p99: rounded(quantile(&values, 0.99)),
            max: rounded(values.last().copied().unwrap_or_default()),
        }
    }
}

/// To a microsecond, where it is a time.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the place in a list that fits memory"
)]
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len().saturating_sub(1) as f64);
    let below = place.floor() as usize;
    let at = |place: usize| sorted.get(place).copied();
    let low = at(below).unwrap_or_default();
    let high = at(below.saturating_add(1)).unwrap_or(low);
    (place - place.floor()).mul_add(high - low, low)
}

impl Fetches {
    #[expect(
        clippy::cast_precision_loss,
        reason = "bytes of a fetch are far below 2^53"
    )]
    fn of(outcome: &Outcome, kind: Kind) -> Self {
        let counted =
            |fetch: &&Fetch| fetch.kind == kind && fetch.begun >= outcome.settings.warm_up;
        let all: Vec<&Fetch> = outcome.fetches.iter().filter(counted).collect();
        let done = all.iter().filter(|fetch| fetch.end == Some("done"));
        let whole =
            done.filter_map(|fetch| Some((fetch, (fetch.last? - fetch.begun).as_secs_f64())));
        let whole: Vec<_> = whole.collect();
        let first = all
            .iter()
            .filter_map(|fetch| Some(fetch.first? - fetch.begun));
        let ttfb_s = Figures::of(first.map(|time| time.as_secs_f64()));
        let running = all.iter().filter(|fetch| fetch.end.is_none()).count();
        let rate = |(fetch, time): &(&&Fetch, f64)| fetch.bytes as f64 * 8.0 / time;
        Self {
            workload: kind.name(),
            n: all.len(),
            done: whole.len(),
            failed: all
                .len()
                .saturating_sub(running)
                .saturating_sub(whole.len()),
            running,
            stalled: all.iter().filter(|fetch| fetch.gap >= STALL).count(),
            ttfb_s,
            ttlb_s: Figures::of(whole.iter().map(|(_, time)| *time)),
            goodput_bps: Figures::of(whole.iter().map(rate)),
            ttfb_p99_over_median: if ttfb_s.median > 0.0 {
                ttfb_s.p99 / ttfb_s.median
            } else {
                0.0
            },
        }
    }
}

impl Summary {
    /// Of a run.
    #[expect(
        clippy::cast_precision_loss,
        reason = "bytes of a run are far below 2^53"
    )]
    pub fn of(outcome: &Outcome) -> Self {
        let settings = &outcome.settings;
        let builds = outcome.builds.iter();
        let time = outcome.took.as_secs_f64();
        let used = outcome
            .relays
            .iter()
            .map(|relay| relay.sent.max(relay.received) as f64 / (relay.bandwidth as f64 * time));
        let ledger = &outcome.ledger;
        Self {
            relays: settings.relays,
            clients: settings.clients,
            hops: settings.hops,
            channel: format!("{:?}", settings.channel).to_lowercase(),
            congestion_control: settings.congestion_control,
            conflux: settings.conflux,
            loss: settings.loss,
            lossless_targets: settings.lossless_targets,
            seed: settings.seed,
            virtual_s: time,
            fetches: [Kind::Web, Kind::Bulk]
                .map(|kind| Fetches::of(outcome, kind))
                .into(),
            outage_s: Figures::of(outages(outcome)),
            circuits_failed: builds.clone().filter(|build| build.took.is_none()).count(),
            circuit_s: Figures::of(builds.filter_map(|build| Some(build.took?.as_secs_f64()))),
            relay_use: Figures::of(used),
            packets: Packets {
                sent: ledger.sent.packets,
                bytes: ledger.sent.bytes,
                received: ledger.received.packets,
                lost: ledger.lost.packets,
                queue_full: ledger.queue_full.packets,
            },
            trace: format!("{:016x}", ledger.trace),
            faults: outcome
                .faults
                .iter()
                .filter(|(_, count)| *count > 0)
                .copied()
                .collect(),
        }
    }
}

/// None where no relay went.
fn outages(outcome: &Outcome) -> impl Iterator<Item = f64> {
    let kills = outcome.settings.kills.iter();
    let first = kills.map(|(_, when)| *when).min();
    let clients = 0..outcome.settings.clients;
    let outages = first.map(|since| clients.map(move |client| outcome.outage(client, since)));
    outages.into_iter().flatten().map(|time| time.as_secs_f64())
}

/// The files of a run, by name.
///
/// # Errors
/// A figure cannot be written as JSON: a bug.
pub fn files(outcome: &Outcome) -> Result<[(&'static str, String); 4], serde_json::Error> {
    Ok([
        (
            "summary.json",
            serde_json::to_string_pretty(&Summary::of(outcome))? + "\n",
        ),
        ("fetches.csv", fetches(outcome)),
        ("circuits.csv", circuits(outcome)),
        ("relays.csv", relays(outcome)),
    ])
}

/// Writes them into `directory`, which is made.
///
/// # Errors
/// The system's.
pub fn write(outcome: &Outcome, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (name, text) in files(outcome)? {
        fs::write(directory.join(name), text)?;
    }
    Ok(())
}

fn fetches(outcome: &Outcome) -> String {
    let mut out = "client,kind,wanted,bytes,begun_s,open_s,ttfb_s,ttlb_s,gap_s,end\n".to_owned();
    for fetch in &outcome.fetches {
        let from = |time: Option<Duration>| Seconds(time.map(|time| time - fetch.begun));
        let Fetch {
            client,
            wanted,
            bytes,
            ..
        } = fetch;
        let (kind, end) = (fetch.kind.name(), fetch.end.unwrap_or("running"));
        let begun = Seconds(Some(fetch.begun));
        let (open, first, last) = (from(fetch.opened), from(fetch.first), from(fetch.last));
        let gap = Seconds(Some(fetch.gap));
        line!(
            out,
            "{client},{kind},{wanted},{bytes},{begun},{open},{first},{last},{gap},{end}"
        );
    }
    out
}

fn circuits(outcome: &Outcome) -> String {
    let mut out = "at_s,built_s\n".to_owned();
    for build in &outcome.builds {
        line!(out, "{},{}", Seconds(Some(build.at)), Seconds(build.took));
    }
    out
}

fn relays(outcome: &Outcome) -> String {
    let mut out = "relay,bandwidth,sent,received,circuits,refused,open\n".to_owned();
    for (number, relay) in outcome.relays.iter().enumerate() {
        let RelayUse {
            bandwidth,
            sent,
            received,
            ..
        } = relay;
        let (created, refused, open) = (relay.created, relay.refused, relay.open);
        line!(
            out,
            "{number},{bandwidth},{sent},{received},{created},{refused},{open}"
        );
    }
    out
}

/// Seconds with six digits, or nothing.
struct Seconds(Option<Duration>);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "{}.{:06}", time.as_secs(), time.subsec_micros()),
            None => Ok(()),
        }
    }
}

// The table for the terminal.

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            relays,
            clients,
            hops,
            channel,
            loss,
            lossless_targets,
            seed,
            virtual_s,
            ..
        } = self;
        let spared = if *lossless_targets {
            " but none to targets"
        } else {
            ""
        };
        writeln!(
            f,
            "{relays} relays, {clients} clients, {hops} hops over {channel}, loss {loss}{spared}, seed {seed}, {virtual_s:.0} virtual seconds"
        )?;
        writeln!(
            f,
            "{:24}{:>8}{:>11}{:>11}{:>11}{:>11}",
            "", "n", "median", "95 %", "99 %", "most"
        )?;
        for fetches in &self.fetches {
            let name = fetches.workload;
            row(f, &format!("{name}: first byte, s"), &fetches.ttfb_s)?;
            row(f, &format!("{name}: last byte, s"), &fetches.ttlb_s)?;
        }
        row(f, "circuit built, s", &self.circuit_s)?;
        row(f, "relay's line used", &self.relay_use)?;
        if self.outage_s.n > 0 {
            row(f, "longest without bytes, s", &self.outage_s)?;
        }
        for fetches in &self.fetches {
            let Fetches {
                workload,
                n,
                done,
                failed,
                running,
                stalled,
                ..
            } = fetches;
            let ratio = fetches.ttfb_p99_over_median;
            writeln!(
                f,
                "{workload}: {n} fetches, {done} done, {failed} failed, {running} not over; {stalled} without a byte for 10 s; first byte's 99 % is {ratio:.2} medians"
            )?;
        }
        let Packets {
            sent,
            lost,
            queue_full,
            ..
        } = self.packets;
        let failed = self.circuits_failed;
        writeln!(
            f,
            "{failed} circuits not built; {sent} packets, {lost} lost, {queue_full} dropped by full queues"
        )?;
        if self.faults.is_empty() {
            writeln!(f, "no fault of a channel")
        } else {
            writeln!(f, "faults of channels: {:?}", self.faults)
        }
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, figures: &Figures) -> fmt::Result {
    let Figures {
        n,
        median,
        p95,
        p99,
        max,
    } = figures;
    writeln!(
        f,
        "{name:24}{n:>8}{median:>11.3}{p95:>11.3}{p99:>11.3}{max:>11.3}"
    )
}

// What was seen in a run: each fetch, each circuit that was built, each relay. Nothing of it depends on the machine: times are virtual.
// Clients write into the [`Book`] while they run.

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It fetches pages.
    Web,
    /// It fetches much.
    Bulk,
}

impl Kind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Bulk => "bulk",
        }
    }
}

/// One fetch. Times are from the run's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Whose.
    pub client: usize,
    /// Which kind of client.
    pub kind: Kind,
    /// How much was wanted.
    pub wanted: u64,
    /// How much came.
    pub bytes: u64,
    /// When it began: the client asked for a stream.
    pub begun: Duration,
    /// When it had one.
    pub opened: Option<Duration>,
    /// When the first byte came.
    pub first: Option<Duration>,
    /// When the last one came.
    pub last: Option<Duration>,
    /// The longest time without a byte.
    pub gap: Duration,
    /// How it ended; nothing: it had not when the run did.
    pub end: Option<&'static str>,
    /// When something came last.
    heard: Duration,
    /// When it ended, or the run did.
    over: Duration,
}

/// A circuit that was to be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// When that was known.
    pub at: Duration,
    /// How long it took; nothing: it failed.
    pub took: Option<Duration>,
}

/// What a relay did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayUse {
    /// Bytes a second of its line.
    pub bandwidth: u64,
    /// Bytes that its node sent.
    pub sent: u64,
    /// Bytes that its node received.
    pub received: u64,
    /// Circuits that were made.
    pub created: u64,
    /// Circuits that it refused or broke off because of a limit, a bad handshake or a broken protocol.
    pub refused: u64,
    /// Circuits that it still has.
    pub open: usize,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of what.
    pub settings: Settings,
    /// How long it was.
    pub took: Duration,
    /// All fetches, in the order in which they began.
    pub fetches: Vec<Fetch>,
    /// All circuits.
    pub builds: Vec<Build>,
    /// All relays.
    pub relays: Vec<RelayUse>,
    /// Faults of channels, by name.
    pub faults: Vec<(&'static str, u64)>,
    /// All packets.
    pub ledger: Ledger,
}

/// What is written while the network runs.
#[derive(Debug)]
pub struct Book {
    began: Instant,
    state: Mutex<(Vec<Fetch>, Vec<Build>)>,
}

/// One fetch's place in the book.
#[derive(Debug)]
pub(crate) struct Page {
    book: Arc<Book>,
    place: usize,
}

impl Book {
    /// Begins now.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            state: Mutex::default(),
        })
    }

    pub(crate) fn begin(self: &Arc<Self>, client: usize, kind: Kind, wanted: u64) -> Page {
        let begun = self.began.elapsed();
        let mut state = self.state.lock();
        let place = state.0.len();
        state.0.push(Fetch {
            client,
            kind,
            wanted,
            bytes: 0,
            begun,
            opened: None,
            first: None,
            last: None,
            gap: Duration::ZERO,
            end: None,
            heard: begun,
            over: begun,
        });
        drop(state);
        Page {
            book: Arc::clone(self),
            place,
        }
    }

    /// A circuit was built, or not.
    pub(crate) fn built(&self, took: Option<Duration>) {
        let at = self.began.elapsed();
        self.state.lock().1.push(Build { at, took });
    }

    /// All that was written; what has not ended has waited until now.
    pub(crate) fn close(&self) -> (Vec<Fetch>, Vec<Build>) {
        let now = self.began.elapsed();
        let (mut fetches, builds) = std::mem::take(&mut *self.state.lock());
        for fetch in fetches.iter_mut().filter(|fetch| fetch.end.is_none()) {
            fetch.over(now);
        }
        (fetches, builds)
    }
}

impl Fetch {
    fn hear(&mut self, now: Duration) {
        self.gap = self.gap.max(now.saturating_sub(self.heard));
        self.heard = now;
    }

    fn over(&mut self, now: Duration) {
        self.over = now;
        if self.last.is_none() {
            self.gap = self.gap.max(now.saturating_sub(self.heard));
        }
    }
}

impl Outcome {
    /// The longest time from `since` on that a client went without bytes while it wanted some. A fetch that fails is one with the next;
    /// pauses between fetches do not count.
    pub fn outage(&self, client: usize, since: Duration) -> Duration {
        let (mut longest, mut silent) = (Duration::ZERO, Duration::ZERO);
        let fetches = self.fetches.iter();
        for fetch in fetches.filter(|fetch| fetch.client == client && fetch.over >= since) {
            let first = fetch.first.unwrap_or(fetch.over);
            silent += first.saturating_sub(fetch.begun.max(since));
            longest = longest.max(silent).max(fetch.gap);
            match (fetch.first, fetch.last) {
                (Some(_), Some(_)) => silent = Duration::ZERO,
                (Some(_), None) => silent = fetch.over.saturating_sub(fetch.heard),
                (None, _) => {}
            }
        }
        longest
    }
}

impl Page {
    fn write(&self, write: impl FnOnce(&mut Fetch, Duration)) {
        let now = self.book.began.elapsed();
        if let Some(fetch) = self.book.state.lock().0.get_mut(self.place) {
            write(fetch, now);
        }
    }

    pub(crate) fn opened(&self) {
        self.write(|fetch, now| fetch.opened = Some(now));
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.write(|fetch, now| {
            fetch.hear(now);
            fetch.first.get_or_insert(now);
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            fetch.bytes = fetch.bytes.saturating_add(bytes);
        });
    }

    pub(crate) fn whole(&self) {
        self.write(|fetch, now| fetch.last = Some(now));
    }

    pub(crate) fn end(&self, how: &'static str) {
        self.write(|fetch, now| {
            fetch.over(now);
            fetch.end = Some(how);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_type_seven() {
        let figures = Figures::of([4.0, 1.0, 3.0, 2.0].into_iter());
        assert!((figures.median - 2.5).abs() < 1e-9);
        assert!((figures.p95 - 3.85).abs() < 1e-9);
        assert!((figures.max - 4.0).abs() < 1e-9);
        assert_eq!(Figures::of(std::iter::empty()), Figures::default());
    }
}
