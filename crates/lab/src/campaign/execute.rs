//! Who carries an attempt out: a world in fresh namespaces, or in tests somebody who only says so.

use super::interrupt::Stop;
use crate::{
    errors::Failure,
    trial::{Report, Trial},
    world,
};

/// Carries attempts out.
pub(crate) trait Execute {
    /// Carries one out. Returns early when `stop` is set; what it returns then is not looked at.
    ///
    /// # Errors
    /// When this machine can run no attempt at all: no user namespaces, no TUN.
    fn run(&mut self, trial: &Trial, stop: &Stop) -> Result<Report, Failure>;
}

/// Worlds: processes in namespaces of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worlds;

impl Execute for Worlds {
    fn run(&mut self, trial: &Trial, stop: &Stop) -> Result<Report, Failure> {
        world::spawn_until(trial, &|| stop.is_set())
    }
}
