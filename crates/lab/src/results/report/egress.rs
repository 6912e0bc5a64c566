//! Figures by egress (paper 000, Figure 4): where the transfers of a subject left by several hosts, each key metric of theirs is there for each of
//! these hosts, too, as `METRIC:EGRESS`.

use std::collections::{BTreeMap, BTreeSet};

use super::metric::meaning;
use crate::results::{Metric, Sample, store::Run};

/// A subject that leaves by more hosts than that is not told apart by them: circuits that choose among many exits.
const MOST: usize = 4;

/// By which hosts transfers left.
#[derive(Debug, Default)]
pub(super) struct Egresses {
    /// By run, workload and number; of who hid behind no other host nothing.
    transfers: BTreeMap<(String, String, u32), String>,
    /// All of a subject with a workload.
    hosts: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Egresses {
    /// A sample was read.
    pub(super) fn note(&mut self, sample: &Sample) {
        let (egress, transfer) = (&sample.egress, &sample.transfer);
        if egress.is_empty() || *egress == sample.client {
            return;
        }
        let workload = transfer.workload.clone();
        let hosts = (sample.key.subject.clone(), workload.clone());
        let hosts = self.hosts.entry(hosts).or_default();
        hosts.insert(egress.clone());
        let place = (sample.run.clone(), workload, transfer.number);
        self.transfers
            .entry(place)
            .or_insert_with(|| egress.clone());
    }

    /// Whether there is anything to tell apart.
    pub(super) fn differ(&self) -> bool {
        self.hosts.values().any(is_told_apart)
    }

    /// The figures by egress, beside those that they are of. Workloads that are counted as one have none: their transfers cannot be told by number.
    pub(super) fn parts(
        &self,
        metrics: &[(String, Metric)],
        runs: &[Run],
    ) -> Vec<(String, Metric)> {
        let subjects: BTreeMap<&str, &str> = runs
            .iter()
            .map(|run| (run.id.as_str(), run.key.subject.as_str()))
            .collect();
        let part = |(run, metric): &(String, Metric)| {
            let (workload, number) = (metric.workload.as_ref()?, metric.transfer?);
            // A schedule's figures have the size behind the name.
            let stem = workload
                .split_once('/')
                .map_or(workload.as_str(), |(stem, _)| stem);
            let subject = (*subjects.get(run.as_str())?).to_owned();
            let hosts = self.hosts.get(&(subject, stem.to_owned()))?;
            if !is_told_apart(hosts) || !meaning(&metric.name).key {
                return None;
            }
            let place = (run.clone(), stem.to_owned(), number);
            let egress = self.transfers.get(&place)?;
            let name = format!("{}:{egress}", metric.name);
            Some((
                run.clone(),
                Metric {
                    name,
                    ..metric.clone()
                },
            ))
        };
        metrics.iter().filter_map(part).collect()
    }
}

fn is_told_apart(hosts: &BTreeSet<String>) -> bool {
    (2..=MOST).contains(&hosts.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample::{
        examples::{bulk, report, transfer, trial},
        samples,
    };

    /// One transfer, seen from each of these addresses.
    fn seen_from(addresses: &[u8]) -> Egresses {
        let transfers = (1..).zip(addresses).map(|(number, last)| {
            let mut one = transfer("get", number, 1);
            one.seen_as = Some([10, 77, 0, *last].into());
            one
        });
        let mut trial = trial(vec![bulk("get", 1)]);
        let more = (3..8).map(|i| crate::topology::Node::host(&format!("relay{i}")));
        trial.topology.nodes.extend(more);
        let mut egresses = Egresses::default();
        let all = samples(&trial, &report(transfers.collect()));
        all.iter().for_each(|sample| egresses.note(sample));
        egresses
    }

    #[test]
    fn who_leaves_by_one_host_or_by_many_or_by_none_is_not_told_apart() {
        // 1 is the client itself, 3 and so on are relays.
        for (addresses, differ) in [
            (&[3, 3][..], false),
            (&[1, 3], false),
            (&[3, 4], true),
            (&[1, 3, 4, 5, 6], true),
            (&[3, 4, 5, 6, 7], false),
        ] {
            assert_eq!(seen_from(addresses).differ(), differ, "{addresses:?}");
        }
    }

    #[test]
    fn each_key_figure_of_a_transfer_is_there_by_its_egress() {
        let egresses = seen_from(&[3, 4]);
        let key = trial(Vec::new()).key;
        let run = Run {
            id: key.id(),
            key,
            place: 1,
            seed: 1,
            verdict: crate::results::store::Verdict::Ok,
            attempt: 1,
        };
        let metric = |workload: &str, transfer: Option<u32>, name: &str| {
            let workload = (!workload.is_empty()).then(|| workload.to_owned());
            let (name, value) = (name.to_owned(), 1.0);
            (
                run.id.clone(),
                Metric {
                    workload,
                    transfer,
                    name,
                    value,
                },
            )
        };
        let metrics = [
            metric("get", Some(1), "goodput_bps"),
            metric("get", Some(2), "goodput_bps"),
            metric("get/50000", Some(2), "ttlb_s"),
            metric("get", Some(2), "choice"),
            metric("other", Some(2), "goodput_bps"),
            metric("", None, "failed_share"),
        ];
        let parts = egresses.parts(&metrics, std::slice::from_ref(&run));
        let names: Vec<_> = parts
            .iter()
            .map(|(_, metric)| metric.name.as_str())
            .collect();
        assert_eq!(
            names,
            ["goodput_bps:relay1", "goodput_bps:relay2", "ttlb_s:relay2"]
        );
    }
}
