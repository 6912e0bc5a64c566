//! Where a node is: a point of a map, and how far it is from there to the map. So latencies differ from pair to pair, go both ways alike, and
//! no way over a third node is much shorter than the direct one.

use crate::random::Random;

const MS: f64 = 1e6;
/// One side of the map, in milliseconds of one way: the farthest corners are 85 ms apart.
const SIDE: f64 = 60.0;
/// The last mile, one way: 1 to 6 ms.
const LAST_MILE: (f64, f64) = (1.0, 6.0);

/// A place, in milliseconds of one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    x: f64,
    y: f64,
    last_mile: f64,
}

impl Place {
    /// Somewhere.
    pub fn drawn(random: &mut Random) -> Self {
        let (least, most) = LAST_MILE;
        Self {
            x: SIDE * random.unit(),
            y: SIDE * random.unit(),
            last_mile: least + (most - least) * random.unit(),
        }
    }

    /// So many milliseconds from everywhere, whatever the other node's own distance is.
    pub const fn apart(ms: f64) -> Self {
        Self {
            x: 0.0,
            y: 0.0,
            last_mile: ms,
        }
    }

    /// One way to another, in nanoseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 97 ms on the map, never negative; a float that is too large saturates"
    )]
    pub(super) fn latency(&self, other: &Self) -> u64 {
        let way = (self.x - other.x).hypot(self.y - other.y);
        ((way + self.last_mile + other.last_mile) * MS) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_the_same_both_ways_and_within_the_map() {
        let mut random = Random::new(1, "places", 0);
        let places: Vec<_> = (0..50).map(|_| Place::drawn(&mut random)).collect();
        for one in &places {
            for other in &places {
                let way = one.latency(other);
                assert_eq!(way, other.latency(one));
                assert!((2_000_000..97_000_000).contains(&way), "{way}");
            }
        }
        assert_eq!(Place::apart(5.0).latency(&Place::apart(15.0)), 20_000_000);
    }
}
