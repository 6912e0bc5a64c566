//! Endpoints on sockets in memory that say what they were given, and take it or not.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    io::{self, IoSliceMut},
    mem,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use hoplite_crypto::provider;
use hoplite_wire::tuning::{Congestion, TuningGrant, TuningRequest};
use parking_lot::Mutex;
use quinn_proto::{
    ClientConfig, ConnectError, ConnectionError, EndpointConfig, ServerConfig, TransportConfig,
};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit};
use tokio::{
    sync::Notify,
    time::{Sleep, sleep, sleep_until, timeout},
};

use super::{
    AsyncUdpSocket, Connection, Endpoint, SendStream, SharedBudget, UdpSocket, WhenBlocked,
    WindowBounds, now,
};
use crate::{
    ConnectionController, Hooks,
    coalesce::{MOST_BYTES, MOST_SEGMENTS},
    tests::pair::configs,
    timer::Timers,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 443))
}

/// Who is at which address.
#[derive(Default)]
struct Network(Mutex<Vec<(SocketAddr, Arc<Inbox>)>>);

/// When it is there, from whom, how large its packets are and what mark they bear.
type Batch = (Instant, SocketAddr, Vec<u8>, Form);
type Form = (usize, Option<EcnCodepoint>);

#[derive(Default)]
struct Inbox {
    arrived: Mutex<VecDeque<Batch>>,
    path: Mutex<Path>,
    timer: Mutex<Option<Pin<Box<Sleep>>>>,
    reader: AtomicWaker,
}

/// What becomes of packets on their way to an inbox; by default nothing.
#[derive(Default)]
struct Path {
    delay: Duration,
    /// Bytes a second, and how long a packet waits for its turn at most: what would wait for longer is lost.
    rate: Option<(u32, Duration)>,
    free: Option<Instant>,
    packets: usize,
    /// Of these packets every other one is lost.
    every_other: std::ops::Range<usize>,
}

impl Path {
    /// When a packet arrives, if it does.
    fn arrival(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        self.packets += 1;
        let free = self.free.unwrap_or(now).max(now);
        let (rate, queue) = self.rate.unwrap_or((u32::MAX, Duration::MAX));
        let is_lost = self.every_other.contains(&self.packets) && self.packets.is_multiple_of(2);
        if is_lost || free - now > queue {
            return None;
        }
        let bytes = u32::try_from(bytes).expect("small");
        let sent = free + Duration::from_secs(1) * bytes / rate;
        self.free = Some(sent);
        Some(sent + self.delay)
    }
}

impl Inbox {
    fn send(&self, from: SocketAddr, contents: &[u8], (segment, mark): Form) {
        let mut path = self.path.lock();
        let (now, mut arrived) = (now(), self.arrived.lock());
        for packet in contents.chunks(segment) {
            let Some(at) = path.arrival(packet.len(), now) else {
                continue;
            };
            match arrived.back_mut() {
                Some((last, _, batch, form))
                    if *last == at
                        && *form == (packet.len(), mark)
                        && batch.len() < MOST_BYTES / 2 =>
                {
                    batch.extend_from_slice(packet);
                }
                _ => arrived.push_back((at, from, packet.to_vec(), (packet.len(), mark))),
            }
        }
        self.reader.wake();
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<(SocketAddr, Vec<u8>, Form)> {
        self.reader.register(cx.waker());
        let mut arrived = self.arrived.lock();
        let Some((at, ..)) = arrived.front() else {
            return Poll::Pending;
        };
        if *at > now() {
            let mut timer = Box::pin(sleep_until((*at).into()));
            let late = timer.as_mut().poll(cx);
            *self.timer.lock() = Some(timer);
            ready!(late);
        }
        match arrived.pop_front() {
            Some((_, from, contents, form)) => Poll::Ready((from, contents, form)),
            None => Poll::Pending,
        }
    }
}

/// A socket that writes down how many packets each call brought, and to whom.
struct Line {
    network: Arc<Network>,
    address: SocketAddr,
    inbox: Arc<Inbox>,
    calls: Mutex<Vec<(SocketAddr, usize)>>,
    marks: Mutex<Vec<Option<EcnCodepoint>>>,
    is_shut: AtomicBool,
    writer: Mutex<Option<Waker>>,
}

impl Line {
    fn new(network: &Arc<Network>, n: u8) -> Arc<Self> {
        let (inbox, address) = (Arc::<Inbox>::default(), address(n));
        network.0.lock().push((address, Arc::clone(&inbox)));
        Arc::new(Self {
            network: Arc::clone(network),
            address,
            inbox,
            calls: Mutex::default(),
            marks: Mutex::default(),
            is_shut: AtomicBool::new(false),
            writer: Mutex::default(),
        })
    }

    fn shut(&self, is_shut: bool) {
        self.is_shut.store(is_shut, Ordering::Relaxed);
        if let Some(writer) = self.writer.lock().take() {
            writer.wake();
        }
    }

    fn calls(&self) -> Vec<(SocketAddr, usize)> {
        mem::take(&mut self.calls.lock())
    }
}

impl AsyncUdpSocket for Line {
    fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<()>> {
        if self.is_shut.load(Ordering::Relaxed) {
            *self.writer.lock() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        let count = transmit.contents.len().div_ceil(segment);
        self.calls.lock().push((transmit.destination, count));
        self.marks.lock().push(transmit.ecn);
        let nodes = self.network.0.lock();
        let there = nodes.iter().rev();
        for (_, inbox) in there.filter(|(at, _)| *at == transmit.destination).take(1) {
            inbox.send(self.address, transmit.contents, (segment, transmit.ecn));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let (addr, contents, (stride, ecn)) = ready!(self.inbox.poll_next(cx));
        buffers[0][..contents.len()].copy_from_slice(&contents);
        metas[0] = RecvMeta {
            addr,
            len: contents.len(),
            stride,
            ecn,
            ..RecvMeta::default()
        };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn max_transmit_segments(&self) -> usize {
        MOST_SEGMENTS
    }

    fn max_receive_segments(&self) -> usize {
        MOST_SEGMENTS
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Line")
    }
}

/// A server, and clients of it.
struct World {
    network: Arc<Network>,
    server: Endpoint,
    line: Arc<Line>,
    client: ClientConfig,
}

impl World {
    fn new() -> Self {
        Self::with(Transport::Usual)
    }

    fn with(transport: Transport) -> Self {
        provider();
        let network = Arc::<Network>::default();
        let (client, server) = transport.configs();
        let line = Line::new(&network, 1);
        let server = endpoint(&line, Some(server));
        Self {
            network,
            server,
            line,
            client,
        }
    }

    /// Client number `n`, and both ends of its connection.
    async fn dial(&self, n: u8) -> (Endpoint, Arc<Line>, Connection, Connection) {
        self.dial_from(Line::new(&self.network, n)).await
    }

    async fn dial_from(&self, line: Arc<Line>) -> (Endpoint, Arc<Line>, Connection, Connection) {
        let client = endpoint(&line, None);
        let connecting = client.connect_with(self.client.clone(), address(1), "relay.example");
        let accepted = async { self.server.accept().await.unwrap().await.unwrap() };
        let (near, far) = tokio::join!(connecting.unwrap(), accepted);
        (client, line, near.unwrap(), far)
    }
}

/// How both ends of a connection are configured.
#[derive(Clone, Copy)]
enum Transport {
    /// Without congestion control to speak of.
    Usual,
    /// With the stack's own.
    Controlled,
    /// With a window of this many bytes for each stream, and one for all; and as our ends are steered, without congestion control.
    Windows(u32, u32),
}

impl Transport {
    fn configs(self) -> (ClientConfig, ServerConfig) {
        let Self::Windows(stream, all) = self else {
            let (mut near, mut far) = configs(&Hooks::default(), &Hooks::default(), None);
            if matches!(self, Self::Controlled) {
                let controlled = Arc::new(TransportConfig::default());
                near.transport_config(Arc::clone(&controlled));
                far.transport_config(controlled);
            }
            return (near, far);
        };
        let request = TuningRequest {
            congestion: Congestion::Off,
            ..TuningRequest::default()
        };
        let client = ConnectionController::client(request, 1000);
        let relay = ConnectionController::relay(TuningGrant::default(), 1000);
        let relay = relay.insisting(Congestion::Off);
        let hooks = Hooks {
            clock: now,
            window: Some(all.into()),
            ..Hooks::default()
        };
        let (mut near, mut far) = configs(&client.hooks(&hooks), &relay.hooks(&hooks), None);
        let transport = |controller: &ConnectionController| {
            let mut transport = TransportConfig::default();
            transport
                .stream_receive_window(stream.into())
                .receive_window(all.into())
                .send_window(1 << 40);
            controller.configure_transport(&mut transport);
            Arc::new(transport)
        };
        near.transport_config(transport(&client));
        far.transport_config(transport(&relay));
        (near, far)
    }
}

fn endpoint(line: &Arc<Line>, server: Option<ServerConfig>) -> Endpoint {
    let line: Arc<dyn AsyncUdpSocket> = Arc::clone(line) as _;
    Endpoint::with_socket(EndpointConfig::default(), server, line, Timers::Exact).unwrap()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("it hangs")
}

#[tokio::test(start_paused = true)]
async fn all_that_was_written_before_the_task_runs_leaves_in_batches_as_long_as_the_kernel_takes() {
    let world = World::new();
    let (_client, line, near, _far) = world.dial(2).await;
    sleep(Duration::from_secs(1)).await;
    line.calls();
    for _ in 0..100 {
        near.send_datagram(Bytes::from(vec![7; 1200])).unwrap();
    }
    sleep(Duration::from_millis(1)).await;
    let batches: Vec<_> = line.calls().into_iter().map(|(_, count)| count).collect();
    // 65,507 bytes hold 45 packets of 1452.
    assert!(
        batches.len() <= 4 && batches.iter().sum::<usize>() >= 84,
        "{batches:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn packets_bear_a_mark_while_their_sender_slows_down_for_one() {
    for (transport, mark) in [
        (Transport::Controlled, Some(EcnCodepoint::Ect0)),
        (WINDOWS, None),
    ] {
        let world = World::with(transport);
        let (_client, line, near, far) = world.dial(2).await;
        sleep(Duration::from_secs(1)).await;
        line.marks.lock().clear();
        let mut stream = near.open_uni().await.unwrap();
        stream.write_all(&[7; 100_000]).await.unwrap();
        let mut reader = soon(far.accept_uni()).await.unwrap();
        soon(reader.read_exact(&mut [0; 100_000])).await.unwrap();
        let marks = mem::take(&mut *line.marks.lock());
        let all = marks.iter().all(|bears| *bears == mark);
        assert!(all && !marks.is_empty(), "{mark:?}: {marks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_socket_takes_nothing_what_arrives_is_read_and_what_is_sent_waits() {
    let world = World::new();
    let (_client, line, near, far) = world.dial(2).await;
    line.shut(true);
    let mut out = near.open_uni().await.unwrap();
    out.write_all(b"up").await.unwrap();
    far.send_datagram(Bytes::from_static(b"down")).unwrap();
    assert_eq!(soon(near.read_datagram()).await.unwrap(), "down");
    let arrived = async { far.accept_uni().await.unwrap().read_to_end(9).await };
    assert!(timeout(Duration::from_millis(100), arrived).await.is_err());
    line.shut(false);
    out.finish().unwrap();
    let mut arrived = soon(far.accept_uni()).await;
    if let Ok(stream) = &mut arrived {
        assert_eq!(soon(stream.read_to_end(9)).await.unwrap(), b"up");
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_much_to_send_leaves_others_their_turn() {
    let world = World::new();
    let (_one, _, _near, bulk) = world.dial(2).await;
    let (_two, _, _other, quiet) = world.dial(3).await;
    sleep(Duration::from_secs(1)).await;
    world.line.calls();
    for _ in 0..1000 {
        bulk.send_datagram(Bytes::from(vec![7; 1200])).unwrap();
    }
    quiet.send_datagram(Bytes::from_static(b"mine")).unwrap();
    sleep(Duration::from_millis(1)).await;
    let calls = world.line.calls();
    let before = calls.iter().take_while(|(to, _)| *to == address(2));
    assert!(before.count() <= 1, "{calls:?}");
    assert!(calls.len() > 10, "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_nobody_wants_is_refused_and_one_that_is_ignored_hears_nothing() {
    let world = World::new();
    let line = Line::new(&world.network, 2);
    let client = endpoint(&line, None);
    let dial = || client.connect_with(world.client.clone(), address(1), "relay.example");
    let refused = async { drop(world.server.accept().await.unwrap()) };
    let (dialled, ()) = soon(async { tokio::join!(dial().unwrap(), refused) }).await;
    assert!(
        matches!(dialled, Err(ConnectionError::ConnectionClosed(_))),
        "{dialled:?}"
    );
    let ignored = async { world.server.accept().await.unwrap().ignore() };
    let both = async { tokio::join!(dial().unwrap(), ignored) };
    assert!(timeout(Duration::from_millis(500), both).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_closes_refuses_those_that_wait_and_those_that_come() {
    let world = World::new();
    let client = endpoint(&Line::new(&world.network, 2), None);
    let dial = || client.connect_with(world.client.clone(), address(1), "relay.example");
    let waits = dial().unwrap();
    sleep(Duration::from_millis(1)).await;
    world.server.close(0_u32.into(), b"");
    let refused = |dialled| matches!(dialled, Err(ConnectionError::ConnectionClosed(_)));
    // Before they ask again.
    let at_once = Duration::from_millis(100);
    assert!(refused(timeout(at_once, waits).await.unwrap()));
    assert!(refused(timeout(at_once, dial().unwrap()).await.unwrap()));
    assert!(soon(world.server.accept()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_moves_hears_the_old_socket_until_the_new_one_has_heard_something() {
    let world = World::new();
    let (client, _old, near, far) = world.dial(2).await;
    let new = Line::new(&world.network, 3);
    // The peer does not hear of it yet.
    new.shut(true);
    client.move_to(Arc::clone(&new) as _).unwrap();
    far.send_datagram(Bytes::from_static(b"to the old"))
        .unwrap();
    assert_eq!(soon(near.read_datagram()).await.unwrap(), "to the old");
    new.shut(false);
    near.send_datagram(Bytes::from_static(b"from the new"))
        .unwrap();
    assert_eq!(soon(far.read_datagram()).await.unwrap(), "from the new");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(far.remote_address(), address(3));
}

/// A socket of the system's for one end of a path, as a NAT makes one: whatever it sends goes to `far`, and nothing comes but from there.
struct Towards {
    socket: UdpSocket,
    far: SocketAddr,
    /// The packet that it has sent last.
    last: Mutex<Vec<u8>>,
}

impl Towards {
    fn new(near: &str, far: SocketAddr) -> Arc<Self> {
        let socket = std::net::UdpSocket::bind(near).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = UdpSocket::new(socket).unwrap();
        Arc::new(Self {
            socket,
            far,
            last: Mutex::default(),
        })
    }
}

impl AsyncUdpSocket for Towards {
    fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<()>> {
        let destination = self.far;
        let all = transmit.contents.len();
        let size = transmit.segment_size.map_or(all, |size| size.min(all));
        *self.last.lock() = transmit.contents[..size].to_vec();
        self.socket.poll_send(
            cx,
            &Transmit {
                destination,
                ..*transmit
            },
        )
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.socket.poll_recv(cx, buffers, metas))?;
        for meta in metas.iter_mut().take(count) {
            if meta.addr == self.far {
                meta.addr = address(1);
            } else {
                meta.len = 0;
            }
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

impl fmt::Debug for Towards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Towards")
    }
}

/// A server that has several addresses, and listens for both versions of IP by one socket; and a connection to 127.0.0.2.
struct Several {
    port: u16,
    _server: Endpoint,
    client: Endpoint,
    line: Arc<Towards>,
    near: Connection,
    far: Connection,
}

impl Several {
    async fn new() -> Self {
        provider();
        let (client, server) = configs(&Hooks::default(), &Hooks::default(), None);
        let listener = Towards::new("[::]:0", address(9));
        let port = listener.local_addr().unwrap().port();
        let listener = Arc::new(Arc::into_inner(listener).unwrap().socket);
        let config = EndpointConfig::default();
        let server = Endpoint::with_socket(config, Some(server), listener, Timers::Exact).unwrap();
        let line = Towards::new("127.0.0.1:0", SocketAddr::from(([127, 0, 0, 2], port)));
        let (config, socket) = (EndpointConfig::default(), Arc::clone(&line) as _);
        let end = Endpoint::with_socket(config, None, socket, Timers::Exact).unwrap();
        let dialled = end.connect_with(client, address(1), "relay.example");
        let accepted = async { server.accept().await.unwrap().await.unwrap() };
        let (near, far) = soon(async { tokio::join!(dialled.unwrap(), accepted) }).await;
        Self {
            port,
            _server: server,
            client: end,
            line,
            near: near.unwrap(),
            far,
        }
    }

    fn answers_from(&self) -> Option<IpAddr> {
        self.far.local_ip().map(|ip| ip.to_canonical())
    }

    async fn ask(&self) {
        self.near
            .send_datagram(Bytes::from_static(b"asks"))
            .unwrap();
        soon(self.far.read_datagram()).await.unwrap();
    }

    async fn answer(&self) {
        self.far
            .send_datagram(Bytes::from_static(b"is answered"))
            .unwrap();
        soon(self.near.read_datagram()).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_moves_from_one_version_of_ip_to_the_other_is_answered_from_where_it_asks() {
    let several = Several::new().await;
    let v6 = format!("[::1]:{}", several.port).parse().unwrap();
    let v4 = several.line.far;
    for line in [Towards::new("[::1]:0", v6), Towards::new("127.0.0.1:0", v4)] {
        several.client.move_to(Arc::clone(&line) as _).unwrap();
        several.ask().await;
        assert_eq!(several.answers_from(), Some(line.far.ip()));
        several.answer().await;
    }
}

/// Of a stranger who has seen an id of the connection.
#[tokio::test]
async fn a_packet_that_is_not_the_clients_does_not_change_where_it_is_answered_from() {
    let several = Several::new().await;
    several.ask().await;
    several.answer().await;
    let come = || several.far.stats().udp_rx.datagrams;
    // Nothing else is on its way.
    let mut before = 0;
    while before != come() {
        before = come();
        sleep(Duration::from_millis(200)).await;
    }
    let mut forged = several.line.last.lock().clone();
    *forged.last_mut().unwrap() ^= 1;
    let transmit = Transmit {
        destination: SocketAddr::from(([127, 0, 0, 3], several.port)),
        ecn: None,
        contents: &forged,
        segment_size: None,
        src_ip: None,
    };
    let sent = poll_fn(|cx| several.line.socket.poll_send(cx, &transmit)).await;
    sent.unwrap();
    soon(async {
        while come() == before {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(several.answers_from(), Some(several.line.far.ip()));
    several.answer().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_closes_a_connection_and_the_task_ends_with_the_last_connection() {
    let world = World::new();
    let (client, line, near, far) = world.dial(2).await;
    let watched = Arc::downgrade(&line);
    drop((client, line));
    assert!(watched.upgrade().is_some());
    drop(near);
    assert!(matches!(
        soon(far.closed()).await,
        ConnectionError::ApplicationClosed(_)
    ));
    sleep(PATIENCE).await;
    // The network keeps the inbox alone.
    assert!(watched.upgrade().is_none());
    assert_eq!(world.server.open_connections(), 0);
    soon(world.server.wait_idle()).await;
}

#[test]
fn whoever_waits_hears_that_the_runtime_has_ended() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap()
    };
    let (other, ends) = (runtime(), runtime());
    let (world, (client, _line, near, far)) = ends.block_on(async {
        let world = World::new();
        let dialled = world.dial(2).await;
        (world, dialled)
    });
    drop(ends);
    other.block_on(async {
        let lost = |error: &ConnectionError| matches!(error, ConnectionError::TransportError(_));
        assert!(lost(&soon(near.closed()).await));
        assert!(lost(&soon(far.accept_uni()).await.unwrap_err()));
        assert!(soon(world.server.accept()).await.is_none());
        soon(client.wait_idle()).await;
        let again = client.connect_with(world.client.clone(), address(1), "relay.example");
        assert!(matches!(again, Err(ConnectError::EndpointStopping)));
    });
}

#[tokio::test(start_paused = true)]
async fn a_connection_at_rest_wakes_nobody() {
    let world = World::new();
    let (_client, line, _near, _far) = world.dial(2).await;
    sleep(Duration::from_secs(5)).await;
    line.calls();
    world.line.calls();
    let began = tokio::time::Instant::now();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(began.elapsed(), Duration::from_secs(10));
    assert!(line.calls().is_empty() && world.line.calls().is_empty());
}

const MIB: u64 = 1 << 20;
/// As a link has them, on a path of 200 Mbit/s and 200 ms: 5 MB are on their way.
const WINDOWS: Transport = Transport::Windows(32 << 20, 1 << 20);
const BOUNDS: WindowBounds = WindowBounds {
    receive: (MIB, 64 * MIB),
    send: (1 << 40, 1 << 40),
};
const RATE: u32 = 25_000_000;

async fn fill(mut stream: SendStream) {
    let chunk = Bytes::from(vec![7; 1 << 16]);
    while stream.write_chunk(chunk.clone()).await.is_ok() {}
}

/// A path between two ends that loses nothing: without congestion control a short queue would lose more than half.
async fn long_fat_path(
    world: &World,
    adapts: bool,
) -> (Endpoint, Connection, Connection, SharedBudget) {
    let line = Line::new(&world.network, 2);
    for inbox in [&line.inbox, &world.line.inbox] {
        let mut path = inbox.path.lock();
        path.delay = Duration::from_millis(100);
        path.rate = Some((RATE, Duration::from_secs(10)));
    }
    let (client, _, near, far) = world.dial_from(line).await;
    let budget = SharedBudget::new(64 * MIB);
    if adapts {
        near.adapt_windows(BOUNDS, budget.clone(), WhenBlocked::GiveUp);
    }
    (client, near, far, budget)
}

/// The share of the path that a download has after three seconds.
async fn share_of_path(adapts: bool) -> f64 {
    let world = World::with(WINDOWS);
    let (_client, near, far, _) = long_fat_path(&world, adapts).await;
    tokio::spawn(fill(far.open_uni().await.unwrap()));
    let mut stream = near.accept_uni().await.unwrap();
    let (mut buffer, mut bytes) = (vec![0; 1 << 16], 0);
    let began = now() + Duration::from_secs(3);
    while now() < began + Duration::from_secs(3) {
        let read = stream.read(&mut buffer).await.unwrap().unwrap();
        if now() > began {
            bytes += read;
        }
    }
    bytes as f64 / f64::from(3 * RATE)
}

#[tokio::test(start_paused = true)]
async fn a_long_fat_path_is_filled_by_windows_that_grow() {
    let (fixed, grown) = (share_of_path(false).await, share_of_path(true).await);
    assert!(fixed < 0.3, "{fixed}");
    assert!(grown > 0.8, "{grown}");
}

/// Whatever the stack has made of what came: it may have joined all that its window allows.
#[tokio::test(start_paused = true)]
async fn one_look_takes_64_kib_of_a_stream_at_most() {
    let world = World::new();
    let (_client, _line, near, far) = world.dial(2).await;
    let mut send = near.open_uni().await.unwrap();
    let sending = tokio::spawn(async move {
        send.write_all(&[7; 200_000]).await.unwrap();
        send
    });
    let mut receive = soon(far.accept_uni()).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    let (mut all, mut most) = (0, 0);
    while all < 200_000 {
        let mut pieces = vec![Bytes::new(); 512];
        let count = soon(receive.read_chunks(&mut pieces)).await.unwrap();
        let bytes = pieces[..count.unwrap()].iter().map(Bytes::len).sum();
        (all, most) = (all + bytes, most.max(bytes));
    }
    assert_eq!(most, 65_536);
    drop(sending);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_reads_does_not_stop_the_others() {
    let world = World::with(Transport::Windows(4 << 20, 1 << 20));
    let (_client, near, far, budget) = long_fat_path(&world, true).await;
    tokio::spawn(fill(far.open_uni().await.unwrap()));
    let _unread = near.accept_uni().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    tokio::spawn(fill(far.open_uni().await.unwrap()));
    let mut stream = soon(near.accept_uni()).await.unwrap();
    let mut buffer = vec![0; 10 << 20];
    soon(stream.read_exact(&mut buffer)).await.unwrap();
    assert!(budget.used() <= 31 * MIB, "{}", budget.used());
}

#[tokio::test(start_paused = true)]
async fn streams_that_nobody_reads_are_given_up_when_there_is_no_room_for_the_others() {
    let world = World::with(Transport::Windows(4 << 20, 1 << 20));
    let (_client, near, far, _) = long_fat_path(&world, true).await;
    let download = async || {
        let (mut asks, takes) = near.open_bi().await.unwrap();
        asks.write_all(b"?").await.unwrap();
        let (sends, _) = soon(far.accept_bi()).await.unwrap();
        tokio::spawn(fill(sends));
        (asks, takes)
    };
    // One that ends and one that is reset, whose ends nobody asks for until all is over.
    let answer = async || {
        let (mut asks, takes) = near.open_bi().await.unwrap();
        asks.write_all(b"?").await.unwrap();
        let (mut sends, _) = soon(far.accept_bi()).await.unwrap();
        sends.write_all(b"!").await.unwrap();
        (takes, sends)
    };
    let ((mut ended, mut ends), (mut reset, mut resets)) = (answer().await, answer().await);
    soon(ended.read_exact(&mut [0])).await.unwrap();
    ends.finish().unwrap();
    resets.reset(7_u32.into()).unwrap();
    let mut unread = Vec::new();
    for _ in 0..20 {
        unread.push(download().await);
    }
    // One that is slow, and is read.
    let (_asks, mut slow) = download().await;
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 10];
        for _ in 0..30 {
            sleep(Duration::from_secs(1)).await;
            slow.read_exact(&mut buffer).await.unwrap();
        }
    });
    sleep(Duration::from_secs(5)).await;
    let (_asks, mut stream) = download().await;
    let mut buffer = vec![0; 10 << 20];
    soon(stream.read_exact(&mut buffer)).await.unwrap();
    reading.await.unwrap();
    let mut given_up = 0;
    for (_asks, mut stream) in unread {
        match soon(stream.read(&mut buffer)).await {
            Err(crate::ReadError::GivenUp) => given_up += 1,
            read => drop(read.unwrap().unwrap()),
        }
    }
    assert!((1..20).contains(&given_up), "{given_up}");
    assert_eq!(soon(ended.read(&mut buffer)).await, Ok(None));
    let told = soon(reset.read(&mut buffer)).await;
    assert_eq!(told, Err(crate::ReadError::Reset(7_u32.into())));
}

#[tokio::test(start_paused = true)]
async fn where_somebody_is_told_which_streams_nobody_reads_none_is_given_up() {
    let world = World::with(Transport::Windows(1 << 20, 4 << 20));
    let (_client, near, far, _) = long_fat_path(&world, false).await;
    let told = Arc::new(Notify::new());
    let bounds = WindowBounds {
        receive: (4 * MIB, 4 * MIB),
        ..BOUNDS
    };
    let when_blocked = WhenBlocked::Tell(Arc::clone(&told));
    near.adapt_windows(bounds, SharedBudget::new(0), when_blocked);
    let open = async || {
        tokio::spawn(fill(far.open_uni().await.unwrap()));
        soon(near.accept_uni()).await.unwrap()
    };
    let mut read = open().await;
    let reading = tokio::spawn(async move { read.read_exact(&mut vec![0; 64 << 20]).await });
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(open().await);
    }
    soon(told.notified()).await;
    sleep(Duration::from_secs(10)).await;
    let unread: Vec<_> = streams.iter().map(|stream| stream.id()).collect();
    assert_eq!(near.unread(), unread);
    assert!(!reading.is_finished());
    streams.truncate(2);
    soon(reading).await.unwrap().unwrap();
    for stream in &mut streams {
        assert!(matches!(soon(stream.read(&mut [0])).await, Ok(Some(1))));
    }
}

#[tokio::test(start_paused = true)]
async fn readers_that_take_nothing_hold_no_more_than_windows_and_their_budget() {
    let world = World::with(WINDOWS);
    let (_client, near, far, budget) = long_fat_path(&world, true).await;
    let mut unread = Vec::new();
    for _ in 0..20 {
        tokio::spawn(fill(far.open_uni().await.unwrap()));
    }
    for _ in 0..20 {
        unread.extend(soon(near.accept_uni()).await);
    }
    sleep(PATIENCE / 3).await;
    let received = near.stats().udp_rx.bytes;
    assert!(budget.used() <= 64 * MIB);
    assert!(received < 72 * MIB, "{received}");
    assert!(near.close_reason().is_none());
}

/// Two bytes of a stream, each in a large packet.
async fn drip(connection: &Connection) -> SendStream {
    let mut writer = connection.open_uni().await.unwrap();
    for _ in 0..2 {
        writer.write_all(b"!").await.unwrap();
        connection
            .send_datagram(Bytes::from(vec![7; 1100]))
            .unwrap();
        sleep(Duration::from_millis(1)).await;
    }
    writer
}

#[tokio::test(start_paused = true)]
async fn single_bytes_in_large_packets_hold_no_more_than_a_few_windows() {
    let world = World::with(Transport::Windows(1 << 20, 32 << 10));
    let (_client, near, far, _) = long_fat_path(&world, false).await;
    let mut writers = Vec::new();
    let mut unread = Vec::new();
    for _ in 0..100 {
        writers.push(far.open_uni().await.unwrap());
    }
    for _ in 0..25 {
        for writer in &mut writers {
            writer.write_all(b"!").await.unwrap();
            far.send_datagram(Bytes::from(vec![7; 1100])).unwrap();
            sleep(Duration::from_millis(1)).await;
        }
    }
    for _ in 0..100 {
        unread.push(soon(near.accept_uni()).await.unwrap());
    }
    sleep(Duration::from_secs(1)).await;
    let held = near.held();
    assert!((128 << 10..512 << 10).contains(&held), "{held}");
    // All comes in the end, where it is read.
    for (writer, stream) in writers.iter_mut().zip(&mut unread) {
        writer.finish().unwrap();
        assert_eq!(soon(stream.read_to_end(100)).await.unwrap().len(), 25);
    }
    assert_eq!(near.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_read_goes_on_in_less_than_an_eighth_of_the_window() {
    let world = World::with(Transport::Windows(15 << 20, 16 << 20));
    let (_client, near, far, _) = long_fat_path(&world, false).await;
    near.set_receive_window(16 << 20);
    tokio::spawn(fill(far.open_uni().await.unwrap()));
    let _unread = near.accept_uni().await.unwrap();
    sleep(Duration::from_secs(10)).await;
    tokio::spawn(fill(far.open_uni().await.unwrap()));
    let mut stream = soon(near.accept_uni()).await.unwrap();
    soon(stream.read_exact(&mut vec![0; 10 << 20]))
        .await
        .unwrap();
    sleep(Duration::from_secs(1)).await;
    // The window is what it was.
    let received = near.stats().udp_rx.bytes;
    assert!(received < 28 << 20, "{received}");
    // A narrower one is paid for before the other end is told of more, and then it goes on.
    near.set_receive_window((15 << 20) + (1 << 16));
    soon(stream.read_exact(&mut vec![0; 4 << 20]))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_nobody_read_is_not_kept_until_a_closed_connection_is_forgotten() {
    let world = World::with(Transport::Windows(1 << 20, 1 << 20));
    let (_client, near, far, budget) = long_fat_path(&world, true).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(drip(&far).await);
    }
    let mut stream = soon(near.accept_uni()).await.unwrap();
    let unread = soon(near.accept_uni()).await.unwrap();
    soon(stream.read_exact(&mut [0])).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(near.held() > 3000);
    near.close(7_u32.into(), b"");
    assert_eq!((near.held(), budget.used()), (0, 0));
    let read = stream.read(&mut [0]).await;
    assert_eq!(read, Err(ConnectionError::LocallyClosed.into()));
    drop(unread);
    // Where the other end closes first, what has come can still be read, and what was allowed counts as long.
    let (_client, near, far, budget) = long_fat_path(&world, true).await;
    let _writer = drip(&far).await;
    let mut stream = soon(near.accept_uni()).await.unwrap();
    let mut all = far.open_uni().await.unwrap();
    all.write_all(&[7; 900_000]).await.unwrap();
    let mut wide = soon(near.accept_uni()).await.unwrap();
    soon(wide.read_exact(&mut [0; 800_000])).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(budget.used() > 0);
    far.close(7_u32.into(), b"");
    soon(near.closed()).await;
    near.close(7_u32.into(), b"");
    soon(stream.read_exact(&mut [0; 2])).await.unwrap();
    assert!(budget.used() > 0);
    drop((stream, wide, near));
    sleep(PATIENCE).await;
    assert_eq!(budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_loses_every_other_of_very_many_packets_ends_no_connection() {
    let world = World::with(Transport::Windows(32 << 20, 32 << 20));
    let (_client, near, far, _) = long_fat_path(&world, false).await;
    {
        let nodes = world.network.0.lock();
        let (_, inbox) = nodes.last().unwrap();
        let mut path = inbox.path.lock();
        path.rate = None;
        let next = path.packets + 1000;
        path.every_other = next..next + 12_000;
    }
    tokio::spawn(fill(far.open_uni().await.unwrap()));
    let mut stream = near.accept_uni().await.unwrap();
    let mut buffer = vec![0; 40 << 20];
    soon(stream.read_exact(&mut buffer)).await.unwrap();
}
