//! The serving end of a hop: one port, UDP for QUIC and TCP for TLS, shared by shards that each run on a core of their own.
//! Used by `relay`, which calls [`bind`] once and [`BoundShard::activate`] in the runtime of each shard.
//! RFC 9000 §5.1 (connection ids), RFC 8999 (where they stand in a packet).

mod bind;
mod divert;
mod ids;
mod secrets;
mod socket;
mod steer;
#[cfg(test)]
mod tests;

use std::{io, net::SocketAddr, sync::Arc};

use hoplite_crypto::observe::Hooks;
use quinn::{
    Connecting, ConnectionError, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime,
    TransportConfig, ValidationTokenConfig, crypto::rustls::QuicServerConfig,
};
use tokio::net::TcpListener;

use crate::Reins;

pub use self::{
    bind::{MOST_SHARDS, bind},
    divert::{ALIAS, Alias, AliasId, Ecn, Forward, Forwarder, Packets, Towards},
    secrets::Secrets,
};
use self::{divert::Aliases, ids::Ids, socket::CoalescingSocket};

/// How many connection attempts may wait for [`Endpoint::accept`] on each shard; more are ignored, and their clients send again. Whoever accepts decides at
/// once, so that only what one turn of the socket brings waits: under a flood this bounds how long.
const MOST_INCOMING: usize = 1024;

/// How much may arrive for one attempt before it is accepted, in octets; what is beyond is dropped. A client's first flight, early data included.
const INCOMING_OCTETS: u64 = 16 * 1024;

/// How much may arrive for all attempts of a shard before they are accepted, in octets.
const INCOMING_OCTETS_TOTAL: u64 = 4 * 1024 * 1024;

/// What records of packets call this end.
const LABEL: &str = "relay";

/// The sockets of all shards, bound to one port. Packets already queue in the kernel.
#[derive(Debug)]
pub struct Bound {
    address: SocketAddr,
    shards: Vec<BoundShard>,
}

/// The sockets of one shard, on their way to its thread.
#[derive(Debug)]
pub struct BoundShard {
    index: u8,
    /// How many shards there are: 1 to [`MOST_SHARDS`].
    shards: u16,
    udp: std::net::UdpSocket,
    tcp: std::net::TcpListener,
}

/// A shard that serves.
#[derive(Debug)]
pub struct Shard {
    /// Accepts the QUIC connections of this shard. Its `set_server_config` replaces the keys of connections to come.
    pub endpoint: Endpoint,
    /// Gives each of them what steers it.
    pub acceptor: Acceptor,
    /// Accepts the TCP connections of this shard; they have no delay (TCP_NODELAY).
    pub tcp: TcpListener,
    /// Which shard this is, from 0.
    pub index: usize,
    /// Forwards packets past QUIC, through the same UDP socket.
    pub forwarder: Forwarder,
}

impl Bound {
    /// Where the shards listen: the address that was asked for, with the port that was found.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The sockets, to be handed to the shards' threads. As long as one shard is not activated, connections that are steered to it wait.
    #[must_use]
    pub fn into_shards(self) -> Vec<BoundShard> {
        self.shards
    }
}

impl BoundShard {
    /// Which shard this is, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        usize::from(self.index)
    }

    /// Starts to serve, inside the shard's own current-thread runtime. `tls` names the ALPN protocols and speaks TLS 1.3.
    ///
    /// # Errors
    /// `tls` cannot be used with QUIC, or the system refuses.
    pub fn activate(
        self,
        tls: Arc<rustls::ServerConfig>,
        transport: Arc<TransportConfig>,
        secrets: &Secrets,
        hooks: &Hooks,
    ) -> io::Result<Shard> {
        let server = server_config(tls, transport, secrets, &Hooks::default())?;
        let acceptor = Acceptor::new(server.clone(), hooks.clone());
        let aliases = Arc::new(Aliases::new(Ids::new(self.index, self.shards)));
        let socket = CoalescingSocket::new(self.udp, Arc::clone(&aliases))?;
        let forwarder = Forwarder::new(aliases, socket.shared());
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config(self.index, self.shards, secrets),
            Some(server),
            socket,
            Arc::new(TokioRuntime),
        )?;
        Ok(Shard {
            endpoint,
            acceptor,
            tcp: TcpListener::from_std(self.tcp)?,
            index: usize::from(self.index),
            forwarder,
        })
    }
}

/// Accepts QUIC connections one by one, each with its own reins.
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

    /// Goes on with the handshake of `incoming`. `transport` is its own: the reins are put on it.
    ///
    /// # Errors
    /// The attempt is no longer there, or its packets make no sense.
    pub fn accept(
        &self,
        incoming: Incoming,
        mut transport: TransportConfig,
        reins: &Reins,
    ) -> Result<Connecting, ConnectionError> {
        reins.harness(&mut transport);
        let mut config = self.config.clone();
        let crypto = Arc::clone(&config.crypto);
        config.crypto = reins.hooks(&self.hooks).server(crypto, LABEL);
        config.transport_config(Arc::new(transport));
        incoming.accept_with(Arc::new(config))
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
        .incoming_buffer_size(INCOMING_OCTETS)
        .incoming_buffer_size_total(INCOMING_OCTETS_TOTAL);
    Ok(config)
}

/// The largest payload that we receive stays at quinn's 1472 octets: receiving takes 2048 times that in memory.
fn endpoint_config(shard: u8, shards: u16, secrets: &Secrets) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::clone(&secrets.reset));
    config.cid_generator(move || Box::new(Ids::new(shard, shards)));
    config
}
