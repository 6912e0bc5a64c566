//! What goes over the wire: targets, relay descriptors, HTTP/3 frames, QPACK, capsules, HTTP datagrams, IP proxying, bound UDP, forwarded mode, SOCKS, QUIC frames, IP packets, DNS messages, geofeeds, Tor cells, Tor's directory documents, what a relay keeps of itself.
//! Each module names the specification and section that it implements.
//!
//! # Not in this room
//! Keys and certificates (`crypto`), sockets and clocks (nobody here has any), HTTP/2 (crate `h2`).

pub mod bound_udp;
pub mod capsule;
pub mod cell;
mod circuit_use;
pub mod connect_ip;
pub mod connect_tcp;
pub mod content_coding;
pub mod directory;
pub mod dns;
pub mod ecn_contexts;
pub mod forwarding;
pub mod geofeed;
pub mod h3;
pub mod http_datagram;
pub mod http_head;
pub mod ip;
pub mod line_diff;
pub mod networks;
mod onion_key;
pub mod privacy_pass;
mod protocols;
mod proxy_status;
pub mod qpack;
pub mod quic_frames;
pub mod region;
pub mod relay_state;
pub mod relay_statistics;
pub mod socks;
pub mod special;
pub mod target;
pub mod template;
pub mod tor;
pub mod tuning;
pub mod varint;

pub use circuit_use::{CircuitFate, ServicePurpose};
pub use http_head::{RequestHead, ResponseHead};
pub use onion_key::{OnionKey, OnionKeyError};
pub use protocols::{Protocols, ProtocolsError, QUIC_CHANNELS};
pub use proxy_status::ProxyError;
pub use target::{Host, HostName, Target, TargetError};
pub use template::Template;
