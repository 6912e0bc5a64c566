//! Settings of a network namespace, `net.…` only: anything else would change the whole machine.
//! `build` writes them inside each host's namespace: the lab's own first, then the trial's.

use std::{collections::BTreeMap, fs, io, path::PathBuf};

use crate::errors::Failure;

/// What every host has, before its interfaces are made, unless the trial says otherwise. Missing ones are passed over: they belong to options of the kernel.
const OURS: [(&str, &str); 11] = [
    // Packets may come by another link than the one that the answer takes.
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    ("net.ipv6.conf.all.disable_ipv6", "0"),
    ("net.ipv6.conf.default.disable_ipv6", "0"),
    // Addresses are there at once, and nothing is said on a link that no workload caused.
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
    ("net.ipv6.conf.default.addr_gen_mode", "1"),
    // Ping as the lab's own user.
    ("net.ipv4.ping_group_range", "0 0"),
    // Connections of a repetition learn nothing from those before.
    ("net.ipv4.tcp_no_metrics_save", "1"),
    // Ports below 1024 for every process, whoever it became.
    ("net.ipv4.ip_unprivileged_port_start", "0"),
];

/// The one setting that the kernel may refuse although it knows the value.
const CONGESTION: &str = "net.ipv4.tcp_congestion_control";

/// A congestion control that every namespace may have as its default.
const UNRESTRICTED: &str = "reno";

/// Writes the lab's settings and the trial's into the namespace of the calling thread.
///
/// Answers with the congestion control that routes must carry instead: only the machine's own namespace may have one as its default
/// that is not in `net.ipv4.tcp_allowed_congestion_control`, but routes may anywhere. The default, which is left to loopback, is Reno's
/// then: where nothing is lost it does what others do, and does not pace as BBR would.
pub(super) fn apply(sysctls: &BTreeMap<String, String>) -> Result<Option<String>, Failure> {
    for (name, value) in OURS {
        if !sysctls.contains_key(name) {
            pass_over_missing(name, write(name, value))?;
        }
    }
    let mut by_route = None;
    for (name, value) in sysctls {
        check(name)?;
        match write(name, value) {
            Err(error) if name == CONGESTION && error.raw_os_error() == Some(libc::EPERM) => {
                write(name, UNRESTRICTED).map_err(|error| refused(name, &error))?;
                by_route = Some(value.clone());
            }
            result => result.map_err(|error| refused_value(name, value, &error))?,
        }
    }
    Ok(by_route)
}

fn pass_over_missing(name: &str, result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(refused(name, &error)),
        Ok(()) => Ok(()),
    }
}

/// Only settings that belong to a namespace.
fn check(name: &str) -> Result<(), Failure> {
    let parts = name.split('.').collect::<Vec<_>>();
    let sound = parts
        .iter()
        .all(|part| !part.is_empty() && !part.contains('/'));
    if parts.first() == Some(&"net") && parts.len() > 2 && sound {
        return Ok(());
    }
    Err(Failure::new(
        format!("setting {name}"),
        "it is not a setting of a network namespace",
        "name a sysctl that begins with net., such as net.ipv4.tcp_congestion_control",
    ))
}

fn write(name: &str, value: &str) -> io::Result<()> {
    let path: PathBuf = ["/proc/sys"].into_iter().chain(name.split('.')).collect();
    // A new file must not come to be where the kernel has none.
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
}

fn refused(name: &str, error: &io::Error) -> Failure {
    let remedy = match error.raw_os_error() {
        Some(libc::EROFS) => {
            "/proc/sys is read-only here: give the container `--security-opt systempaths=unconfined`, or run outside of it"
        }
        Some(libc::ENOENT) => {
            "the kernel has no such setting for a network namespace: see `ls /proc/sys/net/*` under `unshare -rn`"
        }
        _ => "run as root, or leave the setting out of the scenario",
    };
    Failure::new(format!("setting {name}"), error, remedy)
}

fn refused_value(name: &str, value: &str, error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ERANGE) => Failure::new(
            format!("setting {name}"),
            format!("the kernel does not take {value:?} for it"),
            "give it a value that the kernel's documentation of this setting names",
        ),
        Some(libc::ENOENT) if name == CONGESTION => Failure::new(
            format!("setting {name}"),
            format!("the kernel has no {value:?}, or does not know the setting"),
            format!(
                "load it with `modprobe tcp_{value}`, or choose one of net.ipv4.tcp_available_congestion_control"
            ),
        ),
        _ => refused(name, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_machine_are_refused() {
        for name in [
            "vm.swappiness",
            "kernel.panic",
            "net",
            "net..x",
            "net.a/../../b.c",
        ] {
            assert!(
                check(name).unwrap_err().to_string().contains(name),
                "{name}"
            );
        }
        assert!(check("net.ipv4.tcp_congestion_control").is_ok());
    }

    #[test]
    fn an_unknown_setting_is_named() {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        let text = refused_value("net.ipv4.tcp_wonder", "1", &error).to_string();
        assert!(text.contains("setting net.ipv4.tcp_wonder: No such file"));
    }
}
