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
use hoplite_relay::{Handle, InConsensus, config::Tor};
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

/// A relay in a network of Tor's, that has heard no consensus yet.
fn relay_of_tor() -> Handle {
    relay(|config| {
        config.onion.tor = Some(Tor {
            authorities: vec!["127.0.0.1:9".parse().expect("an authority")],
            contact: None,
            directory_cache: None,
            family: Vec::new(),
            family_keys: Vec::new(),
        });
    })
}

/// What the consensus says of relays, and which of them say that they have QUIC.
fn consensus<const N: usize>(relays: [(&Handle, bool); N]) -> [([u8; 32], InConsensus); N] {
    relays.map(|(relay, quic)| {
        let addresses = relay.addresses().to_vec();
        let identity = known("", relay).keys.ed25519;
        (identity, InConsensus { addresses, quic })
    })
}

fn over(relay: &Handle) -> (u64, u64) {
    (number(relay, OVER_QUIC), number(relay, OVER_TLS))
}

#[tokio::test]
async fn in_a_network_of_tor_relays_that_say_so_are_dialled_over_quic_and_all_others_over_tls() {
    let first = relay_of_tor();
    let [ours, theirs, stranger] = relays(How::Raced);
    let listed = first.listed().expect("it serves circuits");
    listed.replace_consensus(consensus([(&ours, true), (&theirs, false)]));
    // What is dialled beside TLS comes after it: the last is waited for.
    for relay in [&stranger, &theirs, &ours] {
        let onion = client(path([&first, relay]), How::Tls);
        echoes(&onion, &Terms::default(), 100_000).await;
    }
    let channels = [&ours, &theirs, &stranger].map(over);
    assert_eq!(channels, [(1, 0), (0, 1), (0, 1)]);
}

#[tokio::test]
async fn in_a_network_of_tor_nobody_gets_a_quic_packet_where_the_consensus_does_not_have_him() {
    let (first, other) = (relay_of_tor(), relay(|_| ()));
    let listed = first.listed().expect("it serves circuits");
    listed.replace_consensus(consensus([(&other, true)]));
    let (udp, tcp, address) = victim().await;
    let path = vec![known("first", &first), forged(&other, address, 0)];
    let onion = client(path, How::Tls);
    let asking = refused(&onion, SocketAddr::from(([127, 0, 0, 1], 9)));
    let accepting = async { drop(soon(tcp.accept()).await.expect("dialled over TCP")) };
    tokio::join!(asking, accepting);
    let got = udp.try_recv(&mut [0; 2000]);
    assert!(got.is_err(), "{got:?} bytes of QUIC went to a stranger");
}

#[tokio::test]
async fn in_a_network_of_tor_the_newest_consensus_counts_and_our_own_list_beside_it() {
    let first = relay_of_tor();
    let [one, two, three] = relays(How::Raced);
    let listed = first.listed().expect("it serves circuits");
    listed.replace_consensus(consensus([(&one, true), (&two, false), (&three, false)]));
    listed.replace_consensus(consensus([(&one, false), (&two, true), (&three, false)]));
    listed.replace(list([&first, &three]));
    for relay in [&one, &two, &three] {
        let onion = client(path([&first, relay]), How::Tls);
        echoes(&onion, &Terms::default(), 1000).await;
    }
    assert_eq!([&one, &two, &three].map(over), [(0, 1), (1, 0), (1, 0)]);
}

#[tokio::test]
async fn a_relay_of_the_consensus_that_quic_does_not_reach_is_dialled_over_tls() {
    let first = relay_of_tor();
    let [other] = relays(How::Tls);
    let listed = first.listed().expect("it serves circuits");
    listed.replace_consensus(consensus([(&other, true)]));
    let onion = client(path([&first, &other]), How::Tls);
    echoes(&onion, &Terms::default(), 1000).await;
    assert_eq!(over(&other), (0, 1));
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
