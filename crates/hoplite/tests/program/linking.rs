//! An issuer and two relays put side by side what they have seen of their clients, and try to say which client's connection is which account's, and
//! which connection at one relay is which at the other. They read every byte that is theirs to read: the issuer's requests and answers, the heads of
//! what relays are asked, the tokens, the first packets of connections down to the ClientHello.
//!
//! What they have besides is told in docs/threat-model.md and not tried here: addresses (the issuer and the first relay), and times and sizes of packets
//! (both relays). But one times are: a relay tries to have a client ask the issuer when it wants it to.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use hoplite_crypto::{ALPN_HTTP1, Certificates, Pin, server_tls};
use hoplite_testing::{
    identity,
    witness::{Seen, Witness},
};
use hoplite_wire::{
    forwarding::FORWARDING,
    privacy_pass::{
        Authenticator, PrivateToken, TokenRequest, decode_batch, decode_batch_response,
    },
    varint,
};
use num_bigint::BigUint;
use parking_lot::Mutex;
use rustix::process::Signal;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use crate::{
    client::{PATIENCE, started, target, through_socks},
    common::{Running, value},
    tokens::{Answer, Issuer, account, ask, write},
};

const NAMES: [&str; 4] = ["ann", "bob", "cyd", "dan"];
/// Tokens for each relay: enough for all connections, so that the issuer is asked once.
const KEEP: usize = 16;
/// The clients connect in these orders, neither of which is that in which they asked for tokens.
const ORDERS: [[usize; 4]; 2] = [[2, 0, 3, 1], [1, 3, 0, 2]];

/// A client's exchange with the issuer.
#[derive(Clone)]
struct Exchange {
    hello: Vec<u8>,
    head: String,
    body: Vec<u8>,
    answer_head: String,
    answer: Vec<u8>,
}

/// Stands before the issuer, and keeps what it sees.
struct IssuerWitness {
    address: String,
    pin: Pin,
    seen: Arc<Mutex<Vec<Exchange>>>,
}

impl IssuerWitness {
    fn before(issuer: &Issuer) -> Self {
        let identity = identity("localhost");
        let certificates = Certificates::new(&identity).expect("certificates");
        let tls = Arc::new(server_tls(certificates, &[ALPN_HTTP1]).expect("TLS"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
        let address = listener.local_addr().expect("bound").to_string();
        let seen = Arc::<Mutex<Vec<Exchange>>>::default();
        let kept = Arc::clone(&seen);
        let (listen, issuer_pin) = (issuer.listen.clone(), issuer.pin.clone());
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let exchange = exchange(stream, &tls, (&listen, &issuer_pin));
                kept.lock().push(exchange.expect("a request"));
            }
        });
        Self {
            address,
            pin: identity.pin(),
            seen,
        }
    }
}

/// Passes one request on, and its answer back.
fn exchange(
    stream: TcpStream,
    tls: &Arc<ServerConfig>,
    issuer: (&str, &str),
) -> io::Result<Exchange> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let wire = Wire(stream, Vec::new());
    let connection = ServerConnection::new(Arc::clone(tls)).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, wire);
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        text.extend(byte);
    }
    let head = String::from_utf8(text).map_err(io::Error::other)?;
    let len = field(&head, "content-length").map_or(0, |len| len.parse().expect("a number"));
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    let (what, fields) = head.split_once(" HTTP/1.1\r\n").expect("a request");
    let Answer(status, answer_head, answer) = ask(issuer, what, &passed_on(fields), &body);
    let kind = field(&answer_head, "content-type").unwrap_or_default();
    let back = format!(
        "HTTP/1.1 {status} OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        answer.len()
    );
    stream.write_all(&[back.as_bytes(), &answer].concat())?;
    stream.conn.send_close_notify();
    // Who has its answer may have gone.
    drop(stream.flush());
    // A record of TLS, and a message of the handshake.
    let hello = stream.sock.1.get(9..).unwrap_or_default().to_vec();
    Ok(Exchange {
        hello,
        head,
        body,
        answer_head,
        answer,
    })
}

/// The fields that the one who asks the issuer does not say itself.
fn passed_on(fields: &str) -> String {
    let own = ["host:", "connection:"];
    let lines = fields.split_inclusive("\r\n").filter(|line| line.len() > 2);
    lines
        .filter(|line| !own.iter().any(|own| line.to_lowercase().starts_with(own)))
        .collect()
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value)
}

/// Keeps the bytes that come.
struct Wire(TcpStream, Vec<u8>);

impl Read for Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.0.read(buf)?;
        self.1.extend_from_slice(&buf[..len]);
        Ok(len)
    }
}

impl Write for Wire {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// What somebody has seen of one client at one time: what says something about it, and what is there to make it differ from all others.
#[derive(Clone, Debug, Default)]
struct Trace {
    /// By names: alike for all clients, or it tells them apart.
    traits: BTreeMap<String, Vec<u8>>,
    /// What is drawn, or an account's: no run of it may come again elsewhere.
    bytes: Vec<Vec<u8>>,
}

impl Trace {
    fn note(&mut self, name: impl Into<String>, value: impl AsRef<[u8]>) {
        self.traits.insert(name.into(), value.as_ref().to_vec());
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.bytes.push(bytes.to_vec());
    }

    /// A ClientHello (RFC 8446 §4.1.2): its extensions come in an order that is drawn.
    fn hello(&mut self, of: &str, mut hello: &[u8]) {
        let rest = &mut hello;
        self.note(format!("{of}: version"), take(rest, 2));
        self.keep(take(rest, 32));
        let session = counted(rest, 1);
        self.note(
            format!("{of}: length of the session id"),
            session.len().to_be_bytes(),
        );
        self.keep(session);
        self.note(format!("{of}: cipher suites"), counted(rest, 2));
        self.note(format!("{of}: compression"), counted(rest, 1));
        let mut extensions = counted(rest, 2);
        while !extensions.is_empty() {
            let kind = number(take(&mut extensions, 2));
            let value = counted(&mut extensions, 2);
            match kind {
                51 => self.key_shares(of, value),
                57 => self.transport_parameters(of, value),
                _ => self.note(format!("{of}: extension {kind}"), value),
            }
        }
    }

    fn key_shares(&mut self, of: &str, mut value: &[u8]) {
        let mut shares = counted(&mut value, 2);
        while !shares.is_empty() {
            let group = number(take(&mut shares, 2));
            let share = counted(&mut shares, 2);
            self.note(
                format!("{of}: share of group {group}"),
                share.len().to_be_bytes(),
            );
            self.keep(share);
        }
    }

    /// RFC 9000 §18: the ids of no meaning (31 * N + 27) and the source's connection id are drawn.
    fn transport_parameters(&mut self, of: &str, mut value: &[u8]) {
        while !value.is_empty() {
            let [id, len] = [(); 2].map(|()| counter(&mut value));
            let parameter = take(&mut value, len);
            match id {
                0x0f => {
                    self.note(
                        format!("{of}: length of its id"),
                        parameter.len().to_be_bytes(),
                    );
                    self.keep(parameter);
                }
                id if id % 31 == 27 => self.keep(parameter),
                id => self.note(format!("{of}: transport parameter {id:#x}"), parameter),
            }
        }
    }

    /// A packet of QUIC: its ids, if the header is a long one, or all behind the first byte. What is between ids is the same for everybody.
    fn packet(&mut self, packet: &[u8]) {
        let (first, mut rest) = packet.split_first().expect("not empty");
        if first & 0x80 == 0 {
            return self.keep(rest);
        }
        take(&mut rest, 4);
        let ids = [(); 2].map(|()| counted(&mut rest, 1));
        ids.iter().for_each(|id| self.keep(id));
    }

    /// The fields of a head.
    fn head<'a>(&mut self, of: &str, fields: impl Iterator<Item = (&'a str, &'a [u8])>) {
        let mut names = Vec::new();
        for (name, value) in fields {
            names.push(name);
            // Tokens, and the keys that are offered for forwarded mode.
            if name.to_lowercase().ends_with("authorization") || name == FORWARDING {
                self.note(format!("{of}: length of {name}"), value.len().to_be_bytes());
                // What is drawn stands between colons, or is the token's, which is taken apart.
                if PrivateToken::from_field(value).is_none() {
                    value
                        .split(|byte| *byte == b':')
                        .for_each(|part| self.keep(part));
                }
            } else {
                self.note(format!("{of}: {name}"), value);
            }
        }
        self.note(format!("{of}: fields in order"), names.join(" "));
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, behind) = rest.split_at(len);
    *rest = behind;
    taken
}

fn number(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .fold(0, |all, byte| all << 8 | usize::from(*byte))
}

/// What stands behind its length, which has so many bytes.
fn counted<'a>(rest: &mut &'a [u8], bytes: usize) -> &'a [u8] {
    let len = number(take(rest, bytes));
    take(rest, len)
}

fn counter(rest: &mut &[u8]) -> usize {
    let number = varint::read(rest).expect("a number");
    usize::try_from(number).expect("small")
}

/// What the issuer has seen of one account, from its exchanges in order.
fn at_issuer(exchanges: &[Exchange]) -> Trace {
    let mut trace = Trace::default();
    trace.note("exchanges", exchanges.len().to_be_bytes());
    for (n, exchange) in exchanges.iter().enumerate() {
        trace.hello(&format!("{n}: TLS"), &exchange.hello);
        let (first, fields) = exchange.head.split_once("\r\n").expect("a line");
        trace.note(format!("{n}: request"), first);
        let fields = fields.lines().filter_map(|line| line.split_once(": "));
        trace.head(
            &format!("{n}: head"),
            fields.map(|(name, value)| (name, value.as_bytes())),
        );
        trace.note(format!("{n}: length"), exchange.body.len().to_be_bytes());
        for request in requests(exchange) {
            trace.note(format!("{n}: key"), [request.truncated_key_id]);
            trace.keep(request.blinded.as_bytes());
        }
        trace.note(
            format!("{n}: answer's length"),
            exchange.answer.len().to_be_bytes(),
        );
        let drawn = answers(exchange);
        drawn.iter().for_each(|answer| trace.keep(answer));
        if drawn.is_empty() {
            trace.note(format!("{n}: answer"), &exchange.answer);
        }
        let kind = field(&exchange.answer_head, "content-type").unwrap_or_default();
        trace.note(format!("{n}: answer's type"), kind);
    }
    trace
}

fn requests(exchange: &Exchange) -> Vec<TokenRequest> {
    if exchange.head.starts_with("POST") {
        decode_batch(&exchange.body, KEEP).expect("requests")
    } else {
        Vec::new()
    }
}

fn answers(exchange: &Exchange) -> Vec<Vec<u8>> {
    let asked = requests(exchange).len();
    if asked == 0 {
        return Vec::new();
    }
    let answers = decode_batch_response(&exchange.answer, asked).expect("answers");
    answers
        .into_iter()
        .map(|answer| answer.expect("granted").encode())
        .collect()
}

/// What a relay has seen of one connection, and the token that it was shown: none on a connection that stands by and is never asked anything.
fn at_relay(seen: &Seen) -> (Trace, Option<PrivateToken>) {
    let mut trace = Trace::default();
    trace.hello("QUIC", &seen.client_hello());
    seen.packets.iter().for_each(|packet| trace.packet(packet));
    let mut shown = None;
    for head in &seen.requests {
        let mut tokens = head
            .headers
            .iter()
            .filter_map(|(_, value)| PrivateToken::from_field(value));
        let token = tokens.next().map(|token| token.expect("a token"));
        // How often the token is shown, and whether TCP is tried beside QUIC, is a matter of who answers when.
        let of = format!(
            "{} {:?}, token: {}",
            head.method,
            head.protocol,
            token.is_some()
        );
        trace.note(format!("{of}: scheme"), format!("{:?}", head.scheme));
        trace.note(format!("{of}: authority"), &head.authority);
        trace.note(format!("{of}: path"), format!("{:?}", head.path));
        let fields = head.headers.iter();
        trace.head(
            &of,
            fields.map(|(name, value)| (name.as_str(), value.as_slice())),
        );
        if let Some(token) = token {
            trace.keep(token.nonce());
            trace.keep(signature(&token));
            trace.note("token: key", token.key_id());
            trace.note("token: challenge", token.challenge_digest());
            shown = Some(token);
        }
    }
    (trace, shown)
}

/// The traits by which clients that have them can be told apart.
fn apart<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> BTreeSet<&'a str> {
    let mut values: BTreeMap<&str, HashSet<&[u8]>> = BTreeMap::new();
    for (name, value) in traces.into_iter().flat_map(|trace| &trace.traits) {
        values.entry(name).or_default().insert(value);
    }
    values.retain(|_, values| values.len() > 1);
    values.into_keys().collect()
}

/// Eight bytes in a row are not alike by chance.
const RUN: usize = 8;

/// Who has each run of bytes.
fn holders<'a>(traces: &[&'a Trace]) -> HashMap<&'a [u8], Vec<usize>> {
    let mut holders: HashMap<_, Vec<usize>> = HashMap::new();
    for (n, trace) in traces.iter().enumerate() {
        for run in trace.bytes.iter().flat_map(|bytes| bytes.windows(RUN)) {
            let holders = holders.entry(run).or_default();
            if holders.last() != Some(&n) {
                holders.push(n);
            }
        }
    }
    holders
}

/// Which of `ones` and which of `others` have a run of bytes in common that no further one of either has.
fn linked(ones: &[&Trace], others: &[&Trace]) -> BTreeSet<(usize, usize)> {
    let others = holders(others);
    let both = holders(ones).into_iter().filter_map(|(run, ones)| {
        match (&*ones, others.get(run)?.as_slice()) {
            ([one], [other]) => Some((*one, *other)),
            _ => None,
        }
    });
    both.collect()
}

/// Which two of them have a run of bytes in common that no third has.
fn twins(traces: &[&Trace]) -> BTreeSet<(usize, usize)> {
    let shared = holders(traces).into_values();
    let two = shared.filter_map(|holders| match &*holders {
        [one, other] => Some((*one, *other)),
        _ => None,
    });
    two.collect()
}

/// Of blind RSA, as the issuer has it here.
fn signature(token: &PrivateToken) -> &[u8] {
    let Authenticator::BlindRsa(signature) = token.authenticator() else {
        unreachable!("another type")
    };
    signature
}

/// Of so many requests each token may have come (RFC 9474 §7.2: the blinding that leads from one to the other).
fn possible_origins(key: &[u8], asked: &[(Vec<u8>, Vec<u8>)], token: &PrivateToken) -> usize {
    let start = key
        .windows(4)
        .position(|at| at == [2, 0x82, 1, 1])
        .expect("an integer");
    let n = BigUint::from_bytes_be(&key[start + 4..start + 4 + 257]);
    let e = BigUint::from(65_537u32);
    let signature = BigUint::from_bytes_be(signature(token));
    let (inverse, padded) = (
        signature.modinv(&n).expect("invertible"),
        signature.modpow(&e, &n),
    );
    let fits = |(blinded, answer): &&(Vec<u8>, Vec<u8>)| {
        let blind = BigUint::from_bytes_be(answer) * &inverse % &n;
        blind.modpow(&e, &n) * &padded % &n == BigUint::from_bytes_be(blinded)
    };
    asked.iter().filter(fits).count()
}

/// An issuer with four accounts, two relays, and who watches them.
struct World {
    issuer: Issuer,
    at_issuer: IssuerWitness,
    at_relays: [Witness; 2],
    relays: [Running; 2],
}

impl World {
    fn new() -> Self {
        let issuer = Issuer::start(&NAMES.map(|name| account(name, 100)).concat());
        let at_issuer = IssuerWitness::before(&issuer);
        let started = ["a", "b"].map(|name| relay(&issuer, name));
        let at_relays = [&started[0].1, &started[1].1].map(|up| {
            let listen = value(up, "listen").parse().expect("an address");
            Witness::before(listen, value(up, "pin").parse().expect("a pin"))
        });
        Self {
            issuer,
            at_issuer,
            at_relays,
            relays: started.map(|(relay, _)| relay),
        }
    }

    /// A client's directory with its file.
    fn client(&self, name: &str) -> TempDir {
        let place = tempfile::tempdir().expect("directory");
        let relays = ["a", "b"].iter().zip(&self.at_relays);
        let relays = relays.map(|(name, at)| {
            format!(
                "[[relay]]\nname = {name:?}\naddress = \"{}\"\npin = \"{}\"\nissuer = \"issuer.test\"\n",
                at.address, at.pin
            )
        });
        let file = format!(
            "path = [\"a\", \"b\"]\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\n\
             [[issuer]]\nname = \"issuer.test\"\naddress = \"{}\"\npin = \"{}\"\ntoken = \"secret of {name}\"\nkeep = {KEEP}\n{}",
            self.at_issuer.address,
            self.at_issuer.pin,
            relays.collect::<String>(),
        );
        write(place.path(), "client.toml", &file);
        place
    }
}

/// What it says when it is up goes with it.
fn relay(issuer: &Issuer, name: &str) -> (Running, String) {
    let place = issuer.path();
    write(place, "keys.json", &issuer.directory().to_json());
    let file = takes(place, name, &private_tokens(name));
    let mut relay = Running::start("relay", &file);
    let up = relay.line_with("the relay is up");
    (relay, up)
}

/// The file of a relay that lets these in.
fn takes(place: &Path, name: &str, auth: &str) -> PathBuf {
    let file = format!(
        "listen = [\"127.0.0.1:0\"]\nidentity = \"{name}\"\n[egress]\nallow = [\"127.0.0.0/8\"]\n{auth}"
    );
    write(place, &format!("{name}.toml"), &file)
}

fn private_tokens(name: &str) -> String {
    format!(
        "[auth.private_tokens]\nissuer = \"issuer.test\"\norigin = {name:?}\nkeys = \"keys.json\"\nspent = \"{name}.sqlite\"\n"
    )
}

fn begun(place: &Path) -> (Running, u16) {
    let (client, socks, _) = started(Running::start("client", &place.join("client.toml")));
    (client, socks)
}

#[test]
fn issuer_and_relays_who_compare_all_they_have_seen_link_no_client_to_its_account() {
    let world = World::new();
    let clients = NAMES.map(|name| world.client(name));
    // First each asks for its tokens, one after the other.
    clients.iter().for_each(|place| drop(begun(place.path())));
    let asked = world.at_issuer.seen.lock().clone();
    let target = target();
    for client in ORDERS.concat() {
        let (_client, socks) = begun(clients[client].path());
        assert_eq!(through_socks(socks, target), (0, "hello".into()));
    }

    // When: the issuer hears nothing of eight connections.
    assert_eq!(world.at_issuer.seen.lock().len(), asked.len());

    // What tells one client from another: nothing but drawn bytes and the account's token.
    let each = asked.len() / NAMES.len();
    let issuer: Vec<_> = asked.chunks(each).map(at_issuer).collect();
    assert_eq!(issuer.len(), NAMES.len());
    assert_eq!(apart(&issuer), BTreeSet::new(), "at the issuer");
    let relays = world.at_relays.each_ref().map(|at| {
        let seen = at.seen();
        seen.iter().map(at_relay).collect::<Vec<_>>()
    });
    let [at_a, at_b] = relays.each_ref().map(|seen| {
        let traces: Vec<_> = seen.iter().map(|(trace, _)| trace).collect();
        assert_eq!(apart(traces.iter().copied()), BTreeSet::new());
        traces
    });
    let shown = relays.each_ref().map(|seen| {
        let shown: Vec<_> = seen
            .iter()
            .filter_map(|(_, token)| token.as_ref())
            .collect();
        assert!(shown.len() >= ORDERS.concat().len(), "{}", shown.len());
        shown
    });
    let keys: HashSet<_> = shown.iter().flatten().map(|token| token.key_id()).collect();
    assert_eq!(keys.len(), 1, "all of one key");

    // Bytes that come again: none.
    let accounts: Vec<_> = issuer.iter().collect();
    for (ones, others, between) in [
        (&*accounts, &*at_a, "the issuer and a"),
        (&accounts, &at_b, "the issuer and b"),
        (&at_a, &at_b, "a and b"),
    ] {
        assert_eq!(linked(ones, others), BTreeSet::new(), "{between}");
    }
    for at in [&at_a, &at_b] {
        assert_eq!(twins(at), BTreeSet::new(), "two of one client");
    }

    // The arithmetic: each token may have come of a request of each account, for each relay.
    let of_exchange = |exchange: &Exchange| {
        let blinded = requests(exchange)
            .into_iter()
            .map(|request| request.blinded.as_bytes().to_vec());
        blinded.zip(answers(exchange)).next()
    };
    let pairs: Vec<_> = asked.iter().filter_map(of_exchange).collect();
    assert_eq!(pairs.len(), 2 * NAMES.len());
    let key = world.issuer.key();
    for token in shown.iter().flatten() {
        assert_eq!(
            possible_origins(key.token_key(), &pairs, token),
            pairs.len()
        );
    }
}

#[test]
fn a_relay_that_refuses_on_a_connection_that_it_let_in_does_not_choose_when_the_issuer_is_asked() {
    let mut world = World::new();
    let (place, target) = (world.client("ann"), target());
    let (_client, socks) = begun(place.path());
    assert_eq!(through_socks(socks, target), (0, "hello".into()));
    let asked = world.at_issuer.seen.lock().len();

    // Until one request is answered by 407 it takes no tokens of the issuer.
    write(world.issuer.path(), "other.token", "another\n");
    let other = "[[auth.token]]\nfile = \"other.token\"\n";
    for (auth, is_refused) in [(other, true), (&*private_tokens("b"), false)] {
        takes(world.issuer.path(), "b", auth);
        world.relays[1].signal(Signal::HUP);
        world.relays[1].line_with("were read again");
        // "Connection not allowed by ruleset."
        assert!(!is_refused || through_socks(socks, target).0 == 2);
    }
    let refused = Instant::now();

    // As long as it takes a client at most that reads the keys again soon.
    let mut came = (1, String::new());
    while came.0 != 0 || refused.elapsed() < Duration::from_secs(62) {
        assert!(refused.elapsed() < PATIENCE, "{came:?}");
        thread::sleep(Duration::from_secs(1));
        came = through_socks(socks, target);
    }
    assert_eq!(world.at_issuer.seen.lock().len(), asked);
}

/// Who compares would find what is there.
#[test]
fn a_mark_of_any_kind_links() {
    let trace = |marks: &[(&str, &[u8])], bytes: &[&[u8]]| Trace {
        traits: marks
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.to_vec()))
            .collect(),
        bytes: bytes.iter().map(|bytes| bytes.to_vec()).collect(),
    };
    let [ann, bob] = [b"common to all, ann's own", b"common to all, bob's own"]
        .map(|own| trace(&[("agent", b"x")], &[own]));
    let other = trace(
        &[("agent", b"y")],
        &[b"nobody's", b"common to all, bob's own, too"],
    );
    assert_eq!(linked(&[&ann, &bob], &[&other]), [(1, 0)].into());
    assert_eq!(
        linked(&[&ann, &bob], &[&trace(&[], &[b"common to all"])]),
        BTreeSet::new()
    );
    assert_eq!(twins(&[&ann, &bob, &other]), [(1, 2)].into());
    assert_eq!(apart([&ann, &bob]), BTreeSet::new());
    assert_eq!(apart([&ann, &other]), ["agent"].into());
}
