//! The tables of nftables that drop what would go past us: their text for `nft -f`. Used by `plan`; [`super::nftables`] loads them.
//!
//! One transaction each: an older table is replaced without a moment between. They refer to the interface by name, so they stand before and
//! after it. The table that drops names nothing that might not exist; control groups, which nft looks up when it loads them, have one of their
//! own, so that a group that is not there yet opens nothing.
//!
//! What leaves is judged in the postrouting hook, where the interface is the one by which a packet really goes. In the output hook it is still
//! the one of the first look at the routes, and rules of others may mark the packet and have it routed again.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::{
    child,
    numbers::{ARRIVED, FIREWALL, GROUPS, MARK},
    plan::{Facts, Wanted},
    status::Dropped,
};

/// Who is in reach when the local network is, and has routes: private and link-local addresses (RFC 1918, RFC 3927, RFC 4193, RFC 4291).
const LAN4: [&str; 4] = [
    "10.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
];
const LAN6: [&str; 2] = ["fc00::/7", "fe80::/10"];

/// Who is in reach then and needs no routes: groups that no router of the Internet's forwards (RFC 5771, RFC 2365, RFC 4291).
const GROUPS4: &str = "224.0.0.0/24, 239.0.0.0/8, 255.255.255.255";
const GROUPS6: &str = "ff02::/16, ff05::/16";

/// The networks that are the local one wherever it is.
pub(super) fn local_network() -> impl Iterator<Item = IpNet> {
    let all = LAN4.into_iter().chain(LAN6);
    all.filter_map(|network| network.parse().ok())
}

/// The text of the table that stays.
pub(super) fn table(wanted: &Wanted, facts: &Facts) -> String {
    let mut lines = vec!["counter blocked {}".to_owned()];
    lines.extend(asking(wanted, facts));
    if facts.reverse_path {
        lines.extend(incoming(&wanted.name));
    }
    lines.extend(forward(wanted, "filter"));
    lines.extend(postrouting(wanted, "filter"));
    replacing(FIREWALL, &lines)
}

/// What is in its copy, for the one who shall own it: what drops, after the other has. As one line: that is how it is read.
pub(super) fn held(wanted: &Wanted) -> String {
    let mut lines = vec!["flags owner;".to_owned(), "counter blocked {};".to_owned()];
    for chain in [
        forward(wanted, "filter + 1"),
        postrouting(wanted, "filter + 1"),
    ] {
        lines.extend(
            chain
                .into_iter()
                .map(|line| match line.ends_with(['{', ';']) {
                    true => line,
                    false => format!("{line};"),
                }),
        );
    }
    lines.join(" ")
}

/// The text of the table that stays and lets the excluded groups pass.
pub(super) fn excluded_groups(wanted: &Wanted) -> String {
    replacing(GROUPS, &cgroups(wanted))
}

/// One line that makes a table of this name, which does nothing but let the excluded groups pass, and goes with the process that made it (nft(8), `owner`).
pub(super) fn of_groups(name: &str, wanted: &Wanted) -> String {
    let lines = cgroups(wanted).join("; ");
    format!("table inet {name} {{ flags owner; {lines}; }}")
}

/// Whatever stood there is gone in the same moment.
fn replacing(name: &str, lines: &[String]) -> String {
    let lines = lines.join("\n");
    format!("table inet {name} {{}}\ndelete table inet {name}\ntable inet {name} {{\n{lines}\n}}\n")
}

/// What the table has dropped so far; `None` without one, or without the right to look.
pub(crate) fn count() -> Option<Dropped> {
    let arguments = ["-j", "list", "counter", "inet", FIREWALL, "blocked"];
    let answer = child::run("nft", &arguments, "").ok()?;
    counted(&serde_json::from_str(&answer).ok()?)
}

fn counted(answer: &serde_json::Value) -> Option<Dropped> {
    let entries = answer.get("nftables")?.as_array()?;
    let counter = entries.iter().find_map(|entry| entry.get("counter"))?;
    serde_json::from_value(counter.clone()).ok()
}

/// Packets of excluded groups get our mark before they are routed again, and the address of the interface by which they leave.
fn cgroups(wanted: &Wanted) -> Vec<String> {
    let mut lines = vec!["chain groups {".to_owned()];
    lines.push("type route hook output priority mangle - 1; policy accept;".into());
    let mark = |group: &crate::config::client::takeover::Cgroup| {
        let (level, path) = (group.level(), group.path());
        format!("socket cgroupv2 level {level} \"{path}\" meta mark set {MARK:#x}")
    };
    lines.extend(wanted.past_cgroups.iter().map(mark));
    lines.extend([
        "}".into(),
        "chain leaving {".into(),
        "type nat hook postrouting priority srcnat; policy accept;".into(),
    ]);
    let name = &wanted.name;
    lines.extend(wanted.addresses.iter().map(|address| {
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        format!("oifname != {{ \"lo\", \"{name}\" }} meta mark {MARK:#x} {family} saddr {address} masquerade")
    }));
    lines.push("}".into());
    lines
}

/// What excluded programs ask us, the network's own name server is asked.
fn asking(wanted: &Wanted, facts: &Facts) -> Vec<String> {
    let users = wanted.past_users.iter();
    let users = users.map(|users| format!("meta skuid {users}"));
    let groups = (!wanted.past_cgroups.is_empty()).then(|| format!("meta mark {MARK:#x}"));
    let who: Vec<String> = users.chain(groups).collect();
    let questions = wanted.resolvers.iter().filter_map(|ours| {
        let same_family = |server: &&SocketAddr| server.is_ipv4() == ours.is_ipv4() && !server.ip().is_loopback();
        let server = facts.servers.iter().find(same_family)?.ip();
        let (family, server) = match server {
            IpAddr::V4(server) => ("ip", server.to_string()),
            IpAddr::V6(server) => ("ip6", server.to_string()),
        };
        Some(format!(
            "{family} daddr {ours} meta l4proto {{ tcp, udp }} th dport 53 dnat {family} to {server}"
        ))
    });
    let questions: Vec<String> = questions.collect();
    if !wanted.dns || who.is_empty() || questions.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![
        "chain asking {".to_owned(),
        "type nat hook output priority -100; policy accept;".into(),
    ];
    let all = who
        .iter()
        .flat_map(|who| questions.iter().map(move |it| format!("{who} {it}")));
    lines.extend(all);
    lines.push("}".into());
    lines
}

/// What comes in for us is checked by the way that our own packets take: by the main table. The mark is not theirs: answers may inherit it
/// (net.ipv4.tcp_fwmark_accept, net.ipv4.fwmark_reflect, other people's CONNMARK), and are programs' traffic.
fn incoming(name: &str) -> [String; 4] {
    [
        "chain incoming {".into(),
        "type filter hook prerouting priority raw; policy accept;".into(),
        format!(
            "iifname != {{ \"lo\", \"{name}\" }} fib daddr type local meta mark set {ARRIVED:#x}"
        ),
        "}".into(),
    ]
}

fn postrouting(wanted: &Wanted, priority: &str) -> Vec<String> {
    let name = &wanted.name;
    let mut lines = vec![
        "set nexthops { type ipv4_addr; flags dynamic,timeout; timeout 1s; size 256; };".to_owned(),
        "chain postrouting {".to_owned(),
        format!("type filter hook postrouting priority {priority}; policy accept;"),
        // A path is never built through itself.
        format!("oifname \"{name}\" meta mark {MARK:#x} counter name blocked drop"),
        format!("oifname {{ \"lo\", \"{name}\" }} accept"),
        format!("iifname \"{name}\" accept"),
        format!("meta mark {MARK:#x} accept"),
        "udp sport 546 udp dport 547 ip6 daddr { fe80::/10, ff02::1:2 } accept".into(),
        "icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept".into(),
        // Switches that listen to reports forward neighbour discovery's groups only to who is in them (RFC 4541 section 3).
        "icmpv6 type { mld-listener-report, mld-listener-done, mld2-listener-report } ip6 daddr ff02::/16 ip6 hoplimit 1 accept".into(),
    ];
    lines.extend(dhcp());
    if wanted.lan {
        lines.extend(reaching_local_network());
    }
    lines.extend(targets(&wanted.past_addresses).map(|to| format!("{to} accept")));
    lines.extend(
        wanted
            .past_users
            .iter()
            .map(|users| format!("meta skuid {users} accept")),
    );
    lines.extend(dropped(wanted));
    lines.push("}".into());
    lines
}

/// To everybody on the link (RFC 2131 section 4.1), and to the server that a lease is renewed with, if it is on the link: then it is its own
/// next hop. A server behind a router is found when the lease is rebound (section 4.4.5).
fn dhcp() -> [String; 2] {
    let asks = "udp sport 68 udp dport 67";
    [
        format!("{asks} update @nexthops {{ rt ip nexthop }}"),
        format!("{asks} ip daddr @nexthops accept"),
    ]
}

/// The rest; or, where only some traffic is taken, that.
fn dropped(wanted: &Wanted) -> Vec<String> {
    let users: Vec<String> = match wanted.only_users.as_slice() {
        [] => vec![String::new()],
        some => some.iter().map(|u| format!("meta skuid {u} ")).collect(),
    };
    let addresses: Vec<String> = match wanted.only_addresses.as_slice() {
        [] => vec![String::new()],
        some => targets(some).map(|to| format!("{to} ")).collect(),
    };
    let pairs = users
        .iter()
        .flat_map(|users| addresses.iter().map(move |to| (users, to)));
    pairs
        .map(|(users, to)| format!("{users}{to}counter name blocked drop"))
        .collect()
}

/// Containers and virtual machines go through the interface, or not at all. They are nobody's programs here.
fn forward(wanted: &Wanted, priority: &str) -> Vec<String> {
    let name = &wanted.name;
    let mut lines = vec![
        "chain forward {".to_owned(),
        format!("type filter hook forward priority {priority}; policy accept;"),
        format!("oifname \"{name}\" accept"),
        format!("iifname \"{name}\" accept"),
    ];
    if wanted.lan {
        lines.extend(reaching_local_network());
    }
    lines.extend(targets(&wanted.past_addresses).map(|to| format!("{to} accept")));
    if wanted.only_users.is_empty() {
        lines.extend(dropped(wanted));
    }
    lines.push("}".into());
    lines
}

/// Names are asked for through us even so.
fn reaching_local_network() -> [String; 3] {
    let (lan4, lan6) = (LAN4.join(", "), LAN6.join(", "));
    [
        "meta l4proto { tcp, udp } th dport { 53, 853 } counter name blocked drop".into(),
        format!("ip daddr {{ {lan4}, {GROUPS4} }} accept"),
        format!("ip6 daddr {{ {lan6}, {GROUPS6} }} accept"),
    ]
}

fn targets(networks: &[IpNet]) -> impl Iterator<Item = String> {
    networks.iter().map(|network| match network {
        IpNet::V4(network) => format!("ip daddr {network}"),
        IpNet::V6(network) => format!("ip6 daddr {network}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::client::Config;

    fn text(change: impl FnOnce(&mut Wanted)) -> String {
        let mut wanted = Wanted::from_config(&Config::default(), true);
        change(&mut wanted);
        table(&wanted, &Facts::default())
    }

    fn chain<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let lines = text
            .lines()
            .skip_while(|line| *line != format!("chain {name} {{"));
        lines.skip(2).take_while(|line| *line != "}").collect()
    }

    #[test]
    fn what_has_neither_our_mark_nor_our_interface_is_dropped_last() {
        let text = text(|_| ());
        let leaving = chain(&text, "postrouting");
        let looping = "oifname \"hoplite0\" meta mark 0x686f6c counter name blocked drop";
        assert_eq!(leaving.first(), Some(&looping));
        assert_eq!(leaving.last(), Some(&"counter name blocked drop"));
        assert!(!text.contains("skuid") && !text.contains("cgroup"));
        assert_eq!(
            chain(&text, "forward").last(),
            Some(&"counter name blocked drop")
        );
    }

    #[test]
    fn the_local_network_is_in_reach_if_asked_for_but_its_name_servers_are_not() {
        let text = text(|wanted| wanted.lan = true);
        let leaving = chain(&text, "postrouting");
        let drops = leaving.iter().position(|line| line.contains("{ 53, 853 }"));
        let accepts = leaving
            .iter()
            .position(|line| line.contains("192.168.0.0/16"));
        assert!(drops.expect("drops") < accepts.expect("accepts"));
    }

    #[test]
    fn where_only_some_is_taken_only_that_is_dropped() {
        let text = text(|wanted| {
            wanted.only_users = vec!["7-9".parse().expect("users")];
            wanted.only_addresses = vec!["192.0.2.0/24".parse().expect("a network")];
        });
        let last = "meta skuid 7-9 ip daddr 192.0.2.0/24 counter name blocked drop";
        assert_eq!(chain(&text, "postrouting").last(), Some(&last));
        assert!(
            !chain(&text, "forward")
                .iter()
                .any(|line| line.ends_with("drop"))
        );
    }

    #[test]
    fn an_excluded_user_asks_the_networks_name_server_if_one_is_known() {
        let mut wanted = Wanted::from_config(&Config::default(), true);
        wanted.past_users = vec!["7".parse().expect("a user")];
        let servers = ["127.0.0.1:53", "192.0.2.53:53"].map(|it| it.parse().expect("one"));
        let facts = Facts {
            servers: servers.to_vec(),
            ..Facts::default()
        };
        let text = table(&wanted, &facts);
        let expected = "meta skuid 7 ip daddr 198.18.0.2 meta l4proto { tcp, udp } th dport 53 dnat ip to 192.0.2.53";
        assert_eq!(chain(&text, "asking"), [expected]);
        assert!(!table(&wanted, &Facts::default()).contains("dnat"));
    }

    #[test]
    fn what_it_dropped_is_read_from_nft() {
        let answer = r#"{"nftables": [{"metainfo": {"version": "1"}},
            {"counter": {"family": "inet", "name": "blocked", "packets": 3, "bytes": 180}}]}"#;
        let counted = counted(&serde_json::from_str(answer).expect("json"));
        let expected = Dropped {
            packets: 3,
            octets: 180,
        };
        assert_eq!(counted, Some(expected));
    }
}
