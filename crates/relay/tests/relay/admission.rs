//! Tokens, over the wire.

use hoplite_relay::config::TokenEntry;
use hoplite_testing::{relay::relay, targets};
use zeroize::Zeroizing;

use crate::support::{connect, tcp, udp};

pub(crate) fn entry(token: &str) -> TokenEntry {
    TokenEntry {
        token: Some(Zeroizing::new(token.to_owned())),
        ..TokenEntry::default()
    }
}

#[tokio::test]
async fn a_token_is_wanted_and_taken_from_either_header() {
    let relay = relay(|config| config.auth.token = vec![entry("right")]);
    let client = connect(&relay).await;
    let target = targets::tcp_echo().await;
    let (_, refused) = client.ask(tcp(target)).await;
    assert_eq!(refused.status, 407);
    let challenge = refused.header("proxy-authenticate").expect("a challenge");
    assert!(challenge.starts_with(b"Bearer"));
    for header in ["proxy-authorization", "authorization"] {
        let wrong = tcp(target).with(header, "Bearer wrong");
        assert_eq!(client.status(wrong).await, 407, "{header}");
        let right = tcp(target).with(header, "Bearer right");
        assert_eq!(client.status(right).await, 200, "{header}");
        let basic = tcp(target).with(header, "Basic dXNlcjpyaWdodA==");
        assert_eq!(client.status(basic).await, 200, "{header}");
    }
    let echo = targets::udp_echo().await;
    assert_eq!(client.status(udp(echo)).await, 407);
    assert_eq!(
        client
            .status(udp(echo).with("authorization", "Bearer right"))
            .await,
        200
    );
    let metrics = relay.metrics().text();
    assert!(
        metrics.contains("hoplite_relay_auth_failures_total 4"),
        "{metrics}"
    );
}

#[tokio::test]
async fn without_a_token_a_client_learns_nothing_of_the_policy() {
    let relay = relay(|config| config.auth.token = vec![entry("right")]);
    let client = connect(&relay).await;
    assert_eq!(client.status(tcp("169.254.169.254:80")).await, 407);
}

#[tokio::test]
async fn a_reload_replaces_tokens_and_leaves_open_tunnels_alone() {
    let relay = relay(|config| config.auth.token = vec![entry("old")]);
    let client = connect(&relay).await;
    let echo = targets::udp_echo().await;
    let (exchange, _) = client
        .ask(udp(echo).with("authorization", "Bearer old"))
        .await;
    let mut tunnel = crate::support::Tunnel::new(exchange);
    let mut auth = hoplite_relay::config::Auth::default();
    assert!(relay.reload(&auth, None).is_err(), "no token is left");
    auth.token = vec![entry("new")];
    relay.reload(&auth, None).expect("reloaded");
    let ask = |token| client.status(udp(echo).with("authorization", format!("Bearer {token}")));
    assert_eq!(ask("old").await, 407);
    assert_eq!(ask("new").await, 200);
    assert_eq!(tunnel.echo(b"still open").await, &b"still open"[..]);
}
