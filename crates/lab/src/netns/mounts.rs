//! What the world's processes see of the file system that others do not: their own `/proc`, `/etc/hosts`, `/etc/resolv.conf`.
//! `user` and `world` call it, in a mount namespace of their own.

use std::{collections::BTreeMap, fmt::Write, fs, io, path::Path};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};

use crate::{errors::Failure, topology::Addresses};

/// What is mounted here from now on is seen here only.
pub(super) fn make_private() -> Result<(), Failure> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(|error| {
        Failure::new(
            "making mounts private",
            error,
            "run as root, or where a user namespace may mount",
        )
    })
}

/// A `/proc` of the new pid namespace. Some containers refuse it; then the old one stays, and processes are told apart by their namespace.
pub(super) fn fresh_proc() {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if let Err(error) = mount("proc", "/proc", "proc", flags, None) {
        tracing::warn!(%error, "no /proc of its own: it stays the machine's");
    }
}

/// Lets programs resolve the hosts' names, and no others: no query leaves a host but a subject's own.
///
/// # Errors
/// The files cannot be written. A mount that is refused is only logged: plain addresses work without.
pub(crate) fn name_hosts(directory: &Path, hosts: &BTreeMap<String, Addresses>) -> io::Result<()> {
    let etc = directory.join("etc");
    fs::create_dir_all(&etc)?;
    let resolver = "# no resolver: names of hosts stand in /etc/hosts\n";
    for (name, text) in [
        ("hosts", hosts_file(hosts)),
        ("resolv.conf", resolver.to_owned()),
    ] {
        let (ours, theirs) = (etc.join(name), Path::new("/etc").join(name));
        fs::write(&ours, text)?;
        if let Err(error) = mount_bind(&ours, &theirs) {
            tracing::warn!(%error, path = %theirs.display(), "could not be replaced");
        }
    }
    Ok(())
}

fn hosts_file(hosts: &BTreeMap<String, Addresses>) -> String {
    let mut text = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for (name, addresses) in hosts {
        // Writing to a String cannot fail.
        writeln!(text, "{} {name}\n{} {name}", addresses.v4, addresses.v6).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_is_named_with_both_addresses() {
        let addresses = Addresses {
            v4: [10, 77, 0, 1].into(),
            v6: "fd77::1".parse().unwrap(),
        };
        let text = hosts_file(&BTreeMap::from([("client".to_owned(), addresses)]));
        assert!(
            text.ends_with("10.77.0.1 client\nfd77::1 client\n"),
            "{text}"
        );
    }
}
