//! `[takeover]` in the client's file: what `hoplite up` takes of the device's traffic, and what it leaves alone.

use std::{fmt, fs, str::FromStr};

use hoplite_wire::{HostName, special::is_onion_name};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

use super::Config;

/// The section.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Takeover {
    /// Whether the local network is reached directly.
    pub(crate) lan: bool,
    /// Whether names are taken over too.
    pub(crate) dns: Dns,
    /// What goes its own way.
    pub(crate) exclude: Exclude,
    /// What alone is taken, if anything is listed.
    pub(crate) include: Include,
    /// Networks behind this machine whose traffic is taken, too.
    pub(crate) gateway: Vec<IpNet>,
    /// As which user and group the process runs that reads what the network sends, if root starts it: [`Takeover::user()`].
    pub(crate) user: Option<u32>,
}

/// `nobody`, whose files should not exist.
pub(crate) const NOBODY: u32 = 65_534;
/// A user and group that no system gives to anybody (systemd, "Users, Groups, UIDs and GIDs": unused from 1,879,048,192 on): what runs as `nobody`, anybody
/// else who does can stop for good.
const UNSHARED: u32 = 1_900_000_000;

impl Takeover {
    /// As which user and group that process runs: `nobody` where this user namespace lacks the one that is nobody's.
    pub(crate) fn user(&self) -> u32 {
        let has = |map: &str| fs::read_to_string(map).is_ok_and(|map| has_user(&map, UNSHARED));
        self.user.unwrap_or_else(|| {
            if has("/proc/self/uid_map") && has("/proc/self/gid_map") {
                UNSHARED
            } else {
                NOBODY
            }
        })
    }
}

/// Whether a user namespace has such a user. In each line: the first of some, who that is outside, and how many there are (user_namespaces(7)).
fn has_user(map: &str, user: u32) -> bool {
    map.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        let mut number = || words.next()?.parse::<u64>().ok();
        let (Some(first), Some(_), Some(count)) = (number(), number(), number()) else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(user))
    })
}

/// Who answers programs' questions for names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dns {
    /// We do, by whichever way this system has.
    #[default]
    Auto,
    /// The system's settings stay; what it asks over the network goes through the relays.
    Off,
}

/// What goes its own way, past the relays.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Exclude {
    /// Targets.
    pub(crate) addresses: Vec<IpNet>,
    /// Names and all below them.
    pub(crate) domains: Vec<Domain>,
    /// Programs of these users.
    pub(crate) users: Vec<Users>,
    /// Programs in these control groups.
    pub(crate) cgroups: Vec<Cgroup>,
    /// What is bound to these interfaces, and networks that routes lead to by them.
    pub(crate) interfaces: Vec<Interface>,
}

/// What alone is taken. Of addresses, users, control groups and interfaces those that are given must agree.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Include {
    /// Targets; all if empty and no domains are given.
    pub(crate) addresses: Vec<IpNet>,
    /// Names and all below them, beside those targets.
    pub(crate) domains: Vec<Domain>,
    /// Programs of these users; everybody's if empty.
    pub(crate) users: Vec<Users>,
    /// Programs in these control groups; all if empty.
    pub(crate) cgroups: Vec<Cgroup>,
    /// What would leave by these interfaces; by any if empty.
    pub(crate) interfaces: Vec<Interface>,
}

/// Which names go by the relays: all, or some.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domains {
    excluded: Vec<Domain>,
    included: Vec<Domain>,
    /// Only those that are included.
    others_go_past: bool,
}

/// A range of user ids: `1000` or `"1000-1999"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Users {
    /// The first.
    pub(crate) first: u32,
    /// The last.
    pub(crate) last: u32,
}

/// A control group (v2), by its path below the root of the hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cgroup(String);

/// The name of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface(String);

/// A name and all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain(HostName);

impl Domains {
    /// What the file says. A path of its own that a domain has is a way to include it.
    pub(crate) fn of(config: &Config) -> Self {
        let routed = config.route.iter().flat_map(|route| &route.domains);
        let include = &config.takeover.include.domains;
        Self {
            excluded: config.takeover.exclude.domains.clone(),
            included: include.iter().chain(routed).cloned().collect(),
            others_go_past: !include.is_empty(),
        }
    }

    /// Whether every name goes by the relays.
    pub(crate) fn takes_all(&self) -> bool {
        self.excluded.is_empty() && !self.others_go_past
    }

    /// Names that must not be taken for others: their flows have a way of their own.
    pub(crate) fn included(&self) -> Vec<HostName> {
        self.included.iter().map(|it| it.0.clone()).collect()
    }

    /// The only names that go by the relays; `None` where all do that are not excluded.
    pub(crate) fn only(&self) -> Option<Vec<HostName>> {
        self.others_go_past.then(|| self.included())
    }

    /// Whether `name` goes past the relays: the longest domain decides that covers it. Names of onion services mean nothing to any network
    /// (RFC 7686 §2).
    pub(crate) fn goes_past(&self, name: &str) -> bool {
        let name = &name.trim_end_matches('.').to_ascii_lowercase();
        match (longest(&self.excluded, name), longest(&self.included, name)) {
            _ if is_onion_name(name) => false,
            (excluded, Some(included)) => excluded > Some(included),
            (Some(_), None) => true,
            (None, None) => self.others_go_past,
        }
    }
}

/// The length of the longest of `domains` that covers `name`.
pub(crate) fn longest(domains: &[Domain], name: &str) -> Option<usize> {
    let covers = domains.iter().filter(|domain| domain.covers(name));
    covers.map(|domain| domain.0.as_str().len()).max()
}

impl Cgroup {
    /// Its path, without a slash at either end.
    pub(crate) fn path(&self) -> &str {
        &self.0
    }

    /// How deep it lies; the groups below the root lie at 1.
    pub(crate) fn level(&self) -> usize {
        self.0.split('/').count()
    }
}

impl Interface {
    /// The name.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }
}

impl Domain {
    /// Its name.
    pub(crate) fn name(&self) -> &HostName {
        &self.0
    }

    /// Whether `name` is this one or below it.
    pub(crate) fn covers(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let rest = name.strip_suffix(self.0.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl FromStr for Users {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse().ok();
        let ends = number(first).zip(number(last));
        ends.filter(|(first, last)| first <= last)
            .map(|(first, last)| Self { first, last })
            .ok_or("expected a user id such as 1000, or a range such as \"1000-1999\"")
    }
}

impl FromStr for Cgroup {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = text.trim_matches('/');
        // It becomes part of a rule's text.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:\\/".contains(c);
        let is_path = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if is_path && path.len() <= 255 && path.chars().all(is_plain) {
            Ok(Self(path.to_owned()))
        } else {
            Err("expected a control group's path below the root, such as \"user.slice/vpn.slice\"")
        }
    }
}

impl FromStr for Interface {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // It becomes part of a rule's text, where a star would stand for others.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@+".contains(c);
        if (1..=15).contains(&text.len()) && text.chars().all(is_plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err("expected the name of an interface, such as \"wg0\"")
        }
    }
}

impl FromStr for Domain {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.trim_start_matches("*.").trim_matches('.');
        HostName::new(&plain.to_ascii_lowercase())
            .map(Self)
            .map_err(|_| "expected a domain such as \"intranet.example\"")
    }
}

impl<'de> Deserialize<'de> for Users {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Either;
        impl de::Visitor<'_> for Either {
            type Value = Users;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a user id such as 1000, or a range such as \"1000-1999\"")
            }

            fn visit_i64<E: de::Error>(self, id: i64) -> Result<Users, E> {
                self.visit_str(&id.to_string())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Users, E> {
                text.parse().map_err(E::custom)
            }
        }
        input.deserialize_any(Either)
    }
}

macro_rules! parsed {
    ($($kind:ty),*) => {$(
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                String::deserialize(input)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}
parsed!(Cgroup, Domain, Interface);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Takeover, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn users_are_one_id_or_a_range() {
        let exclude = "exclude = { users = [0, \"1000-1999\"] }";
        let users = read(exclude).expect("right").exclude.users;
        let range = Users {
            first: 1000,
            last: 1999,
        };
        assert_eq!(users, [Users { first: 0, last: 0 }, range]);
        for wrong in ["[-1]", "[\"9-1\"]", "[\"root\"]", "[4294967296]"] {
            assert!(
                read(&format!("exclude.users = {wrong}")).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_user_namespace_has_those_users_that_its_map_names() {
        for (map, has) in [
            ("         0          0 4294967295\n", true),
            ("0 100000 65536\n", false),
            ("0 1000 1\n1900000000 5 1\n", true),
            ("1899999999 5 1\n", false),
            ("0 0\n", false),
            ("", false),
        ] {
            assert_eq!(has_user(map, UNSHARED), has, "{map}");
        }
    }

    #[test]
    fn a_control_group_cannot_end_the_rule_that_names_it() {
        let group: Cgroup = "/user.slice/a@1.service/".parse().expect("a path");
        assert_eq!((group.path(), group.level()), ("user.slice/a@1.service", 2));
        for wrong in ["", "/", "a//b", "../a", "a\" accept #", "a b", "a\nb"] {
            assert!(wrong.parse::<Cgroup>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_interface_is_one_interface() {
        let named = "wlan0.7".parse::<Interface>().expect("a name");
        assert_eq!(named.name(), "wlan0.7");
        for wrong in ["", "wg*", "a\" accept #", "a b", "sixteen-letters-"] {
            assert!(wrong.parse::<Interface>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_longest_domain_says_which_way_a_name_goes() {
        let past = |text: &str| {
            let domains = Domains::of(&toml::from_str(text).expect("right"));
            move |name: &str| domains.goes_past(name)
        };
        let excluded = past("takeover.exclude.domains = [\"corp.example\"]");
        assert!(excluded("a.corp.example") && !excluded("example"));
        let included = past("takeover.include.domains = [\"corp.example\"]");
        assert!(!included("A.Corp.Example.") && included("example") && included("notcorp.example"));
        let both = "[takeover]\nexclude.domains = [\"corp.example\", \"b.a.corp.example\"]\ninclude.domains = [\"a.corp.example\"]";
        let both = past(both);
        assert!(!both("a.corp.example") && !both("c.a.corp.example"));
        assert!(both("b.a.corp.example") && both("corp.example") && both("example"));
        let routed = past(
            "takeover.exclude.domains = [\"corp.example\"]\n[[route]]\ndomains = [\"a.corp.example\"]",
        );
        assert!(!routed("a.corp.example") && routed("corp.example") && !routed("example"));
        let routed = past(
            "takeover.include.domains = [\"corp.example\"]\n[[route]]\ndomains = [\"b.example\"]",
        );
        assert!(!routed("corp.example") && !routed("a.b.example") && routed("example"));
        for text in [
            "exclude.domains = [\"onion\"]",
            "include.domains = [\"example\"]",
        ] {
            for name in ["abc.onion", "ABC.Onion."] {
                let past = past(&format!("takeover.{text}"));
                assert!(!past(name), "no network knows it");
            }
        }
    }

    #[test]
    fn a_domain_covers_itself_and_what_is_below_it() {
        let domain: Domain = "*.Corp.Example.".parse().expect("a domain");
        assert!(domain.covers("corp.example") && domain.covers("A.corp.example."));
        assert!(!domain.covers("notcorp.example") && !domain.covers("example"));
    }
}
