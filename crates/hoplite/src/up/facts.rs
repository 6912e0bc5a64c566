//! What this machine has, looked up before anything is planned. Read only. `daemon` and `status` ask.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use super::{
    child,
    netlink::Netlink,
    numbers::FIREWALL,
    plan::{Facts, Family, Ipv6, Nft, Resolving},
    resolv::{self, ResolvConf},
};

/// Where the kernel's settings are.
const SETTINGS: &str = "/proc/sys/net";

/// Where systemd-resolved names the servers that the networks gave it.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// Looks. `ours` are addresses at which we answer names.
pub(super) async fn look(netlink: &Netlink, conf: &ResolvConf, ours: &[IpAddr]) -> Facts {
    let resolving = resolving(conf);
    let (nft, is_firewalled) = nft();
    Facts {
        ipv6: ipv6(Path::new(SETTINGS)),
        nft,
        reverse_path: checks_reverse_path(Path::new(SETTINGS)),
        servers: servers(conf, resolving, ours),
        resolving,
        asks_us: conf.is_ours(),
        // Who cannot be asked may block.
        blocked: netlink.is_blocked().await.unwrap_or(true) || is_firewalled,
    }
}

/// Whether it works, and whether our table stands.
fn nft() -> (Nft, bool) {
    match child::run("nft", &["list", "tables"], "") {
        Ok(tables) => {
            let ours = format!("table inet {FIREWALL}");
            (Nft::Works, tables.lines().any(|line| line == ours))
        }
        Err(_) if child::find("nft").is_none() => (Nft::Missing, false),
        Err(error) => (Nft::Fails(error.to_string()), false),
    }
}

/// Where it is written whom the networks say to ask.
pub(super) fn sources(conf: &ResolvConf, how: Resolving) -> Vec<PathBuf> {
    match how {
        Resolving::Resolved => vec![RESOLVED.into()],
        _ => conf.sources(),
    }
}

/// Whom the networks say to ask.
pub(super) fn servers(conf: &ResolvConf, how: Resolving, ours: &[IpAddr]) -> Vec<SocketAddr> {
    let mut servers = match how {
        Resolving::Resolved => {
            resolv::servers_of(&fs::read_to_string(RESOLVED).unwrap_or_default())
        }
        _ => conf.servers(),
    };
    servers.retain(|server| !ours.contains(&server.ip()));
    servers
}

/// The same, for who does not know how.
pub(super) fn network_servers(conf: &ResolvConf, ours: &[IpAddr]) -> Vec<SocketAddr> {
    servers(conf, resolving(conf), ours)
}

fn resolving(conf: &ResolvConf) -> Resolving {
    let stub = |server: &SocketAddr| {
        [[127, 0, 0, 53], [127, 0, 0, 54]]
            .map(IpAddr::from)
            .contains(&server.ip())
    };
    let is_resolved = Path::new(RESOLVED).exists() && conf.servers().iter().any(stub);
    match () {
        () if is_resolved && child::find("resolvectl").is_some() => Resolving::Resolved,
        () if conf.is_mounted() && conf.is_writable() => Resolving::Mounted,
        () if conf.is_mounted() => Resolving::ReadOnly,
        () if conf.is_replaceable() => Resolving::File,
        () => Resolving::ReadOnly,
    }
}

fn ipv6(settings: &Path) -> Ipv6 {
    let is_off = |scope: &str| {
        let path = settings.join("ipv6/conf").join(scope).join("disable_ipv6");
        fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
    };
    match settings.join("ipv6").is_dir() {
        false => Ipv6::Missing,
        true if is_off("all") || is_off("default") => Ipv6::Off,
        true => Ipv6::On,
    }
}

/// The families in which somebody may send.
pub(super) fn families() -> Vec<Family> {
    ipv6(Path::new(SETTINGS)).seen()
}

/// net.ipv4.conf.*.rp_filter: the kernel takes the larger of an interface's own and that of `all`.
fn checks_reverse_path(settings: &Path) -> bool {
    let interfaces = fs::read_dir(settings.join("ipv4/conf"));
    let mut values = interfaces.into_iter().flatten().flatten().map(|interface| {
        fs::read_to_string(interface.path().join("rp_filter")).unwrap_or_default()
    });
    values.any(|value| !matches!(value.trim(), "" | "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("one")).expect("made");
            fs::write(path, text).expect("written");
        }
        directory
    }

    #[test]
    fn ipv6_that_is_switched_off_is_told_from_a_kernel_without_it() {
        let none = settings(&[]);
        assert_eq!(ipv6(none.path()), Ipv6::Missing);
        let off = settings(&[("ipv6/conf/default/disable_ipv6", "1\n")]);
        assert_eq!(ipv6(off.path()), Ipv6::Off);
        let on = settings(&[("ipv6/conf/all/disable_ipv6", "0\n")]);
        assert_eq!(ipv6(on.path()), Ipv6::On);
    }

    #[test]
    fn one_interface_that_checks_the_way_back_is_enough() {
        let loose = [
            ("ipv4/conf/all/rp_filter", "0\n"),
            ("ipv4/conf/eth0/rp_filter", "2\n"),
        ];
        assert!(checks_reverse_path(settings(&loose).path()));
        assert!(!checks_reverse_path(settings(&loose[..1]).path()));
    }
}
