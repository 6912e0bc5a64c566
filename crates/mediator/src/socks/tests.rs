//! The SOCKS front end as a program sees it.

mod far;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hoplite_overlay::{Error, ErrorKind, Isolation};
use hoplite_testing::{soon, targets};
use hoplite_wire::socks::{CredentialsView, Endpoint, Reply, ReplyCode};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream, UdpSocket},
};

use crate::{
    Config,
    testing::{
        Route, Running, Scripted, config, failures, read_all, read_exactly, start, start_on,
        start_with,
    },
    tun::{FlowKey, SocketOwners},
    users::User,
};

const NAME: &str = "target.example:80";

/// A request for `target.example:80`.
fn by_name(command: u8) -> Vec<u8> {
    [&[5, command, 0, 3, 14], &b"target.example"[..], &[0, 80]].concat()
}

async fn greet(front: &Running) -> TcpStream {
    greeted(front.to_socks().await).await
}

async fn greeted(mut tcp: TcpStream) -> TcpStream {
    tcp.write_all(&[5, 1, 0]).await.expect("writes");
    assert_eq!(read_exactly(&mut tcp, 2).await, [5, 0]);
    tcp
}

/// Sends a request; answers with the reply's code.
async fn ask(tcp: &mut TcpStream, request: &[u8]) -> u8 {
    tcp.write_all(request).await.expect("writes");
    let reply = read_exactly(tcp, 10).await;
    assert_eq!((reply[0], reply[2], reply[3]), (5, 0, 1));
    reply[1]
}

async fn connect(front: &Running) -> TcpStream {
    connected(front.to_socks().await).await
}

async fn connected(tcp: TcpStream) -> TcpStream {
    let mut tcp = greeted(tcp).await;
    assert_eq!(ask(&mut tcp, &by_name(1)).await, 0);
    tcp
}

/// Whether what is sent comes back.
async fn echoes(tcp: &mut TcpStream) -> bool {
    tcp.write_all(b"hello").await.is_ok() && soon(tcp.read_exact(&mut [0; 5])).await.is_ok()
}

/// A front whose one target is a listener of the test.
async fn with_target() -> (Running, tokio::net::TcpListener) {
    let (listener, address) = targets::listener().await;
    (
        start(Scripted::default().route(NAME, Route::To(address))),
        listener,
    )
}

/// A program's and a target's end of one open flow.
async fn flow() -> (Running, TcpStream, TcpStream) {
    let (front, listener) = with_target().await;
    let program = connect(&front).await;
    let (target, _) = listener.accept().await.expect("accepts");
    (front, program, target)
}

#[tokio::test]
async fn a_name_reaches_the_overlay_unresolved_and_data_flows_both_ways() {
    let front = start(Scripted::default().route(NAME, Route::To(targets::tcp_echo().await)));
    let mut tcp = connect(&front).await;
    tcp.write_all(b"hello").await.expect("writes");
    assert_eq!(read_exactly(&mut tcp, 5).await, b"hello");
    assert_eq!(front.overlay.asked(), [(NAME.into(), Isolation::default())]);
    assert_eq!(front.counters.snapshot().streams, 1);
}

#[tokio::test]
async fn addresses_of_both_families_are_asked_for_as_such() {
    let to = Route::To(targets::tcp_echo().await);
    let overlay = Scripted::default()
        .route("192.0.2.7:80", to.clone())
        .route("[2001:db8::7]:80", to);
    let front = start(overlay);
    let v6 = b"\x05\x01\x00\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07\x00\x50";
    for request in [&[5, 1, 0, 1, 192, 0, 2, 7, 0, 80][..], v6] {
        let mut tcp = greet(&front).await;
        assert_eq!(ask(&mut tcp, request).await, 0);
    }
    let asked: Vec<_> = front
        .overlay
        .asked()
        .into_iter()
        .map(|(target, _)| target)
        .collect();
    assert_eq!(asked, ["192.0.2.7:80", "[2001:db8::7]:80"]);
}

#[tokio::test]
async fn user_name_and_password_are_the_isolation_token() {
    let front = start(Scripted::default().route(NAME, Route::To(targets::tcp_echo().await)));
    let mut tcp = front.to_socks().await;
    tcp.write_all(&[5, 2, 0, 2]).await.expect("writes");
    assert_eq!(read_exactly(&mut tcp, 2).await, [5, 2]);
    tcp.write_all(b"\x01\x02me\x03any").await.expect("writes");
    assert_eq!(read_exactly(&mut tcp, 2).await, [1, 0]);
    assert_eq!(ask(&mut tcp, &by_name(1)).await, 0);
    let (user, password) = (&b"me"[..], &b"any"[..]);
    let token = Isolation::new(CredentialsView { user, password }.isolation());
    assert_eq!(front.overlay.asked(), [(NAME.into(), token)]);
}

#[tokio::test]
async fn every_failure_has_its_reply() {
    for (error, code, _, _) in failures() {
        let front = start(Scripted::default().route(NAME, Route::Fail(error.clone())));
        let mut tcp = greet(&front).await;
        assert_eq!(ask(&mut tcp, &by_name(1)).await, code, "{error}");
        assert!(read_all(&mut tcp).await.is_empty());
        assert_eq!(front.counters.snapshot().streams, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_overlay_that_never_answers_is_a_time_out() {
    let front = start(Scripted::default().route(NAME, Route::Hang));
    let mut tcp = greet(&front).await;
    assert_eq!(ask(&mut tcp, &by_name(1)).await, 6);
    assert_eq!(front.counters.snapshot().failed_timed_out, 1);
}

#[tokio::test]
async fn what_is_not_served_is_said() {
    let front = start(Scripted::default());
    for (request, code) in [
        (by_name(2), 7),
        (by_name(9), 7),
        (vec![5, 1, 0, 9], 8),
        (vec![5, 1, 0, 1, 192, 0, 2, 1, 0, 0], 1),
        (vec![5, 1, 0, 3, 3, b'a', b' ', b'b', 0, 80], 4),
    ] {
        let mut tcp = greet(&front).await;
        assert_eq!(ask(&mut tcp, &request).await, code, "{request:?}");
        assert!(read_all(&mut tcp).await.is_empty());
    }
    assert_eq!(front.overlay.asked(), []);
}

#[tokio::test]
async fn other_protocols_get_an_answer_that_they_understand() {
    let front = start(Scripted::default());
    let browser = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(300);
    for (input, answer) in [
        (&browser[..], &b"HTTP/1.1 400 "[..]),
        (b"\x04\x01\x00\x50\xc0\x00\x02\x01\x00", b"\x00\x5b"),
        (b"\x16\x03\x01", b""),
        (b"\x05\x01\x01", b"\x05\xff"),
        (b"\xff\xff\xff", b""),
    ] {
        let mut tcp = front.to_socks().await;
        tcp.write_all(input).await.expect("writes");
        assert!(read_all(&mut tcp).await.starts_with(answer));
    }
    assert_eq!(front.counters.snapshot().malformed, 5);
}

#[tokio::test(start_paused = true)]
async fn a_slow_handshake_is_cut_off() {
    let front = start(Scripted::default());
    let mut tcp = front.to_socks().await;
    tcp.write_all(&[5]).await.expect("writes");
    assert!(tcp.read(&mut [0]).await.is_err());
    assert_eq!(front.counters.snapshot().malformed, 1);
}

#[tokio::test]
async fn data_sent_before_the_answer_is_not_lost() {
    let front = start(Scripted::default().route(NAME, Route::To(targets::tcp_echo().await)));
    let mut tcp = front.to_socks().await;
    let all = [&[5, 1, 0][..], &by_name(1), b"early"].concat();
    tcp.write_all(&all).await.expect("writes");
    let answer = read_exactly(&mut tcp, 2 + 10 + 5).await;
    assert_eq!(&answer[12..], b"early");
}

#[tokio::test]
async fn a_program_that_has_finished_sending_still_receives() {
    let (_front, mut program, mut target) = flow().await;
    program.write_all(b"question").await.expect("writes");
    program.shutdown().await.expect("half-closes");
    assert_eq!(read_all(&mut target).await, b"question");
    target.write_all(b"answer").await.expect("writes");
    drop(target);
    assert_eq!(read_all(&mut program).await, b"answer");
}

#[tokio::test]
async fn a_target_that_has_finished_sending_still_receives() {
    let (_front, mut program, mut target) = flow().await;
    target.write_all(b"banner").await.expect("writes");
    target.shutdown().await.expect("half-closes");
    assert_eq!(read_all(&mut program).await, b"banner");
    program.write_all(b"upload").await.expect("writes");
    program.shutdown().await.expect("half-closes");
    assert_eq!(read_all(&mut target).await, b"upload");
}

#[tokio::test]
async fn a_target_that_resets_is_a_reset_for_the_program() {
    let (_front, mut program, target) = flow().await;
    target.set_zero_linger().expect("sets");
    drop(target);
    let error = program.read(&mut [0]).await.expect_err("no orderly end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_program_that_resets_is_a_reset_for_the_target() {
    let (_front, program, mut target) = flow().await;
    program.set_zero_linger().expect("sets");
    drop(program);
    let error = target.read(&mut [0]).await.expect_err("no orderly end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn stopping_resets_open_flows_on_both_ends() {
    let (front, mut program, mut target) = flow().await;
    front.stop().await;
    assert!(program.read(&mut [0]).await.is_err());
    assert!(target.read(&mut [0]).await.is_err());
}

#[tokio::test]
async fn large_transfers_arrive_whole_both_ways_at_once() {
    let (front, program, target) = flow().await;
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
    let one_end = |mut tcp: TcpStream| {
        let data = data.clone();
        async move {
            let (mut from, mut to) = tcp.split();
            let sending = async {
                to.write_all(&data).await.expect("writes");
                to.shutdown().await.expect("half-closes");
            };
            let mut got = Vec::new();
            let (_, read) = tokio::join!(sending, from.read_to_end(&mut got));
            read.expect("reads");
            assert!(got == data);
        }
    };
    tokio::join!(one_end(program), one_end(target));
    let counted = front.counters.snapshot();
    assert_eq!(
        (counted.bytes_up, counted.bytes_down),
        (3_000_000, 3_000_000)
    );
}

#[tokio::test]
async fn a_target_that_answers_and_reads_no_more_is_heard() {
    let (_front, mut program, mut target) = flow().await;
    program.write_all(&vec![0; 300_000]).await.expect("writes");
    target.read_exact(&mut [0; 10]).await.expect("reads");
    target.write_all(b"too large").await.expect("writes");
    target.shutdown().await.expect("half-closes");
    assert_eq!(read_all(&mut program).await, b"too large");
}

#[tokio::test(start_paused = true)]
async fn an_idle_flow_is_reset_when_there_is_a_limit() {
    let (listener, address) = targets::listener().await;
    let mut config = config();
    config.limits.idle_stream = Duration::from_secs(60);
    let front = start_with(Scripted::default().route(NAME, Route::To(address)), config);
    let mut program = connect(&front).await;
    let (_target, _) = listener.accept().await.expect("accepts");
    assert!(program.read(&mut [0]).await.is_err());
}

#[tokio::test]
async fn a_program_that_leaves_gives_the_opening_up() {
    let front = start(Scripted::default().route(NAME, Route::Hang));
    let mut tcp = greet(&front).await;
    tcp.write_all(&by_name(1)).await.expect("writes");
    while front.overlay.opening() == 0 {
        tokio::task::yield_now().await;
    }
    drop(tcp);
    while front.overlay.opening() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn programs_over_the_limit_wait_for_their_turn() {
    let mut config = config();
    config.limits.connections = 1;
    let front = start_with(
        Scripted::default().route(NAME, Route::To(targets::tcp_echo().await)),
        config,
    );
    let first = connect(&front).await;
    let mut second = front.to_socks().await;
    second.write_all(&[5, 1, 0]).await.expect("writes");
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let early = second.try_read(&mut [0]).expect_err("no answer yet");
    assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
    drop(first);
    assert_eq!(read_exactly(&mut second, 2).await, [5, 0]);
}

/// A program at that address of loopback.
async fn from(host: u8, front: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let address = SocketAddr::from(([127, 0, 0, host], 0));
    socket.bind(address).expect("loopback");
    connected(socket.connect(front.socks).await.expect("connects")).await
}

#[tokio::test]
async fn a_host_that_holds_all_places_loses_one_to_a_newcomer_and_the_only_connection_of_another_stays()
 {
    let overlay = Scripted::default().route(NAME, Route::To(targets::tcp_echo().await));
    let mut config = config();
    (config.limits.connections, config.limits.idle_when_full) = (5, Duration::ZERO);
    let front = start_on(overlay, config, None);
    let mut all = Vec::new();
    for host in [3, 2, 2, 2, 2, 4] {
        all.push(from(host, &front).await);
    }
    assert_eq!(front.counters.snapshot().rested, 1);
    for which in [0, 5] {
        assert!(echoes(&mut all[which]).await);
    }
    front.stop().await;
}

/// A machine of which `OthersPorts` tells whose sockets are, and the ports that are another user's.
fn on_shared_machine(overlay: Scripted, config: Config) -> (Running, Arc<Mutex<Vec<u16>>>) {
    let others = Arc::<Mutex<Vec<u16>>>::default();
    let owners = OthersPorts(Arc::clone(&others));
    let front = start_on(overlay, config, Some(Box::new(owners)));
    (front, others)
}

/// Another user's connection.
async fn of_other(front: &Running, others: &Mutex<Vec<u16>>) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(any).expect("loopback");
    let address = socket.local_addr().expect("bound");
    others.lock().push(address.port());
    socket.connect(front.socks).await.expect("connects")
}

#[tokio::test]
async fn users_of_one_machine_share_no_token_where_they_are_to_be_apart() {
    for isolate_users in [false, true] {
        let overlay = Scripted::default().route(NAME, Route::To(targets::tcp_echo().await));
        let mut config = config();
        config.isolate_users = isolate_users;
        let (front, others) = on_shared_machine(overlay, config);
        let named = |mut tcp: TcpStream| async move {
            tcp.write_all(&[5, 1, 2]).await.expect("writes");
            assert_eq!(read_exactly(&mut tcp, 2).await, [5, 2]);
            tcp.write_all(b"\x01\x02me\x03any").await.expect("writes");
            assert_eq!(read_exactly(&mut tcp, 2).await, [1, 0]);
            tcp
        };
        // Without a token, and with one and the same: one user's twice, then another's.
        for tcp in [
            greet(&front).await,
            greet(&front).await,
            greeted(of_other(&front, &others).await).await,
            named(front.to_socks().await).await,
            named(front.to_socks().await).await,
            named(of_other(&front, &others).await).await,
        ] {
            let mut tcp = tcp;
            assert_eq!(ask(&mut tcp, &by_name(1)).await, 0);
        }
        let asked = front.overlay.asked();
        let tokens: Vec<_> = asked.into_iter().map(|(_, token)| token).collect();
        let [none, again, others_none, name, same_name, others_name] = &tokens[..] else {
            unreachable!("{} flows", tokens.len());
        };
        assert_eq!([none, name], [again, same_name]);
        assert_ne!(none, name);
        assert_eq!(none != others_none, isolate_users);
        assert_eq!(name != others_name, isolate_users);
        assert_ne!(others_none, others_name);
    }
}

/// So much time passes at once.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_user_that_keeps_all_places_busy_loses_one_to_another_at_once_whose_resting_connection_stays()
 {
    let overlay = Scripted::default().route(NAME, Route::To(targets::tcp_echo().await));
    let mut config = config();
    config.limits.connections = 4;
    let (front, others) = on_shared_machine(overlay, config);
    let mut resting = connected(of_other(&front, &others).await).await;
    let mut busy = Vec::new();
    for _ in 0..3 {
        busy.push(connect(&front).await);
    }
    pass(Duration::from_secs(90)).await;
    for tcp in &mut busy {
        assert!(echoes(tcp).await);
    }
    let mut newcomer = soon(connected(of_other(&front, &others).await)).await;
    assert!(echoes(&mut newcomer).await && echoes(&mut resting).await);
    let mut left = 0;
    for tcp in &mut busy {
        left += usize::from(echoes(tcp).await);
    }
    assert_eq!((left, front.counters.snapshot().rested), (2, 1));
}

#[tokio::test]
async fn a_program_that_waits_for_a_place_holds_up_nobody_of_another_user() {
    let overlay = Scripted::default().route(NAME, Route::To(targets::tcp_echo().await));
    let mut config = config();
    config.limits.connections = 2;
    let (front, others) = on_shared_machine(overlay, config);
    let all = [connect(&front).await, connect(&front).await];
    let mut waiting = front.to_socks().await;
    waiting.write_all(&[5, 1, 0]).await.expect("writes");
    let mut other = soon(connected(of_other(&front, &others).await)).await;
    assert!(echoes(&mut other).await);
    let early = waiting.try_read(&mut [0]).expect_err("no answer yet");
    assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
    drop(all);
    assert_eq!(soon(read_exactly(&mut waiting, 2)).await, [5, 0]);
    assert!(echoes(&mut other).await);
}

#[tokio::test]
async fn what_is_sent_on_the_connection_of_an_association_does_not_keep_its_place() {
    let overlay = Scripted::default().route(NAME, Route::To(targets::tcp_echo().await));
    let mut config = config();
    config.limits.connections = 2;
    let front = start_with(overlay, config);
    let mut association = associate(&front).await;
    let mut busy = connect(&front).await;
    pass(Duration::from_secs(90)).await;
    let control = &mut association.control;
    control.write_all(b"here").await.expect("writes");
    assert!(echoes(&mut busy).await);
    let mut newcomer = soon(connect(&front)).await;
    assert!(soon(control.read(&mut [0])).await.is_err());
    assert!(echoes(&mut newcomer).await && echoes(&mut busy).await);
}

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
    associate_over(front.to_socks().await, udp, announced).await
}

async fn associate_over(tcp: TcpStream, udp: UdpSocket, announced: Endpoint) -> Program {
    let mut control = greeted(tcp).await;
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
    start(Scripted::default().route(NAME, Route::To(targets::udp_echo().await)))
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
    let (front, target) = (start(Scripted::default()), targets::udp_echo().await);
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

/// A machine on which the sockets with these ports are another user's.
#[derive(Debug, Default)]
struct OthersPorts(Arc<Mutex<Vec<u16>>>);

impl SocketOwners for OthersPorts {
    fn user(&self, _: u8, key: FlowKey) -> Option<User> {
        let is_others = self.0.lock().contains(&key.program.port());
        Some(User::local(if is_others { 1001 } else { 1000 }, 0))
    }
}

#[tokio::test]
async fn another_user_of_this_machine_does_not_take_an_association_whose_port_is_not_known_yet() {
    let overlay = Scripted::default().route(NAME, Route::To(targets::udp_echo().await));
    let (front, others) = on_shared_machine(overlay, config());
    let program = associate(&front).await;
    let other = socket().await;
    others
        .lock()
        .push(other.local_addr().expect("an address").port());
    let bytes = datagram(NAME, b"other");
    other.send_to(&bytes, program.relay).await.expect("sends");
    program.send(&datagram(NAME, b"hello")).await;
    let mut stolen = [0; 64];
    tokio::select! {
        answer = program.recv() => assert_eq!(answer, datagram(NAME, b"hello")),
        _ = other.recv_from(&mut stolen) => unreachable!("another user was answered"),
    }
    assert_eq!(front.counters.snapshot().datagrams_dropped, 1);
}

#[tokio::test]
async fn a_datagram_that_is_not_taken_does_not_say_which_port_the_program_has() {
    let front = echoing().await;
    let program = associate(&front).await;
    let stray = socket().await;
    let nowhere = [&[0, 0, 0, 3, 3][..], b"a b", &[0, 80], b"x"].concat();
    stray.send_to(&nowhere, program.relay).await.expect("sends");
    program.send(&datagram(NAME, b"hello")).await;
    let answer = tokio::time::timeout(Duration::from_secs(60), program.recv());
    assert_eq!(answer.await.expect("an answer"), datagram(NAME, b"hello"));
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
    assert!(read_all(&mut control).await.is_empty());
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
    let to = Route::To(targets::udp_echo().await);
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

#[tokio::test]
async fn a_user_whose_flows_hold_all_memory_makes_room_for_another_and_for_itself() {
    let mut config = config();
    // The floors of 512 flows.
    config.limits.datagram_memory = 1 << 20;
    let names: Vec<_> = (0..512).map(|n| format!("n{n}.example:1")).collect();
    let never = |overlay: Scripted, name: &String| overlay.route(name, Route::Hang);
    let overlay = names.iter().fold(Scripted::default(), never);
    let echo = Route::To(targets::udp_echo().await);
    let open = ["a.example:1", "b.example:1", "c.example:1", "d.example:1"];
    let overlay = open
        .iter()
        .fold(overlay, |overlay, name| overlay.route(name, echo.clone()));
    let (front, others) = on_shared_machine(overlay, config);
    let mut hogs = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if at % 256 == 0 {
            hogs.push(associate(&front).await);
        }
        hogs[at / 256].send(&datagram(name, b"x")).await;
        while front.overlay.asked().len() <= at {
            tokio::task::yield_now().await;
        }
    }
    let udp = socket().await;
    let announced = udp.local_addr().expect("bound").into();
    let other = associate_over(of_other(&front, &others).await, udp, announced).await;
    // The last has no flow that could make room.
    hogs.push(associate(&front).await);
    let programs = [&other, &other, &hogs[0], &hogs[2]];
    for _ in 0..2 {
        for (program, name) in programs.iter().zip(open) {
            program.send(&datagram(name, b"x")).await;
            assert_eq!(soon(program.recv()).await, datagram(name, b"x"));
        }
    }
    assert_eq!(front.overlay.asked().len(), 516, "each kept its flow");
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_fails_disturbs_no_other_and_is_tried_again_later() {
    let error = Error::new(ErrorKind::TargetFailed, "testing");
    let overlay = Scripted::default()
        .route("bad.example:1", Route::Fail(error))
        .route(NAME, Route::To(targets::udp_echo().await));
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
        tokio::time::sleep(Duration::from_millis(300)).await;
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
    assert_eq!(ask(&mut control, &request).await, 7);
}
