//! What a namespace is set up with: interfaces, addresses and routes, by rtnetlink, and settings, `net.…` only: any other would change the
//! whole machine. All of it runs on a thread inside the namespace; the lab's own settings are written first, then the trial's.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, UdpSocket},
    path::PathBuf,
    time::Duration,
};

use futures_util::TryStreamExt;
use rtnetlink::{
    Handle, LinkUnspec, RouteMessageBuilder, new_connection,
    packet_core::DefaultNla,
    packet_route::{
        address::AddressHeaderFlags,
        link::LinkAttribute,
        route::{RouteAttribute, RouteMessage, RouteMetric, RouteScope, RouteType},
    },
};
use rustix::net::netdevice;

use crate::{errors::Failure, topology::Addresses};

/// Packets that may wait in a TUN device for the emulator to read them.
const TRANSMIT_QUEUE: u32 = 4096;

/// How often the kernel is asked whether an address is in effect, and for how long.
const ASK_AGAIN: Duration = Duration::from_millis(1);
const ASK_AT_MOST: u32 = 30_000;

/// linux/rtnetlink.h.
const RTAX_CC_ALGO: u16 = 16;

/// What one namespace gets.
#[derive(Debug)]
pub(super) struct Setup {
    /// The host's addresses.
    pub(super) addresses: Addresses,
    /// Names and MTUs of its interfaces; the default route leads through the first.
    pub(super) interfaces: Vec<(String, u16)>,
    /// Hosts that are reached by another interface than the first, with its number.
    pub(super) exceptions: Vec<(Addresses, usize)>,
}

/// Why a namespace could not be set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Netlink(#[from] rtnetlink::Error),
}

/// Sets up the namespace of the calling thread, whose TUN devices are there already. Routes carry `congestion`, if there is one.
pub(super) async fn configure(setup: &Setup, congestion: Option<&str>) -> Result<(), Error> {
    let (connection, handle, _) = new_connection()?;
    let connection = tokio::spawn(connection);
    let result = all(setup, congestion, &handle).await;
    connection.abort();
    result
}

async fn all(setup: &Setup, congestion: Option<&str>, handle: &Handle) -> Result<(), Error> {
    let lo = LinkUnspec::new_with_name("lo").up().build();
    handle.link().set(lo).execute().await?;
    let mut indices = Vec::with_capacity(setup.interfaces.len());
    for (name, mtu) in &setup.interfaces {
        indices.push(interface(handle, name, *mtu, setup.addresses).await?);
    }
    for mut route in routes(setup, &indices) {
        route.attributes.extend(congestion.map(by_congestion));
        handle.route().add(route).execute().await?;
    }
    if indices.is_empty() {
        return Ok(());
    }
    in_effect(handle, setup.addresses.v6).await
}

/// The kernel brings an IPv6 address into effect a moment later, by a worker of its own: until then what comes for it is dropped.
async fn in_effect(handle: &Handle, address: Ipv6Addr) -> Result<(), Error> {
    for _ in 0..ASK_AT_MOST {
        if is_local(handle, address).await? {
            return Ok(());
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
    let why = "the kernel has not brought the IPv6 address into effect for half a minute";
    Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
}

/// Whether packets for this address are the host's own.
async fn is_local(handle: &Handle, address: Ipv6Addr) -> Result<bool, Error> {
    let question = RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(address, 128)
        .build();
    let answers = handle.route().get(question).execute();
    let answers: Vec<RouteMessage> = answers.try_collect().await?;
    let local = |route: &RouteMessage| route.header.kind == RouteType::Local;
    Ok(answers.iter().any(local))
}

/// `RTAX_CC_ALGO` is a name, with its end.
fn by_congestion(name: &str) -> RouteAttribute {
    let name = [name.as_bytes(), &[0]].concat();
    let metric = RouteMetric::Other(DefaultNla::new(RTAX_CC_ALGO, name));
    RouteAttribute::Metrics(vec![metric])
}

/// Brings up an interface with the host's addresses; answers with its index.
async fn interface(
    handle: &Handle,
    name: &str,
    mtu: u16,
    addresses: Addresses,
) -> Result<u32, Error> {
    let index = index(name)?;
    let up = LinkUnspec::new_with_index(index)
        .mtu(u32::from(mtu))
        .append_extra_attribute(LinkAttribute::TxQueueLen(TRANSMIT_QUEUE))
        .up()
        .build();
    handle.link().set(up).execute().await?;
    let v4 = handle.address().add(index, addresses.v4.into(), 32);
    v4.execute().await?;
    let mut v6 = handle.address().add(index, addresses.v6.into(), 128);
    v6.message_mut().header.flags |= AddressHeaderFlags::Nodad;
    v6.execute().await?;
    Ok(index)
}

/// The index of an interface of the calling thread's namespace.
fn index(name: &str) -> io::Result<u32> {
    let any = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    Ok(netdevice::name_to_index(&any, name)?)
}

/// Everywhere by the first interface, but to some hosts by another.
fn routes(setup: &Setup, indices: &[u32]) -> Vec<RouteMessage> {
    let from = setup.addresses;
    let exceptions = setup.exceptions.iter();
    let exceptions =
        exceptions.filter_map(|(to, interface)| Some((Some(*to), *indices.get(*interface)?)));
    let default = indices.first().map(|index| (None, *index));
    let all = default.into_iter().chain(exceptions);
    all.flat_map(|(to, index)| {
        let v4 = v4_route(from, to.map(|to| to.v4), index);
        [v4, v6_route(from, to.map(|to| to.v6), index)]
    })
    .collect()
}

/// To one host, or to everywhere.
fn v4_route(from: Addresses, to: Option<Ipv4Addr>, index: u32) -> RouteMessage {
    let mut route = RouteMessageBuilder::<Ipv4Addr>::new()
        .output_interface(index)
        .scope(RouteScope::Link)
        .pref_source(from.v4);
    if let Some(to) = to {
        route = route.destination_prefix(to, 32);
    }
    route.build()
}

/// To one host, or to everywhere.
fn v6_route(from: Addresses, to: Option<Ipv6Addr>, index: u32) -> RouteMessage {
    let mut route = RouteMessageBuilder::<Ipv6Addr>::new()
        .output_interface(index)
        .pref_source(from.v6);
    if let Some(to) = to {
        route = route.destination_prefix(to, 128);
    }
    let mut message = route.build();
    message.attributes.push(RouteAttribute::Priority(64));
    message
}

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
pub(super) fn apply_sysctls(sysctls: &BTreeMap<String, String>) -> Result<Option<String>, Failure> {
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
