//! A client of onion services: for each token and service a circuit to a rendezvous point, where the service comes, and streams on it.
//! A program asks [`Client::open_stream`]. rend-spec-v3, "Sending an INTRODUCE1 cell", "Establishing a rendezvous point", "Managing streams".
//!
//! A client tells a service nothing but where to meet; a hostile introduction point can refuse or keep silent, and the next one is asked; a hostile
//! rendezvous point can do so too, and sees bytes that it cannot read. What each of them may cost is bounded by [`ClientConfig`] and the stream's own
//! deadline.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    future::poll_fn,
    sync::Arc,
    time::Duration,
};

use hoplite_crypto::onion::hs_ntor::{self, IntroductionKeys};
use hoplite_overlay::{Datagrams, Error, ErrorKind, Isolation, Reason, Stream, Terms};
use hoplite_wire::cell::{
    onion_service::{COOKIE, IntroduceStatus, Introduction},
    relay::RelayCommand,
};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinError, JoinSet},
    time::{Instant, timeout},
};

use super::{IntroductionPoint, KnownService, shuffle};
use crate::{
    channel::Dialer,
    client::{self, Builder, BuiltCircuit, Conversation, Heard, INCREMENTS, LastRelay},
    endpoint::{Broken, io::Handle, udp::UdpHandle},
    failure,
    flow_control::Control,
    path::{MOST_HOPS, Paths, Relay, ServiceEnd, ServicePurpose},
};

/// Bounds of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Introductions that are tried for one stream.
    pub attempts: usize,
    /// The time that a relay may take to answer.
    pub answer: Duration,
    /// The time that a service may take to come, once it was told.
    pub service: Duration,
    /// An introduction point that failed is tried after the others for so long.
    pub failed: Duration,
    /// Introduction points that failed and are remembered.
    pub failures: usize,
    /// Services for which circuits are begun while they are looked for; for further ones they are begun after that.
    pub prepared: usize,
    /// Tokens and services with a circuit; beyond it those without streams are closed, and if there are none the next is refused.
    pub kept: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            attempts: 6,
            answer: Duration::from_secs(15),
            service: Duration::from_secs(60),
            failed: Duration::from_secs(120),
            failures: 1024,
            prepared: 8,
            kept: 48,
        }
    }
}

/// Reaches services. Dropped, its circuits end with their last streams.
pub struct Client {
    circuits: Circuits,
    /// No new streams on a circuit that is older.
    lasts: Duration,
    slots: Mutex<Slots>,
    failures: Mutex<Failures>,
    preparing: Arc<Semaphore>,
}

/// By token, and by the service's identity.
type Slots = HashMap<(Isolation, [u8; 32]), Arc<Slot>>;

/// The circuit of one token to one service. Whoever builds it holds the lock, and others of the token wait.
type Slot = tokio::sync::Mutex<Option<Arc<BuiltCircuit>>>;

/// A circuit whose last relay has agreed to join it to a service's.
struct Meeting {
    conversation: Conversation,
    cookie: [u8; COOKIE],
    relay: Relay,
}

impl Meeting {
    /// Itself, if its circuit stands.
    fn if_usable(self) -> Option<Self> {
        self.conversation.circuit().is_usable().then_some(self)
    }
}

impl Client {
    /// Builds circuits over what `paths` chooses, by the channels of `dialer`; `circuits` bounds each.
    pub fn new(
        dialer: Arc<dyn Dialer>,
        paths: Arc<dyn Paths>,
        circuits: &client::Config,
        config: ClientConfig,
    ) -> Self {
        Self {
            lasts: circuits.lasts,
            circuits: Circuits {
                builder: Builder::new(dialer, paths, circuits.clone()),
                config,
            },
            slots: Mutex::default(),
            failures: Mutex::default(),
            preparing: Arc::new(Semaphore::new(config.prepared)),
        }
    }

    /// A stream to a port of a service. Streams of one token to one service share a circuit, others none.
    ///
    /// # Errors
    /// The service refuses ([`ErrorKind::TargetFailed`]), cannot be reached over any introduction point that was tried
    /// ([`ErrorKind::PathFailed`]: its descriptor may be old), or not in time; there are too many circuits.
    pub async fn open_stream(
        &self,
        service: &KnownService,
        port: u16,
        terms: &Terms,
    ) -> Result<Stream, Error> {
        let circuit = self.reach(service, None, terms).await?;
        self.open_on(&circuit, port, terms).await
    }

    /// How many circuits to services stand now.
    pub fn circuits(&self) -> usize {
        let stands = |slot: &&Arc<Slot>| {
            let held = slot.try_lock();
            held.is_ok_and(|held| held.as_ref().is_some_and(|circuit| circuit.is_usable()))
        };
        self.slots.lock().values().filter(stands).count()
    }

    /// Begins what reaching a service takes while it is still being looked for: three round trips less for whoever waits. Nothing: the token has a circuit
    /// to it, or is about to, or too much is begun.
    pub fn prepare(&self, identity: &[u8; 32], isolation: &Isolation) -> Option<Prepared> {
        let name = (isolation.clone(), *identity);
        if let Some(slot) = self.slots.lock().get(&name) {
            let kept = slot.try_lock().ok()?;
            if kept.as_ref().is_some_and(|circuit| self.serves(circuit)) {
                return None;
            }
        }
        let place = Arc::clone(&self.preparing).try_acquire_owned().ok()?;
        Some(Prepared::begin(&self.circuits, place))
    }

    /// The token's circuit to a service.
    ///
    /// # Errors
    /// As [`Client::open_stream`], but for the service's refusal.
    pub async fn reach(
        &self,
        service: &KnownService,
        prepared: Option<Prepared>,
        terms: &Terms,
    ) -> Result<Arc<BuiltCircuit>, Error> {
        let circuit = self.circuit(&terms.isolation, service, prepared);
        terms.run("reaching an onion service", circuit).await
    }

    /// A stream on such a circuit.
    ///
    /// # Errors
    /// The service refuses, or the circuit has ended.
    pub(super) async fn open_on(
        &self,
        circuit: &BuiltCircuit,
        port: u16,
        terms: &Terms,
    ) -> Result<Stream, Error> {
        let opening = async {
            let id = circuit.shared().lock().begin_port(port)?;
            let mut handle = Handle::new(circuit.shared(), id);
            if terms.early {
                return Ok(Stream::early(handle, terms.deadline));
            }
            poll_fn(|cx| handle.poll_said(cx)).await?;
            Ok(Stream::new(handle))
        };
        terms
            .run("opening a stream to an onion service", opening)
            .await
    }

    /// A UDP stream on such a circuit. A service that carries none may say nothing at all (C tor's does not).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: the service refuses or does not answer. Else the circuit has ended.
    pub async fn open_datagrams_on(
        &self,
        circuit: &BuiltCircuit,
        port: u16,
        terms: &Terms,
    ) -> Result<Box<dyn Datagrams>, Error> {
        let opening = async {
            let id = circuit.shared().lock().connect_udp_port(port)?;
            let handle = UdpHandle::new(circuit.shared(), id);
            let said = timeout(
                self.circuits.config.answer,
                poll_fn(|cx| handle.poll_said(cx)),
            );
            match said.await {
                Ok(Ok(())) => Ok(Box::new(handle) as _),
                Ok(Err(error)) if error.kind() != ErrorKind::TargetFailed => Err(error),
                Ok(Err(_)) | Err(_) => {
                    let doing = "opening a UDP flow to an onion service, which has none there";
                    Err(Error::new(ErrorKind::Unsupported, doing))
                }
            }
        };
        terms
            .run("opening a UDP flow to an onion service", opening)
            .await
    }

    async fn circuit(
        &self,
        isolation: &Isolation,
        service: &KnownService,
        prepared: Option<Prepared>,
    ) -> Result<Arc<BuiltCircuit>, Error> {
        let slot = self.slot(isolation, service)?;
        let mut kept = slot.lock().await;
        if let Some(circuit) = kept.as_ref().filter(|circuit| self.serves(circuit)) {
            return Ok(Arc::clone(circuit));
        }
        // The last one takes no further streams, and ends with those that it has.
        *kept = None;
        let circuit = Arc::new(Box::pin(self.connect(service, prepared)).await?);
        *kept = Some(Arc::clone(&circuit));
        Ok(circuit)
    }

    fn serves(&self, circuit: &BuiltCircuit) -> bool {
        circuit.is_usable() && circuit.since().elapsed() < self.lasts
    }

    fn slot(&self, isolation: &Isolation, service: &KnownService) -> Result<Arc<Slot>, Error> {
        let mut slots = self.slots.lock();
        let name = (isolation.clone(), service.identity);
        if slots.len() >= self.circuits.config.kept && !slots.contains_key(&name) {
            slots.retain(|_, slot| !is_idle(slot));
        }
        let full = slots.len() >= self.circuits.config.kept;
        match slots.entry(name) {
            Entry::Occupied(slot) => Ok(Arc::clone(slot.get())),
            Entry::Vacant(_) if full => {
                let doing = "giving one more token or onion service a circuit";
                Err(Error::new(ErrorKind::PathFailed, doing).because(Reason::Limit))
            }
            Entry::Vacant(place) => Ok(Arc::clone(place.insert(Arc::default()))),
        }
    }

    /// Introduces itself over one introduction point after another, until the service comes.
    async fn connect(
        &self,
        service: &KnownService,
        prepared: Option<Prepared>,
    ) -> Result<BuiltCircuit, Error> {
        let mut points = service.points.clone();
        shuffle(&mut points);
        self.failures.lock().put_last(&mut points, Instant::now());
        let (mut meeting, mut stem) = match prepared {
            Some(prepared) => prepared.of(service).await,
            None => (None, None),
        };
        let mut last = Error::new(
            ErrorKind::PathFailed,
            "reaching an onion service that has no introduction point",
        );
        for point in points.iter().take(self.circuits.config.attempts) {
            // The rendezvous point of the last attempt will do, unless the service may be on its way there.
            let met = meeting.take();
            let (met, introducing) = tokio::join!(
                async {
                    match met {
                        Some(met) => Ok(met),
                        None => self.circuits.rendezvous_point(&service.points).await,
                    }
                },
                self.circuits.introduction(point, stem.take()),
            );
            let met = match met {
                Ok(met) => met,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            let reached = match introducing {
                Ok(introducing) => {
                    self.circuits
                        .attempt(service, point, met, introducing)
                        .await
                }
                Err(error) => Err((error, met.if_usable())),
            };
            match reached {
                Ok(circuit) => return Ok(circuit),
                Err((error, unused)) => (last, meeting) = (error, unused),
            }
            self.failures
                .lock()
                .note(point.auth_key, Instant::now(), &self.circuits.config);
        }
        Err(last)
    }
}

/// Builds what reaching a service takes. Clones build the same.
#[derive(Clone)]
struct Circuits {
    builder: Arc<Builder>,
    config: ClientConfig,
}

impl Circuits {
    /// One introduction. What it fails with has the rendezvous point if nobody was told of it.
    async fn attempt(
        &self,
        service: &KnownService,
        point: &IntroductionPoint,
        mut meeting: Meeting,
        introducing: Conversation,
    ) -> Result<BuiltCircuit, (Error, Option<Meeting>)> {
        match self.introduce(service, point, &meeting, introducing).await {
            Ok(IntroduceStatus::SUCCESS) => {}
            Ok(status) => return Err((not_introduced(status), meeting.if_usable())),
            // The service may have been told.
            Err(error) => return Err((error, None)),
        }
        let comes = timeout(self.config.service, meeting.conversation.hear()).await;
        match comes {
            Ok(Ok(Heard::Met)) => Ok(meeting.conversation.into_circuit()),
            Ok(Ok(_)) => Err((failure::broken(Broken::UnknownStream), None)),
            Ok(Err(error)) => Err((error, None)),
            Err(_) => {
                let doing = "waiting for an onion service at a rendezvous point";
                Err((Error::new(ErrorKind::TimedOut, doing), None))
            }
        }
    }

    /// A circuit to a relay that is none of the introduction points, if the list has such a one, which waits there.
    async fn rendezvous_point(&self, points: &[IntroductionPoint]) -> Result<Meeting, Error> {
        let avoided: Vec<_> = points
            .iter()
            .map(|point| point.relay.keys.ed25519)
            .collect();
        let (paths, purpose) = (self.builder.paths(), ServicePurpose::ClientRendezvous);
        let elsewhere = paths.service_path(purpose, ServiceEnd::OtherThan(&avoided));
        let path = match elsewhere.await {
            Ok(path) => path,
            Err(_) => {
                let anywhere = paths.service_path(purpose, ServiceEnd::OtherThan(&[]));
                anywhere.await?
            }
        };
        let relay = path.last().cloned().ok_or_else(failure::late)?;
        let mut conversation = self.builder.converse(path, LastRelay::Ours).await?;
        let mut cookie = [0; COOKIE];
        crate::random(&mut cookie);
        let asked = conversation.say(RelayCommand::ESTABLISH_RENDEZVOUS, cookie.to_vec());
        asked.await?;
        self.answer(&mut conversation, RelayCommand::RENDEZVOUS_ESTABLISHED)
            .await?;
        Ok(Meeting {
            conversation,
            cookie,
            relay,
        })
    }

    /// A circuit to an introduction point, by the stem if it can lead there.
    async fn introduction(
        &self,
        point: &IntroductionPoint,
        stem: Option<Conversation>,
    ) -> Result<Conversation, Error> {
        if let Some(stem) = stem.filter(|stem| leads_to(stem.circuit().path(), &point.relay)) {
            let led_on = timeout(self.config.answer, stem.lead_on(&point.relay)).await;
            return led_on.unwrap_or_else(|_| Err(failure::late()));
        }
        let end = ServiceEnd::Given(&point.relay);
        self.introducing(end, LastRelay::Strangers).await
    }

    /// All of such a circuit but the introduction point.
    async fn stem(&self) -> Result<Conversation, Error> {
        self.introducing(ServiceEnd::ToCome, LastRelay::ToCome)
            .await
    }

    async fn introducing(
        &self,
        end: ServiceEnd<'_>,
        last: LastRelay,
    ) -> Result<Conversation, Error> {
        let purpose = ServicePurpose::ClientIntroduction;
        let path = self.builder.paths().service_path(purpose, end).await?;
        self.builder.converse(path, last).await
    }

    /// Tells the service where to meet, over a circuit that is for nothing else.
    async fn introduce(
        &self,
        service: &KnownService,
        point: &IntroductionPoint,
        meeting: &Meeting,
        mut introducing: Conversation,
    ) -> Result<IntroduceStatus, Error> {
        let control = control(service);
        let introduction = Introduction {
            cookie: meeting.cookie,
            congestion_control: control != Control::Fixed,
            onion_key: meeting.relay.keys.onion,
            specifiers: meeting.relay.specifiers(),
        };
        let keys = IntroductionKeys {
            auth: point.auth_key,
            encryption: point.enc_key,
            subcredential: service.subcredential,
        };
        let (state, message) =
            hs_ntor::client(&keys, &introduction.write()).map_err(failure::broken)?;
        meeting.conversation.await_service(state, control).await?;
        introducing.say(RelayCommand::INTRODUCE1, message).await?;
        let answer = self.answer(&mut introducing, RelayCommand::INTRODUCE_ACK);
        IntroduceStatus::parse(&answer.await?).map_err(failure::broken)
    }

    async fn answer(
        &self,
        conversation: &mut Conversation,
        command: RelayCommand,
    ) -> Result<Vec<u8>, Error> {
        let answered = timeout(self.config.answer, conversation.answer(command)).await;
        answered.unwrap_or_else(|_| {
            let doing = "waiting for a relay that knows an onion service";
            Err(Error::new(ErrorKind::TimedOut, doing))
        })
    }
}

/// Circuits that were begun before it was known where a service is introduced: to a rendezvous point, and a stem that is led on to an introduction point.
/// Dropped, they are given up.
pub struct Prepared {
    meeting: JoinSet<Result<Meeting, Error>>,
    stem: JoinSet<Result<Conversation, Error>>,
    _place: OwnedSemaphorePermit,
}

impl Prepared {
    fn begin(circuits: &Circuits, place: OwnedSemaphorePermit) -> Self {
        let (mut meeting, mut stem) = (JoinSet::new(), JoinSet::new());
        let of = circuits.clone();
        meeting.spawn(async move { of.rendezvous_point(&[]).await });
        let of = circuits.clone();
        stem.spawn(async move { of.stem().await });
        Self {
            meeting,
            stem,
            _place: place,
        }
    }

    /// What has come about and serves. A rendezvous point that introduces to the service does not.
    async fn of(mut self, service: &KnownService) -> (Option<Meeting>, Option<Conversation>) {
        let (met, stem) = tokio::join!(self.meeting.join_next(), self.stem.join_next());
        let introduces = |met: &Meeting| {
            let points = service.points.iter();
            let mut keys = points.map(|point| point.relay.keys.ed25519);
            keys.any(|key| key == met.relay.keys.ed25519)
        };
        let met = built(met).filter(|met| !introduces(met));
        (met.and_then(Meeting::if_usable), built(stem))
    }
}

/// What a task has built, if it has.
fn built<T>(ended: Option<Result<Result<T, Error>, JoinError>>) -> Option<T> {
    ended?.ok()?.ok()
}

/// Whether a stem over this path can be led on to a relay: none goes back to where it comes from.
fn leads_to(path: &[Relay], relay: &Relay) -> bool {
    let mut before = path.iter().rev().take(2);
    path.len() < MOST_HOPS && before.all(|one| one.keys.ed25519 != relay.keys.ed25519)
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("onion_service::Prepared")
    }
}

/// The introduction point has passed nothing on.
fn not_introduced(status: IntroduceStatus) -> Error {
    let doing = match status {
        IntroduceStatus::UNKNOWN => {
            "introducing oneself to an onion service where it is not introduced any more (its descriptor is old: fetch it again)"
        }
        IntroduceStatus::CANT_RELAY => {
            "introducing oneself to an onion service that takes no more introductions now (try later)"
        }
        _ => "introducing oneself to an onion service at a relay that refuses",
    };
    Error::new(ErrorKind::PathFailed, doing)
}

/// How both are to hold back. An increment that nobody has would mark the service's clients.
fn control(service: &KnownService) -> Control {
    match service.sendme_increment {
        Some(increment) if INCREMENTS.contains(&increment) => Control::Vegas { increment },
        _ => Control::Fixed,
    }
}

/// Whether nobody waits for its circuit or has a stream on it.
fn is_idle(slot: &Arc<Slot>) -> bool {
    let kept = slot.try_lock();
    let streams = |circuit: &Arc<BuiltCircuit>| circuit.shared().lock().streams();
    kept.is_ok_and(|kept| kept.as_ref().is_none_or(|circuit| streams(circuit) == 0))
        && Arc::strong_count(slot) == 1
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.slots.lock().len();
        f.debug_struct("onion_service::Client")
            .field("circuits", &slots)
            .finish_non_exhaustive()
    }
}

// Introduction points that failed lately, by the service's key there. A machine without a clock.

/// Until when each is tried after the others.
#[derive(Debug, Default)]
struct Failures(HashMap<[u8; 32], Instant>);

impl Failures {
    fn note(&mut self, key: [u8; 32], now: Instant, config: &ClientConfig) {
        if self.0.len() >= config.failures {
            self.0.retain(|_, until| *until > now);
        }
        // Who has so many failures in so short a time learns nothing by one more.
        if self.0.len() < config.failures {
            self.0.insert(key, now + config.failed);
        }
    }

    /// The others keep their order.
    fn put_last(&self, points: &mut [IntroductionPoint], now: Instant) {
        let has_failed = |key: &[u8; 32]| self.0.get(key).is_some_and(|until| *until > now);
        points.sort_by_key(|point| has_failed(&point.auth_key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(n: u8) -> IntroductionPoint {
        let specifiers = [
            hoplite_wire::cell::circuit::LinkSpecifier::Ipv4(
                "192.0.2.1:9001".parse().expect("an address"),
            ),
            hoplite_wire::cell::circuit::LinkSpecifier::Ed25519([n; 32]),
        ];
        IntroductionPoint {
            relay: super::super::relay(&specifiers, [0; 32]).expect("a relay"),
            auth_key: [n; 32],
            enc_key: [0; 32],
        }
    }

    fn order(failures: &Failures, now: Instant) -> Vec<u8> {
        let mut points: Vec<_> = (1..=3).map(point).collect();
        failures.put_last(&mut points, now);
        points.iter().map(|point| point.auth_key[0]).collect()
    }

    #[test]
    fn a_stem_leads_to_none_of_its_last_two_relays_and_not_beyond_the_longest_path() {
        let relays = |numbers: &[u8]| -> Vec<_> {
            let points = numbers.iter().copied().map(point);
            points.map(|point| point.relay).collect()
        };
        let leads = |stem: &[u8], to| leads_to(&relays(stem), &point(to).relay);
        assert!(leads(&[1, 2, 3], 4));
        assert!(leads(&[1, 2, 3], 1), "as where the end is given");
        assert!(!leads(&[1, 2, 3], 2));
        assert!(!leads(&[1, 2, 3], 3));
        assert!(!leads(&[1, 2, 3, 4, 5, 6, 7, 8], 9));
    }

    #[test]
    fn a_point_that_failed_is_tried_last_for_a_while() {
        let (config, now) = (ClientConfig::default(), Instant::now());
        let mut failures = Failures::default();
        failures.note([1; 32], now, &config);
        assert_eq!(order(&failures, now), [2, 3, 1]);
        assert_eq!(order(&failures, now + config.failed), [1, 2, 3]);
    }

    #[test]
    fn no_more_failures_are_remembered_than_there_is_room_for() {
        let config = ClientConfig {
            failures: 2,
            ..ClientConfig::default()
        };
        let now = Instant::now();
        let mut failures = Failures::default();
        (1..=3).for_each(|n| failures.note([n; 32], now, &config));
        assert_eq!(order(&failures, now), [3, 1, 2]);
        failures.note([3; 32], now + config.failed, &config);
        assert_eq!(order(&failures, now + config.failed), [1, 2, 3]);
        assert_eq!(failures.0.len(), 1);
    }
}
