//! Starting a relay, and what the program that started it can do then: drain it, reload it, read its numbers.
//! The binary turns SIGTERM into [`Handle::drain`] and SIGHUP into [`Handle::reload`].

use std::{
    fmt,
    future::Future,
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use hoplite_crypto::{
    Certificates, Identity, IdentityError, Pin,
    onion::{OnionKeys, identity::RelayIdentity},
};
use hoplite_quic::{Hooks, Watch, server::Secrets};
use hoplite_tokens::VerifierKeys;
use hoplite_wire::{OnionKey, tor::extra_info::Directions};
use tokio::sync::{mpsc, watch};

use crate::{
    admission::{Admission, unix_time},
    config::{Auth, Config, ConfigError, Ingress, Limits},
    egress::Egress,
    forward::Kernel,
    host_addresses::HostAddresses,
    ip::Ip,
    limits::{INITIAL_WINDOWS, Quotas},
    metrics::{Metrics, exporter::Exporter},
    onion::{self, Circuits, DirectoryCache, HsDir, Listed, Onion},
    pulse::Pulse,
    serve::{Alive, Phase, Shared, handler::Templates, shard},
    statistics::Totals,
    status::Observer,
};

/// How long closing may take once the drain is over.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What may wait for a client on one stream of HTTP/2, in bytes.
const SEND_BUFFER: usize = 64 << 10;
/// What a client may send on one stream of HTTP/2 ahead of its reader, in bytes, at most: nothing says there that others are blocked by it.
const TLS_STREAM_WINDOW: u32 = 1 << 20;

/// A relay that can be started.
#[derive(Debug)]
pub struct Relay;

/// A running relay. Dropping it stops the relay at once.
pub struct Handle {
    addresses: Vec<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    pin: ArcSwap<Pin>,
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    /// Yields nothing; ends when nobody serves any more.
    done: mpsc::Receiver<()>,
    pulse: Pulse,
}

/// What a relay may be given besides its configuration and its identity.
#[derive(Default)]
pub struct Parts {
    /// Is shown the packets of every client's QUIC connection.
    pub watch: Option<Arc<dyn Watch>>,
    /// Its secrets for circuits: needed where `[onion]` is enabled, and not used elsewhere.
    pub circuits: Option<Circuits>,
}

/// Changes the onion keys of a running relay.
#[derive(Clone, Debug)]
pub struct Rekey(Arc<Onion>);

impl Rekey {
    /// From now on circuits are made with these keys; those that are there go on.
    pub fn replace(&self, keys: OnionKeys) {
        self.0.set_keys(keys);
    }

    /// From now on channels are made with this signing key of the same identity; those that are there go on.
    pub fn renew(&self, identity: RelayIdentity) {
        self.0.set_identity(identity);
    }
}

/// Reads what a running relay has counted, for its statistics.
#[derive(Clone)]
pub struct Sampler(Arc<Shared>);

impl Sampler {
    /// What was counted since the relay began.
    pub fn totals(&self) -> Totals {
        let tunnelled = self.0.metrics.tunnelled();
        let mut totals = Totals {
            read: tunnelled,
            written: tunnelled,
            descriptors_exhausted: self.0.metrics.limited_by("descriptors"),
            overloads: self.0.quotas.memory_short(),
            ..Totals::default()
        };
        if let Some(onion) = &self.0.onion {
            onion.add_totals(&mut totals);
        }
        totals
    }

    /// How channels were used since this was last asked for.
    pub fn directions(&self) -> Directions {
        let onion = self.0.onion.as_ref();
        onion.map_or_else(Directions::default, |onion| onion.faults().directions())
    }

    /// Ends a period: how many onion services have published in it.
    pub fn end_period(&self) -> u64 {
        let onion = self.0.onion.as_ref();
        onion.map_or(0, |onion| onion.seen().end_period())
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sampler")
    }
}

/// Gives a running relay the keys of the issuer whose private tokens it takes.
#[derive(Clone)]
pub struct IssuerKeys(Arc<Shared>);

impl fmt::Debug for IssuerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IssuerKeys")
    }
}

impl IssuerKeys {
    /// From now on tokens are verified with these keys, which were fetched now: what else the relay takes stays as it is. True if they are others than
    /// before.
    ///
    /// # Errors
    /// What is spent cannot be read or used; the old keys stay.
    pub fn replace(&self, keys: &VerifierKeys) -> Result<bool, ConfigError> {
        let admission = self.0.admission.load();
        let changed = admission.with_keys(keys)?;
        self.0.metrics.issuer_keys_fetched(unix_time());
        let Some(changed) = changed else {
            return Ok(false);
        };
        self.0.admission.store(Arc::new(changed));
        Ok(true)
    }

    /// They could not be fetched, or not be used.
    pub fn failed(&self) {
        self.0.metrics.issuer_keys_failures.inc();
    }
}

/// Why a relay does not start, or does not take a new configuration.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be served.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address cannot be listened at.
    #[error("listening at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The identity cannot be used for TLS.
    #[error("the relay's identity cannot be used: {0}")]
    Identity(#[from] IdentityError),
    /// What must not be a target is not known.
    #[error("learning this host's addresses: {0}")]
    Addresses(io::Error),
    /// No thread or no runtime.
    #[error("starting a thread: {0}")]
    Thread(io::Error),
}

impl Relay {
    /// Binds all addresses and serves in threads of its own until the handle is dropped or drained.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left behind.
    pub fn start(config: &Config, identity: &Identity) -> Result<Handle, StartError> {
        Self::start_with(config, identity, Parts::default())
    }

    /// As [`Self::start`], with more than a configuration has.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(
        config: &Config,
        identity: &Identity,
        parts: Parts,
    ) -> Result<Handle, StartError> {
        config.check()?;
        let certificates = Certificates::new(identity)?;
        let secrets = secrets(config)?;
        let bound = shard::bind(config)?;
        let (local, changes) = HostAddresses::look().map_err(StartError::Addresses)?;
        let local = Arc::new(local);
        let metrics = Arc::new(Metrics::new());
        let listener = config.metrics.listen.map(listen).transpose()?;
        let shared = Arc::new(Shared::new(
            config,
            (&bound.addresses, local.clone()),
            (certificates, identity.certificate_sha256()),
            metrics,
            parts,
        )?);
        let (phase, watched) = watch::channel(Phase::Serving);
        let (held, done) = mpsc::channel(1);
        let alive = Alive::new(watched, held);
        if let Some(onion) = &shared.onion {
            onion.serve_for(&shared, &alive);
        }
        let metrics_address = listener.as_ref().and_then(|l| l.local_addr().ok());
        let handle = Handle {
            addresses: bound.addresses.clone(),
            metrics_address,
            pin: ArcSwap::from_pointee(identity.pin()),
            shared: shared.clone(),
            phase,
            done,
            pulse: Pulse::new(),
        };
        beside("addresses", alive.clone(), async move {
            local.follow(changes).await;
        })?;
        shard::spawn(bound, &shared, secrets, &alive, &handle.pulse)?;
        if shared.ip.has_device() {
            let ip = shared.ip.clone();
            beside("ip", alive.clone(), async move { ip.read().await })?;
        }
        if let Some(kernel) = shared.kernel.clone() {
            beside("kernel", alive.clone(), kernel.tend())?;
        }
        if let Some(listener) = listener {
            let metrics = shared.metrics.clone();
            let exporter = Exporter::new(metrics, alive.watching(), config.metrics.hosts.clone());
            export(listener, exporter, alive)?;
        }
        Ok(handle)
    }
}

/// The keys that the shards share, as the fleet has them if there is one.
fn secrets(config: &Config) -> Result<Secrets, StartError> {
    let secrets = Secrets::generate().map_err(StartError::Thread)?;
    match &config.fleet {
        Some(fleet) => Ok(fleet.apply(secrets)?),
        None => Ok(secrets),
    }
}

impl Handle {
    /// Where it listens, UDP and TCP alike; port 0 of the configuration is the port that was given.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where the metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// What clients pin: the identity that the relay was started with, or was given by the last reload.
    pub fn pin(&self) -> Pin {
        **self.pin.load()
    }

    /// What it shows in TLS, as reloads replace it: proves what its operator says of it.
    pub fn certificates(&self) -> Arc<Certificates> {
        Arc::clone(&self.shared.certificates)
    }

    /// What clients write of the relay to build circuits through it, if it serves them.
    pub fn onion_key(&self) -> Option<OnionKey> {
        self.shared.onion.as_ref().map(|onion| onion.key())
    }

    /// What takes the directory's list and Tor's consensus, if it serves circuits.
    pub fn listed(&self) -> Option<Listed> {
        self.shared.onion.as_ref().map(|onion| onion.listed())
    }

    /// What reads its counters.
    pub fn sampler(&self) -> Sampler {
        Sampler(Arc::clone(&self.shared))
    }

    /// What reads how it does, also while it drains.
    pub fn observer(&self) -> Observer {
        Observer::new(Arc::clone(&self.shared), self.phase.subscribe())
    }

    /// What keeps descriptors of onion services, if it does.
    pub fn hsdir(&self) -> Option<HsDir> {
        let onion = self.shared.onion.as_ref()?;
        onion.hsdir().cloned()
    }

    /// What gives the documents of Tor's directory, if it does.
    pub fn directory_cache(&self) -> Option<DirectoryCache> {
        let onion = self.shared.onion.as_ref()?;
        onion.directory_cache().cloned()
    }

    /// What changes its onion keys, if it serves circuits.
    pub fn rekey(&self) -> Option<Rekey> {
        self.shared.onion.clone().map(Rekey)
    }

    /// What takes the keys of the issuer of private tokens, whether it takes such tokens or not yet.
    pub fn issuer_keys(&self) -> IssuerKeys {
        IssuerKeys(Arc::clone(&self.shared))
    }

    /// What asks its shards whether they hang.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// What was counted.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Takes no new connections and no new requests, waits for the open tunnels until `limit` has passed, and
    /// closes what is left. True if nothing was left.
    pub async fn drain(mut self, limit: Duration) -> bool {
        self.phase.send_replace(Phase::Draining);
        let waited = tokio::time::timeout(limit, self.done.recv()).await;
        self.phase.send_replace(Phase::Stopped);
        if waited.is_err() {
            drop(tokio::time::timeout(CLOSE_TIMEOUT, self.done.recv()).await);
        }
        waited.is_ok()
    }

    /// Takes new tokens and, if given, a new identity. Open tunnels go on; new ones need a new token.
    ///
    /// # Errors
    /// A token cannot be read, none is left, or the identity does not fit; then nothing changes.
    pub fn reload(&self, auth: &Auth, identity: Option<&Identity>) -> Result<(), StartError> {
        let admission = Admission::new(auth, &self.shared.metrics)?;
        if admission.is_open() && !self.shared.admission.load().is_open() && !auth.open {
            let problem = "the new configuration has no token; the old ones stay in force";
            return Err(ConfigError::new("auth.token", problem).into());
        }
        if let Some(identity) = identity {
            self.shared.certificates.replace(identity)?;
            if let Some(onion) = &self.shared.onion {
                onion.set_certificate(identity.certificate_sha256());
            }
            self.pin.store(Arc::new(identity.pin()));
        }
        self.shared.admission.store(Arc::new(admission));
        Ok(())
    }

    /// Takes the rules of `[egress]` (`allow`, `deny`, `nat64`) and the relays of `[ingress]`: what is asked for from now on is judged by them, and each
    /// IP packet. Open flows go on; the relay keeps its roles.
    pub fn reload_rules(&self, config: &Config) {
        self.shared.egress.set_rules(config);
    }

    /// Takes those of [`RELOADED_LIMITS`](crate::config::RELOADED_LIMITS). Nobody loses what he has: where there is less now, newcomers find less.
    pub fn reload_limits(&self, limits: &Limits) {
        let limits = self.shared.limits().reloaded(limits);
        self.shared.quotas.set_limits(limits.clone());
        self.shared.egress.set_patience(limits.connect);
        self.shared.limits.store(Arc::new(limits));
    }

    /// Takes the geofeed or the database of clients' addresses as it is now, or none; connections that are there keep the region that they had.
    ///
    /// # Errors
    /// It cannot be read; then nothing changes.
    pub fn reload_client_regions(&self, ingress: &Ingress) -> Result<(), StartError> {
        let regions = ingress.read_client_regions()?;
        self.shared.client_regions.store(regions.map(Arc::new));
        Ok(())
    }
}

impl Shared {
    fn new(
        config: &Config,
        (listen, local): (&[SocketAddr], Arc<HostAddresses>),
        (certificates, certificate): (Arc<Certificates>, [u8; 32]),
        metrics: Arc<Metrics>,
        parts: Parts,
    ) -> Result<Self, ConfigError> {
        let egress = Arc::new(Egress::new(config, listen, local));
        let limits = config.limits_of_port();
        let quotas = Arc::new(Quotas::new(
            limits.clone(),
            config.ip.clone(),
            config.forwarding.ids,
        ));
        quotas.show_memory(&metrics.memory_promised);
        let circuits = match (config.onion.enabled, parts.circuits) {
            (false, _) => None,
            (true, Some(circuits)) => Some(circuits),
            (true, None) => {
                let problem =
                    "circuits need an onion key: the program that starts the relay gave none";
                return Err(ConfigError::new("onion.enabled", problem));
            }
        };
        let onion = circuits.map(|circuits| {
            Onion::new(onion::Parts {
                config,
                circuits,
                certificate,
                listen,
                egress: Arc::clone(&egress),
                quotas: Arc::clone(&quotas),
                metrics: Arc::clone(&metrics),
            })
        });
        if let Some(onion) = &onion {
            metrics.show_onion(onion);
        }
        let (kernel, kernel_state) = Kernel::start(&config.forwarding, &metrics);
        Ok(Self {
            hooks: Hooks {
                watch: parts.watch,
                window: Some(INITIAL_WINDOWS.0),
                ..Hooks::default()
            },
            grants: config.tunnel.grants(),
            congestion: config.tunnel.congestion,
            pad: config.tunnel.pad,
            name: config.name.clone(),
            forwarding: config.forwarding.clone(),
            kernel,
            kernel_state,
            bound_udp: config.bound_udp.clone(),
            templates: Templates::new(&config.masque)?,
            egress,
            client_regions: ArcSwapOption::new(config.ingress.read_client_regions()?.map(Arc::new)),
            onion,
            ip: Ip::new(config)?,
            serves_dns: config.is_egress() && config.egress.dns,
            admission: ArcSwap::from_pointee(Admission::new(&config.auth, &metrics)?),
            certificates,
            quotas,
            h3: hoplite_http::h3::Config {
                share: config.tunnel.share,
                ..h3(&limits, &metrics)
            },
            metrics,
            h2: h2(&limits),
            h1: h1(&limits),
            limits: ArcSwap::from_pointee(limits),
        })
    }
}

fn h3(limits: &Limits, metrics: &Metrics) -> hoplite_http::h3::Config {
    hoplite_http::h3::Config {
        max_field_section: limits.header,
        head_timeout: limits.handshake,
        counters: metrics.sessions.clone(),
        ..Default::default()
    }
}

fn h2(limits: &Limits) -> hoplite_http::h2::Config {
    hoplite_http::h2::Config {
        stream_window: limits.stream_window.min(TLS_STREAM_WINDOW),
        connection_window: u32::try_from(INITIAL_WINDOWS.0).unwrap_or(u32::MAX),
        send_buffer: SEND_BUFFER,
        max_streams: limits.requests_per_connection,
        max_head: u32::try_from(limits.header).unwrap_or(u32::MAX),
        ping_after: limits.idle_connection / 2,
        ping_patience: limits.idle_connection / 2,
        ..Default::default()
    }
}

fn h1(limits: &Limits) -> hoplite_http::h1::Config {
    hoplite_http::h1::Config {
        head_timeout: limits.handshake,
        max_head: limits.header,
        // A client that does not read its refusals would keep its place for ever.
        tunnel_timeout: limits.idle_connection + limits.resolve + limits.connect + limits.handshake,
        datagram_buffer: limits.datagram_buffer,
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| StartError::Listen { address, source })
}

/// The exporter has a thread of its own: a scrape delays no packet.
fn export(listener: TcpListener, exporter: Exporter, alive: Alive) -> Result<(), StartError> {
    beside("metrics", alive, async move {
        if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
            exporter.serve(listener).await;
        }
    })
}

/// A thread beside the shards. It may serve for as long as others do, but nobody waits for it.
fn beside(
    name: &str,
    alive: Alive,
    serve: impl Future<Output = ()> + Send + 'static,
) -> Result<(), StartError> {
    let (mut phase, runtime) = (alive.phase.clone(), shard::runtime()?);
    drop(alive);
    let until_stopped = async move {
        let stopped = phase.wait_for(|phase| *phase == Phase::Stopped);
        tokio::select! {
            () = serve => (),
            stopped = stopped => drop(stopped),
        }
    };
    thread::Builder::new()
        .name(name.into())
        .spawn(move || runtime.block_on(until_stopped))
        .map(drop)
        .map_err(StartError::Thread)
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("circuits", &self.circuits.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}
