//! AUTHENTICATE: the initiator of a channel proves that it is the relay whose certificates it showed, on this connection and no other.
//! `link::channel` computes the hashes and asks TLS for the exported octets. tor-spec, "Link authentication type 3: Ed25519-SHA256-RFC5705".

use std::fmt;

use hoplite_wire::cell::handshake::Ed25519Authentication;
use ring::rand::{SecureRandom, SystemRandom};
use subtle::{Choice, ConstantTimeEq};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{Initiator, PeerId, RelayIdentity, Why};
use crate::onion::ed25519::{self, NoKey};

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
    /// See [`NoKey`].
    pub fn authenticate(&self, responder: &PeerId, proof: &Proof) -> Result<Vec<u8>, NoKey> {
        let mut fields = fields(&self.peer(), responder, proof);
        let filled = SystemRandom::new().fill(&mut fields.random);
        filled.map_err(|_| NoKey)?;
        let mut octets = Vec::with_capacity(Ed25519Authentication::LEN + 64);
        fields.write(&mut octets);
        let signature = self.authentication.sign(&octets)?;
        octets.extend_from_slice(&signature);
        Ok(octets)
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
    let right = ed25519::verify(&initiator.key, signed, &signature);
    right.then_some(()).ok_or(Why::NotAuthentic)
}

/// All but the random octets.
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
