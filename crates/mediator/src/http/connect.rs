//! CONNECT: opens a flow, answers 200, and hands the connection to the copy loop.
//! The HTTP front end answers such requests with it. RFC 9110 §9.3.6.

use ::http::{Request, Response};
use bytes::Bytes;
use hoplite_overlay::Stream;
use hoplite_wire::Target;
use http_body_util::{Either, Full};
use hyper::{
    body::Incoming,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;

use super::{
    Session,
    answer::{Body, Refusal},
    isolation,
};
use crate::{app::App, copy::copy, front::Room};

/// An open flow that waits for its connection.
pub(super) struct Tunnel {
    stream: Stream,
    connection: OnUpgrade,
}

/// Opens the flow that the request asks for.
pub(super) async fn answer(
    session: &Session,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let target = target(&request)?;
    let opening = session.room.open_stream(&target, isolation(&request));
    let stream = opening.await.map_err(Refusal::Overlay)?;
    let connection = hyper::upgrade::on(request);
    session.put_tunnel(Tunnel { stream, connection });
    Ok(Response::new(Either::Right(Full::from(Bytes::new()))))
}

fn target(request: &Request<Incoming>) -> Result<Target, Refusal> {
    let authority = request.uri().authority();
    let parsed = authority.and_then(|authority| authority.as_str().parse().ok());
    parsed.ok_or(Refusal::Request(
        "CONNECT wants a host and a port, such as example.com:443",
    ))
}

impl Tunnel {
    /// Copies until both directions have ended.
    pub(super) async fn run(self, room: &Room) {
        let Some((app, early)) = self.connection.await.ok().and_then(unwrap) else {
            tracing::debug!("a connection did not become a tunnel");
            return;
        };
        let idle = room.limits.idle_stream;
        copy(app, self.stream, early, idle, &room.counters).await;
    }
}

/// The program's connection as it was before HTTP, and what it has sent already.
fn unwrap(upgraded: Upgraded) -> Option<(App, Vec<u8>)> {
    let parts = upgraded.downcast::<TokioIo<App>>().ok()?;
    Some((parts.io.into_inner(), parts.read_buf.to_vec()))
}
