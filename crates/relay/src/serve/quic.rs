//! HTTP/3 over QUIC: handshakes, connections, and a task for each request.
//! Each shard runs it on its endpoint. RFC 9114; the relay leaves by GOAWAY (§5.2).

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hoplite_link::quic::{Endpoint, Incoming, VarInt};
use hoplite_masque::{
    DatagramSink,
    h3::{self, DataReceiver, DataSender, Session},
};
use hoplite_overlay::Batch;
use hoplite_wire::{RequestHead, ResponseHead, h3::Code};
use tokio::time::timeout;

use super::{
    Alive, Phase, Shared,
    connection::{self, Guest},
    exchange::{ClientFlow, Exchange, Sent},
    splice::{Broken, FromClient, ToClient},
    streams::Streams,
};
use crate::metrics::Up;

/// Above this share of the total, a new client must first prove its address: 1 in so many.
const SUSPICIOUS: usize = 4;
/// H3_NO_ERROR, as QUIC writes it.
const GOODBYE: VarInt = VarInt::from_u32(0x100);
/// How long the last packets of a connection may take to leave.
const FAREWELL: Duration = Duration::from_millis(500);

/// Serves an endpoint until it is to stop.
pub(crate) async fn serve(shared: Arc<Shared>, endpoint: Endpoint, mut alive: Alive) {
    let mut draining = alive.clone();
    loop {
        tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => take(&shared, incoming, &endpoint, &alive),
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
fn take(shared: &Arc<Shared>, incoming: Incoming, endpoint: &Endpoint, alive: &Alive) {
    let busy = endpoint.open_connections() > shared.limits.connections / SUSPICIOUS;
    if busy && !incoming.remote_address_validated() && incoming.may_retry() {
        return drop(incoming.retry());
    }
    let client = shared.gate.by_address(incoming.remote_address().ip());
    match Guest::admit(shared, client, alive) {
        Some(guest) => drop(tokio::spawn(welcome(guest, incoming))),
        None => incoming.refuse(),
    }
}

async fn welcome(guest: Guest, incoming: Incoming) {
    let handshake = async { incoming.accept().ok()?.await.ok() };
    let connection = timeout(guest.shared.limits.handshake, handshake).await;
    let Some(connection) = connection.ok().flatten() else {
        guest.shared.metrics.handshakes_failed.inc();
        return;
    };
    guest.shared.metrics.connections.quic.inc();
    let _open = Up::new(&guest.shared.metrics.connections_open.quic);
    let streams = Streams::new(connection.clone(), &guest.shared.limits);
    let session = Session::server(connection, &guest.shared.h3);
    guest.serve(&Roomy { session, streams }).await;
}

/// A session that makes room for more requests as they come.
struct Roomy {
    session: Session,
    streams: Streams,
}

impl connection::Session for Roomy {
    type Exchange = h3::Exchange;

    async fn accept(&self) -> Option<(RequestHead, h3::Exchange)> {
        let incoming = self.session.accept().await?;
        Some((incoming.head, incoming.exchange))
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

impl Exchange for h3::Exchange {
    type Up = DataReceiver;
    type Down = DataSender;
    type Flow = h3::Flow;

    async fn respond(&mut self, head: &ResponseHead) -> Result<(), Broken> {
        Self::respond(self, head).await.map_err(|_| Broken)
    }

    async fn refuse(mut self, head: &ResponseHead) -> Result<(), Broken> {
        Exchange::respond(&mut self, head).await?;
        let (mut sender, mut receiver) = self.split();
        receiver.stop(Code::NO_ERROR);
        ToClient::finish(&mut sender).await
    }

    fn stream(self) -> (DataReceiver, DataSender) {
        let (sender, receiver) = self.split();
        (receiver, sender)
    }

    fn datagrams(self, sink: Arc<dyn DatagramSink>) -> h3::Flow {
        Self::datagrams(self, sink)
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
}
