//! What flows of IP packets count. Part of [`super::Metrics`].

use super::{CauseLabel, Count, Registrar};

/// All that CONNECT-IP counts beside requests and bytes.
#[derive(Debug)]
pub struct Ip {
    /// Packets from clients to the network.
    pub to_target: Count,
    /// Packets from the network to clients.
    pub to_client: Count,
    /// Not passed on.
    pub dropped: Dropped,
    /// Flows that were broken off: a malformed capsule, or more requests for addresses than anybody needs.
    pub broken: Count,
}

/// Why a packet was not passed on.
#[derive(Clone, Debug)]
pub struct Dropped {
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
    pub(super) fn new(r: &mut Registrar) -> Self {
        Self {
            to_target: r.count("ip_to_target_packets", "IP packets from clients to targets"),
            to_client: r.count("ip_to_client_packets", "IP packets from targets to clients"),
            dropped: dropped(r),
            broken: r.count(
                "ip_flows_broken_off",
                "Flows of IP packets whose client broke a rule",
            ),
        }
    }
}

fn dropped(r: &mut Registrar) -> Dropped {
    let family = r.family("ip_packets_dropped", "IP packets that were not passed on");
    let of = |cause| family.get_or_create_owned(&CauseLabel { cause });
    Dropped {
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
