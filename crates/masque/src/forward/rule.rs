//! What is known of one connection id of a flow, and what was agreed about it with the relay.
//! [`super::Machine`] keeps a table of them.
//! draft-ietf-masque-quic-proxy, "Connection ID Capsules", "Client Considerations".

use std::time::Duration;

use bytes::Bytes;
use hoplite_overlay::End;
use hoplite_wire::forwarding::{Capsule, ConnectionId, SETTLING};
use tokio::time::Instant;

use super::Action;

/// The pause before the first registration after a refusal; each further one is four times as long, up to [`MAX_PAUSE`].
const INITIAL_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// A rule that held for this long was a good one: the pauses begin anew.
const GOOD: Duration = Duration::from_secs(10);
/// After this many refusals in a row the id is not registered any more: each one costs a sequence number.
const MAX_REFUSALS: u32 = 8;

/// One connection id.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) end: End,
    pub(super) id: ConnectionId,
    pub(super) origin: Origin,
    pub(super) state: State,
    /// The alias that others were told of; of a client's id it may be that of a rule before, whose last packets still come.
    pub(super) held: Option<ConnectionId>,
    pub(super) used: Instant,
    /// Registrations, acknowledgements of them, and how many of those to come are of no use: the rule was closed meanwhile.
    registered: u32,
    answered: u32,
    overdue: u32,
    refusals: u32,
    active: Option<Instant>,
    /// Earlier packets went through the tunnel, and might be overtaken until then.
    settling: Option<Instant>,
}

/// How an id became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It stood in a packet.
    Seen,
    /// The link above said that it will.
    Announced,
}

/// Where its registration stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// To be registered, not before then.
    Waiting(Instant),
    /// Registered, without an answer.
    Asked,
    /// The client's id: the relay has answered, but packets are not to come this way before the handshake inside is done.
    Granted(ConnectionId),
    /// The client's id: its alias is being put where it is recognised.
    Admitting(ConnectionId),
    /// In force under the alias.
    Active(ConnectionId),
    /// Closed because others needed its place; to be registered when it is used again.
    Resting,
    /// Not registered any more.
    GivenUp,
}

impl Rule {
    pub(super) fn new(end: End, id: ConnectionId, origin: Origin, now: Instant) -> Self {
        Self {
            end,
            id,
            origin,
            state: State::Waiting(now),
            held: None,
            used: now,
            registered: 0,
            answered: 0,
            overdue: 0,
            refusals: 0,
            active: None,
            settling: None,
        }
    }

    pub(super) fn is(&self, end: End, id: ConnectionId) -> bool {
        self.end == end && self.id == id
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        matches!(self.state, State::Waiting(from) if from <= now)
    }

    /// The alias of a rule that is in force.
    pub(super) fn alias(&self) -> Option<ConnectionId> {
        match self.state {
            State::Active(alias) => Some(alias),
            _ => None,
        }
    }

    /// Whether packets sent beside the tunnel overtake none of those sent through it, which is `drained` or not.
    pub(super) fn is_settled(&mut self, drained: bool, now: Instant) -> bool {
        self.settling.take_if(|until| drained || now >= *until);
        self.settling.is_none()
    }

    /// For how long the packets of a rule have waited already, while they do.
    pub(super) fn settling(&self, now: Instant) -> Option<Duration> {
        let until = self.settling.filter(|until| now < *until);
        let left = until.filter(|_| self.end == End::Target)? - now;
        Some(SETTLING.saturating_sub(left))
    }

    /// Whether the relay has, or soon will have, a rule of it.
    pub(super) fn is_known(&self) -> bool {
        matches!(
            self.state,
            State::Asked | State::Granted(_) | State::Admitting(_) | State::Active(_)
        )
    }

    /// A packet with the id passes.
    pub(super) fn is_used(&mut self, now: Instant) {
        self.used = now;
        if self.state == State::Resting {
            self.state = State::Waiting(now);
        }
    }

    pub(super) fn register(&mut self) -> Capsule {
        self.state = State::Asked;
        self.registered += 1;
        let id = self.id.to_bytes();
        match self.end {
            End::Client => Capsule::RegisterClientCid { id },
            // What the target's stateless resets look like is encrypted.
            End::Target => Capsule::RegisterTargetCid {
                id,
                reset_token: Bytes::new(),
            },
        }
    }

    /// Its alias is to be put where it is recognised.
    pub(super) fn admit(&mut self, alias: ConnectionId) -> Action {
        self.state = State::Admitting(alias);
        Action::Admit { id: self.id, alias }
    }

    pub(super) fn activate(&mut self, alias: ConnectionId, now: Instant) {
        self.state = State::Active(alias);
        self.active = Some(now);
        self.settling = Some(now + SETTLING);
    }

    /// Whether an acknowledgement answers a registration that still counts.
    /// "The proxy MUST reply to each REGISTER_CLIENT_CID capsule": there are no more of them than registrations.
    pub(super) fn is_answer(&mut self) -> bool {
        if self.answered >= self.registered || self.state == State::GivenUp {
            return false;
        }
        self.answered += 1;
        let late = self.overdue > 0;
        self.overdue = self.overdue.saturating_sub(1);
        !late
    }

    /// Takes it back; it may be registered again.
    pub(super) fn close(&mut self, now: Instant) -> Capsule {
        self.overdue += u32::from(self.state == State::Asked);
        self.answered = self.registered.saturating_sub(self.overdue);
        self.state = State::Waiting(now);
        self.close_capsule()
    }

    pub(super) fn close_capsule(&self) -> Capsule {
        let id = self.id.to_bytes();
        match self.end {
            End::Client => Capsule::CloseClientCid { id },
            End::Target => Capsule::CloseTargetCid { id },
        }
    }

    /// The relay has closed it: it is tried again, later each time.
    pub(super) fn refused(&mut self, now: Instant) {
        if self.active.take().is_some_and(|since| now - since >= GOOD) {
            self.refusals = 0;
        }
        let never_granted = self.state == State::Asked;
        self.state = match self.refusals {
            MAX_REFUSALS.. if never_granted => State::GivenUp,
            n => State::Waiting(now + pause(INITIAL_PAUSE, n, MAX_PAUSE)),
        };
        self.refusals = self.refusals.saturating_add(1);
    }
}

/// `first`, four times as long for each failure before, and `most` at most.
pub(super) fn pause(first: Duration, failures: u32, most: Duration) -> Duration {
    let factor = 4u32.saturating_pow(failures);
    first.saturating_mul(factor).min(most)
}

/// Whether the relay may give out `alias` for an id. "The client VCID Length MUST be at least as large as the Connection ID";
/// less than eight bytes could be taken for another connection's.
pub(super) fn acceptable(end: End, id: ConnectionId, alias: ConnectionId) -> bool {
    match end {
        End::Client => alias.len() >= id.len().max(hoplite_link::SHORTEST_ALIAS),
        End::Target => !alias.is_empty(),
    }
}
