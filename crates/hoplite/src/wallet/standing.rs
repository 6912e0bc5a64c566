//! How relays of a list deal with the tokens that they are shown. They are strangers: one that refuses some, or never answers, is shown no more for a while.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

/// A relay that has refused so many tokens is shown none for [`GIVEN_UP`], then for twice as long, up to [`LONGEST_GIVEN_UP`]. What it has refused is
/// forgotten when it lets the client in that long after the last one.
pub(super) const MOST_REFUSED: u32 = 3;
const GIVEN_UP: Duration = Duration::from_secs(3600);
const LONGEST_GIVEN_UP: Duration = Duration::from_secs(24 * 3600);
/// Relays that are remembered at most.
const MOST: usize = 1024;

/// The relays to which tokens were shown since they last let the client in, or which have refused some; each by what it cannot share with another.
#[derive(Debug, Default)]
pub(super) struct Standings(HashMap<String, Standing>);

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    /// How many it has refused.
    refused: u32,
    /// When it refused the last.
    last: Option<Instant>,
    /// How many were taken for it since it last let the client in.
    taken: usize,
    /// How often it was given up.
    given_up: u32,
    /// Until then it is shown none.
    until: Option<Instant>,
}

impl Standings {
    /// Whether it is shown none for now.
    pub(super) fn is_given_up(&self, relay: &str) -> bool {
        self.0.get(relay).is_some_and(Standing::is_given_up)
    }

    /// A token was taken for it. One that answers none of `most` is shown no more for a while.
    pub(super) fn shown(&mut self, relay: &str, most: usize) {
        let standing = self.of(relay);
        standing.taken = standing.taken.saturating_add(1);
        if standing.taken >= most {
            standing.give_up();
        }
    }

    /// It has let the client in.
    pub(super) fn accepted(&mut self, relay: &str) {
        if let Some(standing) = self.0.get_mut(relay) {
            standing.taken = 0;
            let last = standing.last;
            if last.is_none_or(|last| last.elapsed() >= LONGEST_GIVEN_UP) {
                self.0.remove(relay);
            }
        }
    }

    /// It has refused a token.
    pub(super) fn refused(&mut self, relay: &str) {
        let standing = self.of(relay);
        standing.refused = standing.refused.saturating_add(1);
        standing.last = Some(Instant::now());
        if standing.refused >= MOST_REFUSED {
            standing.give_up();
        }
    }

    /// When there are too many, one that is shown tokens makes room.
    fn of(&mut self, relay: &str) -> &mut Standing {
        if self.0.len() >= MOST && !self.0.contains_key(relay) {
            let earliest = self.0.iter().min_by_key(|(_, standing)| standing.until);
            if let Some(earliest) = earliest.map(|(relay, _)| relay.clone()) {
                self.0.remove(&earliest);
            }
        }
        self.0.entry(relay.to_owned()).or_default()
    }
}

impl Standing {
    fn is_given_up(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    fn give_up(&mut self) {
        let pause = GIVEN_UP.saturating_mul(1 << self.given_up.min(5));
        self.given_up = self.given_up.saturating_add(1);
        self.until = Some(Instant::now() + pause.min(LONGEST_GIVEN_UP));
        self.taken = 0;
    }
}
