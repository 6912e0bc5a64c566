//! The TLS connection once it is a tunnel: each direction alone.
//! The splice and the UDP flow read and write it. A close of TLS finishes a direction (RFC 8446 §6.1), as over HTTP/3 the
//! end of a stream does; "a tunnel is closed when […] either side has closed its connection" (RFC 9110 §9.3.6).

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::{Open, Stream};
use crate::serve::splice::{Broken, FromClient, ToClient, lend};

/// The connection. Both directions are used by one task.
pub(super) struct Tunnel {
    tls: Mutex<Stream>,
    _open: Open,
}

/// From the client.
pub(crate) struct DataReceiver {
    tunnel: Option<Arc<Tunnel>>,
    first: Bytes,
}

/// To the client.
pub(crate) struct DataSender(Option<Arc<Tunnel>>);

impl Tunnel {
    pub(super) fn new(tls: Stream, open: Open) -> Self {
        Self {
            tls: Mutex::new(tls),
            _open: open,
        }
    }

    fn tls(&self) -> MutexGuard<'_, Stream> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads into the shard's buffer.
    fn poll_read(&self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let read = lend(|buffer| {
            let mut tls = self.tls();
            match pin!(tls.read_buf(buffer)).poll(cx) {
                Poll::Ready(read) => read.map_err(Some),
                Poll::Pending => Err(None),
            }
        });
        match read {
            Ok(octets) => Poll::Ready(Ok(octets)),
            Err(Some(error)) => Poll::Ready(Err(error)),
            Err(None) => Poll::Pending,
        }
    }

    fn poll_write(&self, cx: &mut Context<'_>, octets: &mut Bytes) -> Poll<io::Result<()>> {
        let mut tls = self.tls();
        while !octets.is_empty() {
            match ready!(Pin::new(&mut *tls).poll_write(cx, octets))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => octets.advance(written),
            }
        }
        Pin::new(&mut *tls).poll_flush(cx)
    }
}

impl DataReceiver {
    pub(super) fn new(tunnel: Option<Arc<Tunnel>>, first: Bytes) -> Self {
        Self { tunnel, first }
    }
}

impl FromClient for DataReceiver {
    /// A connection that ends without a close of TLS was cut off: what came is not complete.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Broken>> {
        if !self.first.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.first))));
        }
        let tunnel = self.tunnel.as_ref().ok_or(Broken)?;
        let octets = ready!(tunnel.poll_read(cx)).map_err(|_| Broken)?;
        Poll::Ready(Ok(Some(octets).filter(|octets| !octets.is_empty())))
    }
}

impl DataSender {
    pub(super) fn new(tunnel: Option<Arc<Tunnel>>) -> Self {
        Self(tunnel)
    }

    fn tunnel(&self) -> Result<&Tunnel, Broken> {
        self.0.as_deref().ok_or(Broken)
    }

    /// Breaks the connection off: without a close of TLS, and at once.
    pub(super) fn abort(&self) {
        let Some(tunnel) = &self.0 else { return };
        if let Err(error) = tunnel.tls().get_ref().0.set_zero_linger() {
            tracing::trace!(%error, "a client's connection closes in order instead of resetting");
        }
    }
}

impl ToClient for DataSender {
    async fn write(&mut self, mut octets: Bytes) -> Result<(), Broken> {
        let tunnel = self.tunnel()?;
        let written = poll_fn(|cx| tunnel.poll_write(cx, &mut octets)).await;
        written.map_err(|_| Broken)
    }

    async fn finish(&mut self) -> Result<(), Broken> {
        let tunnel = self.tunnel()?;
        let shut = poll_fn(|cx| Pin::new(&mut *tunnel.tls()).poll_shutdown(cx)).await;
        shut.map_err(|_| Broken)
    }

    fn reset(&mut self) {
        self.abort();
    }
}
