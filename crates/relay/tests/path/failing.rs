//! Relays that are not there, are not who they should be, refuse, or go away.

use std::{sync::Arc, time::Duration};

use hoplite_crypto::{Token, Trust};
use hoplite_masque::{Config, Path};
use hoplite_overlay::{Error, ErrorKind, Overlay, Reason, Terms};
use hoplite_relay::{Relay, config::TokenEntry};
use hoplite_testing::{
    path::{direct, known},
    relay::{config, identity, relay},
};
use hoplite_wire::Target;

async fn opened(path: &Path, target: &str) -> Result<(), Error> {
    let target: Target = target.parse().expect("a target");
    let terms = Terms::default().within(Duration::from_secs(30));
    path.open_stream(&target, &terms).await.map(drop)
}

fn path(relays: Vec<hoplite_masque::Relay>) -> Path {
    Path::new(relays, &direct(), &Arc::new(Config::default())).expect("a path")
}

#[tokio::test]
async fn a_first_relay_that_is_not_there_is_the_entry() {
    let mut nobody = known("amber", &relay(|_| {}));
    nobody.peer.address = "127.0.0.1:1".parse().expect("an address");
    let error = opened(&path(vec![nobody]), "127.0.0.1:9")
        .await
        .expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::EntryUnreachable, "{error:?}");
    assert!(error.to_string().contains("amber"), "{error}");
}

#[tokio::test]
async fn a_second_relay_that_is_not_there_is_the_path() {
    let first = relay(|_| {});
    let mut nobody = known("birch", &first);
    nobody.peer.address = "127.0.0.1:1".parse().expect("an address");
    let error = opened(&path(vec![known("amber", &first), nobody]), "127.0.0.1:9")
        .await
        .expect_err("nobody");
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error:?}");
    assert!(error.to_string().contains("birch"), "{error}");
}

#[tokio::test]
async fn a_relay_with_another_key_is_refused() {
    let (one, other) = (relay(|_| {}), relay(|_| {}));
    for wrong_hop in 0..2 {
        let mut relays = vec![known("amber", &one), known("birch", &other)];
        relays[wrong_hop].peer.trust = Trust::Pins(vec![identity().pin()]);
        let error = opened(&path(relays), "127.0.0.1:9")
            .await
            .expect_err("another key");
        assert_eq!(error.reason(), Some(Reason::Identity), "{error:?}");
    }
}

#[tokio::test]
async fn a_wrong_token_is_said_to_be_one() {
    let asking = relay(|config| {
        config.auth.token = vec![TokenEntry {
            name: "right".into(),
            token: Some("the right token".to_owned().into()),
            file: None,
        }];
    });
    let mut with = known("amber", &asking);
    with.token = Some(Token::new("a wrong token".into()));
    let error = opened(&path(vec![with]), "127.0.0.1:9")
        .await
        .expect_err("a wrong token");
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Forbidden, Some(Reason::Authentication))
    );
}

#[tokio::test]
async fn what_policy_forbids_is_forbidden_by_name_and_by_address() {
    let strict = relay(|config| config.egress.allow.clear());
    let path = path(vec![known("amber", &strict)]);
    for target in [
        "169.254.169.254:80",
        "localhost:80",
        "127.0.0.1:80",
        "10.0.0.1:80",
    ] {
        let error = opened(&path, target).await.expect_err("forbidden");
        assert_eq!(error.kind(), ErrorKind::Forbidden, "{target}: {error:?}");
    }
}

#[tokio::test]
async fn after_a_relay_has_gone_and_come_back_flows_open_again() {
    let identity = identity();
    let mut settings = config();
    let first = Relay::start(&settings, &identity).expect("started");
    let path = path(vec![known("amber", &first)]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("bound");
    let target = listener.local_addr().expect("bound").to_string();
    opened(&path, &target).await.expect("opened");
    settings.listen = first.addresses().to_vec();
    first.drain(Duration::ZERO).await;
    let error = opened(&path, &target).await.expect_err("the relay is gone");
    assert_eq!(error.kind(), ErrorKind::EntryUnreachable, "{error:?}");
    let _again = Relay::start(&settings, &identity).expect("started again");
    opened(&path, &target).await.expect("opened again");
}
