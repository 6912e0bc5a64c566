//! ICMP echo by the device's own ping sockets: no rights are needed where `net.ipv4.ping_group_range` has the process's group.
//!
//! Packets are taken apart and put together here: the kernel sees an echo, gives it its own identifier and address, and hands the
//! reply to the one socket that asked. Hop limits go as they are. What routers say of an echo comes back as the ICMP error that it was, and
//! what cannot be sent is answered with "unreachable".

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use hoplite_wire::{
    Host, Target,
    connect_ip::{Prefix, Route, Scope, ScopeTarget},
    ip::{
        self, Packet, checksum,
        icmp::{self, Unreachable},
    },
};
use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::{
    io::{Interest, ReadBuf, Ready},
    net::UdpSocket,
    time::Instant,
};

use super::{Direct, Guard, no_such_name, rights, system, tcp::bind_source};
use crate::{Batch, Error, Packets, Received, datagrams};

/// The largest packet that is taken, in bytes: what Ethernet carries.
const MTU: usize = 1500;

/// ICMP errors that wait for the receiver; the next ones are lost.
const MAX_ANSWERS: usize = 16;

/// What replies begin with: the kernel does not tell what they came with.
const HOP_LIMIT: u8 = 64;

/// The headers of an IPv6 echo: what a buffer must hold at least.
const MIN_BUFFER: usize = 48;

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
    /// Where its packets leave the device from, at most one of each family; else from where the system says.
    pub sources: Vec<IpAddr>,
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
    let (domain, protocol) = if is_v6 {
        (Domain::IPV6, Protocol::ICMPV6)
    } else {
        (Domain::IPV4, Protocol::ICMPV4)
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
    socket.set_nonblocking(true)?;
    ask(&socket, is_v6)?;
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

    /// Sends an echo request on its way; `None`: it is dropped.
    fn take(&self, bytes: &[u8]) -> Option<()> {
        let packet = ip::parse(bytes).ok()?;
        let echo = icmp::echo(&packet).filter(|echo| !echo.reply)?;
        if !self.permits(&packet) {
            return None;
        }
        let ident = Ident {
            is_v6: packet.destination.is_ipv6(),
            number: echo.identifier,
        };
        let sent = self.state.lock().send(ident, &packet, &self.settings);
        if let Err(error) = sent {
            self.state
                .lock()
                .answer(icmp::unreachable(bytes, why(&error)));
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
        let sum = if ident.is_v6 {
            checksum::transport(from, to, ip::ICMPV6, &[message])
        } else {
            checksum::of(&[message])
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
    fn send(
        &mut self,
        ident: Ident,
        packet: &Packet<'_>,
        settings: &EchoSettings,
    ) -> io::Result<()> {
        let now = Instant::now();
        if let Some(pinger) = self.idents.find(ident, now) {
            return pinger.send(packet);
        }
        let socket = open(ident.is_v6)?;
        if let Some(mark) = settings.mark {
            rights::mark(&socket, mark)?;
        }
        let mut sources = settings.sources.iter();
        if let Some(source) = sources.find(|ip| ip.is_ipv6() == ident.is_v6) {
            bind_source(&socket, *source)?;
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
        if let Some(error) = error.filter(|_| self.answers.len() < MAX_ANSWERS) {
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
        let mut set = self.hop_limit.lock();
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
        let mut watch = self.watch.lock();
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
            let next = || next(self.socket.as_fd());
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
        let mut state = self.state.lock();
        while let Some(answer) = state.answers.pop_front() {
            if let Some(to) = buf.get_mut(..answer.len()) {
                to.copy_from_slice(&answer);
                return Poll::Ready(Ok(one(answer.len())));
            }
        }
        state.receiver = Some(cx.waker().clone());
        if buf.len() < MIN_BUFFER {
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

// As an overlay's flow of packets.

/// What a flow of echoes is given as its source, one of each family: they never leave the process (RFC 7600, RFC 6666).
const DUMMIES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8)),
    IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 8)),
];

/// How many programs may use one flow of echoes at a time, and after how long one is forgotten.
const IDENTS: usize = 16;

const IDENT_IDLE: Duration = Duration::from_secs(60);

impl Direct {
    /// Echoes alone: the device's own sockets carry no other packets without rights.
    pub(super) async fn packets(&self, scope: &Scope) -> Result<EchoFlow, Error> {
        let families =
            [ip::ICMP, ip::ICMPV6].map(|icmp| scope.protocol.is_none_or(|only| only == icmp));
        let served = |ip: &IpAddr| {
            let [v4, v6] = families;
            let wanted = if ip.is_ipv4() { v4 } else { v6 };
            wanted && echo_is_permitted(ip.is_ipv6()).is_ok()
        };
        let addresses: Vec<IpAddr> = DUMMIES.into_iter().filter(served).collect();
        if addresses.is_empty() {
            return Err(datagrams::unsupported());
        }
        let mut routes = self.routes(scope).await?;
        routes.retain(|route| served(&route.first()));
        if routes.is_empty() {
            return Err(no_such_name());
        }
        Ok(EchoFlow::new(EchoSettings {
            addresses: addresses.into_iter().map(Prefix::one).collect(),
            routes,
            idents: IDENTS,
            idle: IDENT_IDLE,
            guard: self.guard.clone(),
            sources: Vec::new(),
            mark: self.udp.mark,
        }))
    }

    async fn routes(&self, scope: &Scope) -> Result<Vec<Route>, Error> {
        let host = match &scope.target {
            ScopeTarget::Name(name) => Host::Name(name.clone()),
            ScopeTarget::Prefix(prefix) => match prefix.single() {
                Some(ip) => Host::ip(ip),
                None => return Ok(vec![prefix.route(0)]),
            },
            ScopeTarget::Any => {
                let families = DUMMIES.iter().filter_map(|ip| Prefix::new(*ip, 0));
                return Ok(families.map(|all| all.route(0)).collect());
            }
        };
        let found = self.addresses(&Target { host, port: 0 }).await?;
        let one = |found: &SocketAddr| Prefix::one(found.ip()).route(0);
        Ok(found.iter().map(one).collect())
    }
}

// What the network says of echoes that did not arrive: ICMP errors out of a ping socket's error queue, made into packets again.
// ip(7) IP_RECVERR, ipv6(7) IPV6_RECVERR; what an error quotes: RFC 792, RFC 4443.

/// What of a message the queue is asked for, in bytes: no error quotes more.
const QUOTED: usize = 1280;

/// Room for what is said about a message, in bytes.
const CONTROL: u16 = 512;

/// The width of a control message's length, to which all is aligned.
const WORD: usize = size_of::<usize>();

/// `struct sock_extended_err`; the address of who complains stands behind it.
const EXTENDED: usize = 16;

/// An error about an echo of this socket.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    /// Type and code as ICMP of the family has them.
    kind: [u8; 2],
    /// The MTU, where that is the matter.
    rest: u32,
    /// Who says so.
    from: IpAddr,
    /// Where the echo was sent.
    to: IpAddr,
    /// The echo as it left, as far as the error quoted it.
    quoted: Vec<u8>,
}

/// Asks the system to keep errors for us.
fn ask(socket: &Socket, is_v6: bool) -> io::Result<()> {
    let (level, option) = if is_v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVERR)
    };
    system::set_option(socket, level, option, 1)
}

/// The next error.
///
/// # Errors
/// `WouldBlock` when there is none; `InvalidData` for one that says too little.
#[expect(unsafe_code, reason = "the error queue has no safe wrapper")]
fn next(socket: BorrowedFd<'_>) -> io::Result<Told> {
    let (mut name, mut control) = ([0_u64; 16], [0_u64; CONTROL as usize / 8]);
    let mut quoted = vec![0; QUOTED];
    let mut piece = libc::iovec {
        iov_base: quoted.as_mut_ptr().cast(),
        iov_len: quoted.len(),
    };
    // SAFETY: all of it is numbers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = libc::socklen_t::try_from(size_of_val(&name)).map_err(io::Error::other)?;
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    // Of one type in glibc, of another in musl.
    header.msg_controllen = CONTROL.into();
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the descriptor is open; every pointer is to a buffer of the length that stands beside it, and all outlive the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    quoted.truncate(got);
    let told = read(&bytes(&name), &bytes(&control), quoted);
    told.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Makes sense of what the queue gave.
fn read(name: &[u8], control: &[u8], quoted: Vec<u8>) -> Option<Told> {
    let to = address(name)?;
    let extended = extended(control)?;
    let &[_, _, _, _, origin, kind, code, _, a, b, c, d] = extended.get(..12)? else {
        return None;
    };
    let info = u32::from_ne_bytes([a, b, c, d]);
    let (kind, from) = match origin {
        libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6 => {
            ([kind, code], address(extended.get(EXTENDED..)?)?)
        }
        // The way out carries less: nobody had to say so.
        libc::SO_EE_ORIGIN_LOCAL if info > 0 => (too_big(to), to),
        _ => return None,
    };
    let rest = if kind == too_big(to) { info } else { 0 };
    Some(Told {
        kind,
        rest,
        from,
        to,
        quoted,
    })
}

const fn too_big(to: IpAddr) -> [u8; 2] {
    if to.is_ipv4() { [3, 4] } else { [2, 0] }
}

/// The `sock_extended_err` among the control messages, with what follows it.
fn extended(mut control: &[u8]) -> Option<&[u8]> {
    loop {
        let len = usize::from_ne_bytes(control.get(..WORD)?.try_into().ok()?);
        let (level, kind) = (int(control.get(WORD..)?)?, int(control.get(WORD + 4..)?)?);
        let data = control.get(WORD + 8..len)?;
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                return Some(data);
            }
            _ => control = control.get(len.next_multiple_of(WORD)..)?,
        }
    }
}

fn int(bytes: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// The address in a `sockaddr_in` or `sockaddr_in6`.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => {
            let address: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some(Ipv4Addr::from(address).into())
        }
        libc::AF_INET6 => {
            let address: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            Some(Ipv6Addr::from(address).to_canonical())
        }
        _ => None,
    }
}

impl Told {
    /// The error as a packet to `near`, quoting the echo as that had sent it: with its address and the program's identifier.
    fn packet(&self, near: IpAddr, ident: u16) -> Option<Vec<u8>> {
        let mut echo = self.quoted.clone();
        echo.get_mut(4..6)?.copy_from_slice(&ident.to_be_bytes());
        let mut quoted = Vec::with_capacity(40 + echo.len());
        let protocol = ip::icmp_of(near);
        ip::write_header(&mut quoted, near, self.to, protocol, 1, echo.len());
        quoted.extend_from_slice(&echo);
        let same_family = [self.from, self.to]
            .iter()
            .all(|ip| ip.is_ipv4() == near.is_ipv4());
        same_family.then(|| icmp::error(self.from, near, self.kind, self.rest, &quoted))
    }
}

// Which echo identifier of a program has which socket: the kernel gives each ping socket an identifier of its own, as a NAT would.
// Bounded: the entry that was used longest ago makes room.

/// The identifiers of one flow, each with its socket `S`.
#[derive(Debug)]
struct Idents<S> {
    entries: Vec<Entry<S>>,
    bound: usize,
    idle: Duration,
}

/// What tells programs apart: the family and the identifier that the program chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ident {
    is_v6: bool,
    number: u16,
}

#[derive(Debug)]
struct Entry<S> {
    ident: Ident,
    used: Instant,
    socket: S,
}

impl<S> Idents<S> {
    /// At most `bound` identifiers; one that was not used for `idle` is forgotten when another comes.
    fn new(bound: usize, idle: Duration) -> Self {
        Self {
            entries: Vec::new(),
            bound: bound.max(1),
            idle,
        }
    }

    /// The socket of `ident`, which counts as used.
    fn find(&mut self, ident: Ident, now: Instant) -> Option<&S> {
        let entry = self.entries.iter_mut().find(|entry| entry.ident == ident)?;
        entry.used = now;
        Some(&entry.socket)
    }

    /// Enters `ident`, which is not there yet; who must go, goes.
    fn enter(&mut self, ident: Ident, socket: S, now: Instant) {
        let idle = self.idle;
        self.entries
            .retain(|entry| now.saturating_duration_since(entry.used) < idle);
        if self.entries.len() >= self.bound {
            let oldest = self
                .entries
                .iter()
                .enumerate()
                .min_by_key(|(_, entry)| entry.used);
            if let Some((index, _)) = oldest {
                self.entries.swap_remove(index);
            }
        }
        self.entries.push(Entry {
            ident,
            used: now,
            socket,
        });
    }

    /// All of them.
    fn iter(&self) -> impl Iterator<Item = (Ident, &S)> {
        self.entries
            .iter()
            .map(|entry| (entry.ident, &entry.socket))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    fn sockaddr(address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(ip) => [&2_u16.to_ne_bytes()[..], &[0, 0], &ip.octets(), &[0; 8]].concat(),
            IpAddr::V6(ip) => [&10_u16.to_ne_bytes()[..], &[0; 6], &ip.octets(), &[0; 4]].concat(),
        }
    }

    fn control(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let len = WORD + 8 + data.len();
        let mut out = [
            &len.to_ne_bytes()[..],
            &level.to_ne_bytes(),
            &kind.to_ne_bytes(),
            data,
        ]
        .concat();
        out.resize(len.next_multiple_of(WORD), 0);
        out
    }

    fn extended_error(origin: u8, kind: [u8; 2], info: u32, from: &[u8]) -> Vec<u8> {
        let head = [0, 0, 0, 0, origin, kind[0], kind[1], 0];
        [&head[..], &info.to_ne_bytes(), &[0; 4], from].concat()
    }

    #[test]
    fn a_routers_complaint_becomes_a_packet_that_quotes_the_echo() {
        let (router, to, near) = (ip("192.0.2.1"), ip("203.0.113.9"), ip("192.0.0.8"));
        let other = control(libc::IPPROTO_IP, libc::IP_TTL, &64_i32.to_ne_bytes());
        let error = extended_error(libc::SO_EE_ORIGIN_ICMP, [11, 0], 0, &sockaddr(router));
        let controls = [other, control(libc::IPPROTO_IP, libc::IP_RECVERR, &error)].concat();
        let echo = vec![8, 0, 1, 2, 0x99, 0x99, 0, 3, b'x'];
        let told = read(&sockaddr(to), &controls, echo).expect("an error");
        let packet = told.packet(near, 7).expect("a packet");
        let packet = ip::parse(&packet).expect("a packet");
        assert!(packet.checksum_is_right());
        assert_eq!((packet.source, packet.destination), (router, near));
        assert_eq!(packet.payload[..2], [11, 0]);
        let quoted = ip::parse(&packet.payload[8..]).expect("a packet");
        assert_eq!((quoted.source, quoted.destination), (near, to));
        assert_eq!(quoted.payload, [8, 0, 1, 2, 0, 7, 0, 3, b'x']);
    }

    #[test]
    fn a_way_out_that_is_too_small_is_told_with_its_size() {
        let (to, near) = (ip("2001:db8::9"), ip("100::8"));
        let error = extended_error(libc::SO_EE_ORIGIN_LOCAL, [0, 0], 1280, &[]);
        let controls = control(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &error);
        let told = read(&sockaddr(to), &controls, vec![128; 8]).expect("an error");
        let packet = told.packet(near, 7).expect("a packet");
        let packet = ip::parse(&packet).expect("a packet");
        assert_eq!((packet.source, packet.payload[0]), (to, 2));
        assert_eq!(packet.payload[4..8], 1280_u32.to_be_bytes());
    }

    proptest! {
        #[test]
        fn whatever_the_queue_gives_there_is_no_panic(name: Vec<u8>, control: Vec<u8>, quoted: Vec<u8>) {
            drop(read(&name, &control, quoted.clone()));
            let named = sockaddr(ip("192.0.2.1"));
            if let Some(told) = read(&named, &control, quoted) {
                drop(told.packet(ip("192.0.0.8"), 1));
            }
        }
    }

    const IDLE: Duration = Duration::from_secs(30);

    fn ident(number: u16) -> Ident {
        Ident {
            is_v6: false,
            number,
        }
    }

    #[test]
    fn an_identifier_keeps_its_socket_and_families_are_told_apart() {
        let (mut idents, now) = (Idents::new(4, IDLE), Instant::now());
        idents.enter(ident(7), "four", now);
        let six = Ident {
            is_v6: true,
            ..ident(7)
        };
        assert_eq!(idents.find(six, now), None);
        idents.enter(six, "six", now);
        assert_eq!(idents.find(ident(7), now), Some(&"four"));
        assert_eq!(idents.find(six, now), Some(&"six"));
    }

    #[test]
    fn the_idle_go_first_and_then_the_oldest() {
        let (mut idents, start) = (Idents::new(2, IDLE), Instant::now());
        idents.enter(ident(1), (), start);
        idents.enter(ident(2), (), start + IDLE);
        assert_eq!(idents.find(ident(1), start), None, "idle");
        idents.enter(ident(3), (), start + IDLE);
        assert!(idents.find(ident(2), start + IDLE * 3 / 2).is_some());
        idents.enter(ident(4), (), start + IDLE * 7 / 4);
        assert_eq!(idents.find(ident(3), start + IDLE), None, "the oldest");
        assert_eq!(idents.iter().count(), 2);
    }

    proptest! {
        #[test]
        fn however_many_come_the_bound_holds_and_the_last_is_there(numbers in prop::collection::vec(any::<u16>(), 1..200), bound in 1_usize..20) {
            let (mut idents, now) = (Idents::new(bound, IDLE), Instant::now());
            for number in numbers {
                if idents.find(ident(number), now).is_none() {
                    idents.enter(ident(number), number, now);
                }
                prop_assert_eq!(idents.find(ident(number), now), Some(&number));
                prop_assert!(idents.iter().count() <= bound);
            }
        }
    }
}
