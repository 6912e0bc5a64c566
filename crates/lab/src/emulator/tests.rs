//! The thread, its files and its health, with pairs of sockets in place of TUN devices: they keep packets apart as those do.

use std::{fs, os::unix::net::UnixDatagram, time::Duration};

use super::{network::tests::packet, *};
use crate::topology::Loss;

/// Two hosts and what their TUNs would be, seen from the hosts.
fn pair(topology: &Topology, directory: &std::path::Path) -> (Running, [UnixDatagram; 2]) {
    let (mut ports, mut hosts) = (Vec::new(), Vec::new());
    for node in ["a", "b"] {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        hosts.push(theirs);
        ports.push(port(node, ours.into()));
    }
    let record = Keep {
        pcap: vec!["*".into()],
        drops: true,
        ..Keep::default()
    };
    let options = Options {
        seed: 1,
        directory: directory.to_owned(),
        record,
    };
    let running = start(topology, ports, &topology.addresses(), &options).unwrap();
    (running, hosts.try_into().unwrap())
}

fn port(node: &str, fd: OwnedFd) -> Port {
    Port {
        node: node.into(),
        link: "a-b".into(),
        fd,
    }
}

fn two_hosts() -> Topology {
    let mut topology = network::tests::topology(&["a", "b"], &[["a", "b"]]);
    topology.links[0].forward.delay = Duration::from_millis(3);
    topology.links[0].forward.loss = Loss::Packets { packets: vec![2] };
    topology
}

/// Waits until a device took no packet. The drop log is handed over every half second.
fn until_dropped(directory: &std::path::Path) {
    let dropped = || {
        let text = fs::read_to_string(directory.join("drops.csv")).unwrap();
        text.contains(",tun,")
    };
    while !dropped() {
        thread::yield_now();
    }
}

/// (nanoseconds since 1970, octets) of every record.
fn capture(path: &std::path::Path) -> Vec<(u64, Vec<u8>)> {
    let file = fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (0xa1b2_3c4d, 101));
    let (mut at, mut records) = (24, Vec::new());
    while at < file.len() {
        let size = word(at + 8) as usize;
        let time = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4));
        records.push((time, file[at + 16..at + 16 + size].to_vec()));
        at += 16 + size;
    }
    records
}

#[test]
fn packets_are_carried_and_both_ends_captures_and_the_drop_log_tell_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let (running, [a, b]) = pair(&two_hosts(), directory.path());
    let sent: Vec<_> = (0..3)
        .map(|number| packet(false, 1, 2, 100, number))
        .collect();
    running.begin();
    for packet in &sent {
        a.send(packet).unwrap();
    }
    let back = packet(true, 2, 1, 200, 9);
    let mut buffer = [0; 2000];
    for packet in [&sent[0], &sent[2]] {
        let size = b.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..size], packet[..]);
    }
    b.send(&back).unwrap();
    let size = a.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..size], back[..]);

    let (links, health) = running.stop();
    assert_eq!(
        (links[0].packets, links[0].octets, links[0].drops["loss"]),
        (3, 300, 1)
    );
    assert_eq!(
        (
            links[1].name.as_str(),
            links[1].packets,
            links[1].drops.len()
        ),
        ("a-b<", 1, 0)
    );
    assert_eq!((health.released, health.own_drops), (3, 0));
    let near = capture(&directory.path().join("pcap/a-b.pcap"));
    let far = capture(&directory.path().join("pcap/a-b.far.pcap"));
    let packets = |records: &[(u64, Vec<u8>)]| {
        records
            .iter()
            .map(|(_, packet)| packet.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        packets(&near),
        [&sent[..], std::slice::from_ref(&back)].concat()
    );
    assert_eq!(packets(&far), [sent[0].clone(), sent[2].clone(), back]);
    assert!(far[0].0 >= near[0].0 + 3_000_000, "the delay is to be seen");
    let drops = fs::read_to_string(directory.path().join("drops.csv")).unwrap();
    let lines: Vec<_> = drops.lines().collect();
    assert_eq!(
        (lines.len(), lines[0]),
        (2, "time_ns,link,direction,cause,size,flow")
    );
    assert!(
        lines[1].ends_with(",a-b,>,loss,100,udp 10.77.0.1:0>10.77.0.2:0"),
        "{}",
        lines[1]
    );
}

#[test]
fn what_happens_while_all_else_is_ended_is_carried_and_does_not_count_as_health() {
    let directory = tempfile::tempdir().unwrap();
    let (running, [a, b]) = pair(&two_hosts(), directory.path());
    let mut buffer = [0; 2000];
    running.begin();
    a.send(&packet(false, 1, 2, 100, 1)).unwrap();
    b.recv(&mut buffer).unwrap();
    running.end();
    for number in 2..5 {
        b.send(&packet(false, 2, 1, 100, number)).unwrap();
        a.recv(&mut buffer).unwrap();
    }
    // Its device is gone, as when a namespace is cleared.
    drop(b);
    a.send(&packet(false, 1, 2, 100, 5)).unwrap();
    a.send(&packet(false, 1, 2, 100, 6)).unwrap();
    until_dropped(directory.path());
    let (links, health) = running.stop();
    assert_eq!((health.released, health.own_drops), (1, 0));
    assert_eq!((links[1].packets, links[0].drops["tun"]), (3, 1));
}

#[test]
fn a_packet_that_the_device_does_not_take_is_a_drop_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let (running, [a, b]) = pair(&two_hosts(), directory.path());
    drop(b);
    a.send(&packet(false, 1, 2, 100, 0)).unwrap();
    until_dropped(directory.path());
    let (links, health) = running.stop();
    assert_eq!((links[0].drops["tun"], health.own_drops), (1, 1));
}

#[test]
fn missing_superfluous_and_unknown_ports_are_named() {
    let topology = two_hosts();
    let fd = || OwnedFd::from(UnixDatagram::unbound().unwrap());
    let why = |ports: Vec<Port>| place(&topology, ports).unwrap_err();
    assert!(why(vec![port("a", fd())]).contains("b at link a-b"));
    assert!(why(vec![port("c", fd())]).contains("no link a-b ends at c"));
    assert!(why(vec![port("a", fd()), port("a", fd())]).contains("two TUNs"));
}
