//! HTTP/3 over QUIC: handshakes, connections, and a task for each request. What chooses `tor-quic-h1` instead becomes a channel of circuits.
//! Each shard runs it on its endpoint. RFC 9114; the relay leaves by GOAWAY (§5.2).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use hoplite_crypto::ALPN_CHANNEL;
use hoplite_http::{Session, h3};
use hoplite_link::Pad;
use hoplite_quic::{
    Connection, ConnectionController, Endpoint, Incoming, VarInt,
    crypto::rustls::HandshakeData,
    server::{Acceptor, Forwarder},
};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::{
    Alive, Phase, Shared,
    connection::{AdmittedConnection, CLOSING},
    shard::{DATAGRAMS_IN, transport},
};
use crate::{
    config::{Limits, LinkKind},
    forward::ClientConnection,
    limits::{Account, ClientKey, Room, Transport, UnvalidatedHandshakes},
    metrics::Up,
    onion::Onion,
};

/// H3_NO_ERROR, as QUIC writes it.
const H3_NO_ERROR: VarInt = VarInt::from_u32(0x100);
/// H3_EXCESSIVE_LOAD, as QUIC writes it.
const H3_EXCESSIVE_LOAD: VarInt = VarInt::from_u32(0x107);
/// How long the last packets of a connection may take to leave.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// One socket of a shard: QUIC on it, and what passes by.
#[derive(Clone)]
pub(crate) struct Port {
    endpoint: Endpoint,
    acceptor: Acceptor,
    forwarder: Forwarder,
    unvalidated: UnvalidatedHandshakes,
}

impl Port {
    pub(crate) fn new(
        endpoint: Endpoint,
        acceptor: Acceptor,
        forwarder: Forwarder,
        unvalidated: UnvalidatedHandshakes,
    ) -> Self {
        Self {
            endpoint,
            acceptor,
            forwarder,
            unvalidated,
        }
    }
}

/// Serves an endpoint until it is to stop.
pub(crate) async fn serve(shared: Arc<Shared>, port: Port, mut alive: Alive) {
    let endpoint = &port.endpoint;
    let mut draining = alive.clone();
    loop {
        tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => take(&shared, incoming, &port, &alive),
                None => break,
            },
            () = draining.reached(Phase::Draining) => break,
        }
    }
    drop(draining);
    // From now on new connections are refused; those that are there go on.
    endpoint.set_server_config(None);
    tokio::select! {
        () = alive.reached(Phase::Stopped) => (),
        () = endpoint.wait_idle() => (),
    }
    endpoint.close(H3_NO_ERROR, b"");
    drop(timeout(CLOSE_TIMEOUT, endpoint.wait_idle()).await);
}

/// Takes a connection within the limits. The claim to be at an address takes nothing from whoever is there: it is counted once it is proven.
fn take(shared: &Arc<Shared>, incoming: Incoming, port: &Port, alive: &Alive) {
    let address = incoming.remote_address().ip();
    let client = shared.quotas.by_address(address);
    if incoming.remote_address_validated() {
        return match AdmittedConnection::admit(shared, (client, address), alive) {
            Some(admitted) => drop(tokio::spawn(welcome(admitted, incoming, port.clone()))),
            None => incoming.refuse(),
        };
    }
    if !shared.quotas.admits_connection(client) {
        shared.metrics.limited("connections");
        return incoming.refuse();
    }
    match port.unvalidated.enter(client) {
        Some(room) => {
            let stranger = Stranger {
                shared: shared.clone(),
                client,
                alive: alive.clone(),
                room,
            };
            drop(tokio::spawn(stranger.welcome(incoming, port.clone())));
        }
        // Possible wherever the address is not proven; what fails is refused when it is dropped.
        None if incoming.retry().is_ok() => drop(shared.metrics.retries.inc()),
        None => {}
    }
}

/// Somebody who has not proven the address yet.
struct Stranger {
    shared: Arc<Shared>,
    client: ClientKey,
    alive: Alive,
    room: Room,
}

impl Stranger {
    /// "an endpoint […] considers the peer address to have been validated" by the end of a handshake (RFC 9000 §8.1).
    async fn welcome(self, incoming: Incoming, port: Port) {
        let shared = self.shared.clone();
        let controller = controller(&shared);
        let address = incoming.remote_address().ip();
        let handshake = handshake(&shared, incoming, &port, &controller);
        let Ok(Some(connection)) = timeout(shared.limits().handshake, handshake).await else {
            shared.metrics.handshakes_failed.inc();
            return self.leave().await;
        };
        match AdmittedConnection::admit(&shared, (self.client, address), &self.alive) {
            Some(admitted) => {
                drop((self, shared));
                serve_connection(admitted, connection, controller, port.forwarder).await;
            }
            None => connection.close(H3_EXCESSIVE_LOAD, b""),
        }
    }

    /// Keeps its room for as long as the connection holds memory. No drain waits for that.
    async fn leave(self) {
        let Self { room, .. } = self;
        sleep(CLOSING).await;
        drop(room);
    }
}

async fn welcome(admitted: AdmittedConnection, incoming: Incoming, port: Port) {
    let controller = controller(&admitted.shared);
    let handshake = handshake(&admitted.shared, incoming, &port, &controller);
    match admitted.greet(handshake).await {
        Some(connection) => {
            serve_connection(admitted, connection, controller, port.forwarder).await
        }
        None => admitted.leave().await,
    }
}

fn controller(shared: &Shared) -> ConnectionController {
    ConnectionController::relay(shared.grants, DATAGRAMS_IN).insisting(shared.congestion)
}

async fn handshake(
    shared: &Shared,
    incoming: Incoming,
    port: &Port,
    controller: &ConnectionController,
) -> Option<Connection> {
    let _open = Up::new(&shared.metrics.handshakes_open.quic);
    let mut transport = transport(&shared.limits());
    transport.pad_to_mtu(shared.pad == Pad::Full);
    let handshake = port.acceptor.accept(incoming, transport, controller).ok()?;
    handshake.await.ok()
}

/// Serves a connection whose handshake is done.
async fn serve_connection(
    mut admitted: AdmittedConnection,
    connection: Connection,
    controller: ConnectionController,
    forwarder: Forwarder,
) {
    let onion = admitted.shared.onion_over(LinkKind::Quic).cloned();
    match onion.filter(|_| is_channel(&connection)) {
        Some(onion) => Box::pin(channel(&admitted, &onion, connection)).await,
        None => requests(&mut admitted, connection, controller, forwarder).await,
    }
    admitted.leave().await;
}

async fn requests(
    admitted: &mut AdmittedConnection,
    connection: Connection,
    controller: ConnectionController,
    forwarder: Forwarder,
) {
    admitted.shared.metrics.connections.quic.inc();
    let _open = Up::new(&admitted.shared.metrics.connections_open.quic);
    admitted.account.attach(Windows {
        connection: connection.clone(),
        shortest: Mutex::new(Duration::MAX),
    });
    let below = OverQuic {
        streams: Streams::new(connection.clone(), &admitted.shared.limits()),
        client_connection: ClientConnection::new(connection.clone(), forwarder),
    };
    let config = h3::Config {
        controller: Some(controller),
        ..admitted.shared.h3.clone()
    };
    let session = Session::quic_server(connection, &config);
    admitted.serve(&session, Some(&below)).await;
}

/// Whether the client chose to speak of circuits.
fn is_channel(connection: &Connection) -> bool {
    let data = connection.handshake_data();
    let data = data.and_then(|data| data.downcast::<HandshakeData>().ok());
    data.is_some_and(|data| data.protocol.as_deref() == Some(ALPN_CHANNEL))
}

async fn channel(admitted: &AdmittedConnection, onion: &Onion, connection: Connection) {
    let made = admitted.greet(async {
        let made = onion.server().quic(connection).await;
        let made = made.inspect_err(|refused| {
            tracing::debug!(%refused, "no channel came of a connection");
        });
        made.ok()
    });
    if let Some(channel) = made.await {
        admitted.carry(onion, channel).await;
    }
}

/// The windows of a connection.
struct Windows {
    connection: Connection,
    /// The shortest round trip of those that were looked at.
    shortest: Mutex<Duration>,
}

impl Transport for Windows {
    fn set_receive(&self, bytes: u64) {
        self.connection.set_receive_window(bytes);
    }

    fn set_send(&self, bytes: u64) {
        self.connection.set_send_window(bytes);
    }

    fn path(&self) -> (Duration, u64) {
        let path = self.connection.stats().path;
        let mut shortest = self.shortest.lock();
        *shortest = path.rtt.min(*shortest);
        (*shortest, path.cwnd)
    }

    fn blocked(&self) -> u64 {
        self.connection.stats().frame_rx.data_blocked
    }
}

/// A connection below HTTP/3: it makes room for more requests as they come, and packets may pass it by.
pub(crate) struct OverQuic {
    streams: Streams,
    client_connection: ClientConnection,
}

impl OverQuic {
    /// Hears how many requests are open, so that there is room for more.
    pub(crate) fn make_room(&self, open: usize, account: &Account) {
        self.streams.busy(open, account);
    }

    /// Past which a request's packets may be forwarded.
    pub(crate) fn client_connection(&self) -> ClientConnection {
        self.client_connection.clone()
    }
}

/// What a new connection may open at once. With its unidirectional streams they are as many as a table of 128 slots holds, seven eighths of them.
const INITIAL_MAX_STREAMS: u32 = 104;

/// When half of what is allowed is open, this many times as much is allowed.
const GROWTH: u32 = 4;

/// What the QUIC stack keeps for each stream that it allows, used or not, in bytes.
const STREAM: u64 = 90;

/// How many requests a client may have open on one connection: few at first, and more as it uses them, while there is memory. What is allowed once is
/// kept until the connection ends.
struct Streams {
    connection: Connection,
    allowed: AtomicU32,
    most: u32,
}

/// What a new connection may open at once.
pub(crate) fn streams_at_first(limits: &Limits) -> VarInt {
    limits
        .requests_per_connection
        .min(INITIAL_MAX_STREAMS)
        .into()
}

impl Streams {
    /// A connection that was given [`streams_at_first`].
    fn new(connection: Connection, limits: &Limits) -> Self {
        let most = limits.requests_per_connection;
        let allowed = AtomicU32::new(most.min(INITIAL_MAX_STREAMS));
        Self {
            connection,
            allowed,
            most,
        }
    }

    /// Makes room, up to the limit.
    fn busy(&self, open: usize, account: &Account) {
        let allowed = self.allowed.load(Ordering::Relaxed);
        let more = next(allowed, open, self.most);
        let kept = |more: &u32| account.keep_more(u64::from(more - allowed) * STREAM);
        if let Some(more) = more.filter(kept) {
            self.allowed.store(more, Ordering::Relaxed);
            self.connection.set_max_concurrent_bi_streams(more.into());
        }
    }
}

fn next(allowed: u32, open: usize, most: u32) -> Option<u32> {
    let crowded = open >= usize::try_from(allowed / 2).unwrap_or(usize::MAX);
    (crowded && allowed < most).then(|| allowed.saturating_mul(GROWTH).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_grows_with_use_up_to_the_limit() {
        assert_eq!(next(104, 51, 16_384), None);
        assert_eq!(next(104, 52, 16_384), Some(416));
        assert_eq!(next(8192, 5000, 16_384), Some(16_384));
        assert_eq!(next(16_384, 16_000, 16_384), None);
    }
}
