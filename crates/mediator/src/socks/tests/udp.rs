//! UDP ASSOCIATE as a program sees it.

use std::net::SocketAddr;

use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::socks::{Endpoint, Reply, ReplyCode};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UdpSocket},
};

use super::{NAME, greet};
use crate::testing::{
    Route, Running, Scripted, config, read_all, read_exactly, start, start_with, udp_echo,
};

/// A program with an association.
struct Program {
    control: TcpStream,
    udp: UdpSocket,
    relay: SocketAddr,
}

async fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.expect("binds")
}

async fn associate(front: &Running) -> Program {
    associate_from(front, socket().await, Endpoint::UNSPECIFIED).await
}

async fn associate_from(front: &Running, udp: UdpSocket, announced: Endpoint) -> Program {
    let mut control = greet(front).await;
    let mut request = vec![5, 3, 0];
    announced.emit(&mut request);
    control.write_all(&request).await.expect("writes");
    let reply = read_exactly(&mut control, 10).await;
    let (reply, _) = Reply::parse(&reply).expect("parses");
    assert_eq!(reply.code, ReplyCode::Succeeded);
    let relay = reply
        .bound
        .target()
        .expect("has a port")
        .socket_addr()
        .expect("an address");
    Program {
        control,
        udp,
        relay,
    }
}

fn datagram(target: &str, payload: &[u8]) -> Vec<u8> {
    let endpoint = Endpoint::from(target.parse::<hoplite_wire::Target>().expect("valid"));
    let mut out = Vec::new();
    endpoint.emit_datagram_header(&mut out);
    out.extend(payload);
    out
}

impl Program {
    async fn send(&self, datagram: &[u8]) {
        self.udp.send_to(datagram, self.relay).await.expect("sends");
    }

    async fn recv(&self) -> Vec<u8> {
        let mut buf = vec![0; 65_536];
        let (n, from) = self.udp.recv_from(&mut buf).await.expect("receives");
        assert_eq!(from, self.relay);
        buf.truncate(n);
        buf
    }
}

async fn echoing() -> Running {
    start(Scripted::default().route(NAME, Route::To(udp_echo().await)))
}

#[tokio::test]
async fn answers_come_from_the_target_in_the_form_that_was_asked_for() {
    let front = echoing().await;
    let program = associate(&front).await;
    assert_eq!(
        program.relay.ip(),
        program.control.local_addr().expect("bound").ip()
    );
    // Upper case is kept too: what comes back is what the program wrote.
    let upper = datagram(NAME, b"hello").to_ascii_uppercase();
    program.send(&datagram(NAME, b"hello")).await;
    assert_eq!(program.recv().await, datagram(NAME, b"hello"));
    assert_eq!(front.overlay.asked()[0].0, NAME);
    program.send(&upper).await;
    assert_eq!(program.recv().await, upper);
}

#[tokio::test]
async fn addresses_are_targets_too_and_many_datagrams_keep_their_boundaries() {
    let (front, target) = (start(Scripted::default()), udp_echo().await);
    let program = associate(&front).await;
    let sent: Vec<_> = (0..40u8)
        .map(|n| datagram(&target.to_string(), &vec![n; usize::from(n) * 31]))
        .collect();
    for datagram in &sent {
        program.send(datagram).await;
        assert_eq!(&program.recv().await, datagram);
    }
    assert_eq!(front.counters.snapshot().datagram_flows, 1);
}

#[tokio::test]
async fn a_burst_of_equal_datagrams_arrives_while_the_flow_opens() {
    let front = echoing().await;
    let program = associate(&front).await;
    for n in 0..30 {
        program.send(&datagram(NAME, &[n; 1000])).await;
    }
    for n in 0..30 {
        assert_eq!(program.recv().await, datagram(NAME, &[n; 1000]));
    }
}

#[tokio::test]
async fn strangers_are_not_served() {
    let front = echoing().await;
    let program = associate(&front).await;
    program.send(&datagram(NAME, b"first")).await;
    program.recv().await;
    let elsewhere = UdpSocket::bind("127.0.0.2:0").await.expect("binds");
    for stranger in [socket().await, elsewhere] {
        stranger
            .send_to(&datagram(NAME, b"mine"), program.relay)
            .await
            .expect("sends");
    }
    program.send(&datagram(NAME, b"last")).await;
    assert_eq!(program.recv().await, datagram(NAME, b"last"));
    assert_eq!(front.counters.snapshot().datagrams_dropped, 2);
}

#[tokio::test]
async fn an_announced_port_is_the_only_one() {
    let (front, udp) = (echoing().await, socket().await);
    let announced = udp.local_addr().expect("bound").into();
    let program = associate_from(&front, udp, announced).await;
    let stranger = socket().await;
    stranger
        .send_to(&datagram(NAME, b"mine"), program.relay)
        .await
        .expect("sends");
    program.send(&datagram(NAME, b"ours")).await;
    assert_eq!(program.recv().await, datagram(NAME, b"ours"));
    assert_eq!(front.counters.snapshot().datagrams_dropped, 1);
}

#[tokio::test]
async fn a_program_that_announces_its_target_is_served() {
    let front = echoing().await;
    let announced = NAME.parse::<hoplite_wire::Target>().expect("valid").into();
    let program = associate_from(&front, socket().await, announced).await;
    program.send(&datagram(NAME, b"ours")).await;
    assert_eq!(program.recv().await, datagram(NAME, b"ours"));
}

#[tokio::test]
async fn fragments_and_garbage_are_dropped() {
    let front = echoing().await;
    let program = associate(&front).await;
    let mut fragment = datagram(NAME, b"part");
    fragment[2] = 1;
    for bad in [
        &fragment[..],
        b"",
        b"\0\0",
        b"\0\0\0\x09",
        &datagram(NAME, b"")[..12],
    ] {
        program.send(bad).await;
    }
    program.send(&[0, 0, 0, 1, 127, 0, 0, 1, 0, 0, 9]).await;
    program.send(&datagram(NAME, b"whole")).await;
    assert_eq!(program.recv().await, datagram(NAME, b"whole"));
    assert_eq!(front.overlay.asked().len(), 1);
}

#[tokio::test]
async fn the_association_ends_with_its_tcp_connection() {
    let front = echoing().await;
    let Program {
        mut control,
        udp,
        relay,
    } = associate(&front).await;
    control.shutdown().await.expect("closes");
    assert_eq!(read_all(&mut control).await, []);
    // The port is free again.
    drop(udp);
    while UdpSocket::bind(relay).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_further_flow_takes_the_place_of_the_one_used_least_lately() {
    let mut config = config();
    config.limits.datagram_flows = 2;
    let to = Route::To(udp_echo().await);
    let names = ["a.example:1", "b.example:1", "c.example:1"];
    let overlay = names
        .iter()
        .fold(Scripted::default(), |o, name| o.route(name, to.clone()));
    let front = start_with(overlay, config);
    let program = associate(&front).await;
    for name in [
        "a.example:1",
        "b.example:1",
        "a.example:1",
        "c.example:1",
        "a.example:1",
    ] {
        program.send(&datagram(name, b"x")).await;
        assert_eq!(program.recv().await, datagram(name, b"x"));
    }
    assert_eq!(front.overlay.asked().len(), 3, "a kept its flow");
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_fails_disturbs_no_other_and_is_tried_again_later() {
    let error = Error::new(ErrorKind::TargetFailed, "testing");
    let overlay = Scripted::default()
        .route("bad.example:1", Route::Fail(error))
        .route(NAME, Route::To(udp_echo().await));
    let front = start(overlay);
    let program = associate(&front).await;
    for _ in 0..5 {
        program.send(&datagram("bad.example:1", b"x")).await;
        program.send(&datagram(NAME, b"x")).await;
        assert_eq!(program.recv().await, datagram(NAME, b"x"));
    }
    while front
        .overlay
        .asked()
        .iter()
        .filter(|(name, _)| name == "bad.example:1")
        .count()
        < 2
    {
        program.send(&datagram("bad.example:1", b"x")).await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
    assert!(front.counters.snapshot().failed_target >= 1);
}

#[tokio::test]
async fn udp_can_be_switched_off() {
    let mut config = config();
    config.socks.udp = false;
    let front = start_with(Scripted::default(), config);
    let mut control = greet(&front).await;
    let request = [5, 3, 0, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(super::ask(&mut control, &request).await, 7);
}
