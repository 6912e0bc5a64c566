//! Link specifiers: who a relay is and where it listens.
//! EXTEND2 has them, later the descriptors of onion services too. tor-spec: "EXTEND and EXTENDED cells".

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6},
};

use bytes::BufMut;

use crate::cell::{
    Malformed,
    input::{Input, short},
};

/// One thing that is known of a relay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LinkSpecifier<'a> {
    /// Where it listens.
    Ipv4(SocketAddrV4),
    /// Where it listens.
    Ipv6(SocketAddrV6),
    /// SHA-1 of its RSA identity key.
    Rsa([u8; 20]),
    /// Its Ed25519 identity.
    Ed25519([u8; 32]),
    /// "Nodes MUST ignore unrecognized specifiers."
    Unknown {
        /// Its type, none of the above.
        kind: u8,
        /// Its value: up to 255 octets.
        value: &'a [u8],
    },
}

impl<'a> LinkSpecifier<'a> {
    /// Type and value off the front. An error names what the input is.
    pub(in crate::cell) fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let malformed = input.malformed();
        let kind = input.u8()?;
        let mut value = Input::new(input.counted()?, malformed.0);
        let specifier = match kind {
            0 => Self::Ipv4(SocketAddrV4::new(
                Ipv4Addr::from(value.u32()?),
                value.u16()?,
            )),
            1 => {
                let ip = Ipv6Addr::from(value.array::<16>()?);
                Self::Ipv6(SocketAddrV6::new(ip, value.u16()?, 0, 0))
            }
            2 => Self::Rsa(value.array()?),
            3 => Self::Ed25519(value.array()?),
            _ => Self::Unknown {
                kind,
                value: value.take(value.rest().len())?,
            },
        };
        value.is_empty().then_some(specifier).ok_or(malformed)
    }

    /// Writes type, length and value.
    pub fn write(&self, out: &mut impl BufMut) {
        match self {
            Self::Ipv4(address) => {
                out.put_slice(&[0, 6]);
                out.put_slice(&address.ip().octets());
                out.put_u16(address.port());
            }
            Self::Ipv6(address) => {
                out.put_slice(&[1, 18]);
                out.put_slice(&address.ip().octets());
                out.put_u16(address.port());
            }
            Self::Rsa(identity) => {
                out.put_slice(&[2, 20]);
                out.put_slice(identity);
            }
            Self::Ed25519(identity) => {
                out.put_slice(&[3, 32]);
                out.put_slice(identity);
            }
            Self::Unknown { kind, value } => {
                let length = short(value.len());
                out.put_slice(&[*kind, length]);
                out.put_slice(value.get(..length.into()).unwrap_or(value));
            }
        }
    }

    /// "Nodes SHOULD reject link specifier lists that include multiple instances of either one of those specifiers."
    pub(super) const fn excludes(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::Rsa(_), Self::Rsa(_)) | (Self::Ed25519(_), Self::Ed25519(_))
        )
    }
}

/// Addresses and identities stay out of every log.
impl fmt::Debug for LinkSpecifier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4(_) => "Ipv4(hidden)",
            Self::Ipv6(_) => "Ipv6(hidden)",
            Self::Rsa(_) => "Rsa(hidden)",
            Self::Ed25519(_) => "Ed25519(hidden)",
            Self::Unknown { .. } => "Unknown",
        })
    }
}
