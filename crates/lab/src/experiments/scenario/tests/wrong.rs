//! Mistakes that researchers make, and what they are told.

use proptest::prelude::*;

use super::*;

const SMALL: &str = r#"name = "small"
[matrix]
hops = [1, 2]
[[host]]
name = "client"
[[host]]
name = "relay{i}"
repeat = "{hops}"
[[host]]
name = "server"
[[link]]
ends = ["client", "relay1"]
delay = "5ms"
[[link]]
ends = ["relay{i}", "relay{i + 1}"]
repeat = "{hops - 1}"
[[link]]
ends = ["relay{hops}", "server"]
[[subject]]
use = "native"
[[workload]]
kind = "download"
bytes = "1MB"
"#;

/// What is said when a part of the small scenario is replaced.
fn told(part: &str, by: &str) -> String {
    assert!(SMALL.contains(part), "{part}");
    let text = SMALL.replacen(part, by, 1);
    let failure = parse("s.toml", &text).expect_err(by);
    assert!(matches!(failure, Failure::Wrong(_)), "{failure}");
    failure.to_string()
}

#[test]
fn the_small_scenario_itself_is_right() {
    parse("s.toml", SMALL).expect("valid");
}

/// A part of the small scenario, what stands there instead, and what is said about it.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "delay =",
        "dealy =",
        "s.toml:13:1: link[0].dealy: there is no such key: did you mean \"delay\"?",
    ),
    (
        "\"5ms\"",
        "5",
        "s.toml:13:9: link[0].delay: 5 is not a duration: a number with ns, us, ms, s, min or h, such as \"25ms\"",
    ),
    (
        "\"relay1\"]",
        "\"rely1\"]",
        "s.toml:12:19: link[0].ends[1]: there is no host or router \"rely1\": did you mean \"relay1\"? There are client, relay1, server",
    ),
    (
        "ends = [\"client\", \"relay1\"]",
        "ends = [\"client\"]",
        "s.toml:12:8: link[0].ends: there are 1 ends: the two nodes",
    ),
    (
        "kind = \"download\"",
        "kind = \"donwload\"",
        "workload[0].kind: \"donwload\" is not possible: did you mean \"download\"?",
    ),
    (
        "bytes = \"1MB\"",
        "bytes = \"1MB\"\nfrom = \"cleint\"",
        "workload[0].from: \"cleint\" is not a host: did you mean \"client\"? There are client, relay1, server",
    ),
    (
        "bytes = \"1MB\"",
        "bytes = \"1MB\"\nto = [\"server\", \"relay\"]",
        "workload[0].to: \"relay\" is not a host: did you mean \"relay1\"?",
    ),
    (
        "bytes = \"1MB\"",
        "bytes = \"1MB\"\nto = [\"server\", \"server\"]",
        "workload[0].to: \"server\" is there twice: each host once",
    ),
    (
        "kind = \"download\"\nbytes = \"1MB\"",
        "kind = \"request\"\nto = [\"server\", \"relay1\"]",
        "workload[0].to: only downloads and uploads choose among servers: one host",
    ),
    (
        "bytes = \"1MB\"",
        "",
        "workload[0]: the key \"bytes\" is missing: bytes = \"2MB\", or time = \"10s\"",
    ),
    (
        "use = \"native\"",
        "use = \"natve\"",
        "subject[0].use: there is no subject \"natve\": did you mean \"native\"?",
    ),
    (
        "use = \"native\"",
        "use = \"native\"\nwith = { hops = 1 }",
        "subject[0].with.hops: the subject \"native\" has no parameter \"hops\": remove it",
    ),
    (
        "use = \"native\"",
        "use = \"native\"\n[[subject]]\nuse = \"native\"",
        "there are two subjects with the label \"native\" in a case: another label",
    ),
    (
        "\"{hops}\"",
        "\"{hop}\"",
        "s.toml:8:10: host[1].repeat: \"hop\" is not defined: did you mean \"hops\"?",
    ),
    (
        "\"{hops}\"",
        "\"{hops +}\"",
        "host[1].repeat: the expression ends too early: a number, a name, a text or ( comes next",
    ),
    (
        "\"{hops}\"",
        "\"{hops\"",
        "host[1].repeat: a { has no }: {{ for a brace",
    ),
    (
        "\"{hops}\"",
        "2000",
        "host[1].repeat: 2000 is not possible: a whole number from 0 to 1000",
    ),
    (
        "\"5ms\"",
        "\"{ip:client}\"",
        "link[0].delay: \"ip:client\" is only known in a subject's file: matrix parameters, and i in repeats",
    ),
    (
        "\"5ms\"",
        "\"{i}ms\"",
        "link[0].delay: \"i\" is not defined: i is known where there is a repeat",
    ),
    (
        "hops = [1, 2]",
        "hops = [1, 2]\nrate = [1, 2]",
        "s.toml:4:1: matrix.rate: nothing uses the parameter \"rate\": use it as {rate} or remove it",
    ),
    (
        "[[link]]\nends = [\"relay{hops}\"",
        "[[link]]\nwhen = \"{hops == 1}\"\nends = [\"relay{hops}\"",
        "host[2]: no link leads from \"client\" to \"server\": links that join all hosts and routers",
    ),
    (
        "name = \"client\"",
        "name = \"server\"",
        "host[2].name: there are two nodes with the name \"server\"",
    ),
    (
        "name = \"client\"",
        "name = \"localhost\"",
        "host[0].name: every host calls itself localhost: another name",
    ),
    (
        "name = \"client\"",
        "name = \"-\"",
        "host[0].name: \"-\" is not a name: up to 63 letters",
    ),
    (
        "delay = \"5ms\"",
        "delay = \"5ms\"\nqueue = \"1.5bdp\"",
        "link[0].queue: a multiple of the bandwidth-delay product needs a rate",
    ),
    (
        "delay = \"5ms\"",
        "rate = \"1Mbit\"\nqueue = \"1.5bdp\"",
        "link[0].queue: a multiple of the bandwidth-delay product needs a round trip",
    ),
    (
        "delay = \"5ms\"",
        "loss = \"120%\"",
        "link[0].loss: \"120%\" is not a share",
    ),
    (
        "delay = \"5ms\"",
        "jitter = { shape = \"gauss\", width = \"1ms\" }",
        "link[0].jitter.shape: \"gauss\" is not possible: use one of normal, pareto, uniform",
    ),
    (
        "delay = \"5ms\"",
        "trace = \"x.trace\"",
        "link[0].trace: the trace \"x.trace\" cannot be read: a built-in scenario has no files",
    ),
    (
        "delay = \"5ms\"",
        "mtu = 100",
        "link[0].mtu: 100 is not possible: a whole number from 1280 to 65535",
    ),
    (
        "name = \"small\"",
        "",
        "the key \"name\" is missing: the scenario's name",
    ),
    (
        "name = \"small\"",
        "name = \"small\"\nbaseline = \"nativ\"",
        "baseline: there is no subject with the label \"nativ\": did you mean \"native\"?",
    ),
    (
        "name = \"small\"",
        "name = \"small\"\ntimeout = \"0s\"",
        "timeout: nothing ends in no time: a time above 0",
    ),
    (
        "[[subject]]",
        "[sysctl]\n\"kernel.panic\" = 1\n[[subject]]",
        "sysctl.kernel.panic: it is not a setting of a network namespace",
    ),
    (
        "[[subject]]",
        "[rotation]\nuse = [\"native\", \"other\"]\n[[subject]]\nlabel = \"{use}\"",
        "subject[0]: the rotation changes which subjects there are, or what they are called: \"label\" and \"when\" that follow",
    ),
    (
        "[[subject]]",
        "[keep]\npcap = [\"acces\"]\n[[subject]]",
        "keep.pcap[0]: there is no link \"acces\": \"*\" for all, or",
    ),
    (
        "[[subject]]",
        "[gate]\nattempts = 0\n[[subject]]",
        "gate.attempts: 0 is not possible: a whole number from 1 to 100",
    ),
    (
        "[[subject]]",
        "[gate]\ncpu_pressure = \"120%\"\n[[subject]]",
        "gate.cpu_pressure: \"120%\" is not a share: a share from 0 to 1, or a percentage",
    ),
    (
        "[[subject]]",
        "[gate]\nlate_us_p99 = 500\n[[subject]]",
        "gate.late_us_p99: the gate takes a share of late packets now: late_us, from which on",
    ),
    (
        "[[subject]]",
        "[gate]\nfrozen = 3\n[[subject]]",
        "gate.frozen: 3 is not a duration: a number with",
    ),
    (
        "[[subject]]",
        "[[analysis]]\nanalysis = \"cascade\"\nlink = \"x\"\n[[subject]]",
        "analysis[0].link: there is no link \"x\": one of client-relay1",
    ),
    (
        "[[subject]]",
        "[[finding]]\ntext = \"x\"\ncase = { hops = 7 }\n[[subject]]",
        "finding[0].case.hops: hops has no value \"7\": use one of 1, 2",
    ),
    (
        "[[subject]]",
        "[[finding]]\ntext = \"x\"\nvalue = 7\n[[subject]]",
        "finding[0]: the key \"metric\" is missing",
    ),
    (
        "hops = [1, 2]",
        "hops = 1.5",
        "host[1].repeat: 1.5 is not possible",
    ),
    (
        "[matrix]",
        "[matrx]",
        "matrx: there is no such key: did you mean \"matrix\"?",
    ),
    (
        "kind = \"download\"\nbytes = \"1MB\"",
        "kind = \"browse\"\nbrowser = \"opera\"",
        "workload[0].browser: \"opera\" is not possible",
    ),
    (
        "kind = \"download\"\nbytes = \"1MB\"",
        "kind = \"browse\"\nresolver = \"relay7\"",
        "workload[0].resolver: \"relay7\" is not a host",
    ),
    (
        "kind = \"download\"\nbytes = \"1MB\"",
        "kind = \"browse\"\n[[workload]]\nkind = \"browse\"\nname = \"other\"\nresolver = \"relay1\"",
        "workload[1]: another workload whose server has names has another host or resolver: the same hosts for all of them",
    ),
    (
        "[[workload]]",
        "[[workload]]\nmay_fail = \"yes\"",
        "workload[0].may_fail: \"yes\" is a text: true or false",
    ),
    (
        "[[workload]]",
        "[[workload]]\nto = \"client\"",
        "workload[0].to: it goes from \"client\" to itself: another host",
    ),
];

#[test]
fn every_mistake_has_its_place_and_says_what_is_allowed() {
    for (part, by, expected) in MISTAKES {
        let told = told(part, by);
        assert!(
            told.contains(expected),
            "{by}\nsays: {told}\nnot:  {expected}"
        );
    }
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let text = SMALL
        .replace("\"5ms\"", "\"5\"")
        .replace("\"1MB\"", "\"many\"")
        .replace("name = \"client\"", "nam = \"client\"");
    let told = parse("s.toml", &text).expect_err("wrong").to_string();
    let place = |part: &str| {
        told.find(part)
            .unwrap_or_else(|| panic!("{part} in {told}"))
    };
    assert!(place("host[0].nam") < place("link[0].delay"));
    assert!(place("link[0].delay") < place("workload[0].bytes"));
}

#[test]
fn what_grows_without_bound_is_refused() {
    let told = |text: &str| parse("s.toml", text).expect_err("too much").to_string();
    let hosts = SMALL.replace("hops = [1, 2]", "hops = [1000]");
    assert!(told(&hosts).contains("too many hosts"), "{}", told(&hosts));
    let values: Vec<String> = (100..500).map(|n| n.to_string()).collect();
    let cases = SMALL.replace("[1, 2]", &format!("[{}]", values.join(",")));
    assert!(told(&cases).contains("all cases together are too large"));
    let runs = SMALL.replace("[matrix]", "repetitions = 1000000\n[matrix]");
    assert!(
        told(&runs).contains("at most 1000000 runs in all"),
        "{}",
        told(&runs)
    );
    assert!(told(&format!("name = \"{}\"", "x".repeat(2 << 20))).contains("too long"));
}

#[test]
fn a_mistake_in_a_subjects_file_is_told_with_its_own_place() {
    let directory = directory();
    let path = directory.path().join("subjects/piper.toml");
    let text = fs::read_to_string(&path).expect("there");
    let told = |by: &dyn Fn(&str) -> String| {
        fs::write(&path, by(&text)).expect("written");
        load(&directory.path().join("s.toml"))
            .expect_err("wrong")
            .to_string()
    };
    let host = told(&|text| text.replace("host = 'client'\ncommand", "host = 'clint'\ncommand"));
    assert!(host.contains("piper.toml:7:8: step[0].host: the subject needs a host: \"clint\" is not a host: did you mean \"client\"?"), "{host}");
    assert!(
        host.contains("subject[0]: the subject does not fit here (label \"pipe-2\")"),
        "{host}"
    );
    let hole = told(&|text| text.replace("{ip:server}", "{ip:sever}"));
    assert!(
        hole.contains("step[0].command[3]: \"sever\" is not a host"),
        "{hole}"
    );
    let kind = told(&|text| text.replace("ports = [0]", "ports = 1"));
    assert!(
        kind.contains(
            "s.toml:12:18: subject[0].with.ports: \"[1,2]\" is a list: a number, such as its default 1"
        ),
        "{kind}"
    );
}

#[test]
fn a_trace_that_is_not_there_or_makes_no_sense_is_told() {
    let directory = directory();
    let trace = directory.path().join("cell.trace");
    let told = || {
        load(&directory.path().join("s.toml"))
            .expect_err("wrong")
            .to_string()
    };
    fs::write(&trace, "5\n3\n").expect("written");
    assert!(
        told().contains("link[0].trace: \"cell.trace\" does not fit: line 2: earlier than the line before: mahimahi's format"),
        "{}",
        told()
    );
    fs::write(&trace, "\n").expect("written");
    assert!(
        told().contains("no opportunity later than 0 ms"),
        "{}",
        told()
    );
    fs::remove_file(&trace).expect("removed");
    assert!(
        told().contains("the trace \"cell.trace\" cannot be read: No such file"),
        "{}",
        told()
    );
}

proptest! {
    #[test]
    fn no_expression_breaks_the_reader(text in r#"[-+*/%()\[\]<>=!,{}.'"a-z0-9 \PC]{0,40}"#) {
        drop(parse("s.toml", &SMALL.replace("{hops}", &format!("{{{}}}", text.replace(['"', '\\'], "")))));
    }

    #[test]
    fn no_quantity_breaks_the_reader(text in r"[-+0-9.eE%a-zA-Z/ ]{0,20}") {
        for key in ["delay", "rate", "queue", "loss", "mtu", "jitter"] {
            drop(parse("s.toml", &SMALL.replace("delay = \"5ms\"", &format!("{key} = \"{text}\""))));
        }
    }

    #[test]
    fn no_line_of_a_scenario_breaks_the_reader_when_it_is_another(lines in proptest::sample::subsequence(SMALL.lines().collect::<Vec<_>>(), 0..20).prop_shuffle()) {
        drop(parse("s.toml", &lines.join("\n")));
    }
}
