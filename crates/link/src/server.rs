//! The serving end of a hop: one port, UDP for QUIC and TCP for TLS, shared by shards that each run on a core of their own.
//! Used by `relay`, which calls [`bind`] once and [`BoundShard::activate`] in the runtime of each shard.
//! RFC 9000 §5.1 (connection ids), RFC 8999 (where they stand in a packet).

use std::{
    fmt, io,
    net::{Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
};

use hoplite_quic::Hooks;
use quinn::{
    Connecting, ConnectionError, ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig,
    Incoming, ServerConfig, TokioRuntime, TransportConfig, ValidationTokenConfig,
    crypto::{HandshakeTokenKey, HmacKey, rustls::QuicServerConfig},
};
use quinn_proto::InvalidCid;
use ring::{
    hkdf, hmac,
    rand::{SecureRandom, SystemRandom},
};
use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

use crate::ConnectionController;
use divert::Aliases;
use socket::CoalescingSocket;

pub use divert::ALIAS;
pub use divert::Alias;
pub use divert::AliasId;
pub use divert::Ecn;
pub use divert::Forward;
pub use divert::Forwarder;
pub use divert::Packets;
pub use divert::Towards;

mod divert;
mod socket;
#[cfg(test)]
mod tests;

/// How many connection attempts may wait for [`Endpoint::accept`] on each shard; more are ignored, and their clients send again. Whoever accepts decides at
/// once, so that only what one turn of the socket brings waits: under a flood this bounds how long.
const MOST_INCOMING: usize = 1024;

/// How much may arrive for one attempt before it is accepted, in bytes; what is beyond is dropped. A client's first flight, early data included.
const INCOMING_OCTETS: u64 = 16 * 1024;

/// How much may arrive for all attempts of a shard before they are accepted, in bytes.
const INCOMING_OCTETS_TOTAL: u64 = 4 * 1024 * 1024;

/// What records of packets call this end.
const LABEL: &str = "relay";

/// The sockets of all shards, bound to one port. Packets already queue in the kernel.
#[derive(Debug)]
pub struct Bound {
    address: SocketAddr,
    shards: Vec<BoundShard>,
}

/// The sockets of one shard, on their way to its thread.
#[derive(Debug)]
pub struct BoundShard {
    index: u8,
    /// How many shards there are: 1 to [`MOST_SHARDS`].
    shards: u16,
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
        usize::from(self.index)
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
        let server = server_config(tls, transport, secrets, &Hooks::default())?;
        let acceptor = Acceptor::new(server.clone(), hooks.clone());
        let aliases = Arc::new(Aliases::new(Ids::new(self.index, self.shards)));
        let socket = CoalescingSocket::new(self.udp, Arc::clone(&aliases))?;
        let forwarder = Forwarder::new(aliases, socket.shared());
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config(self.index, self.shards, secrets),
            Some(server),
            socket,
            Arc::new(TokioRuntime),
        )?;
        Ok(Shard {
            endpoint,
            acceptor,
            tcp: TcpListener::from_std(self.tcp)?,
            index: usize::from(self.index),
            forwarder,
        })
    }
}

/// Accepts QUIC connections one by one, each with its own controller.
#[derive(Clone)]
pub struct Acceptor {
    /// Nothing is hooked into its cryptography yet.
    config: ServerConfig,
    hooks: Hooks,
}

impl Acceptor {
    /// Accepts with `config`, whose cryptography is not hooked ([`server_config`]); `hooks` see the packets.
    #[must_use]
    pub const fn new(config: ServerConfig, hooks: Hooks) -> Self {
        Self { config, hooks }
    }

    /// Goes on with the handshake of `incoming`. `transport` is its own: the controller is put on it.
    ///
    /// # Errors
    /// The attempt is no longer there, or its packets make no sense.
    pub fn accept(
        &self,
        incoming: Incoming,
        mut transport: TransportConfig,
        controller: &ConnectionController,
    ) -> Result<Connecting, ConnectionError> {
        controller.harness(&mut transport);
        let mut config = self.config.clone();
        let crypto = Arc::clone(&config.crypto);
        config.crypto = controller.hooks(&self.hooks).server(crypto, LABEL);
        config.transport_config(Arc::new(transport));
        incoming.accept_with(Arc::new(config))
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

/// How QUIC connections are served; also for [`Endpoint::set_server_config`] when certificates change.
///
/// # Errors
/// `tls` cannot be used with QUIC: it lacks TLS 1.3 or TLS_AES_128_GCM_SHA256.
pub fn server_config(
    tls: Arc<rustls::ServerConfig>,
    transport: Arc<TransportConfig>,
    secrets: &Secrets,
    hooks: &Hooks,
) -> io::Result<ServerConfig> {
    let crypto = QuicServerConfig::try_from(tls)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let crypto = hooks.server(Arc::new(crypto), LABEL);
    let mut config = ServerConfig::new(crypto, Arc::clone(&secrets.token));
    // We hand out no tokens for later connections, because such a token would link a client's visits to each other.
    let mut tokens = ValidationTokenConfig::default();
    tokens.sent(0);
    config
        .transport_config(transport)
        .validation_token_config(tokens)
        .max_incoming(MOST_INCOMING)
        .incoming_buffer_size(INCOMING_OCTETS)
        .incoming_buffer_size_total(INCOMING_OCTETS_TOTAL);
    Ok(config)
}

/// The largest payload that we receive stays at quinn's 1472 bytes: receiving takes 2048 times that in memory.
fn endpoint_config(shard: u8, shards: u16, secrets: &Secrets) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::clone(&secrets.reset));
    config.cid_generator(move || Box::new(Ids::new(shard, shards)));
    config
}

// Opens the listening sockets of all shards on one port: socket(7) SO_REUSEPORT.

/// How many shards there can be: one for each value of an id's first byte.
pub const MOST_SHARDS: usize = 256;

/// How many TCP connections of one shard may wait to be accepted.
const BACKLOG: i32 = 1024;

/// How often a port that the system chose for UDP may be taken for TCP before we give up.
const ATTEMPTS: usize = 32;

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
        attach(&first.udp, count)?;
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

// Connection ids whose first byte says which shard owns the connection. RFC 9000 §5.1; the idea is that of
// QUIC-LB.

/// The length of our ids, in bytes.
const LENGTH: usize = 8;

/// How much randomness is fetched at a time, in bytes.
const STOCK: usize = 64 * LENGTH;

/// Makes random ids whose first byte is `shard` modulo `shards`. Only that much of an id means anything to an observer.
#[derive(Debug)]
struct Ids {
    shard: u8,
    /// 1 to 256.
    shards: u16,
    stock: [u8; STOCK],
    /// Where the unused part of `stock` begins.
    used: usize,
}

impl Ids {
    /// `shard` is below `shards`, which is 1 to 256.
    fn new(shard: u8, shards: u16) -> Self {
        Self {
            shard,
            shards,
            stock: [0; STOCK],
            used: STOCK,
        }
    }

    fn random(&mut self) -> [u8; LENGTH] {
        if self.used + LENGTH > STOCK {
            SystemRandom::new()
                .fill(&mut self.stock)
                .expect("the system's randomness never fails once the process runs");
            self.used = 0;
        }
        let mut id = [0; LENGTH];
        id.copy_from_slice(&self.stock[self.used..self.used + LENGTH]);
        self.used += LENGTH;
        id
    }

    /// A fresh id.
    fn next(&mut self) -> [u8; LENGTH] {
        loop {
            let mut id = self.random();
            if let Some(first) = self.first(id[0]) {
                id[0] = first;
                return id;
            }
        }
    }

    /// The byte nearest below `random` that leads to this shard; none from the incomplete last round, which would favour some values.
    fn first(&self, random: u8) -> Option<u8> {
        let (random, shards) = (u16::from(random), self.shards);
        if random >= 256 / shards * shards {
            return None;
        }
        u8::try_from(random - random % shards + u16::from(self.shard)).ok()
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.next())
    }

    /// A stray packet of another shard's connection is dropped: a stateless reset would end that connection.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        match id.first() {
            Some(first) if u16::from(*first) % self.shards == u16::from(self.shard) => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

// The keys that all shards of one process share, so that each may answer for another. RFC 9000 §8.1 (address
// validation) and §10.3 (stateless reset).

/// The key of stateless resets and that of Retry tokens. They live as long as the process and are never written down.
#[derive(Clone)]
pub struct Secrets {
    reset: Arc<dyn HmacKey>,
    token: Arc<dyn HandshakeTokenKey>,
}

impl Secrets {
    /// Fresh keys.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> io::Result<Self> {
        let token = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&random()?);
        Ok(Self {
            reset: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &random()?)),
            token: Arc::new(token),
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

fn random() -> io::Result<[u8; 64]> {
    let mut octets = [0; 64];
    SystemRandom::new()
        .fill(&mut octets)
        .map_err(|_| io::Error::other("the system has no randomness"))?;
    Ok(octets)
}

// Tells the kernel which socket of a group of UDP sockets takes a QUIC packet: the first byte of the destination
// connection id, modulo the shards. RFC 8999 §5 (where the id stands), socket(7) SO_ATTACH_REUSEPORT_CBPF.
// So a connection stays with its shard when the client's address changes. The kernel may join packets of one source
// port into one delivery (GRO); those of a second connection from that port then reach the wrong shard, which drops
// them as the network might.

/// The program's instructions: classic BPF over the UDP payload. A load beyond the packet's end ends the program with shard 0.
fn program(shards: u16) -> [libc::sock_filter; 7] {
    const LOAD_OCTET: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
    const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    [
        step(LOAD_OCTET, 0, 0),
        step(IF_ANY_BIT, 2, 0x80),
        // The long header: flags, four bytes of version, the id's length, the id.
        step(LOAD_OCTET, 0, 6),
        step(libc::BPF_JMP | libc::BPF_JA, 0, 1),
        // The short header: flags, the id.
        step(LOAD_OCTET, 0, 1),
        step(MODULO, 0, u32::from(shards)),
        step(libc::BPF_RET | libc::BPF_A, 0, 0),
    ]
}

/// One instruction; `skip` is how many to skip if a condition does not hold.
fn step(code: u32, skip: u8, operand: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: u16::try_from(code).expect("every code of classic BPF has 16 bits"),
        jt: 0,
        jf: skip,
        k: operand,
    }
}

/// Attaches the program to the group that `member` belongs to. Shards are counted in the order in which the sockets were bound.
fn attach(member: &UdpSocket, shards: u16) -> io::Result<()> {
    let mut steps = program(shards);
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).map_err(io::Error::other)?,
        filter: steps.as_mut_ptr(),
    };
    let length = libc::socklen_t::try_from(size_of_val(&program)).map_err(io::Error::other)?;
    #[expect(
        unsafe_code,
        reason = "no crate that we have offers this socket option"
    )]
    // SAFETY: the pointers are to locals that outlive the call, with their true lengths; the kernel copies and checks the program.
    let answer = unsafe {
        libc::setsockopt(
            member.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            length,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod ids_tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_id_leads_to_its_shard_and_to_no_other() {
        for shards in [1, 2, 3, 4, 7, 255, 256] {
            for shard in [0, shards - 1].map(|shard| u8::try_from(shard).unwrap()) {
                let mut ids = Ids::new(shard, shards);
                let next = (u16::from(shard) + 1) % shards;
                let other = Ids::new(u8::try_from(next).unwrap(), shards);
                for _ in 0..200 {
                    let id = ids.generate_cid();
                    assert!(ids.validate(&id).is_ok());
                    assert_eq!(other.validate(&id).is_ok(), shards == 1);
                }
            }
        }
    }

    #[test]
    fn ids_are_all_different() {
        let mut ids = Ids::new(1, 3);
        let made: HashSet<ConnectionId> = (0..1000).map(|_| ids.generate_cid()).collect();
        assert_eq!(made.len(), 1000);
    }
}
