//! Notices that nothing moved for a while, at the cost of one timer and no work for each octet.
//! The copy loop and the UDP flows use it: it is told a number that changes when something moves.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

/// The timer, armed while there is a limit.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    sleep: Option<Pin<Box<Sleep>>>,
    limit: Duration,
    seen: usize,
}

impl Idle {
    /// Ready when `moved` did not change for `limit`, or up to twice as long; never when `limit` is zero.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, limit: Duration, moved: usize) -> Poll<()> {
        if limit != self.limit {
            (self.limit, self.seen) = (limit, moved);
            self.sleep = (!limit.is_zero()).then(|| Box::pin(sleep(limit)));
        }
        let Some(sleep) = &mut self.sleep else {
            return Poll::Pending;
        };
        while sleep.as_mut().poll(cx).is_ready() {
            if moved == self.seen {
                return Poll::Ready(());
            }
            self.seen = moved;
            sleep.as_mut().reset(Instant::now() + limit);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_moves_is_not_idle_and_what_rests_is() {
        let (limit, start) = (Duration::from_secs(10), Instant::now());
        let (mut idle, mut moved) = (Idle::default(), 0);
        while start.elapsed() < limit * 5 {
            moved += 1;
            let rested = poll_fn(|cx| idle.poll(cx, limit, moved));
            assert!(
                tokio::time::timeout(Duration::from_secs(1), rested)
                    .await
                    .is_err()
            );
        }
        poll_fn(|cx| idle.poll(cx, limit, moved)).await;
        assert!(start.elapsed() <= limit * 7);
    }
}
