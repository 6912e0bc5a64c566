//! Interfaces, addresses and routes of a namespace, by rtnetlink. `build` runs it on a thread inside the namespace.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, UdpSocket},
};

use rtnetlink::{
    Handle, LinkUnspec, RouteMessageBuilder, new_connection,
    packet_route::{
        address::AddressHeaderFlags,
        link::LinkAttribute,
        route::{RouteAttribute, RouteMessage, RouteScope},
    },
};
use rustix::net::netdevice;

use crate::topology::Addresses;

/// Packets that may wait in a TUN device for the emulator to read them.
const TRANSMIT_QUEUE: u32 = 4096;

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

/// Sets up the namespace of the calling thread, whose TUN devices are there already.
pub(super) async fn configure(setup: &Setup) -> Result<(), Error> {
    let (connection, handle, _) = new_connection()?;
    let connection = tokio::spawn(connection);
    let result = all(setup, &handle).await;
    connection.abort();
    result
}

async fn all(setup: &Setup, handle: &Handle) -> Result<(), Error> {
    let lo = LinkUnspec::new_with_name("lo").up().build();
    handle.link().set(lo).execute().await?;
    let mut indices = Vec::with_capacity(setup.interfaces.len());
    for (name, mtu) in &setup.interfaces {
        indices.push(interface(handle, name, *mtu, setup.addresses).await?);
    }
    routes(setup, handle, &indices).await
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

async fn routes(setup: &Setup, handle: &Handle, indices: &[u32]) -> Result<(), Error> {
    let Some(&first) = indices.first() else {
        return Ok(());
    };
    let from = setup.addresses;
    add(handle, v4_route(from, None, first)).await?;
    add(handle, v6_route(from, None, first)).await?;
    for (to, interface) in &setup.exceptions {
        let Some(&index) = indices.get(*interface) else {
            continue;
        };
        add(handle, v4_route(from, Some(to.v4), index)).await?;
        add(handle, v6_route(from, Some(to.v6), index)).await?;
    }
    Ok(())
}

async fn add(handle: &Handle, route: RouteMessage) -> Result<(), Error> {
    Ok(handle.route().add(route).execute().await?)
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

/// To one host, or to everywhere. Ahead of the kernel's own `fe80::/64` and multicast routes is not needed.
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
