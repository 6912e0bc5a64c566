//! The front ends as one thing that the binary holds: bind first, so that errors come before anything is promised,
//! then serve until told to stop.

use std::{
    collections::HashMap,
    future::{Future, pending},
    io,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use hoplite_overlay::{Error, Isolation, Overlay, Stream, Terms};
use hoplite_wire::{Target, ip::TCP};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::{AbortHandle, Id, JoinSet},
    time::{Instant, sleep},
};

use crate::{
    budget::Budget,
    config::{Config, ConfigError, Limits, Listen},
    counters::Counters,
    http,
    program::{LastUse, ProgramConnection},
    socks::{self, SharedFlows},
    tun::{FlowKey, SocketOwners, socket_owners},
    users::{Shares, User, UserQueues, WaitingRoom},
};

/// Connections that wait in the kernel until they are accepted.
const BACKLOG: u32 = 1024;
/// How long accepting rests when the system gives no more connections (no file descriptors, say).
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Connections that wait here for a place, so that one that waits holds up nobody behind it: as many as a few users open in a burst. Each holds a
/// file descriptor; when there are more, the newest of the user that has most is reset.
const WAITING: usize = 256;
/// How often those that wait for a place look whether a connection of their own user rests.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How often at most that is said.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// Front ends that are bound and do not serve yet; programs' connections wait in the kernel.
#[derive(Debug)]
pub struct Front {
    socks: Option<TcpListener>,
    http: Option<TcpListener>,
    config: Config,
    pub(crate) sockets: Option<Box<dyn SocketOwners>>,
    counters: Arc<Counters>,
}

/// Why a front end could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A value of the configuration cannot be meant.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system refuses the address.
    #[error("listening on {listen} for {front}: {}", explain(.source, .section))]
    Listen {
        /// "SOCKS" or "HTTP".
        front: &'static str,
        /// The section of the configuration.
        section: &'static str,
        /// The address that was asked for.
        listen: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// What the sessions of the SOCKS and HTTP front ends share.
#[derive(Debug)]
pub(crate) struct ProxyContext {
    pub(crate) overlay: Arc<dyn Overlay>,
    pub(crate) limits: Limits,
    pub(crate) udp: bool,
    /// Whether users share nothing.
    isolate_users: bool,
    /// Whoever knows whose a socket is.
    sockets: Option<Box<dyn SocketOwners>>,
    /// What UDP flows of all associations hold, and which there are.
    pub(crate) datagram_memory: Arc<Budget>,
    pub(crate) datagram_flows: SharedFlows,
    pub(crate) counters: Arc<Counters>,
}

/// The sessions that run.
#[derive(Default)]
struct Sessions {
    tasks: JoinSet<()>,
    /// Those that are not being ended.
    entries: HashMap<Id, SessionEntry>,
    /// Each of `entries` once; some are over.
    queues: UserQueues<Id>,
    /// How many of `entries` each user has.
    shares: Shares,
    /// When those that waited had none of their own that rests.
    looked: Option<Instant>,
}

struct SessionEntry {
    task: AbortHandle,
    user: User,
    last_use: LastUse,
}

impl Sessions {
    fn len(&self) -> usize {
        self.tasks.len()
    }

    fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Begins those that wait while places are free; when none is, one session may be ended for them.
    fn admit(&mut self, room: &mut WaitingRoom<Accepted>, context: &Arc<ProxyContext>) {
        while self.len() < context.limits.connections
            && let Some(accepted) = room.leave(&self.shares)
        {
            self.begin(accepted, context);
        }
        if !room.is_empty() {
            self.evict(room, context);
        }
    }

    fn begin(&mut self, accepted: Accepted, context: &Arc<ProxyContext>) {
        let program = accepted.program();
        let (user, last_use) = (program.user(), program.last_use());
        // The time that it waited does not count.
        last_use.touch();
        let task = self.tasks.spawn(accepted.serve(Arc::clone(context)));
        let (id, entries) = (task.id(), &self.entries);
        let many = entries.len().saturating_mul(2);
        self.queues.tidy(many, |id| entries.contains_key(id));
        self.queues.push(user, id);
        self.shares.add(user);
        self.entries.insert(
            id,
            SessionEntry {
                task,
                user,
                last_use,
            },
        );
    }

    /// Until one has ended.
    async fn ended(&mut self) {
        let (id, failed) = match self.tasks.join_next_with_id().await {
            None => return,
            Some(Ok((id, ()))) => (id, None),
            Some(Err(error)) => (
                error.id(),
                Some(error).filter(|error| !error.is_cancelled()),
            ),
        };
        self.forget(id);
        if let Some(error) = failed {
            tracing::error!(%error, "a front end's session failed: please report this");
        }
    }

    /// One is ended for those that wait, for that whose user has least first; none, while one is ending, or nobody has to make room.
    fn evict(&mut self, room: &WaitingRoom<Accepted>, context: &ProxyContext) {
        if self.tasks.len() > self.entries.len() {
            return;
        }
        let now = Instant::now();
        let looks = self.looked.is_none_or(|then| now - then >= CHECK_EVERY);
        let users = room.users(&self.shares);
        let mut users = users.into_iter();
        let loser = users.find_map(|user| self.loser(user, looks, context));
        if let Some(entry) = loser.and_then(|id| self.forget(id)) {
            context.counters.rested.add(1);
            entry.task.abort();
        } else if looks {
            self.looked = Some(now);
        }
    }

    /// Which one makes room for one of `newcomer`: that which has been idle the longest of the user that has most. Of its own, where it `looks`
    /// among them, only one that rests.
    fn loser(&self, newcomer: User, looks: bool, context: &ProxyContext) -> Option<Id> {
        let victim = self.shares.victim(newcomer)?;
        let is_own = victim == newcomer;
        if is_own && !looks {
            return None;
        }
        let (idle, id) = self.longest_idle(victim)?;
        (!is_own || idle >= context.limits.idle_when_full).then_some(id)
    }

    fn longest_idle(&self, user: User) -> Option<(Duration, Id)> {
        let all = self.queues.next(user);
        let idle = all.filter_map(|id| Some((self.entries.get(id)?.last_use.idle_for(), *id)));
        idle.max_by_key(|(idle, _)| *idle)
    }

    /// Its place counts as free.
    fn forget(&mut self, id: Id) -> Option<SessionEntry> {
        let entry = self.entries.remove(&id)?;
        self.shares.remove(entry.user);
        Some(entry)
    }
}

/// A connection that was accepted, by its front end.
enum Accepted {
    Socks(ProgramConnection),
    Http(ProgramConnection),
}

impl Front {
    /// Binds what the configuration asks for. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`], which names the address and says what to do.
    pub fn bind(config: Config) -> Result<Self, BindError> {
        config.check()?;
        let socks = bind("SOCKS", "socks", config.socks.listen)?;
        let http = bind("HTTP", "http", config.http.listen)?;
        Ok(Self {
            socks,
            http,
            config,
            sockets: socket_owners(),
            counters: Arc::default(),
        })
    }

    /// Where the SOCKS front end listens.
    pub fn socks_addr(&self) -> Option<SocketAddr> {
        self.socks.as_ref()?.local_addr().ok()
    }

    /// Where the HTTP front end listens.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.local_addr().ok()
    }

    /// What is counted.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Serves over `overlay` until `shutdown` resolves; then open flows are reset, on both ends.
    pub async fn serve(self, overlay: Arc<dyn Overlay>, shutdown: impl Future<Output = ()>) {
        let context = Arc::new(ProxyContext {
            overlay,
            datagram_memory: Budget::new(self.config.limits.datagram_memory),
            datagram_flows: SharedFlows::default(),
            limits: self.config.limits,
            udp: self.config.socks.udp,
            isolate_users: self.config.isolate_users,
            sockets: self.sockets,
            counters: self.counters,
        });
        let mut listeners = Listeners::new(self.socks, self.http, &context);
        let (mut sessions, mut room) = (Sessions::default(), WaitingRoom::new(WAITING));
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                () = sessions.ended(), if !sessions.is_empty() => {}
                accepted = listeners.accept() => {
                    let user = accepted.program().user();
                    // Dropped, it is reset.
                    if room.enter(user, accepted, &sessions.shares).is_some() {
                        context.counters.crowded.add(1);
                    }
                }
                () = sleep(CHECK_EVERY), if !room.is_empty() => {}
            }
            sessions.admit(&mut room, &context);
        }
        sessions.tasks.shutdown().await;
    }
}

fn bind(
    front: &'static str,
    section: &'static str,
    listen: Listen,
) -> Result<Option<TcpListener>, BindError> {
    let Listen::At(listen) = listen else {
        return Ok(None);
    };
    let wrap = |source| BindError::Listen {
        front,
        section,
        listen,
        source,
    };
    listener(listen).map(Some).map_err(wrap)
}

fn listener(listen: SocketAddr) -> io::Result<TcpListener> {
    let socket = match listen {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(listen)?;
    socket.listen(BACKLOG)
}

fn explain(source: &io::Error, section: &str) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "another program has this port: choose another with [{section}] listen, or stop that program"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 need privileges: choose another with [{section}] listen")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!(
                "this machine does not have that address: choose another with [{section}] listen"
            )
        }
        _ => format!("{source}: check [{section}] listen"),
    }
}

/// The listeners. Programs that are not accepted wait in the kernel.
struct Listeners {
    socks: Option<TcpListener>,
    http: Option<TcpListener>,
    context: Arc<ProxyContext>,
    warned: Option<Instant>,
}

impl Listeners {
    fn new(
        socks: Option<TcpListener>,
        http: Option<TcpListener>,
        context: &Arc<ProxyContext>,
    ) -> Self {
        Self {
            socks,
            http,
            context: Arc::clone(context),
            warned: None,
        }
    }

    /// The next connection. Cancelling loses none.
    async fn accept(&mut self) -> Accepted {
        loop {
            let next = tokio::select! {
                tcp = accept(self.socks.as_ref()) => tcp.map(|(tcp, peer)| Accepted::Socks(self.context.program(tcp, peer))),
                tcp = accept(self.http.as_ref()) => tcp.map(|(tcp, peer)| Accepted::Http(self.context.program(tcp, peer))),
            };
            match next {
                Ok(accepted) => return accepted,
                Err(error) => self.rest(&error).await,
            }
        }
    }

    async fn rest(&mut self, error: &io::Error) {
        let now = Instant::now();
        if self.warned.is_none_or(|then| now - then > WARN_EVERY) {
            self.warned = Some(now);
            tracing::warn!(%error, "no connection can be accepted: raise the limit of open files (ulimit -n) or lower limits.connections");
        }
        sleep(ACCEPT_REST).await;
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => pending().await,
    }
}

impl Accepted {
    fn program(&self) -> &ProgramConnection {
        let (Self::Socks(program) | Self::Http(program)) = self;
        program
    }

    async fn serve(self, context: Arc<ProxyContext>) {
        match self {
            Self::Socks(program) => {
                context.counters.accepted_socks.add(1);
                socks::serve(program, context).await;
            }
            Self::Http(program) => {
                context.counters.accepted_http.add(1);
                http::serve(program, context).await;
            }
        }
    }
}

impl ProxyContext {
    /// Who has opened the socket of this machine that sends from `program` to `target`; `None` if there is none, or nobody can tell.
    pub(crate) fn user(
        &self,
        protocol: u8,
        program: SocketAddr,
        target: SocketAddr,
    ) -> Option<User> {
        let [program, target] =
            [program, target].map(|it| SocketAddr::new(it.ip().to_canonical(), it.port()));
        let key = FlowKey { program, target };
        self.sockets.as_ref()?.user(protocol, key)
    }

    /// An accepted connection, of the user who has opened its other end on this machine, or else of the one at its address.
    fn program(&self, tcp: TcpStream, peer: SocketAddr) -> ProgramConnection {
        let at = tcp.local_addr().ok();
        let user = at.and_then(|at| self.user(TCP, peer, at));
        ProgramConnection::new(tcp, user.unwrap_or_else(|| User::at(peer.ip())))
    }

    /// Which flows may share the path of those for which this user gives this token.
    pub(crate) fn isolation(&self, given: Isolation, user: User) -> Isolation {
        if self.isolate_users {
            user.owner.isolation(&given)
        } else {
            given
        }
    }

    pub(crate) fn terms(&self, isolation: Isolation) -> Terms {
        let terms = Terms {
            isolation,
            ..Terms::default()
        };
        terms.within(self.limits.open)
    }

    /// Opens a TCP flow for the program at this address and counts how that went.
    pub(crate) async fn open_stream(
        &self,
        target: &Target,
        isolation: Isolation,
        program: Option<SocketAddr>,
    ) -> Result<Stream, Error> {
        let terms = self.terms(isolation).for_program(program);
        let opening = self.overlay.open_stream(target, &terms);
        let opened = terms.run("opening a stream", opening).await;
        match &opened {
            Ok(_) => self.counters.streams.add(1),
            Err(error) => self.counters.failed(error),
        }
        opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(addr: &str) -> Config {
        let mut config = Config::default();
        config.socks.listen = addr.parse().expect("valid");
        config.http.listen = Listen::Off;
        config
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named_with_what_to_do() {
        let first = Front::bind(at("127.0.0.1:0")).expect("binds");
        let taken = first.socks_addr().expect("bound").to_string();
        let error = Front::bind(at(&taken)).expect_err("taken").to_string();
        let expected = format!(
            "listening on {taken} for SOCKS: another program has this port: choose another with [socks] listen, or stop that program"
        );
        assert_eq!(error, expected);
    }

    #[tokio::test]
    async fn a_front_that_is_off_has_no_address() {
        let front = Front::bind(at("127.0.0.1:0")).expect("binds");
        assert!(front.socks_addr().is_some() && front.http_addr().is_none());
    }

    #[tokio::test]
    async fn whose_a_connection_is_can_be_asked_where_udp_is_not_served() {
        let mut config = at("127.0.0.1:0");
        config.socks.udp = false;
        let front = Front::bind(config).expect("binds");
        assert_eq!(front.sockets.is_some(), socket_owners().is_some());
    }

    #[tokio::test]
    async fn other_machines_are_not_let_in_by_mistake() {
        let error = Front::bind(at("0.0.0.0:0")).expect_err("open to all");
        assert!(
            error
                .to_string()
                .starts_with("socks.listen: expected a loopback address")
        );
    }
}
