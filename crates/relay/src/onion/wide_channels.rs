//! Which channels to relays of the list have room for all that circuits between two relays may have ([`Channel::widen`](hoplite_channel::Channel::widen)):
//! a few of each relay, or whoever opens channel after channel would have as much on each.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
};

use parking_lot::Mutex;

/// Of one relay at a time: one that we dialled, and one that it did.
const MOST: usize = 2;

/// How many each relay has. Clones are the same ones.
#[derive(Clone, Default)]
pub(super) struct WideChannels(Arc<Mutex<HashMap<[u8; 32], usize>>>);

/// One of them; dropping it leaves its place to another.
#[derive(Debug)]
pub(super) struct WideChannel {
    all: WideChannels,
    identity: [u8; 32],
}

impl WideChannels {
    /// `None`: the relay has as many as it may.
    pub(super) fn enter(&self, identity: [u8; 32]) -> Option<WideChannel> {
        let mut all = self.0.lock();
        let count = all.entry(identity).or_default();
        if *count >= MOST {
            return None;
        }
        *count += 1;
        Some(WideChannel {
            all: self.clone(),
            identity,
        })
    }
}

impl Drop for WideChannel {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.all.0.lock().entry(self.identity) {
            match count.get().saturating_sub(1) {
                0 => drop(count.remove()),
                left => *count.get_mut() = left,
            }
        }
    }
}

impl fmt::Debug for WideChannels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WideChannels(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_has_so_many_at_a_time_whatever_it_opens_and_others_have_theirs() {
        let all = WideChannels::default();
        let [one, other] = [[1; 32], [2; 32]];
        let mut held: Vec<_> = (0..10).filter_map(|_| all.enter(one)).collect();
        assert_eq!(held.len(), MOST);
        assert!(all.enter(other).is_some());
        held.pop();
        held.extend(all.enter(one));
        assert!(held.len() == MOST && all.enter(one).is_none());
        held.clear();
        assert!(all.0.lock().is_empty());
    }
}
