//! How likely a relay is in each position. What both ingress and egress can do is shared out so that neither end of paths is starved.

use hoplite_wire::directory::Descriptor;

use super::Position;

/// Shares of relays with both roles are counted in this many parts.
const PARTS: u64 = 1000;
/// Paths are taken to have three positions, one of them the exit.
const POSITIONS: u128 = 3;
/// More is not believed of any relay, so that sums do not overflow: 1 TB/s.
const MOST: u64 = 1 << 40;

/// What a relay of both roles is worth in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weights {
    /// As an exit, of [`PARTS`]; before it the rest.
    both_as_exit: u64,
    cap: u64,
}

impl Weights {
    pub(super) fn of(relays: &[Descriptor], cap: u64) -> Self {
        let cap = cap.min(MOST);
        let sum = |ingress: bool, egress: bool| -> u128 {
            let those = relays.iter();
            let those = those.filter(|r| (r.roles.ingress, r.roles.egress) == (ingress, egress));
            those.map(|r| u128::from(r.bandwidth.min(cap))).sum()
        };
        let (exits, both, rest) = (sum(false, true), sum(true, true), sum(true, false));
        let wanted = exits.saturating_add(both).saturating_add(rest) / POSITIONS;
        let missing = wanted.saturating_sub(exits).min(both);
        let parts = missing.saturating_mul(u128::from(PARTS)).checked_div(both);
        let both_as_exit = parts.and_then(|parts| u64::try_from(parts).ok());
        Self {
            both_as_exit: both_as_exit.unwrap_or(0).min(PARTS),
            cap,
        }
    }

    /// The weight of a relay that may stand there.
    pub(super) fn of_relay(&self, relay: &Descriptor, position: Position) -> u64 {
        let parts = match (relay.roles.ingress && relay.roles.egress, position) {
            (false, _) => PARTS,
            (true, Position::Exit) => self.both_as_exit,
            (true, _) => PARTS.saturating_sub(self.both_as_exit),
        };
        relay.bandwidth.min(self.cap).saturating_mul(parts)
    }
}

/// If none has any weight, all have the same: a path is still made.
pub(super) fn some_positive<T>(mut weighed: Vec<(T, u64)>) -> Vec<(T, u64)> {
    if weighed.iter().all(|(_, weight)| *weight == 0) {
        weighed.iter_mut().for_each(|(_, weight)| *weight = 1);
    }
    weighed
}

/// Takes one out, each as likely as its weight; those without weight when no other is left.
pub(super) fn draw<T>(
    weighed: &mut Vec<(T, u64)>,
    random: &mut dyn FnMut(u64) -> u64,
) -> Option<T> {
    let total = weighed
        .iter()
        .map(|(_, weight)| u128::from(*weight))
        .sum::<u128>();
    // 8192 relays of 2^40 octets/s in 1000 parts are less than 2^64.
    let total = u64::try_from(total).unwrap_or(u64::MAX);
    let mut left = if total == 0 {
        0
    } else {
        random(total).min(total.saturating_sub(1))
    };
    let place = weighed.iter().position(|(_, weight)| {
        let here = left < *weight;
        left = left.saturating_sub(*weight);
        here
    });
    let place = place.or_else(|| (!weighed.is_empty()).then_some(0))?;
    Some(weighed.swap_remove(place).0)
}
