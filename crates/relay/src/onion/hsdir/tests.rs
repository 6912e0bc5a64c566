//! An HSDir as those see it who ask it over a stream: services, clients, and who wants to know or to harm.

use hoplite_crypto::SigningKey;
use hoplite_onion::relay::Requester;
use hoplite_wire::{
    cell::cert::{CertKind, Ed25519Cert, KeyKind},
    tor::service_descriptor::Wrapper,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};
use zeroize::Zeroizing;

use super::*;

/// Before what a descriptor's signature is over.
const SIGNED: &[u8] = b"Tor onion service descriptor sig v3";
/// The relay through which all come that are not told apart.
const RELAY: u64 = 7;

fn asking(requester: u64, is_relay: bool) -> Asking {
    let requester = Requester {
        key: requester,
        known: false,
    };
    Asking {
        requester,
        is_relay,
    }
}

fn hsdir(change: impl FnOnce(&mut Settings)) -> HsDir {
    let mut settings = Settings::default();
    change(&mut settings);
    HsDir::new(&settings, &Arc::default())
}

fn key(n: u8) -> SigningKey {
    SigningKey::from_seed(Zeroizing::new([n; 32])).expect("a key")
}

/// What may be wrong with a descriptor.
struct Made {
    revision: u64,
    lifetime: u16,
    kind: CertKind,
    /// Hours from now.
    expires: i64,
    /// Who has signed the certificate, and who the rest.
    certifier: u8,
    signer: u8,
    size: usize,
}

const GOOD: Made = Made {
    revision: 1,
    lifetime: 180,
    kind: CertKind::HS_DESCRIPTOR_SIGNING,
    expires: 54,
    certifier: 1,
    signer: 100,
    size: 8000,
};

impl Made {
    fn text(&self, service: u8) -> String {
        let hours = i64::try_from(unix_time() / 3600).expect("small") + self.expires;
        let certificate = Ed25519Cert {
            kind: self.kind,
            expires_hours: u32::try_from(hours).expect("later"),
            key_kind: KeyKind::ED25519,
            key: key(100).public(),
            signed_with: Some(key(service).public()),
        };
        let mut bytes = Vec::new();
        certificate.write(&mut bytes);
        let certifier = if self.certifier == GOOD.certifier {
            service
        } else {
            self.certifier
        };
        let signature = key(certifier).sign(&bytes);
        bytes.extend_from_slice(&signature);
        let blob = vec![service; self.size];
        let mut text = Wrapper::write_signed(self.lifetime, &bytes, self.revision, &blob);
        let signed = [SIGNED, text.as_bytes()].concat();
        Wrapper::write_signature(&key(self.signer).sign(&signed), &mut text);
        text
    }
}

fn good(service: u8) -> String {
    GOOD.text(service)
}

fn publish(text: &str) -> String {
    let length = text.len();
    format!(
        "POST /tor/hs/3/publish HTTP/1.0\r\nHost: 192.0.2.1\r\nContent-Length: {length}\r\n\r\n{text}"
    )
}

fn fetch(service: u8) -> String {
    let asked = HsDirRequest::Fetch(key(service).public());
    format!("GET {} HTTP/1.0\r\nHost: 192.0.2.1\r\n\r\n", asked.target())
}

/// The status of an answer, and its body.
async fn ask(hsdir: &HsDir, requester: u64, request: &str) -> (u16, String) {
    let mut stream = hsdir.open(asking(requester, true)).await.expect("a stream");
    stream.write_all(request.as_bytes()).await.expect("written");
    stream.flush().await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), body.to_owned())
}

#[tokio::test]
async fn what_a_service_publishes_a_client_gets_byte_for_byte() {
    let hsdir = hsdir(|_| {});
    let text = good(1);
    assert_eq!(
        ask(&hsdir, RELAY, &publish(&text)).await,
        (200, String::new())
    );
    assert_eq!(ask(&hsdir, RELAY, &fetch(1)).await, (200, text));
    let newer = Made {
        revision: 2,
        ..GOOD
    }
    .text(1);
    assert_eq!(ask(&hsdir, RELAY, &publish(&newer)).await.0, 200);
    assert_eq!(ask(&hsdir, RELAY, &fetch(1)).await, (200, newer.clone()));
    // Somebody who has seen the old one shows it again.
    assert_eq!(ask(&hsdir, RELAY, &publish(&good(1))).await.0, 400);
    assert_eq!(ask(&hsdir, RELAY, &fetch(1)).await, (200, newer));
}

#[tokio::test]
async fn what_its_blinded_key_has_not_signed_or_is_out_of_date_is_refused_in_one_way() {
    let hsdir = hsdir(|_| {});
    let wrong = [
        Made {
            certifier: 2,
            ..GOOD
        },
        Made { signer: 2, ..GOOD },
        Made {
            kind: CertKind::SIGNING,
            ..GOOD
        },
        Made {
            expires: -1,
            ..GOOD
        },
        Made {
            lifetime: 29,
            ..GOOD
        },
        Made {
            lifetime: 721,
            ..GOOD
        },
        Made {
            size: 40_000,
            ..GOOD
        },
    ];
    let mut texts: Vec<_> = wrong.iter().map(|made| made.text(1)).collect();
    texts.push(good(1).replacen("revision-counter 1", "revision-counter 2", 1));
    texts.push(String::new());
    texts.push("hs-descriptor 3\n".into());
    let mut answers = Vec::new();
    for text in &texts {
        let mut stream = hsdir.open(asking(RELAY, true)).await.expect("a stream");
        let request = publish(text);
        // Of one that is too long the answer comes before it has been read.
        stream.write_all(request.as_bytes()).await.ok();
        stream.flush().await.ok();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answers.push(answer);
    }
    assert!(answers[0].starts_with("HTTP/1.0 400 "), "{}", answers[0]);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(
        (hsdir.kept().0, ask(&hsdir, RELAY, &fetch(1)).await.0),
        (0, 404)
    );
}

#[tokio::test]
async fn another_services_descriptor_is_not_kept_and_cannot_be_told_from_one_that_was_never_there()
{
    let hsdir = hsdir(|_| {});
    for service in [1, 2] {
        assert_eq!(ask(&hsdir, RELAY, &publish(&good(service))).await.0, 200);
    }
    let ours = key(1).public();
    hsdir.keep_only(move |key| *key == ours);
    assert_eq!(hsdir.kept().0, 1);
    assert_eq!(ask(&hsdir, RELAY, &publish(&good(2))).await.0, 400);
    let (gone, never) = (
        ask(&hsdir, RELAY, &fetch(2)).await,
        ask(&hsdir, RELAY, &fetch(3)).await,
    );
    assert_eq!(gone, (404, String::new()));
    assert_eq!(gone, never);
    assert_eq!(ask(&hsdir, RELAY, &fetch(1)).await.0, 200);
}

#[tokio::test]
async fn a_client_that_shows_its_address_is_told_that_there_is_no_directory() {
    let hsdir = hsdir(|_| {});
    let error = hsdir.open(asking(RELAY, false)).await.expect_err("none");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn who_publishes_all_the_time_leaves_others_their_share() {
    let hsdir = hsdir(|settings| {
        (
            settings.hsdir_publishes,
            settings.hsdir_publishes_per_second,
        ) = (40, 1)
    });
    let mut taken = 0;
    for revision in 1..=60 {
        let text = Made { revision, ..GOOD }.text(1);
        let (status, _) = ask(&hsdir, RELAY, &publish(&text)).await;
        assert!(status == 200 || status == 503, "{status}");
        taken += usize::from(status == 200);
    }
    assert!((20..40).contains(&taken), "{taken}");
    assert_eq!(ask(&hsdir, RELAY + 1, &publish(&good(2))).await.0, 200);
}

#[tokio::test]
async fn who_holds_streams_open_leaves_others_as_many() {
    let hsdir = hsdir(|settings| settings.hsdir_streams = 8);
    let mut held = Vec::new();
    let error = loop {
        match hsdir.open(asking(RELAY, true)).await {
            Ok(stream) => held.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(error.reason(), Some(Reason::Limit));
    assert_eq!(held.len(), 4);
    assert_eq!(ask(&hsdir, RELAY + 1, &fetch(1)).await.0, 404);
    // What he gives up is there again.
    held.clear();
    while hsdir.0.streams.are_open() {
        tokio::task::yield_now().await;
    }
    assert!(!hsdir.0.streams.are_open());
    assert!(hsdir.open(asking(RELAY, true)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_or_never_ends_is_given_up() {
    let hsdir = hsdir(|_| {});
    for said in [
        "",
        "GET /tor/hs",
        "POST /tor/hs/3/publish HTTP/1.0\r\nContent-Length: 9\r\n\r\n",
    ] {
        let mut stream = hsdir.open(asking(RELAY, true)).await.expect("a stream");
        stream.write_all(said.as_bytes()).await.expect("written");
        stream.flush().await.expect("written");
        let mut answer = String::new();
        let ended = timeout(2 * STREAM_TIMEOUT, stream.read_to_string(&mut answer)).await;
        ended.expect("in time").expect("an end");
    }
    assert!(!hsdir.0.streams.are_open());
}

#[tokio::test]
async fn what_is_no_request_of_an_hsdir_is_not_found() {
    let hsdir = hsdir(|_| {});
    for request in [
        "GET /tor/status-vote/current/consensus HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "PUT /tor/hs/3/publish HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
        "POST /tor/hs/3/abc HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
    ] {
        assert_eq!(
            ask(&hsdir, RELAY, request).await,
            (404, String::new()),
            "{request}"
        );
    }
}
