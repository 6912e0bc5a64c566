//! A flow's timer. Deadlines mostly move later, so it is armed for the earliest and looks again when that has come: a busy flow
//! touches the runtime's timers a few times a second, an idle one never.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

#[derive(Debug, Default)]
pub(super) struct Clock {
    sleep: Option<Pin<Box<Sleep>>>,
    armed: Option<Instant>,
}

impl Clock {
    /// When it wakes the task.
    pub(super) fn armed(&self) -> Option<Instant> {
        self.armed
    }

    /// Ready when it is time to look whether `deadline` has come; else the task is woken then, or before.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        if let Some(at) = deadline.filter(|at| self.armed.is_none_or(|armed| *at < armed)) {
            self.arm(at);
        }
        let Some(sleep) = self.sleep.as_mut().filter(|_| self.armed.is_some()) else {
            return Poll::Pending;
        };
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.armed = None;
        Poll::Ready(())
    }

    fn arm(&mut self, at: Instant) {
        self.armed = Some(at);
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(at),
            None => self.sleep = Some(Box::pin(sleep_until(at))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_wakes_at_the_earliest_deadline_and_not_at_all_without_one() {
        let (mut clock, start) = (Clock::default(), Instant::now());
        let at = |seconds| Some(start + Duration::from_secs(seconds));
        let early = |clock: &mut Clock, cx: &mut Context<'_>, n| clock.poll(cx, at(n)).is_pending();
        poll_fn(|cx| {
            assert!(
                early(&mut clock, cx, 3) && early(&mut clock, cx, 1) && early(&mut clock, cx, 2)
            );
            Poll::Ready(())
        })
        .await;
        assert_eq!(clock.armed(), at(1));
        poll_fn(|cx| clock.poll(cx, at(2))).await;
        assert_eq!(start.elapsed().as_secs(), 1);
        poll_fn(|cx| clock.poll(cx, at(2))).await;
        assert_eq!(start.elapsed().as_secs(), 2);
        assert!(poll_fn(|cx| Poll::Ready(clock.poll(cx, None).is_pending())).await);
    }
}
