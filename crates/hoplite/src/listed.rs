//! Relays from the directory: the list, or Tor's consensus ([`Known`]), is fetched and kept before a path is made, and renewed while the client
//! runs (`renewal`). Paths are chosen from it by [`PathChooser`], whose guards stay in the same file, and by round trips (`measuring`).

mod kept;
mod known;
mod measuring;
mod renewal;

use std::{collections::BTreeSet, fmt, path::Path, sync::Arc};

use hoplite_crypto::{Pin, Token};
use hoplite_directory::{
    Candidate, Guard, HsDirs, Moment, PathBias, PathChooser, Refused, ServiceCircuit, Store,
    StoreError, Suspect, Suspicion, Vanguard, Vanguards,
    path_selection::{Network, NoPath, OverlayKind, PathConstraints, Position, Random},
};
use hoplite_masque::{Choose, EntryTrouble};
use hoplite_onion::path::CircuitUsage;
use hoplite_overlay::Direct;
use hoplite_relay::config::Role;
use hoplite_wire::{
    CircuitFate, Target,
    directory::{Descriptor, Key},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};
use tracing::{info, warn};

pub(crate) use kept::{DirectoryCache, Keeper};
pub(crate) use known::Known;
pub(crate) use renewal::ask_authorities;

use crate::{
    client,
    config::client::{Client, Directory, Hop, Relay},
    directory::now,
    say::Failure,
};

/// How many relays of Tor's network are drawn, to find one that is a directory.
const MAX_DRAWN: usize = 32;

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
    mut keeper: Option<Keeper>,
) -> Result<Option<Listed>, Failure> {
    let Some(file) = client.config.directory.clone() else {
        return Ok(None);
    };
    let store = |error: StoreError| unusable(&file.cache, &error);
    let kept = match &mut keeper {
        Some(keeper) => keeper.store(),
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
    let is_renewed = !is_there || needs.are_met(&known.network(), &file).is_err();
    if is_renewed {
        let refusals = renewal::renew(&mut known, &file, overlay).await;
        renewal::refused(&known, &refusals.map_err(store)?)?;
    }
    if let Err(why @ (NoPath::NoTokens(_) | NoPath::ExplicitTokens(_))) =
        needs.are_met(&known.network(), &file)
    {
        return Err(no_path(&why));
    }
    let listed = Listed::new(file.clone(), needs, known).map_err(store)?;
    listed.lock().keeper = keeper;
    listed.lock().keep();
    if is_renewed && file.tor.is_some() {
        listed.lock().keep_tor();
    }
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

    fn is_of_use(&self) -> bool {
        let state = self.lock();
        state.needs.are_met(&state.network, &state.file).is_ok()
    }

    /// Until when the last list before two different ones for one time is used, in seconds since 1970; 0 if there is none to use. None without two.
    pub(crate) fn split_until(&self) -> Option<u64> {
        self.lock().known.split_until(now())
    }

    /// These guards and no others, for tests.
    #[cfg(test)]
    pub(crate) fn keep_only(&self, guards: Vec<Guard>) {
        self.lock().chooser = PathChooser::guarded(guards);
    }

    /// An authority's answer, for tests.
    #[cfg(test)]
    pub(crate) fn hear(&self, text: &str) -> Result<hoplite_directory::Heard, Refused> {
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

    /// Shows who keeps it Tor's documents, beside the rest.
    fn keep_tor(&mut self) {
        let Some(keeper) = &self.keeper else {
            return;
        };
        match DirectoryCache::with_tor(self.known.store()) {
            Ok(kept) => (keeper.keep)(kept),
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

/// Now, by both clocks.
pub(crate) fn moment() -> Moment {
    Moment {
        calendar: now(),
        steady: Instant::now().into_std(),
    }
}
