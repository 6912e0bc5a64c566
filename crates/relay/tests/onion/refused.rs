//! What a relay of circuits does not do, and how its client learns of it.

use std::net::SocketAddr;

use hoplite_channel::How;
use hoplite_onion::path::Relay as Known;
use hoplite_overlay::{ErrorKind, Reason, Terms};
use hoplite_relay::{Config, Handle, config::Role};
use hoplite_testing::{namespace, relay::number, targets};

use crate::support::{client, echoes, known, path, refused, relay, relays};

#[tokio::test]
async fn an_exit_refuses_what_its_policy_refuses() {
    let [first, second] = relays(How::Quic);
    let strict = relay(|config| config.egress.allow.clear());
    let onion = client(path([&first, &second, &strict]), How::Quic);
    let target = targets::tcp_echo().await;
    let error = refused(&onion, target).await;
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Forbidden, Some(Reason::Policy)),
        "{error}"
    );
    assert_eq!(
        number(
            &strict,
            "hoplite_relay_onion_streams_total{what=\"opened\"}"
        ),
        0
    );
}

#[tokio::test]
async fn an_exit_refuses_ports_and_names_that_are_denied() {
    let target = targets::tcp_echo().await;
    let exit = relay(|config| {
        let rule = format!("*:{}", target.port());
        config.egress.deny = [rule.as_str(), "denied.localhost"]
            .map(|rule| rule.parse().expect("a rule"))
            .to_vec();
    });
    let onion = client(path([&exit]), How::Quic);
    let asked: [hoplite_wire::Target; 2] = [
        target.into(),
        format!("denied.localhost:{}", target.port() ^ 1)
            .parse()
            .expect("a target"),
    ];
    for target in asked {
        let error = refused(&onion, target).await;
        assert_eq!(error.kind(), ErrorKind::Forbidden, "{error}");
    }
}

/// An address that looks like the Internet's is this host's in a namespace of the test's own; only loopback is allowed.
#[test]
fn neither_a_stream_nor_a_circuit_reaches_another_port_of_the_relays_host() {
    let prepare = || {
        namespace::enter()?;
        namespace::run(&["addr", "add", "5.6.7.8/24", "dev", "lo"])
    };
    namespace::with(prepare, || async {
        let hidden = tokio::net::TcpListener::bind("5.6.7.8:0").await;
        let hidden = hidden.expect("bound").local_addr().expect("bound");
        let exit = relay(|_| ());
        let error = refused(&client(path([&exit]), How::Quic), hidden).await;
        let found = (error.kind(), error.reason());
        assert_eq!(found, (ErrorKind::Forbidden, Some(Reason::Policy)));
        let beside = relay(|config| {
            config.listen = vec!["5.6.7.8:0".parse().expect("an address")];
            (config.auth.open, config.onion.open) = (true, true);
        });
        let onion = client(path([&exit, &beside]), How::Quic);
        let error = refused(&onion, targets::tcp_echo().await).await;
        assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
        assert_eq!(not_extended(&exit), 1);
    });
}

#[tokio::test]
async fn a_relay_without_the_egress_role_is_no_exit() {
    let middle = relay(|config| config.roles = vec![Role::Ingress]);
    let onion = client(path([&middle]), How::Quic);
    let error = refused(&onion, targets::tcp_echo().await).await;
    assert_eq!(error.kind(), ErrorKind::Forbidden, "{error}");
    let exit = relay(|_| ());
    echoes(
        &client(path([&middle, &exit]), How::Quic),
        &Terms::default(),
        1000,
    )
    .await;
}

#[tokio::test]
async fn a_target_that_is_not_there_is_the_targets_fault() {
    let relays: [_; 3] = relays(How::Tls);
    let onion = client(path(&relays), How::Tls);
    let nobody = nobody();
    let error = refused(&onion, nobody).await;
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::TargetFailed, Some(Reason::Refused)),
        "{error}"
    );
    echoes(&onion, &Terms::default(), 1000).await;
}

/// Where nothing listens.
fn nobody() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    listener.local_addr().expect("bound")
}

/// Extends from the first relay to a second one as `change` says that it is.
async fn extended(
    first: impl FnOnce(&mut Config),
    change: impl FnOnce(&mut Known, &Handle),
) -> (Handle, hoplite_overlay::Error) {
    let (first, second) = (relay(first), relay(|_| ()));
    let mut wanted = path([&first, &second]);
    change(&mut wanted[1], &first);
    let onion = client(wanted, How::Quic);
    let error = refused(&onion, targets::tcp_echo().await).await;
    (first, error)
}

fn not_extended(relay: &Handle) -> u64 {
    number(
        relay,
        "hoplite_relay_onion_circuits_total{what=\"not_extended\"}",
    )
}

#[tokio::test]
async fn a_relay_with_another_identity_is_not_talked_to() {
    let (first, error) = extended(|_| (), |second, _| second.keys.ed25519[0] ^= 1).await;
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
    assert_eq!(error.reason(), Some(Reason::Identity), "{error}");
    assert_eq!(not_extended(&first), 1);
}

#[tokio::test]
async fn a_first_relay_with_another_identity_is_not_talked_to_over_either() {
    for how in [How::Quic, How::Tls] {
        let first = relay(|_| ());
        let mut wanted = path([&first]);
        wanted[0].keys.ed25519[0] ^= 1;
        let error = refused(&client(wanted, how), nobody()).await;
        assert_eq!(error.reason(), Some(Reason::Identity), "{error}");
        assert_eq!(number(&first, "hoplite_relay_onion_circuits_open"), 0);
    }
}

#[tokio::test]
async fn a_relay_does_not_extend_to_itself() {
    let itself = |second: &mut Known, first: &Handle| *second = known("r1", first);
    let (first, error) = extended(|_| (), itself).await;
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
    assert_eq!(not_extended(&first), 1);
    // Nor by its address, under another name.
    let address =
        |second: &mut Known, first: &Handle| second.addresses = first.addresses().to_vec();
    let (first, error) = extended(|_| (), address).await;
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
    assert_eq!(not_extended(&first), 1);
}

#[tokio::test]
async fn a_relay_extends_to_loopback_only_where_that_is_allowed() {
    let (first, error) = extended(|config| config.egress.allow.clear(), |_, _| ()).await;
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
    assert_eq!(not_extended(&first), 1);
    let second = relay(|_| ());
    let first = relay(|config| {
        config.egress.allow.clear();
        config.ingress.relays = vec![second.addresses()[0].into()];
    });
    let onion = client(path([&first, &second]), How::Quic);
    echoes(&onion, &Terms::default(), 1000).await;
}

#[tokio::test]
async fn a_relay_extends_to_nobody_whom_its_operator_denies() {
    let denied =
        |config: &mut Config| config.egress.deny = vec!["127.0.0.1".parse().expect("a rule")];
    let (first, error) = extended(denied, |_, _| ()).await;
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
    assert_eq!(not_extended(&first), 1);
}

#[tokio::test]
async fn a_relay_without_the_ingress_role_is_the_last_one() {
    let (first, error) = extended(|config| config.roles = vec![Role::Egress], |_, _| ()).await;
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
    assert_eq!(not_extended(&first), 1);
    echoes(&client(path([&first]), How::Quic), &Terms::default(), 1000).await;
}

#[tokio::test]
async fn a_relay_that_is_not_there_is_told_as_such() {
    let (first, error) = extended(|_| (), |second, _| second.addresses = vec![nobody()]).await;
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
    assert_eq!(not_extended(&first), 1);
}
