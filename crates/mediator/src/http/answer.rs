//! Answers that the proxy makes itself: what failed, in one sentence, with a status that tells the truth.
//! The rest of the HTTP front end answers with them. RFC 9110 §15, RFC 9209 (`Proxy-Status`).

use ::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use hoplite_overlay::{Error, ErrorKind, Reason};
use http_body_util::{Either, Full};
use hyper::body::Incoming;

/// A target's body as it streams, or one of ours.
pub(super) type Body = Either<Incoming, Full<Bytes>>;

/// Why there is no answer of the target.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The overlay failed.
    Overlay(Error),
    /// The request makes no sense to a proxy.
    Request(&'static str),
    /// The target closed or reset before it had answered.
    Ended,
    /// The target does not speak HTTP/1.
    NotHttp,
}

impl Refusal {
    pub(super) fn response(&self) -> Response<Body> {
        let (status, token) = self.status();
        let mut response = text(status, &self.sentence());
        if let Some(token) = token {
            let value = HeaderValue::try_from(format!("hoplite; error={token}"));
            let name = header::HeaderName::from_static("proxy-status");
            value
                .into_iter()
                .for_each(|value| drop(response.headers_mut().insert(name.clone(), value)));
        }
        response
    }

    fn status(&self) -> (StatusCode, Option<&'static str>) {
        match self {
            Self::Overlay(error) => {
                let (status, token) = overlay_status(error);
                (status, Some(token))
            }
            Self::Request(_) => (StatusCode::BAD_REQUEST, None),
            Self::Ended => (StatusCode::BAD_GATEWAY, Some("connection_terminated")),
            Self::NotHttp => (StatusCode::BAD_GATEWAY, Some("http_protocol_error")),
        }
    }

    fn sentence(&self) -> String {
        match self {
            Self::Overlay(error) => format!("{error}: {}", advice(error)),
            Self::Request(problem) => format!("the request is not for a proxy: {problem}"),
            Self::Ended => {
                "the target ended the connection before it had answered: try again".into()
            }
            Self::NotHttp => {
                "the target's answer is not HTTP/1.1: check the address and the port".into()
            }
        }
    }
}

/// The table is in the crate's documentation.
fn overlay_status(error: &Error) -> (StatusCode, &'static str) {
    match error.kind() {
        ErrorKind::EntryUnreachable | ErrorKind::PathFailed => {
            (StatusCode::SERVICE_UNAVAILABLE, "destination_unavailable")
        }
        ErrorKind::TargetFailed => (StatusCode::BAD_GATEWAY, target_token(error.reason())),
        ErrorKind::Forbidden => forbidden_status(error.reason()),
        ErrorKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, "proxy_internal_error"),
        ErrorKind::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "connection_timeout"),
        ErrorKind::Bug => (StatusCode::INTERNAL_SERVER_ERROR, "proxy_internal_error"),
    }
}

fn target_token(reason: Option<Reason>) -> &'static str {
    match reason {
        Some(Reason::Refused) => "connection_refused",
        Some(Reason::NameNotFound | Reason::ResolverFailed) => "dns_error",
        Some(Reason::HostUnreachable | Reason::NetworkUnreachable) => "destination_ip_unroutable",
        _ => "destination_unavailable",
    }
}

fn forbidden_status(reason: Option<Reason>) -> (StatusCode, &'static str) {
    match reason {
        Some(Reason::Limit) => (StatusCode::SERVICE_UNAVAILABLE, "connection_limit_reached"),
        Some(Reason::Authentication | Reason::Identity) => {
            (StatusCode::FORBIDDEN, "proxy_configuration_error")
        }
        _ => (StatusCode::FORBIDDEN, "destination_ip_prohibited"),
    }
}

fn advice(error: &Error) -> &'static str {
    match (error.kind(), error.reason()) {
        (ErrorKind::EntryUnreachable, _) => "check the network, or choose another first relay",
        (ErrorKind::PathFailed, _) => "try again, or choose another path",
        (ErrorKind::TargetFailed, Some(Reason::NameNotFound)) => {
            "check the spelling of the address"
        }
        (ErrorKind::TargetFailed, _) => "the relays work; check the address, or try later",
        (ErrorKind::Forbidden, Some(Reason::Limit)) => "try later, or ask the relay's operator",
        (ErrorKind::Forbidden, Some(Reason::Authentication)) => {
            "check the token in the configuration"
        }
        (ErrorKind::Forbidden, _) => "ask the relay's operator, or choose another path",
        (ErrorKind::Unsupported, _) => "choose another path",
        (ErrorKind::TimedOut, _) => "try again",
        (ErrorKind::Bug, _) => "please report this",
    }
}

fn text(status: StatusCode, sentence: &str) -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::from(format!("hoplite: {sentence}\n"))));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// The answer to who takes the proxy for a web server: a person who opens its address, or a web page that probes.
pub(super) fn help(request: &Request<Incoming>) -> Response<Body> {
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    let status = match reading && request.uri().path() == "/" {
        true => StatusCode::OK,
        false => StatusCode::BAD_REQUEST,
    };
    let sentence = "this is an HTTP proxy, not a web server: enter its address and port as the proxy for HTTP and \
                    HTTPS in the program's network settings, or run curl -x http://ADDRESS:PORT https://example.com/";
    let mut response = text(status, sentence);
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}
