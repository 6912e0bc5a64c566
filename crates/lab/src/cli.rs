//! The command line of `hoplite-lab`. Scripts depend on it: extend, do not rename.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand};
use hoplite_wire::Target;

use crate::{
    balancer, calibrate, doctor,
    errors::Failure,
    experiments::{campaign, scenario, workload, world},
    load, monitor,
    results::{hand_in, report},
};

/// Seconds that a place where results are handed in is waited for.
const PATIENCE: u64 = 300;

/// Emulated networks, every competitor beside Hoplite, figures that stand up.
#[derive(Debug, Parser)]
#[command(name = "hoplite-lab", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a scenario, or go on with one that was interrupted.
    Run(RunArgs),
    /// Make the report of a campaign: one HTML page, figures, CSV, OnionPerf JSON.
    Report(ReportArgs),
    /// Draw what a page of measurements tells: FILE.toml into FILE.svg beside it.
    Plot(PlotArgs),
    /// Join the shards of one campaign into one directory.
    Merge(MergeArgs),
    /// Put results where those of many machines are: into PostgreSQL, or into Parquet files on shared storage. Again adds nothing.
    HandIn(HandInArgs),
    /// What scenarios and subjects there are.
    List(ListArgs),
    /// Whether this machine has what the lab and its subjects need, and what installs it.
    Doctor(DoctorArgs),
    /// Measure the lab itself: round trip, rate, loss, packets per second, set-up.
    Calibrate(CalibrateArgs),
    /// Balance UDP and TCP over a fleet of relays by the ids of connections.
    Balancer(BalancerArgs),
    /// Load relays of your own with many clients: how many users they carry.
    Load(LoadArgs),
    /// Measure real networks for months, within a budget.
    #[command(subcommand)]
    Monitor(MonitorCommand),
    /// One attempt, inside fresh namespaces: an order on stdin, a report on stdout.
    #[command(name = "__world", hide = true)]
    World,
    /// A workload's client.
    #[command(name = "__work", hide = true)]
    Work,
    /// A workload's server.
    #[command(name = "__serve", hide = true)]
    Serve,
    /// Write man pages and shell completions below a directory like /usr/share: for packages.
    #[command(name = "__share", hide = true)]
    Share(ShareArgs),
}

/// Arguments of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// The scenario's file, or the name of one that `list` shows.
    pub scenario: PathBuf,
    /// Where results go; runs that are there already are not repeated. `results/SCENARIO` if absent.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Repetitions of each case and subject, instead of the scenario's.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: Option<u32>,
    /// The seed of everything random, instead of the scenario's.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Only the I-th of N parts, such as 1/4, which are expected to take the same time; join them with `merge`.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<String>,
    /// Make the parts by the times that cases took in this earlier campaign, instead of what the scenario tells; the same for all parts.
    #[arg(long, value_name = "DIR")]
    pub times: Option<PathBuf>,
    /// Only these subjects.
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    pub subjects: Vec<String>,
    /// Only the cases with this value of a parameter of the matrix; again for other values and parameters. The rest may be run later.
    #[arg(long, value_name = "PARAMETER=VALUE")]
    pub case: Vec<String>,
    /// Keep captures, qlogs, drops and logs of every attempt.
    #[arg(long)]
    pub keep: bool,
    /// Repeat what failed or stayed invalid, too.
    #[arg(long)]
    pub retry: bool,
    /// Only go on: end where no results are yet, as with a wrong --out or a file system that is not mounted.
    #[arg(long)]
    pub resume: bool,
    /// Hand the results in when all is over: to postgres://USER@HOST/DATABASE, or to a directory that machines share.
    #[arg(long, value_name = "PLACE")]
    pub to: Option<String>,
    /// How long a database that is away, or others that hand in, are waited for.
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE)]
    pub patience: u64,
    /// Only say what would be run.
    #[arg(long)]
    pub dry_run: bool,
    /// One JSON object per line on stdout, also on a terminal.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// A campaign's directory.
    pub dir: PathBuf,
    /// One JSON object per case, subject and metric on stdout.
    #[arg(long)]
    pub json: bool,
    /// The subject that ratios refer to.
    #[arg(long)]
    pub baseline: Option<String>,
}

/// Arguments of `plot`.
#[derive(Clone, Debug, Args)]
pub struct PlotArgs {
    /// Files of figures (docs/report.md).
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Arguments of `balancer`.
#[derive(Clone, Debug, Args)]
pub struct BalancerArgs {
    /// Where to listen, the fleet's keys and relays (examples/lab/balancer.toml).
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
}

/// The two ends of a monitor, and its page.
#[derive(Clone, Debug, Subcommand)]
pub enum MonitorCommand {
    /// Transfer by the file's schedule, until ended.
    Run(MonitorArgs),
    /// Be the server that it transfers from.
    Serve(MonitorArgs),
    /// Close the days that are over and draw the page, once; not while `run` runs.
    Page(MonitorArgs),
}

/// Arguments of `monitor`.
#[derive(Clone, Debug, Args)]
pub struct MonitorArgs {
    /// What is measured, how often, within which budget (examples/lab/monitor.toml).
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
    /// How many times faster the calendar goes, to see a month within minutes. Transfers are as fast as ever.
    #[arg(long, value_name = "TIMES", default_value_t = 1, hide = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub pace: u32,
    /// When that calendar begins, in seconds since 1970.
    #[arg(long, value_name = "SECONDS", hide = true)]
    pub at: Option<u64>,
}

/// Arguments of `load`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct LoadArgs {
    /// Its server, instead.
    #[command(subcommand)]
    pub command: Option<LoadCommand>,
    /// A client's file: its `path` and the relays of it, with their tokens.
    #[arg(long, value_name = "FILE", required = true)]
    pub config: Option<PathBuf>,
    /// Where `hoplite-lab load serve` runs, as the last relay reaches it.
    #[arg(long, value_name = "HOST:PORT", required = true)]
    pub server: Option<Target>,
    /// How many clients at once: each number in turn.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,10,50", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: Vec<u32>,
    /// For how long each number is measured, once all of it has begun.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// What each client does.
    #[arg(long, value_enum, default_value = "web")]
    pub workload: load::Workload,
    /// What all clients together take at most, in Mbit/s; as much as they get if absent.
    #[arg(long, value_name = "TOTAL", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub mbit: Option<u32>,
    /// Within how many milliseconds 99 % of first bytes have to come for clients to count as served.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub p99: u64,
    /// The metrics of a relay of the path, for what the load costs it, as http://127.0.0.1:9090/metrics.
    #[arg(long, value_name = "URL")]
    pub metrics: Option<String>,
    /// One JSON object per line on stdout.
    #[arg(long)]
    pub json: bool,
}

/// The other end of `load`.
#[derive(Clone, Debug, Subcommand)]
pub enum LoadCommand {
    /// Be the server that clients load from; it sends no more than it is asked for.
    Serve(LoadServeArgs),
}

/// Arguments of `load serve`.
#[derive(Clone, Debug, Args)]
pub struct LoadServeArgs {
    /// Where, TCP and UDP alike.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// What all who reach it may ask for in a day of UTC, in gigabytes.
    #[arg(long, value_name = "GB", default_value_t = 100)]
    pub gb_per_day: u64,
}

/// Arguments of `merge`.
#[derive(Clone, Debug, Args)]
pub struct MergeArgs {
    /// Directories of shards of one campaign.
    #[arg(required = true)]
    pub shards: Vec<PathBuf>,
    /// Where to.
    #[arg(long)]
    pub out: PathBuf,
}

/// Arguments of `hand-in`.
#[derive(Clone, Debug, Args)]
pub struct HandInArgs {
    /// Directories of campaigns, shards or merged ones.
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Where to: postgres://USER@HOST/DATABASE (PGPASSWORD is its password), or a directory that machines share.
    #[arg(long, value_name = "PLACE")]
    pub to: String,
    /// How long a database that is away, or others that hand in, are waited for.
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE)]
    pub patience: u64,
    /// One JSON object per line on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `list`.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    /// One JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Only what this scenario needs.
    pub scenario: Option<PathBuf>,
    /// One JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `calibrate`.
#[derive(Clone, Debug, Args)]
pub struct CalibrateArgs {
    /// One JSON object per line.
    #[arg(long)]
    pub json: bool,
    /// A few seconds a check instead of a minute.
    #[arg(long)]
    pub quick: bool,
    /// Only these checks: setup, hash, rtt, rate, loss, pps, hosts.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// How often a measurement is made again that a pause of the machine has spoilt.
    #[arg(long, value_name = "TIMES", default_value_t = 2)]
    pub again: u32,
}

/// Arguments of `__share`.
#[derive(Clone, Debug, Args)]
pub struct ShareArgs {
    /// The directory; it is made if absent.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Does what the command line says.
///
/// # Errors
/// What failed, why, and what to do.
pub fn run(cli: &Cli) -> Result<(), Failure> {
    match &cli.command {
        Command::Balancer(args) => balancer::run(args),
        Command::Load(args) => load::run(args),
        Command::Monitor(MonitorCommand::Run(args)) => monitor::run(args),
        Command::Monitor(MonitorCommand::Serve(args)) => monitor::serve(args),
        Command::Monitor(MonitorCommand::Page(args)) => monitor::page(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::World => world::inside::main(),
        Command::Work => workload::run::client::main(),
        Command::Serve => workload::run::server::main(),
        Command::Share(args) => share(args),
        Command::Report(args) => report::run(args),
        Command::Plot(args) => report::plot::run(args),
        Command::List(args) => scenario::list(args.json),
        Command::Run(args) => campaign::run(args),
        Command::Merge(args) => campaign::merge(args),
        Command::HandIn(args) => hand_in::run(args),
        Command::Doctor(args) => doctor::run(args),
    }
}

fn share(args: &ShareArgs) -> Result<(), Failure> {
    hoplite_manual::write(&Cli::command(), &args.directory).map_err(|error| {
        let below = args.directory.display();
        let doing = format!("writing man pages and completions below {below}");
        Failure::new(doing, error, "check the path and the disk")
    })
}
