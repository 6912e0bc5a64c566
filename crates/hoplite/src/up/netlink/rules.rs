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
        numbers::{MARK, PRIORITY, PROTOCOL, RULES, TABLE},
        plan::{Family, Rule},
    },
};

/// The table of a machine's own addresses, by which nothing leaves (rtnetlink(7)).
const LOCAL: u32 = 255;

/// All rules of the machine, told apart.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// Those that we made.
    pub(super) ours: Vec<RuleMessage>,
    /// All others.
    others: Vec<RuleMessage>,
}

/// Ours have our protocol, which another program may have taken as well, and name our table or mark or stand beside the rule of our mark.
pub(super) fn sort(all: Vec<RuleMessage>) -> Sorted {
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
    pub(super) fn first(&self, wanted: &[Rule]) -> (Vec<Rule>, usize) {
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
            ..rule.clone()
        });
        let before = others.iter().filter(|it| **it <= end - shift).count();
        (placed.collect(), before)
    }

    /// Whether another program has rules that look at marks.
    pub(super) fn others_have_marks(&self) -> bool {
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
        suppress: None,
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
        RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
        RuleAttribute::SuppressPrefixLen(length) => rule.suppress = Some(*length),
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
            dhcp: false,
            suppress: None,
            table: Some(254),
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
            dhcp: false,
            suppress: None,
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
