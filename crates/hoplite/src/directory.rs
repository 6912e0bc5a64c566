//! `hoplite directory`: one authority. It answers relays, clients and other authorities in plain HTTP/1.1, and votes at fixed times.
//! What it decides is decided in `hoplite_directory::Authority`; here are its sockets, its clock and its file.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use clap::{Args, Subcommand};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use hoplite_channel::{self as channel, ChannelDialer, Counts, How, Whom, handshake::Us};
use hoplite_crypto::{Pin, SigningKey, Trust};
use hoplite_directory::{
    Authority, Change, Store, StoreError,
    authority::{self, Event, Heard, LastSigned, Probe, Promise, Settled, Uptimes, Want, Wanted},
    fetch,
    statistics::{NotTaken, ToldStatistics},
};
use hoplite_link::{self as link, Dialer, Peer};
use hoplite_overlay::{Direct, Overlay, Terms};
use hoplite_wire::{
    Host, Target,
    directory::{Key, Source},
    networks::host_network,
    tor::bandwidth_file::{self, BandwidthFile},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    net::TcpListener,
    sync::{Notify, oneshot},
    task::spawn_blocking,
    time::timeout,
};
use tracing::{debug, info, warn};

use crate::{
    config::{self, directory::Config},
    identity,
    list_server::Given,
    process::{self, Asked, Signals},
    say::Failure,
};

pub(crate) mod scan;
mod serve;
pub(crate) mod statistics;

/// The machine and what is to be written, shared by whoever answers and whoever asks.
#[derive(Clone)]
struct Shared(Arc<State>);

struct State {
    authority: Mutex<Authority>,
    writer: Writer,
    /// From where the other authorities ask: they are served first.
    others: Mutex<HashSet<IpAddr>>,
    /// The list, as whoever asks is given it.
    given: Given,
    /// What relays tell of their last days.
    told: Mutex<ToldStatistics>,
    /// How far their clocks may be ahead, in seconds.
    skew: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Authority> {
        self.0.authority.lock()
    }

    fn writer(&self) -> &Writer {
        &self.0.writer
    }

    fn given(&self) -> &Given {
        &self.0.given
    }

    /// Takes what a relay tells of its last days, if it has passed its test.
    fn take_statistics(&self, text: String, now: u64) -> Result<(), NotTaken> {
        let mut told = self.0.told.lock();
        let authority = self.lock();
        told.take(text, (now, self.0.skew), |relay| authority.is_tested(relay))
    }

    /// Bytes of what all relays tell.
    fn statistics_bytes(&self) -> u64 {
        self.0.told.lock().bytes()
    }

    /// What all relays tell, as it was a minute ago at the latest.
    fn statistics(&self) -> Bytes {
        self.0.told.lock().text(now())
    }

    fn others(&self) -> MutexGuard<'_, HashSet<IpAddr>> {
        self.0.others.lock()
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    moment().as_secs()
}

/// The time since 1970.
fn moment() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// `hoplite directory --config FILE`, or something else about a directory.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Options {
    /// The TOML file of an authority, which is to serve.
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Measure what relays can carry, over circuits, and write a bandwidth file for authorities.
    Scan(scan::Options),
    /// Gather the statistics that relays tell of themselves into a file of SQLite, and print and draw their totals.
    Statistics(statistics::Options),
}

impl Options {
    /// Whether it goes on until it is told to stop.
    pub(crate) fn serves(&self) -> bool {
        !matches!(self.task, Some(Task::Statistics(_)))
    }
}

/// Does what is asked for.
pub(crate) fn start(options: &Options, json: bool) -> Result<(), Failure> {
    match (&options.task, &options.config) {
        (Some(Task::Scan(options)), _) => scan::run(options),
        (Some(Task::Statistics(options)), _) => statistics::run(options, json),
        (None, Some(path)) => run(path),
        (None, None) => Err(Failure::usage("no --config FILE is given")),
    }
}

/// Serves with the file at `path`.
fn run(path: &Path) -> Result<(), Failure> {
    let config = config::directory::read(&config::open(path)?)?;
    let key = identity::read_secret(&config.key)?;
    let own = Key(key.public());
    if !config.trust().authorities.contains(&own) {
        let why = format!(
            "the key in {} is {own}, which `authorities` does not name",
            config.key.display()
        );
        return Err(Failure::new(
            "starting the authority",
            why,
            "add it there, for all authorities and clients",
        ));
    }
    let (shared, store) = open(&config, key)?;
    process::raise_file_limit();
    process::current_thread_runtime()?.block_on(serve(&config, own, &shared, store))
}

async fn serve(config: &Config, own: Key, shared: &Shared, store: Store) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let (listener, address) = listen(config.listen).await?;
    if let Some(list) = text_of_list(shared) {
        shared.given().give(list).await;
    }
    let relays = shared.lock().relays();
    info!(listen = %address, authority = %own, relays, "the authority is up");
    let serving = serve::serve(listener, shared.clone(), config.limits.clone());
    let voting = vote_in_time(shared.clone(), config, own);
    let stopped = async {
        while signals.next().await == Asked::Reload {
            info!("an authority reads its file only when it starts: start it again");
        }
    };
    tokio::select! {
        () = serving => {}
        () = voting => {}
        () = look_after_relays(shared.clone()) => {}
        () = keep_up(shared, config) => {}
        () = shared.writer().run(store) => {}
        () = stopped => info!("the authority has stopped"),
    }
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let refused = |error: io::Error| {
        let remedy = "stop the program that has this port, or choose another address with `listen`";
        Failure::new(format!("listening on {address}"), error, remedy)
    };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    Ok((listener, bound))
}

/// The machine with what its file has.
fn open(config: &Config, key: SigningKey) -> Result<(Shared, Store), Failure> {
    let promise = promise(&config.key)?;
    let mut authority = Authority::new(
        authority::Config {
            key,
            trust: config.trust(),
            interval: config.interval.as_secs(),
            voting: config.voting.as_secs(),
            intervals: config.intervals,
            bandwidth_cap: config.bandwidth_cap,
            hsdir_interval: config.hsdir_interval,
            hsdir_uptime: config.hsdir_uptime.as_secs(),
            admission: config.admission.clone(),
            flags: config.flags.clone(),
        },
        promise,
        now(),
    );
    let store = restored(config, &mut authority).map_err(|error| {
        let doing = format!("opening the store {}", config.store.display());
        Failure::new(doing, "it cannot be used", error.to_string())
    })?;
    let state = State {
        authority: Mutex::new(authority),
        writer: Writer::default(),
        others: Mutex::default(),
        given: Given::open(&beside_store(config, ".lists")),
        told: Mutex::default(),
        skew: config.trust().skew,
    };
    Ok((Shared(Arc::new(state)), store))
}

fn restored(config: &Config, authority: &mut Authority) -> Result<Store, StoreError> {
    let store = Store::open(&config.store)?;
    for (text, since) in store.descriptors()? {
        // What is too old, or refused by now, is not taken again.
        authority.restore(&text, since, now()).ok();
    }
    // Without them, or with what cannot be read, relays' times begin anew.
    let uptimes = fs::read_to_string(uptimes_file(config)).unwrap_or_default();
    authority.remember(Uptimes::restore(&uptimes, now()));
    if let Some((text, _)) = store.list()?
        && let Err(refused) = authority.resume(&text, now())
    {
        warn!("the last list is of no use any more: {refused}");
    }
    Ok(store)
}

/// Goes on with the promise beside an authority's key. It is written once at the start: whoever cannot write it later would sign nothing.
fn promise(key: &Path) -> Result<Promise, Failure> {
    let path = beside(key);
    let last = match fs::read_to_string(&path) {
        Ok(text) => text.parse().map_err(|error| {
            let doing = format!("reading {}", path.display());
            Failure::new(
                doing,
                error,
                "restore it from a copy; or remove it when all that this authority has signed is out of date",
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(LastSigned::default()),
        Err(error) => Err(Failure::file("reading", &path, &error)),
    }?;
    keep(&path, &last).map_err(|error| Failure::file("writing", &path, &error))?;
    Ok(Promise::new(last, move |last| match keep(&path, last) {
        Ok(()) => true,
        Err(error) => {
            warn!("what is to be signed cannot be noted: {error}");
            false
        }
    }))
}

/// `authority.key.signed` of `authority.key`.
fn beside(key: &Path) -> PathBuf {
    let mut path = key.as_os_str().to_owned();
    path.push(".signed");
    path.into()
}

/// Two small writes a period, for which everybody waits. A crash leaves the old or the new whole.
fn keep(path: &Path, last: &LastSigned) -> io::Result<()> {
    let new = path.with_extension("signed.new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(last.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The name too.
    let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
    File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

/// What an authority writes to its disk: all that has come together is written at once, in a thread that may block. Who hands in a descriptor is
/// answered when it is there to stay. What is signed is noted beside the key before it is, and waited for.
///
/// What waits: of each connection one descriptor, of each period one list, and what is forgotten.
#[derive(Debug, Default)]
struct Writer {
    queue: Mutex<Vec<Job>>,
    wake: Notify,
}

type Job = (Vec<Change>, Option<oneshot::Sender<()>>);

impl Writer {
    fn queue(&self) -> MutexGuard<'_, Vec<Job>> {
        self.queue.lock()
    }

    /// Has it written before long; nobody waits for it.
    fn write(&self, changes: Vec<Change>) {
        if !changes.is_empty() {
            self.queue().push((changes, None));
            self.wake.notify_one();
        }
    }

    /// Has it written, and says whether it is.
    async fn written(&self, changes: Vec<Change>) -> bool {
        let (done, written) = oneshot::channel();
        self.queue().push((changes, Some(done)));
        self.wake.notify_one();
        written.await.is_ok()
    }

    /// Writes until dropped.
    async fn run(&self, mut store: Store) {
        loop {
            self.wake.notified().await;
            let jobs = std::mem::take(&mut *self.queue());
            let written = spawn_blocking(move || {
                let (changes, waiting): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
                let written = store.write(&changes.concat());
                (store, written, waiting)
            });
            let Ok((back, written, waiting)) = written.await else {
                return;
            };
            store = back;
            match written {
                Ok(()) => {
                    let waiting = waiting.into_iter().flatten();
                    // Who has hung up needs no answer.
                    waiting.for_each(|done| done.send(()).unwrap_or(()));
                }
                Err(error) => warn!("what came in cannot be stored: {error}"),
            }
        }
    }
}

/// How often a bandwidth file is read, and what is known of relays' uptimes is written.
const KEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Reads what a scanner has measured as often as there is something new, and writes down for how long relays have been there: after a restart it goes on.
async fn keep_up(shared: &Shared, config: &Config) {
    let (mut read, uptimes) = (None, uptimes_file(config));
    loop {
        if let Some(path) = &config.bandwidth_file {
            match measured(path, &mut read) {
                Ok(Some(file)) => shared.lock().measured(&file),
                Ok(None) => {}
                Err(error) => warn!("the bandwidth file cannot be used: {error}"),
            }
        }
        tokio::time::sleep(KEEP_INTERVAL).await;
        let text = shared.lock().uptimes().to_string();
        let uptimes = uptimes.clone();
        let written = spawn_blocking(move || scan::replace(&uptimes, &text)).await;
        if let Ok(Err(error)) = written {
            warn!("relays' uptimes cannot be written: {error}");
        }
    }
}

/// The file, if it is another one than the last time.
fn measured(
    path: &Path,
    read: &mut Option<SystemTime>,
) -> Result<Option<BandwidthFile>, Box<dyn std::error::Error>> {
    let found = fs::metadata(path)?;
    let modified = found.modified()?;
    if *read == Some(modified) {
        return Ok(None);
    }
    *read = Some(modified);
    let most = u64::try_from(bandwidth_file::FILE)?;
    if found.len() > most {
        return Err("it is too large".into());
    }
    Ok(Some(BandwidthFile::parse(&fs::read_to_string(path)?)?))
}

/// `directory.sqlite.uptimes` of `directory.sqlite`.
fn beside_store(config: &Config, end: &str) -> PathBuf {
    let mut path = config.store.as_os_str().to_owned();
    path.push(end);
    path.into()
}

fn uptimes_file(config: &Config) -> PathBuf {
    beside_store(config, ".uptimes")
}

/// The longest pause: a clock that was set is noticed within it.
const MAX_VOTING_PAUSE: Duration = Duration::from_secs(30);
/// The shortest.
const MIN_VOTING_PAUSE: Duration = Duration::from_millis(50);

/// How long a name may take to be looked up, and when it is looked up again.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
const LOOKUP_INTERVAL: Duration = Duration::from_secs(600);

/// Another authority, and how patiently it is asked.
struct Other {
    overlay: Direct,
    source: Source,
    patience: Duration,
    pause: Duration,
}

/// The authority's clock: it votes when it is time, and asks the other authorities for what is missing, each in a task of its own: who does not
/// answer holds nobody up.
async fn vote_in_time(shared: Shared, config: &Config, own: Key) {
    let slices = u32::try_from(config.trust().threshold.saturating_add(1)).unwrap_or(u32::MAX);
    // Within a slice everybody is to be asked a few times, and a vote to arrive: docs/directory.md, "How authorities agree".
    let slice = config.voting / slices;
    let sources = config.authorities.iter();
    let talking = sources
        .clone()
        .filter(|source| source.key != own)
        .map(|source| {
            let other = Other {
                overlay: Direct::new(),
                source: source.clone(),
                patience: (slice * 2 / 3)
                    .clamp(Duration::from_millis(250), Duration::from_secs(60)),
                pause: (slice / 6).clamp(MIN_VOTING_PAUSE, Duration::from_secs(10)),
            };
            talk(shared.clone(), other)
        });
    let talking: Vec<_> = talking.collect();
    let others: Vec<_> = sources
        .filter(|source| source.key != own)
        .cloned()
        .collect();
    tokio::join!(
        keep_time(&shared),
        locate(&shared, &others),
        join_all(talking)
    );
}

async fn keep_time(shared: &Shared) {
    loop {
        step(shared);
        tokio::time::sleep(until_next(shared)).await;
    }
}

async fn talk(shared: Shared, other: Other) {
    loop {
        step(&shared);
        let mut wants = shared.lock().wants(moment());
        wants.retain(|want| want.from == other.source.key);
        if wants.is_empty() {
            tokio::time::sleep(until_next(&shared)).await
        } else {
            for want in wants {
                ask(&shared, &other, want).await;
            }
            tokio::time::sleep(other.pause).await;
        }
    }
}

fn until_next(shared: &Shared) -> Duration {
    let now = moment();
    let next = shared.lock().next(now);
    next.saturating_sub(now)
        .clamp(MIN_VOTING_PAUSE, MAX_VOTING_PAUSE)
}

fn step(shared: &Shared) {
    let mut authority = shared.lock();
    let gone = authority.forget(now());
    let events = authority.tick(moment());
    drop(authority);
    let gone = gone.into_iter().map(Change::Forget);
    shared.writer().write(gone.collect());
    tell(shared, &events);
}

async fn ask(shared: &Shared, other: &Other, want: Want) {
    // What is small is asked for again soon.
    let patience = match want.what {
        Wanted::Commitments => other.patience / 2,
        Wanted::Vote | Wanted::Signatures => other.patience,
    };
    let (most, address) = (want.what.most(), &other.source.address);
    let answer = fetch(&other.overlay, address, &want.path, most, patience).await;
    // Whoever is not there, or has none yet, is asked again.
    let Ok(text) = answer else { return };
    let heard = shared.lock().heard(&want, text, moment());
    let heard = match heard {
        Ok(Heard::Done(events)) => Ok(events),
        Ok(Heard::Check(events, unchecked)) => {
            tell(shared, &events);
            // The only thread has others to answer meanwhile.
            let Ok(checked) = spawn_blocking(|| unchecked.check()).await else {
                return;
            };
            shared.lock().checked(checked, moment())
        }
        Err(refused) => Err(refused),
    };
    match heard {
        Ok(events) => tell(shared, &events),
        Err(refused) => warn!("an authority's vote or list does not count: {refused}"),
    }
}

fn tell(shared: &Shared, events: &[Event]) {
    for event in events {
        match event {
            Event::Voted(relays) => info!(relays, "voted"),
            Event::Signed { votes, relays } => info!(votes, relays, "a list is signed"),
            Event::Published(signatures) => publish(shared, *signatures),
            Event::Failed { signatures, others } => warn!(
                signatures,
                others,
                "there is no new list: too few authorities signed the same; check that they run, have the same `authorities`, `interval` and `voting`, and right clocks"
            ),
            Event::TooFew { votes, needed } => warn!(
                votes,
                needed,
                "too few votes for a list: check that the other authorities run, are reached, and have right clocks"
            ),
            Event::Promised(until) => warn!(
                until,
                "nothing is signed: this authority has signed another vote or list for this time before, or one for a later time (`until`, in seconds since 1970); check its clock. If it was ahead then, and only then, stop this authority and remove the file beside its key that ends in .signed"
            ),
            Event::NotKept => warn!(
                "nothing is signed: what this authority signs must be noted first in the file beside its key that ends in .signed; make room on the disk, and let this user write the key's directory"
            ),
            Event::TwoFaced(authority) => warn!(
                authority,
                "this authority, as `authorities` numbers them, has signed two different votes for one time: neither is to count; ask its operator"
            ),
        }
    }
}

/// Keeps the list, and gives it to whoever asks, once the differences to it are made.
fn publish(shared: &Shared, signatures: usize) {
    let Some(text) = text_of_list(shared) else {
        return;
    };
    shared.writer().write(vec![Change::List(text.clone())]);
    let given = shared.given().clone();
    tokio::spawn(async move {
        given.give(text).await;
        info!(signatures, "a list is published");
    });
}

fn text_of_list(shared: &Shared) -> Option<String> {
    let list = shared.lock().list()?;
    String::from_utf8(list.to_vec()).ok()
}

/// Finds out from where the other authorities ask, again and again.
async fn locate(shared: &Shared, others: &[Source]) {
    let overlay = Direct::new();
    loop {
        let mut found = HashSet::new();
        for Source { address, .. } in others {
            match &address.host {
                Host::Ip(ip) => found.extend([host_network(*ip)]),
                Host::Name(name) => {
                    let terms = Terms::default().within(LOOKUP_TIMEOUT);
                    let addresses = overlay.resolve(name.as_str(), &terms).await;
                    found.extend(addresses.into_iter().flatten().map(host_network));
                }
            }
        }
        *shared.others() = found;
        tokio::time::sleep(LOOKUP_INTERVAL).await;
    }
}

/// How long a QUIC endpoint that came to nothing holds memory: three times the probe timeout before a round trip was measured (RFC 9000 §10.2,
/// RFC 9002 §6.2.2).
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long one address may take.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// And all of a relay's: whoever has many and lets each take long keeps others waiting.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How often it is looked whether somebody is to be tested.
const REACH_PAUSE: Duration = Duration::from_millis(100);

/// Who dials.
struct Tester {
    overlay: Arc<Direct>,
    link: link::Config,
    channels: ChannelDialer,
}

/// Whether relays are where they say: each address of a descriptor is dialled as clients would dial it, before it is voted for, and again from time
/// to time. A relay of circuits proves its identity by a channel's handshake, one of MASQUE the key of its pin by TLS; over QUIC or TCP.
async fn look_after_relays(shared: Shared) {
    let tester = Tester::new();
    let mut under_way = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(REACH_PAUSE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Some((probe, passed)) = under_way.next() => settle(&shared, &probe, passed),
        }
        let probes = shared.lock().probes(now());
        under_way.extend(probes.into_iter().map(|probe| tester.test(probe)));
    }
}

fn settle(shared: &Shared, probe: &Probe, passed: bool) {
    let settled = shared.lock().probed(probe, passed, now());
    let change = settled.map(|settled| match settled {
        Settled::Forget(relay) => Change::Forget(relay),
        Settled::Since(relay, since) => Change::Since(relay, since),
    });
    shared.writer().write(change.into_iter().collect());
    if !passed {
        debug!("a relay was not found where its descriptor says");
    }
}

impl Tester {
    fn new() -> Self {
        let overlay = Arc::new(Direct::new());
        let link = link::Config {
            handshake: ADDRESS_TIMEOUT / 2,
            // Nothing but a handshake comes, three packets at a time until the address is proven (RFC 9000 §8.1); the QUIC stack's room for more
            // would be most of what a test takes.
            receive_segments: 8,
            ..link::Config::default()
        };
        let counts = Arc::<Counts>::default();
        let behaves = channel::Config::default();
        let over = Arc::clone(&overlay);
        let channels = ChannelDialer::new(over, Us::default(), &link, behaves, counts);
        Self {
            overlay,
            link,
            channels,
        }
    }

    /// Whether the relay is at each of the addresses.
    async fn test(&self, probe: Probe) -> (Probe, bool) {
        let all = async {
            for address in &probe.addresses {
                if !self.is_at(&probe, *address).await {
                    return false;
                }
            }
            !probe.addresses.is_empty()
        };
        let passed = timeout(TEST_TIMEOUT, Box::pin(all)).await == Ok(true);
        if !passed {
            // Whoever names addresses where nobody is pays with his places, not with the authority's memory.
            tokio::time::sleep(CLOSE_TIMEOUT).await;
        }
        (probe, passed)
    }

    async fn is_at(&self, probe: &Probe, address: SocketAddr) -> bool {
        let relay = &probe.relay;
        // Errors call it so: no name gets anywhere.
        let (name, address) = ("to be tested".to_owned(), Target::from(address));
        let terms = || Terms::default().within(ADDRESS_TIMEOUT);
        if relay.onion.is_some() {
            let whom = Whom {
                name: name.clone(),
                address: address.clone(),
                identity: Some(relay.identity.0),
                rsa: None,
            };
            let terms = terms();
            let dial = self.channels.dial(&whom, How::Raced, &terms);
            let Ok(Ok(channel)) = timeout(ADDRESS_TIMEOUT, Box::pin(dial)).await else {
                return false;
            };
            channel.close();
        }
        let Some(pin) = relay.pin else {
            return relay.onion.is_some();
        };
        let peer = Peer {
            name,
            address,
            trust: Trust::Pins(vec![Pin::from(pin)]),
        };
        let over = Arc::clone(&self.overlay);
        let dialer = Dialer::new(over, peer, 0, self.link.clone());
        let terms = terms();
        let dialled = timeout(ADDRESS_TIMEOUT, Box::pin(dialer.race(&terms))).await;
        matches!(dialled, Ok(Ok(_)))
    }
}

#[cfg(test)]
mod writer_tests {
    use hoplite_wire::directory::Key;

    use super::*;

    #[test]
    fn what_was_signed_last_is_noted_beside_the_key_whatever_a_crash_has_left_there() {
        let directory = tempfile::tempdir().expect("directory");
        let key = directory.path().join("authority.key");
        drop(promise(&key).expect("the first start"));
        let path = directory.path().join("authority.key.signed");
        let read = || fs::read_to_string(&path).expect("there");
        assert_eq!(read(), LastSigned::default().to_string());
        // A crash has left the new one by half.
        fs::write(directory.path().join("authority.key.signed.new"), "half").expect("written");
        let last = format!("hoplite-signed 1\nvote 3600 sha256:{}\n", "5a".repeat(32));
        fs::write(&path, &last).expect("written");
        drop(promise(&key).expect("another start"));
        assert_eq!(read(), last);
        // What cannot be read is no promise that could be kept.
        fs::write(&path, "hoplite-signed 1\nvote 36").expect("written");
        let refused = promise(&key).expect_err("refused").to_string();
        assert!(refused.contains("authority.key.signed"), "{refused}");
    }

    #[tokio::test]
    async fn what_comes_together_is_written_together_and_is_there_when_it_is_answered() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("store");
        let store = Store::open(&path).expect("made");
        let writer = Writer::default();
        let one = |n: u8| vec![Change::Descriptor(Key([n; 32]), format!("relay {n}"))];
        let all = join_all((0..200).map(|n| writer.written(one(n))));
        let written = tokio::select! {
            () = writer.run(store) => Vec::new(),
            written = all => written,
        };
        assert_eq!(written, [true; 200]);
        let kept = Store::open(&path)
            .expect("opened")
            .descriptors()
            .expect("read");
        assert_eq!(kept.len(), 200);
    }
}
