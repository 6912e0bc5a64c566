//! One place that waits for children and tells each owner how its process ended and what it used. `spawn` registers them.
//!
//! As PID 1 of a pid namespace it reaps everything, orphans too; elsewhere it waits for its own children only, so that
//! it takes nothing from other parts of the process.

use std::{
    collections::HashMap,
    io,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus},
    sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group, waitid,
    },
};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code or signal.
    pub status: ExitStatus,
    /// Processor time over its life, children that it waited for included.
    pub cpu: Duration,
    /// Peak resident memory in octets. The kernel starts it with that of the process that spawned it: an upper bound.
    pub peak_memory: u64,
}

/// A process that somebody waits for.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    exit: Mutex<Option<Exit>>,
    ended: Condvar,
}

/// Living children by pid. Its lock is held while a process is spawned, reaped or signalled: a pid under the lock is the process one means.
struct Reaper {
    living: Mutex<HashMap<u32, Arc<Awaited>>>,
    spawned: Condvar,
    everything: bool,
}

static REAPER: LazyLock<Reaper> = LazyLock::new(|| Reaper {
    living: Mutex::default(),
    spawned: Condvar::new(),
    everything: getpid() == Pid::INIT,
});

/// Spawns a child that is ours from its first moment.
pub(super) fn spawn(command: &mut Command) -> io::Result<(Child, Arc<Awaited>)> {
    let awaited = Arc::new(Awaited::default());
    let mut living = REAPER.living();
    let child = command.spawn()?;
    living.insert(child.id(), Arc::clone(&awaited));
    drop(living);
    REAPER.spawned.notify_all();
    if !REAPER.everything {
        wait_for(child.id());
    }
    Ok((child, awaited))
}

/// Starts reaping everything; to be called once, by PID 1, before it spawns.
pub(super) fn reap_everything() -> io::Result<()> {
    thread::Builder::new().name("reaper".into()).spawn(|| {
        loop {
            REAPER.round();
        }
    })?;
    Ok(())
}

/// Waits for one child on a thread of its own.
fn wait_for(pid: u32) {
    let waiting = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Some(id) = as_pid(pid) {
            match waitid(WaitId::Pid(id), options) {
                Err(Errno::INTR) => {}
                _ => break,
            }
        }
        REAPER.reap(i32::try_from(pid).unwrap_or(0));
    };
    // Without a thread the child is only told apart as alive or not when the process ends; nothing is lost but its exit.
    if let Err(error) = thread::Builder::new().name("wait".into()).spawn(waiting) {
        tracing::warn!(%error, pid, "no thread to wait for a process");
    }
}

impl Reaper {
    fn living(&self) -> MutexGuard<'_, HashMap<u32, Arc<Awaited>>> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until any child has ended, then takes all that have.
    fn round(&self) {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => while self.reap(-1) {},
            Err(Errno::CHILD) => self.until_spawned(),
            Err(_) => {}
        }
    }

    /// Without children none can end before one is spawned.
    fn until_spawned(&self) {
        let living = self.living();
        if living.is_empty() {
            drop(
                self.spawned
                    .wait(living)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
    }

    /// Takes one ended child (-1: whichever) and tells its owner. Says whether there was one.
    fn reap(&self, pid: i32) -> bool {
        let mut living = self.living();
        let Some((pid, exit)) = wait4(pid) else {
            return false;
        };
        match living.remove(&pid) {
            Some(awaited) => awaited.tell(exit),
            None => tracing::debug!(pid, status = %exit.status, "reaped an orphan"),
        }
        true
    }
}

impl Awaited {
    fn tell(&self, exit: Exit) {
        *self.exit.lock().unwrap_or_else(PoisonError::into_inner) = Some(exit);
        self.ended.notify_all();
    }

    /// How it ended, if it has.
    pub(super) fn exit(&self) -> Option<Exit> {
        *self.exit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its end, until `deadline` if there is one.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Option<Exit> {
        let mut exit = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        while exit.is_none() {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            let left = left.unwrap_or(Duration::from_secs(3600));
            let woken = self.ended.wait_timeout(exit, left);
            exit = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        *exit
    }
}

/// Sends a signal to a child that has not been reaped, or to its whole group.
pub(super) fn signal(pid: u32, signal: Signal, group: bool) -> io::Result<()> {
    let living = REAPER.living();
    let Some(id) = as_pid(pid).filter(|_| living.contains_key(&pid)) else {
        return Ok(());
    };
    let sent = match group {
        true => kill_process_group(id, signal),
        false => kill_process(id, signal),
    };
    match sent {
        Err(Errno::SRCH) => Ok(()),
        other => Ok(other?),
    }
}

fn as_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// `wait4` without waiting: the pid, how it ended, what it used.
fn wait4(pid: i32) -> Option<(u32, Exit)> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    #[expect(unsafe_code, reason = "a C struct has no default")]
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for writing for the whole call.
    #[expect(unsafe_code, reason = "no safe wrapper tells what a child used")]
    let pid = unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) };
    let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let exit = Exit {
        status: ExitStatus::from_raw(status),
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        peak_memory: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    };
    Some((pid, exit))
}

fn time(value: libc::timeval) -> Duration {
    let seconds = u64::try_from(value.tv_sec).unwrap_or(0);
    let micros = u64::try_from(value.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}
