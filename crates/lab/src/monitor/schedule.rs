//! What is transferred when: the schedule of a monitor as a state machine without I/O or clock. The model is OnionPerf's (paper 002, section III.A):
//! a weighted choice of 50 KB, 1 MB and 5 MB, one transfer at a time, a pause between them, for months.
//!
//! Its three profiles are the paper's (section IV.A): *full*; *partial*, only the 5 MB ones, whose partial times stand for the smaller sizes; and
//! *one-megabyte*, only those of 1 MB. Each keeps the times that its own size has in *full*: of 51,840 transfers in 30 days 5 % are 2,592 of 5 MB.
//!
//! ```text
//! poll(now) ──▶ Wait | Begin ──▶ save, transfer ──▶ ended(used) ──▶ save
//!                    | Spent ──▶ a sample that says so, once a month
//! ```
//! Everything drawn depends on the seed and the transfer's number alone, so that a restart changes nothing. A failed transfer is no reason to do
//! anything else: the next one comes at its time.

use std::time::Duration;

use hoplite_workload::splitmix::{SplitMix, unit};
use serde::{Deserialize, Serialize};

use super::budget::{Ledger, Month, Reservation};

/// OnionPerf's sizes in bytes: 50 KB, 1 MB, 5 MB.
pub(crate) const SIZES: [u64; 3] = [51_200, 1_048_576, 5_242_880];

/// The shares of paper 002, in percent: 5 MB is "65% out of the total bytes", "but only 5% of attempted downloads".
pub(crate) const WEIGHTS: [u32; 3] = [86, 9, 5];

/// From one transfer of *full* to the next: what makes more than 20 GB a month.
const EVERY: Duration = Duration::from_secs(50);

/// What is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Profile {
    /// All three sizes.
    Full,
    /// 5 MB alone, with its partial times.
    Partial,
    /// 1 MB alone, with its partial times.
    OneMegabyte,
}

impl Profile {
    /// The only size, if there is but one: its place in [`SIZES`].
    fn only(self) -> Option<usize> {
        match self {
            Self::Full => None,
            Self::OneMegabyte => Some(1),
            Self::Partial => Some(2),
        }
    }

    /// How often, unless the operator says: as often as *full* has transfers of these sizes.
    pub(crate) fn every(self, weights: [u32; 3]) -> Duration {
        let all: u32 = weights.iter().fold(0, |sum, one| sum.saturating_add(*one));
        let share = self.only().and_then(|place| weights.get(place)).copied();
        match share {
            Some(share) if share > 0 => EVERY.saturating_mul(all) / share,
            _ => EVERY,
        }
    }

    /// The weight of each size.
    pub(crate) fn weights(self, weights: [u32; 3]) -> [u32; 3] {
        let mut mine = weights;
        if let Some(only) = self.only() {
            mine = [0; 3];
            mine.iter_mut()
                .skip(only)
                .take(1)
                .for_each(|weight| *weight = 1);
        }
        mine
    }
}

/// What an operator decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Of each of [`SIZES`].
    pub(crate) weights: [u32; 3],
    /// From the beginning of a transfer to that of the next, on average.
    pub(crate) every: Duration,
    /// How much a single one differs, up or down, as a share of `every`.
    pub(crate) jitter: f64,
    /// Seeds sizes, pauses and payloads.
    pub(crate) seed: u64,
    /// Bytes in a month, both ways.
    pub(crate) limit: u64,
}

impl Plan {
    /// Bytes of payload that 30 days take if every transfer succeeds.
    pub(crate) fn payload_in_30_days(&self) -> u64 {
        let days = Duration::from_secs(30 * 86_400).as_millis();
        let times = days / self.every.as_millis().max(1);
        let all: u128 = self.weights.iter().map(|weight| u128::from(*weight)).sum();
        let sizes = SIZES.iter().zip(self.weights);
        let sum: u128 = sizes
            .map(|(size, weight)| u128::from(*size) * u128::from(weight))
            .sum();
        u64::try_from(times * sum / all.max(1)).unwrap_or(u64::MAX)
    }

    /// The largest reservation.
    pub(crate) fn largest(&self) -> u64 {
        let sizes = SIZES.iter().zip(self.weights);
        let drawn = sizes.filter(|(_, weight)| *weight > 0);
        drawn.map(|(size, _)| reserved(*size)).max().unwrap_or(0)
    }

    fn random(&self, number: u64, what: &str) -> SplitMix {
        let mut random = SplitMix::new(self.seed);
        random.absorb(what.bytes());
        random.absorb_number(number);
        random
    }

    fn size(&self, number: u64) -> u64 {
        let all: u64 = self.weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut left = self.random(number, "size").below(all);
        for (size, weight) in SIZES.iter().zip(self.weights.map(u64::from)) {
            if left < weight {
                return *size;
            }
            left -= weight;
        }
        SIZES[0]
    }

    fn pause(&self, number: u64) -> Duration {
        let share = unit(self.random(number, "pause").bits());
        let factor = 1.0 + self.jitter * (2.0 * share - 1.0);
        self.every.mul_f64(factor.clamp(0.0, 2.0))
    }

    /// Seeds the payload and the isolation token of a transfer.
    pub(crate) fn payload_seed(&self, number: u64) -> u64 {
        self.random(number, "payload").bits()
    }
}

/// Beyond what a transfer is broken off, in bytes over the interface: a quarter more than its payload for headers, acknowledgements, cells and what
/// is sent again, and what opening a circuit takes.
pub(crate) fn allowed(size: u64) -> u64 {
    (size + size / 4).saturating_add(128 << 10)
}

/// What is reserved: what may pass until a transfer that took too much is broken off comes on top.
pub(crate) fn reserved(size: u64) -> u64 {
    (size + size / 2).saturating_add(256 << 10)
}

/// The time of the calendar, and one that only goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// Seconds since 1970.
    pub(crate) unix: u64,
    /// Since any moment of this process.
    pub(crate) elapsed: Duration,
}

/// What is kept between two runs of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The number of the transfer that comes next, from 1.
    #[serde(default)]
    next: u64,
    #[serde(default)]
    ledger: Ledger,
    /// The month whose budget was said to be spent.
    spent: Option<Month>,
}

impl State {
    /// What was charged.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing for so long; ask again then.
    Wait(Duration),
    /// Save the state, then transfer this, then tell how it ended.
    Begin(Reservation),
    /// There is no room for this one in the month's budget: save, say so in a sample, tell that it has ended. Once a month.
    Spent(Reservation),
}

/// The longest that is waited at once: clocks are set, and limits end with months.
const LOOK: Duration = Duration::from_secs(60);

/// A monitor's schedule over one interface.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    plan: Plan,
    state: State,
    due: Duration,
}

impl Schedule {
    /// Goes on from what was kept. What was reserved when the program ended is charged in full, and answered with: that transfer was cut off.
    pub(crate) fn restore(plan: Plan, kept: State, now: Now) -> (Self, Option<Reservation>) {
        let mut schedule = Self {
            plan,
            state: kept,
            due: now.elapsed,
        };
        schedule.state.next = schedule.state.next.max(1);
        let cut = schedule.state.ledger.open();
        schedule.state.ledger.settle(None, now.unix);
        let charged = schedule.state.ledger.charged(now.unix);
        if charged.saturating_add(plan.largest()) <= plan.limit {
            // The operator has raised the limit.
            schedule.state.spent = None;
        }
        (schedule, cut)
    }

    /// What is kept.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// What an operator decided.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What was charged.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.state.ledger
    }

    /// What is to be done now.
    pub(crate) fn poll(&mut self, now: Now) -> Step {
        if let Some(left) = self
            .due
            .checked_sub(now.elapsed)
            .filter(|left| !left.is_zero())
        {
            return Step::Wait(left.min(LOOK));
        }
        let month = Month::of(now.unix);
        if self.state.spent == Some(month) {
            return Step::Wait(LOOK);
        }
        let number = self.state.next;
        let size = self.plan.size(number);
        let reservation = Reservation {
            number,
            size,
            bytes: reserved(size),
            at: now.unix,
        };
        if self.state.ledger.reserve(reservation, self.plan.limit) {
            self.begin(number, now);
            return Step::Begin(reservation);
        }
        // A number of its own: a sample like others. Smaller ones wait as well, so that sizes keep their shares.
        self.state.spent = Some(month);
        self.state.ledger.note(reservation);
        self.begin(number, now);
        Step::Spent(reservation)
    }

    /// Opens a sample that is no transfer of the schedule: save, write, tell that it has ended.
    pub(crate) fn note(&mut self, now: Now) -> Reservation {
        let note = Reservation {
            number: self.state.next,
            size: 0,
            bytes: 0,
            at: now.unix,
        };
        self.state.next = note.number.saturating_add(1);
        self.state.ledger.note(note);
        note
    }

    fn begin(&mut self, number: u64, now: Now) {
        self.state.next = number.saturating_add(1);
        self.due = now.elapsed.saturating_add(self.plan.pause(number));
    }

    /// A transfer is over; so many bytes went over the interface, if that is known.
    pub(crate) fn ended(&mut self, used: Option<u64>, now: Now) {
        self.state.ledger.settle(used, now.unix);
    }

    /// Something else went over the interface.
    pub(crate) fn charge(&mut self, bytes: u64, now: Now) {
        self.state.ledger.charge(bytes, now.unix);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-01 00:00 UTC: a month of 30 days.
    const NOVEMBER: u64 = 1_793_491_200;
    const MONTH: u64 = 30 * 86_400;

    fn plan(profile: Profile, limit: u64) -> Plan {
        Plan {
            weights: profile.weights(WEIGHTS),
            every: profile.every(WEIGHTS),
            jitter: 0.1,
            seed: 7,
            limit,
        }
    }

    /// What an emulated month came to.
    #[derive(Debug, Default)]
    struct Emulated {
        /// Over the interface.
        passed: u64,
        payload: u64,
        transfers: [u64; 3],
        spent: u64,
        kills: u64,
    }

    /// A month in which a transfer takes its payload and 6 % on top, and the program is killed with this chance at any point of a transfer.
    fn month(plan: Plan, kill: f64) -> (Emulated, Schedule) {
        let (mut random, mut all) = (SplitMix::new(3), Emulated::default());
        let mut elapsed = Duration::ZERO;
        let at = |elapsed: Duration| Now {
            unix: NOVEMBER + elapsed.as_secs(),
            elapsed,
        };
        let (mut schedule, _) = Schedule::restore(plan, State::default(), at(elapsed));
        while elapsed.as_secs() < MONTH {
            let before = serde_json::to_string(schedule.state()).unwrap();
            let again = |kept: &str, all: &mut Emulated, now| {
                all.kills += 1;
                let kept = serde_json::from_str(kept).unwrap();
                Schedule::restore(plan, kept, now).0
            };
            match schedule.poll(at(elapsed)) {
                Step::Wait(time) => elapsed += time,
                Step::Spent(_) => all.spent += 1,
                Step::Begin(reservation) => {
                    // Killed before the reservation was saved: nothing was sent.
                    if unit(random.bits()) < kill {
                        schedule = again(&before, &mut all, at(elapsed));
                        continue;
                    }
                    let saved = serde_json::to_string(schedule.state()).unwrap();
                    let whole = reservation.size + reservation.size * 6 / 100 + 3000;
                    elapsed += Duration::from_secs(1);
                    // Killed within the transfer, or after it and before its end was saved.
                    if unit(random.bits()) < kill {
                        all.passed += random.below(whole + 1);
                        schedule = again(&saved, &mut all, at(elapsed));
                        continue;
                    }
                    all.passed += whole;
                    all.payload += reservation.size;
                    let place = SIZES
                        .iter()
                        .position(|size| *size == reservation.size)
                        .unwrap();
                    all.transfers[place] += 1;
                    schedule.ended(Some(whole), at(elapsed));
                }
            }
            assert!(all.passed <= schedule.ledger().charged(NOVEMBER), "{all:?}");
            assert!(schedule.ledger().charged(NOVEMBER) <= plan.limit, "{all:?}");
        }
        (all, schedule)
    }

    const GB: u64 = 1_000_000_000;

    #[test]
    fn a_month_of_each_profile_takes_what_the_paper_says() {
        let taken = |profile| month(plan(profile, 100 * GB), 0.0).0;
        let full = taken(Profile::Full);
        assert!((20 * GB..23 * GB).contains(&full.payload), "{full:?}");
        let all: u64 = full.transfers.iter().sum();
        let shares = full.transfers.map(|count| count * 1000 / all);
        assert!(
            shares[0].abs_diff(860) < 10 && shares[1].abs_diff(90) < 10,
            "{shares:?}"
        );
        let large = full.transfers[2] * SIZES[2] * 100 / full.payload;
        assert!(
            (62..69).contains(&large),
            "the paper: 65 % of all bytes, {large}"
        );
        let partial = taken(Profile::Partial);
        let saved = full.payload - partial.payload;
        assert!((13 * GB / 2..15 * GB / 2).contains(&saved), "{partial:?}");
        let small = taken(Profile::OneMegabyte);
        assert!(
            (9 * GB / 2..11 * GB / 2).contains(&small.payload),
            "{small:?}"
        );
        println!("{full:?}\n{partial:?}\n{small:?}");
    }

    #[test]
    fn an_emulated_month_with_kills_never_passes_its_budget_and_says_once_that_it_is_spent() {
        for (profile, limit) in [
            (Profile::Full, 5 * GB),
            (Profile::Partial, GB),
            (Profile::OneMegabyte, GB),
        ] {
            let (all, schedule) = month(plan(profile, limit), 0.02);
            assert!(all.kills > 2 && all.spent == 1, "{all:?}");
            assert!(all.passed <= limit);
            let left = limit - schedule.ledger().charged(NOVEMBER);
            assert!(left < reserved(SIZES[2]), "it is used: {left}");
        }
    }

    #[test]
    fn a_restart_draws_what_would_have_come() {
        let plan = plan(Profile::Full, u64::MAX);
        let now = Now {
            unix: NOVEMBER,
            elapsed: Duration::ZERO,
        };
        let draw = |kept| Schedule::restore(plan, kept, now).0.poll(now);
        let (mut one, _) = Schedule::restore(plan, State::default(), now);
        let Step::Begin(first) = one.poll(now) else {
            unreachable!()
        };
        assert_eq!(draw(State::default()), Step::Begin(first));
        one.ended(Some(1), now);
        let Step::Begin(second) = draw(one.state().clone()) else {
            unreachable!()
        };
        assert_eq!((first.number, second.number), (1, 2));
    }

    #[test]
    fn what_was_cut_off_is_told_and_charged_in_full() {
        let now = Now {
            unix: NOVEMBER,
            elapsed: Duration::ZERO,
        };
        let (mut one, none) = Schedule::restore(plan(Profile::Partial, GB), State::default(), now);
        assert_eq!(none, None);
        let Step::Begin(first) = one.poll(now) else {
            unreachable!()
        };
        let (two, cut) = Schedule::restore(*one.plan(), one.state().clone(), now);
        assert_eq!(cut, Some(first));
        assert_eq!(two.ledger().charged(NOVEMBER), first.bytes);
    }

    proptest! {
        #[test]
        fn pauses_are_near_their_mean_and_never_nothing(number: u64, seed: u64) {
            let plan = Plan { seed, ..plan(Profile::Full, GB) };
            let pause = plan.pause(number);
            prop_assert!(pause >= plan.every.mul_f64(0.899) && pause <= plan.every.mul_f64(1.101));
            prop_assert!(SIZES.contains(&plan.size(number)));
        }
    }
}
