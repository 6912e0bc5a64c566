//! Takes each packet of a program to what carries it: a TCP or UDP flow, the resolver, a flow of whole packets; or drops and counts it.
//! It keeps no clock: `now` comes with each call, and packets in batches.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use hoplite_wire::ip::{self, Malformed, Packet};
use tokio::time::Instant;

use super::{
    Counters, DeviceContext, FlowKey,
    config::{Device, Privacy},
    device::IncomingPacket,
    dns,
    outgoing::tell_unreachable,
    packets, tcp, udp,
};

/// The tables of flows.
#[derive(Debug)]
pub(crate) struct Router {
    context: Arc<DeviceContext>,
    tcp: tcp::TcpTable,
    udp: udp::UdpTable,
    packets: packets::PacketTable,
}

impl Router {
    pub(crate) fn new(context: &Arc<DeviceContext>) -> Self {
        Self {
            context: Arc::clone(context),
            tcp: tcp::TcpTable::new(Arc::clone(context)),
            udp: udp::UdpTable::new(Arc::clone(context)),
            packets: packets::PacketTable::new(Arc::clone(context)),
        }
    }

    /// Takes one packet.
    pub(crate) fn take(&mut self, incoming: &IncomingPacket, now: Instant) {
        if self.route(incoming, now).is_err() {
            self.context.counters.malformed.add(1);
        }
    }

    /// After a batch of packets.
    pub(crate) fn flush(&mut self, now: Instant) {
        self.tcp.flush(now);
    }

    fn route(&mut self, incoming: &IncomingPacket, now: Instant) -> Result<(), Malformed> {
        let packet = ip::parse(&incoming.bytes)?;
        match header_policy(&packet, &self.context.config.device) {
            Verdict::Drop(why) => {
                why.counter(&self.context.counters).add(1);
                if why == DropReason::Foreign {
                    self.refuse_foreign(&packet, incoming, now)?;
                }
            }
            _ if !incoming.checked && !packet.fragment && !packet.checksum_is_right() => {
                self.context.counters.bad_checksum.add(1);
            }
            Verdict::Flow if packet.protocol == ip::TCP => self.tcp(&packet, incoming, now)?,
            Verdict::Flow => self.udp(&packet, incoming, now)?,
            Verdict::Whole => self.packets.received(&packet, &incoming.bytes, now),
        }
        Ok(())
    }

    /// Tells a program that is bound to another address of this device, most often since before the TUN device was there, that this
    /// leads nowhere: what it has open is reset, what it begins is refused.
    fn refuse_foreign(
        &mut self,
        packet: &Packet<'_>,
        incoming: &IncomingPacket,
        now: Instant,
    ) -> Result<(), Malformed> {
        if packet.protocol == ip::TCP && !packet.fragment {
            let segment = ip::tcp::parse(packet.payload)?;
            if !segment.flags.contains(ip::tcp::Flags::SYN) {
                return self.tcp(packet, incoming, now);
            }
        }
        let why = ip::icmp::Unreachable::Prohibited;
        tell_unreachable(&self.context, &incoming.bytes, why);
        Ok(())
    }

    fn tcp(
        &mut self,
        packet: &Packet<'_>,
        incoming: &IncomingPacket,
        now: Instant,
    ) -> Result<(), Malformed> {
        let segment = ip::tcp::parse(packet.payload)?;
        let key = flow_key(packet, segment.source, segment.destination)?;
        self.tcp
            .received(key, packet, &segment, &incoming.bytes, now);
        Ok(())
    }

    fn udp(
        &mut self,
        packet: &Packet<'_>,
        incoming: &IncomingPacket,
        now: Instant,
    ) -> Result<(), Malformed> {
        let datagram = ip::udp::parse(packet.payload)?;
        let key = flow_key(packet, datagram.source, datagram.destination)?;
        let payload = datagram.payload;
        let segment = incoming.segment.map_or(payload.len(), usize::from);
        if self.context.config.dns.resolves_at(key.target) {
            dns::answer(&self.context, key, payload, segment);
        } else {
            self.udp.received(key, payload, segment, now);
        }
        Ok(())
    }
}

/// Port 0 belongs to nobody (RFC 6335 §6).
fn flow_key(packet: &Packet<'_>, source: u16, destination: u16) -> Result<FlowKey, Malformed> {
    if source == 0 || destination == 0 {
        return Err(Malformed::Length);
    }
    Ok(FlowKey {
        program: SocketAddr::new(packet.source, source),
        target: SocketAddr::new(packet.destination, destination),
    })
}

impl DropReason {
    fn counter(self, counters: &Counters) -> &crate::counters::Counter {
        match self {
            Self::Foreign => &counters.foreign,
            Self::Unroutable => &counters.unroutable,
            Self::Fragment => &counters.fragments,
            Self::Options => &counters.options,
        }
    }
}

/// What the header policy says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its payload belongs to a TCP or UDP flow.
    Flow,
    /// It is carried as a packet: another protocol.
    Whole,
    /// It is not carried.
    Drop(DropReason),
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// Its source is not the device's address: it was sent before the device was there, by a program that is bound to another
    /// address, or spoofed. Its sender is told.
    Foreign,
    /// Its destination is no single host on the Internet.
    Unroutable,
    /// "In this case all fragmented IPv4 packets will be dropped." For compatibility too: addresses are written anew on the way, which
    /// nobody can do for the checksum in a piece.
    Fragment,
    /// "We drop all IP-packets which have optional headers." For compatibility the packet is carried without them.
    Options,
}

/// The header policy: what becomes of `packet` by its IP header alone. Paper 003 §5.1; the table of all fields is in docs/device-headers.md.
/// What a flow carries of a packet is its payload; everything else ends here.
pub(crate) fn header_policy(packet: &Packet<'_>, device: &Device) -> Verdict {
    let own = |address| device.addresses.contains(&address);
    if !is_routable(packet.destination) || own(packet.destination) {
        return Verdict::Drop(DropReason::Unroutable);
    }
    // Of packets that are carried whole nobody could tell whose answer one is.
    let is_flow = matches!(packet.protocol, ip::TCP | ip::UDP);
    let is_behind = |address| {
        device
            .behind
            .iter()
            .any(|network| network.contains(address))
    };
    let taken = own(packet.source) || (is_flow && is_behind(&packet.source));
    if !device.addresses.is_empty() && !taken {
        return Verdict::Drop(DropReason::Foreign);
    }
    let strict = device.privacy == Privacy::Anonymity;
    match packet.protocol {
        _ if packet.fragment => Verdict::Drop(DropReason::Fragment),
        _ if packet.options && strict => Verdict::Drop(DropReason::Options),
        ip::TCP | ip::UDP => Verdict::Flow,
        _ => Verdict::Whole,
    }
}

/// Whether a packet to `address` can mean one host beyond this link.
fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_routable_v4(v4),
        IpAddr::V6(v6) => is_routable_v6(v6),
    }
}

fn is_routable_v4(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    // 0/8 is "this network", 224/3 multicast, reserved and broadcast.
    !(first == 0 || first >= 224 || address.is_loopback() || address.is_link_local())
}

fn is_routable_v6(address: Ipv6Addr) -> bool {
    let several = address.is_multicast() || address.is_unspecified();
    let near = address.is_loopback() || address.is_unicast_link_local();
    !(several || near || address.to_ipv4_mapped().is_some())
}

#[cfg(test)]
mod policy_tests {
    use super::*;

    fn packet() -> Packet<'static> {
        Packet {
            source: Ipv4Addr::new(198, 18, 0, 1).into(),
            destination: Ipv4Addr::new(203, 0, 113, 9).into(),
            protocol: ip::UDP,
            hop_limit: 64,
            traffic_class: 0,
            options: false,
            for_routers: false,
            fragment: false,
            dont_fragment: true,
            header_len: 20,
            payload: &[],
        }
    }

    fn device(privacy: Privacy) -> Device {
        let addresses = vec![packet().source, Ipv6Addr::from(1 << 120).into()];
        Device {
            addresses,
            privacy,
            ..Device::default()
        }
    }

    fn verdicts(packet: Packet<'_>) -> [Verdict; 2] {
        [Privacy::Anonymity, Privacy::Compatibility]
            .map(|privacy| header_policy(&packet, &device(privacy)))
    }

    #[test]
    fn tcp_and_udp_are_flows_and_all_else_whole_packets() {
        let verdict = |protocol| {
            verdicts(Packet {
                protocol,
                ..packet()
            })
        };
        assert_eq!(verdict(ip::TCP), [Verdict::Flow; 2]);
        assert_eq!(verdict(ip::UDP), [Verdict::Flow; 2]);
        for protocol in [ip::ICMP, 47, 50, 132, 255] {
            assert_eq!(verdict(protocol), [Verdict::Whole; 2]);
        }
    }

    #[test]
    fn flows_of_networks_behind_the_device_are_taken_and_nothing_else_of_them() {
        let device = Device {
            behind: vec!["192.168.7.0/24".parse().expect("a network")],
            ..device(Privacy::Anonymity)
        };
        let verdict = |source: &str, protocol| {
            let source = source.parse().expect("an address");
            let packet = Packet {
                source,
                protocol,
                ..packet()
            };
            header_policy(&packet, &device)
        };
        for protocol in [ip::TCP, ip::UDP] {
            assert_eq!(verdict("192.168.7.2", protocol), Verdict::Flow);
            let other = verdict("192.168.8.2", protocol);
            assert_eq!(other, Verdict::Drop(DropReason::Foreign));
        }
        let ping = verdict("192.168.7.2", ip::ICMP);
        assert_eq!(ping, Verdict::Drop(DropReason::Foreign));
    }

    #[test]
    fn hop_limit_traffic_class_and_dont_fragment_change_nothing() {
        let odd = Packet {
            hop_limit: 1,
            traffic_class: 0xff,
            dont_fragment: false,
            ..packet()
        };
        assert_eq!(verdicts(odd), verdicts(packet()));
    }

    #[test]
    fn fragments_are_dropped_whatever_comes_first() {
        let fragment = Packet {
            fragment: true,
            ..packet()
        };
        assert_eq!(verdicts(fragment), [Verdict::Drop(DropReason::Fragment); 2]);
    }

    #[test]
    fn options_are_dropped_with_their_packet_for_anonymity_and_without_it_for_compatibility() {
        let options = Packet {
            options: true,
            ..packet()
        };
        assert_eq!(
            verdicts(options),
            [Verdict::Drop(DropReason::Options), Verdict::Flow]
        );
        let other = Packet {
            protocol: ip::ICMP,
            ..options
        };
        assert_eq!(
            verdicts(other),
            [Verdict::Drop(DropReason::Options), Verdict::Whole]
        );
    }

    #[test]
    fn a_source_that_is_not_the_devices_is_dropped() {
        let spoofed = Packet {
            source: Ipv4Addr::new(192, 0, 2, 1).into(),
            ..packet()
        };
        assert_eq!(verdicts(spoofed), [Verdict::Drop(DropReason::Foreign); 2]);
        let anybody = Device {
            addresses: Vec::new(),
            ..Device::default()
        };
        assert_eq!(header_policy(&spoofed, &anybody), Verdict::Flow);
    }

    #[test]
    fn what_no_single_host_beyond_the_link_has_is_no_destination() {
        for destination in [
            "0.0.0.0",
            "127.0.0.1",
            "169.254.169.254",
            "224.0.0.251",
            "240.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::",
            "::1",
            "fe80::1",
            "ff02::fb",
            "::ffff:192.0.2.1",
        ] {
            let destination = destination.parse().expect("an address");
            let lost = verdicts(Packet {
                destination,
                ..packet()
            });
            assert_eq!(
                lost,
                [Verdict::Drop(DropReason::Unroutable); 2],
                "{destination}"
            );
        }
        for destination in [
            "10.0.0.1",
            "198.18.7.7",
            "fd68:6f70:6c69:7465::9",
            "2001:db8::1",
        ] {
            let destination = destination.parse().expect("an address");
            assert_eq!(
                verdicts(Packet {
                    destination,
                    ..packet()
                }),
                [Verdict::Flow; 2]
            );
        }
    }
}
