//! Which packets of a direction are lost before its queue. `link` asks once for every packet that comes.

use super::random::Random;
use crate::topology::Loss;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lost(model: &Loss, count: usize) -> Vec<bool> {
        let mut losses = Losses::new(model, Random::new(5, "a-b>", "loss"));
        (0..count).map(|_| losses.next_is_lost()).collect()
    }

    fn share(lost: &[bool]) -> f64 {
        lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64
    }

    #[test]
    fn a_list_loses_exactly_its_packets_counted_from_one() {
        let packets = vec![3, 1, 7, 7];
        let lost = lost(&Loss::Packets { packets }, 9);
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
        let lost = lost(&model, 400_000);
        assert!((share(&lost) - p / (p + r)).abs() < 0.004);
        let bursts = lost.windows(2).filter(|pair| pair[0] && !pair[1]).count();
        let burst = share(&lost) * lost.len() as f64 / bursts as f64;
        assert!((burst - 1.0 / r).abs() < 0.1, "mean burst {burst}");
    }

    proptest! {
        #[test]
        fn bernoulli_loses_its_share_within_five_standard_deviations(share_asked in 0.0..1.0_f64) {
            let lost = lost(&Loss::Bernoulli { share: share_asked }, 20_000);
            let deviation = (share_asked * (1.0 - share_asked) / 20_000.0).sqrt();
            prop_assert!((share(&lost) - share_asked).abs() <= 5.0 * deviation + 1e-4);
        }
    }
}
