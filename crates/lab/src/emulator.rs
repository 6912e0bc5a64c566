//! The emulator: links and routers in user space, between the TUN devices of network namespaces.
//!
//! [`network::Network`] is the whole behaviour without a clock, a file or a thread; [`start`] drives one with a thread of its own.
//!
//! # Not in this room
//! Namespaces, interfaces, addresses and routes of the hosts: `netns`.

pub mod distance;
mod driver;
mod health;
pub mod link;
pub mod netem;
pub mod network;
pub mod packet;
pub(crate) mod priority;
mod recorder;
pub mod trace;

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, eventfd};

use self::{
    driver::{Control, Driver},
    network::Network,
    recorder::Recorder,
};
use crate::{
    experiments::trial::{EmulatorHealth, Keep, LinkCount},
    topology::{Addresses, NodeKind, Topology},
};

pub(crate) use self::priority::ask as ask_for_priority;

/// One end of a link that a host sees as an interface.
#[derive(Debug)]
pub struct Port {
    /// The host.
    pub node: String,
    /// The link.
    pub link: String,
    /// A TUN device (`IFF_TUN | IFF_NO_PI`), open for reading and writing; it is made non-blocking.
    pub fd: OwnedFd,
}

/// What an emulator needs to know beside the network.
#[derive(Clone, Debug)]
pub struct Options {
    /// All random streams of the links come from it.
    pub seed: u64,
    /// Where `pcap/` and `drops.csv` go.
    pub directory: PathBuf,
    /// What is recorded there.
    pub record: Keep,
    /// A packet that leaves later than this is counted as late.
    pub tolerated: Duration,
}

/// An emulator at work. Dropping it stops it.
#[derive(Debug)]
pub struct Running {
    control: Arc<Control>,
    thread: Option<JoinHandle<(Vec<LinkCount>, EmulatorHealth)>>,
}

/// Starts the emulator of `topology` on a thread of its own. Every end of a link at a host needs its port.
///
/// # Errors
/// A port that the topology does not have or that is missing, a topology that cannot be, a file or a thread that cannot be made.
pub fn start(
    topology: &Topology,
    ports: Vec<Port>,
    addresses: &BTreeMap<String, Addresses>,
    options: &Options,
) -> io::Result<Running> {
    let network = Network::new(topology, addresses, options.seed).map_err(invalid)?;
    let ports = place(topology, ports).map_err(invalid)?;
    let (base, epoch) = (Instant::now(), driver::epoch());
    let recorder = Recorder::new(topology, &options.record, &options.directory, epoch)?;
    let control = Arc::new(Control {
        stop: AtomicBool::new(false),
        begin: AtomicBool::new(false),
        end: AtomicBool::new(false),
        wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
    });
    let timing = (base, options.tolerated);
    let driver = Driver::new(network, recorder, ports, Arc::clone(&control), timing)?;
    let thread = thread::Builder::new().name("emulator".to_owned());
    let thread = thread.spawn(move || driver.run())?;
    Ok(Running {
        control,
        thread: Some(thread),
    })
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Every port at `2 · link + end`.
fn place(topology: &Topology, ports: Vec<Port>) -> Result<Vec<Option<OwnedFd>>, String> {
    let mut placed: Vec<Option<OwnedFd>> = (0..2 * topology.links.len()).map(|_| None).collect();
    for Port { node, link, fd } in ports {
        let found = topology.links.iter().position(|drawn| drawn.name == link);
        let at = found.and_then(|at| {
            let end = topology.links[at]
                .ends
                .iter()
                .position(|end| *end == node)?;
            Some(2 * at + end)
        });
        let at = at.ok_or_else(|| format!("no link {link} ends at {node}"))?;
        if placed[at].replace(fd).is_some() {
            return Err(format!("link {link} has two TUNs at {node}"));
        }
    }
    complete(topology, &placed).map(|()| placed)
}

fn complete(topology: &Topology, placed: &[Option<OwnedFd>]) -> Result<(), String> {
    let is_host = |name: &String| {
        let mut hosts = topology
            .nodes
            .iter()
            .filter(|node| node.kind == NodeKind::Host);
        hosts.any(|node| node.name == *name)
    };
    let ends = topology
        .links
        .iter()
        .flat_map(|link| link.ends.iter().map(move |end| (link, end)));
    for ((link, end), fd) in ends.zip(placed) {
        if is_host(end) != fd.is_some() {
            let what = if fd.is_some() {
                "a router has a TUN"
            } else {
                "a host has no TUN"
            };
            return Err(format!("{what}: {end} at link {}", link.name));
        }
    }
    Ok(())
}

impl Running {
    /// The first workload begins: health is recorded from now on, what was before is forgotten.
    pub fn begin(&self) {
        self.control.begin.store(true, Ordering::Release);
        self.wake();
    }

    /// The last workload has ended: health is what it was until now, whatever comes while all else is ended. Packets are still carried.
    pub fn end(&self) {
        self.control.end.store(true, Ordering::Release);
        self.wake();
    }

    /// Stops, and says what happened on every direction of every link since the start, and how well promises were kept from `begin` to `end`
    /// (until now without one). Packets that could not be recorded count whenever it was: a capture is whole or it is not.
    #[must_use]
    pub fn stop(mut self) -> (Vec<LinkCount>, EmulatorHealth) {
        self.join().unwrap_or_else(|| {
            let health = EmulatorHealth {
                own_drops: u64::from(u32::MAX),
                ..EmulatorHealth::default()
            };
            (Vec::new(), health)
        })
    }

    fn join(&mut self) -> Option<(Vec<LinkCount>, EmulatorHealth)> {
        let thread = self.thread.take()?;
        self.control.stop.store(true, Ordering::Release);
        self.wake();
        thread.join().ok()
    }

    fn wake(&self) {
        rustix::io::write(&self.control.wake, &1_u64.to_ne_bytes()).ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.join();
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::net::UnixDatagram};

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
            tolerated: Duration::from_micros(500),
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

    /// (nanoseconds since 1970, bytes) of every record.
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
            (links[0].packets, links[0].bytes, links[0].drops["loss"]),
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
}
