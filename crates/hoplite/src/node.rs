//! A relay or a client as a process of its own, told by its stdin what to be.

use crate::errors::Failure;

/// Runs until stdin ends.
pub(crate) fn run() -> Result<(), Failure> {
    Err(Failure::new(
        "starting a node",
        "not built yet",
        "wait for it",
    ))
}
