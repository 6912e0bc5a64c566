//! `hoplite client`: programs' traffic in, relays out.

use std::path::Path;

use crate::errors::Failure;

/// Carries traffic with the file at `path`.
pub(crate) fn run(path: &Path) -> Result<(), Failure> {
    let _client = crate::config::client::load(path)?;
    Err(Failure::new(
        "starting the client",
        "not built yet",
        "wait for it",
    ))
}
