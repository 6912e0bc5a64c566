//! Onion services as their clients and their operators see them: authorities, relays, a service and its clients, each from its file, on loopback.

use std::{
    fs::{self, DirBuilder, Permissions},
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::{
        fs::{DirBuilderExt, PermissionsExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Instant,
};

use hoplite_crypto::onion::{
    client_authorisation::ClientSecret,
    service_keys::{OnionAddress, ServiceIdentity},
};
use hoplite_wire::directory::{RelayFlags, SignedList, Stage};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    client::{PATIENCE, dial, started, target, through_socks},
    common::Running,
    directory::{Authorities, get, refusal, relay_with},
};

/// Enough for three hops, another relay behind them, and one more.
const RELAYS: u8 = 6;

/// An authority and relays of which most keep descriptors.
struct World {
    directory: TempDir,
    authorities: Authorities,
    _relays: Vec<Running>,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let mut authorities = Authorities::start(directory.path(), 1, 1);
        let names = format!("authorities = {:?}\n", authorities.names);
        let start = |n| {
            let hsdir = n <= 4;
            let lines = format!("{names}[onion]\nenabled = true\nhsdir = {hsdir}\n");
            relay_with(directory.path(), n, &authorities, &lines).0
        };
        let relays = (1..=RELAYS).map(start).collect();
        let begun = Instant::now();
        let port = authorities.ports[0];
        authorities.wait_for(RELAYS.into());
        // The first list has what the authority commits to, the next a value.
        while !is_ready(port) {
            assert!(begun.elapsed() < PATIENCE, "no list for onion services");
            authorities.wait_for(RELAYS.into());
        }
        Self {
            directory,
            authorities,
            _relays: relays,
        }
    }

    /// A file of a client, or of a service, with these lines.
    fn file(&self, name: &str, onion: &str, tables: &str) -> PathBuf {
        let file = self.directory.path().join(format!("{name}.toml"));
        let text = format!(
            "overlay = \"onion\"\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\n{onion}\n\
             [directory]\nauthorities = {:?}\nwait = 60\ncache = \"{name}.sqlite\"\n{tables}",
            self.authorities.names
        );
        fs::write(&file, text).expect("written");
        file
    }

    /// A service that is published, and its address.
    fn service(&self, name: &str, ports: &[String]) -> (Running, OnionAddress) {
        let table = format!("[[service]]\nkeys = \"{name}.keys\"\nports = {ports:?}\n");
        let mut service = Running::start("client", &self.file(name, "", &table));
        service.line_with("an onion service is published");
        let hostname = self.keys(name).join("hostname");
        let hostname = fs::read_to_string(hostname).expect("there");
        (service, hostname.trim().parse().expect("an address"))
    }

    fn keys(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.keys"))
    }

    /// A client with these lines in its file, and its SOCKS port.
    fn client(&self, name: &str, onion: &str) -> (Running, u16) {
        let (client, socks, _) = started(Running::start("client", &self.file(name, onion, "")));
        (client, socks)
    }
}

fn is_ready(port: u16) -> bool {
    let answer = get(port, "/hoplite/list");
    let (_, text) = answer.split_once("\r\n\r\n").expect("an answer");
    let list = SignedList::parse(text, Stage::List).expect("a list").list;
    list.shared_random.current.is_some() && list.flagged(RelayFlags::HSDIR).count() == 4
}

/// The SOCKS reply code, and the stream to a port of a name that stands if it is 0.
fn reached(proxy: u16, name: &str, port: u16) -> (u8, TcpStream) {
    let mut stream = dial(proxy);
    stream.write_all(&[5, 1, 0]).expect("takes");
    stream.read_exact(&mut [0; 2]).expect("greets");
    let length = u8::try_from(name.len()).expect("short");
    let head = [&[5, 1, 0, 3, length][..], name.as_bytes()].concat();
    let request = [&head[..], &port.to_be_bytes()].concat();
    stream.write_all(&request).expect("takes");
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).expect("answers");
    (reply[1], stream)
}

/// What a service says to whoever comes.
fn hello(proxy: u16, name: &str, port: u16) -> (u8, String) {
    let (code, mut stream) = reached(proxy, name, port);
    let mut text = String::new();
    if code == 0 {
        stream.read_to_string(&mut text).expect("text");
    }
    (code, text)
}

/// A local server that sends back what comes.
fn echo() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || {
                let mut back = stream.try_clone().expect("cloned");
                drop(std::io::copy(&mut &stream, &mut back));
            });
        }
    });
    port
}

/// A mebibyte there and back.
fn a_mebibyte_comes_back(mut stream: TcpStream) {
    let sent: Vec<u8> = (0..=250).cycle().take(1 << 20).collect();
    let (mut writes, copy) = (stream.try_clone().expect("cloned"), sent.clone());
    let writer = thread::spawn(move || writes.write_all(&copy).expect("open"));
    let mut got = vec![0; sent.len()];
    stream.read_exact(&mut got).expect("comes back");
    writer.join().expect("sent");
    assert!(got == sent, "other bytes came back");
}

fn private(path: &Path) {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .expect("made");
}

/// What `hoplite check` says of a file that is wrong.
fn wrong(file: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["check", "--config"])
        .arg(file)
        .output()
        .expect("runs");
    assert!(!output.status.success());
    String::from_utf8(output.stderr).expect("text")
}

fn write_private(path: &Path, content: &[u8]) {
    fs::write(path, content).expect("written");
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("set");
}

/// `hoplite keygen --onion-client`: the directory of the client's keys, and what the service is told.
fn keygen(directory: &Path, service: &OnionAddress) -> (String, String) {
    let name = "alice.keys".to_owned();
    let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["keygen", "--onion-client", &service.to_string(), "--out"])
        .arg(directory.join(&name))
        .output()
        .expect("runs");
    assert!(output.status.success());
    (name, String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn a_service_is_reached_by_its_name_and_by_no_other_and_what_it_does_not_serve_is_refused() {
    let world = World::new();
    let socket = world.directory.path().join("sock");
    let listener = UnixListener::bind(&socket).expect("binds");
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            drop(stream.write_all(b"by a socket"));
        }
    });
    let ports = [
        format!("80=127.0.0.1:{}", echo()),
        format!("81=unix:{}", socket.display()),
        // Where nothing listens.
        "82=127.0.0.1:9".to_owned(),
    ];
    let (mut service, address) = world.service("service", &ports);
    let (mut client, socks) = world.client("client", "");
    for name in [address.to_string(), format!("www.{address}").to_uppercase()] {
        let (code, stream) = reached(socks, &name, 80);
        assert_eq!(code, 0);
        a_mebibyte_comes_back(stream);
    }
    let name = address.to_string();
    assert_eq!(hello(socks, &name, 81), (0, "by a socket".to_owned()));
    assert_ne!(hello(socks, &name, 82).0, 0);
    assert_ne!(hello(socks, &name, 83).0, 0, "no port of it");
    assert_eq!(hello(socks, &name, 81).0, 0, "again, by another circuit");

    // Nobody's, mistyped ones, and what is none: host unreachable, and no exit is asked.
    let unknown = ServiceIdentity::generate().expect("a key").address();
    let mistyped = name.replacen(name.split_at(2).0, "zz", 1);
    for wrong in [unknown.to_string(), mistyped, "example.onion".to_owned()] {
        assert_eq!(hello(socks, &wrong, 80).0, 4, "{wrong}");
    }
    // And other targets are reached as ever.
    assert_eq!(through_socks(socks, target()), (0, "hello".to_owned()));

    // The same keys are the same service.
    service.signal(Signal::INT);
    assert_eq!(service.wait_for_end().code(), Some(0));
    let (_service, again) = world.service("service", &ports);
    assert!(again == address);
    let again = hello(socks, &name, 81);
    client.signal(Signal::INT);
    assert_eq!(client.wait_for_end().code(), Some(0));
    let log = client.rest();
    assert_eq!(again, (0, "by a socket".to_owned()), "{log}");
    assert!(!log.contains(&address.label()), "{log}");
}

#[test]
fn a_service_for_authorised_clients_is_reached_by_those_alone() {
    let world = World::new();
    let eve = ClientSecret::generate().expect("a key");
    private(&world.keys("service"));
    let identity = ServiceIdentity::generate().expect("a key");
    let secret = world.keys("service").join("hs_ed25519_secret_key");
    write_private(&secret, &identity.file());
    let address = identity.address();
    let (own, line) = keygen(world.directory.path(), &address);
    let clients = world.keys("service").join("authorized_clients");
    private(&clients);
    write_private(&clients.join("alice.auth"), line.as_bytes());
    let ports = [format!("80=127.0.0.1:{}", echo())];
    let (_service, told) = world.service("service", &ports);
    assert!(told == address, "the identity that was there");
    let name = address.to_string();
    let (_alice, socks) = world.client("alice", &format!("onion.client_keys = {own:?}"));
    let (code, stream) = reached(socks, &name, 80);
    assert_eq!(code, 0);
    a_mebibyte_comes_back(stream);
    let others = world.directory.path().join("eve.keys");
    private(&others);
    let file = others.join("service.auth_private");
    write_private(&file, eve.file(&address).as_bytes());
    for (who, lines) in [("eve", "onion.client_keys = \"eve.keys\""), ("nobody", "")] {
        let (mut client, socks) = world.client(who, lines);
        assert_eq!(hello(socks, &name, 80).0, 2, "{who}: not allowed");
        let told = client.line_with("opening the descriptor");
        assert!(told.contains("authorised") && !told.contains(&address.label()));
    }
    // A client's keys that others can read are refused by the key in its file.
    let directory = world.directory.path().join(&own);
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("set");
    let told = wrong(&world.file("open", &format!("onion.client_keys = {own:?}"), ""));
    assert!(
        told.contains("onion.client_keys") && told.contains(&own),
        "{told}"
    );
}

#[test]
fn keys_of_a_service_that_others_can_read_are_refused_by_name() {
    let directory = tempfile::tempdir().expect("directory");
    let mut authorities = Authorities::start(directory.path(), 1, 1);
    let lines = "[onion]\nenabled = true\n";
    let _relay = relay_with(directory.path(), 1, &authorities, lines);
    authorities.wait_for(1);
    let keys = directory.path().join("keys");
    private(&keys);
    let secret = keys.join("hs_ed25519_secret_key");
    let identity = ServiceIdentity::generate().expect("a key");
    write_private(&secret, &identity.file());
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).expect("set");
    let file = directory.path().join("service.toml");
    let text = format!(
        "overlay = \"onion\"\nhops = 1\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\n[directory]\nauthorities = {:?}\nwait = 60\n\
         [[service]]\nkeys = \"keys\"\nports = [\"80=127.0.0.1:80\"]\n",
        authorities.names
    );
    fs::write(&file, text).expect("written");
    let told = refusal(&file);
    assert!(
        told.contains("hs_ed25519_secret_key") && told.contains("644"),
        "{told}"
    );
}
