//! One shard: a thread with a current-thread runtime, its own UDP socket and its own TCP listener, all on one port.
//! The kernel gives each client's packets to one shard, also after the client has moved (see `link::server`).
//! Nothing crosses from shard to shard but the limits, the counters and the resolver's cache.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    thread,
    time::Duration,
};

use hoplite_crypto::{ALPN_CHANNEL, ALPN_H2, ALPN_H3, ALPN_HTTP1, Certificates, server_tls};
use hoplite_link::{
    MTU_SUSPENDED,
    server::{self, Bound, BoundShard},
};
use hoplite_quic::{Hooks, MtuDiscoveryConfig, TransportConfig, VarInt, server::Secrets};
use tokio::{
    runtime::{Builder, Runtime},
    time::sleep,
};
use tokio_rustls::TlsAcceptor;

use super::{Alive, Shared, quic, tls};
use crate::{
    config::{Config, Limits, LinkKind},
    handle::StartError,
    limits::INITIAL_WINDOWS,
    pulse::Pulse,
};

/// What each UDP socket asks the kernel for, in bytes.
const SOCKET_BUFFER: usize = 8 << 20;
/// Datagrams of one client that wait for their turn, in bytes; the oldest are dropped.
pub(crate) const DATAGRAMS_IN: usize = 1 << 20;
/// How often is looked whether pages lie idle.
const CALM: Duration = Duration::from_secs(5);
/// HTTP/3 needs three streams of its own from a client; some greet with a few more.
const UNI_STREAMS: u32 = 8;

/// All sockets of a relay, one group for each configured address.
pub(crate) struct Sockets {
    pub(crate) addresses: Vec<SocketAddr>,
    groups: Vec<Bound>,
}

/// Opens all sockets.
pub(crate) fn bind(config: &Config) -> Result<Sockets, StartError> {
    let mut sockets = Sockets {
        addresses: Vec::new(),
        groups: Vec::new(),
    };
    for address in &config.listen {
        let failed = |source| StartError::Listen {
            address: *address,
            source,
        };
        let bound = bind_one(*address, config.limits.threads()).map_err(failed)?;
        sockets.addresses.push(bound.local_addr());
        sockets.groups.push(bound);
    }
    Ok(sockets)
}

/// A host without IPv6 has no `[::]`; all of its addresses are meant all the same.
fn bind_one(address: SocketAddr, threads: usize) -> io::Result<Bound> {
    let bound = server::bind(address, threads, SOCKET_BUFFER);
    match bound.as_ref().map_err(io::Error::raw_os_error) {
        Err(Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
            if address.ip() == Ipv6Addr::UNSPECIFIED =>
        {
            tracing::warn!("this host has no IPv6: listening by IPv4 only");
            let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            server::bind(address, threads, SOCKET_BUFFER)
        }
        _ => bound,
    }
}

/// Starts a thread for each shard; each serves its socket of every group.
pub(crate) fn spawn(
    sockets: Sockets,
    shared: &Arc<Shared>,
    secrets: Secrets,
    alive: &Alive,
    pulse: &Pulse,
) -> Result<(), StartError> {
    let mut groups: Vec<_> = sockets
        .groups
        .into_iter()
        .map(|group| group.into_shards().into_iter())
        .collect();
    let keys = Keys::new(shared, secrets)?;
    loop {
        let shards: Vec<BoundShard> = groups.iter_mut().filter_map(Iterator::next).collect();
        let Some(first) = shards.first() else {
            return Ok(());
        };
        let name = format!("shard-{}", first.index());
        let (runtime, keys) = (runtime()?, keys.clone());
        let (shared, alive, beat) = (shared.clone(), alive.clone(), pulse.shard());
        thread::Builder::new()
            .name(name)
            .spawn(move || {
                drop(runtime.spawn(beat.answer()));
                runtime.block_on(run(shards, keys, shared, alive));
            })
            .map_err(StartError::Thread)?;
    }
}

/// What is served with.
#[derive(Clone)]
struct Keys {
    tcp: TlsAcceptor,
    tls: Arc<rustls::ServerConfig>,
    transport: Arc<TransportConfig>,
    secrets: Secrets,
}

impl Keys {
    fn new(shared: &Shared, secrets: Secrets) -> Result<Self, StartError> {
        let tls = |alpn: &[&[u8]]| {
            let certificates: Arc<Certificates> = shared.certificates.clone();
            let config = server_tls(certificates, alpn).map_err(io::Error::other);
            config.map(Arc::new).map_err(StartError::Thread)
        };
        Ok(Self {
            tcp: tls(&[ALPN_H2, ALPN_HTTP1])?.into(),
            tls: match shared.onion_over(LinkKind::Quic) {
                Some(_) => tls(&[ALPN_H3, ALPN_CHANNEL])?,
                None => tls(&[ALPN_H3])?,
            },
            transport: Arc::new(transport(&shared.limits())),
            secrets,
        })
    }

    /// Serves by a socket of the address at this place of those that are listened at.
    fn activate(
        &self,
        (place, shard): (usize, BoundShard),
        hooks: &Hooks,
    ) -> io::Result<server::Shard> {
        let secrets = self.secrets.at(place);
        shard.activate(self.tls.clone(), self.transport.clone(), &secrets, hooks)
    }
}

async fn run(shards: Vec<BoundShard>, keys: Keys, shared: Arc<Shared>, alive: Alive) {
    let mut serving = tokio::task::JoinSet::new();
    let onion = shared.onion.clone();
    if let Some(onion) = onion
        .clone()
        .filter(|_| shards.iter().any(|s| s.index() == 0))
    {
        drop(tokio::spawn(async move { onion.keep().await }));
    }
    if shards.iter().any(|shard| shard.index() == 0) {
        drop(tokio::spawn(give_back(shared.clone())));
    }
    for shard in shards.into_iter().enumerate() {
        match keys.activate(shard, &shared.hooks) {
            Ok(shard) => {
                let tcp = keys.tcp.clone();
                serving.spawn(tls::serve(shared.clone(), shard.tcp, tcp, alive.clone()));
                let quic = quic::Port::new(
                    shard.endpoint,
                    shard.acceptor,
                    shard.forwarder,
                    shared.quotas.unvalidated(),
                );
                serving.spawn(quic::serve(shared.clone(), quic, alive.clone()));
            }
            Err(error) => tracing::error!(%error, "a shard does not serve"),
        }
    }
    let rest = async {
        match onion {
            // Channels of this thread carry circuits of others.
            Some(onion) => onion.rest(alive).await,
            None => drop(alive),
        }
    };
    let joined = async { while serving.join_next().await.is_some() {} };
    tokio::join!(rest, joined);
}

/// Gives pages back to the system after many connections have gone: by itself the allocator keeps what lies below anything that is still used. Beside the
/// shards, because it takes milliseconds. Never ends.
async fn give_back(shared: Arc<Shared>) {
    loop {
        sleep(CALM).await;
        if shared.quotas.has_fallen() {
            drop(tokio::task::spawn_blocking(trim).await);
        }
    }
}

/// malloc_trim(3) is glibc's; other allocators are left alone.
fn trim() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the call has no safe wrapper")]
    // SAFETY: it takes no pointer, may be called at any time from any thread (MT-Safe), and frees nothing that is in use.
    let _released = unsafe { libc::malloc_trim(0) };
}

/// Every buffer of a connection has its bound here.
pub(crate) fn transport(limits: &Limits) -> TransportConfig {
    let mut config = TransportConfig::default();
    let mut discovery = MtuDiscoveryConfig::default();
    discovery
        .minimum_change(1)
        .black_hole_cooldown(MTU_SUSPENDED);
    config
        .mtu_discovery_config(Some(discovery))
        // As `link::Config` has it.
        .allow_spin(false)
        .max_concurrent_bidi_streams(quic::streams_at_first(limits))
        .max_concurrent_uni_streams(VarInt::from_u32(UNI_STREAMS))
        .receive_window(VarInt::from_u64(INITIAL_WINDOWS.0).unwrap_or(VarInt::MAX))
        .stream_receive_window(VarInt::from_u32(limits.stream_window))
        .send_window(INITIAL_WINDOWS.1)
        .datagram_receive_buffer_size(Some(DATAGRAMS_IN))
        .datagram_send_buffer_size(limits.datagram_buffer)
        .max_idle_timeout(limits.idle_connection.try_into().ok());
    config
}

/// A runtime for one thread.
pub(crate) fn runtime() -> Result<Runtime, StartError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(StartError::Thread)
}
