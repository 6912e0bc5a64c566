//! The connections to one relay: one for flows without a token, one for each isolation token, each dialled once however many wait.
//! Lost ones are forgotten at once; the warm one is opened again, with a growing pause. Used by [`crate::Hop`] alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use hoplite_link::Dialer;
use hoplite_overlay::{Error, ErrorKind, Isolation, Terms};
use tokio::{sync::watch, time::Instant};

use crate::{Config, keeper, live::Live};

type Attempt = Shared<BoxFuture<'static, Result<Arc<Live>, Error>>>;

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) dialer: Dialer,
    pub(crate) config: Arc<Config>,
    me: Weak<Self>,
    slots: Mutex<Slots>,
    /// Nothing is sent; who listens learns when the pool is gone.
    end: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Slots {
    by_token: HashMap<Isolation, Slot>,
    warm: bool,
}

#[derive(Debug)]
struct Slot {
    live: Option<Arc<Live>>,
    attempt: Option<Attempt>,
    used: Instant,
}

impl Pool {
    pub(crate) fn new(dialer: Dialer, config: &Arc<Config>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            dialer,
            config: config.clone(),
            me: me.clone(),
            slots: Mutex::default(),
            end: watch::Sender::default(),
        })
    }

    /// Waits until the pool is gone, without keeping it.
    pub(crate) fn end(&self) -> impl Future<Output = ()> + use<> {
        let mut end = self.end.subscribe();
        async move { while end.changed().await.is_ok() {} }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The usable connection of `token`, if there is one.
    pub(crate) fn current(&self, token: &Isolation) -> Option<Arc<Live>> {
        let mut slots = self.slots();
        let slot = slots.by_token.get_mut(token)?;
        slot.used = Instant::now();
        slot.live.clone().filter(|live| live.is_usable())
    }

    /// The connection of `token`, dialled if there is none. All who wait share one attempt, and its failure.
    pub(crate) async fn live(&self, token: &Isolation) -> Result<Arc<Live>, Error> {
        match self.current(token) {
            Some(live) => Ok(live),
            None => self.attempt(token)?.await,
        }
    }

    /// Lets every connection be looked at soon: the device may have another address.
    pub(crate) fn look(&self) {
        let slots = self.slots();
        let lives = slots
            .by_token
            .values()
            .filter_map(|slot| slot.live.as_ref());
        lives.for_each(|live| live.look());
    }

    fn attempt(&self, token: &Isolation) -> Result<Attempt, Error> {
        let gone = || Error::new(ErrorKind::Bug, "dialling after the client was closed");
        let pool = self.me.upgrade().ok_or_else(gone)?;
        let mut slots = self.slots();
        slots.make_room(token, self.config.isolated);
        let slot = slots
            .by_token
            .entry(token.clone())
            .or_insert_with(Slot::new);
        if let Some(running) = slot.attempt.as_ref().filter(|a| a.peek().is_none()) {
            return Ok(running.clone());
        }
        let attempt = dial(pool, token.clone()).boxed().shared();
        slot.attempt = Some(attempt.clone());
        drop(slots);
        // The attempt goes on when the flow that began it is given up: others wait for it, or soon will.
        tokio::spawn(attempt.clone());
        Ok(attempt)
    }

    /// Puts `live` in the place of what `token` had.
    pub(crate) fn keep(&self, token: &Isolation, live: &Arc<Live>) {
        let mut slots = self.slots();
        let slot = slots
            .by_token
            .entry(token.clone())
            .or_insert_with(Slot::new);
        if let Some(before) = slot.live.replace(live.clone()) {
            before.supersede();
        }
    }

    /// `live` is of no more use. Flows that still run on it keep it.
    pub(crate) fn forget(&self, token: &Isolation, live: &Arc<Live>) {
        let mut slots = self.slots();
        let Some(slot) = slots.by_token.get_mut(token) else {
            return;
        };
        if slot.live.as_ref().is_some_and(|now| Arc::ptr_eq(now, live)) {
            live.supersede();
            slot.live = None;
        }
    }

    /// Whether `live` should be closed: no flow is on it, and it was replaced or has been unused for long.
    pub(crate) fn is_idle(&self, token: &Isolation, live: &Arc<Live>) -> bool {
        if live.flows() > 0 {
            return false;
        }
        let slots = self.slots();
        let slot = slots.by_token.get(token);
        let current =
            slot.filter(|slot| slot.live.as_ref().is_some_and(|now| Arc::ptr_eq(now, live)));
        current.is_none_or(|slot| {
            *token != Isolation::default() && slot.used.elapsed() > self.config.isolated_idle
        })
    }

    pub(crate) fn is_warm(&self, token: &Isolation) -> bool {
        *token == Isolation::default() && self.slots().warm
    }

    pub(crate) fn keep_warm(&self) {
        self.slots().warm = true;
        if let Some(pool) = self.me.upgrade() {
            tokio::spawn(keeper::reopen(Arc::downgrade(&pool)));
        }
    }
}

impl Slots {
    /// Gives up the connection unused for longest when a new token would exceed the bound; its flows keep theirs.
    fn make_room(&mut self, token: &Isolation, bound: usize) {
        if self.by_token.len() <= bound || self.by_token.contains_key(token) {
            return;
        }
        let others = self
            .by_token
            .iter()
            .filter(|(t, _)| **t != Isolation::default());
        let oldest = others
            .min_by_key(|(_, slot)| slot.used)
            .map(|(t, _)| t.clone());
        if let Some(oldest) = oldest {
            self.by_token.remove(&oldest);
        }
    }
}

impl Slot {
    fn new() -> Self {
        Self {
            live: None,
            attempt: None,
            used: Instant::now(),
        }
    }
}

async fn dial(pool: Arc<Pool>, token: Isolation) -> Result<Arc<Live>, Error> {
    let terms = Terms {
        isolation: token.clone(),
        ..Terms::default()
    };
    let link = pool.dialer.race(&terms).await?;
    let live = Live::start(link).await?;
    pool.keep(&token, &live);
    keeper::follow(&Arc::downgrade(&pool), &token, live.clone());
    Ok(live)
}
