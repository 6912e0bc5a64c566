//! Relays of circuits on loopback, and clients that build circuits through them over real channels.

use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use hoplite_channel::{
    self as channel, Channel, ChannelDialer, Channels, Counts, How, Whom, handshake::Us,
};
use hoplite_crypto::onion::{RelayKeys, Secrets};
use hoplite_onion::{
    Onion,
    channel::Linked,
    path::{Fixed, Relay as Known},
};
use hoplite_overlay::{Error, Isolation, Overlay, Stream, Terms, conformance::Subject};
use hoplite_relay::{Circuits, Config, Handle, Parts, Relay};
use hoplite_testing::{Double, path::direct, relay::identity, soon, targets};
use hoplite_wire::{Protocols, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::carriers;

/// A relay of circuits that serves loopback targets, and extends to relays there.
pub(crate) fn config() -> Config {
    let mut config = hoplite_testing::relay::config();
    config.onion.enabled = true;
    config
}

pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("after 1970").as_secs()
}

pub(crate) fn circuits(secrets: &Secrets) -> Circuits {
    let identity = secrets.identity(now()).expect("made");
    let keys = secrets.keys(&identity).expect("made");
    Circuits { identity, keys }
}

pub(crate) fn start(config: &Config) -> Handle {
    start_as(config, &Secrets::fresh(now()).expect("made"))
}

pub(crate) fn start_as(config: &Config, secrets: &Secrets) -> Handle {
    let parts = Parts {
        circuits: Some(circuits(secrets)),
        ..Parts::default()
    };
    Relay::start_with(config, &identity(), parts).expect("started")
}

/// A relay with something changed.
pub(crate) fn relay(change: impl FnOnce(&mut Config)) -> Handle {
    let mut config = config();
    change(&mut config);
    start(&config)
}

/// This many relays whose channels run over `how`.
pub(crate) fn relays<const N: usize>(how: How) -> [Handle; N] {
    std::array::from_fn(|_| relay(|config| config.onion.channels = carriers(how)))
}

/// What a client knows of a relay.
pub(crate) fn known(name: &str, relay: &Handle) -> Known {
    Known {
        name: name.into(),
        keys: RelayKeys::from(relay.onion_key().expect("it serves circuits")),
        rsa: false,
        addresses: relay.addresses().to_vec(),
        exit: None,
        ntor3: true,
        congestion_control: true,
        protocols: Protocols::DATAGRAM,
        half_close: true,
    }
}

/// `r1`, `r2` and so on.
pub(crate) fn path<'a>(relays: impl IntoIterator<Item = &'a Handle>) -> Vec<Known> {
    let named = (1..).zip(relays);
    named
        .map(|(n, relay)| known(&format!("r{n}"), relay))
        .collect()
}

/// Whose circuits go through `path`.
pub(crate) fn client(path: Vec<Known>, how: How) -> Onion {
    let config = hoplite_onion::Config {
        ahead: 0,
        attempts: 1,
        isolated: 64,
        ..hoplite_onion::Config::default()
    };
    let channels = Channels::new(dialer(), |_| ());
    over(channels, path, how, config)
}

pub(crate) fn over(
    channels: Channels,
    path: Vec<Known>,
    how: How,
    config: hoplite_onion::Config,
) -> Onion {
    let linked = Linked::new(channels, how);
    Onion::new(Arc::new(linked), Arc::new(Fixed(path)), config)
}

/// Dials channels as clients do.
fn dialer() -> ChannelDialer {
    let bounds = channel::Config {
        guest_circuits: 256,
        ..channel::Config::default()
    };
    ChannelDialer::new(
        direct(),
        Us::default(),
        &hoplite_link::Config::default(),
        bounds,
        Arc::new(Counts::default()),
    )
}

/// A channel to a relay, on which nothing is begun.
pub(crate) async fn bare(relay: &Handle, how: How) -> Result<Channel, Error> {
    bare_at(relay.addresses()[0], how).await
}

/// The same, to one of its addresses.
pub(crate) async fn bare_at(address: SocketAddr, how: How) -> Result<Channel, Error> {
    let whom = Whom {
        name: "held".into(),
        address: Target::from(address),
        identity: None,
        rsa: None,
    };
    soon(dialer().dial(&whom, how, &Terms::default())).await
}

/// Terms with a token of their own: a circuit of their own.
pub(crate) fn token(n: u32) -> Terms {
    Terms {
        isolation: Isolation::new(n.to_be_bytes().to_vec()),
        ..Terms::default()
    }
}

pub(crate) async fn open(
    onion: &Onion,
    target: impl Into<Target>,
    terms: &Terms,
) -> Result<Stream, Error> {
    soon(onion.open_stream(&target.into(), terms)).await
}

pub(crate) async fn refused(onion: &Onion, target: impl Into<Target>) -> Error {
    open(onion, target, &Terms::default())
        .await
        .expect_err("refused")
}

/// Sends this many bytes to an echo and reads them back, both at once; they are to be the same.
pub(crate) async fn echo(stream: Stream, bytes: usize) {
    let sent: Vec<u8> = (0..bytes)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0])
        .collect();
    let (mut from, mut to) = tokio::io::split(stream);
    let mut got = Vec::with_capacity(bytes);
    let send = async {
        to.write_all(&sent).await.expect("taken");
        to.shutdown().await.expect("finished");
    };
    let receive = async {
        from.read_to_end(&mut got).await.expect("whole");
    };
    soon(async { tokio::join!(send, receive) }).await;
    assert!(got == sent, "{} of {bytes} bytes, or other ones", got.len());
}

/// An echo through a circuit of `token`.
pub(crate) async fn echoes(onion: &Onion, terms: &Terms, bytes: usize) {
    let target = targets::tcp_echo().await;
    let stream = open(onion, target, terms).await.expect("opens");
    echo(stream, bytes).await;
}

/// A client and the relays of its path.
pub(crate) fn subject(how: How) -> Subject {
    let relays: [Handle; 3] = relays(how);
    let onion = client(path(&relays), how);
    Subject::on_loopback(Arc::new(Double::over(onion).keeping(relays)))
}
