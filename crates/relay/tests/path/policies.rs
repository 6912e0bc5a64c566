//! What the hops of a path agree on with their relays: who acknowledges, and who controls congestion.

use hoplite_masque::{Acks, Config as ClientConfig, Path};
use hoplite_relay::Handle;
use hoplite_testing::{
    path::{direct, through},
    relay::{config, start},
    soon,
};
use hoplite_wire::tuning::{AckPolicy, TuningRequest};

fn path(relays: &[Handle], request: TuningRequest) -> Path {
    let mut config = ClientConfig::default();
    let (up, down) = (request.up, request.down);
    config.acks = Acks { up, down };
    config.acks_after = request.after;
    config.congestion = request.congestion;
    through(relays, &direct(), config)
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
                if agreed.up != AckPolicy::Stack {
                    return agreed;
                }
                tokio::task::yield_now().await;
            }
        };
        let now = soon(heard).await;
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
    let relays = [config(), strict, fixed.clone(), config()].map(|config| start(&config));
    let path = path(&relays, TuningRequest::default());
    assert_eq!(
        agreed(&path).await,
        [
            (AckPolicy::NoAcks, AckPolicy::NoAcks, false),
            (AckPolicy::Auto, AckPolicy::Auto, true),
            (fixed.tunnel.acks, AckPolicy::NoAcks, true),
            (AckPolicy::Auto, AckPolicy::Auto, false),
        ]
    );
}
