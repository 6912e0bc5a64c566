//! DNS over HTTPS, as a client, a resolver and an operator see it.

use std::{net::Ipv4Addr, time::Duration};

use bytes::Bytes;
use hoplite_http::{h2, h3::Exchange};
use hoplite_relay::{
    Config,
    config::{ResolverChoice, Role, TokenEntry},
};
use hoplite_testing::{
    dns::Dns,
    relay::{metric, relay},
};
use hoplite_wire::{
    HostName, ProxyError, RequestHead, ResponseHead,
    dns::{Code, Question, RecordType},
};

use crate::support::{Client, connect, tcp};

const FINE: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);

async fn server() -> Dns {
    Dns::start(&[
        ("fine.test", FINE),
        ("inside.test", Ipv4Addr::new(10, 0, 0, 1)),
        ("meta.test", Ipv4Addr::new(169, 254, 169, 254)),
    ])
    .await
}

fn asking(config: &mut Config, dns: &Dns) {
    config.egress.resolver = ResolverChoice::Servers(vec![dns.address]);
    config.limits.resolve = Duration::from_secs(1);
}

fn question(name: &str, kind: RecordType) -> Question {
    Question::new(&HostName::new(name).expect("valid"), kind)
}

fn head(method: &str, path: &str) -> RequestHead {
    RequestHead {
        method: method.into(),
        scheme: Some("https".into()),
        path: Some(path.into()),
        ..RequestHead::connect("relay")
    }
}

fn post() -> RequestHead {
    head("POST", "/dns-query").with("content-type", "application/dns-message")
}

impl Client {
    async fn post(&self, head: RequestHead, content: &[u8]) -> (Exchange, ResponseHead) {
        let mut exchange = self.session.request(&head).await.expect("sent");
        let content = Bytes::copy_from_slice(content);
        // A refusal may come first.
        drop(exchange.send(content).await);
        let answer = exchange.response().await.expect("answered");
        (exchange, answer)
    }

    async fn query(&self, message: &[u8]) -> (ResponseHead, Bytes) {
        let (mut exchange, answer) = self.post(post(), message).await;
        let content = exchange.content(65_535).await.expect("read");
        (answer, content.expect("not too large"))
    }

    /// The code and the addresses that a name has.
    async fn look_up(&self, name: &str, kind: RecordType) -> (Code, Vec<String>) {
        let question = question(name, kind);
        let (answer, reply) = self.query(&question.message()).await;
        assert_eq!(answer.status, 200);
        let (code, found) = question.heard(&reply).expect("the answer");
        (code, found.iter().map(ToString::to_string).collect())
    }
}

#[tokio::test]
async fn a_query_is_answered_with_the_resolvers_records() {
    let dns = server().await;
    let relay = relay(|config| asking(config, &dns));
    let client = connect(&relay).await;
    let question = question("Fine.test", RecordType::A);
    let (answer, reply) = client.query(&question.message_with_id(77)).await;
    assert_eq!(answer.status, 200);
    let field = |name| std::str::from_utf8(answer.header(name).expect(name)).expect("text");
    assert_eq!(field("content-type"), "application/dns-message");
    assert_eq!(field("content-length"), reply.len().to_string());
    assert_eq!(field("cache-control"), "max-age=60");
    assert_eq!(reply[..2], [0, 77]);
    let heard = question.heard(&reply).expect("the answer");
    assert_eq!(heard, (Code::NO_ERROR, vec![FINE.into()]));
}

#[tokio::test]
async fn an_answer_does_not_tell_when_another_client_asked_for_the_name() {
    let dns = server().await;
    let relay = relay(|config| asking(config, &dns));
    let query = question("fine.test", RecordType::A).message();
    let mut told = Vec::new();
    for _ in 0..2 {
        let client = connect(&relay).await;
        let (answer, reply) = client.query(&query).await;
        let kept = answer.header("cache-control").map(<[u8]>::to_vec);
        told.push((kept, reply));
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(dns.asked(), 1, "the second is answered from the cache");
}

#[tokio::test]
async fn a_query_in_the_path_is_answered_alike() {
    let dns = server().await;
    let relay = relay(|config| asking(config, &dns));
    let client = connect(&relay).await;
    // fine.test A, id 0, recursion desired.
    let path = "/dns-query?dns=AAABAAABAAAAAAAABGZpbmUEdGVzdAAAAQAB";
    let mut exchange = client
        .session
        .request(&head("GET", path))
        .await
        .expect("sent");
    exchange.send(Bytes::new()).await.expect("sent");
    assert_eq!(exchange.response().await.expect("answered").status, 200);
    let reply = exchange
        .content(65_535)
        .await
        .expect("read")
        .expect("small");
    let heard = question("fine.test", RecordType::A).heard(&reply);
    assert_eq!(heard, Ok((Code::NO_ERROR, vec![FINE.into()])));
}

#[tokio::test]
async fn a_query_is_answered_over_http_2() {
    let dns = server().await;
    let relay = relay(|config| asking(config, &dns));
    let link = crate::support::dialer(&relay)
        .tls(&Default::default())
        .await;
    let link = link.expect("connected").into_inner();
    let session = h2::Session::client(link, &h2::Config::default()).await;
    let session = session.expect("a session");
    let question = question("fine.test", RecordType::A);
    let mut exchange = session.request(&post()).await.expect("sent");
    exchange.send(question.message().into()).expect("sent");
    assert_eq!(exchange.response().await.expect("answered").status, 200);
    let reply = exchange
        .content(65_535)
        .await
        .expect("read")
        .expect("small");
    let heard = question.heard(&reply).expect("the answer");
    assert_eq!(heard, (Code::NO_ERROR, vec![FINE.into()]));
}

#[tokio::test]
async fn what_the_resolver_says_is_told_as_it_is() {
    let dns = server().await;
    let relay = relay(|config| asking(config, &dns));
    let client = connect(&relay).await;
    for (name, kind, code) in [
        ("unknown.test", RecordType::A, Code::NO_NAME),
        ("fine.test", RecordType::MX, Code::NO_ERROR),
        ("silent.test", RecordType::A, Code::FAILURE),
    ] {
        assert_eq!(client.look_up(name, kind).await, (code, vec![]), "{name}");
    }
}

#[tokio::test]
async fn what_the_policy_refuses_is_not_told() {
    let dns = server().await;
    let relay = relay(|config| {
        asking(config, &dns);
        config.egress.allow = vec!["10.0.0.0/8:443".parse().expect("a rule")];
        config.egress.deny = vec![".secret.test".parse().expect("a rule")];
    });
    let client = connect(&relay).await;
    use RecordType::{A, ANY, AXFR, PTR};
    for (name, kind, code) in [
        ("meta.test", A, Code::REFUSED),
        ("a.secret.test", A, Code::REFUSED),
        ("printer.local", A, Code::REFUSED),
        ("1.1.168.192.in-addr.arpa", PTR, Code::REFUSED),
        ("localhost", A, Code::NO_NAME),
        ("nobody.invalid", A, Code::NO_NAME),
        ("fine.test", ANY, Code::NOT_IMPLEMENTED),
        ("fine.test", AXFR, Code::NOT_IMPLEMENTED),
    ] {
        assert_eq!(
            client.look_up(name, kind).await,
            (code, vec![]),
            "{name} {kind}"
        );
    }
    assert_eq!(dns.asked(), 1, "only meta.test was looked up");
    let allowed = client.look_up("inside.test", A).await;
    assert_eq!(allowed, (Code::NO_ERROR, vec!["10.0.0.1".to_owned()]));
}

#[tokio::test]
async fn what_is_no_query_is_told_so_and_disturbs_nobody() {
    let dns = server().await;
    let relay = relay(|config| asking(config, &dns));
    let client = connect(&relay).await;
    let query = question("fine.test", RecordType::A).message();
    let status = async |head, content: &[u8]| client.post(head, content).await.1.status;
    assert_eq!(status(post(), b"").await, 400);
    assert_eq!(status(post(), b"no DNS message").await, 200, "NOTIMP");
    assert_eq!(status(post(), &[0; 3000]).await, 413);
    assert_eq!(status(head("POST", "/dns-query"), &query).await, 415);
    assert_eq!(status(head("PUT", "/dns-query"), &query).await, 405);
    assert_eq!(status(head("POST", "/other"), &query).await, 405);
    assert_eq!(status(head("GET", "/dns-query?dns=!"), b"").await, 400);
    assert_eq!(client.query(&query).await.0.status, 200);
}

#[tokio::test]
async fn who_has_no_token_gets_no_answer() {
    let dns = server().await;
    let relay = relay(|config| {
        asking(config, &dns);
        config.auth.token = vec![TokenEntry {
            token: Some("secret".to_owned().into()),
            ..TokenEntry::default()
        }];
    });
    let client = connect(&relay).await;
    let query = question("fine.test", RecordType::A).message();
    assert_eq!(client.post(post(), &query).await.1.status, 407);
    let signed = post().with("authorization", "Bearer secret");
    assert_eq!(client.post(signed, &query).await.1.status, 200);
    assert_eq!(dns.asked(), 1);
}

#[tokio::test]
async fn more_queries_than_allowed_are_told_so() {
    let dns = server().await;
    let relay = relay(|config| {
        asking(config, &dns);
        config.limits.queries_per_client = 1;
    });
    let client = connect(&relay).await;
    let query = question("localhost", RecordType::A).message();
    let mut refused = 0;
    for _ in 0..50 {
        let (_, answer) = client.post(post(), &query).await;
        if answer.status == 429 {
            let error = answer.header("proxy-status").and_then(ProxyError::parse);
            assert_eq!(error, Some(ProxyError::ConnectionLimitReached));
            refused += 1;
        }
    }
    assert!(refused > 0, "fifty queries at one a second");
    let counted = |limit| {
        metric(
            &relay,
            &format!("limit_refusals_total{{limit=\"{limit}\"}}"),
        )
    };
    assert_eq!(counted("queries"), f64::from(refused));
    assert_eq!(counted("requests"), 0.0);
}

#[tokio::test]
async fn a_flood_of_queries_keeps_no_flow_of_the_client_from_opening() {
    let dns = server().await;
    let relay = relay(|config| {
        asking(config, &dns);
        config.limits.queries_per_client = 1;
    });
    let client = connect(&relay).await;
    let query = question("localhost", RecordType::A).message();
    while client.post(post(), &query).await.1.status != 429 {}
    assert_eq!(client.status(tcp("absent.test:80")).await, 502, "asked for");
}

#[tokio::test]
async fn a_relay_that_serves_no_dns_knows_no_such_method() {
    let dns = server().await;
    let query = question("fine.test", RecordType::A).message();
    let off = relay(|config| {
        asking(config, &dns);
        config.egress.dns = false;
    });
    let ingress = relay(|config| {
        asking(config, &dns);
        config.roles = vec![Role::Ingress];
        config.ingress.relays = vec!["192.0.2.1:443".parse().expect("a relay")];
    });
    for relay in [off, ingress] {
        let client = connect(&relay).await;
        assert_eq!(client.post(post(), &query).await.1.status, 405);
    }
    assert_eq!(dns.asked(), 0);
}

#[tokio::test]
async fn the_operator_sees_how_many_and_not_what() {
    let dns = server().await;
    let relay = relay(|config| asking(config, &dns));
    let client = connect(&relay).await;
    for name in ["fine.test", "unknown.test", "meta.test"] {
        client.look_up(name, RecordType::A).await;
    }
    let text = relay.metrics().text();
    for (outcome, count) in [("ok", 1), ("name_not_found", 1), ("refused", 1)] {
        let line = format!("requests_total{{method=\"dns\",outcome=\"{outcome}\"}} {count}");
        assert!(text.contains(&line), "{line} is not in {text}");
    }
    assert!(!text.contains("test"), "a name");
}
