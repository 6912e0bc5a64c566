//! A relay that breaks the protocol, and one that bends what passes it: the client's circuit ends with an error that says so.

use std::{future::poll_fn, sync::Arc, time::Duration};

use bytes::BytesMut;
use hoplite_crypto::onion::{OnionKey, OnionKeys, ntor3};
use hoplite_onion::{
    Config, Onion,
    channel::{self, Channel, Dialer, Waiting, memory},
    client::build,
    path::{self, Fixed},
    relay::{self as onion_relay, Forward},
};
use hoplite_overlay::{Error, ErrorKind, Overlay, Reason, Terms};
use hoplite_testing::{soon, targets};
use hoplite_wire::cell::{
    Cell, Command,
    circuit::{Create2, Created2, DestroyReason},
    relay::{
        self, Connected, End, EndReason, Format, Header, Message, Sendme, SendmeTag, StreamId,
        Xoff, Xon,
    },
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    raw::{answer, body, body_of, cell, data_of, send},
    support::{Kind, World, known},
};

/// One attempt, and no circuits ahead: what a liar says is said once.
fn config(congestion_control: bool) -> Config {
    Config {
        attempts: 1,
        ahead: 0,
        congestion_control,
        ..Config::default()
    }
}

/// Everything is dialled here.
#[derive(Debug)]
struct Only(Arc<memory::Memory>);

impl Dialer for Only {
    fn channel<'a>(&'a self, _: &'a path::Relay) -> Waiting<'a, Result<Arc<dyn Channel>, Error>> {
        Box::pin(async { Ok(Arc::clone(&self.0) as Arc<dyn Channel>) })
    }
}

const OFFERS: onion_relay::Offers = onion_relay::Offers {
    congestion_control: true,
    cgo: true,
};

/// An exit that a client has a stream to, and that says what it likes.
struct Liar {
    circuit: channel::CircuitEnds,
    layer: onion_relay::RelayCircuit,
    stream: StreamId,
}

impl Liar {
    async fn meet(end: &memory::Memory, keys: &OnionKeys) -> Self {
        let mut circuit = end.accept().await.expect("a circuit");
        let asked = answer(&mut circuit).await.expect("CREATE2");
        let create = Create2::parse(&asked.body).expect("CREATE2");
        let made = onion_relay::RelayCircuit::create(keys, &create, OFFERS);
        let (layer, _, created) = made.expect("a good handshake");
        let cell = Cell::new(circuit.id, Command::CREATED2, |body| {
            body.extend_from_slice(&created);
        });
        send(&mut circuit, cell.expect("fits")).await;
        let mut liar = Self {
            circuit,
            layer,
            stream: StreamId(0),
        };
        liar.stream = liar.hear().await.stream;
        liar
    }

    async fn hear(&mut self) -> Header {
        let cell = answer(&mut self.circuit).await.expect("a cell");
        let Ok(Forward::Here(mut cell, _)) = self.layer.forward(cell) else {
            panic!("not for this relay");
        };
        let format = self.layer.format();
        Header::read(format, cell.fixed().expect("a body")).expect("a message")
    }

    async fn say(&mut self, command: relay::RelayCommand, stream: u16, data: &[u8]) {
        let body = body_of(self.layer.format(), command, stream, data);
        self.say_in(Command::RELAY, body).await;
    }

    async fn say_in(&mut self, command: Command, body: BytesMut) {
        let mut cell = Cell {
            circuit: self.circuit.id,
            command,
            stream: StreamId::CIRCUIT,
            body,
        };
        self.layer.originate(&mut cell).expect("a body");
        send(&mut self.circuit, cell).await;
    }

    async fn tell(&mut self, stream: u16, message: &Message<'_>) {
        self.say(message.command(), stream, &data_of(message)).await;
    }

    /// Waits until the client gives the circuit up, and gives no reason.
    async fn leaves(mut self) {
        loop {
            match answer(&mut self.circuit).await {
                Some(cell) if cell.command == Command::DESTROY => {
                    let reason = DestroyReason::parse(&cell.body).expect("a reason");
                    assert_eq!(reason, DestroyReason::NONE);
                    return;
                }
                Some(_) => {}
                None => return,
            }
        }
    }
}

/// A client's stream to a liar by tor1, which has said CONNECTED if `open`.
async fn meet(open: bool, congestion_control: bool) -> (Liar, tokio::task::JoinHandle<Error>) {
    let config = Config {
        cgo: false,
        ..config(congestion_control)
    };
    meet_by(open, config).await
}

async fn meet_by(open: bool, config: Config) -> (Liar, tokio::task::JoinHandle<Error>) {
    let secret = OnionKey::fresh_secret().expect("randomness");
    let onion = OnionKey::from_secret(&secret).expect("a key");
    let keys = OnionKeys::new([9; 20], [9; 32], onion, None);
    let (near, far) = memory::pair(Duration::ZERO, None, Some([9; 32]));
    let world = World::new(Duration::ZERO, Kind::default());
    let mut relay = known(&world.relays[0], Kind::default());
    relay.keys = keys.published();
    let paths = Arc::new(Fixed(vec![relay]));
    let onion = Onion::new(Arc::new(Only(near)), paths, config);
    let client = tokio::spawn(async move {
        let target = "198.51.100.9:80".parse().expect("valid");
        let opened = onion.open_stream(&target, &Terms::default()).await;
        let mut stream = match opened {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        let mut bytes = [0; 4096];
        loop {
            match stream.read(&mut bytes).await {
                Ok(0) => panic!("an orderly end"),
                Ok(_) => {}
                Err(error) => return of(&error),
            }
        }
    });
    let mut liar = soon(Liar::meet(&far, &keys)).await;
    if open {
        let stream = liar.stream.0;
        liar.tell(stream, &Message::Connected(Connected(None)))
            .await;
    }
    (liar, client)
}

/// An exit that answers what was not asked: congestion control decides how a circuit behaves, which others can see.
#[tokio::test]
async fn congestion_control_that_was_not_asked_for_ends_the_circuit() {
    // Who has CGO has congestion control.
    for (said, congestion_control, cgo, good) in [
        (&[0][..], false, false, true),
        (&[1, 2, 1, 31], false, false, false),
        (&[0], true, false, true),
        (&[0], true, true, false),
        (&[1, 2, 1, 31], true, true, true),
    ] {
        let secret = OnionKey::fresh_secret().expect("randomness");
        let onion = OnionKey::from_secret(&secret).expect("a key");
        let keys = OnionKeys::new([9; 20], [9; 32], onion, None);
        let (near, far) = memory::pair(Duration::ZERO, None, Some([9; 32]));
        let world = World::new(Duration::ZERO, Kind::default());
        let mut relay = known(&world.relays[0], Kind::default());
        relay.keys = keys.published();
        let said = said.to_vec();
        tokio::spawn(async move {
            let mut circuit = far.accept().await.expect("a circuit");
            let asked = answer(&mut circuit).await.expect("CREATE2");
            let create = Create2::parse(&asked.body).expect("CREATE2");
            let made = ntor3::server(&keys, create.data, |_| Some(said));
            let (reply, _) = made.expect("a good handshake");
            let created = Created2 { data: &reply };
            let cell = Cell::new(circuit.id, Command::CREATED2, |body| created.write(body));
            send(&mut circuit, cell.expect("fits")).await;
            while answer(&mut circuit).await.is_some() {}
        });
        let channel: &dyn Channel = &*near;
        let config = Config {
            cgo,
            ..config(congestion_control)
        };
        let built = soon(build(channel, vec![relay], &config)).await;
        assert_eq!(built.is_ok(), good, "{built:?}");
    }
}

/// It takes no streams of anybody: the client tries another path, as where a relay is gone.
#[tokio::test]
async fn an_exit_that_goes_to_sleep_is_no_refusal_of_the_target() {
    let (mut liar, client) = meet(false, true).await;
    let end = Message::End(End::new(EndReason::HIBERNATING));
    liar.tell(liar.stream.0, &end).await;
    let error = soon(client).await.expect("no panic");
    let said = (error.kind(), error.reason());
    assert_eq!(said, (ErrorKind::PathFailed, Some(Reason::Limit)));
}

fn of(error: &std::io::Error) -> Error {
    Error::from_io(error).expect("the overlay's error").clone()
}

/// The client's stream fails by the path's fault, and the circuit is given up.
async fn is_caught(liar: Liar, client: tokio::task::JoinHandle<Error>, what: &str) {
    let error = soon(client).await.expect("no panic");
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{what}: {error}");
    soon(liar.leaves()).await;
}

#[tokio::test]
async fn what_a_relay_may_not_say_ends_the_circuit() {
    let told = |message: &Message<'_>| (message.command(), data_of(message));
    let target = "198.51.100.9:80".parse().expect("valid");
    let begin = Message::Begin(relay::Begin {
        target,
        flags: relay::Flags::default(),
    });
    // The stream that is there stands for 1.
    for (stream, (command, data)) in [
        (
            0,
            told(&Message::Sendme(Sendme::V1(SendmeTag::Tor1([7; 20])))),
        ),
        (1, told(&Message::Sendme(Sendme::V0))),
        (1, told(&Message::Connected(Connected(None)))),
        (1, told(&begin)),
        (9, (relay::RelayCommand::DATA, b"for nobody".to_vec())),
        (9, told(&Message::End(End::new(EndReason::DONE)))),
        (1, told(&Message::Xoff(Xoff))),
        (1, told(&Message::Xon(Xon { kbps: 9 }))),
        (0, (relay::RelayCommand::EXTENDED2, vec![0, 1, 7])),
        (0, (relay::RelayCommand::EXTEND2, vec![0])),
        (0, (relay::RelayCommand::TRUNCATED, vec![1])),
        (0, (relay::RelayCommand::RENDEZVOUS2, vec![7; 64])),
        (0, (relay::RelayCommand::INTRODUCE2, vec![7; 200])),
        (0, (relay::RelayCommand::INTRODUCE_ACK, vec![0, 0, 0])),
        (
            1,
            (
                relay::RelayCommand::RESOLVED,
                vec![4, 4, 1, 2, 3, 4, 0, 0, 0, 9],
            ),
        ),
    ] {
        let (mut liar, client) = meet(true, true).await;
        let stream = if stream == 1 { liar.stream.0 } else { stream };
        liar.say(command, stream, &data).await;
        is_caught(liar, client, &format!("{command:?}")).await;
    }
}

/// What a relay with CGO may not say, and the client of tor1 could not even be told.
#[tokio::test]
async fn a_message_of_version_1_that_is_malformed_ends_the_circuit() {
    // 516 bytes; no stream.
    for (at, bytes) in [(17, [2, 4]), (19, [0, 0])] {
        let (mut liar, client) = meet_by(true, config(true)).await;
        assert_eq!(liar.layer.format(), Format::V1);
        let stream = liar.stream.0;
        let mut said = body_of(Format::V1, relay::RelayCommand::DATA, stream, b"data");
        said[at..at + 2].copy_from_slice(&bytes);
        liar.say_in(Command::RELAY, said).await;
        is_caught(liar, client, "malformed").await;
    }
    // As if the hop had the digests of tor1.
    let (mut liar, client) = meet_by(true, config(true)).await;
    let sendme = Message::Sendme(Sendme::V1(SendmeTag::Tor1([7; 20])));
    liar.tell(0, &sendme).await;
    is_caught(liar, client, "another tag").await;
}

#[tokio::test]
async fn data_before_connected_end_the_circuit() {
    let (mut liar, client) = meet(false, true).await;
    let stream = liar.stream.0;
    liar.say(relay::RelayCommand::DATA, stream, b"early").await;
    is_caught(liar, client, "early").await;
}

#[tokio::test]
async fn more_than_the_window_from_a_relay_ends_the_circuit() {
    let (mut liar, client) = meet(true, false).await;
    // For a stream that was given up, say: nobody acknowledges it.
    for _ in 0..1100 {
        liar.say(relay::RelayCommand::DATA, 40, b"").await;
    }
    is_caught(liar, client, "the window").await;
}

#[tokio::test]
async fn cells_that_no_relay_sends_to_a_client_end_the_circuit() {
    for command in [
        Command::RELAY_EARLY,
        Command::CREATED2,
        Command::CREATE2,
        Command::RELAY,
        Command::PADDING,
        Command(77),
    ] {
        let (mut liar, client) = meet(true, true).await;
        match command {
            Command::RELAY_EARLY => {
                let drop = body(relay::RelayCommand::DROP, 0, b"");
                liar.say_in(command, drop).await;
            }
            _ => send(&mut liar.circuit, cell(command, 7)).await,
        }
        is_caught(liar, client, &format!("{command:?}")).await;
    }
}

/// A relay that could have cells thrown away could mark a circuit for somebody who watches the client.
#[tokio::test]
async fn padding_that_nobody_negotiated_and_what_no_client_understands_end_the_circuit() {
    const PADDING_NEGOTIATED: relay::RelayCommand = relay::RelayCommand(42);
    for (stream, command) in [
        (0, relay::RelayCommand::DROP),
        (1, relay::RelayCommand::DROP),
        (0, relay::RelayCommand(99)),
        (1, relay::RelayCommand(99)),
        (0, PADDING_NEGOTIATED),
        (1, relay::RelayCommand::DATA),
    ] {
        let (mut liar, client) = meet(true, true).await;
        let stream = if stream == 1 { liar.stream.0 } else { stream };
        liar.say(command, stream, b"").await;
        is_caught(liar, client, &format!("{command:?}")).await;
    }
}

#[tokio::test]
async fn a_stream_that_is_ended_again_and_again_ends_the_circuit() {
    let (mut liar, client) = meet(true, true).await;
    let done = Message::End(End::new(EndReason::DONE));
    let stream = liar.stream.0;
    liar.tell(stream, &Message::Data(b"so much")).await;
    for _ in 0..2 {
        liar.tell(stream, &done).await;
    }
    // The program has read its end in time, or an error.
    soon(liar.leaves()).await;
    drop(client);
}

/// What passes between a client and its guard, bent on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bent {
    Flipped,
    Replayed,
    Swapped,
    Lost,
    Early,
}

/// Passes the cells of every circuit on, and bends those after the first `after` of one direction.
async fn between(
    (outer, inner): (Arc<memory::Memory>, Arc<memory::Memory>),
    bent: Bent,
    forward: bool,
    after: usize,
) {
    while let Some(outside) = outer.accept().await {
        let inside = inner.open().await.expect("opens");
        let channel::CircuitEnds {
            sender: out_sender,
            receiver: out_receiver,
            ..
        } = outside;
        let channel::CircuitEnds {
            sender: in_sender,
            receiver: in_receiver,
            ..
        } = inside;
        let how = |this| (this == forward).then_some((bent, after));
        tokio::spawn(carry(out_receiver, in_sender, how(true)));
        tokio::spawn(carry(in_receiver, out_sender, how(false)));
    }
}

async fn carry(
    mut from: Box<dyn channel::Receiver>,
    mut to: Box<dyn channel::Sender>,
    how: Option<(Bent, usize)>,
) {
    let mut seen = 0;
    let mut held = None;
    while let Some(mut cell) = poll_fn(|cx| from.poll_recv(cx)).await {
        seen += 1;
        let now = how.filter(|(_, after)| seen == after + 1);
        let mut out = vec![];
        match now.map(|(bent, _)| bent) {
            Some(Bent::Flipped) => {
                cell.body[333] ^= 4;
                out.push(cell);
            }
            Some(Bent::Replayed) => out.extend([cell.clone(), cell]),
            Some(Bent::Swapped) => held = Some(cell),
            Some(Bent::Lost) => {}
            Some(Bent::Early) => {
                cell.command = Command::RELAY_EARLY;
                out.push(cell);
            }
            None => {
                out.push(cell);
                out.extend(held.take());
            }
        }
        for cell in out {
            if poll_fn(|cx| to.poll_ready(cx)).await.is_err() {
                return;
            }
            to.send(cell);
        }
    }
}

/// Opens a stream to a target that sends back what it gets, over somebody who bends one cell, and says how it ended.
async fn bend(bent: Bent, forward: bool) -> (World, Error) {
    let world = World::new(Duration::ZERO, Kind::default());
    let target = targets::at(&world.far(), targets::echo).await;
    let (near, outer) = memory::pair(Duration::ZERO, None, Some([1; 32]));
    let (inner, served) = memory::pair(Duration::ZERO, None, Some([1; 32]));
    tokio::spawn(onion_relay::serve(served, Arc::clone(&world.relays[0])));
    // Building takes three cells each way, then come BEGIN and CONNECTED.
    tokio::spawn(between((outer, inner), bent, forward, 8));
    let paths = Arc::new(Fixed(world.path.clone()));
    let onion = Onion::new(Arc::new(Only(near)), paths, config(true));
    let mut stream = soon(onion.open_stream(&target, &Terms::default()))
        .await
        .expect("opens");
    let ended = soon(async {
        let mut bytes = vec![7; 20_000];
        loop {
            if let Err(error) = stream.write_all(&bytes).await {
                return error;
            }
            if let Err(error) = stream.read_exact(&mut bytes).await {
                return error;
            }
        }
    });
    let ended = of(&ended.await);
    (world, ended)
}

#[tokio::test]
async fn a_cell_that_is_bent_on_the_way_ends_the_circuit_at_whichever_end_it_comes_to() {
    for bent in [Bent::Flipped, Bent::Replayed, Bent::Swapped, Bent::Lost] {
        for forward in [true, false] {
            let (world, error) = bend(bent, forward).await;
            let which = format!("{bent:?}, forward {forward}: {error}");
            assert_eq!(error.kind(), ErrorKind::PathFailed, "{which}");
            // Nothing is left of it anywhere.
            soon(async {
                while world.relays.iter().any(|relay| relay.circuits() > 0) {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
    }
    let (_, error) = bend(Bent::Early, false).await;
    assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
}
