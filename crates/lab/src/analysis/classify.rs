//! A small honest classifier: how well do features tell classes apart? The report asks it what an observer of packets recognises.
//!
//! Nearest neighbours on standardised features: the three nearest of the others vote, the nearest one decides a tie. Left out of the others is
//! the whole group (repetition) of the one that is asked about, from the scaling of features too, so that nothing of its own mood is known.
//! Nothing is tuned; a better classifier may recognise more, so that the accuracy is a lower bound of what can be recognised.

/// How many neighbours vote.
const VOTERS: usize = 3;

/// The quantile of the normal distribution for intervals of 95 %.
const Z: f64 = 1.959_964;

/// Something whose class is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// Its class, from 0.
    pub class: usize,
    /// Those of a group are left out together.
    pub group: u32,
    /// The same features in the same order for all.
    pub features: Vec<f64>,
}

/// What came of asking about each example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confusion {
    /// How often: `of[class][guess]`.
    pub of: Vec<Vec<usize>>,
}

impl Confusion {
    /// How often was asked.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.of.iter().flatten().sum()
    }

    /// How often the guess was right.
    #[must_use]
    pub fn right(&self) -> usize {
        let diagonal = self.of.iter().enumerate();
        let diagonal = diagonal.filter_map(|(class, guesses)| guesses.get(class));
        diagonal.sum()
    }

    /// The share of right guesses.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        self.right() as f64 / self.asked().max(1) as f64
    }

    /// What the best guess without a look comes to: always the most frequent class.
    #[must_use]
    pub fn chance(&self) -> f64 {
        let sizes = self.of.iter().map(|guesses| guesses.iter().sum::<usize>());
        sizes.max().unwrap_or(0) as f64 / self.asked().max(1) as f64
    }

    /// The 95 % interval of the accuracy, after Wilson (1927): it does not shrink to a point where all guesses are right.
    #[must_use]
    pub fn interval(&self) -> (f64, f64) {
        let n = self.asked().max(1) as f64;
        let share = self.accuracy();
        let middle = share + Z * Z / (2.0 * n);
        let half = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + Z * Z / n;
        let ends = ((middle - half) / scale, (middle + half) / scale);
        (ends.0.max(0.0), ends.1.min(1.0))
    }
}

/// Asks about every example that has others beyond its group.
#[must_use]
pub fn leave_group_out(examples: &[Example]) -> Confusion {
    let classes = examples.iter().map(|example| example.class + 1);
    let classes = classes.max().unwrap_or(0);
    let mut confusion = Confusion {
        of: vec![vec![0; classes]; classes],
    };
    let mut groups: Vec<u32> = examples.iter().map(|example| example.group).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        let (asked, known): (Vec<&Example>, Vec<&Example>) =
            examples.iter().partition(|example| example.group == group);
        let scale = Scale::of(&known);
        for example in asked {
            if let Some(guess) = scale.guess(&known, example) {
                confusion.of[example.class][guess] += 1;
            }
        }
    }
    confusion
}

/// How much a feature varies among those that are known: 0 weight if it does not.
struct Scale {
    weights: Vec<f64>,
}

impl Scale {
    fn of(known: &[&Example]) -> Self {
        let count = known.first().map_or(0, |example| example.features.len());
        let weight = |place: usize| {
            let values = known.iter().filter_map(|known| known.features.get(place));
            let n = known.len() as f64;
            let mean = values.clone().sum::<f64>() / n;
            let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / n;
            // What is left of a constant after rounding is no variation.
            match variance > 1e-18 * mean * mean {
                true => 1.0 / variance,
                false => 0.0,
            }
        };
        Self {
            weights: (0..count).map(weight).collect(),
        }
    }

    /// The square of the distance.
    fn away(&self, one: &Example, other: &Example) -> f64 {
        let pairs = one.features.iter().zip(&other.features);
        let parts = pairs.zip(&self.weights);
        parts
            .map(|((one, other), weight)| weight * (one - other).powi(2))
            .sum()
    }

    fn guess(&self, known: &[&Example], asked: &Example) -> Option<usize> {
        let mut near: Vec<(f64, usize)> = known
            .iter()
            .map(|other| (self.away(asked, other), other.class))
            .collect();
        near.sort_by(|one, other| one.0.total_cmp(&other.0));
        near.truncate(VOTERS);
        let votes = |class: usize| near.iter().filter(|(_, other)| *other == class).count();
        // Of the classes with the most votes the one that is met first is the nearest.
        let most = near.iter().map(|(_, class)| votes(*class)).max()?;
        let first = near.iter().find(|(_, class)| votes(*class) == most);
        first.map(|(_, class)| *class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix::{SplitMix, unit};

    /// So many repetitions of each class with features that are made of class and noise.
    fn made_up(
        (classes, repetitions): (usize, u32),
        mut features: impl FnMut(usize, f64) -> Vec<f64>,
    ) -> Vec<Example> {
        let mut random = SplitMix::new(7);
        let mut examples = Vec::new();
        for group in 0..repetitions {
            for class in 0..classes {
                let features = features(class, unit(random.bits()));
                examples.push(Example {
                    class,
                    group,
                    features,
                });
            }
        }
        examples
    }

    #[test]
    fn classes_that_lie_apart_are_all_recognised() {
        // The second feature is noise in a unit a thousand times larger.
        let apart = |class: usize, noise: f64| vec![class as f64 + 0.1 * noise, 1000.0 * noise];
        let found = leave_group_out(&made_up((2, 20), apart));
        assert_eq!(found.of, [[20, 0], [0, 20]]);
        assert_eq!((found.accuracy(), found.chance()), (1.0, 0.5));
        let (low, high) = found.interval();
        // Wilson: 1 / (1 + z² / n).
        assert!((low - 40.0 / (40.0 + Z * Z)).abs() < 1e-12 && high == 1.0);
    }

    #[test]
    fn two_classes_that_are_alike_are_mistaken_for_each_other_only() {
        let alike = |class: usize, noise: f64| vec![(class.min(1) * 10) as f64 + noise];
        let found = leave_group_out(&made_up((3, 60), alike));
        assert_eq!(found.of[0], [60, 0, 0]);
        assert_eq!((found.of[1][0], found.of[2][0]), (0, 0));
        let between = found.of[1][1] + found.of[2][2];
        assert!((40..80).contains(&between), "{found:?}");
    }

    #[test]
    fn features_without_information_come_to_chance() {
        let noise = made_up((4, 100), |_, noise| vec![noise, noise * noise]);
        let found = leave_group_out(&noise);
        let (low, high) = found.interval();
        assert!(low <= 0.25 && 0.25 <= high, "{found:?}");
        assert_eq!((found.chance(), found.asked()), (0.25, 400));
        // Nothing varies at all.
        let same = leave_group_out(&made_up((4, 10), |_, _| vec![0.1, 3.0]));
        assert_eq!(same.accuracy(), 0.25);
    }

    #[test]
    fn nothing_is_learned_from_the_repetition_that_is_asked_about() {
        // Each example is there twice in its repetition: whoever saw it would know its class.
        let mut twice = made_up((4, 100), |_, noise| vec![noise]);
        twice.extend(twice.clone());
        let found = leave_group_out(&twice);
        assert!((0.18..0.33).contains(&found.accuracy()), "{found:?}");
    }

    #[test]
    fn a_single_repetition_is_not_asked_about() {
        let found = leave_group_out(&made_up((3, 1), |class, _| vec![class as f64]));
        assert_eq!((found.asked(), found.accuracy()), (0, 0.0));
        assert_eq!(leave_group_out(&[]), Confusion::default());
    }
}
