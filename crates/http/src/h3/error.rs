//! Why an exchange or a session failed.
//! The overlay turns it into its own error; streams carry that inside their I/O errors.

use std::io;

use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::h3::Code;

use super::quic;

/// A failure of a session or an exchange. Cheap to clone.
#[derive(Clone, Debug, thiserror::Error)]
pub enum H3Error {
    /// The connection is gone.
    #[error("the connection was lost: {0}")]
    Lost(#[from] quic::ConnectionError),
    /// The peer reset its direction of the stream.
    #[error("the peer reset the stream with {0}")]
    Reset(Code),
    /// The peer does not read its end of the stream any more.
    #[error("the peer stopped the stream with {0}")]
    Stopped(Code),
    /// The peer broke a rule; the stream or the connection was closed with this code.
    #[error("the peer broke the protocol: {1} ({0})")]
    Protocol(Code, &'static str),
    /// The peer takes no new requests: open another connection.
    #[error("the peer is going away")]
    GoingAway,
    /// The peer does not offer this at all.
    #[error("the peer does not support {0}")]
    Unsupported(&'static str),
    /// This end has already finished or reset the stream.
    #[error("the stream is already closed")]
    Closed,
}

impl From<quic::ReadError> for H3Error {
    fn from(error: quic::ReadError) -> Self {
        match error {
            quic::ReadError::Reset(code) => Self::Reset(Code(code.into_inner())),
            quic::ReadError::ConnectionLost(error) => Self::Lost(error),
            _ => Self::Closed,
        }
    }
}

impl From<quic::WriteError> for H3Error {
    fn from(error: quic::WriteError) -> Self {
        match error {
            quic::WriteError::Stopped(code) => Self::Stopped(Code(code.into_inner())),
            quic::WriteError::ConnectionLost(error) => Self::Lost(error),
            _ => Self::Closed,
        }
    }
}

impl From<H3Error> for Error {
    fn from(error: H3Error) -> Self {
        let kind = match &error {
            H3Error::Reset(Code::CONNECT_ERROR) => ErrorKind::TargetFailed,
            H3Error::Unsupported(_) => ErrorKind::Unsupported,
            _ => ErrorKind::PathFailed,
        };
        Self::new(kind, "carrying a flow over HTTP/3").caused_by(error)
    }
}

impl From<H3Error> for io::Error {
    fn from(error: H3Error) -> Self {
        Error::from(error).into()
    }
}
