//! For how long relays are there at a time, and for which part of the time: what flags are given by. dir-spec "Assigning flags in a vote" (weighted mean time
//! between failures, weighted fractional uptime); what is long ago counts less.
//!
//! It outlives a relay's absence, up to a bound, and the process: [`Uptimes::to_string`] is what is kept, [`Uptimes::restore`] takes it up again. A restart of
//! the authority is no failure of relays.

use std::{collections::BTreeMap, fmt};

use hoplite_wire::directory::Key;

/// Relays that are remembered; of those that are not there the one that was away for longest is forgotten first.
const REMEMBERED: usize = 16_384;
/// After each of these times all before counts this many hundredths.
const DECAY: u64 = 12 * 3600;
const HUNDREDTHS: u64 = 95;
/// After so many of them nothing is left that counts.
const FORGOTTEN: u64 = 300;
/// Parts of a run, and of the time.
const PARTS: u64 = 1000;

/// All that is known.
#[derive(Debug, Default)]
pub struct Uptimes(BTreeMap<Key, Uptime>);

/// One relay's. All times are seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Uptime {
    /// When it was first there.
    first: u64,
    /// Since when it is there, if it is.
    run: Option<u64>,
    /// How long it was there at a time before, summed up, and in how many runs (thousandths); weighted.
    ran: u64,
    runs: u64,
    /// How long it was there, and how long it is known; weighted.
    up: u64,
    known: u64,
    /// Until when that is counted.
    at: u64,
    /// When the past was last made to count less.
    decayed: u64,
}

impl Uptime {
    fn new(now: u64) -> Self {
        Self {
            first: now,
            at: now,
            decayed: now,
            ..Self::default()
        }
    }

    /// Counts until then.
    fn advance(&mut self, now: u64) {
        let late = now.saturating_sub(self.decayed) / DECAY;
        for _ in 0..late.min(FORGOTTEN) {
            let next = self.decayed.saturating_add(DECAY);
            self.count(next);
            let counts = [&mut self.ran, &mut self.runs, &mut self.up, &mut self.known];
            for count in counts {
                *count = count.saturating_mul(HUNDREDTHS) / 100;
            }
            self.decayed = next;
        }
        self.decayed = self.decayed.max(now.saturating_sub(DECAY));
        self.count(now);
    }

    fn count(&mut self, until: u64) {
        let passed = until.saturating_sub(self.at);
        self.known = self.known.saturating_add(passed);
        if self.run.is_some() {
            self.up = self.up.saturating_add(passed);
        }
        self.at = self.at.max(until);
    }

    fn begin(&mut self, now: u64) {
        self.advance(now);
        self.run.get_or_insert(now);
    }

    fn end(&mut self, now: u64) {
        self.advance(now);
        if let Some(run) = self.run.take() {
            self.ran = self.ran.saturating_add(now.saturating_sub(run));
            self.runs = self.runs.saturating_add(PARTS);
        }
    }

    /// "the mean time between failures", the present run counted as one that ends now.
    fn between_failures(&self) -> u64 {
        let run = self.run.map(|run| self.at.saturating_sub(run));
        let ran = self.ran.saturating_add(run.unwrap_or(0));
        let runs = self.runs.saturating_add(run.map_or(0, |_| PARTS));
        let mean = ran.saturating_mul(PARTS).checked_div(runs);
        mean.unwrap_or(0)
    }

    /// In thousandths.
    fn part(&self) -> u64 {
        let part = self.up.saturating_mul(PARTS).checked_div(self.known);
        part.unwrap_or(PARTS)
    }
}

/// What flags are given by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// How long it is there at a time, in seconds.
    pub(super) between_failures: u64,
    /// For which part of the time it is there, in thousandths.
    pub(super) part: u64,
    /// For how long it is known, in seconds.
    pub(super) known: u64,
}

impl Uptimes {
    /// A relay is there.
    pub(super) fn is_there(&mut self, relay: &Key, now: u64) {
        if !self.0.contains_key(relay) && self.0.len() >= REMEMBERED {
            let away = self.0.iter().filter(|(_, uptime)| uptime.run.is_none());
            let longest = away.min_by_key(|(_, uptime)| uptime.at);
            let Some(longest) = longest.map(|(relay, _)| *relay) else {
                return;
            };
            self.0.remove(&longest);
        }
        let uptime = self.0.entry(*relay).or_insert_with(|| Uptime::new(now));
        uptime.begin(now);
    }

    /// All others are not there any more.
    pub(super) fn only(&mut self, is_there: impl Fn(&Key) -> bool, now: u64) {
        for (relay, uptime) in &mut self.0 {
            if uptime.run.is_some() && !is_there(relay) {
                uptime.end(now);
            }
        }
    }

    /// What is known of a relay now.
    pub(super) fn record(&self, relay: &Key, now: u64) -> Record {
        let Some(mut uptime) = self.0.get(relay).copied() else {
            return Record::default();
        };
        uptime.advance(now);
        Record {
            between_failures: uptime.between_failures(),
            part: uptime.part(),
            known: now.saturating_sub(uptime.first),
        }
    }

    /// Takes up what was kept; lines that are none are left out. While the authority was not there nothing is known of anybody: runs go on.
    pub fn restore(text: &str, now: u64) -> Self {
        let lines = text.lines().take(REMEMBERED).filter_map(line);
        let fits = |(_, uptime): &(Key, Uptime)| uptime.first <= uptime.at && uptime.at <= now;
        Self(lines.filter(fits).collect())
    }
}

/// `relay first run ran runs up known at decayed`.
fn line(line: &str) -> Option<(Key, Uptime)> {
    let (relay, rest) = line.split_once(' ')?;
    let numbers: Option<Vec<u64>> = rest.split(' ').map(|word| word.parse().ok()).collect();
    let [first, run, ran, runs, up, known, at, decayed] = *numbers? else {
        return None;
    };
    let uptime = Uptime {
        first,
        run: (run > 0).then_some(run),
        ran,
        runs,
        up,
        known,
        at,
        decayed,
    };
    Some((relay.parse().ok()?, uptime))
}

impl fmt::Display for Uptimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (relay, uptime) in &self.0 {
            let Uptime {
                first,
                run,
                ran,
                runs,
                up,
                known,
                at,
                decayed,
            } = uptime;
            let run = run.unwrap_or(0);
            writeln!(
                f,
                "{relay} {first} {run} {ran} {runs} {up} {known} {at} {decayed}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;
    const BEGIN: u64 = 1_790_000_000;
    const RELAY: Key = Key([1; 32]);

    /// There for so long, then away for so long, and so on for some days, seen every quarter of an hour.
    fn flaps(there: u64, away: u64, days: u64) -> (Uptimes, u64) {
        let (mut uptimes, mut now) = (Uptimes::default(), BEGIN);
        while now < BEGIN + days * 24 * HOUR {
            if (now - BEGIN) % (there + away) < there {
                uptimes.is_there(&RELAY, now);
            } else {
                uptimes.only(|_| false, now);
            }
            now += HOUR / 4;
        }
        (uptimes, now)
    }

    #[test]
    fn who_stays_is_there_for_longer_and_longer() {
        let (uptimes, now) = flaps(1000 * HOUR, 0, 10);
        let record = uptimes.record(&RELAY, now);
        assert_eq!(record.between_failures, 10 * 24 * HOUR);
        assert_eq!((record.part, record.known), (1000, 10 * 24 * HOUR));
    }

    #[test]
    fn who_flaps_is_there_for_as_long_as_each_time() {
        let (uptimes, now) = flaps(6 * HOUR, 2 * HOUR, 20);
        let record = uptimes.record(&RELAY, now);
        let hours = record.between_failures / HOUR;
        assert!((5..=6).contains(&hours), "{hours}");
        assert!(record.part.abs_diff(750) < 20, "{record:?}");
    }

    #[test]
    fn what_is_long_ago_counts_less() {
        let (mut uptimes, now) = flaps(HOUR, HOUR, 10);
        let before = uptimes.record(&RELAY, now).part;
        uptimes.is_there(&RELAY, now);
        let after = uptimes.record(&RELAY, now + 30 * 24 * HOUR);
        assert!(before < 600 && after.part > 950, "{before} {after:?}");
    }

    #[test]
    fn an_authority_that_starts_again_goes_on_and_rubbish_is_left_out() {
        let (mut uptimes, now) = flaps(6 * HOUR, 2 * HOUR, 3);
        uptimes.is_there(&RELAY, now);
        let text = format!("rubbish\n{uptimes}ed25519: 1 2\n");
        let again = Uptimes::restore(&text, now + HOUR);
        let records = [&uptimes, &again].map(|all| all.record(&RELAY, now + HOUR));
        assert_eq!(records[0], records[1]);
        assert_eq!(again.0.len(), 1);
        assert!(
            Uptimes::restore(&text, now - 1).0.is_empty(),
            "of the future"
        );
    }

    #[test]
    fn who_was_away_for_longest_is_forgotten_when_there_are_too_many() {
        let mut uptimes = Uptimes::default();
        let relay = |number: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            Key(key)
        };
        (0..REMEMBERED).for_each(|number| uptimes.is_there(&relay(number), BEGIN));
        uptimes.is_there(&relay(REMEMBERED), BEGIN);
        assert!(!uptimes.0.contains_key(&relay(REMEMBERED)), "all are there");
        uptimes.only(|key| *key != relay(7), BEGIN + 1);
        uptimes.is_there(&relay(REMEMBERED), BEGIN + 2);
        assert!(!uptimes.0.contains_key(&relay(7)) && uptimes.0.len() == REMEMBERED);
        // Time that leaps costs no more than that.
        let late = BEGIN + (1 << 50);
        uptimes.is_there(&relay(1), late);
        assert_eq!(uptimes.record(&relay(1), late).part, 1000);
    }
}
