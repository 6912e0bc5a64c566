//! The exit of circuits: the relay's own egress, with its policy and its resolver, as the overlay that `hoplite_onion` wants;
//! and where circuits may be extended to. tor-spec "Opening streams", "Remote hostname lookup".

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hoplite_onion::relay::Admit;
use hoplite_overlay::{
    Datagrams, Error, ErrorKind, Opening, Overlay, Reason, Stream, Terms, direct::TcpFlow,
};
use hoplite_wire::{HostName, Target};
use tokio::time::Instant;

use crate::{
    egress::{Egress, Lots, Origin},
    failure::Failure,
    limits::Quotas,
    metrics::{Method, Metrics},
    resolve::ResolveError,
};

/// The way to targets.
pub(super) struct ExitOverlay {
    egress: Arc<Egress>,
    quotas: Arc<Quotas>,
    metrics: Arc<Metrics>,
    /// Circuits show no region, and their ends no connection: they all leave by one address at a time.
    lots: Lots,
}

/// The way to other relays.
#[derive(Debug)]
pub(super) struct NextRelays(pub(super) Arc<Egress>);

impl ExitOverlay {
    pub(super) fn new(egress: Arc<Egress>, quotas: Arc<Quotas>, metrics: Arc<Metrics>) -> Self {
        Self {
            egress,
            quotas,
            metrics,
            lots: Lots::new(Instant::now()),
        }
    }

    fn origin(&self) -> Origin<'_> {
        Origin {
            lots: &self.lots,
            shown: None,
        }
    }

    /// Counts as a request of MASQUE does, and says why not.
    fn told<T>(&self, done: Result<T, Failure>) -> Result<T, Error> {
        let failure = match done {
            Ok(done) => {
                self.metrics.request(Method::onion, "ok");
                return Ok(done);
            }
            Err(failure) => failure,
        };
        self.metrics.request(Method::onion, failure.outcome());
        if matches!(failure, Failure::Refused(_)) {
            self.metrics.policy_refusals.inc();
        }
        Err(error(failure))
    }
}

impl Overlay for ExitOverlay {
    fn open_stream<'a>(&'a self, target: &'a Target, _: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(async {
            let requester = self.quotas.placed();
            let opened = self
                .egress
                .tcp(target, &self.origin(), &requester, &self.metrics)
                .await;
            Ok(Stream::new(TcpFlow::new(self.told(opened)?)))
        })
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        _: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async {
            let requester = self.quotas.placed();
            let opened = self
                .egress
                .udp(target, &self.origin(), &requester, &self.metrics)
                .await;
            Ok(Box::new(self.told(opened)?) as _)
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async {
            let found = match HostName::new(name) {
                Ok(name) => {
                    let requester = self.quotas.placed();
                    self.egress
                        .resolve_for_client(&name, &requester, &self.metrics)
                        .await
                }
                Err(_) => Err(Failure::Resolve(ResolveError::NotFound)),
            };
            found.map_err(error)
        })
    }
}

impl Admit for ExitOverlay {
    fn admits(&self, address: SocketAddr) -> bool {
        self.egress.permits_address(address)
    }

    fn admits_name(&self, name: &str, port: u16) -> bool {
        HostName::new(name).is_ok_and(|name| self.egress.permits_name(&name, port))
    }
}

impl Admit for NextRelays {
    fn admits(&self, address: SocketAddr) -> bool {
        self.0.permits_relay(address)
    }
}

/// What the client is told: an END cell is made of it.
fn error(failure: Failure) -> Error {
    use ErrorKind::{Bug, Forbidden, TargetFailed, TimedOut};
    let doing = "reaching a target";
    let (kind, reason) = match failure {
        Failure::Refused(_) => (Forbidden, Some(Reason::Policy)),
        Failure::Resolve(ResolveError::NotFound) => (TargetFailed, Some(Reason::NameNotFound)),
        Failure::Resolve(ResolveError::TimedOut) | Failure::TimedOut => (TimedOut, None),
        Failure::ConnectionRefused => (TargetFailed, Some(Reason::Refused)),
        Failure::HostUnreachable => (TargetFailed, Some(Reason::HostUnreachable)),
        Failure::Unreachable => (TargetFailed, Some(Reason::NetworkUnreachable)),
        Failure::Exhausted | Failure::Limited(_) => (TargetFailed, Some(Reason::Limit)),
        Failure::Internal => (Bug, None),
        _ => (TargetFailed, None),
    };
    let error = Error::new(kind, doing);
    match reason {
        Some(reason) => error.because(reason),
        None => error,
    }
}

impl fmt::Debug for ExitOverlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExitOverlay").finish_non_exhaustive()
    }
}
