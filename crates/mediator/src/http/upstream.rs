//! An HTTP/1.1 connection to a target, over a stream of the overlay. Absolute-form requests are sent on it.
//! It lasts as long as the program's connection, for requests that go to the same target on the same terms.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use ::http::{Request, Response};
use hoplite_overlay::{Error, Isolation, Stream};
use hoplite_wire::Target;
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::JoinSet,
};

use super::answer::{Body, Refusal};
use crate::{counters::Counters, front::Room};

/// The connection.
pub(super) struct Upstream {
    target: Target,
    isolation: Isolation,
    sender: SendRequest<Body>,
    /// Holds the task that drives the connection: dropped, it resets what is not finished.
    _driver: JoinSet<()>,
}

impl Upstream {
    /// Connects.
    pub(super) async fn open(
        room: &Room,
        target: Target,
        isolation: Isolation,
    ) -> Result<Self, Refusal> {
        let opening = room.open_stream(&target, isolation.clone());
        let stream = opening.await.map_err(Refusal::Overlay)?;
        let counters = Arc::clone(&room.counters);
        let io = TokioIo::new(Counted { stream, counters });
        let mut builder = http1::Builder::new();
        builder
            .max_header_size(room.limits.header)
            .preserve_header_case(true);
        let shaken = builder.handshake(io).await;
        let (sender, connection) = shaken.map_err(|error| refusal(&error))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a target's HTTP connection failed");
            }
        });
        Ok(Self {
            target,
            isolation,
            sender,
            _driver: driver,
        })
    }

    /// Whether the next request may use it.
    pub(super) async fn serves(&mut self, target: &Target, isolation: &Isolation) -> bool {
        self.target == *target && self.isolation == *isolation && self.sender.ready().await.is_ok()
    }

    pub(super) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, Refusal> {
        let sent = self.sender.send_request(request).await;
        sent.map_err(|error| refusal(&error))
    }
}

/// What hyper's error means for the program.
fn refusal(error: &hyper::Error) -> Refusal {
    if let Some(overlay) = overlay_error(error) {
        return Refusal::Overlay(overlay.clone());
    }
    match error.is_parse() {
        true => Refusal::NotHttp,
        false => Refusal::Ended,
    }
}

fn overlay_error(error: &hyper::Error) -> Option<&Error> {
    let io = std::error::Error::source(error)?.downcast_ref::<io::Error>()?;
    Error::from_io(io)
}

/// A stream whose octets are counted.
struct Counted {
    stream: Stream,
    counters: Arc<Counters>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.counters.octets_down.add(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let n = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.counters.octets_up.add(n);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
