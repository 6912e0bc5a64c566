//! The eight capsules about connection ids. Lengths are checked here; who may send which and when is the machines' business.
//! draft-ietf-masque-quic-proxy, "Connection ID Capsules"; RFC 9297 §3.2.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::{BufMut, Bytes};

use crate::varint;

#[cfg(test)]
mod tests;

/// The longest connection id of the QUIC invariants; QUIC version 1 stops at 20 octets.
pub const MAX_ID: usize = 255;

const REGISTER_CLIENT_CID: u64 = 0xff_e600;
const REGISTER_TARGET_CID: u64 = 0xff_e601;
const ACK_CLIENT_CID: u64 = 0xff_e602;
const ACK_CLIENT_VCID: u64 = 0xff_e603;
const ACK_TARGET_CID: u64 = 0xff_e604;
const CLOSE_CLIENT_CID: u64 = 0xff_e605;
const CLOSE_TARGET_CID: u64 = 0xff_e606;
const MAX_CONNECTION_IDS: u64 = 0xff_e607;

/// A capsule about connection ids: its ids and tokens are at most [`MAX_ID`] octets.
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
impl std::fmt::Debug for Capsule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
