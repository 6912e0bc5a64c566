//! Addresses by prefix and by range, and which packets they allow.
//! The capsules carry them, the ends of a flow check packets against them. RFC 9484 §4.7.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{ICMP, ICMPV6};

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Addresses of one family, first and last included, to which packets of one protocol, or of all, are routed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    first: IpAddr,
    last: IpAddr,
    protocol: u8,
}

impl Prefix {
    /// The prefix of `length` bits; `None` when the address has fewer.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        (length <= width(address)).then_some(Self { address, length })
    }

    /// One address.
    pub const fn one(address: IpAddr) -> Self {
        Self {
            address,
            length: width(address),
        }
    }

    /// "The IP Address SHALL be all-zero and the IP Prefix Length SHALL be the maximum length": no address of this one's family.
    pub const fn none(family: IpAddr) -> Self {
        Self::one(zero(family))
    }

    /// The address as it was given; bits beyond the length may be set.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits count.
    pub const fn length(&self) -> u8 {
        self.length
    }

    /// The address, if there is but one.
    pub fn single(&self) -> Option<IpAddr> {
        (self.length == width(self.address)).then_some(self.address)
    }

    /// Whether it stands for a refusal, or for "any address" in a request.
    pub fn is_none(&self) -> bool {
        self.address.is_unspecified()
    }

    /// Whether `address` is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (first, last) = self.ends();
        is_same_family(first, address) && (first..=last).contains(&address)
    }

    /// The route to all of them, for one protocol or, with 0, for all.
    pub fn route(&self, protocol: u8) -> Route {
        let (first, last) = self.ends();
        Route {
            first,
            last,
            protocol,
        }
    }

    fn ends(&self) -> (IpAddr, IpAddr) {
        match self.address {
            IpAddr::V4(ip) => {
                let free = u32::MAX.checked_shr(self.length.into()).unwrap_or(0);
                let first = u32::from(ip) & !free;
                (
                    Ipv4Addr::from(first).into(),
                    Ipv4Addr::from(first | free).into(),
                )
            }
            IpAddr::V6(ip) => {
                let free = u128::MAX.checked_shr(self.length.into()).unwrap_or(0);
                let first = u128::from(ip) & !free;
                (
                    Ipv6Addr::from(first).into(),
                    Ipv6Addr::from(first | free).into(),
                )
            }
        }
    }
}

impl Route {
    /// The addresses from `first` to `last`; `None` when they are of two families or `last` comes before.
    /// With protocol 0 all protocols are allowed.
    pub fn new(first: IpAddr, last: IpAddr, protocol: u8) -> Option<Self> {
        (is_same_family(first, last) && first <= last).then_some(Self {
            first,
            last,
            protocol,
        })
    }

    /// The lowest address.
    pub const fn first(&self) -> IpAddr {
        self.first
    }

    /// The highest address.
    pub const fn last(&self) -> IpAddr {
        self.last
    }

    /// The protocol, or 0 for all.
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The address, if there is but one.
    pub fn single(&self) -> Option<IpAddr> {
        (self.first == self.last).then_some(self.first)
    }

    /// Whether `address` is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        is_same_family(self.first, address) && (self.first..=self.last).contains(&address)
    }

    /// Whether it takes a packet. "ICMP traffic is always allowed, regardless of the value of this field."
    pub fn allows(&self, destination: IpAddr, protocol: u8) -> bool {
        let icmp = match destination {
            IpAddr::V4(_) => ICMP,
            IpAddr::V6(_) => ICMPV6,
        };
        let fits = self.protocol == 0 || self.protocol == protocol || protocol == icmp;
        fits && self.contains(destination)
    }

    /// Whether `next` may stand behind it: "To prevent overlap, the ranges are ordered" by version, protocol and address.
    pub fn precedes(&self, next: &Self) -> bool {
        let key = |route: &Self| (route.first.is_ipv6(), route.protocol);
        match key(self).cmp(&key(next)) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.last < next.first,
            std::cmp::Ordering::Greater => false,
        }
    }
}

const fn is_same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

const fn zero(family: IpAddr) -> IpAddr {
    match family {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prefix(hidden)")
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route(hidden, protocol {})", self.protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    fn route(first: &str, last: &str, protocol: u8) -> Route {
        Route::new(ip(first), ip(last), protocol).expect("a route")
    }

    #[test]
    fn a_prefix_holds_its_addresses_and_no_others() {
        for (text, length, inside, outside) in [
            ("192.0.2.77", 24, "192.0.2.255", "192.0.3.0"),
            ("192.0.2.77", 32, "192.0.2.77", "192.0.2.76"),
            ("192.0.2.77", 0, "255.255.255.255", "::"),
            ("2001:db8::1", 32, "2001:db8:ffff::", "2001:db9::"),
            ("2001:db8::1", 128, "2001:db8::1", "2001:db8::2"),
            ("::", 0, "ffff::", "0.0.0.0"),
        ] {
            let prefix = Prefix::new(ip(text), length).expect("a prefix");
            assert!(prefix.contains(ip(inside)), "{text}/{length} {inside}");
            assert!(!prefix.contains(ip(outside)), "{text}/{length} {outside}");
            let all = prefix.route(0);
            assert!(all.contains(ip(inside)) && !all.contains(ip(outside)));
        }
        assert_eq!(Prefix::new(ip("192.0.2.1"), 33), None);
        assert_eq!(Prefix::new(ip("::1"), 129), None);
    }

    #[test]
    fn icmp_of_the_right_family_passes_every_route() {
        let tcp = route("192.0.2.1", "192.0.2.9", 6);
        assert!(tcp.allows(ip("192.0.2.5"), 6) && tcp.allows(ip("192.0.2.5"), ICMP));
        assert!(!tcp.allows(ip("192.0.2.5"), 17) && !tcp.allows(ip("192.0.2.5"), ICMPV6));
        assert!(!tcp.allows(ip("192.0.2.10"), 6));
        assert!(route("192.0.2.1", "192.0.2.9", 0).allows(ip("192.0.2.9"), 17));
    }

    #[test]
    fn ranges_are_ordered_by_version_protocol_and_address() {
        let a = route("10.0.0.0", "10.0.0.9", 6);
        for next in [
            route("10.0.0.10", "10.0.0.20", 6),
            route("10.0.0.0", "10.0.0.9", 17),
            route("::", "::1", 0),
        ] {
            assert!(a.precedes(&next) && !next.precedes(&a));
        }
        assert!(!a.precedes(&route("10.0.0.9", "10.0.0.9", 6)));
        assert_eq!(Route::new(ip("10.0.0.2"), ip("10.0.0.1"), 0), None);
        assert_eq!(Route::new(ip("10.0.0.2"), ip("::1"), 0), None);
    }

    proptest! {
        #[test]
        fn the_route_of_a_prefix_is_the_prefix(address: u128, length in 0_u8..=128, other: u128) {
            let prefix = Prefix::new(Ipv6Addr::from(address).into(), length).expect("a prefix");
            let other = Ipv6Addr::from(other).into();
            prop_assert!(prefix.contains(prefix.address()));
            prop_assert_eq!(prefix.contains(other), prefix.route(0).contains(other));
        }
    }
}
