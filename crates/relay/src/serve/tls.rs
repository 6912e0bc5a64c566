//! HTTP over TLS over TCP, for clients whose network lets no UDP through, and for those that know no better.
//! Each shard runs it on its listener. HTTP/2 is here (RFC 9113; the relay leaves by GOAWAY, §6.8), HTTP/1.1 in [`h1`]; who speaks Tor's cells
//! is told from it by the first octet.

use std::{
    io,
    os::fd::AsFd,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::ALPN_H2;
use hoplite_http::{
    DatagramSink,
    h2::{self, DataReceiver, DataSender, Session},
};
use hoplite_link::channel::Channel;
use hoplite_overlay::{Batch, direct::Silence};
use hoplite_wire::{RequestHead, ResponseHead, connect_ip};
use tokio::{
    io::AsyncBufReadExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    Alive, Phase, Shared,
    connection::{self, Guest},
    exchange::{ClientFlow, Exchange, Sent},
    h1,
    splice::{Broken, FromClient, ToClient},
};
use crate::{config::Carrier, handle::SEND_BUFFER, limits::Transport, metrics::Up, onion::Onion};

/// How long to wait when the system has no descriptor for another connection.
const PAUSE: Duration = Duration::from_millis(50);

/// What a round trip is taken for: TCP knows, and nobody asks it.
const FAR: Duration = Duration::from_millis(100);

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
                    let client = shared.gate.by_address(address.ip());
                    if let Some(guest) = Guest::admit(&shared, client, &alive) {
                        guests.spawn(welcome(guest, stream, acceptor.clone()));
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
        shared.gate.free_one();
    }
    tokio::time::sleep(PAUSE).await;
}

async fn welcome(mut guest: Guest, stream: TcpStream, acceptor: TlsAcceptor) {
    let handshake = Up::new(&guest.shared.metrics.handshakes_open.tls);
    // Boxed: it is large, and over before the connection is used.
    let greeting = Box::pin(greet(stream, &acceptor, &guest.shared));
    let Some(spoken) = guest.greet(greeting).await else {
        return;
    };
    drop(handshake);
    if let Spoken::Cells(onion, channel) = spoken {
        return guest.carry(&onion, channel).await;
    }
    guest.shared.metrics.connections.tls.inc();
    let _open = Up::new(&guest.shared.metrics.connections_open.tls);
    match spoken {
        Spoken::H2(session) => {
            guest.account.attach(Windows(session.clone()));
            guest.serve(&session).await;
        }
        Spoken::H1(session) => guest.serve(&session).await,
        Spoken::Cells(..) => {}
    }
}

/// What the client chose.
enum Spoken {
    H2(Session),
    H1(h1::Session),
    Cells(Arc<Onion>, Channel),
}

/// A client that names no protocol speaks HTTP/1.1: HTTP/2 over TLS has to be chosen (RFC 9113 §3.2).
async fn greet(stream: TcpStream, acceptor: &TlsAcceptor, shared: &Arc<Shared>) -> Option<Spoken> {
    let remote = stream.peer_addr().ok()?.ip();
    let mut stream = acceptor.accept(stream).await.ok()?;
    if let Some(onion) = shared.onion_over(Carrier::Tls)
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
        return Some(Spoken::H1(h1::Session::new(stream, shared)));
    }
    let session = Session::server(stream, &shared.h2).await.ok()?;
    Some(Spoken::H2(session))
}

/// When the channel is given up because its peer is silent.
fn silence(channel: &Channel) -> Silence {
    match channel.peer() {
        Some(_) => Silence::OF_RELAY,
        None => Silence::OF_CLIENT,
    }
}

/// Tor's relays choose no protocol (ALPN) in TLS. What they say first is VERSIONS, whose circuit id has two octets, both zero
/// (tor-spec, "Cell Packet format"): no request begins so.
async fn is_channel(stream: &mut TlsStream<TcpStream>) -> Option<bool> {
    if stream.get_ref().1.alpn_protocol().is_some() {
        return Some(false);
    }
    let first = stream.fill_buf().await.ok()?;
    Some(first.first() == Some(&0))
}

/// What a client may send on HTTP/2; what waits for it is bounded on each stream.
struct Windows(Session);

impl Transport for Windows {
    fn set_receive(&self, octets: u64) {
        self.0
            .set_connection_window(u32::try_from(octets).unwrap_or(u32::MAX));
    }

    fn set_send(&self, _: u64) {}

    fn path(&self) -> (Duration, u64) {
        (FAR, u64::MAX)
    }
}

impl connection::Session for Session {
    type Exchange = h2::Exchange;

    async fn accept(&self) -> Option<(RequestHead, h2::Exchange)> {
        let incoming = Self::accept(self).await?;
        Some((incoming.head, incoming.exchange))
    }

    fn drain(&self) {
        Self::drain(self);
    }

    fn close(&self) {
        Self::close(self);
    }

    fn calm(&self) {
        Self::calm(self);
    }

    async fn abandoned(&self) {
        Self::abandoned(self).await;
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
        Self::finish(self).map_err(|_| Broken)
    }

    /// "A proxy treats any error in the TCP connection […] as a stream error […] of type CONNECT_ERROR."
    fn reset(&mut self) {
        Self::reset(self);
    }
}

impl Exchange for h2::Exchange {
    type Up = DataReceiver;
    type Down = DataSender;
    type Flow = h2::Flow;

    fn buffer(&self) -> usize {
        SEND_BUFFER
    }

    async fn gone(&mut self) {
        Self::gone(self).await;
    }

    async fn respond(&mut self, head: &ResponseHead) -> Result<(), Broken> {
        Self::respond(self, head).await.map_err(|_| Broken)
    }

    async fn refuse(self, head: &ResponseHead) -> Result<(), Broken> {
        Self::refuse(self, head).await.map_err(|_| Broken)
    }

    async fn content(&mut self, limit: usize) -> Result<Option<Bytes>, Broken> {
        Self::content(self, limit).await.map_err(|_| Broken)
    }

    async fn answer(mut self, head: &ResponseHead, content: Bytes) -> Result<(), Broken> {
        self.respond_with(head, content).map_err(|_| Broken)
    }

    fn stream(self) -> (DataReceiver, DataSender) {
        let (sender, receiver) = self.split();
        (receiver, sender)
    }

    fn datagrams(self, sink: Arc<dyn DatagramSink>) -> h2::Flow {
        Self::datagrams(self, sink)
    }
}

impl ClientFlow for h2::Flow {
    fn send(&self, batch: Batch<'_>) -> Sent {
        let payloads = batch.payloads().count();
        let accepted = Self::send(self, batch);
        let full = payloads.saturating_sub(accepted);
        Sent {
            accepted,
            full,
            too_large: 0,
        }
    }

    async fn closed(&self) {
        drop(Self::closed(self).await);
    }

    fn send_ip_capsule(&self, capsule: &connect_ip::Capsule) -> bool {
        Self::send_ip_capsule(self, capsule)
    }

    fn reset(&self) {
        Self::reset(self);
    }
}
