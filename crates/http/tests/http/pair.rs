//! Connected ends, a sink that remembers, and raw HTTP/3 to break rules with.

use std::{
    net::Ipv4Addr,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use hoplite_crypto::{ALPN_H3, Certificates, Trust, client_tls, server_tls};
use hoplite_http::{
    DatagramSink,
    h3::{Config, Exchange, Flow, Incoming, Session},
};
use hoplite_overlay::Batch;
use hoplite_quic::{self as quic, ConnectionController, Hooks};
use hoplite_testing::{identity, soon};
use hoplite_wire::{
    RequestHead, ResponseHead,
    forwarding::{Capsule, Malformed},
};
use parking_lot::Mutex;
use quic::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use tokio::sync::Notify;

/// A QUIC connection, both ends, and the endpoints that keep it alive.
pub(crate) struct Quic {
    pub(crate) client: quic::Connection,
    pub(crate) server: quic::Connection,
    endpoints: [quic::Endpoint; 2],
}

pub(crate) async fn connect(transport: quic::TransportConfig) -> Quic {
    let transport = Arc::new(transport);
    connect_with(
        [Hooks::default(), Hooks::default()],
        [transport.clone(), transport],
    )
    .await
}

/// The client's end comes first.
async fn connect_with(hooks: [Hooks; 2], transport: [Arc<quic::TransportConfig>; 2]) -> Quic {
    let [near, far] = transport;
    let identity = identity("relay.test");
    let certificates = Certificates::new(&identity).expect("certificates");
    let tls = server_tls(certificates, &[ALPN_H3]).expect("a server's TLS");
    let crypto = Arc::new(QuicServerConfig::try_from(tls).expect("QUIC"));
    let mut config = quic::ServerConfig::with_crypto(hooks[1].server(crypto, "far"));
    config.transport_config(far);
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let server = quic::Endpoint::server(config, any).expect("a socket");
    let mut client = quic::Endpoint::client(any).expect("a socket");
    let tls = client_tls(&Trust::Pins(vec![identity.pin()]), &[ALPN_H3]).expect("a client's TLS");
    let crypto = Arc::new(QuicClientConfig::try_from(tls).expect("QUIC"));
    let mut config = quic::ClientConfig::new(hooks[0].client(crypto, "near"));
    config.transport_config(near);
    client.set_default_client_config(config);
    let dial = client
        .connect(server.local_addr().expect("bound"), "relay.test")
        .expect("a connection");
    let accept = async { server.accept().await.expect("a client").await };
    let (a, b) = soon(async { tokio::join!(dial, accept) }).await;
    Quic {
        client: a.expect("connected"),
        server: b.expect("connected"),
        endpoints: [client, server],
    }
}

/// Both ends speak HTTP/3.
pub(crate) struct Pair {
    pub(crate) client: Session,
    pub(crate) server: Session,
    quic: Quic,
}

pub(crate) async fn pair() -> Pair {
    pair_with(quic::TransportConfig::default()).await
}

pub(crate) async fn pair_with(transport: quic::TransportConfig) -> Pair {
    let quic = connect(transport).await;
    let config = || Config {
        counters: Arc::default(),
        ..Config::default()
    };
    Pair {
        client: Session::client(quic.client.clone(), &config()),
        server: Session::server(quic.server.clone(), &config()),
        quic,
    }
}

/// Ends that are steered, the client's first; one without a controller is a plain one.
pub(crate) async fn steered(controller: [Option<ConnectionController>; 2]) -> Pair {
    let transport = |controller: &Option<ConnectionController>| {
        let mut transport = quic::TransportConfig::default();
        if let Some(controller) = controller {
            controller.configure_transport(&mut transport);
        }
        Arc::new(transport)
    };
    let transport = controller.each_ref().map(transport);
    steered_by(controller, transport).await
}

/// The same over transports of the caller's, which the controllers have harnessed.
pub(crate) async fn steered_by(
    controller: [Option<ConnectionController>; 2],
    transport: [Arc<quic::TransportConfig>; 2],
) -> Pair {
    let hooks = |controller: &Option<ConnectionController>| match controller {
        Some(controller) => controller.hooks(&Hooks::default()),
        None => Hooks::default(),
    };
    let quic = connect_with(controller.each_ref().map(hooks), transport).await;
    let [near, far] = controller.map(|controller| Config {
        counters: Arc::default(),
        controller,
        ..Config::default()
    });
    Pair {
        client: Session::client(quic.client.clone(), &near),
        server: Session::server(quic.server.clone(), &far),
        quic,
    }
}

/// The path MTU is what QUIC needs at least, and stays so.
pub(crate) fn small_path() -> quic::TransportConfig {
    let mut transport = quic::TransportConfig::default();
    transport.mtu_discovery_config(None);
    transport
}

impl Pair {
    /// The client goes on from another port.
    pub(crate) fn rebind(&self) {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        self.quic.endpoints[0].rebind(socket).expect("moved");
    }

    pub(crate) async fn request(&self, head: &RequestHead) -> (Exchange, Incoming) {
        let ask = async { self.client.request(head).await.expect("sent") };
        let (exchange, incoming) = soon(async { tokio::join!(ask, self.server.accept()) }).await;
        (exchange, incoming.expect("arrived"))
    }

    /// A TCP flow that the server has accepted.
    pub(crate) async fn tunnel(&self) -> (Exchange, Exchange) {
        let (mut client, mut incoming) =
            self.request(&RequestHead::connect("example.com:443")).await;
        incoming
            .exchange
            .respond(&ResponseHead::new(200))
            .await
            .expect("answered");
        let response = soon(client.response()).await.expect("an answer");
        assert_eq!(response.status, 200);
        (client, incoming.exchange)
    }

    /// A UDP flow that the server has accepted.
    pub(crate) async fn flow(&self) -> (End, End) {
        let (mut client, mut incoming) = self.request(&udp_head()).await;
        incoming
            .exchange
            .respond(&ResponseHead::new(200))
            .await
            .expect("answered");
        let server = End::new(incoming.exchange);
        soon(client.response()).await.expect("an answer");
        (End::new(client), server)
    }
}

pub(crate) fn udp_head() -> RequestHead {
    RequestHead::connect_udp("relay.test", "/.well-known/masque/udp/192.0.2.1/53/")
}

/// A flow and what it received.
pub(crate) struct End {
    pub(crate) flow: Flow,
    pub(crate) sink: Arc<Kept>,
}

impl End {
    pub(crate) fn new(exchange: Exchange) -> Self {
        let sink = Arc::new(Kept::default());
        Self {
            flow: exchange.datagrams(sink.clone()),
            sink,
        }
    }

    pub(crate) fn send(&self, payload: &[u8]) -> usize {
        self.flow.send(Batch::one(payload))
    }
}

#[derive(Default)]
pub(crate) struct Kept {
    payloads: Mutex<(Vec<Bytes>, usize)>,
    flushed: Notify,
    capsules: Mutex<Vec<Result<Capsule, Malformed>>>,
    /// Malformed capsules break the flow off.
    pub(crate) strict: AtomicBool,
}

impl Kept {
    /// Waits until there are `count` payloads or more, and takes all.
    pub(crate) async fn take(&self, count: usize) -> Vec<Bytes> {
        soon(async {
            loop {
                let flushed = self.flushed.notified();
                {
                    let mut kept = self.payloads.lock();
                    if kept.1 >= count {
                        kept.1 = 0;
                        return std::mem::take(&mut kept.0);
                    }
                }
                flushed.await;
            }
        })
        .await
    }

    /// Waits until there are `count` capsules of forwarded mode or more, and takes all.
    pub(crate) async fn take_capsules(&self, count: usize) -> Vec<Result<Capsule, Malformed>> {
        soon(async {
            loop {
                let flushed = self.flushed.notified();
                {
                    let mut kept = self.capsules.lock();
                    if kept.len() >= count {
                        return std::mem::take(&mut *kept);
                    }
                }
                flushed.await;
            }
        })
        .await
    }
}

impl DatagramSink for Kept {
    fn push(&self, payload: Bytes) {
        self.payloads.lock().0.push(payload);
    }

    /// Only what was flushed counts.
    fn flush(&self) {
        let mut kept = self.payloads.lock();
        kept.1 = kept.0.len();
        drop(kept);
        self.flushed.notify_one();
    }

    fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let bad = capsule.is_err() && self.strict.load(Ordering::Relaxed);
        self.capsules.lock().push(capsule);
        self.flushed.notify_one();
        if bad {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
