use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex, split},
    sync::oneshot,
    time::timeout,
};

use super::*;
use crate::{Reason, Stream};

/// A far end in the test's hands.
#[derive(Debug)]
struct Far {
    io: BufReader<DuplexStream>,
    answer: oneshot::Receiver<Result<(), Error>>,
}

impl Asked for Far {
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.answer)
            .poll(cx)
            .map(|said| said.expect("an answer"))
    }
}

impl AsyncRead for Far {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncBufRead for Far {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().io).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        Pin::new(&mut self.io).consume(amt);
    }
}

impl AsyncWrite for Far {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

type Answering = oneshot::Sender<Result<(), Error>>;

const LIMIT: Duration = Duration::from_secs(10);

fn early() -> (Stream, DuplexStream, Answering) {
    let (near, far) = duplex(1 << 20);
    let (answering, answer) = oneshot::channel();
    let io = BufReader::new(near);
    let deadline = Instant::now() + LIMIT;
    let stream = Stream::early(Far { io, answer }, Some(deadline));
    (stream, far, answering)
}

fn refusal() -> Result<(), Error> {
    Err(Error::new(ErrorKind::TargetFailed, "testing").because(Reason::Refused))
}

fn said(error: &io::Error) -> (ErrorKind, Option<Reason>) {
    let error = Error::from_io(error).expect("an overlay's error");
    (error.kind(), error.reason())
}

#[tokio::test(start_paused = true)]
async fn octets_pass_upwards_before_the_answer_and_downwards_behind_it() {
    let (mut near, mut far, answering) = early();
    near.write_all(b"question").await.expect("taken");
    far.read_exact(&mut [0; 8]).await.expect("at once");
    far.write_all(b"answer").await.expect("taken");
    let mut got = [0; 6];
    let reading = timeout(Duration::from_secs(1), near.read_exact(&mut got));
    assert!(reading.await.is_err(), "nobody has answered");
    assert!(!near.is_answered());
    answering.send(Ok(())).expect("waited for");
    near.read_exact(&mut got).await.expect("told");
    assert!(near.is_answered());
    assert_eq!(&got, b"answer");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_what_every_call_says_from_then_on() {
    let (mut near, _far, answering) = early();
    answering.send(refusal()).expect("waited for");
    let expected = (ErrorKind::TargetFailed, Some(Reason::Refused));
    for _ in 0..2 {
        assert_eq!(said(&near.read_u8().await.expect_err("refused")), expected);
        assert_eq!(
            said(&near.write_u8(1).await.expect_err("refused")),
            expected
        );
        assert_eq!(said(&near.shutdown().await.expect_err("refused")), expected);
    }
    assert!(!near.is_answered());
}

#[tokio::test(start_paused = true)]
async fn a_far_end_that_stops_reading_is_given_time_to_say_why() {
    let (mut near, far, answering) = early();
    drop(far);
    let write = tokio::spawn(async move { near.write_u8(1).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!write.is_finished());
    answering.send(refusal()).expect("waited for");
    let error = write.await.expect("no panic").expect_err("refused");
    assert_eq!(said(&error).1, Some(Reason::Refused));
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_it_is_given_up_at_the_deadline() {
    let (mut near, _far, _answering) = early();
    let start = Instant::now();
    let error = near.read_u8().await.expect_err("late");
    assert_eq!(said(&error).0, ErrorKind::TimedOut);
    assert_eq!(start.elapsed(), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn reader_and_writer_may_be_two_tasks() {
    let (near, mut far, answering) = early();
    let (mut reader, mut writer) = split(near);
    let reading = tokio::spawn(async move { reader.read_u8().await });
    tokio::task::yield_now().await;
    // No more is taken before the answer: now it is the writer whom that wakes.
    let writing = tokio::spawn(async move { writer.write_all(&[0; 2 * FIRST]).await });
    tokio::task::yield_now().await;
    answering.send(Ok(())).expect("waited for");
    far.write_u8(7).await.expect("taken");
    let octet = timeout(LIMIT / 2, reading).await.expect("woken");
    assert_eq!(octet.expect("no panic").expect("read"), 7);
    far.read_exact(&mut [0; 2 * FIRST])
        .await
        .expect("all of it");
    writing.await.expect("no panic").expect("written");
}

#[tokio::test(start_paused = true)]
async fn only_so_much_is_taken_before_the_answer() {
    let (near, mut far, answering) = early();
    let (reader, mut writer) = split(near);
    let writing = tokio::spawn(async move {
        let slices = [IoSlice::new(&[]), IoSlice::new(&[1; 1000])];
        let first = writer.write_vectored(&slices).await.expect("taken");
        writer.write_all(&[2; 3 * FIRST]).await.expect("taken");
        first
    });
    let mut got = vec![0; FIRST];
    far.read_exact(&mut got).await.expect("at once");
    let more = timeout(Duration::from_secs(1), far.read_u8());
    assert!(more.await.is_err(), "nobody has answered");
    answering.send(Ok(())).expect("waited for");
    let first = writing.await.expect("no panic");
    got.resize(first + 3 * FIRST, 0);
    far.read_exact(&mut got[FIRST..]).await.expect("the rest");
    assert!(got[..first].iter().all(|octet| *octet == 1));
    assert!(got[first..].iter().all(|octet| *octet == 2));
    drop(reader);
}
