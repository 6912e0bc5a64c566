//! What the two ends of a Conflux set tell each other on its legs: that circuits belong together, and where in the common order what comes next stands.
//! Proposal 329 §2.2 (the handshake) and §2.6 (sequencing). LINKED_ACK says nothing, and has no data.

use std::fmt;

use bytes::BufMut;
use zeroize::Zeroize;

use super::{Input, Malformed};

/// The only version of LINK and LINKED.
const VERSION: u8 = 1;

numbers! {
    /// What an end wishes of whoever sends to it ("desired UX").
    pub struct DesiredUx(u8) {
        /// Anything.
        NO_OPINION = 0,
        /// The leg with the shortest round trip, and no other.
        MIN_LATENCY = 1,
        /// The same, with a short queue at the receiver.
        LOW_MEM_LATENCY = 2,
        /// All legs, the one with the shortest round trip first.
        HIGH_THROUGHPUT = 3,
        /// The same, with a short queue at the receiver.
        LOW_MEM_THROUGHPUT = 4,
    }
}

/// What the legs of a set know each other by: who has it can add a leg, and so read and write the set's streams. It is never shown, and wiped.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Nonce(pub [u8; 32]);

/// LINK, and LINKED, its answer: this circuit is a leg of that set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Which set.
    pub nonce: Nonce,
    /// The highest sequence number that whoever says so has sent on any leg: 0 at first.
    pub last_sent: u64,
    /// The highest that it has received in order: 0 at first.
    pub last_received: u64,
    /// How it wishes to be sent to.
    pub wish: DesiredUx,
}

/// SWITCH: what is sent next comes on this leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// By how much the last sequence number of all legs is higher than the last of this one.
    pub relative: u32,
}

impl Link {
    /// Reads LINK or LINKED.
    ///
    /// # Errors
    /// [`Malformed`]: another version, an unknown wish, too short or too long.
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "CONFLUX_LINK");
        if input.u8()? != VERSION {
            return Err(input.malformed());
        }
        let link = Self {
            nonce: Nonce(input.array()?),
            last_sent: u64::from_be_bytes(input.array()?),
            last_received: u64::from_be_bytes(input.array()?),
            wish: DesiredUx(input.u8()?),
        };
        if input.is_empty() && link.wish.name().is_some() {
            Ok(link)
        } else {
            Err(input.malformed())
        }
    }

    /// Writes it.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u8(VERSION);
        out.put_slice(&self.nonce.0);
        out.put_u64(self.last_sent);
        out.put_u64(self.last_received);
        out.put_u8(self.wish.0);
    }
}

impl Switch {
    /// Reads SWITCH.
    ///
    /// # Errors
    /// [`Malformed`]: too short or too long.
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "CONFLUX_SWITCH");
        let relative = input.u32()?;
        if input.is_empty() {
            Ok(Self { relative })
        } else {
            Err(input.malformed())
        }
    }

    /// Writes it.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u32(self.relative);
    }
}

/// Reads LINKED_ACK.
///
/// # Errors
/// [`Malformed`]: it says something.
pub fn linked_ack(data: &[u8]) -> Result<(), Malformed> {
    if data.is_empty() {
        Ok(())
    } else {
        Err(Malformed("CONFLUX_LINKED_ACK"))
    }
}

impl Drop for Nonce {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    fn any_link() -> impl Strategy<Value = Link> {
        let fields = (any::<[u8; 32]>(), any::<u64>(), any::<u64>(), 0..5_u8);
        fields.prop_map(|(nonce, last_sent, last_received, wish)| Link {
            nonce: Nonce(nonce),
            last_sent,
            last_received,
            wish: DesiredUx(wish),
        })
    }

    /// By hand, as §2.2 lays it out: version, nonce, both sequence numbers, the wish.
    #[test]
    fn a_link_is_laid_out_as_the_proposal_says() {
        let link = Link {
            nonce: Nonce([0xab; 32]),
            last_sent: 0x0102_0304_0506_0708,
            last_received: 9,
            wish: DesiredUx::HIGH_THROUGHPUT,
        };
        let mut expected = vec![1];
        expected.extend([0xab; 32]);
        expected.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 9]);
        expected.push(3);
        assert_eq!(written(|out| link.write(out)), expected);
        assert_eq!(
            written(|out| Switch { relative: 0x0102 }.write(out)),
            [0, 0, 1, 2]
        );
    }

    #[test]
    fn who_says_more_or_less_or_what_is_unknown_is_not_understood() {
        let mut good = vec![1; 50];
        assert!(Link::parse(&good).is_ok());
        assert!(Link::parse(&good[..49]).is_err());
        assert!(Link::parse(&[&good[..], &[0]].concat()).is_err());
        good[49] = 5;
        assert!(Link::parse(&good).is_err(), "a wish that nobody knows");
        good[49] = 0;
        good[0] = 2;
        assert!(Link::parse(&good).is_err(), "another version");
        assert!(Switch::parse(&[0; 3]).is_err());
        assert!(Switch::parse(&[0; 5]).is_err());
        assert!(linked_ack(&[]).is_ok());
        assert!(linked_ack(&[0]).is_err());
    }

    #[test]
    fn no_log_shows_what_the_legs_know_each_other_by() {
        let nonce = Nonce([0xab; 32]);
        assert_eq!(format!("{nonce:?}"), "Nonce(hidden)");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(link in any_link(), relative in any::<u32>()) {
            prop_assert_eq!(Link::parse(&written(|out| link.write(out))), Ok(link));
            let switch = Switch { relative };
            prop_assert_eq!(Switch::parse(&written(|out| switch.write(out))), Ok(switch));
        }

        #[test]
        fn what_is_read_is_written_as_it_was(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = bytes;
            if let Some(version) = bytes.first_mut() {
                *version = 1;
            }
            if let Ok(link) = Link::parse(&bytes) {
                prop_assert_eq!(written(|out| link.write(out)), bytes);
            }
        }
    }
}
