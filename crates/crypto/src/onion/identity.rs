//! Who a relay is: an Ed25519 identity that signs a signing key for a month, which signs what one channel needs.
//! A peer's certificates are checked by [`verify_responder`] and [`verify_initiator`].
//! tor-spec, "CERTS cells", "AUTHENTICATE cells"; cert-spec. Times are seconds since 1970, given by the caller.
//!
//! Tor's relays have an RSA identity of 1,024 bits beside it ([`RelayIdentity::with_rsa_key`]). It proves nothing that the Ed25519 identity does not;
//! C tor accepts no relay without.

use std::{fmt, sync::Arc, time::Duration};

use hoplite_wire::cell::{
    Malformed,
    cert::{CROSS_PREFIX, CertKind, Ed25519Cert, KeyKind, RsaCrossCert, Signed},
    handshake::{CertType, Certs, Ed25519Authentication},
};
use rcgen::{CertificateParams, DistinguishedName, DnType, PKCS_RSA_SHA256};
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use subtle::{Choice, ConstantTimeEq};
use x509_parser::{
    certificate::X509Certificate, parse_x509_certificate, public_key::PublicKey as X509Key,
    time::ASN1Time,
};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::{
    offline::CertifiedSigningKey,
    rsa::{PublicKey, SecretKey, sha1, sha256},
};
use crate::signing::{SigningError, SigningKey, is_signed};

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
    /// The 20 bytes that Tor calls its identity digest, or [`stand_in`].
    pub fn rsa_id(&self) -> [u8; 20] {
        self.rsa
            .map_or_else(|| stand_in(&self.ed25519), |rsa| rsa.id)
    }

    /// What the TLS exporter's context is where this relay is the initiator. tor-spec: "the initiator's Ed25519 identity key". C tor takes the SHA-256
    /// of the RSA identity instead (CID), and refuses all else; so do we where there is one.
    pub fn exporter_context(&self) -> [u8; 32] {
        self.rsa.map_or(self.ed25519, |rsa| rsa.sha256)
    }

    /// What AUTHENTICATE says of its RSA identity: 32 zero bytes if it has none.
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
    master: Master,
    signing: Arc<SigningKey>,
    /// Type 4.
    certificate: Vec<u8>,
    /// When it is to be made again.
    due: u64,
    /// Signs AUTHENTICATE; certified by type 6.
    authentication: Arc<SigningKey>,
    rsa: Option<Certified>,
}

/// The identity's key.
#[derive(Clone)]
enum Master {
    Here(Arc<SigningKey>),
    /// Its public half: the secret is where signing keys are certified.
    Elsewhere([u8; 32]),
}

impl Master {
    fn public(&self) -> [u8; 32] {
        match self {
            Self::Here(key) => key.public(),
            Self::Elsewhere(public) => *public,
        }
    }
}

impl RelayIdentity {
    /// A secret that nobody has, for [`RelayIdentity::from_secret`].
    ///
    /// # Errors
    /// See [`SigningError`].
    pub fn fresh_secret() -> Result<Zeroizing<[u8; 32]>, SigningError> {
        SigningKey::fresh_seed()
    }

    /// The identity of a stored secret, with a new signing key.
    ///
    /// # Errors
    /// See [`SigningError`].
    pub fn from_secret(secret: &[u8; 32], now: u64) -> Result<Self, SigningError> {
        Self::new(
            Arc::new(SigningKey::from_seed(Zeroizing::new(*secret))?),
            None,
            now,
        )
    }

    /// The identity whose secret is elsewhere, with the signing key that it has certified.
    ///
    /// # Errors
    /// [`Why::Expired`]; [`Why::Forged`]: never, in fact.
    pub fn offline(signing: &CertifiedSigningKey, now: u64) -> Result<Self, Why> {
        let kind = CertType::ED25519_SIGNING;
        if signing.expires() < now {
            return Err(Why::Expired(kind));
        }
        let keys = (signing.key(), SigningKey::generate());
        let (Ok(key), Ok(authentication)) = keys else {
            return Err(Why::Forged(kind));
        };
        Ok(Self {
            master: Master::Elsewhere(*signing.identity()),
            signing: Arc::new(key),
            certificate: signing.certificate().to_vec(),
            due: now.saturating_add(SIGNING / 2),
            authentication: Arc::new(authentication),
            rsa: None,
        })
    }

    /// The same identity with a new signing key; one whose secret is elsewhere keeps the key that it has.
    ///
    /// # Errors
    /// See [`SigningError`].
    pub fn renewed(&self, now: u64) -> Result<Self, SigningError> {
        let renewed = match &self.master {
            Master::Here(master) => Self::new(Arc::clone(master), self.rsa.clone(), now)?,
            Master::Elsewhere(_) => Self {
                due: now.saturating_add(SIGNING / 2),
                ..self.clone()
            },
        };
        match self.rsa.as_ref().and_then(|rsa| rsa.key.clone()) {
            Some(key) => renewed.with_rsa_key(key, now),
            None => Ok(renewed),
        }
    }

    /// Whether half of the time is over for which it is certified here.
    pub fn is_due(&self, now: u64) -> bool {
        now >= self.due
    }

    /// The same identity with the RSA identity of this key, which C tor asks for. Its certificates are made here, and again by
    /// [`RelayIdentity::renewed`].
    ///
    /// # Errors
    /// See [`SigningError`].
    pub fn with_rsa_key(&self, key: Arc<SecretKey>, now: u64) -> Result<Self, SigningError> {
        let rsa = Certified::issue(key, self.master.public(), now)?;
        Ok(Self {
            rsa: Some(rsa),
            ..self.clone()
        })
    }

    /// The same identity with an RSA identity whose key is elsewhere: `certificate` is X.509, signed by itself (type 2), `cross` says that it
    /// vouches for the Ed25519 identity (type 7).
    ///
    /// # Errors
    /// What a peer would find wrong with them.
    pub fn with_rsa(&self, certificate: &[u8], cross: &[u8], now: u64) -> Result<Self, Why> {
        let rsa = Certified::check(certificate, cross, &self.master.public(), now)?;
        let rsa = Some(rsa);
        Ok(Self {
            rsa,
            ..self.clone()
        })
    }

    fn new(
        master: Arc<SigningKey>,
        rsa: Option<Certified>,
        now: u64,
    ) -> Result<Self, SigningError> {
        let signing = Arc::new(SigningKey::generate()?);
        let certificate = Ed25519Cert {
            kind: CertKind::SIGNING,
            expires_hours: hours(now, SIGNING),
            key_kind: KeyKind::ED25519,
            key: signing.public(),
            signed_with: Some(master.public()),
        };
        Ok(Self {
            certificate: sign(&certificate, &master),
            due: certificate.expires().saturating_sub(SIGNING / 2),
            authentication: Arc::new(SigningKey::generate()?),
            master: Master::Here(master),
            signing,
            rsa,
        })
    }

    /// Who this is.
    pub fn peer(&self) -> PeerId {
        PeerId {
            ed25519: self.master.public(),
            rsa: self.rsa.as_ref().map(Certified::id),
        }
    }

    /// What the responder of a channel sends: it speaks TLS with the certificate that has this SHA-256.
    pub fn responder_certs(&self, tls_sha256: &[u8; 32], now: u64) -> Certificates {
        let link = self.certify(CertKind::LINK, KeyKind::SHA256_OF_X509, tls_sha256, now);
        self.certs((CertType::ED25519_LINK, link))
    }

    /// What the initiator of a channel sends before [`RelayIdentity::authenticate`].
    pub fn initiator_certs(&self, now: u64) -> Certificates {
        let key = self.authentication.public();
        let key = self.certify(CertKind::AUTHENTICATE, KeyKind::ED25519, &key, now);
        self.certs((CertType::ED25519_AUTHENTICATE, key))
    }

    /// The signing key, certified by the identity (type 4). It signs what [`RelayIdentity::sign_for_directory`] gives.
    pub fn signing_certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Signs a document of Tor's directory with the signing key; it says by its first bytes what it is.
    pub fn sign_for_directory(&self, document: &[u8]) -> [u8; 64] {
        self.signing.sign(document)
    }

    /// The key of the RSA identity, if it is here.
    pub fn rsa_key(&self) -> Option<&SecretKey> {
        self.rsa.as_ref()?.key.as_deref()
    }

    fn certify(&self, kind: CertKind, key_kind: KeyKind, key: &[u8; 32], now: u64) -> Vec<u8> {
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
        let rsa = self.rsa.iter().flat_map(Certified::certs);
        certs.extend(rsa);
        certs.sort_by_key(|(kind, _)| *kind);
        certs
    }
}

/// The hour after `now` and `lifetime`, as certificates count.
pub(super) fn hours(now: u64, lifetime: u64) -> u32 {
    let end = now.saturating_add(lifetime).div_ceil(HOUR);
    u32::try_from(end).unwrap_or(u32::MAX)
}

fn sign(certificate: &Ed25519Cert, key: &SigningKey) -> Vec<u8> {
    let mut bytes = Vec::new();
    certificate.write(&mut bytes);
    bytes.extend_from_slice(&key.sign(&bytes));
    bytes
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

// Whether a peer's certificates say what it claims: from the identity to the signing key to what this channel has.
// tor-spec, "CERTS cells": "the initiator MUST check the following", "the responder MUST check the following".
//
// We do not ask for the RSA certificates (types 2 and 7), because relays of ours have none; where they are sent, they are checked.

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

/// An initiator that showed certificates. It is known only after [`check_authentication`].
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
    check_dates_and_signature(&signing, first, &ed25519, now)?;
    let leaf = read(certs, last, kind)?;
    check_dates_and_signature(&leaf, last, &signing.cert.key, now)?;
    let rsa = Certified::read(certs, &ed25519, now)?;
    Ok((PeerId { ed25519, rsa }, leaf.cert.key))
}

fn read<'a>(
    certs: &Certs<'a>,
    sent_as: CertType,
    kind: CertKind,
) -> Result<Signed<'a, Ed25519Cert>, Why> {
    let bytes = certs.get(sent_as).ok_or(Why::Missing(sent_as))?;
    let signed = Ed25519Cert::parse(bytes)?;
    // "Up till 0.4.5.1-alpha, all versions of Tor have incorrectly used 01 for all types of certified key."
    let key_kind = signed.cert.key_kind;
    let fits = key_kind == KeyKind::ED25519
        || (kind == CertKind::LINK && key_kind == KeyKind::SHA256_OF_X509);
    let right = signed.cert.kind == kind && fits;
    right.then_some(signed).ok_or(Why::WrongUse(sent_as))
}

fn check_dates_and_signature(
    signed: &Signed<'_, Ed25519Cert>,
    sent_as: CertType,
    by: &[u8; 32],
    now: u64,
) -> Result<(), Why> {
    // "When this extension is present, it MUST match the key used to sign the certificate."
    let named = signed.cert.signed_with.is_none_or(|named| named == *by);
    if !named || !is_signed(by, signed.signed, signed.signature) {
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

// AUTHENTICATE: the initiator of a channel proves that it is the relay whose certificates it showed, on this connection and no other.
// tor-spec, "Link authentication type 3: Ed25519-SHA256-RFC5705".

/// The label for the exporter (RFC 5705); its context is [`PeerId::exporter_context`], its length 32.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER FOR TOR TLS CLIENT BINDING AUTH0003";

/// What both ends of one connection know, and no other connection has.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Proof {
    /// SHA-256 of all that the responder sent, AUTH_CHALLENGE included (SLOG).
    pub responder_log: [u8; 32],
    /// SHA-256 of all that the initiator sent, CERTS included (CLOG).
    pub initiator_log: [u8; 32],
    /// SHA-256 of the responder's TLS certificate (SCERT).
    pub certificate: [u8; 32],
    /// What TLS exports (TLSSECRETS).
    pub exporter: [u8; 32],
}

impl RelayIdentity {
    /// The authentication that an AUTHENTICATE cell of type 3 carries. "Initiators MUST NOT send an AUTHENTICATE cell before they have verified
    /// the certificates presented in the responder's CERTS cell": `responder` is what that gave.
    ///
    /// # Errors
    /// See [`SigningError`].
    pub fn authenticate(&self, responder: &PeerId, proof: &Proof) -> Result<Vec<u8>, SigningError> {
        let mut fields = fields(&self.peer(), responder, proof);
        let filled = SystemRandom::new().fill(&mut fields.random);
        filled.map_err(|_| SigningError::NoRandomness)?;
        let mut bytes = Vec::with_capacity(Ed25519Authentication::LEN + 64);
        fields.write(&mut bytes);
        let signature = self.authentication.sign(&bytes);
        bytes.extend_from_slice(&signature);
        Ok(bytes)
    }
}

/// Checks what the `initiator` sent to us, the `responder`: "that all fields from TYPE through TLSSECRETS contain their unique correct values",
/// and the signature.
///
/// # Errors
/// `Malformed`, `OtherConnection`, `NotAuthentic`.
pub fn check_authentication(
    authentication: &[u8],
    initiator: &Initiator,
    responder: &PeerId,
    proof: &Proof,
) -> Result<(), Why> {
    let (shown, signed, signature) = Ed25519Authentication::parse(authentication)?;
    let expected = fields(&initiator.peer, responder, proof);
    if !bool::from(same(&shown, &expected)) {
        return Err(Why::OtherConnection);
    }
    let right = is_signed(&initiator.key, signed, &signature);
    right.then_some(()).ok_or(Why::NotAuthentic)
}

/// All but the random bytes.
fn fields(initiator: &PeerId, responder: &PeerId, proof: &Proof) -> Ed25519Authentication {
    Ed25519Authentication {
        initiator_rsa: initiator.rsa_sha256(),
        responder_rsa: responder.rsa_sha256(),
        initiator_ed25519: initiator.ed25519,
        responder_ed25519: responder.ed25519,
        responder_log: proof.responder_log,
        initiator_log: proof.initiator_log,
        certificate: proof.certificate,
        exporter: proof.exporter,
        random: [0; 24],
    }
}

fn same(one: &Ed25519Authentication, other: &Ed25519Authentication) -> Choice {
    one.initiator_rsa.ct_eq(&other.initiator_rsa)
        & one.responder_rsa.ct_eq(&other.responder_rsa)
        & one.initiator_ed25519.ct_eq(&other.initiator_ed25519)
        & one.responder_ed25519.ct_eq(&other.responder_ed25519)
        & one.responder_log.ct_eq(&other.responder_log)
        & one.initiator_log.ct_eq(&other.initiator_log)
        & one.certificate.ct_eq(&other.certificate)
        & one.exporter.ct_eq(&other.exporter)
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(hidden)")
    }
}

// The RSA identity that Tor's relays have beside the Ed25519 one: checked where a peer shows it, made where its key is here.
// tor-spec, "CERTS cells" (types 2 and 7); cert-spec, "RSA->Ed25519 cross-certificate".

/// Bits of the modulus.
const MODULUS: u64 = 1024;

/// What stands before a SHA-256 in a signature of an X.509 certificate (RFC 8017 §9.2).
const SHA256_PREFIX: &[u8] = &[
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05,
    0x00, 0x04, 0x20,
];

/// What stands before a SHA-1 there.
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

/// For how long the certificates of an RSA identity are made: they are made again with each signing key.
const RSA_LIFETIME: u64 = 180 * DAY;

/// Who the certificate of an RSA identity is said to be of: nobody goes by it.
const RSA_SUBJECT: &str = "www.example.net";

/// The last second that certificates are made in: beyond it their dates have no form.
const LAST_DATE: u64 = 200_000_000_000;

/// Certificates that were checked, or made here.
#[derive(Clone)]
struct Certified {
    certificate: Vec<u8>,
    cross: Vec<u8>,
    id: Rsa,
    /// What they are signed with, if it is here.
    key: Option<Arc<SecretKey>>,
}

impl Certified {
    /// A peer's, if it sent any: one without the other is an error.
    fn read(certs: &Certs<'_>, ed25519: &[u8; 32], now: u64) -> Result<Option<Rsa>, Why> {
        let (identity, cross) = (CertType::RSA_IDENTITY, CertType::RSA_CROSS);
        match (certs.get(identity), certs.get(cross)) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Why::Missing(identity)),
            (Some(_), None) => Err(Why::Missing(cross)),
            (Some(one), Some(other)) => check(one, other, ed25519, now).map(Some),
        }
    }

    /// One's own.
    fn check(certificate: &[u8], cross: &[u8], ed25519: &[u8; 32], now: u64) -> Result<Self, Why> {
        let id = check(certificate, cross, ed25519, now)?;
        let (certificate, cross) = (certificate.to_vec(), cross.to_vec());
        Ok(Self {
            certificate,
            cross,
            id,
            key: None,
        })
    }

    /// One's own, made with its key.
    fn issue(key: Arc<SecretKey>, ed25519: [u8; 32], now: u64) -> Result<Self, SigningError> {
        Ok(Self {
            certificate: self_signed(&key, now)?,
            cross: cross(&key, ed25519, now)?,
            id: Rsa {
                id: key.public().id(),
                sha256: sha256(key.public_der()),
            },
            key: Some(key),
        })
    }

    fn id(&self) -> Rsa {
        self.id
    }

    fn certs(&self) -> [(CertType, Vec<u8>); 2] {
        [
            (CertType::RSA_IDENTITY, self.certificate.clone()),
            (CertType::RSA_CROSS, self.cross.clone()),
        ]
    }
}

/// The certificate of type 2. It counts from a day ago, so that clocks need not agree.
fn self_signed(key: &SecretKey, now: u64) -> Result<Vec<u8>, SigningError> {
    let day = |at: u64| {
        let since = Duration::from_secs(at.min(LAST_DATE) / DAY * DAY);
        rcgen::date_time_ymd(1970, 1, 1) + since
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, RSA_SUBJECT);
    params.not_before = day(now.saturating_sub(DAY));
    params.not_after = day(now.saturating_add(RSA_LIFETIME));
    let made = params.self_signed(&X509Signer(key));
    let made = made.map_err(|_| SigningError::NoRandomness)?;
    Ok(made.der().to_vec())
}

/// The certificate of type 7.
fn cross(key: &SecretKey, ed25519: [u8; 32], now: u64) -> Result<Vec<u8>, SigningError> {
    let certificate = RsaCrossCert {
        key: ed25519,
        expires_hours: hours(now, RSA_LIFETIME),
    };
    let mut bytes = Vec::new();
    certificate.write(&mut bytes);
    let signature = key.sign(&sha256(&[CROSS_PREFIX, &bytes].concat()))?;
    RsaCrossCert::write_signature(&signature, &mut bytes);
    Ok(bytes)
}

/// Signs X.509 certificates.
struct X509Signer<'a>(&'a SecretKey);

impl rcgen::PublicKeyData for X509Signer<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0.public_der()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &PKCS_RSA_SHA256
    }
}

impl rcgen::SigningKey for X509Signer<'_> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let named = [SHA256_PREFIX, &sha256(message)].concat();
        let signed = self.0.sign(&named);
        signed.map_err(|_| rcgen::Error::RemoteKeyError)
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
    let bytes = &certificate.public_key().subject_public_key.data;
    Ok(Rsa {
        id: key.id(),
        sha256: sha256(bytes),
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

#[cfg(test)]
mod tests;
