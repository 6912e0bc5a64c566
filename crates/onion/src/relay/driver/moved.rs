//! The cells of one circuit since the relay's counters were told: those are shared by all circuits, and told once a turn.
//! Part of [`super::Driver`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::relay::Cells;

/// As in [`Cells`].
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) passed_forth: u64,
    pub(super) passed_back: u64,
    pub(super) taken: u64,
    pub(super) made: u64,
}

impl Moved {
    /// Adds them to the relay's, and begins anew.
    pub(super) fn tell(&mut self, cells: &Cells) {
        let told = std::mem::take(self);
        add(&cells.passed_forth, told.passed_forth);
        add(&cells.passed_back, told.passed_back);
        add(&cells.taken, told.taken);
        add(&cells.made, told.made);
    }
}

fn add(count: &AtomicU64, more: u64) {
    if more > 0 {
        count.fetch_add(more, Relaxed);
    }
}
