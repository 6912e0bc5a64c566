//! Tor's certificates of Ed25519 keys, and the one by which an RSA identity vouches for an Ed25519 identity. Formats only: whether a
//! signature is good, and whether the certificate is of today, is `crypto::onion`'s to say. cert-spec: "Ed25519 Certificates", "RSA->Ed25519 cross-certificate".

use bytes::BufMut;

use super::{
    Malformed,
    input::{Input, short, wide},
};

const VERSION: u8 = 1;
const SIGNED_WITH: u8 = 4;
const AFFECTS_VALIDATION: u8 = 1;

/// What is put before a cross-certificate when its SHA-256 is signed.
pub const CROSS_PREFIX: &[u8] = b"Tor TLS RSA/Ed25519 cross-certificate";

numbers! {
    /// What a certificate is for. cert-spec: "List of certificate types".
    pub struct CertKind(u8) {
        /// A signing key, by an identity.
        SIGNING = 4,
        /// A TLS certificate, by a signing key.
        LINK = 5,
        /// A key for authentication, by a signing key.
        AUTHENTICATE = 6,
        /// Onion services: a descriptor's signing key.
        HS_DESCRIPTOR_SIGNING = 8,
        /// Onion services: an introduction point's key.
        HS_INTRO_AUTHENTICATE = 9,
        /// A circuit handshake's key that vouches for the identity.
        NTOR_CROSS = 10,
        /// Onion services: an introduction point's encryption key.
        HS_NTOR_CROSS = 11,
    }
}

numbers! {
    /// What the certified octets are. cert-spec: "List of certified key types".
    /// "Implementations SHOULD allow 01 in this position, and infer the actual key type from the CERT_TYPE field."
    pub struct KeyKind(u8) {
        /// An Ed25519 key.
        ED25519 = 1,
        /// SHA-256 of an RSA key.
        SHA256_OF_RSA = 2,
        /// SHA-256 of an X.509 certificate.
        SHA256_OF_X509 = 3,
    }
}

/// What an Ed25519 certificate says, without its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ed25519Cert {
    /// What it is for.
    pub kind: CertKind,
    /// Hours since 1970 after which it is not valid.
    pub expires_hours: u32,
    /// What `key` is.
    pub key_kind: KeyKind,
    /// The certified key, or the SHA-256 of what is certified.
    pub key: [u8; 32],
    /// The key that signed it, if the certificate carries it.
    pub signed_with: Option<[u8; 32]>,
}

/// What a cross-certificate says, without its signature: this Ed25519 identity acts for the RSA identity that signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RsaCrossCert {
    /// The Ed25519 identity.
    pub key: [u8; 32],
    /// Hours since 1970 after which it is not valid.
    pub expires_hours: u32,
}

/// A certificate that was read, with what is needed to check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signed<'a, C> {
    /// What it says. Not to be believed before the signature is checked.
    pub cert: C,
    /// The octets that are signed; those of a cross-certificate behind [`CROSS_PREFIX`], by their SHA-256.
    pub signed: &'a [u8],
    /// 64 octets by Ed25519; as many as the RSA key has for a cross-certificate.
    pub signature: &'a [u8],
}

impl Ed25519Cert {
    /// Reads a whole certificate. Unknown extensions are left out.
    ///
    /// # Errors
    /// [`Malformed`] for another version, what is cut off or follows, a signing key of a wrong length or a second one, and an unknown
    /// extension that affects validation: clients "must not accept the certificate as valid unless they understand the extension".
    pub fn parse(octets: &[u8]) -> Result<Signed<'_, Self>, Malformed> {
        let what = Malformed("Ed25519 certificate");
        let (signed, signature) = octets.split_last_chunk::<64>().ok_or(what)?;
        let mut input = Input::new(signed, what.0);
        if input.u8()? != VERSION {
            return Err(what);
        }
        let mut cert = Self {
            kind: CertKind(input.u8()?),
            expires_hours: input.u32()?,
            key_kind: KeyKind(input.u8()?),
            key: input.array()?,
            signed_with: None,
        };
        for _ in 0..input.u8()? {
            cert.extension(&mut input)?;
        }
        let whole = input.is_empty().then_some(Signed {
            cert,
            signed,
            signature,
        });
        whole.ok_or(what)
    }

    fn extension(&mut self, input: &mut Input<'_>) -> Result<(), Malformed> {
        let length = input.u16()?;
        let (kind, flags) = (input.u8()?, input.u8()?);
        let data = input.take(length.into())?;
        match kind {
            SIGNED_WITH if self.signed_with.is_none() => {
                let key = data.try_into().map_err(|_| input.malformed())?;
                self.signed_with = Some(key);
                Ok(())
            }
            SIGNED_WITH => Err(input.malformed()),
            _ if flags & AFFECTS_VALIDATION != 0 => Err(input.malformed()),
            _ => Ok(()),
        }
    }

    /// Writes what is to be signed; 64 octets of signature follow it.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(&[VERSION, self.kind.0]);
        out.put_u32(self.expires_hours);
        out.put_u8(self.key_kind.0);
        out.put_slice(&self.key);
        out.put_u8(u8::from(self.signed_with.is_some()));
        if let Some(key) = self.signed_with {
            out.put_u16(wide(key.len()));
            out.put_slice(&[SIGNED_WITH, 0]);
            out.put_slice(&key);
        }
    }

    /// Seconds since 1970 after which it is not valid.
    pub fn expires(&self) -> u64 {
        seconds(self.expires_hours)
    }
}

impl RsaCrossCert {
    /// Reads a whole certificate.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off or follows.
    pub fn parse(octets: &[u8]) -> Result<Signed<'_, Self>, Malformed> {
        let what = Malformed("RSA cross-certificate");
        let (signed, rest) = octets.split_at_checked(36).ok_or(what)?;
        let mut input = Input::new(signed, what.0);
        let cert = Self {
            key: input.array()?,
            expires_hours: input.u32()?,
        };
        let mut rest = Input::new(rest, what.0);
        let signature = rest.counted()?;
        let whole = rest.is_empty().then_some(Signed {
            cert,
            signed,
            signature,
        });
        whole.ok_or(what)
    }

    /// Writes what is signed.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(&self.key);
        out.put_u32(self.expires_hours);
    }

    /// Writes the signature behind it: 255 octets at most.
    pub fn write_signature(signature: &[u8], out: &mut impl BufMut) {
        let length = short(signature.len());
        out.put_u8(length);
        out.put_slice(signature.get(..length.into()).unwrap_or(signature));
    }

    /// Seconds since 1970 after which it is not valid.
    pub fn expires(&self) -> u64 {
        seconds(self.expires_hours)
    }
}

fn seconds(hours: u32) -> u64 {
    u64::from(hours).saturating_mul(3600)
}

#[cfg(test)]
mod tests;
