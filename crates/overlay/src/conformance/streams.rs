//! What every overlay must do with TCP flows.
//! Part of [`super`].

use std::{io, time::Duration};

use futures_util::future::join_all;
use hoplite_wire::Target;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_buf, split},
    time::timeout,
};

use super::{FarListener, Subject, pattern, soon};
use crate::{Error, ErrorKind, Isolation, Reason, Stream, Terms};

/// How much the road from end to end may hold, kernel buffers included, before the writer must stall, in octets.
const ROAD_HOLDS: usize = 64 * 1024 * 1024;

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
    assert!(got == data, "{} octets came back changed", got.len());
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
        assert!(written < ROAD_HOLDS, "nobody reads, yet all is taken");
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

/// None starves, none gets another's octets.
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

/// Tokens change the road, not what arrives.
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
pub async fn an_early_stream_takes_octets_at_once(subject: &Subject) {
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
    assert!(got == data, "{} octets came back changed", got.len());
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
    an_early_stream_takes_octets_at_once(subject).await;
}
