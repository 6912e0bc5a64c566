//! Private tokens as their users see them: an issuer, a relay that wants them and a client, each from its file, on loopback.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use hoplite_crypto::{ALPN_HTTP1, Trust, client_tls};
use hoplite_tokens::{KeyDirectory, PendingToken, PublicKey, Stock, Verifier, VerifierKeys};
use hoplite_wire::privacy_pass::{
    BATCH_REQUEST_TYPE, BlindedMessage, PrivateToken, REQUEST_TYPE, TokenRequest, TokenResponse,
    TokenType, decode_batch_response, encode_batch, encode_batch_response,
};
use rustix::process::Signal;
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};
use tempfile::TempDir;

use crate::{
    client::{PATIENCE, started, target, through_socks},
    common::{Running, value},
    hostile::connect_from,
    openid::Provider,
};

pub(crate) const DIRECTORY: &str = "/.well-known/private-token-issuer-directory";
const NOW: u64 = u64::MAX / 2;

/// A running issuer, and what clients know of it.
pub(crate) struct Issuer {
    place: TempDir,
    pub(crate) running: Running,
    pub(crate) listen: String,
    pub(crate) pin: String,
}

/// What it answers: the status, the head, the content.
pub(crate) struct Answer(pub(crate) u16, pub(crate) String, pub(crate) Vec<u8>);

impl Issuer {
    pub(crate) fn start(accounts: &str) -> Self {
        Self::of(Self::prepared(accounts))
    }

    /// A directory with its file.
    pub(crate) fn prepared(accounts: &str) -> TempDir {
        away_from_midnight();
        let place = tempfile::tempdir().expect("directory");
        write(place.path(), "issuer.toml", &file(accounts));
        place
    }

    pub(crate) fn path(&self) -> &Path {
        self.place.path()
    }

    pub(crate) fn of(place: TempDir) -> Self {
        let mut running = Running::start("issuer", &place.path().join("issuer.toml"));
        let up = running.line_with("the issuer is up");
        let (listen, pin) = (value(&up, "listen"), value(&up, "pin"));
        Self {
            place,
            running,
            listen,
            pin,
        }
    }

    fn ask(&self, method: &str, path: &str, fields: &str, body: &[u8]) -> Answer {
        let fields = format!("{fields}Content-Length: {}\r\n", body.len());
        ask(
            (&self.listen, &self.pin),
            &format!("{method} {path}"),
            &fields,
            body,
        )
    }

    pub(crate) fn directory(&self) -> KeyDirectory {
        let Answer(status, head, body) = self.ask("GET", DIRECTORY, "", b"");
        assert_eq!(status, 200);
        assert!(
            head.contains("application/private-token-issuer-directory"),
            "{head}"
        );
        KeyDirectory::parse(&String::from_utf8(body).expect("text")).expect("keys")
    }

    pub(crate) fn key(&self) -> PublicKey {
        self.directory().current(NOW).expect("a key").clone()
    }

    pub(crate) fn batch(&self, account: &str, requests: &[TokenRequest]) -> Answer {
        let fields = format!("Authorization: {account}\r\nContent-Type: {BATCH_REQUEST_TYPE}\r\n");
        self.ask("POST", "/token-request", &fields, &encode_batch(requests))
    }
}

/// Asks whoever is there, and has this key, by HTTP/1.1 over TLS.
pub(crate) fn ask((listen, pin): (&str, &str), what: &str, fields: &str, body: &[u8]) -> Answer {
    #[expect(clippy::disallowed_methods, reason = "the test is the client")]
    let stream = TcpStream::connect(listen).expect("listens");
    over(stream, pin, what, fields, body).expect("an answer")
}

/// The same over this connection; nothing where it is closed before that.
fn over(stream: TcpStream, pin: &str, what: &str, fields: &str, body: &[u8]) -> Option<Answer> {
    let trust = Trust::Pins(vec![pin.parse().expect("a pin")]);
    let tls = client_tls(&trust, &[ALPN_HTTP1]).expect("a configuration");
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(tls), name).expect("begins");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut stream = StreamOwned::new(connection, stream);
    let head = format!("{what} HTTP/1.1\r\nHost: there\r\nConnection: close\r\n{fields}\r\n");
    // What is refused early is not read to its end.
    let sent = stream.write_all(head.as_bytes());
    drop(sent.and_then(|()| stream.write_all(body)));
    let mut all = Vec::new();
    drop(stream.read_to_end(&mut all));
    let end = all.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end?;
    let head = String::from_utf8(all[..end].to_vec()).expect("text");
    let head = head.to_lowercase();
    let status = head.split(' ').nth(1).expect("a status").parse();
    Some(Answer(
        status.expect("a number"),
        head,
        all[end + 4..].to_vec(),
    ))
}

/// The day's count begins anew at midnight (UTC): nothing is counted across it.
fn away_from_midnight() {
    let day = 24 * 3600;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let left = day - since.expect("after 1970").as_secs() % day;
    if left < 60 {
        thread::sleep(Duration::from_secs(left + 1));
    }
}

fn file(accounts: &str) -> String {
    format!("listen = \"127.0.0.1:0\"\nlimits.batch = 32\n{accounts}")
}

pub(crate) fn write(place: &Path, name: &str, text: &str) -> PathBuf {
    let path = place.join(name);
    fs::write(&path, text).expect("written");
    path
}

pub(crate) fn account(name: &str, tokens: u32) -> String {
    format!(
        "[[account]]\nname = \"{name}\"\ntoken = \"secret of {name}\"\ntokens_per_day = {tokens}\n"
    )
}

pub(crate) fn requests(key: &PublicKey, number: usize) -> (Vec<TokenRequest>, Vec<PendingToken>) {
    let verifier = verifier(key);
    let digest = verifier.challenge_digest(key.token_type());
    let made = (0..number).map(|_| key.request(digest).expect("a request"));
    made.unzip()
}

/// Which verifies nothing of type 1, for which it has no secret: challenges alone.
fn verifier(key: &PublicKey) -> Verifier {
    let keys = KeyDirectory {
        request_uri: "/".into(),
        keys: vec![hoplite_tokens::ListedKey {
            key: key.clone(),
            not_before: 0,
        }],
    };
    let keys = VerifierKeys::public(keys).unwrap_or_default();
    Verifier::new("issuer.test", "relay.test", keys).expect("names")
}

#[test]
fn an_account_has_tokens_that_relays_take_and_no_more_of_them_than_it_may_have_in_a_day() {
    let mut issuer = Issuer::start(&account("ann", 10));
    let key = issuer.key();
    let (asked, pending) = requests(&key, 8);
    let Answer(status, _, body) = issuer.batch("Bearer secret of ann", &asked);
    assert_eq!(status, 200);
    let signatures = decode_batch_response(&body, 8).expect("an answer");
    for (pending, signature) in pending.into_iter().zip(signatures) {
        let token = pending
            .finish(&signature.expect("granted"))
            .expect("a token");
        assert_eq!(verifier(&key).verify(&token, NOW), Ok(()));
    }
    // Two are left: as the password of Basic, "user:secret of ann".
    let (asked, _) = requests(&key, 8);
    let Answer(status, _, body) = issuer.batch("Basic dXNlcjpzZWNyZXQgb2YgYW5u", &asked);
    let granted = decode_batch_response(&body, 8).expect("an answer");
    assert_eq!((status, granted.iter().flatten().count()), (200, 2));
    for again in [false, true] {
        if again {
            issuer.running.signal(Signal::TERM);
            assert_eq!(issuer.running.wait_for_end().code(), Some(0));
            issuer = Issuer::of(issuer.place);
        }
        let Answer(status, head, _) = issuer.batch("Bearer secret of ann", &asked);
        assert_eq!(status, 429, "after a restart: {again}");
        assert!(head.contains("retry-after: "), "{head}");
    }
    assert_eq!(issuer.key().id(), key.id(), "keys outlive the process");
}

#[test]
fn what_is_wrong_with_a_request_is_told_and_costs_no_token() {
    let issuer = Issuer::start(&account("ann", 1));
    let key = issuer.key();
    let (asked, _) = requests(&key, 40);
    let one = &asked[..1];
    let Answer(status, head, _) = issuer.batch("Bearer secret of bob", one);
    assert_eq!(status, 401);
    assert!(head.contains("www-authenticate: bearer"), "{head}");
    let ann = "Authorization: Bearer secret of ann\r\n";
    let post = |kind: &str, body: &[u8]| {
        let fields = format!("{ann}Content-Type: {kind}\r\n");
        issuer.ask("POST", "/token-request", &fields, body).0
    };
    assert_eq!(post(REQUEST_TYPE, b"\0\x02rubbish"), 400);
    assert_eq!(post("text/plain", b"rubbish"), 415);
    assert_eq!(
        post(REQUEST_TYPE, &[&[0, 3][..], &[7; 257]].concat()),
        422,
        "another type"
    );
    let voprf = TokenRequest {
        truncated_key_id: key.truncated_id(),
        blinded: BlindedMessage::Voprf([2; 49]),
    };
    assert_eq!(
        post(REQUEST_TYPE, &voprf.encode()),
        422,
        "no key of type 1 has the id of one of type 2"
    );
    assert_eq!(
        post(BATCH_REQUEST_TYPE, &encode_batch(&asked[..33])),
        413,
        "more than 32"
    );
    assert_eq!(post(BATCH_REQUEST_TYPE, &[0; 9000]), 413);
    let other = TokenRequest {
        truncated_key_id: issuer.directory().keys.iter().fold(0, |id, listed| {
            // None of those that are listed.
            id.max(listed.key.truncated_id()).wrapping_add(1)
        }),
        ..one[0].clone()
    };
    let known = issuer
        .directory()
        .keys
        .iter()
        .any(|it| it.key.truncated_id() == other.truncated_key_id);
    assert!(known || post(REQUEST_TYPE, &other.encode()) == 422);
    assert_eq!(issuer.ask("GET", "/token-request", ann, b"").0, 405);
    assert_eq!(issuer.ask("GET", "/", ann, b"").0, 404);
    // The one token of the day is still there.
    assert_eq!(post(REQUEST_TYPE, &one[0].encode()), 200);
    assert_eq!(post(REQUEST_TYPE, &one[0].encode()), 429);
}

#[test]
fn one_address_gets_no_handshakes_of_an_issuer_without_end_and_another_is_answered() {
    let issuer = Issuer::start(&format!(
        "limits.requests_per_client = 1\n{}",
        account("ann", 1)
    ));
    let (_, port) = issuer.listen.rsplit_once(':').expect("a port");
    let port = port.parse().expect("a number");
    let asked = |from: [u8; 4]| {
        let what = format!("GET {DIRECTORY}");
        over(connect_from(from.into(), port), &issuer.pin, &what, "", b"").map(|answer| answer.0)
    };
    let flood = [(); 4].map(|()| asked([127, 0, 0, 2]));
    assert_eq!(flood, [Some(200), Some(429), None, None]);
    assert_eq!(asked([127, 0, 0, 3]), Some(200));
}

#[test]
fn accounts_are_read_again_and_a_wrong_file_changes_nothing() {
    let mut issuer = Issuer::start(&account("ann", 5));
    let (asked, _) = requests(&issuer.key(), 1);
    assert_eq!(issuer.batch("Bearer secret of bob", &asked).0, 401);
    let both = account("ann", 5) + &account("bob", 5);
    write(issuer.place.path(), "issuer.toml", &file(&both));
    issuer.running.signal(Signal::HUP);
    issuer.running.line_with("the accounts were read again");
    assert_eq!(issuer.batch("Bearer secret of bob", &asked).0, 200);
    write(issuer.place.path(), "issuer.toml", "account = 7\n");
    issuer.running.signal(Signal::HUP);
    let told = issuer.running.line_with("the file is not used");
    assert!(told.contains("issuer.toml"), "{told}");
    assert_eq!(issuer.batch("Bearer secret of bob", &asked).0, 200);
}

/// A relay that wants tokens of the issuer, and a client's file for it. Where the relay is, and its pin.
fn relay(issuer: &Issuer, keep: u32) -> (Running, String, String) {
    relay_with(issuer, keep, "keys = \"keys.json\"")
}

fn relay_file(place: &Path, keys: &str) -> PathBuf {
    let file = format!(
        "listen = [\"127.0.0.1:0\"]\n[egress]\nallow = [\"127.0.0.0/8\"]\n[auth.private_tokens]\n\
         issuer = \"issuer.test\"\norigin = \"a\"\n{keys}\n"
    );
    write(place, "relay.toml", &file)
}

fn relay_with(issuer: &Issuer, keep: u32, keys: &str) -> (Running, String, String) {
    let place = issuer.place.path();
    write(place, "keys.json", &issuer.directory().to_json());
    let mut relay = Running::start("relay", &relay_file(place, keys));
    let up = relay.line_with("the relay is up");
    let client = format!(
        "path = [\"a\"]\nsocks.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\n\
         [[issuer]]\nname = \"issuer.test\"\naddress = \"{}\"\npin = \"{}\"\ntoken = \"secret of ann\"\nkeep = {keep}\n\
         [[relay]]\nname = \"a\"\naddress = \"{}\"\npin = \"{}\"\nissuer = \"issuer.test\"\n",
        issuer.listen,
        issuer.pin,
        value(&up, "listen"),
        value(&up, "pin"),
    );
    write(place, "client.toml", &client);
    (relay, value(&up, "listen"), value(&up, "pin"))
}

#[test]
fn a_client_spends_the_tokens_of_its_account_and_says_when_they_have_run_out() {
    let issuer = Issuer::start(&account("ann", 2));
    let _relay = relay(&issuer, 2);
    let (file, target) = (issuer.place.path().join("client.toml"), target());
    // One connection each, as long as there are tokens in its file; the third asks the issuer in vain.
    for _ in 0..2 {
        let (_client, socks, _) = started(Running::start("client", &file));
        assert_eq!(through_socks(socks, target), (0, "hello".into()));
        assert_eq!(
            through_socks(socks, target),
            (0, "hello".into()),
            "the same connection"
        );
    }
    let mut client = Running::start("client", &file);
    client.line_with("all tokens of today are given out");
    let (_client, socks, _) = started(client);
    // "Connection not allowed by ruleset."
    assert_eq!(through_socks(socks, target).0, 2);
}

#[test]
fn a_clients_tokens_are_kept_from_others_and_serve_while_the_issuer_is_down() {
    let mut issuer = Issuer::start(&account("ann", 50));
    let _relay = relay(&issuer, 4);
    let (file, target) = (issuer.place.path().join("client.toml"), target());
    let (client, socks, _) = started(Running::start("client", &file));
    assert_eq!(through_socks(socks, target), (0, "hello".into()));
    drop(client);
    let mode = std::os::unix::fs::PermissionsExt::mode;
    let stock = fs::metadata(issuer.place.path().join("tokens.sqlite")).expect("a file");
    assert_eq!(mode(&stock.permissions()) & 0o077, 0);
    issuer.running.signal(Signal::TERM);
    issuer.running.wait_for_end();
    let (_client, socks, _) = started(Running::start("client", &file));
    assert_eq!(through_socks(socks, target), (0, "hello".into()));
}

/// What a relay answers who shows a token.
fn shown(relay: (&str, &str), token: &str, target: u16) -> Answer {
    let fields = format!("Proxy-Authorization: PrivateToken token=\"{token}\"\r\n");
    ask(relay, &format!("CONNECT 127.0.0.1:{target}"), &fields, b"")
}

/// What `hoplite token` prints for this relay.
fn printed(place: &Path, relay: &str) -> String {
    let program = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["token", "--relay", relay, "--config"])
        .arg(place.join("client.toml"))
        .output()
        .expect("runs");
    let said = if program.status.success() {
        program.stdout
    } else {
        program.stderr
    };
    String::from_utf8(said).expect("text").trim().to_owned()
}

#[test]
fn a_program_shows_a_token_that_hoplite_prints_as_a_password() {
    let issuer = Issuer::start(&account("ann", 50));
    let (_relay, listen, pin) = relay(&issuer, 4);
    let target = target();
    let printed = |name: &str| printed(issuer.path(), name);
    let tokens = [printed("a"), printed("a")];
    assert_ne!(tokens[0], tokens[1]);
    let show = |token: &str| shown((&listen, &pin), token, target);
    for token in &tokens {
        let Answer(status, _, body) = show(token);
        assert_eq!((status, body.as_slice()), (200, b"hello".as_slice()));
    }
    let Answer(status, head, _) = show(&tokens[0]);
    assert_eq!(status, 407, "it is spent");
    assert!(
        head.contains("proxy-authenticate: privatetoken challenge="),
        "{head}"
    );
    let wrong = printed("b");
    assert!(
        wrong.contains("no [[relay]] of the file has this name"),
        "{wrong}"
    );
}

#[test]
fn a_clients_account_is_shown_as_its_file_is_when_the_issuer_is_asked() {
    let issuer = Issuer::start(&account("ann", 50));
    let _relay = relay(&issuer, 4);
    let (place, target) = (issuer.path(), target());
    let file = fs::read_to_string(place.join("client.toml")).expect("a file");
    let file = file.replace("token = \"secret of ann\"", "token_file = \"account\"");
    let client = write(place, "client.toml", &file);
    write(place, "account", "an old bearer\n");
    let mut client = Running::start("client", &client);
    client.line_with("401 Unauthorized: no account has this token");
    let (_client, socks, _) = started(client);
    assert_eq!(through_socks(socks, target).0, 2, "nobody knows it");
    write(place, "account", "secret of ann\n");
    assert_eq!(through_socks(socks, target), (0, "hello".into()));
}

#[test]
fn an_issuer_has_a_page_for_people_only_if_its_file_says_so_and_lets_it_load_nothing_of_others() {
    let page = "[page]\nissuer = \"issuer.test\"\nrelay = [{ origin = \"a\" }, { origin = \"</b>\", address = \"b:1\" }]\n";
    let mut issuer = Issuer::start(&account("ann", 5));
    let paths = ["/", "/page.js", "/blind.js", "/page.css", "/page.json"];
    for path in paths {
        assert_eq!(issuer.ask("GET", path, "", b"").0, 404, "{path}");
    }
    write(
        issuer.path(),
        "issuer.toml",
        &file(&format!("{}{page}", account("ann", 5))),
    );
    issuer.running.signal(Signal::HUP);
    issuer.running.line_with("the accounts were read again");
    for path in paths {
        let Answer(status, head, body) = issuer.ask("GET", path, "", b"");
        let policy = "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'";
        assert!(status == 200 && head.contains(policy), "{path}: {head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        let text = String::from_utf8(body)
            .expect("text")
            .replace("https://example.org/", "");
        let foreign = text.replace("`curl --proxytunnel --proxy 'https://", "");
        assert!(!foreign.contains("://"), "{path} names somebody else");
    }
    let Answer(_, _, config) = issuer.ask("GET", "/page.json", "", b"");
    let config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    assert_eq!(config["issuer"], "issuer.test");
    assert_eq!(config["relays"][0]["address"], "a:443");
    assert_eq!(config["relays"][1]["address"], "b:1");
    assert_eq!(issuer.ask("POST", "/", "", b"").0, 404);
}

/// The lines of an issuer whose tokens only its operator's relays verify.
fn private() -> String {
    format!(
        "tokens = \"voprf\"\nsecrets = \"secrets.json\"\n{}",
        account("ann", 50)
    )
}

impl Issuer {
    /// The same when an epoch has passed: what was the next key is this one's.
    fn an_epoch_later(mut self) -> Self {
        self.running.signal(Signal::TERM);
        assert_eq!(self.running.wait_for_end().code(), Some(0));
        let file = rusqlite::Connection::open(self.path().join("issuer.sqlite")).expect("a file");
        let passed = file.execute("UPDATE key SET epoch = epoch - 1", []);
        assert!(passed.expect("changed") >= 2);
        Self::of(self.place)
    }
}

#[test]
fn a_relay_of_the_issuers_operator_takes_tokens_of_type_1_whose_keys_rotate() {
    let mut issuer = Issuer::start(&private());
    let directory = issuer.directory();
    let types = directory.keys.iter().map(|listed| listed.key.token_type());
    assert_eq!(types.collect::<Vec<_>>(), [TokenType::Voprf; 2]);
    let secrets = issuer.path().join("secrets.json");
    let mode = std::os::unix::fs::PermissionsExt::mode;
    let mode = mode(&fs::metadata(&secrets).expect("written").permissions());
    assert_eq!(mode & 0o137, 0, "{mode:o}");
    let (mut relay, listen, pin) = relay_with(&issuer, 4, "secrets = \"secrets.json\"");
    let (file, target) = (issuer.path().join("client.toml"), target());
    let Answer(status, head, _) = ask((&listen, &pin), "CONNECT 127.0.0.1:9", "", b"");
    assert_eq!(
        (status, head.contains("privatetoken challenge=")),
        (407, true)
    );
    // The client knows of the type by the issuer's directory alone.
    let (client, socks, _) = started(Running::start("client", &file));
    assert_eq!(through_socks(socks, target), (0, "hello".into()));
    drop(client);
    let old = [printed(issuer.path(), "a"), printed(issuer.path(), "a")];
    let token = PrivateToken::from_text(old[0].as_bytes()).expect("a token");
    assert_eq!(token.token_type(), TokenType::Voprf);
    let show = |token: &str| shown((&listen, &pin), token, target).0;
    assert_eq!((show(&old[0]), show(&old[0])), (200, 407), "it is spent");
    let mut forged = token.encode();
    forged[145] ^= 1;
    let forged = PrivateToken::decode(&forged).expect("a token");
    assert_eq!(show(&forged.to_text()), 407);
    // An epoch later tokens are of another key, and those of the last one are taken.
    issuer = issuer.an_epoch_later();
    fs::remove_file(issuer.path().join("tokens.sqlite")).expect("spent elsewhere");
    let (address, issuer_pin) = (issuer.listen.clone(), issuer.pin.clone());
    let text = fs::read_to_string(&file).expect("a file");
    let line = text
        .lines()
        .find(|line| line.starts_with("address"))
        .expect("the issuer's");
    write(
        issuer.path(),
        "client.toml",
        &text.replacen(line, &format!("address = \"{address}\""), 1),
    );
    assert!(text.contains(&issuer_pin), "its identity is the same");
    relay.signal(Signal::HUP);
    relay.line_with("read again");
    let new = printed(issuer.path(), "a");
    let read = PrivateToken::from_text(new.as_bytes()).expect("a token");
    assert_ne!(read.key_id(), token.key_id());
    assert_eq!((show(&new), show(&old[1])), (200, 200));
    assert_eq!(show(&old[0]), 407, "it stays spent");
}

#[test]
fn an_issuer_answers_one_request_for_a_token_of_type_1_and_a_batch_with_proofs() {
    let issuer = Issuer::start(&private());
    let key = issuer.key();
    let secrets = fs::read_to_string(issuer.path().join("secrets.json")).expect("written");
    let keys = VerifierKeys::parse(&secrets).expect("keys");
    assert_eq!(keys.directory(), &issuer.directory());
    let relay = Verifier::new("issuer.test", "relay.test", keys).expect("names");
    let (asked, pending) = requests(&key, 3);
    let fields = format!("Authorization: Bearer secret of ann\r\nContent-Type: {REQUEST_TYPE}\r\n");
    let post = |body: &[u8]| issuer.ask("POST", "/token-request", &fields, body);
    let Answer(status, head, body) = post(&asked[0].encode());
    assert_eq!((status, body.len()), (200, 49 + 96));
    assert!(
        head.contains("application/private-token-response"),
        "{head}"
    );
    let mut all = vec![TokenResponse::decode(TokenType::Voprf, &body).expect("an answer")];
    let Answer(status, _, body) = issuer.batch("Bearer secret of ann", &asked[1..]);
    assert_eq!(status, 200);
    let granted = decode_batch_response(&body, 2).expect("an answer");
    all.extend(granted.into_iter().flatten());
    for (pending, response) in pending.into_iter().zip(all) {
        let token = pending.finish(&response).expect("proven");
        assert_eq!(relay.verify(&token, NOW), Ok(()));
    }
    // No point, and a type of which it has no key.
    let wrong = TokenRequest {
        truncated_key_id: key.truncated_id(),
        blinded: BlindedMessage::Voprf([0xff; 49]),
    };
    assert_eq!(post(&wrong.encode()).0, 422);
    let other = TokenRequest {
        truncated_key_id: key.truncated_id(),
        blinded: BlindedMessage::BlindRsa([1; 256]),
    };
    assert_eq!(post(&other.encode()).0, 422);
}

#[test]
fn a_relay_that_is_given_public_keys_of_type_1_alone_does_not_start_and_says_what_to_do() {
    let issuer = Issuer::start(&private());
    let place = issuer.path();
    write(place, "keys.json", &issuer.directory().to_json());
    let mut relay = Running::start("relay", &relay_file(place, "keys = \"keys.json\""));
    let told = relay.line_with("auth.private_tokens.keys");
    for part in ["keys.json", "number 1", "as `secrets` instead of `keys`"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_ne!(relay.wait_for_end().code(), Some(0));
    // Nor does one that is to fetch them take them.
    let fetched = format!(
        "keys = \"fetched.json\"\ndirectory = \"https://{}\"\npin = \"{}\"",
        issuer.listen, issuer.pin
    );
    let mut relay = Running::start("relay", &relay_file(place, &fetched));
    let told = relay.line_with("the issuer's keys that are known stay");
    assert!(
        told.contains("as auth.private_tokens.secrets instead"),
        "{told}"
    );
    assert!(!place.join("fetched.json").exists());
}

#[test]
fn a_client_takes_no_token_of_an_issuer_that_does_not_prove_which_key_has_made_it() {
    let mut honest = Issuer::start(&private());
    let (_relay, ..) = relay_with(&honest, 2, "secrets = \"secrets.json\"");
    let (directory, key) = (honest.directory(), honest.key());
    honest.running.signal(Signal::TERM);
    honest.running.wait_for_end();
    // Whoever asks has two points for his two requests, and proofs of nothing.
    let unproven = TokenResponse::Voprf {
        evaluated: key.token_key().try_into().expect("a point"),
        proof: [1; 96],
    };
    let liar = Provider::start();
    liar.set(Some(vec![
        (DIRECTORY.into(), directory.to_json().into()),
        (
            directory.request_uri,
            encode_batch_response(&[Some(unproven.clone()), Some(unproven)]),
        ),
    ]));
    let file = fs::read_to_string(honest.path().join("client.toml")).expect("a file");
    let file = file.replace(&honest.listen, &liar.address.to_string());
    write(
        honest.path(),
        "client.toml",
        &file.replace(&honest.pin, &liar.pin),
    );
    let told = printed(honest.path(), "a");
    assert!(told.contains("was not made with its key"), "{told}");
    let stock = Stock::open(&honest.path().join("tokens.sqlite")).expect("opens");
    assert_eq!(stock.total().expect("counted"), 0);
}
