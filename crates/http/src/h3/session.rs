//! A connection's handle: make requests, take requests, drain, close.
//! The overlay holds one per hop, `relay` one per client.
//! Which requests are alive is known by their tickets, which the halves of an exchange hold.
//! RFC 9114 §3.3, §5.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use hoplite_wire::{
    RequestHead,
    h3::{Code, Settings},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use super::{
    Config, Counters, DataReceiver, DataSender, Exchange, H3Error, datagrams, datagrams::Outbox,
    datagrams::Routes, driver, quic, var,
};

/// What the handle and the connection's tasks share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) conn: quic::Connection,
    pub(super) config: Config,
    pub(super) outbox: Outbox,
    pub(super) active: ActiveRequests,
    /// Told when no request is alive any more, and when draining begins.
    pub(super) idle: Notify,
    /// Told when draining begins.
    pub(super) drain: Notify,
    /// Told when something that QUIC acknowledges should be sent.
    pub(super) ping: Notify,
    /// Told when somebody wants to know whether more would be taken for the peer, and when it would.
    pub(super) takes_more: [Notify; 2],
    /// One permit for each thing that the peer has given up, or that made no sense, and that became no request.
    pub(super) abandoned: Semaphore,
    /// The peer's settings, once they have arrived.
    pub(super) settings: watch::Sender<Option<Settings>>,
    /// The client's end: requests from this id on are not handled by the peer.
    pub(super) goaway: AtomicU64,
    routes: Mutex<Routes>,
}

impl Inner {
    pub(super) fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock()
    }

    pub(super) fn is_server(&self) -> bool {
        self.conn.side().is_server()
    }

    /// The peer broke a rule of the connection.
    pub(super) fn fail(&self, code: Code, what: &'static str) {
        tracing::debug!(%code, what, "closing an HTTP/3 connection");
        self.conn.close(var(code), what.as_bytes());
    }

    /// The peer has opened a stream for nothing.
    pub(super) fn abandon(&self) {
        self.abandoned.add_permits(1);
    }

    /// Whether the peer takes QUIC DATAGRAM frames.
    pub(super) fn peer_takes_datagrams(&self) -> bool {
        self.settings
            .borrow()
            .is_some_and(|settings| settings.datagrams)
    }
}

/// A head that has arrived, with the halves of its exchange.
/// Boxed, so that the queue of a connection without any is small.
pub(super) type Arrived = Box<(RequestHead, DataSender, DataReceiver)>;

/// An HTTP/3 connection. When the last clone is gone, and with it every exchange, the connection is closed.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Arc<Inner>,
    arrived: tokio::sync::Mutex<mpsc::Receiver<Arrived>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.inner.conn.close(var(Code::NO_ERROR), b"");
    }
}

/// A request, with the exchange to answer it on.
#[derive(Debug)]
pub struct Incoming {
    /// What is asked for; its form is checked, its content is not.
    pub head: RequestHead,
    /// Where the answer goes.
    pub exchange: Exchange,
}

impl Session {
    /// The client's end of `conn`. Runs its tasks on the current tokio runtime.
    pub fn client(conn: quic::Connection, config: &Config) -> Self {
        Self::new(conn, config)
    }

    /// The server's end of `conn`. Runs its tasks on the current tokio runtime.
    pub fn server(conn: quic::Connection, config: &Config) -> Self {
        Self::new(conn, config)
    }

    fn new(conn: quic::Connection, config: &Config) -> Self {
        let inner = Arc::new(Inner {
            config: config.clone(),
            outbox: Outbox::new(conn.datagram_send_buffer_space(), config.share),
            conn,
            active: ActiveRequests::default(),
            idle: Notify::new(),
            drain: Notify::new(),
            ping: Notify::new(),
            takes_more: [Notify::new(), Notify::new()],
            abandoned: Semaphore::new(0),
            settings: watch::Sender::new(None),
            goaway: AtomicU64::new(u64::MAX),
            routes: Mutex::default(),
        });
        let (sender, arrived) = mpsc::channel(config.max_waiting.max(1));
        tokio::spawn(driver::run(Arc::clone(&inner), sender));
        tokio::spawn(datagrams::run(Arc::clone(&inner)));
        let arrived = tokio::sync::Mutex::new(arrived);
        Self {
            shared: Arc::new(Shared { inner, arrived }),
        }
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.shared.inner
    }

    /// The QUIC connection below.
    pub fn connection(&self) -> &quic::Connection {
        &self.inner().conn
    }

    /// What was dropped on this connection, or on all that share the counters.
    pub fn counters(&self) -> &Counters {
        &self.inner().config.counters
    }

    /// The peer's settings, as soon as they have arrived.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn settings(&self) -> Result<Settings, H3Error> {
        let mut settings = self.inner().settings.subscribe();
        tokio::select! {
            biased;
            Ok(settings) = settings.wait_for(Option::is_some) => settings.ok_or(H3Error::Closed),
            error = self.connection().closed() => Err(error.into()),
        }
    }

    /// Sends a request. An Extended CONNECT waits for the peer's settings first.
    ///
    /// # Errors
    /// The peer is going away or does not take Extended CONNECT, or the connection is lost.
    pub async fn request(&self, head: &RequestHead) -> Result<Exchange, H3Error> {
        self.check_goaway(0)?;
        if head.protocol.is_some() && !self.settings().await?.extended_connect {
            return Err(H3Error::Unsupported("Extended CONNECT"));
        }
        let (send, recv) = self.connection().open_bi().await?;
        let id = send.id().into();
        let ticket = Ticket::new(self.inner(), quic::VarInt::into_inner(id));
        self.inner().routes().open(ticket.id());
        let mut sender = DataSender::new(send, Arc::clone(&ticket), Some(self.clone()));
        let mut receiver = DataReceiver::new(recv, ticket, Some(self.clone()));
        self.check_goaway(receiver.id())?;
        receiver.tunnel = head.method == "CONNECT";
        sender.write_head(&head.encode()).await?;
        Ok(Exchange::new(sender, receiver))
    }

    fn check_goaway(&self, id: u64) -> Result<(), H3Error> {
        match self.inner().goaway.load(Ordering::Acquire) {
            u64::MAX => Ok(()),
            first if id != 0 && id < first => Ok(()),
            _ => Err(H3Error::GoingAway),
        }
    }

    /// The next request; `None` when the connection is lost, or drained and no request is alive.
    /// Malformed requests are answered here and not returned.
    pub async fn accept(&self) -> Option<Incoming> {
        let mut arrived = self.shared.arrived.lock().await;
        loop {
            let idle = self.inner().idle.notified();
            if self.inner().active.count() == 0 && self.inner().routes().is_draining() {
                return None;
            }
            tokio::select! {
                arrived = arrived.recv() => return arrived.map(|arrived| self.incoming(arrived)),
                () = idle => {}
            }
        }
    }

    /// Resolves once for each thing that the peer has given up, or that made no sense, and that became no request: whoever serves bounds their number.
    pub async fn abandoned(&self) {
        match self.inner().abandoned.acquire().await {
            Ok(one) => one.forget(),
            Err(_) => std::future::pending().await,
        }
    }

    fn incoming(&self, arrived: Arrived) -> Incoming {
        let (head, mut sender, mut receiver) = *arrived;
        sender.session = Some(self.clone());
        receiver.session = Some(self.clone());
        Incoming {
            head,
            exchange: Exchange::new(sender, receiver),
        }
    }

    /// Takes no more requests and tells the peer so (GOAWAY); those that are alive go on.
    pub fn drain(&self) {
        self.inner().drain.notify_one();
    }

    /// Sends something that means nothing and that the peer acknowledges: a side that only receives would otherwise
    /// not notice that the peer is gone.
    pub fn ping(&self) {
        self.inner().ping.notify_one();
    }

    /// Resolves once QUIC takes more for the peer: no more waits to be acknowledged than the send window allows that was set last. Costs a STREAM frame
    /// without bytes.
    /// `false` when the connection is drained or lost. For one who asks at a time.
    pub async fn takes_more(&self) -> bool {
        let [asked, answered] = &self.inner().takes_more;
        asked.notify_one();
        tokio::select! {
            () = answered.notified() => true,
            _ = self.connection().closed() => false,
        }
    }

    /// Whether the peer takes no more requests, or the connection is lost: make them elsewhere.
    pub fn is_going_away(&self) -> bool {
        self.inner().goaway.load(Ordering::Acquire) != u64::MAX
            || self.connection().close_reason().is_some()
    }

    /// Closes the connection and everything on it.
    pub fn close(&self, code: Code) {
        self.connection().close(var(code), b"");
    }

    /// Why the connection was lost, once it is.
    pub async fn closed(&self) -> quic::ConnectionError {
        self.connection().closed().await
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("live", &self.inner().active.count())
            .finish_non_exhaustive()
    }
}

/// A request that is alive; the last half of its exchange drops it.
#[derive(Debug)]
pub(super) struct Ticket {
    inner: Arc<Inner>,
    id: u64,
    /// Whether it carries a stream of bytes, which wants congestion control.
    stream: AtomicBool,
}

/// How many requests are alive.
#[derive(Debug, Default)]
pub(super) struct ActiveRequests(AtomicUsize);

impl Ticket {
    /// Enters a request: datagrams for it are kept from now on.
    pub(super) fn new(inner: &Arc<Inner>, id: u64) -> Arc<Self> {
        inner.active.0.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            inner: Arc::clone(inner),
            id,
            stream: AtomicBool::new(false),
        })
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Whether what it carries goes as a stream of bytes now.
    pub(super) fn streams(&self, is: bool) {
        if let Some(controller) = &self.inner.config.controller
            && self.stream.load(Ordering::Relaxed) != is
            && self.stream.swap(is, Ordering::Relaxed) != is
        {
            if is {
                controller.stream_begins();
            } else {
                controller.stream_ends();
            }
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let removed = self.inner.routes().close(self.id);
        drop(removed);
        if let Some(controller) = &self.inner.config.controller
            && *self.stream.get_mut()
        {
            controller.stream_ends();
        }
        if self.inner.active.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inner.idle.notify_waiters();
        }
    }
}

impl ActiveRequests {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}
