//! The messages on the SOCKS control connection, in the order in which they are sent.
//! The acceptor reads and writes them; tests and the lab write and read the other half. RFC 1928 §3, §4, §6; RFC 1929 §2.

use std::fmt;

use super::{Endpoint, EndpointView, Refusal, Unread, VERSION, reader::Reader};

/// The client's greeting: which methods of authentication it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GreetingView<'a> {
    /// Method numbers, any octets.
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

/// User name and password, any octets. `Debug` hides them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CredentialsView<'a> {
    /// 0..=255 octets.
    pub user: &'a [u8],
    /// 0..=255 octets.
    pub password: &'a [u8],
}

/// A request as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestView<'a> {
    /// The command octet.
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
        check_protocol(reader.octet()?).map_err(Unread::Bad)?;
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
        match reader.octet()? {
            1 => {}
            other => return Err(Unread::Bad(Refusal::Credentials(other))),
        }
        let (user, password) = (reader.counted()?, reader.counted()?);
        Ok((Self { user, password }, reader.consumed(input)))
    }

    /// Appends the message; at most 255 octets of each are written.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(1);
        emit_counted(out, self.user);
        emit_counted(out, self.password);
    }
}

impl<'a> RequestView<'a> {
    /// Reads one request; answers with it and its length. The reserved octet is not looked at.
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
    match reader.octet()? {
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
        let code = ReplyCode::from_octet(code);
        Ok((Self { code, bound }, reader.consumed(input)))
    }

    /// Appends the reply.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend([VERSION, self.code as u8, 0]);
        self.bound.emit(out);
    }
}

impl ReplyCode {
    fn from_octet(octet: u8) -> Self {
        match octet {
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

fn emit_counted(out: &mut Vec<u8>, octets: &[u8]) {
    let len = u8::try_from(octets.len()).unwrap_or(u8::MAX);
    out.push(len);
    out.extend(octets.iter().take(len.into()));
}

impl fmt::Debug for CredentialsView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsView(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Host, HostName};

    fn endpoint() -> impl Strategy<Value = Endpoint> {
        let name = "[a-z0-9_-]{1,20}(\\.[a-z][a-z0-9-]{0,20}){1,4}"
            .prop_map(|name| Host::Name(HostName::new(&name).expect("valid")));
        let v4 = any::<[u8; 4]>().prop_map(|octets| Host::ip(octets.into()));
        let v6 = any::<[u8; 16]>().prop_map(|octets| Host::ip(octets.into()));
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
            Endpoint::from(
                "192.0.2.1:80"
                    .parse::<std::net::SocketAddr>()
                    .expect("addr")
            )
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
            let reply = Reply { code: ReplyCode::from_octet(code), bound };
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
        fn any_octets_are_read_without_a_panic(octets in any::<Vec<u8>>()) {
            let _greeting = GreetingView::parse(&octets);
            let _credentials = CredentialsView::parse(&octets);
            let _request = RequestView::parse(&octets).map(|(view, _)| view.request());
            let _reply = Reply::parse(&octets);
        }
    }
}
