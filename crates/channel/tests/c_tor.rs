//! Our TLS channel against C tor, the oracle: `cargo test -p hoplite-channel --test c_tor -- --ignored` where `tor` is installed (or `TOR=/path`).
//! One relay of a test network that has no authorities, on loopback: its link handshake needs nobody else.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test: whatever fails ends it"
)]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, Command as Process, Stdio},
    sync::Arc,
    time::Duration,
};

use hoplite_channel::{
    Channel, ChannelDialer, Config, Counts, How, PaddingMode, Whom, handshake::Us,
};
use hoplite_crypto::onion::identity::RelayIdentity;
use hoplite_link::LinkKind;
use hoplite_overlay::{Direct, Error, Reason, Terms};
use hoplite_wire::{
    Target,
    cell::{Cell, CircuitId, Command},
};

const TORRC: &str = "
TestingTorNetwork 1
DirAuthority nobody orport=1 no-v2 v3ident=0000000000000000000000000000000000000001 127.0.0.1:1 0000000000000000000000000000000000000002
AssumeReachable 1
Nickname oracle
Address 127.0.0.1
ORPort 127.0.0.1:auto IPv4Only
SocksPort 0
ExitRelay 0
PublishServerDescriptor 0
ContactInfo none@example.invalid
";
/// What stands before the key in `ed25519_master_id_public_key`.
const TAG: usize = 32;

/// A running C tor, ended with the test.
struct Tor {
    child: Child,
    _home: tempfile::TempDir,
    address: SocketAddr,
    identity: [u8; 32],
}

impl Tor {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let torrc = home.path().join("torrc");
        std::fs::write(&torrc, TORRC).unwrap();
        let data = home.path().join("data");
        let log = home.path().join("log");
        let tor = std::env::var_os("TOR").unwrap_or_else(|| "tor".into());
        let child = Process::new(tor)
            .arg("-f")
            .arg(&torrc)
            .arg("--DataDirectory")
            .arg(&data)
            .args(["--Log", &format!("info file {}", log.display())])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let address = listener(&log).await;
        let key = std::fs::read(data.join("keys/ed25519_master_id_public_key")).unwrap();
        Self {
            child,
            _home: home,
            address,
            identity: key[TAG..].try_into().unwrap(),
        }
    }

    fn whom(&self) -> Whom {
        Whom {
            name: "oracle".into(),
            address: Target::from(self.address),
            identity: Some(self.identity),
            rsa: None,
        }
    }

    async fn dial(&self, us: Us, whom: &Whom, how: How) -> Result<Channel, Error> {
        let dialer = self.dialer(us, PaddingMode::Off);
        let terms = Terms::default();
        let dialled = tokio::time::timeout(Duration::from_secs(30), dialer.dial(whom, how, &terms));
        dialled.await.expect("it hangs")
    }

    fn dialer(&self, us: Us, padding: PaddingMode) -> ChannelDialer {
        let link = hoplite_link::Config::default();
        let config = Config {
            padding,
            ..Config::default()
        };
        let counts = Arc::<Counts>::default();
        ChannelDialer::new(Arc::new(Direct::default()), us, &link, config, counts)
    }
}

impl Drop for Tor {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Where it listens, once it says so.
async fn listener(log: &Path) -> SocketAddr {
    for _ in 0..600 {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.contains("Opened OR listener") && line.contains("127.0.0.1:"));
        let port = line.and_then(|line| line.rsplit(':').next()?.trim().parse().ok());
        // Keys and the listener come before the first line of the main loop.
        if let Some(port) = port
            && text.contains("Bootstrapped 0%")
        {
            return SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("tor did not start");
}

/// CREATE_FAST needs no key of the relay: its answer shows that circuits of ours are understood.
async fn make_circuit(channel: &Channel) {
    let mut circuit = channel.open().await.unwrap();
    let create = Cell::new(CircuitId::default(), Command::CREATE_FAST, |body| {
        body.extend_from_slice(&[7; 20]);
    });
    circuit.sender.ready().await.unwrap();
    circuit.sender.send(create.unwrap()).unwrap();
    circuit.sender.flush().await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(30), circuit.receiver.recv());
    let answer = answer.await.expect("no answer").unwrap();
    assert_eq!(
        (answer.command, answer.circuit),
        (Command::CREATED_FAST, circuit.id)
    );
    circuit.sender.destroy(0);
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn a_client_of_ours_has_a_channel_to_c_tor_and_circuits_on_it() {
    let tor = Tor::start().await;
    let channel = tor
        .dial(Us::default(), &tor.whom(), How::Tls)
        .await
        .unwrap();
    let established = channel.established();
    assert_eq!(channel.peer().unwrap().ed25519, tor.identity);
    assert_eq!(established.version, 5);
    assert!(established.ahead.unwrap().abs() < 60);
    assert!(channel.is_canonical(tor.address.ip()));
    println!(
        "{established:?}: ours {:?}, theirs {:?}",
        established.ours, established.theirs
    );
    for _ in 0..10 {
        make_circuit(&channel).await;
    }
    assert!(channel.is_open());
}

/// It says nothing of it; a cell that it cannot read ends no channel either, but one that it takes for a relay's does.
#[tokio::test]
#[ignore = "needs C tor"]
async fn c_tor_takes_what_a_client_of_ours_says_of_padding() {
    let tor = Tor::start().await;
    for padding in [PaddingMode::Off, PaddingMode::Reduced, PaddingMode::Auto] {
        let dialer = tor.dialer(Us::default(), padding);
        let terms = Terms::default();
        let whom = tor.whom();
        let dialled = dialer.dial(&whom, How::Tls, &terms);
        let dialled = tokio::time::timeout(Duration::from_secs(30), dialled).await;
        let channel = dialled.expect("it hangs").unwrap();
        // Behind the cell on the same stream: once this is answered, that was read.
        make_circuit(&channel).await;
        assert!(channel.is_open(), "{padding:?}");
        channel.close();
    }
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn the_race_ends_with_tls_where_c_tor_has_no_quic() {
    let tor = Tor::start().await;
    let channel = tor.dial(Us::default(), &tor.whom(), How::Raced).await;
    let channel = channel.unwrap();
    assert_eq!(channel.kind(), LinkKind::Tls);
    make_circuit(&channel).await;
}

#[tokio::test]
#[ignore = "needs C tor"]
async fn c_tor_with_another_identity_is_refused() {
    let tor = Tor::start().await;
    let mut whom = tor.whom();
    whom.identity = Some([7; 32]);
    let refused = tor.dial(Us::default(), &whom, How::Tls).await;
    assert_eq!(refused.unwrap_err().reason(), Some(Reason::Identity));
}

/// C tor wants an RSA identity, too (tor-spec: "CERTS cells"); without one it takes us for nobody, or hangs up.
#[tokio::test]
#[ignore = "needs C tor"]
async fn what_c_tor_says_to_a_relay_without_an_rsa_identity() {
    let tor = Tor::start().await;
    let now = std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    let identity = RelayIdentity::from_secret(&[1; 32], now.as_secs()).unwrap();
    let us = Us {
        identity: Some(Arc::new(identity)),
        addresses: Vec::new(),
    };
    match tor.dial(us, &tor.whom(), How::Tls).await {
        Ok(channel) => {
            let ended = tokio::time::timeout(Duration::from_secs(3), channel.closed()).await;
            println!("a channel; then {ended:?}");
        }
        Err(error) => println!("refused: {error:?}"),
    }
}
