//! The load generator of `demo` and `bench`: targets, and the program that uses the client's SOCKS port.
//! Light on purpose (blocking sockets, static buffers, batches): its CPU time is left out of every figure.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

pub(crate) mod datagrams;
pub(crate) mod file;

// A program that uses the SOCKS port: RFC 1928 from the client's side, and user names (RFC 1929) as isolation tokens.
// Written without `wire`'s codec, so that the two check each other.

/// How long a step of the handshake may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The header of a datagram to or from an IPv4 target (RFC 1928 §7).
pub(crate) const UDP_HEADER: usize = 10;

/// Opens a TCP flow to `target` through the proxy.
pub(crate) fn connect(proxy: SocketAddr, target: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = greet(proxy, None)?;
    request(&mut stream, 1, target)?;
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// The same on a road of its own.
pub(crate) fn connect_as(
    proxy: SocketAddr,
    user: &str,
    target: SocketAddr,
) -> io::Result<TcpStream> {
    let mut stream = greet(proxy, Some(user))?;
    request(&mut stream, 1, target)?;
    Ok(stream)
}

/// A UDP association: the flow lives as long as the TCP connection.
#[derive(Debug)]
pub(crate) struct Association {
    /// Sends to and receives from the proxy.
    pub(crate) socket: UdpSocket,
    /// Where the proxy takes datagrams.
    pub(crate) relay: SocketAddr,
    _control: TcpStream,
}

/// Asks for a UDP association.
pub(crate) fn associate(proxy: SocketAddr) -> io::Result<Association> {
    let mut control = greet(proxy, None)?;
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let mut relay = request(&mut control, 3, any)?;
    if relay.ip().is_unspecified() {
        relay.set_ip(proxy.ip());
    }
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(Association {
        socket,
        relay,
        _control: control,
    })
}

/// The header that goes before a datagram to `target`.
pub(crate) fn udp_header(target: SocketAddrV4) -> [u8; UDP_HEADER] {
    let mut header = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let (ip, port) = (target.ip().octets(), target.port().to_be_bytes());
    for (to, from) in header.iter_mut().skip(4).zip(ip.into_iter().chain(port)) {
        *to = from;
    }
    header
}

#[expect(
    clippy::disallowed_methods,
    reason = "the load generator is the program in front of the proxy"
)]
fn greet(proxy: SocketAddr, user: Option<&str>) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&proxy, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let method = if user.is_some() { 2 } else { 0 };
    stream.write_all(&[5, 1, method])?;
    expect(&mut stream, [5, method], "the proxy refuses the method")?;
    if let Some(user) = user {
        let name = user.as_bytes();
        let length = u8::try_from(name.len()).map_err(io::Error::other)?;
        let login = [&[1, length], name, &[1, b'x']].concat();
        stream.write_all(&login)?;
        expect(&mut stream, [1, 0], "the proxy refuses the user name")?;
    }
    Ok(stream)
}

fn expect(stream: &mut TcpStream, wanted: [u8; 2], problem: &'static str) -> io::Result<()> {
    let mut answer = [0; 2];
    stream.read_exact(&mut answer)?;
    if answer == wanted {
        Ok(())
    } else {
        Err(io::Error::other(problem))
    }
}

fn request(stream: &mut TcpStream, command: u8, target: SocketAddr) -> io::Result<SocketAddr> {
    let SocketAddr::V4(target) = target else {
        return Err(io::Error::other("the load generator uses IPv4"));
    };
    let mut bytes = udp_header(target);
    bytes[0] = 5;
    bytes[1] = command;
    stream.write_all(&bytes)?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    match answer {
        [5, 0, _, 1, a, b, c, d, high, low] => Ok(SocketAddr::from((
            [a, b, c, d],
            u16::from_be_bytes([high, low]),
        ))),
        [_, code, ..] => {
            // "X'07' Command not supported"
            let kind = match code {
                7 => io::ErrorKind::Unsupported,
                _ => io::ErrorKind::Other,
            };
            let why = format!("the proxy answers {code} to SOCKS command {command}");
            Err(io::Error::new(kind, why))
        }
    }
}

// The TCP target: what a connection does is said by its first byte. `bench` measures with it, directly and through
// the chain.

/// Send until the connection ends.
pub(crate) const DOWNLOAD: u8 = b'D';
/// Take until the connection ends.
pub(crate) const UPLOAD: u8 = b'U';
/// Answer one byte to each byte.
pub(crate) const ECHO: u8 = b'E';

/// What is written and read at once, in bytes.
pub(crate) const CHUNK: usize = 128 << 10;

/// A running target.
#[derive(Debug)]
pub(crate) struct Target {
    address: SocketAddr,
    taken: Counter,
    _accepting: Worker,
}

impl Target {
    /// Listens on loopback.
    pub(crate) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, taken) = (listener.local_addr()?, Counter::default());
        listener.set_nonblocking(true)?;
        let count = taken.clone();
        let accepting = Worker::start(move |stop| accept(&listener, &count, stop))?;
        Ok(Self {
            address,
            taken,
            _accepting: accepting,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes of uploads so far.
    pub(crate) fn taken(&self) -> &Counter {
        &self.taken
    }
}

fn accept(listener: &TcpListener, taken: &Counter, stop: &Stop) {
    while !stop.is_set() {
        match listener.accept() {
            Ok((stream, _)) => serve(stream, taken.clone()),
            Err(_) => wait(listener),
        }
    }
}

/// Waits for a connection, but looks around now and then.
fn wait(listener: &TcpListener) {
    datagrams::readable(listener, Duration::from_millis(50));
}

/// Connections end when their client does; their threads are not waited for.
fn serve(stream: TcpStream, taken: Counter) {
    let work = move || drop(converse(stream, &taken));
    drop(
        std::thread::Builder::new()
            .name("target".into())
            .spawn(work),
    );
}

fn converse(mut stream: TcpStream, taken: &Counter) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let mut asked = [0];
    stream.read_exact(&mut asked)?;
    match asked[0] {
        DOWNLOAD => send(&mut stream, &Stop::default()),
        UPLOAD => take(&mut stream, taken),
        _ => echo(&mut stream),
    }
}

/// Sends until the peer has enough.
pub(crate) fn send(stream: &mut TcpStream, stop: &Stop) -> io::Result<()> {
    let content = vec![0x5a; CHUNK];
    while !stop.is_set() {
        stream.write_all(&content)?;
    }
    Ok(())
}

/// Takes until the peer ends.
pub(crate) fn take(stream: &mut TcpStream, taken: &Counter) -> io::Result<()> {
    let mut room = vec![0; CHUNK];
    loop {
        match stream.read(&mut room)? {
            0 => return Ok(()),
            n => taken.add(n as u64),
        }
    }
}

fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut octet = [0];
    stream.write_all(&[ECHO])?;
    loop {
        stream.read_exact(&mut octet)?;
        stream.write_all(&octet)?;
    }
}

// Threads that run until they are told to stop, and are waited for. The other modules of `load` start their workers
// with it.

/// Set once, when it is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

/// Bytes or packets so far, counted by one thread and read by another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter(Arc<AtomicU64>);

/// A thread that ends when this is dropped; the work has to look at its [`Stop`].
#[derive(Debug)]
pub(crate) struct Worker {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Stop {
    /// Whether it is over.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Says that it is over.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Counter {
    /// Adds.
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Raises it to `n`, if it is below.
    pub(crate) fn raise(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Worker {
    /// Runs `work` on a thread of its own.
    pub(crate) fn start(work: impl FnOnce(&Stop) + Send + 'static) -> io::Result<Self> {
        let stop = Stop::default();
        let inner = stop.clone();
        let thread = std::thread::Builder::new()
            .name("load".into())
            .spawn(move || work(&inner))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Stop {
    /// Waits until it is over; looks now and then.
    pub(crate) async fn reached(&self) {
        while !self.is_set() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
