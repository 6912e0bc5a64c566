//! The command line: what can be asked, and how each command ends.
//! Scripts rely on the names (docs/command-line.md is the contract).

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory, Parser, Subcommand, error::ErrorKind};

use crate::{logs, say, say::Failure};

/// Traffic through several relays, so that nobody sees both ends.
#[derive(Debug, Parser)]
#[command(name = "hoplite", version, about, disable_help_subcommand = true)]
struct Cli {
    /// One JSON object per line: results on stdout, the log on stderr.
    #[arg(long, global = true)]
    json: bool,
    /// Leave the cipher of QUIC packets out, to measure what it costs: nothing is hidden from anybody, and both ends must do it.
    #[cfg(feature = "without-cipher")]
    #[arg(long, global = true)]
    without_cipher: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Three relays and a client on this machine: a real download through 0 to 3 hops, and one table.
    Demo(crate::measure::demo::Options),
    /// Begin a relay: its file, its identity and a token; prints the URL with which clients import it. On a terminal it asks for what is not given, and writes
    /// a client's file too.
    Init(crate::introduce::Init),
    /// Take relays into a client's file by the URLs of their operators; makes the file if there is none.
    Import(crate::introduce::Import),
    /// Make the identity of a relay: a certificate, its key, and the key of its circuits; prints the pin.
    Keygen(crate::keygen::Options),
    /// Serve as a relay, or ask one on this machine how it does.
    Relay(crate::relay::Options),
    /// Carry the traffic of programs on this machine over relays: a SOCKS5 and an HTTP proxy.
    Client(crate::client::Options),
    /// Serve as an authority: gather what relays say of themselves, and sign the list of them with the other authorities.
    Directory(crate::directory::Options),
    /// Give accounts tokens for relays that nobody can link.
    Issuer(ConfigFile),
    /// Take a private token out of a client's stock and print it, for a browser or curl; or fill the stock.
    Token(crate::wallet::Options),
    /// Print the geofeed of an egress, or check one: which addresses are in which region.
    Geofeed(crate::geofeed::Options),
    /// Read the relays of a network of C tor from its consensus; prints them for a client's file.
    TorRelays(crate::tor_relays::Options),
    /// Take all traffic of this machine over relays, and block the rest.
    Up(crate::up::Options),
    /// Run one program over relays, and leave the rest of the machine as it is; no root needed.
    Run(crate::run::Options),
    /// Undo what `up` did, and open what is blocked.
    Down(crate::down::Options),
    /// Say whether traffic flows through relays, is blocked, or goes past them.
    Status(crate::down::Options),
    /// Let one program past the relays while the device is up, to log in to a network.
    Portal(crate::portal::Options),
    /// Say what a configuration file means, and whether it is right.
    Check(ConfigFile),
    /// What a hop costs on this machine, beside the raw limit.
    Bench(crate::measure::bench::Options),
    /// A relay or a client of `demo` and `bench`: told by its stdin what to be, ends with it.
    #[command(name = "__node", hide = true)]
    Node,
    /// What `run` starts in namespaces of its own, and becomes the program.
    #[command(name = crate::run::INSIDE, hide = true)]
    Inside(crate::run::Inside),
    /// What `portal --detect` lets pass: it asks the network.
    #[command(name = crate::portal::probe::PROBE, hide = true)]
    PortalProbe(crate::portal::probe::Options),
    /// Write man pages and shell completions below a directory like /usr/share: for packages.
    #[command(name = "__share", hide = true)]
    Share(Share),
}

/// The one option of the commands that read a file.
#[derive(Debug, Args)]
struct ConfigFile {
    /// The TOML file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// The option of `__share`.
#[derive(Debug, Args)]
struct Share {
    /// The directory; it is made if absent.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs what the command line asks for.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    match run(cli) {
        Ok(code) => code,
        Err(failure) => {
            say::remark(failure.to_string());
            failure.code()
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    #[cfg(feature = "without-cipher")]
    if cli.without_cipher {
        hoplite_quic::leave_out_cipher();
        say::remark(
            "hoplite: the cipher of QUIC packets is left out: nothing is hidden from anybody",
        );
    }
    if let Command::Up(options) = &cli.command
        && options.is_worker()
    {
        let logs = || logs::start(cli.json, default_filter(&cli.command));
        return crate::up::work(options, logs).map(|()| ExitCode::SUCCESS);
    }
    let logs = || logs::start(cli.json, default_filter(&cli.command));
    // It must have one thread.
    let is_alone = matches!(cli.command, Command::Inside(_) | Command::PortalProbe(_));
    let _guard = (!is_alone).then(logs).transpose()?;
    let done = match cli.command {
        Command::Demo(options) => crate::measure::demo::run(&options, cli.json),
        Command::Init(options) => crate::introduce::init(options, cli.json),
        Command::Import(options) => crate::introduce::import(&options, cli.json),
        Command::Keygen(options) => crate::keygen::run(&options, cli.json),
        Command::Relay(options) => crate::relay::run(&options, cli.json),
        Command::Client(options) => crate::client::run(&options),
        Command::Directory(options) => crate::directory::start(&options, cli.json),
        Command::Issuer(file) => crate::issuer::run(&file.config),
        Command::Token(options) => crate::wallet::run(&options, cli.json),
        Command::Geofeed(options) => crate::geofeed::run(&options, cli.json),
        Command::TorRelays(options) => crate::tor_relays::run(&options, cli.json),
        Command::Up(options) => crate::up::run(&options, cli.json),
        Command::Down(options) => crate::down::run(&options, cli.json),
        Command::Status(options) => crate::status::run(&options, cli.json),
        Command::Portal(options) => crate::portal::run(&options),
        Command::PortalProbe(options) => crate::portal::probe::run(&options),
        Command::Check(file) => crate::check::run(&file.config, cli.json),
        Command::Bench(options) => crate::measure::bench::run(&options, cli.json),
        Command::Node => crate::measure::testbed::run(),
        Command::Share(share) => {
            hoplite_manual::write(&Cli::command(), &share.directory).map_err(|error| {
                Failure::file(
                    "writing man pages and completions below",
                    &share.directory,
                    &error,
                )
            })
        }
        Command::Run(options) => return crate::run::run(&options),
        Command::Inside(options) => return crate::run::inside(&options),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// What is logged when `HOPLITE_LOG` does not say: `demo` and `bench` stay out of the way of their tables.
fn default_filter(command: &Command) -> &'static str {
    match command {
        Command::Directory(options) if !options.serves() => "warn",
        Command::Relay(options) if !options.serves() => "warn",
        Command::Relay(_) | Command::Client(_) | Command::Directory(_) | Command::Issuer(_) => {
            "info"
        }
        _ => "warn",
    }
}

/// Help and version are answers; everything else is a wrong command line.
fn explain(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        return match say::answer(error.render().to_string().trim_end()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.code(),
        };
    }
    let failure = Failure::usage(one_line(error));
    say::remark(failure.to_string());
    failure.code()
}

/// The essence of clap's message, its usage text left out.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command is given".into();
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).take_while(|line| {
        !line.starts_with("Usage:") && !line.starts_with("For more information")
    });
    let lines = lines.map(|line| {
        line.trim_start_matches("error: ")
            .trim_start_matches("tip: ")
    });
    lines
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_option_is_named_in_one_line() {
        let error = Cli::try_parse_from(["hoplite", "check", "--confg", "x"]).expect_err("wrong");
        let line = one_line(&error);
        assert!(
            line.contains("'--confg'") && line.contains("--config") && !line.contains('\n'),
            "{line}"
        );
    }
}
