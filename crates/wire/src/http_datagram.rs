//! HTTP Datagrams: a quarter of the request's stream id, for CONNECT-UDP a context id, and the payload.
//! RFC 9297 §2.1, RFC 9298 §4 and §5.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::{BufMut, Bytes};

use crate::varint;

/// The context id of plain UDP payloads.
pub const UDP_CONTEXT: u64 = 0;

/// The largest quarter of a stream id: "The largest legal value of the Quarter Stream ID field is 2^60 − 1."
pub const MAX_QUARTER: u64 = (1 << 60) - 1;

/// Splits the content of a QUIC DATAGRAM frame into stream id and the rest; `None` is an H3_DATAGRAM_ERROR of the connection.
pub fn split(mut datagram: Bytes) -> Option<(u64, Bytes)> {
    let quarter = varint::read(&mut datagram).filter(|quarter| *quarter <= MAX_QUARTER)?;
    Some((quarter.checked_mul(4)?, datagram))
}

/// What CONNECT-UDP finds in an HTTP Datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Udp {
    /// A UDP payload.
    Payload(Bytes),
    /// "If an HTTP Datagram is received with a context ID that is unknown, it MUST be dropped or kept for a while": dropped here.
    UnknownContext,
    /// It ends within its context id.
    Malformed,
}

/// Reads the context id of an HTTP Datagram, from a frame or from a capsule.
pub fn udp(mut datagram: Bytes) -> Udp {
    match varint::read(&mut datagram) {
        Some(UDP_CONTEXT) => Udp::Payload(datagram),
        Some(_) => Udp::UnknownContext,
        None => Udp::Malformed,
    }
}

/// How many bytes [`write_udp_head`] writes for this stream.
pub const fn udp_overhead(stream: u64) -> usize {
    varint::len(stream / 4).saturating_add(1)
}

/// Writes what stands before a UDP payload in a DATAGRAM frame.
pub fn write_udp_head(out: &mut impl BufMut, stream: u64) {
    varint::write(out, stream / 4);
    varint::write(out, UDP_CONTEXT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_quarter_beyond_every_stream_is_refused() {
        let mut out = Vec::new();
        varint::write(&mut out, MAX_QUARTER + 1);
        assert_eq!(split(out.into()), None);
        assert_eq!(split(Bytes::from_static(&[0x40])), None);
        assert_eq!(split(Bytes::new()), None);
    }

    #[test]
    fn other_contexts_are_told_apart_from_broken_ones() {
        assert_eq!(udp(Bytes::from_static(&[2, 1])), Udp::UnknownContext);
        assert_eq!(udp(Bytes::from_static(&[0x80, 1])), Udp::Malformed);
        assert_eq!(udp(Bytes::from_static(&[0])), Udp::Payload(Bytes::new()));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(quarter in 0..=MAX_QUARTER, payload: Vec<u8>) {
            let (stream, mut out) = (quarter * 4, Vec::new());
            write_udp_head(&mut out, stream);
            prop_assert_eq!(out.len(), udp_overhead(stream));
            out.extend_from_slice(&payload);
            let (read, rest) = split(out.into()).expect("valid");
            prop_assert_eq!((read, udp(rest)), (stream, Udp::Payload(payload.into())));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            if let Some((_, rest)) = split(bytes.into()) {
                drop(udp(rest));
            }
        }
    }
}
