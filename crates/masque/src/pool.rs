//! The connections to one relay: one for flows without a token, one for each isolation token. Each is dialled once, however many flows wait for it.
//! A task follows each until it is lost, replaced or idle: lost ones are forgotten at once, the warm one is opened again with a growing pause,
//! and what runs over TCP is tried over QUIC again. Every task ends when its pool is gone.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use hoplite_link::{Dialer, Link};
use hoplite_overlay::{Error, ErrorKind, Isolation, Reason, Terms};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tracing::debug;

use crate::{
    Config,
    connection::{Connection, Shown},
    hop::TokenSource,
    told::Told,
};

/// How often at least an isolated or a replaced connection is looked at for idleness.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// And how often at most.
const SHORTEST_IDLE_CHECK: Duration = Duration::from_millis(100);

/// How long no token is shown to a relay that has refused one.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// A connection that the relay has ended within this time was of no use.
const SHORT: Duration = Duration::from_secs(60);

/// Where connections cost private tokens, pauses are given up for another network so often within this time.
const MOST_FORGIVEN: usize = 8;
const FORGIVEN_WITHIN: Duration = Duration::from_secs(3600);

/// So often a pause doubles.
const PAUSE_DOUBLINGS: u32 = 5;

/// So often the time until QUIC is tried again doubles.
const MAX_DOUBLINGS: u32 = 6;

type Attempt = Shared<BoxFuture<'static, Result<Arc<Connection>, Error>>>;

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) dialer: Dialer,
    pub(crate) config: Arc<Config>,
    tokens: Option<Arc<dyn TokenSource>>,
    /// Where the region goes that the relay tells, if it is the first.
    told: Option<Arc<Told>>,
    /// When the relay last refused one of them.
    refused: Mutex<Option<Instant>>,
    /// Connections that were of no use, since one was.
    useless: Mutex<Useless>,
    /// Whoever waits hears that there is another network.
    changed: Notify,
    /// When pauses were given up for that, of late.
    forgiven: Mutex<Vec<Instant>>,
    /// How often QUIC was left because it lost much.
    left: AtomicU32,
    me: Weak<Self>,
    slots: Mutex<Slots>,
    /// Nothing is sent; who listens learns when the pool is gone.
    end: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Useless {
    count: u32,
    /// When one was counted last.
    at: Option<Instant>,
    /// Until when none is dialled.
    until: Option<Instant>,
}

#[derive(Debug, Default)]
struct Slots {
    by_token: HashMap<Isolation, Slot>,
    warm: bool,
}

#[derive(Debug)]
struct Slot {
    connection: Option<Arc<Connection>>,
    attempt: Option<Attempt>,
    used: Instant,
}

impl Pool {
    pub(crate) fn new(
        dialer: Dialer,
        tokens: Option<Arc<dyn TokenSource>>,
        told: Option<Arc<Told>>,
        config: &Arc<Config>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            dialer,
            config: config.clone(),
            tokens,
            told,
            refused: Mutex::default(),
            useless: Mutex::default(),
            changed: Notify::new(),
            forgiven: Mutex::default(),
            left: AtomicU32::new(0),
            me: me.clone(),
            slots: Mutex::default(),
            end: watch::Sender::default(),
        })
    }

    /// The relay has refused a token: what is wrong with it may be wrong with all, and they are not thrown after it at once.
    pub(crate) fn refused(&self) {
        if self.tokens.is_some() {
            *self.refused.lock() = Some(Instant::now());
        }
    }

    /// Whether the pause after that is not over, or it is shown none for longer.
    pub(crate) fn has_refused(&self) -> bool {
        let refused = *self.refused.lock();
        let is_given_up = |tokens: &Arc<dyn TokenSource>| tokens.is_given_up();
        refused.is_some_and(|at| at.elapsed() < REFUSED_PAUSE)
            || self.tokens.as_ref().is_some_and(is_given_up)
    }

    /// A token for a new connection of this isolation token.
    async fn token(&self, isolation: &Isolation) -> Result<Option<Shown>, Error> {
        let Some(tokens) = &self.tokens else {
            return Ok(None);
        };
        if self.has_refused() {
            let doing = "waiting before another token is shown to a relay that has refused one";
            let error = Error::new(ErrorKind::Forbidden, doing);
            return Err(error.because(Reason::Authentication));
        }
        let token = tokens.take(isolation).await?;
        let source = Arc::clone(tokens);
        Ok(Some(Shown { token, source }))
    }

    /// The relay has ended a connection that lived so long: one at once is dialled again at once, each further one after a pause that doubles. A relay
    /// that hangs up has no more of the client than that, whoever asks.
    ///
    /// Where each connection costs a private token, one counts that is lost in any other way, or that another one is to take the place of: a network that lets
    /// handshakes pass, and little else, has no more of them. Those that were there when one was counted are of one trouble with it.
    fn ended(&self, connection: &Connection) {
        if connection.began.elapsed() >= SHORT {
            *self.useless.lock() = Useless::default();
            return;
        }
        let is_counted = connection.is_closed_by_relay() || self.tokens.is_some();
        if !is_counted || !connection.was_useless() {
            return;
        }
        let mut useless = self.useless.lock();
        let is_of_one_trouble = useless.at.is_some_and(|at| connection.began <= at);
        if is_of_one_trouble && !connection.is_closed_by_relay() {
            return;
        }
        useless.at = Some(Instant::now());
        let doublings = useless.count.checked_sub(1);
        let doublings = doublings.map(|n| n.min(PAUSE_DOUBLINGS));
        let pause = doublings.map(|n| self.config.redial_pause * (1 << n));
        useless.count = useless.count.saturating_add(1);
        useless.until = pause.map(|pause| Instant::now() + pause);
    }

    /// `connection` is of no use: another one takes its place.
    pub(crate) fn given_up(&self, connection: &Connection) {
        if connection.began.elapsed() < SHORT {
            self.ended(connection);
        }
    }

    /// What `token` has is of no use any more, if it has anything: another one is dialled.
    fn give_up(&self, token: &Isolation) {
        let before = self
            .slots()
            .by_token
            .get(token)
            .and_then(|slot| slot.connection.clone());
        if let Some(before) = before.filter(|before| !before.is_usable()) {
            self.given_up(&before);
        }
    }

    /// Waits while none is dialled.
    async fn pause(&self) {
        loop {
            let changed = self.changed.notified();
            let Some(until) = self.useless.lock().until else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                () = changed => {}
            }
        }
    }

    /// Waits until the pool is gone, without keeping it.
    pub(crate) fn end(&self) -> impl Future<Output = ()> + use<> {
        let mut end = self.end.subscribe();
        async move { while end.changed().await.is_ok() {} }
    }

    /// How long after TCP was taken QUIC is tried: where it was left again and again because it lost much, later each time.
    fn quic_retry(&self) -> Duration {
        let left = self.left.load(Relaxed).min(MAX_DOUBLINGS);
        self.config.quic_retry * (1 << left)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }

    /// The usable connection of `token`, if there is one.
    pub(crate) fn current(&self, token: &Isolation) -> Option<Arc<Connection>> {
        let mut slots = self.slots();
        let slot = slots.by_token.get_mut(token)?;
        slot.used = Instant::now();
        slot.connection
            .clone()
            .filter(|connection| connection.is_usable())
    }

    /// The connection of `token`, dialled if there is none. All who wait share one attempt, and its failure.
    pub(crate) async fn connection(&self, token: &Isolation) -> Result<Arc<Connection>, Error> {
        match self.current(token) {
            Some(connection) => Ok(connection),
            None => self.attempt(token)?.await,
        }
    }

    /// Lets every connection be looked at soon: the device may have another address.
    pub(crate) fn network_changed(&self) {
        if self.may_forgive() {
            // Another one may not lose what this did.
            self.left.store(0, Relaxed);
            *self.useless.lock() = Useless::default();
            self.changed.notify_waiters();
        }
        let slots = self.slots();
        let connections = slots
            .by_token
            .values()
            .filter_map(|slot| slot.connection.as_ref());
        connections.for_each(|connection| connection.look_soon());
    }

    /// Whether pauses are given up for another network. Where each connection costs a private token, no more often than a device changes its network: who
    /// sends router advertisements makes addresses and routes come and go as often as he likes.
    fn may_forgive(&self) -> bool {
        if self.tokens.is_none() {
            return true;
        }
        let mut forgiven = self.forgiven.lock();
        forgiven.retain(|at| at.elapsed() < FORGIVEN_WITHIN);
        let may = forgiven.len() < MOST_FORGIVEN;
        if may {
            forgiven.push(Instant::now());
        }
        may
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
        let (me, token, running) = (self.me.clone(), token.clone(), attempt.clone());
        tokio::spawn(async move {
            // Whoever waits has the failure.
            running.await.ok();
            if let Some(pool) = me.upgrade() {
                pool.slots().tried(&token);
            }
        });
        Ok(attempt)
    }

    /// Puts `connection` in the place of what `token` had, which may have lost its place meanwhile.
    pub(crate) fn keep(&self, token: &Isolation, connection: &Arc<Connection>) {
        let mut slots = self.slots();
        slots.make_room(token, self.config.isolated);
        let slot = slots
            .by_token
            .entry(token.clone())
            .or_insert_with(Slot::new);
        if let Some(before) = slot.connection.replace(connection.clone()) {
            before.supersede();
        }
    }

    /// `connection` is of no more use. Flows that still run on it keep it.
    pub(crate) fn forget(&self, token: &Isolation, connection: &Arc<Connection>) {
        let mut slots = self.slots();
        let Some(slot) = slots.by_token.get_mut(token) else {
            return;
        };
        if slot
            .connection
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(now, connection))
        {
            connection.supersede();
            slot.connection = None;
        }
    }

    /// Whether `connection` should be closed: no flow is on it, and it was replaced or has been unused for long.
    pub(crate) fn is_idle(&self, token: &Isolation, connection: &Arc<Connection>) -> bool {
        if connection.flows() > 0 {
            return false;
        }
        let slots = self.slots();
        let slot = slots.by_token.get(token);
        let current = slot.filter(|slot| {
            slot.connection
                .as_ref()
                .is_some_and(|now| Arc::ptr_eq(now, connection))
        });
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
            tokio::spawn(reopen(Arc::downgrade(&pool)));
        }
    }
}

impl Slots {
    /// Forgets the attempt of `token` that is over: it has the connection, too, which would not be closed as long as that is so.
    fn tried(&mut self, token: &Isolation) {
        if let Some(slot) = self.by_token.get_mut(token) {
            slot.attempt.take_if(|attempt| attempt.peek().is_some());
        }
    }

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
            connection: None,
            attempt: None,
            used: Instant::now(),
        }
    }
}

async fn dial(pool: Arc<Pool>, token: Isolation) -> Result<Arc<Connection>, Error> {
    let terms = Terms {
        isolation: token.clone(),
        ..Terms::default()
    };
    pool.give_up(&token);
    pool.pause().await;
    let link = pool.dialer.race(&terms).await?;
    // Only now: what cannot be reached costs no token.
    let (token_shown, told) = (pool.token(&token).await?, pool.told.clone());
    let connection = Connection::start(link, token_shown, told, &pool.config).await?;
    pool.keep(&token, &connection);
    follow(&Arc::downgrade(&pool), &token, connection.clone());
    Ok(connection)
}

/// Spawns the task that follows `connection`.
fn follow(pool: &Weak<Pool>, token: &Isolation, connection: Arc<Connection>) {
    let task: BoxFuture<'static, ()> = watch(pool.clone(), token.clone(), connection).boxed();
    tokio::spawn(task);
}

/// Follows `connection` until it is lost, replaced or idle.
async fn watch(pool: Weak<Pool>, token: Isolation, connection: Arc<Connection>) {
    let is_lost = tokio::select! {
        () = connection.closed() => true,
        () = connection.probe() => false,
        () = idle(&pool, &token, &connection) => false,
        () = back_to_quic(&pool, &token, &connection) => false,
        () = away_from_quic(&pool, &token, &connection) => false,
    };
    let Some(pool) = pool.upgrade() else { return };
    if is_lost || connection.began.elapsed() >= SHORT {
        pool.ended(&connection);
    }
    pool.forget(&token, &connection);
    if pool.is_warm(&token) {
        reopen(Arc::downgrade(&pool)).await;
    }
}

/// Dials the connection without a token until there is one, with a pause that doubles after each failure.
async fn reopen(pool: Weak<Pool>) {
    for failures in 0u32.. {
        let Some(pool) = pool.upgrade() else { return };
        match pool.connection(&Isolation::default()).await {
            Ok(_) => return,
            Err(error) => debug!(%error, failures, "hop not reopened yet"),
        }
        let pause = pool.config.redial_pause * (1 << failures.min(PAUSE_DOUBLINGS));
        drop(pool);
        tokio::time::sleep(pause).await;
    }
}

/// Waits until it is of no more use: the pool is gone, or nobody has used it for long.
async fn idle(pool: &Weak<Pool>, token: &Isolation, connection: &Arc<Connection>) {
    let Some(end) = pool.upgrade().map(|pool| pool.end()) else {
        return;
    };
    tokio::select! {
        () = unused(pool, token, connection) => {}
        () = end => {}
    }
}

async fn unused(pool: &Weak<Pool>, token: &Isolation, connection: &Arc<Connection>) {
    if *token == Isolation::default() {
        // It is never idle, and nobody needs to look, while it is the one that new flows take.
        connection.superseded().await;
    }
    let mut interval = Duration::ZERO;
    loop {
        tokio::time::sleep(interval).await;
        interval = match pool.upgrade() {
            Some(pool) if !pool.is_idle(token, connection) => {
                let idle = pool.config.isolated_idle;
                idle.clamp(SHORTEST_IDLE_CHECK, IDLE_CHECK_INTERVAL)
            }
            _ => return,
        }
    }
}

/// Over TCP: tries QUIC again and again. Ends when a QUIC connection has taken the place of `connection`;
/// what runs over TCP stays there until it ends.
async fn back_to_quic(pool: &Weak<Pool>, token: &Isolation, connection: &Arc<Connection>) {
    if connection.version().is_over_quic() {
        return std::future::pending().await;
    }
    let terms = Terms {
        isolation: token.clone(),
        ..Terms::default()
    };
    loop {
        let Some(pause) = pool.upgrade().map(|pool| pool.quic_retry()) else {
            return;
        };
        tokio::time::sleep(pause).await;
        let Some(strong) = pool.upgrade() else { return };
        let Ok(link) = strong.dialer.quic(&terms).await else {
            continue;
        };
        let Ok(fresh) = strong.token(token).await else {
            continue;
        };
        let (link, told) = (Link::Quic(link), strong.told.clone());
        let Ok(quic) = Connection::start(link, fresh, told, &strong.config).await else {
            continue;
        };
        debug!("hop is back on QUIC");
        strong.keep(token, &quic);
        follow(pool, token, quic);
        return;
    }
}

/// Over QUIC, while much of what the relay sends is lost: tries TCP, and ends when a connection over it has taken the place of `connection`. What would
/// make TCP slow, too, makes its handshakes slow: then QUIC stays.
async fn away_from_quic(pool: &Weak<Pool>, token: &Isolation, connection: &Arc<Connection>) {
    let terms = Terms {
        isolation: token.clone(),
        ..Terms::default()
    };
    loop {
        let rtt = connection.loses_much().await;
        let Some(strong) = pool.upgrade() else { return };
        let dialled = strong.dialer.tls_unharmed(&terms, rtt).await;
        let tries = strong.left.fetch_add(1, Relaxed);
        if let Ok(link) = dialled
            && let Ok(fresh) = strong.token(token).await
        {
            let (link, told) = (Link::Tls(Box::new(link)), strong.told.clone());
            if let Ok(over_tcp) = Connection::start(link, fresh, told, &strong.config).await {
                debug!(tries, "QUIC loses much, and the hop goes over TCP");
                strong.keep(token, &over_tcp);
                follow(pool, token, over_tcp);
                return;
            }
        }
        let pause = strong.quic_retry();
        drop(strong);
        tokio::time::sleep(pause).await;
    }
}
