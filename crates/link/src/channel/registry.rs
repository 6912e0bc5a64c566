//! One channel for each pair of relays: whoever needs one gets the one that is there, or waits for the one that is being dialled.
//! A relay has one for all its circuits, a client one for its guards.
//! tor-spec: "Canonical connections", "Opening connections"; a channel is used for an address if the peer was dialled there or says that it is there.
//!
//! Two relays that dial each other at the same moment have two channels. Both then begin their circuits on the one that the relay with the lower
//! identity dialled; the other carries the circuits that it has, and is closed when it has none for a while.

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc};

use hoplite_overlay::{Error, ErrorKind, Reason, Terms};
use hoplite_wire::Host;
use tokio::{
    sync::SetOnce,
    time::{Instant, timeout_at},
};

use super::{
    Channel, ChannelDialer, Guarded, How, Whom,
    failed::{Failed, Memory, Times},
};

/// How many channels to one relay are kept: each end may have dialled one at the same time, and over another address.
const MOST_EACH: usize = 4;

/// What became of a dial; nothing yet while it runs. Who waits is woken in the order of waiting.
type Outcome = Arc<SetOnce<Result<Channel, Error>>>;

/// Channels to relays, by Ed25519 identity. Clones are the same one.
#[derive(Clone)]
pub struct Channels(Arc<Inner>);

struct Inner {
    dialer: ChannelDialer,
    dialled: Box<dyn Fn(Channel) + Send + Sync>,
    table: Guarded<BTreeMap<[u8; 32], Known>>,
    failed: Guarded<Failed>,
}

/// What there is of one relay.
#[derive(Default)]
struct Known {
    channels: Vec<Kept>,
    dialling: Option<Outcome>,
}

struct Kept {
    channel: Channel,
    /// Since when it has been seen without circuits.
    idle: Option<Instant>,
}

/// What is to be done for a caller.
enum Way {
    Here(Channel),
    Wait(Outcome),
    Dial(Outcome),
}

impl Channels {
    /// Dials with `dialer`. `dialled` is told of each channel that was dialled: the peer may begin circuits on it, too, and somebody has to accept them.
    pub fn new(dialer: ChannelDialer, dialled: impl Fn(Channel) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            dialer,
            dialled: Box::new(dialled),
            table: Guarded::new(BTreeMap::new()),
            failed: Guarded::default(),
        }))
    }

    /// The channel to `whom`: the one that is there if it is canonical for the address, else a new one. Callers at the same time share one dial,
    /// which goes on when one of them gives up. If it took long and failed, it is not tried again for [`Config::failed`](super::Config::failed).
    ///
    /// # Errors
    /// As [`ChannelDialer::dial`]; [`Reason::Limit`] where there are too many relays.
    pub async fn get(&self, whom: &Whom, how: How, terms: &Terms) -> Result<Channel, Error> {
        let Some(identity) = whom.identity else {
            return self.0.dialer.dial(whom, how, terms).await;
        };
        let outcome = match self.way(identity, whom, how)? {
            Way::Here(channel) => return Ok(channel),
            Way::Wait(outcome) => outcome,
            Way::Dial(outcome) => {
                let (this, whom, terms) = (self.clone(), whom.clone(), terms.clone());
                let teller = Arc::clone(&outcome);
                tokio::spawn(async move {
                    let begun = Instant::now();
                    let made = this.0.dialer.dial(&whom, how, &terms).await;
                    let made = made.map(|channel| this.keep(identity, &whom, channel));
                    if let Err(error) = &made {
                        this.note(&whom, how, error, begun);
                    }
                    this.told(identity);
                    teller.set(made).ok();
                });
                outcome
            }
        };
        wait(outcome, whom, terms).await
    }

    /// The peer of `channel` dialled us. Of a client nothing is kept.
    pub fn add(&self, channel: &Channel) {
        if let Some(peer) = channel.peer() {
            let mut table = self.0.table.lock();
            if table.len() < self.0.dialer.config().channels || table.contains_key(&peer.ed25519) {
                table.entry(peer.ed25519).or_default().add(channel.clone());
            }
            drop(table);
            self.0.failed.lock().forget(&peer.ed25519);
        }
    }

    /// The channels that are open.
    pub fn open(&self) -> Vec<Channel> {
        let table = self.0.table.lock();
        let kept = table.values().flat_map(|known| &known.channels);
        let open = kept.filter(|kept| kept.channel.is_open());
        open.map(|kept| kept.channel.clone()).collect()
    }

    /// How many there are of them.
    pub fn len(&self) -> usize {
        self.open().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets channels that have ended and closes those that have been without circuits for [`Config::idle`](super::Config::idle).
    /// To be called now and then.
    pub fn sweep(&self, now: Instant) {
        let patience = self.0.dialer.config().idle;
        self.0.table.lock().retain(|_, known| {
            known
                .channels
                .retain_mut(|kept| kept.is_wanted(now, patience));
            known.dialling.is_some() || !known.channels.is_empty()
        });
    }

    fn way(&self, identity: [u8; 32], whom: &Whom, how: How) -> Result<Way, Error> {
        let mut table = self.0.table.lock();
        let most = self.0.dialer.config().channels;
        if table.len() >= most && !table.contains_key(&identity) {
            table.retain(|_, known| known.is_alive());
            if table.len() >= most {
                return Err(full(&whom.name));
            }
        }
        let ours = self.0.dialer.goes_first(&identity);
        let known = table.entry(identity).or_default();
        if let Some(channel) = known.find(whom, ours) {
            return Ok(Way::Here(channel));
        }
        if let Some(dialling) = &known.dialling {
            return Ok(Way::Wait(Arc::clone(dialling)));
        }
        let failed = self.0.failed.lock().find(whom, how, Instant::now());
        if let Some(error) = failed {
            if !known.is_alive() {
                table.remove(&identity);
            }
            return Err(error);
        }
        let outcome = Outcome::default();
        known.dialling = Some(Arc::clone(&outcome));
        Ok(Way::Dial(outcome))
    }

    /// Keeps a channel that was dialled. The peer may have dialled as well, and both may have circuits: none is closed for the other.
    fn keep(&self, identity: [u8; 32], whom: &Whom, channel: Channel) -> Channel {
        let ours = self.0.dialer.goes_first(&identity);
        let mut table = self.0.table.lock();
        let known = table.entry(identity).or_default();
        known.add(channel.clone());
        let chosen = known.find(whom, ours);
        drop(table);
        (self.0.dialled)(channel.clone());
        chosen.unwrap_or(channel)
    }

    /// A dial failed. If the relay has a channel all the same, it is there.
    fn note(&self, whom: &Whom, how: How, error: &Error, begun: Instant) {
        let now = Instant::now();
        let config = self.0.dialer.config();
        let memory = Memory {
            kept: config.failed,
            most: config.channels,
        };
        let table = self.0.table.lock();
        let known = whom.identity.and_then(|identity| table.get(&identity));
        if known.is_none_or(|known| !known.is_open()) {
            let mut failed = self.0.failed.lock();
            failed.note(memory, (whom, how), Times { begun, now }, error);
        }
    }

    fn told(&self, identity: [u8; 32]) {
        let mut table = self.0.table.lock();
        if let Some(known) = table.get_mut(&identity) {
            known.dialling = None;
            if !known.is_alive() {
                table.remove(&identity);
            }
        }
    }
}

impl Known {
    fn is_alive(&self) -> bool {
        self.dialling.is_some() || self.is_open()
    }

    fn is_open(&self) -> bool {
        self.channels.iter().any(|kept| kept.channel.is_open())
    }

    /// Where there are several, one that we dialled (`ours`) or one that the peer did; of those the oldest.
    fn find(&mut self, whom: &Whom, ours: bool) -> Option<Channel> {
        self.channels.retain(|kept| kept.channel.is_open());
        let fits = |kept: &&mut Kept| fits(&kept.channel, whom);
        let fitting = self.channels.iter_mut().filter(fits);
        let kept = fitting.min_by_key(|kept| kept.channel.is_ours() != ours)?;
        kept.idle = None;
        Some(kept.channel.clone())
    }

    /// The oldest stays first. Beyond the bound the newest is not known here; its circuits live.
    fn add(&mut self, channel: Channel) {
        self.channels.retain(|kept| kept.channel.is_open());
        let here = self.channels.iter().any(|kept| kept.channel.is(&channel));
        if !here && self.channels.len() < MOST_EACH {
            self.channels.push(Kept {
                channel,
                idle: None,
            });
        }
    }
}

impl Kept {
    fn is_wanted(&mut self, now: Instant, patience: std::time::Duration) -> bool {
        if !self.channel.is_open() {
            return false;
        }
        if self.channel.circuits() > 0 {
            self.idle = None;
            return true;
        }
        let since = *self.idle.get_or_insert(now);
        let wanted = now.saturating_duration_since(since) < patience;
        if !wanted {
            self.channel.close();
        }
        wanted
    }
}

fn fits(channel: &Channel, whom: &Whom) -> bool {
    let address: Option<IpAddr> = match &whom.address.host {
        Host::Ip(address) => Some(*address),
        Host::Name(_) => None,
    };
    address.is_none_or(|address| channel.is_canonical(address))
}

async fn wait(outcome: Outcome, whom: &Whom, terms: &Terms) -> Result<Channel, Error> {
    let told = outcome.wait();
    let told = match terms.deadline {
        Some(deadline) => timeout_at(deadline, told).await,
        None => Ok(told.await),
    };
    let doing = || format!("making a channel to relay {}", whom.name);
    let told = told.map_err(|_| Error::new(ErrorKind::TimedOut, doing()))?;
    told.clone()
}

fn full(relay: &str) -> Error {
    let doing = format!("making a channel to relay {relay}: there are channels to too many relays");
    Error::new(ErrorKind::PathFailed, doing).because(Reason::Limit)
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels")
            .field("open", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{
        Config,
        tests::harness::{World, until},
    };

    /// The same two channels, in whichever order they came to be known.
    #[tokio::test(start_paused = true)]
    async fn of_two_channels_both_relays_take_the_one_that_the_lower_identity_dialled() {
        let world = World::new(Config::default());
        let (dialled, _theirs) = world.pair(How::Quic).await;
        let (_ours, accepted) = world.pair(How::Tls).await;
        for order in [[&dialled, &accepted], [&accepted, &dialled]] {
            let mut known = Known::default();
            order
                .iter()
                .for_each(|channel| known.add((*channel).clone()));
            // Any address fits a name.
            let mut whom = world.whom();
            whom.address = "relay.example:443".parse().unwrap();
            assert!(known.find(&whom, true).unwrap().is(&dialled));
            assert!(known.find(&whom, false).unwrap().is(&accepted));
            assert!(dialled.is_open() && accepted.is_open());
        }
        dialled.close();
        until(|| !dialled.is_open()).await;
        let mut known = Known::default();
        known.add(dialled);
        known.add(accepted.clone());
        assert!(
            known
                .find(&world.whom(), true)
                .is_none_or(|found| found.is(&accepted))
        );
    }
}
