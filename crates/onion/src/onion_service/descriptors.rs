//! The descriptors that a client has: looked for at HSDirs, checked, opened and kept. [`Descriptors`] asks over circuits, [`Kept`] decides without I/O or
//! clock. rend-spec-v3, "Fetching the hidden service descriptor", "Client behavior".
//!
//! An HSDir can say that it has nothing, give what it was given before, or answer garbage: then the next one is asked, each once, in an order that
//! nobody can guess. It cannot give what the service has not signed, nor an older descriptor than the client has seen. How often a service is looked
//! for is bounded, also where its points fail all the time, and so is how many are looked for at once: a web page can name as many as it likes. Each
//! token has its turns ([`turns`]), so that it keeps itself waiting, and nobody else.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use hoplite_crypto::onion::{
    client_authorisation::ClientSecret,
    descriptor::{Descriptor, DescriptorError, SignedDescriptor},
    service_keys::{BlindedKey, OnionAddress},
};
use hoplite_overlay::{Error, ErrorKind, Isolation, Reason};
use hoplite_wire::{cell::circuit::LinkSpecifier, tor::service_descriptor::DESCRIPTOR};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use super::{
    IntroductionPoint, KnownService, directory::Placed, directory::ServiceDirectory, relay,
    shuffle, unix_time,
};
use crate::path::Relay;
use turns::Turns;

mod turns;

/// Those who wait for a turn to look for a service.
const WAITING: usize = 256;

/// Bounds of what a client asks and keeps: the table `[onion.descriptors]` of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DescriptorsConfig {
    /// HSDirs that are asked for one descriptor at most.
    pub asked: usize,
    /// The time that each of them may take, with the circuit to it.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub answer: Duration,
    /// One that had nothing new is not asked again for so long; twice as long after each time in a row, up to `within`.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub in_vain: Duration,
    /// A service is looked for so often …
    pub lookups: u32,
    /// … in this time, and as often at once.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub within: Duration,
    /// Services that are looked for at once; others wait. Of them a token has no more than are left for others.
    pub at_once: usize,
    /// Services that are known; the one that was not asked for longest goes, first of those that nobody has found.
    pub services: usize,
    /// A descriptor is used so long at least, though its period may be over by this clock: by the list's it may not.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub least: Duration,
}

impl Default for DescriptorsConfig {
    fn default() -> Self {
        Self {
            asked: 6,
            answer: Duration::from_secs(30),
            in_vain: Duration::from_secs(5),
            lookups: 5,
            within: Duration::from_secs(120),
            at_once: 8,
            services: 256,
            least: Duration::from_secs(300),
        }
    }
}

/// The keys of a client that services have authorised, by their addresses.
pub type ClientKeys = HashMap<OnionAddress, ClientSecret>;

/// Looks for descriptors and keeps them. Clones are the same one.
#[derive(Clone)]
pub struct Descriptors(Arc<Inner>);

struct Inner {
    directory: Arc<dyn ServiceDirectory>,
    keys: ClientKeys,
    config: DescriptorsConfig,
    services: Mutex<HashMap<OnionAddress, Known>>,
    turns: Turns,
}

/// When it was asked for last, and what is known. Whoever looks for it holds the lock.
struct Known(Instant, Arc<tokio::sync::Mutex<Kept>>);

impl Descriptors {
    /// None yet. `keys` open those that are for authorised clients.
    pub fn new(
        directory: Arc<dyn ServiceDirectory>,
        keys: ClientKeys,
        config: DescriptorsConfig,
    ) -> Self {
        Self(Arc::new(Inner {
            directory,
            keys,
            config,
            services: Mutex::default(),
            turns: Turns::new(config.at_once.max(1), WAITING),
        }))
    }

    /// How a service is reached, by the descriptor that is kept or is looked for now, in a turn of this token. Once that is begun it goes on if nobody waits
    /// for it any more: the next stream needs it.
    ///
    /// # Errors
    /// No HSDir has it ([`Reason::NameNotFound`]) or can be asked; it is for clients with other keys ([`ErrorKind::Forbidden`]); it was looked for too
    /// often, or the token looks for too many ([`Reason::Limit`]).
    pub async fn service(
        &self,
        address: &OnionAddress,
        token: &Isolation,
    ) -> Result<Arc<KnownService>, Error> {
        self.find(address, token, |_| true).await
    }

    /// Whether how a service is reached is known now, and need not be looked for.
    pub fn knows(&self, address: &OnionAddress) -> bool {
        let services = self.0.services.lock();
        let kept = services
            .get(address)
            .and_then(|known| known.1.try_lock().ok());
        kept.is_some_and(|kept| kept.usable(Instant::now()).is_some())
    }

    /// How it is reached by a descriptor that it has made since, where the introduction points of `known` lead to nobody. `None`: no HSDir that can be
    /// asked has one, or it was looked for too often.
    pub async fn newer(
        &self,
        address: &OnionAddress,
        token: &Isolation,
        known: &KnownService,
    ) -> Option<Arc<KnownService>> {
        // Somebody else may have looked for it meanwhile.
        let newer = self.find(address, token, |service| service != known);
        newer.await.ok()
    }

    /// What is kept, if it is what is wanted; else what is found now.
    async fn find(
        &self,
        address: &OnionAddress,
        token: &Isolation,
        is_wanted: impl Fn(&KnownService) -> bool,
    ) -> Result<Arc<KnownService>, Error> {
        let (inner, address) = (Arc::clone(&self.0), *address);
        let known = inner.known(&address);
        let wanted = |kept: &Kept| kept.usable(Instant::now()).filter(|it| is_wanted(it));
        loop {
            // Whoever looks for it now does so for all.
            if let Some(service) = wanted(&*known.lock().await) {
                return Ok(service);
            }
            // Nobody waits for a turn of another token.
            let turn = inner.turns.turn(token).await.ok_or_else(too_many)?;
            let Ok(mut kept) = Arc::clone(&known).try_lock_owned() else {
                continue;
            };
            if let Some(service) = wanted(&kept) {
                return Ok(service);
            }
            let looking = tokio::spawn(async move {
                let _turn = turn;
                inner.look(&address, &mut kept).await
            });
            return looking.await.unwrap_or_else(|error| {
                Err(Error::new(ErrorKind::Bug, "looking for an onion service").caused_by(error))
            });
        }
    }
}

impl Inner {
    fn known(&self, address: &OnionAddress) -> Arc<tokio::sync::Mutex<Kept>> {
        let mut services = self.services.lock();
        if services.len() >= self.config.services.max(1) && !services.contains_key(address) {
            // Who names services that nobody finds has none forgotten that was found, nor what was newest of it.
            let is_found = |known: &Known| {
                let kept = known.1.try_lock();
                kept.map_or(true, |kept| kept.descriptor.is_some())
            };
            let oldest = services
                .iter()
                .min_by_key(|(_, known)| (is_found(known), known.0));
            let oldest = oldest.map(|(address, _)| *address);
            oldest.map(|oldest| services.remove(&oldest));
        }
        let now = Instant::now();
        let known = services
            .entry(*address)
            .or_insert_with(|| Known(now, Arc::default()));
        known.0 = now;
        Arc::clone(&known.1)
    }

    async fn look(
        &self,
        address: &OnionAddress,
        kept: &mut Kept,
    ) -> Result<Arc<KnownService>, Error> {
        let placed = self.directory.looked_for(address)?;
        let key = address.blinded(placed.period);
        let mut hsdirs = kept.unasked(&placed, Instant::now());
        if hsdirs.is_empty() {
            return Err(not_found());
        }
        if !kept.may_look(Instant::now(), &self.config) {
            let doing = "looking for the descriptor of an onion service once more (try later)";
            return Err(Error::new(ErrorKind::PathFailed, doing).because(Reason::Limit));
        }
        shuffle(&mut hsdirs);
        let pause = kept.pause(&self.config);
        let mut last = not_found();
        for hsdir in hsdirs.iter().take(self.config.asked) {
            match self.ask(hsdir, address, &key, kept).await {
                Ok(read) => return Ok(kept.keep(read, &placed, &self.config)),
                // The service itself says so, in what it has signed: each HSDir would tell the same.
                Err(error) if error.kind() == ErrorKind::Forbidden => return Err(error),
                Err(error) => last = error,
            }
            kept.in_vain
                .insert(hsdir.keys.ed25519, Instant::now() + pause);
        }
        kept.failed = kept.failed.saturating_add(1);
        Err(last)
    }

    async fn ask(
        &self,
        hsdir: &Relay,
        address: &OnionAddress,
        key: &BlindedKey,
        kept: &Kept,
    ) -> Result<Read, Error> {
        let asked = timeout(self.config.answer, self.directory.fetch(hsdir, key)).await;
        let text = match asked {
            Ok(Ok(text)) => text,
            Ok(Err(error)) if error.reason() == Some(Reason::NameNotFound) => {
                return Err(not_found());
            }
            Ok(Err(error)) => return Err(unasked(error)),
            Err(_) => {
                let doing = "asking a relay for the descriptor of an onion service";
                return Err(Error::new(ErrorKind::TimedOut, doing));
            }
        };
        let now = unix_time();
        let signed = SignedDescriptor::parse(&text, DESCRIPTOR, now).map_err(unusable)?;
        if !kept.is_news(&signed, Instant::now()) {
            return Err(not_found());
        }
        let subcredential = address.subcredential(key);
        let client = self.keys.get(address);
        let opened = signed.open(key, &subcredential, client, now);
        Ok(Read {
            service: known(address, subcredential, &opened.map_err(unusable)?),
            key: *key,
            revision: signed.revision(),
            lasts: lasts(&signed, now),
            now,
        })
    }
}

fn too_many() -> Error {
    let doing = "looking for one more onion service, where too many are waited for (try later)";
    Error::new(ErrorKind::PathFailed, doing).because(Reason::Limit)
}

fn not_found() -> Error {
    let doing = "looking for an onion service whose descriptor no relay has (check the address; or the service is down)";
    Error::new(ErrorKind::TargetFailed, doing).because(Reason::NameNotFound)
}

/// What a relay refuses it alone refuses: another one may have the descriptor, which is what says whom the service has authorised.
fn unasked(error: Error) -> Error {
    if error.kind() != ErrorKind::Forbidden {
        return error;
    }
    let doing = "asking a relay for the descriptor of an onion service, which it refuses";
    let refused = Error::new(ErrorKind::PathFailed, doing);
    let refused = match error.reason() {
        Some(reason) => refused.because(reason),
        None => refused,
    };
    refused.caused_by(error)
}

fn unusable(why: DescriptorError) -> Error {
    match why {
        DescriptorError::NeedsAuthorisation | DescriptorError::NotAuthorised => {
            let doing = format!("opening the descriptor of an onion service: {why}");
            Error::new(ErrorKind::Forbidden, doing)
        }
        why => {
            let doing = "reading the descriptor of an onion service";
            Error::new(ErrorKind::PathFailed, doing).caused_by(why)
        }
    }
}

/// Of the lifetime and the certificate's time, what is over first.
fn lasts(signed: &SignedDescriptor, now: u64) -> Duration {
    let lifetime = u64::from(signed.lifetime()).saturating_mul(60);
    Duration::from_secs(lifetime.min(signed.expires().saturating_sub(now)))
}

fn known(
    address: &OnionAddress,
    subcredential: [u8; 32],
    descriptor: &Descriptor,
) -> Arc<KnownService> {
    let points = descriptor.points.iter().filter_map(|point| {
        let specifiers = LinkSpecifier::parse_all(&point.link_specifiers).ok()?;
        Some(IntroductionPoint {
            relay: relay(&specifiers, point.onion_key)?,
            auth_key: point.auth_key,
            enc_key: point.enc_key,
        })
    });
    Arc::new(KnownService {
        identity: *address.key(),
        subcredential,
        points: points.collect(),
        sendme_increment: descriptor.congestion_control,
    })
}

/// A descriptor that was opened.
struct Read {
    service: Arc<KnownService>,
    key: BlindedKey,
    revision: u64,
    /// How long it may be used.
    lasts: Duration,
    /// When it was read, in seconds since 1970.
    now: u64,
}

/// What a client knows of one service.
#[derive(Default)]
struct Kept {
    descriptor: Option<KeptDescriptor>,
    /// HSDirs that had nothing new, until when.
    in_vain: HashMap<[u8; 32], Instant>,
    /// When all lookups that it may have at once are there again.
    rested: Option<Instant>,
    /// Lookups in a row that were in vain.
    failed: u32,
}

struct KeptDescriptor {
    read: Read,
    until: Instant,
}

impl Kept {
    fn usable(&self, now: Instant) -> Option<Arc<KnownService>> {
        let kept = self.descriptor.as_ref().filter(|kept| now < kept.until);
        kept.map(|kept| Arc::clone(&kept.read.service))
    }

    /// Whether it may be looked for now; then it counts as that.
    fn may_look(&mut self, now: Instant, config: &DescriptorsConfig) -> bool {
        let one = config.within / config.lookups.max(1);
        if self.rested.is_none_or(|rested| rested <= now) {
            self.failed = 0;
        }
        let rested = self.rested.map_or(now, |rested| rested.max(now)) + one;
        let may = rested.saturating_duration_since(now) <= config.within;
        if may {
            self.rested = Some(rested);
        }
        may
    }

    /// For how long who has nothing new now is not asked again.
    fn pause(&self, config: &DescriptorsConfig) -> Duration {
        let pause = config
            .in_vain
            .saturating_mul(2_u32.saturating_pow(self.failed));
        pause.min(config.within)
    }

    fn unasked(&mut self, placed: &Placed, now: Instant) -> Vec<Relay> {
        self.in_vain.retain(|_, until| *until > now);
        let unasked = |hsdir: &&Relay| !self.in_vain.contains_key(&hsdir.keys.ed25519);
        placed.hsdirs.iter().filter(unasked).cloned().collect()
    }

    /// An HSDir may give an old one, of which nobody may be made to use the points again; while the same may be used, it is no news.
    fn is_news(&self, signed: &SignedDescriptor, now: Instant) -> bool {
        let of_the_key = self.descriptor.as_ref();
        let of_the_key = of_the_key.filter(|kept| kept.read.key == signed.key());
        of_the_key.is_none_or(|kept| {
            let revision = signed.revision();
            revision > kept.read.revision || revision == kept.read.revision && now >= kept.until
        })
    }

    fn keep(
        &mut self,
        read: Read,
        placed: &Placed,
        config: &DescriptorsConfig,
    ) -> Arc<KnownService> {
        let period = Duration::from_secs(placed.ends.saturating_sub(read.now));
        let lasts = read.lasts.min(period.max(config.least));
        let service = Arc::clone(&read.service);
        self.in_vain.clear();
        self.failed = 0;
        self.descriptor = Some(KeptDescriptor {
            read,
            until: Instant::now() + lasts,
        });
        service
    }
}

impl fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptors({} services)", self.0.services.lock().len())
    }
}

#[cfg(test)]
mod tests;
