//! HTTP/3 over QUIC: handshakes, connections, and a task for each request. What chooses `tor-quic-h1` instead becomes a channel of circuits.
//! Each shard runs it on its endpoint. RFC 9114; the relay leaves by GOAWAY (§5.2).

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::ALPN_CHANNEL;
use hoplite_http::{
    DatagramSink,
    h3::{self, DataReceiver, DataSender, Session},
};
use hoplite_link::{
    Reins,
    quic::{Connection, Endpoint, Incoming, VarInt, crypto::rustls::HandshakeData},
    server::{Acceptor, Forwarder},
};
use hoplite_overlay::Batch;
use hoplite_wire::{RequestHead, ResponseHead, connect_ip, forwarding::Capsule, h3::Code};
use tokio::time::{sleep, timeout};

use super::{
    Alive, Phase, Shared,
    connection::{self, CLOSING, Guest},
    exchange::{ClientFlow, Exchange, Sent},
    shard::{DATAGRAMS_IN, transport},
    splice::{Broken, FromClient, ToClient},
    streams::Streams,
};
use crate::{
    config::{Carrier, Limits},
    forward::Road,
    limits::{ClientKey, Room, Transport, Unproven},
    metrics::Up,
    onion::Onion,
};

/// H3_NO_ERROR, as QUIC writes it.
const GOODBYE: VarInt = VarInt::from_u32(0x100);
/// H3_EXCESSIVE_LOAD, as QUIC writes it.
const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(0x107);
/// How long the last packets of a connection may take to leave.
const FAREWELL: Duration = Duration::from_millis(500);

/// One socket of a shard: QUIC on it, and what passes by.
#[derive(Clone)]
pub(crate) struct Port {
    endpoint: Endpoint,
    acceptor: Acceptor,
    forwarder: Forwarder,
    unproven: Unproven,
}

impl Port {
    pub(crate) fn new(
        endpoint: Endpoint,
        acceptor: Acceptor,
        forwarder: Forwarder,
        limits: &Limits,
    ) -> Self {
        Self {
            endpoint,
            acceptor,
            forwarder,
            unproven: Unproven::new(limits),
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
    endpoint.close(GOODBYE, b"");
    drop(timeout(FAREWELL, endpoint.wait_idle()).await);
}

/// Takes a connection within the limits. The claim to be at an address takes nothing from whoever is there: it is counted once it is proven.
fn take(shared: &Arc<Shared>, incoming: Incoming, port: &Port, alive: &Alive) {
    let client = shared.gate.by_address(incoming.remote_address().ip());
    if incoming.remote_address_validated() {
        return match Guest::admit(shared, client, alive) {
            Some(guest) => drop(tokio::spawn(welcome(guest, incoming, port.clone()))),
            None => incoming.refuse(),
        };
    }
    if !shared.gate.admits_connection(client) {
        shared.metrics.limited("connections");
        return incoming.refuse();
    }
    match port.unproven.enter(client) {
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
        let reins = reins(&shared);
        let handshake = handshake(&shared, incoming, &port, &reins);
        let Ok(Some(connection)) = timeout(shared.limits.handshake, handshake).await else {
            shared.metrics.handshakes_failed.inc();
            return self.leave().await;
        };
        match Guest::admit(&shared, self.client, &self.alive) {
            Some(guest) => {
                drop((self, shared));
                serve_connection(guest, connection, reins, port.forwarder).await;
            }
            None => connection.close(EXCESSIVE_LOAD, b""),
        }
    }

    /// Keeps its room for as long as the connection holds memory. No drain waits for that.
    async fn leave(self) {
        let Self { room, .. } = self;
        sleep(CLOSING).await;
        drop(room);
    }
}

async fn welcome(guest: Guest, incoming: Incoming, port: Port) {
    let reins = reins(&guest.shared);
    let handshake = handshake(&guest.shared, incoming, &port, &reins);
    match guest.greet(handshake).await {
        Some(connection) => serve_connection(guest, connection, reins, port.forwarder).await,
        None => guest.leave().await,
    }
}

fn reins(shared: &Shared) -> Reins {
    Reins::relay(shared.grants, DATAGRAMS_IN).insisting(shared.congestion)
}

async fn handshake(
    shared: &Shared,
    incoming: Incoming,
    port: &Port,
    reins: &Reins,
) -> Option<Connection> {
    let _open = Up::new(&shared.metrics.handshakes_open.quic);
    let mut transport = transport(&shared.limits);
    transport.pad_to_mtu(shared.pad);
    let handshake = port.acceptor.accept(incoming, transport, reins).ok()?;
    handshake.await.ok()
}

/// Serves a connection whose handshake is done.
async fn serve_connection(
    mut guest: Guest,
    connection: Connection,
    reins: Reins,
    forwarder: Forwarder,
) {
    let onion = guest.shared.onion_over(Carrier::Quic).cloned();
    match onion.filter(|_| is_channel(&connection)) {
        Some(onion) => Box::pin(channel(&guest, &onion, connection)).await,
        None => requests(&mut guest, connection, reins, forwarder).await,
    }
    guest.leave().await;
}

async fn requests(guest: &mut Guest, connection: Connection, reins: Reins, forwarder: Forwarder) {
    guest.shared.metrics.connections.quic.inc();
    let _open = Up::new(&guest.shared.metrics.connections_open.quic);
    guest.account.attach(Windows(connection.clone()));
    let streams = Streams::new(connection.clone(), &guest.shared.limits);
    let road = Road::new(connection.clone(), forwarder);
    let config = h3::Config {
        reins: Some(reins),
        ..guest.shared.h3.clone()
    };
    let session = Session::server(connection, &config);
    let roomy = Roomy {
        session,
        streams,
        road,
    };
    guest.serve(&roomy).await;
}

/// Whether the client chose to speak of circuits.
fn is_channel(connection: &Connection) -> bool {
    let data = connection.handshake_data();
    let data = data.and_then(|data| data.downcast::<HandshakeData>().ok());
    data.is_some_and(|data| data.protocol.as_deref() == Some(ALPN_CHANNEL))
}

async fn channel(guest: &Guest, onion: &Onion, connection: Connection) {
    let made = guest.greet(async {
        let made = onion.server().quic(connection).await;
        let made = made.inspect_err(|refused| {
            tracing::debug!(%refused, "no channel came of a connection");
        });
        made.ok()
    });
    if let Some(channel) = made.await {
        guest.carry(onion, channel).await;
    }
}

/// The windows of a connection.
struct Windows(Connection);

impl Transport for Windows {
    fn set_receive(&self, octets: u64) {
        let octets = VarInt::from_u64(octets).unwrap_or(VarInt::MAX);
        self.0.set_receive_window(octets);
    }

    fn set_send(&self, octets: u64) {
        self.0.set_send_window(octets);
    }

    fn path(&self) -> (Duration, u64) {
        let path = self.0.stats().path;
        (path.rtt, path.cwnd)
    }
}

/// A session that makes room for more requests as they come.
struct Roomy {
    session: Session,
    streams: Streams,
    road: Road,
}

/// A request, and what its flow may pass by.
pub(crate) struct Passing {
    exchange: h3::Exchange,
    road: Road,
}

impl connection::Session for Roomy {
    type Exchange = Passing;

    async fn accept(&self) -> Option<(RequestHead, Passing)> {
        let incoming = self.session.accept().await?;
        let passing = Passing {
            exchange: incoming.exchange,
            road: self.road.clone(),
        };
        Some((incoming.head, passing))
    }

    fn busy(&self, open: usize) {
        self.streams.busy(open);
    }

    async fn takes_more(&self) -> bool {
        self.session.takes_more().await
    }

    fn drain(&self) {
        self.session.drain();
    }

    fn close(&self) {
        self.session.close(Code::NO_ERROR);
    }

    fn calm(&self) {
        self.session.close(Code::EXCESSIVE_LOAD);
    }

    async fn abandoned(&self) {
        self.session.abandoned().await;
    }
}

impl FromClient for DataReceiver {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Broken>> {
        Self::poll_data(self, cx).map_err(|_| Broken)
    }
}

impl ToClient for DataSender {
    async fn write(&mut self, octets: Bytes) -> Result<(), Broken> {
        Self::write(self, octets).await.map_err(|_| Broken)
    }

    async fn finish(&mut self) -> Result<(), Broken> {
        Self::finish(self).await.map_err(|_| Broken)?;
        // Until all has arrived the client may still break off.
        match self.stopped().await {
            None => Ok(()),
            Some(_) => Err(Broken),
        }
    }

    /// "A proxy treats any error in the TCP connection … as a stream error of type H3_CONNECT_ERROR."
    fn reset(&mut self) {
        Self::reset(self, Code::CONNECT_ERROR);
    }
}

impl Exchange for Passing {
    type Up = DataReceiver;
    type Down = DataSender;
    type Flow = h3::Flow;

    fn road(&self) -> Option<Road> {
        Some(self.road.clone())
    }

    async fn gone(&mut self) {
        self.exchange.gone().await;
    }

    async fn respond(&mut self, head: &ResponseHead) -> Result<(), Broken> {
        self.exchange.respond(head).await.map_err(|_| Broken)
    }

    async fn refuse(mut self, head: &ResponseHead) -> Result<(), Broken> {
        Exchange::respond(&mut self, head).await?;
        let (mut sender, mut receiver) = self.exchange.split();
        receiver.stop(Code::NO_ERROR);
        ToClient::finish(&mut sender).await
    }

    async fn content(&mut self, limit: usize) -> Result<Option<Bytes>, Broken> {
        self.exchange.content(limit).await.map_err(|_| Broken)
    }

    async fn answer(self, head: &ResponseHead, content: Bytes) -> Result<(), Broken> {
        let answered = self.exchange.answer(head, content).await;
        answered.map_err(|_| Broken)
    }

    fn stream(self) -> (DataReceiver, DataSender) {
        let (sender, receiver) = self.exchange.split();
        (receiver, sender)
    }

    fn datagrams(self, sink: Arc<dyn DatagramSink>) -> h3::Flow {
        self.exchange.datagrams(sink)
    }
}

impl ClientFlow for h3::Flow {
    fn send(&self, batch: Batch<'_>) -> Sent {
        let (payloads, segment) = (batch.payloads().count(), batch.segment);
        let accepted = Self::send(self, batch);
        let lost = payloads.saturating_sub(accepted);
        match lost > 0 && segment > self.max_payload() {
            true => Sent {
                accepted,
                full: 0,
                too_large: lost,
            },
            false => Sent {
                accepted,
                full: lost,
                too_large: 0,
            },
        }
    }

    async fn closed(&self) {
        drop(Self::closed(self).await);
    }

    fn reset(&self) {
        Self::reset(self, Code::CONNECT_ERROR);
    }

    fn send_capsule(&self, capsule: &Capsule) -> bool {
        Self::send_capsule(self, capsule)
    }

    fn send_ip_capsule(&self, capsule: &connect_ip::Capsule) -> bool {
        Self::send_ip_capsule(self, capsule)
    }

    fn carry_packets(&self) {
        Self::carry_packets(self);
    }

    fn max_packet(&self) -> usize {
        self.max_payload().max(connect_ip::LEAST_MTU)
    }

    fn abort(&self) {
        Self::reset(self, Code::DATAGRAM_ERROR);
    }

    fn keep_alive(&self) {
        Self::keep_alive(self);
    }

    fn is_drained(&self, waited: Duration) -> bool {
        Self::is_drained(self, waited)
    }

    fn carry_forwarded(&self) {
        Self::carry_forwarded(self);
    }
}
