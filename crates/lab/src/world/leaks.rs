//! What a subject left behind: processes that nobody of ours started, or that left their group. They are named, and killed.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::failed;
use crate::{
    netns::left::{Other, others},
    trial::Outcome,
};

/// How long a process that was told to end, or whose parent has ended, may take.
const MOMENT: Duration = Duration::from_secs(2);

/// Ends everything but this process.
///
/// # Errors
/// Names what was still there, by the names of programs only.
pub(super) fn end() -> Result<(), Outcome> {
    let left = wait(|| {});
    if left.is_empty() {
        return Ok(());
    }
    let still = wait(|| others().iter().for_each(kill));
    let mut names: Vec<String> = left.into_iter().map(|other| other.name).collect();
    names.sort_unstable();
    let mut why = format!("processes were left behind: {}", names.join(", "));
    if !still.is_empty() {
        why.push_str(", and cannot be killed");
    }
    Err(failed("stopping the subject", why, ""))
}

/// Waits a moment until nobody is left; `nudge` happens before each look.
fn wait(nudge: impl Fn()) -> Vec<Other> {
    let until = Instant::now() + MOMENT;
    loop {
        nudge();
        let left = others();
        if left.is_empty() || Instant::now() > until {
            return left;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn kill(other: &Other) {
    let pid = i32::try_from(other.pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        kill_process(pid, Signal::KILL).ok();
    }
}
