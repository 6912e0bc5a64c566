//! A TCP flow through an overlay: read, write, finish.
//! Reading is buffered (`AsyncBufRead`), so that a copy loop takes the overlay's own buffers without one more copy.

use std::{
    fmt,
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
};

use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use crate::{Error, ErrorKind};

/// What a stream is made of.
///
/// Shutdown finishes the sending side and leaves the receiving side open (half-close). Dropping the stream before
/// both sides have ended resets it: the far end must not take it for a complete transfer.
pub trait Io: AsyncBufRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncBufRead + AsyncWrite + fmt::Debug + Send + Unpin> Io for T {}

/// An open TCP flow. Its I/O errors carry an [`crate::Error`] where the overlay knows more.
#[derive(Debug)]
pub struct Stream {
    io: Box<dyn Io>,
    /// Turns true with the far end's answer, if that was not there when the stream was handed out.
    answered: Option<Arc<AtomicBool>>,
    /// What the stream keeps as long as it is open.
    _held: Option<Box<dyn fmt::Debug + Send>>,
}

impl Stream {
    /// Wraps what carries the flow.
    pub fn new(io: impl Io + 'static) -> Self {
        Self {
            io: Box::new(io),
            answered: None,
            _held: None,
        }
    }

    /// Wraps what carries a flow that the far end has not accepted yet, and gives it up at `deadline` if it has not by then.
    pub fn early(io: impl PendingStream + 'static, deadline: Option<Instant>) -> Self {
        let answered = Arc::<AtomicBool>::default();
        Self {
            io: Box::new(Early::new(io, deadline, Arc::clone(&answered))),
            answered: Some(answered),
            _held: None,
        }
    }

    /// Keeps `held` until it is dropped: what it runs on stays open for this long.
    #[must_use]
    pub fn holding(self, held: impl fmt::Debug + Send + 'static) -> Self {
        Self {
            _held: Some(Box::new(held)),
            ..self
        }
    }

    /// Whether the far end has accepted the flow: always, unless the stream was asked for by [`crate::Terms::early`]. Only
    /// reading and writing find that out.
    pub fn is_answered(&self) -> bool {
        let answered = self.answered.as_ref();
        answered.is_none_or(|answered| answered.load(Relaxed))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_read(cx, buf)
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut *self.get_mut().io).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        Pin::new(&mut *self.io).consume(amt);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_shutdown(cx)
    }
}

// A stream that is handed out before the far end has answered ([`crate::Terms::early`]): what is written travels with the request.
//
// At most 64 KiB are taken before the answer. A refusal comes as the error of the next call, and of all that follow. A far end that refuses also stops reading: then the error
// of a write is held back until the answer is there, for that says more.

/// How many bytes are written before the answer: as many as a connection sends in its first round trip, and so few that many flows
/// whose targets never answer do not fill the window that they share with others.
const MAX_EARLY_DATA: usize = 64 * 1024;

/// A stream on which a flow was asked for, and that takes bytes.
pub trait PendingStream: Io {
    /// The answer: that the flow stands, or why not. Not called again once it is ready; nothing is read before.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>>;
}

/// Such a stream, until its end.
#[derive(Debug)]
pub(crate) struct Early<T> {
    io: T,
    answer: Answer,
    answered: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Answer {
    Awaited(Wait),
    Given,
    Refused(Error),
}

/// Reader and writer may be two tasks, and the stream below wakes the one that asked last: it wakes the other.
#[derive(Debug, Default)]
struct Wait {
    deadline: Option<Pin<Box<Sleep>>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    written: usize,
}

#[derive(Clone, Copy)]
enum Side {
    Reader,
    Writer,
}

impl Wait {
    fn poll<T: PendingStream>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
        side: Side,
    ) -> Poll<Result<(), Error>> {
        let mut answer = io.poll_answer(cx);
        let deadline = self.deadline.as_mut();
        if answer.is_pending() && deadline.is_some_and(|at| at.as_mut().poll(cx).is_ready()) {
            let late = Error::new(ErrorKind::TimedOut, "opening a stream");
            answer = Poll::Ready(Err(late));
        }
        if answer.is_pending() {
            let waker = match side {
                Side::Reader => &mut self.reader,
                Side::Writer => &mut self.writer,
            };
            *waker = Some(cx.waker().clone());
        }
        answer
    }
}

impl<T: PendingStream> Early<T> {
    /// With `deadline`, the answer is given up then; `answered` turns true when it was a good one.
    pub(crate) fn new(io: T, deadline: Option<Instant>, answered: Arc<AtomicBool>) -> Self {
        let wait = Wait {
            deadline: deadline.map(|at| Box::pin(sleep_until(at))),
            ..Wait::default()
        };
        Self {
            io,
            answer: Answer::Awaited(wait),
            answered,
        }
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>, side: Side) -> Poll<io::Result<()>> {
        let wait = match &mut self.answer {
            Answer::Given => return Poll::Ready(Ok(())),
            Answer::Refused(error) => return Poll::Ready(Err(error.clone().into())),
            Answer::Awaited(wait) => wait,
        };
        let said = ready!(wait.poll(&mut self.io, cx, side));
        for waker in [wait.reader.take(), wait.writer.take()] {
            waker.into_iter().for_each(Waker::wake);
        }
        self.answered.store(said.is_ok(), Relaxed);
        self.answer = match &said {
            Ok(()) => Answer::Given,
            Err(error) => Answer::Refused(error.clone()),
        };
        Poll::Ready(said.map_err(io::Error::from))
    }

    /// Runs one call of the writing side, which is told how many bytes it may write.
    fn poll_writing<R>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut T>, &mut Context<'_>, usize) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        let answer = self.poll_answer(cx, Side::Writer)?;
        let room = self.room();
        match write(Pin::new(&mut self.io), cx, room) {
            // The answer, when it comes, wakes this task.
            Poll::Ready(Err(_)) if answer.is_pending() => Poll::Pending,
            written => written,
        }
    }

    fn room(&self) -> usize {
        match &self.answer {
            Answer::Awaited(wait) => MAX_EARLY_DATA.saturating_sub(wait.written),
            _ => usize::MAX,
        }
    }
}

impl<T: PendingStream> AsyncRead for Early<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let early = self.get_mut();
        ready!(early.poll_answer(cx, Side::Reader))?;
        Pin::new(&mut early.io).poll_read(cx, buf)
    }
}

impl<T: PendingStream> AsyncBufRead for Early<T> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let early = self.get_mut();
        ready!(early.poll_answer(cx, Side::Reader))?;
        Pin::new(&mut early.io).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        Pin::new(&mut self.io).consume(amt);
    }
}

impl<T: PendingStream> AsyncWrite for Early<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let early = self.get_mut();
        let written = early.poll_writing(cx, |io, cx, room| match room {
            0 => Poll::Pending,
            _ => io.poll_write(cx, buf.get(..room).unwrap_or(buf)),
        });
        if let (Poll::Ready(Ok(bytes)), Answer::Awaited(wait)) = (&written, &mut early.answer) {
            wait.written += bytes;
        }
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Answer::Given = self.answer {
            return Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs);
        }
        let first = bufs.iter().find(|buf| !buf.is_empty());
        self.poll_write(cx, first.map_or(&[], |buf| buf))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut()
            .poll_writing(cx, |io, cx, _| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut()
            .poll_writing(cx, |io, cx, _| io.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
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

    impl PendingStream for Far {
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
    async fn bytes_pass_upwards_before_the_answer_and_downwards_behind_it() {
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
        let writing = tokio::spawn(async move { writer.write_all(&[0; 2 * MAX_EARLY_DATA]).await });
        tokio::task::yield_now().await;
        answering.send(Ok(())).expect("waited for");
        far.write_u8(7).await.expect("taken");
        let byte = timeout(LIMIT / 2, reading).await.expect("woken");
        assert_eq!(byte.expect("no panic").expect("read"), 7);
        far.read_exact(&mut [0; 2 * MAX_EARLY_DATA])
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
            writer
                .write_all(&[2; 3 * MAX_EARLY_DATA])
                .await
                .expect("taken");
            first
        });
        let mut got = vec![0; MAX_EARLY_DATA];
        far.read_exact(&mut got).await.expect("at once");
        let more = timeout(Duration::from_secs(1), far.read_u8());
        assert!(more.await.is_err(), "nobody has answered");
        answering.send(Ok(())).expect("waited for");
        let first = writing.await.expect("no panic");
        got.resize(first + 3 * MAX_EARLY_DATA, 0);
        far.read_exact(&mut got[MAX_EARLY_DATA..])
            .await
            .expect("the rest");
        assert!(got[..first].iter().all(|byte| *byte == 1));
        assert!(got[first..].iter().all(|byte| *byte == 2));
        drop(reader);
    }
}
