//! The real channels: [`hoplite_link::channel`], over QUIC or TLS, behind what this room asks of one.
//! The binary hands [`Linked`] to [`crate::Onion`] and to [`crate::relay::Relay`], and each channel to [`crate::relay::serve`].

use std::{
    fmt,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hoplite_link::channel as link;
use hoplite_overlay::{Error, ErrorKind, Terms};
use hoplite_wire::{
    Target,
    cell::{Cell, circuit::DestroyReason},
};

use super::{Channel, Circuit, Closed, Dialer, Kept, Origin, Receiver, Sender, Waiting};
use crate::path::Relay;

/// Addresses of one relay that are tried, one after the other.
const ADDRESSES: usize = 4;
/// How long an address may take while there is another; the last has as long as the link gives it.
const EACH: Duration = Duration::from_secs(5);

/// Channels to relays, one for each, dialled when they are first needed.
pub struct Linked {
    channels: link::Channels,
    how: link::How,
}

impl Linked {
    /// Takes them from `channels`, and has new ones dialled like this.
    pub fn new(channels: link::Channels, how: link::How) -> Self {
        Self { channels, how }
    }

    async fn dial(
        &self,
        relay: &Relay,
        address: SocketAddr,
        terms: Terms,
    ) -> Result<link::Channel, Error> {
        let whom = link::Whom {
            name: relay.name.to_string(),
            address: Target::from(address),
            identity: Some(relay.keys.ed25519),
            rsa: relay.rsa.then_some(relay.keys.rsa_id),
        };
        Box::pin(self.channels.get(&whom, self.how, &terms)).await
    }
}

impl Dialer for Linked {
    fn channel<'a>(&'a self, relay: &'a Relay) -> Waiting<'a, Result<Arc<dyn Channel>, Error>> {
        Box::pin(async move {
            let doing = "dialling a relay without an address";
            let mut failed = Error::new(ErrorKind::PathFailed, doing);
            let addresses = relay.addresses.iter().take(ADDRESSES).enumerate();
            let most = relay.addresses.len().min(ADDRESSES);
            for (number, address) in addresses {
                let terms = match number + 1 == most {
                    true => Terms::default(),
                    false => Terms::default().within(EACH),
                };
                match self.dial(relay, *address, terms).await {
                    Ok(channel) => return Ok(Arc::new(channel) as Arc<dyn Channel>),
                    Err(error) => failed = error,
                }
            }
            Err(failed)
        })
    }
}

impl Channel for link::Channel {
    fn open(&self) -> Waiting<'_, Result<Circuit, Closed>> {
        Box::pin(async {
            Self::open(self)
                .await
                .map(Circuit::from)
                .map_err(|_| Closed)
        })
    }

    fn open_for<'a>(&'a self, origin: &'a Origin) -> Waiting<'a, Result<Circuit, Closed>> {
        Box::pin(async {
            Self::open_for(self, origin)
                .await
                .map(Circuit::from)
                .map_err(|_| Closed)
        })
    }

    fn accept(&self) -> Waiting<'_, Option<Circuit>> {
        Box::pin(async { Self::accept(self).await.map(Circuit::from) })
    }

    fn peer(&self) -> Option<[u8; 32]> {
        Self::peer(self).map(|peer| peer.ed25519)
    }

    fn is_closed(&self) -> bool {
        !self.is_open()
    }
}

impl From<link::Circuit> for Circuit {
    fn from(circuit: link::Circuit) -> Self {
        Self {
            id: circuit.id,
            sender: Box::new(circuit.sender),
            receiver: Box::new(circuit.receiver),
        }
    }
}

impl Sender for link::Sender {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        Self::poll_ready(self, cx).map_err(|_| Closed)
    }

    fn send(&mut self, cell: Cell) {
        // What is not taken any more belongs to a circuit that has ended, as the next `poll_ready` says.
        Self::send(self, cell).ok();
    }

    fn kept(&self) -> Arc<Kept> {
        Arc::clone(Self::kept(self))
    }

    fn destroy(self: Box<Self>, reason: DestroyReason) {
        Self::destroy(*self, reason.0);
    }
}

impl Receiver for link::Receiver {
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cell>> {
        Self::poll_recv(self, cx)
    }
}

impl fmt::Debug for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linked").finish_non_exhaustive()
    }
}
