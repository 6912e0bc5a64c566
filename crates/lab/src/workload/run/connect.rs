//! The way to the server: the host's own sockets, a SOCKS5 proxy, an HTTP proxy. Every socket of the clients is made here.
//! The phases need the moment between a socket and its connection, which `overlay::direct` does not show; names are its business.
//!
//! SOCKS5 is RFC 1928 and RFC 1929, its messages are `wire::socks`; CONNECT is RFC 9110 §9.3.6 and RFC 9112, its `Proxy-Authorization: Basic`
//! RFC 7617. User name and password are the isolation token.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use hoplite_overlay::direct::{Direct, udp::enlarge_buffers};
use hoplite_wire::{
    Host, Target,
    socks::{
        Command, CredentialsView, Endpoint, GreetingView, Method, Reply, ReplyCode, Request, Unread,
    },
};
use tokio::{
    io::AsyncReadExt,
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use super::{
    client::Random,
    record::{Record, patiently},
    tcp,
    udp::Flow,
};
use crate::workload::{Fault, Order, TransferError, Way};

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
            let request = Request {
                command: Command::Connect,
                endpoint: target.into(),
            };
            ask_socks(&mut stream, &request, token, (record, stall)).await?;
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
            let request = Request {
                command: Command::Associate,
                endpoint: Endpoint::UNSPECIFIED,
            };
            let bound = ask_socks(&mut control, &request, token, (record, stall)).await?;
            let association = (control, target.into());
            datagrams(relay(&bound, address)?, Some(association), record)
        }
        Way::Socks { .. } => Err(Fault::Misc.because("this SOCKS proxy carries no UDP")),
        Way::Http { .. } => Err(Fault::Misc.because("an HTTP proxy carries no UDP")),
    }
}

/// Where an association takes datagrams: 0.0.0.0 means the proxy's own address.
fn relay(bound: &Endpoint, proxy: SocketAddr) -> Result<SocketAddr, TransferError> {
    match bound.host {
        Host::Ip(ip) if ip.is_unspecified() => Ok(SocketAddr::new(proxy.ip(), bound.port)),
        Host::Ip(ip) => Ok(SocketAddr::new(ip, bound.port)),
        Host::Name(_) => Err(Fault::Proxy.because("the SOCKS proxy takes datagrams at a name")),
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

/// Bytes of an answer's head that are read before giving up.
const LIMIT: usize = 16 * 1024;

/// Asks for a tunnel to `target`.
async fn ask_http_proxy(
    stream: &mut TcpStream,
    target: &Target,
    token: &Token,
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
    let line = head
        .split(|octet| *octet == b'\r')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let version = words.next().unwrap_or_default();
    let status: u16 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    match (version.starts_with("HTTP/1."), status) {
        (true, 200..=299) => Ok(()),
        _ => Err(Fault::Proxy.because(format_args!("the HTTP proxy answered {line:?}"))),
    }
}

/// Does the handshake; answers with the endpoint that the proxy names.
async fn ask_socks(
    stream: &mut TcpStream,
    request: &Request,
    token: &Token,
    (record, stall): (&mut Record, Duration),
) -> Result<Endpoint, TransferError> {
    greet(stream, token, (record, stall)).await?;
    let mut out = Vec::new();
    request.emit(&mut out);
    tcp::write(stream, &out, stall).await?;
    record.phases.proxy_request = Some(record.clock.us());
    let reply = reply(stream, stall).await?;
    record.phases.proxy_response = Some(record.clock.us());
    match reply.code {
        ReplyCode::Succeeded => Ok(reply.bound),
        code => Err(Fault::Proxy.because(format_args!("the SOCKS proxy refused: {code:?}"))),
    }
}

/// Offers credentials, which isolate, and none, for proxies that know none.
async fn greet(
    stream: &mut TcpStream,
    token: &Token,
    (record, stall): (&mut Record, Duration),
) -> Result<(), TransferError> {
    let mut out = Vec::new();
    let methods = [Method::Credentials as u8, Method::Open as u8];
    GreetingView { methods: &methods }.emit(&mut out);
    tcp::write(stream, &out, stall).await?;
    let choice = two(stream, stall).await?;
    record.phases.proxy_choice = Some(record.clock.us());
    if choice == Method::Open.emit() {
        return Ok(());
    }
    if choice != Method::Credentials.emit() {
        return Err(Fault::Proxy.because(format_args!("the SOCKS proxy chose {choice:?}")));
    }
    out.clear();
    let (user, password) = (token.user.as_bytes(), token.password.as_bytes());
    CredentialsView { user, password }.emit(&mut out);
    tcp::write(stream, &out, stall).await?;
    match two(stream, stall).await? {
        [_, 0] => Ok(()),
        _ => Err(Fault::Proxy.because("the SOCKS proxy refused user name and password")),
    }
}

async fn two(stream: &mut TcpStream, stall: Duration) -> Result<[u8; 2], TransferError> {
    let mut two = [0; 2];
    let read = patiently(stall, stream.read_exact(&mut two)).await?;
    read.map_err(|error| Fault::Proxy.because(error))?;
    Ok(two)
}

async fn reply(stream: &mut TcpStream, stall: Duration) -> Result<Reply, TransferError> {
    let mut input = Vec::with_capacity(512);
    loop {
        match Reply::parse(&input) {
            Ok((reply, len)) if len == input.len() => return Ok(reply),
            Ok(_) => return Err(Fault::Proxy.because("something came behind the SOCKS reply")),
            Err(Unread::More) => {}
            Err(Unread::Bad(why)) => return Err(Fault::Proxy.because(why)),
        }
        let read = patiently(stall, stream.read_buf(&mut input)).await?;
        match read.map_err(|error| Fault::Proxy.because(error))? {
            0 => return Err(Fault::Proxy.because("the SOCKS proxy closed the connection")),
            _ => continue,
        }
    }
}
