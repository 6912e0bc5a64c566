//! What the front ends did, as numbers: no address, no name, nothing about a single flow.
//! The binary shows a [`Snapshot`] in its status and metrics. The transparent front end has a list of its own.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// The number now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Makes the live numbers and their copy out of one list, and adds those of flows that failed: each front end has them.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {
        $crate::counters::counters! {
            @all
            $($(#[doc = $doc])+ $name;)+
            /// Flows that the first relay's absence failed.
            failed_entry;
            /// Flows that a relay further on failed.
            failed_path;
            /// Flows that the target failed.
            failed_target;
            /// Flows that policy or authentication forbade.
            failed_forbidden;
            /// Flows that the overlay cannot carry.
            failed_unsupported;
            /// Flows that took too long to open.
            failed_timed_out;
            /// Flows that our own mistakes failed.
            failed_bug;
        }

        impl Counters {
            /// Counts a flow that did not open or did not last.
            pub(crate) fn failed(&self, error: &hoplite_overlay::Error) {
                use hoplite_overlay::ErrorKind;
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
        }
    };
    (@all $($(#[doc = $doc:literal])+ $name:ident;)+) => {
        /// All numbers, live.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: $crate::counters::Counter,)+
        }

        /// The numbers at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// The numbers now.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.value(),)+ }
            }
        }

        impl Snapshot {
            /// Every number with its name, in the order of the list.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// Connections from programs to the SOCKS front end.
    accepted_socks;
    /// Connections from programs to the HTTP front end.
    accepted_http;
    /// Programs that did not speak the protocol, or were too slow to.
    malformed;
    /// Connections evicted for another when all slots were taken.
    rested;
    /// Connections reset because too many waited for a slot.
    crowded;
    /// TCP flows opened.
    streams;
    /// UDP flows opened.
    datagram_flows;
    /// UDP associations granted.
    associations;
    /// Bytes from programs to targets.
    bytes_up;
    /// Bytes from targets to programs.
    bytes_down;
    /// Datagrams dropped: fragments, strangers, full queues, too large, flows that failed.
    datagrams_dropped;
}
