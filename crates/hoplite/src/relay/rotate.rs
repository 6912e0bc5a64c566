//! Takes another onion key from time to time, where a directory is told of it; `hoplite relay` runs it beside everything else.
//! tor-spec, "Keys and names": the one before is accepted for at least a week. What is published is on disk first.

use std::time::Duration;

use hoplite_crypto::onion::Secrets;
use hoplite_relay::Rekey;
use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

use crate::{directory::now, errors::Failure, identity::onion::Stored};

/// For how many seconds the last key is accepted: lists live for hours, clients sleep for days.
const LAST: u64 = 7 * 24 * 3600;
/// How often is looked whether it is time: the calendar may jump, and a machine may sleep.
const LOOK: Duration = Duration::from_secs(600);

/// The onion key of a running relay, and when it changes.
pub(super) struct Rotation {
    stored: Stored,
    rekey: Rekey,
    /// In seconds; 0 is never.
    every: u64,
    /// The public half of the current key, for whoever publishes it.
    current: watch::Sender<[u8; 32]>,
}

impl Rotation {
    pub(super) fn new(stored: Stored, rekey: Rekey, every: u64) -> Result<Self, Failure> {
        let (current, _) = watch::channel(stored.public()?.ntor);
        Ok(Self {
            stored,
            rekey,
            every,
            current,
        })
    }

    /// Hears of each new key.
    pub(super) fn watch(&self) -> watch::Receiver<[u8; 32]> {
        self.current.subscribe()
    }

    /// Looks now and then, until dropped.
    pub(super) async fn run(mut self) {
        loop {
            if let Err(failure) = self.look(now()) {
                warn!("the onion key stays: {failure}");
            }
            sleep(LOOK).await;
        }
    }

    fn look(&mut self, now: u64) -> Result<(), Failure> {
        let Some(next) = due(self.stored.secrets(), self.every, now)? else {
            return Ok(());
        };
        self.stored.replace(next)?;
        self.rekey.replace(self.stored.circuits(now)?.keys);
        let current = self.stored.public()?.ntor;
        let changed = self.current.send_if_modified(|old| {
            let changed = *old != current;
            *old = current;
            changed
        });
        if changed {
            info!("the relay has a new onion key; the last one is accepted for a week more");
        }
        Ok(())
    }
}

/// What comes after `secrets`, if it is time.
fn due(secrets: &Secrets, every: u64, now: u64) -> Result<Option<Secrets>, Failure> {
    let age = now.saturating_sub(secrets.since());
    if every != 0 && age >= every {
        let next = secrets.rotated(now);
        let failed = |error| Failure::new("making the onion key", error, "it is tried again");
        return next.map(Some).map_err(failed);
    }
    Ok((secrets.has_last() && age >= LAST).then(|| secrets.retired()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000;
    const EVERY: u64 = 28 * 24 * 3600;

    #[test]
    fn a_key_is_rotated_at_its_time_and_the_last_one_kept_a_week() {
        let first = Secrets::fresh(START).expect("made");
        let soon = due(&first, EVERY, START + EVERY - 1).expect("judged");
        assert!(soon.is_none(), "not before its time");
        let second = due(&first, EVERY, START + EVERY)
            .expect("judged")
            .expect("due");
        assert!(second.has_last());
        assert_ne!(
            second.public().expect("a key"),
            first.public().expect("a key")
        );
        let week = START + EVERY + LAST;
        assert!(due(&second, EVERY, week - 1).expect("judged").is_none());
        let third = due(&second, EVERY, week).expect("judged").expect("due");
        assert!(!third.has_last());
        assert_eq!(
            third.public().expect("a key"),
            second.public().expect("a key")
        );
        assert!(due(&third, EVERY, week + 1).expect("judged").is_none());
    }

    #[test]
    fn a_key_that_nobody_is_told_of_is_never_rotated() {
        let secrets = Secrets::fresh(START).expect("made");
        assert!(due(&secrets, 0, START * 2).expect("judged").is_none());
    }

    #[test]
    fn a_clock_that_was_set_back_rotates_nothing() {
        let secrets = Secrets::fresh(START).expect("made");
        assert!(due(&secrets, EVERY, START / 2).expect("judged").is_none());
    }
}
