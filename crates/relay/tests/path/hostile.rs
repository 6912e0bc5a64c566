//! A client of forwarded mode with a relay that does not keep to its rules: the flow ends or stays tunnelled, and others go on.

use std::{
    future::poll_fn,
    net::{Ipv4Addr, UdpSocket},
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::{ALPN_H3, Certificates, Scramble, Transform, Trust, server_tls};
use hoplite_http::{
    DatagramSink,
    h3::{self, Flow, H3Error, Session},
};
use hoplite_link::Peer;
use hoplite_masque::{Config, Path, Relay};
use hoplite_overlay::{Batch, Datagrams, Error, Overlay, Terms, direct::Direct};
use hoplite_quic::{
    Connection, Endpoint, EndpointConfig, ServerConfig, crypto::rustls::QuicServerConfig,
};
use hoplite_testing::{relay::identity, soon};
use hoplite_wire::{
    RequestHead, ResponseHead, Target,
    forwarding::{Answer, Capsule, FORWARDING, Malformed, Transform as Kind, long_header_ids},
    h3::Code,
};
use tokio::{sync::mpsc, time::timeout};

const OWN: &[u8] = b"client-1";
const TARGET: &[u8] = b"target-1";
const ALIAS: &[u8] = b"virtual1";

fn bytes(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn long(destination: &[u8], source: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xc0, 0, 0, 0, 1];
    for id in [destination, source] {
        packet.push(u8::try_from(id.len()).expect("short"));
        packet.extend(id);
    }
    packet.resize(1200, 7);
    packet
}

fn short(id: &[u8], size: usize) -> Vec<u8> {
    let mut packet = [&[0x40], id].concat();
    packet.resize(size, 7);
    packet
}

/// What the relay makes of an offer: its answer, and what it does to packets.
type Bargain = fn(&RequestHead) -> (ResponseHead, Option<Transform>);

/// As an honest one does.
fn honest(head: &RequestHead) -> (ResponseHead, Option<Transform>) {
    let offer = head.offer().expect("an offer");
    let own = Scramble::fresh_key().expect("a key");
    let transform = Transform::scramble(&own, &offer.key.expect("a key")).expect("a cipher");
    let answer = Answer {
        transform: Some((Kind::Scramble, Some(own))),
    };
    let head = ResponseHead::new(200).with("capsule-protocol", "?1");
    (head.with_answer(&answer), Some(transform))
}

fn answering(value: &str) -> (ResponseHead, Option<Transform>) {
    let head = ResponseHead::new(200).with("capsule-protocol", "?1");
    (head.with(FORWARDING, value), None)
}

/// A flow at the relay's end.
struct Heard {
    flow: Flow,
    connection: Connection,
    transform: Option<Transform>,
    payloads: mpsc::Receiver<Bytes>,
    capsules: mpsc::Receiver<Capsule>,
    raw: UdpSocket,
}

struct Sink {
    payloads: mpsc::Sender<Bytes>,
    capsules: mpsc::Sender<Capsule>,
}

impl DatagramSink for Sink {
    fn push(&self, payload: Bytes) {
        drop(self.payloads.try_send(payload));
    }

    fn flush(&self) {}

    fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        drop(self.capsules.try_send(capsule.expect("well-formed")));
        ControlFlow::Continue(())
    }
}

impl Heard {
    async fn capsule(&mut self) -> Capsule {
        soon(self.capsules.recv()).await.expect("open")
    }

    async fn payload(&mut self) -> Bytes {
        soon(self.payloads.recv()).await.expect("open")
    }

    fn tell(&self, capsule: &Capsule) {
        assert!(self.flow.send_capsule(capsule));
    }

    fn tell_alias(&self, virtual_id: &[u8]) {
        self.tell(&Capsule::AckClientCid {
            id: bytes(OWN),
            virtual_id: bytes(virtual_id),
        });
    }

    /// Sends a packet beside the connection.
    fn send_beside(&self, packet: &[u8]) {
        let client = self.connection.remote_address();
        self.raw.send_to(packet, client).expect("sent");
    }
}

/// A client, and a relay whose flows are the test's.
struct Both {
    path: Path,
    flows: mpsc::Receiver<Heard>,
    _endpoint: Endpoint,
}

impl Both {
    fn new(bargain: Bargain) -> Self {
        let identity = identity();
        let certificates = Certificates::new(&identity).expect("certificates");
        let tls = server_tls(certificates, &[ALPN_H3]).expect("TLS");
        let crypto = QuicServerConfig::try_from(tls).expect("QUIC");
        let config = ServerConfig::with_crypto(Arc::new(crypto));
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let raw = socket.try_clone().expect("cloned");
        let endpoint = Endpoint::new(EndpointConfig::default(), Some(config), socket);
        let endpoint = endpoint.expect("an endpoint");
        let (out, flows) = mpsc::channel(64);
        tokio::spawn(serve(endpoint.clone(), raw, bargain, out));
        let relay = Relay {
            peer: Peer {
                name: "hostile".into(),
                address: Target::from(endpoint.local_addr().expect("bound")),
                trust: Trust::Pins(vec![identity.pin()]),
            },
            token: None,
            tokens: None,
            template: None,
            mode: None,
        };
        let below: Arc<dyn Overlay> = Arc::new(Direct::new());
        let path = Path::new(vec![relay], &below, &Arc::new(Config::default()));
        Self {
            path: path.expect("a path"),
            flows,
            _endpoint: endpoint,
        }
    }

    async fn ask(&self) -> Result<Box<dyn Datagrams>, Error> {
        let target: Target = "192.0.2.1:443".parse().expect("a target");
        soon(self.path.open_datagrams(&target, &Terms::default())).await
    }

    /// Both ends of a new flow.
    async fn open(&mut self) -> (Box<dyn Datagrams>, Heard) {
        let flow = self.ask().await.expect("a flow");
        (flow, soon(self.flows.recv()).await.expect("served"))
    }

    /// One on which the client has registered its id.
    async fn registered(&mut self) -> (Box<dyn Datagrams>, Heard) {
        let (flow, mut heard) = self.open().await;
        send(&*flow, &long(b"whatever", OWN)).await;
        let register = Capsule::RegisterClientCid { id: bytes(OWN) };
        assert_eq!(heard.capsule().await, register);
        (flow, heard)
    }
}

async fn serve(
    endpoint: Endpoint,
    raw: UdpSocket,
    bargain: Bargain,
    out: mpsc::Sender<Heard>,
) -> Option<()> {
    loop {
        let connection = endpoint.accept().await?.await.ok()?;
        let session = Session::server(connection.clone(), &h3::Config::default());
        while let Some(mut incoming) = session.accept().await {
            let (head, transform) = bargain(&incoming.head);
            incoming.exchange.respond(&head).await.ok()?;
            let (payloads_in, payloads) = mpsc::channel(1024);
            let (capsules_in, capsules) = mpsc::channel(1024);
            let sink = Sink {
                payloads: payloads_in,
                capsules: capsules_in,
            };
            let heard = Heard {
                flow: incoming.exchange.datagrams(Arc::new(sink)),
                connection: connection.clone(),
                transform,
                payloads,
                capsules,
                raw: raw.try_clone().ok()?,
            };
            out.send(heard).await.ok()?;
        }
    }
}

async fn send(flow: &dyn Datagrams, packet: &[u8]) {
    let sent = poll_fn(|cx| flow.poll_send(cx, Batch::one(packet)));
    soon(sent).await.expect("sent");
}

async fn recv(flow: &dyn Datagrams) -> Result<Vec<u8>, Error> {
    let mut buffer = vec![0; 65_536];
    let received = soon(poll_fn(|cx| flow.poll_recv(cx, &mut buffer))).await?;
    buffer.truncate(received.len.min(received.segment));
    Ok(buffer)
}

/// Both directions of the tunnel work.
async fn is_alive(flow: &dyn Datagrams, heard: &mut Heard) {
    let question = long(b"whatever", OWN);
    send(flow, &question).await;
    while heard.payload().await != question {}
    heard.flow.send(Batch::one(b"\xc0answer"));
    while recv(flow).await.expect("open") != b"\xc0answer" {}
}

#[tokio::test]
async fn a_transform_that_was_not_offered_ends_the_request() {
    let answers: [Bargain; 2] = [
        |_| answering("?1; transform=\"identity\""),
        |_| answering("?1; transform=\"chaff-9\""),
    ];
    for answer in answers {
        assert!(Both::new(answer).ask().await.is_err());
    }
}

#[tokio::test]
async fn an_answer_that_grants_nothing_or_makes_no_sense_leaves_everything_in_the_tunnel() {
    let answers: [Bargain; 4] = [
        |_| answering("?0"),
        |_| answering("?1; transform=\"scramble-dt\""),
        |_| answering("?1; transform=\"scramble-dt\"; scramble-key=:AAAA:"),
        |_| answering("?1; transform=scramble-dt;;;"),
    ];
    for answer in answers {
        let mut both = Both::new(answer);
        let (flow, mut heard) = both.open().await;
        is_alive(&*flow, &mut heard).await;
        drop(flow);
        soon(heard.flow.closed()).await.expect("in order");
        assert_eq!(heard.capsules.try_recv().ok(), None);
    }
}

#[tokio::test]
async fn capsules_that_only_clients_send_end_the_flow_and_no_other() {
    let (id, reset_token) = (bytes(OWN), Bytes::new());
    let capsules = [
        Capsule::RegisterClientCid { id: id.clone() },
        Capsule::RegisterTargetCid {
            id: id.clone(),
            reset_token: reset_token.clone(),
        },
        Capsule::AckClientVcid {
            virtual_id: id.clone(),
            id,
            reset_token,
        },
        Capsule::MaxConnectionIds { sequence: 0 },
    ];
    let mut both = Both::new(honest);
    for capsule in capsules {
        let (flow, heard) = both.registered().await;
        heard.tell(&capsule);
        let ended = soon(heard.flow.closed()).await;
        assert!(
            matches!(ended, Err(H3Error::Reset(Code::DATAGRAM_ERROR))),
            "{ended:?}"
        );
        assert!(recv(&*flow).await.is_err());
    }
    let (flow, mut heard) = both.open().await;
    is_alive(&*flow, &mut heard).await;
}

#[tokio::test]
async fn virtual_ids_that_cannot_be_used_are_closed() {
    let mut both = Both::new(honest);
    for virtual_id in [&b""[..], b"shorter", &[7; 21], &[7; 255]] {
        let (flow, mut heard) = both.registered().await;
        heard.tell_alias(virtual_id);
        let close = Capsule::CloseClientCid { id: bytes(OWN) };
        assert_eq!(heard.capsule().await, close);
        is_alive(&*flow, &mut heard).await;
    }
    for virtual_id in [&b""[..], &[7; 21], &[7; 255]] {
        let (flow, mut heard) = both.registered().await;
        heard.flow.send(Batch::one(&long(OWN, TARGET)));
        let (id, reset_token) = (bytes(TARGET), Bytes::new());
        let register = Capsule::RegisterTargetCid {
            id: id.clone(),
            reset_token: reset_token.clone(),
        };
        assert_eq!(heard.capsule().await, register);
        heard.tell(&Capsule::AckTargetCid {
            id: id.clone(),
            virtual_id: bytes(virtual_id),
            reset_token,
        });
        assert_eq!(heard.capsule().await, Capsule::CloseTargetCid { id });
        is_alive(&*flow, &mut heard).await;
    }
}

/// Before the QUIC inside has sent a short header, nothing may come beside the connection.
async fn end_handshake(flow: &dyn Datagrams, heard: &mut Heard) -> Capsule {
    loop {
        send(flow, &short(b"unknown1", 60)).await;
        let answer = timeout(Duration::from_millis(20), heard.capsules.recv()).await;
        if let Ok(capsule) = answer {
            return capsule.expect("open");
        }
    }
}

#[tokio::test]
async fn answers_that_nobody_asked_for_change_nothing() {
    let mut both = Both::new(honest);
    let (flow, mut heard) = both.registered().await;
    for id in [&b"nobody-1"[..], b"", TARGET, &[7; 255]] {
        let id = bytes(id);
        heard.tell(&Capsule::AckClientCid {
            id: id.clone(),
            virtual_id: bytes(ALIAS),
        });
        heard.tell(&Capsule::AckTargetCid {
            id: id.clone(),
            virtual_id: bytes(ALIAS),
            reset_token: id.clone(),
        });
        heard.tell(&Capsule::CloseClientCid { id: id.clone() });
        heard.tell(&Capsule::CloseTargetCid { id });
    }
    // The first answer counts, and no other of the two thousand.
    for number in 0..2000_u64 {
        let again = [ALIAS, &number.to_be_bytes()].concat();
        heard.tell_alias(if number == 0 { ALIAS } else { &again });
        if number % 100 == 0 {
            heard.tell(&Capsule::MaxConnectionIds { sequence: 1 });
            tokio::task::yield_now().await;
        }
    }
    let first = Capsule::AckClientVcid {
        id: bytes(OWN),
        virtual_id: bytes(ALIAS),
        reset_token: Bytes::new(),
    };
    assert_eq!(soon(end_handshake(&*flow, &mut heard)).await, first);
    is_alive(&*flow, &mut heard).await;
    // Another id is the next that the client has anything to say of.
    send(&*flow, &long(b"whatever", b"client-2")).await;
    let id = bytes(b"client-2");
    assert_eq!(heard.capsule().await, Capsule::RegisterClientCid { id });
}

#[tokio::test]
async fn rubbish_beside_the_connection_harms_neither_flow_nor_connection() {
    let mut both = Both::new(honest);
    let (flow, mut heard) = both.registered().await;
    // Nobody has acknowledged it yet: it is no packet of the connection's, nor of the flow's.
    heard.send_beside(&short(ALIAS, 100));
    heard.tell_alias(ALIAS);
    assert!(matches!(
        soon(end_handshake(&*flow, &mut heard)).await,
        Capsule::AckClientVcid { .. }
    ));
    for size in 1..60 {
        let mut packet = short(ALIAS, size.max(9));
        packet.truncate(size);
        heard.send_beside(&packet);
        packet[0] |= 0x80;
        heard.send_beside(&packet);
    }
    let mut sealed = short(ALIAS, 300);
    let transform = heard.transform.as_ref().expect("agreed");
    transform.seal(&mut sealed, ALIAS.len()).expect("long");
    heard.send_beside(&sealed);
    // What is long enough cannot be told from good packets; the QUIC inside can tell.
    loop {
        let received = recv(&*flow).await.expect("open");
        assert!(long_header_ids(&received).is_none());
        assert_eq!(received[1..9], *OWN);
        if received.len() == 300 {
            assert_eq!(received, short(OWN, 300));
            break;
        }
    }
    is_alive(&*flow, &mut heard).await;
    assert_eq!(both.path.hops()[0].passed().lost, 16);
}
