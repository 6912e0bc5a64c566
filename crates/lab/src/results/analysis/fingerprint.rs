//! What somebody sees who watches the client's link and reads nothing: sizes, directions and times of packets, as features of a repetition
//! (`analysis = "fingerprint"`); and a classifier that guesses from them.
//! Paper 001 §9 asks whether many small acknowledgements make a pattern that gives nested tunnels away.
//!
//! Everything before the first transfer is left out: handshakes of a path. No feature is a total or a duration, so that the amount that is
//! carried tells nothing.

use super::{
    Capture, Captured, PacketDirection, Vantage,
    statistics::{quantile_of_sorted, sorted},
};
use crate::errors::Failure;

/// What is being done, for messages.
pub(super) const DOING: &str = "looking at the pattern of packets";

/// What the names of its figures begin with.
pub(crate) const PREFIX: &str = "fingerprint:";

/// Upper ends of the classes of sizes, in bytes of IP; the last class is everything larger. Each nested tunnel adds about 30 bytes to an
/// acknowledgement.
const CLASSES: [usize; 8] = [70, 90, 110, 130, 160, 200, 400, 1000];

/// Figures by name.
pub(super) fn of_files(seen: &Vantage, from: f64) -> Result<Vec<(String, f64)>, Failure> {
    let capture = seen.read()?;
    let named = |(name, value): (String, f64)| (format!("{PREFIX}{name}"), value);
    let features = features(&capture, from).into_iter().map(named);
    let features: Vec<_> = features.collect();
    if features.is_empty() {
        Err(Failure::new(
            DOING,
            "hardly a packet passed the link while the workloads ran",
            "name the link that the client's traffic takes",
        ))
    } else {
        Ok(features)
    }
}

/// What is seen from a time on; nothing if not at least two packets went each way.
fn features(capture: &Capture, from: f64) -> Vec<(String, f64)> {
    let packets = capture.packets.iter().filter(|packet| packet.time >= from);
    let packets: Vec<&Captured> = packets.collect();
    let [out, into] =
        [PacketDirection::Out, PacketDirection::In].map(|way| Side::new(&packets, way));
    if out.sizes.len() < 2 || into.sizes.len() < 2 {
        return Vec::new();
    }
    let share = |one: f64, other: f64| one / (one + other);
    let counts = [&out, &into].map(|side| side.sizes.len() as f64);
    let bytes = [&out, &into].map(|side| side.sizes.iter().sum::<f64>());
    let mut features = vec![
        ("out_packets_share".to_owned(), share(counts[0], counts[1])),
        ("out_bytes_share".to_owned(), share(bytes[0], bytes[1])),
        ("turns_share".to_owned(), turns(&packets)),
    ];
    for (name, side) in [("out", out), ("in", into)] {
        features.extend(side.features(name));
    }
    features
}

/// How often the direction changes from one packet to the next.
fn turns(packets: &[&Captured]) -> f64 {
    let pairs = packets.windows(2);
    let turned = pairs.filter(|pair| matches!(pair, [one, next] if one.way != next.way));
    turned.count() as f64 / packets.len() as f64
}

/// One direction.
struct Side {
    /// Bytes of its packets, sorted.
    sizes: Vec<f64>,
    /// Milliseconds between them, sorted.
    gaps: Vec<f64>,
}

impl Side {
    fn new(packets: &[&Captured], way: PacketDirection) -> Self {
        let of: Vec<&&Captured> = packets.iter().filter(|packet| packet.way == way).collect();
        let sizes: Vec<f64> = of.iter().map(|packet| packet.bytes as f64).collect();
        let gaps = of.windows(2).map(|pair| match pair {
            [one, next] => 1000.0 * (next.time - one.time),
            _ => 0.0,
        });
        Self {
            sizes: sorted(&sizes),
            gaps: sorted(&gaps.collect::<Vec<_>>()),
        }
    }

    fn features(&self, way: &str) -> Vec<(String, f64)> {
        let at = |of: &[f64], share| quantile_of_sorted(of, share).unwrap_or_default();
        let mut features = vec![
            ("size_mean".to_owned(), mean(&self.sizes)),
            ("size_p10".to_owned(), at(&self.sizes, 0.1)),
            ("size_p50".to_owned(), at(&self.sizes, 0.5)),
            ("size_p90".to_owned(), at(&self.sizes, 0.9)),
            ("size_entropy".to_owned(), entropy(&self.sizes)),
            ("gap_p10_ms".to_owned(), at(&self.gaps, 0.1)),
            ("gap_p50_ms".to_owned(), at(&self.gaps, 0.5)),
            ("gap_p90_ms".to_owned(), at(&self.gaps, 0.9)),
        ];
        features.extend(self.classes());
        let named = |(name, value)| (format!("{way}_{name}"), value);
        features.into_iter().map(named).collect()
    }

    /// The share of packets in each class of sizes.
    fn classes(&self) -> impl Iterator<Item = (String, f64)> {
        let mut counts = [0_usize; CLASSES.len() + 1];
        for size in &self.sizes {
            let class = CLASSES.iter().position(|end| *size <= *end as f64);
            counts[class.unwrap_or(CLASSES.len())] += 1;
        }
        let all = self.sizes.len() as f64;
        let name = |class: usize| match CLASSES.get(class) {
            Some(end) => format!("upto_{end}_share"),
            None => "larger_share".to_owned(),
        };
        let shares = counts.into_iter().enumerate();
        shares.map(move |(class, count)| (name(class), count as f64 / all))
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / (values.len().max(1) as f64)
}

/// Bits of surprise in a packet's size; sorted.
fn entropy(sizes: &[f64]) -> f64 {
    let same = sizes.chunk_by(|one, next| one == next);
    same.map(|run| {
        let share = run.len() as f64 / sizes.len() as f64;
        -share * share.log2()
    })
    .sum()
}

// A small honest classifier: how well do features tell classes apart?
//
// Nearest neighbours on standardised features: the three nearest of the others vote, the nearest one decides a tie. Left out of the others is
// the whole group (repetition) of the one that is asked about, from the scaling of features too, so that nothing of its own mood is known.
// Nothing is tuned; a better classifier may recognise more, so that the accuracy is a lower bound of what can be recognised.

/// How many neighbours vote.
const VOTERS: usize = 3;

/// The quantile of the normal distribution for intervals of 95 %.
const Z: f64 = 1.959_964;

/// Something whose class is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Example {
    /// Its class, from 0.
    pub(crate) class: usize,
    /// Those of a group are left out together.
    pub(crate) group: u32,
    /// All examples have one set of features, in one order.
    pub(crate) features: Vec<f64>,
}

/// What came of asking about each example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confusion {
    /// How often: `of[class][guess]`.
    pub(crate) of: Vec<Vec<usize>>,
}

impl Confusion {
    /// How often was asked.
    #[must_use]
    pub(crate) fn asked(&self) -> usize {
        self.of.iter().flatten().sum()
    }

    /// How often the guess was right.
    #[must_use]
    pub(crate) fn right(&self) -> usize {
        let diagonal = self.of.iter().enumerate();
        let diagonal = diagonal.filter_map(|(class, guesses)| guesses.get(class));
        diagonal.sum()
    }

    /// The share of right guesses.
    #[must_use]
    pub(crate) fn accuracy(&self) -> f64 {
        self.right() as f64 / self.asked().max(1) as f64
    }

    /// What the best guess without a look comes to: always the most frequent class.
    #[must_use]
    pub(crate) fn chance(&self) -> f64 {
        let sizes = self.of.iter().map(|guesses| guesses.iter().sum::<usize>());
        sizes.max().unwrap_or(0) as f64 / self.asked().max(1) as f64
    }

    /// The 95 % interval of the accuracy, after Wilson (1927): it does not shrink to a point where all guesses are right.
    #[must_use]
    pub(crate) fn interval(&self) -> (f64, f64) {
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
pub(crate) fn leave_group_out(examples: &[Example]) -> Confusion {
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
            if variance > 1e-18 * mean * mean {
                1.0 / variance
            } else {
                0.0
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
    use std::collections::BTreeMap;

    use super::*;
    use hoplite_workload::splitmix::{SplitMix, unit};

    fn seen(packets: &[(f64, PacketDirection, usize)]) -> Capture {
        let packet = |(time, way, bytes): &(f64, PacketDirection, usize)| Captured {
            time: *time,
            way: *way,
            bytes: *bytes,
            payload: None,
            tcp: false,
        };
        Capture {
            packets: packets.iter().map(packet).collect(),
        }
    }

    #[test]
    fn features_are_of_what_is_seen_after_the_beginning() {
        let capture = seen(&[
            (0.5, PacketDirection::Out, 1300),
            (1.0, PacketDirection::Out, 60),
            (1.25, PacketDirection::In, 1400),
            (1.5, PacketDirection::In, 1400),
            (1.75, PacketDirection::In, 100),
            (2.0, PacketDirection::Out, 140),
            (2.5, PacketDirection::In, 1400),
        ]);
        let found: BTreeMap<_, _> = features(&capture, 1.0).into_iter().collect();
        let expected = [
            ("out_packets_share", 2.0 / 6.0),
            ("out_bytes_share", 200.0 / 4500.0),
            // Out to in, in to out, out to in.
            ("turns_share", 0.5),
            ("out_size_mean", 100.0),
            ("out_size_p50", 100.0),
            ("out_size_entropy", 1.0),
            ("out_upto_70_share", 0.5),
            ("out_upto_160_share", 0.5),
            ("out_gap_p50_ms", 1000.0),
            ("in_size_p50", 1400.0),
            ("in_upto_110_share", 0.25),
            ("in_larger_share", 0.75),
            // 250, 250 and 750.
            ("in_gap_p50_ms", 250.0),
        ];
        for (name, value) in expected {
            assert!((found[name] - value).abs() < 1e-9, "{name}: {found:?}");
        }
    }

    #[test]
    fn a_link_with_hardly_a_packet_has_no_features() {
        let capture = seen(&[
            (1.0, PacketDirection::Out, 60),
            (1.2, PacketDirection::In, 60),
            (2.0, PacketDirection::Out, 60),
        ]);
        assert_eq!(features(&capture, 0.0), []);
    }

    /// This many repetitions of each class with features that are made of class and noise.
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
