//! `hoplite-sim`: runs a network of relays and clients in virtual time, or its directory alone, and says how it went. docs/sim.md.

use std::{
    path::PathBuf,
    process::ExitCode,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use clap::{Parser, Subcommand};
use hoplite_channel::How;
use hoplite_sim::{
    Failed, Progress, Settings, Traffic, cascade, directory,
    report::Outcome,
    report::{self, Summary},
    run,
};
use hoplite_wire::tuning::Congestion;
use indicatif::{ProgressBar, ProgressStyle};

/// Relays and clients of circuits in one process and in virtual time.
#[derive(Debug, Parser)]
#[command(name = "hoplite-sim", version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Relays; every third is an exit too.
    #[arg(long, default_value_t = 40)]
    relays: usize,
    /// Clients.
    #[arg(long, default_value_t = 100)]
    clients: usize,
    /// Servers that clients fetch from.
    #[arg(long, default_value_t = 4)]
    targets: usize,
    /// Everything is drawn from it: one seed, one outcome.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long clients fetch, in virtual minutes; the warm-up is a part of it.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Clients begin within this many virtual minutes; what is fetched in them is not counted.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// What channels run over: "quic", "tls", or "auto", both of them raced.
    #[arg(long, default_value = "quic", value_parser = channel)]
    channel: How,
    /// The share of packets that is lost between any two nodes, from 0 to 1.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// No packet is lost between exits and targets: `--loss` is that of the circuits' hops alone.
    #[arg(long)]
    lossless_targets: bool,
    /// Relays of a path.
    #[arg(long, default_value_t = 3)]
    hops: usize,
    /// Tor's fixed windows instead of congestion control.
    #[arg(long)]
    fixed_windows: bool,
    /// A circuit that stands ready is two that carry the same streams (Conflux).
    #[arg(long)]
    conflux: bool,
    /// Circuits that each client has ready.
    #[arg(long, default_value_t = 1)]
    ahead: usize,
    /// The share of clients that fetch much, from 0 to 1.
    #[arg(long, default_value_t = 0.04)]
    bulk: f64,
    /// The mean pause after a page, in seconds.
    #[arg(long, default_value_t = 60.0)]
    web_pause: f64,
    /// The mean pause of those that fetch much, in seconds.
    #[arg(long, default_value_t = 60.0)]
    bulk_pause: f64,
    /// A relay that goes, and after how many minutes: 3@1.5. May be given often.
    #[arg(long)]
    kill: Vec<Kill>,
    /// Writes summary.json, fetches.csv, circuits.csv and relays.csv into this directory.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Prints the summary as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The directory's traffic: what authorities and relays give, and what clients take to begin and to renew.
    Directory(DirectoryArgs),
    /// Tunnels in tunnels: what each acknowledgement policy costs a transfer, and what it takes of the client's link.
    Cascade(CascadeArgs),
}

#[derive(Debug, clap::Args)]
struct CascadeArgs {
    /// Relays, each a tunnel within the one before; with none, the direct way alone.
    #[arg(long, default_value_t = 4)]
    hops: usize,
    /// The client's link to it, in Mbit/s; 0: no limit.
    #[arg(long, default_value_t = 10.0)]
    down: f64,
    /// From it.
    #[arg(long, default_value_t = 10.0)]
    up: f64,
    /// One way from end to end, in milliseconds.
    #[arg(long, default_value_t = 25.0)]
    delay: f64,
    /// The queue before the client's link, as a multiple of what it carries within a round trip.
    #[arg(long, default_value_t = 1.5)]
    queue: f64,
    /// Both directions of the client's link share one line.
    #[arg(long)]
    half_duplex: bool,
    /// The share of packets that the client's link loses, from 0 to 1.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// What is transferred, in bytes.
    #[arg(long, default_value_t = 2_000_000)]
    bytes: u64,
    /// "download" and "upload", by a QUIC connection end to end, or "stream", down by a stream of the last relay's.
    #[arg(long, default_value = "download", value_parser = transfer)]
    transfer: cascade::Transfer,
    /// Policies, as `acks` of a client's file has them; two, of what the client sends and of what relays send, as 1ms/1rtt; or "naive": 1 ms from
    /// the first packet on. Behind a policy the one hop that has it, as 1rtt@1: others are naive.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "auto,naive,default,0.25rtt,0.5rtt,1rtt,extension,none"
    )]
    acks: Vec<String>,
    /// Congestion control of the tunnels, as `congestion` of a client's file.
    #[arg(long, default_value = "auto")]
    congestion: Congestion,
    /// What a processor takes for each packet that it encrypts or decrypts, in microseconds.
    #[arg(long, default_value_t = 0.0)]
    work: f64,
    /// Everything is drawn from it: one seed, one outcome.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs of each policy, with this seed and those that follow it.
    #[arg(long, default_value_t = 5)]
    runs: u64,
    /// Prints a line of JSON for each policy.
    #[arg(long)]
    json: bool,
}

impl CascadeArgs {
    fn settings(&self, acks: &str) -> Result<cascade::Settings, String> {
        let policy = cascade::Policy::named(acks, self.congestion);
        Ok(cascade::Settings {
            hops: self.hops,
            down: bits(self.down)?,
            up: bits(self.up)?,
            delay: time(self.delay, 0.001)?,
            queue: self.queue,
            half_duplex: self.half_duplex,
            loss: self.loss,
            bytes: self.bytes,
            transfer: self.transfer,
            work: time(self.work, 0.000_001)?,
            policy: policy.map_err(|error| format!("{acks}: {error}"))?,
            seed: self.seed,
        })
    }

    /// Without relays no policy differs from another.
    fn policies(&self) -> Vec<&str> {
        if self.hops == 0 {
            return vec!["auto"];
        }
        self.acks.iter().map(String::as_str).collect()
    }
}

/// Megabits a second in bits.
fn bits(megabits: f64) -> Result<u64, String> {
    let bits = (megabits * 1e6).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is within 64 bits"
    )]
    let rate = (0.0..=1e12).contains(&bits).then_some(bits as u64);
    rate.ok_or_else(|| format!("{megabits} Mbit/s is no rate"))
}

fn transfer(text: &str) -> Result<cascade::Transfer, &'static str> {
    match text {
        "download" => Ok(cascade::Transfer::Download),
        "upload" => Ok(cascade::Transfer::Upload),
        "stream" => Ok(cascade::Transfer::Stream),
        _ => Err("expected \"download\", \"upload\" or \"stream\""),
    }
}

#[derive(Debug, clap::Args)]
struct DirectoryArgs {
    /// Relays of each list.
    #[arg(long, default_value_t = 1000)]
    relays: usize,
    /// Clients, which begin at some time of the first half.
    #[arg(long, default_value_t = 2000)]
    clients: usize,
    /// Authorities.
    #[arg(long, default_value_t = 3)]
    authorities: usize,
    /// Virtual hours; there is a list each hour.
    #[arg(long, default_value_t = 24)]
    hours: usize,
    /// Everything is drawn from it: one seed, one outcome.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// After so many hours a relay says as of then what has not changed.
    #[arg(long, default_value_t = 18)]
    every: u64,
    /// The share of directory caches of Tor's that keep lists of ours too, from 0 to 1.
    #[arg(long, default_value_t = 1.0)]
    keep: f64,
    /// The share of relays that go within an hour, from 0 to 1; others come in their place.
    #[arg(long, default_value_t = 0.01)]
    leave: f64,
    /// The share whose measured bandwidth is another after an hour.
    #[arg(long, default_value_t = 0.1)]
    remeasured: f64,
    /// The share that gets or loses the flag Stable in an hour.
    #[arg(long, default_value_t = 0.01)]
    reflagged: f64,
    /// A consensus of Tor's with microdescriptors (`cached-microdesc-consensus` of C tor's DataDirectory), whose relays are sampled; without it relays
    /// that were made up are.
    #[arg(long)]
    population: Option<PathBuf>,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
}

impl DirectoryArgs {
    fn settings(&self) -> directory::Settings {
        directory::Settings {
            relays: self.relays,
            clients: self.clients,
            authorities: self.authorities,
            hours: self.hours,
            seed: self.seed,
            every: self.every,
            keep: self.keep,
            leave: self.leave,
            remeasured: self.remeasured,
            reflagged: self.reflagged,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Kill(usize, Duration);

impl FromStr for Kill {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (relay, minutes) = text.split_once('@').ok_or("write it as RELAY@MINUTES")?;
        let relay = relay.parse().map_err(|_| "the relay is a number, from 0")?;
        let minutes = minutes.parse().map_err(|_| "the minutes are a number")?;
        Ok(Self(relay, time(minutes, 60.0)?))
    }
}

fn channel(text: &str) -> Result<How, &'static str> {
    match text {
        "quic" => Ok(How::Quic),
        "tls" => Ok(How::Tls),
        "auto" => Ok(How::Raced),
        _ => Err("expected \"quic\", \"tls\" or \"auto\""),
    }
}

/// This many seconds or minutes.
fn time(count: f64, of: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(count * of).map_err(|_| format!("{count} is no time"))
}

impl Args {
    fn settings(&self) -> Result<Settings, String> {
        Ok(Settings {
            relays: self.relays,
            clients: self.clients,
            targets: self.targets,
            seed: self.seed,
            time: time(self.minutes, 60.0)?,
            warm_up: time(self.warm_up, 60.0)?,
            channel: self.channel,
            loss: self.loss,
            lossless_targets: self.lossless_targets,
            traffic: Traffic {
                bulk: self.bulk,
                web_pause: time(self.web_pause, 1.0)?,
                bulk_pause: time(self.bulk_pause, 1.0)?,
                ..Traffic::default()
            },
            kills: self.kill.iter().map(|kill| (kill.0, kill.1)).collect(),
            hops: self.hops,
            congestion_control: !self.fixed_windows,
            conflux: self.conflux,
            ahead: self.ahead,
        })
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    match &args.command {
        Some(Command::Directory(args)) => return directory_traffic(args),
        Some(Command::Cascade(args)) => return cascades(args),
        None => {}
    }
    let settings = match args.settings() {
        Ok(settings) => settings,
        Err(why) => return fail(&format!("reading the options: {why}"), 2),
    };
    let begun = Instant::now();
    match shown(&settings) {
        Ok(outcome) => tell(&args, &outcome, begun.elapsed()),
        Err(wrong @ Failed::Wrong(_)) => fail(&wrong.to_string(), 2),
        Err(failed) => fail(&failed.to_string(), 1),
    }
}

#[expect(clippy::print_stdout, reason = "what the user asked for")]
fn directory_traffic(args: &DirectoryArgs) -> ExitCode {
    let read = args.population.as_ref().map(std::fs::read_to_string);
    let population = match read.transpose() {
        Ok(population) => population,
        Err(error) => return fail(&format!("reading the population: {error}"), 2),
    };
    let population = population.as_deref().unwrap_or(directory::SYNTHETIC);
    let report = match directory::run(&args.settings(), population) {
        Ok(report) => report,
        Err(wrong) => return fail(&wrong.to_string(), 2),
    };
    if args.json {
        match serde_json::to_string(&report) {
            Ok(line) => println!("{line}"),
            Err(error) => return fail(&format!("writing the report: {error}"), 1),
        }
    } else {
        print!("{report}");
    }
    ExitCode::SUCCESS
}

#[expect(clippy::print_stdout, reason = "what the user asked for")]
fn cascades(args: &CascadeArgs) -> ExitCode {
    if !args.json {
        println!("{}", cascade::Row::HEAD);
    }
    for acks in args.policies() {
        let settings = match args.settings(acks) {
            Ok(settings) => settings,
            Err(why) => return fail(&format!("reading the options: {why}"), 2),
        };
        let row = match cascade::Row::of(&settings, args.runs) {
            Ok(row) => row,
            Err(wrong @ cascade::Failed::Wrong(_)) => return fail(&wrong.to_string(), 2),
            Err(failed) => return fail(&failed.to_string(), 1),
        };
        if !args.json {
            println!("{row}");
            continue;
        }
        match serde_json::to_string(&row) {
            Ok(line) => println!("{line}"),
            Err(error) => return fail(&format!("writing the row: {error}"), 1),
        }
    }
    ExitCode::SUCCESS
}

/// Runs with a progress bar where there is a terminal.
fn shown(settings: &Settings) -> Result<Outcome, Failed> {
    let (progress, over) = (Arc::<Progress>::default(), AtomicBool::new(false));
    let seconds = settings.time.as_secs();
    let bar = ProgressBar::new(seconds);
    let style =
        ProgressStyle::with_template("{bar:40} {pos}/{len} virtual seconds, {elapsed}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                bar.set_position(progress.virtual_ms.load(Relaxed) / 1000);
                thread::sleep(Duration::from_millis(200));
            }
            bar.finish_and_clear();
        });
        let outcome = run(settings, &progress);
        over.store(true, Relaxed);
        outcome
    })
}

#[expect(clippy::print_stdout, reason = "what the user asked for")]
fn tell(args: &Args, outcome: &Outcome, took: Duration) -> ExitCode {
    let summary = Summary::of(outcome);
    if args.json {
        match serde_json::to_string(&summary) {
            Ok(line) => println!("{line}"),
            Err(error) => return fail(&format!("writing the summary: {error}"), 1),
        }
    } else {
        println!("{summary}{}", cost(outcome, took))
    }
    if let Some(directory) = &args.out
        && let Err(error) = report::write(outcome, directory)
    {
        return fail(
            &format!(
                "writing into {}: {error}: choose another --out",
                directory.display()
            ),
            1,
        );
    }
    ExitCode::SUCCESS
}

/// What it took of this machine: not a part of the outcome.
fn cost(outcome: &Outcome, took: Duration) -> String {
    let faster = outcome.took.as_secs_f64() / took.as_secs_f64();
    let seconds = took.as_secs_f64();
    let memory =
        peak_memory().map_or_else(String::new, |mib| format!(", {mib} MiB of memory at most"));
    format!("{seconds:.1} s of real time, {faster:.2} virtual seconds in each{memory}")
}

/// In MiB.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

#[expect(clippy::print_stderr, reason = "what failed")]
fn fail(what: &str, code: u8) -> ExitCode {
    eprintln!("hoplite-sim: {what}");
    ExitCode::from(code)
}
