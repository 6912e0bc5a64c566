//! `hoplite client`: programs' traffic in by SOCKS and HTTP, out over the relays of the file.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use hoplite_crypto::Trust;
use hoplite_directory::PathChooser;
use hoplite_link::Peer;
use hoplite_masque::{self as masque, Choose, Hop, Paths, Relay};
use hoplite_mediator::{BindError, Config, Front, Listen};
use hoplite_overlay::{Error, Overlay, direct::Direct};
use hoplite_quic::Watch;
use hoplite_wire::tuning::Agreed;
use tracing::{info, warn};

use crate::{
    config::client::{
        self, Client, OverlayChoice,
        takeover::{Domain, longest},
    },
    listed::{self, Listed},
    measure::testbed::{self, Ready},
    process::{self, Asked, Signals},
    say,
    say::Failure,
    up::control::Socket,
    wallet::{self, Wallets},
};
pub(crate) use by_name::ByName;
use onion::{Circuits, ServiceParts};
pub(crate) use onion::{dialer_of_circuits, relay_of_list};
use service::{Prepared, Running};

mod by_name;
mod control_socket;
mod onion;
pub(crate) mod service;
mod service_directory;
pub(crate) mod status;
mod tor_caches;

/// `hoplite client`
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The TOML file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Answer 'hoplite status --run-dir DIR --name client' there; without it nobody is answered.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

/// Carries traffic with the file.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut client = client::load(&options.config)?;
    client
        .warnings
        .iter()
        .for_each(|warning| warn!("{warning}"));
    process::raise_file_limit();
    let recording = process::Recording::from_environment()?;
    process::current_thread_runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let front = bind(client.config.front())?;
        let mut socket = status::listen(options.run_dir.as_deref())?;
        let mut underlay = Underlay::default();
        let wallets = Wallets::open(&client.config, &underlay.tunnels, wallet::file);
        underlay.wallets = wallets.await?;
        let listed = listed::prepare(&mut client, &underlay.tunnels, None).await?;
        let carried = overlay_of(&client, listed.as_ref(), recording.watch(), &underlay)?;
        let services = service::prepare(&client.config.service)?;
        let services = carried.serve(services, &underlay.flows);
        say::remark(invitation(&front, &client.config));
        let stopped = stopped((&mut signals, &mut socket), &carried, &services);
        front.serve(carried.overlay.clone(), stopped).await;
        carried.tell();
        carried.leave().await;
        info!("the client has stopped");
        Ok(())
    })
}

async fn stopped(
    (signals, socket): (&mut Signals, &mut Socket),
    carried: &ClientOverlay,
    services: &[Running],
) {
    loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Asked::Reload => {
                    carried.tell();
                    services.iter().for_each(Running::tell);
                    info!("a client reads its file only when it starts: start it again");
                }
                Asked::Stop => return,
            },
            asked = socket.asked() => status::answer(asked, carried, services),
        }
    }
}

fn bind(config: Config) -> Result<Front, Failure> {
    Front::bind(config).map_err(|error| match &error {
        BindError::Config(_) => Failure::new(
            "starting the client",
            &error,
            "run 'hoplite check' on the file",
        ),
        BindError::Listen { .. } => {
            Failure::new("starting the client", &error, "then start it again")
        }
    })
}

/// One line that says where to point a browser.
fn invitation(front: &Front, client: &client::Config) -> String {
    let socks = front
        .socks_addr()
        .map(|address| format!("SOCKS5 at {address} (with remote DNS: socks5h://{address})"));
    let http = front
        .http_addr()
        .map(|address| format!("HTTP proxy at http://{address}"));
    let ways: Vec<String> = socks.into_iter().chain(http).collect();
    let path = match client.length() {
        0 => "no relay at all, nothing is hidden".to_owned(),
        hops if client.is_onion() => {
            format!(
                "circuits through {hops} relay(s), for TCP and names, and UDP where the last relay carries it"
            )
        }
        hops => format!("{hops} relay(s) on the path"),
    };
    format!(
        "hoplite: {path}; point your browser at the {}",
        ways.join(" or the ")
    )
}

/// A client of `demo` and `bench`: over the relays of `client`, or over none.
pub(crate) fn serve_node(client: Option<&Client>) -> Result<(), Failure> {
    process::raise_file_limit();
    process::current_thread_runtime()?.block_on(async {
        let front = bind(client.map_or_else(baseline, |client| client.config.front()))?;
        let carried = match client {
            Some(client) => overlay_of(client, None, None, &Underlay::default())?,
            None => ClientOverlay::without_relays(&Underlay::default()),
        };
        let nowhere = || {
            Failure::new(
                "starting the client",
                "it listens nowhere",
                "please report this",
            )
        };
        testbed::ready(&Ready {
            listen: front.socks_addr().ok_or_else(nowhere)?,
            pin: None,
            onion: None,
        })?;
        front
            .serve(carried.overlay.clone(), testbed::orphaned())
            .await;
        carried.leave().await;
        Ok(())
    })
}

fn baseline() -> Config {
    let mut config = Config::default();
    config.socks.listen = Listen::At(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.http.listen = Listen::Off;
    config
}

/// An overlay, and what it is made of.
#[derive(Clone)]
pub(crate) struct ClientOverlay {
    pub(crate) overlay: Arc<dyn Overlay>,
    parts: OverlayParts,
    /// Other paths, that some names take.
    routes: Vec<Self>,
}

/// What an overlay is made of.
#[derive(Clone)]
enum OverlayParts {
    /// Nested hops, those of the path that is used now; none at all is a path, too.
    Hops(Arc<dyn Fn() -> Vec<Hop>>),
    /// Circuits.
    Circuits(Circuits),
}

/// The device's own sockets, on which everything stands.
#[derive(Clone, Debug)]
pub(crate) struct Underlay {
    /// For the first hop.
    pub(crate) tunnels: Direct,
    /// For flows, where no relay is used.
    pub(crate) flows: Direct,
    /// How often a path at rest is looked at, if whoever uses it tells when the network changes.
    pub(crate) rest: Option<Duration>,
    /// Whether flows have isolation tokens, for whose next one a path may stand ready.
    pub(crate) tokens: bool,
    /// Private tokens for relays that want them.
    pub(crate) wallets: Wallets,
}

impl Default for Underlay {
    fn default() -> Self {
        Self {
            tunnels: Direct::for_tunnels(),
            flows: Direct::new(),
            rest: None,
            tokens: true,
            wallets: Wallets::default(),
        }
    }
}

impl ClientOverlay {
    /// The device's own sockets: the baseline of every measurement.
    fn without_relays(underlay: &Underlay) -> Self {
        Self {
            overlay: Arc::new(underlay.flows.clone()),
            parts: OverlayParts::Hops(Arc::new(Vec::new)),
            routes: Vec::new(),
        }
    }

    fn by_circuits(overlay: Arc<dyn Overlay>, circuits: Circuits) -> Self {
        Self {
            overlay,
            parts: OverlayParts::Circuits(circuits),
            routes: Vec::new(),
        }
    }

    fn by(path: masque::Path) -> Self {
        Self {
            overlay: Arc::new(path.clone()),
            parts: OverlayParts::Hops(Arc::new(move || path.hops().to_vec())),
            routes: Vec::new(),
        }
    }

    fn by_one_of(paths: Arc<Paths>) -> Self {
        Self {
            overlay: paths.clone(),
            parts: OverlayParts::Hops(Arc::new(move || paths.current().hops().to_vec())),
            routes: Vec::new(),
        }
    }

    /// What the file calls the relays of the path, the first one first.
    pub(crate) fn names(&self) -> Vec<String> {
        match &self.parts {
            OverlayParts::Hops(hops) => hops().iter().map(|hop| hop.name().to_owned()).collect(),
            OverlayParts::Circuits(circuits) => circuits.names(),
        }
    }

    /// The first of them to which there is no connection now, and its place on the path.
    pub(crate) fn missing(&self) -> Option<(usize, String)> {
        match &self.parts {
            OverlayParts::Hops(hops) => {
                let hops = hops();
                let place = hops.iter().position(|hop| hop.http_version().is_none())?;
                Some((place, hops.get(place)?.name().to_owned()))
            }
            OverlayParts::Circuits(circuits) => circuits.missing(),
        }
    }

    /// What circuits run over now, if they are what carries.
    pub(crate) fn channel(&self) -> Option<&'static str> {
        match &self.parts {
            OverlayParts::Hops(_) => None,
            OverlayParts::Circuits(circuits) => circuits.channel(),
        }
    }

    /// Serves onion services, if they can be; their streams lead to `local`.
    pub(crate) fn serve(&self, services: Vec<Prepared>, local: &Direct) -> Vec<Running> {
        service::start(services, self.service_parts(), local)
    }

    /// How many circuits to onion services stand.
    pub(crate) fn service_circuits(&self) -> usize {
        match &self.parts {
            OverlayParts::Hops(_) => 0,
            OverlayParts::Circuits(circuits) => circuits.service_circuits(),
        }
    }

    /// What onion services are served with, if they can be.
    fn service_parts(&self) -> Option<&ServiceParts> {
        match &self.parts {
            OverlayParts::Hops(_) => None,
            OverlayParts::Circuits(circuits) => circuits.service_parts(),
        }
    }

    /// Whether it leads to onion services.
    pub(crate) fn reaches_services(&self) -> bool {
        self.service_parts().is_some()
    }

    /// The device's network may have changed: the path is looked at soon.
    pub(crate) fn network_changed(&self) {
        self.routes.iter().for_each(Self::network_changed);
        match &self.parts {
            OverlayParts::Hops(hops) => hops().iter().for_each(Hop::network_changed),
            OverlayParts::Circuits(circuits) => circuits.network_changed(),
        }
    }

    /// Nothing is carried any more: relays that would wait for the next circuit are told.
    pub(crate) async fn leave(&self) {
        if let OverlayParts::Circuits(circuits) = &self.parts {
            circuits.leave().await;
        }
    }

    /// Says in the log how the paths did.
    pub(crate) fn tell(&self) {
        match &self.parts {
            OverlayParts::Hops(hops) => tell_hops(&hops()),
            OverlayParts::Circuits(circuits) => circuits.tell(),
        }
        self.routes.iter().for_each(Self::tell);
    }
}

/// Which way the datagrams of each hop went, and how the two ends of it acknowledge.
fn tell_hops(hops: &[Hop]) {
    for (number, hop) in (1..).zip(hops) {
        let (number, passed): (usize, _) = (number, hop.passed());
        let forwarded = passed.forwarded_sent + passed.forwarded_received;
        let tunnelled = passed.tunnelled_sent + passed.tunnelled_received;
        tracing::info!(hop = number, forwarded, tunnelled, "datagrams so far");
        if let Some(Agreed {
            up, down, refused, ..
        }) = hop.agreed()
        {
            let refused = refused.any();
            tracing::info!(hop = number, %up, %down, refused, "acknowledgements");
        }
    }
}

/// What the file asks for, with the list if it names one; `watch` is shown the packets of each hop's connection.
pub(crate) fn overlay_of(
    client: &Client,
    listed: Option<&Listed>,
    watch: Option<Arc<dyn Watch>>,
    underlay: &Underlay,
) -> Result<ClientOverlay, Failure> {
    let carried = match client.config.overlay {
        OverlayChoice::Direct => Ok(ClientOverlay::without_relays(underlay)),
        OverlayChoice::Masque => over_relays(client, listed, watch, underlay),
        OverlayChoice::Onion => onion::over_circuits(client, listed, watch, underlay),
    }?;
    with_routes(carried, client, underlay)
}

/// Each route of the file has a path of its own, over connections of its own. Its names take that path or none.
fn with_routes(
    mut carried: ClientOverlay,
    client: &Client,
    underlay: &Underlay,
) -> Result<ClientOverlay, Failure> {
    let routes = &client.config.route;
    if routes.is_empty() {
        return Ok(carried);
    }
    for route in routes {
        let mut client = client.clone();
        client.config.path.clone_from(&route.path);
        client.config.hops = route.hops;
        let path = over_relays(&client, None, None, underlay)?;
        carried.routes.push(path);
    }
    let domains: Vec<_> = routes.iter().map(|route| route.domains.clone()).collect();
    let paths = carried.routes.iter().map(|path| Arc::clone(&path.overlay));
    let paths: Vec<_> = domains.into_iter().zip(paths).collect();
    let others = carried.overlay;
    carried.overlay = Arc::new(ByName::new(others, move |name| route_of(&paths, name)));
    Ok(carried)
}

/// The path of the longest domain that has the name.
fn route_of(paths: &[(Vec<Domain>, Arc<dyn Overlay>)], name: &str) -> Option<Arc<dyn Overlay>> {
    let fit = |(domains, path): &'_ (Vec<Domain>, Arc<dyn Overlay>)| {
        Some((longest(domains, name)?, Arc::clone(path)))
    };
    let fitting = paths.iter().filter_map(fit);
    fitting
        .max_by_key(|(length, _)| *length)
        .map(|(_, path)| path)
}

/// The relays of the file: the path that it gives, or one that is chosen and replaced when it fails.
/// The whole path is dialled at once, so that the first flow finds it warm.
fn over_relays(
    client: &Client,
    listed: Option<&Listed>,
    watch: Option<Arc<dyn Watch>>,
    underlay: &Underlay,
) -> Result<ClientOverlay, Failure> {
    let below: Arc<dyn Overlay> = Arc::new(underlay.tunnels.clone());
    let mut config = client.config.tunnel.clone();
    config.open_limit = client.config.limits.open;
    config.link.hooks.watch = watch;
    config.link.rest = underlay.rest.unwrap_or(config.link.rest);
    config.spare &= underlay.tokens;
    let config = Arc::new(config);
    let made = if !client.config.path.is_empty() {
        given(client, &below, underlay, &config)
    } else {
        chosen(client, listed, below, underlay, &config)
    };
    made.map_err(|error| Failure::new("making a path", error, "run 'hoplite check' on the file"))
}

fn given(
    client: &Client,
    below: &Arc<dyn Overlay>,
    underlay: &Underlay,
    config: &Arc<masque::Config>,
) -> Result<ClientOverlay, Error> {
    let named = |name: &String| client.relays.iter().find(|hop| hop.relay.name == *name);
    let relays = client.config.path.iter().filter_map(named);
    let relays = relays.map(|hop| relay(hop, &underlay.wallets));
    let path = masque::Path::new(relays.collect(), below, config)?;
    path.keep_warm();
    Ok(ClientOverlay::by(path))
}

fn chosen(
    client: &Client,
    listed: Option<&Listed>,
    below: Arc<dyn Overlay>,
    underlay: &Underlay,
    config: &Arc<masque::Config>,
) -> Result<ClientOverlay, Error> {
    if let Some(listed) = listed {
        return from_list(client, listed, below, (underlay.wallets.clone(), config));
    }
    let relays = client.relays.iter();
    let relays = relays.map(|hop| relay(hop, &underlay.wallets));
    let paths = Paths::new(relays.collect(), below, config, from_file(&client.config))?;
    paths.current().keep_warm();
    Ok(ClientOverlay::by_one_of(Arc::new(paths)))
}

/// The relays of a file are a list that nobody signed.
fn from_file(file: &client::Config) -> Choose {
    let (network, constraints) = (file.network(), file.constraints());
    let (mut chooser, mut random) = (PathChooser::unguarded(), random());
    Box::new(move |failed, _| {
        let failed = failed
            .iter()
            .filter_map(|&place| network.relays().get(place));
        let failed: Vec<_> = failed.map(|relay| relay.identity).collect();
        let path = chooser.select_path(
            &network,
            &constraints,
            &failed,
            listed::moment(),
            &mut random,
        );
        let path = path.ok()?.into_iter();
        Some(
            path.filter_map(|relay| network.place(&relay.identity))
                .collect(),
        )
    })
}

/// Chosen from the directory's list, which is renewed as long as the overlay is used.
fn from_list(
    client: &Client,
    listed: &Listed,
    below: Arc<dyn Overlay>,
    (wallets, config): (Wallets, &Arc<masque::Config>),
) -> Result<ClientOverlay, Error> {
    let relays = client.relays.iter();
    let relays = relays.map(|hop| relay(hop, &wallets)).collect();
    let beside = Arc::clone(&below);
    let paths = Paths::new(relays, below, config, listed.chooser())?;
    paths.current().keep_warm();
    let paths = Arc::new(paths);
    let (listed, token, through) = (listed.clone(), client.token.clone(), Arc::clone(&paths));
    let chosen = Arc::clone(&paths);
    let near = (listed.clone(), Arc::clone(&paths), Arc::clone(&beside));
    let config = Arc::clone(config);
    tokio::spawn(async move {
        let (listed, paths, below) = near;
        let measuring = listed.measure_exits(&paths, Arc::clone(&below), &config);
        tokio::join!(measuring, listed.keep_to_guards(&paths, below, &config));
    });
    tokio::spawn(async move {
        let found = |listed: &Listed| {
            let relays = listed.relays(token.as_ref());
            chosen.renew(
                relays.iter().map(|hop| relay(hop, &wallets)).collect(),
                listed.chooser(),
            );
        };
        listed.keep(through, beside, found).await;
    });
    Ok(ClientOverlay::by_one_of(paths))
}

/// From the operating system: which relays are chosen must not be foreseeable.
pub(crate) fn random() -> Box<dyn FnMut(u64) -> u64 + Send> {
    use ring::rand::{SecureRandom, SystemRandom};
    let source = SystemRandom::new();
    Box::new(move |below| {
        let mut bytes = [0; 8];
        // Without randomness the first candidate is taken: a path is still made.
        source.fill(&mut bytes).unwrap_or_default();
        u64::from_le_bytes(bytes) % below.max(1)
    })
}

/// In an order that nobody can guess.
pub(crate) fn shuffle<T>(all: &mut [T]) {
    let mut random = random();
    for end in (1..all.len()).rev() {
        let most = u64::try_from(end).unwrap_or(0).saturating_add(1);
        all.swap(end, usize::try_from(random(most)).unwrap_or(0));
    }
}

/// A relay, and where its private tokens come from.
pub(crate) fn relay(hop: &client::Hop, wallets: &Wallets) -> Relay {
    let trust = match hop.relay.pin {
        Some(pin) => Trust::Pins(vec![pin]),
        None => Trust::WebPki,
    };
    Relay {
        peer: Peer {
            name: hop.relay.name.clone(),
            address: hop.relay.address.clone(),
            trust,
        },
        token: hop.token.clone(),
        tokens: wallets.source(&hop.relay),
        template: hop.relay.template.clone(),
        mode: hop.relay.mode,
    }
}

#[cfg(test)]
mod tests {
    use hoplite_testing::Double;

    use super::*;

    #[test]
    fn a_name_takes_the_path_of_the_longest_domain_that_has_it() {
        let domain = |text: &str| text.parse::<Domain>().expect("a domain");
        let paths: [Arc<dyn Overlay>; 2] =
            [Arc::new(Double::nothing()), Arc::new(Double::nothing())];
        let routes = [
            (
                vec![domain("example.org"), domain("b.a.example.org")],
                Arc::clone(&paths[0]),
            ),
            (vec![domain("a.example.org")], Arc::clone(&paths[1])),
        ];
        let taken = |name| {
            let route = route_of(&routes, name)?;
            paths.iter().position(|path| Arc::ptr_eq(path, &route))
        };
        assert_eq!(taken("www.example.org"), Some(0));
        assert_eq!(taken("A.Example.org"), Some(1));
        assert_eq!(taken("c.a.example.org"), Some(1));
        assert_eq!(taken("b.a.example.org"), Some(0));
        assert_eq!(taken("notexample.org"), None);
    }
}
