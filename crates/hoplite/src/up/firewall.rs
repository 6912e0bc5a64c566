//! The table of nftables that drops what would go past us: its text for `nft -f`. Used by `plan`.
//!
//! One transaction: an older table is replaced without a moment between. It refers to the interface by name, so it stands before and after it.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::{
    child,
    numbers::{FIREWALL, MARK},
    plan::{Facts, Wanted},
    status::Dropped,
};

/// Who is in reach when the local network is: what is never routed on the Internet.
const LAN4: &str = "10.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16, 224.0.0.0/24, 239.0.0.0/8, 255.255.255.255";
const LAN6: &str = "fc00::/7, fe80::/10, ff02::/16, ff05::/16";

/// The text.
pub(super) fn table(wanted: &Wanted, facts: &Facts) -> String {
    let mut lines = vec!["counter blocked {}".to_owned()];
    if !wanted.past_cgroups.is_empty() {
        lines.extend(cgroups(wanted));
    }
    lines.extend(asking(wanted, facts));
    if facts.reverse_path {
        lines.extend(incoming(&wanted.name));
    }
    lines.extend(output(wanted));
    lines.extend(forward(wanted));
    replacing(FIREWALL, &lines)
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

/// What comes in for us is checked by the way that our own packets take: by the main table.
fn incoming(name: &str) -> [String; 4] {
    [
        "chain incoming {".into(),
        "type filter hook prerouting priority raw; policy accept;".into(),
        format!("iifname != {{ \"lo\", \"{name}\" }} fib daddr type local meta mark set {MARK:#x}"),
        "}".into(),
    ]
}

fn output(wanted: &Wanted) -> Vec<String> {
    let name = &wanted.name;
    let mut lines = vec![
        "chain output {".to_owned(),
        "type filter hook output priority filter; policy accept;".into(),
        format!("oifname {{ \"lo\", \"{name}\" }} accept"),
        format!("meta mark {MARK:#x} accept"),
        "udp sport 68 udp dport 67 accept".into(),
        "udp sport 546 udp dport 547 accept".into(),
        "icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept".into(),
    ];
    if wanted.lan {
        lines.extend(local_network());
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
fn forward(wanted: &Wanted) -> Vec<String> {
    let name = &wanted.name;
    let mut lines = vec![
        "chain forward {".to_owned(),
        "type filter hook forward priority filter; policy accept;".into(),
        format!("oifname \"{name}\" accept"),
        format!("iifname \"{name}\" accept"),
    ];
    if wanted.lan {
        lines.extend(local_network());
    }
    lines.extend(targets(&wanted.past_addresses).map(|to| format!("{to} accept")));
    if wanted.only_users.is_empty() {
        lines.extend(dropped(wanted));
    }
    lines.push("}".into());
    lines
}

/// Names are asked for through us even so.
fn local_network() -> [String; 3] {
    [
        "meta l4proto { tcp, udp } th dport { 53, 853 } counter name blocked drop".into(),
        format!("ip daddr {{ {LAN4} }} accept"),
        format!("ip6 daddr {{ {LAN6} }} accept"),
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
        let output = chain(&text, "output");
        assert_eq!(
            output.first(),
            Some(&"oifname { \"lo\", \"hoplite0\" } accept")
        );
        assert_eq!(output.last(), Some(&"counter name blocked drop"));
        assert!(!text.contains("daddr") && !text.contains("skuid") && !text.contains("cgroup"));
        assert_eq!(
            chain(&text, "forward").last(),
            Some(&"counter name blocked drop")
        );
    }

    #[test]
    fn the_local_network_is_in_reach_if_asked_for_but_its_name_servers_are_not() {
        let text = text(|wanted| wanted.lan = true);
        let output = chain(&text, "output");
        let drops = output.iter().position(|line| line.contains("{ 53, 853 }"));
        let accepts = output
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
        assert_eq!(chain(&text, "output").last(), Some(&last));
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
