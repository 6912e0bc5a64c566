//! The HTTP proxy front end: one session for each connection of a program. CONNECT and absolute-form requests; names stay
//! names; `Proxy-Authorization: Basic` is the isolation token, whatever it says. RFC 9110 §7.6 and §9.3.6, RFC 9112 §3.2.
//!
//! A web page in the user's browser can send origin-form requests to this port, also under a name that it had pointed at
//! loopback (DNS rebinding); browsers let it send neither CONNECT nor absolute-form. So origin-form gets a page of help that
//! says nothing about the user, and reaches nothing. The port listens on loopback unless the configuration says `remote`.
//!
//! We do not add `Via` or `X-Forwarded-For`, because they would tell the target about the user's side.

mod answer;
mod connect;
mod forward;
mod headers;
mod upstream;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ::http::{Method, Request, Response};
use hoplite_overlay::Isolation;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Mutex;

use self::{
    answer::{Body, Refusal},
    connect::Tunnel,
    upstream::Upstream,
};
use crate::{
    app::{App, Ending},
    front::Room,
};

/// What the requests of one connection share. They come one after the other: the locks are never waited for.
struct Session {
    room: Arc<Room>,
    /// The connection to the target of the last absolute-form request, for the next one.
    upstream: Mutex<Option<Upstream>>,
    /// The flow that a CONNECT opened, until the connection is a tunnel.
    tunnel: std::sync::Mutex<Option<Tunnel>>,
    /// Whether there was a request.
    served: AtomicBool,
}

/// Serves one program until it or its flow ends.
pub(crate) async fn serve(app: App, room: Arc<Room>) {
    let session = Arc::new(Session {
        room,
        upstream: Mutex::default(),
        tunnel: std::sync::Mutex::default(),
        served: AtomicBool::new(false),
    });
    let service = service_fn(|request| answer(Arc::clone(&session), request));
    let ending = app.ending();
    let mut connection = Box::pin(
        builder(&session.room)
            .serve_connection(TokioIo::new(app), service)
            .with_upgrades(),
    );
    if let Err(error) = connection.as_mut().await {
        session.failed(&error, &ending);
        return;
    }
    drop(connection);
    if let Some(tunnel) = session.take_tunnel() {
        tunnel.run(&session.room).await;
    }
}

fn builder(room: &Room) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(room.limits.handshake)
        .max_header_size(room.limits.header)
        .max_buf_size(room.limits.header.max(64 * 1024))
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
        &Method::CONNECT => connect::answer(&session, request).await,
        _ if request.uri().scheme().is_some() => forward::answer(&session, request).await,
        _ => Ok(answer::help(&request)),
    };
    Ok(answered.unwrap_or_else(|refusal| {
        if let Refusal::Request(_) = refusal {
            session.room.counters.malformed.add(1);
        }
        refusal.response()
    }))
}

impl Session {
    fn failed(&self, error: &hyper::Error, ending: &Ending) {
        // A connection that waited for its next request is no slow header, and is closed without a reset.
        let rested = error.is_timeout() && self.served.load(Ordering::Relaxed);
        if rested {
            return ending.in_order();
        }
        if error.is_parse() || error.is_timeout() {
            self.room.counters.malformed.add(1);
        }
        tracing::debug!(%error, "a program's HTTP connection failed");
    }

    fn put_tunnel(&self, tunnel: Tunnel) {
        *self.lock_tunnel() = Some(tunnel);
    }

    fn take_tunnel(&self) -> Option<Tunnel> {
        self.lock_tunnel().take()
    }

    fn lock_tunnel(&self) -> std::sync::MutexGuard<'_, Option<Tunnel>> {
        self.tunnel
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The isolation token of a request.
fn isolation(request: &Request<Incoming>) -> Isolation {
    headers::credentials(request.headers())
        .map(Isolation::new)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
