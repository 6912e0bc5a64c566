//! The task behind a connection: moves frames, asks a silent peer whether it is there, ends.
//! Started by [`super::Session`].

use std::{
    future::{pending, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use ::h2::{Ping, PingPong, Reason, client, server};
use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep, timeout},
};

use super::{Config, Exchange, H2Error, Incoming, exchange::read_request, window::StreamWindow};

/// How long the last frames of a connection may take to leave.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Why the connection ended; `None` while it lives.
pub(super) type Ended = watch::Receiver<Option<H2Error>>;

/// What the session's owner wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stop {
    No,
    Drain,
    /// The client is told that it asks for too much, and the connection closed.
    Calm,
    Close,
}

pub(super) struct Driver {
    pub(super) config: Config,
    pub(super) reads: ReadCount,
    pub(super) abandoned: Arc<Semaphore>,
    pub(super) stopped: watch::Receiver<Stop>,
    pub(super) windows: watch::Receiver<u32>,
    pub(super) stream_window: Arc<StreamWindow>,
    pub(super) ended: watch::Sender<Option<H2Error>>,
}

impl Driver {
    pub(super) async fn client<T>(
        self,
        mut connection: client::Connection<T, Bytes>,
        settled: watch::Sender<bool>,
    ) where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let ping = connection.ping_pong();
        let reason = {
            let mut silence = pin!(self.silence(ping, Some(&settled)));
            let mut close = pin!(self.asked_to(Stop::Close));
            loop {
                tokio::select! {
                    ended = &mut connection => break why(ended),
                    () = &mut silence => break H2Error::Dead,
                    () = &mut close => break H2Error::Closed,
                    () = self.stream_window.too_narrow() => {
                        self.stream_window.widen(|to| connection.set_initial_window_size(to));
                    }
                }
            }
        };
        drop(connection);
        self.ended.send_replace(Some(reason));
    }

    pub(super) async fn server<T>(
        self,
        mut connection: Box<server::Connection<T, Bytes>>,
        requests: mpsc::Sender<Box<Incoming>>,
    ) where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let ping = connection.ping_pong();
        let reason = tokio::select! {
            reason = self.serve(connection, requests) => reason,
            () = self.silence(ping, None) => H2Error::Dead,
            () = self.asked_to(Stop::Close) => H2Error::Closed,
        };
        self.ended.send_replace(Some(reason));
    }

    async fn serve<T>(
        &self,
        mut connection: Box<server::Connection<T, Bytes>>,
        requests: mpsc::Sender<Box<Incoming>>,
    ) -> H2Error
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let mut drain = pin!(self.asked_to(Stop::Drain));
        let mut calm = pin!(self.asked_to(Stop::Calm));
        let mut windows = self.windows.clone();
        let mut draining = false;
        loop {
            let taken = tokio::select! {
                taken = self.take(&mut connection, &requests) => taken,
                () = &mut drain, if !draining => Ok(()),
                Ok(()) = windows.changed() => {
                    connection.set_target_window_size(*windows.borrow_and_update());
                    Ok(())
                }
                () = &mut calm => {
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    let told = poll_fn(|cx| connection.poll_closed(cx));
                    drop(timeout(CLOSE_TIMEOUT, told).await);
                    return H2Error::Closed;
                }
            };
            if let Err(reason) = taken {
                return reason;
            }
            let wanted = *self.stopped.borrow() >= Stop::Drain || requests.is_closed();
            if wanted && !draining {
                connection.graceful_shutdown();
                draining = true;
            }
        }
    }

    /// Takes one request when there is room for it; moves frames while there is none.
    async fn take<T>(
        &self,
        connection: &mut server::Connection<T, Bytes>,
        requests: &mpsc::Sender<Box<Incoming>>,
    ) -> Result<(), H2Error>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let room = tokio::select! {
            biased;
            room = requests.reserve() => room,
            ended = poll_fn(|cx| connection.poll_closed(cx)) => return Err(why(ended)),
        };
        let Some(request) = connection.accept().await else {
            return Err(H2Error::Closed);
        };
        let (request, mut answer) = request?;
        let (parts, body) = request.into_parts();
        match (read_request(&parts), room) {
            (Ok(head), Ok(room)) => {
                let exchange = Exchange::asking(answer, body, self.config.max_payload);
                room.send(Box::new(Incoming { head, exchange }));
            }
            (Ok(_), Err(_)) => answer.send_reset(Reason::REFUSED_STREAM),
            (Err(rule), _) => {
                tracing::debug!(rule, "a malformed request");
                self.abandoned.add_permits(1);
                answer.send_reset(Reason::PROTOCOL_ERROR);
            }
        }
        Ok(())
    }

    /// Resolves when the owner wants this or more. A session that was dropped wants nothing.
    async fn asked_to(&self, stop: Stop) {
        let mut stopped = self.stopped.clone();
        let asked = stopped.wait_for(|wanted| *wanted >= stop).await.is_ok();
        if !asked {
            pending().await
        }
    }

    /// Resolves when the peer has been asked and has said nothing.
    async fn silence(&self, ping: Option<PingPong>, settled: Option<&watch::Sender<bool>>) {
        let Some(mut ping) = ping else {
            return pending().await;
        };
        if settled.is_some() && !self.answers(&mut ping).await {
            return;
        }
        // A server's SETTINGS come before its first answer to a PING (RFC 9113 §3.4).
        if let Some(settled) = settled {
            settled.send_replace(true);
        }
        loop {
            let before = self.reads.now();
            sleep(self.config.ping_after).await;
            if self.reads.now() == before && !self.answers(&mut ping).await {
                return;
            }
        }
    }

    /// Whether the peer answers, or says anything else again and again until it does.
    async fn answers(&self, ping: &mut PingPong) -> bool {
        let asked = Instant::now();
        let mut pong = pin!(ping.ping(Ping::opaque()));
        loop {
            let before = self.reads.now();
            match timeout(self.config.ping_patience, &mut pong).await {
                Ok(Ok(_)) => {
                    self.stream_window.answered(asked.elapsed());
                    return true;
                }
                // The connection has failed and will say why.
                Ok(Err(_)) => return pending().await,
                Err(_) if self.reads.now() == before => return false,
                Err(_) => {}
            }
        }
    }
}

fn why(ended: Result<(), ::h2::Error>) -> H2Error {
    match ended {
        Ok(()) => H2Error::Connection("closed in order".into()),
        Err(error) => H2Error::Connection(error.to_string()),
    }
}

/// How often something was read.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadCount(Arc<AtomicU64>);

impl ReadCount {
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many bytes a server reads in one turn. Then who reads the streams goes on: the crate gives a connection up whose frames are small and wait unread, a
/// hundred and more, and one turn would read all that the system has.
pub(super) const TURN: usize = 4 * 1024;

/// Counts what comes from the peer: as long as something does, nobody needs to ask whether it is there.
pub(super) struct CountReads<T> {
    io: T,
    count: ReadCount,
    /// What is read in one turn, and what was in this one.
    turn: usize,
    read: usize,
}

impl<T> CountReads<T> {
    pub(super) fn new(io: T, turn: usize) -> (Self, ReadCount) {
        let count = ReadCount::default();
        let counting = Self {
            io,
            count: count.clone(),
            turn,
            read: 0,
        };
        (counting, count)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CountReads<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.turn - self.read;
        if left == 0 {
            self.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = if left >= buf.remaining() {
            Pin::new(&mut self.io).poll_read(cx, buf)
        } else {
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(left));
            let read = Pin::new(&mut self.io).poll_read(cx, &mut part);
            let count = part.filled().len();
            buf.advance(count);
            read
        };
        if read.is_ready() {
            self.count.0.fetch_add(1, Ordering::Relaxed);
            self.read = self
                .read
                .saturating_add(buf.filled().len() - before)
                .min(self.turn);
        } else {
            self.read = 0;
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CountReads<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
