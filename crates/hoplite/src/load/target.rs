//! The TCP target: what a connection does is said by its first octet.
//! `bench` measures with it, directly and through the chain.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use super::stop::{Counter, Stop, Worker};

/// Send until the connection ends.
pub(crate) const DOWNLOAD: u8 = b'D';
/// Take until the connection ends.
pub(crate) const UPLOAD: u8 = b'U';
/// Answer one octet to each octet.
pub(crate) const ECHO: u8 = b'E';

/// What is written and read at once, in octets.
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

    /// Octets of uploads so far.
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
    super::batch::readable(listener, Duration::from_millis(50));
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
