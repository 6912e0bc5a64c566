//! Bound UDP: one CONNECT-UDP flow with a public address of its own, to and from many targets. The fields that ask for it and answer it, the
//! capsules by which both ends agree on contexts, and what stands before a payload.
//! draft-ietf-masque-connect-udp-listen-13 (and the editors' copy of 8 July 2026), §3 to §7; structured fields: RFC 9651.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use bytes::{Buf, BufMut, Bytes};

use crate::{
    RequestHead, ResponseHead,
    forwarding::field::{boolean, only, strings},
    varint,
};

/// The field by which a client asks and a relay agrees.
pub const FIELD: &str = "connect-udp-bind";

/// The field by which a relay says which addresses and ports the flow has.
pub const PUBLIC_ADDRESS: &str = "proxy-public-address";

/// More addresses of one flow are not read.
pub const MAX_ADDRESSES: usize = 16;

/// The most that stands before a payload, in bytes: a context id, a version, an address and a port.
pub const MAX_HEAD: usize = 27;

const COMPRESSION_ASSIGN: u64 = 0x11;
const COMPRESSION_ACK: u64 = 0x12;
const COMPRESSION_CLOSE: u64 = 0x13;

/// A capsule about a context.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Capsule {
    /// What the context means from now on.
    Assign {
        /// Its number, which is not zero.
        context: u64,
        /// Whose payloads it carries; `None`: anybody's, and who that is stands before each.
        peer: Option<SocketAddr>,
    },
    /// The other end has taken it.
    Ack {
        /// Its number, which is not zero.
        context: u64,
    },
    /// It is refused, or means nothing any more.
    Close {
        /// Its number, which is not zero.
        context: u64,
    },
}

/// "Receipt of a malformed capsule MUST be treated as an error processing the Capsule Protocol": the stream is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a capsule of bound UDP is malformed")]
pub struct Malformed;

impl Capsule {
    /// The largest value, in bytes.
    pub const LARGEST: usize = MAX_HEAD;

    /// Whether `kind` is the type of a capsule of this module.
    pub const fn is_kind(kind: u64) -> bool {
        matches!(kind, COMPRESSION_ASSIGN..=COMPRESSION_CLOSE)
    }

    /// Reads the value of a capsule of type `kind`; `None` when it is another extension's.
    pub fn parse(kind: u64, mut value: Bytes) -> Option<Result<Self, Malformed>> {
        if !Self::is_kind(kind) {
            return None;
        }
        let capsule = read(kind, &mut value).filter(|_| value.is_empty());
        Some(capsule.ok_or(Malformed))
    }

    /// Writes type, length and value.
    pub fn write(&self, out: &mut impl BufMut) {
        let mut value = Vec::with_capacity(MAX_HEAD);
        let kind = match self {
            Self::Assign { context, peer } => {
                varint::write(&mut value, *context);
                match peer {
                    Some(peer) => write_peer(&mut value, *peer),
                    None => value.put_u8(0),
                }
                COMPRESSION_ASSIGN
            }
            Self::Ack { context } => {
                varint::write(&mut value, *context);
                COMPRESSION_ACK
            }
            Self::Close { context } => {
                varint::write(&mut value, *context);
                COMPRESSION_CLOSE
            }
        };
        varint::write(out, kind);
        varint::write(out, value.len() as u64);
        out.put_slice(&value);
    }
}

/// "The value 0 was reserved by unextended UDP proxying": none of the capsules may have it.
fn read(kind: u64, from: &mut Bytes) -> Option<Capsule> {
    let context = varint::read(from).filter(|context| *context != 0)?;
    Some(match kind {
        COMPRESSION_ASSIGN => {
            let peer = match from.first()? {
                0 => {
                    from.advance(1);
                    None
                }
                _ => Some(read_peer(from)?),
            };
            Capsule::Assign { context, peer }
        }
        COMPRESSION_ACK => Capsule::Ack { context },
        _ => Capsule::Close { context },
    })
}

/// What stands before a payload: its context, and the peer where the context is anybody's.
pub fn head(context: u64, peer: Option<SocketAddr>) -> Vec<u8> {
    let mut head = Vec::with_capacity(MAX_HEAD);
    varint::write(&mut head, context);
    if let Some(peer) = peer {
        write_peer(&mut head, peer);
    }
    head
}

/// Splits what an HTTP Datagram of an uncompressed context has behind the context id into the peer and the payload.
pub fn split_peer(mut content: Bytes) -> Option<(SocketAddr, Bytes)> {
    let peer = read_peer(&mut content)?;
    Some((peer, content))
}

fn read_peer(from: &mut Bytes) -> Option<SocketAddr> {
    let ip: IpAddr = match from.first()? {
        4 if from.len() >= 7 => {
            from.advance(1);
            Ipv4Addr::from(from.get_u32()).into()
        }
        6 if from.len() >= 19 => {
            from.advance(1);
            Ipv6Addr::from(from.get_u128()).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, from.get_u16()))
}

fn write_peer(out: &mut Vec<u8>, peer: SocketAddr) {
    match peer.ip() {
        IpAddr::V4(ip) => {
            out.put_u8(4);
            out.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.put_u8(6);
            out.put_slice(&ip.octets());
        }
    }
    out.put_u16(peer.port());
}

impl RequestHead {
    /// Asks for a flow with an address of its own.
    #[must_use]
    pub fn with_bind(self) -> Self {
        self.with(FIELD, "?1")
    }

    /// Whether the client asks for one. "Any other value type MUST be handled as if the field were not present."
    pub fn asks_to_bind(&self) -> bool {
        only(&self.headers, FIELD).is_some_and(is_true)
    }
}

impl ResponseHead {
    /// Agrees, and says which addresses the flow has.
    #[must_use]
    pub fn with_bound(self, addresses: &[SocketAddr]) -> Self {
        let quoted = addresses.iter().map(|address| format!("\"{address}\""));
        let list: Vec<_> = quoted.collect();
        self.with(FIELD, "?1").with(PUBLIC_ADDRESS, list.join(", "))
    }

    /// The addresses of the flow; `None` where the relay does not agree, or says nothing that can be read.
    pub fn bound(&self) -> Option<Vec<SocketAddr>> {
        only(&self.headers, FIELD).filter(|value| is_true(value))?;
        let lines = self
            .headers
            .iter()
            .filter(|(name, _)| name == PUBLIC_ADDRESS);
        let mut addresses = Vec::new();
        for (_, line) in lines {
            for text in strings(line)? {
                addresses.push(address(text)?);
            }
        }
        (1..=MAX_ADDRESSES)
            .contains(&addresses.len())
            .then_some(addresses)
    }
}

fn is_true(value: &[u8]) -> bool {
    boolean(value, |_, _| {}) == Some(true)
}

/// An address and a port as RFC 3986 §3.2 writes them, which has no zones.
fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| !text.contains('%'))?;
    text.parse()
        .ok()
        .filter(|address: &SocketAddr| address.port() != 0)
}

/// Addresses stay out of every log.
impl fmt::Debug for Capsule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Assign { peer: None, .. } => "COMPRESSION_ASSIGN(anybody)",
            Self::Assign { .. } => "COMPRESSION_ASSIGN",
            Self::Ack { .. } => "COMPRESSION_ACK",
            Self::Close { .. } => "COMPRESSION_CLOSE",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(kind: u64, value: &'static [u8]) -> Result<Capsule, Malformed> {
        Capsule::parse(kind, Bytes::from_static(value)).expect("a kind of ours")
    }

    /// The draft's example: "Register Context ID 2 to be used for uncompressed UDP payloads", "Register 203.0.113.11:60000", and so on.
    #[test]
    fn the_capsules_of_the_drafts_example_are_read_and_written() {
        let peer = "203.0.113.11:60000".parse().expect("an address");
        let assign = |context, peer| Capsule::Assign { context, peer };
        for (bytes, capsule) in [
            (&[0x11, 2, 2, 0][..], assign(2, None)),
            (&[0x12, 1, 2], Capsule::Ack { context: 2 }),
            (
                &[0x11, 8, 4, 4, 203, 0, 113, 11, 0xea, 0x60],
                assign(4, Some(peer)),
            ),
            (&[0x12, 1, 4], Capsule::Ack { context: 4 }),
            (&[0x13, 1, 2], Capsule::Close { context: 2 }),
        ] {
            let mut written = Vec::new();
            capsule.write(&mut written);
            assert_eq!(written, bytes);
            assert_eq!(parse(bytes[0].into(), &bytes[2..]), Ok(capsule));
        }
    }

    #[test]
    fn the_payloads_of_the_drafts_example_are_read_and_written() {
        let peer = "192.0.2.42:50000".parse().expect("an address");
        let head = head(2, Some(peer));
        assert_eq!(head, [2, 4, 192, 0, 2, 42, 0xc3, 0x50]);
        let datagram = [&head[1..], b"payload"].concat();
        let split = split_peer(datagram.into());
        assert_eq!(split, Some((peer, Bytes::from_static(b"payload"))));
        assert_eq!(super::head(4, None), [4]);
    }

    #[test]
    fn malformed_capsules_are_refused() {
        for (kind, value) in [
            (0x11, &b""[..]),
            (0x11, &[2]),
            (0x11, &[0, 0]),                      // the number of CONNECT-UDP itself
            (0x11, &[2, 0, 0]),                   // something behind the end
            (0x11, &[2, 5, 1, 2, 3, 4, 0, 1]),    // no version of IP
            (0x11, &[2, 4, 1, 2, 3, 4, 0]),       // half a port
            (0x11, &[2, 4, 1, 2, 3, 4, 0, 1, 0]), // something behind the end
            (0x11, &[2, 6, 1, 2, 3, 4, 0, 1]),    // an address of IPv4 in IPv6
            (0x12, &[0]),
            (0x12, &[2, 2]),
            (0x13, &[0]),
            (0x13, &[0x40]),
        ] {
            assert_eq!(parse(kind, value), Err(Malformed), "{kind:#x} {value:?}");
        }
        assert_eq!(Capsule::parse(0x14, Bytes::new()), None);
    }

    #[test]
    fn a_payload_without_a_whole_peer_is_none() {
        for content in [
            &b""[..],
            &[4],
            &[4, 1, 2, 3, 4, 0],
            &[0],
            &[6, 1, 2, 3, 4, 0, 1],
        ] {
            assert_eq!(split_peer(Bytes::from_static(content)), None);
        }
        let (peer, payload) =
            split_peer(Bytes::from_static(&[4, 1, 2, 3, 4, 0, 1])).expect("empty");
        assert_eq!((peer.port(), payload.len()), (1, 0));
    }

    #[test]
    fn a_client_asks_by_one_boolean_that_is_true() {
        let asks = |values: &[&str]| {
            let head = RequestHead::connect_udp("relay", "/");
            let with = |head: RequestHead, value: &&str| head.with(FIELD, *value);
            values.iter().fold(head, with).asks_to_bind()
        };
        assert!(asks(&["?1"]) && asks(&[" ?1;what=\"ever\";other"]));
        assert!(
            RequestHead::connect_udp("relay", "/")
                .with_bind()
                .asks_to_bind()
        );
        for other in [
            &["?0"][..],
            &["1"],
            &["?1, ?1"],
            &["?1", "?1"],
            &["?1x"],
            &[""],
            &[],
        ] {
            assert!(!asks(other), "{other:?}");
        }
    }

    #[test]
    fn a_relay_says_its_addresses_as_the_draft_has_them() {
        let addresses = ["192.0.2.45:54321", "[2001:db8::1234]:54321"];
        let addresses = addresses.map(|text| text.parse().expect("an address"));
        let head = ResponseHead::new(200).with_bound(&addresses);
        let value = head.header(PUBLIC_ADDRESS);
        let text = br#""192.0.2.45:54321", "[2001:db8::1234]:54321""#;
        assert_eq!(value, Some(&text[..]));
        assert_eq!(head.bound(), Some(addresses.to_vec()));
        let lines = ResponseHead::new(200).with_bound(&addresses[..1]);
        let lines = lines.with(PUBLIC_ADDRESS, "\"[2001:db8::1234]:54321\";what=1");
        assert_eq!(lines.bound(), Some(addresses.to_vec()));
        for wrong in [
            "",
            "192.0.2.45:54321",
            "\"192.0.2.45\"",
            "\"192.0.2.45:0\"",
            "\"2001:db8::1:1\"",
            "\"[fe80::1%1]:1\"",
            "\"relay.example:1\"",
            "\"192.0.2.45:1\",",
            "\"192.0.2.45:1\" \"192.0.2.45:2\"",
        ] {
            let head = ResponseHead::new(200).with(FIELD, "?1");
            assert_eq!(head.with(PUBLIC_ADDRESS, wrong).bound(), None, "{wrong}");
        }
        let many = vec!["\"192.0.2.45:1\""; MAX_ADDRESSES + 1].join(",");
        let head = ResponseHead::new(200).with(FIELD, "?1");
        assert_eq!(head.with(PUBLIC_ADDRESS, many).bound(), None);
        let unasked = ResponseHead::new(200).with(PUBLIC_ADDRESS, "\"192.0.2.45:1\"");
        assert_eq!(unasked.bound(), None);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(context in 1..=varint::MAX, ip: Option<IpAddr>, port: u16, payload: Vec<u8>) {
            let peer = ip.map(|ip| SocketAddr::new(ip, port));
            for capsule in [Capsule::Assign { context, peer }, Capsule::Ack { context }, Capsule::Close { context }] {
                let mut out = Vec::new();
                capsule.write(&mut out);
                let value = Bytes::copy_from_slice(&out[2..]);
                prop_assert!(value.len() <= Capsule::LARGEST);
                prop_assert_eq!(Capsule::parse(out[0].into(), value), Some(Ok(capsule)));
            }
            if let Some(peer) = peer {
                let mut datagram = Bytes::from([head(context, Some(peer)), payload.clone()].concat());
                prop_assert_eq!(varint::read(&mut datagram), Some(context));
                prop_assert_eq!(split_peer(datagram), Some((peer, payload.into())));
            }
        }
    }
}
