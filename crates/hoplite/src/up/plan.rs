//! What is done to the machine so that everything goes through the relays, step by step, each with what it leaves behind.
//! Pure: from what is wanted and what the machine has to a list. [`Taken`] carries it out, and gives it back; [`super::driver`] knows how each step is done.
//!
//! The order is what makes it tight. What blocks comes first and goes last; at no time between does a packet find another way out.

use std::{
    collections::HashMap,
    mem::discriminant,
    net::{IpAddr, SocketAddr},
};

use hoplite_wire::HostName;
use ipnet::IpNet;

use super::nftables::{self, local_network};
use crate::{
    config::client::{
        Config,
        takeover::{Cgroup, Dns, Domains, Interface, Users},
    },
    say::Complaint,
};

#[cfg(test)]
mod taken_tests;
#[cfg(test)]
mod tests;

/// The main table (rtnetlink(7)).
pub(crate) const MAIN: u32 = 254;

/// What shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The interface.
    pub(crate) name: String,
    /// Its MTU.
    pub(crate) mtu: u16,
    /// Its addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// Who answers for names behind it.
    pub(crate) resolvers: Vec<IpAddr>,
    /// Addresses that stand for names: nobody has them but us.
    pub(crate) pools: Vec<IpNet>,
    /// Whether traffic is blocked while we are not there.
    pub(crate) block: bool,
    /// Whether routes alone may block.
    pub(crate) no_firewall: bool,
    /// Whether names are taken over.
    pub(crate) dns: bool,
    /// Whether the local network is reached directly.
    pub(crate) lan: bool,
    /// Networks behind this machine whose traffic is taken; what has routes there is reached directly.
    pub(crate) behind: Vec<IpNet>,
    /// Targets that are reached directly.
    pub(crate) past_addresses: Vec<IpNet>,
    /// Users whose programs go directly.
    pub(crate) past_users: Vec<Users>,
    /// Control groups whose programs go directly.
    pub(crate) past_cgroups: Vec<Cgroup>,
    /// Whose echoes to names that go directly have our mark: the worker's; `None` if no name does.
    pub(crate) pinger: Option<u32>,
    /// Interfaces by which things go directly.
    pub(crate) past_interfaces: Vec<Interface>,
    /// The only targets that are taken, if not empty.
    pub(crate) only_addresses: Vec<IpNet>,
    /// The only users whose programs are taken, if not empty.
    pub(crate) only_users: Vec<Users>,
    /// The only control groups whose programs are taken, if not empty.
    pub(crate) only_cgroups: Vec<Cgroup>,
    /// The only interfaces by which what would leave is taken, if not empty.
    pub(crate) only_interfaces: Vec<Interface>,
    /// The only names that are taken, if not empty: what stands for them is among the targets.
    pub(crate) only_domains: Vec<HostName>,
}

/// What the machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// What of IPv6.
    pub(crate) ipv6: Ipv6,
    /// Whether there is an `nft` that works.
    pub(crate) nft: Nft,
    /// Whether some interface checks where packets come from.
    pub(crate) reverse_path: bool,
    /// How programs find out who resolves names.
    pub(crate) resolving: Resolving,
    /// Whom the system asks for names, our own addresses left out.
    pub(crate) servers: Vec<SocketAddr>,
    /// The families in which it forwards packets of others.
    pub(crate) forwards: Vec<Family>,
    /// Whether an earlier one left its block, be it a part of it.
    pub(crate) blocked: bool,
    /// Whether the system already asks us for names: an earlier one left that, perhaps before a reboot.
    pub(crate) asks_us: bool,
    /// Which of the control groups that matter exist, with the kernel's number: one that is made anew is another.
    pub(crate) groups: HashMap<Cgroup, u64>,
    /// The networks that routes lead to by interfaces that are excluded.
    pub(crate) networks: Vec<IpNet>,
}

/// Whether there is an `nft` that works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Nft {
    /// It does.
    Works,
    /// It is not installed.
    #[default]
    Missing,
    /// It is, and said this.
    Fails(String),
}

/// What of IPv6 there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ipv6 {
    /// It works.
    #[default]
    On,
    /// It is switched off, and may be switched on any time.
    Off,
    /// The kernel has none.
    Missing,
}

/// How programs find out who resolves names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Resolving {
    /// systemd-resolved runs and stands in resolv.conf.
    Resolved,
    /// resolv.conf can be replaced, be it a file or a link.
    #[default]
    File,
    /// It can be written, but not replaced: something is mounted on it.
    Mounted,
    /// It cannot be changed.
    ReadOnly,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// One change to the machine. Doing it twice is doing it once; undoing what is not there is nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The table of nftables with this text: what has neither our mark nor our interface is dropped. And its copy, for a process that stays.
    Firewall(String, String),
    /// These control groups exist: what is taken of theirs is told apart from when they begin.
    Groups(Vec<Cgroup>),
    /// The table of nftables by this text, or none: packets of control groups, and those that would leave by some interface, get marks.
    Marks(String),
    /// Routes in our table that say "unreachable" when no better one is there.
    Unreachable(Vec<Family>),
    /// Exactly these routing rules.
    Rules(Vec<Rule>),
    /// The kernel takes marks into account where it checks the way back.
    ReversePath,
    /// The interface with its MTU.
    Device(String, u16),
    /// Its addresses; then it is up.
    Addresses(Vec<IpAddr>),
    /// The routes of our table that lead into it.
    Routes(Vec<Family>),
    /// The way names are taken over, who answers, and the only names that are taken, if not all.
    Names(Way, Vec<IpAddr>, Vec<HostName>),
}

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
    /// The interface that its socket is bound to.
    pub(crate) bound: Option<Interface>,
    /// It is DHCP's.
    pub(crate) dhcp: bool,
    /// Routes of the table to prefixes of this length or shorter do not count.
    pub(crate) suppress: Option<u32>,
    /// What comes of it.
    pub(crate) action: Action,
}

/// What comes of a packet that a routing rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The routes of this table, if they have one for it.
    Table(u32),
    /// The end of its way.
    Unreachable,
    /// The rules from this priority on.
    Goto(u32),
    /// Nothing: there others go on.
    Nop,
}

/// How names are taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// systemd-resolved is told to ask us, by our interface.
    Resolved,
    /// resolv.conf is replaced.
    Replace,
    /// resolv.conf is overwritten.
    Overwrite,
}

/// The steps, in order, and what could not be had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// In the order in which they are taken.
    pub(crate) steps: Vec<Step>,
    /// What the user should know.
    pub(crate) warnings: Vec<String>,
    /// Name servers that stay in resolv.conf, which we answer for.
    pub(crate) answered: Vec<IpAddr>,
}

impl Wanted {
    /// What the file asks for.
    pub(crate) fn from_config(config: &Config, block: bool) -> Self {
        let (device, takeover) = (&config.device, &config.takeover);
        let (exclude, include) = (&takeover.exclude, &takeover.include);
        let pools = config.dns.pools();
        let pools = vec![pools.ipv4.into(), pools.ipv6.into()];
        let domains = Domains::of(config);
        let only_domains = domains.only().unwrap_or_default();
        let mut only_addresses = include.addresses.clone();
        if !only_domains.is_empty() {
            only_addresses.extend(&pools);
        }
        Self {
            name: device.name.clone(),
            mtu: device.mtu,
            addresses: device.addresses.clone(),
            resolvers: config.dns.resolvers.clone(),
            pools,
            block,
            no_firewall: false,
            dns: takeover.dns == Dns::Auto,
            lan: takeover.lan,
            behind: takeover.gateway.clone(),
            past_addresses: exclude.addresses.clone(),
            past_users: exclude.users.clone(),
            past_cgroups: exclude.cgroups.clone(),
            pinger: (!domains.takes_all()).then(|| takeover.user()),
            past_interfaces: exclude.interfaces.clone(),
            only_addresses,
            only_users: include.users.clone(),
            only_cgroups: include.cgroups.clone(),
            only_interfaces: include.interfaces.clone(),
            only_domains,
        }
    }

    /// Whether marks tell what is taken: without them nothing is.
    pub(crate) fn only_marked(&self) -> bool {
        !self.only_cgroups.is_empty() || !self.only_interfaces.is_empty()
    }

    /// Whether what is taken depends on whose it is, or by which interface it would leave, and not on its target alone.
    pub(super) fn only_of_some(&self) -> bool {
        !self.only_users.is_empty() || self.only_marked()
    }

    /// The control groups that matter.
    pub(crate) fn cgroups(&self) -> impl Iterator<Item = &Cgroup> {
        self.past_cgroups.iter().chain(&self.only_cgroups)
    }
}

impl Plan {
    /// How names are taken over, if they are.
    pub(crate) fn way(&self) -> Option<Way> {
        self.steps.iter().find_map(|step| match step {
            Step::Names(way, ..) => Some(*way),
            _ => None,
        })
    }

    /// What is in the copy of the table that drops; empty without one.
    pub(crate) fn copy(&self) -> String {
        let copy = self.steps.iter().find_map(|step| match step {
            Step::Firewall(_, copy) => Some(copy.clone()),
            _ => None,
        });
        copy.unwrap_or_default()
    }

    /// How names are taken over, in a word for messages: also `off`, or `answered` where questions to the networks' servers are.
    pub(crate) fn names(&self) -> &'static str {
        match self.way() {
            Some(Way::Resolved) => "systemd-resolved",
            Some(Way::Replace | Way::Overwrite) => "resolv.conf",
            None if self.answered.is_empty() => "off",
            None => "answered",
        }
    }
}

impl Step {
    /// Whether it is part of what blocks.
    pub(crate) fn blocks(&self) -> bool {
        matches!(
            self,
            Self::Firewall(..)
                | Self::Groups(_)
                | Self::Marks(_)
                | Self::Unreachable(_)
                | Self::Rules(_)
        )
    }

    /// What it does, for messages.
    pub(crate) fn doing(&self) -> &'static str {
        match self {
            Self::Firewall(..) => "blocking by nftables",
            Self::Groups(_) => "making control groups",
            Self::Marks(_) => "telling control groups and interfaces apart by nftables",
            Self::Unreachable(_) => "setting the routes that block",
            Self::Rules(_) => "setting the routing rules",
            Self::ReversePath => "setting net.ipv4.conf.all.src_valid_mark",
            Self::Device(..) => "making the interface",
            Self::Addresses(_) => "giving the interface its addresses",
            Self::Routes(_) => "setting the routes into the interface",
            Self::Names(Way::Resolved, ..) => "telling systemd-resolved who resolves names",
            Self::Names(..) => "changing /etc/resolv.conf",
        }
    }
}

impl Facts {
    /// Those of `addresses` that programs of this machine can use.
    pub(crate) fn usable(&self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let used = self.ipv6.used();
        let is_used = |address: &&IpAddr| used.contains(&Family::of(address));
        addresses.iter().filter(is_used).copied().collect()
    }
}

impl Ipv6 {
    /// The families in which others may send.
    pub(crate) fn seen(self) -> Vec<Family> {
        match self {
            Self::Missing => vec![Family::V4],
            Self::On | Self::Off => vec![Family::V4, Family::V6],
        }
    }

    /// The families that programs can use.
    fn used(self) -> Vec<Family> {
        match self {
            Self::On => vec![Family::V4, Family::V6],
            Self::Off | Self::Missing => vec![Family::V4],
        }
    }
}

/// The whole takeover.
pub(crate) fn plan(wanted: &Wanted, facts: &Facts) -> Plan {
    let mut plan = block(wanted, facts);
    let used = facts.ipv6.used();
    let device = [
        Step::Device(wanted.name.clone(), wanted.mtu),
        Step::Addresses(facts.usable(&wanted.addresses)),
        Step::Routes(used),
    ];
    if !wanted.block {
        // Nothing that catches before there is somewhere to go.
        plan.steps.splice(0..0, device);
    } else {
        plan.steps.extend(device);
    }
    if wanted.dns {
        names(&mut plan, wanted, facts);
    }
    plan
}

/// The part that stops everything, and stays.
pub(crate) fn block(wanted: &Wanted, facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let seen = facts.ipv6.seen();
    if !wanted.only_cgroups.is_empty() {
        plan.steps.push(Step::Groups(wanted.only_cgroups.clone()));
    }
    if facts.nft == Nft::Works {
        if wanted.block {
            let (table, held) = (
                nftables::table(wanted, facts),
                nftables::held(wanted, facts),
            );
            plan.steps.push(Step::Firewall(table, held));
        }
        // Also where nothing is marked: what an earlier one excluded is not any more.
        plan.steps.push(Step::Marks(nftables::marks(wanted, facts)));
    }
    if wanted.block {
        plan.steps.push(Step::Unreachable(seen.clone()));
    }
    let rules = seen
        .into_iter()
        .flat_map(|family| rules(wanted, facts, family));
    plan.steps.push(Step::Rules(rules.collect()));
    if facts.reverse_path {
        plan.steps.push(Step::ReversePath);
    }
    plan.warnings = warnings(wanted, facts);
    plan
}

/// In order: our own sockets by the main table, or not at all; what only we have by our table; what is excluded by the rules behind ours, others'
/// that come after us and the main table's; the rest by ours.
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
///
/// An excluded interface has what is bound to it, and what its routes lead to: those of all tables, but none to everything, so that a default
/// route by it excludes nothing but what is bound. What is taken by its mark was routed without it first, and had a way then.
fn rules(wanted: &Wanted, facts: &Facts, family: Family) -> Vec<Rule> {
    let acting = |offset, action| Rule {
        family,
        priority: PRIORITY + offset,
        mark: None,
        to: None,
        users: None,
        bound: None,
        dhcp: false,
        suppress: None,
        action,
    };
    let rule = |offset, table| acting(offset, Action::Table(table));
    let behind = Action::Goto(PRIORITY + LAST);
    let mut rules = vec![
        Rule {
            mark: Some(MARK),
            ..rule(0, MAIN)
        },
        Rule {
            mark: Some(MARK),
            ..acting(1, Action::Unreachable)
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
    if wanted.only_of_some() && facts.reverse_path {
        rules.push(Rule {
            mark: Some(RETURNED),
            ..rule(2, TABLE)
        });
    }
    let pools = wanted.pools.iter().filter(|to| family.has(to));
    rules.extend(pools.map(|to| Rule {
        to: Some(*to),
        ..rule(4, TABLE)
    }));
    rules.extend(wanted.past_users.iter().map(|users| Rule {
        users: Some(*users),
        ..acting(5, behind)
    }));
    rules.extend(wanted.past_interfaces.iter().map(|interface| Rule {
        bound: Some(interface.clone()),
        ..acting(5, behind)
    }));
    let past = wanted.past_addresses.iter().chain(&facts.networks);
    rules.extend(past.filter(|to| family.has(to)).map(|to| Rule {
        to: Some(*to),
        ..acting(6, behind)
    }));
    let local = local_network().filter(|_| wanted.lan);
    let local = local.chain(wanted.behind.iter().copied());
    rules.extend(local.filter(|to| family.has(to)).map(|to| Rule {
        to: Some(to),
        suppress: u32::from(to.prefix_len()).checked_sub(1),
        ..rule(7, MAIN)
    }));
    let mark = wanted.only_marked().then_some(TAKEN);
    rules.extend(taken(wanted, family).map(|(users, to)| Rule {
        mark,
        users,
        to,
        ..rule(8, TABLE)
    }));
    let ends = wanted.block && family == Family::V6;
    let ended = taken(wanted, family).filter(|_| ends);
    rules.extend(ended.map(|(users, to)| Rule {
        mark,
        users,
        to,
        ..acting(9, Action::Unreachable)
    }));
    let skips = rules.iter().any(|rule| rule.action == behind);
    rules.extend(skips.then(|| acting(LAST, Action::Nop)));
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

/// Why it must not be done: without nftables what binds to an interface goes round routes. That is for the user to accept, in so many words.
/// And what marks alone tell apart would all go past.
pub(crate) fn refusal(wanted: &Wanted, facts: &Facts) -> Option<Complaint> {
    let (why, remedy) = match &facts.nft {
        Nft::Works => return None,
        _ if wanted.only_marked() => (
            "takeover.include names control groups or interfaces, which nothing else tells apart",
            "install nft, see that `nft list ruleset` works, or leave them out",
        ),
        _ if !wanted.block || wanted.no_firewall => return None,
        Nft::Missing => (
            "there is no nftables, and a program that binds to an interface goes round routes",
            "install nft, or let routes alone block with --no-firewall",
        ),
        Nft::Fails(why) => (
            why.as_str(),
            "see whether `nft list ruleset` works, or let routes alone block with --no-firewall",
        ),
    };
    Some(Complaint::new("blocking by nftables", why, remedy))
}

fn warnings(wanted: &Wanted, facts: &Facts) -> Vec<String> {
    let mut warnings = Vec::new();
    if wanted.block && wanted.no_firewall && facts.nft != Nft::Works {
        warnings.push(
            "there is no firewall: routes alone block, and a program that binds to an interface goes round them; install nft".into(),
        );
    }
    let has_firewall = wanted.block && facts.nft == Nft::Works;
    if !wanted.past_cgroups.is_empty() && facts.nft != Nft::Works {
        warnings.push("control groups are told apart by nftables only: none is excluded".into());
    }
    let missing = |group: &&Cgroup| !facts.groups.contains_key(*group);
    for group in wanted.past_cgroups.iter().filter(missing) {
        warnings.push(format!(
            "takeover.exclude.cgroups: there is no control group {:?} yet: it is excluded as soon as it is made",
            group.path()
        ));
    }
    for (family, setting) in [
        (Family::V4, "net.ipv4.ip_forward"),
        (Family::V6, "net.ipv6.conf.all.forwarding"),
    ] {
        let is_behind = wanted.behind.iter().any(|network| family.has(network));
        if is_behind && !facts.forwards.contains(&family) {
            warnings.push(format!(
                "takeover.gateway: this machine forwards nothing of others: sysctl -w {setting}=1"
            ));
        }
    }
    let by_program = !wanted.past_users.is_empty() || !wanted.past_cgroups.is_empty();
    let can_ask =
        has_firewall && facts.resolving != Resolving::Resolved && !facts.servers.is_empty();
    if wanted.dns && by_program && !can_ask {
        warnings.push("programs of excluded users and control groups get names from us: what they reach by name goes through the relays all the same".into());
    }
    warnings
}

fn names(plan: &mut Plan, wanted: &Wanted, facts: &Facts) {
    // Whoever is not taken must not be told addresses that only we understand.
    let by_others = wanted.only_of_some() || !wanted.only_addresses.is_empty();
    let is_partial = by_others && wanted.only_domains.is_empty();
    let way = match facts.resolving {
        _ if is_partial => return answer(plan, facts),
        Resolving::Resolved => Way::Resolved,
        Resolving::File => Way::Replace,
        Resolving::Mounted => Way::Overwrite,
        Resolving::ReadOnly => return answer(plan, facts),
    };
    let resolvers = facts.usable(&wanted.resolvers);
    let only = wanted.only_domains.clone();
    plan.steps.push(Step::Names(way, resolvers, only));
}

/// What is not changed is answered: all packets to those servers that are taken come to us.
fn answer(plan: &mut Plan, facts: &Facts) {
    let servers = facts.servers.iter().map(SocketAddr::ip);
    let (local, remote): (Vec<_>, Vec<_>) = servers.partition(|server| server.is_loopback());
    if !local.is_empty() || remote.is_empty() {
        plan.warnings.push(
            "/etc/resolv.conf stays as it is, and names no server that we could stand in for: names are asked for past us, or not at all".into(),
        );
    }
    plan.answered = remote;
}

/// What any earlier plan may have left: the steps that outlive, to be undone.
pub(crate) fn remains() -> Vec<Step> {
    let both = vec![Family::V4, Family::V6];
    vec![
        Step::Firewall(String::new(), String::new()),
        Step::Groups(Vec::new()),
        Step::Marks(String::new()),
        Step::Unreachable(both),
        Step::Rules(Vec::new()),
        Step::ReversePath,
        Step::Names(Way::Replace, Vec::new(), Vec::new()),
        Step::Names(Way::Overwrite, Vec::new(), Vec::new()),
    ]
}

impl Family {
    /// Of an address.
    pub(crate) fn of(address: &IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    fn has(self, network: &IpNet) -> bool {
        Self::of(&network.addr()) == self
    }
}

/// What steps are done to. Both must be idempotent.
pub(crate) trait Machine {
    /// Takes a step.
    async fn apply(&mut self, step: &Step) -> Result<(), Complaint>;
    /// Undoes it; what is not there is undone already.
    async fn undo(&mut self, step: &Step) -> Result<(), Complaint>;
}

/// What has been taken of the machine, and how it is given back: all of it, or all but the block.
#[derive(Debug)]
pub(crate) struct Taken<M> {
    machine: M,
    done: Vec<Step>,
}

/// How much is left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Nothing.
    Nothing,
    /// What blocks.
    Block,
}

impl<M: Machine> Taken<M> {
    /// Takes every step of the plan. If one fails, the ones before are undone, but not the block if it stood `before`.
    pub(crate) async fn take(machine: M, plan: &Plan, before: bool) -> Result<Self, Complaint> {
        let done = Vec::with_capacity(plan.steps.len());
        let mut taken = Self { machine, done };
        for step in &plan.steps {
            // A step that fails may have done a part.
            taken.done.push(step.clone());
            if let Err(failure) = taken.machine.apply(step).await {
                let leave = if before { Leave::Block } else { Leave::Nothing };
                taken.give_back(leave).await;
                return Err(failure);
            }
        }
        Ok(taken)
    }

    /// Takes every step that can be taken, and keeps what it has; says what failed.
    pub(crate) async fn take_all_it_can(machine: M, plan: &Plan) -> (Self, Vec<Complaint>) {
        let done = plan.steps.clone();
        let mut taken = Self { machine, done };
        let complaints = taken.take_again(|_| true).await;
        (taken, complaints)
    }

    /// Takes those again of the steps taken; one that fails does not keep the others from it.
    async fn take_again(&mut self, which: impl Fn(&Step) -> bool) -> Vec<Complaint> {
        let mut complaints = Vec::new();
        for step in self.done.iter().filter(|step| which(step)) {
            complaints.extend(self.machine.apply(step).await.err());
        }
        complaints
    }

    /// Makes again what blocks, after somebody has undone it; says what failed.
    pub(crate) async fn block_again(&mut self) -> Vec<Complaint> {
        self.take_again(Step::blocks).await
    }

    /// Takes those of the steps that block anew which `plan` has otherwise; says what failed, and is as it was.
    pub(crate) async fn follow(&mut self, plan: &Plan) -> Vec<Complaint> {
        let mut complaints = Vec::new();
        for step in plan.steps.iter().filter(|step| step.blocks()) {
            let same = |done: &&mut Step| discriminant(*done) == discriminant(step);
            if let Some(done) = self.done.iter_mut().find(same)
                && done != step
            {
                match self.machine.apply(step).await {
                    Ok(()) => done.clone_from(step),
                    Err(complaint) => complaints.push(complaint),
                }
            }
        }
        complaints
    }

    /// Makes control groups again that somebody removed; says what failed.
    pub(crate) async fn groups_again(&mut self) -> Vec<Complaint> {
        self.take_again(|step| matches!(step, Step::Groups(_)))
            .await
    }

    /// Undoes what was taken, the last first; says what could not be undone.
    pub(crate) async fn give_back(&mut self, leave: Leave) -> Vec<Complaint> {
        let mut complaints = Vec::new();
        let mut left = Vec::new();
        while let Some(step) = self.done.pop() {
            if leave == Leave::Block && step.blocks() {
                left.push(step)
            } else {
                complaints.extend(self.machine.undo(&step).await.err())
            }
        }
        left.reverse();
        self.done = left;
        complaints
    }

    /// Takes the steps again that somebody may have undone behind our back; the interface itself only if it is `gone`.
    /// One that fails does not keep the others from it.
    pub(crate) async fn renew(&mut self, gone: bool) -> Result<(), Complaint> {
        let mut first = Ok(());
        for step in &self.done {
            let is_due = match step {
                Step::Device(..) | Step::Names(Way::Resolved, ..) => gone,
                Step::Names(..) => false,
                _ => true,
            };
            if is_due {
                first = first.and(self.machine.apply(step).await);
            }
        }
        first
    }

    /// Takes over the names again.
    pub(crate) async fn renew_names(&mut self) -> Result<(), Complaint> {
        for step in &self.done {
            if matches!(step, Step::Names(..)) {
                self.machine.apply(step).await?;
            }
        }
        Ok(())
    }

    /// The steps, in order.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.done
    }

    /// Leaves everything as it is.
    pub(crate) fn leave(self) -> M {
        self.machine
    }

    /// What it is done to.
    pub(crate) fn machine(&self) -> &M {
        &self.machine
    }
}

/// Undoes whatever anybody has left.
pub(crate) async fn clear(machine: impl Machine, remains: Vec<Step>) -> Vec<Complaint> {
    let done = remains;
    Taken { machine, done }.give_back(Leave::Nothing).await
}

/// The mark of our own sockets' packets, and of those of excluded control groups.
pub(crate) const MARK: u32 = 0x68_6f6c;

/// The mark of packets that come in for this machine, where the kernel checks the way back. Answers that inherit it are nobody's of ours.
pub(crate) const ARRIVED: u32 = 0x68_6f6d;

/// The mark of packets that alone are taken: of some control groups, or what would leave by some interfaces.
pub(crate) const TAKEN: u32 = 0x68_6f6e;

/// The mark of packets that come out of our interface, where the kernel checks the way back and only somebody's packets go into it.
pub(crate) const RETURNED: u32 = 0x68_6f6f;

/// Our routing table.
pub(crate) const TABLE: u32 = 0x686f;

/// The first priority of our rules; before the main table (32766). Where another program's come before that, ours stand before those.
pub(crate) const PRIORITY: u32 = 26_720;

/// How many priorities from the first on are ours.
pub(crate) const RULES: u32 = 16;

/// Behind all others of ours, as an offset: what is excluded goes on there.
const LAST: u32 = 10;

/// The protocol that our rules and routes carry: who made them. Unassigned in /etc/iproute2/rt_protos.
pub(crate) const PROTOCOL: u8 = 104;

/// The metric of routes into the interface.
pub(crate) const INTO: u32 = 1;

/// The metric of routes that block: worse than any other.
pub(crate) const BLOCKING: u32 = 0x7fff_ffff;

/// Our table of nftables, in the family `inet`.
pub(crate) const FIREWALL: &str = "hoplite";

/// The copy of it that lives with the process that is up.
pub(crate) const HELD: &str = "hoplite-held";

/// The copy that lives with the process that only blocks.
pub(crate) const KEPT: &str = "hoplite-kept";

/// The table that marks the packets of control groups, and those that would leave by some interface.
pub(crate) const MARKS: &str = "hoplite-marks";
