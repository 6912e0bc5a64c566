//! The path that the file gives: always the same relays, known by their onion keys.

use std::net::SocketAddr;

use hoplite_crypto::onion::RelayKeys;
use hoplite_onion::path::{Fixed, Relay};
use hoplite_wire::Host;

use crate::{
    config::client::{self, Client},
    errors::Failure,
};

/// The path of the file.
pub(super) fn path(client: &Client) -> Result<Fixed, Failure> {
    let named = |name: &String| client.relays.iter().find(|hop| hop.relay.name == *name);
    let relays = client.config.path.iter().filter_map(named);
    let relays: Option<Vec<_>> = relays.map(|hop| relay(&hop.relay)).collect();
    let wrong = || {
        let why = "a relay of the path has no onion key, or no address";
        Failure::new("making a path", why, "run 'hoplite check' on the file")
    };
    relays.map(Fixed).ok_or_else(wrong)
}

/// What circuits need to know of a relay. One that has an RSA identity is Tor's; all of ours speak what Tor's do, and half-closed streams.
fn relay(relay: &client::Relay) -> Option<Relay> {
    let Host::Ip(ip) = relay.address.host else {
        return None;
    };
    let mut keys = RelayKeys::from(relay.onion?);
    keys.rsa_id = relay.rsa.map_or(keys.rsa_id, |rsa| rsa.0);
    Some(Relay {
        // Errors say which hop: they get into the log.
        name: "".into(),
        keys,
        rsa: relay.rsa.is_some(),
        addresses: vec![SocketAddr::new(ip, relay.address.port)],
        ntor3: true,
        congestion_control: true,
        half_close: relay.rsa.is_none(),
        exit: None,
    })
}
