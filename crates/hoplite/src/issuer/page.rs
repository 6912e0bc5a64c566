//! The page of an issuer, on which a person has tokens made without a program of ours: four documents that are part of this one, and what the file says
//! of relays. The browser blinds and unblinds (`blind.js`); to the issuer it is a client as any other, and the relay's name is never sent.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::json;

use super::Answered;
use crate::config::issuer::Page as Config;

/// Nothing of anybody else's is loaded or told, nothing is run that is not a file of this page, and no other page has it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The page, and what it is told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Page {
    config: Bytes,
}

impl Page {
    pub(super) fn new(config: &Config) -> Self {
        let relay = |relay: &crate::config::issuer::PageRelay| {
            let address = relay.address.as_ref().map(ToString::to_string);
            json!({"origin": relay.origin, "address": address.unwrap_or_else(|| format!("{}:443", relay.origin))})
        };
        let relays: Vec<_> = config.relay.iter().map(relay).collect();
        let config = json!({"issuer": config.issuer, "relays": relays});
        Self {
            config: config.to_string().into(),
        }
    }

    /// What is at this path, if it is the page's.
    pub(super) fn document(&self, path: &str) -> Option<Answered> {
        let text = |kind, text: &'static str| Some((kind, Bytes::from_static(text.as_bytes())));
        match path {
            "/" => text("text/html; charset=utf-8", include_str!("page.html")),
            "/page.css" => text("text/css; charset=utf-8", include_str!("page.css")),
            "/page.js" => text(JAVASCRIPT, include_str!("page.js")),
            "/blind.js" => text(JAVASCRIPT, include_str!("blind.js")),
            "/page.json" => Some(("application/json", self.config.clone())),
            _ => None,
        }
    }
}

/// What browsers are told of every answer.
pub(super) fn guard(fields: &mut HeaderMap) {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        fields.insert(name, HeaderValue::from_static(value));
    }
}
