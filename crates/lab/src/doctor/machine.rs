//! What the lab itself needs of a machine: TUN devices, namespaces, timers, a processor to spare, room.

use std::{path::Path, thread};

use super::{Check, State};
use crate::{
    emulator::priority,
    errors::{Complaint, Failure},
    netns::tun,
    world,
};

/// Below that, captures of a long campaign fill the disk.
const ROOM: u64 = 2 << 30;

/// All of them.
pub(super) fn checks() -> Vec<Check> {
    let tun = answer("TUN devices", "/dev/net/tun can be opened", tun::check());
    let namespaces = match tun.state {
        State::Ok => answer("namespaces", "a world was made", world::check()),
        _ => unknown("namespaces"),
    };
    vec![
        tun,
        namespaces,
        real_time(),
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

fn unknown(name: &str) -> Check {
    let found = "not tried: it wants TUN devices";
    check(name, State::Missing, found, "mend the TUN devices first")
}

/// On a thread that ends with it.
fn real_time() -> Check {
    let allowed = thread::spawn(priority::ask).join().unwrap_or(false);
    let name = "real-time priority";
    match allowed {
        true => check(name, State::Ok, "SCHED_FIFO is allowed", ""),
        false => check(
            name,
            State::Poor,
            "SCHED_FIFO is not allowed: packets leave late on a busy machine",
            "run as root, or: setcap cap_sys_nice+ep \"$(command -v hoplite-lab)\"",
        ),
    }
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
