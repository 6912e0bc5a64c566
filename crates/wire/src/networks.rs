//! The network that an address is in: who has one address of IPv6 has as many of that network as he likes, so limits count networks.

use std::net::IpAddr;

/// The first `v4` or `v6` bits of an address, by its family; the rest are zero. An IPv4 address written as one of IPv6 is an IPv4 address.
pub fn network(address: IpAddr, v4: u32, v6: u32) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(v4));
            IpAddr::V4((ip.to_bits() & mask.unwrap_or(0)).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(v6));
            IpAddr::V6((ip.to_bits() & mask.unwrap_or(0)).into())
        }
    }
}

/// The network of one host: its IPv4 address, or its IPv6 /64 (RFC 4291 §2.5.4).
pub fn host_network(address: IpAddr) -> IpAddr {
    network(address, 32, 64)
}

/// The network of one customer: an IPv4 address, or an IPv6 /56 (RFC 6177).
pub fn customer_network(address: IpAddr) -> IpAddr {
    network(address, 32, 56)
}

/// The network of one site, which it may have whole: an IPv4 address, or an IPv6 /48 (RFC 6177).
pub fn site_network(address: IpAddr) -> IpAddr {
    network(address, 32, 48)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn addresses_of_a_network_are_one_and_those_of_another_are_not() {
        let (v4, v6) = (ip("192.0.2.7"), ip("2001:db8:1:203::7"));
        assert_eq!(host_network(v6), ip("2001:db8:1:203::"));
        assert_eq!(customer_network(v6), ip("2001:db8:1:200::"));
        assert_eq!(site_network(v6), ip("2001:db8:1::"));
        for of in [host_network, customer_network, site_network] {
            assert_eq!(of(v4), v4);
            assert_eq!(of(ip("::ffff:192.0.2.7")), v4);
        }
        assert_eq!(network(v4, 16, 32), ip("192.0.0.0"));
        assert_eq!(network(v6, 16, 32), ip("2001:db8::"));
    }

    #[test]
    fn any_number_of_bits_is_one() {
        let (v4, v6) = (ip("192.0.2.7"), ip("2001:db8::7"));
        assert_eq!(network(v4, 0, 0), ip("0.0.0.0"));
        assert_eq!(network(v6, 0, 0), ip("::"));
        assert_eq!(network(v4, 128, 128), v4);
        assert_eq!(network(v6, 128, 128), v6);
    }
}
