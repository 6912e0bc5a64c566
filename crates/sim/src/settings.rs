//! What a run is like: how many, for how long, over what, and what they do. The command line fills it.

use std::time::Duration;

use hoplite_link::channel::How;

use crate::{net::Access, random::Random};

/// Octets a second of a megabit.
const MEGABIT: u64 = 125_000;
/// A queue holds what its line sends in this time, and 64 KiB at least.
const QUEUE: Duration = Duration::from_millis(50);
const SHORTEST_QUEUE: u64 = 64 << 10;

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Relays; every third is an exit too.
    pub relays: usize,
    /// Clients.
    pub clients: usize,
    /// Servers that clients fetch from.
    pub targets: usize,
    /// Everything is drawn from it.
    pub seed: u64,
    /// How long clients fetch, in virtual time.
    pub time: Duration,
    /// Clients begin one after the other within this time; what is fetched before its end is not counted.
    pub warm_up: Duration,
    /// What channels run over.
    pub channel: How,
    /// The share of packets that is lost between any two nodes, from 0 to 1.
    pub loss: f64,
    /// Except between exits and targets.
    pub lossless_targets: bool,
    /// What clients do.
    pub traffic: Traffic,
    /// Relays that go, by number, and when.
    pub kills: Vec<(usize, Duration)>,
    /// Relays of a path.
    pub hops: usize,
    /// Whether circuits have congestion control; else Tor's fixed windows.
    pub congestion_control: bool,
    /// Circuits that each client has ready.
    pub ahead: usize,
}

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// The share of clients that fetch much, from 0 to 1.
    pub bulk: f64,
    /// The octets of a fetch.
    pub web_octets: u64,
    /// The mean pause after one, exponentially distributed.
    pub web_pause: Duration,
    /// The same of those that fetch much.
    pub bulk_octets: u64,
    /// The same of those that fetch much.
    pub bulk_pause: Duration,
    /// When a fetch is given up.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            relays: 40,
            clients: 100,
            targets: 4,
            seed: 1,
            time: Duration::from_secs(600),
            warm_up: Duration::from_secs(60),
            channel: How::Quic,
            loss: 0.0,
            lossless_targets: false,
            traffic: Traffic::default(),
            kills: Vec::new(),
            hops: 3,
            congestion_control: true,
            ahead: 1,
        }
    }
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            bulk: 0.04,
            web_octets: 320 << 10,
            web_pause: Duration::from_secs(60),
            bulk_octets: 5 << 20,
            bulk_pause: Duration::from_secs(60),
            patience: Duration::from_secs(300),
        }
    }
}

/// A relay's line: 20 to 640 Mbit/s, as many of each doubling.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "rates between 2.5 and 80 million octets a second"
)]
pub(crate) fn relay_access(random: &mut Random) -> Access {
    let rate = 20.0 * (MEGABIT as f64) * (5.0 * random.unit()).exp2();
    access(rate as u64, rate as u64)
}

/// A client's: 20 to 100 Mbit/s down, a fifth of it up.
pub(crate) fn client_access(random: &mut Random) -> Access {
    let down = MEGABIT.saturating_mul(20 + random.below(81));
    access(down / 5, down)
}

/// A target's: 1 Gbit/s.
pub(crate) fn target_access() -> Access {
    access(1000 * MEGABIT, 1000 * MEGABIT)
}

fn access(up: u64, down: u64) -> Access {
    let most = u128::from(up.max(down)) * QUEUE.as_nanos() / 1_000_000_000;
    let queue = u64::try_from(most).unwrap_or(u64::MAX);
    Access {
        up,
        down,
        queue: queue.max(SHORTEST_QUEUE),
    }
}
