//! HTTP/3 over QUIC: handshakes, connections, and a task for each request. What chooses `tor-quic-h1` instead becomes a channel of circuits.
//! Each shard runs it on its endpoint. RFC 9114; the relay leaves by GOAWAY (§5.2).

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::ALPN_CHANNEL;
use hoplite_link::{
    Reins,
    quic::{Connection, Endpoint, Incoming, VarInt, crypto::rustls::HandshakeData},
    server::{Acceptor, Forwarder},
};
use hoplite_masque::{
    DatagramSink,
    h3::{self, DataReceiver, DataSender, Session},
};
use hoplite_overlay::Batch;
use hoplite_wire::{RequestHead, ResponseHead, connect_ip, forwarding::Capsule, h3::Code};
use tokio::time::timeout;

use super::{
    Alive, Phase, Shared,
    connection::{self, Guest},
    exchange::{ClientFlow, Exchange, Sent},
    shard::{DATAGRAMS_IN, transport},
    splice::{Broken, FromClient, ToClient},
    streams::Streams,
};
use crate::{config::Carrier, forward::Road, metrics::Up, onion::Onion};

/// Above this share of the total, a new client must first prove its address: 1 in so many.
const SUSPICIOUS: usize = 4;
/// H3_NO_ERROR, as QUIC writes it.
const GOODBYE: VarInt = VarInt::from_u32(0x100);
/// How long the last packets of a connection may take to leave.
const FAREWELL: Duration = Duration::from_millis(500);

/// One socket of a shard: QUIC on it, and what passes by.
#[derive(Clone)]
pub(crate) struct Port {
    endpoint: Endpoint,
    acceptor: Acceptor,
    forwarder: Forwarder,
}

impl Port {
    pub(crate) fn new(endpoint: Endpoint, acceptor: Acceptor, forwarder: Forwarder) -> Self {
        Self {
            endpoint,
            acceptor,
            forwarder,
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

/// Takes a connection within the limits.
fn take(shared: &Arc<Shared>, incoming: Incoming, port: &Port, alive: &Alive) {
    let endpoint = &port.endpoint;
    let busy = endpoint.open_connections() > shared.limits.connections / SUSPICIOUS;
    if busy && !incoming.remote_address_validated() && incoming.may_retry() {
        return drop(incoming.retry());
    }
    let client = shared.gate.by_address(incoming.remote_address().ip());
    match Guest::admit(shared, client, alive) {
        Some(guest) => drop(tokio::spawn(welcome(guest, incoming, port.clone()))),
        None => incoming.refuse(),
    }
}

async fn welcome(guest: Guest, incoming: Incoming, port: Port) {
    let Port {
        acceptor,
        forwarder,
        ..
    } = port;
    let reins = Reins::relay(guest.shared.grants, DATAGRAMS_IN).insisting(guest.shared.congestion);
    let mut transport = transport(&guest.shared.limits);
    transport.pad_to_mtu(guest.shared.pad);
    let handshake = async {
        acceptor
            .accept(incoming, transport, &reins)
            .ok()?
            .await
            .ok()
    };
    let connection = timeout(guest.shared.limits.handshake, handshake).await;
    let Some(connection) = connection.ok().flatten() else {
        guest.shared.metrics.handshakes_failed.inc();
        return;
    };
    if let Some(onion) = guest.shared.onion_over(Carrier::Quic).cloned()
        && is_channel(&connection)
    {
        return Box::pin(channel(guest, &onion, connection)).await;
    }
    guest.shared.metrics.connections.quic.inc();
    let _open = Up::new(&guest.shared.metrics.connections_open.quic);
    let streams = Streams::new(connection.clone(), &guest.shared.limits);
    let road = Road::new(connection.clone(), forwarder);
    let config = h3::Config {
        reins: Some(reins.clone()),
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

async fn channel(guest: Guest, onion: &Onion, connection: Connection) {
    match onion.server().quic(connection).await {
        Ok(channel) => guest.carry(onion, channel).await,
        Err(refused) => tracing::debug!(%refused, "no channel came of a connection"),
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

    fn drain(&self) {
        self.session.drain();
    }

    fn close(&self) {
        self.session.close(Code::NO_ERROR);
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
