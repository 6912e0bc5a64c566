//! What the policy refuses, seen from whoever asks.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::config::{Egress, Ingress, Role};

/// The policy of a relay on a host with two public addresses and a prefix.
fn new(config: &Config, listen: &[&str]) -> Policy {
    let listen: Vec<SocketAddr> = listen.iter().map(|a| a.parse().expect(a)).collect();
    let own = ["5.6.7.8/32", "2a00:1::8/128", "127.0.0.0/8", "5.6.8.0/29"];
    let own = own.map(|net| net.parse().expect(net));
    Policy::new(config, &listen, Arc::new(HostAddresses::only(&own)))
}

fn policy(allow: &[&str], deny: &[&str]) -> Policy {
    let rules = |texts: &[&str]| texts.iter().map(|t| t.parse().expect(t)).collect();
    let config = Config {
        egress: Egress {
            allow: rules(allow),
            deny: rules(deny),
            ..Egress::default()
        },
        ..Config::default()
    };
    new(&config, &["127.0.0.1:4433"])
}

fn judge(policy: &Policy, target: &str) -> Result<PolicyVerdict, Refusal> {
    policy.check_target(&target.parse().expect(target))
}

#[test]
fn addresses_that_mean_something_here_are_refused() {
    let policy = policy(&[], &[]);
    for target in [
        "0.0.0.0:80",
        "10.1.2.3:80",
        "100.64.0.1:80",
        "127.0.0.1:80",
        "127.8.9.10:80",
        "168.63.129.16:80",
        "169.254.169.254:80",
        "172.16.0.1:80",
        "172.31.255.255:80",
        "192.168.0.1:80",
        "198.18.0.1:80",
        "192.0.2.1:80",
        "224.0.0.1:80",
        "239.255.255.255:80",
        "255.255.255.255:80",
        "240.0.0.1:80",
        "[::]:80",
        "[::1]:80",
        "[::7f00:1]:80",
        "[::ffff:10.0.0.1]:80",
        "[fe80::1]:80",
        "[fec0::1]:80",
        "[fd00:ec2::254]:80",
        "[fc00::1]:80",
        "[ff02::1]:80",
        "[2001:db8::1]:80",
        "[64:ff9b::7f00:1]:80",
        "[64:ff9b:1::1]:80",
        "[2002:a00:1::1]:80",
        "[2001:0:102:304:0:0:80ff:fffe]:80",
        "[3fff::1]:80",
        "[100::1]:80",
    ] {
        assert_eq!(judge(&policy, target), Err(Refusal::Address), "{target}");
    }
}

#[test]
fn addresses_of_the_internet_are_served() {
    let policy = policy(&[], &[]);
    for target in [
        "1.1.1.1:443",
        "9.9.9.9:53",
        "172.32.0.1:80",
        "100.128.0.1:80",
        "[2606:4700::1111]:443",
        "[64:ff9b::101:101]:443",
        "[2002:101:101::1]:80",
    ] {
        assert_eq!(
            judge(&policy, target),
            Ok(PolicyVerdict::Checked),
            "{target}"
        );
    }
}

#[test]
fn local_names_are_refused_before_any_look_up() {
    let policy = policy(&[], &[]);
    for target in [
        "localhost:80",
        "LOCALHOST.:80",
        "a.localhost:80",
        "printer.local:80",
        "metadata.google.internal:80",
        "router.home.arpa:80",
        "x.onion:80",
    ] {
        assert_eq!(judge(&policy, target), Err(Refusal::Name), "{target}");
    }
    assert_eq!(
        judge(&policy, "local.example:80"),
        Ok(PolicyVerdict::Checked)
    );
}

#[test]
fn localhost_is_served_when_its_addresses_are_allowed() {
    let policy = policy(&["127.0.0.0/8"], &[]);
    assert_eq!(judge(&policy, "localhost:80"), Ok(PolicyVerdict::Checked));
}

#[test]
fn what_is_allowed_is_served_and_deny_wins() {
    let policy = policy(
        &["10.0.0.0/8", "127.0.0.1:80", ".corp.internal"],
        &["10.9.0.0/16", "*:25"],
    );
    assert_eq!(judge(&policy, "10.1.2.3:443"), Ok(PolicyVerdict::Checked));
    assert_eq!(judge(&policy, "10.9.2.3:443"), Err(Refusal::Address));
    assert_eq!(judge(&policy, "127.0.0.1:80"), Ok(PolicyVerdict::Checked));
    assert_eq!(judge(&policy, "127.0.0.1:81"), Err(Refusal::Address));
    assert_eq!(judge(&policy, "1.1.1.1:25"), Err(Refusal::Address));
    assert_eq!(judge(&policy, "mail.example:25"), Err(Refusal::Name));
    assert_eq!(
        judge(&policy, "git.corp.internal:22"),
        Ok(PolicyVerdict::Checked)
    );
    assert_eq!(judge(&policy, "notcorp.internal:22"), Err(Refusal::Name));
}

#[test]
fn an_address_that_carries_a_denied_one_is_denied() {
    let policy = policy(&[], &["1.1.1.0/24"]);
    assert_eq!(
        judge(&policy, "[64:ff9b::101:101]:443"),
        Err(Refusal::Address)
    );
}

#[test]
fn a_relay_does_not_call_itself_even_when_allowed() {
    let policy = policy(&["127.0.0.0/8"], &[]);
    assert_eq!(judge(&policy, "127.0.0.1:4433"), Err(Refusal::Itself));
    assert_eq!(
        judge(&policy, "[::ffff:127.0.0.1]:4433"),
        Err(Refusal::Itself)
    );
    assert_eq!(judge(&policy, "127.0.0.1:4434"), Ok(PolicyVerdict::Checked));
}

#[test]
fn a_wildcard_listener_is_itself_at_every_address_of_the_host() {
    let config = Config {
        egress: Egress {
            allow: vec!["127.0.0.0/8".parse().expect("rule")],
            ..Egress::default()
        },
        ..Config::default()
    };
    let policy = new(&config, &["[::]:443"]);
    assert_eq!(judge(&policy, "127.3.2.1:443"), Err(Refusal::Itself));
    assert_eq!(judge(&policy, "127.3.2.1:444"), Ok(PolicyVerdict::Checked));
}

#[test]
fn the_host_is_refused_at_every_address_port_and_translation_of_it() {
    let hidden = policy(&[], &[]);
    for target in [
        "5.6.7.8:9090",
        "5.6.8.7:22",
        "[2a00:1::8]:25",
        "[::ffff:5.6.7.8]:9090",
        "[64:ff9b::506:708]:9090",
        "[2002:506:708::1]:9090",
    ] {
        assert_eq!(judge(&hidden, target), Err(Refusal::Address), "{target}");
        let ip = target.parse::<SocketAddr>().expect(target).ip();
        assert!(!hidden.may_reveal(ip), "{target}");
        let checked = hidden.check_resolved(PolicyVerdict::Checked, target.parse().expect(target));
        assert_eq!(checked, Err(Refusal::Address), "{target}");
    }
    assert_eq!(judge(&hidden, "5.6.7.9:9090"), Ok(PolicyVerdict::Checked));
    let open = policy(&["5.6.7.8:443"], &[]);
    assert_eq!(judge(&open, "5.6.7.8:443"), Ok(PolicyVerdict::Checked));
    assert_eq!(judge(&open, "5.6.7.8:444"), Err(Refusal::Address));
}

#[test]
fn an_address_that_a_router_translates_is_the_hosts() {
    let mut config = Config::default();
    config.egress.own = vec!["9.8.7.0/30".parse().expect("a prefix")];
    config.directory.addresses = vec!["9.8.6.5:8443".parse().expect("an address")];
    let policy = new(&config, &["10.0.0.5:443"]);
    assert_eq!(judge(&policy, "9.8.7.3:80"), Err(Refusal::Address));
    assert_eq!(judge(&policy, "9.8.6.5:22"), Err(Refusal::Address));
    assert_eq!(judge(&policy, "9.8.7.3:443"), Err(Refusal::Itself));
    assert_eq!(judge(&policy, "9.8.7.4:80"), Ok(PolicyVerdict::Checked));
}

#[test]
fn behind_a_networks_own_nat64_the_ipv4_address_is_judged() {
    let mut config = Config::default();
    let prefixes = ["2001:67c:27e4:64::/96", "64:ff9b:1::/48", "2a00:64::/32"];
    config.egress.nat64 = prefixes.map(|net| net.parse().expect(net)).to_vec();
    config.egress.allow = vec!["10.1.0.0/16".parse().expect("a rule")];
    let policy = new(&config, &[]);
    for target in [
        "[2001:67c:27e4:64::a9fe:a9fe]:80",
        "[2001:67c:27e4:64::506:708]:9090",
        "[64:ff9b:1:a9fe:a9:fe00::]:80",
        "[2a00:64:7f00:1::]:80",
        "[2a00:64:a83f:8110::]:80",
    ] {
        assert_eq!(judge(&policy, target), Err(Refusal::Address), "{target}");
    }
    for target in [
        "[2001:67c:27e4:64::101:101]:443",
        "[64:ff9b:1:101:1:100::]:443",
        "[2a00:64:a01:101::]:443",
    ] {
        assert_eq!(
            judge(&policy, target),
            Ok(PolicyVerdict::Checked),
            "{target}"
        );
    }
}

#[test]
fn an_ingress_forwards_to_its_relays_only() {
    let config = Config {
        roles: vec![Role::Ingress],
        ingress: Ingress {
            geofeed: None,
            mmdb: None,
            relays: vec![
                "relay.example:443".parse().expect("target"),
                "10.0.0.2:443".parse().expect("target"),
            ],
        },
        ..Config::default()
    };
    let policy = new(&config, &[]);
    assert_eq!(
        judge(&policy, "relay.example:443"),
        Ok(PolicyVerdict::Relay)
    );
    assert_eq!(judge(&policy, "10.0.0.2:443"), Ok(PolicyVerdict::Relay));
    for other in [
        "relay.example:80",
        "example.com:443",
        "1.1.1.1:443",
        "10.0.0.3:443",
    ] {
        assert_eq!(judge(&policy, other), Err(Refusal::UnknownRelay), "{other}");
    }
}

fn inside(net: &str, seed: u128) -> IpAddr {
    match net.parse::<IpNet>().expect(net) {
        IpNet::V4(net) => {
            let host = u32::try_from(seed & u128::from(u32::MAX)).expect("masked")
                & u32::from(net.hostmask());
            Ipv4Addr::from(u32::from(net.network()) | host).into()
        }
        IpNet::V6(net) => {
            Ipv6Addr::from(u128::from(net.network()) | (seed & u128::from(net.hostmask()))).into()
        }
    }
}

proptest! {
    #[test]
    fn no_address_of_a_special_range_is_served(seed: u128, port in 1u16.., net in prop::sample::select(vec![
        "10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10",
        "224.0.0.0/4", "240.0.0.0/4", "0.0.0.0/8", "fc00::/7", "fe80::/10", "ff00::/8", "::/96",
        "::ffff:10.0.0.0/104", "64:ff9b::7f00:0/104", "2002:7f00::/24", "2002:c0a8::/32",
    ])) {
        let address = SocketAddr::new(inside(net, seed), port);
        prop_assert!(policy(&[], &[]).check_address(address).is_err(), "{address}");
    }

    #[test]
    fn mapping_an_ipv4_address_into_ipv6_changes_nothing(v4: [u8; 4], port in 1u16..) {
        let v4 = Ipv4Addr::from(v4);
        let policy = policy(&["10.0.0.0/8"], &["8.8.8.0/24"]);
        let plain = policy.check_address(SocketAddr::new(v4.into(), port));
        let mapped = policy.check_address(SocketAddr::new(v4.to_ipv6_mapped().into(), port));
        prop_assert_eq!(plain, mapped);
    }

    #[test]
    fn an_address_that_carries_a_refused_one_is_refused(v4: [u8; 4], port in 1u16..) {
        let policy = policy(&[], &[]);
        let v4 = Ipv4Addr::from(v4);
        let [a, b, c, d] = v4.octets().map(u16::from);
        let nat64 = Ipv6Addr::from([0x64, 0xff9b, 0, 0, 0, 0, a << 8 | b, c << 8 | d]);
        let six = Ipv6Addr::from([0x2002, a << 8 | b, c << 8 | d, 0, 0, 0, 0, 1]);
        let plain = policy.check_address(SocketAddr::new(v4.into(), port)).is_ok();
        for carrier in [nat64, six] {
            prop_assert_eq!(policy.check_address(SocketAddr::new(carrier.into(), port)).is_ok(), plain);
        }
    }

    #[test]
    fn a_rule_that_was_written_is_read_back(v6: u128, v4: u32, len in 0u8..=32, port: Option<u16>) {
        let tail = port.map_or(String::new(), |p| format!(":{p}"));
        let v6 = Ipv6Addr::from(v6 | 1 << 127);
        for text in [format!("{}/{len}{tail}", Ipv4Addr::from(v4)), format!("[{v6}]/{len}{tail}"), format!(".a.example{tail}")] {
            let rule: Rule = text.parse().expect("a rule");
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
        }
    }

    #[test]
    fn any_text_is_read_as_a_rule_or_refused(text in ".{0,60}") {
        drop(text.parse::<Rule>());
    }
}

proptest! {
    /// What clients of Tor's network are told is what they find.
    #[test]
    fn the_exit_policy_says_of_every_address_what_the_policy_does(
        target in any::<std::net::SocketAddrV4>().prop_filter("a port, and an address of one host", |target| target.port() > 0 && target.ip().octets()[0] < 224),
        near in prop::option::of(prop::sample::select(vec!["10.1.2.3", "10.1.2.4", "127.0.0.1", "5.6.7.8", "192.0.2.7", "8.8.8.8"])),
        port in prop::option::of(prop::sample::select(vec![25_u16, 80, 4433])),
    ) {
        let ip = near.map_or_else(|| *target.ip(), |near| near.parse().expect(near));
        let target = std::net::SocketAddrV4::new(ip, port.unwrap_or_else(|| target.port()));
        let rules = |texts: &[&str]| texts.iter().map(|t| t.parse().expect(t)).collect();
        let config = Config {
            egress: Egress {
                allow: rules(&["10.1.2.0/30", "127.0.0.1:80", "[fd00::]/8", ".corp.internal"]),
                deny: rules(&["*:25", "8.8.8.0/24", "10.1.2.3:443", "bad.example"]),
                own: vec!["5.6.7.8/32".parse().expect("a network")],
                ..Egress::default()
            },
            ..Config::default()
        };
        let listen: [SocketAddr; 1] = ["127.0.0.1:4433".parse().expect("an address")];
        let policy = Policy::new(&config, &listen, Arc::new(HostAddresses::only(&[])));
        let said = exit_policy(&config, &listen);
        let first = said.iter().find(|rule| rule.fits(target)).expect("the last fits all");
        prop_assert_eq!(first.accepts, policy.check_address(target.into()).is_ok());
    }
}

#[test]
fn a_relay_without_the_egress_role_tells_that_it_connects_to_nobody() {
    let config = Config {
        roles: vec![Role::Ingress],
        ..Config::default()
    };
    let said: Vec<_> = exit_policy(&config, &[])
        .iter()
        .map(ExitRule::to_string)
        .collect();
    assert_eq!(said, ["reject *:*"]);
}
