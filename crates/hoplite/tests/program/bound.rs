//! UDP of programs with one public address at the last relay, as a program behind SOCKS5 sees it; and without, where the relay has none.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    path::Path,
    thread,
    time::Duration,
};

use crate::{
    client::{PATIENCE, dial, started},
    common::{Running, value},
};

/// A relay and a client whose `[tunnel] bound_udp` is set, and its SOCKS port.
fn programs(directory: &Path, relay: &str) -> (Running, Running, u16) {
    let file = format!("listen = [\"127.0.0.1:0\"]\n[egress]\nallow = [\"127.0.0.0/8\"]\n{relay}");
    fs::write(directory.join("relay.toml"), file).expect("written");
    let mut relay = Running::start("relay", &directory.join("relay.toml"));
    let up = relay.line_with("the relay is up");
    let client = format!(
        "path = [\"a\"]\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\ntunnel.bound_udp = true\n\
         [[relay]]\nname = \"a\"\naddress = \"{}\"\npin = \"{}\"\n",
        value(&up, "listen"),
        value(&up, "pin"),
    );
    fs::write(directory.join("client.toml"), client).expect("written");
    let (client, socks, _) = started(Running::start("client", &directory.join("client.toml")));
    (relay, client, socks)
}

/// A program's association.
struct Association {
    _tcp: TcpStream,
    udp: UdpSocket,
    proxy: SocketAddr,
}

impl Association {
    fn new(socks: u16) -> Self {
        let mut tcp = dial(socks);
        tcp.write_all(&[5, 1, 0]).expect("takes");
        tcp.read_exact(&mut [0; 2]).expect("greets");
        tcp.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0])
            .expect("takes");
        let mut reply = [0; 10];
        tcp.read_exact(&mut reply).expect("answers");
        assert_eq!(reply[..4], [5, 0, 0, 1]);
        let port = u16::from_be_bytes([reply[8], reply[9]]);
        let udp = socket();
        Self {
            _tcp: tcp,
            udp,
            proxy: (Ipv4Addr::LOCALHOST, port).into(),
        }
    }

    fn recv(&self, header: &[u8]) -> Option<Vec<u8>> {
        let mut buf = [0; 2000];
        let len = self.udp.recv(&mut buf).ok()?;
        // An answer to a question that was asked twice is of no interest.
        buf[..len].strip_prefix(header).map(<[u8]>::to_vec)
    }

    /// Asks until there is an answer: UDP may lose.
    fn ask(&self, header: &[u8]) -> String {
        let short = Duration::from_millis(500);
        self.udp.set_read_timeout(Some(short)).expect("set");
        let question = [header, b"who am I?"].concat();
        for _ in 0..100 {
            self.udp.send_to(&question, self.proxy).expect("sent");
            if let Some(answer) = self.recv(header) {
                return String::from_utf8(answer).expect("text");
            }
        }
        unreachable!("no answer")
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    socket
}

/// The port of a server that tells each who asks by which address it sees him, as STUN does.
fn mirror() -> u16 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let port = socket.local_addr().expect("bound").port();
    thread::spawn(move || {
        let mut buf = [0; 2000];
        while let Ok((_, from)) = socket.recv_from(&mut buf) {
            drop(socket.send_to(from.to_string().as_bytes(), from));
        }
    });
    port
}

/// What stands before a datagram to or from a port of this host.
fn header(port: u16) -> Vec<u8> {
    [&[0, 0, 0, 1, 127, 0, 0, 1][..], &port.to_be_bytes()].concat()
}

fn by_name(port: u16) -> Vec<u8> {
    [&[0, 0, 0, 3, 9][..], b"localhost", &port.to_be_bytes()].concat()
}

#[test]
fn all_targets_of_an_association_see_one_address_at_which_others_reach_it() {
    let directory = tempfile::tempdir().expect("directory");
    let relay = "[bound_udp]\nenabled = true\naddresses = [\"127.0.0.1\"]\n";
    let (_relay, _client, socks) = programs(directory.path(), relay);
    let program = Association::new(socks);
    let seen = program.ask(&header(mirror()));
    assert_eq!(program.ask(&header(mirror())), seen);
    // A name that nobody is told the address of.
    program.ask(&by_name(mirror()));
    let other = Association::new(socks).ask(&header(mirror()));
    assert_ne!(other, seen, "of another program");
    let address: SocketAddr = seen.parse().expect("an address");
    let stranger = socket();
    let port = stranger.local_addr().expect("bound").port();
    stranger.send_to(b"hello", address).expect("sent");
    program.udp.set_read_timeout(Some(PATIENCE)).expect("set");
    // Answers to questions that were asked twice may come first.
    let mut buf = [0; 2000];
    loop {
        let len = program.udp.recv(&mut buf).expect("heard");
        if let Some(payload) = buf[..len].strip_prefix(&*header(port)) {
            assert_eq!(payload, b"hello");
            break;
        }
    }
    let answer = [&header(port)[..], b"hello yourself"].concat();
    program.udp.send_to(&answer, program.proxy).expect("sent");
    let (len, from) = stranger.recv_from(&mut buf).expect("answered");
    assert_eq!((&buf[..len], from), (&b"hello yourself"[..], address));
}

#[test]
fn without_such_a_relay_each_target_has_a_flow_of_its_own() {
    let directory = tempfile::tempdir().expect("directory");
    let (_relay, _client, socks) = programs(directory.path(), "");
    let program = Association::new(socks);
    let seen = program.ask(&header(mirror()));
    assert_ne!(program.ask(&header(mirror())), seen);
    program.ask(&by_name(mirror()));
}
