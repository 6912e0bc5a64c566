//! What the file may say, and what is said about a wrong one.

use std::{fs, time::Duration};

use super::*;

fn read(text: &str) -> Result<Config, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

fn checked(text: &str) -> Result<Config, String> {
    let config = read(text)?;
    config.check().map_err(|error| error.to_string())?;
    Ok(config)
}

const FULL: &str = r#"
name = "amber"
listen = ["127.0.0.1:4433", "[::1]:4433"]
roles = ["ingress"]
identity = "keys"
[tls]
cert = "cert.pem"
key = "key.pem"
[[auth.token]]
name = "alice"
token = "secret"
[[auth.token]]
file = "bob.token"
[fleet]
config = 2
server_id = "0a"
key = "fleet.key"
[egress]
allow = ["10.0.0.0/8", "[fd00::]/8:443", ".corp.internal"]
deny = ["*:25"]
own = ["192.0.2.7", "2001:db8:7::/64"]
nat64 = ["2001:db8:64::/96"]
resolver = ["9.9.9.9", "[2620:fe::fe]:5353"]
[ingress]
relays = ["relay.example:443", "192.0.2.1:4433"]
[masque]
template = "https://relay.example/proxy{?target_host,target_port}"
[limits]
connections = 10
waiting = 9
waiting_per_client = 8
unvalidated_handshakes = 0
unvalidated_handshakes_per_client = 7
abandoned = 0
first_request = 0
bandwidth_per_client = 100000000
lookups = 7
udp_tunnels = 8
idle_stream = 0.5
shards = 3
[forwarding]
enabled = false
identity = true
ids_per_flow = 2
ids = 9
[ip]
enabled = false
device = "tun7"
pools = ["10.7.0.0/24"]
flows = 5
idents_per_flow = 3
echoes_per_second = 0
flows_per_client = 2
echoes_per_client = 5
echoes = 6
[metrics]
listen = "127.0.0.1:9100"
hosts = ["relay.internal"]
"#;

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(read(""), Ok(Config::default()));
}

#[test]
fn every_key_is_understood() {
    let config = checked(FULL).expect("valid");
    assert_eq!(config.name, "amber");
    assert_eq!(config.listen.len(), 2);
    assert!(config.is_ingress() && !config.is_egress());
    assert_eq!(config.auth.token.len(), 2);
    assert_eq!(config.egress.allow.len(), 3);
    let own = ["192.0.2.7/32", "2001:db8:7::/64"].map(|net| net.parse().expect(net));
    assert_eq!(config.egress.own, own);
    assert_eq!(config.egress.nat64.len(), 1);
    assert!(!config.forwarding.enabled && config.forwarding.identity);
    assert_eq!(config.forwarding.ids_per_flow, 2);
    assert!(!config.ip.enabled && config.ip.device.as_deref() == Some("tun7"));
    assert_eq!((config.ip.flows, config.ip.idents_per_flow), (5, 3));
    assert_eq!((config.ip.pools.len(), config.ip.echoes_per_second), (1, 0));
    let servers = ["9.9.9.9:53", "[2620:fe::fe]:5353"].map(|text| text.parse().expect(text));
    assert_eq!(
        config.egress.resolver,
        ResolverChoice::Servers(servers.to_vec())
    );
    assert_eq!(config.ingress.relays.len(), 2);
    assert_eq!(config.metrics.hosts.len(), 1);
    assert_eq!(config.limits.idle_stream, Duration::from_millis(500));
    assert_eq!(config.limits.threads(), 3);
}

#[test]
fn a_mistake_is_reported_with_its_line_and_what_was_expected() {
    for (text, expected) in [
        ("lisen = []", "unknown field `lisen`"),
        ("listen = [\"somewhere\"]", "listen"),
        ("roles = [\"exit\"]", "expected `ingress` or `egress`"),
        (
            "[egress]\nallow = [\"10.0.0.0/99\"]",
            "expected an address, a prefix, a name",
        ),
        (
            "[egress]\nown = [\"relay\"]",
            "expected an address or a prefix",
        ),
        ("[ingress]\nrelays = [\"relay\"]", "port is missing"),
        ("[limits]\nidle_stream = -1", "expected seconds"),
        ("[limits]\nconnections = \"many\"", "connections"),
    ] {
        let error = read(text).expect_err(text);
        assert!(
            error.contains(expected) && error.contains("line"),
            "{text}: {error}"
        );
    }
}

#[test]
fn values_that_cannot_be_served_are_named_by_their_key() {
    let open = "[auth]\nopen = true\n";
    for (text, key) in [
        (String::new(), "auth.token"),
        ("name = \"a b\"\n".to_owned() + open, "name"),
        ("listen = []\n".to_owned() + open, "listen"),
        ("roles = []\n".to_owned() + open, "roles"),
        (
            "[limits]\nwaiting = 0\n".to_owned() + open,
            "limits.waiting",
        ),
        (
            "[limits]\nwaiting_per_client = 0\n".to_owned() + open,
            "limits.waiting_per_client",
        ),
        (
            "roles = [\"ingress\"]\n".to_owned() + open,
            "ingress.relays",
        ),
        (
            open.to_owned() + "[egress]\nresolver = \"dns\"",
            "egress.resolver",
        ),
        (
            open.to_owned() + "[egress]\nnat64 = [\"2001:db8::/65\"]",
            "egress.nat64",
        ),
        (
            open.to_owned() + "[limits]\nconnections = 0",
            "limits.connections",
        ),
        (open.to_owned() + "[forwarding]\nids = 0", "forwarding.ids"),
        (open.to_owned() + "[limits]\nlookups = 0", "limits.lookups"),
        (open.to_owned() + "[limits]\nheader = 10", "limits.header"),
        (
            open.to_owned() + "[onion]\nenabled = true\nconnection_window = 67108863",
            "onion.connection_window",
        ),
        ("[[auth.token]]\nname = \"x\"".to_owned(), "auth.token"),
        (
            open.to_owned() + "[masque]\ntemplate = \"https://a/b\"",
            "masque.template",
        ),
    ] {
        let error = checked(&text).expect_err(&text);
        assert!(error.starts_with(key), "{text}: {error}");
    }
}

#[test]
fn a_relay_on_loopback_needs_no_token() {
    assert!(checked("listen = [\"127.0.0.1:0\"]").is_ok());
}

#[test]
fn a_token_is_never_shown() {
    let text = format!("{:?}", read(FULL).expect("valid"));
    assert!(
        !text.contains("secret") && !text.contains("alice"),
        "{text}"
    );
}

#[test]
fn a_token_comes_from_its_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("token");
    fs::write(&file, " hidden\n").expect("written");
    let entry = TokenEntry {
        file: Some(file),
        ..TokenEntry::default()
    };
    assert_eq!(entry.read().expect("read").as_str(), "hidden");
    let missing = TokenEntry {
        file: Some(dir.path().join("missing")),
        ..TokenEntry::default()
    };
    assert!(
        missing
            .read()
            .expect_err("missing")
            .problem
            .contains("cannot read")
    );
}

#[test]
fn the_kernel_forwards_only_for_a_program_that_is_built_for_it() {
    let text = |mode: &str| {
        format!(
            "listen = [\"127.0.0.1:1\"]\n[forwarding]\nkernel = \"{mode}\"\ninterfaces = [\"eth0\"]"
        )
    };
    assert!(checked(&text("off")).is_ok());
    for mode in ["auto", "driver", "generic"] {
        let error = checked(&text(mode)).err().unwrap_or_default();
        let refused = error.starts_with("forwarding.kernel");
        assert_eq!(refused, !cfg!(feature = "kernel-forwarding"), "{error}");
    }
    assert!(checked(&text("true")).is_err());
}

#[test]
fn a_flow_registers_two_ids_at_least_and_256_at_most() {
    for (ids, fine) in [(1, false), (2, true), (256, true), (257, false)] {
        let text = format!("listen = [\"127.0.0.1:1\"]\n[forwarding]\nids_per_flow = {ids}");
        assert_eq!(checked(&text).is_ok(), fine, "{ids}");
    }
}

#[test]
fn pools_have_room_and_a_device_a_name_that_the_kernel_keeps() {
    for (line, fine) in [
        ("pools = [\"10.0.0.0/30\"]", true),
        ("pools = [\"10.0.0.0/31\"]", false),
        ("pools = [\"fd00::/126\", \"10.0.0.0/8\"]", true),
        ("pools = [\"10.0.0.0/8\", \"10.1.0.0/16\"]", false),
        ("pools = []", false),
        ("device = \"tun0\"", true),
        ("device = \"\"", false),
        ("device = \"a-name-of-sixteen\"", false),
        ("device = \"../tun\"", false),
        ("flows = 0", false),
        ("flows_per_client = 0", false),
        ("idents_per_flow = 0", false),
    ] {
        let text = format!("listen = [\"127.0.0.1:1\"]\n[ip]\n{line}");
        assert_eq!(checked(&text).is_ok(), fine, "{line}");
    }
}

#[test]
fn addresses_of_a_device_by_region_are_each_there_once() {
    let of = |device: &str, addresses: &str| {
        checked(&format!(
            "listen = [\"127.0.0.1:1\"]\n[ip]\n{device}pools = [\"100.96.0.0/16\"]\n\
             [[ip.pool]]\nregion = \"DE\"\naddresses = {addresses}\n"
        ))
    };
    let device = "device = \"tun0\"\n";
    assert!(of(device, "[\"100.97.0.0/16\", \"100.98.0.0/16\"]").is_ok());
    let no_device = of("", "[\"100.97.0.0/16\"]").expect_err("no device");
    assert!(no_device.contains("ip.pool: "), "{no_device}");
    for (addresses, says) in [
        ("[]", "at least one"),
        ("[\"100.97.0.0/31\"]", "fewer than four"),
        ("[\"100.96.1.0/24\"]", "overlap"),
        ("[\"100.97.0.0/16\", \"100.97.0.0/24\"]", "overlap"),
        ("[\"fd00::/64\"]", "without a region"),
    ] {
        let problem = of(device, addresses).expect_err(addresses);
        assert!(
            problem.contains("ip.pool.addresses") && problem.contains(says),
            "{problem}"
        );
    }
}

#[test]
fn pools_have_each_address_once_and_a_region_that_there_is() {
    let pools = |text: &str| checked(&format!("[auth]\nopen = true\n{text}"));
    let config = pools(
        "[[egress.pool]]\nregion = \"de-be\"\nzone = \"Europe/Berlin\"\naddresses = [\"192.0.2.7\", \"2001:db8::/64\"]\n\
         [[egress.pool]]\naddresses = [\"192.0.2.8/29\"]\n",
    );
    let feed = config.expect("fine").egress.geofeed().expect("a feed");
    let lines = "192.0.2.7/32,DE,DE-BE,,\n192.0.2.8/29,,,,\n2001:db8::/64,DE,DE-BE,,\n";
    assert_eq!(feed.to_string(), lines);
    for (text, says) in [
        (
            "[[egress.pool]]\nregion = \"QQ\"\naddresses = [\"192.0.2.7\"]",
            "ISO 3166-1",
        ),
        (
            "[[egress.pool]]\nregion = \"DE-Berlin\"\naddresses = [\"192.0.2.7\"]",
            "ISO 3166-2",
        ),
        (
            "[[egress.pool]]\nzone = \"+2\"\naddresses = [\"192.0.2.7\"]",
            "time zone",
        ),
        ("[[egress.pool]]\nregion = \"DE\"", "at least one address"),
        (
            "[[egress.pool]]\naddresses = [\"192.0.2.7/24\"]",
            "192.0.2.0/24",
        ),
        (
            "[[egress.pool]]\naddresses = [\"192.0.2.7\", \"192.0.2.7/32\"]",
            "is there twice",
        ),
        (
            "[[egress.pool]]\nregion = \"DE\"\naddresses = [\"192.0.2.0/24\"]\n[[egress.pool]]\naddresses = [\"192.0.2.7\"]",
            "192.0.2.7/32 is also in 192.0.2.0/24",
        ),
        ("[egress]\nrenew = 0", "more than 0 seconds"),
    ] {
        let problem = pools(text).expect_err(text);
        assert!(problem.contains(says), "{text}: {problem}");
    }
}

#[test]
fn where_clients_are_stands_in_one_file() {
    let both = "listen = [\"127.0.0.1:1\"]\n[ingress]\ngeofeed = \"a\"\nmmdb = \"b\"\n";
    let problem = checked(both).expect_err("two");
    assert!(problem.contains("ingress.mmdb"), "{problem}");
}

#[test]
fn what_is_spent_is_in_a_file_or_with_a_server_whose_password_is_never_told() {
    let start = "listen = [\"127.0.0.1:1\"]\n[auth.private_tokens]\nissuer = \"i\"\norigin = \"o\"\nkeys = \"k\"\n";
    let of = |rest: &str| checked(&format!("{start}{rest}"));
    let plain = of("").expect("right").auth.private_tokens.expect("there");
    assert_eq!(plain.spent(), PathBuf::from("spent.sqlite"));
    assert_eq!(
        (plain.deadline, plain.queue),
        (Duration::from_secs(1), 1024)
    );
    let url = "postgres://user:secret@127.0.0.1/db";
    let shared = of(&format!("store = {{ url = \"{url}\" }}\n")).expect("right");
    let told = format!("{shared:?}");
    assert!(!told.contains(":secret@"), "{told}");
    let store = shared.auth.private_tokens.and_then(|private| private.store);
    let store = store.expect("there");
    assert_eq!(store.connections, 2);
    assert_eq!(
        format!("{:?}", store.read().expect("a server")),
        "SpentServer(hidden)"
    );
    for (rest, key) in [
        (
            format!("spent = \"s\"\nstore = {{ url = \"{url}\" }}"),
            "auth.private_tokens.spent",
        ),
        ("store = {}".into(), "auth.private_tokens.store"),
        (
            format!("store = {{ url = \"{url}\", url_file = \"f\" }}"),
            "auth.private_tokens.store",
        ),
        (
            format!("store = {{ url = \"{url}\", connections = 0 }}"),
            "auth.private_tokens.store.connections",
        ),
        (
            "directory = \"http://i\"".into(),
            "auth.private_tokens.directory",
        ),
        (
            "pin = \"sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"".into(),
            "auth.private_tokens.pin",
        ),
        ("refresh = 0".into(), "auth.private_tokens.refresh"),
        ("refresh = 604801".into(), "auth.private_tokens.refresh"),
        ("deadline = 0".into(), "auth.private_tokens.deadline"),
        ("queue = 0".into(), "auth.private_tokens.queue"),
    ] {
        let told = of(&rest).expect_err(&rest);
        assert!(
            told.starts_with(key) && !told.contains("secret"),
            "{rest}: {told}"
        );
    }
    for (store, key) in [
        (
            SpentStore {
                url: Some("secret".to_owned().into()),
                ..SpentStore::default()
            },
            "auth.private_tokens.store.url",
        ),
        (
            SpentStore {
                url_file: Some("/nowhere".into()),
                ..SpentStore::default()
            },
            "auth.private_tokens.store.url_file",
        ),
        (
            SpentStore {
                ca: Some("/nowhere".into()),
                ..SpentStore::default()
            },
            "auth.private_tokens.store.ca",
        ),
    ] {
        let told = store.read().expect_err(key);
        assert_eq!(told.key, key);
        assert!(!told.to_string().contains("secret"), "{told}");
    }
}

#[test]
fn an_issuers_keys_are_public_or_with_their_secrets_which_nobody_publishes() {
    let start =
        "listen = [\"127.0.0.1:1\"]\n[auth.private_tokens]\nissuer = \"i\"\norigin = \"o\"\n";
    let of = |rest: &str| checked(&format!("{start}{rest}"));
    of("keys = \"k\"\n").expect("right");
    of("secrets = \"s\"\n").expect("right");
    for (rest, key) in [
        ("", "keys"),
        ("keys = \"k\"\nsecrets = \"s\"\n", "keys"),
        ("secrets = \"s\"\ndirectory = \"https://i\"\n", "directory"),
    ] {
        let told = of(rest).expect_err(rest);
        let key = format!("auth.private_tokens.{key}");
        assert!(told.starts_with(&key), "{told}");
    }
}

#[test]
fn a_servers_password_is_not_taken_from_a_file_that_everybody_may_read() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("store.url");
    fs::write(&file, "postgres://user:secret@127.0.0.1/db\n").expect("written");
    for (mode, is_taken) in [(0o600, true), (0o440, true), (0o644, false)] {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&file, permissions).expect("set");
        let store = SpentStore {
            url_file: Some(file.clone()),
            ..SpentStore::default()
        };
        assert_eq!(store.read().is_ok(), is_taken, "{mode:o}");
    }
}
