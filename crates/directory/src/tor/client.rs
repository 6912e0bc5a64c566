//! A client's view of Tor's directory: the consensus that it believes, kept over restarts, and renewed when others are: dir-spec "Client operation".
//!
//! Directories are not trusted. One can answer nothing, or something old that still holds: an older one than was seen is refused, and so is one
//! of whose relays too many are not described. It can cost no more than the bounds of each answer: [`TEXT`] bytes for a consensus, 1 MiB for each
//! batch of microdescriptors, and of those no more batches than the consensus has relays. Who has a consensus that holds asks for the difference to it;
//! one that does not fit costs one question more.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use hoplite_crypto::onion::{
    rsa::{PublicKey, sha256},
    service_keys::sha3_256,
};
use hoplite_overlay::Overlay;
use hoplite_wire::{
    Target,
    tor::{Consensus, KeyCertificate, Microdescriptor, TEXT, consensus_diff::ConsensusDiff},
};
use tokio::task::spawn_blocking;

use super::{
    ANSWER, BATCH, CONSENSUS, Described, Descriptions, Network, NoNetwork, Trust, cache::Keeps,
    certified, check, check_signatures, check_times, positions,
};
use crate::{
    Heard, HsDirs, Refused, Store, StoreError, fetch,
    fetch::{Known, fetch_consensus},
};

/// Where a directory has the certificates of an authority's identity and signing keys.
const CERTIFICATES: &str = "/tor/keys/fp-sk/";
/// Questions that one directory is asked at once.
const AT_ONCE: usize = 4;
/// After so many questions that it has not answered as it should it is asked no more.
const MOST_FAILURES: usize = 4;
/// A consensus may take so many times as long as other answers: it is as much larger.
const SLOWER: u32 = 3;

/// The consensus that is believed, in what form it is used. Every change is written to the store before it counts.
#[derive(Debug)]
pub struct Client {
    pub(super) trust: Trust,
    pub(super) store: Store,
    pub(super) newest: Option<Newest>,
    /// Of those who have signed the newest; each is an authority's own.
    pub(super) certificates: Arc<str>,
    /// What its relays say.
    described: Arc<Descriptions>,
    /// Who was asked last for what is missing of them could not know who asks.
    was_anonymous: bool,
    /// What is kept beside that, for others.
    pub(super) keeps: Keeps,
}

#[derive(Clone, Debug)]
pub(super) struct Newest {
    pub(super) network: Arc<Network>,
    /// SHA-256 of what is signed.
    hash: [u8; 32],
    /// SHA3-256 of the same: by it a difference is asked for.
    diff_hash: [u8; 32],
}

impl Client {
    /// What `store` has, as far as these authorities have signed it: a consensus of another network neither serves nor hinders.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn new(trust: Trust, mut store: Store, now: u64) -> Result<Self, StoreError> {
        let kept = store.tor_documents()?.unwrap_or_default();
        let described = describe(&kept.microdescriptors);
        let read = check_signatures(&kept.consensus, &kept.certificates, &trust, now);
        let newest = read.ok().map(|consensus| Newest {
            hash: sha256(consensus.signed.as_bytes()),
            diff_hash: sha3_256(&[consensus.signed.as_bytes()]),
            network: Arc::new(Network::of(consensus, &described)),
        });
        let good = certified(&kept.certificates, &trust, now).unwrap_or_default();
        let certificates: String = good.iter().map(|one| one.text).collect();
        Ok(Self {
            trust,
            store,
            newest,
            certificates: certificates.into(),
            described: Arc::new(described),
            was_anonymous: false,
            keeps: Keeps::default(),
        })
    }

    /// The network to be used, if one is known and its time is not over.
    ///
    /// # Errors
    /// [`Refused::Stale`], [`Refused::Early`]: what is kept must not be used.
    pub fn network(&self, now: u64) -> Result<Option<&Arc<Network>>, Refused> {
        let Some(newest) = &self.newest else {
            return Ok(None);
        };
        let times = (newest.network.valid_after, newest.network.valid_until);
        check_times(times, self.trust.skew, now)?;
        Ok(Some(&newest.network))
    }

    /// The newest network that was believed, also when its time is over: not for choosing paths.
    pub fn newest(&self) -> Option<&Arc<Network>> {
        self.newest.as_ref().map(|newest| &newest.network)
    }

    /// Whether relays are missing that somebody may have kept from this client alone: some are not described, and who was asked for them could know who
    /// asks.
    pub fn may_be_misled(&self) -> bool {
        let newest = self.newest.as_ref();
        let is_missing = newest.is_some_and(|newest| !newest.network.undescribed.is_empty());
        is_missing && !self.was_anonymous
    }

    /// Which relays keep the descriptors of onion services, if there is a consensus. `is_testing`: [`HsDirs::of_tor`].
    ///
    /// # Errors
    /// [`Refused::Stale`], [`Refused::Early`]; [`Refused::Lacking`]: who leaves out the right ones has a service that he knows looked for at his own relays,
    /// by the one client that he has told so.
    pub fn hsdirs(&self, now: u64, is_testing: bool) -> Result<Option<HsDirs>, Refused> {
        let network = self.network(now)?;
        if self.may_be_misled() {
            return Err(Refused::Lacking);
        }
        Ok(network.map(|network| HsDirs::of_tor(network, is_testing)))
    }

    /// When to ask for another ([`crate::Lifetime::next_consensus`]), or for what may be kept back ([`Client::may_be_misled`]). `random` gives a number below
    /// its argument.
    pub fn next(&self, now: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        match self.network(now) {
            Ok(Some(network)) if !self.may_be_misled() => network.lifetime().next_consensus(random),
            _ => now,
        }
    }

    /// What a renewal goes by.
    pub fn renewal(&self) -> Renewal {
        let newest = self.newest.as_ref();
        // Without its text the whole of the next is asked for.
        let text = newest.and_then(|_| self.store.tor_consensus().ok().flatten());
        let earlier = newest.zip(text).map(|(newest, text)| Earlier {
            text: text.into(),
            hash: newest.diff_hash,
            valid_after: newest.network.valid_after,
            valid_until: newest.network.valid_until,
        });
        Renewal {
            trust: self.trust.clone(),
            newest: newest.map(|newest| (newest.network.valid_after, newest.hash)),
            earlier,
            certificates: Arc::clone(&self.certificates),
            described: Arc::clone(&self.described),
            is_anonymous: false,
            batch: BATCH,
        }
    }

    /// Takes what a renewal brought.
    ///
    /// # Errors
    /// [`Refused::RolledBack`], [`Refused::Twofold`], inside: something later has come in between; the store's own failures, outside.
    pub fn take(&mut self, renewed: Renewed) -> Result<Result<Heard, Refused>, StoreError> {
        if let Err(refused) = self
            .renewal()
            .is_next(renewed.network.valid_after, &renewed.hash)
        {
            return Ok(Err(refused));
        }
        let fresh = renewed.fresh.iter();
        let fresh = fresh.map(|(digest, text)| (*digest, text.as_str()));
        let named = self
            .keeps
            .named(&renewed.described, renewed.network.valid_after);
        let is_other = self
            .newest
            .as_ref()
            .is_none_or(|newest| newest.hash != renewed.hash);
        if is_other && self.keeps.consensuses > 0 {
            self.store.keep_tor_earlier(self.keeps.consensuses)?;
        }
        let texts = (&*renewed.consensus, &*renewed.certificates);
        self.store.keep_tor_documents(texts, fresh, &named)?;
        self.newest = Some(Newest {
            network: Arc::new(renewed.network),
            hash: renewed.hash,
            diff_hash: renewed.diff_hash,
        });
        // Of relays that nobody describes the same is heard each time.
        let is_news =
            is_other || !renewed.fresh.is_empty() || self.was_anonymous != renewed.was_anonymous;
        self.certificates = renewed.certificates.into();
        self.described = Arc::new(renewed.described);
        self.was_anonymous = renewed.was_anonymous;
        Ok(Ok(if is_news { Heard::Newer } else { Heard::Same }))
    }

    /// Where guards are kept.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }
}

/// What microdescriptors that are kept say, by the hashes of their texts.
fn describe(kept: &[([u8; 32], String)]) -> Descriptions {
    let read = kept.iter().filter_map(|(digest, text)| {
        let found = Microdescriptor::parse_all(text).ok()?;
        Some((*digest, Arc::new(Described::of(found.first()?))))
    });
    read.collect()
}

/// What is known before a renewal: answers are judged by it beside a [`Client`].
#[derive(Clone, Debug)]
pub struct Renewal {
    trust: Trust,
    /// From when the newest consensus holds, and the hash of what is signed in it.
    newest: Option<(u64, [u8; 32])>,
    earlier: Option<Earlier>,
    certificates: Arc<str>,
    described: Arc<Descriptions>,
    is_anonymous: bool,
    /// For how many microdescriptors is asked at once.
    batch: usize,
}

/// The consensus that is here, for directories to tell the difference to.
#[derive(Clone)]
struct Earlier {
    text: Arc<str>,
    /// SHA3-256 of what is signed.
    hash: [u8; 32],
    valid_after: u64,
    valid_until: u64,
}

impl Earlier {
    /// The later one, if this is the difference to it.
    fn apply(&self, difference: &str) -> Option<String> {
        let difference = ConsensusDiff::parse(difference).ok()?;
        (difference.from == self.hash).then_some(())?;
        let later = difference.apply(&self.text).ok()?;
        let fits = later.len() <= TEXT && sha3_256(&[later.as_bytes()]) == difference.to;
        fits.then_some(later)
    }
}

impl fmt::Debug for Earlier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Earlier").finish_non_exhaustive()
    }
}

/// How a consensus came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    /// Bytes of the answer.
    pub bytes: usize,
    /// It was the difference to the one before.
    pub as_difference: bool,
}

/// What a renewal brought, for [`Client::take`].
#[derive(Debug)]
pub struct Renewed {
    consensus: Arc<str>,
    hash: [u8; 32],
    diff_hash: [u8; 32],
    came: Came,
    certificates: String,
    was_anonymous: bool,
    /// What its relays say, as far as is known.
    described: Descriptions,
    /// The texts of those that are new.
    fresh: Vec<([u8; 32], String)>,
    network: Network,
}

impl Renewed {
    /// How its consensus came.
    pub fn came(&self) -> Came {
        self.came
    }
}

/// A consensus that is believed, and what is known of its relays so far.
struct Believed {
    consensus: Arc<str>,
    hash: [u8; 32],
    diff_hash: [u8; 32],
    came: Came,
    certificates: String,
    is_anonymous: bool,
    described: Descriptions,
    fresh: Vec<([u8; 32], String)>,
    wanted: HashSet<[u8; 32]>,
    batch: usize,
}

impl Renewal {
    /// None of those who are asked can know who asks, as over circuits: what they leave out they leave out for everybody.
    #[must_use]
    pub fn anonymously(self) -> Self {
        Self {
            is_anonymous: true,
            ..self
        }
    }

    fn is_next(&self, valid_after: u64, hash: &[u8; 32]) -> Result<(), Refused> {
        match &self.newest {
            Some((ours, _)) if valid_after < *ours => Err(Refused::RolledBack {
                by: ours.saturating_sub(valid_after),
            }),
            Some((ours, other)) if valid_after == *ours && hash != other => Err(Refused::Twofold),
            _ => Ok(()),
        }
    }

    /// The path by which a directory is asked for the certificates that are missing; `None`: there are all.
    fn certificates_wanted(&self, consensus: &str, now: u64) -> Result<Option<String>, Refused> {
        let consensus = Consensus::parse(consensus)?;
        let held = KeyCertificate::parse_all(&self.certificates)?;
        let is_held = |authority: &[u8; 20], key: &[u8; 20]| {
            let mut held = held.iter().filter(|one| one.expires >= now);
            held.any(|one| one.fingerprint == *authority && signing_id(one) == Some(*key))
        };
        let theirs = consensus.signatures.iter().filter(|signature| {
            let (authority, key) = (&signature.authority, &signature.key);
            self.trust.authorities.contains(authority) && !is_held(authority, key)
        });
        let theirs = theirs.map(|one| format!("{}-{}", Hex(&one.authority), Hex(&one.key)));
        let names = theirs.collect::<Vec<_>>().join("+");
        Ok((!names.is_empty()).then(|| format!("{CERTIFICATES}{names}")))
    }

    /// Judges a consensus, by the certificates that are held and those that were answered. `None`: it is the one that is here, and nothing is missing.
    fn believe(
        &self,
        (consensus, came): (&str, Came),
        answered: &str,
        now: u64,
    ) -> Result<Option<Believed>, Refused> {
        let certificates = [&*self.certificates, answered].concat();
        let read = check(consensus, &certificates, &self.trust, now)?;
        let hash = sha256(read.signed.as_bytes());
        self.is_next(read.valid_after, &hash)?;
        let certificates = certificates_of(&read, &certificates, &self.trust, now)?;
        let mut described = Descriptions::new();
        let mut wanted = HashSet::new();
        for router in &read.routers {
            match self.described.get(&router.digest) {
                Some(known) => drop(described.insert(router.digest, Arc::clone(known))),
                None => drop(wanted.insert(router.digest)),
            }
        }
        let is_here = self.newest.is_some_and(|(_, newest)| newest == hash);
        if is_here && wanted.is_empty() {
            return Ok(None);
        }
        Ok(Some(Believed {
            consensus: read.to_text().into(),
            hash,
            diff_hash: sha3_256(&[read.signed.as_bytes()]),
            came,
            certificates,
            is_anonymous: self.is_anonymous,
            described,
            fresh: Vec::new(),
            wanted,
            batch: self.batch,
        }))
    }
}

pub(super) fn signing_id(certificate: &KeyCertificate<'_>) -> Option<[u8; 20]> {
    PublicKey::authority(&certificate.signing).map(|key| key.id())
}

/// The texts of those certificates of known authorities whose keys have signed it, each once.
fn certificates_of(
    consensus: &Consensus<'_>,
    all: &str,
    trust: &Trust,
    now: u64,
) -> Result<String, Refused> {
    let all = certified(all, trust, now)?;
    let mut texts = BTreeSet::new();
    for signature in &consensus.signatures {
        let theirs = all
            .iter()
            .filter(|one| one.authority == signature.authority && one.id == signature.key);
        // The one that holds for longest; of two that do, the one that is here.
        let theirs = theirs.rev().max_by_key(|one| one.expires);
        texts.extend(theirs.map(|one| one.text));
    }
    Ok(texts.into_iter().collect())
}

impl Believed {
    /// Takes what was wanted of an answer.
    fn hear(&mut self, answer: &str) -> Result<(), Refused> {
        for one in Microdescriptor::parse_all(answer)? {
            let digest = sha256(one.text.as_bytes());
            if self.wanted.remove(&digest) {
                self.described.insert(digest, Arc::new(Described::of(&one)));
                self.fresh.push((digest, one.text.to_owned()));
            }
        }
        Ok(())
    }

    /// Asks one directory for what is wanted, until it fails again and again: who answers one question wrongly keeps no more back than that.
    async fn ask(
        &mut self,
        overlay: &dyn Overlay,
        source: &Target,
        limit: Duration,
    ) -> Result<(), NoNetwork> {
        let wanted: Vec<_> = self.wanted.iter().copied().collect();
        let paths: Vec<_> = wanted.chunks(self.batch).map(Consensus::request).collect();
        let batches = paths.into_iter();
        let batches =
            batches.map(|path| async move { fetch(overlay, source, &path, ANSWER, limit).await });
        let mut answers = Box::pin(stream::iter(batches).buffer_unordered(AT_ONCE));
        let mut failures = 0;
        let mut first = None;
        while let Some(answer) = answers.next().await {
            let heard = answer
                .map_err(NoNetwork::from)
                .and_then(|answer| Ok(self.hear(&answer)?));
            if let Err(error) = heard {
                failures += 1;
                first.get_or_insert(error);
            }
            if failures == MOST_FAILURES {
                break;
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// As a network, if enough of its relays are described.
    fn finish(self) -> Result<Renewed, Refused> {
        let consensus = Consensus::parse(&self.consensus)?;
        let known =
            |router: &hoplite_wire::tor::Router| self.described.contains_key(&router.digest);
        let weights = positions::weights(&consensus);
        let percent = positions::paths_known(&consensus.routers, &weights, known);
        let network = Network::of(consensus, &self.described);
        let needed = network.param("min_paths_for_circs_pct", 60, 25..=95);
        if percent < u64::from(needed.unsigned_abs()) {
            return Err(Refused::Partial { percent });
        }
        Ok(Renewed {
            consensus: self.consensus,
            hash: self.hash,
            diff_hash: self.diff_hash,
            came: self.came,
            certificates: self.certificates,
            was_anonymous: self.is_anonymous,
            described: self.described,
            fresh: self.fresh,
            network,
        })
    }
}

/// Asks one of the directories at `sources` after another, over any overlay, for a consensus that is newer than the one that is here, and then for
/// what is missing of its relays; each answer within `limit`, the consensus within three times as much. `now` is in seconds since 1970. What comes is
/// checked in a thread that may block. `None`: the consensus that is here is the newest.
///
/// # Errors
/// Why each of them failed.
pub async fn renew(
    renewal: &Renewal,
    overlay: &dyn Overlay,
    sources: &[Target],
    now: u64,
    limit: Duration,
) -> Result<Option<Renewed>, Vec<NoNetwork>> {
    let mut failures = Vec::new();
    let mut believed = None;
    let mut first = 0;
    for (place, source) in sources.iter().enumerate() {
        match consensus_of(renewal, overlay, source, now, limit).await {
            Ok(None) => return Ok(None),
            Ok(found) => {
                (believed, first) = (found, place);
                break;
            }
            Err(error) => failures.push(error),
        }
    }
    let Some(mut believed) = believed else {
        return Err(failures);
    };
    let (before, from) = sources.split_at_checked(first).unwrap_or_default();
    for source in from.iter().chain(before) {
        if believed.wanted.is_empty() {
            break;
        }
        if let Err(error) = believed.ask(overlay, source, limit).await {
            failures.push(error);
        }
    }
    let finished = beside(move || believed.finish()).await;
    finished.map(Some).map_err(|error| {
        failures.push(error);
        failures
    })
}

async fn consensus_of(
    renewal: &Renewal,
    overlay: &dyn Overlay,
    source: &Target,
    now: u64,
    limit: Duration,
) -> Result<Option<Believed>, NoNetwork> {
    let (consensus, came) = text_of(renewal, overlay, source, now, limit).await?;
    let (asks, text) = (renewal.clone(), Arc::clone(&consensus));
    let wanted = beside(move || asks.certificates_wanted(&text, now)).await?;
    let answered = match wanted {
        Some(path) => fetch(overlay, source, &path, ANSWER, limit).await?,
        None => String::new(),
    };
    let renewal = renewal.clone();
    beside(move || renewal.believe((&*consensus, came), &answered, now)).await
}

/// A consensus that a directory has, whole or by the difference to the one that is here; the latter, if the directory has no later one.
async fn text_of(
    renewal: &Renewal,
    overlay: &dyn Overlay,
    source: &Target,
    now: u64,
    limit: Duration,
) -> Result<(Arc<str>, Came), NoNetwork> {
    let longer = limit.saturating_mul(SLOWER);
    // Of one that is over a directory learns no more than that somebody has come back: he asks as one who has none.
    let earlier = renewal
        .earlier
        .as_ref()
        .filter(|earlier| now <= earlier.valid_until);
    let known = earlier.map(|earlier| Known {
        valid_after: earlier.valid_after,
        hash: &earlier.hash,
    });
    let answer = fetch_consensus(overlay, source, (CONSENSUS, known), TEXT, longer).await;
    let answer = match (answer, earlier) {
        (Err(error), Some(earlier)) if error.is_not_modified() => {
            let came = Came {
                bytes: 0,
                as_difference: false,
            };
            return Ok((Arc::clone(&earlier.text), came));
        }
        (answer, _) => answer?,
    };
    let came = Came {
        bytes: answer.len(),
        as_difference: ConsensusDiff::is_one(&answer),
    };
    if !came.as_difference {
        return Ok((answer.into(), came));
    }
    let earlier = earlier.cloned();
    let later = beside(move || Ok(earlier.and_then(|earlier| earlier.apply(&answer)))).await?;
    if let Some(later) = later {
        return Ok((later.into(), came));
    }
    let whole = fetch_consensus(overlay, source, (CONSENSUS, None), TEXT, longer).await?;
    let came = Came {
        bytes: came.bytes.saturating_add(whole.len()),
        as_difference: false,
    };
    Ok((whole.into(), came))
}

/// Beside the traffic: signatures and texts of millions of bytes take their time.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, NoNetwork> {
    let done = spawn_blocking(work).await;
    Ok(done.map_err(|_| NoNetwork::Unchecked)??)
}

/// As Tor's URLs have it.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

#[cfg(test)]
mod tests;
