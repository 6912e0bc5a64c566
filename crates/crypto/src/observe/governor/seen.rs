//! Which packets have arrived: the stack looks for duplicates only after they were decrypted, when their datagrams are already cut out.
//! RFC 9000 §12.3: "a receiver MUST discard a newly unprotected packet unless it is certain that it has not processed another packet with the same packet number".

/// How many packets behind the newest one are remembered; what is older counts as a duplicate.
const WINDOW: u64 = 1024;

/// A sliding bitmap.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Above every number so far.
    next: u64,
    bits: [u64; 16],
}

impl Seen {
    /// Enters a packet. `None` if it is, or may be, a duplicate; otherwise whether it leaves a gap before it.
    pub(super) fn insert(&mut self, number: u64) -> Option<bool> {
        if number >= self.next {
            let gap = number > self.next;
            let from = self.next.max(number.saturating_sub(WINDOW - 1));
            for skipped in from..=number {
                self.put(skipped, false);
            }
            self.put(number, true);
            self.next = number.saturating_add(1);
            return Some(gap);
        }
        let (word, bit) = place(number);
        let known = self.bits.get(word).is_none_or(|bits| bits & bit != 0);
        if known || self.next - number > WINDOW {
            return None;
        }
        self.put(number, true);
        Some(false)
    }

    fn put(&mut self, number: u64, seen: bool) {
        let (word, bit) = place(number);
        if let Some(bits) = self.bits.get_mut(word) {
            *bits = if seen { *bits | bit } else { *bits & !bit };
        }
    }
}

fn place(number: u64) -> (usize, u64) {
    let word = usize::try_from(number % WINDOW / 64).unwrap_or_default();
    (word, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_too_old_to_be_told_apart_counts_as_a_duplicate() {
        let mut seen = Seen::default();
        assert_eq!(seen.insert(0), Some(false));
        assert_eq!(seen.insert(5000), Some(true));
        assert_eq!(seen.insert(5000 - WINDOW), None);
        assert_eq!(seen.insert(5001 - WINDOW), Some(false));
        assert_eq!(seen.insert(5001 - WINDOW), None);
        assert_eq!(seen.insert((1 << 62) - 1), Some(true));
    }

    proptest! {
        #[test]
        fn no_packet_counts_twice_and_none_in_the_window_is_lost(numbers in proptest::collection::vec(0_u64..3000, 0..600)) {
            let (mut seen, mut all, mut highest) = (Seen::default(), HashSet::new(), 0);
            for number in numbers {
                highest = highest.max(number);
                let first = all.insert(number);
                let inside = highest - number < WINDOW;
                prop_assert_eq!(seen.insert(number).is_some(), first && inside);
            }
        }
    }
}
