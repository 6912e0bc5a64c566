//! The timers of QUIC connections, so that a device at rest seldom wakes: those that are far off fire together, whosever they are,
//! and one that is put off does not wake anybody at its old time. The dialler gives them to its endpoints.

use std::{
    cell::OnceCell,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::time::{Sleep, sleep_until};

/// What is far off fires at a multiple of this, in the time of the thread, whose runtime has no other.
pub const GRID: Duration = Duration::from_secs(5);
/// What is far off.
const FAR_OFF: Duration = Duration::from_secs(10);
/// A timer that is put off by so much leaves its old place at once, where the runtime would wake to find nothing to do.
const PUT_OFF: Duration = Duration::from_secs(1);

/// Tokio, with other timers.
#[derive(Debug)]
pub struct Coinciding;

impl Runtime for Coinciding {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let at = self.coinciding(at);
        Box::pin(Timer(Box::pin(sleep_until(at.into()))))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

impl Coinciding {
    /// When a timer for `at` fires: then, or with others.
    fn coinciding(&self, at: Instant) -> Instant {
        thread_local!(static BEGAN: OnceCell<Instant> = const { OnceCell::new() });
        let now = self.now();
        let began = BEGAN.with(|began| *began.get_or_init(|| now));
        if at.saturating_duration_since(now) < FAR_OFF {
            at
        } else {
            on_grid(began, at)
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

#[derive(Debug)]
struct Timer(Pin<Box<Sleep>>);

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        let at = Coinciding.coinciding(at).into();
        let sleep = &mut self.0;
        if at > sleep.deadline() + PUT_OFF {
            sleep.set(sleep_until(at))
        } else {
            Sleep::reset(sleep.as_mut(), at)
        }
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        AsyncTimer::poll(self.0.as_mut(), cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    async fn fired(mut timer: Pin<Box<dyn AsyncTimer>>) -> Instant {
        poll_fn(|cx| timer.as_mut().poll(cx)).await;
        Coinciding.now()
    }

    #[tokio::test(start_paused = true)]
    async fn timers_far_off_fire_together_and_not_early() {
        // A point of the grid.
        let from = Coinciding.coinciding(Coinciding.now() + 3 * FAR_OFF);
        let times = [1, 1700, 4999].map(|ms| from + ms * MS);
        let timers = times.map(|at| fired(Coinciding.new_timer(at)));
        let together = futures_util::future::join_all(timers).await;
        for fired in together {
            assert!((GRID..GRID + 2 * MS).contains(&(fired - from)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_near_fires_in_its_own_time_whatever_it_was_before() {
        let now = Coinciding.now();
        for before in [5 * MS, 40_000 * MS] {
            let mut timer = Coinciding.new_timer(now + before);
            let first = futures_util::future::poll_immediate(poll_fn(|cx| timer.as_mut().poll(cx)));
            assert_eq!(first.await, None);
            let near = Coinciding.now() + 1234 * MS;
            timer.as_mut().reset(near);
            let late = fired(timer).await - near;
            assert!(late <= 2 * MS, "{late:?}");
        }
    }
}
