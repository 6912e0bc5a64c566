//! The time that an attempt may take. Whoever works looks at it now and then; if nobody has looked for long, it ends the world itself.

use std::{
    io,
    process::exit,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::{Answer, attempt, failed, inside, machine};
use crate::trial::Outcome;

/// How long an orderly end may take after the time is up: daemons that do not listen are given 5 s, one after another.
const PATIENCE: Duration = Duration::from_secs(25);

/// Knows the time and what is being done.
#[derive(Clone, Debug)]
pub(super) struct Watchdog {
    began: Instant,
    timeout: Duration,
    doing: Arc<Mutex<String>>,
}

impl Watchdog {
    pub(super) fn start(timeout: Duration) -> io::Result<Self> {
        let dog = Self {
            began: Instant::now(),
            timeout,
            doing: Arc::default(),
        };
        let watching = dog.clone();
        thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || watching.watch())?;
        Ok(dog)
    }

    /// Since the attempt began.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Remembers what is being done, in the words of an outcome.
    pub(super) fn doing(&self, what: impl Into<String>) {
        let what = what.into();
        tracing::info!("{what}");
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// Like `doing`, for those who say the same again and again.
    pub(super) fn doing_again(&self, what: &str) {
        let known = *self.doing.lock().unwrap_or_else(PoisonError::into_inner) == what;
        if !known {
            self.doing(what);
        }
    }

    /// Whether there is time left.
    ///
    /// # Errors
    /// The outcome, if there is none.
    pub(super) fn check(&self) -> Result<(), Outcome> {
        match self.left() {
            Duration::ZERO => Err(self.too_late()),
            _ => Ok(()),
        }
    }

    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.elapsed())
    }

    fn too_late(&self) -> Outcome {
        let doing = self
            .doing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let seconds = self.timeout.as_secs_f64();
        failed(
            doing,
            format!("the attempt took longer than its timeout of {seconds} s"),
            "",
        )
    }

    fn watch(&self) {
        thread::sleep(self.left().saturating_add(PATIENCE));
        let mut report = attempt::blank(machine::now() - self.elapsed().as_secs_f64());
        report.outcome = self.too_late();
        report.took = self.elapsed().as_secs_f64();
        let given = inside::give(&Answer::Report(Box::new(report)));
        // Whoever works hangs; everything ends with PID 1.
        exit(i32::from(given.is_err()))
    }
}
