//! Paths of nested hops over relays on loopback.

use std::sync::Arc;

use hoplite_crypto::Trust;
use hoplite_link::Peer;
use hoplite_masque::{Config, Path, Relay as Known};
use hoplite_overlay::{Direct, Overlay};
use hoplite_relay::Handle;
use hoplite_wire::Target;

use crate::relay::relays;

/// The device's own sockets, below the first hop.
pub fn direct() -> Arc<dyn Overlay> {
    Arc::new(Direct::new())
}

/// Where a relay is, and its key.
pub fn peer(name: &str, relay: &Handle) -> Peer {
    Peer {
        name: name.to_owned(),
        address: Target::from(relay.addresses()[0]),
        trust: Trust::Pins(vec![relay.pin()]),
    }
}

/// What a client knows of a relay.
pub fn known(name: &str, relay: &Handle) -> Known {
    Known {
        peer: peer(name, relay),
        token: None,
        tokens: None,
        template: None,
        mode: None,
    }
}

/// The path through `relays`, which it calls `r0`, `r1` and so on.
pub fn through<'a>(
    relays: impl IntoIterator<Item = &'a Handle>,
    below: &Arc<dyn Overlay>,
    client: Config,
) -> Path {
    let numbered = relays.into_iter().enumerate();
    let known = numbered.map(|(n, relay)| known(&format!("r{n}"), relay));
    Path::new(known.collect(), below, &Arc::new(client)).expect("a path")
}

/// A path of this many hops, and its relays: they stop when they are dropped.
pub fn build(hops: usize, below: &Arc<dyn Overlay>, client: Config) -> (Path, Vec<Handle>) {
    let relays = relays(hops);
    (through(&relays, below, client), relays)
}
