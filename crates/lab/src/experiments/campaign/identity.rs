//! What a campaign is of: its scenario, the machine it runs on and the programs it measures. Results of two campaigns never mix: a directory is
//! claimed before anything runs in it, and shards are compared before they are joined.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
};

use ring::digest;
use rustix::{
    process::{Resource, geteuid, getrlimit},
    thread::{CapabilitySet, capabilities},
};
use serde::Serialize;

use super::{Directory, io_failure, plan::CampaignPlan};
use crate::{
    emulator::priority::PRIORITY,
    errors::Failure,
    experiments::{
        scenario::subject_file::{Needs, Places},
        subject,
    },
    results::store::{Binary, Campaign, Machine, Store},
};

/// Makes a new directory ours, or says what in it is not.
pub(crate) fn claim(
    store: &mut Store,
    directory: &Directory,
    plan: &CampaignPlan,
) -> Result<(), Failure> {
    let mut campaign = plan.campaign.clone();
    if let Some(there) = store.campaign()? {
        if let Some(difference) = difference(&there, &campaign) {
            return Err(Failure::new(
                format!("going on in {}", directory.root().display()),
                format!("its results are of another campaign: {difference}"),
                "choose another --out, or use what was used there",
            ));
        }
        extend(&mut campaign, there);
    }
    store.put_campaign(&campaign)?;
    describe(directory, &campaign)
}

/// What of another time stays: programs and subjects that this run does not use, and when it began.
pub(crate) fn extend(campaign: &mut Campaign, there: Campaign) {
    campaign.began = campaign.began.min(there.began);
    campaign.planned = campaign.planned.max(there.planned);
    campaign.repetitions = campaign.repetitions.max(there.repetitions);
    for (label, written) in there.families {
        campaign.families.entry(label).or_insert(written);
    }
    for (subject, fingerprint) in there.fingerprints {
        campaign.fingerprints.entry(subject).or_insert(fingerprint);
    }
    for binary in there.binaries {
        if !campaign
            .binaries
            .iter()
            .any(|ours| ours.name == binary.name)
        {
            campaign.binaries.push(binary);
        }
    }
}

/// In what two campaigns differ, if their results must not mix. Comments, words and the number of repetitions may differ.
pub(crate) fn difference(there: &Campaign, here: &Campaign) -> Option<String> {
    if there.scenario != here.scenario {
        let (there, here) = (&there.scenario, &here.scenario);
        return Some(format!("the scenario is {there} there and {here} here"));
    }
    if there.seed != here.seed {
        let (there, here) = (there.seed, here.seed);
        return Some(format!("the seed is {there} there and {here} here"));
    }
    if there.gate != here.gate {
        return Some("the thresholds of the validity gate have changed".to_owned());
    }
    let changed = |(subject, fingerprint): &(&String, &String)| {
        let there = there.fingerprints.get(*subject);
        there.is_some_and(|there| there != *fingerprint)
    };
    if let Some((subject, _)) = here.fingerprints.iter().find(changed) {
        return Some(format!(
            "the scenario or a file that it uses has changed since, as far as the subject {subject} is concerned"
        ));
    }
    here.binaries.iter().find_map(|binary| other(there, binary))
}

fn other(there: &Campaign, here: &Binary) -> Option<String> {
    let there = there
        .binaries
        .iter()
        .find(|binary| binary.name == here.name)?;
    let short = |binary: &Binary| binary.sha256.chars().take(12).collect::<String>();
    (there.sha256 != here.sha256).then(|| {
        let (name, there, here) = (&here.name, short(there), short(here));
        format!("the program {name} is another one (SHA-256 {there}… there, {here}… here)")
    })
}

/// `campaign.toml`: for readers; `results.sqlite` is what counts.
#[derive(Serialize)]
struct Description<'a> {
    scenario: &'a str,
    seed: String,
    repetitions: u32,
    subjects: &'a [String],
    programs: BTreeMap<&'a str, &'a str>,
    source: &'a str,
}

/// Writes `campaign.toml`.
pub(crate) fn describe(directory: &Directory, campaign: &Campaign) -> Result<(), Failure> {
    let programs = campaign.binaries.iter();
    let description = Description {
        scenario: &campaign.scenario,
        seed: campaign.seed.to_string(),
        repetitions: campaign.repetitions,
        subjects: &campaign.subjects,
        programs: programs.map(|b| (&*b.name, &*b.sha256)).collect(),
        source: &campaign.source,
    };
    let text = toml::to_string_pretty(&description).unwrap_or_default();
    let path = directory.root().join("campaign.toml");
    let aside = directory.root().join("attempts").join("campaign.toml");
    let write = || {
        let mut file = File::create(&aside)?;
        writeln!(
            file,
            "# What the results here are of. Nothing reads it back."
        )?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, &path)
    };
    write().map_err(|error| io_failure("writing", &path, &error))
}

// The machine, without its name.

/// Settings that touch results and that a namespace does not have for itself, or begins with.
const SETTINGS: [&str; 12] = [
    "kernel/sched_rt_period_us",
    "kernel/sched_rt_runtime_us",
    "kernel/timer_migration",
    "net/core/default_qdisc",
    "net/core/netdev_max_backlog",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/ipv4/tcp_available_congestion_control",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_mem",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
];

/// What this machine is.
pub(crate) fn this_machine() -> Machine {
    let mut machine = Machine {
        id: String::new(),
        kernel: format!(
            "{} {}",
            read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            read("/proc/sys/kernel/version").unwrap_or_default()
        ),
        architecture: env::consts::ARCH.to_owned(),
        cpu: cpu(),
        cores: thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
        memory: memory(),
        governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        real_time: real_time(),
        sysctls: settings(),
    };
    machine.id = machine_id(&machine);
    machine
}

fn machine_id(machine: &Machine) -> String {
    let text = serde_json::to_string(machine).unwrap_or_default();
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    let head = hash.as_ref().iter().take(8);
    head.map(|byte| format!("{byte:02x}")).collect()
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The model of the first processor; other architectures than x86 have other words for it.
fn cpu() -> String {
    let text = read("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    ["model name", "Model", "Hardware", "CPU implementer"]
        .into_iter()
        .find_map(field)
        .unwrap_or_default()
}

fn memory() -> u64 {
    let text = read("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or_default() * 1024
}

/// Whether an emulator could have real-time priority: by root's capability (another user's does not reach into the user namespace of a
/// world), or by the limit that an administrator has set.
fn real_time() -> bool {
    let capable =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
    let limit = getrlimit(Resource::Rtprio).current;
    (capable && geteuid().is_root())
        || limit.is_none_or(|most| most >= u64::from(PRIORITY.unsigned_abs()))
}

fn settings() -> BTreeMap<String, String> {
    let one = |path: &&str| {
        let words = read(&format!("/proc/sys/{path}"))?;
        let value = words.split_whitespace().collect::<Vec<_>>().join(" ");
        Some((path.replace('/', "."), value))
    };
    SETTINGS.iter().filter_map(one).collect()
}

// The programs: each with the hash of its file and what it says of its version.

/// They only start others; another version of them changes no figure.
const WRAPPERS: [&str; 3] = ["sh", "bash", "env"];

/// Bytes of what a program says of its version.
const WORDS: usize = 200;

/// What a subject's steps start: names or paths.
pub(crate) fn started_by(subject: &subject::Plan) -> BTreeSet<String> {
    let first = |step: &subject::Step| step.command.first().cloned();
    subject
        .steps
        .iter()
        .filter_map(first)
        .filter(|name| !WRAPPERS.contains(&name.as_str()))
        .collect()
}

/// Finds and hashes them, and this program too. One that is not there is left out: the attempt says what is missing.
pub(crate) fn identify(names: &BTreeSet<String>, needs: &[&Needs]) -> Result<Vec<Binary>, Failure> {
    let places = Places::find(false)?;
    let lab = PathBuf::from(&places.lab);
    let mut binaries = vec![Binary {
        name: "hoplite-lab".to_owned(),
        sha256: own(&lab).map_err(|error| io_failure("reading", &lab, &error))?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }];
    let found = names.iter().filter_map(|name| find(name));
    for path in found.filter(|path| *path != lab) {
        let sha256 = hash(&path).map_err(|error| io_failure("reading", &path, &error))?;
        let name = path.file_name().unwrap_or_default();
        binaries.push(Binary {
            name: name.to_string_lossy().into_owned(),
            sha256,
            version: version(&path, &places, needs),
        });
    }
    binaries.sort();
    binaries.dedup();
    Ok(binaries)
}

fn find(name: &str) -> Option<PathBuf> {
    match name {
        // What an earlier step makes is no program of ours.
        name if name.contains('{') => None,
        name if name.contains('/') => Some(PathBuf::from(name)).filter(|path| path.is_file()),
        name => {
            let path = env::var_os("PATH")?;
            let mut places = env::split_paths(&path).map(|place| place.join(name));
            places.find(|place| place.is_file())
        }
    }
}

/// The first line that a program says when it is asked for its version, as its subject's file tells how.
fn version(path: &Path, places: &Places, needs: &[&Needs]) -> String {
    let own = |text: &str| {
        let text = text.replace("{hoplite}", &places.hoplite);
        text.replace("{lab}", &places.lab)
    };
    let of = |needs: &&&Needs| find(&own(&needs.command)).as_deref() == Some(path);
    let ask = needs
        .iter()
        .filter(of)
        .find(|needs| !needs.version.is_empty());
    let words: Vec<String> = ask
        .into_iter()
        .flat_map(|needs| &needs.version)
        .map(|word| own(word))
        .collect();
    let Some((program, arguments)) = words.split_first() else {
        return String::new();
    };
    let said = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let first = |bytes: Vec<u8>| {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let line = text.lines().map(str::trim).find(|line| !line.is_empty());
        line.map(|line| line.chars().take(WORDS).collect::<String>())
    };
    let line = said
        .ok()
        .and_then(|said| first(said.stdout).or_else(|| first(said.stderr)));
    line.unwrap_or_default()
}

/// This program's own hash: it does not change while it runs.
fn own(path: &Path) -> io::Result<String> {
    static OWN: OnceLock<String> = OnceLock::new();
    if let Some(known) = OWN.get() {
        return Ok(known.clone());
    }
    let found = hash(path)?;
    Ok(OWN.get_or_init(|| found).clone())
}

fn hash(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer)?;
        let Some(part) = buffer.get(..read).filter(|part| !part.is_empty()) else {
            return Ok(hexadecimal(context.finish().as_ref()));
        };
        context.update(part);
    }
}

/// In lower case.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::experiments::scenario::Gate;

    fn campaign() -> Campaign {
        let binary = Binary {
            name: "hoplite".into(),
            sha256: "a".repeat(64),
            version: String::new(),
        };
        Campaign {
            scenario: "smoke".into(),
            seed: 1,
            fingerprints: BTreeMap::from([("native".into(), "1".into())]),
            binaries: vec![binary],
            ..Campaign::default()
        }
    }

    #[test]
    fn what_differs_is_named() {
        let there = campaign();
        let told = |change: &dyn Fn(&mut Campaign)| {
            let mut here = campaign();
            change(&mut here);
            difference(&there, &here).unwrap_or_default()
        };
        assert_eq!(told(&|_| {}), "");
        assert!(told(&|c| c.scenario = "other".into()).contains("smoke there and other here"));
        assert!(told(&|c| c.seed = 2).contains("1 there and 2 here"));
        assert!(told(&|c| c.binaries[0].sha256 = "b".repeat(64)).contains("hoplite"));
        let gate = |c: &mut Campaign| {
            c.gate = Gate {
                attempts: 9,
                ..Gate::default()
            };
        };
        assert!(told(&gate).contains("gate"));
        let subject = |c: &mut Campaign| {
            c.fingerprints.insert("native".into(), "2".into());
        };
        assert!(told(&subject).contains("native"));
    }

    #[test]
    fn more_repetitions_other_words_and_a_new_subject_may_join() {
        let mut here = campaign();
        here.repetitions = 50;
        here.summary = "other words".into();
        here.fingerprints.insert("tor".into(), "3".into());
        assert_eq!(difference(&campaign(), &here), None);
    }

    #[test]
    fn a_machine_is_described_without_its_name() {
        let machine = this_machine();
        assert_eq!(machine, this_machine());
        assert!(machine.cores > 0 && machine.memory > 0 && !machine.kernel.is_empty());
        let host = read("/proc/sys/kernel/hostname").unwrap();
        let text = serde_json::to_string(&machine).unwrap();
        assert!(host.len() < 5 || !text.contains(&host), "{text}");
    }

    #[test]
    fn a_program_is_known_by_the_hash_of_its_file_and_what_it_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("relay");
        fs::write(&path, "abc").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let path = path.to_string_lossy().into_owned();
        let names = BTreeSet::from([path.clone(), "/no/such".to_owned(), "{out:x}".to_owned()]);
        let needs = Needs {
            command: path,
            install: String::new(),
            version: ["sh", "-c", "echo; echo relay 1.2; echo more"]
                .map(str::to_owned)
                .to_vec(),
        };
        let found = identify(&names, &[&needs]).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].name, "hoplite-lab");
        assert_eq!(
            (found[1].name.as_str(), found[1].version.as_str()),
            ("relay", "relay 1.2")
        );
        // FIPS 180-2, appendix B.1
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(found[1].sha256, hash);
    }
}
