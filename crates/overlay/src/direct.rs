//! The overlay that is none: flows leave by this device's own sockets.
//! The first hop is dialled through it, the relay's egress is made of its parts, and it is the baseline of every measurement.
//! The only place in the workspace that opens a socket towards a target or asks the system for a name.

mod attempts;
mod failure;
pub mod resolver;
pub mod tcp;
pub mod udp;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hoplite_wire::{Host, HostName, Target};

pub use self::{
    attempts::STAGGER,
    resolver::{Fixed, Resolver, System},
    tcp::{TcpFlow, connect_socket, connect_tcp},
    udp::{SocketBuffers, UdpFlow, UdpSettings, connect_udp},
};
use crate::{Datagrams, Error, ErrorKind, Opening, Overlay, Reason, Stream, Terms};

/// Says whether a packet may be sent to this address and port at all; asked after resolution, before anything is sent.
pub type Guard = dyn Fn(IpAddr, u16) -> Result<(), Reason> + Send + Sync;

/// How many addresses of one name are tried; the rest is left out. A hostile name server cannot make us knock anywhere else.
pub const MAX_ADDRESSES: usize = 8;

/// How long opening may take when the terms give no deadline.
pub const OPENING_LIMIT: Duration = Duration::from_secs(30);

/// Flows by the device's own sockets.
#[derive(Clone)]
pub struct Direct {
    resolver: Arc<dyn Resolver>,
    guard: Option<Arc<Guard>>,
    udp: UdpSettings,
    limit: Duration,
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
            guard: None,
            udp: UdpSettings::default(),
            limit: OPENING_LIMIT,
        }
    }

    /// The same for the few flows that carry tunnels: large socket buffers.
    pub fn for_tunnels() -> Self {
        Self::new().udp_settings(UdpSettings {
            buffers: SocketBuffers::Tunnel,
            ..UdpSettings::default()
        })
    }

    /// Asks `resolver` for names.
    pub fn resolver(mut self, resolver: Arc<dyn Resolver>) -> Self {
        self.resolver = resolver;
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

    /// How long opening may take when the terms give no deadline.
    pub fn opening_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The addresses of `target` that the guard allows, at most [`MAX_ADDRESSES`], in the resolver's order.
    ///
    /// # Errors
    /// The resolver's, or [`ErrorKind::Forbidden`] when the guard allows none.
    pub async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Error> {
        let found = match &target.host {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => self.resolver.resolve(name).await?,
        };
        self.allowed(&found, target.port)
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
        tcp::connect_marked(&self.addresses(target).await?, self.udp.mark).await
    }

    async fn datagrams(&self, target: &Target) -> Result<UdpFlow, Error> {
        udp::connect_first(&self.addresses(target).await?, &self.udp)
    }

    fn deadline(&self, terms: &Terms) -> Terms {
        match terms.deadline {
            Some(_) => terms.clone(),
            None => terms.clone().within(self.limit),
        }
    }
}

impl Overlay for Direct {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(async move {
            let opening = self.stream(target);
            let flow = self.deadline(terms).run("connecting", opening).await?;
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
            let flow = self
                .deadline(terms)
                .run("opening a UDP flow", opening)
                .await?;
            Ok(Box::new(flow) as Box<dyn Datagrams>)
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            let name = HostName::new(name).map_err(|_| no_such_name())?;
            let asking = self.resolver.resolve(&name);
            self.deadline(terms).run("resolving a name", asking).await
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

fn no_such_name() -> Error {
    Error::new(ErrorKind::TargetFailed, "resolving a name").because(Reason::NameNotFound)
}

#[cfg(test)]
mod tests;
