//! Hostile participants of a directory, from outside: an authority that shows each of the others something else, and who asks for too much.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
};

use hoplite_crypto::{SigningKey, onion::rsa::sha256};
use hoplite_wire::directory::{
    Commitment, Commitments, Key, List, SharedRandomLines, Signature, SignedDescriptor, SignedList,
    Stage,
};
use socket2::{Domain, Socket, Type};
use zeroize::Zeroizing;

use crate::{
    common::Running,
    directory::{described, free_port, get, hand_in, key},
};

const INTERVAL: u64 = 8;

fn liar() -> SigningKey {
    SigningKey::from_seed(Zeroizing::new([66; 32])).expect("a key")
}

/// What the liar votes for the list at `at`, and what it commits to by that.
fn lie(at: u64, relays: Vec<SignedDescriptor>) -> (String, String) {
    let list = List {
        stage: Stage::Vote,
        valid_after: at,
        fresh_until: at + INTERVAL,
        valid_until: at + 1000 * INTERVAL,
        params: BTreeMap::new(),
        shared_random: SharedRandomLines::default(),
        relays,
        opinions: BTreeMap::new(),
    };
    let voter = Key(liar().public());
    let vote = sha256(list.text().as_bytes());
    let commitment = Commitment {
        valid_after: at,
        voter,
        vote,
    };
    let signature = Signature(liar().sign(commitment.text().as_bytes()));
    let signatures = BTreeMap::from([(voter, signature)]);
    let all = BTreeMap::from([(commitment, signatures.clone())]);
    let vote = SignedList { list, signatures };
    (vote.to_string(), Commitments { all }.to_string())
}

/// Answers whoever asks at this port by a vote for these relays.
fn serve(listener: &TcpListener, relays: &[SignedDescriptor]) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let mut request = [0; 4096];
        let Ok(length) = stream.read(&mut request) else {
            continue;
        };
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut parts = path.split('/').skip(2);
        let (what, at) = (parts.next(), parts.next().and_then(|at| at.parse().ok()));
        let body = match (what, at) {
            (Some("commitments"), Some(at)) => lie(at, relays.to_vec()).1,
            (Some("vote"), Some(at)) if path.ends_with(&Key(liar().public()).to_string()) => {
                lie(at, relays.to_vec()).0
            }
            _ => String::new(),
        };
        let status = if body.is_empty() {
            "404 none"
        } else {
            "200 OK"
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        drop(stream.write_all(format!("{head}{body}").as_bytes()));
    }
}

fn listening() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let port = listener.local_addr().expect("bound").port();
    (listener, port)
}

fn started(place: &Path, port: u16, authorities: &[String], lines: &str) -> Running {
    let file = place.join("directory.toml");
    let text = format!(
        "authorities = {authorities:?}\nlisten = \"127.0.0.1:{port}\"\ninterval = {INTERVAL}\nvoting = 2\nintervals = 1000\n{lines}"
    );
    fs::write(&file, text).expect("written");
    let mut authority = Running::start("directory", &file);
    authority.line_with("the authority is up");
    authority
}

fn list(port: u16) -> Option<SignedList> {
    let answer = get(port, "/hoplite/list");
    let (_, body) = answer.split_once("\r\n\r\n")?;
    SignedList::parse(body, Stage::List).ok()
}

#[test]
fn two_authorities_publish_one_list_though_a_third_shows_each_of_them_another_vote() {
    let directory = tempfile::tempdir().expect("directory");
    let places = [0, 1].map(|n| directory.path().join(format!("authority{n}")));
    let keys = places.clone().map(|place| key(&place));
    let ports = [free_port(), free_port()];
    let (here, there) = (listening(), listening());
    // Each knows the liar at a port of its own, so that it knows who asks.
    let start = |n: usize, liar_at: u16| {
        let mut authorities = vec![
            format!("{}@127.0.0.1:{}", keys[0], ports[0]),
            format!("{}@127.0.0.1:{}", keys[1], ports[1]),
        ];
        authorities.push(format!("{}@127.0.0.1:{liar_at}", Key(liar().public())));
        let lines = "[admission]\nprivate = true\n";
        started(&places[n], ports[n], &authorities, lines)
    };
    // A relay that the first alone knows: whoever adds a vote to the first's lists it, whoever adds none does not.
    let mut one = start(0, here.1);
    let mut other = start(1, there.1);
    let (_relay, said, proof) = described(directory.path(), 1);
    let answer = hand_in(ports[0], &said, Some(&proof));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    thread::spawn(move || serve(&here.0, &[said]));
    thread::spawn(move || serve(&there.0, &[]));
    for authority in [&mut one, &mut other] {
        let told = authority.line_with("two different votes for one time");
        assert!(told.contains("\"authority\":3"), "{told}");
        // The period of it, and the one after.
        for _ in 0..2 {
            authority.line_with("a list is published");
        }
    }
    let (ours, theirs) = loop {
        let lists = (list(ports[0]), list(ports[1]));
        if let (Some(ours), Some(theirs)) = lists
            && ours.list.valid_after == theirs.list.valid_after
        {
            break (ours, theirs);
        }
    };
    assert_eq!(ours.list, theirs.list);
    assert!(ours.signatures.len() == 2 && ours.list.relays.is_empty());
}

#[test]
fn who_hands_in_or_asks_for_too_much_is_told_so() {
    let directory = tempfile::tempdir().expect("directory");
    let port = free_port();
    let authorities = [format!("{}@127.0.0.1:{port}", key(directory.path()))];
    let lines = "[limits]\nuploads_per_client = 1\nrequests_per_client = 1\n";
    let _authority = started(directory.path(), port, &authorities, lines);
    let post = || {
        let mut stream = connect(port);
        let head = "POST /hoplite/descriptor HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";
        stream.write_all(head.as_bytes()).expect("taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer.get(..12).expect("a status").to_owned()
    };
    // The next is free a minute later.
    assert_eq!(
        (post(), post()),
        ("HTTP/1.1 403".into(), "HTTP/1.1 429".into())
    );
    let is_refused = || get(port, "/hoplite/vote/1/x").starts_with("HTTP/1.1 429");
    assert_eq!((is_refused(), is_refused()), (false, true));
}

/// How whoever only wants the place holds it.
const HOLDS: [&str; 3] = [
    "",
    "GET /hoplite/list HTTP/1.1\r\nHost:",
    "POST /hoplite/descriptor HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell",
];

#[test]
fn a_newcomer_is_answered_while_others_hold_all_connections_idle() {
    let directory = tempfile::tempdir().expect("directory");
    let port = free_port();
    let authorities = [format!("{}@127.0.0.1:{port}", key(directory.path()))];
    // Nothing ends by itself while the test runs.
    let lines = "[limits]\nrequest = 600\nconnection = 600\n";
    let _authority = started(directory.path(), port, &authorities, lines);
    let asked = |from: Ipv4Addr| {
        let mut stream = connect_from(from, port);
        let head = "GET /hoplite/vote/1/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let mut answer = String::new();
        let answered = stream.write_all(head.as_bytes());
        drop(answered.and_then(|()| stream.read_to_string(&mut answer)));
        answer
    };
    // A few addresses that take all they may have, and then many with one connection each, each time more than there are places.
    for (net, addresses, each) in [(1, 17, 16), (2, 250, 1), (3, 250, 1)] {
        let mut held = Vec::new();
        for n in (1..=addresses).flat_map(|n| [n; 16].into_iter().take(each)) {
            let mut stream = connect_from([127, 0, net, n].into(), port);
            let start = HOLDS[held.len() % HOLDS.len()];
            // It may have been hung up on.
            drop(stream.write_all(start.as_bytes()));
            held.push(stream);
        }
        for newcomer in 1..=20 {
            let answer = asked([127, 0, 100 + net, newcomer].into());
            assert!(answer.starts_with("HTTP/1.1 404"), "{newcomer}: {answer:?}");
        }
        let same = asked([127, 0, net, 1].into());
        assert!(same.starts_with("HTTP/1.1 404"), "{same:?}");
    }
}

#[test]
fn who_connects_and_sends_no_whole_request_is_hung_up_on() {
    let directory = tempfile::tempdir().expect("directory");
    let port = free_port();
    let authorities = [format!("{}@127.0.0.1:{port}", key(directory.path()))];
    let lines = "[limits]\nrequest = 1\nconnection = 600\n";
    let _authority = started(directory.path(), port, &authorities, lines);
    let told = HOLDS.map(|start| {
        let mut stream = connect(port);
        stream.write_all(start.as_bytes()).expect("taken");
        let mut answer = Vec::new();
        // Returns when the authority has closed it.
        drop(stream.read_to_end(&mut answer));
        String::from_utf8_lossy(&answer).into_owned()
    });
    assert!(told[0].is_empty(), "{told:?}");
    assert!(!told[1].contains(" 200 "), "{told:?}");
    assert!(told[2].starts_with("HTTP/1.1 408"), "{told:?}");
}

pub(crate) fn connect_from(from: Ipv4Addr, port: u16) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let from = SocketAddr::from((from, 0));
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.bind(&from.into()).expect("binds");
    socket.connect(&to.into()).expect("listens");
    socket.into()
}

#[expect(clippy::disallowed_methods, reason = "the test is a stranger")]
fn connect(port: u16) -> TcpStream {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("listens")
}
