//! What a flow of bound UDP has agreed with its client: which contexts stand for whom, and to whom it has sent of late. Without sockets and clocks.
//! `serve::bound` carries the flow by it. draft-ietf-masque-connect-udp-listen-13, §3 to §5.
//!
//! We do not open contexts of our own, because the client knows better whom it will hear more of.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    net::SocketAddr,
    time::Duration,
};

use hoplite_wire::bound_udp::{self, Capsule};
use tokio::time::Instant;

/// How many contexts that are closed or were refused are remembered: "that ID cannot be reused".
const CLOSED: usize = 256;

/// How long somebody counts among those that the flow sends to.
pub(crate) const TARGET_LASTS: Duration = Duration::from_secs(60);

/// What a flow may take of memory for all of this, in bytes, with so many contexts and targets.
pub(crate) const fn memory(contexts: usize, targets: usize) -> usize {
    // Entries of hash tables, which are at worst less than half full.
    let context = 2 * (size_of::<(u64, Option<SocketAddr>)>() + size_of::<(SocketAddr, u64)>());
    let target = 2 * size_of::<(SocketAddr, Instant)>();
    CLOSED * size_of::<u64>() + contexts.saturating_mul(context) + targets.saturating_mul(target)
}

/// The contexts of one flow.
pub(crate) struct Contexts {
    /// How many with a peer may be open.
    most: usize,
    open: HashMap<u64, Option<SocketAddr>>,
    by_peer: HashMap<SocketAddr, u64>,
    anybody: Option<u64>,
    closed: VecDeque<u64>,
}

/// The client broke a rule: "it MUST treat the capsule as malformed".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Breach;

/// What a datagram's context stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// One peer.
    Peer(SocketAddr),
    /// Whoever stands before the payload.
    Anybody,
    /// Nothing any more: "these MUST be discarded silently".
    Closed,
    /// Nothing yet: the capsule may still come.
    Unknown,
}

impl Contexts {
    /// None yet, and at most so many with a peer.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            open: HashMap::new(),
            by_peer: HashMap::new(),
            anybody: None,
            closed: VecDeque::new(),
        }
    }

    /// The client says what a context means; `fine`: it may send to that peer. What it is answered.
    ///
    /// # Errors
    /// The id is none of a client's, or was there before; or there is another context for the same.
    pub(crate) fn assign(
        &mut self,
        context: u64,
        peer: Option<SocketAddr>,
        fine: bool,
    ) -> Result<Capsule, Breach> {
        let used = self.open.contains_key(&context) || self.closed.contains(&context);
        let twice = match peer {
            Some(peer) => self.by_peer.contains_key(&peer),
            None => self.anybody.is_some(),
        };
        if !context.is_multiple_of(2) || used || twice {
            return Err(Breach);
        }
        match peer {
            Some(_) if !fine || self.by_peer.len() >= self.most => {
                self.forget(context);
                return Ok(Capsule::Close { context });
            }
            Some(peer) => drop(self.by_peer.insert(peer, context)),
            None => self.anybody = Some(context),
        }
        self.open.insert(context, peer);
        Ok(Capsule::Ack { context })
    }

    /// The client has done with a context. One that is none may have been refused meanwhile.
    pub(crate) fn close(&mut self, context: u64) {
        let Some(peer) = self.open.remove(&context) else {
            return;
        };
        match peer {
            Some(peer) => drop(self.by_peer.remove(&peer)),
            None => self.anybody = None,
        }
        self.forget(context);
    }

    fn forget(&mut self, context: u64) {
        if self.closed.len() == CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(context);
    }

    /// What a datagram from the client is about.
    pub(crate) fn meaning(&self, context: u64) -> Meaning {
        match self.open.get(&context) {
            Some(Some(peer)) => Meaning::Peer(*peer),
            Some(None) => Meaning::Anybody,
            None if self.closed.contains(&context) => Meaning::Closed,
            None => Meaning::Unknown,
        }
    }

    /// What stands before a payload from `peer` to the client; `None`: the client does not want to hear of it.
    pub(crate) fn head(&self, peer: SocketAddr) -> Option<Vec<u8>> {
        match self.by_peer.get(&peer) {
            Some(context) => Some(bound_udp::head(*context, None)),
            None => self
                .anybody
                .map(|context| bound_udp::head(context, Some(peer))),
        }
    }
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Contexts({} open)", self.open.len())
    }
}

/// To whom a flow has sent of late. A flow of CONNECT-UDP has one target: many of them are many requests. This one must not be a scanner.
pub(crate) struct Targets {
    most: usize,
    /// When each was sent to last.
    last: HashMap<SocketAddr, Instant>,
    /// Before that nobody is forgotten.
    sweep_at: Option<Instant>,
}

impl Targets {
    /// Nobody yet, and at most so many.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            last: HashMap::new(),
            sweep_at: None,
        }
    }

    /// Whether the flow may send to this one now.
    pub(crate) fn admits(&mut self, target: SocketAddr, now: Instant) -> bool {
        if let Some(last) = self.last.get_mut(&target) {
            *last = now;
            return true;
        }
        if self.last.len() >= self.most {
            self.sweep(now);
        }
        let room = self.last.len() < self.most;
        if room {
            self.last.insert(target, now);
        }
        room
    }

    fn sweep(&mut self, now: Instant) {
        if self.sweep_at.is_some_and(|at| now < at) {
            return;
        }
        self.last
            .retain(|_, last| now.saturating_duration_since(*last) < TARGET_LASTS);
        let oldest = self.last.values().min();
        self.sweep_at = oldest.map(|oldest| *oldest + TARGET_LASTS);
    }
}

impl fmt::Debug for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Targets({})", self.last.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn ack(context: u64) -> Result<Capsule, Breach> {
        Ok(Capsule::Ack { context })
    }

    fn close(context: u64) -> Result<Capsule, Breach> {
        Ok(Capsule::Close { context })
    }

    #[test]
    fn a_peer_has_its_own_context_or_anybodys_or_none() {
        let mut contexts = Contexts::new(2);
        assert_eq!(contexts.head(peer(1)), None);
        assert_eq!(contexts.assign(2, None, true), ack(2));
        assert_eq!(contexts.assign(4, Some(peer(1)), true), ack(4));
        assert_eq!(contexts.head(peer(1)), Some(vec![4]));
        assert_eq!(
            contexts.head(peer(2)),
            Some(bound_udp::head(2, Some(peer(2))))
        );
        contexts.close(2);
        assert_eq!(contexts.head(peer(1)), Some(vec![4]));
        assert_eq!(contexts.head(peer(2)), None);
        assert_eq!(contexts.assign(6, None, true), ack(6), "opened anew");
        contexts.close(4);
        assert_eq!(
            contexts.head(peer(1)),
            Some(bound_udp::head(6, Some(peer(1))))
        );
    }

    #[test]
    fn a_client_that_breaks_a_rule_is_told_from_one_that_asks_too_much() {
        let mut contexts = Contexts::new(1);
        assert_eq!(
            contexts.assign(3, None, true),
            Err(Breach),
            "an id of a relay's"
        );
        assert_eq!(contexts.assign(2, None, true), ack(2));
        assert_eq!(contexts.assign(4, None, true), Err(Breach), "anybody twice");
        assert_eq!(
            contexts.assign(2, Some(peer(1)), true),
            Err(Breach),
            "an id twice"
        );
        assert_eq!(
            contexts.assign(4, Some(peer(1)), false),
            close(4),
            "refused"
        );
        assert_eq!(
            contexts.assign(4, Some(peer(2)), true),
            Err(Breach),
            "the id of a refused one"
        );
        assert_eq!(contexts.assign(6, Some(peer(1)), true), ack(6));
        assert_eq!(
            contexts.assign(8, Some(peer(1)), true),
            Err(Breach),
            "a peer twice"
        );
        assert_eq!(
            contexts.assign(8, Some(peer(2)), true),
            close(8),
            "too many"
        );
        contexts.close(6);
        contexts.close(6);
        assert_eq!(
            contexts.assign(6, Some(peer(1)), true),
            Err(Breach),
            "the id of a closed one"
        );
        assert_eq!(contexts.assign(10, Some(peer(2)), true), ack(10));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut contexts = Contexts::new(1);
        for n in 1..=10_000 {
            assert_eq!(contexts.assign(2 * n, Some(peer(1)), true), ack(2 * n));
            contexts.close(2 * n);
        }
        assert!(contexts.open.is_empty() && contexts.by_peer.is_empty());
        assert_eq!(contexts.closed.len(), CLOSED);
        assert!(contexts.meaning(20_000) == Meaning::Closed);
        assert!(contexts.meaning(20_002) == Meaning::Unknown);
    }

    #[tokio::test]
    async fn new_targets_wait_until_others_are_forgotten() {
        let mut targets = Targets::new(2);
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(targets.admits(peer(1), at(0)) && targets.admits(peer(2), at(1)));
        assert!(!targets.admits(peer(3), at(2)));
        assert!(targets.admits(peer(1), at(30)), "it is used again");
        assert!(!targets.admits(peer(3), at(60)));
        assert!(targets.admits(peer(3), at(61)), "the second is forgotten");
        assert!(!targets.admits(peer(4), at(89)));
        assert!(targets.admits(peer(4), at(90)), "the first is forgotten");
        assert_eq!(targets.last.len(), 2);
    }
}
