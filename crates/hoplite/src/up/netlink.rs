//! Interfaces, addresses, routes and rules of the device by rtnetlink(7). `driver` calls it; everything here may be done twice.

mod rules;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
};

use futures_util::TryStreamExt;
use rtnetlink::{
    Error, Handle, LinkUnspec, RouteMessageBuilder, new_connection,
    packet_route::{
        AddressFamily,
        address::{AddressAttribute, AddressHeaderFlags},
        link::LinkFlags,
        route::{RouteAttribute, RouteMessage, RouteProtocol, RouteType},
    },
};
use rustix::{io::Errno, net::netdevice};
use tokio::task::JoinHandle;

use super::{
    numbers::{BLOCKING, INTO, PROTOCOL, TABLE},
    plan::{Family, Rule},
};

/// Packets that may wait in the interface for us to read them.
const TRANSMIT_QUEUE: u32 = 1024;

/// A connection to the kernel.
#[derive(Debug)]
pub(super) struct Netlink {
    handle: Handle,
    connection: JoinHandle<()>,
}

impl Netlink {
    /// Opens one. Needs a tokio runtime.
    pub(super) fn open() -> io::Result<Self> {
        let (connection, handle, _) = new_connection()?;
        Ok(Self {
            handle,
            connection: tokio::spawn(connection),
        })
    }

    /// Leaves exactly these of our rules, before those of others; how many of others come first all the same.
    pub(super) async fn rules(&self, wanted: &[Rule]) -> io::Result<usize> {
        let sorted = self.sorted_rules().await?;
        let (wanted, before) = sorted.first(wanted);
        for rule in &wanted {
            let mut add = self.handle.rule().add();
            *add.message_mut() = rules::message(rule);
            done_already(add.execute().await)?;
        }
        for found in sorted.ours {
            if !rules::read(&found).is_some_and(|rule| wanted.contains(&rule)) {
                gone_already(self.handle.rule().del(found).execute().await)?;
            }
        }
        Ok(before)
    }

    /// Whether ours are these and no others, and stand where they are to stand.
    pub(super) async fn has_rules(&self, wanted: &[Rule]) -> io::Result<bool> {
        let sorted = self.sorted_rules().await?;
        let (wanted, _) = sorted.first(wanted);
        let found: Option<Vec<Rule>> = sorted.ours.iter().map(rules::read).collect();
        Ok(found.is_some_and(|found| {
            found.len() == wanted.len() && wanted.iter().all(|rule| found.contains(rule))
        }))
    }

    /// Whether another program has rules that look at marks.
    pub(super) async fn others_have_marks(&self) -> io::Result<bool> {
        Ok(self.sorted_rules().await?.others_have_marks())
    }

    async fn sorted_rules(&self) -> io::Result<rules::Sorted> {
        let mut found = Vec::new();
        for version in [rtnetlink::IpVersion::V4, rtnetlink::IpVersion::V6] {
            let all = self.handle.rule().get(version).execute();
            let all: Result<Vec<_>, _> = all.try_collect().await;
            found.extend(none_if_missing(all)?);
        }
        Ok(rules::sort(found))
    }

    /// Makes the routes that block.
    pub(super) async fn block(&self, families: &[Family]) -> io::Result<()> {
        for family in families {
            let mut route = default_route(*family);
            route.header.kind = RouteType::Unreachable;
            route.attributes.push(RouteAttribute::Priority(BLOCKING));
            self.add_route(route).await?;
        }
        Ok(())
    }

    /// Makes the routes that lead into the interface; programs get these addresses of ours.
    pub(super) async fn lead_into(
        &self,
        name: &str,
        families: &[Family],
        addresses: &[IpAddr],
    ) -> io::Result<()> {
        let index = index(name)?;
        for family in families {
            let mut route = default_route(*family);
            let source = addresses.iter().find(|ip| Family::of(ip) == *family);
            route.attributes.push(RouteAttribute::Priority(INTO));
            route.attributes.push(RouteAttribute::Oif(index));
            let source = source.map(|ip| RouteAttribute::PrefSource((*ip).into()));
            route.attributes.extend(source);
            self.add_route(route).await?;
        }
        Ok(())
    }

    async fn add_route(&self, route: RouteMessage) -> io::Result<()> {
        let add = self.handle.route().add(route).replace();
        done_already(add.execute().await)
    }

    /// Removes all routes of our table that block, or all others.
    pub(super) async fn unroute(&self, blocking: bool) -> io::Result<()> {
        for route in self.our_routes().await? {
            if (route.header.kind == RouteType::Unreachable) == blocking {
                gone_already(self.handle.route().del(route).execute().await)?;
            }
        }
        Ok(())
    }

    /// Whether there are routes that block, be it for one family.
    pub(super) async fn is_blocked(&self) -> io::Result<bool> {
        let routes = self.our_routes().await?;
        let blocks = |route: &RouteMessage| route.header.kind == RouteType::Unreachable;
        Ok(routes.iter().any(blocks))
    }

    /// Whether all these families have one that blocks, or leads `into` the interface of that number.
    pub(super) async fn has_routes(
        &self,
        families: &[Family],
        into: Option<u32>,
    ) -> io::Result<bool> {
        let routes = self.our_routes().await?;
        let leads = |route: &RouteMessage| match into {
            None => route.header.kind == RouteType::Unreachable,
            Some(index) => route.attributes.contains(&RouteAttribute::Oif(index)),
        };
        let has = |family: &Family| {
            let is_of = |route: &&RouteMessage| {
                route.header.address_family == address_family(*family)
                    && route.header.destination_prefix_length == 0
            };
            routes.iter().filter(is_of).any(leads)
        };
        Ok(families.iter().all(has))
    }

    /// Whether rules of ours lead to our table, in all these families.
    pub(super) async fn leads(&self, families: &[Family]) -> io::Result<bool> {
        let sorted = self.sorted_rules().await?;
        let rules: Vec<Rule> = sorted.ours.iter().filter_map(rules::read).collect();
        let leads = |family: &Family| {
            let mut of = rules.iter().filter(|rule| rule.family == *family);
            of.any(|rule| rule.table == Some(TABLE))
        };
        Ok(families.iter().all(leads))
    }

    async fn our_routes(&self) -> io::Result<Vec<RouteMessage>> {
        let mut found = Vec::new();
        for family in [Family::V4, Family::V6] {
            let mut request = default_route(family);
            request.attributes.clear();
            let all = self.handle.route().get(request).execute();
            let all: Result<Vec<_>, _> = all.try_collect().await;
            found.extend(none_if_missing(all)?);
        }
        found.retain(is_ours);
        Ok(found)
    }

    /// Gives the interface its addresses and brings it up.
    pub(super) async fn address(&self, name: &str, addresses: &[IpAddr]) -> io::Result<()> {
        let index = index(name)?;
        for address in addresses {
            let length = if address.is_ipv4() { 32 } else { 128 };
            let mut add = self.handle.address().add(index, *address, length).replace();
            // Nobody else is there who could have it.
            add.message_mut().header.flags |= AddressHeaderFlags::Nodad;
            done_already(add.execute().await)?;
        }
        let up = LinkUnspec::new_with_index(index).up().build();
        done_already(self.handle.link().set(up).execute().await)
    }

    /// Whether the interface of that number is up and has them.
    pub(super) async fn has_addresses(&self, index: u32, addresses: &[IpAddr]) -> io::Result<bool> {
        let mut links = self.handle.link().get().match_index(index).execute();
        let link = links.try_next().await.map_err(as_io)?;
        if !link.is_some_and(|link| link.header.flags.contains(LinkFlags::Up)) {
            return Ok(false);
        }
        let get = self.handle.address().get().set_link_index_filter(index);
        let found: Vec<_> = get.execute().try_collect().await.map_err(as_io)?;
        let has = |address: &IpAddr| {
            let address = AddressAttribute::Address(*address);
            found.iter().any(|it| it.attributes.contains(&address))
        };
        Ok(addresses.iter().all(has))
    }

    /// Sets up the interface, which exists.
    pub(super) async fn furnish(&self, name: &str, mtu: u16) -> io::Result<()> {
        use rtnetlink::packet_route::link::LinkAttribute;
        let link = LinkUnspec::new_with_index(index(name)?)
            .mtu(u32::from(mtu))
            .append_extra_attribute(LinkAttribute::TxQueueLen(TRANSMIT_QUEUE))
            .build();
        done_already(self.handle.link().set(link).execute().await)
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// The index of an interface of this network namespace.
pub(super) fn index(name: &str) -> io::Result<u32> {
    let any = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .or_else(|_| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)))?;
    Ok(netdevice::name_to_index(&any, name)?)
}

/// To everywhere, in our table.
fn default_route(family: Family) -> RouteMessage {
    let protocol = RouteProtocol::Other(PROTOCOL);
    let builder_v4 = RouteMessageBuilder::<Ipv4Addr>::new();
    let builder_v6 = RouteMessageBuilder::<Ipv6Addr>::new();
    match family {
        Family::V4 => builder_v4.table_id(TABLE).protocol(protocol).build(),
        Family::V6 => builder_v6.table_id(TABLE).protocol(protocol).build(),
    }
}

fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

/// Whether a route stands in our table.
pub(super) fn is_ours(route: &RouteMessage) -> bool {
    route.attributes.contains(&RouteAttribute::Table(TABLE))
}

/// What is there already need not be made.
fn done_already(result: Result<(), Error>) -> io::Result<()> {
    match result.map_err(as_io) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// What is not there need not be removed.
fn gone_already(result: Result<(), Error>) -> io::Result<()> {
    let gone = [Errno::SRCH, Errno::NOENT, Errno::NODEV];
    match result.map_err(as_io) {
        Err(error) if Errno::from_io_error(&error).is_some_and(|it| gone.contains(&it)) => Ok(()),
        other => other,
    }
}

/// A kernel without IPv6 has none of it.
fn none_if_missing<T>(found: Result<Vec<T>, Error>) -> io::Result<Vec<T>> {
    let missing = [Errno::AFNOSUPPORT, Errno::OPNOTSUPP, Errno::NOENT];
    match found.map_err(as_io) {
        Err(error) if Errno::from_io_error(&error).is_some_and(|it| missing.contains(&it)) => {
            Ok(Vec::new())
        }
        other => other,
    }
}

fn as_io(error: Error) -> io::Error {
    match error {
        Error::NetlinkError(message) => match message.code {
            Some(code) => io::Error::from_raw_os_error(code.get().abs()),
            None => io::Error::other("the kernel refused without a reason"),
        },
        other => io::Error::other(other.to_string()),
    }
}
