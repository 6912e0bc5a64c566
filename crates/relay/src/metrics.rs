//! What the relay counts, for its operator: sums only, no address, no name and no token in any label.
//! Handlers hold the counters they touch; `exporter` answers `GET /metrics` in the OpenMetrics text format.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64},
    },
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use crate::{config::KernelMode, forward::LEFT_BY_KERNEL};

pub(crate) mod exporter;

pub(crate) type Count = Counter<u64, AtomicU64>;
pub(crate) type Level = Gauge<i64, AtomicI64>;

/// All that is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Connections that a client opened, by transport.
    pub connections: ByTransport<Count>,
    /// Connections that are open now.
    pub connections_open: ByTransport<Level>,
    /// Channels of circuits that came in and are open now.
    pub channels_open: ByTransport<Level>,
    /// Handshakes that failed or took too long.
    pub handshakes_failed: Count,
    /// Handshakes that are not finished.
    pub handshakes_open: ByTransport<Level>,
    /// Clients that were asked to prove their address first.
    pub retries: Count,
    connections_ended: Family<CauseLabel, Count>,
    requests: Family<RequestLabels, Count>,
    /// Tunnels that are open now.
    pub tunnels_open: ByMethod<Level>,
    /// Payload bytes from clients to targets.
    pub bytes_to_target: ByMethod<Count>,
    /// Payload bytes from targets to clients.
    pub bytes_to_client: ByMethod<Count>,
    /// UDP payloads from clients to targets.
    pub datagrams_to_target: Count,
    /// UDP payloads from targets to clients.
    pub datagrams_to_client: Count,
    /// What clients' connections and streams may take of memory now, in bytes.
    pub memory_promised: Level,
    /// UDP payloads that were not delivered.
    pub dropped: Drops,
    /// What forwarded mode does.
    pub forwarding: Forwarding,
    /// What flows of IP packets do.
    pub ip: Ip,
    /// Requests without a valid token.
    pub auth_failures: Count,
    /// Targets that the policy refused.
    pub policy_refusals: Count,
    token_refusals: Family<CauseLabel, Count>,
    /// Whether the store of spent tokens answers.
    pub(crate) spent_store_up: Level,
    spent_store_failures: Family<CauseLabel, Count>,
    /// Private tokens that were let in although nobody knew whether they are spent.
    pub(crate) tokens_unchecked: Count,
    issuer_keys_fetched: Level,
    /// Times that the issuer's keys could not be fetched.
    pub(crate) issuer_keys_failures: Count,
    limit_refusals: Family<LimitLabels, Count>,
    /// What HTTP/3 sessions count for themselves.
    pub(crate) sessions: Arc<hoplite_http::h3::Counters>,
    circuits: exporter::OnionSource,
    /// Times that names took to resolve.
    pub resolve: Histogram,
    /// Times that targets took to accept a TCP connection.
    pub connect: Histogram,
}

/// One value for each transport.
#[derive(Clone, Debug)]
pub struct ByTransport<T> {
    /// HTTP/3 over QUIC.
    pub quic: T,
    /// HTTP/2 or HTTP/1.1 over TLS over TCP.
    pub tls: T,
}

/// One value for each kind of tunnel.
#[derive(Clone, Debug)]
pub struct ByMethod<T> {
    /// CONNECT.
    pub tcp: T,
    /// CONNECT-UDP.
    pub udp: T,
    /// CONNECT-UDP with a public address.
    pub bound_udp: T,
    /// CONNECT-IP.
    pub ip: T,
}

/// Why payloads were dropped.
#[derive(Clone, Debug)]
pub struct Drops {
    /// The socket towards the target took no more.
    pub socket_full: Count,
    /// Larger than the way to the target carries.
    pub too_large_for_target: Count,
    /// The connection to the client took no more.
    pub client_full: Count,
    /// Larger than the way to the client carries.
    pub too_large_for_client: Count,
    /// Above the bandwidth limit.
    pub bandwidth: Count,
    /// Of bound UDP: the policy refuses the peer, or it is none.
    pub policy: Count,
    /// Of bound UDP: more targets of one flow than it may have.
    pub targets: Count,
    /// Of bound UDP: the client has no context for who sent it.
    pub unasked: Count,
    /// The target's host said that nobody listens, or it cannot be reached.
    pub unreachable: Count,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TransportLabel {
    transport: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MethodLabel {
    method: Method,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    method: Method,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LimitLabels {
    limit: &'static str,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
#[expect(
    non_camel_case_types,
    reason = "the variants' names are the label's values"
)]
pub enum Method {
    /// A TCP tunnel.
    connect,
    /// A TCP tunnel by template, in capsules.
    connect_tcp,
    /// A UDP tunnel.
    connect_udp,
    /// A UDP tunnel with a public address.
    bound_udp,
    /// A flow of IP packets.
    connect_ip,
    /// A stream of a circuit to a target.
    onion,
    /// A DNS query.
    dns,
    /// Anything else.
    other,
}

/// Registers under the relay's prefix.
struct Registrar(Registry);

impl Metrics {
    /// Everything at zero.
    #[expect(clippy::too_many_lines, reason = "a line for each metric")]
    pub fn new() -> Self {
        let mut r = Registrar(Registry::with_prefix("hoplite_relay"));
        let metrics = Self {
            connections: r.transports("connections", "Connections opened by clients"),
            connections_open: r.transport_levels("connections_open", "Connections open now"),
            channels_open: r.transport_levels(
                "onion_channels_in_open",
                "Channels of circuits that came in and are open now",
            ),
            handshakes_failed: r.count(
                "handshakes_failed",
                "Handshakes that failed or took too long",
            ),
            handshakes_open: r.transport_levels("handshakes_open", "Handshakes not finished now"),
            retries: r.count(
                "retries",
                "Clients that were asked to prove their address first (Retry)",
            ),
            connections_ended: r.family(
                "connections_ended",
                "Connections of clients that the relay ended, by cause",
            ),
            requests: r.family("requests", "Requests by method and outcome"),
            tunnels_open: r.method_levels("tunnels_open", "Tunnels open now"),
            bytes_to_target: r.methods("to_target_bytes", "Payload bytes from clients to targets"),
            bytes_to_client: r.methods("to_client_bytes", "Payload bytes from targets to clients"),
            datagrams_to_target: r.count(
                "to_target_datagrams",
                "UDP payloads from clients to targets",
            ),
            datagrams_to_client: r.count(
                "to_client_datagrams",
                "UDP payloads from targets to clients",
            ),
            memory_promised: r.level(
                "memory_promised_bytes",
                "Memory that clients' connections and streams may take now",
            ),
            dropped: r.drops(),
            forwarding: Forwarding::new(&mut r),
            ip: Ip::new(&mut r),
            auth_failures: r.count("auth_failures", "Requests without a valid token"),
            token_refusals: r.family(
                "token_refusals",
                "Requests without a valid token, by what was wrong with it",
            ),
            spent_store_up: r.level(
                "spent_store_up",
                "Whether the store of spent tokens answers: 1, or 0",
            ),
            spent_store_failures: r.family(
                "spent_store_failures",
                "Tokens of which the store of spent tokens did not say whether they are, by cause",
            ),
            tokens_unchecked: r.count(
                "tokens_unchecked",
                "Tokens that admitted although nobody knew whether they are spent",
            ),
            issuer_keys_fetched: r.level(
                "issuer_keys_fetched_seconds",
                "When the keys of the issuer of private tokens were fetched, in seconds since 1970; 0 is never",
            ),
            issuer_keys_failures: r.count(
                "issuer_keys_failures",
                "Times that the keys of the issuer of private tokens could not be fetched or used",
            ),
            policy_refusals: r.count("policy_refusals", "Targets refused by the policy"),
            limit_refusals: r.family("limit_refusals", "Connections and requests above a limit"),
            resolve: r.times("resolve", "Time that names took to resolve"),
            connect: r.times(
                "connect",
                "Time that targets took to accept a TCP connection",
            ),
            sessions: Arc::default(),
            circuits: exporter::OnionSource::default(),
            registry: Registry::default(),
        };
        r.0.register_collector(Box::new(exporter::Process));
        let sessions = exporter::Sessions(metrics.sessions.clone());
        r.0.register_collector(Box::new(sessions));
        let circuits = exporter::Circuits(metrics.circuits.clone());
        r.0.register_collector(Box::new(circuits));
        Self {
            registry: r.0,
            ..metrics
        }
    }

    /// From now on what this counts is shown, too.
    pub(crate) fn show_onion(&self, onion: &Arc<crate::onion::Onion>) {
        // Once: a relay is started once.
        drop(self.circuits.set(Arc::downgrade(onion)));
    }

    /// Counts an answered request.
    pub fn request(&self, method: Method, outcome: &'static str) {
        self.requests
            .get_or_create(&RequestLabels { method, outcome })
            .inc();
    }

    /// Counts what a limit refused: "connections", "memory", "circuits", "streams", the system's "descriptors", or, of a
    /// request, "requests", "memory", "udp_tunnels", "ip_flows", "ip_addresses" or "queries".
    pub fn limited(&self, limit: &'static str) {
        self.limit_refusals
            .get_or_create(&LimitLabels { limit })
            .inc();
    }

    /// Times that this limit has refused something.
    pub(crate) fn limited_by(&self, limit: &'static str) -> u64 {
        self.limit_refusals
            .get_or_create(&LimitLabels { limit })
            .get()
    }

    /// Payload bytes of all tunnels, both ways.
    pub(crate) fn tunnelled(&self) -> u64 {
        let methods = [&self.bytes_to_target, &self.bytes_to_client];
        let counts = methods.map(|of| [&of.tcp, &of.udp, &of.bound_udp, &of.ip].map(Count::get));
        counts.into_iter().flatten().fold(0, u64::saturating_add)
    }

    /// Counts a request whose token was not taken.
    pub(crate) fn token_refused(&self, cause: &'static str) {
        self.token_refusals
            .get_or_create(&CauseLabel { cause })
            .inc();
    }

    /// Notes when the issuer's keys were fetched.
    pub(crate) fn issuer_keys_fetched(&self, now: u64) {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        self.issuer_keys_fetched.set(now);
    }

    /// Counts a token that the store of spent tokens has not marked, as far as is known.
    pub(crate) fn spent_store_failed(&self, cause: &'static str) {
        self.spent_store_failures
            .get_or_create(&CauseLabel { cause })
            .inc();
    }

    /// Counts a connection that the relay ended.
    pub(crate) fn ended(&self, cause: &'static str) {
        self.connections_ended
            .get_or_create(&CauseLabel { cause })
            .inc();
    }

    /// All in the OpenMetrics text format.
    pub fn text(&self) -> String {
        let mut out = String::new();
        match text::encode(&mut out, &self.registry) {
            Ok(()) => out,
            Err(_) => String::new(),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Registrar {
    fn count(&mut self, name: &str, help: &str) -> Count {
        let count = Count::default();
        self.0.register(name, help, count.clone());
        count
    }

    fn level(&mut self, name: &str, help: &str) -> Level {
        let level = Level::default();
        self.0.register(name, help, level.clone());
        level
    }

    fn times(&mut self, name: &str, help: &str) -> Histogram {
        let times = Histogram::new(exponential_buckets(0.000_5, 2.0, 15));
        self.0
            .register_with_unit(name, help, Unit::Seconds, times.clone());
        times
    }

    fn family<L>(&mut self, name: &str, help: &str) -> Family<L, Count>
    where
        L: EncodeLabelSet + Clone + std::hash::Hash + Eq + Send + Sync + std::fmt::Debug + 'static,
    {
        let family = Family::<L, Count>::default();
        self.0.register(name, help, family.clone());
        family
    }

    fn transports(&mut self, name: &str, help: &str) -> ByTransport<Count> {
        let family = self.family(name, help);
        let of = |transport| family.get_or_create_owned(&TransportLabel { transport });
        ByTransport {
            quic: of("quic"),
            tls: of("tls"),
        }
    }

    fn transport_levels(&mut self, name: &str, help: &str) -> ByTransport<Level> {
        let family = Family::<TransportLabel, Level>::default();
        self.0.register(name, help, family.clone());
        let of = |transport| family.get_or_create_owned(&TransportLabel { transport });
        ByTransport {
            quic: of("quic"),
            tls: of("tls"),
        }
    }

    fn methods(&mut self, name: &str, help: &str) -> ByMethod<Count> {
        let family = self.family(name, help);
        let of = |method| family.get_or_create_owned(&MethodLabel { method });
        ByMethod {
            tcp: of(Method::connect),
            udp: of(Method::connect_udp),
            bound_udp: of(Method::bound_udp),
            ip: of(Method::connect_ip),
        }
    }

    fn method_levels(&mut self, name: &str, help: &str) -> ByMethod<Level> {
        let family = Family::<MethodLabel, Level>::default();
        self.0.register(name, help, family.clone());
        let of = |method| family.get_or_create_owned(&MethodLabel { method });
        ByMethod {
            tcp: of(Method::connect),
            udp: of(Method::connect_udp),
            bound_udp: of(Method::bound_udp),
            ip: of(Method::connect_ip),
        }
    }

    fn drops(&mut self) -> Drops {
        let family = self.family("datagrams_dropped", "UDP payloads that were not delivered");
        let of = |cause| family.get_or_create_owned(&CauseLabel { cause });
        Drops {
            socket_full: of("socket_full"),
            too_large_for_target: of("too_large_for_target"),
            client_full: of("client_full"),
            too_large_for_client: of("too_large_for_client"),
            bandwidth: of("bandwidth"),
            policy: of("policy"),
            targets: of("targets"),
            unasked: of("unasked"),
            unreachable: of("unreachable"),
        }
    }
}

/// All that forwarded flows count.
#[derive(Debug)]
pub struct Forwarding {
    /// Rules in force: target aliases and acknowledged client ids.
    pub rules_open: Level,
    /// What clients asked for in vain.
    pub refused: RefusedRegistrations,
    /// Forwarded from clients to targets.
    pub to_target: Forwarded,
    /// Forwarded from targets to clients.
    pub to_client: Forwarded,
    /// Not forwarded.
    pub dropped: ForwardingDrops,
    /// What of it the kernel does by itself.
    pub kernel: KernelForwarding,
}

/// What flows count that the kernel forwards.
#[derive(Debug)]
pub struct KernelForwarding {
    /// Rules that it has.
    pub rules_open: Level,
    /// Forwarded from clients to targets; it is among all that was forwarded, too.
    pub to_target: Forwarded,
    /// Forwarded from targets to clients.
    pub to_client: Forwarded,
    /// Packets of its rules that it left to the relay.
    left: Vec<Count>,
    /// Interfaces where it does, in their drivers and before the rest of its network.
    by_driver: Level,
    generic: Level,
}

/// Datagrams and their bytes.
#[derive(Clone, Debug)]
pub struct Forwarded {
    /// How many.
    pub datagrams: Count,
    /// Their payload.
    pub bytes: Count,
}

/// Why a registration was refused, or a client's request reset.
#[derive(Clone, Debug)]
pub struct RefusedRegistrations {
    /// The id is longer than those of QUIC version 1.
    pub too_long: Count,
    /// The id is the beginning of another one of the flow, or the other way round.
    pub conflict: Count,
    /// More registrations than allowed, or capsules than the client reads: reset.
    pub limit: Count,
    /// The client has as many ids in all its flows as it may, or all clients have.
    pub full: Count,
    /// A capsule that cannot be read, or that only relays send: reset.
    pub malformed: Count,
    /// An acknowledgement of what is not registered any more; ignored.
    pub stale: Count,
}

/// Why a packet was not forwarded.
#[derive(Clone, Debug)]
pub struct ForwardingDrops {
    /// Its rule has ended.
    pub unknown_id: Count,
    /// It came from another address than its client's.
    pub wrong_address: Count,
    /// Too short for the transform.
    pub too_short: Count,
    /// The socket towards the target took no more.
    pub target_full: Count,
    /// The socket towards the client took no more.
    pub client_full: Count,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ModeLabel {
    mode: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DirectionLabel {
    direction: &'static str,
}

impl Forwarded {
    /// Counts a batch.
    pub(crate) fn count(&self, datagrams: u64, bytes: u64) {
        self.datagrams.inc_by(datagrams);
        self.bytes.inc_by(bytes);
    }
}

impl Forwarding {
    fn new(r: &mut Registrar) -> Self {
        let datagrams = ("forwarded_datagrams", "UDP payloads that were forwarded");
        let bytes = ("forwarded_bytes", "Payload bytes that were forwarded");
        let (to_target, to_client) = forwarded(r, datagrams, bytes);
        Self {
            rules_open: r.level("forwarding_rules_open", "Rules of forwarded mode in force"),
            refused: refused_registrations(r),
            to_target,
            to_client,
            dropped: forwarding_drops(r),
            kernel: KernelForwarding::new(r),
        }
    }
}

impl KernelForwarding {
    fn new(r: &mut Registrar) -> Self {
        let left = r.family(
            "forwarding_kernel_left",
            "Packets of the kernel's rules that were left to user space",
        );
        let of = |cause| left.get_or_create_owned(&CauseLabel { cause });
        let modes = Family::<ModeLabel, Level>::default();
        let help = "Interfaces where the kernel forwards";
        r.0.register("forwarding_kernel_interfaces", help, modes.clone());
        let by = |mode| modes.get_or_create_owned(&ModeLabel { mode });
        let datagrams = (
            "forwarding_kernel_datagrams",
            "UDP payloads that the kernel forwarded",
        );
        let bytes = (
            "forwarding_kernel_bytes",
            "Payload bytes that the kernel forwarded",
        );
        let (to_target, to_client) = forwarded(r, datagrams, bytes);
        Self {
            rules_open: r.level("forwarding_kernel_rules_open", "Rules that the kernel has"),
            to_target,
            to_client,
            left: LEFT_BY_KERNEL.map(of).into(),
            by_driver: by(KernelMode::Driver.name()),
            generic: by(KernelMode::Generic.name()),
        }
    }

    /// Those where it does so in this way.
    pub(crate) const fn interfaces(&self, mode: KernelMode) -> &Level {
        match mode {
            KernelMode::Driver | KernelMode::Auto => &self.by_driver,
            KernelMode::Generic | KernelMode::Off => &self.generic,
        }
    }

    /// Takes over what was left, of each reason of [`LEFT_BY_KERNEL`]: `now` in all, of which `before` is counted.
    pub(crate) fn count_left(&self, before: &[u64], now: &[u64]) {
        for (count, (now, before)) in self.left.iter().zip(now.iter().zip(before)) {
            count.inc_by(now.wrapping_sub(*before));
        }
    }
}

fn forwarded(
    r: &mut Registrar,
    datagrams: (&str, &str),
    bytes: (&str, &str),
) -> (Forwarded, Forwarded) {
    let datagrams = r.family(datagrams.0, datagrams.1);
    let bytes = r.family(bytes.0, bytes.1);
    let of = |direction| {
        let label = DirectionLabel { direction };
        Forwarded {
            datagrams: datagrams.get_or_create_owned(&label),
            bytes: bytes.get_or_create_owned(&label),
        }
    };
    (of("to_target"), of("to_client"))
}

fn refused_registrations(r: &mut Registrar) -> RefusedRegistrations {
    let family = r.family("forwarding_refusals", "Registrations refused");
    let of = |cause| family.get_or_create_owned(&CauseLabel { cause });
    RefusedRegistrations {
        too_long: of("too_long"),
        conflict: of("conflict"),
        limit: of("limit"),
        full: of("full"),
        malformed: of("malformed"),
        stale: of("stale"),
    }
}

fn forwarding_drops(r: &mut Registrar) -> ForwardingDrops {
    let family = r.family("forwarded_dropped", "UDP payloads that were not forwarded");
    let of = |cause| family.get_or_create_owned(&CauseLabel { cause });
    ForwardingDrops {
        unknown_id: of("unknown_id"),
        wrong_address: of("wrong_address"),
        too_short: of("too_short"),
        target_full: of("target_full"),
        client_full: of("client_full"),
    }
}

/// All that CONNECT-IP counts beside requests and bytes.
#[derive(Debug)]
pub struct Ip {
    /// Packets from clients to the network.
    pub to_target: Count,
    /// Packets from the network to clients.
    pub to_client: Count,
    /// Not passed on.
    pub dropped: PacketDrops,
    /// Flows that were broken off: a malformed capsule, or more requests for addresses than anybody needs.
    pub broken: Count,
}

/// Why a packet was not passed on.
#[derive(Clone, Debug)]
pub struct PacketDrops {
    /// No packet, or its hop limit was used up.
    pub malformed: Count,
    /// Its source is not the flow's.
    pub source: Count,
    /// Its destination or protocol is not within the flow's routes.
    pub route: Count,
    /// A piece of a packet.
    pub fragment: Count,
    /// It had IP options or a header for routers on the way.
    pub options: Count,
    /// An ICMP message that a client has no business to send.
    pub message: Count,
    /// The policy refuses its destination.
    pub policy: Count,
    /// Above the bandwidth limit, or above the flow's echoes in a second.
    pub rate: Count,
    /// The connection to the client took no more.
    pub client_full: Count,
    /// Larger than the way to the client carries.
    pub too_large_for_client: Count,
    /// From the network, and not for the flow.
    pub unwanted: Count,
}

impl Ip {
    fn new(r: &mut Registrar) -> Self {
        Self {
            to_target: r.count("ip_to_target_packets", "IP packets from clients to targets"),
            to_client: r.count("ip_to_client_packets", "IP packets from targets to clients"),
            dropped: packet_drops(r),
            broken: r.count(
                "ip_flows_broken_off",
                "Flows of IP packets whose client broke a rule",
            ),
        }
    }
}

fn packet_drops(r: &mut Registrar) -> PacketDrops {
    let family = r.family("ip_packets_dropped", "IP packets that were not passed on");
    let of = |cause| family.get_or_create_owned(&CauseLabel { cause });
    PacketDrops {
        malformed: of("malformed"),
        source: of("source"),
        route: of("route"),
        fragment: of("fragment"),
        options: of("options"),
        message: of("message"),
        policy: of("policy"),
        rate: of("rate"),
        client_full: of("client_full"),
        too_large_for_client: of("too_large_for_client"),
        unwanted: of("unwanted"),
    }
}

/// A gauge that is one higher while this lives.
#[derive(Debug)]
pub struct Up(Level);

impl Up {
    /// Counts one more.
    pub fn new(level: &Level) -> Self {
        level.inc();
        Self(level.clone())
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Notes how long something took.
pub(crate) fn observe(times: &Histogram, taken: Duration) {
    times.observe(taken.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_in_the_text() {
        let metrics = Metrics::new();
        metrics.request(Method::connect_udp, "ok");
        metrics.dropped.socket_full.inc_by(3);
        metrics.connections.quic.inc();
        let _up = Up::new(&metrics.tunnels_open.udp);
        let text = metrics.text();
        for line in [
            "hoplite_relay_requests_total{method=\"connect_udp\",outcome=\"ok\"} 1",
            "hoplite_relay_datagrams_dropped_total{cause=\"socket_full\"} 3",
            "hoplite_relay_connections_total{transport=\"quic\"} 1",
            "hoplite_relay_tunnels_open{method=\"connect_udp\"} 1",
            "process_resident_memory_bytes",
            "\nhoplite_relay_session_dropped_total{cause=\"early\"} 0",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
