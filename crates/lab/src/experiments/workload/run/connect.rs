//! The way to the server: the host's own sockets, a SOCKS5 proxy, an HTTP proxy. Every socket of the clients is made here.
//! The phases need the moment between a socket and its connection, which `overlay::direct` does not show; names are its business.
//!
//! SOCKS5's handshake is `hoplite_workload::socks`; CONNECT is RFC 9110 §9.3.6 and RFC 9112, its `Proxy-Authorization: Basic`
//! RFC 7617. User name and password are the isolation token.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use hoplite_overlay::direct::{Direct, udp::enlarge_buffers};
use hoplite_wire::{
    Target,
    socks::{Command, Endpoint},
};
use hoplite_workload::socks::{Handshake, Login, Message, Refused};
use tokio::{
    io::AsyncReadExt,
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use super::{
    record::{Record, patiently},
    tcp,
    udp::Flow,
};
use crate::experiments::workload::{Fault, Order, TransferError, Way};

/// The server's port as a target.
pub(crate) fn target(order: &Order, port: u16) -> Result<Target, TransferError> {
    let host = order.target.parse().map_err(|why| {
        Fault::Misc.because(format_args!("the target {:?} is none: {why}", order.target))
    })?;
    Target::new(host, port).map_err(|why| Fault::Misc.because(why))
}

/// The same as the connection with this token asks for it.
fn target_of(order: &Order, port: u16, token: &Login) -> Result<Target, TransferError> {
    if !order.fresh_names {
        return target(order, port);
    }
    let name = format!("{}.{}", token.user, order.target);
    let host = name.parse().map_err(|why| Fault::Misc.because(why))?;
    Target::new(host, port).map_err(|why| Fault::Misc.because(why))
}

/// A connection to the server's `port`, its phases noted. Where the server has a name and no proxy takes it, looking it up is part of them.
pub(crate) async fn open(
    order: &Order,
    port: u16,
    token: &Login,
    record: &mut Record,
) -> Result<TcpStream, TransferError> {
    let (target, stall) = (target_of(order, port, token)?, order.plan.stall);
    match order.way {
        Way::Direct => {
            let address = resolve(&target).await?;
            connect_over(order.interface.as_deref(), address, stall, record).await
        }
        Way::Socks { address, .. } => {
            let mut stream = connect(address, stall, record).await?;
            let request = (Command::Connect, target.into());
            ask_socks(&mut stream, request, token, (record, stall)).await?;
            Ok(stream)
        }
        Way::Http { address } => {
            let mut stream = connect(address, stall, record).await?;
            ask_http_proxy(&mut stream, &target, token, (record, stall)).await?;
            Ok(stream)
        }
    }
}

/// A way for datagrams: a socket, where they go, and the association that carries them with the target that it is told.
#[derive(Debug)]
pub(crate) struct Datagrams {
    pub(crate) socket: UdpSocket,
    pub(crate) peer: SocketAddr,
    pub(crate) association: Option<(TcpStream, Endpoint)>,
}

/// A UDP flow to the server's `port`, its phases noted. A port that is closed is told, and nobody else is heard.
pub(crate) async fn open_datagrams(
    order: &Order,
    port: u16,
    token: &Login,
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
    token: &Login,
    record: &mut Record,
) -> Result<Datagrams, TransferError> {
    let (target, stall) = (target(order, port)?, order.plan.stall);
    match order.way {
        Way::Direct => datagrams(resolve(&target).await?, None, record),
        Way::Socks { address, udp: true } => {
            let mut control = connect(address, stall, record).await?;
            let request = (Command::Associate, Endpoint::UNSPECIFIED);
            let granted = ask_socks(&mut control, request, token, (record, stall)).await?;
            let relay = granted
                .relay(address)
                .map_err(|why| Fault::Proxy.because(why))?;
            datagrams(relay, Some((control, target.into())), record)
        }
        Way::Socks { .. } => Err(Fault::Misc.because("this SOCKS proxy carries no UDP")),
        Way::Http { .. } => Err(Fault::Misc.because("an HTTP proxy carries no UDP")),
    }
}

fn datagrams(
    peer: SocketAddr,
    association: Option<(TcpStream, Endpoint)>,
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
    connect_over(None, address, stall, record).await
}

/// A TCP connection over an interface, or where the routes lead.
async fn connect_over(
    interface: Option<&str>,
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
    if let Some(interface) = interface {
        let bound = socket.bind_device(Some(interface.as_bytes()));
        bound.map_err(|error| Fault::Interface.because(format_args!("{interface}: {error}")))?;
    }
    record.phases.socket = Some(record.clock.us());
    #[expect(
        clippy::disallowed_methods,
        reason = "the lab measures the network itself"
    )]
    let connecting = timeout(stall, socket.connect(address));
    let late = |_| Fault::Connect.because(format_args!("{address}: no answer within {stall:?}"));
    let stream = connecting.await.map_err(late)?.map_err(failed)?;
    record.phases.connect = Some(record.clock.us());
    record.local = stream.local_addr().ok().map(|local| local.port());
    Ok(stream)
}

/// Bytes of an answer's head that are read before giving up.
const LIMIT: usize = 16 * 1024;

/// Asks for a tunnel to `target`.
async fn ask_http_proxy(
    stream: &mut TcpStream,
    target: &Target,
    token: &Login,
    (record, stall): (&mut Record, Duration),
) -> Result<(), TransferError> {
    let credentials = STANDARD.encode(format!("{}:{}", token.user, token.password));
    let request = format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
    );
    tcp::write(stream, request.as_bytes(), stall).await?;
    record.phases.proxy_request = Some(record.clock.us());
    let head = proxy_head(stream, stall).await?;
    record.phases.proxy_response = Some(record.clock.us());
    check_proxy(&head)
}

/// Everything up to the empty line. Nothing may come behind it: in every protocol here the client speaks first.
async fn proxy_head(stream: &mut TcpStream, stall: Duration) -> Result<Vec<u8>, TransferError> {
    let mut head = Vec::with_capacity(512);
    while !head.ends_with(b"\r\n\r\n") && head.len() < LIMIT {
        let read = patiently(stall, stream.read_buf(&mut head)).await?;
        if read.map_err(|error| Fault::Proxy.because(error))? == 0 {
            return Err(Fault::Proxy.because("the HTTP proxy closed the connection"));
        }
    }
    Ok(head)
}

fn check_proxy(head: &[u8]) -> Result<(), TransferError> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let version = words.next().unwrap_or_default();
    let status: u16 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    match (version.starts_with("HTTP/1."), status) {
        (true, 200..=299) => Ok(()),
        _ => Err(Fault::Proxy.because(format_args!("the HTTP proxy answered {line:?}"))),
    }
}

/// Does the handshake, its phases noted.
async fn ask_socks(
    stream: &mut TcpStream,
    (command, endpoint): (Command, Endpoint),
    token: &Login,
    (record, stall): (&mut Record, Duration),
) -> Result<Handshake, TransferError> {
    let refused = |why: Refused| Fault::Proxy.because(why);
    let mut handshake = Handshake::new(command, endpoint, Some(token.clone()));
    let mut input = Vec::with_capacity(512);
    while let Some((message, bytes)) = handshake.message() {
        tcp::write(stream, &bytes, stall).await?;
        if message == Message::Request {
            record.phases.proxy_request = Some(record.clock.us());
        }
        input.clear();
        while !handshake.answer(&input).map_err(refused)? {
            let read = patiently(stall, stream.read_buf(&mut input)).await?;
            if read.map_err(|error| Fault::Proxy.because(error))? == 0 {
                return Err(Fault::Proxy.because("the SOCKS proxy closed the connection"));
            }
            let now = Some(record.clock.us());
            match message {
                Message::Greeting => record.phases.proxy_choice = now,
                Message::Login => {}
                Message::Request => record.phases.proxy_response = now,
            }
        }
    }
    Ok(handshake)
}
