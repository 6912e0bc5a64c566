//! Starts a subject in a network: writes its files, runs its steps, waits until they are ready, and ends them. Nothing here knows what kind of
//! subject it is.
//!
//! What is made once is kept over a campaign: keys, certificates. A plan with such steps has a directory of its own, named by what its steps do:
//! `ID/`, beside `ID.lock` (held while it is made) and `ID.done` (written last, with what the steps said). Without `ID.done` the directory is
//! emptied and made again.
//!
//! What was started last ends first; it is asked to, asked again, then made to. Servers that let open connections end first commonly stop at once
//! when they are asked a second time.

mod fill;
mod process;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use ring::digest;
use rustix::{
    fs::{FlockOperation, flock},
    process::Signal,
};

pub use self::process::{Look, Program, Site};
use self::{
    fill::{Gap, Values},
    process::{Launch, Process, Watch},
};
use super::{Plan, Run, Step, WayIn};
use crate::{
    experiments::{subject, trial::Outcome},
    netns,
};

/// How often one looks whether a step is ready.
const LOOK: Duration = Duration::from_millis(20);

/// How long a process may take to end when asked.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What a step may say on stdout that others use.
const OUT_LIMIT: u64 = 64 * 1024;

/// A subject that is ready. What is not stopped when it is dropped is killed.
#[derive(Debug, Default)]
pub struct Running {
    /// In the order of their start, those together that were started together.
    waves: Vec<Vec<Process>>,
    ways: Vec<WayIn>,
}

impl Running {
    /// Every daemon: its name in the subject, its host, its process.
    pub fn daemons(&self) -> impl Iterator<Item = (&str, &str, &netns::Process)> {
        let daemons = self.waves.iter().flatten();
        daemons.map(|one| (one.name.as_str(), one.host.as_str(), &one.inner))
    }

    /// The ways in, filled in.
    #[must_use]
    pub fn ways(&self) -> &[WayIn] {
        &self.ways
    }

    /// Whether every daemon still lives.
    ///
    /// # Errors
    /// The first that does not, with the end of its log.
    pub fn check(&self) -> Result<(), Outcome> {
        for process in self.waves.iter().flatten() {
            if let Some(end) = process.end() {
                let doing = format!("keeping {} running on {}", process.name, process.host);
                let why = format!("it ended by itself: {}", end.status);
                return Err(failed(doing, why, process.tail()));
            }
        }
        Ok(())
    }

    /// Ends all of it, the last started first; each gets `patience` from TERM to KILL.
    pub fn stop(mut self, patience: Duration) -> Vec<Stopped> {
        let waves = std::mem::take(&mut self.waves);
        let stopped = waves.into_iter().rev();
        let stopped = stopped.flat_map(|wave| stop_together(&wave, patience));
        stopped.collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for wave in self.waves.iter().rev() {
            stop_together(wave, Duration::ZERO);
        }
    }
}

/// Starts a subject. Returns when every step is done or ready, or at once when one cannot be any more; then nothing of it is left running.
///
/// # Errors
/// What was being done, why it failed, and the end of the guilty log.
pub fn start(plan: &Plan, site: &dyn Site, dir: &Path, shared: &Path) -> Result<Running, Outcome> {
    check_names(plan, site)?;
    let opening = |error| failed("preparing what the campaign keeps", error, "");
    let mut kept = SharedDir::open(plan, site, shared).map_err(opening)?;
    let mut starting = Starting {
        values: Values {
            dir,
            shared: kept.dir.clone(),
            site,
            out: kept.said.clone().unwrap_or_default(),
        },
        files: plan.files.clone(),
        running: Running::default(),
    };
    let last = plan.steps.iter().rposition(lasts);
    let mut done = 0;
    for wave in plan.steps.chunk_by(|step, _| step.together) {
        starting.wave(wave, kept.said.is_some())?;
        done += wave.len();
        if kept.said.is_none() && last.is_some_and(|last| last < done) {
            kept.complete(&starting.said(&plan.steps))
                .map_err(opening)?;
        }
    }
    starting.finish(plan)
}

/// A subject that is not ready yet.
struct Starting<'a> {
    values: Values<'a>,
    /// Those not written yet.
    files: Vec<super::File>,
    running: Running,
}

/// A step that was started and is waited for.
struct Waiting<'a> {
    step: &'a Step,
    watches: Vec<Watch>,
    until: Instant,
}

impl Starting<'_> {
    /// Starts steps together and waits until all are done or ready.
    fn wave(&mut self, steps: &[Step], kept: bool) -> Result<(), Outcome> {
        self.write_files()?;
        self.running.waves.push(Vec::new());
        let mut waiting = Vec::new();
        for step in steps.iter().filter(|step| !(kept && lasts(step))) {
            waiting.push(self.launch(step)?);
        }
        loop {
            let mut still = Vec::new();
            for one in waiting {
                still.extend(self.look(one)?);
            }
            if still.is_empty() {
                return Ok(());
            }
            waiting = still;
            self.running.check_but(&waiting)?;
            thread::sleep(LOOK);
        }
    }

    fn write_files(&mut self) -> Result<(), Outcome> {
        let unwritten = |error: fill::Unwritten| {
            let doing = format!("writing the subject's file {}", error.path);
            failed(doing, error.why, "")
        };
        fill::write_known(&mut self.files, &self.values).map_err(unwritten)
    }

    fn launch<'s>(&mut self, step: &'s Step) -> Result<Waiting<'s>, Outcome> {
        let doing = || format!("starting {} on {}", step.name, step.host);
        let gap = |gap: Gap| failed(doing(), gap.why(), "");
        let command = self.values.all(&step.command).map_err(gap)?;
        let fill = |(name, text): (&String, &String)| Ok((name.clone(), self.values.fill(text)?));
        let env: Result<BTreeMap<_, _>, Gap> = step.env.iter().map(fill).collect();
        let launch = Launch {
            name: &step.name,
            host: &step.host,
            command: &command,
            env: &env.map_err(gap)?,
            dir: self.values.dir,
            apart: step.run != Run::Daemon,
        };
        let process = Process::start(self.values.site, &launch)
            .map_err(|error| failed(doing(), not_started(&command, &error), ""))?;
        let watch = |ready| Watch::new(ready, &process.log, &self.values);
        let watches: Result<Vec<Watch>, Gap> = step.ready.iter().map(watch).collect();
        if let Some(wave) = self.running.waves.last_mut() {
            wave.push(process);
        }
        Ok(Waiting {
            step,
            watches: watches.map_err(gap)?,
            until: Instant::now() + step.ready_within,
        })
    }

    /// Whether a step is still to be waited for.
    fn look<'s>(&mut self, mut waiting: Waiting<'s>) -> Result<Option<Waiting<'s>>, Outcome> {
        let step = waiting.step;
        let doing = || format!("waiting for {} on {}", step.name, step.host);
        let daemon = step.run == Run::Daemon;
        let Some(process) = self.running.find(&step.name) else {
            return Ok(None);
        };
        if let Some(end) = process.end() {
            if daemon || !end.status.success() {
                let what = if daemon {
                    "it ended before it was ready"
                } else {
                    "it failed"
                };
                return Err(failed(
                    doing(),
                    format!("{what}: {}", end.status),
                    process.tail(),
                ));
            }
            return self.take_out(step).map(|()| None);
        }
        if daemon {
            let mut error = None;
            waiting.watches.retain_mut(|watch| {
                let seen = watch.look(&step.name, &step.host, &self.values);
                !seen.unwrap_or_else(|e| {
                    error = Some(format!("looking for {}: {e}", watch.words()));
                    false
                })
            });
            if let Some(why) = error {
                return Err(failed(doing(), why, process.tail()));
            }
            if waiting.watches.is_empty() {
                return Ok(None);
            }
        }
        if Instant::now() < waiting.until {
            Ok(Some(waiting))
        } else {
            Err(failed(doing(), waiting.late(), process.tail()))
        }
    }

    /// Remembers what a step said; it is no process any more.
    fn take_out(&mut self, step: &Step) -> Result<(), Outcome> {
        let Some(wave) = self.running.waves.last_mut() else {
            return Ok(());
        };
        let Some(at) = wave.iter().position(|process| process.name == step.name) else {
            return Ok(());
        };
        let process = wave.remove(at);
        let mut said = String::new();
        let read = File::open(&process.out)
            .and_then(|file| file.take(OUT_LIMIT).read_to_string(&mut said));
        let doing = || format!("reading what {} wrote", step.name);
        read.map_err(|error| failed(doing(), error, process.tail()))?;
        self.values
            .out
            .insert(step.name.clone(), said.trim().to_owned());
        Ok(())
    }

    /// What the steps said that are run once a campaign.
    fn said(&self, steps: &[Step]) -> BTreeMap<String, String> {
        let said =
            |step: &Step| Some((step.name.clone(), self.values.out.get(&step.name)?.clone()));
        steps
            .iter()
            .filter(|step| lasts(step))
            .filter_map(said)
            .collect()
    }

    fn finish(mut self, plan: &Plan) -> Result<Running, Outcome> {
        self.write_files()?;
        if let Some(file) = self.files.first() {
            let gap = self.values.fill(&file.text).err();
            let why = gap.map_or_else(String::new, |gap| gap.why());
            let doing = format!("writing the subject's file {}", file.path);
            return Err(failed(doing, why, ""));
        }
        for way in &plan.ways {
            let mut way = way.clone();
            let fill = |text: &String| self.values.fill(text);
            let target = way.target.as_ref().map(fill).transpose();
            let doing = || format!("finding the way in on {}", way.host);
            way.target = target.map_err(|gap| failed(doing(), gap.why(), ""))?;
            self.running.ways.push(way);
        }
        Ok(self.running)
    }
}

impl Running {
    fn find(&self, name: &str) -> Option<&Process> {
        let mut all = self.waves.iter().flatten();
        all.find(|process| process.name == name)
    }

    /// Whether all live that are not waited for.
    fn check_but(&self, waiting: &[Waiting<'_>]) -> Result<(), Outcome> {
        let awaited = |name: &str| waiting.iter().any(|one| one.step.name == name);
        let others = self.waves.iter().flatten();
        for process in others.filter(|process| !awaited(&process.name)) {
            if let Some(end) = process.end() {
                let names: Vec<&str> = waiting.iter().map(|one| one.step.name.as_str()).collect();
                let doing = format!("waiting for {}", names.join(", "));
                let why = format!("{} ended meanwhile: {}", process.name, end.status);
                return Err(failed(doing, why, process.tail()));
            }
        }
        Ok(())
    }
}

impl Waiting<'_> {
    fn late(&self) -> String {
        let seconds = self.step.ready_within.as_secs_f64();
        let missing: Vec<&str> = self.watches.iter().map(Watch::words).collect();
        match self.step.run {
            Run::Daemon => format!(
                "not ready after {seconds} s; missing: {}",
                missing.join("; ")
            ),
            Run::Once | Run::OncePerCampaign => format!("not done after {seconds} s"),
        }
    }
}

fn not_started(command: &[String], error: &io::Error) -> String {
    let program = command.first().map_or("", String::as_str);
    match error.kind() {
        io::ErrorKind::NotFound => {
            format!("there is no program {program:?}: 'hoplite-lab doctor' says what installs it")
        }
        _ => format!("{program}: {error}"),
    }
}

/// Names become names of files: they must be plain and different. Hosts must exist.
fn check_names(plan: &Plan, site: &dyn Site) -> Result<(), Outcome> {
    let mut seen = BTreeSet::new();
    for step in &plan.steps {
        let name = &step.name;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let good = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain);
        let why = if !good {
            "a step's name has only letters, digits, '-', '_' and '.'".to_owned()
        } else if !seen.insert(name) {
            "two steps have that name".to_owned()
        } else if site.addresses(&step.host).is_none() {
            format!("there is no host {:?}", step.host)
        } else {
            continue;
        };
        return Err(failed(format!("reading the step {name:?}"), why, ""));
    }
    Ok(())
}

fn failed(doing: impl Into<String>, why: impl Display, log: impl Into<String>) -> Outcome {
    Outcome::Failed {
        doing: doing.into(),
        why: why.to_string(),
        log: log.into(),
    }
}

/// The campaign's part of a subject.
#[derive(Debug)]
struct SharedDir {
    /// `{shared}`.
    dir: PathBuf,
    /// What the steps said that are done for good; `None` while they are still to be run.
    said: Option<BTreeMap<String, String>>,
    done: PathBuf,
    lock: Option<File>,
}

impl SharedDir {
    /// Takes what is there, or clears away what is half made. Waits while another process is making it.
    fn open(plan: &Plan, site: &dyn Site, shared: &Path) -> io::Result<Self> {
        fs::create_dir_all(shared)?;
        if !plan.steps.iter().any(lasts) {
            return Ok(Self {
                dir: shared.to_owned(),
                said: Some(BTreeMap::new()),
                done: PathBuf::new(),
                lock: None,
            });
        }
        let id = identity(plan, site);
        let beside = |end: &str| shared.join(format!("{id}{end}"));
        let lock = File::create(beside(".lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let (dir, done) = (beside(""), beside(".done"));
        let said = remembered(&done)?;
        if said.is_none() {
            clear(&dir)?;
        }
        let lock = said.is_none().then_some(lock);
        Ok(Self {
            dir,
            said,
            done,
            lock,
        })
    }

    /// All of it is made: from now on it counts.
    fn complete(&mut self, said: &BTreeMap<String, String>) -> io::Result<()> {
        let new = self.done.with_extension("new");
        fs::write(&new, serde_json::to_vec(said)?)?;
        File::open(&new)?.sync_all()?;
        fs::rename(&new, &self.done)?;
        self.said = Some(said.clone());
        self.lock = None;
        Ok(())
    }
}

/// Whether what the step makes is kept.
fn lasts(step: &Step) -> bool {
    step.run == Run::OncePerCampaign
}

fn remembered(done: &Path) -> io::Result<Option<BTreeMap<String, String>>> {
    match fs::read(done) {
        // One that cannot be read is not ours: it is made again.
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn clear(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir(dir)
}

/// Depends on what the steps do: their commands with addresses filled in, and the files that these name; a command that names the whole
/// directory may read any of them.
fn identity(plan: &Plan, site: &dyn Site) -> String {
    let symbol = |step: &Step| (step.name.clone(), format!("{{out:{}}}", step.name));
    let values = Values {
        dir: Path::new("{dir}"),
        shared: "{shared}".into(),
        site,
        out: plan.steps.iter().map(symbol).collect(),
    };
    let fill = |text: &String| values.fill(text).unwrap_or_else(|_| text.clone());
    let mut whole = String::new();
    for step in plan.steps.iter().filter(|step| lasts(step)) {
        let command: Vec<String> = step.command.iter().map(fill).collect();
        let env: Vec<String> = step.env.values().map(fill).collect();
        let names: Vec<&String> = step.env.keys().collect();
        whole += &format!("{:?}\n", (&step.name, &step.host, command, names, env));
        for file in &plan.files {
            if step.command.iter().any(|word| reads(word, file, plan)) {
                whole += &format!("{:?}\n", (&file.path, fill(&file.text)));
            }
        }
    }
    let hash = digest::digest(&digest::SHA256, whole.as_bytes());
    let head = hash.as_ref().iter().take(8);
    head.map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a word of a command leads to a file.
fn reads(word: &str, file: &subject::File, plan: &Plan) -> bool {
    let names = |file: &subject::File| word.contains(&format!("{{dir}}/{}", file.path));
    names(file) || (word.contains("{dir}") && !plan.files.iter().any(names))
}

/// How often one looks whether a process has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// After so long one asks again.
const AGAIN: Duration = Duration::from_millis(300);

/// What a process used over its life.
#[derive(Clone, Debug, PartialEq)]
pub struct Stopped {
    /// Its name in the subject.
    pub name: String,
    /// Where it ran.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// Processor time over its life, its children's included that it waited for.
    pub life_cpu: Duration,
    /// Peak resident memory in bytes.
    pub peak_memory: u64,
    /// Whether it, or something that it started, had to be killed.
    pub killed: bool,
}

/// Stops those that were started together: TERM, TERM again, and KILL for what is still there after `patience`.
fn stop_together(processes: &[Process], patience: Duration) -> Vec<Stopped> {
    let peak = |process: &Process| process.inner.peak_memory().unwrap_or_default();
    let peaks: Vec<u64> = processes.iter().map(peak).collect();
    signal(processes, Signal::TERM);
    wait(processes, patience.min(AGAIN));
    signal(processes, Signal::TERM);
    wait(processes, patience.saturating_sub(AGAIN));
    let killed: Vec<bool> = processes.iter().map(|one| !one.gone()).collect();
    signal(processes, Signal::KILL);
    // A process that is killed ends, unless the kernel holds it: then nobody can help.
    wait(processes, Duration::from_secs(1));
    let stopped = processes.iter().zip(peaks).zip(killed);
    let stopped = stopped.map(|((process, peak_memory), killed)| Stopped {
        name: process.name.clone(),
        host: process.host.clone(),
        pid: process.inner.pid,
        life_cpu: process.inner.cpu(),
        peak_memory,
        killed,
    });
    stopped.collect()
}

/// To all that are still there.
fn signal(processes: &[Process], signal: Signal) {
    let left = processes.iter().filter(|process| !process.gone());
    left.for_each(|process| process.signal(signal));
}

fn wait(processes: &[Process], patience: Duration) {
    let until = Instant::now() + patience;
    while !processes.iter().all(Process::gone) && Instant::now() < until {
        thread::sleep(PAUSE);
    }
}
