//! Forwarded mode: capsules that register connection ids, the fields that negotiate a transform, and the headers that are snooped.
//! `relay` serves it, `masque` asks for it; `crypto` has the transforms themselves.
//! draft-ietf-masque-quic-proxy (its code points are provisional); what a proxy may know of QUIC: RFC 8999.

mod capsule;
mod field;
mod header;
mod item;

pub use capsule::{Capsule, MAX_ID, Malformed};
pub use field::{Answer, FORWARDING, Key, NotOffered, Offer, PORT_SHARING, Transform};
pub use header::{LongIds, is_long, is_short, long_header_ids, short_header_id};
