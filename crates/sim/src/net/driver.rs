//! Moves packets: sleeps until the next one is somewhere, and hands over what has come. One task for the whole network.

use std::time::Duration;

use tokio::time::sleep_until;

use super::{Fate, Happens, Network, Packet, Payload, Port, node, size};

/// Packets handed over before those who received them have their turn.
const BUDGET: usize = 256;

/// Runs for ever.
pub(super) async fn run(network: Network) {
    loop {
        let sooner = network.0.sooner.notified();
        match network.turn() {
            Some(next) if next <= network.now() => tokio::task::yield_now().await,
            Some(next) => tokio::select! {
                biased;
                () = sooner => {}
                () = sleep_until(network.0.began + Duration::from_nanos(next)) => {}
            },
            None => sooner.await,
        }
    }
}

impl Network {
    /// Hands over what has come; answers with when the next packet is somewhere.
    fn turn(&self) -> Option<u64> {
        let now = self.now();
        for _ in 0..BUDGET {
            let happens = self.state().happens(now);
            match happens {
                Some(Happens::Arrives(port, packet)) => self.hand(&*port, packet),
                Some(Happens::Rings(port)) => port.ring(),
                Some(Happens::Refuses(packet)) => self.refuse(&packet),
                None => break,
            }
        }
        let mut state = self.state();
        let next = state.agenda.next();
        state.wakes = next;
        next
    }

    fn hand(&self, port: &dyn Port, packet: Packet) {
        let (to, size) = (node(packet.to.ip()), size(&packet));
        let fate = match port.receive(packet) {
            true => Fate::Received,
            false => Fate::Overfull,
        };
        self.state().books.end(fate, to, size);
    }

    /// Nobody has a stream there: who thinks so is told.
    fn refuse(&self, packet: &Packet) {
        if let Payload::Tcp(segment) = &packet.payload
            && let Some(payload) = segment.refused().map(Payload::Tcp)
        {
            let (from, to) = (packet.to, packet.from);
            self.send(Packet { from, to, payload });
        }
    }
}
