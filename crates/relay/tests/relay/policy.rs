//! What the relay refuses, by address, by name and by what a name resolves to; and who an ingress forwards to.

use std::net::Ipv4Addr;

use hoplite_relay::config::{ResolverChoice, Role};
use hoplite_testing::{dns::Dns, relay::relay, targets};
use hoplite_wire::ProxyError::{
    DestinationIpProhibited, DnsError, DnsTimeout, HttpRequestDenied, ProxyLoopDetected,
};

use crate::support::{connect, tcp, udp};

#[tokio::test]
async fn metadata_and_localhost_are_refused_for_tcp_and_udp_before_any_look_up() {
    let dns = Dns::start(&[]).await;
    let relay = relay(|config| {
        config.egress.allow.clear();
        config.egress.resolver = ResolverChoice::Servers(vec![dns.address]);
    });
    let client = connect(&relay).await;
    for target in [
        "169.254.169.254:80",
        "localhost:80",
        "a.localhost:80",
        "127.0.0.1:80",
        "[::1]:80",
        "[::ffff:10.0.0.1]:80",
        "metadata.google.internal:80",
    ] {
        let prohibited = (403, Some(DestinationIpProhibited));
        assert_eq!(client.refusal(tcp(target)).await, prohibited, "{target}");
        assert_eq!(client.refusal(udp(target)).await, prohibited, "{target}");
    }
    assert_eq!(dns.asked(), 0);
}

#[tokio::test]
async fn names_are_judged_by_what_they_resolve_to() {
    let dns = Dns::start(&[
        ("private.test", Ipv4Addr::new(10, 0, 0, 1)),
        ("meta.test", Ipv4Addr::new(169, 254, 169, 254)),
        ("fine.test", Ipv4Addr::LOCALHOST),
    ])
    .await;
    let relay = relay(|config| {
        config.egress.resolver = ResolverChoice::Servers(vec![dns.address]);
        config.limits.resolve = std::time::Duration::from_secs(1);
    });
    let client = connect(&relay).await;
    let port = targets::tcp_echo().await.port();
    for name in ["private.test", "meta.test"] {
        let prohibited = (403, Some(DestinationIpProhibited));
        assert_eq!(client.refusal(tcp(format!("{name}:80"))).await, prohibited);
        assert_eq!(client.refusal(udp(format!("{name}:80"))).await, prohibited);
    }
    assert_eq!(client.status(tcp(format!("fine.test:{port}"))).await, 200);
    let (_, unknown) = client.ask(tcp("unknown.test:80")).await;
    assert_eq!(unknown.status, 502);
    assert_eq!(
        unknown.header("proxy-status"),
        Some(&b"relay; error=dns_error; rcode=\"NXDOMAIN\""[..])
    );
    assert_eq!(
        client.refusal(udp("unknown.test:80")).await,
        (502, Some(DnsError))
    );
    assert_eq!(
        client.refusal(tcp("silent.test:80")).await,
        (504, Some(DnsTimeout))
    );
}

#[tokio::test]
async fn rules_that_are_read_again_hold_for_what_is_asked_next_and_open_tunnels_go_on() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let echo = targets::udp_echo().await;
    let (exchange, _) = client.ask(udp(echo)).await;
    let mut tunnel = crate::support::Tunnel::new(exchange);
    let mut config = hoplite_testing::relay::config();
    config.egress.deny = vec!["127.0.0.0/8".parse().expect("a rule")];
    relay.reload_rules(&config);
    let prohibited = (403, Some(DestinationIpProhibited));
    assert_eq!(client.refusal(udp(echo)).await, prohibited);
    assert_eq!(
        client.refusal(tcp(targets::tcp_echo().await)).await,
        prohibited
    );
    assert_eq!(tunnel.echo(b"still open").await, &b"still open"[..]);
    config.egress.deny.clear();
    config.roles = vec![Role::Ingress];
    relay.reload_rules(&config);
    assert_eq!(client.status(udp(echo)).await, 200, "roles are kept");
}

#[tokio::test]
async fn a_relay_refuses_to_call_itself() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let itself = relay.addresses()[0];
    assert_eq!(
        client.refusal(udp(itself)).await,
        (502, Some(ProxyLoopDetected))
    );
    assert_eq!(
        client.refusal(tcp(itself)).await,
        (502, Some(ProxyLoopDetected))
    );
}

#[tokio::test]
async fn an_ingress_forwards_to_its_relays_and_to_nothing_else() {
    let next = targets::udp_echo().await;
    let relay = relay(|config| {
        config.roles = vec![Role::Ingress];
        config.egress.allow.clear();
        config.ingress.relays = vec![next.into()];
    });
    let client = connect(&relay).await;
    let mut tunnel = client.udp(next).await;
    assert_eq!(tunnel.echo(b"onward").await, &b"onward"[..]);
    for other in [
        "1.1.1.1:443",
        "example.com:443",
        "127.0.0.1:1",
        "localhost:80",
    ] {
        let denied = (403, Some(HttpRequestDenied));
        assert_eq!(client.refusal(tcp(other)).await, denied, "{other}");
        assert_eq!(client.refusal(udp(other)).await, denied, "{other}");
    }
}
