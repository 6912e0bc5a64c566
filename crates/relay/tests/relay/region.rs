//! Which of the relay's addresses a target sees: of the pool of the region that a client shows, one for each connection.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use hoplite_relay::{Config, config::Pool};
use hoplite_testing::{relay::relay, soon, targets};
use hoplite_wire::{ProxyError::DestinationIpProhibited, region::FIELD};
use tokio::{io::AsyncWriteExt, net::UdpSocket};

use crate::support::{Client, Tunnel, connect, tcp, udp};

/// A target that says whom it sees.
async fn mirror() -> SocketAddr {
    targets::tcp(async |mut stream| {
        let seen = stream.peer_addr().expect("connected").ip().to_string();
        drop(stream.write_all(seen.as_bytes()).await);
    })
    .await
}

async fn udp_mirror() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    let address = socket.local_addr().expect("bound");
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((_, from)) = socket.recv_from(&mut buffer).await {
            drop(socket.send_to(from.ip().to_string().as_bytes(), from).await);
        }
    });
    address
}

pub(crate) fn pool(region: Option<&str>, addresses: &str) -> Pool {
    Pool {
        region: region.map(|region| region.parse().expect("a region")),
        zone: None,
        addresses: vec![addresses.parse().expect("a prefix")],
    }
}

/// Of a part of a country, of the country, and of no place.
pub(crate) fn pools(config: &mut Config) {
    config.egress.pool = vec![
        pool(Some("DE-BE"), "127.7.1.0/24"),
        pool(Some("DE"), "127.7.2.0/24"),
        pool(None, "127.7.3.0/24"),
    ];
}

/// Whom a target sees, over TCP and over UDP.
async fn seen(client: &Client, shown: &str) -> [String; 2] {
    let request = tcp(mirror().await).with(FIELD, shown);
    let (exchange, answer) = client.ask(request).await;
    assert_eq!(answer.status, 200, "{shown}");
    let (_to, mut from) = exchange.split();
    let over_tcp = soon(from.data()).await.expect("open");
    let over_tcp = over_tcp.expect("an address");
    let (exchange, answer) = client.ask(udp(udp_mirror().await).with(FIELD, shown)).await;
    assert_eq!(answer.status, 200, "{shown}");
    let over_udp = Tunnel::new(exchange).echo(b"who?").await;
    [over_tcp, over_udp].map(|text| String::from_utf8(text.to_vec()).expect("text"))
}

#[tokio::test]
async fn a_target_sees_an_address_of_the_region_that_the_client_shows() {
    let relay = relay(pools);
    let client = connect(&relay).await;
    for (shown, prefix) in [
        ("DE-BE", "127.7.1."),
        ("de-be;zone=Europe/Berlin", "127.7.1."),
        ("DE-BY", "127.7.2."),
        ("DE;zone=Europe/Berlin", "127.7.2."),
        ("FR-IDF", "127.7.3."),
        ("Atlantis", "127.7.3."),
        ("127.0.0.1", "127.7.3."),
    ] {
        let [over_tcp, over_udp] = seen(&client, shown).await;
        assert!(over_tcp.starts_with(prefix), "{shown}: {over_tcp}");
        assert_eq!(over_tcp, over_udp, "{shown}: one address for one client");
    }
}

#[tokio::test]
async fn a_client_that_lies_gets_an_address_of_that_place_and_nothing_else() {
    let relay = relay(|config| {
        pools(config);
        config.egress.deny = vec!["127.0.0.1:9".parse().expect("a rule")];
    });
    let client = connect(&relay).await;
    let forbidden = tcp("127.0.0.1:9").with(FIELD, "DE-BE");
    assert_eq!(client.status(forbidden).await, 403);
}

#[tokio::test]
async fn nobody_comes_back_in_by_the_addresses_of_a_pool() {
    let relay = relay(|config| {
        config.egress.pool = vec![pool(None, "9.9.9.0/24")];
        config.egress.allow.clear();
    });
    let client = connect(&relay).await;
    let (status, error) = client.refusal(tcp("9.9.9.9:443")).await;
    assert_eq!((status, error), (403, Some(DestinationIpProhibited)));
}

#[tokio::test]
async fn connections_have_addresses_of_their_own() {
    let relay = relay(pools);
    let mut all = HashSet::new();
    for _ in 0..8 {
        let client = connect(&relay).await;
        let [first, _] = seen(&client, "DE-BE").await;
        assert_eq!(seen(&client, "DE-BE").await, [first.clone(), first.clone()]);
        all.insert(first);
    }
    // Of 256: that eight draw fewer than three happens once in 10^13.
    assert!(all.len() > 2, "{all:?}");
}

#[tokio::test]
async fn an_address_is_drawn_anew_while_the_connection_stays() {
    let relay = relay(|config| {
        pools(config);
        config.egress.renew = Duration::from_millis(1);
    });
    let client = connect(&relay).await;
    let first = seen(&client, "DE-BE").await;
    let again = async { while seen(&client, "DE-BE").await == first {} };
    soon(again).await;
}

#[tokio::test]
async fn without_pools_the_system_says() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    assert_eq!(seen(&client, "DE-BE").await, ["127.0.0.1", "127.0.0.1"]);
}

#[tokio::test]
async fn a_target_of_a_family_that_no_pool_has_is_reached_as_the_system_says() {
    let relay = relay(|config| config.egress.pool = vec![pool(None, "2001:db8::/64")]);
    let client = connect(&relay).await;
    assert_eq!(seen(&client, "DE-BE").await, ["127.0.0.1", "127.0.0.1"]);
}
