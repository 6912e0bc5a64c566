//! Who a relay is: an Ed25519 identity that signs a signing key for a month, which signs what one channel needs.
//! `link::channel` sends the certificates and checks the peer's with [`verify_responder`] and [`verify_initiator`]; `directory` has descriptors signed.
//! tor-spec, "CERTS cells", "AUTHENTICATE cells"; cert-spec. Times are seconds since 1970, given by the caller.
//!
//! Tor's relays have an RSA identity of 1,024 bits beside it. It proves nothing that the Ed25519 identity does not, and it is not made here (see
//! [`RelayIdentity::with_rsa`]); C tor accepts no relay without.

mod authenticate;
mod rsa;
mod verify;

use std::{fmt, sync::Arc};

pub use authenticate::{EXPORTER_LABEL, Proof, check_authentication};
use hoplite_wire::cell::{
    cert::{CertKind, Ed25519Cert, KeyKind},
    handshake::CertType,
};
use ring::digest::{SHA256, digest};
pub use rsa::Rsa;
pub use verify::{Initiator, Why, verify_initiator, verify_responder};
use zeroize::Zeroizing;

use super::ed25519::{NoKey, SigningKey};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// How long a signing key is certified; as in Tor.
const SIGNING: u64 = 30 * DAY;
/// How long a TLS certificate and a key for authentication are certified; as in Tor.
const LINK: u64 = 2 * DAY;

/// Certificates as a CERTS cell has them.
pub type Certificates = Vec<(CertType, Vec<u8>)>;

/// A relay that proved who it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerId {
    /// Its Ed25519 identity.
    pub ed25519: [u8; 32],
    /// Its RSA identity, if it has one that vouches for the other.
    pub rsa: Option<Rsa>,
}

impl PeerId {
    /// The 20 octets that Tor calls its identity digest, or [`stand_in`].
    pub fn rsa_id(&self) -> [u8; 20] {
        self.rsa
            .map_or_else(|| stand_in(&self.ed25519), |rsa| rsa.id)
    }

    /// What the TLS exporter's context is where this relay is the initiator. tor-spec: "the initiator's Ed25519 identity key". C tor takes the SHA-256
    /// of the RSA identity instead (CID), and refuses all else; so do we where there is one.
    pub fn exporter_context(&self) -> [u8; 32] {
        self.rsa.map_or(self.ed25519, |rsa| rsa.sha256)
    }

    /// What AUTHENTICATE says of its RSA identity: 32 zero octets if it has none.
    fn rsa_sha256(&self) -> [u8; 32] {
        self.rsa.map_or([0; 32], |rsa| rsa.sha256)
    }
}

/// What stands for the identity digest of a relay without RSA identity, where the protocol has a field for it: no key has this digest.
pub fn stand_in(ed25519: &[u8; 32]) -> [u8; 20] {
    let text = [&b"hoplite: no RSA identity"[..], ed25519].concat();
    let hash = digest(&SHA256, &text);
    let first = hash.as_ref().first_chunk();
    first.copied().unwrap_or_default()
}

/// A relay's own identity. It does not change: [`RelayIdentity::renewed`] makes another.
#[derive(Clone)]
pub struct RelayIdentity {
    master: Arc<SigningKey>,
    signing: Arc<SigningKey>,
    /// Type 4.
    certificate: Vec<u8>,
    certified_until: u64,
    /// Signs AUTHENTICATE; certified by type 6.
    authentication: Arc<SigningKey>,
    rsa: Option<rsa::Certified>,
}

impl RelayIdentity {
    /// A secret that nobody has, for [`RelayIdentity::from_secret`].
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn fresh_secret() -> Result<Zeroizing<[u8; 32]>, NoKey> {
        SigningKey::fresh_secret()
    }

    /// The identity of a stored secret, with a new signing key.
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn from_secret(secret: &[u8; 32], now: u64) -> Result<Self, NoKey> {
        Self::new(Arc::new(SigningKey::from_secret(secret)?), None, now)
    }

    /// The same identity with a new signing key.
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn renewed(&self, now: u64) -> Result<Self, NoKey> {
        Self::new(Arc::clone(&self.master), self.rsa.clone(), now)
    }

    /// Whether half of the signing key's time is over.
    pub fn is_due(&self, now: u64) -> bool {
        now.saturating_add(SIGNING / 2) >= self.certified_until
    }

    /// The same identity with an RSA identity, which C tor asks for: `certificate` is X.509, signed by itself (type 2), `cross` says that it
    /// vouches for the Ed25519 identity (type 7). Both are made elsewhere, with OpenSSL for one: the RSA key is not needed online.
    ///
    /// # Errors
    /// What a peer would find wrong with them.
    pub fn with_rsa(&self, certificate: &[u8], cross: &[u8], now: u64) -> Result<Self, Why> {
        let rsa = rsa::Certified::check(certificate, cross, self.master.public(), now)?;
        let rsa = Some(rsa);
        Ok(Self {
            rsa,
            ..self.clone()
        })
    }

    fn new(master: Arc<SigningKey>, rsa: Option<rsa::Certified>, now: u64) -> Result<Self, NoKey> {
        let signing = Arc::new(SigningKey::generate()?);
        let certificate = Ed25519Cert {
            kind: CertKind::SIGNING,
            expires_hours: hours(now, SIGNING),
            key_kind: KeyKind::ED25519,
            key: *signing.public(),
            signed_with: Some(*master.public()),
        };
        Ok(Self {
            certificate: sign(&certificate, &master)?,
            certified_until: certificate.expires(),
            authentication: Arc::new(SigningKey::generate()?),
            master,
            signing,
            rsa,
        })
    }

    /// Who this is.
    pub fn peer(&self) -> PeerId {
        PeerId {
            ed25519: *self.master.public(),
            rsa: self.rsa.as_ref().map(rsa::Certified::id),
        }
    }

    /// What the responder of a channel sends: it speaks TLS with the certificate that has this SHA-256.
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn responder_certs(&self, tls_sha256: &[u8; 32], now: u64) -> Result<Certificates, NoKey> {
        let link = self.certify(CertKind::LINK, KeyKind::SHA256_OF_X509, tls_sha256, now)?;
        Ok(self.certs((CertType::ED25519_LINK, link)))
    }

    /// What the initiator of a channel sends before [`RelayIdentity::authenticate`].
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn initiator_certs(&self, now: u64) -> Result<Certificates, NoKey> {
        let key = self.authentication.public();
        let key = self.certify(CertKind::AUTHENTICATE, KeyKind::ED25519, key, now)?;
        Ok(self.certs((CertType::ED25519_AUTHENTICATE, key)))
    }

    /// Signs with the identity itself: a document that says by its first octets what it is.
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn sign(&self, document: &[u8]) -> Result<[u8; 64], NoKey> {
        self.master.sign(document)
    }

    fn certify(
        &self,
        kind: CertKind,
        key_kind: KeyKind,
        key: &[u8; 32],
        now: u64,
    ) -> Result<Vec<u8>, NoKey> {
        let certificate = Ed25519Cert {
            kind,
            expires_hours: hours(now, LINK),
            key_kind,
            key: *key,
            signed_with: None,
        };
        sign(&certificate, &self.signing)
    }

    /// In the order of their types.
    fn certs(&self, last: (CertType, Vec<u8>)) -> Certificates {
        let mut certs = vec![(CertType::ED25519_SIGNING, self.certificate.clone()), last];
        let rsa = self.rsa.iter().flat_map(rsa::Certified::certs);
        certs.extend(rsa);
        certs.sort_by_key(|(kind, _)| *kind);
        certs
    }
}

/// The hour after `now` and `lifetime`, as certificates count.
fn hours(now: u64, lifetime: u64) -> u32 {
    let end = now.saturating_add(lifetime).div_ceil(HOUR);
    u32::try_from(end).unwrap_or(u32::MAX)
}

fn sign(certificate: &Ed25519Cert, key: &SigningKey) -> Result<Vec<u8>, NoKey> {
    let mut octets = Vec::new();
    certificate.write(&mut octets);
    let signature = key.sign(&octets)?;
    octets.extend_from_slice(&signature);
    Ok(octets)
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerId(hidden)")
    }
}

impl fmt::Debug for RelayIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayIdentity(hidden)")
    }
}

#[cfg(test)]
mod tests;
