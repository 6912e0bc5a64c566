//! What programs have of an endpoint: it dials, accepts, moves to another socket and ends.

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, IntoFuture},
    io, mem,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use quinn_proto::{
    ClientConfig, ConnectError, ConnectionError, ConnectionHandle, EndpointConfig, ServerConfig,
    Transmit, VarInt,
};
use tokio::sync::Notify;

use super::{AsyncUdpSocket, Connecting, Connection, Task, UdpSocket, connection::Inner, now};
use crate::{held::Held, timer::Timers};

/// How many answers of the endpoint's own (retries, refusals, resets) may wait for the task.
const MOST_ANSWERS: usize = 1024;

/// Sends and receives for connections, and accepts them. Clones are the same; when the last is gone, its connections live on until they end.
#[derive(Clone)]
pub struct Endpoint {
    handle: Arc<Handle>,
    default_client: Option<ClientConfig>,
}

/// Ends the task when nobody can use the endpoint any more.
struct Handle(Arc<Shared>);

/// What handles, connections and the task share.
pub(super) struct Shared {
    pub(super) socket: Mutex<Sockets>,
    /// Grows with each new socket.
    pub(super) generation: AtomicU64,
    pub(super) state: Mutex<State>,
    /// Connections that have something to do.
    pub(super) due: Mutex<Vec<Arc<Inner>>>,
    pub(super) task: AtomicWaker,
    /// No handle is left.
    pub(super) unused: AtomicBool,
    pub(super) open: AtomicUsize,
    /// Bytes that were written since the task last sent.
    pub(super) written: AtomicUsize,
    /// Something arrived for [`Endpoint::accept`], or it was closed.
    pub(super) incoming: Notify,
    /// The last connection has gone.
    pub(super) idle: Notify,
}

pub(super) struct Sockets {
    pub(super) now: Arc<dyn AsyncUdpSocket>,
    /// It is still listened to, until the next one has received something.
    pub(super) before: Option<Arc<dyn AsyncUdpSocket>>,
}

pub(super) struct State {
    pub(super) stack: quinn_proto::Endpoint,
    /// By their handles.
    pub(super) connections: Vec<Option<Arc<Inner>>>,
    pub(super) incoming: VecDeque<quinn_proto::Incoming>,
    /// What the endpoint itself has to send.
    pub(super) answers: VecDeque<(Transmit, Vec<u8>)>,
    pub(super) closed: Option<(VarInt, Bytes)>,
    /// The task is gone.
    pub(super) gone: bool,
}

impl Endpoint {
    /// An endpoint on a bound socket, in the current runtime. Without `server` it accepts nothing.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(
        config: EndpointConfig,
        server: Option<ServerConfig>,
        socket: std::net::UdpSocket,
    ) -> io::Result<Self> {
        let socket = Arc::new(UdpSocket::new(socket)?);
        Self::with_socket(config, server, socket, Timers::Exact)
    }

    /// An endpoint on any socket.
    ///
    /// # Errors
    /// The socket has no address.
    pub fn with_socket(
        config: EndpointConfig,
        server: Option<ServerConfig>,
        socket: Arc<dyn AsyncUdpSocket>,
        timers: Timers,
    ) -> io::Result<Self> {
        socket.local_addr()?;
        let largest = usize::try_from(config.get_max_udp_payload_size()).unwrap_or(usize::MAX);
        let stack = quinn_proto::Endpoint::new(
            Arc::new(config),
            server.map(Arc::new),
            !socket.may_fragment(),
            None,
        );
        let shared = Arc::new(Shared {
            socket: Mutex::new(Sockets {
                now: Arc::clone(&socket),
                before: None,
            }),
            generation: AtomicU64::new(0),
            state: Mutex::new(State {
                stack,
                connections: Vec::new(),
                incoming: VecDeque::new(),
                answers: VecDeque::new(),
                closed: None,
                gone: false,
            }),
            due: Mutex::default(),
            task: AtomicWaker::new(),
            unused: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            incoming: Notify::new(),
            idle: Notify::new(),
        });
        tokio::spawn(Task::new(Arc::clone(&shared), socket, largest, timers));
        Ok(Self {
            handle: Arc::new(Handle(shared)),
            default_client: None,
        })
    }

    /// An endpoint that dials alone, at `address` of this machine.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn client(address: SocketAddr) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind(address)?;
        Self::new(EndpointConfig::default(), None, socket)
    }

    /// An endpoint that accepts, at `address` of this machine.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn server(config: ServerConfig, address: SocketAddr) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind(address)?;
        Self::new(EndpointConfig::default(), Some(config), socket)
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.0
    }

    /// How [`Self::connect`] dials.
    pub fn set_default_client_config(&mut self, config: ClientConfig) {
        self.default_client = Some(config);
    }

    /// Dials with the configuration that was set.
    ///
    /// # Errors
    /// There is none, the endpoint is closed, or nothing can be dialled there.
    pub fn connect(&self, to: SocketAddr, name: &str) -> Result<Connecting, ConnectError> {
        let config = self.default_client.clone();
        self.connect_with(config.ok_or(ConnectError::NoDefaultClientConfig)?, to, name)
    }

    /// Dials. `name` is whom the other end must prove to be.
    ///
    /// # Errors
    /// The endpoint is closed, or nothing can be dialled there.
    pub fn connect_with(
        &self,
        config: ClientConfig,
        to: SocketAddr,
        name: &str,
    ) -> Result<Connecting, ConnectError> {
        let shared = self.shared();
        let ours = shared.socket.lock().now.local_addr();
        let to = match (ours.map(|ours| ours.is_ipv6()), to) {
            (Ok(false), SocketAddr::V6(_)) => return Err(ConnectError::InvalidRemoteAddress(to)),
            (Ok(true), SocketAddr::V4(to)) => {
                SocketAddrV6::new(to.ip().to_ipv6_mapped(), to.port(), 0, 0).into()
            }
            (_, to) => to,
        };
        let mut state = shared.state();
        if state.gone || state.closed.is_some() {
            return Err(ConnectError::EndpointStopping);
        }
        let (begun, held) = Held::of(|| state.stack.connect(now(), config, to, name));
        let inner = shared.enter(&mut state, begun?, held);
        drop(state);
        inner.make_due();
        Ok(Connecting::new(inner))
    }

    /// The next connection attempt; `None` when the endpoint is closed.
    pub async fn accept(&self) -> Option<Incoming> {
        let shared = self.shared();
        loop {
            let more = shared.incoming.notified();
            {
                let mut state = shared.state();
                if state.closed.is_some() || state.gone {
                    return None;
                }
                if let Some(incoming) = state.incoming.pop_front() {
                    return Some(Incoming {
                        attempt: Some(incoming),
                        handle: Arc::clone(&self.handle),
                    });
                }
            }
            more.await;
        }
    }

    /// How connections are accepted from now on; `None` refuses them.
    pub fn set_server_config(&self, config: Option<ServerConfig>) {
        let mut state = self.shared().state();
        state.stack.set_server_config(config.map(Arc::new));
    }

    /// Goes on with another socket of the system's, in the current runtime; the connections tell their peers.
    ///
    /// # Errors
    /// The system refuses.
    pub fn rebind(&self, socket: std::net::UdpSocket) -> io::Result<()> {
        self.move_to(Arc::new(UdpSocket::new(socket)?))
    }

    /// Goes on with another socket; the connections tell their peers (RFC 9000 §9).
    ///
    /// # Errors
    /// The socket has no address.
    pub fn move_to(&self, socket: Arc<dyn AsyncUdpSocket>) -> io::Result<()> {
        socket.local_addr()?;
        let shared = self.shared();
        {
            let mut sockets = shared.socket.lock();
            let before = mem::replace(&mut sockets.now, socket);
            sockets.before = Some(before);
        }
        shared.generation.fetch_add(1, Ordering::Release);
        for inner in shared.connections() {
            inner.state().stack.local_address_changed();
            inner.make_due();
        }
        shared.task.wake();
        Ok(())
    }

    /// The address of the socket.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared().socket.lock().now.local_addr()
    }

    /// How many connections there are, those that drain included.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.shared().open.load(Ordering::Relaxed)
    }

    /// Closes all connections and accepts no more.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        let shared = self.shared();
        let reason = Bytes::copy_from_slice(reason);
        let waiting = {
            let mut state = shared.state();
            state.closed = Some((code, reason.clone()));
            mem::take(&mut state.incoming)
        };
        for attempt in waiting {
            shared.refuse(&mut shared.state(), attempt);
        }
        shared.incoming.notify_waiters();
        for inner in shared.connections() {
            inner.close(code, reason.clone());
        }
        shared.task.wake();
    }

    /// Waits until all connections have ended and their last packets are sent.
    pub async fn wait_idle(&self) {
        let shared = self.shared();
        loop {
            let idle = shared.idle.notified();
            if shared.open.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.unused.store(true, Ordering::Release);
        self.0.task.wake();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn connections(&self) -> Vec<Arc<Inner>> {
        let state = self.state();
        state.connections.iter().flatten().cloned().collect()
    }

    pub(super) fn enter(
        self: &Arc<Self>,
        state: &mut State,
        (handle, stack): (ConnectionHandle, quinn_proto::Connection),
        held: Option<Arc<Held>>,
    ) -> Arc<Inner> {
        let inner = Arc::new(Inner::new(stack, held, handle, Arc::clone(self)));
        if state.connections.len() <= handle.0 {
            state.connections.resize_with(handle.0 + 1, || None);
        }
        state.connections[handle.0] = Some(Arc::clone(&inner));
        self.open.fetch_add(1, Ordering::Release);
        inner
    }

    pub(super) fn connection(&self, number: usize) -> Option<Arc<Inner>> {
        self.state().connections.get(number).cloned().flatten()
    }

    /// A connection has something to do.
    pub(super) fn make_due(&self, inner: Arc<Inner>) {
        self.due.lock().push(inner);
        self.task.wake();
    }

    pub(super) fn refuse(&self, state: &mut State, attempt: quinn_proto::Incoming) {
        let mut contents = Vec::new();
        let transmit = state.stack.refuse(attempt, &mut contents);
        self.answer(state, transmit, contents);
    }

    /// Answers from outside the task; beyond the bound they are lost, as packets are.
    pub(super) fn answer(&self, state: &mut State, transmit: Transmit, mut contents: Vec<u8>) {
        contents.truncate(transmit.size);
        if state.answers.len() < MOST_ANSWERS {
            state.answers.push_back((transmit, contents));
            self.task.wake();
        }
    }
}

/// A connection attempt that nobody has decided on. Dropped, it is refused.
pub struct Incoming {
    attempt: Option<quinn_proto::Incoming>,
    /// The endpoint goes on for it.
    handle: Arc<Handle>,
}

/// A retry was asked of an attempt that comes of one; here it is again.
pub struct RetryError(Box<Incoming>);

impl Incoming {
    fn take(mut self) -> Option<(quinn_proto::Incoming, Arc<Handle>)> {
        Some((self.attempt.take()?, Arc::clone(&self.handle)))
    }

    /// Goes on with the handshake as the endpoint is configured.
    ///
    /// # Errors
    /// The attempt makes no sense.
    pub fn accept(self) -> Result<Connecting, ConnectionError> {
        self.go_on(None)
    }

    /// Goes on with the handshake.
    ///
    /// # Errors
    /// The attempt makes no sense.
    pub fn accept_with(self, config: Arc<ServerConfig>) -> Result<Connecting, ConnectionError> {
        self.go_on(Some(config))
    }

    fn go_on(self, config: Option<Arc<ServerConfig>>) -> Result<Connecting, ConnectionError> {
        let Some((attempt, handle)) = self.take() else {
            return Err(ConnectionError::LocallyClosed);
        };
        let shared = &handle.0;
        let mut contents = Vec::new();
        let mut state = shared.state();
        if state.gone {
            state.stack.ignore(attempt);
            return Err(ConnectionError::LocallyClosed);
        }
        let accept = || {
            state
                .stack
                .accept(attempt, now(), &mut contents, config)
                .map_err(Box::new)
        };
        let (begun, held) = Held::of(accept);
        match begun {
            Ok(begun) => {
                let inner = shared.enter(&mut state, begun, held);
                let closed = state.closed.clone();
                drop(state);
                match closed {
                    Some((code, reason)) => inner.close(code, reason),
                    None => inner.make_due(),
                }
                Ok(Connecting::new(inner))
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    shared.answer(&mut state, transmit, contents);
                }
                Err(error.cause)
            }
        }
    }

    /// Tells the peer that it is not wanted.
    pub fn refuse(self) {
        drop(self);
    }

    /// Has the peer prove its address first.
    ///
    /// # Errors
    /// It has.
    pub fn retry(self) -> Result<(), RetryError> {
        let Some((attempt, handle)) = self.take() else {
            return Ok(());
        };
        let shared = &handle.0;
        let mut contents = Vec::new();
        let mut state = shared.state();
        match state.stack.retry(attempt, &mut contents) {
            Ok(transmit) => {
                shared.answer(&mut state, transmit, contents);
                Ok(())
            }
            Err(error) => {
                drop(state);
                Err(RetryError(Box::new(Self {
                    attempt: Some(error.into_incoming()),
                    handle: Arc::clone(&handle),
                })))
            }
        }
    }

    /// Says nothing.
    pub fn ignore(self) {
        if let Some((attempt, handle)) = self.take() {
            handle.0.state().stack.ignore(attempt);
        }
    }

    /// Where it comes from.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let attempt = self.attempt.as_ref();
        attempt.map_or(nowhere, quinn_proto::Incoming::remote_address)
    }

    /// Whether it is proven that the peer is there.
    #[must_use]
    pub fn remote_address_validated(&self) -> bool {
        let attempt = self.attempt.as_ref();
        attempt.is_some_and(quinn_proto::Incoming::remote_address_validated)
    }

    /// The address of ours that it came to, where the system says.
    #[must_use]
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.attempt.as_ref()?.local_ip()
    }
}

/// Goes on with the handshake as the endpoint is configured, to its end.
impl IntoFuture for Incoming {
    type Output = Result<Connection, ConnectionError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { self.accept()?.await })
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            let shared = &self.handle.0;
            shared.refuse(&mut shared.state(), attempt);
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

impl RetryError {
    /// The attempt.
    #[must_use]
    pub fn into_incoming(self) -> Incoming {
        *self.0
    }
}

impl fmt::Debug for RetryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RetryError")
    }
}
