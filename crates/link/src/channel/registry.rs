//! The channels of a process: whoever needs one gets the one that is there, or waits for the one that is being dialled.
//! A relay has one for all its circuits, a client one for its guards. Which channel serves whom, and who is dialled, is decided by [`super::table`];
//! here is what dials and waits.
//!
//! Two relays that dial each other at the same moment have two channels. Both then begin their circuits on the one that the relay with the lower
//! identity dialled; the other carries the circuits that it has, and is closed when it has none for a while.

use std::{fmt, net::IpAddr, sync::Arc};

use hoplite_overlay::{Error, ErrorKind, Reason, Terms};
use hoplite_wire::Target;
use tokio::time::{Instant, timeout_at};

use super::{
    Channel, ChannelDialer, Guarded, How, Kind, Listing, Whom,
    failed::Times,
    table::{Line, Outcome, Plan, Table, Way},
};

/// How often a channel is asked for that has ended, or leads elsewhere, as soon as it is there.
const TRIES: usize = 3;

/// Channels to relays, by Ed25519 identity. Clones are the same one.
#[derive(Clone)]
pub struct Channels(Arc<Inner>);

struct Inner {
    dialer: ChannelDialer,
    dialled: Box<dyn Fn(Channel) + Send + Sync>,
    table: Guarded<Table<Channel>>,
}

impl Channels {
    /// Dials with `dialer`, whomever it is asked for: a client's, which chooses relays itself. `dialled` is told of each channel that was dialled: the
    /// peer may begin circuits on it, too, and somebody has to accept them.
    pub fn new(dialer: ChannelDialer, dialled: impl Fn(Channel) + Send + Sync + 'static) -> Self {
        let table = Table::new(dialer.config().clone());
        Self(Arc::new(Inner {
            dialer,
            dialled: Box::new(dialled),
            table: Guarded::new(table),
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
        let Some(identity) = whom.identity else {
            return self.0.dialer.dial(whom, how, terms).await;
        };
        let channel = self.find(&identity, whom, how, terms).await?;
        let shown = channel.peer().and_then(|peer| peer.rsa);
        let wrong = whom
            .rsa
            .is_some_and(|named| shown.is_none_or(|shown| shown.id != named));
        match wrong {
            false => Ok(channel),
            true => {
                Err(ended(whom, "it shows another RSA identity, or none").because(Reason::Identity))
            }
        }
    }

    async fn find(
        &self,
        identity: &[u8; 32],
        whom: &Whom,
        how: How,
        terms: &Terms,
    ) -> Result<Channel, Error> {
        for _ in 0..TRIES {
            let ours = self.0.dialer.goes_first(identity);
            let asked = (identity, whom);
            let way = self.0.table.lock().ask(asked, how, ours, Instant::now());
            let way = way.inspect_err(|error| {
                if error.reason() == Some(Reason::Limit) {
                    self.0.dialer.counts().not_dialled.up();
                }
            })?;
            let outcome = match way {
                Way::Here(channel) => return Ok(channel),
                Way::Wait(outcome) => outcome,
                Way::Dial(plan) => {
                    let outcome = Arc::clone(&plan.outcome);
                    let terms = Terms {
                        // Others may wait for it, too, and have more time.
                        deadline: None,
                        ..terms.clone()
                    };
                    let (this, identity, whom) = (self.clone(), *identity, whom.clone());
                    tokio::spawn(async move {
                        Box::pin(this.dial((identity, &whom), &plan, &terms)).await;
                    });
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

    /// Dials as the plan says, and tells what came of it.
    async fn dial(&self, (identity, whom): ([u8; 32], &Whom), plan: &Plan<Channel>, terms: &Terms) {
        let begun = Instant::now();
        let mut made = self.0.dialer.dial(whom, plan.how, terms).await;
        if let (Err(_), Some(how)) = (&made, plan.otherwise) {
            made = self.0.dialer.dial(whom, how, terms).await;
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
        (self.0.dialled)(channel.clone());
        let Some(how) = plan.beside.filter(|_| channel.is_confirmed()) else {
            return;
        };
        if let Ok(channel) = self.0.dialer.dial(whom, how, terms).await {
            self.0.table.lock().beside(asked, channel.clone());
            (self.0.dialled)(channel);
        }
    }

    /// The peer of `channel` dialled us. Of a client nothing is kept.
    pub fn add(&self, channel: &Channel) {
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

impl Line for Channel {
    fn is_open(&self) -> bool {
        Self::is_open(self)
    }

    fn circuits(&self) -> usize {
        Self::circuits(self)
    }

    fn is_ours(&self) -> bool {
        Self::is_ours(self)
    }

    fn kind(&self) -> Kind {
        Self::kind(self)
    }

    fn remote(&self) -> Option<IpAddr> {
        Self::remote(self)
    }

    fn is_confirmed(&self) -> bool {
        Self::is_confirmed(self)
    }

    fn serves(&self, target: &Target) -> bool {
        Self::serves(self, target)
    }

    fn is(&self, other: &Self) -> bool {
        Self::is(self, other)
    }

    fn close(&self) {
        Self::close(self);
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
