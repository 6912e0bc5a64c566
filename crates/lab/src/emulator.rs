//! The emulator: links and routers in user space, between the TUN devices of network namespaces.
//! `world` opens the TUNs, starts it and reads its counts; `calibrate` measures it.
//!
//! [`network::Network`] is the whole behaviour without a clock, a file or a thread; [`start`] drives one with a thread of its own.
//!
//! # Not in this room
//! Namespaces, interfaces, addresses and routes of the hosts: `netns`.

pub mod codel;
mod driver;
mod drops;
mod health;
pub mod icmp;
pub mod jitter;
pub mod lateness;
pub mod link;
pub mod loss;
pub mod network;
mod pace;
pub mod packet;
pub mod pcap;
pub mod pool;
pub(crate) mod priority;
pub mod queue;
pub mod random;
pub mod rate;
mod recorder;
pub mod router;
pub mod trace;
pub mod watch;

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
    time::Instant,
};

use rustix::event::{EventfdFlags, eventfd};

pub(crate) use self::priority::ask as ask_for_priority;
use self::{
    driver::{Control, Driver},
    network::Network,
    recorder::Recorder,
};
use crate::{
    topology::{Addresses, NodeKind, Topology},
    trial::{EmulatorHealth, Keep, LinkCount},
};

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
    let driver = Driver::new(network, recorder, ports, Arc::clone(&control), base)?;
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
mod tests;
