//! What a client knows and does about forwarding one flow: which ids are registered, and which packet goes which way.
//! The flow's driver shows it every packet and capsule, and does what [`Machine::poll_action`] says, in order.
//! draft-ietf-masque-quic-proxy, "Connection ID Capsules", "Client Considerations", "Using Forwarded Mode".

use std::{collections::VecDeque, time::Duration};

use hoplite_overlay::End;
use hoplite_wire::forwarding::{Capsule, ConnectionId, is_long};
use tokio::time::Instant;

use super::{
    ids::IdLearner,
    rule::{self, Origin, Rule, State, acceptable},
};

/// "The initial MAX_CONNECTION_IDS value is 1".
const INITIAL_MAX_CONNECTION_IDS: u64 = 1;
/// This many ids of each end are learned from packets; one more takes the place of the one unused for longest.
const MAX_LEARNED: usize = 4;
/// An id that was not used for this long gives its place to one that is.
const IDLE: Duration = Duration::from_secs(1);
/// The pause after forwarded packets were swallowed, longer than a connection inside needs to notice that the tunnel carries it; each
/// further one is four times as long, up to the other.
const BLACK_HOLE_PAUSE: Duration = Duration::from_secs(10);
const MAX_BLACK_HOLE_PAUSE: Duration = Duration::from_secs(600);

/// When nothing has been swallowed for this long, the pauses begin anew.
const FORGIVEN: Duration = Duration::from_secs(1800);

/// The client's half of forwarded mode on one flow. Calls in any order are harmless; after each one [`Machine::poll_action`]
/// is asked until it has nothing to say.
#[derive(Debug)]
pub(crate) struct Machine {
    rules: Vec<Rule>,
    /// Where the rule of the last packet sent stands: the next one has mostly the same.
    last: usize,
    actions: VecDeque<Action>,
    /// How many ids are kept at once.
    limit: usize,
    /// The sequence number of the next registration, and the largest one that the relay allows.
    next: u64,
    most: u64,
    /// When an id was closed to make room for another.
    room_asked: Option<Instant>,
    learner: IdLearner,
    watchdog: Watchdog,
    /// How often what was forwarded was swallowed, when last, and until when nothing is registered therefore.
    swallowed: u32,
    fallen: Option<Instant>,
    tunnelled_until: Option<Instant>,
    below: Below,
    /// A short header was sent when nothing overtook the handshake inside any more: it is done at both ends.
    started: bool,
    /// When the last long header was sent: a part of the handshake.
    handshake: Option<Instant>,
}

/// How the link stands that the flow runs on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Below {
    /// From the client to the relay and back.
    pub(crate) round_trip: Duration,
    /// Nothing waits to be sent through it.
    pub(crate) drained: bool,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send this.
    Send(Capsule),
    /// Recognise packets with this alias as packets with that id, announce it below, then say [`Machine::admitted`].
    Admit {
        /// The client's own.
        id: ConnectionId,
        /// What stands for it.
        alias: ConnectionId,
    },
    /// Packets with this alias may be sent: announce it below.
    Announce(ConnectionId),
    /// This alias is used no more; the client's are not recognised any longer.
    Release(End, ConnectionId),
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// As a payload of the request.
    Tunnelled,
    /// Beside it, with another id in the place of its own, which has `id_len` bytes.
    Forwarded {
        /// The length of the id in the packet.
        id_len: usize,
        /// What takes its place.
        alias: ConnectionId,
    },
}

/// The relay broke a rule: the flow has to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a relay sent a capsule that only a client may send, or allowed less than must be allowed")]
pub(crate) struct Breach;

impl Machine {
    /// Keeps at most `limit` ids at once.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            rules: Vec::new(),
            last: 0,
            actions: VecDeque::new(),
            limit,
            next: 0,
            most: INITIAL_MAX_CONNECTION_IDS,
            room_asked: None,
            learner: IdLearner::new(),
            watchdog: Watchdog::default(),
            swallowed: 0,
            fallen: None,
            tunnelled_until: None,
            below: Below::default(),
            started: false,
            handshake: None,
        }
    }

    /// The next thing to do.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What could not be sent now is to be sent later, before everything else.
    pub(crate) fn undone(&mut self, action: Action) {
        self.actions.push_front(action);
    }

    /// Called before the packets of a batch are routed, and whenever time has passed.
    pub(crate) fn turn(&mut self, below: Below, now: Instant) {
        self.below = below;
        let patience = self.below.round_trip.max(self.learner.round_trip());
        if self.watchdog.is_suspicious(patience) {
            self.watchdog.reset();
            if self.has_alias() {
                self.fallback(now);
            }
        }
        self.register(now);
    }

    /// Which way a packet that the client sends goes; the tunnel carries `room` bytes.
    pub(crate) fn route(&mut self, packet: &[u8], room: usize, now: Instant) -> Route {
        let silence = self.watchdog.sent(now);
        // "QUIC long header packets MUST NOT be forwarded."
        if is_long(packet) {
            self.handshake = Some(now);
            if let Some(id) = self.learner.sent_long(packet, now) {
                self.learn(End::Client, id, now);
            }
            return Route::Tunnelled;
        }
        let overtakes = self.overtakes(now);
        if !overtakes {
            self.start();
        }
        let drained = self.below.drained;
        let Some(rule) = self.find(End::Target, packet) else {
            if let Some((id, since)) = self.learner.short(End::Target, packet, now) {
                self.replace(End::Target, id, since, now);
            }
            return Route::Tunnelled;
        };
        rule.is_used(now);
        let overtakes = overtakes || !rule.is_settled(drained, now);
        match rule.alias() {
            Some(alias) if !overtakes && (!silence || packet.len() > room) => {
                let id_len = rule.id.len();
                self.watchdog.forwarded(packet.len());
                Route::Forwarded { id_len, alias }
            }
            _ => Route::Tunnelled,
        }
    }

    /// Whether packets may go forwarded now.
    pub(crate) fn is_forwarding(&self) -> bool {
        let mut targets = self.rules.iter().filter(|rule| rule.end == End::Target);
        targets.any(|rule| rule.alias().is_some())
    }

    /// For how long a rule has waited for the tunnel to drain, the last one that does.
    pub(crate) fn settling(&self, now: Instant) -> Option<Duration> {
        self.rules
            .iter()
            .filter_map(|rule| rule.settling(now))
            .min()
    }

    /// A packet came through the tunnel.
    pub(crate) fn received(&mut self, packet: &[u8], now: Instant) {
        self.watchdog.heard();
        if is_long(packet) {
            if let Some(id) = self.learner.received_long(packet, now) {
                self.learn(End::Target, id, now);
            }
        } else if let Some(rule) = self.find(End::Client, packet) {
            rule.is_used(now);
        } else if let Some((id, since)) = self.learner.short(End::Client, packet, now) {
            self.replace(End::Client, id, since, now);
        }
    }

    /// Forwarded packets came that stand for packets with this id.
    pub(crate) fn heard(&mut self, id: ConnectionId, now: Instant) {
        self.watchdog.heard();
        let rules = self.rules.iter_mut();
        for rule in rules.filter(|rule| rule.is(End::Client, id)) {
            rule.used = now;
        }
    }

    /// A capsule came.
    ///
    /// # Errors
    /// The relay broke a rule.
    pub(crate) fn capsule(&mut self, capsule: &Capsule, now: Instant) -> Result<(), Breach> {
        match capsule {
            // "Clients receiving a MAX_CONNECTION_IDS capsule with a value less than 1 MUST reset the stream".
            Capsule::MaxConnectionIds { sequence: 0 } => return Err(Breach),
            Capsule::MaxConnectionIds { sequence } => {
                self.most = self.most.max(*sequence);
                self.room_asked = None;
            }
            Capsule::AckClientCid {
                id,
                virtual_id: alias,
            } => {
                self.acknowledged(End::Client, id, alias, now);
            }
            // A stateless reset of the relay's is not recognised: the link below notices its end by other signs.
            Capsule::AckTargetCid {
                id,
                virtual_id: alias,
                ..
            } => {
                self.acknowledged(End::Target, id, alias, now);
            }
            Capsule::CloseClientCid { id } => self.closed(End::Client, id, now),
            Capsule::CloseTargetCid { id } => self.closed(End::Target, id, now),
            _ => return Err(Breach),
        }
        self.register(now);
        Ok(())
    }

    /// What came of [`Action::Admit`].
    pub(crate) fn admitted(&mut self, alias: ConnectionId, done: bool, now: Instant) {
        let waits = |rule: &&mut Rule| rule.state == State::Admitting(alias);
        let Some(rule) = self.rules.iter_mut().find(waits) else {
            if done {
                let release = Action::Release(End::Client, alias);
                self.actions.push_back(release);
            }
            return;
        };
        if !done {
            self.actions.push_back(Action::Send(rule.close_capsule()));
            rule.refused(now);
            return;
        }
        rule.activate(alias, now);
        let id = rule.id.to_bytes();
        let before = rule.held.replace(alias);
        self.actions.push_back(Action::Send(Capsule::AckClientVcid {
            id,
            virtual_id: alias.to_bytes(),
            reset_token: bytes::Bytes::new(),
        }));
        self.release(End::Client, before);
    }

    /// Packets with this id will be in the flow.
    pub(crate) fn announce(&mut self, end: End, id: ConnectionId, now: Instant) {
        self.learner.is_quic();
        self.add(end, id, Origin::Announced, now);
        self.register(now);
    }

    /// They will not any more.
    pub(crate) fn withdraw(&mut self, end: End, id: ConnectionId) {
        if let Some(at) = self.rules.iter().position(|rule| rule.is(end, id)) {
            self.remove(at);
        }
    }

    /// The flow carries QUIC whose handshake was not seen.
    pub(crate) fn carries_quic(&mut self) {
        self.learner.is_quic();
    }

    /// The link has moved to another socket. "Each of the acknowledging capsules will contain new virtual connection IDs to
    /// prevent packets with the same connection ID bytes being used over multiple network paths."
    pub(crate) fn moved(&mut self, now: Instant) {
        self.close_rules(now);
        self.register(now);
    }

    /// The flow ends: what others were told of is taken back.
    pub(crate) fn close(&mut self) {
        self.actions.clear();
        for rule in std::mem::take(&mut self.rules) {
            if let State::Admitting(alias) = rule.state {
                self.release(rule.end, Some(alias));
            }
            self.release(rule.end, rule.held);
        }
    }

    fn acknowledged(&mut self, end: End, id: &[u8], alias: &[u8], now: Instant) {
        let taken = self.takes(end, alias);
        let of = |rule: &&mut Rule| rule.end == end && &rule.id[..] == id;
        // One that was withdrawn meanwhile.
        let Some(rule) = self.rules.iter_mut().find(of) else {
            return;
        };
        if !rule.is_answer() {
            return;
        }
        self.watchdog.heard();
        let alias = ConnectionId::new(alias).filter(|new| acceptable(end, rule.id, *new));
        let Some(alias) = alias.filter(|_| taken) else {
            self.actions.push_back(Action::Send(rule.close_capsule()));
            rule.state = State::GivenUp;
            return;
        };
        if end == End::Client {
            rule.state = State::Granted(alias);
            if self.started || rule.origin == Origin::Announced {
                let admit = rule.admit(alias);
                self.actions.push_back(admit);
            }
            return;
        }
        rule.activate(alias, now);
        let before = rule.held.replace(alias);
        self.actions.push_back(Action::Announce(alias));
        self.release(end, before);
    }

    /// Whether no other rule has this alias.
    fn takes(&self, end: End, alias: &[u8]) -> bool {
        let same = |id: Option<ConnectionId>| id.is_some_and(|id| &id[..] == alias);
        let mut rules = self.rules.iter().filter(|rule| rule.end == end);
        !rules.any(|rule| {
            let waits =
                matches!(rule.state, State::Granted(id) | State::Admitting(id) if same(Some(id)));
            same(rule.held) || waits
        })
    }

    /// Whether a packet that is forwarded now could arrive before the tunnelled end of the handshake, without which the target cannot read it.
    fn overtakes(&self, now: Instant) -> bool {
        let round_trip = self.below.round_trip.max(self.learner.round_trip());
        self.handshake.is_some_and(|sent| now - sent < round_trip)
    }

    /// Forwarded packets of the target may come from now on. They would have overtaken the tunnelled end of the handshake, which an
    /// end without keys takes for a loss; or they would have come behind the tunnelled change to another id, and be nobody's.
    pub(super) fn start(&mut self) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        for rule in &mut self.rules {
            if let State::Granted(alias) = rule.state {
                self.actions.push_back(rule.admit(alias));
            }
        }
    }

    /// The relay refuses an id, or has dropped its rule.
    fn closed(&mut self, end: End, id: &[u8], now: Instant) {
        let of = |rule: &&mut Rule| rule.end == end && &rule.id[..] == id;
        let rule = self.rules.iter_mut().find(of);
        let Some(rule) = rule.filter(|rule| rule.is_known()) else {
            return;
        };
        rule.refused(now);
        if end == End::Target {
            let before = rule.held.take();
            self.release(end, before);
        }
    }

    /// Nothing answers through the flow, whoever noticed it. Whether anything was forwarded that may have been swallowed.
    pub(super) fn suspect(&mut self, now: Instant) -> bool {
        let was = self.has_alias();
        self.fallback(now);
        was
    }

    /// Everything is tunnelled for a while, in both directions.
    fn fallback(&mut self, now: Instant) {
        if self.is_fallen(now) {
            return;
        }
        tracing::debug!("forwarded packets remain without an answer: they are tunnelled");
        let before = self.fallen.replace(now);
        if before.is_some_and(|before| now - before >= FORGIVEN) {
            self.swallowed = 0;
        }
        let pause = rule::pause(BLACK_HOLE_PAUSE, self.swallowed, MAX_BLACK_HOLE_PAUSE);
        self.tunnelled_until = Some(now + pause);
        self.swallowed = self.swallowed.saturating_add(1);
        self.close_rules(now);
    }

    /// Whether anything goes forwarded, in either direction.
    fn has_alias(&self) -> bool {
        self.rules.iter().any(|rule| rule.alias().is_some())
    }

    fn is_fallen(&self, now: Instant) -> bool {
        self.tunnelled_until.is_some_and(|until| now < until)
    }

    /// Closes what the relay knows; it is registered again.
    fn close_rules(&mut self, now: Instant) {
        self.watchdog.reset();
        let mut released = Vec::new();
        for rule in self.rules.iter_mut().filter(|rule| rule.is_known()) {
            self.actions.push_back(Action::Send(rule.close(now)));
            if rule.end == End::Target {
                released.extend(rule.held.take());
            }
        }
        for alias in released {
            self.release(End::Target, Some(alias));
        }
    }

    fn release(&mut self, end: End, alias: Option<ConnectionId>) {
        let actions = alias.map(|id| Action::Release(end, id));
        self.actions.extend(actions);
    }
}

/// The first packet after so long without one goes through the tunnel: whatever happens to the others, it arrives.
const SILENCE: Duration = Duration::from_millis(200);
/// Sending for this long without receiving anything, or for three round trips, is suspicious.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(1);
/// Two full packets: QUIC acknowledges every second one (RFC 9000 §13.2.2).
const BURST: usize = 2400;
/// This many silences in a row, each after a burst that nobody answered, are suspicious too.
const MAX_SILENCES: u8 = 3;

/// Notices that what is forwarded is swallowed, by what is *not* received.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// The last packet sent.
    last: Option<Instant>,
    /// The first one since something was received, in this stretch without silence.
    since: Option<Instant>,
    /// Bytes forwarded since something was received.
    bytes: usize,
    strikes: u8,
}

impl Watchdog {
    /// A packet is being sent. Whether there was silence before it.
    pub(super) fn sent(&mut self, now: Instant) -> bool {
        let silent = self.last.is_none_or(|last| now - last >= SILENCE);
        if silent {
            self.strikes = if self.bytes >= BURST {
                self.strikes.saturating_add(1)
            } else {
                0
            };
            (self.since, self.bytes) = (None, 0);
        }
        self.last = Some(now);
        self.since.get_or_insert(now);
        silent
    }

    /// It was forwarded.
    pub(super) fn forwarded(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Something was received.
    pub(super) fn heard(&mut self) {
        (self.since, self.bytes) = (None, 0);
    }

    /// Whether forwarding should be given up for a while.
    pub(super) fn is_suspicious(&self, round_trip: Duration) -> bool {
        let patience = SILENCE_TIMEOUT.max(3 * round_trip);
        let stretch = self.last.zip(self.since).map(|(last, since)| last - since);
        stretch >= Some(patience) || self.strikes >= MAX_SILENCES
    }

    /// Begins anew.
    pub(super) fn reset(&mut self) {
        (self.since, self.bytes, self.strikes) = (None, 0, 0);
    }
}

/// The table of ids: what is learned, announced and withdrawn, and who may be registered when not all may.
impl Machine {
    /// The rule of a packet with a short header; the longest id, should one be the beginning of another.
    fn find(&mut self, end: End, packet: &[u8]) -> Option<&mut Rule> {
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

    fn learn(&mut self, end: End, id: ConnectionId, now: Instant) {
        if self.rules.iter().any(|rule| rule.is(end, id)) {
            return;
        }
        let is_seen = |rule: &Rule| rule.end == end && rule.origin == Origin::Seen;
        let rules = self.rules.iter().enumerate();
        let seen = rules.filter(|(_, rule)| is_seen(rule));
        if seen.clone().count() >= MAX_LEARNED
            && let Some((oldest, _)) = seen.min_by_key(|(_, rule)| rule.used)
        {
            self.remove(oldest);
        }
        self.add(end, id, Origin::Seen, now);
        self.register(now);
    }

    /// An id that is used since then instead of others that were seen: these give their places back.
    fn replace(&mut self, end: End, id: ConnectionId, since: Instant, now: Instant) {
        let is_left =
            |rule: &Rule| rule.end == end && rule.origin == Origin::Seen && rule.used < since;
        while let Some(at) = self.rules.iter().position(is_left) {
            self.remove(at);
        }
        self.learn(end, id, now);
    }

    /// When the table is full the newest id is left out: it is tunnelled.
    fn add(&mut self, end: End, id: ConnectionId, origin: Origin, now: Instant) {
        let known = self.rules.iter().any(|rule| rule.is(end, id));
        if !known && self.rules.len() < self.limit {
            self.rules.push(Rule::new(end, id, origin, now));
        }
    }

    fn remove(&mut self, at: usize) {
        let rule = self.rules.remove(at);
        if rule.is_known() {
            self.actions.push_back(Action::Send(rule.close_capsule()));
        }
        self.release(rule.end, rule.held);
    }

    /// "The client MUST NOT send a registration capsule with a sequence number greater than what the proxy advertises".
    fn register(&mut self, now: Instant) {
        if self.is_fallen(now) {
            return;
        }
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
    fn make_room(&mut self, now: Instant) {
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
