//! What every overlay must do, as functions that a test calls: [`crate::conformance_tests`] makes one test of each.
//! The far end is [`Loopback`] or [`Memory`].
//! The functions panic when the overlay is wrong. None asserts on time; limits only end a test that hangs.

/// One test for each function of the suite. The argument makes a fresh [`Subject`]; it may await.
#[macro_export]
macro_rules! conformance_tests {
    ($subject:expr) => {
        $crate::conformance_tests!($subject;
            a_mebibyte_is_echoed_unchanged
            the_opener_may_finish_first
            the_target_may_finish_first
            a_reset_by_the_target_is_an_error_and_not_an_end
            a_dropped_stream_is_reset_at_the_target
            a_refusing_target_is_named_as_refusing
            a_name_that_does_not_exist_is_reported_as_such
            a_silent_target_is_given_up_at_the_deadline
            a_slow_reader_pushes_back_on_the_target
            a_slow_target_pushes_back_on_the_writer
            an_early_stream_takes_bytes_at_once
            an_early_stream_may_be_finished_at_once
            an_early_stream_hears_a_target_that_speaks_first
            an_early_stream_says_why_it_was_refused
            an_early_writer_is_told_of_a_refusal
            an_early_stream_to_a_silent_target_is_given_up
            many_streams_are_carried_at_once
            isolated_flows_are_carried
            datagrams_keep_their_boundaries
            a_batch_arrives_payload_by_payload
            an_oversized_datagram_is_never_split
            many_datagram_flows_are_carried_at_once
            echoes_come_back_as_they_went
            packets_that_break_a_rule_are_dropped
            a_resolver_repeats_id_and_question
            a_resolver_says_that_a_name_does_not_exist
            a_resolver_is_not_upset_by_rubbish
        );
    };
    ($subject:expr; $($name:ident)+) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::conformance::$name(&$subject).await;
            }
        )+
    };
}

mod datagrams;

use std::{
    any::Any,
    fmt,
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use hoplite_wire::{
    HostName, Target,
    dns::{Code, Question, RecordType},
};
use socket2::{Domain, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_buf, split},
    net::{TcpListener, TcpSocket, UdpSocket},
    time::timeout,
};

pub use self::datagrams::*;
use crate::{
    Error, ErrorKind, Isolation, Opening, Overlay, Reason, Stream, Terms, direct::TcpFlow, memory,
};

/// How long one test may take before it counts as hanging.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// An overlay to be tested and the servers that it is to reach.
#[derive(Debug, Clone)]
pub struct Subject {
    /// What is tested.
    pub overlay: Arc<dyn Overlay>,
    /// Where its flows end.
    pub far: Arc<dyn Far>,
}

impl Subject {
    /// An overlay and the servers that it can reach.
    pub fn new(overlay: Arc<dyn Overlay>, far: Arc<dyn Far>) -> Self {
        Self { overlay, far }
    }

    /// An overlay that reaches servers on this machine's loopback addresses.
    pub fn on_loopback(overlay: Arc<dyn Overlay>) -> Self {
        Self::new(overlay, Arc::new(Loopback))
    }
}

async fn soon<T>(doing: &str, what: impl Future<Output = T>) -> T {
    let done = timeout(HANG_TIMEOUT, what).await;
    done.unwrap_or_else(|_| hangs(doing))
}

#[expect(
    clippy::panic,
    reason = "a conformance check fails by panicking, as a test does"
)]
fn hangs(doing: &str) -> ! {
    panic!("{doing} hangs")
}

/// Bytes that differ from place to place, so that a shifted or doubled piece is noticed.
fn pattern(len: usize) -> Vec<u8> {
    let byte = |n: usize| (n ^ (n >> 8) ^ (n >> 16)).to_le_bytes()[0];
    (0..len).map(byte).collect()
}

// The servers that the conformance suite talks to, on loopback or in memory.

/// Where servers are started.
pub trait Far: fmt::Debug + Send + Sync {
    /// Listens for streams at a free port.
    fn listen(&self) -> Opening<'_, Box<dyn FarListener>>;

    /// Receives datagrams at a free port.
    fn bind(&self) -> Opening<'_, Box<dyn FarSocket>>;

    /// Where the servers are; it answers echoes once one is there.
    fn host(&self) -> IpAddr;

    /// Somewhere that never answers a connection.
    fn silent(&self) -> Opening<'_, Silent>;
}

/// Accepts streams.
pub trait FarListener: Send {
    /// Where the overlay finds it.
    fn target(&self) -> Target;

    /// The next stream.
    fn accept(&mut self) -> Opening<'_, Stream>;
}

/// Receives and answers datagrams.
pub trait FarSocket: Send + Sync {
    /// Where the overlay finds it.
    fn target(&self) -> Target;

    /// The next datagram and who sent it.
    fn recv(&self) -> Opening<'_, (Vec<u8>, SocketAddr)>;

    /// Answers.
    fn send<'a>(&'a self, payload: &'a [u8], to: SocketAddr) -> Opening<'a, ()>;
}

/// Somewhere that never answers, as long as this lives.
pub struct Silent {
    /// Where.
    pub target: Target,
    _kept: Box<dyn Any + Send>,
}

/// Servers at 127.0.0.1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loopback;

/// Servers at one host of an in-memory network.
#[derive(Clone, Debug)]
pub struct Memory {
    network: memory::Network,
    host: IpAddr,
}

impl Memory {
    /// Servers at `host`.
    pub fn new(network: memory::Network, host: IpAddr) -> Self {
        Self { network, host }
    }
}

const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Far for Loopback {
    fn host(&self) -> IpAddr {
        HERE.ip()
    }

    fn listen(&self) -> Opening<'_, Box<dyn FarListener>> {
        Box::pin(async {
            let listener = TcpListener::bind(HERE).await.expect("loopback is there");
            Ok(Box::new(listener) as Box<dyn FarListener>)
        })
    }

    fn bind(&self) -> Opening<'_, Box<dyn FarSocket>> {
        Box::pin(async {
            let socket = UdpSocket::bind(HERE).await.expect("loopback is there");
            Ok(Box::new(socket) as Box<dyn FarSocket>)
        })
    }

    #[expect(clippy::disallowed_methods, reason = "fills the server's own queue")]
    /// A listener whose queue is full: the kernel drops further attempts.
    fn silent(&self) -> Opening<'_, Silent> {
        Box::pin(async {
            let listener = socket2::Socket::new(Domain::IPV4, Type::STREAM, None);
            let listener = listener.expect("a socket");
            listener.bind(&HERE.into()).expect("binds");
            listener.listen(0).expect("listens");
            let address = listener.local_addr().expect("bound").as_socket();
            let address = address.expect("an address");
            let filler = TcpSocket::new_v4()
                .expect("a socket")
                .connect(address)
                .await;
            Ok(Silent {
                target: address.into(),
                _kept: Box::new((listener, filler)),
            })
        })
    }
}

impl FarListener for TcpListener {
    fn target(&self) -> Target {
        self.local_addr().expect("bound").into()
    }

    fn accept(&mut self) -> Opening<'_, Stream> {
        Box::pin(async {
            let (socket, _) = Self::accept(self).await.expect("accepts");
            Ok(Stream::new(TcpFlow::new(socket)))
        })
    }
}

impl FarSocket for UdpSocket {
    fn target(&self) -> Target {
        self.local_addr().expect("bound").into()
    }

    fn recv(&self) -> Opening<'_, (Vec<u8>, SocketAddr)> {
        Box::pin(async {
            let mut buf = vec![0; 65_535];
            let (len, from) = self.recv_from(&mut buf).await.expect("receives");
            buf.truncate(len);
            Ok((buf, from))
        })
    }

    fn send<'a>(&'a self, payload: &'a [u8], to: SocketAddr) -> Opening<'a, ()> {
        Box::pin(async move {
            self.send_to(payload, to).await.expect("sends");
            Ok(())
        })
    }
}

impl Far for Memory {
    fn host(&self) -> IpAddr {
        self.host
    }

    fn listen(&self) -> Opening<'_, Box<dyn FarListener>> {
        Box::pin(async { Ok(Box::new(self.network.listen(self.host)) as Box<dyn FarListener>) })
    }

    fn bind(&self) -> Opening<'_, Box<dyn FarSocket>> {
        Box::pin(async { Ok(Box::new(self.network.bind(self.host)) as Box<dyn FarSocket>) })
    }

    fn silent(&self) -> Opening<'_, Silent> {
        Box::pin(async {
            let listener = self.network.listen(self.host);
            self.network.silence(listener.address());
            Ok(Silent {
                target: listener.address().into(),
                _kept: Box::new(listener),
            })
        })
    }
}

impl FarListener for memory::Listener {
    fn target(&self) -> Target {
        self.address().into()
    }

    fn accept(&mut self) -> Opening<'_, Stream> {
        Box::pin(async { Ok(Self::accept(self).await) })
    }
}

impl FarSocket for memory::Socket {
    fn target(&self) -> Target {
        self.address().into()
    }

    fn recv(&self) -> Opening<'_, (Vec<u8>, SocketAddr)> {
        Box::pin(async {
            let (payload, from) = Self::recv(self).await;
            Ok((payload.to_vec(), from))
        })
    }

    fn send<'a>(&'a self, payload: &'a [u8], to: SocketAddr) -> Opening<'a, ()> {
        Box::pin(async move {
            Self::send(self, payload, to);
            Ok(())
        })
    }
}

impl fmt::Debug for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Silent")
    }
}

// What every overlay must do with TCP flows.

/// How much the path from end to end may hold, kernel buffers included, before the writer must stall, in bytes.
const MAX_IN_FLIGHT: usize = 64 * 1024 * 1024;

/// A write that takes longer has stalled.
const STALLED: Duration = Duration::from_millis(500);

impl Subject {
    async fn open(&self, target: &Target, terms: &Terms) -> Result<Stream, Error> {
        soon("opening a stream", self.overlay.open_stream(target, terms)).await
    }

    /// Both ends of a new stream: the opener's and the target's.
    async fn pair(&self) -> (Stream, Stream) {
        let mut listener = self.far.listen().await.expect("a server");
        let (target, terms) = (listener.target(), Terms::default());
        let (near, far) = tokio::join!(
            self.open(&target, &terms),
            soon("accepting", listener.accept())
        );
        (near.expect("opens"), far.expect("accepts"))
    }
}

async fn echo(mut stream: Stream) -> io::Result<()> {
    let (reader, mut writer) = split(&mut stream);
    copy_buf(&mut tokio::io::BufReader::new(reader), &mut writer).await?;
    stream.shutdown().await
}

async fn serve_echo(mut listener: Box<dyn FarListener>) {
    while let Ok(stream) = listener.accept().await {
        tokio::spawn(echo(stream));
    }
}

/// Sends `data`, finishes, and reads to the end at the same time.
async fn exchange(stream: Stream, data: &[u8]) -> io::Result<Vec<u8>> {
    let (mut reader, mut writer) = split(stream);
    let mut got = Vec::new();
    let sending = async {
        writer.write_all(data).await?;
        writer.shutdown().await
    };
    let (sent, read) = tokio::join!(sending, reader.read_to_end(&mut got));
    sent.and(read).map(|_| got)
}

/// A large transfer arrives in order and whole, both ways at once.
pub async fn a_mebibyte_is_echoed_unchanged(subject: &Subject) {
    let (near, far) = subject.pair().await;
    let server = tokio::spawn(echo(far));
    let data = pattern(1024 * 1024);
    let got = soon("the echo", exchange(near, &data))
        .await
        .expect("echoed");
    assert!(got == data, "{} bytes came back changed", got.len());
    server.await.expect("no panic").expect("a clean end");
}

/// The opener ends its side; the answer still arrives.
pub async fn the_opener_may_finish_first(subject: &Subject) {
    let (mut near, far) = subject.pair().await;
    half_closed(&mut near, far).await;
}

/// The target ends its side; what the opener sends still arrives.
pub async fn the_target_may_finish_first(subject: &Subject) {
    let (near, mut far) = subject.pair().await;
    half_closed(&mut far, near).await;
}

async fn half_closed(first: &mut Stream, mut second: Stream) {
    let talk = async {
        first.write_all(b"that is all").await.expect("written");
        first.shutdown().await.expect("finished");
        let mut got = String::new();
        second
            .read_to_string(&mut got)
            .await
            .expect("read to the end");
        assert_eq!(got, "that is all");
        let answer = pattern(100_000);
        let mut got = Vec::new();
        let answering = async {
            second.write_all(&answer).await.expect("still open");
            second.shutdown().await.expect("finished");
        };
        let (read, ()) = tokio::join!(first.read_to_end(&mut got), answering);
        read.expect("read to the end");
        assert!(got == answer, "the answer came changed");
    };
    soon("a half-closed stream", talk).await;
}

/// Reads until it ends; says whether by an error.
async fn ends_by_error(mut stream: Stream) -> bool {
    let mut got = Vec::new();
    let reading = stream.read_to_end(&mut got);
    soon("reading to the end", reading).await.is_err()
}

/// A transfer that the target breaks off must not look complete.
pub async fn a_reset_by_the_target_is_an_error_and_not_an_end(subject: &Subject) {
    let (mut near, mut far) = subject.pair().await;
    near.write_all(b"?").await.expect("written");
    far.read_u8().await.expect("read");
    far.write_all(b"half of it").await.expect("written");
    drop(far);
    assert!(ends_by_error(near).await, "a reset looked like an end");
}

/// A transfer that the opener breaks off must not look complete to the target.
pub async fn a_dropped_stream_is_reset_at_the_target(subject: &Subject) {
    let (mut near, mut far) = subject.pair().await;
    near.write_all(b"half of it").await.expect("written");
    near.flush().await.expect("flushed");
    far.read_u8().await.expect("read");
    drop(near);
    assert!(ends_by_error(far).await, "a dropped stream looked finished");
}

/// Nobody listens there.
pub async fn a_refusing_target_is_named_as_refusing(subject: &Subject) {
    let listener = subject.far.listen().await.expect("a server");
    let target = listener.target();
    drop(listener);
    let opened = subject.open(&target, &Terms::default()).await;
    let error = opened.expect_err("nobody listens");
    let said = (error.kind(), error.reason());
    assert_eq!(said, (ErrorKind::TargetFailed, Some(Reason::Refused)));
}

/// The name is one of RFC 6761 §6.4, which no resolver knows.
pub async fn a_name_that_does_not_exist_is_reported_as_such(subject: &Subject) {
    let target = "nobody.invalid:80".parse().expect("valid");
    let opened = subject.open(&target, &Terms::default()).await;
    let error = opened.expect_err("no such name");
    let said = (error.kind(), error.reason());
    assert_eq!(said, (ErrorKind::TargetFailed, Some(Reason::NameNotFound)));
}

/// Opening ends at the deadline, and the next flow is not disturbed.
pub async fn a_silent_target_is_given_up_at_the_deadline(subject: &Subject) {
    let silent = subject.far.silent().await.expect("silence");
    let terms = Terms::default().within(Duration::from_millis(300));
    let opened = subject.open(&silent.target, &terms).await;
    assert_eq!(opened.expect_err("late").kind(), ErrorKind::TimedOut);
    a_mebibyte_is_echoed_unchanged(subject).await;
}

/// What a target sends waits at the target until the opener reads: nothing on the way keeps it all.
pub async fn a_slow_reader_pushes_back_on_the_target(subject: &Subject) {
    let (near, far) = subject.pair().await;
    pushes_back(near, far).await;
}

/// What the opener sends waits at the opener until the target reads.
pub async fn a_slow_target_pushes_back_on_the_writer(subject: &Subject) {
    let (near, far) = subject.pair().await;
    pushes_back(far, near).await;
}

async fn pushes_back(mut reader: Stream, mut writer: Stream) {
    let chunk = pattern(64 * 1024);
    let mut written = 0;
    while let Ok(count) = timeout(STALLED, writer.write(&chunk)).await {
        written += count.expect("still open");
        assert!(written < MAX_IN_FLIGHT, "nobody reads, yet all is taken");
    }
    let mut got = 0;
    let mut buf = vec![0; 64 * 1024];
    let reading = async {
        while got < written {
            got += reader.read(&mut buf).await.expect("still open").max(1);
        }
    };
    // The last write may wait in the writer until it is flushed, as `AsyncWrite` permits.
    let reading = async { tokio::join!(reading, writer.flush()).1.expect("still open") };
    soon("reading what had piled up", reading).await;
}

/// None starves, none gets another's bytes.
pub async fn many_streams_are_carried_at_once(subject: &Subject) {
    let listener = subject.far.listen().await.expect("a server");
    let target = listener.target();
    let server = tokio::spawn(serve_echo(listener));
    let talk = async |n: usize| {
        let terms = Terms::default();
        let stream = subject.open(&target, &terms).await.expect("opens");
        let data: Vec<u8> = pattern(10_000 + n).split_off(n);
        let got = exchange(stream, &data).await.expect("echoed");
        assert!(got == data, "stream {n} came back changed");
    };
    soon("a hundred streams", join_all((0..100).map(talk))).await;
    server.abort();
}

/// Tokens change the path, not what arrives.
pub async fn isolated_flows_are_carried(subject: &Subject) {
    let listener = subject.far.listen().await.expect("a server");
    let target = listener.target();
    let server = tokio::spawn(serve_echo(listener));
    for token in ["alice", "bob", "alice"] {
        let terms = Terms {
            isolation: Isolation::new(token.into()),
            ..Terms::default()
        };
        let stream = subject.open(&target, &terms).await.expect("opens");
        let got = soon("an isolated echo", exchange(stream, token.as_bytes())).await;
        assert_eq!(got.expect("echoed"), token.as_bytes());
    }
    server.abort();
}

impl Subject {
    /// A stream that may be handed out before the far end has answered.
    async fn open_early(&self, target: &Target) -> Result<Stream, Error> {
        self.open(target, &Terms::default().early(true)).await
    }

    /// Why an early stream came to nothing, as reading it tells; or opening it, if the overlay does not oblige.
    async fn early_failure(&self, target: &Target, terms: Terms) -> Error {
        let mut stream = match self.open(target, &terms.early(true)).await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        assert!(!stream.is_answered(), "nobody can have answered");
        let error = soon("a failure", stream.read_u8()).await;
        why(&error.expect_err("nothing to read"))
    }
}

fn why(error: &io::Error) -> Error {
    let told = Error::from_io(error);
    told.expect("an error that says whose fault it is").clone()
}

/// What is written before the answer arrives whole and once, and so does what comes back.
pub async fn an_early_stream_takes_bytes_at_once(subject: &Subject) {
    let mut listener = subject.far.listen().await.expect("a server");
    let stream = subject.open_early(&listener.target()).await.expect("opens");
    let data = pattern(1024 * 1024);
    let talk = async {
        tokio::join!(exchange(stream, &data), async {
            echo(listener.accept().await.expect("accepts")).await
        })
    };
    let (got, echoed) = soon("the echo", talk).await;
    let got = got.expect("echoed");
    assert!(got == data, "{} bytes came back changed", got.len());
    echoed.expect("a clean end");
}

/// The opener finishes before anybody has answered; the target hears the end, and its answer still arrives.
pub async fn an_early_stream_may_be_finished_at_once(subject: &Subject) {
    let mut listener = subject.far.listen().await.expect("a server");
    let mut near = subject.open_early(&listener.target()).await.expect("opens");
    let talk = async {
        near.write_all(b"that is all").await.expect("taken");
        near.shutdown().await.expect("finished");
        let mut far = listener.accept().await.expect("accepts");
        let mut got = String::new();
        far.read_to_string(&mut got).await.expect("read to the end");
        assert_eq!(got, "that is all");
        far.write_all(b"answer").await.expect("still open");
        far.shutdown().await.expect("finished");
        got.clear();
        near.read_to_string(&mut got)
            .await
            .expect("read to the end");
        assert_eq!(got, "answer");
    };
    soon("a half-closed stream", talk).await;
}

/// The opener says nothing: it is told that the flow stands by what the target says.
pub async fn an_early_stream_hears_a_target_that_speaks_first(subject: &Subject) {
    let mut listener = subject.far.listen().await.expect("a server");
    let mut near = subject.open_early(&listener.target()).await.expect("opens");
    let talk = async {
        let mut far = listener.accept().await.expect("accepts");
        far.write_all(b"welcome").await.expect("open");
        far.flush().await.expect("open");
        let mut got = [0; 7];
        near.read_exact(&mut got).await.expect("open");
        assert_eq!(&got, b"welcome");
        assert!(near.is_answered());
        near.write_all(b"thanks").await.expect("open");
        near.flush().await.expect("open");
        let mut got = [0; 6];
        far.read_exact(&mut got).await.expect("open");
        assert_eq!(&got, b"thanks");
    };
    soon("a greeting", talk).await;
}

/// Nobody listens there, and nobody has that name.
pub async fn an_early_stream_says_why_it_was_refused(subject: &Subject) {
    let listener = subject.far.listen().await.expect("a server");
    let target = listener.target();
    drop(listener);
    let refused = subject.early_failure(&target, Terms::default()).await;
    let said = (refused.kind(), refused.reason());
    assert_eq!(said, (ErrorKind::TargetFailed, Some(Reason::Refused)));
    let nobody = "nobody.invalid:80".parse().expect("valid");
    let unknown = subject.early_failure(&nobody, Terms::default()).await;
    let said = (unknown.kind(), unknown.reason());
    assert_eq!(said, (ErrorKind::TargetFailed, Some(Reason::NameNotFound)));
}

/// Whoever only writes is told the same, however much they write.
pub async fn an_early_writer_is_told_of_a_refusal(subject: &Subject) {
    let listener = subject.far.listen().await.expect("a server");
    let target = listener.target();
    drop(listener);
    let opened = subject.open_early(&target).await;
    let error = match opened {
        Ok(mut stream) => why(&soon("writing", write_on(&mut stream)).await),
        Err(error) => error,
    };
    let said = (error.kind(), error.reason());
    assert_eq!(said, (ErrorKind::TargetFailed, Some(Reason::Refused)));
}

/// Writes until that fails.
async fn write_on(stream: &mut Stream) -> io::Error {
    let chunk = pattern(64 * 1024);
    loop {
        if let Err(error) = stream.write_all(&chunk).await {
            return error;
        }
    }
}

/// The deadline holds after the stream was handed out.
pub async fn an_early_stream_to_a_silent_target_is_given_up(subject: &Subject) {
    let silent = subject.far.silent().await.expect("silence");
    let terms = Terms::default().within(Duration::from_millis(300));
    let error = subject.early_failure(&silent.target, terms).await;
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    an_early_stream_takes_bytes_at_once(subject).await;
}

// What every overlay with a resolver at its far end must do; one without says that it is unsupported.
// The only name asked for is one of RFC 6761 §6.4, which needs no network to be answered.

impl Subject {
    /// `None` if the overlay has no resolver.
    async fn ask(&self, message: &[u8]) -> Option<Result<Vec<u8>, Error>> {
        let terms = Terms::default();
        let answer = soon("asking", self.overlay.query(message, &terms)).await;
        let unsupported = |error: &Error| error.kind() == ErrorKind::Unsupported;
        (!answer.as_ref().is_err_and(unsupported)).then_some(answer)
    }
}

fn nobody() -> Question {
    let name = HostName::new("Nobody.invalid").expect("valid");
    Question::new(&name, RecordType::A)
}

/// A program that asks is told by id and question which of its queries an answer is for.
pub async fn a_resolver_repeats_id_and_question(subject: &Subject) {
    let question = nobody();
    let Some(answer) = subject.ask(&question.message_with_id(0x1234)).await else {
        return;
    };
    let answer = answer.expect("an answer");
    assert_eq!(answer.get(..2), Some(&[0x12, 0x34][..]), "another id");
    question.heard(&answer).expect("an answer to the question");
}

/// That nobody has the name is an answer to a query, and a failure of a look-up.
pub async fn a_resolver_says_that_a_name_does_not_exist(subject: &Subject) {
    let question = nobody();
    let Some(answer) = subject.ask(&question.message()).await else {
        return;
    };
    let heard = question.heard(&answer.expect("an answer"));
    assert_eq!(heard, Ok((Code::NO_NAME, Vec::new())));
    let terms = Terms::default();
    let looked_up = subject.overlay.resolve("nobody.invalid", &terms);
    let error = soon("resolving", looked_up).await.expect_err("nobody");
    let said = (error.kind(), error.reason());
    assert_eq!(said, (ErrorKind::TargetFailed, Some(Reason::NameNotFound)));
}

/// What is no query gets an error, in either form, and the next one its answer.
pub async fn a_resolver_is_not_upset_by_rubbish(subject: &Subject) {
    for rubbish in [&b""[..], b"x", &[0xff; 40], &[0; 12], &[7; 5000]] {
        let Some(answer) = subject.ask(rubbish).await else {
            return;
        };
        let code = answer.ok().and_then(|answer| Some(answer.get(3)? & 0x0f));
        assert_ne!(code, Some(0), "rubbish was answered");
    }
    let question = nobody();
    let answer = subject.ask(&question.message()).await.expect("supported");
    question.heard(&answer.expect("an answer")).expect("well");
}
