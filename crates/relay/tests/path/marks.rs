//! ECN over paths: what a router between two relays marks, and what it finds marked, while a connection further on runs through the first of them.

use std::{
    future::poll_fn,
    io::IoSliceMut,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use hoplite_masque::{Config, Hop, Mode, Passed, Path};
use hoplite_overlay::{
    Batch, Datagrams, Ecn, Overlay, Terms,
    direct::{UdpFlow, UdpSettings, connect_udp},
};
use hoplite_relay::Handle;
use hoplite_testing::{
    path::{direct, known},
    relay::relays,
    soon,
};
use parking_lot::Mutex;
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{TcpListener, UdpSocket},
    task::AbortHandle,
};

/// The router; it ends when this is dropped.
struct Router {
    address: SocketAddr,
    seen: Arc<Seen>,
    pumps: [AbortHandle; 2],
}

/// Packets, by the way that they went and by their mark.
#[derive(Default)]
struct Seen {
    /// It is congested.
    marks: AtomicBool,
    up: Marks,
    down: Marks,
}

#[derive(Default)]
struct Marks {
    capable: AtomicU64,
    others: AtomicU64,
}

impl Marks {
    /// What becomes of the mark of so many packets.
    fn pass(&self, mark: Option<Ecn>, packets: usize, congested: bool) -> Option<Ecn> {
        let counter = if mark.is_some() {
            &self.capable
        } else {
            &self.others
        };
        counter.fetch_add(packets as u64, SeqCst);
        mark.map(|mark| if congested { Ecn::Ce } else { mark })
    }

    fn take(&self) -> (u64, u64) {
        (self.capable.swap(0, SeqCst), self.others.swap(0, SeqCst))
    }
}

impl Router {
    /// In front of `relay`.
    async fn new(relay: SocketAddr) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
        let address = front.local_addr().expect("bound");
        let state = UdpSocketState::new(UdpSockRef::from(&front)).expect("set up");
        let front = Arc::new((front, state));
        let back = connect_udp(relay, &UdpSettings::default()).expect("connected");
        let (back, seen) = (Arc::new(back), Arc::<Seen>::default());
        let asker = Arc::<Mutex<Option<SocketAddr>>>::default();
        let up = up(front.clone(), back.clone(), asker.clone(), seen.clone());
        let down = down(front, back, asker, seen.clone());
        Self {
            address,
            seen,
            pumps: [tokio::spawn(up), tokio::spawn(down)].map(|pump| pump.abort_handle()),
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.pumps.iter().for_each(AbortHandle::abort);
    }
}

type Front = Arc<(UdpSocket, UdpSocketState)>;

async fn up(
    front: Front,
    back: Arc<UdpFlow>,
    asker: Arc<Mutex<Option<SocketAddr>>>,
    seen: Arc<Seen>,
) {
    let (socket, state) = &*front;
    let mut buffer = vec![0; 65_536];
    loop {
        let mut meta = [RecvMeta::default()];
        let receive = || {
            let mut buffers = [IoSliceMut::new(&mut buffer)];
            state.recv(UdpSockRef::from(socket), &mut buffers, &mut meta)
        };
        let received = socket.async_io(Interest::READABLE, receive).await;
        received.expect("received");
        let [meta] = meta;
        *asker.lock() = Some(meta.addr);
        let contents = &buffer[..meta.len];
        let batch = Batch {
            contents,
            segment: meta.stride.max(1),
        };
        let congested = seen.marks.load(SeqCst);
        let mark = seen.up.pass(meta.ecn, batch.payloads().count(), congested);
        poll_fn(|cx| back.poll_send_marked(cx, batch, mark))
            .await
            .expect("sent");
    }
}

async fn down(
    front: Front,
    back: Arc<UdpFlow>,
    asker: Arc<Mutex<Option<SocketAddr>>>,
    seen: Arc<Seen>,
) {
    let (socket, state) = &*front;
    let mut buffer = vec![0; 65_536];
    loop {
        let received = poll_fn(|cx| back.poll_recv_marked(cx, &mut buffer)).await;
        let (received, mark) = received.expect("received");
        let contents = &buffer[..received.len];
        let batch = Batch {
            contents,
            segment: received.segment,
        };
        let congested = seen.marks.load(SeqCst);
        let ecn = seen.down.pass(mark, batch.payloads().count(), congested);
        let transmit = Transmit {
            destination: asker.lock().expect("it was asked"),
            ecn,
            contents,
            segment_size: (received.len > received.segment).then_some(received.segment),
            src_ip: None,
        };
        let send = || state.try_send(UdpSockRef::from(socket), &transmit);
        let sent = socket.async_io(Interest::WRITABLE, send).await;
        sent.expect("sent");
    }
}

/// A relay, and another one behind a router, whose connection runs through the first.
struct Paired {
    router: Router,
    path: Path,
    top: Hop,
    _relays: Vec<Handle>,
}

impl Paired {
    async fn new(mode: Mode) -> Self {
        let relays = relays(2);
        let router = Router::new(relays[1].addresses()[0]).await;
        let mut client = Config::default();
        // QUIC is not raced: there is no TCP through the router.
        client.link.head_start = Duration::from_secs(60);
        let client = Arc::new(client);
        let [mut first, mut second] = [0, 1].map(|at| known("relay", &relays[at]));
        first.mode = Some(mode);
        second.peer.address = router.address.into();
        let path = Path::new(vec![first], &direct(), &client).expect("a path");
        let top = Hop::new(second, 1, Arc::new(path.clone()), &client).expect("a hop");
        Self {
            router,
            path,
            top,
            _relays: relays,
        }
    }

    /// A megabyte each way.
    async fn move_bytes(&self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let target = listener.local_addr().expect("bound").into();
        let echo = async {
            let (mut socket, _) = listener.accept().await.expect("accepted");
            let (mut from, mut to) = socket.split();
            tokio::io::copy(&mut from, &mut to).await.expect("echoed");
        };
        let ask = async {
            let terms = Terms::default().within(Duration::from_secs(60));
            let stream = self.top.open_stream(&target, &terms).await;
            let (mut from, mut to) = tokio::io::split(stream.expect("opened"));
            let give = async {
                to.write_all(&vec![7; 1 << 20]).await.expect("taken");
                to.shutdown().await.expect("ended");
            };
            let mut back = Vec::new();
            let take = from.read_to_end(&mut back);
            let (taken, ()) = tokio::join!(take, give);
            taken.expect("received");
            assert!(back.len() == 1 << 20 && back.iter().all(|byte| *byte == 7));
        };
        soon(async { tokio::join!(echo, ask) }).await;
    }
}

/// Marks pass from the first packet on, in both directions, and stay: neither end gave them up.
async fn a_connection_through_a_relay_bears_marks(mode: Mode) -> Passed {
    let paired = Paired::new(mode).await;
    paired.move_bytes().await;
    for (way, marks) in [
        ("up", &paired.router.seen.up),
        ("down", &paired.router.seen.down),
    ] {
        let (capable, others) = marks.take();
        assert!(
            capable > 500 && others * 20 < capable,
            "{way}: {capable} can be marked, {others} cannot"
        );
    }
    // What is marked is what was marked: who loses no packet may only be told so.
    paired.router.seen.marks.store(true, SeqCst);
    paired.move_bytes().await;
    for marks in [&paired.router.seen.up, &paired.router.seen.down] {
        let (capable, others) = marks.take();
        assert!(
            capable > 500 && others * 20 < capable,
            "{capable}, {others}"
        );
    }
    paired.path.hops()[0].passed()
}

#[tokio::test]
async fn a_connection_through_a_tunnel_bears_marks() {
    let passed = a_connection_through_a_relay_bears_marks(Mode::Tunnelled).await;
    assert_eq!((passed.forwarded_sent, passed.forwarded_received), (0, 0));
}

#[tokio::test]
async fn a_connection_that_is_forwarded_bears_marks() {
    let passed = a_connection_through_a_relay_bears_marks(Mode::Auto).await;
    let forwarded = passed.forwarded_sent.min(passed.forwarded_received);
    assert!(forwarded > 500, "{passed:?}");
}
