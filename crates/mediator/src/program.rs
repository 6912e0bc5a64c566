//! A program's TCP connection to the SOCKS or the HTTP front end.
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

use crate::users::User;

/// How long, and for how many bytes, a refused program may go on talking before it is cut off.
const MAX_DRAIN: Duration = Duration::from_secs(1);
const MAX_DRAINED_BYTES: u64 = 64 * 1024;

/// A program's TCP connection to a front end.
#[derive(Debug)]
pub(crate) struct ProgramConnection {
    tcp: TcpStream,
    user: User,
    clean_close: CleanClose,
    last_use: LastUse,
}

/// When something last moved on a connection; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct LastUse(Arc<Last>);

#[derive(Debug)]
struct Last {
    born: Instant,
    /// Milliseconds since then.
    at: AtomicU64,
}

impl LastUse {
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
    pub(crate) fn idle_for(&self) -> Duration {
        let at = Duration::from_millis(self.0.at.load(Ordering::Relaxed));
        self.0.born.elapsed().saturating_sub(at)
    }
}

/// Whether dropping the connection closes it cleanly (FIN) instead of resetting it; a handle for when the connection itself is with a library.
#[derive(Clone, Debug, Default)]
pub(crate) struct CleanClose(Arc<AtomicBool>);

impl CleanClose {
    /// Says that no transfer is under way that dropping would cut short.
    pub(crate) fn allow(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_allowed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl ProgramConnection {
    /// Takes an accepted connection of this user; small writes leave at once.
    pub(crate) fn new(tcp: TcpStream, user: User) -> Self {
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY was not taken");
        }
        let (clean_close, last_use) = (CleanClose::default(), LastUse::new());
        Self {
            tcp,
            user,
            clean_close,
            last_use,
        }
    }

    /// Whose it is.
    pub(crate) fn user(&self) -> User {
        self.user
    }

    pub(crate) fn last_use(&self) -> LastUse {
        self.last_use.clone()
    }

    fn note<T>(&self, moved: Poll<T>) -> Poll<T> {
        if moved.is_ready() {
            self.last_use.touch();
        }
        moved
    }

    pub(crate) fn clean_close(&self) -> CleanClose {
        self.clean_close.clone()
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

    /// Until the program closes. What it sends meanwhile has no meaning, and is no use of the connection.
    pub(crate) async fn closed(&mut self) {
        let mut ignored = [0; 64];
        while self.tcp.read(&mut ignored).await.is_ok_and(|n| n > 0) {}
    }

    /// Finishes in order, once a refusal has been written. What the program still sends is read for a moment,
    /// because closing over unread data resets the connection, and the answer with it.
    pub(crate) async fn close(mut self) {
        if self.shutdown().await.is_err() {
            return;
        }
        let mut rest = self.take(MAX_DRAINED_BYTES);
        let mut nowhere = tokio::io::sink();
        let drained = tokio::io::copy(&mut rest, &mut nowhere);
        if let Ok(Err(error)) = timeout(MAX_DRAIN, drained).await {
            tracing::trace!(%error, "the program did not wait for its answer");
        }
    }

    /// Makes dropping reset, though the sending side was finished.
    pub(crate) fn reset(&mut self) {
        self.clean_close.0.store(false, Ordering::Relaxed);
    }
}

impl Drop for ProgramConnection {
    fn drop(&mut self) {
        if self.clean_close.is_allowed() {
            return;
        }
        if let Err(error) = self.tcp.set_zero_linger() {
            tracing::debug!(%error, "a program's connection could not be reset");
        }
    }
}

impl AsyncRead for ProgramConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.tcp).poll_read(cx, buf);
        self.note(read)
    }
}

impl AsyncWrite for ProgramConnection {
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
            self.clean_close.allow();
        }
        done
    }
}
