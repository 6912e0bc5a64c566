//! What an AUTHENTICATE cell of type 3 proves, and over what.
//! tor-spec: "Link authentication type 3: Ed25519-SHA256-RFC5705".

use bytes::BufMut;

use crate::cell::{Malformed, input::Input};

const TYPE: [u8; 8] = *b"AUTH0003";

/// The fields of the proof. A responder computes all but the random octets itself, compares, and checks the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ed25519Authentication {
    /// SHA-256 of the initiator's RSA identity key (CID).
    pub initiator_rsa: [u8; 32],
    /// SHA-256 of the responder's (SID).
    pub responder_rsa: [u8; 32],
    /// The initiator's Ed25519 identity (CID_ED).
    pub initiator_ed25519: [u8; 32],
    /// The responder's (SID_ED).
    pub responder_ed25519: [u8; 32],
    /// SHA-256 of all that the responder sent, up to AUTH_CHALLENGE (SLOG).
    pub responder_log: [u8; 32],
    /// SHA-256 of all that the initiator sent, up to CERTS (CLOG).
    pub initiator_log: [u8; 32],
    /// SHA-256 of the responder's TLS certificate (SCERT).
    pub certificate: [u8; 32],
    /// What the TLS exporter says (TLSSECRETS).
    pub exporter: [u8; 32],
    /// Random octets (RAND).
    pub random: [u8; 24],
}

impl Ed25519Authentication {
    /// The octets that are signed, if nothing unknown follows them.
    pub const LEN: usize = 288;

    /// Reads the fields; the octets that are signed, and the signature, which stands last.
    /// "The server MUST ignore any extra bytes in the signed data after the RAND field."
    ///
    /// # Errors
    /// [`Malformed`] for another type and for what is cut off.
    pub fn parse(authentication: &[u8]) -> Result<(Self, &[u8], [u8; 64]), Malformed> {
        let what = Malformed("AUTHENTICATE of type 3");
        let (signed, signature) = authentication.split_last_chunk::<64>().ok_or(what)?;
        let mut input = Input::new(signed, what.0);
        if input.array()? != TYPE {
            return Err(what);
        }
        let fields = Self {
            initiator_rsa: input.array()?,
            responder_rsa: input.array()?,
            initiator_ed25519: input.array()?,
            responder_ed25519: input.array()?,
            responder_log: input.array()?,
            initiator_log: input.array()?,
            certificate: input.array()?,
            exporter: input.array()?,
            random: input.array()?,
        };
        Ok((fields, signed, *signature))
    }

    /// Writes what is to be signed; the signature follows it.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(&TYPE);
        let hashes = [
            &self.initiator_rsa,
            &self.responder_rsa,
            &self.initiator_ed25519,
            &self.responder_ed25519,
            &self.responder_log,
            &self.initiator_log,
            &self.certificate,
            &self.exporter,
        ];
        hashes.iter().for_each(|hash| out.put_slice(*hash));
        out.put_slice(&self.random);
    }
}
