//! Forwarded mode of one UDP flow: packets with registered ids pass the QUIC connection by, everything else goes through it.
//! The CONNECT-UDP handler makes one for each flow that has agreed on it; the flow's sink, its way down and its driver share it.
//! draft-ietf-masque-quic-proxy. Its code points and the scramble transform are provisional.
//!
//! A rule holds for the client's address at which it was asked for. When the connection has another one, all rules of its flows go
//! and the client is told; so nothing is forwarded to an address that has not proved that it wants it: whoever acknowledges a client
//! VCID has received it there.

mod kernel;
mod packets;
mod registrations;

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    ops::ControlFlow,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use hoplite_crypto::{NoCipher, Scramble, Transform};
use hoplite_http::Flow;
use hoplite_overlay::direct::UdpFlow;
use hoplite_quic::{
    Connection,
    server::{Alias, AliasId, Forwarder},
};
use hoplite_wire::{
    RequestHead, ResponseHead,
    forwarding::{self, Answer, Capsule, ConnectionId, Malformed, Offer},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::sleep};

use self::{
    kernel::{Ends, Entry, Tally},
    packets::{Clients, Rule},
    registrations::{IdSource, Refusal, Registrations, Step, random_id},
};
pub(crate) use self::{
    kernel::{Kernel, LEFT as LEFT_BY_KERNEL},
    packets::Tunnel,
};
use crate::{
    config::Forwarding as Config,
    limits::{Account, Pace, QuotaGuard},
    metrics::{Metrics, Up},
};

/// How long a capsule waits when the request stream takes no more.
const RETRY: Duration = Duration::from_millis(20);
/// How many capsules may wait for each id that a flow may register, and beside them.
const WAITING: usize = 3;

/// A client's connection, and the socket that its packets arrive at.
#[derive(Clone)]
pub(crate) struct ClientConnection {
    connection: Connection,
    forwarder: Forwarder,
}

/// Where a connection's client is. An address that was left and taken again differs in the challenges that were sent meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    address: SocketAddr,
    challenges: u64,
}

impl ClientConnection {
    pub(crate) fn new(connection: Connection, forwarder: Forwarder) -> Self {
        Self {
            connection,
            forwarder,
        }
    }

    fn address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    fn source(&self) -> Option<IpAddr> {
        self.connection.local_ip()
    }

    /// Between the client at `address` and us.
    fn by_client(&self, address: SocketAddr) -> Option<Ends> {
        let to = SocketAddr::new(self.source()?, self.forwarder.local_port()?);
        Some(Ends { from: address, to })
    }

    fn place(&self) -> Place {
        Place {
            address: self.address(),
            challenges: self.connection.stats().frame_tx.path_challenge,
        }
    }
}

/// What a flow has beside its target's socket, whichever way its payloads go.
#[derive(Clone)]
pub(crate) struct Ledger {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pace: Pace,
    /// How many batches have passed; the idle watch looks at it.
    pub(crate) passed: Arc<AtomicU64>,
    /// Where payloads come on streams: whose windows they move.
    pub(crate) account: Option<Arc<Account>>,
}

/// The forwarded mode of one flow.
pub(crate) struct Forwarding {
    me: Weak<Self>,
    client_connection: ClientConnection,
    transform: Transform,
    target: Arc<UdpFlow>,
    ledger: Ledger,
    control: Mutex<Control>,
    /// What the way to the client needs of it.
    clients: Mutex<Clients>,
    /// Whether there is any client id to be forwarded.
    active: AtomicBool,
    /// How many batches the client has sent past its connection.
    forwarded: Arc<AtomicU64>,
    /// What forwards in our stead where it can.
    kernel: Option<InKernel>,
    /// There are capsules to be sent, or the client broke a rule.
    work: Notify,
}

impl Forwarding {
    pub(crate) fn new(
        terms: Terms,
        target: Arc<UdpFlow>,
        ledger: Ledger,
        kernel: Option<Arc<Kernel>>,
    ) -> Arc<Self> {
        let kernel = kernel.filter(|_| matches!(terms.transform, Transform::Identity));
        let place = terms.client_connection.place();
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            clients: Mutex::new(Clients::new(place.address)),
            control: Mutex::new(Control::new(terms.ids, place)),
            client_connection: terms.client_connection,
            transform: terms.transform,
            target,
            ledger,
            active: AtomicBool::new(false),
            forwarded: Arc::default(),
            kernel: kernel.map(InKernel::new),
            work: Notify::new(),
        })
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock()
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock()
    }

    /// A capsule has arrived. `Break`: the client broke a rule.
    pub(crate) fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let mut control = self.control();
        self.check_place(&mut control);
        match capsule {
            Ok(capsule) => self.obey(&mut control, capsule),
            Err(Malformed) => self.fail(&mut control, Refusal::Malformed),
        }
        if control.is_broken() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Drops all rules if the client has moved. Called when a packet says so, and from time to time.
    pub(crate) fn look_around(&self) {
        let mut control = self.control();
        self.check_place(&mut control);
    }

    /// Something came through the tunnel: cheaper than [`Self::look_around`], and enough while the client sends.
    pub(crate) fn tunnelled(&self) {
        let rules = self.control().has_rules();
        if rules && self.client_connection.address() != self.clients().address() {
            self.look_around();
        }
    }

    /// Tells the client what there is to tell, and its connection that it lives. Resolves when the client broke a rule.
    pub(crate) async fn drive(&self, client: &Flow, idle: Duration) {
        let mut seen = 0;
        loop {
            let sent = self.control().send(client);
            match sent {
                Sent::Broken => return,
                Sent::Some => sleep(RETRY).await,
                Sent::All => tokio::select! {
                    () = self.work.notified() => (),
                    () = self.pause(idle) => seen = self.keep_alive(client, seen),
                },
            }
        }
    }

    /// A third of the idle time; for ever while there is nothing to keep alive.
    async fn pause(&self, idle: Duration) {
        if idle.is_zero() || !self.control().has_rules() {
            std::future::pending().await
        } else {
            sleep(idle / 3).await
        }
    }

    /// "Packets sent by the client that are forwarded SHOULD be considered as activity for restarting QUIC's Idle Timeout".
    fn keep_alive(&self, client: &Flow, seen: u64) -> u64 {
        let now = self.forwarded.load(Ordering::Relaxed);
        if now != seen {
            client.keep_alive();
        }
        self.look_around();
        now
    }

    /// All rules end with the flow.
    pub(crate) fn end(&self) {
        self.control().end();
        self.clients().clear();
        self.active.store(false, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Forwarding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forwarding")
    }
}

/// What changes about a forwarded flow: its registrations, the aliases in force, the capsules that wait to be sent. Locked for a capsule, never
/// for a packet. The waiting capsules are bounded: a client that asks and does not read is reset.
struct Control {
    registrations: Registrations<QuotaGuard>,
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
enum Sent {
    All,
    /// The stream takes no more now.
    Some,
    /// The client broke a rule.
    Broken,
}

impl Control {
    fn new(ids: usize, place: Place) -> Self {
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

    fn has_rules(&self) -> bool {
        !self.registrations.is_empty()
    }

    fn is_broken(&self) -> bool {
        self.broken
    }

    /// `false`: as many wait as may. Of those that say how many ids the client may register, the last alone counts.
    fn tell(&mut self, capsule: Capsule) -> bool {
        let permits = |capsule: &Capsule| matches!(capsule, Capsule::MaxConnectionIds { .. });
        if permits(&capsule) {
            self.waiting.retain(|waiting| !permits(waiting));
        }
        let room = self.waiting.len() < self.most_waiting;
        if room {
            self.waiting.push_back(capsule);
        }
        room
    }

    fn send(&mut self, client: &Flow) -> Sent {
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
    fn end(&mut self) {
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
struct RelayIds<'a>(&'a ClientConnection, &'a Pace);

impl IdSource for RelayIds<'_> {
    type Place = QuotaGuard;

    fn place(&mut self) -> Option<QuotaGuard> {
        self.1.id().ok()
    }

    fn target(&mut self) -> AliasId {
        self.0.forwarder.mint()
    }

    fn client(&mut self, len: usize) -> Option<ConnectionId> {
        random_id(len)
    }
}

impl Forwarding {
    /// Does what the client asks for.
    fn obey(&self, control: &mut Control, capsule: Capsule) {
        if !control.broken {
            let mut mint = RelayIds(&self.client_connection, &self.ledger.pace);
            let steps = control.registrations.handle(capsule, &mut mint);
            self.apply(control, steps);
        }
    }

    /// Drops all rules if the client has moved.
    fn check_place(&self, control: &mut Control) {
        let place = self.client_connection.place();
        if control.place != place {
            control.place = place;
            let steps = control.registrations.moved();
            self.apply(control, steps);
            self.renew_clients(control);
        }
    }

    fn fail(&self, control: &mut Control, why: Refusal) {
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
        if !control.tell(capsule) {
            self.break_off(control, Refusal::Limit);
        }
    }

    fn enter(&self, control: &mut Control, id: AliasId, to: ConnectionId) {
        let metrics = &self.ledger.metrics;
        let rule = Rule::new(
            self.me.clone(),
            metrics.clone(),
            (id, to),
            control.place.address,
        );
        let rule = Arc::new(rule);
        control.entered.push(Entered {
            id,
            _alias: self.client_connection.forwarder.enter(id, rule.clone()),
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

/// A flow's part of the kernel's rules: those that user space has forwarded by once.
struct InKernel {
    kernel: Arc<Kernel>,
    /// It is looked after.
    watched: AtomicBool,
}

impl InKernel {
    const fn new(kernel: Arc<Kernel>) -> Self {
        Self {
            kernel,
            watched: AtomicBool::new(false),
        }
    }
}

impl Forwarding {
    /// Lets the kernel forward what comes from the client with `id`, and goes to the target with `new`.
    fn enter_from_client(&self, address: SocketAddr, id: &[u8], new: &[u8]) -> Option<Entry> {
        let arriving = self.client_connection.by_client(address)?;
        let leaving = self.towards_target()?;
        self.enter_in_kernel((arriving, leaving), (id, new), Some(self.forwarded.clone()))
    }

    /// The same of what comes from the target.
    fn enter_from_target(&self, address: SocketAddr, id: &[u8], new: &[u8]) -> Option<Entry> {
        let arriving = self.towards_target()?.reversed();
        let leaving = self.client_connection.by_client(address)?.reversed();
        self.enter_in_kernel((arriving, leaving), (id, new), None)
    }

    fn towards_target(&self) -> Option<Ends> {
        Some(Ends {
            from: self.target.local_addr().ok()?,
            to: self.target.peer(),
        })
    }

    fn enter_in_kernel(
        &self,
        ways: (Ends, Ends),
        ids: (&[u8], &[u8]),
        from_client: Option<Arc<AtomicU64>>,
    ) -> Option<Entry> {
        let InKernel { kernel, watched } = self.kernel.as_ref()?;
        let ledger = self.ledger.clone();
        let entry = kernel.enter(
            ways,
            ids,
            Tally {
                ledger,
                from_client,
            },
        )?;
        if !watched.swap(true, Ordering::Relaxed) {
            kernel.watch(self.me.clone());
        }
        Some(entry)
    }

    /// Whether the kernel may forward: where there is a rate to be kept, it does not keep it.
    fn may_enter_kernel(&self) -> bool {
        self.kernel.is_some() && !self.ledger.pace.is_limited()
    }

    /// Counts what the kernel has forwarded; its rules stay if they still may.
    fn tend_kernel(&self) {
        self.look_around();
        let stay = self.may_enter_kernel();
        for entered in &self.control().entered {
            entered.rule.tend(stay);
        }
        self.clients().tend(stay);
    }
}

/// What was agreed on for one flow (draft-ietf-masque-quic-proxy, "Proxy-QUIC-Forwarding Header").
pub(crate) struct Terms {
    client_connection: ClientConnection,
    transform: Transform,
    ids: usize,
}

/// Completes the answer to a request whose client can be reached by `client_connection`; forwarding is only for HTTP/3, which has one.
pub(crate) fn negotiate(
    config: &Config,
    request: &RequestHead,
    client_connection: Option<ClientConnection>,
    head: ResponseHead,
) -> (ResponseHead, Option<Terms>) {
    // "If this header field is not included, none of the functionality in this document can be used."
    let capsules = request.header("capsule-protocol");
    let capsules = capsules.is_some_and(|value| value.starts_with(b"?1"));
    let Some(client_connection) = client_connection.filter(|_| config.enabled && capsules) else {
        return (head, None);
    };
    // "A proxy that does not support port sharing, SHOULD send "Proxy-QUIC-Port-Sharing" with a value of "?0"."
    let offer = request.offer();
    let head = if offer.is_some() || request.port_sharing().is_some() {
        head.without_port_sharing()
    } else {
        head
    };
    let Some(offer) = offer else {
        return (head, None);
    };
    match select(config, &offer) {
        Some((answer, transform)) => {
            let ids = config.ids_per_flow;
            let terms = Terms {
                client_connection,
                transform,
                ids,
            };
            (head.with_answer(&answer), Some(terms))
        }
        None => (head.with_answer(&Answer::default()), None),
    }
}

fn select(config: &Config, offer: &Offer) -> Option<(Answer, Transform)> {
    use forwarding::Transform as Kind;
    let allowed: &[Kind] = if config.identity {
        &[Kind::Scramble, Kind::Identity]
    } else {
        &[Kind::Scramble]
    };
    match offer.select(allowed)? {
        kind @ Kind::Identity => {
            let transform = Some((kind, None));
            Some((Answer { transform }, Transform::Identity))
        }
        Kind::Scramble => scramble(offer).unwrap_or_else(|error| {
            tracing::warn!(%error, "a flow stays tunnelled");
            None
        }),
    }
}

fn scramble(offer: &Offer) -> Result<Option<(Answer, Transform)>, NoCipher> {
    let Some(theirs) = &offer.key else {
        return Ok(None);
    };
    let own = Scramble::fresh_key()?;
    let transform = Transform::scramble(&own, theirs)?;
    let kind = forwarding::Transform::Scramble;
    let answer = Answer {
        transform: Some((kind, Some(own))),
    };
    Ok(Some((answer, transform)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn what_a_client_is_told_and_does_not_read_waits_up_to_a_bound() {
        let place = Place {
            address: ([192, 0, 2, 1], 443).into(),
            challenges: 0,
        };
        let mut control = Control::new(2, place);
        for sequence in 2..1000 {
            assert!(control.tell(Capsule::MaxConnectionIds { sequence }));
        }
        let last = Capsule::MaxConnectionIds { sequence: 999 };
        assert_eq!(control.waiting, [last], "of those the last");
        let id = Bytes::from_static(b"client-1");
        let close = || Capsule::CloseClientCid { id: id.clone() };
        let told = (0..1000).filter(|_| control.tell(close()));
        assert_eq!(told.count(), 8, "and three for each id and beside them");
    }
}
