//! A client that speaks HTTP/3 to a relay on loopback, and ways to reach the relay beside it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::{ALPN_H3, Trust, client_tls};
use hoplite_http::{
    DatagramSink,
    h3::{self, Exchange, Flow, Session},
};
use hoplite_link::{Config as LinkConfig, Dialer, QuicLink};
use hoplite_overlay::{Batch, Terms};
use hoplite_quic::{self as quic};
use hoplite_relay::Handle;
use hoplite_testing::{
    path::{direct, peer},
    soon,
};
use hoplite_wire::{ProxyError, RequestHead, ResponseHead, Target, Template, connect_tcp::Draft};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// A connection to a relay.
pub(crate) struct Client {
    pub(crate) session: Session,
    pub(crate) link: QuicLink,
}

pub(crate) async fn connect(relay: &Handle) -> Client {
    try_connect(relay).await.expect("connected")
}

pub(crate) fn dialer(relay: &Handle) -> Dialer {
    Dialer::new(direct(), peer("test", relay), 0, LinkConfig::default())
}

pub(crate) async fn try_connect(relay: &Handle) -> Result<Client, hoplite_overlay::Error> {
    let link = dialer(relay).quic(&Terms::default()).await?;
    let session = Session::client(link.connection().clone(), &h3::Config::default());
    Ok(Client { session, link })
}

/// TLS to the relay from an address of this machine.
#[expect(clippy::disallowed_methods, reason = "an attacker is no flow")]
pub(crate) async fn tls_from(
    relay: &Handle,
    source: Ipv4Addr,
    alpn: &[&[u8]],
) -> io::Result<TlsStream<TcpStream>> {
    let tls = client_tls(&Trust::Pins(vec![relay.pin()]), alpn).expect("valid");
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    let stream = socket.connect(relay.addresses()[0]).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(Arc::new(tls));
    connector.connect(name, stream).await
}

/// A bare QUIC connection to the relay from an address of this machine; it lives as long as the endpoint.
pub(crate) async fn quic_from(
    relay: &Handle,
    source: Ipv4Addr,
) -> Result<(quic::Endpoint, quic::Connection), quic::ConnectionError> {
    let tls = client_tls(&Trust::Pins(vec![relay.pin()]), &[ALPN_H3]).expect("TLS");
    let tls: quic::crypto::rustls::QuicClientConfig = tls.try_into().expect("QUIC");
    let endpoint = quic::Endpoint::client((source, 0).into()).expect("a socket");
    let config = quic::ClientConfig::new(Arc::new(tls));
    let dialling = endpoint.connect_with(config, relay.addresses()[0], "localhost");
    let connection = dialling.expect("begun").await?;
    Ok((endpoint, connection))
}

#[expect(clippy::needless_pass_by_value, reason = "for the callers' sake")]
pub(crate) fn tcp(target: impl ToString) -> RequestHead {
    RequestHead::connect(target.to_string())
}

#[expect(clippy::needless_pass_by_value, reason = "for the callers' sake")]
pub(crate) fn udp(target: impl ToString) -> RequestHead {
    let target: Target = target.to_string().parse().expect("a target");
    RequestHead::connect_udp("relay", Template::well_known().expand(&target))
}

#[expect(clippy::needless_pass_by_value, reason = "for the callers' sake")]
pub(crate) fn tcp_by_template(target: impl ToString, draft: Draft) -> RequestHead {
    let target: Target = target.to_string().parse().expect("a target");
    RequestHead::connect_tcp("relay", Template::well_known_tcp().expand(&target), draft)
}

pub(crate) fn ip(path: &str) -> RequestHead {
    RequestHead::connect_ip("relay", format!("/.well-known/masque/ip/{path}/"))
}

impl Client {
    /// Sends a request and waits for its answer.
    pub(crate) async fn ask(&self, head: RequestHead) -> (Exchange, ResponseHead) {
        let mut exchange = self.session.request(&head).await.expect("sent");
        let answer = soon(exchange.response()).await.expect("answered");
        (exchange, answer)
    }

    pub(crate) async fn status(&self, head: RequestHead) -> u16 {
        self.ask(head).await.1.status
    }

    /// The status and what `Proxy-Status` says.
    pub(crate) async fn refusal(&self, head: RequestHead) -> (u16, Option<ProxyError>) {
        let (_, answer) = self.ask(head).await;
        let error = answer.header("proxy-status").and_then(ProxyError::parse);
        (answer.status, error)
    }

    /// An open UDP tunnel.
    pub(crate) async fn udp(&self, target: SocketAddr) -> Tunnel {
        let (exchange, answer) = self.ask(udp(target)).await;
        assert_eq!(answer.status, 200);
        Tunnel::new(exchange)
    }
}

/// The client's end of a UDP tunnel.
pub(crate) struct Tunnel {
    pub(crate) flow: Flow,
    received: mpsc::Receiver<Bytes>,
}

struct Inbox(Mutex<mpsc::Sender<Bytes>>);

impl DatagramSink for Inbox {
    fn push(&self, payload: Bytes) {
        drop(self.0.lock().try_send(payload));
    }

    fn flush(&self) {}
}

/// Where payloads go, and where they come out.
pub(crate) fn inbox() -> (Arc<dyn DatagramSink>, mpsc::Receiver<Bytes>) {
    let (inbox, received) = mpsc::channel(1024);
    (Arc::new(Inbox(Mutex::new(inbox))), received)
}

impl Tunnel {
    pub(crate) fn new(exchange: Exchange) -> Self {
        let (sink, received) = inbox();
        let flow = exchange.datagrams(sink);
        Self { flow, received }
    }

    pub(crate) async fn recv(&mut self) -> Bytes {
        soon(self.received.recv()).await.expect("open")
    }

    /// Sends one payload, if there is room.
    pub(crate) fn send(&self, payload: &[u8]) {
        self.flow.send(Batch::one(payload));
    }

    /// Sends one payload again and again until something comes back: UDP may lose.
    pub(crate) async fn echo(&mut self, payload: &[u8]) -> Bytes {
        for _ in 0..100 {
            self.send(payload);
            let pause = Duration::from_millis(200);
            if let Ok(received) = tokio::time::timeout(pause, self.received.recv()).await {
                return received.expect("open");
            }
        }
        unreachable!("nothing came back")
    }
}
