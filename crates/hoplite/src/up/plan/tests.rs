//! What a plan says. What comes of it on a machine is judged in [`super::taken_tests`].

use super::*;

fn wanted(block: bool) -> Wanted {
    let addresses = ["198.18.0.1", "fd00::1"];
    let resolvers = ["198.18.0.2", "fd00::2"];
    let parse = |text: &str| text.parse().expect("an address");
    Wanted {
        name: "hoplite0".into(),
        mtu: 1500,
        addresses: addresses.map(parse).to_vec(),
        resolvers: resolvers.map(parse).to_vec(),
        pools: vec!["198.18.0.0/15".parse().expect("a network")],
        block,
        no_firewall: false,
        dns: true,
        lan: false,
        behind: Vec::new(),
        past_addresses: Vec::new(),
        past_users: Vec::new(),
        past_cgroups: Vec::new(),
        pinger: None,
        past_interfaces: Vec::new(),
        only_cgroups: Vec::new(),
        only_interfaces: Vec::new(),
        only_addresses: Vec::new(),
        only_users: Vec::new(),
        only_domains: Vec::new(),
    }
}

fn facts(nft: bool) -> Facts {
    Facts {
        nft: if nft { Nft::Works } else { Nft::Missing },
        reverse_path: true,
        ..Facts::default()
    }
}

fn rules_of(plan: &Plan) -> Vec<Rule> {
    let rules = plan.steps.iter().find_map(|step| match step {
        Step::Rules(rules) => Some(rules.clone()),
        _ => None,
    });
    rules.expect("there are rules")
}

#[test]
fn our_own_sockets_and_what_is_excluded_come_before_what_is_taken() {
    let mut wanted = wanted(true);
    wanted.lan = true;
    wanted.past_users = vec![Users { first: 7, last: 9 }];
    wanted.past_addresses = vec!["10.0.0.0/8".parse().expect("a network")];
    let rules = rules_of(&plan(&wanted, &facts(true)));
    let v4: Vec<_> = rules
        .iter()
        .filter(|rule| rule.family == Family::V4)
        .collect();
    assert!(v4.is_sorted_by_key(|rule| rule.priority));
    assert_eq!(v4.first().and_then(|rule| rule.mark), Some(MARK));
    let (behind, ours) = v4.split_last().expect("some");
    let (last, before) = ours.split_last().expect("some");
    let pools = |rule: &&&Rule| rule.to == wanted.pools.first().copied();
    assert!(
        before
            .iter()
            .filter(|rule| !pools(rule))
            .all(
                |rule| matches!(rule.action, Action::Table(MAIN) | Action::Goto(_))
                    || rule.mark == Some(MARK)
            )
    );
    assert_eq!(behind.action, Action::Nop);
    let skips = |rule: &&&Rule| rule.action == Action::Goto(behind.priority);
    assert_eq!(
        v4.iter().filter(skips).count(),
        2,
        "what is excluded is others' to route"
    );
    let ends = v4.get(1).map(|rule| (rule.mark, rule.action));
    assert_eq!(
        ends,
        Some((Some(MARK), Action::Unreachable)),
        "never through ourselves"
    );
    let pool = v4.iter().position(|rule| pools(&rule));
    let users = v4.iter().position(|rule| rule.users.is_some());
    assert!(pool < users, "temporary addresses are ours, whoever asks");
    assert!(last.action == Action::Table(TABLE) && last.users.is_none() && last.to.is_none());
    let v6: Vec<_> = rules
        .iter()
        .filter(|rule| rule.family == Family::V6)
        .collect();
    // Pools and targets, and the private networks that IPv6 has fewer of.
    assert_eq!(v6.len(), v4.len() - 2 - 2 + 1, "the networks are of IPv4");
    let end = v6
        .iter()
        .rev()
        .nth(1)
        .map(|rule| (rule.action, rule.users, rule.to));
    assert_eq!(
        end,
        Some((Action::Unreachable, None, None)),
        "nothing else comes behind"
    );
}

#[test]
fn only_what_is_included_is_taken() {
    let mut wanted = wanted(true);
    wanted.only_users = vec![Users { first: 7, last: 7 }, Users { first: 9, last: 9 }];
    wanted.only_addresses = vec!["192.0.2.0/24".parse().expect("a network")];
    let rules = rules_of(&plan(&wanted, &facts(true)));
    let taken = rules
        .iter()
        .filter(|rule| rule.action == Action::Table(TABLE) && rule.mark.is_none());
    let taken =
        taken.filter(|rule| rule.to != wanted.pools.first().copied() && rule.family == Family::V4);
    let taken: Vec<_> = taken.map(|rule| (rule.users.is_some(), rule.to)).collect();
    assert_eq!(
        taken,
        vec![(true, wanted.only_addresses.first().copied()); 2]
    );
}

#[test]
fn where_only_some_is_taken_the_others_keep_their_name_servers() {
    let mut wanted = wanted(true);
    wanted.only_users = vec![Users { first: 7, last: 7 }];
    let server = "192.0.2.53:53".parse().expect("an address");
    let facts = Facts {
        servers: vec![server],
        ..facts(true)
    };
    let plan = plan(&wanted, &facts);
    assert!(
        !plan
            .steps
            .iter()
            .any(|step| matches!(step, Step::Names(..)))
    );
    assert_eq!(plan.answered, [server.ip()]);
}

#[test]
fn what_is_behind_a_gateway_is_reached_by_its_own_routes_and_no_others() {
    let mut wanted = wanted(true);
    wanted.behind = vec!["192.168.7.0/24".parse().expect("a network")];
    let has_gateway = |rule: &Rule| rule.to == wanted.behind.first().copied();
    let told = plan(&wanted, &facts(true));
    let rules = rules_of(&told);
    let mut found = rules.iter().filter(|rule| has_gateway(rule));
    let rule = found.next().expect("one");
    assert_eq!(
        (rule.action, rule.suppress),
        (Action::Table(MAIN), Some(23))
    );
    assert_eq!(found.next(), None);
    let last = rules.iter().rfind(|rule| rule.family == Family::V4);
    assert!(last.is_some_and(|last| last.priority > rule.priority));
    let warned = |plan: &Plan| {
        plan.warnings
            .iter()
            .any(|it| it.contains("net.ipv4.ip_forward"))
    };
    assert!(warned(&told));
    let forwards = Facts {
        forwards: vec![Family::V4],
        ..facts(true)
    };
    assert!(!warned(&plan(&wanted, &forwards)));
}

#[test]
fn where_only_some_names_are_taken_all_programs_ask_us() {
    let config: Config = toml::from_str(
        "path = []\n[takeover.include]\ndomains = [\"corp.example\"]\naddresses = [\"192.0.2.0/24\"]",
    )
    .expect("a file");
    let wanted = Wanted::from_config(&config, true);
    let plan = plan(&wanted, &facts(true));
    assert_eq!(plan.way(), Some(Way::Replace));
    let names = plan.steps.iter().find_map(|step| match step {
        Step::Names(_, _, only) => Some(only.clone()),
        _ => None,
    });
    assert_eq!(names, Some(wanted.only_domains.clone()));
    let rules = rules_of(&plan);
    let taken = rules
        .iter()
        .filter(|rule| rule.action == Action::Table(TABLE));
    let mut taken: Vec<_> = taken.filter_map(|rule| rule.to).collect();
    taken.sort_unstable();
    taken.dedup();
    let mut expected = [
        &wanted.pools[..],
        &["192.0.2.0/24".parse().expect("a network")],
    ]
    .concat();
    expected.sort_unstable();
    assert_eq!(taken, expected, "and nothing else");
}

#[test]
fn without_ipv6_nothing_of_it_is_set_and_switched_off_it_is_blocked_all_the_same() {
    let with = |ipv6| {
        let facts = Facts {
            ipv6,
            ..facts(true)
        };
        plan(&wanted(true), &facts)
    };
    let missing = with(Ipv6::Missing);
    assert!(
        rules_of(&missing)
            .iter()
            .all(|rule| rule.family == Family::V4)
    );
    let off = with(Ipv6::Off);
    assert!(rules_of(&off).iter().any(|rule| rule.family == Family::V6));
    for plan in [missing, off] {
        let v4 = vec![IpAddr::from([198, 18, 0, 1])];
        assert!(plan.steps.contains(&Step::Addresses(v4)));
        assert!(plan.steps.contains(&Step::Routes(vec![Family::V4])));
    }
}

#[test]
fn servers_that_stay_in_a_read_only_file_are_answered_for() {
    let facts = Facts {
        resolving: Resolving::ReadOnly,
        servers: vec!["192.0.2.53:53".parse().expect("an address")],
        ..facts(true)
    };
    let plan = plan(&wanted(true), &facts);
    assert_eq!(plan.answered, [IpAddr::from([192, 0, 2, 53])]);
    assert!(plan.warnings.is_empty());
    let nobody = Facts {
        servers: Vec::new(),
        ..facts
    };
    assert_eq!(super::plan(&wanted(true), &nobody).warnings.len(), 1);
}

#[test]
fn without_nftables_it_is_refused_unless_routes_alone_may_block() {
    let mut wanted = wanted(true);
    let failing = Facts {
        nft: Nft::Fails("nft: Operation not supported".into()),
        ..facts(false)
    };
    assert_eq!(refusal(&wanted, &facts(true)), None);
    for facts in [facts(false), failing] {
        wanted.no_firewall = false;
        assert!(refusal(&wanted, &facts).is_some());
        wanted.no_firewall = true;
        assert_eq!(refusal(&wanted, &facts), None);
        let plan = plan(&wanted, &facts);
        assert!(plan.warnings[0].contains("routes alone block"));
        let filters = |step: &Step| matches!(step, Step::Firewall(..));
        assert!(!plan.steps.iter().any(filters));
    }
    wanted.block = false;
    wanted.no_firewall = false;
    assert_eq!(refusal(&wanted, &facts(false)), None, "nothing is blocked");
}

#[test]
fn the_table_that_drops_names_no_control_group() {
    let mut wanted = wanted(true);
    wanted.past_cgroups = ["absent.slice", "there.slice"]
        .map(|it| it.parse().expect("a group"))
        .to_vec();
    let mut facts = facts(true);
    let there = wanted.past_cgroups.last().expect("two").clone();
    facts.groups.insert(there, 7);
    let steps = block(&wanted, &facts).steps;
    let Some(Step::Firewall(table, held)) = steps.first() else {
        panic!("{steps:?}");
    };
    assert!(!table.contains("slice") && !held.contains("slice"));
    let Some(Step::Marks(text)) = steps.get(1) else {
        panic!("{steps:?}");
    };
    assert!(!text.contains("absent.slice"), "nft would refuse all of it");
    assert!(text.contains("\"there.slice\" meta mark set 0x686f6c comment \"7\""));
}

#[test]
fn what_marks_alone_tell_apart_is_marked_in_the_table_that_nobody_can_flush_and_its_group_is_made()
{
    let mut wanted = wanted(true);
    wanted.only_cgroups = vec!["vpn.slice".parse().expect("a group")];
    let plan = plan(&wanted, &facts(true));
    let [
        Step::Groups(groups),
        Step::Firewall(table, held),
        Step::Marks(marks),
        ..,
    ] = plan.steps.as_slice()
    else {
        panic!("{:?}", plan.steps);
    };
    assert_eq!(groups, &wanted.only_cgroups);
    let line = "socket cgroupv2 level 1 \"vpn.slice\" meta mark set 0x686f6e";
    assert!(held.contains(line) && marks.contains(line) && !table.contains("vpn.slice"));
    let rules = rules_of(&plan);
    let taken = rules.iter().filter(|rule| {
        rule.action == Action::Table(TABLE) && rule.to.is_none() && rule.family == Family::V4
    });
    let taken: Vec<_> = taken.map(|rule| rule.mark).collect();
    assert_eq!(
        taken,
        [Some(RETURNED), Some(TAKEN)],
        "the way back, and theirs"
    );
    assert_eq!(
        plan.way(),
        None,
        "nobody else is told what only we understand"
    );
    for wanted in [
        wanted.clone(),
        Wanted {
            block: false,
            ..wanted
        },
    ] {
        assert!(refusal(&wanted, &facts(true)).is_none());
        let refused = refusal(&wanted, &facts(false)).expect("nothing would be taken");
        assert!(refused.to_string().contains("takeover.include"));
    }
}

#[test]
fn an_excluded_interface_has_what_is_bound_to_it_and_the_networks_behind_it() {
    let mut wanted = wanted(true);
    let wg0: Interface = "wg0".parse().expect("a name");
    wanted.past_interfaces = vec![wg0.clone()];
    let facts = Facts {
        networks: vec!["10.9.0.0/16".parse().expect("a network")],
        ..facts(true)
    };
    let rules = rules_of(&plan(&wanted, &facts));
    let past: Vec<_> = rules
        .iter()
        .filter(|rule| matches!(rule.action, Action::Goto(_)))
        .map(|rule| (rule.family, rule.bound.clone(), rule.to))
        .collect();
    let bound = |family| (family, Some(wg0.clone()), None);
    let behind = (Family::V4, None, facts.networks.first().copied());
    assert_eq!(past, [bound(Family::V4), behind, bound(Family::V6)]);
}
