//! What the authority answers, in plain HTTP/1.1: all of it is public and signed. Bounded in connections, time and size.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use hoplite_wire::directory::DESCRIPTOR;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tracing::warn;

use super::{Shared, moment, now};
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
    /// None if the client, or all clients, have too many.
    fn take(&self, client: IpAddr, limits: &Limits) -> Option<Place> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let own = taken.get(&client).copied().unwrap_or(0);
        if all >= limits.connections || own >= limits.per_client {
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

/// Serves until dropped.
pub(super) async fn serve(listener: TcpListener, shared: Shared, limits: Limits) {
    let places = Places::default();
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Who has too many connections is hung up on.
        if let Some(place) = places.take(client.ip().to_canonical(), &limits) {
            tokio::spawn(converse(stream, shared.clone(), limits.connection, place));
        }
    }
}

async fn converse(stream: TcpStream, shared: Shared, patience: Duration, place: Place) {
    let service = service_fn(move |request| answer(request, shared.clone()));
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
    shared: Shared,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let (status, body) = match (request.method(), path.as_str()) {
        (&Method::POST, "/hoplite/descriptor") => upload(request, &shared).await,
        (&Method::GET | &Method::HEAD, path) => document(path, &shared),
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

fn document(path: &str, shared: &Shared) -> (StatusCode, Bytes) {
    let state = shared.lock();
    let mut parts = path
        .strip_prefix("/hoplite/")
        .unwrap_or_default()
        .split('/');
    let parts = (parts.next(), parts.next(), parts.next(), parts.next());
    let found = match parts {
        (Some("list"), None, ..) => state.authority.list(),
        (Some("list"), Some(at), None, _) => {
            at.parse().ok().and_then(|at| state.authority.signed(at))
        }
        (Some("commitments"), Some(at), None, _) => {
            let told = at.parse().ok();
            let told = told.and_then(|at| state.authority.commitments(at));
            told.map(Bytes::from)
        }
        (Some("vote"), Some(at), Some(voter), None) => {
            let named = at.parse().ok().zip(voter.parse().ok());
            named.and_then(|(at, voter)| state.authority.vote(at, &voter, moment()))
        }
        _ => return (StatusCode::NOT_FOUND, "there is no such document".into()),
    };
    match found {
        Some(found) => (StatusCode::OK, found),
        None => (StatusCode::NOT_FOUND, "there is none yet".into()),
    }
}

async fn upload(request: Request<Incoming>, shared: &Shared) -> (StatusCode, Bytes) {
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
    let mut state = shared.lock();
    match state.authority.upload(&text, now()) {
        Ok(identity) => {
            // What cannot be stored counts until a restart; the relay says it again before long.
            if let Err(error) = state.store.keep_descriptor(&identity, &text) {
                warn!("a descriptor cannot be stored: {error}");
            }
            (StatusCode::OK, "taken".into())
        }
        Err(rejected) => (StatusCode::FORBIDDEN, rejected.to_string().into()),
    }
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
        let take = |n: u8| places.take(IpAddr::from([10, 0, 0, n]), &limits);
        let held = (take(1).expect("free"), take(1).expect("free"));
        assert!(take(1).is_none());
        let other = take(2).expect("free");
        assert!(take(3).is_none());
        drop((held, other));
        assert!(take(3).is_some());
        assert!(places.0.lock().expect("sound").len() <= 1);
    }
}
