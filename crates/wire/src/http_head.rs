//! Heads of requests and responses: what is allowed in them, and their field sections.
//! RFC 9114 §4.2 to §4.4, RFC 9220 (Extended CONNECT).

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::fmt;

use bytes::Bytes;

use crate::{
    connect_tcp,
    qpack::{self, Field, QpackError},
};

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

    /// An Extended CONNECT for a draft of connect-tcp with `Capsule-Protocol: ?1`.
    pub fn connect_tcp(
        authority: impl Into<String>,
        path: impl Into<String>,
        draft: connect_tcp::Draft,
    ) -> Self {
        Self {
            protocol: Some(draft.token().into()),
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

    /// Reads a field section of at most `limit` bytes.
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
        let mut pseudo = Pseudo::default();
        let headers = headers(fields, |name, value| pseudo.set_request(name, value))?;
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

    /// Reads a field section of at most `limit` bytes.
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
        let mut pseudo = Pseudo::default();
        let headers = headers(fields, |name, value| pseudo.set_response(name, value))?;
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
    match headers(qpack::decode(section, limit)?, refuse) {
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

// Which fields make a message malformed.
// RFC 9114 §4.2 (fields), §4.3 (pseudo-headers), §4.4 (CONNECT); RFC 9220 §3; RFC 9110 §5 (syntax).

type Rule = &'static str;

/// The pseudo-headers seen so far.
#[derive(Default)]
struct Pseudo {
    method: Option<String>,
    protocol: Option<String>,
    scheme: Option<String>,
    authority: Option<String>,
    path: Option<String>,
    status: Option<String>,
}

/// Checks all fields, hands pseudo-headers to `pseudo` and returns the others.
fn headers(
    fields: Vec<Field>,
    mut pseudo: impl FnMut(&[u8], String) -> Result<(), Rule>,
) -> Result<Vec<Header>, Rule> {
    let mut headers = Vec::new();
    for (name, value) in fields {
        check_value(&value)?;
        if name.starts_with(b":") {
            // "All pseudo-header fields MUST appear in the header section before regular header fields."
            if !headers.is_empty() {
                return Err("a pseudo-header field behind a regular one");
            }
            let value =
                String::from_utf8(value).map_err(|_| "a pseudo-header field that is no text")?;
            pseudo(&name, value)?;
        } else {
            headers.push((check_name(name, &value)?, value));
        }
    }
    Ok(headers)
}

fn check_value(value: &[u8]) -> Result<(), Rule> {
    if value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
        Err("a field value with a forbidden character")
    } else {
        Ok(())
    }
}

fn check_name(name: Vec<u8>, value: &[u8]) -> Result<String, Rule> {
    // "Characters in field names MUST be converted to lowercase prior to their encoding."
    let fine = |byte: &u8| is_token(*byte) && !byte.is_ascii_uppercase();
    if name.is_empty() || !name.iter().all(fine) {
        return Err("a field name with a forbidden character");
    }
    match name.as_slice() {
        b"connection" | b"proxy-connection" | b"keep-alive" | b"upgrade" | b"transfer-encoding" => {
            Err("a connection-specific field")
        }
        b"te" if !value.eq_ignore_ascii_case(b"trailers") => {
            Err("a TE field with more than trailers")
        }
        _ => String::from_utf8(name).map_err(|_| "a field name with a forbidden character"),
    }
}

/// `tchar` of RFC 9110 §5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_text_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_token)
}

fn once(slot: &mut Option<String>, value: String) -> Result<(), Rule> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err("a pseudo-header field twice"),
    }
}

impl Pseudo {
    fn set_request(&mut self, name: &[u8], value: String) -> Result<(), Rule> {
        let slot = match name {
            b":method" => &mut self.method,
            b":protocol" => &mut self.protocol,
            b":scheme" => &mut self.scheme,
            b":authority" => &mut self.authority,
            b":path" => &mut self.path,
            _ => return Err("a pseudo-header field that requests do not have"),
        };
        once(slot, value)
    }

    fn set_response(&mut self, name: &[u8], value: String) -> Result<(), Rule> {
        match name {
            b":status" => once(&mut self.status, value),
            _ => Err("a pseudo-header field that responses do not have"),
        }
    }

    fn into_request(self, headers: Vec<Header>) -> Result<RequestHead, Rule> {
        let method = self
            .method
            .filter(|method| is_text_token(method))
            .ok_or("no method")?;
        let authority = pick_authority(self.authority, &headers, method == "CONNECT")?;
        // "The :scheme and :path pseudo-header fields are omitted" (RFC 9114 §4.4). Clients built on a widespread
        // library write them. We do not refuse these, because they mean nothing here: they are dropped.
        let plain = method == "CONNECT" && self.protocol.is_none();
        let head = RequestHead {
            method,
            protocol: self.protocol,
            scheme: self.scheme.filter(|_| !plain),
            authority,
            path: self.path.filter(|_| !plain).map(origin_form),
            headers,
        };
        match (head.method.as_str(), &head.protocol) {
            ("CONNECT", None) => {}
            ("CONNECT", Some(protocol)) if is_text_token(protocol) => check_target(&head)?,
            (_, Some(_)) => return Err("a protocol without CONNECT"),
            _ => check_target(&head)?,
        }
        Ok(head)
    }

    fn into_response(self, headers: Vec<Header>) -> Result<ResponseHead, Rule> {
        let status = self.status.ok_or("no status")?;
        let digits = status.len() == 3 && status.bytes().all(|byte| byte.is_ascii_digit());
        let status = status
            .parse()
            .ok()
            .filter(|status| digits && (100..600).contains(status))
            .ok_or("no valid status")?;
        Ok(ResponseHead { status, headers })
    }
}

/// "the :authority and Host header fields MUST contain the same value" if both are there (RFC 9114 §4.3.1).
fn pick_authority(
    authority: Option<String>,
    headers: &[Header],
    connect: bool,
) -> Result<String, Rule> {
    let host = header(headers, "host");
    let authority = match (authority, host) {
        (Some(authority), Some(host)) if !connect && authority.as_bytes() != host => {
            return Err("authority and host differ");
        }
        (Some(authority), _) => authority,
        (None, Some(host)) if !connect => {
            String::from_utf8(host.to_vec()).map_err(|_| "a host that is no text")?
        }
        (None, _) => return Err("no authority"),
    };
    let fine = |byte: u8| byte.is_ascii_graphic() && !b"@/?#\\\"<>".contains(&byte);
    if !authority.is_empty() && authority.bytes().all(fine) {
        Ok(authority)
    } else {
        Err("an authority with a forbidden character")
    }
}

/// ":path ... Contains the path and query parts of the target URI" (RFC 9114 §4.3.1). Firefox 153 writes the whole
/// URI there for CONNECT-UDP. We do not refuse it, because that browser could then not use a relay; its path counts.
fn origin_form(path: String) -> String {
    match path
        .strip_prefix("https://")
        .map(|rest| rest.split_once('/'))
    {
        Some(Some((_, tail))) => format!("/{tail}"),
        _ => path,
    }
}

fn check_target(head: &RequestHead) -> Result<(), Rule> {
    let scheme = head.scheme.as_deref().ok_or("no scheme")?;
    if !is_text_token(scheme) {
        return Err("no valid scheme");
    }
    let path = head.path.as_deref().ok_or("no path")?;
    let fine = path.starts_with('/') || (path == "*" && head.method == "OPTIONS");
    if fine && path.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(())
    } else {
        Err("no valid path")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(fields: &[(&str, &str)]) -> Result<RequestHead, &'static str> {
        let bytes = |text: &str| text.as_bytes().to_vec();
        RequestHead::from_fields(fields.iter().map(|(n, v)| (bytes(n), bytes(v))).collect())
    }

    fn response(fields: &[(&str, &str)]) -> Result<ResponseHead, &'static str> {
        let bytes = |text: &str| text.as_bytes().to_vec();
        ResponseHead::from_fields(fields.iter().map(|(n, v)| (bytes(n), bytes(v))).collect())
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
