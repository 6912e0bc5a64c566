//! `[onion]`: whether the relay carries circuits of Tor's cells beside MASQUE, on the same port number, and how many.
//! Where circuits may end stands in `[egress]`; see `crate::onion`, and docs/operating.md for what it means to open a relay.

use std::time::Duration;

use serde::Deserialize;

use super::{ConfigError, text};

/// Circuits.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Onion {
    /// Serve circuits. With the role `ingress` they can be extended to other relays, with `egress` they can end here. Default: false.
    pub enabled: bool,
    /// Serve them although tokens are set: circuits know no tokens, so anybody can build them. Default: false.
    pub open: bool,
    /// What channels are accepted over and dialled: `"quic"`, `"tls"` (as Tor's relays speak it) or both. Default: both.
    pub channels: Vec<Carrier>,
    /// Agree to congestion control (Tor's proposal 324) with clients that ask for it. Default: true.
    pub congestion_control: bool,
    /// After how many seconds a relay that tells a directory of itself takes another onion key; the last one is accepted for a week
    /// more. 0 is never. Default: 2419200, four weeks.
    #[serde(with = "text::seconds")]
    pub rotate: Duration,
    /// Circuits of all clients and relays; further ones are refused. Each counts as a request of `[limits]` too. Default: 65536.
    pub circuits: usize,
    /// Circuits of those at one address (an IPv6 /56), over all their channels; those of a relay of the directory's list count by its identity, without
    /// this bound. Where all of `circuits` are taken, one of whoever has most goes for one of somebody who has less, the longest idle first.
    /// Default: 8192.
    pub circuits_per_address: usize,
    /// Circuits on one channel of a client; further ones wait (QUIC) or are refused. Default: 256, which is what a client's own defaults may come to:
    /// 48 isolation tokens with four circuits each, those ahead, and those that end.
    pub circuits_per_client: u32,
    /// Circuits on one channel of another relay; where they are taken, one of whoever has most of them goes for one of somebody who has less.
    /// Default: 1024.
    pub circuits_per_relay: u32,
    /// Circuits that one address (an IPv6 /56) may begin at once, on all of its channels; and then so many a second (`creates_per_second`). A relay
    /// that was dialled counts by itself. Default: 400.
    pub creates: u32,
    /// Circuits that one address may begin each second. Default: 200.
    pub creates_per_second: u32,
    /// Threads that answer the handshakes of circuits (onion skins), beside those that pass cells; 0 is half as many as serve. Default: 0.
    pub skin_threads: usize,
    /// Onion skins that wait to be answered, of all: relays of the list first, then whoever has begun the fewest circuits of late. When more come, the last in
    /// that order are refused. Default: 2048.
    pub skins_waiting: usize,
    /// Onion skins of one address that wait. Default: 128.
    pub skins_waiting_per_client: usize,
    /// Bytes that may wait in the circuits of all channels, and in the streams of those that end here; beyond it those that move least are ended.
    /// Default: 1073741824.
    pub queued: u64,
    /// Streams to targets of one circuit. Each counts as a request of `[limits]` too, of the address that the channel comes from. Default: 512.
    pub streams: usize,
    /// Streams to targets, and look-ups, of all circuits on one channel of a client. Default: 4096.
    pub streams_per_client: usize,
    /// The same on one channel of another relay. Default: 16384.
    pub streams_per_relay: usize,
    /// Other relays that channels are kept to, and that are remembered as not answering. For one more, one goes that the directory's list does not
    /// have, or that is idle. Default: 4096.
    pub relays: usize,
    /// How many of them that are not in the list may be at one address (an IPv6 /64). Default: 64.
    pub relays_per_address: usize,
    /// How many relays that are not in the list may be dialled at once; and then so many a second (`dials_per_second`). Circuits that are to be
    /// extended to further ones are refused. Default: 512.
    pub dials: u32,
    /// How many relays that are not in the list may be dialled each second. Default: 64.
    pub dials_per_second: u32,
    /// The same at one address (an IPv6 /64): so many at once. Default: 32.
    pub dials_per_address: u32,
    /// And then so many each second. Default: 1.
    pub dials_per_address_and_second: u32,
    /// Seconds that the next relay has to answer, and a target. Default: 30.
    #[serde(with = "text::seconds")]
    pub patience: Duration,
    /// Seconds for which a relay that did not answer is not dialled again: circuits that are to be extended to it fail at once in the meantime. 0 is not at
    /// all. Default: 8.
    #[serde(with = "text::seconds")]
    pub unanswered: Duration,
    /// Seconds until a channel without circuits is closed. Default: 180.
    #[serde(with = "text::seconds")]
    pub idle_channel: Duration,
}

/// What a channel runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// A QUIC stream for each circuit.
    Quic,
    /// All circuits on one TLS connection.
    Tls,
}

impl Default for Onion {
    fn default() -> Self {
        Self {
            enabled: false,
            open: false,
            channels: vec![Carrier::Quic, Carrier::Tls],
            congestion_control: true,
            rotate: Duration::from_secs(28 * 24 * 3600),
            circuits: 65_536,
            circuits_per_address: 8192,
            circuits_per_client: 256,
            circuits_per_relay: 1024,
            creates: 400,
            creates_per_second: 200,
            skin_threads: 0,
            skins_waiting: 2048,
            skins_waiting_per_client: 128,
            queued: 1 << 30,
            streams: 512,
            streams_per_client: 4096,
            streams_per_relay: 16_384,
            relays: 4096,
            relays_per_address: 64,
            dials: 512,
            dials_per_second: 64,
            dials_per_address: 32,
            dials_per_address_and_second: 1,
            patience: Duration::from_secs(30),
            unanswered: hoplite_link::channel::FAILED,
            idle_channel: Duration::from_secs(180),
        }
    }
}

impl Onion {
    /// Whether channels run over this.
    pub(crate) fn has(&self, carrier: Carrier) -> bool {
        self.channels.contains(&carrier)
    }

    /// `tokens`: whether clients of MASQUE need one.
    pub(super) fn check(&self, tokens: bool) -> Result<(), ConfigError> {
        if !self.enabled {
            return Ok(());
        }
        if tokens && !self.open {
            let problem = "circuits know no tokens: anybody could build them through this relay, and with the egress role reach targets; \
                           set onion.open = true if that is meant";
            return Err(ConfigError::new("onion.open", problem));
        }
        if self.channels.is_empty() {
            let problem = "expected \"quic\", \"tls\" or both";
            return Err(ConfigError::new("onion.channels", problem));
        }
        self.check_numbers()
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let zeros = [
            ("onion.circuits", self.circuits == 0),
            ("onion.circuits_per_address", self.circuits_per_address == 0),
            ("onion.circuits_per_client", self.circuits_per_client == 0),
            ("onion.circuits_per_relay", self.circuits_per_relay == 0),
            ("onion.creates", self.creates == 0),
            ("onion.creates_per_second", self.creates_per_second == 0),
            ("onion.skins_waiting", self.skins_waiting == 0),
            (
                "onion.skins_waiting_per_client",
                self.skins_waiting_per_client == 0,
            ),
            ("onion.queued", self.queued == 0),
            ("onion.streams", self.streams == 0),
            ("onion.streams_per_client", self.streams_per_client == 0),
            ("onion.streams_per_relay", self.streams_per_relay == 0),
            ("onion.relays", self.relays == 0),
            ("onion.relays_per_address", self.relays_per_address == 0),
            ("onion.dials", self.dials == 0),
            ("onion.dials_per_second", self.dials_per_second == 0),
            ("onion.dials_per_address", self.dials_per_address == 0),
            (
                "onion.dials_per_address_and_second",
                self.dials_per_address_and_second == 0,
            ),
            ("onion.patience", self.patience.is_zero()),
            ("onion.idle_channel", self.idle_channel.is_zero()),
        ];
        if let Some((key, _)) = zeros.iter().find(|(_, zero)| *zero) {
            return Err(ConfigError::new(key, "expected a number above 0"));
        }
        let short = !self.rotate.is_zero() && self.rotate < Duration::from_secs(24 * 3600);
        match short {
            true => Err(ConfigError::new(
                "onion.rotate",
                "expected 0 or at least 86400 seconds: clients learn of a new key from the directory, which takes hours",
            )),
            false => Ok(()),
        }
    }
}
