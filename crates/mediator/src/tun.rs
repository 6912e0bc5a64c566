//! The transparent front end: every packet that a program sends into a TUN device becomes part of a flow through the overlay.
//! The binary's `up` makes the device and the routes into it and hands over its descriptor; an app on another system does the same, or gives
//! packets by queues. Paper 003 (ANONguard) §5.
//! One thread: the router takes packets in, each flow is a task that writes its own packets back.
//!
//! # Not in this room
//! Interfaces, routes, firewalls (`hoplite`), the headers of packets (`wire::ip`), what carries the flows (`overlay`).

pub mod config;
pub mod counters;
mod device;
mod dns;
mod names;
mod outgoing;
mod packets;
mod router;
#[cfg(target_os = "linux")]
mod sock_diag;
mod tcp;
#[cfg(test)]
mod testing;
mod udp;

use std::{
    fmt,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
};

use hoplite_overlay::{Error, Isolation, Overlay, Reason, Stream, Terms};
use hoplite_wire::Target;
use tokio::time::Instant;

#[cfg(unix)]
pub use self::device::Descriptor;
pub use self::{
    config::Config,
    counters::{Counters, Snapshot},
    device::{Device, PacketIo, PacketQueues},
};
use self::{
    device::PacketBuffers,
    dns::{Families, Resolver},
    names::Names,
    outgoing::PacketSink,
    router::Router,
};
use crate::{budget::Budget, users::User};
#[cfg(all(target_os = "linux", feature = "testing"))]
pub use sock_diag::read_socket_owner;

/// How many packets are read before the flows have their turn.
const BATCH: usize = 64;

/// What the flows of the device share.
#[derive(Debug)]
pub(crate) struct DeviceContext {
    /// What carries flows.
    pub(crate) overlay: Arc<dyn Overlay>,
    /// The device's resolver: flows to port 53 of its addresses end in it.
    pub(crate) dns: Arc<Resolver>,
    /// Whoever knows whose a flow is.
    sockets: Option<Box<dyn SocketOwners>>,
    /// Where packets for programs go.
    pub(crate) sink: Arc<dyn PacketSink>,
    /// What the addresses mean that programs were told.
    pub(crate) names: Arc<Names>,
    /// The memory of all TCP flows, and of all UDP flows.
    pub(crate) tcp_memory: Arc<Budget>,
    pub(crate) udp_memory: Arc<Budget>,
    pub(crate) config: Config,
    pub(crate) counters: Arc<Counters>,
}

/// Tells whose flows are.
pub(crate) trait SocketOwners: fmt::Debug + Send + Sync {
    /// Whose a flow of TCP or UDP is; `None` if no socket on this machine has opened it, or nobody can tell.
    fn user(&self, protocol: u8, key: FlowKey) -> Option<User>;
}

/// The system's word for it; `None` where it does not tell.
pub(crate) fn socket_owners() -> Option<Box<dyn SocketOwners>> {
    #[cfg(target_os = "linux")]
    return sock_diag::SockDiag::open().map(|sockets| Box::new(sockets) as _);
    #[cfg(not(target_os = "linux"))]
    return None;
}

/// What tells a TCP or UDP flow from others: the source and the destination of its packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    /// The source of the program's packets.
    pub(crate) program: SocketAddr,
    /// Their destination.
    pub(crate) target: SocketAddr,
}

/// The transparent front end: a TUN device and the flows of what programs send into it.
#[derive(Debug)]
pub struct Transparent<P> {
    device: Arc<Device<P>>,
    context: Arc<DeviceContext>,
}

impl DeviceContext {
    /// With no name known yet. The configuration has been checked.
    pub(crate) fn new(
        config: Config,
        overlay: Arc<dyn Overlay>,
        sink: Arc<dyn PacketSink>,
        counters: Arc<Counters>,
    ) -> Self {
        let (dns, own) = (&config.dns, &config.device.addresses);
        let names = Names::new(&dns.pools(), own, dns.mapping_limits()).serving(&dns.resolvers);
        let names = Arc::new(names);
        let dns = Resolver::new(dns, Families::of(own), &names, &overlay, &counters);
        Self {
            overlay,
            dns,
            sockets: None,
            sink,
            names,
            tcp_memory: Budget::new(config.flows.memory),
            udp_memory: Budget::new(config.flows.udp_memory),
            config,
            counters,
        }
    }

    /// `sockets` tells whose flows are; without it each belongs to the user at its source address.
    pub(crate) fn with_owners(mut self, sockets: Option<Box<dyn SocketOwners>>) -> Self {
        self.sockets = sockets;
        self
    }

    /// Whose a new flow is. Sources that are not the device's own have no socket here, whoever has one with their port.
    pub(crate) fn user(&self, protocol: u8, key: FlowKey) -> User {
        let source = key.program.ip();
        let own = self.config.device.addresses.contains(&source);
        let sockets = self.sockets.as_ref().filter(|_| own);
        let found = sockets.and_then(|sockets| sockets.user(protocol, key));
        found.unwrap_or_else(|| User::at(source))
    }

    /// A user's stream, to the device's resolver or through the overlay.
    pub(crate) async fn open_stream(
        &self,
        target: &Target,
        user: User,
        terms: &Terms,
    ) -> Result<Stream, Error> {
        let resolves = |address| self.config.dns.resolves_at(address);
        if target.socket_addr().is_some_and(resolves) {
            Ok(self.dns.stream(user))
        } else {
            self.overlay.open_stream(target, terms).await
        }
    }

    /// What a flow's address means; one that means nothing any more is counted.
    pub(crate) fn meaning(&self, address: SocketAddr, now: Instant) -> Option<Target> {
        let target = self.names.meaning(address, now);
        if target.is_none() {
            self.counters.expired.add(1);
        }
        target
    }

    /// Counts a flow to `address` that failed. A name that was not found is answered so for a while.
    pub(crate) fn flow_failed(&self, address: IpAddr, error: &Error) {
        self.counters.failed(error);
        if error.reason() == Some(Reason::NameNotFound) {
            self.names.fail(address, Instant::now());
        }
    }

    /// The terms of a flow that is opened now, of this user as far as one is known.
    pub(crate) fn terms(&self, user: Option<User>) -> Terms {
        let user = user.filter(|_| self.config.device.isolate_users);
        let isolation = user.map(|user| user.owner.isolation(&Isolation::default()));
        let terms = Terms {
            isolation: isolation.unwrap_or_default(),
            ..Terms::default()
        };
        terms.within(self.config.flows.opening)
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlowKey(hidden)")
    }
}

impl<P: PacketIo> Transparent<P> {
    /// Nothing moves before [`Self::serve`]. The configuration has been checked.
    pub fn new(config: Config, overlay: Arc<dyn Overlay>, device: Device<P>) -> Self {
        let device = Arc::new(device);
        let sink = Arc::clone(&device) as Arc<dyn PacketSink>;
        let context = DeviceContext::new(config, overlay, sink, device.counters())
            .with_owners(socket_owners());
        let context = Arc::new(context);
        Self { device, context }
    }

    /// What is counted.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.context.counters)
    }

    /// Serves until `shutdown` resolves; then all flows are dropped, which resets them at the far end.
    ///
    /// # Errors
    /// The device is gone: somebody removed the interface.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let mut router = Router::new(&self.context);
        let mut buffers = PacketBuffers::default();
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                turn = self.turn(&mut router, &mut buffers) => turn?,
            }
            // The flows' tasks run on this thread too.
            tokio::task::yield_now().await;
        }
    }

    /// Waits for packets and takes some.
    async fn turn(&self, router: &mut Router, buffers: &mut PacketBuffers) -> io::Result<()> {
        let ready = self.device.readable().await?;
        let now = Instant::now();
        for _ in 0..BATCH {
            match self.device.read(buffers) {
                Ok(Some(incoming)) => router.take(&incoming, now),
                Ok(None) => self.context.counters.malformed.add(1),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    P::drained(ready);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        router.flush(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
