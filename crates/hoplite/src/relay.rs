//! `hoplite relay`: serves until it is told to stop. SIGTERM and SIGINT drain (a second one stops at once), SIGHUP reads the file again: tokens,
//! certificates, rules, limits and where clients are. It keeps the old ones if the new are wrong, and names what else has changed.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use hoplite_crypto::{
    Identity,
    onion::{Secrets, offline::CertifiedSigningKey, service_keys::BlindedKey},
};
use hoplite_directory::{Client, Heard, HsDirs, Offered, Refused, Store, ask_caches};
use hoplite_overlay::Direct;
use hoplite_relay::{
    Config, Handle, HsDir, Listed, Parts, Rekey, Relay, StartError,
    config::{PrivateTokens, RELOADED_LIMITS},
};
use hoplite_wire::directory::{Key, List, Source, Tokens};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::{sync::watch, task::spawn_blocking, time::sleep};
use tracing::{error, info, warn};

use crate::{
    client,
    config::{self, Document, directory::trust},
    directory::now,
    identity::{self, Files, Stored},
    issuer_keys::Keeper,
    list_server::{Given, ListServer},
    listed::ask_authorities,
    listed_elsewhere::ListedElsewhere,
    measure::testbed::{self, Ready},
    process::{self, Asked, Signals},
    publisher::{Hears, Publisher, tokens_of},
    say::Failure,
    statistics,
    tor_cache::TorCache,
};
use status::{Certificate, Reload, Teller, Told};

pub(crate) mod status;

/// `hoplite relay --config FILE`, or a question to a relay that serves.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Options {
    /// The TOML file.
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Answer 'hoplite relay status --run-dir DIR' there; without it nobody is answered.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    #[command(subcommand)]
    ask: Option<Ask>,
}

#[derive(Debug, Subcommand)]
enum Ask {
    /// Say how a relay on this machine does: what is open, how near its limits are, whom it turned away, its last reload.
    Status(status::Options),
}

impl Options {
    /// Whether a relay is to serve.
    pub(crate) fn serves(&self) -> bool {
        self.ask.is_none()
    }
}

/// Runs what the options ask for.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    match (&options.ask, &options.config) {
        (Some(Ask::Status(options)), _) => status::run(options, json),
        (None, Some(path)) => serve_file(path, options.run_dir.as_deref()),
        (None, None) => Err(Failure::usage("--config is missing")),
    }
}

/// Serves with the file at `path`.
fn serve_file(path: &Path, run_dir: Option<&Path>) -> Result<(), Failure> {
    let file = config::open(path)?;
    let loaded = config::relay::read(&file)?;
    loaded
        .warnings
        .iter()
        .for_each(|warning| warn!("{warning}"));
    let identity = identity_of(&loaded.config)?;
    let onion = onion_of(&loaded.config)?;
    process::raise_file_limit();
    let recording = process::Recording::from_environment()?;
    let runtime = process::current_thread_runtime()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let circuits = onion.as_ref().map(|stored| stored.circuits(now()));
        let parts = Parts {
            watch: recording.watch(),
            circuits: circuits.transpose()?,
        };
        let handle = start(&loaded.config, &identity, parts)?;
        let (tell_status, status) = watch::channel(Told {
            certificate: certificate_of(&identity),
            reload: None,
        });
        let teller = Teller::listen(run_dir, &loaded.config, &handle, status)?;
        tell(&handle);
        let rotation = rotation(&loaded.config, onion.as_ref(), &handle)?;
        let current = rotation.as_ref().map(Rotation::watch);
        let (publish_tokens, told) = watch::channel(tokens_of(&loaded.config));
        let statistics = statistics::Keeper::of(&loaded.config, &handle);
        let said = statistics.as_ref().map(statistics::Keeper::watch);
        let heard = Hears {
            onion: current,
            tokens: told,
            said,
        };
        let publisher = Publisher::of(&loaded.config, &handle, onion.as_ref(), heard)?;
        let reader = Reader::of(&loaded.config, &handle)?;
        let given = reader.as_ref().map(|reader| reader.given.clone());
        let lists = ListServer::of(&loaded.config, given).await?;
        let cache = TorCache::of(&loaded.config, &handle)?;
        let (tell, said) = watch::channel(loaded.config.auth.private_tokens.clone());
        let keeper = Keeper::new(said, &handle);
        let pulse = handle.pulse();
        let reloads = Reloads {
            handle,
            path,
            file,
            last: None,
            drain: loaded.config.limits.drain,
            tell,
            publish_tokens,
            tell_status,
        };
        process::notify_ready();
        tokio::select! {
            () = serve(reloads, &mut signals) => {}
            () = keeper.run() => {}
            () = publish(publisher) => {}
            () = keep(statistics) => {}
            () = rotate(rotation) => {}
            () = read(reader) => {}
            () = cache_for_tor(cache) => {}
            () = give_lists(lists) => {}
            () = teller.run() => {}
            () = process::feed_watchdog(|| pulse.beat()) => {}
        }
        Ok(())
    })
}

/// What an operator, and a script, wants to know: where, and what clients write.
fn tell(handle: &Handle) {
    let listen: Vec<String> = handle.addresses().iter().map(ToString::to_string).collect();
    let (listen, pin) = (listen.join(", "), handle.pin());
    match handle.onion_key() {
        Some(onion) => info!(listen, %pin, %onion, "the relay is up"),
        None => info!(listen, %pin, "the relay is up"),
    }
}

/// What circuits are served with, if they are.
fn onion_of(config: &Config) -> Result<Option<Stored>, Failure> {
    let enabled = config.onion.enabled;
    let stored = enabled.then(|| Stored::read_or_make(&config.identity, now()));
    let stored = stored.transpose()?;
    if let Some(stored) = stored.as_ref().filter(|_| config.onion.tor.is_some()) {
        stored.make_rsa_key_if_missing()?;
    }
    Ok(stored)
}

/// Only where a directory tells clients of a new key the old one can be given up.
fn rotation(
    config: &Config,
    onion: Option<&Stored>,
    handle: &Handle,
) -> Result<Option<Rotation>, Failure> {
    let every = if config.directory.publish.is_empty() && config.onion.tor.is_none() {
        0
    } else {
        config.onion.rotate.as_secs()
    };
    let (Some(stored), Some(rekey)) = (onion, handle.rekey()) else {
        return Ok(None);
    };
    Rotation::new(stored.clone(), rekey, every).map(Some)
}

async fn rotate(rotation: Option<Rotation>) {
    match rotation {
        Some(rotation) => rotation.run().await,
        None => std::future::pending().await,
    }
}

/// Tells directories of the relay, if the file says so; never ends.
async fn publish(publisher: Option<Publisher>) {
    match publisher {
        Some(publisher) => publisher.run().await,
        None => std::future::pending().await,
    }
}

/// Keeps the relay's statistics, if anybody is told of them; never ends.
async fn keep(statistics: Option<statistics::Keeper>) {
    match statistics {
        Some(statistics) => statistics.run().await,
        None => std::future::pending().await,
    }
}

/// Keeps the directory's list, if the file names authorities; never ends.
async fn read(reader: Option<Reader>) {
    match reader {
        Some(reader) => reader.run().await,
        None => std::future::pending().await,
    }
}

/// Gives the directory's list to whoever asks, if the file says so; never ends.
async fn give_lists(lists: Option<ListServer>) {
    match lists {
        Some(lists) => lists.run().await,
        None => std::future::pending().await,
    }
}

/// Is a directory cache of Tor's network, if the file says so; never ends.
async fn cache_for_tor(cache: Option<TorCache>) {
    match cache {
        Some(cache) => cache.run().await,
        None => std::future::pending().await,
    }
}

/// Keys and tables that a running relay takes.
const TAKEN: [&str; 9] = [
    "auth",
    "identity",
    "tls",
    "egress.allow",
    "egress.deny",
    "egress.nat64",
    "ingress.relays",
    "ingress.geofeed",
    "ingress.mmdb",
];

fn is_taken(key: &str) -> bool {
    let mut taken = TAKEN.iter().chain(&RELOADED_LIMITS);
    taken.any(|taken| is_within(key, taken))
}

fn is_within(key: &str, table: &str) -> bool {
    let rest = key.strip_prefix(table);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A running relay, and the file that it takes what is new from.
struct Reloads<'a> {
    handle: Handle,
    path: &'a Path,
    /// As it was when the relay began.
    file: Document,
    /// As it was when it was last taken, if that was later.
    last: Option<Document>,
    /// How long what is open may go on after the relay was told to stop.
    drain: Duration,
    /// Whoever fetches the issuer's keys.
    tell: watch::Sender<Option<PrivateTokens>>,
    /// Whoever publishes which ones it takes.
    publish_tokens: watch::Sender<Option<Tokens>>,
    /// Whoever tells the operator.
    tell_status: watch::Sender<Told>,
}

/// What came of the keys that have changed in a file.
struct Changed {
    /// Since it was last read; they hold from now on.
    taken: Vec<String>,
    /// Since the relay began; they wait until it is started again.
    waiting: Vec<String>,
}

async fn serve(mut reloads: Reloads<'_>, signals: &mut Signals) {
    while signals.next().await == Asked::Reload {
        let done = reloads.reload();
        reloads.tell_status.send_modify(|told| {
            told.reload = Some(Reload {
                at: now(),
                failure: done.as_ref().err().map(ToString::to_string),
                waiting: done
                    .as_ref()
                    .map_or_else(|_| Vec::new(), |changed| changed.waiting.clone()),
            });
        });
        match done {
            Ok(Changed { taken, waiting }) => {
                let taken = taken.join(", ");
                info!(pin = %reloads.handle.pin(), taken, "tokens, certificates, rules, limits and clients' regions were read again");
                if !waiting.is_empty() {
                    warn!(
                        "of the file this waits until the relay is started again: {}",
                        waiting.join(", ")
                    );
                }
            }
            Err(failure) => {
                error!(
                    "the old tokens, certificates, rules, limits and clients' regions stay: {failure}"
                );
            }
        }
    }
    let drain = reloads.drain;
    info!(
        "draining: open tunnels may go on for {} s, a second signal stops at once",
        drain.as_secs_f64()
    );
    let again = async { while signals.next().await == Asked::Reload {} };
    tokio::select! {
        empty = reloads.handle.drain(drain) => if empty { info!("the relay has stopped") } else { warn!("the relay has stopped and closed tunnels that were still open") },
        () = again => warn!("the relay has stopped at once"),
    }
}

impl Reloads<'_> {
    /// Takes all that a running relay can take of the file, or nothing.
    fn reload(&mut self) -> Result<Changed, Failure> {
        let file = config::open(self.path)?;
        let config = config::relay::read(&file)?.config;
        let identity = files_of(&config).read()?;
        self.handle
            .reload_client_regions(&config.ingress)
            .and_then(|()| self.handle.reload(&config.auth, Some(&identity)))
            .map_err(|error| refused(&error))?;
        self.handle.reload_rules(&config);
        self.handle.reload_limits(&config.limits);
        self.drain = config.limits.drain;
        let certificate = certificate_of(&identity);
        self.tell_status
            .send_modify(|told| told.certificate = certificate);
        self.publish_tokens.send_replace(tokens_of(&config));
        self.tell.send_replace(config.auth.private_tokens);
        let mut waiting = self.file.differing(&file);
        waiting.retain(|key| !is_taken(key));
        let mut taken = self.last.as_ref().unwrap_or(&self.file).differing(&file);
        taken.retain(|key| is_taken(key));
        self.last = Some(file);
        Ok(Changed { taken, waiting })
    }
}

fn certificate_of(identity: &Identity) -> Certificate {
    Certificate {
        pin: identity.pin().to_string(),
        expires: identity.expires(),
    }
}

fn files_of(config: &Config) -> Files {
    match &config.tls {
        Some(tls) => Files {
            certificate: tls.cert.clone(),
            key: tls.key.clone(),
        },
        None => Files::within(&config.identity),
    }
}

/// Reads the identity; a relay without a certificate from elsewhere makes one at its first start.
fn identity_of(config: &Config) -> Result<Identity, Failure> {
    let files = files_of(config);
    if config.tls.is_none() && !files.exist() {
        identity::store(&config.identity, &identity::make(&[])?, false)?;
        info!("a new identity was made in {}", config.identity.display());
    }
    files.read()
}

fn start(config: &Config, identity: &Identity, parts: Parts) -> Result<Handle, Failure> {
    Relay::start_with(config, identity, parts).map_err(|error| refused(&error))
}

fn refused(error: &StartError) -> Failure {
    let remedy = match error {
        StartError::Config(_) => "run 'hoplite check' on the file",
        StartError::Listen { source, .. } => listen_remedy(source),
        StartError::Addresses(_) => "the sandbox must let it open netlink sockets (AF_NETLINK)",
        StartError::Identity(_) => {
            "check that key and certificate belong together, or make new ones with 'hoplite keygen --force'"
        }
        _ => "raise the limits of threads and open files",
    };
    Failure::new("starting the relay", error, remedy)
}

fn listen_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "stop the program that has this port, or choose another with `listen`"
        }
        std::io::ErrorKind::PermissionDenied => {
            "ports below 1024 need privileges (AmbientCapabilities=CAP_NET_BIND_SERVICE): give them, or choose another with `listen`"
        }
        _ => "choose an address of this machine with `listen`",
    }
}

/// A relay of `demo` and `bench`: its identity is never stored, and it ends with its parent.
pub(crate) fn serve_node(config: &Config) -> Result<(), Failure> {
    process::raise_file_limit();
    let identity = identity::parse(&identity::make(&[])?)?;
    let circuits = config.onion.enabled.then(|| identity::unstored(now()));
    let parts = Parts {
        circuits: circuits.transpose()?,
        ..Parts::default()
    };
    let handle = start(config, &identity, parts)?;
    let listen = handle.addresses().first().copied();
    let listen = listen.ok_or_else(|| {
        Failure::new(
            "starting the relay",
            "it listens nowhere",
            "please report this",
        )
    })?;
    testbed::ready(&Ready {
        listen,
        pin: Some(handle.pin().to_string()),
        onion: handle.onion_key().map(|key| key.to_string()),
    })?;
    process::current_thread_runtime()?.block_on(testbed::orphaned());
    Ok(())
}

/// How far this machine's clock may be off.
const SKEW: Duration = Duration::from_secs(60);
/// How long an authority may take to answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest pause between two looks whether a list is due, and between two tries to have one.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Relays that keep the list and are asked at once.
const CACHES: usize = 3;
/// The file of the lists that are given, in the directory of the relay's identity.
const GIVEN: &str = "lists.sqlite";
/// The pause, in seconds, after a list was asked for in vain; then twice as long each time.
const LIST_RETRY_PAUSE: u64 = 4;

/// How long it is until a relay asks for a list again, in seconds: after one that was due and did not come, so long.
struct Pace(u64);

impl Pace {
    /// The next pause, if the next list is due in `left`.
    fn pause(&mut self, is_newer: bool, left: u64) -> u64 {
        if is_newer {
            self.0 = LIST_RETRY_PAUSE;
            return left;
        }
        let pause = self.0;
        self.0 = MAX_CHECK_INTERVAL.as_secs().min(pause.saturating_mul(2));
        left.max(pause)
    }
}

/// Fetches the directory's list for a relay of circuits, so that its channels know whom the list has, and for one that keeps it for clients. The latter has
/// it in a file ([`Given`]), others in memory alone: a relay without a list serves as well, but knows nobody. One that is too old is better than none: who
/// was known stays so until there is a newer one.
struct Reader {
    client: Client,
    sources: Vec<Source>,
    /// Channels that are to know it.
    listed: Option<Listed>,
    /// What gives it to clients, if the file says so.
    given: Given,
    is_cache: bool,
    /// Who it is in the list, and where it was seen there.
    own: Option<(Key, ListedElsewhere)>,
    /// What keeps descriptors of onion services.
    hsdir: Option<HsDir>,
}

impl Reader {
    /// None if the file names no authority, or the relay neither serves circuits nor keeps the list for clients.
    fn of(config: &Config, handle: &Handle) -> Result<Option<Self>, Failure> {
        let directory = &config.directory;
        let sources = &directory.authorities;
        let (listed, is_cache) = (handle.listed(), directory.cache.is_some());
        if sources.is_empty() || (listed.is_none() && !is_cache) {
            return Ok(None);
        }
        let trust = trust(sources, directory.threshold, directory.hostile, SKEW);
        let client = Store::in_memory().and_then(|store| Client::new(trust, store));
        let own = handle.onion_key().map(|key| Key(key.identity));
        let told = ListedElsewhere::new(directory.reached_at(handle.addresses()));
        let client = client.map_err(|error| {
            let doing = "making room for the list of relays";
            Failure::new(doing, error, "free some memory")
        })?;
        Ok(Some(Self {
            client,
            sources: sources.clone(),
            listed,
            given: if is_cache {
                Given::open(&config.identity.join(GIVEN))
            } else {
                Given::default()
            },
            is_cache,
            own: own.zip(Some(told)),
            hsdir: handle.hsdir(),
        }))
    }

    /// Fetches one list after the other until dropped.
    async fn run(mut self) {
        self.resume().await;
        let mut pace = Pace(LIST_RETRY_PAUSE);
        loop {
            let is_newer = self.renew().await;
            let began = now();
            let left = self.due().saturating_sub(began);
            let until = began.saturating_add(pace.pause(is_newer, left));
            // A clock that was set back says nothing of when the next is due.
            while (began..until).contains(&now()) {
                let left = Duration::from_secs(until.saturating_sub(now()));
                sleep(left.min(MAX_CHECK_INTERVAL)).await;
            }
        }
    }

    /// When the next list is to be asked for.
    fn due(&self) -> u64 {
        let own = self.own.as_ref().map(|(own, _)| own);
        if !self.client.is_settled(own) {
            self.client.next_of_newcomer(now(), &mut below)
        } else if self.is_cache {
            self.client.next_of_cache(now(), &mut below)
        } else {
            self.client.next(now(), &mut below)
        }
    }

    /// Goes on with what was given before a restart, if that may still be used.
    async fn resume(&mut self) {
        let last = self.given.list().into_iter().collect();
        let offered = self.judge(last).await;
        match self.client.take(offered) {
            Ok(heard) if heard.contains(&Ok(Heard::Newer)) => self.tell_channels(),
            Ok(_) => {}
            Err(error) => warn!("a list of relays cannot be kept: {error}"),
        }
    }

    /// Thousands of signatures, where nothing else waits for this thread.
    async fn judge(&self, texts: Vec<String>) -> Vec<Result<Offered, Refused>> {
        let checker = self.client.checker();
        let judged = spawn_blocking(move || checker.check(&texts, now()));
        judged.await.unwrap_or_default()
    }

    /// Whether there is a later list.
    async fn renew(&mut self) -> bool {
        if !self.is_cache && self.renew_from_caches().await {
            return true;
        }
        let (overlay, known) = (Direct::new(), self.client.known_list(now()));
        let asked = ask_authorities(&overlay, &self.sources, known.as_ref(), FETCH_TIMEOUT);
        let (mut numbers, mut texts) = (Vec::new(), Vec::new());
        for (authority, answer) in asked.await {
            match answer {
                Ok(text) => {
                    numbers.push(authority);
                    texts.push(text);
                }
                Err(error) => warn!(authority, "the list of relays cannot be had: {error}"),
            }
        }
        let offered = self.judge(texts).await;
        match self.client.take(offered) {
            Ok(heard) => {
                self.heard(&numbers, &heard).await;
                heard.contains(&Ok(Heard::Newer))
            }
            Err(error) => {
                warn!("a list of relays cannot be kept: {error}");
                false
            }
        }
    }

    /// Whether relays that keep the list have a later one. What is wrong with their answers is nobody's concern: authorities are asked then.
    async fn renew_from_caches(&mut self) -> bool {
        let (mut caches, known) = (self.client.caches(now()), self.client.known_list(now()));
        client::shuffle(&mut caches);
        caches.truncate(CACHES);
        let answers = ask_caches(&Direct::new(), &caches, known.as_ref(), FETCH_TIMEOUT).await;
        let texts = answers.into_iter().filter_map(Result::ok);
        let texts = texts.map(|answer| answer.text).collect();
        let offered = self.judge(texts).await.into_iter();
        match self.client.take(offered.filter(Result::is_ok).collect()) {
            Ok(heard) => {
                self.heard(&[], &heard).await;
                heard.contains(&Ok(Heard::Newer))
            }
            Err(error) => {
                warn!("a list of relays cannot be kept: {error}");
                false
            }
        }
    }

    async fn heard(&mut self, authorities: &[usize], heard: &[Result<Heard, Refused>]) {
        for (authority, heard) in authorities.iter().zip(heard) {
            if let Err(refused) = heard {
                warn!(authority, "a list of relays is refused: {refused}");
            }
        }
        if heard.contains(&Ok(Heard::Newer)) {
            self.tell().await;
        }
    }

    async fn tell(&mut self) {
        let Ok(Some(list)) = self.client.list(now()) else {
            return;
        };
        if let Some((own, elsewhere)) = &mut self.own {
            let relays = &mut list.list.relays.iter();
            let found = relays.find(|relay| relay.descriptor.identity == *own);
            elsewhere.heard(found.map(|relay| relay.descriptor.addresses.as_slice()));
        }
        let given = self.is_cache.then(|| list.to_string());
        if let Some(list) = given {
            self.given.give(list).await;
        }
        self.tell_channels();
    }

    fn tell_channels(&self) {
        let (Ok(Some(list)), Some(listed)) = (self.client.list(now()), &self.listed) else {
            return;
        };
        let relays = list.list.relays.iter().map(|relay| {
            let relay = &relay.descriptor;
            (relay.identity.0, relay.addresses.clone())
        });
        listed.replace(relays);
        self.tell_hsdir(&list.list);
        let relays = list.list.relays.len();
        info!(relays, "channels know whom the list of relays has");
    }

    /// Which descriptors of onion services are to be kept here. A list that says nothing of them says nothing against any.
    fn tell_hsdir(&self, list: &List) {
        let (Some(hsdir), Some((own, _)), Some(hsdirs)) =
            (&self.hsdir, &self.own, HsDirs::of_list(list))
        else {
            return;
        };
        let (own, rings) = (*own, hsdirs.uploads());
        hsdir.keep_only(move |key| {
            let key = BlindedKey::from_bytes(*key);
            rings.iter().any(|ring| ring.is_near(&own, &key))
        });
    }
}

/// A random number below `most`.
pub(crate) fn below(most: u64) -> u64 {
    let mut bytes = [0; 8];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes) % most.max(1),
        Err(_) => 0,
    }
}

const DAY: u64 = 24 * 3600;
/// For how many seconds before its end an operator is told, each day, that a signing key is to be certified anew.
const SIGNING_WARNING: u64 = 14 * DAY;
/// For how many seconds the last key is accepted: lists live for hours, clients sleep for days.
const LAST: u64 = 7 * 24 * 3600;
/// How often is looked whether it is time: the calendar may jump, and a machine may sleep.
const ROTATION_CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// The onion key of a running relay, and when it changes, where a directory is told of it.
/// tor-spec, "Keys and names": the one before is accepted for at least a week. What is published is on disk first.
struct Rotation {
    stored: Stored,
    rekey: Rekey,
    /// In seconds; 0 is never.
    every: u64,
    /// Of a relay whose identity is elsewhere.
    certified: Option<Certified>,
    /// The public half of the current key, for whoever publishes it.
    current: watch::Sender<[u8; 32]>,
}

/// The signing key that is used.
struct Certified {
    /// It tells the key from another that ends in the same hour.
    certificate: Vec<u8>,
    /// When the operator was last told that it ends soon, in seconds since 1970.
    warned: u64,
}

impl Certified {
    fn of(key: &CertifiedSigningKey) -> Self {
        Self {
            certificate: key.certificate().to_vec(),
            warned: 0,
        }
    }

    fn is(&self, key: &CertifiedSigningKey) -> bool {
        self.certificate == key.certificate()
    }
}

impl Rotation {
    fn new(stored: Stored, rekey: Rekey, every: u64) -> Result<Self, Failure> {
        let (current, _) = watch::channel(stored.public()?.ntor);
        let signing = stored.certified_signing_key()?;
        Ok(Self {
            certified: signing.as_ref().map(Certified::of),
            stored,
            rekey,
            every,
            current,
        })
    }

    /// Hears of each new key.
    fn watch(&self) -> watch::Receiver<[u8; 32]> {
        self.current.subscribe()
    }

    /// Looks now and then, until dropped.
    async fn run(mut self) {
        loop {
            if let Err(failure) = self.look(now()) {
                warn!("the onion key stays: {failure}");
            }
            if let Err(failure) = self.look_at_signing_key(now()) {
                warn!("the signing key stays: {failure}");
            }
            sleep(ROTATION_CHECK_INTERVAL).await;
        }
    }

    /// Takes up a signing key that was certified anew, and warns in time where none was.
    fn look_at_signing_key(&mut self, now: u64) -> Result<(), Failure> {
        let Some(certified) = &mut self.certified else {
            return Ok(());
        };
        let Some(key) = self.stored.certified_signing_key()? else {
            return Ok(());
        };
        if !certified.is(&key) {
            self.rekey.renew(self.stored.identity(now)?);
            *certified = Certified::of(&key);
            info!("the relay has a new signing key of its identity");
            return Ok(());
        }
        let until = key.expires();
        if ends_soon(until, now) && now >= certified.warned.saturating_add(DAY) {
            certified.warned = now;
            let days = until.saturating_sub(now) / DAY;
            warn!(
                days,
                "the signing key ends, and the relay with it: certify another with 'hoplite keygen --offline' where the identity is"
            );
        }
        Ok(())
    }

    fn look(&mut self, now: u64) -> Result<(), Failure> {
        let Some(next) = due(self.stored.secrets(), self.every, now)? else {
            return Ok(());
        };
        self.stored.replace(next)?;
        self.rekey.replace(self.stored.circuits(now)?.keys);
        let current = self.stored.public()?.ntor;
        let changed = self.current.send_if_modified(|old| {
            let changed = *old != current;
            *old = current;
            changed
        });
        if changed {
            info!("the relay has a new onion key; the last one is accepted for a week more");
        }
        Ok(())
    }
}

/// Whether its operator is to be told that a signing key ends.
fn ends_soon(until: u64, now: u64) -> bool {
    now.saturating_add(SIGNING_WARNING) >= until
}

/// What comes after `secrets`, if it is time.
fn due(secrets: &Secrets, every: u64, now: u64) -> Result<Option<Secrets>, Failure> {
    let age = now.saturating_sub(secrets.since());
    if every != 0 && age >= every {
        let next = secrets.rotated(now);
        let failed = |error| Failure::new("making the onion key", error, "it is tried again");
        return next.map(Some).map_err(failed);
    }
    Ok((secrets.has_last() && age >= LAST).then(|| secrets.retired()))
}

#[cfg(test)]
mod rotate_tests {
    use super::*;

    const START: u64 = 1_700_000_000;
    const EVERY: u64 = 28 * 24 * 3600;

    #[test]
    fn a_signing_key_that_was_made_again_for_the_same_days_is_another() {
        let master = hoplite_crypto::SigningKey::from_seed(zeroize::Zeroizing::new([7; 32]));
        let master = master.expect("a key");
        let issue = || CertifiedSigningKey::issue(&master, START, 30 * DAY).expect("issued");
        let (one, other) = (issue(), issue());
        assert_eq!(one.expires(), other.expires());
        let certified = Certified::of(&one);
        assert!(certified.is(&one) && !certified.is(&other));
    }

    #[test]
    fn a_key_is_rotated_at_its_time_and_the_last_one_kept_a_week() {
        let first = Secrets::fresh(START).expect("made");
        let soon = due(&first, EVERY, START + EVERY - 1).expect("judged");
        assert!(soon.is_none(), "not before its time");
        let second = due(&first, EVERY, START + EVERY)
            .expect("judged")
            .expect("due");
        assert!(second.has_last());
        assert_ne!(
            second.public().expect("a key"),
            first.public().expect("a key")
        );
        let week = START + EVERY + LAST;
        assert!(due(&second, EVERY, week - 1).expect("judged").is_none());
        let third = due(&second, EVERY, week).expect("judged").expect("due");
        assert!(!third.has_last());
        assert_eq!(
            third.public().expect("a key"),
            second.public().expect("a key")
        );
        assert!(due(&third, EVERY, week + 1).expect("judged").is_none());
    }

    #[test]
    fn an_operator_is_told_for_a_fortnight_that_a_signing_key_ends() {
        assert!(!ends_soon(START + 15 * DAY, START));
        assert!(ends_soon(START + 14 * DAY, START) && ends_soon(START, START + 1));
    }

    #[test]
    fn a_key_that_nobody_is_told_of_is_never_rotated() {
        let secrets = Secrets::fresh(START).expect("made");
        assert!(due(&secrets, 0, START * 2).expect("judged").is_none());
    }

    #[test]
    fn authorities_that_have_no_later_list_are_asked_less_and_less() {
        let mut pace = Pace(LIST_RETRY_PAUSE);
        assert_eq!(pace.pause(true, 900), 900);
        // The last list may be used for long, and another one has been due for long.
        let pauses = [(); 6].map(|()| pace.pause(false, 0));
        assert_eq!(pauses, [4, 8, 16, 32, 60, 60]);
        assert_eq!(pace.pause(true, 900), 900);
        assert_eq!(pace.pause(false, 0), 4);
        // It was asked for before it was due, as after a start.
        assert_eq!(pace.pause(false, 900), 900);
    }

    #[test]
    fn a_clock_that_was_set_back_rotates_nothing() {
        let secrets = Secrets::fresh(START).expect("made");
        assert!(due(&secrets, EVERY, START / 2).expect("judged").is_none());
    }
}
