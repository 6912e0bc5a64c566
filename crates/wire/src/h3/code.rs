//! The error codes that close a connection or reset a stream.
//! `masque::h3` sends them and reads them from the peer.
//! RFC 9114 §8.1, RFC 9204 §6, RFC 9297 §5.2, RFC 9298 has none of its own.

use std::fmt;

/// An HTTP/3 error code; unknown ones are kept as they came.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u64);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The name that the standard gives it.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Nothing is wrong.
    NO_ERROR = 0x100, "H3_NO_ERROR";
    /// A breach for which there is no better code.
    GENERAL_PROTOCOL_ERROR = 0x101, "H3_GENERAL_PROTOCOL_ERROR";
    /// Our own mistake.
    INTERNAL_ERROR = 0x102, "H3_INTERNAL_ERROR";
    /// A stream that must not be opened, or not twice.
    STREAM_CREATION_ERROR = 0x103, "H3_STREAM_CREATION_ERROR";
    /// A control or QPACK stream ended.
    CLOSED_CRITICAL_STREAM = 0x104, "H3_CLOSED_CRITICAL_STREAM";
    /// A frame that is not allowed here or now.
    FRAME_UNEXPECTED = 0x105, "H3_FRAME_UNEXPECTED";
    /// A frame whose layout or size is wrong.
    FRAME_ERROR = 0x106, "H3_FRAME_ERROR";
    /// The peer asks too much of us.
    EXCESSIVE_LOAD = 0x107, "H3_EXCESSIVE_LOAD";
    /// An identifier that was misused.
    ID_ERROR = 0x108, "H3_ID_ERROR";
    /// Settings that contradict the rules.
    SETTINGS_ERROR = 0x109, "H3_SETTINGS_ERROR";
    /// The control stream does not begin with settings.
    MISSING_SETTINGS = 0x10a, "H3_MISSING_SETTINGS";
    /// The server did not look at the request: it may be sent again.
    REQUEST_REJECTED = 0x10b, "H3_REQUEST_REJECTED";
    /// The request is no longer wanted.
    REQUEST_CANCELLED = 0x10c, "H3_REQUEST_CANCELLED";
    /// The stream ended before the request did.
    REQUEST_INCOMPLETE = 0x10d, "H3_REQUEST_INCOMPLETE";
    /// A malformed message.
    MESSAGE_ERROR = 0x10e, "H3_MESSAGE_ERROR";
    /// The TCP connection behind a CONNECT was reset.
    CONNECT_ERROR = 0x10f, "H3_CONNECT_ERROR";
    /// Use another version of HTTP.
    VERSION_FALLBACK = 0x110, "H3_VERSION_FALLBACK";
    /// A field section that cannot be read.
    QPACK_DECOMPRESSION_FAILED = 0x200, "QPACK_DECOMPRESSION_FAILED";
    /// An instruction on the encoder stream that cannot be obeyed.
    QPACK_ENCODER_STREAM_ERROR = 0x201, "QPACK_ENCODER_STREAM_ERROR";
    /// An instruction on the decoder stream that cannot be obeyed.
    QPACK_DECODER_STREAM_ERROR = 0x202, "QPACK_DECODER_STREAM_ERROR";
    /// An HTTP Datagram that names no possible stream.
    DATAGRAM_ERROR = 0x33, "H3_DATAGRAM_ERROR";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
