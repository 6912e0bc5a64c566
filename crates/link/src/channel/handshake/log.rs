//! A running hash of all that one end sent: what an initiator signs (SLOG, CLOG).
//! tor-spec: "Link authentication type 3: Ed25519-SHA256-RFC5705".

use ring::digest::{Context, SHA256};

/// SHA-256 of what was added so far.
#[derive(Clone)]
pub(super) struct Log(Context);

impl Log {
    pub(super) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(super) fn add(&mut self, octets: &[u8]) {
        self.0.update(octets);
    }

    /// The hash now; more may be added.
    pub(super) fn so_far(&self) -> [u8; 32] {
        let hash = self.0.clone().finish();
        let mut octets = [0; 32];
        let pairs = octets.iter_mut().zip(hash.as_ref());
        pairs.for_each(|(to, from)| *to = *from);
        octets
    }
}
