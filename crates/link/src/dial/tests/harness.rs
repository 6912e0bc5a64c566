//! A relay on the in-memory network that echoes over QUIC and TLS, and paths towards it that misbehave.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use hoplite_crypto::{ALPN_H2, ALPN_H3, Certificates, Pin as KeyPin, Trust, server_tls};
use hoplite_overlay::{
    Overlay,
    memory::{Conditions, MemoryOverlay, Network, What},
};
use hoplite_quic::{
    Connection, Endpoint, EndpointConfig, Hooks,
    server::{Secrets, server_config},
    timer::Timers,
};
use hoplite_testing::{Double, identity};
use hoplite_wire::{HostName, Target};
use parking_lot::Mutex;
use tokio::{io::AsyncWriteExt, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::{Config, Dialer, Peer, memory::MemorySocket};

const RELAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)), 443);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
pub(super) const LATENCY: Duration = Duration::from_millis(20);

/// A network with a relay on it.
pub(super) struct Lab {
    pub(super) network: Network,
    pub(super) pin: KeyPin,
    tls: Arc<rustls::ServerConfig>,
    tasks: JoinSet<()>,
}

impl Lab {
    /// Both services.
    pub(super) fn new() -> Self {
        let mut lab = Self::deserted();
        lab.serve_quic();
        lab.serve_tls();
        lab
    }

    /// The host, without any service yet.
    pub(super) fn deserted() -> Self {
        let identity = identity("relay.example");
        let certificates = Certificates::new(&identity).unwrap();
        let tls = server_tls(certificates, &[ALPN_H3, ALPN_H2]).unwrap();
        Self::with(tls, identity.pin())
    }

    pub(super) fn with(tls: rustls::ServerConfig, pin: KeyPin) -> Self {
        let network = Network::new(1);
        network.set_conditions(Conditions {
            latency: LATENCY,
            ..Conditions::default()
        });
        let name = HostName::new("relay.example").unwrap();
        network.host(name, RELAY.ip());
        Self {
            network,
            pin,
            tls: Arc::new(tls),
            tasks: JoinSet::new(),
        }
    }

    pub(super) fn serve_quic(&mut self) {
        self.serve_quic_with(&Hooks::default());
    }

    pub(super) fn serve_quic_with(&mut self, hooks: &Hooks) {
        let socket = MemorySocket::new(self.network.bind_at(RELAY), &mut self.tasks);
        let transport = Config {
            streams: 100,
            // Relays do not speak by themselves.
            keep_alive: Duration::from_secs(1000),
            ..Config::default()
        };
        let transport = Arc::new(transport.transport(0, 1472));
        let secrets = Secrets::generate().unwrap();
        let config = server_config(Arc::clone(&self.tls), transport, &secrets, hooks).unwrap();
        let endpoint = Endpoint::with_socket(
            EndpointConfig::default(),
            Some(config),
            socket,
            Timers::Exact,
        );
        let endpoint = endpoint.unwrap();
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Some(incoming) = endpoint.accept().await {
                connections.spawn(async move {
                    if let Ok(connection) = incoming.await {
                        echo(connection).await;
                    }
                });
            }
        });
    }

    pub(super) fn serve_tls(&mut self) {
        self.serve_tls_with(Arc::clone(&self.tls));
    }

    /// Somebody on the way answers TCP, with a certificate of his own.
    pub(super) fn intercept_tls(&mut self) {
        let certificates = Certificates::new(&identity("relay.example")).unwrap();
        let tls = server_tls(certificates, &[ALPN_H3, ALPN_H2]).unwrap();
        self.serve_tls_with(Arc::new(tls));
    }

    fn serve_tls_with(&mut self, tls: Arc<rustls::ServerConfig>) {
        let mut listener = self.network.listen_at(RELAY);
        let acceptor = TlsAcceptor::from(tls);
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let stream = listener.accept().await;
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    if let Ok(tls) = acceptor.accept(stream).await {
                        let (mut read, mut write) = tokio::io::split(tls);
                        drop(tokio::io::copy(&mut read, &mut write).await);
                        drop(write.shutdown().await);
                    }
                });
            }
        });
    }

    /// The relay's UDP port is closed without a word: its host refuses what is sent there.
    pub(super) fn close_port(&self) {
        drop(self.network.bind_at(RELAY));
    }

    pub(super) fn peer(&self) -> Peer {
        Peer {
            name: "amber".into(),
            address: Target::from(RELAY),
            trust: Trust::Pins(vec![self.pin]),
        }
    }

    pub(super) fn overlay(&self) -> MemoryOverlay {
        self.network.overlay(CLIENT)
    }

    pub(super) fn dialer(&self, hop: usize) -> Dialer {
        Dialer::new(
            Arc::new(self.overlay()),
            self.peer(),
            hop,
            Config::default(),
        )
    }

    /// The client's ports that datagrams to the relay came from.
    pub(super) fn client_ports(&self) -> BTreeSet<u16> {
        let seen = self.network.seen().into_iter();
        let sent = seen.filter(|seen| matches!(seen.what, What::Datagram(_)) && seen.to == RELAY);
        sent.map(|seen| seen.from.port()).collect()
    }
}

async fn echo(connection: Connection) {
    let mut streams = JoinSet::new();
    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
        streams.spawn(async move { drop(tokio::io::copy(&mut receive, &mut send).await) });
    }
}

/// Sends `payload` on a new stream and compares what comes back.
pub(super) async fn exchange(connection: &Connection, payload: &[u8]) {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    let writing = async {
        send.write_all(payload).await.unwrap();
        send.finish().unwrap();
    };
    let ((), answer) = tokio::join!(writing, receive.read_to_end(payload.len() + 1));
    assert!(answer.unwrap() == payload, "the echo differs");
}

/// A path whose flows can be told that the device has moved, and that do not take every batch at once.
pub(super) struct Bumpy {
    pub(super) overlay: Arc<dyn Overlay>,
    /// Flows that are open now have moved.
    moved: Arc<Mutex<Arc<AtomicBool>>>,
    /// The most datagrams that came down in one batch.
    pub(super) longest: Arc<AtomicUsize>,
}

impl Bumpy {
    /// Of `stutter` batches one is not taken at once; 0 is none.
    pub(super) fn new(lab: &Lab, stutter: usize) -> Self {
        let moved = Arc::<Mutex<Arc<AtomicBool>>>::default();
        let longest = Arc::<AtomicUsize>::default();
        let (now, most) = (Arc::clone(&moved), Arc::clone(&longest));
        let overlay = Double::over(lab.overlay()).flows(move |flow| {
            let (moved, longest) = (Arc::clone(&now.lock()), Arc::clone(&most));
            let asked = AtomicUsize::new(0);
            flow.moved(move |_| moved.load(Ordering::Relaxed))
                .sends(move |below, cx, batch| {
                    let asked = asked.fetch_add(1, Ordering::Relaxed) + 1;
                    if stutter > 0 && asked.is_multiple_of(stutter) {
                        let waker = cx.waker().clone();
                        tokio::spawn(async move {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                            waker.wake();
                        });
                        return Poll::Pending;
                    }
                    let datagrams = batch.payloads().count();
                    longest.fetch_max(datagrams, Ordering::Relaxed);
                    below.poll_send(cx, batch)
                })
        });
        Self {
            overlay: Arc::new(overlay),
            moved,
            longest,
        }
    }

    /// The device gets another address.
    pub(super) fn move_away(&self) {
        let mut moved = self.moved.lock();
        moved.store(true, Ordering::Relaxed);
        *moved = Arc::default();
    }
}

/// A path on which datagrams are lost until then.
pub(super) fn lossy(below: MemoryOverlay, until: tokio::time::Instant) -> Double {
    Double::over(below).flows(move |flow| {
        flow.sends(move |below, cx, batch| {
            if tokio::time::Instant::now() < until {
                return Poll::Ready(Ok(()));
            }
            below.poll_send(cx, batch)
        })
    })
}

/// An overlay that has to be dialled itself first, once: both kinds of flow wait for the same moment.
pub(super) fn cold(below: MemoryOverlay, stands: tokio::time::Instant) -> Double {
    Double::over(below)
        .streams(move |below, target, terms| {
            Box::pin(async move {
                tokio::time::sleep_until(stands).await;
                below.open_stream(target, terms).await
            })
        })
        .datagrams(move |below, target, terms| {
            Box::pin(async move {
                tokio::time::sleep_until(stands + 4 * LATENCY).await;
                below.open_datagrams(target, terms).await
            })
        })
}
