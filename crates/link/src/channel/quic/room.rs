//! How many circuits the peer may open on one connection: few at first, and more as it uses them.
//! The QUIC stack keeps about 90 octets for each stream that it allows, used or not: a channel at rest costs little this way.

/// What a new channel may have at once.
const FIRST: u32 = 128;
/// When half of what is allowed is open, so many times as much is allowed.
const GROWTH: u32 = 4;

/// The room on one connection.
pub(super) struct Room {
    allowed: u32,
    most: u32,
}

/// The streams of a new connection whose peer may have `most` circuits. The control stream is one more.
pub(in crate::channel) fn streams_at_first(most: u32) -> u32 {
    most.min(FIRST).saturating_add(1)
}

impl Room {
    /// On a connection that was given [`streams_at_first`].
    pub(super) fn new(most: u32) -> Self {
        let allowed = most.min(FIRST);
        Self { allowed, most }
    }

    /// How many streams are allowed from now on, where that is more than before.
    pub(super) fn more(&mut self, open: usize) -> Option<u32> {
        let crowded = open >= usize::try_from(self.allowed / 2).unwrap_or(usize::MAX);
        if !crowded || self.allowed >= self.most {
            return None;
        }
        self.allowed = self.allowed.saturating_mul(GROWTH).min(self.most);
        Some(self.allowed.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_grows_with_use_up_to_the_limit() {
        assert_eq!(streams_at_first(1024), 129);
        let mut room = Room::new(1024);
        assert_eq!(room.more(63), None);
        assert_eq!(room.more(64), Some(513));
        assert_eq!(room.more(65), None);
        assert_eq!(room.more(300), Some(1025));
        assert_eq!(room.more(1024), None);
    }

    #[test]
    fn a_limit_below_the_first_room_is_kept() {
        assert_eq!(streams_at_first(10), 11);
        assert_eq!(Room::new(10).more(10), None);
    }
}
