//! X25519 key pairs that can be used more than once, as ntor needs them. `ntor`, `ntor3` and `keys` use them.
//! RFC 7748; tor-spec, "The ntor handshake": "check that none of the EXP() operations produced the point at infinity".

use std::fmt;

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::Refused;

/// A private key with its public half. The library wipes it when it is dropped.
pub(super) struct KeyPair {
    private: PrivateKey,
    public: [u8; 32],
}

impl KeyPair {
    pub(super) fn generate() -> Result<Self, Refused> {
        let private = PrivateKey::generate(&X25519).map_err(|_| Refused::System)?;
        Self::new(private)
    }

    pub(super) fn from_octets(octets: &[u8; 32]) -> Result<Self, Refused> {
        let private = PrivateKey::from_private_key(&X25519, octets).map_err(|_| Refused::System)?;
        Self::new(private)
    }

    fn new(private: PrivateKey) -> Result<Self, Refused> {
        let public = private.compute_public_key().map_err(|_| Refused::System)?;
        let public = public.as_ref().try_into().map_err(|_| Refused::System)?;
        Ok(Self { private, public })
    }

    pub(super) fn public(&self) -> &[u8; 32] {
        &self.public
    }

    /// `EXP(peer, self)`, unless it is all zero, as a point of small order makes it.
    pub(super) fn agree(&self, peer: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, Refused> {
        let mut shared = Zeroizing::new([0; 32]);
        let peer = UnparsedPublicKey::new(&X25519, peer);
        agree(&self.private, peer, Refused::BadKey, |octets| {
            let octets: &[u8; 32] = octets.try_into().map_err(|_| Refused::BadKey)?;
            shared.copy_from_slice(octets);
            Ok(())
        })?;
        if shared.ct_eq(&[0; 32]).into() {
            return Err(Refused::BadKey);
        }
        Ok(shared)
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyPair(hidden)")
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::SMALL_ORDER;
