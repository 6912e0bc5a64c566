//! What the addresses mean that programs were told: each is itself.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hoplite_wire::Target;
use serde::Deserialize;
use tokio::time::Instant;

/// `[dns]`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {}

/// What an address of a packet means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A name, or the address itself, with the port.
    Target(Target),
    /// An address that meant a name once.
    #[expect(dead_code, reason = "no name is handed out yet")]
    Expired,
}

/// All mappings.
#[derive(Debug)]
pub(crate) struct Names;

/// Keeps the mapping of a flow's address for as long as the flow lasts.
#[derive(Debug)]
pub(crate) struct Hold;

impl Names {
    pub(crate) fn new(_: &Config, _: Instant) -> Self {
        Self
    }

    /// What `address` means.
    pub(crate) fn meaning(&self, address: SocketAddr, _: Instant) -> Meaning {
        Meaning::Target(address.into())
    }

    /// Keeps what `ip` means; `None` if it means no name.
    pub(crate) fn hold(self: &Arc<Self>, _: IpAddr, _: Instant) -> Option<Hold> {
        None
    }

    /// A flow to `ip` failed because its name does not exist.
    pub(crate) fn fail(&self, _: IpAddr, _: Instant) {}
}
