//! A relay as a directory cache of a network of Tor's: it fetches what the authorities of `[onion.tor]` publish, in time for clients, keeps it in the
//! directory of its identity, and gives what a majority of them has signed ([`hoplite_relay::DirectoryCache`]). dir-spec "Directory cache operation".
//! The relay's channels are told which relays there are, and which of them have QUIC ([`Listed`]).

use std::{path::Path, sync::Arc, time::Duration};

use hoplite_directory::{
    Store, StoreError,
    tor::{self, Cached, NoNetwork, Renewed, Trust},
};
use hoplite_overlay::Direct;
use hoplite_relay::{
    Config, DirectoryCache, Documents, GivenCertificate, GivenConsensus, Handle, InConsensus,
    Listed,
};
use hoplite_wire::{Target, content_coding::Encoded};
use tokio::{task::spawn_blocking, time::sleep};
use tracing::{info, warn};

use crate::{
    client, directory::now, listed_elsewhere::ListedElsewhere, relay::below, say::Failure,
};

/// In the directory of the relay's identity.
const FILE: &str = "tor-directory.sqlite";
/// How far this machine's clock may be off, in seconds.
const SKEW: u64 = 60;
/// How long an authority may take to answer; for a consensus three times as long.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// When authorities are asked again that had nothing: after this, then twice as long each time.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// The longest pause between two looks whether it is time: the calendar may jump.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// What keeps the documents up to date.
pub(crate) struct TorCache {
    known: tor::Client,
    cache: DirectoryCache,
    /// The relay's channels.
    listed: Option<Listed>,
    /// The relay's Ed25519 identity, and where the consensus was seen to have it.
    own: Option<([u8; 32], ListedElsewhere)>,
    authorities: Vec<Target>,
    /// Tries since there was a consensus last.
    tries: u32,
}

impl TorCache {
    /// None if the relay is no directory cache.
    pub(crate) fn of(config: &Config, handle: &Handle) -> Result<Option<Self>, Failure> {
        let (Some(cache), Some(file)) = (handle.directory_cache(), &config.onion.tor) else {
            return Ok(None);
        };
        let identities = file.authorities.iter().filter_map(|one| one.identity);
        let trust = Trust {
            authorities: identities.collect(),
            skew: SKEW,
        };
        let path = config.identity.join(FILE);
        let open = || tor::Client::caching(trust, Store::open(&path)?, now());
        let known = open().map_err(|error| unusable(&path, &error))?;
        let authorities = file.authorities.iter().map(|one| one.address.clone());
        let own = handle.onion_key().map(|key| key.identity);
        let told = ListedElsewhere::new(config.directory.reached_at(handle.addresses()));
        Ok(Some(Self {
            known,
            cache,
            listed: handle.listed(),
            own: own.zip(Some(told)),
            authorities: authorities.collect(),
            tries: 0,
        }))
    }

    /// Gives what there is, and fetches one consensus after the other until dropped.
    pub(crate) async fn run(self) {
        let mut works = self.give().await;
        while let Some(cache) = works {
            let due = cache.known.next_of_cache(now(), &mut below);
            cache.wait(due).await;
            works = cache.renew().await;
        }
        // Nothing is lost but the cache: what it had is given on.
        std::future::pending().await
    }

    /// Not before `due`, and the longer the more tries there were.
    async fn wait(&self, due: u64) {
        if let Some(tries) = self.tries.checked_sub(1) {
            let factor = 2_u32.saturating_pow(tries);
            sleep(RETRY_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)).await;
        }
        while now() < due {
            let left = Duration::from_secs(due.saturating_sub(now()));
            sleep(left.min(MAX_CHECK_INTERVAL)).await;
        }
    }

    async fn renew(mut self) -> Option<Self> {
        let renewal = self.known.renewal();
        let sources = self.sources();
        let renewed = tor::renew(&renewal, &Direct::new(), &sources, now(), FETCH_TIMEOUT).await;
        self.tries = self.tries.saturating_add(1);
        match renewed {
            Ok(None) => Some(self),
            Ok(Some(renewed)) => self.take(renewed).await,
            Err(failures) => {
                failures.iter().for_each(warn_of);
                Some(self)
            }
        }
    }

    async fn take(mut self, renewed: Renewed) -> Option<Self> {
        let (came, before) = (renewed.came(), self.known.valid_after());
        match self.known.take(renewed) {
            Ok(Ok(_)) => {
                // Else it is the one that is here, of which something was missing and may be for long.
                if self.known.valid_after() > before {
                    self.tries = 0;
                    self.look_for_own();
                }
                info!(
                    bytes = came.bytes,
                    as_difference = came.as_difference,
                    "a consensus of Tor's authorities was fetched"
                );
                self.give().await
            }
            Ok(Err(refused)) => {
                warn!("a consensus of Tor's authorities is refused: {refused}");
                Some(self)
            }
            Err(error) => {
                warn!("the directory cache cannot be written, and gives on what it had: {error}");
                Some(self)
            }
        }
    }

    /// Where the consensus that has just come has this relay.
    fn look_for_own(&mut self) {
        let (Some((own, elsewhere)), Some(network)) = (&mut self.own, self.known.newest()) else {
            return;
        };
        let found = network.relays.iter().find(|one| one.keys.ed25519 == *own);
        elsewhere.heard(found.map(|relay| relay.router.addresses.as_slice()));
    }

    /// Whom channels know from now on: the relays of the newest consensus, also when its time is over, as circuits go on then.
    fn tell(&self) {
        let (Some(listed), Some(network)) = (&self.listed, self.known.newest()) else {
            return;
        };
        listed.replace_consensus(network.relays.iter().map(|relay| {
            let known = InConsensus {
                addresses: relay.router.addresses.clone(),
                quic: relay.router.quic,
            };
            (relay.keys.ed25519, known)
        }));
    }

    /// Hands all that is kept to whoever gives it: compressing takes its time, where nothing else waits for this thread.
    async fn give(self) -> Option<Self> {
        self.tell();
        let work = spawn_blocking(move || {
            let mut cache = self;
            match cache.known.cached() {
                Ok(Some(cached)) => cache
                    .cache
                    .give(documents(cached, &cache.cache.documents())),
                Ok(None) => {}
                Err(error) => warn!("the directory cache cannot be read: {error}"),
            }
            cache
        });
        let done = work.await.ok();
        if done.is_none() {
            warn!(
                "the directory cache has broken off, and gives on what it had: please report this"
            );
        }
        done
    }

    /// In an order that nobody can guess: no authority is asked first by all.
    fn sources(&self) -> Vec<Target> {
        let mut all = self.authorities.clone();
        client::shuffle(&mut all);
        all
    }
}

fn warn_of(failure: &NoNetwork) {
    warn!("a consensus of Tor's authorities cannot be had: {failure}");
}

fn unusable(path: &Path, error: &StoreError) -> Failure {
    let doing = format!("opening the directory cache {}", path.display());
    Failure::new(doing, error, "or set onion.tor.directory_cache = false")
}

/// What is given from now on. What was given before is not compressed again.
fn documents(cached: Cached, before: &Documents) -> Documents {
    let encode = |(digest, text): ([u8; 32], String)| {
        let known = before.microdescriptors.get(&digest).cloned();
        (digest, known.unwrap_or_else(|| Encoded::of(text)))
    };
    let certificates = cached.certificates.into_iter();
    let certificates = certificates.map(|one| GivenCertificate {
        authority: one.authority,
        key: one.key,
        text: Encoded::of(one.text),
    });
    let diffs = cached.differences.into_iter();
    Documents {
        consensus: Some(Arc::new(GivenConsensus {
            valid_after: cached.valid_after,
            valid_until: cached.valid_until,
            signers: cached.signers,
            text: Encoded::of(cached.consensus),
            diffs: diffs
                .map(|(from, text)| (from, Encoded::of(text)))
                .collect(),
        })),
        certificates: certificates.collect(),
        microdescriptors: cached.microdescriptors.into_iter().map(encode).collect(),
    }
}
