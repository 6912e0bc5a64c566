//! A directory cache as those see it who ask it over a stream: clients of Tor's network, and who wants to keep others from it.

use std::{collections::HashMap, io::Read};

use flate2::read::{GzDecoder, ZlibDecoder};
use hoplite_onion::relay::Requester;
use hoplite_wire::content_coding::Encoded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const CONSENSUS: &str = "/tor/status-vote/current/consensus-microdesc";
/// Who asks, where nobody is told apart.
const CLIENT: u64 = 7;
const KNOWN: [u8; 32] = [0xAB; 32];

fn asking(requester: u64) -> Asking {
    let requester = Requester {
        key: requester,
        known: false,
    };
    Asking {
        requester,
        is_relay: false,
    }
}

/// A consensus of a million bytes.
fn consensus() -> String {
    "r relay identity\ns Running Valid\n".repeat(30_000)
}

fn documents() -> Documents {
    let now = unix_time();
    let microdescriptor = |n: u8| ([n; 32], Encoded::of(format!("onion-key\nid {n}\n")));
    let certificate = |n: u8| GivenCertificate {
        authority: [n; 20],
        key: [n + 100; 20],
        text: Encoded::of(format!("certificate {n}\n")),
    };
    Documents {
        consensus: Some(Arc::new(GivenConsensus {
            valid_after: now - 100,
            valid_until: now + 100,
            signers: vec![[1; 20], [2; 20], [3; 20]],
            text: Encoded::of(consensus()),
            diffs: HashMap::from([(KNOWN, Encoded::of("a difference\n".into()))]),
        })),
        certificates: vec![certificate(1), certificate(2)],
        microdescriptors: (1..4).map(microdescriptor).collect(),
    }
}

fn cache(change: impl FnOnce(&mut Settings)) -> DirectoryCache {
    let mut settings = Settings::default();
    change(&mut settings);
    let cache = DirectoryCache::new(&settings, None);
    cache.give(documents());
    cache
}

/// The head of an answer, and its body.
async fn answered(stream: &mut Stream, target: &str, fields: &str) -> (String, Vec<u8>) {
    let request = format!("GET {target} HTTP/1.0\r\nHost: 192.0.2.1\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    stream.flush().await.expect("written");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let body = answer.split_off(end.expect("a head") + 4);
    (String::from_utf8(answer).expect("text"), body)
}

async fn ask(cache: &DirectoryCache, target: &str, fields: &str) -> (u16, String) {
    let mut stream = cache.open(asking(CLIENT)).await.expect("a stream");
    let (head, body) = answered(&mut stream, target, fields).await;
    let status = head.split(' ').nth(1).expect("a status");
    let status = status.parse().expect("a number");
    let encoding = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Encoding: "));
    let mut text = String::new();
    match encoding {
        // Each document is one stream, and they stand one behind the other.
        Some("deflate") => {
            let mut rest = body.as_slice();
            while !rest.is_empty() {
                let mut decoder = ZlibDecoder::new(rest);
                decoder.read_to_string(&mut text).expect("zlib");
                let taken = usize::try_from(decoder.total_in()).expect("small");
                rest = &rest[taken..];
            }
        }
        Some("gzip") => {
            let mut decoder = flate2::read::MultiGzDecoder::new(body.as_slice());
            decoder.read_to_string(&mut text).expect("gzip");
        }
        _ => text = String::from_utf8(body).expect("text"),
    }
    (status, text)
}

#[tokio::test]
async fn a_client_gets_the_consensus_in_the_form_that_it_asks_for() {
    let cache = cache(|_| {});
    let asked = |target: String, fields: &'static str| {
        let cache = cache.clone();
        async move { ask(&cache, &target, fields).await }
    };
    let all = (200, consensus());
    for (end, fields) in [
        ("", ""),
        (".z", ""),
        (".z", "Accept-Encoding: identity\r\n"),
        ("", "Accept-Encoding: x-zstd, deflate, gzip\r\n"),
        (".z", "Accept-Encoding: gzip\r\n"),
        ("/010101+020202+999999.z", ""),
    ] {
        let answer = asked(format!("{CONSENSUS}{end}"), fields).await;
        assert_eq!(answer.0, 200, "{end} {fields}");
        assert!(answer == all, "{end} {fields}");
    }
    // Of those whom the client believes one of two has signed it, which is no majority.
    let few = asked(format!("{CONSENSUS}/010101+999999.z"), "").await;
    assert_eq!(few, (404, String::new()));
}

#[tokio::test]
async fn who_has_an_earlier_consensus_gets_the_difference_and_who_has_this_one_nothing() {
    let cache = cache(|_| {});
    let (known, strange) = ("AB".repeat(32), "CD".repeat(32));
    let fields = format!("X-Or-Diff-From-Consensus: {strange}, {known}\r\n");
    let difference = (200, "a difference\n".to_owned());
    assert_eq!(
        ask(&cache, &format!("{CONSENSUS}.z"), &fields).await,
        difference
    );
    let target = format!("{CONSENSUS}/diff/{known}/010101.z");
    assert_eq!(ask(&cache, &target, "").await, difference);
    let target = format!("{CONSENSUS}/diff/{strange}");
    assert_eq!(ask(&cache, &target, "").await.0, 404);
    let fields = format!("X-Or-Diff-From-Consensus: {strange}\r\n");
    assert!(ask(&cache, CONSENSUS, &fields).await.1 == consensus());
    for (since, status) in [
        ("Fri, 01 Jan 2100 00:00:00 GMT", 304),
        ("Thu, 01 Jan 2015 00:00:00 GMT", 200),
        ("yesterday", 200),
    ] {
        let fields = format!("If-Modified-Since: {since}\r\n");
        assert_eq!(ask(&cache, CONSENSUS, &fields).await.0, status, "{since}");
    }
}

#[tokio::test]
async fn a_consensus_is_given_for_a_day_after_its_time_and_before_there_is_one_others_are_to_be_asked()
 {
    let cache = cache(|_| {});
    let over = |by: u64| {
        let mut documents = documents();
        let consensus = documents.consensus.as_deref().expect("one").clone();
        documents.consensus = Some(Arc::new(GivenConsensus {
            valid_until: unix_time() - by,
            ..consensus
        }));
        documents
    };
    for (by, status) in [(3600, 200), (24 * 3600 + 60, 404)] {
        cache.give(over(by));
        assert_eq!(ask(&cache, CONSENSUS, "").await.0, status, "{by}");
    }
    cache.give(Documents::default());
    assert_eq!(ask(&cache, CONSENSUS, "").await.0, 503);
}

#[tokio::test]
async fn microdescriptors_and_certificates_come_as_they_are_named_and_what_is_not_here_is_not_found()
 {
    let cache = cache(|_| {});
    let digests = |all: &[u8]| {
        let digests = all.iter().map(|n| [*n; 32]).collect();
        DirectoryRequest::Microdescriptors(digests).target()
    };
    let both = (200, "onion-key\nid 1\nonion-key\nid 3\n".to_owned());
    for (end, fields) in [("", ""), (".z", ""), ("", "Accept-Encoding: gzip\r\n")] {
        let target = format!("{}{end}", digests(&[1, 9, 3]));
        assert_eq!(ask(&cache, &target, fields).await, both, "{end} {fields}");
    }
    assert_eq!(ask(&cache, &digests(&[8, 9]), "").await.0, 404);
    let (one, two) = ("certificate 1\n", "certificate 2\n");
    let (first, key) = ("01".repeat(20), "66".repeat(20));
    for (target, text) in [
        ("all".to_owned(), format!("{one}{two}")),
        (format!("fp/{first}"), one.to_owned()),
        (format!("sk/{key}"), two.to_owned()),
        (
            format!("fp-sk/{first}-{}+{first}-{key}", "65".repeat(20)),
            one.to_owned(),
        ),
    ] {
        let answer = ask(&cache, &format!("/tor/keys/{target}.z"), "").await;
        assert_eq!(answer, (200, text), "{target}");
    }
    for target in [
        "/tor/keys/fp/0101010101010101010101010101010101010109",
        "/tor/status-vote/current/consensus",
        "/tor/server/all",
        "/tor/hs/3/AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE",
        "/",
    ] {
        assert_eq!(ask(&cache, target, "").await.0, 404, "{target}");
    }
}

#[tokio::test]
async fn who_asks_for_everything_again_and_again_is_told_to_ask_others_and_who_comes_new_is_answered()
 {
    let cache = cache(|settings| {
        (
            settings.directory_bytes,
            settings.directory_bytes_per_second,
        ) = (8 << 20, 1)
    });
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(ask(&cache, CONSENSUS, "").await.0);
    }
    assert_eq!(statuses.first(), Some(&200));
    assert_eq!(statuses.last(), Some(&503));
    let given = cache.counters().bytes.load(Relaxed);
    assert!(given <= 10 << 20, "{given} bytes");
    let left = statuses.iter().filter(|status| **status == 200).count();
    assert!((6..=10).contains(&left), "{statuses:?}");
    assert!(!cache.admits(CLIENT, consensus().len()));
    assert!(cache.admits(CLIENT + 1, consensus().len()), "who comes new");
    let consensuses = cache.counters().consensuses.load(Relaxed);
    assert_eq!(
        usize::try_from(consensuses),
        Ok(left),
        "as they are told of"
    );
}

#[tokio::test(start_paused = true)]
async fn however_many_ask_all_together_are_given_what_there_is_and_one_answer_more() {
    const BURST: usize = 8 << 20;
    const RATE: usize = 1 << 20;
    let cache = cache(|settings| {
        (
            settings.directory_bytes,
            settings.directory_bytes_per_second,
        ) = (BURST, RATE)
    });
    let answer = consensus().len();
    let (mut given, mut requesters) = (0, 0..);
    for second in 0..20 {
        // Each comes new, and asks once.
        for requester in requesters.by_ref().take(100) {
            let admitted = cache.admits(requester, answer);
            given += if admitted { answer } else { 0 };
        }
        let most = BURST + second * RATE + answer;
        assert!(given <= most, "{given} of {most} bytes");
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(given >= BURST + 18 * RATE, "{given} bytes");
}

#[tokio::test]
async fn who_holds_streams_open_and_reads_nothing_leaves_others_as_many() {
    let cache = cache(|settings| settings.directory_streams = 8);
    let mut held = Vec::new();
    while let Ok(mut stream) = cache.open(asking(1)).await {
        let request = format!("GET {CONSENSUS} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("written");
        stream.flush().await.expect("written");
        held.push(stream);
    }
    assert_eq!(held.len(), 4);
    assert_eq!(ask(&cache, CONSENSUS, "").await.0, 200);
    assert!(cache.open(asking(1)).await.is_err());
    drop(held);
    while cache.open(asking(1)).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn an_answer_shares_its_bytes_with_all_others_and_goes_in_small_parts() {
    let documents = documents();
    let asked = Asked {
        request: DirectoryRequest::parse(CONSENSUS).expect("known").0,
        encoding: Encoding::Identity,
        if_modified_since: None,
        diff_from: Vec::new(),
    };
    let addresses = |_| {
        let answer = documents.answer(&asked, unix_time());
        answer.body.front().expect("a body").as_ptr()
    };
    let [one, other] = [1, 2].map(addresses);
    assert_eq!(one, other);
    let mut parts = Parts::of(documents.answer(&asked, unix_time()).body);
    let (mut sizes, whole) = (Vec::new(), consensus().len());
    while let Some(part) = parts.next() {
        sizes.push(part.len());
    }
    assert!(sizes.iter().all(|size| *size <= PART));
    assert_eq!(sizes.iter().sum::<usize>(), whole);
    assert!(parts.is_end_stream());
}

#[test]
fn gzip_has_the_same_text_and_says_so() {
    let encoded = Encoded::of(consensus());
    let answer = Answer::of_one(&encoded, Encoding::Gzip);
    let bytes: Vec<_> = answer.body.iter().flatten().copied().collect();
    let mut text = String::new();
    GzDecoder::new(bytes.as_slice())
        .read_to_string(&mut text)
        .expect("right length and checksum");
    assert!(text == consensus());
}
