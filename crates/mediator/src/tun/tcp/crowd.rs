//! The flows that are being opened: there may be only so many, so that a program that floods us with SYNs leaves room for others.
//! When there are, of the user that has most of them whoever came first and is still not open makes room: a flow that opens quickly gets
//! through even a flood of its own user, and those of other users do not feel it. Those whose SYN is not answered go first: their programs
//! ask again and notice nothing, the others would see a reset.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use super::flow::Flow;
use crate::users::{Place, Places, Rings, User};

/// The table's queues of them, each user's oldest first.
#[derive(Debug)]
pub(super) struct Crowd {
    most: usize,
    places: Arc<Places>,
    /// Those whose SYN was not answered when they came.
    held: Rings<Weak<Flow>>,
    answered: Rings<Weak<Flow>>,
}

/// A flow counts as being opened until this is dropped.
pub(super) struct HalfOpen {
    _place: Place,
    flow: Arc<Flow>,
}

impl Crowd {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            places: Arc::default(),
            held: Rings::default(),
            answered: Rings::default(),
        }
    }

    /// Lets a flow in; answers with the one that has to make room, if any.
    pub(super) fn admit(&mut self, flow: &Arc<Flow>) -> (HalfOpen, Option<Arc<Flow>>) {
        let full = self.places.len() >= self.most;
        let giver = full.then(|| self.places.gives(flow.user)).flatten();
        let oldest = giver.and_then(|giver| self.oldest(giver));
        let queue = match flow.lock().machine.is_held() {
            true => &mut self.held,
            false => &mut self.answered,
        };
        // Those that are open by now are forgotten now and then.
        let many = self.most.saturating_mul(2);
        queue.tidy(many, |flow| half_open(flow).is_some());
        queue.push(flow.user, Arc::downgrade(flow));
        let half_open = HalfOpen {
            _place: self.places.take(flow.user),
            flow: Arc::clone(flow),
        };
        (half_open, oldest)
    }

    /// Takes the user's oldest that is still being opened.
    fn oldest(&mut self, user: User) -> Option<Arc<Flow>> {
        let mut queues = [&mut self.held, &mut self.answered].into_iter();
        queues.find_map(|queue| {
            let mut queued = std::iter::from_fn(|| queue.pop(user));
            queued.find_map(|flow| half_open(&flow))
        })
    }
}

fn half_open(flow: &Weak<Flow>) -> Option<Arc<Flow>> {
    flow.upgrade().filter(|flow| flow.is_half_open())
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.flow.set_opened();
    }
}

impl fmt::Debug for HalfOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HalfOpen")
    }
}
