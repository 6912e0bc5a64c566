//! Interfaces, addresses and routes of a namespace, by rtnetlink. `build` runs it on a thread inside the namespace.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, UdpSocket},
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

use crate::topology::Addresses;

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
