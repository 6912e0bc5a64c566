//! What a direction adds to its delay, packet by packet. `link` draws it once for each packet that leaves the bottleneck.
//! Only integers and comparisons, so that every platform draws the same nanoseconds.

use super::{link::nanoseconds, random::Random};
use crate::topology::{Jitter, JitterShape};

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
}
