//! The flows that are being opened: there may be only so many, so that a program that floods us with SYNs leaves room for others.
//! When there are, whoever came first and is still not open makes room: a flow that opens quickly gets through even a flood. Those whose SYN
//! is not answered go first: their programs ask again and notice nothing, the others would see a reset.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::flow::Flow;

/// The table's queues of them, oldest first.
#[derive(Debug)]
pub(super) struct Crowd {
    most: usize,
    now: Arc<AtomicUsize>,
    /// Those whose SYN was not answered when they came.
    held: VecDeque<Weak<Flow>>,
    answered: VecDeque<Weak<Flow>>,
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
            held: VecDeque::new(),
            answered: VecDeque::new(),
        }
    }

    /// Lets a flow in; answers with the one that has to make room, if any.
    pub(super) fn admit(&mut self, flow: &Arc<Flow>) -> (HalfOpen, Option<Arc<Flow>>) {
        let full = self.now.fetch_add(1, Ordering::Relaxed) >= self.most;
        let oldest = full.then(|| self.oldest()).flatten();
        let queue = match flow.lock().machine.is_held() {
            true => &mut self.held,
            false => &mut self.answered,
        };
        // Those that are open by now are forgotten now and then.
        if queue.len() >= self.most.saturating_mul(2) {
            queue.retain(|flow| half_open(flow).is_some());
        }
        queue.push_back(Arc::downgrade(flow));
        let half_open = HalfOpen {
            now: Arc::clone(&self.now),
            flow: Arc::clone(flow),
        };
        (half_open, oldest)
    }

    fn oldest(&mut self) -> Option<Arc<Flow>> {
        let mut queues = [&mut self.held, &mut self.answered].into_iter();
        queues.find_map(first)
    }
}

/// Takes the oldest that is still being opened.
fn first(queue: &mut VecDeque<Weak<Flow>>) -> Option<Arc<Flow>> {
    std::iter::from_fn(|| queue.pop_front()).find_map(|flow| half_open(&flow))
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
