//! Relays that keep the list for clients, as a client sees them that reaches no authority, and as anybody who asks.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use hoplite_crypto::onion::rsa::sha256;
use hoplite_directory::Store;
use hoplite_wire::directory::{
    List, SignedList, Stage,
    list_diff::{ListDiff, hash_text},
    split_signed,
};

use crate::{
    client::{PATIENCE, started, target, through_socks},
    common::Running,
    directory::{Authorities, client_file, free_port, relay, relay_with},
};

/// What the cache at this port answers to who has the list with this hash; nothing while it is not there.
#[expect(clippy::disallowed_methods, reason = "the test is whoever asks")]
fn asked(port: u16, known: &str) -> String {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::new(127, 1, 0, 1), port)) else {
        return String::new();
    };
    let request = format!(
        "GET /hoplite/list HTTP/1.1\r\nHost: a\r\nConnection: close\r\nHoplite-Diff-From: {known}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("takes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    body.unwrap_or_default().to_owned()
}

/// The list that a client keeps.
fn kept(directory: &Path) -> Option<List> {
    let store = Store::open(&directory.join("directory.sqlite")).expect("opened");
    let (text, _) = store.list().expect("read")?;
    let list = SignedList::parse(&text, Stage::List).expect("a list");
    Some(list.list)
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_client_that_reaches_no_authority_has_newer_lists_from_a_relay_that_keeps_them() {
    let directory = tempfile::tempdir().expect("directory");
    let place = directory.path();
    let mut authorities = Authorities::start_for(place, (1, 1), 3);
    let port = free_port();
    let lines = format!(
        "authorities = {:?}\ncache = \"127.1.0.1:{port}\"\n",
        authorities.names
    );
    let cache = relay_with(place, 1, &authorities, &lines);
    let _other = relay(place, 2, &authorities);
    authorities.wait_for(2);
    let target = target();
    let file = client_file(place, "hops = 2", &authorities.names);
    {
        let (_client, socks, _) = started(Running::start("client", &file));
        assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));
    }
    let first = kept(place).expect("a list").valid_after;
    let list = wait_for("the cache has the list", || {
        let text = asked(port, "nothing");
        // It may still have one from before there were relays, to which the difference is longer than the next.
        let list = SignedList::parse(&text, Stage::List).ok()?.list;
        (list.relays.len() == 2).then_some(text)
    });
    let (body, _) = split_signed(&list).expect("signed");
    let known = hash_text(&sha256(body.as_bytes()));
    let later = wait_for("a difference to a later list", || {
        let text = asked(port, &known);
        let later = ListDiff::parse(&text).ok()?.apply(body).ok()?;
        let later = SignedList::parse(&later, Stage::List).expect("a list");
        let before = SignedList::parse(&list, Stage::List).expect("a list");
        (later.list.valid_after > before.list.valid_after).then_some(text)
    });
    assert!(later.len() < list.len(), "{} bytes", later.len());

    // By its list alone the client knows whom else to ask.
    let (key, _) = authorities.names[0].split_once('@').expect("two parts");
    let nowhere = format!("{key}@127.0.0.1:{}", free_port());
    let file = client_file(place, "hops = 2", std::slice::from_ref(&nowhere));
    let (_client, socks, _) = started(Running::start("client", &file));
    wait_for("two later lists", || {
        let list = kept(place)?;
        (list.valid_after >= first + 16).then_some(())
    });
    assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));

    // Who has no list at all begins with one of a cache, though another one that is named does not answer and no authority does.
    let elsewhere = tempfile::tempdir().expect("directory");
    let file = client_file(elsewhere.path(), "hops = 2", &[nowhere]);
    let caches = ["127.0.0.1:9".to_owned(), format!("127.1.0.1:{port}")];
    let text = std::fs::read_to_string(&file).expect("written");
    std::fs::write(&file, format!("{text}caches = {caches:?}\n")).expect("written");
    let (_beginner, socks, _) = started(Running::start("client", &file));
    assert_eq!(through_socks(socks, target), (0, "hello".to_owned()));

    // Over a restart the cache has its lists: who has one of before is told the difference.
    drop(cache);
    let _cache = relay_with(place, 1, &authorities, &lines);
    let later = wait_for("a difference after a restart", || {
        let text = asked(port, &known);
        ListDiff::parse(&text).is_ok().then_some(text)
    });
    let later = ListDiff::parse(&later).and_then(|diff| diff.apply(body));
    let later = SignedList::parse(&later.expect("made"), Stage::List).expect("a list");
    assert!(later.list.valid_after > first);
}
