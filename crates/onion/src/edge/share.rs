//! What the streams of one circuit's end hold together: each has a share of the sum, and gives it back when it goes.
//! [`super::Edge`] asks for the sum, [`super::stream`] says what it holds.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The sum of all shares.
#[derive(Clone, Debug, Default)]
pub(super) struct Sum(Arc<AtomicUsize>);

/// One stream's.
#[derive(Debug)]
pub(super) struct Share {
    sum: Sum,
    own: usize,
}

impl Sum {
    pub(super) fn total(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// A share of nothing yet.
    pub(super) fn share(&self) -> Share {
        Share {
            sum: self.clone(),
            own: 0,
        }
    }
}

impl Share {
    pub(super) fn own(&self) -> usize {
        self.own
    }

    pub(super) fn add(&mut self, more: usize) {
        self.own += more;
        self.sum.0.fetch_add(more, Relaxed);
    }

    /// At most as much as there is.
    pub(super) fn take(&mut self, less: usize) {
        let less = less.min(self.own);
        self.own -= less;
        self.sum.0.fetch_sub(less, Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.take(self.own);
    }
}
