//! What a user reads when a file is wrong, and that the examples are the defaults.

use std::path::Path;

use hoplite_masque::ShownRegion;

use super::*;

const PIN: &str = "sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

fn document(text: &str) -> Result<Document, Failure> {
    Document::parse(Path::new("f.toml"), text.to_owned())
}

/// What is wrong with a client's file, without the words that all complaints share.
fn client_error(text: &str) -> String {
    let failure = document(text).and_then(|d| client::read(&d).map(drop));
    strip(&failure.expect_err("the file is wrong"))
}

fn relay_error(text: &str) -> String {
    let failure = document(text).and_then(|d| relay::read(&d).map(drop));
    strip(&failure.expect_err("the file is wrong"))
}

fn strip(failure: &Failure) -> String {
    failure
        .to_string()
        .replace("hoplite: reading the configuration: ", "")
}

fn two_relays(first_line: &str) -> String {
    format!(
        "{first_line}\n[[relay]]\nname = \"a\"\naddress = \"a.example:443\"\npin = \"{PIN}\"\n\
         [[relay]]\nname = \"b\"\naddress = \"b.example:443\"\n"
    )
}

#[test]
fn a_misspelt_key_is_named_with_what_was_meant() {
    let text = two_relays("path = [\"a\", \"b\"]\n[socks]\nlisen = \"127.0.0.1:1\"");
    assert_eq!(
        client_error(&text),
        "f.toml:3:1: socks.lisen: there is no such key: did you mean \"listen\"?"
    );
    assert_eq!(
        relay_error("name = \"a\"\nlisten = [\"127.0.0.1:0\"]\n[limits]\nbandwith = 3\n"),
        "f.toml:4:1: limits.bandwith: there is no such key: did you mean \"bandwidth\"?"
    );
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_what_was_expected() {
    assert_eq!(
        relay_error("name = 7\n"),
        "f.toml:1:8: name: expected a string, found integer 7: correct the value"
    );
    assert_eq!(
        client_error("hops = \"two\"\n"),
        "f.toml:1:8: hops: expected a whole number, found string \"two\": correct the value"
    );
    assert_eq!(
        client_error("hops = 1\n[limits]\nopen = -1\n"),
        "f.toml:3:8: limits.open: expected seconds, from 0 to 31536000: correct the value"
    );
}

#[test]
fn a_mode_that_there_is_not_is_refused() {
    let text = two_relays("hops = 1\ntunnel = { mode = \"beside\" }");
    assert_eq!(
        client_error(&text),
        "f.toml:2:19: tunnel.mode: \"beside\" is not a value of this key: use one of auto, forwarded, tunnelled"
    );
    let text = two_relays("hops = 1\ntunnel = { congestion = \"cubik\" }");
    assert_eq!(
        client_error(&text),
        "f.toml:2:25: tunnel.congestion: \"cubik\" is not a value of this key: did you mean \"cubic\"?"
    );
}

const ACKS: &str = "expected \"none\", \"auto\", \"default\", \"extension\", a delay from \"1ms\" to \"250ms\", \
     or a share of the round trip from \"0.01rtt\" to \"4rtt\": correct the value";

fn relay_tunnel(line: &str) -> String {
    format!("listen = [\"127.0.0.1:0\"]\n[tunnel]\n{line}\n")
}

fn client_tunnel(table: &str) -> String {
    two_relays(&format!("hops = 1\ntunnel = {{ {table} }}"))
}

fn tuning_request(table: &str) -> hoplite_wire::tuning::TuningRequest {
    let text = client_tunnel(table);
    let client = client::read(&document(&text).expect("valid")).expect("right");
    client.config.tunnel.tuning_request()
}

#[test]
fn a_wrong_way_to_acknowledge_is_refused_in_both_files_with_those_that_there_are() {
    let error = client_error(&client_tunnel("acks = \"300ms\""));
    assert_eq!(
        error,
        format!("f.toml:2:19: tunnel.acks: \"300ms\": {ACKS}")
    );
    let error = client_error(&client_tunnel("acks = { up = \"often\" }"));
    assert_eq!(
        error,
        format!("f.toml:2:26: tunnel.acks.up: \"often\": {ACKS}")
    );
    let error = client_error(&client_tunnel("acks = { upp = \"1ms\" }"));
    assert_eq!(
        error,
        "f.toml:2:21: tunnel.acks.upp: there is no such key: did you mean \"up\"?"
    );
    let error = client_error(&client_tunnel("acks = 7"));
    assert_eq!(
        error,
        "f.toml:2:19: tunnel.acks: expected a policy, or a table with `up` and `down`, found integer 7: correct the value"
    );
    let error = relay_error(&relay_tunnel("acks = \"300ms\""));
    assert_eq!(error, format!("f.toml:3:8: tunnel.acks: \"300ms\": {ACKS}"));
    let error = relay_error(&relay_tunnel("acks = \"none\""));
    assert!(
        error.starts_with("f.toml:3:8: tunnel.acks: \"none\" is for clients to ask for"),
        "{error}"
    );
    let error = relay_error(&relay_tunnel("allow_no_ack = true"));
    assert_eq!(
        error,
        "f.toml:3:1: tunnel.allow_no_ack: there is no such key: did you mean \"allow_no_acks\"?"
    );
}

#[test]
fn what_is_wrong_with_public_addresses_is_told_by_key() {
    let relay = |lines: &str| {
        let text = format!("listen = [\"127.0.0.1:0\"]\n[bound_udp]\n{lines}\n");
        relay_error(&text)
    };
    for (lines, expected) in [
        (
            "enabled = true",
            "bound_udp.addresses: expected the addresses that peers reach this relay at, or an [[egress.pool]]",
        ),
        (
            "addresses = [\"192.0.2.1\", \"192.0.2.2\"]",
            "f.toml:3:1: bound_udp.addresses: expected at most one address of each family",
        ),
        (
            "addresses = [\"0.0.0.0\"]",
            "f.toml:3:1: bound_udp.addresses: expected addresses that peers can be told, no wildcard",
        ),
        (
            "contexts = 0",
            "f.toml:3:12: bound_udp.contexts: expected a number above 0",
        ),
        (
            "targets = 0",
            "f.toml:3:11: bound_udp.targets: expected a number above 0",
        ),
        (
            "target = 1",
            "f.toml:3:1: bound_udp.target: there is no such key: did you mean \"targets\"?",
        ),
    ] {
        let error = relay(lines);
        assert!(error.contains(expected), "{lines}: {error}");
    }
}

#[test]
fn acknowledgements_are_chosen_for_both_directions_or_for_each() {
    let both = tuning_request("acks = \"2.5ms\", acks_after = 7");
    assert_eq!(both.up.to_string(), "2.5ms");
    assert_eq!((both.down, both.after), (both.up, 7));
    let each = tuning_request("acks = { up = \"0.25rtt\", down = \"none\" }, congestion = \"off\"");
    assert_eq!(each.up.to_string(), "0.25rtt");
    assert_eq!(each.down.to_string(), "none");
    assert_eq!(each.congestion, hoplite_wire::tuning::Congestion::Off);
    let up = tuning_request("acks = \"none-up\"");
    assert_eq!(
        (up.up.to_string(), up.down.to_string()),
        ("none".into(), "default".into())
    );
    assert_eq!(
        tuning_request("acks = { down = \"1ms\" }").up.to_string(),
        "auto"
    );
    assert_eq!(
        tuning_request(""),
        hoplite_wire::tuning::TuningRequest::default()
    );
}

#[test]
fn a_relay_acknowledges_as_clients_ask_or_as_its_file_says() {
    let grants = |line: &str| {
        let text = relay_tunnel(line);
        let relay = relay::read(&document(&text).expect("valid")).expect("right");
        assert_eq!(
            kind(&document(&text).expect("valid")).expect("clear"),
            Kind::Relay
        );
        relay.config.tunnel.grants()
    };
    assert_eq!(grants(""), hoplite_wire::tuning::TuningGrant::default());
    assert_eq!(grants("acks = \"1ms\"").acks.to_string(), "1ms");
    assert!(!grants("allow_no_acks = false").no_acks);
    assert_eq!(
        grants("congestion = \"bbr\""),
        hoplite_wire::tuning::TuningGrant::default()
    );
    let error = relay_error(&relay_tunnel("congestion = \"fast\""));
    assert_eq!(
        error,
        "f.toml:3:14: tunnel.congestion: \"fast\": expected \"auto\", \"cubic\", \"bbr\", \"newreno\" or \"off\": correct the value"
    );
}

#[test]
fn a_client_without_relays_has_none_in_its_file_and_is_warned() {
    for text in ["overlay = \"direct\"\n", "overlay = \"direct\"\nhops = 0\n"] {
        let client = client::read(&document(text).expect("valid")).expect("right");
        assert_eq!(client.config.length(), 0);
        assert!(
            client.warnings[0].contains("nothing is hidden"),
            "{:?}",
            client.warnings
        );
        assert_eq!(
            kind(&document(text).expect("valid")).expect("clear"),
            Kind::Client
        );
    }
    let error = client_error(&two_relays(
        "overlay = \"direct\"\npath = [\"a\"]\nhops = 1",
    ));
    let lines: Vec<_> = error.lines().collect();
    let why =
        "overlay = \"direct\" uses no relay and hides nothing: remove it, or remove `overlay`";
    assert_eq!(lines.len(), 3, "{error}");
    assert_eq!(lines[1], format!("f.toml:2:1: path: {why}"));
    assert_eq!(lines[2], format!("f.toml:3:8: hops: {why}"));
    assert_eq!(
        client_error("hops = 0\n"),
        "f.toml:1:8: hops: expected 1 to 4, found 0: for measurements without any relay there is overlay = \"direct\""
    );
}

#[test]
fn a_client_whose_forwarded_packets_can_be_matched_is_warned() {
    let warned = |text: &str| {
        let client = client::read(&document(&two_relays(text)).expect("valid")).expect("right");
        let warnings = client.warnings.into_iter();
        warnings
            .filter(|warning| warning.contains("identity"))
            .count()
    };
    let identity = "hops = 2\ntunnel = { transform = \"identity\" }";
    assert_eq!(warned(identity), 1);
    assert_eq!(warned("hops = 2"), 0);
    let tunnelled = "hops = 2\ntunnel = { transform = \"identity\", mode = \"tunnelled\" }";
    assert_eq!(warned(tunnelled), 0);
}

#[test]
fn a_bad_pin_is_named_with_its_relay() {
    let text = "hops = 1\n[[relay]]\nname = \"a\"\naddress = \"a:1\"\npin = \"sha256:abc\"\n";
    let error = client_error(text);
    assert!(error.starts_with("f.toml:5:7: relay[0].pin: "), "{error}");
    assert!(error.contains("sha256:"), "{error}");
}

#[test]
fn a_relay_without_an_address_is_refused() {
    assert_eq!(
        client_error("hops = 1\n[[relay]]\nname = \"a\"\n"),
        "f.toml:2:1: relay[0]: the key \"address\" is missing: add it"
    );
    assert_eq!(
        client_error("hops = 1\n[[relay]]\nname = \"a\"\naddress = \"a.example\"\n"),
        "f.toml:4:11: relay[0].address: expected \"host:port\", found \"a.example\": \
         port is missing or not in 1..=65535: correct the value"
    );
}

#[test]
fn a_path_over_an_unknown_relay_is_refused() {
    assert_eq!(
        client_error(&two_relays("path = [\"a\", \"bb\"]")),
        "f.toml:1:14: path[1]: no [[relay]] has the name \"bb\": did you mean \"b\"?"
    );
}

#[test]
fn a_path_needs_an_ingress_first_and_an_egress_last() {
    let text = two_relays("path = [\"b\", \"a\"]")
        .replace("name = \"a\"", "name = \"a\"\nroles = [\"ingress\"]");
    assert_eq!(
        client_error(&text),
        "f.toml:1:14: path[1]: the last relay of a path must have the role \"egress\", \
         and \"a\" has not: change the path, or correct the roles"
    );
    let text = text.replace("ingress", "egress");
    let text = text.replace("[\"b\", \"a\"]", "[\"a\", \"b\"]");
    assert_eq!(
        client_error(&text),
        "f.toml:1:9: path[0]: the first relay of a path must have the role \"ingress\", \
         and \"a\" has not: change the path, or correct the roles"
    );
}

#[test]
fn a_path_has_one_to_four_different_relays() {
    let first = "f.toml:1:1: path: ";
    assert!(client_error(&two_relays("")).starts_with(first));
    let twice = client_error(&two_relays("path = [\"a\", \"a\"]"));
    assert_eq!(
        twice,
        "f.toml:1:14: path[1]: \"a\" stands twice on the path: use each relay once"
    );
    let five = client_error(&two_relays("hops = 5"));
    assert_eq!(
        five,
        "f.toml:1:8: hops: expected 1 to 4, found 5: correct the number"
    );
    let both = client_error(&two_relays("path = [\"a\"]\nhops = 1"));
    assert_eq!(
        both,
        "f.toml:2:8: hops: `path` and `hops` are both given: keep one of them"
    );
}

#[test]
fn another_path_is_checked_as_the_first_one_is() {
    let with = |route: &str| format!("{}\n[[route]]\n{route}\n", two_relays("path = [\"a\"]"));
    let right = with("domains = [\"example.org\"]\npath = [\"b\"]");
    client::read(&document(&right).expect("TOML")).expect("right");
    for (route, expected) in [
        (
            "path = [\"b\"]",
            "route[0].domains: no name takes this path: name the domains that do",
        ),
        (
            "domains = [\"example.org\"]\npath = [\"c\"]",
            "route[0].path[0]: no [[relay]] has the name \"c\"",
        ),
        (
            "domains = [\"example.org\"]",
            "route[0].path: neither `path` nor `hops` is given",
        ),
        (
            "domains = [\"example.org\"]\nhops = 9",
            "route[0].hops: expected 1 to 4, found 9",
        ),
    ] {
        let error = client_error(&with(route));
        assert!(error.contains(expected), "{error}");
    }
    let twice = format!("{right}[[route]]\ndomains = [\"example.org\"]\nhops = 1\n");
    let error = client_error(&twice);
    assert!(
        error.contains("route[1].domains: another path has \"example.org\" already"),
        "{error}"
    );
    let circuits = right.replace("path = [\"a\"]", "path = [\"a\"]\noverlay = \"onion\"");
    let error = client_error(&circuits);
    assert!(
        error.contains("route[0].domains: other paths are tunnels over relays of this file"),
        "{error}"
    );
}

#[test]
fn only_some_names_are_taken_for_all_users_and_where_we_are_asked() {
    let with = |takeover: &str| format!("{}[takeover]\n{takeover}\n", two_relays("path = [\"a\"]"));
    let domains = "include.domains = [\"example.org\"]";
    let error = client_error(&with(&format!(
        "{domains}\ninclude.users = [7]\ndns = \"off\""
    )));
    assert!(
        error.contains("takeover.include.domains: a name is taken for all users, or for none"),
        "{error}"
    );
    assert!(
        error.contains("takeover.dns = \"off\" leaves that to others"),
        "{error}"
    );
    client::read(&document(&with(domains)).expect("TOML")).expect("right");
}

#[test]
fn an_interface_is_excluded_or_included_and_is_not_ours() {
    let with = |takeover: &str| format!("{}[takeover]\n{takeover}\n", two_relays("path = [\"a\"]"));
    let both = "exclude.interfaces = [\"wg0\"]\ninclude.interfaces = [\"wg0\"]";
    let error = client_error(&with(both));
    assert!(
        error.contains("takeover.include.interfaces: \"wg0\" is excluded as well"),
        "{error}"
    );
    for name in ["lo", "hoplite0"] {
        let error = client_error(&with(&format!("exclude.interfaces = [\"{name}\"]")));
        assert!(error.contains("nothing leaves this machine by"), "{error}");
    }
    let right = "exclude.interfaces = [\"wg0\"]\ninclude.cgroups = [\"vpn.slice\"]";
    client::read(&document(&with(right)).expect("TOML")).expect("right");
}

#[test]
fn more_hops_than_relays_are_refused() {
    let error = client_error(&two_relays("hops = 3"));
    assert!(
        error.starts_with("f.toml:1:8: hops: the 2 relays do not allow a path of 3: "),
        "{error}"
    );
}

#[test]
fn every_problem_of_a_file_is_told_at_once() {
    let text = two_relays("path = [\"c\", \"d\"]").replace("name = \"b\"", "name = \"a\"");
    assert_eq!(client_error(&text).lines().count(), 3);
}

#[test]
fn a_token_never_stands_in_a_complaint() {
    let error = client_error("hops = 1\ntoken = 12345\n");
    assert_eq!(
        error,
        "f.toml:2:9: token: expected a string: correct the value"
    );
}

#[test]
fn a_missing_token_file_is_named() {
    let error = client_error(&two_relays("path = [\"a\"]\ntoken_file = \"no/such\""));
    assert!(
        error.starts_with("f.toml:2:14: token_file: no/such: "),
        "{error}"
    );
}

#[test]
fn a_relay_for_everybody_must_be_meant() {
    let error = relay_error("name = \"a\"\nlisten = [\"0.0.0.0:443\"]\n");
    assert!(
        error.starts_with("f.toml:1:1: auth.token: without a token anybody"),
        "{error}"
    );
}

#[test]
fn a_file_says_by_its_keys_what_it_is_for() {
    let kind_of = |text| document(text).and_then(|d| kind(&d));
    assert_eq!(kind_of("hops = 2\n").expect("clear"), Kind::Client);
    assert_eq!(kind_of("listen = []\n").expect("clear"), Kind::Relay);
    let unclear = |text| strip(&kind_of(text).expect_err("unclear"));
    assert!(unclear("[limits]\n").starts_with("f.toml:1:1: neither"));
    let both = unclear("hops = 2\nlisten = []\n");
    assert!(
        both.contains("`hops` belongs into a client's file, `listen` into a relay's"),
        "{both}"
    );
}

#[test]
fn two_names_of_one_relay_are_refused_on_a_path() {
    let text = two_relays("path = [\"a\", \"b\"]") + &format!("pin = \"{PIN}\"\n");
    assert_eq!(
        client_error(&text),
        "f.toml:1:14: path[1]: \"a\" and \"b\" are one relay: their pins are the same: use each relay once"
    );
}

/// The example with its commented keys made keys: `# key = value` and `# [table]`.
fn uncommented(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) => rest.to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn is_key(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// Keys that have no default: the example shows what they look like.
fn without(text: &str, keys: &[&str]) -> String {
    let stays = |line: &&str| {
        !keys
            .iter()
            .any(|key| line.starts_with(&format!("{key} = ")))
    };
    text.lines().filter(stays).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_client_example_is_right_and_its_comments_are_the_defaults() {
    let text = include_str!("../../../../examples/client.toml");
    let plain = client::read(&document(text).expect("valid"))
        .expect("right")
        .config;
    let keyless = [
        "hops",
        "token",
        "token_file",
        "region",
        "operator",
        "template",
        "issuer",
        "origin",
        "user",
    ];
    let spelt_out = without(&uncommented(text), &keyless);
    assert!(
        spelt_out.contains("\nlisten = \"127.0.0.1:8118\"")
            && spelt_out.contains("\nisolated = 64")
            && spelt_out.contains("\noverlay = \"masque\"")
    );
    let spelt_out = client::read(&document(&spelt_out).expect("valid"))
        .expect("right")
        .config;
    assert_eq!(spelt_out, plain);
    let rest = client::Config {
        relay: Vec::new(),
        path: Vec::new(),
        ..plain
    };
    assert_eq!(rest, client::Config::default());
}

#[test]
fn the_relay_example_is_right_and_its_comments_are_the_defaults() {
    let text = include_str!("../../../../examples/relay.toml");
    let plain: hoplite_relay::Config = value(&document(text).expect("valid")).expect("right");
    relay::read(&document(text).expect("valid")).expect("right");
    let text = without(&uncommented(text), &["template", "tcp_template"]);
    let spelt_out = text.replace("listen = \"127.0.0.1:9090\"", "");
    let spelt_out: hoplite_relay::Config =
        value(&document(&spelt_out).expect("valid")).expect("right");
    let auth = |config: &hoplite_relay::Config| config.auth.token.len();
    assert_eq!((auth(&plain), auth(&spelt_out)), (1, 1));
    let no_mail = ["*:25".parse().expect("a rule")];
    for config in [&plain, &spelt_out] {
        assert_eq!(
            config.egress.deny, no_mail,
            "the only one that is no default"
        );
    }
    let rest = |mut config: hoplite_relay::Config| {
        config.egress.deny.clear();
        hoplite_relay::Config {
            auth: Default::default(),
            ..config
        }
    };
    assert_eq!(rest(plain), hoplite_relay::Config::default());
    assert_eq!(rest(spelt_out), hoplite_relay::Config::default());
}

/// The tables of a page that have a section's name over their first column and its keys below, with their defaults in the second: as TOML.
fn tables(page: &str) -> String {
    let mut sections = String::new();
    let mut inside = false;
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (first, second) = match cells[..] {
            ["", first, second, ..] => (first, second),
            _ => ("", ""),
        };
        let section = first.trim_matches('`');
        if section.starts_with('[') && second == "default" {
            sections.push_str(&format!("{section}\n"));
            inside = true;
        } else if first.is_empty() {
            inside = false;
        } else if inside && first.starts_with('`') && second != "none" {
            let keys: Vec<&str> = first.split(", ").collect();
            let values = if keys.len() > 1 {
                second.split(", ").collect()
            } else {
                vec![second]
            };
            assert_eq!(keys.len(), values.len(), "{line}");
            for (key, value) in keys.iter().zip(values) {
                let plain = |text: &str| text.replace('`', "");
                sections.push_str(&format!("{} = {}\n", plain(key), plain(value)));
            }
        }
    }
    sections
}

#[test]
fn the_tables_for_operators_have_the_defaults() {
    let text = tables(include_str!("../../../../docs/operating.md"));
    assert!(
        text.contains("[forwarding]\n")
            && text.contains("\nids = 262144")
            && text.contains("\nechoes = 10000"),
        "{text}"
    );
    let said: hoplite_relay::Config = value(&document(&text).expect("valid")).expect("right");
    assert_eq!(said, hoplite_relay::Config::default());
}

#[test]
fn a_chosen_path_never_uses_one_operator_twice() {
    let text = two_relays("hops = 2").replace("name = ", "operator = \"o\"\nname = ");
    let error = client_error(&text);
    assert!(
        error.starts_with("f.toml:1:8: hops: the 2 relays do not allow a path of 2: "),
        "{error}"
    );
}

#[test]
fn the_directory_example_is_right_and_its_comments_are_the_defaults() {
    let text = include_str!("../../../../examples/directory.toml");
    let document_of = |text: &str| document(text).expect("valid");
    assert_eq!(kind(&document_of(text)).expect("clear"), Kind::Directory);
    let plain = directory::read(&document_of(text)).expect("right");
    let spelt_out = directory::read(&document_of(&uncommented(text))).expect("right");
    assert_eq!(spelt_out, plain);
    let (trust, default) = (plain.trust(), directory::Config::default());
    assert_eq!((trust.authorities.len(), trust.threshold), (3, 2));
    let rest = directory::Config {
        authorities: Vec::new(),
        ..plain
    };
    assert_eq!(rest, default);
}

#[test]
fn the_issuer_example_is_right_and_its_comments_are_the_defaults() {
    let text = include_str!("../../../../examples/issuer.toml");
    let document_of = |text: &str| document(text).expect("valid");
    assert_eq!(kind(&document_of(text)).expect("clear"), Kind::Issuer);
    let plain = issuer::read(&document_of(text)).expect("right");
    let spelt_out = issuer::read(&document_of(&uncommented(text))).expect("right");
    assert_eq!(spelt_out, plain);
    let rest = issuer::Config {
        account: Vec::new(),
        ..plain
    };
    assert_eq!(rest, issuer::Config::default());
}

#[test]
fn what_is_wrong_with_an_issuers_file_is_told_by_key() {
    let file = |text: &str| {
        let text = format!("[[account]]\nname = \"ann\"\ntoken = \"t\"\n{text}");
        let wrong = issuer::read(&document(&text).expect("valid")).expect_err("wrong");
        wrong.to_string()
    };
    for (text, key) in [
        (
            "[[account]]\nname = \"ann\"\ntoken = \"u\"\n",
            "account[1].name",
        ),
        ("[[account]]\nname = \"bob\"\n", "account[1].token"),
        (
            "[[account]]\nname = \"bob\"\ntoken_file = \"absent\"\n",
            "account[1].token_file",
        ),
        ("[page]\nissuer = \"\"\n", "page.issuer"),
        (
            "[page]\nissuer = \"i\"\nrelay = [{ origin = \"a,b\" }]\n",
            "page.relay[0].origin",
        ),
        (
            "[page]\nissuer = \"i\"\nrelay = [{ origin = \"a\", address = \"a b\" }]\n",
            "page.relay[0].address",
        ),
        (
            "[oidc]\nissuer = \"http://a.test\"\naudience = \"a\"\n",
            "oidc.issuer",
        ),
        (
            "[oidc]\nissuer = \"https://a.test\"\naudience = \"\"\n",
            "oidc.audience",
        ),
        (
            "[oidc]\nissuer = \"https://a.test\"\naudience = \"a\"\nrefresh = 59\n",
            "oidc.refresh",
        ),
        (
            "[oidc]\nissuer = \"https://a.test\"\naudience = \"a\"\nretry = 3601\n",
            "oidc.retry",
        ),
        (
            "[oidc]\nissuer = \"a\"\naudience = \"a\"\nkeys = \"k\"\nroots = \"r\"\n",
            "oidc.roots",
        ),
        ("[limits]\nbatch = 0\n", "limits.batch"),
        ("[limits]\nrequest = 0\n", "limits.request"),
    ] {
        let told = file(text);
        assert!(told.contains(key), "{told}");
    }
    let start = "tokens = \"voprf\"\n";
    let account = "[[account]]\nname = \"ann\"\ntoken = \"t\"\n";
    let of = |text: &str| issuer::read(&document(text).expect("valid"));
    let told = of(&format!("{start}{account}")).expect_err("no relay could verify them");
    assert!(told.to_string().contains("`secrets`"), "{told}");
    let start = format!("{start}secrets = \"s\"\n");
    let read = of(&format!("{start}{account}")).expect("right");
    assert_eq!(read.tokens, issuer::Tokens::Voprf);
    let told = of(&format!("{start}{account}[page]\nissuer = \"i\"\n")).expect_err("no page");
    assert!(told.to_string().contains("blind RSA alone"), "{told}");
}

#[test]
fn what_is_wrong_with_private_tokens_in_a_clients_file_is_told_by_key() {
    let issuer = "[[issuer]]\nname = \"i\"\naddress = \"i.example:1\"\ntoken = \"t\"\n";
    let relay = "[[relay]]\nname = \"a\"\naddress = \"a.example:1\"\n";
    let told = |text: String| {
        let text = format!("path = [\"a\"]\n{text}");
        client::read(&document(&text).expect("valid"))
            .map(drop)
            .map_err(|it| it.to_string())
    };
    told(format!(
        "{issuer}{relay}issuer = \"i\"\norigin = \"fleet\"\n"
    ))
    .expect("right");
    for (text, key) in [
        (
            format!("{issuer}{relay}issuer = \"j\"\n"),
            "relay[0].issuer",
        ),
        (
            format!("{issuer}{relay}issuer = \"i\"\ntoken = \"t\"\n"),
            "relay[0].issuer",
        ),
        (format!("{relay}origin = \"fleet\"\n"), "relay[0].origin"),
        (format!("{issuer}keep = 1\n{relay}"), "issuer[0].keep"),
        (format!("{issuer}{issuer}{relay}"), "issuer[1].name"),
        (
            format!("{}{relay}", issuer.replace("token = \"t\"\n", "")),
            "issuer[0].token",
        ),
    ] {
        let why = told(text).expect_err("wrong");
        assert!(why.contains(key), "{key}: {why}");
    }
}

const AUTHORITY: &str = "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo@dir.example:9030";

#[test]
fn wrong_authorities_and_thresholds_are_named() {
    let client = |table: &str| client_error(&format!("hops = 2\n[directory]\n{table}\n"));
    assert_eq!(
        client("threshold = 1"),
        "f.toml:2:2: directory.authorities: expected 1 to 32 authorities, found 0: name them as \"ed25519:…@host:port\""
    );
    let twice = client(&format!(
        "authorities = [{AUTHORITY:?}, {AUTHORITY:?}]\nthreshold = 1"
    ));
    assert!(
        twice.contains("directory.authorities[1]: this key stands there twice")
            && twice.contains(
                "directory.threshold: expected more than half of 2 authorities and 0 hostile ones, hence 2 to 2, found 1"
            ),
        "{twice}"
    );
    let three: Vec<String> = [
        "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
        "PUAXw-hDiVqStwqnTRt-vJyYLM8uxJaMwM1V8Sr0Zgw",
        "_FHNjmIYoaONpH7QAjDwWAgW7RO6MwOsXeuRFUiQgCU",
    ]
    .map(|key| format!("ed25519:{key}@dir.example:9030"))
    .into();
    let hostile = client(&format!(
        "authorities = {three:?}\nthreshold = 2\nhostile = 1"
    ));
    assert!(
        hostile.contains(
            "threshold: expected more than half of 3 authorities and 1 hostile ones, hence 3 to 3, found 2"
        ),
        "{hostile}"
    );
    let all = client(&format!("authorities = {three:?}\nhostile = 3"));
    assert!(
        all.contains("of 3 authorities 3 cannot be hostile"),
        "{all}"
    );
    let word = client(&format!("authorities = {three:?}\nhostile = \"half\""));
    assert!(word.contains("expected a number, or \"third\""), "{word}");
    let wrong = client("authorities = [\"dir.example:9030\"]");
    let expected = "f.toml:3:15: directory.authorities: \"dir.example:9030\": expected \"ed25519:…@host:port\"";
    assert!(wrong.starts_with(expected), "{wrong}");
    let wrong = relay_error("listen = []\n[directory]\nauthorities = [\"dir.example:9030\"]");
    assert!(wrong.starts_with(expected), "{wrong}");
    let apart = client(&format!(
        "authorities = [{AUTHORITY:?}]\napart = [\"colour\"]"
    ));
    assert!(
        apart.contains("directory.apart: expected \"family\""),
        "{apart}"
    );
    let both = client_error(&two_relays(&format!(
        "hops = 2\ndirectory.authorities = [{AUTHORITY:?}]"
    )));
    assert!(
        both.contains("keep one of [[relay]] and [directory]"),
        "{both}"
    );
}

#[test]
fn wrong_times_limits_and_caps_of_an_authority_are_named() {
    let text = format!("authorities = [{AUTHORITY:?}]\ninterval = 10\nvoting = 3\n");
    let failure = document(&text).and_then(|d| directory::read(&d).map(drop));
    let error = strip(&failure.expect_err("wrong"));
    assert!(error.starts_with("f.toml:3:10: voting: "), "{error}");
    for (line, wrong) in [
        (
            "admission.per_24 = 0",
            "admission.per_24: expected at least 1",
        ),
        (
            "admission.reaches = []",
            "admission.reaches: expected \"ipv4\"",
        ),
        ("admission.reaches = [\"ipx\"]", "expected \"ipv4\""),
        (
            "limits.uploads = 0",
            "limits.uploads: expected at least 1 a minute",
        ),
        (
            "limits.bytes = 1000",
            "limits.bytes: expected at least 8388608",
        ),
    ] {
        let text = format!("authorities = [{AUTHORITY:?}]\n{line}\n");
        let failure = document(&text).and_then(|d| directory::read(&d).map(drop));
        let error = strip(&failure.expect_err(line));
        assert!(
            error.starts_with("f.toml:2:") && error.contains(wrong),
            "{error}"
        );
    }
}

#[test]
fn a_relay_that_is_told_to_the_directory_says_where_it_is() {
    let text = "auth.open = true\ndirectory.publish = [\"dir.example:9030\"]\n";
    let error = relay_error(text);
    assert!(
        error.contains("directory.addresses: expected 1 to 4 addresses"),
        "{error}"
    );
    let text = format!(
        "{text}directory.operator = \"two words\"\ndirectory.addresses = [\"192.0.2.1:443\"]\n"
    );
    assert!(relay_error(&text).contains("directory.operator: expected letters"));
}

const KEY: &str =
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// A file for circuits over relays `a`, `b`, …, each with a key of its own.
fn circuits(first_lines: &str, relays: &[&str]) -> String {
    let relay = |(i, name): (usize, &&str)| {
        let key = KEY.replacen(
            'A',
            &char::from(b'B' + u8::try_from(i).unwrap()).to_string(),
            1,
        );
        format!("[[relay]]\nname = {name:?}\naddress = \"192.0.2.{i}:443\"\nonion = {key:?}\n")
    };
    let relays = relays.iter().enumerate().map(relay).collect::<String>();
    format!("overlay = \"onion\"\n{first_lines}\n{relays}")
}

#[test]
fn a_path_of_circuits_has_one_to_eight_relays_with_keys_and_addresses() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let right = circuits(&format!("path = {:?}", &names[..8]), &names);
    let client = client::read(&document(&right).expect("valid")).expect("right");
    assert!(client.config.is_onion() && client.config.length() == 8);
    assert!(!client.config.front().socks.udp, "UDP is refused at once");
    let long = circuits(&format!("path = {names:?}"), &names);
    let error = client_error(&long);
    assert!(
        error.starts_with("f.toml:2:1: path: expected 1 to 8 relays, found 9"),
        "{error}"
    );
    let named = right.replace("192.0.2.1:443", "b.example:443");
    let error = client_error(&named);
    assert_eq!(
        error,
        "f.toml:9:11: relay[1].address: circuits are extended to addresses, not to names: write its IP address and port"
    );
    let keyless = circuits("path = [\"a\"]", &["a"]).replace("onion = \"B", "# ");
    let error = client_error(&keyless);
    assert_eq!(
        error,
        "f.toml:3:1: relay[0].onion: overlay = \"onion\" needs the onion key of \"a\": `hoplite keygen --show DIR` prints it on the relay"
    );
}

#[test]
fn a_wrong_onion_key_and_one_relay_under_two_names_are_refused() {
    let right = circuits("path = [\"a\", \"b\"]", &["a", "b"]);
    let error = client_error(&right.replace("onion = \"B", "onion = \"!"));
    assert!(error.starts_with("f.toml:6:9: relay[0].onion: "), "{error}");
    assert!(error.contains("86 characters of base64url"), "{error}");
    let error = client_error(&right.replace("onion = \"C", "onion = \"B"));
    assert!(
        error.contains("path[1]: \"a\" and \"b\" are one relay: the identity in their onion keys"),
        "{error}"
    );
    let error = client_error(&right.replace("onion = \"B", "rsa = \"12\"\nonion = \"B"));
    assert!(
        error.contains("relay[0].rsa: \"12\": a relay's `rsa` is 40 hex"),
        "{error}"
    );
    let error = client_error(&right.replace("onion = \"B", "protocols = \"Relay=7\"\nonion = \"B"));
    assert!(
        error.contains("relay[0].protocols: \"Relay=7\": expected some of `Conflux=1"),
        "{error}"
    );
}

#[test]
fn numbers_of_circuits_that_make_no_sense_are_named() {
    let with = |line: &str| circuits(&format!("path = [\"a\"]\nonion.{line}"), &["a"]);
    let error = client_error(&with("attempts = 0"));
    assert_eq!(
        error,
        "f.toml:3:18: onion.attempts: expected 1 to 16: correct the number"
    );
    let error = client_error(&with("channel = \"udp\""));
    assert!(
        error.contains("onion.channel: \"udp\" is not a value of this key"),
        "{error}"
    );
    let error = client_error(&circuits("hops = 2", &["a", "b"]));
    assert!(
        error.contains("hops: with overlay = \"onion\", relays are chosen"),
        "{error}"
    );
}

#[test]
fn the_example_of_circuits_is_right_and_its_comments_are_the_defaults() {
    let text = include_str!("../../../../examples/client-onion.toml");
    let read = |text: &str| {
        let client = client::read(&document(text).expect("valid"));
        client.expect("right").config
    };
    let plain = read(text);
    assert!(plain.is_onion() && plain.onion == hoplite_onion::Config::default());
    let spelt_out = without(
        &uncommented(text),
        &["rsa", "protocols", "client_keys", "control"],
    );
    assert!(spelt_out.contains("\nahead = ") && spelt_out.contains("\nchannel = \"auto\""));
    assert_eq!(read(&spelt_out), plain);
}

#[test]
fn the_example_of_a_network_of_tor_is_right_and_its_comments_are_the_defaults() {
    let text = include_str!("../../../../examples/client-tor.toml");
    let read = |text: &str| {
        let client = client::read(&document(text).expect("valid"));
        client.expect("right").config
    };
    let plain = read(text);
    let tor = plain.directory.as_ref().and_then(|it| it.tor.as_ref());
    assert_eq!(tor.map(|tor| tor.authorities.len()), Some(3));
    assert_eq!(plain.length(), 3);
    let spelt_out = without(&uncommented(text), &["hops"]);
    assert!(spelt_out.contains("\ntesting = ") && spelt_out.contains("\napart = "));
    assert_eq!(read(&spelt_out), plain);
}

#[test]
fn the_example_of_a_scanner_is_right_and_its_comments_are_the_defaults() {
    let text = include_str!("../../../../examples/scan.toml");
    let scan = |text: &str| {
        let read = client::read(&document(text).expect("a document")).expect("right");
        read.config.scan.expect("a scanner")
    };
    let as_it_is = scan(text);
    assert_eq!(as_it_is.reached().port(), 8800);
    let defaults = client::scan::Scan {
        target: as_it_is.target,
        ..Default::default()
    };
    assert_eq!(as_it_is, defaults);
    assert_eq!(scan(&uncommented(text)), defaults);
    let without_target = text.replace("target = ", "# target = ");
    let nowhere = client_error(&without_target);
    assert!(nowhere.contains("scan.target"), "{nowhere}");
    let over_hops = text.replace("overlay = \"onion\"", "hops = 2");
    assert!(
        client_error(&over_hops).contains("overlay"),
        "circuits alone"
    );
}

#[test]
fn what_is_wrong_with_a_network_of_tor_is_told_by_its_key() {
    let text = include_str!("../../../../examples/client-tor.toml");
    let first = "\"4CB0A1456D97AECE1CF5F2A1F60A987D443C405C@192.0.2.1:7000\",";
    let own = "[directory]\nauthorities = [\"ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA@192.0.2.1:8080\"]";
    for (from, to, expected) in [
        (
            "\noverlay = \"onion\"\n",
            "\nhops = 2\n",
            "directory.tor: relays of Tor's network carry circuits alone",
        ),
        (
            "[directory]",
            own,
            "directory.authorities: this is of lists",
        ),
        (
            "[directory]",
            "[directory]\nregion = \"DE\"",
            "directory.region: this is of lists",
        ),
        (
            first,
            &format!("{first}{first}"),
            "directory.tor.authorities: expected 1 to 64 authorities, each once",
        ),
        (
            first,
            "\"4CB0@192.0.2.1:7000\",",
            "FINGERPRINT@ADDRESS:PORT",
        ),
    ] {
        let error = client_error(&text.replacen(from, to, 1));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_example_of_onion_services_is_right_and_its_comments_are_the_defaults() {
    let text = include_str!("../../../../examples/onion-service.toml");
    let read = |text: &str| {
        let client = client::read(&document(text).expect("valid"));
        client.expect("right").config
    };
    let plain = read(text);
    assert_eq!(plain.service.len(), 1);
    let spelt_out = uncommented(text);
    assert!(spelt_out.contains("\nstreams = ") && spelt_out.contains("\nintroduction_points = "));
    assert_eq!(read(&spelt_out), plain);
}

#[test]
fn what_is_wrong_with_an_onion_service_is_told_by_its_key() {
    let text = include_str!("../../../../examples/onion-service.toml");
    let told = |from: &str, to: &str| client_error(&text.replacen(from, to, 1));
    let ports = "ports = [\"80=127.0.0.1:8080\", \"22=unix:/run/ssh.sock\"]";
    for (from, to, expected) in [
        (
            "\noverlay = \"onion\"\n",
            "\nhops = 2\n",
            "service: onion services are served over circuits",
        ),
        (
            ports,
            "ports = []",
            "service[0].ports: expected 1 to 256 ports",
        ),
        (
            ports,
            "ports = [\"80\"]",
            "service[0].ports: \"80\": expected a port and where it leads",
        ),
        (
            ports,
            "ports = [\"80=[::1]:1\", \"80=[::1]:2\"]",
            "service[0].ports[1]: port 80 leads somewhere already",
        ),
        (
            "# introduction_points = 3",
            "introduction_points = 11",
            "service[0].introduction_points: expected 1 to 10",
        ),
        (
            "# streams = 1024",
            "streams = 0",
            "service[0].streams: expected 1 to 65535",
        ),
    ] {
        let error = told(from, to);
        assert!(error.contains(expected), "{error}");
        assert!(error.starts_with("f.toml:"), "{error}");
    }
    let twice = format!("{text}[[service]]\nkeys = \"web.keys\"\n{ports}\n");
    let error = client_error(&twice);
    assert!(
        error.contains("service[1].keys: another service"),
        "{error}"
    );
    let nowhere = text.replacen(
        "\n[directory]",
        "\nonion.client_keys = \"/nowhere\"\n[directory]",
        1,
    );
    let error = client_error(&nowhere);
    assert!(
        error.contains("onion.client_keys") && error.contains("/nowhere"),
        "{error}"
    );
}

#[test]
fn a_relay_gives_a_client_as_many_circuits_as_its_isolation_tokens_may_come_to() {
    let client = hoplite_onion::Config::default();
    let tokens = client.isolated * hoplite_onion::client::OF_A_TOKEN;
    let given = hoplite_relay::config::Onion::default().circuits_per_client;
    // A quarter is left for circuits that end with their last stream, and for those that are late.
    assert!(
        tokens + client.ahead <= given as usize * 3 / 4 + 1,
        "{tokens} of {given}"
    );
}

#[test]
fn a_client_says_what_is_shown_of_its_region() {
    let tunnel = |keys: &str| {
        let text = include_str!("../../../../examples/client.toml");
        let text = text.replacen("\n[tunnel]\n", &format!("\n[tunnel]\n{keys}\n"), 1);
        let read = client::read(&document(&text).expect("valid"));
        read.map(|client| client.config.tunnel)
    };
    let tunnel_of = |keys| tunnel(keys).expect("right");
    assert_eq!(tunnel_of("").region, ShownRegion::None);
    assert_eq!(tunnel_of("region = \"keep\"").region, ShownRegion::Keep);
    let country = tunnel_of("region = \"country\"\nzone = \"Europe/Berlin\"");
    assert_eq!(country.region, ShownRegion::Country);
    assert_eq!(
        country.zone.map(|zone| zone.to_string()).as_deref(),
        Some("Europe/Berlin")
    );
    for wrong in ["region = \"city\"", "zone = \"+2\""] {
        tunnel(wrong).expect_err(wrong);
    }
}

#[test]
fn a_relay_is_told_where_exactly_its_issuers_keys_have_no_address() {
    let start = "listen = [\"127.0.0.1:1\"]\n[auth.private_tokens]\nissuer = \"i\"\norigin = \"o\"\nkeys = \"k\"\n";
    for address in ["https://", "https://a:b@host/", "ftp://host"] {
        let text = format!("{start}directory = \"{address}\"\n");
        let told = relay::read(&document(&text).expect("valid"));
        let told = told.expect_err("wrong").to_string();
        let place = told.contains("auth.private_tokens.directory") && told.contains(":6");
        assert!(place, "{address}: {told}");
    }
}

#[test]
fn what_is_wrong_with_a_relays_store_of_spent_tokens_is_told_by_line_and_key_without_its_password()
{
    let start = "listen = [\"127.0.0.1:1\"]\n[auth.private_tokens]\nissuer = \"i\"\norigin = \"o\"\nkeys = \"k\"\n";
    for (rest, key) in [
        (
            "store = \"redis://:secret@host\"",
            "auth.private_tokens.store",
        ),
        (
            "store = { url = [\"secret\"] }",
            "auth.private_tokens.store.url",
        ),
        (
            "store = { url = \"secret\" }",
            "auth.private_tokens.store.url",
        ),
        (
            "store = { url_file = \"nowhere\" }",
            "auth.private_tokens.store.url_file",
        ),
        (
            "spent = \"s\"\nstore = { url = \"redis://:secret@host\" }",
            "auth.private_tokens.spent",
        ),
    ] {
        let document = document(&format!("{start}{rest}\n")).expect("valid");
        let told = relay::read(&document).expect_err("wrong").to_string();
        assert!(told.contains(key) && told.contains(":6"), "{rest}: {told}");
        assert!(!told.contains("secret"), "{told}");
    }
}

#[test]
fn rivals_of_the_lab_are_refused_by_a_program_that_is_not_built_for_it() {
    let of_client = circuits("path = [\"a\"]\nonion.rival = \"one-stream\"", &["a"]);
    let of_relay =
        "listen = [\"127.0.0.1:443\"]\n[onion]\nenabled = true\nrival = \"stream-per-stream\"\n";
    if cfg!(feature = "rivals") {
        assert!(client::read(&document(&of_client).expect("valid")).is_ok());
        assert!(relay::read(&document(of_relay).expect("valid")).is_ok());
    } else {
        for error in [client_error(&of_client), relay_error(of_relay)] {
            assert!(
                error.contains("onion.rival: circuits would be slower"),
                "{error}"
            );
            assert!(error.contains("remove the key"), "{error}");
        }
    }
    let error = client_error(&of_client.replace("one-stream", "no-stream"));
    assert!(error.contains("onion.rival"), "{error}");
}
