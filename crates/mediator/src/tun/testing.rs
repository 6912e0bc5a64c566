//! What the tests of the transparent front end share: a port in memory that shows packets as programs get them, and a bench with a
//! router on one side and the in-memory network on the other. Nothing here needs rights or a real clock.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use hoplite_overlay::{Overlay, memory::Network};
use hoplite_wire::ip::{self, Packet, tcp};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    Config, DeviceContext, FlowKey, SocketOwners,
    device::IncomingPacket,
    outgoing::{OutgoingPacket, PacketSink, segment_packet, tcp_headers, udp_headers},
    router::Router,
};
use crate::users::User;

/// Where programs are, by IPv4.
pub(crate) const PROGRAM: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
/// Where programs are, by IPv6.
pub(crate) const PROGRAM_V6: IpAddr =
    IpAddr::V6(Ipv6Addr::new(0xfd68, 0x6f70, 0x6c69, 0x7465, 0, 0, 0, 1));
/// A target, by IPv4.
pub(crate) const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));
/// A target, by IPv6.
pub(crate) const TARGET_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9));

/// A port in memory. Large packets are cut as the kernel would cut them, and checked.
#[derive(Debug)]
pub(crate) struct MemorySink {
    mtu: u16,
    sent: Mutex<VecDeque<Vec<u8>>>,
    writes: AtomicUsize,
    full: AtomicBool,
    arrived: Notify,
}

impl MemorySink {
    pub(crate) fn new(mtu: u16) -> Arc<Self> {
        Arc::new(Self {
            mtu,
            sent: Mutex::default(),
            writes: AtomicUsize::new(0),
            full: AtomicBool::new(false),
            arrived: Notify::new(),
        })
    }

    /// From now on it takes nothing, or takes again.
    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    /// How often something was taken, large packets counted once.
    pub(crate) fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }

    /// The next packet that a program gets.
    pub(crate) async fn next(&self) -> Vec<u8> {
        loop {
            let arrived = self.arrived.notified();
            if let Some(packet) = self.try_next() {
                return packet;
            }
            arrived.await;
        }
    }

    /// The next packet, if there is one now.
    pub(crate) fn try_next(&self) -> Option<Vec<u8>> {
        self.sent.lock().pop_front()
    }
}

impl PacketSink for MemorySink {
    fn send(&self, packet: OutgoingPacket<'_>) -> bool {
        if self.full.load(Ordering::SeqCst) {
            return false;
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        segment_packet(packet, |headers, payload| {
            let bytes = [headers, payload[0], payload[1]].concat();
            let parsed = ip::parse(&bytes).expect("a packet");
            assert!(parsed.checksum_is_right(), "{parsed:?}");
            assert_eq!(parsed.header_len + parsed.payload.len(), bytes.len());
            self.sent.lock().push_back(bytes);
            true
        });
        self.arrived.notify_one();
        true
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }
}

/// A machine whose programs are told apart by the ports that they send from.
#[derive(Debug)]
struct ByPort(fn(u16) -> User);

impl SocketOwners for ByPort {
    fn user(&self, _: u8, key: FlowKey) -> Option<User> {
        Some((self.0)(key.program.port()))
    }
}

/// A router between a program that the test plays and a network in memory.
pub(crate) struct Bench {
    pub(crate) network: Network,
    pub(crate) sink: Arc<MemorySink>,
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) router: Router,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// With another configuration than the default.
    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let network = Network::new(1);
        let overlay = network.overlay(Ipv4Addr::new(192, 0, 2, 1).into());
        Self::over(Arc::new(overlay), network, change)
    }

    /// With another configuration, on a machine where `user` is behind a port.
    pub(crate) fn shared_by(user: fn(u16) -> User, change: impl FnOnce(&mut Config)) -> Self {
        let mut bench = Self::with(change);
        bench.tell_apart(user);
        bench
    }

    /// From now on `user` is behind a port; all flows are forgotten.
    pub(crate) fn tell_apart(&mut self, user: fn(u16) -> User) {
        let (config, sink) = (self.context.config.clone(), Arc::clone(&self.sink));
        let (overlay, counters) = (&self.context.overlay, &self.context.counters);
        let context = DeviceContext::new(config, Arc::clone(overlay), sink, Arc::clone(counters));
        self.context = Arc::new(context.with_owners(Some(Box::new(ByPort(user)))));
        self.router = Router::new(&self.context);
    }

    /// With another overlay than that of the network.
    pub(crate) fn over(
        overlay: Arc<dyn Overlay>,
        network: Network,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = Config::default();
        change(&mut config);
        assert_eq!(config.check(), Ok(()));
        let sink = MemorySink::new(config.device.mtu);
        let back = Arc::clone(&sink) as Arc<dyn PacketSink>;
        let context = Arc::new(DeviceContext::new(config, overlay, back, Arc::default()));
        let router = Router::new(&context);
        Self {
            network,
            sink,
            context,
            router,
        }
    }

    /// The program sends a packet.
    pub(crate) fn send(&mut self, packet: impl Into<Bytes>) {
        self.take(&IncomingPacket {
            bytes: packet.into(),
            checked: false,
            segment: None,
        });
    }

    /// The kernel hands over a packet with what its header says.
    pub(crate) fn take(&mut self, incoming: &IncomingPacket) {
        self.router.take(incoming, Instant::now());
        self.router.flush(Instant::now());
    }
}

/// A UDP packet from `from`, finished.
pub(crate) fn udp_packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut headers = Vec::new();
    udp_headers(&mut headers, from, to, payload.len());
    finished(OutgoingPacket::udp(&headers, [payload, &[]], None))
}

/// A TCP packet between two hosts, finished; the ports are in `header`.
pub(crate) fn tcp_packet(
    from: IpAddr,
    to: IpAddr,
    header: &tcp::Header,
    payload: &[u8],
) -> Vec<u8> {
    let mut headers = Vec::new();
    tcp_headers(&mut headers, from, to, header, payload.len());
    finished(OutgoingPacket::tcp(&headers, [payload, &[]], None))
}

/// The packet in `bytes`.
pub(crate) fn parsed(bytes: &[u8]) -> Packet<'_> {
    ip::parse(bytes).expect("a packet")
}

fn finished(packet: OutgoingPacket<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    segment_packet(packet, |headers, payload| {
        out = [headers, payload[0], payload[1]].concat();
        true
    });
    out
}
