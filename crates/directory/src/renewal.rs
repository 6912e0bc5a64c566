//! When those who have a list of ours, or a consensus of Tor's, ask for the next: clients so that they do not come all at once, those who keep it for
//! others before clients do. docs/directory.md, "What a client believes" and "Caches"; dir-spec "Client operation", "Directory cache operation".

/// For how long a list or a consensus holds. In seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// From when it holds.
    pub valid_after: u64,
    /// When there should be another.
    pub fresh_until: u64,
    /// Until when it may be used.
    pub valid_until: u64,
}

/// Gives a number below its argument.
type Below<'a> = &'a mut dyn FnMut(u64) -> u64;

impl Lifetime {
    /// When who has a list asks again: at a moment between an eighth and two thirds of the time that is left when it is no longer fresh.
    pub fn next_list(self, random: Below<'_>) -> u64 {
        let left = self.valid_until.saturating_sub(self.fresh_until);
        let (begins, ends) = (left / 8, left / 3 * 2);
        let room = ends.saturating_sub(begins).max(1);
        self.fresh_until
            .saturating_add(begins)
            .saturating_add(random(room))
    }

    /// When who keeps lists for others does: in the first sixteenth of that time, and has as long again for what goes wrong before clients come.
    pub fn next_list_of_cache(self, random: Below<'_>) -> u64 {
        let room = self.valid_until.saturating_sub(self.fresh_until) / 16;
        self.fresh_until.saturating_add(random(room.max(1)))
    }

    /// When a relay does whose list is of little use yet, as the next may have many more relays: in the first half-interval after it is no longer fresh.
    pub fn next_list_of_newcomer(self, random: Below<'_>) -> u64 {
        let half = self.interval() / 2;
        self.fresh_until.saturating_add(random(half.max(1)))
    }

    /// When who has a consensus asks again: "chosen uniformly at random from the interval between the time 3/4 into the first interval after the consensus
    /// is no longer fresh, and 7/8 of the time remaining after that before the consensus is invalid".
    pub fn next_consensus(self, random: Below<'_>) -> u64 {
        let begins = self.fresh_until.saturating_add(self.interval() / 4 * 3);
        let room = self.valid_until.saturating_sub(begins) / 8 * 7;
        begins.saturating_add(random(room.max(1)))
    }

    /// When a directory cache does: "at a randomly chosen time in the first half-interval after its current consensus stops being fresh".
    pub fn next_consensus_of_cache(self, random: Below<'_>) -> u64 {
        let half = self.interval() / 2;
        self.fresh_until.saturating_add(random(half.max(1)))
    }

    /// How often there is another.
    fn interval(self) -> u64 {
        self.fresh_until.saturating_sub(self.valid_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For an hour, to be used for three.
    const HOUR: Lifetime = Lifetime {
        valid_after: 36_000,
        fresh_until: 39_600,
        valid_until: 46_800,
    };

    #[test]
    fn who_keeps_it_for_others_asks_before_any_client() {
        let between = |next: fn(Lifetime, Below<'_>) -> u64| {
            let first = next(HOUR, &mut |_| 0);
            (first - 39_600, next(HOUR, &mut |below| below - 1) - 39_600)
        };
        assert_eq!(between(Lifetime::next_list), (900, 4799));
        assert_eq!(between(Lifetime::next_list_of_cache), (0, 449));
        assert_eq!(between(Lifetime::next_list_of_newcomer), (0, 1799));
        assert_eq!(between(Lifetime::next_consensus), (2700, 6633));
        assert_eq!(between(Lifetime::next_consensus_of_cache), (0, 1799));
    }

    #[test]
    fn without_any_time_there_is_a_moment_all_the_same() {
        let none = Lifetime {
            valid_after: 5,
            fresh_until: 5,
            valid_until: 5,
        };
        let next = [
            none.next_list(&mut |below| below - 1),
            none.next_list_of_cache(&mut |below| below - 1),
            none.next_consensus(&mut |below| below - 1),
            none.next_consensus_of_cache(&mut |below| below - 1),
        ];
        assert_eq!(next, [5; 4]);
    }
}
