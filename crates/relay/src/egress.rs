//! The way out: from a target to a socket. Every address passes the policy, whether given or looked up, TCP and UDP alike.
//! The request handler uses it; nothing else in this room opens a socket towards a target. [`answer`] tells what a name resolves to.

mod answer;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hoplite_overlay::direct::{SocketBuffers, UdpFlow, UdpSettings, connect_socket, connect_udp};
use hoplite_wire::{Host, HostName, Target, special};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{
    config::Config,
    failure::Failure,
    limits::Asker,
    local::Local,
    metrics::{self, Metrics},
    policy::{Permit, Policy, Refusal},
    resolve::Resolver,
};

/// Opens sockets towards permitted targets.
#[derive(Debug)]
pub(crate) struct Egress {
    policy: Policy,
    resolver: Resolver,
    patience: std::time::Duration,
}

impl Egress {
    /// The way out of a relay that listens at `listen`, on the host that has the addresses `local`.
    pub(crate) fn new(config: &Config, listen: &[SocketAddr], local: Arc<Local>) -> Self {
        Self {
            policy: Policy::new(config, listen, local),
            resolver: Resolver::new(&config.egress.resolver, config.limits.resolve),
            patience: config.limits.connect,
        }
    }

    /// Connects to `target` over TCP, to whichever of its permitted addresses answers first.
    ///
    /// # Errors
    /// The policy's, the resolver's or the target's.
    pub(crate) async fn tcp(
        &self,
        target: &Target,
        asker: &Asker<'_>,
        metrics: &Metrics,
    ) -> Result<TcpStream, Failure> {
        let addresses = self.addresses(target, asker, metrics).await?;
        let start = Instant::now();
        let connecting = timeout(self.patience, connect_socket(&addresses));
        let socket = connecting.await.map_err(|_| Failure::TimedOut)??;
        metrics::observe(&metrics.connect, start.elapsed());
        Ok(socket)
    }

    /// Opens a connected UDP socket towards the first permitted address of `target` that has a route. What goes to a relay is a tunnel.
    ///
    /// # Errors
    /// The policy's, the resolver's or the system's.
    pub(crate) async fn udp(
        &self,
        target: &Target,
        asker: &Asker<'_>,
        metrics: &Metrics,
    ) -> Result<UdpFlow, Failure> {
        let mut failure = Failure::Unreachable;
        let settings = UdpSettings {
            buffers: match self.policy.target(target)? {
                Permit::Relay => SocketBuffers::Tunnel,
                Permit::Checked => SocketBuffers::Ordinary,
            },
            ..UdpSettings::default()
        };
        for address in self.addresses(target, asker, metrics).await? {
            match connect_udp(address, &settings) {
                Ok(flow) => return flow.writable().await.map(|()| flow).map_err(Failure::from),
                Err(error) => failure = error.into(),
            }
        }
        Err(failure)
    }

    /// The addresses of `host` that the policy permits, whatever the port; at least one. For packets, which are judged again one by one.
    ///
    /// # Errors
    /// The policy's or the resolver's.
    pub(crate) async fn hosts(
        &self,
        host: Host,
        asker: &Asker<'_>,
        metrics: &Metrics,
    ) -> Result<Vec<IpAddr>, Failure> {
        let target = Target { host, port: 0 };
        let found = self.addresses(&target, asker, metrics).await?;
        Ok(found.iter().map(SocketAddr::ip).collect())
    }

    /// Whether a packet may be sent to this address and port; port 0 where there are none.
    pub(crate) fn permits(&self, address: SocketAddr) -> bool {
        self.policy.address(address).is_ok()
    }

    /// Whether a name is looked up to connect to this port of it.
    pub(crate) fn permits_name(&self, name: &HostName, port: u16) -> bool {
        self.policy.name(name, port).is_ok()
    }

    /// Whether the operator names a relay there.
    pub(crate) fn names_relay(&self, address: SocketAddr) -> bool {
        self.policy.names_relay(address)
    }

    /// Whether the operator names the address as one that clients may reach.
    pub(crate) fn names(&self, address: SocketAddr) -> bool {
        self.policy.names(address)
    }

    /// Whether circuits may be extended to a relay there.
    pub(crate) fn permits_relay(&self, address: SocketAddr) -> bool {
        self.policy.relay(address).is_ok()
    }

    /// The addresses of `name` that a client may be told.
    ///
    /// # Errors
    /// The policy's or the resolver's.
    pub(crate) async fn tells(
        &self,
        name: &HostName,
        asker: &Asker<'_>,
        metrics: &Metrics,
    ) -> Result<Vec<IpAddr>, Failure> {
        let localhost = special::is_localhost(name.as_str());
        if !localhost && !self.policy.looks_up(name.as_str()) {
            return Err(Refusal::Name.into());
        }
        let mut found = self.resolve(name, asker, metrics).await?;
        found.retain(|ip| self.policy.tells(*ip));
        match found.is_empty() {
            true => Err(Refusal::Address.into()),
            false => Ok(found),
        }
    }

    /// The addresses of `target` that the policy permits; at least one.
    async fn addresses(
        &self,
        target: &Target,
        asker: &Asker<'_>,
        metrics: &Metrics,
    ) -> Result<Vec<SocketAddr>, Failure> {
        let permit = self.policy.target(target)?;
        let found = match &target.host {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => self.resolve(name, asker, metrics).await?,
        };
        Ok(self.permitted(permit, &found, target.port)?)
    }

    async fn resolve(
        &self,
        name: &HostName,
        asker: &Asker<'_>,
        metrics: &Metrics,
    ) -> Result<Vec<IpAddr>, Failure> {
        if !special::is_localhost(name.as_str()) && !asker.admits_query() {
            return Err(Failure::Limited);
        }
        let _place = asker.look_up().map_err(|_| Failure::Limited)?;
        let start = Instant::now();
        let found = self.resolver.addresses(name).await;
        metrics::observe(&metrics.resolve, start.elapsed());
        Ok(found?)
    }

    fn permitted(
        &self,
        permit: Permit,
        found: &[IpAddr],
        port: u16,
    ) -> Result<Vec<SocketAddr>, Refusal> {
        let mut refusal = Refusal::Address;
        let mut permitted = Vec::with_capacity(found.len());
        for ip in found {
            let address = SocketAddr::new(ip.to_canonical(), port);
            match self.policy.resolved(permit, address) {
                Ok(()) => permitted.push(address),
                Err(why) => refusal = why,
            }
        }
        match permitted.is_empty() {
            true => Err(refusal),
            false => Ok(permitted),
        }
    }
}
