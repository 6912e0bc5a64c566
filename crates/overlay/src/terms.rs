//! On what terms a flow is opened: who may share its road, and until when it may take.
//! Front ends set them; overlays obey.

use std::{
    fmt,
    future::Future,
    hash::{Hash, Hasher},
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
    /// Who may share the road.
    pub isolation: Isolation,
    /// When opening is given up with [`ErrorKind::TimedOut`]; `None` leaves it to the overlay's own limit.
    pub deadline: Option<Instant>,
}

impl Isolation {
    /// The token made of what the user gave, for example a SOCKS user name and password.
    pub fn new(token: Vec<u8>) -> Self {
        Self(Some(Arc::new(Zeroizing::new(token))))
    }
}

impl Hash for Isolation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_deref().map(|token| token.as_slice()).hash(state);
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
