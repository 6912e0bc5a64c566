//! `hoplite up --block-only`: nothing leaves, whatever else is wrong. For boot, before there is a network, and for the time without a device.
//!
//! It fails closed. A file that is missing or wrong counts as the defaults, which let nothing pass; a step that fails keeps no other from
//! being taken; what was taken stays. What was wrong is said, and is the exit code if not all of the block stands.
//!
//! With `--foreground` the process stays and blocks again when somebody flushed tables, routes or rules; while `hoplite up` runs, that is its
//! business. Only `hoplite down` opens.

use std::{
    fs,
    future::pending,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use tracing::warn;

use super::{
    DEVICE_LOCK, Lock, Refusal,
    control::{self, State, Status},
    driver::System,
    nftables::{self, Nftables, OwnedTable, Standing},
    plan::{self, KEPT, Leave, Taken, Wanted},
    refused,
    watch::{self, Files, Kernel},
};
use crate::{
    config::client::{self, Config},
    portal,
    process::{self, Asked, Signals},
    say,
    say::{Complaint, Failure},
};

/// How long to wait when something failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How often to look whether who is up has ended without a word. Mostly he is seen to go.
const BUSY: Duration = Duration::from_secs(5);

/// What was asked for.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) config: Option<PathBuf>,
    pub(super) run_dir: PathBuf,
    pub(super) no_firewall: bool,
    /// Networks behind this machine, beside those of the file.
    pub(super) gateway: Vec<IpNet>,
}

/// What came of it.
struct Stood {
    status: Status,
    /// Why it is not all that it should be: exclusions that fail only block more.
    failed: Option<Complaint>,
    /// What is in the copy of the table of nftables; empty without one.
    copy: String,
}

impl Block {
    /// Blocks, and leaves.
    pub(super) async fn once(&self, json: bool) -> Result<(), Failure> {
        close(&self.run_dir);
        let stood = self.stand().await?;
        tell(&stood.status, json)?;
        stood.failed.map_or(Ok(()), |failed| Err(failed.into()))
    }

    /// Blocks in the place of what could not begin, and leaves.
    pub(super) async fn instead(&self) -> Result<(), Failure> {
        close(&self.run_dir);
        let stood = self.stand().await?;
        stood.failed.map_or(Ok(()), |failed| Err(failed.into()))
    }

    /// Blocks, and sees that it stays so until a signal comes; then it is left as it is.
    pub(super) async fn stay(&self, json: bool) -> Result<(), Failure> {
        let mut signals = Signals::listen()?;
        close(&self.run_dir);
        let (wanted, _) = self.wanted();
        let mut watches = Watches::new(&self.run_dir, &wanted)?;
        let mut held = OwnedTable::new(KEPT);
        // Also what stands is made anew: then it is known what its copy has.
        let mut due = self.look_again(&wanted, &mut held, true).await;
        if !is_open(&self.run_dir) {
            let system = System::new(&self.run_dir, &wanted.name, &wanted.addresses)?;
            let told = tell(&seen(&system, &wanted.name).await, json);
            told.unwrap_or_else(|failure| say::remark(failure.to_string()));
        }
        process::notify_ready();
        loop {
            let differs = tokio::select! {
                differs = watches.somebody_did_something(due) => differs,
                () = held.lost() => false,
                asked = signals.next() => match asked {
                    Asked::Stop => {
                        // What was opened a moment ago would stay so.
                        self.look_again(&wanted, &mut held, false).await;
                        return Ok(());
                    }
                    Asked::Reload => true,
                },
            };
            due = self.look_again(&wanted, &mut held, differs).await;
        }
    }

    /// Blocks again, if something is missing or what the block goes by `differs`, and that is for this process to do; when to look again if
    /// nothing happens.
    async fn look_again(
        &self,
        wanted: &Wanted,
        held: &mut OwnedTable,
        differs: bool,
    ) -> Option<Duration> {
        let nftables = Nftables::new(&self.run_dir);
        if is_open(&self.run_dir) {
            held.hold("");
            return None;
        }
        if let Err(Refusal::Held(_)) = Lock::take(&self.run_dir, DEVICE_LOCK) {
            // Whoever is up sees to it, with a firewall of his own.
            if let Some(copy) = nftables.copy() {
                held.hold(&copy);
            }
            return Some(BUSY);
        }
        let status = match System::new(&self.run_dir, &wanted.name, &wanted.addresses) {
            Ok(system) => seen(&system, &wanted.name).await,
            Err(_) => Status::default(),
        };
        if differs || status.state != State::Blocked {
            return self.again(held).await;
        }
        if let Some(copy) = nftables.copy() {
            held.hold(&copy);
        }
        // An nft that failed may work later.
        (status.firewall == Standing::Unknown && !self.no_firewall).then_some(BUSY)
    }

    /// Blocks, and holds what of it can be held; when to try again.
    async fn again(&self, held: &mut OwnedTable) -> Option<Duration> {
        match self.stand().await {
            Ok(stood) => {
                // Only now that the new table stands may the old one's copy go.
                held.hold(&stood.copy);
                stood.failed.map(|_| RETRY_PAUSE)
            }
            Err(failure) => {
                say::remark(failure.to_string());
                Some(RETRY_PAUSE)
            }
        }
    }

    /// Takes all steps that can be taken; fails if another process is up, or if nothing can be done at all.
    async fn stand(&self) -> Result<Stood, Failure> {
        let _lock = match Lock::take(&self.run_dir, DEVICE_LOCK) {
            Ok(lock) => Some(lock),
            Err(Refusal::Held(pid)) => return Err(refused(pid)),
            // Nobody else can have it either.
            Err(Refusal::Full(complaint) | Refusal::Failed(complaint)) => {
                say::remark(complaint.to_string());
                None
            }
        };
        // What a killed portal has left does not pass any more.
        if let Err(complaint) = portal::forget(&self.run_dir).await {
            say::remark(complaint.to_string());
        }
        let (wanted, wrong) = self.wanted();
        let system = System::new(&self.run_dir, &wanted.name, &wanted.addresses)?;
        let facts = system.facts(&wanted).await;
        let plan = plan::block(&wanted, &facts);
        let refusal = plan::refusal(&wanted, &facts);
        let mut copy = plan.copy();
        let (mut taken, mut failed) = Taken::take_all_it_can(system, &plan).await;
        let stands = seen(taken.machine(), &wanted.name).await.state == State::Blocked;
        // What the file lets pass may be what is not taken, and what marks alone tell apart would pass without them.
        let passes = wanted.only_marked() && (refusal.is_some() || !failed.is_empty());
        if (refusal.is_none() && !stands) || passes {
            let plan = plan::block(&self.nothing_passes(), &facts);
            copy = plan.copy();
            let (again, more) = Taken::take_all_it_can(taken.leave(), &plan).await;
            taken = again;
            failed.extend(more);
        }
        taken
            .give_back(Leave::Block)
            .await
            .iter()
            .for_each(|it| say::remark(it.to_string()));
        plan.warnings.iter().for_each(|it| warn!("{it}"));
        wrong
            .iter()
            .chain(&refusal)
            .chain(&failed)
            .for_each(|it| say::remark(it.to_string()));
        let system = taken.leave();
        let status = seen(&system, &wanted.name).await;
        let failed = failed
            .into_iter()
            .next()
            .filter(|_| status.state != State::Blocked);
        let failed = refusal.or(failed);
        Ok(Stood {
            status,
            failed,
            copy,
        })
    }

    /// What is blocked whatever the file says.
    fn nothing_passes(&self) -> Wanted {
        let mut wanted = Wanted::from_config(&Config::default(), true);
        wanted.no_firewall = self.no_firewall;
        wanted
    }

    /// As the file has it; or, if it cannot be read, with nothing that passes. And what is wrong with it.
    fn wanted(&self) -> (Wanted, Vec<Complaint>) {
        let loaded = self.config.as_deref().map(client::load).transpose();
        let (mut wanted, wrong) = match loaded {
            Ok(Some(mut client)) => {
                client.config.takeover.gateway.extend(&self.gateway);
                (Wanted::from_config(&client.config, true), Vec::new())
            }
            Ok(None) => (self.nothing_passes(), Vec::new()),
            Err(failure) => {
                let mut wrong = failure.complaints();
                let why = "the file cannot be used";
                let remedy = "everything is blocked, also what it lets pass; correct it";
                wrong.push(Complaint::new("blocking", why, remedy));
                (self.nothing_passes(), wrong)
            }
        };
        wanted.no_firewall = self.no_firewall;
        (wanted, wrong)
    }
}

/// What may happen to the block.
struct Watches {
    /// Where there is no nftables there is nothing to be seen of it.
    tables: Option<nftables::Watch>,
    kernel: Kernel,
    /// Who comes up listens there.
    socket: Option<Files>,
    /// Control groups that the file names.
    groups: Option<Files>,
    /// Whether routes lead to excluded networks.
    by_routes: bool,
    /// Whether control groups alone are taken, and cannot be watched: they are looked at from time to time.
    unwatched: bool,
}

impl Watches {
    fn new(run_dir: &Path, wanted: &Wanted) -> Result<Self, Failure> {
        let name = &wanted.name;
        let remedy = "the kernel must have netlink, and the sandbox AF_NETLINK";
        let failed = |error| Failure::new("watching routes", error, remedy);
        let groups = watch::groups(wanted);
        if let Err(error) = &groups {
            say::remark(format!(
                "hoplite: control groups cannot be watched: {error}"
            ));
        }
        Ok(Self {
            unwatched: groups.is_err() && !wanted.only_cgroups.is_empty(),
            tables: nftables::Watch::new().ok(),
            kernel: Kernel::watch(name).map_err(failed)?,
            socket: Files::watch(vec![control::path(run_dir, name)]).ok(),
            groups: groups.unwrap_or_default(),
            by_routes: !wanted.past_interfaces.is_empty(),
        })
    }

    /// Waits for something that may have opened a part of it, or until it is due anyway; whether it is something that the block goes by.
    async fn somebody_did_something(&mut self, due: Option<Duration>) -> bool {
        let unwatched = self.unwatched;
        let due = due.or_else(|| unwatched.then_some(BUSY));
        let again = async {
            match due {
                Some(due) => tokio::time::sleep(due).await,
                None => pending().await,
            }
        };
        let by_routes = self.by_routes;
        let opened = async {
            loop {
                let meddled = self.kernel.meddled().await;
                let differs = meddled.moved && by_routes;
                if meddled.ours || differs {
                    return differs;
                }
            }
        };
        tokio::select! {
            () = again => unwatched,
            () = nftables::touched(&mut self.tables) => false,
            differs = opened => differs,
            () = watch::changed(&mut self.socket) => false,
            () = watch::changed(&mut self.groups) => true,
        }
    }
}

/// What stands, looked at.
pub(crate) async fn seen(system: &System, name: &str) -> Status {
    let (routes, firewall) = (system.is_blocked().await, system.firewall());
    let state = match (routes, firewall) {
        (true, Standing::Stands | Standing::Unknown) => State::Blocked,
        (false, Standing::Gone | Standing::Unknown) => State::Down,
        _ => State::Partly,
    };
    Status {
        state,
        name: name.to_owned(),
        firewall,
        ..Status::default()
    }
}

fn tell(status: &Status, json: bool) -> Result<(), Failure> {
    if json {
        say::json(&control::flat(status))
    } else {
        status.lines().iter().try_for_each(say::answer)
    }
}

/// There while somebody wants it open.
fn mark(run_dir: &Path) -> PathBuf {
    run_dir.join("open")
}

/// From now on nobody who stays blocks again.
pub(crate) fn open(run_dir: &Path) -> io::Result<()> {
    match fs::write(mark(run_dir), "") {
        // Without the directory nobody stays who would look there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// From now on it is blocked again when somebody opens a part of it.
pub(super) fn close(run_dir: &Path) {
    fs::remove_file(mark(run_dir)).unwrap_or_default();
}

fn is_open(run_dir: &Path) -> bool {
    mark(run_dir).exists()
}
