//! SOCKS version 5: messages, the datagram header, and the accepting side's handshake as a machine without I/O.
//! RFC 1928 (SOCKS5), RFC 1929 (user name and password). GSSAPI is not offered, because nothing here could check it.
//!
//! Each message is a pair: a lenient view that borrows what came (`GreetingView`, `RequestView`, …) and a strict value
//! (`Request`, `Endpoint`, …). `parse(emit(x)) == x` holds for the values.

pub mod acceptor;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str,
};

pub use self::acceptor::{Acceptor, Step};
use crate::{Host, HostName, Target, TargetError};

/// The version byte of every SOCKS5 message but those of RFC 1929.
pub const VERSION: u8 = 5;

// A host and a port as SOCKS writes them: ATYP, address, port.
// RFC 1928 §4 and §5.

const IPV4: u8 = 1;

const NAME: u8 = 3;

const IPV6: u8 = 4;

/// An address as it came: a name may be any bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AddressView<'a> {
    /// ATYP 1.
    V4([u8; 4]),
    /// ATYP 4.
    V6([u8; 16]),
    /// ATYP 3, "a fully-qualified domain name", unchecked.
    Name(&'a [u8]),
}

/// An address with a port, as it came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EndpointView<'a> {
    /// Where to.
    pub address: AddressView<'a>,
    /// In host order; 0 where the sender does not know it.
    pub port: u16,
}

/// A valid host with a port that may be 0 (a bound address that is not known, an association's source).
/// `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address.
    pub host: Host,
    /// TCP or UDP port, or 0.
    pub port: u16,
}

impl<'a> EndpointView<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Unread> {
        let address = match reader.byte()? {
            IPV4 => AddressView::V4(reader.array()?),
            NAME => AddressView::Name(reader.counted()?),
            IPV6 => AddressView::V6(reader.array()?),
            other => return Err(Unread::Bad(Refusal::AddressType(other))),
        };
        let port = u16::from_be_bytes(reader.array()?);
        Ok(Self { address, port })
    }

    /// The strict value.
    ///
    /// # Errors
    /// [`TargetError`] for a name that is none.
    pub fn endpoint(&self) -> Result<Endpoint, TargetError> {
        let host = match self.address {
            AddressView::V4(bytes) => Host::ip(Ipv4Addr::from(bytes).into()),
            AddressView::V6(bytes) => Host::ip(Ipv6Addr::from(bytes).into()),
            // Some programs write an address as a name; it is taken for what it is.
            AddressView::Name(name) => str::from_utf8(name)
                .map_err(|_| TargetError::Character)?
                .parse()?,
        };
        let port = self.port;
        Ok(Endpoint { host, port })
    }
}

impl Endpoint {
    /// 0.0.0.0:0, "not known".
    pub const UNSPECIFIED: Self = Self {
        host: Host::Ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        port: 0,
    };

    /// The target, which has a port.
    ///
    /// # Errors
    /// [`TargetError::Port`] for port 0.
    pub fn target(self) -> Result<Target, TargetError> {
        Target::new(self.host, self.port)
    }

    /// Appends ATYP, address and port.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match &self.host {
            Host::Ip(IpAddr::V4(ip)) => emit_tagged(out, IPV4, &ip.octets()),
            Host::Ip(IpAddr::V6(ip)) => emit_tagged(out, IPV6, &ip.octets()),
            Host::Name(name) => emit_name(out, name),
        }
        out.extend(self.port.to_be_bytes());
    }
}

fn emit_tagged(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    out.extend(bytes);
}

fn emit_name(out: &mut Vec<u8>, name: &HostName) {
    let name = name.as_str().as_bytes();
    // A host name has at most 253 bytes.
    let len = u8::try_from(name.len()).unwrap_or(u8::MAX);
    out.extend([NAME, len]);
    out.extend(name);
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        let (host, port) = (Host::ip(addr.ip()), addr.port());
        Self { host, port }
    }
}

impl From<Target> for Endpoint {
    fn from(Target { host, port }: Target) -> Self {
        Self { host, port }
    }
}

impl fmt::Debug for AddressView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4(_) => "V4(hidden)",
            Self::V6(_) => "V6(hidden)",
            Self::Name(_) => "Name(hidden)",
        })
    }
}

impl fmt::Debug for EndpointView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndpointView({:?})", self.address)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({:?})", self.host)
    }
}

// The messages on the SOCKS control connection, in the order in which they are sent.
// RFC 1928 §3, §4, §6; RFC 1929 §2.

/// The client's greeting: which methods of authentication it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GreetingView<'a> {
    /// Method numbers, any bytes.
    pub methods: &'a [u8],
}

/// A method of authentication that we speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// 0: none.
    Open = 0,
    /// 2: user name and password (RFC 1929).
    Credentials = 2,
}

/// User name and password, any bytes. `Debug` hides them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CredentialsView<'a> {
    /// 0..=255 bytes.
    pub user: &'a [u8],
    /// 0..=255 bytes.
    pub password: &'a [u8],
}

/// A request as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestView<'a> {
    /// The command byte.
    pub command: u8,
    /// Where to, unchecked.
    pub endpoint: EndpointView<'a>,
}

/// What a client can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// 1: a TCP connection to the endpoint.
    Connect = 1,
    /// 2: a TCP connection from the endpoint.
    Bind = 2,
    /// 3: UDP; the endpoint is where the client will send from, if it knows.
    Associate = 3,
}

/// A valid request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub command: Command,
    /// Where to, or where from.
    pub endpoint: Endpoint,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How it went.
    pub code: ReplyCode,
    /// For an association where to send datagrams; else [`Endpoint::UNSPECIFIED`], because the address
    /// that the target sees belongs to the last relay and is nobody's business here.
    pub bound: Endpoint,
}

/// How a request went (RFC 1928 §6, the REP field).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplyCode {
    /// 0.
    Succeeded = 0,
    /// 1: "general SOCKS server failure".
    GeneralFailure = 1,
    /// 2: "connection not allowed by ruleset".
    NotAllowed = 2,
    /// 3.
    NetworkUnreachable = 3,
    /// 4.
    HostUnreachable = 4,
    /// 5.
    ConnectionRefused = 5,
    /// 6: "TTL expired"; programs show it as a time-out.
    TtlExpired = 6,
    /// 7.
    CommandNotSupported = 7,
    /// 8.
    AddressTypeNotSupported = 8,
}

impl<'a> GreetingView<'a> {
    /// Reads one greeting; answers with it and its length.
    ///
    /// # Errors
    /// [`Unread::More`] for a part of one; [`Refusal`] for another protocol.
    pub fn parse(input: &'a [u8]) -> Result<(Self, usize), Unread> {
        let mut reader = Reader::new(input);
        check_protocol(reader.byte()?).map_err(Unread::Bad)?;
        let methods = reader.counted()?;
        Ok((Self { methods }, reader.consumed(input)))
    }

    /// The method to use: credentials wherever they are offered, because they isolate.
    ///
    /// # Errors
    /// [`Refusal::Methods`].
    pub fn choose(&self) -> Result<Method, Refusal> {
        [Method::Credentials, Method::Open]
            .into_iter()
            .find(|method| self.methods.contains(&(*method as u8)))
            .ok_or(Refusal::Methods)
    }

    /// Appends the greeting; only the first 255 methods are written.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        emit_counted(out, self.methods);
    }
}

fn check_protocol(first: u8) -> Result<(), Refusal> {
    match first {
        VERSION => Ok(()),
        4 => Err(Refusal::Socks4),
        0x16 => Err(Refusal::Tls),
        b'A'..=b'Z' | b'a'..=b'z' => Err(Refusal::Http),
        other => Err(Refusal::Version(other)),
    }
}

impl Method {
    /// The server's choice.
    pub fn emit(self) -> [u8; 2] {
        [VERSION, self as u8]
    }
}

impl<'a> CredentialsView<'a> {
    /// "The server verifies the supplied UNAME and PASSWD": here all are welcome.
    pub const ACCEPTED: [u8; 2] = [1, 0];

    /// Reads the message of RFC 1929; answers with it and its length.
    ///
    /// # Errors
    /// [`Unread::More`], or [`Refusal::Credentials`].
    pub fn parse(input: &'a [u8]) -> Result<(Self, usize), Unread> {
        let mut reader = Reader::new(input);
        match reader.byte()? {
            1 => {}
            other => return Err(Unread::Bad(Refusal::Credentials(other))),
        }
        let (user, password) = (reader.counted()?, reader.counted()?);
        Ok((Self { user, password }, reader.consumed(input)))
    }

    /// Appends the message; at most 255 bytes of each are written.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(1);
        emit_counted(out, self.user);
        emit_counted(out, self.password);
    }
}

impl<'a> RequestView<'a> {
    /// Reads one request; answers with it and its length. The reserved byte is not looked at.
    ///
    /// # Errors
    /// [`Unread::More`], [`Refusal::Version`], [`Refusal::AddressType`].
    pub fn parse(input: &'a [u8]) -> Result<(Self, usize), Unread> {
        let mut reader = Reader::new(input);
        let [command, _reserved] = read_head(&mut reader)?;
        let endpoint = EndpointView::read(&mut reader)?;
        let view = Self { command, endpoint };
        Ok((view, reader.consumed(input)))
    }

    /// The strict value.
    ///
    /// # Errors
    /// [`Refusal::Command`], [`Refusal::Target`].
    pub fn request(&self) -> Result<Request, Refusal> {
        let command = match self.command {
            1 => Command::Connect,
            2 => Command::Bind,
            3 => Command::Associate,
            other => return Err(Refusal::Command(other)),
        };
        let endpoint = self.endpoint.endpoint().map_err(Refusal::Target)?;
        Ok(Request { command, endpoint })
    }
}

fn read_head(reader: &mut Reader<'_>) -> Result<[u8; 2], Unread> {
    match reader.byte()? {
        VERSION => reader.array(),
        other => Err(Unread::Bad(Refusal::Version(other))),
    }
}

impl Request {
    /// Appends the request.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend([VERSION, self.command as u8, 0]);
        self.endpoint.emit(out);
    }
}

impl Reply {
    /// Reads one reply; answers with it and its length. Unknown codes are [`ReplyCode::GeneralFailure`].
    ///
    /// # Errors
    /// [`Unread::More`], [`Refusal::Version`], [`Refusal::AddressType`], [`Refusal::Target`].
    pub fn parse(input: &[u8]) -> Result<(Self, usize), Unread> {
        let mut reader = Reader::new(input);
        let [code, _reserved] = read_head(&mut reader)?;
        let view = EndpointView::read(&mut reader)?;
        let bound = view
            .endpoint()
            .map_err(|e| Unread::Bad(Refusal::Target(e)))?;
        let code = ReplyCode::from_byte(code);
        Ok((Self { code, bound }, reader.consumed(input)))
    }

    /// Appends the reply.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend([VERSION, self.code as u8, 0]);
        self.bound.emit(out);
    }
}

impl ReplyCode {
    fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Succeeded,
            2 => Self::NotAllowed,
            3 => Self::NetworkUnreachable,
            4 => Self::HostUnreachable,
            5 => Self::ConnectionRefused,
            6 => Self::TtlExpired,
            7 => Self::CommandNotSupported,
            8 => Self::AddressTypeNotSupported,
            _ => Self::GeneralFailure,
        }
    }
}

fn emit_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    out.push(len);
    out.extend(bytes.iter().take(len.into()));
}

impl fmt::Debug for CredentialsView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsView(hidden)")
    }
}

// The header in front of every datagram of an association.
// RFC 1928 §7.
//
// We do not reassemble fragments, because no program sends them: "Implementation of fragmentation is optional; an
// implementation that does not support fragmentation MUST drop any datagram whose FRAG field is other than X'00'."

/// A datagram between a program and the proxy, as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramView<'a> {
    /// 0 for a whole datagram.
    pub fragment: u8,
    /// Where to, or where from; unchecked.
    pub endpoint: EndpointView<'a>,
    /// The bytes of the header: an answer from the same endpoint starts with the same ones.
    pub header: &'a [u8],
    /// What is carried.
    pub payload: &'a [u8],
}

impl<'a> DatagramView<'a> {
    /// Reads one datagram. The reserved bytes are not looked at.
    ///
    /// # Errors
    /// [`Unread::More`] for a header that is cut, [`Refusal::AddressType`].
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Unread> {
        let mut reader = Reader::new(datagram);
        let [_, _, fragment] = reader.array()?;
        let endpoint = EndpointView::read(&mut reader)?;
        let header = datagram.strip_suffix(reader.rest()).unwrap_or(datagram);
        Ok(Self {
            fragment,
            endpoint,
            header,
            payload: reader.rest(),
        })
    }
}

impl Endpoint {
    /// Appends the header of a whole datagram to or from this endpoint.
    pub fn emit_datagram_header(&self, out: &mut Vec<u8>) {
        out.extend([0, 0, 0]);
        self.emit(out);
    }
}

// Takes bytes off the front of a message that may not be complete yet.

/// What is left to read.
#[derive(Clone, Debug)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// How many bytes of `input` are read.
    fn consumed(&self, input: &[u8]) -> usize {
        input.len().saturating_sub(self.0.len())
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Unread> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Unread::More)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unread> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Unread::More)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, Unread> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A length byte and as many bytes.
    fn counted(&mut self) -> Result<&'a [u8], Unread> {
        let len = self.byte()?;
        self.take(len.into())
    }
}

// Why a program that talks to the SOCKS port is turned away, and what it is told.
// RFC 1928 §3 and §6, RFC 1929 §2.

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// They may become one when more arrive.
    More,
    /// They never will.
    Bad(Refusal),
}

/// Why a client is turned away. The texts name nobody and say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A SOCKS4 or SOCKS4a client.
    #[error("the client speaks SOCKS4: set it to SOCKS5, with names resolved by the proxy")]
    Socks4,
    /// An HTTP request: an HTTP proxy was meant, or a web page probes the port.
    #[error("the client speaks HTTP: set it to a SOCKS5 proxy, or use the port of the HTTP proxy")]
    Http,
    /// A TLS handshake: the client was told that the proxy itself is reached by TLS.
    #[error("the client speaks TLS to the SOCKS port: set it to plain SOCKS5")]
    Tls,
    /// Another first byte.
    #[error("SOCKS version {0} is not supported: use SOCKS5")]
    Version(u8),
    /// Neither "no authentication" nor "user name and password" is offered.
    #[error("the client offers no authentication method that is supported")]
    Methods,
    /// The user name and password message has an unknown version.
    #[error("user name and password come in version {0}, expected 1")]
    Credentials(u8),
    /// A command that RFC 1928 does not know.
    #[error("SOCKS command {0} is not supported")]
    Command(u8),
    /// An address type that RFC 1928 does not know.
    #[error("SOCKS address type {0} is not supported")]
    AddressType(u8),
    /// The target cannot exist.
    #[error("the target is not valid: {0}")]
    Target(TargetError),
}

impl Refusal {
    /// What to send before closing; empty where no answer can be understood.
    pub fn answer(&self) -> Vec<u8> {
        match self {
            Self::Socks4 => vec![0, 0x5b, 0, 0, 0, 0, 0, 0],
            Self::Http => http_answer(),
            Self::Tls | Self::Version(_) => Vec::new(),
            // "If the selected METHOD is X'FF', none of the methods listed by the client are acceptable"
            Self::Methods => vec![VERSION, 0xff],
            // "If the server returns a `failure' (STATUS value other than X'00') status, it MUST close the connection."
            Self::Credentials(_) => vec![1, 1],
            Self::Command(_) => reply(ReplyCode::CommandNotSupported),
            Self::AddressType(_) => reply(ReplyCode::AddressTypeNotSupported),
            Self::Target(TargetError::Port) => reply(ReplyCode::GeneralFailure),
            Self::Target(_) => reply(ReplyCode::HostUnreachable),
        }
    }
}

fn reply(code: ReplyCode) -> Vec<u8> {
    let bound = Endpoint::UNSPECIFIED;
    let mut out = Vec::new();
    Reply { code, bound }.emit(&mut out);
    out
}

fn http_answer() -> Vec<u8> {
    let body = "This port speaks SOCKS5, not HTTP. Set the program to a SOCKS5 proxy, or to the port of the HTTP proxy.\n";
    let len = body.len();
    format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint() -> impl Strategy<Value = Endpoint> {
        let name = "[a-z0-9_-]{1,20}(\\.[a-z][a-z0-9-]{0,20}){1,4}"
            .prop_map(|name| Host::Name(HostName::new(&name).expect("valid")));
        let v4 = any::<[u8; 4]>().prop_map(|bytes| Host::ip(bytes.into()));
        let v6 = any::<[u8; 16]>().prop_map(|bytes| Host::ip(bytes.into()));
        (prop_oneof![name, v4, v6], any::<u16>()).prop_map(|(host, port)| Endpoint { host, port })
    }

    fn command() -> impl Strategy<Value = Command> {
        prop_oneof![
            Just(Command::Connect),
            Just(Command::Bind),
            Just(Command::Associate)
        ]
    }

    #[test]
    fn credentials_are_chosen_wherever_they_are_offered() {
        for (methods, chosen) in [
            (&[0u8][..], Ok(Method::Open)),
            (&[0, 1, 2], Ok(Method::Credentials)),
            (&[2], Ok(Method::Credentials)),
            (&[1, 0x80], Err(Refusal::Methods)),
            (&[], Err(Refusal::Methods)),
        ] {
            assert_eq!(GreetingView { methods }.choose(), chosen);
        }
    }

    #[test]
    fn an_address_written_as_a_name_is_an_address() {
        let input = b"\x05\x01\x00\x03\x09192.0.2.1\x00\x50";
        let (view, len) = RequestView::parse(input).expect("parses");
        let request = view.request().expect("valid");
        assert_eq!(len, input.len());
        assert_eq!(
            request.endpoint,
            Endpoint::from("192.0.2.1:80".parse::<SocketAddr>().expect("addr"))
        );
    }

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(command in command(), endpoint in endpoint(), tail in any::<Vec<u8>>()) {
            let request = Request { command, endpoint };
            let mut out = Vec::new();
            request.emit(&mut out);
            let len = out.len();
            for cut in 0..len {
                prop_assert_eq!(RequestView::parse(&out[..cut]), Err(Unread::More));
            }
            out.extend(tail);
            let (view, consumed) = RequestView::parse(&out).expect("parses");
            prop_assert_eq!((view.request(), consumed), (Ok(request), len));
        }

        #[test]
        fn a_reply_is_read_as_it_was_written(code in 0u8..=8, bound in endpoint()) {
            let reply = Reply { code: ReplyCode::from_byte(code), bound };
            let mut out = Vec::new();
            reply.emit(&mut out);
            prop_assert_eq!(Reply::parse(&out), Ok((reply, out.len())));
        }

        #[test]
        fn credentials_are_read_as_they_were_written(user in proptest::collection::vec(any::<u8>(), 0..=255), password in proptest::collection::vec(any::<u8>(), 0..=255)) {
            let credentials = CredentialsView { user: &user, password: &password };
            let mut out = Vec::new();
            credentials.emit(&mut out);
            prop_assert_eq!(CredentialsView::parse(&out), Ok((credentials, out.len())));
        }

        #[test]
        fn a_greeting_is_read_as_it_was_written(methods in proptest::collection::vec(any::<u8>(), 0..=255)) {
            let greeting = GreetingView { methods: &methods };
            let mut out = Vec::new();
            greeting.emit(&mut out);
            prop_assert_eq!(GreetingView::parse(&out), Ok((greeting, out.len())));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in any::<Vec<u8>>()) {
            let _greeting = GreetingView::parse(&bytes);
            let _credentials = CredentialsView::parse(&bytes);
            let _request = RequestView::parse(&bytes).map(|(view, _)| view.request());
            let _reply = Reply::parse(&bytes);
        }
    }

    #[test]
    fn the_fragment_number_is_seen() {
        let view = DatagramView::parse(&[0, 0, 7, 1, 192, 0, 2, 1, 0, 53, 9]).expect("parses");
        assert_eq!((view.fragment, view.payload), (7, &[9u8][..]));
    }

    proptest! {
        #[test]
        fn a_datagram_is_read_as_it_was_written(name in "[a-z]{1,63}", port in 1u16.., payload in any::<Vec<u8>>()) {
            let target: Target = format!("{name}:{port}").parse().expect("valid");
            let endpoint = Endpoint::from(target);
            let mut out = Vec::new();
            endpoint.emit_datagram_header(&mut out);
            let header = out.clone();
            out.extend(&payload);
            let view = DatagramView::parse(&out).expect("parses");
            prop_assert_eq!(view.endpoint.endpoint(), Ok(endpoint));
            prop_assert_eq!((view.fragment, view.header, view.payload), (0, &header[..], &payload[..]));
        }

        #[test]
        fn any_datagram_is_read_without_a_panic(bytes in any::<Vec<u8>>()) {
            if let Ok(view) = DatagramView::parse(&bytes) {
                prop_assert_eq!([view.header, view.payload].concat(), bytes);
            }
        }
    }
}
