//! A client that breaks the protocol: its circuit ends, and no other one of its channel; what it may hold is bounded.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use hoplite_crypto::onion::ntor3;
use hoplite_onion::{
    channel::{Channel, Dialer, Waiting, memory},
    endpoint::HALF_CLOSE,
    path,
};
use hoplite_overlay::{Error, conformance::Far};
use hoplite_testing::soon;
use hoplite_wire::{
    Target,
    cell::{
        Cell, Command,
        circuit::{ClientExtensions, Create2, Created2, DestroyReason, HandshakeType, Subprotocol},
        relay::{
            self, Begin, Connected, End, EndReason, Flags, Message, Sendme, SendmeTag, StreamId,
            Xoff,
        },
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    raw::{Heard, Peer, Raw, answer, cell, send, skin},
    support::{Kind, World},
};

const PROTOCOL: Heard = Heard::Destroyed(DestroyReason::PROTOCOL);

/// A world, a channel to its first relay, and a circuit on it that is to stand whatever the others do.
struct Scene {
    world: World,
    channel: Peer,
    kept: Raw,
}

impl Scene {
    async fn new() -> Self {
        let world = World::new(Duration::ZERO, Kind::default());
        let dialer = world.net.dialer(None);
        let channel = Dialer::channel(&*dialer, &world.path[0]).await;
        let channel = channel.expect("a channel");
        let kept = Raw::new(&*channel, &world.path[0], false).await;
        Self {
            world,
            channel,
            kept,
        }
    }

    async fn raw(&self, congestion_control: bool) -> Raw {
        Raw::new(&*self.channel, &self.world.path[0], congestion_control).await
    }

    async fn three_hops(&self) -> Raw {
        let mut raw = self.raw(false).await;
        raw.extend(&self.world.path[1], false).await;
        raw.extend(&self.world.path[2], false).await;
        raw
    }

    /// The other circuit still answers.
    async fn kept_stands(&mut self) {
        self.kept
            .say(relay::RelayCommand::RESOLVE, 7, b"198.51.100.9\0")
            .await;
        let heard = self.kept.hear().await;
        let Heard::Message(0, relay::RelayCommand::RESOLVED, StreamId(7), ..) = heard else {
            panic!("{heard:?} of the circuit that did nothing");
        };
    }
}

fn begin(target: &Target, flags: Flags) -> Message<'static> {
    Message::Begin(Begin {
        target: target.clone(),
        flags,
    })
}

async fn connected(raw: &mut Raw, stream: u16) {
    let heard = raw.hear().await;
    let Heard::Message(_, relay::RelayCommand::CONNECTED, id, ..) = heard else {
        panic!("{heard:?}");
    };
    assert_eq!(id, StreamId(stream));
}

/// What one message of a client to a relay may not be, nor when.
#[tokio::test]
async fn what_a_client_may_not_say_ends_its_circuit_alone() {
    let mut scene = Scene::new().await;
    let digest = SendmeTag::Tor1([7; 20]);
    let target: Target = "198.51.100.9:80".parse().expect("valid");
    let told = |message: &Message<'_>| (message.command(), crate::raw::data_of(message));
    for (stream, (command, data)) in [
        (0, told(&Message::Sendme(Sendme::V1(digest)))),
        (0, told(&Message::Sendme(Sendme::V0))),
        (0, told(&begin(&target, Flags::default()))),
        (0, told(&Message::BeginDir)),
        (5, told(&Message::Connected(Connected(None)))),
        (0, (relay::RelayCommand::EXTENDED2, vec![0, 1, 7])),
        (0, (relay::RelayCommand::TRUNCATED, vec![1])),
        (0, (relay::RelayCommand::EXTEND2, vec![1, 2, 3])),
        (0, (relay::RelayCommand::EXTEND, vec![0; 100])),
        (0, (relay::RelayCommand::SENDME, vec![1, 0, 20, 1])),
        (0, (relay::RelayCommand::SENDME, vec![9])),
        (3, (relay::RelayCommand::XON, vec![9, 0, 0, 0, 0])),
    ] {
        let mut raw = scene.raw(false).await;
        raw.say(command, stream, &data).await;
        assert_eq!(raw.hear().await, PROTOCOL, "{command:?}");
    }
    scene.kept_stands().await;
    assert_eq!(scene.world.relays[0].circuits(), 1);
}

#[tokio::test]
async fn what_is_not_understood_and_what_comes_late_is_ignored() {
    let scene = Scene::new().await;
    let mut raw = scene.raw(false).await;
    raw.say(relay::RelayCommand(99), 0, b"what").await;
    raw.say(relay::RelayCommand(99), 9, b"what").await;
    raw.say(relay::RelayCommand::DROP, 0, b"nothing").await;
    raw.say(relay::RelayCommand::DATA, 9, b"for nobody").await;
    raw.tell(9, &Message::End(End::new(EndReason::MISC))).await;
    raw.say(relay::RelayCommand::RESOLVE, 7, b"198.51.100.9\0")
        .await;
    let heard = raw.hear().await;
    let Heard::Message(0, relay::RelayCommand::RESOLVED, ..) = heard else {
        panic!("{heard:?}");
    };
}

/// Such a client would take the relay for one that speaks another relay encryption, and both would close what they cannot read.
#[tokio::test]
async fn a_client_that_asks_for_what_the_relay_does_not_do_gets_no_circuit() {
    let mut scene = Scene::new().await;
    // CGO without congestion control, and what nobody has.
    for (congestion_control, capabilities) in [
        (false, &[(2, 6)][..]),
        (true, &[(2, 5), (2, 6)]),
        (true, &[(2, 6), (2, 7)]),
        (true, &[(99, 1)]),
    ] {
        let asked = capabilities
            .iter()
            .map(|(protocol, capability)| Subprotocol {
                protocol: *protocol,
                capability: *capability,
            });
        let mut message = Vec::new();
        let extensions = ClientExtensions {
            congestion_control,
            subprotocols: asked.collect(),
        };
        extensions.write(&mut message);
        let relay = &scene.world.path[0];
        let (_, skin) = ntor3::client(&relay.keys, &message).expect("made");
        let mut circuit = scene.channel.open().await.expect("opens");
        let create = Create2 {
            handshake: HandshakeType::NTOR_V3,
            data: &skin,
        };
        let cell = Cell::new(circuit.id, Command::CREATE2, |body| create.write(body));
        send(&mut circuit, cell.expect("fits")).await;
        let answered = answer(&mut circuit).await.expect("an answer");
        assert_eq!(answered.command, Command::DESTROY, "{capabilities:?}");
        assert_eq!(answered.body[0], DestroyReason::PROTOCOL.0);
    }
    scene.kept_stands().await;
}

#[tokio::test]
async fn a_length_beyond_the_cell_ends_the_circuit() {
    let mut scene = Scene::new().await;
    let mut raw = scene.raw(false).await;
    let mut body = crate::raw::body(relay::RelayCommand::DATA, 1, b"");
    body[9..11].copy_from_slice(&499u16.to_be_bytes());
    let bad = raw.seal(Command::RELAY, 0, body);
    raw.send(bad).await;
    assert_eq!(raw.hear().await, PROTOCOL);
    scene.kept_stands().await;
}

#[tokio::test]
async fn a_ninth_relay_early_and_an_extend_in_a_plain_cell_end_the_circuit() {
    let mut scene = Scene::new().await;
    let mut raw = scene.raw(false).await;
    for _ in 0..9 {
        let early = crate::raw::body(relay::RelayCommand::DROP, 0, b"");
        let early = raw.seal(Command::RELAY_EARLY, 0, early);
        raw.send(early).await;
    }
    assert_eq!(raw.hear().await, PROTOCOL);
    let mut raw = scene.raw(false).await;
    let (_, skin) = skin(&scene.world.path[1], false);
    raw.ask_to_extend(Command::RELAY, &scene.world.path[1], &skin)
        .await;
    assert_eq!(raw.hear().await, PROTOCOL);
    scene.kept_stands().await;
    assert_eq!(scene.world.relays[1].counters.created.load(Relaxed), 0);
}

#[tokio::test]
async fn extending_a_second_time_ends_the_circuit_and_after_truncate_it_may() {
    let scene = Scene::new().await;
    let mut raw = scene.raw(false).await;
    raw.extend(&scene.world.path[1], false).await;
    raw.layers.truncate(1);
    raw.say(relay::RelayCommand::TRUNCATE, 0, &[0]).await;
    let heard = raw.hear().await;
    let Heard::Message(0, relay::RelayCommand::TRUNCATED, ..) = heard else {
        panic!("{heard:?}");
    };
    raw.extend(&scene.world.path[2], false).await;
    raw.layers.truncate(1);
    let (_, skin) = skin(&scene.world.path[1], false);
    raw.ask_to_extend(Command::RELAY_EARLY, &scene.world.path[1], &skin)
        .await;
    assert_eq!(raw.hear().await, PROTOCOL);
}

/// A cell that came before, two in the wrong order, one with a bit flipped: after it no digest fits, and nobody can tell whose it was.
#[tokio::test]
async fn replayed_swapped_and_tagged_cells_are_recognised_by_nobody_and_end_the_circuit() {
    let mut scene = Scene::new().await;
    for what in ["replayed", "swapped", "tagged", "from nowhere"] {
        let mut raw = scene.three_hops().await;
        let mut one = raw.seal(
            Command::RELAY,
            2,
            crate::raw::body(relay::RelayCommand::DROP, 0, b""),
        );
        let two = raw.seal(
            Command::RELAY,
            2,
            crate::raw::body(relay::RelayCommand::DROP, 0, b""),
        );
        match what {
            "replayed" => {
                raw.send(one.clone()).await;
                raw.send(one).await;
            }
            "swapped" => {
                raw.send(two).await;
                raw.send(one).await;
            }
            "tagged" => {
                one.body[400] ^= 1;
                raw.send(one).await;
            }
            _ => raw.send(cell(Command::RELAY, 7)).await,
        }
        // The exit destroys its part, and the relay before it says so.
        let heard = raw.hear().await;
        let Heard::Message(1, relay::RelayCommand::TRUNCATED, _, reason, _) = heard else {
            panic!("{what}: {heard:?}");
        };
        assert_eq!(reason, [DestroyReason::DESTROYED.0], "{what}");
        assert_eq!(scene.world.relays[2].circuits(), 0, "{what}");
    }
    scene.kept_stands().await;
}

/// The relay before it says REQUESTED to whom it has truncated, and that is all that it says beside DESTROYED.
#[tokio::test]
async fn no_relay_sends_on_the_reason_of_another() {
    for said in [0, 1, 8, 9, 77, 255].map(DestroyReason) {
        // Forth: what a guard gives as its reason, and what it makes the middle find out, the next relay does not hear.
        let world = World::new(Duration::ZERO, Kind::default());
        let (mut raw, mut next) = extended_to_a_spy(&world).await;
        let mut destroy = Cell::new(raw.circuit.id, Command::DESTROY, |body| said.write(body));
        if said.0 == 77 {
            destroy = Ok(cell(Command::RELAY_EARLY, 7));
            for _ in 0..8 {
                raw.send(cell(Command::RELAY_EARLY, 7)).await;
            }
        }
        raw.send(destroy.expect("fits")).await;
        let mut last = None;
        while let Some(cell) = answer(&mut next).await {
            last = (cell.command == Command::DESTROY)
                .then(|| cell.body[0])
                .or(last);
        }
        assert_eq!(last, Some(DestroyReason::DESTROYED.0), "{said:?}");
        // Back: the client alone hears that it was destroyed, and no reason.
        let world = World::new(Duration::ZERO, Kind::default());
        let (mut raw, next) = extended_to_a_spy(&world).await;
        next.sender.destroy(said);
        let heard = raw.hear().await;
        let Heard::Message(0, relay::RelayCommand::TRUNCATED, _, reason, _) = heard else {
            panic!("{heard:?}");
        };
        assert_eq!(reason, [DestroyReason::DESTROYED.0], "{said:?}");
    }
}

/// A relay that refuses a circuit tells the one before it why, and nobody else: the others learn that from the client, if at all.
#[tokio::test]
async fn why_a_circuit_is_not_extended_is_told_to_the_client_alone() {
    let scene = Scene::new().await;
    // The third is not there any more; nor would the second say so by DESTROY, which the first could read.
    let mut raw = scene.raw(false).await;
    raw.extend(&scene.world.path[1], false).await;
    scene.world.net.stop(3);
    let (_, skin) = skin(&scene.world.path[2], false);
    raw.ask_to_extend(Command::RELAY_EARLY, &scene.world.path[2], &skin)
        .await;
    let heard = raw.hear().await;
    let Heard::Message(1, relay::RelayCommand::TRUNCATED, _, reason, _) = heard else {
        panic!("{heard:?}");
    };
    assert_eq!(reason, [DestroyReason::CONNECTFAILED.0]);
    // One that refuses the handshake.
    let mut raw = scene.raw(false).await;
    raw.ask_to_extend(Command::RELAY_EARLY, &scene.world.path[1], b"no skin")
        .await;
    let heard = raw.hear().await;
    let Heard::Message(0, relay::RelayCommand::TRUNCATED, _, reason, _) = heard else {
        panic!("{heard:?}");
    };
    assert_eq!(reason, [DestroyReason::DESTROYED.0]);
}

/// A circuit of two hops whose second is in our hands: it has answered CREATE2 with nothing that a client could read.
async fn extended_to_a_spy(world: &World) -> (Raw, hoplite_onion::channel::CircuitEnds) {
    let (to_spy, spy) = memory::pair(Duration::ZERO, Some([1; 32]), Some([8; 32]));
    let guard = world.net.relay(8, &world.network, |relay| {
        relay.dialer = Arc::new(To(to_spy));
    });
    let guard_known = crate::support::known(&guard, Kind::default());
    let dialer = world.net.dialer(None);
    let channel = Dialer::channel(&*dialer, &guard_known).await;
    let mut raw = Raw::new(&*channel.expect("a channel"), &guard_known, false).await;
    let (_, skin) = skin(&world.path[1], false);
    raw.ask_to_extend(Command::RELAY_EARLY, &world.path[1], &skin)
        .await;
    let mut next = soon(spy.accept()).await.expect("a circuit");
    assert!(
        answer(&mut next)
            .await
            .is_some_and(|cell| cell.command == Command::CREATE2)
    );
    let created = Cell::new(next.id, Command::CREATED2, |body| {
        Created2 { data: &[7; 64] }.write(body);
    });
    send(&mut next, created.expect("fits")).await;
    let heard = raw.hear().await;
    assert!(
        matches!(heard, Heard::Message(0, relay::RelayCommand::EXTENDED2, ..)),
        "{heard:?}"
    );
    (raw, next)
}

/// Everything is dialled here.
#[derive(Debug)]
struct To(Arc<memory::Memory>);

impl Dialer for To {
    fn channel<'a>(&'a self, _: &'a path::Relay) -> Waiting<'a, Result<Arc<dyn Channel>, Error>> {
        Box::pin(async { Ok(Arc::clone(&self.0) as Arc<dyn Channel>) })
    }
}

#[tokio::test]
async fn an_acknowledgement_of_other_cells_and_one_too_many_end_the_circuit() {
    let scene = Scene::new().await;
    let mut listener = scene.world.far().listen().await.expect("listens");
    let target = listener.target();
    tokio::spawn(async move {
        while let Ok(mut stream) = listener.accept().await {
            tokio::spawn(async move { while stream.write_all(&[9; 4096]).await.is_ok() {} });
        }
    });
    for (increment, congestion_control) in [(100, false), (31, true)] {
        for lie in [
            Some(Sendme::V0),
            Some(Sendme::V1(SendmeTag::Tor1([1; 20]))),
            // The right one, and again.
            None,
        ] {
            let mut raw = scene.raw(congestion_control).await;
            raw.tell(1, &begin(&target, Flags::default())).await;
            connected(&mut raw, 1).await;
            let mut digest = SendmeTag::Tor1([0; 20]);
            for _ in 0..increment {
                let heard = raw.hear().await;
                let Heard::Message(_, relay::RelayCommand::DATA, .., after) = heard else {
                    panic!("{heard:?}");
                };
                digest = after;
            }
            let right = Sendme::V1(digest);
            raw.tell(0, &Message::Sendme(lie.unwrap_or(right))).await;
            raw.tell(0, &Message::Sendme(right)).await;
            assert_eq!(raw.hear_of_the_circuit().await, PROTOCOL, "{lie:?}");
        }
    }
}

#[tokio::test]
async fn more_than_the_window_ends_the_circuit() {
    let mut scene = Scene::new().await;
    let mut listener = scene.world.far().listen().await.expect("listens");
    let target = listener.target();
    let mut raw = scene.raw(false).await;
    raw.tell(1, &begin(&target, Flags::default())).await;
    connected(&mut raw, 1).await;
    // It takes what its buffer holds, and then nothing: no SENDME comes any more, and there are 500 cells and one.
    let _held = soon(listener.accept()).await.expect("accepts");
    for _ in 0..3000 {
        raw.say(relay::RelayCommand::DATA, 1, &[5; 498]).await;
    }
    assert_eq!(raw.hear_of_the_circuit().await, PROTOCOL);
    scene.kept_stands().await;
}

/// Without windows a client is told to stop, and one that does not is stopped.
#[tokio::test]
async fn a_client_that_ignores_xoff_loses_its_circuit_at_the_bound() {
    let mut scene = Scene::new().await;
    let mut listener = scene.world.far().listen().await.expect("listens");
    let target = listener.target();
    let mut raw = scene.raw(true).await;
    raw.tell(1, &begin(&target, Flags::default())).await;
    connected(&mut raw, 1).await;
    let _held = soon(listener.accept()).await.expect("accepts");
    let (mut xoff, mut sent, mut ended) = (false, 0, None);
    while ended.is_none() {
        for _ in 0..100 {
            raw.say(relay::RelayCommand::DATA, 1, &[5; 498]).await;
        }
        sent += 100;
        assert!(sent < 24_000, "it may send without end");
        while let (None, Ok(heard)) = (&ended, timeout(Duration::ZERO, raw.hear()).await) {
            match heard {
                Heard::Message(_, relay::RelayCommand::XOFF, ..) => xoff = true,
                Heard::Message(_, relay::RelayCommand::SENDME, ..) => {}
                other => ended = Some(other),
            }
        }
    }
    assert_eq!((xoff, ended), (true, Some(PROTOCOL)));
    scene.kept_stands().await;
}

#[tokio::test]
async fn streams_without_end_are_refused_beyond_the_bound_and_come_again_when_others_end() {
    let scene = Scene::new().await;
    let listener = scene.world.far().listen().await.expect("listens");
    let target = listener.target();
    let mut raw = scene.raw(false).await;
    let most = u16::try_from(scene.world.relays[0].config.limits.streams).expect("few");
    for stream in 1..=most {
        raw.tell(stream, &begin(&target, Flags::default())).await;
        connected(&mut raw, stream).await;
    }
    let next = most + 1;
    raw.tell(next, &begin(&target, Flags::default())).await;
    let heard = raw.hear().await;
    let Heard::Message(_, relay::RelayCommand::END, id, ref reason, _) = heard else {
        panic!("{heard:?}");
    };
    assert_eq!(
        (id, &reason[..]),
        (StreamId(next), &[EndReason::RESOURCELIMIT.0][..])
    );
    raw.tell(5, &Message::End(End::new(EndReason::MISC))).await;
    // Its target is told first.
    let again = soon(async {
        let mut again = next;
        loop {
            again += 1;
            raw.tell(again, &begin(&target, Flags::default())).await;
            if let Heard::Message(_, relay::RelayCommand::CONNECTED, ..) = raw.hear().await {
                return again;
            }
        }
    });
    let again = again.await;
    // One that is there already.
    raw.tell(again, &begin(&target, Flags::default())).await;
    assert_eq!(raw.hear_of_the_circuit().await, PROTOCOL);
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_stream_goes_on_one_way_and_its_reset_reaches_the_target() {
    let scene = Scene::new().await;
    let mut listener = scene.world.far().listen().await.expect("listens");
    let target = listener.target();
    let mut raw = scene.raw(false).await;
    raw.tell(1, &begin(&target, HALF_CLOSE)).await;
    connected(&mut raw, 1).await;
    let mut far = soon(listener.accept()).await.expect("accepts");
    raw.say(relay::RelayCommand::DATA, 1, b"all").await;
    raw.tell(1, &Message::End(End::new(EndReason::DONE))).await;
    let mut got = Vec::new();
    soon(far.read_to_end(&mut got)).await.expect("an end");
    assert_eq!(got, b"all");
    far.write_all(b"still").await.expect("open");
    let heard = raw.hear().await;
    let Heard::Message(_, relay::RelayCommand::DATA, _, ref data, _) = heard else {
        panic!("{heard:?}");
    };
    assert_eq!(data, b"still");
    raw.tell(1, &Message::End(End::new(EndReason::MISC))).await;
    let wrote = soon(async {
        while far.write_all(&[1; 4096]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    wrote.await;
    // DATA behind an end is not allowed.
    let mut raw = scene.raw(false).await;
    raw.tell(1, &begin(&target, HALF_CLOSE)).await;
    connected(&mut raw, 1).await;
    raw.tell(1, &Message::End(End::new(EndReason::DONE))).await;
    raw.say(relay::RelayCommand::DATA, 1, b"more").await;
    assert_eq!(raw.hear_of_the_circuit().await, PROTOCOL);
}

/// What a target sends to a client that reads nothing waits in bounded queues, and then at the target.
#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_stops_its_target() {
    for congestion_control in [true, false] {
        let mut scene = Scene::new().await;
        let mut listener = scene.world.far().listen().await.expect("listens");
        let target = listener.target();
        let mut raw = scene.raw(congestion_control).await;
        raw.tell(1, &begin(&target, Flags::default())).await;
        let mut far = soon(listener.accept()).await.expect("accepts");
        let mut sent = 0;
        while timeout(Duration::from_secs(5), far.write_all(&[9; 4096]))
            .await
            .is_ok_and(|wrote| wrote.is_ok())
        {
            sent += 4096;
            assert!(sent < 4_000_000, "the relay takes it all");
        }
        scene.kept_stands().await;
    }
}

#[tokio::test]
async fn xoff_stops_a_stream_of_an_exit_and_no_other() {
    let scene = Scene::new().await;
    let mut listener = scene.world.far().listen().await.expect("listens");
    let target = listener.target();
    let mut raw = scene.raw(true).await;
    for stream in [1, 2] {
        raw.tell(stream, &begin(&target, Flags::default())).await;
        connected(&mut raw, stream).await;
    }
    raw.tell(1, &Message::Xoff(Xoff)).await;
    let (mut one, mut two) = (
        soon(listener.accept()).await.expect("accepts"),
        soon(listener.accept()).await.expect("accepts"),
    );
    // They may have come in any order: each says which it is.
    for (far, byte) in [(&mut one, b'a'), (&mut two, b'b')] {
        far.write_all(&[byte]).await.expect("open");
    }
    let heard = raw.hear().await;
    let Heard::Message(_, relay::RelayCommand::DATA, StreamId(2), ..) = heard else {
        panic!("{heard:?}");
    };
    raw.tell(1, &Message::Xoff(Xoff)).await;
    assert_eq!(raw.hear_of_the_circuit().await, PROTOCOL, "said already");
}
