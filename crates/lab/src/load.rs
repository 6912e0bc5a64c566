//! `hoplite-lab load`: how many users relays of one's own carry (docs/operating.md, "A load test"). For each number of clients in turn, that many independent
//! ones, each with connections of its own to the first relay, do the same against a server of one's own, `hoplite-lab load serve`.
//!
//! ```text
//! path: the relays of a client's file ──▶ work: one client's session, again and again ──▶ figures: what all of them met
//!                                           │                                               ▲
//!                                         serve: transfers, echoes                        relay: what its metrics say
//! ```
//! It has the relays' tokens or gets nowhere: it is no tool against the relays of others.

mod figures;
mod path;
mod relay;
mod serve;
mod work;

use std::{
    io::{self, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use hoplite_workload::{cpu, web::prepare_payload};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

pub use self::work::Workload;
use self::{
    figures::{HEAD, Level, Tally},
    path::Relays,
    relay::{Exporter, Reading},
    work::{Clients, Fault, Pacer},
};
use crate::{
    cli::{LoadArgs, LoadCommand},
    errors::{Failure, printed},
};

/// Clients that begin in a second: all at once would measure nothing but handshakes.
const BEGIN_PER_SECOND: f64 = 200.0;
/// Descriptors beside those of clients.
const SPARE_DESCRIPTORS: u64 = 128;
/// Of each client: the socket of its connection, and one more while it is dialled.
const DESCRIPTORS: u64 = 2;
/// How long connections that are closed may take to say so.
const FAREWELL: Duration = Duration::from_millis(300);
/// So much of all processors, and figures are of this machine more than of the relay.
const BUSY: f64 = 0.85;

/// Runs the levels, or the server.
///
/// # Errors
/// A file or an address is wrong, or the path and the server do not serve a single client.
pub(crate) fn run(args: &LoadArgs) -> Result<(), Failure> {
    if let Some(LoadCommand::Serve(serve)) = &args.command {
        return serve::run(serve);
    }
    let (Some(config), Some(server)) = (&args.config, &args.server) else {
        return Err(broken(&io::Error::other("no file or no server is given")));
    };
    let exporter = args.metrics.as_deref().map(Exporter::parse).transpose()?;
    let relays = Relays::read(config)?;
    let most = args.clients.iter().copied().max().unwrap_or(1);
    allow_descriptors(u64::from(most));
    prepare_payload();
    let test = Test {
        clients: Clients {
            relays: Arc::new(relays),
            server: server.clone(),
            workload: args.workload,
            pacer: args.mbit.map(Pacer::new).map(Arc::new),
            mbit: args.mbit,
        },
        exporter,
        seconds: args.seconds,
        p99: Duration::from_millis(args.p99),
        json: args.json,
    };
    let runtime = runtime().map_err(|error| broken(&error))?;
    let done = runtime.block_on(test.run(&args.clients));
    runtime.shutdown_background();
    done
}

struct Test {
    clients: Clients,
    exporter: Option<Exporter>,
    seconds: u64,
    p99: Duration,
    json: bool,
}

impl Test {
    async fn run(&self, levels: &[u32]) -> Result<(), Failure> {
        let mut told = Told::listen().map_err(|error| broken(&error))?;
        let first = tokio::select! {
            first = self.clients.try_once() => first,
            () = told.asked_to_end() => return Ok(()),
        };
        first.map_err(|fault| self.not_even_one(&fault))?;
        if !self.json {
            print(HEAD)?;
        }
        let mut most = None;
        let mut faults = figures::Faults::default();
        for &clients in levels {
            let (level, is_over) = self.level(clients, &mut told).await?;
            let line = if self.json {
                level.json().to_string()
            } else {
                level.to_string()
            };
            print(&line)?;
            if level.serves_all(self.p99) {
                most = most.max(Some(clients));
            }
            if level.generator_share > BUSY {
                remark(
                    "hoplite-lab: this machine itself is busy: its figures are not the relay's; run from a faster one, or from several",
                );
            }
            faults.add(&level);
            if is_over {
                break;
            }
        }
        faults.tell().iter().for_each(|line| remark(line));
        self.end(most)
    }

    fn end(&self, most: Option<u32>) -> Result<(), Failure> {
        if self.json {
            return print(&json!({"most_served": most}).to_string());
        }
        let p99 = self.p99.as_millis();
        let most = most.map_or_else(|| "none".to_owned(), |most| most.to_string());
        print(&format!(
            "largest number of clients of which all were served: {most} (no failure, 99 % of first bytes within {p99} ms)"
        ))
    }

    fn not_even_one(&self, fault: &Fault) -> Failure {
        Failure::new(
            format!("trying one client to {}", self.clients.server),
            &fault.why,
            fault.hint.first(),
        )
    }

    /// So many clients, and whether it is over: what was measured until then is told.
    async fn level(&self, clients: u32, told: &mut Told) -> Result<(Level, bool), Failure> {
        let before = self.read().await?;
        let tally = Arc::new(Tally::new(clients));
        let (stop, stopped) = watch::channel(false);
        let threads = start(&self.clients, clients, &tally, &stopped);
        let threads = threads.map_err(|error| broken(&error))?;
        let (bar, seconds) = (self.bar(clients), Duration::from_secs(self.seconds));
        let ramp = Duration::from_secs_f64(f64::from(clients) / BEGIN_PER_SECOND);
        let mut is_over = self.watch(&bar, &tally, told, ramp).await;
        let (mark, begun, cpu) = (tally.mark(), Instant::now(), own_cpu());
        let at_begin = self.read().await?;
        is_over |= !is_over && self.watch(&bar, &tally, told, seconds).await;
        let (at_end, took) = (self.read().await?, begun.elapsed());
        let share = (own_cpu() - cpu) / took.as_secs_f64() / f64::from(processors());
        let since = tally.since(&mark);
        bar.finish_and_clear();
        stop.send_replace(true);
        tokio::task::spawn_blocking(move || {
            threads.into_iter().try_for_each(thread::JoinHandle::join)
        })
        .await
        .ok()
        .and_then(Result::ok)
        .ok_or_else(|| broken(&io::Error::other("a thread of clients died")))?;
        let relay = relay::cost(&before, &at_begin, &at_end, since.bytes, (clients, took));
        Ok((Level::of(&tally, &since, took, share, relay), is_over))
    }

    async fn read(&self) -> Result<Option<Reading>, Failure> {
        match &self.exporter {
            Some(exporter) => exporter.read().await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits, and shows how it goes. Whether it is over.
    async fn watch(
        &self,
        bar: &ProgressBar,
        tally: &Tally,
        told: &mut Told,
        time: Duration,
    ) -> bool {
        let until = Instant::now() + time;
        while Instant::now() < until {
            bar.set_message(tally.passing());
            let look = until.min(Instant::now() + Duration::from_millis(200));
            tokio::select! {
                () = sleep_until(look) => bar.inc(200),
                () = told.asked_to_end() => return true,
            }
        }
        false
    }

    fn bar(&self, clients: u32) -> ProgressBar {
        let ramp = f64::from(clients) / BEGIN_PER_SECOND;
        let length = Duration::from_secs(self.seconds) + Duration::from_secs_f64(ramp);
        let bar = if self.json {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(u64::try_from(length.as_millis()).unwrap_or(u64::MAX))
        };
        let style = ProgressStyle::with_template("{bar:30} {prefix} {msg} {elapsed}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_prefix(format!("{clients} clients"));
        bar
    }
}

/// Clients on as many threads as there are processors, each with a runtime of its own, until they are stopped.
fn start(
    clients: &Clients,
    count: u32,
    tally: &Arc<Tally>,
    stopped: &watch::Receiver<bool>,
) -> io::Result<Vec<thread::JoinHandle<()>>> {
    let threads = u32::from(processors()).min(count).max(1);
    let begun = Instant::now();
    let one = |thread: u32| {
        let (clients, tally, stopped) = (clients.clone(), Arc::clone(tally), stopped.clone());
        let runtime = runtime()?;
        let work = move || {
            runtime.block_on(async {
                let mut all = JoinSet::new();
                for number in (thread..count).step_by(threads as usize) {
                    let at = begun + Duration::from_secs_f64(f64::from(number) / BEGIN_PER_SECOND);
                    let (clients, tally) = (clients.clone(), Arc::clone(&tally));
                    let stopped = stopped.clone();
                    all.spawn(async move { clients.run(number, at, &tally, stopped).await });
                }
                while all.join_next().await.is_some() {}
                sleep(FAREWELL).await;
            });
            runtime.shutdown_background();
        };
        thread::Builder::new().name("clients".into()).spawn(work)
    };
    (0..threads).map(one).collect()
}

/// Signals that end it.
struct Told([Signal; 2]);

impl Told {
    fn listen() -> io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
        let [int, term] = kinds.map(signal);
        Ok(Self([int?, term?]))
    }

    async fn asked_to_end(&mut self) {
        let Self([int, term]) = self;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
    }
}

/// Raises the limit of open files as far as it goes, and says if that is too little.
fn allow_descriptors(clients: u64) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap_or_default();
    let has = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let needs = clients * DESCRIPTORS + SPARE_DESCRIPTORS;
    if has < needs {
        let enough = has.saturating_sub(SPARE_DESCRIPTORS) / DESCRIPTORS;
        remark(&format!(
            "hoplite-lab: this process may have {has} files open, which is enough for {enough} clients: 'ulimit -n {needs}' as root raises that"
        ));
    }
}

fn own_cpu() -> f64 {
    let time = cpu::cpu_time(std::process::id());
    time.unwrap_or_default().as_secs_f64()
}

fn processors() -> u16 {
    let count = thread::available_parallelism().map_or(1, |count| count.get());
    u16::try_from(count).unwrap_or(u16::MAX)
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn print(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    printed(writeln!(out, "{line}").and_then(|()| out.flush()))
}

/// To stderr; one that is closed is nobody's failure.
fn remark(line: &str) {
    drop(writeln!(io::stderr(), "{line}"));
}

fn broken(error: &io::Error) -> Failure {
    Failure::new("running the load test", error, "please report this")
}
