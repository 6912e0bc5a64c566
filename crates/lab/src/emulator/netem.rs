//! What links do to packets by chance, as Linux's netem does: loss before the queue, jitter behind the bottleneck, and the streams of random
//! numbers that they draw from, one for each link, direction and purpose. Duplication and corruption draw from such a stream directly.
//!
//! Only integers and comparisons, no function of the platform's mathematical library: every machine loses the same packets and draws the same
//! nanoseconds.

use hoplite_workload::splitmix::{self, SplitMix};
use rand_xoshiro::{
    Xoshiro256StarStar,
    rand_core::{Rng, SeedableRng},
};

use super::link::nanoseconds;
use crate::topology::{Jitter, JitterShape, Loss};

/// A loss model at work. It draws equally often for every packet, whatever is decided.
#[derive(Clone, Debug)]
pub struct Losses {
    model: Loss,
    random: Random,
    /// Packets seen.
    seen: u64,
    /// Gilbert-Elliott: the state. The first packet finds it good.
    bad: bool,
    /// Packet list: how many of its entries are behind us.
    passed: usize,
}

impl Losses {
    /// The model, with its stream of random numbers.
    #[must_use]
    pub fn new(model: &Loss, random: Random) -> Self {
        let mut model = model.clone();
        if let Loss::Packets { packets } = &mut model {
            packets.sort_unstable();
            packets.dedup();
        }
        Self {
            model,
            random,
            seen: 0,
            bad: false,
            passed: 0,
        }
    }

    /// Whether the next packet is lost.
    pub fn next_is_lost(&mut self) -> bool {
        self.seen += 1;
        match &self.model {
            Loss::None => false,
            Loss::Bernoulli { share } => self.random.happens(*share),
            &Loss::GilbertElliott {
                p,
                r,
                good_loss,
                bad_loss,
            } => self.gilbert_elliott([p, r], [good_loss, bad_loss]),
            Loss::Packets { packets } => {
                let lost = packets.get(self.passed) == Some(&self.seen);
                let skip = packets[self.passed.min(packets.len())..].iter();
                self.passed += skip.take_while(|&&packet| packet <= self.seen).count();
                lost
            }
        }
    }

    /// The state that a packet finds decides about it; then the state moves.
    fn gilbert_elliott(&mut self, moves: [f64; 2], losses: [f64; 2]) -> bool {
        let state = usize::from(self.bad);
        let lost = self.random.happens(losses[state]);
        self.bad ^= self.random.happens(moves[state]);
        lost
    }
}

/// Of the normal shape, nothing beyond so many widths.
const NORMAL_CUT: u64 = 4;
/// Of the Pareto shape, nothing beyond so many widths.
const PARETO_CUT: u64 = 20;
/// A draw beyond the cut is drawn again, so often at most.
const DRAWS: usize = 64;

/// A jitter at work.
#[derive(Clone, Debug)]
pub struct Jitters {
    shape: JitterShape,
    width: u64,
    random: Random,
}

impl Jitters {
    /// The jitter, with its stream of random numbers.
    #[must_use]
    pub fn new(jitter: &Jitter, random: Random) -> Self {
        Self {
            shape: jitter.shape,
            width: nanoseconds(jitter.width),
            random,
        }
    }

    /// Nanoseconds for the next packet.
    pub fn draw(&mut self) -> u64 {
        match self.shape {
            JitterShape::Uniform => self.random.below(self.width),
            JitterShape::Normal => self.normal(),
            JitterShape::Pareto => self.pareto(),
        }
    }

    /// |N(0, width)| by rejection: x evenly in 0..4 widths, kept with the probability e^(-x²/2).
    fn normal(&mut self) -> u64 {
        let cut = NORMAL_CUT as f64;
        for _ in 0..DRAWS {
            let bits = self.random.bits();
            let x = (bits >> 11) as f64 / (1_u64 << 53) as f64 * cut;
            if self.random.happens_exp(x * x / 2.0) {
                return scale(self.width.saturating_mul(NORMAL_CUT), bits >> 11, 53);
            }
        }
        0
    }

    /// Pareto of type I: scale `width`, hence never below it, and shape 3. The cube root of an even number is the largest of three.
    fn pareto(&mut self) -> u64 {
        for _ in 0..DRAWS {
            let largest = (0..3).map(|_| self.random.bits() >> 11).max();
            let wide = (u128::from(self.width) << 53) / u128::from(largest.unwrap_or(1).max(1));
            match u64::try_from(wide) {
                Ok(drawn) if drawn <= self.width.saturating_mul(PARETO_CUT) => return drawn,
                _ => {}
            }
        }
        self.width
    }
}

/// `value · numerator / 2^bits`.
fn scale(value: u64, numerator: u64, bits: u32) -> u64 {
    u64::try_from((u128::from(value) * u128::from(numerator)) >> bits).unwrap_or(u64::MAX)
}

/// One stream of random numbers: xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256StarStar);

impl Random {
    /// The stream of `purpose` on a direction (`LINK>` or `LINK<`). Nothing else in the network has an influence on it.
    #[must_use]
    pub fn new(seed: u64, direction: &str, purpose: &str) -> Self {
        let mut seeds = SplitMix::new(seed);
        seeds.absorb([direction, "\0", purpose].iter().flat_map(|t| t.bytes()));
        Self(Xoshiro256StarStar::seed_from_u64(seeds.state()))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Evenly in `0..1`, with 53 bits.
    pub fn unit(&mut self) -> f64 {
        splitmix::unit(self.bits())
    }

    /// Evenly in `0..bound`, 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        splitmix::below(self.bits(), bound)
    }

    /// True with this probability.
    pub fn happens(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// True with the probability e^-x, by comparisons alone (von Neumann 1951).
    pub fn happens_exp(&mut self, mut x: f64) -> bool {
        while x > 1.0 {
            if !self.happens_exp_small(1.0) {
                return false;
            }
            x -= 1.0;
        }
        self.happens_exp_small(x)
    }

    /// True with the probability e^-x for x in 0..=1: the length of the run of u1 ≤ x, u2 ≤ x/2, u3 ≤ x/3, … is even.
    fn happens_exp_small(&mut self, x: f64) -> bool {
        let mut divisor = 1.0;
        let mut even = true;
        while self.happens(x / divisor) {
            divisor += 1.0;
            even = !even;
        }
        even
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn lost_by(model: &Loss, count: usize) -> Vec<bool> {
        let mut losses = Losses::new(model, Random::new(5, "a-b>", "loss"));
        (0..count).map(|_| losses.next_is_lost()).collect()
    }

    fn share(lost: &[bool]) -> f64 {
        lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64
    }

    #[test]
    fn a_list_loses_exactly_its_packets_counted_from_one() {
        let packets = vec![3, 1, 7, 7];
        let lost = lost_by(&Loss::Packets { packets }, 9);
        let numbers: Vec<usize> = (1..)
            .zip(lost)
            .filter(|(_, l)| *l)
            .map(|(n, _)| n)
            .collect();
        assert_eq!(numbers, [1, 3, 7]);
    }

    #[test]
    fn gilbert_elliott_keeps_its_mean_loss_and_its_mean_burst() {
        let (p, r) = (0.02, 0.25);
        let model = Loss::GilbertElliott {
            p,
            r,
            good_loss: 0.0,
            bad_loss: 1.0,
        };
        let lost = lost_by(&model, 400_000);
        assert!((share(&lost) - p / (p + r)).abs() < 0.004);
        let bursts = lost.windows(2).filter(|pair| pair[0] && !pair[1]).count();
        let burst = share(&lost) * lost.len() as f64 / bursts as f64;
        assert!((burst - 1.0 / r).abs() < 0.1, "mean burst {burst}");
    }

    proptest! {
        #[test]
        fn bernoulli_loses_its_share_within_five_standard_deviations(share_asked in 0.0..1.0_f64) {
            let lost = lost_by(&Loss::Bernoulli { share: share_asked }, 20_000);
            let deviation = (share_asked * (1.0 - share_asked) / 20_000.0).sqrt();
            prop_assert!((share(&lost) - share_asked).abs() <= 5.0 * deviation + 1e-4);
        }
    }

    const WIDTH: f64 = 1e6;

    fn sorted(shape: JitterShape) -> Vec<f64> {
        let jitter = Jitter {
            shape,
            width: Duration::from_millis(1),
            reorder: false,
        };
        let mut jitters = Jitters::new(&jitter, Random::new(3, "a-b<", "jitter"));
        let mut drawn: Vec<u64> = (0..100_000).map(|_| jitters.draw()).collect();
        drawn.sort_unstable();
        drawn.iter().map(|&drawn| drawn as f64 / WIDTH).collect()
    }

    /// The Kolmogorov-Smirnov distance from a distribution.
    fn distance(sorted: &[f64], cdf: impl Fn(f64) -> f64) -> f64 {
        let n = sorted.len() as f64;
        let gap = |(i, &x): (usize, &f64)| ((i as f64 + 0.5) / n - cdf(x)).abs();
        sorted.iter().enumerate().map(gap).fold(0.0, f64::max)
    }

    /// Φ(x) - Φ(-x) by Simpson's rule.
    fn half_normal(x: f64) -> f64 {
        let (steps, density) = (400, |t: f64| {
            (-t * t / 2.0).exp() * (2.0 / std::f64::consts::PI).sqrt()
        });
        let h = x / f64::from(steps);
        let inner: f64 = (1..steps)
            .map(|i| density(h * f64::from(i)) * if i % 2 == 1 { 4.0 } else { 2.0 })
            .sum();
        h / 3.0 * (density(0.0) + inner + density(x))
    }

    #[test]
    fn uniform_jitter_fills_its_width_evenly() {
        let drawn = sorted(JitterShape::Uniform);
        assert!(distance(&drawn, |x| x) < 0.007);
        assert!(drawn[drawn.len() - 1] < 1.0);
    }

    #[test]
    fn normal_jitter_is_half_a_bell_and_ends_at_four_widths() {
        let drawn = sorted(JitterShape::Normal);
        assert!(distance(&drawn, half_normal) < 0.007);
        assert!(drawn[drawn.len() - 1] <= 4.0);
    }

    #[test]
    fn pareto_jitter_has_the_shape_three_between_one_and_twenty_widths() {
        let drawn = sorted(JitterShape::Pareto);
        assert!(distance(&drawn, |x| 1.0 - x.powi(-3)) < 0.007);
        assert!(drawn[0] >= 1.0 && drawn[drawn.len() - 1] <= 20.0);
    }

    #[test]
    fn no_width_is_no_jitter_and_a_huge_one_does_not_overflow() {
        for shape in [
            JitterShape::Uniform,
            JitterShape::Normal,
            JitterShape::Pareto,
        ] {
            for width in [Duration::ZERO, Duration::MAX] {
                let jitter = Jitter {
                    shape,
                    width,
                    reorder: true,
                };
                let mut jitters = Jitters::new(&jitter, Random::new(1, "a", "b"));
                let drawn = jitters.draw();
                assert!(width == Duration::MAX || drawn == 0);
            }
        }
    }

    fn draw(seed: u64, direction: &str, purpose: &str) -> Vec<u64> {
        let mut random = Random::new(seed, direction, purpose);
        (0..4).map(|_| random.bits()).collect()
    }

    #[test]
    fn a_seed_gives_the_numbers_that_it_has_always_given() {
        // Stored campaigns name their seed: another generator would run another experiment under its name.
        let expected = [
            6_133_517_999_843_407_097,
            9_789_743_062_771_668_616,
            8_715_041_702_502_568_177,
        ];
        assert_eq!(draw(7, "a-b>", "loss")[..3], expected);
    }

    #[test]
    fn a_stream_depends_on_seed_direction_and_purpose_and_on_nothing_else() {
        assert_eq!(draw(7, "a-b>", "loss"), draw(7, "a-b>", "loss"));
        let others = [
            draw(7, "a-b>", "loss"),
            draw(8, "a-b>", "loss"),
            draw(7, "a-b<", "loss"),
            draw(7, "a-b>", "jitter"),
            draw(7, "a-b", ">loss"),
        ];
        let distinct: std::collections::BTreeSet<_> = others.iter().collect();
        assert_eq!(distinct.len(), others.len());
    }

    #[test]
    fn probabilities_are_kept() {
        let mut random = Random::new(1, "x", "y");
        let mut share = |f: &mut dyn FnMut(&mut Random) -> bool| {
            (0..200_000).filter(|_| f(&mut random)).count() as f64 / 200_000.0
        };
        assert!((share(&mut |r| r.happens(0.3)) - 0.3).abs() < 0.005);
        for x in [0.0, 0.2, 1.0, 2.5] {
            let share = share(&mut |r| r.happens_exp(x));
            assert!((share - (-x).exp()).abs() < 0.005, "e^-{x}: {share}");
        }
    }
}
