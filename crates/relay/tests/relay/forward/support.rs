//! A client that has agreed on forwarded mode, on a wire that can be tapped, and its target.

use std::{
    collections::VecDeque, io::IoSliceMut, net::SocketAddr, ops::ControlFlow, sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::{Scramble, Transform, Trust};
use hoplite_http::{
    DatagramSink,
    h3::{self, Flow, H3Error, Session},
};
use hoplite_link::{Config as LinkConfig, Dialer, Peer};
use hoplite_overlay::{Batch, Terms, direct::Direct};
use hoplite_quic::server::Ecn;
use hoplite_relay::{Config, Handle};
use hoplite_testing::{PATIENCE, relay::relay, soon};
use hoplite_wire::{
    Target,
    forwarding::{Answer, Capsule, Key, Malformed, Offer, Transform as Kind},
};
use parking_lot::Mutex;
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use tokio::{io::Interest, net::UdpSocket, sync::mpsc, time::timeout};

use crate::{
    support::{Client, udp},
    tap::Tap,
};

/// A packet with a short header and no secrets.
pub(crate) fn packet(id: &[u8], size: usize) -> Vec<u8> {
    let mut packet = [&[0x41], id].concat();
    let rest = 0..size - packet.len();
    packet.extend(rest.rev().map(|at| at.to_le_bytes()[0]));
    packet
}

/// Packets of these sizes.
pub(crate) fn packets(id: &[u8], sizes: &[usize]) -> Vec<u8> {
    sizes.iter().flat_map(|size| packet(id, *size)).collect()
}

/// What comes through the tunnel.
struct Inbox {
    payloads: Mutex<mpsc::Sender<Bytes>>,
    capsules: Mutex<mpsc::Sender<Capsule>>,
}

impl DatagramSink for Inbox {
    fn push(&self, payload: Bytes) {
        drop(self.payloads.lock().try_send(payload));
    }

    fn flush(&self) {}

    fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let capsule = capsule.expect("well-formed");
        drop(self.capsules.lock().try_send(capsule));
        ControlFlow::Continue(())
    }
}

/// Takes capsules, and nothing else.
pub(crate) fn capsules() -> (Arc<dyn DatagramSink>, mpsc::Receiver<Capsule>) {
    let (capsules_in, capsules) = mpsc::channel(64);
    let inbox = Inbox {
        payloads: Mutex::new(mpsc::channel(1).0),
        capsules: Mutex::new(capsules_in),
    };
    (Arc::new(inbox), capsules)
}

/// A target that sends and receives in batches.
struct Server {
    socket: UdpSocket,
    state: UdpSocketState,
    /// The relay's end; none before something came from it.
    relay: Option<SocketAddr>,
    received: VecDeque<Vec<u8>>,
    /// How what was received last was marked, and how what is sent will be.
    received_mark: Option<Ecn>,
    /// How many packets came together at most.
    largest: usize,
    mark: Option<Ecn>,
}

impl Server {
    async fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
        Self {
            state: UdpSocketState::new(UdpSockRef::from(&socket)).expect("set up"),
            socket,
            relay: None,
            received: VecDeque::new(),
            received_mark: None,
            largest: 0,
            mark: None,
        }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("bound")
    }

    async fn recv(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 65_536];
        while self.received.is_empty() {
            let mut meta = [RecvMeta::default()];
            let receive = || {
                let mut buffers = [IoSliceMut::new(&mut buffer)];
                let socket = UdpSockRef::from(&self.socket);
                self.state.recv(socket, &mut buffers, &mut meta)
            };
            if self
                .socket
                .async_io(Interest::READABLE, receive)
                .await
                .is_ok()
            {
                self.relay = Some(meta[0].addr);
                self.received_mark = meta[0].ecn;
                let packets = buffer[..meta[0].len].chunks(meta[0].stride.max(1));
                self.received.extend(packets.map(<[u8]>::to_vec));
                self.largest = self.largest.max(self.received.len());
            }
        }
        self.received.pop_front().expect("one")
    }

    async fn send(&self, contents: &[u8], segment: usize) {
        let transmit = Transmit {
            destination: self.relay.expect("it spoke first"),
            ecn: self.mark,
            contents,
            segment_size: (contents.len() > segment).then_some(segment),
            src_ip: None,
        };
        let send = || {
            self.state
                .try_send(UdpSockRef::from(&self.socket), &transmit)
        };
        self.socket
            .async_io(Interest::WRITABLE, send)
            .await
            .expect("sent");
    }
}

/// An open flow in forwarded mode.
pub(crate) struct Agreed {
    pub(crate) tap: Tap,
    pub(crate) client: Client,
    relay: Arc<Handle>,
    transform: Transform,
    target: Server,
    flow: Option<Flow>,
    payloads: mpsc::Receiver<Bytes>,
    capsules: mpsc::Receiver<Capsule>,
}

async fn dial(relay: &Handle, address: SocketAddr) -> Client {
    let peer = Peer {
        name: "test".into(),
        address: Target::from(address),
        trust: Trust::Pins(vec![relay.pin()]),
    };
    let dialer = Dialer::new(Arc::new(Direct::new()), peer, 0, LinkConfig::default());
    let link = dialer.quic(&Terms::default()).await.expect("connected");
    let session = Session::client(link.connection().clone(), &h3::Config::default());
    Client { session, link }
}

/// What the client does with packets after the relay's answer.
fn transform(own: &Key, answer: Answer) -> Transform {
    match answer.transform.expect("selected") {
        (Kind::Identity, _) => Transform::Identity,
        (Kind::Scramble, key) => Transform::scramble(own, &key.expect("a key")).expect("a cipher"),
    }
}

impl Agreed {
    pub(crate) async fn new(kind: Kind) -> Self {
        Self::with(kind, |config| {
            config.forwarding.identity = true;
            config.forwarding.ids_per_flow = 8;
        })
        .await
    }

    pub(crate) async fn with(kind: Kind, change: impl FnOnce(&mut Config)) -> Self {
        let mut ids = 0;
        let relay = relay(|config| {
            change(config);
            ids = config.forwarding.ids_per_flow as u64;
        });
        Self::at(Arc::new(relay), kind, ids).await
    }

    /// Another client of the same relay, which gives each flow eight ids.
    pub(crate) async fn beside(&self, kind: Kind) -> Self {
        Self::at(self.relay.clone(), kind, 8).await
    }

    async fn at(relay: Arc<Handle>, kind: Kind, ids: u64) -> Self {
        let tap = Tap::new(relay.addresses()[0]).await;
        let client = dial(&relay, tap.address).await;
        let target = Server::new().await;
        let own = Scramble::fresh_key().expect("randomness");
        let offer = Offer {
            transforms: vec![kind],
            key: Some(own.clone()),
        };
        let (exchange, answer) = client.ask(udp(target.address()).with_offer(&offer)).await;
        let answer = answer.answer(&offer.transforms).expect("offered");
        let (payloads_in, payloads) = mpsc::channel(1024);
        let (capsules_in, capsules) = mpsc::channel(64);
        let inbox = Inbox {
            payloads: Mutex::new(payloads_in),
            capsules: Mutex::new(capsules_in),
        };
        let mut agreed = Self {
            tap,
            relay,
            transform: transform(&own, answer),
            target,
            flow: Some(exchange.datagrams(Arc::new(inbox))),
            payloads,
            capsules,
            client,
        };
        if ids > 2 {
            let sequence = ids - 1;
            let told = agreed.told().await;
            assert_eq!(told, Capsule::MaxConnectionIds { sequence });
        }
        agreed.echo().await;
        agreed
    }

    fn flow(&self) -> &Flow {
        self.flow.as_ref().expect("open")
    }

    /// Sends something through the tunnel and back until it arrives: UDP may lose.
    pub(crate) async fn echo(&mut self) {
        let hello = b"\xc0hello";
        let there = async {
            loop {
                self.flow.as_ref().expect("open").send(Batch::one(hello));
                let pause = Duration::from_millis(200);
                match timeout(pause, self.target.recv()).await {
                    Ok(received) if received == hello => return,
                    _ => (),
                }
            }
        };
        soon(there).await;
    }

    /// Sends something through the tunnel once, and does not wait for it.
    pub(crate) fn hello(&self) {
        self.flow().send(Batch::one(b"\xc0hello"));
    }

    pub(crate) fn relay_address(&self) -> SocketAddr {
        self.relay.addresses()[0]
    }

    pub(crate) fn tell(&self, capsule: &Capsule) {
        assert!(self.flow().send_capsule(capsule));
    }

    /// The relay's next capsule.
    pub(crate) async fn told(&mut self) -> Capsule {
        soon(self.capsules.recv()).await.expect("open")
    }

    /// The relay's next capsule that is no permission.
    pub(crate) async fn answered(&mut self) -> Capsule {
        loop {
            match self.told().await {
                Capsule::MaxConnectionIds { .. } => (),
                answer => return answer,
            }
        }
    }

    /// Registers an id of the target's; its alias.
    pub(crate) async fn register_target(&mut self, id: &[u8]) -> Vec<u8> {
        self.tell(&Capsule::RegisterTargetCid {
            id: Bytes::copy_from_slice(id),
            reset_token: Bytes::new(),
        });
        match self.answered().await {
            Capsule::AckTargetCid {
                id: of, virtual_id, ..
            } => {
                assert_eq!(of, id);
                virtual_id.to_vec()
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// Registers an id of the client's, and does not acknowledge the alias.
    pub(crate) async fn offer_client(&mut self, id: &[u8]) -> Vec<u8> {
        let id = Bytes::copy_from_slice(id);
        self.tell(&Capsule::RegisterClientCid { id: id.clone() });
        match self.answered().await {
            Capsule::AckClientCid { id: of, virtual_id } => {
                assert_eq!(of, id);
                virtual_id.to_vec()
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// Acknowledges the alias; packets with it go to the tap. Another registration tells that the relay has read it.
    pub(crate) async fn acknowledge(&mut self, id: &[u8], alias: &[u8]) {
        self.tap.catch(alias);
        self.tell(&Capsule::AckClientVcid {
            id: Bytes::copy_from_slice(id),
            virtual_id: Bytes::copy_from_slice(alias),
            reset_token: Bytes::new(),
        });
        // Capsules are read in order: when a refusal comes back, the acknowledgement has been read.
        let id = Bytes::from_static(&[0; 21]);
        self.tell(&Capsule::RegisterTargetCid {
            id: id.clone(),
            reset_token: Bytes::new(),
        });
        assert_eq!(self.answered().await, Capsule::CloseTargetCid { id });
        assert!(matches!(
            self.told().await,
            Capsule::MaxConnectionIds { .. }
        ));
    }

    /// Registers an id of the client's; its alias, whose packets go to the tap.
    pub(crate) async fn register_client(&mut self, id: &[u8]) -> Vec<u8> {
        let alias = self.offer_client(id).await;
        self.acknowledge(id, &alias).await;
        alias
    }

    /// As it leaves the client.
    pub(crate) fn sealed(&self, packet: &[u8], id_len: usize) -> Vec<u8> {
        let mut packet = packet.to_vec();
        self.transform.seal(&mut packet, id_len).expect("long");
        packet
    }

    /// As the client reads it.
    pub(crate) fn opened(&self, packet: &[u8], id_len: usize) -> Vec<u8> {
        let mut packet = packet.to_vec();
        self.transform.open(&mut packet, id_len).expect("long");
        packet
    }

    /// The next packet at the target.
    pub(crate) async fn at_target(&mut self) -> Vec<u8> {
        soon(self.target.recv()).await
    }

    /// Sends packets of one size from the target.
    pub(crate) async fn target_sends(&self, contents: &[u8], segment: usize) {
        self.target.send(contents, segment).await;
    }

    /// How many packets have come to the target together at most.
    pub(crate) fn largest_batch(&self) -> usize {
        self.target.largest
    }

    /// How the last one was marked.
    pub(crate) fn mark_at_target(&self) -> Option<Ecn> {
        self.target.received_mark
    }

    /// From now on the target marks its packets so.
    pub(crate) fn target_marks(&mut self, ecn: Option<Ecn>) {
        self.target.mark = ecn;
    }

    /// The next payload that comes through the tunnel.
    pub(crate) async fn tunnelled(&mut self) -> Bytes {
        soon(self.payloads.recv()).await.expect("open")
    }

    /// A number of the relay's.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let text = self.relay.metrics().text();
        let line = format!("hoplite_relay_{name} ");
        let value = text.lines().find_map(|one| one.strip_prefix(&line));
        value.expect(name).parse().expect("a number")
    }

    /// Waits until the relay has counted this many.
    pub(crate) async fn counts(&self, name: &str, wanted: u64) {
        let counted = async {
            while self.counter(name) != wanted {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let in_time = timeout(PATIENCE, counted).await;
        assert!(in_time.is_ok(), "{name}: {}", self.counter(name));
    }

    /// Ends the flow.
    pub(crate) fn close(&mut self) {
        self.flow = None;
    }

    /// Waits until the relay has ended the flow.
    pub(crate) async fn closed(&self) -> Result<(), H3Error> {
        self.flow().closed().await
    }
}
