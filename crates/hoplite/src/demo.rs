//! `hoplite demo`.
use crate::errors::Failure;

/// The options.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many MiB to download through each path.
    #[arg(long, value_name = "N", default_value_t = 256)]
    mib: u64,
}

/// Runs it.
pub(crate) fn run(_options: &Options, _json: bool) -> Result<(), Failure> {
    Err(Failure::new("the demo", "not built yet", "wait for it"))
}
