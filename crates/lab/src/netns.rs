//! The hosts: network namespaces with TUN devices, addresses and routes, and processes inside them.
//! `world` builds them, hands the TUNs to the `emulator` and starts everything through [`Host::command`].
//!
//! A [`Lab`] needs `CAP_SYS_ADMIN`: root has it, and whoever was let in by [`user`] (a user namespace).
//! Namespaces have no names: they are gone with the last process and the last descriptor.
//!
//! # Not in this room
//! What happens to packets between the hosts: `emulator`.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    errors::Failure,
    topology::{Addresses, Topology},
};

mod build;
mod configure;
pub mod cpu;
pub mod left;
pub(crate) mod mounts;
mod reap;
pub mod route;
pub mod spawn;
pub mod sysctl;
pub mod tun;
pub mod user;

pub use reap::Exit;
pub use spawn::{Launch, Process};

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
        build::build(topology, sysctls)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_from_the_interfaces_of_links_only() {
        let line = "  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        assert_eq!(dropped_by(line), Some(12));
        assert_eq!(dropped_by("    lo: 1 2 3 4 5 6 7 8 9 10 11 12"), None);
        assert_eq!(dropped_by("Inter-|   Receive  | Transmit"), None);
    }
}
