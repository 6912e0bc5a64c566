//! The tables of the client's file: which relays, which path over them, how circuits are built, where programs come in. Every key is explained in
//! `examples/client.toml`, which a test holds equal to the defaults.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use hoplite_crypto::{Pin, Token};
use hoplite_directory::{
    Trust, VanguardsMode,
    path_selection::{Apart, Network, PathConstraints},
    tor,
};
use hoplite_masque::{self as masque, MAX_HOPS, Mode};
use hoplite_mediator::{config as front, tun};
use hoplite_onion::path::MOST_HOPS;
use hoplite_relay::config::Role;
use hoplite_wire::{
    OnionKey, Protocols, Target,
    directory::{Descriptor, Key, Roles, Source},
};
use serde::{Deserialize, Deserializer, de};

use super::{scan::Scan, service::Service, takeover};
use crate::config::{self, directory};

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// What carries the traffic.
    pub(crate) overlay: OverlayChoice,
    /// The relays that may be used.
    pub(crate) relay: Vec<Relay>,
    /// Their names in order, the first hop first. Either this or `hops`.
    pub(crate) path: Vec<String>,
    /// This many relays, chosen at random. Either this or `path`.
    pub(crate) hops: Option<usize>,
    /// Whether flows of different users share no connection beyond the first relay.
    pub(crate) isolate_users: bool,
    /// Other paths, for the names of some domains.
    pub(crate) route: Vec<Route>,
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
    pub(crate) tunnel: masque::Config,
    /// How circuits are built.
    pub(crate) onion: hoplite_onion::Config,
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
    /// Who issues private tokens for relays.
    pub(crate) issuer: Vec<Issuer>,
    /// Onion services of this device.
    pub(crate) service: Vec<Service>,
    /// What `hoplite directory scan` measures.
    pub(crate) scan: Option<Scan>,
}

/// Another path for the names of some domains.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Route {
    /// Names and all below them.
    pub(crate) domains: Vec<takeover::Domain>,
    /// The relays in order, the first hop first. Either this or `hops`.
    pub(crate) path: Vec<String>,
    /// This many relays, chosen at random. Either this or `path`.
    pub(crate) hops: Option<usize>,
}

/// One issuer of private tokens, and the stock of them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Issuer {
    /// Its name, as relays that take its tokens have it.
    pub(crate) name: String,
    /// Host and port.
    #[serde(deserialize_with = "address")]
    pub(crate) address: Target,
    /// Its public key's digest; without one its certificate must be signed by a public authority.
    #[serde(default, deserialize_with = "hoplite_config::parsed_option")]
    pub(crate) pin: Option<Pin>,
    /// Shown to it, and to no relay: whose account it is.
    #[serde(default, deserialize_with = "config::token")]
    pub(crate) token: Option<Token>,
    /// A file that holds it, which is read again whenever it is shown.
    #[serde(default)]
    pub(crate) token_file: Option<PathBuf>,
    /// The file of the tokens that are not spent yet.
    #[serde(default = "Issuer::default_stock")]
    pub(crate) stock: PathBuf,
    /// How many tokens are kept for each name that relays take them for; when half are left, more are asked for.
    #[serde(default = "Issuer::default_keep")]
    pub(crate) keep: usize,
}

impl Issuer {
    fn default_stock() -> PathBuf {
        "tokens.sqlite".into()
    }

    const fn default_keep() -> usize {
        16
    }
}

/// What carries the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OverlayChoice {
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
    #[serde(default, deserialize_with = "hoplite_config::parsed_option")]
    pub(crate) pin: Option<Pin>,
    /// Its identity and its onion key; circuits need it.
    #[serde(default, deserialize_with = "hoplite_config::parsed_option")]
    pub(crate) onion: Option<OnionKey>,
    /// Its RSA identity, if it is a relay of Tor.
    #[serde(default, deserialize_with = "hoplite_config::parsed_option")]
    pub(crate) rsa: Option<RsaId>,
    /// Which other subprotocols of Tor it speaks.
    #[serde(default, deserialize_with = "hoplite_config::parsed_option")]
    pub(crate) protocols: Option<Protocols>,
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
    /// The issuer whose tokens it takes, each for one connection.
    #[serde(default)]
    pub(crate) issuer: Option<String>,
    /// The name that it takes them for, alone or with others; its own if absent.
    #[serde(default)]
    pub(crate) origin: Option<String>,
    /// How packets pass it; as `[tunnel]` says if absent.
    #[serde(default)]
    pub(crate) mode: Option<Mode>,
}

impl Config {
    /// What the front ends are told.
    pub(crate) fn front(&self) -> front::Config {
        // Whoever asks for what is not carried is told at once.
        let udp = self.socks.udp && (!self.is_onion() || self.may_carry_datagrams());
        front::Config {
            socks: front::Socks {
                udp,
                ..self.socks.clone()
            },
            http: self.http.clone(),
            limits: self.limits.clone(),
            isolate_users: self.isolate_users,
        }
    }

    /// What the transparent front end is told.
    pub(crate) fn transparent(&self) -> tun::Config {
        tun::Config {
            device: tun::config::Device {
                isolate_users: self.isolate_users,
                ..self.device.clone()
            },
            flows: self.flows.clone(),
            dns: self.dns.clone(),
        }
    }

    /// Names that have a way of their own are told apart, wherever programs ask for names.
    pub(crate) fn ways_of_names(&self, dns: &mut tun::config::Dns) {
        let domains = takeover::Domains::of(self);
        dns.by_name = domains.included();
        dns.leaves_others = domains.only().is_some();
    }

    /// Whether no relay is used at all.
    pub(crate) fn is_direct(&self) -> bool {
        self.overlay == OverlayChoice::Direct
    }

    /// Whether circuits may carry UDP: their last relays are chosen, or named and said to carry it.
    fn may_carry_datagrams(&self) -> bool {
        let last = self.path.last();
        let named = last.and_then(|last| self.relay.iter().find(|relay| relay.name == *last));
        let protocols = named.map(|relay| relay.protocols.unwrap_or_default());
        protocols.is_none_or(|protocols| protocols.has(Protocols::DATAGRAM))
    }

    /// Whether circuits carry the traffic.
    pub(crate) fn is_onion(&self) -> bool {
        self.overlay == OverlayChoice::Onion
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
            tokens: None,
            hsdir: false,
            cache: None,
            protocols: Protocols::NONE,
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

/// The relays of a circuit that are chosen from a list, if the file does not say how many.
pub(crate) const HOPS: usize = 3;

/// The RSA identity of a relay of Tor: 40 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RsaId(pub(crate) [u8; 20]);

/// The text is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RsaIdError;

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
    /// Tor's own directory instead, for `overlay = "onion"`.
    pub(crate) tor: Option<TorDirectory>,
    /// The known authorities.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub(crate) authorities: Vec<Source>,
    /// Relays that keep the list, which are asked for the first one before the authorities are.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub(crate) caches: Vec<SocketAddr>,
    /// How many of them must have signed the list.
    pub(crate) threshold: usize,
    /// How many of them may be hostile: if it is not said, fewer than a third.
    #[serde(deserialize_with = "hoplite_config::or_third")]
    pub(crate) hostile: Option<usize>,
    /// The file in which list and guards are kept.
    pub(crate) cache: PathBuf,
    /// How far this machine's clock may be off, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) skew: Duration,
    /// How long authorities may take to answer, in seconds.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) wait: Duration,
    /// What differs between any two relays of a path.
    #[serde(deserialize_with = "apart")]
    pub(crate) apart: Apart,
    /// The last relay's region, if it matters.
    pub(crate) region: Option<String>,
    /// Whether the first relay is one of a few that are kept.
    pub(crate) guards: bool,
    /// Whether a guard is used no longer whose circuits fail so often that it may choose which.
    pub(crate) give_up_guards: bool,
    /// The relays behind the guard of onion services' circuits.
    pub(crate) vanguards: Layers,
}

/// How many layers of vanguards there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Layers {
    /// The second.
    #[default]
    Lite,
    /// The second and the third.
    Full,
}

impl From<Layers> for VanguardsMode {
    fn from(layers: Layers) -> Self {
        match layers {
            Layers::Lite => Self::Lite,
            Layers::Full => Self::Full,
        }
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            tor: None,
            authorities: Vec::new(),
            caches: Vec::new(),
            threshold: 0,
            hostile: None,
            cache: "directory.sqlite".into(),
            skew: Duration::from_secs(60),
            wait: Duration::from_secs(20),
            apart: Apart::default(),
            region: None,
            guards: true,
            give_up_guards: true,
            vanguards: Layers::Lite,
        }
    }
}

impl Directory {
    /// Whom to believe.
    pub(crate) fn trust(&self) -> Trust {
        directory::trust(&self.authorities, self.threshold, self.hostile, self.skew)
    }
}

/// `[directory.tor]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TorDirectory {
    /// The known authorities; more than half of them must have signed the consensus.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub(crate) authorities: Vec<TorAuthority>,
    /// Its relays have `TestingTorNetwork 1`: periods of onion services are as short as its votes.
    pub(crate) testing: bool,
}

impl TorDirectory {
    /// Whom to believe.
    pub(crate) fn trust(&self, skew: Duration) -> tor::Trust {
        tor::Trust {
            authorities: self.authorities.iter().map(|one| one.identity).collect(),
            skew: skew.as_secs(),
        }
    }
}

/// An authority of Tor's network, `FINGERPRINT@ADDRESS:PORT`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TorAuthority {
    /// SHA-1 of its v3 identity key.
    pub(crate) identity: [u8; 20],
    /// Its DirPort.
    pub(crate) address: SocketAddr,
}

/// The text names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TorAuthorityError;

impl FromStr for TorAuthority {
    type Err = TorAuthorityError;

    fn from_str(text: &str) -> Result<Self, TorAuthorityError> {
        let (identity, address) = text.split_once('@').ok_or(TorAuthorityError)?;
        Ok(Self {
            identity: hoplite_wire::tor::fingerprint(identity).ok_or(TorAuthorityError)?,
            address: address.parse().map_err(|_| TorAuthorityError)?,
        })
    }
}

impl fmt::Display for TorAuthorityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = "expected \"FINGERPRINT@ADDRESS:PORT\": 40 hexadecimal digits, its v3ident in C tor, and its DirPort";
        f.write_str(expected)
    }
}

impl fmt::Debug for TorAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TorAuthority(hidden)")
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
