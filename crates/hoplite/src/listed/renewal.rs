//! When a list is asked for, of whom, and what is believed of the answers.

use std::{sync::Arc, time::Duration};

use hoplite_directory::{
    self as directory, FetchError, KnownText, ListChecker, Offered, Refused, StoreError,
    tor::{self, NoNetwork},
};
use hoplite_overlay::Overlay;
use hoplite_wire::directory::Source;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tracing::{debug, warn};

use super::{
    Known, Listed,
    known::{self, Ask, Outcome},
};
use crate::{client, config::client::Directory, directory::now, say::Failure};

/// The longest pause between two looks whether the list is to be renewed: a device may have slept.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(300);

/// The shortest pause after asking for a list that was due in vain.
const MIN_PAUSE: Duration = Duration::from_secs(5);

/// The shortest pause before the authorities are asked for a list that is not due yet: no path can be made from the one that is here, or a relay did
/// not accept what it says.
const MIN_REFETCH_PAUSE: Duration = Duration::from_secs(60);
/// How often that pause doubles when it was in vain.
const MAX_DOUBLINGS: u32 = 6;

/// However little time a list has left, or none: authorities are asked beside the relays in the middle half of so much at least, seconds.
const LEAST_BESIDE: u64 = 600;

/// Asks the authorities; says what was wrong with each answer.
pub(super) async fn renew(
    known: &mut Known,
    file: &Directory,
    overlay: &dyn Overlay,
) -> Result<Vec<String>, StoreError> {
    let known = match known {
        Known::List(known) => known,
        Known::Tor(known, tor) => {
            let (renewal, ask) = (known.renewal(), (overlay, Ask::Authorities));
            return match known::renew_tor(renewal, tor, ask, file.wait).await {
                Ok(Some(renewed)) => {
                    let heard = known.take(renewed)?;
                    Ok(heard.err().iter().map(Refused::to_string).collect())
                }
                Ok(None) => Ok(Vec::new()),
                Err(failures) => Ok(failures.iter().map(known::said).collect()),
            };
        }
    };
    let asking = (known.checker(), known.known_list(now()));
    let (answers, failures) = answers(asking, file, overlay).await;
    let failures = failures.into_iter();
    let failures = failures.map(|(number, why)| (number, why.to_string()));
    let (numbers, offered): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
    let heard = known.take(offered)?;
    let refusals = numbers.into_iter().zip(heard);
    let refusals = refusals.filter_map(|(number, heard)| {
        let refused = heard.err()?;
        Some((number, refused.to_string()))
    });
    let mut refusals: Vec<_> = refusals.chain(failures).collect();
    refusals.sort_by_key(|(number, _)| *number);
    let said = refusals.into_iter();
    Ok(said
        .map(|(number, why)| format!("authority {number}: {why}"))
        .collect())
}

/// What of the authorities' answers can be believed, and why there is none of others; by their numbers in the file. Signatures are checked
/// in a thread that may block: traffic goes on.
async fn answers(
    (checker, known): (ListChecker, Option<KnownText>),
    file: &Directory,
    overlay: &dyn Overlay,
) -> (Vec<Judged>, Vec<(usize, FetchError)>) {
    let answers = ask_authorities(overlay, &file.authorities, known.as_ref(), file.wait).await;
    let (mut numbers, mut texts, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for (number, answer) in answers {
        match answer {
            Ok(text) => {
                numbers.push(number);
                texts.push(text);
            }
            Err(error) => failures.push((number, error)),
        }
    }
    let judged = spawn_blocking(move || checker.check(&texts, now())).await;
    let judged = numbers.into_iter().zip(judged.unwrap_or_default());
    (judged.collect(), failures)
}

/// What each authority answered who was asked for the list, by its number in the file, from 1. Nobody can guess which of them is asked for all of it.
pub(crate) async fn ask_authorities(
    overlay: &dyn Overlay,
    authorities: &[Source],
    known: Option<&KnownText>,
    limit: Duration,
) -> Vec<(usize, Result<String, FetchError>)> {
    let mut order: Vec<_> = (1..).zip(authorities).collect();
    client::shuffle(&mut order);
    let (numbers, sources): (Vec<usize>, Vec<&Source>) = order.into_iter().unzip();
    let sources: Vec<_> = sources.iter().map(|one| one.address.clone()).collect();
    let answers = directory::ask_for_list(overlay, &sources, known, limit).await;
    let answers = answers.into_iter().map(|answer| answer.map(|it| it.text));
    let mut answers: Vec<_> = numbers.into_iter().zip(answers).collect();
    answers.sort_by_key(|(number, _)| *number);
    answers
}

/// By which authority, and whether it can be believed.
type Judged = (usize, Result<Offered, Refused>);

/// Nothing to choose from is a failure; with a list, what others said is only told.
pub(super) fn refused(known: &Known, refusals: &[String]) -> Result<(), Failure> {
    let doing = "fetching the list of relays";
    match known.is_usable(now()) {
        Ok(true) => {
            refusals
                .iter()
                .for_each(|refusal| warn!("{doing}: {refusal}"));
            if let Some(until) = known.split_until(now()) {
                tell_split(until);
            }
            Ok(())
        }
        Err(Refused::Split) => Err(Failure::new(
            doing,
            Refused::Split,
            "wait for the next list",
        )),
        _ => {
            let why = refusals.join("; ");
            let remedy = "or name relays in the file, without [directory]";
            Err(Failure::new(doing, why, remedy))
        }
    }
}

fn tell_split(until: u64) {
    let seconds = until.saturating_sub(now());
    warn!(
        seconds,
        "authorities have signed two different lists for one time: the last list before them is used for so long, or until there is a later one; report it to their operators, the cache has both"
    );
}

impl Listed {
    /// Renews the list until dropped, through the relays where that works; `found` is told of each new one.
    pub(crate) async fn keep(
        &self,
        through: Arc<dyn Overlay>,
        beside: Arc<dyn Overlay>,
        found: impl Fn(&Self),
    ) {
        let mut random = client::random();
        let mut asked = Instant::now();
        let mut in_vain = 0u32;
        let mut beside_at = None::<u64>;
        loop {
            let due = self.due(&mut random);
            let due = beside_at.map_or(due, |at| at.min(due));
            let soon = asked + haste(in_vain, &mut random);
            let is_due = tokio::select! {
                () = wait_until(due) => true,
                () = self.hurried(soon) => false,
            };
            asked = Instant::now();
            let is_time = beside_at.take_if(|at| *at <= now()).is_some();
            let mut outcome = Outcome::Alone;
            if !is_time {
                outcome = self.renew_by(&*through, Ask::Caches).await;
            }
            if outcome == Outcome::Alone || outcome == Outcome::Failed && !self.is_of_use() {
                outcome = self.renew_by(&*beside, Ask::Authorities).await;
            } else if outcome == Outcome::Failed {
                beside_at.get_or_insert_with(|| self.beside_at(&mut random));
            }
            let is_newer = outcome == Outcome::Newer;
            if is_newer {
                beside_at = None;
                found(self);
            }
            if is_newer && self.is_of_use() {
                in_vain = 0;
            } else if !is_due {
                in_vain = in_vain.saturating_add(1);
            }
            if is_due && (!is_newer || self.may_be_misled()) {
                let left = beside_at.map(|at| Duration::from_secs(at.saturating_sub(now())));
                let pause = self.pause();
                sleep(left.map_or(pause, |left| left.min(pause))).await;
            }
        }
    }

    /// When the authorities are asked beside the relays, after those gave nothing. Who stands at the end of the path sees what is asked for and can keep it
    /// back; he would know whose flows he carries, if an authority told him who asks it right then.
    fn beside_at(&self, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        let (state, now) = (self.lock(), now());
        beside(now, state.known.valid_until(now), random)
    }

    /// After asking in vain: several times before the list is over.
    fn pause(&self) -> Duration {
        let (state, now) = (self.lock(), now());
        let left = state.known.valid_until(now).saturating_sub(now);
        match left {
            0 => MIN_REFETCH_PAUSE,
            left => Duration::from_secs(left / 4).clamp(MIN_PAUSE, MAX_CHECK_INTERVAL),
        }
    }

    /// What is missing was asked for in the clear.
    fn may_be_misled(&self) -> bool {
        self.lock().known.may_be_misled()
    }

    /// A newer list is asked for, or none of our paths can be made from this one; and it is not too soon.
    async fn hurried(&self, earliest: Instant) {
        if self.is_of_use() {
            self.0.hurry.notified().await;
        }
        tokio::time::sleep_until(earliest).await;
    }

    fn due(&self, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        self.lock().known.next(now(), random)
    }

    /// Whether there is a newer list now.
    async fn renew_by(&self, overlay: &dyn Overlay, ask: Ask) -> Outcome {
        let file = self.lock().file.clone();
        let asked = match &self.lock().known {
            Known::List(known) => Ok((known.checker(), known.known_list(now()))),
            Known::Tor(known, tor) => Err((known.renewal(), tor.clone())),
        };
        let asking = match asked {
            Ok(asking) => asking,
            Err((renewal, tor)) => {
                let renewed = known::renew_tor(renewal, &tor, (overlay, ask), file.wait).await;
                return self.take_tor(renewed).await;
            }
        };
        if ask == Ask::Caches && self.renew_from_caches(overlay, file.wait).await {
            return Outcome::Newer;
        }
        let (answers, failures) = answers(asking, &file, overlay).await;
        let mut failures = failures.iter().map(|(_, why)| why);
        if answers.is_empty() && failures.all(FetchError::is_of_entry) {
            return Outcome::Alone;
        }
        let (numbers, offered): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        // What is written to the disk is written beside the traffic, too.
        let listed = self.clone();
        let newer = spawn_blocking(move || listed.take(&numbers, offered)).await;
        match newer {
            Ok(true) => Outcome::Newer,
            // Authorities may be heard by another way.
            Ok(false) | Err(_) => Outcome::Failed,
        }
    }

    /// Whether relays that keep the list have a newer one. What is wrong with their answers is nobody's concern: authorities are asked then.
    async fn renew_from_caches(&self, overlay: &dyn Overlay, limit: Duration) -> bool {
        let asking = {
            let state = self.lock();
            let Known::List(known) = &state.known else {
                return false;
            };
            let caches = state.known.list_caches(now());
            (known.checker(), caches, known.known_list(now()))
        };
        let (checker, caches, known) = asking;
        if caches.is_empty() {
            return false;
        }
        let answers = directory::ask_caches(overlay, &caches, known.as_ref(), limit).await;
        let answers: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
        let bytes: usize = answers.iter().map(|answer| answer.bytes).sum();
        debug!(
            caches = caches.len(),
            answers = answers.len(),
            bytes,
            "relays were asked for the list"
        );
        let listed = self.clone();
        let taken = spawn_blocking(move || {
            let texts: Vec<_> = answers.into_iter().map(|answer| answer.text).collect();
            let mut offered = checker.check(&texts, now());
            offered.retain(Result::is_ok);
            listed.take(&[], offered)
        });
        taken.await.unwrap_or(false)
    }

    async fn take_tor(&self, renewed: Result<Option<tor::Renewed>, Vec<NoNetwork>>) -> Outcome {
        let renewed = match renewed {
            Ok(Some(renewed)) => renewed,
            Ok(None) => return Outcome::Current,
            Err(failures) => {
                let told = failures.iter().map(known::said);
                told.for_each(|why| warn!("renewing Tor's consensus: {why}"));
                let is_of_entry = |failure: &NoNetwork| matches!(failure, NoNetwork::Fetch(why) if why.is_of_entry());
                let is_alone = failures.iter().all(is_of_entry);
                return if is_alone {
                    Outcome::Alone
                } else {
                    Outcome::Failed
                };
            }
        };
        let listed = self.clone();
        let taken = spawn_blocking(move || {
            let state = &mut *listed.lock();
            let Known::Tor(known, _) = &mut state.known else {
                return Outcome::Failed;
            };
            let outcome = known::take_tor(known, renewed);
            if outcome == Outcome::Newer {
                state.take_list();
                state.keep_tor();
            }
            outcome
        });
        taken.await.unwrap_or(Outcome::Failed)
    }

    fn take(&self, authorities: &[usize], offered: Vec<Result<Offered, Refused>>) -> bool {
        let state = &mut *self.lock();
        let Known::List(known) = &mut state.known else {
            return false;
        };
        let was_split = known.is_split();
        let heard = match known.take(offered) {
            Ok(heard) => heard,
            Err(error) => {
                warn!("the cache of the directory cannot be written: {error}");
                return false;
            }
        };
        for (authority, heard) in authorities.iter().zip(&heard) {
            if let Err(refused) = heard {
                warn!(authority, "a list of relays is refused: {refused}");
            }
        }
        if let Some(until) = state.known.split_until(now())
            && until > 0
        {
            tell_split(until);
        }
        // The same two again are no news, or a client would ask without a pause as long as nobody has a later one.
        let is_split_now = !was_split && state.known.split_until(now()).is_some();
        let changed = heard.contains(&Ok(directory::Heard::Newer)) || is_split_now;
        state.keep();
        changed && state.take_list()
    }
}

/// How long after the last time the authorities may be asked for a list that is not due, when that was in vain so often: between a pause and twice
/// as long, so that clients that have the same list do not come all at once.
fn haste(in_vain: u32, random: &mut dyn FnMut(u64) -> u64) -> Duration {
    let pause = MIN_REFETCH_PAUSE.saturating_mul(1 << in_vain.min(MAX_DOUBLINGS));
    pause.saturating_add(Duration::from_secs(random(pause.as_secs())))
}

/// A moment in the middle half of the time that a list has left, or of the least time that will do.
fn beside(now: u64, valid_until: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
    middle(
        now,
        valid_until.max(now.saturating_add(LEAST_BESIDE)),
        random,
    )
}

/// A moment in the middle half of a time.
fn middle(from: u64, until: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
    let all = until.saturating_sub(from);
    let drawn = random((all / 2).max(1));
    from.saturating_add(all / 4).saturating_add(drawn)
}

/// By the clock that lists go by; a device may have slept.
async fn wait_until(due: u64) {
    while now() < due {
        let left = Duration::from_secs(due.saturating_sub(now()));
        sleep(left.min(MAX_CHECK_INTERVAL)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_of_a_time_is_drawn_from() {
        let drawn = |from, until| {
            let ends = [
                middle(from, until, &mut |_| 0),
                middle(from, until, &mut |below| below - 1),
            ];
            ends.map(|moment| moment - from)
        };
        assert_eq!(drawn(1000, 9000), [2000, 5999]);
        assert_eq!((drawn(1000, 1000), drawn(1000, 900)), ([0; 2], [0; 2]));
    }

    /// As a device's that has slept.
    #[test]
    fn where_a_list_is_over_authorities_are_not_asked_directly_at_once() {
        for valid_until in [0, 4000, 5000, 5060] {
            assert_eq!(beside(5000, valid_until, &mut |_| 0), 5150);
            assert_eq!(beside(5000, valid_until, &mut |below| below - 1), 5449);
        }
    }
}
