//! How many requests a client may have open on one QUIC connection: few at first, and more as it uses them.
//! The QUIC stack keeps about 90 octets for each stream that it allows, used or not: a client at rest costs little this way.

use std::sync::atomic::{AtomicU32, Ordering};

use hoplite_link::quic::{Connection, VarInt};

use crate::config::Limits;

/// What a new connection may open at once.
const FIRST: u32 = 128;
/// When half of what is allowed is open, so many times as much is allowed.
const GROWTH: u32 = 4;

/// The room on one connection.
pub(crate) struct Streams {
    connection: Connection,
    allowed: AtomicU32,
    most: u32,
}

/// What a new connection may open at once.
pub(crate) fn at_first(limits: &Limits) -> VarInt {
    limits.requests_per_connection.min(FIRST).into()
}

impl Streams {
    /// A connection that was given [`at_first`].
    pub(crate) fn new(connection: Connection, limits: &Limits) -> Self {
        let most = limits.requests_per_connection;
        let allowed = AtomicU32::new(most.min(FIRST));
        Self {
            connection,
            allowed,
            most,
        }
    }

    /// Makes room, up to the limit.
    pub(crate) fn busy(&self, open: usize) {
        let allowed = self.allowed.load(Ordering::Relaxed);
        if let Some(more) = next(allowed, open, self.most) {
            self.allowed.store(more, Ordering::Relaxed);
            self.connection.set_max_concurrent_bi_streams(more.into());
        }
    }
}

fn next(allowed: u32, open: usize, most: u32) -> Option<u32> {
    let crowded = open >= usize::try_from(allowed / 2).unwrap_or(usize::MAX);
    (crowded && allowed < most).then(|| allowed.saturating_mul(GROWTH).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_grows_with_use_up_to_the_limit() {
        assert_eq!(next(128, 63, 16_384), None);
        assert_eq!(next(128, 64, 16_384), Some(512));
        assert_eq!(next(8192, 5000, 16_384), Some(16_384));
        assert_eq!(next(16_384, 16_000, 16_384), None);
    }
}
