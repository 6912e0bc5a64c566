//! `hoplite up`: the whole device through the relays, and nothing past them.
//! `down` and `status` are its other halves. What each state means stands in docs/device.md.
//!
//! # Not in this room
//! What is done with packets (`mediator::tun`), what carries them (`masque`, `onion`).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, Write},
    net::SocketAddr,
    os::{
        fd::AsFd,
        unix::{
            fs::{DirBuilderExt, OpenOptionsExt},
            process::ExitStatusExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use clap::Args;
use ipnet::IpNet;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::{
    client::service,
    config::{self, client::Client},
    portal, process, say,
    say::{Complaint, Failure},
};
use control::Status;
use plan::{Facts, Wanted};
use session::Orders;

pub(crate) use apart::{Channel, pair as channel_pair};
pub(crate) use confine::{UnixSockets, confine};
pub(crate) use netlink::Netlink;
pub(crate) use nftables::count as firewall_count;
pub(crate) use session::on_one_thread as session_runtime;
pub(crate) use traffic::{failure as probe_failure, until_it_flows};

mod apart;
pub(crate) mod block;
mod cgroups;
mod confine;
pub(crate) mod control;
pub(crate) mod driver;
mod netlink;
pub(crate) mod nftables;
pub(crate) mod plan;
mod resolv;
mod session;
mod stocks;
mod traffic;
mod watch;

/// `hoplite up`
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The client's TOML file.
    #[arg(long, value_name = "FILE", required_unless_present = "block_only")]
    config: Option<PathBuf>,
    /// Let traffic go past the relays while the process is not there.
    #[arg(long)]
    no_block: bool,
    /// Do not go into the background.
    #[arg(long)]
    foreground: bool,
    /// When a signal ends it, or it fails before traffic flows, leave everything blocked; only `hoplite down` opens.
    #[arg(long)]
    keep_block: bool,
    /// Take the place of the one that is up, with this file instead of its own; what blocks stays meanwhile. If this one then fails, everything stays
    /// blocked.
    #[arg(long, conflicts_with = "block_only")]
    replace: bool,
    /// Block everything, now and without a process, even if the file is wrong; `hoplite up` takes over, `hoplite down` opens. For boot. With
    /// `--foreground` the process stays, and blocks again what others open.
    #[arg(long, conflicts_with_all = ["no_block", "keep_block"])]
    block_only: bool,
    /// Take the traffic of this network behind the machine, such as 192.168.7.0/24, beside those of `takeover.gateway` in the file; may be given several times.
    #[arg(long, value_name = "NETWORK")]
    gateway: Vec<IpNet>,
    /// Go on where there is no nftables that works: routes alone block, and a program that binds to an interface goes round them.
    #[arg(long, conflicts_with = "no_block")]
    no_firewall: bool,
    /// Seconds to wait until traffic flows, before giving up; a day at most.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=86_400))]
    wait: u64,
    #[command(flatten)]
    place: Place,
    /// What the command in the background is called with.
    #[arg(long, hide = true)]
    detached: bool,
    /// What the process that carries the traffic is called with.
    #[arg(long, hide = true)]
    worker: bool,
}

impl Options {
    /// Whether this is the process that carries the traffic: it must give up its rights before it has a second thread.
    pub(crate) fn is_worker(&self) -> bool {
        self.worker
    }
}

/// Where what lasts while the machine runs is kept.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The directory of lock, control socket and log.
    #[arg(long, value_name = "DIR", default_value = "/run/hoplite")]
    pub(crate) run_dir: PathBuf,
}

/// Whom the networks say to ask for names.
pub(crate) fn network_servers(run_dir: &Path) -> Vec<SocketAddr> {
    let ours = config::client::Config::default().dns.resolvers;
    driver::network_servers(&resolv::ResolvConf::system(run_dir), &ours)
}

/// A table of nftables called `group` that lets the control group of that name pass.
pub(crate) fn firewall_of_group(group: &str) -> io::Result<String> {
    let mut wanted = Wanted::from_config(&config::client::Config::default(), true);
    wanted.past_cgroups = vec![group.parse().map_err(io::Error::other)?];
    let facts = Facts {
        groups: cgroups::numbers(wanted.cgroups()),
        ..Facts::default()
    };
    Ok(nftables::of_groups(group, &wanted, &facts))
}

/// Runs the command.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    if !options.detached {
        start(options, json)
    } else {
        detach();
        let result = stay(options, |status, warnings| {
            say(&Word::Ready(Box::new(status.clone()), warnings.to_vec()))
        });
        if let Err(failure) = &result {
            // If nobody hears it, it stands in the log.
            drop(say(&Word::Failed(failure.complaints())));
        }
        result
    }
}

/// The process that carries the traffic. Of what others have written it reads the user's own files alone before it has given up all rights:
/// the client's, and those of its onion services.
pub(crate) fn work<G>(
    options: &Options,
    logs: impl FnOnce() -> Result<G, Failure>,
) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let remedy = "give it CAP_SETUID and CAP_SETGID, or another `user` in [takeover]";
        Failure::new("giving up all rights", error, remedy)
    };
    let client = load(options)?;
    let services = service::prepare(&client.config.service)?;
    let sockets = if services
        .iter()
        .any(service::Prepared::leads_to_unix_sockets)
    {
        UnixSockets::Opens
    } else {
        UnixSockets::OpensNone
    };
    let user = client.config.takeover.user();
    let confined = confine(user, sockets).map_err(failed)?;
    let _logs = logs()?;
    if confined.is_root {
        warn!(
            "this user namespace has no user {user}: the process that carries traffic has no right, and yet root's files"
        );
    }
    if let Some(error) = confined.unfiltered {
        warn!(%error, "the kernel filters no calls (seccomp): whoever takes over the process that carries traffic can start others, which stay");
    }
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(failed)?;
    let task = apart::Task {
        client,
        services,
        wait: Duration::from_secs(options.wait),
        recording: process::Recording::from_environment()?,
    };
    session::on_one_thread(apart::work(task, socket))
}

/// What was called by the user.
fn start(options: &Options, json: bool) -> Result<(), Failure> {
    if options.block_only {
        rights()?;
        return block(options, json);
    }
    let client = load(options)?;
    rights()?;
    client.warnings.iter().for_each(|it| warn!("{it}"));
    if options.replace {
        replace(options, &client.config.device.name)?;
    }
    if options.foreground {
        return stay(options, |status, _| {
            process::notify_ready();
            // It is up, whether anybody can read that or not.
            tell(status, json).unwrap_or_else(|failure| say::remark(failure.to_string()));
            Ok(())
        });
    }
    let name = &client.config.device.name;
    // Whether it is up already is told before a process is started for nothing, and its log taken from the one that runs.
    drop(take_lock(options)?);
    let log = options.place.run_dir.join(format!("{name}.log"));
    let child = command(&log, "--detached").and_then(|mut command| command.spawn());
    let (status, warnings) = match child {
        Ok(child) => heard_of(child, &log)?,
        Err(error) => {
            let failure = Failure::file("starting a process that logs to", &log, &error);
            return Err(kept_blocked(options, failure));
        }
    };
    // Its own words go to its log.
    warnings.iter().for_each(|warning| warn!("{warning}"));
    tell(&status, json)
}

/// How long the one that was up may take to end, after it has answered.
const REPLACE_RETRIES: u32 = 50;
const REPLACE_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Ends the one that is up, if there is one, and waits until its lock is free.
fn replace(options: &Options, name: &str) -> Result<(), Failure> {
    let path = control::path(&options.place.run_dir, name);
    let reply = control::ask(&path, control::Command::Leave)
        .map_err(|error| Failure::file("asking the process that listens at", &path, &error))?;
    if let Some(failed) = reply.as_ref().and_then(|reply| reply.get("failed")) {
        warn!("the one that was up: {failed}");
    }
    for _ in 0..REPLACE_RETRIES {
        match Lock::take(&options.place.run_dir, DEVICE_LOCK) {
            Err(Refusal::Held(_)) => std::thread::sleep(REPLACE_RETRY_PAUSE),
            Err(Refusal::Full(complaint) | Refusal::Failed(complaint)) => {
                return Err(complaint.into());
            }
            Ok(_) => break,
        }
    }
    Ok(())
}

fn load(options: &Options) -> Result<Client, Failure> {
    let Some(path) = &options.config else {
        return Ok(Client::default());
    };
    let mut client = config::client::load(path)?;
    client.config.takeover.gateway.extend(&options.gateway);
    Ok(client)
}

fn rights() -> Result<(), Failure> {
    if !driver::may_set_up() {
        let remedy = "run it as root, or give it CAP_NET_ADMIN";
        let why = "Operation not permitted";
        return Err(Failure::new("setting up the network", why, remedy));
    }
    if let Err(error) = driver::share_capability() {
        warn!(%error, "nft and resolvectl may lack CAP_NET_ADMIN");
    }
    Ok(())
}

fn take_lock(options: &Options) -> Result<Lock, Failure> {
    Lock::take(&options.place.run_dir, DEVICE_LOCK).map_err(|refusal| match refusal {
        Refusal::Full(complaint) | Refusal::Failed(complaint) => {
            kept_blocked(options, complaint.into())
        }
        Refusal::Held(pid) => refused(pid),
    })
}

/// It cannot even begin: what shall be left blocked however it ends, is blocked now.
fn kept_blocked(options: &Options, failure: Failure) -> Failure {
    if options.keep_block {
        match session::on_one_thread(async { blocking(options).instead().await }) {
            Ok(()) => return session::leaving(failure, true),
            Err(worse) => say::remark(worse.to_string()),
        }
    }
    failure
}

/// Another process has the lock.
fn refused(pid: u32) -> Failure {
    let who = if pid == 0 {
        String::new()
    } else {
        format!(" (process {pid})")
    };
    let why = format!("it is up already{who}");
    let remedy = "see 'hoplite status', take its place with --replace, or 'hoplite down' first";
    Failure::new("bringing the device up", why, remedy)
}

/// The process that stays.
fn stay(
    options: &Options,
    ready: impl FnOnce(&Status, &[String]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let client = load(options)?;
    rights()?;
    process::raise_file_limit();
    let _lock = take_lock(options)?;
    block::close(&options.place.run_dir);
    if options.no_block {
        nftables::Nftables::new(&options.place.run_dir).forget();
    }
    session::on_one_thread(async {
        forget_portal(options).await;
        let mut wanted = Wanted::from_config(&client.config, !options.no_block);
        wanted.no_firewall = options.no_firewall;
        let orders = Orders {
            wanted,
            client,
            run_dir: options.place.run_dir.clone(),
            keep_block: options.keep_block,
            wait: Duration::from_secs(options.wait),
        };
        session::run(&orders, ready).await
    })
}

/// What a killed one has left does not pass any more; it is no reason to leave the machine open.
async fn forget_portal(options: &Options) {
    if let Err(complaint) = portal::forget(&options.place.run_dir).await {
        warn!("{complaint}");
    }
}

/// Without a device.
fn block(options: &Options, json: bool) -> Result<(), Failure> {
    let block = blocking(options);
    session::on_one_thread(async {
        if options.foreground {
            block.stay(json).await
        } else {
            block.once(json).await
        }
    })
}

fn blocking(options: &Options) -> block::Block {
    block::Block {
        config: options.config.clone(),
        run_dir: options.place.run_dir.clone(),
        no_firewall: options.no_firewall,
        gateway: options.gateway.clone(),
    }
}

/// One line about what is up now.
fn tell(status: &Status, json: bool) -> Result<(), Failure> {
    if json {
        return say::json(&control::flat(status));
    }
    let process = status.process.clone().unwrap_or_default();
    let path = match process.path.as_slice() {
        [] => "no relay at all, nothing is hidden".to_owned(),
        path => path.join(" → "),
    };
    let rest = if process.block {
        "what does not go through it is blocked"
    } else {
        "while it is not there, traffic goes past it"
    };
    say::answer(format!("{} is up: {path}; {rest}", status.name))
}

/// How often, and after what pause, one is tried again whose holder is ending.
const LOCK_RETRIES: u32 = 250;
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Held by who changes the machine.
pub(crate) const DEVICE_LOCK: &str = "lock";

/// One at a time: a lock that the kernel gives back when its holder dies.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Why it is not ours.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// This process holds it; 0 if that is not known.
    Held(u32),
    /// The disk has no room for it, so that nobody has it.
    Full(Complaint),
    /// There is no place for it.
    Failed(Complaint),
}

impl Lock {
    /// Takes the one of that name, in the directory of what lasts while the machine runs, which is made.
    pub(crate) fn take(run_dir: &Path, name: &str) -> Result<Self, Refusal> {
        let path = run_dir.join(name);
        let failed = |error: io::Error| {
            let doing = format!("taking the lock {}", path.display());
            match error.kind() {
                io::ErrorKind::StorageFull => {
                    Refusal::Full(Complaint::new(doing, error, "make room on the disk"))
                }
                _ => {
                    let remedy = "run as root, or give a directory of yours with --run-dir";
                    Refusal::Failed(Complaint::new(doing, error, remedy))
                }
            }
        };
        make(run_dir).map_err(failed)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.mode(0o600).open(&path).map_err(failed)?;
        let mut tries = LOCK_RETRIES;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let holder = holder(&mut file);
            if tries == 0 || !is_ending(holder) {
                return Err(Refusal::Held(holder));
            }
            tries -= 1;
            std::thread::sleep(LOCK_RETRY_PAUSE);
        }
        // Who holds it is for messages: a disk that is full keeps nobody from it.
        file.rewind()
            .and_then(|()| file.set_len(0))
            .and_then(|()| write!(file, "{}", std::process::id()))
            .unwrap_or_default();
        Ok(Self { _file: file })
    }
}

fn make(run_dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o755).create(run_dir)
}

/// Whether the process has no program any more: the kernel still closes what it had, an interface among that, and then the lock.
fn is_ending(process: u32) -> bool {
    let program = fs::read_link(format!("/proc/{process}/exe"));
    process != 0 && program.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn holder(file: &mut File) -> u32 {
    let mut text = String::new();
    file.rewind().unwrap_or_default();
    let read = file.read_to_string(&mut text);
    read.ok()
        .and_then(|_| text.trim().parse().ok())
        .unwrap_or(0)
}

/// The running program, also when its file was replaced meanwhile.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// What the process that stays says, once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    /// Traffic flows; and what the user should know.
    Ready(Box<Status>, Vec<String>),
    /// It does not, for these reasons.
    Failed(Vec<Complaint>),
}

/// Waits for the word of a process that stays, and logs there.
fn heard_of(mut child: Child, log: &Path) -> Result<(Status, Vec<String>), Failure> {
    let word = child.stdout.take().map(heard).unwrap_or_default();
    match word {
        Some(Word::Ready(status, warnings)) => Ok((*status, warnings)),
        Some(Word::Failed(complaints)) => {
            // Its end is the end of undoing.
            drop(child.wait());
            Err(failure(complaints))
        }
        None => {
            let ended = child.wait().ok();
            let why = match ended.and_then(|status| status.signal()) {
                Some(signal) => format!("its process was killed by signal {signal}"),
                None => "its process ended without a word".to_owned(),
            };
            let remedy = format!("look into {}", log.display());
            Err(Failure::new("bringing the device up", why, remedy))
        }
    }
}

fn command(log: &Path, flag: &str) -> io::Result<Command> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true);
    let log = options.mode(0o600).open(log)?;
    let mut command = Command::new(THIS_PROGRAM);
    command
        .args(std::env::args_os().skip(1))
        .arg(flag)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    Ok(command)
}

/// The first line, however long it takes; what ends without one has said nothing.
fn heard(pipe: impl Read) -> Option<Word> {
    let mut line = String::new();
    BufReader::new(pipe.take(1 << 20))
        .read_line(&mut line)
        .ok()?;
    serde_json::from_str(&line).ok()
}

fn failure(mut complaints: Vec<Complaint>) -> Failure {
    match complaints.len() {
        1 => Failure::Failed(complaints.remove(0)),
        _ => Failure::Wrong(complaints),
    }
}

/// Says it; fails if nobody waits any more: then nobody wants it either.
fn say(word: &Word) -> Result<(), Failure> {
    let written = serde_json::to_string(word).map_err(io::Error::from);
    let written = written.and_then(|line| {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    });
    written
        .map_err(|error| Failure::new("saying that traffic flows", error, "run 'hoplite up' again"))
}

/// What the process that stays does first: it belongs to no terminal, and its files are its own.
fn detach() {
    // It is no process group's first, having just been started.
    rustix::process::setsid().map(drop).unwrap_or_default();
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
}

#[cfg(test)]
mod lock_tests {
    use super::*;

    #[test]
    fn the_second_one_is_told_who_holds_it_until_it_is_given_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let run = directory.path().join("run");
        let lock = Lock::take(&run, DEVICE_LOCK).expect("free");
        match Lock::take(&run, DEVICE_LOCK) {
            Err(Refusal::Held(pid)) => assert_eq!(pid, std::process::id()),
            other => panic!("{other:?}"),
        }
        drop(lock);
        Lock::take(&run, DEVICE_LOCK).expect("free again");
    }
}

#[cfg(test)]
mod launch_tests {
    use super::*;

    #[test]
    fn the_word_arrives_and_silence_is_no_word() {
        let word = Word::Failed(vec![Complaint::new("a", "b", "c")]);
        let line = serde_json::to_string(&word).expect("json");
        match heard(format!("{line}\n").as_bytes()) {
            Some(Word::Failed(complaints)) => {
                assert_eq!(failure(complaints).to_string(), "hoplite: a: b: c");
            }
            other => panic!("{other:?}"),
        }
        assert!(heard(&b""[..]).is_none());
    }
}
