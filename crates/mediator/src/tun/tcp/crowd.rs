//! The flows that are being opened: there may be only so many, so that a program that floods us with SYNs leaves room for others.
//! When there are, whoever came first and is still not open makes room: a flow that opens quickly gets through even a flood.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::flow::Flow;

/// The table's queue of them, oldest first.
#[derive(Debug)]
pub(super) struct Crowd {
    most: usize,
    now: Arc<AtomicUsize>,
    queue: VecDeque<Weak<Flow>>,
}

/// A flow counts as being opened until this is dropped.
pub(super) struct HalfOpen {
    now: Arc<AtomicUsize>,
    flow: Arc<Flow>,
}

impl Crowd {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            now: Arc::default(),
            queue: VecDeque::new(),
        }
    }

    /// Lets a flow in; answers with the one that has to make room, if any.
    pub(super) fn admit(&mut self, flow: &Arc<Flow>) -> (HalfOpen, Option<Arc<Flow>>) {
        let full = self.now.fetch_add(1, Ordering::Relaxed) >= self.most;
        let oldest = full.then(|| self.oldest()).flatten();
        // Those that are open by now are forgotten now and then.
        if self.queue.len() >= self.most.saturating_mul(2) {
            self.queue.retain(|flow| half_open(flow).is_some());
        }
        self.queue.push_back(Arc::downgrade(flow));
        let half_open = HalfOpen {
            now: Arc::clone(&self.now),
            flow: Arc::clone(flow),
        };
        (half_open, oldest)
    }

    fn oldest(&mut self) -> Option<Arc<Flow>> {
        while let Some(flow) = self.queue.pop_front() {
            if let Some(flow) = half_open(&flow) {
                return Some(flow);
            }
        }
        None
    }
}

fn half_open(flow: &Weak<Flow>) -> Option<Arc<Flow>> {
    flow.upgrade().filter(|flow| flow.is_half_open())
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.flow.set_opened();
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for HalfOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HalfOpen")
    }
}
