//! The serving end of QUIC: the endpoint of each of the shards that share a UDP port, and how it accepts connections.
//! The kernel gives each packet to its shard ([`steer`]); what has an alias goes to a [`Forwarder`]'s flow, the rest to the QUIC stack.

use std::{fmt, io, net::UdpSocket, sync::Arc};

use quinn_proto::{
    ConnectionError, EndpointConfig, ServerConfig, TransportConfig, ValidationTokenConfig,
    crypto::{HandshakeTokenKey, rustls::QuicServerConfig},
};
use ring::{
    hkdf, hmac,
    rand::{SecureRandom, SystemRandom},
};

use self::{divert::Aliases, socket::ShardSocket, steering::Ids};
use crate::{Connecting, ConnectionController, Endpoint, Hooks, Incoming, timer::Timers};

pub use self::{
    divert::{ALIAS_LENGTH, Alias, AliasId, Ecn, Forward, Forwarder, Packets, Towards},
    steering::{CID_LENGTH, MOST_SHARDS, Routing, ShardPlace, steer},
};

mod divert;
mod socket;
mod steering;

/// How many connection attempts may wait for [`Endpoint::accept`] on each shard; more are ignored, and their clients send again. Whoever accepts decides at
/// once, so that only what one turn of the socket brings waits: under a flood this bounds how long.
const MOST_INCOMING: usize = 1024;

/// How much may arrive for one attempt before it is accepted, in bytes; what is beyond is dropped. A client's first flight, early data included.
const INCOMING_BYTES: u64 = 16 * 1024;

/// How much may arrive for all attempts of a shard before they are accepted, in bytes.
const INCOMING_BYTES_TOTAL: u64 = 4 * 1024 * 1024;

/// What records of packets call this end.
const LABEL: &str = "relay";

/// The QUIC end of one shard.
#[derive(Debug)]
pub struct ShardEndpoint {
    /// Accepts the connections of this shard. Its `set_server_config` replaces the keys of connections to come.
    pub endpoint: Endpoint,
    /// Gives each of them what steers it.
    pub acceptor: Acceptor,
    /// Forwards packets past QUIC, through the same socket.
    pub forwarder: Forwarder,
}

impl ShardEndpoint {
    /// Starts to serve on `socket`, inside the shard's own current-thread runtime. `tls` names the ALPN protocols and speaks TLS 1.3.
    ///
    /// # Errors
    /// `tls` cannot be used with QUIC, or the system refuses.
    pub fn new(
        socket: UdpSocket,
        place: ShardPlace,
        tls: Arc<rustls::ServerConfig>,
        transport: Arc<TransportConfig>,
        secrets: &Secrets,
        hooks: &Hooks,
    ) -> io::Result<Self> {
        let server = server_config(tls, transport, secrets, &Hooks::default())?;
        let acceptor = Acceptor::new(server.clone(), hooks.clone());
        let aliases = Arc::new(Aliases::new(Ids::of_aliases(
            place,
            secrets.routing.clone(),
        )));
        let socket = Arc::new(ShardSocket::new(socket, Arc::clone(&aliases))?);
        let forwarder = Forwarder::new(aliases, Arc::clone(&socket));
        let config = endpoint_config(place, secrets);
        let endpoint = Endpoint::with_socket(config, Some(server), socket, Timers::Exact)?;
        Ok(Self {
            endpoint,
            acceptor,
            forwarder,
        })
    }
}

/// Accepts QUIC connections one by one, each with its own controller.
#[derive(Clone)]
pub struct Acceptor {
    /// Nothing is hooked into its cryptography yet.
    config: ServerConfig,
    hooks: Hooks,
}

impl Acceptor {
    /// Accepts with `config`, whose cryptography is not hooked ([`server_config`]); `hooks` see the packets.
    #[must_use]
    pub const fn new(config: ServerConfig, hooks: Hooks) -> Self {
        Self { config, hooks }
    }

    /// Goes on with the handshake of `incoming`. `transport` is its own: the controller is put on it.
    ///
    /// # Errors
    /// The attempt is no longer there, or its packets make no sense.
    pub fn accept(
        &self,
        incoming: Incoming,
        mut transport: TransportConfig,
        controller: &ConnectionController,
    ) -> Result<Connecting, ConnectionError> {
        controller.configure_transport(&mut transport);
        let mut config = self.config.clone();
        let crypto = Arc::clone(&config.crypto);
        config.crypto = controller.hooks(&self.hooks).server(crypto, LABEL);
        config.transport_config(Arc::new(transport));
        incoming.accept_with(Arc::new(config))
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

/// How QUIC connections are served; also for [`Endpoint::set_server_config`] when certificates change.
///
/// # Errors
/// `tls` cannot be used with QUIC: it lacks TLS 1.3 or TLS_AES_128_GCM_SHA256.
pub fn server_config(
    tls: Arc<rustls::ServerConfig>,
    transport: Arc<TransportConfig>,
    secrets: &Secrets,
    hooks: &Hooks,
) -> io::Result<ServerConfig> {
    let crypto = QuicServerConfig::try_from(tls)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let crypto = hooks.server(Arc::new(crypto), LABEL);
    let mut config = ServerConfig::new(crypto, Arc::clone(&secrets.token));
    // We hand out no tokens for later connections, because such a token would link a client's visits to each other.
    let mut tokens = ValidationTokenConfig::default();
    tokens.sent(0);
    config
        .transport_config(transport)
        .validation_token_config(tokens)
        .max_incoming(MOST_INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
    Ok(config)
}

fn endpoint_config(place: ShardPlace, secrets: &Secrets) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(secrets.reset.clone()));
    let routing = secrets.routing.clone();
    config.cid_generator(move || Box::new(Ids::new(place, routing.clone())));
    config
}

// The keys that all shards of one address share, so that each may answer for another. RFC 9000 §8.1 (address
// validation) and §10.3 (stateless reset).

/// The key of stateless resets and that of Retry tokens, and in a fleet what makes ids. They live as long as the process and are never written
/// down, but for the key of resets in a fleet.
///
/// A Retry's token comes back to the relay that made it, in a fleet too: its packet goes to an id of that relay.
#[derive(Clone)]
pub struct Secrets {
    reset: hmac::Key,
    token: Arc<dyn HandshakeTokenKey>,
    routing: Option<Arc<dyn Routing>>,
}

impl Secrets {
    /// Fresh keys.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> io::Result<Self> {
        let token = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&random()?);
        Ok(Self {
            reset: hmac::Key::new(hmac::HMAC_SHA256, &random()?),
            token: Arc::new(token),
            routing: None,
        })
    }

    /// These, with ids by which a balancer finds this relay. Its key of resets is `reset`, which it has again when it starts again: so clients of
    /// the process before it learn at once that their connections are gone.
    #[must_use]
    pub fn in_fleet(self, routing: Arc<dyn Routing>, reset: &[u8; 32]) -> Self {
        Self {
            reset: hmac::Key::new(hmac::HMAC_SHA256, reset),
            routing: Some(routing),
            ..self
        }
    }

    /// These, for one of the addresses at which a process listens, by its place among them: a key of resets of its own for each. With one for all, whoever
    /// sees an id of a connection at one address and sends a packet with it to another, where nobody knows it, is given the token that ends the
    /// connection (RFC 9000 §21.11).
    #[must_use]
    pub fn at(&self, place: usize) -> Self {
        // Ids are no longer than 20 bytes: this is none.
        let word = format!("the key of resets of address {place}");
        let key = hmac::sign(&self.reset, word.as_bytes());
        Self {
            reset: hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()),
            ..self.clone()
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

fn random() -> io::Result<[u8; 64]> {
    let mut bytes = [0; 64];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system has no randomness"))?;
    Ok(bytes)
}
