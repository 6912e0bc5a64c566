//! The transparent front end against the kernel's own stack: a TUN device in a network namespace of its own, programs that are plain sockets
//! there, and an overlay in memory behind it. Skipped, with the reason, where no namespace or TUN device can be made.
#![expect(
    clippy::disallowed_methods,
    reason = "the tests are programs: they connect to what the device carries away"
)]

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    process::Command,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use hoplite_mediator::tun::{Config, Counters, Device, Transparent};
use hoplite_overlay::{
    Overlay, Received,
    memory::{Conditions, Network},
};
use hoplite_testing::{
    Double, DoubleFlow, PATIENCE,
    namespace::{inside, tun},
    soon,
};
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinHandle};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));
const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9));

/// TUN_F_CSUM, TSO4, TSO6, USO4, USO6.
const ALL: u32 = 0x01 | 0x02 | 0x04 | 0x20 | 0x40;

const CARRIAGE: usize = 1200;
const TRAIN: usize = 10 * CARRIAGE;

/// An overlay whose targets answer each batch with a train.
fn trains() -> Arc<dyn Overlay> {
    let overlay = Double::nothing().datagrams(|_, _, _| {
        // What the flow still has to deliver.
        let due = Arc::new(Mutex::new((0, None::<Waker>)));
        let asked = Arc::clone(&due);
        let flow = DoubleFlow::silent()
            .sends(move |_, _, _| {
                let mut due = asked.lock();
                due.0 += 1;
                due.1.take().into_iter().for_each(Waker::wake);
                Poll::Ready(Ok(()))
            })
            .receives(move |_, cx, buf| {
                let mut due = due.lock();
                if due.0 == 0 {
                    due.1 = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                due.0 -= 1;
                buf[..TRAIN].fill(7);
                Poll::Ready(Ok(Received {
                    len: TRAIN,
                    segment: CARRIAGE,
                }))
            });
        Box::pin(async { Ok(flow.boxed()) })
    });
    Arc::new(overlay)
}

struct Running {
    network: Network,
    counters: Arc<Counters>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<io::Result<()>>,
}

fn start() -> Running {
    let network = Network::new(1);
    let overlay = Arc::new(network.overlay(Ipv4Addr::new(192, 0, 2, 1).into()));
    start_over(overlay, network)
}

fn start_over(overlay: Arc<dyn Overlay>, network: Network) -> Running {
    let device = Device::new(tun(1500, ALL), 1500, true).expect("a device");
    let transparent = Transparent::new(Config::default(), overlay, device);
    let counters = transparent.counters();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(transparent.serve(async { drop(stopped.await) }));
    Running {
        network,
        counters,
        stop,
        task,
    }
}

/// Runs a program, which may block, beside the front end.
async fn program<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(run).await.expect("it ends")
}

fn socket(to: SocketAddr) -> UdpSocket {
    let any: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).expect("binds");
    socket.set_read_timeout(Some(PATIENCE)).expect("an option");
    socket.connect(to).expect("connects");
    socket
}

fn option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("small");
    #[expect(unsafe_code, reason = "no safe wrapper for this option")]
    // SAFETY: the descriptor is open, the value is an int and as long as it says.
    let set = unsafe {
        let value = std::ptr::from_ref(&value).cast();
        libc::setsockopt(socket.as_raw_fd(), level, name, value, len)
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

#[tokio::test]
async fn a_program_talks_to_targets_by_datagrams_of_all_sizes() {
    if !inside("a_program_talks_to_targets_by_datagrams_of_all_sizes") {
        return;
    }
    let running = start();
    for there in [V4, V6] {
        let far = running.network.bind(there);
        let to = far.address();
        tokio::spawn(async move {
            loop {
                let (payload, from) = far.recv().await;
                far.send(&payload, from);
            }
        });
        program(move || {
            let socket = socket(to);
            for len in [1, 0, 500, 1200, 1452] {
                socket.send(&vec![7; len]).expect("sends");
                let mut buf = [0; 2000];
                assert_eq!(socket.recv(&mut buf).expect("an answer"), len);
            }
        })
        .await;
    }
    running.stop.send(()).expect("it runs");
    running.task.await.expect("ends").expect("in order");
}

#[tokio::test]
async fn a_train_of_a_program_crosses_at_once() {
    if !inside("a_train_of_a_program_crosses_at_once") {
        return;
    }
    let running = start();
    for there in [V4, V6] {
        let far = running.network.bind(there);
        let to = far.address();
        let before = running.counters.snapshot();
        let sending = program(move || {
            let socket = socket(to);
            option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1200);
            let train: Vec<u8> = (0..12_000_u32).map(|n| n.to_le_bytes()[0]).collect();
            assert_eq!(socket.send(&train).expect("sends"), 12_000);
            socket
        });
        let socket = sending.await;
        for _ in 0..10 {
            assert_eq!(far.recv().await.0.len(), 1200);
        }
        let after = running.counters.snapshot();
        assert_eq!(after.udp_up - before.udp_up, 12_000);
        let packets = after.packets_in - before.packets_in;
        assert!(packets < 10, "{packets} packets: it was cut");
        drop(socket);
    }
    running.stop.send(()).expect("it runs");
    running.task.await.expect("ends").expect("in order");
}

#[tokio::test]
async fn a_train_from_a_target_crosses_at_once() {
    if !inside("a_train_from_a_target_crosses_at_once") {
        return;
    }
    let running = start_over(trains(), Network::new(1));
    for there in [V4, V6] {
        let before = running.counters.snapshot();
        program(move || {
            let socket = socket(SocketAddr::new(there, 9));
            socket.send(b"a train, please").expect("sends");
            let mut buf = [0; 2000];
            for _ in 0..TRAIN / CARRIAGE {
                assert_eq!(socket.recv(&mut buf).expect("a datagram"), CARRIAGE);
                assert!(buf[..CARRIAGE].iter().all(|byte| *byte == 7));
            }
        })
        .await;
        let after = running.counters.snapshot();
        // Linux before 6.2 takes no trains: they are cut here.
        let packets = after.packets_out - before.packets_out;
        assert!([1, 10].contains(&packets), "{packets} packets");
    }
    running.stop.send(()).expect("it runs");
    running.task.await.expect("ends").expect("in order");
}

#[tokio::test]
async fn a_thousand_flows_at_once_lose_and_mix_up_nothing() {
    if !inside("a_thousand_flows_at_once_lose_and_mix_up_nothing") {
        return;
    }
    let running = start();
    let far = running.network.bind(V4);
    let to = far.address();
    tokio::spawn(async move {
        loop {
            let (payload, from) = far.recv().await;
            far.send(&payload, from);
        }
    });
    program(move || {
        let flows = 0..1000_u32;
        let sockets: Vec<_> = flows.map(|number| (number, socket(to))).collect();
        // The device's queue holds 500 packets: whoever sends more at once loses some, as on any interface.
        for (round, some) in
            (0..3_u32).flat_map(|round| sockets.chunks(200).map(move |some| (round, some)))
        {
            for (number, socket) in some {
                let payload = [number.to_le_bytes(), round.to_le_bytes()].concat();
                socket.send(&payload).expect("sends");
            }
            for (number, socket) in some {
                let mut buf = [0; 9];
                assert_eq!(socket.recv(&mut buf).expect("an answer"), 8);
                assert_eq!(buf[..4], number.to_le_bytes());
                assert_eq!(buf[4..8], round.to_le_bytes());
            }
        }
    })
    .await;
    let snapshot = running.counters.snapshot();
    assert_eq!((snapshot.udp_opened, snapshot.udp_dropped), (1000, 0));
    running.stop.send(()).expect("it runs");
    running.task.await.expect("ends").expect("in order");
}

#[tokio::test]
async fn a_program_hears_of_refusal_and_of_what_is_too_big() {
    if !inside("a_program_hears_of_refusal_and_of_what_is_too_big") {
        return;
    }
    let running = start();
    running.network.set_conditions(Conditions {
        max_payload: 1300,
        ..Conditions::default()
    });
    for there in [V4, V6] {
        let far = running.network.bind(there);
        let to = far.address();
        program(move || {
            let socket = socket(to);
            let (level, name) = match to {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
            };
            option(&socket, level, name, libc::IP_PMTUDISC_DO);
            let too_big = loop {
                match socket.send(&[0; 1400]) {
                    Err(error) => break error.raw_os_error(),
                    Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            assert_eq!(too_big, Some(libc::EMSGSIZE));
            // The kernel may tell the same a second time, as an error that waits in the socket.
            let sent = (0..3).any(|_| socket.send(&[0; 1300]).is_ok());
            assert!(sent, "it fits");
        })
        .await;
        while far.recv().await.0.len() != 1300 {}
        drop(far);
        let refused = program(move || {
            let socket = socket(to);
            socket.send(b"anybody there?").expect("sends");
            socket.recv(&mut [0; 9]).expect_err("nobody").kind()
        });
        assert_eq!(refused.await, io::ErrorKind::ConnectionRefused);
    }
    running.stop.send(()).expect("it runs");
    running.task.await.expect("ends").expect("in order");
}

#[tokio::test]
async fn an_interface_that_somebody_removes_ends_the_front_end_with_an_error() {
    if !inside("an_interface_that_somebody_removes_ends_the_front_end_with_an_error") {
        return;
    }
    let running = start();
    tokio::task::yield_now().await;
    let status = Command::new("ip")
        .args(["link", "delete", "hoplite0"])
        .status();
    assert!(status.expect("ip runs").success());
    let ended = soon(running.task).await.expect("without panic");
    ended.expect_err("with an error");
}
