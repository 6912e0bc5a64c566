//! Serves the circuits that a peer opens on one channel, each as a task of its own.
//! The binary calls it for every channel, dialled or accepted. tor-spec "Creating circuits".

use std::sync::{Arc, atomic::Ordering::Relaxed};

use hoplite_wire::cell::circuit::DestroyReason;
use tokio::{task::JoinSet, time::Instant};

use super::{Bucket, Relay, driver::Driver};
use crate::channel::{Channel, Circuit};

/// Serves until the channel has closed and its circuits have ended.
pub async fn serve(channel: Arc<dyn Channel>, relay: Arc<Relay>) {
    let (most, per_second) = relay.config.creates;
    let mut creates = Bucket::new(most, per_second, Instant::now());
    let mut circuits = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = circuits.join_next() => {}
            accepted = channel.accept() => match accepted {
                Some(circuit) => take(circuit, &*channel, &relay, &mut creates, &mut circuits),
                None => break,
            },
        }
    }
    while circuits.join_next().await.is_some() {}
}

fn take(
    circuit: Circuit,
    channel: &dyn Channel,
    relay: &Arc<Relay>,
    creates: &mut Bucket,
    circuits: &mut JoinSet<()>,
) {
    let full = circuits.len() >= relay.config.circuits_per_channel
        || relay.circuits() >= relay.config.circuits;
    if full || !creates.take(Instant::now()) {
        relay.counters.limited.fetch_add(1, Relaxed);
        circuit.sender.destroy(DestroyReason::RESOURCELIMIT);
        return;
    }
    circuits.spawn(Driver::run(circuit, Arc::clone(relay), channel.peer()));
}
