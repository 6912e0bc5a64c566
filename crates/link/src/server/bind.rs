//! Opens the listening sockets of all shards on one port.
//! Used by `relay` as [`super::bind`]. socket(7) SO_REUSEPORT.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
    os::fd::AsFd,
};

use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};

use super::{Bound, BoundShard, steer};

/// How many shards there can be: one for each value of an id's first octet.
pub const MOST_SHARDS: usize = 256;

/// How many TCP connections of one shard may wait to be accepted.
const BACKLOG: i32 = 1024;

/// How often a port that the system chose for UDP may be taken for TCP before we give up.
const ATTEMPTS: usize = 32;

/// Binds `shards` UDP sockets and as many TCP listeners to the address, all on the same port; port 0 lets the system choose it.
/// `[::]` serves IPv4 as well. Each UDP socket asks for buffers of `buffers` octets in each direction (8 MiB is good).
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
            Err(error) if retry(&error, listen) && attempt < ATTEMPTS => attempt += 1,
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
            index,
            shards: count,
            udp: udp.into(),
            tcp: tcp.into(),
        })
        .collect();
    if let [first, _, ..] = shards.as_slice() {
        steer::attach(&first.udp, count)?;
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
fn enlarge(socket: &impl AsFd, octets: usize) {
    let received = sockopt::set_socket_recv_buffer_size_force(socket, octets)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, octets));
    let sent = sockopt::set_socket_send_buffer_size_force(socket, octets)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, octets));
    if let Err(error) = received.and(sent) {
        tracing::debug!(%error, "the socket keeps its small buffers");
    }
}
