//! Which packets of a flow pass: from the addresses that it was given, to where it may go, whole, with nothing for the routers on the way, and no
//! message that only a router may send; and how many in a second. Pure; the serving side asks it about each packet before the policy is asked about its destination.
//! RFC 9484 §7 ("perform any local policy checks (e.g., source address validation)"), §4.7.3; RFC 7126, RFC 5095, RFC 9288.

use std::net::{IpAddr, SocketAddr};

use hoplite_wire::{
    connect_ip::Route,
    ip::{self, ICMP, ICMPV6, Packet, TCP, UDP},
};
use tokio::time::Instant;

/// Protocols whose first four bytes are ports: DCCP, SCTP and UDP-Lite beside TCP and UDP.
const WITH_PORTS: [u8; 5] = [TCP, UDP, 33, 132, 136];
/// Unreachable, time exceeded and so on, and echoes both ways. Redirects and advertisements are routers' business.
const MESSAGES_V4: [u8; 5] = [0, 3, 8, 11, 12];
const MESSAGES_V6: [u8; 6] = [1, 2, 3, 4, 128, 129];
/// IGMP and PIM: they speak of groups, and to routers.
const NEVER: [u8; 2] = [2, 103];

/// What a flow may send.
#[derive(Clone, Debug)]
pub(crate) struct PacketFilter {
    own: Vec<IpAddr>,
    routes: Vec<Route>,
}

/// A packet that passes, if the policy allows its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Where it goes; port 0 where there are no ports.
    pub(crate) to: SocketAddr,
    /// Whether it counts for the flow's rate of echoes.
    pub(crate) is_icmp: bool,
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No packet, or one whose hop limit is used up.
    Malformed,
    /// Its source is not the flow's.
    Source,
    /// Its destination or protocol is not within the flow's routes.
    Route,
    /// A piece of a packet: nobody could tell what it is a piece of.
    Fragment,
    /// It speaks to routers, or goes on from its destination, which is all that the policy judges.
    Options,
    /// A message that a client has no business to send.
    Message,
}

impl PacketFilter {
    /// For a flow with these addresses and routes.
    pub(crate) fn new(own: Vec<IpAddr>, routes: Vec<Route>) -> Self {
        Self { own, routes }
    }

    /// Judges a packet from the client.
    ///
    /// # Errors
    /// Why it is dropped.
    pub(crate) fn outgoing(&self, bytes: &[u8]) -> Result<Passed, Refused> {
        let packet = ip::parse(bytes).map_err(|_| Refused::Malformed)?;
        if packet.hop_limit == 0 {
            return Err(Refused::Malformed);
        }
        if !self.own.contains(&packet.source) {
            return Err(Refused::Source);
        }
        if packet.fragment {
            return Err(Refused::Fragment);
        }
        // Silently, as RFC 7126 has it of options by default, and RFC 9288 of their like in IPv6. RFC 5095 wants routing headers of other types
        // than 0 let through; here each that has hops left would lead on to where nobody judged.
        if packet.for_routers {
            return Err(Refused::Options);
        }
        let (to, protocol) = (packet.destination, packet.protocol);
        if !self.routes.iter().any(|route| route.allows(to, protocol)) || !is_one_host(to) {
            return Err(Refused::Route);
        }
        if is_message_allowed(&packet) && !NEVER.contains(&protocol) {
            Ok(Passed {
                to: SocketAddr::new(to, port(&packet)),
                is_icmp: matches!(protocol, ICMP | ICMPV6),
            })
        } else {
            Err(Refused::Message)
        }
    }

    /// Whether a packet from the network is for the flow: from within its routes, or an ICMP error from anywhere on the way.
    pub(crate) fn takes(&self, bytes: &[u8]) -> bool {
        let Ok(packet) = ip::parse(bytes) else {
            return false;
        };
        if packet.for_routers {
            return false;
        }
        let (from, protocol) = (packet.source, packet.protocol);
        let routed = || self.routes.iter().any(|route| route.allows(from, protocol));
        self.own.contains(&packet.destination) && (is_error(&packet) || routed())
    }
}

/// The port that the policy's rules are about.
fn port(packet: &Packet<'_>) -> u16 {
    match packet.payload {
        [_, _, high, low, ..] if WITH_PORTS.contains(&packet.protocol) => {
            u16::from_be_bytes([*high, *low])
        }
        _ => 0,
    }
}

fn is_one_host(address: IpAddr) -> bool {
    let everybody = address == IpAddr::from([255, 255, 255, 255]);
    !address.is_multicast() && !address.is_unspecified() && !everybody
}

/// ICMP of the other family is none.
fn is_message_allowed(packet: &Packet<'_>) -> bool {
    let kind = packet.payload.first();
    match (packet.protocol, packet.source) {
        (ICMP, IpAddr::V4(_)) => kind.is_some_and(|kind| MESSAGES_V4.contains(kind)),
        (ICMPV6, IpAddr::V6(_)) => kind.is_some_and(|kind| MESSAGES_V6.contains(kind)),
        (ICMP | ICMPV6, _) => false,
        _ => true,
    }
}

fn is_error(packet: &Packet<'_>) -> bool {
    match (packet.protocol, packet.payload.first()) {
        (ICMP, Some(kind)) => matches!(kind, 3 | 11 | 12),
        (ICMPV6, Some(kind)) => matches!(kind, 1..=4),
        _ => false,
    }
}

/// How many packets a flow may send in a second: a bucket that is as large as a second's worth.
#[derive(Debug)]
pub(crate) struct Rate {
    /// A second; 0 is no limit.
    limit: u32,
    left: f64,
    at: Instant,
}

impl Rate {
    /// A full bucket.
    pub(crate) fn new(limit: u32, now: Instant) -> Self {
        Self {
            limit,
            left: limit.into(),
            at: now,
        }
    }

    /// Whether one more may pass.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        if self.limit == 0 {
            return true;
        }
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * f64::from(self.limit);
        self.left = (self.left + gained).min(self.limit.into());
        self.at = self.at.max(now);
        let admits = self.left >= 1.0;
        self.left -= if admits { 1.0 } else { 0.0 };
        admits
    }
}

#[cfg(test)]
mod tests;
