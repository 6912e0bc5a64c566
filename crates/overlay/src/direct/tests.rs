use std::net::Ipv4Addr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
};

use super::*;
use crate::{Batch, Ecn, conformance::Subject};

crate::conformance_tests!(Subject::on_loopback(Arc::new(Direct::new())));

async fn listener() -> (TcpListener, Target) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("binds");
    let target = listener.local_addr().expect("bound").into();
    (listener, target)
}

async fn sink() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("binds");
    let address = socket.local_addr().expect("bound");
    (socket, address)
}

fn named(name: &str, port: u16) -> Target {
    format!("{name}:{port}").parse().expect("valid")
}

#[tokio::test]
async fn a_name_is_resolved_by_the_given_resolver() {
    let (listener, target) = listener().await;
    let name = HostName::new("printer.example").expect("valid");
    let table = Fixed::default().with(name, vec![Ipv4Addr::LOCALHOST.into()]);
    let direct = Direct::new().resolver(Arc::new(table));
    let terms = Terms::default();
    let target = named("printer.example", target.port);
    let (mut stream, (mut far, _)) = (
        direct.open_stream(&target, &terms).await.expect("opens"),
        listener.accept().await.expect("accepted"),
    );
    stream.write_all(b"hello").await.expect("written");
    let mut got = [0; 5];
    far.read_exact(&mut got).await.expect("read");
    assert_eq!(&got, b"hello");
}

#[tokio::test]
async fn a_guarded_address_is_forbidden_by_name_and_by_number() {
    let (_listener, target) = listener().await;
    let direct = Direct::new().guard(|ip, _| {
        if ip.is_loopback() {
            Err(Reason::Policy)
        } else {
            Ok(())
        }
    });
    let terms = Terms::default();
    for target in [target.clone(), named("localhost", target.port)] {
        let error = direct.open_stream(&target, &terms).await.expect_err("tcp");
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Forbidden, Some(Reason::Policy))
        );
        let error = direct
            .open_datagrams(&target, &terms)
            .await
            .expect_err("udp");
        assert_eq!(error.kind(), ErrorKind::Forbidden);
    }
}

#[tokio::test]
async fn a_mapped_address_does_not_slip_past_the_guard() {
    let name = HostName::new("rebind.example").expect("valid");
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    let table = Fixed::default().with(name, vec![mapped.into()]);
    let direct = Direct::new().resolver(Arc::new(table)).guard(|ip, _| {
        if ip.is_loopback() {
            Err(Reason::Policy)
        } else {
            Ok(())
        }
    });
    let asked = direct.addresses(&named("rebind.example", 80)).await;
    assert_eq!(asked.expect_err("guarded").reason(), Some(Reason::Policy));
}

#[tokio::test]
async fn a_refused_datagram_is_reported_to_a_waiting_receiver() {
    let (socket, address) = sink().await;
    drop(socket);
    let flow = Arc::new(connect_udp(address, &UdpSettings::default()).expect("opens"));
    let receiver = Arc::clone(&flow);
    let waiting = tokio::spawn(async move {
        let receiver: &dyn Datagrams = &*receiver;
        receiver.recv(&mut [0; 100]).await
    });
    tokio::task::yield_now().await;
    let sender: &dyn Datagrams = &*flow;
    sender.send(b"anyone?").await.expect("sent");
    let error = waiting.await.expect("no panic").expect_err("refused");
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::TargetFailed, Some(Reason::Refused))
    );
}

#[tokio::test]
async fn a_batch_above_the_kernels_limits_arrives_payload_by_payload() {
    let (socket, address) = sink().await;
    let flow = connect_udp(address, &UdpSettings::default()).expect("opens");
    let contents: Vec<u8> = (0..80u8).flat_map(|n| [n; 1000]).collect();
    let batch = Batch {
        contents: &contents,
        segment: 1000,
    };
    std::future::poll_fn(|cx| flow.poll_send(cx, batch))
        .await
        .expect("sent");
    let mut buf = [0; 2000];
    for n in 0..80u8 {
        let len = socket.recv(&mut buf).await.expect("received");
        assert_eq!((len, buf[0], buf[999]), (1000, n, n));
    }
    assert_eq!(flow.dropped(), 0);
}

#[tokio::test]
async fn an_oversized_payload_is_dropped_and_counted_and_its_neighbours_are_not() {
    let (socket, address) = sink().await;
    let settings = UdpSettings {
        max_payload: Some(1200),
        ..UdpSettings::default()
    };
    let flow = connect_udp(address, &settings).expect("opens");
    assert_eq!(flow.max_payload(), 1200);
    let contents = [[1; 1300].as_slice(), &[2; 1300], &[3; 10]].concat();
    let batch = Batch {
        contents: &contents,
        segment: 1300,
    };
    std::future::poll_fn(|cx| flow.poll_send(cx, batch))
        .await
        .expect("sent");
    let mut buf = [0; 2000];
    let len = socket.recv(&mut buf).await.expect("received");
    assert_eq!((len, buf[0]), (10, 3));
    assert_eq!(flow.dropped(), 2);
}

#[tokio::test]
async fn coalesced_datagrams_reach_a_small_buffer_one_after_the_other() {
    let (socket, address) = sink().await;
    let flow = connect_udp(address, &UdpSettings::default()).expect("opens");
    let far = connect_far(&socket, &flow).await;
    let contents: Vec<u8> = (0..10u8).flat_map(|n| [n; 500]).collect();
    let batch = Batch {
        contents: &contents,
        segment: 500,
    };
    std::future::poll_fn(|cx| far.poll_send(cx, batch))
        .await
        .expect("sent");
    let mut got = Vec::new();
    let flow: &dyn Datagrams = &flow;
    while got.len() < contents.len() {
        let mut buf = [0; 1200];
        let received = flow.recv(&mut buf).await.expect("received");
        assert_eq!((received.segment, received.len % 500), (500, 0));
        got.extend_from_slice(&buf[..received.len]);
    }
    assert_eq!(got, contents);
}

/// A flow back to `flow` from the address that it is connected to.
async fn connect_far(socket: &UdpSocket, flow: &UdpFlow) -> UdpFlow {
    let (near, here) = (flow.local_addr(), socket.local_addr());
    let (near, here) = (near.expect("bound"), here.expect("bound"));
    let far = rustix::io::dup(socket).expect("duplicated");
    let far = std::net::UdpSocket::from(far);
    far.connect(near).expect("connects");
    assert_eq!(far.local_addr().expect("bound"), here);
    UdpFlow::adopt(far, near, &UdpSettings::default()).expect("adopted")
}

#[tokio::test]
async fn an_idle_flow_owns_no_read_buffer() {
    let (listener, target) = listener().await;
    let address = target.socket_addr().expect("an address");
    let socket = connect_socket(&[address]).await.expect("connects");
    let mut flow = TcpFlow::new(socket);
    let (mut far, _) = listener.accept().await.expect("accepted");
    far.write_all(&[9; 1000]).await.expect("written");
    let mut got = [0; 400];
    use tokio::io::{AsyncBufRead, AsyncBufReadExt};
    assert_eq!(flow.fill_buf().await.expect("filled").len(), 1000);
    flow.read_exact(&mut got).await.expect("read");
    flow.read_exact(&mut got).await.expect("read");
    std::pin::Pin::new(&mut flow).consume(200);
    assert_eq!(flow.buffered_capacity(), 0);
}

#[tokio::test]
async fn sockets_of_both_kinds_carry_the_mark_or_are_not_opened() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let target = Target::from(listener.local_addr().expect("an address"));
    let direct = Direct::for_tunnels().mark(7);
    match (
        direct.stream(&target).await,
        direct.datagrams(&target).await,
    ) {
        (Ok(stream), Ok(datagrams)) => assert_eq!((stream.mark(), datagrams.mark()), (7, 7)),
        // Without CAP_NET_ADMIN there is no mark, and no unmarked flow instead.
        (Err(_), Err(_)) => assert!(!rustix::process::geteuid().is_root()),
        _ => panic!("one was opened without a mark"),
    }
    let plain = Direct::new().datagrams(&target).await.expect("opens");
    assert_eq!(plain.mark(), 0);
}

#[tokio::test]
async fn a_flow_that_turns_out_to_carry_a_tunnel_gets_a_tunnels_buffers() {
    let (_socket, address) = sink().await;
    let settings = |buffers| UdpSettings {
        buffers,
        ..UdpSettings::default()
    };
    let open = |buffers| connect_udp(address, &settings(buffers)).expect("opens");
    let flow = open(SocketBuffers::Ordinary);
    assert!(flow.receive_buffer() < open(SocketBuffers::Tunnel).receive_buffer());
    flow.enlarge_buffers();
    assert_eq!(
        flow.receive_buffer(),
        open(SocketBuffers::Tunnel).receive_buffer()
    );
}

#[tokio::test]
async fn a_flow_has_the_source_that_it_is_given() {
    // The address of IPv6 is no interface's: it is enough that its prefix is routed here.
    for (listen, source) in [("127.0.0.1:0", "127.9.9.9"), ("[::1]:0", "2001:db8::9")] {
        let source: IpAddr = source.parse().expect("an address");
        let Ok(target) = UdpSocket::bind(listen).await else {
            continue; // Without IPv6.
        };
        let settings = UdpSettings {
            source: Some(source),
            ..UdpSettings::default()
        };
        let address = target.local_addr().expect("bound");
        let flow = connect_udp(address, &settings).expect("opens");
        assert_eq!(flow.local_addr().expect("bound").ip(), source);
        assert!(!flow.moved(), "its source is not the system's to choose");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let source: IpAddr = "127.9.9.9".parse().expect("an address");
    let (addresses, from) = ([address], |_| Some(source));
    let connecting = connect_socket_from(&addresses, &from);
    let (socket, accepted) = tokio::join!(connecting, listener.accept());
    drop(socket.expect("connects"));
    assert_eq!(accepted.expect("accepts").1.ip(), source);
}

#[tokio::test]
async fn udp_takes_the_address_that_a_tcp_connection_came_about_with() {
    let (listener, target) = listener().await;
    let name = HostName::new("relay.example").expect("valid");
    let dead = Ipv4Addr::new(127, 0, 0, 99);
    let table = Fixed::default().with(name, vec![dead.into(), Ipv4Addr::LOCALHOST.into()]);
    let direct = Direct::for_tunnels().resolver(Arc::new(table));
    let target = named("relay.example", target.port);
    let peer = async || direct.datagrams(&target).await.expect("opens").peer();
    assert_eq!(peer().await.ip(), dead, "nothing is known");
    let opened = direct.open_stream(&target, &Terms::default()).await;
    let (_stream, _far) = (
        opened.expect("opens"),
        listener.accept().await.expect("accepted"),
    );
    assert_eq!(peer().await.ip(), Ipv4Addr::LOCALHOST);
}

#[tokio::test]
async fn marks_of_the_network_pass_both_ways_whatever_the_size_of_the_buffer() {
    let far = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let state = quinn_udp::UdpSocketState::new((&far).into()).expect("options");
    let address = far.local_addr().expect("bound");
    let flow = connect_udp(address, &UdpSettings::default()).expect("opens");
    let contents = [7; 300];
    let batch = Batch {
        contents: &contents,
        segment: 100,
    };
    std::future::poll_fn(|cx| flow.poll_send_marked(cx, batch, Some(Ecn::Ect0)))
        .await
        .expect("sent");
    let mut room = [0; 1000];
    let mut metas = [quinn_udp::RecvMeta::default()];
    far.set_nonblocking(false).expect("an option");
    state
        .recv(
            (&far).into(),
            &mut [io::IoSliceMut::new(&mut room)],
            &mut metas,
        )
        .expect("received");
    assert_eq!(metas[0].ecn, Some(Ecn::Ect0));
    let marked = quinn_udp::Transmit {
        destination: metas[0].addr,
        ecn: Some(Ecn::Ce),
        contents: &contents,
        segment_size: Some(100),
        src_ip: None,
    };
    state.send((&far).into(), &marked).expect("sent");
    let (mut got, mut small) = (0, [0; 150]);
    while got < 300 {
        let (received, mark) = std::future::poll_fn(|cx| flow.poll_recv_marked(cx, &mut small))
            .await
            .expect("received");
        assert_eq!((received.len, mark), (100, Some(Ecn::Ce)));
        got += received.len;
    }
}
