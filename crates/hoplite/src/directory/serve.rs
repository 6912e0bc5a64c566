//! What the authority answers, in plain HTTP/1.1: all of it is public and signed. Bounded in connections, time and size.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use hoplite_crypto::Proof;
use hoplite_directory::{Change, PROOF};
use hoplite_wire::{
    directory::DESCRIPTOR, networks::host_network, relay_statistics::RELAY_STATISTICS,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::{Shared, moment, now};
use crate::{
    config::directory::Limits,
    http_server::{Answer, Client, Places, Rate, Rates, converse},
};

/// What all connections have in common.
struct Server {
    shared: Shared,
    uploads: Mutex<Rates>,
    requests: Mutex<Rates>,
    bytes: Mutex<Rates>,
    limits: Limits,
}

fn take(rates: &Mutex<Rates>, client: IpAddr, amount: u64, is_first: bool) -> bool {
    let mut rates = rates.lock();
    rates.take(client, amount, is_first)
}

/// Serves until dropped.
pub(super) async fn serve(listener: TcpListener, shared: Shared, limits: Limits) {
    let places = Places::new(limits.connections, limits.per_client);
    let rates = |all, each| Mutex::new(Rates::new(Rate { all, each }));
    let server = Arc::new(Server {
        shared,
        uploads: rates(limits.uploads, limits.uploads_per_client),
        requests: rates(limits.requests, limits.requests_per_client),
        bytes: rates(limits.bytes, limits.bytes_per_client),
        limits,
    });
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let from = host_network(address.ip());
        let client = Client {
            address: from,
            is_known: server.shared.others().contains(&from),
        };
        let place = places.enter(client);
        let ip = address.ip().to_canonical();
        let asking = Asking { ip, client };
        let times = (server.limits.request, server.limits.connection);
        let server = Arc::clone(&server);
        let answer = move |request| answer(request, Arc::clone(&server), asking);
        tokio::spawn(converse(stream, place, times, answer));
    }
}

/// Who asks.
#[derive(Clone, Copy)]
struct Asking {
    ip: IpAddr,
    client: Client,
}

async fn answer(
    request: Request<Incoming>,
    server: Arc<Server>,
    asking: Asking,
) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let answer = match (request.method(), path.as_str()) {
        (&Method::POST, "/hoplite/descriptor") => upload(request, &server, asking).await,
        (&Method::POST, "/hoplite/statistics") => take_statistics(request, &server, asking).await,
        // Not HEAD: what it would count as, its body, is not sent.
        (&Method::GET, path) => get(path, request.headers(), &server, asking),
        _ => Answer::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and POST are known here",
        ),
    };
    answer.response()
}

fn get(path: &str, fields: &HeaderMap, server: &Server, asking: Asking) -> Answer {
    let (client, is_first) = (asking.client.address, asking.client.is_known);
    if !take(&server.requests, client, 1, is_first) {
        return too_many();
    }
    let takes = |bytes| take(&server.bytes, client, bytes, is_first);
    let answer = match path {
        "/hoplite/list" => server.shared.given().answer(fields),
        // Nothing is written out for who may not have it.
        "/hoplite/statistics" if takes(server.shared.statistics_bytes()) => {
            return Answer::new(StatusCode::OK, server.shared.statistics());
        }
        "/hoplite/statistics" => return too_many(),
        path => document(path, &server.shared),
    };
    if takes(answer.bytes()) {
        answer
    } else {
        too_many()
    }
}

fn too_many() -> Answer {
    let why = "too much is asked for: ask again in a minute, or another authority";
    Answer::new(StatusCode::TOO_MANY_REQUESTS, why)
}

fn document(path: &str, shared: &Shared) -> Answer {
    let authority = shared.lock();
    let mut parts = path
        .strip_prefix("/hoplite/")
        .unwrap_or_default()
        .split('/');
    let parts = (parts.next(), parts.next(), parts.next(), parts.next());
    let found = match parts {
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
        _ => return Answer::new(StatusCode::NOT_FOUND, "there is no such document"),
    };
    match found {
        Some(found) => Answer::new(StatusCode::OK, found),
        None => Answer::new(StatusCode::NOT_FOUND, "there is none yet"),
    }
}

async fn upload(request: Request<Incoming>, server: &Server, asking: Asking) -> Answer {
    let proof = request.headers().get(PROOF);
    let proof = proof.and_then(|proof| proof.to_str().ok()?.parse::<Proof>().ok());
    let text = match text_of(request, DESCRIPTOR, server).await {
        Ok(text) => text,
        Err(refused) => return refused,
    };
    // Who claims to be a relay that has passed its test still has a share of its address only.
    let is_first = claims_tested(&text, &server.shared);
    if !take(&server.uploads, asking.client.address, 1, is_first) {
        return too_many();
    }
    let (lock, proof) = (|| server.shared.lock(), proof.as_ref());
    let taken = lock().upload(&text, proof, asking.ip, now());
    match taken {
        Ok(taken) if taken.known => Answer::new(StatusCode::OK, "taken"),
        Ok(taken) => {
            let gone = taken.gone.map(Change::Forget);
            let mut changes = vec![Change::Descriptor(taken.identity, text)];
            changes.extend(gone);
            if server.shared.writer().written(changes).await {
                Answer::new(StatusCode::OK, "taken")
            } else {
                Answer::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "taken, but it cannot be stored and is lost when this authority starts again: hand it in later",
                )
            }
        }
        Err(rejected) => Answer::new(StatusCode::FORBIDDEN, rejected.to_string()),
    }
}

/// The body of a request: a text of at most `most` bytes.
async fn text_of(
    request: Request<Incoming>,
    most: usize,
    server: &Server,
) -> Result<String, Answer> {
    let body = Limited::new(request.into_body(), most).collect();
    let body = tokio::time::timeout(server.limits.request, body).await;
    let late = |_| {
        let why = "the document has not come in time";
        Answer::new(StatusCode::REQUEST_TIMEOUT, why)
    };
    let large = |_| {
        let why = format!("the document has at most {most} bytes");
        Answer::new(StatusCode::PAYLOAD_TOO_LARGE, why)
    };
    let body = body.map_err(late)?.map_err(large)?;
    let text = String::from_utf8(body.to_bytes().into());
    text.map_err(|_| Answer::new(StatusCode::BAD_REQUEST, "the document is text"))
}

/// Counts as a descriptor does, whatever comes of it.
async fn take_statistics(request: Request<Incoming>, server: &Server, asking: Asking) -> Answer {
    let text = match text_of(request, RELAY_STATISTICS, server).await {
        Ok(text) => text,
        Err(refused) => return refused,
    };
    let is_first = claims_tested(&text, &server.shared);
    if !take(&server.uploads, asking.client.address, 1, is_first) {
        return too_many();
    }
    match server.shared.take_statistics(text, now()) {
        Ok(()) => Answer::new(StatusCode::OK, "taken"),
        Err(refused) => Answer::new(StatusCode::FORBIDDEN, refused.to_string()),
    }
}

/// Whether it names a relay that has passed its test; whose it is, is looked at later.
fn claims_tested(text: &str, shared: &Shared) -> bool {
    let identity = text.lines().find_map(|line| line.strip_prefix("identity "));
    let identity = identity.and_then(|identity| identity.parse().ok());
    identity.is_some_and(|identity| shared.lock().is_tested(&identity))
}
