//! The device's resolver, asked by packets.

use hoplite_wire::ip;

use super::*;
use crate::tun::testing::{Bench, PROGRAM, TARGET, parsed, udp_packet};

fn program() -> SocketAddr {
    SocketAddr::new(PROGRAM, 4000)
}

fn resolver(bench: &Bench) -> SocketAddr {
    SocketAddr::new(bench.room.config.dns.resolvers[0], 53)
}

/// What the resolver answers to the program.
async fn ask(bench: &mut Bench, name: &str, kind: RecordType) -> Told {
    let question = Question::new(&host(name), kind);
    let there = resolver(bench);
    bench.send(udp_packet(program(), there, &question.message()));
    let packet = bench.port.next().await;
    let packet = parsed(&packet);
    assert_eq!((packet.source, packet.destination), (there.ip(), PROGRAM));
    let datagram = ip::udp::parse(packet.payload).expect("a datagram");
    assert_eq!((datagram.source, datagram.destination), (53, 4000));
    told(&question, datagram.payload)
}

#[tokio::test]
async fn a_datagram_to_a_temporary_address_goes_to_the_name() {
    let mut bench = Bench::new();
    bench.network.host(host("www.example"), TARGET);
    let far = bench.network.bind(TARGET);
    let Told::Addresses(found) = ask(&mut bench, "www.example", RecordType::A).await else {
        unreachable!("an address");
    };
    let there = SocketAddr::new(found[0], far.address().port());
    bench.send(udp_packet(program(), there, b"hello"));
    let (payload, from) = far.recv().await;
    assert_eq!(payload, &b"hello"[..]);
    far.send(b"back", from);
    let packet = bench.port.next().await;
    let packet = parsed(&packet);
    assert_eq!(
        packet.source, found[0],
        "the program knows no other address"
    );
}

#[tokio::test]
async fn a_name_that_a_flow_did_not_find_is_answered_so_from_then_on() {
    let mut bench = Bench::new();
    let Told::Addresses(found) = ask(&mut bench, "typo.example", RecordType::A).await else {
        unreachable!("an address");
    };
    let there = SocketAddr::new(found[0], 9);
    bench.send(udp_packet(program(), there, b"hello"));
    let packet = bench.port.next().await;
    assert_eq!(parsed(&packet).protocol, 1, "ICMP: unreachable");
    let again = ask(&mut bench, "typo.example", RecordType::A).await;
    assert_eq!(again, Told::Missing);
}

#[tokio::test]
async fn a_flow_to_an_address_that_means_nothing_is_refused() {
    let mut bench = Bench::new();
    for there in ["198.18.77.7:443", "198.18.0.2:853", "198.18.0.77:53"] {
        let there = there.parse().expect("an address");
        bench.send(udp_packet(program(), there, b"hello"));
        let packet = bench.port.next().await;
        assert_eq!(parsed(&packet).protocol, 1, "{there}: unreachable");
    }
    assert_eq!(bench.room.counters.expired.value(), 3);
    assert_eq!(bench.network.seen(), [], "nobody was asked");
}

#[tokio::test]
async fn a_train_of_queries_is_answered_one_by_one() {
    let mut bench = Bench::new();
    let question = Question::new(&host("a.example"), RecordType::A);
    let message = question.message();
    let train = message.repeat(3);
    bench.take(&crate::tun::device::Incoming {
        octets: udp_packet(program(), resolver(&bench), &train).into(),
        checked: true,
        segment: u16::try_from(message.len()).ok(),
    });
    for _ in 0..3 {
        bench.port.next().await;
    }
    assert_eq!(bench.port.try_next(), None);
}

#[tokio::test]
async fn a_resolver_elsewhere_is_answered_in_its_place() {
    let mut bench = Bench::with(|config| {
        config.dns.resolvers = vec!["192.0.2.53".parse().expect("an address")];
    });
    let told = ask(&mut bench, "localhost", RecordType::A).await;
    assert_eq!(told, Told::Addresses(vec![Ipv4Addr::LOCALHOST.into()]));
}

#[tokio::test]
async fn streams_to_port_53_of_the_resolver_end_in_it_and_others_do_not() {
    let bench = Bench::new();
    let there = resolver(&bench);
    let meaning = bench.room.names.meaning(there, Instant::now());
    assert_eq!(meaning, Meaning::Target(there.into()));
    let terms = Terms::default();
    let target = there.into();
    let mut stream = bench
        .room
        .open_stream(&target, User::at(PROGRAM), &terms)
        .await
        .expect("opens");
    let query = Question::new(&host("localhost"), RecordType::A).message();
    let len = u16::try_from(query.len()).expect("short");
    stream.write_u16(len).await.expect("written");
    stream.write_all(&query).await.expect("written");
    assert!(stream.read_u16().await.expect("read") > len);
    let mut listener = bench.network.listen(TARGET);
    let target = listener.address().into();
    let opened = bench
        .room
        .open_stream(&target, User::at(PROGRAM), &terms)
        .await;
    drop((opened.expect("opens"), listener.accept().await));
}
