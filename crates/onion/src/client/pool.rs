//! The circuits of one client: those of each isolation token, and some that stand ready for the next token.
//! [`super::Onion`] asks it for a circuit; [`super::driver`] builds them. path-spec "Which circuits are built", "Attaching streams to circuits".
//!
//! No two tokens ever share a circuit. A token has one, or a few where its exit does not serve the port that is asked for; each takes new
//! streams for [`Config::lasts`] and ends then with its last stream.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    pin::pin,
    sync::{Arc, OnceLock, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use hoplite_overlay::{Error, ErrorKind, Isolation, Reason};
use hoplite_wire::Target;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, SetOnce},
    time::{Instant, timeout},
};

use super::{BuiltCircuit, Config, driver::Builder};
use crate::{
    channel::Dialer,
    path::{CircuitUsage, Failed, Paths, Relay},
};

/// Circuits of one token, for different ports; beyond it the oldest takes no further streams. No more are built for it at the same time, either:
/// a stream that none of those would serve waits until one of them has come about or failed.
pub const OF_A_TOKEN: usize = 4;

/// Keeps circuits.
pub(super) struct Pool {
    builder: Arc<Builder>,
    config: Config,
    state: Mutex<State>,
}

struct State {
    slots: BTreeMap<Isolation, Slot>,
    /// What nobody uses yet.
    ahead: Vec<BuiltCircuit>,
    /// Those that are being built: the ports that each is for, the most important first.
    coming: Vec<Vec<u16>>,
    lately: Lately,
}

/// The circuits of one token, and those that are being built for it.
#[derive(Default)]
struct Slot {
    kept: Vec<Arc<BuiltCircuit>>,
    coming: Vec<Arc<Build>>,
    /// One of those that were coming has come about or failed.
    changed: Arc<Notify>,
}

/// A circuit that is being built for the streams of one token that wait for it. It goes on when they have given up: the next stream needs it.
struct Build {
    need: Need,
    /// Its exit, once the path is chosen.
    exit: OnceLock<Relay>,
    done: SetOnce<Result<Arc<BuiltCircuit>, Error>>,
}

/// What a stream needs of the exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    /// That it connects to this port.
    pub(super) port: Option<u16>,
    /// That it carries datagrams.
    pub(super) datagrams: bool,
}

/// What there is for a stream.
enum Found {
    BuiltCircuit(Arc<BuiltCircuit>),
    Coming(Arc<Build>),
    /// As many are being built as may be.
    Busy(Arc<Notify>),
}

impl Pool {
    pub(super) fn new(dialer: Arc<dyn Dialer>, paths: Arc<dyn Paths>, config: Config) -> Arc<Self> {
        let state = State {
            slots: BTreeMap::new(),
            ahead: Vec::new(),
            coming: Vec::new(),
            lately: Lately::new(Instant::now()),
        };
        Arc::new(Self {
            builder: Builder::new(dialer, paths, config.clone()),
            config,
            state: Mutex::new(state),
        })
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// A circuit of this token whose exit serves the stream, as far as is known. While one is built for it, streams of the token that
    /// another circuit serves do not wait.
    ///
    /// # Errors
    /// None can be built, or there are too many tokens.
    pub(super) async fn circuit(
        self: &Arc<Self>,
        isolation: &Isolation,
        need: Need,
    ) -> Result<Arc<BuiltCircuit>, Error> {
        if let Some(port) = need.port {
            self.state().lately.note(port, Instant::now());
        }
        loop {
            match self.find(isolation, need)? {
                Found::BuiltCircuit(circuit) => return Ok(circuit),
                Found::Coming(build) => return build.done.wait().await.clone(),
                Found::Busy(changed) => {
                    let mut changed = pin!(changed.notified());
                    // What ended before this is seen now, what ends later wakes.
                    changed.as_mut().enable();
                    if matches!(self.find(isolation, need)?, Found::Busy(_)) {
                        changed.await;
                    }
                }
            }
        }
    }

    /// A circuit that is there, or else one that is being built; it is begun if there is none.
    fn find(self: &Arc<Self>, isolation: &Isolation, need: Need) -> Result<Found, Error> {
        let mut state = self.state();
        let slot = state.slot(isolation, self.config.isolated)?;
        let unusable = slot.take(|circuit| !circuit.is_usable());
        let found = slot.find(need);
        drop(state);
        self.bury_all(&unusable);
        if let Some(found) = found {
            return Ok(found);
        }
        if let Some(circuit) = self.take_ahead(need) {
            let circuit = Arc::new(circuit);
            self.attach(isolation, &circuit);
            return Ok(Found::BuiltCircuit(circuit));
        }
        self.begin(isolation, need)
    }

    /// Begins to build one, unless another stream was quicker.
    fn begin(self: &Arc<Self>, isolation: &Isolation, need: Need) -> Result<Found, Error> {
        let build = Arc::new(Build {
            need,
            exit: OnceLock::new(),
            done: SetOnce::new(),
        });
        let mut state = self.state();
        let slot = state.slot(isolation, self.config.isolated)?;
        if let Some(found) = slot.find(need) {
            return Ok(found);
        }
        slot.coming.push(Arc::clone(&build));
        drop(state);
        let (pool, builder) = (Arc::downgrade(self), Arc::clone(&self.builder));
        let (isolation, begun) = (isolation.clone(), Arc::clone(&build));
        let mut building = Box::pin(async move {
            let built = begun.run(&builder).await;
            match pool.upgrade() {
                Some(pool) => pool.built(&isolation, &begun, built),
                // Nobody opens streams any more.
                None => drop(built),
            }
        });
        // Now, and not only when the task has its turn: where the choice of a path takes no time, the streams that come next know the exit.
        let chosen = building
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        if chosen == Poll::Pending {
            tokio::spawn(building);
        }
        Ok(Found::Coming(build))
    }

    fn built(
        self: &Arc<Self>,
        isolation: &Isolation,
        build: &Arc<Build>,
        built: Result<Arc<BuiltCircuit>, Error>,
    ) {
        if let Ok(circuit) = &built {
            self.attach(isolation, circuit);
        }
        let mut state = self.state();
        if let Some(slot) = state.slots.get_mut(isolation) {
            slot.coming.retain(|other| !Arc::ptr_eq(other, build));
            slot.changed.notify_waiters();
            if slot.is_empty() {
                state.slots.remove(isolation);
            }
        }
        drop(state);
        // It ends once.
        build.done.set(built).ok();
    }

    /// The circuit is this token's from now on.
    fn attach(self: &Arc<Self>, isolation: &Isolation, circuit: &Arc<BuiltCircuit>) {
        let mut state = self.state();
        let slot = state.slots.entry(isolation.clone()).or_default();
        let oldest = (slot.kept.len() >= OF_A_TOKEN).then(|| slot.kept.remove(0));
        slot.kept.push(Arc::clone(circuit));
        drop(state);
        drop(oldest);
        self.retire_later(isolation, circuit);
        self.refill();
    }

    /// The circuit failed: the token's next stream gets another.
    pub(super) fn give_up(&self, isolation: &Isolation, failed: &Arc<BuiltCircuit>) {
        self.remove(isolation, |circuit| {
            std::ptr::eq(circuit, &raw const **failed)
        });
    }

    /// Builds circuits ahead in the background, as many as are missing, for ports that streams went to lately.
    pub(super) fn refill(self: &Arc<Self>) {
        let mut state = self.state();
        let gone = state.remove_dead();
        while state.ahead.len() + state.coming.len() < self.config.ahead {
            let ports = state.wanted(Instant::now());
            state.coming.push(ports.clone());
            let pool = Arc::clone(self);
            let usage = CircuitUsage {
                ports,
                ..CircuitUsage::default()
            };
            tokio::spawn(async move { pool.build_ahead(usage).await });
        }
        drop(state);
        gone.iter().for_each(|circuit| self.bury(circuit));
    }

    async fn build_ahead(self: Arc<Self>, usage: CircuitUsage) {
        let built = if self.config.conflux {
            self.builder.build_set(&usage).await
        } else {
            self.builder.build(&usage, |_| ()).await
        };
        let mut state = self.state();
        let place = state.coming.iter().position(|ports| *ports == usage.ports);
        place.map(|place| state.coming.swap_remove(place));
        // Without an error: the next stream tries again, and says why.
        state.ahead.extend(built.ok());
    }

    fn take_ahead(&self, need: Need) -> Option<BuiltCircuit> {
        let mut state = self.state();
        let gone = state.remove_dead();
        let place = state.ahead.iter().position(|circuit| serves(circuit, need));
        let taken = place.map(|place| state.ahead.remove(place));
        drop(state);
        gone.iter().for_each(|circuit| self.bury(circuit));
        taken
    }

    /// After its time no new streams are put on a circuit; it ends with its last one (`MaxCircuitDirtiness`). If it ends before, whoever chooses
    /// paths is told at once what was lost.
    fn retire_later(self: &Arc<Self>, isolation: &Isolation, circuit: &Arc<BuiltCircuit>) {
        let (ended, lasts) = (circuit.ended(), self.config.lasts);
        let (pool, circuit) = (Arc::downgrade(self), Arc::downgrade(circuit));
        let isolation = isolation.clone();
        tokio::spawn(async move {
            // Either is a reason.
            timeout(lasts, ended.wait()).await.ok();
            if let Some(pool) = pool.upgrade() {
                pool.retire(&isolation, &circuit);
            }
        });
    }

    fn retire(&self, isolation: &Isolation, old: &Weak<BuiltCircuit>) {
        self.remove(isolation, |circuit| std::ptr::eq(circuit, old.as_ptr()));
    }

    /// Takes those of a token that are such, and forgets the token if none is left.
    fn remove(&self, isolation: &Isolation, is_such: impl Fn(&BuiltCircuit) -> bool) {
        let mut state = self.state();
        let Some(slot) = state.slots.get_mut(isolation) else {
            return;
        };
        let taken = slot.take(is_such);
        if slot.is_empty() {
            state.slots.remove(isolation);
        }
        drop(state);
        self.bury_all(&taken);
    }

    fn bury_all(&self, taken: &[Arc<BuiltCircuit>]) {
        taken.iter().for_each(|circuit| self.bury(circuit));
    }

    /// If it has lost a relay, whoever chooses paths is told, and what stands ready through that relay is given up: it has lost it, too.
    /// Not of the first one: dialling it again shows whether it is there.
    fn bury(&self, circuit: &BuiltCircuit) {
        let Some((path, hop)) = circuit.lost().filter(|(_, hop)| *hop > 0) else {
            return;
        };
        let refused = false;
        self.builder.tried(path, Err(Failed { hop, refused }));
        if let Some(relay) = path.get(hop) {
            let crosses =
                |circuit: &BuiltCircuit| circuit.relays().any(|other| other.keys == relay.keys);
            self.state().ahead.retain(|circuit| !crosses(circuit));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// What a token has; at the limit, tokens without streams give way.
    fn slot(&mut self, isolation: &Isolation, most: usize) -> Result<&mut Slot, Error> {
        if !self.slots.contains_key(isolation) {
            if self.slots.len() >= most {
                self.slots.retain(|_, slot| !slot.is_idle());
            }
            if self.slots.len() >= most {
                let error = Error::new(ErrorKind::PathFailed, "giving one more token a circuit");
                return Err(error.because(Reason::Limit));
            }
        }
        Ok(self.slots.entry(isolation.clone()).or_default())
    }

    fn remove_dead(&mut self) -> Vec<BuiltCircuit> {
        self.ahead
            .extract_if(.., |circuit| !circuit.is_usable())
            .collect()
    }

    /// Ports that no circuit ahead serves, or all if each is served. One that is being built serves the first of its ports at least, or no exit does.
    fn wanted(&self, now: Instant) -> Vec<u16> {
        let lately = self.lately.ports(now);
        let coming = |port: &u16| self.coming.iter().any(|ports| ports.first() == Some(port));
        let served =
            |port: &u16| coming(port) || self.ahead.iter().any(|circuit| circuit.permits(*port));
        let missing: Vec<u16> = lately
            .iter()
            .copied()
            .filter(|port| !served(port))
            .collect();
        if missing.is_empty() { lately } else { missing }
    }
}

impl Slot {
    fn find(&self, need: Need) -> Option<Found> {
        if let Some(circuit) = self.kept.iter().find(|circuit| serves(circuit, need)) {
            return Some(Found::BuiltCircuit(Arc::clone(circuit)));
        }
        if let Some(build) = self.coming.iter().find(|build| build.will_serve(need)) {
            return Some(Found::Coming(Arc::clone(build)));
        }
        let busy = self.coming.len() >= OF_A_TOKEN;
        busy.then(|| Found::Busy(Arc::clone(&self.changed)))
    }

    /// Takes the circuits that are such.
    fn take(&mut self, is_such: impl Fn(&BuiltCircuit) -> bool) -> Vec<Arc<BuiltCircuit>> {
        self.kept
            .extract_if(.., |circuit| is_such(circuit))
            .collect()
    }

    fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.coming.is_empty()
    }

    /// Whether nobody waits for it or has a stream on it.
    fn is_idle(&self) -> bool {
        let idle = |circuit: &Arc<BuiltCircuit>| circuit.shared().lock().streams() == 0;
        self.coming.is_empty() && self.kept.iter().all(idle)
    }
}

impl Build {
    async fn run(&self, builder: &Arc<Builder>) -> Result<Arc<BuiltCircuit>, Error> {
        let usage = CircuitUsage {
            ports: self.need.port.into_iter().collect(),
            required: true,
            datagrams: self.need.datagrams,
        };
        let chosen = |exit: &Relay| {
            // It is chosen once.
            self.exit.set(exit.clone()).ok();
        };
        let built = builder.build(&usage, chosen).await;
        built.map(Arc::new)
    }

    /// Whether a stream may wait for it: it is built for such a stream, or its exit is known to serve it.
    fn will_serve(&self, need: Need) -> bool {
        let is_known = self.exit.get().is_some_and(|exit| need.is_met_by(exit));
        self.need == need || need == Need::default() || is_known
    }
}

fn serves(circuit: &BuiltCircuit, need: Need) -> bool {
    let exit = circuit.path().last();
    !circuit.is_suspect() && exit.is_none_or(|exit| need.is_met_by(exit))
}

impl Need {
    /// A stream to this target.
    pub(super) fn stream(target: &Target) -> Self {
        let port = Some(target.port);
        Self {
            port,
            datagrams: false,
        }
    }

    /// A UDP stream to this target.
    pub(super) fn udp(target: &Target) -> Self {
        let datagrams = true;
        Self {
            datagrams,
            ..Self::stream(target)
        }
    }

    fn is_met_by(self, exit: &Relay) -> bool {
        self.port.is_none_or(|port| exit.permits(port))
            && (!self.datagrams || exit.carries_datagrams())
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Pool")
            .field("tokens", &state.slots.len())
            .field("ahead", &state.ahead.len())
            .finish_non_exhaustive()
    }
}

// The ports that streams went to lately: exits of circuits that are built ahead should serve them. path-spec "Which
// circuits are built": "predicted" ports.

/// This many are remembered.
const MAX_PREDICTED_PORTS: usize = 8;
/// For so long (`PredictedPortsRelevanceTime`).
const PREDICTED_PORTS_RELEVANCE_TIME: Duration = Duration::from_secs(3600);
/// What nearly everybody wants, before it is asked for.
const INITIAL_PREDICTED_PORTS: [u16; 2] = [443, 80];

/// The last one first.
#[derive(Debug)]
pub(super) struct Lately(VecDeque<(u16, Instant)>);

impl Lately {
    pub(super) fn new(now: Instant) -> Self {
        Self(
            INITIAL_PREDICTED_PORTS
                .into_iter()
                .map(|port| (port, now))
                .collect(),
        )
    }

    /// A stream goes there.
    pub(super) fn note(&mut self, port: u16, now: Instant) {
        self.0.retain(|(other, _)| *other != port);
        self.0.push_front((port, now));
        self.0.truncate(MAX_PREDICTED_PORTS);
    }

    /// Those of the last hour.
    pub(super) fn ports(&self, now: Instant) -> Vec<u16> {
        let since = |noted: Instant| now.saturating_duration_since(noted);
        let young = self
            .0
            .iter()
            .filter(|(_, noted)| since(*noted) < PREDICTED_PORTS_RELEVANCE_TIME);
        young.map(|(port, _)| *port).collect()
    }
}

#[cfg(test)]
mod ports_tests {
    use super::*;

    #[test]
    fn ports_are_remembered_for_an_hour_and_the_last_is_the_first() {
        let start = Instant::now();
        let mut lately = Lately::new(start);
        assert_eq!(lately.ports(start), [443, 80]);
        lately.note(22, start + PREDICTED_PORTS_RELEVANCE_TIME / 2);
        lately.note(80, start + PREDICTED_PORTS_RELEVANCE_TIME / 2);
        assert_eq!(
            lately.ports(start + PREDICTED_PORTS_RELEVANCE_TIME / 2),
            [80, 22, 443]
        );
        assert_eq!(
            lately.ports(start + PREDICTED_PORTS_RELEVANCE_TIME),
            [80, 22]
        );
        assert!(
            lately
                .ports(start + PREDICTED_PORTS_RELEVANCE_TIME * 2)
                .is_empty()
        );
        (1..100).for_each(|port| lately.note(port, start + PREDICTED_PORTS_RELEVANCE_TIME * 2));
        assert_eq!(
            lately
                .ports(start + PREDICTED_PORTS_RELEVANCE_TIME * 2)
                .len(),
            MAX_PREDICTED_PORTS
        );
    }
}
