//! The channels of a process: whoever needs one gets the one that is there, or waits for the one that is being dialled.
//! A relay has one for all its circuits, a client one for its guards. Which channel serves whom, and who is dialled, is decided by [`super::table`];
//! here is what dials and waits.
//!
//! Two relays that dial each other at the same moment have two channels. Both then begin their circuits on the one that the relay with the lower
//! identity dialled; the other carries the circuits that it has, and is closed when it has none for a while.

use std::{
    collections::VecDeque,
    fmt,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use hoplite_link::LinkKind;
use hoplite_overlay::{Error, ErrorKind, Reason, Terms};
use hoplite_wire::Target;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    Channel, ChannelDialer, How, Listing, LossWatch, Rival, Standing, Whom,
    table::{Lookup, Outcome, Plan, Table, TableChannel, next_retry},
};

/// How often a channel is asked for that has ended, or leads elsewhere, as soon as it is there.
const MAX_DIALS: usize = 3;

/// Channels to relays, by Ed25519 identity. Clones are the same one.
#[derive(Clone)]
pub struct Channels(Arc<Inner>);

struct Inner {
    dialer: ChannelDialer,
    dialled: Box<dyn Fn(Channel) + Send + Sync>,
    table: Mutex<Table<Channel>>,
}

impl Channels {
    /// Dials with `dialer`, whomever it is asked for: a client's, which chooses relays itself. `dialled` is told of each channel that was dialled: the
    /// peer may begin circuits on it, too, and somebody has to accept them.
    pub fn new(dialer: ChannelDialer, dialled: impl Fn(Channel) + Send + Sync + 'static) -> Self {
        let table = Table::new(dialer.config().clone());
        Self(Arc::new(Inner {
            dialer,
            dialled: Box::new(dialled),
            table: Mutex::new(table),
        }))
    }

    /// A relay's, where others choose who is dialled: `listing` says who is known.
    #[must_use]
    pub fn with_listing(self, listing: Arc<dyn Listing>) -> Self {
        self.0.table.lock().set_listing(listing);
        self
    }

    /// The channel to `whom`: one that is there if it is canonical for the address, else a new one. Callers at the same time share one dial to
    /// the same address, which goes on when one of them gives up. If it took long and failed, it is not tried again for
    /// [`Config::failed`](super::Config::failed).
    ///
    /// # Errors
    /// As [`ChannelDialer::dial`]; [`Reason::Limit`] where there are too many relays, or dials to those that nobody knows; [`Reason::Policy`]
    /// where QUIC is the only way and nothing is known of the relay; [`Reason::Identity`] also where it does not show the RSA identity that is named.
    pub async fn get(&self, whom: &Whom, how: How, terms: &Terms) -> Result<Channel, Error> {
        self.get_for(None, whom, how, terms).await
    }

    /// The same on behalf of `who`, who names it: he has his share of all dials to relays that nobody knows.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_for(
        &self,
        who: Option<u64>,
        whom: &Whom,
        how: How,
        terms: &Terms,
    ) -> Result<Channel, Error> {
        let Some(identity) = whom.identity else {
            return self.0.dialer.dial(whom, how, terms).await;
        };
        let channel = self.find((&identity, whom), who, how, terms).await?;
        let shown = channel.peer().and_then(|peer| peer.rsa);
        let wrong = whom
            .rsa
            .is_some_and(|named| shown.is_none_or(|shown| shown.id != named));
        if !wrong {
            Ok(channel)
        } else {
            Err(ended(whom, "it shows another RSA identity, or none").because(Reason::Identity))
        }
    }

    async fn find(
        &self,
        asked: (&[u8; 32], &Whom),
        who: Option<u64>,
        how: How,
        terms: &Terms,
    ) -> Result<Channel, Error> {
        let (identity, whom) = asked;
        if self.is_shared_by_none() {
            return Box::pin(self.0.dialer.dial(whom, How::Tls, terms)).await;
        }
        for _ in 0..MAX_DIALS {
            let ours = self.0.dialer.goes_first(identity);
            let now = Instant::now();
            let way = self.0.table.lock().ask(asked, who, how, ours, now);
            let way = way.inspect_err(|error| {
                if error.reason() == Some(Reason::Limit) {
                    self.0.dialer.counts().not_dialled.up();
                }
            })?;
            let outcome = match way {
                Lookup::Here(channel, better) => {
                    if let Some(plan) = better {
                        self.begin(asked, plan, terms);
                    }
                    return Ok(channel);
                }
                Lookup::Wait(outcome) => outcome,
                Lookup::Dial(plan) => {
                    let outcome = Arc::clone(&plan.outcome);
                    self.begin(asked, plan, terms);
                    outcome
                }
            };
            let channel = wait(outcome, whom, terms).await?;
            // While this was waiting it may have ended, or moved.
            if channel.is_open() && channel.serves(&whom.address) {
                return Ok(channel);
            }
        }
        Err(ended(whom, "it ends again and again"))
    }

    /// Has it dialled, whoever gives up waiting.
    fn begin(&self, (identity, whom): (&[u8; 32], &Whom), plan: Plan<Channel>, terms: &Terms) {
        let terms = Terms {
            // Others may wait for it, too, and have more time.
            deadline: None,
            ..terms.clone()
        };
        let (this, identity, whom) = (self.clone(), *identity, whom.clone());
        tokio::spawn(async move {
            Box::pin(this.dial((identity, &whom), &plan, &terms)).await;
        });
    }

    /// Dials as the plan says, and tells what came of it.
    async fn dial(&self, (identity, whom): ([u8; 32], &Whom), plan: &Plan<Channel>, terms: &Terms) {
        let begun = Instant::now();
        let mut made = self.0.dialer.dial(whom, plan.how, terms).await;
        if let (Err(_), Some(how)) = (&made, plan.otherwise) {
            made = self.0.dialer.dial(whom, how, terms).await;
        }
        if let Ok(channel) = &made {
            (self.0.dialled)(channel.clone());
            if !channel.is_open() {
                made = Err(
                    ended(whom, "it ends at once, as where there is no room for it")
                        .because(Reason::Limit),
                );
            }
        }
        let dialled = made.as_ref().ok().cloned();
        let ours = self.0.dialer.goes_first(&identity);
        let times = Times {
            begun,
            now: Instant::now(),
        };
        let asked = (&identity, whom);
        self.0.table.lock().dialled(asked, plan, made, ours, times);
        let Some(channel) = dialled else {
            return;
        };
        let client = Following {
            inner: Arc::downgrade(&self.0),
            identity,
            whom: whom.clone(),
            terms: terms.clone(),
        };
        let retry = self.0.table.lock().quic_retry(asked, plan, &channel);
        if let Some(pause) = retry {
            client.clone().back_to_quic_later(&channel, pause);
        }
        if self.0.table.lock().may_leave_quic(asked, plan, &channel) {
            let (losses, standing) = (LossWatch::of(&channel), channel.standing().clone());
            let away: BoxFuture = Box::pin(client.away_from_quic(losses, standing));
            tokio::spawn(away);
        }
        let Some(how) = plan.beside.filter(|_| channel.is_peer_address_confirmed()) else {
            return;
        };
        if let Ok(channel) = self.0.dialer.dial(whom, how, terms).await {
            (self.0.dialled)(channel.clone());
            self.0.table.lock().beside(asked, channel);
        }
    }

    /// Whether each circuit has a channel of its own, which ends with it: none is kept, no bound on dials holds, and the peer begins no circuit on it.
    fn is_shared_by_none(&self) -> bool {
        self.0.dialer.config().rival == Some(Rival::ConnectionPerCircuit)
    }

    /// The peer of `channel` dialled us. Of a client nothing is kept.
    pub fn add(&self, channel: &Channel) {
        if self.is_shared_by_none() {
            return;
        }
        if let Some(peer) = channel.peer() {
            let mut table = self.0.table.lock();
            table.accepted(&peer.ed25519, channel.clone());
        }
    }

    /// The channels that are open.
    pub fn open(&self) -> Vec<Channel> {
        self.0.table.lock().open().cloned().collect()
    }

    /// How many there are of them.
    pub fn len(&self) -> usize {
        self.0.table.lock().open().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets channels that have ended and closes those that have been without circuits for [`Config::idle`](super::Config::idle).
    /// To be called now and then.
    pub fn sweep(&self, now: Instant) {
        self.0.table.lock().sweep(now);
    }
}

impl TableChannel for Channel {
    fn is_open(&self) -> bool {
        Self::is_open(self)
    }

    fn circuits(&self) -> usize {
        Self::circuits(self)
    }

    fn is_ours(&self) -> bool {
        Self::is_ours(self)
    }

    fn kind(&self) -> LinkKind {
        Self::kind(self)
    }

    fn remote(&self) -> Option<IpAddr> {
        Self::remote(self)
    }

    fn is_peer_address_confirmed(&self) -> bool {
        Self::is_peer_address_confirmed(self)
    }

    fn serves(&self, target: &Target) -> bool {
        Self::serves(self, target)
    }

    fn is_same(&self, other: &Self) -> bool {
        Self::is_same(self, other)
    }

    fn takes_new(&self) -> bool {
        let standing = self.standing();
        !standing.is_superseded() && !standing.is_suspect()
    }

    fn supersede(&self) {
        Self::supersede(self);
    }

    fn close(&self) {
        Self::close(self);
    }
}

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Follows a client's channel to a relay, to have what is new go over the other way when that is better. What runs stays where it is. Holds neither the
/// channel open nor the channels.
#[derive(Clone)]
struct Following {
    inner: Weak<Inner>,
    identity: [u8; 32],
    whom: Whom,
    terms: Terms,
}

impl Following {
    fn channels(&self) -> Option<Channels> {
        self.inner.upgrade().map(Channels)
    }

    /// Tries QUIC again and again beside the channel `tls`, until that has ended or is superseded.
    fn back_to_quic_later(self, tls: &Channel, first: Duration) {
        let (ending, standing) = (tls.0.hold.ending().clone(), tls.standing().clone());
        let back: BoxFuture = Box::pin(async move {
            for tries in 0.. {
                let pause = next_retry(first, tries);
                let ended = timeout(pause, ending.wait()).await.is_ok();
                let Some(channels) = self.channels() else {
                    return;
                };
                if ended || standing.is_superseded() {
                    return;
                }
                let asked = (&self.identity, &self.whom);
                let plan = channels.0.table.lock().quic(asked);
                if let Some(plan) = plan {
                    let whom = (self.identity, &self.whom);
                    channels.dial(whom, &plan, &self.terms).await;
                }
            }
        });
        tokio::spawn(back);
    }

    /// Waits until much is lost over a channel over QUIC, and goes over TLS then.
    async fn away_from_quic(self, losses: LossWatch, standing: Standing) {
        for tries in 0.. {
            let Some(rtt) = losses.lost_much().await else {
                return;
            };
            let Some(channels) = self.channels() else {
                return;
            };
            if standing.is_superseded() {
                return;
            }
            let dialer = &channels.0.dialer;
            let first = dialer.config().quic_retry;
            let made = dialer.dial_unharmed(&self.whom, rtt, &self.terms).await;
            if let Ok(tls) = made {
                let asked = (&self.identity, &self.whom);
                let mut table = channels.0.table.lock();
                let pause = table.leave_quic(asked, tls.clone(), Instant::now());
                drop(table);
                (channels.0.dialled)(tls.clone());
                return self.back_to_quic_later(&tls, pause);
            }
            drop(channels);
            sleep(next_retry(first, tries)).await;
        }
    }
}

async fn wait(outcome: Outcome<Channel>, whom: &Whom, terms: &Terms) -> Result<Channel, Error> {
    let told = outcome.wait();
    let told = match terms.deadline {
        Some(deadline) => timeout_at(deadline, told).await,
        None => Ok(told.await),
    };
    let doing = || format!("making a channel to relay {}", whom.name);
    let told = told.map_err(|_| Error::new(ErrorKind::TimedOut, doing()))?;
    told.clone()
}

fn ended(whom: &Whom, why: &str) -> Error {
    let doing = format!("making a channel to relay {}: {why}", whom.name);
    Error::new(ErrorKind::PathFailed, doing)
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels")
            .field("open", &self.len())
            .finish_non_exhaustive()
    }
}

// Relays that did not answer when they were dialled, remembered for a short time: whoever needs a channel to one of
// them is told at once, instead of waiting as long again. Clients do not remember
// ([`Config::failed`](super::Config::failed)): their own network may be back.

/// A dial that failed sooner is not remembered: another one costs nobody much time, and a relay that refuses may just be starting.
const MIN_REMEMBERED_DIAL: Duration = Duration::from_secs(1);

/// The last one at the end.
#[derive(Debug, Default)]
pub(super) struct Failed(VecDeque<Dial>);

#[derive(Debug)]
struct Dial {
    whom: Whom,
    how: How,
    until: Instant,
    error: Error,
}

/// When a dial began and ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) begun: Instant,
    pub(super) now: Instant,
}

/// How long dials that failed are remembered, and how many of them; then the oldest is forgotten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) kept: Duration,
    pub(super) most: usize,
}

impl Failed {
    /// Why a dial like this would fail again.
    pub(super) fn find(&self, whom: &Whom, how: How, now: Instant) -> Option<Error> {
        let same = |dial: &&Dial| dial.how == how && is_same(&dial.whom, whom) && now < dial.until;
        self.0.iter().find(same).map(|dial| dial.error.clone())
    }

    /// It did fail.
    pub(super) fn note(
        &mut self,
        memory: Memory,
        (whom, how): (&Whom, How),
        times: Times,
        error: &Error,
    ) {
        let (Memory { kept, most }, Times { begun, now }) = (memory, times);
        if kept.is_zero() || now.saturating_duration_since(begun) < MIN_REMEMBERED_DIAL {
            return;
        }
        let other =
            |dial: &Dial| (dial.how != how || !is_same(&dial.whom, whom)) && now < dial.until;
        self.0.retain(other);
        if self.0.len() >= most {
            self.0.pop_front();
        }
        self.0.push_back(Dial {
            whom: whom.clone(),
            how,
            until: now + kept,
            error: error.clone(),
        });
    }

    /// The relay of this identity is there.
    pub(super) fn forget(&mut self, identity: &[u8; 32]) {
        self.0.retain(|dial| dial.whom.identity != Some(*identity));
    }
}

/// The same relay at the same address: what it is called, and which other identity is to be shown, makes no other dial.
fn is_same(one: &Whom, other: &Whom) -> bool {
    one.identity == other.identity && one.address == other.address
}

// Which relays were reached over TLS when QUIC was tried beside it: there QUIC is not waited for again, for a while; and how often it was lost there.

/// After so long QUIC is waited for again: it may have been the network where the client was.
const QUIC_RETRY_AFTER: Duration = Duration::from_secs(600);
/// This many relays; then the oldest is forgotten.
const MAX_WITHOUT_QUIC: usize = 256;

/// The last one at the end.
#[derive(Debug, Default)]
pub(super) struct Remembered(VecDeque<Way>);

/// To a relay.
#[derive(Debug)]
struct Way {
    identity: [u8; 32],
    target: Target,
    /// TLS was there first, and QUIC has not come since.
    is_tls: bool,
    /// When that began, or QUIC was there.
    since: Instant,
    /// How often QUIC was there, and TLS first within [`QUIC_RETRY_AFTER`].
    lost: u32,
}

impl Way {
    fn leads(&self, identity: &[u8; 32], target: &Target) -> bool {
        self.identity == *identity && self.target == *target
    }

    fn is_young(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < QUIC_RETRY_AFTER
    }
}

impl Remembered {
    /// Whether it is to be dialled over TLS alone at `target`.
    pub(super) fn is_tls(&self, identity: &[u8; 32], target: &Target, now: Instant) -> bool {
        self.find(identity, target)
            .is_some_and(|way| way.is_tls && way.is_young(now))
    }

    /// How often QUIC was lost there lately.
    pub(super) fn lost(&self, identity: &[u8; 32], target: &Target) -> u32 {
        self.find(identity, target).map_or(0, |way| way.lost)
    }

    fn find(&self, identity: &[u8; 32], target: &Target) -> Option<&Way> {
        self.0.iter().find(|way| way.leads(identity, target))
    }

    /// TLS was there first.
    pub(super) fn note(&mut self, identity: [u8; 32], target: &Target, now: Instant) {
        if self.is_tls(&identity, target, now) {
            return;
        }
        let before = self.find(&identity, target);
        let lost = before.filter(|way| !way.is_tls && way.is_young(now));
        let lost = lost.map_or(0, |way| way.lost.saturating_add(1));
        self.0.retain(|way| !way.leads(&identity, target));
        if self.0.len() >= MAX_WITHOUT_QUIC {
            self.0.pop_front();
        }
        self.0.push_back(Way {
            identity,
            target: target.clone(),
            is_tls: true,
            since: now,
            lost,
        });
    }

    /// QUIC is there.
    pub(super) fn quic(&mut self, identity: &[u8; 32], target: &Target, now: Instant) {
        let known = self.0.iter_mut().find(|way| way.leads(identity, target));
        if let Some(way) = known {
            (way.is_tls, way.since) = (false, now);
        }
    }
}

#[cfg(test)]
mod failed_tests {
    use hoplite_overlay::ErrorKind;

    use super::*;

    const KEPT: Duration = Duration::from_secs(8);
    const MEMORY: Memory = Memory {
        kept: KEPT,
        most: 256,
    };

    fn whom(n: u16) -> Whom {
        let [high, low] = n.to_be_bytes();
        let mut identity = [0; 32];
        (identity[0], identity[1]) = (high, low);
        Whom {
            name: String::new(),
            address: "192.0.2.1:443".parse().unwrap(),
            identity: Some(identity),
            rsa: None,
        }
    }

    #[test]
    fn a_dial_that_took_long_is_remembered_for_its_address_and_way_and_for_some_relays() {
        let (mut failed, start) = (Failed::default(), Instant::now());
        let error = Error::new(ErrorKind::TimedOut, "dialling");
        let times = Times {
            begun: start,
            now: start + MIN_REMEMBERED_DIAL,
        };
        let soon = Times {
            now: start + MIN_REMEMBERED_DIAL / 2,
            ..times
        };
        failed.note(MEMORY, (&whom(0), How::Quic), soon, &error);
        assert!(failed.find(&whom(0), How::Quic, start).is_none(), "at once");
        failed.note(MEMORY, (&whom(0), How::Quic), times, &error);
        let found = failed.find(&whom(0), How::Quic, start + MIN_REMEMBERED_DIAL);
        assert_eq!(found.unwrap().kind(), ErrorKind::TimedOut);
        assert!(failed.find(&whom(0), How::Tls, start).is_none());
        let mut moved = whom(0);
        moved.address = "192.0.2.2:443".parse().unwrap();
        assert!(failed.find(&moved, How::Quic, start).is_none());
        let later = start + MIN_REMEMBERED_DIAL + KEPT;
        assert!(failed.find(&whom(0), How::Quic, later).is_none());
        for n in 1..=256 {
            failed.note(MEMORY, (&whom(n), How::Quic), times, &error);
        }
        assert_eq!(failed.0.len(), MEMORY.most);
        assert!(failed.find(&whom(0), How::Quic, start).is_none(), "it went");
        assert!(failed.find(&whom(1), How::Quic, start).is_some());
        failed.forget(&whom(1).identity.unwrap());
        assert!(failed.find(&whom(1), How::Quic, start).is_none());
    }
}

#[cfg(test)]
mod remembered_tests {
    use super::*;

    #[test]
    fn tls_is_remembered_for_ten_minutes_from_the_first_time_where_it_was_and_for_some_relays() {
        let start = Instant::now();
        let [here, elsewhere] =
            ["192.0.2.1:443", "192.0.2.2:443"].map(|text| text.parse::<Target>().unwrap());
        let mut known = Remembered::default();
        assert!(!known.is_tls(&[1; 32], &here, start));
        known.note([1; 32], &here, start);
        known.note([1; 32], &here, start + QUIC_RETRY_AFTER / 2);
        assert!(known.is_tls(&[1; 32], &here, start + QUIC_RETRY_AFTER / 2));
        assert!(
            !known.is_tls(&[1; 32], &elsewhere, start),
            "another address"
        );
        assert!(!known.is_tls(&[2; 32], &here, start));
        assert!(
            !known.is_tls(&[1; 32], &here, start + QUIC_RETRY_AFTER),
            "QUIC has its chance again"
        );
        known.note([2; 32], &here, start);
        known.quic(&[2; 32], &here, start);
        assert!(!known.is_tls(&[2; 32], &here, start));
        for n in 0..=255 {
            known.note([n; 32], &here, start + QUIC_RETRY_AFTER);
        }
        let mut other = [1; 32];
        other[0] = 0;
        known.note(other, &here, start + QUIC_RETRY_AFTER);
        assert_eq!(known.0.len(), MAX_WITHOUT_QUIC);
        assert!(
            !known.is_tls(&[0; 32], &here, start + QUIC_RETRY_AFTER),
            "the oldest went"
        );
    }

    #[test]
    fn who_loses_quic_again_and_again_is_known_for_it_until_it_has_stood_for_a_while() {
        let (start, mut known) = (Instant::now(), Remembered::default());
        let here: Target = "192.0.2.1:443".parse().unwrap();
        known.note([1; 32], &here, start);
        assert_eq!(known.lost(&[1; 32], &here), 0, "it was never had");
        for times in 1..=3 {
            known.quic(&[1; 32], &here, start);
            known.note([1; 32], &here, start);
            assert_eq!(known.lost(&[1; 32], &here), times);
        }
        known.quic(&[1; 32], &here, start);
        known.note([1; 32], &here, start + QUIC_RETRY_AFTER);
        assert_eq!(known.lost(&[1; 32], &here), 0);
    }
}
