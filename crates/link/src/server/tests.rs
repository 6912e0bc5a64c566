mod harness;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use self::harness::{Relay, Spy, client, client_through, exchange};
use super::bind;

/// Small enough for every system.
const BUFFERS: usize = 1024 * 1024;

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// The packet as a client would send it, and the byte that steers it.
fn packet(long: bool, second: u8) -> Vec<u8> {
    let mut packet = if long {
        vec![0xc0, 0, 0, 0, 1, 8]
    } else {
        vec![0x40]
    };
    packet.extend([1, second, 2, 3, 4, 5, 6, 7]);
    packet
}

#[test]
fn the_second_byte_of_the_id_picks_the_shard() {
    let bound = bind(any_port(), 3, BUFFERS).unwrap();
    let address = bound.local_addr();
    let shards = bound.into_shards();
    let client = UdpSocket::bind(any_port()).unwrap();
    for second in 0..=255_u8 {
        for long in [true, false] {
            let sent = packet(long, second);
            client.send_to(&sent, address).unwrap();
            let mut received = [0; 64];
            let shard = &shards[usize::from(second) % 3];
            let length = shard.udp.recv(&mut received).unwrap();
            assert_eq!(received[..length], sent);
        }
    }
}

#[test]
fn a_packet_too_short_for_an_id_goes_to_the_first_shard() {
    let bound = bind(any_port(), 4, BUFFERS).unwrap();
    let client = UdpSocket::bind(any_port()).unwrap();
    client.send_to(&[0xc3], bound.local_addr()).unwrap();
    let shards = bound.into_shards();
    assert_eq!(shards[0].udp.recv(&mut [0; 8]).unwrap(), 1);
}

#[test]
fn a_second_relay_on_the_same_port_is_refused() {
    for shards in [1, 4] {
        let first = bind(any_port(), shards, BUFFERS).unwrap();
        let second = bind(first.local_addr(), shards, BUFFERS);
        assert_eq!(
            second.unwrap_err().kind(),
            std::io::ErrorKind::AddrInUse,
            "with {shards} shards"
        );
    }
}

#[test]
fn a_port_is_free_again_when_its_sockets_are_gone() {
    let address = bind(any_port(), 4, BUFFERS).unwrap().local_addr();
    assert_eq!(bind(address, 2, BUFFERS).unwrap().local_addr(), address);
}

#[test]
fn no_shards_and_too_many_are_refused() {
    for shards in [0, 257] {
        assert!(bind(any_port(), shards, BUFFERS).is_err());
    }
    assert_eq!(bind(any_port(), 256, 0).unwrap().into_shards().len(), 256);
}

#[tokio::test]
async fn tcp_connections_reach_some_shard() {
    let relay = Relay::start(any_port(), 4);
    for _ in 0..16 {
        relay.exchange_over_tcp().await;
    }
}

#[tokio::test]
async fn every_connection_stays_with_the_shard_that_its_ids_name() {
    let relay = Relay::start(any_port(), 4);
    let mut connections = Vec::new();
    for _ in 0..64 {
        let spy = Spy::new();
        let (endpoint, connection) = client_through(&spy, &relay).await;
        connections.push((spy, endpoint, connection));
    }
    let mut used = [0; 4];
    for (at, (spy, _, connection)) in connections.iter().enumerate() {
        let payload = vec![u8::try_from(at).unwrap(); 3000];
        let (shard, echo) = exchange(connection, &payload).await;
        assert_eq!(echo, payload);
        let ids = spy.steering_bytes();
        assert!(!ids.is_empty());
        assert!(ids.iter().all(|second| usize::from(second % 4) == shard));
        used[shard] += 1;
    }
    // One shard stays unused by chance once in 25 million runs.
    assert!(used.iter().all(|count| *count > 0));
}

#[tokio::test]
async fn a_client_on_another_port_keeps_its_connection() {
    let relay = Relay::start(any_port(), 4);
    let (endpoint, connection) = client(&relay).await;
    let (shard, _) = exchange(&connection, b"before").await;
    for _ in 0..12 {
        endpoint
            .rebind(UdpSocket::bind(any_port()).unwrap())
            .unwrap();
        assert_eq!(
            exchange(&connection, b"after").await,
            (shard, b"after".to_vec())
        );
    }
}

#[tokio::test]
async fn long_streams_arrive_byte_by_byte() {
    let relay = Relay::start(any_port(), 2);
    let (_endpoint, connection) = client(&relay).await;
    let payload: Vec<u8> = (0..6_000_000_u32)
        .map(|at| (at % 251).to_le_bytes()[0])
        .collect();
    let (_, echo) = exchange(&connection, &payload).await;
    assert!(echo == payload);
}

#[tokio::test]
async fn both_families_are_served_by_the_unspecified_address() {
    let relay = Relay::start("[::]:0".parse().unwrap(), 2);
    for host in ["127.0.0.1", "::1"] {
        let (_endpoint, connection) = harness::client_at(&relay, host.parse().unwrap()).await;
        assert_eq!(exchange(&connection, b"hello").await.1, b"hello");
    }
}
