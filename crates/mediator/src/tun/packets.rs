//! Packets that are neither TCP nor UDP: ICMP echo first of all. Each protocol and target is a flow of its own through the overlay
//! (CONNECT-IP), so that nothing ties two of them together. Paper 003 §5.1: "each IP-packet flow is transmitted over an individual channel".
//! A name behind a temporary address travels unresolved, as with every flow.

use std::{
    cell::RefCell,
    collections::HashMap,
    future::poll_fn,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hoplite_overlay::{Batch, Error, Packets};
use hoplite_wire::{
    Host,
    connect_ip::{Route, Scope},
    ip::{self, ICMP, ICMPV6, Packet, icmp::Unreachable},
};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until, timeout_at},
};

use self::rewrite::{EchoIdentifiers, FlowAddresses};
use super::{
    DeviceContext,
    config::Privacy,
    outgoing::{
        OutgoingPacket, tell_time_exceeded, tell_too_big, tell_unreachable, unreachable_for,
    },
};

mod rewrite;

/// Packets that wait for a flow; the next ones are dropped and counted.
const WAITING: usize = 32;
/// IGMP and PIM: they speak of groups on this link.
const LINK_ONLY: [u8; 2] = [2, 103];

/// What tells a flow of packets from others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PacketFlowKey {
    pub(super) protocol: u8,
    pub(super) program: IpAddr,
    pub(super) target: IpAddr,
}

/// All flows of other protocols than TCP and UDP.
#[derive(Debug)]
pub(crate) struct PacketTable {
    context: Arc<DeviceContext>,
    /// At most `flows.packets`.
    flows: HashMap<PacketFlowKey, FlowEntry>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct FlowEntry {
    packets: mpsc::Sender<Bytes>,
    used: Instant,
    task: AbortHandle,
}

impl PacketTable {
    pub(crate) fn new(context: Arc<DeviceContext>) -> Self {
        Self {
            context,
            flows: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// A whole packet of a program; `bytes` begin with it.
    pub(crate) fn received(&mut self, packet: &Packet<'_>, bytes: &Bytes, now: Instant) {
        if !is_carried(packet) {
            return self.context.counters.other_dropped.add(1);
        }
        let key = PacketFlowKey {
            protocol: packet.protocol,
            program: packet.source,
            target: packet.destination,
        };
        let len = packet.header_len + packet.payload.len();
        let entry = self.entry(key, now);
        entry.used = now;
        if let Err(TrySendError::Full(bytes)) = entry.packets.try_send(bytes.slice(..len)) {
            drop(bytes);
            self.context.counters.other_dropped.add(1);
        }
    }

    fn entry(&mut self, key: PacketFlowKey, now: Instant) -> &mut FlowEntry {
        while self.tasks.try_join_next().is_some() {}
        let is_over = |entry: &FlowEntry| entry.packets.is_closed();
        if self.flows.get(&key).is_some_and(is_over) {
            self.flows.remove(&key);
        }
        if !self.flows.contains_key(&key) {
            self.evict();
        }
        let Self {
            context,
            flows,
            tasks,
        } = self;
        flows.entry(key).or_insert_with(|| {
            let (packets, waiting) = mpsc::channel(WAITING);
            let flow = PacketFlow::new(Arc::clone(context), key);
            FlowEntry {
                packets,
                used: now,
                task: tasks.spawn(flow.run(waiting)),
            }
        })
    }

    /// Those that are over go, then the one that was used longest ago.
    fn evict(&mut self) {
        let bound = self.context.config.flows.packets;
        if self.flows.len() < bound {
            return;
        }
        self.flows.retain(|_, entry| !entry.packets.is_closed());
        if self.flows.len() < bound {
            return;
        }
        let oldest = self.flows.iter().min_by_key(|(_, entry)| entry.used);
        if let Some(entry) = oldest
            .map(|(key, _)| *key)
            .and_then(|key| self.flows.remove(&key))
        {
            entry.task.abort();
        }
    }
}

/// Of ICMP only echo requests: what a program's system says of packets that we gave it concerns nobody else.
/// Fragments are nobody's: they could not be put together again.
fn is_carried(packet: &Packet<'_>) -> bool {
    match packet.protocol {
        _ if packet.fragment => false,
        ICMP | ICMPV6 => ip::icmp::echo(packet).is_some_and(|echo| !echo.reply),
        protocol => !LINK_ONLY.contains(&protocol),
    }
}

/// Tells the program why a packet of its does not arrive.
pub(super) fn refuse(context: &DeviceContext, bytes: &[u8], why: Unreachable) {
    context.counters.other_dropped.add(1);
    tell_unreachable(context, bytes, why);
}

impl std::fmt::Debug for PacketFlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PacketFlowKey(protocol {})", self.protocol)
    }
}

/// How long a flow that failed answers for itself, so that a program that insists does not make us open flows without a pause.
const HOLD_OFF: Duration = Duration::from_secs(1);
/// What every packet leaves with where anonymity comes first.
const HOP_LIMIT: u8 = 64;
/// Any port: `names` speaks of targets of TCP and UDP.
const ANY_PORT: u16 = 1;
/// What one receive call may bring.
const BUFFER: usize = 65_535;

thread_local! {
    static RECEIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// One flow of packets of one protocol to one target: opens, then moves packets both ways until it is idle or fails. A task of its own.
struct PacketFlow {
    context: Arc<DeviceContext>,
    key: PacketFlowKey,
    identifiers: EchoIdentifiers,
}

impl PacketFlow {
    fn new(context: Arc<DeviceContext>, key: PacketFlowKey) -> Self {
        context.counters.packets_opened.add(1);
        Self {
            context,
            key,
            identifiers: EchoIdentifiers::default(),
        }
    }

    /// Runs until it is over; then its slot may be given to another.
    async fn run(mut self, mut waiting: mpsc::Receiver<Bytes>) {
        let now = Instant::now();
        let _mapping = self.context.names.hold(self.key.target, now);
        let address = SocketAddr::new(self.key.target, ANY_PORT);
        let failed = match self.context.meaning(address, now) {
            Some(target) => self.serve(&target.host, &mut waiting).await,
            None => Some(Unreachable::Host),
        };
        if let Some(why) = failed {
            self.refuse_for_a_while(why, &mut waiting).await;
        }
    }

    /// Answers what to tell the program, if it has to be told something.
    async fn serve(
        &mut self,
        host: &Host,
        waiting: &mut mpsc::Receiver<Bytes>,
    ) -> Option<Unreachable> {
        let mut scope = Scope::flow(host, self.key.protocol);
        if matches!(host, Host::Name(_)) && self.is_icmp() {
            // A name's temporary addresses are of both families, it may be of one: echoes of either will do.
            scope.protocol = None;
        }
        // Nobody knows whose they are: all programs' to one target are one flow.
        let terms = self.context.terms(None);
        let opening = self.context.overlay.open_packets(&scope, &terms);
        let opened = terms.run("opening a flow of packets", opening).await;
        let ended = match opened {
            Ok(packets) => self.carry(&*packets, waiting).await,
            Err(error) => Err(error),
        };
        let error = ended.err()?;
        self.context.flow_failed(self.key.target, &error);
        Some(unreachable_for(&error))
    }

    async fn refuse_for_a_while(&self, why: Unreachable, waiting: &mut mpsc::Receiver<Bytes>) {
        let until = Instant::now() + HOLD_OFF;
        while let Ok(Some(packet)) = timeout_at(until, waiting.recv()).await {
            refuse(&self.context, &packet, why);
        }
    }

    async fn carry(
        &mut self,
        packets: &dyn Packets,
        waiting: &mut mpsc::Receiver<Bytes>,
    ) -> Result<(), Error> {
        let limit = self.context.config.flows.idle_packets;
        let mut until = Instant::now() + limit;
        loop {
            tokio::select! {
                packet = waiting.recv() => match packet {
                    Some(packet) => self.up(packets, &packet).await?,
                    None => return Ok(()),
                },
                received = poll_fn(|cx| self.poll_down(cx, packets)) => received?,
                () = sleep_until(until) => return Ok(()),
            }
            until = Instant::now() + limit;
        }
    }

    /// The ends as the far end sees them: the address that it assigned, and the target's, which of a name the routes tell.
    fn theirs(&self, packets: &dyn Packets) -> Option<FlowAddresses> {
        let (target, routes) = (self.key.target, packets.routes());
        let itself = routes.iter().any(|route| route.contains(target));
        let singles = || routes.iter().filter_map(Route::single);
        let found = || {
            let same = singles().find(|far| far.is_ipv4() == target.is_ipv4());
            same.or_else(|| singles().next().filter(|_| self.is_icmp()))
        };
        let far = if itself { Some(target) } else { found() }?;
        let near = packets.source(far)?;
        Some(FlowAddresses { near, far })
    }

    fn is_icmp(&self) -> bool {
        matches!(self.key.protocol, ICMP | ICMPV6)
    }

    async fn up(&mut self, packets: &dyn Packets, bytes: &[u8]) -> Result<(), Error> {
        let Ok(packet) = ip::parse(bytes) else {
            return Ok(());
        };
        let Some(theirs) = self.theirs(packets) else {
            refuse(&self.context, bytes, Unreachable::Network);
            return Ok(());
        };
        let hop_limit = match self.context.config.device.privacy {
            Privacy::Anonymity => HOP_LIMIT,
            Privacy::Compatibility => packet.hop_limit.saturating_sub(1),
        };
        if hop_limit == 0 {
            tell_time_exceeded(&self.context, bytes);
            return Ok(());
        }
        let Some(rewritten) = rewrite::up(&packet, theirs, hop_limit, &mut self.identifiers) else {
            refuse(&self.context, bytes, Unreachable::Network);
            return Ok(());
        };
        if rewritten.len() > packets.mtu() {
            let own = packet.header_len + packet.payload.len();
            let mtu = (packets.mtu() + own).saturating_sub(rewritten.len());
            tell_too_big(&self.context, bytes, mtu);
            return Ok(());
        }
        self.context.counters.other_up.add(1);
        poll_fn(|cx| packets.poll_send(cx, Batch::one(&rewritten))).await
    }

    fn poll_down(&self, cx: &mut Context<'_>, packets: &dyn Packets) -> Poll<Result<(), Error>> {
        RECEIVED.with_borrow_mut(|buffer| {
            let received = ready!(packets.poll_recv(cx, buffer))?;
            let batch = Batch {
                contents: buffer.get(..received.len).unwrap_or_default(),
                segment: received.segment.max(1),
            };
            for bytes in batch.payloads() {
                if self.down(packets, bytes).is_none() {
                    self.context.counters.other_dropped.add(1);
                }
            }
            Poll::Ready(Ok(()))
        })
    }

    fn down(&self, packets: &dyn Packets, bytes: &[u8]) -> Option<()> {
        let packet = ip::parse(bytes).ok()?;
        let ours = FlowAddresses {
            near: self.key.program,
            far: self.key.target,
        };
        let theirs = self.theirs(packets)?;
        let rewritten = rewrite::down(&packet, self.key.protocol, theirs, ours, &self.identifiers)?;
        self.context.sink.send(OutgoingPacket::whole(&rewritten));
        self.context.counters.other_down.add(1);
        Some(())
    }
}

impl Drop for PacketFlow {
    fn drop(&mut self) {
        self.context.counters.packets_closed.add(1);
    }
}

#[cfg(test)]
mod tests {
    //! Pings and other packets of programs, through the router to a network in memory.

    use std::net::{IpAddr, Ipv4Addr};

    use hoplite_wire::{
        HostName,
        ip::{self, Packet, icmp::Echo},
    };
    use tokio::time::Instant;

    use crate::tun::{
        config::{Config, Privacy},
        testing::{Bench, PROGRAM, PROGRAM_V6, TARGET, TARGET_V6, parsed},
    };
    use crate::users::User;

    fn ping(from: IpAddr, to: IpAddr, sequence: u16, payload: &[u8]) -> Vec<u8> {
        let echo = Echo {
            reply: false,
            identifier: 4711,
            sequence,
            payload,
        };
        echo.packet(from, to)
    }

    /// The next packet that a program gets; the clock is paused, so that nobody waits long for one that does not come.
    async fn next(bench: &Bench) -> Vec<u8> {
        let limit = std::time::Duration::from_secs(300);
        let came = tokio::time::timeout(limit, bench.sink.next()).await;
        came.expect("a packet for the program")
    }

    /// A packet of another protocol.
    fn packet(from: IpAddr, to: IpAddr, protocol: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        ip::write_header(&mut out, from, to, protocol, hop_limit, payload.len());
        out.extend_from_slice(payload);
        out
    }

    /// Type and code of the ICMP error that a program gets, and what it quotes.
    fn error<'a>(packet: &Packet<'a>) -> ([u8; 2], &'a [u8]) {
        let payload = packet.payload;
        ([payload[0], payload[1]], &payload[8..])
    }

    #[tokio::test(start_paused = true)]
    async fn a_ping_is_answered_by_its_target() {
        for (program, target) in [(PROGRAM, TARGET), (PROGRAM_V6, TARGET_V6)] {
            let mut bench = Bench::new();
            let _host = bench.network.bind(target);
            for sequence in 0..3 {
                bench.send(ping(program, target, sequence, b"are you there?"));
                let reply = next(&bench).await;
                let packet = parsed(&reply);
                assert_eq!((packet.source, packet.destination), (target, program));
                let echo = ip::icmp::echo(&packet).expect("an echo");
                let wanted = Echo {
                    reply: true,
                    identifier: 4711,
                    sequence,
                    payload: b"are you there?",
                };
                assert_eq!(echo, wanted);
            }
            let seen = bench.network.seen();
            assert_eq!(seen.len(), 3, "each ping was carried, nobody else answered");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_behind_a_temporary_address_is_pinged_where_the_far_end_finds_it() {
        let mut bench = Bench::new();
        let _host = bench.network.bind(TARGET);
        let name = HostName::new("site.example").expect("a name");
        bench.network.host(name.clone(), TARGET);
        let pair = bench
            .context
            .names
            .pair(&name, User::at(PROGRAM), Instant::now());
        let pair = pair.expect("free addresses");
        let temporary = IpAddr::V4(pair.v4);
        bench.send(ping(PROGRAM, temporary, 1, b"are you there?"));
        let reply = next(&bench).await;
        let packet = parsed(&reply);
        assert_eq!((packet.source, packet.destination), (temporary, PROGRAM));
        let seen = bench.network.seen();
        assert_eq!(
            seen[0].to.ip(),
            TARGET,
            "the name's address, not the temporary one"
        );
        // It has no IPv6 address, but stands behind one: which a system prefers.
        bench.send(ping(PROGRAM_V6, pair.v6.into(), 2, b"and so?"));
        let reply = next(&bench).await;
        let packet = parsed(&reply);
        assert_eq!(packet.source, IpAddr::V6(pair.v6));
        let echo = ip::icmp::echo(&packet).expect("an echo");
        assert_eq!(
            (echo.reply, echo.identifier, echo.sequence),
            (true, 4711, 2)
        );
        assert_eq!(bench.network.seen()[1].to.ip(), TARGET);
    }

    #[tokio::test(start_paused = true)]
    async fn a_ping_to_nobody_is_told_so() {
        let mut bench = Bench::new();
        let request = ping(PROGRAM, TARGET, 1, b"hello?");
        bench.send(request.clone());
        let told = next(&bench).await;
        assert_eq!(error(&parsed(&told)), ([3, 1], &request[..]));
        assert_eq!(bench.context.counters.snapshot().failed_target, 1);
        bench.send(request);
        next(&bench).await;
        let failed = bench.context.counters.snapshot().failed_target;
        assert_eq!(failed, 1, "who insists is answered without another flow");
    }

    #[tokio::test(start_paused = true)]
    async fn other_protocols_pass_with_their_payload_alone() {
        let mut bench = Bench::new();
        let _host = bench.network.bind(TARGET);
        bench.send(packet(PROGRAM, TARGET, 132, 3, b"sctp or so"));
        let back = next(&bench).await;
        let back = parsed(&back);
        assert_eq!((back.source, back.destination), (TARGET, PROGRAM));
        assert_eq!((back.protocol, back.payload), (132, &b"sctp or so"[..]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_system_says_of_our_packets_is_carried_nowhere() {
        let mut bench = Bench::new();
        let _host = bench.network.bind(TARGET);
        let mut reply = ping(PROGRAM, TARGET, 1, b"");
        (reply[20], reply[22]) = (0, reply[22].wrapping_add(8));
        bench.send(reply);
        let cause = ping(TARGET, PROGRAM, 1, b"");
        let unreachable = ip::icmp::unreachable(&cause, ip::icmp::Unreachable::Port);
        bench.send(unreachable.expect("an error"));
        bench.send(packet(PROGRAM, TARGET, 2, 1, b"igmp"));
        tokio::task::yield_now().await;
        assert_eq!(bench.context.counters.snapshot().other_dropped, 3);
        assert!(bench.network.seen().is_empty() && bench.sink.try_next().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_packet_above_the_path_mtu_is_answered_with_the_size() {
        let mut bench = Bench::new();
        let _host = bench.network.bind(TARGET);
        let request = ping(PROGRAM, TARGET, 1, &[7; 1472]);
        bench.send(request);
        let told = next(&bench).await;
        let told = parsed(&told);
        assert_eq!(error(&told).0, [3, 4]);
        assert_eq!(told.payload[6..8], 1472_u16.to_be_bytes());
    }

    fn compatible(config: &mut Config) {
        config.device.privacy = Privacy::Compatibility;
    }

    #[tokio::test(start_paused = true)]
    async fn compatibility_counts_hops_and_says_when_they_are_used_up() {
        let mut bench = Bench::with(compatible);
        let _host = bench.network.bind(TARGET);
        let last = packet(PROGRAM, TARGET, 132, 1, b"traced");
        bench.send(last.clone());
        let told = next(&bench).await;
        assert_eq!(error(&parsed(&told)), ([11, 0], &last[..]));
        bench.send(packet(PROGRAM, TARGET, 132, 2, b"traced"));
        assert_eq!(parsed(&next(&bench).await).payload, b"traced");
    }

    #[tokio::test(start_paused = true)]
    async fn anonymity_does_not_carry_the_hop_limit() {
        let mut bench = Bench::new();
        let _host = bench.network.bind(TARGET);
        bench.send(packet(PROGRAM, TARGET, 132, 1, b"traced"));
        assert_eq!(parsed(&next(&bench).await).payload, b"traced");
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_keeps_its_bound_and_the_last_is_served() {
        let mut bench = Bench::with(|config| config.flows.packets = 2);
        for last in 0..20 {
            let target = IpAddr::V4(Ipv4Addr::new(203, 0, 113, last));
            let _host = bench.network.bind(target);
            bench.send(ping(PROGRAM, target, 1, b""));
            let back = next(&bench).await;
            assert_eq!(parsed(&back).source, target);
        }
    }
}
