//! A service: keeps its introduction points, and goes to meet the clients that introduce themselves there. Streams come out of [`Service::accept`].
//! Whoever publishes its descriptor follows [`Service::points`]. rend-spec-v3, "The introduction protocol", "Joining to a rendezvous point",
//! "Managing streams".
//!
//! Anybody who knows the address can have a service build circuits, and each costs it more than the message that asked for it. So there is a bound of how many
//! are built at once and a second, and of how many clients there are ([`ServiceConfig`]). Beyond it those give way that were begun longest ago, more than five
//! seconds, as honest ones take less, and clients without streams; where there are none, or too many came of late, what comes is dropped unanswered, as is what
//! is not authentic, or was seen before. A client's streams are bounded too, and wait in its own circuit until they are accepted.

use std::{
    fmt,
    future::poll_fn,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_crypto::{
    SigningKey,
    onion::{
        OnionKey, Refused,
        hs_ntor::{Introduced, IntroductionSecret, REPLY},
        introduction,
    },
};
use hoplite_overlay::{Error, ErrorKind, Stream};
use hoplite_wire::cell::{
    onion_service::{COOKIE, Introduction, IntroductionRate, Rendezvous1},
    relay::{End, EndReason, RelayCommand, StreamId},
};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    IntroductionPoint, SENDME_INCREMENT,
    introduction::{Life, Verdict},
    room::{Place, Room, Stay},
};
use crate::{
    channel::Dialer,
    client::{self, Builder, BuiltCircuit, Conversation, Heard, LastRelay},
    endpoint::{
        Asked,
        io::Handle,
        udp::{NOWHERE, UdpHandle},
    },
    failure,
    flow_control::Control,
    path::{Paths, Relay, ServiceEnd, ServicePurpose},
    random_below,
    relay::Bucket,
};

/// Bounds of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Introduction points that it keeps, 1 to 20.
    pub points: usize,
    /// How many introductions each of those is asked to pass on; `None`: as many as the relay likes.
    pub introductions: Option<IntroductionRate>,
    /// Introductions of one point after which another takes its place, where that is less than at random.
    pub of_a_point: u32,
    /// Clients that it meets at most; of them an introduction point has no more than are left for the others. Beyond it one without streams gives way.
    pub clients: usize,
    /// Circuits to rendezvous points that are built at once; shared likewise. Beyond it the one that was begun longest ago gives way,
    /// if it has had a few seconds.
    pub building: usize,
    /// And how many are begun. Each introduction point has its part.
    pub rendezvous: IntroductionRate,
    /// Circuits that are tried for one client.
    pub attempts: usize,
    /// The time that all of them may take: later the client has gone.
    pub patience: Duration,
    /// The time that a relay may take to agree to introduce it.
    pub answer: Duration,
    /// Streams of all clients that wait to be accepted; more wait in their circuits.
    pub waiting: usize,
    /// Streams of one client at once.
    pub streams: usize,
    /// Streams of all clients at once; of them a client has no more than are left for the others. One more is refused.
    pub streams_of_all: usize,
    /// A client without streams is left after so long.
    pub idle: Duration,
    /// It has congestion control, and its descriptor says so.
    pub congestion_control: bool,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            points: 3,
            introductions: None,
            of_a_point: u32::MAX,
            clients: 1024,
            building: 128,
            rendezvous: IntroductionRate {
                per_second: 32,
                burst: 256,
            },
            attempts: 2,
            patience: Duration::from_secs(60),
            answer: Duration::from_secs(15),
            waiting: 64,
            streams: 128,
            streams_of_all: 1024,
            idle: Duration::from_secs(600),
            congestion_control: true,
        }
    }
}

/// What became of introductions.
#[derive(Debug, Default)]
pub struct Counters {
    /// Clients that were gone to meet; whether they were still there, they tell by a stream.
    pub met: AtomicU64,
    /// What was not authentic or could not be read.
    pub garbage: AtomicU64,
    /// What was seen before.
    pub replayed: AtomicU64,
    /// What there was no room for, or none any more before the client was met.
    pub limited: AtomicU64,
    /// Clients whose rendezvous point could not be reached.
    pub missed: AtomicU64,
}

/// A service. Dropped, it leaves its introduction points and takes no more streams; those that were accepted go on.
#[derive(Debug)]
pub struct Service {
    requests: mpsc::Receiver<StreamRequest>,
    points: watch::Receiver<Vec<IntroductionPoint>>,
    inner: Arc<Inner>,
    _keeping: JoinSet<()>,
}

/// What the tasks of a service share.
struct Inner {
    builder: Arc<Builder>,
    config: ServiceConfig,
    subcredentials: watch::Receiver<Vec<[u8; 32]>>,
    requests: mpsc::Sender<StreamRequest>,
    /// The point of each place.
    published: watch::Sender<Vec<Option<IntroductionPoint>>>,
    /// The relay that each place has, or wants.
    chosen: Mutex<Vec<Option<[u8; 32]>>>,
    /// Since when each place has its point.
    since: Mutex<Vec<Option<Instant>>>,
    /// By place, and so is what follows.
    clients: Room<usize>,
    building: Room<usize>,
    begun: Vec<Mutex<Bucket>>,
    /// By client.
    streams: Room<u64>,
    /// Clients so far.
    serial: AtomicU64,
    counters: Counters,
}

impl Service {
    /// Begins to keep introduction points, over what `paths` chooses and by the channels of `dialer`; `circuits` bounds what building one may take.
    /// `subcredentials` are those of the time periods that a descriptor is published for, two mostly.
    pub fn start(
        dialer: Arc<dyn Dialer>,
        paths: Arc<dyn Paths>,
        circuits: &client::Config,
        config: ServiceConfig,
        subcredentials: watch::Receiver<Vec<[u8; 32]>>,
    ) -> Self {
        let (request, requests) = mpsc::channel(config.waiting.max(1));
        let places = config.points.clamp(1, 20);
        let (published, places_told) = watch::channel(vec![None; places]);
        let (tell, points) = watch::channel(Vec::new());
        let circuits = client::Config {
            streams: config.streams,
            idle: config.idle,
            ..circuits.clone()
        };
        let of_each = |all: u32| all.div_ceil(u32::try_from(places).unwrap_or(u32::MAX));
        let (burst, rate) = (config.rendezvous.burst, config.rendezvous.per_second);
        let bucket = || Bucket::new(of_each(burst), of_each(rate), Instant::now());
        let inner = Arc::new(Inner {
            builder: Builder::new(dialer, paths, circuits),
            config,
            subcredentials,
            requests: request,
            published,
            chosen: Mutex::new(vec![None; places]),
            since: Mutex::new(vec![None; places]),
            clients: Room::new(config.clients),
            building: Room::lasting(config.building, LASTS),
            begun: (0..places).map(|_| Mutex::new(bucket())).collect(),
            streams: Room::new(config.streams_of_all),
            serial: AtomicU64::new(0),
            counters: Counters::default(),
        });
        let mut keeping = JoinSet::new();
        for place in 0..places {
            keeping.spawn(Arc::clone(&inner).keep(place));
        }
        keeping.spawn(tell_of(places_told, tell));
        Self {
            requests,
            points,
            inner,
            _keeping: keeping,
        }
    }

    /// The next stream that a client asks for.
    pub async fn accept(&mut self) -> Option<StreamRequest> {
        self.requests.recv().await
    }

    /// Where it is introduced now: what its descriptor says.
    pub fn points(&self) -> watch::Receiver<Vec<IntroductionPoint>> {
        self.points.clone()
    }

    /// The DATA cells of a SENDME, if its descriptor is to offer congestion control.
    pub fn sendme_increment(&self) -> Option<u8> {
        let has = self.inner.config.congestion_control;
        has.then_some(SENDME_INCREMENT)
    }

    /// What became of introductions.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// What tells how it does, whoever has the service itself.
    pub fn watch(&self) -> ServiceWatch {
        ServiceWatch(Arc::downgrade(&self.inner))
    }
}

/// Tells how a service does, and does not keep it.
#[derive(Clone, Debug)]
pub struct ServiceWatch(Weak<Inner>);

/// How a service does now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceState {
    /// How long it has had each of its introduction points.
    pub points: Vec<Duration>,
    /// Clients that it has gone to meet, and goes to; each has a circuit.
    pub clients: usize,
    /// Their streams that are accepted, or wait to be.
    pub streams: usize,
}

impl ServiceWatch {
    /// How it does; `None` when it is no more.
    pub fn state(&self) -> Option<ServiceState> {
        let inner = self.0.upgrade()?;
        let since = inner.since.lock();
        Some(ServiceState {
            points: since.iter().flatten().map(Instant::elapsed).collect(),
            clients: inner.clients.taken(),
            streams: inner.streams.taken(),
        })
    }
}

/// Leaves out the places that have no point.
async fn tell_of(
    mut places: watch::Receiver<Vec<Option<IntroductionPoint>>>,
    tell: watch::Sender<Vec<IntroductionPoint>>,
) {
    while places.changed().await.is_ok() {
        let points: Vec<_> = places
            .borrow_and_update()
            .iter()
            .flatten()
            .cloned()
            .collect();
        tell.send_if_modified(|told| {
            let changed = *told != points;
            *told = points;
            changed
        });
    }
}

// A client's stream, until it is accepted.

/// A client asks for a stream, of bytes or of datagrams. Dropped, it is refused.
pub struct StreamRequest {
    port: u16,
    udp: bool,
    id: StreamId,
    circuit: Arc<BuiltCircuit>,
    /// Its place among the streams of all clients; and the client keeps his as long.
    place: Option<(Place<u64>, Stay<usize>)>,
    answered: bool,
}

impl StreamRequest {
    /// `None` for what no client can ask of a service.
    fn new(asked: &Asked, id: StreamId, circuit: &Arc<BuiltCircuit>) -> Option<Self> {
        let (port, udp) = match asked {
            Asked::Port(port) => (*port, false),
            Asked::UdpPort(port) => (*port, true),
            Asked::Stream(_) | Asked::Directory | Asked::Name(_) | Asked::Udp(_) => return None,
        };
        Some(Self {
            port,
            udp,
            id,
            circuit: Arc::clone(circuit),
            place: None,
            answered: false,
        })
    }

    /// With its place among the streams of all clients, of this one; without one it is refused.
    fn placed(mut self, place: Option<Place<u64>>, client: &Place<usize>) -> Option<Self> {
        self.place = Some((place?, client.stay()));
        Some(self)
    }

    /// To which port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether datagrams are to travel on it: then it is [`Self::accept_udp`] that accepts it.
    pub fn is_udp(&self) -> bool {
        self.udp
    }

    /// Tells the client that the UDP stream is open.
    pub fn accept_udp(mut self) -> UdpHandle {
        self.answered = true;
        let handle = UdpHandle::new(self.circuit.shared(), self.id);
        self.circuit.shared().lock().connected_udp(self.id, NOWHERE);
        handle.holding((Arc::clone(&self.circuit), self.place.take()))
    }

    /// Tells the client that the stream is open.
    pub fn accept(mut self) -> Stream {
        self.answered = true;
        let handle = Handle::new(self.circuit.shared(), self.id);
        self.circuit.shared().lock().connected(self.id, None);
        Stream::new(handle).holding((Arc::clone(&self.circuit), self.place.take()))
    }

    /// Ends the stream, with the reason that tells nothing ("DONE").
    pub fn refuse(self) {
        drop(self);
    }

    /// Closes the client's circuit, with all of its streams: so does C tor where a client asks for a port that is not served, lest it try them all.
    pub fn close_circuit(mut self) {
        self.answered = true;
        leave(&self.circuit);
    }
}

impl Drop for StreamRequest {
    fn drop(&mut self) {
        if !self.answered {
            let mut endpoint = self.circuit.shared().lock();
            endpoint.refuse(self.id, End::new(EndReason::DONE));
        }
    }
}

impl fmt::Debug for StreamRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamRequest(port {})", self.port)
    }
}

// The place of one introduction point: a point, and after its time another.

/// Pauses after failures, in seconds: the first is short, each is twice the last.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Circuits to one point that are tried after the first; then another point takes its place (`MAX_INTRO_POINT_CIRCUIT_RETRIES`). A point that
/// could have a service build circuits as often as it likes would find its guards sooner or later.
const RETRIES: u32 = 3;
/// After a point that lasted less long there is a pause, too.
const SHORT_LIFE: Duration = Duration::from_secs(60);

/// A point with its keys, whatever circuit leads there.
struct Point {
    relay: Relay,
    auth: SigningKey,
    enc_key: [u8; 32],
    secret: IntroductionSecret,
    life: Life,
}

impl Point {
    fn new(relay: Relay, config: &ServiceConfig) -> Result<Self, Error> {
        let auth = SigningKey::generate().map_err(no_randomness)?;
        let fresh = OnionKey::fresh_secret().map_err(no_randomness)?;
        let encryption = OnionKey::from_secret(&fresh).map_err(no_randomness)?;
        Ok(Self {
            relay,
            enc_key: *encryption.public(),
            secret: IntroductionSecret::new(auth.public(), encryption),
            auth,
            life: Life::new(Instant::now(), random_below).of(config.of_a_point),
        })
    }

    fn published(&self) -> IntroductionPoint {
        IntroductionPoint {
            relay: self.relay.clone(),
            auth_key: self.auth.public(),
            enc_key: self.enc_key,
        }
    }
}

fn no_randomness(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Bug, "making the keys of an introduction point").caused_by(error)
}

/// Why a service listens to a point no longer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Its life is over.
    Over,
    /// The circuit has ended, or the relay broke the protocol.
    Lost,
}

impl Inner {
    /// Keeps a point in this place.
    async fn keep(self: Arc<Self>, place: usize) {
        let mut clients = JoinSet::new();
        let mut pause = FIRST_PAUSE;
        loop {
            if let Ok((point, conversation)) = self.choose(place).await {
                let begun = Instant::now();
                let keeping = self.keep_point(place, point, conversation, &mut clients);
                if keeping.await == Left::Over || begun.elapsed() >= SHORT_LIFE {
                    pause = FIRST_PAUSE;
                    continue;
                }
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    /// Keeps one point, over one circuit after another, as long as it lives.
    async fn keep_point(
        self: &Arc<Self>,
        place: usize,
        mut point: Point,
        mut conversation: Conversation,
        clients: &mut JoinSet<()>,
    ) -> Left {
        let mut retries = RETRIES;
        let left = loop {
            self.publish(place, Some(point.published()));
            let listening = self.listen(place, &mut point, &mut conversation, clients);
            let left = listening.await;
            drop(conversation);
            if left == Left::Over {
                break left;
            }
            match self.again(&point, &mut retries).await {
                Some(again) => conversation = again,
                None => break left,
            }
        };
        self.publish(place, None);
        left
    }

    /// A new point, at a relay where no other is.
    async fn choose(&self, place: usize) -> Result<(Point, Conversation), Error> {
        let others = self.others(place);
        let (purpose, end) = (
            ServicePurpose::ServiceIntroduction,
            ServiceEnd::OtherThan(&others),
        );
        let path = self.builder.paths().service_path(purpose, end).await?;
        let relay = path.last().cloned().ok_or_else(failure::late)?;
        if !self.take(place, relay.keys.ed25519) {
            let doing = "choosing an introduction point that another place has just chosen";
            return Err(Error::new(ErrorKind::PathFailed, doing));
        }
        let point = Point::new(relay, &self.config)?;
        let conversation = self.establish(&point, path).await?;
        Ok((point, conversation))
    }

    fn others(&self, place: usize) -> Vec<[u8; 32]> {
        let chosen = self.chosen.lock();
        let others = chosen.iter().enumerate().filter(|(at, _)| *at != place);
        others.filter_map(|(_, relay)| *relay).collect()
    }

    /// This place's, unless another has it.
    fn take(&self, place: usize, relay: [u8; 32]) -> bool {
        let mut chosen = self.chosen.lock();
        let others = chosen.iter().enumerate().filter(|(at, _)| *at != place);
        if others.into_iter().any(|(_, other)| *other == Some(relay)) {
            return false;
        }
        chosen
            .get_mut(place)
            .map(|place| place.replace(relay))
            .is_some()
    }

    /// Another circuit to a point that was lost: its descriptor stays right.
    async fn again(&self, point: &Point, retries: &mut u32) -> Option<Conversation> {
        let mut pause = FIRST_PAUSE;
        while let Some(left) = retries.checked_sub(1) {
            *retries = left;
            sleep(pause).await;
            pause = pause.saturating_mul(2);
            let established = async {
                let (purpose, end) = (
                    ServicePurpose::ServiceIntroduction,
                    ServiceEnd::Given(&point.relay),
                );
                let path = self.builder.paths().service_path(purpose, end).await?;
                self.establish(point, path).await
            };
            if let Ok(conversation) = established.await {
                return Some(conversation);
            }
        }
        None
    }

    /// Has the last relay of this path introduce the service.
    async fn establish(&self, point: &Point, path: Vec<Relay>) -> Result<Conversation, Error> {
        let purpose = ServicePurpose::ServiceIntroduction;
        let building = self.builder.converse(path, LastRelay::Ours, purpose);
        let mut conversation = building.await?;
        let rate = self.config.introductions;
        let message = introduction::establish(&point.auth, rate, conversation.nonce());
        let asked = conversation.say(RelayCommand::ESTABLISH_INTRO, message);
        asked.await?;
        let answer = conversation.answer(RelayCommand::INTRO_ESTABLISHED);
        let answered = timeout(self.config.answer, answer).await;
        answered.unwrap_or_else(|_| Err(failure::late()))?;
        Ok(conversation)
    }

    fn publish(&self, place: usize, point: Option<IntroductionPoint>) {
        if let Some(since) = self.since.lock().get_mut(place) {
            let now = point.is_some().then(Instant::now);
            *since = now.map(|now| since.unwrap_or(now));
        }
        self.published.send_modify(|places| {
            if let Some(place) = places.get_mut(place) {
                *place = point;
            }
        });
    }

    /// Meets the clients that introduce themselves.
    async fn listen(
        self: &Arc<Self>,
        place: usize,
        point: &mut Point,
        conversation: &mut Conversation,
        clients: &mut JoinSet<()>,
    ) -> Left {
        while !point.life.is_over(Instant::now()) {
            tokio::select! {
                heard = conversation.hear() => match heard {
                    Ok(Heard::Message(RelayCommand::INTRODUCE2, message)) => self.introduced((place, point), &message, clients),
                    Ok(_) | Err(_) => return Left::Lost,
                },
                () = sleep_until(point.life.until()) => {}
                Some(_) = clients.join_next() => {}
            }
        }
        Left::Over
    }
}

// A client that has introduced itself, until its circuit ends.

/// Bytes of RENDEZVOUS1 (`HS_LEGACY_RENDEZVOUS_CELL_SIZE`).
const RENDEZVOUS1: usize = 168;
/// A circuit to a client is not given up for another's before this time: honest ones take less.
const LASTS: Duration = Duration::from_secs(5);
/// A client that was met and asks for no stream within this time is left.
const FIRST_STREAM: Duration = Duration::from_secs(30);

/// Closes a client's circuit.
fn leave(circuit: &BuiltCircuit) {
    circuit.shared().lock().close(failure::retired());
}

/// Room for a client, and to build a circuit for it.
struct Welcome {
    client: Place<usize>,
    building: Place<usize>,
}

/// A client, and where it waits.
struct Waiting {
    introduced: Introduced,
    relay: Relay,
    cookie: [u8; COOKIE],
    control: Control,
}

impl Inner {
    /// A message has come; nobody is told what becomes of it.
    fn introduced(
        self: &Arc<Self>,
        (place, point): (usize, &mut Point),
        message: &[u8],
        clients: &mut JoinSet<()>,
    ) {
        if point.life.has_seen(message) {
            self.counters.replayed.fetch_add(1, Relaxed);
            return;
        }
        let Ok(waiting) = self.read(point, message) else {
            self.counters.garbage.fetch_add(1, Relaxed);
            return;
        };
        if point.life.introduced(message, waiting.cookie) == Verdict::Replayed {
            self.counters.replayed.fetch_add(1, Relaxed);
            return;
        }
        let Some(room) = self.room(place) else {
            self.counters.limited.fetch_add(1, Relaxed);
            return;
        };
        clients.spawn(Arc::clone(self).serve(waiting, room));
    }

    fn read(&self, point: &Point, message: &[u8]) -> Result<Waiting, Refused> {
        let subcredentials = self.subcredentials.borrow().clone();
        let (plaintext, introduced) = point.secret.introduced(message, &subcredentials)?;
        let introduction = Introduction::parse(&plaintext).map_err(|_| Refused::Malformed)?;
        let relay = super::relay(&introduction.specifiers, introduction.onion_key);
        let control = if introduction.congestion_control && self.config.congestion_control {
            let increment = SENDME_INCREMENT;
            Control::Vegas { increment }
        } else {
            Control::Fixed
        };
        Ok(Waiting {
            introduced,
            relay: relay.ok_or(Refused::Malformed)?,
            cookie: introduction.cookie,
            control,
        })
    }

    /// Whoever floods a service through one introduction point leaves room for those who come through the others, and what he holds gives way to who comes.
    fn room(&self, place: usize) -> Option<Welcome> {
        let (now, mut begun) = (Instant::now(), self.begun.get(place)?.lock());
        // Nobody gives way to who may not begin.
        if begun.left(now) == 0 {
            return None;
        }
        let client = self.clients.make_room(place)?;
        let building = self.building.make_room(place)?;
        let begins = begun.take(now);
        begins.then_some(Welcome { client, building })
    }

    /// Goes to meet the client, and attends to it, unless it has to give way before.
    async fn serve(self: Arc<Self>, waiting: Waiting, room: Welcome) {
        let Welcome { client, building } = room;
        let (missed, limited) = (&self.counters.missed, &self.counters.limited);
        let met = tokio::select! {
            met = timeout(self.config.patience, self.meet(waiting)) => met.ok().and_then(Result::ok).ok_or(missed),
            () = building.lost() => Err(limited),
            () = client.lost() => Err(limited),
        };
        drop(building);
        match met {
            Ok(circuit) => self.attend(circuit, &client).await,
            Err(counter) => {
                counter.fetch_add(1, Relaxed);
            }
        }
    }

    /// Hands out the streams of a client that was met; it is left if it asks for none, or has none when another needs its place.
    async fn attend(&self, circuit: BuiltCircuit, client: &Place<usize>) {
        self.counters.met.fetch_add(1, Relaxed);
        let circuit = Arc::new(circuit);
        let asks = tokio::select! {
            biased;
            () = client.lost() => false,
            asks = self.hand_out(&circuit, client) => asks,
        };
        if !asks {
            leave(&circuit);
        }
    }

    /// Hands out streams until the circuit ends. Answers whether the client has asked for any in time.
    async fn hand_out(&self, circuit: &Arc<BuiltCircuit>, client: &Place<usize>) -> bool {
        let serial = self.serial.fetch_add(1, Relaxed);
        let next = || poll_fn(|cx| circuit.shared().lock().poll_asked(cx));
        let Ok(mut asked) = timeout(FIRST_STREAM, next()).await else {
            return false;
        };
        while let Ok((id, what)) = asked {
            let request = StreamRequest::new(&what, id, circuit);
            let place = |request: StreamRequest| request.placed(self.streams.take(serial), client);
            if let Some(request) = request.and_then(place)
                && self.requests.send(request).await.is_err()
            {
                break;
            }
            asked = next().await;
        }
        true
    }

    async fn meet(&self, waiting: Waiting) -> Result<BuiltCircuit, Error> {
        let conversation = self.reach(&waiting.relay).await?;
        let (reply, seed) = waiting.introduced.answer().map_err(failure::broken)?;
        let mut message = Vec::new();
        Rendezvous1 {
            cookie: waiting.cookie,
            handshake: &reply,
        }
        .write(&mut message);
        // As long as the version before had it, and as C tor's is: its length tells the rendezvous point nothing.
        let mut padding = [0; RENDEZVOUS1 - COOKIE - REPLY];
        crate::random(&mut padding);
        message.extend_from_slice(&padding);
        let meeting = conversation.meet_client(message, seed, waiting.control);
        meeting.await?;
        Ok(conversation.into_circuit())
    }

    async fn reach(&self, relay: &Relay) -> Result<Conversation, Error> {
        let mut last = failure::late();
        for _ in 0..self.config.attempts {
            let built = async {
                let (purpose, end) = (ServicePurpose::ServiceRendezvous, ServiceEnd::Given(relay));
                let path = self.builder.paths().service_path(purpose, end).await?;
                let building = self.builder.converse(path, LastRelay::Strangers, purpose);
                building.await
            };
            match built.await {
                Ok(conversation) => return Ok(conversation),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
