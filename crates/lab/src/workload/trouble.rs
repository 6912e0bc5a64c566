//! How a transfer fails, by kind. Every part of the workloads makes them; the kinds are TGen's words where it has one.

use std::{fmt, io, time::Duration};

use super::TransferError;

/// Whose turn it was when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No connection to the proxy or the target.
    Connect,
    /// The proxy said no, or spoke something else.
    Proxy,
    /// No TLS or QUIC session with the server.
    Tls,
    /// The answer is not that of our server, or it refused.
    Auth,
    /// Reading failed.
    Read,
    /// Writing failed.
    Write,
    /// The peer ended before all was said.
    Closed,
    /// No octet moved for too long.
    Stall,
    /// The whole took too long.
    Timeout,
    /// What arrived is not what was sent.
    Checksum,
    /// Our own mistake, or an order that this way in cannot carry.
    Misc,
}

impl Fault {
    fn word(self) -> &'static str {
        match self {
            Self::Connect => "CONNECT",
            Self::Proxy => "PROXY",
            Self::Tls => "TLS",
            Self::Auth => "AUTH",
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Closed => "CLOSED",
            Self::Stall => "STALL",
            Self::Timeout => "TIMEOUT",
            Self::Checksum => "CHECKSUM",
            Self::Misc => "MISC",
        }
    }

    /// A failure of this kind, and why in words.
    pub(crate) fn because(self, why: impl fmt::Display) -> TransferError {
        TransferError {
            kind: self.word().into(),
            why: why.to_string(),
        }
    }

    /// What a socket reports while this was done: a peer that is gone is `CLOSED` whoever notices it.
    pub(crate) fn of(self, error: &io::Error) -> TransferError {
        let gone = matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        );
        match (gone, self) {
            (true, Self::Read | Self::Write) => Self::Closed.because(error),
            _ => self.because(error),
        }
    }
}

/// Nothing moved for `limit`.
pub(crate) fn stalled(limit: Duration) -> TransferError {
    Fault::Stall.because(format_args!("no octet moved for {limit:?}"))
}

/// The peer ended too early.
pub(crate) fn closed() -> TransferError {
    Fault::Closed.because("the other end closed the connection before the transfer was over")
}
