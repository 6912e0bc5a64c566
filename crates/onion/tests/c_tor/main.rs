//! Our circuits through C tor, the oracle: `cargo test -p hoplite-onion --test c_tor -- --ignored` where `tor` and `openssl` are installed
//! (or `TOR=/path`). Lone relays of a test network that has no authorities, on loopback: circuits need nobody else. Descriptors of onion services
//! need directories, and have a network with an authority; interop/tor_test.py has one with three, whose consensus we read.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test: whatever fails ends it, and says what tor said"
)]

mod conflux;
mod descriptors;
mod network;
mod ours;
mod services;
mod target;
mod tor;

use std::{net::IpAddr, panic::Location, sync::Arc, time::Duration};

use futures_util::future::join_all;
use hoplite_onion::{
    Config, Onion,
    path::{Fixed, Relay},
};
use hoplite_overlay::{ErrorKind, Overlay, Reason, Terms};
use hoplite_wire::{Protocols, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    ours::{Ours, dialer},
    target::{Served, download, read_all, upload},
    tor::Tor,
};

const MEGABYTE: u64 = 1 << 20;

/// What a circuit agrees on with its relays: how its flow is controlled, and how its cells are encrypted.
#[derive(Clone, Copy, Debug)]
enum Control {
    /// ntor-v3, with congestion control and CGO at every hop.
    Cgo,
    /// The same with CGO at every second hop.
    Mixed,
    /// ntor-v3, with congestion control.
    Vegas,
    /// ntor-v3 without.
    Fixed,
    /// ntor everywhere.
    Ntor,
}

const CONTROLS: [Control; 5] = [
    Control::Cgo,
    Control::Mixed,
    Control::Vegas,
    Control::Fixed,
    Control::Ntor,
];

impl Control {
    /// What is asked of relay `hop` of the path.
    fn protocols(self, hop: usize) -> Protocols {
        match self {
            Self::Cgo => Protocols::CGO,
            Self::Mixed if hop.is_multiple_of(2) => Protocols::CGO,
            _ => Protocols::NONE,
        }
    }
}

/// A client whose circuits go over `path`. None is built ahead: of two circuits that end together C tor tells of the second only when it has
/// something else to send on the channel.
fn client(path: Vec<Relay>, control: Control) -> Onion {
    let path = path.into_iter().enumerate().map(|(hop, relay)| Relay {
        protocols: control.protocols(hop),
        ntor3: !matches!(control, Control::Ntor),
        ..relay
    });
    let config = Config {
        congestion_control: !matches!(control, Control::Fixed | Control::Ntor),
        ahead: 0,
        ..Config::default()
    };
    let paths = Fixed(path.collect());
    Onion::new(Arc::new(dialer()), Arc::new(paths), config)
}

/// What is waited for takes seconds, but for a network of C tor: that needs a consensus or two, and more of them where the machine is slow.
const LIMIT: Duration = Duration::from_secs(240);

/// Fails rather than hangs, and says where.
#[track_caller]
fn limit<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = Location::caller();
    async move {
        let done = tokio::time::timeout(LIMIT, work).await;
        done.unwrap_or_else(|_| panic!("it hangs at {place}"))
    }
}

/// A megabyte each way, and streams beside each other.
async fn carries(path: Vec<Relay>, control: Control) {
    let (client, served) = (client(path, control), Served::start().await);
    limit(download(&client, &served, MEGABYTE)).await;
    limit(upload(&client, &served, MEGABYTE)).await;
    let many = (0..20).map(|_| download(&client, &served, 20_000));
    limit(join_all(many)).await;
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn three_relays_of_c_tor_carry_streams_with_each_flow_control_and_encryption() {
    let tors = Tor::three().await;
    for control in CONTROLS {
        println!("{control:?}");
        carries(tors.iter().map(Tor::relay).collect(), control).await;
    }
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn relays_of_ours_and_of_c_tor_make_circuits_together() {
    let (tors, ours) = (
        Tor::three().await,
        [Ours::start(1).await, Ours::start(2).await],
    );
    let [t0, t1, t2] = [0, 1, 2].map(|n| tors[n].relay());
    let [o0, o1] = [0, 1].map(|n: usize| ours[n].relay());
    let paths = [
        (
            "ours, theirs, ours",
            vec![o0.clone(), t0.clone(), o1.clone()],
        ),
        (
            "theirs, ours, theirs",
            vec![t0.clone(), o0.clone(), t1.clone()],
        ),
        ("ours as guard", vec![o0.clone(), t0.clone(), t1.clone()]),
        ("ours as exit", vec![t0.clone(), t1.clone(), o0]),
        ("ours as middle of four", vec![t0, o1, t1, t2]),
    ];
    for (name, path) in paths {
        for control in CONTROLS {
            println!("{name}, {control:?}");
            carries(path.clone(), control).await;
        }
    }
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn what_an_exit_of_c_tor_says_is_understood() {
    let tors = Tor::three().await;
    let client = client(tors.iter().map(Tor::relay).collect(), Control::Vegas);
    let terms = Terms::default();
    let (name, address) = target::NAME;
    let found = limit(client.resolve(name, &terms)).await.unwrap();
    assert_eq!(found, [IpAddr::V4(address)]);
    let nobody = limit(client.resolve("nobody.invalid", &terms)).await;
    let nobody = nobody.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::TargetFailed, "{nobody:?}");
    let refused = Target::from(target::closed().await);
    let refused = limit(client.open_stream(&refused, &terms)).await;
    let refused = refused.unwrap_err();
    // "Didn't recognize errno 115; telling the client that we are ending a stream for 'misc' reason": on loopback C tor forgets the refusal.
    let forgot = refused.kind() == ErrorKind::PathFailed;
    assert!(
        forgot || refused.reason() == Some(Reason::Refused),
        "{refused:?}"
    );
    let forbidden = "127.0.0.1:25".parse::<std::net::SocketAddr>().unwrap();
    let forbidden = limit(client.open_stream(&forbidden.into(), &terms)).await;
    let forbidden = forbidden.unwrap_err();
    assert_eq!(forbidden.kind(), ErrorKind::Forbidden, "{forbidden:?}");
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn a_relay_of_c_tor_answers_as_a_directory_through_a_circuit() {
    let tors = Tor::three().await;
    let client = client(tors.iter().map(Tor::relay).collect(), Control::Vegas);
    let mut stream = limit(client.open_directory(&Terms::default()))
        .await
        .unwrap();
    let asked = b"GET /tor/server/authority HTTP/1.0\r\n\r\n";
    stream.write_all(asked).await.unwrap();
    let mut answer = String::new();
    limit(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    assert!(answer.contains("\nntor-onion-key "), "{answer}");
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn a_relay_of_c_tor_that_is_killed_ends_streams_with_an_error() {
    let mut tors = Tor::three().await;
    let path: Vec<_> = tors.iter().map(Tor::relay).collect();
    let (client, served) = (client(path, Control::Vegas), Served::start().await);
    limit(download(&client, &served, 1000)).await;
    let mut stream = limit(served.ask(&client, b'e', 0)).await.unwrap();
    drop(tors.remove(1));
    let ended = limit(read_all(&mut stream)).await;
    println!("the stream: {ended:?}");
    assert!(ended.is_err(), "{ended:?}");
    let again = limit(served.ask(&client, b'e', 0)).await.unwrap_err();
    let kinds = [ErrorKind::PathFailed, ErrorKind::TimedOut];
    assert!(kinds.contains(&again.kind()), "{again:?}");
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn a_download_goes_on_after_its_reader_has_said_xoff_and_xon() {
    const BYTES: u64 = 8 * MEGABYTE;
    let tors = Tor::three().await;
    let client = client(tors.iter().map(Tor::relay).collect(), Control::Cgo);
    let served = Served::start().await;
    let mut stream = limit(served.ask(&client, b'd', BYTES)).await.unwrap();
    // Nobody reads: more and more waits at the client, until it says XOFF.
    limit(tors[2].hears("Got XOFF!")).await;
    let got = limit(read_all(&mut stream)).await.unwrap();
    assert_eq!(got, BYTES);
}
