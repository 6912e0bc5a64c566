//! What a number of clients met: counted while they work, and told as a row or a line of JSON.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    relay::Cost,
    work::{Fault, Hint},
};

/// The longest time that is told apart, in microseconds: longer ones count as this.
const LONGEST: u64 = 1_000_000_000;
/// Different failures that are told; further ones are counted as one.
const MOST_CAUSES: usize = 32;

/// The heads of [`Level`]'s columns.
pub(super) const HEAD: &str = "clients  served  failed  opened/s    Mbit/s  lost %  connect ms     open ms  first byte ms  CPU s/GB  CPU ms/client  memory MB";

/// Counted while clients work.
#[derive(Debug)]
pub(super) struct Tally {
    bytes: AtomicU64,
    opened: AtomicU64,
    sent: AtomicU64,
    came: AtomicU64,
    failed: AtomicU64,
    noted: Mutex<Noted>,
}

/// What is more than a number.
#[derive(Debug)]
struct Noted {
    connect: Times,
    open: Times,
    first: Times,
    failures: BTreeMap<String, (u64, Hint)>,
    clients: Vec<Client>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Client {
    served: bool,
    failed: bool,
}

/// Times in microseconds, three digits of each kept.
#[derive(Debug)]
struct Times(Option<Histogram<u64>>);

/// Numbers at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) bytes: u64,
    opened: u64,
}

impl Tally {
    /// Of so many clients.
    pub(super) fn new(clients: u32) -> Self {
        let number = AtomicU64::default;
        Self {
            bytes: number(),
            opened: number(),
            sent: number(),
            came: number(),
            failed: number(),
            noted: Mutex::new(Noted {
                connect: Times::new(),
                open: Times::new(),
                first: Times::new(),
                failures: BTreeMap::new(),
                clients: vec![Client::default(); clients as usize],
            }),
        }
    }

    /// How many clients there are.
    pub(super) fn clients(&self) -> u32 {
        u32::try_from(self.noted.lock().clients.len()).unwrap_or(u32::MAX)
    }

    /// A path stands, after so long.
    pub(super) fn connected(&self, after: Duration) {
        self.opened.fetch_add(1, Relaxed);
        self.noted.lock().connect.note(after);
    }

    /// A stream or a flow is open, after so long.
    pub(super) fn opened(&self, after: Duration) {
        self.opened.fetch_add(1, Relaxed);
        self.noted.lock().open.note(after);
    }

    /// The first byte has come, so long after the stream was asked for.
    pub(super) fn first_byte(&self, after: Duration) {
        self.noted.lock().first.note(after);
    }

    /// Payload came.
    pub(super) fn took(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// A datagram left.
    pub(super) fn sent(&self) {
        self.sent.fetch_add(1, Relaxed);
    }

    /// A datagram is back, after so long.
    pub(super) fn came(&self, after: Duration) {
        self.came.fetch_add(1, Relaxed);
        self.first_byte(after);
    }

    /// A client got what it wanted.
    pub(super) fn served(&self, client: u32) {
        if let Some(client) = self.noted.lock().clients.get_mut(client as usize) {
            client.served = true;
        }
    }

    /// A client did not.
    pub(super) fn failed(&self, client: u32, fault: Fault) {
        self.failed.fetch_add(1, Relaxed);
        let mut noted = self.noted.lock();
        if let Some(client) = noted.clients.get_mut(client as usize) {
            client.failed = true;
        }
        let is_new = !noted.failures.contains_key(&fault.why);
        let why = if is_new && noted.failures.len() >= MOST_CAUSES {
            "others".to_owned()
        } else {
            fault.why
        };
        noted.failures.entry(why).or_insert((0, fault.hint)).0 += 1;
    }

    /// The numbers now.
    pub(super) fn mark(&self) -> Mark {
        Mark {
            bytes: self.bytes.load(Relaxed),
            opened: self.opened.load(Relaxed),
        }
    }

    /// What has come on top since.
    pub(super) fn since(&self, mark: &Mark) -> Mark {
        let now = self.mark();
        Mark {
            bytes: now.bytes.saturating_sub(mark.bytes),
            opened: now.opened.saturating_sub(mark.opened),
        }
    }

    /// How it goes, in a few words.
    pub(super) fn passing(&self) -> String {
        let (megabytes, failed) = (
            self.bytes.load(Relaxed) / 1_000_000,
            self.failed.load(Relaxed),
        );
        format!("{megabytes} MB, {failed} failed")
    }
}

impl Times {
    fn new() -> Self {
        // Refused only where the bounds are none.
        Self(Histogram::new_with_bounds(1, LONGEST, 3).ok())
    }

    fn note(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if let Some(times) = &mut self.0 {
            times.saturating_record(micros);
        }
    }

    /// Median and 99 % in milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a session")]
    fn told(&self) -> Option<[f64; 2]> {
        let times = self.0.as_ref().filter(|times| !times.is_empty())?;
        Some([0.5, 0.99].map(|share| times.value_at_quantile(share) as f64 / 1e3))
    }
}

/// What came of a number of clients.
#[derive(Debug)]
pub(super) struct Level {
    clients: usize,
    served: usize,
    seconds: f64,
    failed: u64,
    failures: BTreeMap<String, (u64, Hint)>,
    opened_per_second: f64,
    goodput_bps: f64,
    datagrams: [u64; 2],
    connect: Option<[f64; 2]>,
    open: Option<[f64; 2]>,
    first: Option<[f64; 2]>,
    /// How much of this machine's processors the clients took.
    pub(super) generator_share: f64,
    relay: Option<Cost>,
}

impl Level {
    /// From what was counted, and what passed in the time that was measured.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(super) fn of(
        tally: &Tally,
        since: &Mark,
        took: Duration,
        generator_share: f64,
        relay: Option<Cost>,
    ) -> Self {
        let (noted, seconds) = (tally.noted.lock(), took.as_secs_f64());
        let is_well = |client: &&Client| client.served && !client.failed;
        Self {
            clients: noted.clients.len(),
            served: noted.clients.iter().filter(is_well).count(),
            seconds,
            failed: tally.failed.load(Relaxed),
            failures: noted.failures.clone(),
            opened_per_second: since.opened as f64 / seconds,
            goodput_bps: since.bytes as f64 * 8.0 / seconds,
            datagrams: [tally.sent.load(Relaxed), tally.came.load(Relaxed)],
            connect: noted.connect.told(),
            open: noted.open.told(),
            first: noted.first.told(),
            generator_share,
            relay,
        }
    }

    /// Whether every client was served, without a failure and in time.
    pub(super) fn serves_all(&self, p99: Duration) -> bool {
        let in_time = |[_, last]: [f64; 2]| last <= p99.as_secs_f64() * 1e3;
        self.served == self.clients && self.failed == 0 && self.first.is_some_and(in_time)
    }

    fn lost(&self) -> u64 {
        let [sent, came] = self.datagrams;
        sent.saturating_sub(came)
    }

    /// One line for programs (docs/command-line.md).
    pub(super) fn json(&self) -> Value {
        let failures = self
            .failures
            .iter()
            .map(|(why, (count, _))| (why.clone(), json!(count)));
        let times = |times: Option<[f64; 2]>| {
            times.map(|[median, p99]| json!({"median": median, "p99": p99}))
        };
        json!({
            "clients": self.clients, "served": self.served, "seconds": self.seconds,
            "failed": self.failed, "failures": failures.collect::<serde_json::Map<_, _>>(),
            "opened_per_s": self.opened_per_second, "goodput_bps": self.goodput_bps,
            "datagrams_sent": self.datagrams[0], "datagrams_lost": self.lost(),
            "connect_ms": times(self.connect), "open_ms": times(self.open), "first_byte_ms": times(self.first),
            "generator_share": self.generator_share, "relay": self.relay,
        })
    }
}

impl fmt::Display for Level {
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |times: Option<[f64; 2]>| match times {
            Some([median, p99]) => format!("{median:.1}/{p99:.1}"),
            None => "-".to_owned(),
        };
        let lost = match self.datagrams {
            [0, _] => "-".to_owned(),
            [sent, _] => format!("{:.2}", self.lost() as f64 * 100.0 / sent as f64),
        };
        let cost = self.relay.as_ref();
        let per_gb = cost
            .and_then(|cost| cost.cpu_s_per_gb)
            .map(|cpu| format!("{cpu:.2}"));
        let per_client = cost.map(|cost| format!("{:.2}", cost.cpu_ms_per_client_s));
        let memory = cost.map(|cost| {
            cost.memory
                .map(|bytes| format!("{:.0}", bytes / 1e6))
                .join("→")
        });
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        write!(
            f,
            "{:>7}  {:>6}  {:>6}  {:>8.1}  {:>8.1}  {lost:>6}  {:>10}  {:>10}  {:>13}  {:>8}  {:>13}  {:>9}",
            self.clients,
            self.served,
            self.failed,
            self.opened_per_second,
            self.goodput_bps / 1e6,
            times(self.connect),
            times(self.open),
            times(self.first),
            or_none(per_gb),
            or_none(per_client),
            or_none(memory),
        )
    }
}

/// What failed in all levels, and whom the relay turned away: each told once, with what helps.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<String>, BTreeMap<Hint, ()>);

impl Faults {
    /// Adds a level's.
    pub(super) fn add(&mut self, level: &Level) {
        let clients = level.clients;
        for (why, (count, hint)) in &level.failures {
            self.0.push(format!(
                "hoplite-lab: {clients} clients: {count} times: {why}"
            ));
            self.1.insert(*hint, ());
        }
        for (cause, count) in level.relay.iter().flat_map(|cost| &cost.refused) {
            self.0.push(format!(
                "hoplite-lab: {clients} clients: {count} times the relay says: {cause}"
            ));
        }
    }

    /// Its lines.
    pub(super) fn tell(self) -> Vec<String> {
        let hints = self.1.into_keys().map(Hint::later);
        let mut hints: Vec<_> = hints.map(|hint| format!("hoplite-lab: {hint}")).collect();
        hints.dedup();
        self.0.into_iter().chain(hints).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(why: &str) -> Fault {
        Fault {
            why: why.to_owned(),
            hint: Hint::Limits,
        }
    }

    fn level(tally: &Tally) -> Level {
        let since = tally.since(&Mark::default());
        Level::of(tally, &since, Duration::from_secs(2), 0.5, None)
    }

    #[test]
    fn a_number_of_clients_is_served_if_each_was_and_none_failed_and_first_bytes_came_in_time() {
        let tally = Tally::new(2);
        tally.first_byte(Duration::from_millis(300));
        tally.served(0);
        assert!(
            !level(&tally).serves_all(Duration::from_secs(1)),
            "the other one"
        );
        tally.served(1);
        assert!(level(&tally).serves_all(Duration::from_secs(1)));
        assert!(
            !level(&tally).serves_all(Duration::from_millis(200)),
            "late"
        );
        tally.failed(1, fault("refused"));
        assert!(!level(&tally).serves_all(Duration::from_secs(1)), "failed");
        assert_eq!(level(&tally).served, 1);
    }

    #[test]
    fn figures_are_of_the_time_that_was_measured_and_failures_are_grouped() {
        let tally = Tally::new(1);
        tally.took(1_000_000);
        let mark = tally.mark();
        tally.took(2_000_000);
        tally.opened(Duration::from_millis(4));
        (0..4).for_each(|_| tally.sent());
        tally.came(Duration::from_millis(8));
        tally.failed(0, fault("refused"));
        tally.failed(0, fault("refused"));
        (0..100).for_each(|n| tally.failed(0, fault(&n.to_string())));
        let level = Level::of(
            &tally,
            &tally.since(&mark),
            Duration::from_secs(2),
            0.5,
            None,
        );
        let told = level.json();
        assert_eq!(told["goodput_bps"], 8e6);
        assert_eq!(told["opened_per_s"], 0.5);
        let open = told["open_ms"]["p99"].as_f64().unwrap();
        assert!((3.99..4.01).contains(&open), "{open}");
        assert_eq!(told["connect_ms"], Value::Null);
        assert_eq!(
            (&told["datagrams_sent"], &told["datagrams_lost"]),
            (&json!(4), &json!(3))
        );
        assert_eq!(told["failures"]["refused"], 2);
        assert_eq!(told["failures"].as_object().unwrap().len(), MOST_CAUSES + 1);
        assert!(level.to_string().contains("75.00"), "{level}");
        assert_eq!(HEAD.chars().count(), level.to_string().chars().count());
        let mut faults = Faults::default();
        faults.add(&level);
        let lines = faults.tell();
        assert!(lines.iter().any(|line| line.contains("2 times: refused")));
        assert_eq!(
            lines
                .iter()
                .filter(|line| line.contains("connections_per_client"))
                .count(),
            1
        );
    }
}
