//! A client that says what it likes, cell by cell: it has the layers of a circuit, and keeps to nothing.

use std::{future::poll_fn, sync::Arc};

use bytes::BytesMut;
use hoplite_crypto::onion::{
    CircuitNonce,
    layers::{ClientLayers, RelayCrypto},
    ntor3,
};
use hoplite_onion::{
    channel::{self, Channel},
    path,
};
use hoplite_testing::soon;
use hoplite_wire::cell::{
    BODY, Cell, CircuitId, Command,
    circuit::{ClientExtensions, Create2, Created2, DestroyReason, Extend2, HandshakeType},
    relay::{self, Format, Header, Message, SendmeTag, StreamId},
};

/// One circuit of it.
pub(crate) struct Raw {
    pub(crate) circuit: channel::CircuitEnds,
    pub(crate) layers: ClientLayers,
    /// Of the last hop.
    pub(crate) nonce: CircuitNonce,
}

/// What it hears.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A message of a hop, counted from 0, with the tag of its cell.
    Message(usize, relay::RelayCommand, StreamId, Vec<u8>, SendmeTag),
    Destroyed(DestroyReason),
    /// The channel has closed, or the circuit without a word.
    Gone,
}

pub(crate) async fn send(circuit: &mut channel::CircuitEnds, cell: Cell) {
    let ready = soon(poll_fn(|cx| circuit.sender.poll_ready(cx))).await;
    if ready.is_ok() {
        circuit.sender.send(cell);
        let _unless_ended = soon(poll_fn(|cx| circuit.sender.poll_flush(cx))).await;
    }
}

pub(crate) async fn answer(circuit: &mut channel::CircuitEnds) -> Option<Cell> {
    soon(poll_fn(|cx| circuit.receiver.poll_recv(cx))).await
}

/// The body of a relay cell in the clear.
pub(crate) fn body(command: relay::RelayCommand, stream: u16, data: &[u8]) -> BytesMut {
    body_of(Format::V0, command, stream, data)
}

pub(crate) fn body_of(
    format: Format,
    command: relay::RelayCommand,
    stream: u16,
    data: &[u8],
) -> BytesMut {
    let mut body = BytesMut::zeroed(BODY);
    let fixed = body.as_mut().try_into().expect("a body");
    relay::write(format, fixed, command, StreamId(stream), data).expect("fits");
    body
}

pub(crate) fn data_of(message: &Message<'_>) -> Vec<u8> {
    let mut data = Vec::new();
    message.write(&mut data);
    data
}

impl Raw {
    /// A circuit of one hop.
    pub(crate) async fn new(
        channel: &dyn Channel,
        first: &path::Relay,
        congestion_control: bool,
    ) -> Self {
        let asked = ClientExtensions {
            congestion_control,
            ..ClientExtensions::default()
        };
        Self::asking(channel, first, &asked).await
    }

    /// A circuit of one hop that is asked for this.
    pub(crate) async fn asking(
        channel: &dyn Channel,
        first: &path::Relay,
        asked: &ClientExtensions,
    ) -> Self {
        let mut circuit = channel.open().await.expect("opens");
        let (state, skin) = skin_asking(first, asked);
        let create = Create2 {
            handshake: HandshakeType::NTOR_V3,
            data: &skin,
        };
        let cell = Cell::new(circuit.id, Command::CREATE2, |body| create.write(body));
        send(&mut circuit, cell.expect("fits")).await;
        let created = answer(&mut circuit).await.expect("an answer");
        assert_eq!(created.command, Command::CREATED2);
        let created = Created2::parse(&created.body).expect("CREATED2");
        let (_, seed) = state.finish(created.data).expect("the relay's answer");
        let mut layers = ClientLayers::new();
        let crypto = crypto_of(asked);
        layers.push(&seed, crypto).expect("a layer");
        Self {
            circuit,
            layers,
            nonce: CircuitNonce::draw(&seed, crypto).expect("a nonce"),
        }
    }

    /// Another hop.
    pub(crate) async fn extend(&mut self, to: &path::Relay, congestion_control: bool) {
        let asked = ClientExtensions {
            congestion_control,
            ..ClientExtensions::default()
        };
        self.extend_asking(to, &asked).await;
    }

    /// Another hop that is asked for this.
    pub(crate) async fn extend_asking(&mut self, to: &path::Relay, asked: &ClientExtensions) {
        let (state, skin) = skin_asking(to, asked);
        self.ask_to_extend(Command::RELAY_EARLY, to, &skin).await;
        let Heard::Message(_, relay::RelayCommand::EXTENDED2, _, data, _) = self.hear().await
        else {
            panic!("not extended");
        };
        let created = Created2::parse(&data).expect("EXTENDED2");
        let (_, seed) = state.finish(created.data).expect("the relay's answer");
        let crypto = crypto_of(asked);
        self.layers.push(&seed, crypto).expect("a layer");
        self.nonce = CircuitNonce::draw(&seed, crypto).expect("a nonce");
    }

    pub(crate) async fn ask_to_extend(&mut self, cell: Command, to: &path::Relay, skin: &[u8]) {
        let extend = Extend2 {
            specifiers: to.specifiers(),
            create: Create2 {
                handshake: HandshakeType::NTOR_V3,
                data: skin,
            },
        };
        let mut data = Vec::new();
        extend.write(&mut data);
        let last = self.layers.len() - 1;
        let format = self.layers.format(last);
        let body = body_of(format, relay::RelayCommand::EXTEND2, 0, &data);
        let cell = self.seal(cell, last, body);
        send(&mut self.circuit, cell).await;
    }

    /// A cell as it goes out.
    pub(crate) fn seal(&mut self, command: Command, hop: usize, mut body: BytesMut) -> Cell {
        let fixed = body.as_mut().try_into().expect("a body");
        let sealed = self.layers.encrypt_for(hop, command, fixed);
        sealed.expect("a hop");
        Cell {
            circuit: self.circuit.id,
            command,
            stream: StreamId::CIRCUIT,
            body,
        }
    }

    pub(crate) async fn send(&mut self, cell: Cell) {
        send(&mut self.circuit, cell).await;
    }

    /// Says something to the last hop.
    pub(crate) async fn say(&mut self, command: relay::RelayCommand, stream: u16, data: &[u8]) {
        let last = self.layers.len() - 1;
        let body = body_of(self.layers.format(last), command, stream, data);
        let cell = self.seal(Command::RELAY, last, body);
        self.send(cell).await;
    }

    /// Says something that no hop recognises, as what is for a far end behind the last: its last bit is another.
    pub(crate) async fn say_beyond(&mut self, data: &[u8]) {
        let last = self.layers.len() - 1;
        let content = body(relay::RelayCommand::DATA, 1, data);
        let mut cell = self.seal(Command::RELAY_EARLY, last, content);
        *cell.body.last_mut().expect("a body") ^= 1;
        self.send(cell).await;
    }

    /// What somebody behind the last hop has said by [`Self::say_beyond`].
    pub(crate) async fn hear_from_beyond(&mut self) -> Vec<u8> {
        let mut cell = answer(&mut self.circuit).await.expect("a cell");
        assert_eq!(cell.command, Command::RELAY);
        let fixed = cell.fixed().expect("a body");
        assert_eq!(self.layers.decrypt(fixed), None, "of a hop");
        let header = Header::read(Format::V0, fixed).expect("a message");
        header.data(fixed).expect("data").to_vec()
    }

    pub(crate) async fn tell(&mut self, stream: u16, message: &Message<'_>) {
        self.say(message.command(), stream, &data_of(message)).await;
    }

    pub(crate) async fn hear(&mut self) -> Heard {
        let Some(mut cell) = answer(&mut self.circuit).await else {
            return Heard::Gone;
        };
        match cell.command {
            Command::DESTROY => {
                Heard::Destroyed(DestroyReason::parse(&cell.body).expect("a reason"))
            }
            Command::RELAY => {
                let fixed = cell.fixed().expect("a body");
                let (hop, tag) = self.layers.decrypt(fixed).expect("of a hop");
                let header = Header::read(self.layers.format(hop), fixed).expect("a message");
                let data = header.data(fixed).expect("data").to_vec();
                Heard::Message(hop, header.command, header.stream, data, tag)
            }
            other => panic!("{other:?} towards a client"),
        }
    }

    /// The next thing that is no DATA, SENDME or END of a stream.
    pub(crate) async fn hear_of_the_circuit(&mut self) -> Heard {
        loop {
            match self.hear().await {
                Heard::Message(_, command, stream, ..)
                    if stream != StreamId::CIRCUIT || command == relay::RelayCommand::SENDME => {}
                other => return other,
            }
        }
    }
}

/// A CREATE2's content, and what is kept of it.
pub(crate) fn skin(relay: &path::Relay, congestion_control: bool) -> (ntor3::ClientState, Vec<u8>) {
    let asked = ClientExtensions {
        congestion_control,
        ..ClientExtensions::default()
    };
    skin_asking(relay, &asked)
}

fn skin_asking(relay: &path::Relay, asked: &ClientExtensions) -> (ntor3::ClientState, Vec<u8>) {
    let mut message = Vec::new();
    asked.write(&mut message);
    ntor3::client(&relay.keys, &message).expect("made")
}

fn crypto_of(asked: &ClientExtensions) -> RelayCrypto {
    if asked.subprotocols.is_empty() {
        RelayCrypto::Tor1
    } else {
        RelayCrypto::Cgo
    }
}

/// The id is set by the channel.
pub(crate) fn cell(command: Command, byte: u8) -> Cell {
    let filled = |body: &mut BytesMut| body.extend_from_slice(&[byte; BODY]);
    Cell::new(CircuitId::CHANNEL, command, filled).expect("fits")
}

pub(crate) type Peer = Arc<dyn Channel>;
