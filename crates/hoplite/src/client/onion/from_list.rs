//! Paths of circuits from the directory's list: a guard, middles and an exit for the target's port, by `hoplite_directory::select`; or the
//! explicit path of an experiment. [`super`] hands it to [`hoplite_onion::Onion`]; docs/onion.md, "How a path is chosen".

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hoplite_crypto::onion::RelayKeys;
use hoplite_directory::{
    Refused,
    select::{Carrier, NoPath, Position, Wish},
};
use hoplite_onion::{
    channel::Waiting,
    path::{self, Failed, Paths},
};
use hoplite_overlay::{Error, ErrorKind, Overlay, Reason};
use hoplite_wire::{
    OnionKey,
    directory::{Descriptor, Key},
};
use tokio::time::Instant;

use crate::{
    client::overlay,
    errors::Failure,
    listed::{Listed, no_path},
};

/// How long a relay that failed is avoided behind the guard. Not longer: a guard that lies about others must not choose the path for long.
const AVOIDED: Duration = Duration::from_secs(60);
/// So many of them at most.
const MOST: usize = 64;

/// Gives a number below its argument.
type Random = Box<dyn FnMut(u64) -> u64 + Send>;

/// Chooses paths from the list.
pub(crate) struct FromList {
    listed: Listed,
    hops: usize,
    /// The path of an experiment: names or identities, always the same.
    explicit: Vec<String>,
    state: Mutex<State>,
}

struct State {
    random: Random,
    /// Relays that failed lately, behind the guard or as one: not to be used behind another.
    failed: VecDeque<(Key, Instant)>,
}

impl FromList {
    /// Paths of `hops` relays; or always the relays that `explicit` names, if it names any.
    pub(crate) fn new(
        listed: &Listed,
        hops: usize,
        explicit: &[String],
    ) -> Result<Arc<Self>, Failure> {
        let mut random = overlay::random();
        let random = Box::new(move |below: u64| {
            let below = usize::try_from(below).unwrap_or(usize::MAX);
            u64::try_from(random(below)).unwrap_or(0)
        });
        let made = Self::with(listed, hops, explicit, random);
        // What cannot work is said at once.
        let first = made.choose(&path::Wish::default());
        first.map_err(|error| match error {
            Unchosen::NoPath(error, _) => no_path(&error),
            Unchosen::Refused(error) => Failure::new(
                "choosing a path from the list",
                error,
                "see docs/directory.md",
            ),
        })?;
        Ok(Arc::new(made))
    }

    fn with(listed: &Listed, hops: usize, explicit: &[String], random: Random) -> Self {
        let failed = VecDeque::new();
        Self {
            listed: listed.clone(),
            hops,
            explicit: explicit.to_vec(),
            state: Mutex::new(State { random, failed }),
        }
    }

    /// Renews the list as long as the process lives: through the circuits, or beside them where that fails.
    pub(crate) fn keep(&self, through: Arc<dyn Overlay>, beside: Arc<dyn Overlay>) {
        let listed = self.listed.clone();
        tokio::spawn(async move { listed.keep(through, beside, |_| {}).await });
    }

    fn choose(&self, asked: &path::Wish) -> Result<Vec<path::Relay>, Unchosen> {
        let network = self.listed.current()?;
        if !self.explicit.is_empty() {
            let relays = network.explicit(&self.explicit, Carrier::Onion)?;
            return Ok(relays.into_iter().filter_map(of).collect());
        }
        let state = &mut *self.state();
        let avoid = state.avoided(Instant::now());
        let wish = Wish {
            hops: self.hops,
            carrier: Carrier::Onion,
            ..Wish::default()
        };
        let mut why = NoPath::Together;
        for ports in fewer_and_fewer(asked) {
            for avoid in [avoid.clone(), Vec::new()] {
                let wish = Wish {
                    ports: ports.to_vec(),
                    avoid: avoid.into_iter().collect(),
                    ..wish.clone()
                };
                match self.listed.path(&network, wish, &mut state.random) {
                    Ok(path) => return Ok(path.iter().filter_map(of).collect()),
                    Err(error) => why = error,
                }
            }
        }
        Err(Unchosen::NoPath(why, asked.required))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All ports if they are required; else first all, at last none of them.
fn fewer_and_fewer(asked: &path::Wish) -> impl Iterator<Item = &[u16]> {
    let all = asked.ports.len();
    let least = if asked.required { all } else { 0 };
    let counts = (least..=all).rev();
    counts.filter_map(|count| asked.ports.get(..count))
}

impl State {
    /// Behind the guard, without which there is no path at all.
    fn note(&mut self, identity: Key, now: Instant) {
        self.failed.retain(|(other, _)| *other != identity);
        if self.failed.len() >= MOST {
            self.failed.pop_front();
        }
        self.failed.push_back((identity, now));
    }

    fn avoided(&mut self, now: Instant) -> Vec<Key> {
        let lately = |since: Instant| now.saturating_duration_since(since) < AVOIDED;
        self.failed.retain(|(_, since)| lately(*since));
        self.failed.iter().map(|(identity, _)| *identity).collect()
    }
}

impl Paths for FromList {
    fn path<'a>(&'a self, wish: &'a path::Wish) -> Waiting<'a, Result<Vec<path::Relay>, Error>> {
        Box::pin(async { self.choose(wish).map_err(Error::from) })
    }

    fn tried(&self, path: &[path::Relay], outcome: Result<(), Failed>) {
        let identity = |hop: usize| path.get(hop).map(|relay| Key(relay.keys.ed25519));
        match outcome {
            Ok(()) => {
                identity(0)
                    .into_iter()
                    .for_each(|guard| self.listed.reached(&guard, true));
            }
            Err(failed) => {
                if failed.refused {
                    self.listed.hurry();
                }
                let Some(relay) = identity(failed.hop) else {
                    return;
                };
                if failed.hop == 0 {
                    self.listed.reached(&relay, false);
                }
                self.state().note(relay, Instant::now());
            }
        }
    }
}

/// Why there is no path.
enum Unchosen {
    /// The list must not be used any more.
    Refused(Refused),
    /// It allows none; whether that was for a stream that waits.
    NoPath(NoPath, bool),
}

impl From<NoPath> for Unchosen {
    fn from(error: NoPath) -> Self {
        Self::NoPath(error, false)
    }
}

impl From<Refused> for Unchosen {
    fn from(error: Refused) -> Self {
        Self::Refused(error)
    }
}

impl From<Unchosen> for Error {
    fn from(error: Unchosen) -> Self {
        let doing = |why: &dyn fmt::Display| format!("choosing a path from the list: {why}");
        match error {
            Unchosen::Refused(why) => Self::new(ErrorKind::PathFailed, doing(&why)),
            Unchosen::NoPath(why @ NoPath::Nobody(Position::Exit), true) => {
                Self::new(ErrorKind::Forbidden, doing(&why)).because(Reason::Policy)
            }
            Unchosen::NoPath(why, _) => Self::new(ErrorKind::PathFailed, doing(&why)),
        }
    }
}

/// What circuits need to know of a listed relay; ours all speak ntor-v3, have congestion control and know half-closed streams.
fn of(relay: &Descriptor) -> Option<path::Relay> {
    let (identity, ntor) = (relay.identity.0, relay.onion?);
    Some(path::Relay {
        // Errors say which hop: they get into the log, and a name there would say whom the list gave us.
        name: "".into(),
        keys: RelayKeys::from(OnionKey { identity, ntor }),
        rsa: false,
        addresses: relay.addresses.clone(),
        ntor3: true,
        congestion_control: true,
        half_close: true,
        exit: relay.exit.clone().map(Arc::new),
    })
}

impl fmt::Debug for FromList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromList")
    }
}
