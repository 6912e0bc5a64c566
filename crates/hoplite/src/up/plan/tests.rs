//! Plans carried out on a model of a machine, where every step may fail and the process may be killed after any.

use std::mem::discriminant;

use super::{rules::MAIN, *};
use crate::{
    errors::Complaint,
    up::{
        numbers::{MARK, TABLE},
        taken::{Leave, Machine, Taken, clear},
    },
};

/// Where a program's packet would go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Past,
    Blocked,
    Through,
}

/// What stands on the machine, and what became of packets after each change.
#[derive(Clone, Debug, Default)]
struct Model {
    standing: Vec<Step>,
    fates: Vec<Fate>,
    /// Which application fails, having done its part.
    fails_at: Option<usize>,
    applied: usize,
}

impl Model {
    fn stands(&self, is: impl Fn(&Step) -> bool) -> bool {
        self.standing.iter().any(is)
    }

    fn fate(&self) -> Fate {
        let is_filtered = self.stands(|step| matches!(step, Step::Firewall(..)));
        let leads_in = self.stands(|step| matches!(step, Step::Routes(_)));
        let is_stopped = self.stands(|step| matches!(step, Step::Unreachable(_)));
        match self.stands(|step| matches!(step, Step::Rules(_))) {
            true if leads_in => Fate::Through,
            true if is_stopped => Fate::Blocked,
            _ if is_filtered => Fate::Blocked,
            _ => Fate::Past,
        }
    }

    fn remove(&mut self, step: &Step) {
        self.standing.retain(|other| match (step, other) {
            // Two ways in one place.
            (Step::Names(a, _), Step::Names(b, _)) => a != b,
            _ => discriminant(other) != discriminant(step),
        });
    }

    /// The process is gone, and with it what lives in it.
    fn killed(mut self) -> Self {
        self.standing.retain(Step::outlives);
        self.fails_at = None;
        self
    }
}

impl Machine for &mut Model {
    async fn apply(&mut self, step: &Step) -> Result<(), Complaint> {
        self.remove(step);
        self.standing.push(step.clone());
        let fate = self.fate();
        self.fates.push(fate);
        self.applied += 1;
        match self.fails_at == Some(self.applied - 1) {
            true => Err(Complaint::new("a", "b", "c")),
            false => Ok(()),
        }
    }

    async fn undo(&mut self, step: &Step) -> Result<(), Complaint> {
        self.remove(step);
        let fate = self.fate();
        self.fates.push(fate);
        Ok(())
    }
}

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
        past_addresses: Vec::new(),
        past_users: Vec::new(),
        past_cgroups: Vec::new(),
        only_addresses: Vec::new(),
        only_users: Vec::new(),
    }
}

fn facts(nft: bool) -> Facts {
    Facts {
        nft: if nft { Nft::Works } else { Nft::Missing },
        reverse_path: true,
        ..Facts::default()
    }
}

/// With and without nftables, and for each way of names.
fn machines() -> Vec<Facts> {
    let ways = [
        Resolving::Resolved,
        Resolving::File,
        Resolving::Mounted,
        Resolving::ReadOnly,
    ];
    let with = |resolving| {
        [true, false].map(|nft| Facts {
            resolving,
            ..facts(nft)
        })
    };
    ways.into_iter().flat_map(with).collect()
}

async fn taken(model: &mut Model, plan: &Plan) {
    Taken::take(model, plan, false).await.expect("taken");
}

#[tokio::test]
async fn once_the_block_stands_nothing_goes_past_until_it_is_given_back() {
    for facts in machines() {
        let plan = plan(&wanted(true), &facts);
        let mut model = Model::default();
        let mut taken = Taken::take(&mut model, &plan, false).await.expect("taken");
        assert!(taken.give_back(Leave::Nothing).await.is_empty());
        let first = model.fates.iter().position(|fate| *fate != Fate::Past);
        let last = model.fates.iter().rposition(|fate| *fate != Fate::Past);
        let (first, last) = first.zip(last).expect("something was taken");
        assert!(
            !model.fates[first..=last].contains(&Fate::Past),
            "{facts:?}"
        );
        assert!(model.fates.contains(&Fate::Through));
        assert_eq!(
            first,
            if facts.nft == Nft::Works { 0 } else { 1 },
            "{facts:?}"
        );
        assert!(model.standing.is_empty(), "{:?}", model.standing);
    }
}

#[tokio::test]
async fn whichever_step_fails_the_machine_is_as_it_was() {
    for facts in machines() {
        let plan = plan(&wanted(true), &facts);
        for step in 0..plan.steps.len() {
            let mut model = Model {
                fails_at: Some(step),
                ..Model::default()
            };
            Taken::take(&mut model, &plan, false)
                .await
                .expect_err("fails");
            assert!(model.standing.is_empty(), "{:?}", plan.steps[step]);
        }
    }
}

#[tokio::test]
async fn what_was_blocked_before_stays_blocked_when_a_step_fails() {
    for facts in machines() {
        let plan = plan(&wanted(true), &facts);
        for step in 0..plan.steps.len() {
            let mut left = Model::default();
            taken(&mut left, &block(&wanted(true), &facts)).await;
            let mut model = Model {
                fails_at: Some(step),
                standing: left.standing,
                ..Model::default()
            };
            Taken::take(&mut model, &plan, true)
                .await
                .expect_err("fails");
            assert!(!model.fates.contains(&Fate::Past), "{:?}", plan.steps[step]);
            assert_eq!(model.fate(), Fate::Blocked);
        }
    }
}

#[tokio::test]
async fn what_a_killed_process_leaves_blocks_and_down_removes_it() {
    for facts in machines() {
        let mut model = Model::default();
        taken(&mut model, &plan(&wanted(true), &facts)).await;
        let mut model = model.killed();
        assert_eq!(model.fate(), Fate::Blocked, "{facts:?}");
        assert!(clear(&mut model, remains()).await.is_empty());
        assert!(model.standing.is_empty(), "{:?}", model.standing);
    }
}

#[tokio::test]
async fn killed_while_it_begins_it_leaves_nothing_half_open() {
    for facts in machines() {
        let plan = plan(&wanted(true), &facts);
        let mut fates = Vec::new();
        for steps in 0..=plan.steps.len() {
            let begun = Plan {
                steps: plan.steps[..steps].to_vec(),
                ..Plan::default()
            };
            let mut model = Model::default();
            taken(&mut model, &begun).await;
            fates.push(model.killed().fate());
        }
        fates.dedup();
        assert_eq!(fates, [Fate::Past, Fate::Blocked], "{facts:?}");
    }
}

#[tokio::test]
async fn after_a_signal_the_block_alone_is_left_if_that_was_asked_for() {
    for facts in machines() {
        let plan = plan(&wanted(true), &facts);
        let mut model = Model::default();
        let mut taken = Taken::take(&mut model, &plan, false).await.expect("taken");
        assert!(taken.give_back(Leave::Block).await.is_empty());
        assert_eq!(model.fate(), Fate::Blocked);
        assert!(model.standing.iter().all(Step::blocks));
    }
}

#[tokio::test]
async fn without_a_block_a_killed_process_leaves_the_old_way_open() {
    let plan = plan(&wanted(false), &facts(true));
    let mut model = Model::default();
    taken(&mut model, &plan).await;
    assert_eq!(model.fate(), Fate::Through);
    assert!(!model.fates.contains(&Fate::Blocked));
    assert_eq!(model.killed().fate(), Fate::Past);
}

#[tokio::test]
async fn an_interface_that_is_gone_is_made_again_behind_the_block() {
    let plan = plan(&wanted(true), &facts(true));
    let mut model = Model::default();
    taken(&mut model, &plan).await;
    model.standing.retain(Step::outlives);
    model.fates.clear();
    let mut again = Taken::take(&mut model, &plan, true).await.expect("taken");
    again.renew(true).await.expect("renewed");
    drop(again);
    assert!(!model.fates.contains(&Fate::Past));
    assert_eq!(model.fate(), Fate::Through);
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
    let (last, before) = v4.split_last().expect("some");
    let pools = |rule: &&&Rule| rule.to == wanted.pools.first().copied();
    assert!(
        before
            .iter()
            .filter(|rule| !pools(rule))
            .all(|rule| rule.table == Some(MAIN) || rule.mark == Some(MARK))
    );
    let ends = v4.get(1).map(|rule| (rule.mark, rule.table));
    assert_eq!(ends, Some((Some(MARK), None)), "never through ourselves");
    let pool = v4.iter().position(|rule| pools(&rule));
    let users = v4.iter().position(|rule| rule.users.is_some());
    assert!(pool < users, "temporary addresses are ours, whoever asks");
    assert!(last.table == Some(TABLE) && last.users.is_none() && last.to.is_none());
    let v6: Vec<_> = rules
        .iter()
        .filter(|rule| rule.family == Family::V6)
        .collect();
    // Pools and targets, and the private networks that IPv6 has fewer of.
    assert_eq!(v6.len(), v4.len() - 2 - 2 + 1, "the networks are of IPv4");
    let end = v6.last().map(|rule| (rule.table, rule.users, rule.to));
    assert_eq!(end, Some((None, None, None)), "nothing comes behind");
}

#[test]
fn only_what_is_included_is_taken() {
    let mut wanted = wanted(true);
    wanted.only_users = vec![Users { first: 7, last: 7 }, Users { first: 9, last: 9 }];
    wanted.only_addresses = vec!["192.0.2.0/24".parse().expect("a network")];
    let rules = rules_of(&plan(&wanted, &facts(true)));
    let taken = rules.iter().filter(|rule| rule.table == Some(TABLE));
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

#[tokio::test]
async fn for_boot_whichever_step_fails_the_others_are_taken_and_stay() {
    let mut wanted = wanted(true);
    wanted.past_cgroups = vec!["absent.slice".parse().expect("a group")];
    let plan = block(&wanted, &facts(true));
    for step in 0..plan.steps.len() {
        let mut model = Model {
            fails_at: Some(step),
            ..Model::default()
        };
        let (_, complaints) = Taken::take_all_it_can(&mut model, &plan).await;
        assert_eq!(complaints.len(), 1);
        assert_eq!(model.applied, plan.steps.len());
        assert_eq!(model.fate(), Fate::Blocked);
    }
}

#[test]
fn the_table_that_drops_names_no_control_group() {
    let mut wanted = wanted(true);
    wanted.past_cgroups = vec!["absent.slice".parse().expect("a group")];
    let steps = block(&wanted, &facts(true)).steps;
    let Some(Step::Firewall(table, held)) = steps.first() else {
        panic!("{steps:?}");
    };
    assert!(!table.contains("absent") && !held.contains("absent"));
    assert!(matches!(steps.get(1), Some(Step::Groups(text)) if text.contains("absent.slice")));
}
