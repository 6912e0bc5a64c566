//! Interfaces, addresses, routes and rules of the device by rtnetlink(7). Everything here may be done twice.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::{
    Error, Handle, LinkUnspec, RouteMessageBuilder, new_connection,
    packet_route::{
        AddressFamily, IpProtocol,
        address::{AddressAttribute, AddressHeaderFlags},
        link::LinkFlags,
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType},
        rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange, RuleUidRange},
    },
};
use rustix::{io::Errno, net::netdevice};
use tokio::task::JoinHandle;

use super::plan::{Action, BLOCKING, Family, INTO, MARK, PRIORITY, PROTOCOL, RULES, Rule, TABLE};
use crate::config::client::takeover::{Interface, Users};

/// Packets that may wait in the interface for us to read them.
const TRANSMIT_QUEUE: u32 = 1024;

/// A connection to the kernel.
#[derive(Debug)]
pub(crate) struct Netlink {
    handle: Handle,
    connection: JoinHandle<()>,
}

impl Netlink {
    /// Opens one. Needs a tokio runtime.
    pub(crate) fn open() -> io::Result<Self> {
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
            *add.message_mut() = message(rule);
            done_already(add.execute().await)?;
        }
        for found in sorted.ours {
            if !read(&found).is_some_and(|rule| wanted.contains(&rule)) {
                gone_already(self.handle.rule().del(found).execute().await)?;
            }
        }
        Ok(before)
    }

    /// Whether ours are these and no others, and stand where they are to stand.
    pub(super) async fn has_rules(&self, wanted: &[Rule]) -> io::Result<bool> {
        let sorted = self.sorted_rules().await?;
        let (wanted, _) = sorted.first(wanted);
        let found: Option<Vec<Rule>> = sorted.ours.iter().map(read).collect();
        Ok(found.is_some_and(|found| {
            found.len() == wanted.len() && wanted.iter().all(|rule| found.contains(rule))
        }))
    }

    /// Whether another program has rules that look at marks.
    pub(super) async fn others_have_marks(&self) -> io::Result<bool> {
        Ok(self.sorted_rules().await?.others_have_marks())
    }

    async fn sorted_rules(&self) -> io::Result<Sorted> {
        let mut found = Vec::new();
        for version in [rtnetlink::IpVersion::V4, rtnetlink::IpVersion::V6] {
            let all = self.handle.rule().get(version).execute();
            let all: Result<Vec<_>, _> = all.try_collect().await;
            found.extend(none_if_missing(all)?);
        }
        Ok(sort(found))
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
        let rules: Vec<Rule> = sorted.ours.iter().filter_map(read).collect();
        let leads = |family: &Family| {
            let mut of = rules.iter().filter(|rule| rule.family == *family);
            of.any(|rule| rule.action == Action::Table(TABLE))
        };
        Ok(families.iter().all(leads))
    }

    async fn our_routes(&self) -> io::Result<Vec<RouteMessage>> {
        let mut found = self.routes().await?;
        found.retain(is_ours);
        Ok(found)
    }

    /// Those of all tables.
    async fn routes(&self) -> io::Result<Vec<RouteMessage>> {
        let mut found = Vec::new();
        for family in [Family::V4, Family::V6] {
            let mut request = default_route(family);
            request.attributes.clear();
            let all = self.handle.route().get(request).execute();
            let all: Result<Vec<_>, _> = all.try_collect().await;
            found.extend(none_if_missing(all)?);
        }
        Ok(found)
    }

    /// The networks that routes lead to by one of these interfaces, as few as say it; none that is nearly everything, and no more than [`NETWORKS`].
    pub(super) async fn networks(&self, interfaces: &[Interface]) -> io::Result<Vec<IpNet>> {
        let numbers = interfaces.iter().filter_map(|it| index(it.name()).ok());
        let numbers: Vec<u32> = numbers.collect();
        let routes = self.routes().await?;
        let networks = routes.iter().filter(|route| leaves_by(route, &numbers));
        let networks: Vec<IpNet> = networks.filter_map(network).collect();
        let mut networks = IpNet::aggregate(&networks);
        networks.retain(|network| network.prefix_len() > 0);
        if networks.len() > NETWORKS {
            let left = networks.len() - NETWORKS;
            tracing::warn!(
                "{left} networks behind excluded interfaces are too many: their traffic goes through the relays"
            );
            // The larger ones first.
            networks.sort_by_key(|network| (network.prefix_len(), *network));
            networks.truncate(NETWORKS);
        }
        Ok(networks)
    }

    /// Gives the interface its addresses and brings it up.
    pub(crate) async fn address(&self, name: &str, addresses: &[IpAddr]) -> io::Result<()> {
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

    /// Brings the namespace's own interface up.
    pub(crate) async fn loopback(&self) -> io::Result<()> {
        let up = LinkUnspec::new_with_index(index("lo")?).up().build();
        done_already(self.handle.link().set(up).execute().await)
    }

    /// Has all packets go into the interface, of the families that it has addresses of, in a namespace that has no other.
    pub(crate) async fn lead_all_into(&self, name: &str, addresses: &[IpAddr]) -> io::Result<()> {
        let index = index(name)?;
        if addresses.iter().any(IpAddr::is_ipv4) {
            let route = RouteMessageBuilder::<Ipv4Addr>::new().output_interface(index);
            self.add_route(route.build()).await?;
        }
        if addresses.iter().any(IpAddr::is_ipv6) {
            let route = RouteMessageBuilder::<Ipv6Addr>::new().output_interface(index);
            self.add_route(route.build()).await?;
        }
        Ok(())
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
    pub(crate) async fn furnish(&self, name: &str, mtu: u16) -> io::Result<()> {
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

/// Networks behind excluded interfaces; each is a rule that each packet is held against.
const NETWORKS: usize = 256;

/// Whether it is a way out by one of these interfaces.
fn leaves_by(route: &RouteMessage, interfaces: &[u32]) -> bool {
    let by = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Oif(index) => interfaces.contains(index),
        RouteAttribute::MultiPath(hops) => {
            let mut hops = hops.iter();
            hops.any(|hop| interfaces.contains(&hop.interface_index))
        }
        _ => false,
    };
    route.header.kind == RouteType::Unicast && route.attributes.iter().any(by)
}

/// Where it leads: to no more than the largest private networks have, 10.0.0.0/8 and fc00::/7, and not to a link's own addresses, which are of every link.
fn network(route: &RouteMessage) -> Option<IpNet> {
    let length = route.header.destination_prefix_length;
    let to = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(to)) => Some(IpAddr::from(*to)),
            RouteAttribute::Destination(RouteAddress::Inet6(to)) => Some(IpAddr::from(*to)),
            _ => None,
        })?;
    let of_link = match to {
        IpAddr::V4(to) => to.is_multicast(),
        IpAddr::V6(to) => to.is_multicast() || to.is_unicast_link_local(),
    };
    let shortest = if to.is_ipv4() { 8 } else { 7 };
    (length >= shortest && !of_link).then(|| IpNet::new(to, length).ok())?
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

/// The table of a machine's own addresses, by which nothing leaves (rtnetlink(7)).
const LOCAL: u32 = 255;

/// All rules of the machine, told apart.
#[derive(Debug, Default)]
struct Sorted {
    /// Those that we made.
    ours: Vec<RuleMessage>,
    /// All others.
    others: Vec<RuleMessage>,
}

/// Ours have our protocol, which another program may have taken as well, and name our table or mark or stand beside the rule of our mark.
fn sort(all: Vec<RuleMessage>) -> Sorted {
    let has = |message: &RuleMessage, attribute| message.attributes.contains(&attribute);
    let protocol = RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL));
    let is_made_so = |message: &RuleMessage| message.attributes.contains(&protocol);
    let is_marked = |message: &RuleMessage| has(message, RuleAttribute::FwMark(MARK));
    // The first of the two rules of our mark.
    let leads = |message: &RuleMessage| message.header.action == RuleAction::ToTable;
    let anchors = all
        .iter()
        .filter(|it| is_made_so(it) && is_marked(it) && leads(it));
    let mut anchors: Vec<u32> = anchors.map(priority).collect();
    anchors.push(PRIORITY);
    let (ours, others) = all.into_iter().partition(|message| {
        let offset = |anchor: &u32| priority(message).checked_sub(*anchor);
        let stands_beside = |anchor| offset(anchor).is_some_and(|offset| offset < RULES);
        let is_known = is_marked(message) || has(message, RuleAttribute::Table(TABLE));
        is_made_so(message) && (is_known || anchors.iter().any(stands_beside))
    });
    Sorted { ours, others }
}

impl Sorted {
    /// These rules before all of others, and how many of others stand before them all the same.
    fn first(&self, wanted: &[Rule]) -> (Vec<Rule>, usize) {
        let others = self.others.iter().filter(|it| table(it) != LOCAL);
        let others: Vec<u32> = others.map(priority).collect();
        let numbers = wanted.iter().map(|rule| rule.priority);
        let (Some(begin), Some(end)) = (numbers.clone().min(), numbers.max()) else {
            return (Vec::new(), 0);
        };
        let lowest = others.iter().min().copied();
        let lowest = lowest.filter(|lowest| *lowest < begin + RULES);
        // Nothing stands before what the kernel has at 0.
        let room = |lowest: u32| lowest.saturating_sub(RULES).max(1);
        let shift = lowest.map_or(0, |lowest| begin.saturating_sub(room(lowest)));
        let placed = wanted.iter().map(|rule| Rule {
            priority: rule.priority - shift,
            action: match rule.action {
                Action::Goto(priority) => Action::Goto(priority - shift),
                same => same,
            },
            ..rule.clone()
        });
        let before = others.iter().filter(|it| **it <= end - shift).count();
        (placed.collect(), before)
    }

    /// Whether another program has rules that look at marks.
    fn others_have_marks(&self) -> bool {
        let is_mark = |attribute: &RuleAttribute| matches!(attribute, RuleAttribute::FwMark(_));
        let has = |message: &RuleMessage| message.attributes.iter().any(is_mark);
        self.others.iter().any(has)
    }
}

fn priority(message: &RuleMessage) -> u32 {
    let of = |attribute: &RuleAttribute| match attribute {
        RuleAttribute::Priority(priority) => Some(*priority),
        _ => None,
    };
    message.attributes.iter().find_map(of).unwrap_or(0)
}

fn table(message: &RuleMessage) -> u32 {
    let of = |attribute: &RuleAttribute| match attribute {
        RuleAttribute::Table(table) => Some(*table),
        _ => None,
    };
    let named = message.attributes.iter().find_map(of);
    named.unwrap_or_else(|| u32::from(message.header.table))
}

/// To be added.
fn message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = address_family(rule.family);
    let (action, with) = match rule.action {
        Action::Table(table) => (RuleAction::ToTable, Some(RuleAttribute::Table(table))),
        Action::Unreachable => (RuleAction::Unreachable, None),
        Action::Goto(priority) => (RuleAction::Goto, Some(RuleAttribute::Goto(priority))),
        Action::Nop => (RuleAction::Nop, None),
    };
    message.header.action = action;
    message.header.dst_len = rule.to.map_or(0, |to| to.prefix_len());
    message.attributes = vec![
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    message.attributes.extend(with);
    message.attributes.extend(selectors(rule));
    message
}

fn selectors(rule: &Rule) -> Vec<RuleAttribute> {
    let mut selectors = Vec::new();
    selectors.extend(rule.mark.map(RuleAttribute::FwMark));
    let everywhere = |to: &IpNet| to.prefix_len() == 0;
    let to = rule.to.filter(|to| !everywhere(to));
    selectors.extend(to.map(|to| RuleAttribute::Destination(to.network())));
    selectors.extend(rule.users.map(|users| {
        RuleAttribute::UidRange(RuleUidRange {
            start: users.first,
            end: users.last,
        })
    }));
    let bound = rule.bound.as_ref();
    selectors.extend(bound.map(|it| RuleAttribute::Oifname(it.name().to_owned())));
    if rule.dhcp {
        selectors.extend(dhcp(rule.family));
    }
    selectors.extend(rule.suppress.map(RuleAttribute::SuppressPrefixLen));
    selectors
}

/// The ports of a client and of a server (RFC 2131 §4.1, RFC 8415 §7.2).
fn dhcp(family: Family) -> [RuleAttribute; 3] {
    let (client, server) = match family {
        Family::V4 => (68, 67),
        Family::V6 => (546, 547),
    };
    let only = |port| RulePortRange {
        start: port,
        end: port,
    };
    [
        RuleAttribute::IpProtocol(IpProtocol::Udp),
        RuleAttribute::SourcePortRange(only(client)),
        RuleAttribute::DestinationPortRange(only(server)),
    ]
}

/// As the kernel told it; `None` if it has something that ours never have.
fn read(message: &RuleMessage) -> Option<Rule> {
    let family = match message.header.family {
        AddressFamily::Inet => Family::V4,
        AddressFamily::Inet6 => Family::V6,
        _ => return None,
    };
    let mut rule = Rule {
        family,
        priority: 0,
        mark: None,
        to: None,
        users: None,
        bound: None,
        dhcp: false,
        suppress: None,
        action: match message.header.action {
            RuleAction::ToTable => Action::Table(table(message)),
            RuleAction::Unreachable => Action::Unreachable,
            // The attribute says where to.
            RuleAction::Goto => Action::Goto(0),
            RuleAction::Nop => Action::Nop,
            _ => return None,
        },
    };
    for attribute in &message.attributes {
        take(&mut rule, attribute, message.header.dst_len)?;
    }
    Some(rule)
}

fn take(rule: &mut Rule, attribute: &RuleAttribute, length: u8) -> Option<()> {
    match attribute {
        RuleAttribute::Priority(priority) => rule.priority = *priority,
        RuleAttribute::Goto(priority) => rule.action = Action::Goto(*priority),
        RuleAttribute::FwMark(mark) => rule.mark = Some(*mark),
        RuleAttribute::Destination(to) => rule.to = Some(IpNet::new(*to, length).ok()?),
        RuleAttribute::UidRange(range) => {
            rule.users = Some(Users {
                first: range.start,
                last: range.end,
            });
        }
        RuleAttribute::IpProtocol(_) => rule.dhcp = true,
        RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
        RuleAttribute::SuppressPrefixLen(length) => rule.suppress = Some(*length),
        RuleAttribute::Oifname(name) => rule.bound = Some(name.parse().ok()?),
        RuleAttribute::Iifname(_) | RuleAttribute::Source(_) => return None,
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod rules_tests {
    use super::*;

    fn of_another(priority: u32, more: Vec<RuleAttribute>) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.attributes = vec![RuleAttribute::Priority(priority)];
        message.attributes.extend(more);
        message
    }

    fn two() -> [Rule; 2] {
        let plain = Rule {
            family: Family::V4,
            priority: PRIORITY,
            mark: Some(MARK),
            to: None,
            users: None,
            bound: None,
            dhcp: false,
            suppress: None,
            action: Action::Table(254),
        };
        let second = Rule {
            priority: PRIORITY + 4,
            mark: None,
            to: Some("10.0.0.0/8".parse().expect("a network")),
            ..plain.clone()
        };
        [plain, second]
    }

    #[test]
    fn another_programs_rule_with_our_protocol_is_not_ours_wherever_we_stand() {
        let protocol = RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL));
        for shift in [0, 20_000] {
            let mut all: Vec<_> = two()
                .map(|mut rule| {
                    rule.priority -= shift;
                    message(&rule)
                })
                .into();
            all.push(of_another(100, vec![protocol.clone()]));
            all.push(of_another(PRIORITY + RULES - shift, vec![protocol.clone()]));
            let sorted = sort(all);
            assert_eq!((sorted.ours.len(), sorted.others.len()), (2, 2));
        }
    }

    #[test]
    fn ours_come_before_those_of_others_as_long_as_they_fit() {
        let first = |others: &[u32]| {
            let others = others
                .iter()
                .map(|priority| of_another(*priority, Vec::new()));
            let (placed, before) = sort(others.collect()).first(&two());
            let places = placed.iter().map(|rule| rule.priority);
            (places.collect::<Vec<_>>(), before)
        };
        let usual = vec![PRIORITY, PRIORITY + 4];
        let mut skipping = two();
        skipping[0].action = Action::Goto(PRIORITY + 4);
        let (placed, _) = sort(vec![of_another(5216, Vec::new())]).first(&skipping);
        assert_eq!(placed[0].action, Action::Goto(placed[1].priority));
        assert_eq!(first(&[32_766, 32_767]), (usual.clone(), 0));
        assert_eq!(first(&[PRIORITY + RULES]), (usual, 0));
        assert_eq!(first(&[PRIORITY - 1, 5216]), (vec![5200, 5204], 0));
        let last = PRIORITY + RULES - 1;
        assert_eq!(first(&[last]), (vec![last - RULES, last - RULES + 4], 0));
        assert_eq!(first(&[6]), (vec![1, 5], 0));
        assert_eq!(first(&[5, 9]), (vec![1, 5], 1));
        let mut local = of_another(0, vec![RuleAttribute::Table(LOCAL)]);
        local.header.table = 255;
        assert_eq!(sort(vec![local]).first(&two()).1, 0);
    }

    #[test]
    fn a_rule_is_recognised_as_it_was_written() {
        let plain = Rule {
            family: Family::V4,
            priority: 7,
            mark: None,
            to: None,
            users: None,
            bound: None,
            dhcp: false,
            suppress: None,
            action: Action::Table(254),
        };
        let users = Users { first: 1, last: 2 };
        let rules = [
            plain.clone(),
            Rule {
                mark: Some(9),
                action: Action::Table(26_735),
                ..plain.clone()
            },
            Rule {
                to: Some("10.0.0.0/8".parse().expect("a network")),
                users: Some(users),
                ..plain.clone()
            },
            Rule {
                family: Family::V6,
                dhcp: true,
                ..plain.clone()
            },
            Rule {
                action: Action::Unreachable,
                ..plain.clone()
            },
            Rule {
                action: Action::Goto(17),
                ..plain.clone()
            },
            Rule {
                action: Action::Nop,
                ..plain.clone()
            },
            Rule {
                bound: Some("wg0".parse().expect("a name")),
                ..plain.clone()
            },
            Rule {
                suppress: Some(7),
                ..plain
            },
        ];
        for rule in rules {
            let message = message(&rule);
            assert_eq!(read(&message), Some(rule));
        }
    }
}
