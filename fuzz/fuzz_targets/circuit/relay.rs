//! A relay's circuits: their client and the next relay are one hostile party; targets do as the input says.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use hoplite_crypto::onion::{
    layers::{ClientLayers, RelayCrypto},
    ntor3,
};
use hoplite_onion::{
    channel::{self, Channel, Dialer, Waiting, memory},
    path,
    relay::{self, Config, Policy, Relay, serve},
};
use hoplite_overlay::{Datagrams, Error, ErrorKind, Opening, Overlay, Stream, Terms};
use hoplite_wire::{
    Protocols, Target,
    cell::{
        Cell, Command,
        circuit::{
            ClientExtensions, Create2, Created2, DestroyReason, Extend2, HandshakeType, Subprotocol,
        },
        relay::{
            self as message, Begin, Flags, Header, Message, Resolve, Sendme, SendmeTag, StreamId,
        },
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite, BufStream, DuplexStream, ReadBuf, duplex},
    task::{JoinHandle, yield_now},
    time::{advance, timeout},
};

use crate::{Input, KEYS, LIMITS, Said, known, relay_cell};

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(who: u8, input: &mut Input<'_>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut hostile = Hostile::new(who);
        while let Some(what) = input.next() {
            hostile.step(what, input).await;
            for _ in 0..4 {
                yield_now().await;
            }
            hostile.hear();
        }
        hostile.end().await;
    });
}

/// Far ends of the channels that the relay dialled.
#[derive(Debug, Default)]
struct Dialled(Mutex<Vec<Arc<memory::Memory>>>);

/// Far ends of streams to targets.
#[derive(Debug, Default)]
struct Targets(Mutex<Vec<DuplexStream>>);

struct Hostile {
    relay: Arc<Relay>,
    serving: JoinHandle<()>,
    channel: Arc<memory::Memory>,
    dialled: Arc<Dialled>,
    targets: Arc<Targets>,
    congestion_control: bool,
    crypto: RelayCrypto,
    circuit: Option<channel::CircuitEnds>,
    layers: ClientLayers,
    handshake: Option<ntor3::ClientState>,
    next: Option<(channel::CircuitEnds, Option<relay::RelayCircuit>)>,
    /// DATA cells that came since the last that is to be acknowledged, and the tags of those.
    since: u32,
    due: VecDeque<SendmeTag>,
}

impl Hostile {
    fn new(who: u8) -> Self {
        let (dialled, targets) = (Arc::<Dialled>::default(), Arc::<Targets>::default());
        let config = Config {
            limits: LIMITS,
            patience: PATIENCE,
            circuits_per_channel: 3,
            ..Config::default()
        };
        let mut relay = Relay::new(crate::keys(1), dialled.clone(), config);
        relay.out = (who & 2 == 0).then_some(targets.clone() as _);
        relay.policy = Arc::new(Policy::everywhere(who & 4 == 0));
        relay.next = Arc::new(Policy::everywhere(true));
        let (relay, (channel, far)) = (
            Arc::new(relay),
            memory::pair(Duration::ZERO, None, Some([1; 32])),
        );
        Self {
            serving: tokio::spawn(serve(far, Arc::clone(&relay))),
            relay,
            channel,
            dialled,
            targets,
            congestion_control: who & 1 == 0,
            crypto: match who & 9 {
                8 => RelayCrypto::Cgo,
                _ => RelayCrypto::Tor1,
            },
            circuit: None,
            layers: ClientLayers::new(),
            handshake: None,
            next: None,
            since: 0,
            due: VecDeque::new(),
        }
    }

    async fn step(&mut self, what: u8, input: &mut Input<'_>) {
        match what % 16 {
            0 => self.create().await,
            1 => self.send_raw(input.cell()).await,
            2 => self.say(input.byte(), &input.said()),
            3 => self.extend(input.byte()),
            4 => self.join().await,
            5 => input
                .cell()
                .into_iter()
                .for_each(|cell| self.send_back(cell)),
            6 => self.say_back(&input.said()),
            7 => self.flood(input),
            8 => self.acknowledge(),
            9 => self.begin(input.byte(), input.byte()),
            10 => self.write(input.byte(), input.byte()),
            11 => self.read(input.byte()),
            12 => drop(self.target(input.byte(), Vec::swap_remove)),
            13 => advance(Duration::from_millis(u64::from(input.byte()) * 100)).await,
            14 => self.next = None,
            _ => self.leave(input.byte()),
        }
    }

    /// Instead of CREATE2, too.
    async fn send_raw(&mut self, cell: Option<Cell>) {
        if self.circuit.is_none() {
            self.circuit = self.channel.open().await.ok();
        }
        cell.into_iter().for_each(|cell| self.send(cell));
    }

    async fn create(&mut self) {
        if self.circuit.is_some() {
            return;
        }
        let mut circuit = self.channel.open().await.expect("the relay serves");
        let skin = self.skin(0);
        let create = Create2 {
            handshake: HandshakeType::NTOR_V3,
            data: &skin,
        };
        let cell = Cell::new(circuit.id, Command::CREATE2, |out| create.write(out));
        send(&mut circuit, cell.expect("fits"));
        self.circuit = Some(circuit);
    }

    /// An onion skin for hop `n`, whose answer is waited for.
    fn skin(&mut self, n: usize) -> Vec<u8> {
        let extensions = ClientExtensions {
            congestion_control: self.congestion_control,
            subprotocols: match self.crypto {
                RelayCrypto::Tor1 => Vec::new(),
                RelayCrypto::Cgo => vec![Subprotocol::CGO],
            },
        };
        let mut message = Vec::new();
        extensions.write(&mut message);
        let (state, skin) = ntor3::client(&KEYS[n].published(), &message).expect("made");
        self.handshake = Some(state);
        skin
    }

    fn send(&mut self, cell: Cell) {
        self.circuit
            .iter_mut()
            .for_each(|circuit| send(circuit, cell.clone()));
    }

    /// The low bits say which hop it is for, and whether in RELAY_EARLY.
    fn say(&mut self, how: u8, said: &Said) {
        let Some(hop) = usize::from(how >> 1).checked_rem(self.layers.len()) else {
            return;
        };
        let command = if how & 1 == 0 {
            Command::RELAY
        } else {
            Command::RELAY_EARLY
        };
        let mut body = said.body(self.layers.format(hop));
        let fixed = body.as_mut().try_into().expect("a body");
        let tag = self.layers.encrypt_for(hop, command, fixed);
        tag.expect("a hop");
        self.send(relay_cell(command, body));
    }

    fn extend(&mut self, how: u8) {
        let skin = self.skin(1);
        let create = Create2 {
            handshake: HandshakeType::NTOR_V3,
            data: &skin,
        };
        let extend = Extend2 {
            specifiers: known(1, true, Protocols::NONE).specifiers(),
            create,
        };
        let mut data = Vec::new();
        extend.write(&mut data);
        let command = message::RelayCommand::EXTEND2;
        self.say(how, &Said::new(command, StreamId::CIRCUIT, &data));
    }

    /// The next relay answers a circuit that has been extended to it.
    async fn join(&mut self) {
        let dialled = self.dialled.0.lock().expect("whole").last().cloned();
        let Some(channel) = dialled else { return };
        let accepted = timeout(Duration::ZERO, channel.accept()).await;
        let Ok(Some(mut circuit)) = accepted else {
            return;
        };
        let made = take(&mut circuit).and_then(|cell| {
            let create = Create2::parse(&cell.body).ok()?;
            let offers = relay::Offers {
                congestion_control: self.congestion_control,
                cgo: true,
            };
            relay::RelayCircuit::create(&KEYS[1], &create, offers).ok()
        });
        let hop = made.map(|(hop, _, created)| {
            let cell = Cell::new(circuit.id, Command::CREATED2, |out| {
                out.extend_from_slice(&created)
            });
            send(&mut circuit, cell.expect("fits"));
            hop
        });
        self.next = Some((circuit, hop));
    }

    fn send_back(&mut self, cell: Cell) {
        self.next
            .iter_mut()
            .for_each(|(circuit, _)| send(circuit, cell.clone()));
    }

    fn say_back(&mut self, said: &Said) {
        if let Some((circuit, Some(hop))) = &mut self.next {
            let mut cell = relay_cell(Command::RELAY, said.body(hop.format()));
            hop.originate(&mut cell).expect("a body");
            send(circuit, cell);
        }
    }

    fn flood(&mut self, input: &mut Input<'_>) {
        let (stream, count, length) = (input.byte(), input.byte(), input.byte());
        let data = vec![7; usize::from(length)];
        let said = Said::new(message::RelayCommand::DATA, StreamId(stream.into()), &data);
        (0..count).for_each(|_| self.say(0, &said));
    }

    /// A SENDME that is due, or one that is not.
    fn acknowledge(&mut self) {
        let tag = self.due.pop_front().unwrap_or(SendmeTag::Tor1([9; 20]));
        self.tell(0, &Message::Sendme(Sendme::V1(tag)));
    }

    fn begin(&mut self, stream: u8, what: u8) {
        let flags = Flags(if what & 1 == 0 { 1 << 31 } else { 1 });
        let target = |target: &str| Begin {
            target: target.parse().expect("a target"),
            flags,
        };
        let message = match what >> 1 & 7 {
            0 => Message::Resolve(Resolve("site.example")),
            1 => Message::Resolve(Resolve("7.2.0.192.in-addr.arpa")),
            2 => Message::BeginDir,
            3 => Message::Begin(target("site.example:80")),
            4 => Message::Begin(target("192.0.2.7:81")),
            5 => Message::Begin(target("[2001:db8::7]:80")),
            _ => Message::Begin(target("8.8.8.8:80")),
        };
        self.tell(stream, &message);
    }

    fn tell(&mut self, stream: u8, message: &Message<'_>) {
        let mut data = Vec::new();
        message.write(&mut data);
        let stream = StreamId(stream.into());
        self.say(0, &Said::new(message.command(), stream, &data));
    }

    fn target<T>(
        &self,
        which: u8,
        then: impl FnOnce(&mut Vec<DuplexStream>, usize) -> T,
    ) -> Option<T> {
        let mut targets = self.targets.0.lock().expect("whole");
        let place = usize::from(which).checked_rem(targets.len())?;
        Some(then(&mut targets, place))
    }

    fn write(&self, which: u8, count: u8) {
        let bytes = vec![5; usize::from(count) * 64];
        self.target(which, |all, place| {
            drop(Pin::new(&mut all[place]).poll_write(&mut noop(), &bytes));
        });
    }

    fn read(&self, which: u8) {
        let mut space = [0; 4096];
        let mut buf = ReadBuf::new(&mut space);
        self.target(which, |all, place| {
            drop(Pin::new(&mut all[place]).poll_read(&mut noop(), &mut buf));
        });
    }

    /// The client lets go of its circuit, with a word or without.
    fn leave(&mut self, how: u8) {
        let circuit = self.circuit.take().filter(|_| how & 1 == 0);
        circuit
            .into_iter()
            .for_each(|circuit| circuit.sender.destroy(DestroyReason(how >> 1)));
        (self.layers, self.handshake) = (ClientLayers::new(), None);
        (self.since, self.due) = (0, VecDeque::new());
    }

    fn hear(&mut self) {
        while let Some(cell) = self.circuit.as_mut().and_then(take) {
            match cell.command {
                Command::CREATED2 => self.joined(&cell.body),
                Command::RELAY => self.heard(cell),
                // Whoever asked by CREATE_FAST says nothing more: a layer is had by ntor alone.
                Command::CREATED_FAST => {}
                Command::DESTROY => return self.leave(1),
                other => unreachable!("{other:?} towards a client"),
            }
        }
        while let Some(cell) = self.next.as_mut().and_then(|(circuit, _)| take(circuit)) {
            if let Some((_, Some(hop))) = &mut self.next {
                drop(hop.forward(cell));
            }
        }
    }

    fn joined(&mut self, body: &[u8]) {
        let Ok(created) = Created2::parse(body) else {
            return;
        };
        let finished = (self.handshake.take()).map(|state| state.finish(created.data));
        if let Some(Ok((_, seed))) = finished {
            self.layers.push(&seed, self.crypto).ok();
        }
    }

    fn heard(&mut self, mut cell: Cell) {
        let fixed = cell.fixed().expect("a body");
        // Of what the next relay makes up there need be no layer.
        let Some((hop, tag)) = self.layers.decrypt(fixed) else {
            return;
        };
        let Ok(header) = Header::read(self.layers.format(hop), fixed) else {
            return;
        };
        let Ok(data) = header.data(fixed) else { return };
        match header.command {
            message::RelayCommand::EXTENDED2 => self.joined(data),
            message::RelayCommand::DATA => self.count(tag),
            _ => {}
        }
    }

    fn count(&mut self, tag: SendmeTag) {
        self.since += 1;
        if self.since == if self.congestion_control { 31 } else { 100 } {
            self.since = 0;
            self.due.push_back(tag);
        }
    }

    /// When nobody holds a channel any more, its circuits end.
    async fn end(mut self) {
        self.leave(1);
        (self.next, self.channel) = (None, memory::pair(Duration::ZERO, None, None).0);
        self.dialled.0.lock().expect("whole").clear();
        self.targets.0.lock().expect("whole").clear();
        let ended = timeout(PATIENCE * 10, self.serving).await;
        ended.expect("it ends").expect("without a panic");
        assert_eq!(self.relay.circuits(), 0);
    }
}

/// A cell that does not fit is lost.
fn send(circuit: &mut channel::CircuitEnds, cell: Cell) {
    if circuit.sender.poll_ready(&mut noop()) == Poll::Ready(Ok(())) {
        circuit.sender.send(cell);
    }
}

fn take(circuit: &mut channel::CircuitEnds) -> Option<Cell> {
    match circuit.receiver.poll_recv(&mut noop()) {
        Poll::Ready(cell) => cell,
        Poll::Pending => None,
    }
}

fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

impl Dialer for Dialled {
    fn channel<'a>(&'a self, _: &'a path::Relay) -> Waiting<'a, Result<Arc<dyn Channel>, Error>> {
        let (near, far) = memory::pair(Duration::ZERO, Some([1; 32]), Some([2; 32]));
        self.0.lock().expect("whole").push(far);
        Box::pin(async { Ok(near as Arc<dyn Channel>) })
    }
}

impl Overlay for Targets {
    fn open_stream<'a>(&'a self, target: &'a Target, _: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(async {
            if target.port % 2 == 1 {
                return Err(failed());
            }
            let (near, far) = duplex(2048);
            self.0.lock().expect("whole").push(far);
            Ok(Stream::new(BufStream::new(near)))
        })
    }

    fn open_datagrams<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async { Err(failed()) })
    }

    fn resolve<'a>(&'a self, name: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            let found: [IpAddr; 2] = [
                Ipv6Addr::LOCALHOST.into(),
                Ipv4Addr::new(192, 0, 2, 7).into(),
            ];
            if name.len() % 2 == 1 {
                Err(failed())
            } else {
                Ok(found.to_vec())
            }
        })
    }
}

fn failed() -> Error {
    Error::new(ErrorKind::TargetFailed, "opening a flow")
}
