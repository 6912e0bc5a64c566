//! How long each repetition is expected to take, so that shards come out even: as an earlier campaign measured it, or as the scenario says
//! itself. Whoever asks with the same scenario and the same measurements gets the same answer, on any machine.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::Path,
    time::Duration,
};

use super::{Lock, estimate, plan::wrong, progress::Estimate};
use crate::{
    emulator::distance::Distances,
    errors::Failure,
    experiments::{
        scenario::{Resolved, Scenario},
        trial::Key,
        workload::{Bulk, Kind, Plan},
    },
    results::store::Store,
    topology::{Direction, Link, Topology},
};

/// Seconds that a repetition takes beside its workloads: namespaces, the subject's start and end.
const AROUND: f64 = 2.0;

/// Bits per second of a path that nothing limits.
const UNLIMITED: f64 = 1e9;

/// Bytes of one delivery opportunity of a trace.
const OPPORTUNITY: f64 = 1500.0;

/// Expected times.
#[derive(Clone, Debug)]
pub(crate) enum Times {
    /// As an earlier campaign measured them.
    Measured(Box<Estimate>),
    /// Seconds for each case in each turn of the rotation, as the scenario says: the same for all subjects.
    Told(BTreeMap<BTreeMap<String, String>, Vec<f64>>),
}

impl Times {
    /// What is known; `measured` is the directory of an earlier campaign of the scenario.
    pub(crate) fn known(scenario: &Scenario, measured: Option<&Path>) -> Result<Self, Failure> {
        match measured {
            Some(directory) => Self::measured(&scenario.name, directory),
            None => Self::told(scenario),
        }
    }

    fn told(scenario: &Scenario) -> Result<Self, Failure> {
        let mut told = BTreeMap::new();
        for case in scenario.resolved() {
            let (values, turns) = case?;
            let turns = turns.iter().map(|turn| AROUND + seconds(turn));
            told.insert(values.clone(), turns.collect());
        }
        Ok(Self::Told(told))
    }

    fn measured(scenario: &str, directory: &Path) -> Result<Self, Failure> {
        let refused = |why: String| {
            let doing = format!("reading --times {}", directory.display());
            let remedy = "name the directory of a campaign of this scenario that is over, the same for all shards";
            Err(wrong(doing, why, remedy))
        };
        // One that goes on would tell each shard something else.
        let _lock = Lock::share(directory)?;
        let store = Store::read(directory)?;
        match store.campaign()? {
            Some(campaign) if campaign.scenario != scenario => {
                return refused(format!("its results are of {}", campaign.scenario));
            }
            _ if store.runs()?.is_empty() => {
                return refused("no repetition is over there".to_owned());
            }
            _ => {}
        }
        Ok(Self::Measured(Box::new(estimate(&store)?)))
    }

    /// Seconds for a repetition.
    pub(crate) fn of(&self, key: &Key) -> f64 {
        match self {
            Self::Measured(estimate) => estimate.one(key),
            Self::Told(told) => {
                let turns = told.get(&key.case).map_or(&[][..], Vec::as_slice);
                let number = usize::try_from(key.repetition.saturating_sub(1)).unwrap_or(0);
                turns.iter().cycle().nth(number).copied().unwrap_or(AROUND)
            }
        }
    }
}

/// What the workloads of a case take, if nothing is lost: groups one after the other, those of a group together.
fn seconds(case: &Resolved) -> f64 {
    let mut groups = BTreeMap::<&str, f64>::new();
    for plan in &case.workloads {
        let end = plan.at.as_secs_f64() + duration(plan, &case.topology);
        let group = groups.entry(&plan.group).or_default();
        *group = group.max(end);
    }
    let all = groups.values().fold(0.0, |all, group| all + group);
    all.min(case.timeout.as_secs_f64())
}

fn duration(plan: &Plan, topology: &Topology) -> f64 {
    let way = Way::between(topology, &plan.from, &server(plan, topology));
    match &plan.kind {
        Kind::Download(bulk) => bulk_seconds(bulk, way.down, way.round_trip),
        Kind::Upload(bulk) => bulk_seconds(bulk, way.up, way.round_trip),
        Kind::Request {
            request,
            response,
            count,
            pause,
        } => {
            let moved = passes(*request, way.up) + passes(*response, way.down);
            f64::from(*count) * (way.round_trip + moved + pause.as_secs_f64())
        }
        Kind::UdpEcho {
            count, interval, ..
        } => f64::from(*count) * interval.as_secs_f64() + way.round_trip,
        Kind::UdpRate { time, .. } => time.as_secs_f64() + way.round_trip,
        Kind::Schedule { choices, count } => {
            let weights: f64 = choices.iter().map(|choice| choice.weight).sum();
            let one = choices.iter().map(|choice| {
                let moved = passes(choice.sendsize, way.up) + passes(choice.recvsize, way.down);
                choice.weight * (2.0 * way.round_trip + moved + choice.pause.as_secs_f64())
            });
            f64::from(*count) * one.sum::<f64>() / weights.max(f64::MIN_POSITIVE)
        }
        // The browser's start and the reading of a page take longer than its way.
        Kind::Browse(browse) => {
            f64::from(browse.count()) * (browse.settle.as_secs_f64() + 10.0 * way.round_trip)
        }
        Kind::Http {
            bytes,
            count,
            parallel,
            upload,
            ..
        } => {
            let rate = if *upload { way.up } else { way.down };
            let turns = f64::from(count.div_ceil(u32::from(*parallel).max(1)));
            2.0 * way.round_trip + turns * way.round_trip + f64::from(*count) * passes(*bytes, rate)
        }
    }
}

/// The one of several servers that is nearest to the client itself.
fn server(plan: &Plan, topology: &Topology) -> String {
    let nearest = || {
        let distances = Distances::of(topology).ok()?;
        let nearest = distances.nearest(&plan.from, &plan.among)?;
        Some(nearest.to_owned())
    };
    let nearest = if plan.among.is_empty() {
        None
    } else {
        nearest()
    };
    nearest.unwrap_or_else(|| plan.to.clone())
}

fn bulk_seconds(bulk: &Bulk, rate: f64, round_trip: f64) -> f64 {
    let one = match bulk.bytes {
        0 => bulk.time.as_secs_f64(),
        bytes => passes(bytes, rate),
    };
    f64::from(bulk.count) * (2.0 * round_trip + one + bulk.pause.as_secs_f64())
}

/// Seconds that a rate needs for so many bytes.
fn passes(bytes: u64, rate: f64) -> f64 {
    bytes as f64 * 8.0 / rate.max(1.0)
}

/// The shortest path between two hosts, as packets without a subject go.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    /// Bits per second from the first host to the second.
    up: f64,
    /// And back.
    down: f64,
    /// Seconds.
    round_trip: f64,
}

impl Way {
    fn between(topology: &Topology, from: &str, to: &str) -> Self {
        let mut reached = BTreeSet::from([from]);
        let direct = Self {
            up: UNLIMITED,
            down: UNLIMITED,
            round_trip: 0.0,
        };
        let mut open = VecDeque::from([(from, direct)]);
        while let Some((here, way)) = open.pop_front() {
            if here == to {
                return way;
            }
            for link in &topology.links {
                if let Some((there, [away, home])) = over(link, here)
                    && reached.insert(there)
                {
                    open.push_back((there, way.then(away, home)));
                }
            }
        }
        direct
    }

    fn then(self, away: &Direction, home: &Direction) -> Self {
        let delay = |direction: &Direction| direction.delay.as_secs_f64();
        Self {
            up: self.up.min(rate(away)),
            down: self.down.min(rate(home)),
            round_trip: self.round_trip + delay(away) + delay(home),
        }
    }
}

/// Where a link leads to from one of its ends, and what happens to packets that go there and that come from there.
fn over<'a>(link: &'a Link, here: &str) -> Option<(&'a str, [&'a Direction; 2])> {
    let [one, other] = &link.ends;
    if here == one {
        Some((other.as_str(), [&link.forward, &link.back]))
    } else if here == other {
        Some((one.as_str(), [&link.back, &link.forward]))
    } else {
        None
    }
}

fn rate(direction: &Direction) -> f64 {
    if let Some(rate) = direction.rate {
        return rate as f64;
    }
    let Some((trace, last)) = direction.trace.as_ref().and_then(|t| Some((t, t.last()?))) else {
        return UNLIMITED;
    };
    let length = Duration::from_millis(*last).as_secs_f64();
    trace.len() as f64 * OPPORTUNITY * 8.0 / length.max(1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::scenario;

    const NETWORK: &str = r#"
        name = "long"
        timeout = "100s"
        host = [{ name = "client" }, { name = "server" }, { name = "other" }]
        router = [{ name = "core" }]
        link = [
          { ends = ["client", "core"], rate = "{rate}", delay = "10ms" },
          { ends = ["core", "server"], rate = "100Mbit", delay = "40ms" },
          { ends = ["core", "other"], rate = "1kbit" },
        ]
        subject = [{ use = "native" }]
        matrix.rate = ["1Mbit", "8Mbit", "10kbit"]
    "#;

    fn expected(workloads: &str, rate: &str) -> f64 {
        let scenario = scenario::parse("long.toml", &format!("{NETWORK}\n{workloads}")).unwrap();
        let times = Times::known(&scenario, None).unwrap();
        let key = |key: &Key| key.case["rate"] == rate;
        let key = scenario.keys().into_iter().find(key).unwrap();
        times.of(&key) - AROUND
    }

    #[test]
    fn a_download_takes_as_long_as_the_narrowest_link_of_its_way_needs() {
        let one =
            r#"workload = [{ kind = "download", bytes = "1MB", from = "client", to = "server" }]"#;
        assert!((expected(one, "1Mbit") - 8.2).abs() < 1e-6);
        assert!((expected(one, "8Mbit") - 1.2).abs() < 1e-6);
        assert_eq!(expected(one, "10kbit"), 100.0, "no longer than its timeout");
    }

    #[test]
    fn what_ends_by_the_clock_takes_its_time() {
        let timed =
            r#"workload = [{ kind = "download", time = "7s", from = "client", to = "server" }]"#;
        for rate in ["1Mbit", "8Mbit"] {
            assert!((expected(timed, rate) - 7.2).abs() < 1e-6);
        }
        let echo = r#"workload = [{ kind = "udp-echo", count = 50, interval = "100ms", from = "client", to = "server" }]"#;
        assert!((expected(echo, "1Mbit") - 5.1).abs() < 1e-6);
    }

    #[test]
    fn a_transfer_that_chooses_its_server_takes_as_long_as_from_the_nearest() {
        let several = r#"workload = [{ kind = "download", bytes = "1MB", from = "client", to = ["server", "other"] }]"#;
        // `other` is nearer, and narrower than the timeout allows.
        assert_eq!(expected(several, "8Mbit"), 100.0);
    }

    #[test]
    fn each_turn_of_a_rotation_has_a_time_of_its_own() {
        let turning = r#"
            rotation.time = ["3s", "7s"]
            workload = [{ kind = "download", time = "{time}", from = "client", to = "server" }]
        "#;
        let scenario = scenario::parse("long.toml", &format!("{NETWORK}\n{turning}")).unwrap();
        let times = Times::known(&scenario, None).unwrap();
        let mut keys = scenario.keys();
        keys.sort_by_key(|key| key.repetition);
        let round = keys.chunks(3).map(|round| times.of(&round[0]) - AROUND);
        let all: Vec<f64> = round
            .map(|seconds| (seconds * 10.0).round() / 10.0)
            .collect();
        assert_eq!(all[..4], [3.2, 7.2, 3.2, 7.2]);
    }

    #[test]
    fn a_trace_gives_what_its_opportunities_carry() {
        let direction = Direction {
            trace: Some((1..=1000).collect()),
            ..Direction::default()
        };
        assert_eq!(rate(&direction), 12e6);
        assert_eq!(rate(&Direction::default()), UNLIMITED);
    }
}
