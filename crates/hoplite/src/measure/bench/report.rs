//! What `bench` says: JSON lines for scripts (docs/command-line.md), a table for people.

use std::{collections::BTreeMap, fs, thread::available_parallelism};

use clap::ValueEnum;
use hoplite_workload::statistics::{quantile_of_sorted, sorted};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{measure::testbed::Over, say::Table};

/// The lines of one run.
#[derive(Debug)]
pub(super) struct Report {
    lines: Vec<CaseResult>,
}

/// One case.
#[derive(Debug)]
struct CaseResult {
    key: Key,
    repetitions: usize,
    goodput: Option<Spread>,
    /// Per process, in seconds per GB.
    cpu: Vec<(String, f64)>,
    /// The other numbers, by name.
    rest: Vec<(String, f64)>,
}

impl Report {
    /// Takes medians and adds the ratios.
    pub(super) fn new(samples: &Samples) -> Self {
        let mut lines: Vec<CaseResult> = samples
            .keys()
            .map(|key| CaseResult::new(samples, key))
            .collect();
        let raw = Key {
            case: Case::Raw,
            over: Over::Masque,
            hops: 0,
            streams: 1,
        };
        let base = samples
            .spread(
                Key {
                    case: Case::Ttfb,
                    ..raw
                },
                "ttfb_ms",
            )
            .map(|ttfb| ttfb.median);
        let raw_goodput = samples
            .spread(raw, "goodput_bps")
            .map(|goodput| goodput.median);
        let raw_cpu = lines
            .iter()
            .find(|line| line.key == raw)
            .map(|line| line.cpu_sum());
        for line in &mut lines {
            let tcp = Key {
                case: Case::Tcp,
                streams: line.key.streams,
                ..raw
            };
            let tcp = samples
                .spread(tcp, "goodput_bps")
                .map(|goodput| goodput.median);
            let goodput = line.goodput.map(|goodput| goodput.median);
            line.add_ratio("ratio_to_raw", goodput, raw_goodput);
            line.add_ratio("ratio_to_tcp", goodput, tcp);
            line.add_ratio("cpu_ratio_to_raw", line.dearest_relay(), raw_cpu);
            line.add_per_hop(base);
        }
        Self { lines }
    }

    /// One object per case.
    pub(super) fn lines(&self) -> Vec<Value> {
        self.lines.iter().map(CaseResult::json).collect()
    }

    /// Transfers, then what has other units.
    pub(super) fn table(&self) -> String {
        let mut table = Table::new(&[
            "case",
            "over",
            "hops",
            "streams",
            "Gbit/s",
            "MB/s",
            "kpkt/s",
            "x raw",
            "x tcp",
            "client s/GB",
            "relays s/GB",
            "sum s/GB",
            "relay cpu x raw",
        ]);
        let transfers = self.lines.iter().filter(|line| line.goodput.is_some());
        transfers.for_each(|line| table.row(line.cells()));
        let remarks = self.lines.iter().flat_map(CaseResult::remarks);
        std::iter::once(table.render())
            .chain(remarks)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl CaseResult {
    fn new(samples: &Samples, key: Key) -> Self {
        let (mut cpu, mut rest) = (Vec::new(), Vec::new());
        for name in samples.names(key) {
            let Some(spread) = samples.spread(key, &name) else {
                continue;
            };
            match name.strip_prefix("cpu:") {
                Some(process) => cpu.push((process.to_owned(), spread.median)),
                None if name == "goodput_bps" => {}
                None => rest.push((name, spread.median)),
            }
        }
        Self {
            key,
            repetitions: samples.count(key),
            goodput: samples.spread(key, "goodput_bps"),
            cpu,
            rest,
        }
    }

    fn cpu_sum(&self) -> f64 {
        self.cpu.iter().map(|(_, cost)| cost).sum()
    }

    fn relays(&self) -> impl Iterator<Item = f64> {
        self.cpu
            .iter()
            .filter(|(name, _)| name.starts_with("relay"))
            .map(|(_, cost)| *cost)
    }

    fn dearest_relay(&self) -> Option<f64> {
        self.relays().max_by(f64::total_cmp)
    }

    fn add_ratio(&mut self, name: &str, value: Option<f64>, to: Option<f64>) {
        if let (Some(value), Some(to)) = (value, to) {
            self.rest.push((name.to_owned(), value / to));
        }
    }

    fn add_per_hop(&mut self, base: Option<f64>) {
        let hops = f64::from(self.key.hops);
        if let (Some(ttfb), Some(base), true) = (self.number("ttfb_ms"), base, hops > 0.0) {
            self.rest
                .push(("added_ms_per_hop".into(), (ttfb - base) / hops));
        }
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.rest
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| *value)
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("case".into(), json!(self.key.case));
        object.insert("hops".into(), json!(self.key.hops));
        if let Some(channel) = self.key.over.channel() {
            object.insert("overlay".into(), json!(self.key.over.overlay()));
            object.insert("channel".into(), json!(channel));
        }
        object.insert("streams".into(), json!(self.key.streams));
        object.insert("n".into(), json!(self.repetitions));
        if self.key.case == Case::Raw {
            object.insert("machine".into(), json!(description()));
        }
        if let Some(goodput) = self.goodput {
            object.insert("goodput_bps".into(), json!(goodput.median.round()));
            object.insert("goodput_bps_low".into(), json!(goodput.low.round()));
            object.insert("goodput_bps_high".into(), json!(goodput.high.round()));
        }
        if !self.cpu.is_empty() {
            let cpu = self
                .cpu
                .iter()
                .map(|(name, cost)| (name.clone(), json!(rounded(*cost))));
            object.insert("cpu_s_per_gb".into(), Value::Object(cpu.collect()));
        }
        for (name, value) in &self.rest {
            object.insert(name.clone(), json!(rounded(*value)));
        }
        Value::Object(object)
    }

    fn cells(&self) -> Vec<String> {
        let ratio = |name| {
            self.number(name)
                .map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"))
        };
        let client = self
            .cpu
            .iter()
            .find(|(name, _)| name == "client")
            .map(|(_, cost)| *cost);
        let relays: Vec<String> = self.relays().map(|cost| format!("{cost:.2}")).collect();
        let packets = self
            .number("pps")
            .map_or_else(|| "-".into(), |pps| format!("{:.0}", pps / 1e3));
        vec![
            name_of(self.key.case),
            self.over(),
            self.key.hops.to_string(),
            self.key.streams.to_string(),
            self.goodput
                .map_or_else(String::new, |goodput| goodput.in_gbit(self.repetitions)),
            self.goodput.map_or_else(String::new, |goodput| {
                format!("{:.0}", goodput.median / 8e6)
            }),
            packets,
            ratio("ratio_to_raw"),
            ratio("ratio_to_tcp"),
            client.map_or_else(|| "-".into(), |cost| format!("{cost:.2}")),
            if relays.is_empty() {
                "-".into()
            } else {
                relays.join(" + ")
            },
            format!("{:.2}", self.cpu_sum()),
            ratio("cpu_ratio_to_raw"),
        ]
    }

    /// What carries it.
    fn over(&self) -> String {
        match (self.key.over, self.key.hops) {
            (Over::Masque, 0) => "-".into(),
            (Over::Masque, _) => "masque".into(),
            (Over::Onion(kind), _) => format!("circuit, {kind}"),
        }
    }

    fn remarks(&self) -> Vec<String> {
        let (hops, over) = (self.key.hops, self.over());
        let mut remarks = Vec::new();
        if let Some(ttfb) = self.number("ttfb_ms") {
            let added = self
                .number("added_ms_per_hop")
                .map_or_else(String::new, |added| {
                    format!(", {added:.2} ms added by each hop")
                });
            remarks.push(format!(
                "first byte on a warm path, {hops} hop(s), {over}: {ttfb:.2} ms{added}"
            ));
        }
        if let Some(rate) = self.number("pps_per_relay_cpu_s") {
            let lost = self.number("lost").unwrap_or_default() * 100.0;
            remarks.push(format!(
                "{}: {:.0} kpkt per second of the relay's CPU, {lost:.1} % lost",
                name_of(self.key.case),
                rate / 1e3
            ));
        }
        if let (Some(rest), Some(each)) = (
            self.number("relay_at_rest_bytes"),
            self.number("bytes_per_idle_client"),
        ) {
            remarks.push(format!(
                "memory of a relay, {over}: {:.1} MB at rest, {:.0} kB for each idle client",
                rest / 1e6,
                each / 1e3
            ));
        }
        remarks
    }
}

impl Spread {
    fn in_gbit(self, repetitions: usize) -> String {
        let gbit = |bps: f64| format!("{:.2}", bps / 1e9);
        match repetitions {
            1 => gbit(self.median),
            _ => format!(
                "{} ({}–{})",
                gbit(self.median),
                gbit(self.low),
                gbit(self.high)
            ),
        }
    }
}

/// Four digits behind the point are more than a measurement has.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn name_of(case: Case) -> String {
    json!(case).as_str().unwrap_or_default().to_owned()
}

// What was measured: named numbers per case, and their median over repetitions. The cases fill it, `report` shows it.

/// What is measured. The names stand in the JSON lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(crate) enum Case {
    /// AES-128-GCM and UDP offload, nothing else.
    Raw,
    /// Plain TCP over loopback.
    Tcp,
    /// Time to the first byte on a warm path.
    Ttfb,
    /// From the target.
    Download,
    /// To the target.
    Upload,
    /// From the target, at 11 Mbit/s for each stream, packet by packet.
    Paced,
    /// A flood of 1200-byte datagrams.
    Datagram1200,
    /// A flood of 1200-byte packets of a QUIC connection, which the relay may forward.
    Forwarded1200,
    /// A flood of 64-byte datagrams.
    Datagram64,
    /// A relay at rest and with idle clients.
    Memory,
}

/// One line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) case: Case,
    pub(super) over: Over,
    pub(super) hops: u8,
    pub(super) streams: u8,
}

/// Named numbers: `goodput_bps`, `pps`, `cpu:relay1` (seconds per GB), …
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample(BTreeMap<String, f64>);

/// All samples, in the order of the report.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<Key, Vec<Sample>>);

/// The middle, the lowest and the highest of a number over the repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Sample {
    /// Goodput and the CPU time of each process per GB of payload.
    pub(super) fn transfer(bytes: u64, seconds: f64, cpu: &[(String, f64)]) -> Self {
        let mut sample = Self::default().with("goodput_bps", bytes as f64 * 8.0 / seconds);
        for (name, spent) in cpu {
            sample = sample.with(&format!("cpu:{name}"), spent / (bytes as f64 / 1e9));
        }
        sample
    }

    /// Adds a number; one that is none (nothing arrived) is left out.
    pub(super) fn with(mut self, name: &str, value: f64) -> Self {
        if value.is_finite() {
            self.0.insert(name.to_owned(), value);
        }
        self
    }
}

impl Samples {
    /// Keeps a sample.
    pub(super) fn add(&mut self, key: Key, sample: Sample) {
        self.0.entry(key).or_default().push(sample);
    }

    /// The lines of the report.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.0.keys().copied()
    }

    /// How often a case was measured.
    pub(super) fn count(&self, key: Key) -> usize {
        self.0.get(&key).map_or(0, Vec::len)
    }

    /// The names of a case's numbers.
    pub(super) fn names(&self, key: Key) -> Vec<String> {
        let names = self
            .0
            .get(&key)
            .into_iter()
            .flatten()
            .flat_map(|sample| sample.0.keys().cloned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.dedup();
        names
    }

    /// A number over the repetitions.
    pub(super) fn spread(&self, key: Key, name: &str) -> Option<Spread> {
        let values = self
            .0
            .get(&key)?
            .iter()
            .filter_map(|sample| sample.0.get(name).copied());
        spread(&values.collect::<Vec<_>>())
    }
}

fn spread(values: &[f64]) -> Option<Spread> {
    let sorted = sorted(values);
    let at = |share| quantile_of_sorted(&sorted, share);
    Some(Spread {
        median: at(0.5)?,
        low: at(0.0)?,
        high: at(1.0)?,
    })
}

// On which machine it was measured: a figure without its machine means nothing. The report begins with it.

/// Processor, cores and kernel in one line.
pub(super) fn description() -> String {
    let cores = available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, {cores} core(s), Linux {}", processor(), kernel.trim())
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()));
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

#[cfg(test)]
mod tests {
    use super::Sample;
    use super::*;

    fn samples() -> Samples {
        let key = |case, hops| Key {
            case,
            over: Over::Masque,
            hops,
            streams: 1,
        };
        let mut samples = Samples::default();
        let cpu = |name: &str, cost| (name.to_owned(), cost);
        samples.add(
            key(Case::Raw, 0),
            Sample::transfer(
                1_000_000_000,
                1.0,
                &[cpu("sender", 0.5), cpu("receiver", 0.3)],
            ),
        );
        samples.add(
            key(Case::Tcp, 0),
            Sample::transfer(4_000_000_000, 1.0, &[cpu("both", 1.0)]),
        );
        samples.add(
            key(Case::Download, 1),
            Sample::transfer(500_000_000, 1.0, &[cpu("client", 1.0), cpu("relay1", 0.8)]),
        );
        samples.add(key(Case::Ttfb, 0), Sample::default().with("ttfb_ms", 0.2));
        samples.add(key(Case::Ttfb, 2), Sample::default().with("ttfb_ms", 0.8));
        samples
    }

    #[test]
    fn json_lines_have_the_keys_of_the_contract() {
        let lines = Report::new(&samples()).lines();
        let download = lines
            .iter()
            .find(|line| line["case"] == "download")
            .expect("there");
        assert_eq!(download["hops"], 1);
        assert_eq!(download["goodput_bps"], 4e9);
        assert_eq!(download["cpu_s_per_gb"]["relay1"], 1.6);
        assert_eq!(download["ratio_to_raw"], 0.5);
        assert_eq!(download["ratio_to_tcp"], 0.125);
        assert_eq!(download["cpu_ratio_to_raw"], 2.0);
    }

    #[test]
    fn the_time_that_a_hop_adds_is_told() {
        let text = Report::new(&samples()).table();
        assert!(
            text.contains("2 hop(s), masque: 0.80 ms, 0.30 ms added by each hop"),
            "{text}"
        );
    }
}

#[cfg(test)]
mod sample_tests {
    use super::*;

    #[test]
    fn the_median_of_repetitions_is_shown_with_its_ends() {
        let spread = spread(&[3.0, 1.0, 10.0, 2.0]).expect("not empty");
        assert_eq!(
            spread,
            Spread {
                median: 2.5,
                low: 1.0,
                high: 10.0
            }
        );
    }

    #[test]
    fn cpu_time_is_counted_per_gigabyte_of_payload() {
        let key = Key {
            case: Case::Download,
            over: Over::Masque,
            hops: 1,
            streams: 1,
        };
        let mut samples = Samples::default();
        samples.add(
            key,
            Sample::transfer(500_000_000, 2.0, &[("client".into(), 1.0)]),
        );
        assert_eq!(
            samples.spread(key, "cpu:client").map(|s| s.median),
            Some(2.0)
        );
        assert_eq!(
            samples.spread(key, "goodput_bps").map(|s| s.median),
            Some(2e9)
        );
    }
}
