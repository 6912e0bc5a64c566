//! The process of `hoplite up`: takes the machine, serves what comes through the interface, and gives back what it was told to.
//! `crate::up` starts it, in the foreground or detached. Everything that is decided here is decided on one thread.

use std::{
    collections::BTreeMap,
    future::pending,
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hoplite_mediator::tun::{self, Counters, Device, Transparent};
use hoplite_overlay::Overlay;
use tokio::{sync::oneshot, time::Instant};
use tracing::{info, warn};

use super::{
    carrier,
    control::{Asked, Command, Control},
    driver::{Found, System},
    plan::{self, Facts, Plan, Wanted, Way},
    probe,
    remembering::Remembering,
    status::{Process, State, Status},
    taken::{Leave, Taken},
    watch::{Files, Kernel},
};
use crate::{
    client::overlay::Carried,
    config::client::Client,
    errors::{Complaint, Failure},
    qlog,
    signals::{self, Signals},
};

/// What this process was told.
#[derive(Debug)]
pub(super) struct Orders {
    pub(super) client: Client,
    pub(super) wanted: Wanted,
    pub(super) run_dir: PathBuf,
    /// How long the first probe may take.
    pub(super) wait: Duration,
    /// Whether a signal leaves the block.
    pub(super) keep_block: bool,
}

/// How it ends.
enum End {
    /// By a signal.
    Signal,
    /// By `hoplite down`, which waits for an answer.
    Down(oneshot::Sender<serde_json::Value>),
    /// Nothing ever went through.
    Failed(Failure),
}

/// Why a round of serving ended.
enum Round {
    /// The interface is gone.
    Gone,
    /// All of it ends.
    Over(End),
}

/// Everything that is taken, and who asks about it.
struct Session<'a> {
    orders: &'a Orders,
    facts: Facts,
    plan: Plan,
    taken: Taken<System>,
    carried: Carried,
    overlay: Arc<dyn Overlay>,
    names: Arc<Remembering>,
    control: Control,
    signals: Signals,
    kernel: Kernel,
    files: Option<Files>,
    counters: Arc<Counters>,
    /// What earlier interfaces counted.
    before: BTreeMap<String, u64>,
    /// When traffic first flowed, in seconds since 1970.
    since: Option<u64>,
}

/// Serves until it is told to end; tells `ready` once when traffic flows.
pub(super) async fn run(
    orders: &Orders,
    ready: impl FnOnce(&Status) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let recording = qlog::Recording::from_environment()?;
    // From now on no signal ends the process half-way.
    let signals = Signals::listen()?;
    let mut session = Session::begin(orders, signals, &recording).await?;
    let end = session.live(ready).await;
    session.end(end).await
}

impl<'a> Session<'a> {
    /// Takes the machine. What was open before is open again if that fails.
    async fn begin(
        orders: &'a Orders,
        signals: Signals,
        recording: &qlog::Recording,
    ) -> Result<Self, Failure> {
        let wanted = &orders.wanted;
        let control = Control::listen(&orders.run_dir, &wanted.name)
            .map_err(|error| Failure::file("listening in", &orders.run_dir, &error))?;
        let system = System::new(&orders.run_dir, &wanted.name, &wanted.addresses)?;
        // Before the first look: what changes from now on is noticed.
        let mut kernel = watch(&wanted.name)?;
        let facts = system.facts(&wanted.resolvers).await;
        let files = watch_names(&system, &facts);
        let names = carrier::names(&orders.client, &facts).await;
        let carried = carrier::carried(&orders.client, recording, &names)?;
        let plan = plan::plan(wanted, &facts);
        plan.warnings.iter().for_each(|warning| warn!("{warning}"));
        let taken = Taken::take(system, &plan, facts.blocked).await?;
        kernel.follow(taken.machine().index());
        Ok(Self {
            orders,
            overlay: carrier::split(&orders.client, &carried, &names),
            carried,
            names,
            control,
            signals,
            kernel,
            files,
            counters: Arc::default(),
            before: BTreeMap::new(),
            since: None,
            facts,
            plan,
            taken,
        })
    }

    /// Serves, round by round: one interface after the other, if others remove them.
    async fn live(&mut self, ready: impl FnOnce(&Status) -> Result<(), Failure>) -> End {
        let overlay = Arc::clone(&self.overlay);
        let mut probing = pin!(probe::flows(&*overlay, self.orders.wait));
        let mut ready = Some(ready);
        let mut transparent = match self.transparent() {
            Ok(transparent) => transparent,
            Err(failure) => return End::Failed(failure),
        };
        loop {
            let mut serving = pin!(transparent.serve(pending()));
            let round = loop {
                tokio::select! {
                    _ = &mut serving => break Round::Gone,
                    probed = &mut probing, if ready.is_some() => {
                        let said = match probed {
                            Ok(()) => self.up(ready.take()),
                            Err(error) => Err(probe::failure(&error, self.carried.missing())),
                        };
                        if let Err(failure) = said {
                            break Round::Over(End::Failed(failure));
                        }
                    }
                    meddled = self.kernel.meddled() => {
                        if meddled.ours && self.look().await == Found::Gone {
                            break Round::Gone;
                        }
                        if meddled.moved {
                            self.carried.look();
                        }
                    }
                    () = changed(&mut self.files) => self.take_names_again().await,
                    signal = self.signals.next() => if self.obey(signal) {
                        break Round::Over(End::Signal);
                    },
                    asked = self.control.asked() => if let Some(end) = self.answer(asked) {
                        break Round::Over(end);
                    },
                }
            };
            match round {
                Round::Over(end) => return end,
                Round::Gone => {
                    warn!(
                        "somebody removed the interface: it is made again, and until then nothing passes"
                    );
                    transparent = match self.remake().await {
                        Ok(transparent) => transparent,
                        Err(end) => return end,
                    };
                }
            }
        }
    }

    /// The mediator on the interface that has just been made.
    fn transparent(&mut self) -> Result<Transparent, Failure> {
        let failed = |why: &dyn std::fmt::Display| {
            Failure::new("serving the interface", why, "please report this")
        };
        let fd = self.taken.machine_mut().device();
        let fd = fd.ok_or_else(|| failed(&"there is none"))?;
        let device =
            Device::new(fd, self.orders.wanted.mtu, true).map_err(|error| failed(&error))?;
        let config = tun_config(self.orders, &self.facts, &self.plan);
        let transparent = Transparent::new(config, Arc::clone(&self.overlay), device);
        for (name, count) in self.counters.snapshot().all() {
            *self.before.entry(name.to_owned()).or_default() += count;
        }
        self.counters = transparent.counters();
        Ok(transparent)
    }

    fn up(
        &mut self,
        ready: Option<impl FnOnce(&Status) -> Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        self.since = Some(since.map_or(0, |since| since.as_secs()));
        info!("traffic flows");
        ready.map_or(Ok(()), |ready| ready(&self.status()))
    }

    /// Looks at what is left, and takes again what others undid.
    async fn look(&mut self) -> Found {
        let found = self.taken.machine().find(self.taken.steps()).await;
        let found = found.unwrap_or(Found::Undone);
        if found == Found::Undone {
            if let Err(complaint) = self.taken.renew(false).await {
                warn!("{complaint}");
            }
            self.carried.look();
        }
        found
    }

    /// Makes the interface again, as often as it takes: whatever fails, it stays blocked until somebody ends it.
    async fn remake(&mut self) -> Result<Transparent, End> {
        let mut pause = Duration::from_millis(100);
        loop {
            match self.made_again().await {
                Ok(transparent) => return Ok(transparent),
                Err(failure) => warn!("{failure}"),
            }
            let until = Instant::now() + pause;
            while Instant::now() < until {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    signal = self.signals.next() => if self.obey(signal) {
                        return Err(End::Signal);
                    },
                    asked = self.control.asked() => if let Some(end) = self.answer(asked) {
                        return Err(end);
                    },
                }
            }
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    async fn made_again(&mut self) -> Result<Transparent, Failure> {
        self.taken.renew(true).await?;
        self.kernel.follow(self.taken.machine().index());
        self.transparent()
    }

    /// Somebody, a DHCP client mostly, has written who resolves names: that is whom relays' names are asked of, and then it is ours again.
    async fn take_names_again(&mut self) {
        let machine = self.taken.machine();
        let servers = machine.servers(&self.facts, &self.orders.wanted.resolvers);
        self.names.ask(&servers);
        let is_lost = match self.plan.way() {
            Some(Way::Replace | Way::Overwrite) => !machine.has_names(),
            Some(Way::Resolved) => machine.has_unclaimed(),
            None => false,
        };
        if is_lost && let Err(complaint) = self.taken.renew_names().await {
            warn!("{complaint}");
        }
    }

    /// Whether it is the end.
    fn obey(&self, signal: signals::Asked) -> bool {
        if signal == signals::Asked::Reload {
            self.carried.tell();
            info!("the file is read only when it starts: 'hoplite down' and 'hoplite up' again");
        }
        signal == signals::Asked::Stop
    }

    fn answer(&mut self, asked: Asked) -> Option<End> {
        match asked.command {
            Command::Down => return Some(End::Down(asked.answer)),
            Command::Status => {
                let value = super::status::flat(&self.status());
                // Who has gone away meanwhile does not wait for it.
                asked.answer.send(value).unwrap_or_default();
            }
        }
        None
    }

    fn status(&self) -> Status {
        let live = self.counters.snapshot().all();
        let mut all = self.before.clone();
        for (name, count) in &live {
            *all.entry((*name).to_owned()).or_default() += count;
        }
        let of = |name: &str| all.get(name).copied().unwrap_or(0);
        let process = Process {
            pid: std::process::id(),
            since: self.since.unwrap_or(0),
            path: self.carried.names(),
            connected: self.carried.missing().is_none(),
            channel: self.carried.channel().map(str::to_owned),
            block: self.orders.wanted.block,
            before: self.taken.machine().before(),
            dns: self.plan.names().to_owned(),
            sent: of("octets_in"),
            received: of("octets_out"),
            flows: super::status::open_flows(&live),
            counters: all,
        };
        Status {
            state: self.since.map_or(State::Starting, |_| State::Up),
            name: self.orders.wanted.name.clone(),
            process: Some(process),
            // Who asks counts, so that nothing waits here meanwhile.
            blocked: None,
        }
    }

    /// Gives the machine back.
    async fn end(mut self, end: End) -> Result<(), Failure> {
        self.carried.tell();
        self.carried.leave().await;
        let leave = match &end {
            End::Signal if self.orders.keep_block => Leave::Block,
            End::Failed(_) if self.facts.blocked => Leave::Block,
            _ => Leave::Nothing,
        };
        let complaints = self.taken.give_back(leave).await;
        complaints.iter().for_each(|complaint| warn!("{complaint}"));
        match end {
            End::Failed(failure) => Err(failure),
            End::Signal => complaints
                .into_iter()
                .next()
                .map_or(Ok(()), |it| Err(it.into())),
            End::Down(answer) => {
                let value = match complaints.first() {
                    None => serde_json::json!({"state": "down", "name": self.orders.wanted.name}),
                    Some(complaint) => serde_json::json!({"failed": complaint.to_string()}),
                };
                answer.send(value).unwrap_or_default();
                self.control.answered().await;
                Ok(())
            }
        }
    }
}

fn watch(name: &str) -> Result<Kernel, Complaint> {
    Kernel::watch(name).map_err(|error| {
        let remedy = "the kernel must have netlink, and the sandbox AF_NETLINK";
        Complaint::new("watching the interface", error, remedy)
    })
}

/// Where it is written who resolves names. Without inotify nobody notices; it works until then.
fn watch_names(system: &System, facts: &Facts) -> Option<Files> {
    Files::watch(system.sources(facts)).ok()
}

async fn changed(files: &mut Option<Files>) {
    match files {
        Some(files) => files.changed().await,
        None => pending().await,
    }
}

/// What the mediator is told: the file's wishes, and what this machine has of them.
fn tun_config(orders: &Orders, facts: &Facts, plan: &Plan) -> tun::Config {
    let mut config = orders.client.config.transparent();
    // Without addresses of a family programs are told none of it.
    config.device.addresses = facts.usable(&orders.wanted.addresses);
    config.dns.resolvers.extend(&plan.answered);
    let domains = &orders.client.config.takeover.exclude.domains;
    let domains = domains.iter().map(|domain| domain.name().clone());
    config.dns.elsewhere.extend(domains);
    config
}

/// The runtime that all of it runs on.
pub(crate) fn on_one_thread(
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    signals::current_thread_runtime()?.block_on(work)
}
