//! What a relay sees of those who connect to it, for whoever compares what several relays have seen. A witness stands before a relay, under a key that
//! clients take for the relay's: it keeps what comes, and passes all on over connections of its own. HTTP/3 alone; forwarded mode is not offered.
//! RFC 9000 §17.2.2 and RFC 9001 §5 (the ClientHello within the first packets).

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, OnceLock, mpsc},
    thread,
};

use bytes::{Bytes, BytesMut};
use hoplite_crypto::{ALPN_H3, Certificates, Pin, Trust, server_tls};
use hoplite_http::{DatagramSink, Exchange, Flow, HttpError, Incoming, Session, h3};
use hoplite_link::{Config, Dialer, Peer};
use hoplite_overlay::{Batch, Terms};
use hoplite_quic::{
    Connection, Endpoint, Hooks, TransportConfig,
    server::{Secrets, server_config},
};
use hoplite_wire::{RequestHead, Target, forwarding::FORWARDING, varint};
use parking_lot::Mutex;
use rustls::{
    crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
    quic::{Keys, Version},
};
use tokio::{net::UdpSocket, runtime::Builder};

use crate::{identity, path::direct};

/// Room for the first packets of a connection within another.
const PACKET: u16 = 1452;

/// A witness. It stays as long as the process.
#[derive(Debug)]
pub struct Witness {
    /// Where clients find it.
    pub address: SocketAddr,
    /// What they know it by.
    pub pin: Pin,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// What it has seen of one connection.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Whom the relay's end takes for the client.
    from: SocketAddr,
    /// Packets that came, as they were on the wire.
    pub packets: Vec<Vec<u8>>,
    /// What was asked, in order.
    pub requests: Vec<RequestHead>,
}

impl Witness {
    /// One that passes on to the relay at this address, which has this key.
    ///
    /// # Panics
    /// The system gives no socket or no thread.
    pub fn before(relay: SocketAddr, pin: Pin) -> Self {
        let (tell, told) = mpsc::sync_channel(1);
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let (witness, endpoint, front) = Self::stand().await;
                let seen = Arc::clone(&witness.seen);
                tokio::spawn(keep_packets(front, local(&endpoint), Arc::clone(&seen)));
                drop(tell.send(witness));
                while let Some(incoming) = endpoint.accept().await {
                    let (from, seen) = (incoming.remote_address(), Arc::clone(&seen));
                    tokio::spawn(async move {
                        if let Ok(connection) = incoming.await {
                            serve(connection, (relay, pin), (from, seen)).await;
                        }
                    });
                }
            });
        });
        told.recv().expect("it stands")
    }

    async fn stand() -> (Self, Endpoint, UdpSocket) {
        let identity = identity("localhost");
        let certificates = Certificates::new(&identity).expect("certificates");
        let tls = server_tls(certificates, &[ALPN_H3]).expect("TLS");
        let mut transport = TransportConfig::default();
        transport.initial_mtu(PACKET);
        let secrets = Secrets::generate().expect("random");
        let hooks = Hooks::default();
        let config = server_config(Arc::new(tls), Arc::new(transport), &secrets, &hooks);
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let endpoint = Endpoint::server(config.expect("QUIC"), any).expect("a socket");
        let front = UdpSocket::bind(any).await.expect("a socket");
        let witness = Self {
            address: front.local_addr().expect("bound"),
            pin: identity.pin(),
            seen: Arc::default(),
        };
        (witness, endpoint, front)
    }

    /// All connections so far, in the order in which they began.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }
}

fn local(endpoint: &Endpoint) -> SocketAddr {
    endpoint.local_addr().expect("bound")
}

/// Takes packets from clients to the endpoint and back, by a socket for each client, and keeps those that come.
async fn keep_packets(front: UdpSocket, endpoint: SocketAddr, seen: Arc<Mutex<Vec<Seen>>>) {
    let front = Arc::new(front);
    let mut clients: Vec<(SocketAddr, Arc<UdpSocket>)> = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok((len, client)) = front.recv_from(&mut buffer).await {
        let known = clients.iter().find(|(address, _)| *address == client);
        let back = match known {
            Some((_, back)) => Arc::clone(back),
            None => {
                let back = connected(endpoint).await;
                clients.push((client, Arc::clone(&back)));
                seen.lock().push(Seen {
                    from: back.local_addr().expect("bound"),
                    packets: Vec::new(),
                    requests: Vec::new(),
                });
                tokio::spawn(take_back(Arc::clone(&back), Arc::clone(&front), client));
                back
            }
        };
        let packet = buffer.get(..len).unwrap_or_default();
        of(&seen, back.local_addr().expect("bound"), |seen| {
            seen.packets.push(packet.to_vec());
        });
        // What is lost is lost, as on any way.
        drop(back.send(packet).await);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the endpoint is the witness's own"
)]
async fn connected(endpoint: SocketAddr) -> Arc<UdpSocket> {
    let back = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let back = back.expect("a socket");
    back.connect(endpoint).await.expect("connected");
    Arc::new(back)
}

async fn take_back(back: Arc<UdpSocket>, front: Arc<UdpSocket>, client: SocketAddr) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(len) = back.recv(&mut buffer).await {
        let packet = buffer.get(..len).unwrap_or_default();
        drop(front.send_to(packet, client).await);
    }
}

fn of(seen: &Mutex<Vec<Seen>>, from: SocketAddr, change: impl FnOnce(&mut Seen)) {
    // A port may be another client's after a while: the last that had it.
    let mut all = seen.lock();
    if let Some(one) = all.iter_mut().rev().find(|one| one.from == from) {
        change(one);
    }
}

async fn serve(
    connection: Connection,
    (relay, pin): (SocketAddr, Pin),
    (from, seen): (SocketAddr, Arc<Mutex<Vec<Seen>>>),
) {
    let peer = Peer {
        name: "relay".into(),
        address: Target::from(relay),
        trust: Trust::Pins(vec![pin]),
    };
    let dialer = Dialer::new(direct(), peer, 0, Config::default());
    let Ok(link) = dialer.quic(&Terms::default()).await else {
        return;
    };
    let config = h3::Config::default();
    let onward = Arc::new(Session::quic_client(link.connection().clone(), &config));
    let session = Session::quic_server(connection, &config);
    while let Some(incoming) = session.accept().await {
        of(&seen, from, |seen| {
            seen.requests.push(incoming.head.clone());
        });
        let onward = Arc::clone(&onward);
        // What fails at the relay fails at the witness.
        tokio::spawn(async move { drop(pass(incoming, &onward).await) });
    }
}

async fn pass(incoming: Incoming, onward: &Session) -> Result<(), HttpError> {
    let (mut head, mut near) = (incoming.head, incoming.exchange);
    head.headers.retain(|(name, _)| name != FORWARDING);
    let mut far = onward.request(&head).await?;
    let answer = far.response().await?;
    if answer.status != 200 {
        return near.refuse(&answer).await;
    }
    near.respond(&answer).await?;
    if head.protocol.is_some() {
        return datagrams(near, far).await;
    }
    let (mut near, mut far) = (near.into_stream()?, far.into_stream()?);
    drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
    Ok(())
}

async fn datagrams(near: Exchange, far: Exchange) -> Result<(), HttpError> {
    let sinks = [Arc::new(Onward::default()), Arc::new(Onward::default())];
    let near = Arc::new(near.datagrams(Arc::clone(&sinks[0]) as Arc<dyn DatagramSink>));
    let far = Arc::new(far.datagrams(Arc::clone(&sinks[1]) as Arc<dyn DatagramSink>));
    drop(sinks[0].0.set(Arc::clone(&far)));
    drop(sinks[1].0.set(Arc::clone(&near)));
    tokio::select! {
        ended = near.closed() => ended,
        ended = far.closed() => ended,
    }
}

/// Where payloads go that come from the other side.
#[derive(Default)]
struct Onward(OnceLock<Arc<Flow>>);

impl DatagramSink for Onward {
    fn push(&self, payload: Bytes) {
        if let Some(flow) = self.0.get() {
            flow.send(Batch::one(&payload));
        }
    }

    /// Whatever the two ends have agreed on.
    fn push_in(&self, context: u64, content: Bytes) -> bool {
        let mut head = BytesMut::new();
        varint::write(&mut head, context);
        if let Some(flow) = self.0.get() {
            flow.send_behind(&head, Batch::one(&content));
        }
        true
    }

    fn flush(&self) {}
}

impl Seen {
    /// The connection's ClientHello, without the head of its message.
    ///
    /// # Panics
    /// The first packets are not those of QUIC version 1, or not all of them are there.
    pub fn client_hello(&self) -> Vec<u8> {
        let mut pieces = Vec::new();
        let mut keys = None;
        for packet in &self.packets {
            let mut rest = packet.clone();
            while let Some(initial) = Initial::split(&mut rest) {
                let keys = keys.get_or_insert_with(|| initial_keys(&initial.destination));
                crypto_frames(&initial.open(keys), &mut pieces);
            }
        }
        pieces.sort_unstable();
        let mut message = Vec::new();
        for (offset, data) in pieces {
            let known = message.len().saturating_sub(offset);
            assert!(offset <= message.len(), "a piece is missing");
            message.extend(data.get(known..).unwrap_or_default());
        }
        let [kind, head @ ..] = message.first_chunk::<4>().expect("a message");
        assert_eq!(*kind, 1, "client_hello");
        let len = head
            .iter()
            .fold(0, |len, byte| len << 8 | usize::from(*byte));
        message.get(4..4 + len).expect("all of it").to_vec()
    }
}

fn initial_keys(destination: &[u8]) -> Keys {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().expect("of TLS 1.3");
    let suite = suite.quic_suite().expect("of QUIC");
    suite.keys(destination, rustls::Side::Server, Version::V1)
}

/// A protected Initial packet.
struct Initial {
    destination: Vec<u8>,
    bytes: Vec<u8>,
    /// Where its packet number is.
    number: usize,
}

impl Initial {
    /// Takes it off the front of a datagram.
    fn split(datagram: &mut Vec<u8>) -> Option<Self> {
        let (first, version) = (datagram.first()?, datagram.get(1..5)?);
        if first & 0xf0 != 0xc0 || version != [0, 0, 0, 1] {
            return None;
        }
        let mut rest = datagram.get(5..)?;
        let destination = take(&mut rest)?.to_vec();
        take(&mut rest)?;
        let token = usize::try_from(varint::read(&mut rest)?).ok()?;
        rest = rest.get(token..)?;
        let len = usize::try_from(varint::read(&mut rest)?).ok()?;
        let number = datagram.len() - rest.len();
        let others = (number + len <= datagram.len()).then(|| datagram.split_off(number + len))?;
        Some(Self {
            destination,
            bytes: std::mem::replace(datagram, others),
            number,
        })
    }

    fn open(mut self, keys: &Keys) -> Vec<u8> {
        let (head, body) = self.bytes.split_at_mut(self.number);
        let (number, sample) = body.split_at_mut(4);
        let sample = sample
            .get(..keys.remote.header.sample_len())
            .expect("long enough");
        let first = head.first_mut().expect("a byte");
        let unmasked = keys.remote.header.decrypt_in_place(sample, first, number);
        unmasked.expect("a header");
        let len = usize::from(*first & 3) + 1;
        let full = number
            .iter()
            .take(len)
            .fold(0, |all, byte| all << 8 | u64::from(*byte));
        let (head, body) = self.bytes.split_at_mut(self.number + len);
        let opened = keys.remote.packet.decrypt_in_place(full, head, body);
        opened.expect("a packet").to_vec()
    }
}

/// What stands behind its length.
fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, behind) = rest.split_first()?;
    let (taken, behind) = behind.split_at_checked(usize::from(*len))?;
    *rest = behind;
    Some(taken)
}

fn crypto_frames(mut frames: &[u8], into: &mut Vec<(usize, Vec<u8>)>) {
    let number = |frames: &mut &[u8]| {
        let number = varint::read(frames).expect("a number");
        usize::try_from(number).expect("small")
    };
    while let Some((kind, behind)) = frames.split_first() {
        frames = behind;
        match kind {
            0 | 1 => {}
            2 => {
                let [_, _, ranges, _] = [(); 4].map(|()| number(&mut frames));
                for _ in 0..2 * ranges {
                    number(&mut frames);
                }
            }
            6 => {
                let [offset, len] = [(); 2].map(|()| number(&mut frames));
                let (data, behind) = frames.split_at(len);
                into.push((offset, data.to_vec()));
                frames = behind;
            }
            // "CONNECTION_CLOSE": nothing more comes.
            _ => return,
        }
    }
}
