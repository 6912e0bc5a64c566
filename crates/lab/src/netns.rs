//! The hosts: network namespaces with TUN devices, addresses and routes, and processes inside them ([`Host::command`]).
//!
//! They are built several at a time: most of the time goes into the kernel's making of a namespace. A host reaches another by the interface
//! from which the fewest links lead there, ties by the order of the links, through routers only: hosts do not forward.
//!
//! A [`Lab`] needs `CAP_SYS_ADMIN`: root has it, and whoever was let in by [`user`] (a user namespace).
//! Namespaces have no names: they are gone with the last process and the last descriptor.
//!
//! # Not in this room
//! What happens to packets between the hosts: `emulator`.

mod configure;
pub mod process;
pub mod tun;
pub mod user;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use parking_lot::Mutex;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use self::configure::Setup;
use crate::{
    errors::Failure,
    topology::{Addresses, Node, NodeKind, Topology},
};

pub use self::process::{Exit, Launch, Process};

/// All hosts of a topology.
#[derive(Clone, Debug)]
pub struct Lab {
    hosts: Vec<Arc<Host>>,
}

/// A network namespace.
#[derive(Debug)]
pub struct Host {
    /// What the scenario calls it.
    pub name: String,
    /// The addresses that each of its interfaces has.
    pub addresses: Addresses,
    namespace: OwnedFd,
}

/// A host's interface: the other side of its TUN device.
#[derive(Debug)]
pub struct Tun {
    /// The host.
    pub host: String,
    /// The link that it is an end of.
    pub link: String,
    /// `eth0`, `eth1`, … in the order of the links.
    pub interface: String,
    /// Reads and writes whole packets, without blocking.
    pub fd: OwnedFd,
}

impl Lab {
    /// Builds every host of the topology: a namespace, a TUN for each end of a link there, addresses, routes, settings.
    /// The TUNs come in the order of the links, the first end before the second.
    ///
    /// # Errors
    /// What the kernel refused, and what to do about it.
    pub fn build(
        topology: &Topology,
        sysctls: &BTreeMap<String, String>,
    ) -> Result<(Self, Vec<Tun>), Failure> {
        build(topology, sysctls)
    }

    /// The host of that name.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&Arc<Host>> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// All hosts, in the order of the topology.
    #[must_use]
    pub fn hosts(&self) -> &[Arc<Host>] {
        &self.hosts
    }
}

impl Host {
    /// Runs `work` on a thread of its own inside the namespace; sockets made there belong to it for good.
    ///
    /// # Errors
    /// The thread cannot be made or may not enter.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let inside = || -> io::Result<T> {
                join(&self.namespace)?;
                Ok(work())
            };
            let thread = thread::Builder::new().spawn_scoped(scope, inside)?;
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// A command that will run in this namespace: a program and its arguments.
    pub fn command<S: AsRef<std::ffi::OsStr>>(
        &self,
        argv: impl IntoIterator<Item = S>,
    ) -> Launch<'_> {
        Launch::new(self, argv)
    }

    /// Packets that this host's interfaces dropped because nobody read them in time: the emulator's fault, if any.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn dropped(&self) -> io::Result<u64> {
        let text = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        Ok(text.lines().filter_map(dropped_by).sum())
    }
}

/// The dropped transmissions of a line of `/proc/net/dev`, if it is one of ours.
fn dropped_by(line: &str) -> Option<u64> {
    let (name, counts) = line.split_once(':')?;
    let ours = name.trim().starts_with("eth");
    let dropped = counts.split_whitespace().nth(11)?.parse().ok();
    dropped.filter(|_| ours)
}

/// Moves the calling thread into a network namespace.
fn join(namespace: &OwnedFd) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// How many namespaces are made at once: the kernel's own locks let more do little.
const WORKERS: usize = 4;

/// What one host is built from.
struct Blueprint<'a> {
    name: &'a str,
    setup: Setup,
    /// Index of the link, which end, name of the interface.
    ends: Vec<(usize, usize, String)>,
}

/// A host with its TUNs, each with the index of its link and which end it is.
type Furnished = (Host, Vec<(usize, usize, Tun)>);
/// Its number, for they are built in any order.
type Built = (usize, Result<Furnished, Failure>);

fn build(
    topology: &Topology,
    sysctls: &BTreeMap<String, String>,
) -> Result<(Lab, Vec<Tun>), Failure> {
    let began = Instant::now();
    let blueprints = blueprints(topology);
    let built = side_by_side(topology, &blueprints, sysctls);
    let lab = collect(built)?;
    tracing::debug!(hosts = blueprints.len(), took = ?began.elapsed(), "the hosts are set up");
    Ok(lab)
}

/// In the order of the topology, and the TUNs in the order of the links.
fn collect(mut built: Vec<Built>) -> Result<(Lab, Vec<Tun>), Failure> {
    built.sort_by_key(|(number, _)| *number);
    let (mut hosts, mut tuns) = (Vec::new(), Vec::new());
    for (_, result) in built {
        let (host, ends) = result?;
        hosts.push(Arc::new(host));
        tuns.extend(ends);
    }
    tuns.sort_by_key(|(link, end, _)| (*link, *end));
    let tuns = tuns.into_iter().map(|(_, _, tun)| tun).collect();
    Ok((Lab { hosts }, tuns))
}

fn side_by_side(
    topology: &Topology,
    blueprints: &[Blueprint<'_>],
    sysctls: &BTreeMap<String, String>,
) -> Vec<Built> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(blueprint) = blueprints.get(number)
        {
            let result = host(topology, blueprint, sysctls);
            let mut done = done.lock();
            done.push((number, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..WORKERS.min(blueprints.len()) {
            scope.spawn(work);
        }
    });
    done.into_inner()
}

fn blueprints(topology: &Topology) -> Vec<Blueprint<'_>> {
    let (map, addresses) = (Map::new(topology), topology.addresses());
    let hosts = topology.nodes.iter();
    hosts
        .filter(|node| node.kind == NodeKind::Host)
        .filter_map(|node| blueprint(topology, &map, &addresses, node))
        .collect()
}

fn blueprint<'a>(
    topology: &'a Topology,
    map: &Map<'_>,
    addresses: &BTreeMap<String, Addresses>,
    node: &'a Node,
) -> Option<Blueprint<'a>> {
    let ends = ends(topology, &node.name).into_iter().enumerate();
    let ends: Vec<_> = ends
        .map(|(number, (link, end))| (link, end, format!("eth{number}")))
        .collect();
    let mtu = |link: usize| topology.links.get(link).map_or(1500, |link| link.mtu);
    let interfaces = ends
        .iter()
        .map(|(link, _, name)| (name.clone(), mtu(*link)));
    let mut exceptions: Vec<_> = map.first_hops(&node.name).into_iter().collect();
    exceptions.retain(|(_, interface)| *interface > 0);
    exceptions.sort_unstable();
    let known = |(to, interface): (&str, usize)| Some((*addresses.get(to)?, interface));
    let setup = Setup {
        addresses: *addresses.get(&node.name)?,
        interfaces: interfaces.collect(),
        exceptions: exceptions.into_iter().filter_map(known).collect(),
    };
    Some(Blueprint {
        name: &node.name,
        setup,
        ends,
    })
}

/// Makes one host. Leaves the calling thread in its namespace.
fn host(
    topology: &Topology,
    blueprint: &Blueprint<'_>,
    sysctls: &BTreeMap<String, String>,
) -> Result<Furnished, Failure> {
    let doing = || format!("building the host {}", blueprint.name);
    let namespace = fresh_namespace().map_err(|error| no_namespace(doing(), &error))?;
    let congestion = configure::apply_sysctls(sysctls)?;
    let mut tuns = Vec::with_capacity(blueprint.ends.len());
    for (link, end, interface) in &blueprint.ends {
        let tun = Tun {
            host: blueprint.name.to_owned(),
            link: topology
                .links
                .get(*link)
                .map(|link| link.name.clone())
                .unwrap_or_default(),
            interface: interface.clone(),
            fd: tun::open(interface)?,
        };
        tuns.push((*link, *end, tun));
    }
    set_up(&blueprint.setup, congestion.as_deref()).map_err(|error| {
        Failure::new(
            doing(),
            error,
            "see whether `unshare -rn ip link set lo up` works here",
        )
    })?;
    let host = Host {
        name: blueprint.name.to_owned(),
        addresses: blueprint.setup.addresses,
        namespace,
    };
    Ok((host, tuns))
}

/// Puts the calling thread into a new namespace and answers with a handle on it.
fn fresh_namespace() -> io::Result<OwnedFd> {
    #[expect(
        unsafe_code,
        reason = "rustix marks every unshare unsafe because of one flag that we do not use"
    )]
    // SAFETY: only the thread's network namespace changes; file descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

fn set_up(setup: &Setup, congestion: Option<&str>) -> Result<(), configure::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(configure::configure(setup, congestion))
}

fn no_namespace(doing: String, error: &io::Error) -> Failure {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOSPC) => "raise the limit: `sysctl user.max_net_namespaces=10000`",
        Some(libc::EPERM) => "run as root, or allow unprivileged user namespaces",
        _ => "see whether `unshare -rn true` works here",
    };
    Failure::new(doing, error, remedy)
}

/// A host's ends of links: (index of the link, which end), in the order of the links.
#[must_use]
pub fn ends(topology: &Topology, host: &str) -> Vec<(usize, usize)> {
    let links = topology.links.iter().enumerate();
    links
        .flat_map(|(i, link)| [(i, 0, &link.ends[0]), (i, 1, &link.ends[1])])
        .filter(|(_, _, name)| *name == host)
        .map(|(i, end, _)| (i, end))
        .collect()
}

/// A topology with its neighbours at hand; made once for all hosts.
#[derive(Debug)]
pub struct Map<'a> {
    nodes: HashMap<&'a str, &'a Node>,
    neighbours: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> Map<'a> {
    /// Of this topology.
    #[must_use]
    pub fn new(topology: &'a Topology) -> Self {
        let nodes = topology.nodes.iter().map(|node| (node.name.as_str(), node));
        let mut neighbours: HashMap<&str, Vec<&str>> = HashMap::new();
        for link in &topology.links {
            let [a, b] = [link.ends[0].as_str(), link.ends[1].as_str()];
            neighbours.entry(a).or_default().push(b);
            neighbours.entry(b).or_default().push(a);
        }
        Self {
            nodes: nodes.collect(),
            neighbours,
        }
    }

    /// For every other host that can be reached from `host`: the number of the interface (0 is the first) that leads there.
    #[must_use]
    pub fn first_hops(&self, host: &str) -> HashMap<&'a str, usize> {
        let mut found: HashMap<&str, usize> = HashMap::new();
        let mut queue: VecDeque<(&str, usize)> = VecDeque::new();
        let near = self.neighbours.get(host).into_iter().flatten();
        queue.extend(near.enumerate().map(|(interface, name)| (*name, interface)));
        while let Some((name, interface)) = queue.pop_front() {
            if name == host || found.contains_key(name) {
                continue;
            }
            found.insert(name, interface);
            if self.is_router(name) {
                let further = self.neighbours.get(name).into_iter().flatten();
                queue.extend(further.map(|next| (*next, interface)));
            }
        }
        found.retain(|name, _| !self.is_router(name));
        found
    }

    fn is_router(&self, name: &str) -> bool {
        let node = self.nodes.get(name);
        node.is_some_and(|node| node.kind == NodeKind::Router)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Direction, Link};

    #[test]
    fn drops_are_read_from_the_interfaces_of_links_only() {
        let line = "  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        assert_eq!(dropped_by(line), Some(12));
        assert_eq!(dropped_by("    lo: 1 2 3 4 5 6 7 8 9 10 11 12"), None);
        assert_eq!(dropped_by("Inter-|   Receive  | Transmit"), None);
    }

    fn topology(links: &[(&str, &str)]) -> Topology {
        let mut names: Vec<&str> = links.iter().flat_map(|(a, b)| [*a, *b]).collect();
        names.sort_unstable();
        names.dedup();
        let node = |name: &&str| {
            if name.starts_with('r') {
                Node::router(name)
            } else {
                Node::host(name)
            }
        };
        let link = |(a, b): &(&str, &str)| Link::between(a, b, &Direction::default());
        Topology {
            nodes: names.iter().map(node).collect(),
            links: links.iter().map(link).collect(),
        }
    }

    #[test]
    fn the_way_with_fewer_links_wins_although_it_was_drawn_later() {
        let drawn = topology(&[
            ("a", "r1"),
            ("r1", "r2"),
            ("r2", "b"),
            ("a", "r3"),
            ("r3", "b"),
        ]);
        assert_eq!(Map::new(&drawn).first_hops("a"), HashMap::from([("b", 1)]));
    }

    #[test]
    fn of_two_equal_ways_the_one_drawn_first_wins() {
        let drawn = topology(&[("a", "r1"), ("a", "r2"), ("r2", "b"), ("r1", "b")]);
        assert_eq!(Map::new(&drawn).first_hops("a"), HashMap::from([("b", 0)]));
    }

    #[test]
    fn hosts_do_not_forward() {
        let drawn = topology(&[("a", "b"), ("b", "c")]);
        assert_eq!(Map::new(&drawn).first_hops("a"), HashMap::from([("b", 0)]));
    }

    #[test]
    fn an_interface_is_numbered_by_the_order_of_the_links() {
        let drawn = topology(&[("a", "b"), ("c", "b"), ("b", "d")]);
        assert_eq!(ends(&drawn, "b"), [(0, 1), (1, 1), (2, 0)]);
        let hops = Map::new(&drawn).first_hops("b");
        assert_eq!(hops, HashMap::from([("a", 0), ("c", 1), ("d", 2)]));
    }
}
