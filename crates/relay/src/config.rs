//! The relay's configuration, as its TOML file has it: every field documented, with its unit and its default.
//! The binary reads the file and hands the value to [`Relay::start`](crate::Relay::start); embedders build it by hand.
//! Keys are a contract with users (docs/command-line.md): extend, do not rename.

use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

use hoplite_crypto::{Pin, is_relay_name};
use hoplite_tokens::SpentOptions;
use hoplite_wire::{
    Host, Target,
    special::TRANSLATION_PREFIXES,
    tuning::{AckPolicy, Congestion, TuningGrant},
};
use ipnet::{IpNet, Ipv6Net};
use serde::Deserialize;
use zeroize::Zeroizing;

mod bound_udp;
mod directory;
mod fleet;
mod forwarding;
mod ip;
mod limits;
mod onion;
mod pool;
mod spent_store;
mod text;

pub use bound_udp::BoundUdp;
pub use directory::{CacheLimits, Directory};
pub use fleet::Fleet;
pub use forwarding::{Forwarding, KernelMode};
pub use hoplite_config::ConfigError;
pub use hoplite_http::h3::Share;
pub use hoplite_link::{LinkKind, Pad};
pub use ip::Ip;
pub use limits::{Limits, RELOADED_LIMITS};
pub use onion::{Onion, Tor, TorAuthority, TorAuthorityError};
pub use pool::Pool;
pub use spent_store::SpentStore;

use crate::policy::Rule;

/// The relay's configuration file: everything a relay is told. `Default` is the default of each key, as `examples/relay.toml` shows it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What the relay calls itself in `Proxy-Status` answers; clients see it.
    pub name: String,
    /// Where to listen, UDP and TCP alike. `[::]` takes IPv4 too.
    pub listen: Vec<SocketAddr>,
    /// What the relay does.
    pub roles: Vec<Role>,
    /// The directory of the identity (certificate and key), as seen from the configuration file.
    pub identity: PathBuf,
    /// A certificate of a public authority instead of the pinned self-signed one.
    pub tls: Option<Tls>,
    /// Who may use the relay.
    pub auth: Auth,
    /// Where targets may be.
    pub egress: Egress,
    /// Which relays come next.
    pub ingress: Ingress,
    /// How UDP and TCP tunnels are asked for.
    pub masque: Masque,
    /// How the connections of clients are carried.
    pub tunnel: Tunnel,
    /// Which relay this is of those that share a name.
    pub fleet: Option<Fleet>,
    /// Whether clients' packets may pass the connection by.
    pub forwarding: Forwarding,
    /// Whether UDP flows may have a public address of their own.
    pub bound_udp: BoundUdp,
    /// Whether IP packets are carried.
    pub ip: Ip,
    /// Whether circuits are carried.
    pub onion: Onion,
    /// How much of everything.
    pub limits: Limits,
    /// What is counted, and where it can be read.
    pub metrics: MetricsConfig,
    /// What the relay says of itself, and to whom.
    pub directory: Directory,
}

/// What a relay does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Forwards to the relays of `[ingress]`, and without the other role to nothing else.
    Ingress,
    /// Connects to targets that `[egress]` permits, and resolves their names.
    Egress,
}

/// A certificate from elsewhere, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate chain, the relay's own first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Who may use the relay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// Serve everybody although no token is set and the relay listens beyond loopback.
    pub open: bool,
    /// The tokens that are accepted, each with a name for the operator.
    pub token: Vec<TokenEntry>,
    /// Tokens that nobody can link, each for one connection.
    pub private_tokens: Option<PrivateTokens>,
}

impl Auth {
    /// Whether a client needs a token, of whichever kind.
    pub fn is_closed(&self) -> bool {
        !self.token.is_empty() || self.private_tokens.is_some()
    }
}

/// Tokens of an issuer that says who may have them, and that learns nothing of where they are spent (Privacy Pass, RFC 9577).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivateTokens {
    /// The issuer's name, as clients write it.
    pub issuer: String,
    /// What tokens are for: a name of this relay, or of a fleet whose relays share what is spent.
    pub origin: String,
    /// A file with the issuer's directory of keys (RFC 9578 §4), which verify tokens of blind RSA; read again when the relay is told to reload.
    #[serde(default)]
    pub keys: Option<PathBuf>,
    /// The file that the issuer writes for relays of its operator instead, with the secret keys by which tokens of the VOPRF are verified. Not open to
    /// everybody; read again as `keys` is.
    #[serde(default)]
    pub secrets: Option<PathBuf>,
    /// Where the issuer publishes it: whoever runs the relay fetches it from there, and keeps it in that file, which need not be there at first.
    #[serde(default)]
    pub directory: Option<String>,
    /// The digest of the public key that the issuer shows there; without one its certificate must be signed by a public authority.
    #[serde(default, deserialize_with = "hoplite_config::parsed_option")]
    pub pin: Option<Pin>,
    /// After how many seconds at most it is fetched again.
    #[serde(
        default = "PrivateTokens::default_refresh",
        deserialize_with = "hoplite_config::seconds"
    )]
    pub refresh: Duration,
    /// The file of the tokens that are spent, for relays of one host; `spent.sqlite` unless there is a `store`.
    #[serde(default)]
    pub spent: Option<PathBuf>,
    /// A server that keeps them instead, for relays of several hosts.
    #[serde(default)]
    pub store: Option<SpentStore>,
    /// For how many seconds marking one may take, in the file or by the server; whoever waits longer does not know whether it is spent.
    #[serde(
        default = "PrivateTokens::default_deadline",
        deserialize_with = "hoplite_config::seconds"
    )]
    pub deadline: Duration,
    /// How many may wait to be marked; who comes then does not know either.
    #[serde(default = "PrivateTokens::default_queue")]
    pub queue: usize,
    /// For how many seconds a token admits further connections at this relay, for programs that cannot take a fresh one for each; 0 is not at all.
    #[serde(default, deserialize_with = "hoplite_config::seconds")]
    pub again: Duration,
    /// While nobody knows what is spent, so many connections a second are let in by tokens that may be; 0 is none.
    #[serde(default)]
    pub unchecked: u32,
}

impl PrivateTokens {
    const fn default_refresh() -> Duration {
        Duration::from_secs(24 * 3600)
    }

    fn default_deadline() -> Duration {
        SpentOptions::default().deadline
    }

    fn default_queue() -> usize {
        SpentOptions::default().queue
    }

    /// The file of spent tokens, where there is no server.
    pub fn spent(&self) -> PathBuf {
        let named = self.spent.clone();
        named.unwrap_or_else(|| "spent.sqlite".into())
    }

    fn check(&self) -> Result<(), ConfigError> {
        for (key, name) in [
            ("auth.private_tokens.issuer", &self.issuer),
            ("auth.private_tokens.origin", &self.origin),
        ] {
            if name.is_empty() || name.len() > 255 || name.contains(',') {
                let problem = "expected a name of 1 to 255 characters without a comma";
                return Err(ConfigError::new(key, problem));
            }
        }
        if self.keys.is_some() == self.secrets.is_some() {
            let problem = "expected either `keys` or `secrets`";
            return Err(ConfigError::new("auth.private_tokens.keys", problem));
        }
        let address = self.directory.as_deref();
        if address.is_some() && self.secrets.is_some() {
            let problem = "what is published has no secret keys: the issuer writes `secrets` itself; take `directory` away";
            return Err(ConfigError::new("auth.private_tokens.directory", problem));
        }
        if address.is_some_and(|address| !address.starts_with("https://")) {
            let problem = "expected the https:// address of the issuer";
            return Err(ConfigError::new("auth.private_tokens.directory", problem));
        }
        if address.is_none() && self.pin.is_some() {
            let problem = "nothing is fetched without `directory`: add it, or take this key away";
            return Err(ConfigError::new("auth.private_tokens.pin", problem));
        }
        // A key is published for an hour at least before it is used.
        if !(Duration::from_secs(1)..=Duration::from_secs(604_800)).contains(&self.refresh) {
            let problem = "expected 1 to 604800 seconds";
            return Err(ConfigError::new("auth.private_tokens.refresh", problem));
        }
        if self.store.is_some() && self.spent.is_some() {
            let problem = "what is spent is in this file or with the server of `store`: take one of the two keys away";
            return Err(ConfigError::new("auth.private_tokens.spent", problem));
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&self.deadline) {
            let problem = "expected seconds, from 0.001 to 60";
            return Err(ConfigError::new("auth.private_tokens.deadline", problem));
        }
        if !(1..=1_000_000).contains(&self.queue) {
            let problem = "expected 1 to 1000000";
            return Err(ConfigError::new("auth.private_tokens.queue", problem));
        }
        self.store.as_ref().map_or(Ok(()), SpentStore::check)
    }
}

/// One token: given here, or in a file of its own.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenEntry {
    /// What the operator calls its holder; it is never sent and never logged.
    pub name: String,
    /// The token itself.
    #[serde(deserialize_with = "text::secret")]
    pub token: Option<Zeroizing<String>>,
    /// A file that holds it; white space around it is ignored.
    pub file: Option<PathBuf>,
}

/// Where targets may be.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Egress {
    /// Targets that are served although they are private, loopback or otherwise special:
    /// `10.0.0.0/8`, `10.1.2.3:443`, `[fd00::]/8`, `.corp.internal`.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub allow: Vec<Rule>,
    /// Targets that are refused in any case, in the same form; `*:25` is a port.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub deny: Vec<Rule>,
    /// Addresses and prefixes that lead to this host although none of its interfaces has them, as a router's does that translates it one
    /// to one: refused as the host's own are, on every port, unless `allow` has them. What `[directory] addresses` says is among them.
    #[serde(deserialize_with = "text::nets")]
    pub own: Vec<IpNet>,
    /// Prefixes by which this network translates IPv6 to IPv4 (RFC 6052) beside `64:ff9b::/96`: what is behind them is judged as the IPv4
    /// address that it is.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub nat64: Vec<Ipv6Net>,
    /// Who turns names into addresses.
    pub resolver: ResolverChoice,
    /// Answer clients' DNS queries by that resolver too (DNS over HTTPS, at `/dns-query`); what `allow` and `deny` refuse is not
    /// told.
    pub dns: bool,
    /// The addresses that targets see, by region; without any, those that the system takes.
    pub pool: Vec<Pool>,
    /// After how many seconds a connection's flows have another address of their pool.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub renew: Duration,
}

impl Default for Egress {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            own: Vec::new(),
            nat64: Vec::new(),
            resolver: ResolverChoice::default(),
            dns: true,
            pool: Vec::new(),
            renew: Duration::from_secs(4 * 3600),
        }
    }
}

/// Who turns names into addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "text::OneOrMany")]
pub enum ResolverChoice {
    /// What the system is configured to ask.
    #[default]
    System,
    /// DNS servers, asked over UDP and then TCP: `["9.9.9.9:53"]`.
    Servers(Vec<SocketAddr>),
    /// Neither; kept to be reported by [`Config::check`].
    Invalid(String),
}

/// Which relays come next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ingress {
    /// `host:port` of each relay that may be forwarded to, private addresses included. A client must name it in
    /// the same way: by this name or by this address.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub relays: Vec<Target>,
    /// A geofeed (RFC 8805) of clients' addresses: each client is told its region, and nobody else.
    pub geofeed: Option<PathBuf>,
    /// The same as a database in MaxMind's format (MMDB) of countries or cities; one of the two.
    pub mmdb: Option<PathBuf>,
}

/// How CONNECT-UDP is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Masque {
    /// A URI template (RFC 9298 §3) that is served beside the well-known one.
    pub template: Option<String>,
    /// The same for TCP (draft-ietf-httpbis-connect-tcp), with the same variables.
    pub tcp_template: Option<String>,
}

/// How the connections of clients are carried.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tunnel {
    /// When the relay acknowledges what clients send over QUIC: `"auto"`, as each client asks; or, whatever they ask, `"default"`,
    /// a delay from `"1ms"` to `"250ms"`, a share of the round trip such as `"0.25rtt"`, or `"extension"`.
    #[serde(deserialize_with = "hoplite_config::parsed")]
    pub acks: AckPolicy,
    /// Whether a client may agree with the relay that datagrams are not acknowledged, and that neither end has congestion control for them; what
    /// the relay sends as a stream is always controlled.
    pub allow_no_acks: bool,
    /// The congestion control of what the relay sends: `"auto"`, as each client asks; or, whatever they ask, `"cubic"`, `"bbr"`, `"newreno"` or `"off"`.
    #[serde(deserialize_with = "hoplite_config::parsed")]
    pub congestion: Congestion,
    /// Whether QUIC packets to clients are all as large as the path carries: `"off"` or `"full"`.
    pub pad: Pad,
    /// How long what is small and goes to a client waits for others to share a packet with.
    pub share: Share,
}

impl Default for Tunnel {
    fn default() -> Self {
        let TuningGrant { acks, no_acks } = TuningGrant::default();
        Self {
            acks,
            allow_no_acks: no_acks,
            congestion: Congestion::Auto,
            pad: Pad::Off,
            share: Share::default(),
        }
    }
}

impl Tunnel {
    /// What clients are told.
    #[must_use]
    pub const fn grants(&self) -> TuningGrant {
        TuningGrant {
            acks: self.acks,
            no_acks: self.allow_no_acks,
        }
    }
}

/// What is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Where `GET /metrics`, `/ready` and `/live` are answered in plain HTTP; keep it on loopback.
    pub listen: Option<SocketAddr>,
    /// By which names it is asked for `/metrics`, beside addresses and `localhost`. By others it gives nothing, so that no page can have its own name
    /// resolve to `listen` and read it in an operator's browser.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub hosts: Vec<Host>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "relay".into(),
            listen: vec![SocketAddr::from(([0u16; 8], 443))],
            roles: vec![Role::Ingress, Role::Egress],
            identity: "identity".into(),
            tls: None,
            auth: Auth::default(),
            egress: Egress::default(),
            ingress: Ingress::default(),
            masque: Masque::default(),
            tunnel: Tunnel::default(),
            fleet: None,
            forwarding: Forwarding::default(),
            bound_udp: BoundUdp::default(),
            ip: Ip::default(),
            onion: Onion::default(),
            limits: Limits::default(),
            metrics: MetricsConfig::default(),
            directory: Directory::default(),
        }
    }
}

impl Config {
    /// Whether the relay connects to targets of the client's choice.
    pub fn is_egress(&self) -> bool {
        self.roles.contains(&Role::Egress)
    }

    /// The limits of its sockets: over QUIC streams are circuits' or tunnels', and have circuits' window where there may be any.
    pub(crate) fn limits_of_port(&self) -> Limits {
        let mut limits = self.limits.clone();
        if self.onion.enabled && self.onion.channels.contains(&LinkKind::Quic) {
            limits.stream_window = self.onion.stream_window;
        }
        limits
    }

    /// Whether the relay forwards to the relays it was told of.
    pub fn is_ingress(&self) -> bool {
        self.roles.contains(&Role::Ingress)
    }

    /// Checks what the file's syntax cannot say.
    ///
    /// # Errors
    /// The first key whose value cannot be served.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_reach()?;
        self.check_auth()?;
        self.check_name()?;
        self.check_tunnel()?;
        pool::check(&self.egress)?;
        self.limits.check()?;
        self.fleet.as_ref().map_or(Ok(()), Fleet::check)?;
        self.forwarding.check()?;
        self.bound_udp.check(&self.egress)?;
        self.ip.check()?;
        self.onion.check(self.auth.is_closed())?;
        self.directory.check(&self.listen)?;
        let addresses = self.directory.reached_at(&self.listen);
        self.onion.check_tor(&self.name, addresses)?;
        crate::serve::handler::Templates::new(&self.masque).map(drop)
    }

    fn check_reach(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty() {
            return Err(ConfigError::new("listen", "expected at least one address"));
        }
        if self.roles.is_empty() {
            let problem = "expected \"ingress\", \"egress\" or both";
            return Err(ConfigError::new("roles", problem));
        }
        if !self.is_egress() && self.ingress.relays.is_empty() && !self.onion.enabled {
            let problem =
                "an ingress without the egress role needs at least one relay to forward to";
            return Err(ConfigError::new("ingress.relays", problem));
        }
        let translates = |net: &Ipv6Net| TRANSLATION_PREFIXES.contains(&net.prefix_len());
        if !self.egress.nat64.iter().all(translates) {
            let problem = "expected prefixes of 32, 40, 48, 56, 64 or 96 bits (RFC 6052 §2.2)";
            return Err(ConfigError::new("egress.nat64", problem));
        }
        if self.ingress.geofeed.is_some() && self.ingress.mmdb.is_some() {
            let problem = "where clients are stands in this file or in `geofeed`: take one of the two keys away";
            return Err(ConfigError::new("ingress.mmdb", problem));
        }
        match &self.egress.resolver {
            ResolverChoice::Invalid(what) => Err(ConfigError::new(
                "egress.resolver",
                format!("expected \"system\" or a list of \"address:port\", found {what:?}"),
            )),
            ResolverChoice::Servers(servers) if servers.is_empty() => {
                let problem = "expected \"system\" or at least one server";
                Err(ConfigError::new("egress.resolver", problem))
            }
            _ => Ok(()),
        }
    }

    fn check_auth(&self) -> Result<(), ConfigError> {
        for entry in &self.auth.token {
            let sources = usize::from(entry.token.is_some()) + usize::from(entry.file.is_some());
            if sources != 1 {
                let problem = "each entry needs either `token` or `file`";
                return Err(ConfigError::new("auth.token", problem));
            }
        }
        let private = self.auth.private_tokens.as_ref();
        private.map_or(Ok(()), PrivateTokens::check)?;
        let reachable = self.listen.iter().any(|a| !a.ip().is_loopback());
        if !self.auth.is_closed() && !self.auth.open && reachable {
            let problem = "without a token anybody could use this relay: add [[auth.token]], \
                           or set auth.open = true if that is meant";
            return Err(ConfigError::new("auth.token", problem));
        }
        Ok(())
    }

    /// A client that did not ask for silence would take it for loss.
    fn check_tunnel(&self) -> Result<(), ConfigError> {
        if self.tunnel.acks == AckPolicy::NoAcks {
            let expected = AckPolicy::EXPECTED;
            let problem = format!("\"none\" is for clients to ask for: expected {expected}");
            return Err(ConfigError::new("tunnel.acks", problem));
        }
        Ok(())
    }

    /// RFC 9209 §2: the name is written into a structured field.
    fn check_name(&self) -> Result<(), ConfigError> {
        if !is_relay_name(&self.name) {
            let problem = "expected 1 to 64 letters, digits, '-', '_' or '.'";
            return Err(ConfigError::new("name", problem));
        }
        Ok(())
    }
}

impl TokenEntry {
    /// The token, from the entry or its file.
    ///
    /// # Errors
    /// The file cannot be read, or there is no token in it.
    pub fn read(&self) -> Result<Zeroizing<String>, ConfigError> {
        let text = match (&self.token, &self.file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => {
                Zeroizing::new(std::fs::read_to_string(file).map_err(|error| ConfigError {
                    key: "auth.token.file",
                    problem: format!("cannot read {}: {error}", file.display()),
                    file: Some(file.clone()),
                })?)
            }
            (None, None) => Zeroizing::default(),
        };
        let text = Zeroizing::new(text.trim().to_owned());
        if text.is_empty() {
            Err(ConfigError::new("auth.token", "a token is empty"))
        } else {
            Ok(text)
        }
    }
}

impl fmt::Debug for TokenEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenEntry(hidden)")
    }
}

#[cfg(test)]
mod tests;
