//! A relay that keeps descriptors of onion services, as a service and its clients see it through circuits.

use hoplite_channel::How;
use hoplite_crypto::{
    SigningKey,
    onion::{
        descriptor::{Descriptor, Publication, SignedDescriptor},
        service_keys::ServiceIdentity,
        time_period::Schedule,
    },
};
use hoplite_onion::Onion;
use hoplite_overlay::{ErrorKind, Terms};
use hoplite_relay::Handle;
use hoplite_testing::{relay::number, soon};
use hoplite_wire::tor::{hsdir_request::HsDirRequest, service_descriptor::DESCRIPTOR};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{client, now, path, relay};

/// A descriptor as a service publishes it, and by which key.
fn published() -> (String, [u8; 32]) {
    let service = ServiceIdentity::generate().expect("made");
    let key = service.blinded(Schedule::default().period(now()));
    let signing = SigningKey::generate().expect("made");
    let publication = Publication {
        key: &key,
        subcredential: service.address().subcredential(&key.public()),
        signing: &signing,
        revision: 1,
        lifetime: 180,
        authorised: &[],
        now: now(),
        most: DESCRIPTOR,
    };
    let text = Descriptor::default().publish(&publication).expect("made");
    (text, *key.public().as_bytes())
}

/// As C tor asks.
async fn ask(onion: &Onion, asked: HsDirRequest, body: &str) -> (String, String) {
    let (method, target, length) = (asked.method(), asked.target(), body.len());
    let head = format!(
        "{method} {target} HTTP/1.0\r\nHost: 192.0.2.1\r\nContent-Length: {length}\r\n\r\n"
    );
    let asking = async {
        let opened = onion.open_directory(&Terms::default()).await;
        let mut stream = opened.expect("opens");
        stream.write_all(head.as_bytes()).await.expect("taken");
        stream.write_all(body.as_bytes()).await.expect("taken");
        stream.flush().await.expect("taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    };
    let answer = soon(asking).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.lines().next().expect("a status");
    (status.to_owned(), body.to_owned())
}

/// Two relays, and one that keeps descriptors.
fn three() -> [Handle; 3] {
    let last = relay(|config| config.onion.hsdir = true);
    [relay(|_| ()), relay(|_| ()), last]
}

#[tokio::test]
async fn what_a_service_publishes_at_a_relay_its_clients_get_there_through_circuits_of_their_own() {
    let relays = three();
    let (service, other) = (
        client(path(&relays), How::Quic),
        client(path(&relays), How::Tls),
    );
    let (text, key) = published();
    let fetch = HsDirRequest::Fetch(key);
    assert_eq!(ask(&other, fetch, "").await.0, "HTTP/1.0 404 Not Found");
    let answer = ask(&service, HsDirRequest::Publish, &text).await;
    assert_eq!(answer, ("HTTP/1.0 200 OK".into(), String::new()));
    let (status, found) = ask(&other, fetch, "").await;
    assert_eq!((status.as_str(), &found), ("HTTP/1.0 200 OK", &text));
    let signed = SignedDescriptor::parse(&found, DESCRIPTOR, now()).expect("right");
    assert_eq!(*signed.key().as_bytes(), key);
    let kept = |what| number(&relays[2], what);
    assert_eq!(kept("hoplite_relay_onion_hsdir_descriptors"), 1);
    let bytes = u64::try_from(text.len()).expect("small");
    assert_eq!(kept("hoplite_relay_onion_hsdir_bytes"), bytes);
    for what in ["published", "fetched", "unknown"] {
        let name = format!("hoplite_relay_onion_hsdir_requests_total{{what=\"{what}\"}}");
        assert_eq!(number(&relays[2], &name), 1, "{what}");
    }
}

#[tokio::test]
async fn who_is_next_to_it_or_asks_a_relay_that_keeps_none_is_told_that_there_is_no_directory() {
    let relays = three();
    let next_to_it = client(path([&relays[2]]), How::Tls);
    let without = client(path([&relays[0], &relays[1]]), How::Tls);
    for onion in [next_to_it, without] {
        let opening = soon(onion.open_directory(&Terms::default())).await;
        let error = opening.expect_err("no directory");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
