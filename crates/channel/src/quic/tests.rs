//! Peers over QUIC that do what no honest one does: each is refused, counted and bounded, and disturbs no other circuit.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use hoplite_quic::{Connection, Endpoint, ReadError, RecvStream, SendStream, VarInt};
use hoplite_testing::{soon, until};
use hoplite_wire::cell::{Cell, CircuitId, Command};

use crate::{
    Channel, Circuit, Config, Count, Rival, Why,
    handshake::{Around, Binding, Handshake, Refused, Us},
    tests::harness::{World, bytes, cell, number, recv, send},
};

const HIGH: u32 = 1 << 31;

/// A hostile client that has said hello, and the relay's end of its channel.
struct Hostile {
    _endpoint: Endpoint,
    connection: Connection,
    control: (SendStream, RecvStream),
    channel: Channel,
}

async fn hostile(world: &mut World) -> Hostile {
    let (endpoint, connection) = world.raw_quic().await;
    let mut control = soon(connection.open_bi()).await.unwrap();
    greet(&connection, &mut control).await;
    Hostile {
        _endpoint: endpoint,
        connection,
        control,
        channel: world.served().await.unwrap(),
    }
}

/// The link handshake of a client.
async fn greet(connection: &Connection, control: &mut (SendStream, RecvStream)) {
    greet_as(Us::default(), connection, control).await;
}

/// The link handshake of somebody.
pub(crate) async fn greet_as(
    us: Us,
    connection: &Connection,
    control: &mut (SendStream, RecvStream),
) {
    let binding = Binding {
        certificate: crate::establish::shown(connection).unwrap(),
        remote: None,
    };
    let config = Config::default();
    let mut handshake = Handshake::initiator(us, None, binding, &config);
    let mut done = false;
    loop {
        if let Some(bytes) = handshake.transmit() {
            control.0.write_all(&bytes).await.unwrap();
        }
        if done {
            return;
        }
        let chunk = soon(control.1.read_chunk(4096, true)).await;
        let around = Around {
            now: crate::tests::harness::now(),
            exporter: &|label, context| {
                let mut out = [0; 32];
                let exported = connection.export_keying_material(&mut out, label, context);
                exported.ok().map(|()| out)
            },
        };
        let bytes = BytesMut::from(&*chunk.unwrap().unwrap().bytes);
        done = handshake.receive(bytes, around).unwrap().is_some();
    }
}

fn numbered(circuit: u32, command: Command, number: u32) -> BytesMut {
    let id = CircuitId::new(circuit);
    bytes(&Cell::new(id, command, |body| body.put_u32(number)).unwrap())
}

impl Hostile {
    async fn stream(&self, first: &[u8]) -> (SendStream, RecvStream) {
        let (mut send, receive) = soon(self.connection.open_bi()).await.unwrap();
        soon(send.write_all(first)).await.unwrap();
        (send, receive)
    }

    /// A circuit that it begins properly.
    async fn circuit(&self, number: u32) -> ((SendStream, RecvStream), Circuit) {
        let create = numbered(HIGH | number, Command::CREATE2, number);
        let stream = self.stream(&create).await;
        let mut circuit = soon(self.channel.accept()).await.unwrap();
        assert_eq!(recv(&mut circuit).await, (Command::CREATE2, number));
        (stream, circuit)
    }
}

/// The code with which the stream is reset.
async fn reset_code(receive: &mut RecvStream) -> u64 {
    match soon(receive.read_chunk(usize::MAX, true)).await {
        Err(ReadError::Reset(code)) => code.into_inner(),
        other => panic!("not reset: {other:?}"),
    }
}

async fn counted(count: &Count) {
    until(|| count.get() == 1).await;
}

/// The channel still serves.
async fn is_well(hostile: &Hostile) {
    let (mut stream, mut circuit) = hostile.circuit(4_000_000).await;
    send(&mut circuit, Command::CREATED2, 5).await;
    let mut answer = [0; 514];
    soon(stream.1.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer[4], Command::CREATED2.0);
    assert!(hostile.channel.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_first_cell_makes_no_circuit_is_reset() {
    let mut world = World::new(Config::default());
    let hostile = hostile(&mut world).await;
    let first = numbered(HIGH | 1, Command::RELAY, 1);
    let (_send, mut receive) = hostile.stream(&first).await;
    assert_eq!(reset_code(&mut receive).await, 0x101);
    counted(&world.there.no_circuits).await;
    is_well(&hostile).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_a_whole_first_cell_is_reset_in_time() {
    let mut world = World::new(Config::default());
    let hostile = hostile(&mut world).await;
    let (_send, mut receive) = hostile.stream(&[1, 2, 3]).await;
    assert_eq!(reset_code(&mut receive).await, 0x101);
    counted(&world.there.no_circuits).await;
    is_well(&hostile).await;
}

#[tokio::test(start_paused = true)]
async fn a_circuit_id_that_is_in_use_is_refused_and_the_first_one_lives() {
    let mut world = World::new(Config::default());
    let hostile = hostile(&mut world).await;
    let ((mut send, _receive), mut circuit) = hostile.circuit(7).await;
    let again = numbered(HIGH | 7, Command::CREATE2, 1);
    let (_send, mut receive) = hostile.stream(&again).await;
    assert_eq!(reset_code(&mut receive).await, 0x101);
    counted(&world.there.collisions).await;
    let relay = numbered(HIGH | 7, Command::RELAY, 3);
    send.write_all(&relay).await.unwrap();
    assert_eq!(recv(&mut circuit).await, (Command::RELAY, 3));
}

#[tokio::test(start_paused = true)]
async fn circuit_ids_that_are_the_relays_to_choose_or_none_are_refused() {
    let mut world = World::new(Config::default());
    let hostile = hostile(&mut world).await;
    for id in [0, 7] {
        let first = numbered(id, Command::CREATE2, 1);
        let (_send, mut receive) = hostile.stream(&first).await;
        assert_eq!(reset_code(&mut receive).await, 0x101);
    }
    assert_eq!(world.there.wrong_ids.get(), 2);
    is_well(&hostile).await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_of_another_circuit_ends_the_circuit_on_whose_stream_it_came() {
    let mut world = World::new(Config::default());
    let hostile = hostile(&mut world).await;
    let ((mut send, _receive), mut circuit) = hostile.circuit(7).await;
    let other = numbered(HIGH | 8, Command::RELAY, 3);
    send.write_all(&other).await.unwrap();
    assert_eq!(recv(&mut circuit).await, (Command::DESTROY, 1 << 24));
    assert!(soon(circuit.receiver.recv()).await.is_none());
    assert!(soon(send.stopped()).await.unwrap().is_some());
    assert_eq!(world.there.mismatched.get(), 1);
    is_well(&hostile).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_within_a_cell_ends_its_circuit_and_is_counted() {
    let mut world = World::new(Config::default());
    let hostile = hostile(&mut world).await;
    let ((mut send, _receive), mut circuit) = hostile.circuit(7).await;
    send.write_all(&numbered(HIGH | 7, Command::RELAY, 3)[..513])
        .await
        .unwrap();
    send.finish().unwrap();
    assert!(soon(circuit.receiver.recv()).await.is_none());
    assert_eq!(world.there.cut.get(), 1);
    is_well(&hostile).await;
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_stream_still_carries_cells_the_other_way() {
    let mut world = World::new(Config::default());
    let hostile = hostile(&mut world).await;
    let ((mut send_raw, mut receive), mut circuit) = hostile.circuit(7).await;
    send_raw.finish().unwrap();
    assert!(soon(circuit.receiver.recv()).await.is_none());
    send(&mut circuit, Command::CREATED2, 3).await;
    let mut answer = [0; 514];
    soon(receive.read_exact(&mut answer)).await.unwrap();
    drop(circuit);
    until(|| hostile.channel.circuits() == 0).await;
    assert_eq!(world.there.cut.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_stops_a_stream_ends_that_circuit_alone() {
    let mut world = World::new(Config::default());
    let hostile = hostile(&mut world).await;
    let ((_send, mut receive), mut circuit) = hostile.circuit(7).await;
    receive.stop(0u32.into()).unwrap();
    let ended = async {
        while circuit.sender.ready().await.is_ok() {
            let _full = circuit.sender.send(cell(Command::RELAY, 1));
        }
    };
    soon(ended).await;
    is_well(&hostile).await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_with_a_reason_is_a_destroy_cell_and_any_other_is_the_end() {
    let mut world = World::new(Config::default());
    let hostile = hostile(&mut world).await;
    for (code, destroyed) in [(0x105, true), (0x7fff, false), (3, false)] {
        let ((mut send, _receive), mut circuit) = hostile.circuit(code).await;
        send.reset(VarInt::from_u32(code)).unwrap();
        let last = soon(circuit.receiver.recv()).await;
        let last = last.map(|cell| (cell.command, number(&cell)));
        let destroy = (Command::DESTROY, 5 << 24);
        assert_eq!(last, destroyed.then_some(destroy));
    }
}

/// How many streams a guest gets that may have this many, and how many circuits they become.
async fn without_end(most: u32) -> (usize, usize) {
    let config = Config {
        guest_circuits: most,
        arrivals: 1000,
        ..Config::default()
    };
    let mut world = World::new(config);
    let hostile = hostile(&mut world).await;
    let mut streams = Vec::new();
    let opening = async {
        for number in 1.. {
            let create = numbered(HIGH | number, Command::CREATE2, number);
            streams.push(hostile.stream(&create).await);
        }
    };
    let stopped = tokio::time::timeout(Duration::from_secs(3), opening).await;
    assert!(stopped.is_err());
    (streams.len(), hostile.channel.circuits())
}

#[tokio::test(start_paused = true)]
async fn streams_without_end_are_bounded_by_the_guests_share() {
    assert_eq!(without_end(10).await, (10, 10));
}

#[tokio::test(start_paused = true)]
async fn a_guest_comes_to_its_whole_share_although_little_is_allowed_at_first() {
    assert_eq!(without_end(600).await, (600, 600));
}

#[tokio::test(start_paused = true)]
async fn what_says_nothing_is_ignored_wherever_it_comes() {
    let mut world = World::new(Config::default());
    let mut hostile = hostile(&mut world).await;
    let ((mut send, _receive), mut circuit) = hostile.circuit(7).await;
    for command in [
        Command::PADDING,
        Command(77),
        Command(200),
        Command::NETINFO,
    ] {
        let strange = numbered(HIGH | 7, command, 1);
        send.write_all(&strange).await.unwrap();
        let strange = numbered(0, command, 1);
        hostile.control.0.write_all(&strange).await.unwrap();
    }
    for _ in 0..500 {
        let padding = numbered(HIGH | 7, Command::PADDING, 1);
        soon(send.write_all(&padding)).await.unwrap();
    }
    send.write_all(&numbered(HIGH | 7, Command::RELAY, 3))
        .await
        .unwrap();
    assert_eq!(recv(&mut circuit).await, (Command::RELAY, 3));
    until(|| world.there.ignored.get() == 6).await;
    is_well(&hostile).await;
}

#[tokio::test(start_paused = true)]
async fn a_circuits_cell_on_the_control_stream_ends_the_channel() {
    let mut world = World::new(Config::default());
    let mut hostile = hostile(&mut world).await;
    let wrong = numbered(HIGH | 7, Command::CREATE2, 1);
    hostile.control.0.write_all(&wrong).await.unwrap();
    let why = soon(hostile.channel.closed()).await;
    assert!(matches!(why, Why::Violation(_)));
    assert_eq!(world.there.violations.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn circuits_wait_until_the_peer_has_shown_who_it_is() {
    let mut world = World::new(Config::default());
    let (_endpoint, connection) = world.raw_quic().await;
    let mut control = soon(connection.open_bi()).await.unwrap();
    let early = async {
        let (mut send, receive) = connection.open_bi().await.unwrap();
        let create = numbered(HIGH | 7, Command::CREATE2, 1);
        send.write_all(&create).await.unwrap();
        (send, receive)
    };
    let (_early, ()) = soon(async { tokio::join!(early, greet(&connection, &mut control)) }).await;
    let channel = world.served().await.unwrap();
    let mut circuit = soon(channel.accept()).await.unwrap();
    assert_eq!(recv(&mut circuit).await, (Command::CREATE2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_has_so_long_and_no_longer() {
    let mut world = World::new(Config::default());
    let (_endpoint, connection) = world.raw_quic().await;
    assert!(matches!(world.served().await, Err(Refused::TimedOut)));
    soon(connection.closed()).await;
    assert_eq!(world.there.refused.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_the_peer_never_drains_is_buried_all_the_same() {
    let mut world = World::new(Config::default());
    let hostile = hostile(&mut world).await;
    let ((_send, mut receive), mut circuit) = hostile.circuit(7).await;
    let full = async {
        loop {
            circuit.sender.ready().await.unwrap();
            let _full = circuit.sender.send(cell(Command::RELAY, 1));
        }
    };
    // More than the raw client's window.
    let full = tokio::time::timeout(Duration::from_secs(20), full).await;
    assert!(full.is_err());
    drop(circuit);
    counted(&world.there.unread).await;
    while let Ok(Some(_)) = soon(receive.read_chunk(usize::MAX, true)).await {}
    until(|| hostile.channel.circuits() == 0).await;
    is_well(&hostile).await;
}

/// A lane of the circuit of this id.
async fn lane(hostile: &Hostile, circuit: u32) -> SendStream {
    let mut lane = soon(hostile.connection.open_uni()).await.unwrap();
    soon(lane.write_all(&circuit.to_be_bytes())).await.unwrap();
    lane
}

#[tokio::test(start_paused = true)]
async fn lanes_are_read_in_turn_and_one_of_no_circuit_or_without_relay_cells_is_none() {
    let config = Config {
        rival: Some(Rival::StreamPerStream),
        ..Config::default()
    };
    let mut world = World::new(config);
    let hostile = hostile(&mut world).await;
    let astray = lane(&hostile, HIGH | 9).await;
    counted(&world.there.no_circuits).await;
    soon(astray.stopped()).await.unwrap();
    let (_stream, mut circuit) = hostile.circuit(1).await;
    let mut one = lane(&hostile, HIGH | 1).await;
    let mut other = lane(&hostile, HIGH | 1).await;
    let later = [
        numbered(2, Command::RELAY, 8),
        numbered(3, Command::RELAY, 9),
    ]
    .concat();
    soon(one.write_all(&later)).await.unwrap();
    let first = numbered(1, Command::RELAY, 7);
    soon(other.write_all(&first)).await.unwrap();
    for number in 7..=9 {
        assert_eq!(recv(&mut circuit).await, (Command::RELAY, number));
    }
    let create = numbered(HIGH | 1, Command::CREATE2, 0);
    soon(other.write_all(&create)).await.unwrap();
    assert_eq!(recv(&mut circuit).await.0, Command::DESTROY);
    counted(&world.there.mismatched).await;
    is_well(&hostile).await;
}
