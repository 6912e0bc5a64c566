//! A sample: one connection of one transfer, with the run that it belongs to; and the whole of a transfer over its connections.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{
    experiments::{
        trial::{Key, Report, Trial},
        workload::{Kind, Transfer},
    },
    topology::Addresses,
};

/// One connection of one transfer and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The run's short name, `Key::id`.
    pub run: String,
    /// The run.
    pub key: Key,
    /// The run's seed.
    pub seed: u64,
    /// The host that asked.
    pub client: String,
    /// The host that served: of several the one that was chosen.
    pub target: String,
    /// The kind of workload, `download`, `udp-echo`, …; empty if the scenario does not have it any more.
    pub kind: String,
    /// The host whose address the server saw: the subject's last relay, or the client itself. Empty if it is none of the network's.
    pub egress: String,
    /// What its client saw.
    pub transfer: Transfer,
}

/// The samples of a repetition, in the order in which they ended.
#[must_use]
pub fn samples(trial: &Trial, report: &Report) -> Vec<Sample> {
    let run = trial.key.id();
    let addresses = trial.topology.addresses();
    let host = |address: Option<IpAddr>| host_of(&addresses, address?).map(str::to_owned);
    let sample = |transfer: &Transfer| {
        let plan = trial
            .workloads
            .iter()
            .find(|plan| plan.name == transfer.workload);
        Sample {
            run: run.clone(),
            key: trial.key.clone(),
            seed: trial.seed,
            client: plan.map(|plan| plan.from.clone()).unwrap_or_default(),
            target: plan
                .map(|plan| host(transfer.server).unwrap_or_else(|| plan.to.clone()))
                .unwrap_or_default(),
            kind: plan
                .map(|plan| name(&plan.kind).to_owned())
                .unwrap_or_default(),
            egress: host(transfer.seen_as).unwrap_or_default(),
            transfer: transfer.clone(),
        }
    };
    report.transfers.iter().map(sample).collect()
}

/// The host of the network that has an address.
pub(super) fn host_of(addresses: &BTreeMap<String, Addresses>, address: IpAddr) -> Option<&str> {
    let address = address.to_canonical();
    let mut hosts = addresses.iter();
    let found = hosts.find(|(_, of)| address == of.v4 || address == of.v6);
    found.map(|(host, _)| host.as_str())
}

/// The word for a kind of workload in scenario files.
#[must_use]
pub fn name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Download(_) => "download",
        Kind::Upload(_) => "upload",
        Kind::Request { .. } => "request",
        Kind::UdpEcho { .. } => "udp-echo",
        Kind::UdpRate { .. } => "udp-rate",
        Kind::Schedule { .. } => "schedule",
        Kind::Http { .. } => "http",
        Kind::Browse(_) => "browse",
    }
}

/// A transfer over all of its connections. Times are microseconds from the first connection's beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeTransfer {
    /// The workload.
    pub workload: String,
    /// Its number within the workload, from 1.
    pub number: u32,
    /// Whether any connection failed.
    pub failed: bool,
    /// The address of its server, if it was given one.
    pub server: Option<IpAddr>,
    /// Bytes asked for: to the server and from it.
    pub asked: [u64; 2],
    /// Bytes of payload moved.
    pub moved: [u64; 2],
    /// The first byte of payload on any connection.
    pub first_byte: Option<u64>,
    /// The last one.
    pub last_byte: Option<u64>,
    /// What TLS with the target took, on the first connection that has it.
    pub handshake: Option<u64>,
    /// Round trips in milliseconds.
    pub round_trips: Vec<f64>,
    /// Datagrams sent and received.
    pub datagrams: [u64; 2],
    /// Further figures: those of the sum of all connections, and averages of those that only connections tell.
    pub more: BTreeMap<String, f64>,
}

impl WholeTransfer {
    /// Payload in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let [sent, received] = self.moved;
        sent.saturating_add(received)
    }

    /// The share of datagrams that did not arrive, if there were any.
    #[must_use]
    pub fn lost(&self) -> Option<f64> {
        let [sent, received] = self.datagrams;
        let lost = sent.saturating_sub(received);
        (sent > 0).then(|| lost as f64 / sent as f64)
    }
}

/// Puts the connections of each transfer together, in the order of the first one. A connection 0 already is the sum of the others.
#[must_use]
pub fn whole_transfers(transfers: &[Transfer]) -> Vec<WholeTransfer> {
    let mut order: Vec<(&str, u32)> = Vec::new();
    let mut groups: BTreeMap<(&str, u32), Vec<&Transfer>> = BTreeMap::new();
    for transfer in transfers {
        let name = (transfer.workload.as_str(), transfer.number);
        let group = groups.entry(name).or_default();
        if group.is_empty() {
            order.push(name);
        }
        group.push(transfer);
    }
    let mut whole = |name| groups.remove(&name).and_then(|group| join(&group));
    order.into_iter().filter_map(&mut whole).collect()
}

fn join(group: &[&Transfer]) -> Option<WholeTransfer> {
    let failed = group.iter().any(|transfer| transfer.error.is_some());
    let sum = group.iter().filter(|transfer| transfer.connection == 0);
    let sum: Vec<&Transfer> = sum.copied().collect();
    let parts = if sum.is_empty() { group } else { &sum };
    let began = parts.iter().map(|part| part.began).reduce(f64::min)?;
    let last = |part: &&Transfer| part.phases.last_byte.map(|at| later(part, began, at));
    // The whole has ended when every connection has.
    let last: Option<Vec<u64>> = parts.iter().map(last).collect();
    let first = parts
        .iter()
        .filter_map(|part| part.phases.first_byte.map(|at| later(part, began, at)));
    Some(WholeTransfer {
        workload: parts.first()?.workload.clone(),
        number: parts.first()?.number,
        failed,
        server: parts.first()?.server,
        asked: total(parts, |part| part.asked),
        moved: total(parts, |part| part.moved),
        first_byte: first.min(),
        last_byte: last.and_then(|all| all.into_iter().max()),
        handshake: group.iter().find_map(|part| handshake(part)),
        round_trips: round_trips(parts),
        datagrams: total(parts, |part| part.datagrams),
        more: figures(group, parts),
    })
}

/// A time of a part, from the beginning of the whole.
fn later(part: &Transfer, began: f64, at: u64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float is cut to the range of the integer: not negative here, and small"
    )]
    let shift = ((part.began - began) * 1e6).round() as u64;
    at.saturating_add(shift)
}

fn total(parts: &[&Transfer], pair: impl Fn(&Transfer) -> [u64; 2]) -> [u64; 2] {
    let add = |[one, two]: [u64; 2], part: &&Transfer| {
        let [more, most] = pair(part);
        [one.saturating_add(more), two.saturating_add(most)]
    };
    parts.iter().fold([0, 0], add)
}

/// From the answer of the proxy, or from the connection where there is no proxy.
fn handshake(part: &Transfer) -> Option<u64> {
    let before = part.phases.proxy_response.or(part.phases.connect)?;
    part.phases.tls?.checked_sub(before)
}

fn round_trips(parts: &[&Transfer]) -> Vec<f64> {
    let all = parts.iter().flat_map(|part| &part.round_trips);
    all.map(|micros| f64::from(*micros) / 1e3).collect()
}

/// Further figures: what the sum of the connections tells, and the average over the connections of what it does not.
fn figures(group: &[&Transfer], parts: &[&Transfer]) -> BTreeMap<String, f64> {
    let mut figures = averages(group);
    figures.extend(averages(parts));
    figures
}

fn averages(parts: &[&Transfer]) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (name, value) in parts.iter().flat_map(|part| &part.more) {
        let sum = sums.entry(name.clone()).or_default();
        *sum = (sum.0 + value, sum.1 + 1.0);
    }
    let average = |(name, (sum, count)): (String, (f64, f64))| (name, sum / count);
    sums.into_iter().map(average).collect()
}

#[cfg(test)]
mod tests {
    use super::{examples::transfer, *};

    fn with(connection: u16, figures: &[(&str, f64)]) -> Transfer {
        let figures = figures.iter().map(|(name, value)| ((*name).into(), *value));
        Transfer {
            more: figures.collect(),
            ..transfer("get", 1, connection)
        }
    }

    #[test]
    fn a_sample_is_labelled_with_the_host_whose_address_the_server_saw() {
        let trial = examples::trial(vec![examples::bulk("get", 1)]);
        let seen = |address: Option<&str>| Transfer {
            seen_as: address.map(|address| address.parse().unwrap()),
            ..transfer("get", 1, 1)
        };
        let all = [
            seen(Some("10.77.0.3")),
            seen(Some("fd77::1")),
            seen(Some("192.0.2.1")),
            seen(None),
        ];
        let samples = samples(&trial, &examples::report(all.into()));
        let egresses: Vec<_> = samples.iter().map(|one| one.egress.as_str()).collect();
        assert_eq!(egresses, ["relay1", "client", "", ""]);
    }

    #[test]
    fn the_server_of_a_sample_is_the_one_that_was_chosen() {
        let plan = crate::experiments::workload::Plan {
            among: vec!["server".into(), "relay1".into()],
            ..examples::bulk("get", 1)
        };
        let served = |address: Option<[u8; 4]>| Transfer {
            server: address.map(Into::into),
            ..transfer("get", 1, 1)
        };
        let all = [Some([10, 77, 0, 3]), Some([10, 77, 0, 2]), None].map(served);
        let samples = samples(&examples::trial(vec![plan]), &examples::report(all.into()));
        let targets: Vec<_> = samples.iter().map(|one| one.target.as_str()).collect();
        assert_eq!(targets, ["relay1", "server", "server"]);
    }

    #[test]
    fn a_figure_that_several_connections_tell_is_averaged_also_beside_their_sum() {
        let parts = [
            with(1, &[("jitter_us", 10.0), ("lost", 4.0)]),
            with(2, &[("jitter_us", 20.0), ("lost", 4.0)]),
        ];
        let alone = whole_transfers(&parts);
        assert_eq!(alone[0].more["jitter_us"], 15.0);
        let summed = whole_transfers(&[&parts[..], &[with(0, &[("lost", 8.0)])]].concat());
        assert_eq!(
            summed[0].more["jitter_us"], 15.0,
            "no connection is left out"
        );
        assert_eq!(summed[0].more["lost"], 8.0, "the sum's own figure stands");
    }
}

/// Values that tests of results share.
#[cfg(test)]
pub(crate) mod examples {
    use std::{path::PathBuf, time::Duration};

    use super::*;
    use crate::{
        experiments::{
            subject,
            trial::{EmulatorHealth, Keep, Outcome, ProcessUse},
            workload::{Bulk, Phases, Plan},
        },
        topology::{Node, Topology},
    };

    pub(crate) fn plan(name: &str, kind: Kind) -> Plan {
        let text = serde_json::json!({
            "name": name, "group": "1", "at": {"secs": 0, "nanos": 0}, "from": "client", "to": "server",
            "direct": false, "kind": serde_json::to_value(kind).unwrap(),
        });
        serde_json::from_value(text).unwrap()
    }

    pub(crate) fn bulk(name: &str, bytes: u64) -> Plan {
        let bulk = Bulk {
            bytes,
            time: Duration::from_secs(2),
            connections: 1,
            count: 1,
            pause: Duration::ZERO,
        };
        plan(name, Kind::Download(bulk))
    }

    pub(crate) fn request(name: &str) -> Plan {
        let kind = Kind::Request {
            request: 100,
            response: 100,
            count: 3,
            pause: Duration::ZERO,
        };
        plan(name, kind)
    }

    pub(crate) fn trial(workloads: Vec<Plan>) -> Trial {
        Trial {
            key: Key {
                scenario: "example".into(),
                case: [("hops".to_owned(), "2".to_owned())].into(),
                subject: "native".into(),
                repetition: 1,
            },
            seed: 7,
            topology: Topology {
                nodes: ["client", "server", "relay1", "relay2"]
                    .map(Node::host)
                    .into(),
                links: Vec::new(),
            },
            subject: subject::Plan::default(),
            workloads,
            sysctls: BTreeMap::new(),
            record: Keep::default(),
            analyses: Vec::new(),
            shared: PathBuf::new(),
            timeout: Duration::from_secs(60),
            tolerated: Duration::from_micros(500),
            directory: PathBuf::new(),
        }
    }

    /// 2 MB within two seconds.
    pub(crate) fn transfer(workload: &str, number: u32, connection: u16) -> Transfer {
        Transfer {
            workload: workload.into(),
            number,
            connection,
            began: 1_800_000_000.25,
            server: Some([10, 77, 0, 2].into()),
            seen_as: Some([10, 77, 0, 1].into()),
            asked: [0, 2_000_000],
            moved: [0, 2_000_000],
            phases: Phases {
                socket: Some(10),
                connect: Some(20_000),
                command: Some(20_100),
                first_byte: Some(100_000),
                deciles: (1..10).map(|tenth| 100_000 + tenth * 190_000).collect(),
                partial: vec![(10_240, 110_000), (51_200, 150_000)],
                last_byte: Some(2_000_000),
                checksum: Some(2_000_100),
                ..Phases::default()
            },
            round_trips: Vec::new(),
            datagrams: [0, 0],
            error: None,
            more: BTreeMap::new(),
        }
    }

    pub(crate) fn process(name: &str, cpu_s: f64) -> ProcessUse {
        ProcessUse {
            name: name.into(),
            host: "relay1".into(),
            cpu_s,
            life_cpu_s: cpu_s,
            peak_memory: 1 << 20,
        }
    }

    pub(crate) fn report(transfers: Vec<Transfer>) -> Report {
        Report {
            outcome: Outcome::Done,
            transfers,
            processes: Vec::new(),
            links: Vec::new(),
            emulator: EmulatorHealth::default(),
            power: Vec::new(),
            worked: 2.0,
            began: 1_800_000_000.0,
            ready_after: 0.2,
            took: 3.0,
        }
    }
}
