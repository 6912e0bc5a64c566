//! Tor's certificates of Ed25519 keys, and the one by which an RSA identity vouches for an Ed25519 identity. Formats only: whether a
//! signature is good, and whether the certificate is of today, is `crypto::onion`'s to say. cert-spec: "Ed25519 Certificates", "RSA->Ed25519 cross-certificate".

use bytes::BufMut;

use super::{Input, Malformed, short, wide};

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
        /// An identity, by the key of its family.
        FAMILY_V_IDENTITY = 12,
    }
}

numbers! {
    /// What the certified bytes are. cert-spec: "List of certified key types".
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
    /// The bytes that are signed; those of a cross-certificate behind [`CROSS_PREFIX`], by their SHA-256.
    pub signed: &'a [u8],
    /// 64 bytes by Ed25519; as many as the RSA key has for a cross-certificate.
    pub signature: &'a [u8],
}

impl Ed25519Cert {
    /// Reads a whole certificate. Unknown extensions are left out.
    ///
    /// # Errors
    /// [`Malformed`] for another version, what is cut off or follows, a signing key of a wrong length or a second one, and an unknown
    /// extension that affects validation: clients "must not accept the certificate as valid unless they understand the extension".
    pub fn parse(bytes: &[u8]) -> Result<Signed<'_, Self>, Malformed> {
        let what = Malformed("Ed25519 certificate");
        let (signed, signature) = bytes.split_last_chunk::<64>().ok_or(what)?;
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

    /// Writes what is to be signed; 64 bytes of signature follow it.
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
    pub fn parse(bytes: &[u8]) -> Result<Signed<'_, Self>, Malformed> {
        let what = Malformed("RSA cross-certificate");
        let (signed, rest) = bytes.split_at_checked(36).ok_or(what)?;
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

    /// Writes the signature behind it: 255 bytes at most.
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
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// A certificate with these extensions behind their number.
    fn raw(extensions: &[u8]) -> Vec<u8> {
        let head = [&[1, 4, 0, 7, 0x47, 0xdc, 1][..], &[0xcc; 32]].concat();
        [&head[..], extensions, &[0x51; 64]].concat()
    }

    fn signed_with(key: u8) -> Vec<u8> {
        [&[0, 32, 4, 0][..], &[key; 32]].concat()
    }

    fn body(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn kinds_of_certificates_and_keys_are_those_of_the_specification() {
        let kinds: Vec<_> = CertKind::KNOWN.iter().map(|(kind, _)| kind.0).collect();
        assert_eq!(kinds, [4, 5, 6, 8, 9, 10, 11, 12]);
        assert_eq!(CertKind::NTOR_CROSS.0, 0x0a);
        let kinds: Vec<_> = KeyKind::KNOWN.iter().map(|(kind, _)| kind.0).collect();
        assert_eq!(kinds, [1, 2, 3]);
    }

    #[test]
    fn an_ed25519_certificate_reads_as_specified() {
        let bytes = raw(&[&[1][..], &signed_with(0xaa)].concat());
        let Signed {
            cert,
            signed,
            signature,
        } = Ed25519Cert::parse(&bytes).unwrap();
        let wanted = Ed25519Cert {
            kind: CertKind::SIGNING,
            expires_hours: 477_148,
            key_kind: KeyKind::ED25519,
            key: [0xcc; 32],
            signed_with: Some([0xaa; 32]),
        };
        assert_eq!(cert, wanted);
        assert_eq!(cert.expires(), 1_717_732_800);
        assert_eq!(signed, &bytes[..bytes.len() - 64]);
        assert_eq!(signature, [0x51; 64]);
        assert_eq!(body(|out| cert.write(out)), signed);
        // As many bytes as a certificate with its signing key has.
        assert_eq!(bytes.len(), 140);
    }

    #[test]
    fn a_certificate_without_extensions_names_no_signing_key() {
        let bytes = raw(&[0]);
        let cert = Ed25519Cert::parse(&bytes).unwrap().cert;
        assert_eq!((cert.signed_with, bytes.len()), (None, 104));
        assert_eq!(body(|out| cert.write(out)), bytes[..40]);
    }

    #[test]
    fn an_unknown_extension_is_left_out_unless_it_affects_validation() {
        let known = signed_with(1);
        for (flags, fine) in [(0, true), (2, true), (1, false), (0xff, false)] {
            let unknown = [0, 3, 9, flags, 7, 7, 7];
            let bytes = raw(&[&[2][..], &unknown, &known].concat());
            let parsed = Ed25519Cert::parse(&bytes);
            let key = parsed.ok().and_then(|parsed| parsed.cert.signed_with);
            assert_eq!(key, fine.then_some([1; 32]), "{flags}");
        }
    }

    #[test]
    fn a_certificate_that_is_cut_off_longer_or_doubtful_is_malformed() {
        let good = raw(&[&[1][..], &signed_with(1)].concat());
        for cut in 0..good.len() {
            assert!(Ed25519Cert::parse(&good[..cut]).is_err(), "{cut}");
        }
        let mut version = good.clone();
        version[0] = 2;
        let twice = [&[2][..], &signed_with(1), &signed_with(2)].concat();
        let long = [&[1][..], &[0, 33, 4, 0], &[1; 33]].concat();
        for bad in [
            version,
            [&good[..], &[0]].concat(),
            raw(&twice),
            raw(&long),
            raw(&[0, 0]),
            raw(&[2, 0, 0, 9, 0]),
        ] {
            let refused = Err(Malformed("Ed25519 certificate"));
            assert_eq!(Ed25519Cert::parse(&bad), refused);
        }
    }

    #[test]
    fn a_cross_certificate_reads_as_specified() {
        let bytes = [&[0xed; 32][..], &[0, 7, 0x47, 0xdc], &[128], &[0x51; 128]].concat();
        let parsed = RsaCrossCert::parse(&bytes).unwrap();
        assert_eq!(parsed.cert.key, [0xed; 32]);
        assert_eq!(parsed.cert.expires(), 477_148 * 3600);
        assert_eq!(parsed.signed, &bytes[..36]);
        assert_eq!(parsed.signature, [0x51; 128]);
        let again = body(|out| {
            parsed.cert.write(out);
            RsaCrossCert::write_signature(parsed.signature, out);
        });
        assert_eq!(again, bytes);
        assert_eq!(CROSS_PREFIX, b"Tor TLS RSA/Ed25519 cross-certificate");
        let longer = [&bytes[..], &[0]].concat();
        for bad in [&bytes[..bytes.len() - 1], &longer, &bytes[..36], &[]] {
            let refused = Err(Malformed("RSA cross-certificate"));
            assert_eq!(RsaCrossCert::parse(bad), refused);
        }
    }

    proptest! {
        #[test]
        fn certificates_are_read_back(kind: u8, expires_hours: u32, key_kind: u8, key: [u8; 32], signed_with: Option<[u8; 32]>, signature in vec(any::<u8>(), 64)) {
            let cert = Ed25519Cert { kind: CertKind(kind), expires_hours, key_kind: KeyKind(key_kind), key, signed_with };
            let signed = body(|out| cert.write(out));
            let bytes = [&signed[..], &signature].concat();
            prop_assert_eq!(Ed25519Cert::parse(&bytes), Ok(Signed { cert, signed: &signed, signature: &signature }));
        }

        #[test]
        fn cross_certificates_are_read_back(key: [u8; 32], expires_hours: u32, signature in vec(any::<u8>(), 0..256)) {
            let cert = RsaCrossCert { key, expires_hours };
            let signed = body(|out| cert.write(out));
            let bytes = body(|out| {
                out.extend(&signed);
                RsaCrossCert::write_signature(&signature, out);
            });
            prop_assert_eq!(RsaCrossCert::parse(&bytes), Ok(Signed { cert, signed: &signed, signature: &signature }));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
            drop((Ed25519Cert::parse(&bytes), RsaCrossCert::parse(&bytes)));
        }

        #[test]
        fn any_extensions_are_read_without_a_panic(extensions: Vec<u8>) {
            drop(Ed25519Cert::parse(&raw(&extensions)));
        }
    }
}
