//! The overlay that is none: flows leave by this device's own sockets.
//! The only place in the workspace that opens a socket towards a target or asks the system for a name. What systems do not have in common is
//! in `system`; echoes and TUN devices are Linux's.

pub mod bound;
#[cfg(target_os = "linux")]
pub mod echo;
mod nat64;
pub mod resolver;
pub mod rights;
mod system;
pub mod tcp;
#[cfg(target_os = "linux")]
pub mod tun;
pub mod udp;

use std::{
    collections::VecDeque,
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

#[cfg(target_os = "linux")]
use hoplite_wire::connect_ip::Scope;
use hoplite_wire::{Host, HostName, Target};
use parking_lot::Mutex;
use rustix::io::Errno;

#[cfg(target_os = "linux")]
pub use self::echo::{EchoFlow, EchoSettings, echo_is_permitted};
pub use self::{
    bound::BoundUdp,
    nat64::NAT64_NAME,
    resolver::{Fixed, Resolver, System},
    tcp::{KeepAlive, Silence, TcpFlow, connect_socket, connect_socket_from},
    udp::{ReceiveBuffer, SocketBuffers, UdpFlow, UdpSettings, connect_udp},
};
#[cfg(target_os = "linux")]
use crate::Packets;
use crate::{Datagrams, Error, ErrorKind, Opening, Overlay, Reason, Stream, Terms};

/// Says whether a packet may be sent to this address and port at all; asked after resolution, before anything is sent.
pub type Guard = dyn Fn(IpAddr, u16) -> Result<(), Reason> + Send + Sync;

/// How many addresses of one name are tried; the rest is left out. A hostile name server cannot make us knock anywhere else.
pub const MAX_ADDRESSES: usize = 8;

/// How long opening may take when the terms give no deadline.
const OPENING_LIMIT: Duration = Duration::from_secs(30);

/// Flows by the device's own sockets.
#[derive(Clone)]
pub struct Direct {
    resolver: Arc<dyn Resolver>,
    /// Asked instead of `resolver`, if there are any.
    servers: Arc<[SocketAddr]>,
    guard: Option<Arc<Guard>>,
    udp: UdpSettings,
    silence: Option<Silence>,
    answered: Option<Arc<Answered>>,
}

impl Default for Direct {
    fn default() -> Self {
        Self::new()
    }
}

impl Direct {
    /// The system's resolver, everything allowed, small socket buffers.
    pub fn new() -> Self {
        Self {
            resolver: Arc::new(System),
            servers: Arc::default(),
            guard: None,
            udp: UdpSettings::default(),
            silence: None,
            answered: None,
        }
    }

    /// Flows for those few that carry tunnels: large socket buffers, and TCP connections as [`Silence::OF_ENTRY`]. Of the addresses of a name the one
    /// that a TCP connection came about with last goes first: UDP cannot try them side by side, and a network may announce a version of IP that it
    /// does not carry. An IPv4 address that has no route is dialled where the network's NAT64 has it, if it has one.
    pub fn for_tunnels() -> Self {
        let settings = UdpSettings {
            buffers: SocketBuffers::Tunnel,
            ..UdpSettings::default()
        };
        let mut direct = Self::new()
            .udp_settings(settings)
            .silence(Silence::OF_ENTRY);
        direct.answered = Some(Arc::default());
        direct
    }

    /// Asks `resolver` for names.
    pub fn resolver(mut self, resolver: Arc<dyn Resolver>) -> Self {
        self.resolver = resolver;
        self
    }

    /// Asks these DNS servers for names, in this order, by this overlay's own sockets: the system's resolver may lead
    /// elsewhere.
    pub fn name_servers(mut self, servers: &[SocketAddr]) -> Self {
        self.servers = servers.into();
        self
    }

    /// Asks `guard` about each address.
    pub fn guard(
        mut self,
        guard: impl Fn(IpAddr, u16) -> Result<(), Reason> + Send + Sync + 'static,
    ) -> Self {
        self.guard = Some(Arc::new(guard));
        self
    }

    /// How UDP sockets are made.
    pub fn udp_settings(mut self, settings: UdpSettings) -> Self {
        self.udp = settings;
        self
    }

    /// Marks the packets of every socket, UDP and TCP: how the device's own flows escape what it catches of others.
    /// To be called after [`Self::udp_settings`]. A resolver that was given has sockets of its own.
    pub fn mark(mut self, mark: u32) -> Self {
        self.udp.mark = Some(mark);
        self
    }

    /// When TCP connections are given up whose other end is silent; by default the system says.
    pub fn silence(mut self, silence: Silence) -> Self {
        self.silence = Some(silence);
        self
    }

    /// The addresses of `target` that the guard allows, at most [`MAX_ADDRESSES`], in the resolver's order.
    ///
    /// # Errors
    /// The resolver's, or [`ErrorKind::Forbidden`] when the guard allows none.
    pub async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Error> {
        let found = match &target.host {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => self.look_up(name).await?,
        };
        self.allowed(&found, target.port)
    }

    async fn look_up(&self, name: &HostName) -> Result<Vec<IpAddr>, Error> {
        if self.servers.is_empty() {
            self.resolver.resolve(name).await
        } else {
            resolver::addresses(self, name).await
        }
    }

    fn allowed(&self, found: &[IpAddr], port: u16) -> Result<Vec<SocketAddr>, Error> {
        let mut refusal = Reason::NameNotFound;
        let mut allowed = Vec::new();
        for ip in found.iter().map(IpAddr::to_canonical) {
            match self.guard.as_ref().map_or(Ok(()), |guard| guard(ip, port)) {
                Ok(()) => allowed.push(SocketAddr::new(ip, port)),
                Err(reason) => refusal = reason,
            }
        }
        allowed.truncate(MAX_ADDRESSES);
        match (allowed.is_empty(), refusal) {
            (false, _) => Ok(allowed),
            (true, Reason::NameNotFound) => Err(no_such_name()),
            (true, reason) => {
                Err(Error::new(ErrorKind::Forbidden, "checking the target").because(reason))
            }
        }
    }

    async fn stream(&self, target: &Target) -> Result<TcpFlow, Error> {
        let how = (self.udp.mark, self.silence);
        let flow = tcp::connect_as(&self.ordered(target).await?, how).await?;
        if let (Some(answered), Ok(peer)) = (&self.answered, flow.peer_addr()) {
            answered.note(&target.host, peer.ip());
        }
        Ok(flow)
    }

    async fn datagrams(&self, target: &Target) -> Result<UdpFlow, Error> {
        udp::connect_first(&self.ordered(target).await?, &self.udp)
    }

    /// The addresses of `target`, first the one that answered last.
    async fn ordered(&self, target: &Target) -> Result<Vec<SocketAddr>, Error> {
        let mut addresses = self.addresses(target).await?;
        let Some(answered) = &self.answered else {
            return Ok(addresses);
        };
        if let Some(last) = answered.last(&target.host) {
            addresses.sort_by_key(|address| address.ip() != last);
        }
        if let (Host::Ip(IpAddr::V4(address)), [one]) = (&target.host, &*addresses)
            && !udp::has_route(*one, &self.udp)
        {
            let there = nat64::translated(self, *address).await;
            // What is forbidden stays so.
            addresses.extend(self.allowed(&there, target.port).unwrap_or_default());
        }
        Ok(addresses)
    }

    fn deadline(terms: &Terms) -> Terms {
        match terms.deadline {
            Some(_) => terms.clone(),
            None => terms.clone().within(OPENING_LIMIT),
        }
    }
}

impl Overlay for Direct {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(async move {
            let opening = self.stream(target);
            let flow = Self::deadline(terms).run("connecting", opening).await?;
            Ok(Stream::new(flow))
        })
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move {
            let opening = self.datagrams(target);
            let flow = Self::deadline(terms)
                .run("opening a UDP flow", opening)
                .await?;
            Ok(Box::new(flow) as Box<dyn Datagrams>)
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            let name = HostName::new(name).map_err(|_| no_such_name())?;
            let asking = self.look_up(&name);
            Self::deadline(terms).run("resolving a name", asking).await
        })
    }

    #[cfg(target_os = "linux")]
    fn open_packets<'a>(
        &'a self,
        scope: &'a Scope,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        Box::pin(async move {
            let opening = self.packets(scope);
            let terms = Self::deadline(terms);
            let flow = terms.run("opening a flow of echoes", opening).await?;
            Ok(Box::new(flow) as Box<dyn Packets>)
        })
    }

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        Box::pin(async move {
            let asking = resolver::ask(self, message);
            Self::deadline(terms).run("asking a resolver", asking).await
        })
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct")
            .field("resolver", &self.resolver)
            .field("guarded", &self.guard.is_some())
            .finish_non_exhaustive()
    }
}

/// Of the names of some hosts, the address that answered last.
#[derive(Default)]
struct Answered(Mutex<VecDeque<(HostName, IpAddr)>>);

impl Answered {
    /// Of so many hosts; one more takes the place of the oldest.
    const MOST: usize = 64;

    fn note(&self, host: &Host, address: IpAddr) {
        let Host::Name(name) = host else {
            return;
        };
        let mut known = self.0.lock();
        known.retain(|(other, _)| other != name);
        if known.len() >= Self::MOST {
            known.pop_front();
        }
        known.push_back((name.clone(), address));
    }

    fn last(&self, host: &Host) -> Option<IpAddr> {
        let Host::Name(name) = host else {
            return None;
        };
        let known = self.0.lock();
        let found = known.iter().find(|(other, _)| other == name);
        found.map(|(_, address)| *address)
    }
}

fn no_such_name() -> Error {
    Error::new(ErrorKind::TargetFailed, "resolving a name").because(Reason::NameNotFound)
}

// What an operating system's error means for a flow: whose fault, and why.

/// The error of a socket that was `doing` something with a target.
fn socket_error(error: io::Error, doing: &'static str) -> Error {
    let (kind, reason) = judge(&error);
    let judged = Error::new(kind, doing).caused_by(error);
    match reason {
        Some(reason) => judged.because(reason),
        None => judged,
    }
}

fn judge(error: &io::Error) -> (ErrorKind, Option<Reason>) {
    use ErrorKind::{PathFailed, TargetFailed, TimedOut};
    let failed = |reason| (TargetFailed, Some(reason));
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED | Errno::CONNRESET) => failed(Reason::Refused),
        Some(Errno::HOSTUNREACH | Errno::HOSTDOWN | Errno::ACCESS) => {
            failed(Reason::HostUnreachable)
        }
        #[cfg(unix)]
        Some(Errno::PERM) => failed(Reason::HostUnreachable),
        Some(Errno::NETUNREACH | Errno::NETDOWN | Errno::AFNOSUPPORT | Errno::INVAL) => {
            failed(Reason::NetworkUnreachable)
        }
        Some(Errno::TIMEDOUT) => (TimedOut, None),
        Some(Errno::MFILE | Errno::NOBUFS | Errno::ADDRNOTAVAIL) => {
            (PathFailed, Some(Reason::Limit))
        }
        #[cfg(unix)]
        Some(Errno::NFILE | Errno::NOMEM) => (PathFailed, Some(Reason::Limit)),
        _ => (TargetFailed, None),
    }
}

/// The error that tells the user more, of two attempts at the same target.
fn more_telling(first: Option<Error>, second: Error) -> Error {
    match first {
        Some(first) if weight(&first) >= weight(&second) => first,
        _ => second,
    }
}

fn weight(error: &Error) -> u8 {
    match (error.kind(), error.reason()) {
        (_, Some(Reason::Refused)) => 5,
        (_, Some(Reason::Limit)) => 4,
        (ErrorKind::TimedOut, _) => 3,
        (_, Some(Reason::HostUnreachable)) => 2,
        (_, Some(Reason::NetworkUnreachable)) => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
