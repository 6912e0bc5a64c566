//! IP proxying: what a request asks for, and the capsules by which one end tells the other of addresses and routes.
//! `masque` asks with it, `relay` serves it, `overlay` has its words in the signature of `open_packets`.
//! RFC 9484 §4.6 (scope) and §4.7 (capsules); the packets themselves are HTTP Datagrams of context 0, as in CONNECT-UDP.

mod capsule;
mod range;
mod scope;

pub use capsule::{Capsule, Malformed, Numbered};
pub use range::{Prefix, Route};
pub use scope::{Scope, ScopeTarget};

/// The protocol numbers of ICMP, which every route allows.
pub const ICMP: u8 = 1;
/// The same for IPv6.
pub const ICMPV6: u8 = 58;

/// What "IPv6 requires that every link have": the smallest packet that a tunnel for IPv6 must carry (RFC 9484 §7.1), in octets.
pub const LEAST_MTU: usize = 1280;
