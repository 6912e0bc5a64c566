//! Lone relays of C tor, and what a client has to know of them: read from their own files, since no authority says it.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use hoplite_crypto::onion::RelayKeys;
use hoplite_onion::path::Relay;
use hoplite_wire::Protocols;
use tokio::{net::UdpSocket, task::JoinSet};

use crate::target;

/// `RefuseUnknownExits`: an exit knows no relay here, and would serve none of them.
const TORRC: &str = "
TestingTorNetwork 1
DirAuthority nobody orport=1 no-v2 v3ident=0000000000000000000000000000000000000001 127.0.0.1:1 0000000000000000000000000000000000000002
AssumeReachable 1
Nickname oracle
Address 127.0.0.1
ORPort 127.0.0.1:auto IPv4Only
SocksPort 0
ExitRelay 1
ExitPolicyRejectPrivate 0
ExitPolicy reject *:25
ExitPolicy accept *:*
RefuseUnknownExits 0
ServerDNSAllowBrokenConfig 1
ServerDNSSearchDomains 0
ServerDNSRandomizeCase 0
ServerDNSDetectHijacking 0
ServerDNSTestAddresses
PublishServerDescriptor 0
ShutdownWaitLength 0
ProtocolWarnings 1
SafeLogging 0
ContactInfo none@example.invalid
";
/// Bytes before the key in its files of keys: the file's kind.
const TAG: usize = 32;

/// A running C tor, ended with the test.
pub(crate) struct Tor {
    child: Child,
    home: tempfile::TempDir,
    _names: JoinSet<()>,
    address: SocketAddr,
    keys: RelayKeys,
}

impl Tor {
    /// Three of them.
    pub(crate) async fn three() -> Vec<Self> {
        let (a, b, c) = tokio::join!(Self::start(), Self::start(), Self::start());
        vec![a, b, c]
    }

    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let torrc = home.path().join("torrc");
        std::fs::write(&torrc, TORRC).unwrap();
        let (resolver, names) = resolver().await;
        let servers = home.path().join("resolv.conf");
        std::fs::write(&servers, format!("nameserver {resolver}\n")).unwrap();
        let (data, log) = (home.path().join("data"), home.path().join("log"));
        let tor = std::env::var_os("TOR").unwrap_or_else(|| "tor".into());
        let child = Command::new(tor)
            .arg("-f")
            .arg(&torrc)
            .arg("--DataDirectory")
            .arg(&data)
            .arg("--ServerDNSResolvConfFile")
            .arg(&servers)
            .args(["--Log", &format!("info file {}", log.display())])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let address = listener(&log).await;
        Self {
            child,
            address,
            keys: keys(&data),
            home,
            _names: names,
        }
    }

    /// Until it says so in its log.
    pub(crate) async fn hears(&self, what: &str) {
        let log = self.home.path().join("log");
        while !std::fs::read_to_string(&log).is_ok_and(|log| log.contains(what)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The end of its log.
    fn said(&self) -> String {
        let log = std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
        let dull = [
            "tor_addr_parse_mask_ports",
            "network",
            "directory",
            "dirserv",
        ];
        let interesting = |line: &&str| !dull.iter().any(|word| line.contains(word));
        let lines: Vec<_> = log.lines().filter(interesting).collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    pub(crate) fn relay(&self) -> Relay {
        relay_of(self.address, self.keys)
    }
}

/// What is known of a C tor with these keys.
pub(crate) fn relay_of(address: SocketAddr, keys: RelayKeys) -> Relay {
    Relay {
        name: "theirs".into(),
        exit: None,
        keys,
        rsa: true,
        addresses: vec![address],
        ntor3: true,
        congestion_control: true,
        protocols: Protocols::NONE,
        half_close: false,
    }
}

impl Drop for Tor {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            println!("--- tor said\n{}", self.said());
        }
    }
}

/// From the files of a C tor.
pub(crate) fn keys(data: &Path) -> RelayKeys {
    let read = |name: &str| std::fs::read(data.join(name)).unwrap();
    let ed25519 = read("keys/ed25519_master_id_public_key");
    // The secret key, then the public one.
    let onion = read("keys/secret_onion_key_ntor");
    let fingerprint = String::from_utf8(read("fingerprint")).unwrap();
    let digits = fingerprint.split_whitespace().last().unwrap();
    RelayKeys {
        rsa_id: hoplite_wire::tor::fingerprint(digits).unwrap(),
        ed25519: ed25519[TAG..].try_into().unwrap(),
        onion: onion[TAG + 32..TAG + 64].try_into().unwrap(),
    }
}

/// Answers names for it.
async fn resolver() -> (SocketAddr, JoinSet<()>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (address, mut tasks) = (socket.local_addr().unwrap(), JoinSet::new());
    tasks.spawn(async move {
        let mut query = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut query).await {
            let answer = target::names(&query[..length]);
            drop(socket.send_to(&answer, from).await);
        }
    });
    (address, tasks)
}

/// Where it listens, once it says so and has made its descriptor: without one it serves no exit streams.
async fn listener(log: &Path) -> SocketAddr {
    for _ in 0..600 {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.contains("Opened OR listener") && line.contains("127.0.0.1:"));
        let port = line.and_then(|line| line.rsplit(':').next()?.trim().parse().ok());
        if let Some(port) = port
            && text.contains("Adding stats to extra-info descriptor")
        {
            return SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("tor did not start");
}
