//! The circuits of one client: those of each isolation token, and some that stand ready for the next token.
//! [`super::Onion`] asks it for a circuit; [`super::builder`] builds them. path-spec "Which circuits are built", "Attaching streams to circuits".
//!
//! No two tokens ever share a circuit. A token has one, or a few where its exit does not serve the port that is asked for; each takes new
//! streams for [`Config::lasts`] and ends then with its last stream.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use hoplite_overlay::{Error, ErrorKind, Isolation, Reason};
use hoplite_wire::Target;
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, timeout},
};

use super::{Config, Live, builder::Builder, ports::Lately};
use crate::{
    channel::Dialer,
    path::{Failed, Paths, Wish},
};

/// Circuits of one token, for different ports; beyond it the oldest takes no further streams.
pub const OF_A_TOKEN: usize = 4;

/// Keeps circuits.
pub(super) struct Pool {
    builder: Arc<Builder>,
    config: Config,
    state: Mutex<State>,
}

struct State {
    slots: BTreeMap<Isolation, Arc<Slot>>,
    /// What nobody uses yet.
    ahead: Vec<Live>,
    /// Those that are being built: the ports that each is for, the most important first.
    coming: Vec<Vec<u16>>,
    lately: Lately,
}

/// The circuits of one token. Whoever holds the lock builds one; others of the token wait for it.
#[derive(Default)]
struct Slot(AsyncMutex<Vec<Arc<Live>>>);

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

    /// A circuit of this token whose exit serves the target's port, as far as is known.
    ///
    /// # Errors
    /// None can be built, or there are too many tokens.
    pub(super) async fn circuit(
        self: &Arc<Self>,
        isolation: &Isolation,
        target: Option<&Target>,
    ) -> Result<Arc<Live>, Error> {
        let port = target.map(|target| target.port);
        let slot = self.slot(isolation, port)?;
        let mut kept = slot.0.lock().await;
        self.keep(&mut kept, Live::is_usable);
        if let Some(live) = kept.iter().find(|live| serves(live, port)) {
            return Ok(Arc::clone(live));
        }
        let live = Arc::new(match self.take_ahead(port) {
            Some(live) => live,
            None => {
                let (ports, required) = (port.into_iter().collect(), true);
                self.builder.build(&Wish { ports, required }).await?
            }
        });
        if kept.len() >= OF_A_TOKEN {
            kept.remove(0);
        }
        kept.push(Arc::clone(&live));
        drop(kept);
        self.retire_later(isolation, &live);
        self.refill();
        Ok(live)
    }

    /// The circuit failed: the token's next stream gets another.
    pub(super) async fn give_up(&self, isolation: &Isolation, failed: &Arc<Live>) {
        let slot = self.state().slots.get(isolation).cloned();
        let Some(slot) = slot else { return };
        let mut kept = slot.0.lock().await;
        let is_another = |live: &Live| !std::ptr::eq(live, &raw const **failed);
        self.keep(&mut kept, is_another);
    }

    /// Builds circuits ahead in the background, as many as are missing, for ports that streams went to lately.
    pub(super) fn refill(self: &Arc<Self>) {
        let mut state = self.state();
        let gone = state.remove_dead();
        while state.ahead.len() + state.coming.len() < self.config.ahead {
            let ports = state.wanted(Instant::now());
            state.coming.push(ports.clone());
            let pool = Arc::clone(self);
            let required = false;
            tokio::spawn(async move { pool.build_ahead(Wish { ports, required }).await });
        }
        drop(state);
        gone.iter().for_each(|live| self.bury(live));
    }

    async fn build_ahead(self: Arc<Self>, wish: Wish) {
        let built = self.builder.build(&wish).await;
        let mut state = self.state();
        let place = state.coming.iter().position(|ports| *ports == wish.ports);
        place.map(|place| state.coming.swap_remove(place));
        // Without an error: the next stream tries again, and says why.
        state.ahead.extend(built.ok());
    }

    fn take_ahead(&self, port: Option<u16>) -> Option<Live> {
        let mut state = self.state();
        let gone = state.remove_dead();
        let place = state.ahead.iter().position(|live| serves(live, port));
        let taken = place.map(|place| state.ahead.remove(place));
        drop(state);
        gone.iter().for_each(|live| self.bury(live));
        taken
    }

    /// After its time no new streams are put on a circuit; it ends with its last one (`MaxCircuitDirtiness`). If it ends before, whoever chooses
    /// paths is told at once what was lost.
    fn retire_later(self: &Arc<Self>, isolation: &Isolation, live: &Arc<Live>) {
        let (ended, lasts) = (live.ended(), self.config.lasts);
        let (pool, live) = (Arc::downgrade(self), Arc::downgrade(live));
        let isolation = isolation.clone();
        tokio::spawn(async move {
            // Either is a reason.
            timeout(lasts, ended.wait()).await.ok();
            if let Some(pool) = pool.upgrade() {
                pool.retire(&isolation, &live).await;
            }
        });
    }

    async fn retire(&self, isolation: &Isolation, old: &Weak<Live>) {
        let slot = self.state().slots.get(isolation).cloned();
        let Some(slot) = slot else { return };
        let mut kept = slot.0.lock().await;
        self.keep(&mut kept, |live| !std::ptr::eq(live, old.as_ptr()));
        let is_empty = kept.is_empty();
        drop(kept);
        let mut state = self.state();
        // The table's and ours: nobody waits for it.
        if is_empty && Arc::strong_count(&slot) == 2 {
            state.slots.remove(isolation);
        }
    }

    /// Keeps those of a token that are such.
    fn keep(&self, kept: &mut Vec<Arc<Live>>, is_such: impl Fn(&Live) -> bool) {
        kept.retain(|live| {
            let stays = is_such(live);
            if !stays {
                self.bury(live);
            }
            stays
        });
    }

    /// If it has lost a relay, whoever chooses paths is told, and what stands ready through that relay is given up: it has lost it, too.
    /// Not of the first one: dialling it again shows whether it is there.
    fn bury(&self, live: &Live) {
        let Some(hop) = live.lost().filter(|hop| *hop > 0) else {
            return;
        };
        let refused = false;
        self.builder
            .tried(live.path(), Err(Failed { hop, refused }));
        if let Some(relay) = live.path().get(hop) {
            let crosses = |live: &Live| live.path().iter().any(|other| other.keys == relay.keys);
            self.state().ahead.retain(|live| !crosses(live));
        }
    }

    fn slot(&self, isolation: &Isolation, port: Option<u16>) -> Result<Arc<Slot>, Error> {
        let mut state = self.state();
        if let Some(port) = port {
            state.lately.note(port, Instant::now());
        }
        if let Some(slot) = state.slots.get(isolation) {
            return Ok(Arc::clone(slot));
        }
        if state.slots.len() >= self.config.tokens {
            state.slots.retain(|_, slot| !slot.is_idle());
        }
        if state.slots.len() >= self.config.tokens {
            let error = Error::new(ErrorKind::PathFailed, "giving one more token a circuit");
            return Err(error.because(Reason::Limit));
        }
        let slot = Arc::<Slot>::default();
        state.slots.insert(isolation.clone(), Arc::clone(&slot));
        Ok(slot)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove_dead(&mut self) -> Vec<Live> {
        self.ahead
            .extract_if(.., |live| !live.is_usable())
            .collect()
    }

    /// Ports that no circuit ahead serves, or all if each is served. One that is being built serves the first of its ports at least, or no exit does.
    fn wanted(&self, now: Instant) -> Vec<u16> {
        let lately = self.lately.ports(now);
        let coming = |port: &u16| self.coming.iter().any(|ports| ports.first() == Some(port));
        let served = |port: &u16| coming(port) || self.ahead.iter().any(|live| live.permits(*port));
        let missing: Vec<u16> = lately
            .iter()
            .copied()
            .filter(|port| !served(port))
            .collect();
        match missing.is_empty() {
            true => lately,
            false => missing,
        }
    }
}

impl Slot {
    /// Whether nobody waits for it or has a stream on it.
    fn is_idle(&self) -> bool {
        let Ok(kept) = self.0.try_lock() else {
            return false;
        };
        kept.iter().all(|live| live.shared().lock().streams() == 0)
    }
}

fn serves(live: &Live, port: Option<u16>) -> bool {
    port.is_none_or(|port| live.permits(port))
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
