//! Sockets that are bound and not connected, for flows of bound UDP: at which addresses, and whom they may send to and hear.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use hoplite_overlay::direct::BoundUdp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Egress, Origin};
use crate::{config::Config, failure::Failure};

/// The unspecified address of each family, IPv4 first.
pub(super) const FAMILIES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
];

/// All sockets of a relay that are bound.
#[derive(Default)]
pub(super) struct BoundSockets {
    enabled: bool,
    /// Where no pool has an address.
    addresses: Vec<IpAddr>,
    /// What they are bound to: these flows may have each other for peers, though this host is no target.
    open: Arc<Mutex<BTreeSet<SocketAddr>>>,
}

impl BoundSockets {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            enabled: config.bound_udp.enabled && config.is_egress(),
            addresses: config.bound_udp.addresses.clone(),
            open: Arc::default(),
        }
    }
}

/// The sockets of one flow, at most one of each family.
pub(crate) struct Bound {
    sockets: Vec<BoundUdp>,
    open: Arc<Mutex<BTreeSet<SocketAddr>>>,
}

impl Egress {
    /// The addresses of a flow of bound UDP, of each family at most one; none where it is not served.
    pub(crate) fn bound_sources(&self, origin: &Origin<'_>) -> Vec<IpAddr> {
        if !self.bound.enabled {
            return Vec::new();
        }
        let (lots, shown) = (origin.lots, origin.shown.as_ref());
        let own = |family: &IpAddr| {
            let mut own = self.bound.addresses.iter();
            own.find(|own| own.is_ipv4() == family.is_ipv4()).copied()
        };
        let source = |family: &IpAddr| {
            let drawn = self.pools.source(lots, shown, *family, Instant::now());
            drawn.or_else(|| own(family))
        };
        FAMILIES.iter().filter_map(source).collect()
    }

    /// Binds a socket at each of these addresses.
    ///
    /// # Errors
    /// The system's, if it lets none of them be bound.
    pub(crate) async fn bind(&self, sources: &[IpAddr]) -> Result<Bound, Failure> {
        let mut bound = Bound {
            sockets: Vec::with_capacity(sources.len()),
            open: self.bound.open.clone(),
        };
        let mut failure = Failure::Unreachable;
        for source in sources {
            match BoundUdp::bind(*source) {
                Ok(socket) => {
                    socket.writable().await?;
                    bound.open.lock().insert(socket.local_addr());
                    bound.sockets.push(socket);
                }
                Err(error) => failure = error.into(),
            }
        }
        if bound.sockets.is_empty() {
            Err(failure)
        } else {
            Ok(bound)
        }
    }

    /// Whether a flow of bound UDP may send to this peer, and hear it.
    pub(crate) fn permits_peer(&self, peer: SocketAddr) -> bool {
        self.permits_address(peer) || self.bound.open.lock().contains(&peer)
    }

    /// Whether a flow may give this peer a context. Each that is at an address where flows are: who was told which of them may be a peer would learn which
    /// ports others have.
    pub(crate) fn may_have_context(&self, peer: SocketAddr) -> bool {
        let all = SocketAddr::new(peer.ip(), 0)..=SocketAddr::new(peer.ip(), u16::MAX);
        let is_ours = || self.bound.open.lock().range(all).next().is_some();
        self.permits_address(peer) || is_ours()
    }
}

impl Bound {
    /// The sockets.
    pub(crate) fn sockets(&self) -> &[BoundUdp] {
        &self.sockets
    }

    /// The address and port of each.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().map(BoundUdp::local_addr).collect()
    }

    /// The socket for a peer; none for a family that the flow does not have, for IPv4 written as IPv6, and for what is no address of anybody.
    pub(crate) fn socket(&self, peer: SocketAddr) -> Option<&BoundUdp> {
        let sane = peer.ip() == peer.ip().to_canonical() && peer.port() != 0;
        let same = |socket: &&BoundUdp| socket.local_addr().is_ipv4() == peer.is_ipv4();
        self.sockets.iter().find(same).filter(|_| sane)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        for address in self.addresses() {
            open.remove(&address);
        }
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bound({} sockets)", self.sockets.len())
    }
}

impl fmt::Debug for BoundSockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoundSockets(enabled: {})", self.enabled)
    }
}
