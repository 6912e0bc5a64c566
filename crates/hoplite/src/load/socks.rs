//! A program that uses the SOCKS port: RFC 1928 from the client's side, and user names (RFC 1929) as isolation tokens.
//! Written without `wire`'s codec, so that the two check each other.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket},
    time::Duration,
};

/// How long a step of the handshake may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The header of a datagram to or from an IPv4 target (RFC 1928 §7).
pub(crate) const UDP_HEADER: usize = 10;

/// Opens a TCP flow to `target` through the proxy.
pub(crate) fn connect(proxy: SocketAddr, target: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = greet(proxy, None)?;
    request(&mut stream, 1, target)?;
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// The same on a road of its own.
pub(crate) fn connect_as(
    proxy: SocketAddr,
    user: &str,
    target: SocketAddr,
) -> io::Result<TcpStream> {
    let mut stream = greet(proxy, Some(user))?;
    request(&mut stream, 1, target)?;
    Ok(stream)
}

/// A UDP association: the flow lives as long as the TCP connection.
#[derive(Debug)]
pub(crate) struct Association {
    /// Sends to and receives from the proxy.
    pub(crate) socket: UdpSocket,
    /// Where the proxy takes datagrams.
    pub(crate) relay: SocketAddr,
    _control: TcpStream,
}

/// Asks for a UDP association.
pub(crate) fn associate(proxy: SocketAddr) -> io::Result<Association> {
    let mut control = greet(proxy, None)?;
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let mut relay = request(&mut control, 3, any)?;
    if relay.ip().is_unspecified() {
        relay.set_ip(proxy.ip());
    }
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(Association {
        socket,
        relay,
        _control: control,
    })
}

/// The header that goes before a datagram to `target`.
pub(crate) fn udp_header(target: SocketAddrV4) -> [u8; UDP_HEADER] {
    let mut header = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let (ip, port) = (target.ip().octets(), target.port().to_be_bytes());
    for (to, from) in header.iter_mut().skip(4).zip(ip.into_iter().chain(port)) {
        *to = from;
    }
    header
}

#[expect(
    clippy::disallowed_methods,
    reason = "the load generator is the program in front of the proxy"
)]
fn greet(proxy: SocketAddr, user: Option<&str>) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&proxy, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let method = if user.is_some() { 2 } else { 0 };
    stream.write_all(&[5, 1, method])?;
    expect(&mut stream, [5, method], "the proxy refuses the method")?;
    if let Some(user) = user {
        let name = user.as_bytes();
        let length = u8::try_from(name.len()).map_err(io::Error::other)?;
        let login = [&[1, length], name, &[1, b'x']].concat();
        stream.write_all(&login)?;
        expect(&mut stream, [1, 0], "the proxy refuses the user name")?;
    }
    Ok(stream)
}

fn expect(stream: &mut TcpStream, wanted: [u8; 2], problem: &'static str) -> io::Result<()> {
    let mut answer = [0; 2];
    stream.read_exact(&mut answer)?;
    match answer == wanted {
        true => Ok(()),
        false => Err(io::Error::other(problem)),
    }
}

fn request(stream: &mut TcpStream, command: u8, target: SocketAddr) -> io::Result<SocketAddr> {
    let SocketAddr::V4(target) = target else {
        return Err(io::Error::other("the load generator uses IPv4"));
    };
    let mut bytes = udp_header(target);
    bytes[0] = 5;
    bytes[1] = command;
    stream.write_all(&bytes)?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    match answer {
        [5, 0, _, 1, a, b, c, d, high, low] => Ok(SocketAddr::from((
            [a, b, c, d],
            u16::from_be_bytes([high, low]),
        ))),
        [_, code, ..] => {
            // "X'07' Command not supported"
            let kind = match code {
                7 => io::ErrorKind::Unsupported,
                _ => io::ErrorKind::Other,
            };
            let why = format!("the proxy answers {code} to SOCKS command {command}");
            Err(io::Error::new(kind, why))
        }
    }
}
