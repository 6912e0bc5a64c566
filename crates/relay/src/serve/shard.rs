//! One shard: a thread with a current-thread runtime, its own UDP socket and its own TCP listener, all on one port.

use std::{io, net::SocketAddr, sync::Arc};

use hoplite_crypto::Certificates;
use tokio::runtime::{Builder, Runtime};

use super::{Alive, Shared};
use crate::{config::Config, handle::StartError};

/// All sockets of a relay.
pub(crate) struct Sockets {
    pub(crate) addresses: Vec<SocketAddr>,
}

/// Opens all sockets.
pub(crate) fn bind(config: &Config, _: &Arc<Certificates>) -> Result<Sockets, StartError> {
    let address = config.listen.first().copied();
    match address {
        Some(address) => Err(StartError::Listen {
            address,
            source: io::ErrorKind::Unsupported.into(),
        }),
        None => Ok(Sockets {
            addresses: Vec::new(),
        }),
    }
}

/// Starts a thread for each shard.
pub(crate) fn spawn(_: Sockets, _: &Arc<Shared>, _: &Alive) -> Result<(), StartError> {
    Ok(())
}

/// A runtime for one thread.
pub(crate) fn runtime() -> Result<Runtime, StartError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(StartError::Thread)
}
