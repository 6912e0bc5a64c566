//! A made-up campaign for tests of the report: subjects that differ by known factors, a machine with moods.

use std::{collections::BTreeMap, path::Path};

use super::data::Data;
use crate::{
    experiments::{
        scenario::{Finding, Gate},
        trial::{EmulatorHealth, Key, Trial},
        workload::{Transfer, TransferError},
    },
    results::{
        Metric, metrics, parquet,
        sample::{
            Sample,
            examples::{bulk, process, report, transfer, trial},
            samples,
        },
        store::{Attempt, Binary, Campaign, Finished, Machine, Run, Store, Verdict},
    },
};

/// What is made up.
pub(crate) struct Example {
    pub(crate) repetitions: u32,
    pub(crate) hops: Vec<u32>,
    pub(crate) rates: Vec<&'static str>,
    /// A subject all of whose repetitions fail.
    pub(crate) broken: Option<&'static str>,
    /// Whether somebody looked at the pattern of packets: tor's follows the hops, the others' does not.
    pub(crate) watched: bool,
    /// Whether Hoplite leaves by another relay in every second repetition.
    pub(crate) rotating: bool,
}

impl Default for Example {
    fn default() -> Self {
        Self {
            repetitions: 10,
            hops: vec![2],
            rates: vec!["10Mbit"],
            broken: None,
            watched: false,
            rotating: false,
        }
    }
}

/// 0..1, the same for the same words.
fn dice(words: &str) -> f64 {
    let hash = words.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1_u64 << 53) as f64
}

/// About normal, mean 0 and deviation 1.
fn noise(words: &str) -> f64 {
    (0..6)
        .map(|part| dice(&format!("{part}{words}{part}")) - 0.5)
        .sum::<f64>()
        * 1.41
}

impl Example {
    fn cases(&self) -> Vec<BTreeMap<String, String>> {
        let case = |hops: &u32, rate: &str| {
            [
                ("hops".to_owned(), hops.to_string()),
                ("rate".to_owned(), rate.to_owned()),
            ]
            .into()
        };
        let hops = self.hops.iter();
        hops.flat_map(|hops| self.rates.iter().map(move |rate| case(hops, rate)))
            .collect()
    }

    fn subjects(&self) -> Vec<String> {
        let mut all = vec!["native".to_owned()];
        all.extend(self.hops.iter().map(|hops| format!("hoplite-{hops}")));
        all.extend(["tor".to_owned(), "openvpn".to_owned()]);
        all
    }

    fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        for repetition in 1..=self.repetitions {
            for case in self.cases() {
                let hops = format!("hoplite-{}", case["hops"]);
                for subject in ["native", &hops, "tor", "openvpn"] {
                    let (scenario, case) = ("example".to_owned(), case.clone());
                    keys.push(Key {
                        scenario,
                        case,
                        subject: subject.to_owned(),
                        repetition,
                    });
                }
            }
        }
        keys
    }

    fn campaign(&self) -> Campaign {
        let finding = |text: &str, metric: &str, value, (low, high)| Finding {
            text: text.into(),
            metric: Some(metric.to_owned()).filter(|metric| !metric.is_empty()),
            case: [("hops".to_owned(), "2".to_owned())].into(),
            subject: Some("hoplite-2".into()),
            value,
            low,
            high,
            ..Finding::default()
        };
        Campaign {
            scenario: "example".into(),
            summary: "Downloads over <one> bottleneck & several ways".into(),
            source: "name = \"example\"\n# </pre><script>alert(1)</script>\n".into(),
            seed: 1,
            repetitions: self.repetitions,
            baseline: Some("native".into()),
            fingerprints: [("native".to_owned(), "3f2a".repeat(16))].into(),
            planned: self.keys().len() as u64,
            subjects: self.subjects(),
            families: BTreeMap::new(),
            cases: self.cases(),
            began: BEGAN,
            binaries: vec![
                Binary {
                    name: "hoplite".into(),
                    sha256: "8d1c".repeat(16),
                    version: "hoplite 0.2.0".into(),
                },
                Binary {
                    name: "tor".into(),
                    sha256: "77aa".repeat(16),
                    version: "Tor 0.4.9.3".into(),
                },
            ],
            gate: Gate::default(),
            findings: vec![
                finding(
                    "Acknowledgements take 4.2–4.8 frames for each data packet",
                    "ack_frames_per_packet",
                    None,
                    (Some(4.2), Some(4.8)),
                ),
                finding(
                    "A download of 2 MB takes about two seconds",
                    "ttlb_s",
                    Some(2.0),
                    (None, None),
                ),
                finding(
                    "The tunnel's cost is in its acknowledgements",
                    "",
                    None,
                    (None, None),
                ),
                Finding {
                    subject: Some("tor".into()),
                    relative_to: Some("native".into()),
                    statistic: Some("p95".into()),
                    goal: true,
                    ..finding(
                        "Hardly later than without",
                        "ttlb_s",
                        None,
                        (None, Some(1.1)),
                    )
                },
            ],
        }
    }
}

const BEGAN: f64 = 1_795_255_380.0;

/// How much longer everything takes with a subject, and the processor time of its relay.
fn factor(key: &Key) -> f64 {
    let hops: f64 = key.case["hops"].parse().unwrap();
    match key.subject.as_str() {
        "native" => 1.0,
        "tor" => 3.1,
        "openvpn" => 1.04,
        _ => 1.0 + 0.12 * hops,
    }
}

fn made_up_transfer(key: &Key) -> Transfer {
    let words = format!("{key:?}");
    let mood = 1.0 + 0.1 * (f64::from(key.repetition) / 4.0).sin();
    let rate = if key.case["rate"] == "10Mbit" {
        1.0
    } else {
        0.25
    };
    let factor = factor(key) * mood * (1.0 + 0.04 * noise(&words));
    let mut one = transfer("get", 1, 1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small and positive"
    )]
    let stretch = |at: u64| (at as f64 * factor * rate) as u64;
    one.phases.first_byte = Some(stretch(60_000));
    one.phases.deciles = one.phases.deciles.iter().map(|at| stretch(*at)).collect();
    one.phases.partial = one
        .phases
        .partial
        .iter()
        .map(|(bytes, at)| (*bytes, stretch(*at)))
        .collect();
    one.phases.last_byte = Some(stretch(2_000_000));
    if key.subject == "tor" && dice(&words) < 0.1 {
        one.error = Some(TransferError {
            kind: "TIMEOUT".into(),
            why: "<b>silence</b>".into(),
        });
        one.phases.last_byte = None;
    }
    one
}

fn made_up_trial(key: &Key) -> Trial {
    let mut trial = trial(vec![bulk("get", 2_000_000)]);
    trial.key = key.clone();
    trial
}

fn made_up_samples(key: &Key, rotating: bool) -> Vec<Sample> {
    let mut one = made_up_transfer(key);
    if rotating && key.subject.starts_with("hoplite") {
        let last = if key.repetition % 2 == 1 { 3 } else { 4 };
        one.seen_as = Some([10, 77, 0, last].into());
    }
    samples(&made_up_trial(key), &report(vec![one]))
}

fn made_up_metrics(key: &Key, watched: bool) -> Vec<Metric> {
    let mut report = report(vec![made_up_transfer(key)]);
    if key.subject != "native" {
        report.processes = vec![
            process("relay1", 0.01 * factor(key)),
            process("client", 0.02 * factor(key)),
        ];
    }
    let hops: f64 = key.case["hops"].parse().unwrap();
    let frames =
        0.5 * (1.5_f64.powf(hops + 1.0) - 1.5) / 0.5 * (1.0 + 0.03 * noise(&format!("{key:?}f")));
    let mut extra = if key.subject.starts_with("hoplite") {
        vec![
            ("ack_frames_per_packet".to_owned(), frames),
            ("ack_share".to_owned(), frames * 0.03),
        ]
    } else {
        Vec::new()
    };
    let follows = if key.subject == "tor" { hops } else { 0.0 };
    let feature = |name: &str| {
        let noise = noise(&format!("{key:?}{name}"));
        (format!("fingerprint:{name}"), 20.0 * follows + noise)
    };
    extra.extend(["one", "two"].map(feature).into_iter().filter(|_| watched));
    metrics(&made_up_trial(key), &report, &extra)
}

fn attempt(key: &Key, number: u32, place: u32, verdict: Verdict) -> Attempt {
    let late = 90.0 + 300.0 * dice(&format!("{key:?}{number}"));
    Attempt {
        run: key.id(),
        number,
        verdict,
        why: match verdict {
            Verdict::Ok => String::new(),
            Verdict::Invalid => {
                "packets left late: 1.60 % by more than 0.50 ms, at most 1.00 % may".into()
            }
            Verdict::Failed => "waiting for relay1: nothing in its log after 30 s".into(),
        },
        log: if verdict == Verdict::Failed {
            "relay1: <address in use>".into()
        } else {
            String::new()
        },
        set_aside: false,
        machine: "m1".into(),
        began: BEGAN + f64::from(place) * 6.5,
        ready_after: 0.4,
        took: 6.0,
        health: EmulatorHealth {
            late_us_p50: 20.0,
            late_us_p99: if verdict == Verdict::Invalid {
                612.0
            } else {
                late
            },
            late_us_max: late * 4.0,
            late_share: Some(if verdict == Verdict::Invalid {
                0.016
            } else {
                late * 1e-5
            }),
            released: 4000,
            load: [0.6 + dice(&key.id()), 0.9],
            real_time: true,
            cpu_pressure: Some(0.125),
            ..EmulatorHealth::default()
        },
    }
}

fn made_up_runs(example: &Example) -> Vec<(Finished, Vec<Attempt>)> {
    let run = |(place, key): (u32, Key)| {
        let broken = example.broken == Some(key.subject.as_str());
        let again = dice(&format!("{key:?}again")) < 0.06;
        let verdict = if broken { Verdict::Failed } else { Verdict::Ok };
        let before = again.then(|| attempt(&key, 1, place, Verdict::Invalid));
        let number = if again { 2 } else { 1 };
        let finished = Finished {
            attempt: attempt(&key, number, place, verdict),
            run: Run {
                id: key.id(),
                place: place.into(),
                seed: 7,
                verdict,
                attempt: number,
                key: key.clone(),
            },
            metrics: if broken {
                Vec::new()
            } else {
                made_up_metrics(&key, example.watched)
            },
            processes: Vec::new(),
            links: Vec::new(),
        };
        (finished, before.into_iter().collect())
    };
    (1..).zip(example.keys()).map(run).collect()
}

/// As the report gathers it.
pub(crate) fn data(example: &Example) -> Data {
    let mut data = Data {
        campaign: example.campaign(),
        ..Data::default()
    };
    let mut all = Vec::new();
    for (finished, before) in made_up_runs(example) {
        all.extend(
            finished
                .metrics
                .into_iter()
                .map(|metric| (finished.run.id.clone(), metric)),
        );
        data.attempts.extend(before);
        data.attempts.push(finished.attempt);
        data.runs.push(finished.run);
    }
    data.with(all)
}

/// A whole directory, as `run` leaves it.
pub(crate) fn directory(example: &Example, directory: &Path) {
    let mut store = Store::write(directory).unwrap();
    store.put_campaign(&example.campaign()).unwrap();
    store
        .put_machine(&Machine {
            id: "m1".into(),
            kernel: "Linux 6.12.0".into(),
            architecture: "x86_64".into(),
            cpu: "Example CPU".into(),
            cores: 2,
            memory: 8 << 30,
            real_time: true,
            sysctls: [(
                "net.ipv4.tcp_congestion_control".to_owned(),
                "cubic".to_owned(),
            )]
            .into(),
            ..Machine::default()
        })
        .unwrap();
    std::fs::create_dir_all(directory.join("samples")).unwrap();
    for (finished, before) in made_up_runs(example) {
        let key = &finished.run.key;
        if finished.run.verdict == Verdict::Ok {
            let path = directory
                .join("samples")
                .join(format!("{}.parquet", finished.run.id));
            let mut file =
                parquet::Writer::create(&path, key.case.keys().cloned().collect()).unwrap();
            file.append(&made_up_samples(key, example.rotating))
                .unwrap();
            file.close().unwrap();
        }
        store.adopt(&finished, &before).unwrap();
    }
}
