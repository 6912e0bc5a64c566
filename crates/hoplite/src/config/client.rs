//! The client's file: which relays, which path over them, where programs come in.
//! `hoplite client` and `hoplite check` use it; every key is explained in `examples/client.toml`, which a test holds equal to the defaults.

mod acks;
mod checks;
pub(crate) mod directory;
pub(crate) mod onion;
pub(crate) mod takeover;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use hoplite_crypto::{Pin, Token};
use hoplite_masque::Candidate;
use hoplite_mediator::{config as front, tun};
use hoplite_wire::{
    OnionKey, Target,
    tuning::{self, Wishes},
};
use serde::Deserialize;

pub(crate) use self::acks::Acks;
use super::{locate::Document, text};
use crate::errors::{Complaint, Failure};

/// A path of nested hops has at most so many relays.
const LONGEST_PATH: usize = 4;

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
    #[serde(deserialize_with = "text::token")]
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
    pub(crate) onion: onion::Onion,
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
    pub(crate) directory: Option<directory::Directory>,
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
    #[serde(default, deserialize_with = "text::parsed_option")]
    pub(crate) pin: Option<Pin>,
    /// Its identity and its onion key; circuits need it.
    #[serde(default, deserialize_with = "text::parsed_option")]
    pub(crate) onion: Option<OnionKey>,
    /// Its RSA identity, if it is a relay of Tor.
    #[serde(default, deserialize_with = "text::parsed_option")]
    pub(crate) rsa: Option<onion::RsaId>,
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
    #[serde(default, deserialize_with = "text::token")]
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
    #[serde(deserialize_with = "text::seconds")]
    pub(crate) quic_retry: Duration,
    /// How many isolation tokens may have connections of their own at once.
    pub(crate) isolated: usize,
    /// Whether a path stands ready for the next one.
    pub(crate) spare: bool,
    /// How long such a connection may be unused, in seconds.
    #[serde(deserialize_with = "text::seconds")]
    pub(crate) isolated_idle: Duration,
    /// Octets of datagrams kept for a flow whose reader is slow.
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

/// A relay that the path uses, with what is needed to reach it.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    /// The relay.
    pub(crate) relay: Relay,
    /// What is shown to it.
    pub(crate) token: Option<Token>,
}

/// A file that was read and checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    /// What the file says.
    pub(crate) config: Config,
    /// Every relay with its token, in the file's order.
    pub(crate) relays: Vec<Hop>,
    /// What is shown to relays that have no token of their own.
    pub(crate) token: Option<Token>,
    /// The list that the relays are from, if they are from one.
    pub(crate) listed: Option<crate::listed::Listed>,
    /// Who keeps what the directory's cache would.
    pub(crate) keeper: Option<crate::listed::Keeper>,
    /// What is allowed, but probably not meant.
    pub(crate) warnings: Vec<String>,
}

/// Reads and checks a client's file.
pub(crate) fn read(document: &Document) -> Result<Client, Failure> {
    let mut config: Config = super::value(document)?;
    if let Some(directory) = &mut config.directory {
        directory.cache = super::beside(document.path(), &directory.cache);
    }
    let mut complaints = checks::complaints(&config, document);
    let (token, relays) = with_tokens(&config, document, &mut complaints);
    match complaints.is_empty() {
        true => Ok(Client {
            warnings: checks::warnings(&config),
            config,
            relays,
            token,
            listed: None,
            keeper: None,
        }),
        false => Err(complaints.into()),
    }
}

fn with_tokens(
    config: &Config,
    document: &Document,
    complaints: &mut Vec<Complaint>,
) -> (Option<Token>, Vec<Hop>) {
    let mut read = |token: &Option<Token>, file: &Option<PathBuf>, key: &str| {
        token_of(token, file, key, document).unwrap_or_else(|complaint| {
            complaints.push(complaint);
            None
        })
    };
    let shared = read(&config.token, &config.token_file, "token_file");
    let hop = |(i, relay): (usize, &Relay)| {
        let key = format!("relay[{i}].token_file");
        let token = read(&relay.token, &relay.token_file, &key);
        Hop {
            relay: relay.clone(),
            token: token.or_else(|| shared.clone()),
        }
    };
    let hops = config.relay.iter().enumerate().map(hop).collect();
    (shared, hops)
}

fn token_of(
    token: &Option<Token>,
    file: &Option<PathBuf>,
    key: &str,
    document: &Document,
) -> Result<Option<Token>, Complaint> {
    let Some(file) = file else {
        return Ok(token.clone());
    };
    if token.is_some() {
        let why = "a token and a file of it are both given";
        return Err(document.complain(key, why, "keep one of them"));
    }
    let path = super::beside(document.path(), file);
    let refused = |why: String| {
        document.complain(
            key,
            format!("{}: {why}", path.display()),
            "correct the file",
        )
    };
    let text = std::fs::read_to_string(&path).map_err(|error| refused(error.to_string()))?;
    let token = text::trimmed(text).ok_or_else(|| refused("there is no token in it".into()))?;
    Ok(Some(token))
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

    /// How many relays a path may have.
    pub(crate) fn longest(&self) -> usize {
        match self.is_onion() {
            true => onion::LONGEST_PATH,
            false => LONGEST_PATH,
        }
    }

    /// How many relays the traffic passes.
    pub(crate) fn length(&self) -> usize {
        match self.path.len() {
            _ if self.is_direct() => 0,
            0 if self.is_onion() => self.hops.unwrap_or(onion::HOPS),
            0 => self.hops.unwrap_or(0),
            given => given,
        }
    }
}

impl Tunnel {
    /// What the client asks of each relay.
    pub(crate) fn wishes(&self) -> Wishes {
        Wishes {
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

fn address<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Target, D::Error> {
    let text = String::deserialize(input)?;
    text.parse().map_err(|error| {
        serde::de::Error::custom(format!("expected \"host:port\", found {text:?}: {error}"))
    })
}

impl Default for Tunnel {
    fn default() -> Self {
        Self {
            acks: Acks::default(),
            acks_after: Wishes::default().after,
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

/// Reads the file at `path`.
pub(crate) fn load(path: &Path) -> Result<Client, Failure> {
    read(&super::open(path)?)
}

/// What choosing a path needs to know of a relay.
pub(crate) fn candidate(relay: &Relay) -> Candidate {
    Candidate {
        ingress: relay.roles.contains(&Role::Ingress),
        egress: relay.roles.contains(&Role::Egress),
        operator: relay.operator.clone(),
        region: relay.region.clone(),
    }
}
