//! What Tor's reasons are in the overlay's language, and the other way round.
//! tor-spec "Closing streams" and "Tearing down circuits"; docs/errors.md has the table.

use std::{error, net::IpAddr};

use hoplite_overlay::{Error, ErrorKind, Reason};
use hoplite_wire::cell::{
    circuit::DestroyReason,
    relay::{EndReason, Resolved, Value},
};

use crate::{channel::Closed, path::Relay};

/// What a relay said when it destroyed a circuit.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a relay has destroyed the circuit, reason {}", .0.0)]
struct Destroyed(DestroyReason);

/// Why a stream ended, as its opener is told.
pub(crate) fn ended(reason: EndReason) -> Error {
    let (kind, why) = match reason {
        EndReason::RESOLVEFAILED => (ErrorKind::TargetFailed, Some(Reason::NameNotFound)),
        EndReason::CONNECTREFUSED => (ErrorKind::TargetFailed, Some(Reason::Refused)),
        EndReason::NOROUTE => (ErrorKind::TargetFailed, Some(Reason::HostUnreachable)),
        EndReason::DONE | EndReason::CONNRESET => (ErrorKind::TargetFailed, None),
        EndReason::EXITPOLICY => (ErrorKind::Forbidden, Some(Reason::Policy)),
        EndReason::RESOURCELIMIT => (ErrorKind::Forbidden, Some(Reason::Limit)),
        // It takes no streams at all: another exit does.
        EndReason::HIBERNATING => (ErrorKind::PathFailed, Some(Reason::Limit)),
        EndReason::TIMEOUT => (ErrorKind::TimedOut, None),
        EndReason::NOTDIRECTORY => (ErrorKind::Unsupported, None),
        _ => (ErrorKind::PathFailed, None),
    };
    let error = Error::new(kind, "a stream through a circuit");
    match why {
        Some(why) => error.because(why),
        None => error,
    }
}

/// What an exit tells its client of an error of its own overlay.
pub(crate) fn end_of(error: &Error) -> EndReason {
    match (error.kind(), error.reason()) {
        (_, Some(Reason::Refused)) => EndReason::CONNECTREFUSED,
        (_, Some(Reason::NameNotFound | Reason::ResolverFailed)) => EndReason::RESOLVEFAILED,
        (_, Some(Reason::HostUnreachable | Reason::NetworkUnreachable)) => EndReason::NOROUTE,
        (_, Some(Reason::Limit)) => EndReason::RESOURCELIMIT,
        (ErrorKind::Forbidden, _) => EndReason::EXITPOLICY,
        (ErrorKind::TimedOut, _) => EndReason::TIMEOUT,
        (ErrorKind::TargetFailed, _) => EndReason::NOROUTE,
        (ErrorKind::Bug, _) => EndReason::INTERNAL,
        _ => EndReason::MISC,
    }
}

/// Why a circuit ended, or did not come about: `first` says that only the first relay can have said so.
pub(crate) fn destroyed(reason: DestroyReason, first: bool) -> Error {
    let kind = match reason {
        DestroyReason::TIMEOUT => ErrorKind::TimedOut,
        _ if first => ErrorKind::EntryUnreachable,
        _ => ErrorKind::PathFailed,
    };
    let error = Error::new(kind, "a circuit, which a relay has destroyed");
    let error = error.caused_by(Destroyed(reason));
    match reason {
        DestroyReason::RESOURCELIMIT | DestroyReason::HIBERNATING => error.because(Reason::Limit),
        DestroyReason::OR_IDENTITY => error.because(Reason::Identity),
        _ => error,
    }
}

/// The answers of a look-up.
///
/// # Errors
/// What they say instead.
pub(crate) fn addresses(resolved: &Resolved<'_>) -> Result<Vec<IpAddr>, Error> {
    let mut found = Vec::new();
    let mut transient = false;
    for answer in &resolved.0 {
        match answer.value {
            Value::Ip(ip) => found.push(ip),
            Value::Transient => transient = true,
            Value::Name(_) | Value::Permanent | Value::Unknown { .. } => {}
        }
    }
    let why = match (found.is_empty(), transient) {
        (false, _) => return Ok(found),
        (true, true) => Reason::ResolverFailed,
        (true, false) => Reason::NameNotFound,
    };
    Err(Error::new(
        ErrorKind::TargetFailed,
        "resolving a name through a circuit",
    )
    .because(why))
}

/// The circuit has no room for another stream.
pub(crate) fn too_many_streams() -> Error {
    Error::new(
        ErrorKind::PathFailed,
        "opening a stream on a circuit that is full",
    )
    .because(Reason::Limit)
}

/// The stream is not there any more.
pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Bug, "asking a stream that has ended")
}

/// The channel below has closed.
pub(crate) fn channel_closed(first: bool) -> Error {
    let kind = if first {
        ErrorKind::EntryUnreachable
    } else {
        ErrorKind::PathFailed
    };
    let doing = "a circuit, whose channel to the first relay has closed";
    Error::new(kind, doing).caused_by(Closed)
}

/// Whether the channel was what failed.
pub(crate) fn is_of_channel(error: &Error) -> bool {
    error::Error::source(error).is_some_and(<dyn error::Error>::is::<Closed>)
}

/// Whether others have ended the circuit, or broke the protocol: it was not closed here.
pub(crate) fn is_of_others(error: &Error) -> bool {
    error::Error::source(error).is_some() && error.kind() != ErrorKind::Bug
}

/// Whether a relay did not accept the handshake, or to be the one that was meant: the client may have an old key of it. Where another relay
/// was asked to extend to it, that one says no more than that it did not come about.
pub(crate) fn is_refusal(error: &Error) -> bool {
    let said = error::Error::source(error).and_then(|source| source.downcast_ref());
    matches!(
        said,
        Some(Destroyed(
            DestroyReason::PROTOCOL | DestroyReason::DESTROYED
        ))
    )
}

/// A peer broke the protocol.
pub(crate) fn broken(why: impl Into<Box<dyn error::Error + Send + Sync>>) -> Error {
    Error::new(
        ErrorKind::PathFailed,
        "a circuit, on which a relay broke the protocol",
    )
    .caused_by(why)
}

/// Nobody needs the circuit any more.
pub(crate) fn retired() -> Error {
    Error::new(
        ErrorKind::PathFailed,
        "a circuit that was closed for want of use",
    )
}

/// The first relay cannot be reached, or a circuit not be built in time.
pub(crate) fn late() -> Error {
    Error::new(ErrorKind::TimedOut, "building a circuit")
}

/// The first relay does not answer.
pub(crate) fn silent() -> Error {
    Error::new(
        ErrorKind::EntryUnreachable,
        "reaching the first relay in time",
    )
}

/// A circuit over `path` did not come about: at which hop, by the relay's name, and what to do.
pub(crate) fn building(error: &Error, path: &[Relay], hop: usize) -> Error {
    let Some(relay) = path.get(hop) else {
        return error.clone();
    };
    let kind = match error.kind() {
        ErrorKind::PathFailed if hop == 0 => ErrorKind::EntryUnreachable,
        kind => kind,
    };
    let name = match &*relay.name {
        "" => String::new(),
        name => format!(", relay {name},"),
    };
    let (number, hops, what) = (hop + 1, path.len(), what_happened(error, hop));
    let doing = format!("building a circuit: hop {number} of {hops}{name} {what}");
    let failure = Error::new(kind, doing).caused_by(error.clone());
    match error.reason() {
        Some(reason) => failure.because(reason),
        None => failure,
    }
}

/// A circuit over `path` has lost a hop: which, by the relay's name, and what to do.
pub(crate) fn lost(error: &Error, path: &[Relay], hop: usize) -> Error {
    let name = path.get(hop).map_or("", |relay| &*relay.name);
    let name = match name {
        "" => String::new(),
        name => format!(", relay {name}"),
    };
    let (number, hops) = (hop + 1, path.len());
    let doing = format!(
        "a circuit, which has lost hop {number} of {hops}{name} (try again: new streams take another circuit)"
    );
    Error::new(ErrorKind::PathFailed, doing).caused_by(error.clone())
}

/// What is wrong with a hop, and what to do about it.
fn what_happened(error: &Error, hop: usize) -> &'static str {
    let said = error::Error::source(error).and_then(|source| source.downcast_ref());
    match (error.reason(), said) {
        (Some(Reason::Identity), _) => {
            "is not the relay of its onion key (correct the key or the address)"
        }
        (Some(Reason::Limit), _) => "is at a limit (try later, or take another relay)",
        (_, Some(Destroyed(DestroyReason::PROTOCOL))) if hop == 0 => {
            "refuses the handshake (its onion key may be an old one: ask its operator)"
        }
        (_, Some(Destroyed(DestroyReason::PROTOCOL | DestroyReason::DESTROYED))) => {
            "refuses the handshake, or the relay before it to go there (its onion key may be an old one, its address one that relays do not extend to: ask the operators; or it is at a limit: try later)"
        }
        (_, Some(Destroyed(DestroyReason::CONNECTFAILED))) => {
            "cannot be reached from the relay before it (check its address, or take another relay)"
        }
        _ if error.kind() == ErrorKind::TimedOut => {
            "does not answer in time (check the network and its address, or take another relay)"
        }
        _ if hop == 0 => "cannot be reached (check the network and its address, or take another)",
        _ => "failed (try again, or take another relay)",
    }
}
