//! Which fields make a message malformed.
//! `RequestHead` and `ResponseHead` are built through it.
//! RFC 9114 §4.2 (fields), §4.3 (pseudo-headers), §4.4 (CONNECT); RFC 9220 §3; RFC 9110 §5 (syntax).
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use super::{Header, RequestHead, ResponseHead};
use crate::qpack::Field;

type Rule = &'static str;

/// The pseudo-headers seen so far.
#[derive(Default)]
pub(super) struct Pseudo {
    method: Option<String>,
    protocol: Option<String>,
    scheme: Option<String>,
    authority: Option<String>,
    path: Option<String>,
    status: Option<String>,
}

/// Checks all fields, hands pseudo-headers to `pseudo` and returns the others.
pub(super) fn headers(
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
    match value.iter().any(|octet| matches!(octet, 0 | b'\r' | b'\n')) {
        true => Err("a field value with a forbidden character"),
        false => Ok(()),
    }
}

fn check_name(name: Vec<u8>, value: &[u8]) -> Result<String, Rule> {
    // "Characters in field names MUST be converted to lowercase prior to their encoding."
    let fine = |octet: &u8| is_token(*octet) && !octet.is_ascii_uppercase();
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
fn is_token(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet)
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
    pub(super) fn set_request(&mut self, name: &[u8], value: String) -> Result<(), Rule> {
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

    pub(super) fn set_response(&mut self, name: &[u8], value: String) -> Result<(), Rule> {
        match name {
            b":status" => once(&mut self.status, value),
            _ => Err("a pseudo-header field that responses do not have"),
        }
    }

    pub(super) fn into_request(self, headers: Vec<Header>) -> Result<RequestHead, Rule> {
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

    pub(super) fn into_response(self, headers: Vec<Header>) -> Result<ResponseHead, Rule> {
        let status = self.status.ok_or("no status")?;
        let digits = status.len() == 3 && status.bytes().all(|octet| octet.is_ascii_digit());
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
    let host = super::header(headers, "host");
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
    let fine = |octet: u8| octet.is_ascii_graphic() && !b"@/?#\\\"<>".contains(&octet);
    match !authority.is_empty() && authority.bytes().all(fine) {
        true => Ok(authority),
        false => Err("an authority with a forbidden character"),
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
    match fine && path.bytes().all(|octet| octet.is_ascii_graphic()) {
        true => Ok(()),
        false => Err("no valid path"),
    }
}
