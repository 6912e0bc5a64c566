//! How long the rest will take: each repetition as long as those of its case and subject took, else those of its subject, else all.
//! `progress` shows it.

use std::collections::HashMap;

use crate::trial::Key;

/// A mean under way.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, seconds: f64) {
        self.sum += seconds;
        self.count += 1.0;
    }

    fn value(self) -> f64 {
        self.sum / self.count
    }
}

/// What is known about durations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimate {
    pairs: HashMap<Key, Mean>,
    subjects: HashMap<String, Mean>,
    all: Mean,
}

impl Estimate {
    /// A repetition took so long, with all its attempts.
    pub(crate) fn add(&mut self, key: &Key, seconds: f64) {
        self.pairs.entry(pair(key)).or_default().add(seconds);
        let subject = self.subjects.entry(key.subject.clone());
        subject.or_default().add(seconds);
        self.all.add(seconds);
    }

    /// Seconds for all of these; `None` as long as nothing is known.
    pub(crate) fn left<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Option<f64> {
        (self.all.count > 0.0).then(|| {
            keys.map(|key| self.one(key))
                .fold(0.0, |all, one| all + one)
        })
    }

    fn one(&self, key: &Key) -> f64 {
        let pair = self.pairs.get(&pair(key));
        let known = pair.or_else(|| self.subjects.get(&key.subject));
        known.unwrap_or(&self.all).value()
    }
}

fn pair(key: &Key) -> Key {
    Key {
        repetition: 0,
        ..key.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn key(hops: &str, subject: &str, repetition: u32) -> Key {
        Key {
            scenario: "s".into(),
            case: BTreeMap::from([("hops".into(), hops.into())]),
            subject: subject.into(),
            repetition,
        }
    }

    #[test]
    fn a_repetition_is_expected_to_take_as_long_as_its_like() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.left([key("1", "a", 1)].iter()), None);
        estimate.add(&key("1", "a", 1), 10.0);
        estimate.add(&key("1", "b", 1), 30.0);
        let left = |key| estimate.left([key].iter());
        assert_eq!(left(key("1", "a", 2)), Some(10.0));
        assert_eq!(left(key("2", "b", 1)), Some(30.0));
        assert_eq!(left(key("2", "c", 1)), Some(20.0));
    }
}
