//! The process of `hoplite up` that has the right to change the machine: takes it, starts the worker that serves what comes
//! through the interface, and gives back what it was told to. `crate::up` starts it, in the foreground or detached. Nothing that comes from the
//! network is read here. Everything that is decided here is decided on one thread.

use std::{
    future::pending,
    os::fd::OwnedFd,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout},
};
use tracing::{info, warn};

use super::{
    apart::{self, FromWorker, ToWorker, WorkerProcess},
    cgroups,
    control::{Asked, Command, Control, Process, Report, State, Status, plain},
    driver::{Found, System},
    nftables::{self, Standing},
    plan::{self, Facts, Leave, Plan, Taken, Wanted, Way},
    stocks,
    watch::{self, Files, Kernel},
};
use crate::{
    config::client::Client,
    listed::DirectoryCache,
    process::{self, Signals},
    say::{Complaint, Failure},
};

/// How long the worker may take to answer, or to take its leave.
const WORKER_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause before something is tried again that failed, at first and at most.
const INITIAL_RETRY_PAUSE: Duration = Duration::from_millis(100);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(5);

/// How much longer than it may take until traffic flows the worker may be silent about it: it says so itself, if it is sane.
const SILENCE: Duration = Duration::from_secs(5);

/// What this process was told.
#[derive(Debug)]
pub(super) struct Orders {
    pub(super) client: Client,
    pub(super) wanted: Wanted,
    pub(super) run_dir: PathBuf,
    /// Whether everything is left blocked, unless `hoplite down` ends it.
    pub(super) keep_block: bool,
    /// How long it may take until traffic flows.
    pub(super) wait: Duration,
}

/// How it ends.
enum End {
    /// By a signal.
    Signal,
    /// By `hoplite down`, which waits for an answer.
    Down(oneshot::Sender<serde_json::Value>),
    /// By another one that takes its place, which waits as well.
    Replaced(oneshot::Sender<serde_json::Value>),
    /// Nothing ever went through.
    Failed(Failure),
}

/// Everything that is taken, and who asks about it.
struct Session<'a> {
    orders: &'a Orders,
    facts: Facts,
    plan: Plan,
    taken: Taken<System>,
    /// There is none while it is waited to start another one.
    worker: Option<WorkerProcess>,
    /// When that may be, and how long it is waited the next time.
    again: (Instant, Duration),
    control: Control,
    signals: Signals,
    kernel: Kernel,
    /// Only where there is a firewall.
    firewall: Option<nftables::Watch>,
    files: Option<Files>,
    /// Control groups that the file names, if any.
    groups: Option<Files>,
    /// When what failed of groups, the block and names is tried again.
    retry: Option<Instant>,
    /// Who waits for the worker to say how it is doing, and until when.
    asking: Vec<oneshot::Sender<serde_json::Value>>,
    patience: Instant,
    /// When traffic first flowed, in seconds since 1970.
    since: Option<u64>,
    /// When it must have, at the latest.
    due: Instant,
}

/// Serves until it is told to end; tells `ready` once when traffic flows, with what the user should know.
pub(super) async fn run(
    orders: &Orders,
    ready: impl FnOnce(&Status, &[String]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // From now on no signal ends the process half-way.
    let signals = Signals::listen()?;
    let mut session = Session::begin(orders, signals).await?;
    let end = session.live(ready).await;
    session.end(end).await
}

impl Orders {
    /// Whether what blocks is left when it fails.
    fn stays_blocked(&self, facts: &Facts) -> bool {
        self.keep_block || facts.blocked
    }
}

impl<'a> Session<'a> {
    /// Takes the machine. What was open before is open again if that fails, unless it was asked for otherwise.
    async fn begin(orders: &'a Orders, mut signals: Signals) -> Result<Self, Failure> {
        let wanted = &orders.wanted;
        let system = System::new(&orders.run_dir, &wanted.name, &wanted.addresses)?.staying();
        // Before the first look: what changes from now on is noticed.
        let mut kernel = watch_kernel(&wanted.name)?;
        let groups = watch_groups(wanted)?;
        let facts = system.facts(wanted).await;
        if let Some(refusal) = plan::refusal(wanted, &facts) {
            return Err(refusal.into());
        }
        let files = watch_names(&system, &facts);
        let plan = plan::plan(wanted, &facts);
        // Before there is anything to be changed.
        let firewall = watch_firewall(&plan)?;
        let (worker, control) = match prepare(orders, &facts, &mut signals).await {
            Ok(both) => both,
            Err(failure) => return Err(unprepared(orders, system, &facts, failure).await),
        };
        plan.warnings.iter().for_each(|warning| warn!("{warning}"));
        let stays = orders.stays_blocked(&facts);
        let taken = Taken::take(system, &plan, stays).await;
        let taken = taken.map_err(|complaint| leaving(complaint.into(), stays))?;
        kernel.follow(taken.machine().index());
        Ok(Self {
            orders,
            worker: Some(worker),
            again: (Instant::now(), INITIAL_RETRY_PAUSE),
            control,
            signals,
            kernel,
            files,
            groups,
            retry: None,
            firewall,
            asking: Vec::new(),
            patience: Instant::now(),
            since: None,
            due: Instant::now() + orders.wait + SILENCE,
            facts,
            plan,
            taken,
        })
    }

    /// Serves until something ends it: what the worker says, what others do, what users ask.
    async fn live(&mut self, ready: impl FnOnce(&Status, &[String]) -> Result<(), Failure>) -> End {
        let mut ready = Some(ready);
        if let Err(failure) = self.hand_over() {
            return End::Failed(failure);
        }
        loop {
            let found = tokio::select! {
                said = heard(&self.worker, self.again.0) => match self.hear(said, &mut ready) {
                    Ok(found) => found,
                    Err(failure) if self.since.is_none() => return End::Failed(failure),
                    Err(failure) => {
                        self.lose(&failure);
                        Found::All
                    }
                },
                meddled = self.kernel.meddled() => {
                    if meddled.moved {
                        self.tell(&ToWorker::Look);
                    }
                    if meddled.moved {
                        self.look_at_networks().await;
                    }
                    if meddled.ours { self.look().await } else { Found::All }
                }
                () = watch::changed(&mut self.groups) => {
                    self.look_at_groups().await;
                    Found::All
                }
                () = at(self.retry) => {
                    self.retry = None;
                    self.look_at_groups().await;
                    self.take_names_again().await;
                    Found::All
                }
                () = nftables::touched(&mut self.firewall) => {
                    self.look_at_firewall().await;
                    Found::All
                }
                () = self.taken.machine().firewall_copy_lost() => {
                    warn!("somebody ended the nft that holds the firewall's copy: it is made again");
                    self.make_firewall_again().await;
                    Found::All
                }
                () = watch::changed(&mut self.files) => {
                    self.take_names_again().await;
                    Found::All
                }
                signal = self.signals.next() => if self.obey(signal) { return End::Signal } else { Found::All },
                asked = self.control.asked() => match self.answer(asked) {
                    Some(end) => return end,
                    None => Found::All,
                },
                () = sleep_until(self.patience), if !self.asking.is_empty() => {
                    self.report(Report::default());
                    Found::All
                }
                () = sleep_until(self.due), if self.since.is_none() => return End::Failed(silent()),
            };
            if found == Found::Gone {
                warn!(
                    "somebody removed the interface: it is made again, and until then nothing passes"
                );
                if let Err(end) = self.remake().await {
                    return end;
                }
            }
        }
    }

    /// Obeys what the worker may ask for. That it ends or fails is a failure; one more is started unless nothing has ever gone through.
    fn hear(
        &mut self,
        said: Option<(FromWorker, Vec<OwnedFd>)>,
        ready: &mut Option<impl FnOnce(&Status, &[String]) -> Result<(), Failure>>,
    ) -> Result<Found, Failure> {
        let Some((said, with)) = said else {
            return match self.worker {
                Some(_) => Err(ended()),
                None => {
                    let again = self.since.is_some();
                    self.worker = Some(start(self.orders, &self.facts, (false, again))?);
                    Ok(Found::All)
                }
            };
        };
        match said {
            FromWorker::Prepared => self.hand_over()?,
            FromWorker::Flows(report) => {
                self.again.1 = INITIAL_RETRY_PAUSE;
                if let Some(ready) = ready.take() {
                    self.up(*report, ready)?;
                }
            }
            FromWorker::Failed(complaints) => return Err(told(&complaints)),
            FromWorker::Gone => return Ok(Found::Gone),
            FromWorker::Report(report) => self.report(*report),
            FromWorker::Keep => keep(self.orders, with),
        }
        Ok(Found::All)
    }

    /// The worker is no more: another one comes after a pause.
    fn lose(&mut self, why: &Failure) {
        warn!("{why}; until another one serves the interface nothing passes");
        self.worker = None;
        let (_, pause) = self.again;
        self.again = (Instant::now() + pause, (pause * 2).min(MAX_RETRY_PAUSE));
        self.report(Report::default());
    }

    /// Gives the worker the interface.
    fn hand_over(&mut self) -> Result<(), Failure> {
        let answered = self.plan.answered.clone();
        let failed = |why: &dyn std::fmt::Display| {
            Failure::new("serving the interface", why, "please report this")
        };
        let device = self.taken.machine().device();
        let device = device.ok_or_else(|| failed(&"there is none"))?;
        let worker = self
            .worker
            .as_ref()
            .ok_or_else(|| failed(&"nobody is there"))?;
        let sent = worker
            .channel
            .send(&ToWorker::Device { answered }, &[device]);
        sent.map_err(|error| failed(&error))
    }

    /// Tells the worker, if there is one. What does not fit into its socket it will have to do without: it has stopped to read.
    fn tell(&self, what: &ToWorker) {
        if let Some(worker) = &self.worker
            && let Err(error) = worker.channel.send(what, &[])
        {
            tracing::debug!(%error, "the worker does not hear");
        }
    }

    fn up(
        &mut self,
        report: Report,
        ready: impl FnOnce(&Status, &[String]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        info!("traffic flows");
        let since = since.map_or(0, |since| since.as_secs());
        ready(&self.status(Some(since), report), &self.plan.warnings)?;
        self.since = Some(since);
        Ok(())
    }

    /// Looks at what is left, and takes again what others undid.
    async fn look(&mut self) -> Found {
        let found = self.taken.machine().find(self.taken.steps()).await;
        let found = found.unwrap_or(Found::Undone);
        if found == Found::Undone {
            if let Err(complaint) = self.taken.renew(false).await {
                warn!("{complaint}");
            }
            self.tell(&ToWorker::Look);
        }
        found
    }

    /// Loads the firewall again, if somebody has flushed or changed it.
    async fn look_at_firewall(&mut self) {
        if self.taken.machine().firewall() == Standing::Stands {
            return;
        }
        warn!("somebody removed or changed the firewall: it is made again");
        self.make_firewall_again().await;
    }

    async fn make_firewall_again(&mut self) {
        let complaints = self.taken.block_again().await;
        complaints.iter().for_each(|complaint| warn!("{complaint}"));
        if let (false, Some(firewall)) = (complaints.is_empty(), &mut self.firewall) {
            firewall.try_again();
        }
    }

    /// Routes may lead elsewhere by excluded interfaces.
    async fn look_at_networks(&mut self) {
        let wanted = &self.orders.wanted;
        let networks = self.taken.machine().networks(&wanted.past_interfaces);
        let networks = networks.await;
        if networks != self.facts.networks {
            self.facts.networks = networks;
            self.plan_again().await;
        }
    }

    /// A control group may have come, gone, or have been made anew.
    async fn look_at_groups(&mut self) {
        let complaints = self.taken.groups_again().await;
        self.facts.groups = cgroups::numbers(self.orders.wanted.cgroups());
        self.plan_again().await;
        self.retry_after(complaints);
    }

    /// Makes what blocks as the machine has it now.
    async fn plan_again(&mut self) {
        self.plan = plan::plan(&self.orders.wanted, &self.facts);
        let complaints = self.taken.follow(&self.plan).await;
        self.retry_after(complaints);
    }

    /// What failed is said, and tried again later if nothing happens to it before.
    fn retry_after(&mut self, complaints: impl IntoIterator<Item = Complaint>) {
        for complaint in complaints {
            warn!("{complaint}");
            self.retry = Some(Instant::now() + MAX_RETRY_PAUSE);
        }
    }

    /// Makes the interface again, as often as it takes: whatever fails, it stays blocked until somebody ends it.
    async fn remake(&mut self) -> Result<(), End> {
        let mut pause = INITIAL_RETRY_PAUSE;
        loop {
            // Also before the first time: whoever removes it again and again does not keep us from all else.
            let until = Instant::now() + pause;
            while Instant::now() < until {
                tokio::select! {
                    () = sleep_until(until) => {}
                    signal = self.signals.next() => if self.obey(signal) {
                        return Err(End::Signal);
                    },
                    asked = self.control.asked() => if let Some(end) = self.answer(asked) {
                        return Err(end);
                    },
                }
            }
            let made = self.taken.renew(true).await;
            self.kernel.follow(self.taken.machine().index());
            match made {
                Ok(()) => break,
                Err(complaint) => warn!("{complaint}"),
            }
            pause = (pause * 2).min(MAX_RETRY_PAUSE);
        }
        // One that is being started gets it when it is prepared.
        if self.worker.is_some()
            && let Err(failure) = self.hand_over()
        {
            self.lose(&failure);
        }
        Ok(())
    }

    /// Somebody, a DHCP client mostly, has written who resolves names: that is whom relays' names are asked of, and then it is ours again.
    async fn take_names_again(&mut self) {
        let machine = self.taken.machine();
        let servers = machine.servers(&self.facts, &self.orders.wanted.resolvers);
        self.tell(&ToWorker::Servers(servers.clone()));
        if servers != self.facts.servers {
            self.facts.servers = servers;
            let before = self.plan.answered.clone();
            self.plan_again().await;
            // Those that names are taken from are others: what is asked of them is answered by us, and goes nowhere.
            if self.plan.answered != before
                && self.worker.is_some()
                && let Err(failure) = self.hand_over()
            {
                self.lose(&failure);
            }
        }
        let machine = self.taken.machine();
        let is_lost = match self.plan.way() {
            Some(Way::Replace | Way::Overwrite) => !machine.has_names(),
            Some(Way::Resolved) => machine.has_unclaimed(),
            None => false,
        };
        if is_lost {
            let failed = self.taken.renew_names().await.err();
            self.retry_after(failed);
        }
    }

    /// Whether it is the end.
    fn obey(&self, signal: process::Asked) -> bool {
        if signal == process::Asked::Reload {
            self.tell(&ToWorker::Tell);
            info!("the file is read only when it starts: 'hoplite down' and 'hoplite up' again");
        }
        signal == process::Asked::Stop
    }

    fn answer(&mut self, asked: Asked) -> Option<End> {
        match asked.command {
            Command::Down => return Some(End::Down(asked.answer)),
            Command::Leave => return Some(End::Replaced(asked.answer)),
            Command::Status => {
                if self.asking.is_empty() {
                    self.patience = Instant::now() + WORKER_TIMEOUT;
                    self.tell(&ToWorker::Report);
                }
                self.asking.push(asked.answer);
                if self.worker.is_none() {
                    self.report(Report::default());
                }
            }
        }
        None
    }

    /// Answers all who wait.
    fn report(&mut self, report: Report) {
        let value = super::control::flat(&self.status(self.since, report));
        for answer in self.asking.drain(..) {
            // Who has gone away meanwhile does not wait for it.
            answer.send(value.clone()).unwrap_or_default();
        }
    }

    fn status(&self, since: Option<u64>, report: Report) -> Status {
        let report = report.plain();
        let of = |name: &str| report.counters.get(name).copied().unwrap_or(0);
        let process = Process {
            pid: std::process::id(),
            worker: self.worker.as_ref().map_or(0, WorkerProcess::id),
            since: since.unwrap_or(0),
            sent: of("bytes_in"),
            received: of("bytes_out"),
            path: report.path,
            connected: report.connected,
            channel: report.channel,
            split_until: report.split_until,
            tokens: report.tokens,
            services: report.services,
            service_circuits: report.service_circuits,
            block: self.orders.wanted.block,
            before: self.taken.machine().before(),
            dns: self.plan.names().to_owned(),
            flows: report.flows,
            counters: report.counters,
        };
        Status {
            state: since.map_or(State::Starting, |_| State::Up),
            name: self.orders.wanted.name.clone(),
            process: Some(process),
            // Whoever asks looks and counts, so that nothing waits here meanwhile.
            firewall: Standing::default(),
            blocked: None,
        }
    }

    /// The worker tells relays that nothing more comes, and is gone.
    async fn dismiss(&mut self) {
        self.tell(&ToWorker::Leave);
        if let Some(worker) = self.worker.take() {
            let gone = async { while let Ok(Some(_)) = said(&worker).await {} };
            drop(timeout(WORKER_TIMEOUT, gone).await);
        }
    }

    /// Gives the machine back.
    async fn end(mut self, end: End) -> Result<(), Failure> {
        self.dismiss().await;
        let stays = self.orders.stays_blocked(&self.facts);
        let leave = match &end {
            End::Signal if self.orders.keep_block => Leave::Block,
            End::Failed(_) if stays => Leave::Block,
            End::Replaced(_) if self.orders.wanted.block => Leave::Block,
            _ => Leave::Nothing,
        };
        let complaints = self.taken.give_back(leave).await;
        complaints.iter().for_each(|complaint| warn!("{complaint}"));
        match end {
            End::Failed(failure) if complaints.is_empty() => Err(leaving(failure, stays)),
            End::Failed(failure) => Err(failure),
            End::Signal => complaints
                .into_iter()
                .next()
                .map_or(Ok(()), |it| Err(it.into())),
            End::Down(answer) | End::Replaced(answer) => {
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

fn watch_kernel(name: &str) -> Result<Kernel, Complaint> {
    Kernel::watch(name).map_err(|error| {
        let remedy = "the kernel must have netlink, and the sandbox AF_NETLINK";
        Complaint::new("watching the interface", error, remedy)
    })
}

/// Where it is written who resolves names. Without inotify nobody notices; it works until then.
fn watch_names(system: &System, facts: &Facts) -> Option<Files> {
    Files::watch(system.sources(facts)).ok()
}

fn watch_firewall(plan: &Plan) -> Result<Option<nftables::Watch>, Complaint> {
    let is_there = |step: &plan::Step| matches!(step, plan::Step::Firewall(..));
    let watch = plan.steps.iter().any(is_there).then(nftables::Watch::new);
    watch.transpose().map_err(|error| {
        let remedy = "run as root, or with CAP_NET_ADMIN";
        Complaint::new("watching nftables", error, remedy)
    })
}

/// One that is made anew and not noticed would go past where it alone is taken, and be blocked where it is excluded.
fn watch_groups(wanted: &Wanted) -> Result<Option<Files>, Complaint> {
    match watch::groups(wanted) {
        Err(error) if !wanted.only_cgroups.is_empty() => {
            let remedy = "raise fs.inotify.max_user_instances, or take `include.cgroups` out";
            Err(Complaint::new("watching control groups", error, remedy))
        }
        groups => Ok(groups.unwrap_or_default()),
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

fn start(
    orders: &Orders,
    facts: &Facts,
    (asks_system, again): (bool, bool),
) -> Result<WorkerProcess, Failure> {
    let begin = ToWorker::Begin {
        servers: facts.servers.clone(),
        asks_system,
        again,
        addresses: facts.usable(&orders.wanted.addresses),
    };
    let kept = match &orders.client.config.directory {
        Some(file) => DirectoryCache::load(file)?,
        None => DirectoryCache::default(),
    };
    let tokens = stocks::serve(&orders.client.config.issuer)?;
    WorkerProcess::start(&begin, &kept, &tokens).map_err(|error| {
        let remedy = "raise the limits of processes and open files";
        Failure::new("starting the process that carries traffic", error, remedy)
    })
}

async fn said(worker: &WorkerProcess) -> std::io::Result<Option<(FromWorker, Vec<OwnedFd>)>> {
    worker.channel.next().await
}

/// What it says next; `None` when it has ended or speaks nonsense, and when there is none and it is time for one.
async fn heard(
    worker: &Option<WorkerProcess>,
    again: Instant,
) -> Option<(FromWorker, Vec<OwnedFd>)> {
    match worker {
        Some(worker) => said(worker).await.ok().flatten(),
        None => {
            sleep_until(again).await;
            None
        }
    }
}

/// What is new of the directory goes into the user's file.
fn keep(orders: &Orders, mut with: Vec<OwnedFd>) {
    let (Some(file), Some(kept)) = (&orders.client.config.directory, with.pop()) else {
        return;
    };
    let saved = match apart::read(kept) {
        Ok(kept) => kept.save(file).map_err(|failure| failure.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = saved {
        warn!("what is new of the directory is not kept: {error}");
    }
}

/// The first worker, with all that it needs before something is taken, and where users ask.
async fn prepare(
    orders: &Orders,
    facts: &Facts,
    signals: &mut Signals,
) -> Result<(WorkerProcess, Control), Failure> {
    let asks_system = !facts.blocked && !facts.asks_us;
    let worker = start(orders, facts, (asks_system, false))?;
    prepared(orders, &worker, signals).await?;
    let control = Control::listen(&orders.run_dir, &orders.wanted.name)
        .map_err(|error| Failure::file("listening in", &orders.run_dir, &error))?;
    Ok((worker, control))
}

/// Nothing is taken yet. What shall be left blocked however this ends, is blocked now.
async fn unprepared(orders: &Orders, system: System, facts: &Facts, failure: Failure) -> Failure {
    if orders.keep_block {
        let plan = plan::block(&orders.wanted, facts);
        let (_, complaints) = Taken::take_all_it_can(system, &plan).await;
        complaints.iter().for_each(|complaint| warn!("{complaint}"));
        if !complaints.is_empty() {
            return failure;
        }
    }
    leaving(failure, orders.stays_blocked(facts))
}

/// Who asked for something closed does not find it open without a word.
pub(super) fn leaving(failure: Failure, blocked: bool) -> Failure {
    let what = if blocked {
        "; everything stays blocked until 'hoplite up' or 'hoplite down'"
    } else {
        "; programs' traffic goes its usual way"
    };
    let said = |mut complaint: Complaint| {
        complaint.remedy.push_str(what);
        complaint
    };
    match failure {
        Failure::Failed(complaint) => Failure::Failed(said(complaint)),
        Failure::Wrong(complaints) => Failure::Wrong(complaints.into_iter().map(said).collect()),
    }
}

/// Waits until the worker has all that it needs.
async fn prepared(
    orders: &Orders,
    worker: &WorkerProcess,
    signals: &mut Signals,
) -> Result<(), Failure> {
    loop {
        tokio::select! {
            said = said(worker) => match said.ok().flatten() {
                Some((FromWorker::Keep, with)) => keep(orders, with),
                Some((FromWorker::Prepared, _)) => return Ok(()),
                Some((FromWorker::Failed(complaints), _)) => return Err(told(&complaints)),
                _ => return Err(ended()),
            },
            signal = signals.next() => if signal == process::Asked::Stop {
                let remedy = "run 'hoplite up' again";
                return Err(Failure::new("bringing the device up", "interrupted", remedy));
            },
        }
    }
}

/// What it complains of.
fn told(complaints: &[Complaint]) -> Failure {
    let plain =
        |it: &Complaint| Complaint::new(plain(&it.doing), plain(&it.why), plain(&it.remedy));
    match complaints {
        [] => ended(),
        [one] => Failure::Failed(plain(one)),
        all => all.iter().map(plain).collect::<Vec<_>>().into(),
    }
}

fn ended() -> Failure {
    let remedy = "see what it said before, and report it";
    Failure::new(
        "carrying traffic",
        "the process that does has ended",
        remedy,
    )
}

fn silent() -> Failure {
    let remedy = "see what it said before, and report it";
    let why = "the process that does says neither that it flows nor why not";
    Failure::new("carrying traffic", why, remedy)
}

/// The runtime that all of it runs on.
pub(crate) fn on_one_thread(
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    process::current_thread_runtime()?.block_on(work)
}
