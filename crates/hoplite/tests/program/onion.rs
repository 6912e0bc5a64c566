//! Circuits as their user sees them: a client over relays, each with its file, to a target and back; and what is told when a relay is wrong,
//! is not there, or goes and comes back. Everything on loopback, by the real programs.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use hoplite_wire::OnionKey;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    client::{dial, started, target, through_http, through_socks},
    common::{Running, value},
};

/// How long a relay that has come back may take until it is used again.
const PATIENCE: Duration = Duration::from_secs(60);

/// A relay of circuits on disk and where it listens.
struct Relay {
    name: String,
    file: PathBuf,
    address: String,
    key: String,
    running: Option<Running>,
}

/// Relays on loopback, the first hop first.
pub(crate) struct World {
    directory: TempDir,
    relays: Vec<Relay>,
}

impl Relay {
    /// An identity and a file, and the process.
    fn start(directory: &Path, number: usize) -> Self {
        let name = format!("relay{number}");
        let made = Command::new(env!("CARGO_BIN_EXE_hoplite"))
            .args(["keygen", "--json", "--out"])
            .arg(directory.join(&name))
            .output()
            .expect("runs");
        let made = String::from_utf8(made.stdout).expect("text");
        let mut relay = Self {
            file: directory.join(format!("{name}.toml")),
            address: "127.0.0.1:0".into(),
            key: value(&made, "onion"),
            name,
            running: None,
        };
        relay.run();
        relay
    }

    /// Starts it where it was before.
    fn run(&mut self) {
        let Self { name, address, .. } = self;
        let text = format!(
            "listen = [{address:?}]\nidentity = {name:?}\n[egress]\nallow = [\"127.0.0.0/8\"]\n[onion]\nenabled = true\n"
        );
        fs::write(&self.file, format!("auth.open = true\n{text}")).expect("written");
        let mut running = Running::start("relay", &self.file);
        self.address = value(&running.line_with("the relay is up"), "listen");
        self.running = Some(running);
    }

    /// As when the machine fails: nobody is told.
    fn kill(&mut self) {
        self.running = None;
    }

    fn stanza(&self) -> String {
        let Self {
            name, address, key, ..
        } = self;
        format!("[[relay]]\nname = {name:?}\naddress = {address:?}\nonion = {key:?}\n")
    }
}

impl World {
    pub(crate) fn new(relays: usize) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let relays = (1..=relays).map(|number| Relay::start(directory.path(), number));
        Self {
            relays: relays.collect(),
            directory,
        }
    }

    /// Where the files are.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A client whose path are all relays, with these lines in its file; its SOCKS port and its HTTP port.
    pub(crate) fn client(&self, lines: &str) -> (Running, u16, u16) {
        let file = self.path().join("client.toml");
        fs::write(&file, self.client_file(lines)).expect("written");
        started(Running::start("client", &file))
    }

    /// The file of such a client.
    pub(crate) fn client_file(&self, lines: &str) -> String {
        let names: Vec<_> = self.relays.iter().map(|relay| &relay.name).collect();
        let stanzas: String = self.relays.iter().map(Relay::stanza).collect();
        format!(
            "overlay = \"onion\"\npath = {names:?}\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\n{lines}\n{stanzas}"
        )
    }
}

/// What a browser would show of a failure.
fn told(relays: usize, spoil: impl FnOnce(&mut World)) -> (String, String) {
    let mut world = World::new(relays);
    spoil(&mut world);
    let (mut client, _, http) = world.client("onion.ahead = 0");
    let answer = through_http(http, target());
    // Its log ends, so that nobody waits for a line that does not come.
    client.signal(Signal::TERM);
    let log = client.line_with("building a circuit");
    (answer, log)
}

fn three_hops(channel: &str) {
    let world = World::new(3);
    let (_client, socks, http) = world.client(&format!("onion.channel = {channel:?}"));
    let target = target();
    assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));
    let answer = through_http(http, target);
    let is_right = answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello");
    assert!(is_right, "{answer}");
}

#[test]
fn programs_reach_their_target_over_quic() {
    three_hops("quic");
}

#[test]
fn programs_reach_their_target_over_tls() {
    three_hops("tls");
}

#[test]
fn programs_reach_their_target_over_whichever_is_there_first() {
    three_hops("auto");
}

#[test]
fn one_relay_is_a_path_and_so_are_eight() {
    for relays in [1, 8] {
        let world = World::new(relays);
        let (_client, socks, _) = world.client("");
        assert_eq!(through_socks(socks, target()), (0, "hello".to_owned()));
    }
}

#[test]
fn a_key_of_another_relay_is_told_with_the_hop_and_what_to_do() {
    let (answer, log) = told(2, |world| {
        let key: OnionKey = world.relays[1].key.parse().expect("a key");
        let identity = [7; 32];
        world.relays[1].key = OnionKey { identity, ..key }.to_string();
    });
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let hop = "hop 2 of 2 is not the relay of its onion key (correct the key or";
    assert!(log.contains(hop), "{log}");
}

#[test]
fn a_first_relay_with_another_key_is_told_too() {
    let (answer, log) = told(1, |world| {
        let key: OnionKey = world.relays[0].key.parse().expect("a key");
        let identity = [7; 32];
        world.relays[0].key = OnionKey { identity, ..key }.to_string();
    });
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let hop = "hop 1 of 1 is not the relay of its onion key";
    assert!(log.contains(hop), "{log}");
}

#[test]
fn an_onion_key_that_is_old_is_told_with_the_hop_and_what_to_do() {
    let (answer, log) = told(2, |world| {
        let other: OnionKey = world.relays[0].key.parse().expect("a key");
        let key: OnionKey = world.relays[1].key.parse().expect("a key");
        let ntor = other.ntor;
        world.relays[1].key = OnionKey { ntor, ..key }.to_string();
    });
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(log.contains("hop 2 of 2 refuses the handshake"), "{log}");
    assert!(log.contains("its onion key may be an old one"), "{log}");
}

#[test]
fn a_relay_that_is_not_there_is_told_by_its_hop_and_no_name() {
    let (answer, log) = told(2, |world| world.relays[1].kill());
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(log.contains("hop 2 of 2 "), "{log}");
    assert!(!log.contains("relay2"), "no name gets into the log: {log}");
    let (answer, log) = told(1, |world| world.relays[0].kill());
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(log.contains("hop 1 of 1 cannot be reached"), "{log}");
    assert!(!log.contains("relay1"), "no name gets into the log: {log}");
}

/// Kills a relay under a client, and starts it again.
fn goes_and_comes_back(place: usize) {
    let mut world = World::new(2);
    let (mut client, _, http) = world.client("");
    let target = target();
    assert!(through_http(http, target).starts_with("HTTP/1.1 200"));
    world.relays[place].kill();
    assert!(!through_http(http, target).starts_with("HTTP/1.1 200"));
    world.relays[place].run();
    let since = Instant::now();
    while !through_http(http, target).starts_with("HTTP/1.1 200") {
        assert!(since.elapsed() < PATIENCE, "it is not used again");
    }
    client.signal(Signal::TERM);
    let hop = place + 1;
    client.line_with(&format!("hop {hop} of 2 "));
}

#[test]
fn a_first_relay_that_is_killed_is_named_and_used_again_when_it_is_back() {
    goes_and_comes_back(0);
}

#[test]
fn a_last_relay_that_is_killed_is_named_and_used_again_when_it_is_back() {
    goes_and_comes_back(1);
}

/// A SOCKS request, and the code of the reply.
fn asked(proxy: u16, request: &[u8]) -> u8 {
    let mut stream = dial(proxy);
    stream.write_all(&[5, 1, 0]).expect("takes");
    stream.read_exact(&mut [0; 2]).expect("greets");
    stream.write_all(request).expect("takes");
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).expect("answers");
    reply[1]
}

#[test]
fn udp_is_refused_and_names_are_told_by_the_last_relay() {
    let world = World::new(1);
    let (_client, socks, _) = world.client("");
    // "X'07' Command not supported"
    assert_eq!(asked(socks, &[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]), 7);
    let name = b"nowhere.invalid";
    let length = u8::try_from(name.len()).expect("short");
    let request = [&[5, 1, 0, 3, length][..], name, &443u16.to_be_bytes()].concat();
    // "X'04' Host unreachable"
    assert_eq!(asked(socks, &request), 4);
}

/// What a target says to a program that has a user name.
fn as_user(proxy: u16, user: u8, target: u16) -> String {
    let mut stream = dial(proxy);
    stream.write_all(&[5, 1, 2]).expect("takes");
    stream.read_exact(&mut [0; 2]).expect("greets");
    stream.write_all(&[1, 1, user, 1, b'x']).expect("takes");
    stream.read_exact(&mut [0; 2]).expect("lets in");
    let request = [&[5, 1, 0, 1, 127, 0, 0, 1][..], &target.to_be_bytes()].concat();
    stream.write_all(&request).expect("takes");
    stream.read_exact(&mut [0; 10]).expect("answers");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    text
}

#[test]
fn each_socks_user_has_a_circuit_of_its_own_on_one_channel() {
    let world = World::new(1);
    let (mut client, socks, _) = world.client("onion.ahead = 0");
    let target = target();
    for user in *b"aba" {
        assert_eq!(as_user(socks, user, target), "hello");
    }
    client.signal(Signal::HUP);
    let line = client.line_with("a channel to a first relay");
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["circuits"], 2, "{line}");
}

#[test]
fn a_client_that_stops_leaves_no_circuit_at_its_relay() {
    let mut world = World::new(1);
    let (mut client, socks, _) = world.client("onion.channel = \"quic\"");
    assert_eq!(through_socks(socks, target()), (0, "hello".to_owned()));
    client.signal(Signal::INT);
    assert_eq!(client.wait_for_end().code(), Some(0));
    let mut relay = world.relays[0].running.take().expect("runs");
    relay.signal(Signal::TERM);
    relay.wait_for_end();
    // It would have waited for open circuits, and told that it closed them.
    relay.line_with("draining");
    let last = relay.line_with("the relay has stopped");
    assert!(!last.contains("still open"), "{last}");
}

/// A socket of a process that has another end.
#[derive(Debug)]
struct Connected {
    inode: String,
    far: u16,
    /// As the kernel has it: the table's name, addresses, state.
    #[expect(dead_code, reason = "what a failure shows")]
    line: String,
}

/// The sockets of a process that have another end, but those of who came in at `fronts`. The kernel lists sockets in pieces, and while others
/// come and go it may list one twice, or not at all (proc_net_tcp.rst).
fn connected(pid: u32, fronts: &[u16]) -> Vec<Connected> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("there");
    let links = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let inode = |link: PathBuf| {
        let text = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(text.to_owned())
    };
    let inodes: Vec<String> = links.filter_map(inode).collect();
    let port = |address: &str| {
        let (_, port) = address.split_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    let mut found: Vec<Connected> = Vec::new();
    for name in ["tcp", "udp", "tcp6", "udp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
        let socket = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (near, far) = (port(fields.get(1)?)?, port(fields.get(2)?)?);
            let is_front = name.starts_with("tcp") && fronts.contains(&near);
            let inode = (*fields.get(9)?).to_owned();
            let line = format!("{name} {}", line.trim());
            let is_ours = inodes.contains(&inode) && far != 0 && !is_front;
            is_ours.then_some(Connected { inode, far, line })
        };
        found.extend(table.lines().filter_map(socket));
    }
    found.sort_by(|a, b| a.inode.cmp(&b.inode));
    found.dedup_by(|a, b| a.inode == b.inode);
    found
}

/// A target that answers `hello` and keeps the connection.
fn patient_target() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let port = listener.local_addr().expect("bound").port();
    (listener, port)
}

fn no_leak(channel: &str) {
    let world = World::new(3);
    let (client, socks, http) = world.client(&format!("onion.channel = {channel:?}"));
    let (listener, target) = patient_target();
    let mut stream = dial(socks);
    stream.write_all(&[5, 1, 0]).expect("takes");
    stream.read_exact(&mut [0; 2]).expect("greets");
    let request = [&[5, 1, 0, 1, 127, 0, 0, 1][..], &target.to_be_bytes()].concat();
    stream.write_all(&request).expect("takes");
    stream.read_exact(&mut [0; 10]).expect("answers");
    let (_far, _) = listener.accept().expect("a stream");
    let guard: SocketAddr = world.relays[0].address.parse().expect("an address");
    // A channel that broke while the machine stood still lingers for seconds beside its successor.
    let since = Instant::now();
    loop {
        let seen = connected(client.pid(), &[socks, http]);
        let is_guard = |socket: &Connected| socket.far == guard.port();
        assert!(seen.iter().all(is_guard), "not only to {guard}: {seen:#?}");
        if seen.len() == 1 {
            break;
        }
        let waits = since.elapsed() < PATIENCE;
        assert!(waits, "one connection, to {guard}: {seen:#?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_is_connected_to_its_first_relay_and_to_nobody_else() {
    no_leak("quic");
    no_leak("tls");
}

#[test]
fn check_says_what_circuits_mean_and_status_of_a_wrong_file_is_2() {
    let world = World::new(1);
    let (_client, ..) = world.client("");
    let check = |file: &Path| {
        let mut check = Command::new(env!("CARGO_BIN_EXE_hoplite"));
        check
            .args(["check", "--config"])
            .arg(file)
            .output()
            .expect("runs")
    };
    let file = world.directory.path().join("client.toml");
    let right = check(&file);
    let text = String::from_utf8(right.stdout).expect("text");
    assert!(
        text.contains("circuits of Tor's cells over QUIC or TLS"),
        "{text}"
    );
    assert!(text.contains("UDP where the last relay does"), "{text}");
    let spoilt = fs::read_to_string(&file)
        .expect("there")
        .replace("onion = ", "# onion = ");
    fs::write(&file, spoilt).expect("written");
    let wrong = check(&file);
    let text = String::from_utf8(wrong.stderr).expect("text");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        text.contains("relay[0].onion: overlay = \"onion\" needs the onion key"),
        "{text}"
    );
}
