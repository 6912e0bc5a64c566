//! Against directories that answer with the documents of a private network of C tor (`super::super::tests`), with parts of them, or with others.

use std::{collections::BTreeMap, net::SocketAddr, path::Path};

use hoplite_overlay::Stream;
use hoplite_testing::{Double, seeded};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream, duplex};

use super::*;
use crate::tor::tests::{
    AUTHORITIES, CERTIFICATES as KEYS, CONSENSUS as LIST, MICRODESCRIPTORS, NOW, trust,
};

/// What each directory answers, by the path; and what was asked.
struct World {
    overlay: Double,
    asked: Arc<Mutex<Vec<String>>>,
}

type Answer = fn(&str) -> Option<String>;

/// All that there is of what is asked.
fn whole(path: &str) -> Option<String> {
    if path == CONSENSUS {
        return Some(LIST.to_owned());
    }
    if path.starts_with(CERTIFICATES) {
        return Some(KEYS.to_owned());
    }
    let asked = path.strip_prefix("/tor/micro/d/")?;
    let found = Microdescriptor::parse_all(MICRODESCRIPTORS).expect("read");
    let named = found.iter().filter(|one| {
        let digest = sha256(one.text.as_bytes());
        let name = Consensus::request(&[digest]);
        asked.contains(name.trim_start_matches("/tor/micro/d/"))
    });
    Some(named.map(|one| one.text).collect())
}

/// No microdescriptors.
fn bare(path: &str) -> Option<String> {
    whole(path).filter(|_| !path.starts_with("/tor/micro"))
}

/// Two of six, whatever is asked.
fn partial(path: &str) -> Option<String> {
    let all = whole(path)?;
    if !path.starts_with("/tor/micro") {
        return Some(all);
    }
    let found = Microdescriptor::parse_all(&all).expect("read");
    Some(found.iter().take(2).map(|one| one.text).collect())
}

/// A consensus that somebody has changed.
fn forging(path: &str) -> Option<String> {
    whole(path).map(|text| text.replace("Exit Fast", "Exit Slow"))
}

/// Beside the certificates there are others, of the same names and keys, that nobody has signed and that hold for longer.
fn displacing(path: &str) -> Option<String> {
    let all = whole(path)?;
    if !path.starts_with(CERTIFICATES) {
        return Some(all);
    }
    let others = all.lines().map(|line| {
        let is_end = line.starts_with("dir-key-expires ");
        let line = if is_end {
            "dir-key-expires 2199-01-01 00:00:00"
        } else {
            line
        };
        format!("{line}\n")
    });
    let others: String = others.collect();
    Some([&*others, &*all, &*others].concat())
}

fn silent(_: &str) -> Option<String> {
    None
}

impl World {
    /// Directory `n` listens at port `n`, from 0.
    fn of(answers: &'static [Answer]) -> Self {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&asked);
        let overlay = Double::nothing().streams(move |_, target, _| {
            let answer = answers[usize::from(target.port)];
            let (ours, theirs) = duplex(1 << 16);
            tokio::spawn(serve(theirs, answer, Arc::clone(&heard)));
            Box::pin(async { Ok(Stream::new(BufStream::new(ours))) })
        });
        Self { overlay, asked }
    }

    async fn renew(&self, client: &Client) -> Result<Option<Renewed>, Vec<NoNetwork>> {
        let directories = (0..3).map(|port| Target::from(SocketAddr::from(([192, 0, 2, 1], port))));
        let sources: Vec<_> = directories.collect();
        let limit = Duration::from_secs(20);
        renew(&client.renewal(), &self.overlay, &sources, NOW, limit).await
    }

    /// What was asked since the last time, each by its first words.
    fn asked(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for path in self.asked.lock().drain(..) {
            let words: Vec<_> = path.split('/').skip(2).take(1).collect();
            *counts.entry(words.concat()).or_insert(0) += 1;
        }
        counts
    }
}

async fn serve(
    mut stream: tokio::io::DuplexStream,
    answer: Answer,
    heard: Arc<Mutex<Vec<String>>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a request"));
    }
    let head = String::from_utf8(head).expect("text");
    let path = head.split(' ').nth(1).expect("a path").to_owned();
    let answer = match answer(&path) {
        Some(body) => format!("HTTP/1.0 200 OK\r\n\r\n{body}"),
        None => "HTTP/1.0 404 Not found\r\n\r\n".to_owned(),
    };
    heard.lock().push(path);
    // Who asked may have gone.
    drop(stream.write_all(answer.as_bytes()).await);
}

fn open(path: &Path) -> Client {
    Client::new(trust(), Store::open(path).expect("opened"), NOW).expect("read")
}

fn client() -> Client {
    let store = Store::in_memory().expect("made");
    Client::new(trust(), store, NOW).expect("empty")
}

fn refusals(failures: Vec<NoNetwork>) -> Vec<Refused> {
    let refused = failures.into_iter().filter_map(|failure| match failure {
        NoNetwork::Refused(refused) => Some(refused),
        _ => None,
    });
    refused.collect()
}

#[tokio::test]
async fn what_is_here_is_not_asked_for_again_also_after_a_restart() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("cache");
    let world = World::of(&[whole, silent, silent]);
    let mut client = open(&path);
    assert_eq!(client.network(NOW), Ok(None));
    let renewed = world.renew(&client).await.expect("asked").expect("newer");
    let all = [("keys", 1), ("micro", 1), ("status-vote", 1)];
    assert_eq!(
        world.asked(),
        all.map(|(what, n)| (what.to_owned(), n)).into()
    );
    assert_eq!(client.take(renewed).expect("stored"), Ok(Heard::Newer));
    for client in [client, open(&path)] {
        let network = client.network(NOW).expect("good").expect("there");
        assert_eq!(network.relays.len(), 6);
        assert!(world.renew(&client).await.expect("asked").is_none());
        assert_eq!(world.asked(), [("status-vote".to_owned(), 1)].into());
    }
}

#[tokio::test]
async fn a_directory_that_forges_or_is_silent_is_not_believed_and_the_next_is_asked() {
    let world = World::of(&[forging, silent, whole]);
    let renewed = world.renew(&client()).await.expect("asked").expect("newer");
    assert_eq!(renewed.network.relays.len(), 6);
    let world = World::of(&[forging, forging, silent]);
    let failures = world.renew(&client()).await.expect_err("forged");
    let forged = Refused::Forged { good: 0, needed: 2 };
    assert_eq!(refusals(failures), [forged, forged]);
}

/// Each third question for microdescriptors it has nothing for.
fn forgetful(path: &str) -> Option<String> {
    static ASKED: Mutex<usize> = Mutex::new(0);
    if !path.starts_with("/tor/micro") {
        return whole(path);
    }
    let asked = &mut *ASKED.lock();
    *asked += 1;
    (*asked % 3 != 1).then(|| whole(path)).flatten()
}

#[tokio::test]
async fn a_directory_that_lacks_some_microdescriptors_is_asked_for_the_others() {
    let world = World::of(&[forgetful, silent, silent]);
    let mut renewal = client().renewal();
    renewal.batch = 1;
    let source = Target::from(SocketAddr::from(([192, 0, 2, 1], 0)));
    let limit = Duration::from_secs(20);
    let renewed = renew(&renewal, &world.overlay, &[source], NOW, limit).await;
    let failures = match renewed {
        Ok(renewed) => {
            assert_eq!(renewed.expect("newer").network.relays.len(), 4);
            Vec::new()
        }
        Err(failures) => refusals(failures),
    };
    // Whether four of six are enough is by chance which; all six were asked for.
    assert!(
        matches!(failures[..], [] | [Refused::Partial { .. }]),
        "{failures:?}"
    );
    assert_eq!(world.asked()["micro"], 6);
}

/// Or nothing that they sign would be believed ever again.
#[tokio::test]
async fn certificates_that_no_authority_has_signed_take_no_other_ones_place() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("cache");
    let world = World::of(&[displacing, silent, silent]);
    let mut client = open(&path);
    let renewed = world.renew(&client).await.expect("asked").expect("newer");
    assert_eq!(client.take(renewed).expect("stored"), Ok(Heard::Newer));
    for client in [client, open(&path)] {
        let network = client.network(NOW).expect("good").expect("there");
        assert_eq!(network.relays.len(), 6);
        let wanted = client.renewal().certificates_wanted(LIST, NOW);
        assert_eq!(wanted, Ok(None));
        assert_eq!(*client.certificates, *sorted(KEYS));
        let after = NOW + 2 * 365 * 86_400;
        let wanted = client.renewal().certificates_wanted(LIST, after);
        assert!(wanted.expect("read").is_some(), "they have ended");
    }
}

/// Certificates in the order of their texts.
fn sorted(certificates: &str) -> String {
    let all = KeyCertificate::parse_all(certificates).expect("read");
    let mut texts: Vec<_> = all.iter().map(|one| one.text).collect();
    texts.sort_unstable();
    texts.concat()
}

#[tokio::test]
async fn relays_that_one_directory_keeps_back_are_asked_of_the_next() {
    let world = World::of(&[partial, bare, whole]);
    let renewed = world.renew(&client()).await.expect("asked").expect("newer");
    assert_eq!(renewed.network.relays.len(), 6);
    assert_eq!(world.asked()["micro"], 3, "each once");
}

#[tokio::test]
async fn a_consensus_with_too_few_relays_described_is_not_used() {
    let world = World::of(&[partial, bare, silent]);
    let failures = world.renew(&client()).await.expect_err("partial");
    let partial = refusals(failures);
    assert!(
        matches!(partial[..], [Refused::Partial { percent: 0..=59 }]),
        "{partial:?}"
    );
}

/// Else who answers in the clear could have a service that he knows looked for at his own relays, by the client that he has told so.
#[tokio::test]
async fn where_descriptors_are_is_not_known_before_what_is_missing_was_asked_for_anonymously() {
    let world = World::of(&[whole, silent, silent]);
    let source = [Target::from(SocketAddr::from(([192, 0, 2, 1], 0)))];
    let limit = Duration::from_secs(20);
    for (is_missing, is_unknown) in [(false, false), (true, false), (true, true)] {
        let mut client = client();
        let mut renewal = client.renewal();
        if is_unknown {
            renewal = renewal.anonymously();
        }
        let renewed = renew(&renewal, &world.overlay, &source, NOW, limit).await;
        let mut renewed = renewed.expect("asked").expect("newer");
        if is_missing {
            renewed.network.undescribed.insert([7; 20]);
        }
        assert_eq!(client.take(renewed).expect("stored"), Ok(Heard::Newer));
        let hsdirs = client.hsdirs(NOW, true);
        let hsdirs = hsdirs.map(|hsdirs| hsdirs.map(|hsdirs| hsdirs.len()));
        let next = client.next(NOW, &mut |_| 0);
        if is_missing && !is_unknown {
            assert!(client.may_be_misled());
            assert_eq!((hsdirs, next), (Err(Refused::Lacking), NOW));
        } else {
            assert!(!client.may_be_misled());
            assert_eq!(hsdirs, Ok(Some(6)));
            assert!(next > NOW);
        }
    }
}

#[tokio::test]
async fn an_older_consensus_and_another_one_for_the_same_time_are_refused() {
    let world = World::of(&[whole, silent, silent]);
    let mut known = client();
    let renewed = world.renew(&known).await.expect("asked").expect("newer");
    let after = renewed.network.valid_after;
    assert_eq!(known.take(renewed).expect("stored"), Ok(Heard::Newer));
    let mut offer = async |valid_after: u64, hash: [u8; 32]| {
        let renewed = world.renew(&client()).await.expect("asked").expect("newer");
        let mut network = renewed.network.clone();
        network.valid_after = valid_after;
        let changed = Renewed {
            network,
            hash,
            ..renewed
        };
        known.take(changed).expect("stored")
    };
    let older = offer(after - 60, [1; 32]).await;
    assert_eq!(older, Err(Refused::RolledBack { by: 60 }));
    assert_eq!(offer(after, [1; 32]).await, Err(Refused::Twofold));
    assert_eq!(offer(after + 60, [1; 32]).await, Ok(Heard::Newer));
    // And nothing is asked for it.
    let failures = world.renew(&known).await.expect_err("rolled back");
    assert!(refusals(failures).contains(&Refused::RolledBack { by: 60 }));
}

#[tokio::test]
async fn what_another_networks_authorities_have_signed_neither_serves_nor_hinders() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("cache");
    let world = World::of(&[whole, silent, silent]);
    let mut client = open(&path);
    let renewed = world.renew(&client).await.expect("asked").expect("newer");
    assert_eq!(client.take(renewed).expect("stored"), Ok(Heard::Newer));
    let strangers = Trust {
        authorities: vec![[7; 20]],
        skew: 0,
    };
    let store = Store::open(&path).expect("opened");
    let other = Client::new(strangers, store, NOW).expect("read");
    assert_eq!(other.network(NOW), Ok(None));
}

#[tokio::test]
async fn it_is_not_used_after_its_time_and_renewed_before_at_a_random_moment_of_dir_spec() {
    let world = World::of(&[whole, silent, silent]);
    let mut client = client();
    assert_eq!(client.next(NOW, &mut |_| 0), NOW, "at once");
    let mut renewed = world.renew(&client).await.expect("asked").expect("newer");
    // "A consensus that became valid at 1:00, and is fresh until 2:00, and expires at 4:00": between 2:45 and 3:50.
    let (one, minute) = (NOW, 60);
    let network = &mut renewed.network;
    (
        network.valid_after,
        network.fresh_until,
        network.valid_until,
    ) = (one, one + 60 * minute, one + 180 * minute);
    assert_eq!(client.take(renewed).expect("stored"), Ok(Heard::Newer));
    let mut bits = seeded(3);
    let moments: Vec<_> = (0..500)
        .map(|_| client.next(one, &mut |most| bits() % most) - one)
        .collect();
    let (first, last) = (moments.iter().min(), moments.iter().max());
    assert!(first >= Some(&(105 * minute)) && first < Some(&(107 * minute)));
    assert!(last <= Some(&(171 * minute)) && last > Some(&(168 * minute)));
    assert!(client.network(one + 180 * minute).is_ok());
    let over = client.network(one + 180 * minute + 1);
    assert_eq!(over, Err(Refused::Stale { ago: 1 }));
}

#[test]
fn certificates_of_strangers_are_not_asked_for() {
    let mut known = client().renewal();
    known.trust.authorities.truncate(1);
    let path = known.certificates_wanted(LIST, NOW).expect("read");
    let path = path.expect("one is missing");
    assert_eq!(path.matches('-').count(), 2, "{path}");
    assert!(path.contains(AUTHORITIES[0]), "{path}");
    known.certificates = KEYS.into();
    assert_eq!(known.certificates_wanted(LIST, NOW), Ok(None));
    // One that has expired is asked for again.
    let later = NOW + 2 * 365 * 86_400;
    assert!(
        known
            .certificates_wanted(LIST, later)
            .expect("read")
            .is_some()
    );
}
