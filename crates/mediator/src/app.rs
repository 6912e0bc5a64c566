//! A program's TCP connection. Both front ends hold one for each session.
//! Dropped before it was ended in order, it resets: the program must not take what it got for a complete transfer.

use std::{
    future::pending,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    time::{Instant, timeout},
};

/// How long, and for how many octets, a refused program may go on talking before it is cut off.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_OCTETS: u64 = 64 * 1024;

/// The connection.
#[derive(Debug)]
pub(crate) struct App {
    tcp: TcpStream,
    ending: Ending,
    used: Used,
}

/// When something moved last; clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Used(Arc<Last>);

#[derive(Debug)]
struct Last {
    born: Instant,
    /// Milliseconds since then.
    at: AtomicU64,
}

impl Used {
    fn new() -> Self {
        let (born, at) = (Instant::now(), AtomicU64::new(0));
        Self(Arc::new(Last { born, at }))
    }

    /// Something moves now.
    pub(crate) fn touch(&self) {
        let at = self.0.born.elapsed().as_millis();
        self.0
            .at
            .store(u64::try_from(at).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// For how long nothing has moved.
    pub(crate) fn rested(&self) -> Duration {
        let at = Duration::from_millis(self.0.at.load(Ordering::Relaxed));
        self.0.born.elapsed().saturating_sub(at)
    }
}

/// Whether dropping the connection ends it in order; for who has handed the connection itself to a library.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending(Arc<AtomicBool>);

impl Ending {
    /// Says that no transfer is under way that dropping would cut short.
    pub(crate) fn in_order(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_in_order(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl App {
    /// Takes an accepted connection; small writes leave at once.
    pub(crate) fn new(tcp: TcpStream) -> Self {
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY was not taken");
        }
        let (ending, used) = (Ending::default(), Used::new());
        Self { tcp, ending, used }
    }

    pub(crate) fn used(&self) -> Used {
        self.used.clone()
    }

    fn note<T>(&self, moved: Poll<T>) -> Poll<T> {
        if moved.is_ready() {
            self.used.touch();
        }
        moved
    }

    pub(crate) fn ending(&self) -> Ending {
        self.ending.clone()
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.peer_addr()
    }

    /// Whether there may be something to read.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.poll_read_ready(cx)
    }

    /// Resolves when the program has closed its side with nothing left to read; never while early data waits.
    pub(crate) async fn gone(&self) {
        match self.tcp.peek(&mut [0]).await {
            Ok(n) if n > 0 => pending().await,
            Ok(_) | Err(_) => {}
        }
    }

    /// Finishes in order, once a refusal has been written. What the program still sends is read for a moment,
    /// because closing over unread data resets the connection, and the answer with it.
    pub(crate) async fn close(mut self) {
        if self.shutdown().await.is_err() {
            return;
        }
        let mut rest = self.take(LINGER_OCTETS);
        let mut nowhere = tokio::io::sink();
        let drained = tokio::io::copy(&mut rest, &mut nowhere);
        if let Ok(Err(error)) = timeout(LINGER, drained).await {
            tracing::trace!(%error, "the program did not wait for its answer");
        }
    }

    /// Makes dropping reset, though the sending side was finished.
    pub(crate) fn reset(&mut self) {
        self.ending.0.store(false, Ordering::Relaxed);
    }
}

impl Drop for App {
    fn drop(&mut self) {
        if self.ending.is_in_order() {
            return;
        }
        if let Err(error) = self.tcp.set_zero_linger() {
            tracing::debug!(%error, "a program's connection could not be reset");
        }
    }
}

impl AsyncRead for App {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.tcp).poll_read(cx, buf);
        self.note(read)
    }
}

impl AsyncWrite for App {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write(cx, buf);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.tcp).poll_shutdown(cx);
        if let Poll::Ready(Ok(())) = done {
            self.ending.in_order();
        }
        done
    }
}
