//! Whom a relay dials and how, as whoever is dialled sees it: a client names any address and any identity in EXTEND2.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use hoplite_channel::How;
use hoplite_onion::path::Relay as Known;
use hoplite_overlay::Terms;
use hoplite_relay::Handle;
use hoplite_testing::{relay::number, soon, targets};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinSet,
    time::{Duration, sleep},
};

use crate::support::{client, echoes, known, path, refused, relay, relays, token};

const OVER_QUIC: &str = "hoplite_relay_onion_channels_in_open{transport=\"quic\"}";
const OVER_TLS: &str = "hoplite_relay_onion_channels_in_open{transport=\"tls\"}";

/// Somebody with one port of UDP and TCP.
async fn victim() -> (UdpSocket, TcpListener, SocketAddr) {
    loop {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let tcp = tcp.expect("binds");
        let address = tcp.local_addr().expect("bound");
        if let Ok(udp) = UdpSocket::bind(address).await {
            return (udp, tcp, address);
        }
    }
}

/// A relay that is said to be at the victim's address.
fn forged(relay: &Handle, at: SocketAddr, identity: u8) -> Known {
    let mut forged = known("forged", relay);
    forged.keys.ed25519[0] ^= identity;
    forged.addresses = vec![at];
    forged
}

fn list(relays: [&Handle; 2]) -> Vec<([u8; 32], Vec<SocketAddr>)> {
    let entry = |relay: &Handle| {
        let identity = known("", relay).keys.ed25519;
        (identity, relay.addresses().to_vec())
    };
    relays.map(entry).to_vec()
}

/// Waits until the relay has this many channels from others over this.
async fn has(relay: &Handle, what: &str, most: u64) {
    soon(async {
        while number(relay, what) != most {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// The first packets of QUIC are larger than the cell that asks for them, and go to whoever is named.
#[tokio::test]
async fn an_address_that_the_list_does_not_have_gets_no_quic_packet() {
    let (first, other) = (relay(|_| ()), relay(|_| ()));
    let listed = first.listed().expect("it serves circuits");
    listed.replace(list([&first, &other]));
    let (udp, tcp, address) = victim().await;
    // Both an identity that nobody has, and one that the list has at another address.
    for identity in [1, 0] {
        let path = vec![known("first", &first), forged(&other, address, identity)];
        let onion = client(path, How::Tls);
        let target = SocketAddr::from(([127, 0, 0, 1], 9));
        let asking = refused(&onion, target);
        let accepting = async {
            let (stream, _) = soon(tcp.accept()).await.expect("dialled over TCP");
            drop(stream);
        };
        tokio::join!(asking, accepting);
    }
    let mut bytes = [0; 2000];
    let got = udp.try_recv(&mut bytes);
    assert!(got.is_err(), "{got:?} bytes of QUIC went to a stranger");
}

#[tokio::test]
async fn a_relay_of_the_list_is_dialled_over_quic() {
    let (first, second) = (relay(|_| ()), relay(|_| ()));
    let listed = first.listed().expect("it serves circuits");
    listed.replace(list([&first, &second]));
    let onion = client(path([&first, &second]), How::Tls);
    echoes(&onion, &Terms::default(), 1000).await;
    assert_eq!(
        (number(&second, OVER_QUIC), number(&second, OVER_TLS)),
        (1, 0)
    );
}

#[tokio::test]
async fn a_relay_that_has_shown_itself_over_tls_is_dialled_over_quic_beside_it() {
    let (first, second) = (relay(|_| ()), relay(|_| ()));
    let onion = client(path([&first, &second]), How::Tls);
    echoes(&onion, &Terms::default(), 1000).await;
    has(&second, OVER_TLS, 1).await;
    has(&second, OVER_QUIC, 1).await;
}

#[tokio::test]
async fn an_address_is_dialled_so_often_and_relays_of_the_list_all_the_same() {
    let first = relay(|config| {
        config.onion.dials_per_address = 3;
        config.onion.dials_per_address_and_second = 1;
    });
    let second = relay(|_| ());
    let (_udp, tcp, address) = victim().await;
    let accepting = tokio::spawn(async move {
        // Whoever connects is hung up on.
        while tcp.accept().await.is_ok() {}
    });
    let listed = first.listed().expect("it serves circuits");
    listed.replace(list([&first, &second]));
    let target = targets::tcp_echo().await;
    let mut limited = 0;
    for identity in 1..=20 {
        let path = vec![known("first", &first), forged(&second, address, identity)];
        refused(&client(path, How::Tls), target).await;
        limited = number(
            &first,
            "hoplite_relay_onion_channel_faults_total{what=\"not_dialled\"}",
        );
        if limited > 0 {
            break;
        }
    }
    assert!(limited > 0, "it went on and on");
    let onion = client(path([&first, &second]), How::Tls);
    echoes(&onion, &token(1), 1000).await;
    accepting.abort();
}

/// Passes bytes on between whoever connects and `beyond`, at an address of its own, and counts them.
async fn forwarder(beyond: SocketAddr) -> (SocketAddr, Arc<AtomicU64>, JoinSet<()>) {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 9), 0)).await;
    let listener = listener.expect("binds");
    let (address, passed) = (listener.local_addr().expect("bound"), Arc::default());
    let (mut tasks, count) = (JoinSet::new(), Arc::clone(&passed));
    tasks.spawn(async move {
        let mut copies = JoinSet::new();
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(beyond).await.expect("it is there");
            let (near, far) = (near.into_split(), far.into_split());
            for (mut from, mut to) in [(near.0, far.1), (far.0, near.1)] {
                let count: Arc<AtomicU64> = Arc::clone(&count);
                copies.spawn(async move {
                    let mut bytes = [0; 4096];
                    while let Ok(read @ 1..) = from.read(&mut bytes).await {
                        count.fetch_add(read as u64, Relaxed);
                        if to.write_all(&bytes[..read]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    (address, passed, tasks)
}

/// tor-spec, "Canonical connections": "telling OR Alice to extend to OR Bob at some address X controlled by the attacker".
#[tokio::test]
async fn a_client_does_not_lead_what_two_relays_exchange_through_his_own_machine() {
    const BYTES: usize = 200_000;
    let [first, second] = relays(How::Tls);
    let (address, passed, _tasks) = forwarder(second.addresses()[0]).await;
    let through = Known {
        addresses: vec![address],
        ..known("second", &second)
    };
    let attacker = client(vec![known("first", &first), through], How::Tls);
    echoes(&attacker, &token(1), 1000).await;
    let before = passed.load(Relaxed);
    assert!(before > 0, "he has his own circuit");
    let honest = client(path([&first, &second]), How::Tls);
    echoes(&honest, &token(2), BYTES).await;
    let seen = passed.load(Relaxed) - before;
    assert!(seen < 10_000, "{seen} bytes of another's circuit passed by");
    assert_eq!(number(&second, OVER_TLS), 2, "a channel for each address");
}
