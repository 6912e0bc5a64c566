//! The requests of a client, and the reply to a DNS query. Used by [`crate::Hop`] over HTTP/3 and HTTP/2 alike.
//! RFC 9110 §9.3.6 (CONNECT), RFC 9298 §3 (CONNECT-UDP), RFC 9484 §4 (CONNECT-IP), RFC 8484 §4.1 (DNS).

use hoplite_crypto::Token;
use hoplite_http::accepted;
use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::{RequestHead, ResponseHead, Target, Template, connect_ip::Scope, dns};
use zeroize::Zeroizing;

use crate::Relay;

/// What every request to one relay carries.
#[derive(Debug)]
pub(crate) struct Credentials {
    authority: String,
    template: Template,
    token: Option<Token>,
}

impl Credentials {
    pub(crate) fn new(relay: &Relay) -> Result<Self, Error> {
        let template = match &relay.template {
            Some(text) => text.parse().map_err(|error| {
                let doing = format!("reading the template of relay {}", relay.peer.name);
                Error::new(ErrorKind::Bug, doing).caused_by(error)
            })?,
            None => Template::well_known(),
        };
        let own = relay.peer.address.to_string();
        let authority = template.authority().map_or(own, str::to_owned);
        Ok(Self {
            authority,
            template,
            token: relay.token.clone(),
        })
    }

    /// A TCP flow. A proxy's credentials stand in Proxy-Authorization (RFC 9110 §11.7.1).
    pub(crate) fn connect(&self, target: &Target) -> RequestHead {
        self.signed(
            RequestHead::connect(target.to_string()),
            "proxy-authorization",
        )
    }

    /// A UDP flow. The template is a resource of the relay's own, hence Authorization (RFC 9298 §7).
    pub(crate) fn connect_udp(&self, target: &Target) -> RequestHead {
        let head = RequestHead::connect_udp(self.authority.clone(), self.template.expand(target));
        self.signed(head, "authorization")
    }

    /// A flow of IP packets, by the well-known template.
    pub(crate) fn connect_ip(&self, scope: &Scope) -> RequestHead {
        let head = RequestHead::connect_ip(self.authority.clone(), scope.path());
        self.signed(head, "authorization")
    }

    /// A DNS query of so many bytes. As the template it is a resource of the relay's own.
    pub(crate) fn query(&self, octets: usize) -> RequestHead {
        let head = RequestHead {
            method: "POST".into(),
            scheme: Some("https".into()),
            path: Some(dns::PATH.into()),
            ..RequestHead::connect(self.authority.clone())
        };
        let head = head
            .with("accept", dns::MEDIA_TYPE)
            .with("content-type", dns::MEDIA_TYPE)
            .with("content-length", octets.to_string());
        self.signed(head, "authorization")
    }

    fn signed(&self, head: RequestHead, field: &str) -> RequestHead {
        match &self.token {
            Some(token) => {
                let value = Zeroizing::new(format!("Bearer {}", token.reveal()));
                head.with(field, value.as_bytes())
            }
            None => head,
        }
    }
}

/// A success with a DNS message behind it. A relay without DNS knows no such path, or no such method.
pub(crate) fn answered(answer: &ResponseHead) -> Result<(), Error> {
    let doing = "asking a relay that does not answer DNS queries";
    let unsupported = || Err(Error::new(ErrorKind::Unsupported, doing));
    if matches!(answer.status, 404 | 405 | 501) {
        return unsupported();
    }
    accepted(answer)?;
    match answer.header("content-type") {
        Some(value) if value.eq_ignore_ascii_case(dns::MEDIA_TYPE.as_bytes()) => Ok(()),
        _ => unsupported(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_no_dns_message_is_none() {
        let page = ResponseHead::new(200).with("content-type", "text/html");
        let error = answered(&page).expect_err("a page");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let reply = ResponseHead::new(200).with("content-type", "application/dns-message");
        answered(&reply).expect("a reply");
    }
}
