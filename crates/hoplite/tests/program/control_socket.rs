//! The control socket of circuits as whoever runs a client uses it: what passes is told while it passes, to those who may open the socket, and
//! nothing that belongs to somebody else is taken for it.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    client::{target, through_socks},
    common::Running,
    onion::World,
};

/// Longer than anything that is waited for here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody who follows.
struct Follower(BufReader<UnixStream>);

impl Follower {
    fn new(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        Self(BufReader::new(stream))
    }

    fn ask(&mut self, command: &str) -> String {
        let stream = self.0.get_mut();
        stream
            .write_all(format!("{command}\r\n").as_bytes())
            .expect("taken");
        self.line()
    }

    /// The next line; empty when the connection has ended.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("in time");
        line.trim_end().to_owned()
    }

    /// The next line that has this in it.
    fn line_with(&mut self, what: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "it has ended before {what}");
            if line.contains(what) {
                return line;
            }
        }
    }
}

fn refused(world: &World, socket: &Path) -> String {
    let text = world.client_file(&format!("onion.control = {socket:?}"));
    let file = world.path().join("refused.toml");
    fs::write(&file, text).expect("written");
    let mut client = Running::start("client", &file);
    client.line_with("onion.control")
}

#[test]
fn a_follower_hears_the_hops_of_a_circuit_and_the_stream_of_a_program() {
    let world = World::new(3);
    let socket = world.path().join("control");
    let (mut client, socks, _) = world.client("onion.control = \"control\"\nonion.ahead = 0");
    let mode = fs::metadata(&socket).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for this user alone");
    let mut follower = Follower::new(&socket);
    assert!(follower.ask("SETEVENTS CIRC").starts_with("514 "));
    assert_eq!(follower.line(), "", "it is let go");
    let mut follower = Follower::new(&socket);
    assert_eq!(follower.ask("AUTHENTICATE"), "250 OK");
    assert_eq!(follower.ask("SETEVENTS CIRC STREAM"), "250 OK");
    let target = target();
    assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));
    let new = follower.line_with(" NEW 0 ");
    let (id, source) = (word(&new, 2), new.contains(" SOURCE_ADDR=127.0.0.1:"));
    assert!(source && new.contains(&target.to_string()), "{new}");
    for hops in 1..=3 {
        let extended = follower.line_with(" EXTENDED ");
        assert_eq!(word(&extended, 4).split(',').count(), hops, "{extended}");
    }
    let built = follower.line_with(" BUILT ");
    let sent = follower.line_with(" SENTCONNECT ");
    let on = (word(&sent, 2), word(&sent, 4));
    assert_eq!(on, (id.clone(), word(&built, 2)));
    assert_eq!(word(&follower.line_with(" SUCCEEDED "), 2), id);
    let closed = follower.line_with(" CLOSED ");
    assert!(
        word(&closed, 2) == id && closed.ends_with("REASON=DONE"),
        "{closed}"
    );
    client.signal(Signal::TERM);
    client.wait_for_end();
    assert!(!socket.exists(), "it is gone with the process");
}

fn word(line: &str, place: usize) -> String {
    let word = line.split(' ').nth(place);
    word.unwrap_or_default().to_owned()
}

#[test]
fn what_is_not_a_socket_of_a_dead_process_stays_as_it_is() {
    let world = World::new(1);
    let file = world.path().join("file");
    fs::write(&file, "precious").expect("written");
    assert!(refused(&world, &file).contains("no socket"));
    assert_eq!(fs::read_to_string(&file).expect("there"), "precious");
    let held = world.path().join("held");
    let listener = UnixListener::bind(&held).expect("bound");
    assert!(refused(&world, &held).contains("another process listens there"));
    // Now it is one that a dead process left.
    drop(listener);
    let (_client, socks, _) = world.client(&format!("onion.control = {held:?}"));
    assert_eq!(through_socks(socks, target()), (0, "hello".to_owned()));
    assert_eq!(Follower::new(&held).ask("AUTHENTICATE"), "250 OK");
}
