//! What was dropped, and why: numbers only, no addresses.
//! `relay` exports them, the tests look at them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Datagrams and requests that came to nothing.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests whose head broke a rule, and datagrams or capsules that ended too early.
    pub malformed: AtomicU64,
    /// Datagrams with a context id other than 0.
    pub unknown_context: AtomicU64,
    /// Payloads too large for the road.
    pub too_large: AtomicU64,
    /// Payloads dropped because the connection takes no more now.
    pub full: AtomicU64,
    /// Datagrams for a request that had not arrived, beyond the bound on those.
    pub early_dropped: AtomicU64,
    /// Datagrams for no request, or for one that is no UDP flow.
    pub unrouted: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, count: usize) {
    if count > 0 {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}
