//! Names, over one and two hops: the last relay alone asks its resolver, and the others learn nothing.

use std::{net::Ipv4Addr, sync::Arc};

use hoplite_masque::{Config as ClientConfig, Path};
use hoplite_overlay::{ErrorKind, Overlay, Reason, Terms};
use hoplite_relay::{Handle, config::ResolverChoice};
use hoplite_testing::{
    dns::Dns,
    path::{Switch, direct, through},
    relay::relay,
};
use hoplite_wire::{
    HostName, Target,
    dns::{Code, Question, RecordType},
};

const FINE: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);

async fn server() -> Dns {
    Dns::start(&[
        ("fine.test", FINE),
        ("inside.test", Ipv4Addr::new(10, 0, 0, 1)),
    ])
    .await
}

/// A path whose last relay asks `last`, and the others `others`.
fn path(hops: usize, below: &Arc<dyn Overlay>, last: &Dns, others: &Dns) -> (Path, Vec<Handle>) {
    let asking = |dns: &Dns| ResolverChoice::Servers(vec![dns.address]);
    let relays: Vec<Handle> = (1..=hops)
        .map(|n| relay(|c| c.egress.resolver = asking(if n == hops { last } else { others })))
        .collect();
    (through(&relays, below, ClientConfig::default()), relays)
}

async fn look_up(path: &Path) {
    let terms = Terms::default();
    let found = path.resolve("fine.test", &terms).await.expect("found");
    assert_eq!(found, [FINE]);
    let missing = path.resolve("unknown.test", &terms).await;
    let missing = missing.expect_err("no such name");
    let said = (missing.kind(), missing.reason());
    assert_eq!(said, (ErrorKind::TargetFailed, Some(Reason::NameNotFound)));
    let inside = path.resolve("inside.test", &terms).await;
    let inside = inside.expect_err("a private address");
    let said = (inside.kind(), inside.reason());
    assert_eq!(said, (ErrorKind::Forbidden, Some(Reason::Policy)));
}

#[tokio::test]
async fn the_last_relay_alone_resolves() {
    for hops in [1, 2] {
        let (last, others) = (server().await, server().await);
        let (path, _relays) = path(hops, &direct(), &last, &others);
        look_up(&path).await;
        assert!(last.asked() > 0);
        assert_eq!(others.asked(), 0, "another relay learnt the name");
    }
}

#[tokio::test]
async fn names_of_onion_services_are_told_to_nobody() {
    let last = server().await;
    let resolver = ResolverChoice::Servers(vec![last.address]);
    // It would ask, if it were told.
    let relay = relay(|config| {
        config.egress.resolver = resolver;
        config.egress.allow = vec!["onion".parse().expect("a rule")];
    });
    let path = through([&relay], &direct(), ClientConfig::default());
    let terms = Terms::default();
    for name in ["duskgytldkxiuqc6.onion", "onion", "www.Example.ONION"] {
        let target: Target = format!("{name}:80").parse().expect("a target");
        let stream = path
            .open_stream(&target, &terms)
            .await
            .expect_err("refused");
        let datagrams = path.open_datagrams(&target, &terms).await;
        let datagrams = datagrams.expect_err("refused");
        let name = HostName::new(name).expect("a name");
        let resolved = path.resolve(name.as_str(), &terms).await;
        for error in [stream, datagrams, resolved.expect_err("refused")] {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }
    assert_eq!(last.asked(), 0);
}

#[tokio::test]
async fn names_are_resolved_where_udp_is_blocked() {
    let (last, others) = (server().await, server().await);
    let below = Switch::new();
    below.block(true);
    let (path, _relays) = path(1, &below.overlay, &last, &others);
    look_up(&path).await;
}

#[tokio::test]
async fn a_relay_without_dns_is_told_from_one_that_fails() {
    let relay = relay(|config| config.egress.dns = false);
    let path = through([&relay], &direct(), ClientConfig::default());
    let question = Question::new(&HostName::new("fine.test").expect("valid"), RecordType::A);
    let (message, terms) = (question.message(), Terms::default());
    let error = path.query(&message, &terms).await.expect_err("off");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_thousand_queries_at_once_are_all_answered() {
    let (last, others) = (server().await, server().await);
    let (path, _relays) = path(1, &direct(), &last, &others);
    let question = Question::new(&HostName::new("fine.test").expect("valid"), RecordType::A);
    let (message, terms) = (question.message(), Terms::default());
    let asking = (0..1000).map(|_| path.query(&message, &terms));
    for reply in futures_util::future::join_all(asking).await {
        let heard = question.heard(&reply.expect("answered"));
        assert_eq!(heard, Ok((Code::NO_ERROR, vec![FINE.into()])));
    }
}
