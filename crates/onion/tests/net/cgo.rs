//! Circuits whose relays encrypt by CGO, all of them or some: what passes, and what a hostile client or relay comes to. Proposals 346 and 359.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use hoplite_crypto::{SigningKey, onion::introduction};
use hoplite_onion::{Config, channel::Dialer};
use hoplite_overlay::{Error, ErrorKind, Overlay, Stream, Terms, conformance::Far};
use hoplite_testing::soon;
use hoplite_wire::{
    Protocols,
    cell::{
        BODY, Command,
        circuit::{ClientExtensions, DestroyReason, Subprotocol},
        onion_service::{Introduce, IntroduceStatus},
        relay::{Begin, Flags, Format, Message, RelayCommand, Sendme, SendmeTag, StreamId},
    },
};
use tokio::io::AsyncWriteExt;

use crate::{
    raw::{Heard, Raw, body_of},
    support::{Kind, World, known},
};

const PROTOCOL: Heard = Heard::Destroyed(DestroyReason::PROTOCOL);

/// What a client asks for that wants CGO.
fn cgo() -> ClientExtensions {
    ClientExtensions {
        congestion_control: true,
        subprotocols: vec![Subprotocol::CGO],
    }
}

fn world() -> World {
    World::new(Duration::ZERO, Kind::default())
}

/// A circuit of one CGO hop, to the first relay.
async fn raw(world: &World) -> Raw {
    let dialer = world.net.dialer(None);
    let first = &world.path[0];
    let channel = Dialer::channel(&*dialer, first).await.expect("a channel");
    Raw::asking(&*channel, first, &cgo()).await
}

async fn opens(world: &World, config: Config) -> Result<Stream, Error> {
    let onion = world.client(Config {
        attempts: 1,
        ahead: 0,
        ..config
    });
    let listener = world.far().listen().await.expect("listens");
    soon(onion.open_stream(&listener.target(), &Terms::default())).await
}

#[tokio::test]
async fn a_mebibyte_passes_circuits_of_cgo_and_tor1_in_any_order() {
    for kinds in 0..8_u8 {
        let mut world = world();
        for (hop, relay) in world.path.iter_mut().enumerate() {
            if kinds >> hop & 1 == 0 {
                relay.protocols = Protocols::NONE;
            }
        }
        let subject = world.subject(Config::default());
        hoplite_overlay::conformance::a_mebibyte_is_echoed_unchanged(&subject).await;
    }
}

/// Who could have a client go on without CGO by a refusal could mark its cells after that.
#[tokio::test]
async fn a_relay_that_says_cgo_and_refuses_it_is_not_asked_again_without() {
    for hop in 0..3_u8 {
        let mut world = world();
        let liar = world.net.relay(hop + 1, &world.network, |relay| {
            relay.config.offers.cgo = false;
        });
        let hop = usize::from(hop);
        world.path[hop] = known(&liar, Kind::default());
        let error = opens(&world, Config::default()).await.map(drop);
        let kind = match hop {
            0 => ErrorKind::EntryUnreachable,
            _ => ErrorKind::PathFailed,
        };
        assert_eq!(error.expect_err("refused").kind(), kind);
        let counters = &liar.counters;
        let seen = (
            counters.refused.load(Relaxed),
            counters.created.load(Relaxed),
        );
        assert_eq!(seen, (1, 0));
        // A client that has it switched off does not ask, nor one that wants no congestion control.
        for (congestion_control, cgo) in [(true, false), (false, true)] {
            let config = Config {
                congestion_control,
                cgo,
                ..Config::default()
            };
            opens(&world, config).await.expect("a stream by tor1");
        }
    }
}

/// What a relay before, or who holds a channel, changes in a cell: nothing of it is known to the last relay, and the circuit ends there.
#[tokio::test]
async fn a_bit_that_is_flipped_anywhere_in_a_cell_ends_the_circuit() {
    for bit in [0, 8 * 16, 8 * 300 + 3, 8 * BODY - 1] {
        let world = world();
        let mut raw = raw(&world).await;
        raw.extend_asking(&world.path[1], &cgo()).await;
        let body = body_of(Format::V1, RelayCommand::RESOLVE, 7, b"198.51.100.9\0");
        let mut cell = raw.seal(Command::RELAY, 1, body);
        cell.body[bit / 8] ^= 1 << (bit % 8);
        raw.send(cell).await;
        let heard = raw.hear().await;
        assert!(
            matches!(heard, Heard::Message(0, RelayCommand::TRUNCATED, ..)),
            "{bit}: {heard:?}"
        );
        assert_eq!(world.relays[1].circuits(), 0);
        assert_eq!(world.relays[1].counters.broken.load(Relaxed), 1);
    }
}

/// A relay finds a cell's length and stream where only version 1 has them.
#[tokio::test]
async fn a_message_with_a_wrong_length_or_stream_ends_the_circuit() {
    let world = world();
    let stream = body_of(Format::V1, RelayCommand::DATA, 7, b"data");
    let circuit = body_of(Format::V1, RelayCommand::EXTEND2, 0, b"data");
    for (mut body, at, [high, low]) in [
        (stream.clone(), 17, 489_u16.to_be_bytes()),
        (stream.clone(), 17, u16::MAX.to_be_bytes()),
        (circuit, 17, 491_u16.to_be_bytes()),
        // For no stream.
        (stream, 19, [0, 0]),
    ] {
        let mut raw = raw(&world).await;
        (body[at], body[at + 1]) = (high, low);
        let cell = raw.seal(Command::RELAY_EARLY, 0, body);
        raw.send(cell).await;
        assert_eq!(raw.hear().await, PROTOCOL);
    }
    // The longest are right: DATA for a stream that is not there is passed over.
    let mut raw = raw(&world).await;
    raw.say(RelayCommand::DATA, 9, &[7; 488]).await;
    raw.say(RelayCommand::DROP, 0, &[7; 490]).await;
    raw.say(RelayCommand::RESOLVE, 7, b"198.51.100.9\0").await;
    let heard = raw.hear().await;
    assert!(matches!(
        heard,
        Heard::Message(0, RelayCommand::RESOLVED, StreamId(7), ..)
    ));
}

#[tokio::test]
async fn an_acknowledgement_repeats_the_cells_tag_and_nothing_else_will_do() {
    let world = world();
    let mut listener = world.far().listen().await.expect("listens");
    let begin = Message::Begin(Begin {
        target: listener.target(),
        flags: Flags::default(),
    });
    tokio::spawn(async move {
        while let Ok(mut stream) = listener.accept().await {
            tokio::spawn(async move { while stream.write_all(&[9; 4096]).await.is_ok() {} });
        }
    });
    let wrong = |tag: SendmeTag| match tag {
        SendmeTag::Cgo(tag) => {
            let mut digest = [0; 20];
            digest[..16].copy_from_slice(&tag);
            [
                Sendme::V0,
                Sendme::V1(SendmeTag::Cgo([1; 16])),
                // As if it were tor1's.
                Sendme::V1(SendmeTag::Tor1(digest)),
            ]
        }
        SendmeTag::Tor1(_) => panic!("a digest of tor1"),
    };
    for lie in 0..4 {
        let mut raw = raw(&world).await;
        raw.tell(1, &begin).await;
        let (mut cells, mut last) = (0, None);
        while cells < 31 {
            if let Heard::Message(_, RelayCommand::DATA, .., data, tag) = raw.hear().await {
                assert!(data.len() <= 488, "{}", data.len());
                (cells, last) = (cells + 1, Some(tag));
            }
        }
        let tag = last.expect("31 cells");
        let right = Sendme::V1(tag);
        let said = wrong(tag).get(lie).copied().unwrap_or(right);
        raw.tell(0, &Message::Sendme(said)).await;
        // The right one is right once.
        raw.tell(0, &Message::Sendme(right)).await;
        assert_eq!(raw.hear_of_the_circuit().await, PROTOCOL, "{said:?}");
    }
}

/// Cells of tor1 hold eight bytes more of an introduction than those of CGO: such a one is not passed on, and the service stays.
#[tokio::test]
async fn an_introduction_that_is_too_long_for_the_services_cells_is_refused_and_harms_nobody() {
    let world = world();
    let key = SigningKey::generate().expect("a key");
    let mut service = raw(&world).await;
    let asked = introduction::establish(&key, None, &service.nonce);
    service.say(RelayCommand::ESTABLISH_INTRO, 0, &asked).await;
    let heard = service.hear().await;
    let Heard::Message(0, RelayCommand::INTRO_ESTABLISHED, ..) = heard else {
        panic!("{heard:?}");
    };
    for (length, status) in [
        (498, IntroduceStatus::CANT_RELAY),
        (491, IntroduceStatus::CANT_RELAY),
        (490, IntroduceStatus::SUCCESS),
    ] {
        let dialer = world.net.dialer(None);
        let first = &world.path[1];
        let channel = Dialer::channel(&*dialer, first).await.expect("a channel");
        let mut client = Raw::new(&*channel, first, false).await;
        client.extend(&world.path[0], false).await;
        let mut data = Vec::new();
        Introduce {
            auth_key: key.public(),
            encrypted: b"",
        }
        .write(&mut data);
        data.resize(length, 7);
        client.say(RelayCommand::INTRODUCE1, 0, &data).await;
        let heard = client.hear().await;
        let Heard::Message(1, RelayCommand::INTRODUCE_ACK, _, ref said, _) = heard else {
            panic!("{heard:?}");
        };
        assert_eq!(IntroduceStatus::parse(said), Ok(status), "{length}");
    }
    let heard = service.hear().await;
    let Heard::Message(0, RelayCommand::INTRODUCE2, _, data, _) = heard else {
        panic!("{heard:?}");
    };
    assert_eq!(data.len(), 490);
}
