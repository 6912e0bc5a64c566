//! The certificate that a relay shows, replaceable while it runs (SIGHUP): new handshakes show the new one.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::{Identity, IdentityError, provider};

/// What the TLS stack asks for a certificate.
pub struct Certificates(ArcSwap<CertifiedKey>);

impl Certificates {
    /// Shows `identity`.
    ///
    /// # Errors
    /// [`IdentityError::Mismatch`] if its key is not that of its certificate.
    pub fn new(identity: &Identity) -> Result<Arc<Self>, IdentityError> {
        let key = identity.certified(&provider())?;
        Ok(Arc::new(Self(ArcSwap::from_pointee(key))))
    }

    /// Shows `identity` from the next handshake on.
    ///
    /// # Errors
    /// As [`Self::new`]; the old one stays.
    pub fn replace(&self, identity: &Identity) -> Result<(), IdentityError> {
        self.0.store(Arc::new(identity.certified(&provider())?));
        Ok(())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates(hidden)")
    }
}
