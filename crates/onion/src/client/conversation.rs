//! What a client or an onion service tells the last relay of a circuit, and hears of it, until both meet there.
//! [`crate::onion_service`] holds a [`Conversation`]; [`super::driver`] obeys its orders. rend-spec-v3, "The introduction protocol", "The rendezvous
//! protocol".
//!
//! Both queues are bounded. A relay that says more than is listened to has the circuit closed; only introductions, which it passes on for clients,
//! are dropped then: who cannot answer them so fast would not answer them in time.

use std::fmt;

use hoplite_crypto::onion::{CircuitNonce, Seed, hs_ntor};
use hoplite_overlay::Error;
use hoplite_wire::cell::relay::RelayCommand;
use tokio::sync::mpsc::{self, error::TrySendError};

use super::BuiltCircuit;
use crate::{endpoint::Broken, failure, flow_control::Control, path::Relay};

/// Orders that wait for the driver.
const ORDERS: usize = 4;
/// What was heard and waits for whoever listens.
const HEARD: usize = 32;

/// What the driver is to do with a circuit that is built.
pub(super) enum Order {
    /// Say this to the last relay.
    Say(RelayCommand, Vec<u8>),
    /// RENDEZVOUS2 is to complete this handshake.
    Await(hs_ntor::ClientState, Control),
    /// Lead the circuit on to this relay; it is built again when it is there.
    LeadOn(Relay),
    /// Say this RENDEZVOUS1; the client of this seed is one hop more at once, before it can say anything.
    MeetClient(Vec<u8>, Seed, Control),
}

/// What the driver has heard.
pub(crate) enum Heard {
    /// The circuit has all relays that it knows of; this binds messages to the last of them.
    Built(CircuitNonce),
    /// The last relay has said this.
    Message(RelayCommand, Vec<u8>),
    /// The onion service has come; streams can be opened.
    Met,
}

/// The driver's end.
pub(super) struct Talk {
    pub(super) orders: mpsc::Receiver<Order>,
    heard: mpsc::Sender<Heard>,
}

/// The other end, while the circuit is being built.
pub(super) struct Listening {
    orders: mpsc::Sender<Order>,
    heard: mpsc::Receiver<Heard>,
}

/// A circuit to a relay that knows an onion service or a client of it. Dropped, it is closed.
pub(crate) struct Conversation {
    circuit: BuiltCircuit,
    with: Listening,
    nonce: CircuitNonce,
}

/// Both ends.
pub(super) fn pair() -> (Listening, Talk) {
    let (order, orders) = mpsc::channel(ORDERS);
    let (hear, heard) = mpsc::channel(HEARD);
    let orders_end = Talk {
        orders,
        heard: hear,
    };
    let listening = Listening {
        orders: order,
        heard,
    };
    (listening, orders_end)
}

impl Talk {
    /// Passes on what was heard.
    ///
    /// # Errors
    /// The relay says more than is listened to.
    pub(super) fn hear(&self, heard: Heard) -> Result<(), Broken> {
        match self.heard.try_send(heard) {
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            Err(TrySendError::Full(Heard::Message(RelayCommand::INTRODUCE2, _))) => Ok(()),
            Err(TrySendError::Full(Heard::Message(command, _))) => Err(Broken::Unexpected(command)),
            Err(TrySendError::Full(_)) => Ok(()),
        }
    }
}

impl Listening {
    /// With the circuit, which is built.
    ///
    /// # Errors
    /// It has closed already.
    pub(super) async fn over(mut self, circuit: BuiltCircuit) -> Result<Conversation, Error> {
        match self.heard.recv().await {
            Some(Heard::Built(nonce)) => Ok(Conversation {
                circuit,
                with: self,
                nonce,
            }),
            _ => Err(closed(&circuit)),
        }
    }
}

impl Conversation {
    /// The circuit.
    pub(crate) fn circuit(&self) -> &BuiltCircuit {
        &self.circuit
    }

    /// What binds a message to the last relay.
    pub(crate) fn nonce(&self) -> &CircuitNonce {
        &self.nonce
    }

    /// Says something to the last relay.
    ///
    /// # Errors
    /// The circuit has closed.
    pub(crate) async fn say(&self, command: RelayCommand, data: Vec<u8>) -> Result<(), Error> {
        self.order(Order::Say(command, data)).await
    }

    /// Leads a stem on to the relay that it is to talk to.
    ///
    /// # Errors
    /// The circuit has closed, or is no stem.
    pub(crate) async fn lead_on(mut self, relay: &Relay) -> Result<Self, Error> {
        self.order(Order::LeadOn(relay.clone())).await?;
        match self.hear().await? {
            Heard::Built(nonce) => self.nonce = nonce,
            Heard::Message(said, _) => return Err(failure::broken(Broken::Unexpected(said))),
            Heard::Met => return Err(failure::broken(Broken::UnknownStream)),
        }
        self.circuit.led_on(relay);
        Ok(self)
    }

    /// RENDEZVOUS2 is to complete this handshake, and none that was awaited before. [`Heard::Met`] says that it has.
    ///
    /// # Errors
    /// The circuit has closed.
    pub(crate) async fn await_service(
        &self,
        state: hs_ntor::ClientState,
        control: Control,
    ) -> Result<(), Error> {
        self.order(Order::Await(state, control)).await
    }

    /// Says RENDEZVOUS1. The client of this seed is one hop more then: its streams come.
    ///
    /// # Errors
    /// The circuit has closed.
    pub(crate) async fn meet_client(
        &self,
        rendezvous1: Vec<u8>,
        seed: Seed,
        control: Control,
    ) -> Result<(), Error> {
        let order = Order::MeetClient(rendezvous1, seed, control);
        self.order(order).await
    }

    /// What comes next.
    ///
    /// # Errors
    /// Why the circuit has closed.
    pub(crate) async fn hear(&mut self) -> Result<Heard, Error> {
        let heard = self.with.heard.recv().await;
        heard.ok_or_else(|| closed(&self.circuit))
    }

    /// The last relay's answer, which is to be of this command.
    ///
    /// # Errors
    /// Why the circuit has closed; the relay has said something else.
    pub(crate) async fn answer(&mut self, command: RelayCommand) -> Result<Vec<u8>, Error> {
        match self.hear().await? {
            Heard::Message(said, data) if said == command => Ok(data),
            Heard::Message(said, _) => Err(failure::broken(Broken::Unexpected(said))),
            Heard::Built(_) | Heard::Met => Err(failure::broken(Broken::Unexpected(command))),
        }
    }

    /// Ends it, and keeps the circuit for streams.
    pub(crate) fn into_circuit(self) -> BuiltCircuit {
        self.circuit
    }

    async fn order(&self, order: Order) -> Result<(), Error> {
        let ordered = self.with.orders.send(order).await;
        ordered.map_err(|_| closed(&self.circuit))
    }
}

fn closed(circuit: &BuiltCircuit) -> Error {
    let endpoint = circuit.shared().lock();
    endpoint.closed().cloned().unwrap_or_else(failure::retired)
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("onion::Conversation")
    }
}
