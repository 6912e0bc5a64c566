//! The serving end of a hop: one port, UDP for QUIC and TCP for TLS, shared by shards that each run on a core of their own.
//! A relay calls [`bind`] once and [`BoundShard::activate`] in the runtime of each shard.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::Arc,
};

use hoplite_quic::{
    Endpoint, Hooks, TransportConfig,
    server::{Acceptor, Forwarder, MOST_SHARDS, Secrets, ShardEndpoint, ShardPlace, steer},
};
use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

#[cfg(test)]
mod tests;

/// The sockets of all shards, bound to one port. Packets already queue in the kernel.
#[derive(Debug)]
pub struct Bound {
    address: SocketAddr,
    shards: Vec<BoundShard>,
}

/// The sockets of one shard, on their way to its thread.
#[derive(Debug)]
pub struct BoundShard {
    place: ShardPlace,
    udp: UdpSocket,
    tcp: std::net::TcpListener,
}

/// A shard that serves.
#[derive(Debug)]
pub struct Shard {
    /// Accepts the QUIC connections of this shard. Its `set_server_config` replaces the keys of connections to come.
    pub endpoint: Endpoint,
    /// Gives each of them what steers it.
    pub acceptor: Acceptor,
    /// Accepts the TCP connections of this shard; they have no delay (TCP_NODELAY).
    pub tcp: TcpListener,
    /// Which shard this is, from 0.
    pub index: usize,
    /// Forwards packets past QUIC, through the same UDP socket.
    pub forwarder: Forwarder,
}

impl Bound {
    /// Where the shards listen: the address that was asked for, with the port that was found.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The sockets, to be handed to the shards' threads. As long as one shard is not activated, connections that are steered to it wait.
    #[must_use]
    pub fn into_shards(self) -> Vec<BoundShard> {
        self.shards
    }
}

impl BoundShard {
    /// Which shard this is, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.place.index()
    }

    /// Starts to serve, inside the shard's own current-thread runtime. `tls` names the ALPN protocols and speaks TLS 1.3.
    ///
    /// # Errors
    /// `tls` cannot be used with QUIC, or the system refuses.
    pub fn activate(
        self,
        tls: Arc<rustls::ServerConfig>,
        transport: Arc<TransportConfig>,
        secrets: &Secrets,
        hooks: &Hooks,
    ) -> io::Result<Shard> {
        let ShardEndpoint {
            endpoint,
            acceptor,
            forwarder,
        } = ShardEndpoint::new(self.udp, self.place, tls, transport, secrets, hooks)?;
        Ok(Shard {
            endpoint,
            acceptor,
            tcp: TcpListener::from_std(self.tcp)?,
            index: self.place.index(),
            forwarder,
        })
    }
}

// Opens the listening sockets of all shards on one port: socket(7) SO_REUSEPORT.

/// How many TCP connections of one shard may wait to be accepted.
const BACKLOG: i32 = 1024;

/// How often a port that the system chose for UDP may be taken for TCP before we give up.
const MAX_ATTEMPTS: usize = 32;

/// Binds `shards` UDP sockets and as many TCP listeners to the address, all on the same port; port 0 lets the system choose it.
/// `[::]` serves IPv4 as well. Each UDP socket asks for buffers of `buffers` bytes in each direction (8 MiB is good).
///
/// # Errors
/// There is no room (permission, the port is taken by any other process), or `shards` is not 1 to [`MOST_SHARDS`].
pub fn bind(listen: SocketAddr, shards: usize, buffers: usize) -> io::Result<Bound> {
    if !(1..=MOST_SHARDS).contains(&shards) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "there are 1 to 256 shards",
        ));
    }
    let mut attempt = 1;
    loop {
        match bind_all(listen, shards, buffers) {
            Err(error) if retry(&error, listen) && attempt < MAX_ATTEMPTS => attempt += 1,
            other => return other,
        }
    }
}

fn retry(error: &io::Error, listen: SocketAddr) -> bool {
    listen.port() == 0 && error.kind() == io::ErrorKind::AddrInUse
}

fn bind_all(listen: SocketAddr, shards: usize, buffers: usize) -> io::Result<Bound> {
    let udp = group(listen, shards, Type::DGRAM)?;
    let mut address = listen;
    address.set_port(port(&udp)?);
    let tcp = group(address, shards, Type::STREAM)?;
    for socket in &udp {
        enlarge(socket, buffers);
    }
    let count = u16::try_from(shards).map_err(io::Error::other)?;
    let shards = (0..=u8::MAX).zip(udp).zip(tcp);
    let shards: Vec<BoundShard> = shards
        .map(|((index, udp), tcp)| BoundShard {
            place: ShardPlace::new(index, count),
            udp: udp.into(),
            tcp: tcp.into(),
        })
        .collect();
    if let [first, _, ..] = shards.as_slice() {
        steer(&first.udp, count)?;
    }
    Ok(Bound { address, shards })
}

fn port(sockets: &[Socket]) -> io::Result<u16> {
    let address = sockets.first().map(Socket::local_addr).transpose()?;
    let address = address.and_then(|address| address.as_socket());
    Ok(address.map_or(0, |address| address.port()))
}

/// The sockets of one protocol, in the order of their shards.
///
/// The first is bound alone and shared afterwards: were it shareable from the start, a relay that is started twice would
/// silently take part in the first one's port, and shards would be miscounted.
fn group(listen: SocketAddr, shards: usize, kind: Type) -> io::Result<Vec<Socket>> {
    let first = socket(listen, kind, false)?;
    let mut address = listen;
    address.set_port(port(std::slice::from_ref(&first))?);
    let mut sockets = vec![first];
    for _ in 1..shards {
        sockets[0].set_reuse_port(true)?;
        sockets.push(socket(address, kind, true)?);
    }
    Ok(sockets)
}

fn socket(address: SocketAddr, kind: Type, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        socket.set_only_v6(false)?;
    }
    if kind == Type::STREAM {
        // Connections of an earlier process that are still closing do not keep the port from us.
        socket.set_reuse_address(true)?;
        // Accepted connections inherit it.
        socket.set_tcp_nodelay(true)?;
    }
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    if kind == Type::STREAM {
        socket.listen(BACKLOG)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Asks for buffers: with the privilege to exceed the system's limit, else within it.
fn enlarge(socket: &impl AsFd, bytes: usize) {
    let received = sockopt::set_socket_recv_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes));
    let sent = sockopt::set_socket_send_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes));
    if let Err(error) = received.and(sent) {
        tracing::debug!(%error, "the socket keeps its small buffers");
    }
}
