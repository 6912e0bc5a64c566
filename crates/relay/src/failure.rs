//! Why a request is not served, and how the client is told: a status and a `Proxy-Status` error (RFC 9209 §2.3).
//! The handlers return it; clients tell refused, unreachable, unknown, forbidden and late targets apart by it.

use hoplite_overlay::{Error, ErrorKind, Reason};
use hoplite_wire::ProxyError;

use crate::{policy::Refusal, resolve::ResolveError};

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The request makes no sense: no target, or none that can be read.
    Malformed,
    /// The content of the request is larger than allowed.
    TooLarge,
    /// The content of the request is of another type than it has to be.
    MediaType,
    /// Nothing is served at this path.
    NotFound,
    /// Only CONNECT is served.
    Method,
    /// The `:protocol` of an extended CONNECT is none that we know.
    Protocol,
    /// The token is missing or wrong.
    Unauthenticated,
    /// The policy refuses the target.
    Refused(Refusal),
    /// The client, or all clients together, have reached this limit.
    Limited(Limit),
    /// The relay is about to stop.
    Draining,
    /// The name has no address.
    Resolve(ResolveError),
    /// The target refused the connection.
    ConnectionRefused,
    /// There is no way to the target.
    Unreachable,
    /// There is a way to the target's network, and the target is not there.
    HostUnreachable,
    /// The target did not answer in time.
    TimedOut,
    /// This relay has no socket left.
    Exhausted,
    /// Something here is wrong.
    Internal,
}

/// A limit that refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Requests open at once.
    Requests,
    /// Memory of the connection.
    Memory,
    /// UDP tunnels, each of which holds a port.
    UdpTunnels,
    /// Flows of IP packets (CONNECT-IP).
    IpFlows,
    /// Addresses for them: the pool is empty.
    IpAddresses,
    /// Questions to the resolver.
    Queries,
}

impl Limit {
    /// The label of the metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Memory => "memory",
            Self::UdpTunnels => "udp_tunnels",
            Self::IpFlows => "ip_flows",
            Self::IpAddresses => "ip_addresses",
            Self::Queries => "queries",
        }
    }
}

/// How a failure is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The error of `Proxy-Status`; the label of the metrics is the same word.
    pub error: ProxyError,
    /// The `rcode` parameter that goes with `dns_error`.
    pub rcode: Option<&'static str>,
}

impl Failure {
    /// What the client is told. Statuses are those that RFC 9209 §2.3 recommends, where it does.
    pub(crate) fn answer(self) -> Answer {
        use ProxyError::{
            ConnectionLimitReached, ConnectionRefused, ConnectionTimeout, DestinationIpProhibited,
            DestinationIpUnroutable, DestinationUnavailable, DnsError, DnsTimeout,
            HttpRequestDenied, HttpRequestError, ProxyInternalError, ProxyLoopDetected,
        };
        let (status, error) = match self {
            Self::Malformed => (400, HttpRequestError),
            Self::TooLarge => (413, HttpRequestError),
            Self::MediaType => (415, HttpRequestError),
            Self::NotFound => (404, HttpRequestDenied),
            Self::Method => (405, HttpRequestDenied),
            Self::Protocol => (501, HttpRequestDenied),
            Self::Unauthenticated => (407, HttpRequestDenied),
            Self::Refused(Refusal::Itself) => (502, ProxyLoopDetected),
            Self::Refused(Refusal::UnknownRelay) => (403, HttpRequestDenied),
            Self::Refused(Refusal::Name | Refusal::Address) => (403, DestinationIpProhibited),
            Self::Limited(_) => (429, ConnectionLimitReached),
            Self::Draining => (503, ConnectionLimitReached),
            Self::Resolve(ResolveError::TimedOut) => (504, DnsTimeout),
            Self::Resolve(_) => (502, DnsError),
            Self::ConnectionRefused => (502, ConnectionRefused),
            Self::Unreachable => (502, DestinationIpUnroutable),
            Self::HostUnreachable => (503, DestinationUnavailable),
            Self::TimedOut => (504, ConnectionTimeout),
            Self::Exhausted => (503, ConnectionLimitReached),
            Self::Internal => (500, ProxyInternalError),
        };
        Answer {
            status,
            error,
            rcode: self.rcode(),
        }
    }

    fn rcode(self) -> Option<&'static str> {
        match self {
            Self::Resolve(ResolveError::NotFound) => Some("NXDOMAIN"),
            Self::Resolve(ResolveError::Failed) => Some("SERVFAIL"),
            _ => None,
        }
    }

    /// The word for the metrics; most often the error's.
    pub(crate) fn outcome(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Draining => "draining",
            Self::Exhausted => "sockets_exhausted",
            Self::NotFound => "not_found",
            Self::Method | Self::Protocol => "not_supported",
            Self::Refused(Refusal::UnknownRelay) => "unknown_relay",
            Self::Resolve(ResolveError::NotFound) => "name_not_found",
            other => other.answer().error.token(),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Self {
        Self::Resolve(error)
    }
}

impl From<Error> for Failure {
    /// What the sockets of the direct overlay say.
    fn from(error: Error) -> Self {
        match (error.kind(), error.reason()) {
            (_, Some(Reason::Refused)) => Self::ConnectionRefused,
            (_, Some(Reason::HostUnreachable)) => Self::HostUnreachable,
            (_, Some(Reason::NetworkUnreachable)) => Self::Unreachable,
            (_, Some(Reason::Limit)) => Self::Exhausted,
            (ErrorKind::TimedOut, _) => Self::TimedOut,
            (ErrorKind::Bug, _) => Self::Internal,
            _ => Self::Unreachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_out_of_reach_is_told_from_a_network_out_of_reach() {
        let told = |reason| {
            let error = Error::new(ErrorKind::TargetFailed, "a test").because(reason);
            Failure::from(error).answer().error
        };
        assert_eq!(
            told(Reason::HostUnreachable),
            ProxyError::DestinationUnavailable
        );
        assert_eq!(
            told(Reason::NetworkUnreachable),
            ProxyError::DestinationIpUnroutable
        );
    }
}
