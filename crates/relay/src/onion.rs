//! Circuits of Tor's cells, beside MASQUE: the relay's one [`hoplite_onion::relay::Relay`], its channels to other relays, and those that come in.
//! `serve::quic` and `serve::tls` hand in connections that turn out to be channels; the [`Handle`](crate::Handle) renews keys.
//! tor-spec "Channels", "Creating circuits", "Keys and names". A channel's circuits are served where it was accepted or dialled; what all shards share is here.
//!
//! Every circuit that somebody else begins is a request of that client to the limits, by its address: channels know no tokens.

mod admitted_channel;
mod directory_cache;
mod directory_streams;
mod exit_overlay;
mod hsdir;
mod known_relays;
mod wide_channels;

use std::{
    fmt,
    future::pending,
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock, Weak, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use hoplite_channel::{
    self as channel, Channel, ChannelDialer, ChannelServer, Channels, Counts, Listing, Shares,
    handshake::Us,
};
use hoplite_crypto::onion::{OnionKeys, identity::RelayIdentity};
use hoplite_onion::{
    channel::Linked,
    endpoint,
    relay::{self, Counters},
};
use hoplite_overlay::direct::{Direct, Silence};
use hoplite_quic::{SharedBudget, WindowBudget};
use hoplite_wire::{
    OnionKey, Protocols, cell::onion_service::IntroductionRate, tuning::Congestion,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use self::{
    admitted_channel::{AdmittedChannel, Peer},
    exit_overlay::{ExitOverlay, NextRelays},
    known_relays::KnownRelays,
    wide_channels::{WideChannel, WideChannels},
};
pub use self::{
    directory_cache::{DirectoryCache, Documents, GivenCertificate, GivenConsensus},
    hsdir::HsDir,
    known_relays::{InConsensus, Listed},
};
use crate::{
    config::{Config, LinkKind, Onion as Settings, Tor},
    egress::Egress,
    limits::{Account, ClientKey, INITIAL_WINDOWS, Place, Quotas},
    metrics::Metrics,
    serve::{Alive, Phase, Shared},
    statistics::{ClientShare, Seen, Totals},
    status::Use,
};

/// How often is looked whether the last circuits have ended, while the relay drains.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How often channels at rest are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// How often is looked how much a channel has moved.
const LOOK: Duration = Duration::from_secs(1);

/// A channel that has carried less in the meantime rests.
const MOVES: u64 = 64 << 10;

/// Addresses that peers are told.
const TOLD: usize = 8;

/// What a relay of circuits is: who it is on its channels, and what circuit handshakes are answered with.
#[derive(Clone, Debug)]
pub struct Circuits {
    /// Signs what channels need.
    pub identity: RelayIdentity,
    /// The current onion key and the last.
    pub keys: OnionKeys,
}

/// The relay of circuits.
pub(crate) struct Onion {
    settings: Settings,
    relay: Arc<relay::Relay>,
    hsdir: Option<HsDir>,
    directory_cache: Option<DirectoryCache>,
    known: Arc<KnownRelays>,
    wide: WideChannels,
    channels: Channels,
    dialer: ChannelDialer,
    server: ChannelServer,
    counts: Arc<Counts>,
    /// Who has the relay's circuits.
    circuits: Shares,
    shown: Shown,
    seen: Arc<Seen>,
    /// For channels that were dialled; set once the relay serves.
    shared: OnceLock<(Weak<Shared>, Alive)>,
}

/// What peers of channels are shown.
pub(crate) struct Shown(Mutex<(Us, [u8; 32])>);

impl Shown {
    pub(super) const fn new(us: Us, certificate: [u8; 32]) -> Self {
        Self(Mutex::new((us, certificate)))
    }

    fn lock(&self) -> MutexGuard<'_, (Us, [u8; 32])> {
        self.0.lock()
    }
}

/// Everything that makes one.
pub(crate) struct Parts<'a> {
    pub(crate) config: &'a Config,
    pub(crate) circuits: Circuits,
    /// SHA-256 of the certificate that TLS shows.
    pub(crate) certificate: [u8; 32],
    /// Where the relay listens.
    pub(crate) listen: &'a [SocketAddr],
    pub(crate) egress: Arc<Egress>,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Onion {
    /// A relay of circuits that serves nobody yet.
    pub(crate) fn new(parts: Parts<'_>) -> Arc<Self> {
        let Parts {
            config,
            circuits,
            certificate,
            listen,
            egress,
            quotas,
            metrics,
        } = parts;
        let settings = config.onion.clone();
        let us = Us {
            identity: Some(Arc::new(circuits.identity)),
            addresses: told(config, listen),
        };
        let counts = Arc::new(Counts::default());
        let bounds = bounds(&settings, config);
        let link = link(config);
        let dialler = |us| {
            let direct = Direct::for_tunnels().silence(Silence::OF_RELAY);
            ChannelDialer::new(
                Arc::new(direct),
                us,
                &link,
                bounds.clone(),
                Arc::clone(&counts),
            )
        };
        let dialer = dialler(us.clone());
        let server =
            ChannelServer::new(us.clone(), certificate, bounds.clone(), Arc::clone(&counts));
        let known = Arc::new(KnownRelays::new(Arc::clone(&egress), &settings));
        Arc::new_cyclic(|this: &Weak<Self>| {
            let this = this.clone();
            let channels = Channels::new(dialer.clone(), move |channel| {
                if let Some(onion) = this.upgrade() {
                    onion.dialled(channel);
                }
            });
            let channels = channels.with_listing(known.clone());
            let linked = Linked::new(channels.clone(), Listed(Arc::clone(&known)));
            let mut relay =
                relay::Relay::new(circuits.keys, Arc::new(linked), limits(&settings, config));
            relay.next = Arc::new(NextRelays(Arc::clone(&egress)));
            let exit = Arc::new(ExitOverlay::new(egress, quotas, metrics));
            relay.policy = exit.clone();
            relay.out = config.is_egress().then_some(exit as _);
            let seen = Arc::new(Seen::default());
            let hsdir = settings.hsdir.then(|| HsDir::new(&settings, &seen));
            let caches = settings.tor.as_ref().is_some_and(Tor::caches);
            let cache = caches.then(|| DirectoryCache::new(&settings, hsdir.clone()));
            relay.directory = match (&cache, &hsdir) {
                (Some(cache), _) => Some(Arc::new(cache.clone())),
                (None, Some(hsdir)) => Some(Arc::new(hsdir.clone())),
                (None, None) => None,
            };
            Self {
                shown: Shown::new(us, certificate),
                circuits: Shares::new(settings.circuits),
                settings,
                relay: Arc::new(relay),
                hsdir,
                directory_cache: cache,
                known,
                wide: WideChannels::default(),
                channels,
                dialer,
                server,
                counts,
                seen,
                shared: OnceLock::new(),
            }
        })
    }

    /// What clients write of the relay.
    pub(crate) fn key(&self) -> OnionKey {
        self.relay.keys().published().into()
    }

    /// The directory's list and Tor's consensus, as channels see them.
    pub(crate) fn listed(&self) -> Listed {
        Listed(Arc::clone(&self.known))
    }

    /// What keeps descriptors of onion services, if it does.
    pub(crate) fn hsdir(&self) -> Option<&HsDir> {
        self.hsdir.as_ref()
    }

    /// What gives the documents of Tor's directory, if it does.
    pub(crate) fn directory_cache(&self) -> Option<&DirectoryCache> {
        self.directory_cache.as_ref()
    }

    /// Takes other onion keys: circuits that are there go on.
    pub(crate) fn set_keys(&self, keys: OnionKeys) {
        self.relay.set_keys(keys);
    }

    /// Whether channels come in over this.
    pub(crate) fn has(&self, carrier: LinkKind) -> bool {
        self.settings.has(carrier)
    }

    /// What makes channels of accepted connections.
    pub(crate) fn server(&self) -> &ChannelServer {
        &self.server
    }

    /// What circuits count.
    pub(crate) fn counters(&self) -> &Counters {
        &self.relay.counters
    }

    /// What channels count.
    pub(crate) fn faults(&self) -> &Counts {
        &self.counts
    }

    /// What is counted beside that.
    pub(crate) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Adds what circuits and channels have counted since they began.
    pub(crate) fn add_totals(&self, totals: &mut Totals) {
        let counters = &self.relay.counters;
        let (channels, targets) = (self.counts.carried(), counters.exits.carried());
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
        add(&mut totals.read, channels.0.saturating_add(targets.0));
        add(&mut totals.written, channels.1.saturating_add(targets.1));
        add(&mut totals.overloads, counters.full.load(Relaxed));
        totals.circuits = self.seen.circuits();
        totals.exits = counters.exits.totals().collect();
        totals.rendezvous_cells = counters.rendezvous_cells.load(Relaxed);
        totals.padding_read = self.counts.padding_read.get();
        totals.padding_written = self.counts.padding.get();
        if let Some(cache) = &self.directory_cache {
            totals.consensuses = cache.counters().consensuses.load(Relaxed);
        }
    }

    /// Circuits now.
    pub(crate) fn circuits(&self) -> usize {
        self.relay.circuits()
    }

    /// How near the limits of all circuits are.
    pub(crate) fn uses(&self) -> [Use; 2] {
        let number = |n| u64::try_from(n).unwrap_or(u64::MAX);
        [
            Use {
                limit: "onion.circuits".into(),
                used: number(self.circuits()),
                most: number(self.settings.circuits),
            },
            Use {
                limit: "onion.queued".into(),
                used: self.counts.queued(),
                most: self.settings.queued,
            },
        ]
    }

    /// Open channels to relays now, both ways.
    pub(crate) fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Channels that are dialled from now on are served for `shared`.
    pub(crate) fn serve_for(&self, shared: &Arc<Shared>, alive: &Alive) {
        // Once: a relay is started once.
        drop(self.shared.set((Arc::downgrade(shared), alive.watching())));
    }

    /// Serves a channel that `client` has dialled. What a relay dialled is used to extend circuits to it, too.
    pub(crate) async fn serve(
        &self,
        channel: Channel,
        client: ClientKey,
        shared: &Arc<Shared>,
        alive: Alive,
        (place, account): (&Arc<Place>, &Arc<Account>),
    ) {
        self.channels.add(&channel);
        let wide = self.wide(&channel);
        give_room(&channel, wide.as_ref(), Some(account));
        let place = Some(Arc::clone(place));
        tokio::select! {
            () = self.carry(channel.clone(), client, shared, alive, place) => {}
            () = tell_of_moves(&channel, account) => {}
        }
    }

    /// The next relay may begin circuits on a channel that was dialled here.
    fn dialled(self: Arc<Self>, channel: Channel) {
        let shared = self.shared.get();
        let shared = shared.and_then(|(shared, alive)| Some((shared.upgrade()?, alive.clone())));
        let (Some((shared, alive)), Some(peer)) = (shared, channel.peer()) else {
            return;
        };
        let stranger = match channel.remote() {
            Some(address) => shared.quotas.by_address(address),
            None => shared.quotas.by_identity(&peer.ed25519),
        };
        let wide = self.wide(&channel);
        // Over TLS nothing waits but in circuits.
        let is_bounded = wide.is_some() || (!has_windows(&channel) && self.is_listed(&channel));
        let account = (!is_bounded).then(|| shared.quotas.account(stranger));
        let Ok(account) = account.transpose() else {
            // Nothing would bound what a stranger has there.
            shared.metrics.limited("memory");
            return channel.close();
        };
        let account = account.map(Arc::new);
        give_room(&channel, wide.as_ref(), account.as_ref());
        drop(tokio::spawn(async move {
            let _wide = wide;
            let lost = lost(&channel, account);
            tokio::select! {
                () = self.carry(channel.clone(), stranger, &shared, alive, None) => {}
                () = lost => shared.metrics.ended("memory"),
            }
            channel.close();
        }));
    }

    /// A place among the few channels of a relay of the list, which asks on behalf of others, that may have all that circuits between two relays may. It is
    /// held as long as the channel.
    fn wide(&self, channel: &Channel) -> Option<WideChannel> {
        let may = has_windows(channel) && self.is_listed(channel);
        let peer = channel.peer().filter(|_| may)?;
        self.wide.enter(peer.ed25519)
    }

    /// Whether the peer is a relay of the list, now.
    fn is_listed(&self, channel: &Channel) -> bool {
        let peer = channel.peer();
        peer.is_some_and(|peer| self.known.lists(&peer.ed25519))
    }

    /// `stranger` is what the peer counts as while the list does not have it.
    async fn carry(
        &self,
        channel: Channel,
        stranger: ClientKey,
        shared: &Arc<Shared>,
        alive: Alive,
        place: Option<Arc<Place>>,
    ) {
        let relay = channel
            .peer()
            .map(|peer| (peer.ed25519, shared.quotas.by_identity(&peer.ed25519)));
        let door = AdmittedChannel {
            channel: channel.clone(),
            peer: Peer {
                stranger,
                relay,
                known: Arc::clone(&self.known),
            },
            place,
            shared: Arc::clone(shared),
            alive: alive.clone(),
            circuits: self.circuits.clone(),
            each: self.settings.circuits_per_address,
            seen: Arc::clone(&self.seen),
            share: channel.peer().is_none().then(ClientShare::default),
            streams: Arc::default(),
            most_streams: match channel.peer() {
                Some(_) => self.settings.streams_per_relay,
                None => self.settings.streams_per_client,
            },
        };
        tokio::select! {
            biased;
            () = relay::serve(Arc::new(door), Arc::clone(&self.relay)) => {}
            () = rested(&channel, alive) => {}
        }
        channel.close();
    }

    /// Waits, once the relay drains, until its last circuit has ended: a shard's channels carry circuits of other shards.
    pub(crate) async fn rest(&self, mut alive: Alive) {
        alive.reached(Phase::Draining).await;
        let ended = async {
            while self.circuits() > 0 || !self.channels.is_empty() {
                sleep(DRAIN_CHECK_INTERVAL).await;
            }
        };
        tokio::select! {
            biased;
            () = ended => {}
            () = alive.reached(Phase::Stopped) => {}
        }
    }
}

fn has_windows(channel: &Channel) -> bool {
    channel.kind() == LinkKind::Quic
}

/// Lets a channel's peer send as much ahead of who reads as it may: where it has a place all of it, else what moves, as long as there is memory.
fn give_room(channel: &Channel, wide: Option<&WideChannel>, account: Option<&Arc<Account>>) {
    match (wide, account) {
        (Some(_), _) => channel.widen(),
        (None, Some(account)) => channel.adapt_windows(ChannelBudget(Arc::clone(account))),
        (None, None) => channel.adapt_windows(SharedBudget::new(0)),
    }
}

/// What changes while the relay serves: its signing key each fortnight, its TLS certificate when it is reloaded. Certificates are valid by the
/// calendar.
impl Onion {
    /// TLS shows another certificate from now on.
    pub(crate) fn set_certificate(&self, certificate: [u8; 32]) {
        let mut shown = self.shown.lock();
        shown.1 = certificate;
        self.server.show(shown.0.clone(), certificate);
    }

    /// Channels show another signing key from now on.
    pub(crate) fn set_identity(&self, identity: RelayIdentity) {
        let mut shown = self.shown.lock();
        let (us, certificate) = &mut *shown;
        us.identity = Some(identity.into());
        self.server.show(us.clone(), *certificate);
        self.dialer.show(us.clone());
    }

    /// Closes channels at rest and renews the signing key, until dropped.
    pub(crate) async fn keep(&self) {
        loop {
            sleep(SWEEP_INTERVAL).await;
            let now = Instant::now();
            self.channels.sweep(now);
            self.hsdir.iter().for_each(|hsdir| hsdir.sweep(now));
            self.renew(unix_time());
        }
    }

    fn renew(&self, now: u64) {
        let mut shown = self.shown.lock();
        let (us, certificate) = &mut *shown;
        let due = us.identity.as_ref().filter(|identity| identity.is_due(now));
        let Some(renewed) = due.map(|identity| identity.renewed(now)) else {
            return;
        };
        match renewed {
            Ok(renewed) => {
                us.identity = Some(renewed.into());
                self.server.show(us.clone(), *certificate);
                self.dialer.show(us.clone());
            }
            Err(error) => tracing::warn!(
                "the signing key of channels cannot be renewed, and ends within days: {error}"
            ),
        }
    }
}

/// What is promised to a stranger's channel beyond its first windows: counted as all that clients' connections may hold.
#[derive(Debug)]
struct ChannelBudget(Arc<Account>);

impl WindowBudget for ChannelBudget {
    fn take(&self, bytes: u64) -> bool {
        self.0.keep_more(bytes)
    }

    fn give(&self, bytes: u64) {
        self.0.keep_less(bytes);
    }

    fn wants_some_back(&self) -> bool {
        self.0.is_to_narrow()
    }
}

/// Says how much the channel has moved, so that one that rests is told from one that does not: padding and a cell now and then are nothing. Never resolves.
async fn tell_of_moves(channel: &Channel, account: &Account) {
    loop {
        account.has_moved(channel.carried() / MOVES * MOVES);
        sleep(LOOK).await;
    }
}

/// Resolves when somebody else needs the memory of a channel that was dialled.
async fn lost(channel: &Channel, account: Option<Arc<Account>>) {
    let Some(account) = account else {
        return pending().await;
    };
    tokio::select! {
        () = account.lost() => {}
        () = tell_of_moves(channel, &account) => {}
    }
}

/// Resolves when a channel is not to be served any longer: the relay drains and it carries nothing, or the relay stops.
async fn rested(channel: &Channel, mut alive: Alive) {
    alive.reached(Phase::Draining).await;
    let empty = async {
        while channel.circuits() > 0 {
            sleep(DRAIN_CHECK_INTERVAL).await;
        }
    };
    tokio::select! {
            biased;
        () = empty => {}
        () = alive.reached(Phase::Stopped) => {}
    }
}

/// A relay tells its peers where it is, if it knows: by that they find the channel that is there when they are to extend to it.
fn told(config: &Config, listen: &[SocketAddr]) -> Vec<IpAddr> {
    let published = config.directory.addresses.iter();
    let all = published.chain(listen).map(SocketAddr::ip);
    let mut known = Vec::new();
    for address in all.filter(|address| !address.is_unspecified()) {
        if !known.contains(&address) && known.len() < TOLD {
            known.push(address);
        }
    }
    known
}

/// Of channels that are dialled: they are controlled as those that come in, and always controlled.
fn link(config: &Config) -> hoplite_link::Config {
    let mut link = hoplite_link::Config::default();
    link.tuning_request.congestion = match config.tunnel.congestion {
        Congestion::Off => Congestion::Auto,
        chosen => chosen,
    };
    link
}

/// Of channels. All streams of the port have a circuit's window: what a connection will carry is not known when it begins.
fn bounds(settings: &Settings, config: &Config) -> channel::Config {
    channel::Config {
        handshake: config.limits.handshake,
        circuits: settings.circuits_per_relay,
        guest_circuits: settings.circuits_per_client,
        window: config.onion.stream_window,
        windows: settings.connection_window.into(),
        guest_windows: config.limits.connection_window.into(),
        // As all connections of the port begin.
        greeting_window: u32::try_from(INITIAL_WINDOWS.0).unwrap_or(u32::MAX),
        narrow: true,
        queued: settings.queued,
        kept: endpoints(settings).most(),
        idle: settings.idle_channel,
        padding: if settings.padding {
            channel::PaddingMode::Auto
        } else {
            channel::PaddingMode::Off
        },
        failed: settings.unanswered,
        channels: settings.relays,
        channels_per_address: settings.relays_per_address,
        dials: channel::Rate {
            at_once: settings.dials,
            per_second: settings.dials_per_second,
        },
        dials_per_address: channel::Rate {
            at_once: settings.dials_per_address,
            per_second: settings.dials_per_address_and_second,
        },
        rival: settings.rival,
        ..channel::Config::default()
    }
}

fn limits(settings: &Settings, config: &Config) -> relay::Config {
    let protocols = settings.protocols(config.is_egress());
    let threads = match settings.skin_threads {
        0 => config.limits.threads().div_ceil(2),
        threads => threads,
    };
    relay::Config {
        handshakes: relay::Handshakes {
            threads,
            waiting: settings.skins_waiting,
            waiting_per_client: settings.skins_waiting_per_client,
        },
        offers: relay::Offers {
            congestion_control: settings.congestion_control,
            cgo: protocols.has(Protocols::CGO),
        },
        conflux: protocols.has(Protocols::CONFLUX),
        datagrams: protocols.has(Protocols::DATAGRAM),
        circuits: settings.circuits,
        creates: relay::Creates {
            client: (settings.creates, settings.creates_per_second),
            relay: (
                settings.creates_per_relay,
                settings.creates_per_relay_and_second,
            ),
        },
        patience: settings.patience,
        idle_datagrams: config.limits.idle_datagrams,
        limits: endpoints(settings),
        onion_services: relay::OnionServicesConfig {
            enabled: settings.services,
            introductions: IntroductionRate {
                per_second: settings.introductions_per_second,
                burst: settings.introductions,
            },
        },
        ..relay::Config::default()
    }
}

fn endpoints(settings: &Settings) -> endpoint::Limits {
    endpoint::Limits {
        streams: settings.streams,
        share: settings.share,
        ..endpoint::Limits::default()
    }
}

fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}

impl fmt::Debug for Onion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Onion")
            .field("circuits", &self.circuits())
            .finish_non_exhaustive()
    }
}
