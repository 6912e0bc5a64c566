//! The signals that a command obeys: SIGINT and SIGTERM end it in order, SIGHUP reloads.
//! Used by the commands that run until they are told to stop.

use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use crate::errors::Failure;

/// What the outside asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Finish what is under way, then end.
    Stop,
    /// Read the files again.
    Reload,
}

/// Listens to the signals; from then on they no longer kill the process.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Starts to listen. Needs a tokio runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let on = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(
                    "listening to signals",
                    error,
                    "raise the limit of open files",
                )
            })
        };
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.hangup.recv() => Asked::Reload,
        }
    }
}

/// Runs a command that has an end, and gives it up when the user wants that. What it started ends with the process.
pub(crate) fn interruptible(
    doing: &'static str,
    work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> Result<(), Failure> {
    let runtime = current_thread_runtime()?;
    let done = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        tokio::select! {
            done = tokio::task::spawn_blocking(work) => {
                done.unwrap_or_else(|error| Err(Failure::new(doing, error, "please report this")))
            }
            _ = signals.next() => Err(Failure::new(doing, "interrupted", "run it again")),
        }
    });
    runtime.shutdown_background();
    done
}

/// The runtime of everything that runs on the main thread.
pub(crate) fn current_thread_runtime() -> Result<Runtime, Failure> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::new(
                "starting",
                error,
                "raise the limits of open files and threads",
            )
        })
}
