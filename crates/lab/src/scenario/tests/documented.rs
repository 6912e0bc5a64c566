//! The examples of `docs/scenarios.md`: they are what the page says they are.

use super::*;

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
    assert_eq!(examples().len(), 5, "a new example wants a test");
}

#[test]
fn the_small_scenario_of_the_page_is_right() {
    let scenario = page(str::to_owned).expect("valid");
    assert_eq!((scenario.runs(), scenario.labels().len()), (160, 2));
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
