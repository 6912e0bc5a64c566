//! Serves the circuits that a peer opens on one channel, each as a task of its own.
//! The binary calls it for every channel, dialled or accepted. tor-spec "Creating circuits".

use std::sync::{Arc, atomic::Ordering::Relaxed};

use hoplite_wire::cell::circuit::DestroyReason;
use tokio::task::JoinSet;

use super::{Relay, driver::Driver};
use crate::channel::{Channel, Circuit};

/// Serves until the channel has closed and its circuits have ended.
pub async fn serve(channel: Arc<dyn Channel>, relay: Arc<Relay>) {
    let mut circuits = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = circuits.join_next() => {}
            accepted = channel.accept() => match accepted {
                Some(circuit) => take(circuit, &channel, &relay, &mut circuits),
                None => break,
            },
        }
    }
    while circuits.join_next().await.is_some() {}
}

fn take(
    circuit: Circuit,
    channel: &Arc<dyn Channel>,
    relay: &Arc<Relay>,
    circuits: &mut JoinSet<()>,
) {
    let full = circuits.len() >= relay.config.circuits_per_channel
        || relay.circuits() >= relay.config.circuits;
    if full || !relay.handshakes.admits(channel.asker()) {
        relay.counters.limited.fetch_add(1, Relaxed);
        circuit.sender.destroy(DestroyReason::RESOURCELIMIT);
        return;
    }
    circuits.spawn(Driver::run(circuit, Arc::clone(relay), Arc::clone(channel)));
}
