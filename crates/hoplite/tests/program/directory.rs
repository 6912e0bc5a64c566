//! A directory as its users see it: authorities, relays and a client, each from its file, on loopback.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
};

use hoplite_crypto::{Certificates, Identity, Pin, Proof, SigningKey};
use hoplite_directory::{HsDirs, PROOF, Store, said_by_holder, sign_descriptor};
use hoplite_wire::{
    OnionKey, Protocols,
    directory::{Descriptor, Key, List, RelayFlags, Roles, SignedDescriptor, SignedList, Stage},
};

use rustix::process::Signal;
use zeroize::Zeroizing;

use crate::{
    client::{started, target, through_socks},
    common::{Running, value},
};

/// A port that nothing listens on just now. The authorities have to know each other's before they start.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    listener.local_addr().expect("bound").port()
}

/// `hoplite keygen --authority`: the public key.
pub(crate) fn key(directory: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["keygen", "--authority", "--out"])
        .arg(directory)
        .output()
        .expect("runs");
    assert!(output.status.success());
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

/// Authorities that are known, of which some run.
pub(crate) struct Authorities {
    pub(crate) names: Vec<String>,
    pub(crate) ports: Vec<u16>,
    pub(crate) running: Vec<Running>,
}

impl Authorities {
    pub(crate) fn start(directory: &Path, known: usize, running: usize) -> Self {
        Self::start_for(directory, (known, running), 1000)
    }

    /// The same with lists that hold for so many intervals.
    pub(crate) fn start_for(
        directory: &Path,
        (known, running): (usize, usize),
        intervals: u32,
    ) -> Self {
        let places: Vec<PathBuf> = (0..known)
            .map(|n| directory.join(format!("authority{n}")))
            .collect();
        let ports: Vec<u16> = places.iter().map(|_| free_port()).collect();
        let name = |(place, port): (&PathBuf, &u16)| format!("{}@127.0.0.1:{port}", key(place));
        let names: Vec<String> = places.iter().zip(&ports).map(name).collect();
        let mut authorities = Self {
            names,
            ports,
            running: Vec::new(),
        };
        for (place, port) in places.iter().zip(&authorities.ports).take(running) {
            let file = place.join("directory.toml");
            let text = format!(
                "authorities = {:?}\nlisten = \"127.0.0.1:{port}\"\ninterval = 8\nvoting = 2\nintervals = {intervals}\nhsdir_uptime = 0\n[admission]\nprivate = true\n",
                authorities.names
            );
            fs::write(&file, text).expect("written");
            let mut authority = Running::start("directory", &file);
            authority.line_with("the authority is up");
            authorities.running.push(authority);
        }
        authorities
    }

    pub(crate) fn publish(&self) -> Vec<String> {
        self.ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect()
    }

    /// Waits until every authority publishes a list with this many relays: a client may take the list of any.
    pub(crate) fn wait_for(&mut self, relays: usize) {
        let signed = format!("\"relays\":{relays}");
        for authority in &mut self.running {
            let mut is_next = false;
            // In the order of the log: an earlier list may have been published with fewer.
            loop {
                let line = authority.line_with("a list is ");
                if line.contains("a list is signed") {
                    is_next = line.contains(&signed);
                } else if is_next {
                    break;
                }
            }
        }
    }
}

/// A relay in a /16 of its own, which connects to loopback, for everybody.
pub(crate) fn relay(directory: &Path, n: u8, authorities: &Authorities) -> (Running, String) {
    relay_with(directory, n, authorities, "")
}

/// The same, with these lines at the end of its file.
pub(crate) fn relay_with(
    directory: &Path,
    n: u8,
    authorities: &Authorities,
    lines: &str,
) -> (Running, String) {
    let file = directory.join(format!("relay{n}.toml"));
    let text = format!(
        "name = \"relay{n}\"\nlisten = [\"127.{n}.0.1:0\"]\nidentity = \"identity{n}\"\n[egress]\nallow = [\"127.0.0.0/8\"]\n\
         [directory]\npublish = {:?}\nevery = 1\n{lines}",
        authorities.publish()
    );
    fs::write(&file, text).expect("written");
    let mut relay = Running::start("relay", &file);
    relay.line_with("the relay is up");
    let identity = value(&relay.line_with("told to the directory"), "identity");
    (relay, identity)
}

/// A relay that tells nobody of itself, and what its operator says of it by a key of its own.
pub(crate) fn described(directory: &Path, n: u8) -> (Running, SignedDescriptor, Proof) {
    let file = directory.join(format!("relay{n}.toml"));
    let text = format!(
        "name = \"relay{n}\"\nlisten = [\"127.{n}.0.1:0\"]\nidentity = \"identity{n}\"\nauth.open = true\n"
    );
    fs::write(&file, text).expect("written");
    let mut relay = Running::start("relay", &file);
    let up = relay.line_with("the relay is up");
    let pin: Pin = value(&up, "pin").parse().expect("a pin");
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("later");
    let said = Descriptor {
        name: format!("relay{n}"),
        identity: Key([0; 32]),
        published: since.as_secs(),
        addresses: vec![value(&up, "listen").parse().expect("one address")],
        pin: Some(pin.into()),
        onion: None,
        roles: Roles {
            ingress: true,
            egress: false,
        },
        region: None,
        operator: None,
        family: Vec::new(),
        bandwidth: 1_000_000,
        exit: None,
        tokens: None,
        hsdir: false,
        cache: None,
        protocols: Protocols::NONE,
    };
    let key = SigningKey::from_seed(Zeroizing::new([n; 32])).expect("a key");
    let signed = sign_descriptor(said, &key).expect("signed");
    let proof = proven(&directory.join(format!("identity{n}")), &signed);
    (relay, signed, proof)
}

/// The proof by the TLS key of this directory that its holder publishes the descriptor.
pub(crate) fn proven(identity: &Path, signed: &SignedDescriptor) -> Proof {
    let read = |name| fs::read(identity.join(name)).expect("there");
    let identity = Identity::from_pem(&read("cert.pem"), &read("key.pem")).expect("an identity");
    let certificates = Certificates::new(&identity).expect("fits");
    certificates.prove(&said_by_holder(signed)).expect("signs")
}

/// Hands a descriptor in, with the proof of its pin if there is one; the answer.
pub(crate) fn hand_in(port: u16, signed: &SignedDescriptor, proof: Option<&Proof>) -> String {
    let text = signed.to_string();
    let proof = proof.map(|proof| format!("{PROOF}: {proof}\r\n"));
    let head = format!(
        "POST /hoplite/descriptor HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{}Content-Length: {}",
        proof.unwrap_or_default(),
        text.len()
    );
    exchange(port, &format!("{head}\r\n\r\n{text}"))
}

pub(crate) fn client_file(directory: &Path, path: &str, authorities: &[String]) -> PathBuf {
    let file = directory.join("client.toml");
    let text = format!(
        "{path}\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\n[directory]\nauthorities = {authorities:?}\nwait = 60\n"
    );
    fs::write(&file, text).expect("written");
    file
}

/// How a client that does not start says why.
pub(crate) fn refusal(file: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["client", "--config"])
        .arg(file)
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).expect("text")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test is another authority, or a stranger"
)]
fn exchange(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("listens");
    stream.write_all(request.as_bytes()).expect("takes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

pub(crate) fn get(port: u16, path: &str) -> String {
    exchange(
        port,
        &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    )
}

#[test]
fn a_client_takes_its_path_from_the_list_that_two_of_three_authorities_sign() {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 3, 2);
    let first = relay(directory.path(), 1, &authorities);
    let _second = relay(directory.path(), 2, &authorities);
    authorities.wait_for(2);
    let target = target();
    let file = client_file(directory.path(), "hops = 2", &authorities.names);
    {
        let (_client, socks, _) = started(Running::start("client", &file));
        assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));
    }
    // Without any authority the kept list serves, by explicit path too.
    authorities.running.clear();
    let path = format!("path = [\"relay2\", {:?}]", first.1);
    let file = client_file(directory.path(), &path, &authorities.names);
    let (_client, socks, _) = started(Running::start("client", &file));
    assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));
}

#[test]
fn a_client_takes_exits_of_its_region_and_measures_them_through_its_first_relay() {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 1, 1);
    let lines = |n: u8| match n {
        1 => "region = \"FR\"\noperator = \"a\"\n".to_owned(),
        n => format!(
            "region = \"DE-B{}\"\noperator = \"b{n}\"\n",
            if n == 2 { 'E' } else { 'Y' }
        ),
    };
    let start = |n| relay_with(directory.path(), n, &authorities, &lines(n));
    let relays: Vec<_> = (1..=4).map(start).collect();
    authorities.wait_for(4);
    let file = client_file(directory.path(), "hops = 2", &authorities.names);
    let text = fs::read_to_string(&file).expect("there") + "region = \"DE\"\n";
    fs::write(&file, text).expect("written");
    let (_client, socks, _) = started(Running::start("client", &file));
    assert_eq!(through_socks(socks, target()), (0, "hello".to_owned()));
    let kept = || {
        let store = Store::open(&directory.path().join("directory.sqlite")).expect("opened");
        store.candidates().expect("read")
    };
    let begun = std::time::Instant::now();
    while !kept().iter().any(|exit| exit.millis.is_some()) {
        assert!(begun.elapsed() < crate::client::PATIENCE, "{:?}", kept());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // Two or three, as the first relay is one of them or not; never the one that is elsewhere.
    let exits = kept();
    assert!((2..=3).contains(&exits.len()), "{exits:?}");
    let elsewhere: Key = relays[0].1.parse().expect("a key");
    assert!(exits.iter().all(|exit| exit.identity != elsewhere));
    assert_eq!(through_socks(socks, target()), (0, "hello".to_owned()));
}

#[test]
fn a_client_whose_kept_list_has_relays_of_one_role_alone_asks_for_another_when_it_starts() {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 1, 1);
    let file = directory.path().join("relay1.toml");
    let text = format!(
        "name = \"relay1\"\nroles = [\"egress\"]\nlisten = [\"127.1.0.1:0\"]\nidentity = \"identity1\"\n\
         [egress]\nallow = [\"127.0.0.0/8\"]\n[directory]\npublish = {:?}\nevery = 1\n",
        authorities.publish()
    );
    fs::write(&file, text).expect("written");
    let _egress = Running::start("relay", &file);
    authorities.wait_for(1);
    let file = client_file(directory.path(), "hops = 2", &authorities.names);
    let told = refusal(&file);
    assert!(told.contains("making a path"), "{told}");
    // The list that it keeps now may be used for two hours.
    let _ingress = relay(directory.path(), 2, &authorities);
    authorities.wait_for(2);
    let (_client, socks, _) = started(Running::start("client", &file));
    assert_eq!(through_socks(socks, target()), (0, "hello".to_owned()));
}

#[test]
fn a_list_that_unknown_authorities_sign_is_forged_and_the_user_is_told() {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 1, 1);
    authorities.wait_for(0);
    let stranger = key(&directory.path().join("stranger"));
    let claimed = format!("{stranger}@127.0.0.1:{}", authorities.ports[0]);
    let file = client_file(directory.path(), "hops = 2", &[claimed]);
    let told = refusal(&file);
    assert!(
        told.contains("authority 1: forged: 0 known authorities have signed it, 1 are needed"),
        "{told}"
    );
    let empty = refusal(&client_file(
        directory.path(),
        "hops = 2",
        &authorities.names,
    ));
    assert!(empty.contains("making a path"), "{empty}");
    let silent = format!("{stranger}@127.0.0.1:{}", free_port());
    let told = refusal(&client_file(directory.path(), "hops = 2", &[silent]));
    assert!(told.contains("cannot be reached"), "{told}");
}

#[test]
fn an_authority_refuses_what_it_should_and_says_why() {
    let directory = tempfile::tempdir().expect("directory");
    let authorities = Authorities::start(directory.path(), 1, 1);
    let port = authorities.ports[0];
    let post = |length: usize, body: &str| {
        let head =
            "POST /hoplite/descriptor HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: ";
        exchange(port, &format!("{head}{length}\r\n\r\n{body}"))
    };
    let answer = post(5, "hello");
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.contains("line 1"),
        "{answer}"
    );
    let answer = post(5000, &"a".repeat(5000));
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    for path in [
        "/",
        "/hoplite/",
        "/hoplite/list/x",
        "/hoplite/vote/1/ed25519:x",
        "/hoplite/vote/1/2/3",
    ] {
        let answer = get(port, path);
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
    let answer = exchange(
        port,
        "DELETE /hoplite/list HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
}

#[test]
fn a_key_that_is_not_among_the_authorities_is_no_authority() {
    let directory = tempfile::tempdir().expect("directory");
    let place = directory.path();
    key(place);
    let other = key(&place.join("other"));
    fs::write(
        place.join("directory.toml"),
        format!("authorities = [\"{other}@127.0.0.1:1\"]\n"),
    )
    .expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["directory", "--config"])
        .arg(place.join("directory.toml"))
        .output()
        .expect("runs");
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(
        output.status.code() == Some(1) && told.contains("which `authorities` does not name"),
        "{told}"
    );
}

#[test]
fn an_authority_that_has_signed_for_a_later_time_signs_nothing_before_it_and_says_so() {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 1, 1);
    authorities.wait_for(0);
    authorities.running.clear();
    let place = directory.path().join("authority0");
    let noted = place.join("authority.key.signed");
    let text = fs::read_to_string(&noted).expect("noted before it was signed");
    let times: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(1).filter(|time| time.len() == 10))
        .collect();
    assert_eq!(times.len(), 2, "a vote and a list: {text}");
    // What a clock leaves that was far ahead.
    let later = times
        .iter()
        .fold(text.clone(), |text, time| text.replace(*time, "4000000000"));
    fs::write(&noted, later).expect("written");
    let mut again = Running::start("directory", &place.join("directory.toml"));
    let told = again.line_with("nothing is signed");
    assert!(told.contains("4000000000"), "{told}");
}

#[test]
fn a_relay_of_circuits_learns_whom_the_list_has() {
    let directory = tempfile::tempdir().expect("made");
    let mut authorities = Authorities::start(directory.path(), 3, 3);
    let lines = format!(
        "authorities = {:?}\n[onion]\nenabled = true\n",
        authorities.names
    );
    let (_first, _) = relay_with(directory.path(), 1, &authorities, "");
    authorities.wait_for(1);
    let (mut second, _) = relay_with(directory.path(), 2, &authorities, &lines);
    let line = second.line_with("channels know whom the list of relays has");
    let relays = |number| line.contains(&format!("\"relays\":{number}"));
    assert!(relays(1) || relays(2), "{line}");
}

#[test]
fn a_relays_file_that_trusts_too_few_authorities_is_refused_by_its_key() {
    let directory = tempfile::tempdir().expect("made");
    let file = directory.path().join("relay.toml");
    let authority = key(&directory.path().join("authority"));
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\n[directory]\nauthorities = [\"{authority}@127.0.0.1:1\"]\nthreshold = 2\n"
    );
    fs::write(&file, text).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["check", "--config"])
        .arg(&file)
        .output()
        .expect("runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{told}");
    assert!(
        told.contains("directory.threshold") && told.contains(":4"),
        "{told}"
    );
}

#[test]
fn a_descriptor_with_a_strangers_address_or_with_anothers_key_is_never_listed() {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 1, 1);
    let port = authorities.ports[0];
    let relay = relay(directory.path(), 1, &authorities);
    authorities.wait_for(1);
    let honest = listed(port);
    // Who hands it in holds the key of its pin: a new one, or that of the relay.
    let (new, own) = (
        directory.path().join("attacker"),
        directory.path().join("identity1"),
    );
    let pin: Pin = keygen(&new).parse().expect("a pin");
    let forge = |n: u8, pin: Option<[u8; 32]>, change: &dyn Fn(&mut Descriptor)| {
        let mut forged = Descriptor {
            name: format!("forged{n}"),
            pin,
            ..honest.clone()
        };
        change(&mut forged);
        let key = SigningKey::from_seed(Zeroizing::new([n; 32])).expect("a key");
        let signed = sign_descriptor(forged, &key).expect("signed");
        let holder = if pin == honest.pin { &own } else { &new };
        hand_in(port, &signed, Some(&proven(holder, &signed)))
    };
    // Where nobody is; where a relay is that has neither this pin nor this identity; and beside a right address.
    let nobody = ([127, 9, 0, 1], free_port()).into();
    let pin = Some(pin.into());
    let answers = [
        forge(1, pin, &|forged| forged.addresses = vec![nobody]),
        forge(2, pin, &|_| ()),
        forge(3, honest.pin, &|forged| forged.onion = Some([7; 32])),
        forge(4, None, &|forged| forged.onion = Some([7; 32])),
        forge(5, honest.pin, &|forged| forged.addresses.push(nobody)),
    ];
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // They had time for their tests before the third vote from now on.
    for _ in 0..3 {
        authorities.wait_for(1);
        assert_eq!(listed(port).identity, honest.identity);
    }
    drop(relay);
}

#[test]
fn a_relay_is_not_listed_a_second_time_by_who_has_copied_its_address_and_pin() {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 1, 1);
    let port = authorities.ports[0];
    let attacker = directory.path().join("attacker");
    keygen(&attacker);
    // A relay of MASQUE alone, and one of circuits too.
    let onion = "[onion]\nenabled = true\n";
    let _relays = [
        relay_with(directory.path(), 1, &authorities, ""),
        relay_with(directory.path(), 2, &authorities, onion),
    ];
    authorities.wait_for(2);
    let honest: Vec<Descriptor> = all_listed(port);
    for (n, relay) in (1..).zip(&honest) {
        let forged = Descriptor {
            operator: Some("attacker".into()),
            onion: None,
            protocols: Protocols::NONE,
            bandwidth: 12_500_000,
            ..relay.clone()
        };
        let key = SigningKey::from_seed(Zeroizing::new([n; 32])).expect("a key");
        let signed = sign_descriptor(forged, &key).expect("signed");
        for proof in [None, Some(proven(&attacker, &signed))] {
            let answer = hand_in(port, &signed, proof.as_ref());
            let refused = answer.starts_with("HTTP/1.1 403") && answer.contains("the TLS key");
            assert!(refused, "{answer}");
        }
    }
    // It would have had time for its test before the third vote from now on.
    for _ in 0..3 {
        authorities.wait_for(2);
    }
    let mut listed = all_listed(port);
    listed.retain(|relay| !honest.iter().any(|known| known.identity == relay.identity));
    assert_eq!(listed, []);
}

#[test]
fn a_relay_whose_certificate_is_replaced_while_it_runs_is_listed_by_the_new_ones_pin() {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 1, 1);
    let (relay, _) = relay(directory.path(), 1, &authorities);
    authorities.wait_for(1);
    let before = listed(authorities.ports[0]);
    let pin: Pin = keygen(&directory.path().join("identity1"))
        .parse()
        .expect("a pin");
    relay.signal(Signal::HUP);
    // It is listed as it was until it has passed its test as it is.
    loop {
        authorities.wait_for(1);
        let now = listed(authorities.ports[0]);
        assert_eq!(now.identity, before.identity);
        if now.pin == Some(pin.into()) {
            return;
        }
        assert_eq!(now.pin, before.pin);
    }
}

/// `hoplite keygen`, in place of what is there: the pin.
fn keygen(directory: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["keygen", "--force", "--out"])
        .arg(directory)
        .output()
        .expect("runs");
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).expect("text");
    let pin = said
        .split_whitespace()
        .find(|word| word.starts_with("sha256:"));
    pin.expect("there").to_owned()
}

/// What `hoplite keygen --show` says of an identity.
fn onion_of(identity: &Path) -> OnionKey {
    let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["--json", "keygen", "--show"])
        .arg(identity)
        .output()
        .expect("runs");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let key = said["onion"].as_str().expect("there");
    key.parse().expect("a key")
}

/// The list that an authority publishes.
fn list(port: u16) -> List {
    let answer = get(port, "/hoplite/list");
    let (_, list) = answer.split_once("\r\n\r\n").expect("an answer");
    SignedList::parse(list, Stage::List).expect("a list").list
}

/// The relays that an authority lists.
fn all_listed(port: u16) -> Vec<Descriptor> {
    let relays = list(port).relays.into_iter();
    relays.map(|relay| relay.descriptor).collect()
}

/// The only one.
fn listed(port: u16) -> Descriptor {
    let mut all = all_listed(port);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn a_relay_of_circuits_publishes_its_onion_key_and_the_next_one_when_that_is_due() {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 1, 1);
    let identity = directory.path().join("identity");
    keygen(&identity);
    let old = onion_of(&identity);
    // A key that has been there for ever: it is due at once.
    let path = identity.join("onion.key");
    let text = fs::read_to_string(&path).expect("there");
    let since = text
        .lines()
        .find(|line| line.starts_with("since "))
        .expect("there");
    fs::write(&path, text.replace(since, "since 1")).expect("written");
    let file = directory.path().join("relay.toml");
    let text = format!(
        "listen = [\"127.1.0.1:0\"]\n[onion]\nenabled = true\n[directory]\npublish = {:?}\nevery = 1\n",
        authorities.publish()
    );
    fs::write(&file, text).expect("written");
    let mut relay = Running::start("relay", &file);
    relay.line_with("the relay has a new onion key");
    authorities.wait_for(1);
    let new = onion_of(&identity);
    assert_eq!(new.identity, old.identity);
    assert_ne!(new.ntor, old.ntor);
    let stored = fs::read_to_string(&path).expect("there");
    assert!(
        stored.contains("\nlast "),
        "the last one is accepted beside it"
    );
    // The first descriptor may have had the old key: a list soon has the new one.
    loop {
        let listed = listed(authorities.ports[0]);
        assert_eq!(listed.identity.0, new.identity, "one identity for both");
        if listed.onion == Some(new.ntor) {
            return;
        }
        authorities.wait_for(1);
    }
}

#[test]
fn a_list_names_the_relays_that_keep_descriptors_of_onion_services_and_draws_a_value_to_place_them_by()
 {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 1, 1);
    let names = &authorities.names;
    let keeps = "[onion]\nenabled = true\nhsdir = true\n";
    let (mut kept, identity) = relay_with(
        directory.path(),
        1,
        &authorities,
        &format!("authorities = {names:?}\n{keeps}"),
    );
    let (_other, _) = relay_with(directory.path(), 2, &authorities, "");
    // The first list has what the authority commits to, the next a value.
    let list = loop {
        authorities.wait_for(2);
        let list = list(authorities.ports[0]);
        if list.shared_random.current.is_some() {
            break list;
        }
        assert_eq!(list.shared_random.commitments.len(), 1);
    };
    assert_eq!(list.params["hsdir-interval"], 1440);
    let hsdirs: Vec<_> = list
        .flagged(RelayFlags::HSDIR)
        .map(Key::to_string)
        .collect();
    assert_eq!(hsdirs, [identity]);
    let hsdirs = HsDirs::of_list(&list).expect("for onion services");
    assert_eq!(hsdirs.len(), 1);
    kept.line_with("channels know whom the list of relays has");
}
