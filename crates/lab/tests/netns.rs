//! Real namespaces, as root. The tests of `world` do the same as an ordinary user.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    process::Stdio,
    time::{Duration, Instant},
};

use hoplite_lab::{
    netns::{Host, Lab, Tun, tun},
    topology::{Direction, Link, Node, Topology},
};
use rustix::event::{PollFd, PollFlags, poll};
use socket2::{Domain, Socket, Type};

/// Says why, where the machine does not let this process make namespaces.
fn possible() -> bool {
    let root = rustix::process::geteuid().is_root();
    let tun = tun::check();
    match (&tun, root) {
        (Ok(()), true) => true,
        (Err(why), _) => skipped(&why.to_string()),
        (_, false) => skipped("only root may make namespaces in a process with threads"),
    }
}

fn skipped(why: &str) -> bool {
    println!("skipped: {why}");
    false
}

fn topology(links: &[(&str, &str)]) -> Topology {
    let mut names: Vec<&str> = links.iter().flat_map(|(a, b)| [*a, *b]).collect();
    names.sort_unstable();
    names.dedup();
    let link = |(a, b): &(&str, &str)| Link {
        mtu: 1400,
        ..Link::between(a, b, &Direction::default())
    };
    Topology {
        nodes: names.into_iter().map(Node::host).collect(),
        links: links.iter().map(link).collect(),
    }
}

fn build(links: &[(&str, &str)]) -> (Lab, Vec<Tun>) {
    Lab::build(&topology(links), &BTreeMap::new()).unwrap()
}

/// Waits for a packet and carries it over. A perfect link.
fn carry(from: &OwnedFd, to: &OwnedFd) {
    let mut ready = [PollFd::new(from, PollFlags::IN)];
    poll(&mut ready, None).unwrap();
    let mut packet = [0; 2000];
    let length = File::from(from.as_fd().try_clone_to_owned().unwrap())
        .read(&mut packet)
        .unwrap();
    let mut to = File::from(to.try_clone().unwrap());
    to.write_all(&packet[..length]).unwrap();
}

fn socket(host: &Host, address: IpAddr) -> UdpSocket {
    let socket = host
        .enter(|| UdpSocket::bind((address, 7)))
        .unwrap()
        .unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    socket
}

#[test]
fn a_datagram_crosses_a_link_by_either_protocol_and_nothing_else_does() {
    if !possible() {
        return;
    }
    let (lab, tuns) = build(&[("a", "b")]);
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    for (from, to) in [
        (IpAddr::from(a.addresses.v4), IpAddr::from(b.addresses.v4)),
        (a.addresses.v6.into(), b.addresses.v6.into()),
    ] {
        let (asks, answers) = (socket(a, from), socket(b, to));
        asks.send_to(b"ping", (to, 7)).unwrap();
        carry(&tuns[0].fd, &tuns[1].fd);
        let mut buffer = [0; 100];
        let (length, sender) = answers.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], sender.ip()), (&b"ping"[..], from));
    }
    assert_eq!((a.dropped().unwrap(), b.dropped().unwrap()), (0, 0));
    let mut left = [0; 2000];
    for tun in tuns {
        let error = File::from(tun.fd).read(&mut left).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
}

#[test]
fn each_host_takes_the_interface_that_leads_to_the_other() {
    if !possible() {
        return;
    }
    let (lab, tuns) = build(&[("a", "b"), ("a", "c")]);
    let names: Vec<_> = tuns
        .iter()
        .map(|tun| (tun.host.as_str(), tun.interface.as_str()))
        .collect();
    assert_eq!(
        names,
        [("a", "eth0"), ("b", "eth0"), ("a", "eth1"), ("c", "eth0")]
    );
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    for (from, to) in [
        (IpAddr::from(a.addresses.v4), IpAddr::from(c.addresses.v4)),
        (a.addresses.v6.into(), c.addresses.v6.into()),
    ] {
        let (asks, answers) = (socket(a, from), socket(c, to));
        asks.send_to(b"ping", (to, 7)).unwrap();
        carry(&tuns[2].fd, &tuns[3].fd);
        assert_eq!(answers.recv_from(&mut [0; 100]).unwrap().1.ip(), from);
    }
}

#[test]
fn a_process_runs_in_its_host_and_tells_how_it_ended_and_what_it_used() {
    if !possible() {
        return;
    }
    let (lab, _tuns) = build(&[("a", "b")]);
    let shell = "cat /proc/net/fib_trie; env; read line; echo $line; exit 3";
    let mut process = lab
        .host("b")
        .unwrap()
        .command(["sh", "-c", shell])
        .env("WITH", "love")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(process.is_alive());
    process.stdin.take().unwrap().write_all(b"said\n").unwrap();
    let mut output = String::new();
    process
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut output)
        .unwrap();
    let exit = process.wait_for(Duration::from_secs(60)).unwrap();
    assert_eq!(exit.status.code(), Some(3));
    assert!(exit.cpu > Duration::ZERO && exit.peak_memory > 0);
    for expected in ["10.77.0.2", "WITH=love", "said"] {
        assert!(output.contains(expected), "{output}");
    }
    assert!(
        !output.contains("10.77.0.1") && !output.contains("CARGO"),
        "{output}"
    );
}

#[test]
fn a_group_dies_with_its_leader_when_it_is_told_to() {
    if !possible() {
        return;
    }
    let (lab, _tuns) = build(&[("a", "b")]);
    let mut process = lab
        .host("a")
        .unwrap()
        .command(["sh", "-c", "sleep 1000 & echo started; wait"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = process.stdout.take().unwrap();
    output.read_exact(&mut [0; 8]).unwrap();
    assert!(process.wait_until(Instant::now()).is_none());
    process.signal_group(rustix::process::Signal::KILL).unwrap();
    assert!(process.wait_for(Duration::from_secs(60)).is_some());
    // The end of the pipe shows that its child is gone as well.
    assert_eq!(output.read(&mut [0; 8]).unwrap(), 0);
    process.signal(rustix::process::Signal::KILL).unwrap();
}

#[test]
fn an_unknown_program_is_an_error_and_no_process() {
    if !possible() {
        return;
    }
    let (lab, _tuns) = build(&[("a", "b")]);
    let error = lab
        .host("a")
        .unwrap()
        .command(["no-such-program"])
        .spawn()
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_setting_that_the_kernel_does_not_have_is_named() {
    if !possible() {
        return;
    }
    let sysctls = BTreeMap::from([("net.ipv4.tcp_wonder".to_owned(), "1".to_owned())]);
    let failure = Lab::build(&topology(&[("a", "b")]), &sysctls).unwrap_err();
    assert!(
        failure.to_string().contains("net.ipv4.tcp_wonder"),
        "{failure}"
    );
}

#[test]
fn connections_have_the_congestion_control_that_was_asked_for_also_where_the_kernel_restricts_it() {
    if !possible() {
        return;
    }
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    for name in known.unwrap().split_whitespace() {
        let setting = (
            "net.ipv4.tcp_congestion_control".to_owned(),
            name.to_owned(),
        );
        let links = topology(&[("a", "b"), ("a", "c")]);
        let (lab, _tuns) = Lab::build(&links, &BTreeMap::from([setting])).unwrap();
        let a = lab.host("a").unwrap();
        for to in ["b", "c"].map(|name| lab.host(name).unwrap().addresses) {
            let used = [to.v4.into(), to.v6.into()].map(|to| a.enter(|| congestion(to)).unwrap());
            assert_eq!(used, [name, name]);
        }
    }
}

/// What a connection that begins has.
fn congestion(to: IpAddr) -> String {
    let socket = Socket::new(
        Domain::for_address(SocketAddr::from((to, 7))),
        Type::STREAM,
        None,
    )
    .unwrap();
    socket.set_nonblocking(true).unwrap();
    let beginning = socket.connect(&SocketAddr::from((to, 7)).into());
    assert_eq!(
        beginning.unwrap_err().raw_os_error(),
        Some(libc::EINPROGRESS)
    );
    rustix::net::sockopt::tcp_congestion(&socket).unwrap()
}

#[test]
fn two_hundred_hosts_are_set_up() {
    if !possible() {
        return;
    }
    let names: Vec<String> = (0..200).map(|i| format!("h{i}")).collect();
    let links: Vec<_> = names
        .windows(2)
        .map(|pair| (pair[0].as_str(), pair[1].as_str()))
        .collect();
    let began = Instant::now();
    let (lab, tuns) = build(&links);
    println!("200 hosts in {:?}", began.elapsed());
    assert_eq!((lab.hosts().len(), tuns.len()), (200, 398));
}
