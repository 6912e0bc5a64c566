//! `hoplite-lab monitor`: unattended measuring on real networks for months, within a budget of bytes (docs/monitor.md). Paper 002, sections III.A
//! and IV.A: OnionPerf's schedule, made fit for mobile plans, several interfaces and a server elsewhere.
//!
//! ```text
//! schedule: what is due ──▶ vantage: one transfer at a time ──▶ days: samples, state ──▶ page, metrics, OnionPerf's JSON
//!    budget: may it?            │        ▲                          ▲
//!                               ▼        └ interface: what passed   └ control: what tor did
//!                            server (`monitor serve`)
//! ```
//! Each interface has a thread, a schedule, a budget and a directory of its own: what one of them waits for delays no other.

mod analysis;
mod budget;
pub(crate) mod config;
pub mod control;
mod days;
mod interface;
mod schedule;
pub(crate) mod server;
mod vantage;

use std::{
    io,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use hoplite_workload::{load::Stop, web::prepare_payload};
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
    time::sleep,
};

use self::{
    budget::day,
    config::File,
    control::Tracker,
    days::{Days, replace},
    schedule::Now,
    vantage::Vantage,
};
use crate::{cli::MonitorArgs, errors::Failure, results::report::months};

/// How far back the page looks, in days.
const SHOWN: u64 = 92;

/// Transfers by the schedule until it is told to end.
///
/// # Errors
/// The file is wrong, or its directory cannot be used.
pub(crate) fn run(args: &MonitorArgs) -> Result<(), Failure> {
    let file = File::read(&args.file)?;
    say_log();
    prepare_payload();
    let clock = Clock::start(args.pace, args.at);
    let (stop, tracker) = (Stop::default(), Arc::new(Mutex::new(Tracker::default())));
    let mut vantages = Vec::new();
    for (name, plan) in file.plans() {
        let (payload, limit) = (plan.payload_in_30_days(), plan.limit);
        tracing::info!(
            interface = name,
            payload,
            limit,
            "bytes that 30 days take, and may take with all that comes on top"
        );
        let opened = Vantage::open(
            &file,
            &name,
            plan,
            (clock.clone(), stop.clone(), Arc::clone(&tracker)),
        );
        vantages.push(opened.map_err(|error| unusable(&file.directory, &error))?);
    }
    let runtime = runtime()?;
    let threads: Result<Vec<_>, _> = vantages.into_iter().map(start).collect();
    let threads = threads.map_err(|error| broken(&error))?;
    runtime.block_on(async {
        let ended = async {
            while !threads.iter().any(thread::JoinHandle::is_finished) {
                sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::select! {
            told = told_to_end() => told.map_err(|error| broken(&error)),
            () = ended => Ok(()),
            () = vantage::supervise(&file.subject.command) => Ok(()),
            () = follow(&file, &tracker, &clock) => Ok(()),
        }
    })?;
    stop.set();
    for thread in threads {
        let ended = thread.join();
        ended
            .map_err(|_| broken(&io::Error::other("a thread of it died")))?
            .map_err(|error| unusable(&file.directory, &error))?;
    }
    Ok(())
}

/// A runtime of its own for each interface: what is written to disk between two transfers stands in nobody else's way.
fn start(mut vantage: Vantage) -> io::Result<thread::JoinHandle<io::Result<()>>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new()
        .name("vantage".into())
        .spawn(move || {
            let ended = runtime.block_on(vantage.run());
            // A lookup that nobody waits for any more ends with the process.
            runtime.shutdown_background();
            ended
        })
}

async fn follow(file: &File, tracker: &Mutex<Tracker>, clock: &Clock) {
    match &file.subject.control {
        Some(control) => {
            control::follow(control, file.subject.cookie.as_deref(), tracker, || {
                clock.unix()
            })
            .await
        }
        None => std::future::pending().await,
    }
}

/// Serves until it is told to end.
///
/// # Errors
/// The file is wrong, or an address cannot be listened at.
pub(crate) fn serve(args: &MonitorArgs) -> Result<(), Failure> {
    let file = File::read(&args.file)?;
    say_log();
    prepare_payload();
    let failed = |error: io::Error| {
        let remedy = "free the address, or choose another with `serve.listen`";
        Failure::new("starting the monitor's server", error, remedy)
    };
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let server = server::Server::open(file.serve).map_err(failed)?;
        tokio::select! {
            told = told_to_end() => told.map_err(|error| broken(&error)),
            () = server.run() => Ok(()),
        }
    });
    runtime.shutdown_background();
    outcome
}

/// Closes what is over and draws the page.
///
/// # Errors
/// The file is wrong, the directory cannot be used, or `run` has it.
pub(crate) fn page(args: &MonitorArgs) -> Result<(), Failure> {
    let file = File::read(&args.file)?;
    let now = Clock::start(1, None).now().unix;
    let drawn = || -> io::Result<()> {
        for (name, _) in file.plans() {
            let days = Days::open(file.directory.join(&name))?;
            days.close(&day(now), &name, &file.label())?;
        }
        draw(&file, now)
    };
    drawn().map_err(|error| unusable(&file.directory, &error))
}

/// Writes `index.html` from all that all interfaces have.
fn draw(file: &File, now: u64) -> io::Result<()> {
    let mut shown = Vec::new();
    let since = now.saturating_sub(SHOWN * budget::DAY);
    for (name, plan) in file.plans() {
        let days = Days::look(file.directory.join(&name));
        let kept = days.kept()?;
        let points = days.since(&day(since))?;
        shown.push(months::Vantage {
            name,
            subject: file.label(),
            limit: plan.limit,
            months: kept
                .schedule
                .ledger()
                .months()
                .map(|(month, bytes)| (month.to_string(), bytes))
                .collect(),
            points: points
                .iter()
                .map(|sample| months::Point::of(&sample.transfer))
                .collect(),
        });
    }
    let page = months::page(&shown, now);
    replace(&file.directory.join("index.html"), |file| {
        io::Write::write_all(file, page.as_bytes())
    })
}

/// The calendar and a clock that only goes forward.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    began: Instant,
    unix: f64,
    pace: u32,
    real: bool,
}

impl Clock {
    /// From now on: the system's, or one that goes faster and begins elsewhere.
    #[expect(clippy::cast_precision_loss, reason = "seconds below 2^53")]
    fn start(pace: u32, at: Option<u64>) -> Self {
        Self {
            began: Instant::now(),
            unix: at.map_or_else(system, |at| at as f64),
            pace,
            real: pace == 1 && at.is_none(),
        }
    }

    /// Now.
    pub(crate) fn now(&self) -> Now {
        let since = Duration::try_from_secs_f64(self.unix());
        Now {
            unix: since.map_or(0, |since| since.as_secs()),
            elapsed: self.began.elapsed().saturating_mul(self.pace),
        }
    }

    /// Seconds since 1970.
    pub(crate) fn unix(&self) -> f64 {
        if self.real {
            // The system's: it may be set meanwhile.
            return system();
        }
        self.unix + self.began.elapsed().as_secs_f64() * f64::from(self.pace)
    }

    /// Waits for so long of the calendar.
    pub(crate) async fn wait(&self, time: Duration) {
        sleep(time / self.pace).await;
    }
}

fn system() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

fn runtime() -> Result<Runtime, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| broken(&error))
}

async fn told_to_end() -> io::Result<()> {
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}

/// The log goes to stderr, where a service's journal takes it; one that stands already stays.
fn say_log() {
    drop(
        tracing_subscriber::fmt()
            .with_writer(io::stderr)
            .with_max_level(tracing::Level::INFO)
            .try_init(),
    );
}

fn broken(error: &io::Error) -> Failure {
    Failure::new(
        "running the monitor",
        error,
        "see what its log says above this line",
    )
}

fn unusable(directory: &Path, error: &io::Error) -> Failure {
    let doing = format!("using {}", directory.display());
    let remedy = match error.kind() {
        io::ErrorKind::WouldBlock => "end the other monitor that has it",
        io::ErrorKind::PermissionDenied => "make it writable for this user",
        io::ErrorKind::StorageFull => "free some space",
        _ => "look at what is in it; nothing was changed",
    };
    Failure::new(doing, error, remedy)
}
