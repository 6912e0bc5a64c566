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

use crate::{app::App, counters::Counters};

/// The most that waits in one direction, in octets.
pub(crate) const BUFFER: usize = 64 * 1024;
/// How long a target that reads no more may go on sending nothing before both ends are reset.
const LINGER: Duration = Duration::from_secs(10);

/// Whose connection broke.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the program's connection broke: {0}")]
    App(io::Error),
    #[error("the target's stream broke: {0}")]
    Stream(io::Error),
}

/// How it ended. All but the first reset both ends.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("both directions were finished")]
    Complete,
    #[error("the target took no more, and the download has ended")]
    Refused,
    #[error("{0}")]
    Broke(#[from] Fault),
    #[error("nothing moved for too long")]
    Idle,
}

/// Copies until both directions have ended. `early` is what the program sent before it was answered.
pub(crate) async fn copy(
    app: App,
    stream: Stream,
    early: Vec<u8>,
    idle: Duration,
    counters: &Counters,
) {
    let mut pump = Pump {
        app,
        stream,
        up: Up::new(early),
        down: Down::default(),
        idle,
        counters,
    };
    let mut watch = Idle::default();
    let end = poll_fn(|cx| pump.poll(cx, &mut watch)).await;
    tracing::trace!(%end, "a flow ended");
    if !matches!(end, End::Complete) {
        pump.app.reset();
    }
}

struct Pump<'a> {
    app: App,
    stream: Stream,
    up: Up,
    down: Down,
    idle: Duration,
    counters: &'a Counters,
}

impl Pump<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, watch: &mut Idle) -> Poll<End> {
        let (up_before, down_before) = (self.up.moved, self.down.moved);
        let ended = self.poll_both(cx);
        self.counters.octets_up.add(self.up.moved - up_before);
        self.counters.octets_down.add(self.down.moved - down_before);
        if ended.is_ready() {
            return ended;
        }
        let (limit, moved) = self.limit();
        watch.poll(cx, limit, moved).map(|()| End::Idle)
    }

    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let down = self.down.poll(cx, &mut self.app, &mut self.stream);
        let up = self.up.poll(cx, &mut self.app, &mut self.stream);
        match (down, up) {
            (Poll::Ready(Err(fault)), _) | (_, Poll::Ready(Err(fault))) => {
                Poll::Ready(fault.into())
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(self.both_ended()),
            _ => Poll::Pending,
        }
    }

    fn both_ended(&self) -> End {
        if self.up.refused() {
            End::Refused
        } else {
            End::Complete
        }
    }

    /// How long nothing may move, and what counts as moving.
    fn limit(&self) -> (Duration, usize) {
        match (self.up.refused(), self.idle) {
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
struct Up {
    /// Octets taken over by the stream.
    moved: usize,
    buffer: Vec<u8>,
    sent: usize,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Copying,
    /// The program has finished: the stream is being finished.
    Finishing,
    Finished,
    /// The target reads no more, the program still sends.
    Discarding,
    /// The same, and the program has finished.
    Discarded,
}

impl Up {
    fn new(early: Vec<u8>) -> Self {
        Self {
            moved: 0,
            buffer: early,
            sent: 0,
            phase: Phase::Copying,
        }
    }

    /// Whether the target broke this direction.
    fn refused(&self) -> bool {
        matches!(self.phase, Phase::Discarding | Phase::Discarded)
    }

    /// Moves what can be moved. A fault of the stream is no error here: the download decides.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut App,
        stream: &mut Stream,
    ) -> Poll<Result<(), Fault>> {
        loop {
            let step = match self.phase {
                Phase::Copying => self.copy(cx, app, stream),
                Phase::Finishing => self.finish(cx, stream),
                Phase::Discarding => self.discard(cx, app),
                Phase::Finished | Phase::Discarded => return Poll::Ready(Ok(())),
            };
            match ready!(step) {
                Ok(()) => {}
                Err(Fault::Stream(error)) => self.refuse(&error),
                Err(fault) => return Poll::Ready(Err(fault)),
            }
        }
    }

    fn refuse(&mut self, error: &io::Error) {
        tracing::trace!(%error, "the target reads no more");
        self.phase = match self.phase {
            Phase::Copying => Phase::Discarding,
            _ => Phase::Discarded,
        };
    }

    fn copy(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut App,
        stream: &mut Stream,
    ) -> Poll<Result<(), Fault>> {
        while let Some(rest) = self.buffer.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut *stream).poll_write(cx, rest)).map_err(Fault::Stream)? {
                0 => return Poll::Ready(Err(Fault::Stream(io::ErrorKind::WriteZero.into()))),
                n => self.advance(n),
            }
        }
        match self.read(cx, app) {
            Poll::Ready(Ok(0)) => self.phase = Phase::Finishing,
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
    fn read(&mut self, cx: &mut Context<'_>, app: &mut App) -> Poll<Result<usize, Fault>> {
        self.buffer.clear();
        self.sent = 0;
        if app.poll_readable(cx).map_err(Fault::App)?.is_pending() {
            take_back(&mut self.buffer);
            return Poll::Pending;
        }
        provide(&mut self.buffer);
        let read = Future::poll(pin!(app.read_buf(&mut self.buffer)), cx);
        if self.buffer.is_empty() {
            take_back(&mut self.buffer);
        }
        read.map_err(Fault::App)
    }

    /// Nothing to read: what an overlay still holds back leaves now.
    fn flush(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<Result<(), Fault>> {
        match Pin::new(stream).poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(Fault::Stream(error))),
            _ => Poll::Pending,
        }
    }

    fn finish(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<Result<(), Fault>> {
        ready!(Pin::new(stream).poll_shutdown(cx)).map_err(Fault::Stream)?;
        self.phase = Phase::Finished;
        Poll::Ready(Ok(()))
    }

    fn discard(&mut self, cx: &mut Context<'_>, app: &mut App) -> Poll<Result<(), Fault>> {
        if ready!(self.read(cx, app))? == 0 {
            self.phase = Phase::Discarded;
        }
        Poll::Ready(Ok(()))
    }
}

/// A slice of at least so many octets is written without being gathered.
const LARGE: usize = 16 * 1024;

/// From the target to the program. Large slices of the overlay's buffers are written as they are; small ones, such as single packets, are
/// gathered first: copying a packet costs a tenth of what a system call for it costs.
#[derive(Debug, Default)]
struct Down {
    /// Octets taken over by the program's connection.
    moved: usize,
    /// What was gathered, given back while the target is silent.
    gathered: Vec<u8>,
    written: usize,
    /// How the stream ended, to be told once all is written.
    ended: Option<io::Result<()>>,
    finished: bool,
}

impl Down {
    /// Moves what can be moved.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut App,
        stream: &mut Stream,
    ) -> Poll<Result<(), Fault>> {
        while !self.finished {
            ready!(self.write_gathered(cx, app))?;
            match self.ended.take() {
                Some(Ok(())) => ready!(self.finish(cx, app))?,
                Some(Err(error)) => return Poll::Ready(Err(Fault::Stream(error))),
                None => ready!(self.advance(cx, app, stream))?,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn write_gathered(&mut self, cx: &mut Context<'_>, app: &mut App) -> Poll<Result<(), Fault>> {
        while let Some(rest) = self.gathered.get(self.written..).filter(|r| !r.is_empty()) {
            let n = ready!(write(cx, app, rest))?;
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
        app: &mut App,
        stream: &mut Stream,
    ) -> Poll<Result<(), Fault>> {
        match Pin::new(&mut *stream).poll_fill_buf(cx) {
            Poll::Ready(Ok(slice)) if slice.len() >= LARGE => {
                let n = ready!(write(cx, app, slice))?;
                Pin::new(stream).consume(n);
                self.moved += n;
            }
            Poll::Pending => {
                take_back(&mut self.gathered);
                return Poll::Pending;
            }
            Poll::Ready(Ok([])) => self.ended = Some(Ok(())),
            Poll::Ready(Ok(_)) => self.gather(cx, stream),
            Poll::Ready(Err(error)) => self.ended = Some(Err(error)),
        }
        Poll::Ready(Ok(()))
    }

    fn gather(&mut self, cx: &mut Context<'_>, stream: &mut Stream) {
        provide(&mut self.gathered);
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

    fn finish(&mut self, cx: &mut Context<'_>, app: &mut App) -> Poll<Result<(), Fault>> {
        let Poll::Ready(done) = Pin::new(app).poll_shutdown(cx) else {
            self.ended = Some(Ok(()));
            return Poll::Pending;
        };
        self.finished = true;
        take_back(&mut self.gathered);
        Poll::Ready(done.map_err(Fault::App))
    }
}

fn write(cx: &mut Context<'_>, app: &mut App, slice: &[u8]) -> Poll<Result<usize, Fault>> {
    Poll::Ready(match ready!(Pin::new(app).poll_write(cx, slice)) {
        Ok(0) => Err(Fault::App(io::ErrorKind::WriteZero.into())),
        Ok(n) => Ok(n),
        Err(error) => Err(Fault::App(error)),
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

    async fn pair() -> (App, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("bound");
        let program = TcpStream::connect(address).await.expect("connects");
        let (tcp, _) = listener.accept().await.expect("accepts");
        (App::new(tcp), program)
    }

    #[tokio::test]
    async fn a_program_that_does_not_read_stops_the_target() {
        for size in [100, 1200, LARGE, 1 << 20] {
            let (mut app, _program) = pair().await;
            let taken = Arc::new(AtomicUsize::new(0));
            let (piece, counter) = (vec![0; size], Arc::clone(&taken));
            let mut stream = Stream::new(Flood {
                piece,
                taken: counter,
            });
            let mut down = Down::default();
            // The socket's buffers fill; each time that nothing moves, at most one buffer waits here.
            for _ in 0..1000 {
                let poll = poll_fn(|cx| Poll::Ready(down.poll(cx, &mut app, &mut stream))).await;
                assert!(poll.is_pending());
                let waiting = taken.load(Ordering::SeqCst) - down.moved;
                assert!(waiting <= BUFFER, "{waiting} octets wait");
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Notices that nothing moved for a while, at the cost of one timer and no work for each byte: it is told a number that changes when something
/// moves.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    sleep: Option<Pin<Box<Sleep>>>,
    limit: Duration,
    seen: usize,
}

impl Idle {
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
const KEPT: usize = 64;

thread_local! {
    /// Buffers for flows in which something moves. A flow at rest holds none, and a busy one costs no allocation: giving 64 KiB back to the
    /// system for every burst, and faulting them in again for the next, costs more than copying through them.
    static STORE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Makes `buffer` empty and able to hold [`BUFFER`] octets.
pub(crate) fn provide(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() < BUFFER {
        let stored = STORE.with_borrow_mut(Vec::pop);
        *buffer = stored.unwrap_or_else(|| Vec::with_capacity(BUFFER));
    }
}

/// Takes the buffer back, leaving one that holds nothing. What was in it is forgotten.
pub(crate) fn take_back(buffer: &mut Vec<u8>) {
    let mut buffer = mem::take(buffer);
    if buffer.capacity() < BUFFER {
        return;
    }
    buffer.clear();
    STORE.with_borrow_mut(|store| {
        if store.len() < KEPT {
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
        let (mut idle, mut moved) = (Idle::default(), 0);
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
        let mut buffers = vec![Vec::new(); KEPT + 5];
        buffers.iter_mut().for_each(provide);
        assert!(buffers.iter().all(|buffer| buffer.capacity() >= BUFFER));
        buffers.iter_mut().for_each(take_back);
        assert!(buffers.iter().all(|buffer| buffer.capacity() == 0));
        assert_eq!(STORE.with_borrow(Vec::len), KEPT);
        let mut again = b"old".to_vec();
        provide(&mut again);
        assert!(again.is_empty());
        assert_eq!(STORE.with_borrow(Vec::len), KEPT - 1);
    }
}
