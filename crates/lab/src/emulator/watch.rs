//! What a network tells while it works: drops and passages, to whoever records them. `driver` records to files, tests to lists.

use serde::{Deserialize, Serialize};

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// The link's loss model.
    Loss,
    /// The queue was full.
    Queue,
    /// CoDel.
    CoDel,
    /// Its TTL or hop limit was used up at a router.
    Ttl,
    /// Too large for the next link.
    Mtu,
    /// No such destination, or no packet at all.
    Route,
    /// The emulator's memory limit: a fault of its own.
    Memory,
    /// The host's device did not take it: a fault of the emulator's own.
    Tun,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Loss,
        Self::Queue,
        Self::CoDel,
        Self::Ttl,
        Self::Mtu,
        Self::Route,
        Self::Memory,
        Self::Tun,
    ];

    /// Its name in results and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Queue => "queue",
            Self::CoDel => "codel",
            Self::Ttl => "ttl",
            Self::Mtu => "mtu",
            Self::Route => "route",
            Self::Memory => "memory",
            Self::Tun => "tun",
        }
    }
}

/// Told of everything as it happens. A direction is `2 · link + from`: even forward, odd back, in the topology's order.
pub trait Watch {
    /// A packet entered a direction, before loss.
    fn entered(&mut self, now: u64, direction: usize, packet: &[u8]);
    /// A packet came out at the far end of a direction.
    fn left(&mut self, now: u64, direction: usize, packet: &[u8]);
    /// A packet was dropped on or behind a direction.
    fn dropped(&mut self, now: u64, direction: usize, cause: Cause, packet: &[u8]);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn entered(&mut self, _: u64, _: usize, _: &[u8]) {}
    fn left(&mut self, _: u64, _: usize, _: &[u8]) {}
    fn dropped(&mut self, _: u64, _: usize, _: Cause, _: &[u8]) {}
}
