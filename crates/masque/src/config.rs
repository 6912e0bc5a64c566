//! Limits and times of the MASQUE client, the table `[tunnel]` of the client's file. The keys are explained in `examples/client.toml`, which a test holds
//! equal to the defaults.

use std::{fmt, time::Duration};

use hoplite_http::{
    h2,
    h3::{self, Share},
};
use hoplite_link::Pad;
use hoplite_wire::{
    forwarding::Transform,
    region::Zone,
    tuning::{AckPolicy, Congestion, TuningRequest},
};
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use crate::{Mode, ShownRegion};

/// How a client treats its hops.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// When both ends of a hop acknowledge what the other sends.
    pub acks: Acks,
    /// After how many packets a delay begins.
    pub acks_after: u16,
    /// Which congestion control both ends of a hop have.
    #[serde(deserialize_with = "congestion")]
    pub congestion: Congestion,
    /// Which packets pass a relay beside the connection to it; a relay may have a mode of its own.
    pub mode: Mode,
    /// What is done to those packets between client and relay.
    #[serde(deserialize_with = "transform")]
    pub transform: Transform,
    /// How many connection ids of one flow may pass forwarded at once; the packets of others are tunnelled.
    pub forwarded_ids: usize,
    /// Whether small payloads that answer a download wait a little for each other where they share packets, if `share.answers` does not say so.
    pub gather: bool,
    /// Whether programs' UDP has one address at the last relay for all its targets, if that relay has such flows.
    pub bound_udp: bool,
    /// How long what is small waits for others to share a packet with: of the connection to the first relay where `pad` is set, else to the last.
    pub share: Share,
    /// How large packets to the first relay are.
    pub pad: Pad,
    /// What the last relay is shown of where the client is, by the word of the first.
    pub region: ShownRegion,
    /// The time zone that goes with the country, as `Europe/Berlin`.
    #[serde(deserialize_with = "hoplite_config::parsed_option")]
    pub zone: Option<Zone>,
    /// While a hop runs over TCP, how often QUIC is tried again.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub quic_retry: Duration,
    /// How many isolation tokens may have connections of their own at once. One more replaces the one unused for longest.
    pub isolated: usize,
    /// Whether a path stands ready for the next isolation token.
    pub spare: bool,
    /// How long a connection of an isolation token may be without a flow before it is closed.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub isolated_idle: Duration,
    /// Bytes of datagrams kept for a flow whose reader is slow; more are dropped, the newest first.
    pub datagram_queue: usize,
    /// Bytes of one TCP flow that a relay may send ahead of the program that reads it, at most, and 64 KiB at least. QUIC has more than 1.25 MB only where
    /// as much moves, HTTP/2 more than 1 MiB.
    pub stream_window: u32,
    /// Bytes by which the windows of all connections to relays may be wider than at first; beyond it they stay as they are.
    pub window_memory: u64,
    /// The QUIC and TLS side of every hop, but for `tuning_request`, `pad` and windows, which follow from the above. No key.
    #[serde(skip)]
    pub link: hoplite_link::Config,
    /// How long opening a flow may take where its terms set no deadline. No key: `[limits] open`.
    #[serde(skip)]
    pub open_limit: Duration,
    /// The pause before a lost connection is opened again; it doubles up to 32 times this. No key.
    #[serde(skip)]
    pub redial_pause: Duration,
    /// How long after a token has taken the spare path the next one is dialled at the earliest, and twelve times that at the latest. No key.
    #[serde(skip)]
    pub spare_after: Duration,
}

/// What a relay may send ahead on one flow, in bytes: sixty flows that nobody reads leave the connection room for others.
const STREAM_WINDOW: u32 = 4 << 20;
/// What a connection has for all its flows at first, and at most. Where no flow may have more than at first, it has the most at once.
const FIRST_WINDOW: u32 = 1_250_000;
const WIDEST_WINDOW: u64 = 256 << 20;
/// A narrower window would cost more packets than it saves memory.
const LEAST_STREAM_WINDOW: u32 = 64 << 10;

impl Default for Config {
    fn default() -> Self {
        let TuningRequest {
            up,
            down,
            after,
            congestion,
        } = TuningRequest::default();
        Self {
            acks: Acks { up, down },
            acks_after: after,
            congestion,
            mode: Mode::Auto,
            transform: Transform::Scramble,
            forwarded_ids: 64,
            gather: true,
            bound_udp: false,
            share: Share::default(),
            pad: Pad::Off,
            region: ShownRegion::None,
            zone: None,
            quic_retry: Duration::from_secs(10),
            isolated: 64,
            spare: true,
            isolated_idle: Duration::from_secs(90),
            datagram_queue: 1 << 20,
            stream_window: STREAM_WINDOW,
            window_memory: 256 << 20,
            link: hoplite_link::Config::default(),
            open_limit: Duration::from_secs(20),
            redial_pause: Duration::from_secs(1),
            spare_after: Duration::from_secs(5),
        }
    }
}

impl Config {
    /// What the client asks of each relay.
    pub fn tuning_request(&self) -> TuningRequest {
        TuningRequest {
            up: self.acks.up,
            down: self.acks.down,
            after: self.acks_after,
            congestion: self.congestion,
        }
    }

    /// How the link of a hop behaves.
    pub(crate) fn link(&self) -> hoplite_link::Config {
        // One for all links.
        self.link.window_budget.set_most(self.window_memory);
        let mut link = hoplite_link::Config {
            tuning_request: self.tuning_request(),
            pad: self.pad,
            stream_window: self.stream_window.max(LEAST_STREAM_WINDOW),
            ..self.link.clone()
        };
        if link.stream_window > FIRST_WINDOW {
            link.connection_window = FIRST_WINDOW;
            link.widest_window = Some(WIDEST_WINDOW);
        }
        link
    }

    /// How HTTP is spoken to a relay over QUIC, and over TCP, where nothing waits to share packets, for there are none to see.
    pub(crate) fn http(&self) -> (h3::Config, h2::Config) {
        let h3 = h3::Config {
            share: self.share,
            ..h3::Config::default()
        };
        let first = h2::Config::default();
        let widest = self.stream_window.max(LEAST_STREAM_WINDOW);
        let h2 = h2::Config {
            stream_window: first.stream_window.min(widest),
            widest_stream_window: widest,
            ..first
        };
        (h3, h2)
    }
}

/// When each end of a hop acknowledges: a policy for both, or a table with one for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acks {
    /// What the client sends.
    pub up: AckPolicy,
    /// What the relay sends.
    pub down: AckPolicy,
}

impl<'de> Deserialize<'de> for Acks {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(Either)
    }
}

struct Either;

impl<'de> de::Visitor<'de> for Either {
    type Value = Acks;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy, or a table with `up` and `down`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Acks, E> {
        let (up, down) =
            TuningRequest::both(text).map_err(|error| E::custom(format!("{text:?}: {error}")))?;
        Ok(Acks { up, down })
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Acks, A::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct Each {
            #[serde(deserialize_with = "hoplite_config::parsed")]
            up: AckPolicy,
            #[serde(deserialize_with = "hoplite_config::parsed")]
            down: AckPolicy,
        }
        let Each { up, down } = Each::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Acks { up, down })
    }
}

/// Names that are few and short: a wrong one is told the nearest.
fn congestion<'de, D: Deserializer<'de>>(input: D) -> Result<Congestion, D::Error> {
    let text = String::deserialize(input)?;
    let nearest = |_| de::Error::unknown_variant(&text, Congestion::NAMES);
    text.parse().map_err(nearest)
}

fn transform<'de, D: Deserializer<'de>>(input: D) -> Result<Transform, D::Error> {
    match String::deserialize(input)?.as_str() {
        "scramble" => Ok(Transform::Scramble),
        "identity" => Ok(Transform::Identity),
        other => Err(de::Error::unknown_variant(other, &["scramble", "identity"])),
    }
}
