//! What the streams of one circuit's end hold together: each has a share of the sum, and gives it back when it goes.
//! [`super::Edge`] asks for the sum, [`super::stream`] says what it holds. The channel sees the sums too, in its [`Kept`].

use std::sync::Arc;

use hoplite_link::channel::Tally;

use crate::channel::Kept;

/// The sum of all shares.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    kept: Arc<Kept>,
    which: fn(&Kept) -> &Tally,
}

/// One stream's.
#[derive(Debug)]
pub(super) struct Share {
    sum: Sum,
    own: usize,
}

impl Sum {
    /// Of octets that came on the circuit.
    pub(super) fn received(kept: &Arc<Kept>) -> Self {
        Self {
            kept: Arc::clone(kept),
            which: |kept| &kept.received,
        }
    }

    /// Of cells that are to be sent on it.
    pub(super) fn sending(kept: &Arc<Kept>) -> Self {
        Self {
            kept: Arc::clone(kept),
            which: |kept| &kept.sending,
        }
    }

    fn tally(&self) -> &Tally {
        (self.which)(&self.kept)
    }

    pub(super) fn total(&self) -> usize {
        usize::try_from(self.tally().waiting()).unwrap_or(usize::MAX)
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
        self.sum.tally().came(more as u64);
    }

    /// At most as much as there is.
    pub(super) fn take(&mut self, less: usize) {
        let less = less.min(self.own);
        self.own -= less;
        self.sum.tally().left(less as u64);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.take(self.own);
    }
}
