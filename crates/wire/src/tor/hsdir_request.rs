//! What an HSDir is asked for over a circuit: to keep a descriptor of an onion service, or to give one. rend-spec-v3, "URLs for anonymous uploading
//! and downloading"; dir-spec, "Standards compliance" (HTTP).

use std::fmt;

use super::{base64, encode};

/// Where descriptors of version 3 are.
const ROOT: &str = "/tor/hs/3/";
const PUBLISH: &str = "publish";

/// What an HSDir is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HsDirRequest {
    /// To keep the descriptor in the body.
    Publish,
    /// To give the descriptor of this blinded key.
    Fetch([u8; 32]),
}

impl HsDirRequest {
    /// What a request with this method and target asks for; `None`: nothing that an HSDir does.
    pub fn parse(method: &str, target: &str) -> Option<Self> {
        let rest = target.strip_prefix(ROOT)?;
        match method {
            "POST" if rest == PUBLISH => Some(Self::Publish),
            "GET" => base64(rest).map(Self::Fetch),
            _ => None,
        }
    }

    /// The method of such a request.
    pub fn method(&self) -> &'static str {
        match self {
            Self::Publish => "POST",
            Self::Fetch(_) => "GET",
        }
    }

    /// The target of such a request, in its origin-form.
    pub fn target(&self) -> String {
        match self {
            Self::Publish => format!("{ROOT}{PUBLISH}"),
            Self::Fetch(key) => format!("{ROOT}{}", encode(key)),
        }
    }
}

impl fmt::Debug for HsDirRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Publish => "Publish",
            Self::Fetch(_) => "Fetch(hidden)",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_asked_for_is_read_back(key: [u8; 32]) {
            for asked in [HsDirRequest::Publish, HsDirRequest::Fetch(key)] {
                prop_assert!(HsDirRequest::parse(asked.method(), &asked.target()) == Some(asked));
            }
        }

        #[test]
        fn any_request_is_read_without_a_panic(method in "GET|POST|[A-Z]{0,8}", target in "(/tor/hs/3/)?[ -~]{0,60}") {
            let _ = HsDirRequest::parse(&method, &target);
        }
    }

    #[test]
    fn c_tors_requests_are_read_and_nothing_else() {
        let key = "/".repeat(42) + "8";
        let parse = |method, target: &str| HsDirRequest::parse(method, target);
        let fetch = format!("/tor/hs/3/{key}");
        assert!(parse("GET", &fetch) == Some(HsDirRequest::Fetch([255; 32])));
        assert!(parse("GET", &format!("{fetch}=")) == Some(HsDirRequest::Fetch([255; 32])));
        assert!(parse("POST", "/tor/hs/3/publish") == Some(HsDirRequest::Publish));
        for (method, target) in [
            ("POST", fetch.as_str()),
            ("GET", "/tor/hs/3/publish"),
            ("HEAD", &fetch),
            ("POST", "/tor/hs/2/publish"),
            ("POST", "/tor/hs/3/publish?"),
            ("GET", "/tor/hs/3/"),
            ("GET", fetch.trim_end_matches('8')),
            ("GET", &format!("{fetch}A")),
            ("GET", &format!("/tor/hs/3/{}9", "/".repeat(42))),
            ("GET", "/tor/rendezvous2/abc"),
        ] {
            assert!(parse(method, target).is_none(), "{method} {target}");
        }
    }
}
