//! One client's connection, over either transport: within the limits, a task for each request, and a graceful end.
//! `quic` and `tls` run it once their handshake is done.

use std::{future::Future, sync::Arc};

use hoplite_link::channel::{Channel, Kind};
use hoplite_wire::RequestHead;
use tokio::task::JoinSet;

use super::{Alive, Phase, Shared, exchange::Exchange, handler::Job};
use crate::{
    limits::{ClientKey, Permit},
    metrics::Up,
    onion::Onion,
};

/// What a transport makes of a connection.
pub(crate) trait Session: Send + Sync {
    /// What it makes of a request.
    type Exchange: Exchange;

    /// The next request; `None` when the connection is lost, or drained and without a request.
    fn accept(&self) -> impl Future<Output = Option<(RequestHead, Self::Exchange)>> + Send;
    /// Hears how many requests are open, so that room can be made for more.
    fn busy(&self, _open: usize) {}
    /// Takes no new requests, and tells the client so.
    fn drain(&self);
    /// Ends the connection and all that is on it.
    fn close(&self);
}

/// A client that was let in, and what it occupies.
pub(crate) struct Guest {
    pub(crate) shared: Arc<Shared>,
    client: ClientKey,
    alive: Alive,
    _permit: Permit,
}

impl Guest {
    /// Counts the connection; `None` if there is no room for it.
    pub(crate) fn admit(shared: &Arc<Shared>, client: ClientKey, alive: &Alive) -> Option<Self> {
        let Ok(permit) = shared.gate.connection(client) else {
            shared.metrics.limited("connections");
            return None;
        };
        Some(Self {
            shared: shared.clone(),
            client,
            alive: alive.clone(),
            _permit: permit,
        })
    }

    /// Serves requests until the connection ends. Then the tunnels that are left end as well.
    pub(crate) async fn serve(mut self, session: &impl Session) {
        let mut draining = Some(self.alive.clone());
        let mut requests = JoinSet::new();
        loop {
            tokio::select! {
                incoming = session.accept() => match incoming {
                    Some((head, exchange)) => {
                        drop(requests.spawn(self.job(head, exchange).run()));
                        session.busy(requests.len());
                    }
                    None => break,
                },
                Some(_) = requests.join_next() => (),
                () = begins(&mut draining) => session.drain(),
                () = self.alive.reached(Phase::Stopped) => break,
            }
        }
        session.close();
    }

    /// Serves the circuits of a channel until it ends.
    pub(crate) async fn carry(self, onion: &Onion, channel: Channel) {
        let open = &self.shared.metrics.channels_open;
        let open = match channel.kind() {
            Kind::Quic => &open.quic,
            Kind::Tls => &open.tls,
        };
        let _open = Up::new(open);
        let carried = onion.serve(channel, self.client, &self.shared, self.alive);
        carried.await;
    }

    fn job<E: Exchange>(&self, head: RequestHead, exchange: E) -> Job<E> {
        Job {
            shared: self.shared.clone(),
            client: self.client,
            alive: self.alive.clone(),
            head,
            exchange,
        }
    }
}

/// Resolves once, when the relay begins to drain.
async fn begins(draining: &mut Option<Alive>) {
    match draining {
        Some(alive) => alive.reached(Phase::Draining).await,
        None => std::future::pending().await,
    }
    *draining = None;
}
