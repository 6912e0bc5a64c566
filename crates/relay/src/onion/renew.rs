//! What changes while a relay of circuits serves: its signing key each fortnight, its TLS certificate when it is reloaded; and what is
//! looked at now and then. tor-spec "Keys and names"; certificates are valid by the calendar.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use hoplite_link::channel::handshake::Us;
use tokio::time::{Instant, sleep};

use super::Onion;

/// How often channels at rest are looked for.
const SWEEP: Duration = Duration::from_secs(10);

/// What peers of channels are shown.
pub(crate) struct Shown(Mutex<(Us, [u8; 32])>);

impl Shown {
    pub(super) const fn new(us: Us, certificate: [u8; 32]) -> Self {
        Self(Mutex::new((us, certificate)))
    }

    fn lock(&self) -> MutexGuard<'_, (Us, [u8; 32])> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Onion {
    /// TLS shows another certificate from now on.
    pub(crate) fn set_certificate(&self, certificate: [u8; 32]) {
        let mut shown = self.shown.lock();
        shown.1 = certificate;
        self.server.show(shown.0.clone(), certificate);
    }

    /// Closes channels at rest and renews the signing key, until dropped.
    pub(crate) async fn keep(&self) {
        loop {
            sleep(SWEEP).await;
            self.channels.sweep(Instant::now());
            self.renew(unix_time());
        }
    }

    fn renew(&self, now: u64) {
        let mut shown = self.shown.lock();
        let (us, certificate) = &mut *shown;
        let due = us.identity.as_ref().filter(|identity| identity.is_due(now));
        let Some(renewed) = due.map(|identity| identity.renewed(now)) else {
            return;
        };
        match renewed {
            Ok(renewed) => {
                us.identity = Some(renewed.into());
                self.server.show(us.clone(), *certificate);
                self.dialer.show(us.clone());
            }
            Err(error) => tracing::warn!(
                "the signing key of channels cannot be renewed, and ends within days: {error}"
            ),
        }
    }
}

fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}
