//! A scenario of a few lines, an executor that only says so, and what must be true of a campaign's directory.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{
    errors::Failure,
    experiments::{
        campaign::{Execute, Stop, progress::Progress},
        scenario::{self, Scenario},
        trial::{EmulatorHealth, Key, LinkCount, Outcome, ProcessUse, Report, Trial},
        workload::{Phases, Transfer, TransferError},
    },
    results::{
        parquet,
        store::{Store, Verdict},
    },
};

/// Two cases, two subjects.
pub(super) struct Few {
    pub(super) repetitions: u32,
    pub(super) seed: u64,
    pub(super) bytes: u64,
}

impl Default for Few {
    fn default() -> Self {
        Self {
            repetitions: 2,
            seed: 1,
            bytes: 1000,
        }
    }
}

impl Few {
    pub(super) fn scenario(&self) -> Scenario {
        let Self {
            repetitions,
            seed,
            bytes,
        } = self;
        let text = format!(
            r#"
            name = "few"
            repetitions = {repetitions}
            seed = {seed}
            keep = {{ pcap = ["a-b"] }}
            matrix.hops = [0, 1]
            host = [{{ name = "client" }}, {{ name = "server" }}]
            link = [{{ name = "a-b", ends = ["client", "server"], delay = "{{hops}}ms" }}]
            subject = [{{ use = "native" }}, {{ use = "native", label = "hoplite" }}]
            workload = [{{ kind = "download", bytes = {bytes}, count = 2 }}]
            "#
        );
        scenario::parse("few.toml", &text).unwrap()
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.scenario().keys()
    }
}

/// What happens during an attempt.
pub(super) type Meanwhile = Box<dyn FnMut(&Trial)>;

/// Says how each attempt ended: `o`k, `i`nvalid, `f`ailed, failed in a fro`z`en lab, without a transfer that did not `b`reak, with `s`ome that
/// broke, or `x` if it could not begin. Ok if nothing is said.
#[derive(Default)]
pub(super) struct Fake {
    pub(super) says: HashMap<String, String>,
    /// Sets `stop` during this attempt, counted from 1.
    pub(super) stop_at: Option<usize>,
    pub(super) stop: Stop,
    /// Called during each attempt.
    pub(super) meanwhile: Option<Meanwhile>,
    pub(super) ran: Vec<String>,
    pub(super) trials: Vec<Trial>,
}

impl Fake {
    pub(super) fn saying(says: &[(&str, &str)]) -> Self {
        let own = |(id, what): &(&str, &str)| ((*id).to_owned(), (*what).to_owned());
        Self {
            says: says.iter().map(own).collect(),
            ..Self::default()
        }
    }

    /// By the number of the attempt that the directory's name ends with, so that a new process says the same.
    fn says(&self, trial: &Trial) -> char {
        let name = trial.directory.file_name().unwrap().to_string_lossy();
        let number: usize = name.rsplit('-').next().unwrap().parse().unwrap();
        let words = self.says.get(&trial.key.id());
        words
            .and_then(|words| words.chars().nth(number - 1))
            .unwrap_or('o')
    }
}

impl Execute for Fake {
    fn run(&mut self, trial: &Trial, stop: &Stop) -> Result<Report, Failure> {
        let said = self.says(trial);
        if said == 'x' {
            return Err(Failure::new(
                "opening /dev/net/tun",
                "not there",
                "load the module tun",
            ));
        }
        self.ran.push(trial.key.id());
        self.trials.push(trial.clone());
        leave_files(&trial.directory);
        if self.stop_at == Some(self.ran.len()) {
            stop.set();
        }
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile(trial);
        }
        Ok(report(trial, said))
    }
}

fn leave_files(directory: &Path) {
    for name in [
        "pcap/a-b.pcap",
        "pcap/b-c.pcap",
        "logs/relay1.log",
        "relay1.toml",
    ] {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A full disk is what some tests are about.
        fs::write(path, "x").ok();
    }
}

fn report(trial: &Trial, said: char) -> Report {
    let outcome = match said {
        'f' | 'z' => Outcome::Failed {
            doing: "waiting for relay1".into(),
            why: "it ended".into(),
            log: "relay1 says why".into(),
        },
        _ => Outcome::Done,
    };
    Report {
        outcome,
        transfers: (1..=2)
            .map(|number| {
                transfer(
                    trial.seed,
                    number,
                    said == 'b' || (said == 's' && number == 2),
                )
            })
            .collect(),
        processes: vec![ProcessUse {
            name: "relay1".into(),
            host: "relay1".into(),
            cpu_s: 0.5,
            life_cpu_s: 1.0,
            peak_memory: 1 << 20,
        }],
        links: vec![LinkCount {
            name: "a-b>".into(),
            packets: 10,
            ..LinkCount::default()
        }],
        emulator: EmulatorHealth {
            late_share: Some(if said == 'i' { 0.05 } else { 0.001 }),
            stood_s: if said == 'z' { 40.0 } else { 0.0 },
            ..EmulatorHealth::default()
        },
        power: Vec::new(),
        worked: 1.0,
        began: 1.0,
        ready_after: 0.25,
        took: 1.0,
    }
}

/// A transfer that tells by its times which repetition it is of.
fn transfer(seed: u64, number: u32, broken: bool) -> Transfer {
    let error = broken.then(|| TransferError {
        kind: "CONNECT".into(),
        why: "connection refused".into(),
    });
    Transfer {
        workload: "download".into(),
        number,
        connection: 0,
        began: 1.0,
        server: None,
        seen_as: None,
        asked: [0, 1000],
        moved: [0, 1000],
        phases: Phases {
            first_byte: Some(seed % 1_000_000),
            last_byte: Some(1_000_000 + seed % 1_000_000),
            ..Phases::default()
        },
        round_trips: Vec::new(),
        datagrams: [0, 0],
        error,
        more: BTreeMap::new(),
    }
}

/// Tells nobody.
pub(super) fn silent() -> Progress {
    Progress::Lines([Box::new(io::sink()), Box::new(io::sink())])
}

/// In memory where there is such a place: these tests are about the order of operations, not about the disk's patience with them.
pub(super) fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

pub(super) fn open(out: &Path) -> Store {
    Store::read(out).unwrap()
}

/// Everything is there exactly once, and nothing else is.
pub(super) fn soundly_done(out: &Path, few: &Few, fake: &Fake) {
    let store = open(out);
    let runs = store.runs().unwrap();
    let scenario = few.scenario();
    let ids: BTreeSet<_> = scenario.keys().iter().map(Key::id).collect();
    assert_eq!(
        runs.iter()
            .map(|run| run.id.clone())
            .collect::<BTreeSet<_>>(),
        ids
    );
    assert_eq!(runs.len(), ids.len());
    let metrics = store.metrics().unwrap();
    for run in &runs {
        let failed = run.verdict == Verdict::Failed;
        let name = |n: &str| {
            metrics
                .iter()
                .filter(|(id, m)| *id == run.id && m.name == n)
                .count()
        };
        assert_eq!(name("ttfb_s"), if failed { 0 } else { 2 }, "{run:?}");
        let attempts = store.attempts_of(&run.id).unwrap();
        let numbers: Vec<_> = attempts.iter().map(|a| a.number).collect();
        assert_eq!(numbers, (1..=run.attempt).collect::<Vec<_>>());
        let verdict = |word| match word {
            'i' | 'z' => Verdict::Invalid,
            'f' | 'b' | 'x' => Verdict::Failed,
            _ => Verdict::Ok,
        };
        for (attempt, word) in attempts
            .iter()
            .zip(fake.says.get(&run.id).into_iter().flat_map(|s| s.chars()))
        {
            assert_eq!(attempt.verdict, verdict(word), "{attempt:?}");
        }
        if !failed {
            let path = out.join(format!("samples/{}.parquet", run.id));
            let samples = parquet::read(&path).unwrap();
            assert_eq!(samples.len(), 2);
            let seed = scenario.trial(&run.key, out, out).unwrap().seed;
            let first = samples[0].transfer.phases.first_byte;
            assert_eq!(first, Some(seed % 1_000_000), "{run:?}");
        }
    }
    let with_samples = runs
        .iter()
        .filter(|run| run.verdict != Verdict::Failed)
        .count();
    assert_eq!(
        fs::read_dir(out.join("samples")).unwrap().count(),
        with_samples
    );
    assert_eq!(fs::read_dir(out.join("attempts")).unwrap().count(), 0);
}

/// Progress that is kept, and what it was.
pub(super) fn lines() -> (Progress, impl Fn() -> Vec<serde_json::Value>) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let to = Progress::Lines([Box::new(Shared(Arc::clone(&said))), Box::new(io::sink())]);
    let said = move || {
        let text = String::from_utf8(said.lock().clone()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    (to, said)
}

struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
