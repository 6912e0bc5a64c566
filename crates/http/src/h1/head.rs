//! Heads of HTTP/1.1 in the words of the other versions: an upgrade to connect-udp or connect-tcp is an extended CONNECT.
//! The session reads requests with it, the exchange writes answers.
//! RFC 9110 §9.3.6 (CONNECT), RFC 9298 §3.2 and §3.3 (connect-udp); draft-ietf-httpbis-connect-tcp, "In HTTP/1.1", asks the same.

use bytes::Bytes;
use hoplite_wire::{RequestHead, ResponseHead, connect_tcp::Draft};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version, header,
    request::Parts,
};
use http_body_util::Empty;

/// The upgrade token of RFC 9298 §8.1.
const CONNECT_UDP: &str = "connect-udp";

/// What a request asks for. One that makes no sense has neither authority nor path, which whoever serves refuses.
pub(super) fn read(parts: &Parts) -> RequestHead {
    let method = &parts.method;
    let mut head = RequestHead::connect("");
    if *method == Method::CONNECT {
        head.authority = target(parts).unwrap_or_default();
    } else if let Some(token) = upgrade(parts).filter(|_| *method == Method::GET) {
        head.protocol = Some(token.into());
        head.path = path(parts);
    } else {
        head.method = method.as_str().into();
    }
    let lines = parts.headers.iter();
    head.headers = lines
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect();
    head
}

/// Whether something follows the head. Where no tunnel is opened, that could be taken for a request of its own.
pub(super) fn has_content(headers: &HeaderMap) -> bool {
    headers.contains_key(header::CONTENT_LENGTH) || headers.contains_key(header::TRANSFER_ENCODING)
}

/// "CONNECT uses a special form of request target […] consisting of only the host and port number of the tunnel
/// destination."
fn target(parts: &Parts) -> Option<String> {
    let uri = &parts.uri;
    let plain = uri.scheme().is_none() && !has_content(&parts.headers);
    let authority = uri.authority().filter(|_| plain)?;
    Some(authority.as_str().to_owned())
}

/// "The request SHALL include a Connection header field with value 'Upgrade' […] [and] an Upgrade header field with
/// value 'connect-udp'.": the token that is asked for, of those that a tunnel comes of.
fn upgrade(parts: &Parts) -> Option<&'static str> {
    if !lists(&parts.headers, &header::CONNECTION, "upgrade") {
        return None;
    }
    let tokens = [CONNECT_UDP]
        .into_iter()
        .chain(Draft::ALL.map(Draft::token));
    let mut asked = tokens.filter(|token| lists(&parts.headers, &header::UPGRADE, token));
    asked.next()
}

/// "The request SHALL include a single Host header field containing the origin of the UDP proxy."
/// As everywhere, it is not compared with the names of this relay.
fn path(parts: &Parts) -> Option<String> {
    let hosts = parts.headers.get_all(header::HOST).iter().count();
    let sound = parts.version == Version::HTTP_11 && hosts == 1 && !has_content(&parts.headers);
    let path = parts.uri.path_and_query().filter(|_| sound)?;
    Some(path.as_str().to_owned())
}

/// Whether a list of tokens has `wanted` among them; case does not matter.
fn lists(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let lines = headers.get_all(name).iter();
    lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case(wanted))
}

/// An answer; `None` if HTTP/1.1 cannot carry it.
pub(super) fn write(head: &ResponseHead) -> Option<Response<Empty<Bytes>>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    for (name, value) in &head.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let value = HeaderValue::from_bytes(value).ok()?;
        response.headers_mut().append(name, value);
    }
    Some(response)
}

/// "The UDP proxy SHALL indicate a successful response […] [by] 101 (Switching Protocols) […] Connection […] with
/// value 'Upgrade' […] a single Upgrade header field with value 'connect-udp'."
pub(super) fn switching(head: &ResponseHead, token: &str) -> ResponseHead {
    let mut head = head.clone();
    head.status = 101;
    head.with("connection", "Upgrade").with("upgrade", token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use proptest::prelude::*;

    const PATH: &str = "/.well-known/masque/udp/192.0.2.6/443/";

    fn parts(method: &str, uri: &str, lines: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).expect("well formed").into_parts().0
    }

    const UDP: [(&str, &str); 3] = [
        ("host", "relay"),
        ("connection", "keep-alive, upgrade"),
        ("upgrade", "Connect-UDP"),
    ];

    #[test]
    fn connect_names_its_target() {
        let head = read(&parts("CONNECT", "a.example:443", &[("host", "other")]));
        assert!(head.is_plain_connect());
        assert_eq!(head.authority, "a.example:443");
    }

    #[test]
    fn a_connect_that_smuggles_names_no_target() {
        for (uri, lines) in [
            ("http://a.example:443/", &[][..]),
            ("/a.example:443", &[]),
            ("a.example:443", &[("content-length", "3")]),
            ("a.example:443", &[("transfer-encoding", "chunked")]),
        ] {
            assert_eq!(read(&parts("CONNECT", uri, lines)).authority, "", "{uri}");
        }
    }

    #[test]
    fn an_upgrade_to_connect_udp_is_an_extended_connect() {
        for uri in [PATH.to_owned(), format!("https://relay{PATH}")] {
            let head = read(&parts("GET", &uri, &UDP));
            assert_eq!(head.method, "CONNECT");
            assert_eq!(head.protocol.as_deref(), Some("connect-udp"));
            assert_eq!(head.path.as_deref(), Some(PATH));
        }
    }

    #[test]
    fn an_upgrade_to_a_draft_of_connect_tcp_names_it() {
        for draft in Draft::ALL {
            let lines = [UDP[0], UDP[1], ("upgrade", draft.token())];
            let head = read(&parts("GET", "/x", &lines));
            assert_eq!(head.protocol.as_deref(), Some(draft.token()));
            assert_eq!(head.path.as_deref(), Some("/x"));
        }
    }

    #[test]
    fn an_upgrade_with_content_or_without_one_host_has_no_path() {
        let more = |line| [&UDP[..], &[line]].concat();
        for lines in [
            more(("host", "again")),
            more(("content-length", "1")),
            UDP[1..].to_vec(),
        ] {
            assert_eq!(read(&parts("GET", PATH, &lines)).path, None, "{lines:?}");
        }
    }

    #[test]
    fn other_requests_keep_their_method() {
        for (method, lines) in [
            ("GET", &UDP[..2]),
            ("POST", &UDP),
            ("GET", &[("upgrade", "h2c"), ("connection", "upgrade")]),
        ] {
            let head = read(&parts(method, PATH, lines));
            assert_eq!((head.method.as_str(), head.protocol), (method, None));
        }
    }

    proptest! {
        #[test]
        fn any_list_of_tokens_is_read_without_a_panic(line in "[ -~]{0,40}") {
            let parts = parts("GET", PATH, &[("connection", &line), ("upgrade", &line)]);
            prop_assert_eq!(upgrade(&parts), None);
        }
    }
}
