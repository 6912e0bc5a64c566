//! What a response means for whoever asked: a success, or whose fault the refusal is. Of all versions of HTTP alike.
//! RFC 9110 §15 (status codes), RFC 9209 (Proxy-Status).

use hoplite_overlay::{Error, ErrorKind, Reason};
use hoplite_wire::{ProxyError, ResponseHead};

/// A success, or what the refusal means.
///
/// # Errors
/// The relay has refused; the kind of the error says whose fault that is.
pub fn accepted(answer: &ResponseHead) -> Result<(), Error> {
    if answer.is_success() {
        return Ok(());
    }
    let told = answer.header("proxy-status").and_then(ProxyError::parse);
    let (kind, reason) = told.map_or_else(
        || by_status(answer.status),
        |error| by_error(error, answer.status),
    );
    let error = Error::new(kind, "asking a relay for a flow");
    Err(match reason {
        Some(reason) => error.because(reason),
        None => error,
    })
}

fn by_error(error: ProxyError, status: u16) -> (ErrorKind, Option<Reason>) {
    use ErrorKind::{Forbidden, PathFailed, TargetFailed, TimedOut};
    match error {
        ProxyError::DnsTimeout => (TargetFailed, Some(Reason::ResolverFailed)),
        ProxyError::DnsError => (TargetFailed, Some(Reason::NameNotFound)),
        ProxyError::ConnectionRefused => (TargetFailed, Some(Reason::Refused)),
        ProxyError::DestinationIpUnroutable => (TargetFailed, Some(Reason::NetworkUnreachable)),
        ProxyError::DestinationNotFound | ProxyError::DestinationUnavailable => {
            (TargetFailed, Some(Reason::HostUnreachable))
        }
        ProxyError::ConnectionTerminated => (TargetFailed, None),
        ProxyError::ConnectionTimeout => (TimedOut, Some(Reason::HostUnreachable)),
        ProxyError::ConnectionLimitReached => (PathFailed, Some(Reason::Limit)),
        ProxyError::DestinationIpProhibited => (Forbidden, Some(Reason::Policy)),
        ProxyError::HttpRequestDenied if matches!(status, 401 | 407 | 501) => by_status(status),
        ProxyError::HttpRequestDenied | ProxyError::ProxyLoopDetected => {
            (Forbidden, Some(Reason::Policy))
        }
        _ => by_status(status),
    }
}

fn by_status(status: u16) -> (ErrorKind, Option<Reason>) {
    match status {
        401 | 407 => (ErrorKind::Forbidden, Some(Reason::Authentication)),
        403 => (ErrorKind::Forbidden, Some(Reason::Policy)),
        404 | 405 | 501 => (ErrorKind::Unsupported, None),
        429 => (ErrorKind::PathFailed, Some(Reason::Limit)),
        502 => (ErrorKind::TargetFailed, None),
        504 => (ErrorKind::TimedOut, None),
        _ => (ErrorKind::PathFailed, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(status: u16, proxy_status: &str) -> (ErrorKind, Option<Reason>) {
        let mut answer = ResponseHead::new(status);
        if !proxy_status.is_empty() {
            answer = answer.with("proxy-status", proxy_status);
        }
        let error = accepted(&answer).expect_err("no success");
        (error.kind(), error.reason())
    }

    #[test]
    fn refusals_say_whose_fault_it_is() {
        let cases = [
            (
                502,
                "relay; error=connection_refused",
                ErrorKind::TargetFailed,
                Some(Reason::Refused),
            ),
            (
                502,
                "relay; error=dns_error",
                ErrorKind::TargetFailed,
                Some(Reason::NameNotFound),
            ),
            (
                403,
                "relay; error=destination_ip_prohibited",
                ErrorKind::Forbidden,
                Some(Reason::Policy),
            ),
            (407, "", ErrorKind::Forbidden, Some(Reason::Authentication)),
            (
                504,
                "relay; error=connection_timeout",
                ErrorKind::TimedOut,
                Some(Reason::HostUnreachable),
            ),
            (501, "", ErrorKind::Unsupported, None),
            (500, "", ErrorKind::PathFailed, None),
        ];
        for (status, text, kind, reason) in cases {
            assert_eq!(meaning(status, text), (kind, reason), "{status} {text}");
        }
    }

    #[test]
    fn a_success_is_one() {
        accepted(&ResponseHead::new(200)).expect("a success");
    }
}
