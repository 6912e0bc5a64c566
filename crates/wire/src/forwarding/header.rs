//! What every version of QUIC shows of its packets: the form of the header, and connection ids. For snooping, and for taking forwarded packets out.
//! RFC 8999 §5.1 (long), §5.2 (short). The Fixed Bit is no invariant: it is not looked at.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

const LONG: u8 = 0x80;

/// What the long header of the first packet of a UDP payload says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LongIds<'a> {
    /// 0 in a Version Negotiation packet, whose ids are those of the packet that it answers, exchanged.
    pub version: u32,
    /// Whom it is for; chosen by the receiver, but at random by a client in its first packets.
    pub destination: &'a [u8],
    /// Under which its sender wants to be addressed.
    pub source: &'a [u8],
}

/// Ids stay out of every log.
impl std::fmt::Debug for LongIds<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (to, from) = (self.destination.len(), self.source.len());
        write!(f, "LongIds(version {:#x}, {to} + {from})", self.version)
    }
}

/// Whether the packet has a long header: those are never forwarded.
pub fn is_long(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first & LONG != 0)
}

/// Whether the packet has a short header, as far as invariants tell.
pub fn is_short(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first & LONG == 0)
}

/// The ids of a long header; `None` if it is a short one or ends too early.
pub fn long_header_ids(packet: &[u8]) -> Option<LongIds<'_>> {
    let (first, rest) = packet.split_first()?;
    let (version, rest) = rest.split_first_chunk()?;
    let (destination, rest) = id(rest)?;
    let (source, _) = id(rest)?;
    (first & LONG != 0).then_some(LongIds {
        version: u32::from_be_bytes(*version),
        destination,
        source,
    })
}

/// An id behind its length.
fn id(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = octets.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// The first `length` octets of the destination id of a short header, which does not say where it ends.
pub fn short_header_id(packet: &[u8], length: usize) -> Option<&[u8]> {
    let (first, rest) = packet.split_first()?;
    rest.get(..length).filter(|_| first & LONG == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn long(version: u32, destination: &[u8], source: &[u8]) -> Vec<u8> {
        let mut out = vec![0x80];
        out.extend(version.to_be_bytes());
        for id in [destination, source] {
            out.push(u8::try_from(id.len()).expect("a length of the invariants"));
            out.extend(id);
        }
        out
    }

    #[test]
    fn a_header_that_ends_too_early_has_no_ids() {
        let packet = long(1, b"target", b"client");
        for end in 0..packet.len() {
            assert_eq!(long_header_ids(&packet[..end]), None, "{end}");
        }
        assert_eq!(short_header_id(b"\x40abc", 4), None);
        assert!(!is_short(b"") && !is_long(b""));
    }

    #[test]
    fn the_form_bit_alone_decides() {
        for first in [0x00, 0x40, 0x7f] {
            let packet = [first, 1, 2, 3];
            assert!(is_short(&packet) && !is_long(&packet));
            assert_eq!(short_header_id(&packet, 2), Some(&[1, 2][..]));
        }
        for first in [0x80, 0xc0, 0xff] {
            let packet = [first, 1, 2, 3];
            assert!(is_long(&packet) && !is_short(&packet));
            assert_eq!(short_header_id(&packet, 2), None);
        }
        let mut packet = long(1, b"t", b"c");
        packet[0] = 0x40;
        assert_eq!(long_header_ids(&packet), None);
    }

    proptest! {
        #[test]
        fn ids_of_any_length_and_version_are_found(
            version: u32, destination in proptest::collection::vec(any::<u8>(), 0..=255), source in proptest::collection::vec(any::<u8>(), 0..=255), more: Vec<u8>
        ) {
            let packet = [long(version, &destination, &source), more].concat();
            let found = LongIds { version, destination: &destination, source: &source };
            prop_assert_eq!(long_header_ids(&packet), Some(found));
        }

        #[test]
        fn any_octets_are_read_without_a_panic(packet: Vec<u8>, length: usize) {
            let _: Option<LongIds<'_>> = long_header_ids(&packet);
            let _: Option<&[u8]> = short_header_id(&packet, length);
        }
    }
}
