//! Who turns names into addresses for [`super::Direct`]: the system, a fixed table, DNS servers, or a [`Resolver`] of the owner's.
//! Special names follow RFC 6761: `localhost` is loopback, `invalid` does not exist, and neither leaves the device.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use hoplite_wire::{
    HostName, Target,
    dns::{Code, MAX_MESSAGE, Question, Unfit},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{Direct, TcpFlow};
use crate::{Datagrams, Error, ErrorKind, Opening, Reason, Terms, names::look_up};

/// Turns a name into addresses, best first.
pub trait Resolver: fmt::Debug + Send + Sync {
    /// The addresses of `name`; [`Reason::NameNotFound`] or [`Reason::ResolverFailed`] when there are none.
    fn resolve<'a>(&'a self, name: &'a HostName) -> Opening<'a, Vec<IpAddr>>;
}

/// The system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

/// A table, for tests and for names that an operator pins. Names that it lacks do not exist.
#[derive(Clone, Default)]
pub struct Fixed(HashMap<HostName, Vec<IpAddr>>);

impl Fixed {
    /// Adds a name; asking for it answers `addresses` in this order.
    pub fn with(mut self, name: HostName, addresses: Vec<IpAddr>) -> Self {
        self.0.insert(name, addresses);
        self
    }
}

impl fmt::Debug for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fixed({} names)", self.0.len())
    }
}

impl Resolver for Fixed {
    fn resolve<'a>(&'a self, name: &'a HostName) -> Opening<'a, Vec<IpAddr>> {
        let found = self.0.get(name).filter(|found| !found.is_empty());
        Box::pin(async move { found.cloned().ok_or_else(|| failed(Reason::NameNotFound)) })
    }
}

impl Resolver for System {
    fn resolve<'a>(&'a self, name: &'a HostName) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            match special(name) {
                Some(answer) => answer,
                None => ask_the_system(name).await,
            }
        })
    }
}

/// The answer for a name that must not be asked for (RFC 6761 §6.3 and §6.4).
pub fn special(name: &HostName) -> Option<Result<Vec<IpAddr>, Error>> {
    let last = name.as_str().rsplit('.').next().unwrap_or_default();
    match last {
        "localhost" => Some(Ok(vec![
            Ipv4Addr::LOCALHOST.into(),
            Ipv6Addr::LOCALHOST.into(),
        ])),
        "invalid" => Some(Err(failed(Reason::NameNotFound))),
        _ => None,
    }
}

async fn ask_the_system(name: &HostName) -> Result<Vec<IpAddr>, Error> {
    let found = tokio::net::lookup_host((name.as_str(), 0)).await;
    let mut addresses = Vec::new();
    for address in found.map_err(lookup_failed)? {
        let ip = address.ip().to_canonical();
        if !addresses.contains(&ip) {
            addresses.push(ip);
        }
    }
    if addresses.is_empty() {
        return Err(failed(Reason::NameNotFound));
    }
    Ok(addresses)
}

/// The standard library keeps only the text of EAI_AGAIN, EAI_FAIL and EAI_NONAME; those of glibc and musl are known.
fn lookup_failed(error: io::Error) -> Error {
    let text = error.to_string();
    let resolver = [
        "Temporary failure",
        "Try again",
        "Non-recoverable",
        "Unrecoverable",
    ];
    let reason = if resolver.iter().any(|known| text.contains(known)) {
        Reason::ResolverFailed
    } else {
        Reason::NameNotFound
    };
    failed(reason).caused_by(error)
}

fn failed(reason: Reason) -> Error {
    Error::new(ErrorKind::TargetFailed, "resolving a name").because(reason)
}

// Asks DNS servers in [`super::Direct`]'s own name: by datagram, and again by stream where the answer did not fit.
// Those that the owner gave, or the system's. RFC 1035 §4.2, RFC 7766 §5, RFC 5452 (what makes an answer believable).

/// How long a server has for an answer; then the next one is asked.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// How often all servers are asked.
const MAX_ATTEMPTS: usize = 2;

/// How many servers are asked; resolvers of C libraries know no more.
const MAX_SERVERS: usize = 3;

/// Where the system names its servers.
const SYSTEM: &str = "/etc/resolv.conf";

/// The addresses of `name`, IPv6 first.
pub(super) async fn addresses(direct: &Direct, name: &HostName) -> Result<Vec<IpAddr>, Error> {
    match special(name) {
        Some(answer) => answer,
        None => look_up(direct, name, &Terms::default()).await,
    }
}

/// What the first server that answers says.
pub(super) async fn ask(direct: &Direct, message: &[u8]) -> Result<Vec<u8>, Error> {
    let question = match Question::read(message) {
        Ok(question) => question,
        Err(Unfit::Answered(reply)) => return Ok(reply),
        Err(Unfit::Nothing) => return Err(no_answer()),
    };
    if let Some(reply) = known(&question) {
        return Ok(reply);
    }
    let servers = if direct.servers.is_empty() {
        of_the_system()
    } else {
        direct.servers.to_vec()
    };
    let mut failure = no_answer();
    let servers = servers.get(..MAX_SERVERS).unwrap_or(&servers);
    for server in std::iter::repeat_n(servers, MAX_ATTEMPTS).flatten() {
        match timeout(QUERY_TIMEOUT, one(direct, *server, &question)).await {
            Ok(Ok(reply)) => return question.adopt(&reply, |_| true).map_err(|_| no_answer()),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = no_answer(),
        }
    }
    Err(failure)
}

/// The answer to a question that must not leave the device.
fn known(question: &Question) -> Option<Vec<u8>> {
    let answer = special(&question.name()?)?;
    Some(match answer {
        Ok(found) => question.addresses(found, 60),
        Err(_) => question.nothing(Code::NO_NAME, 60),
    })
}

async fn one(direct: &Direct, server: SocketAddr, question: &Question) -> Result<Vec<u8>, Error> {
    let server = Target::from(server);
    let (id, message) = fresh(question);
    let flow = direct.datagrams(&server).await?;
    let flow: &dyn Datagrams = &flow;
    flow.send(&message).await?;
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        let got = flow.recv(&mut buffer).await?;
        let payloads = buffer.get(..got.len).unwrap_or_default();
        let ours = |reply: &&[u8]| is_ours(question, id, reply);
        let Some(reply) = payloads.chunks(got.segment.max(1)).find(ours) else {
            continue;
        };
        return if is_cut(reply) {
            by_stream(direct.stream(&server).await?, question).await
        } else {
            Ok(reply.to_vec())
        };
    }
}

async fn by_stream(mut stream: TcpFlow, question: &Question) -> Result<Vec<u8>, Error> {
    let (id, message) = fresh(question);
    let len = u16::try_from(message.len()).map_err(|_| no_answer())?;
    let talk = async {
        let framed = [&len.to_be_bytes()[..], &message].concat();
        stream.write_all(&framed).await?;
        let len = stream.read_u16().await?;
        let mut reply = vec![0; len.into()];
        stream.read_exact(&mut reply).await?;
        Ok::<_, io::Error>(reply)
    };
    let reply = talk.await.map_err(|error| no_answer().caused_by(error))?;
    if is_ours(question, id, &reply) {
        Ok(reply)
    } else {
        Err(no_answer())
    }
}

/// The question with an id that nobody guesses; the port is the system's choice.
fn fresh(question: &Question) -> (u16, Vec<u8>) {
    let [.., i, j] = RandomState::new().hash_one(0u8).to_be_bytes();
    let id = u16::from_be_bytes([i, j]);
    (id, question.message_with_id(id))
}

fn is_ours(question: &Question, id: u16, reply: &[u8]) -> bool {
    reply.get(..2) == Some(&id.to_be_bytes()) && question.heard(reply).is_ok()
}

/// The TC bit.
fn is_cut(reply: &[u8]) -> bool {
    reply.get(2).is_some_and(|flags| flags & 2 != 0)
}

fn of_the_system() -> Vec<SocketAddr> {
    let text = std::fs::read_to_string(SYSTEM).unwrap_or_default();
    named(&text)
}

/// The servers of a resolv.conf(5).
fn named(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let rest = line.trim().strip_prefix("nameserver")?;
        let ip: IpAddr = rest.trim().parse().ok()?;
        Some(SocketAddr::new(ip, 53))
    };
    text.lines().filter_map(server).collect()
}

fn no_answer() -> Error {
    Error::new(ErrorKind::TargetFailed, "asking a DNS server").because(Reason::ResolverFailed)
}

#[cfg(test)]
mod tests {
    use hoplite_wire::dns::RecordType;
    use tokio::net::{TcpListener, UdpSocket};

    use super::*;
    use crate::Overlay;

    #[test]
    fn special_names_are_answered_without_asking_anyone() {
        let ask = |name| special(&HostName::new(name).expect("valid"));
        let local = ask("a.localhost").expect("special").expect("found");
        assert!(local.iter().all(IpAddr::is_loopback));
        let missing = ask("nobody.invalid")
            .expect("special")
            .expect_err("missing");
        assert_eq!(missing.reason(), Some(Reason::NameNotFound));
        assert!(ask("localhost.example").is_none());
    }

    #[test]
    fn a_silent_name_server_is_told_from_a_missing_name() {
        let failure = |text: &str| lookup_failed(io::Error::other(text)).reason();
        let silent = "failed to lookup address information: Temporary failure in name resolution";
        assert_eq!(failure(silent), Some(Reason::ResolverFailed));
        assert_eq!(
            failure("failed to lookup address information: Name or service not known"),
            Some(Reason::NameNotFound)
        );
    }

    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

    /// Sockets of both kinds at one port.
    async fn server() -> (UdpSocket, TcpListener) {
        loop {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
            let address = listener.local_addr().expect("bound");
            if let Ok(socket) = UdpSocket::bind(address).await {
                return (socket, listener);
            }
        }
    }

    async fn asked(socket: &UdpSocket) -> (Question, SocketAddr) {
        let mut buffer = [0; 1500];
        let (len, from) = socket.recv_from(&mut buffer).await.expect("asked");
        (Question::read(&buffer[..len]).expect("a question"), from)
    }

    fn direct(server: &UdpSocket) -> Direct {
        Direct::new().name_servers(&[server.local_addr().expect("bound")])
    }

    #[tokio::test]
    async fn given_servers_are_asked_and_forged_answers_passed_over() {
        let (socket, _listener) = server().await;
        let direct = direct(&socket);
        let serve = async {
            for _ in 0..2 {
                let (question, from) = asked(&socket).await;
                let mut forged = question.addresses([Ipv4Addr::LOCALHOST.into()], 60);
                forged[0] ^= 1;
                socket.send_to(&forged, from).await.expect("sent");
                let reply = question.addresses([THERE], 60);
                socket.send_to(&reply, from).await.expect("sent");
            }
        };
        let terms = Terms::default();
        let (found, ()) = tokio::join!(direct.resolve("host.example", &terms), serve);
        assert_eq!(found.expect("found"), [THERE]);
    }

    #[tokio::test]
    async fn an_answer_that_does_not_fit_a_datagram_comes_by_stream() {
        let (socket, listener) = server().await;
        let direct = direct(&socket);
        let serve = async {
            let (question, from) = asked(&socket).await;
            let cut = question.fitted(vec![0; 5000], 1232);
            socket.send_to(&cut, from).await.expect("sent");
            let (mut stream, _) = listener.accept().await.expect("accepted");
            let mut query = vec![0; stream.read_u16().await.expect("read").into()];
            stream.read_exact(&mut query).await.expect("read");
            let question = Question::read(&query).expect("a question");
            let many = question.addresses((0..=255).map(|n| IpAddr::from([192, 0, 2, n])), 60);
            let len = u16::try_from(many.len()).expect("fits");
            stream.write_u16(len).await.expect("written");
            stream.write_all(&many).await.expect("written");
        };
        let name = HostName::new("host.example").expect("valid");
        let question = Question::new(&name, RecordType::A);
        let (message, terms) = (question.message_with_id(5), Terms::default());
        let (reply, ()) = tokio::join!(direct.query(&message, &terms), serve);
        let reply = reply.expect("answered");
        assert_eq!(reply[..2], [0, 5], "the asker's id");
        assert_eq!(question.heard(&reply).expect("read").1.len(), 256);
    }

    #[test]
    fn the_systems_servers_are_read() {
        let text = "# nameserver 192.0.2.9\nnameserver 192.0.2.1\n nameserver\t2001:db8::1 \nnameserver x\nsearch a\n";
        let found = named(text);
        let text: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["192.0.2.1:53", "[2001:db8::1]:53"]);
    }
}
