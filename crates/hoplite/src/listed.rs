//! Relays from the directory: the list, or Tor's consensus ([`Known`]), is fetched and kept before a path is made, and renewed while the client
//! runs. Paths are chosen from it by [`PathChooser`], whose guards stay in the same file.

mod known;

use std::{collections::BTreeSet, fmt, path::Path, sync::Arc, time::Duration};

use futures_util::future::join_all;
use hoplite_crypto::{Pin, Token, Trust};
use hoplite_directory::{
    self as directory, Candidate, FetchError, Guard, HsDirs, KnownText, Layer, ListChecker, Moment,
    Offered, PathBias, PathChooser, Refused, ServiceCircuit, Store, StoreError, Suspect, Suspicion,
    Vanguard, Vanguards,
    path_selection::{Network, NoPath, OverlayKind, PathConstraints, Position, Random},
    tor::{self, NoNetwork},
};
use hoplite_masque::{self as masque, Choose, EntryTrouble, Paths, TakenBack};
use hoplite_onion::path::CircuitUsage;
use hoplite_overlay::{Direct, Overlay};
use hoplite_relay::config::Role;
use hoplite_wire::{
    CircuitFate, Target,
    directory::{Descriptor, Key, Source},
};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

pub(crate) use known::Known;
use known::{Ask, Outcome};

use crate::{
    client,
    config::client::{Client, Directory, Hop, Relay},
    directory::now,
    say::Failure,
    wallet::Wallets,
};

/// The longest pause between two looks whether the list is to be renewed: a device may have slept.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(300);

/// The shortest pause after asking for a list that was due in vain.
const MIN_PAUSE: Duration = Duration::from_secs(5);

/// The shortest pause before the authorities are asked for a list that is not due yet: no path can be made from the one that is here, or a relay did
/// not accept what it says.
const MIN_REFETCH_PAUSE: Duration = Duration::from_secs(60);
/// How often that pause doubles when it was in vain.
const MAX_DOUBLINGS: u32 = 6;

/// However little time a list has left, or none: authorities are asked beside the relays in the middle half of so much at least, seconds.
const LEAST_BESIDE: u64 = 600;

/// How many relays of Tor's network are drawn, to find one that is a directory.
const MAX_DRAWN: usize = 32;

/// How long a relay may take to answer whose round trip is measured.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often is looked whether other exits are to be measured.
const MEASURE_INTERVAL: Duration = Duration::from_secs(3600);
/// How often is looked whether the first relay of the path carries, and whether one that comes before it can be reached again.
const GUARD_INTERVAL: Duration = Duration::from_secs(60);
/// How long after that none is looked for that was found already.
const LOOK_AGAIN: Duration = Duration::from_secs(600);
/// After a path that did not stand.
const MEASURE_AGAIN: Duration = Duration::from_secs(60);

/// The list that a client chooses from.
#[derive(Clone)]
pub(crate) struct Listed(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    hurry: Notify,
}

struct State {
    file: Directory,
    needs: Needs,
    known: Known,
    network: Arc<Network>,
    chooser: PathChooser,
    /// What the store has of the choice of paths.
    stored: Stored,
    /// Who keeps what the store has, where that is not a file.
    keeper: Option<Keeper>,
}

/// What the store has of the choice of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    guards: Vec<Guard>,
    vanguards: Vec<Vanguard>,
    /// The exits of which one is taken.
    candidates: Vec<Candidate>,
}

/// The paths that a client makes from the list.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    /// Of this many relays.
    pub(crate) hops: usize,
    /// What they carry.
    pub(crate) overlay: OverlayKind,
    /// Always these, if there are any.
    pub(crate) explicit: Vec<String>,
    /// Whose private tokens the client has.
    pub(crate) issuers: BTreeSet<String>,
    /// Whether it shows a token of its own where it has none of theirs.
    pub(crate) bearer: bool,
}

impl Needs {
    fn of(client: &Client) -> Self {
        let overlay = if client.config.is_onion() {
            OverlayKind::Onion
        } else {
            OverlayKind::Masque
        };
        Self {
            hops: client.config.length(),
            overlay,
            explicit: client.config.path.clone(),
            issuers: client
                .config
                .issuer
                .iter()
                .map(|issuer| issuer.name.clone())
                .collect(),
            bearer: client.token.is_some(),
        }
    }

    /// Whether there is any such path, whatever its guard; why not.
    fn are_met(&self, network: &Network, file: &Directory) -> Result<(), NoPath> {
        let constraints = self.constraints(file);
        if !self.explicit.is_empty() {
            return network.explicit(&self.explicit, &constraints).map(drop);
        }
        let path = network.select_path(&constraints, &mut client::random());
        path.map(drop)
    }

    /// What is asked of every path.
    fn constraints(&self, file: &Directory) -> PathConstraints {
        PathConstraints {
            hops: self.hops,
            overlay: self.overlay,
            region: file.region.clone(),
            apart: file.apart,
            issuers: (!self.bearer).then(|| self.issuers.clone()),
            ..PathConstraints::default()
        }
    }
}

/// All that is kept of the directory: for a process that may not write the cache itself, and the one that does it for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirectoryCache {
    list: Option<(String, bool)>,
    before: Option<String>,
    proofs: Vec<String>,
    guards: Vec<KeptGuard>,
    #[serde(default)]
    vanguards: Vec<KeptVanguard>,
    #[serde(default)]
    candidates: Vec<KeptCandidate>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptVanguard {
    identity: [u8; 32],
    is_third: bool,
    until: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptCandidate {
    identity: [u8; 32],
    millis: Option<u32>,
    since: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptGuard {
    identity: [u8; 32],
    chosen: u64,
    confirmed: Option<u64>,
    unlisted: Option<u64>,
    /// How its circuits have fared: those to be built, built, to be used, used; and whether it is given up.
    #[serde(default)]
    circuits: [u32; 4],
    #[serde(default)]
    barred: bool,
}

impl From<Guard> for KeptGuard {
    fn from(guard: Guard) -> Self {
        let bias = guard.bias;
        Self {
            identity: guard.identity.0,
            chosen: guard.chosen,
            confirmed: guard.confirmed,
            unlisted: guard.unlisted,
            circuits: [bias.circuits, bias.built, bias.uses, bias.used],
            barred: bias.barred,
        }
    }
}

impl From<&KeptGuard> for Guard {
    fn from(guard: &KeptGuard) -> Self {
        let [circuits, built, uses, used] = guard.circuits;
        Self {
            identity: Key(guard.identity),
            chosen: guard.chosen,
            confirmed: guard.confirmed,
            unlisted: guard.unlisted,
            bias: PathBias {
                circuits,
                built,
                uses,
                used,
                barred: guard.barred,
            },
        }
    }
}

impl From<Vanguard> for KeptVanguard {
    fn from(one: Vanguard) -> Self {
        Self {
            identity: one.identity.0,
            is_third: one.layer == Layer::Third,
            until: one.until,
        }
    }
}

impl From<&KeptVanguard> for Vanguard {
    fn from(one: &KeptVanguard) -> Self {
        Self {
            identity: Key(one.identity),
            layer: if one.is_third {
                Layer::Third
            } else {
                Layer::Second
            },
            until: one.until,
        }
    }
}

/// Where a process without a cache has its things kept.
#[derive(Clone)]
pub(crate) struct Keeper {
    /// What there was when it began.
    pub(crate) kept: DirectoryCache,
    /// Is given all of it when something is new.
    pub(crate) keep: Arc<dyn Fn(DirectoryCache) + Send + Sync>,
}

impl DirectoryCache {
    /// What the cache of the file has.
    pub(crate) fn load(file: &Directory) -> Result<Self, Failure> {
        let read = || Self::of(&Store::open(&file.cache)?);
        read().map_err(|error| unusable(&file.cache, &error))
    }

    /// Into the cache of the file.
    pub(crate) fn save(&self, file: &Directory) -> Result<(), Failure> {
        let write = || self.put_into(&mut Store::open(&file.cache)?);
        write().map_err(|error| unusable(&file.cache, &error))
    }

    fn of(store: &Store) -> Result<Self, StoreError> {
        let candidate = |one: Candidate| KeptCandidate {
            identity: one.identity.0,
            millis: one.millis,
            since: one.since,
        };
        Ok(Self {
            list: store.list()?,
            before: store.before()?,
            proofs: store.proofs()?,
            guards: store.guards()?.into_iter().map(KeptGuard::from).collect(),
            vanguards: store
                .vanguards()?
                .into_iter()
                .map(KeptVanguard::from)
                .collect(),
            candidates: store.candidates()?.into_iter().map(candidate).collect(),
        })
    }

    fn put_into(&self, store: &mut Store) -> Result<(), StoreError> {
        let old = Self::of(store)?;
        if *self == old {
            return Ok(());
        }
        self.put_lists_into(store, &old)?;
        if self.guards != old.guards {
            let guards: Vec<Guard> = self.guards.iter().map(Guard::from).collect();
            store.keep_guards(&guards)?;
        }
        if self.vanguards != old.vanguards {
            let vanguards: Vec<Vanguard> = self.vanguards.iter().map(Vanguard::from).collect();
            store.keep_vanguards(&vanguards)?;
        }
        let candidate = |one: &KeptCandidate| Candidate {
            identity: Key(one.identity),
            millis: one.millis,
            since: one.since,
        };
        if self.candidates != old.candidates {
            let candidates: Vec<Candidate> = self.candidates.iter().map(candidate).collect();
            store.keep_candidates(&candidates)?;
        }
        Ok(())
    }

    /// As they came: what a list replaces is the one before, unless it was split.
    fn put_lists_into(&self, store: &mut Store, old: &Self) -> Result<(), StoreError> {
        let Some((text, is_split)) = &self.list else {
            return Ok(());
        };
        let is_there = |(old, was_split): &(String, bool)| old == text && (*is_split || !was_split);
        let is_there = old.list.as_ref().is_some_and(is_there);
        if !is_there {
            let whole = old.list.as_ref().filter(|(_, was_split)| !was_split);
            let becomes = whole.map(|(text, _)| text).or(old.before.as_ref());
            for earlier in self.before.iter().filter(|it| Some(*it) != becomes) {
                store.keep_list(earlier)?;
            }
            store.keep_list(text)?;
        }
        let was_split = is_there && old.list.as_ref().is_some_and(|(_, was_split)| *was_split);
        if let [one, other] = self.proofs.as_slice()
            && (*is_split != was_split || self.proofs != old.proofs)
        {
            store.keep_split(one, other)?;
            if !is_split {
                store.keep_list(text)?;
            }
        }
        Ok(())
    }

    fn store(&self) -> Result<Store, StoreError> {
        let mut store = Store::in_memory()?;
        self.put_into(&mut store)?;
        Ok(store)
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeper")
    }
}

impl fmt::Debug for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listed")
    }
}

/// The list that the client's file names, the one that is kept or a new one, if it names one; the client's relays are filled in from it. `keeper` keeps
/// what the directory's cache would.
pub(crate) async fn prepare(
    client: &mut Client,
    overlay: &Direct,
    keeper: Option<Keeper>,
) -> Result<Option<Listed>, Failure> {
    let Some(file) = client.config.directory.clone() else {
        return Ok(None);
    };
    let store = |error: StoreError| unusable(&file.cache, &error);
    let kept = match &keeper {
        Some(keeper) => keeper.kept.store(),
        None => Store::open(&file.cache),
    };
    let known = kept.and_then(|kept| Known::open(&file, kept));
    let mut known = known.map_err(store)?;
    // One from which no path can be made, as of a network that has only begun, is no reason to wait until another is due.
    let needs = Needs::of(client);
    if !matches!(known.is_usable(now()), Ok(true)) {
        known.begin(&file, overlay).await.map_err(store)?;
    }
    let is_there = matches!(known.is_usable(now()), Ok(true));
    if !is_there || needs.are_met(&known.network(), &file).is_err() {
        let refusals = renew(&mut known, &file, overlay).await.map_err(store)?;
        refused(&known, &refusals)?;
    }
    if let Err(why @ (NoPath::NoTokens(_) | NoPath::ExplicitTokens(_))) =
        needs.are_met(&known.network(), &file)
    {
        return Err(no_path(&why));
    }
    let listed = Listed::new(file.clone(), needs, known).map_err(store)?;
    listed.lock().keeper = keeper;
    listed.lock().keep();
    let below = Arc::new(overlay.clone());
    listed.measure_guards(below, &client.config.tunnel).await;
    // Circuits take theirs one by one.
    if !client.config.is_onion() {
        client.relays = if client.config.path.is_empty() {
            listed.relays(client.token.as_ref())
        } else {
            listed.explicit(client)?
        };
    }
    Ok(Some(listed))
}

fn unusable(cache: &Path, error: &StoreError) -> Failure {
    let doing = format!("opening the cache of the directory {}", cache.display());
    Failure::new(doing, "it cannot be used", error.to_string())
}

/// Asks the authorities; says what was wrong with each answer.
async fn renew(
    known: &mut Known,
    file: &Directory,
    overlay: &dyn Overlay,
) -> Result<Vec<String>, StoreError> {
    let known = match known {
        Known::List(known) => known,
        Known::Tor(known, tor) => {
            let (renewal, ask) = (known.renewal(), (overlay, Ask::Authorities));
            return match known::renew_tor(&renewal, tor, ask, file.wait).await {
                Ok(Some(renewed)) => {
                    let heard = known.take(renewed)?;
                    Ok(heard.err().iter().map(Refused::to_string).collect())
                }
                Ok(None) => Ok(Vec::new()),
                Err(failures) => Ok(failures.iter().map(known::said).collect()),
            };
        }
    };
    let asking = (known.checker(), known.known_list(now()));
    let (answers, failures) = answers(asking, file, overlay).await;
    let failures = failures.into_iter();
    let failures = failures.map(|(number, why)| (number, why.to_string()));
    let (numbers, offered): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
    let heard = known.take(offered)?;
    let refusals = numbers.into_iter().zip(heard);
    let refusals = refusals.filter_map(|(number, heard)| {
        let refused = heard.err()?;
        Some((number, refused.to_string()))
    });
    let mut refusals: Vec<_> = refusals.chain(failures).collect();
    refusals.sort_by_key(|(number, _)| *number);
    let said = refusals.into_iter();
    Ok(said
        .map(|(number, why)| format!("authority {number}: {why}"))
        .collect())
}

/// What of the authorities' answers can be believed, and why there is none of others; by their numbers in the file. Signatures are checked
/// in a thread that may block: traffic goes on.
async fn answers(
    (checker, known): (ListChecker, Option<KnownText>),
    file: &Directory,
    overlay: &dyn Overlay,
) -> (Vec<Judged>, Vec<(usize, FetchError)>) {
    let answers = ask_authorities(overlay, &file.authorities, known.as_ref(), file.wait).await;
    let (mut numbers, mut texts, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for (number, answer) in answers {
        match answer {
            Ok(text) => {
                numbers.push(number);
                texts.push(text);
            }
            Err(error) => failures.push((number, error)),
        }
    }
    let judged = spawn_blocking(move || checker.check(&texts, now())).await;
    let judged = numbers.into_iter().zip(judged.unwrap_or_default());
    (judged.collect(), failures)
}

/// What each authority answered who was asked for the list, by its number in the file, from 1. Nobody can guess which of them is asked for all of it.
pub(crate) async fn ask_authorities(
    overlay: &dyn Overlay,
    authorities: &[Source],
    known: Option<&KnownText>,
    limit: Duration,
) -> Vec<(usize, Result<String, FetchError>)> {
    let mut order: Vec<_> = (1..).zip(authorities).collect();
    client::shuffle(&mut order);
    let (numbers, sources): (Vec<usize>, Vec<&Source>) = order.into_iter().unzip();
    let sources: Vec<_> = sources.iter().map(|one| one.address.clone()).collect();
    let answers = directory::ask_for_list(overlay, &sources, known, limit).await;
    let answers = answers.into_iter().map(|answer| answer.map(|it| it.text));
    let mut answers: Vec<_> = numbers.into_iter().zip(answers).collect();
    answers.sort_by_key(|(number, _)| *number);
    answers
}

/// By which authority, and whether it can be believed.
type Judged = (usize, Result<Offered, Refused>);

/// Nothing to choose from is a failure; with a list, what others said is only told.
fn refused(known: &Known, refusals: &[String]) -> Result<(), Failure> {
    let doing = "fetching the list of relays";
    match known.is_usable(now()) {
        Ok(true) => {
            refusals
                .iter()
                .for_each(|refusal| warn!("{doing}: {refusal}"));
            if let Some(until) = known.split_until(now()) {
                tell_split(until);
            }
            Ok(())
        }
        Err(Refused::Split) => Err(Failure::new(
            doing,
            Refused::Split,
            "wait for the next list",
        )),
        _ => {
            let why = refusals.join("; ");
            let remedy = "or name relays in the file, without [directory]";
            Err(Failure::new(doing, why, remedy))
        }
    }
}

fn tell_split(until: u64) {
    let seconds = until.saturating_sub(now());
    warn!(
        seconds,
        "authorities have signed two different lists for one time: the last list before them is used for so long, or until there is a later one; report it to their operators, the cache has both"
    );
}

/// Why the list is of no use.
pub(crate) fn no_path(error: &NoPath) -> Failure {
    Failure::new(
        "choosing a path from the list",
        error,
        "see docs/directory.md",
    )
}

/// How a relay of the list is reached, and what it is shown: tokens of its issuer if these are `issuers`, else the client's own.
fn hop(relay: &Descriptor, token: Option<&Token>, issuers: &BTreeSet<String>) -> Hop {
    let tokens = relay.tokens.as_ref();
    let tokens = tokens.filter(|tokens| issuers.contains(&tokens.issuer));
    let roles = [
        (relay.roles.ingress, Role::Ingress),
        (relay.roles.egress, Role::Egress),
    ];
    let address = relay.addresses.first().copied();
    Hop {
        relay: Relay {
            name: relay.name.clone(),
            // A descriptor has one at least.
            address: Target::from(address.unwrap_or_else(|| ([127, 0, 0, 1], 9).into())),
            pin: relay.pin.map(Pin::from),
            roles: roles
                .into_iter()
                .filter(|(is, _)| *is)
                .map(|(_, role)| role)
                .collect(),
            onion: None,
            rsa: None,
            protocols: None,
            template: None,
            region: relay.region.clone(),
            operator: relay.operator.clone(),
            token: None,
            token_file: None,
            issuer: tokens.map(|tokens| tokens.issuer.clone()),
            origin: tokens.map(|tokens| tokens.origin.clone()),
            mode: None,
        },
        token: token.filter(|_| tokens.is_none()).cloned(),
    }
}

impl Listed {
    pub(crate) fn new(file: Directory, needs: Needs, mut known: Known) -> Result<Self, StoreError> {
        let store = known.store();
        let stored = Stored {
            guards: store.guards()?,
            vanguards: store.vanguards()?,
            candidates: store.candidates()?,
        };
        let chooser = if file.guards {
            PathChooser::guarded(stored.guards.clone())
        } else {
            PathChooser::unguarded()
        };
        let vanguards = Vanguards::new(file.vanguards.into(), stored.vanguards.clone());
        let chooser = chooser
            .only_telling(!file.give_up_guards)
            .with_vanguards(vanguards)
            .with_candidates(&stored.candidates);
        let state = State {
            file,
            needs,
            network: Arc::new(known.network()),
            known,
            chooser,
            stored,
            keeper: None,
        };
        Ok(Self(Arc::new(Inner {
            state: Mutex::new(state),
            hurry: Notify::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// The relays of the list, if it may be used now.
    pub(crate) fn current(&self) -> Result<Arc<Network>, Refused> {
        let state = self.lock();
        state.known.is_usable(now())?;
        Ok(Arc::clone(&state.network))
    }

    /// A relay of Tor's network that is a directory, by weight.
    pub(crate) fn directory_cache(&self) -> Option<(Arc<Network>, Descriptor)> {
        let (network, mut random) = (self.current().ok()?, client::random());
        let constraints = self.constraints();
        let mut draw = || network.one(Position::Middle, &constraints, &mut *random);
        let is_directory = |relay: &&Descriptor| {
            let known = network.tor_relay(&relay.identity);
            known.is_some_and(|known| known.is_directory)
        };
        let drawn = (0..MAX_DRAWN).filter_map(|_| draw()).find(is_directory);
        let relay = drawn?.clone();
        Some((network, relay))
    }

    /// Which of its relays keep descriptors of onion services; nothing: its authorities do nothing for those.
    pub(crate) fn hsdirs(&self) -> Result<Option<(Arc<Network>, HsDirs)>, Refused> {
        let state = self.lock();
        let hsdirs = state.known.hsdirs(now())?;
        Ok(hsdirs.map(|hsdirs| (Arc::clone(&state.network), hsdirs)))
    }

    /// A path for such a circuit.
    pub(crate) fn circuit(
        &self,
        network: &Network,
        usage: &CircuitUsage,
        random: Random<'_>,
    ) -> Result<Vec<Descriptor>, NoPath> {
        let state = &mut *self.lock();
        let required = usage.required;
        let constraints = PathConstraints {
            ports: usage.ports.clone(),
            protocols: usage.protocols(),
            ..state.needs.constraints(&state.file)
        };
        let chooser = &mut state.chooser;
        let path = chooser.select_circuit(network, &constraints, required, moment(), random);
        state.keep_guards();
        Ok(path?.into_iter().cloned().collect())
    }

    /// A path for a circuit of an onion service, without a last relay that is given.
    pub(crate) fn service_circuit(
        &self,
        network: &Network,
        circuit: ServiceCircuit<'_>,
        random: Random<'_>,
    ) -> Result<Vec<Descriptor>, NoPath> {
        let state = &mut *self.lock();
        let constraints = state.needs.constraints(&state.file);
        let chooser = &mut state.chooser;
        let path = chooser.select_service_circuit(network, &constraints, circuit, moment(), random);
        state.keep_guards();
        Ok(path?.into_iter().cloned().collect())
    }

    /// A circuit from this guard fares so.
    pub(crate) fn circuit_fares(&self, guard: &Key, fate: CircuitFate) {
        let state = &mut *self.lock();
        if let Some(suspect) = state.chooser.circuit_fares(guard, fate) {
            tell_suspect(&suspect);
        }
        state.keep_guards();
    }

    /// Two paths for circuits that carry the same streams (Conflux), to one exit that has as many of `ports` as can be.
    pub(crate) fn pair(
        &self,
        network: &Network,
        ports: &[u16],
        random: Random<'_>,
    ) -> Result<[Vec<Descriptor>; 2], NoPath> {
        let state = &mut *self.lock();
        let constraints = PathConstraints {
            ports: ports.to_vec(),
            ..state.needs.constraints(&state.file)
        };
        let chooser = &mut state.chooser;
        let pair = chooser.select_pair(network, &constraints, false, moment(), random);
        state.keep_guards();
        Ok(pair?.map(|path| path.into_iter().cloned().collect()))
    }

    /// A circuit was built from this guard.
    pub(crate) fn worked(&self, guard: &Key) {
        let state = &mut *self.lock();
        let chooser = &mut state.chooser;
        chooser.guard_worked(guard, moment(), &mut client::random());
        state.keep_guards();
    }

    /// A relay of a circuit failed, in this place from 0.
    pub(crate) fn failed(&self, relay: Key, hop: usize) {
        let state = &mut *self.lock();
        state.chooser.circuit_failed(relay, hop, moment());
        state.keep_guards();
    }

    /// A relay did not accept what the list says of it: a newer one is looked for soon.
    pub(crate) fn hurry(&self) {
        self.0.hurry.notify_one();
    }

    /// All relays, in the list's order.
    pub(crate) fn relays(&self, token: Option<&Token>) -> Vec<Hop> {
        let state = self.lock();
        let (network, issuers) = (Arc::clone(&state.network), state.needs.issuers.clone());
        drop(state);
        let relays = network.relays().iter();
        relays.map(|relay| hop(relay, token, &issuers)).collect()
    }

    /// The relays of an explicit path, called what the file calls them.
    fn explicit(&self, client: &Client) -> Result<Vec<Hop>, Failure> {
        let state = self.lock();
        let constraints = state.needs.constraints(&state.file);
        let path = &client.config.path;
        let relays = state.network.explicit(path, &constraints);
        let relays = relays.map_err(|error| no_path(&error))?;
        let named = relays.into_iter().zip(path).map(|(relay, name)| {
            let mut hop = hop(relay, client.token.as_ref(), &state.needs.issuers);
            hop.relay.name.clone_from(name);
            hop
        });
        Ok(named.collect())
    }

    /// What is asked of every path.
    pub(crate) fn constraints(&self) -> PathConstraints {
        let state = self.lock();
        state.needs.constraints(&state.file)
    }

    /// Chooses among the relays of this list, by their places in it.
    pub(crate) fn chooser(&self) -> Choose {
        let (listed, network) = (self.clone(), Arc::clone(&self.lock().network));
        Box::new(move |failed, trouble| listed.choose(&network, failed, trouble))
    }

    fn choose(
        &self,
        network: &Network,
        failed: &[usize],
        trouble: Option<EntryTrouble>,
    ) -> Option<Vec<usize>> {
        let state = &mut *self.lock();
        let identity = |place: usize| Some(network.relays().get(place)?.identity);
        let failed: Vec<_> = failed.iter().filter_map(|&place| identity(place)).collect();
        let first = trouble.map(|trouble| match trouble {
            EntryTrouble::Away(place) => (identity(place), false),
            EntryTrouble::Choosy(place) => (identity(place), true),
        });
        match first {
            Some((Some(first), true)) => state.chooser.guard_put_off(&first, moment()),
            Some((Some(first), false)) => state.chooser.guard_failed(&first, moment()),
            _ => {}
        }
        let constraints = state.needs.constraints(&state.file);
        let (chooser, mut random) = (&mut state.chooser, client::random());
        let path = chooser.select_path(network, &constraints, &failed, moment(), &mut random);
        state.keep_guards();
        let path = path.inspect_err(|why| warn!("choosing a path from the list: {why}"));
        let place = |relay: &Descriptor| network.place(&relay.identity);
        let path = path.ok()?;
        Some(path.into_iter().filter_map(place).collect())
    }

    /// Before a guard is used for the first time: a handshake with each of the first, of which the nearer ones are probably used first.
    async fn measure_guards(&self, below: Arc<dyn Overlay>, config: &masque::Config) {
        let (network, guards) = {
            let state = &mut *self.lock();
            // C tor's relays take no handshake of QUIC.
            if !state.needs.explicit.is_empty() || matches!(state.known, Known::Tor(..)) {
                return;
            }
            let (network, mut random) = (Arc::clone(&state.network), client::random());
            let constraints = state.needs.constraints(&state.file);
            let chooser = &mut state.chooser;
            let guards = chooser.guards_to_measure(&network, &constraints, moment(), &mut random);
            (network, guards)
        };
        if guards.is_empty() {
            return;
        }
        let measured = guards.iter().map(|guard| async {
            let millis = measured(&network, guard, 0, Arc::clone(&below), config).await;
            (*guard, millis)
        });
        let measured = join_all(measured).await;
        let state = &mut *self.lock();
        let (chooser, mut random) = (&mut state.chooser, client::random());
        chooser.guards_measured(&network, &measured, &mut random);
        state.keep_guards();
    }

    /// Keeps to the first of the guards, until dropped: notes that the first relay of the path carries, and when one that comes before it has rested looks
    /// whether it can be reached again, before flows are to go that way. So who can keep the first ones away for a minute does not choose the guard of days.
    pub(crate) async fn keep_to_guards(
        &self,
        paths: &Paths,
        below: Arc<dyn Overlay>,
        config: &masque::Config,
    ) {
        let mut looked = None::<(Key, Instant)>;
        loop {
            sleep(GUARD_INTERVAL).await;
            let path = paths.current();
            let over_quic = path.hops().first().and_then(|hop| hop.is_over_quic());
            let (Some(is_over_quic), Some(first)) = (over_quic, self.first_of(paths)) else {
                continue;
            };
            self.worked(&first);
            let (network, better) = self.better_guard(&first);
            // One that does not go with the rest of any path stays the better one.
            let is_new = |guard: &Key| {
                looked.is_none_or(|(last, at)| last != *guard || at.elapsed() >= LOOK_AGAIN)
            };
            let better = better.filter(is_new);
            let Some((guard, place)) = better.and_then(|one| Some((one, network.place(&one)?)))
            else {
                continue;
            };
            looked = Some((guard, Instant::now()));
            // Where UDP does not get through nobody answers, and only a connection can tell.
            let answers = measured(&network, &guard, 0, Arc::clone(&below), config).await;
            let taken = if answers.is_some() || !is_over_quic {
                paths.take_back(place).await
            } else {
                TakenBack::Away
            };
            match taken {
                TakenBack::Taken => self.worked(&guard),
                TakenBack::Away => self.lock().chooser.guard_failed(&guard, moment()),
                TakenBack::NotChosen => {}
            }
        }
    }

    /// The first relay of the path, as the list has it.
    fn first_of(&self, paths: &Paths) -> Option<Key> {
        let first = paths.first()?;
        let network = Arc::clone(&self.lock().network);
        let mut relays = network.relays().iter();
        let found = relays.find(|relay| {
            let pin = relay.pin.map(Pin::from);
            let address = relay.addresses.first().copied().map(Target::from);
            let is_pinned =
                |pin| matches!(&first.peer.trust, Trust::Pins(pins) if pins.contains(&pin));
            pin.is_some_and(is_pinned) && address.as_ref() == Some(&first.peer.address)
        });
        found.map(|relay| relay.identity)
    }

    /// The guard that would be used instead of it, if there is one.
    fn better_guard(&self, first: &Key) -> (Arc<Network>, Option<Key>) {
        let state = &mut *self.lock();
        let (network, mut random) = (Arc::clone(&state.network), client::random());
        let constraints = state.needs.constraints(&state.file);
        let chooser = &mut state.chooser;
        let better = chooser.guard_before(first, &network, &constraints, moment(), &mut random);
        (network, better)
    }

    /// Looks now and then, until dropped, which exits are near, through the first relay of the path; chooses again when that has become known.
    pub(crate) async fn measure_exits(
        &self,
        paths: &Paths,
        below: Arc<dyn Overlay>,
        config: &masque::Config,
    ) {
        loop {
            if paths.current().connect().await.is_err() {
                sleep(MEASURE_AGAIN).await;
                continue;
            }
            let hops = paths.current().hops().to_vec();
            let through: Arc<dyn Overlay> = match hops.as_slice() {
                [first, _, ..] => Arc::new(first.clone()),
                _ => Arc::clone(&below),
            };
            let number = usize::from(hops.len() > 1);
            let first = self.first_of(paths).filter(|_| number > 0);
            let (network, exits) = self.exits_to_measure(first.as_ref());
            let mut is_known = false;
            for exit in exits {
                let through = Arc::clone(&through);
                if let Some(millis) = measured(&network, &exit, number, through, config).await {
                    self.lock().chooser.exit_measured(&exit, millis);
                    is_known = true;
                }
            }
            self.lock().keep_guards();
            if is_known {
                paths.reconsider();
            }
            sleep(MEASURE_INTERVAL).await;
        }
    }

    /// Those that go with the first relay of the path, if there is another one.
    fn exits_to_measure(&self, first: Option<&Key>) -> (Arc<Network>, Vec<Key>) {
        let state = &mut *self.lock();
        let (network, mut random) = (Arc::clone(&state.network), client::random());
        let mut constraints = state.needs.constraints(&state.file);
        if let Some(first) = first {
            let beside = network.not_apart(first, constraints.apart);
            constraints.avoid.extend(beside);
        }
        let chooser = &mut state.chooser;
        let exits = chooser.exits_to_measure(&network, &constraints, moment(), &mut random);
        (network, exits)
    }

    /// Renews the list until dropped, through the relays where that works; `found` is told of each new one.
    pub(crate) async fn keep(
        &self,
        through: Arc<dyn Overlay>,
        beside: Arc<dyn Overlay>,
        found: impl Fn(&Self),
    ) {
        let mut random = client::random();
        let mut asked = Instant::now();
        let mut in_vain = 0u32;
        let mut beside_at = None::<u64>;
        loop {
            let due = self.due(&mut random);
            let due = beside_at.map_or(due, |at| at.min(due));
            let soon = asked + haste(in_vain, &mut random);
            let is_due = tokio::select! {
                () = wait_until(due) => true,
                () = self.hurried(soon) => false,
            };
            asked = Instant::now();
            let is_time = beside_at.take_if(|at| *at <= now()).is_some();
            let mut outcome = Outcome::Alone;
            if !is_time {
                outcome = self.renew_by(&*through, Ask::Caches).await;
            }
            if outcome == Outcome::Alone || outcome == Outcome::Failed && !self.is_of_use() {
                outcome = self.renew_by(&*beside, Ask::Authorities).await;
            } else if outcome == Outcome::Failed {
                beside_at.get_or_insert_with(|| self.beside_at(&mut random));
            }
            let is_newer = outcome == Outcome::Newer;
            if is_newer {
                beside_at = None;
                found(self);
            }
            if is_newer && self.is_of_use() {
                in_vain = 0;
            } else if !is_due {
                in_vain = in_vain.saturating_add(1);
            }
            if is_due && !is_newer {
                let left = beside_at.map(|at| Duration::from_secs(at.saturating_sub(now())));
                let pause = self.pause();
                sleep(left.map_or(pause, |left| left.min(pause))).await;
            }
        }
    }

    /// When the authorities are asked beside the relays, after those gave nothing. Who stands at the end of the path sees what is asked for and can keep it
    /// back; he would know whose flows he carries, if an authority told him who asks it right then.
    fn beside_at(&self, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        let (state, now) = (self.lock(), now());
        beside(now, state.known.valid_until(now), random)
    }

    /// After asking in vain: several times before the list is over.
    fn pause(&self) -> Duration {
        let (state, now) = (self.lock(), now());
        let left = state.known.valid_until(now).saturating_sub(now);
        match left {
            0 => MIN_REFETCH_PAUSE,
            left => Duration::from_secs(left / 4).clamp(MIN_PAUSE, MAX_CHECK_INTERVAL),
        }
    }

    /// A newer list is asked for, or none of our paths can be made from this one; and it is not too soon.
    async fn hurried(&self, earliest: Instant) {
        if self.is_of_use() {
            self.0.hurry.notified().await;
        }
        tokio::time::sleep_until(earliest).await;
    }

    fn is_of_use(&self) -> bool {
        let state = self.lock();
        state.needs.are_met(&state.network, &state.file).is_ok()
    }

    /// Until when the last list before two different ones for one time is used, in seconds since 1970; 0 if there is none to use. None without two.
    pub(crate) fn split_until(&self) -> Option<u64> {
        self.lock().known.split_until(now())
    }

    fn due(&self, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        self.lock().known.next(now(), random)
    }

    /// Whether there is a newer list now.
    async fn renew_by(&self, overlay: &dyn Overlay, ask: Ask) -> Outcome {
        let file = self.lock().file.clone();
        let asked = match &self.lock().known {
            Known::List(known) => Ok((known.checker(), known.known_list(now()))),
            Known::Tor(known, tor) => Err((known.renewal(), tor.clone())),
        };
        let asking = match asked {
            Ok(asking) => asking,
            Err((renewal, tor)) => {
                let renewed = known::renew_tor(&renewal, &tor, (overlay, ask), file.wait).await;
                return self.take_tor(renewed).await;
            }
        };
        if ask == Ask::Caches && self.renew_from_caches(overlay, file.wait).await {
            return Outcome::Newer;
        }
        let (answers, failures) = answers(asking, &file, overlay).await;
        let mut failures = failures.iter().map(|(_, why)| why);
        if answers.is_empty() && failures.all(FetchError::is_of_entry) {
            return Outcome::Alone;
        }
        let (numbers, offered): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        // What is written to the disk is written beside the traffic, too.
        let listed = self.clone();
        let newer = spawn_blocking(move || listed.take(&numbers, offered)).await;
        match newer {
            Ok(true) => Outcome::Newer,
            // Authorities may be heard by another way.
            Ok(false) | Err(_) => Outcome::Failed,
        }
    }

    /// Whether relays that keep the list have a newer one. What is wrong with their answers is nobody's concern: authorities are asked then.
    async fn renew_from_caches(&self, overlay: &dyn Overlay, limit: Duration) -> bool {
        let asking = {
            let state = self.lock();
            let Known::List(known) = &state.known else {
                return false;
            };
            let caches = state.known.list_caches(now());
            (known.checker(), caches, known.known_list(now()))
        };
        let (checker, caches, known) = asking;
        if caches.is_empty() {
            return false;
        }
        let answers = directory::ask_caches(overlay, &caches, known.as_ref(), limit).await;
        let answers: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
        let bytes: usize = answers.iter().map(|answer| answer.bytes).sum();
        debug!(
            caches = caches.len(),
            answers = answers.len(),
            bytes,
            "relays were asked for the list"
        );
        let listed = self.clone();
        let taken = spawn_blocking(move || {
            let texts: Vec<_> = answers.into_iter().map(|answer| answer.text).collect();
            let mut offered = checker.check(&texts, now());
            offered.retain(Result::is_ok);
            listed.take(&[], offered)
        });
        taken.await.unwrap_or(false)
    }

    async fn take_tor(&self, renewed: Result<Option<tor::Renewed>, Vec<NoNetwork>>) -> Outcome {
        let renewed = match renewed {
            Ok(Some(renewed)) => renewed,
            Ok(None) => return Outcome::Current,
            Err(failures) => {
                let told = failures.iter().map(known::said);
                told.for_each(|why| warn!("renewing Tor's consensus: {why}"));
                let is_of_entry = |failure: &NoNetwork| matches!(failure, NoNetwork::Fetch(why) if why.is_of_entry());
                let is_alone = failures.iter().all(is_of_entry);
                return if is_alone {
                    Outcome::Alone
                } else {
                    Outcome::Failed
                };
            }
        };
        let listed = self.clone();
        let taken = spawn_blocking(move || {
            let state = &mut *listed.lock();
            let Known::Tor(known, _) = &mut state.known else {
                return Outcome::Failed;
            };
            let outcome = known::take_tor(known, renewed);
            if outcome == Outcome::Newer {
                state.take_list();
            }
            outcome
        });
        taken.await.unwrap_or(Outcome::Failed)
    }

    fn take(&self, authorities: &[usize], offered: Vec<Result<Offered, Refused>>) -> bool {
        let state = &mut *self.lock();
        let Known::List(known) = &mut state.known else {
            return false;
        };
        let heard = match known.take(offered) {
            Ok(heard) => heard,
            Err(error) => {
                warn!("the cache of the directory cannot be written: {error}");
                return false;
            }
        };
        for (authority, heard) in authorities.iter().zip(&heard) {
            if let Err(refused) = heard {
                warn!(authority, "a list of relays is refused: {refused}");
            }
        }
        if let Some(until) = state.known.split_until(now())
            && until > 0
        {
            tell_split(until);
        }
        let changed =
            heard.contains(&Ok(directory::Heard::Newer)) || heard.contains(&Err(Refused::Split));
        state.keep();
        changed && state.take_list()
    }

    /// These guards and no others, for tests.
    #[cfg(test)]
    pub(crate) fn keep_only(&self, guards: Vec<Guard>) {
        self.lock().chooser = PathChooser::guarded(guards);
    }

    /// An authority's answer, for tests.
    #[cfg(test)]
    pub(crate) fn hear(&self, text: &str) -> Result<directory::Heard, Refused> {
        let state = &mut *self.lock();
        let Known::List(known) = &mut state.known else {
            unreachable!("there is no list");
        };
        let heard = known.heard(text, now()).expect("stored");
        state.take_list();
        heard
    }
}

impl State {
    /// The relays of the newest list, if there is one that may be used.
    fn take_list(&mut self) -> bool {
        if !matches!(self.known.is_usable(now()), Ok(true)) {
            return false;
        }
        self.network = Arc::new(self.known.network());
        let relays = self.network.relays().len();
        info!(relays, "there is a new list of relays");
        true
    }

    /// Writes to the disk only what is new.
    fn keep_guards(&mut self) {
        let old = &self.stored;
        let now = Stored {
            // Without guards, those that there were stay for another time.
            guards: self.chooser.kept().unwrap_or_else(|| old.guards.clone()),
            vanguards: self.chooser.vanguards(),
            candidates: self.chooser.candidates(),
        };
        if now == *old {
            return;
        }
        match now.put_into(self.known.store(), old) {
            Ok(()) => self.stored = now,
            Err(error) => warn!("the guards cannot be stored: {error}"),
        }
        self.keep();
    }

    /// Shows who keeps it what is new.
    fn keep(&mut self) {
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        match DirectoryCache::of(self.known.store()) {
            Ok(kept) if kept == keeper.kept => {}
            Ok(kept) => {
                keeper.kept = kept.clone();
                (keeper.keep)(kept);
            }
            Err(error) => warn!("the cache of the directory cannot be read: {error}"),
        }
    }
}

impl Stored {
    /// What differs from what is there.
    fn put_into(&self, store: &mut Store, old: &Self) -> Result<(), StoreError> {
        if self.guards != old.guards {
            store.keep_guards(&self.guards)?;
        }
        if self.vanguards != old.vanguards {
            store.keep_vanguards(&self.vanguards)?;
        }
        if self.candidates != old.candidates {
            store.keep_candidates(&self.candidates)?;
        }
        Ok(())
    }
}

/// A guard is called by its number in the order of this client's: who it is, no log tells.
fn tell_suspect(suspect: &Suspect) {
    let guard = suspect.number;
    let PathBias {
        circuits,
        built,
        uses,
        used,
        ..
    } = suspect.bias;
    if suspect.given_up {
        warn!(
            guard,
            circuits,
            built,
            uses,
            used,
            "so many circuits through a guard fail that it may choose which: another guard is used from now on; tell the directory's operators"
        );
    } else if suspect.suspicion >= Suspicion::Warn {
        warn!(
            guard,
            circuits,
            built,
            uses,
            used,
            "so many circuits through a guard fail that it, or somebody before it, may choose which: if other clients fare better, remove the cache of the directory, and other guards are chosen"
        );
    } else {
        info!(
            guard,
            circuits,
            built,
            uses,
            used,
            "more circuits through a guard fail than should: it or the network may have too much to do"
        );
    }
}

/// The round trip to a relay of the list in milliseconds; nothing if it does not answer, or not over QUIC.
async fn measured(
    network: &Network,
    relay: &Key,
    number: usize,
    below: Arc<dyn Overlay>,
    config: &masque::Config,
) -> Option<u32> {
    let hop = hop(network.relay(relay)?, None, &BTreeSet::new());
    let relay = client::relay(&hop, &Wallets::default());
    // Circuits' relays need not have a key for it.
    hop.relay.pin?;
    let dialling = Box::pin(masque::round_trip(relay, number, below, config));
    let took = timeout(MEASURE_TIMEOUT, dialling).await.ok()?.ok()?;
    Some(u32::try_from(took.as_millis()).unwrap_or(u32::MAX))
}

/// Now, by both clocks.
pub(crate) fn moment() -> Moment {
    Moment {
        calendar: now(),
        steady: Instant::now().into_std(),
    }
}

/// How long after the last time the authorities may be asked for a list that is not due, when that was in vain so often: between a pause and twice
/// as long, so that clients that have the same list do not come all at once.
fn haste(in_vain: u32, random: &mut dyn FnMut(u64) -> u64) -> Duration {
    let pause = MIN_REFETCH_PAUSE.saturating_mul(1 << in_vain.min(MAX_DOUBLINGS));
    pause.saturating_add(Duration::from_secs(random(pause.as_secs())))
}

/// A moment in the middle half of the time that a list has left, or of the least time that will do.
fn beside(now: u64, valid_until: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
    middle(
        now,
        valid_until.max(now.saturating_add(LEAST_BESIDE)),
        random,
    )
}

/// A moment in the middle half of a time.
fn middle(from: u64, until: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
    let all = until.saturating_sub(from);
    let drawn = random((all / 2).max(1));
    from.saturating_add(all / 4).saturating_add(drawn)
}

/// By the clock that lists go by; a device may have slept.
async fn wait_until(due: u64) {
    while now() < due {
        let left = Duration::from_secs(due.saturating_sub(now()));
        sleep(left.min(MAX_CHECK_INTERVAL)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_of_a_time_is_drawn_from() {
        let drawn = |from, until| {
            let ends = [
                middle(from, until, &mut |_| 0),
                middle(from, until, &mut |below| below - 1),
            ];
            ends.map(|moment| moment - from)
        };
        assert_eq!(drawn(1000, 9000), [2000, 5999]);
        assert_eq!((drawn(1000, 1000), drawn(1000, 900)), ([0; 2], [0; 2]));
    }

    /// As a device's that has slept.
    #[test]
    fn where_a_list_is_over_authorities_are_not_asked_directly_at_once() {
        for valid_until in [0, 4000, 5000, 5060] {
            assert_eq!(beside(5000, valid_until, &mut |_| 0), 5150);
            assert_eq!(beside(5000, valid_until, &mut |below| below - 1), 5449);
        }
    }

    fn carried(change: impl FnOnce(&mut Store)) {
        let mut store = Store::in_memory().expect("a store");
        change(&mut store);
        let kept = DirectoryCache::of(&store).expect("read");
        let copy = kept.store().expect("written");
        assert_eq!(DirectoryCache::of(&copy).expect("read"), kept);
    }

    #[test]
    fn what_is_kept_is_the_same_in_another_store_whatever_was_seen() {
        let guard = Guard {
            identity: Key([7; 32]),
            chosen: 1,
            confirmed: Some(2),
            unlisted: None,
            bias: PathBias {
                circuits: 5,
                built: 4,
                uses: 3,
                used: 2,
                barred: true,
            },
        };
        let vanguard = |layer| Vanguard {
            identity: Key([8; 32]),
            layer,
            until: 9,
        };
        carried(|_| ());
        carried(|store| store.keep_list("one").expect("kept"));
        carried(|store| store.keep_guards(&[guard]).expect("kept"));
        carried(|store| {
            let vanguards = [Layer::Second, Layer::Third].map(vanguard);
            store.keep_vanguards(&vanguards).expect("kept");
        });
        let candidate = Candidate {
            identity: Key([7; 32]),
            millis: Some(3),
            since: 4,
        };
        carried(|store| store.keep_candidates(&[candidate]).expect("kept"));
        carried(|store| {
            store.keep_list("one").expect("kept");
            store.keep_split("one", "other").expect("kept");
        });
        carried(|store| {
            store.keep_list("one").expect("kept");
            store.keep_split("one", "other").expect("kept");
            store.keep_list("later").expect("kept");
        });
    }

    #[test]
    fn a_split_list_is_never_the_one_before_that_nothing_spoke_against() {
        let mut file = Store::in_memory().expect("a store");
        let mut seen = Store::in_memory().expect("a store");
        let carry = |seen: &Store, file: &mut Store| {
            let kept = DirectoryCache::of(seen).expect("read");
            kept.put_into(file).expect("written");
            file.before().expect("read")
        };
        seen.keep_list("one").expect("kept");
        assert_eq!(carry(&seen, &mut file), None);
        seen.keep_split("one", "other").expect("kept");
        assert_eq!(carry(&seen, &mut file), None);
        seen.keep_list("two").expect("kept");
        assert_eq!(carry(&seen, &mut file), None);
        seen.keep_list("three").expect("kept");
        assert_eq!(carry(&seen, &mut file), Some("two".into()));
        let again = DirectoryCache::of(&file)
            .expect("read")
            .store()
            .expect("written");
        assert_eq!(again.before().expect("read"), Some("two".into()));
    }

    #[test]
    fn a_later_state_takes_the_place_of_an_earlier_one() {
        let mut file = Store::in_memory().expect("a store");
        let mut seen = Store::in_memory().expect("a store");
        for step in 0..4 {
            match step {
                0 => seen.keep_list("one"),
                1 => seen.keep_split("one", "other"),
                2 => seen.keep_list("two"),
                _ => seen.keep_split("two", "another"),
            }
            .expect("kept");
            let kept = DirectoryCache::of(&seen).expect("read");
            kept.put_into(&mut file).expect("written");
            assert_eq!(
                DirectoryCache::of(&file).expect("read"),
                kept,
                "step {step}"
            );
        }
    }
}
