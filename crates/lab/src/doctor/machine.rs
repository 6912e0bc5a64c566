//! What the lab itself needs of a machine: TUN devices, namespaces, timers, a processor to spare, room.

use std::{path::Path, thread};

use super::{Check, State};
use crate::{
    errors::{Complaint, Failure},
    netns::tun,
    world,
};

/// Below that, captures of a long campaign fill the disk.
const ROOM: u64 = 2 << 30;

const NAMESPACES: &str = "namespaces";
const REAL_TIME: &str = "real-time priority";

/// All of them.
pub(super) fn checks() -> Vec<Check> {
    let tun = answer("TUN devices", "/dev/net/tun can be opened", tun::check());
    let (namespaces, real_time) = match tun.state {
        State::Ok => of_a_world(world::check()),
        _ => unknown(),
    };
    vec![
        tun,
        namespaces,
        real_time,
        exact_timers(),
        processors(),
        room(),
    ]
}

fn check(name: &str, state: State, found: impl Into<String>, remedy: &str) -> Check {
    Check {
        of: "machine".into(),
        check: name.into(),
        state,
        needed: state == State::Missing,
        found: found.into(),
        remedy: remedy.into(),
    }
}

fn answer(name: &str, good: &str, result: Result<(), Failure>) -> Check {
    let complaint = match result {
        Ok(()) => {
            return Check {
                needed: true,
                ..check(name, State::Ok, good, "")
            };
        }
        Err(Failure::Failed(complaint)) => Some(complaint),
        Err(Failure::Wrong(complaints)) => complaints.into_iter().next(),
    };
    let unclear = || Complaint::new("", "it failed", "please report this");
    let Complaint { doing, why, remedy } = complaint.unwrap_or_else(unclear);
    check(name, State::Missing, format!("{doing}: {why}"), &remedy)
}

/// What cannot be tried without TUN devices.
fn unknown() -> (Check, Check) {
    let (found, remedy) = (
        "not tried: it wants TUN devices",
        "mend the TUN devices first",
    );
    (
        check(NAMESPACES, State::Missing, found, remedy),
        check(REAL_TIME, State::Poor, found, remedy),
    )
}

/// Only inside a world it shows whether its emulator may have real-time priority: a capability of this process does not reach into a
/// user namespace, a limit does.
fn of_a_world(made: Result<bool, Failure>) -> (Check, Check) {
    let real_time = match made {
        Ok(true) => check(REAL_TIME, State::Ok, "SCHED_FIFO is allowed", ""),
        Ok(false) => check(
            REAL_TIME,
            State::Poor,
            "SCHED_FIFO is not allowed: packets leave late on a busy machine",
            "run as root, or raise the limit of this shell: sudo prlimit --rtprio=10 --pid $$ (for good: \"USER - rtprio 10\" in \
             /etc/security/limits.conf)",
        ),
        Err(_) => check(
            REAL_TIME,
            State::Poor,
            "not tried: it wants namespaces",
            "mend the namespaces first",
        ),
    };
    let namespaces = answer(NAMESPACES, "a world was made", made.map(drop));
    (namespaces, real_time)
}

fn exact_timers() -> Check {
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: descriptor -1 is refused, and all pointers are null: nothing is read or written.
    #[expect(unsafe_code, reason = "only the bare call tells")]
    let answer = unsafe { libc::syscall(libc::SYS_epoll_pwait2, -1, none, 1, none, none, 0_usize) };
    let error = std::io::Error::last_os_error().raw_os_error();
    let absent = answer == -1 && error == Some(libc::ENOSYS);
    match absent {
        false => check("exact timers", State::Ok, "epoll_pwait2", ""),
        true => check(
            "exact timers",
            State::Poor,
            "the kernel has no epoll_pwait2: packets leave up to a millisecond late",
            "use Linux 5.11 or newer",
        ),
    }
}

fn processors() -> Check {
    let count = thread::available_parallelism().map_or(1, usize::from);
    let found = format!("{count}");
    match count {
        0 | 1 => check(
            "processors",
            State::Poor,
            "1: the emulator has none for itself",
            "use a machine with at least two",
        ),
        _ => check("processors", State::Ok, found, ""),
    }
}

/// Where one stands: results go below it.
fn room() -> Check {
    let free = rustix::fs::statvfs(Path::new("."))
        .map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    let found = format!("{} GB free here", free / 1_000_000_000);
    match free >= ROOM {
        true => check("room", State::Ok, found, ""),
        false => check(
            "room",
            State::Poor,
            found,
            "make room, or let --out name another disk",
        ),
    }
}
