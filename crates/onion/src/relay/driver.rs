//! Serves the circuits that a peer opens on one channel, each as a task of its own, and drives each between its two sides. Nothing is read from a
//! side while the other takes nothing (backpressure): so a circuit that is stuck pushes back on itself alone. tor-spec "Creating circuits", "Routing relay cells", "Tearing down circuits".

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use bytes::BytesMut;
use hoplite_crypto::onion::introduction;
use hoplite_wire::cell::{
    self, Cell, CircuitId, Command,
    circuit::{DestroyReason, Extend2},
    conflux::Link,
    onion_service::{
        EstablishIntro, Introduce, IntroduceStatus, Rendezvous1, establish_rendezvous,
    },
    relay::{self, Header, SendmeTag, StreamId},
};
use tokio::{task::JoinSet, time::Instant};

use super::{
    Asking, Forward, Relay, RelayCircuit,
    circuit::{Extended, create},
    conflux::{Joining, Membership},
    onion_service::{Introduction, Rendezvous},
};
use crate::{
    channel::{self, Channel},
    conflux::LegId,
    endpoint::{Arrival, Endpoint, Role, io::Shared},
    failure,
    flow_control::{Control, Pressure},
    relay::{Counters, circuit::dial, exit, exit_counters::CircuitShare, extend::next_relay},
};

/// Cells handled in one direction before the other has its turn, and how often before other tasks have theirs. A direction in which nothing
/// moves is asked once a turn: asking costs a lock of the channel, and on QUIC one of the connection.
const BATCH: usize = 32;
const BATCHES: usize = 2;
/// This relay's own messages that wait to be sent to the client; beyond it, nothing more is read of the client's.
const REPLIES: usize = 8;

/// Serves until the channel has closed and its circuits have ended.
pub async fn serve(channel: Arc<dyn Channel>, relay: Arc<Relay>) {
    let mut circuits = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = circuits.join_next() => {}
            accepted = channel.accept() => match accepted {
                Some(circuit) => take(circuit, &channel, &relay, &mut circuits),
                None => break,
            },
        }
    }
    while circuits.join_next().await.is_some() {}
}

fn take(
    circuit: channel::CircuitEnds,
    channel: &Arc<dyn Channel>,
    relay: &Arc<Relay>,
    circuits: &mut JoinSet<()>,
) {
    let is_relay_full = relay.circuits() >= relay.config.circuits;
    if is_relay_full {
        relay.counters.full.fetch_add(1, Relaxed);
    }
    let full = is_relay_full || circuits.len() >= relay.config.circuits_per_channel;
    if full || !relay.handshakes.admits(channel.requester()) {
        relay.counters.limited.fetch_add(1, Relaxed);
        circuit.sender.destroy(DestroyReason::RESOURCELIMIT);
        return;
    }
    circuits.spawn(Driver::run(circuit, Arc::clone(relay), Arc::clone(channel)));
}

// One circuit.

/// One circuit of a relay.
pub(super) struct Driver {
    relay: Arc<Relay>,
    circuit: RelayCircuit,
    control: Control,
    back: channel::CircuitEnds,
    next: Next,
    service: Service,
    /// This end, if streams were asked for.
    endpoint: Option<Arc<Shared>>,
    /// That end is of a Conflux set, and this one of its legs.
    membership: Option<Membership>,
    tasks: JoinSet<()>,
    /// How much of what an exit counts is of this circuit.
    share: Arc<CircuitShare>,
    replies: VecDeque<(relay::RelayCommand, Vec<u8>)>,
    /// The channel that it came by.
    from: Arc<dyn Channel>,
    pressure: Pressure,
    moved: Moved,
    /// Of the present turn.
    now: Instant,
}

enum Next {
    None,
    Extending(Extending),
    Open(channel::CircuitEnds),
    /// It was there; the client has been told, or is about to be.
    Lost,
}

/// What the circuit is to an onion service.
enum Service {
    /// Nothing.
    None,
    /// A client's, which waits for the service.
    Waiting(Rendezvous),
    /// One of a client or a service that was joined to the other's, which is its next.
    Joined,
    /// A service's, by which it is introduced.
    Introduced(Introduction),
    /// A client's, which has introduced itself.
    Introducing,
}

type Extending = Pin<Box<dyn Future<Output = Result<Extended, DestroyReason>> + Send>>;

/// What the client's side is still to be told of a circuit's end; nothing if it said so itself. The next relay is told DESTROYED, whoever ended it
/// and why: another relay's reason would be a byte that travels along the circuit, and our own one that it could choose by what it does.
/// tor-spec "Tearing down circuits".
struct Ended(Option<DestroyReason>);

/// Counts a circuit as long as it lives.
struct Counted(Arc<Relay>);

impl Driver {
    /// Serves a circuit that a peer has opened, from CREATE2 to its end.
    pub(super) async fn run(
        mut back: channel::CircuitEnds,
        relay: Arc<Relay>,
        from: Arc<dyn Channel>,
    ) {
        relay.counters.open.fetch_add(1, Relaxed);
        let _counted = Counted(Arc::clone(&relay));
        let created = create(&mut back, &relay, from.requester()).await;
        let (circuit, control) = match created {
            Ok(created) => created,
            Err(reason) => return back.sender.destroy(reason),
        };
        relay.counters.created.fetch_add(1, Relaxed);
        let mut driver = Self {
            relay,
            circuit,
            control,
            back,
            next: Next::None,
            service: Service::None,
            endpoint: None,
            membership: None,
            tasks: JoinSet::new(),
            share: Arc::default(),
            replies: VecDeque::new(),
            from,
            pressure: Pressure::default(),
            moved: Moved::default(),
            now: Instant::now(),
        };
        let ended = poll_fn(|cx| driver.poll(cx)).await;
        driver.end(&ended);
    }

    fn end(mut self, ended: &Ended) {
        if self.membership.take().is_some() {
            // Its set may go on, and with it what came by this leg.
            self.tasks.detach_all();
        } else if let Some(endpoint) = &self.endpoint {
            endpoint.lock().close(failure::retired());
        }
        if let Next::Open(next) = self.next {
            next.sender.destroy(DestroyReason::DESTROYED);
        }
        if let Some(reason) = ended.0 {
            if reason == DestroyReason::PROTOCOL {
                self.relay.counters.broken.fetch_add(1, Relaxed);
            }
            self.back.sender.destroy(reason);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let mut polled = self.take_turns(cx);
        if polled.is_pending() && self.flush(cx).is_err() {
            polled = Poll::Ready(Ended(None));
        }
        self.moved.tell(&self.relay.counters);
        polled
    }

    /// All that a turn has brought leaves together. If the next relay takes nothing any more, what comes from it says why, or ends.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), channel::Closed> {
        if let Next::Open(next) = &mut self.next {
            let _unless_ended = next.sender.poll_flush(cx);
        }
        match self.back.sender.poll_flush(cx) {
            Poll::Ready(Err(closed)) => Err(closed),
            _ => Ok(()),
        }
    }

    fn take_turns(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        self.now = Instant::now();
        if let Some(member) = &self.membership {
            let mut endpoint = member.shared().lock();
            if endpoint.closed().is_some() {
                return Poll::Ready(DestroyReason::FINISHED.into());
            }
            endpoint.set_driver(member.leg(), cx.waker());
        }
        for _ in 0..BATCHES {
            // What has ended keeps its memory until then, and a circuit may never rest.
            while !self.tasks.is_empty() && self.tasks.try_join_next().is_some() {}
            match self.turn(cx) {
                Ok(true) => {}
                Ok(false) => {
                    while let Poll::Ready(Some(_)) = self.tasks.poll_join_next(cx) {}
                    return Poll::Pending;
                }
                Err(ended) => return Poll::Ready(ended),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Answers whether there may be more to do.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let extended = self.poll_extending(cx)?;
        let mut back = 0;
        while back < BATCH && self.backward(cx)? {
            back += 1;
        }
        let mut forth = 0;
        while forth < BATCH && self.forward(cx)? {
            forth += 1;
        }
        // Behind what went back, which has made room for it.
        let brought = self.poll_service(cx)?;
        // What went forth may have brought about something that is to go back.
        Ok(extended || brought || forth > 0 || back == BATCH)
    }

    /// One cell from the client's side, if whoever it is for takes it.
    fn forward(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        if self.replies.len() >= REPLIES
            || self
                .endpoint()
                .is_some_and(|endpoint| endpoint.lock().is_full(self.leg()))
        {
            return Ok(false);
        }
        if let Next::Open(next) = &mut self.next {
            match next.sender.poll_ready(cx) {
                // If it takes nothing any more, what comes from it says why, or ends.
                Poll::Pending | Poll::Ready(Err(channel::Closed)) => return Ok(false),
                Poll::Ready(Ok(())) => {}
            }
        }
        let cell = match self.back.receiver.poll_recv(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Some(cell)) => cell,
            Poll::Ready(None) => return Err(Ended(None)),
        };
        if cell.command == Command::DESTROY {
            return Err(Ended(None));
        }
        let early = cell.command == Command::RELAY_EARLY;
        match self.circuit.forward(cell)? {
            Forward::Here(cell, tag) => {
                self.moved.taken += 1;
                self.handle_message(cell, tag, early, cx)?;
            }
            Forward::Next(cell) => match &mut self.next {
                Next::Open(next) => {
                    self.moved.passed_forth += 1;
                    let mut cell = cell;
                    // To a client or a service that was joined, this goes back.
                    if matches!(self.service, Service::Joined) {
                        cell.command = Command::RELAY;
                        self.moved.joined += 1;
                    }
                    next.sender.send(cell);
                }
                // It was on its way when the next relay was lost: a DESTROY for it would overtake TRUNCATED, which says what has happened.
                Next::Lost => {}
                // "If the cell is not recognized and there is no next hop, the circuit is closed."
                _ => return Err(DestroyReason::PROTOCOL.into()),
            },
        }
        Ok(true)
    }

    /// One cell towards the client: this relay's own answers first, then its streams', then what comes from the next.
    fn backward(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let ready = match self.back.sender.poll_ready(cx) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(channel::Closed)) => {
                return Err(Ended(None));
            }
            Poll::Pending => false,
        };
        self.pressure.note(ready, self.now);
        if let Some(member) = &self.membership {
            let mut endpoint = member.shared().lock();
            endpoint.set_ready(member.leg(), ready, self.now);
        }
        if !ready {
            return Ok(false);
        }
        if let Some((command, data)) = self.replies.pop_front() {
            return self.reply(command, &data).map(|()| true);
        }
        Ok(self.stream_cell(cx)? || self.next_cell(cx)?)
    }

    fn stream_cell(&mut self, cx: &Context<'_>) -> Result<bool, Ended> {
        let Some(shared) = &self.endpoint else {
            return Ok(false);
        };
        let leg = self.leg();
        let mut endpoint = shared.lock();
        let Some(message) = endpoint.next_message(leg) else {
            endpoint.set_driver(leg, cx.waker());
            return Ok(false);
        };
        let mut cell = relay_cell(message.body);
        cell.stream = message.stream;
        let sealed = self.circuit.originate(&mut cell);
        let tag = sealed.map_err(|_| Ended::from(DestroyReason::INTERNAL))?;
        if message.counted {
            endpoint.sealed(leg, tag, self.now);
        }
        drop(endpoint);
        self.moved.made += 1;
        self.back.sender.send(cell);
        Ok(true)
    }

    fn next_cell(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Next::Open(next) = &mut self.next else {
            return Ok(false);
        };
        let mut cell = match next.receiver.poll_recv(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(None) => return self.lost(DestroyReason::CHANNEL_CLOSED),
            Poll::Ready(Some(cell)) => cell,
        };
        match cell.command {
            Command::RELAY => {
                self.circuit.backward(&mut cell)?;
                self.moved.passed_back += 1;
                self.back.sender.send(cell);
                Ok(true)
            }
            // Whatever reason it gives.
            Command::DESTROY => self.lost(DestroyReason::DESTROYED),
            // "A relay MUST NOT send RELAY_EARLY towards the client."
            _ => Err(DestroyReason::PROTOCOL.into()),
        }
    }

    /// The circuit ends here now: the client is told, and may extend it anew. One that was joined to another ends with it.
    fn lost(&mut self, reason: DestroyReason) -> Result<bool, Ended> {
        if matches!(self.service, Service::Joined) {
            return Err(DestroyReason::DESTROYED.into());
        }
        self.next = Next::Lost;
        let mut data = Vec::with_capacity(1);
        reason.write(&mut data);
        self.replies
            .push_back((relay::RelayCommand::TRUNCATED, data));
        Ok(true)
    }

    fn reply(&mut self, command: relay::RelayCommand, data: &[u8]) -> Result<(), Ended> {
        let mut cell = relay_cell(BytesMut::zeroed(cell::BODY));
        let written = (|| {
            let format = self.circuit.format();
            let padding = relay::write(format, cell.fixed()?, command, StreamId::CIRCUIT, data)?;
            crate::random(padding);
            self.circuit.originate(&mut cell)
        })();
        written.map_err(|_| Ended::from(DestroyReason::INTERNAL))?;
        self.moved.made += 1;
        self.back.sender.send(cell);
        Ok(())
    }

    fn endpoint(&self) -> Option<&Shared> {
        self.endpoint.as_deref()
    }

    /// Which of its endpoint's circuits this is.
    fn leg(&self) -> LegId {
        let member = self.membership.as_ref();
        member.map_or(LegId::FIRST, Membership::leg)
    }
}

/// The channel sets the circuit's id.
fn relay_cell(body: BytesMut) -> Cell {
    Cell {
        circuit: CircuitId::CHANNEL,
        command: Command::RELAY,
        stream: StreamId::CIRCUIT,
        body,
    }
}

impl From<DestroyReason> for Ended {
    fn from(reason: DestroyReason) -> Self {
        Self(Some(reason))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.counters.open.fetch_sub(1, Relaxed);
    }
}

// What a relay does with a message that is for itself: it extends or truncates the circuit, or hands it to its end of
// the streams. tor-spec "EXTEND and EXTENDED cells", "Tearing down circuits".

impl Driver {
    /// A message for this relay.
    fn handle_message(
        &mut self,
        mut cell: Cell,
        tag: SendmeTag,
        early: bool,
        cx: &Context<'_>,
    ) -> Result<(), Ended> {
        let body = cell
            .fixed()
            .map_err(|_| Ended::from(DestroyReason::PROTOCOL))?;
        let header = Header::read(self.circuit.format(), body)
            .map_err(|_| Ended::from(DestroyReason::PROTOCOL))?;
        let data = header
            .data(body)
            .map_err(|_| Ended::from(DestroyReason::PROTOCOL))?;
        match header.command {
            relay::RelayCommand::EXTEND2 => self.extend(data, early),
            relay::RelayCommand::TRUNCATE => self.truncate(),
            relay::RelayCommand::DROP => Ok(()),
            relay::RelayCommand::ESTABLISH_RENDEZVOUS => self.establish_rendezvous(data),
            relay::RelayCommand::RENDEZVOUS1 => self.join(data),
            relay::RelayCommand::ESTABLISH_INTRO => self.establish_introduction(data),
            relay::RelayCommand::INTRODUCE1 => self.introduce(data),
            relay::RelayCommand::CONFLUX_LINK => self.link(data),
            // The old EXTEND is not spoken here, and whoever sends it waits for an answer.
            relay::RelayCommand::EXTEND => Err(DestroyReason::PROTOCOL.into()),
            _ => self.stream_message(cell.body, tag, cx),
        }
    }

    fn stream_message(
        &mut self,
        body: BytesMut,
        tag: SendmeTag,
        cx: &Context<'_>,
    ) -> Result<(), Ended> {
        let at = Arrival {
            leg: self.leg(),
            now: self.now,
            blocked: self.pressure.holds(self.now),
        };
        let shared = self.endpoint.get_or_insert_with(|| {
            let (limits, random) = (self.relay.config.limits, self.relay.config.random.0);
            let endpoint = Endpoint::new(Role::Relay, self.control, limits, random);
            let endpoint = endpoint.with_format(self.circuit.format());
            let mut endpoint = endpoint.counted(&self.back.sender.backlog());
            if self.back.sender.has_backpressure() {
                endpoint.set_backpressure(LegId::FIRST);
            }
            Shared::new(endpoint)
        });
        let mut endpoint = shared.lock();
        endpoint.set_driver(at.leg, cx.waker());
        let handled = endpoint.handle_message(body, tag, at);
        handled.map_err(|_| Ended::from(DestroyReason::PROTOCOL))?;
        let asking = Asking {
            requester: self.from.requester(),
            is_relay: self.from.peer().is_some(),
        };
        while let Some((id, asked)) = endpoint.next_asked() {
            let (relay, shared) = (Arc::clone(&self.relay), Arc::clone(shared));
            match self.from.admit_stream() {
                Some(place) => {
                    let of = exit::Circuit {
                        shared,
                        share: Arc::clone(&self.share),
                        asking,
                    };
                    self.tasks.spawn(exit::serve(relay, place, of, id, asked));
                }
                None => exit::refuse(&relay, &mut endpoint, id, &asked),
            }
        }
        Ok(())
    }

    /// The circuit is to be a leg of a Conflux set: one that ends here, agreed on congestion control, and has not been used. Proposal 329 §4.2.1.
    fn link(&mut self, data: &[u8]) -> Result<(), Ended> {
        let free = self.relay.config.conflux
            && self.endpoint.is_none()
            && matches!(self.next, Next::None | Next::Lost)
            && matches!(self.service, Service::None);
        if !free {
            return Err(DestroyReason::PROTOCOL.into());
        }
        let link = Link::parse(data).map_err(|_| DestroyReason::PROTOCOL)?;
        let joining = Joining {
            control: self.control,
            format: self.circuit.format(),
            limits: self.relay.config.limits,
            random: self.relay.config.random,
            backlog: &self.back.sender.backlog(),
            backpressure: self.back.sender.has_backpressure(),
            now: self.now,
        };
        let joined = self.relay.conflux.join(&link, &joining);
        let member = joined.map_err(|_| DestroyReason::PROTOCOL)?;
        self.endpoint = Some(Arc::clone(member.shared()));
        self.membership = Some(member);
        self.relay.counters.linked.fetch_add(1, Relaxed);
        Ok(())
    }

    fn extend(&mut self, data: &[u8], early: bool) -> Result<(), Ended> {
        // "Upon receiving EXTEND2 in a RELAY cell, an OR MUST tear down the circuit", and so if there is a next relay already, or will be. A client
        // that was not introduced goes on to another relay.
        let free = matches!(self.next, Next::None | Next::Lost)
            && matches!(self.service, Service::None | Service::Introducing)
            && self.membership.is_none();
        if !early || !free {
            return Err(DestroyReason::PROTOCOL.into());
        }
        let extend = Extend2::parse(data).map_err(|_| Ended::from(DestroyReason::PROTOCOL))?;
        let own = self.relay.keys().published().ed25519;
        let admits = &*self.relay.next;
        let relay = next_relay(&extend, &own, self.from.peer(), admits).map_err(|_| {
            self.relay.counters.not_extended.fetch_add(1, Relaxed);
            Ended::from(DestroyReason::PROTOCOL)
        })?;
        let requester = self.from.requester();
        if !self.relay.handshakes.admits(requester) {
            self.relay.counters.not_extended.fetch_add(1, Relaxed);
            self.relay.counters.limited.fetch_add(1, Relaxed);
            return self.lost(DestroyReason::RESOURCELIMIT).map(drop);
        }
        let mut create = Vec::with_capacity(data.len());
        extend.create.write(&mut create);
        let origin = self.back.sender.origin();
        let extending = dial(Arc::clone(&self.relay), relay, create, (requester, origin));
        self.next = Next::Extending(Box::pin(extending));
        Ok(())
    }

    fn poll_extending(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Next::Extending(extending) = &mut self.next else {
            return Ok(false);
        };
        let (circuit, created) = match extending.as_mut().poll(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(extended)) => extended,
            Poll::Ready(Err(reason)) => {
                self.relay.counters.not_extended.fetch_add(1, Relaxed);
                // The client alone can read it: DESTROY would show the relays on the way why.
                return self.lost(reason);
            }
        };
        self.relay.counters.extended.fetch_add(1, Relaxed);
        self.next = Next::Open(circuit);
        self.replies
            .push_back((relay::RelayCommand::EXTENDED2, created));
        Ok(true)
    }

    fn truncate(&mut self) -> Result<(), Ended> {
        if let Next::Open(next) = std::mem::replace(&mut self.next, Next::None) {
            next.sender.destroy(DestroyReason::REQUESTED);
        }
        self.lost(DestroyReason::REQUESTED).map(drop)
    }
}

// Onion services. rend-spec-v3. What C tor closes a circuit for, this does.

impl Driver {
    /// Whether the circuit ends here and is nothing to an onion service yet.
    fn for_service(&self) -> Result<(), Ended> {
        let free = self.relay.config.onion_services.enabled
            && self.membership.is_none()
            && matches!(self.next, Next::None | Next::Lost)
            && matches!(self.service, Service::None);
        if free {
            Ok(())
        } else {
            Err(DestroyReason::PROTOCOL.into())
        }
    }

    fn establish_rendezvous(&mut self, data: &[u8]) -> Result<(), Ended> {
        self.for_service()?;
        let cookie = establish_rendezvous(data).map_err(|_| DestroyReason::PROTOCOL)?;
        let services = &self.relay.onion_services;
        let place = services.wait(cookie, self.back.sender.backlog());
        self.service = Service::Waiting(place.ok_or(DestroyReason::PROTOCOL)?);
        self.answer(relay::RelayCommand::RENDEZVOUS_ESTABLISHED, Vec::new());
        Ok(())
    }

    fn join(&mut self, data: &[u8]) -> Result<(), Ended> {
        self.for_service()?;
        let joining = Rendezvous1::parse(data).map_err(|_| DestroyReason::PROTOCOL)?;
        let services = &self.relay.onion_services;
        let backlog = self.back.sender.backlog();
        let client = services.meet(&joining.cookie, joining.handshake, backlog);
        self.next = Next::Open(client.ok_or(DestroyReason::PROTOCOL)?);
        self.service = Service::Joined;
        self.relay.counters.joined.fetch_add(1, Relaxed);
        Ok(())
    }

    fn establish_introduction(&mut self, data: &[u8]) -> Result<(), Ended> {
        self.for_service()?;
        let asked = EstablishIntro::parse(data).map_err(|_| DestroyReason::PROTOCOL)?;
        introduction::verify(&asked, self.circuit.nonce()).map_err(|_| DestroyReason::PROTOCOL)?;
        let services = &self.relay.config.onion_services;
        let rate = asked.rate.unwrap_or(services.introductions);
        let services = &self.relay.onion_services;
        let longest = self.circuit.format().most(relay::RelayCommand::INTRODUCE2);
        let place = services.establish(asked.auth_key, (rate, longest), self.now);
        self.service = Service::Introduced(place);
        // No extensions.
        self.answer(relay::RelayCommand::INTRO_ESTABLISHED, vec![0]);
        Ok(())
    }

    /// Once on each circuit, and not of a client that shows this relay its address and, by the key, the service that it asks for.
    fn introduce(&mut self, data: &[u8]) -> Result<(), Ended> {
        self.for_service()?;
        if self.from.peer().is_none() {
            return Err(DestroyReason::PROTOCOL.into());
        }
        self.service = Service::Introducing;
        let status = match Introduce::parse(data) {
            Ok(asked) => {
                let services = &self.relay.onion_services;
                services.introduce(&asked.auth_key, data, self.now)
            }
            Err(_) => IntroduceStatus::MALFORMED,
        };
        let counters = &self.relay.counters;
        let counter = match status {
            IntroduceStatus::SUCCESS => &counters.introduced,
            _ => &counters.not_introduced,
        };
        counter.fetch_add(1, Relaxed);
        let mut out = Vec::new();
        status.write(&mut out);
        self.answer(relay::RelayCommand::INTRODUCE_ACK, out);
        Ok(())
    }

    /// What another circuit brings to this one.
    fn poll_service(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        match &mut self.service {
            Service::Waiting(place) => {
                let Poll::Ready(met) = place.poll(cx) else {
                    return Ok(false);
                };
                let (handshake, service) = met.ok_or(DestroyReason::INTERNAL)?;
                self.next = Next::Open(service);
                self.service = Service::Joined;
                self.answer(relay::RelayCommand::RENDEZVOUS2, handshake);
                Ok(true)
            }
            Service::Introduced(place) if self.replies.len() < REPLIES => {
                let Poll::Ready(message) = place.poll(cx) else {
                    return Ok(false);
                };
                let message = message.ok_or(DestroyReason::FINISHED)?;
                self.answer(relay::RelayCommand::INTRODUCE2, message);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn answer(&mut self, command: relay::RelayCommand, data: Vec<u8>) {
        self.replies.push_back((command, data));
    }
}

// The cells of one circuit since the relay's counters were told: those are shared by all circuits, and told once a
// turn.

/// As in [`Cells`].
#[derive(Debug, Default)]
struct Moved {
    passed_forth: u64,
    passed_back: u64,
    taken: u64,
    made: u64,
    joined: u64,
}

impl Moved {
    /// Adds them to the relay's, and begins anew.
    fn tell(&mut self, counters: &Counters) {
        let (told, cells) = (std::mem::take(self), &counters.cells);
        add(&cells.passed_forth, told.passed_forth);
        add(&cells.passed_back, told.passed_back);
        add(&cells.taken, told.taken);
        add(&cells.made, told.made);
        add(&counters.rendezvous_cells, told.joined);
    }
}

fn add(count: &AtomicU64, more: u64) {
    if more > 0 {
        count.fetch_add(more, Relaxed);
    }
}
