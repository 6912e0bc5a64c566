//! SOCKS version 5: messages, the datagram header, and the accepting side's handshake as a machine without I/O.
//! The mediator's SOCKS front end drives it; the lab and the tests speak the client's half with the same types.
//! RFC 1928 (SOCKS5), RFC 1929 (user name and password). GSSAPI is not offered, because nothing here could check it.
//!
//! Each message is a pair: a lenient view that borrows what came (`GreetingView`, `RequestView`, …) and a strict value
//! (`Request`, `Endpoint`, …). `parse(emit(x)) == x` holds for the values.

pub mod acceptor;
pub mod address;
pub mod message;
mod reader;
pub mod refusal;
pub mod udp;

pub use acceptor::{Acceptor, Step};
pub use address::{AddressView, Endpoint, EndpointView};
pub use message::{
    Command, CredentialsView, GreetingView, Method, Reply, ReplyCode, Request, RequestView,
};
pub use refusal::{Refusal, Unread};
pub use udp::DatagramView;

/// The version octet of every SOCKS5 message but those of RFC 1929.
pub const VERSION: u8 = 5;
