//! What this process uses: CPU time and memory, read when somebody asks. Part of `/metrics`.
//! From `/proc/self` (proc(5)); where that does not exist the numbers are left out.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Clock ticks a second in `/proc`: fixed by the kernel's interface on every Linux architecture that we know.
const TICKS: f64 = 100.0;
const PAGE: i64 = 4096;

#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        if let Some(seconds) = cpu_seconds() {
            let counter = ConstCounter::new(seconds);
            let kind = prometheus_client::metrics::MetricType::Counter;
            let help = "CPU time of this process, user and system";
            counter.encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                help,
                None,
                kind,
            )?)?;
        }
        if let Some(octets) = resident() {
            let gauge = ConstGauge::new(octets);
            let kind = prometheus_client::metrics::MetricType::Gauge;
            let help = "Resident memory of this process";
            gauge.encode(encoder.encode_descriptor(
                "process_resident_memory_bytes",
                help,
                None,
                kind,
            )?)?;
        }
        Ok(())
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<f64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some((user + system) / TICKS)
}

fn resident() -> Option<i64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: i64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * PAGE)
}
