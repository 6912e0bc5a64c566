//! Channels at rest, over QUIC and TLS: which of both ends sends padding, and how often.

use std::time::Duration;

use tokio::time::sleep;

use super::harness::{World, circuit, recv, relay, send};
use crate::{Config, How, PaddingMode, handshake::Us};
use hoplite_wire::cell::Command;

const TIME: Duration = Duration::from_secs(120);

/// PADDING cells that the one who dials sends in that time, and the relay.
async fn padded(how: How, us: Us, client: PaddingMode, guard: PaddingMode) -> (u64, u64) {
    let mut world = World::new(Config {
        padding: guard,
        ..Config::default()
    });
    world.config.padding = client;
    let (near, far) = world.pair_as(us, how).await;
    let (mut a, mut b) = circuit(&near, &far).await;
    sleep(TIME).await;
    // The circuit is none the wiser.
    send(&mut b, Command::RELAY, 7).await;
    assert_eq!(recv(&mut a).await, (Command::RELAY, 7));
    assert_eq!(
        (world.here.ignored.get(), world.there.ignored.get()),
        (0, 0)
    );
    (world.here.padding.get(), world.there.padding.get())
}

/// One each 1.5 to 9.5 s.
fn usual(count: u64) -> bool {
    (12..=80).contains(&count)
}

#[tokio::test(start_paused = true)]
async fn a_client_and_its_guard_pad_a_channel_that_rests() {
    for how in [How::Quic, How::Tls] {
        let (client, guard) =
            padded(how, Us::default(), PaddingMode::Auto, PaddingMode::Auto).await;
        assert!(usual(client) && usual(guard), "{how:?}: {client}, {guard}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_pads_less_does_it_alone_and_one_that_does_not_is_not_padded() {
    for how in [How::Quic, How::Tls] {
        let (client, guard) =
            padded(how, Us::default(), PaddingMode::Reduced, PaddingMode::Auto).await;
        assert!(
            (8..=13).contains(&client) && guard == 0,
            "{how:?}: {client}, {guard}"
        );
        let off = padded(how, Us::default(), PaddingMode::Off, PaddingMode::Auto).await;
        assert_eq!(off, (0, 0), "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn relays_do_not_pad_towards_each_other() {
    for how in [How::Quic, How::Tls] {
        let both = padded(how, relay(1), PaddingMode::Auto, PaddingMode::Auto).await;
        assert_eq!(both, (0, 0), "{how:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_relay_can_leave_padding_to_its_clients() {
    let (client, guard) =
        padded(How::Tls, Us::default(), PaddingMode::Auto, PaddingMode::Off).await;
    assert!(usual(client) && guard == 0, "{client}, {guard}");
}
