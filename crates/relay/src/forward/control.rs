//! What changes about a forwarded flow: its registrations, the aliases in force, the capsules that wait to be sent.
//! [`super::Forwarding`] locks it for a capsule, never for a packet. The waiting capsules are bounded: a client that asks and does
//! not read is reset.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use hoplite_http::Flow;
use hoplite_link::server::{Alias, AliasId};
use hoplite_wire::forwarding::Capsule;

use super::{
    Forwarding, Id, Place, Road,
    registrations::{Mint, Refusal, Registrations, Step},
    up::Rule,
};
use crate::{
    limits::{Pace, Permit},
    metrics::Up,
};

/// How many capsules may wait for each id that a flow may register, and beside them.
const WAITING: usize = 8;

/// See above.
pub(super) struct Control {
    registrations: Registrations<Permit>,
    /// Where the client was when it asked for the rules.
    place: Place,
    /// At most two for each id.
    entered: Vec<Entered>,
    waiting: VecDeque<Capsule>,
    most_waiting: usize,
    broken: bool,
}

/// An alias that is in force.
struct Entered {
    id: AliasId,
    rule: Arc<Rule>,
    _alias: Alias,
    _counted: Up,
}

/// What became of the capsules that waited.
pub(super) enum Sent {
    All,
    /// The stream takes no more now.
    Some,
    /// The client broke a rule.
    Broken,
}

impl Control {
    pub(super) fn new(ids: usize, place: Place) -> Self {
        let registrations = Registrations::new(ids);
        Self {
            waiting: registrations.greeting().into_iter().collect(),
            registrations,
            place,
            entered: Vec::new(),
            most_waiting: ids.saturating_add(1).saturating_mul(WAITING),
            broken: false,
        }
    }

    pub(super) fn has_rules(&self) -> bool {
        !self.registrations.is_empty()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(super) fn send(&mut self, client: &Flow) -> Sent {
        if self.broken {
            return Sent::Broken;
        }
        while let Some(capsule) = self.waiting.front() {
            if !client.send_capsule(capsule) {
                return Sent::Some;
            }
            self.waiting.pop_front();
        }
        Sent::All
    }

    /// Nothing is in force any more, and nothing will be.
    pub(super) fn end(&mut self) {
        self.entered.clear();
        self.waiting.clear();
        self.broken = true;
    }

    fn leave(&mut self, id: AliasId) {
        let at = self.entered.iter().position(|entered| entered.id == id);
        if let Some(at) = at {
            self.entered.swap_remove(at).rule.close();
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.rule.close();
    }
}

/// Where aliases come from, and places for them.
struct Minting<'a>(&'a Road, &'a Pace);

impl Mint for Minting<'_> {
    type Place = Permit;

    fn place(&mut self) -> Option<Permit> {
        self.1.id().ok()
    }

    fn target(&mut self) -> AliasId {
        self.0.forwarder.mint()
    }

    fn client(&mut self, len: usize) -> Option<Id> {
        Id::random(len)
    }
}

impl Forwarding {
    /// Does what the client asks for.
    pub(super) fn obey(&self, control: &mut Control, capsule: Capsule) {
        if !control.broken {
            let mut mint = Minting(&self.road, &self.ledger.pace);
            let steps = control.registrations.handle(capsule, &mut mint);
            self.apply(control, steps);
        }
    }

    /// Drops all rules if the client has moved.
    pub(super) fn check_place(&self, control: &mut Control) {
        let place = self.road.place();
        if control.place != place {
            control.place = place;
            let steps = control.registrations.moved();
            self.apply(control, steps);
            self.renew_clients(control);
        }
    }

    pub(super) fn fail(&self, control: &mut Control, why: Refusal) {
        self.apply(control, vec![Step::Break(why)]);
    }

    fn apply(&self, control: &mut Control, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Send(capsule) => self.tell(control, capsule),
                Step::Enter { alias, id } => self.enter(control, alias, id),
                Step::Leave(alias) => control.leave(alias),
                Step::Clients => self.renew_clients(control),
                Step::Refused(why) => self.count(why),
                Step::Break(why) => self.break_off(control, why),
            }
        }
        self.work.notify_one();
    }

    fn tell(&self, control: &mut Control, capsule: Capsule) {
        match control.waiting.len() < control.most_waiting {
            true => control.waiting.push_back(capsule),
            false => self.break_off(control, Refusal::Limit),
        }
    }

    fn enter(&self, control: &mut Control, id: AliasId, to: Id) {
        let metrics = &self.ledger.metrics;
        let rule = Rule::new(self.me.clone(), metrics.clone(), to, control.place.address);
        let rule = Arc::new(rule);
        control.entered.push(Entered {
            id,
            _alias: self.road.forwarder.enter(id, rule.clone()),
            rule,
            _counted: Up::new(&metrics.forwarding.rules_open),
        });
    }

    fn renew_clients(&self, control: &Control) {
        let ids = control.registrations.clients();
        let mut clients = self.clients();
        clients.renew(
            control.place.address,
            ids,
            &self.ledger.metrics.forwarding.rules_open,
        );
        let active = !clients.is_empty();
        let before = self.active.swap(active, Ordering::Relaxed);
        if active && !before {
            // What a whole connection has under way may come at once, and nobody slows it down but what is lost.
            self.target.enlarge_buffers();
        }
    }

    fn break_off(&self, control: &mut Control, why: Refusal) {
        self.count(why);
        control.end();
    }

    fn count(&self, why: Refusal) {
        let refused = &self.ledger.metrics.forwarding.refused;
        let counter = match why {
            Refusal::TooLong => &refused.too_long,
            Refusal::Conflict => &refused.conflict,
            Refusal::Limit => &refused.limit,
            Refusal::Full => &refused.full,
            Refusal::Malformed => &refused.malformed,
            Refusal::Stale => &refused.stale,
        };
        counter.inc();
    }
}
