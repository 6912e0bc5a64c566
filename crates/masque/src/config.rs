//! Limits and times of the MASQUE client. The binary fills them from `[tunnel]`; the defaults are those of `examples/client.toml`.

use std::time::Duration;

use crate::Forwarding;

/// How a client treats its hops.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The QUIC and TLS side of every hop.
    pub link: hoplite_link::Config,
    /// Which packets pass a relay beside the connection to it.
    pub forwarding: Forwarding,
    /// How long opening a flow may take where its terms set no deadline.
    pub open_limit: Duration,
    /// While a hop runs over TCP, how often QUIC is tried again.
    pub quic_retry: Duration,
    /// The pause before a lost connection is opened again; it doubles up to 32 times this.
    pub redial_pause: Duration,
    /// How many isolation tokens may have connections of their own at once. One more replaces the one unused for longest.
    pub isolated: usize,
    /// How long a connection of an isolation token may be without a flow before it is closed.
    pub isolated_idle: Duration,
    /// Whether small payloads that answer a download wait a little for each other where they share packets.
    pub gather: bool,
    /// Whether a path stands ready for the next isolation token.
    pub spare: bool,
    /// How long after a token has taken that path the next one is dialled.
    pub spare_after: Duration,
    /// Bytes of datagrams kept for a flow whose reader is slow; more are dropped, the newest first.
    pub datagram_queue: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            link: hoplite_link::Config::default(),
            forwarding: Forwarding::default(),
            open_limit: Duration::from_secs(20),
            quic_retry: Duration::from_secs(10),
            redial_pause: Duration::from_secs(1),
            isolated: 64,
            isolated_idle: Duration::from_secs(90),
            gather: true,
            spare: true,
            spare_after: Duration::from_secs(5),
            datagram_queue: 1 << 20,
        }
    }
}
