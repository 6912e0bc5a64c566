//! On what terms a flow is opened: which flows may share its path, and until when it must be open.

use std::{
    cmp::Ordering,
    fmt,
    future::Future,
    hash::{Hash, Hasher},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::{Error, ErrorKind};

/// Flows with different tokens never share a connection to the last relay.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Isolation(Option<Arc<Zeroizing<Vec<u8>>>>);

/// The terms of one flow.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Who may share the path.
    pub isolation: Isolation,
    /// When opening is given up with [`ErrorKind::TimedOut`]; `None` leaves it to the overlay's own limit.
    pub deadline: Option<Instant>,
    /// See [`Self::early`].
    pub early: bool,
    /// The address that a program on this device asks from, where it is known: for who tells the device's owner what becomes of the program's flow. It
    /// goes nowhere else.
    pub program: Option<SocketAddr>,
}

impl Isolation {
    /// The token made of what the user gave, for example a SOCKS user name and password.
    pub fn new(token: Vec<u8>) -> Self {
        Self(Some(Arc::new(Zeroizing::new(token))))
    }

    /// The token of flows of one of several owners, who share nothing even where both give the same token or none. Of names of owners none begins another.
    pub fn of_owner(&self, owner: &[u8]) -> Self {
        let given = self.bytes();
        // None is not one that is empty.
        let token = [
            owner,
            &[u8::from(given.is_some())],
            given.unwrap_or_default(),
        ];
        Self::new(token.concat())
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.0.as_deref().map(|token| token.as_slice())
    }
}

impl PartialOrd for Isolation {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Any order: so that what is kept by token is gone through in the same one each time.
impl Ord for Isolation {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes().cmp(&other.bytes())
    }
}

impl Hash for Isolation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl fmt::Debug for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Isolation(hidden)"
        } else {
            "Isolation(none)"
        })
    }
}

impl Terms {
    /// The same terms, to be met within `limit` from now.
    pub fn within(mut self, limit: Duration) -> Self {
        self.deadline = Some(Instant::now() + limit);
        self
    }

    /// Wishes to have a TCP stream as soon as it takes bytes, before the far end has answered: what is written meanwhile (64 KiB at
    /// most) travels with the request, and waits at the far end until the target is connected. That the target or the path fails comes as the I/O error of a
    /// later call, with the [`Error`] in it ([`Error::from_io`]), the deadline's [`ErrorKind::TimedOut`] included; that it does not,
    /// [`crate::Stream::is_answered`] tells. What was handed out is not tried again on another path. An overlay need not oblige.
    pub fn early(mut self, early: bool) -> Self {
        self.early = early;
        self
    }

    /// The same terms, for a program at this address.
    pub fn for_program(mut self, program: Option<SocketAddr>) -> Self {
        self.program = program;
        self
    }

    /// Runs `opening` until the deadline.
    ///
    /// # Errors
    /// What `opening` answers, or [`ErrorKind::TimedOut`].
    pub async fn run<T>(
        &self,
        doing: &'static str,
        opening: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(deadline) = self.deadline else {
            return opening.await;
        };
        match tokio::time::timeout_at(deadline, opening).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::new(ErrorKind::TimedOut, doing)),
        }
    }
}
