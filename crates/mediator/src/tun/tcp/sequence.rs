//! Sequence numbers: 32 bits that wrap around. The machine and both of its sides count with them.
//! RFC 9293 §3.4.

/// A place among the octets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seq(pub(super) u32);

impl Seq {
    /// The place `octets` further on.
    pub(super) fn plus(self, octets: usize) -> Self {
        Self(self.0.wrapping_add(whole(octets)))
    }

    /// The place `octets` before.
    pub(super) fn minus(self, octets: usize) -> Self {
        Self(self.0.wrapping_sub(whole(octets)))
    }

    /// Whether this place comes before `other`; true to life for places within 2³¹ octets of each other.
    pub(super) fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }

    /// How many octets lie between `earlier` and here; 0 if `earlier` is later.
    pub(super) fn since(self, earlier: Self) -> usize {
        usize::try_from(self.0.wrapping_sub(earlier.0).cast_signed()).unwrap_or(0)
    }
}

/// Nothing here counts more than a window, which is far below 2³¹.
fn whole(octets: usize) -> u32 {
    u32::try_from(octets).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_ordered_across_the_wrap() {
        let last = Seq(u32::MAX);
        let first = last.plus(1);
        assert_eq!(first, Seq(0));
        assert!(last.is_before(first) && !first.is_before(last) && !last.is_before(last));
        assert_eq!((first.since(last), last.since(first)), (1, 0));
        assert_eq!(first.minus(1), last);
    }
}
