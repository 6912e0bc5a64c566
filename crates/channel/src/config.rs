//! How channels behave: bounds and times, each with its default.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use hoplite_wire::{cell, tor::extra_info::Directions};
use serde::Deserialize;

use super::{PaddingMode, PaddingParameters, budget::CELL, quic::streams_at_first};

/// For how long relays remember that a relay could not be dialled, unless they are told otherwise: circuits that are to be extended to it fail at once in
/// the meantime.
pub const FAILED_DIAL_TTL: Duration = Duration::from_secs(8);

/// Bounds and times of a channel. What happens at a bound stands beside it; all of it is counted in [`Counts`](super::Counts).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long the link handshake may take, and how long a QUIC stream may be without its first cell.
    pub handshake: Duration,
    /// How many cells a peer may send before NETINFO; one more, and the channel is refused.
    pub greetings: usize,
    /// The largest cell of variable length, in bytes; a larger one closes the channel.
    pub largest_variable: usize,
    /// How many circuits a relay may have open on a channel, each way; one more is refused by DESTROY (QUIC: has no stream).
    pub circuits: u32,
    /// How many circuits a peer may have open that did not say who it is.
    pub guest_circuits: u32,
    /// How many new circuits may wait for [`Channel::accept`](super::Channel::accept); one more is refused.
    pub arrivals: usize,
    /// How many cells of a circuit may wait to be sent; at the bound its sender waits.
    pub outbox: usize,
    /// TLS: how many cells of a circuit may wait to be received, since nothing stops the peer from sending them; one more, and
    /// that circuit is destroyed. A relay in the middle is not told which window a circuit's ends agreed on, so this is above the largest that
    /// there may be; the default is what C tor's relays allow (`circ_max_cell_queue_size`). What really waits is bounded by `queued`.
    pub inbox: usize,
    /// QUIC: how many bytes of a circuit the peer may send ahead of its reader; at the bound that circuit alone stops.
    /// The default is what Tor's fixed window of 1,000 cells takes.
    pub window: u32,
    /// QUIC: how many bytes of all circuits together may wait on one channel, each way, whatever the number of circuits. Below it no circuit
    /// takes another's; at it, those that nobody reads end after a second.
    pub windows: u64,
    /// QUIC: how many bytes of all circuits may wait on a channel to a peer that did not say who it is: it harms its own circuits alone.
    pub guest_windows: u64,
    /// How many bytes may wait in all circuits of the process; beyond it, those are destroyed that move least for what waits with whoever has them
    /// (C tor: MaxMemInQueues), those of guests who have more than a sixteenth of it first.
    pub queued: u64,
    /// How many bytes whoever holds a circuit keeps for it at most ([`CircuitBacklog`](super::CircuitBacklog)): by that is known when so many circuits are there that
    /// `queued` could be reached.
    pub kept: u64,
    /// QUIC: how many bytes the peer may send before it has shown who it is, and where `narrow` until whoever has the channel lets it have more.
    pub greeting_window: u32,
    /// QUIC: a channel's windows are no wider than its greeting's until [`Channel::widen`](super::Channel::widen) or
    /// [`Channel::adapt_windows`](super::Channel::adapt_windows).
    pub narrow: bool,
    /// TLS: how many answers of the channel itself (DESTROY) may wait to be sent; further ones are left out.
    pub answers: usize,
    /// TLS: how long the peer may take nothing of what is sent before the channel is given up.
    pub stuck: Duration,
    /// QUIC: how long a relay that dialled us may leave what it is sent without any answer before the channel is given up. For those that
    /// we dial it is [`hoplite_link::Config::broken_after`]; a client, which may be about to move, has [`hoplite_link::Config::idle`].
    pub broken_after: Duration,
    /// QUIC: how long the last cells of a circuit may take to arrive before its stream is reset.
    pub linger: Duration,
    /// After so long a circuit's cells count half when it is decided who is quiet (C tor: 30 s).
    pub half_life: Duration,
    /// How a channel between a client and its guard is padded: at a client what it asks for, at a relay whether it pads at all.
    pub padding: PaddingMode,
    /// What the network has agreed on about that.
    pub padding_parameters: PaddingParameters,
    /// How long a channel without circuits is kept in [`Channels`](super::Channels).
    pub idle: Duration,
    /// A client that was raced to a relay over TLS tries QUIC after so long, and again after twice as long, up to [`QUIC_RETRY_AT_MOST`](super::QUIC_RETRY_AT_MOST); what is new takes
    /// it then. Twice as long, too, for each time that QUIC was lost there lately.
    pub quic_retry: Duration,
    /// How long a dial that failed, and not at once, is not tried again in [`Channels`](super::Channels), unless the relay has dialled us; zero: no time.
    /// Relays have [`FAILED_DIAL_TTL`].
    pub failed: Duration,
    /// How many relays [`Channels`](super::Channels) knows; for one more, one goes that is not in the list, or idle, and else it cannot be dialled. So
    /// many dials that failed are remembered, too.
    pub channels: usize,
    /// How many of them that are not in the list may be at one address (IPv6: /64). Of one more that dials us nothing is kept; it is dialled only if
    /// another there is idle.
    pub channels_per_address: usize,
    /// How often relays are dialled that are not in the list; beyond it they are not.
    pub dials: Rate,
    /// How often relays at one address (IPv6: /64) are dialled that are not in the list.
    pub dials_per_address: Rate,
    /// How circuits share a connection, where it is not as it should be.
    pub rival: Option<Rival>,
}

/// A way in which circuits could share a connection and do not, so that the lab can show what it costs. Both ends of a channel must have the same.
/// Sabée, "Adding QUIC support to the Tor network", sections 4.4 and 5.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rival {
    /// QUIC: all circuits on one stream, as TLS has them: a packet that is lost delays them all. Its window is `window`, in both directions.
    OneStream,
    /// QUIC: each end-to-end stream on a stream of its own, as QuicTor has them: each relay of the circuit can count them.
    StreamPerStream,
    /// TLS: a connection for each circuit: whoever sees its packets counts the circuits.
    ConnectionPerCircuit,
}

/// How often something may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So often at once.
    pub at_once: u32,
    /// And then so often each second.
    pub per_second: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            greetings: 64,
            largest_variable: cell::LARGEST_VARIABLE,
            circuits: 1024,
            guest_circuits: 64,
            arrivals: 256,
            outbox: 64,
            inbox: 50_000,
            window: 512_000,
            windows: 256 << 20,
            guest_windows: 64 << 20,
            queued: 1 << 30,
            kept: 24 << 20,
            greeting_window: 256 << 10,
            narrow: false,
            answers: 1024,
            stuck: Duration::from_secs(60),
            broken_after: Duration::from_secs(4),
            linger: Duration::from_secs(5),
            half_life: Duration::from_secs(30),
            padding: PaddingMode::Off,
            padding_parameters: PaddingParameters::default(),
            idle: Duration::from_secs(180),
            quic_retry: Duration::from_secs(10),
            failed: Duration::ZERO,
            channels: 4096,
            channels_per_address: 64,
            dials: Rate {
                at_once: 512,
                per_second: 64,
            },
            dials_per_address: Rate {
                at_once: 32,
                per_second: 1,
            },
            rival: None,
        }
    }
}

impl Config {
    /// A QUIC connection's configuration, for a peer that has not said who it is yet. A relay that serves channels accepts with it.
    #[must_use]
    pub fn greeting(&self, link: &hoplite_link::Config) -> hoplite_link::Config {
        hoplite_link::Config {
            streams: streams_at_first(self.guest_circuits),
            stream_window: self.window,
            connection_window: self.greeting_window,
            // What becomes of a channel's is said after its greeting.
            widest_window: None,
            ..link.clone()
        }
    }

    /// How many circuits a peer may open, by whether it said who it is.
    pub(super) fn most_circuits(&self, known: bool) -> u32 {
        if known {
            self.circuits
        } else {
            self.guest_circuits
        }
    }

    /// QUIC: how many bytes of all circuits together may be on their way, each direction: so many that no circuit takes another's, up to a bound.
    /// Circuits that we open count like the peer's; the control stream is one more.
    pub(super) fn whole_window(&self, known: bool) -> u64 {
        let streams = u64::from(self.most_circuits(known)).saturating_mul(2);
        let most = if known {
            self.windows
        } else {
            self.guest_windows
        };
        streams
            .saturating_add(1)
            .saturating_mul(self.window.into())
            .min(most.max(self.window.into()))
    }
}

// What whoever holds a circuit keeps for it beside the channel's own queues: it counts as waiting in the circuit
// ([`Config::queued`](super::Config::queued)). `onion` counts there what streams have waiting at the circuit's end.

/// What is kept for one circuit.
#[derive(Debug, Default)]
pub struct CircuitBacklog {
    /// Bytes that came on the circuit and wait for somebody else.
    pub received: Tally,
    /// Cells that are still to be given to the circuit.
    pub sending: Tally,
}

/// Counts what comes into a queue and what leaves it.
#[derive(Debug, Default)]
pub struct Tally {
    came: AtomicU64,
    left: AtomicU64,
}

impl CircuitBacklog {
    /// Bytes that wait, and how many have moved.
    pub(super) fn measure(&self) -> (u64, u64) {
        let [waiting, sent] = [self.sending.waiting(), self.sending.left.load(Relaxed)]
            .map(|cells| cells.saturating_mul(CELL));
        let passed = self.received.left.load(Relaxed);
        (self.received.waiting() + waiting, passed + sent)
    }
}

impl Tally {
    /// So much has come.
    pub fn came(&self, more: u64) {
        self.came.fetch_add(more, Relaxed);
    }

    /// So much of it has left.
    pub fn left(&self, less: u64) {
        self.left.fetch_add(less, Relaxed);
    }

    /// What is there now.
    pub fn waiting(&self) -> u64 {
        let left = self.left.load(Relaxed);
        self.came.load(Relaxed).saturating_sub(left)
    }
}

// What went wrong on channels, counted: the relay's metrics and the tests read it. Nothing here names a peer.

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// One counter for each fault. One set is shared by all channels of a process, or of a test.
        #[derive(Debug, Default)]
        pub struct Counts {
            $($(#[$doc])* pub $name: Count,)+
            /// The circuits of all these channels.
            pub(super) queue_budget: super::budget::QueueBudget,
            /// What they carry.
            pub(super) traffic: super::traffic::Traffic,
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
    ended_for_memory,
    /// QUIC: circuits that ended because nobody read them, while the channel had no room for the others.
    ended_for_room,
    /// Channels that ended because the peer took nothing.
    stuck,
    /// Channels that ended because the peer broke the protocol.
    violations,
    /// PADDING cells that were sent: no fault.
    padding,
    /// PADDING cells that came: no fault.
    padding_read,
}

impl Counts {
    /// Bytes of cells that all channels have read and written.
    pub fn carried(&self) -> (u64, u64) {
        self.traffic.total()
    }

    /// How the channels that are open were used since this was last asked for; to be asked every ten seconds.
    pub fn directions(&self) -> Directions {
        self.traffic.directions()
    }
}

/// A counter.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub(super) fn up(&self) {
        self.add(1);
    }

    /// So many more.
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// How many there were.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
