//! Relays that share one name behind a balancer, which finds them by the ids of connections alone.

use std::{collections::HashMap, net::SocketAddr, path::PathBuf, sync::Arc};

use hoplite_crypto::{ALPN_H3, RoutableIds, Trust, client_tls};
use hoplite_http::h3::{self, Session};
use hoplite_quic as quic;
use hoplite_relay::{Handle, config::Fleet};
use hoplite_testing::{relay::relay, soon, targets};
use parking_lot::Mutex;
use tokio::{net::UdpSocket, task::JoinSet};

use crate::support::tcp;

const KEY: [u8; 16] = 0x8f95_f092_4576_5f80_2569_34e5_0c66_207f_u128.to_be_bytes();

/// The key's file, until the directory is dropped.
fn key() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("fleet.key");
    std::fs::write(&path, format!("{:032x}", u128::from_be_bytes(KEY))).expect("written");
    let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, owner).expect("set");
    (directory, path)
}

fn numbered(number: u8, key: &std::path::Path, shards: usize) -> Handle {
    relay(|config| {
        config.limits.shards = shards;
        config.fleet = Some(Fleet {
            config: 3,
            server_id: format!("00{number:02x}"),
            key: key.into(),
        });
    })
}

/// What the balancer saw of short headers: the number inside each id.
type Seen = Arc<Mutex<Vec<u16>>>;

/// Packets whose id leads to a relay go there, all others to the first one that is named.
struct Balancer {
    address: SocketAddr,
    seen: Seen,
    _tasks: JoinSet<()>,
}

impl Balancer {
    async fn start(fallback: u16, relays: HashMap<u16, SocketAddr>) -> Self {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"));
        let address = socket.local_addr().expect("an address");
        let seen = Seen::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(carry(socket, fallback, relays, Arc::clone(&seen)));
        Self {
            address,
            seen,
            _tasks: tasks,
        }
    }
}

async fn carry(
    socket: Arc<UdpSocket>,
    fallback: u16,
    relays: HashMap<u16, SocketAddr>,
    seen: Seen,
) {
    let ids = RoutableIds::new(3, 2, 5, &KEY).expect("ids");
    let mut flows: HashMap<(SocketAddr, u16), Arc<UdpSocket>> = HashMap::new();
    let mut back = JoinSet::new();
    let mut packet = [0; 2048];
    while let Ok((length, client)) = socket.recv_from(&mut packet).await {
        let packet = &packet[..length];
        let long = packet[0] & 0x80 != 0;
        let id = &packet[if long { 6 } else { 1 }..];
        let server = ids.open(id).and_then(|id| id.as_bytes().try_into().ok());
        let server = server.map(u16::from_be_bytes);
        if !long {
            seen.lock().push(server.expect("a relay's id"));
        }
        let to = server
            .filter(|id| relays.contains_key(id))
            .unwrap_or(fallback);
        let flow = match flows.get(&(client, to)) {
            Some(flow) => Arc::clone(flow),
            None => {
                let flow = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"));
                flows.insert((client, to), Arc::clone(&flow));
                let (from, socket) = (Arc::clone(&flow), Arc::clone(&socket));
                back.spawn(async move {
                    let mut packet = [0; 2048];
                    while let Ok((length, _)) = from.recv_from(&mut packet).await {
                        drop(socket.send_to(&packet[..length], client).await);
                    }
                });
                flow
            }
        };
        drop(flow.send_to(packet, relays[&to]).await);
    }
}

/// A connection to `relay` by way of a balancer.
async fn connect(relay: &Handle, balancer: &Balancer) -> (quic::Endpoint, Session) {
    let tls = client_tls(&Trust::Pins(vec![relay.pin()]), &[ALPN_H3]).expect("TLS");
    let tls: quic::crypto::rustls::QuicClientConfig = tls.try_into().expect("QUIC");
    let endpoint = quic::Endpoint::client("127.0.0.1:0".parse().expect("any")).expect("a socket");
    let config = quic::ClientConfig::new(Arc::new(tls));
    let dialling = endpoint.connect_with(config, balancer.address, "localhost");
    let connection = soon(dialling.expect("begun")).await.expect("connected");
    let session = Session::client(connection, &h3::Config::default());
    (endpoint, session)
}

async fn status(session: &Session, target: SocketAddr) -> u16 {
    let mut exchange = session.request(&tcp(target)).await.expect("sent");
    soon(exchange.response()).await.expect("answered").status
}

#[tokio::test]
async fn every_id_of_a_relay_says_which_relay_it_is_whatever_its_shards() {
    let (_directory, key) = key();
    let target = targets::tcp_echo().await;
    for shards in [1, 3, 16] {
        let relay = numbered(0xa7, &key, shards);
        let relays = HashMap::from([(0xa7, relay.addresses()[0])]);
        let balancer = Balancer::start(0xa7, relays).await;
        for _ in 0..6 {
            let (_endpoint, session) = connect(&relay, &balancer).await;
            assert_eq!(status(&session, target).await, 200);
        }
        let seen = balancer.seen.lock();
        assert!(!seen.is_empty() && seen.iter().all(|number| *number == 0xa7));
    }
}

#[tokio::test]
async fn a_client_on_another_port_reaches_its_relay_while_new_ones_go_elsewhere() {
    let (_directory, key) = key();
    let target = targets::tcp_echo().await;
    let (first, second) = (numbered(1, &key, 2), numbered(2, &key, 2));
    let relays = HashMap::from([(1, first.addresses()[0]), (2, second.addresses()[0])]);
    let before = Balancer::start(1, relays.clone()).await;
    let (endpoint, session) = connect(&first, &before).await;
    assert_eq!(status(&session, target).await, 200);

    // Only ids are left to know the relay by: a new balancer at the old place, which sends what is new to the second relay.
    let address = before.address;
    drop(before);
    let socket = soon(async {
        loop {
            if let Ok(socket) = UdpSocket::bind(address).await {
                break Arc::new(socket);
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let seen = Seen::default();
    let mut tasks = JoinSet::new();
    tasks.spawn(carry(socket, 2, relays, Arc::clone(&seen)));
    let after = Balancer {
        address,
        seen,
        _tasks: tasks,
    };
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    endpoint.rebind(socket).expect("another port");
    assert_eq!(status(&session, target).await, 200);
    assert!(after.seen.lock().iter().all(|number| *number == 1));

    let (_endpoint, session) = connect(&second, &after).await;
    assert_eq!(status(&session, target).await, 200);
    assert!(after.seen.lock().contains(&2));
}
