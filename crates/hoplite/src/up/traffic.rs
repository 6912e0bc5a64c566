//! What carries the traffic of `hoplite up`: the path of the file on marked sockets, and the way past it for excluded names; how names are found
//! meanwhile, and whether traffic flows.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use hoplite_overlay::{
    Direct, Error, ErrorKind, Opening, Overlay, Reason, Terms,
    direct::{NAT64_NAME, Resolver, resolver::special},
};
use hoplite_wire::{Host, HostName, Target};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, timeout_at};

use super::{plan::MARK, stocks::Elsewhere};
use crate::{
    client::{self, ByName, ClientOverlay, Underlay},
    config::client::{Client, Issuer, takeover::Domains},
    listed::Listed,
    process,
    say::Failure,
    wallet::{Purse, Wallets},
};

/// How long the names of relays may take before anything is taken over.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a path at rest is looked at: seldom, for the kernel tells when the network changes, and an idle device should sleep.
const REST: Duration = Duration::from_secs(60);

/// Looks up the names of relays and issuers while the system can still be asked.
pub(super) async fn names(
    client: &Client,
    servers: &[SocketAddr],
    asks_system: bool,
) -> Arc<Remembering> {
    let names = Remembering::default();
    names.ask(servers);
    if asks_system {
        let issuers = client.config.issuer.iter();
        let issuers = issuers.filter_map(|issuer| named(&issuer.address));
        let first = first_relays(client).into_iter().chain(issuers);
        join_all(first.map(|name| learn(&names, name))).await;
    }
    Arc::new(names)
}

async fn learn(names: &Remembering, name: HostName) {
    let terms = Terms::default().within(RESOLVE_TIMEOUT);
    // What cannot be found now is asked for again when it is dialled.
    if let Ok(addresses) = Direct::new().resolve(name.as_str(), &terms).await {
        names.learn(name, addresses);
    }
}

/// Those of the relays that may be the first of a path and are given by name.
fn first_relays(client: &Client) -> Vec<HostName> {
    let config = &client.config;
    let routes = config.route.iter().map(|route| route.path.first());
    let first: Vec<_> = std::iter::once(config.path.first()).chain(routes).collect();
    let may_be_first = |name: &String| first.iter().any(|one| one.is_none_or(|one| one == name));
    let relays = config
        .relay
        .iter()
        .filter(|relay| may_be_first(&relay.name));
    relays.filter_map(|relay| named(&relay.address)).collect()
}

fn named(address: &Target) -> Option<HostName> {
    match &address.host {
        Host::Name(name) => Some(name.clone()),
        Host::Ip(_) => None,
    }
}

/// Private tokens, whose files the process at the other end of `socket` has. Their issuers are asked by marked sockets, as the first relay is dialled:
/// before there is a path, and never over it (see [`crate::wallet`]).
pub(super) async fn wallets(
    client: &Client,
    socket: OwnedFd,
    names: &Arc<Remembering>,
) -> Result<Wallets, Failure> {
    let purse = |(number, _): (usize, &Issuer)| {
        let socket = socket.try_clone().map_err(|error| {
            let remedy = "raise the limit of open files";
            Failure::new("reaching the private tokens", error, remedy)
        })?;
        Ok(Box::new(Elsewhere::new(socket, number)) as Box<dyn Purse>)
    };
    Wallets::open(&client.config, &marked(names), purse).await
}

fn marked(names: &Arc<Remembering>) -> Direct {
    let direct = Direct::for_tunnels().mark(MARK);
    direct.resolver(Arc::clone(names) as _)
}

/// The path.
pub(super) fn carried(
    client: &Client,
    (listed, wallets): (Option<&Listed>, Wallets),
    recording: &process::Recording,
    names: &Arc<Remembering>,
) -> Result<ClientOverlay, Failure> {
    let underlay = Underlay {
        tunnels: marked(names),
        flows: past(names),
        rest: Some(REST),
        tokens: false,
        wallets,
    };
    client::overlay_of(client, listed, recording.watch(), &underlay)
}

/// The path, or the fork in front of it.
pub(super) fn split(
    client: &Client,
    carried: &ClientOverlay,
    names: &Arc<Remembering>,
) -> Arc<dyn Overlay> {
    let domains = Domains::of(&client.config);
    if domains.takes_all() {
        Arc::clone(&carried.overlay)
    } else {
        let relays = Arc::clone(&carried.overlay);
        Arc::new(split_off(relays, Arc::clone(names), domains))
    }
}

/// How long an answer is used before it is asked for again; it stays the last resort for ever.
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);

/// Names that are remembered; one more takes the place of the oldest.
const NAMES: usize = 256;

/// How long asking may take.
const ASKING_PATIENCE: Duration = Duration::from_secs(8);

/// Names of relays, and of what is excluded, while the system's own resolver is not to be asked: its questions come to us.
///
/// The name of a relay is looked up before anything is taken over. Later its answer is fresh for a while; then the network's name servers
/// are asked by marked sockets, and while they are silent the old answer serves. So a name is never asked through the path that needs it.
#[derive(Default)]
pub(crate) struct Remembering {
    servers: Mutex<Vec<SocketAddr>>,
    known: Mutex<HashMap<HostName, Known>>,
}

#[derive(Clone)]
struct Known {
    addresses: Vec<IpAddr>,
    since: Instant,
}

impl Remembering {
    /// Whom to ask from now on, the first one first.
    pub(crate) fn ask(&self, servers: &[SocketAddr]) {
        *lock(&self.servers) = servers.to_vec();
    }

    /// Whom it asks.
    pub(crate) fn servers(&self) -> Vec<SocketAddr> {
        lock(&self.servers).clone()
    }

    /// Remembers an answer that somebody else got.
    pub(crate) fn learn(&self, name: HostName, addresses: Vec<IpAddr>) {
        let since = Instant::now();
        let mut known = lock(&self.known);
        if known.len() >= NAMES && !known.contains_key(&name) {
            forget_oldest(&mut known);
        }
        known.insert(name, Known { addresses, since });
    }

    async fn find(&self, name: &HostName) -> Result<Vec<IpAddr>, Error> {
        let known = lock(&self.known).get(name).cloned();
        if let Some(known) = known
            .as_ref()
            .filter(|known| known.since.elapsed() < REFRESH_INTERVAL)
        {
            return Ok(known.addresses.clone());
        }
        match (look_up(&self.servers(), name).await, known) {
            (Ok(addresses), _) => {
                self.learn(name.clone(), addresses.clone());
                Ok(addresses)
            }
            (Err(_), Some(old)) => Ok(old.addresses),
            (Err(error), None) => Err(error),
        }
    }

    /// Whom to ask where a network has its NAT64: those who are reached by IPv6. An IPv4 address may lack its route for a moment while somebody sets the
    /// network up anew, and where IPv4 carries a question it is no network with IPv6 alone.
    fn of_ipv6(&self) -> Vec<SocketAddr> {
        let mut servers = self.servers();
        servers.retain(SocketAddr::is_ipv6);
        servers
    }
}

async fn look_up(servers: &[SocketAddr], name: &HostName) -> Result<Vec<IpAddr>, Error> {
    if servers.is_empty() {
        let nobody = Error::new(
            ErrorKind::TargetFailed,
            "resolving a name without any server",
        );
        return Err(nobody.because(Reason::ResolverFailed));
    }
    let direct = Direct::new().name_servers(servers).mark(MARK);
    let terms = Terms::default().within(ASKING_PATIENCE);
    direct.resolve(name.as_str(), &terms).await
}

fn forget_oldest(known: &mut HashMap<HostName, Known>) {
    let oldest = known.iter().min_by_key(|(_, known)| known.since);
    if let Some(name) = oldest.map(|(name, _)| name.clone()) {
        known.remove(&name);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Resolver for Remembering {
    fn resolve<'a>(&'a self, name: &'a HostName) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            match special(name) {
                Some(answer) => answer,
                // Another network has another answer.
                None if name.as_str() == NAT64_NAME => look_up(&self.of_ipv6(), name).await,
                None => self.find(name).await,
            }
        })
    }
}

impl fmt::Debug for Remembering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remembering")
            .field("servers", &lock(&self.servers).len())
            .field("names", &lock(&self.known).len())
            .finish_non_exhaustive()
    }
}

/// `relays`, but for names that go past them where `domains` says so: by the device's own marked sockets, asking whom `names` asks. The way past is
/// made anew each time: the network's name servers may have changed.
///
/// Private addresses are what an intranet's names have. But this process connects for whoever asks, and a name server could lead it to what serves
/// this machine alone, as a user whom that may trust.
fn split_off(relays: Arc<dyn Overlay>, names: Arc<Remembering>, domains: Domains) -> ByName {
    ByName::new(relays, move |name| {
        let way_past = || past(&names).guard(|ip, _| leaves_the_machine(ip));
        let goes_past = domains.goes_past(name);
        goes_past.then(|| Arc::new(way_past()) as Arc<dyn Overlay>)
    })
}

fn leaves_the_machine(ip: IpAddr) -> Result<(), Reason> {
    let stays = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
    if stays || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Err(Reason::Policy)
    } else {
        Ok(())
    }
}

/// For flows that go past the relays: marked sockets, and names asked of the network's own servers.
pub(crate) fn past(names: &Arc<Remembering>) -> Direct {
    let direct = Direct::new().mark(MARK).name_servers(&names.servers());
    direct.resolver(Arc::clone(names) as _)
}

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Between attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Whether traffic flows: a question to the last relay and its answer. The target is a name that cannot exist (RFC 6761 §6.4): the last relay says so
/// itself and asks nobody. That answer has gone the whole way, with the token that the relay wants to see.
///
/// Tries until it works, or can never work, or `patience` is over; then the last failure is the answer.
pub(crate) async fn until_it_flows(overlay: &dyn Overlay, patience: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    let mut last = Error::new(ErrorKind::TimedOut, "waiting for the first answer");
    loop {
        match timeout_at(deadline, once(overlay)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if is_final(&error) => return Err(error),
            Ok(Err(error)) => last = error,
            Err(_) => return Err(last),
        }
        if Instant::now() + RETRY_PAUSE >= deadline {
            return Err(last);
        }
        sleep(RETRY_PAUSE).await;
    }
}

async fn once(overlay: &dyn Overlay) -> Result<(), Error> {
    let nowhere: Result<Target, _> = "probe.invalid:443".parse();
    let nowhere =
        nowhere.map_err(|error| Error::new(ErrorKind::Bug, "probing").caused_by(error))?;
    let terms = Terms::default().within(ATTEMPT);
    match overlay.open_stream(&nowhere, &terms).await {
        Ok(_) => Ok(()),
        Err(error) if has_answered(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether the last relay has spoken, and would serve us.
fn has_answered(error: &Error) -> bool {
    match (error.kind(), error.reason()) {
        (ErrorKind::TargetFailed, _) => true,
        (ErrorKind::Forbidden, reason) => reason == Some(Reason::Policy),
        _ => false,
    }
}

/// Whether trying again cannot help.
fn is_final(error: &Error) -> bool {
    match (error.kind(), error.reason()) {
        (_, Some(Reason::Identity | Reason::Authentication)) => true,
        (kind, _) => matches!(kind, ErrorKind::Unsupported | ErrorKind::Bug),
    }
}

/// Why nothing flows, with what to do; `missing` is the first relay without a connection, and its place.
pub(crate) fn failure(error: &Error, missing: Option<(usize, String)>) -> Failure {
    let doing = "bringing the device up";
    if let (ErrorKind::TimedOut, Some((place, name))) = (error.kind(), missing) {
        let first = if place == 0 { "first " } else { "" };
        let why = format!("the {first}relay, {name:?}, does not answer");
        let remedy = if place == 0 {
            "check your network ('hoplite portal --detect' tells whether it wants a login) and the relay's address, or choose another path"
        } else {
            "check the relay's address, or choose another path"
        };
        return Failure::new(doing, why, remedy);
    }
    let remedy = match (error.kind(), error.reason()) {
        (_, Some(Reason::Identity)) => {
            "correct the pin or the onion key, or ask the operator whether it is new"
        }
        (_, Some(Reason::Authentication)) => {
            "correct the token; private ones that have run out the issuer's operator gives"
        }
        (ErrorKind::EntryUnreachable, _) => {
            "check your network ('hoplite portal --detect' tells whether it wants a login) and the first relay's address, or choose another first relay"
        }
        (ErrorKind::PathFailed, _) => "choose another path, or ask the operators",
        _ => "try again, or choose another path",
    };
    Failure::new(doing, error, remedy)
}

#[cfg(test)]
mod remembering_tests {
    use super::*;

    fn name(text: &str) -> HostName {
        HostName::new(text).expect("a name")
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_learnt_before_serves_while_nobody_answers() {
        let resolver = Remembering::default();
        let known = vec![IpAddr::from([192, 0, 2, 1])];
        resolver.learn(name("relay.example"), known.clone());
        for wait in [Duration::ZERO, REFRESH_INTERVAL * 2] {
            tokio::time::advance(wait).await;
            let found = resolver.resolve(&name("relay.example")).await;
            assert_eq!(found.expect("known"), known);
        }
        let other = resolver.resolve(&name("other.example")).await;
        let reason = other.expect_err("nobody to ask").reason();
        assert_eq!(reason, Some(Reason::ResolverFailed));
    }

    #[tokio::test]
    async fn no_name_server_of_ipv4_is_asked_for_nat64() {
        let resolver = Remembering::default();
        let server = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        server.set_nonblocking(true).expect("an option");
        resolver.ask(&[server.local_addr().expect("bound")]);
        let answer = resolver.resolve(&name(NAT64_NAME)).await;
        let reason = answer.expect_err("nobody to ask").reason();
        assert_eq!(reason, Some(Reason::ResolverFailed));
        server.recv(&mut [0; 512]).expect_err("nothing was sent");
        resolver.ask(&["[2001:db8::53]:53".parse().expect("an address")]);
        assert_eq!(resolver.of_ipv6(), resolver.servers());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_too_many_names_is_forgotten() {
        let resolver = Remembering::default();
        for number in 0..=NAMES {
            resolver.learn(name(&format!("r{number}.example")), Vec::new());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let known = lock(&resolver.known);
        assert!(known.len() == NAMES && !known.contains_key(&name("r0.example")));
    }
}

#[cfg(test)]
mod split_tests {
    use hoplite_overlay::{Error, ErrorKind};
    use hoplite_testing::Double;
    use hoplite_wire::{
        HostName,
        connect_ip::{Scope, ScopeTarget},
        dns::{Question, RecordType},
    };

    use super::*;

    fn domains(takeover: &str) -> Domains {
        Domains::of(&toml::from_str(&format!("takeover.{takeover}")).expect("right"))
    }

    /// How often relays are asked when all there is to ask is asked about `name`.
    async fn asked(takeover: &str, name: &str) -> usize {
        let refusal = Error::new(ErrorKind::PathFailed, "testing");
        let relays = Arc::new(Double::failing(refusal));
        let split = split_off(Arc::clone(&relays) as _, Arc::default(), domains(takeover));
        let (terms, name) = (Terms::default(), HostName::new(name).expect("a name"));
        let target = Target::new(Host::Name(name.clone()), 443).expect("a target");
        let question = Question::new(&name, RecordType::MX).message();
        let scope = Scope {
            target: ScopeTarget::Name(name.clone()),
            protocol: None,
        };
        drop(split.open_stream(&target, &terms).await);
        drop(split.open_datagrams(&target, &terms).await);
        drop(split.resolve(name.as_str(), &terms).await);
        drop(split.open_packets(&scope, &terms).await);
        drop(split.query(&question, &terms).await);
        relays.asked()
    }

    #[tokio::test]
    async fn relays_hear_of_no_excluded_name_and_of_all_others() {
        let excluded = "exclude.domains = [\"invalid\"]";
        assert_eq!(asked(excluded, "host.invalid").await, 0);
        assert_eq!(asked(excluded, "host.example").await, 5);
    }

    #[tokio::test]
    async fn relays_hear_of_included_names_alone() {
        let included = "include.domains = [\"example\"]";
        assert_eq!(asked(included, "host.invalid").await, 0);
        assert_eq!(asked(included, "host.example").await, 5);
    }

    #[tokio::test]
    async fn no_name_server_leads_an_excluded_name_to_this_machine_itself() {
        let names = Arc::<Remembering>::default();
        let name = HostName::new("host.corp.example").expect("a name");
        let relays = Arc::new(Double::nothing());
        let domains = domains("exclude.domains = [\"corp.example\"]");
        let split = split_off(relays, Arc::clone(&names), domains);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a socket");
        let port = listener.local_addr().expect("an address").port();
        let target = Target::new(Host::Name(name.clone()), port).expect("a target");
        let terms = Terms::default();
        for ip in ["127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1"] {
            names.learn(name.clone(), vec![ip.parse().expect("an address")]);
            let stream = split.open_stream(&target, &terms).await;
            let error = stream.expect_err("not to this machine");
            let why = (error.kind(), error.reason());
            assert_eq!(why, (ErrorKind::Forbidden, Some(Reason::Policy)), "{ip}");
            let flow = split.open_datagrams(&target, &terms).await;
            let kind = flow.map(drop).expect_err("not to this machine").kind();
            assert_eq!(kind, ErrorKind::Forbidden, "{ip}");
        }
    }
}

#[cfg(test)]
mod probe_tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hoplite_testing::Double;

    use super::*;

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "probing")
    }

    /// Fails with each of these in turn, and then with the last of them for ever.
    async fn probed(errors: Vec<Error>) -> (Result<(), Error>, usize) {
        let turn = AtomicUsize::new(0);
        let overlay = Double::nothing().streams(move |_, _, _| {
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            let error = errors[turn.min(errors.len() - 1)].clone();
            Box::pin(async { Err(error) })
        });
        let result = until_it_flows(&overlay, Duration::from_secs(5)).await;
        (result, overlay.asked())
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_that_is_silent_at_first_is_tried_again_until_the_last_relay_answers() {
        let answer = error(ErrorKind::TargetFailed).because(Reason::NameNotFound);
        let errors = vec![
            error(ErrorKind::EntryUnreachable),
            error(ErrorKind::PathFailed),
            answer,
        ];
        let (result, attempts) = probed(errors).await;
        assert!(result.is_ok() && attempts == 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_token_is_told_at_once_and_a_dead_path_when_patience_is_over() {
        let refused = error(ErrorKind::Forbidden).because(Reason::Authentication);
        let (result, attempts) = probed(vec![refused]).await;
        let reason = result.expect_err("refused").reason();
        assert_eq!((reason, attempts), (Some(Reason::Authentication), 1));
        let (result, attempts) = probed(vec![error(ErrorKind::EntryUnreachable)]).await;
        let kind = result.expect_err("dead").kind();
        assert!(kind == ErrorKind::EntryUnreachable && attempts > 5);
    }
}
