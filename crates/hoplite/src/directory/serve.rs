//! What the authority answers, in plain HTTP/1.1: all of it is public and signed. Bounded in connections, time and size.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use hoplite_directory::Change;
use hoplite_wire::directory::DESCRIPTOR;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::{
    Shared, moment, now,
    rates::{Rate, Rates, client},
};
use crate::config::directory::Limits;

/// How long a request's head may take.
const HEAD: Duration = Duration::from_secs(5);
/// Octets of a request's head.
const HEAD_SIZE: usize = 8192;

/// Connections by address.
#[derive(Clone, Debug, Default)]
struct Places(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One of them.
struct Place(Places, IpAddr);

impl Places {
    /// None if the client, or all clients, have too many. Another authority's are beside those of all.
    fn take(&self, client: IpAddr, is_first: bool, limits: &Limits) -> Option<Place> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let own = taken.get(&client).copied().unwrap_or(0);
        if !is_first && all >= limits.connections || own >= limits.per_client {
            return None;
        }
        taken.insert(client, own.saturating_add(1));
        Some(Place(self.clone(), client))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = taken.get(&self.1).copied().unwrap_or(0).saturating_sub(1);
        match left {
            0 => taken.remove(&self.1),
            left => taken.insert(self.1, left),
        };
    }
}

/// What all connections have in common.
struct Server {
    shared: Shared,
    uploads: Mutex<Rates>,
    requests: Mutex<Rates>,
    octets: Mutex<Rates>,
}

fn take(rates: &Mutex<Rates>, client: IpAddr, amount: usize, is_first: bool) -> bool {
    let amount = u64::try_from(amount).unwrap_or(u64::MAX);
    let mut rates = rates.lock().unwrap_or_else(PoisonError::into_inner);
    rates.take(client, amount, is_first)
}

/// Serves until dropped.
pub(super) async fn serve(listener: TcpListener, shared: Shared, limits: Limits) {
    let places = Places::default();
    let rates = |all, each| Mutex::new(Rates::new(Rate { all, each }));
    let server = Arc::new(Server {
        shared,
        uploads: rates(limits.uploads, limits.uploads_per_client),
        requests: rates(limits.requests, limits.requests_per_client),
        octets: rates(limits.octets, limits.octets_per_client),
    });
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let from = client(address.ip());
        let is_first = server.shared.others().contains(&from);
        // Who has too many connections is hung up on.
        if let Some(place) = places.take(from, is_first, &limits) {
            let asking = Asking {
                ip: address.ip().to_canonical(),
                client: from,
                is_authority: is_first,
            };
            let server = Arc::clone(&server);
            tokio::spawn(converse(stream, server, asking, limits.connection, place));
        }
    }
}

/// Who asks.
#[derive(Clone, Copy)]
struct Asking {
    ip: IpAddr,
    client: IpAddr,
    is_authority: bool,
}

async fn converse(
    stream: TcpStream,
    server: Arc<Server>,
    asking: Asking,
    patience: Duration,
    place: Place,
) {
    let service = service_fn(move |request| answer(request, Arc::clone(&server), asking));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_SIZE)
        .serve_connection(TokioIo::new(stream), service);
    drop(tokio::time::timeout(patience, connection).await);
    drop(place);
}

async fn answer(
    request: Request<Incoming>,
    server: Arc<Server>,
    asking: Asking,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let (status, body) = match (request.method(), path.as_str()) {
        (&Method::POST, "/hoplite/descriptor") => upload(request, &server, asking).await,
        (&Method::GET | &Method::HEAD, path) => get(path, &server, asking),
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and POST are known here".into(),
        ),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("text/plain; charset=us-ascii");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

fn get(path: &str, server: &Server, asking: Asking) -> (StatusCode, Bytes) {
    let (client, is_first) = (asking.client, asking.is_authority);
    if !take(&server.requests, client, 1, is_first) {
        return too_many();
    }
    let (status, body) = document(path, &server.shared);
    match take(&server.octets, client, body.len(), is_first) {
        true => (status, body),
        false => too_many(),
    }
}

fn too_many() -> (StatusCode, Bytes) {
    let why = "too much is asked for: ask again in a minute, or another authority";
    (StatusCode::TOO_MANY_REQUESTS, why.into())
}

fn document(path: &str, shared: &Shared) -> (StatusCode, Bytes) {
    let authority = shared.lock();
    let mut parts = path
        .strip_prefix("/hoplite/")
        .unwrap_or_default()
        .split('/');
    let parts = (parts.next(), parts.next(), parts.next(), parts.next());
    let found = match parts {
        (Some("list"), None, ..) => authority.list(),
        (Some("list"), Some(at), None, _) => at.parse().ok().and_then(|at| authority.signed(at)),
        (Some("commitments"), Some(at), None, _) => {
            let told = at.parse().ok();
            let told = told.and_then(|at| authority.commitments(at));
            told.map(Bytes::from)
        }
        (Some("vote"), Some(at), Some(voter), None) => {
            let named = at.parse().ok().zip(voter.parse().ok());
            named.and_then(|(at, voter)| authority.vote(at, &voter, moment()))
        }
        _ => return (StatusCode::NOT_FOUND, "there is no such document".into()),
    };
    match found {
        Some(found) => (StatusCode::OK, found),
        None => (StatusCode::NOT_FOUND, "there is none yet".into()),
    }
}

async fn upload(
    request: Request<Incoming>,
    server: &Server,
    asking: Asking,
) -> (StatusCode, Bytes) {
    let body = Limited::new(request.into_body(), DESCRIPTOR)
        .collect()
        .await;
    let Ok(body) = body else {
        return (
            StatusCode::PAYLOAD_TOO_LARGE,
            "a descriptor has at most 4096 octets".into(),
        );
    };
    let Ok(text) = String::from_utf8(body.to_bytes().into()) else {
        return (StatusCode::BAD_REQUEST, "a descriptor is text".into());
    };
    // Who claims to be a relay that has passed its test still has a share of its address only.
    let is_first = claims_tested(&text, &server.shared);
    if !take(&server.uploads, asking.client, 1, is_first) {
        return too_many();
    }
    let taken = server.shared.lock().upload(&text, asking.ip, now());
    match taken {
        Ok(taken) => {
            let gone = taken.gone.map(Change::Forget);
            let mut changes = vec![Change::Descriptor(taken.identity, text)];
            changes.extend(gone);
            match server.shared.writer().written(changes).await {
                true => (StatusCode::OK, "taken".into()),
                false => (
                    StatusCode::SERVICE_UNAVAILABLE,
                    "taken, but it cannot be stored and is lost when this authority starts again: hand it in later".into(),
                ),
            }
        }
        Err(rejected) => (StatusCode::FORBIDDEN, rejected.to_string().into()),
    }
}

/// Whether it names a relay that has passed its test; whose it is, is looked at later.
fn claims_tested(text: &str, shared: &Shared) -> bool {
    let identity = text.lines().find_map(|line| line.strip_prefix("identity "));
    let identity = identity.and_then(|identity| identity.parse().ok());
    identity.is_some_and(|identity| shared.lock().is_tested(&identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_take_all_places_and_gives_them_back() {
        let (places, limits) = (
            Places::default(),
            Limits {
                connections: 3,
                per_client: 2,
                ..Limits::default()
            },
        );
        let take = |n: u8| places.take(IpAddr::from([10, 0, 0, n]), false, &limits);
        let held = (take(1).expect("free"), take(1).expect("free"));
        assert!(take(1).is_none());
        let other = take(2).expect("free");
        assert!(take(3).is_none());
        let authority = places.take(IpAddr::from([10, 0, 0, 9]), true, &limits);
        assert!(authority.is_some(), "it has places of its own");
        drop(authority);
        drop((held, other));
        assert!(take(3).is_some());
        assert!(places.0.lock().expect("sound").len() <= 1);
    }
}
