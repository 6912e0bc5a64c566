//! Which requests are alive on a connection, and up to which one new ones are taken.
//! The driver enters them, the halves of an exchange hold a ticket each.
//! RFC 9114 §5.2 (GOAWAY).

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::session::Inner;

/// A request that is alive; the last half of its exchange drops it.
#[derive(Debug)]
pub(super) struct Ticket {
    inner: Arc<Inner>,
    id: u64,
    /// Whether it carries a stream of octets, which wants congestion control.
    stream: AtomicBool,
}

/// How many requests are alive.
#[derive(Debug, Default)]
pub(super) struct Live(AtomicUsize);

impl Ticket {
    /// Enters a request: datagrams for it are kept from now on.
    pub(super) fn new(inner: &Arc<Inner>, id: u64) -> Arc<Self> {
        inner.live.0.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            inner: Arc::clone(inner),
            id,
            stream: AtomicBool::new(false),
        })
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Whether what it carries goes as a stream of octets now.
    pub(super) fn streams(&self, is: bool) {
        if let Some(reins) = &self.inner.config.reins
            && self.stream.load(Ordering::Relaxed) != is
            && self.stream.swap(is, Ordering::Relaxed) != is
        {
            match is {
                true => reins.stream_begins(),
                false => reins.stream_ends(),
            }
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let removed = self.inner.routes().close(self.id);
        drop(removed);
        if let Some(reins) = &self.inner.config.reins
            && *self.stream.get_mut()
        {
            reins.stream_ends();
        }
        if self.inner.live.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inner.idle.notify_waiters();
        }
    }
}

impl Live {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}
