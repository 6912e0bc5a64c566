//! The timers of QUIC connections, so that a device at rest seldom wakes: those that are far off fire together, whosever they are,
//! and one that is put off does not wake anybody at its old time. The dialler has its endpoints keep them.

use std::{
    cell::OnceCell,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::time::{Sleep, sleep_until};

/// What is far off fires at a multiple of this, in the time of the thread, whose runtime has no other.
pub const GRID: Duration = Duration::from_secs(5);
/// What is far off.
const FAR_OFF: Duration = Duration::from_secs(10);
/// A timer that is put off by so much leaves its old place at once, where the runtime would wake to find nothing to do.
const PUT_OFF: Duration = Duration::from_secs(1);

/// When an endpoint's timers fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timers {
    /// When they are due.
    Exact,
    /// Those that are far off together, whosever they are.
    Coinciding,
}

impl Timers {
    /// When a timer for `at` fires.
    fn at(self, at: Instant) -> Instant {
        thread_local!(static BEGAN: OnceCell<Instant> = const { OnceCell::new() });
        let now = tokio::time::Instant::now().into_std();
        let began = BEGAN.with(|began| *began.get_or_init(|| now));
        if self == Self::Exact || at.saturating_duration_since(now) < FAR_OFF {
            at
        } else {
            on_grid(began, at)
        }
    }
}

/// The one timer of an endpoint: for the first of its deadlines.
#[derive(Debug)]
pub(crate) struct Timer {
    timers: Timers,
    asked: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    pub(crate) const fn new(timers: Timers) -> Self {
        Self {
            timers,
            asked: None,
            sleep: None,
        }
    }

    /// Ready when `deadline` is there, or when it fires with others.
    pub(crate) fn poll(&mut self, deadline: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(asked) = deadline else {
            (self.asked, self.sleep) = (None, None);
            return Poll::Pending;
        };
        if self.asked != deadline {
            self.asked = deadline;
            let at = self.timers.at(asked).into();
            match &mut self.sleep {
                Some(sleep) if at <= sleep.deadline() + PUT_OFF => sleep.as_mut().reset(at),
                Some(sleep) => sleep.set(sleep_until(at)),
                None => self.sleep = Some(Box::pin(sleep_until(at))),
            }
        }
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

/// The first point of the grid that is not before `at`.
fn on_grid(began: Instant, at: Instant) -> Instant {
    let since = at.saturating_duration_since(began);
    let beyond = since.as_nanos() % GRID.as_nanos();
    match u64::try_from(beyond) {
        Ok(beyond) if beyond > 0 => at + (GRID - Duration::from_nanos(beyond)),
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn now() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    async fn fired(mut timer: Timer, at: Instant) -> Instant {
        poll_fn(|cx| timer.poll(Some(at), cx)).await;
        now()
    }

    #[tokio::test(start_paused = true)]
    async fn timers_far_off_fire_together_and_not_early() {
        // A point of the grid.
        let from = Timers::Coinciding.at(now() + 3 * FAR_OFF);
        let times = [1, 1700, 4999].map(|ms| from + ms * MS);
        let timers = times.map(|at| fired(Timer::new(Timers::Coinciding), at));
        let together = futures_util::future::join_all(timers).await;
        for fired in together {
            assert!((GRID..GRID + 2 * MS).contains(&(fired - from)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_asked_again_for_the_same_time_keeps_its_place_with_the_others() {
        let from = Timers::Coinciding.at(now() + 3 * FAR_OFF);
        let (mut timer, at) = (Timer::new(Timers::Coinciding), from + MS);
        let mut fires = poll_fn(|cx| timer.poll(Some(at), cx));
        let waited = tokio::time::timeout_at((at - 10 * MS).into(), &mut fires).await;
        assert!(waited.is_err());
        fires.await;
        assert!(now() - from >= GRID, "{:?}", now() - from);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_near_fires_in_its_own_time_whatever_it_was_before() {
        for timers in [Timers::Exact, Timers::Coinciding] {
            for before in [5 * MS, 40_000 * MS] {
                let mut timer = Timer::new(timers);
                let far = Some(now() + before);
                let first = futures_util::future::poll_immediate(poll_fn(|cx| timer.poll(far, cx)));
                assert_eq!(first.await, None);
                let near = now() + 1234 * MS;
                let late = fired(timer, near).await - near;
                assert!(late <= 2 * MS, "{late:?}");
            }
        }
    }
}
