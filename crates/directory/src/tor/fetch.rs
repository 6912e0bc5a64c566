//! Asks a directory of Tor's for a consensus and all that belongs to it, over any overlay: its DirPort, or a circuit's BEGIN_DIR.
//! dir-spec "Client operation", "Standards compliance" (HTTP/1.0). What comes is checked by [`super::check`], so whoever answers need not be trusted.

use std::time::Duration;

use hoplite_overlay::Overlay;
use hoplite_wire::{
    Target,
    tor::{Consensus, TEXT},
};

use super::{Network, Trust, check};
use crate::{FetchError, Refused, fetch};

const CONSENSUS: &str = "/tor/status-vote/current/consensus-microdesc";
const CERTIFICATES: &str = "/tor/keys/all";
/// Microdescriptors of one request: C tor's own number, which its URLs have room for.
const BATCH: usize = 92;
/// Octets of one answer with so many, and of certificates.
const ANSWER: usize = 1 << 20;

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum NoNetwork {
    /// It did not answer as it should.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// What it answered is not believed.
    #[error("Tor's consensus: {0}")]
    Refused(#[from] Refused),
}

/// Asks the directory at `source`, each question within `limit`; `now` is in seconds since 1970.
///
/// # Errors
/// [`NoNetwork`]. A microdescriptor that is missing only leaves its relay out.
pub async fn fetch_all(
    overlay: &dyn Overlay,
    source: &Target,
    trust: &Trust,
    now: u64,
    limit: Duration,
) -> Result<Network, NoNetwork> {
    let consensus = fetch(overlay, source, CONSENSUS, TEXT, limit).await?;
    let certificates = fetch(overlay, source, CERTIFICATES, ANSWER, limit).await?;
    // Nothing is asked for a consensus that is not believed.
    let digests: Vec<_> = check(&consensus, &certificates, trust, now)?
        .routers
        .iter()
        .map(|router| router.digest)
        .collect();
    let mut microdescriptors = String::new();
    for batch in digests.chunks(BATCH) {
        let path = Consensus::request(batch);
        let answer = fetch(overlay, source, &path, ANSWER, limit).await?;
        microdescriptors.push_str(&answer);
    }
    let network = Network::read(&consensus, &certificates, &microdescriptors, trust, now)?;
    Ok(network)
}
