//! Keeps a running relay's statistics: reads its counters each second, ends periods, and keeps on disk what may be kept (`statistics` beside the identity).
//! What is told, and with which noise, is decided in `hoplite_relay::statistics`; here are the clock and the file.

use std::{fs, io::ErrorKind, path::PathBuf, time::Duration};

use hoplite_relay::{
    Config, Handle, Sampler,
    config::Tor,
    statistics::{DIRECTIONS, Recorder, Said, Scope, noise},
};
use hoplite_wire::relay_state::RelayState;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::warn;

use crate::{directory::now, identity, say::Failure};

/// The file, in the identity's directory.
const FILE: &str = "statistics";
/// How often counters are read.
const LOOK: Duration = Duration::from_secs(1);
/// How long a bandwidth that was not seen before may be only in memory, in seconds.
const STORE_AFTER: u64 = 3600;

/// What looks after them.
pub(crate) struct Keeper {
    recorder: Recorder,
    sampler: Sampler,
    path: PathBuf,
    started: Instant,
    /// When channels were looked at last, and when the file was written.
    looked: u64,
    stored: u64,
    is_new: bool,
    said: watch::Sender<Said>,
}

impl Keeper {
    /// None if the relay tells nobody of itself.
    pub(crate) fn of(config: &Config, handle: &Handle) -> Option<Self> {
        if config.directory.publish.is_empty() && config.onion.tor.is_none() {
            return None;
        }
        let path = config.identity.join(FILE);
        let kept = read(&path).unwrap_or_else(|failure| {
            warn!("statistics begin anew: {failure}");
            RelayState::default()
        });
        let (sampler, now) = (handle.sampler(), now());
        let recorder = Recorder::new(scope(config), kept, 0, now, sampler.totals());
        let (said, _) = watch::channel(recorder.said(now));
        Some(Self {
            recorder,
            sampler,
            path,
            started: Instant::now(),
            looked: 0,
            stored: 0,
            is_new: false,
            said,
        })
    }

    /// Hears what is to be told; woken when it is to be told at once.
    pub(crate) fn watch(&self) -> watch::Receiver<Said> {
        self.said.subscribe()
    }

    /// Looks each second, until dropped.
    pub(crate) async fn run(mut self) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look(self.started.elapsed().as_secs(), now());
        }
    }

    fn look(&mut self, at: u64, now: u64) {
        let totals = self.sampler.totals();
        self.is_new |= self.recorder.take(at, now, &totals);
        if at >= self.looked.saturating_add(DIRECTIONS) {
            self.looked = at;
            self.recorder.used(self.sampler.directions());
        }
        let is_over = self.recorder.is_over(at);
        if is_over {
            let onions = self.sampler.end_period();
            let random = &mut noise::system();
            if !self.recorder.end((at, now), totals, onions, random) {
                warn!("the statistics of a period are not told: the system has no randomness");
            }
        }
        self.tell(now);
        if is_over || (self.is_new && at >= self.stored.saturating_add(STORE_AFTER)) {
            self.store(at, now);
        }
    }

    fn tell(&self, now: u64) {
        let said = self.recorder.said(now);
        self.said.send_if_modified(|old| {
            let is_due = old.edition != said.edition;
            *old = said;
            is_due
        });
    }

    fn store(&mut self, at: u64, now: u64) {
        (self.stored, self.is_new) = (at, false);
        let text = self.recorder.kept(now).write();
        if let Err(failure) = identity::write(&self.path, text.as_bytes(), 0o600) {
            warn!("the relay's statistics are not kept: {failure}");
        }
    }
}

fn scope(config: &Config) -> Scope {
    let onion = &config.onion;
    Scope {
        period: config.directory.statistics,
        circuits: onion.enabled,
        exit: config.is_egress(),
        services: onion.services,
        hsdir: onion.hsdir,
        padding: onion.padding,
        directory: onion.tor.as_ref().is_some_and(Tor::caches),
    }
}

fn read(path: &std::path::Path) -> Result<RelayState, Failure> {
    let doing = "reading the relay's statistics";
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(RelayState::default()),
        Err(error) => return Err(Failure::file(doing, path, &error)),
    };
    RelayState::parse(&text).map_err(|error| {
        let doing = format!("{doing} {}", path.display());
        Failure::new(doing, error, "remove the file")
    })
}
