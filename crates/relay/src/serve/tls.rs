//! HTTP over TLS over TCP, for clients whose network lets no UDP through, and for those that know no better.
//! Each shard runs it on its listener. HTTP/2 (RFC 9113; the relay leaves by GOAWAY, §6.8) or HTTP/1.1; who speaks Tor's cells
//! is told from it by the first byte.

use std::{io, os::fd::AsFd, sync::Arc, time::Duration};

use hoplite_channel::Channel;
use hoplite_crypto::ALPN_H2;
use hoplite_http::{Session, h2};
use hoplite_overlay::direct::Silence;
use tokio::{
    io::AsyncBufReadExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Alive, Phase, Shared, connection::AdmittedConnection};
use crate::{config::LinkKind, limits::Transport, metrics::Up, onion::Onion};

/// How long to wait when the system has no descriptor for another connection.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What a round trip is taken for: TCP knows, and nobody asks it.
const ASSUMED_RTT: Duration = Duration::from_millis(100);

/// Serves a listener until no new connection is to be taken, and its connections until they end.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    alive: Alive,
) {
    let mut draining = alive.clone();
    let mut guests = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let client = shared.quotas.by_address(address.ip());
                    if let Some(admitted) = AdmittedConnection::admit(&shared, (client, address.ip()), &alive) {
                        guests.spawn(welcome(admitted, stream, acceptor.clone()));
                    }
                }
                Err(error) => pause(&shared, &error).await,
            },
            Some(_) = guests.join_next() => (),
            () = draining.reached(Phase::Draining) => break,
        }
    }
    drop((listener, draining, alive));
    while guests.join_next().await.is_some() {}
}

/// Waits a moment; where descriptors are short, an idle connection has to go.
async fn pause(shared: &Shared, error: &io::Error) {
    tracing::debug!(%error, "a connection could not be accepted");
    shared.metrics.limited("descriptors");
    if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
        shared.quotas.free_one();
    }
    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
}

async fn welcome(mut admitted: AdmittedConnection, stream: TcpStream, acceptor: TlsAcceptor) {
    let handshake = Up::new(&admitted.shared.metrics.handshakes_open.tls);
    // Boxed: it is large, and over before the connection is used.
    let greeting = Box::pin(greet(stream, &acceptor, &admitted.shared));
    let Some(spoken) = admitted.greet(greeting).await else {
        return;
    };
    drop(handshake);
    let session = match spoken {
        // Boxed: what has no circuits needs no room for it.
        Spoken::Cells(onion, channel) => return Box::pin(admitted.carry(&onion, channel)).await,
        Spoken::Http(session) => session,
    };
    admitted.shared.metrics.connections.tls.inc();
    let _open = Up::new(&admitted.shared.metrics.connections_open.tls);
    if let Session::H2(session) = &session {
        admitted.account.attach(Windows(session.clone()));
    }
    admitted.serve(&session, None).await;
}

/// What the client chose.
enum Spoken {
    Http(Session),
    Cells(Arc<Onion>, Channel),
}

/// A client that names no protocol speaks HTTP/1.1: HTTP/2 over TLS has to be chosen (RFC 9113 §3.2).
async fn greet(stream: TcpStream, acceptor: &TlsAcceptor, shared: &Arc<Shared>) -> Option<Spoken> {
    let remote = stream.peer_addr().ok()?.ip();
    let mut stream = acceptor.accept(stream).await.ok()?;
    if let Some(onion) = shared.onion_over(LinkKind::Tls)
        && is_channel(&mut stream).await?
    {
        // The channel takes the stream, and only then is known whose it is.
        let socket = stream.get_ref().0.as_fd().try_clone_to_owned().ok()?;
        let made = onion.server().tls(stream, Some(remote)).await;
        let channel = made.inspect_err(|refused| {
            tracing::debug!(%refused, "no channel came of a connection");
        });
        let channel = channel.ok()?;
        silence(&channel).set(&socket).ok()?;
        return Some(Spoken::Cells(onion.clone(), channel));
    }
    if stream.get_ref().1.alpn_protocol() != Some(ALPN_H2) {
        let session = Session::h1_server(stream, &shared.h1);
        return Some(Spoken::Http(session));
    }
    let session = Session::h2_server(stream, &shared.h2).await.ok()?;
    Some(Spoken::Http(session))
}

/// When the channel is given up because its peer is silent.
fn silence(channel: &Channel) -> Silence {
    match channel.peer() {
        Some(_) => Silence::OF_RELAY,
        None => Silence::OF_CLIENT,
    }
}

/// Tor's relays choose no protocol (ALPN) in TLS. What they say first is VERSIONS, whose circuit id has two bytes, both zero
/// (tor-spec, "Cell Packet format"): no request begins so.
async fn is_channel(stream: &mut TlsStream<TcpStream>) -> Option<bool> {
    if stream.get_ref().1.alpn_protocol().is_some() {
        return Some(false);
    }
    let first = stream.fill_buf().await.ok()?;
    Some(first.first() == Some(&0))
}

/// What a client may send on HTTP/2; what waits for it is bounded on each stream.
struct Windows(h2::Session);

impl Transport for Windows {
    fn set_receive(&self, bytes: u64) {
        self.0
            .set_connection_window(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    fn set_send(&self, _: u64) {}

    fn path(&self) -> (Duration, u64) {
        (ASSUMED_RTT, u64::MAX)
    }

    fn blocked(&self) -> u64 {
        0
    }
}
