//! A rule as the program in the kernel has it: how packets arrive, and what is changed about them. No I/O.
//! The layouts are those of `struct key` and `struct rule` in `forward.c`; RFC 768, RFC 8200 §8.1 and RFC 1624 say what the checksum is of.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// UDP, to IP.
const UDP: u16 = 17;
/// What of an id is looked up; the program takes no shorter one.
const BEGINNING: usize = 8;
/// The longest id of QUIC version 1.
const LONGEST: usize = 20;

/// What is looked up.
pub(super) type Key = [u8; 44];
/// What is found.
pub(super) type Value = [u8; 96];

/// The two ends of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::forward) struct Ends {
    pub(in crate::forward) from: SocketAddr,
    pub(in crate::forward) to: SocketAddr,
}

impl Ends {
    /// The way back.
    pub(in crate::forward) const fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
        }
    }
}

/// A rule that the kernel can obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelRule {
    key: Key,
    /// All of the value but when it ends and where it is counted.
    value: Value,
}

impl KernelRule {
    /// Packets that arrive so, with this id, leave so, with that one. `None`: the kernel cannot, because the packet would change its length or its version
    /// of IP, or its id is too short to be looked up, or an address means something on one link only.
    pub(super) fn new(arriving: Ends, leaving: Ends, id: &[u8], new: &[u8]) -> Option<Self> {
        let ends = [arriving.from, arriving.to, leaving.from, leaving.to].map(canonical);
        let [from, to, new_from, new_to] = ends;
        let one_version = ends.iter().all(|end| end.is_ipv4() == from.is_ipv4());
        let lengths = id.len() == new.len() && (BEGINNING..=LONGEST).contains(&id.len());
        if !one_version || !lengths || ends.iter().any(|end| is_local(end.ip())) {
            return None;
        }
        let (old, new) = (Id::new(id)?, Id::new(new)?);
        let flip: [u8; LONGEST - BEGINNING] = std::array::from_fn(|at| old.rest[at] ^ new.rest[at]);
        let change = changed(
            sum(&[
                &address(from)[..],
                &address(to),
                &ports(from, to),
                &old.in_packet(),
            ]),
            sum(&[
                &address(new_from)[..],
                &address(new_to),
                &ports(new_from, new_to),
                &new.in_packet(),
            ]),
        );
        let pseudo = sum(&[&address(from)[..], &address(to), &UDP.to_be_bytes()]);
        let key = joined(&[
            &address(to),
            &address(from),
            &port(to),
            &port(from),
            &old.beginning,
        ]);
        let value = joined(&[
            &[0; 12],
            &change.to_be_bytes(),
            &pseudo.to_be_bytes(),
            &address(new_to),
            &address(new_from),
            &port(new_to),
            &port(new_from),
            &new.beginning,
            &old.rest,
            &old.mask,
            &flip,
        ]);
        Some(Self { key, value })
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// The value of a rule that ends at `expires` (CLOCK_MONOTONIC, in nanoseconds) and is counted in `slot`.
    pub(super) fn value(&self, expires: u64, slot: u32) -> Value {
        let mut value = self.value;
        let head = expires.to_ne_bytes().into_iter().chain(slot.to_ne_bytes());
        for (to, from) in value.iter_mut().zip(head) {
            *to = from;
        }
        value
    }
}

/// An id in its parts.
struct Id {
    beginning: [u8; BEGINNING],
    rest: [u8; LONGEST - BEGINNING],
    /// Ones where `rest` is of the id.
    mask: [u8; LONGEST - BEGINNING],
}

impl Id {
    fn new(id: &[u8]) -> Option<Self> {
        let (beginning, more) = id.split_first_chunk()?;
        let (mut rest, mut mask) = ([0; LONGEST - BEGINNING], [0; LONGEST - BEGINNING]);
        rest.get_mut(..more.len())?.copy_from_slice(more);
        mask.get_mut(..more.len())?.fill(u8::MAX);
        Some(Self {
            beginning: *beginning,
            rest,
            mask,
        })
    }

    /// As it stands in a packet, behind the first byte: an even number of bytes.
    fn in_packet(&self) -> [u8; 2 + LONGEST] {
        joined(&[&[0], &self.beginning, &self.rest, &[0]])
    }
}

fn canonical(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}

fn is_local(address: IpAddr) -> bool {
    let on_one_link = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    on_one_link || address.is_loopback() || address.is_unspecified() || address.is_multicast()
}

/// An IPv4 address is mapped. In a sum its mark counts on both sides alike, but for [`sum`], which is told of.
fn address(end: SocketAddr) -> [u8; 16] {
    let mapped = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    Ipv6Addr::octets(&mapped(end.ip()))
}

fn port(end: SocketAddr) -> [u8; 2] {
    end.port().to_be_bytes()
}

fn ports(from: SocketAddr, to: SocketAddr) -> [u8; 4] {
    joined(&[&port(from), &port(to)])
}

/// Parts that fill it exactly.
fn joined<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut whole = [0; N];
    for (to, from) in whole.iter_mut().zip(parts.iter().copied().flatten()) {
        *to = *from;
    }
    whole
}

/// The ones' complement sum of parts of even length. The 0xffff of a mapped address is a zero there.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum = words.fold(0_u32, |sum, word| match word {
        [high, low] => sum + u32::from(u16::from_be_bytes([*high, *low])),
        _ => sum,
    });
    fold(sum)
}

fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    let twice = (once & 0xffff) + (once >> 16);
    u16::try_from(twice).unwrap_or(u16::MAX)
}

/// What a sum gains when a part of it changes from `old` to `new`.
fn changed(old: u16, new: u16) -> u16 {
    fold(u32::from(new) + u32::from(!old))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ends(from: &str, to: &str) -> Ends {
        Ends {
            from: from.parse().expect("an address"),
            to: to.parse().expect("an address"),
        }
    }

    fn v4() -> (Ends, Ends) {
        let arriving = ends("192.0.2.1:4000", "198.51.100.1:443");
        (arriving, ends("198.51.100.1:50000", "203.0.113.7:8443"))
    }

    fn v6() -> (Ends, Ends) {
        let arriving = ends("[2001:db8::1]:4000", "[2001:db8:1::1]:443");
        (
            arriving,
            ends("[2001:db8:1::1]:50000", "[2001:db8:2::7]:8443"),
        )
    }

    /// The sum over pseudo-header, UDP header and payload: what the checksum is the complement of.
    fn whole_sum(ends: Ends, payload: &[u8]) -> u16 {
        let length = u16::try_from(8 + payload.len())
            .expect("short")
            .to_be_bytes();
        let address = |end: SocketAddr| match end.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let mut bytes = [address(ends.from), address(ends.to)].concat();
        bytes.extend([0, 17, length[0], length[1]]);
        bytes.extend(ports(ends.from, ends.to));
        bytes.extend(length);
        bytes.extend(payload);
        bytes.extend(vec![0; payload.len() % 2]);
        sum(&[&bytes])
    }

    /// What the program does to a checksum.
    fn updated(check: u16, value: &Value) -> u16 {
        let change = u16::from_be_bytes([value[12], value[13]]);
        !fold(u32::from(!check) + u32::from(change))
    }

    fn same(one: u16, other: u16) -> bool {
        one == other || one ^ other == 0xffff && (one == 0 || other == 0)
    }

    proptest! {
        #[test]
        fn the_checksum_is_right_afterwards(
            id in proptest::collection::vec(any::<u8>(), 20), new in proptest::collection::vec(any::<u8>(), 20),
            len in 8_usize..=20, rest in proptest::collection::vec(any::<u8>(), 20..60), four in any::<bool>(),
        ) {
            let (arriving, leaving) = if four { v4() } else { v6() };
            let (id, new) = (&id[..len], &new[..len]);
            let before = [&[0x41], id, &rest[..]].concat();
            let after = [&[0x41], new, &rest[..]].concat();
            let rule = KernelRule::new(arriving, leaving, id, new).expect("it can");
            let check = updated(!whole_sum(arriving, &before), &rule.value(0, 0));
            prop_assert!(same(check, !whole_sum(leaving, &after)), "{check:04x}");
        }
    }

    #[test]
    fn the_pseudo_headers_sum_is_what_a_sender_leaves_to_its_card() {
        for (arriving, leaving) in [v4(), v6()] {
            let rule = KernelRule::new(arriving, leaving, &[1; 8], &[2; 8]).expect("it can");
            let value = rule.value(0, 0);
            let pseudo = u16::from_be_bytes([value[14], value[15]]);
            // Of an empty datagram without ports all that counts beside them is its length, twice.
            let (mut from, mut to) = (arriving.from, arriving.to);
            from.set_port(0);
            to.set_port(0);
            let left = changed(16, whole_sum(Ends { from, to }, &[]));
            assert!(same(pseudo, left), "{pseudo:04x} {left:04x}");
        }
    }

    #[test]
    fn a_key_is_how_packets_arrive_and_a_value_how_they_leave() {
        let (arriving, leaving) = v4();
        let rule =
            KernelRule::new(arriving, leaving, b"abcdefghij", b"ABCDEFGHIJ").expect("it can");
        assert_eq!(rule.key()[12..16], [198, 51, 100, 1]);
        assert_eq!(rule.key()[28..32], [192, 0, 2, 1]);
        assert_eq!(
            rule.key()[32..36],
            [443_u16.to_be_bytes(), 4000_u16.to_be_bytes()].concat()
        );
        assert_eq!(&rule.key()[36..], b"abcdefgh");
        let value = rule.value(7, 9);
        assert_eq!(
            value[..12],
            [&7_u64.to_ne_bytes()[..], &9_u32.to_ne_bytes()].concat()
        );
        assert_eq!(value[28..32], [203, 0, 113, 7]);
        assert_eq!(value[44..48], [198, 51, 100, 1]);
        assert_eq!(&value[52..60], b"ABCDEFGH");
        assert_eq!(&value[60..63], b"ij\0");
        assert_eq!(value[72..75], [255, 255, 0]);
        assert_eq!(value[84..87], [b'i' ^ b'I', b'j' ^ b'J', 0]);
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let (arriving, leaving) = v4();
        let mapped = ends("[::ffff:192.0.2.1]:4000", "[::ffff:198.51.100.1]:443");
        let rule = |arriving| KernelRule::new(arriving, leaving, &[1; 8], &[2; 8]);
        assert_eq!(rule(mapped), rule(arriving));
    }

    #[test]
    fn what_the_kernel_cannot_do_has_no_rule() {
        let ((from4, to4), (from6, to6)) = (v4(), v6());
        let local = ends("[fe80::1]:4000", "[fe80::2]:443");
        for (arriving, leaving, id, new, fine) in [
            (from4, to4, 8, 8, true),
            (from6, to6, 20, 20, true),
            (from4, to6, 8, 8, false),
            (from6, to4, 8, 8, false),
            (from4, to4, 7, 7, false),
            (from4, to4, 4, 8, false),
            (from4, to4, 21, 21, false),
            (local, to6, 8, 8, false),
        ] {
            let rule = KernelRule::new(arriving, leaving, &vec![1; id], &vec![2; new]);
            assert_eq!(rule.is_some(), fine, "{arriving:?} {leaving:?} {id} {new}");
        }
    }
}
