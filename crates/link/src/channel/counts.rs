//! What went wrong on channels, counted: the relay's metrics and the tests read it. Nothing here names a peer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// One counter for each fault. One set is shared by all channels of a process, or of a test.
        #[derive(Debug, Default)]
        pub struct Counts {
            $($(#[$doc])* pub $name: Count,)+
            /// The circuits of all these channels.
            pub(super) hoard: super::hoard::Hoard,
        }

        impl Counts {
            /// Each counter with its name.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get())),+].into_iter()
            }
        }
    };
}

counts! {
    /// Handshakes that ended without a channel.
    refused,
    /// Relays that were not dialled: there were too many, or too many dials to those that nobody knows.
    not_dialled,
    /// Cells whose command says nothing here, thrown away: unknown ones, and those of the handshake after it.
    ignored,
    /// Cells for circuits that are not there (any more), thrown away.
    unknown,
    /// Circuits that were to be made under an id that is in use.
    collisions,
    /// Circuits that were to be made under an id that is ours to give, or under none.
    wrong_ids,
    /// Circuits beyond the bound.
    too_many,
    /// Circuits that ended because their reader was too slow for a channel that cannot be stopped (TLS).
    overfull,
    /// QUIC: circuits that ended because of a cell that was not theirs.
    mismatched,
    /// QUIC: streams that ended inside a cell.
    cut,
    /// QUIC: streams that were no circuits: their first cell made none, or did not come.
    no_circuits,
    /// QUIC: circuits whose last cells were not taken in time.
    unread,
    /// Answers that were left out because too many waited.
    unanswered,
    /// Circuits that ended because too much waited in all circuits together, and in them for longest.
    hoarders,
    /// Channels that ended because the peer took nothing.
    stuck,
    /// Channels that ended because the peer broke the protocol.
    violations,
}

/// A counter.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub(super) fn up(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// How many there were.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
