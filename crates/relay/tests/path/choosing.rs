//! Paths that are chosen, and chosen again when a relay fails.

use std::{sync::Arc, time::Duration};

use hoplite_masque::{Candidate, Config, Paths, Wish};
use hoplite_overlay::{Overlay, Terms, direct::Direct};
use hoplite_relay::{Handle, Relay};

use crate::support::{config, identity, known};

fn anything() -> Candidate {
    Candidate {
        ingress: true,
        egress: true,
        ..Candidate::default()
    }
}

#[tokio::test]
async fn a_relay_that_fails_is_replaced_by_another() {
    let start = |_| Relay::start(&config(), &identity()).expect("started");
    let relays: Vec<Handle> = (0..3).map(start).collect();
    let names = ["amber", "birch", "cedar"];
    let named = names.iter().zip(&relays);
    let choice = named.map(|(name, relay)| (known(name, relay), anything()));
    let below: Arc<dyn Overlay> = Arc::new(Direct::new());
    let wish = Wish {
        hops: 2,
        ..Wish::default()
    };
    let mut client = Config::default();
    client.link.broken_after = Duration::from_secs(1);
    let paths = Paths::new(
        choice.collect(),
        below,
        &Arc::new(client),
        wish,
        Box::new(|n| n - 1),
    );
    let paths = paths.expect("a path");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("bound");
    let target = listener.local_addr().expect("bound").into();
    let before = paths.current();
    paths
        .open_stream(&target, &Terms::default())
        .await
        .expect("opened");

    // The highest index stays at the end of a shuffle that swaps nothing: amber and birch are on the path.
    let mut relays = relays.into_iter();
    relays.next().expect("amber").drain(Duration::ZERO).await;
    let terms = Terms::default().within(Duration::from_secs(30));
    paths
        .open_stream(&target, &terms)
        .await
        .expect("opened over another path");
    assert!(!paths.current().is(&before), "the path was not replaced");
}
