//! The way to the server: the host's own sockets, a SOCKS5 proxy, an HTTP proxy. Every socket of the clients is made here.
//! The phases need the moment between a socket and its connection, which `overlay::direct` does not show; names are its business.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use hoplite_overlay::direct::{Direct, udp::enlarge_buffers};
use hoplite_wire::{Host, Target, socks};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use super::{
    Order, TransferError, Way, http_proxy, random::Random, record::Record, socks as handshake,
    trouble::Fault, udp::flow::Flow,
};

/// User name and password at a proxy: whoever has others gets a path of his own (tor's IsolateSOCKSAuth).
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Token {
    /// A fresh one.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let mut word = || format!("{:016x}", random.next());
        Self {
            user: word(),
            password: word(),
        }
    }
}

/// The server's port as a target.
pub(crate) fn target(order: &Order, port: u16) -> Result<Target, TransferError> {
    let host = order.target.parse().map_err(|why| {
        Fault::Misc.because(format_args!("the target {:?} is none: {why}", order.target))
    })?;
    Target::new(host, port).map_err(|why| Fault::Misc.because(why))
}

/// A connection to the server's `port`, its phases noted.
pub(crate) async fn open(
    order: &Order,
    port: u16,
    token: &Token,
    record: &mut Record,
) -> Result<TcpStream, TransferError> {
    let (target, stall) = (target(order, port)?, order.plan.stall);
    match order.way {
        Way::Direct => connect(resolve(&target).await?, stall, record).await,
        Way::Socks { address, .. } => {
            let mut stream = connect(address, stall, record).await?;
            let request = socks::Request {
                command: socks::Command::Connect,
                endpoint: target.into(),
            };
            handshake::ask(&mut stream, &request, token, (record, stall)).await?;
            Ok(stream)
        }
        Way::Http { address } => {
            let mut stream = connect(address, stall, record).await?;
            http_proxy::ask(&mut stream, &target, token, (record, stall)).await?;
            Ok(stream)
        }
    }
}

/// A way for datagrams: a socket, where they go, and the association that carries them with the target that it is told.
#[derive(Debug)]
pub(crate) struct Datagrams {
    pub(crate) socket: UdpSocket,
    pub(crate) peer: SocketAddr,
    pub(crate) association: Option<(TcpStream, socks::Endpoint)>,
}

/// A UDP flow to the server's `port`, its phases noted. A port that is closed is told, and nobody else is heard.
pub(crate) async fn open_datagrams(
    order: &Order,
    port: u16,
    token: &Token,
    record: &mut Record,
) -> Result<Flow, TransferError> {
    let failed = |error: io::Error| Fault::Connect.because(error);
    let way = open_association(order, port, token, record).await?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the lab measures the network itself"
    )]
    way.socket.connect(way.peer).map_err(failed)?;
    if way.association.is_none() {
        record.phases.connect = Some(record.clock.us());
    }
    Flow::new(way.socket, way.association).map_err(failed)
}

/// A way for datagrams to the server's `port`, its phases noted.
pub(crate) async fn open_association(
    order: &Order,
    port: u16,
    token: &Token,
    record: &mut Record,
) -> Result<Datagrams, TransferError> {
    let (target, stall) = (target(order, port)?, order.plan.stall);
    match order.way {
        Way::Direct => datagrams(resolve(&target).await?, None, record),
        Way::Socks { address, udp: true } => {
            let mut control = connect(address, stall, record).await?;
            let request = socks::Request {
                command: socks::Command::Associate,
                endpoint: socks::Endpoint::UNSPECIFIED,
            };
            let bound = handshake::ask(&mut control, &request, token, (record, stall)).await?;
            let association = (control, target.into());
            datagrams(relay(&bound, address)?, Some(association), record)
        }
        Way::Socks { .. } => Err(Fault::Misc.because("this SOCKS proxy carries no UDP")),
        Way::Http { .. } => Err(Fault::Misc.because("an HTTP proxy carries no UDP")),
    }
}

/// Where an association takes datagrams: 0.0.0.0 means the proxy's own address.
fn relay(bound: &socks::Endpoint, proxy: SocketAddr) -> Result<SocketAddr, TransferError> {
    match bound.host {
        Host::Ip(ip) if ip.is_unspecified() => Ok(SocketAddr::new(proxy.ip(), bound.port)),
        Host::Ip(ip) => Ok(SocketAddr::new(ip, bound.port)),
        Host::Name(_) => Err(Fault::Proxy.because("the SOCKS proxy takes datagrams at a name")),
    }
}

fn datagrams(
    peer: SocketAddr,
    association: Option<(TcpStream, socks::Endpoint)>,
    record: &mut Record,
) -> Result<Datagrams, TransferError> {
    let socket = udp(peer).map_err(|error| Fault::Connect.because(error))?;
    let now = record.clock.us();
    record.phases.socket.get_or_insert(now);
    Ok(Datagrams {
        socket,
        peer,
        association,
    })
}

fn udp(peer: SocketAddr) -> io::Result<UdpSocket> {
    let any = match peer {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any)?;
    enlarge_buffers(&socket);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The first address of a target.
pub(crate) async fn resolve(target: &Target) -> Result<SocketAddr, TransferError> {
    let found = Direct::new().addresses(target).await;
    let found = found.map_err(|error| Fault::Connect.because(error))?;
    let first = found.first().copied();
    first.ok_or_else(|| Fault::Connect.because("the server's name has no address"))
}

/// A TCP connection.
pub(crate) async fn connect(
    address: SocketAddr,
    stall: Duration,
    record: &mut Record,
) -> Result<TcpStream, TransferError> {
    let failed = |error: io::Error| Fault::Connect.because(format_args!("{address}: {error}"));
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let socket = socket.map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    record.phases.socket = Some(record.clock.us());
    #[expect(
        clippy::disallowed_methods,
        reason = "the lab measures the network itself"
    )]
    let connecting = timeout(stall, socket.connect(address));
    let late = |_| Fault::Connect.because(format_args!("{address}: no answer within {stall:?}"));
    let stream = connecting.await.map_err(late)?.map_err(failed)?;
    record.phases.connect = Some(record.clock.us());
    Ok(stream)
}
