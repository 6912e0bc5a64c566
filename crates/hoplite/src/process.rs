//! The process of a command: the signals that it obeys (SIGINT and SIGTERM end it in order, SIGHUP reloads), its word to a service manager, its runtime, as
//! many open files as the system allows, and records of every packet, for whoever studies QUIC: qlog files in the directory that `QLOGDIR` names, as other
//! QUIC stacks have it.

use std::{
    future::{Future, pending},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use hoplite_quic::{Qlog, Watch};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    time::{sleep, timeout},
};
use tracing::warn;

use crate::say::Failure;

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

/// Raises the soft limit of open files to the hard one. If that is refused, the old limit holds.
pub(crate) fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap_or_default();
}

/// How many files are open, and how many may be; `None` where the system does not say.
pub(crate) fn open_files() -> Option<(u64, u64)> {
    let most = getrlimit(Resource::Nofile).current?;
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    // One is of the directory that is read.
    Some((u64::try_from(open).ok()?.saturating_sub(1), most))
}

/// Tells a service manager that it is ready (sd_notify(3)), if one wants to know.
pub(crate) fn notify_ready() {
    notify(b"READY=1\n");
}

/// Tells a service manager that restarts a process which hangs (`WatchdogSec=`, sd_watchdog_enabled(3)) that this one does not, whenever `beat` is ready in
/// time. Never ends.
pub(crate) async fn feed_watchdog<F: Future<Output = ()>>(beat: impl Fn() -> F) {
    let Some(every) = watchdog_interval() else {
        return pending().await;
    };
    loop {
        sleep(every).await;
        if timeout(every, beat()).await.is_ok() {
            notify(b"WATCHDOG=1\n");
        }
    }
}

/// A third of what the service manager waits for, if it waits for this process.
fn watchdog_interval() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let wait = number("WATCHDOG_USEC").filter(|wait| ours && *wait > 0)?;
    Some(Duration::from_micros(wait) / 3)
}

fn notify(word: &[u8]) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(word, &to));
    if let Err(error) = sent {
        warn!(%error, "the service manager could not be told");
    }
}

/// The variable.
const VARIABLE: &str = "QLOGDIR";

/// Writes as long as it lives, and finishes its files when it is dropped.
#[derive(Debug)]
pub(crate) struct Recording(Option<Qlog>);

impl Recording {
    /// Records if the environment asks for it, and warns that it does.
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        let directory = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let Some(directory) = directory.map(PathBuf::from) else {
            return Ok(Self(None));
        };
        let shown = directory.display();
        let qlog = Qlog::start(&directory).map_err(|error| {
            let doing = format!("recording packets into {shown}");
            Failure::new(doing, error, "correct QLOGDIR, or unset it")
        })?;
        warn!(
            "QLOGDIR is set: time, size and frames of every packet are written into {shown}: \
             whoever reads that can tell what this process carried and when"
        );
        Ok(Self(Some(qlog)))
    }

    /// What connections are shown to.
    pub(crate) fn watch(&self) -> Option<Arc<dyn Watch>> {
        self.0.clone().map(|qlog| Arc::new(qlog) as _)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(qlog) = &self.0 {
            qlog.flush();
        }
    }
}
