//! Why a flow did not open or did not last. The kind says whose fault it is, hence what to do.

use std::{borrow::Cow, error, fmt, io, sync::Arc};

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The first relay cannot be reached: check the network, or choose another.
    EntryUnreachable,
    /// A relay further on failed, or the path broke: try another path.
    PathFailed,
    /// The relays work, the target does not: nothing here will help.
    TargetFailed,
    /// Policy or authentication forbids it: ask the operator, or change the configuration.
    Forbidden,
    /// This overlay or relay cannot do it at all.
    Unsupported,
    /// It took too long: try again.
    TimedOut,
    /// Our own mistake: report it.
    Bug,
}

/// What exactly happened, where it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The target refused the connection (RST, ICMP port unreachable); with [`ErrorKind::EntryUnreachable`] the first relay did.
    Refused,
    /// The target's host cannot be reached; with [`ErrorKind::EntryUnreachable`] or [`ErrorKind::PathFailed`] a relay's.
    HostUnreachable,
    /// The target's network cannot be reached.
    NetworkUnreachable,
    /// The name does not exist or has no address.
    NameNotFound,
    /// The resolver did not answer or answered nonsense.
    ResolverFailed,
    /// The relay's policy forbids this target; with [`ErrorKind::PathFailed`] one before the last does not forward to the next.
    Policy,
    /// The token is missing or wrong.
    Authentication,
    /// A limit of the relay is reached; later it may work.
    Limit,
    /// The relay's certificate does not match its pin, or no known authority signed it.
    Identity,
}

/// A failure: what we were doing, whose fault it is, why. Cheap to clone.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    reason: Option<Reason>,
    doing: Cow<'static, str>,
    source: Option<Arc<dyn error::Error + Send + Sync>>,
}

impl Error {
    /// A failure of `kind` while `doing` ("connecting to relay amber"); `doing` never names a target.
    pub fn new(kind: ErrorKind, doing: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            reason: None,
            doing: doing.into(),
            source: None,
        }
    }

    /// Adds what exactly happened.
    pub fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Adds the error below.
    pub fn caused_by(mut self, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What exactly happened, where it is known.
    pub fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// The overlay error inside an I/O error of a stream, if there is one.
    pub fn from_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::TimedOut => io::ErrorKind::TimedOut,
            ErrorKind::Forbidden => io::ErrorKind::PermissionDenied,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.kind)?;
        if let Some(reason) = self.reason {
            write!(f, ": {reason}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EntryUnreachable => "the first relay cannot be reached",
            Self::PathFailed => "the path failed",
            Self::TargetFailed => "the target failed",
            Self::Forbidden => "forbidden",
            Self::Unsupported => "not supported",
            Self::TimedOut => "timed out",
            Self::Bug => "internal error",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "connection refused",
            Self::HostUnreachable => "host unreachable",
            Self::NetworkUnreachable => "network unreachable",
            Self::NameNotFound => "no such name",
            Self::ResolverFailed => "the resolver failed",
            Self::Policy => "the relay's policy does not allow this target",
            Self::Authentication => "the token is missing or wrong",
            Self::Limit => "a limit of the relay is reached",
            Self::Identity => "the relay's certificate is not the expected one",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_error_survives_the_way_through_an_io_error() {
        let error = Error::new(ErrorKind::TargetFailed, "connecting").because(Reason::Refused);
        let io: io::Error = error.into();
        let back = Error::from_io(&io).expect("kept");
        assert_eq!(
            (back.kind(), back.reason()),
            (ErrorKind::TargetFailed, Some(Reason::Refused))
        );
        assert_eq!(
            back.to_string(),
            "connecting: the target failed: connection refused"
        );
    }
}
