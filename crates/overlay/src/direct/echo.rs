//! ICMP echo by the device's own ping sockets: no rights are needed where `net.ipv4.ping_group_range` has the process's group.
//! [`super::Direct`] answers `open_packets` with it, and it is the egress of relays that have no TUN device.
//!
//! Packets are taken apart and put together here: the kernel sees an echo, gives it its own identifier and address, and hands the
//! reply to the one socket that asked. Hop limits go as they are. What routers say of an echo comes back as the ICMP error that it was, and
//! what cannot be sent is answered with "unreachable".

mod errors;
mod idents;

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use hoplite_wire::{
    connect_ip::{Prefix, Route},
    ip::{
        self, Packet, checksum,
        icmp::{self, Unreachable},
    },
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::{
    io::{Interest, ReadBuf, Ready},
    net::UdpSocket,
    time::Instant,
};

use self::{
    errors::Told,
    idents::{Ident, Idents},
};
use super::{Guard, rights};
use crate::{Batch, Error, Packets, Received};

/// The largest packet that is taken, in octets: what Ethernet carries.
const MTU: usize = 1500;
/// ICMP errors that wait for the receiver; the next ones are lost.
const ANSWERS: usize = 16;
/// What replies begin with: the kernel does not tell what they came with.
const HOP_LIMIT: u8 = 64;
/// The headers of an IPv6 echo: what a buffer must hold at least.
const LEAST_BUFFER: usize = 48;

/// What a flow of echoes may do.
#[derive(Clone)]
pub struct EchoSettings {
    /// The source addresses of its packets; they do not leave the process.
    pub addresses: Vec<Prefix>,
    /// Where its packets may go.
    pub routes: Vec<Route>,
    /// How many identifiers it may use at a time; each holds a socket. The one that was used longest ago makes room.
    pub idents: usize,
    /// After this long an identifier is forgotten when another comes.
    pub idle: Duration,
    /// Asked about each destination, with port 0.
    pub guard: Option<Arc<Guard>>,
    /// The mark of its packets, for the system's routing rules and filters. Setting one needs CAP_NET_ADMIN.
    pub mark: Option<u32>,
}

/// An open flow of echoes.
pub struct EchoFlow {
    settings: EchoSettings,
    state: Mutex<State>,
    dropped: AtomicU64,
}

struct State {
    idents: Idents<Pinger>,
    answers: VecDeque<Vec<u8>>,
    receiver: Option<Waker>,
}

type Watch = Pin<Box<dyn Future<Output = io::Result<Ready>> + Send>>;

/// One ping socket.
struct Pinger {
    socket: Arc<UdpSocket>,
    hop_limit: Mutex<u8>,
    /// Waits for an ICMP error: epoll reports it as an error alone, for which tokio wakes no reader.
    watch: Mutex<Option<Watch>>,
}

/// Whether ping sockets may be opened for this family.
///
/// # Errors
/// The system's: permission denied when the group is not in `net.ipv4.ping_group_range`.
pub fn echo_is_permitted(is_v6: bool) -> io::Result<()> {
    open(is_v6).map(drop)
}

fn open(is_v6: bool) -> io::Result<Socket> {
    let (domain, protocol) = match is_v6 {
        false => (Domain::IPV4, Protocol::ICMPV4),
        true => (Domain::IPV6, Protocol::ICMPV6),
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
    socket.set_nonblocking(true)?;
    errors::ask(&socket, is_v6)?;
    Ok(socket)
}

impl EchoFlow {
    /// A flow that has no socket yet.
    pub fn new(settings: EchoSettings) -> Self {
        Self {
            state: Mutex::new(State {
                idents: Idents::new(settings.idents, settings.idle),
                answers: VecDeque::new(),
                receiver: None,
            }),
            settings,
            dropped: AtomicU64::new(0),
        }
    }

    /// How many packets were no echo request, broke a rule or found no socket.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an echo request on its way; `None`: it is dropped.
    fn take(&self, octets: &[u8]) -> Option<()> {
        let packet = ip::parse(octets).ok()?;
        let echo = icmp::echo(&packet).filter(|echo| !echo.reply)?;
        if !self.permits(&packet) {
            return None;
        }
        let ident = Ident {
            is_v6: packet.destination.is_ipv6(),
            number: echo.identifier,
        };
        let sent = self.state().send(ident, &packet, self.settings.mark);
        if let Err(error) = sent {
            self.state().answer(icmp::unreachable(octets, why(&error)));
            return None;
        }
        Some(())
    }

    fn permits(&self, packet: &Packet<'_>) -> bool {
        let settings = &self.settings;
        let own = |prefix: &Prefix| prefix.contains(packet.source);
        let guard = settings.guard.as_ref();
        packet.hop_limit > 0
            && !packet.fragment
            && settings.addresses.iter().any(own)
            && self.has_route(packet.destination)
            && guard.is_none_or(|guard| guard(packet.destination, 0).is_ok())
    }

    fn has_route(&self, far: IpAddr) -> bool {
        let protocol = ip::icmp_of(far);
        let routes = &mut self.settings.routes.iter();
        routes.any(|route| route.allows(far, protocol))
    }

    /// Makes a packet of what a ping socket received behind the room for the IP header.
    fn reply(&self, buf: &mut [u8], len: usize, from: IpAddr, ident: Ident) -> Option<usize> {
        let to = self.near(ident.is_v6)?;
        let room = header_len(ident.is_v6);
        let message = buf.get_mut(room..room + len)?;
        let is_reply = matches!((message.first()?, ident.is_v6), (0, false) | (129, true));
        if !is_reply || !self.has_route(from) {
            return None;
        }
        message
            .get_mut(4..6)?
            .copy_from_slice(&ident.number.to_be_bytes());
        message.get_mut(2..4)?.fill(0);
        let sum = match ident.is_v6 {
            false => checksum::of(&[message]),
            true => checksum::transport(from, to, ip::ICMPV6, &[message]),
        };
        message.get_mut(2..4)?.copy_from_slice(&sum.to_be_bytes());
        let mut header = Vec::with_capacity(room);
        ip::write_header(&mut header, from, to, ip::icmp_of(from), HOP_LIMIT, len);
        buf.get_mut(..room)?.copy_from_slice(&header);
        Some(room + len)
    }

    /// What the network has said of one socket's echoes.
    fn poll_errors(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
        (ident, pinger): (Ident, &Pinger),
    ) -> Poll<usize> {
        loop {
            let told = std::task::ready!(pinger.poll_error(cx));
            let near = self.near(ident.is_v6);
            let packet = near.and_then(|near| told.packet(near, ident.number));
            if let Some((packet, to)) = packet.and_then(|packet| {
                let to = buf.get_mut(..packet.len())?;
                Some((packet, to))
            }) {
                to.copy_from_slice(&packet);
                return Poll::Ready(packet.len());
            }
        }
    }

    /// The flow's own address of a family.
    fn near(&self, is_v6: bool) -> Option<IpAddr> {
        let own = self.settings.addresses.iter().map(Prefix::address);
        own.into_iter().find(|own| own.is_ipv6() == is_v6)
    }

    /// What one socket has received; replies that nobody may see are skipped.
    fn poll_pinger(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
        (ident, pinger): (Ident, &Pinger),
    ) -> Poll<usize> {
        loop {
            let room = buf.get_mut(header_len(ident.is_v6)..).unwrap_or_default();
            let capacity = room.len();
            let mut read = ReadBuf::new(room);
            match pinger.socket.poll_recv_from(cx, &mut read) {
                Poll::Pending => return Poll::Pending,
                // An ICMP error about something that was sent; nobody waits for it by name.
                Poll::Ready(Err(_)) => {}
                Poll::Ready(Ok(from)) => {
                    let len = read.filled().len();
                    let from = from.ip().to_canonical();
                    let whole = len < capacity;
                    if let Some(len) = self.reply(buf, len, from, ident).filter(|_| whole) {
                        return Poll::Ready(len);
                    }
                }
            }
        }
    }
}

impl State {
    fn send(&mut self, ident: Ident, packet: &Packet<'_>, mark: Option<u32>) -> io::Result<()> {
        let now = Instant::now();
        if let Some(pinger) = self.idents.find(ident, now) {
            return pinger.send(packet);
        }
        let socket = open(ident.is_v6)?;
        if let Some(mark) = mark {
            rights::mark(&socket, mark)?;
        }
        let pinger = Pinger {
            socket: Arc::new(UdpSocket::from_std(socket.into())?),
            hop_limit: Mutex::new(0),
            watch: Mutex::default(),
        };
        let sent = pinger.send(packet);
        self.idents.enter(ident, pinger, now);
        self.wake();
        sent
    }

    /// Keeps an ICMP error for the receiver.
    fn answer(&mut self, error: Option<Vec<u8>>) {
        if let Some(error) = error.filter(|_| self.answers.len() < ANSWERS) {
            self.answers.push_back(error);
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            receiver.wake();
        }
    }
}

impl Pinger {
    /// Past tokio's readiness, which a socket that is new does not have yet.
    fn send(&self, packet: &Packet<'_>) -> io::Result<()> {
        let socket = SockRef::from(&*self.socket);
        let mut set = self
            .hop_limit
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *set != packet.hop_limit {
            match packet.destination {
                IpAddr::V4(_) => socket.set_ttl_v4(packet.hop_limit.into())?,
                IpAddr::V6(_) => socket.set_unicast_hops_v6(packet.hop_limit.into())?,
            }
            *set = packet.hop_limit;
        }
        let to = SocketAddr::new(packet.destination, 0).into();
        let mut sent = socket.send_to(packet.payload, &to);
        if sent.is_err() {
            // It may have been about an earlier echo, of which the error queue tells.
            sent = socket.send_to(packet.payload, &to);
        }
        match sent {
            // A full queue loses the newest, as a router's would.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent.map(drop),
        }
    }
}

impl Pinger {
    /// The next of the errors that are about echoes.
    fn poll_error(&self, cx: &mut Context<'_>) -> Poll<Told> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let waiting = watch.get_or_insert_with(|| {
                let socket = Arc::clone(&self.socket);
                Box::pin(async move { socket.ready(Interest::ERROR).await })
            });
            let ready = std::task::ready!(waiting.as_mut().poll(cx));
            *watch = None;
            if ready.is_err() {
                return Poll::Pending;
            }
            let next = || errors::next(self.socket.as_fd());
            match self.socket.try_io(Interest::ERROR, next) {
                Ok(told) => return Poll::Ready(told),
                // That was all for now, or one that said too little.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::InvalidData
                    ) => {}
                Err(_) => return Poll::Pending,
            }
        }
    }
}

const fn header_len(is_v6: bool) -> usize {
    if is_v6 { 40 } else { 20 }
}

fn why(error: &io::Error) -> Unreachable {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable => Unreachable::Network,
        io::ErrorKind::PermissionDenied => Unreachable::Prohibited,
        _ => Unreachable::Host,
    }
}

impl Packets for EchoFlow {
    fn addresses(&self) -> Vec<Prefix> {
        self.settings.addresses.clone()
    }

    fn routes(&self) -> Vec<Route> {
        self.settings.routes.clone()
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn poll_send(&self, _: &mut Context<'_>, packets: Batch<'_>) -> Poll<Result<(), Error>> {
        for packet in packets.payloads() {
            if self.take(packet).is_none() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        let mut state = self.state();
        while let Some(answer) = state.answers.pop_front() {
            if let Some(to) = buf.get_mut(..answer.len()) {
                to.copy_from_slice(&answer);
                return Poll::Ready(Ok(one(answer.len())));
            }
        }
        state.receiver = Some(cx.waker().clone());
        if buf.len() < LEAST_BUFFER {
            return Poll::Pending;
        }
        for (ident, pinger) in state.idents.iter() {
            if let Poll::Ready(len) = self.poll_errors(cx, buf, (ident, pinger)) {
                return Poll::Ready(Ok(one(len)));
            }
            let pinger = (ident, pinger);
            if let Poll::Ready(len) = self.poll_pinger(cx, buf, pinger) {
                return Poll::Ready(Ok(one(len)));
            }
        }
        Poll::Pending
    }
}

fn one(len: usize) -> Received {
    Received { len, segment: len }
}

impl fmt::Debug for EchoFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EchoFlow")
    }
}

impl fmt::Debug for Pinger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pinger")
    }
}

impl fmt::Debug for EchoSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EchoSettings")
            .field("idents", &self.idents)
            .finish_non_exhaustive()
    }
}
