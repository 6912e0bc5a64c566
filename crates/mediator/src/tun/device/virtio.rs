//! The header that a TUN device with IFF_VNET_HDR puts before each packet: what is left to the other side (VIRTIO 1.2 §5.1.6).
//! Part of [`super`]. Numbers are in the machine's own order.

use crate::tun::port::{Kind, Outgoing};

/// Octets of the header, unless TUNSETVNETHDRSZ asks for more.
pub(super) const LEN: usize = 10;

/// The checksum from `csum_start` on is to be computed; the pseudo header's sum is in its place.
const NEEDS_CSUM: u8 = 1;
/// Somebody has looked at the checksum.
const DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Beside the type: the first segment has CWR.
const GSO_ECN: u8 = 0x80;

/// The header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) flags: u8,
    pub(super) gso_type: u8,
    /// Octets of all headers of the packet.
    pub(super) hdr_len: u16,
    /// Octets of payload of each piece.
    pub(super) gso_size: u16,
    pub(super) csum_start: u16,
    pub(super) csum_offset: u16,
}

impl Header {
    /// The header at the beginning of what was read; `None` if it is cut or names a kind of cutting that we did not offer.
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        let &[flags, gso_type, a, b, c, d, e, f, g, h] = octets.first_chunk()?;
        let [hdr_len, gso_size, csum_start, csum_offset] =
            [[a, b], [c, d], [e, f], [g, h]].map(u16::from_ne_bytes);
        let header = Self {
            flags,
            gso_type: gso_type & !GSO_ECN,
            hdr_len,
            gso_size,
            csum_start,
            csum_offset,
        };
        let known = [GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4];
        let sized = header.gso_type == GSO_NONE || gso_size > 0;
        (known.contains(&header.gso_type) && sized).then_some(header)
    }

    pub(super) fn octets(&self) -> [u8; LEN] {
        let mut octets = [0; LEN];
        let words = [
            self.hdr_len,
            self.gso_size,
            self.csum_start,
            self.csum_offset,
        ];
        octets[0] = self.flags;
        octets[1] = self.gso_type;
        for (field, word) in octets[2..].chunks_exact_mut(2).zip(words) {
            field.copy_from_slice(&word.to_ne_bytes());
        }
        octets
    }

    /// What the kernel is asked to do with `packet`.
    pub(super) fn of(packet: &Outgoing<'_>) -> Self {
        let Some(checksum_at) = packet.kind.checksum_at() else {
            return Self::default();
        };
        let short = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let transport_at = packet.transport_at();
        Self {
            flags: NEEDS_CSUM,
            gso_type: packet.segment.map_or(GSO_NONE, |_| gso(packet)),
            hdr_len: packet.segment.map_or(0, |_| short(packet.headers.len())),
            gso_size: packet.segment.unwrap_or(0),
            csum_start: short(transport_at),
            csum_offset: short(checksum_at),
        }
    }

    pub(super) fn checked(&self) -> bool {
        self.flags & (NEEDS_CSUM | DATA_VALID) != 0
    }

    pub(super) fn segment(&self) -> Option<u16> {
        (self.gso_type != GSO_NONE).then_some(self.gso_size)
    }
}

fn gso(packet: &Outgoing<'_>) -> u8 {
    match (packet.kind, packet.transport_at()) {
        (Kind::Tcp, 20) => GSO_TCPV4,
        (Kind::Tcp, _) => GSO_TCPV6,
        (Kind::Udp, _) => GSO_UDP_L4,
        (Kind::Whole, _) => GSO_NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_left_to_us_is_read() {
        let written = Header {
            flags: NEEDS_CSUM,
            gso_type: GSO_UDP_L4,
            hdr_len: 28,
            gso_size: 1200,
            csum_start: 20,
            csum_offset: 6,
        };
        let header = Header::parse(&written.octets()).expect("known");
        assert_eq!(header, written);
        assert!(header.checked());
        assert_eq!(header.segment(), Some(1200));
        let ecn = Header {
            gso_type: GSO_TCPV6 | GSO_ECN,
            ..written
        };
        let header = Header::parse(&ecn.octets()).expect("known");
        assert_eq!(header.gso_type, GSO_TCPV6);
        assert!(!Header::default().checked());
    }

    #[test]
    fn a_kind_of_cutting_that_nobody_offered_is_refused() {
        let ufo = Header {
            gso_type: 3,
            gso_size: 1400,
            ..Header::default()
        };
        assert_eq!(Header::parse(&ufo.octets()), None);
        let unsized_one = Header {
            gso_type: GSO_TCPV4,
            ..Header::default()
        };
        assert_eq!(Header::parse(&unsized_one.octets()), None);
        assert_eq!(Header::parse(&[0; 9]), None);
    }

    #[test]
    fn a_large_segment_is_left_to_the_kernel_with_its_checksum() {
        let headers = [&[0x60][..], &[0; 59]].concat();
        let packet = Outgoing::tcp(&headers, [&[0; 3000], &[]], Some(1440));
        let expected = Header {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV6,
            hdr_len: 60,
            gso_size: 1440,
            csum_start: 40,
            csum_offset: 16,
        };
        assert_eq!(Header::of(&packet), expected);
        let small = Outgoing::tcp(&headers, [&[0; 1440], &[]], Some(1440));
        assert_eq!(Header::of(&small).gso_type, GSO_NONE);
        assert_eq!(Header::of(&Outgoing::whole(&headers)), Header::default());
    }
}
