//! What an operating system's error means for a flow: whose fault, and why.
//! Used by the sockets of [`super`].

use std::io;

use rustix::io::Errno;

use crate::{Error, ErrorKind, Reason};

/// The error of a socket that was `doing` something with a target.
pub(super) fn of_socket(error: io::Error, doing: &'static str) -> Error {
    let (kind, reason) = judge(&error);
    let judged = Error::new(kind, doing).caused_by(error);
    match reason {
        Some(reason) => judged.because(reason),
        None => judged,
    }
}

fn judge(error: &io::Error) -> (ErrorKind, Option<Reason>) {
    use ErrorKind::{PathFailed, TargetFailed, TimedOut};
    let failed = |reason| (TargetFailed, Some(reason));
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED | Errno::CONNRESET) => failed(Reason::Refused),
        Some(Errno::HOSTUNREACH | Errno::HOSTDOWN | Errno::ACCESS | Errno::PERM) => {
            failed(Reason::HostUnreachable)
        }
        Some(Errno::NETUNREACH | Errno::NETDOWN | Errno::AFNOSUPPORT | Errno::INVAL) => {
            failed(Reason::NetworkUnreachable)
        }
        Some(Errno::TIMEDOUT) => (TimedOut, None),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL) => {
            (PathFailed, Some(Reason::Limit))
        }
        _ => (TargetFailed, None),
    }
}

/// The error that tells the user more, of two attempts at the same target.
pub(super) fn more_telling(first: Option<Error>, second: Error) -> Error {
    match first {
        Some(first) if weight(&first) >= weight(&second) => first,
        _ => second,
    }
}

fn weight(error: &Error) -> u8 {
    match (error.kind(), error.reason()) {
        (_, Some(Reason::Refused)) => 5,
        (_, Some(Reason::Limit)) => 4,
        (ErrorKind::TimedOut, _) => 3,
        (_, Some(Reason::HostUnreachable)) => 2,
        (_, Some(Reason::NetworkUnreachable)) => 1,
        _ => 0,
    }
}
