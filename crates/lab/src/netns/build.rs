//! Builds all hosts, several at a time: most of the time goes into the kernel's making of a namespace.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use rustix::thread::UnshareFlags;

use super::{Host, Lab, Tun, configure, configure::Setup, route, route::Map, sysctl, tun};
use crate::{
    errors::Failure,
    topology::{Addresses, Node, NodeKind, Topology},
};

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

pub(super) fn build(
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
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((number, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..WORKERS.min(blueprints.len()) {
            scope.spawn(work);
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
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
    let ends = route::ends(topology, &node.name).into_iter().enumerate();
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
    let congestion = sysctl::apply(sysctls)?;
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
