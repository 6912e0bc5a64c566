//! The HTTP proxy front end: one session for each connection of a program. CONNECT and absolute-form requests; names stay
//! names; `Proxy-Authorization: Basic` is the isolation token, whatever it says. RFC 9110 §7.6 and §9.3.6, RFC 9112 §3.2.
//!
//! A web page in the user's browser can send origin-form requests to this port, also under a name that it had pointed at
//! loopback (DNS rebinding); browsers let it send neither CONNECT nor absolute-form. So origin-form gets a page of help that
//! says nothing about the user, and reaches nothing. The port listens on loopback unless the configuration says `remote`.
//!
//! We do not add `Via` or `X-Forwarded-For`, because they would tell the target about the user's side.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use ::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
    header, uri::Scheme,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use hoplite_overlay::{Error, ErrorKind, Isolation, Reason, Stream};
use hoplite_wire::{Host, Target, socks::CredentialsView};
use http_body_util::{Either, Full};
use hyper::{
    body::{Body as _, Incoming},
    client::{self, conn::http1::SendRequest},
    server::conn::http1,
    service::service_fn,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync,
    task::JoinSet,
};

use crate::{
    copy::copy,
    counters::Counters,
    front::ProxyContext,
    program::{CleanClose, ProgramConnection},
    users::User,
};

/// What the requests of one connection share. They come one after the other: the locks are never waited for.
struct Session {
    context: Arc<ProxyContext>,
    /// Where the program is, and whose.
    program: Option<SocketAddr>,
    user: User,
    /// The connection to the target of the last absolute-form request, for the next one.
    upstream: sync::Mutex<Option<Upstream>>,
    /// The flow that a CONNECT opened, until the connection is a tunnel.
    tunnel: Mutex<Option<Tunnel>>,
    /// Whether there was a request.
    served: AtomicBool,
}

/// Serves one program until it or its flow ends.
pub(crate) async fn serve(program: ProgramConnection, context: Arc<ProxyContext>) {
    let session = Arc::new(Session {
        context,
        program: program.peer_addr().ok(),
        user: program.user(),
        upstream: sync::Mutex::default(),
        tunnel: Mutex::default(),
        served: AtomicBool::new(false),
    });
    let service = service_fn(|request| answer(Arc::clone(&session), request));
    let clean_close = program.clean_close();
    let mut connection = Box::pin(
        builder(&session.context)
            .serve_connection(TokioIo::new(program), service)
            .with_upgrades(),
    );
    if let Err(error) = connection.as_mut().await {
        session.failed(&error, &clean_close);
        return;
    }
    drop(connection);
    if let Some(tunnel) = session.take_tunnel() {
        tunnel.run(&session.context).await;
    }
}

fn builder(context: &ProxyContext) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(context.limits.handshake)
        .max_header_size(context.limits.header)
        .max_buf_size(context.limits.header.max(64 * 1024))
        .auto_date_header(false)
        .preserve_header_case(true);
    builder
}

async fn answer(
    session: Arc<Session>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    session.served.store(true, Ordering::Relaxed);
    let answered = match request.method() {
        &Method::CONNECT => connect(&session, request).await,
        _ if request.uri().scheme().is_some() => forward(&session, request).await,
        _ => Ok(help(&request)),
    };
    Ok(answered.unwrap_or_else(|refusal| {
        if let ProxyError::Request(_) = refusal {
            session.context.counters.malformed.add(1);
        }
        refusal.response()
    }))
}

impl Session {
    fn failed(&self, error: &hyper::Error, clean_close: &CleanClose) {
        // A connection that waited for its next request is no slow header, and is closed without a reset.
        let rested = error.is_timeout() && self.served.load(Ordering::Relaxed);
        if rested {
            return clean_close.allow();
        }
        if error.is_parse() || error.is_timeout() {
            self.context.counters.malformed.add(1);
        }
        tracing::debug!(%error, "a program's HTTP connection failed");
    }

    fn put_tunnel(&self, tunnel: Tunnel) {
        *self.tunnel.lock() = Some(tunnel);
    }

    fn take_tunnel(&self) -> Option<Tunnel> {
        self.tunnel.lock().take()
    }
}

/// The isolation token of a request.
fn isolation(session: &Session, request: &Request<Incoming>) -> Isolation {
    let given = credentials(request.headers()).map(Isolation::new);
    let given = given.unwrap_or_default();
    session.context.isolation(given, session.user)
}

/// An open flow that waits for its connection.
struct Tunnel {
    stream: Stream,
    connection: OnUpgrade,
}

/// CONNECT (RFC 9110 §9.3.6): opens a flow and answers 200; then the connection goes to the copy loop.
async fn connect(
    session: &Session,
    request: Request<Incoming>,
) -> Result<Response<Body>, ProxyError> {
    let target = connect_target(&request)?;
    let (isolation, program) = (isolation(session, &request), session.program);
    let opening = session.context.open_stream(&target, isolation, program);
    let stream = opening.await.map_err(ProxyError::Overlay)?;
    let connection = hyper::upgrade::on(request);
    session.put_tunnel(Tunnel { stream, connection });
    Ok(Response::new(Either::Right(Full::from(Bytes::new()))))
}

fn connect_target(request: &Request<Incoming>) -> Result<Target, ProxyError> {
    let authority = request.uri().authority();
    let parsed = authority.and_then(|authority| authority.as_str().parse().ok());
    parsed.ok_or(ProxyError::Request(
        "CONNECT wants a host and a port, such as example.com:443",
    ))
}

impl Tunnel {
    /// Copies until both directions have ended.
    async fn run(self, context: &ProxyContext) {
        let Some((program, early)) = self.connection.await.ok().and_then(unwrap) else {
            tracing::debug!("a connection did not become a tunnel");
            return;
        };
        let idle = context.limits.idle_stream;
        copy(program, self.stream, early, idle, &context.counters).await;
    }
}

/// The program's connection as it was before HTTP, and what it has sent already.
fn unwrap(upgraded: Upgraded) -> Option<(ProgramConnection, Vec<u8>)> {
    let parts = upgraded.downcast::<TokioIo<ProgramConnection>>().ok()?;
    Some((parts.io.into_inner(), parts.read_buf.to_vec()))
}

/// Absolute-form (`GET http://…`, RFC 9112 §3.2.2, RFC 9110 §7.6): sends the request to its target over the overlay and streams the answer back.
async fn forward(
    session: &Session,
    request: Request<Incoming>,
) -> Result<Response<Body>, ProxyError> {
    let target = http_target(request.uri())?;
    let isolation = isolation(session, &request);
    let request = rewrite(request, &target)?;
    let mut response = send_upstream(session, target, isolation, request).await?;
    strip(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    Ok(response.map(Either::Left))
}

/// Where an `http` URI points. "A proxy MUST ignore the received Host header field" in its favour.
fn http_target(uri: &Uri) -> Result<Target, ProxyError> {
    if uri.scheme() != Some(&Scheme::HTTP) {
        let hint = "only http:// addresses are fetched, https:// ones go through CONNECT";
        return Err(ProxyError::Request(hint));
    }
    let invalid = || ProxyError::Request("the address has no valid host and port");
    let host: Host = uri
        .host()
        .and_then(|host| host.parse().ok())
        .ok_or_else(invalid)?;
    // An authority such as "host:" or "host:99999" has no port that hyper could read.
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let bare = authority
        .rsplit_once('@')
        .map_or(authority, |(_, bare)| bare);
    let has_port = !bare.ends_with(']') && bare.contains(':');
    match (uri.port_u16(), has_port) {
        (Some(port), _) => Target::new(host, port).map_err(|_| invalid()),
        (None, false) => Target::new(host, 80).map_err(|_| invalid()),
        (None, true) => Err(invalid()),
    }
}

/// The request as its target is to see it: origin-form, its own `Host`, nothing of this connection.
fn rewrite(request: Request<Incoming>, target: &Target) -> Result<Request<Body>, ProxyError> {
    let (mut parts, body) = request.into_parts();
    let host = match target.port {
        80 => target.host.to_string(),
        _ => target.to_string(),
    };
    let host =
        HeaderValue::try_from(host).map_err(|_| ProxyError::Request("the host is not valid"))?;
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = path
        .parse()
        .map_err(|_| ProxyError::Request("the path is not valid"))?;
    strip(&mut parts.headers);
    parts.headers.insert(header::HOST, host);
    parts.version = Version::HTTP_11;
    Ok(Request::from_parts(parts, Either::Left(body)))
}

/// Sends on the connection of the last request where that is safe, else on a new one, which the next may use.
///
/// A connection that was used before may just be closing. "A proxy MUST NOT automatically retry non-idempotent requests"
/// (RFC 9110 §9.2.2): those, and all with a body, which can be sent only once, get a connection of their own.
async fn send_upstream(
    session: &Session,
    target: Target,
    isolation: Isolation,
    request: Request<Body>,
) -> Result<Response<Incoming>, ProxyError> {
    let mut slot = session.upstream.lock().await;
    if let (Some(upstream), Some(again)) = (slot.as_mut(), repeated(&request))
        && upstream.serves(&target, &isolation).await
        && let Ok(response) = upstream.send(again).await
    {
        return Ok(response);
    }
    *slot = None;
    let upstream = slot.insert(Upstream::open(session, target, isolation).await?);
    upstream.send(request).await
}

/// A copy of the request to send it once more, if that is safe.
fn repeated(request: &Request<Body>) -> Option<Request<Body>> {
    let again = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    if !again || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(Either::Right(Full::from(Bytes::new())));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// An HTTP/1.1 connection to a target, over a stream of the overlay, for absolute-form requests. It lasts as long as the program's connection,
/// for requests that go to the same target on the same terms.
struct Upstream {
    target: Target,
    isolation: Isolation,
    sender: SendRequest<Body>,
    /// Holds the task that drives the connection: dropped, it resets what is not finished.
    _driver: JoinSet<()>,
}

impl Upstream {
    /// Connects.
    async fn open(
        session: &Session,
        target: Target,
        isolation: Isolation,
    ) -> Result<Self, ProxyError> {
        let context = &session.context;
        let opening = context.open_stream(&target, isolation.clone(), session.program);
        let stream = opening.await.map_err(ProxyError::Overlay)?;
        let counters = Arc::clone(&context.counters);
        let io = TokioIo::new(CountedStream { stream, counters });
        let mut builder = client::conn::http1::Builder::new();
        builder
            .max_header_size(context.limits.header)
            .preserve_header_case(true);
        let connected = builder.handshake(io).await;
        let (sender, connection) = connected.map_err(|error| refusal(&error))?;
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
    async fn serves(&mut self, target: &Target, isolation: &Isolation) -> bool {
        self.target == *target && self.isolation == *isolation && self.sender.ready().await.is_ok()
    }

    async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, ProxyError> {
        let sent = self.sender.send_request(request).await;
        sent.map_err(|error| refusal(&error))
    }
}

/// What hyper's error means for the program.
fn refusal(error: &hyper::Error) -> ProxyError {
    if let Some(overlay) = overlay_error(error) {
        return ProxyError::Overlay(overlay.clone());
    }
    if error.is_parse() {
        ProxyError::NotHttp
    } else {
        ProxyError::Ended
    }
}

fn overlay_error(error: &hyper::Error) -> Option<&Error> {
    let io = std::error::Error::source(error)?.downcast_ref::<io::Error>()?;
    Error::from_io(io)
}

/// A stream whose bytes are counted.
struct CountedStream {
    stream: Stream,
    counters: Arc<Counters>,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.counters.bytes_down.add(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let n = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.counters.bytes_up.add(n);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A target's body as it streams, or one of ours.
type Body = Either<Incoming, Full<Bytes>>;

/// Why there is no answer of the target: the proxy answers itself, in one sentence, with a status that tells the truth (RFC 9110 §15,
/// RFC 9209 `Proxy-Status`).
#[derive(Debug)]
enum ProxyError {
    /// The overlay failed.
    Overlay(Error),
    /// The request makes no sense to a proxy.
    Request(&'static str),
    /// The target closed or reset before it had answered.
    Ended,
    /// The target does not speak HTTP/1.
    NotHttp,
}

impl ProxyError {
    fn response(&self) -> Response<Body> {
        let (status, token) = self.status();
        let mut response = text(status, &self.sentence());
        if let Some(token) = token {
            let value = HeaderValue::try_from(format!("hoplite; error={token}"));
            let name = HeaderName::from_static("proxy-status");
            value
                .into_iter()
                .for_each(|value| drop(response.headers_mut().insert(name.clone(), value)));
        }
        response
    }

    fn status(&self) -> (StatusCode, Option<&'static str>) {
        match self {
            Self::Overlay(error) => {
                let (status, token) = overlay_status(error);
                (status, Some(token))
            }
            Self::Request(_) => (StatusCode::BAD_REQUEST, None),
            Self::Ended => (StatusCode::BAD_GATEWAY, Some("connection_terminated")),
            Self::NotHttp => (StatusCode::BAD_GATEWAY, Some("http_protocol_error")),
        }
    }

    fn sentence(&self) -> String {
        match self {
            Self::Overlay(error) => format!("{error}: {}", advice(error)),
            Self::Request(problem) => format!("the request is not for a proxy: {problem}"),
            Self::Ended => {
                "the target ended the connection before it had answered: try again".into()
            }
            Self::NotHttp => {
                "the target's answer is not HTTP/1.1: check the address and the port".into()
            }
        }
    }
}

/// The table is in the crate's documentation.
fn overlay_status(error: &Error) -> (StatusCode, &'static str) {
    match error.kind() {
        ErrorKind::EntryUnreachable | ErrorKind::PathFailed => {
            (StatusCode::SERVICE_UNAVAILABLE, "destination_unavailable")
        }
        ErrorKind::TargetFailed => (StatusCode::BAD_GATEWAY, target_token(error.reason())),
        ErrorKind::Forbidden => forbidden_status(error.reason()),
        ErrorKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, "proxy_internal_error"),
        ErrorKind::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "connection_timeout"),
        ErrorKind::Bug => (StatusCode::INTERNAL_SERVER_ERROR, "proxy_internal_error"),
    }
}

fn target_token(reason: Option<Reason>) -> &'static str {
    match reason {
        Some(Reason::Refused) => "connection_refused",
        Some(Reason::NameNotFound | Reason::ResolverFailed) => "dns_error",
        Some(Reason::HostUnreachable | Reason::NetworkUnreachable) => "destination_ip_unroutable",
        _ => "destination_unavailable",
    }
}

fn forbidden_status(reason: Option<Reason>) -> (StatusCode, &'static str) {
    match reason {
        Some(Reason::Limit) => (StatusCode::SERVICE_UNAVAILABLE, "connection_limit_reached"),
        Some(Reason::Authentication | Reason::Identity) => {
            (StatusCode::FORBIDDEN, "proxy_configuration_error")
        }
        _ => (StatusCode::FORBIDDEN, "destination_ip_prohibited"),
    }
}

fn advice(error: &Error) -> &'static str {
    match (error.kind(), error.reason()) {
        (ErrorKind::EntryUnreachable, _) => "check the network, or choose another first relay",
        (ErrorKind::PathFailed, _) => "try again, or choose another path",
        (ErrorKind::TargetFailed, Some(Reason::NameNotFound)) => {
            "check the spelling of the address"
        }
        (ErrorKind::TargetFailed, _) => "the relays work; check the address, or try later",
        (ErrorKind::Forbidden, Some(Reason::Limit)) => "try later, or ask the relay's operator",
        (ErrorKind::Forbidden, Some(Reason::Authentication)) => {
            "check the token in the configuration"
        }
        (ErrorKind::Forbidden, _) => "ask the relay's operator, or choose another path",
        (ErrorKind::Unsupported, _) => "choose another path",
        (ErrorKind::TimedOut, _) => "try again",
        (ErrorKind::Bug, _) => "please report this",
    }
}

fn text(status: StatusCode, sentence: &str) -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::from(format!("hoplite: {sentence}\n"))));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// The answer to whoever takes the proxy for a web server: a person who opens its address, or a web page that probes.
fn help(request: &Request<Incoming>) -> Response<Body> {
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    let status = if reading && request.uri().path() == "/" {
        StatusCode::OK
    } else {
        StatusCode::BAD_REQUEST
    };
    let sentence = "this is an HTTP proxy, not a web server: enter its address and port as the proxy for HTTP and \
                    HTTPS in the program's network settings, or run curl -x http://ADDRESS:PORT https://example.com/";
    let mut response = text(status, sentence);
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// What belongs to one connection and never travels on. Hyper writes its own framing.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Takes out of a request or answer what a proxy does not pass on (RFC 9110 §7.6.1, RFC 9112 §3.2.2).
///
/// "Intermediaries MUST parse a received Connection header field before a message is forwarded and, for each
/// connection-option in this field, remove any header or trailer field(s) from the message with the same name as the
/// connection-option, and then remove the Connection header field itself".
fn strip(headers: &mut HeaderMap) {
    for name in connection_options(headers) {
        headers.remove(name);
    }
    // A length beside a transfer coding is a smuggler's tool: the coding counts (RFC 9112 §6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).into_iter();
    let options = values.filter_map(|value| value.to_str().ok());
    options
        .flat_map(|value| value.split(','))
        .filter_map(|option| option.trim().parse().ok())
        // The framing of the body is no option.
        .filter(|name| name != header::CONTENT_LENGTH && name != header::TRANSFER_ENCODING)
        .collect()
}

/// The token that `Proxy-Authorization` makes: that of the same user name and password over SOCKS, where they are Basic (RFC 7617).
fn credentials(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(header::PROXY_AUTHORIZATION)?.as_bytes();
    Some(basic(value).unwrap_or_else(|| value.to_vec()))
}

fn basic(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let pair = BASE64_STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    let (user, rest) = pair.split_at_checked(colon)?;
    let password = rest.strip_prefix(b":")?;
    Some(CredentialsView { user, password }.isolation())
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod headers_tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                value.parse().expect("a value"),
            )
        });
        pairs.collect()
    }

    #[test]
    fn what_belongs_to_one_connection_does_not_travel_on() {
        let mut headers = map(&[
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("proxy-authorization", "Basic eA=="),
            ("proxy-connection", "keep-alive"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("accept", "*/*"),
            ("content-length", "3"),
        ]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("accept", "*/*"), ("content-length", "3")]));
    }

    #[test]
    fn a_length_beside_a_transfer_coding_is_dropped() {
        let mut headers = map(&[("transfer-encoding", "chunked"), ("content-length", "3")]);
        strip(&mut headers);
        assert_eq!(headers, HeaderMap::new());
    }

    #[test]
    fn the_same_credentials_isolate_alike_over_http_and_socks() {
        let (user, password) = (&b"Aladdin"[..], &b"open sesame"[..]);
        let headers = map(&[("proxy-authorization", "basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")]);
        let expected = CredentialsView { user, password }.isolation();
        assert_eq!(credentials(&headers), Some(expected));
    }

    #[test]
    fn credentials_that_are_not_basic_isolate_too() {
        for value in ["Bearer x", "Basic ?", "Basic eA=="] {
            let headers = map(&[("proxy-authorization", value)]);
            assert_eq!(credentials(&headers), Some(value.as_bytes().to_vec()));
        }
        assert_eq!(credentials(&HeaderMap::new()), None);
    }
}
