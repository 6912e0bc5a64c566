//! `[onion]` in the client's file: what circuits run over, and how many are kept for how long; and what `[[relay]]` has for them.
//! `config::client` reads it, `client::onion` obeys it.

use std::{fmt, str::FromStr, time::Duration};

use hoplite_link::channel::How;
use hoplite_onion::path::MOST_HOPS;
use serde::Deserialize;

use crate::config::text;

/// A path of circuits has at most so many relays.
pub(crate) const LONGEST_PATH: usize = MOST_HOPS;
/// The relays of a circuit that are chosen from a list, if the file does not say how many.
pub(crate) const HOPS: usize = 3;

/// The table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Onion {
    /// What the channel to the first relay runs over.
    pub(crate) channel: Channel,
    /// Circuits that stand ready for the next isolation token.
    pub(crate) ahead: usize,
    /// Whether congestion control (proposal 324) is asked for, instead of fixed windows.
    pub(crate) congestion_control: bool,
    /// How many circuits are tried for one stream.
    pub(crate) attempts: usize,
    /// How long building a circuit may take at first, and at most, in seconds. Then it is learnt.
    #[serde(deserialize_with = "text::seconds")]
    pub(crate) build: Duration,
    /// How long a circuit takes new streams, in seconds.
    #[serde(deserialize_with = "text::seconds")]
    pub(crate) lasts: Duration,
    /// How long a circuit may be without streams, in seconds.
    #[serde(deserialize_with = "text::seconds")]
    pub(crate) idle: Duration,
    /// How many isolation tokens may have circuits of their own at once, up to four each. Relays give a client 256 circuits, of which some are ahead or end.
    pub(crate) isolated: usize,
    /// Streams of one circuit at once.
    pub(crate) streams: usize,
    /// How many octets of one circuit the first relay may send ahead over QUIC: by default 200 Mbit/s where it is 80 ms away. A circuit is no faster.
    pub(crate) window: u32,
}

/// What a channel runs over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Channel {
    /// Whichever is there first; QUIC has a head start.
    #[default]
    Auto,
    /// QUIC, a stream for each circuit.
    Quic,
    /// TLS over TCP, as Tor has it.
    Tls,
}

/// The RSA identity of a relay of Tor: 40 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RsaId(pub(crate) [u8; 20]);

/// The text is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RsaIdError;

impl Default for Onion {
    fn default() -> Self {
        Self {
            channel: Channel::Auto,
            ahead: 1,
            congestion_control: true,
            attempts: 3,
            build: Duration::from_secs(60),
            lasts: Duration::from_secs(600),
            idle: Duration::from_secs(1800),
            isolated: 48,
            streams: 512,
            window: 2 << 20,
        }
    }
}

impl Onion {
    /// The keys whose numbers make no sense, with what is expected.
    pub(super) fn wrong(&self) -> Vec<(&'static str, &'static str)> {
        let least = Duration::from_secs(1);
        let checks = [
            ("onion.ahead", self.ahead <= 64, "expected 0 to 64"),
            (
                "onion.attempts",
                (1..=16).contains(&self.attempts),
                "expected 1 to 16",
            ),
            (
                "onion.build",
                self.build >= least,
                "expected a second at least",
            ),
            (
                "onion.lasts",
                self.lasts >= least,
                "expected a second at least",
            ),
            (
                "onion.idle",
                self.idle >= least,
                "expected a second at least",
            ),
            (
                "onion.isolated",
                (1..=65_536).contains(&self.isolated),
                "expected 1 to 65536",
            ),
            (
                "onion.streams",
                (1..=65_535).contains(&self.streams),
                "expected 1 to 65535",
            ),
            (
                "onion.window",
                self.window >= 64 << 10,
                "expected 65536 at least",
            ),
        ];
        let wrong = checks.into_iter().filter(|(_, is_right, _)| !is_right);
        wrong.map(|(key, _, expected)| (key, expected)).collect()
    }
}

impl From<Channel> for How {
    fn from(channel: Channel) -> Self {
        match channel {
            Channel::Auto => Self::Raced,
            Channel::Quic => Self::Quic,
            Channel::Tls => Self::Tls,
        }
    }
}

impl FromStr for RsaId {
    type Err = RsaIdError;

    fn from_str(text: &str) -> Result<Self, RsaIdError> {
        let is_hex = text.len() == 40 && text.bytes().all(|c| c.is_ascii_hexdigit());
        let mut octets = [0; 20];
        for (i, octet) in octets.iter_mut().enumerate() {
            let digits = text.get(2 * i..2 * i + 2).filter(|_| is_hex);
            *octet = digits
                .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                .ok_or(RsaIdError)?;
        }
        Ok(Self(octets))
    }
}

impl fmt::Display for RsaIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a relay's `rsa` is 40 hexadecimal digits, its fingerprint in Tor")
    }
}

impl fmt::Debug for RsaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RsaId(hidden)")
    }
}
