//! HTTP as MASQUE needs it, at both ends of a hop: CONNECT, CONNECT-UDP and CONNECT-IP over HTTP/3, HTTP/2 and HTTP/1.1.
//! `masque` makes the requests, `relay` serves them; neither knows the version, which is chosen with the connection.
//!
//! A [`Session`] is one connection. It hands out [`Exchange`]s, one a request. An exchange becomes a byte stream
//! ([`Exchange::into_stream`]), two halves ([`Exchange::split`]) or a flow of UDP payloads or IP packets ([`Exchange::datagrams`]). These
//! types are where the versions meet: each call goes straight to the version's own module, [`h3`], [`h2`] or [`h1`].
//! HTTP/1.1 is spoken by servers only.
//!
//! # Not in this room
//! What a path is and how its hops are chosen (`masque`), what a relay permits (`relay`), the bytes of frames and capsules (`wire`).

mod buffer;
mod capsules;
mod exchange;
mod flow;
pub mod h1;
pub mod h2;
pub mod h3;
mod refusal;
mod session;
mod sink;

use std::{fmt, io};

use hoplite_overlay::{Error, ErrorKind};

pub use buffer::{COPIED, read_shared};
pub use exchange::{ByteStream, DataReceiver, DataSender, Exchange};
pub use flow::{Flow, Sent};
pub use h1::H1Error;
pub use h2::H2Error;
pub use h3::H3Error;
pub use refusal::accepted;
pub use session::{Incoming, Session};
pub use sink::DatagramSink;

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpVersion {
    /// HTTP/1.1 (RFC 9112), over TLS.
    H1,
    /// HTTP/2 (RFC 9113), over TLS.
    H2,
    /// HTTP/3 (RFC 9114), over QUIC.
    H3,
}

impl HttpVersion {
    /// Whether it is spoken over QUIC, whose packets carry datagrams.
    pub const fn is_over_quic(self) -> bool {
        matches!(self, Self::H3)
    }

    /// Its name, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::H1 => "http/1.1",
            Self::H2 => "h2",
            Self::H3 => "h3",
        }
    }
}

impl fmt::Display for HttpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a session, an exchange or a flow failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HttpError {
    /// Over HTTP/1.1.
    #[error(transparent)]
    H1(#[from] H1Error),
    /// Over HTTP/2.
    #[error(transparent)]
    H2(#[from] H2Error),
    /// Over HTTP/3.
    #[error(transparent)]
    H3(#[from] H3Error),
    /// This version is served, and not spoken by clients.
    #[error("{0} has no client here")]
    ServedOnly(HttpVersion),
}

impl From<HttpError> for Error {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::H3(error) => error.into(),
            HttpError::H2(error) => error.into(),
            HttpError::H1(_) => {
                Self::new(ErrorKind::PathFailed, "carrying a flow over HTTP/1.1").caused_by(error)
            }
            HttpError::ServedOnly(_) => {
                Self::new(ErrorKind::Bug, "making a request").caused_by(error)
            }
        }
    }
}

impl From<HttpError> for io::Error {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::H3(error) => error.into(),
            HttpError::H2(error) => error.into(),
            error => Self::new(io::ErrorKind::ConnectionReset, Error::from(error)),
        }
    }
}
