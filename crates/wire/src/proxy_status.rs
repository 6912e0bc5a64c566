//! Proxy-Status: what a relay says about why a request failed.
//! RFC 9209 §2.1.2 and §2.3.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

/// Proxy error types, as far as relays use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyError {
    /// The resolver did not answer.
    DnsTimeout,
    /// The name cannot be resolved.
    DnsError,
    /// The target cannot be found (a relay that is told of it by the next one).
    DestinationNotFound,
    /// The target cannot be used now.
    DestinationUnavailable,
    /// Policy forbids the target's address.
    DestinationIpProhibited,
    /// There is no route to the target.
    DestinationIpUnroutable,
    /// The target refused the connection.
    ConnectionRefused,
    /// The target closed the connection too early.
    ConnectionTerminated,
    /// The target did not answer in time.
    ConnectionTimeout,
    /// A limit is reached.
    ConnectionLimitReached,
    /// Policy forbids the request.
    HttpRequestDenied,
    /// The request is wrong.
    HttpRequestError,
    /// A loop of relays.
    ProxyLoopDetected,
    /// The relay's own mistake.
    ProxyInternalError,
    /// The relay's own answer, without a better type.
    ProxyInternalResponse,
    /// The relay's configuration forbids or breaks it.
    ProxyConfigurationError,
}

const TOKENS: [(ProxyError, &str); 16] = [
    (ProxyError::DnsTimeout, "dns_timeout"),
    (ProxyError::DnsError, "dns_error"),
    (ProxyError::DestinationNotFound, "destination_not_found"),
    (
        ProxyError::DestinationUnavailable,
        "destination_unavailable",
    ),
    (
        ProxyError::DestinationIpProhibited,
        "destination_ip_prohibited",
    ),
    (
        ProxyError::DestinationIpUnroutable,
        "destination_ip_unroutable",
    ),
    (ProxyError::ConnectionRefused, "connection_refused"),
    (ProxyError::ConnectionTerminated, "connection_terminated"),
    (ProxyError::ConnectionTimeout, "connection_timeout"),
    (
        ProxyError::ConnectionLimitReached,
        "connection_limit_reached",
    ),
    (ProxyError::HttpRequestDenied, "http_request_denied"),
    (ProxyError::HttpRequestError, "http_request_error"),
    (ProxyError::ProxyLoopDetected, "proxy_loop_detected"),
    (ProxyError::ProxyInternalError, "proxy_internal_error"),
    (ProxyError::ProxyInternalResponse, "proxy_internal_response"),
    (
        ProxyError::ProxyConfigurationError,
        "proxy_configuration_error",
    ),
];

impl ProxyError {
    /// Its registered name.
    pub fn token(self) -> &'static str {
        TOKENS
            .iter()
            .find(|(error, _)| *error == self)
            .map_or("", |(_, token)| token)
    }

    /// The value of the field; relays all call themselves `hoplite`, so that it does not tell which one answers.
    pub fn to_value(self) -> String {
        format!("hoplite; error={}", self.token())
    }

    /// The error that the member closest to us names, if it is one of ours.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let members = split_unquoted(text, ',');
        members
            .iter()
            .rev()
            .find_map(|member| Self::of_member(member))
    }

    fn of_member(member: &str) -> Option<Self> {
        let parameters = split_unquoted(member, ';');
        let error = parameters
            .iter()
            .skip(1)
            .find_map(|parameter| parameter.trim().strip_prefix("error="))?;
        TOKENS
            .iter()
            .find(|(_, token)| *token == error.trim())
            .map(|(error, _)| *error)
    }
}

/// Splits at `separator` outside of quoted strings.
fn split_unquoted(text: &str, separator: char) -> Vec<&str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(|c: char| {
        let was_escaped = escaped;
        escaped = quoted && c == '\\' && !was_escaped;
        if c == '"' && !was_escaped {
            quoted = !quoted;
        }
        c == separator && !quoted
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_error_is_read_back() {
        for (error, _) in TOKENS {
            assert_eq!(ProxyError::parse(error.to_value().as_bytes()), Some(error));
        }
    }

    #[test]
    fn the_member_closest_to_the_client_counts() {
        let value = br#"far; error=dns_error, "a;b, \"; error=dns_timeout"; details="x;error=dns_timeout" ;error=connection_refused; rcode=1, near"#;
        assert_eq!(
            ProxyError::parse(value),
            Some(ProxyError::ConnectionRefused)
        );
    }

    #[test]
    fn unknown_errors_are_none() {
        for value in [
            "",
            "a",
            "a; error=",
            "a; error=new_thing",
            "error=dns_error",
        ] {
            assert_eq!(ProxyError::parse(value.as_bytes()), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(value: Vec<u8>, text in "[a-z;,=\"\\\\ _]{0,60}") {
            ProxyError::parse(&value);
            ProxyError::parse(text.as_bytes());
        }
    }
}
