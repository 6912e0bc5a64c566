//! The figures of one repetition: of each transfer (`ttfb_s`, `goodput_bps`, …) and of the repetition as a whole (`cpu_s_per_gb:PROCESS`, …).
//! Units are in the names.

use std::collections::BTreeMap;

use super::sample::{WholeTransfer, host_of, whole_transfers};
use crate::{
    experiments::{
        trial::{Drawn, Outcome, ProcessUse, Report, Trial},
        workload::{Kind, Plan},
    },
    results::analysis::statistics::quantile,
};

/// One figure of one repetition. A workload with several transfers gives several of the same name, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Which workload it belongs to; `None` is the repetition as a whole.
    pub workload: Option<String>,
    /// Which transfer of the workload; `None` is all of them.
    pub transfer: Option<u32>,
    /// `ttfb_s`, `goodput_bps`, `cpu_s_per_gb:relay1`, …
    pub name: String,
    /// Always finite.
    pub value: f64,
}

/// All figures of a repetition; `extra` is what analyses found (`ack_share`, …). None if it failed as a whole.
#[must_use]
pub fn metrics(trial: &Trial, report: &Report, extra: &[(String, f64)]) -> Vec<Metric> {
    if report.outcome != Outcome::Done {
        return Vec::new();
    }
    let wholes = whole_transfers(&report.transfers);
    let addresses = trial.topology.addresses();
    let mut found = Found::default();
    for whole in &wholes {
        let plan = trial
            .workloads
            .iter()
            .find(|plan| plan.name == whole.workload);
        found.transfer(whole, plan);
        let server = whole.server.and_then(|server| host_of(&addresses, server));
        found.served(whole, plan, server);
    }
    found.repetition(report, &wholes);
    for (name, value) in extra {
        found.add(None, name, Some(*value));
    }
    found.metrics
}

/// The times of a visit: what they are called here, and what its transfer calls them.
const VISIT: [(&str, &str); 4] = [
    ("page_load_s", "page_load_us"),
    ("dom_content_loaded_s", "dom_content_loaded_us"),
    ("first_contentful_paint_s", "first_contentful_paint_us"),
    ("tls_all_s", "tls_all_us"),
];

/// Collects, and leaves out what is not a number.
#[derive(Default)]
struct Found {
    metrics: Vec<Metric>,
}

impl Found {
    fn add(&mut self, of: Option<(&str, u32)>, name: &str, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.metrics.push(Metric {
                workload: of.map(|(workload, _)| workload.to_owned()),
                transfer: of.map(|(_, number)| number),
                name: name.to_owned(),
                value,
            });
        }
    }

    /// Times and rates of a transfer that succeeded; a failed one counts in `failed_share` only.
    fn transfer(&mut self, whole: &WholeTransfer, plan: Option<&Plan>) {
        if whole.failed {
            return;
        }
        let label = label(whole, plan);
        let mut add = |name: &str, value| self.add(Some((&label, whole.number)), name, value);
        let kind = plan.map(|plan| &plan.kind);
        if let Some(Kind::Browse(_)) = kind {
            add("ttfb_s", whole.first_byte.map(seconds));
            add("tls_s", whole.handshake.map(seconds));
            for (name, told) in VISIT {
                let told = whole.more.get(told);
                add(name, told.map(|micros| micros / 1e6));
            }
            add("requests", whole.more.get("requests").copied());
            return;
        }
        if !matches!(kind, Some(Kind::UdpEcho { .. } | Kind::UdpRate { .. })) {
            add("ttfb_s", whole.first_byte.map(seconds));
            add("tls_s", whole.handshake.map(seconds));
        }
        if !by_time(whole, kind) && !is_exchange(kind) {
            add("ttlb_s", whole.last_byte.map(seconds));
        }
        if !is_exchange(kind) {
            add("goodput_bps", goodput(whole, by_time(whole, kind)));
        }
        add("rtt_ms", quantile(&whole.round_trips, 0.5));
        add("rtt_p95_ms", quantile(&whole.round_trips, 0.95));
        add("loss_share", whole.lost());
        if !whole.more.contains_key("jitter_us") {
            add("jitter_ms", variation(&whole.round_trips));
        }
        for (name, value) in &whole.more {
            match name.strip_suffix("_us") {
                Some(stem) => add(&format!("{stem}_ms"), Some(value / 1e3)),
                None => add(name, Some(*value)),
            }
        }
    }

    /// Which of several servers it was: 1 for that one, 0 for each other, so that means are shares.
    fn served(&mut self, whole: &WholeTransfer, plan: Option<&Plan>, server: Option<&str>) {
        let several = plan.map_or(&[][..], |plan| plan.among.as_slice());
        let label = label(whole, plan);
        for host in several.iter().filter(|_| !whole.failed) {
            let chosen = f64::from(u8::from(server == Some(host.as_str())));
            let name = format!("served_share:{host}");
            self.add(Some((&label, whole.number)), &name, Some(chosen));
        }
    }

    fn repetition(&mut self, report: &Report, wholes: &[WholeTransfer]) {
        let bytes: u64 = wholes.iter().map(WholeTransfer::bytes).sum();
        if bytes > 0 {
            let gigabytes = bytes as f64 / 1e9;
            self.processors(&report.processes, gigabytes);
        }
        self.power(report);
        for (name, memory) in by_name(&report.processes, |process| process.peak_memory as f64) {
            self.add(None, &format!("peak_memory:{name}"), Some(memory));
        }
        self.add(None, "ready_s", Some(report.ready_after));
        if !wholes.is_empty() {
            let failed = wholes.iter().filter(|whole| whole.failed).count();
            self.add(
                None,
                "failed_share",
                Some(failed as f64 / wholes.len() as f64),
            );
        }
    }

    /// What the machine drew, of each counter and as a whole; and, for machines that have none, how many processors the subject kept busy.
    fn power(&mut self, report: &Report) {
        for Drawn { name, watts, .. } in &report.power {
            self.add(None, &format!("power_w:{name}"), Some(*watts));
        }
        self.add(None, "power_w", whole_power(&report.power));
        let own = report.processes.iter();
        let own = own.filter(|process| is_subject(&process.name));
        let seconds: Vec<f64> = own.map(|process| process.cpu_s).collect();
        if !seconds.is_empty() && report.worked > 0.0 {
            let busy = seconds.iter().sum::<f64>() / report.worked;
            self.add(None, "busy_cores", Some(busy));
        }
    }

    /// Seconds of processor time for each 10⁹ bytes of payload: of each process, and of all that belong to the subject.
    fn processors(&mut self, processes: &[ProcessUse], gigabytes: f64) {
        for (name, seconds) in by_name(processes, |process| process.cpu_s) {
            self.add(
                None,
                &format!("cpu_s_per_gb:{name}"),
                Some(seconds / gigabytes),
            );
        }
        let own = processes.iter().filter(|process| is_subject(&process.name));
        let seconds: f64 = own.clone().map(|process| process.cpu_s).sum();
        if own.count() > 0 {
            self.add(None, "cpu_s_per_gb", Some(seconds / gigabytes));
        }
    }
}

/// Of the whole machine, as nearly as its counters tell: its batteries, else the board, else its processors with their memory.
fn whole_power(counters: &[Drawn]) -> Option<f64> {
    let sum = |of: fn(&str) -> bool| {
        let watts = counters.iter().filter(|counter| of(&counter.name));
        watts
            .map(|counter| counter.watts)
            .reduce(|all, one| all + one)
    };
    sum(|name| name.starts_with("battery:"))
        .or_else(|| sum(|name| name == "psys"))
        .or_else(|| sum(|name| name.starts_with("package")))
}

/// Sums up processes of the same name.
fn by_name(processes: &[ProcessUse], value: impl Fn(&ProcessUse) -> f64) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for process in processes {
        *sums.entry(process.name.clone()).or_insert(0.0) += value(process);
    }
    sums
}

fn is_subject(process: &str) -> bool {
    !process.starts_with("work:") && !process.starts_with("serve:")
}

/// A schedule's transfers have different sizes: each size is a workload of its own, `NAME/BYTES`.
fn label(whole: &WholeTransfer, plan: Option<&Plan>) -> String {
    let name = plan
        .and_then(|plan| plan.counted_as.as_ref())
        .unwrap_or(&whole.workload);
    match plan.map(|plan| &plan.kind) {
        Some(Kind::Schedule { .. }) => {
            format!("{name}/{}", whole.asked[0].max(whole.asked[1]))
        }
        _ => name.clone(),
    }
}

/// Whether its end was the clock's choice, so that its length says nothing.
fn by_time(whole: &WholeTransfer, kind: Option<&Kind>) -> bool {
    match kind {
        Some(Kind::UdpRate { .. }) => true,
        Some(Kind::Download(bulk) | Kind::Upload(bulk)) => bulk.bytes == 0,
        _ => whole.asked == [0, 0],
    }
}

/// Whether it is made of small exchanges, whose number and pauses the scenario chose.
fn is_exchange(kind: Option<&Kind>) -> bool {
    matches!(kind, Some(Kind::Request { .. } | Kind::UdpEcho { .. }))
}

/// Payload over the time from the beginning, or over the payload's own time if the clock ended it.
fn goodput(whole: &WholeTransfer, by_time: bool) -> Option<f64> {
    let last = whole.last_byte?;
    let first = if by_time { whole.first_byte? } else { 0 };
    let time = seconds(last.checked_sub(first)?);
    (time > 0.0).then(|| whole.bytes() as f64 * 8.0 / time)
}

/// Mean difference of round trips that follow each other (RFC 3393's selection of consecutive packets).
fn variation(round_trips: &[f64]) -> Option<f64> {
    let differences = round_trips.windows(2).map(|pair| match pair {
        [one, next] => (next - one).abs(),
        _ => 0.0,
    });
    let sum: f64 = differences.sum();
    let count = round_trips
        .len()
        .checked_sub(1)
        .filter(|count| *count > 0)?;
    Some(sum / count as f64)
}

/// Microseconds in seconds.
pub(super) fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample::examples::{bulk, plan, process, report, request, transfer, trial};

    fn value(metrics: &[Metric], workload: Option<&str>, name: &str) -> Option<f64> {
        let same = |metric: &&Metric| metric.workload.as_deref() == workload && metric.name == name;
        metrics.iter().find(same).map(|metric| metric.value)
    }

    #[test]
    fn a_download_has_its_times_and_its_goodput_from_the_beginning() {
        let report = report(vec![transfer("get", 1, 1)]);
        let found = metrics(&trial(vec![bulk("get", 2_000_000)]), &report, &[]);
        assert_eq!(value(&found, Some("get"), "ttfb_s"), Some(0.1));
        assert_eq!(value(&found, Some("get"), "ttlb_s"), Some(2.0));
        assert_eq!(value(&found, Some("get"), "goodput_bps"), Some(8e6));
        assert_eq!(value(&found, None, "failed_share"), Some(0.0));
    }

    #[test]
    fn a_download_by_time_has_no_last_byte_and_its_goodput_over_the_payload() {
        let mut one = transfer("get", 1, 1);
        one.asked = [0, 0];
        let found = metrics(&trial(vec![bulk("get", 0)]), &report(vec![one]), &[]);
        assert_eq!(value(&found, Some("get"), "ttlb_s"), None);
        let goodput = value(&found, Some("get"), "goodput_bps").unwrap();
        assert!((goodput - 16e6 / 1.9).abs() < 1.0, "{goodput}");
    }

    #[test]
    fn connections_of_one_transfer_are_one_figure() {
        let mut second = transfer("get", 1, 2);
        second.began += 0.5;
        let report = report(vec![transfer("get", 1, 1), second]);
        let found = metrics(&trial(vec![bulk("get", 4_000_000)]), &report, &[]);
        assert_eq!(value(&found, Some("get"), "ttlb_s"), Some(2.5));
        assert_eq!(value(&found, Some("get"), "goodput_bps"), Some(32e6 / 2.5));
        let times = found.iter().filter(|metric| metric.name == "ttlb_s");
        assert_eq!(times.count(), 1);
    }

    #[test]
    fn a_sum_of_connections_is_not_counted_twice() {
        let mut sum = transfer("get", 1, 0);
        sum.moved = [0, 4_000_000];
        let mut report = report(vec![transfer("get", 1, 1), transfer("get", 1, 2), sum]);
        report.processes = vec![process("relay1", 0.4), process("work:get", 1.0)];
        let found = metrics(&trial(vec![bulk("get", 4_000_000)]), &report, &[]);
        assert_eq!(value(&found, None, "cpu_s_per_gb:relay1"), Some(100.0));
        assert_eq!(value(&found, None, "cpu_s_per_gb"), Some(100.0));
        assert_eq!(value(&found, None, "cpu_s_per_gb:work:get"), Some(250.0));
    }

    #[test]
    fn a_machine_is_what_its_batteries_its_board_or_its_processors_draw() {
        let drawn = |names: &[&str]| {
            let mut report = report(vec![transfer("get", 1, 1)]);
            report.power = (1_u8..)
                .zip(names)
                .map(|(watts, name)| Drawn {
                    name: (*name).into(),
                    watts: watts.into(),
                    readings: 100,
                })
                .collect();
            metrics(&trial(vec![bulk("get", 2_000_000)]), &report, &[])
        };
        let processors = ["package-0", "package-0/dram", "package-1"];
        let found = drawn(&processors);
        assert_eq!(value(&found, None, "power_w"), Some(6.0));
        assert_eq!(value(&found, None, "power_w:package-0/dram"), Some(2.0));
        assert_eq!(
            value(&drawn(&["package-0", "psys"]), None, "power_w"),
            Some(2.0)
        );
        let all = ["battery:BAT0", "battery:BAT1", "package-0", "psys"];
        assert_eq!(value(&drawn(&all), None, "power_w"), Some(3.0));
        assert_eq!(value(&drawn(&[]), None, "power_w"), None);
    }

    #[test]
    fn a_subject_keeps_processors_busy_and_workloads_do_not_count() {
        let mut report = report(vec![transfer("get", 1, 1)]);
        report.processes = vec![
            process("client", 1.5),
            process("relay1", 1.0),
            process("work:get", 9.0),
        ];
        let plans = trial(vec![bulk("get", 2_000_000)]);
        let busy = |report: &Report| value(&metrics(&plans, report, &[]), None, "busy_cores");
        assert_eq!(busy(&report), Some(1.25));
        report.processes.remove(0);
        report.processes.remove(0);
        assert_eq!(busy(&report), None, "a subject without processes");
    }

    #[test]
    fn a_failed_transfer_counts_as_failed_and_nothing_else() {
        let mut broken = transfer("get", 2, 1);
        broken.error = Some(crate::experiments::workload::TransferError {
            kind: "READ".into(),
            why: "reset".into(),
        });
        let report = report(vec![transfer("get", 1, 1), broken]);
        let found = metrics(&trial(vec![bulk("get", 2_000_000)]), &report, &[]);
        assert_eq!(value(&found, None, "failed_share"), Some(0.5));
        let times = found.iter().filter(|metric| metric.name == "ttfb_s");
        assert_eq!(times.count(), 1);
    }

    #[test]
    fn workloads_that_are_counted_as_one_have_figures_of_one() {
        let plans = ["get1", "get2"].map(|name| Plan {
            counted_as: Some("get".into()),
            ..bulk(name, 2_000_000)
        });
        let report = report(vec![transfer("get1", 1, 1), transfer("get2", 1, 1)]);
        let found = metrics(&trial(plans.to_vec()), &report, &[]);
        let of = |workload: &str| {
            let same = |metric: &&Metric| {
                metric.name == "ttfb_s" && metric.workload.as_deref() == Some(workload)
            };
            found.iter().filter(same).count()
        };
        assert_eq!([of("get"), of("get1"), of("get2")], [2, 0, 0]);
    }

    #[test]
    fn of_several_servers_each_has_its_share_of_the_transfers() {
        let among = vec!["server".into(), "relay1".into()];
        let plan = Plan {
            among,
            ..bulk("get", 2_000_000)
        };
        let mut far = transfer("get", 2, 1);
        far.server = Some([10, 77, 0, 3].into());
        let report = report(vec![transfer("get", 1, 1), far]);
        let found = metrics(&trial(vec![plan]), &report, &[]);
        let shares = |host: &str| {
            let name = format!("served_share:{host}");
            let of = found.iter().filter(|metric| metric.name == name);
            of.map(|metric| metric.value).collect::<Vec<_>>()
        };
        assert_eq!(
            (shares("server"), shares("relay1")),
            (vec![1.0, 0.0], vec![0.0, 1.0])
        );
        let alone = metrics(&trial(vec![bulk("get", 2_000_000)]), &report, &[]);
        let told = |metric: &Metric| metric.name.starts_with("served_share");
        assert!(!alone.iter().any(told), "there was no choice");
    }

    #[test]
    fn requests_have_round_trips_and_no_goodput() {
        let mut one = transfer("ask", 1, 1);
        one.round_trips = vec![20_000, 30_000, 22_000];
        let found = metrics(&trial(vec![request("ask")]), &report(vec![one]), &[]);
        assert_eq!(value(&found, Some("ask"), "rtt_ms"), Some(22.0));
        assert_eq!(value(&found, Some("ask"), "jitter_ms"), Some(9.0));
        assert_eq!(value(&found, Some("ask"), "goodput_bps"), None);
    }

    #[test]
    fn a_visit_has_the_times_of_its_page_and_neither_goodput_nor_last_byte() {
        let kind = serde_json::json!({
            "kind": "browse", "browser": "firefox", "pages": 1, "visits": 1, "seed": 1,
            "settle": { "secs": 1, "nanos": 0 }, "resolver": "server",
        });
        let plan = plan("browse", serde_json::from_value(kind).unwrap());
        let mut one = transfer("browse", 1, 1);
        one.phases.tls = Some(50_000);
        one.more = [
            ("page_load_us", 900_000.0),
            ("page", 7.0),
            ("requests", 74.0),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let found = metrics(&trial(vec![plan]), &report(vec![one]), &[]);
        let names = found.iter().filter(|metric| metric.workload.is_some());
        let names: Vec<_> = names.map(|metric| metric.name.as_str()).collect();
        assert_eq!(names, ["ttfb_s", "tls_s", "page_load_s", "requests"]);
        assert_eq!(value(&found, Some("browse"), "page_load_s"), Some(0.9));
        assert_eq!(value(&found, Some("browse"), "tls_s"), Some(0.03));
    }

    #[test]
    fn a_failed_attempt_has_no_figures_and_nothing_infinite_is_kept() {
        let mut failed = report(vec![transfer("get", 1, 1)]);
        let trial = trial(vec![bulk("get", 1)]);
        let extra = [("ack_share".to_owned(), f64::INFINITY)];
        assert!(
            !metrics(&trial, &failed, &extra)
                .iter()
                .any(|metric| metric.name == "ack_share")
        );
        failed.outcome = Outcome::Failed {
            doing: "waiting".into(),
            why: "silence".into(),
            log: String::new(),
        };
        assert_eq!(metrics(&trial, &failed, &extra), []);
    }
}
