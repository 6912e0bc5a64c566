//! Relays that did not answer when they were dialled, remembered for a short time: whoever needs a channel to one of them is told at once, instead of
//! waiting as long again. [`super::Channels`] asks. Clients do not remember ([`Config::failed`](super::Config::failed)): their own network may be back.

use std::{collections::VecDeque, time::Duration};

use hoplite_overlay::Error;
use tokio::time::Instant;

use super::{How, Whom};

/// A dial that failed sooner is not remembered: another one costs nobody much time, and a relay that refuses may just be starting.
const SLOW: Duration = Duration::from_secs(1);

/// The last one at the end.
#[derive(Debug, Default)]
pub(super) struct Failed(VecDeque<Dial>);

#[derive(Debug)]
struct Dial {
    whom: Whom,
    how: How,
    until: Instant,
    error: Error,
}

/// When a dial began and ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) begun: Instant,
    pub(super) now: Instant,
}

/// How long dials that failed are remembered, and how many of them; then the oldest is forgotten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) kept: Duration,
    pub(super) most: usize,
}

impl Failed {
    /// Why a dial like this would fail again.
    pub(super) fn find(&self, whom: &Whom, how: How, now: Instant) -> Option<Error> {
        let same = |dial: &&Dial| dial.how == how && is_same(&dial.whom, whom) && now < dial.until;
        self.0.iter().find(same).map(|dial| dial.error.clone())
    }

    /// It did fail.
    pub(super) fn note(
        &mut self,
        memory: Memory,
        (whom, how): (&Whom, How),
        times: Times,
        error: &Error,
    ) {
        let (Memory { kept, most }, Times { begun, now }) = (memory, times);
        if kept.is_zero() || now.saturating_duration_since(begun) < SLOW {
            return;
        }
        let other =
            |dial: &Dial| (dial.how != how || !is_same(&dial.whom, whom)) && now < dial.until;
        self.0.retain(other);
        if self.0.len() >= most {
            self.0.pop_front();
        }
        self.0.push_back(Dial {
            whom: whom.clone(),
            how,
            until: now + kept,
            error: error.clone(),
        });
    }

    /// The relay of this identity is there.
    pub(super) fn forget(&mut self, identity: &[u8; 32]) {
        self.0.retain(|dial| dial.whom.identity != Some(*identity));
    }
}

/// The same relay at the same address: what it is called, and which other identity is to be shown, makes no other dial.
fn is_same(one: &Whom, other: &Whom) -> bool {
    one.identity == other.identity && one.address == other.address
}

#[cfg(test)]
mod tests {
    use hoplite_overlay::ErrorKind;

    use super::*;

    const KEPT: Duration = Duration::from_secs(8);
    const MEMORY: Memory = Memory {
        kept: KEPT,
        most: 256,
    };

    fn whom(n: u16) -> Whom {
        let [high, low] = n.to_be_bytes();
        let mut identity = [0; 32];
        (identity[0], identity[1]) = (high, low);
        Whom {
            name: String::new(),
            address: "192.0.2.1:443".parse().unwrap(),
            identity: Some(identity),
            rsa: None,
        }
    }

    #[test]
    fn a_dial_that_took_long_is_remembered_for_its_address_and_way_and_for_some_relays() {
        let (mut failed, start) = (Failed::default(), Instant::now());
        let error = Error::new(ErrorKind::TimedOut, "dialling");
        let times = Times {
            begun: start,
            now: start + SLOW,
        };
        let soon = Times {
            now: start + SLOW / 2,
            ..times
        };
        failed.note(MEMORY, (&whom(0), How::Quic), soon, &error);
        assert!(failed.find(&whom(0), How::Quic, start).is_none(), "at once");
        failed.note(MEMORY, (&whom(0), How::Quic), times, &error);
        let found = failed.find(&whom(0), How::Quic, start + SLOW);
        assert_eq!(found.unwrap().kind(), ErrorKind::TimedOut);
        assert!(failed.find(&whom(0), How::Tls, start).is_none());
        let mut moved = whom(0);
        moved.address = "192.0.2.2:443".parse().unwrap();
        assert!(failed.find(&moved, How::Quic, start).is_none());
        let later = start + SLOW + KEPT;
        assert!(failed.find(&whom(0), How::Quic, later).is_none());
        for n in 1..=256 {
            failed.note(MEMORY, (&whom(n), How::Quic), times, &error);
        }
        assert_eq!(failed.0.len(), MEMORY.most);
        assert!(failed.find(&whom(0), How::Quic, start).is_none(), "it went");
        assert!(failed.find(&whom(1), How::Quic, start).is_some());
        failed.forget(&whom(1).identity.unwrap());
        assert!(failed.find(&whom(1), How::Quic, start).is_none());
    }
}
