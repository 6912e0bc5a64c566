//! Tor's own directory, so that circuits can go through C tor: a consensus that a majority of known authorities has signed, with the
//! microdescriptors that it names, as relays. [`fetch_all`] asks a directory for all of it, once; a [`Client`] keeps it and renews it.
//! A relay of ours tells of itself there by a [`server_descriptor`].
//! dir-spec "Network status consensus", "Accepting server descriptors", "Client operation". Texts are read by `wire::tor`. What a directory cache keeps for
//! others, and when it asks, is in [`Cached`].
//!
//! # Not in this room
//! Compressed answers are not asked for; giving documents to others is the relay's.

mod cache;
mod client;
pub(crate) mod positions;
pub mod server_descriptor;
#[cfg(test)]
mod tests;

pub use cache::{Cached, CachedCertificate};
pub use client::{Came, Client, Renewal, Renewed, renew};
pub use positions::TorRelay;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use hoplite_crypto::onion::{
    RelayKeys,
    rsa::{PublicKey, sha1, sha256},
    time_period::SharedRandom,
};
use hoplite_overlay::Overlay;
use hoplite_wire::{
    Target,
    directory::{Descriptor, FAMILY, Key, Ports, Roles, is_word},
    tor::{Consensus, Flags, KeyCertificate, Microdescriptor, Router, Signature, TEXT},
};

use crate::{FetchError, Lifetime, Refused, fetch};

const CONSENSUS: &str = "/tor/status-vote/current/consensus-microdesc";
const CERTIFICATES: &str = "/tor/keys/all";
/// Microdescriptors of one request: C tor's own number, which its URLs have room for.
const BATCH: usize = 92;
/// Bytes of one answer with this many, and of certificates.
const ANSWER: usize = 1 << 20;

/// The public network as Tor's authorities see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// From when it holds, in seconds since 1970.
    pub valid_after: u64,
    /// When there should be another.
    pub fresh_until: u64,
    /// Until when it may be used.
    pub valid_until: u64,
    /// What all clients and relays should do: `cc_alg`, `cc_sendme_inc`, `sendme_emit_min_version` and so on.
    pub params: BTreeMap<String, i32>,
    /// The shared random values, by which onion services' descriptors are placed.
    pub shared_random: SharedRandom,
    /// How much of a relay's bandwidth counts in each position (`Wgg` and so on), in ten-thousandths, whatever `bwweightscale` says.
    pub weights: BTreeMap<String, i32>,
    /// Relays that are running and valid, and of which all is known.
    pub relays: Vec<Relay>,
    /// RSA identities of the others that are running and valid: those of which no description has come.
    pub undescribed: HashSet<[u8; 20]>,
}

/// A relay of Tor's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Identities and onion key. It has an RSA identity always.
    pub keys: RelayKeys,
    /// What the consensus says.
    pub router: Router,
    /// To which ports it connects, if to any.
    pub exit: Option<Ports>,
    /// RSA identities of its family, as it says.
    pub family: Vec<[u8; 20]>,
    /// Its proven families.
    pub family_ids: Vec<String>,
}

impl Network {
    /// Checks a consensus and takes the microdescriptors that it names, in whatever order.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn read(
        consensus: &str,
        certificates: &str,
        microdescriptors: &str,
        trust: &Trust,
        now: u64,
    ) -> Result<Self, Refused> {
        let consensus = check(consensus, certificates, trust, now)?;
        let found = Microdescriptor::parse_all(microdescriptors)?;
        let found = found.iter();
        let named = found.map(|one| (sha256(one.text.as_bytes()), Arc::new(Described::of(one))));
        Ok(Self::of(consensus, &named.collect()))
    }

    /// For how long its consensus holds.
    pub fn lifetime(&self) -> Lifetime {
        Lifetime {
            valid_after: self.valid_after,
            fresh_until: self.fresh_until,
            valid_until: self.valid_until,
        }
    }

    /// The relays of a consensus that are described.
    fn of(consensus: Consensus<'_>, described: &Descriptions) -> Self {
        let weights = positions::weights(&consensus);
        let mut undescribed = HashSet::new();
        let usable = consensus
            .routers
            .into_iter()
            .filter(|router| router.flags.has(Flags::RUNNING) && router.flags.has(Flags::VALID));
        let relays = usable.filter_map(|router| {
            let Some(known) = described.get(&router.digest) else {
                undescribed.insert(router.rsa_id);
                return None;
            };
            Relay::of(router, known)
        });
        let relays = relays.collect();
        Self {
            valid_after: consensus.valid_after,
            fresh_until: consensus.fresh_until,
            valid_until: consensus.valid_until,
            params: consensus.params,
            shared_random: SharedRandom {
                current: consensus.shared_random_current,
                previous: consensus.shared_random_previous,
            },
            weights,
            relays,
            undescribed,
        }
    }

    /// A parameter within its bounds, or what is meant where the consensus is silent.
    pub fn param(&self, name: &str, silent: i32, bounds: std::ops::RangeInclusive<i32>) -> i32 {
        let value = self.params.get(name).copied().unwrap_or(silent);
        value.clamp(*bounds.start(), *bounds.end())
    }

    /// The relays in the form that [`crate::path_selection`] chooses from.
    pub fn descriptors(&self) -> Vec<Descriptor> {
        let known = self.relays.iter();
        let known = known.map(|relay| (relay.keys.rsa_id, Key(relay.keys.ed25519)));
        let known: HashMap<_, _> = known.collect();
        let all = self.relays.iter();
        let mut all: Vec<_> = all
            .map(|relay| relay.descriptor(&known, self.valid_after))
            .collect();
        all.sort_by_key(|descriptor| descriptor.identity);
        all.dedup_by_key(|descriptor| descriptor.identity);
        all
    }
}

/// What a microdescriptor says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Described {
    onion: [u8; 32],
    ed25519: Option<[u8; 32]>,
    exit: Option<Ports>,
    family: Vec<[u8; 20]>,
    family_ids: Vec<String>,
}

/// By the hashes of their texts.
type Descriptions = HashMap<[u8; 32], Arc<Described>>;

impl Described {
    fn of(descriptor: &Microdescriptor<'_>) -> Self {
        Self {
            onion: descriptor.ntor,
            ed25519: descriptor.ed25519,
            exit: descriptor.exit.clone(),
            family: descriptor.family.clone(),
            family_ids: descriptor.family_ids.clone(),
        }
    }
}

impl Relay {
    fn of(router: Router, descriptor: &Described) -> Option<Self> {
        // "Clients MUST NOT use" an Ed25519 identity that the authorities do not agree on; without one a circuit cannot be extended by us.
        let agreed = !router.flags.has(Flags::NO_ED_CONSENSUS);
        let ed25519 = descriptor.ed25519.filter(|_| agreed)?;
        let exits = router.flags.has(Flags::EXIT) && !router.flags.has(Flags::BAD_EXIT);
        Some(Self {
            keys: RelayKeys {
                rsa_id: router.rsa_id,
                ed25519,
                onion: descriptor.onion,
            },
            exit: descriptor.exit.clone().filter(|_| exits),
            family: descriptor.family.clone(),
            family_ids: descriptor.family_ids.clone(),
            router,
        })
    }

    fn descriptor(&self, known: &HashMap<[u8; 20], Key>, published: u64) -> Descriptor {
        let family = self.family.iter().filter_map(|id| known.get(id)).copied();
        let mut family: Vec<_> = family.take(FAMILY).collect();
        family.sort();
        family.dedup();
        let mut operators = self
            .family_ids
            .iter()
            .map(|id| id.replace([':', '+', '/'], "_"));
        Descriptor {
            name: self.router.nickname.clone(),
            identity: Key(self.keys.ed25519),
            published,
            addresses: self.router.addresses.clone(),
            pin: None,
            onion: Some(self.keys.onion),
            roles: Roles {
                ingress: true,
                egress: self.exit.is_some(),
            },
            region: None,
            operator: operators.find(|operator| is_word(operator, 64)),
            family,
            bandwidth: self.router.bandwidth.saturating_mul(1000),
            exit: self.exit.clone(),
            tokens: None,
            hsdir: false,
            cache: None,
            protocols: self.router.protocols,
        }
    }
}

/// Whom a consensus must be signed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The v3 identities of the known authorities: SHA-1 of their identity keys. More than half must have signed.
    pub authorities: Vec<[u8; 20]>,
    /// How far this machine's clock may be off, in seconds.
    pub skew: u64,
}

impl Trust {
    /// More than half.
    pub fn needed(&self) -> usize {
        (self.authorities.len() / 2).saturating_add(1)
    }
}

/// Reads a consensus, and checks its signatures and its time (dir-spec: "a consensus is signed by a majority of the authorities that the client knows"). `certificates` are the authorities', as a directory hands them out;
/// those of strangers, and what expired, do not count.
///
/// # Errors
/// [`Refused`].
pub fn check<'a>(
    consensus: &'a str,
    certificates: &str,
    trust: &Trust,
    now: u64,
) -> Result<Consensus<'a>, Refused> {
    let consensus = check_signatures(consensus, certificates, trust, now)?;
    check_times(
        (consensus.valid_after, consensus.valid_until),
        trust.skew,
        now,
    )?;
    Ok(consensus)
}

/// The same without the consensus's own times. What comes has the signatures that were found good, one of each authority.
fn check_signatures<'a>(
    consensus: &'a str,
    certificates: &str,
    trust: &Trust,
    now: u64,
) -> Result<Consensus<'a>, Refused> {
    let mut consensus = Consensus::parse(consensus)?;
    let certificates = certified(certificates, trust, now)?;
    let hash = sha256(consensus.signed.as_bytes());
    let is_good = |signature: &Signature| {
        let is_theirs =
            |key: &&Certified<'_>| key.authority == signature.authority && key.id == signature.key;
        let mut keys = certificates.iter().filter(is_theirs);
        keys.any(|one| one.key.signed(&signature.signature, &hash))
    };
    let mut signers = HashSet::new();
    consensus.signatures.retain(|signature| {
        !signers.contains(&signature.authority)
            && is_good(signature)
            && signers.insert(signature.authority)
    });
    let good = signers.len();
    let needed = trust.needed();
    if good < needed {
        return Err(Refused::Forged { good, needed });
    }
    Ok(consensus)
}

fn check_times((after, until): (u64, u64), skew: u64, now: u64) -> Result<(), Refused> {
    if now > until.saturating_add(skew) {
        let ago = now.saturating_sub(until);
        return Err(Refused::Stale { ago });
    }
    if now < after.saturating_sub(skew) {
        let ahead = after.saturating_sub(now);
        return Err(Refused::Early { ahead });
    }
    Ok(())
}

/// The signing key of a known authority.
struct Certified<'a> {
    authority: [u8; 20],
    id: [u8; 20],
    key: PublicKey,
    expires: u64,
    /// The certificate.
    text: &'a str,
}

/// Of these certificates those that are known authorities' own, for now. Whoever answers can put others beside them, which say the same of somebody else's
/// key, or of the right one with a later end.
fn certified<'a>(
    certificates: &'a str,
    trust: &Trust,
    now: u64,
) -> Result<Vec<Certified<'a>>, Refused> {
    let all = KeyCertificate::parse_all(certificates)?;
    let known = all
        .iter()
        .filter(|one| trust.authorities.contains(&one.fingerprint));
    let certified = known.filter_map(|one| {
        let key = signing_key(one, now)?;
        Some(Certified {
            authority: one.fingerprint,
            id: key.id(),
            key,
            expires: one.expires,
            text: one.text,
        })
    });
    Ok(certified.collect())
}

/// The signing key, if the identity has certified it and the other way round, for now.
fn signing_key(certificate: &KeyCertificate<'_>, now: u64) -> Option<PublicKey> {
    let identity = PublicKey::authority(&certificate.identity)?;
    let signing = PublicKey::authority(&certificate.signing)?;
    let hash = sha1(certificate.signed.as_bytes());
    let right = identity.id() == certificate.fingerprint
        && now <= certificate.expires
        && identity.signed(&certificate.certification, &hash)
        && signing.signed(&certificate.cross, &identity.id());
    right.then_some(signing)
}

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum NoNetwork {
    /// It did not answer as it should.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// What it answered is not believed.
    #[error("Tor's consensus: {0}")]
    Refused(#[from] Refused),
    /// The check of what it answered did not come to its end.
    #[error("checking Tor's consensus broke off: please report this")]
    Unchecked,
}

/// Asks the directory at `source` for a consensus and all that belongs to it, over any overlay (its DirPort, or a circuit's BEGIN_DIR), each question
/// within `limit`; `now` is in seconds since 1970. What comes is checked, so whoever answers need not be trusted. dir-spec "Client operation",
/// "Standards compliance" (HTTP/1.0).
///
/// # Errors
/// [`NoNetwork`]. A microdescriptor that is missing only leaves its relay out.
pub async fn fetch_all(
    overlay: &dyn Overlay,
    source: &Target,
    trust: &Trust,
    now: u64,
    limit: Duration,
) -> Result<Network, NoNetwork> {
    let consensus = fetch(overlay, source, CONSENSUS, TEXT, limit).await?;
    let certificates = fetch(overlay, source, CERTIFICATES, ANSWER, limit).await?;
    // Nothing is asked for a consensus that is not believed.
    let digests: Vec<_> = check(&consensus, &certificates, trust, now)?
        .routers
        .iter()
        .map(|router| router.digest)
        .collect();
    let mut microdescriptors = String::new();
    for batch in digests.chunks(BATCH) {
        let path = Consensus::request(batch);
        let answer = fetch(overlay, source, &path, ANSWER, limit).await?;
        microdescriptors.push_str(&answer);
    }
    let network = Network::read(&consensus, &certificates, &microdescriptors, trust, now)?;
    Ok(network)
}
