//! The keys that all shards of one process share, so that each may answer for another.
//! Used by [`super::BoundShard::activate`]. RFC 9000 §8.1 (address validation) and §10.3 (stateless reset).

use std::{fmt, io, sync::Arc};

use quinn::crypto::{HandshakeTokenKey, HmacKey};
use ring::{
    hkdf, hmac,
    rand::{SecureRandom, SystemRandom},
};

/// The key of stateless resets and that of Retry tokens. They live as long as the process and are never written down.
#[derive(Clone)]
pub struct Secrets {
    pub(super) reset: Arc<dyn HmacKey>,
    pub(super) token: Arc<dyn HandshakeTokenKey>,
}

impl Secrets {
    /// Fresh keys.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> io::Result<Self> {
        let token = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&random()?);
        Ok(Self {
            reset: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &random()?)),
            token: Arc::new(token),
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

fn random() -> io::Result<[u8; 64]> {
    let mut octets = [0; 64];
    SystemRandom::new()
        .fill(&mut octets)
        .map_err(|_| io::Error::other("the system has no randomness"))?;
    Ok(octets)
}
