//! Why a program that talks to the SOCKS port is turned away, and what it is told.
//! The acceptor answers with it; RFC 1928 §3 and §6, RFC 1929 §2.

use crate::TargetError;

use super::{Endpoint, Reply, ReplyCode};

/// Why octets are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// They may become one when more arrive.
    More,
    /// They never will.
    Bad(Refusal),
}

/// Why a client is turned away. The texts name nobody and say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A SOCKS4 or SOCKS4a client.
    #[error("the client speaks SOCKS4: set it to SOCKS5, with names resolved by the proxy")]
    Socks4,
    /// An HTTP request: an HTTP proxy was meant, or a web page probes the port.
    #[error("the client speaks HTTP: set it to a SOCKS5 proxy, or use the port of the HTTP proxy")]
    Http,
    /// A TLS handshake: the client was told that the proxy itself is reached by TLS.
    #[error("the client speaks TLS to the SOCKS port: set it to plain SOCKS5")]
    Tls,
    /// Another first octet.
    #[error("SOCKS version {0} is not supported: use SOCKS5")]
    Version(u8),
    /// Neither "no authentication" nor "user name and password" is offered.
    #[error("the client offers no authentication method that is supported")]
    Methods,
    /// The user name and password message has an unknown version.
    #[error("user name and password come in version {0}, expected 1")]
    Credentials(u8),
    /// A command that RFC 1928 does not know.
    #[error("SOCKS command {0} is not supported")]
    Command(u8),
    /// An address type that RFC 1928 does not know.
    #[error("SOCKS address type {0} is not supported")]
    AddressType(u8),
    /// The target cannot exist.
    #[error("the target is not valid: {0}")]
    Target(TargetError),
}

impl Refusal {
    /// What to send before closing; empty where no answer can be understood.
    pub fn answer(&self) -> Vec<u8> {
        match self {
            Self::Socks4 => vec![0, 0x5b, 0, 0, 0, 0, 0, 0],
            Self::Http => http_answer(),
            Self::Tls | Self::Version(_) => Vec::new(),
            // "If the selected METHOD is X'FF', none of the methods listed by the client are acceptable"
            Self::Methods => vec![super::VERSION, 0xff],
            // "If the server returns a `failure' (STATUS value other than X'00') status, it MUST close the connection."
            Self::Credentials(_) => vec![1, 1],
            Self::Command(_) => reply(ReplyCode::CommandNotSupported),
            Self::AddressType(_) => reply(ReplyCode::AddressTypeNotSupported),
            Self::Target(TargetError::Port) => reply(ReplyCode::GeneralFailure),
            Self::Target(_) => reply(ReplyCode::HostUnreachable),
        }
    }
}

fn reply(code: ReplyCode) -> Vec<u8> {
    let bound = Endpoint::UNSPECIFIED;
    let mut out = Vec::new();
    Reply { code, bound }.emit(&mut out);
    out
}

fn http_answer() -> Vec<u8> {
    let body = "This port speaks SOCKS5, not HTTP. Set the program to a SOCKS5 proxy, or to the port of the HTTP proxy.\n";
    let len = body.len();
    format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
