//! What a proxy takes out of requests and answers before it passes them on.
//! The forwarding of absolute-form requests uses it. RFC 9110 §7.6.1, RFC 9112 §3.2.2, RFC 7617 (Basic).

use ::http::{HeaderMap, HeaderName, header};
use base64::{Engine, prelude::BASE64_STANDARD};
use hoplite_wire::socks::CredentialsView;

/// What belongs to one connection and never travels on. Hyper writes its own framing.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// "Intermediaries MUST parse a received Connection header field before a message is forwarded and, for each
/// connection-option in this field, remove any header or trailer field(s) from the message with the same name as the
/// connection-option, and then remove the Connection header field itself".
pub(super) fn strip(headers: &mut HeaderMap) {
    for name in connection_options(headers) {
        headers.remove(name);
    }
    // A length beside a transfer coding is a smuggler's tool: the coding counts (RFC 9112 §6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).into_iter();
    let options = values.filter_map(|value| value.to_str().ok());
    options
        .flat_map(|value| value.split(','))
        .filter_map(|option| option.trim().parse().ok())
        // The framing of the body is no option.
        .filter(|name| name != header::CONTENT_LENGTH && name != header::TRANSFER_ENCODING)
        .collect()
}

/// The token that `Proxy-Authorization` makes: that of the same user name and password over SOCKS, where they are Basic.
pub(super) fn credentials(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(header::PROXY_AUTHORIZATION)?.as_bytes();
    Some(basic(value).unwrap_or_else(|| value.to_vec()))
}

fn basic(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let pair = BASE64_STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = pair.iter().position(|octet| *octet == b':')?;
    let (user, rest) = pair.split_at_checked(colon)?;
    let password = rest.strip_prefix(b":")?;
    Some(CredentialsView { user, password }.isolation())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                value.parse().expect("a value"),
            )
        });
        pairs.collect()
    }

    #[test]
    fn what_belongs_to_one_connection_does_not_travel_on() {
        let mut headers = map(&[
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("proxy-authorization", "Basic eA=="),
            ("proxy-connection", "keep-alive"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("accept", "*/*"),
            ("content-length", "3"),
        ]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("accept", "*/*"), ("content-length", "3")]));
    }

    #[test]
    fn a_length_beside_a_transfer_coding_is_dropped() {
        let mut headers = map(&[("transfer-encoding", "chunked"), ("content-length", "3")]);
        strip(&mut headers);
        assert_eq!(headers, HeaderMap::new());
    }

    #[test]
    fn the_same_credentials_isolate_alike_over_http_and_socks() {
        let (user, password) = (&b"Aladdin"[..], &b"open sesame"[..]);
        let headers = map(&[("proxy-authorization", "basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")]);
        let expected = CredentialsView { user, password }.isolation();
        assert_eq!(credentials(&headers), Some(expected));
    }

    #[test]
    fn credentials_that_are_not_basic_isolate_too() {
        for value in ["Bearer x", "Basic ?", "Basic eA=="] {
            let headers = map(&[("proxy-authorization", value)]);
            assert_eq!(credentials(&headers), Some(value.as_bytes().to_vec()));
        }
        assert_eq!(credentials(&HeaderMap::new()), None);
    }
}
