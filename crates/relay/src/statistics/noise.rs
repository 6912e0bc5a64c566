//! Noise that hides one person in a figure: the Laplace distribution on whole numbers, drawn exactly. Canonne, Kamath and Steinke, "The Discrete Gaussian
//! for Differential Privacy" (2020), algorithms 1 and 2; Dwork et al., "Calibrating noise to sensitivity" (2006).
//!
//! Why not the logarithm of a uniform `f64`: what floating point can and cannot represent tells of the exact figure below the noise (Mironov, "On
//! significance of the least significant bits for differential privacy", 2012). Here everything is a whole number, and each probability is a ratio of two:
//! nothing is rounded before the noise is in. Figures are rounded after it, which tells less and not more.

use hoplite_wire::tor::extra_info::{Noise, Obfuscated};
use ring::rand::{SecureRandom, SystemRandom};

/// Where uniform numbers come from; `None` where the system has none: then nothing is told.
pub type Random<'a> = dyn FnMut() -> Option<u64> + 'a;

/// The system's randomness.
pub fn system() -> impl FnMut() -> Option<u64> {
    let system = SystemRandom::new();
    move || {
        let mut bytes = [0; 8];
        system.fill(&mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// A figure that is no less than nothing: noise, then the rounding to the nearest multiple. Of several that one person's day changes together, all of
/// them are hidden by this, with a `delta_f` that is the most by which they change in sum.
pub fn hide(count: u64, noise: Noise, random: &mut Random<'_>) -> Option<u64> {
    let drawn = laplace(noise, random)?;
    let hidden = count.saturating_add_signed(drawn);
    let bin = noise.bin_size.max(1);
    Some(hidden.saturating_add(bin / 2) / bin * bin)
}

/// As Tor's relays do with what they count for onion services (proposal 238): rounded up, then noise, which may make it negative. `delta_f` is a multiple of
/// `bin_size`, so that rounding makes no change larger.
pub fn obfuscate(count: u64, noise: Noise, random: &mut Random<'_>) -> Option<Obfuscated> {
    let binned = count.checked_next_multiple_of(noise.bin_size.max(1))?;
    let binned = i64::try_from(binned).unwrap_or(i64::MAX);
    let value = binned.saturating_add(laplace(noise, random)?);
    Some(Obfuscated { value, noise })
}

/// A whole number `z` with a probability in proportion to `exp(-|z| * epsilon / delta_f)`.
fn laplace(noise: Noise, random: &mut Random<'_>) -> Option<i64> {
    // The scale is t / s.
    let t = noise.delta_f.checked_mul(100).filter(|t| *t > 0)?;
    let s = u64::from(noise.epsilon.get());
    loop {
        let rest = below(t, random)?;
        if !happens_exp(rest, t, random)? {
            continue;
        }
        let mut whole = 0_u64;
        while happens_exp(1, 1, random)? {
            whole = whole.checked_add(1)?;
        }
        let size = t.checked_mul(whole)?.checked_add(rest)? / s;
        let is_negative = below(2, random)? == 1;
        // Else zero would come twice as often.
        if is_negative && size == 0 {
            continue;
        }
        let size = i64::try_from(size).ok()?;
        return Some(if is_negative { -size } else { size });
    }
}

/// Whether what has the probability `exp(-numerator / denominator)` happens; the ratio is one at most.
fn happens_exp(numerator: u64, denominator: u64, random: &mut Random<'_>) -> Option<bool> {
    let mut k = 1_u64;
    while below(denominator.checked_mul(k)?, random)? < numerator {
        k = k.checked_add(1)?;
    }
    Some(k % 2 == 1)
}

/// Uniform below `bound`.
fn below(bound: u64, random: &mut Random<'_>) -> Option<u64> {
    // The largest multiple of it: numbers beyond would make the first ones likelier.
    let fair = u64::MAX - u64::MAX % bound;
    loop {
        let drawn = random()?;
        if drawn < fair {
            return Some(drawn % bound);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use hoplite_wire::tor::extra_info::Epsilon;

    use super::*;

    /// Numbers that are the same for the same seed (splitmix64).
    pub(in crate::statistics) fn seeded(mut state: u64) -> impl FnMut() -> Option<u64> {
        move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            Some(z ^ (z >> 31))
        }
    }

    fn noise(delta_f: u64, hundredths: u32, bin_size: u64) -> Noise {
        let epsilon = Epsilon::hundredths(hundredths).expect("more than none");
        Noise {
            delta_f,
            epsilon,
            bin_size,
        }
    }

    /// The probability of at most `z`.
    fn cumulative(z: i64, noise: Noise) -> f64 {
        let step = f64::from(noise.epsilon.get()) / 100.0 / noise.delta_f as f64;
        let q = (-step).exp();
        match z {
            0.. => 1.0 - q.powf(z as f64 + 1.0) / (1.0 + q),
            _ => q.powf(-z as f64) / (1.0 + q),
        }
    }

    /// The largest distance of the drawn numbers' distribution from what it should be (Kolmogorov and Smirnov).
    fn distance(drawn: &mut [i64], noise: Noise) -> f64 {
        drawn.sort_unstable();
        let all = drawn.len() as f64;
        let mut largest = 0.0_f64;
        for z in drawn.iter() {
            let upto = drawn.partition_point(|other| other <= z) as f64 / all;
            let under = drawn.partition_point(|other| other < z) as f64 / all;
            largest = largest
                .max((upto - cumulative(*z, noise)).abs())
                .max((under - cumulative(*z - 1, noise)).abs());
        }
        largest
    }

    #[test]
    fn what_is_drawn_has_the_distribution_that_is_stated() {
        const DRAWN: usize = 20_000;
        for (seed, stated) in [
            (1, noise(8, 30, 1)),
            (2, noise(2048, 30, 1)),
            (3, noise(400 << 20, 30, 1)),
            (4, noise(1, 250, 1)),
        ] {
            let mut random = seeded(seed);
            let drawn = (0..DRAWN).map(|_| laplace(stated, &mut random).expect("drawn"));
            let mut drawn: Vec<i64> = drawn.collect();
            // Beyond this one in a thousand right generators is.
            let critical = 1.95 / (DRAWN as f64).sqrt();
            let found = distance(&mut drawn, stated);
            assert!(found < critical, "{stated:?}: {found} of {critical}");
            // And one that is a tenth too wide or too narrow is found out.
            for hundredths in [
                stated.epsilon.get() * 9 / 10,
                stated.epsilon.get() * 11 / 10,
            ] {
                let other = noise(stated.delta_f, hundredths, 1);
                assert!(distance(&mut drawn, other) > critical, "{other:?}");
            }
        }
    }

    #[test]
    fn zero_comes_as_often_as_it_should() {
        let stated = noise(1, 100, 1);
        let mut random = seeded(5);
        let zeros = (0..50_000).filter(|_| laplace(stated, &mut random) == Some(0));
        let share = zeros.count() as f64 / 50_000.0;
        let right = (1.0 - (-1.0_f64).exp()) / (1.0 + (-1.0_f64).exp());
        assert!((share - right).abs() < 0.01, "{share} and not {right}");
    }

    /// How often each published figure comes of `count`.
    fn frequencies(count: u64, noise: Noise, seeds: std::ops::Range<u64>) -> Vec<(u64, f64)> {
        let all = (seeds.end - seeds.start) as f64;
        let told = seeds.map(|seed| hide(count, noise, &mut seeded(seed)).expect("told"));
        let mut told: Vec<u64> = told.collect();
        told.sort_unstable();
        let runs = told.chunk_by(|a, b| a == b);
        runs.map(|run| (run[0], run.len() as f64 / all)).collect()
    }

    #[test]
    fn with_and_without_one_person_each_figure_is_about_as_likely() {
        // Wide bins, so that each figure comes often enough to be counted.
        let noise = noise(10, 100, 20);
        let with = frequencies(110, noise, 0..60_000);
        let without = frequencies(100, noise, 60_000..120_000);
        let mut compared = 0;
        for (figure, share) in &with {
            let other = without.iter().find(|(told, _)| told == figure);
            let Some((_, other)) = other.filter(|(_, other)| share.min(*other) > 0.005) else {
                continue;
            };
            compared += 1;
            let ratio = (share / other).ln().abs();
            // The budget, and what chance adds at this many.
            assert!(ratio < 1.0 + 0.25, "{figure}: {ratio}");
        }
        assert!(compared > 3, "{compared}");
        // One who may change it by three times as much can be told.
        let three = frequencies(130, noise, 120_000..180_000);
        let tells = |figure: &u64, share: &f64| {
            let other = without.iter().find(|(told, _)| told == figure);
            other.is_some_and(|(_, other)| (share / other).ln().abs() > 1.5)
        };
        assert!(three.iter().any(|(figure, share)| tells(figure, share)));
    }

    #[test]
    fn figures_are_multiples_and_never_below_nothing() {
        for seed in 0..2000 {
            let told = hide(3, noise(100, 10, 4), &mut seeded(seed)).expect("told");
            assert!(told.is_multiple_of(4));
        }
        let negative = (0..200).filter_map(|seed| obfuscate(0, noise(8, 30, 8), &mut seeded(seed)));
        let negative = negative.filter(|told| told.value < 0).count();
        assert!((60..140).contains(&negative), "{negative} of 200");
    }

    #[test]
    fn without_randomness_nothing_is_told() {
        assert_eq!(hide(3, noise(100, 10, 4), &mut || None), None);
        assert_eq!(obfuscate(3, noise(8, 30, 8), &mut || None), None);
    }
}
