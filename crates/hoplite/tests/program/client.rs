//! A client as its user sees it: from its file, over a relay with its file, to a target and back.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    thread,
    time::Duration,
};

use crate::common::{Running, value};
use rustix::process::Signal;

/// A test fails rather than hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A relay that connects to loopback for whoever shows its token, and a client's file for it.
pub(crate) fn relay(directory: &Path, qlog: Option<&Path>) -> Running {
    relay_with(directory, qlog, "")
}

/// The same with more in its file.
pub(crate) fn relay_with(directory: &Path, qlog: Option<&Path>, more: &str) -> Running {
    fs::write(directory.join("relay.token"), "secret\n").expect("written");
    let file = format!(
        "listen = [\"127.0.0.1:0\"]\n[egress]\nallow = [\"127.0.0.0/8\"]\n\
         [[auth.token]]\nfile = \"relay.token\"\n{more}"
    );
    fs::write(directory.join("relay.toml"), file).expect("written");
    let mut relay = Running::recorded("relay", &directory.join("relay.toml"), qlog);
    let up = relay.line_with("the relay is up");
    let client = format!(
        "path = [\"a\"]\ntoken_file = \"client.token\"\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\n\
         [[relay]]\nname = \"a\"\naddress = \"{}\"\npin = \"{}\"\n",
        value(&up, "listen"),
        value(&up, "pin"),
    );
    fs::write(directory.join("client.toml"), client).expect("written");
    relay
}

/// A client with this token, its SOCKS port and its HTTP port.
pub(crate) fn client(directory: &Path, token: &str) -> (Running, u16, u16) {
    fs::write(directory.join("client.token"), token).expect("written");
    started(Running::start("client", &directory.join("client.toml")))
}

/// A client that starts, its SOCKS port and its HTTP port.
pub(crate) fn started(mut client: Running) -> (Running, u16, u16) {
    let line = client.line_with("point your browser at");
    let port = |before: &str| {
        let rest = line.split(before).nth(1).expect("there");
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a port")
    };
    let ports = (port("SOCKS5 at 127.0.0.1:"), port("http://127.0.0.1:"));
    (client, ports.0, ports.1)
}

/// A target that answers `hello` to whoever comes.
pub(crate) fn target() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            drop(stream.write_all(b"hello"));
        }
    });
    port
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test is the program in front of the proxy"
)]
pub(crate) fn dial(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
}

/// The SOCKS reply code, and what comes after it if it is 0.
pub(crate) fn through_socks(proxy: u16, target: u16) -> (u8, String) {
    let (code, mut stream) = opened(proxy, target);
    let mut text = String::new();
    if code == 0 {
        stream.read_to_string(&mut text).expect("text");
    }
    (code, text)
}

/// The SOCKS reply code, and the stream to the target that stands if it is 0.
pub(crate) fn opened(proxy: u16, target: u16) -> (u8, TcpStream) {
    let mut stream = dial(proxy);
    stream.write_all(&[5, 1, 0]).expect("takes");
    stream.read_exact(&mut [0; 2]).expect("greets");
    let request = [&[5, 1, 0, 1, 127, 0, 0, 1][..], &target.to_be_bytes()].concat();
    stream.write_all(&request).expect("takes");
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).expect("answers");
    (reply[1], stream)
}

pub(crate) fn through_http(proxy: u16, target: u16) -> String {
    let mut stream = dial(proxy);
    let request =
        format!("CONNECT 127.0.0.1:{target} HTTP/1.1\r\nHost: 127.0.0.1:{target}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("takes");
    let mut answer = Vec::new();
    // A refused CONNECT leaves the connection open for another try.
    while !answer.ends_with(b"\r\n\r\n") {
        take(&mut stream, 1, &mut answer);
    }
    if answer.starts_with(b"HTTP/1.1 200") {
        take(&mut stream, 5, &mut answer);
    }
    String::from_utf8(answer).expect("text")
}

fn take(stream: &mut TcpStream, bytes: usize, into: &mut Vec<u8>) {
    let mut room = vec![0; bytes];
    stream.read_exact(&mut room).expect("answers");
    into.extend(room);
}

#[test]
fn programs_reach_their_target_by_socks_and_http() {
    let directory = tempfile::tempdir().expect("directory");
    let _relay = relay(directory.path(), None);
    let (mut client, socks, http) = client(directory.path(), "secret");
    let target = target();
    assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));
    let answer = through_http(http, target);
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
        "{answer}"
    );
    client.signal(Signal::INT);
    assert_eq!(client.wait_for_end().code(), Some(0));
}

#[test]
fn a_wrong_token_is_told_as_not_allowed() {
    let directory = tempfile::tempdir().expect("directory");
    let _relay = relay(directory.path(), None);
    let (_client, socks, http) = client(directory.path(), "wrong");
    let target = target();
    assert_eq!(through_socks(socks, target).0, 2);
    let answer = through_http(http, target);
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[test]
fn a_client_without_relays_says_that_nothing_is_hidden() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("client.toml");
    let text =
        "overlay = \"direct\"\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\n";
    fs::write(&file, text).expect("written");
    let mut client = Running::start("client", &file);
    let warning = client.line_with("overlay = ");
    assert!(warning.contains("nothing is hidden"), "{warning}");
    let (_client, socks, _) = started(client);
    assert_eq!(through_socks(socks, target()), (0, "hello".to_owned()));
}
