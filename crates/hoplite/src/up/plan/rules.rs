//! The routing rules of a plan: who goes by which table. Used by [`super`]; `netlink` writes them and reads them back.

use ipnet::IpNet;

use super::{Family, Wanted};
use crate::{
    config::client::takeover::Users,
    up::{
        firewall::local_network,
        numbers::{ARRIVED, MARK, PRIORITY, TABLE},
    },
};

/// A routing rule. Two are the same when all of it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Which family.
    pub(crate) family: Family,
    /// Lower ones come first.
    pub(crate) priority: u32,
    /// The mark that a packet has.
    pub(crate) mark: Option<u32>,
    /// Where it goes.
    pub(crate) to: Option<IpNet>,
    /// Whose it is.
    pub(crate) users: Option<Users>,
    /// It is DHCP's.
    pub(crate) dhcp: bool,
    /// Routes of the table to prefixes of this length or shorter do not count.
    pub(crate) suppress: Option<u32>,
    /// Which routes apply; none at all is the end of the way: unreachable.
    pub(crate) table: Option<u32>,
}

/// The main table (rtnetlink(7)).
pub(crate) const MAIN: u32 = 254;

/// In order: our own sockets by the main table, or not at all; what only we have by our table; what is excluded by the main table, the rest
/// by ours.
///
/// Our own sockets never go on to our table: while the uplink has no default route, what they send would come back to us, and a path would be
/// built through itself.
///
/// The local network is what the main table has for private addresses, each block by routes to no more than that block: who hands out routes
/// (DHCP's option 121, RFC 3442) may say where 10.1.0.0/16 is, and 0.0.0.0/1 of his takes nothing.
///
/// IPv6 that is taken ends there, even if it finds no route of ours: a program that binds to another interface does not. IPv4 has no such
/// rule. It would not stop that program, which the kernel then takes at its word, and nobody could set a default route any more: its gateway
/// is looked for by these rules, and found in the main table because our routes are not of a link's scope.
pub(super) fn rules(wanted: &Wanted, family: Family) -> Vec<Rule> {
    let rule = |offset, table| Rule {
        family,
        priority: PRIORITY + offset,
        mark: None,
        to: None,
        users: None,
        dhcp: false,
        suppress: None,
        table: Some(table),
    };
    let mut rules = vec![
        Rule {
            mark: Some(MARK),
            ..rule(0, MAIN)
        },
        Rule {
            mark: Some(MARK),
            table: None,
            ..rule(1, MAIN)
        },
        Rule {
            mark: Some(ARRIVED),
            ..rule(2, MAIN)
        },
        Rule {
            dhcp: true,
            ..rule(3, MAIN)
        },
    ];
    let pools = wanted.pools.iter().filter(|to| family.has(to));
    rules.extend(pools.map(|to| Rule {
        to: Some(*to),
        ..rule(4, TABLE)
    }));
    rules.extend(wanted.past_users.iter().map(|users| Rule {
        users: Some(*users),
        ..rule(5, MAIN)
    }));
    let past = wanted.past_addresses.iter().filter(|to| family.has(to));
    rules.extend(past.map(|to| Rule {
        to: Some(*to),
        ..rule(6, MAIN)
    }));
    let local = local_network().filter(|to| wanted.lan && family.has(to));
    rules.extend(local.map(|to| Rule {
        to: Some(to),
        suppress: u32::from(to.prefix_len()).checked_sub(1),
        ..rule(7, MAIN)
    }));
    rules.extend(taken(wanted, family).map(|(users, to)| Rule {
        users,
        to,
        ..rule(8, TABLE)
    }));
    let ends = wanted.block && family == Family::V6;
    let ended = taken(wanted, family).filter(|_| ends);
    rules.extend(ended.map(|(users, to)| Rule {
        users,
        to,
        table: None,
        ..rule(9, TABLE)
    }));
    rules
}

/// What is taken: everything, or every pair of what is listed.
fn taken(wanted: &Wanted, family: Family) -> impl Iterator<Item = (Option<Users>, Option<IpNet>)> {
    let users: Vec<_> = match wanted.only_users.as_slice() {
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    let addresses: Vec<_> = match wanted.only_addresses.as_slice() {
        [] => vec![None],
        some => some
            .iter()
            .filter(|to| family.has(to))
            .copied()
            .map(Some)
            .collect(),
    };
    users
        .into_iter()
        .flat_map(move |users| addresses.clone().into_iter().map(move |to| (users, to)))
}
