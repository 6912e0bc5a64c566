//! A path that stands ready for the next isolation token: dialling the hops beyond the first takes several round trips, which the first flow of a token
//! would have to wait for.
//!
//! Connections belong to isolation tokens of our own. A user's token gets the spare one when it is first seen and keeps it; the next spare is dialled
//! later, so that it does not take the link from the flow that has just begun, at a moment that nobody can tell: the last relay sees the flow, and would
//! know the next connection, and whoever it is for, by a time that is always the same.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use hoplite_link::drawn;
use hoplite_overlay::{Isolation, Terms};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tracing::debug;

use crate::Hop;

/// How often the spare is asked for, so that it does not count as unused.
const TOUCH: Duration = Duration::from_secs(20);

/// The next spare is dialled so many times the shortest wait after one was taken, at the latest.
const LATEST: u32 = 12;
/// And the first one within so many times of that.
const FIRST: u32 = 4;

/// Which token of ours each token of a user has, and the spare.
#[derive(Debug)]
pub(crate) struct Spares {
    /// Through it the whole path is dialled.
    last: Hop,
    /// How many tokens are remembered.
    bound: usize,
    /// How long after a spare was taken the next one is dialled at the earliest.
    calm: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<Isolation, PathSlot>,
    /// The number of the spare token, while one is kept.
    spare: Option<u64>,
    /// Whether there shall be one.
    keeps: bool,
    next: u64,
}

#[derive(Debug)]
struct PathSlot {
    number: u64,
    used: Instant,
}

impl Spares {
    /// For the path that ends with `last`; at most `bound` tokens are remembered.
    pub(crate) fn new(last: Hop, bound: usize, calm: Duration) -> Arc<Self> {
        Arc::new(Self {
            last,
            bound: bound.max(1),
            calm,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// From now on there is a spare.
    pub(crate) fn keep(self: &Arc<Self>) {
        self.state().keeps = true;
        // Not beside the connection that all else goes by.
        self.renew(drawn(self.calm.saturating_mul(FIRST)));
    }

    /// The same terms with our token in place of the user's.
    pub(crate) fn terms(self: &Arc<Self>, terms: &Terms) -> Terms {
        let mut terms = terms.clone();
        if terms.isolation != Isolation::default() {
            let (number, took_spare) = self.state().slot(&terms.isolation, self.bound);
            terms.isolation = token(number);
            if took_spare {
                let longer = drawn(self.calm.saturating_mul(LATEST.saturating_sub(1)));
                self.renew(self.calm.saturating_add(longer));
            }
        }
        terms
    }

    /// Begins to dial the next spare after a while.
    fn renew(self: &Arc<Self>, calm: Duration) {
        let mut state = self.state();
        if state.keeps && state.spare.is_none() {
            let number = state.number();
            state.spare = Some(number);
            tokio::spawn(look_after(Arc::downgrade(self), number, calm));
        }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Our token for a user's, and whether the spare became it.
    fn slot(&mut self, token: &Isolation, bound: usize) -> (u64, bool) {
        let now = Instant::now();
        if let Some(slot) = self.slots.get_mut(token) {
            slot.used = now;
            return (slot.number, false);
        }
        self.make_room(bound);
        let spare = self.spare.take();
        let number = spare.unwrap_or_else(|| self.number());
        self.slots
            .insert(token.clone(), PathSlot { number, used: now });
        (number, spare.is_some())
    }

    /// Forgets the token unused for longest.
    fn make_room(&mut self, bound: usize) {
        if self.slots.len() < bound {
            return;
        }
        let oldest = self.slots.iter().min_by_key(|(_, slot)| slot.used);
        if let Some(oldest) = oldest.map(|(token, _)| token.clone()) {
            self.slots.remove(&oldest);
        }
    }
}

/// The isolation token of ours with a number. It never leaves the process.
fn token(number: u64) -> Isolation {
    Isolation::new(number.to_be_bytes().to_vec())
}

/// Keeps the spare connected until it is taken or the path is gone. After a failure it waits, longer each time.
async fn look_after(spares: Weak<Spares>, number: u64, calm: Duration) {
    let (mut failures, mut pause) = (0u32, calm);
    loop {
        tokio::time::sleep(pause).await;
        let Some(last) = spares.upgrade().filter(|spares| spares.is_spare(number)) else {
            return;
        };
        let last = last.last.clone();
        pause = match last.connect_for(&token(number)).await {
            Ok(()) => {
                failures = 0;
                TOUCH
            }
            Err(error) => {
                debug!(%error, failures, "no spare path yet");
                failures = failures.saturating_add(1);
                last.pause(failures)
            }
        };
    }
}

impl Spares {
    fn is_spare(&self, number: u64) -> bool {
        self.state().spare == Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Isolation {
        Isolation::new(name.into())
    }

    #[test]
    fn a_new_token_takes_the_spare_and_keeps_it() {
        let mut state = State::default();
        state.spare = Some(state.number());
        assert_eq!(state.slot(&user("a"), 8), (1, true));
        assert_eq!(state.slot(&user("a"), 8), (1, false));
    }

    #[test]
    fn two_tokens_never_share_a_path() {
        let mut state = State::default();
        state.spare = Some(state.number());
        let slots = ["a", "b", "c"].map(|name| state.slot(&user(name), 8).0);
        assert_eq!(slots, [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_tokens_are_remembered_than_allowed() {
        let mut state = State::default();
        for name in ["a", "b", "c"] {
            state.slot(&user(name), 2);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(state.slots.len(), 2);
        assert_eq!(state.slot(&user("b"), 2).0, 2, "the oldest was forgotten");
        assert_eq!(
            state.slot(&user("a"), 2).0,
            4,
            "and gets another of our tokens"
        );
    }
}
