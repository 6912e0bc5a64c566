//! The tables of the client's file: which relays, which path over them, how circuits are built, where programs come in. Every key is explained in
//! `examples/client.toml`, which a test holds equal to the defaults.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use hoplite_crypto::{Pin, Token};
use hoplite_directory::{
    Source, Trust,
    select::{Apart, Network, PathConstraints},
};
use hoplite_link::channel::How;
use hoplite_masque::MAX_HOPS;
use hoplite_mediator::{config as front, tun};
use hoplite_onion::path::MOST_HOPS;
use hoplite_wire::{
    OnionKey, Target,
    directory::{Descriptor, Key, Roles},
    tuning::{self, TuningRequest},
};
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::takeover;
use crate::config::{self, directory};

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// What carries the traffic.
    pub(crate) overlay: Carrier,
    /// The relays that may be used.
    pub(crate) relay: Vec<Relay>,
    /// Their names in order, the first hop first. Either this or `hops`.
    pub(crate) path: Vec<String>,
    /// So many relays, chosen at random. Either this or `path`.
    pub(crate) hops: Option<usize>,
    /// Shown to every relay that has no token of its own.
    #[serde(deserialize_with = "config::token")]
    pub(crate) token: Option<Token>,
    /// A file that holds it.
    pub(crate) token_file: Option<PathBuf>,
    /// The SOCKS5 front end.
    pub(crate) socks: front::Socks,
    /// The HTTP proxy.
    pub(crate) http: front::Http,
    /// How the hops are carried.
    pub(crate) tunnel: Tunnel,
    /// How circuits are built.
    pub(crate) onion: Onion,
    /// Bounds of the front ends.
    pub(crate) limits: front::Limits,
    /// The interface of `hoplite up`.
    pub(crate) device: tun::config::Device,
    /// The flows that come through it.
    pub(crate) flows: tun::config::Flows,
    /// The names that are asked for through it.
    pub(crate) dns: tun::config::Dns,
    /// What it takes of the device's traffic.
    pub(crate) takeover: takeover::Takeover,
    /// Where the relays are listed, instead of in `relay`.
    pub(crate) directory: Option<Directory>,
}

/// What carries the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Carrier {
    /// Relays, each hop nested in the one before.
    #[default]
    Masque,
    /// Relays, by circuits of Tor's cells.
    Onion,
    /// Nothing: the device's own sockets, for measurements.
    Direct,
}

/// One relay.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Relay {
    /// What the file and the messages call it.
    pub(crate) name: String,
    /// Host and port.
    #[serde(deserialize_with = "address")]
    pub(crate) address: Target,
    /// Its public key's digest; without one its certificate must be signed by a public authority.
    #[serde(default, deserialize_with = "config::parsed_option")]
    pub(crate) pin: Option<Pin>,
    /// Its identity and its onion key; circuits need it.
    #[serde(default, deserialize_with = "config::parsed_option")]
    pub(crate) onion: Option<OnionKey>,
    /// Its RSA identity, if it is a relay of Tor.
    #[serde(default, deserialize_with = "config::parsed_option")]
    pub(crate) rsa: Option<RsaId>,
    /// What it does.
    #[serde(default = "both_roles")]
    pub(crate) roles: Vec<Role>,
    /// Its URI template for CONNECT-UDP; the well-known one if absent.
    #[serde(default)]
    pub(crate) template: Option<String>,
    /// Where it stands.
    #[serde(default)]
    pub(crate) region: Option<String>,
    /// Who runs it.
    #[serde(default)]
    pub(crate) operator: Option<String>,
    /// Shown to this relay only.
    #[serde(default, deserialize_with = "config::token")]
    pub(crate) token: Option<Token>,
    /// A file that holds it.
    #[serde(default)]
    pub(crate) token_file: Option<PathBuf>,
    /// How packets pass it; as `[tunnel]` says if absent.
    #[serde(default)]
    pub(crate) mode: Option<Mode>,
}

/// What a relay does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// It forwards to other relays.
    Ingress,
    /// It connects to targets.
    Egress,
}

/// How the hops are carried.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tunnel {
    /// When both ends of a hop acknowledge what the other sends.
    pub(crate) acks: Acks,
    /// After how many packets a delay begins.
    pub(crate) acks_after: u16,
    /// Which congestion control the tunnels run.
    pub(crate) congestion: Congestion,
    /// How packets pass a relay.
    pub(crate) mode: Mode,
    /// What is done to packets that pass forwarded.
    pub(crate) transform: Transform,
    /// How many connection ids of one flow may pass forwarded at once.
    pub(crate) forwarded_ids: usize,
    /// Whether small datagrams that answer a download wait a little for each other.
    pub(crate) gather: bool,
    /// Whether every packet to the first relay is as large as the path carries.
    pub(crate) pad: Pad,
    /// While the first hop runs over TCP, how often QUIC is tried again, in seconds.
    #[serde(deserialize_with = "config::seconds")]
    pub(crate) quic_retry: Duration,
    /// How many isolation tokens may have connections of their own at once.
    pub(crate) isolated: usize,
    /// Whether a path stands ready for the next one.
    pub(crate) spare: bool,
    /// How long such a connection may be unused, in seconds.
    #[serde(deserialize_with = "config::seconds")]
    pub(crate) isolated_idle: Duration,
    /// Bytes of datagrams kept for a flow whose reader is slow.
    pub(crate) datagram_queue: usize,
}

/// Which congestion control the connections run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Congestion {
    /// As suits what a hop carries.
    #[default]
    Auto,
    /// None.
    Off,
    /// RFC 9438.
    Cubic,
    /// Bottleneck bandwidth and round-trip time.
    Bbr,
    /// RFC 9002's own.
    NewReno,
}

/// How packets pass a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Beside the connection to it where it agrees.
    #[default]
    Auto,
    /// The same, and a warning where it does not.
    Forwarded,
    /// Inside the connection to it.
    Tunnelled,
}

/// What is done to packets that pass a relay beside the connection to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transform {
    /// They are encrypted again, so that both sides of the relay have nothing in common but sizes and times.
    #[default]
    Scramble,
    /// Nothing but another connection id.
    Identity,
}

/// How large QUIC packets are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pad {
    /// As large as what is in them.
    #[default]
    Off,
    /// As large as the path carries.
    Full,
}

impl Config {
    /// What the front ends are told.
    pub(crate) fn front(&self) -> front::Config {
        // Who asks for what is not carried is told at once.
        let udp = self.socks.udp && !self.is_onion();
        front::Config {
            socks: front::Socks {
                udp,
                ..self.socks.clone()
            },
            http: self.http.clone(),
            limits: self.limits.clone(),
        }
    }

    /// What the transparent front end is told.
    pub(crate) fn transparent(&self) -> tun::Config {
        tun::Config {
            device: self.device.clone(),
            flows: self.flows.clone(),
            dns: self.dns.clone(),
        }
    }

    /// Whether no relay is used at all.
    pub(crate) fn is_direct(&self) -> bool {
        self.overlay == Carrier::Direct
    }

    /// Whether circuits carry the traffic: TCP alone.
    pub(crate) fn is_onion(&self) -> bool {
        self.overlay == Carrier::Onion
    }

    /// The relays of the file, in its order, as paths are chosen from them: a list that nobody signed.
    pub(crate) fn network(&self) -> Network {
        let relays = (0u64..).zip(&self.relay);
        Network::unsigned(
            relays
                .map(|(place, relay)| relay.described(place))
                .collect(),
        )
    }

    /// What is asked of a path over them. Of their owners the file's author knows more than their addresses tell.
    pub(crate) fn constraints(&self) -> PathConstraints {
        PathConstraints {
            hops: self.length(),
            apart: Apart {
                operator: true,
                ..Apart::hardly()
            },
            ..PathConstraints::default()
        }
    }

    /// How many relays a path may have.
    pub(crate) fn longest(&self) -> usize {
        if self.is_onion() { MOST_HOPS } else { MAX_HOPS }
    }

    /// How many relays the traffic passes.
    pub(crate) fn length(&self) -> usize {
        match self.path.len() {
            _ if self.is_direct() => 0,
            0 if self.is_onion() => self.hops.unwrap_or(HOPS),
            0 => self.hops.unwrap_or(0),
            given => given,
        }
    }
}

impl Relay {
    /// What the directory would say of it, under an identity that stands for its place in the file.
    fn described(&self, place: u64) -> Descriptor {
        let mut identity = [0; 32];
        identity[..8].copy_from_slice(&place.to_be_bytes());
        Descriptor {
            name: self.name.clone(),
            identity: Key(identity),
            published: 0,
            addresses: Vec::new(),
            // Known by it or by its certificate: MASQUE can reach it in any case.
            pin: Some(identity),
            onion: None,
            roles: Roles {
                ingress: self.roles.contains(&Role::Ingress),
                egress: self.roles.contains(&Role::Egress),
            },
            region: self.region.clone(),
            operator: self.operator.clone(),
            family: Vec::new(),
            bandwidth: 0,
            exit: None,
        }
    }
}

impl Tunnel {
    /// What the client asks of each relay.
    pub(crate) fn wishes(&self) -> TuningRequest {
        TuningRequest {
            up: self.acks.up,
            down: self.acks.down,
            after: self.acks_after,
            congestion: match self.congestion {
                Congestion::Auto => tuning::Congestion::Auto,
                Congestion::Off => tuning::Congestion::Off,
                Congestion::Cubic => tuning::Congestion::Cubic,
                Congestion::Bbr => tuning::Congestion::Bbr,
                Congestion::NewReno => tuning::Congestion::NewReno,
            },
        }
    }
}

fn both_roles() -> Vec<Role> {
    vec![Role::Ingress, Role::Egress]
}

fn address<'de, D: Deserializer<'de>>(input: D) -> Result<Target, D::Error> {
    let text = String::deserialize(input)?;
    text.parse().map_err(|error| {
        de::Error::custom(format!("expected \"host:port\", found {text:?}: {error}"))
    })
}

impl Default for Tunnel {
    fn default() -> Self {
        Self {
            acks: Acks::default(),
            acks_after: TuningRequest::default().after,
            congestion: Congestion::default(),
            mode: Mode::default(),
            transform: Transform::default(),
            forwarded_ids: 64,
            gather: true,
            pad: Pad::default(),
            spare: true,
            quic_retry: Duration::from_secs(10),
            isolated: 64,
            isolated_idle: Duration::from_secs(90),
            datagram_queue: 1 << 20,
        }
    }
}

/// When each end of a hop acknowledges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acks {
    /// What the client sends.
    pub(crate) up: tuning::AckPolicy,
    /// What the relay sends.
    pub(crate) down: tuning::AckPolicy,
}

/// The table.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Table {
    #[serde(deserialize_with = "config::parsed")]
    up: tuning::AckPolicy,
    #[serde(deserialize_with = "config::parsed")]
    down: tuning::AckPolicy,
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
        let Table { up, down } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Acks { up, down })
    }
}

impl<'de> Deserialize<'de> for Acks {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(Either)
    }
}

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
    #[serde(deserialize_with = "config::seconds")]
    pub(crate) build: Duration,
    /// How long a circuit takes new streams, in seconds.
    #[serde(deserialize_with = "config::seconds")]
    pub(crate) lasts: Duration,
    /// How long a circuit may be without streams, in seconds.
    #[serde(deserialize_with = "config::seconds")]
    pub(crate) idle: Duration,
    /// How many isolation tokens may have circuits of their own at once, up to four each. Relays give a client 256 circuits, of which some are ahead or end.
    pub(crate) isolated: usize,
    /// Streams of one circuit at once.
    pub(crate) streams: usize,
    /// How many bytes of one circuit the first relay may send ahead over QUIC: by default 200 Mbit/s where it is 80 ms away. A circuit is no faster.
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
        hoplite_wire::tor::fingerprint(text)
            .map(Self)
            .ok_or(RsaIdError)
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

/// The table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Directory {
    /// The known authorities.
    pub(crate) authorities: Vec<directory::Authority>,
    /// How many of them must have signed the list.
    pub(crate) threshold: usize,
    /// How many of them may be hostile: if it is not said, fewer than a third.
    pub(crate) hostile: directory::Hostile,
    /// The file in which list and guards are kept.
    pub(crate) cache: PathBuf,
    /// How far this machine's clock may be off, in seconds.
    #[serde(deserialize_with = "config::seconds")]
    pub(crate) skew: Duration,
    /// How long authorities may take to answer, in seconds.
    #[serde(deserialize_with = "config::seconds")]
    pub(crate) wait: Duration,
    /// What differs between any two relays of a path.
    #[serde(deserialize_with = "apart")]
    pub(crate) apart: Apart,
    /// The last relay's region, if it matters.
    pub(crate) region: Option<String>,
    /// Whether the first relay is one of a few that are kept.
    pub(crate) guards: bool,
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            authorities: Vec::new(),
            threshold: 0,
            hostile: directory::Hostile::Third,
            cache: "directory.sqlite".into(),
            skew: Duration::from_secs(60),
            wait: Duration::from_secs(20),
            apart: Apart::default(),
            region: None,
            guards: true,
        }
    }
}

impl Directory {
    /// Whom to believe.
    pub(crate) fn trust(&self) -> Trust {
        directory::trust(&self.authorities, self.threshold, self.hostile, self.skew)
    }

    /// Whom to ask.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let sources = self.authorities.iter();
        sources.map(|authority| authority.0.clone()).collect()
    }
}

/// A list of what differs.
fn apart<'de, D: Deserializer<'de>>(input: D) -> Result<Apart, D::Error> {
    let mut apart = Apart::hardly();
    for word in Vec::<String>::deserialize(input)? {
        let which = match word.as_str() {
            "family" => &mut apart.family,
            "operator" => &mut apart.operator,
            "network" => &mut apart.network,
            "region" => &mut apart.region,
            _ => {
                let expected = "expected \"family\", \"operator\", \"network\" and \"region\", or some of them";
                return Err(de::Error::custom(expected));
            }
        };
        *which = true;
    }
    Ok(apart)
}
