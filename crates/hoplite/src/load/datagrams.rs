//! UDP targets: one that echoes, and one that floods whoever asks, as fast as the receiver takes it.
//! The flood carries sequence numbers; the receiver's highest one opens the window, so that a queue stays short and a loss
//! does not stop it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use super::{
    batch::Socket,
    stop::{Counter, Stop, Worker},
};

/// How often a waiting thread looks around.
const GLANCE: Duration = Duration::from_millis(20);
/// After so long without progress, what is under way counts as lost.
const STUCK: Duration = Duration::from_millis(10);

/// A running UDP target.
#[derive(Debug)]
pub(crate) struct UdpTarget {
    address: SocketAddr,
    _worker: Worker,
}

/// A flood: how large, how much under way.
#[derive(Clone, Debug)]
pub(crate) struct Flood {
    /// Payload of each datagram, in octets; at least 8.
    pub(crate) size: usize,
    /// Whether many go in one system call and stay together (UDP_SEGMENT), as a QUIC server sends them.
    pub(crate) together: bool,
    /// How many datagrams may be under way.
    pub(crate) window: u64,
    /// The highest sequence number that arrived, set by the receiver.
    pub(crate) arrived: Counter,
    /// How many were sent.
    pub(crate) sent: Counter,
}

impl UdpTarget {
    /// Sends everything back.
    pub(crate) fn echo() -> io::Result<Self> {
        Self::start(|mut socket, stop| {
            while !stop.is_set() {
                let mut answers = Vec::new();
                drop(socket.receive(GLANCE, |from, datagram| {
                    answers.push((from, datagram.to_vec()))
                }));
                for (from, datagram) in answers {
                    drop(socket.send(from, &datagram, datagram.len().max(1)));
                }
            }
        })
    }

    /// Floods whoever sent the last datagram.
    pub(crate) fn flood(flood: Flood) -> io::Result<Self> {
        Self::start(move |mut socket, stop| {
            let mut receiver = None;
            while receiver.is_none() && !stop.is_set() {
                drop(socket.receive(GLANCE, |from, _| receiver = Some(from)));
            }
            if let Some(receiver) = receiver {
                drop(flood.run(&socket, receiver, stop));
            }
        })
    }

    fn start(work: impl FnOnce(Socket, &Stop) + Send + 'static) -> io::Result<Self> {
        let socket = Socket::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?)?;
        let address = socket.local()?;
        let worker = Worker::start(move |stop| work(socket, stop))?;
        Ok(Self {
            address,
            _worker: worker,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Flood {
    fn run(&self, socket: &Socket, to: SocketAddr, stop: &Stop) -> io::Result<()> {
        let segments = self.segments(socket.most_segments());
        let mut batch = vec![0x5a; segments * self.size];
        let (mut next, mut base, mut progress) = (1u64, 0, Instant::now());
        while !stop.is_set() {
            let arrived = self.arrived.value();
            if arrived > base {
                (base, progress) = (arrived, Instant::now());
            }
            if next - base > self.window && progress.elapsed() < STUCK {
                std::thread::sleep(Duration::from_micros(30));
                continue;
            }
            if next - base > self.window {
                (base, progress) = (next, Instant::now());
            }
            for (datagram, number) in batch.chunks_mut(self.size).zip(next..) {
                number_it(datagram, number);
            }
            socket.send(to, &batch, self.size)?;
            next += segments as u64;
            self.sent.add(segments as u64);
        }
        Ok(())
    }
}

impl Flood {
    /// Datagrams of one burst: a quarter of the window, as far as the socket and the kernel take them at once.
    fn segments(&self, most: usize) -> usize {
        let quarter = usize::try_from(self.window / 4).unwrap_or(usize::MAX);
        let together = most.min(65_000 / self.size).min(quarter).max(1);
        if self.together { together } else { 1 }
    }
}

fn number_it(datagram: &mut [u8], number: u64) {
    if let Some(room) = datagram.first_chunk_mut() {
        *room = number.to_be_bytes();
    }
}

/// The number of a flood's datagram.
pub(crate) fn number_of(payload: &[u8]) -> u64 {
    payload
        .first_chunk()
        .map_or(0, |number| u64::from_be_bytes(*number))
}
