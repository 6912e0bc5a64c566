//! A client's region from its first relay to its last one: told by the one, shown to the other as far as its user chose.

use std::{collections::HashSet, fs, future::poll_fn};

use hoplite_masque::{Config, ShownRegion};
use hoplite_overlay::{Batch, Isolation, Overlay, Terms};
use hoplite_relay::{
    Handle, Relay,
    config::{Ingress, Pool},
};
use hoplite_testing::{
    mmdb,
    namespace::with_echoes,
    path::{Switch, direct, through},
    relay::{config, identity, relay},
    soon, targets, until,
};
use hoplite_wire::{Host, connect_ip::Scope, ip::icmp::Echo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// An ingress that takes loopback for Berlin, and an egress with pools.
fn relays() -> Vec<Handle> {
    let folder = tempfile::tempdir().expect("a folder");
    let feed = folder.path().join("feed.csv");
    fs::write(&feed, "127.0.0.0/8,DE,DE-BE,Berlin,\n").expect("written");
    relays_with(Ingress {
        geofeed: Some(feed),
        ..Ingress::default()
    })
}

/// An ingress with this configuration, and an egress with pools.
fn relays_with(ingress: Ingress) -> Vec<Handle> {
    let pool = |region: Option<&str>, addresses: &str| Pool {
        region: region.map(|region| region.parse().expect("a region")),
        zone: None,
        addresses: vec![addresses.parse().expect("a prefix")],
    };
    let first = relay(|config| config.ingress = ingress);
    let last = relay(|config| {
        config.egress.pool = vec![
            pool(Some("DE-BE"), "127.8.1.0/24"),
            pool(Some("DE"), "127.8.2.0/24"),
            pool(None, "127.8.3.0/24"),
        ];
    });
    vec![first, last]
}

/// Whom a target sees.
async fn seen(path: &dyn Overlay) -> String {
    seen_by(path, &Terms::default()).await
}

async fn seen_by(path: &dyn Overlay, terms: &Terms) -> String {
    let target = targets::tcp(async |mut stream| {
        let seen = stream.peer_addr().expect("connected").ip().to_string();
        drop(stream.write_all(seen.as_bytes()).await);
    });
    let target = target.await.into();
    let stream = soon(path.open_stream(&target, terms)).await;
    let mut seen = String::new();
    let mut stream = stream.expect("opens");
    soon(stream.read_to_string(&mut seen)).await.expect("read");
    seen
}

fn client(region: ShownRegion) -> Config {
    Config {
        region,
        ..Config::default()
    }
}

#[tokio::test]
async fn a_target_sees_the_region_that_the_client_chose_to_show_from_its_first_flow_on() {
    let relays = relays();
    for (region, prefix) in [
        (ShownRegion::None, "127.8.3."),
        (ShownRegion::Country, "127.8.2."),
        (ShownRegion::Keep, "127.8.1."),
    ] {
        let path = through(&relays, &direct(), client(region));
        let seen = seen(&path).await;
        assert!(seen.starts_with(prefix), "{region:?}: {seen}");
    }
}

#[tokio::test]
async fn a_target_sees_each_isolation_token_come_from_an_address_of_its_own() {
    // So many addresses that two of them are the same in one of a million runs.
    let wide = Pool {
        region: None,
        zone: None,
        addresses: vec!["127.16.0.0/12".parse().expect("a prefix")],
    };
    let relays = vec![
        relay(|_| ()),
        relay(|config| config.egress.pool = vec![wide]),
    ];
    let path = through(&relays, &direct(), client(ShownRegion::None));
    let tokens = ["", "a", "b"].map(|token| Terms {
        isolation: Isolation::new(token.into()),
        ..Terms::default()
    });
    let mut addresses = HashSet::new();
    for terms in &tokens {
        let first = seen_by(&path, terms).await;
        assert_eq!(seen_by(&path, terms).await, first, "one visitor");
        assert!(addresses.insert(first), "two tokens, one address");
    }
}

#[tokio::test]
async fn a_region_is_told_where_udp_is_blocked_too() {
    let relays = relays();
    let below = Switch::new();
    below.block(true);
    let path = through(&relays, &below.overlay, client(ShownRegion::Keep));
    let seen = seen(&path).await;
    assert!(seen.starts_with("127.8.1."), "{seen}");
}

/// That the kernel has a ping socket at an address that begins so, such as 127.8.1.
fn is_pinging_from([a, b, c]: [u8; 3]) -> bool {
    let sockets = fs::read_to_string("/proc/thread-self/net/icmp").expect("told");
    sockets.contains(&format!("{c:02X}{b:02X}{a:02X}:"))
}

#[test]
fn echoes_leave_from_the_region_that_the_client_chose_to_show() {
    with_echoes(|| async {
        let relays = relays();
        for (region, third) in [(ShownRegion::Country, 2), (ShownRegion::Keep, 1)] {
            let path = through(&relays, &direct(), client(region));
            let here = [127, 0, 0, 1].into();
            let scope = Scope::flow(&Host::ip(here), 1);
            let opened = soon(path.open_packets(&scope, &Terms::default())).await;
            let packets = opened.expect("opens");
            let near = packets.addresses()[0].single().expect("one address");
            let echo = Echo {
                reply: false,
                identifier: 7,
                sequence: 1,
                payload: b"who?",
            };
            let echo = echo.packet(near, here);
            poll_fn(|cx| packets.poll_send(cx, Batch::one(&echo)))
                .await
                .expect("sent");
            until(|| is_pinging_from([127, 8, third])).await;
        }
    });
}

#[tokio::test]
async fn a_client_whom_no_relay_tells_shows_nothing() {
    let mut relays = relays();
    relays[0] = relay(|_| ());
    let path = through(&relays, &direct(), client(ShownRegion::Keep));
    let seen = seen(&path).await;
    assert!(seen.starts_with("127.8.3."), "{seen}");
}

#[tokio::test]
async fn an_ingress_knows_its_clients_places_by_a_database_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("clients.mmdb");
    let database = mmdb::write(&[("127.0.0.0/8", mmdb::Entry::part("DE", "BE"))]);
    fs::write(&file, &database).expect("written");
    let ingress = Ingress {
        mmdb: Some(file.clone()),
        ..Ingress::default()
    };
    let relays = relays_with(ingress.clone());
    let path = through(&relays, &direct(), client(ShownRegion::Keep));
    let told = seen(&path).await;
    assert!(told.starts_with("127.8.1."), "{told}");
    fs::write(&file, &database[..database.len() / 2]).expect("written");
    let error = relays[0].reload_client_regions(&ingress);
    let error = error.expect_err("damaged").to_string();
    assert!(error.contains("ingress.mmdb"), "{error}");
    assert!(error.contains("MaxMind's format"), "{error}");
}

#[tokio::test]
async fn a_geofeed_is_read_again_and_a_wrong_one_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let feed = folder.path().join("feed.csv");
    fs::write(&feed, "127.0.0.0/8,DE,DE-BE,,\n").expect("written");
    let ingress = Ingress {
        geofeed: Some(feed.clone()),
        ..Ingress::default()
    };
    let relays = relays_with(ingress.clone());
    for (line, is_right, prefix) in [
        (
            "127.0.0.0/8,DE,DE-BE,,\n127.0.0.0/33,DE,,,\n",
            false,
            "127.8.1.",
        ),
        ("127.0.0.0/8,DE,,,\n", true, "127.8.2."),
    ] {
        fs::write(&feed, line).expect("written");
        let read = relays[0].reload_client_regions(&ingress);
        assert_eq!(read.is_ok(), is_right, "{line}");
        if let Err(error) = read {
            assert!(error.to_string().contains("line 2: "), "{error}");
        }
        let path = through(&relays, &direct(), client(ShownRegion::Keep));
        let seen = seen(&path).await;
        assert!(seen.starts_with(prefix), "{line}: {seen}");
    }
}

#[tokio::test]
async fn a_geofeed_that_is_wrong_is_named_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let feed = folder.path().join("feed.csv");
    fs::write(&feed, "127.0.0.0/8,DE,,,\n10.0.0.0/8,DE,FR-IDF,,\n").expect("written");
    let mut config = config();
    config.ingress.geofeed = Some(feed);
    let error = Relay::start(&config, &identity()).expect_err("wrong");
    let told = error.to_string();
    assert!(
        told.contains("line 2: region FR-IDF is not in country DE"),
        "{told}"
    );
}
