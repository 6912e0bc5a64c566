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
        system::hold_receive_offload();
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // One peer, hence one address of ours: each packet would cost the kernel the naming of it.
        system::omit_destinations(&socket, peer.is_ipv4())?;
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

    /// Receives what is there, as much as one call brings, and hands it on: in order, for each run of payloads of one size its bytes, and
    /// how the network marked them. Programs that send little send their datagrams one by one, and each would cost a call of its own.
    ///
    /// # Errors
    /// As [`Datagrams::poll_recv`] has them; nothing is handed on then.
    pub fn poll_recv_runs(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut ReceiveBuffer,
        mut each: impl FnMut(&mut [u8], Received, Option<Ecn>),
    ) -> Poll<Result<(), Error>> {
        self.poll_receive(cx, || {
            self.receiving
                .try_recv_runs(&self.state, buffer, &mut each)
                .map(Some)
        })
    }

    /// Tries until something has arrived that is wanted.
    fn poll_receive<T>(
        &self,
        cx: &mut Context<'_>,
        mut try_receive: impl FnMut() -> io::Result<Option<T>>,
    ) -> Poll<Result<T, Error>> {
        loop {
            if self.refused.swap(false, Ordering::AcqRel) {
                return Poll::Ready(Err(refused()));
            }
            match try_receive() {
                Ok(Some(received)) => return Poll::Ready(Ok(received)),
                Ok(None) => {}
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
        self.poll_receive(cx, || {
            let arrived = self.receiving.try_recv(&self.state, buf)?;
            self.count_dropped(arrived.dropped);
            Ok(arrived.received.map(|received| (received, arrived.ecn)))
        })
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

/// Room for what one call brings, however many payloads that are. What a thread receives and passes on at once needs one.
pub struct ReceiveBuffer(Box<[u8]>);

/// The most that one call may bring, in messages: payloads, or runs of them that the kernel has joined.
const MOST_MESSAGES: usize = quinn_udp::BATCH_SIZE;

impl Default for ReceiveBuffer {
    /// Some 2 MiB, of which the system gives what is used: a page for each small payload.
    fn default() -> Self {
        Self(vec![0; MOST_MESSAGES * MAX_RECEIVE].into())
    }
}

impl fmt::Debug for ReceiveBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReceiveBuffer")
    }
}

/// Where in a buffer payloads of one size lie behind each other; all but the last have that size.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: usize,
    received: Received,
    ecn: Option<Ecn>,
}

impl Run {
    fn of(at: usize, meta: &RecvMeta) -> Self {
        let received = Received {
            len: meta.len,
            segment: meta.stride.max(1),
        };
        Self {
            at,
            received,
            ecn: meta.ecn,
        }
    }

    /// Whether what `next` holds may follow, so that this stays what a run is.
    fn takes(&self, next: &Self) -> bool {
        let Received { len, segment } = self.received;
        let is_whole = len > 0 && next.received.len > 0 && len.is_multiple_of(segment);
        let is_one = next.received.len == next.received.segment;
        let is_alike = next.received.segment == segment || (is_one && next.received.len <= segment);
        is_whole && is_alike && next.ecn == self.ecn && len + next.received.len <= MAX_RECEIVE
    }

    fn append(&mut self, next: &Self, buffer: &mut [u8]) {
        let from = next.at..next.at + next.received.len;
        buffer.copy_within(from, self.at + self.received.len);
        self.received.len += next.received.len;
    }
}

/// Joins what lies in slots of [`MAX_RECEIVE`] bytes into runs, and hands each of them on.
fn hand_on(
    buffer: &mut [u8],
    metas: &[RecvMeta],
    mut each: impl FnMut(&mut [u8], Received, Option<Ecn>),
) {
    let mut slots = metas
        .iter()
        .enumerate()
        .map(|(slot, meta)| Run::of(slot * MAX_RECEIVE, meta));
    let mut hand = |buffer: &mut [u8], run: Run| {
        let bytes = buffer.get_mut(run.at..run.at + run.received.len);
        each(bytes.unwrap_or_default(), run.received, run.ecn);
    };
    let Some(mut run) = slots.next() else {
        return;
    };
    for next in slots {
        if run.takes(&next) {
            run.append(&next, buffer);
        } else {
            hand(buffer, std::mem::replace(&mut run, next));
        }
    }
    hand(buffer, run);
}

#[derive(Default)]
struct Between {
    /// How many messages the call before brought, and so how many the next one asks for; 0: they come joined, and one is a batch.
    messages: usize,
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

    fn try_recv_runs(
        &self,
        state: &UdpSocketState,
        ReceiveBuffer(buffer): &mut ReceiveBuffer,
        mut each: impl FnMut(&mut [u8], Received, Option<Ecn>),
    ) -> io::Result<()> {
        let mut between = self.between.lock();
        if let Some((taken, ecn)) = between.take_rest(buffer) {
            drop(between);
            if let Some(received) = taken.received {
                each(
                    buffer.get_mut(..received.len).unwrap_or_default(),
                    received,
                    ecn,
                );
            }
            return Ok(());
        }
        let mut metas = [RecvMeta::default(); MOST_MESSAGES];
        let asked = between.ask();
        let got = self.recv_many(state, buffer, metas.get_mut(..asked).unwrap_or_default())?;
        let metas = metas.get(..got).unwrap_or_default();
        between.learn(metas);
        drop(between);
        hand_on(buffer, metas, each);
        Ok(())
    }

    /// Receives at most as many messages as `metas` has places for, each into a slot of its own. Fewer say that nothing is left: the socket
    /// is not asked again before something arrives.
    fn recv_many(
        &self,
        state: &UdpSocketState,
        buffer: &mut [u8],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        let mut got = 0;
        let asked = self.socket.try_io(Interest::READABLE, || {
            let mut slots = buffer.chunks_exact_mut(MAX_RECEIVE);
            let mut bufs: [IoSliceMut<'_>; MOST_MESSAGES] =
                std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
            let bufs = bufs.get_mut(..metas.len()).unwrap_or_default();
            got = state.recv(UdpSockRef::from(&*self.socket), bufs, metas)?;
            if got < metas.len() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        match asked {
            Err(error) if got == 0 => Err(error),
            _ => Ok(got),
        }
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
    /// How many messages to ask for: more than there were, so that one call tells, too, that none is left.
    fn ask(&self) -> usize {
        (2 * self.messages).clamp(1, MOST_MESSAGES)
    }

    fn learn(&mut self, metas: &[RecvMeta]) {
        let is_joined = |meta: &RecvMeta| meta.len > meta.stride;
        self.messages = if metas.iter().any(is_joined) {
            0
        } else {
            metas.len()
        };
    }

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

    /// A message as the kernel describes it: `count` payloads of `segment` bytes, the last of `last`.
    fn message((count, segment, last): (usize, usize, usize), ecn: Option<Ecn>) -> RecvMeta {
        let mut meta = RecvMeta::default();
        meta.len = (count - 1) * segment + last.min(segment);
        meta.stride = if count == 1 { meta.len } else { segment };
        meta.ecn = ecn;
        meta
    }

    proptest! {
        #[test]
        fn runs_hold_every_payload_in_order_with_its_mark(
            messages in proptest::collection::vec((1usize..5, 1usize..9, 0usize..9, any::<bool>()), 1..MOST_MESSAGES)
        ) {
            let ReceiveBuffer(mut buffer) = ReceiveBuffer::default();
            let (mut metas, mut sent, mut number) = (Vec::new(), Vec::new(), 0u8);
            for (slot, (count, segment, last, marked)) in messages.into_iter().enumerate() {
                let last = if count == 1 { last } else { last.max(1) };
                let meta = message((count, segment, last), marked.then_some(Ecn::Ce));
                let bytes = &mut buffer[slot * MAX_RECEIVE..][..meta.len];
                for payload in bytes.chunks_mut(meta.stride.max(1)) {
                    number += 1;
                    payload.fill(number);
                    sent.push((payload.to_vec(), meta.ecn));
                }
                if meta.len == 0 {
                    sent.push((Vec::new(), meta.ecn));
                }
                metas.push(meta);
            }
            let mut got = Vec::new();
            hand_on(&mut buffer, &metas, |contents, received, ecn| {
                assert_eq!(contents.len(), received.len);
                let batch = Batch { contents, segment: received.segment };
                got.extend(batch.payloads().map(|payload| (payload.to_vec(), ecn)));
            });
            prop_assert_eq!(got, sent);
        }

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
