//! A small network for one measurement: hosts, an emulator, sockets inside. The checks of `calibrate` build one each.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::PathBuf,
    sync::Arc,
};

use super::{Figure, failed};
use crate::{
    emulator::{self, Options, Port, Running},
    errors::Failure,
    netns::{Host, Lab},
    topology::{Direction, Link, Node, NodeKind, Topology},
    trial::{EmulatorHealth, LinkCount},
};

/// The middle of a star.
const ROUTER: &str = "core";

/// A network at work.
pub(super) struct Bench {
    hosts: Vec<Arc<Host>>,
    running: Running,
    /// Packets that interfaces had dropped before.
    dropped: u64,
}

/// What it all came to.
pub(super) struct Seen {
    pub(super) links: Vec<LinkCount>,
    pub(super) health: EmulatorHealth,
}

/// Two hosts, `a` and `b`, and one link, the same both ways.
pub(super) fn pair(direction: &Direction) -> Topology {
    let nodes = ["a", "b"].map(|name| node(name, NodeKind::Host));
    Topology {
        nodes: nodes.into(),
        links: vec![link("a", "b", direction)],
    }
}

/// So many hosts around a router.
pub(super) fn star(hosts: usize, direction: &Direction) -> Topology {
    let names: Vec<String> = (1..=hosts).map(|number| format!("h{number}")).collect();
    let nodes = names.iter().map(|name| node(name, NodeKind::Host));
    Topology {
        nodes: nodes.chain([node(ROUTER, NodeKind::Router)]).collect(),
        links: names
            .iter()
            .map(|name| link(name, ROUTER, direction))
            .collect(),
    }
}

fn node(name: &str, kind: NodeKind) -> Node {
    Node {
        name: name.to_owned(),
        kind,
    }
}

fn link(a: &str, b: &str, direction: &Direction) -> Link {
    Link {
        name: format!("{a}-{b}"),
        ends: [a.to_owned(), b.to_owned()],
        mtu: 1500,
        forward: direction.clone(),
        back: direction.clone(),
    }
}

impl Bench {
    /// Builds the network and starts its emulator.
    pub(super) fn new(topology: &Topology) -> Result<Self, Failure> {
        let metrics = ("net.ipv4.tcp_no_metrics_save".to_owned(), "1".to_owned());
        let sysctls = BTreeMap::from([metrics]);
        let (lab, tuns) = Lab::build(topology, &sysctls)?;
        let ports = tuns.into_iter().map(|tun| Port {
            node: tun.host,
            link: tun.link,
            fd: tun.fd,
        });
        let options = Options {
            seed: 1,
            directory: PathBuf::new(),
            record: Default::default(),
        };
        let running = emulator::start(topology, ports.collect(), &topology.addresses(), &options);
        let mut bench = Self {
            hosts: lab.hosts().to_vec(),
            running: running.map_err(failed("starting the emulator"))?,
            dropped: 0,
        };
        bench.dropped = bench.dropped()?;
        Ok(bench)
    }

    /// The host of that number.
    pub(super) fn host(&self, number: usize) -> Result<&Host, Failure> {
        let host = self.hosts.get(number).map(Arc::as_ref);
        host.ok_or_else(|| Failure::new("calibrating", "a host is missing", "please report this"))
    }

    /// Where the host listens.
    pub(super) fn address(&self, number: usize, port: u16) -> Result<SocketAddr, Failure> {
        Ok(SocketAddr::from((self.host(number)?.addresses.v4, port)))
    }

    /// Something made on a thread inside the host.
    pub(super) fn inside<T: Send>(
        &self,
        number: usize,
        make: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, Failure> {
        let made = self.host(number)?.enter(make).and_then(|made| made);
        made.map_err(failed("making a socket in a host"))
    }

    /// A UDP socket inside the host.
    pub(super) fn udp(&self, number: usize, port: u16) -> Result<UdpSocket, Failure> {
        self.inside(number, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))
    }

    /// The measurement begins.
    pub(super) fn begin(&self) {
        self.running.begin();
    }

    fn dropped(&self) -> Result<u64, Failure> {
        let dropped = self
            .hosts
            .iter()
            .map(|host| host.dropped())
            .sum::<io::Result<u64>>();
        dropped.map_err(failed("reading the counters of interfaces"))
    }

    /// Ends it all. What interfaces dropped, because nobody read them in time, are drops of the emulator's own.
    pub(super) fn end(self) -> Result<Seen, Failure> {
        let dropped = self.dropped()?.saturating_sub(self.dropped);
        let (links, mut health) = self.running.stop();
        health.own_drops += dropped;
        Ok(Seen { links, health })
    }
}

impl Seen {
    /// The figure with what the emulator says about itself.
    pub(super) fn tell(&self, figure: Figure) -> Figure {
        let health = &self.health;
        figure
            .with("late_us_p99", health.late_us_p99)
            .with("late_us_max", health.late_us_max)
            .with("own_drops", health.own_drops)
            .with("stalls", health.stalls)
            .with("real_time", health.real_time)
    }
}
