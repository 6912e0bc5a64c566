//! Where the relays of a client come from: a list of authorities of ours, or Tor's consensus. Both are kept in the client's cache, and both have
//! relays for paths, and those that keep descriptors of onion services.

use std::{net::SocketAddr, time::Duration};

use hoplite_directory::{
    self as directory, FetchError, Heard, HsDirs, Refused, Store, StoreError,
    path_selection::Network,
    tor::{self, NoNetwork},
};
use hoplite_overlay::Overlay;
use hoplite_wire::Target;
use tokio::task::spawn_blocking;
use tracing::{debug, warn};

use crate::{
    client,
    config::client::{Directory, TorDirectory},
    directory::now,
};

/// Directories of Tor's that are asked for one consensus, if they fail; relays that are asked at once for a list.
const ATTEMPTS: usize = 3;

/// The part of the time which authorities have that relays have to give somebody a first list: with none of them he has no more to wait for.
const BEGINNING: u32 = 4;

/// What is believed of the relays.
pub(crate) enum Known {
    /// A list of the authorities of `[directory]`.
    List(directory::Client),
    /// The consensus of those of `[directory.tor]`.
    Tor(tor::Client, TorDirectory),
}

impl Known {
    /// What `store` has of what the file asks for.
    pub(crate) fn open(file: &Directory, store: Store) -> Result<Self, StoreError> {
        let Some(tor) = &file.tor else {
            return directory::Client::new(file.trust(), store).map(Self::List);
        };
        let trust = tor.trust(file.skew);
        let known = tor::Client::new(trust, store, now())?;
        Ok(Self::Tor(known, tor.clone()))
    }

    /// Whether there is one that may be used now.
    ///
    /// # Errors
    /// What is kept must not be used.
    pub(super) fn is_usable(&self, now: u64) -> Result<bool, Refused> {
        match self {
            Self::List(known) => Ok(known.list(now)?.is_some()),
            Self::Tor(known, _) => Ok(known.network(now)?.is_some()),
        }
    }

    /// Its relays; none if it must not be used.
    pub(super) fn network(&self) -> Network {
        match self {
            Self::List(known) => {
                let list = known.list(now()).ok().flatten();
                list.map_or_else(Network::default, |list| Network::of(&list.list))
            }
            Self::Tor(known, _) => {
                let network = known.network(now()).ok().flatten();
                network.map_or_else(Network::default, |network| Network::of_tor(network))
            }
        }
    }

    /// Which of them keep descriptors of onion services.
    pub(super) fn hsdirs(&self, now: u64) -> Result<Option<HsDirs>, Refused> {
        match self {
            Self::List(known) => {
                let list = known.list(now)?;
                Ok(list.and_then(|list| HsDirs::of_list(&list.list)))
            }
            Self::Tor(known, file) => known.hsdirs(now, file.testing),
        }
    }

    /// See [`tor::Client::may_be_misled`].
    pub(super) fn may_be_misled(&self) -> bool {
        match self {
            Self::List(_) => false,
            Self::Tor(known, _) => known.may_be_misled(),
        }
    }

    /// Where some relays of the list keep it for others: drawn by lot, as many as are asked.
    pub(super) fn list_caches(&self, now: u64) -> Vec<SocketAddr> {
        let Self::List(known) = self else {
            return Vec::new();
        };
        drawn(known.caches(now))
    }

    /// Takes the first list from relays that the file names as those that keep it. What is wrong with their answers is nobody's concern: authorities are
    /// asked then.
    pub(super) async fn begin(
        &mut self,
        file: &Directory,
        overlay: &dyn Overlay,
    ) -> Result<(), StoreError> {
        let (Self::List(known), false) = (self, file.caches.is_empty()) else {
            return Ok(());
        };
        let (caches, limit) = (drawn(file.caches.clone()), file.wait / BEGINNING);
        let answers = directory::ask_caches(overlay, &caches, None, limit).await;
        let texts = answers
            .into_iter()
            .filter_map(|answer| Some(answer.ok()?.text));
        let (texts, checker) = (texts.collect::<Vec<_>>(), known.checker());
        let judged = spawn_blocking(move || checker.check(&texts, now())).await;
        known.take(judged.unwrap_or_default()).map(drop)
    }

    /// When to ask for another.
    pub(super) fn next(&self, now: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        match self {
            Self::List(known) => known.next(now, random),
            Self::Tor(known, _) => known.next(now, random),
        }
    }

    /// Until when the newest may be used, in seconds since 1970; 0: there is none.
    pub(super) fn valid_until(&self, now: u64) -> u64 {
        match self {
            Self::List(known) => {
                let list = known.list(now).ok().flatten();
                list.map_or(0, |list| list.list.valid_until)
            }
            Self::Tor(known, _) => {
                let network = known.network(now).ok().flatten();
                network.map_or(0, |network| network.valid_until)
            }
        }
    }

    /// Where guards are kept.
    pub(super) fn store(&mut self) -> &mut Store {
        match self {
            Self::List(known) => known.store(),
            Self::Tor(known, _) => known.store(),
        }
    }

    /// Until when the last list before two different ones for one time is used, in seconds since 1970; 0 if there is none to use. None without two.
    pub(super) fn split_until(&self, now: u64) -> Option<u64> {
        let Self::List(known) = self else {
            return None;
        };
        let used = known.list(now).ok().flatten();
        let until = used.map_or(0, |list| list.list.valid_until);
        known.is_split().then_some(until)
    }
}

/// Some of them by lot, as many as are asked.
fn drawn(mut caches: Vec<SocketAddr>) -> Vec<SocketAddr> {
    client::shuffle(&mut caches);
    caches.truncate(ATTEMPTS);
    caches
}

/// Whom a list, or Tor's consensus, is asked of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// The authorities of the file, in the clear.
    Authorities,
    /// Relays that keep it for others, through relays: for Tor's consensus over circuits that lead to one whatever the target says. Where none of them has
    /// a later list, the authorities in the same way.
    Caches,
}

/// What became of asking for a newer list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There is one.
    Newer,
    /// Who was asked has none, and that will do.
    Current,
    /// Nobody could be asked, or none can be believed: others may know more.
    Failed,
    /// Not even the first relay was reached, so that nobody behind it had a part in that.
    Alone,
}

/// Asks for Tor's consensus, and for what is missing of its relays; nothing: there is no newer one, or it failed, which is told.
pub(super) async fn renew_tor(
    renewal: tor::Renewal,
    file: &TorDirectory,
    (overlay, ask): (&dyn Overlay, Ask),
    limit: Duration,
) -> Result<Option<tor::Renewed>, Vec<NoNetwork>> {
    let sources = sources(file, ask);
    let renewal = match ask {
        Ask::Authorities => renewal,
        Ask::Caches => renewal.anonymously(),
    };
    tor::renew(&renewal, overlay, &sources, now(), limit).await
}

/// Why a directory of Tor's gave nothing.
pub(super) fn said(failure: &NoNetwork) -> String {
    match failure {
        NoNetwork::Fetch(FetchError::Unreachable(why)) => {
            format!("a directory of Tor's cannot be reached ({why})")
        }
        other => other.to_string(),
    }
}

/// In an order that nobody can guess: no authority learns of all clients.
fn sources(file: &TorDirectory, ask: Ask) -> Vec<Target> {
    let all = file.authorities.iter();
    let mut all: Vec<_> = all.map(|one| Target::from(one.address)).collect();
    if ask == Ask::Caches {
        let any = all.into_iter().next();
        return any.map_or_else(Vec::new, |any| vec![any; ATTEMPTS]);
    }
    client::shuffle(&mut all);
    all.truncate(ATTEMPTS);
    all
}

/// Takes what was asked for.
pub(super) fn take_tor(known: &mut tor::Client, renewed: tor::Renewed) -> Outcome {
    let came = renewed.came();
    debug!(
        bytes = came.bytes,
        as_difference = came.as_difference,
        "Tor's consensus was fetched"
    );
    match known.take(renewed) {
        Ok(Ok(Heard::Newer)) => Outcome::Newer,
        Ok(Ok(Heard::Same)) => Outcome::Current,
        Ok(Err(refused)) => {
            warn!("Tor's consensus is refused: {refused}");
            Outcome::Failed
        }
        Err(error) => {
            warn!("the cache of the directory cannot be written: {error}");
            Outcome::Failed
        }
    }
}
