//! Tells one task of quinn's when the socket takes packets again.
//! Used by quinn's connections, each of which has one; see [`quinn::UdpPoller`].

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use quinn::UdpPoller;

use super::Shared;

type Waiting = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Costs one look while the kernel takes what is sent.
pub(super) struct Poller {
    shared: Arc<Shared>,
    /// There is one only while the socket is blocked.
    waiting: Option<Waiting>,
}

impl Poller {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            waiting: None,
        }
    }
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shared.is_blocked() {
            self.waiting = None;
            return Poll::Ready(Ok(()));
        }
        let shared = Arc::clone(&self.shared);
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(async move { shared.unblocked().await }));
        let polled = waiting.as_mut().poll(cx);
        if polled.is_ready() {
            self.waiting = None;
        }
        polled
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}
