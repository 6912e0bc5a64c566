//! Addresses and names that mean something on this host or this network (private, link-local, loopback), and nothing on the Internet.
//! IANA special-purpose registries (RFC 6890), RFC 6761.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What `localhost` stands for (RFC 6761 §6.3); it is never looked up.
pub const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// IPv4 prefixes that are not targets.
const IPV4: [([u8; 4], u8); 16] = [
    ([0, 0, 0, 0], 8),        // this host on this network, RFC 1122
    ([10, 0, 0, 0], 8),       // private, RFC 1918
    ([100, 64, 0, 0], 10),    // carrier-grade NAT, RFC 6598
    ([127, 0, 0, 0], 8),      // loopback
    ([169, 254, 0, 0], 16),   // link-local, cloud metadata at 169.254.169.254
    ([168, 63, 129, 16], 32), // Azure's metadata and host services, public only to look at
    ([172, 16, 0, 0], 12),    // private
    ([192, 0, 0, 0], 24),     // protocol assignments, RFC 6890
    ([192, 0, 2, 0], 24),     // documentation, RFC 5737
    ([192, 88, 99, 0], 24),   // 6to4 relay anycast, deprecated
    ([192, 168, 0, 0], 16),   // private
    ([198, 18, 0, 0], 15),    // benchmarking, RFC 2544
    ([198, 51, 100, 0], 24),  // documentation
    ([203, 0, 113, 0], 24),   // documentation
    ([224, 0, 0, 0], 4),      // multicast
    ([240, 0, 0, 0], 4),      // reserved, broadcast
];

/// IPv6 prefixes inside 2000::/3 that are not targets.
const IPV6: [([u16; 8], u8); 5] = [
    ([0x2001, 0x0002, 0, 0, 0, 0, 0, 0], 48), // benchmarking, RFC 5180
    ([0x2001, 0x0010, 0, 0, 0, 0, 0, 0], 28), // ORCHID
    ([0x2001, 0x0020, 0, 0, 0, 0, 0, 0], 28), // ORCHIDv2, RFC 7343
    ([0x2001, 0x0db8, 0, 0, 0, 0, 0, 0], 32), // documentation, RFC 3849
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),      // documentation, RFC 9637
];

/// Well-known NAT64 prefix, RFC 6052: the only one outside 2000::/3 that leads to the Internet.
const NAT64: ([u16; 8], u8) = ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const GLOBAL_UNICAST: ([u16; 8], u8) = ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
const TEREDO: ([u16; 8], u8) = ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32);
const SIX_TO_FOUR: ([u16; 8], u8) = ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);

/// Last labels that name something on the local network.
const LOCAL_LABELS: [&str; 9] = [
    "local",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "private",
    "localdomain",
    "onion",
];

/// Whether an address, or one that it leads to, is special.
pub fn is_or_carries_special(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let carried = carried(ip).into_iter().map(IpAddr::V4);
    is_special_purpose(ip) || carried.into_iter().any(is_or_carries_special)
}

/// The IPv4 networks of [`is_special_purpose`], each with the length of its prefix.
pub fn ipv4_networks() -> impl Iterator<Item = (Ipv4Addr, u8)> {
    IPV4.into_iter().map(|(net, len)| (net.into(), len))
}

/// Whether an address in canonical form is special in itself; what it carries is judged apart.
pub fn is_special_purpose(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => IPV4.iter().any(|(net, len)| {
            let net = u32::from(Ipv4Addr::from(*net));
            (net ^ u32::from(ip)) >> (32 - u32::from(*len)) == 0
        }),
        IpAddr::V6(ip) => {
            let reachable = within(ip, GLOBAL_UNICAST) || within(ip, NAT64);
            !reachable || IPV6.iter().any(|net| within(ip, *net))
        }
    }
}

/// The IPv4 addresses that an IPv6 address leads to: NAT64, 6to4 (RFC 3056), Teredo's server and client (RFC 4380).
pub fn carried(ip: IpAddr) -> Vec<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else {
        return Vec::new();
    };
    let [_, a, b, c, .., y, z] = ip.segments();
    if within(ip, NAT64) {
        return vec![joined(y, z)];
    }
    if within(ip, SIX_TO_FOUR) {
        return vec![joined(a, b)];
    }
    if within(ip, TEREDO) {
        vec![joined(b, c), joined(!y, !z)]
    } else {
        Vec::new()
    }
}

/// How long a prefix that stands before embedded IPv4 addresses can be (RFC 6052 §2.2).
pub const TRANSLATION_PREFIXES: [u8; 6] = [32, 40, 48, 56, 64, 96];

/// The IPv4 address that an IPv6 address embeds behind a translation prefix of this length, one of [`TRANSLATION_PREFIXES`]: RFC 6052 §2.2.
/// "Bits 64 to 71 of the address are reserved": the IPv4 address goes on behind them.
pub fn embedded(ip: Ipv6Addr, prefix_len: u8) -> Option<Ipv4Addr> {
    if !TRANSLATION_PREFIXES.contains(&prefix_len) {
        return None;
    }
    let behind = ip
        .octets()
        .into_iter()
        .enumerate()
        .skip(usize::from(prefix_len) / 8);
    let mut v4 = behind.filter(|(at, _)| *at != 8).map(|(_, byte)| byte);
    Some([v4.next()?, v4.next()?, v4.next()?, v4.next()?].into())
}

/// `v4` behind the translation prefix that `prefix` begins with, of this length, and zeros behind it: RFC 6052 §2.2. Nothing for other lengths.
pub fn embed(prefix: Ipv6Addr, prefix_len: u8, v4: Ipv4Addr) -> Option<Ipv6Addr> {
    if !TRANSLATION_PREFIXES.contains(&prefix_len) {
        return None;
    }
    let mut octets = prefix.octets();
    let behind = octets.iter_mut().skip(usize::from(prefix_len) / 8);
    behind.for_each(|octet| *octet = 0);
    let places = octets.iter_mut().enumerate();
    let places = places
        .skip(usize::from(prefix_len) / 8)
        .filter(|(at, _)| *at != 8);
    for ((_, place), octet) in places.zip(v4.octets()) {
        *place = octet;
    }
    Some(octets.into())
}

/// `localhost` and all names below it.
pub fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// Names of the local network: they have no meaning for somebody far away.
pub fn is_local_name(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    LOCAL_LABELS.contains(&last) || name == "home.arpa" || name.ends_with(".home.arpa")
}

/// A name of an onion service: it means nothing but to circuits, and nobody else is asked for it (RFC 7686 §2).
pub fn is_onion_name(name: &str) -> bool {
    name == "onion" || name.ends_with(".onion")
}

/// A name of an onion service that has the form of an address: `label.onion` or below, the label 56 characters of base32 of which the last says
/// version 3 (rend-spec-v3, "Encoding onion addresses"). Whether it is mistyped, its checksum tells.
pub fn has_onion_address(name: &str) -> bool {
    let Some(labels) = name.strip_suffix(".onion") else {
        return false;
    };
    let label = labels.rsplit('.').next().unwrap_or(labels);
    let is_base32 = |byte: u8| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'2'..=b'7');
    label.len() == 56 && label.bytes().all(is_base32) && label.ends_with(['d', 'D'])
}

/// A name that does not exist and is never asked for (RFC 6761 §6.4).
pub fn is_nobody(name: &str) -> bool {
    name == "invalid" || name.ends_with(".invalid")
}

fn joined(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}

fn within(ip: Ipv6Addr, (net, len): ([u16; 8], u8)) -> bool {
    let net = u128::from(Ipv6Addr::from(net));
    (net ^ u128::from(ip)) >> (128 - u32::from(len)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6052 §2.4, tables 1 and 2.
    #[test]
    fn embedded_addresses_are_where_rfc_6052_has_them() {
        for (text, len) in [
            ("2001:db8:c000:221::", 32),
            ("2001:db8:1c0:2:21::", 40),
            ("2001:db8:122:c000:2:2100::", 48),
            ("2001:db8:122:3c0:0:221::", 56),
            ("2001:db8:122:344:c0:2:2100::", 64),
            ("2001:db8:122:344::192.0.2.33", 96),
            ("64:ff9b::192.0.2.33", 96),
        ] {
            let found = embedded(text.parse().expect(text), len);
            assert_eq!(found, Some(Ipv4Addr::new(192, 0, 2, 33)), "{text}");
            let (whole, other) = (text.parse().expect(text), Ipv4Addr::BROADCAST);
            let put = embed(
                embed(whole, len, other).expect(text),
                len,
                found.expect(text),
            );
            assert_eq!(put, Some(whole), "{text}");
        }
        assert_eq!(embed(Ipv6Addr::LOCALHOST, 33, Ipv4Addr::BROADCAST), None);
        assert_eq!(embedded(Ipv6Addr::LOCALHOST, 128), None);
        assert_eq!(embedded(Ipv6Addr::LOCALHOST, 33), None);
    }
}
