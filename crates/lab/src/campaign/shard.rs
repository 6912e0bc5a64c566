//! Which part of a campaign a machine runs: `--shard i/n`. All subjects of a case's repetition stay together: they are compared, so they run
//! on the same machine, interleaved.

use std::{collections::HashMap, str::FromStr};

use crate::trial::Key;

/// The i-th of n parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From 1.
    pub(crate) number: usize,
    /// How many there are.
    pub(crate) of: usize,
}

impl FromStr for Shard {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "it is not I/N with 1 ≤ I ≤ N";
        let (number, of) = text.split_once('/').ok_or(FORM)?;
        let number = number.parse().map_err(|_| FORM)?;
        let of = of.parse().map_err(|_| FORM)?;
        if number < 1 || number > of {
            return Err(FORM);
        }
        Ok(Self { number, of })
    }
}

impl Shard {
    /// Says for each of all the keys, in order, whether it belongs here. Groups are dealt out in turn, so that no shard has more than one group
    /// above another; the keys' order is a seeded shuffle, so each has its share of every case.
    pub(crate) fn filter(self, keys: &[Key]) -> Vec<bool> {
        let mut groups = HashMap::new();
        keys.iter()
            .map(|key| {
                let next = groups.len();
                let group = *groups.entry((&key.case, key.repetition)).or_insert(next);
                group % self.of == self.number - 1
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn keys() -> Vec<Key> {
        let key = |n: u32| Key {
            scenario: "s".into(),
            case: BTreeMap::from([("hops".into(), (n % 3).to_string())]),
            subject: if n.is_multiple_of(2) { "a" } else { "b" }.into(),
            repetition: 1 + n / 6,
        };
        (0..30).map(key).collect()
    }

    #[test]
    fn shards_cover_everything_once_and_keep_what_is_compared_together() {
        let keys = keys();
        let shards: Vec<_> = (1..=4)
            .map(|number| Shard { number, of: 4 }.filter(&keys))
            .collect();
        let owner = |i: usize| {
            let owners: Vec<_> = (0..4).filter(|s: &usize| shards[*s][i]).collect();
            assert_eq!(owners.len(), 1);
            owners[0]
        };
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                if a.case == b.case && a.repetition == b.repetition {
                    assert_eq!(owner(i), owner(j));
                }
            }
        }
        let sizes: Vec<_> = shards
            .iter()
            .map(|s| s.iter().filter(|mine| **mine).count())
            .collect();
        assert!(sizes.iter().all(|size| (6..=8).contains(size)), "{sizes:?}");
    }

    #[test]
    fn a_shard_is_two_numbers_in_order() {
        assert_eq!("2/4".parse(), Ok(Shard { number: 2, of: 4 }));
        for wrong in ["", "2", "0/4", "5/4", "1/0", "a/b", "1/2/3", "-1/4"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
