//! Load over TCP: a target that sends, takes or echoes, and the threads that generators and targets run on.
//! Light on purpose (blocking sockets, static buffers): its processor time is left out of every figure.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::datagrams;

// The target: what a connection does is said by its first byte.

/// Send until the connection ends.
pub const DOWNLOAD: u8 = b'D';
/// Send [`PIECE`] bytes each [`PAUSE`] until the connection ends: 11 Mbit/s, packet by packet, as a line that people have brings a download.
pub const PACED: u8 = b'P';
/// Take until the connection ends.
pub const UPLOAD: u8 = b'U';
/// Answer one byte to each byte.
pub const ECHO: u8 = b'E';

/// What is written and read at once, in bytes.
pub const CHUNK: usize = 128 << 10;

/// What is sent at once where it is paced, in bytes: a packet's worth.
pub const PIECE: usize = 1_375;

/// From one of those to the next.
pub const PAUSE: Duration = Duration::from_millis(1);

/// A running target.
#[derive(Debug)]
pub struct Target {
    address: SocketAddr,
    taken: Counter,
    _accepting: Worker,
}

impl Target {
    /// Listens on loopback.
    pub fn start() -> io::Result<Self> {
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
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes of uploads so far.
    pub fn taken(&self) -> &Counter {
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
        PACED => send_paced(&mut stream),
        UPLOAD => take(&mut stream, taken),
        _ => echo(&mut stream),
    }
}

/// Sends until the peer has enough.
pub fn send(stream: &mut TcpStream, stop: &Stop) -> io::Result<()> {
    let content = vec![0x5a; CHUNK];
    while !stop.is_set() {
        stream.write_all(&content)?;
    }
    Ok(())
}

fn send_paced(stream: &mut TcpStream) -> io::Result<()> {
    let piece = vec![0x5a; PIECE];
    let mut due = Instant::now();
    loop {
        stream.write_all(&piece)?;
        due += PAUSE;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Takes until the peer ends.
pub fn take(stream: &mut TcpStream, taken: &Counter) -> io::Result<()> {
    let mut room = vec![0; CHUNK];
    loop {
        match stream.read(&mut room)? {
            0 => return Ok(()),
            n => taken.add(n as u64),
        }
    }
}

fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut byte = [0];
    stream.write_all(&[ECHO])?;
    loop {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
}

// Threads that run until they are told to stop, and are waited for.

/// Set once, when it is over.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

/// Bytes or packets so far, counted by one thread and read by another.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

/// A thread that ends when this is dropped; the work has to look at its [`Stop`].
#[derive(Debug)]
pub struct Worker {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Stop {
    /// Whether it is over.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Says that it is over.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Waits until it is over; looks now and then.
    pub async fn reached(&self) {
        while !self.is_set() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Counter {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Raises it to `n`, if it is below.
    pub fn raise(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Worker {
    /// Runs `work` on a thread of its own.
    pub fn start(work: impl FnOnce(&Stop) + Send + 'static) -> io::Result<Self> {
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
