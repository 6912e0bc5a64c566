//! Relays of ours that C tor accepts: with an RSA identity made by openssl, TLS on a port of loopback, exits to anywhere.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use hoplite_channel::{
    self as link, ChannelDialer, ChannelServer, Channels, Config, Counts, How, handshake::Us,
};
use hoplite_crypto::{
    Certificates,
    onion::{OnionKey, OnionKeys, RelayKeys, identity::RelayIdentity},
    server_tls,
};
use hoplite_onion::{
    channel::Linked,
    path,
    relay::{self, Policy, serve},
};
use hoplite_overlay::Direct;
use hoplite_wire::Protocols;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

/// A relay, served as long as it lives.
pub(crate) struct Ours {
    address: SocketAddr,
    keys: RelayKeys,
    served: Arc<relay::Relay>,
    _tasks: JoinSet<()>,
}

impl Ours {
    pub(crate) async fn start(secret: u8) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let us = Us {
            identity: Some(Arc::new(identity(secret))),
            addresses: vec![address.ip()],
        };
        let peer = us.identity.as_ref().unwrap().peer();
        let onion = OnionKey::from_secret(&[secret; 32]).unwrap();
        let keys = OnionKeys::new(peer.rsa_id(), peer.ed25519, onion, None);
        let published = keys.published();
        let relay = relay(keys, us.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, us, Arc::clone(&relay)));
        Self {
            address,
            keys: published,
            served: relay,
            _tasks: tasks,
        }
    }

    /// Cells that it has passed on to clients.
    pub(crate) fn passed_back(&self) -> u64 {
        self.served.counters.cells.passed_back.load(Relaxed)
    }

    /// And from them.
    pub(crate) fn passed_forth(&self) -> u64 {
        self.served.counters.cells.passed_forth.load(Relaxed)
    }

    pub(crate) fn relay(&self) -> path::Relay {
        path::Relay {
            name: "ours".into(),
            exit: None,
            keys: self.keys,
            rsa: true,
            addresses: vec![self.address],
            ntor3: true,
            congestion_control: true,
            protocols: Protocols::NONE,
            half_close: true,
        }
    }
}

/// Channels over TLS; nobody begins circuits on those that a client dials.
pub(crate) fn dialer() -> Linked {
    linked(Us::default(), |_| {})
}

fn linked(us: Us, dialled: impl Fn(link::Channel) + Send + Sync + 'static) -> Linked {
    let link = hoplite_link::Config::default();
    let direct = Arc::new(Direct::default());
    let dialer = ChannelDialer::new(direct, us, &link, Config::default(), Arc::default());
    Linked::new(Channels::new(dialer, dialled), How::Tls)
}

/// C tor begins circuits on the channels that we dialled, too.
fn relay(keys: OnionKeys, us: Us) -> Arc<relay::Relay> {
    Arc::new_cyclic(|this: &Weak<relay::Relay>| {
        let this = Weak::clone(this);
        let dialer = linked(us, move |channel| {
            if let Some(relay) = this.upgrade() {
                tokio::spawn(serve(Arc::new(channel), relay));
            }
        });
        let mut relay = relay::Relay::new(keys, Arc::new(dialer), relay::Config::default());
        relay.next = Arc::new(Policy::everywhere(true));
        relay.out = Some(Arc::new(Direct::default()));
        relay.policy = Arc::new(Policy {
            ports: vec![1..=u16::MAX],
            special: true,
        });
        relay
    })
}

async fn accept(listener: TcpListener, us: Us, relay: Arc<relay::Relay>) {
    let made = hoplite_testing::identity("www.example");
    let tls = server_tls(Certificates::new(&made).unwrap(), &[]).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let counts = Arc::<Counts>::default();
    let server = ChannelServer::new(us, made.certificate_sha256(), Config::default(), counts);
    let (server, mut guests) = (Arc::new(server), JoinSet::new());
    while let Ok((stream, from)) = listener.accept().await {
        let (acceptor, server) = (acceptor.clone(), Arc::clone(&server));
        let relay = Arc::clone(&relay);
        guests.spawn(async move {
            let stream = acceptor.accept(stream).await.unwrap();
            match server.tls(stream, Some(from.ip())).await {
                Ok(channel) => serve(Arc::new(channel), relay).await,
                Err(link::handshake::Refused::Ended) => {}
                Err(refused) => println!("a channel to ours: {refused}"),
            }
        });
    }
}

/// With the files that openssl makes: docs/onion.md has the same as commands.
fn identity(secret: u8) -> RelayIdentity {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap().as_secs();
    let identity = RelayIdentity::from_secret(&[secret; 32], now).unwrap();
    let home = tempfile::tempdir().unwrap();
    let (certificate, cross) = rsa(home.path(), &identity.peer().ed25519, now);
    // The certificate holds from the second in which openssl made it.
    identity.with_rsa(&certificate, &cross, now + 60).unwrap()
}

fn rsa(home: &Path, ed25519: &[u8; 32], now: u64) -> (Vec<u8>, Vec<u8>) {
    openssl(home, "genrsa -out key.pem 1024");
    openssl(
        home,
        "req -x509 -new -key key.pem -sha256 -subj /CN=www.example.net -days 300 -outform DER -out rsa.crt",
    );
    let hours = u32::try_from((now + Duration::from_hours(24 * 100).as_secs()) / 3600).unwrap();
    let body = [&ed25519[..], &hours.to_be_bytes()].concat();
    let signed = [&b"Tor TLS RSA/Ed25519 cross-certificate"[..], &body].concat();
    std::fs::write(home.join("signed"), signed).unwrap();
    openssl(home, "dgst -sha256 -binary -out digest signed");
    openssl(
        home,
        "pkeyutl -sign -inkey key.pem -in digest -out signature",
    );
    let signature = std::fs::read(home.join("signature")).unwrap();
    let length = u8::try_from(signature.len()).unwrap();
    let cross = [&body[..], &[length], &signature].concat();
    (std::fs::read(home.join("rsa.crt")).unwrap(), cross)
}

fn openssl(home: &Path, arguments: &str) {
    let ran = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(home)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "openssl {arguments}: {said}");
}
