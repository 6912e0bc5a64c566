//! Fetches over HTTP/1.1, 2 and 3, as a browser or a download manager makes them.
//! HTTP/1.1 goes in clear text, 2 and 3 over TLS. RFC 9112, RFC 9113, RFC 9114; hyper and h2 do the work of the first two. The server shows a
//! certificate that it makes at its start, and the client takes any: the lab measures the way to its own server and has nothing to hide
//! from it.
//!
//! A fetch is `GET /BYTES/SEED`; the body is this many bytes of payload and the SHA-256 of seed and payload behind them. `x-seen-as` in the answer is
//! the address that the client came from. An upload is `PUT /BYTES/SEED` with that body, over HTTP/3 only; the answer is the server's
//! verdict on it, as in the lab's own protocol.
//!
//! Workers, `parallel` of them, fetch one after the other. In HTTP/1.1 each has a connection of its own; in 2 and 3 they share
//! one, and the first fetch that finds none makes it: its phases show what that took. A connection that failed is not used again.

mod h3;
pub(crate) mod pages;
pub(crate) mod server;
#[cfg(test)]
mod tests;

use std::{
    cell::{Cell, RefCell},
    fmt, io,
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{future, join};
use h2::client::Builder;
use hoplite_crypto::{ALPN_H2, ALPN_H3, ALPN_HTTP1, Certificates, Identity, provider, server_tls};
use hoplite_quic::Qlog;
use hoplite_workload::{socks::Login, web::Check};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    version::TLS13,
};
use tokio::{
    net::TcpStream,
    sync::{Mutex, mpsc},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use self::h3::Http3;
use super::{
    client::{Out, Random},
    connect,
    record::{Record, monotonic_us, patiently},
};
use crate::experiments::workload::{Fault, Kind, Order, Transfer, TransferError};

/// Bytes that a stream may have on their way to a client: what Chromium grants.
const STREAM_WINDOW: u32 = 6 << 20;

/// Bytes that a connection may have on their way to a client.
const CONNECTION_WINDOW: u32 = 15 << 20;

/// Transfers that wait to be told.
const WAITING: usize = 16;

/// What is fetched.
#[derive(Clone, Copy, Debug)]
struct Fetches {
    /// 1, 2 or 3.
    version: u8,
    /// Bytes of each body.
    bytes: u64,
    /// How many.
    count: u32,
    /// How many at once.
    parallel: u16,
    /// Whether each has a connection of its own.
    fresh: bool,
    /// Whether the bodies go to the server.
    upload: bool,
}

impl Fetches {
    fn of(kind: &Kind) -> Option<Self> {
        let Kind::Http {
            version,
            bytes,
            count,
            parallel,
            fresh,
            upload,
            ..
        } = *kind
        else {
            return None;
        };
        Some(Self {
            version,
            bytes,
            count,
            parallel,
            fresh,
            upload,
        })
    }

    /// Bytes to the server and from it.
    fn asked(&self) -> [u64; 2] {
        if self.upload {
            [self.bytes, 0]
        } else {
            [0, self.bytes]
        }
    }
}

/// Fetches all.
pub(crate) async fn run(order: &Order, out: Out<'_>) -> io::Result<()> {
    let Some(fetches) = Fetches::of(&order.plan.kind) else {
        return Ok(());
    };
    let qlog = match start_qlog(order.qlog.as_deref()) {
        Ok(qlog) => qlog,
        Err(error) => return out(no_qlog(order, &error)),
    };
    let (tell, told) = mpsc::channel(WAITING);
    let work = Work {
        order,
        fetches,
        qlog: qlog.as_ref(),
        next: Cell::new(1),
        shared: Mutex::new(None),
        tell: RefCell::new(Some(tell)),
    };
    let workers = (1..=fetches.parallel.max(1)).map(|worker| work.run(worker));
    let workers = async {
        future::join_all(workers).await;
        work.tell.take();
    };
    let ((), outcome) = join!(workers, hand_on(told, out));
    if let Some(qlog) = qlog {
        qlog.flush();
    }
    outcome
}

fn start_qlog(directory: Option<&Path>) -> io::Result<Option<Qlog>> {
    directory.map(Qlog::start).transpose()
}

fn no_qlog(order: &Order, error: &io::Error) -> Transfer {
    let why = Fault::Misc.because(format_args!("the qlog directory: {error}"));
    Record::start([0; 2]).transfer(order, 1, 1, Err(why))
}

async fn hand_on(mut told: mpsc::Receiver<Transfer>, out: Out<'_>) -> io::Result<()> {
    while let Some(transfer) = told.recv().await {
        out(transfer)?;
    }
    Ok(())
}

/// What the workers share.
struct Work<'a> {
    order: &'a Order,
    fetches: Fetches,
    qlog: Option<&'a Qlog>,
    next: Cell<u32>,
    /// The connection of HTTP/2 and 3, and which fetch made it.
    shared: Mutex<Option<(u32, Connection)>>,
    tell: RefCell<Option<mpsc::Sender<Transfer>>>,
}

/// One thing to get.
#[derive(Clone, Debug)]
struct Fetch {
    /// Bytes of payload.
    bytes: u64,
    /// Seeds the payload.
    seed: u64,
    /// Whether it goes to the server.
    upload: bool,
    /// The host as it stands in requests.
    authority: String,
    /// Where it is.
    path: String,
}

impl Fetch {
    /// Checks the body that comes.
    fn check(&self) -> Check {
        Check::new(self.bytes, self.seed)
    }
}

impl Work<'_> {
    /// Fetches until all is fetched, or nobody listens any more.
    async fn run(&self, worker: u16) {
        let mut own = None;
        while self.next.get() <= self.fetches.count {
            let number = self.next.replace(self.next.get() + 1);
            let mut record = Record::start(self.fetches.asked());
            let fetching = self.fetch(number, &mut own, &mut record);
            let limit = self.order.plan.timeout;
            let outcome = timeout(limit, fetching).await.unwrap_or_else(|_| {
                Err(Fault::Timeout.because(format_args!("the fetch was not over after {limit:?}")))
            });
            if outcome.is_err() {
                own = None;
            }
            let transfer = record.transfer(self.order, number, worker, outcome);
            let tell = self.tell.borrow().clone();
            match tell {
                Some(tell) if tell.send(transfer).await.is_ok() => {}
                _ => return,
            }
        }
    }

    async fn fetch(
        &self,
        number: u32,
        own: &mut Option<Connection>,
        record: &mut Record,
    ) -> Result<(), TransferError> {
        let mut random = Random::stream(self.order.seed, &self.order.plan.name, number.into());
        let token = random.login();
        let fetch = self.what(random.next());
        if self.fetches.fresh {
            let mut connection = self.open(&token, record).await?;
            return connection.fetch(&fetch, record).await;
        }
        if self.fetches.version == 1 {
            let mut connection = match own.take() {
                Some(connection) => connection,
                None => self.open(&token, record).await?,
            };
            connection.fetch(&fetch, record).await?;
            *own = Some(connection);
            return Ok(());
        }
        let (made_by, mut connection) = self.share(number, &token, record).await?;
        let outcome = connection.fetch(&fetch, record).await;
        if outcome.is_err() {
            self.forget(made_by).await;
        }
        outcome
    }

    fn what(&self, seed: u64) -> Fetch {
        let bytes = self.fetches.bytes;
        let port = port(self.order, self.fetches.version);
        let authority =
            connect::target(self.order, port).map_or_else(|_| String::new(), |t| t.to_string());
        Fetch {
            bytes,
            seed,
            upload: self.fetches.upload,
            authority,
            path: format!("/{bytes}/{seed}"),
        }
    }

    async fn open(&self, token: &Login, record: &mut Record) -> Result<Connection, TransferError> {
        Connection::open(self.order, self.fetches.version, (token, self.qlog), record).await
    }

    /// The connection that all workers share; made now if there is none.
    async fn share(
        &self,
        number: u32,
        token: &Login,
        record: &mut Record,
    ) -> Result<(u32, Connection), TransferError> {
        let mut shared = self.shared.lock().await;
        if let Some((made_by, connection)) = &*shared {
            return Ok((*made_by, connection.again()?));
        }
        let connection = self.open(token, record).await?;
        let again = connection.again()?;
        *shared = Some((number, connection));
        Ok((number, again))
    }

    async fn forget(&self, made_by: u32) {
        let mut shared = self.shared.lock().await;
        if shared.as_ref().is_some_and(|(by, _)| *by == made_by) {
            *shared = None;
        }
    }
}

/// What every version does with a body's bytes.
fn take(check: &mut Check, bytes: &[u8], record: &mut Record) -> Result<(), TransferError> {
    let payload = check.take(bytes)?;
    record.received.add(payload, monotonic_us());
    Ok(())
}

/// What every version does at a body's end.
fn finish(check: Check, record: &mut Record) -> Result<(), TransferError> {
    record.moved[1] = check.finish()?;
    record.phases.checksum = Some(record.clock.us());
    Ok(())
}

/// What every version does with an answer's head.
fn head(status: u16, seen_as: Option<&[u8]>, record: &mut Record) -> Result<(), TransferError> {
    record.phases.response = Some(record.clock.us());
    let seen_as = seen_as.and_then(|value| std::str::from_utf8(value).ok());
    record.seen_as = seen_as.and_then(|value| value.parse().ok());
    match status {
        200 => Ok(()),
        other => Err(Fault::Auth.because(format_args!("the server answered with status {other}"))),
    }
}

/// The head of an answer in the type that HTTP/1.1 and 2 have for it.
fn headed<B>(answer: &http::Response<B>, record: &mut Record) -> Result<(), TransferError> {
    let seen_as = answer.headers().get("x-seen-as");
    let seen_as = seen_as.map(|value| value.as_bytes());
    head(answer.status().as_u16(), seen_as, record)
}

/// The connection.
enum Connection {
    Http1(Http1),
    Http2(Http2),
    Http3(Http3),
}

/// The server's port for a version.
fn port(order: &Order, version: u8) -> u16 {
    match version {
        1 => order.ports.http,
        _ => order.ports.https,
    }
}

impl Connection {
    async fn open(
        order: &Order,
        version: u8,
        (token, qlog): (&Login, Option<&Qlog>),
        record: &mut Record,
    ) -> Result<Self, TransferError> {
        let stall = order.plan.stall;
        let port = port(order, version);
        match version {
            1 => {
                let stream = connect::open(order, port, token, record).await?;
                Http1::open(stream, stall).await.map(Self::Http1)
            }
            2 => {
                let stream = connect::open(order, port, token, record).await?;
                let stream = secure(order, port, stream, record).await?;
                Http2::open(stream, stall).await.map(Self::Http2)
            }
            3 => Http3::open(order, port, (token, qlog), record)
                .await
                .map(Self::Http3),
            other => Err(Fault::Misc.because(format_args!("there is no HTTP/{other} here"))),
        }
    }

    async fn fetch(&mut self, fetch: &Fetch, record: &mut Record) -> Result<(), TransferError> {
        match self {
            Self::Http1(one) => one.fetch(fetch, record).await,
            Self::Http2(two) => two.fetch(fetch, record).await,
            Self::Http3(three) => three.fetch(fetch, record).await,
        }
    }

    /// The same connection for one more stream.
    fn again(&self) -> Result<Self, TransferError> {
        match self {
            Self::Http1(_) => Err(Fault::Misc.because("HTTP/1.1 has no streams")),
            Self::Http2(two) => Ok(Self::Http2(two.clone())),
            Self::Http3(three) => Ok(Self::Http3(three.clone())),
        }
    }
}

async fn secure(
    order: &Order,
    port: u16,
    stream: TcpStream,
    record: &mut Record,
) -> Result<TlsStream<TcpStream>, TransferError> {
    let name = server_name(order, port)?;
    let connector = TlsConnector::from(client_tls(2)?);
    let handshake = patiently(order.plan.stall, connector.connect(name, stream)).await?;
    let stream = handshake.map_err(|error| Fault::Tls.because(error))?;
    record.phases.tls = Some(record.clock.us());
    Ok(stream)
}

/// The server's name in TLS.
fn server_name(order: &Order, port: u16) -> Result<ServerName<'static>, TransferError> {
    let host = connect::target(order, port)?.host.to_string();
    let bare = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    ServerName::try_from(bare).map_err(|why| Fault::Misc.because(why))
}

/// A task that ends with its holder.
#[derive(Debug)]
struct Task(tokio::task::JoinHandle<()>);

impl Task {
    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        Arc::new(Self(tokio::spawn(work)))
    }

    /// Drives what moves a connection's bytes. That it failed is told by its fetches too.
    fn drive<E: fmt::Display>(
        version: &'static str,
        connection: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> Arc<Self> {
        Self::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, version, "a connection ended early");
            }
        })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A connection.
#[derive(Debug)]
struct Http1 {
    requests: SendRequest<Empty<Bytes>>,
    stall: Duration,
    _driver: Arc<Task>,
}

impl Http1 {
    async fn open(stream: TcpStream, stall: Duration) -> Result<Self, TransferError> {
        let (requests, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(hyper_failed)?;
        Ok(Self {
            requests,
            stall,
            _driver: Task::drive("HTTP/1.1", connection),
        })
    }

    async fn fetch(&mut self, fetch: &Fetch, record: &mut Record) -> Result<(), TransferError> {
        let request = http::Request::get(fetch.path.as_str()).header("host", &fetch.authority);
        let request = request
            .body(Empty::new())
            .map_err(|why| Fault::Misc.because(why))?;
        let limit = self.stall;
        let ready = patiently(limit, self.requests.ready()).await?;
        ready.map_err(hyper_failed)?;
        let answer = self.requests.send_request(request);
        record.phases.command = Some(record.clock.us());
        let answer = patiently(limit, answer).await?.map_err(hyper_failed)?;
        headed(&answer, record)?;
        let (mut body, mut check) = (answer.into_body(), fetch.check());
        while let Some(frame) = patiently(limit, body.frame()).await? {
            let frame = frame.map_err(hyper_failed)?;
            if let Some(data) = frame.data_ref() {
                take(&mut check, data, record)?;
            }
        }
        finish(check, record)
    }
}

/// What hyper reports.
fn hyper_failed(error: hyper::Error) -> TransferError {
    if error.is_parse() {
        Fault::Auth.because(error)
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        Fault::Closed.because(error)
    } else {
        Fault::Read.because(error)
    }
}

/// A connection.
#[derive(Clone)]
struct Http2 {
    requests: h2::client::SendRequest<Bytes>,
    stall: Duration,
    _driver: Arc<Task>,
}

impl Http2 {
    async fn open(stream: TlsStream<TcpStream>, stall: Duration) -> Result<Self, TransferError> {
        let mut builder = Builder::new();
        builder.initial_window_size(STREAM_WINDOW);
        builder.initial_connection_window_size(CONNECTION_WINDOW);
        let opening = patiently(stall, builder.handshake(stream)).await?;
        let (requests, connection) = opening.map_err(h2_failed)?;
        Ok(Self {
            requests,
            stall,
            _driver: Task::drive("HTTP/2", connection),
        })
    }

    async fn fetch(&mut self, fetch: &Fetch, record: &mut Record) -> Result<(), TransferError> {
        let uri = format!("https://{}{}", fetch.authority, fetch.path);
        let request = http::Request::get(uri).body(());
        let request = request.map_err(|why| Fault::Misc.because(why))?;
        let limit = self.stall;
        let ready = patiently(limit, self.requests.clone().ready()).await?;
        let mut requests = ready.map_err(h2_failed)?;
        let (answer, _) = requests.send_request(request, true).map_err(h2_failed)?;
        record.phases.command = Some(record.clock.us());
        let answer = patiently(limit, answer).await?.map_err(h2_failed)?;
        headed(&answer, record)?;
        let (mut body, mut check) = (answer.into_body(), fetch.check());
        while let Some(data) = patiently(limit, body.data()).await? {
            let data = data.map_err(h2_failed)?;
            take(&mut check, &data, record)?;
            let released = body.flow_control().release_capacity(data.len());
            released.map_err(h2_failed)?;
        }
        finish(check, record)
    }
}

/// What h2 reports.
fn h2_failed(error: h2::Error) -> TransferError {
    if error.is_io() || error.is_go_away() || error.is_reset() {
        Fault::Closed.because(error)
    } else {
        Fault::Read.because(error)
    }
}

/// Takes any certificate; its owner must still have the key.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The client's side of HTTP/2 or HTTP/3.
fn client_tls(version: u8) -> Result<Arc<ClientConfig>, TransferError> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[&TLS13]);
    let mut config = builder
        .map_err(|why| Fault::Misc.because(why))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    let alpn = if version == 3 { ALPN_H3 } else { ALPN_H2 };
    config.alpn_protocols = vec![alpn.to_vec()];
    // Every connection is a first one.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// The server's side: for TCP, and for QUIC.
fn server_tls_configs() -> Result<[Arc<ServerConfig>; 2], Box<dyn std::error::Error + Send + Sync>>
{
    let new = Identity::generate(&["localhost".into()])?;
    let identity = Identity::from_pem(new.certificate.as_bytes(), new.key.as_bytes())?;
    let certificates = Certificates::new(&identity)?;
    let tcp = server_tls(Arc::clone(&certificates), &[ALPN_H2, ALPN_HTTP1])?;
    let quic = server_tls(certificates, &[ALPN_H3])?;
    Ok([Arc::new(tcp), Arc::new(quic)])
}
