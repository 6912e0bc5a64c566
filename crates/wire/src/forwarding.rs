//! Forwarded mode: capsules that register connection ids, the fields that negotiate a transform, and the headers that are snooped.
//! The transforms themselves are cryptography (`hoplite_crypto::Transform`).
//! draft-ietf-masque-quic-proxy (its code points are provisional); what a proxy may know of QUIC: RFC 8999.

pub(crate) mod field;

use std::{fmt, ops::Deref, time::Duration};

use bytes::{BufMut, Bytes};

pub use self::field::{Answer, FORWARDING, Key, NotOffered, Offer, PORT_SHARING, Transform};
use crate::varint;

/// How long packets with a new id stay in the tunnel at most, because earlier ones still wait in it. Both ends of a hop keep to it.
pub const SETTLING: Duration = Duration::from_millis(250);

// What every version of QUIC shows of its packets: the form of the header, and connection ids. For snooping, and for taking forwarded packets out.
// RFC 8999 §5.1 (long), §5.2 (short). The Fixed Bit is no invariant: it is not looked at.

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
impl fmt::Debug for LongIds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (to, from) = (self.destination.len(), self.source.len());
        write!(f, "LongIds(version {:#x}, {to} + {from})", self.version)
    }
}

/// "In QUIC version 1, this value MUST NOT exceed 20 bytes" (RFC 9000 §17.2): longer ids are not forwarded.
pub const MAX_CID_SIZE: usize = 20;

/// A connection id of QUIC version 1. It is copied, not allocated: every packet is compared with some.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    len: u8,
    bytes: [u8; MAX_CID_SIZE],
}

impl ConnectionId {
    /// `None` if it is longer than those of version 1.
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_CID_SIZE];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        let len = u8::try_from(id.len()).ok()?;
        Some(Self { len, bytes })
    }

    /// Whether a packet with a short header may carry it: there its length does not stand.
    pub fn leads(&self, packet: &[u8]) -> bool {
        packet.get(1..).is_some_and(|rest| rest.starts_with(self))
    }

    /// "Two Connection IDs conflict if and only if one Connection ID is equal to or a prefix of another."
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.starts_with(other) || other.starts_with(self)
    }

    /// For a capsule.
    pub fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self)
    }
}

impl Deref for ConnectionId {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// Ids stay out of every log.
impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionId({} bytes)", self.len)
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
fn id(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// The first `length` bytes of the destination id of a short header, which does not say where it ends.
pub fn short_header_id(packet: &[u8], length: usize) -> Option<&[u8]> {
    let (first, rest) = packet.split_first()?;
    rest.get(..length).filter(|_| first & LONG == 0)
}

// The eight capsules about connection ids. Lengths are checked here; who may send which and when is the machines' business.
// draft-ietf-masque-quic-proxy, "Connection ID Capsules"; RFC 9297 §3.2.

/// The longest connection id of the QUIC invariants; QUIC version 1 stops at 20 bytes.
pub const MAX_ID: usize = 255;

const REGISTER_CLIENT_CID: u64 = 0xff_e600;

const REGISTER_TARGET_CID: u64 = 0xff_e601;

const ACK_CLIENT_CID: u64 = 0xff_e602;

const ACK_CLIENT_VCID: u64 = 0xff_e603;

const ACK_TARGET_CID: u64 = 0xff_e604;

const CLOSE_CLIENT_CID: u64 = 0xff_e605;

const CLOSE_TARGET_CID: u64 = 0xff_e606;

const MAX_CONNECTION_IDS: u64 = 0xff_e607;

/// A capsule about connection ids: its ids and tokens are at most [`MAX_ID`] bytes.
#[derive(Clone, PartialEq, Eq)]
pub enum Capsule {
    /// Client: the id that the target puts into packets to the client.
    RegisterClientCid {
        /// The client's id.
        id: Bytes,
    },
    /// Client: the id that the client puts into packets to the target.
    RegisterTargetCid {
        /// The target's id.
        id: Bytes,
        /// By which a stateless reset of the target is known; may be empty.
        reset_token: Bytes,
    },
    /// Relay: the client's id is mapped.
    AckClientCid {
        /// The client's id.
        id: Bytes,
        /// What stands for it between relay and client; empty without forwarded mode.
        virtual_id: Bytes,
    },
    /// Client: packets with the virtual id may come.
    AckClientVcid {
        /// The client's id.
        id: Bytes,
        /// What stands for it between relay and client.
        virtual_id: Bytes,
        /// With which the client may reset the rule; may be empty.
        reset_token: Bytes,
    },
    /// Relay: the target's id is mapped.
    AckTargetCid {
        /// The target's id.
        id: Bytes,
        /// What stands for it between client and relay; empty without forwarded mode.
        virtual_id: Bytes,
        /// With which the relay may reset the connection; may be empty.
        reset_token: Bytes,
    },
    /// Either: the client's id is not mapped any more, or will not be.
    CloseClientCid {
        /// The client's id.
        id: Bytes,
    },
    /// Either: the target's id is not mapped any more, or will not be.
    CloseTargetCid {
        /// The target's id.
        id: Bytes,
    },
    /// Relay: the largest sequence number of a registration; the first has number 0.
    MaxConnectionIds {
        /// At least 1.
        sequence: u64,
    },
}

/// A forwarding capsule whose value is not what its type says, or that is larger than any can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a forwarding capsule is malformed")]
pub struct Malformed;

impl Capsule {
    /// The largest value of a well-formed one: two ids and a token, each behind its length.
    pub const LARGEST: usize = 3 * (2 + MAX_ID);

    /// Whether `kind` is the type of a capsule of this module.
    pub const fn is_kind(kind: u64) -> bool {
        matches!(kind, REGISTER_CLIENT_CID..=MAX_CONNECTION_IDS)
    }

    /// Reads the value of a capsule of type `kind`; `None` when it is another extension's.
    pub fn parse(kind: u64, value: Bytes) -> Option<Result<Self, Malformed>> {
        Self::is_kind(kind).then(|| Self::read(kind, value).ok_or(Malformed))
    }

    fn read(kind: u64, mut value: Bytes) -> Option<Self> {
        let from = &mut value;
        let capsule = match kind {
            REGISTER_CLIENT_CID => Self::RegisterClientCid { id: rest(from)? },
            REGISTER_TARGET_CID => Self::RegisterTargetCid {
                id: sized(from)?,
                reset_token: sized(from)?,
            },
            ACK_CLIENT_CID => Self::AckClientCid {
                id: sized(from)?,
                virtual_id: sized(from)?,
            },
            ACK_CLIENT_VCID => Self::AckClientVcid {
                id: sized(from)?,
                virtual_id: sized(from)?,
                reset_token: sized(from)?,
            },
            ACK_TARGET_CID => Self::AckTargetCid {
                id: sized(from)?,
                virtual_id: sized(from)?,
                reset_token: sized(from)?,
            },
            CLOSE_CLIENT_CID => Self::CloseClientCid { id: rest(from)? },
            CLOSE_TARGET_CID => Self::CloseTargetCid { id: rest(from)? },
            // "Clients receiving a MAX_CONNECTION_IDS capsule with a value less than 1 MUST reset the stream".
            _ => Self::MaxConnectionIds {
                sequence: varint::read(from).filter(|sequence| *sequence >= 1)?,
            },
        };
        value.is_empty().then_some(capsule)
    }

    /// Writes type, length and value. What is longer than [`MAX_ID`] does not exist on the wire: it is cut.
    pub fn write(&self, out: &mut impl BufMut) {
        match self {
            Self::RegisterClientCid { id } => write_bare(out, REGISTER_CLIENT_CID, id),
            Self::RegisterTargetCid { id, reset_token } => {
                write_sized(out, REGISTER_TARGET_CID, &[id, reset_token]);
            }
            Self::AckClientCid { id, virtual_id } => {
                write_sized(out, ACK_CLIENT_CID, &[id, virtual_id]);
            }
            Self::AckClientVcid {
                id,
                virtual_id,
                reset_token,
            } => write_sized(out, ACK_CLIENT_VCID, &[id, virtual_id, reset_token]),
            Self::AckTargetCid {
                id,
                virtual_id,
                reset_token,
            } => write_sized(out, ACK_TARGET_CID, &[id, virtual_id, reset_token]),
            Self::CloseClientCid { id } => write_bare(out, CLOSE_CLIENT_CID, id),
            Self::CloseTargetCid { id } => write_bare(out, CLOSE_TARGET_CID, id),
            Self::MaxConnectionIds { sequence } => {
                varint::write(out, MAX_CONNECTION_IDS);
                varint::write(out, varint::len(*sequence) as u64);
                varint::write(out, *sequence);
            }
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::RegisterClientCid { .. } => "REGISTER_CLIENT_CID",
            Self::RegisterTargetCid { .. } => "REGISTER_TARGET_CID",
            Self::AckClientCid { .. } => "ACK_CLIENT_CID",
            Self::AckClientVcid { .. } => "ACK_CLIENT_VCID",
            Self::AckTargetCid { .. } => "ACK_TARGET_CID",
            Self::CloseClientCid { .. } => "CLOSE_CLIENT_CID",
            Self::CloseTargetCid { .. } => "CLOSE_TARGET_CID",
            Self::MaxConnectionIds { .. } => "MAX_CONNECTION_IDS",
        }
    }
}

/// Ids and tokens stay out of every log.
impl fmt::Debug for Capsule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An id whose length is the capsule's.
fn rest(value: &mut Bytes) -> Option<Bytes> {
    (value.len() <= MAX_ID).then(|| std::mem::take(value))
}

/// An id or a token behind its length.
fn sized(value: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(varint::read(value)?).ok()?;
    (length <= MAX_ID.min(value.len())).then(|| value.split_to(length))
}

fn cut(id: &[u8]) -> &[u8] {
    id.get(..MAX_ID).unwrap_or(id)
}

fn write_bare(out: &mut impl BufMut, kind: u64, id: &[u8]) {
    varint::write(out, kind);
    varint::write(out, cut(id).len() as u64);
    out.put_slice(cut(id));
}

fn write_sized(out: &mut impl BufMut, kind: u64, parts: &[&Bytes]) {
    let sizes = parts.iter().map(|part| {
        let length = cut(part).len();
        varint::len(length as u64).saturating_add(length)
    });
    varint::write(out, kind);
    varint::write(out, sizes.sum::<usize>() as u64);
    for part in parts {
        varint::write(out, cut(part).len() as u64);
        out.put_slice(cut(part));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        fn any_bytes_are_read_without_a_panic(packet: Vec<u8>, length: usize) {
            let _: Option<LongIds<'_>> = long_header_ids(&packet);
            let _: Option<&[u8]> = short_header_id(&packet, length);
        }
    }

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..=MAX_ID).prop_map(Bytes::from)
    }

    fn capsules() -> impl Strategy<Value = Capsule> {
        let sequence = 1..=varint::MAX;
        (0..8, bytes(), bytes(), bytes(), sequence).prop_map(
            |(which, id, virtual_id, reset_token, sequence)| match which {
                0 => Capsule::RegisterClientCid { id },
                1 => Capsule::RegisterTargetCid { id, reset_token },
                2 => Capsule::AckClientCid { id, virtual_id },
                3 => Capsule::AckClientVcid {
                    id,
                    virtual_id,
                    reset_token,
                },
                4 => Capsule::AckTargetCid {
                    id,
                    virtual_id,
                    reset_token,
                },
                5 => Capsule::CloseClientCid { id },
                6 => Capsule::CloseTargetCid { id },
                _ => Capsule::MaxConnectionIds { sequence },
            },
        )
    }

    /// Type and value of a written capsule.
    fn taken_apart(mut written: Bytes) -> (u64, Bytes) {
        let kind = varint::read(&mut written).expect("a type");
        let length = varint::read(&mut written).expect("a length");
        assert_eq!(length, written.len() as u64, "the length is the value's");
        (kind, written)
    }

    fn parse(kind: u64, value: &[u8]) -> Result<Capsule, Malformed> {
        Capsule::parse(kind, Bytes::copy_from_slice(value)).expect("one of these")
    }

    #[test]
    fn the_code_points_are_those_of_the_draft() {
        let id = Bytes::from_static(b"1234");
        let mut out = Vec::new();
        Capsule::RegisterClientCid { id: id.clone() }.write(&mut out);
        assert_eq!(out, b"\x80\xff\xe6\x00\x041234");
        out.clear();
        let (virtual_id, reset_token) = (Bytes::from_static(b"abcdef"), Bytes::new());
        Capsule::AckTargetCid {
            id,
            virtual_id,
            reset_token,
        }
        .write(&mut out);
        assert_eq!(out, b"\x80\xff\xe6\x04\x0d\x041234\x06abcdef\x00");
        out.clear();
        Capsule::MaxConnectionIds { sequence: 3 }.write(&mut out);
        assert_eq!(out, b"\x80\xff\xe6\x07\x01\x03");
    }

    #[test]
    fn other_types_are_not_ours() {
        for kind in [0, 0xff_e5ff, 0xff_e608, varint::MAX] {
            assert_eq!(Capsule::parse(kind, Bytes::new()), None);
        }
    }

    #[test]
    fn a_value_that_its_type_does_not_allow_is_malformed() {
        let cases: [(u64, &[u8]); 10] = [
            (REGISTER_CLIENT_CID, &[7; MAX_ID + 1]),
            (CLOSE_TARGET_CID, &[7; MAX_ID + 1]),
            (REGISTER_TARGET_CID, b""),
            (REGISTER_TARGET_CID, b"\x01a"),
            (REGISTER_TARGET_CID, b"\x01a\x02t"),
            (REGISTER_TARGET_CID, b"\x01a\x01tx"),
            (ACK_CLIENT_CID, b"\x01a\xff\xff\xff\xff\xff\xff\xff\xff"),
            (MAX_CONNECTION_IDS, b""),
            (MAX_CONNECTION_IDS, b"\x00"),
            (MAX_CONNECTION_IDS, b"\x01\x01"),
        ];
        for (kind, value) in cases {
            assert_eq!(parse(kind, value), Err(Malformed), "{kind:x} {value:?}");
        }
        let long = [&[0x41, 0x00][..], &[7; 256], &[0]].concat();
        assert_eq!(parse(ACK_CLIENT_CID, &long), Err(Malformed));
    }

    #[test]
    fn ids_of_every_length_of_the_invariants_are_read() {
        for length in [0, 1, 20, 21, MAX_ID] {
            let id = Bytes::from(vec![9; length]);
            let read = parse(REGISTER_CLIENT_CID, &id);
            assert_eq!(read, Ok(Capsule::RegisterClientCid { id }));
        }
    }

    #[test]
    fn debug_output_shows_no_id() {
        let id = Bytes::from_static(b"secret");
        let shown = format!("{:?}", Capsule::CloseClientCid { id });
        assert_eq!(shown, "CLOSE_CLIENT_CID");
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(capsule in capsules()) {
            let mut out = Vec::new();
            capsule.write(&mut out);
            let (kind, value) = taken_apart(out.into());
            prop_assert!(value.len() <= Capsule::LARGEST);
            prop_assert_eq!(Capsule::parse(kind, value), Some(Ok(capsule)));
        }

        #[test]
        fn any_value_is_read_without_a_panic(kind in REGISTER_CLIENT_CID..=MAX_CONNECTION_IDS, value: Vec<u8>) {
            if let Some(Ok(capsule)) = Capsule::parse(kind, value.into()) {
                let mut out = Vec::new();
                capsule.write(&mut out);
                let (kind, value) = taken_apart(out.into());
                prop_assert_eq!(Capsule::parse(kind, value), Some(Ok(capsule)));
            }
        }
    }
}
