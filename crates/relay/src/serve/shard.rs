//! One shard: a thread with a current-thread runtime, its own UDP socket and its own TCP listener, all on one port.
//! The kernel gives each client's packets to one shard, also after the client has moved (see `link::server`).
//! Nothing crosses from shard to shard but the limits and the counters.

use std::{net::SocketAddr, sync::Arc, thread};

use hoplite_crypto::Certificates;
use hoplite_link::server::{self, Bound};
use tokio::runtime::{Builder, Runtime};

use super::{Alive, Shared, quic, tls};
use crate::{config::Config, handle::StartError};

/// All sockets of a relay, one group for each configured address.
pub(crate) struct Sockets {
    pub(crate) addresses: Vec<SocketAddr>,
    groups: Vec<Bound>,
}

/// Opens all sockets.
pub(crate) fn bind(config: &Config, certificates: &Arc<Certificates>) -> Result<Sockets, StartError> {
    let mut sockets = Sockets {
        addresses: Vec::new(),
        groups: Vec::new(),
    };
    for address in &config.listen {
        let failed = |source| StartError::Listen {
            address: *address,
            source,
        };
        let bound = server::bind(*address, config.limits.threads()).map_err(failed)?;
        sockets.addresses.push(bound.address());
        sockets.groups.push(bound);
    }
    Ok(sockets)
}

/// A runtime for one thread.
pub(crate) fn runtime() -> Result<Runtime, StartError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(StartError::Thread)
}
