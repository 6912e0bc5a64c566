//! Absolute-form requests (`GET http://…`): sent to their target over the overlay, the answer streamed back.
//! The HTTP front end answers such requests with it. RFC 9112 §3.2.2, RFC 9110 §7.6.

use ::http::{HeaderValue, Method, Request, Response, Uri, Version, header, uri::Scheme};
use bytes::Bytes;
use hoplite_overlay::Isolation;
use hoplite_wire::{Host, Target};
use http_body_util::{Either, Full};
use hyper::body::{Body as _, Incoming};

use super::{
    Session,
    answer::{Body, Refusal},
    headers, isolation,
    upstream::Upstream,
};

/// Forwards one request.
pub(super) async fn answer(
    session: &Session,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let target = target(request.uri())?;
    let isolation = isolation(&request);
    let request = rewrite(request, &target)?;
    let mut response = send(session, target, isolation, request).await?;
    headers::strip(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    Ok(response.map(Either::Left))
}

/// Where an `http` URI points. "A proxy MUST ignore the received Host header field" in its favour.
fn target(uri: &Uri) -> Result<Target, Refusal> {
    if uri.scheme() != Some(&Scheme::HTTP) {
        let hint = "only http:// addresses are fetched, https:// ones go through CONNECT";
        return Err(Refusal::Request(hint));
    }
    let invalid = || Refusal::Request("the address has no valid host and port");
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
fn rewrite(request: Request<Incoming>, target: &Target) -> Result<Request<Body>, Refusal> {
    let (mut parts, body) = request.into_parts();
    let host = match target.port {
        80 => target.host.to_string(),
        _ => target.to_string(),
    };
    let host =
        HeaderValue::try_from(host).map_err(|_| Refusal::Request("the host is not valid"))?;
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = path
        .parse()
        .map_err(|_| Refusal::Request("the path is not valid"))?;
    headers::strip(&mut parts.headers);
    parts.headers.insert(header::HOST, host);
    parts.version = Version::HTTP_11;
    Ok(Request::from_parts(parts, Either::Left(body)))
}

/// Sends on the connection of the last request where that is safe, else on a new one, which the next may use.
///
/// A connection that was used before may just be closing. "A proxy MUST NOT automatically retry non-idempotent requests"
/// (RFC 9110 §9.2.2): those, and all with a body, which can be sent only once, get a connection of their own.
async fn send(
    session: &Session,
    target: Target,
    isolation: Isolation,
    request: Request<Body>,
) -> Result<Response<Incoming>, Refusal> {
    let mut slot = session.upstream.lock().await;
    if let (Some(upstream), Some(again)) = (slot.as_mut(), copy(&request))
        && upstream.serves(&target, &isolation).await
        && let Ok(response) = upstream.send(again).await
    {
        return Ok(response);
    }
    *slot = None;
    let upstream = slot.insert(Upstream::open(&session.room, target, isolation).await?);
    upstream.send(request).await
}

/// The same request once more, if that is allowed.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
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
