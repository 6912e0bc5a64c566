//! The accepting side's handshake, from the greeting to the request, as a machine without I/O.
//! RFC 1928 §3 and §4, RFC 1929.
//!
//! Calling order: [`Acceptor::step`] until it answers [`Step::Read`]; then [`Acceptor::handle_input`], and again. After
//! [`Step::Request`] or a refusal it is over; what was sent early is in [`Acceptor::into_parts`].

use std::mem;

use zeroize::Zeroizing;

use super::{CredentialsView, GreetingView, Method, Refusal, Request, RequestView, Unread};

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read from the client.
    Read,
    /// Send these bytes to the client.
    Write([u8; 2]),
    /// The handshake is over; a [`super::Reply`] is owed.
    Request(Request),
}

/// The machine. It keeps what was not understood yet: at most 513 bytes and one input.
#[derive(Debug, Default)]
pub struct Acceptor {
    input: Hidden,
    phase: Phase,
    isolation: Option<Hidden>,
}

/// Bytes that may be a password.
#[derive(Default)]
struct Hidden(Zeroizing<Vec<u8>>);

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Greeting,
    Credentials,
    Request,
}

impl Acceptor {
    /// A machine that waits for a greeting.
    pub fn new() -> Self {
        let mut acceptor = Self::default();
        // Enough for all messages: a buffer that grows leaves copies of the password behind.
        acceptor.input.0.reserve(2048);
        acceptor
    }

    /// Takes what was read.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        self.input.0.extend_from_slice(bytes);
    }

    /// Says what to do next.
    ///
    /// # Errors
    /// The [`Refusal`], whose answer is to be sent before closing.
    pub fn step(&mut self) -> Result<Step, Refusal> {
        let read = match self.phase {
            Phase::Greeting => self.greeting(),
            Phase::Credentials => self.credentials(),
            Phase::Request => self.request(),
        };
        match read {
            Ok((step, len)) => {
                self.input.consume(len);
                Ok(step)
            }
            Err(Unread::More) => Ok(Step::Read),
            Err(Unread::Bad(refusal)) => Err(refusal),
        }
    }

    /// The isolation token that the credentials make, and the bytes after the request.
    pub fn into_parts(self) -> (Option<Vec<u8>>, Vec<u8>) {
        let take = |hidden: Hidden| mem::take(&mut *{ hidden }.0);
        (self.isolation.map(take), take(self.input))
    }

    fn greeting(&mut self) -> Result<(Step, usize), Unread> {
        let (greeting, len) = GreetingView::parse(&self.input.0)?;
        let method = greeting.choose().map_err(Unread::Bad)?;
        self.phase = match method {
            Method::Open => Phase::Request,
            Method::Credentials => Phase::Credentials,
        };
        Ok((Step::Write(method.emit()), len))
    }

    fn credentials(&mut self) -> Result<(Step, usize), Unread> {
        let (credentials, len) = CredentialsView::parse(&self.input.0)?;
        self.isolation = Some(Hidden(credentials.isolation().into()));
        self.phase = Phase::Request;
        Ok((Step::Write(CredentialsView::ACCEPTED), len))
    }

    fn request(&mut self) -> Result<(Step, usize), Unread> {
        let (view, len) = RequestView::parse(&self.input.0)?;
        let request = view.request().map_err(Unread::Bad)?;
        Ok((Step::Request(request), len))
    }
}

impl CredentialsView<'_> {
    /// The token that isolates flows: the same for the same user name and password, different for all others.
    pub fn isolation(&self) -> Vec<u8> {
        let mut token = Vec::with_capacity(
            self.user
                .len()
                .saturating_add(self.password.len())
                .saturating_add(8),
        );
        token.extend((self.user.len() as u64).to_be_bytes());
        token.extend(self.user);
        token.extend(self.password);
        token
    }
}

impl Hidden {
    fn consume(&mut self, len: usize) {
        let len = len.min(self.0.len());
        self.0.drain(..len);
    }
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::socks::{Command, Endpoint};

    const CONVERSATION: &[u8] =
        b"\x05\x02\x00\x02\x01\x02me\x02pw\x05\x01\x00\x03\x0bexample.com\x01\xbbearly";

    fn run(chunks: &[&[u8]]) -> (Vec<[u8; 2]>, Option<Request>, Acceptor) {
        let (mut acceptor, mut written) = (Acceptor::new(), Vec::new());
        let mut chunks = chunks.iter();
        loop {
            match acceptor.step().expect("welcome") {
                Step::Write(bytes) => written.push(bytes),
                Step::Request(request) => {
                    chunks.for_each(|chunk| acceptor.handle_input(chunk));
                    return (written, Some(request), acceptor);
                }
                Step::Read => match chunks.next() {
                    Some(chunk) => acceptor.handle_input(chunk),
                    None => return (written, None, acceptor),
                },
            }
        }
    }

    fn refusal(input: &[u8]) -> Option<Refusal> {
        let mut acceptor = Acceptor::new();
        acceptor.handle_input(input);
        loop {
            match acceptor.step() {
                Ok(Step::Write(_)) => {}
                Ok(_) => return None,
                Err(refusal) => return Some(refusal),
            }
        }
    }

    #[test]
    fn a_client_that_sends_all_at_once_is_served_and_its_early_data_kept() {
        let (written, request, acceptor) = run(&[CONVERSATION]);
        let request = request.expect("complete");
        assert_eq!(written, [[5, 2], [1, 0]]);
        assert_eq!(request.command, Command::Connect);
        let target = request.endpoint.target().expect("has a port");
        assert_eq!(target.to_string(), "example.com:443");
        assert_eq!(acceptor.into_parts().1, b"early");
    }

    #[test]
    fn other_protocols_are_recognised_and_told() {
        for (input, expected) in [
            (
                &b"\x04\x01\x00\x50\xc0\x00\x02\x01\x00"[..],
                Refusal::Socks4,
            ),
            (b"GET / HTTP/1.1\r\n\r\n", Refusal::Http),
            (b"CONNECT a:1 HTTP/1.1\r\n\r\n", Refusal::Http),
            (b"\x16\x03\x01\x02\x00", Refusal::Tls),
            (b"\x00", Refusal::Version(0)),
            (b"\x05\x01\x01", Refusal::Methods),
            (b"\x05\x01\x02\x05\x00\x00", Refusal::Credentials(5)),
            (
                b"\x05\x01\x00\x05\x09\x00\x01\x01\x01\x01\x01\x00\x50",
                Refusal::Command(9),
            ),
            (b"\x05\x01\x00\x05\x01\x00\x02", Refusal::AddressType(2)),
        ] {
            assert_eq!(refusal(input), Some(expected), "{input:?}");
        }
        assert!(Refusal::Http.answer().starts_with(b"HTTP/1.1 400 "));
        assert_eq!(Refusal::Socks4.answer()[..2], [0, 0x5b]);
        assert_eq!(Refusal::Command(9).answer()[..2], [5, 7]);
        assert_eq!(Refusal::AddressType(2).answer()[..2], [5, 8]);
    }

    #[test]
    fn names_that_cannot_exist_are_refused() {
        let input = b"\x05\x01\x00\x05\x01\x00\x03\x03a b\x00\x50";
        assert!(matches!(refusal(input), Some(Refusal::Target(_))));
    }

    #[test]
    fn different_credentials_never_make_the_same_token() {
        let token = |user: &'static str, password: &'static str| {
            let (user, password) = (user.as_bytes(), password.as_bytes());
            CredentialsView { user, password }.isolation()
        };
        assert_ne!(token("ab", "c"), token("a", "bc"));
        assert_ne!(token("", ""), token("", "a"));
        assert_eq!(token("a", "b"), token("a", "b"));
    }

    #[test]
    fn debug_output_holds_no_password() {
        let (_, _, acceptor) = run(&[CONVERSATION]);
        let text = format!("{acceptor:?}");
        assert_eq!(
            text,
            "Acceptor { input: 5 bytes, phase: Request, isolation: Some(12 bytes) }"
        );
    }

    #[test]
    fn the_default_endpoint_is_unspecified() {
        let mut out = Vec::new();
        Endpoint::UNSPECIFIED.emit(&mut out);
        assert_eq!(out, [1, 0, 0, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_makes_no_difference(cuts in proptest::collection::vec(1usize..12, 1..60)) {
            let (mut chunks, mut rest) = (Vec::new(), CONVERSATION);
            for cut in cuts {
                let (chunk, tail) = rest.split_at(cut.min(rest.len()));
                chunks.push(chunk);
                rest = tail;
            }
            chunks.push(rest);
            let (written, request, acceptor) = run(&chunks);
            let (expected, whole, reference) = run(&[CONVERSATION]);
            prop_assert_eq!((written, request), (expected, whole));
            prop_assert_eq!(acceptor.into_parts(), reference.into_parts());
        }

        #[test]
        fn any_bytes_are_answered_without_a_panic(bytes in any::<Vec<u8>>()) {
            let _answer = refusal(&bytes).map(|refusal| refusal.answer());
        }
    }
}
