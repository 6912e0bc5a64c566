//! Whether a peer's certificates say what it claims: from the identity to the signing key to what this channel has.
//! tor-spec, "CERTS cells": "the initiator MUST check the following", "the responder MUST check the following".
//!
//! We do not ask for the RSA certificates (types 2 and 7), because relays of ours have none; where they are sent, they are checked.

use std::fmt;

use hoplite_wire::cell::{
    Malformed,
    cert::{CertKind, Ed25519Cert, KeyKind, Signed},
    handshake::{CertType, Certs},
};
use subtle::ConstantTimeEq;

use super::{PeerId, rsa};
use crate::onion::ed25519;

/// Why a peer is not who it should be. The channel is closed; none of it is told to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// A certificate is not there.
    #[error(
        "the relay has sent no certificate of type {0:?}: it does not speak this version of the protocol"
    )]
    Missing(CertType),
    /// Something cannot be read.
    #[error("the relay's proof of identity cannot be read: {0}")]
    Malformed(#[from] Malformed),
    /// A certificate is for something else than the type that it was sent as.
    #[error("the relay's certificate of type {0:?} is for another use")]
    WrongUse(CertType),
    /// A signature is wrong.
    #[error("the relay's certificate of type {0:?} is not signed by whom it should be")]
    Forged(CertType),
    /// A certificate's time is over, by our clock.
    #[error(
        "the relay's certificate of type {0:?} has expired: check this machine's clock, or tell the relay's operator"
    )]
    Expired(CertType),
    /// The certificates are for another TLS certificate: somebody may be between.
    #[error("the relay's certificates are not for this connection: somebody may be between")]
    OtherCertificate,
    /// It is another relay than was expected.
    #[error("another relay answers than was expected: the directory may be old")]
    OtherIdentity,
    /// AUTHENTICATE is about another connection.
    #[error("the relay's authentication is not for this connection")]
    OtherConnection,
    /// AUTHENTICATE is signed by another key.
    #[error("the relay's authentication is not signed by the key that it showed")]
    NotAuthentic,
}

/// An initiator that showed certificates. It is known only after [`check_authentication`](super::check_authentication).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Initiator {
    /// Who it says that it is.
    pub peer: PeerId,
    /// The key that has to sign its AUTHENTICATE.
    pub key: [u8; 32],
}

/// The responder of a channel whose TLS certificate has this SHA-256. `expected` is its Ed25519 identity, if the caller knows whom it wants.
///
/// # Errors
/// See [`Why`].
pub fn verify_responder(
    certs: &Certs<'_>,
    tls_sha256: &[u8; 32],
    expected: Option<&[u8; 32]>,
    now: u64,
) -> Result<PeerId, Why> {
    let (peer, link) = verify(certs, CertType::ED25519_LINK, CertKind::LINK, now)?;
    // "The certified key in the Signing->Link certificate matches the SHA256 digest of the certificate that was used".
    if !bool::from(link.ct_eq(tls_sha256)) {
        return Err(Why::OtherCertificate);
    }
    if expected.is_some_and(|expected| !bool::from(expected.ct_eq(&peer.ed25519))) {
        return Err(Why::OtherIdentity);
    }
    Ok(peer)
}

/// The initiator of a channel, as far as certificates tell: "checking these conditions is NOT sufficient".
///
/// # Errors
/// See [`Why`].
pub fn verify_initiator(certs: &Certs<'_>, now: u64) -> Result<Initiator, Why> {
    let kind = CertType::ED25519_AUTHENTICATE;
    let (peer, key) = verify(certs, kind, CertKind::AUTHENTICATE, now)?;
    Ok(Initiator { peer, key })
}

/// Who it is, and what the last certificate is about.
fn verify(
    certs: &Certs<'_>,
    last: CertType,
    kind: CertKind,
    now: u64,
) -> Result<(PeerId, [u8; 32]), Why> {
    let first = CertType::ED25519_SIGNING;
    let signing = read(certs, first, CertKind::SIGNING)?;
    let ed25519 = signing.cert.signed_with.ok_or(Why::Forged(first))?;
    check(&signing, first, &ed25519, now)?;
    let leaf = read(certs, last, kind)?;
    check(&leaf, last, &signing.cert.key, now)?;
    let rsa = rsa::Certified::read(certs, &ed25519, now)?;
    Ok((PeerId { ed25519, rsa }, leaf.cert.key))
}

fn read<'a>(
    certs: &Certs<'a>,
    sent_as: CertType,
    kind: CertKind,
) -> Result<Signed<'a, Ed25519Cert>, Why> {
    let octets = certs.get(sent_as).ok_or(Why::Missing(sent_as))?;
    let signed = Ed25519Cert::parse(octets)?;
    // "Up till 0.4.5.1-alpha, all versions of Tor have incorrectly used 01 for all types of certified key."
    let key_kind = signed.cert.key_kind;
    let fits = key_kind == KeyKind::ED25519
        || (kind == CertKind::LINK && key_kind == KeyKind::SHA256_OF_X509);
    let right = signed.cert.kind == kind && fits;
    right.then_some(signed).ok_or(Why::WrongUse(sent_as))
}

fn check(
    signed: &Signed<'_, Ed25519Cert>,
    sent_as: CertType,
    by: &[u8; 32],
    now: u64,
) -> Result<(), Why> {
    // "When this extension is present, it MUST match the key used to sign the certificate."
    let named = signed.cert.signed_with.is_none_or(|named| named == *by);
    if !named || !ed25519::verify(by, signed.signed, signed.signature) {
        return Err(Why::Forged(sent_as));
    }
    if signed.cert.expires() < now {
        return Err(Why::Expired(sent_as));
    }
    Ok(())
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Initiator(hidden)")
    }
}
