//! HTTP/3 without its connection: frames, settings, error codes.
//! `masque::h3` drives it at both ends.
//! RFC 9114, with RFC 9220 (Extended CONNECT) and RFC 9297 (HTTP Datagrams).

mod code;
mod frame;
mod settings;

pub use code::Code;
pub use frame::{Frame, FrameReader, Place, write_data_head, write_goaway, write_headers};
pub use settings::Settings;

/// Kinds of unidirectional streams, RFC 9114 §6.2 and RFC 9204 §4.2.
pub mod stream {
    /// Carries settings and GOAWAY.
    pub const CONTROL: u64 = 0x00;
    /// Carries a pushed response; nobody here asks for one.
    pub const PUSH: u64 = 0x01;
    /// Carries insertions into the dynamic table; ours has room for none.
    pub const QPACK_ENCODER: u64 = 0x02;
    /// Carries acknowledgements of insertions.
    pub const QPACK_DECODER: u64 = 0x03;
}
