//! What a circuit handshake leaves at both ends: a seed, expanded into the keys of a layer.
//! `tor1` draws its keys from it. tor-spec, "KDF-RFC5869"; proposal 332, "Instantiation" (SHAKE256).

use std::fmt;

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use shake::{ExtendableOutput, Shake256, Update, XofReader};
use zeroize::Zeroizing;

use super::Refused;

/// A secret that only the client and one relay have. It is wiped when dropped and never printed.
pub struct Seed {
    kind: Kind,
    key: Zeroizing<[u8; 32]>,
}

/// Which function expands it.
#[derive(Clone, Copy)]
enum Kind {
    /// HKDF-SHA256's second half, with this info.
    Rfc5869(&'static [u8]),
    /// SHAKE256 of the tweak and the key, from `skip` on.
    Shake256 { tweak: &'static [u8], skip: usize },
}

impl Seed {
    /// `key` is `KEY_SEED`, that is HKDF's PRK; `info` is `m_expand`.
    pub(super) fn rfc5869(key: Zeroizing<[u8; 32]>, info: &'static [u8]) -> Self {
        let kind = Kind::Rfc5869(info);
        Self { kind, key }
    }

    /// `key` is `ntor_key_seed`; the first `skip` octets are the handshake's own.
    pub(super) fn shake256(key: Zeroizing<[u8; 32]>, tweak: &'static [u8], skip: usize) -> Self {
        let kind = Kind::Shake256 { tweak, skip };
        Self { kind, key }
    }

    /// The first octets of the key stream.
    ///
    /// # Errors
    /// [`Refused::System`]: more than 8,160 octets are wanted of HKDF.
    pub fn fill(&self, out: &mut [u8]) -> Result<(), Refused> {
        match self.kind {
            Kind::Rfc5869(info) => {
                let prk = Prk::new_less_safe(HKDF_SHA256, self.key.as_slice());
                let info = [info];
                let stream = prk.expand(&info, Length(out.len()));
                let filled = stream.and_then(|stream| stream.fill(out));
                filled.map_err(|_| Refused::System)
            }
            Kind::Shake256 { tweak, skip } => {
                let mut stream = shake256(tweak, &[self.key.as_slice()]);
                let mut skipped = Zeroizing::new(vec![0; skip]);
                stream.read(&mut skipped);
                stream.read(out);
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(hidden)")
    }
}

/// How much HKDF is asked for.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// `KDF(s, t) = SHAKE_256(ENCAP(t) | s)`, where `s` is `parts` one after another.
pub(super) fn shake256(tweak: &[u8], parts: &[&[u8]]) -> impl XofReader + use<> {
    let mut state = Shake256::default();
    state.update(&encap_length(tweak));
    state.update(tweak);
    for part in parts {
        state.update(part);
    }
    state.finalize_xof()
}

/// What stands before `s` in `ENCAP(s)`: its length, 8 octets.
pub(super) fn encap_length(text: &[u8]) -> [u8; 8] {
    u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests;
