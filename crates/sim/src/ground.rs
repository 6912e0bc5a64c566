//! What all nodes share: the TLS certificate and its configuration, and how links and channels behave.
//! One certificate does for all relays: it is worth nothing by itself, the link handshake proves who a relay is.

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use hoplite_crypto::{
    ALPN_CHANNEL, Certificates, Identity, observe::Hooks, onion::identity::RelayIdentity,
    server_tls,
};
use hoplite_link::{
    channel,
    quic::{EndpointConfig, ServerConfig, TransportConfig},
    server::{Secrets, server_config},
};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, SerialNumber};

/// How often a link at rest is looked at: nobody here changes the address.
const REST: Duration = Duration::from_secs(10);

/// Datagrams that come in one call: thousands of links share the memory.
const SEGMENTS: usize = 1;

/// Shared by all nodes.
#[derive(Clone)]
pub struct Ground {
    /// How links behave.
    pub link: hoplite_link::Config,
    /// How channels behave.
    pub channel: channel::Config,
    /// What the relays' TLS shows, over TCP and over QUIC.
    pub tls: Arc<rustls::ServerConfig>,
    /// The SHA-256 of its certificate.
    pub certificate: [u8; 32],
    /// The same for QUIC.
    pub quic: ServerConfig,
}

/// Why there is no world.
#[derive(Debug, thiserror::Error)]
pub enum Unmade {
    /// The keys that all share.
    #[error("making the certificate that all relays show: {0}")]
    Certificate(String),
    /// A relay's.
    #[error("making the keys of a relay: {0}")]
    Keys(String),
    /// A socket's endpoint, or a configuration.
    #[error("preparing a relay: {0}")]
    Endpoint(#[from] io::Error),
}

impl Ground {
    /// With the rooms' defaults.
    ///
    /// # Errors
    /// [`Unmade`]
    pub fn new() -> Result<Self, Unmade> {
        let identity = identity()?;
        let certificates = Certificates::new(&identity).map_err(wrong)?;
        let tls = server_tls(certificates, &[ALPN_CHANNEL]).map_err(wrong)?;
        let tls = Arc::new(tls);
        let link = hoplite_link::Config {
            rest: REST,
            receive_segments: SEGMENTS,
            ..hoplite_link::Config::default()
        };
        let channel = channel::Config::default();
        let transport = Arc::new(channel.greeting(&link).transport(0, 1472));
        let secrets = Secrets::generate()?;
        let quic = server_config(Arc::clone(&tls), transport, &secrets, &Hooks::default())?;
        Ok(Self {
            link,
            channel,
            tls,
            certificate: identity.certificate_sha256(),
            quic,
        })
    }

    /// A connection's parameters at a relay, before its peer has said who it is.
    pub fn transport(&self) -> TransportConfig {
        self.channel.greeting(&self.link).transport(0, 1472)
    }

    /// How links of one node behave, which draws its numbers from `seed`.
    pub fn link_of(&self, seed: [u8; 32]) -> hoplite_link::Config {
        hoplite_link::Config {
            seed: Some(seed),
            ..self.link.clone()
        }
    }

    /// How an endpoint draws its numbers.
    pub fn endpoint(seed: [u8; 32]) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        config.rng_seed(Some(seed));
        config
    }
}

/// Ed25519: its signatures and its certificate always have the same size, other kinds' vary by some octets from run to run.
fn identity() -> Result<Identity, Unmade> {
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(wrong)?;
    let mut params = CertificateParams::new(Vec::new()).map_err(wrong)?;
    params.serial_number = Some(SerialNumber::from(1));
    let certificate = params.self_signed(&key).map_err(wrong)?;
    let key = key.serialize_pem();
    Identity::from_pem(certificate.pem().as_bytes(), key.as_bytes()).map_err(wrong)
}

fn wrong(error: impl std::fmt::Display) -> Unmade {
    Unmade::Certificate(error.to_string())
}

/// The identity of this secret, as of now. Dates stand in certificates and NETINFO, whose sizes do not depend on them.
///
/// # Errors
/// [`Unmade`]
pub fn relay_identity(secret: &[u8; 32]) -> Result<RelayIdentity, Unmade> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since.map_or(0, |since| since.as_secs());
    RelayIdentity::from_secret(secret, now).map_err(|error| Unmade::Keys(error.to_string()))
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ground")
            .field("link", &self.link)
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
