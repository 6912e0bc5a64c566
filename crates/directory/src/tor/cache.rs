//! What a directory cache keeps for others beside what a client has ([`Client::caching`]), when it asks for the next consensus, and what it gives:
//! [`Cached`]. dir-spec "Directory cache operation", "Consensus diffs".
//!
//! All that is kept is bounded: [`CONSENSUSES`] earlier ones, and microdescriptors that a consensus of the last day has named.

use std::collections::{HashMap, HashSet};

use hoplite_crypto::onion::service_keys::sha3_256;
use hoplite_wire::tor::{KeyCertificate, consensus_diff::ConsensusDiff};

use super::{
    Descriptions, Trust, check_signatures,
    client::{Client, signing_id},
};
use crate::{Store, StoreError};

/// Earlier consensuses to which the difference is told: of a day, where there is one each hour.
pub(super) const CONSENSUSES: usize = 24;
/// For how many seconds a microdescriptor is kept that no consensus names any more: clients use older ones.
const MICRODESCRIPTORS: u64 = 24 * 3600;
/// Where the signed part of a consensus ends.
const SIGNED: &str = "\ndirectory-signature ";

/// What is kept beside what a client needs: nothing, unless it is a cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Keeps {
    /// Earlier consensuses.
    pub(super) consensuses: usize,
    /// Seconds for microdescriptors.
    microdescriptors: u64,
    /// Until when microdescriptors are kept, by the time of the last consensus that has named them.
    last_named: HashMap<[u8; 32], u64>,
}

impl Keeps {
    /// Which microdescriptors are kept, when a consensus of this time names these.
    pub(super) fn named(
        &mut self,
        described: &Descriptions,
        valid_after: u64,
    ) -> HashSet<[u8; 32]> {
        if self.microdescriptors == 0 {
            return described.keys().copied().collect();
        }
        let oldest = valid_after.saturating_sub(self.microdescriptors);
        self.last_named.retain(|_, last| *last > oldest);
        let named = described.keys().map(|digest| (*digest, valid_after));
        self.last_named.extend(named);
        self.last_named.keys().copied().collect()
    }
}

/// A certificate of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedCertificate {
    /// The v3 identity.
    pub authority: [u8; 20],
    /// SHA-1 of the signing key.
    pub key: [u8; 20],
    /// All of it.
    pub text: String,
}

/// What a cache gives: its consensus, and all that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// All of the consensus, with the signatures of known authorities alone.
    pub consensus: String,
    /// From when it holds, in seconds since 1970.
    pub valid_after: u64,
    /// Until when it may be used.
    pub valid_until: u64,
    /// The v3 identities of who has signed it.
    pub signers: Vec<[u8; 20]>,
    /// What makes it of earlier ones, by the SHA3-256 of what is signed of these.
    pub differences: Vec<([u8; 32], String)>,
    /// Of those who have signed it.
    pub certificates: Vec<CachedCertificate>,
    /// By their SHA-256.
    pub microdescriptors: Vec<([u8; 32], String)>,
}

impl Client {
    /// One that keeps for others what was there before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn caching(trust: Trust, mut store: Store, now: u64) -> Result<Self, StoreError> {
        let kept = store.tor_documents()?.unwrap_or_default();
        let mut client = Self::new(trust, store, now)?;
        let valid_after = client.valid_after();
        let digests = kept.microdescriptors.iter().map(|(digest, _)| *digest);
        client.keeps = Keeps {
            consensuses: CONSENSUSES,
            microdescriptors: MICRODESCRIPTORS,
            last_named: digests.map(|digest| (digest, valid_after)).collect(),
        };
        Ok(client)
    }

    /// When a cache asks for another ([`crate::Lifetime::next_consensus_of_cache`]). `random` gives a number below its argument.
    pub fn next_of_cache(&self, now: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        let Ok(Some(network)) = self.network(now) else {
            return now;
        };
        network.lifetime().next_consensus_of_cache(random)
    }

    /// From when the newest consensus holds, in seconds since 1970; 0 without one.
    pub fn valid_after(&self) -> u64 {
        let newest = self.newest.as_ref();
        newest.map_or(0, |newest| newest.network.valid_after)
    }

    /// How often there is another consensus, in seconds, as the newest says; 0 without one.
    pub fn interval(&self) -> u64 {
        let newest = self.newest.as_ref().map(|newest| &newest.network);
        newest.map_or(0, |network| {
            network.fresh_until.saturating_sub(network.valid_after)
        })
    }

    /// All that is to be given. It takes a second where there are thousands of relays.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn cached(&mut self) -> Result<Option<Cached>, StoreError> {
        let kept = self.store.tor_documents()?.unwrap_or_default();
        // What the file has of strangers is not given.
        let at = self.valid_after();
        let parsed = check_signatures(&kept.consensus, &self.certificates, &self.trust, at);
        let Some(parsed) = parsed.ok().filter(|_| self.newest.is_some()) else {
            return Ok(None);
        };
        let consensus = parsed.to_text();
        let signers = parsed.signatures.iter().map(|one| one.authority).collect();
        let (valid_after, valid_until) = (parsed.valid_after, parsed.valid_until);
        let differences = self.differences(&consensus)?;
        let found = KeyCertificate::parse_all(&self.certificates).unwrap_or_default();
        let certificates = found.iter().filter_map(|one| {
            Some(CachedCertificate {
                authority: one.fingerprint,
                key: signing_id(one)?,
                text: one.to_text(),
            })
        });
        Ok(Some(Cached {
            valid_after,
            valid_until,
            signers,
            differences,
            certificates: certificates.collect(),
            microdescriptors: kept.microdescriptors,
            consensus,
        }))
    }

    /// One earlier consensus after the other: they are large.
    fn differences(&self, consensus: &str) -> Result<Vec<([u8; 32], String)>, StoreError> {
        let to = sha3_256(&[consensus.as_bytes()]);
        let mut found = Vec::new();
        for number in self.store.tor_earlier()? {
            let Some(earlier) = self.store.tor_earlier_consensus(number)? else {
                continue;
            };
            let Some(from) = diff_hash(&earlier) else {
                continue;
            };
            let made = ConsensusDiff::make((&from, &earlier), (&to, consensus));
            let shorter = made.filter(|made| made.len() < consensus.len());
            found.extend(shorter.map(|made| (from, made)));
        }
        Ok(found)
    }
}

/// SHA3-256 of what is signed: "through the space after directory-signature".
fn diff_hash(consensus: &str) -> Option<[u8; 32]> {
    let end = consensus.find(SIGNED)?.saturating_add(SIGNED.len());
    let signed = consensus.get(..end)?;
    Some(sha3_256(&[signed.as_bytes()]))
}

#[cfg(test)]
mod tests;
