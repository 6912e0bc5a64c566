//! Drives one circuit of a client: cells from the channel to the machine, and back while the channel takes them.
//! [`build`] starts it as a task; [`BuiltCircuit`] is what the pool keeps of it.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use hoplite_crypto::onion::tor1::Party;
use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::cell::{circuit::DestroyReason, conflux::Nonce, relay::RelayCommand};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{SetOnce, oneshot},
    time::{Instant, Sleep, sleep, sleep_until, timeout, timeout_at},
};

use super::{
    Asks, BuildTimes, ClientCircuit, Config, Progress,
    conversation::{self, Conversation, Heard, Order, Talk},
    events::{CircuitEvents, CircuitPurpose, Events},
};
use crate::{
    channel::{self, Channel, Dialer, Standing},
    conflux::{LegId, Side},
    endpoint::{Arrival, Endpoint, Role, io::Shared},
    failure,
    flow_control::{Control, Pressure},
    path::{CircuitFate, CircuitUsage, Failed, Paths, Relay, ServicePurpose},
};

/// Cells handled in one direction before the other has its turn, and how often before other tasks have theirs.
const BATCH: usize = 32;
const BATCHES: usize = 2;
/// A last relay that has not answered for so long would have, and what it said did not come: an exit gives a target up sooner, and what relays are asked
/// about onion services they know.
const STREAM_ANSWER: Duration = Duration::from_secs(60);
const TALK_ANSWER: Duration = Duration::from_secs(10);
/// How long a relay that a stranger has chosen may take to become a circuit's last hop, once all others stand: it may be named because it never does.
const STRANGERS_ANSWER: Duration = Duration::from_secs(10);
/// How long the peer of a circuit that takes no more cells may need to say why.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(5);

/// A circuit that is built, or a Conflux set of circuits to one exit. Dropped, it lets its streams end, and closes then.
pub struct BuiltCircuit {
    kept: Arc<Kept>,
    built: Instant,
    /// Of the circuit, or of each leg.
    paths: Vec<Vec<Relay>>,
    /// Of the channels to the first relays.
    channels: Vec<Standing>,
    ended: Ended,
    /// What events call it; of a set its first leg.
    id: u64,
}

/// Where the streams are, as long as somebody opens some; while a set is being built, each of its legs has it.
struct Kept(Arc<Shared>);

/// Set when a circuit has ended, or the first leg of a set: to the path that it had if it has lost a hop after all had been there, and to that hop, from 0.
pub(super) type Ended = Arc<SetOnce<Option<(Vec<Relay>, usize)>>>;

/// What a circuit is for.
enum Purpose {
    /// Streams of its own.
    Streams,
    /// To talk to its last relay about an onion service.
    Talk(Talk),
    /// The same, with a last relay that is still to be named.
    Stem(Talk),
    /// The streams of a Conflux set.
    Leg(Arc<Kept>, Ended),
}

impl Purpose {
    /// Has the machine know what it may hear.
    fn mark(&self, machine: ClientCircuit) -> ClientCircuit {
        match self {
            Self::Streams | Self::Leg(..) => machine,
            Self::Talk(_) => machine.talking(),
            Self::Stem(_) => machine.stem(),
        }
    }
}

struct Driver {
    circuit: ClientCircuit,
    channel: channel::CircuitEnds,
    shared: Arc<Shared>,
    leg: LegId,
    /// It is a leg of a set: it is built when it is linked.
    links: bool,
    built: Option<oneshot::Sender<Result<(), (Error, usize)>>>,
    /// Who has chosen its last relay.
    last: LastRelay,
    /// While it lacks nothing but a stranger's relay: until when that may answer.
    stranger: Option<Pin<Box<Sleep>>>,
    idle: Option<Pin<Box<Sleep>>>,
    /// While it has streams, or somebody listens to its last relay: when it is to be asked for a sign of life.
    signs: Option<(Signs, Pin<Box<Sleep>>)>,
    config: Config,
    /// How many hops it has, for whoever waits.
    reached: Arc<AtomicUsize>,
    pressure: Pressure,
    /// Of the present turn.
    now: Instant,
    ended: Ended,
    /// It takes no more cells; by then it has said why, or never will.
    ending: Option<Pin<Box<Sleep>>>,
    /// With whoever talks to the last relay about an onion service.
    talk: Option<Talk>,
    fares: Fares,
    events: CircuitEvents,
}

/// Tells whoever has chosen the relays how the circuit fares.
struct Fares {
    /// Nobody is told of a circuit whose last relay is a stranger's choice.
    paths: Option<Arc<dyn Paths>>,
    /// When the last relay was first asked for something.
    asked: Option<Instant>,
    /// How long it may take to answer.
    answer: Duration,
    /// It has answered.
    answered: bool,
}

impl Fares {
    fn new(paths: Option<Arc<dyn Paths>>, talks: bool) -> Self {
        Self {
            paths,
            asked: None,
            answer: if talks { TALK_ANSWER } else { STREAM_ANSWER },
            answered: false,
        }
    }

    fn tell(&self, path: &[Relay], fate: CircuitFate) {
        if let Some(paths) = &self.paths {
            paths.fares(path, fate);
        }
    }

    /// The last relay has said something.
    fn answer(&mut self, path: &[Relay]) {
        if !std::mem::replace(&mut self.answered, true) {
            self.tell(path, CircuitFate::Used);
        }
    }

    /// The circuit has ended. That we have closed it tells nothing, unless an answer was kept back; that the channel to the first relay is lost does, if that
    /// has happened at a time when the relay gains by it.
    fn end(&self, circuit: &ClientCircuit, error: &Error, (ours, now): (bool, Instant)) {
        let (hops, _) = circuit.hops();
        if self.answered || hops == 0 {
            return;
        }
        let fate = match (circuit.is_built(), self.asked) {
            (true, Some(asked)) if !ours || now.duration_since(asked) >= self.answer => {
                CircuitFate::NotUsed
            }
            _ if ours => return,
            (false, _) => CircuitFate::NotBuilt,
            // What stands ready is lost each time that a device sleeps or moves.
            _ if failure::is_of_channel(error) => return,
            _ => CircuitFate::Collapsed,
        };
        self.tell(circuit.path(), fate);
    }
}

/// Builds a circuit over `path`, whose first relay is at the other end of `channel`. Dropping the future gives it up.
///
/// # Errors
/// Why it did not come about, and the hop that is to blame, from 0.
pub async fn build(
    channel: &dyn Channel,
    path: Vec<Relay>,
    config: &Config,
) -> Result<BuiltCircuit, (Error, usize)> {
    let events = config.events.circuit(CircuitPurpose::General);
    build_telling(
        channel,
        path,
        config,
        &Arc::default(),
        (Purpose::Streams, events),
        (LastRelay::Ours, None),
    )
    .await
}

/// Builds a circuit as [`build`] does, and says in `reached` how many hops it has. `paths` is told how it fares; `last` says who has chosen its last relay.
async fn build_telling(
    channel: &dyn Channel,
    path: Vec<Relay>,
    config: &Config,
    reached: &Arc<AtomicUsize>,
    (purpose, events): (Purpose, CircuitEvents),
    (last, paths): (LastRelay, Option<Arc<dyn Paths>>),
) -> Result<BuiltCircuit, (Error, usize)> {
    let opened = channel.open().await;
    let circuit = opened.map_err(|_| (failure::channel_closed(true), 0))?;
    let machine = ClientCircuit::new(
        circuit.id,
        path.clone(),
        Asks {
            congestion_control: config.congestion_control,
            cgo: config.cgo,
        },
        config.random.0,
    );
    let machine = purpose.mark(machine.map_err(|error| (error, 0))?);
    let backlog = circuit.sender.backlog();
    let own = || {
        let control = Control::Fixed;
        let endpoint = Endpoint::new(Role::Client, control, config.circuit(), config.random.0);
        (Kept::new(endpoint.counted(&backlog)), Ended::default())
    };
    let (mut leg, mut talk, mut links) = (LegId::FIRST, None, false);
    let (kept, ended) = match purpose {
        Purpose::Streams => own(),
        Purpose::Talk(with) | Purpose::Stem(with) => {
            talk = Some(with);
            own()
        }
        Purpose::Leg(kept, ended) => {
            links = true;
            leg = kept.0.lock().add_leg(Control::Fixed, &backlog);
            (kept, ended)
        }
    };
    // Relays of others keep all that comes, and a relay that is known by its keys alone may be one.
    let ours = path.iter().all(|relay| relay.half_close);
    if ours && circuit.sender.has_backpressure() {
        kept.0.lock().set_backpressure(leg);
    }
    let (tell, built) = oneshot::channel();
    let (machine, id) = (machine.leg(leg), events.id());
    let driver = Driver {
        circuit: machine,
        channel: circuit,
        shared: Arc::clone(&kept.0),
        leg,
        links,
        built: Some(tell),
        last,
        stranger: None,
        idle: None,
        signs: None,
        config: config.clone(),
        reached: Arc::clone(reached),
        pressure: Pressure::default(),
        now: Instant::now(),
        ended: Arc::clone(&ended),
        ending: None,
        fares: Fares::new(paths, talk.is_some()),
        talk,
        events,
    };
    let circuit = BuiltCircuit {
        id,
        kept,
        built: Instant::now(),
        paths: vec![path],
        channels: vec![channel.standing()],
        ended,
    };
    tokio::spawn(driver.run());
    match built.await {
        Ok(Ok(())) => Ok(circuit),
        Ok(Err(failed)) => Err(failed),
        Err(_) => Err((failure::channel_closed(true), 0)),
    }
}

impl BuiltCircuit {
    /// Where its streams are.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.kept.0
    }

    /// What events call it.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// When building it began.
    pub fn since(&self) -> Instant {
        self.built
    }

    /// It has one relay more.
    pub(super) fn led_on(&mut self, relay: &Relay) {
        let path = self.paths.first_mut();
        path.into_iter().for_each(|path| path.push(relay.clone()));
    }

    /// The relays that it goes through, or the first leg of a set does.
    pub fn path(&self) -> &[Relay] {
        self.paths.first().map_or(&[], Vec::as_slice)
    }

    /// The relays of all legs.
    pub fn relays(&self) -> impl Iterator<Item = &Relay> {
        self.paths.iter().flatten()
    }

    /// How many circuits it is: more than one are the legs of a Conflux set.
    pub fn legs(&self) -> usize {
        self.paths.len()
    }

    fn exit(&self) -> Option<&Relay> {
        self.path().last()
    }

    /// Whether its exit connects to `port`, as far as is known.
    pub fn permits(&self, port: u16) -> bool {
        self.exit().is_none_or(|exit| exit.permits(port))
    }

    /// The hop that it has lost since it was built, from 0, and of which path.
    pub fn lost(&self) -> Option<(&[Relay], usize)> {
        let lost = self.ended.get()?.as_ref();
        lost.map(|(path, hop)| (path.as_slice(), *hop))
    }

    /// For who waits for its end.
    pub(super) fn ended(&self) -> Ended {
        Arc::clone(&self.ended)
    }

    /// Whether its exit knows half-closed streams.
    pub fn half_close(&self) -> bool {
        self.exit().is_some_and(|exit| exit.half_close)
    }

    /// Whether it takes another stream, now or later.
    pub fn is_usable(&self) -> bool {
        let endpoint = self.shared().lock();
        let is_open = endpoint.closed().is_none() && !endpoint.has_no_room();
        is_open && !self.channels.iter().any(Standing::is_superseded)
    }

    /// Whether another stream would wait for a first relay that does not answer.
    pub fn is_suspect(&self) -> bool {
        self.channels.iter().any(Standing::is_suspect)
    }
}

impl Kept {
    fn new(endpoint: Endpoint) -> Arc<Self> {
        Arc::new(Self(Shared::new(endpoint)))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.lock().retire();
    }
}

impl Driver {
    async fn run(mut self) {
        let mut error = poll_fn(|cx| self.poll(cx)).await;
        let given_up = self.given_up().is_some();
        // What has ended another leg is no fault of this one's relays.
        let by_other = self.links && given_up;
        let lost = self.circuit.lost(&error).filter(|_| !by_other);
        let ours = given_up || !failure::is_of_others(&error);
        let end = (ours, Instant::now());
        self.fares.end(&self.circuit, &error, end);
        self.events.end(&error, ours);
        if let Some(hop) = lost {
            error = failure::lost(&error, self.circuit.path(), hop);
        }
        self.shared.lock().close_leg(self.leg, error.clone());
        // The first leg that ends says why.
        let lost = lost.map(|hop| (self.circuit.path().to_vec(), hop));
        self.ended.set(lost).ok();
        if let Some(built) = self.built.take() {
            // Beyond its path: none of its relays is to blame for another leg.
            let hop = if by_other {
                self.circuit.path().len()
            } else {
                self.circuit.failing()
            };
            drop(built.send(Err((error, hop))));
        }
        // tor-spec "Tearing down circuits": a client gives no reason.
        self.channel.sender.destroy(DestroyReason::NONE);
    }

    /// Runs until the circuit ends, and answers with why.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let polled = self.take_turns(cx);
        if polled.is_pending()
            && self.ending.is_none()
            && let Poll::Ready(Err(channel::Closed)) = self.channel.sender.poll_flush(cx)
        {
            let error = self.closed();
            return self.last_words(cx, error);
        }
        polled
    }

    fn take_turns(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        self.now = Instant::now();
        if let Some(error) = self.given_up() {
            return Poll::Ready(error);
        }
        for _ in 0..BATCHES {
            if let Err(error) = self.obey(cx) {
                return Poll::Ready(error);
            }
            let sent = match self.send(cx) {
                Ok(sent) => sent,
                Err(error) => return self.last_words(cx, error),
            };
            let received = match self.receive(cx) {
                Ok(received) => received,
                Err(error) => return Poll::Ready(error),
            };
            if received > 0
                && let Some((signs, _)) = &mut self.signs
            {
                signs.heard(self.now);
            }
            if sent < BATCH && received == 0 {
                match self.stand_still(cx) {
                    Ok(true) => continue,
                    Ok(false) => return self.rest(cx),
                    Err(error) => return Poll::Ready(error),
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whoever has the streams does not want the circuit any more.
    fn given_up(&self) -> Option<Error> {
        self.shared.lock().closed().cloned()
    }

    /// Does what whoever talks to the last relay wants.
    fn obey(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        while self.circuit.is_built()
            && let Some(talk) = &mut self.talk
        {
            match talk.orders.poll_recv(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(None) => (self.talk, self.signs) = (None, None),
                Poll::Ready(Some(Order::Say(command, data))) => self.circuit.say(command, &data)?,
                Poll::Ready(Some(Order::LeadOn(relay))) => self.circuit.lead_on(relay)?,
                Poll::Ready(Some(Order::Await(state, control))) => {
                    self.circuit.await_service(state, control);
                }
                Poll::Ready(Some(Order::MeetClient(rendezvous1, seed, control))) => {
                    self.circuit.say(RelayCommand::RENDEZVOUS1, &rendezvous1)?;
                    let endpoint = &mut self.shared.lock();
                    self.circuit
                        .meet(&seed, Party::Service, control, endpoint)?;
                }
            }
        }
        Ok(())
    }

    /// Tells of what a cell has brought about.
    fn tell(&mut self, progress: Progress) -> Result<(), Error> {
        let heard = match progress {
            Progress::None => return Ok(()),
            Progress::Built => {
                self.fares.tell(self.circuit.path(), CircuitFate::Built);
                self.events.built();
                if !self.links {
                    self.built.take().map(|built| built.send(Ok(())));
                }
                self.circuit.nonce().cloned().map(Heard::Built)
            }
            Progress::Heard(command, data) => Some(Heard::Message(command, data)),
            Progress::Met => Some(Heard::Met),
        };
        if let (Some(talk), Some(heard)) = (&self.talk, heard) {
            talk.hear(heard).map_err(failure::broken)?;
        }
        Ok(())
    }

    /// Links the leg of a set once it has its hops, and says that it is built once it is linked.
    fn link(&mut self, progress: &Progress, endpoint: &mut Endpoint) -> Result<(), Error> {
        if *progress == Progress::Built {
            endpoint.link(self.leg, self.now).map_err(failure::broken)?;
        }
        if endpoint.is_linked(self.leg) {
            self.events.linked();
            self.built.take().map(|built| built.send(Ok(())));
        }
        Ok(())
    }

    /// The channel takes nothing any more; what comes until it ends may say why.
    fn last_words(&mut self, cx: &mut Context<'_>, error: Error) -> Poll<Error> {
        let ending = self
            .ending
            .get_or_insert_with(|| Box::pin(sleep(DESTROY_TIMEOUT)));
        if ending.as_mut().poll(cx).is_ready() {
            return Poll::Ready(error);
        }
        for _ in 0..BATCHES {
            match self.receive(cx) {
                Ok(1..) => {}
                Ok(0) => return Poll::Pending,
                Err(error) => return Poll::Ready(error),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends cells while there are any and the channel takes them. One lock of the endpoint for all of them.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<usize, Error> {
        let shared = Arc::clone(&self.shared);
        let mut endpoint = shared.lock();
        for sent in 0..BATCH {
            let ready = match self.channel.sender.poll_ready(cx) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(channel::Closed)) => return Err(self.closed()),
                Poll::Pending => false,
            };
            self.pressure.note(ready, self.now);
            if self.links {
                endpoint.set_ready(self.leg, ready, self.now);
            }
            if !ready {
                return Ok(sent);
            }
            match self.circuit.next(&mut endpoint, self.now) {
                Some(cell) => {
                    if self.circuit.is_built() {
                        self.fares.asked.get_or_insert(self.now);
                    }
                    self.channel.sender.send(cell);
                }
                None => {
                    endpoint.set_driver(self.leg, cx.waker());
                    return Ok(sent);
                }
            }
        }
        Ok(BATCH)
    }

    /// Takes cells while there are any and the endpoint has room for what they bring about.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<usize, Error> {
        let shared = Arc::clone(&self.shared);
        let mut endpoint = shared.lock();
        let at = Arrival {
            leg: self.leg,
            now: self.now,
            blocked: self.pressure.holds(self.now),
        };
        for received in 0..BATCH {
            if endpoint.is_full(self.leg) {
                return Ok(received);
            }
            let cell = match self.channel.receiver.poll_recv(cx) {
                Poll::Pending => return Ok(received),
                Poll::Ready(None) => return Err(self.closed()),
                Poll::Ready(Some(cell)) => cell,
            };
            let was_built = self.circuit.is_built();
            let progress = self.circuit.handle(cell, &mut endpoint, at)?;
            if was_built {
                self.fares.answer(self.circuit.path());
            }
            let (reached, _) = self.circuit.hops();
            self.reached.store(reached, Relaxed);
            self.events.reached(self.circuit.path(), reached);
            if self.links && self.built.is_some() {
                self.link(&progress, &mut endpoint)?;
            }
            self.tell(progress)?;
        }
        Ok(BATCH)
    }

    /// Asks for a sign of life if that is due; answers whether there is something to send.
    fn stand_still(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let listens = self.talk.is_some();
        if !self.circuit.is_built() || !listens && self.shared.lock().streams() == 0 {
            self.signs = None;
            return Ok(false);
        }
        let now = self.now;
        let (signs, sleep) = self.signs.get_or_insert_with(|| {
            let signs = if listens {
                Signs::listening(now, random_pause())
            } else {
                Signs::new(now)
            };
            (signs, Box::pin(sleep_until(signs.due().unwrap_or(now))))
        });
        while let Some(due) = signs.due() {
            // What came since it was set has moved it.
            let set = sleep.deadline();
            if set > due || (set < due && sleep.is_elapsed()) {
                sleep.as_mut().reset(due);
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Ok(false);
            }
            if sleep.deadline() == due {
                signs.ask(now.max(due));
                self.circuit.pad()?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn closed(&self) -> Error {
        failure::channel_closed(self.circuit.hops().0 == 0)
    }

    /// Nothing is to be done: ends if nobody needs the circuit any more.
    fn rest(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let mut endpoint = self.shared.lock();
        endpoint.set_driver(self.leg, cx.waker());
        let (streams, retired) = (endpoint.streams(), endpoint.is_retired());
        drop(endpoint);
        // Whoever builds may have given it up.
        let given_up = self
            .built
            .as_mut()
            .is_some_and(|built| built.poll_closed(cx).is_ready());
        if given_up || (retired && streams == 0) {
            return Poll::Ready(failure::retired());
        }
        if self.poll_stranger(cx).is_ready() {
            return Poll::Ready(failure::late());
        }
        if streams > 0 || !self.circuit.is_built() || self.talk.is_some() {
            self.idle = None;
            return Poll::Pending;
        }
        let lasts = self.config.idle;
        let idle = self.idle.get_or_insert_with(|| Box::pin(sleep(lasts)));
        idle.as_mut().poll(cx).map(|()| failure::retired())
    }

    /// Ready when a stranger's relay has had its time.
    fn poll_stranger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (reached, hops) = self.circuit.hops();
        if self.last != LastRelay::Strangers || reached + 1 != hops {
            self.stranger = None;
            return Poll::Pending;
        }
        let until = || Box::pin(sleep(STRANGERS_ANSWER));
        self.stranger.get_or_insert_with(until).as_mut().poll(cx)
    }
}

impl fmt::Debug for BuiltCircuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("onion::BuiltCircuit")
    }
}

// Builds one circuit at a time, within the time that was learnt, and tells whoever chose the path what became of it.
// path-spec "Learning when to give up on circuit construction", "Handling failure".

/// Late circuits that are measured to their end at the same time; others teach nothing.
const MEASURED: usize = 16;

/// What a circuit needs to come about.
pub(crate) struct Builder {
    dialer: Arc<dyn Dialer>,
    paths: Arc<dyn Paths>,
    config: Config,
    state: Mutex<State>,
}

struct State {
    times: BuildTimes,
    measuring: usize,
}

type Building = Pin<Box<dyn Future<Output = Result<BuiltCircuit, (Error, usize)>> + Send>>;

/// Who has chosen the last relay of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastRelay {
    /// Whoever chooses paths.
    Ours,
    /// A stranger. What becomes of it is not told to whoever chooses paths, and how long it takes is not learnt: or strangers would have us avoid
    /// relays that are sound, and wait for those that are slow. It has a time of its own to answer in.
    Strangers,
    /// A stranger, who has not named it yet: the path is without it. How the circuit fares in the end is not told.
    ToCome,
}

/// A circuit that is being built.
struct Attempt {
    path: Vec<Relay>,
    last: LastRelay,
    begun: Instant,
    /// How many hops stand.
    reached: Arc<AtomicUsize>,
    building: Building,
}

impl Attempt {
    /// Whether it failed at a stranger's choice, though this hop is said to have failed. Where all others stood, it may be the one before that has closed the
    /// circuit since the stranger's relay refuses it (as C tor does), which looks as if it were lost itself; but our channel to the first is nobody else's.
    fn is_strange(&self, hop: usize) -> bool {
        let others = self.path.len().saturating_sub(1);
        let stood = hop > 0 && self.reached.load(Relaxed) >= others;
        self.last == LastRelay::Strangers && (hop >= others || stood)
    }
}

impl Builder {
    pub(crate) fn new(dialer: Arc<dyn Dialer>, paths: Arc<dyn Paths>, config: Config) -> Arc<Self> {
        let state = State {
            times: BuildTimes::new(config.least_build.min(config.build), config.build),
            measuring: 0,
        };
        Arc::new(Self {
            dialer,
            paths,
            config,
            state: Mutex::new(state),
        })
    }

    /// One circuit over a path that is chosen for `wish`; `chosen` is told its exit before anything is dialled.
    ///
    /// # Errors
    /// There is no path, or a relay of it failed or was late.
    pub(super) async fn build(
        self: &Arc<Self>,
        usage: &CircuitUsage,
        chosen: impl Fn(&Relay) + Send,
    ) -> Result<BuiltCircuit, Error> {
        let path = self.paths.path(usage).await?;
        path.last().into_iter().for_each(chosen);
        let purpose = (Purpose::Streams, CircuitPurpose::General);
        self.build_over(path, LastRelay::Ours, purpose).await
    }

    /// A Conflux set, if there are paths for one; else a circuit.
    ///
    /// # Errors
    /// As [`Self::build`]. A leg that fails ends the set: it is not tried again by itself, so nobody can have it led from relay to relay.
    pub(super) async fn build_set(
        self: &Arc<Self>,
        usage: &CircuitUsage,
    ) -> Result<BuiltCircuit, Error> {
        let Some([one, other]) = self.paths.pair(usage).await? else {
            return self.build(usage, |_| ()).await;
        };
        let mut nonce = Nonce([0; 32]);
        crate::random(&mut nonce.0);
        let limits = self.config.circuit();
        let endpoint = Endpoint::of_set(Side::Client, nonce, limits, self.config.random.0);
        let (kept, ended) = (Kept::new(endpoint), Ended::default());
        let leg = || {
            let leg = Purpose::Leg(Arc::clone(&kept), Arc::clone(&ended));
            (leg, CircuitPurpose::ConfluxUnlinked)
        };
        let (one, other) = tokio::try_join!(
            self.build_over(one, LastRelay::Ours, leg()),
            self.build_over(other, LastRelay::Ours, leg()),
        )?;
        Ok(BuiltCircuit {
            paths: [one.paths, other.paths].concat(),
            channels: [one.channels, other.channels].concat(),
            ..one
        })
    }

    /// Where it is told what circuits and streams do.
    pub(crate) fn events(&self) -> &Events {
        &self.config.events
    }

    /// Who chooses paths.
    pub(crate) fn paths(&self) -> &dyn Paths {
        &*self.paths
    }

    /// How long building a circuit usually takes; zero: none was built yet.
    pub(crate) fn usual(&self) -> Duration {
        self.state().times.usual()
    }

    /// A circuit over this path, to talk to its last relay about an onion service.
    ///
    /// # Errors
    /// A relay of it failed or was late.
    pub(crate) async fn converse(
        self: &Arc<Self>,
        path: Vec<Relay>,
        last: LastRelay,
        purpose: ServicePurpose,
    ) -> Result<Conversation, Error> {
        let (listening, talk) = conversation::pair();
        let talks = match last {
            LastRelay::Ours | LastRelay::Strangers => Purpose::Talk(talk),
            LastRelay::ToCome => Purpose::Stem(talk),
        };
        let purpose = (talks, CircuitPurpose::Service(purpose));
        let circuit = self.build_over(path, last, purpose).await?;
        listening.over(circuit).await
    }

    /// A circuit over `path`, for streams.
    ///
    /// # Errors
    /// A relay of it failed or was late.
    pub(crate) async fn build_to(
        self: &Arc<Self>,
        path: Vec<Relay>,
        last: LastRelay,
        purpose: ServicePurpose,
    ) -> Result<BuiltCircuit, Error> {
        let purpose = (Purpose::Streams, CircuitPurpose::Service(purpose));
        self.build_over(path, last, purpose).await
    }

    async fn build_over(
        self: &Arc<Self>,
        path: Vec<Relay>,
        last: LastRelay,
        (purpose, told): (Purpose, CircuitPurpose),
    ) -> Result<BuiltCircuit, Error> {
        let mut events = self.config.events.circuit(told);
        let dialled = self.dial(&path).await;
        let channel = dialled.inspect_err(|error| events.end(error, false))?;
        let mut attempt = self.attempt(channel, path, last, (purpose, events));
        let limit = self.state().times.limit();
        let built = timeout(limit, &mut attempt.building).await;
        let took = attempt.begun.elapsed();
        match built {
            Ok(Ok(circuit)) => {
                if last != LastRelay::Strangers {
                    self.state().times.built(took);
                }
                self.tried(&attempt.path, Ok(()));
                Ok(circuit)
            }
            Ok(Err((error, hop))) if attempt.is_strange(hop) => {
                Err(failure::building(&error, &attempt.path, hop))
            }
            Ok(Err((error, hop))) => Err(self.failed(&attempt.path, &error, hop)),
            Err(_) => {
                let hop = attempt.reached.load(Relaxed);
                if attempt.is_strange(hop) {
                    return Err(failure::building(&failure::late(), &attempt.path, hop));
                }
                let error = self.failed(&attempt.path, &failure::late(), hop);
                self.late(attempt, hop);
                Err(error)
            }
        }
    }

    /// What became of a path.
    pub(super) fn tried(&self, path: &[Relay], outcome: Result<(), Failed>) {
        self.paths.tried(path, outcome);
    }

    /// The channel to the first relay. How long that takes says nothing of circuits: it is not learnt.
    async fn dial(&self, path: &[Relay]) -> Result<Arc<dyn Channel>, Error> {
        let Some(first) = path.first() else {
            let doing = "building a circuit over no relay";
            return Err(Error::new(ErrorKind::Bug, doing));
        };
        let dialled = timeout(self.config.dial, self.dialer.channel(first)).await;
        let dialled = dialled.unwrap_or_else(|_| Err(failure::silent()));
        dialled.map_err(|error| self.failed(path, &error, 0))
    }

    fn attempt(
        &self,
        channel: Arc<dyn Channel>,
        path: Vec<Relay>,
        last: LastRelay,
        purpose: (Purpose, CircuitEvents),
    ) -> Attempt {
        let reached = Arc::<AtomicUsize>::default();
        let (over, config, told) = (path.clone(), self.config.clone(), Arc::clone(&reached));
        let paths = (last == LastRelay::Ours).then(|| Arc::clone(&self.paths));
        let building = Box::pin(async move {
            let built =
                build_telling(&*channel, over, &config, &told, purpose, (last, paths)).await;
            built.map_err(|(error, hop)| {
                if channel.is_closed() {
                    (error, 0)
                } else {
                    (error, hop)
                }
            })
        });
        Attempt {
            path,
            last,
            begun: Instant::now(),
            reached,
            building,
        }
    }

    fn failed(&self, path: &[Relay], error: &Error, hop: usize) -> Error {
        let refused = failure::is_refusal(error);
        self.tried(path, Err(Failed { hop, refused }));
        failure::building(error, path, hop)
    }

    /// It goes on, for what its time teaches; nobody uses it.
    fn late(self: &Arc<Self>, attempt: Attempt, hop: usize) {
        let mut state = self.state();
        if hop > 0 {
            state.times.late();
        }
        if state.measuring >= MEASURED {
            return;
        }
        state.measuring += 1;
        let patience = state.times.patience();
        drop(state);
        let builder = Arc::downgrade(self);
        tokio::spawn(async move {
            let (reached, begun) = (Arc::clone(&attempt.reached), attempt.begun);
            let took = measure(attempt.building, begun, patience).await;
            let Some(builder) = builder.upgrade() else {
                return;
            };
            // A guard that took its time is no bad one.
            if matches!(took, Measured::Built(_)) {
                builder.tried(&attempt.path, Ok(()));
            }
            let hops = reached.load(Relaxed);
            if matches!(took, Measured::Never) && hops > 0 && attempt.last == LastRelay::Ours {
                builder.paths.fares(&attempt.path, CircuitFate::NotBuilt);
            }
            let mut state = builder.state();
            state.measuring -= 1;
            match took {
                Measured::Built(took) => state.times.measured(Some(took)),
                Measured::Never if hops > 0 => state.times.measured(None),
                Measured::Never | Measured::Failed => {}
            }
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// What became of a late one.
enum Measured {
    Built(Duration),
    Failed,
    Never,
}

async fn measure(building: Building, begun: Instant, patience: Duration) -> Measured {
    match timeout_at(begun + patience, building).await {
        Ok(Ok(_)) => Measured::Built(begun.elapsed()),
        Ok(Err(_)) => Measured::Failed,
        Err(_) => Measured::Never,
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").finish_non_exhaustive()
    }
}

// When a circuit that stands still is asked for a sign of life: who only receives would not notice that a relay of it is gone. A machine without a
// clock. tor-spec "Long-range padding": RELAY_DROP.

/// The pauses before each question, in seconds: 1, 3, 7, 15 and 31 s after something came. Then a circuit that rests is left to rest.
const PAUSES: [u64; 5] = [1, 2, 4, 8, 16];
/// The pauses of a circuit whose last relay is listened to, in seconds: these and up to as many more, at random. An introduction point's circuit that
/// has lost a relay would else wait for clients who never come, as long as nothing else passes that relay.
const LISTENING: u32 = 8;

/// What has come, and what was asked since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signs {
    since: Instant,
    asked: usize,
    /// All pauses are as long as this.
    every: Option<Duration>,
}

fn random_pause() -> Duration {
    let more = crate::random_below(LISTENING);
    Duration::from_secs(LISTENING.saturating_add(more).into())
}

impl Signs {
    /// A circuit that begins to carry streams.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            asked: 0,
            every: None,
        }
    }

    /// A circuit whose last relay is listened to: it is asked again and again.
    pub(super) fn listening(now: Instant, every: Duration) -> Self {
        let every = Some(every);
        Self {
            every,
            ..Self::new(now)
        }
    }

    /// Something came.
    pub(super) fn heard(&mut self, now: Instant) {
        (self.since, self.asked) = (now, 0);
    }

    /// When the next question is due; nothing: no more are asked until something comes.
    pub(super) fn due(&self) -> Option<Instant> {
        let pause = self.every.or_else(|| {
            let pause = PAUSES.get(self.asked)?;
            Some(Duration::from_secs(*pause))
        });
        Some(self.since + pause?)
    }

    /// It was asked.
    pub(super) fn ask(&mut self, now: Instant) {
        self.since = now;
        self.asked += 1;
    }
}

#[cfg(test)]
mod signs_tests {
    use super::*;

    #[test]
    fn a_circuit_that_stands_still_is_asked_five_times_and_anew_once_it_speaks() {
        let start = Instant::now();
        let mut signs = Signs::new(start);
        for _ in 0..2 {
            let mut asked = Vec::new();
            while let Some(due) = signs.due() {
                asked.push((due - start).as_secs());
                signs.ask(due);
            }
            assert_eq!(asked, [1, 3, 7, 15, 31]);
            signs.heard(start);
        }
    }

    #[test]
    fn a_circuit_whose_last_relay_is_listened_to_is_asked_as_long_as_it_stands() {
        let (start, every) = (Instant::now(), Duration::from_secs(20));
        let mut signs = Signs::listening(start, every);
        for n in 1..=9 {
            assert_eq!(signs.due(), Some(start + every * n));
            signs.ask(start + every * n);
        }
        signs.heard(start);
        assert_eq!(signs.due(), Some(start + every));
    }
}
