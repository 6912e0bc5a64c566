//! Copies between a program's connection and an overlay's stream, both ways, in one task and without a clock of its own
//! when nothing limits idleness. SOCKS CONNECT and HTTP CONNECT end here.
//!
//! Half-close travels in both directions; what ends otherwise is reset at the other end. At most 64 KiB wait in each
//! direction, in buffers that a flow holds only while something moves.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    io, mem,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use hoplite_overlay::Stream;
use tokio::{
    io::{AsyncBufRead, AsyncReadExt, AsyncWrite},
    time::{Instant, Sleep, sleep},
};

use crate::{counters::Counters, program::ProgramConnection};

/// The most that waits in one direction, in bytes.
pub(crate) const BUFFER: usize = 64 * 1024;
/// How long a target that reads no more may go on sending nothing before both ends are reset.
pub(crate) const LINGER: Duration = Duration::from_secs(10);

/// Whose connection broke.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("the program's connection broke: {0}")]
    Program(io::Error),
    #[error("the target's stream broke: {0}")]
    Stream(io::Error),
}

/// How it ended. All but the first reset both ends.
#[derive(Debug, thiserror::Error)]
enum CopyOutcome {
    #[error("both directions were finished")]
    Complete,
    #[error("the target took no more, and the download has ended")]
    Refused,
    #[error("{0}")]
    Broke(#[from] CopyError),
    #[error("nothing moved for too long")]
    Idle,
}

/// Copies until both directions have ended. `early` is what the program sent before it was answered.
pub(crate) async fn copy(
    program: ProgramConnection,
    stream: Stream,
    early: Vec<u8>,
    idle: Duration,
    counters: &Counters,
) {
    let mut copying = CopyLoop {
        program,
        stream,
        up: Upload::new(early),
        down: Download::default(),
        idle,
        counters,
    };
    let mut watch = IdleTimer::default();
    let end = poll_fn(|cx| copying.poll(cx, &mut watch)).await;
    tracing::trace!(%end, "a flow ended");
    if !matches!(end, CopyOutcome::Complete) {
        copying.program.reset();
    }
}

struct CopyLoop<'a> {
    program: ProgramConnection,
    stream: Stream,
    up: Upload,
    down: Download,
    idle: Duration,
    counters: &'a Counters,
}

impl CopyLoop<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, watch: &mut IdleTimer) -> Poll<CopyOutcome> {
        let (up_before, down_before) = (self.up.moved, self.down.moved);
        let ended = self.poll_both(cx);
        self.counters.bytes_up.add(self.up.moved - up_before);
        self.counters.bytes_down.add(self.down.moved - down_before);
        if ended.is_ready() {
            return ended;
        }
        let (limit, moved) = self.limit();
        watch.poll(cx, limit, moved).map(|()| CopyOutcome::Idle)
    }

    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<CopyOutcome> {
        let down = self.down.poll(cx, &mut self.program, &mut self.stream);
        let up = self.up.poll(cx, &mut self.program, &mut self.stream);
        match (down, up) {
            (Poll::Ready(Err(fault)), _) | (_, Poll::Ready(Err(fault))) => {
                Poll::Ready(fault.into())
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(self.both_ended()),
            _ => Poll::Pending,
        }
    }

    fn both_ended(&self) -> CopyOutcome {
        if self.up.is_refused() {
            CopyOutcome::Refused
        } else {
            CopyOutcome::Complete
        }
    }

    /// How long nothing may move, and what counts as moving.
    fn limit(&self) -> (Duration, usize) {
        match (self.up.is_refused(), self.idle) {
            (true, Duration::ZERO) => (LINGER, self.down.moved),
            (true, idle) => (LINGER.min(idle), self.down.moved),
            (false, idle) => (idle, self.up.moved.wrapping_add(self.down.moved)),
        }
    }
}

/// From the program to the target: reads into one buffer, which is given back while the program is silent. When the target reads no more, what
/// the program sends is read and thrown away until the download has ended, as a server's lingering close does: the answer that the target gave
/// first must arrive.
#[derive(Debug)]
struct Upload {
    /// Bytes taken over by the stream.
    moved: usize,
    buffer: Vec<u8>,
    sent: usize,
    phase: UploadPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadPhase {
    Copying,
    /// The program has finished: the stream is being finished.
    Finishing,
    Finished,
    /// The target reads no more, the program still sends.
    Discarding,
    /// The target reads no more, and the program has finished.
    Discarded,
}

impl Upload {
    fn new(early: Vec<u8>) -> Self {
        Self {
            moved: 0,
            buffer: early,
            sent: 0,
            phase: UploadPhase::Copying,
        }
    }

    /// Whether the target broke this direction.
    fn is_refused(&self) -> bool {
        matches!(self.phase, UploadPhase::Discarding | UploadPhase::Discarded)
    }

    /// Moves what can be moved. A fault of the stream is no error here: the download decides.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        program: &mut ProgramConnection,
        stream: &mut Stream,
    ) -> Poll<Result<(), CopyError>> {
        loop {
            let step = match self.phase {
                UploadPhase::Copying => self.copy(cx, program, stream),
                UploadPhase::Finishing => self.finish(cx, stream),
                UploadPhase::Discarding => self.discard(cx, program),
                UploadPhase::Finished | UploadPhase::Discarded => return Poll::Ready(Ok(())),
            };
            match ready!(step) {
                Ok(()) => {}
                Err(CopyError::Stream(error)) => self.refuse(&error),
                Err(fault) => return Poll::Ready(Err(fault)),
            }
        }
    }

    fn refuse(&mut self, error: &io::Error) {
        tracing::trace!(%error, "the target reads no more");
        self.phase = match self.phase {
            UploadPhase::Copying => UploadPhase::Discarding,
            _ => UploadPhase::Discarded,
        };
    }

    fn copy(
        &mut self,
        cx: &mut Context<'_>,
        program: &mut ProgramConnection,
        stream: &mut Stream,
    ) -> Poll<Result<(), CopyError>> {
        while let Some(rest) = self.buffer.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut *stream).poll_write(cx, rest)).map_err(CopyError::Stream)? {
                0 => return Poll::Ready(Err(CopyError::Stream(io::ErrorKind::WriteZero.into()))),
                n => self.advance(n),
            }
        }
        match self.read(cx, program) {
            Poll::Ready(Ok(0)) => self.phase = UploadPhase::Finishing,
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
            Poll::Pending => return self.flush(cx, stream),
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, n: usize) {
        self.sent += n;
        self.moved += n;
    }

    /// Reads into the empty buffer; gives the buffer back when there is nothing to read.
    fn read(
        &mut self,
        cx: &mut Context<'_>,
        program: &mut ProgramConnection,
    ) -> Poll<Result<usize, CopyError>> {
        self.buffer.clear();
        self.sent = 0;
        if program
            .poll_readable(cx)
            .map_err(CopyError::Program)?
            .is_pending()
        {
            take_back_buffer(&mut self.buffer);
            return Poll::Pending;
        }
        provide_buffer(&mut self.buffer);
        let read = Future::poll(pin!(program.read_buf(&mut self.buffer)), cx);
        if self.buffer.is_empty() {
            take_back_buffer(&mut self.buffer);
        }
        read.map_err(CopyError::Program)
    }

    /// Nothing to read: what an overlay still holds back leaves now.
    fn flush(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<Result<(), CopyError>> {
        match Pin::new(stream).poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(CopyError::Stream(error))),
            _ => Poll::Pending,
        }
    }

    fn finish(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<Result<(), CopyError>> {
        ready!(Pin::new(stream).poll_shutdown(cx)).map_err(CopyError::Stream)?;
        self.phase = UploadPhase::Finished;
        Poll::Ready(Ok(()))
    }

    fn discard(
        &mut self,
        cx: &mut Context<'_>,
        program: &mut ProgramConnection,
    ) -> Poll<Result<(), CopyError>> {
        if ready!(self.read(cx, program))? == 0 {
            self.phase = UploadPhase::Discarded;
        }
        Poll::Ready(Ok(()))
    }
}

/// A slice of at least this many bytes is written without being gathered.
const MIN_UNGATHERED: usize = 16 * 1024;

/// From the target to the program. Large slices of the overlay's buffers are written as they are; small ones, such as single packets, are
/// gathered first: copying a packet costs a tenth of what a system call for it costs.
#[derive(Debug, Default)]
struct Download {
    /// Bytes taken over by the program's connection.
    moved: usize,
    /// What was gathered, given back while the target is silent.
    gathered: Vec<u8>,
    written: usize,
    /// How the stream ended, to be told once all is written.
    ended: Option<io::Result<()>>,
    finished: bool,
}

impl Download {
    /// Moves what can be moved.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        program: &mut ProgramConnection,
        stream: &mut Stream,
    ) -> Poll<Result<(), CopyError>> {
        while !self.finished {
            ready!(self.write_gathered(cx, program))?;
            match self.ended.take() {
                Some(Ok(())) => ready!(self.finish(cx, program))?,
                Some(Err(error)) => return Poll::Ready(Err(CopyError::Stream(error))),
                None => ready!(self.advance(cx, program, stream))?,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn write_gathered(
        &mut self,
        cx: &mut Context<'_>,
        program: &mut ProgramConnection,
    ) -> Poll<Result<(), CopyError>> {
        while let Some(rest) = self.gathered.get(self.written..).filter(|r| !r.is_empty()) {
            let n = ready!(write(cx, program, rest))?;
            self.written += n;
            self.moved += n;
        }
        self.gathered.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Writes one large slice, or gathers small ones. Nothing is gathered yet.
    fn advance(
        &mut self,
        cx: &mut Context<'_>,
        program: &mut ProgramConnection,
        stream: &mut Stream,
    ) -> Poll<Result<(), CopyError>> {
        match Pin::new(&mut *stream).poll_fill_buf(cx) {
            Poll::Ready(Ok(slice)) if slice.len() >= MIN_UNGATHERED => {
                let n = ready!(write(cx, program, slice))?;
                Pin::new(stream).consume(n);
                self.moved += n;
            }
            Poll::Pending => {
                take_back_buffer(&mut self.gathered);
                return Poll::Pending;
            }
            Poll::Ready(Ok([])) => self.ended = Some(Ok(())),
            Poll::Ready(Ok(_)) => self.gather(cx, stream),
            Poll::Ready(Err(error)) => self.ended = Some(Err(error)),
        }
        Poll::Ready(Ok(()))
    }

    fn gather(&mut self, cx: &mut Context<'_>, stream: &mut Stream) {
        provide_buffer(&mut self.gathered);
        while self.gathered.len() < BUFFER {
            match Pin::new(&mut *stream).poll_fill_buf(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok([])) => return self.ended = Some(Ok(())),
                Poll::Ready(Err(error)) => return self.ended = Some(Err(error)),
                Poll::Ready(Ok(slice)) => {
                    let room = BUFFER - self.gathered.len();
                    let slice = slice.get(..room).unwrap_or(slice);
                    self.gathered.extend_from_slice(slice);
                    let n = slice.len();
                    Pin::new(&mut *stream).consume(n);
                }
            }
        }
    }

    fn finish(
        &mut self,
        cx: &mut Context<'_>,
        program: &mut ProgramConnection,
    ) -> Poll<Result<(), CopyError>> {
        let Poll::Ready(done) = Pin::new(program).poll_shutdown(cx) else {
            self.ended = Some(Ok(()));
            return Poll::Pending;
        };
        self.finished = true;
        take_back_buffer(&mut self.gathered);
        Poll::Ready(done.map_err(CopyError::Program))
    }
}

fn write(
    cx: &mut Context<'_>,
    program: &mut ProgramConnection,
    slice: &[u8],
) -> Poll<Result<usize, CopyError>> {
    Poll::Ready(match ready!(Pin::new(program).poll_write(cx, slice)) {
        Ok(0) => Err(CopyError::Program(io::ErrorKind::WriteZero.into())),
        Ok(n) => Ok(n),
        Err(error) => Err(CopyError::Program(error)),
    })
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "the program is here, on loopback"
)]
mod down_tests {
    use std::{
        future::poll_fn,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use tokio::{
        io::{AsyncRead, ReadBuf},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::users::User;

    /// A target that always has more, in pieces of one size, and counts what was taken.
    #[derive(Debug)]
    struct Flood {
        piece: Vec<u8>,
        taken: Arc<AtomicUsize>,
    }

    impl AsyncBufRead for Flood {
        fn poll_fill_buf(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
            Poll::Ready(Ok(&self.get_mut().piece))
        }

        fn consume(self: Pin<&mut Self>, n: usize) {
            self.taken.fetch_add(n, Ordering::SeqCst);
        }
    }

    impl AsyncRead for Flood {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            unreachable!("the copy loop takes the overlay's own buffers")
        }
    }

    impl AsyncWrite for Flood {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    async fn pair() -> (ProgramConnection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("bound");
        let program = TcpStream::connect(address).await.expect("connects");
        let (tcp, _) = listener.accept().await.expect("accepts");
        let user = User::at(address.ip());
        (ProgramConnection::new(tcp, user), program)
    }

    #[tokio::test]
    async fn a_program_that_does_not_read_stops_the_target() {
        for size in [100, 1200, MIN_UNGATHERED, 1 << 20] {
            let (mut program, _program) = pair().await;
            let taken = Arc::new(AtomicUsize::new(0));
            let (piece, counter) = (vec![0; size], Arc::clone(&taken));
            let mut stream = Stream::new(Flood {
                piece,
                taken: counter,
            });
            let mut down = Download::default();
            // The socket's buffers fill; each time that nothing moves, at most one buffer waits here.
            for _ in 0..1000 {
                let poll =
                    poll_fn(|cx| Poll::Ready(down.poll(cx, &mut program, &mut stream))).await;
                assert!(poll.is_pending());
                let waiting = taken.load(Ordering::SeqCst) - down.moved;
                assert!(waiting <= BUFFER, "{waiting} bytes wait");
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Notices that nothing moved for a while, at the cost of one timer and no work for each byte: it is told a number that changes when something
/// moves.
#[derive(Debug, Default)]
pub(crate) struct IdleTimer {
    sleep: Option<Pin<Box<Sleep>>>,
    limit: Duration,
    seen: usize,
}

impl IdleTimer {
    /// Ready when `moved` did not change for `limit`, or up to twice as long; never when `limit` is zero.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, limit: Duration, moved: usize) -> Poll<()> {
        if limit != self.limit {
            (self.limit, self.seen) = (limit, moved);
            self.sleep = (!limit.is_zero()).then(|| Box::pin(sleep(limit)));
        }
        let Some(sleep) = &mut self.sleep else {
            return Poll::Pending;
        };
        while sleep.as_mut().poll(cx).is_ready() {
            if moved == self.seen {
                return Poll::Ready(());
            }
            self.seen = moved;
            sleep.as_mut().reset(Instant::now() + limit);
        }
        Poll::Pending
    }
}

/// How many buffers a thread keeps for later; further ones are freed.
const MAX_STORED: usize = 64;

thread_local! {
    /// Buffers for flows in which something moves. A flow at rest holds none, and a busy one costs no allocation: giving 64 KiB back to the
    /// system for every burst, and faulting them in again for the next, costs more than copying through them.
    static STORE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Makes `buffer` empty and able to hold [`BUFFER`] bytes.
pub(crate) fn provide_buffer(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() < BUFFER {
        let stored = STORE.with_borrow_mut(Vec::pop);
        *buffer = stored.unwrap_or_else(|| Vec::with_capacity(BUFFER));
    }
}

/// Takes the buffer back, leaving one that holds nothing. What was in it is forgotten.
pub(crate) fn take_back_buffer(buffer: &mut Vec<u8>) {
    let mut buffer = mem::take(buffer);
    if buffer.capacity() < BUFFER {
        return;
    }
    buffer.clear();
    STORE.with_borrow_mut(|store| {
        if store.len() < MAX_STORED {
            store.push(buffer);
        }
    });
}

#[cfg(test)]
mod idle_tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_moves_is_not_idle_and_what_rests_is() {
        let (limit, start) = (Duration::from_secs(10), Instant::now());
        let (mut idle, mut moved) = (IdleTimer::default(), 0);
        while start.elapsed() < limit * 5 {
            moved += 1;
            let rested = poll_fn(|cx| idle.poll(cx, limit, moved));
            assert!(
                tokio::time::timeout(Duration::from_secs(1), rested)
                    .await
                    .is_err()
            );
        }
        poll_fn(|cx| idle.poll(cx, limit, moved)).await;
        assert!(start.elapsed() <= limit * 7);
    }
}

#[cfg(test)]
mod pool_tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_and_the_store_stays_small() {
        let mut buffers = vec![Vec::new(); MAX_STORED + 5];
        buffers.iter_mut().for_each(provide_buffer);
        assert!(buffers.iter().all(|buffer| buffer.capacity() >= BUFFER));
        buffers.iter_mut().for_each(take_back_buffer);
        assert!(buffers.iter().all(|buffer| buffer.capacity() == 0));
        assert_eq!(STORE.with_borrow(Vec::len), MAX_STORED);
        let mut again = b"old".to_vec();
        provide_buffer(&mut again);
        assert!(again.is_empty());
        assert_eq!(STORE.with_borrow(Vec::len), MAX_STORED - 1);
    }
}
