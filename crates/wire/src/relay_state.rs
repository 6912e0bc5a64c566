//! What a relay keeps of itself through restarts, as its file has it: the most that it has carried on each of the last days, and the statistics that it
//! tells, with their noise. Nothing exact of anybody is in it. Lines as in an extra-info document ([`crate::tor::extra_info`]), below a first line that
//! says what the file is, and `observed DAY READ WRITTEN` lines.

use crate::{
    directory::Malformed,
    tor::extra_info::{EXTRA_INFO, Statistics},
};

const FIRST: &str = "hoplite-relay-state 1";
const OBSERVED: &str = "observed ";

/// Days that one file may have.
const DAYS: usize = 16;

/// The most of any ten seconds of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Days since 1970.
    pub day: u64,
    /// Bytes a second that were read.
    pub read: u64,
    /// Bytes a second that were written.
    pub written: u64,
}

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayState {
    /// The oldest day first.
    pub observed: Vec<Observed>,
    /// What was told last.
    pub statistics: Statistics,
}

impl RelayState {
    /// The file's text.
    pub fn write(&self) -> String {
        let mut text = format!("{FIRST}\n");
        for Observed { day, read, written } in &self.observed {
            text.push_str(&format!("{OBSERVED}{day} {read} {written}\n"));
        }
        self.statistics.write(&mut text);
        text
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let wrong = |line, what| Malformed { line, what };
        let rest = text
            .strip_prefix(FIRST)
            .and_then(|rest| rest.strip_prefix('\n'));
        let rest = rest.filter(|rest| rest.len() <= EXTRA_INFO);
        let mut rest = rest.ok_or_else(|| wrong(1, "no state of a relay"))?;
        let mut observed: Vec<Observed> = Vec::new();
        while let Some(line) = rest.strip_prefix(OBSERVED) {
            let number = observed.len().saturating_add(2);
            let (line, after) = line.split_once('\n').ok_or_else(|| wrong(number, "cut"))?;
            let day = day(line).filter(|day| observed.last().is_none_or(|last| last.day < day.day));
            let day = day.filter(|_| observed.len() < DAYS);
            observed.push(day.ok_or_else(|| wrong(number, "observed bandwidth"))?);
            rest = after;
        }
        let before = observed.len().saturating_add(1);
        let statistics = Statistics::parse(rest).map_err(|Malformed { line, what }| Malformed {
            // It counts from the line that it has read.
            line: line.saturating_add(before).saturating_sub(1),
            what,
        })?;
        Ok(Self {
            observed,
            statistics,
        })
    }
}

fn day(text: &str) -> Option<Observed> {
    let mut numbers = text.split(' ').map(|word| {
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| word.parse().ok()).flatten()
    });
    let observed = Observed {
        day: numbers.next()??,
        read: numbers.next()??,
        written: numbers.next()??,
    };
    numbers.next().is_none().then_some(observed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{collection::btree_map, prelude::*};

    use super::*;

    #[test]
    fn a_file_that_is_none_is_refused_by_its_line() {
        let line = |text: &str| RelayState::parse(text).expect_err("refused").line;
        assert_eq!(line(""), 1);
        assert_eq!(line("hoplite-relay-state 1\nobserved 1 2\n"), 2);
        assert_eq!(
            line("hoplite-relay-state 1\nobserved 2 2 2\nobserved 1 2 2\n"),
            3
        );
        let text = "hoplite-relay-state 1\nobserved 1 2 3\nconn-bi-direct 1\n";
        assert_eq!(line(text), 3);
    }

    proptest! {
        #[test]
        fn what_is_kept_is_read_again(days in btree_map(any::<u64>(), any::<(u64, u64)>(), 0..DAYS), circuits: Option<u64>) {
            let observed = |(day, (read, written))| Observed { day, read, written };
            let days: BTreeMap<u64, (u64, u64)> = days;
            let interval = crate::tor::extra_info::Interval { end: 1_795_737_600, length: 86_400 };
            let state = RelayState {
                observed: days.into_iter().map(observed).collect(),
                statistics: Statistics { circuits: circuits.map(|count| (interval, count)), ..Statistics::default() },
            };
            prop_assert_eq!(RelayState::parse(&state.write()), Ok(state));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "(hoplite-relay-state 1\n)?([a-z-]{1,16}( [ -~]{0,30})?\n){0,9}") {
            drop(RelayState::parse(&text));
        }
    }
}
