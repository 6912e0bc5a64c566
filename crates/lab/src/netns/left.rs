//! Which processes are in this pid namespace beside this one. `world` looks at the end who was left behind.

use std::{fs, path::PathBuf};

use super::cpu;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// In this namespace.
    pub pid: u32,
    /// The kernel's short name of it: up to 15 octets of its program's name, no arguments.
    pub name: String,
}

/// All that run, in no order; those that have ended and only wait to be reaped do not count.
#[must_use]
pub fn others() -> Vec<Other> {
    let fresh = cpu::proc_is_ours();
    let ours = namespace("self");
    let here = |pid: &u32| fresh || (ours.is_some() && namespace(&pid.to_string()) == ours);
    let pids = cpu::pids().into_iter().filter(here);
    let statuses = pids.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
    let others = statuses.filter_map(|status| parse(&status));
    others
        .filter(|other| other.pid != std::process::id())
        .collect()
}

fn namespace(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Of `/proc/PID/status`; `None` if it has ended. Its pid here is the innermost of `NSpid`.
fn parse(status: &str) -> Option<Other> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let state = field("State:")?.trim().chars().next()?;
    let pid = field("NSpid:")?.split_whitespace().last()?.parse().ok()?;
    let name = field("Name:")?.trim().to_owned();
    (!matches!(state, 'Z' | 'X')).then_some(Other { pid, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_innermost_pid_and_the_dead_are_none() {
        let status = "Name:\ttor\nUmask:\t0022\nState:\tS (sleeping)\nNSpid:\t812\t7\n";
        let tor = Other {
            pid: 7,
            name: "tor".into(),
        };
        assert_eq!(parse(status), Some(tor));
        assert_eq!(parse(&status.replace("S (sleeping)", "Z (zombie)")), None);
    }
}
