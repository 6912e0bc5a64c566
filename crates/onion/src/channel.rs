//! What this room asks of a channel to one relay: circuits that are opened and accepted, and cells that are sent and received on each.
//! [`hoplite_channel::Channel`] is the real one ([`Linked`]); [`memory`] is one inside the process. tor-spec "Channels".

pub mod memory;

pub use hoplite_channel::{CircuitBacklog, How, Origin, Standing};

use std::{
    fmt,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hoplite_overlay::{Error, ErrorKind, Terms};
use hoplite_wire::{
    Target,
    cell::{Cell, CircuitId, circuit::DestroyReason},
};

use crate::{path::Relay, relay::Requester};

/// Something that is waited for.
pub type Waiting<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The channel, or this circuit of it, takes no more cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the channel is closed")]
pub struct Closed;

/// One channel to one relay.
pub trait Channel: fmt::Debug + Send + Sync {
    /// Opens a circuit; nothing is sent before its first cell.
    fn open(&self) -> Waiting<'_, Result<CircuitEnds, Closed>>;

    /// Opens a circuit on behalf of somebody's that is to go on here: where places are scarce, everybody has his share of them.
    fn open_for<'a>(&'a self, _origin: &'a Origin) -> Waiting<'a, Result<CircuitEnds, Closed>> {
        self.open()
    }

    /// The next circuit that the peer opens; `None` when the channel has closed.
    fn accept(&self) -> Waiting<'_, Option<CircuitEnds>>;

    /// The peer's Ed25519 identity; `None` for a client, which has none.
    fn peer(&self) -> Option<[u8; 32]>;

    /// Whose circuits the peer's are, to the limits of a relay. By default each channel is somebody's of its own, and relays are known.
    fn requester(&self) -> Requester {
        let place = std::ptr::from_ref(self).cast::<()>().addr();
        Requester {
            key: u64::try_from(place).unwrap_or(0),
            known: self.peer().is_some(),
        }
    }

    /// A place for one more stream to a target, or a look-up, of the peer's; it is held as long as that is served. `None`: there are too many.
    fn admit_stream(&self) -> Option<Box<dyn AdmittedStream>> {
        Some(Box::new(()))
    }

    /// Whether it has closed.
    fn is_closed(&self) -> bool;

    /// Whether what is new should go over it. By default it does, as long as it has not closed.
    fn standing(&self) -> Standing {
        Standing::default()
    }
}

/// What a name is looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUp {
    /// Its addresses are asked for.
    Resolve,
    /// A stream is to be opened to it.
    Connect,
}

/// A stream's place among those of its client.
pub trait AdmittedStream: Send + Sync {
    /// A place to look a name up now, among its client's; it is held until the answer is there. `None`: there are too many.
    fn look_up(&self, _purpose: LookUp) -> Option<Box<dyn Send + Sync>> {
        Some(Box::new(()))
    }

    /// A UDP port of this host, among its client's; it is held as long as the UDP stream. `None`: there are too many.
    fn udp_port(&self) -> Option<Box<dyn Send + Sync>> {
        Some(Box::new(()))
    }
}

impl AdmittedStream for () {}

/// Finds or makes the channel to a relay; there is one for each relay.
pub trait Dialer: fmt::Debug + Send + Sync {
    /// The channel to `relay`, whose identities have been checked.
    fn channel<'a>(&'a self, relay: &'a Relay) -> Waiting<'a, Result<Arc<dyn Channel>, Error>>;

    /// The same on behalf of somebody who names it, and has his share of all dials to relays that nobody knows.
    fn channel_for<'a>(
        &'a self,
        relay: &'a Relay,
        _requester: Requester,
    ) -> Waiting<'a, Result<Arc<dyn Channel>, Error>> {
        self.channel(relay)
    }
}

/// One circuit of a channel. Dropping both ends gives the id back, and tells the peer if nothing else did.
pub struct CircuitEnds {
    /// Its id on this channel.
    pub id: CircuitId,
    /// Towards the peer.
    pub sender: Box<dyn Sender>,
    /// From the peer.
    pub receiver: Box<dyn Receiver>,
}

/// Takes the cells of one circuit, a bounded number ahead of what has left.
pub trait Sender: Send {
    /// Whether it takes one more cell.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>>;

    /// Takes it, and sets its circuit; without [`Self::poll_ready`] before, it may be lost. It leaves at [`Self::poll_flush`] at the latest.
    fn send(&mut self, cell: Cell);

    /// Whether the channel has what was sent. Whoever has sent, or waits for something else, asks: it is woken when the channel takes more, and when the
    /// circuit ends. By default the channel has it at once.
    fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        Poll::Ready(Ok(()))
    }

    /// Where its holder counts what it keeps for the circuit, so that the channel knows. By default nobody does.
    fn backlog(&self) -> Arc<CircuitBacklog> {
        Arc::default()
    }

    /// Whether the peer says of each circuit how much it takes, so that one that it does not pass on waits here and holds back no other, as over QUIC; or
    /// takes all that comes, as over TLS.
    fn has_backpressure(&self) -> bool;

    /// Whose circuit it is, where that is known: it counts when the circuit is to go on. By default nobody's.
    fn origin(&self) -> Option<Origin> {
        None
    }

    /// Ends the circuit at once: DESTROY goes before what is queued, which is thrown away.
    fn destroy(self: Box<Self>, reason: DestroyReason);
}

/// Hands out the cells of one circuit.
pub trait Receiver: Send {
    /// The next cell; `None` when the channel has closed, or the peer has dropped the circuit.
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cell>>;
}

impl fmt::Debug for CircuitEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitEnds").finish_non_exhaustive()
    }
}

/// Addresses of one relay that are tried, one after the other.
const ADDRESSES: usize = 4;
/// How long an address may take while there is another; the last has as long as the link gives it.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known of how relays are dialled.
pub trait Carriers: Send + Sync {
    /// Over what the relay of this Ed25519 identity is dialled there.
    fn how(&self, identity: &[u8; 32], address: SocketAddr) -> How;
}

/// All relays alike.
impl Carriers for How {
    fn how(&self, _: &[u8; 32], _: SocketAddr) -> How {
        *self
    }
}

/// Channels to relays, one for each, dialled when they are first needed.
pub struct Linked {
    channels: hoplite_channel::Channels,
    carriers: Arc<dyn Carriers>,
}

impl Linked {
    /// Takes them from `channels`, and has new ones dialled as `carriers` says, each time anew.
    pub fn new(channels: hoplite_channel::Channels, carriers: impl Carriers + 'static) -> Self {
        let carriers = Arc::new(carriers);
        Self { channels, carriers }
    }

    async fn dial(
        &self,
        relay: &Relay,
        address: SocketAddr,
        (who, terms): (Option<u64>, Terms),
    ) -> Result<hoplite_channel::Channel, Error> {
        let whom = hoplite_channel::Whom {
            name: relay.name.to_string(),
            address: Target::from(address),
            identity: Some(relay.keys.ed25519),
            rsa: relay.rsa.then_some(relay.keys.rsa_id),
        };
        let how = self.carriers.how(&relay.keys.ed25519, address);
        Box::pin(self.channels.get_for(who, &whom, how, &terms)).await
    }

    async fn find(&self, relay: &Relay, who: Option<u64>) -> Result<Arc<dyn Channel>, Error> {
        let doing = "dialling a relay without an address";
        let mut failed = Error::new(ErrorKind::PathFailed, doing);
        let addresses = relay.addresses.iter().take(ADDRESSES).enumerate();
        let most = relay.addresses.len().min(ADDRESSES);
        for (number, address) in addresses {
            let terms = if number + 1 == most {
                Terms::default()
            } else {
                Terms::default().within(ADDRESS_TIMEOUT)
            };
            match self.dial(relay, *address, (who, terms)).await {
                Ok(channel) => return Ok(Arc::new(channel) as Arc<dyn Channel>),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

impl Dialer for Linked {
    fn channel<'a>(&'a self, relay: &'a Relay) -> Waiting<'a, Result<Arc<dyn Channel>, Error>> {
        Box::pin(self.find(relay, None))
    }

    fn channel_for<'a>(
        &'a self,
        relay: &'a Relay,
        requester: Requester,
    ) -> Waiting<'a, Result<Arc<dyn Channel>, Error>> {
        Box::pin(self.find(relay, Some(requester.key)))
    }
}

impl Channel for hoplite_channel::Channel {
    fn open(&self) -> Waiting<'_, Result<CircuitEnds, Closed>> {
        Box::pin(async {
            Self::open(self)
                .await
                .map(CircuitEnds::from)
                .map_err(|_| Closed)
        })
    }

    fn open_for<'a>(&'a self, origin: &'a Origin) -> Waiting<'a, Result<CircuitEnds, Closed>> {
        Box::pin(async {
            Self::open_for(self, origin)
                .await
                .map(CircuitEnds::from)
                .map_err(|_| Closed)
        })
    }

    fn accept(&self) -> Waiting<'_, Option<CircuitEnds>> {
        Box::pin(async { Self::accept(self).await.map(CircuitEnds::from) })
    }

    fn peer(&self) -> Option<[u8; 32]> {
        Self::peer(self).map(|peer| peer.ed25519)
    }

    fn is_closed(&self) -> bool {
        !self.is_open()
    }

    fn standing(&self) -> Standing {
        Self::standing(self).clone()
    }
}

impl From<hoplite_channel::Circuit> for CircuitEnds {
    fn from(circuit: hoplite_channel::Circuit) -> Self {
        Self {
            id: circuit.id,
            sender: Box::new(circuit.sender),
            receiver: Box::new(circuit.receiver),
        }
    }
}

impl Sender for hoplite_channel::Sender {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        Self::poll_ready(self, cx).map_err(|_| Closed)
    }

    fn send(&mut self, cell: Cell) {
        // What is not taken any more belongs to a circuit that has ended, as the next `poll_ready` says.
        Self::send(self, cell).ok();
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        Self::poll_flush(self, cx).map_err(|_| Closed)
    }

    fn backlog(&self) -> Arc<CircuitBacklog> {
        Arc::clone(Self::backlog(self))
    }

    fn has_backpressure(&self) -> bool {
        Self::has_backpressure(self)
    }

    fn destroy(self: Box<Self>, reason: DestroyReason) {
        Self::destroy(*self, reason.0);
    }
}

impl Receiver for hoplite_channel::Receiver {
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cell>> {
        Self::poll_recv(self, cx)
    }
}

impl fmt::Debug for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linked").finish_non_exhaustive()
    }
}
