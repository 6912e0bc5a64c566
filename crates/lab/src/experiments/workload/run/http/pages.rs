//! The servers of pages (`workload::browse::pages`): HTTP/1.1 and 2 over TLS and HTTP/3 on port 443, and the DNS that knows the pages' names, on port 53. The
//! authority that signs the hosts' certificates is the attempt's own ([`make_authority`]).
//!
//! Each host has a certificate for its name alone, so that no browser takes two hosts for one (RFC 9113 §9.1.1), and the version of HTTP that its name says. An
//! answer tells in `x-seen-as` which address asked. A client that breaks the rules loses its connection alone.

use std::{
    collections::HashMap,
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hoplite_crypto::{ALPN_H2, ALPN_H3, ALPN_HTTP1, provider};
use hoplite_wire::{
    ResponseHead,
    dns::{Code, Question, RecordType, Unfit},
    h3::{write_data_head, write_headers},
};
use hoplite_workload::web::accept;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use quinn::{Endpoint, EndpointConfig, TokioRuntime, crypto::rustls::QuicServerConfig};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SerialNumber,
};
use ring::digest::{SHA256, digest};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};
use socket2::{Protocol as Transport, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
};
use tokio_rustls::LazyConfigAcceptor;

use super::h3;
use crate::experiments::workload::{
    Fault, TransferError, Tuning,
    browse::{
        Served,
        pages::{Page, Protocol, ZONE},
    },
    run::server::{bound, listen},
};

/// Ports; 0 takes any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    /// HTTP over TLS and QUIC.
    pub(crate) https: u16,
    /// DNS.
    pub(crate) dns: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            https: 443,
            dns: 53,
        }
    }
}

/// Certificates and pages that are kept; the set of a workload has fewer. When there are so many, all are made anew as they are asked for.
const KEPT: usize = 4096;

/// QUIC connections that are served at once; others are refused.
const CONNECTIONS: usize = 1024;

/// Streams of one HTTP/2 connection at once: what nginx allows.
const STREAMS: u32 = 128;

/// A client that is silent for this long has gone.
const IDLE: Duration = Duration::from_secs(120);

/// How long an address is kept, in seconds: longer than a visit, shorter than the next one is away.
const TTL: u32 = 60;

/// Bytes of a DNS query.
const QUERY: usize = 1500;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// All servers, their ports open.
pub(crate) struct Server {
    https: TcpListener,
    quic: Endpoint,
    dns: UdpSocket,
    shown: Arc<Shown>,
    address: Ipv4Addr,
    library: Arc<Library>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// What TLS is served with.
struct Shown {
    /// By hosts that have nothing newer than HTTP/1.1.
    http1: Arc<ServerConfig>,
    /// By the others.
    http2: Arc<ServerConfig>,
}

impl Server {
    /// Opens the ports on all addresses.
    pub(crate) fn bind(served: &Served, ports: Ports) -> Result<Self, Error> {
        let certificates = Arc::new(Certificates::read(&served.authority)?);
        let tls = |alpn: &[&[u8]]| tls(&certificates, alpn);
        let shown = Shown {
            http1: tls(&[ALPN_HTTP1])?,
            http2: tls(&[ALPN_H2, ALPN_HTTP1])?,
        };
        let https = listen(ports.https)?;
        let udp = bound(Type::DGRAM, Transport::UDP, https.local_addr()?.port())?;
        hoplite_overlay::direct::udp::enlarge_buffers(&udp);
        let crypto = QuicServerConfig::try_from(tls(&[ALPN_H3])?)?;
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        config.transport_config(h3::transport(Tuning::default(), IDLE));
        let (settings, runtime) = (EndpointConfig::default(), Arc::new(TokioRuntime));
        let quic = Endpoint::new(settings, Some(config), udp.into(), runtime)?;
        let dns = bound(Type::DGRAM, Transport::UDP, ports.dns)?;
        dns.set_nonblocking(true)?;
        Ok(Self {
            https,
            quic,
            dns: UdpSocket::from_std(dns.into())?,
            shown: Arc::new(shown),
            address: served.address,
            library: Arc::default(),
        })
    }

    /// Serves for ever.
    pub(crate) async fn run(self) {
        let (shown, library) = (self.shown, Arc::clone(&self.library));
        let port = self
            .https
            .local_addr()
            .map_or(443, |address| address.port());
        let secure = accept(self.https, move |stream, peer| {
            let client = Client {
                library: Arc::clone(&library),
                seen_as: peer.ip().to_canonical(),
                port,
            };
            secure(Arc::clone(&shown), stream, client)
        });
        let quic = accept_quic(self.quic, self.library, port);
        tokio::join!(secure, quic, answer_names(self.dns, self.address));
    }
}

/// Pages that were asked for.
#[derive(Default)]
struct Library(Mutex<HashMap<(u64, u32), Arc<Page>>>);

impl Library {
    fn page(&self, seed: u64, number: u32) -> Arc<Page> {
        let mut pages = self.0.lock();
        if pages.len() >= KEPT {
            pages.clear();
        }
        let draw = || Arc::new(Page::draw(seed, number));
        Arc::clone(pages.entry((seed, number)).or_insert_with(draw))
    }
}

/// Who asks.
#[derive(Clone)]
struct Client {
    library: Arc<Library>,
    seen_as: IpAddr,
    port: u16,
}

impl Client {
    /// The answer to a request of `host` for `path`.
    fn answer(&self, host: Option<&str>, path: &str) -> Response<Bytes> {
        let body = Page::asked(path)
            .and_then(|(seed, number, object)| self.library.page(seed, number).body(object));
        let mut builder = Response::builder()
            .header("x-seen-as", self.seen_as.to_string())
            .header("access-control-allow-origin", "*")
            .header("cache-control", "max-age=3600");
        let host = host.map(|host| host.split(':').next().unwrap_or(host));
        if host.and_then(Protocol::of_host) == Some(Protocol::Http3) {
            builder = builder.header("alt-svc", format!("h3=\":{}\"; ma=86400", self.port));
        }
        let response = match body {
            Some((kind, body)) => builder.header("content-type", kind).body(Bytes::from(body)),
            None => builder.status(StatusCode::NOT_FOUND).body(Bytes::new()),
        };
        // Only a header that cannot be written makes it fail, and these can.
        response.unwrap_or_default()
    }
}

async fn secure(shown: Arc<Shown>, stream: TcpStream, client: Client) {
    let acceptor = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
    let start = match acceptor.await {
        Ok(start) => start,
        Err(error) => return tracing::debug!(%error, "a TLS handshake did not begin"),
    };
    let name = start.client_hello().server_name().map(str::to_owned);
    let protocol = name.as_deref().and_then(Protocol::of_host);
    let config = match protocol {
        Some(Protocol::Http1) => &shown.http1,
        _ => &shown.http2,
    };
    let stream = match start.into_stream(Arc::clone(config)).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, "a TLS handshake failed"),
    };
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => serve_http2(stream, client).await,
        _ => serve_http1(stream, client, name).await,
    }
}

async fn serve_http1(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    client: Client,
    name: Option<String>,
) {
    let serve = service_fn(move |request: http::Request<Incoming>| {
        let answer = client.answer(name.as_deref(), request.uri().path());
        async move { Ok::<_, std::convert::Infallible>(answer.map(Full::new)) }
    });
    let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), serve);
    if let Err(error) = serving.await {
        tracing::debug!(%error, "an HTTP/1.1 connection ended early");
    }
}

async fn serve_http2(stream: impl AsyncRead + AsyncWrite + Unpin, client: Client) {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(STREAMS);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let answer = client.answer(request.uri().host(), request.uri().path());
        // At most `STREAMS` at once: h2 refuses the rest.
        tokio::spawn(async move {
            if let Err(error) = push(answer, respond).await {
                tracing::debug!(%error, "an HTTP/2 stream ended early");
            }
        });
    }
}

async fn push(
    answer: Response<Bytes>,
    mut respond: h2::server::SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let (mut head, mut body) = answer.into_parts();
    head.headers.insert("content-length", body.len().into());
    let head = Response::from_parts(head, ());
    if body.is_empty() {
        return respond.send_response(head, true).map(drop);
    }
    let mut stream = respond.send_response(head, false)?;
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.transpose()?.unwrap_or(0).min(body.len());
        let now = body.split_to(room);
        stream.send_data(now, body.is_empty())?;
    }
    Ok(())
}

async fn accept_quic(endpoint: Endpoint, library: Arc<Library>, port: u16) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    while let Some(incoming) = endpoint.accept().await {
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        let client = Client {
            library: Arc::clone(&library),
            seen_as: incoming.remote_address().ip().to_canonical(),
            port,
        };
        tokio::spawn(async move {
            if let Err(error) = serve_http3(incoming, client).await {
                tracing::debug!(%error, "a QUIC connection ended early");
            }
            drop(permit);
        });
    }
}

async fn serve_http3(
    incoming: quinn::Incoming,
    client: Client,
) -> Result<(), quinn::ConnectionError> {
    let connection = incoming.await?;
    let _control = h3::control(&connection).await?;
    let streams = h3::ignore_streams(connection.clone());
    let requests = async {
        loop {
            let (to, from) = connection.accept_bi().await?;
            let client = client.clone();
            // At most as many as QUIC allows at once: 100.
            tokio::spawn(async move {
                if let Err(error) = serve(to, from, &client).await {
                    tracing::debug!(why = error.why, "an HTTP/3 stream ended early");
                }
            });
        }
    };
    tokio::select! {
        outcome = requests => outcome,
        () = streams => Ok(()),
    }
}

async fn serve(
    mut to: quinn::SendStream,
    from: quinn::RecvStream,
    client: &Client,
) -> Result<(), TransferError> {
    let failed = |error: quinn::WriteError| Fault::Write.because(error);
    let mut frames = h3::Frames::new(from, IDLE);
    let request = frames.request().await?;
    let path = request.path.as_deref().unwrap_or_default();
    let answer = client.answer(Some(&request.authority), path);
    let mut head = ResponseHead::new(answer.status().as_u16());
    for (name, value) in answer.headers() {
        head = head.with(name.as_str(), value.to_str().unwrap_or_default());
    }
    let body = answer.into_body();
    head = head.with("content-length", body.len().to_string());
    let mut out = BytesMut::new();
    write_headers(&mut out, &head.encode());
    write_data_head(&mut out, body.len());
    to.write_all(&out).await.map_err(failed)?;
    to.write_chunk(body).await.map_err(failed)?;
    to.finish().map_err(|error| Fault::Write.because(error))
}

/// The DNS: all names of pages are at one address, and there are no others.
async fn answer_names(socket: UdpSocket, address: Ipv4Addr) {
    let mut query = [0; QUERY];
    loop {
        let (length, from) = match socket.recv_from(&mut query).await {
            Ok(received) => received,
            Err(error) => {
                // An answer that nobody waited for: it does not last.
                tracing::debug!(%error, "a DNS query was not received");
                continue;
            }
        };
        let query = query.get(..length).unwrap_or_default();
        if let Some(answer) = answer_of(query, address)
            && let Err(error) = socket.send_to(&answer, from).await
        {
            tracing::debug!(%error, "a DNS answer was not sent");
        }
    }
}

fn answer_of(query: &[u8], address: Ipv4Addr) -> Option<Vec<u8>> {
    let question = match Question::read(query) {
        Ok(question) => question,
        Err(Unfit::Nothing) => return None,
        Err(Unfit::Answered(answer)) => return Some(answer),
    };
    let name = question.name().map(|name| name.to_string());
    let known = name.is_some_and(|name| Protocol::of_host(&name).is_some());
    if !known {
        return Some(question.nothing(Code::NO_NAME, TTL));
    }
    let answer = question.addresses([IpAddr::from(address)], TTL);
    // An address of the other family and an HTTPS record are not there, which may be kept as well.
    let found = question.is_internet() && question.kind() == RecordType::A;
    Some(if found {
        answer
    } else {
        question.nothing(Code::NO_ERROR, TTL)
    })
}

fn tls(certificates: &Arc<Certificates>, alpn: &[&[u8]]) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(certificates) as _);
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

/// The key of an authority, in its directory.
const KEY: &str = "authority.key";

/// Makes an authority in a directory. It signs names of pages and no others (RFC 5280 §4.2.1.10).
///
/// # Errors
/// The files cannot be written.
pub(crate) fn make_authority(directory: &Path) -> io::Result<()> {
    let made = || {
        let key = KeyPair::generate()?;
        let params = authority_params()?;
        Ok::<_, rcgen::Error>((params.self_signed(&key)?.pem(), key.serialize_pem()))
    };
    let (certificate, key) = made().map_err(io::Error::other)?;
    fs::create_dir_all(directory)?;
    fs::write(directory.join(KEY), key)?;
    fs::write(certificate_of(directory), certificate)
}

/// Where the certificate of the authority in a directory is, as PEM.
pub(crate) fn certificate_of(directory: &Path) -> PathBuf {
    directory.join("authority.pem")
}

fn authority_params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "hoplite-lab pages");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(ZONE.into())],
        excluded_subtrees: Vec::new(),
    });
    params.not_before = rcgen::date_time_ymd(2025, 1, 1);
    params.not_after = rcgen::date_time_ymd(2125, 1, 1);
    Ok(params)
}

/// Certificates of hosts, each made when its name is first asked for; one key is all of theirs.
struct Certificates {
    authority: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    key: KeyPair,
    made: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl Certificates {
    fn read(directory: &Path) -> Result<Self, Error> {
        let key = KeyPair::from_pem(&fs::read_to_string(directory.join(KEY))?)?;
        let pem = fs::read(certificate_of(directory))?;
        let authority = CertificateDer::from_pem_slice(&pem);
        Ok(Self {
            authority: authority.map_err(|error| error.to_string())?,
            issuer: Issuer::new(authority_params()?, key),
            key: KeyPair::generate()?,
            made: Mutex::default(),
        })
    }

    fn of(&self, name: &str) -> Result<Arc<CertifiedKey>, Error> {
        let mut made = self.made.lock();
        if let Some(certificate) = made.get(name) {
            return Ok(Arc::clone(certificate));
        }
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        // One key has one serial number unless it is told: browsers refuse two certificates with one.
        let serial = digest(&SHA256, name.as_bytes());
        params.serial_number = serial.as_ref().get(..16).map(SerialNumber::from_slice);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.not_before = rcgen::date_time_ymd(2025, 1, 1);
        params.not_after = rcgen::date_time_ymd(2125, 1, 1);
        let certificate = params.signed_by(&self.key, &self.issuer)?;
        let chain = vec![certificate.der().clone(), self.authority.clone()];
        let key = PrivateKeyDer::try_from(self.key.serialize_der())?;
        let certified = Arc::new(CertifiedKey::from_der(chain, key, &provider())?);
        if made.len() >= KEPT {
            made.clear();
        }
        made.insert(name.to_owned(), Arc::clone(&certified));
        Ok(certified)
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificates({} made)", self.made.lock().len())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        Protocol::of_host(name)?;
        match self.of(name) {
            Ok(certified) => Some(certified),
            Err(error) => {
                tracing::warn!(%error, "no certificate for a host of pages");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
