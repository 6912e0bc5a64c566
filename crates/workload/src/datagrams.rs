//! Load over UDP: a target that echoes and the program that asks it, a target that floods whoever asks, as fast as the receiver takes it.
//! The flood carries sequence numbers; the receiver's highest one opens the window, so that a queue stays short and a loss
//! does not stop it.

use std::{
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    load::{Counter, Stop, Worker},
    socks::{self, Association},
};

/// How often a waiting thread looks around.
const GLANCE: Duration = Duration::from_millis(20);
/// After so long without progress, what is under way counts as lost.
const STUCK: Duration = Duration::from_millis(10);

/// A running UDP target.
#[derive(Debug)]
pub struct UdpTarget {
    address: SocketAddr,
    _worker: Worker,
}

/// What the datagrams of a flood look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dress {
    /// A number and nothing else.
    Plain,
    /// The packets of a QUIC connection (RFC 8999): a handshake's long headers first, then short ones. A relay may forward these.
    Quic,
}

/// A flood: how large, how much under way.
#[derive(Clone, Debug)]
pub struct Flood {
    /// What its datagrams look like.
    pub dress: Dress,
    /// Payload of each datagram, in bytes; at least 8.
    pub size: usize,
    /// Whether many go in one system call and stay together (UDP_SEGMENT), as a QUIC server sends them.
    pub together: bool,
    /// How many datagrams may be under way.
    pub window: u64,
    /// The highest sequence number that arrived, set by the receiver.
    pub arrived: Counter,
    /// How many were sent.
    pub sent: Counter,
}

impl UdpTarget {
    /// Sends everything back.
    pub fn echo() -> io::Result<Self> {
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
    pub fn flood(flood: Flood) -> io::Result<Self> {
        Self::start(move |mut socket, stop| {
            let mut receiver = None;
            while receiver.is_none() && !stop.is_set() {
                drop(socket.receive(GLANCE, |from, _| receiver = Some(from)));
            }
            if let Some(receiver) = receiver {
                let greeting = flood.dress.greeting(TARGET_ID);
                drop(socket.send(receiver, &greeting, greeting.len().max(1)));
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
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Flood {
    fn run(&self, socket: &Socket, to: SocketAddr, stop: &Stop) -> io::Result<()> {
        let segments = self.segments(socket.most_segments());
        let mut batch = vec![0x5a; segments * self.size];
        batch
            .chunks_mut(self.size)
            .for_each(|datagram| self.dress.put_on(datagram));
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
                self.dress.number_it(datagram, number);
            }
            socket.send(to, &batch, self.size)?;
            next += segments as u64;
            self.sent.add(segments as u64);
        }
        Ok(())
    }

    /// Datagrams of one burst: a quarter of the window, as far as the socket and the kernel take them at once.
    fn segments(&self, most: usize) -> usize {
        let quarter = usize::try_from(self.window / 4).unwrap_or(usize::MAX);
        let together = most.min(65_000 / self.size).min(quarter).max(1);
        if self.together { together } else { 1 }
    }
}

/// The connection ids that the two ends of a flood in QUIC's dress choose.
const PROGRAM_ID: [u8; 8] = *b"\x5eprogram";
const TARGET_ID: [u8; 8] = *b"\xa1target!";

impl Dress {
    /// What an end whose connection id is `own` says first.
    fn greeting(self, own: [u8; 8]) -> Vec<u8> {
        match self {
            Self::Plain => vec![0],
            // Long header, version 1, no destination id yet, ours, and something behind it.
            Self::Quic => [&[0xc0, 0, 0, 0, 1, 0, 8], own.as_slice(), &[0; 32]].concat(),
        }
    }

    /// What the program says first.
    pub fn request(self) -> Vec<u8> {
        self.greeting(PROGRAM_ID)
    }

    /// What the program says while it receives, if anything: without a short header of its own nothing shows that its handshake is done.
    pub fn acknowledgement(self) -> Option<Vec<u8>> {
        match self {
            Self::Plain => None,
            Self::Quic => Some([&[0x40], TARGET_ID.as_slice(), &[0; 32]].concat()),
        }
    }

    /// Where the number of a datagram stands.
    const fn number_at(self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Quic => 1 + PROGRAM_ID.len(),
        }
    }

    /// The header that all datagrams of a flood have.
    fn put_on(self, datagram: &mut [u8]) {
        if let (Self::Quic, Some((first, rest))) = (self, datagram.split_first_mut()) {
            *first = 0x40;
            rest.iter_mut()
                .zip(PROGRAM_ID)
                .for_each(|(at, id)| *at = id);
        }
    }

    fn number_it(self, datagram: &mut [u8], number: u64) {
        let place = datagram.get_mut(self.number_at()..);
        if let Some(room) = place.and_then(<[u8]>::first_chunk_mut) {
            *room = number.to_be_bytes();
        }
    }

    /// The number of a flood's datagram.
    pub fn number_of(self, payload: &[u8]) -> u64 {
        let place = payload.get(self.number_at()..);
        place
            .and_then(<[u8]>::first_chunk)
            .map_or(0, |number| u64::from_be_bytes(*number))
    }
}

// A UDP socket that sends and receives in batches (UDP_SEGMENT, UDP_GRO), by quinn-udp.

/// What a socket may queue in each direction, in bytes.
const BUFFER: usize = 8 << 20;
/// How many batches one receive call takes.
const BATCHES: usize = 8;
/// The largest batch.
const ROOM: usize = 65_536;

/// A socket, its offload state, and room to receive.
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    room: Vec<u8>,
}

impl Socket {
    /// Takes a bound socket; from then on it does not block.
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        let sized = socket2::SockRef::from(&socket);
        // The kernel gives what it allows; less is slower, not wrong.
        drop(sized.set_recv_buffer_size(BUFFER));
        drop(sized.set_send_buffer_size(BUFFER));
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self {
            socket,
            state,
            room: vec![0; BATCHES * ROOM],
        })
    }

    /// How many datagrams one call may send.
    pub fn most_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Where it is bound.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends `contents` cut every `segment` bytes; waits while the queue is full.
    pub fn send(&self, to: SocketAddr, contents: &[u8], segment: usize) -> io::Result<()> {
        let segment_size = (contents.len() > segment).then_some(segment);
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents,
            segment_size,
            src_ip: None,
        };
        loop {
            match self.state.try_send((&self.socket).into(), &transmit) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&self.socket, PollFlags::OUT, Duration::from_millis(20))
                }
                // A closed port of a moment ago (ICMP) says nothing about this datagram.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                done => return done,
            };
        }
    }

    /// Hands each datagram that is there to `each`; answers how many there were. Waits up to `patience` for the first.
    pub fn receive(
        &mut self,
        patience: Duration,
        mut each: impl FnMut(SocketAddr, &mut [u8]),
    ) -> io::Result<usize> {
        let mut metas = [RecvMeta::default(); BATCHES];
        let mut slices: Vec<_> = self.room.chunks_mut(ROOM).map(IoSliceMut::new).collect();
        let received = match self
            .state
            .recv((&self.socket).into(), &mut slices, &mut metas)
        {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !patience.is_zero() => {
                wait(&self.socket, PollFlags::IN, patience);
                self.state
                    .recv((&self.socket).into(), &mut slices, &mut metas)
            }
            done => done,
        };
        let received = match received {
            Ok(received) => received,
            Err(error) if is_nothing(&error) => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut count = 0;
        for (meta, room) in metas.iter().take(received).zip(self.room.chunks_mut(ROOM)) {
            let Some(filled) = room.get_mut(..meta.len) else {
                continue;
            };
            for datagram in filled.chunks_mut(meta.stride.max(1)) {
                each(meta.addr, datagram);
                count += 1;
            }
        }
        Ok(count)
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted
    )
}

/// Waits until there is something to read, at most `patience`.
pub fn readable(on: impl AsFd, patience: Duration) {
    wait(on, PollFlags::IN, patience);
}

fn wait(on: impl AsFd, for_what: PollFlags, patience: Duration) {
    let timeout = Timespec::try_from(patience).ok();
    // Interrupted or not: the caller looks again.
    poll(&mut [PollFd::new(&on, for_what)], timeout.as_ref()).unwrap_or_default();
}

// An echo through the SOCKS port: round trips one by one, then many datagrams under way; every answer's content is checked.

/// Payload of each datagram, in bytes: fits every path of up to four hops.
const PAYLOAD: usize = 1000;
/// How many are under way at once.
const UNDER_WAY: usize = 32;
/// So long without an answer, and what is under way is lost.
const SILENCE: Duration = Duration::from_secs(1);
/// How long the first answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Echoed {
    /// Answers with the right content.
    pub answers: usize,
    /// Payload of the answers, in bytes.
    pub bytes: u64,
    /// How long it took altogether.
    pub time: Duration,
}

/// A UDP association that talks to one echo server.
#[derive(Debug)]
pub struct Echo {
    socket: Socket,
    association: Association,
    packet: Vec<u8>,
    /// Bytes of the SOCKS header before the payload.
    header: usize,
    number: u64,
}

impl Echo {
    /// Asks the proxy for an association, and waits for the first answer.
    pub fn open(proxy: SocketAddr, server: SocketAddr) -> io::Result<Self> {
        let association = socks::associate(proxy)?;
        let mut packet = socks::udp_header(server);
        let header = packet.len();
        packet.resize(header + PAYLOAD, 0);
        let mut echo = Self {
            socket: Socket::new(association.socket.try_clone()?)?,
            association,
            packet,
            header,
            number: 0,
        };
        let start = Instant::now();
        while echo.round_trip()?.is_none() {
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other("no UDP datagram came back"));
            }
        }
        Ok(echo)
    }

    /// The time of one round trip, or nothing if it was lost.
    pub fn round_trip(&mut self) -> io::Result<Option<Duration>> {
        let start = Instant::now();
        self.send(1)?;
        let answers = self.receive(1)?;
        Ok((answers > 0).then(|| start.elapsed()))
    }

    /// Sends `count` datagrams and counts what comes back.
    pub fn stream(&mut self, count: usize) -> io::Result<Echoed> {
        let (start, mut answers, mut sent, mut lost) = (Instant::now(), 0, 0, 0);
        while answers + lost < count {
            let room = UNDER_WAY
                .saturating_sub(sent - answers - lost)
                .min(count - sent);
            self.send(room)?;
            sent += room;
            match self.receive(UNDER_WAY)? {
                0 => lost = sent - answers,
                n => answers = (answers + n).min(sent),
            }
            lost = lost.min(sent - answers);
        }
        Ok(Echoed {
            answers,
            bytes: (answers * PAYLOAD) as u64,
            time: start.elapsed(),
        })
    }

    fn send(&mut self, count: usize) -> io::Result<()> {
        for _ in 0..count {
            self.number += 1;
            let content = self.packet.iter_mut().skip(self.header);
            fill(content, self.number);
            self.socket
                .send(self.association.relay, &self.packet, self.packet.len())?;
        }
        Ok(())
    }

    /// Counts the right answers that are there, or waits a while for the first.
    fn receive(&mut self, most: usize) -> io::Result<usize> {
        let (start, header, mut right) = (Instant::now(), self.header, 0);
        while right == 0 && start.elapsed() < SILENCE {
            self.socket.receive(SILENCE, |_, datagram| {
                right += usize::from(datagram.get(header..).is_some_and(is_right));
            })?;
        }
        Ok(right.min(most))
    }
}

/// A number, then bytes that follow from it.
fn fill<'a>(content: impl Iterator<Item = &'a mut u8>, number: u64) {
    for (i, byte) in content.enumerate() {
        *byte = byte_at(number, i);
    }
}

fn byte_at(number: u64, i: usize) -> u8 {
    match i {
        0..8 => number.to_be_bytes()[i],
        _ => number.wrapping_mul(31).to_le_bytes()[0].wrapping_add(i.to_le_bytes()[0]),
    }
}

fn is_right(payload: &[u8]) -> bool {
    let number = payload
        .first_chunk()
        .map(|number| u64::from_be_bytes(*number));
    let right = |number| {
        payload
            .iter()
            .enumerate()
            .all(|(i, &byte)| byte == byte_at(number, i))
    };
    payload.len() == PAYLOAD && number.is_some_and(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_where_it_was_written_in_either_dress() {
        for dress in [Dress::Plain, Dress::Quic] {
            let mut datagram = [0; 64];
            dress.put_on(&mut datagram);
            dress.number_it(&mut datagram, 0x0102_0304_0506_0708);
            assert_eq!(dress.number_of(&datagram), 0x0102_0304_0506_0708);
            assert_eq!(datagram[0] & 0x80, 0, "a short header");
        }
    }

    #[test]
    fn the_greeting_of_quic_tells_the_id_that_the_flood_is_sent_to() {
        let greeting = Dress::Quic.request();
        let mut datagram = [0; 64];
        Dress::Quic.put_on(&mut datagram);
        assert_eq!(greeting[7..15], datagram[1..9]);
    }

    #[test]
    fn a_changed_answer_is_not_right() {
        let mut payload = [0; PAYLOAD];
        fill(payload.iter_mut(), 1234);
        assert!(is_right(&payload));
        payload[500] ^= 1;
        assert!(!is_right(&payload) && !is_right(&payload[..999]));
    }
}
