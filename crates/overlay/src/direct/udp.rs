//! UDP by the device's own sockets: a connected socket, batches out by UDP_SEGMENT, batches in by UDP_GRO, never fragmented.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::{
    io::{Interest, Ready},
    net::UdpSocket,
};

use super::{
    more_telling,
    rights::{self, TUNNEL_BUFFER},
    socket_error,
    system::{self, AsSocket},
    tcp::bind_source,
};
use crate::{Batch, Datagrams, Ecn, Error, ErrorKind, Reason, Received};

/// The largest UDP payload over IPv4, hence the largest batch that one call may hold, in bytes.
const MAX_BATCH: usize = 65_507;

/// What the system says of a batch that the interface cannot cut up.
#[cfg(unix)]
const IMPOSSIBLE: &[Errno] = &[Errno::IO, Errno::INVAL];
#[cfg(windows)]
const IMPOSSIBLE: &[Errno] = &[Errno::INVAL];

/// What the payloads of a batch have in common.
#[derive(Clone, Copy)]
struct Form {
    /// The size of all but the last, which may be shorter.
    segment: usize,
    ecn: Option<Ecn>,
}

/// How a UDP socket is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpSettings {
    /// How much the kernel may queue.
    pub buffers: SocketBuffers,
    /// The largest payload that is sent, in bytes; `None`: what an Ethernet frame carries, 1472 by IPv4 and 1452 by IPv6.
    /// The interface's own MTU is never exceeded.
    pub max_payload: Option<usize>,
    /// The mark of its packets, for the system's routing rules and filters. Setting one needs CAP_NET_ADMIN.
    pub mark: Option<u32>,
    /// Our own end of it; `None`: whichever address the system takes.
    pub source: Option<IpAddr>,
}

/// How much the kernel may queue for one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketBuffers {
    /// The system's default: for the thousands of flows to targets.
    #[default]
    Ordinary,
    /// As much as the system grants, up to 8 MiB: for the few sockets that carry tunnels.
    Tunnel,
}

/// A connected UDP socket.
pub struct UdpFlow {
    socket: Arc<UdpSocket>,
    state: UdpSocketState,
    peer: SocketAddr,
    mark: Option<u32>,
    /// Whether our own end is of the caller's choice.
    bound: bool,
    /// What the settings allow.
    ceiling: usize,
    max_payload: AtomicUsize,
    receiving: Receiving,
    /// A send call was told of the refusal that the receiving side has to report.
    refused: AtomicBool,
    receiver: AtomicWaker,
    dropped: AtomicU64,
}

/// Opens a flow to `address`.
///
/// # Errors
/// The system has no route, no port or no descriptor left.
pub fn connect_udp(address: SocketAddr, settings: &UdpSettings) -> Result<UdpFlow, Error> {
    open(address, settings).map_err(|error| socket_error(error, "opening a UDP flow"))
}

/// Opens a flow to the first of `addresses` that has a route.
pub(super) fn connect_first(
    addresses: &[SocketAddr],
    settings: &UdpSettings,
) -> Result<UdpFlow, Error> {
    let mut failure = None;
    for address in addresses {
        match connect_udp(*address, settings) {
            Ok(flow) => return Ok(flow),
            Err(error) => failure = Some(more_telling(failure, error)),
        }
    }
    Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Bug, "opening a UDP flow to no address")))
}

fn open(address: SocketAddr, settings: &UdpSettings) -> io::Result<UdpFlow> {
    let socket = connected(address, settings.mark, settings.source)?;
    if settings.buffers == SocketBuffers::Tunnel {
        enlarge_buffers(&socket);
    }
    UdpFlow::adopt(socket.into(), address, settings)
}

/// Whether the system knows a way to `address`. Nothing is sent.
pub(super) fn has_route(address: SocketAddr, settings: &UdpSettings) -> bool {
    let tried = connected(address, settings.mark, settings.source);
    let errno = tried.err().and_then(|error| Errno::from_io_error(&error));
    !matches!(errno, Some(Errno::NETUNREACH | Errno::HOSTUNREACH))
}

/// A UDP socket that talks to `peer` only. Nothing is sent. The mark comes first: it has a part in choosing our own address.
fn connected(peer: SocketAddr, mark: Option<u32>, source: Option<IpAddr>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, None)?;
    if let Some(mark) = mark {
        rights::mark(&socket, mark)?;
    }
    if let Some(source) = source {
        bind_source(&socket, source)?;
    }
    socket.set_nonblocking(true)?;
    socket.connect(&peer.into())?;
    Ok(socket)
}

/// Gives a socket as much buffer as the system grants, up to 8 MiB in each direction. Also for listening sockets.
pub fn enlarge_buffers(socket: &impl AsSocket) {
    if rights::enlarge(socket).is_ok() {
        return;
    }
    let socket = SockRef::from(socket);
    let asked = socket
        .set_recv_buffer_size(TUNNEL_BUFFER)
        .and_then(|()| socket.set_send_buffer_size(TUNNEL_BUFFER));
    if let Err(error) = asked {
        tracing::debug!(%error, "the socket keeps its small buffers");
    }
}

impl UdpFlow {
    /// Takes over a socket that is connected to `peer`.
    pub(super) fn adopt(
        socket: std::net::UdpSocket,
        peer: SocketAddr,
        settings: &UdpSettings,
    ) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        let ceiling = settings.max_payload.unwrap_or_else(|| 1500 - headers(peer));
        let flow = Self {
            receiving: Receiving::new(Arc::clone(&socket)),
            socket,
            state,
            peer,
            mark: settings.mark,
            bound: settings.source.is_some(),
            ceiling,
            max_payload: AtomicUsize::new(ceiling),
            refused: AtomicBool::new(false),
            receiver: AtomicWaker::new(),
            dropped: AtomicU64::new(0),
        };
        flow.learn_max_payload();
        Ok(flow)
    }

    /// Our own end; it changes when the device moves to another network.
    ///
    /// # Errors
    /// The operating system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    #[cfg(test)]
    pub(super) fn mark(&self) -> u32 {
        SockRef::from(&*self.socket).mark().expect("a mark")
    }

    /// How much the kernel queues of what arrives, in bytes.
    #[cfg(test)]
    pub(super) fn receive_buffer(&self) -> usize {
        SockRef::from(&*self.socket)
            .recv_buffer_size()
            .expect("a size")
    }

    /// It carries a tunnel, as it turns out: from now on the kernel may queue as much as for [`SocketBuffers::Tunnel`].
    pub fn enlarge_buffers(&self) {
        enlarge_buffers(&*self.socket);
    }

    /// Waits until the socket is known to take payloads: a fresh one is not, and would make the first payload wait.
    ///
    /// # Errors
    /// The runtime is stopping.
    pub async fn writable(&self) -> Result<(), Error> {
        self.socket.writable().await.map_err(stopped)
    }

    /// How many payloads were dropped, in either direction, because they did not fit or the kernel would not take them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Asks the kernel what this route carries.
    fn learn_max_payload(&self) {
        let mtu = system::path_mtu(&*self.socket, self.peer.is_ipv4());
        let Some(mtu) = mtu.and_then(|mtu| usize::try_from(mtu).ok()) else {
            return;
        };
        let carried = mtu.saturating_sub(headers(self.peer)).min(MAX_BATCH);
        self.max_payload
            .store(carried.min(self.ceiling), Ordering::Relaxed);
    }

    fn count_dropped(&self, payloads: usize) {
        let payloads = u64::try_from(payloads).unwrap_or(u64::MAX);
        self.dropped.fetch_add(payloads, Ordering::Relaxed);
    }

    /// Sends what one call can hold. Ready says that it is gone or lost, pending that the kernel's queue is full.
    fn poll_send_chunk(
        &self,
        cx: &mut Context<'_>,
        chunk: &[u8],
        form: Form,
    ) -> Poll<Result<(), Error>> {
        let segment = form.segment;
        let mut told = false;
        loop {
            let Err(error) = self.try_send(chunk, form) else {
                return Poll::Ready(Ok(()));
            };
            if error.kind() == io::ErrorKind::WouldBlock {
                ready!(self.socket.poll_send_ready(cx)).map_err(stopped)?;
                continue;
            }
            match Errno::from_io_error(&error) {
                Some(Errno::CONNREFUSED) if !told => {
                    told = true;
                    self.refused.store(true, Ordering::Release);
                    self.receiver.wake();
                }
                Some(errno) if IMPOSSIBLE.contains(&errno) && chunk.len() > segment => {
                    self.send_singly(chunk, form);
                    return Poll::Ready(Ok(()));
                }
                _ => {
                    self.lost(&error, chunk.len().div_ceil(segment));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    fn try_send(&self, chunk: &[u8], form: Form) -> io::Result<()> {
        let Form { segment, ecn } = form;
        if chunk.len() <= segment && ecn.is_none() {
            return self.socket.try_send(chunk).map(drop);
        }
        let transmit = Transmit {
            destination: self.peer,
            ecn,
            contents: chunk,
            segment_size: (chunk.len() > segment).then_some(segment),
            src_ip: None,
        };
        self.socket.try_io(Interest::WRITABLE, || {
            self.state
                .try_send(UdpSockRef::from(&*self.socket), &transmit)
        })
    }

    /// For a driver that takes no UDP_SEGMENT. A full queue loses the rest, as a network would.
    fn send_singly(&self, chunk: &[u8], form: Form) {
        for payload in chunk.chunks(form.segment) {
            if let Err(error) = self.try_send(payload, form) {
                self.lost(&error, 1);
            }
        }
    }

    /// UDP may lose: no error of one send ends the flow. Whoever is above notices when nothing arrives any more.
    fn lost(&self, error: &io::Error, payloads: usize) {
        tracing::trace!(%error, payloads, "datagrams were not sent");
        self.count_dropped(payloads);
        if Errno::from_io_error(error) == Some(Errno::MSGSIZE) {
            self.learn_max_payload();
        }
    }

    /// The slow path of a batch with payloads above the maximum: those that fit go one by one.
    fn poll_send_fitting(
        &self,
        cx: &mut Context<'_>,
        batch: Batch<'_>,
        ecn: Option<Ecn>,
    ) -> Poll<Result<(), Error>> {
        let max = self.max_payload();
        let form = Form { segment: max, ecn };
        let fits = |payload: &&[u8]| payload.len() <= max;
        ready!(self.poll_send_all(cx, batch.payloads().filter(fits), form))?;
        self.count_dropped(batch.payloads().filter(|payload| !fits(payload)).count());
        Poll::Ready(Ok(()))
    }

    /// Pending only before the first chunk is out: the rest of a batch that meets a full queue is lost.
    fn poll_send_all<'a>(
        &self,
        cx: &mut Context<'_>,
        chunks: impl Iterator<Item = &'a [u8]>,
        form: Form,
    ) -> Poll<Result<(), Error>> {
        let mut started = false;
        for chunk in chunks {
            match self.poll_send_chunk(cx, chunk, form) {
                Poll::Ready(done) => done?,
                Poll::Pending if !started => return Poll::Pending,
                Poll::Pending => self.count_dropped(chunk.len().div_ceil(form.segment)),
            }
            started = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl Datagrams for UdpFlow {
    /// The way that is gone altogether counts: another address of the same name may be in reach, as by the other version of IP.
    fn moved(&self) -> bool {
        let Ok(then) = self.local_addr() else {
            return false;
        };
        !self.bound
            && match source_towards(self.peer, self.mark) {
                Ok(now) => now != then.ip(),
                Err(error) => is_out_of_reach(&error),
            }
    }

    fn max_payload(&self) -> usize {
        self.max_payload.load(Ordering::Relaxed)
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        self.poll_send_marked(cx, batch, None)
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        self.poll_recv_marked(cx, buf)
            .map_ok(|(received, _)| received)
    }

    fn poll_send_marked(
        &self,
        cx: &mut Context<'_>,
        batch: Batch<'_>,
        ecn: Option<Ecn>,
    ) -> Poll<Result<(), Error>> {
        let segment = batch.segment.max(1);
        let form = Form { segment, ecn };
        if batch.contents.len() <= segment && batch.contents.len() <= self.max_payload() {
            return self.poll_send_chunk(cx, batch.contents, form);
        }
        if segment > self.max_payload() {
            return self.poll_send_fitting(cx, batch, ecn);
        }
        let per_call = (MAX_BATCH / segment).clamp(1, self.state.max_gso_segments().max(1));
        self.poll_send_all(cx, batch.contents.chunks(per_call * segment), form)
    }

    fn poll_recv_marked(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<(Received, Option<Ecn>), Error>> {
        loop {
            if self.refused.swap(false, Ordering::AcqRel) {
                return Poll::Ready(Err(refused()));
            }
            match self.receiving.try_recv(&self.state, buf) {
                Ok(arrived) => {
                    self.count_dropped(arrived.dropped);
                    if let Some(received) = arrived.received {
                        return Poll::Ready(Ok((received, arrived.ecn)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.receiver.register(cx.waker());
                    if !self.refused.load(Ordering::Acquire) {
                        ready!(self.receiving.poll_ready(cx)).map_err(flow_failed)?;
                    }
                }
                Err(error) => return Poll::Ready(Err(flow_failed(error))),
            }
        }
    }
}

fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::AddrNotAvailable
    )
}

/// The address that the system would use towards `peer` now. Nothing is sent.
fn source_towards(peer: SocketAddr, mark: Option<u32>) -> io::Result<IpAddr> {
    let local = connected(peer, mark, None)?.local_addr()?.as_socket();
    local
        .map(|local| local.ip())
        .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

impl fmt::Debug for UdpFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpFlow")
            .field("max_payload", &self.max_payload)
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

/// The bytes of the IP and UDP headers.
fn headers(peer: SocketAddr) -> usize {
    if peer.is_ipv4() { 28 } else { 48 }
}

fn refused() -> Error {
    Error::new(ErrorKind::TargetFailed, "receiving").because(Reason::Refused)
}

fn flow_failed(error: io::Error) -> Error {
    socket_error(error, "receiving")
}

fn stopped(error: io::Error) -> Error {
    Error::new(ErrorKind::Bug, "waiting for a socket").caused_by(error)
}

// The receiving half of a UDP socket: coalesced datagrams in, an ICMP refusal noticed at once.

/// What one call can bring at most, in bytes. A buffer of this size never cuts a datagram.
const MAX_RECEIVE: usize = 65_535;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_RECEIVE].into());
}

type Readiness = Pin<Box<dyn Future<Output = io::Result<Ready>> + Send>>;

/// What the receiving task needs between two calls.
struct Receiving {
    socket: Arc<UdpSocket>,
    between: Mutex<Between>,
}

#[derive(Default)]
struct Between {
    /// What came coalesced and did not fit the caller's buffer; at most 64 KiB.
    rest: Option<Box<Rest>>,
    /// Waits for an ICMP error: epoll reports it as an error alone, for which tokio wakes no reader.
    errors: Option<Readiness>,
}

struct Rest {
    data: Vec<u8>,
    at: usize,
    segment: usize,
    ecn: Option<Ecn>,
}

/// What was taken of some coalesced payloads.
struct Taken {
    received: Option<Received>,
    bytes: usize,
    dropped: usize,
}

/// What arrived.
#[derive(Debug, Default)]
struct Arrived {
    /// What of it fits the caller's buffer.
    received: Option<Received>,
    /// How the network marked it.
    ecn: Option<Ecn>,
    /// How many payloads were too large.
    dropped: usize,
}

impl Arrived {
    fn new(taken: &Taken, ecn: Option<Ecn>) -> Self {
        Self {
            received: taken.received,
            ecn,
            dropped: taken.dropped,
        }
    }
}

impl Receiving {
    fn new(socket: Arc<UdpSocket>) -> Self {
        Self {
            socket,
            between: Mutex::default(),
        }
    }

    /// What arrived, if any of it fits `buf`.
    fn try_recv(&self, state: &UdpSocketState, buf: &mut [u8]) -> io::Result<Arrived> {
        let mut between = self.between.lock();
        if let Some((taken, ecn)) = between.take_rest(buf) {
            return Ok(Arrived::new(&taken, ecn));
        }
        if buf.len() >= MAX_RECEIVE {
            let (received, ecn) = self.recv_whole(state, buf)?;
            return Ok(Arrived {
                received: Some(received),
                ecn,
                dropped: 0,
            });
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let (Received { len, segment }, ecn) = self.recv_whole(state, scratch)?;
            let data = scratch.get(..len).unwrap_or_default();
            let taken = take(data, segment, buf);
            between.keep(data, taken.bytes, segment, ecn);
            Ok(Arrived::new(&taken, ecn))
        })
    }

    fn recv_whole(
        &self,
        state: &UdpSocketState,
        buf: &mut [u8],
    ) -> io::Result<(Received, Option<Ecn>)> {
        let mut meta = [RecvMeta::default()];
        self.socket.try_io(Interest::READABLE, || {
            let mut bufs = [IoSliceMut::new(buf)];
            state.recv(UdpSockRef::from(&*self.socket), &mut bufs, &mut meta)
        })?;
        let [meta] = meta;
        let received = Received {
            len: meta.len,
            segment: meta.stride.max(1),
        };
        Ok((received, meta.ecn))
    }

    /// Waits for a datagram. An ICMP error that comes instead is returned once.
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut between = self.between.lock();
            let errors = between.errors.get_or_insert_with(|| self.watch_errors());
            if errors.as_mut().poll(cx).is_pending() {
                break;
            }
            between.errors = None;
            if let Some(error) = self.take_error()? {
                return Poll::Ready(Err(error));
            }
        }
        self.socket.poll_recv_ready(cx)
    }

    fn watch_errors(&self) -> Readiness {
        let socket = Arc::clone(&self.socket);
        Box::pin(async move { socket.ready(Interest::ERROR).await })
    }

    fn take_error(&self) -> io::Result<Option<io::Error>> {
        let take = || {
            let error = self.socket.take_error()?;
            error.ok_or_else(|| io::ErrorKind::WouldBlock.into())
        };
        match self.socket.try_io(Interest::ERROR, take) {
            Ok(error) => Ok(Some(error)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Between {
    fn take_rest(&mut self, buf: &mut [u8]) -> Option<(Taken, Option<Ecn>)> {
        let rest = self.rest.as_mut()?;
        let ecn = rest.ecn;
        let taken = take(
            rest.data.get(rest.at..).unwrap_or_default(),
            rest.segment,
            buf,
        );
        rest.at += taken.bytes;
        if rest.at >= rest.data.len() {
            self.rest = None;
        }
        Some((taken, ecn))
    }

    fn keep(&mut self, data: &[u8], taken: usize, segment: usize, ecn: Option<Ecn>) {
        if let Some(rest) = data.get(taken..).filter(|rest| !rest.is_empty()) {
            self.rest = Some(Box::new(Rest {
                data: rest.to_vec(),
                at: 0,
                segment,
                ecn,
            }));
        }
    }
}

/// Copies as many whole payloads as fit; those larger than `buf` are passed over.
fn take(data: &[u8], segment: usize, buf: &mut [u8]) -> Taken {
    let mut passed = 0;
    let mut dropped = 0;
    let too_large = |left: &[u8]| left.len().min(segment) > buf.len();
    while let Some(left) = data.get(passed..).filter(|left| too_large(left)) {
        passed += left.len().min(segment);
        dropped += 1;
    }
    let left = data.get(passed..).unwrap_or_default();
    let whole = if left.len() <= buf.len() {
        left.len()
    } else {
        buf.len() / segment * segment
    };
    let gone = dropped > 0 && left.is_empty();
    if let (Some(from), Some(to)) = (left.get(..whole), buf.get_mut(..whole)) {
        to.copy_from_slice(from);
    }
    Taken {
        received: (!gone).then_some(Received {
            len: whole,
            segment,
        }),
        bytes: passed + whole,
        dropped,
    }
}

impl fmt::Debug for Receiving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiving")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_small_buffer_gets_whole_payloads_in_order() {
        let mut buf = [0; 25];
        let taken = take(&[7; 95], 10, &mut buf);
        let received = taken.received.expect("something fits");
        assert_eq!((received.len, received.segment, taken.bytes), (20, 10, 20));
    }

    #[test]
    fn payloads_larger_than_the_buffer_are_dropped_but_a_short_last_one_is_not() {
        let mut buf = [0; 5];
        let taken = take(&[7; 24], 10, &mut buf);
        let received = taken.received.expect("the last one fits");
        assert_eq!((received.len, taken.bytes, taken.dropped), (4, 24, 2));
        let taken = take(&[7; 20], 10, &mut buf);
        assert!(taken.received.is_none() && taken.dropped == 2 && taken.bytes == 20);
    }

    #[test]
    fn an_empty_datagram_is_received_as_such() {
        let taken = take(&[], 1, &mut [0; 5]);
        assert_eq!(taken.received.map(|r| r.len), Some(0));
        assert_eq!(taken.dropped, 0);
    }

    proptest! {
        #[test]
        fn every_payload_is_taken_whole_or_dropped_whole(
            count in 1usize..20, segment in 1usize..50, last in 1usize..50, room in 1usize..200
        ) {
            let len = (count - 1) * segment + last.min(segment);
            let data: Vec<u8> = (0..=u8::MAX).cycle().take(len).collect();
            let (mut at, mut dropped, mut whole) = (0, 0, 0);
            while at < len {
                let mut buf = vec![0; room];
                let taken = take(&data[at..], segment, &mut buf);
                at += taken.bytes;
                dropped += taken.dropped;
                if let Some(got) = taken.received {
                    prop_assert_eq!(&buf[..got.len], &data[at - got.len..at]);
                    prop_assert!(at == len || got.len % segment == 0);
                    whole += got.len.div_ceil(segment);
                }
            }
            prop_assert_eq!((at, whole + dropped), (len, count));
        }
    }
}
