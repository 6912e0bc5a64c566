//! DNS over HTTPS: a query comes as a POST or in the query of a GET, its reply is the body of the answer.
//! The request handler runs it over HTTP/3 and HTTP/2. RFC 8484 §4 and §5.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use hoplite_http::Exchange;
use hoplite_wire::{
    RequestHead, ResponseHead,
    dns::{self, Question, Unfit},
};
use tokio::time::timeout;

use super::{
    Shared,
    handler::{ClientGone, refuse},
};
use crate::{
    failure::Failure,
    limits::{Pace, QueryQuota},
    metrics::Method,
};

/// Where the query is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Behind the head.
    Body,
    /// In the head.
    Head(Bytes),
}

/// What a request asks for, if it is for this resource.
pub(crate) fn read(head: &RequestHead) -> Option<Result<Source, Failure>> {
    let path = head.path.as_deref().filter(|_| head.protocol.is_none())?;
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    if path != dns::PATH {
        return None;
    }
    match head.method.as_str() {
        "POST" if is_message(head) => Some(Ok(Source::Body)),
        "POST" => Some(Err(Failure::MediaType)),
        "GET" => Some(in_query(query).map(Source::Head).ok_or(Failure::Malformed)),
        _ => None,
    }
}

fn is_message(head: &RequestHead) -> bool {
    let value = head.header("content-type").unwrap_or_default();
    value.eq_ignore_ascii_case(dns::MEDIA_TYPE.as_bytes())
}

/// "dns" is "the content of the DNS message […] encoded with base64url" (RFC 8484 §4.1), without padding.
fn in_query(query: &str) -> Option<Bytes> {
    let mut pairs = query.split('&');
    let value = pairs.find_map(|pair| pair.strip_prefix("dns="))?;
    URL_SAFE_NO_PAD.decode(value).ok().map(Bytes::from)
}

/// What a client that was let in may have.
pub(super) struct Allowance<'a> {
    pub(super) queries: &'a QueryQuota<'a>,
    /// Replies are larger than questions by far.
    pub(super) pace: Pace,
}

/// Serves its request.
pub(super) async fn serve(
    shared: &Shared,
    Allowance { queries, pace }: Allowance<'_>,
    source: Source,
    mut exchange: Exchange,
) -> Result<(), ClientGone> {
    let (head, reply) = match query(shared, source, &mut exchange).await? {
        Ok(question) => reply(shared, queries, &question).await,
        Err(Unread::Answered(reply)) => {
            shared.metrics.request(Method::dns, "http_request_error");
            (ok(&reply), reply)
        }
        Err(Unread::Refused(failure)) => {
            return refuse(shared, Method::dns, failure, exchange).await;
        }
    };
    pace.spend(reply.len()).await;
    let answered = exchange.answer(&head, reply.into());
    let answered = timeout(shared.limits().handshake, answered).await;
    Ok(answered.map_err(|_| ClientGone)??)
}

/// Why there is no question.
enum Unread {
    /// It was a query, and this is its reply.
    Answered(Vec<u8>),
    /// It was none.
    Refused(Failure),
}

async fn query(
    shared: &Shared,
    source: Source,
    exchange: &mut Exchange,
) -> Result<Result<Question, Unread>, ClientGone> {
    let message = match source {
        Source::Head(message) => Some(message),
        Source::Body => {
            let reading = exchange.content(shared.limits().query);
            let read = timeout(shared.limits().handshake, reading).await;
            read.map_err(|_| ClientGone)??
        }
    };
    let fits = |message: &Bytes| message.len() <= shared.limits().query;
    let Some(message) = message.filter(fits) else {
        return Ok(Err(Unread::Refused(Failure::TooLarge)));
    };
    Ok(Question::read(&message).map_err(|unfit| match unfit {
        Unfit::Answered(reply) => Unread::Answered(reply),
        Unfit::Nothing => Unread::Refused(Failure::Malformed),
    }))
}

async fn reply(
    shared: &Shared,
    queries: &QueryQuota<'_>,
    question: &Question,
) -> (ResponseHead, Vec<u8>) {
    let answering = shared.egress.answer(question, queries, &shared.metrics);
    let answered = answering.await;
    shared.metrics.request(Method::dns, answered.outcome);
    if answered.outcome == "refused" {
        shared.metrics.policy_refusals.inc();
    }
    // "the assigned freshness lifetime […] MUST be less than or equal to the smallest TTL in the Answer section" (§5.1).
    let fresh = format!("max-age={}", answered.fresh.as_secs());
    (
        ok(&answered.reply).with("cache-control", fresh),
        answered.reply,
    )
}

fn ok(reply: &[u8]) -> ResponseHead {
    ResponseHead::new(200)
        .with("content-type", dns::MEDIA_TYPE)
        .with("content-length", reply.len().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, path: &str) -> RequestHead {
        RequestHead {
            method: method.into(),
            scheme: Some("https".into()),
            path: Some(path.into()),
            ..RequestHead::connect("relay")
        }
    }

    #[test]
    fn a_query_comes_as_a_body_or_in_the_path() {
        let post = request("POST", "/dns-query").with("content-type", "application/DNS-message");
        assert_eq!(read(&post), Some(Ok(Source::Body)));
        let get = request("GET", "/dns-query?x=y&dns=AAECAw");
        let expected = Source::Head(Bytes::from_static(&[0, 1, 2, 3]));
        assert_eq!(read(&get), Some(Ok(expected)));
    }

    #[test]
    fn other_bodies_and_other_encodings_are_refused() {
        let post = request("POST", "/dns-query").with("content-type", "text/plain");
        assert_eq!(read(&post), Some(Err(Failure::MediaType)));
        for query in [
            "",
            "?",
            "?dns",
            "?dns=A",
            "?dns=AA==",
            "?dns=A+A/",
            "?name=a",
        ] {
            let get = request("GET", &format!("/dns-query{query}"));
            assert_eq!(read(&get), Some(Err(Failure::Malformed)), "{query}");
        }
    }

    #[test]
    fn other_resources_are_none_of_this() {
        for head in [
            request("POST", "/"),
            request("PUT", "/dns-query"),
            request("GET", "/dns-query/"),
            RequestHead::connect("a.example:443"),
            RequestHead::connect_udp("relay", "/dns-query?dns=AAAA"),
        ] {
            assert_eq!(read(&head), None);
        }
    }
}
