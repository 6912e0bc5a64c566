//! Scenarios as a whole: what a researcher writes, and what comes of it.

mod wrong;

use std::{fs, time::Duration};

use super::{library::SUBJECTS, *};
use crate::{
    experiments::{
        subject::{Ready, Run},
        trial::Analysis,
        workload::{Kind, Way},
    },
    topology::{Discipline, JitterShape, Link, Loss, NodeKind},
};

/// A chain of `hops` relays between client and server.
const CHAIN: &str = r#"
name = "chain"
repetitions = 3
[matrix]
hops = [0, 1, 3]
rate = ["10Mbit", "50Mbit"]
[[host]]
name = "client"
[[host]]
name = "relay{i}"
repeat = "{hops}"
[[host]]
name = "server"
[[link]]
name = "access"
ends = ["client", "{if(hops > 0, 'relay1', 'server')}"]
rate = "{rate}"
delay = "{if(hops > 0, 5, 25)}ms"
queue = { bdp = 1.5, rtt = "50ms" }
[[link]]
ends = ["relay{i}", "relay{i + 1}"]
repeat = "{max(hops - 1, 0)}"
delay = "5ms"
[[link]]
ends = ["relay{hops}", "server"]
when = "{hops > 0}"
delay = "{25 - 5 * hops}ms"
[[subject]]
use = "native"
[[subject]]
use = "native"
label = "other-{hops}"
when = "{hops > 0}"
[[workload]]
kind = "http"
version = 3
bytes = "2MB"
[[analysis]]
analysis = "cascade"
link = "access"
"#;

fn chain() -> Scenario {
    parse("chain.toml", CHAIN).expect("valid")
}

fn trial(scenario: &Scenario, wanted: impl Fn(&Key) -> bool) -> Trial {
    let key = scenario.keys().into_iter().find(wanted).expect("there");
    scenario
        .trial(&key, Path::new("/d"), Path::new("/s"))
        .expect("resolves")
}

fn of_case(scenario: &Scenario, hops: &str) -> Trial {
    trial(scenario, |key| {
        key.case["hops"] == hops && key.case["rate"] == "10Mbit"
    })
}

#[test]
fn every_case_meets_every_subject_that_applies_in_every_repetition() {
    let scenario = chain();
    let keys = scenario.keys();
    assert_eq!(keys.len(), 3 * (2 + 4 + 4));
    assert_eq!(scenario.runs(), 30);
    assert_eq!(scenario.labels(), ["native", "other-1", "other-3"]);
    let distinct: BTreeSet<String> = keys.iter().map(Key::id).collect();
    assert_eq!(distinct.len(), keys.len());
    assert!(keys.iter().all(|key| key.scenario == "chain"));
    let repetitions: Vec<u32> = keys.iter().map(|key| key.repetition).collect();
    assert!(
        repetitions.is_sorted(),
        "a repetition is over before the next begins"
    );
}

#[test]
fn each_repetition_has_an_order_of_its_own_that_the_seed_decides() {
    let mut scenario = chain();
    let keys = scenario.keys();
    assert_eq!(keys, chain().keys());
    let order = |keys: &[Key], repetition: u32| -> Vec<(BTreeMap<String, String>, String)> {
        let those = keys.iter().filter(|key| key.repetition == repetition);
        those
            .map(|key| (key.case.clone(), key.subject.clone()))
            .collect()
    };
    assert_ne!(order(&keys, 1), order(&keys, 2));
    scenario.seed = 2;
    assert_ne!(keys, scenario.keys());
}

#[test]
fn subjects_of_the_same_case_and_repetition_meet_the_same_losses() {
    let scenario = chain();
    let seed = |key: &Key| {
        scenario
            .trial(key, Path::new("/d"), Path::new("/s"))
            .expect("resolves")
            .seed
    };
    let key = scenario
        .keys()
        .into_iter()
        .find(|key| key.subject == "other-3")
        .expect("there");
    let native = Key {
        subject: "native".into(),
        ..key.clone()
    };
    let later = Key {
        repetition: key.repetition % 3 + 1,
        ..key.clone()
    };
    assert_eq!(seed(&key), seed(&native));
    assert_ne!(seed(&key), seed(&later));
}

#[test]
fn repeats_and_conditions_draw_the_network_of_each_case() {
    let names = |trial: &Trial| -> Vec<String> {
        trial
            .topology
            .links
            .iter()
            .map(|link| link.name.clone())
            .collect()
    };
    let scenario = chain();
    assert_eq!(names(&of_case(&scenario, "0")), ["access"]);
    assert_eq!(names(&of_case(&scenario, "1")), ["access", "relay1-server"]);
    let three = of_case(&scenario, "3");
    assert_eq!(
        names(&three),
        ["access", "relay1-relay2", "relay2-relay3", "relay3-server"]
    );
    assert_eq!(three.topology.nodes.len(), 5);
    let total: Duration = three
        .topology
        .links
        .iter()
        .map(|link| link.forward.delay)
        .sum();
    assert_eq!(total, Duration::from_millis(25));
    let access = &three.topology.links[0].forward;
    assert_eq!(
        (access.rate, access.queue),
        (Some(10_000_000), Some(93_750))
    );
}

#[test]
fn a_rotation_changes_from_repetition_to_repetition_and_makes_no_case() {
    let turning = |more: &str| {
        let text = CHAIN.replace(
            "[[host]]\nname = \"client\"",
            "[rotation]\nload = [{ name = \"day\", loss = 0.01 }, { name = \"night\", loss = 0 }]\n[[host]]\nname = \"client\"",
        );
        parse("s.toml", &text.replace("rate = \"{rate}\"", more))
    };
    let scenario = turning("rate = \"{rate}\"\nloss = \"{load.loss}\"").expect("valid");
    assert_eq!((scenario.runs(), scenario.turns()), (30, 2));
    for subject in ["native", "other-3"] {
        let loss = |repetition: u32| {
            let trial = trial(&scenario, |key| {
                key.subject == subject && key.repetition == repetition
            });
            trial.topology.links[0].forward.loss.clone()
        };
        let busy = Loss::Bernoulli { share: 0.01 };
        assert_eq!(
            [loss(1), loss(2), loss(3)],
            [busy.clone(), Loss::None, busy]
        );
    }
    let unused = turning("rate = \"{rate}\"")
        .expect_err("a slip")
        .to_string();
    assert!(
        unused.contains("nothing uses the parameter \"load\""),
        "{unused}"
    );
}

#[test]
fn what_an_analysis_needs_is_recorded_but_not_kept() {
    let scenario = chain();
    let trial = of_case(&scenario, "1");
    assert_eq!(
        trial.analyses,
        [Analysis::Cascade {
            link: "access".into()
        }]
    );
    assert_eq!(
        (trial.record.pcap, trial.record.qlog),
        (vec!["access".to_owned()], true)
    );
    assert!(scenario.keep.pcap.is_empty() && !scenario.keep.qlog);
}

#[test]
fn settings_that_machines_differ_in_are_pinned() {
    let trial = of_case(&chain(), "0");
    assert_eq!(trial.sysctls["net.ipv4.tcp_congestion_control"], "cubic");
    assert_eq!(trial.sysctls["net.ipv4.tcp_no_metrics_save"], "1");
    let other = CHAIN.replace("[[subject]]\nuse = \"native\"\n[[", "[sysctl]\n\"net.ipv4.tcp_ecn\" = 1\n\"net.ipv4.tcp_rmem\" = false\n\"net.ipv4.tcp_congestion_control\" = \"reno\"\n[[subject]]\nuse = \"native\"\n[[");
    let trial = of_case(&parse("s.toml", &other).expect("valid"), "0");
    assert_eq!(trial.sysctls["net.ipv4.tcp_ecn"], "1");
    assert_eq!(trial.sysctls["net.ipv4.tcp_congestion_control"], "reno");
    assert!(!trial.sysctls.contains_key("net.ipv4.tcp_rmem"));
}

#[test]
fn a_trial_says_where_its_files_go_and_when_it_has_failed() {
    let trial = of_case(&chain(), "0");
    assert_eq!((trial.directory, trial.shared), ("/d".into(), "/s".into()));
    assert_eq!(trial.timeout, Duration::from_secs(120));
    assert_eq!(trial.subject.label, "native");
}

#[test]
fn a_key_of_another_scenario_is_refused() {
    let scenario = chain();
    let mut key = scenario.keys().remove(0);
    key.case.insert("hops".into(), "7".into());
    let failure = scenario
        .trial(&key, Path::new("/d"), Path::new("/s"))
        .expect_err("unknown");
    assert!(failure.to_string().contains("has no such run"), "{failure}");
}

/// Two hosts and one link with these keys.
fn link(keys: &str) -> Link {
    let text = format!(
        "name = 'l'\n[[host]]\nname = 'client'\n[[host]]\nname = 'server'\n[[subject]]\nuse = 'native'\n\
         [[workload]]\nkind = 'download'\nbytes = 1\n[[link]]\nends = ['client', 'server']\n{keys}\n"
    );
    let scenario = parse("l.toml", &text).expect("valid");
    trial(&scenario, |_| true).topology.links.remove(0)
}

#[test]
fn a_link_that_says_nothing_is_perfect() {
    let link = link("");
    assert_eq!((link.name.as_str(), link.mtu), ("client-server", 1500));
    assert_eq!((link.forward, link.back), Default::default());
}

#[test]
fn each_direction_may_replace_what_holds_for_both() {
    let link = link(
        "rate = '50Mbit'\ndelay = '50ms'\nqueue = '1bdp'\nback = { rate = '10Mbit', delay = '65ms', loss = '1%' }",
    );
    assert_eq!(
        (link.forward.rate, link.back.rate),
        (Some(50_000_000), Some(10_000_000))
    );
    assert_eq!(
        (link.forward.queue, link.back.queue),
        (Some(718_750), Some(143_750))
    );
    assert_eq!(
        (link.forward.loss, link.back.loss),
        (Loss::None, Loss::Bernoulli { share: 0.01 })
    );
}

#[test]
fn a_queue_of_a_share_of_the_product_holds_at_least_a_packet() {
    assert_eq!(
        link("rate = '1Mbit'\ndelay = '1ms'\nqueue = '0.1bdp'")
            .forward
            .queue,
        Some(1500)
    );
    assert_eq!(link("queue = '64kB'").forward.queue, Some(64_000));
}

#[test]
fn impairments_are_read_in_every_notation() {
    let full = link(
        "jitter = { width = '2ms', shape = 'pareto', reorder = true }\nloss = { p = '1%', r = '30%' }\n\
         duplicate = 0.001\ncorrupt = '0.1%'\ncodel = { ecn = true }\nmtu = 1400",
    );
    let jitter = full.forward.jitter.expect("there");
    assert_eq!(
        (jitter.shape, jitter.width, jitter.reorder),
        (JitterShape::Pareto, Duration::from_millis(2), true)
    );
    assert_eq!(
        full.back.loss,
        Loss::GilbertElliott {
            p: 0.01,
            r: 0.3,
            good_loss: 0.0,
            bad_loss: 1.0
        }
    );
    assert_eq!(
        (full.forward.duplicate, full.forward.corrupt, full.mtu),
        (0.001, 0.001, 1400)
    );
    let codel = Discipline::CoDel {
        target: Duration::from_millis(5),
        interval: Duration::from_millis(100),
        ecn: true,
    };
    assert_eq!(full.forward.discipline, codel);
    assert_eq!(
        link("loss = { packets = [7, 3, 3] }").forward.loss,
        Loss::Packets {
            packets: vec![3, 7]
        }
    );
    assert_eq!(
        link("loss = '0%'\njitter = false\ncodel = false\nudp = true").forward,
        Default::default()
    );
    let firewall = link("udp = false\nback = { udp = true }");
    assert_eq!(
        (firewall.forward.blocks_udp, firewall.back.blocks_udp),
        (true, false)
    );
}

/// Three hosts around a router, and these workloads.
fn workloads(tables: &str) -> Vec<workload::Plan> {
    let text = format!(
        "name = 'w'\n[[host]]\nname = 'client'\n[[host]]\nname = 'client{{i}}'\nrepeat = 2\n[[host]]\nname = 'server'\n[[router]]\nname = 'core'\n\
         [[link]]\nends = ['client', 'core']\n[[link]]\nends = ['client{{i}}', 'core']\nrepeat = 2\n[[link]]\nends = ['core', 'server']\n\
         [[subject]]\nuse = 'native'\n{tables}\n"
    );
    let scenario = parse("w.toml", &text).expect("valid");
    trial(&scenario, |_| true).workloads
}

#[test]
fn a_workload_goes_from_client_to_server_unless_it_says_otherwise() {
    let plans = workloads(
        "[[workload]]\nkind = 'download'\nbytes = '1MB'\n[[workload]]\nname = 'up{i}'\nrepeat = 2\nkind = 'upload'\ntime = '5s'\nfrom = 'client{i}'\ngroup = 2\nat = '{i}s'\ndirect = true\nmay_fail = true",
    );
    assert_eq!(
        (
            plans[0].name.as_str(),
            plans[0].from.as_str(),
            plans[0].to.as_str()
        ),
        ("download", "client", "server")
    );
    assert_eq!(
        (plans[0].group.as_str(), plans[0].at),
        ("1", Duration::ZERO)
    );
    assert_eq!((plans[0].direct, plans[0].may_fail), (false, false));
    assert_eq!(
        (
            plans[2].name.as_str(),
            plans[2].from.as_str(),
            plans[2].group.as_str()
        ),
        ("up2", "client2", "2")
    );
    assert_eq!(
        (plans[2].at, plans[2].direct, plans[2].may_fail),
        (Duration::from_secs(2), true, true)
    );
}

#[test]
fn a_speed_test_has_several_servers_and_asks_the_first_where_it_is_seen() {
    let plans = workloads(
        "[[workload]]\nkind = 'upload'\ntime = '1s'\nto = ['server', 'client{2}']\n\
         [[workload]]\nkind = 'download'\nbytes = 1\nto = ['server']",
    );
    assert_eq!(plans[0].to, "server");
    assert_eq!(plans[0].among, ["server", "client2"]);
    assert_eq!((plans[1].to.as_str(), plans[1].among.len()), ("server", 0));
}

#[test]
fn every_kind_of_workload_can_be_written() {
    let plans = workloads(
        "[[workload]]\nkind = 'download'\ntime = '10s'\nconnections = 8\ncount = 2\npause = '1s'\n\
         [[workload]]\nkind = 'request'\n[[workload]]\nkind = 'udp-echo'\n[[workload]]\nkind = 'udp-rate'\nrate = '1Mbit'\ntime = '5s'\ndown = true\n\
         [[workload]]\nkind = 'http'\nversion = 2\nbytes = '50kB'\nparallel = 4\nfresh = true\n\
         [[workload]]\nkind = 'schedule'\nchoices = [{ recvsize = '50kB', weight = 12 }, { recvsize = '1MB', sendsize = 10, pause = '1s', weight = 4 }]",
    );
    let kinds: Vec<&Kind> = plans.iter().map(|plan| &plan.kind).collect();
    assert!(
        matches!(kinds[0], Kind::Download(bulk) if bulk.bytes == 0 && bulk.time == Duration::from_secs(10) && bulk.connections == 8 && bulk.count == 2)
    );
    assert!(matches!(
        kinds[1],
        Kind::Request {
            request: 100,
            response: 1000,
            count: 10,
            ..
        }
    ));
    assert!(matches!(
        kinds[2],
        Kind::UdpEcho {
            size: 64,
            count: 100,
            ..
        }
    ));
    assert!(matches!(
        kinds[3],
        Kind::UdpRate {
            rate: 1_000_000,
            down: true,
            size: 1200,
            ..
        }
    ));
    assert!(matches!(
        kinds[4],
        Kind::Http {
            version: 2,
            bytes: 50_000,
            parallel: 4,
            fresh: true,
            count: 1,
            upload: false,
            ..
        }
    ));
    assert!(
        matches!(kinds[5], Kind::Schedule { choices, count: 10 } if choices[1].weight == 4.0 && choices[0].pause.is_zero())
    );
}

#[test]
fn routers_are_drawn_too() {
    let text = CHAIN.replace("[[host]]\nname = \"server\"", "[[router]]\nname = \"core\"\n[[link]]\nends = [\"core\", \"server\"]\n[[host]]\nname = \"server\"");
    let trial = of_case(&parse("r.toml", &text).expect("valid"), "0");
    assert_eq!(
        trial
            .topology
            .nodes
            .iter()
            .filter(|node| node.kind == NodeKind::Router)
            .count(),
        1
    );
    assert!(!trial.topology.addresses().contains_key("core"));
}

#[test]
fn findings_stand_beside_the_cases_that_they_are_about() {
    let text = format!(
        "{CHAIN}[[finding]]\ntext = 'braces {{stay}} here'\nmetric = 'ack_share'\ncase = {{ hops = 3, rate = '10Mbit' }}\nsubject = 'other-{{hops}}'\nvalue = 0.13\nlow = 0.1\n\
         [[finding]]\ntext = 'in words'\n"
    );
    let paper = parse("f.toml", &text).expect("valid").findings;
    assert_eq!(paper[0].text, "braces {stay} here");
    assert_eq!(
        (paper[0].subject.as_deref(), paper[0].value, paper[0].low),
        (Some("other-3"), Some(0.13), Some(0.1))
    );
    assert_eq!(paper[0].case["hops"], "3");
    assert_eq!((&paper[1].metric, paper[1].case.len()), (&None, 0));
}

#[test]
fn a_label_that_follows_the_case_is_known_by_what_is_written_and_may_be_the_baseline() {
    let scenario = parse("f.toml", CHAIN).expect("valid");
    let written = scenario.families();
    assert!(
        written.len() > 1 && written.values().all(|text| text == "other-{hops}"),
        "{written:?}"
    );
    let text = CHAIN.replacen("name = ", "baseline = \"other-{hops}\"\nname = ", 1);
    let scenario = parse("f.toml", &text).expect("valid");
    assert_eq!(scenario.baseline.as_deref(), Some("other-{hops}"));
}

#[test]
fn goals_are_bounds_and_follow_what_papers_found() {
    let goal = "[[goal]]\ntext = 'as fast alone'\nmetric = 'ttfb_s'\n";
    let text = format!(
        "{CHAIN}{goal}case = {{ hops = 3 }}\nrelative_to_case = {{ hops = 1 }}\nstatistic = 'p95'\nhigh = 1.1\n[[finding]]\ntext = 'in words'\n"
    );
    let findings = parse("f.toml", &text).expect("valid").findings;
    assert_eq!((findings[0].goal, findings[1].goal), (false, true));
    assert_eq!(findings[1].relative_to_case["hops"], "1");
    assert_eq!(findings[1].statistic.as_deref(), Some("p95"));
    for (rest, part) in [
        ("", "the key \"high\" is missing"),
        ("high = 1\nvalue = 1", "value"),
        ("high = 1\nstatistic = 'p59'", "did you mean \"p95\"?"),
        (
            "high = 1\nrelative_to_case = { hops = 77 }",
            "hops has no value \"77\"",
        ),
        (
            "high = 1\nrelative_to_case = { hops = 1 }\nrelative_to = 'other-1'",
            "there is relative_to too",
        ),
    ] {
        let wrong = parse("f.toml", &format!("{CHAIN}{goal}{rest}\n")).expect_err(rest);
        assert!(wrong.to_string().contains(part), "{wrong}");
    }
}

#[test]
fn workloads_may_be_counted_as_one_under_the_beginning_of_their_names() {
    let workload =
        "[[workload]]\nname = 'light{i}'\nrepeat = 2\nkind = 'download'\nbytes = 1\nas = ";
    let scenario = parse("f.toml", &format!("{CHAIN}{workload}'light'\n")).expect("valid");
    let trial = trial(&scenario, |_| true);
    let counted = |name: &str| {
        let plan = trial.workloads.iter().find(|plan| plan.name == name);
        plan.and_then(|plan| plan.counted_as.clone())
    };
    assert_eq!(counted("light2").as_deref(), Some("light"));
    let wrong = parse("f.toml", &format!("{CHAIN}{workload}'heavy'\n")).expect_err("another word");
    assert!(
        wrong.to_string().contains("does not begin with it"),
        "{wrong}"
    );
}

/// A directory with a scenario, a subject and a trace.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let write =
        |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("written");
    fs::create_dir(directory.path().join("subjects")).expect("made");
    write(
        "s.toml",
        "name = 's'\n[[host]]\nname = 'client'\n[[host]]\nname = 'server'\n[[link]]\nends = ['client', 'server']\ntrace = 'cell.trace'\n\
        [[subject]]\nuse = 'piper'\nlabel = 'pipe-2'\nwith = { ports = [1, 2] }\n[[subject]]\nfile = 'other.toml'\n[[workload]]\nkind = 'download'\nbytes = 1\n",
    );
    write("cell.trace", "# a cell\n0\n0\n\n7\n12\n");
    write("other.toml", "name = 'other'\n");
    write(
        "subjects/piper.toml",
        "name = 'piper'\n[parameters]\nports = [0]\n[[step]]\nname = 'pipe{i}'\nrepeat = '{len(ports)}'\nhost = 'client'\n\
        command = ['piper', '--port', '{ports[i]}', '{ip:server}', '{dir}/x']\nready = [{ tcp = '127.0.0.1:{1000 + ports[i]}' }]\n\
        [[way]]\nhost = 'client'\nway = 'socks'\naddress = '127.0.0.1:1001'\n",
    );
    directory
}

#[test]
fn subjects_and_traces_are_found_beside_the_scenario_and_never_read_again() {
    let directory = directory();
    let scenario = load(&directory.path().join("s.toml")).expect("valid");
    drop(directory);
    let trial = trial(&scenario, |key| key.subject == "pipe-2");
    assert_eq!(
        trial.topology.links[0].forward.trace,
        Some(vec![0, 0, 7, 12])
    );
    let steps = &trial.subject.steps;
    assert_eq!(
        steps[1].command,
        ["piper", "--port", "2", "{ip:server}", "{dir}/x"]
    );
    assert_eq!(
        steps[1].ready,
        [Ready::Tcp("127.0.0.1:1002".parse().expect("valid"))]
    );
    assert_eq!(
        (steps[1].name.as_str(), steps[1].run),
        ("pipe2", Run::Daemon)
    );
    assert!(matches!(
        trial.subject.ways[0].way,
        Way::Socks { udp: false, .. }
    ));
    assert_eq!(scenario.labels(), ["pipe-2", "other"]);
}

#[test]
fn a_browser_visits_the_pages_of_its_server_and_is_looked_for_by_doctor() {
    let text = CHAIN.replace(
        "kind = \"http\"\nversion = 3\nbytes = \"2MB\"\n",
        "kind = \"browse\"\nbrowser = \"chromium\"\nvisits = 5\n",
    );
    let scenario = parse("s.toml", &text).expect("valid");
    let [plan] = &of_case(&scenario, "0").workloads[..] else {
        panic!("one workload");
    };
    let Kind::Browse(browse) = &plan.kind else {
        panic!("{plan:?}");
    };
    assert_eq!((browse.pages, browse.visits, browse.seed), (100, 5, 1));
    assert_eq!(
        (plan.to.as_str(), plan.resolver.as_deref()),
        ("server", Some("server"))
    );
    assert_eq!(plan.timeout, Duration::from_secs(60), "of one visit");
    let needs = scenario.needs_of_workloads();
    let commands: Vec<_> = needs.iter().map(|need| need.command.as_str()).collect();
    assert_eq!(commands, ["chromedriver", "certutil"]);
    assert!(chain().needs_of_workloads().is_empty());
}

#[test]
fn a_name_that_is_no_file_is_a_built_in_scenario() {
    assert_eq!(load(Path::new("smoke")).expect("built in").path, None);
    let failure = load(Path::new("smok")).expect_err("unknown").to_string();
    assert!(failure.contains("did you mean \"smoke\"?"), "{failure}");
}

// The examples of `docs/scenarios.md`: they are what the page says they are.

const PAGE: &str = include_str!("../../../../../docs/scenarios.md");

/// Every block of TOML on the page.
fn examples() -> Vec<&'static str> {
    let blocks = PAGE.split("```toml\n").skip(1);
    blocks
        .map(|block| block.split("```").next().expect("an end"))
        .collect()
}

fn example(part: &str) -> &'static str {
    let mut found = examples().into_iter().filter(|text| text.contains(part));
    found.next().expect(part)
}

/// A directory with the page's scenario, its keys replaced, and the page's subjects.
fn page(change: impl Fn(&str) -> String) -> Result<Scenario, Failure> {
    let directory = tempfile::tempdir().expect("a directory");
    let write =
        |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("written");
    fs::create_dir(directory.path().join("subjects")).expect("made");
    write(
        "subjects/shadowsocks.toml",
        example("name = \"shadowsocks\""),
    );
    write("subjects/chain.toml", example("name = \"chain\""));
    write("s.toml", &change(example("name = \"wifi\"")));
    load(&directory.path().join("s.toml"))
}

#[test]
fn every_example_of_the_page_is_tested_here() {
    assert_eq!(examples().len(), 6, "a new example wants a test");
}

#[test]
fn the_small_scenario_of_the_page_is_right() {
    let scenario = page(str::to_owned).expect("valid");
    assert_eq!((scenario.runs(), scenario.labels().len()), (160, 2));
}

#[test]
fn the_rotation_of_the_page_gives_the_third_repetition_another_egress() {
    let rotation = example("[rotation]");
    let scenario = page(|text| {
        let text = text.replace("repeat = 2", "repeat = 3");
        let with = "with = { hops = 2, relays = 3, paths = [[\"relay1\", \"{egress}\"]] }";
        let text = text.replace("with = { hops = 2, relays = 2 }", with);
        text.replace("[matrix]", &format!("{rotation}\n[matrix]"))
    })
    .expect("valid");
    let paths = |repetition: u32| {
        let (checked, turn) = (&scenario.checked, scenario.turn_of(repetition));
        let resolved = checked.resolve(&checked.cases[0], turn).expect("resolves");
        let mut uses = resolved.uses.into_iter();
        let used = uses.find(|used| used.label == "hoplite-2").expect("there");
        used.with["paths"].text()
    };
    let expected = [
        "relay1,relay2",
        "relay1,relay2",
        "relay1,relay3",
        "relay1,relay2",
    ];
    assert_eq!([1, 2, 3, 4].map(paths), expected);
}

#[test]
fn the_competitor_of_the_page_is_added_by_its_file_alone() {
    let scenario = page(|text| {
        text.replace(
            "use = \"native\"",
            "use = \"shadowsocks\"\nlabel = \"native\"\nwith = { cipher = \"aes-256-gcm\" }",
        )
    })
    .expect("valid");
    let trial = trial(&scenario, |key| key.subject == "native");
    assert!(
        trial.subject.files[0]
            .text
            .starts_with("{\n  \"server\": \"{ip:relay1}\""),
        "{}",
        trial.subject.files[0].text
    );
    assert_eq!(
        trial.subject.steps[0].ready,
        [Ready::Tcp("10.77.0.2:8388".parse().expect("valid"))]
    );
    assert!(trial.subject.hides_client);
}

#[test]
fn a_block_for_each_relay_comes_of_joined_files() {
    let scenario =
        page(|text| text.replace("use = \"native\"", "use = \"chain\"\nlabel = \"native\""))
            .expect("valid");
    let trial = trial(&scenario, |key| key.subject == "native");
    let text = &trial.subject.files[0].text;
    assert_eq!(
        text,
        "# 2 relays\n[[relay]]\naddress = \"{ip:relay1}:443\"\n[[relay]]\naddress = \"{ip:relay2}:443\"\n"
    );
}

#[test]
fn the_other_tables_of_the_page_fit_the_small_scenario() {
    let rest = example("[sysctl]");
    let scenario = page(|text| format!("{text}\n{rest}")).expect("valid");
    assert_eq!(scenario.keep.pcap, ["access"]);
    assert_eq!(scenario.gate, Gate::default());
    assert_eq!(scenario.findings[0].subject.as_deref(), Some("hoplite-2"));
    let goal = &scenario.findings[1];
    assert_eq!((goal.goal, goal.high), (true, Some(3.0)));
    let matrix = example("profile = [").replace("[matrix]\n", "");
    let profiles = page(|text| {
        text.replace("[matrix]", &format!("[matrix]\n{matrix}\n#"))
            .replace("rate = \"10Mbit\"", "rate = \"{profile.up}\"")
    });
    assert_eq!(profiles.expect("valid").runs(), 320);
}

#[test]
fn what_the_page_calls_pinned_is_pinned() {
    let rest = example("[sysctl]");
    for (key, value) in settings::PINNED {
        let written = [
            format!("\"{key}\" = \"{value}\""),
            format!("\"{key}\" = {value}\n"),
        ];
        assert!(written.iter().any(|line| rest.contains(line)), "{key}");
    }
}

// What is shipped: every scenario and subject under `scenarios/` and `subjects/`.

#[test]
fn every_shipped_scenario_loads_and_every_case_of_it_resolves_with_every_subject() {
    for (name, text) in SCENARIOS {
        let scenario = load(Path::new(name)).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(scenario.name, name, "it is found by its name");
        assert!(
            !scenario.summary.is_empty() && text.starts_with("# "),
            "{name} says what it is about"
        );
        let first = scenario
            .keys()
            .into_iter()
            .filter(|key| key.repetition == 1);
        for key in first {
            let used = scenario
                .checked
                .resolve(
                    scenario
                        .checked
                        .cases
                        .iter()
                        .find(|case| case.values == key.case)
                        .expect("there"),
                    0,
                )
                .expect("resolves");
            assert!(
                used.uses.iter().any(|used| used.label == key.subject),
                "{key:?}"
            );
        }
    }
}

#[test]
fn every_file_of_the_directories_is_built_in() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let names = |directory: &str| -> Vec<String> {
        let paths = library::tomls(&root.join(directory));
        let stem = |path: &PathBuf| {
            let stem = path.file_stem().expect("a name");
            stem.to_string_lossy().into_owned()
        };
        let mut names: Vec<String> = paths.iter().map(stem).collect();
        names.sort_unstable(); // paths sort otherwise: "a-b.toml" comes before "a.toml"
        names
    };
    let sorted = |list: &[(&str, &str)]| -> Vec<String> {
        let mut names: Vec<String> = list.iter().map(|(name, _)| (*name).to_owned()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names("scenarios"), sorted(&SCENARIOS));
    assert_eq!(names("subjects"), sorted(&SUBJECTS));
}

#[test]
fn every_shipped_subject_is_right_and_found_by_its_name() {
    let subjects = built_in_subjects();
    let names: Vec<&str> = subjects
        .iter()
        .map(|subject| subject.name.as_str())
        .collect();
    assert_eq!(names, SUBJECTS.map(|(name, _)| name));
    assert!(subjects.iter().all(|subject| !subject.summary.is_empty()));
}

#[test]
fn every_seed_of_the_fuzzer_is_a_right_scenario_or_subject() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/lab_scenario");
    for entry in fs::read_dir(directory)
        .expect("there")
        .map(|entry| entry.expect("readable"))
    {
        let text = fs::read_to_string(entry.path()).expect("text");
        let scenario = parse("seed", &text).map(|scenario| scenario.runs());
        assert!(
            scenario.is_ok() || SubjectFile::parse("seed", &text).is_ok(),
            "{:?}: {scenario:?}",
            entry.path()
        );
    }
}
