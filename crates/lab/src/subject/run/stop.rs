//! How a subject ends: what was started last ends first; it is asked to, asked again, then made to.
//! Servers that let open connections end first commonly stop at once when they are asked a second time.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::process::Process;

/// How often one looks whether a process has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// After so long one asks again.
const AGAIN: Duration = Duration::from_millis(300);

/// What a process used over its life.
#[derive(Clone, Debug, PartialEq)]
pub struct Stopped {
    /// Its name in the subject.
    pub name: String,
    /// Where it ran.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// Processor time over its life, its children's included that it waited for.
    pub life_cpu: Duration,
    /// Peak resident memory in octets.
    pub peak_memory: u64,
    /// Whether it, or something that it started, had to be killed.
    pub killed: bool,
}

/// Stops those that were started together: TERM, TERM again, and KILL for what is still there after `patience`.
pub(super) fn together(processes: &[Process], patience: Duration) -> Vec<Stopped> {
    let peak = |process: &Process| process.inner.peak_memory().unwrap_or_default();
    let peaks: Vec<u64> = processes.iter().map(peak).collect();
    signal(processes, Signal::TERM);
    wait(processes, patience.min(AGAIN));
    signal(processes, Signal::TERM);
    wait(processes, patience.saturating_sub(AGAIN));
    let killed: Vec<bool> = processes.iter().map(|one| !one.gone()).collect();
    signal(processes, Signal::KILL);
    // A process that is killed ends, unless the kernel holds it: then nobody can help.
    wait(processes, Duration::from_secs(1));
    let stopped = processes.iter().zip(peaks).zip(killed);
    let stopped = stopped.map(|((process, peak_memory), killed)| Stopped {
        name: process.name.clone(),
        host: process.host.clone(),
        pid: process.inner.pid,
        life_cpu: process.inner.cpu(),
        peak_memory,
        killed,
    });
    stopped.collect()
}

/// To all that are still there.
fn signal(processes: &[Process], signal: Signal) {
    let left = processes.iter().filter(|process| !process.gone());
    left.for_each(|process| process.signal(signal));
}

fn wait(processes: &[Process], patience: Duration) {
    let until = Instant::now() + patience;
    while !processes.iter().all(Process::gone) && Instant::now() < until {
        thread::sleep(PAUSE);
    }
}
