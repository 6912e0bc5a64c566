//! What the hops of a path agree on with their relays: who acknowledges, and who controls congestion.

use std::sync::Arc;

use hoplite_link::{AckPolicy, TuningRequest};
use hoplite_masque::{Config as ClientConfig, Path};
use hoplite_overlay::{Overlay, direct::Direct};
use hoplite_relay::{Config, Handle, Relay};

use crate::support::{config, identity, known};

fn relay(config: &Config) -> Handle {
    Relay::start(config, &identity()).expect("started")
}

fn path(relays: &[Handle], wishes: TuningRequest) -> Path {
    let mut config = ClientConfig::default();
    config.link.wishes = wishes;
    let numbered = relays.iter().enumerate();
    let known = numbered.map(|(n, relay)| known(&format!("r{n}"), relay));
    let below: Arc<dyn Overlay> = Arc::new(Direct::new());
    Path::new(known.collect(), &below, &Arc::new(config)).expect("a path")
}

/// What each hop has come to, up and down, once its relay has answered.
async fn agreed(path: &Path) -> Vec<(AckPolicy, AckPolicy, bool)> {
    path.connect().await.expect("connected");
    let mut agreed = Vec::new();
    for hop in path.hops() {
        let heard = async {
            loop {
                let agreed = hop.agreed().expect("QUIC");
                // Alone, a client expects nothing of its relay.
                if agreed.up != AckPolicy::Default {
                    return agreed;
                }
                tokio::task::yield_now().await;
            }
        };
        let now = tokio::time::timeout(std::time::Duration::from_secs(20), heard).await;
        let now = now.expect("the relay's settings");
        agreed.push((now.up, now.down, now.refused.any()));
    }
    agreed
}

#[tokio::test]
async fn only_the_last_hop_acknowledges_unless_a_relay_wants_it_otherwise() {
    let mut strict = config();
    strict.tunnel.allow_no_acks = false;
    let mut fixed = config();
    fixed.tunnel.acks = "1ms".parse().expect("a policy");
    let relays = [config(), strict, fixed.clone(), config()].map(|config| relay(&config));
    let path = path(&relays, TuningRequest::default());
    assert_eq!(
        agreed(&path).await,
        [
            (AckPolicy::Never, AckPolicy::Never, false),
            (AckPolicy::Auto, AckPolicy::Auto, true),
            (fixed.tunnel.acks, AckPolicy::Never, true),
            (AckPolicy::Auto, AckPolicy::Auto, false),
        ]
    );
}
