//! The SOCKS5 front end: one session for each connection of a program. CONNECT and UDP ASSOCIATE; names stay names;
//! user name and password are the isolation token, whatever they are. RFC 1928, RFC 1929; the codec is `wire::socks`.
//!
//! We do not serve BIND, because no overlay accepts connections at its far end. Where the overlay has UDP sockets there, an association has one:
//! then all its targets see one address, and others may write to it.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::HashMap,
    future::poll_fn,
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use hoplite_overlay::{
    Batch, Bound, Datagrams, Error, ErrorKind, Isolation, Reason, Terms,
    direct::udp::enlarge_buffers,
};
use hoplite_wire::{
    Host, Target,
    ip::UDP,
    socks::{Acceptor, Command, DatagramView, Endpoint, Refusal, Reply, ReplyCode, Request, Step},
};
use parking_lot::Mutex;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::UdpSocket,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use crate::{
    budget::Account,
    copy::copy,
    datagrams::{self, FLOW_FLOOR, HOLD_OFF, ProgramSide, PushOutcome},
    front::ProxyContext,
    program::{LastUse, ProgramConnection},
    users::{Owner, User, UserQueues},
};

/// Serves one program until it or its flow ends.
pub(crate) async fn serve(mut program: ProgramConnection, context: Arc<ProxyContext>) {
    let asked = timeout(context.limits.handshake, handshake(&mut program)).await;
    match asked {
        Ok(Ok(asked)) => Box::pin(asked.serve(program, context)).await,
        Ok(Err(HandshakeError::Refused(refusal))) => refuse(program, &context, refusal).await,
        Ok(Err(HandshakeError::Gone(error))) => tracing::trace!(%error, "a program left"),
        Err(_) => {
            context.counters.malformed.add(1);
            tracing::debug!("a program took too long for its SOCKS handshake");
        }
    }
}

/// Why there is no request.
enum HandshakeError {
    Refused(Refusal),
    Gone(io::Error),
}

/// What a program asked for.
struct ProgramRequest {
    request: Request,
    isolation: Isolation,
    /// What came after the request, before the answer.
    early: Vec<u8>,
}

async fn handshake(program: &mut ProgramConnection) -> Result<ProgramRequest, HandshakeError> {
    let mut acceptor = Acceptor::new();
    loop {
        match acceptor.step().map_err(HandshakeError::Refused)? {
            Step::Read => read(program, &mut acceptor)
                .await
                .map_err(HandshakeError::Gone)?,
            Step::Write(bytes) => program
                .write_all(&bytes)
                .await
                .map_err(HandshakeError::Gone)?,
            Step::Request(request) => {
                let (token, early) = acceptor.into_parts();
                let isolation = token.map(Isolation::new).unwrap_or_default();
                return Ok(ProgramRequest {
                    request,
                    isolation,
                    early,
                });
            }
        }
    }
}

async fn read(program: &mut ProgramConnection, acceptor: &mut Acceptor) -> io::Result<()> {
    let mut input = zeroize::Zeroizing::new([0; 1024]);
    match program.read(&mut *input).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => {
            acceptor.handle_input(input.get(..n).unwrap_or_default());
            Ok(())
        }
    }
}

async fn refuse(mut program: ProgramConnection, context: &ProxyContext, refusal: Refusal) {
    context.counters.malformed.add(1);
    tracing::debug!(%refusal, "a program was refused");
    if program.write_all(&refusal.answer()).await.is_ok() {
        program.close().await;
    }
}

impl ProgramRequest {
    async fn serve(mut self, program: ProgramConnection, context: Arc<ProxyContext>) {
        self.isolation = context.isolation(self.isolation, program.user());
        match self.request.command {
            Command::Connect => self.connect(program, &context).await,
            Command::Associate if context.udp => {
                let announced = self.request.endpoint;
                Box::pin(associate(program, announced, self.isolation, context)).await;
            }
            Command::Associate | Command::Bind => {
                fail(program, ReplyCode::CommandNotSupported).await
            }
        }
    }

    async fn connect(self, mut program: ProgramConnection, context: &ProxyContext) {
        let target = match self.request.endpoint.target() {
            Ok(target) => target,
            Err(error) => return refuse(program, context, Refusal::Target(error)).await,
        };
        let Some(opened) = open(&program, &target, self.isolation, context).await else {
            return;
        };
        let stream = match opened {
            Ok(stream) => stream,
            Err(error) => return fail(program, reply_code(&error)).await,
        };
        let answered = reply(&mut program, ReplyCode::Succeeded, Endpoint::UNSPECIFIED).await;
        if answered.is_ok() {
            let idle = context.limits.idle_stream;
            copy(program, stream, self.early, idle, &context.counters).await;
        }
    }
}

/// Opens the flow, unless the program leaves before it is open.
async fn open(
    program: &ProgramConnection,
    target: &Target,
    isolation: Isolation,
    context: &ProxyContext,
) -> Option<Result<hoplite_overlay::Stream, Error>> {
    let peer = program.peer_addr().ok();
    tokio::select! {
        opened = context.open_stream(target, isolation, peer) => Some(opened),
        () = program.gone() => None,
    }
}

async fn fail(mut program: ProgramConnection, code: ReplyCode) {
    if reply(&mut program, code, Endpoint::UNSPECIFIED)
        .await
        .is_ok()
    {
        program.close().await;
    }
}

async fn reply(
    program: &mut ProgramConnection,
    code: ReplyCode,
    bound: Endpoint,
) -> io::Result<()> {
    let mut out = Vec::with_capacity(22);
    Reply { code, bound }.emit(&mut out);
    program.write_all(&out).await
}

/// What a failure is called; the table is in the crate's documentation.
fn reply_code(error: &Error) -> ReplyCode {
    match (error.kind(), error.reason()) {
        (ErrorKind::EntryUnreachable, _) => ReplyCode::NetworkUnreachable,
        (ErrorKind::TargetFailed, Some(Reason::Refused)) => ReplyCode::ConnectionRefused,
        (ErrorKind::TargetFailed, Some(Reason::NetworkUnreachable)) => {
            ReplyCode::NetworkUnreachable
        }
        (ErrorKind::TargetFailed, _) => ReplyCode::HostUnreachable,
        (ErrorKind::Forbidden, _) => ReplyCode::NotAllowed,
        (ErrorKind::TimedOut, _) => ReplyCode::TtlExpired,
        (ErrorKind::Unsupported, _) => ReplyCode::CommandNotSupported,
        (ErrorKind::PathFailed | ErrorKind::Bug, _) => ReplyCode::GeneralFailure,
    }
}

/// How many receive calls are made before other tasks have their turn.
const RECEIVE_BUDGET: usize = 16;

/// Serves one association.
async fn associate(
    mut program: ProgramConnection,
    announced: Endpoint,
    isolation: Isolation,
    context: Arc<ProxyContext>,
) {
    let mut association = match Association::new(&program, &announced, isolation, &context).await {
        Ok(association) => association,
        Err(error) => {
            tracing::warn!(%error, "no socket for a UDP association: raise the limit of open files (ulimit -n)");
            return fail(program, ReplyCode::GeneralFailure).await;
        }
    };
    let Ok(bound) = association.socket.local_addr() else {
        return fail(program, ReplyCode::GeneralFailure).await;
    };
    if reply(&mut program, ReplyCode::Succeeded, bound.into())
        .await
        .is_err()
    {
        return;
    }
    context.counters.associations.add(1);
    tokio::select! {
        error = association.run() => tracing::debug!(%error, "an association's socket failed"),
        // "A UDP association terminates when the TCP connection that the UDP ASSOCIATE request arrived on terminates."
        () = program.closed() => {}
    }
    program.close().await;
}

/// UDP ASSOCIATE (RFC 1928 §4, §6, §7): a socket for one program, and a flow for each target that it sends to, until the program closes its
/// TCP connection. Only the program's own datagrams are taken: from the address of its TCP connection, and from the port that it announced, or
/// the first that it sends from: where the kernel tells whose sockets are, of the same user as the connection.
struct Association {
    context: Arc<ProxyContext>,
    socket: Arc<Socket>,
    isolation: Isolation,
    far: Arc<FarSocket>,
    /// The address of the program's TCP connection, and whose that is.
    peer: IpAddr,
    user: User,
    /// Who has opened it, where the kernel tells whose a socket is.
    owner: Option<Owner>,
    /// Of that connection: the program's datagrams alone are a use of it.
    last_use: LastUse,
    /// The port that the program sends from, once it is known.
    port: Option<u16>,
    /// By the header of the datagrams: at most `limits.datagram_flows`, the least recently used is evicted.
    flows: HashMap<Box<[u8]>, Arc<FlowEntry>>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct FlowEntry {
    sender: FlowSender,
    task: AbortHandle,
}

impl FlowEntry {
    fn is_over(&self) -> bool {
        self.sender.is_over()
    }

    /// Its memory is free at once.
    fn end(&self) {
        self.sender.end();
        self.task.abort();
    }
}

/// How many flows of a user are looked at when one has to be evicted.
const CANDIDATES: usize = 8;

/// The flows of all associations, by user: when there is no memory for a further one, one of another association may have to end. Each is in it
/// once; some are over.
#[derive(Debug, Default)]
pub(crate) struct SharedFlows(Mutex<UserQueues<Weak<FlowEntry>>>);

impl SharedFlows {
    /// `all` are the flows that there are, more or less: when twice as many are known, those that are over are forgotten.
    fn add(&self, user: User, flow: &Arc<FlowEntry>, all: usize) {
        let mut flows = self.0.lock();
        let is_there = |flow: Arc<FlowEntry>| !flow.is_over();
        flows.tidy(all.saturating_mul(2), |known| {
            known.upgrade().is_some_and(is_there)
        });
        flows.push(user, Arc::downgrade(flow));
    }

    /// Of the user's next few flows the one ends whose eviction weight is largest.
    fn evict(&self, user: User, now: Instant) {
        let mut flows = self.0.lock();
        let weight = |known: &Weak<FlowEntry>| known.upgrade()?.sender.eviction_weight(now);
        loop {
            // Those that are over come first.
            let next = flows.next(user).take(CANDIDATES).enumerate();
            let Some((at, _)) = next.min_by_key(|(_, known)| weight(known).map(Reverse)) else {
                return;
            };
            let flow = flows.take(user, at).and_then(|known| known.upgrade());
            if let Some(flow) = flow.filter(|flow| !flow.is_over()) {
                return flow.end();
            }
        }
    }
}

impl Association {
    async fn new(
        program: &ProgramConnection,
        announced: &Endpoint,
        isolation: Isolation,
        context: &Arc<ProxyContext>,
    ) -> io::Result<Self> {
        let (from, at) = (program.peer_addr()?, program.local_addr()?);
        let peer = from.ip().to_canonical();
        let socket = Socket::bind(at).await?;
        let user = program.user();
        // A kernel that tells nothing of UDP does not tell of this one either.
        let tells = context.user(UDP, socket.local_addr()?, from).is_some();
        let is_told = |owner: &Owner| tells && matches!(owner, Owner::Uid(_));
        Ok(Self {
            context: Arc::clone(context),
            socket: Arc::new(socket),
            isolation,
            far: Arc::default(),
            peer,
            user,
            owner: Some(user.owner).filter(is_told),
            last_use: program.last_use(),
            port: announced_port(announced, peer),
            flows: HashMap::new(),
            tasks: JoinSet::new(),
        })
    }

    async fn run(&mut self) -> io::Error {
        let socket = Arc::clone(&self.socket);
        poll_fn(|cx| {
            let now = Instant::now();
            for _ in 0..RECEIVE_BUDGET {
                let turn = with_scratch(|scratch| {
                    socket.poll_recv(cx, scratch, |received| self.take(&received, now))
                });
                match turn {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(error),
                    Poll::Pending => return Poll::Pending,
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    fn take(&mut self, received: &ReceivedDatagram<'_>, now: Instant) {
        if self.forward(received, now).is_none() {
            self.context.counters.datagrams_dropped.add(1);
        }
    }

    /// Queues one datagram; `None` drops it.
    fn forward(&mut self, received: &ReceivedDatagram<'_>, now: Instant) -> Option<()> {
        if !self.is_ours(received.source) {
            return None;
        }
        let view = DatagramView::parse(received.datagram).ok()?;
        // "[...] MUST drop any datagram whose FRAG field is other than X'00'"
        if view.fragment != 0 {
            return None;
        }
        let known = self.flows.get(view.header);
        if known.is_none_or(|flow| flow.is_over()) {
            self.open(&view, received.source, now)?;
        }
        self.port = Some(received.source.port());
        self.last_use.touch();
        let sender = &self.flows.get(view.header)?.sender;
        let contents = view.payload;
        let segment = contents.len().max(1);
        let outcome = sender.push(Batch { contents, segment }, now);
        (outcome == PushOutcome::Dropped(0)).then_some(())
    }

    fn is_ours(&self, source: SocketAddr) -> bool {
        source.ip().to_canonical() == self.peer
            && match self.port {
                Some(port) => port == source.port(),
                None => self.is_of_the_same_user(source),
            }
    }

    /// Whether who has opened the TCP connection sends from there; true where nobody can tell.
    fn is_of_the_same_user(&self, source: SocketAddr) -> bool {
        let sends = || {
            let at = self.socket.local_addr().ok()?;
            self.context.user(UDP, source, at).map(|user| user.owner)
        };
        self.owner.is_none_or(|owner| sends() == Some(owner))
    }

    fn open(&mut self, view: &DatagramView<'_>, program: SocketAddr, now: Instant) -> Option<()> {
        let target = view.endpoint.endpoint().ok()?.target().ok()?;
        self.evict();
        let account = self.account(&target).or_else(|| {
            self.free_memory(now);
            self.account(&target)
        })?;
        let sender = FlowSender::new(account);
        let flow = AssociationFlow {
            context: Arc::clone(&self.context),
            socket: Arc::clone(&self.socket),
            far: Arc::clone(&self.far),
            program,
            header: view.header.into(),
            sender: sender.clone(),
        };
        let task = self.tasks.spawn(flow.run(target, self.isolation.clone()));
        let flow = Arc::new(FlowEntry { sender, task });
        let all = self.context.datagram_memory.flows();
        self.context.datagram_flows.add(self.user, &flow, all);
        self.flows.insert(view.header.into(), flow);
        Some(())
    }

    fn account(&self, target: &Target) -> Option<Account> {
        let memory = &self.context.datagram_memory;
        memory.open(self.user, target.host.clone(), FLOW_FLOOR)
    }

    /// Forgets the flows that are over; when that does not help, the one that was used least lately.
    fn evict(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        if self.flows.len() < self.context.limits.datagram_flows {
            return;
        }
        self.flows.retain(|_, flow| !flow.is_over());
        if self.flows.len() >= self.context.limits.datagram_flows {
            self.end_oldest();
        }
    }

    /// A flow ends of the user that has most; where that is the program's own, the one of this association that was used least lately.
    fn free_memory(&mut self, now: Instant) {
        let Some(victim) = self.context.datagram_memory.victim(self.user) else {
            return;
        };
        self.flows.retain(|_, flow| !flow.is_over());
        if victim == self.user && !self.flows.is_empty() {
            self.end_oldest();
        } else {
            self.context.datagram_flows.evict(victim, now);
        }
    }

    fn end_oldest(&mut self) {
        let flows = self.flows.iter();
        let oldest = flows.min_by_key(|(_, flow)| flow.sender.used());
        let Some(header) = oldest.map(|(header, _)| header.clone()) else {
            return;
        };
        if let Some(flow) = self.flows.remove(&header) {
            flow.end();
        }
    }
}

/// The port that the program says it will send from. Some programs announce their target instead: that is no source.
fn announced_port(announced: &Endpoint, peer: IpAddr) -> Option<u16> {
    match announced.host {
        Host::Ip(ip) if ip == peer || ip.is_unspecified() => {
            Some(announced.port).filter(|port| *port != 0)
        }
        _ => None,
    }
}

/// The end of a flow that the association holds. A program is not told why its flow failed.
type FlowSender = datagrams::FlowSender<()>;

/// One UDP flow of an association, from a program to one target: opens, then moves datagrams both ways until it is idle, fails, or the
/// association ends. Each runs in a task of its own, so that a slow one holds up nobody.
struct AssociationFlow {
    context: Arc<ProxyContext>,
    socket: Arc<Socket>,
    far: Arc<FarSocket>,
    /// Where the program receives.
    program: SocketAddr,
    /// Stands in front of every answer: the target in the very form in which it was asked for.
    header: Box<[u8]>,
    sender: FlowSender,
}

impl AssociationFlow {
    /// Runs until it is over; then its slot may be given to another.
    async fn run(self, target: Target, isolation: Isolation) {
        match self.open(&target, isolation).await {
            Ok(datagrams) => {
                self.context.counters.datagram_flows.add(1);
                if datagrams::pump_datagrams(&self, &*datagrams).await.is_ok() {
                    return;
                }
            }
            Err(error) => self.context.counters.failed(&error),
        }
        let lost = self.sender.fail(());
        self.context.counters.datagrams_dropped.add(lost);
        sleep(HOLD_OFF).await;
    }

    async fn open(
        &self,
        target: &Target,
        isolation: Isolation,
    ) -> Result<Box<dyn Datagrams>, Error> {
        let terms = self.context.terms(isolation);
        if let Some(socket) = self.far.socket(self, &terms).await?
            && let Some(peer) = self.peer(&*socket, target, &terms).await
        {
            return Ok(socket.with(peer));
        }
        let opening = self.context.overlay.open_datagrams(target, &terms);
        terms.run("opening a datagram flow", opening).await
    }

    /// The target's address, if the socket at the far end reaches it. A name that cannot be looked up may have a meaning at the far end yet.
    async fn peer(&self, socket: &dyn Bound, target: &Target, terms: &Terms) -> Option<SocketAddr> {
        let found = match &target.host {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => {
                let resolving = self.context.overlay.resolve(name.as_str(), terms);
                let found = terms.run("resolving a name", resolving).await;
                found.unwrap_or_default()
            }
        };
        let reached = found.into_iter().find(|ip| socket.reaches(*ip));
        reached.map(|ip| SocketAddr::new(ip, target.port))
    }

    fn deliver(&self, batch: Batch<'_>, sending: &mut Vec<u8>) {
        let payloads = batch.payloads();
        let dropped = self
            .socket
            .send(self.program, &self.header, payloads, sending);
        self.context.counters.datagrams_dropped.add(dropped);
        self.context.counters.bytes_down.add(batch.contents.len());
        self.sender.received(batch, Instant::now());
    }
}

impl Drop for AssociationFlow {
    fn drop(&mut self) {
        self.sender.end();
    }
}

impl ProgramSide for AssociationFlow {
    type Failure = ();

    fn sender(&self) -> &FlowSender {
        &self.sender
    }

    fn idle(&self) -> Duration {
        self.context.limits.idle_datagrams
    }

    fn sent(&self, bytes: usize) {
        self.context.counters.bytes_up.add(bytes);
    }

    fn too_large(&self, _: Batch<'_>, _: usize) {
        self.context.counters.datagrams_dropped.add(1);
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        datagrams: &dyn Datagrams,
    ) -> Poll<Result<(), Error>> {
        with_scratch(|Scratch { received, sending }| {
            let train = received.get_mut(..TRAIN).unwrap_or_default();
            let got = ready!(datagrams.poll_recv(cx, train))?;
            let contents = train.get(..got.len).unwrap_or_default();
            let segment = got.segment.max(1);
            self.deliver(Batch { contents, segment }, sending);
            Poll::Ready(Ok(()))
        })
    }
}

/// An association's socket at the far end of the overlay: opened for its first flow, and anew when it is lost.
#[derive(Debug, Default)]
struct FarSocket(tokio::sync::Mutex<Far>);

#[derive(Debug, Default)]
enum Far {
    #[default]
    Unasked,
    /// The overlay has none: each target has a flow of its own.
    None,
    Open(Open),
}

/// An open one, and what hands to the program what strangers send; that ends with it.
#[derive(Debug)]
struct Open {
    socket: Arc<dyn Bound>,
    listening: AbortHandle,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl FarSocket {
    /// The socket, or that there is none.
    async fn socket(
        &self,
        flow: &AssociationFlow,
        terms: &Terms,
    ) -> Result<Option<Arc<dyn Bound>>, Error> {
        let mut far = self.0.lock().await;
        match &*far {
            Far::None => return Ok(None),
            Far::Open(open) if open.socket.is_open() => return Ok(Some(Arc::clone(&open.socket))),
            Far::Open(_) | Far::Unasked => {}
        }
        match flow.context.overlay.open_bound(terms).await {
            Ok(socket) => {
                let strangers = Strangers {
                    context: Arc::clone(&flow.context),
                    socket: Arc::clone(&flow.socket),
                    program: flow.program,
                    far: Arc::clone(&socket),
                };
                *far = Far::Open(Open {
                    socket: Arc::clone(&socket),
                    listening: tokio::spawn(strangers.listen()).abort_handle(),
                });
                Ok(Some(socket))
            }
            Err(error) if is_lasting(error.kind()) => {
                *far = Far::None;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether asking again would not help.
fn is_lasting(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::EntryUnreachable | ErrorKind::PathFailed | ErrorKind::TimedOut
    )
}

/// What comes to a socket at the far end from those that the program has no flow with.
struct Strangers {
    context: Arc<ProxyContext>,
    socket: Arc<Socket>,
    program: SocketAddr,
    far: Arc<dyn Bound>,
}

impl Strangers {
    async fn listen(self) {
        loop {
            for _ in 0..RECEIVE_BUDGET {
                if poll_fn(|cx| self.poll_deliver(cx)).await.is_err() {
                    return;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn poll_deliver(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        with_scratch(|Scratch { received, sending }| {
            let buffer = received.get_mut(..TRAIN).unwrap_or_default();
            let (len, peer) = ready!(self.far.poll_recv_from(cx, buffer))?;
            let payload = buffer.get(..len).unwrap_or_default();
            let mut header = Vec::new();
            Endpoint::from(peer).emit_datagram_header(&mut header);
            let one = std::iter::once(payload);
            let dropped = self.socket.send(self.program, &header, one, sending);
            self.context.counters.datagrams_dropped.add(dropped);
            self.context.counters.bytes_down.add(len);
            Poll::Ready(Ok(()))
        })
    }
}

/// What UDP over IPv4 can carry in one call.
const MAX_UDP_PAYLOAD: usize = 65_507;

/// An association's socket: datagrams from and to one program, many with each system call where the kernel can. Linux gives trains of equal
/// datagrams when the program sends them so (UDP_SEGMENT), and takes them from us.
#[derive(Debug)]
struct Socket {
    udp: UdpSocket,
    state: UdpSocketState,
}

/// One datagram that was received.
struct ReceivedDatagram<'a> {
    source: SocketAddr,
    datagram: &'a [u8],
}

impl Socket {
    /// Binds a port of the system's choice at the address of `local`.
    async fn bind(local: SocketAddr) -> io::Result<Self> {
        let mut local = local;
        local.set_port(0);
        local.set_ip(local.ip().to_canonical());
        let udp = UdpSocket::bind(local).await?;
        // A program's burst waits here until its turn comes; what the kernel grants is all there is.
        enlarge_buffers(&udp);
        let state = UdpSocketState::new((&udp).into())?;
        Ok(Self { udp, state })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Receives what is there and hands over each datagram.
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
        mut take: impl FnMut(ReceivedDatagram<'_>),
    ) -> Poll<io::Result<()>> {
        let mut metas = [RecvMeta::default(); TRAINS];
        let count = loop {
            ready!(self.udp.poll_recv_ready(cx))?;
            match self.receive(scratch, &mut metas) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => break received?,
            }
        };
        for (meta, train) in metas.iter().zip(scratch.received.chunks(TRAIN)).take(count) {
            let source = meta.addr;
            for datagram in datagrams(train, meta) {
                take(ReceivedDatagram { source, datagram });
            }
        }
        Poll::Ready(Ok(()))
    }

    fn receive(&self, scratch: &mut Scratch, metas: &mut [RecvMeta; TRAINS]) -> io::Result<usize> {
        let mut trains = scratch.received.chunks_mut(TRAIN).map(IoSliceMut::new);
        let mut slices: [IoSliceMut<'_>; TRAINS] =
            std::array::from_fn(|_| trains.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let call = || self.state.recv((&self.udp).into(), &mut slices, metas);
        self.udp.try_io(Interest::READABLE, call)
    }

    /// Sends `payloads`, each with `header` in front, all of one size but for the last. Answers how many were dropped:
    /// a program that reads too slowly loses datagrams, as on any network.
    fn send<'a>(
        &self,
        program: SocketAddr,
        header: &[u8],
        payloads: impl Iterator<Item = &'a [u8]>,
        sending: &mut Vec<u8>,
    ) -> usize {
        let (mut count, mut dropped, mut segment) = (0, 0, 0);
        sending.clear();
        for payload in payloads {
            let len = header.len() + payload.len();
            if count >= self.state.max_gso_segments().max(1)
                || sending.len() + len > MAX_UDP_PAYLOAD
            {
                dropped += self.flush(program, sending, segment, count);
                (count, segment) = (0, 0);
                sending.clear();
            }
            segment = segment.max(len);
            count += 1;
            sending.extend_from_slice(header);
            sending.extend_from_slice(payload);
        }
        dropped + self.flush(program, sending, segment, count)
    }

    fn flush(&self, program: SocketAddr, bytes: &[u8], segment: usize, count: usize) -> usize {
        let transmit = Transmit {
            destination: program,
            ecn: None,
            contents: bytes,
            segment_size: (count > 1).then_some(segment),
            src_ip: None,
        };
        match count {
            0 => 0,
            _ if self.transmit(&transmit) => 0,
            1 => 1,
            // The kernel may not take trains on this path.
            _ => self.one_by_one(&transmit, segment),
        }
    }

    fn one_by_one(&self, train: &Transmit<'_>, segment: usize) -> usize {
        let single = |contents| Transmit {
            contents,
            segment_size: None,
            ..train.clone()
        };
        let datagrams = train.contents.chunks(segment.max(1));
        datagrams
            .filter(|contents| !self.transmit(&single(contents)))
            .count()
    }

    fn transmit(&self, transmit: &Transmit<'_>) -> bool {
        self.state.try_send((&self.udp).into(), transmit).is_ok()
    }
}

/// The datagrams of one train. An empty one is no train and has no header: nobody misses it.
fn datagrams<'a>(train: &'a [u8], meta: &RecvMeta) -> impl Iterator<Item = &'a [u8]> {
    let filled = train.get(..meta.len).unwrap_or(train);
    filled.chunks(meta.stride.max(1))
}

/// The largest datagram, or train of datagrams, that a system call gives or takes.
const TRAIN: usize = 65_536;
/// How many trains one call of an association receives.
const TRAINS: usize = 16;

/// Buffers that live only between two system calls, one set for each thread, because a UDP flow at rest is to hold none. Only the pages that
/// were written to are resident.
#[derive(Debug)]
struct Scratch {
    /// `TRAINS` times `TRAIN` bytes.
    received: Vec<u8>,
    /// What is about to be sent to the program.
    sending: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        received: vec![0; TRAINS * TRAIN],
        sending: Vec::with_capacity(TRAIN),
    });
}

/// Lends the thread's buffers; `work` does not await and does not borrow them again.
fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    SCRATCH.with_borrow_mut(work)
}

#[cfg(test)]
mod tests;
