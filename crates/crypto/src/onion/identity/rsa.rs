//! The RSA identity that Tor's relays have beside the Ed25519 one: checked where a peer shows it, carried where an operator gives us one.
//! tor-spec, "CERTS cells" (types 2 and 7); cert-spec, "RSA->Ed25519 cross-certificate".
//!
//! No RSA key is made here and nothing is signed with one: that would need arithmetic in constant time. An operator makes both certificates once: `openssl genrsa 1024`, `openssl req -x509 -sha256`, and `openssl pkeyutl -sign` over the SHA-256 of prefix, key
//! and hours (without `-pkeyopt digest`), which is how the vectors of the tests were made.

use std::fmt;

use hoplite_wire::cell::{
    Malformed,
    cert::{CROSS_PREFIX, RsaCrossCert},
    handshake::{CertType, Certs},
};
use x509_parser::{
    certificate::X509Certificate, parse_x509_certificate, public_key::PublicKey as X509Key,
    time::ASN1Time,
};

use super::Why;
use crate::onion::rsa::{PublicKey, sha1, sha256};

/// Bits of the modulus.
const MODULUS: u64 = 1024;
/// What stands before a SHA-256 in a signature of an X.509 certificate (RFC 8017 §9.2).
const SHA256_PREFIX: &[u8] = &[
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05,
    0x00, 0x04, 0x20,
];
/// The same of a SHA-1.
const SHA1_PREFIX: &[u8] = &[
    0x30, 0x21, 0x30, 0x09, 0x06, 0x05, 0x2b, 0x0e, 0x03, 0x02, 0x1a, 0x05, 0x00, 0x04, 0x14,
];

/// How an RSA identity is named. Both are public.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rsa {
    /// SHA-1 of the key: Tor's identity digest, or fingerprint.
    pub id: [u8; 20],
    /// SHA-256 of the key, as AUTHENTICATE has it.
    pub sha256: [u8; 32],
}

/// Certificates that were checked.
#[derive(Clone)]
pub(super) struct Certified {
    certificate: Vec<u8>,
    cross: Vec<u8>,
    id: Rsa,
}

impl Certified {
    /// A peer's, if it sent any: one without the other is an error.
    pub(super) fn read(
        certs: &Certs<'_>,
        ed25519: &[u8; 32],
        now: u64,
    ) -> Result<Option<Rsa>, Why> {
        let (identity, cross) = (CertType::RSA_IDENTITY, CertType::RSA_CROSS);
        match (certs.get(identity), certs.get(cross)) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Why::Missing(identity)),
            (Some(_), None) => Err(Why::Missing(cross)),
            (Some(one), Some(other)) => check(one, other, ed25519, now).map(Some),
        }
    }

    /// One's own.
    pub(super) fn check(
        certificate: &[u8],
        cross: &[u8],
        ed25519: &[u8; 32],
        now: u64,
    ) -> Result<Self, Why> {
        let id = check(certificate, cross, ed25519, now)?;
        let (certificate, cross) = (certificate.to_vec(), cross.to_vec());
        Ok(Self {
            certificate,
            cross,
            id,
        })
    }

    pub(super) fn id(&self) -> Rsa {
        self.id
    }

    pub(super) fn certs(&self) -> [(CertType, Vec<u8>); 2] {
        [
            (CertType::RSA_IDENTITY, self.certificate.clone()),
            (CertType::RSA_CROSS, self.cross.clone()),
        ]
    }
}

fn check(certificate: &[u8], cross: &[u8], ed25519: &[u8; 32], now: u64) -> Result<Rsa, Why> {
    let (rest, certificate) = parse_x509_certificate(certificate).map_err(|_| unreadable())?;
    if !rest.is_empty() {
        return Err(unreadable());
    }
    let key = key_of(&certificate)?;
    check_self_signed(&certificate, &key, now)?;
    check_cross(cross, &key, ed25519, now)?;
    let octets = &certificate.public_key().subject_public_key.data;
    Ok(Rsa {
        id: key.id(),
        sha256: sha256(octets),
    })
}

fn unreadable() -> Why {
    Why::Malformed(Malformed("RSA identity certificate"))
}

/// "The RSA ID certificate is correctly self-signed", and of today.
fn check_self_signed(
    certificate: &X509Certificate<'_>,
    key: &PublicKey,
    now: u64,
) -> Result<(), Why> {
    let sent_as = CertType::RSA_IDENTITY;
    let signed = certificate.tbs_certificate.as_ref();
    let signature = &certificate.signature_value.data;
    let sha256 = [SHA256_PREFIX, &sha256(signed)].concat();
    let sha1 = [SHA1_PREFIX, &sha1(signed)].concat();
    // RFC 5280 §4.1.1.2: the algorithm "MUST contain the same algorithm identifier as the signature field" that is signed.
    let same = certificate.signature_algorithm == certificate.tbs_certificate.signature;
    if !same || (!key.signed(signature, &sha256) && !key.signed(signature, &sha1)) {
        return Err(Why::Forged(sent_as));
    }
    let now = i64::try_from(now).map_err(|_| Why::Expired(sent_as))?;
    let now = ASN1Time::from_timestamp(now).map_err(|_| Why::Expired(sent_as))?;
    let valid = certificate.validity().is_valid_at(now);
    valid.then_some(()).ok_or(Why::Expired(sent_as))
}

/// "The RSA->Ed25519 cross-certificate certifies the Ed25519 identity, and is signed with the RSA identity".
fn check_cross(cross: &[u8], key: &PublicKey, ed25519: &[u8; 32], now: u64) -> Result<(), Why> {
    let sent_as = CertType::RSA_CROSS;
    let cross = RsaCrossCert::parse(cross)?;
    let signed = sha256(&[CROSS_PREFIX, cross.signed].concat());
    if !key.signed(cross.signature, &signed) {
        return Err(Why::Forged(sent_as));
    }
    if cross.cert.key != *ed25519 {
        return Err(Why::OtherIdentity);
    }
    if cross.cert.expires() < now {
        return Err(Why::Expired(sent_as));
    }
    Ok(())
}

/// "The certified key in the ID certificate is a 1024-bit RSA key".
fn key_of(certificate: &X509Certificate<'_>) -> Result<PublicKey, Why> {
    let wrong = Why::WrongUse(CertType::RSA_IDENTITY);
    let parsed = certificate.public_key().parsed();
    let parsed = parsed.map_err(|_| unreadable())?;
    let key = &certificate.public_key().subject_public_key.data;
    let key = PublicKey::read(key, MODULUS..=MODULUS);
    match parsed {
        X509Key::RSA(_) => key.ok_or(wrong),
        _ => Err(wrong),
    }
}

impl fmt::Debug for Rsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rsa(hidden)")
    }
}
