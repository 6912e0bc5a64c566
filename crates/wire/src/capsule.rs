//! Capsules: typed messages on a request stream, of which DATAGRAM, those of forwarded mode and those of IP proxying matter here.
//! RFC 9297 §3.2 and §3.5; draft-ietf-masque-quic-proxy; RFC 9484 §4.7.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::{
    bound_udp, connect_ip,
    forwarding::{Capsule, Malformed},
    http_datagram::UDP_HEAD,
    varint::{self, HeadReader},
};

const DATAGRAM: u64 = 0x00;

/// The largest DATAGRAM capsule that is kept: a UDP payload and a context id. Larger ones are skipped and counted.
pub const MAX_DATAGRAM: usize = 65_535;

/// A capsule that somebody here understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The value of a DATAGRAM capsule: a context id and a payload.
    Datagram(Bytes),
    /// A capsule about connection ids.
    Forwarding(Result<Capsule, Malformed>),
    /// A capsule about addresses or routes.
    Ip(Result<connect_ip::Capsule, connect_ip::Malformed>),
    /// A capsule about a context of bound UDP.
    Bound(Result<bound_udp::Capsule, bound_udp::Malformed>),
}

/// Cuts a data stream into capsules and hands out those that somebody here understands.
/// "Endpoints MUST silently drop unknown capsules": they are skipped without being kept, however large.
#[derive(Debug, Default)]
pub struct CapsuleReader {
    state: State,
    oversized: u64,
}

#[derive(Debug)]
enum State {
    Head(HeadReader),
    Skip {
        left: u64,
    },
    Keep {
        kind: u64,
        left: usize,
        kept: BytesMut,
    },
}

impl Default for State {
    fn default() -> Self {
        Self::Head(HeadReader::default())
    }
}

impl CapsuleReader {
    /// The next capsule out of `input`. `None` when all of `input` is taken and more is needed.
    /// A value that came in one piece is not copied. A capsule of forwarded mode, IP proxying or bound UDP that is larger than any
    /// can be, or than we keep, is told as malformed when its head is there, and skipped.
    pub fn next(&mut self, input: &mut Bytes) -> Option<Item> {
        loop {
            match &mut self.state {
                State::Head(head) => {
                    let (kind, length) = head.read(input)?;
                    if let Some(refused) = self.begin(kind, length) {
                        return Some(refused);
                    }
                }
                State::Skip { left: 0 } => self.state = State::default(),
                State::Keep { kind, left, kept } if kept.is_empty() && *left <= input.len() => {
                    let item = item(*kind, input.split_to(*left));
                    self.state = State::default();
                    return Some(item);
                }
                State::Keep {
                    kind,
                    left: 0,
                    kept,
                } => {
                    let item = item(*kind, std::mem::take(kept).freeze());
                    self.state = State::default();
                    return Some(item);
                }
                _ if input.is_empty() => return None,
                State::Skip { left } => {
                    let now = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(input.len());
                    input.advance(now);
                    *left = left.saturating_sub(now as u64);
                }
                State::Keep { left, kept, .. } => {
                    let now = (*left).min(input.len());
                    kept.put(input.split_to(now));
                    *left = left.saturating_sub(now);
                }
            }
        }
    }

    /// The value of the next DATAGRAM capsule, where nothing else is understood: then other capsules are unknown ones.
    pub fn next_datagram(&mut self, input: &mut Bytes) -> Option<Bytes> {
        loop {
            if let Item::Datagram(value) = self.next(input)? {
                return Some(value);
            }
        }
    }

    fn begin(&mut self, kind: u64, length: u64) -> Option<Item> {
        let largest = match kind {
            DATAGRAM => Some(MAX_DATAGRAM),
            _ if Capsule::is_kind(kind) => Some(Capsule::LARGEST),
            _ if connect_ip::Capsule::is_kind(kind) => Some(connect_ip::Capsule::LARGEST),
            _ if bound_udp::Capsule::is_kind(kind) => Some(bound_udp::Capsule::LARGEST),
            _ => None,
        };
        let fits = usize::try_from(length)
            .ok()
            .filter(|left| largest.is_some_and(|largest| *left <= largest));
        self.state = match fits {
            Some(left) => State::Keep {
                kind,
                left,
                kept: BytesMut::new(),
            },
            None => State::Skip { left: length },
        };
        match (kind, fits, largest) {
            (DATAGRAM, None, _) => self.oversized = self.oversized.saturating_add(1),
            (_, None, Some(_)) => return Some(malformed(kind)),
            _ => {}
        }
        None
    }

    /// How many bytes are held for a capsule that has come in part.
    pub fn held(&self) -> usize {
        match &self.state {
            State::Keep { kept, .. } => kept.capacity(),
            State::Head(_) | State::Skip { .. } => 0,
        }
    }

    /// Gives up what is held: the rest of that capsule is skipped, as that of one that is too large.
    pub fn give_up(&mut self) {
        if let State::Keep { kind, left, .. } = &self.state {
            if *kind == DATAGRAM {
                self.oversized = self.oversized.saturating_add(1);
            }
            self.state = State::Skip { left: *left as u64 };
        }
    }

    /// How many DATAGRAM capsules were skipped because of their size since the last call.
    pub fn take_oversized(&mut self) -> u64 {
        std::mem::take(&mut self.oversized)
    }

    /// Whether the stream may end here; else "the message is malformed" (RFC 9297 §3.3).
    pub fn is_between_capsules(&self) -> bool {
        match &self.state {
            State::Head(head) => !head.has_part(),
            State::Skip { left } => *left == 0,
            State::Keep { left, kept, .. } => *left == 0 && kept.is_empty(),
        }
    }
}

/// What a kept value says.
fn item(kind: u64, value: Bytes) -> Item {
    if kind == DATAGRAM {
        return Item::Datagram(value);
    }
    if let Some(capsule) = connect_ip::Capsule::parse(kind, value.clone()) {
        return Item::Ip(capsule);
    }
    match bound_udp::Capsule::parse(kind, value.clone()) {
        Some(capsule) => Item::Bound(capsule),
        None => Item::Forwarding(Capsule::parse(kind, value).unwrap_or(Err(Malformed))),
    }
}

/// What is said of a capsule that is too large.
fn malformed(kind: u64) -> Item {
    if connect_ip::Capsule::is_kind(kind) {
        Item::Ip(Err(connect_ip::Malformed))
    } else if bound_udp::Capsule::is_kind(kind) {
        Item::Bound(Err(bound_udp::Malformed))
    } else {
        Item::Forwarding(Err(Malformed))
    }
}

/// Writes a DATAGRAM capsule with context id 0 around a UDP payload.
pub fn write_udp(out: &mut impl BufMut, payload: &[u8]) {
    write_datagram(out, UDP_HEAD, payload);
}

/// Writes a DATAGRAM capsule: a context id and what its format puts before a payload, and the payload.
pub fn write_datagram(out: &mut impl BufMut, head: &[u8], payload: &[u8]) {
    varint::write(out, DATAGRAM);
    varint::write(out, head.len().saturating_add(payload.len()) as u64);
    out.put_slice(head);
    out.put_slice(payload);
}

/// How many bytes [`write_datagram`] takes at most around head and payload.
pub const OVERHEAD: usize = 9;

/// How many bytes [`write_udp`] takes around a payload at most.
pub const UDP_OVERHEAD: usize = OVERHEAD + UDP_HEAD.len();

/// A capsule of any type, for tests.
#[cfg(test)]
pub(crate) fn raw(kind: u64, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint::write(&mut out, kind);
    varint::write(&mut out, value.len() as u64);
    out.extend_from_slice(value);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_items(bytes: &[u8], piece: usize) -> (Vec<Item>, CapsuleReader) {
        let (mut reader, mut items) = (CapsuleReader::default(), Vec::new());
        for chunk in bytes.chunks(piece.max(1)) {
            let mut input = Bytes::copy_from_slice(chunk);
            while let Some(item) = reader.next(&mut input) {
                items.push(item);
            }
        }
        (items, reader)
    }

    fn read_all(bytes: &[u8], piece: usize) -> (Vec<Bytes>, CapsuleReader) {
        let (mut reader, mut values) = (CapsuleReader::default(), Vec::new());
        for chunk in bytes.chunks(piece.max(1)) {
            let mut input = Bytes::copy_from_slice(chunk);
            while let Some(value) = reader.next_datagram(&mut input) {
                values.push(value);
            }
        }
        (values, reader)
    }

    #[test]
    fn unknown_and_oversized_capsules_are_skipped() {
        let bytes = [
            raw(0x1234, &[9; 70_000]),
            raw(DATAGRAM, b"a"),
            raw(DATAGRAM, &[1; MAX_DATAGRAM + 1]),
            raw(DATAGRAM, b""),
            raw(0xffe600, b""),
        ]
        .concat();
        for piece in [1, 999, usize::MAX] {
            let (values, mut reader) = read_all(&bytes, piece);
            assert_eq!(values, [&b"a"[..], b""]);
            assert_eq!(reader.take_oversized(), 1);
            assert!(reader.is_between_capsules());
        }
    }

    #[test]
    fn what_has_come_of_a_capsule_is_held_and_can_be_given_up() {
        let bytes = [raw(DATAGRAM, &[1; 60_000]), raw(DATAGRAM, b"a")].concat();
        let (first, rest) = bytes.split_at(10_000);
        let mut reader = CapsuleReader::default();
        assert_eq!(reader.held(), 0);
        assert_eq!(reader.next(&mut Bytes::copy_from_slice(first)), None);
        assert!((9_000..=20_000).contains(&reader.held()));
        reader.give_up();
        assert_eq!((reader.held(), reader.take_oversized()), (0, 1));
        let mut rest = Bytes::copy_from_slice(rest);
        let next = reader.next_datagram(&mut rest);
        assert_eq!(next.as_deref(), Some(&b"a"[..]));
        assert!(reader.is_between_capsules());
    }

    #[test]
    fn capsules_of_forwarded_mode_stand_in_order_among_datagrams() {
        let id = Bytes::from_static(b"1234");
        let bytes = [
            raw(0xffe600, b"1234"),
            raw(DATAGRAM, b"a"),
            raw(0xffe607, b""),
            raw(0xffe600, &[7; Capsule::LARGEST + 1]),
            raw(0xffe605, &[7; Capsule::LARGEST]),
            raw(0xffe608, b"x"),
            raw(0xffe606, b"1234"),
        ]
        .concat();
        let wanted = [
            Item::Forwarding(Ok(Capsule::RegisterClientCid { id: id.clone() })),
            Item::Datagram(Bytes::from_static(b"a")),
            Item::Forwarding(Err(Malformed)),
            Item::Forwarding(Err(Malformed)),
            Item::Forwarding(Err(Malformed)),
            Item::Forwarding(Ok(Capsule::CloseTargetCid { id })),
        ];
        for piece in [1, 3, 999, usize::MAX] {
            let (items, mut reader) = read_items(&bytes, piece);
            assert_eq!(items, wanted);
            assert_eq!(reader.take_oversized(), 0);
            assert!(reader.is_between_capsules());
        }
    }

    #[test]
    fn capsules_of_ip_proxying_stand_in_order_among_datagrams() {
        let largest = connect_ip::Capsule::LARGEST;
        let bytes = [
            raw(1, &[0, 4, 192, 0, 2, 1, 32]),
            raw(DATAGRAM, b"a"),
            raw(2, b""),
            raw(3, &vec![0; largest + 1]),
            raw(3, b""),
        ]
        .concat();
        for piece in [1, 3, 999, usize::MAX] {
            let (items, mut reader) = read_items(&bytes, piece);
            let refused = Item::Ip(Err(connect_ip::Malformed));
            assert!(
                matches!(&items[0], Item::Ip(Ok(connect_ip::Capsule::AddressAssign(one))) if one.len() == 1)
            );
            assert_eq!(items[1], Item::Datagram(Bytes::from_static(b"a")));
            assert_eq!((&items[2], &items[3]), (&refused, &refused));
            assert_eq!(
                items[4],
                Item::Ip(Ok(connect_ip::Capsule::RouteAdvertisement(vec![])))
            );
            assert_eq!((items.len(), reader.take_oversized()), (5, 0));
            assert!(reader.is_between_capsules());
        }
    }

    #[test]
    fn capsules_of_bound_udp_stand_in_order_among_datagrams() {
        let bytes = [
            raw(0x11, &[2, 0]),
            raw(DATAGRAM, b"a"),
            raw(0x12, b""),
            raw(0x11, &[7; bound_udp::Capsule::LARGEST + 1]),
            raw(0x13, &[2]),
        ]
        .concat();
        let refused = Item::Bound(Err(bound_udp::Malformed));
        let assign = bound_udp::Capsule::Assign {
            context: 2,
            peer: None,
        };
        let wanted = [
            Item::Bound(Ok(assign)),
            Item::Datagram(Bytes::from_static(b"a")),
            refused.clone(),
            refused,
            Item::Bound(Ok(bound_udp::Capsule::Close { context: 2 })),
        ];
        for piece in [1, 3, usize::MAX] {
            let (items, reader) = read_items(&bytes, piece);
            assert_eq!(items, wanted);
            assert!(reader.is_between_capsules());
        }
    }

    #[test]
    fn an_endless_forwarding_capsule_is_malformed_once_and_never_kept() {
        let mut bytes = Vec::new();
        varint::write(&mut bytes, 0xffe600);
        varint::write(&mut bytes, varint::MAX);
        bytes.extend([7; 10_000]);
        let (items, reader) = read_items(&bytes, 100);
        assert_eq!(items, [Item::Forwarding(Err(Malformed))]);
        assert!(matches!(reader.state, State::Skip { .. }));
    }

    #[test]
    fn an_end_inside_a_capsule_is_noticed() {
        for cut in [
            &[0x00][..],
            &[0x40],
            &[0x00, 2],
            &[0x00, 2, 0],
            &[0x21, 2, 0],
        ] {
            assert!(!read_all(cut, 9).1.is_between_capsules(), "{cut:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8), piece in 1_usize..1000) {
            let mut out = Vec::new();
            for payload in &payloads {
                let before = out.len();
                write_udp(&mut out, payload);
                prop_assert!(out.len() - before <= payload.len() + UDP_OVERHEAD);
            }
            let (values, reader) = read_all(&out, piece);
            let read: Vec<_> = values.iter().map(|value| { prop_assert_eq!(value[0], 0); Ok(value[1..].to_vec()) }).collect::<Result<_, _>>()?;
            prop_assert_eq!(read, payloads);
            prop_assert!(reader.is_between_capsules());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, piece in 1_usize..40) {
            drop(read_items(&bytes, piece));
        }
    }
}
