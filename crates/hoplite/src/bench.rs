//! `hoplite bench`.
use crate::errors::Failure;

/// The options.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Seconds of each measurement.
    #[arg(long, value_name = "N", default_value_t = 2)]
    seconds: u64,
}

/// Runs it.
pub(crate) fn run(_options: &Options, _json: bool) -> Result<(), Failure> {
    Err(Failure::new("the bench", "not built yet", "wait for it"))
}
