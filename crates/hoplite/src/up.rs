//! `hoplite up`: the whole device through the relays, and nothing past them.
//! For users and service managers; `down` and `status` are its other halves. What each state means stands in docs/device.md.
//!
//! # Not in this room
//! What is done with packets (`mediator::tun`), what carries them (`masque`, `onion`).

mod apart;
pub(crate) mod block;
mod carrier;
pub(crate) mod child;
pub(crate) mod control;
pub(crate) mod driver;
mod facts;
mod firewall;
mod launch;
pub(crate) mod lock;
mod netlink;
pub(crate) mod nftables;
pub(crate) mod numbers;
pub(crate) mod plan;
mod probe;
mod remembering;
mod resolv;
mod session;
mod split;
pub(crate) mod status;
pub(crate) mod taken;
mod tun;
mod watch;
mod worker;

use std::{
    net::SocketAddr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use tracing::warn;

use self::{
    launch::Word,
    lock::{Lock, Refusal},
    plan::Wanted,
    session::Orders,
    status::Status,
};
use crate::{
    config::{self, client::Client},
    errors::Failure,
    portal, qlog, resources, say,
};

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
    /// Block everything, now and without a process, even if the file is wrong; `hoplite up` takes over, `hoplite down` opens. For boot. With
    /// `--foreground` the process stays, and blocks again what others open.
    #[arg(long, conflicts_with_all = ["no_block", "keep_block"])]
    block_only: bool,
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

pub(crate) use self::{
    firewall::count as firewall_count, session::on_one_thread as session_runtime,
};

/// Whom the networks say to ask for names.
pub(crate) fn network_servers(run_dir: &Path) -> Vec<SocketAddr> {
    let ours = config::client::Config::default().dns.resolvers;
    facts::network_servers(&resolv::ResolvConf::system(run_dir), &ours)
}

/// A table of nftables called `group` that lets the control group of that name pass.
pub(crate) fn firewall_of_group(group: &str) -> std::io::Result<String> {
    let mut wanted = Wanted::from_config(&config::client::Config::default(), true);
    wanted.past_cgroups = vec![group.parse().map_err(std::io::Error::other)?];
    Ok(firewall::of_groups(group, &wanted))
}

/// Runs the command.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    match options.detached {
        false => start(options, json),
        true => {
            launch::detach();
            let result = stay(options, |status| {
                launch::say(&Word::Ready(Box::new(status.clone())))
            });
            if let Err(failure) = &result {
                // If nobody hears it, it stands in the log.
                drop(launch::say(&Word::Failed(failure.complaints())));
            }
            result
        }
    }
}

/// The process that carries the traffic. Of what others have written it reads the user's own file alone before it has given up all rights.
pub(crate) fn work<G>(
    options: &Options,
    logs: impl FnOnce() -> Result<G, Failure>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        let remedy = "give it CAP_SETUID and CAP_SETGID, or another `user` in [takeover]";
        Failure::new("giving up all rights", error, remedy)
    };
    let client = load(options)?;
    let is_confined = apart::confine(client.config.takeover.user).map_err(failed)?;
    let _logs = logs()?;
    if !is_confined {
        warn!(
            "this user namespace has no user {}: the process that carries traffic has no right, and yet root's files",
            client.config.takeover.user
        );
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(failed)?;
    let task = worker::Task {
        client,
        wait: Duration::from_secs(options.wait),
        recording: qlog::Recording::from_environment()?,
    };
    session::on_one_thread(worker::work(task, socket))
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
    if options.foreground {
        return stay(options, |status| {
            launch::notify();
            tell(status, json)
        });
    }
    let name = &client.config.device.name;
    // Whether it is up already is told before a process is started for nothing, and its log taken from the one that runs.
    drop(take_lock(options)?);
    let status = launch::start(&options.place.run_dir, name, "--detached")?;
    tell(&status, json)
}

fn load(options: &Options) -> Result<Client, Failure> {
    match &options.config {
        Some(path) => config::client::load(path),
        None => Ok(Client::default()),
    }
}

fn rights() -> Result<(), Failure> {
    if !child::may_set_up() {
        let remedy = "run it as root, or give it CAP_NET_ADMIN";
        let why = "Operation not permitted";
        return Err(Failure::new("setting up the network", why, remedy));
    }
    if let Err(error) = child::share_capability() {
        warn!(%error, "nft and resolvectl may lack CAP_NET_ADMIN");
    }
    Ok(())
}

fn take_lock(options: &Options) -> Result<Lock, Failure> {
    Lock::take(&options.place.run_dir, lock::DEVICE).map_err(|refusal| match refusal {
        Refusal::Failed(complaint) => complaint.into(),
        Refusal::Held(pid) => refused(pid),
    })
}

/// Another process has the lock.
fn refused(pid: u32) -> Failure {
    let why = format!("it is up already (process {pid})");
    let remedy = "see 'hoplite status', or 'hoplite down' first";
    Failure::new("bringing the device up", why, remedy)
}

/// The process that stays.
fn stay(
    options: &Options,
    ready: impl FnOnce(&Status) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let client = load(options)?;
    rights()?;
    resources::raise_file_limit();
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
    let block = block::Block {
        config: options.config.clone(),
        run_dir: options.place.run_dir.clone(),
        no_firewall: options.no_firewall,
    };
    session::on_one_thread(async {
        match options.foreground {
            true => block.stay(json).await,
            false => block.once(json).await,
        }
    })
}

/// One line about what is up now.
fn tell(status: &Status, json: bool) -> Result<(), Failure> {
    if json {
        return say::json(&status::flat(status));
    }
    let process = status.process.clone().unwrap_or_default();
    let path = match process.path.as_slice() {
        [] => "no relay at all, nothing is hidden".to_owned(),
        path => path.join(" → "),
    };
    let rest = match process.block {
        true => "what does not go through it is blocked",
        false => "while it is not there, traffic goes past it",
    };
    say::answer(format!("{} is up: {path}; {rest}", status.name))
}
