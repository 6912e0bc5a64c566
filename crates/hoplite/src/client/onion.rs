//! The client's circuits: made from the configuration, over channels that stand on the device's own sockets. docs/onion.md.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hoplite_channel::{
    self as channel, ChannelDialer, Channels, Counts, How, PaddingParameters, handshake::Us,
};
use hoplite_crypto::onion::RelayKeys;
use hoplite_directory::{
    self as directory, Refused, ServiceCircuit,
    path_selection::{Network, NoPath, Position},
};
use hoplite_onion::{
    Events, Onion,
    channel::{Carriers, Dialer, Linked, Waiting},
    onion_service::{
        self, ClientKeys, Descriptors, DirectoryCircuits, Reach, ServiceDirectory, ServicesOverlay,
    },
    path::{self, CircuitFate, Failed, Fixed, Paths, Relay, ServiceEnd, ServicePurpose},
};
use hoplite_overlay::{Datagrams, Error, ErrorKind, Opening, Overlay, Reason, Stream, Terms};
use hoplite_quic::Watch;
use hoplite_wire::{
    Host, OnionKey, Target,
    directory::{Descriptor, Key},
    dns::{Code, Question, RecordType, Unfit},
    tuning::Congestion,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{
    ClientOverlay, Underlay, control_socket::ControlSocket, service_directory::ListedHsDirs,
    tor_caches::TorCaches,
};
use crate::{
    config::{self, client::Client},
    listed::{Listed, no_path},
    say::Failure,
};

/// How often channels that nobody needs are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// How long the last packets may take to leave this device.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(20);

/// Circuits that a first relay begins towards this client, who serves none: they are refused.
const ARRIVALS: usize = 1;

/// What is told of the circuits.
#[derive(Clone, Debug)]
pub(super) struct Circuits {
    /// What the file calls the relays of the path.
    names: Arc<[String]>,
    channels: Channels,
    parts: Option<Arc<ServiceParts>>,
    services: Arc<ServicesOverlay>,
    _control: Option<Arc<ControlSocket>>,
}

/// What onion services are reached and served with, where there is a list of relays.
#[derive(Clone)]
pub(super) struct ServiceParts {
    pub(super) directory: Arc<dyn ServiceDirectory>,
    pub(super) dialer: Arc<dyn Dialer>,
    pub(super) paths: Arc<dyn Paths>,
    /// Bounds of each circuit.
    pub(super) circuits: hoplite_onion::Config,
}

impl ServiceParts {
    fn reach(&self, keys: &ClientKeys) -> Reach {
        let (dialer, paths) = (Arc::clone(&self.dialer), Arc::clone(&self.paths));
        let (directory, keys) = (Arc::clone(&self.directory), keys.clone());
        Reach {
            client: onion_service::Client::new(
                dialer,
                paths,
                &self.circuits,
                self.circuits.services,
            ),
            descriptors: Descriptors::new(directory, keys, self.circuits.descriptors),
        }
    }
}

impl fmt::Debug for ServiceParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceParts")
    }
}

/// The overlay of circuits over the path of the file. The first circuit is begun at once, so that the first flow finds it.
pub(super) fn over_circuits(
    client: &Client,
    listed: Option<&Listed>,
    watch: Option<Arc<dyn Watch>>,
    underlay: &Underlay,
) -> Result<ClientOverlay, Failure> {
    let (file, control) = followed(&client.config.onion)?;
    let file = &file;
    let padding = padding_parameters(listed);
    let channels = Channels::new(dialer(client, watch, underlay, padding), |_| {});
    let linked = Linked::new(channels.clone(), carriers(client, listed));
    let path = &client.config.path;
    let listed = listed
        .map(|listed| FromList::new(listed, path))
        .transpose()?;
    let paths: Arc<dyn Paths> = match &listed {
        Some(listed) => Arc::clone(listed) as _,
        None => Arc::new(path_of_file(client)?),
    };
    let dialer: Arc<dyn Dialer> = Arc::new(linked);
    let onion = Onion::new(Arc::clone(&dialer), Arc::clone(&paths), file.clone());
    onion.warm();
    tokio::spawn(sweep(channels.clone()));
    let parts = listed.as_ref().map(|from| {
        let circuits = DirectoryCircuits::new(Arc::clone(&dialer), Arc::clone(&paths), file);
        ServiceParts {
            directory: Arc::new(ListedHsDirs::new(&from.listed, circuits)),
            dialer,
            paths,
            circuits: file.clone(),
        }
    });
    let reach = parts.as_ref().map(|parts| parts.reach(&client.client_keys));
    let services = Arc::new(ServicesOverlay::new(Arc::new(onion), reach));
    let circuits = Circuits {
        names: client.config.path.clone().into(),
        channels,
        parts: parts.map(Arc::new),
        services: Arc::clone(&services),
        _control: control.map(Arc::new),
    };
    let overlay: Arc<dyn Overlay> = Arc::new(Telling::new(services));
    if let (Some(listed), Some(parts)) = (listed, circuits.service_parts()) {
        let through = through(client, &listed, parts, &overlay);
        listed.keep(through, Arc::new(underlay.tunnels.clone()));
    }
    Ok(ClientOverlay::by_circuits(overlay, circuits))
}

/// The file's circuits, and the socket at which they can be followed if the file has one.
fn followed(
    file: &hoplite_onion::Config,
) -> Result<(hoplite_onion::Config, Option<ControlSocket>), Failure> {
    let mut file = file.clone();
    let Some(path) = &file.control else {
        return Ok((file, None));
    };
    let events = Events::open();
    let control = ControlSocket::listen(path, events.clone())
        .map_err(|error| Failure::file("listening at onion.control", path, &error))?;
    file.events = events;
    Ok((file, Some(control)))
}

/// What dials first relays for who builds circuits over paths of his own: a scanner.
pub(crate) fn dialer_of_circuits(
    client: &Client,
    listed: &Listed,
    underlay: &Underlay,
) -> Arc<dyn Dialer> {
    let padding = padding_parameters(Some(listed));
    let channels = Channels::new(dialer(client, None, underlay, padding), |_| {});
    tokio::spawn(sweep(channels.clone()));
    Arc::new(Linked::new(channels, carriers(client, Some(listed))))
}

/// What circuits run over, by the file and, in a network of Tor's, by its consensus.
struct ByConsensus {
    /// None: the file alone says it.
    listed: Option<Listed>,
    file: How,
}

fn carriers(client: &Client, listed: Option<&Listed>) -> ByConsensus {
    let file = &client.config;
    let tor = file.directory.as_ref().and_then(|it| it.tor.as_ref());
    ByConsensus {
        listed: tor.and(listed).cloned(),
        file: file.onion.channel,
    }
}

/// A relay of C tor has nothing but TLS, and who watches would learn from anything else that this is no client of Tor's.
impl Carriers for ByConsensus {
    fn how(&self, identity: &[u8; 32], _: SocketAddr) -> How {
        let Some(listed) = &self.listed else {
            return self.file;
        };
        let network = listed.current().ok();
        let tor = network.as_ref();
        let tor = tor.and_then(|network| network.tor_relay(&Key(*identity)));
        match tor {
            Some(relay) if relay.quic => self.file,
            _ => How::Tls,
        }
    }
}

/// By what the list is renewed: the circuits to targets, or to relays that are directories.
fn through(
    client: &Client,
    listed: &FromList,
    parts: &ServiceParts,
    circuits: &Arc<dyn Overlay>,
) -> Arc<dyn Overlay> {
    let file = client.config.directory.as_ref();
    if file.is_none_or(|file| file.tor.is_none()) {
        return Arc::clone(circuits);
    }
    let (dialer, paths) = (Arc::clone(&parts.dialer), Arc::clone(&parts.paths));
    let circuits = DirectoryCircuits::new(dialer, paths, &parts.circuits);
    Arc::new(TorCaches::new(&listed.listed, circuits))
}

/// As the list has them when the client starts.
fn padding_parameters(listed: Option<&Listed>) -> PaddingParameters {
    let network = listed.and_then(|listed| listed.current().ok());
    PaddingParameters::of(|name| network.as_ref()?.param(name))
}

fn dialer(
    client: &Client,
    watch: Option<Arc<dyn Watch>>,
    underlay: &Underlay,
    padding_parameters: PaddingParameters,
) -> ChannelDialer {
    let mut link = hoplite_link::Config::default();
    link.hooks.watch = watch;
    link.tuning_request.congestion = congestion(client.config.tunnel.congestion);
    link.rest = underlay.rest.unwrap_or(link.rest);
    let (file, usual) = (&client.config.onion, channel::Config::default());
    let kept_open = padding_parameters.kept_open(file.padding);
    let config = channel::Config {
        arrivals: ARRIVALS,
        window: file.window,
        padding: file.padding,
        padding_parameters,
        idle: kept_open.unwrap_or(usual.idle),
        rival: file.rival,
        ..usual
    };
    let below: Arc<dyn Overlay> = Arc::new(underlay.tunnels.clone());
    // Without an identity: relays do not learn who dials.
    ChannelDialer::new(
        below,
        Us::default(),
        &link,
        config,
        Arc::<Counts>::default(),
    )
}

/// Of what this end sends. What circuits carry does not control itself.
fn congestion(asked: Congestion) -> Congestion {
    match asked {
        Congestion::Off => Congestion::Auto,
        asked => asked,
    }
}

async fn sweep(channels: Channels) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        channels.sweep(Instant::now());
    }
}

impl Circuits {
    /// What the file calls the relays of the path, the first one first.
    pub(super) fn names(&self) -> Vec<String> {
        self.names.to_vec()
    }

    /// The first relay, if there is no channel to it now: of those behind it this device knows nothing.
    pub(super) fn missing(&self) -> Option<(usize, String)> {
        let first = self.names.first().cloned().unwrap_or_default();
        self.channels.is_empty().then_some((0, first))
    }

    /// What onion services are served with.
    pub(super) fn service_parts(&self) -> Option<&ServiceParts> {
        self.parts.as_deref()
    }

    /// How many circuits to onion services stand.
    pub(super) fn service_circuits(&self) -> usize {
        self.services.circuits()
    }

    /// What circuits run over.
    pub(super) fn channel(&self) -> Option<&'static str> {
        let open = self.channels.open();
        let taken = |channel: &&channel::Channel| !channel.standing().is_superseded();
        let first = open.iter().find(taken).or_else(|| open.first());
        first.map(|channel| channel.kind().name())
    }

    /// The device's network may have changed.
    pub(super) fn network_changed(&self) {
        self.channels
            .open()
            .iter()
            .for_each(channel::Channel::network_changed);
    }

    /// Closes the channels, so that relays need not keep circuits of a client that is gone until they notice.
    pub(super) async fn leave(&self) {
        let open = self.channels.open();
        open.iter().for_each(channel::Channel::close);
        if !open.is_empty() {
            sleep(CLOSE_TIMEOUT).await;
        }
    }

    /// Says in the log what circuits run over.
    pub(super) fn tell(&self) {
        for channel in self.channels.open() {
            let (kind, circuits) = (channel.kind(), channel.circuits());
            tracing::info!(?kind, circuits, "a channel to a first relay");
        }
    }
}

/// Gives a number below its argument.
type Random = Box<dyn FnMut(u64) -> u64 + Send>;

/// Chooses paths from the list; docs/onion.md, "How a path is chosen".
pub(crate) struct FromList {
    listed: Listed,
    /// The path of an experiment: names or identities, always the same.
    explicit: Vec<String>,
    random: Mutex<Random>,
}

impl FromList {
    /// Paths as the file asks for them; or always the relays that `explicit` names, if it names any.
    pub(crate) fn new(listed: &Listed, explicit: &[String]) -> Result<Arc<Self>, Failure> {
        let made = Self::with(listed, explicit, super::random());
        // What cannot work is said at once.
        let first = made.choose(&path::CircuitUsage::default());
        first.map_err(|error| match error {
            Unchosen::NoPath(error, _) => no_path(&error),
            Unchosen::Refused(error) => unchosen(error),
            Unchosen::NoDatagrams => unchosen(path::no_datagrams()),
        })?;
        Ok(Arc::new(made))
    }

    fn with(listed: &Listed, explicit: &[String], random: Random) -> Self {
        Self {
            listed: listed.clone(),
            explicit: explicit.to_vec(),
            random: Mutex::new(random),
        }
    }

    /// Renews the list as long as the process lives: through the circuits, or beside them where that fails.
    pub(crate) fn keep(&self, through: Arc<dyn Overlay>, beside: Arc<dyn Overlay>) {
        let listed = self.listed.clone();
        tokio::spawn(async move { listed.keep(through, beside, |_| {}).await });
    }

    fn choose(&self, asked: &path::CircuitUsage) -> Result<Vec<Relay>, Unchosen> {
        let network = self.listed.current()?;
        if let Some(path) = self.explicit(&network)? {
            let carries = path.last().is_some_and(Relay::carries_datagrams);
            let fits = carries || !asked.datagrams;
            return fits.then_some(path).ok_or(Unchosen::NoDatagrams);
        }
        let mut random = self.random.lock();
        let path = self.listed.circuit(&network, asked, &mut *random);
        let path = path.map_err(|why| Unchosen::unless(why, asked, &network))?;
        let path = path.iter();
        Ok(path
            .filter_map(|relay| relay_of_list(&network, relay))
            .collect())
    }

    fn choose_for_service(
        &self,
        purpose: ServicePurpose,
        end: ServiceEnd<'_>,
    ) -> Result<Vec<Relay>, Unchosen> {
        let network = self.listed.current()?;
        if let Some(mut path) = self.explicit(&network)? {
            return path::ends(&mut path, end)
                .then_some(path)
                .ok_or_else(|| NoPath::Service.into());
        }
        let mut random = self.random.lock();
        let others: Vec<Key>;
        let (end, given) = match end {
            ServiceEnd::Given(last) => {
                let identity = Key(last.keys.ed25519);
                (directory::ServiceEnd::Given(identity), Some(last.clone()))
            }
            ServiceEnd::OtherThan(relays) => {
                others = relays.iter().copied().map(Key).collect();
                (directory::ServiceEnd::OtherThan(&others), None)
            }
            ServiceEnd::ToCome => (directory::ServiceEnd::ToCome, None),
        };
        let circuit = ServiceCircuit { purpose, end };
        let path = self
            .listed
            .service_circuit(&network, circuit, &mut *random)?;
        let path = path.iter();
        let path = path.filter_map(|relay| relay_of_list(&network, relay));
        Ok(path.chain(given).collect())
    }

    /// The path of an experiment.
    fn explicit(&self, network: &Network) -> Result<Option<Vec<Relay>>, NoPath> {
        if self.explicit.is_empty() {
            return Ok(None);
        }
        let relays = network.explicit(&self.explicit, &self.listed.constraints())?;
        let relays = relays.into_iter();
        let relays = relays.filter_map(|relay| relay_of_list(network, relay));
        Ok(Some(relays.collect()))
    }
}

impl Paths for FromList {
    fn path<'a>(&'a self, usage: &'a path::CircuitUsage) -> Waiting<'a, Result<Vec<Relay>, Error>> {
        Box::pin(async { self.choose(usage).map_err(Error::from) })
    }

    fn service_path<'a>(
        &'a self,
        purpose: ServicePurpose,
        end: ServiceEnd<'a>,
    ) -> Waiting<'a, Result<Vec<Relay>, Error>> {
        Box::pin(async move { self.choose_for_service(purpose, end).map_err(Error::from) })
    }

    fn fares(&self, path: &[Relay], fate: CircuitFate) {
        if let Some(guard) = path.first() {
            let guard = Key(guard.keys.ed25519);
            self.listed.circuit_fares(&guard, fate);
        }
    }

    /// None where the file names the path, has fewer than two relays in it, or where the list allows no pair.
    fn pair<'a>(
        &'a self,
        usage: &'a path::CircuitUsage,
    ) -> Waiting<'a, Result<Option<[Vec<Relay>; 2]>, Error>> {
        Box::pin(async {
            let network = self.listed.current().map_err(Unchosen::from)?;
            let hops = self.listed.constraints().hops;
            if !self.explicit.is_empty() || hops < 2 {
                return Ok(None);
            }
            let mut random = self.random.lock();
            let pair = self.listed.pair(&network, &usage.ports, &mut *random);
            let known = |relay: &Descriptor| relay_of_list(&network, relay);
            let known = |path: Vec<Descriptor>| path.iter().filter_map(known).collect();
            Ok(pair.ok().map(|pair| pair.map(known)))
        })
    }

    fn tried(&self, path: &[Relay], outcome: Result<(), Failed>) {
        let identity = |hop: usize| path.get(hop).map(|relay| Key(relay.keys.ed25519));
        match outcome {
            Ok(()) => {
                if let Some(guard) = identity(0) {
                    self.listed.worked(&guard);
                }
            }
            Err(failed) => {
                if failed.refused {
                    self.listed.hurry();
                }
                if let Some(relay) = identity(failed.hop) {
                    self.listed.failed(relay, failed.hop);
                }
            }
        }
    }
}

fn unchosen(why: impl fmt::Display) -> Failure {
    Failure::new(
        "choosing a path from the list",
        why,
        "see docs/directory.md",
    )
}

/// Why there is no path.
enum Unchosen {
    /// The list must not be used any more.
    Refused(Refused),
    /// It allows none; whether that was for a stream that waits.
    NoPath(NoPath, bool),
    /// No exit that may be the last relay carries datagrams.
    NoDatagrams,
}

impl Unchosen {
    fn unless(why: NoPath, asked: &path::CircuitUsage, network: &Network) -> Self {
        let mut relays = network.relays().iter();
        let speaks = |relay: &Descriptor| relay.protocols.has(asked.protocols());
        if asked.datagrams && !relays.any(speaks) {
            return Self::NoDatagrams;
        }
        Self::NoPath(why, asked.required)
    }
}

impl From<NoPath> for Unchosen {
    fn from(error: NoPath) -> Self {
        Self::NoPath(error, false)
    }
}

impl From<Refused> for Unchosen {
    fn from(error: Refused) -> Self {
        Self::Refused(error)
    }
}

impl From<Unchosen> for Error {
    fn from(error: Unchosen) -> Self {
        let doing = |why: &dyn fmt::Display| format!("choosing a path from the list: {why}");
        match error {
            Unchosen::Refused(why) => Self::new(ErrorKind::PathFailed, doing(&why)),
            Unchosen::NoPath(why @ NoPath::Nobody(Position::Exit), true) => {
                Self::new(ErrorKind::Forbidden, doing(&why)).because(Reason::Policy)
            }
            Unchosen::NoDatagrams => path::no_datagrams(),
            Unchosen::NoPath(why, _) => Self::new(ErrorKind::PathFailed, doing(&why)),
        }
    }
}

/// What circuits need to know of a listed relay; ours all speak ntor-v3, have congestion control and know half-closed streams, and of others Tor's
/// consensus says it.
pub(crate) fn relay_of_list(network: &Network, relay: &Descriptor) -> Option<Relay> {
    let (identity, ntor) = (relay.identity.0, relay.onion?);
    let mut keys = RelayKeys::from(OnionKey { identity, ntor });
    let tor = network.tor_relay(&relay.identity);
    keys.rsa_id = tor.map_or(keys.rsa_id, |known| known.rsa_id);
    Some(Relay {
        // Errors say which hop: they get into the log, and a name there would say whom the list gave us.
        name: "".into(),
        keys,
        rsa: tor.is_some(),
        addresses: relay.addresses.clone(),
        ntor3: tor.is_none_or(|known| known.ntor3),
        congestion_control: tor.is_none_or(|known| known.congestion_control),
        protocols: relay.protocols,
        half_close: tor.is_none(),
        exit: relay.exit.clone().map(Arc::new),
    })
}

impl fmt::Debug for FromList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromList")
    }
}

/// The path that the file gives: always the same relays, known by their onion keys.
fn path_of_file(client: &Client) -> Result<Fixed, Failure> {
    let named = |name: &String| client.relays.iter().find(|hop| hop.relay.name == *name);
    let relays = client.config.path.iter().filter_map(named);
    let relays: Option<Vec<_>> = relays.map(|hop| relay_of_file(&hop.relay)).collect();
    let wrong = || {
        let why = "a relay of the path has no onion key, or no address";
        Failure::new("making a path", why, "run 'hoplite check' on the file")
    };
    relays.map(Fixed).ok_or_else(wrong)
}

/// What circuits need to know of a relay. One that has an RSA identity is Tor's; all of ours speak what Tor's do, and half-closed streams.
fn relay_of_file(relay: &config::client::Relay) -> Option<Relay> {
    let Host::Ip(ip) = relay.address.host else {
        return None;
    };
    let mut keys = RelayKeys::from(relay.onion?);
    keys.rsa_id = relay.rsa.map_or(keys.rsa_id, |rsa| rsa.0);
    Some(Relay {
        // Errors say which hop: they get into the log.
        name: "".into(),
        keys,
        rsa: relay.rsa.is_some(),
        addresses: vec![SocketAddr::new(ip, relay.address.port)],
        ntor3: true,
        congestion_control: true,
        protocols: relay.protocols.unwrap_or_default(),
        half_close: relay.rsa.is_none(),
        exit: None,
    })
}

/// How long the same failure is not told again.
const QUIET: Duration = Duration::from_secs(60);

/// The overlay of circuits, whose failures are told to the user in the log, the same one once a minute at most: programs are told too little to know what
/// to do.
#[derive(Debug)]
struct Telling {
    below: Arc<dyn Overlay>,
    last: Mutex<Option<(String, Instant)>>,
}

impl Telling {
    fn new(below: Arc<dyn Overlay>) -> Self {
        Self {
            below,
            last: Mutex::default(),
        }
    }

    fn tell(&self, error: &Error) {
        let kinds = [ErrorKind::EntryUnreachable, ErrorKind::PathFailed];
        let text = error.to_string();
        // A target that is late is no circuit's fault. What an onion service is not reached for, no program is told.
        let is_the_paths = kinds.contains(&error.kind())
            || text.starts_with("building a circuit")
            || text.contains("onion service");
        if is_the_paths && self.is_news(&text) {
            warn!("{text}");
        }
    }

    fn is_news(&self, text: &str) -> bool {
        let mut last = self.last.lock();
        let told = last
            .as_ref()
            .is_some_and(|(told, when)| told == text && when.elapsed() < QUIET);
        if !told {
            *last = Some((text.to_owned(), Instant::now()));
        }
        !told
    }
}

impl Overlay for Telling {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(async move {
            let opened = self.below.open_stream(target, terms).await;
            opened.inspect_err(|error| self.tell(error))
        })
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        self.below.open_datagrams(target, terms)
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            let found = self.below.resolve(name, terms).await;
            found.inspect_err(|error| self.tell(error))
        })
    }

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        Box::pin(answer(self, message, terms))
    }
}

/// For how many seconds an answer may be kept: exits say nothing of it.
const RESOLVED_TTL: u32 = 60;

/// The answer to a question to a resolver, where circuits carry it: addresses of names, which the exit resolves (RELAY_RESOLVE). Tor has nothing for
/// others. RFC 1035 §4.1.1 has the codes.
async fn answer(below: &dyn Overlay, message: &[u8], terms: &Terms) -> Result<Vec<u8>, Error> {
    let question = match Question::read(message) {
        Ok(question) => question,
        Err(Unfit::Answered(reply)) => return Ok(reply),
        Err(Unfit::Nothing) => {
            return Err(Error::new(ErrorKind::Bug, "asking what is no question"));
        }
    };
    let has_addresses = matches!(question.kind(), RecordType::A | RecordType::AAAA);
    let Some(name) = question.name().filter(|_| has_addresses) else {
        return Ok(question.failed(Code::NOT_IMPLEMENTED));
    };
    match below.resolve(name.as_str(), terms).await {
        Ok(found) => Ok(question.addresses(found, RESOLVED_TTL)),
        Err(error) if error.reason() == Some(Reason::NameNotFound) => {
            Ok(question.nothing(Code::NO_NAME, RESOLVED_TTL))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod telling_tests {
    use std::sync::Arc;

    use hoplite_channel::{ChannelDialer, Channels, Config, Counts, How, handshake::Us};
    use hoplite_onion::{channel::Linked, path::Fixed};
    use hoplite_overlay::Direct;

    use super::*;

    fn telling() -> Telling {
        let below = Arc::new(Direct::new());
        let link = hoplite_link::Config::default();
        let counts = Arc::<Counts>::default();
        let dialer = ChannelDialer::new(below, Us::default(), &link, Config::default(), counts);
        let linked = Linked::new(Channels::new(dialer, |_| {}), How::Raced);
        let paths = Arc::new(Fixed(Vec::new()));
        let config = hoplite_onion::Config::default();
        Telling::new(Arc::new(Onion::new(Arc::new(linked), paths, config)))
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_failure_is_told_once_a_minute() {
        let telling = telling();
        assert!(telling.is_news("hop 1"));
        assert!(!telling.is_news("hop 1"));
        assert!(telling.is_news("hop 2"));
        assert!(!telling.is_news("hop 2"));
        tokio::time::advance(QUIET).await;
        assert!(telling.is_news("hop 2"));
    }
}

#[cfg(test)]
mod query_tests {
    use std::net::IpAddr;

    use hoplite_testing::Double;
    use hoplite_wire::HostName;

    use super::*;

    const FAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 7));

    /// An exit that knows one name.
    fn exit() -> Double {
        Double::nothing().names(|_, name, _| {
            let unknown = Error::new(ErrorKind::TargetFailed, "testing");
            Box::pin(async move {
                match name {
                    "target.example" => Ok(vec![FAR]),
                    _ => Err(unknown.because(Reason::NameNotFound)),
                }
            })
        })
    }

    async fn asked(name: &str, kind: RecordType) -> (Code, Vec<IpAddr>) {
        let question = Question::new(&HostName::new(name).expect("a name"), kind);
        let reply = answer(&exit(), &question.message(), &Terms::default()).await;
        question.heard(&reply.expect("answered")).expect("believed")
    }

    #[tokio::test]
    async fn addresses_come_from_the_exit_and_other_records_from_nobody() {
        let found = asked("target.example", RecordType::A).await;
        assert_eq!(found, (Code::NO_ERROR, vec![FAR]));
        let found = asked("target.example", RecordType::AAAA).await;
        assert_eq!(found, (Code::NO_ERROR, Vec::new()));
        let found = asked("nowhere.example", RecordType::A).await;
        assert_eq!(found, (Code::NO_NAME, Vec::new()));
        let found = asked("target.example", RecordType::MX).await;
        assert_eq!(found, (Code::NOT_IMPLEMENTED, Vec::new()));
    }
}

#[cfg(test)]
mod tests;
