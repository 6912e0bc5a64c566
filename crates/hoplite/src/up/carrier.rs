//! What carries the traffic of `hoplite up`: the path of the file on marked sockets, and the way past it for excluded names.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::join_all;
use hoplite_overlay::{Direct, Overlay, Terms};
use hoplite_wire::{Host, HostName};

use super::{
    numbers::MARK,
    remembering::Remembering,
    split::{Split, past},
};
use crate::{
    client::overlay::{self, Carried, Ground},
    config::client::Client,
    errors::Failure,
    qlog,
};

/// How long the names of relays may take before anything is taken over.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a path at rest is looked at: seldom, for the kernel tells when the network changes, and an idle device should sleep.
const REST: Duration = Duration::from_secs(60);

/// Looks up the names of relays while the system can still be asked.
pub(super) async fn names(
    client: &Client,
    servers: &[SocketAddr],
    asks_system: bool,
) -> Arc<Remembering> {
    let names = Remembering::default();
    names.ask(servers);
    if asks_system {
        let first = first_relays(client);
        join_all(first.into_iter().map(|name| learn(&names, name))).await;
    }
    Arc::new(names)
}

async fn learn(names: &Remembering, name: HostName) {
    let terms = Terms::default().within(PATIENCE);
    // What cannot be found now is asked for again when it is dialled.
    if let Ok(addresses) = Direct::new().resolve(name.as_str(), &terms).await {
        names.learn(name, addresses);
    }
}

/// Those of the relays that may be the first of a path and are given by name.
fn first_relays(client: &Client) -> Vec<HostName> {
    let config = &client.config;
    let first = config.path.first();
    let may_be_first = |name: &String| first.is_none_or(|first| first == name);
    let relays = config
        .relay
        .iter()
        .filter(|relay| may_be_first(&relay.name));
    let name = |relay: &crate::config::client::Relay| match &relay.address.host {
        Host::Name(name) => Some(name.clone()),
        Host::Ip(_) => None,
    };
    relays.filter_map(name).collect()
}

/// The path.
pub(super) fn carried(
    client: &Client,
    recording: &qlog::Recording,
    names: &Arc<Remembering>,
) -> Result<Carried, Failure> {
    let ground = Ground {
        tunnels: Direct::for_tunnels()
            .mark(MARK)
            .resolver(Arc::clone(names) as _),
        flows: past(names),
        rest: Some(REST),
        tokens: false,
    };
    overlay::of(client, recording.watch(), &ground)
}

/// The path, or the fork in front of it.
pub(super) fn split(
    client: &Client,
    carried: &Carried,
    names: &Arc<Remembering>,
) -> Arc<dyn Overlay> {
    let domains = client.config.takeover.exclude.domains.clone();
    match domains.is_empty() {
        true => Arc::clone(&carried.overlay),
        false => {
            let relays = Arc::clone(&carried.overlay);
            Arc::new(Split::new(relays, Arc::clone(names), domains))
        }
    }
}
