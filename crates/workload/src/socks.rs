//! A program in front of a SOCKS5 port: the client's side of the handshake as a machine without I/O, and blocking flows that begin with it.
//! RFC 1928, RFC 1929; the messages are `wire::socks`. User name and password are the isolation token.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use hoplite_wire::{
    Host,
    socks::{
        Command, CredentialsView, Endpoint, GreetingView, Method, Reply, ReplyCode, Request, Unread,
    },
};

/// User name and password at a proxy: whoever has others gets a path of his own (tor's IsolateSOCKSAuth).
#[derive(Clone, Debug)]
pub struct Login {
    /// At most 255 bytes.
    pub user: String,
    /// At most 255 bytes.
    pub password: String,
}

/// A message of the client; the proxy answers each with one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The methods of authentication; the answer is the proxy's choice.
    Greeting,
    /// User name and password.
    Login,
    /// What the proxy is to do.
    Request,
}

/// The handshake: send the message, collect bytes until they answer it, then the next one.
#[derive(Debug)]
pub struct Handshake {
    login: Option<Login>,
    request: Request,
    next: Option<Message>,
    bound: Endpoint,
}

/// Why the handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A method that was not offered, or none.
    #[error("the SOCKS proxy chose {0:?}")]
    Method([u8; 2]),
    /// User name and password are not welcome.
    #[error("the SOCKS proxy refused user name and password")]
    Login,
    /// The request was turned down.
    #[error("the SOCKS proxy refused: {0:?}")]
    Request(ReplyCode),
    /// Bytes that are no reply.
    #[error("{0}")]
    Unreadable(hoplite_wire::socks::Refusal),
    /// The proxy spoke before it was asked.
    #[error("something came behind the SOCKS reply")]
    Early,
    /// Datagrams are taken at a name.
    #[error("the SOCKS proxy takes datagrams at a name")]
    Named,
}

impl Handshake {
    /// Begins. With a login, no authentication is offered too, for proxies that know no other.
    #[must_use]
    pub fn new(command: Command, endpoint: Endpoint, login: Option<Login>) -> Self {
        Self {
            login,
            request: Request { command, endpoint },
            next: Some(Message::Greeting),
            bound: Endpoint::UNSPECIFIED,
        }
    }

    /// What is to be sent now; `None` when the proxy has agreed to the request.
    #[must_use]
    pub fn message(&self) -> Option<(Message, Vec<u8>)> {
        let (message, mut out) = (self.next?, Vec::new());
        match (message, &self.login) {
            (Message::Greeting, login) => {
                let all = [Method::Credentials as u8, Method::Open as u8];
                let methods = all.get(usize::from(login.is_none())..).unwrap_or_default();
                GreetingView { methods }.emit(&mut out);
            }
            (Message::Login, login) => {
                let bytes = |of: fn(&Login) -> &String| {
                    login.as_ref().map_or(&[][..], |login| of(login).as_bytes())
                };
                let (user, password) = (bytes(|login| &login.user), bytes(|login| &login.password));
                CredentialsView { user, password }.emit(&mut out);
            }
            (Message::Request, _) => self.request.emit(&mut out),
        }
        Some((message, out))
    }

    /// Takes all that has come since the message was sent; `false` if the answer is not whole yet.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn answer(&mut self, input: &[u8]) -> Result<bool, Refused> {
        let Some(message) = self.next else {
            return Err(Refused::Early);
        };
        if message == Message::Request {
            return self.reply(input);
        }
        let answer = match *input {
            [first, second] => [first, second],
            [] | [_] => return Ok(false),
            _ => return Err(Refused::Early),
        };
        self.next = Some(match message {
            Message::Login if answer[1] != 0 => return Err(Refused::Login),
            Message::Greeting if answer == Method::Credentials.emit() && self.login.is_some() => {
                Message::Login
            }
            Message::Greeting if answer != Method::Open.emit() => {
                return Err(Refused::Method(answer));
            }
            _ => Message::Request,
        });
        Ok(true)
    }

    fn reply(&mut self, input: &[u8]) -> Result<bool, Refused> {
        match Reply::parse(input) {
            Ok((_, len)) if len < input.len() => Err(Refused::Early),
            Ok((reply, _)) if reply.code != ReplyCode::Succeeded => {
                Err(Refused::Request(reply.code))
            }
            Ok((reply, _)) => {
                (self.bound, self.next) = (reply.bound, None);
                Ok(true)
            }
            Err(Unread::More) => Ok(false),
            Err(Unread::Bad(why)) => Err(Refused::Unreadable(why)),
        }
    }

    /// Where an association takes datagrams: 0.0.0.0 means the proxy's own address.
    ///
    /// # Errors
    /// [`Refused::Named`].
    pub fn relay(&self, proxy: SocketAddr) -> Result<SocketAddr, Refused> {
        match self.bound.host {
            Host::Ip(ip) if ip.is_unspecified() => Ok(SocketAddr::new(proxy.ip(), self.bound.port)),
            Host::Ip(ip) => Ok(SocketAddr::new(ip, self.bound.port)),
            Host::Name(_) => Err(Refused::Named),
        }
    }
}

impl From<Refused> for io::Error {
    /// "X'07' Command not supported" is [`io::ErrorKind::Unsupported`].
    fn from(refused: Refused) -> Self {
        let kind = match refused {
            Refused::Request(ReplyCode::CommandNotSupported) => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, refused)
    }
}

/// How long a step of a blocking handshake may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Opens a TCP flow to `target` through the proxy; with a `user`, on a path of its own.
///
/// # Errors
/// The operating system's, or [`Refused`].
pub fn connect(proxy: SocketAddr, user: Option<&str>, target: SocketAddr) -> io::Result<TcpStream> {
    let login = user.map(|user| Login {
        user: user.to_owned(),
        password: "x".to_owned(),
    });
    let handshake = Handshake::new(Command::Connect, target.into(), login);
    let (stream, _) = ask(proxy, handshake)?;
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// A UDP association: the flow lives as long as the TCP connection.
#[derive(Debug)]
pub struct Association {
    /// Sends to and receives from the proxy.
    pub socket: UdpSocket,
    /// Where the proxy takes datagrams.
    pub relay: SocketAddr,
    _control: TcpStream,
}

/// Asks for a UDP association.
///
/// # Errors
/// The operating system's, or [`Refused`].
pub fn associate(proxy: SocketAddr) -> io::Result<Association> {
    let handshake = Handshake::new(Command::Associate, Endpoint::UNSPECIFIED, None);
    let (control, handshake) = ask(proxy, handshake)?;
    Ok(Association {
        socket: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
        relay: handshake.relay(proxy)?,
        _control: control,
    })
}

/// The header that goes before a datagram to `target` (RFC 1928 §7).
#[must_use]
pub fn udp_header(target: SocketAddr) -> Vec<u8> {
    let mut header = Vec::new();
    Endpoint::from(target).emit_datagram_header(&mut header);
    header
}

#[expect(
    clippy::disallowed_methods,
    reason = "the load generator is the program in front of the proxy"
)]
fn ask(proxy: SocketAddr, mut handshake: Handshake) -> io::Result<(TcpStream, Handshake)> {
    let mut stream = TcpStream::connect_timeout(&proxy, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut room = [0; 512];
    while let Some((_, message)) = handshake.message() {
        stream.write_all(&message)?;
        let mut filled = 0;
        while !handshake.answer(room.get(..filled).unwrap_or_default())? {
            match stream.read(room.get_mut(filled..).unwrap_or_default())? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => filled += len,
            }
        }
    }
    Ok((stream, handshake))
}

#[cfg(test)]
mod tests {
    use hoplite_wire::socks::{Acceptor, Step};
    use proptest::prelude::*;

    use super::*;

    fn login() -> Login {
        Login {
            user: "a".into(),
            password: "b".into(),
        }
    }

    fn target() -> Endpoint {
        SocketAddr::from(([192, 0, 2, 1], 80)).into()
    }

    #[test]
    fn an_acceptor_and_a_client_agree_on_the_request_and_the_token() {
        for login in [None, Some(login())] {
            let isolated = login.is_some();
            let mut client = Handshake::new(Command::Connect, target(), login);
            let mut proxy = Acceptor::new();
            let request = loop {
                match proxy.step().expect("it understands") {
                    Step::Read => {
                        let (_, message) = client.message().expect("not over");
                        proxy.handle_input(&message);
                    }
                    Step::Write(bytes) => assert_eq!(client.answer(&bytes), Ok(true)),
                    Step::Request(request) => break request,
                }
            };
            assert_eq!(
                (request.command, request.endpoint),
                (Command::Connect, target())
            );
            assert_eq!(proxy.into_parts().0.is_some(), isolated);
            let (mut out, bound) = (Vec::new(), Endpoint::UNSPECIFIED);
            let code = ReplyCode::Succeeded;
            Reply { code, bound }.emit(&mut out);
            let (early, late) = out.split_at(4);
            assert_eq!(
                client.answer(early),
                Ok(false),
                "an answer may come in pieces"
            );
            assert_eq!(client.answer(&[early, late].concat()), Ok(true));
            assert_eq!(client.message(), None);
        }
    }

    #[test]
    fn a_refusal_says_what_was_refused() {
        let mut client = Handshake::new(Command::Associate, target(), None);
        assert_eq!(client.answer(&[5, 2]), Err(Refused::Method([5, 2])));
        assert_eq!(client.answer(&[5, 0]), Ok(true));
        let refused = client
            .answer(&[5, 7, 0, 1, 0, 0, 0, 0, 0, 0])
            .expect_err("refused");
        assert_eq!(io::Error::from(refused).kind(), io::ErrorKind::Unsupported);
        let mut client = Handshake::new(Command::Connect, target(), Some(login()));
        assert_eq!(client.answer(&[5, 2]), Ok(true));
        assert_eq!(client.answer(&[1, 1]), Err(Refused::Login));
    }

    #[test]
    fn an_unspecified_address_of_an_association_is_the_proxys_own() {
        let proxy = SocketAddr::from(([192, 0, 2, 9], 1080));
        let mut client = Handshake::new(Command::Associate, Endpoint::UNSPECIFIED, None);
        client.answer(&[5, 0]).expect("chosen");
        client
            .answer(&[5, 0, 0, 1, 0, 0, 0, 0, 0x12, 0x34])
            .expect("granted");
        assert_eq!(client.relay(proxy), Ok(SocketAddr::new(proxy.ip(), 0x1234)));
    }

    proptest! {
        #[test]
        fn no_answer_of_a_proxy_panics(answers in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..24), 0..4)) {
            let mut client = Handshake::new(Command::Connect, target(), Some(login()));
            for answer in answers {
                drop(client.answer(&answer));
                drop(client.message());
            }
        }
    }
}
