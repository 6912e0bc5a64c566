//! IP packets as a link sees them: a view that never fails beyond "this is no packet", and the few edits that links and routers make.
//! The link, the router and the drop log use it; the octets come from other programs, so everything here is total.
//! IPv4 is RFC 791, IPv6 RFC 8200, ECN RFC 3168, the checksum's update RFC 1624.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// An IP packet whose header is whole.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    octets: &'a [u8],
    header: usize,
}

impl<'a> View<'a> {
    /// The packet at the beginning of `octets`; `None` if its header or what the header promises is not there.
    #[must_use]
    pub fn parse(octets: &'a [u8]) -> Option<Self> {
        let (header, total) = match octets.first()? >> 4 {
            4 if octets.len() >= 20 => (usize::from(octets[0] & 15) * 4, be16(octets, 2)),
            6 if octets.len() >= 40 => (40, be16(octets, 4) + 40),
            _ => return None,
        };
        let whole = header >= 20 && header <= total && total <= octets.len();
        whole.then(|| Self {
            octets: &octets[..total],
            header,
        })
    }

    /// Whether it is IPv4.
    #[must_use]
    pub fn is_v4(&self) -> bool {
        self.octets[0] >> 4 == 4
    }

    /// Who sent it.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.address(if self.is_v4() { 12 } else { 8 })
    }

    /// Whom it is for.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.address(if self.is_v4() { 16 } else { 24 })
    }

    fn address(&self, at: usize) -> IpAddr {
        if self.is_v4() {
            let mut octets = [0; 4];
            octets.copy_from_slice(&self.octets[at..at + 4]);
            return Ipv4Addr::from(octets).into();
        }
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.octets[at..at + 16]);
        Ipv6Addr::from(octets).into()
    }

    /// The TTL or hop limit.
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.octets[if self.is_v4() { 8 } else { 7 }]
    }

    /// The two ECN bits.
    #[must_use]
    pub fn ecn(&self) -> u8 {
        if self.is_v4() {
            self.octets[1] & 3
        } else {
            (self.octets[1] >> 4) & 3
        }
    }

    /// The number of the protocol behind the header (IPv6: of the first extension header, if there are any).
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.octets[if self.is_v4() { 9 } else { 6 }]
    }

    /// Whether it is a fragment other than the first, which has no transport header.
    #[must_use]
    pub fn is_later_fragment(&self) -> bool {
        self.is_v4() && be16(self.octets, 6) & 0x1fff != 0
    }

    /// The whole packet, without what may follow it.
    #[must_use]
    pub fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// What follows the IP header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.octets[self.header..]
    }

    /// Whether it never leaves a link: broadcast, multicast or link-local. Hosts send some (MLD, router solicitations) that are
    /// no part of an experiment.
    #[must_use]
    pub fn stays_on_link(&self) -> bool {
        match self.destination() {
            IpAddr::V4(to) => to.is_multicast() || to.is_broadcast() || to.is_link_local(),
            IpAddr::V6(to) => to.is_multicast() || to.is_unicast_link_local(),
        }
    }

    /// Whose packet it is, for people.
    #[must_use]
    pub fn flow(&self) -> Flow {
        let ports = match self.payload() {
            [a, b, c, d, ..] if self.has_ports() => Some([[*a, *b], [*c, *d]]),
            _ => None,
        };
        Flow {
            protocol: self.protocol(),
            ends: [self.source(), self.destination()],
            ports: ports.map(|ports| ports.map(u16::from_be_bytes)),
        }
    }

    fn has_ports(&self) -> bool {
        matches!(self.protocol(), 6 | 17) && !self.is_later_fragment()
    }
}

/// A protocol and two ends; displayed as `tcp 10.77.0.1:80>10.77.0.2:4000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    protocol: u8,
    ends: [IpAddr; 2],
    ports: Option<[u16; 2]>,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            1 => f.write_str("icmp ")?,
            6 => f.write_str("tcp ")?,
            17 => f.write_str("udp ")?,
            58 => f.write_str("icmp6 ")?,
            other => write!(f, "ip{other} ")?,
        }
        let [from, to] = self.ends;
        match self.ports {
            Some([a, b]) => write!(f, "{}>{}", SocketAddr::new(from, a), SocketAddr::new(to, b)),
            None => write!(f, "{from}>{to}"),
        }
    }
}

/// Marks an ECN-capable packet as having met congestion (CE); `false` if its sender does not speak ECN.
pub fn mark_congestion(octets: &mut [u8]) -> bool {
    let Some(view) = View::parse(octets) else {
        return false;
    };
    if view.ecn() == 0 {
        return false;
    }
    if view.is_v4() {
        let before = be16(octets, 0);
        octets[1] |= 3;
        update_checksum(octets, before, be16(octets, 0));
    } else {
        octets[1] |= 0x30;
    }
    true
}

/// Counts the TTL or hop limit down by one as a router does; `false`, and no change, if it was used up.
pub fn count_down(octets: &mut [u8]) -> bool {
    let Some(view) = View::parse(octets) else {
        return false;
    };
    if view.ttl() <= 1 {
        return false;
    }
    if view.is_v4() {
        let before = be16(octets, 8);
        octets[8] -= 1;
        update_checksum(octets, before, be16(octets, 8));
    } else {
        octets[7] -= 1;
    }
    true
}

/// Flips the bit of the payload that `choice` falls on; `false` if there is no payload.
pub fn flip_bit(octets: &mut [u8], choice: impl FnOnce(u64) -> u64) -> bool {
    let Some(view) = View::parse(octets) else {
        return false;
    };
    let (header, bits) = (view.header, view.payload().len() * 8);
    if bits == 0 {
        return false;
    }
    let bit = usize::try_from(choice(bits as u64)).unwrap_or(0) % bits;
    octets[header + bit / 8] ^= 0x80 >> (bit % 8);
    true
}

/// The Internet checksum of `parts` laid one after another; each but the last has an even length.
#[must_use]
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum = words.fold(0_u32, |sum, word| {
        let low = word.get(1).copied().unwrap_or(0);
        fold(sum + u32::from(u16::from_be_bytes([word[0], low])))
    });
    !low16(sum)
}

/// RFC 1624: HC' = ~(~HC + ~m + m').
fn update_checksum(octets: &mut [u8], before: usize, after: usize) {
    let word = |value: usize| u32::try_from(value & 0xffff).unwrap_or(0);
    let old = word(be16(octets, 10));
    let sum = (!old & 0xffff) + (!word(before) & 0xffff) + word(after);
    octets[10..12].copy_from_slice(&(!low16(fold(fold(sum)))).to_be_bytes());
}

fn fold(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}

fn low16(sum: u32) -> u16 {
    let [.., high, low] = sum.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// The 16 bits at `at`, which is inside.
fn be16(octets: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([octets[at], octets[at + 1]]))
}

#[cfg(test)]
mod tests;
