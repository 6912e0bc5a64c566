//! Whether a consensus may be believed: who has signed it, and for when it is. Pure.
//! dir-spec: "a consensus is signed by a majority of the authorities that the client knows"; their keys by [`KeyCertificate`]s.

use hoplite_crypto::onion::rsa::{PublicKey, sha1, sha256};
use hoplite_wire::tor::{Consensus, KeyCertificate, Signature};

use crate::Refused;

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

/// Reads a consensus, and checks its signatures and its time. `certificates` are the authorities', as a directory hands them out;
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
    let consensus = Consensus::parse(consensus)?;
    let certificates = KeyCertificate::parse_all(certificates)?;
    let hash = sha256(consensus.signed.as_bytes());
    let signed = |authority: &&[u8; 20]| {
        let mut theirs = consensus.signatures.iter();
        theirs.any(|signature| is_signed(authority, signature, &hash, &certificates, now))
    };
    let mut known = trust.authorities.clone();
    known.sort_unstable();
    known.dedup();
    let good = known.iter().filter(signed).count();
    let needed = trust.needed();
    if good < needed {
        return Err(Refused::Forged { good, needed });
    }
    check_times(&consensus, trust.skew, now)?;
    Ok(consensus)
}

fn check_times(consensus: &Consensus<'_>, skew: u64, now: u64) -> Result<(), Refused> {
    let (after, until) = (consensus.valid_after, consensus.valid_until);
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

fn is_signed(
    authority: &[u8; 20],
    signature: &Signature,
    hash: &[u8; 32],
    certificates: &[KeyCertificate<'_>],
    now: u64,
) -> bool {
    let is_named = |key: &PublicKey| key.id() == signature.key;
    let theirs = certificates
        .iter()
        .filter(|one| one.fingerprint == *authority && signature.authority == *authority);
    let mut keys = theirs.filter_map(|certificate| signing_key(certificate, now));
    keys.any(|key| is_named(&key) && key.signed(&signature.signature, hash))
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
