//! Two consensuses of a network of C tor, and the difference that C tor makes of them: `c_tor/README.md`.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hoplite_crypto::onion::rsa::sha256;
use hoplite_overlay::Stream;
use hoplite_testing::{Double, seeded};
use hoplite_wire::{Target, tor::Consensus};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream, DuplexStream, duplex};

use super::*;
use crate::{
    Heard,
    tor::{Renewed, renew},
};

const EARLIER: &str = include_str!("c_tor/earlier");
const LATER: &str = include_str!("c_tor/later");
const DIFFERENCE: &str = include_str!("c_tor/diff");
const CERTIFICATES: &str = include_str!("c_tor/certificates");
const DESCRIBED: &str = include_str!("c_tor/microdescriptors");

fn trust() -> Trust {
    let authorities = include_str!("c_tor/authorities").lines();
    let authorities = authorities.filter_map(hoplite_wire::tor::fingerprint);
    Trust {
        authorities: authorities.collect(),
        skew: 0,
    }
}

/// When the one is there already, and the other still holds.
fn now() -> u64 {
    Consensus::parse(LATER).expect("read").valid_after
}

fn client() -> Client {
    let store = Store::in_memory().expect("made");
    Client::caching(trust(), store, now()).expect("empty")
}

/// What a directory has.
#[derive(Clone, Copy)]
struct Has {
    consensus: &'static str,
    /// What it answers to who has the earlier one.
    difference: Option<&'static str>,
}

const BEFORE: Has = Has {
    consensus: EARLIER,
    difference: None,
};
const AFTER: Has = Has {
    consensus: LATER,
    difference: None,
};

/// The status and the body with which a directory answers.
fn answer(has: Has, head: &str) -> (u16, &'static str) {
    let path = head.split(' ').nth(1).expect("a path");
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    if path.starts_with("/tor/keys/") {
        return (200, CERTIFICATES);
    }
    if path.starts_with("/tor/micro/") {
        return (200, DESCRIBED);
    }
    let since = field("If-Modified-Since: ");
    let since = since.and_then(hoplite_wire::tor::directory_request::http_date);
    let valid_after = Consensus::parse(has.consensus).expect("read").valid_after;
    if since.is_some_and(|since| valid_after <= since) {
        return (304, "");
    }
    match (field("X-Or-Diff-From-Consensus: "), has.difference) {
        (Some(_), Some(difference)) => (200, difference),
        _ => (200, has.consensus),
    }
}

async fn serve(mut stream: DuplexStream, has: Has, heard: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a request"));
    }
    let head = String::from_utf8(head).expect("text");
    let (status, body) = answer(has, &head);
    heard.lock().push(head);
    let answer = format!(
        "HTTP/1.0 {status} x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // Who asked may have gone.
    drop(stream.write_all(answer.as_bytes()).await);
}

/// Asks one directory; what came, and the heads of what was asked.
async fn asked(client: &Client, has: Has) -> (Option<Renewed>, Vec<String>) {
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let hears = Arc::clone(&heard);
    let overlay = Double::nothing().streams(move |_, _, _| {
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(serve(theirs, has, Arc::clone(&hears)));
        Box::pin(async { Ok(Stream::new(BufStream::new(ours))) })
    });
    let directory: SocketAddr = "192.0.2.1:80".parse().expect("an address");
    let sources = [Target::from(directory)];
    let limit = Duration::from_secs(20);
    let renewed = renew(&client.renewal(), &overlay, &sources, now(), limit).await;
    let heads = std::mem::take(&mut *heard.lock());
    (renewed.expect("believed"), heads)
}

async fn hear(client: &mut Client, has: Has) -> crate::tor::Came {
    let (renewed, _) = asked(client, has).await;
    let renewed = renewed.expect("newer");
    let came = renewed.came();
    assert_eq!(client.take(renewed).expect("kept"), Ok(Heard::Newer));
    came
}

#[tokio::test]
async fn who_has_a_consensus_takes_c_tors_difference_and_who_has_none_the_whole() {
    let mut client = client();
    let came = hear(&mut client, BEFORE).await;
    assert_eq!((came.bytes, came.as_difference), (EARLIER.len(), false));
    let after = Has {
        difference: Some(DIFFERENCE),
        ..AFTER
    };
    let came = hear(&mut client, after).await;
    assert_eq!((came.bytes, came.as_difference), (DIFFERENCE.len(), true));
    let kept = client.cached().expect("read").expect("there");
    assert!(kept.consensus == LATER);
}

#[tokio::test]
async fn a_difference_that_does_not_fit_costs_a_question_more_and_nothing_else() {
    let cut = DIFFERENCE.split_at(DIFFERENCE.len() - 200).0;
    for wrong in [
        cut.to_owned(),
        DIFFERENCE.replace("\n56,$d", "\n9999,$d"),
        DIFFERENCE.replace("valid", "invalid"),
        // One to somebody else's consensus.
        DIFFERENCE.replacen("hash AE30BE26DF", "hash 0000000000", 1),
        "network-status-diff-version 1\n".to_owned(),
    ] {
        let mut client = client();
        hear(&mut client, BEFORE).await;
        let wrong: &'static str = String::leak(wrong);
        let after = Has {
            difference: Some(wrong),
            ..AFTER
        };
        let (renewed, heads) = asked(&client, after).await;
        let came = renewed.expect("newer").came();
        assert_eq!(
            (came.bytes, came.as_difference),
            (wrong.len() + LATER.len(), false)
        );
        let whole = heads
            .iter()
            .filter(|head| head.contains("consensus-microdesc "));
        assert_eq!(whole.count(), 2);
        assert!(
            !heads[1].contains("X-Or-Diff-From-Consensus"),
            "{}",
            heads[1]
        );
    }
}

#[tokio::test]
async fn a_directory_that_has_no_later_one_says_so_in_no_bytes_and_one_that_is_over_is_not_named() {
    let mut client = client();
    hear(&mut client, AFTER).await;
    let (renewed, heads) = asked(&client, AFTER).await;
    assert!(renewed.is_none());
    assert_eq!(heads.len(), 1);
    assert!(heads[0].contains("If-Modified-Since: "), "{}", heads[0]);
    let newest = client.newest.as_mut().expect("one");
    Arc::make_mut(&mut newest.network).valid_until = now() - 1;
    let (_, heads) = asked(&client, AFTER).await;
    for field in ["If-Modified-Since", "X-Or-Diff-From-Consensus"] {
        assert!(!heads[0].contains(field), "{}", heads[0]);
    }
}

#[tokio::test]
async fn a_cache_gives_what_it_has_and_the_difference_to_what_it_had_also_after_a_restart() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("cache");
    let open = || {
        let store = Store::open(&path).expect("opened");
        Client::caching(trust(), store, now()).expect("read")
    };
    let mut client = open();
    assert_eq!(client.cached().expect("read"), None);
    hear(&mut client, BEFORE).await;
    hear(&mut client, AFTER).await;
    for mut client in [client, open()] {
        let given = client.cached().expect("read").expect("there");
        assert!(given.consensus == LATER);
        assert_eq!(given.signers.len(), 3);
        assert_eq!(given.certificates.len(), 3);
        let named = Consensus::parse(LATER).expect("read").routers;
        for router in &named {
            let mut found = given.microdescriptors.iter();
            let text = found.find(|(digest, _)| *digest == router.digest);
            let (digest, text) = text.expect("each is there");
            assert_eq!(sha256(text.as_bytes()), *digest);
        }
        let [(from, difference)] = &given.differences[..] else {
            unreachable!("{} differences", given.differences.len());
        };
        assert_eq!(Some(*from), diff_hash(EARLIER));
        let read = ConsensusDiff::parse(difference).expect("read");
        assert_eq!(read.apply(EARLIER).as_deref(), Ok(LATER));
        // As C tor names both, and no longer than what it makes.
        let theirs = ConsensusDiff::parse(DIFFERENCE).expect("read");
        assert_eq!((read.from, read.to), (theirs.from, theirs.to));
        let (ours, theirs) = (difference.len(), DIFFERENCE.len());
        assert!(ours <= theirs, "{ours} bytes, C tor {theirs}");
    }
}

/// Whoever answers can put there what he likes, and C tor refuses the whole.
#[tokio::test]
async fn a_cache_gives_nothing_on_that_no_known_authority_has_signed() {
    let (_, signatures) = LATER.split_once("\ndirectory-signature ").expect("signed");
    let end = "-----END SIGNATURE-----\n";
    let first = signatures.split_inclusive(end).next().expect("one");
    let object = "-----BEGIN SIGNATURE-----\nAAAA\n-----END SIGNATURE-----\n";
    let nobody = "0".repeat(40);
    for more in [
        "\n@note\n",
        &format!("directory-signature sha1 A B\n{object}"),
        &format!("directory-signature sha256 {nobody} {nobody}\n{object}"),
        &format!("directory-signature {first}"),
    ] {
        let consensus = String::leak(format!("{LATER}{more}"));
        let mut client = client();
        let has = Has {
            consensus,
            difference: None,
        };
        hear(&mut client, has).await;
        let given = client.cached().expect("read").expect("there");
        assert!(given.consensus == LATER, "{more}");
        assert_eq!(given.signers.len(), 3);
    }
}

/// A relay chooses what its microdescriptor calls its family, and can have another one each hour.
#[tokio::test]
async fn relays_that_describe_themselves_at_length_keep_a_cache_from_giving_nothing() {
    let mut client = client();
    hear(&mut client, AFTER).await;
    let named = Consensus::parse(LATER).expect("read").routers;
    let named = named.iter().map(|router| router.digest);
    let family = format!("${} ", "A".repeat(40)).repeat(400);
    let long = (0u64..1200).map(|number| {
        let mut digest = [7; 32];
        digest[..8].copy_from_slice(&number.to_be_bytes());
        (digest, format!("onion-key\nfamily {family}\n"))
    });
    let long: Vec<_> = long.collect();
    let bytes: usize = long.iter().map(|(_, text)| text.len()).sum();
    assert!(bytes > hoplite_wire::tor::TEXT);
    let kept: HashSet<_> = named
        .clone()
        .chain(long.iter().map(|(one, _)| *one))
        .collect();
    let fresh = long.iter().map(|(digest, text)| (*digest, text.as_str()));
    let texts = (LATER, CERTIFICATES);
    let stored = client.store.keep_tor_documents(texts, fresh, &kept);
    stored.expect("kept");
    let given = client.cached().expect("read").expect("there");
    let given: HashSet<_> = given.microdescriptors.iter().map(|(one, _)| *one).collect();
    assert_eq!(given, kept);
    let again = Client::caching(trust(), client.store, now()).expect("read");
    let network = again.network(now()).expect("good").expect("there");
    assert!(network.undescribed.is_empty());
}

#[test]
fn microdescriptors_are_kept_for_a_day_after_a_consensus_has_named_them_last() {
    let mut keeps = Keeps {
        consensuses: 1,
        microdescriptors: MICRODESCRIPTORS,
        last_named: HashMap::from([([9; 32], 1000)]),
    };
    let none = Descriptions::new();
    assert_eq!(keeps.named(&none, 1000 + MICRODESCRIPTORS - 1).len(), 1);
    assert_eq!(keeps.named(&none, 1000 + MICRODESCRIPTORS).len(), 0);
    assert_eq!(Keeps::default().named(&none, 0).len(), 0);
}

#[tokio::test]
async fn a_cache_asks_in_the_first_half_of_the_interval_after_its_consensus_is_fresh() {
    let mut client = client();
    assert_eq!(client.next_of_cache(now(), &mut |_| 0), now(), "at once");
    hear(&mut client, AFTER).await;
    let fresh = Consensus::parse(LATER).expect("read").fresh_until;
    let mut bits = seeded(3);
    let moments: Vec<_> = (0..100)
        .map(|_| client.next_of_cache(now(), &mut |most| bits() % most) - fresh)
        .collect();
    assert_eq!(client.interval(), 10);
    assert_eq!(
        (moments.iter().min(), moments.iter().max()),
        (Some(&0), Some(&4))
    );
    let over = now() + 3600;
    assert_eq!(client.next_of_cache(over, &mut |_| 7), over, "at once");
}
