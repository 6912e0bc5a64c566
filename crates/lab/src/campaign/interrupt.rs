//! SIGINT and SIGTERM end a campaign in order: the attempt under way is given up, what is stored is stored. A second one ends it at once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
};

use crate::errors::Failure;

/// Whether somebody wants it to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Somebody does.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether somebody does.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Runs a campaign on a thread of its own, and tells it when to stop.
pub(crate) fn watched(
    work: impl FnOnce(&Stop) -> Result<(), Failure> + Send + 'static,
) -> Result<(), Failure> {
    let failed = |error| Failure::new("starting", error, "raise the limits of files and threads");
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let done = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let stop = Stop::default();
        let working = stop.clone();
        let mut work = tokio::task::spawn_blocking(move || work(&working));
        loop {
            tokio::select! {
                done = &mut work => return done.unwrap_or_else(|error| Err(Failure::new("running the campaign", error, "please report this"))),
                () = either(&mut interrupt, &mut terminate) => {
                    if stop.is_set() {
                        return Err(Failure::new("running the campaign", "interrupted twice", "run the same command again to go on"));
                    }
                    stop.set();
                }
            }
        }
    });
    runtime.shutdown_background();
    done
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
