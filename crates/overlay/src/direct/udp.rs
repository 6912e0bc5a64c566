//! UDP by the device's own sockets: a connected socket, batches out by UDP_SEGMENT, batches in by UDP_GRO, never fragmented.
//! Used by [`super::Direct`], by `link` for the first hop and by the relay's egress.

mod marked;
mod receive;

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_util::task::AtomicWaker;
pub use quinn_udp::EcnCodepoint as Ecn;
use quinn_udp::{Transmit, UdpSockRef, UdpSocketState};
use rustix::{io::Errno, net::sockopt};
use socket2::{Domain, Socket, Type};
use tokio::{io::Interest, net::UdpSocket};

use self::receive::Receiving;
use super::{
    failure,
    rights::{self, TUNNEL_BUFFER},
};
use crate::{Batch, Datagrams, Error, ErrorKind, Reason, Received};

/// The largest UDP payload over IPv4, hence the largest batch that one call may hold, in octets.
const LARGEST_BATCH: usize = 65_507;

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
    /// The largest payload that is sent, in octets; `None`: what an Ethernet frame carries, 1472 by IPv4 and 1452 by IPv6.
    /// The interface's own MTU is never exceeded.
    pub max_payload: Option<usize>,
    /// The mark of its packets, for the system's routing rules and filters. Setting one needs CAP_NET_ADMIN.
    pub mark: Option<u32>,
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
    open(address, settings).map_err(|error| failure::of_socket(error, "opening a UDP flow"))
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
            Err(error) => failure = Some(failure::more_telling(failure, error)),
        }
    }
    Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Bug, "opening a UDP flow to no address")))
}

fn open(address: SocketAddr, settings: &UdpSettings) -> io::Result<UdpFlow> {
    let socket = connected(address, settings.mark)?;
    if settings.buffers == SocketBuffers::Tunnel {
        enlarge_buffers(&socket);
    }
    UdpFlow::adopt(socket.into(), address, settings)
}

/// A UDP socket that talks to `peer` only. Nothing is sent. The mark comes first: it has a part in choosing our own address.
fn connected(peer: SocketAddr, mark: Option<u32>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, None)?;
    if let Some(mark) = mark {
        rights::mark(&socket, mark)?;
    }
    socket.set_nonblocking(true)?;
    socket.connect(&peer.into())?;
    Ok(socket)
}

/// Gives a socket as much buffer as the system grants, up to 8 MiB in each direction. Also for listening sockets.
pub fn enlarge_buffers(socket: &impl std::os::fd::AsFd) {
    if rights::enlarge(socket).is_ok() {
        return;
    }
    let asked = sockopt::set_socket_recv_buffer_size(socket, TUNNEL_BUFFER)
        .and_then(|()| sockopt::set_socket_send_buffer_size(socket, TUNNEL_BUFFER));
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

    #[cfg(test)]
    pub(super) fn mark(&self) -> u32 {
        socket2::SockRef::from(&*self.socket)
            .mark()
            .expect("a mark")
    }

    /// How much the kernel queues of what arrives, in octets.
    #[cfg(test)]
    pub(super) fn receive_buffer(&self) -> usize {
        sockopt::socket_recv_buffer_size(&*self.socket).expect("a size")
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
        let mtu = match self.peer {
            SocketAddr::V4(_) => sockopt::ip_mtu(&*self.socket),
            SocketAddr::V6(_) => sockopt::ipv6_mtu(&*self.socket),
        };
        let Some(mtu) = mtu.ok().and_then(|mtu| usize::try_from(mtu).ok()) else {
            return;
        };
        let carried = mtu.saturating_sub(headers(self.peer)).min(LARGEST_BATCH);
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
                Some(Errno::IO | Errno::INVAL) if chunk.len() > segment => {
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

    /// The slow road of a batch with payloads above the maximum: those that fit go one by one.
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
    fn moved(&self) -> bool {
        let now = source_towards(self.peer, self.mark);
        let then = self.local_addr();
        matches!((now, then), (Ok(now), Ok(then)) if now != then.ip())
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
}

/// The address that the system would use towards `peer` now. Nothing is sent.
fn source_towards(peer: SocketAddr, mark: Option<u32>) -> io::Result<IpAddr> {
    let local = connected(peer, mark)?.local_addr()?.as_socket();
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

/// The octets of the IP and UDP headers.
fn headers(peer: SocketAddr) -> usize {
    if peer.is_ipv4() { 28 } else { 48 }
}

fn refused() -> Error {
    Error::new(ErrorKind::TargetFailed, "receiving").because(Reason::Refused)
}

fn flow_failed(error: io::Error) -> Error {
    failure::of_socket(error, "receiving")
}

fn stopped(error: io::Error) -> Error {
    Error::new(ErrorKind::Bug, "waiting for a socket").caused_by(error)
}
