//! How a client and a service come together: the client introduces itself over one introduction point after another, and where nobody comes over the next
//! beside it, until the service is there. rend-spec-v3, "Sending an INTRODUCE1 cell", "Establishing a rendezvous point".
//!
//! That an introduction was passed on (INTRODUCE_ACK) means little: a relay between the introduction point and the service may be gone and not be missed
//! yet, or the service itself. Nothing but that nobody comes shows it. C tor, too, leaves the circuit to the rendezvous point standing then, and begins
//! another.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    pin::pin,
    sync::Arc,
};

use hoplite_crypto::onion::hs_ntor::{self, IntroductionKeys};
use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::cell::{
    onion_service::{COOKIE, IntroduceStatus, Introduction},
    relay::RelayCommand,
};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until, timeout},
};

use super::{ClientConfig, IntroductionPoint, KnownService, shuffle};
use crate::{
    client::{Builder, BuiltCircuit, Conversation, Events, Heard, INCREMENTS, LastRelay},
    endpoint::Broken,
    failure,
    flow_control::Control,
    path::{MOST_HOPS, Relay, ServiceEnd, ServicePurpose},
};

/// What attempts to reach services share. Clones are the same one.
#[derive(Clone)]
pub(super) struct Reaching {
    builder: Arc<Builder>,
    config: ClientConfig,
    failures: Arc<Mutex<Failures>>,
    preparing: Arc<Semaphore>,
}

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

/// An attempt that came to nothing.
struct Failed {
    error: Error,
    /// Where to meet, if nobody was told of it.
    unused: Option<Meeting>,
    /// The introduction point with this key does not introduce the service.
    refused_by: Option<[u8; 32]>,
}

impl Failed {
    fn new(error: Error) -> Self {
        Self {
            error,
            unused: None,
            refused_by: None,
        }
    }

    fn with(error: Error, meeting: Meeting) -> Self {
        Self {
            unused: meeting.if_usable(),
            ..Self::new(error)
        }
    }
}

impl From<JoinError> for Failed {
    fn from(error: JoinError) -> Self {
        Self::new(Error::new(ErrorKind::Bug, "reaching an onion service").caused_by(error))
    }
}

/// The search for a newer descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    Ahead,
    Runs,
    /// There was none; as long as there are attempts it is looked for again.
    InVain,
    Found,
}

impl Reaching {
    pub(super) fn new(builder: Arc<Builder>, config: ClientConfig) -> Self {
        Self {
            builder,
            config,
            failures: Arc::default(),
            preparing: Arc::new(Semaphore::new(config.prepared)),
        }
    }

    /// Where it is told what circuits and streams do.
    pub(super) fn events(&self) -> &Events {
        self.builder.events()
    }

    /// Begins what does not depend on where a service is introduced. Nothing: too much is begun.
    pub(super) fn prepare(&self) -> Option<Prepared> {
        let place = Arc::clone(&self.preparing).try_acquire_owned().ok()?;
        let (mut meeting, mut stem) = (JoinSet::new(), JoinSet::new());
        let of = self.clone();
        meeting.spawn(async move { of.rendezvous_point(&[]).await });
        let of = self.clone();
        stem.spawn(async move { of.stem().await });
        Some(Prepared {
            meeting,
            stem,
            _place: place,
        })
    }

    /// Introduces itself until the service comes. `newer` is asked where else it is introduced, when it does not come soon or a point refuses.
    ///
    /// # Errors
    /// Why the last attempt failed.
    pub(super) async fn connect<N: Future<Output = Option<Arc<KnownService>>>>(
        &self,
        service: &KnownService,
        prepared: Option<Prepared>,
        newer: impl Fn() -> N,
    ) -> Result<BuiltCircuit, Error> {
        // Whoever is late of what is prepared holds up the first attempt alone.
        let (mut unused, mut prepared) = (None, prepared);
        let config = self.patient();
        let mut turns = self.turns(Arc::new(service.clone()));
        let (mut looking, mut search) = (pin!(newer()), Search::Ahead);
        let mut attempts = JoinSet::new();
        let mut last = Error::new(
            ErrorKind::PathFailed,
            "reaching an onion service that has no introduction point",
        );
        loop {
            if let Some(point) = turns.next(Instant::now(), &config) {
                // The rendezvous point of the last attempt will do, unless the service may be on its way there.
                let known = Arc::clone(&turns.service);
                let begun = (unused.take(), prepared.take());
                attempts.spawn(self.clone().attempt(known, point, begun));
            } else if attempts.is_empty() && turns.is_over() && search == Search::Ahead {
                search = Search::Runs;
            }
            tokio::select! {
                Some(ended) = attempts.join_next() => {
                    let failed = match ended.map_err(Failed::from).flatten() {
                        Ok(circuit) => return Ok(circuit),
                        Err(failed) => failed,
                    };
                    turns.failed(Instant::now());
                    if let Some(key) = failed.refused_by {
                        turns.leave(&key);
                        search = search.begun();
                    }
                    (last, unused) = (failed.error, failed.unused);
                }
                found = &mut looking, if search == Search::Runs => match found {
                    Some(found) => (turns, search) = (self.turns(found), Search::Found),
                    None => {
                        looking.set(newer());
                        search = Search::InVain;
                    }
                },
                () = sleep_until(turns.due()), if !turns.is_over() || search == Search::Ahead => {
                    search = search.begun();
                    self.note(turns.last());
                }
                else => return Err(last),
            }
        }
    }

    /// Nobody is in a hurry where circuits take long.
    fn patient(&self) -> ClientConfig {
        let usual = self.builder.usual();
        ClientConfig {
            hurry: self.config.hurry.max(3 * usual),
            ..self.config
        }
    }

    fn turns(&self, service: Arc<KnownService>) -> Turns {
        let (mut points, now) = (service.points.clone(), Instant::now());
        shuffle(&mut points);
        self.failures.lock().put_last(&mut points, now);
        Turns::new(service, points, now, &self.config)
    }

    /// Nobody comes over this point, or it cannot be reached.
    fn note(&self, point: Option<&IntroductionPoint>) {
        if let Some(point) = point {
            let mut failures = self.failures.lock();
            failures.note(point.auth_key, Instant::now(), &self.config);
        }
    }

    /// One introduction.
    async fn attempt(
        self,
        service: Arc<KnownService>,
        point: IntroductionPoint,
        (unused, prepared): (Option<Meeting>, Option<Prepared>),
    ) -> Result<BuiltCircuit, Failed> {
        let (unused, stem) = match prepared {
            Some(prepared) => prepared.of(&service).await,
            None => (unused, None),
        };
        let meeting = async {
            match unused {
                Some(met) => Ok(met),
                None => self.rendezvous_point(&service.points).await,
            }
        };
        let (met, introducing) = tokio::join!(meeting, self.introduction(&point, stem));
        let met = met.map_err(Failed::new)?;
        let reached = match introducing {
            Ok(introducing) => self.introduced(&service, &point, met, introducing).await,
            Err(error) => Err(Failed::with(error, met)),
        };
        reached.inspect_err(|_| self.note(Some(&point)))
    }

    /// From where the rendezvous point waits, and a circuit to the introduction point stands.
    async fn introduced(
        &self,
        service: &KnownService,
        point: &IntroductionPoint,
        mut meeting: Meeting,
        introducing: Conversation,
    ) -> Result<BuiltCircuit, Failed> {
        match self.introduce(service, point, &meeting, introducing).await {
            Ok(IntroduceStatus::SUCCESS) => {}
            Ok(status) => {
                let can_later = status == IntroduceStatus::CANT_RELAY;
                return Err(Failed {
                    refused_by: (!can_later).then_some(point.auth_key),
                    ..Failed::with(not_introduced(status), meeting)
                });
            }
            // The service may have been told.
            Err(error) => return Err(Failed::new(error)),
        }
        let comes = timeout(self.config.service, meeting.conversation.hear()).await;
        match comes {
            Ok(Ok(Heard::Met)) => Ok(meeting.conversation.into_circuit()),
            Ok(Ok(_)) => Err(Failed::new(failure::broken(Broken::UnknownStream))),
            Ok(Err(error)) => Err(Failed::new(error)),
            Err(_) => {
                let doing = "waiting for an onion service at a rendezvous point";
                Err(Failed::new(Error::new(ErrorKind::TimedOut, doing)))
            }
        }
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
        let end = ServiceEnd::ToCome;
        self.introducing(end, LastRelay::ToCome).await
    }

    async fn introducing(
        &self,
        end: ServiceEnd<'_>,
        last: LastRelay,
    ) -> Result<Conversation, Error> {
        let purpose = ServicePurpose::ClientIntroduction;
        let path = self.builder.paths().service_path(purpose, end).await?;
        self.builder.converse(path, last, purpose).await
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
        let building = self.builder.converse(path, LastRelay::Ours, purpose);
        let mut conversation = building.await?;
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

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("onion_service::Prepared")
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

impl Search {
    /// It is begun, unless it runs or has led to something.
    fn begun(self) -> Self {
        match self {
            Self::Ahead | Self::InVain => Self::Runs,
            begun => begun,
        }
    }
}

// Over which introduction point the next attempt goes, and when. A machine without a clock.

/// Each point in turn; those that do not refuse again, after a while.
struct Turns {
    service: Arc<KnownService>,
    /// The next one first.
    points: VecDeque<IntroductionPoint>,
    /// Points that were not tried yet.
    fresh: usize,
    /// Attempts that are left.
    left: usize,
    due: Instant,
}

impl Turns {
    fn new(
        service: Arc<KnownService>,
        points: Vec<IntroductionPoint>,
        now: Instant,
        config: &ClientConfig,
    ) -> Self {
        Self {
            service,
            fresh: points.len(),
            points: points.into(),
            left: config.attempts,
            due: now,
        }
    }

    /// The point of an attempt that is due now.
    fn next(&mut self, now: Instant, config: &ClientConfig) -> Option<IntroductionPoint> {
        if self.left == 0 || now < self.due {
            return None;
        }
        let point = self.points.pop_front()?;
        self.points.push_back(point.clone());
        self.fresh = self.fresh.saturating_sub(1);
        self.left -= 1;
        self.due = now + config.hurry;
        Some(point)
    }

    /// When another attempt is due beside those that run.
    fn due(&self) -> Instant {
        self.due
    }

    /// Whether there is no further attempt.
    fn is_over(&self) -> bool {
        self.left == 0 || self.points.is_empty()
    }

    /// The point of the last attempt.
    fn last(&self) -> Option<&IntroductionPoint> {
        self.points.back()
    }

    /// An attempt has failed: the next point that was not tried yet is due at once.
    fn failed(&mut self, now: Instant) {
        if self.fresh > 0 {
            self.due = now;
        }
    }

    /// The point with this key does not introduce the service.
    fn leave(&mut self, key: &[u8; 32]) {
        self.points.retain(|point| point.auth_key != *key);
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

    fn turns(points: u8, now: Instant) -> Turns {
        let service = KnownService {
            identity: [0; 32],
            subcredential: [0; 32],
            points: (1..=points).map(point).collect(),
            sendme_increment: None,
        };
        let points = service.points.clone();
        Turns::new(Arc::new(service), points, now, &ClientConfig::default())
    }

    /// After how many seconds each attempt begins, and over which point, if nothing is heard of any.
    fn silent(turns: &mut Turns, start: Instant) -> Vec<(u64, u8)> {
        let mut begun = Vec::new();
        while !turns.is_over() {
            let now = turns.due();
            let point = turns.next(now, &ClientConfig::default());
            begun.push(((now - start).as_secs(), point.expect("due").auth_key[0]));
        }
        begun
    }

    #[test]
    fn where_nobody_comes_each_point_has_its_turn_beside_those_before_and_again() {
        let start = Instant::now();
        let mut turns = turns(3, start);
        let expected = [(0, 1), (5, 2), (10, 3), (15, 1), (20, 2), (25, 3)];
        assert_eq!(silent(&mut turns, start), expected);
        assert!(
            turns
                .next(
                    start + ClientConfig::default().failed,
                    &ClientConfig::default()
                )
                .is_none()
        );
    }

    #[test]
    fn a_failure_has_the_next_point_tried_at_once_but_none_again() {
        let (start, config) = (Instant::now(), ClientConfig::default());
        let mut turns = turns(2, start);
        assert!(turns.next(start, &config).is_some());
        assert!(turns.next(start, &config).is_none(), "not before it is due");
        turns.failed(start);
        assert!(turns.next(start, &config).is_some());
        turns.failed(start);
        assert!(turns.next(start, &config).is_none(), "both were tried");
        assert_eq!(turns.due(), start + config.hurry);
    }

    #[test]
    fn a_point_that_refuses_has_no_further_turn() {
        let start = Instant::now();
        let mut turns = turns(2, start);
        turns.leave(&[1; 32]);
        assert!(
            silent(&mut turns, start)
                .iter()
                .all(|(_, point)| *point == 2)
        );
        turns.leave(&[2; 32]);
        assert!(turns.is_over());
    }
}
