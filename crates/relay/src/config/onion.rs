//! `[onion]`: whether the relay carries circuits of Tor's cells beside MASQUE, on the same port number, and how many.
//! Where circuits may end stands in `[egress]`; see `crate::onion`, and docs/operating.md for what it means to open a relay.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use hoplite_config::above_zero;
use hoplite_link::LinkKind;
use hoplite_wire::{
    Protocols, QUIC_CHANNELS, Target,
    tor::{
        AUTHORITIES, FAMILY, Fingerprint, fingerprint,
        server_descriptor::{FAMILY_CERTIFICATES, NICKNAME, is_contact, is_nickname},
    },
};
use serde::Deserialize;

use super::ConfigError;

/// Circuits.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Onion {
    /// Serve circuits. With the role `ingress` they can be extended to other relays, with `egress` they can end here.
    pub enabled: bool,
    /// Serve them although tokens are set: circuits know no tokens, so anybody can build them.
    pub open: bool,
    /// What channels are accepted over and dialled: `"quic"`, `"tls"` (as Tor's relays speak it) or both.
    pub channels: Vec<LinkKind>,
    /// Agree to congestion control (Tor's proposal 324) with clients that ask for it.
    pub congestion_control: bool,
    /// Encrypt relay cells by Counter Galois Onion (Tor's proposal 359) for clients that ask for it, and say so in the descriptor of `[directory]`; needs
    /// `congestion_control`.
    pub cgo: bool,
    /// With the role `egress`: let clients have two circuits that end here carry the same streams (Conflux, Tor's proposal 329), and say so in the descriptor
    /// of `[directory]`. Only with `congestion_control`.
    pub conflux: bool,
    /// With the role `egress`: carry UDP for clients (Tor's proposal 339), and say so in the descriptor of `[directory]`.
    pub udp: bool,
    /// After how many seconds a relay that tells a directory of itself takes another onion key; the last one is accepted for a week
    /// more. 0 is never.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub rotate: Duration,
    /// Circuits of all clients and relays; further ones are refused. Each counts as a request of `[limits]` too.
    pub circuits: usize,
    /// Circuits of those at one address (an IPv6 /56), over all their channels; those of a relay of the directory's list count by its identity, without
    /// this bound. Where all of `circuits` are taken, one of whoever has most goes for one of somebody who has less, the longest idle first.
    pub circuits_per_address: usize,
    /// Circuits on one channel of a client; further ones wait (QUIC) or are refused. The default is what a client's own defaults may come to:
    /// 48 isolation tokens with four circuits each, those ahead, and those that end.
    pub circuits_per_client: u32,
    /// Circuits on one channel of another relay; where they are taken, one of whoever has most of them goes for one of somebody who has less.
    pub circuits_per_relay: u32,
    /// Circuits that one address (an IPv6 /56) may begin, or have extended, at once, on all of its channels; and then this many a second
    /// (`creates_per_second`).
    pub creates: u32,
    /// Circuits that one address may begin, or have extended, each second.
    pub creates_per_second: u32,
    /// Circuits that a relay of the list may begin, or have extended, at once; and then this many a second (`creates_per_relay_and_second`). Nor are
    /// more begun at another relay: of them each client has a part, and who asks now and then comes before who asks all the time.
    pub creates_per_relay: u32,
    /// Circuits that a relay of the list may begin, or have extended, each second.
    pub creates_per_relay_and_second: u32,
    /// Threads that answer the handshakes of circuits (onion skins), beside those that pass cells; 0 is half as many as serve.
    pub skin_threads: usize,
    /// Onion skins that wait to be answered, of all: relays of the list first, then whoever has begun the fewest circuits of late. When more come, the last in
    /// that order are refused.
    pub skins_waiting: usize,
    /// Onion skins of one address that wait.
    pub skins_waiting_per_client: usize,
    /// Bytes that may wait in the circuits of all channels, and in the streams of those that end here; beyond it those are ended that move least for what waits with
    /// whoever has them, those of clients who have more than a sixteenth of it first.
    pub queued: u64,
    /// Over QUIC: bytes of a circuit that may be on their way, each way. While circuits are served over QUIC, tunnels of the port have it as well, instead of
    /// `[limits] stream_window`: what a connection will carry is not known when it begins.
    pub stream_window: u32,
    /// Over QUIC: bytes of all circuits of a channel to another relay that may be on their way, each way; where those that nobody reads fill it they
    /// end. Two channels of each relay of the list have it; others grow with what moves, up to `[limits] connection_window`.
    pub connection_window: u32,
    /// Streams to targets of one circuit. Each counts as a request of `[limits]` too, of the address that the channel comes from.
    pub streams: usize,
    /// Seconds that a small piece of what a target sends waits for more of it, so that they share a cell.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub share: Duration,
    /// Streams to targets, and look-ups, of all circuits on one channel of a client.
    pub streams_per_client: usize,
    /// The same on one channel of another relay.
    pub streams_per_relay: usize,
    /// Introduce clients to onion services, and join them to each other. Neither sees an address of the other, nor does this relay.
    pub services: bool,
    /// Clients that one service that has not said how many it wants is introduced to at once.
    pub introductions: u32,
    /// And each second.
    pub introductions_per_second: u32,
    /// Keep descriptors that onion services publish, and give them to who knows their blinded key; say so in the descriptor of `[directory]`.
    pub hsdir: bool,
    /// Descriptors that are kept at once; beyond it one goes that nobody has asked for, by lot.
    pub hsdir_descriptors: usize,
    /// Bytes of descriptors that are kept at once.
    pub hsdir_bytes: usize,
    /// Descriptors that are taken at once; and then this many a second (`hsdir_publishes_per_second`). Each relay or client that they come from has a
    /// part.
    pub hsdir_publishes: u32,
    /// Descriptors that are taken each second.
    pub hsdir_publishes_per_second: u32,
    /// Requests for descriptors, and to keep one, that are open at once; nobody has more of them than are free for others.
    pub hsdir_streams: usize,
    /// Requests to the directory cache (`onion.tor.directory_cache`) that are open at once; nobody has more of them than are free for others.
    pub directory_streams: usize,
    /// Bytes of documents that it gives at once; and then this many a second (`directory_bytes_per_second`). Each relay or client that asks has a part.
    pub directory_bytes: usize,
    /// Bytes of documents that it gives each second.
    pub directory_bytes_per_second: usize,
    /// Other relays that channels are kept to, and that are remembered as not answering. For one more, one goes that the directory's list does not
    /// have, or that is idle.
    pub relays: usize,
    /// How many of them that are not in the list may be at one address (an IPv6 /64).
    pub relays_per_address: usize,
    /// Pad channels of clients that rest, unless they ask for none.
    pub padding: bool,
    /// How many relays that are not in the list may be dialled at once; and then this many a second (`dials_per_second`). Circuits that are to be
    /// extended to further ones are refused.
    pub dials: u32,
    /// How many relays that are not in the list may be dialled each second.
    pub dials_per_second: u32,
    /// The same at one address (an IPv6 /64): this many at once.
    pub dials_per_address: u32,
    /// And then this many each second.
    pub dials_per_address_and_second: u32,
    /// Seconds that the next relay has to answer, and a target.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub patience: Duration,
    /// Seconds for which a relay that did not answer is not dialled again: circuits that are to be extended to it fail at once in the meantime. 0 is not at
    /// all.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub unanswered: Duration,
    /// Seconds until a channel without circuits is closed.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_channel: Duration,
    /// How circuits share a channel, where the lab asks for a rival of what is right. Programs that are not built for the lab refuse the key.
    pub rival: Option<hoplite_channel::Rival>,
    /// Whether it is a relay of a network of Tor's, in the consensus of its authorities.
    pub tor: Option<Tor>,
}

/// A network of Tor's, whose authorities are told of the relay.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tor {
    /// Each authority, to which the server descriptor is handed in.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub authorities: Vec<TorAuthority>,
    /// Who runs the relay, in one line that everybody can read.
    #[serde(default)]
    pub contact: Option<String>,
    /// Be a directory cache, for which the authorities' v3 identities are needed. By default: where all of them are named.
    #[serde(default)]
    pub directory_cache: Option<bool>,
    /// RSA identities of other relays of the same operator; each of them must name this one too.
    #[serde(default, deserialize_with = "hoplite_config::list")]
    pub family: Vec<Fingerprint>,
    /// Files of the keys of the families that the relay is of (proposal 321).
    #[serde(default)]
    pub family_keys: Vec<PathBuf>,
}

/// An authority of a network of Tor's: `HOST:PORT`, or `FINGERPRINT@HOST:PORT`.
#[derive(Clone, PartialEq, Eq)]
pub struct TorAuthority {
    /// SHA-1 of its v3 identity key, if it is named.
    pub identity: Option<[u8; 20]>,
    /// Its DirPort.
    pub address: Target,
}

/// The text names no authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorAuthorityError;

impl FromStr for TorAuthority {
    type Err = TorAuthorityError;

    fn from_str(text: &str) -> Result<Self, TorAuthorityError> {
        let (identity, address) = match text.split_once('@') {
            Some((identity, address)) => (
                Some(fingerprint(identity).ok_or(TorAuthorityError)?),
                address,
            ),
            None => (None, text),
        };
        let address = address.parse().map_err(|_| TorAuthorityError)?;
        Ok(Self { identity, address })
    }
}

impl fmt::Display for TorAuthorityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = "expected \"HOST:PORT\" or \"FINGERPRINT@HOST:PORT\": 40 hexadecimal digits, the authority's v3ident in C tor, and its DirPort";
        f.write_str(expected)
    }
}

impl fmt::Debug for TorAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TorAuthority(hidden)")
    }
}

impl Tor {
    /// Whether the relay is a directory cache.
    pub fn caches(&self) -> bool {
        self.directory_cache.unwrap_or_else(|| self.names_all())
    }

    /// Whether a consensus can be checked.
    fn names_all(&self) -> bool {
        self.authorities.iter().all(|one| one.identity.is_some())
    }
}

impl Default for Onion {
    fn default() -> Self {
        Self {
            enabled: false,
            open: false,
            channels: vec![LinkKind::Quic, LinkKind::Tls],
            congestion_control: true,
            cgo: true,
            conflux: true,
            udp: true,
            rotate: Duration::from_secs(28 * 24 * 3600),
            circuits: 65_536,
            circuits_per_address: 8192,
            circuits_per_client: 256,
            circuits_per_relay: 1024,
            creates: 400,
            creates_per_second: 200,
            creates_per_relay: 1600,
            creates_per_relay_and_second: 800,
            skin_threads: 0,
            skins_waiting: 2048,
            skins_waiting_per_client: 128,
            queued: 1 << 30,
            stream_window: 8 << 20,
            connection_window: 256 << 20,
            streams: 512,
            share: Duration::ZERO,
            streams_per_client: 4096,
            streams_per_relay: 16_384,
            services: true,
            introductions: 200,
            introductions_per_second: 25,
            hsdir: false,
            hsdir_descriptors: 8192,
            hsdir_bytes: 128 << 20,
            hsdir_publishes: 400,
            hsdir_publishes_per_second: 40,
            hsdir_streams: 512,
            directory_streams: 512,
            directory_bytes: 64 << 20,
            directory_bytes_per_second: 4 << 20,
            relays: 4096,
            relays_per_address: 64,
            padding: true,
            dials: 512,
            dials_per_second: 64,
            dials_per_address: 32,
            dials_per_address_and_second: 1,
            patience: Duration::from_secs(30),
            unanswered: hoplite_channel::FAILED_DIAL_TTL,
            idle_channel: Duration::from_secs(180),
            rival: None,
            tor: None,
        }
    }
}

impl Onion {
    /// Which subprotocols of Tor it speaks with clients, of those that circuits choose by; `exit`: it connects to targets.
    pub fn protocols(&self, exit: bool) -> Protocols {
        let wanted = [
            (Protocols::CGO, self.cgo && self.congestion_control),
            (
                Protocols::CONFLUX,
                exit && self.conflux && self.congestion_control,
            ),
            (Protocols::DATAGRAM, exit && self.udp),
        ];
        let spoken = wanted.into_iter().filter(|(_, spoken)| *spoken);
        spoken.fold(Protocols::NONE, |all, (one, _)| all | one)
    }

    /// All subprotocols of Tor that it speaks as a relay, as a server descriptor says them; `exit`: it connects to targets. tor-spec "Subprotocol
    /// versioning". Not among them are TAP (`Relay=1`) and padding machines (`Padding=2`); one is ours, [`QUIC_CHANNELS`].
    pub fn subprotocols(&self, exit: bool) -> String {
        let agreed = self.protocols(exit);
        let (flow, relay) = match (self.congestion_control, agreed.has(Protocols::CGO)) {
            (false, _) => ("1", "2-4"),
            (true, false) => ("1-2", "2-4"),
            (true, true) => ("1-2", "2-6"),
        };
        let all = [
            ("Conflux", agreed.has(Protocols::CONFLUX), "1"),
            ("Cons", true, "1-2"),
            ("Desc", true, "1-2"),
            ("DirCache", self.tor.as_ref().is_some_and(Tor::caches), "2"),
            ("FlowCtrl", true, flow),
            ("HSDir", self.hsdir, "2"),
            ("HSIntro", self.services, "4-5"),
            ("HSRend", self.services, "1-2"),
            ("Link", true, "4-5"),
            ("LinkAuth", true, "3"),
            ("Microdesc", true, "1-2"),
            ("Relay", true, relay),
            (QUIC_CHANNELS, self.has(LinkKind::Quic), "1"),
        ];
        let spoken = all.iter().filter(|(_, spoken, _)| *spoken);
        let spoken: Vec<_> = spoken
            .map(|(name, _, versions)| format!("{name}={versions}"))
            .collect();
        spoken.join(" ")
    }

    /// Whether channels run over this.
    pub(crate) fn has(&self, carrier: LinkKind) -> bool {
        self.channels.contains(&carrier)
    }

    /// What the relay says to Tor's authorities must be such that they take it. `name` is the relay's, `addresses` are where it is reached.
    pub(super) fn check_tor(
        &self,
        name: &str,
        addresses: &[SocketAddr],
    ) -> Result<(), ConfigError> {
        let Some(tor) = &self.tor else {
            return Ok(());
        };
        let wrong = |key, problem: &str| Err(ConfigError::new(key, problem));
        if !self.enabled || !self.has(LinkKind::Tls) {
            let problem = "relays of Tor's network speak TLS: set onion.enabled = true, with \"tls\" among onion.channels";
            return wrong("onion.tor", problem);
        }
        if !(1..=AUTHORITIES).contains(&tor.authorities.len()) {
            return wrong("onion.tor.authorities", "expected 1 to 64 authorities");
        }
        if tor.directory_cache == Some(true) && !tor.names_all() {
            let problem = "a consensus is believed by who has signed it: name each of `authorities` with its v3 identity, FINGERPRINT@HOST:PORT";
            return wrong("onion.tor.directory_cache", problem);
        }
        if tor.contact.as_deref().is_some_and(|text| !is_contact(text)) {
            let problem = "expected one line of up to 256 printable ASCII characters";
            return wrong("onion.tor.contact", problem);
        }
        if tor.family.len() > FAMILY {
            return wrong("onion.tor.family", "expected at most 512 relays");
        }
        if tor.family_keys.len() > FAMILY_CERTIFICATES {
            return wrong("onion.tor.family_keys", "expected at most three keys");
        }
        if !is_nickname(name) {
            let problem = format!(
                "with [onion.tor] the name is a nickname of Tor's: expected 1 to {NICKNAME} letters and digits"
            );
            return wrong("name", &problem);
        }
        let reached = |address: &&SocketAddr| address.is_ipv4() && !address.ip().is_unspecified();
        if addresses.iter().find(reached).is_none() {
            let problem = "with [onion.tor] an IPv4 address is needed at which everybody reaches the relay: `listen` does not say it";
            return wrong("directory.addresses", problem);
        }
        Ok(())
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
            ("onion.creates_per_relay", self.creates_per_relay == 0),
            (
                "onion.creates_per_relay_and_second",
                self.creates_per_relay_and_second == 0,
            ),
            ("onion.skins_waiting", self.skins_waiting == 0),
            (
                "onion.skins_waiting_per_client",
                self.skins_waiting_per_client == 0,
            ),
            ("onion.queued", self.queued == 0),
            ("onion.streams", self.streams == 0),
            ("onion.streams_per_client", self.streams_per_client == 0),
            ("onion.streams_per_relay", self.streams_per_relay == 0),
            ("onion.hsdir_descriptors", self.hsdir_descriptors == 0),
            ("onion.hsdir_bytes", self.hsdir_bytes == 0),
            ("onion.hsdir_publishes", self.hsdir_publishes == 0),
            (
                "onion.hsdir_publishes_per_second",
                self.hsdir_publishes_per_second == 0,
            ),
            ("onion.hsdir_streams", self.hsdir_streams == 0),
            ("onion.directory_streams", self.directory_streams == 0),
            ("onion.directory_bytes", self.directory_bytes == 0),
            (
                "onion.directory_bytes_per_second",
                self.directory_bytes_per_second == 0,
            ),
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
        above_zero(&zeros)?;
        if self.stream_window < 65_536 {
            let problem = "expected at least 65536 bytes";
            return Err(ConfigError::new("onion.stream_window", problem));
        }
        // An eighth may be of circuits that nobody reads: of one at least.
        if u64::from(self.connection_window) < 8 * u64::from(self.stream_window) {
            let problem = "expected at least eight times onion.stream_window";
            return Err(ConfigError::new("onion.connection_window", problem));
        }
        if self.share > Duration::from_secs(1) {
            return Err(ConfigError::new("onion.share", "expected 0 to 1 second"));
        }
        let short = !self.rotate.is_zero() && self.rotate < Duration::from_secs(24 * 3600);
        if short {
            Err(ConfigError::new(
                "onion.rotate",
                "expected 0 or at least 86400 seconds: clients learn of a new key from the directory, which takes hours",
            ))
        } else {
            Ok(())
        }
    }
}
