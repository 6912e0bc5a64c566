//! One attempt at one repetition: what is to be done ([`Trial`]), and what was seen ([`Report`]). Both cross a process boundary as JSON.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use ring::digest;
use serde::{Deserialize, Serialize};

use crate::{
    experiments::{subject, workload},
    topology::Topology,
};

/// Everything that a world needs to know. Self-contained: no look-up outside is left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// Which one it is.
    pub key: Key,
    /// All random streams of this repetition come from it: links, payloads, schedules.
    pub seed: u64,
    /// The network.
    pub topology: Topology,
    /// What carries the traffic.
    pub subject: subject::Plan,
    /// What is carried, group by group.
    pub workloads: Vec<workload::Plan>,
    /// Settings of every namespace, such as `net.ipv4.tcp_congestion_control = "cubic"`.
    pub sysctls: BTreeMap<String, String>,
    /// What is recorded meanwhile; the campaign deletes afterwards what the scenario does not keep.
    pub record: Keep,
    /// What is computed from the records as soon as the attempt is over.
    pub analyses: Vec<Analysis>,
    /// Kept over the whole campaign: what `OncePerCampaign` steps make.
    pub shared: PathBuf,
    /// After so long the attempt has failed.
    pub timeout: Duration,
    /// A packet that leaves the emulator later than this is counted as late.
    pub tolerated: Duration,
    /// An empty directory for this attempt's files: subjects' state, logs, captures, qlogs.
    pub directory: PathBuf,
}

/// Names a repetition for good: with the scenario's seed it decides everything about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The scenario's name.
    pub scenario: String,
    /// The point of the matrix: parameter to value, as written.
    pub case: BTreeMap<String, String>,
    /// The subject's label.
    pub subject: String,
    /// From 1.
    pub repetition: u32,
}

impl Key {
    /// A short name for files and rows: 16 hexadecimal digits that depend on every part.
    #[must_use]
    pub fn id(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        let hash = digest::digest(&digest::SHA256, text.as_bytes());
        let head = hash.as_ref().iter().take(8);
        head.map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What is computed from a repetition's captures and qlogs; its figures join the repetition's metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "analysis", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Analysis {
    /// Paper 001 §5.2: total and ACK overhead of nested tunnels (`overhead_share`, `ack_share`, `ack_frames_per_packet`).
    Cascade {
        /// The client's link, all of whose traffic is counted.
        link: String,
    },
    /// What an observer of a link sees while the workloads run: features of sizes, directions and times (`fingerprint:NAME`), from which the
    /// report's classifier guesses.
    Fingerprint {
        /// The client's link.
        link: String,
    },
    /// Paper 004, tables 8.1 to 8.3: in how many rounds 0, 1, 2, … clients stalled before their first byte (`rounds_stalled_share:N`).
    Stalled {
        /// A client has stalled whose first byte took this many times its own median, or did not come.
        above: u32,
    },
}

/// What is recorded or kept on demand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keep {
    /// Names of links that are captured (`pcap/LINK.pcap`); `*` is every link.
    pub pcap: Vec<String>,
    /// Bytes of each packet in a capture.
    pub snaplen: u32,
    /// Whether endpoints and relays write qlog (`qlog/PROCESS/`).
    pub qlog: bool,
    /// Whether browsers' visits are written (`har/WORKLOAD/`).
    pub har: bool,
    /// Whether every drop is written (`drops.csv`), not only counted.
    pub drops: bool,
    /// Whether logs are kept of attempts that went well.
    pub logs: bool,
}

/// What was seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Whether all went as planned.
    pub outcome: Outcome,
    /// Every transfer, failed ones included.
    pub transfers: Vec<workload::Transfer>,
    /// Every process of the subject, and the workload's own (`work:NAME`, `serve:HOST`).
    pub processes: Vec<ProcessUse>,
    /// Every direction of every link, `LINK>` forward and `LINK<` back.
    pub links: Vec<LinkCount>,
    /// What the machine drew while the workloads ran, as far as it has counters of power.
    #[serde(default)]
    pub power: Vec<Drawn>,
    /// Seconds from the first workload's beginning to the last one's end.
    #[serde(default)]
    pub worked: f64,
    /// How well the emulator kept its promises.
    pub emulator: EmulatorHealth,
    /// When the attempt began, in seconds since 1970.
    pub began: f64,
    /// Seconds from there until the subject was ready.
    pub ready_after: f64,
    /// Seconds the attempt took.
    pub took: f64,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// Everything ran; single transfers may still have failed.
    Done,
    /// It did not; what was measured until then is not used.
    Failed {
        /// What was being done: "building the network", "waiting for relay2", …
        doing: String,
        /// Why it failed.
        why: String,
        /// The end of the guilty process's log.
        log: String,
    },
}

/// What a process used while the workloads ran (`cpu_s`) and over its life (the rest).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessUse {
    /// Its name in the subject.
    pub name: String,
    /// Where it ran.
    pub host: String,
    /// Seconds of processor time from the first workload's beginning to the last one's end.
    pub cpu_s: f64,
    /// Seconds of processor time over its life.
    pub life_cpu_s: f64,
    /// Peak resident memory in bytes.
    pub peak_memory: u64,
}

/// What one counter of power told of the time in which workloads ran, the first sixth of it left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// `package-0`, `package-0/dram`, `psys`, `battery:BAT0`.
    pub name: String,
    /// The mean.
    pub watts: f64,
    /// How often it was read.
    pub readings: u64,
}

/// What happened on one direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkCount {
    /// `LINK>` or `LINK<`.
    pub name: String,
    /// Packets that came.
    pub packets: u64,
    /// Bytes of IP that came.
    pub bytes: u64,
    /// Packets dropped, by cause: `udp`, `loss`, `queue`, `codel`, `ttl`, `route`, `memory`, `tun`.
    pub drops: BTreeMap<String, u64>,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets marked CE.
    pub marked: u64,
}

/// Whether a repetition may be believed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EmulatorHealth {
    /// How late packets left, in microseconds: median, 99th percentile, maximum.
    pub late_us_p50: f64,
    /// 99th percentile.
    pub late_us_p99: f64,
    /// The latest.
    pub late_us_max: f64,
    /// The share of the packets that left later than the trial tolerates; `None` if none left, or an older program did not count them.
    pub late_share: Option<f64>,
    /// Packets released.
    pub released: u64,
    /// Packets that the emulator itself lost (a full TUN, its memory limit) or could not record (a full or slow disk): must be 0.
    pub own_drops: u64,
    /// Times that the emulator was not scheduled for more than a millisecond.
    pub stalls: u64,
    /// Its processor time in seconds.
    pub cpu_s: f64,
    /// Whether it had real-time priority.
    pub real_time: bool,
    /// The one-minute load of the machine before and after.
    pub load: [f64; 2],
    /// Share of the machine's time taken by its host (steal) meanwhile.
    pub steal: f64,
    /// Share of the time in which something that was ready to run waited for a processor (`some` of Linux's pressure stall information);
    /// `None` if the kernel does not tell.
    pub cpu_pressure: Option<f64>,
    /// The longest time in seconds for which the lab itself stood still, at any point of the attempt: the machine slept, or somebody stopped it.
    pub stood_s: f64,
    /// The largest leap of the machine's clock in seconds meanwhile, forwards or back.
    pub leapt_s: f64,
}
