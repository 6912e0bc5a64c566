//! The workloads of an attempt and their servers: a `__serve` process in each host that something is fetched from, and a `__work` process for
//! each workload, group after group, those of a group together, each at its time. Between two words of theirs, one looks whether all else works.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::IpAddr,
    os::fd::AsFd,
    path::PathBuf,
    process::{ChildStdin, ChildStdout, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use ring::digest;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Signal,
};

use super::{failed, inside};
use crate::{
    emulator::distance::Distances,
    experiments::{
        subject::WayIn,
        trial::{Outcome, ProcessUse, Trial},
        workload::{
            Kind, Order, Plan, Ports, Transfer, Way,
            browse::{Served, Surroundings, pages::Protocol},
            run::http::pages,
        },
    },
    log::tail,
    netns::{Host, Lab, Process, user::THIS_PROGRAM},
    topology::Addresses,
};

/// What one line of a workload may weigh, in bytes: a transfer with its round trips.
const LINE: u64 = 256 << 20;

/// How long a workload may take to end after its last word.
const WORK_PATIENCE: Duration = Duration::from_secs(5);

/// A workload that was started.
#[derive(Debug)]
pub(super) struct Work<'a> {
    pub(super) plan: &'a Plan,
    process: Process,
    /// As far as it was seen.
    peak: u64,
    log: PathBuf,
}

/// What happens to a workload, by its number.
#[derive(Debug)]
pub(super) enum Event {
    /// It has told of a transfer.
    Transfer(usize, Box<Transfer>),
    /// It has said what is no transfer.
    Nonsense(usize, String),
    /// It says no more.
    Silence(usize),
}

/// What every workload of an attempt needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) trial: &'a Trial,
    pub(super) lab: &'a Lab,
    pub(super) ways: &'a [WayIn],
}

impl<'a> Work<'a> {
    /// Starts it; what it says comes to `events` under its number.
    pub(super) fn start(
        site: Site<'_>,
        plan: &'a Plan,
        number: usize,
        events: SyncSender<Event>,
    ) -> Result<Self, Outcome> {
        let started = Self::launch(site, plan).and_then(|(work, stdout)| {
            listen(stdout, number, events)?;
            Ok(work)
        });
        let doing = || format!("starting the workload {}", plan.name);
        started.map_err(|error| failed(doing(), error.to_string(), ""))
    }

    fn launch(site: Site<'_>, plan: &'a Plan) -> io::Result<(Self, ChildStdout)> {
        let order = order(site, plan)?;
        let log = log_of(site.trial, &name_of(plan))?;
        let host = host(site.lab, &plan.from)?;
        let launch = host.command([THIS_PROGRAM, "__work"]).log(&log)?;
        let mut process = launch
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = process.stdin.take() {
            let mut line = serde_json::to_vec(&order)?;
            line.push(b'\n');
            stdin.write_all(&line)?;
        }
        let stdout = process.stdout.take();
        let work = Self {
            plan,
            process,
            peak: 0,
            log,
        };
        Ok((
            work,
            stdout.ok_or_else(|| io::Error::other("it has no output"))?,
        ))
    }

    /// It says something: the moment to look how large it is.
    pub(super) fn seen(&mut self) {
        let peak = self.process.is_alive().then(|| self.process.peak_memory());
        self.peak = self.peak.max(peak.flatten().unwrap_or_default());
    }

    /// It says no more: it must have ended well.
    pub(super) fn ended(&self) -> Result<(), Outcome> {
        match self.process.wait_for(WORK_PATIENCE) {
            Some(exit) if exit.status.success() => Ok(()),
            Some(exit) => Err(self.failed(format!("it ended: {}", exit.status))),
            None => Err(self.failed("it neither says anything nor ends".into())),
        }
    }

    pub(super) fn failed(&self, why: String) -> Outcome {
        failed(
            format!("running the workload {}", self.plan.name),
            why,
            tail(&self.log),
        )
    }

    /// What it used, all of it while workloads ran.
    pub(super) fn used(&self) -> ProcessUse {
        inside::process_use(
            name_of(self.plan),
            &self.plan.from,
            &self.process,
            self.peak,
            None,
        )
    }
}

fn host<'a>(lab: &'a Lab, name: &str) -> io::Result<&'a Host> {
    let none = || io::Error::other(format!("there is no host {name:?}"));
    Ok(lab.host(name).ok_or_else(none)?)
}

fn name_of(plan: &Plan) -> String {
    format!("work:{}", plan.name)
}

/// What the process is told.
fn order(site: Site<'_>, plan: &Plan) -> io::Result<Order> {
    let server = host(site.lab, &plan.to)?.addresses.v4.to_string();
    let way_in = site
        .ways
        .iter()
        .find(|way| way.host == plan.from && !plan.direct);
    let target = way_in.and_then(|way| way.target.clone());
    let has_name = plan.resolver.is_some() && !matches!(plan.kind, Kind::Browse(_));
    let fresh_names = has_name && target.is_none();
    let own = if fresh_names {
        Protocol::Http1.zone()
    } else {
        server
    };
    Ok(Order {
        plan: plan.clone(),
        way: way_in.map_or(Way::Direct, |way| way.way.clone()),
        nearest: nearest(site.trial, plan, target.as_deref())?,
        target: target.unwrap_or(own),
        fresh_names,
        ports: Ports::default(),
        seed: seed(site.trial.seed, &plan.name),
        qlog: qlog_of(site.trial, &name_of(plan))?,
        interface: None,
        surroundings: surroundings(site.trial, plan)?,
    })
}

/// Which of several servers is nearest to each host of the network, should the client be seen there.
fn nearest(
    trial: &Trial,
    plan: &Plan,
    target: Option<&str>,
) -> io::Result<BTreeMap<IpAddr, IpAddr>> {
    match (plan.among.is_empty(), target) {
        (true, _) => Ok(BTreeMap::new()),
        (false, None) => {
            let distances = Distances::of(&trial.topology).map_err(io::Error::other)?;
            Ok(distances.nearest_to_each(&plan.among))
        }
        (false, Some(_)) => Err(io::Error::other(
            "the subject's way in has a target of its own: there is no choice among servers",
        )),
    }
}

/// What a browser finds: made when its workload begins.
fn surroundings(trial: &Trial, plan: &Plan) -> io::Result<Option<Surroundings>> {
    if !matches!(plan.kind, Kind::Browse(_)) {
        return Ok(None);
    }
    let made = |part: &str| {
        let directory = trial.directory.join(part).join(plain(&plan.name));
        fs::create_dir_all(&directory)?;
        io::Result::Ok(directory)
    };
    Ok(Some(Surroundings {
        authority: pages::certificate_of(&authority(trial)),
        scratch: made("profiles")?,
        har: trial.record.har.then(|| made("har")).transpose()?,
    }))
}

/// Where the authority of the pages is.
fn authority(trial: &Trial) -> PathBuf {
    trial.directory.join("authority")
}

/// The workload whose server has names, if there is one, and the host that knows them.
fn named(trial: &Trial) -> Option<(&Plan, &str)> {
    let mut plans = trial.workloads.iter();
    plans.find_map(|plan| Some((plan, plan.resolver.as_deref()?)))
}

/// The host that knows the server's names, if it has any.
pub(super) fn resolver(trial: &Trial) -> Option<&str> {
    named(trial).map(|(_, resolver)| resolver)
}

/// What servers are told of pages, if the server has names; makes their authority.
fn served(trial: &Trial, lab: &Lab) -> io::Result<Option<String>> {
    let Some((plan, _)) = named(trial) else {
        return Ok(None);
    };
    let served = Served {
        authority: authority(trial),
        address: host(lab, &plan.to)?.addresses.v4,
    };
    pages::make_authority(&served.authority)?;
    Ok(Some(serde_json::to_string(&served)?))
}

/// Depends on the trial's seed and the workload's name only: another workload beside it changes nothing.
fn seed(trial: u64, name: &str) -> u64 {
    let text = [trial.to_be_bytes().as_slice(), name.as_bytes()].concat();
    let hash = digest::digest(&digest::SHA256, &text);
    let head = hash.as_ref().first_chunk::<8>();
    head.map_or(trial, |bytes| u64::from_be_bytes(*bytes))
}

/// Reads transfers until the end.
fn listen(stdout: ChildStdout, number: usize, events: SyncSender<Event>) -> io::Result<()> {
    let reading = move || {
        let mut lines = BufReader::new(stdout);
        while let Some(event) = next(&mut lines, number) {
            if events.send(event).is_err() {
                return;
            }
        }
        // Nobody listens any more when the attempt is over.
        events.send(Event::Silence(number)).ok();
    };
    thread::Builder::new().name("work".into()).spawn(reading)?;
    Ok(())
}

fn next(lines: &mut BufReader<ChildStdout>, number: usize) -> Option<Event> {
    let mut line = String::new();
    match lines.take(LINE).read_line(&mut line) {
        Ok(0) => None,
        Ok(_) => Some(match serde_json::from_str(&line) {
            Ok(transfer) => Event::Transfer(number, Box::new(transfer)),
            Err(error) => Event::Nonsense(number, error.to_string()),
        }),
        Err(error) => Some(Event::Nonsense(number, error.to_string())),
    }
}

/// The log of a process of the lab's own, in `logs/`.
fn log_of(trial: &Trial, process: &str) -> io::Result<PathBuf> {
    let logs = trial.directory.join("logs");
    fs::create_dir_all(&logs)?;
    Ok(logs.join(format!("{}.log", plain(process))))
}

/// Where a process writes its qlogs, in `qlog/PROCESS/`, if they are wanted.
pub(super) fn qlog_of(trial: &Trial, process: &str) -> io::Result<Option<PathBuf>> {
    if !trial.record.qlog {
        return Ok(None);
    }
    let directory = trial.directory.join("qlog").join(plain(process));
    fs::create_dir_all(&directory)?;
    Ok(Some(directory))
}

/// Names of processes become names of files.
fn plain(process: &str) -> String {
    process.replace(['/', '\0'], "_")
}

/// How often one looks after the others while no workload says anything.
const LOOK: Duration = Duration::from_millis(100);

/// Words of workloads that may wait to be heard; then those who speak wait.
const WORDS: usize = 4096;

/// What the workloads of an attempt did.
#[derive(Debug, Default)]
pub(super) struct Carried<'a> {
    /// Every transfer, in the order of their ends.
    pub(super) transfers: Vec<Transfer>,
    /// Every workload, in the order of their starts.
    pub(super) works: Vec<Work<'a>>,
}

/// A group under way.
struct Group<'a, 'c> {
    site: Site<'a>,
    carried: &'c mut Carried<'a>,
    /// Those that were not started yet, the next one last.
    pending: Vec<&'a Plan>,
    /// How many were started and still speak.
    open: usize,
    began: Instant,
    say: SyncSender<Event>,
    hear: Receiver<Event>,
}

/// Runs all groups; `check` is asked again and again whether to go on.
///
/// # Errors
/// The first thing that went wrong; what was carried until then stays in `carried`.
pub(super) fn run<'a>(
    site: Site<'a>,
    carried: &mut Carried<'a>,
    mut check: impl FnMut(&str) -> Result<(), Outcome>,
) -> Result<(), Outcome> {
    for plans in grouped(site.trial) {
        let doing = format!("running the workloads {}", names(&plans));
        check(&doing)?;
        Group::new(site, carried, plans).run(&mut || check(&doing))?;
    }
    Ok(())
}

/// By group, the groups in the order of their first mention, the last to start first.
fn grouped(trial: &Trial) -> Vec<Vec<&Plan>> {
    let mut groups: Vec<Vec<&Plan>> = Vec::new();
    for plan in &trial.workloads {
        let same = |group: &&mut Vec<&Plan>| group.iter().any(|other| other.group == plan.group);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(plan),
            None => groups.push(vec![plan]),
        }
    }
    for group in &mut groups {
        group.sort_by_key(|plan| plan.at);
        group.reverse();
    }
    groups
}

fn names(plans: &[&Plan]) -> String {
    let names: Vec<&str> = plans.iter().rev().map(|plan| plan.name.as_str()).collect();
    names.join(", ")
}

impl<'a, 'c> Group<'a, 'c> {
    fn new(site: Site<'a>, carried: &'c mut Carried<'a>, pending: Vec<&'a Plan>) -> Self {
        let (say, hear) = sync_channel(WORDS);
        Self {
            site,
            carried,
            pending,
            open: 0,
            began: Instant::now(),
            say,
            hear,
        }
    }

    fn run(&mut self, check: &mut dyn FnMut() -> Result<(), Outcome>) -> Result<(), Outcome> {
        let mut checked = Instant::now();
        while self.open > 0 || !self.pending.is_empty() {
            self.start_due()?;
            match self.hear.recv_timeout(self.pause()) {
                Ok(event) => self.handle(event)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if checked.elapsed() >= LOOK {
                check()?;
                checked = Instant::now();
            }
        }
        Ok(())
    }

    fn start_due(&mut self) -> Result<(), Outcome> {
        let begun = self.began.elapsed();
        while let Some(plan) = self.pending.pop_if(|plan| plan.at <= begun) {
            let number = self.carried.works.len();
            let work = Work::start(self.site, plan, number, self.say.clone())?;
            self.carried.works.push(work);
            self.open += 1;
        }
        Ok(())
    }

    /// Until the next one is due or it is time to look after the others.
    fn pause(&self) -> Duration {
        let next = self.pending.last();
        let next = next.map(|plan| plan.at.saturating_sub(self.began.elapsed()));
        next.unwrap_or(LOOK).min(LOOK)
    }

    fn handle(&mut self, event: Event) -> Result<(), Outcome> {
        let (Event::Transfer(number, _) | Event::Nonsense(number, _) | Event::Silence(number)) =
            &event;
        let Some(work) = self.carried.works.get_mut(*number) else {
            return Ok(());
        };
        match event {
            Event::Transfer(_, transfer) => {
                work.seen();
                check_cover(self.site, work.plan, &transfer)?;
                self.carried.transfers.push(*transfer);
                Ok(())
            }
            Event::Nonsense(_, why) => {
                Err(work.failed(format!("it said what is no transfer: {why}")))
            }
            Event::Silence(_) => {
                self.open -= 1;
                work.ended()
            }
        }
    }
}

/// A subject that promises to hide the client must not let the server see it.
fn check_cover(site: Site<'_>, plan: &Plan, transfer: &Transfer) -> Result<(), Outcome> {
    let own = addresses(site.lab, &plan.from);
    let seen = transfer.seen_as.map(|seen| seen.to_canonical());
    let promised = site.trial.subject.hides_client && !plan.direct;
    match (seen, own) {
        (Some(seen), Some(own)) if promised && is_of(seen, own) => {
            let why = format!(
                "the server saw the address of {} itself, {seen}: the traffic went beside the subject",
                plan.from
            );
            Err(failed(
                format!("running the workload {}", plan.name),
                why,
                "",
            ))
        }
        _ => Ok(()),
    }
}

fn is_of(seen: IpAddr, own: Addresses) -> bool {
    seen == own.v4 || seen == own.v6
}

fn addresses(lab: &Lab, host: &str) -> Option<Addresses> {
    lab.host(host).map(|host| host.addresses)
}

/// How long a server may take to open its ports on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How long it may take to end.
const SERVER_PATIENCE: Duration = Duration::from_secs(3);

/// All servers of an attempt. What is not stopped ends with the world.
#[derive(Debug, Default)]
pub(super) struct Servers(Vec<Server>);

#[derive(Debug)]
struct Server {
    host: String,
    process: Process,
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Servers {
    /// Starts them all, then waits until all are ready.
    pub(super) fn start(trial: &Trial, lab: &Lab) -> Result<Self, Outcome> {
        let plans = trial.workloads.iter();
        let all = plans.flat_map(|plan| plan.among.iter().chain([&plan.to]));
        let mut hosts: BTreeSet<&str> = all.map(String::as_str).collect();
        hosts.extend(resolver(trial));
        let served = served(trial, lab)
            .map_err(|error| failed("making the authority of the pages", error.to_string(), ""))?;
        let started = hosts.into_iter().map(|host| {
            let server = Server::start(trial, lab, (host, served.as_deref()));
            server.map_err(|error| {
                failed(
                    format!("starting the server on {host}"),
                    error.to_string(),
                    "",
                )
            })
        });
        let mut servers = started.collect::<Result<Vec<_>, _>>()?;
        let until = Instant::now() + READY_WITHIN;
        servers
            .iter_mut()
            .try_for_each(|server| server.wait(until))?;
        Ok(Self(servers))
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.0.iter().map(|server| &server.process)
    }

    /// Whether all still serve.
    pub(super) fn check(&self) -> Result<(), Outcome> {
        let ended = |server: &&Server| !server.process.is_alive();
        match self.0.iter().find(ended) {
            Some(server) => Err(server.ended(format!("serving on {}", server.host))),
            None => Ok(()),
        }
    }

    /// Ends them; `cpu_s` is what each used while the workloads ran.
    pub(super) fn stop(self, cpu_s: &[f64]) -> Vec<ProcessUse> {
        let peaks: Vec<u64> = self.processes().map(peak).collect();
        let mut servers = self.0;
        for server in &mut servers {
            server.stdin = None;
        }
        let uses = servers.iter().zip(peaks).zip(cpu_s);
        uses.map(|((server, peak), cpu_s)| server.end(peak, *cpu_s))
            .collect()
    }
}

fn peak(process: &Process) -> u64 {
    process.peak_memory().unwrap_or_default()
}

impl Server {
    fn start(trial: &Trial, lab: &Lab, (host, served): (&str, Option<&str>)) -> io::Result<Self> {
        let none = || io::Error::other(format!("there is no host {host:?}"));
        let log = log_of(trial, &format!("serve:{host}"))?;
        let launch = lab
            .host(host)
            .ok_or_else(none)?
            .command([THIS_PROGRAM, "__serve"]);
        let mut launch = launch
            .log(&log)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(qlog) = qlog_of(trial, &format!("serve:{host}"))? {
            launch = launch.env("QLOGDIR", qlog);
        }
        if let Some(served) = served {
            launch = launch.env(Served::VARIABLE, served);
        }
        let mut process = launch.spawn()?;
        Ok(Self {
            host: host.to_owned(),
            stdin: process.stdin.take(),
            process,
            log,
        })
    }

    /// Waits for the line `ready`.
    fn wait(&mut self, until: Instant) -> Result<(), Outcome> {
        let doing = format!("waiting for the server on {}", self.host);
        let Some(mut stdout) = self.process.stdout.take() else {
            return Err(self.ended(doing));
        };
        let said = first_line(&mut stdout, until);
        // It says nothing more, but must not fail for want of somebody who listens.
        self.process.stdout = Some(stdout);
        match said {
            Ok(line) if line == b"ready\n" => Ok(()),
            Ok(_) if !self.process.is_alive() => Err(self.ended(doing)),
            Ok(_) => Err(failed(doing, "it is not ready in time", tail(&self.log))),
            Err(error) => Err(failed(doing, error.to_string(), tail(&self.log))),
        }
    }

    fn ended(&self, doing: String) -> Outcome {
        let exit = self.process.wait_for(Duration::from_secs(1));
        let why = exit.map_or_else(
            || "it ended".into(),
            |exit| format!("it ended: {}", exit.status),
        );
        failed(doing, why, tail(&self.log))
    }

    fn end(&self, peak: u64, cpu_s: f64) -> ProcessUse {
        if self.process.wait_for(SERVER_PATIENCE).is_none() {
            tracing::warn!(host = self.host, "the server does not end by itself");
            self.process.signal_group(Signal::KILL).ok();
            let _exit = self.process.wait_for(SERVER_PATIENCE);
        }
        let name = format!("serve:{}", self.host);
        inside::process_use(name, &self.host, &self.process, peak, Some(cpu_s))
    }
}

/// Reads until the end of a line, the end, or the deadline.
fn first_line(stdout: &mut ChildStdout, until: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') && line.len() < 100 {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut ready = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::IN)];
        let mut byte = [0];
        if poll(&mut ready, Some(&left))? == 0 || stdout.read(&mut byte)? == 0 {
            break;
        }
        line.extend(byte);
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workloads_seed_depends_on_the_trial_and_its_name() {
        assert_eq!(seed(1, "a"), seed(1, "a"));
        assert_ne!(seed(1, "a"), seed(1, "b"));
        assert_ne!(seed(1, "a"), seed(2, "a"));
    }
}
