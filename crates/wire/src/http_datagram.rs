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

/// The same as it stands before a payload.
pub const UDP_HEAD: &[u8] = &[0];

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
    /// What an extension knows. "If an HTTP Datagram is received with a context ID that is unknown, it MUST be dropped or kept for a while".
    Context(u64, Bytes),
    /// It ends within its context id.
    Malformed,
}

/// Reads the context id of an HTTP Datagram, from a frame or from a capsule.
pub fn udp(mut datagram: Bytes) -> Udp {
    match varint::read(&mut datagram) {
        Some(UDP_CONTEXT) => Udp::Payload(datagram),
        Some(context) => Udp::Context(context, datagram),
        None => Udp::Malformed,
    }
}

/// How many bytes [`write_stream`] writes for this stream.
pub const fn overhead(stream: u64) -> usize {
    varint::len(stream / 4)
}

/// Writes what stands before the context id in a DATAGRAM frame.
pub fn write_stream(out: &mut impl BufMut, stream: u64) {
    varint::write(out, stream / 4);
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
        let one = Bytes::from_static(&[1]);
        assert_eq!(udp(Bytes::from_static(&[2, 1])), Udp::Context(2, one));
        assert_eq!(udp(Bytes::from_static(&[0x80, 1])), Udp::Malformed);
        assert_eq!(udp(Bytes::from_static(&[0])), Udp::Payload(Bytes::new()));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(quarter in 0..=MAX_QUARTER, payload: Vec<u8>) {
            let (stream, mut out) = (quarter * 4, Vec::new());
            write_stream(&mut out, stream);
            prop_assert_eq!(out.len(), overhead(stream));
            out.extend_from_slice(UDP_HEAD);
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
