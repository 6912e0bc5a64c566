//! UDP that is blocked under circuits, and comes back.

use std::{sync::Arc, time::Duration};

use hoplite_channel::{self as channel, Channel, ChannelDialer, Channels, Counts, How};
use hoplite_link::LinkKind;
use hoplite_overlay::{Overlay, Terms};
use hoplite_relay::Handle;
use hoplite_testing::{path::Switch, soon, targets, until};
use tokio::io::AsyncReadExt;

use crate::support::{echo, echoes, over, path, relays, token};

/// Channels of a client below whom UDP may be blocked. What they notice they notice sooner than by default, but for an end: of that `broken_after` decides.
fn channels(below: &Switch, broken_after: Duration) -> Channels {
    let link = hoplite_link::Config {
        suspect_after: Duration::from_millis(300),
        lossy_after: Duration::from_millis(500),
        broken_after,
        ..hoplite_link::Config::default()
    };
    let config = channel::Config {
        quic_retry: Duration::from_millis(200),
        ..channel::Config::default()
    };
    let (us, counts) = (channel::handshake::Us::default(), Arc::<Counts>::default());
    let overlay = Arc::clone(&below.overlay);
    Channels::new(
        ChannelDialer::new(overlay, us, &link, config, counts),
        |_| (),
    )
}

/// The channel by which what is new goes.
fn taken(channels: &Channels, kind: LinkKind) -> Option<Channel> {
    let takes = |channel: &Channel| {
        let standing = channel.standing();
        channel.kind() == kind && !standing.is_superseded() && !standing.is_suspect()
    };
    channels.open().into_iter().find(takes)
}

/// A circuit that stands ready, besides those that are used.
fn config() -> hoplite_onion::Config {
    hoplite_onion::Config {
        ahead: 1,
        ..hoplite_onion::Config::default()
    }
}

#[tokio::test]
async fn what_is_new_leaves_quic_before_its_silence_is_an_end_and_returns_when_it_answers() {
    let (below, relays): (_, [Handle; 3]) = (Switch::new(), relays(How::Raced));
    let channels = channels(&below, Duration::from_secs(60));
    let onion = Arc::new(over(channels.clone(), path(&relays), How::Raced, config()));
    let terms = Terms::default();
    echoes(&onion, &terms, 1000).await;
    let quic = taken(&channels, LinkKind::Quic).expect("QUIC is first");
    below.block(true);
    // Somebody asks for something, and hears nothing.
    let (asking, target) = (Arc::clone(&onion), targets::tcp_echo().await.into());
    let asked = tokio::spawn(async move {
        let opened = asking.open_stream(&target, &Terms::default()).await;
        opened.map(drop)
    });
    until(|| quic.standing().is_suspect()).await;
    // The same token's next stream takes neither its circuit nor the one that stands ready.
    echoes(&onion, &terms, 1000).await;
    assert!(taken(&channels, LinkKind::Tls).is_some());
    assert!(quic.is_open() && !asked.is_finished());
    below.block(false);
    soon(asked).await.expect("runs").expect("answered at last");
    until(|| taken(&channels, LinkKind::Tls).is_none()).await;
    assert!(taken(&channels, LinkKind::Quic).is_some());
    echoes(&onion, &terms, 1000).await;
}

#[tokio::test]
async fn circuits_that_had_to_take_tls_take_quic_again_when_udp_is_back() {
    let (below, relays): (_, [Handle; 3]) = (Switch::new(), relays(How::Raced));
    let channels = channels(&below, Duration::from_secs(60));
    let onion = over(channels.clone(), path(&relays), How::Raced, config());
    below.block(true);
    let held = soon(onion.open_stream(&targets::tcp_echo().await.into(), &token(1))).await;
    let held = held.expect("opened over TLS");
    let tls = taken(&channels, LinkKind::Tls).expect("UDP is blocked");
    below.block(false);
    until(|| taken(&channels, LinkKind::Quic).is_some()).await;
    assert!(tls.standing().is_superseded());
    let quic = taken(&channels, LinkKind::Quic).expect("it is back");
    echoes(&onion, &token(1), 1000).await;
    assert!(quic.circuits() > 0);
    // What was open goes on where it is.
    assert!(tls.is_open());
    echo(held, 1000).await;
}

#[tokio::test]
async fn what_is_new_leaves_quic_where_much_of_what_comes_is_lost_and_returns() {
    let (below, relays): (_, [Handle; 3]) = (Switch::new(), relays(How::Raced));
    let channels = channels(&below, Duration::from_secs(60));
    let onion = over(channels.clone(), path(&relays), How::Raced, config());
    let target = targets::tcp_flood(1 << 30).await.into();
    let stream = soon(onion.open_stream(&target, &token(1))).await;
    let mut stream = stream.expect("opened");
    assert!(taken(&channels, LinkKind::Quic).is_some());
    below.thin(true);
    let mut piece = vec![0; 1 << 14];
    while taken(&channels, LinkKind::Tls).is_none() {
        soon(stream.read_exact(&mut piece)).await.expect("goes on");
    }
    assert!(taken(&channels, LinkKind::Quic).is_none());
    echoes(&onion, &token(1), 1000).await;
    below.thin(false);
    until(|| taken(&channels, LinkKind::Quic).is_some()).await;
    soon(stream.read_exact(&mut piece))
        .await
        .expect("goes on where it was");
}
