//! Onion keys: what a relay publishes for circuit handshakes, the pairs it answers with, and how they rotate.
//! The relay holds [`OnionKeys`], a client reads [`RelayKeys`] off the directory.
//! tor-spec, "Keys and names": "old ntor keys MUST be accepted for at least one week after they are no longer advertised".

use std::{fmt, sync::Arc};

use ring::rand::{SecureRandom, SystemRandom};
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

use super::{Refused, identity::stand_in, x25519::KeyPair};

/// What a client knows of a relay when it extends a circuit to it. All of it is public.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RelayKeys {
    /// SHA-1 of its RSA identity, which [`ntor`](super::ntor) binds to; of a relay without one: [`stand_in`](super::identity::stand_in).
    pub rsa_id: [u8; 20],
    /// Its Ed25519 identity, which [`ntor3`](super::ntor3) binds to.
    pub ed25519: [u8; 32],
    /// Its current onion key, X25519.
    pub onion: [u8; 32],
}

/// One onion key pair.
#[derive(Clone)]
pub struct OnionKey(Arc<KeyPair>);

/// The onion keys that a relay accepts, the current one and the last, with the identities they are bound to.
/// It does not change: a rotation makes another, so that circuits being built are not waited for.
#[derive(Clone)]
pub struct OnionKeys {
    pub(super) rsa_id: [u8; 20],
    pub(super) ed25519: [u8; 32],
    current: OnionKey,
    last: Option<OnionKey>,
}

impl From<hoplite_wire::OnionKey> for RelayKeys {
    /// Of a relay without RSA identity.
    fn from(key: hoplite_wire::OnionKey) -> Self {
        Self {
            rsa_id: stand_in(&key.identity),
            ed25519: key.identity,
            onion: key.ntor,
        }
    }
}

impl From<RelayKeys> for hoplite_wire::OnionKey {
    fn from(keys: RelayKeys) -> Self {
        Self {
            identity: keys.ed25519,
            ntor: keys.onion,
        }
    }
}

impl OnionKey {
    /// A secret that nobody has, for [`OnionKey::from_secret`].
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn fresh_secret() -> Result<Zeroizing<[u8; 32]>, Refused> {
        let mut octets = Zeroizing::new([0; 32]);
        let filled = SystemRandom::new().fill(octets.as_mut_slice());
        filled.map_err(|_| Refused::System)?;
        Ok(octets)
    }

    /// The pair of a stored secret.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn from_secret(secret: &[u8; 32]) -> Result<Self, Refused> {
        Ok(Self(Arc::new(KeyPair::from_octets(secret)?)))
    }

    /// What is published.
    pub fn public(&self) -> &[u8; 32] {
        self.0.public()
    }
}

impl OnionKeys {
    /// Keys of the relay with these identities; `last` is still accepted.
    pub fn new(
        rsa_id: [u8; 20],
        ed25519: [u8; 32],
        current: OnionKey,
        last: Option<OnionKey>,
    ) -> Self {
        Self {
            rsa_id,
            ed25519,
            current,
            last,
        }
    }

    /// After a rotation: `fresh` is current, and what was current is the last.
    #[must_use]
    pub fn rotated(&self, fresh: OnionKey) -> Self {
        let last = Some(self.current.clone());
        Self::new(self.rsa_id, self.ed25519, fresh, last)
    }

    /// After the last key's time: only the current one is accepted.
    #[must_use]
    pub fn retired(&self) -> Self {
        Self::new(self.rsa_id, self.ed25519, self.current.clone(), None)
    }

    /// What is published of this relay now.
    pub fn published(&self) -> RelayKeys {
        RelayKeys {
            rsa_id: self.rsa_id,
            ed25519: self.ed25519,
            onion: *self.current.public(),
        }
    }

    /// The pair with this public key. Both are compared, whichever it is.
    pub(super) fn find(&self, public: &[u8; 32]) -> Result<&KeyPair, Refused> {
        let current = self.current.public().ct_eq(public);
        let last = self.last.as_ref();
        let is_last = last.map(|key| key.public().ct_eq(public));
        let is_last = is_last.unwrap_or_else(|| Choice::from(0));
        match (bool::from(current), bool::from(is_last), last) {
            (true, ..) => Ok(&self.current.0),
            (false, true, Some(key)) => Ok(&key.0),
            _ => Err(Refused::UnknownKey),
        }
    }
}

impl fmt::Debug for RelayKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayKeys(hidden)")
    }
}

impl fmt::Debug for OnionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnionKey(hidden)")
    }
}

impl fmt::Debug for OnionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnionKeys(hidden)")
    }
}

#[cfg(test)]
mod tests;
