//! What the front ends did, as numbers: no address, no name, nothing about a single flow.
//! The sessions count; the binary shows a [`Snapshot`] in its status and metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use hoplite_overlay::{Error, ErrorKind};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// All numbers, live.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections from programs to the SOCKS front end.
    pub accepted_socks: Counter,
    /// Connections from programs to the HTTP front end.
    pub accepted_http: Counter,
    /// Programs that did not speak the protocol, or were too slow to.
    pub malformed: Counter,
    /// TCP flows opened.
    pub streams: Counter,
    /// UDP flows opened.
    pub datagram_flows: Counter,
    /// UDP associations granted.
    pub associations: Counter,
    /// Flows that the first relay's absence failed.
    pub failed_entry: Counter,
    /// Flows that a relay further on failed.
    pub failed_path: Counter,
    /// Flows that the target failed.
    pub failed_target: Counter,
    /// Flows that policy or authentication forbade.
    pub failed_forbidden: Counter,
    /// Flows that the overlay cannot carry.
    pub failed_unsupported: Counter,
    /// Flows that took too long to open.
    pub failed_timed_out: Counter,
    /// Flows that our own mistakes failed.
    pub failed_bug: Counter,
    /// Octets from programs to targets.
    pub octets_up: Counter,
    /// Octets from targets to programs.
    pub octets_down: Counter,
    /// Datagrams dropped: fragments, strangers, full queues, too large, flows that failed.
    pub datagrams_dropped: Counter,
}

/// The numbers at one moment; the fields are those of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are documented in Counters")]
pub struct Snapshot {
    pub accepted_socks: u64,
    pub accepted_http: u64,
    pub malformed: u64,
    pub streams: u64,
    pub datagram_flows: u64,
    pub associations: u64,
    pub failed_entry: u64,
    pub failed_path: u64,
    pub failed_target: u64,
    pub failed_forbidden: u64,
    pub failed_unsupported: u64,
    pub failed_timed_out: u64,
    pub failed_bug: u64,
    pub octets_up: u64,
    pub octets_down: u64,
    pub datagrams_dropped: u64,
}

impl Counter {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// The number now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn failed(&self, error: &Error) {
        let counter = match error.kind() {
            ErrorKind::EntryUnreachable => &self.failed_entry,
            ErrorKind::PathFailed => &self.failed_path,
            ErrorKind::TargetFailed => &self.failed_target,
            ErrorKind::Forbidden => &self.failed_forbidden,
            ErrorKind::Unsupported => &self.failed_unsupported,
            ErrorKind::TimedOut => &self.failed_timed_out,
            ErrorKind::Bug => &self.failed_bug,
        };
        counter.add(1);
    }

    /// The numbers now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            accepted_socks: self.accepted_socks.value(),
            accepted_http: self.accepted_http.value(),
            malformed: self.malformed.value(),
            streams: self.streams.value(),
            datagram_flows: self.datagram_flows.value(),
            associations: self.associations.value(),
            failed_entry: self.failed_entry.value(),
            failed_path: self.failed_path.value(),
            failed_target: self.failed_target.value(),
            failed_forbidden: self.failed_forbidden.value(),
            failed_unsupported: self.failed_unsupported.value(),
            failed_timed_out: self.failed_timed_out.value(),
            failed_bug: self.failed_bug.value(),
            octets_up: self.octets_up.value(),
            octets_down: self.octets_down.value(),
            datagrams_dropped: self.datagrams_dropped.value(),
        }
    }
}
