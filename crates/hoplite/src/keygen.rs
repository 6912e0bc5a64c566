//! `hoplite keygen`.
use std::path::PathBuf;

use crate::errors::Failure;

/// The options.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The directory for cert.pem and key.pem; it is created if absent.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs it.
pub(crate) fn run(_options: &Options, _json: bool) -> Result<(), Failure> {
    Err(Failure::new("keygen", "not built yet", "wait for it"))
}
