//! HTTP/1.1 over TLS over TCP, for users of an "HTTPS proxy": browsers' PAC files, curl, package managers.
//! `tls` starts it where a client asks for `http/1.1`, or for nothing. One request at a time, until one opens a tunnel.
//! RFC 9112; CONNECT: RFC 9110 §9.3.6; connect-udp by Upgrade: RFC 9298 §3.2 and §3.3.

use std::sync::Arc;

use bytes::Bytes;
use hoplite_wire::RequestHead;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpStream,
    pin,
    sync::{Mutex, Notify, mpsc, oneshot},
    task::AbortHandle,
    time::timeout,
};
use tokio_rustls::server::TlsStream;

use super::{Shared, connection};
use crate::config::Limits;

mod exchange;
mod flow;
mod head;
mod tunnel;

pub(crate) use exchange::Exchange;

/// The parser's buffer cannot be smaller, in octets.
const LEAST_BUFFER: usize = 8192;

type Stream = TlsStream<TcpStream>;
type Asked = (RequestHead, Exchange);
/// Whoever holds one keeps the session open: its driver while requests may come, then its tunnel.
type Open = mpsc::Sender<Asked>;

/// One client's connection.
pub(crate) struct Session {
    requests: Mutex<mpsc::Receiver<Asked>>,
    drain: Arc<Notify>,
    driver: AbortHandle,
}

impl Session {
    /// Speaks on `stream`; the driver runs in a task of its own until the stream is handed to a tunnel.
    pub(crate) fn new(stream: Stream, shared: &Arc<Shared>) -> Self {
        let (open, requests) = mpsc::channel(1);
        let drain = Arc::new(Notify::new());
        let driver = tokio::spawn(drive(stream, shared.clone(), open, drain.clone()));
        Self {
            requests: Mutex::new(requests),
            drain,
            driver: driver.abort_handle(),
        }
    }
}

impl connection::Session for Session {
    type Exchange = Exchange;

    async fn accept(&self) -> Option<Asked> {
        self.requests.lock().await.recv().await
    }

    fn drain(&self) {
        self.drain.notify_one();
    }

    fn close(&self) {
        self.driver.abort();
    }
}

/// Answers requests until a tunnel takes the stream over, the client leaves, or it takes too long about it.
async fn drive(stream: Stream, shared: Arc<Shared>, open: Open, drain: Arc<Notify>) {
    let limits = &shared.limits;
    let service = service_fn(|request| ask(request, open.clone(), limits));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.handshake)
        .max_buf_size(limits.header.max(LEAST_BUFFER))
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let served = async {
        pin!(connection);
        tokio::select! {
            ended = &mut connection => return ended,
            () = drain.notified() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    };
    // A client that does not read its refusals would keep its place for ever.
    let longest = limits.idle_connection + limits.resolve + limits.connect + limits.handshake;
    match timeout(longest, served).await {
        Ok(Ok(())) => (),
        Ok(Err(_)) => tracing::trace!("an HTTP/1.1 client broke off, or wrote no HTTP"),
        Err(_) => tracing::trace!("an HTTP/1.1 client asked for no tunnel in time"),
    }
}

/// Hands a request to the session's owner and waits for the answer; without one the connection is closed.
async fn ask(
    mut request: Request<Incoming>,
    open: Open,
    limits: &Limits,
) -> Result<Response<Empty<Bytes>>, oneshot::error::RecvError> {
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, _) = request.into_parts();
    let head = head::read(&parts);
    let content = head::has_content(&parts.headers);
    let (answer_in, answer) = oneshot::channel();
    let exchange = Exchange::new(answer_in, upgrade, open.clone(), limits)
        .describe(head.protocol.is_some(), content);
    // If the owner has gone, the exchange is dropped, and there is no answer.
    drop(open.send((head, exchange)).await);
    answer.await
}
