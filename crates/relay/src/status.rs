//! What a running relay says of itself to its operator: what is open, how near each limit is, what it has carried and whom it has turned away. Sums only: no
//! address, no name and no token. [`Handle::observer`](crate::Handle::observer) gives what reads it; [`Rates`] makes speeds of it.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::Instant};

use crate::{
    metrics::{ByMethod, ByTransport, Count, Level},
    serve::{Phase, Shared},
};

/// How often the relay's counters are to be noted in [`Rates`].
pub const NOTED_EVERY: Duration = Duration::from_secs(5);
/// How many of those speeds are taken over: a minute's.
const NOTES: usize = 12;
/// What a cell of a circuit is, in bytes.
const CELL: u64 = 514;

/// Counters of the relay whose series are causes: the word for the cause, and the label that has it.
const REFUSALS: [(&str, &str, &str); 5] = [
    ("limit_refusals", "limit", "limit"),
    ("token_refusals", "token", "cause"),
    ("spent_store_failures", "spent store", "cause"),
    ("connections_ended", "ended", "cause"),
    ("forwarding_refusals", "forwarding", "cause"),
];

/// Reads what a running relay does, also while it drains.
#[derive(Clone)]
pub struct Observer {
    shared: Arc<Shared>,
    phase: watch::Receiver<Phase>,
}

/// What is open now, and how much of it there may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// It takes nothing new, and ends when what is open has ended.
    pub draining: bool,
    /// Clients with a request open: holders of a token, or addresses where there are none.
    pub users: u64,
    /// What is open, by kind.
    pub open: BTreeMap<String, u64>,
    /// What there is a number of.
    pub limits: Vec<Use>,
    /// By which interfaces the kernel forwards, or why it does not; absent where the file does not ask for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_forwarding: Option<String>,
}

/// How near a limit is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Its key in the relay's file.
    pub limit: String,
    /// How much of it is in use.
    pub used: u64,
    /// How much there may be.
    pub most: u64,
}

/// What was counted since the relay began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Payload of tunnels, in bytes.
    pub to_target: u64,
    /// The same the other way.
    pub to_client: u64,
    /// Cells of circuits, all ways, in bytes.
    pub cells: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Connections that clients have opened.
    pub connections: u64,
    /// Who was turned away, by cause.
    pub refusals: BTreeMap<String, u64>,
}

/// What passed lately, by the counters of the last minute. No clock inside.
#[derive(Debug, Default)]
pub struct Rates(VecDeque<(Instant, Counted)>);

/// Speeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lately {
    /// Over how long they were taken, in seconds.
    pub seconds: f64,
    /// Payload of tunnels, in bit/s.
    pub to_target_bps: f64,
    /// The same the other way.
    pub to_client_bps: f64,
    /// Cells of circuits, all ways, in bit/s.
    pub circuits_bps: f64,
    /// Requests that were answered each second.
    pub requests_per_second: f64,
    /// Connections that clients have opened each second.
    pub connections_per_second: f64,
    /// Who was turned away in that time, by cause; causes without anybody are left out.
    pub refusals: BTreeMap<String, u64>,
}

impl Observer {
    pub(crate) const fn new(shared: Arc<Shared>, phase: watch::Receiver<Phase>) -> Self {
        Self { shared, phase }
    }

    /// What is open now.
    pub fn standing(&self) -> Standing {
        let mut limits = self.shared.quotas.uses();
        if let Some(onion) = &self.shared.onion {
            limits.extend(onion.uses());
        }
        Standing {
            draining: *self.phase.borrow() >= Phase::Draining,
            users: self.shared.quotas.users(),
            open: self.open(),
            limits,
            kernel_forwarding: self.shared.kernel_state.clone(),
        }
    }

    /// `limits.bandwidth`, in bit/s; 0 is no limit.
    pub fn bandwidth(&self) -> u64 {
        self.shared.quotas.bandwidth()
    }

    /// What was counted until now.
    pub fn counted(&self) -> Counted {
        let metrics = &self.shared.metrics;
        let text = metrics.text();
        let mut refusals = BTreeMap::new();
        for (metric, word, label) in REFUSALS {
            for (cause, count) in series(&text, metric, label) {
                *refusals.entry(format!("{word}: {cause}")).or_default() += count;
            }
        }
        refusals.insert("policy".into(), metrics.policy_refusals.get());
        refusals.insert("handshake failed".into(), metrics.handshakes_failed.get());
        refusals.retain(|_, count| *count > 0);
        let of = |by: &ByMethod<Count>| {
            let all = [&by.tcp, &by.udp, &by.bound_udp, &by.ip];
            all.map(Count::get).iter().sum()
        };
        let onion = self.shared.onion.as_ref();
        Counted {
            to_target: of(&metrics.bytes_to_target),
            to_client: of(&metrics.bytes_to_client),
            cells: onion.map_or(0, |onion| {
                let cells = &onion.counters().cells;
                let ways = [
                    &cells.passed_forth,
                    &cells.passed_back,
                    &cells.taken,
                    &cells.made,
                ];
                let cells = ways.map(|way| way.load(Relaxed)).iter().sum::<u64>();
                cells.saturating_mul(CELL)
            }),
            requests: series(&text, "requests", "outcome").map(|(_, n)| n).sum(),
            connections: metrics.connections.quic.get() + metrics.connections.tls.get(),
            refusals,
        }
    }

    fn open(&self) -> BTreeMap<String, u64> {
        let metrics = &self.shared.metrics;
        let now = |level: &Level| u64::try_from(level.get()).unwrap_or(0);
        let both = |by: &ByTransport<Level>| now(&by.quic) + now(&by.tls);
        let mut open = BTreeMap::from([
            ("connections".into(), both(&metrics.connections_open)),
            ("handshakes".into(), both(&metrics.handshakes_open)),
            ("tunnels_tcp".into(), now(&metrics.tunnels_open.tcp)),
            ("tunnels_udp".into(), now(&metrics.tunnels_open.udp)),
            (
                "tunnels_bound_udp".into(),
                now(&metrics.tunnels_open.bound_udp),
            ),
            ("tunnels_ip".into(), now(&metrics.tunnels_open.ip)),
        ]);
        if self.shared.kernel.is_some() {
            let rules = now(&metrics.forwarding.kernel.rules_open);
            open.insert("kernel_rules".into(), rules);
        }
        if let Some(onion) = &self.shared.onion {
            let number = |n| u64::try_from(n).unwrap_or(u64::MAX);
            open.insert("channels".into(), both(&metrics.channels_open));
            open.insert("relay_channels".into(), number(onion.channels()));
            open.insert("circuits".into(), number(onion.circuits()));
        }
        open
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// The series of a counter in the OpenMetrics text, by a label: the library does not give out what a family has.
fn series<'a>(
    text: &'a str,
    metric: &'a str,
    label: &'a str,
) -> impl Iterator<Item = (&'a str, u64)> {
    text.lines().filter_map(move |line| {
        let labels = line.strip_prefix("hoplite_relay_")?.strip_prefix(metric)?;
        let (labels, count) = labels.strip_prefix("_total{")?.split_once("} ")?;
        let named = labels.split(',').find_map(|pair| pair.strip_prefix(label));
        let cause = named?.strip_prefix("=\"")?.strip_suffix('"')?;
        Some((cause, count.parse().ok()?))
    })
}

impl Rates {
    /// What is counted now; to be called each [`NOTED_EVERY`].
    pub fn note(&mut self, now: Instant, counted: Counted) {
        if self.0.len() >= NOTES {
            self.0.pop_front();
        }
        self.0.push_back((now, counted));
    }

    /// What has passed since the oldest note.
    pub fn lately(&self, now: Instant, counted: &Counted) -> Lately {
        let Some((since, before)) = self.0.front() else {
            return Lately::default();
        };
        let seconds = now.saturating_duration_since(*since).as_secs_f64();
        if seconds <= 0.0 {
            return Lately::default();
        }
        let more = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let refused = counted.refusals.iter().map(|(cause, count)| {
            let before = before.refusals.get(cause).copied().unwrap_or(0);
            (cause.clone(), count.saturating_sub(before))
        });
        Lately {
            seconds,
            to_target_bps: 8.0 * more(counted.to_target, before.to_target),
            to_client_bps: 8.0 * more(counted.to_client, before.to_client),
            circuits_bps: 8.0 * more(counted.cells, before.cells),
            requests_per_second: more(counted.requests, before.requests),
            connections_per_second: more(counted.connections, before.connections),
            refusals: refused.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Method, Metrics};

    fn counted(to_client: u64, refused: u64) -> Counted {
        Counted {
            to_client,
            refusals: BTreeMap::from([("limit: requests".into(), refused)]),
            ..Counted::default()
        }
    }

    #[test]
    fn speeds_are_those_of_the_last_minute() {
        let (start, mut rates) = (Instant::now(), Rates::default());
        assert_eq!(rates.lately(start, &counted(9, 9)), Lately::default());
        // A thousand bytes a second for two minutes, then silence; three were turned away at the beginning, and one at the end.
        let at = |n: u64| start + NOTED_EVERY * u32::try_from(n).expect("small");
        for n in 0..24 {
            rates.note(at(n), counted(5000 * n, 3));
        }
        let lately = rates.lately(at(24), &counted(5000 * 23, 4));
        assert_eq!(lately.seconds, 60.0);
        assert_eq!(lately.to_client_bps, 8.0 * 5000.0 * 11.0 / 60.0);
        assert_eq!(lately.to_target_bps, 0.0);
        assert_eq!(lately.refusals["limit: requests"], 1);
        let quiet = rates.lately(at(24), &counted(5000 * 23, 3));
        assert!(quiet.refusals.is_empty(), "nobody was turned away lately");
    }

    #[test]
    fn the_series_of_a_counter_are_read_and_no_other_ones() {
        let metrics = Metrics::new();
        metrics.limited("requests");
        metrics.limited("requests");
        metrics.limited("memory");
        metrics.request(Method::connect, "ok");
        metrics.request(Method::connect_udp, "ok");
        let text = metrics.text();
        let found: BTreeMap<_, _> = series(&text, "limit_refusals", "limit").collect();
        assert_eq!(found, BTreeMap::from([("memory", 1), ("requests", 2)]));
        let answered: Vec<_> = series(&text, "requests", "outcome").collect();
        assert_eq!(answered, [("ok", 1), ("ok", 1)]);
        assert_eq!(series(&text, "token_refusals", "cause").count(), 0);
        metrics.token_refused("forged");
        metrics.spent_store_failed("late");
        metrics.ended("displaced");
        let text = metrics.text();
        for (metric, _, label) in REFUSALS {
            assert!(series(&text, metric, label).count() > 0, "{metric}");
        }
    }
}
