//! The transparent front end against the TCP of Linux: real programs' sockets in a network namespace whose only way out is a TUN device,
//! the device's own sockets to targets on loopback behind it. Skipped, with the reason, where there are no namespaces.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "programs and targets are here"
)]

use std::{
    future::pending,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::sync_channel,
    },
    thread,
    time::Duration,
};

use hoplite_mediator::tun::{Config, Counters, Device, Transparent, config};
use hoplite_overlay::{Direct, Error, ErrorKind, Reason};
use hoplite_testing::{
    Double,
    namespace::{inside, tun},
};

fn opening(open: config::Opening) -> Config {
    let flows = config::Flows {
        open,
        ..config::Flows::default()
    };
    Config {
        flows,
        ..Config::default()
    }
}

/// Both directions of one connection at once.
fn exchange(program: &TcpStream, target: &TcpStream, up: &[u8], down: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(|| send(program, up).unwrap());
        scope.spawn(|| send(target, down).unwrap());
        let arrived = scope.spawn(|| receive(target).unwrap());
        assert!(receive(program).unwrap() == down, "down");
        assert!(arrived.join().unwrap() == up, "up");
    });
}

#[test]
fn bulk_goes_both_ways_at_once_and_every_byte_arrives() {
    if !inside("bulk_goes_both_ways_at_once_and_every_byte_arrives") {
        return;
    }
    serve(opening(config::Opening::Auto));
    let far = Far::new();
    let (up, down) = (bytes(1, 48 << 20), bytes(2, 48 << 20));
    for address in [far.v4, far.v6, far.v4] {
        let program = TcpStream::connect(address).unwrap();
        let target = far.listener.accept().unwrap().0;
        exchange(&program, &target, &up, &down);
    }
    // A program whose device takes less than ours, and one without a buffer to speak of.
    let program = TcpStream::connect(far.v4).unwrap();
    socket2::SockRef::from(&program)
        .set_recv_buffer_size(4096)
        .unwrap();
    let target = far.listener.accept().unwrap().0;
    exchange(&program, &target, &up[..1 << 20], &down[..1 << 20]);
    ip("link set hoplite0 mtu 1280");
    let (program, target) = far.pair();
    exchange(&program, &target, &up[..8 << 20], &down[..8 << 20]);
}

#[test]
fn bulk_crosses_the_device_in_packets_of_many_segments() {
    if !inside("bulk_crosses_the_device_in_packets_of_many_segments") {
        return;
    }
    let counters = serve(opening(config::Opening::Optimistic));
    let far = Far::new();
    let all = bytes(1, 32 << 20);
    let whole = all.len() as u64;
    for (one, other) in [far.pair(), swap(far.pair())] {
        let before = counters.snapshot();
        thread::scope(|scope| {
            scope.spawn(|| send(&one, &all).unwrap());
            assert!(receive(&other).unwrap() == all);
        });
        let after = counters.snapshot();
        let packets = after.packets_in + after.packets_out - before.packets_in - before.packets_out;
        assert!(whole / packets > 10_000, "{} bytes each", whole / packets);
    }
}

#[test]
fn either_side_may_finish_first() {
    if !inside("either_side_may_finish_first") {
        return;
    }
    serve(opening(config::Opening::Optimistic));
    let far = Far::new();
    for (key, (first, second)) in [far.pair(), swap(far.pair())].into_iter().enumerate() {
        let (request, answer) = (bytes(key as u64, 300_000), bytes(7, 3 << 20));
        send(&first, &request).unwrap();
        assert!(receive(&second).unwrap() == request);
        send(&second, &answer).unwrap();
        assert!(receive(&first).unwrap() == answer);
    }
}

fn swap<T>((a, b): (T, T)) -> (T, T) {
    (b, a)
}

#[test]
fn a_reset_of_either_side_reaches_the_other() {
    if !inside("a_reset_of_either_side_reaches_the_other") {
        return;
    }
    serve(opening(config::Opening::Optimistic));
    let far = Far::new();
    for (mut one, mut other) in [far.pair(), swap(far.pair())] {
        one.write_all(b"a").unwrap();
        other.read_exact(&mut [0]).unwrap();
        reset(one);
        let error = other.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    // A program that goes away with something unread.
    let (program, mut target) = far.pair();
    target.write_all(&[0; 1000]).unwrap();
    while program.peek(&mut [0; 1000]).unwrap() < 1000 {}
    drop(program);
    assert!(target.read(&mut [0]).is_err());
}

#[test]
fn a_program_is_told_why_nobody_answers() {
    if !inside("a_program_is_told_why_nobody_answers") {
        return;
    }
    serve(opening(config::Opening::Auto));
    let far = Far::new();
    let (closed, v6) = (far.v4, far.v6);
    drop(far);
    for address in [closed, v6] {
        let error = TcpStream::connect(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
    for (port, expected) in [
        (NO_HOST, io::ErrorKind::HostUnreachable),
        (NO_NETWORK, io::ErrorKind::NetworkUnreachable),
    ] {
        let error = TcpStream::connect(at(port)).unwrap_err();
        assert_eq!(error.kind(), expected, "{error}");
    }
}

#[test]
fn a_slow_reader_stops_the_sender_on_either_side() {
    if !inside("a_slow_reader_stops_the_sender_on_either_side") {
        return;
    }
    serve(opening(config::Opening::Pessimistic));
    let far = Far::new();
    let all = bytes(3, 64 << 20);
    for (reader, writer) in [far.pair(), swap(far.pair())] {
        let sent = AtomicUsize::new(0);
        thread::scope(|scope| {
            let write = || {
                for piece in all.chunks(64 << 10) {
                    (&writer).write_all(piece).unwrap();
                    sent.fetch_add(piece.len(), Ordering::SeqCst);
                }
                writer.shutdown(Shutdown::Write).unwrap();
            };
            scope.spawn(write);
            let waiting = settled(&sent);
            assert!((1..48 << 20).contains(&waiting), "{waiting} bytes wait");
            assert!(receive(&reader).unwrap() == all);
        });
    }
}

/// The number, once it has not changed for a while.
fn settled(number: &AtomicUsize) -> usize {
    let (mut last, mut same) = (0, 0);
    while same < 20 {
        thread::sleep(Duration::from_millis(20));
        let now = number.load(Ordering::SeqCst);
        same = if now == last && now > 0 { same + 1 } else { 0 };
        last = now;
    }
    last
}

/// One flow of the many: how much either way, and how it ends.
struct Plan {
    key: u64,
    up: usize,
    down: usize,
    resets: bool,
}

impl Plan {
    fn new(key: u64) -> Self {
        let dice = bytes(key, 8);
        let size = |a: u8, b: u8| match a % 4 {
            0 => 0,
            1 => usize::from(b),
            _ => usize::from(a) * usize::from(b) * 8,
        };
        Self {
            key,
            up: size(dice[0], dice[1]),
            down: size(dice[2], dice[3]),
            resets: dice[4] < 40,
        }
    }

    /// The target's part: it knows the plan by the key, which comes first.
    fn answer(mut tcp: TcpStream) {
        let mut key = [0; 8];
        if tcp.read_exact(&mut key).is_err() {
            return;
        }
        let plan = Self::new(u64::from_be_bytes(key));
        let down = bytes(plan.key + 1, plan.down);
        if plan.resets {
            drop(tcp.write_all(&down));
            return reset(tcp);
        }
        thread::scope(|scope| {
            scope.spawn(|| send(&tcp, &down).unwrap());
            let up = receive(&tcp).unwrap();
            assert!(up == bytes(plan.key, plan.up), "up, plan {}", plan.key);
        });
    }

    /// The program's part.
    fn ask(&self, mut tcp: TcpStream) {
        tcp.write_all(&self.key.to_be_bytes()).unwrap();
        let up = bytes(self.key, self.up);
        thread::scope(|scope| {
            let sending = scope.spawn(|| send(&tcp, &up));
            let got = receive(&tcp);
            let sent = sending.join().unwrap();
            if self.resets {
                // Whichever call comes first is told.
                assert!(got.is_err() || sent.is_err(), "it looks complete");
                return;
            }
            sent.unwrap();
            let down = bytes(self.key + 1, self.down);
            assert!(got.unwrap() == down, "down, plan {}", self.key);
        });
    }
}

#[test]
fn a_thousand_flows_at_random_carry_what_they_should() {
    if !inside("a_thousand_flows_at_random_carry_what_they_should") {
        return;
    }
    serve(opening(config::Opening::Auto));
    let far = Far::new();
    let (address, listener) = (far.v4, far.listener);
    thread::spawn(move || {
        for tcp in listener.incoming() {
            thread::spawn(|| Plan::answer(tcp.unwrap()));
        }
    });
    thread::scope(|scope| {
        for thread in 0..50_u64 {
            scope.spawn(move || {
                for flow in 0..20 {
                    let plan = Plan::new(thread * 1000 + flow * 2 + 1);
                    plan.ask(TcpStream::connect(address).unwrap());
                }
            });
        }
    });
}

/// Targets at these ports fail in the way of their name.
const NO_HOST: u16 = 1;
const NO_NETWORK: u16 = 2;

/// Every target is on loopback, at its own port.
fn loopback() -> Double {
    let failed = |reason| Error::new(ErrorKind::TargetFailed, "testing").because(reason);
    Double::over(Direct::new()).streams(move |below, target, terms| {
        Box::pin(async move {
            match target.port {
                NO_HOST => return Err(failed(Reason::HostUnreachable)),
                NO_NETWORK => return Err(failed(Reason::NetworkUnreachable)),
                _ => {}
            }
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, target.port)).into();
            below.open_stream(&target, terms).await
        })
    })
}

/// CSUM, TSO4, TSO6 of linux/if_tun.h.
const OFFLOADS: u32 = 1 | 2 | 4;

/// Serves the device of this namespace until the process ends; answers with what it counts.
fn serve(config: Config) -> Arc<Counters> {
    let fd = tun(config.device.mtu, OFFLOADS);
    let (tell, told) = sync_channel(1);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let device = Device::new(fd, config.device.mtu, true).unwrap();
            let overlay = Arc::new(loopback());
            let front = Transparent::new(config, overlay, device);
            tell.send(front.counters()).unwrap();
            drop(front.serve(pending()).await);
        });
    });
    told.recv().unwrap()
}

/// A target, and where programs find it.
struct Far {
    listener: TcpListener,
    v4: SocketAddr,
    v6: SocketAddr,
}

impl Far {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        Self {
            listener,
            v4: at(port),
            v6: format!("[2001:db8::9]:{port}").parse().unwrap(),
        }
    }

    /// Both ends of a new connection: the program's and the target's.
    fn pair(&self) -> (TcpStream, TcpStream) {
        let program = TcpStream::connect(self.v4).unwrap();
        (program, self.listener.accept().unwrap().0)
    }
}

/// Where programs find what is at that port.
fn at(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(203, 0, 113, 9), port))
}

/// The bytes of a direction; different for each key.
fn bytes(key: u64, len: usize) -> Vec<u8> {
    let mut state = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_ne_bytes()
    };
    let mut all: Vec<u8> = std::iter::repeat_with(next)
        .take(len / 8 + 1)
        .flatten()
        .collect();
    all.truncate(len);
    all
}

/// Sends all and finishes.
fn send(tcp: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut tcp = tcp;
    tcp.write_all(bytes)?;
    tcp.shutdown(Shutdown::Write)
}

/// Receives all until the other side finishes.
fn receive(tcp: &TcpStream) -> io::Result<Vec<u8>> {
    let (mut tcp, mut all) = (tcp, Vec::new());
    tcp.read_to_end(&mut all)?;
    Ok(all)
}

/// Closes with a reset.
fn reset(tcp: TcpStream) {
    let socket = socket2::SockRef::from(&tcp);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(tcp);
}

/// Runs `ip` with these arguments.
fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}
