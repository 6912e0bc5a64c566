//! The machine's table of ids: what is learned, announced and withdrawn, and who may be registered when not all may.
//! draft-ietf-masque-quic-proxy, "Client Considerations".

use hoplite_overlay::End;
use tokio::time::Instant;

use super::{
    super::{
        ConnectionId,
        rule::{Origin, Rule, State},
    },
    Action, IDLE, Machine, SEEN,
};

impl Machine {
    /// The rule of a packet with a short header; the longest id, should one be the beginning of another.
    pub(super) fn find(&mut self, end: End, packet: &[u8]) -> Option<&mut Rule> {
        let fits = |rule: &Rule| rule.end == end && rule.id.leads(packet);
        let hit = |rule: &Rule| rule.alias().is_some() && fits(rule);
        if !self.rules.get(self.last).is_some_and(hit) {
            let rules = self.rules.iter().enumerate();
            let rules = rules.filter(|(_, rule)| fits(rule));
            let best = rules.max_by_key(|(_, rule)| (rule.alias().is_some(), rule.id.len()));
            self.last = best?.0;
        }
        self.rules.get_mut(self.last)
    }

    pub(super) fn learn(&mut self, end: End, id: ConnectionId, now: Instant) {
        if self.rules.iter().any(|rule| rule.is(end, id)) {
            return;
        }
        let is_seen = |rule: &Rule| rule.end == end && rule.origin == Origin::Seen;
        let rules = self.rules.iter().enumerate();
        let seen = rules.filter(|(_, rule)| is_seen(rule));
        if seen.clone().count() >= SEEN
            && let Some((oldest, _)) = seen.min_by_key(|(_, rule)| rule.used)
        {
            self.remove(oldest);
        }
        self.add(end, id, Origin::Seen, now);
        self.register(now);
    }

    /// An id that is used since then instead of others that were seen: these give their places back.
    pub(super) fn replace(&mut self, end: End, id: ConnectionId, since: Instant, now: Instant) {
        let is_left =
            |rule: &Rule| rule.end == end && rule.origin == Origin::Seen && rule.used < since;
        while let Some(at) = self.rules.iter().position(is_left) {
            self.remove(at);
        }
        self.learn(end, id, now);
    }

    /// When the table is full the newest id is left out: it is tunnelled.
    pub(super) fn add(&mut self, end: End, id: ConnectionId, origin: Origin, now: Instant) {
        let known = self.rules.iter().any(|rule| rule.is(end, id));
        if !known && self.rules.len() < self.limit {
            self.rules.push(Rule::new(end, id, origin, now));
        }
    }

    pub(super) fn remove(&mut self, at: usize) {
        let rule = self.rules.remove(at);
        if rule.is_known() {
            self.actions.push_back(Action::Send(rule.close_capsule()));
        }
        self.release(rule.end, rule.held);
    }

    /// "The client MUST NOT send a registration capsule with a sequence number greater than what the proxy advertises".
    pub(super) fn register(&mut self, now: Instant) {
        for rule in self.rules.iter_mut().filter(|rule| rule.is_due(now)) {
            let undone = self.actions.len() >= 2 * self.limit.max(1);
            if self.next > self.most && now - rule.used < IDLE {
                return self.make_room(now);
            }
            if self.next > self.most || undone {
                continue;
            }
            self.next += 1;
            self.actions.push_back(Action::Send(rule.register()));
        }
    }

    /// All registrations are used up: the id unused for longest gives its place to one that waits. Relays allow one more then.
    pub(super) fn make_room(&mut self, now: Instant) {
        if self.room_asked.is_some_and(|asked| now - asked < IDLE) {
            return;
        }
        let is_idle = |rule: &&mut Rule| rule.alias().is_some() && now - rule.used >= IDLE;
        let rules = self.rules.iter_mut().filter(is_idle);
        let Some(rule) = rules.min_by_key(|rule| rule.used) else {
            return;
        };
        self.room_asked = Some(now);
        self.actions.push_back(Action::Send(rule.close(now)));
        rule.state = State::Resting;
        if rule.end == End::Target {
            let before = rule.held.take();
            self.release(End::Target, before);
        }
    }
}
