//! A relay that fetches the keys of the issuer whose tokens it takes: an honest issuer that is down when the relay starts again, and one that says
//! whatever it likes.

use std::{
    fs,
    path::Path,
    sync::atomic::Ordering,
    thread::sleep,
    time::{Duration, Instant},
};

use hoplite_tokens::{ChallengeDigests, IssuerKey, KeyDirectory, ListedKey};
use hoplite_wire::privacy_pass::{PrivateToken, TokenType};
use rustix::process::Signal;

use crate::{
    client::{PATIENCE, target},
    common::{Running, value},
    openid::Provider,
    tokens::{Answer, DIRECTORY, Issuer, account, ask, write},
};

const READ: &str = "the issuer's keys were read";
const KEPT: &str = "the issuer's keys that are known stay";

/// A relay's file, with the keys of the issuer at this address.
fn file(place: &Path, (address, pin): (&str, &str), more: &str) -> std::path::PathBuf {
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\n[egress]\nallow = [\"127.0.0.0/8\"]\n[auth.private_tokens]\nissuer = \"issuer.test\"\n\
         origin = \"relay.test\"\nkeys = \"fetched.json\"\ndirectory = \"https://{address}\"\npin = \"{pin}\"\n{more}"
    );
    write(place, "relay.toml", &text)
}

fn directory(keys: &[&IssuerKey]) -> KeyDirectory {
    let listed = |key: &&IssuerKey| ListedKey {
        key: key.public().clone(),
        not_before: 0,
    };
    KeyDirectory {
        request_uri: "/token-request".into(),
        keys: keys.iter().map(listed).collect(),
    }
}

/// A token that this key has signed.
fn token(key: &IssuerKey) -> PrivateToken {
    let digests = ChallengeDigests::ahead("issuer.test", "relay.test").expect("names");
    let asked = key.public().request(digests.of(TokenType::BlindRsa));
    let (request, pending) = asked.expect("a request");
    let answer = key.issue(&request.blinded).expect("an answer");
    pending.finish(&answer).expect("a token")
}

/// The status of a connection that shows a token.
fn shown(up: &str, token: &PrivateToken, target: u16) -> u16 {
    let fields = format!("Proxy-Authorization: {}\r\n", token.to_field());
    let (listen, pin) = (value(up, "listen"), value(up, "pin"));
    let connect = format!("CONNECT 127.0.0.1:{target}");
    let Answer(status, _, _) = ask((&listen, &pin), &connect, &fields, b"");
    status
}

#[test]
fn a_relay_fetches_its_issuers_keys_and_has_them_when_it_starts_again_without_it() {
    let mut issuer = Issuer::start(&account("ann", 5));
    let place = issuer.path().to_owned();
    let file = file(&place, (&issuer.listen, &issuer.pin), "");
    let mut relay = Running::start("relay", &file);
    relay.line_with(READ);
    drop(relay);
    let kept = fs::read_to_string(place.join("fetched.json")).expect("kept");
    let kept = KeyDirectory::parse(&kept).expect("keys");
    assert_eq!(kept.keys[0].key.id(), issuer.key().id());
    issuer.running.signal(Signal::KILL);
    issuer.running.wait_for_end();
    let mut relay = Running::start("relay", &file);
    let up = relay.line_with("the relay is up");
    let (listen, pin) = (value(&up, "listen"), value(&up, "pin"));
    let Answer(status, head, _) = ask((&listen, &pin), "CONNECT 127.0.0.1:9", "", b"");
    assert_eq!(status, 407);
    assert!(head.contains("privatetoken challenge="), "{head}");
}

#[test]
fn nothing_that_an_issuer_says_takes_the_known_keys_away() {
    let (issuer, place) = (Provider::start(), tempfile::tempdir().expect("a directory"));
    let keys: Vec<_> = (0..5)
        .map(|_| IssuerKey::generate(TokenType::BlindRsa).expect("a key"))
        .collect();
    let (target, address) = (target(), issuer.address.to_string());
    let serve = |text: String| issuer.set(Some(vec![(DIRECTORY.to_owned(), text.into())]));
    let first = directory(&[&keys[0]]);
    // Down at first: the relay starts all the same, and takes nobody.
    let file = file(place.path(), (&address, &issuer.pin), "refresh = 1\n");
    let mut relay = Running::start("relay", &file);
    let up = relay.line_with("the relay is up");
    relay.line_with(KEPT);
    assert_eq!(shown(&up, &token(&keys[0]), target), 407);
    serve(first.to_json());
    relay.line_with(READ);
    let spent = token(&keys[0]);
    assert_eq!(shown(&up, &spent, target), 200);
    let private = IssuerKey::generate(TokenType::Voprf).expect("a key");
    let many = directory(&keys.iter().collect::<Vec<_>>());
    for hostile in [
        String::new(),
        "{}".into(),
        directory(&[]).to_json(),
        many.to_json(),
        directory(&[&keys[0], &private]).to_json(),
        first.to_json().replace("MII", "MIJ"),
        first.to_json() + &" ".repeat(100_000),
        "[".repeat(60_000),
    ] {
        let before = issuer.visits.load(Ordering::Relaxed);
        serve(hostile);
        let begun = Instant::now();
        // The second visit from now on began after that.
        while issuer.visits.load(Ordering::Relaxed) < before + 2 {
            assert!(begun.elapsed() < PATIENCE, "it comes no more");
            sleep(Duration::from_millis(20));
        }
        assert_eq!(shown(&up, &token(&keys[0]), target), 200);
    }
    serve(directory(&[&keys[1], &keys[0]]).to_json());
    relay.line_with(KEPT);
    relay.line_with(READ);
    assert_eq!(shown(&up, &token(&keys[1]), target), 200);
    assert_eq!(shown(&up, &spent, target), 407, "it stays spent");
    let kept = fs::read_to_string(place.path().join("fetched.json")).expect("kept");
    assert_eq!(KeyDirectory::parse(&kept).expect("keys").keys.len(), 2);
    // The relay is shown another issuer's key by somebody in between.
    let other = Provider::start();
    let text = fs::read_to_string(&file).expect("a file");
    write(
        place.path(),
        "relay.toml",
        &text.replace(&issuer.pin, &other.pin),
    );
    relay.signal(Signal::HUP);
    let told = relay.line_with(KEPT);
    assert!(told.contains("no TLS with its host"), "{told}");
}
