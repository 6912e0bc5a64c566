//! A routing rule of ours as the kernel writes it, and back. Used by [`super::Netlink`].

use ipnet::IpNet;
use rtnetlink::packet_route::{
    AddressFamily, IpProtocol,
    route::RouteProtocol,
    rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange, RuleUidRange},
};

use crate::{
    config::client::takeover::Users,
    up::{
        numbers::PROTOCOL,
        plan::{Family, Rule},
    },
};

/// Whether we made it.
pub(super) fn is_ours(message: &RuleMessage) -> bool {
    let ours = RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL));
    message.attributes.contains(&ours)
}

/// To be added.
pub(super) fn message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = super::address_family(rule.family);
    message.header.action = match rule.table {
        Some(_) => RuleAction::ToTable,
        None => RuleAction::Unreachable,
    };
    message.header.dst_len = rule.to.map_or(0, |to| to.prefix_len());
    message.attributes = vec![
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    message
        .attributes
        .extend(rule.table.map(RuleAttribute::Table));
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
    if rule.dhcp {
        selectors.extend(dhcp(rule.family));
    }
    if rule.not_default {
        selectors.push(RuleAttribute::SuppressPrefixLen(0));
    }
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
pub(super) fn read(message: &RuleMessage) -> Option<Rule> {
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
        dhcp: false,
        not_default: false,
        table: Some(u32::from(message.header.table)),
    };
    for attribute in &message.attributes {
        take(&mut rule, attribute, message.header.dst_len)?;
    }
    if message.header.action == RuleAction::Unreachable {
        rule.table = None;
    }
    Some(rule)
}

fn take(rule: &mut Rule, attribute: &RuleAttribute, length: u8) -> Option<()> {
    match attribute {
        RuleAttribute::Priority(priority) => rule.priority = *priority,
        RuleAttribute::Table(table) => rule.table = Some(*table),
        RuleAttribute::FwMark(mark) => rule.mark = Some(*mark),
        RuleAttribute::Destination(to) => rule.to = Some(IpNet::new(*to, length).ok()?),
        RuleAttribute::UidRange(range) => {
            rule.users = Some(Users {
                first: range.start,
                last: range.end,
            });
        }
        RuleAttribute::IpProtocol(_) => rule.dhcp = true,
        RuleAttribute::SuppressPrefixLen(0) => rule.not_default = true,
        RuleAttribute::Iifname(_) | RuleAttribute::Oifname(_) | RuleAttribute::Source(_) => {
            return None;
        }
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_recognised_as_it_was_written() {
        let plain = Rule {
            family: Family::V4,
            priority: 7,
            mark: None,
            to: None,
            users: None,
            dhcp: false,
            not_default: false,
            table: Some(254),
        };
        let users = Users { first: 1, last: 2 };
        let rules = [
            plain.clone(),
            Rule {
                mark: Some(9),
                table: Some(26_735),
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
                table: None,
                ..plain.clone()
            },
            Rule {
                not_default: true,
                ..plain
            },
        ];
        for rule in rules {
            let message = message(&rule);
            assert!(is_ours(&message));
            assert_eq!(read(&message), Some(rule));
        }
    }
}
