//! Turns of tokens, so many at once, by a [`Room`]: who wants many of them leaves some to the others. Those who wait are let in as they came, but for
//! whom there is no room; who waits no longer has no turn. How many wait is bounded, and shared likewise.

use std::{collections::VecDeque, fmt, sync::Arc};

use hoplite_overlay::Isolation;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::onion_service::room::{Place, Room};

/// Clones are the same ones.
#[derive(Clone)]
pub(super) struct Turns(Arc<Shared>);

struct Shared {
    running: Room<Isolation>,
    waiting: Room<Isolation>,
    /// Who came first is first.
    queue: Mutex<VecDeque<Waiter>>,
}

/// One turn, until it is dropped.
pub(super) struct Turn {
    place: Option<Place<Isolation>>,
    turns: Turns,
}

struct Waiter {
    token: Isolation,
    tell: oneshot::Sender<Turn>,
    _place: Place<Isolation>,
}

impl Turns {
    /// So many at once, for which so many wait.
    pub(super) fn new(at_once: usize, waiting: usize) -> Self {
        Self(Arc::new(Shared {
            running: Room::new(at_once),
            waiting: Room::new(waiting),
            queue: Mutex::default(),
        }))
    }

    /// A turn of this token, when it comes. Nothing: too many wait.
    pub(super) async fn turn(&self, token: &Isolation) -> Option<Turn> {
        let (tell, told) = oneshot::channel();
        self.wait(token, tell)?;
        self.pass_on();
        told.await.ok()
    }

    fn wait(&self, token: &Isolation, tell: oneshot::Sender<Turn>) -> Option<()> {
        let mut queue = self.0.queue.lock();
        queue.retain(|waiter| !waiter.tell.is_closed());
        let waiter = Waiter {
            token: token.clone(),
            tell,
            _place: self.0.waiting.take(token.clone())?,
        };
        queue.push_back(waiter);
        Some(())
    }

    /// Gives the turns that are free to those who wait.
    fn pass_on(&self) {
        while let Some((tell, turn)) = self.next() {
            // Who has gone meanwhile gives it back.
            drop(tell.send(turn));
        }
    }

    fn next(&self) -> Option<(oneshot::Sender<Turn>, Turn)> {
        let mut queue = self.0.queue.lock();
        queue.retain(|waiter| !waiter.tell.is_closed());
        let mut waiting = queue.iter().enumerate();
        let (at, place) = waiting.find_map(|(at, waiter)| {
            let place = self.0.running.take(waiter.token.clone())?;
            Some((at, place))
        })?;
        let waiter = queue.remove(at)?;
        let turn = Turn {
            place: Some(place),
            turns: self.clone(),
        };
        Some((waiter.tell, turn))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.place.take());
        self.turns.pass_on();
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turn")
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, task::Poll};

    use super::*;

    fn token(n: u8) -> Isolation {
        Isolation::new(vec![n])
    }

    /// What a future says now.
    async fn now<T>(what: impl Future<Output = T>) -> Option<T> {
        let mut what = pin!(what);
        std::future::poll_fn(|cx| match what.as_mut().poll(cx) {
            Poll::Ready(it) => Poll::Ready(Some(it)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn who_wants_all_turns_leaves_some_to_those_who_come() {
        let turns = Turns::new(8, 100);
        let mut held = Vec::new();
        for n in 1..=4 {
            let token = token(n);
            while let Some(turn) = now(turns.turn(&token)).await {
                held.push((n, turn.expect("room to wait")));
            }
        }
        let of = |n| held.iter().filter(|(of, _)| *of == n).count();
        assert_eq!([of(1), of(2), of(3), of(4)], [4, 2, 1, 1]);
    }

    #[tokio::test]
    async fn those_who_wait_are_let_in_as_they_came_and_who_has_gone_is_passed_over() {
        let turns = Turns::new(1, 100);
        let (one, two) = (token(1), token(2));
        let first = now(turns.turn(&one)).await.flatten().expect("free");
        let mut gone = Box::pin(turns.turn(&one));
        assert!(now(gone.as_mut()).await.is_none());
        let mut second = pin!(turns.turn(&two));
        assert!(now(second.as_mut()).await.is_none());
        let mut third = pin!(turns.turn(&one));
        assert!(now(third.as_mut()).await.is_none());
        drop(gone);
        drop(first);
        assert!(now(third.as_mut()).await.is_none());
        let second = now(second.as_mut()).await.flatten().expect("its turn");
        drop(second);
        assert!(now(third.as_mut()).await.flatten().is_some());
    }

    #[tokio::test]
    async fn a_turn_that_came_and_was_not_taken_goes_to_the_next() {
        let turns = Turns::new(1, 100);
        let token = token(1);
        let first = now(turns.turn(&token)).await.flatten().expect("free");
        let mut gone = Box::pin(turns.turn(&token));
        assert!(now(gone.as_mut()).await.is_none());
        let mut next = pin!(turns.turn(&token));
        assert!(now(next.as_mut()).await.is_none());
        drop(first);
        drop(gone);
        assert!(now(next.as_mut()).await.flatten().is_some());
    }

    #[tokio::test]
    async fn no_more_wait_than_there_is_room_for_and_others_find_some() {
        let turns = Turns::new(1, 8);
        let (one, two) = (token(1), token(2));
        let _first = now(turns.turn(&one)).await.flatten().expect("free");
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let mut turn = Box::pin(turns.turn(&one));
            assert!(now(turn.as_mut()).await.is_none());
            waiting.push(turn);
        }
        assert!(now(turns.turn(&one)).await.expect("at once").is_none());
        assert!(now(turns.turn(&two)).await.is_none(), "it waits");
        drop(waiting);
        assert!(now(turns.turn(&one)).await.is_none(), "it waits again");
    }
}
