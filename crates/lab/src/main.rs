//! `hoplite-lab`: see `docs/lab.md`. Only this file prints errors and ends the process.

use std::process::ExitCode;

use clap::Parser;
use hoplite_lab::cli;

fn main() -> ExitCode {
    match cli::run(&cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            #[expect(
                clippy::print_stderr,
                reason = "the binary speaks here and nowhere else"
            )]
            {
                eprintln!("{failure}");
            }
            failure.exit_code()
        }
    }
}
