//! Subjects' files: what an author writes, and what comes of it.

use super::*;
use crate::{
    experiments::subject::Run,
    topology::{Node, NodeKind, Topology},
};

const RELAYS: &str = r#"
name = "relays"
summary = "for tests"
hides_client = true
[[needs]]
command = "{hoplite}"
install = "cargo build --release"
version = ["{hoplite}", "--version"]
[parameters]
hops = { default = 1, min = 0, max = 2, about = "how many relays" }
acks = { default = "default", one_of = ["default", "1ms"] }
extra = []
[[file]]
path = "client.toml"
text = "acks = \"{acks}\"\n"
mode = 0o600
[[file]]
path = "client.toml"
repeat = "{hops}"
text = "[[relay]]\naddress = \"{ip:relay{i}}:443\" # ${{x}} {dir}\n"
[[step]]
name = "key{i}"
repeat = "{hops}"
host = "relay{i}"
command = ["{hoplite}", "keygen", "{extra}", "--out", "{shared}/{i}"]
run = "once-per-campaign"
[[step]]
name = "client"
host = "client"
command = ["{hoplite}", "client", "--pin", "{out:key1}"]
when = "{hops > 0}"
env = { HOPS = "{hops}", LOG = "debug" }
ready = [{ log = "ready" }, { file = "{dir}/up", text = "yes" }, { tcp = "{ip:client}:1080" }, { interface = "tun0" }, { command = ["true"] }]
ready_within = "5s"
together = true
[[way]]
host = "client"
way = "socks"
address = "127.0.0.1:1080"
udp = true
target = "{file:{dir}/name}"
"#;

fn topology() -> Topology {
    let host = |name: &str| Node {
        name: name.into(),
        kind: NodeKind::Host,
    };
    Topology {
        nodes: ["client", "relay1", "relay2", "server"].map(host).to_vec(),
        links: Vec::new(),
    }
}

fn plan(text: &str, with: &[(&str, Value)]) -> Result<Plan, String> {
    let file = SubjectFile::parse("relays.toml", text).map_err(|failure| failure.to_string())?;
    let topology = topology();
    let addresses = topology.addresses();
    let places = Places {
        hoplite: "/bin/hoplite".into(),
        lab: "/bin/lab".into(),
    };
    let with = with
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    let site = Site {
        topology: &topology,
        addresses: &addresses,
        places: &places,
    };
    file.plan("label", &with, &site)
        .map_err(|failure| failure.to_string())
}

#[test]
fn files_of_one_path_are_joined_and_repeated_with_the_parameters() {
    let plan = plan(
        RELAYS,
        &[
            ("hops", Value::Number(2.0)),
            ("acks", Value::Text("1ms".into())),
        ],
    )
    .expect("valid");
    assert_eq!(plan.files.len(), 1);
    assert_eq!(plan.files[0].mode, 0o600);
    assert_eq!(
        plan.files[0].text,
        "acks = \"1ms\"\n[[relay]]\naddress = \"{ip:relay1}:443\" # ${x} {dir}\n[[relay]]\naddress = \"{ip:relay2}:443\" # ${x} {dir}\n"
    );
    assert_eq!((plan.label.as_str(), plan.hides_client), ("label", true));
}

#[test]
fn steps_know_the_binaries_and_leave_to_the_world_what_only_it_knows() {
    let extra = Value::List([Value::Text("-v".into()), Value::Text("-v".into())].into());
    let plan = plan(RELAYS, &[("extra", extra)]).expect("valid");
    assert_eq!(
        plan.steps[0].command,
        ["/bin/hoplite", "keygen", "-v", "-v", "--out", "{shared}/1"]
    );
    assert_eq!(
        (plan.steps[0].run, plan.steps[0].host.as_str()),
        (Run::OncePerCampaign, "relay1")
    );
    let client = &plan.steps[1];
    assert_eq!(client.command[3], "{out:key1}");
    assert_eq!(client.env["HOPS"], "1");
    assert_eq!(
        (
            client.ready.len(),
            client.ready_within.as_secs(),
            client.together
        ),
        (5, 5, true)
    );
    assert_eq!(
        client.ready[2],
        crate::experiments::subject::Ready::Tcp("10.77.0.1:1080".parse().expect("valid"))
    );
    assert_eq!(plan.ways[0].target.as_deref(), Some("{file:{dir}/name}"));
}

#[test]
fn a_hosts_address_may_be_named_in_either_family() {
    for (named, family) in [("{ip:client}", 4), ("[{ip6:client}]", 6)] {
        let text = RELAYS.replace("{ tcp = \"{ip:client}:", &format!("{{ tcp = \"{named}:"));
        let plan = plan(&text, &[]).expect("valid");
        let crate::experiments::subject::Ready::Tcp(address) = plan.steps[1].ready[2] else {
            panic!("{named} is an address");
        };
        assert_eq!((address.is_ipv4(), address.port()), (family == 4, 1080));
        let client = topology().addresses()["client"];
        let its = [client.v4.into(), client.v6.into()];
        assert_eq!(
            its.map(|ip: std::net::IpAddr| ip == address.ip()),
            [family == 4, family == 6]
        );
    }
    for wrong in ["{ip:nobody}:1080", "{ip:client}", "{ip:client}:70000"] {
        assert!(plan(&RELAYS.replace("{ip:client}:1080", wrong), &[]).is_err());
    }
}

#[test]
fn what_it_needs_is_told_to_the_doctor_as_it_is_written() {
    let file = SubjectFile::parse("relays.toml", RELAYS).expect("valid");
    assert_eq!(file.needs[0].command, "{hoplite}");
    assert_eq!(file.needs[0].version, ["{hoplite}", "--version"]);
    assert!(file.needs_hoplite());
}

#[test]
fn a_program_may_be_needed_with_some_parameters_alone() {
    let when = |condition: &str| {
        let version = "version = [\"{hoplite}\", \"--version\"]\n";
        let text = RELAYS.replace(version, &format!("when = {condition}\n"));
        SubjectFile::parse("relays.toml", &text)
    };
    let file = when("\"{hops > 1}\"").expect("valid");
    let needed = |hops: f64| {
        let with = BTreeMap::from([("hops".to_owned(), Value::Number(hops))]);
        file.needs_with(&with).len()
    };
    assert_eq!((file.needs.len(), needed(1.0), needed(2.0)), (1, 0, 1));
    for (wrong, why) in [("7", "true or false"), ("\"{hop > 1}\"", "hop")] {
        let refusal = when(wrong).expect_err("it is wrong").to_string();
        assert!(
            refusal.contains("needs[0].when") && refusal.contains(why),
            "{refusal}"
        );
    }
}

#[test]
fn parameters_have_a_kind_and_bounds() {
    let file = SubjectFile::parse("relays.toml", RELAYS).expect("valid");
    let told = |name: &str, value: Value| {
        file.fit(name, &value)
            .map_err(|wrong| format!("{}: {}", wrong.what, wrong.allowed))
    };
    assert_eq!(told("hops", Value::Number(2.0)), Ok(Value::Number(2.0)));
    assert_eq!(
        told("extra", Value::Text(String::new())),
        Ok(Value::List(Arc::default()))
    );
    assert_eq!(
        told("hops", Value::Number(3.0)),
        Err("3 is not possible: a whole number from 0 to 2".into())
    );
    assert_eq!(
        told("hops", Value::Number(1.5)),
        Err("1.5 is not possible: a whole number from 0 to 2".into())
    );
    assert_eq!(
        told("hops", Value::Text("2".into())),
        Err("\"2\" is a text: a number, such as its default 1".into())
    );
    assert_eq!(
        told("acks", Value::Text("1m".into())),
        Err("\"1m\" is not possible: did you mean \"1ms\"?".into())
    );
    assert_eq!(
        told("hop", Value::Number(1.0)),
        Err("the subject \"relays\" has no parameter \"hop\": did you mean \"hops\"?".into())
    );
}

/// A part of the file, what stands there instead, and what is said about it.
const MISTAKES: &[(&str, &str, &str)] = &[
    ("name = \"relays\"", "", "the key \"name\" is missing"),
    (
        "{extra}",
        "x",
        "relays.toml:12:1: parameters.extra: nothing uses the parameter \"extra\"",
    ),
    (
        "\"{acks}",
        "\"{ack}",
        "relays.toml:15:8: file[0].text: \"ack\" is not defined: did you mean \"acks\"?",
    ),
    (
        "default = 1,",
        "default = 7,",
        "parameters.hops.default: 7 is not possible: a whole number from 0 to 2",
    ),
    (
        "extra = []",
        "shared = []",
        "parameters.shared: the word has a meaning in subjects",
    ),
    (
        "mode = 0o600",
        "mod = 0o600",
        "file[0].mod: there is no such key: did you mean \"mode\"?",
    ),
    (
        "path = \"client.toml\"\ntext",
        "path = \"../x\"\ntext",
        "file[0].path: \"../x\" is not possible: a path below",
    ),
    (
        "path = \"client.toml\"\ntext",
        "path = \"/etc/x\"\ntext",
        "file[0].path: \"/etc/x\" is not possible: a path below",
    ),
    (
        "{out:key1}",
        "{out:kye1}",
        "step[1].command[3]: no step \"kye1\" comes before: did you mean \"key1\"?",
    ),
    (
        "{out:key1}",
        "{out:client}",
        "no step \"client\" comes before",
    ),
    (
        "acks = \\\"{acks}",
        "{acks} {out:key7} \\\"",
        "file[0].text: no step \"key7\" is there: did you mean \"key1\"?",
    ),
    (
        "acks = \\\"{acks}",
        "{acks} {file:x} \\\"",
        "file[0].text: a file cannot hold another: {file:PATH} in commands, env, ready and targets",
    ),
    (
        "\"once-per-campaign\"",
        "\"always\"",
        "step[0].run: \"always\" is not possible: use one of daemon, once, once-per-campaign",
    ),
    (
        "way = \"socks\"",
        "way = \"sock\"",
        "way[0].way: \"sock\" is not possible: did you mean \"socks\"?",
    ),
    (
        "\"127.0.0.1:1080\"",
        "\"localhost:1080\"",
        "way[0].address: \"localhost:1080\" is not an address",
    ),
    (
        "{ tcp = \"{ip:client}:1080\" }",
        "{ port = 3 }",
        "step[1].ready[2].port: there is no such key",
    ),
    (
        "name = \"key{i}\"",
        "name = \"client\"",
        "step[1].name: there are two steps with the name \"client\"",
    ),
    (
        "[[way]]",
        "[[way]]\nhost = \"client\"\nway = \"direct\"\n[[way]]",
        "the host \"client\" has two ways in",
    ),
];

#[test]
fn mistakes_of_an_author_are_told_when_the_file_is_read_or_used() {
    for (part, by, expected) in MISTAKES {
        assert!(RELAYS.contains(part), "{part}");
        let told = plan(&RELAYS.replacen(part, by, 1), &[]).expect_err(by);
        assert!(
            told.contains(expected),
            "{by}\nsays: {told}\nnot:  {expected}"
        );
    }
}

#[test]
fn texts_that_paste_texts_do_not_grow_without_bound() {
    let long = "x".repeat(1000);
    let text = |name: &str, many: usize| {
        format!(
            "name = 'a'\n[parameters]\np = '{long}'\n{name}{}",
            "{p}".repeat(many)
        )
    };
    let told = |text: &str| plan(text, &[]).expect_err("too much");
    let file = text("[[file]]\npath = 'a'\ntext = '", 2000) + "'";
    assert!(
        told(&file).contains("file[0].text: the text becomes too long: at most 1 MiB"),
        "{}",
        told(&file)
    );
    let step = text("[[step]]\nname = 'a'\nhost = 'client'\ncommand = ['", 500)
        + &format!("'{}]", ", '{p}{p}'".repeat(500));
    assert!(told(&step).contains("step[0].command: the command is too long: at most 131072 bytes"));
    let longer = "x".repeat(400_000);
    let files = format!(
        "name = 'a'\n[parameters]\np = '{longer}'\n[[file]]\nrepeat = 1000\npath = 'a{{i}}'\ntext = '{{p}}'"
    );
    assert!(
        told(&files).contains("file[0].text: the texts of the file come to too much"),
        "{}",
        told(&files)
    );
}

#[test]
fn an_entry_may_be_repeated_for_each_pair() {
    let text = "name = 'a'\nhides_client = '{clients > 1}'\n[parameters]\nclients = 2\n[[file]]\npath = 'c{i}'\nrepeat = ['{clients}', '{i + 1}']\nwhen = '{j < 3}'\ntext = '{i}-{j} '\n";
    let plan = plan(text, &[]).expect("valid");
    let texts: Vec<&str> = plan.files.iter().map(|file| file.text.as_str()).collect();
    assert_eq!(texts, ["1-1 1-2 ", "2-1 2-2 "]);
    assert!(plan.hides_client);
    let told =
        |by: &str| self::plan(&text.replace("['{clients}', '{i + 1}']", by), &[]).expect_err(by);
    assert!(
        told("3").contains(
            "file[0].when: \"j\" is not defined: j is known where there are two: repeat = [2, 3]"
        ),
        "{}",
        told("3")
    );
    assert!(
        told("['{j}', 1]").contains("\"j\" is not defined"),
        "{}",
        told("['{j}', 1]")
    );
    assert!(
        told("[1000, 1000]").contains("file[0].repeat: there are too many: at most 1000 in all"),
        "{}",
        told("[1000, 1000]")
    );
    assert!(
        told("[1, 2, 3]").contains("file[0].repeat: there are 3 numbers: one, or two for i and j")
    );
}
