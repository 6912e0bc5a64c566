//! IP packets in the in-memory network: every host answers echoes, and sends back what it gets of any other protocol.
//! Used by [`super::host`].

use std::{
    collections::VecDeque,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use hoplite_wire::{
    Host,
    connect_ip::{Prefix, Route, Scope, ScopeTarget},
    ip::{
        self, Packet,
        icmp::{self, Echo, Unreachable},
    },
};

use super::{Fault, Network, What, host::target_failed};
use crate::{Batch, Error, Packets, Reason, Received};

/// The addresses that every flow is given.
const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8)),
    IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 8)),
];
/// Packets that wait for the receiver; the next ones are lost.
const WAITING: usize = 1024;

/// A flow of packets.
pub(super) struct MemoryPackets {
    network: Network,
    host: IpAddr,
    routes: Vec<Route>,
    back: Mutex<Back>,
}

#[derive(Default)]
struct Back {
    packets: VecDeque<Vec<u8>>,
    receiver: Option<Waker>,
}

impl MemoryPackets {
    pub(super) fn open(network: &Network, host: IpAddr, scope: &Scope) -> Result<Self, Error> {
        let protocol = scope.protocol.unwrap_or(0);
        let to = |ip| Prefix::one(ip).route(protocol);
        let routes = match &scope.target {
            ScopeTarget::Name(name) => {
                let ip = network.find(&Host::Name(name.clone()))?;
                // Each family has its own ICMP.
                if matches!(protocol, ip::ICMP | ip::ICMPV6) && protocol != ip::icmp_of(ip) {
                    return Err(target_failed(Reason::NetworkUnreachable));
                }
                vec![to(ip)]
            }
            ScopeTarget::Prefix(prefix) => match prefix.single() {
                Some(ip) => vec![to(network.find(&Host::Ip(ip))?)],
                None => vec![prefix.route(protocol)],
            },
            ScopeTarget::Any => {
                let families = ADDRESSES.iter().filter_map(|ip| Prefix::new(*ip, 0));
                families.map(|all| all.route(protocol)).collect()
            }
        };
        Ok(Self {
            network: network.clone(),
            host,
            routes,
            back: Mutex::default(),
        })
    }

    fn back(&self) -> MutexGuard<'_, Back> {
        self.back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carry(&self, octets: &[u8]) -> Option<()> {
        let packet = ip::parse(octets).ok()?;
        let (there, protocol) = (packet.destination, packet.protocol);
        let routed = self
            .routes
            .iter()
            .any(|route| route.allows(there, protocol));
        if !ADDRESSES.contains(&packet.source) || !routed {
            return None;
        }
        let end = |ip| SocketAddr::new(ip, 0);
        let what = What::Datagram(octets.len());
        self.network.note(end(self.host), end(there), what);
        let (is_known, fault) = {
            let state = self.network.state();
            (state.hosts.contains(&there), state.fault)
        };
        let answer = match is_known {
            _ if fault != Fault::None => None,
            true => answer(&packet),
            false => icmp::unreachable(octets, Unreachable::Host),
        }?;
        let mut back = self.back();
        if back.packets.len() < WAITING {
            back.packets.push_back(answer);
        }
        back.receiver.take().map(Waker::wake)
    }
}

/// What a host sends back.
fn answer(packet: &Packet<'_>) -> Option<Vec<u8>> {
    let (here, there) = (packet.source, packet.destination);
    if let Some(echo) = icmp::echo(packet) {
        let reply = Echo {
            reply: true,
            ..echo
        };
        return (!echo.reply).then(|| reply.packet(there, here));
    }
    let mut out = Vec::new();
    let (protocol, len) = (packet.protocol, packet.payload.len());
    ip::write_header(&mut out, there, here, protocol, 64, len);
    out.extend_from_slice(packet.payload);
    Some(out)
}

impl Packets for MemoryPackets {
    fn addresses(&self) -> Vec<Prefix> {
        ADDRESSES.map(Prefix::one).to_vec()
    }

    fn routes(&self) -> Vec<Route> {
        self.routes.clone()
    }

    fn mtu(&self) -> usize {
        self.network.state().road.max_payload
    }

    fn poll_send(&self, _: &mut Context<'_>, packets: Batch<'_>) -> Poll<Result<(), Error>> {
        let mtu = self.mtu();
        for packet in packets.payloads().filter(|packet| packet.len() <= mtu) {
            self.carry(packet);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        let mut back = self.back();
        while let Some(packet) = back.packets.pop_front() {
            if let Some(to) = buf.get_mut(..packet.len()) {
                to.copy_from_slice(&packet);
                let (len, segment) = (packet.len(), packet.len());
                return Poll::Ready(Ok(Received { len, segment }));
            }
        }
        back.receiver = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl fmt::Debug for MemoryPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryPackets")
    }
}
