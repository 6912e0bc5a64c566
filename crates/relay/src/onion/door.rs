//! One channel's door: circuits come in within the limits, and at the client's pace. `onion` serves a channel through it.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hoplite_link::channel as link;
use hoplite_onion::{
    channel::{Channel, Circuit, Closed, Kept, Receiver, Sender, Waiting},
    relay::Asker,
};
use hoplite_wire::cell::{BODY, Cell, circuit::DestroyReason};
use tokio::time::{Sleep, sleep};

use crate::{
    limits::{ClientKey, Pace, Permit},
    serve::{Alive, Shared},
};

/// A channel, and what its circuits count as.
pub(super) struct Door {
    pub(super) channel: link::Channel,
    pub(super) client: ClientKey,
    pub(super) shared: Arc<Shared>,
    pub(super) alive: Alive,
}

/// The bandwidth of one direction of a circuit.
struct Toll {
    pace: Pace,
    pause: Option<Pin<Box<Sleep>>>,
}

/// Cells from the peer.
struct Inward {
    receiver: link::Receiver,
    toll: Toll,
    /// The circuit's place among the client's requests.
    _permit: Permit,
}

/// Cells to the peer.
struct Outward {
    sender: link::Sender,
    toll: Toll,
}

impl Door {
    fn admit(&self) -> Result<Permit, DestroyReason> {
        if self.alive.is_draining() {
            return Err(DestroyReason::HIBERNATING);
        }
        self.shared.gate.request(self.client).map_err(|_| {
            self.shared.metrics.limited("circuits");
            DestroyReason::RESOURCELIMIT
        })
    }
}

impl Channel for Door {
    fn open(&self) -> Waiting<'_, Result<Circuit, Closed>> {
        Channel::open(&self.channel)
    }

    fn accept(&self) -> Waiting<'_, Option<Circuit>> {
        Box::pin(async {
            loop {
                let circuit = self.channel.accept().await?;
                match self.admit() {
                    Ok(permit) => return Some(held(circuit, permit)),
                    Err(reason) => circuit.sender.destroy(reason.0),
                }
            }
        })
    }

    fn peer(&self) -> Option<[u8; 32]> {
        Channel::peer(&self.channel)
    }

    fn asker(&self) -> Asker {
        Asker {
            key: self.client.number(),
            known: is_known(&self.channel),
        }
    }

    fn is_closed(&self) -> bool {
        Channel::is_closed(&self.channel)
    }
}

/// Whether whoever is at the other end comes before strangers: it has shown the identity of a relay, as whom was dialled has.
fn is_known(channel: &link::Channel) -> bool {
    channel.peer().is_some()
}

fn held(circuit: link::Circuit, permit: Permit) -> Circuit {
    Circuit {
        id: circuit.id,
        sender: Box::new(Outward {
            sender: circuit.sender,
            toll: Toll::new(&permit),
        }),
        receiver: Box::new(Inward {
            receiver: circuit.receiver,
            toll: Toll::new(&permit),
            _permit: permit,
        }),
    }
}

impl Toll {
    fn new(permit: &Permit) -> Self {
        Self {
            pace: permit.pace(),
            pause: None,
        }
    }

    /// Whether the debt is paid.
    fn poll_paid(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }

    /// A cell has passed.
    fn pay(&mut self) {
        let wait = self.pace.owes(BODY);
        if !wait.is_zero() {
            self.pause = Some(Box::pin(sleep(wait)));
        }
    }
}

impl Receiver for Inward {
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cell>> {
        ready!(self.toll.poll_paid(cx));
        let cell = ready!(self.receiver.poll_recv(cx));
        self.toll.pay();
        Poll::Ready(cell)
    }
}

impl Sender for Outward {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        ready!(self.toll.poll_paid(cx));
        Sender::poll_ready(&mut self.sender, cx)
    }

    fn send(&mut self, cell: Cell) {
        self.toll.pay();
        Sender::send(&mut self.sender, cell);
    }

    fn kept(&self) -> Arc<Kept> {
        Arc::clone(self.sender.kept())
    }

    fn destroy(self: Box<Self>, reason: DestroyReason) {
        self.sender.destroy(reason.0);
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}
