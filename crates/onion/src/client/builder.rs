//! Builds one circuit at a time, within the time that was learnt, and tells whoever chose the path what became of it.
//! [`super::pool`] asks it. path-spec "Learning when to give up on circuit construction", "Handling failure".

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_overlay::{Error, ErrorKind};
use tokio::time::{Instant, timeout, timeout_at};

use super::{BuildTimes, Config, Live, driver::build_telling};
use crate::{
    channel::{Channel, Dialer},
    failure,
    path::{Failed, Paths, Relay, Wish},
};

/// Late circuits that are measured to their end at the same time; others teach nothing.
const MEASURED: usize = 16;

/// What a circuit needs to come about.
pub(super) struct Builder {
    dialer: Arc<dyn Dialer>,
    paths: Arc<dyn Paths>,
    config: Config,
    state: Mutex<State>,
}

struct State {
    times: BuildTimes,
    measuring: usize,
}

type Building = Pin<Box<dyn Future<Output = Result<Live, (Error, usize)>> + Send>>;

/// A circuit that is being built.
struct Attempt {
    path: Vec<Relay>,
    begun: Instant,
    /// How many hops stand.
    reached: Arc<AtomicUsize>,
    building: Building,
}

impl Builder {
    pub(super) fn new(dialer: Arc<dyn Dialer>, paths: Arc<dyn Paths>, config: Config) -> Arc<Self> {
        let state = State {
            times: BuildTimes::new(config.build.0, config.build.1),
            measuring: 0,
        };
        Arc::new(Self {
            dialer,
            paths,
            config,
            state: Mutex::new(state),
        })
    }

    /// One circuit over a path that is chosen for `wish`; `chosen` is told its exit before anything is dialled.
    ///
    /// # Errors
    /// There is no path, or a relay of it failed or was late.
    pub(super) async fn build(
        self: &Arc<Self>,
        wish: &Wish,
        chosen: impl Fn(&Relay) + Send,
    ) -> Result<Live, Error> {
        let path = self.paths.path(wish).await?;
        path.last().into_iter().for_each(chosen);
        let channel = self.dial(&path).await?;
        let mut attempt = self.attempt(channel, path);
        let limit = self.state().times.limit();
        let built = timeout(limit, &mut attempt.building).await;
        let took = attempt.begun.elapsed();
        match built {
            Ok(Ok(live)) => {
                self.state().times.built(took);
                self.tried(&attempt.path, Ok(()));
                Ok(live)
            }
            Ok(Err((error, hop))) => Err(self.failed(&attempt.path, &error, hop)),
            Err(_) => {
                let hop = attempt.reached.load(Relaxed);
                let error = self.failed(&attempt.path, &failure::late(), hop);
                self.late(attempt, hop);
                Err(error)
            }
        }
    }

    /// What became of a path.
    pub(super) fn tried(&self, path: &[Relay], outcome: Result<(), Failed>) {
        self.paths.tried(path, outcome);
    }

    /// The channel to the first relay. How long that takes says nothing of circuits: it is not learnt.
    async fn dial(&self, path: &[Relay]) -> Result<Arc<dyn Channel>, Error> {
        let Some(first) = path.first() else {
            let doing = "building a circuit over no relay";
            return Err(Error::new(ErrorKind::Bug, doing));
        };
        let dialled = timeout(self.config.dial, self.dialer.channel(first)).await;
        let dialled = dialled.unwrap_or_else(|_| Err(failure::late()));
        dialled.map_err(|error| self.failed(path, &error, 0))
    }

    fn attempt(&self, channel: Arc<dyn Channel>, path: Vec<Relay>) -> Attempt {
        let reached = Arc::<AtomicUsize>::default();
        let (over, config, told) = (path.clone(), self.config.clone(), Arc::clone(&reached));
        let building = Box::pin(async move {
            let built = build_telling(&*channel, over, &config, &told).await;
            built.map_err(|(error, hop)| match channel.is_closed() {
                true => (error, 0),
                false => (error, hop),
            })
        });
        Attempt {
            path,
            begun: Instant::now(),
            reached,
            building,
        }
    }

    fn failed(&self, path: &[Relay], error: &Error, hop: usize) -> Error {
        let refused = failure::is_refusal(error);
        self.tried(path, Err(Failed { hop, refused }));
        failure::building(error, path, hop)
    }

    /// It goes on, for what its time teaches; nobody uses it.
    fn late(self: &Arc<Self>, attempt: Attempt, hop: usize) {
        let mut state = self.state();
        if hop > 0 {
            state.times.late();
        }
        if state.measuring >= MEASURED {
            return;
        }
        state.measuring += 1;
        let patience = state.times.patience();
        drop(state);
        let builder = Arc::downgrade(self);
        tokio::spawn(async move {
            let (reached, begun) = (Arc::clone(&attempt.reached), attempt.begun);
            let took = measure(attempt.building, begun, patience).await;
            let Some(builder) = builder.upgrade() else {
                return;
            };
            // A guard that took its time is no bad one.
            if matches!(took, Measured::Built(_)) {
                builder.tried(&attempt.path, Ok(()));
            }
            let mut state = builder.state();
            state.measuring -= 1;
            match took {
                Measured::Built(took) => state.times.measured(Some(took)),
                Measured::Never if reached.load(Relaxed) > 0 => state.times.measured(None),
                Measured::Never | Measured::Failed => {}
            }
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of a late one.
enum Measured {
    Built(Duration),
    Failed,
    Never,
}

async fn measure(building: Building, begun: Instant, patience: Duration) -> Measured {
    match timeout_at(begun + patience, building).await {
        Ok(Ok(_)) => Measured::Built(begun.elapsed()),
        Ok(Err(_)) => Measured::Failed,
        Err(_) => Measured::Never,
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").finish_non_exhaustive()
    }
}
