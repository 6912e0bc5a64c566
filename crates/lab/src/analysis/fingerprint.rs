//! What somebody sees who watches the client's link and reads nothing: sizes, directions and times of packets, as features of a repetition.
//! `analyse` runs it after an attempt whose scenario has `analysis = "fingerprint"`; the report's classifier guesses from what it finds.
//! Paper 001 §9 asks whether many small acknowledgements make a pattern that gives nested tunnels away.
//!
//! Everything before the first transfer is left out: handshakes of a path. No feature is a total or a duration, so that the amount that is
//! carried tells nothing.

use super::{
    Seen,
    capture::{Capture, Captured, Way},
    quantile::{quantile_of_sorted, sorted},
};
use crate::errors::Failure;

/// What is being done, for messages.
pub(super) const DOING: &str = "looking at the pattern of packets";

/// What the names of its figures begin with.
pub(crate) const PREFIX: &str = "fingerprint:";

/// Upper ends of the classes of sizes, in octets of IP; the last class is everything larger. Each nested tunnel adds about 30 octets to an
/// acknowledgement.
const CLASSES: [usize; 8] = [70, 90, 110, 130, 160, 200, 400, 1000];

/// Figures by name.
pub(super) fn of_files(seen: &Seen, from: f64) -> Result<Vec<(String, f64)>, Failure> {
    let capture = seen.read()?;
    let named = |(name, value): (String, f64)| (format!("{PREFIX}{name}"), value);
    let features = features(&capture, from).into_iter().map(named);
    let features: Vec<_> = features.collect();
    match features.is_empty() {
        false => Ok(features),
        true => Err(Failure::new(
            DOING,
            "hardly a packet passed the link while the workloads ran",
            "name the link that the client's traffic takes",
        )),
    }
}

/// What is seen from a time on; nothing if not at least two packets went each way.
fn features(capture: &Capture, from: f64) -> Vec<(String, f64)> {
    let packets = capture.packets.iter().filter(|packet| packet.time >= from);
    let packets: Vec<&Captured> = packets.collect();
    let [out, into] = [Way::Out, Way::In].map(|way| Side::new(&packets, way));
    if out.sizes.len() < 2 || into.sizes.len() < 2 {
        return Vec::new();
    }
    let share = |one: f64, other: f64| one / (one + other);
    let counts = [&out, &into].map(|side| side.sizes.len() as f64);
    let octets = [&out, &into].map(|side| side.sizes.iter().sum::<f64>());
    let mut features = vec![
        ("out_packets_share".to_owned(), share(counts[0], counts[1])),
        ("out_octets_share".to_owned(), share(octets[0], octets[1])),
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
    /// Octets of its packets, sorted.
    sizes: Vec<f64>,
    /// Milliseconds between them, sorted.
    gaps: Vec<f64>,
}

impl Side {
    fn new(packets: &[&Captured], way: Way) -> Self {
        let of: Vec<&&Captured> = packets.iter().filter(|packet| packet.way == way).collect();
        let sizes: Vec<f64> = of.iter().map(|packet| packet.octets as f64).collect();
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn seen(packets: &[(f64, Way, usize)]) -> Capture {
        let packet = |(time, way, octets): &(f64, Way, usize)| Captured {
            time: *time,
            way: *way,
            octets: *octets,
            payload: None,
        };
        Capture {
            packets: packets.iter().map(packet).collect(),
        }
    }

    #[test]
    fn features_are_of_what_is_seen_after_the_beginning() {
        let capture = seen(&[
            (0.5, Way::Out, 1300),
            (1.0, Way::Out, 60),
            (1.25, Way::In, 1400),
            (1.5, Way::In, 1400),
            (1.75, Way::In, 100),
            (2.0, Way::Out, 140),
            (2.5, Way::In, 1400),
        ]);
        let found: BTreeMap<_, _> = features(&capture, 1.0).into_iter().collect();
        let expected = [
            ("out_packets_share", 2.0 / 6.0),
            ("out_octets_share", 200.0 / 4500.0),
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
        let capture = seen(&[(1.0, Way::Out, 60), (1.2, Way::In, 60), (2.0, Way::Out, 60)]);
        assert_eq!(features(&capture, 0.0), []);
    }
}
