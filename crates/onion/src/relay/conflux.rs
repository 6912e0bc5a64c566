//! A relay as the exit of Conflux sets: which circuits share their streams, by the nonce that they are linked with.
//! [`super::driver`] asks here when LINK comes on a circuit; what the legs say then is their endpoint's. Proposal 329 §2.2.
//!
//! A set is here as long as it has a leg, so circuits bound what is kept. Who knows a nonce can add a leg: nobody but the client that drew it, and this relay.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use hoplite_wire::cell::{
    conflux::{Link, Nonce},
    relay::Format,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    Randomness,
    channel::CircuitBacklog,
    conflux::{LegId, Side},
    endpoint::{Broken, Endpoint, Limits, io::Shared},
    failure,
    flow_control::Control,
};

/// All sets of a relay.
#[derive(Default)]
pub(super) struct Sets(Mutex<HashMap<Nonce, Weak<Shared>>>);

/// One leg's place in its set. Dropped, the leg is closed, and the set too if something was lost with it.
pub(super) struct Membership {
    sets: Arc<Sets>,
    nonce: Nonce,
    shared: Arc<Shared>,
    leg: LegId,
}

/// What joins.
pub(super) struct Joining<'a> {
    /// What the circuit agreed on.
    pub(super) control: Control,
    /// Of its cells.
    pub(super) format: Format,
    /// Bounds of a set that it is the first leg of.
    pub(super) limits: Limits,
    pub(super) random: Randomness,
    /// Where its channel counts what waits.
    pub(super) backlog: &'a Arc<CircuitBacklog>,
    /// Its channel holds each circuit back by itself.
    pub(super) backpressure: bool,
    pub(super) now: Instant,
}

impl Sets {
    /// A circuit is to be a leg of the set that `link` names, of a new one if there is none.
    ///
    /// # Errors
    /// [`Broken`]: it is refused; if that is because the set has lost something, the set is closed.
    pub(super) fn join(
        self: &Arc<Self>,
        link: &Link,
        joining: &Joining<'_>,
    ) -> Result<Membership, Broken> {
        let mut sets = self.0.lock();
        let known = sets.get(&link.nonce).and_then(Weak::upgrade);
        let known = known.filter(|shared| shared.lock().closed().is_none());
        let shared = known.unwrap_or_else(|| {
            let (nonce, limits) = (link.nonce.clone(), joining.limits);
            let endpoint = Endpoint::of_set(Side::Exit, nonce, limits, joining.random.0);
            let shared = Shared::new(endpoint);
            sets.insert(link.nonce.clone(), Arc::downgrade(&shared));
            shared
        });
        drop(sets);
        let leg = shared.lock().add_leg(joining.control, joining.backlog);
        let membership = Membership {
            sets: Arc::clone(self),
            nonce: link.nonce.clone(),
            shared,
            leg,
        };
        let mut endpoint = membership.shared.lock();
        if joining.backpressure {
            endpoint.set_backpressure(leg);
        }
        let agreed = endpoint.set(leg, joining.control, joining.format);
        let answered = agreed.and_then(|()| endpoint.answer_link(leg, link, joining.now));
        if answered == Err(crate::conflux::Violation::Lost.into()) {
            endpoint.close(failure::retired());
        }
        drop(endpoint);
        answered.map(|()| membership)
    }
}

impl Membership {
    /// Where the set's streams are.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Which leg this is.
    pub(super) fn leg(&self) -> LegId {
        self.leg
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut endpoint = self.shared.lock();
        endpoint.close_leg(self.leg, failure::retired());
        let closed = endpoint.closed().is_some();
        drop(endpoint);
        let mut sets = self.sets.0.lock();
        let own = |set: &Weak<Shared>| Weak::as_ptr(set) == Arc::as_ptr(&self.shared);
        if closed && sets.get(&self.nonce).is_some_and(own) {
            sets.remove(&self.nonce);
        }
    }
}

impl fmt::Debug for Sets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sets")
    }
}
