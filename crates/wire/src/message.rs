//! Heads of requests and responses: what is allowed in them, and their field sections.
//! `masque::h3` reads and writes them; `masque::h2` uses the same types.
//! RFC 9114 §4.2 to §4.4, RFC 9220 (Extended CONNECT).
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

mod rules;

use std::fmt;

use bytes::Bytes;

use crate::qpack::{self, Field, QpackError};

/// A header field: lower-case name, value.
pub type Header = (String, Vec<u8>);

/// The head of a request.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestHead {
    /// `:method`.
    pub method: String,
    /// `:protocol`: makes a CONNECT an Extended CONNECT.
    pub protocol: Option<String>,
    /// `:scheme`; none in a plain CONNECT.
    pub scheme: Option<String>,
    /// `:authority`, or `Host` where that is missing. In a plain CONNECT it is the target.
    pub authority: String,
    /// `:path`; none in a plain CONNECT.
    pub path: Option<String>,
    /// The other fields, in order.
    pub headers: Vec<Header>,
}

/// The head of a response.
#[derive(Clone, PartialEq, Eq)]
pub struct ResponseHead {
    /// `:status`, 100..=599.
    pub status: u16,
    /// The other fields, in order.
    pub headers: Vec<Header>,
}

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The field section cannot be read: the connection fails with QPACK_DECOMPRESSION_FAILED.
    #[error("the field section cannot be decompressed")]
    Decompression,
    /// It is larger than allowed: the answer is 431.
    #[error("the field section is larger than allowed")]
    TooLarge,
    /// It breaks a rule: the stream is reset with H3_MESSAGE_ERROR.
    #[error("the message is malformed: {0}")]
    Malformed(&'static str),
}

impl From<QpackError> for HeadError {
    fn from(error: QpackError) -> Self {
        match error {
            QpackError::Decompression => Self::Decompression,
            QpackError::TooLarge => Self::TooLarge,
        }
    }
}

impl RequestHead {
    /// CONNECT to `authority`, for a TCP flow.
    pub fn connect(authority: impl Into<String>) -> Self {
        Self {
            method: "CONNECT".into(),
            protocol: None,
            scheme: None,
            authority: authority.into(),
            path: None,
            headers: Vec::new(),
        }
    }

    /// An Extended CONNECT for `connect-udp` with `Capsule-Protocol: ?1`.
    pub fn connect_udp(authority: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            protocol: Some("connect-udp".into()),
            scheme: Some("https".into()),
            path: Some(path.into()),
            ..Self::connect(authority)
        }
        .with("capsule-protocol", "?1")
    }

    /// An Extended CONNECT for `connect-ip` with `Capsule-Protocol: ?1` (RFC 9484 §4.4).
    pub fn connect_ip(authority: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            protocol: Some("connect-ip".into()),
            ..Self::connect_udp(authority, path)
        }
    }

    /// Adds a field; `name` in lower case.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The value of the first field called `name`.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        header(&self.headers, name)
    }

    /// Whether it is a CONNECT without a protocol.
    pub fn is_plain_connect(&self) -> bool {
        self.method == "CONNECT" && self.protocol.is_none()
    }

    /// Reads a field section of at most `limit` octets.
    ///
    /// # Errors
    /// See [`HeadError`].
    pub fn decode(section: &[u8], limit: usize) -> Result<Self, HeadError> {
        Self::from_fields(qpack::decode(section, limit)?).map_err(HeadError::Malformed)
    }

    /// Checks fields against the rules for requests.
    ///
    /// # Errors
    /// Which rule is broken.
    pub fn from_fields(fields: Vec<Field>) -> Result<Self, &'static str> {
        let mut pseudo = rules::Pseudo::default();
        let headers = rules::headers(fields, |name, value| pseudo.set_request(name, value))?;
        pseudo.into_request(headers)
    }

    /// The field section of this head.
    pub fn encode(&self) -> Bytes {
        let pseudo = [
            (":method", Some(self.method.as_str())),
            (":protocol", self.protocol.as_deref()),
            (":scheme", self.scheme.as_deref()),
            (":authority", Some(self.authority.as_str())),
            (":path", self.path.as_deref()),
        ];
        let pseudo = pseudo
            .into_iter()
            .filter_map(|(name, value)| Some((name.as_bytes(), value?.as_bytes())));
        qpack::encode(pseudo.chain(lines(&self.headers)))
    }
}

impl ResponseHead {
    /// A response without fields.
    pub fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
        }
    }

    /// Adds a field; `name` in lower case.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The value of the first field called `name`.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        header(&self.headers, name)
    }

    /// Whether a CONNECT has succeeded.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether another head follows.
    pub fn is_informational(&self) -> bool {
        self.status < 200
    }

    /// Reads a field section of at most `limit` octets.
    ///
    /// # Errors
    /// See [`HeadError`].
    pub fn decode(section: &[u8], limit: usize) -> Result<Self, HeadError> {
        Self::from_fields(qpack::decode(section, limit)?).map_err(HeadError::Malformed)
    }

    /// Checks fields against the rules for responses.
    ///
    /// # Errors
    /// Which rule is broken.
    pub fn from_fields(fields: Vec<Field>) -> Result<Self, &'static str> {
        let mut pseudo = rules::Pseudo::default();
        let headers = rules::headers(fields, |name, value| pseudo.set_response(name, value))?;
        pseudo.into_response(headers)
    }

    /// The field section of this head.
    pub fn encode(&self) -> Bytes {
        let status = self.status.to_string();
        let pseudo = [(&b":status"[..], status.as_bytes())];
        qpack::encode(pseudo.into_iter().chain(lines(&self.headers)))
    }
}

/// Checks that a field section behind the body may be ignored.
///
/// # Errors
/// See [`HeadError`].
pub fn check_trailers(section: &[u8], limit: usize) -> Result<(), HeadError> {
    let refuse = |_: &[u8], _| Err("a pseudo-header field in the trailers");
    match rules::headers(qpack::decode(section, limit)?, refuse) {
        Ok(_) => Ok(()),
        Err(rule) => Err(HeadError::Malformed(rule)),
    }
}

fn header<'a>(headers: &'a [Header], name: &str) -> Option<&'a [u8]> {
    let (_, value) = headers.iter().find(|(n, _)| n == name)?;
    Some(value)
}

fn lines(headers: &[Header]) -> impl Iterator<Item = (&[u8], &[u8])> {
    headers
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_slice()))
}

impl fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.as_deref().unwrap_or("-");
        write!(
            f,
            "RequestHead({} {protocol}, {} fields)",
            self.method,
            self.headers.len()
        )
    }
}

impl fmt::Debug for ResponseHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ResponseHead({}, {} fields)",
            self.status,
            self.headers.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(fields: &[(&str, &str)]) -> Result<RequestHead, &'static str> {
        let octets = |text: &str| text.as_bytes().to_vec();
        RequestHead::from_fields(fields.iter().map(|(n, v)| (octets(n), octets(v))).collect())
    }

    fn response(fields: &[(&str, &str)]) -> Result<ResponseHead, &'static str> {
        let octets = |text: &str| text.as_bytes().to_vec();
        ResponseHead::from_fields(fields.iter().map(|(n, v)| (octets(n), octets(v))).collect())
    }

    const GET: [(&str, &str); 4] = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
    ];
    const CONNECT: [(&str, &str); 2] = [(":method", "CONNECT"), (":authority", "a:443")];
    const UDP: [(&str, &str); 5] = [
        (":method", "CONNECT"),
        (":protocol", "connect-udp"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/x"),
    ];

    fn without(
        fields: &[(&'static str, &'static str)],
        name: &str,
    ) -> Vec<(&'static str, &'static str)> {
        fields.iter().filter(|(n, _)| *n != name).copied().collect()
    }

    #[test]
    fn well_formed_requests_are_taken() {
        for fields in [
            &GET[..],
            &CONNECT,
            &UDP,
            &[&GET[..], &[("te", "trailers"), ("x", "")]].concat(),
        ] {
            request(fields).expect("well formed");
        }
    }

    #[test]
    fn each_missing_pseudo_header_is_refused() {
        for fields in [&GET[..], &CONNECT, &UDP] {
            for (name, _) in fields.iter().filter(|(name, _)| *name != ":protocol") {
                assert!(
                    request(&without(fields, name)).is_err(),
                    "{fields:?} without {name}"
                );
            }
        }
    }

    #[test]
    fn malformed_requests_are_refused() {
        let plus = |fields: &[(&'static str, &'static str)], more| [fields, &[more]].concat();
        let cases = [
            plus(&GET, (":protocol", "websocket")),
            plus(&GET, (":path", "/")),
            plus(&GET, (":status", "200")),
            plus(&GET, (":unknown", "x")),
            plus(&plus(&without(&GET, ":path"), ("x", "y")), (":path", "/")),
            plus(&GET, ("Upper", "x")),
            plus(&GET, ("sp ace", "x")),
            plus(&GET, ("", "x")),
            plus(&GET, ("x", "a\r\nb")),
            plus(&GET, ("x", "a\0b")),
            plus(&GET, ("connection", "close")),
            plus(&GET, ("transfer-encoding", "chunked")),
            plus(&GET, ("te", "gzip")),
            plus(&GET, ("host", "other")),
            plus(&without(&GET, ":path"), (":path", "")),
            plus(&without(&GET, ":path"), (":path", "x")),
            plus(&without(&GET, ":authority"), (":authority", "user@a")),
            plus(&without(&GET, ":authority"), (":authority", "a b")),
            plus(&without(&GET, ":method"), (":method", "G T")),
        ];
        for fields in cases {
            assert!(request(&fields).is_err(), "{fields:?}");
        }
    }

    #[test]
    fn what_a_plain_connect_should_not_have_is_dropped() {
        let plus = |fields: &[(&'static str, &'static str)], more| [fields, &[more]].concat();
        let fields = plus(&plus(&CONNECT, (":path", "/")), (":scheme", "https"));
        let head = request(&fields).expect("taken");
        assert_eq!((head.path, head.scheme), (None, None));
        assert_eq!(head.authority, "a:443");
    }

    #[test]
    fn a_whole_uri_as_the_path_counts_as_its_path() {
        let uri = "https://localhost:4433/.well-known/masque/udp/a.example/443/";
        let head = request(&[
            (":method", "CONNECT"),
            (":protocol", "connect-udp"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", uri),
        ]);
        let path = head.expect("taken, as Firefox needs it").path;
        assert_eq!(
            path.as_deref(),
            Some("/.well-known/masque/udp/a.example/443/")
        );
    }

    #[test]
    fn host_stands_in_for_a_missing_authority() {
        let fields = [without(&GET, ":authority"), vec![("host", "h")]].concat();
        assert_eq!(request(&fields).expect("well formed").authority, "h");
    }

    #[test]
    fn malformed_responses_are_refused() {
        for fields in [
            &[][..],
            &[(":status", "20")],
            &[(":status", "099")],
            &[(":status", "+20")],
            &[(":status", "600")],
        ] {
            assert!(response(fields).is_err(), "{fields:?}");
        }
        for fields in [
            [(":status", "200"), (":path", "/")],
            [(":status", "200"), (":status", "200")],
            [("x", "y"), (":status", "200")],
        ] {
            assert!(response(&fields).is_err(), "{fields:?}");
        }
    }

    #[test]
    fn debug_output_names_neither_target_nor_token() {
        let head =
            RequestHead::connect("secret.example:443").with("authorization", "Bearer secret");
        assert!(!format!("{head:?}").contains("secret"));
    }

    proptest! {
        #[test]
        fn requests_are_read_back(udp: bool, name in "[a-z]{1,9}-[a-z]{1,9}", value in "[ -~]{0,99}", host in "[a-z.]{1,30}:[0-9]{1,5}") {
            let head = if udp { RequestHead::connect_udp(host, "/a/b/") } else { RequestHead::connect(host) };
            let head = head.with(&name, value.trim());
            prop_assert_eq!(RequestHead::decode(&head.encode(), 4096), Ok(head));
        }

        #[test]
        fn responses_are_read_back(status in 100_u16..600, value in "[ -~]{0,99}") {
            let head = ResponseHead::new(status).with("x-y", value.trim());
            prop_assert_eq!(ResponseHead::decode(&head.encode(), 4096), Ok(head));
        }

        #[test]
        fn any_fields_are_checked_without_a_panic(fields: Vec<(Vec<u8>, Vec<u8>)>) {
            drop(RequestHead::from_fields(fields.clone()));
            drop(ResponseHead::from_fields(fields));
        }
    }
}
