//! Lists that are made and signed here, a store on disk, and the paths that follow. All seeds are fixed.

use std::{collections::BTreeSet, path::Path, sync::LazyLock};

use hoplite_crypto::SigningKey;
use hoplite_directory::{
    Client, Guard, Heard, Store, path_selection::OverlayKind, sign_descriptor,
};
use hoplite_testing::{Double, seeded};
use hoplite_wire::{
    Protocols,
    directory::{List, Roles, Signature, SignedDescriptor, SignedList, Stage},
};
use zeroize::Zeroizing;

use super::*;
use crate::{
    config::client::Directory,
    directory::now,
    listed::{Known, Needs},
};

const STRANGER: u8 = 99;
/// When all relays here published: one time, so that a list that is made again is the same.
static PUBLISHED: LazyLock<u64> = LazyLock::new(now);

fn key(n: u8) -> SigningKey {
    SigningKey::from_seed(Zeroizing::new([n; 32])).expect("a key")
}

/// Relay `n` in a /16 of its own; the ports that it connects to, if it is an exit.
fn relay(n: u8, exit: Option<&str>) -> SignedDescriptor {
    let descriptor = Descriptor {
        name: format!("relay{n}"),
        identity: Key(key(n).public()),
        published: *PUBLISHED,
        addresses: vec![([10, n, 0, 1], 443).into()],
        pin: None,
        onion: Some([n; 32]),
        roles: Roles {
            ingress: true,
            egress: exit.is_some(),
        },
        region: None,
        operator: None,
        family: Vec::new(),
        bandwidth: 1_000_000,
        exit: exit.and_then(|ports| ports.parse().ok()),
        tokens: None,
        hsdir: false,
        cache: None,
        protocols: Protocols::NONE,
    };
    sign_descriptor(descriptor, &key(n)).expect("signed")
}

/// A list from `start` for three hours, signed by one.
fn list(start: u64, mut relays: Vec<SignedDescriptor>, authority: u8) -> String {
    relays.sort_by_key(|relay| relay.descriptor.identity);
    let list = List {
        stage: Stage::List,
        valid_after: start,
        fresh_until: start + 3600,
        valid_until: start + 3 * 3600,
        params: [].into(),
        shared_random: Default::default(),
        relays,
        opinions: [].into(),
    };
    let key = key(authority);
    let signature = Signature(key.sign(list.text().as_bytes()));
    let signatures = [(Key(key.public()), signature)].into_iter().collect();
    SignedList { list, signatures }.to_string()
}

/// Six relays, four of them exits: two to the web alone.
fn relays() -> Vec<SignedDescriptor> {
    let exits = [
        None,
        None,
        Some("80,443"),
        Some("80,443"),
        Some("1-65535"),
        Some("1-65535"),
    ];
    (1..).zip(exits).map(|(n, exit)| relay(n, exit)).collect()
}

fn file() -> Directory {
    let authority = format!("{}@127.0.0.1:9", Key(key(50).public()));
    let text = format!("authorities = [{authority:?}]\nthreshold = 1\n");
    toml::from_str(&text).expect("a table")
}

/// What a client with this cache knows, after it has heard `text`.
fn listed(cache: &Path, text: Option<&str>) -> Listed {
    let store = Store::open(cache).expect("opened");
    let mut known = Client::new(file().trust(), store).expect("read");
    if let Some(text) = text {
        known.heard(text, now()).expect("stored").expect("believed");
    }
    let needs = Needs {
        hops: 3,
        overlay: OverlayKind::Onion,
        explicit: Vec::new(),
        issuers: BTreeSet::new(),
        bearer: false,
    };
    Listed::new(file(), needs, Known::List(known)).expect("read")
}

fn random(seed: u64) -> Random {
    let mut bits = seeded(seed);
    Box::new(move |below| bits() % below)
}

fn paths(listed: &Listed, seed: u64) -> FromList {
    FromList::with(listed, &[], random(seed))
}

fn ask(ports: &[u16], required: bool) -> path::CircuitUsage {
    path::CircuitUsage {
        ports: ports.to_vec(),
        required,
        ..path::CircuitUsage::default()
    }
}

async fn chosen(paths: &FromList, usage: &path::CircuitUsage) -> Vec<Relay> {
    paths.path(usage).await.expect("a path")
}

#[tokio::test(start_paused = true)]
async fn a_path_has_three_relays_a_guard_that_stays_and_an_exit_for_the_port() {
    let directory = tempfile::tempdir().expect("directory");
    let cache = directory.path().join("cache");
    let listed_now = listed(&cache, Some(&list(now() - 60, relays(), 50)));
    let from = paths(&listed_now, 1);
    let first = chosen(&from, &ask(&[443], true)).await;
    from.tried(&first, Ok(()));
    let guard = first[0].keys.ed25519;
    let mut exits = std::collections::HashSet::new();
    for _ in 0..200 {
        let path = chosen(&from, &ask(&[25], true)).await;
        assert_eq!(path[0].keys.ed25519, guard);
        let ids: std::collections::HashSet<_> = path.iter().map(|r| r.keys.ed25519).collect();
        assert_eq!(ids.len(), 3);
        assert!(path[2].permits(25));
        exits.insert(path[2].keys.ed25519);
    }
    let possible = if path_has_exit_guard(&first) { 1 } else { 2 };
    assert_eq!(exits.len(), possible);
    drop((from, listed_now));
    // After a restart it is the same guard, whatever chance says.
    let again = listed(&cache, None);
    for seed in 2..12 {
        let path = chosen(&paths(&again, seed), &ask(&[443], true)).await;
        assert_eq!(path[0].keys.ed25519, guard);
    }
}

/// Whether the guard is one of the exits to everywhere, which then is no exit of its own paths.
fn path_has_exit_guard(path: &[Relay]) -> bool {
    path[0].permits(25) && path[0].exit.is_some()
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_cannot_be_dialled_is_left_for_another_and_one_behind_it_avoided_for_a_minute()
{
    let directory = tempfile::tempdir().expect("directory");
    let listed = listed(
        &directory.path().join("cache"),
        Some(&list(now() - 60, relays(), 50)),
    );
    let from = paths(&listed, 1);
    let first = chosen(&from, &ask(&[], false)).await;
    let failed = |hop| {
        Err(Failed {
            hop,
            refused: false,
        })
    };
    from.tried(&first, failed(1));
    let middle = first[1].keys.ed25519;
    for _ in 0..50 {
        let path = chosen(&from, &ask(&[], false)).await;
        assert!(path.iter().all(|relay| relay.keys.ed25519 != middle));
        assert_eq!(path[0].keys.ed25519, first[0].keys.ed25519);
    }
    tokio::time::advance(hoplite_directory::AVOIDED).await;
    let mut met = false;
    for _ in 0..50 {
        let path = chosen(&from, &ask(&[], false)).await;
        met |= path.iter().any(|relay| relay.keys.ed25519 == middle);
    }
    assert!(met, "it is used again");
    from.tried(&first, failed(0));
    let guard = first[0].keys.ed25519;
    for _ in 0..50 {
        let path = chosen(&from, &ask(&[], false)).await;
        assert!(path.iter().all(|relay| relay.keys.ed25519 != guard));
    }
}

/// Which relays stand next to the first one, and which is that, in the circuits of a service to each of these.
async fn met(from: &FromList, named: &[Relay]) -> (BTreeSet<[u8; 32]>, BTreeSet<[u8; 32]>) {
    let (mut next, mut first) = (BTreeSet::new(), BTreeSet::new());
    for relay in named {
        let end = ServiceEnd::Given(relay);
        let path = from.service_path(ServicePurpose::ServiceRendezvous, end);
        let path = path.await.expect("a path");
        assert_eq!((path.len(), path.last()), (4, Some(relay)));
        let ids: Vec<_> = path.iter().map(|relay| relay.keys.ed25519).collect();
        first.insert(ids[0]);
        let beside = ids.windows(2).filter(|two| two[0] == ids[0]);
        next.extend(beside.map(|two| two[1]));
    }
    (first, next)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_names_two_hundred_rendezvous_points_finds_four_relays_next_to_the_guard_also_after_a_restart()
 {
    let directory = tempfile::tempdir().expect("directory");
    let cache = directory.path().join("cache");
    let relays: Vec<_> = (1..=60).map(|n| relay(n, Some("1-65535"))).collect();
    let text = list(now() - 60, relays, 50);
    let listed_now = listed(&cache, Some(&text));
    let network = listed_now.current().expect("a list");
    let known = |n: u8| relay_of_list(&network, &relay(n, None).descriptor);
    // All that the list has, the guard among them, and relays that it has not.
    let named = (1..=200).map(|n| known(n).expect("has an onion key"));
    let named: Vec<_> = named.collect();
    let (guards, next) = met(&paths(&listed_now, 1), &named).await;
    assert_eq!(guards.len(), 1);
    // Four, or three if the guard itself is one of them.
    assert!((3..=4).contains(&next.len()), "{}", next.len());
    drop(listed_now);
    let again = listed(&cache, None);
    assert_eq!(met(&paths(&again, 2), &named).await, (guards, next));
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_lets_no_circuit_but_those_of_its_friends_come_about_is_left_for_another() {
    let directory = tempfile::tempdir().expect("directory");
    let cache = directory.path().join("cache");
    let relays = (1..=40).map(|n| relay(n, Some("1-65535"))).collect();
    let listed_now = listed(&cache, Some(&list(now() - 60, relays, 50)));
    let from = paths(&listed_now, 1);
    let hostile = chosen(&from, &ask(&[], false)).await[0].keys.ed25519;
    let mut circuits = 0;
    let other = loop {
        let path = chosen(&from, &ask(&[], false)).await;
        if path[0].keys.ed25519 != hostile {
            break path[0].keys.ed25519;
        }
        let is_friend = path[2].keys.ed25519[0] < 25;
        let fate = if is_friend {
            CircuitFate::Built
        } else {
            CircuitFate::NotBuilt
        };
        from.fares(&path, fate);
        circuits += 1;
        assert!(circuits <= 60, "noticed by then");
    };
    drop((from, listed_now));
    let again = listed(&cache, None);
    let path = chosen(&paths(&again, 2), &ask(&[], false)).await;
    assert_eq!(path[0].keys.ed25519, other);
}

#[tokio::test(start_paused = true)]
async fn without_a_guard_that_goes_with_the_rest_there_is_no_path_by_any_other_entry() {
    let directory = tempfile::tempdir().expect("directory");
    let cache = directory.path().join("cache");
    let listed = listed(&cache, Some(&list(now() - 60, relays(), 50)));
    // Twenty guards are as many as are ever kept; none of these is on the list now.
    let away = |n: u8| Guard {
        identity: Key([n; 32]),
        rsa_id: None,
        chosen: now(),
        confirmed: None,
        unlisted: None,
        bias: hoplite_directory::PathBias::default(),
    };
    listed.keep_only((100..120).map(away).collect());
    let from = paths(&listed, 1);
    for _ in 0..20 {
        let error = from.path(&ask(&[443], true)).await.expect_err("no guard");
        assert!(error.to_string().contains("guard"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_port_that_no_exit_serves_is_refused_to_a_stream_and_left_out_ahead() {
    let directory = tempfile::tempdir().expect("directory");
    let web = vec![relay(1, None), relay(2, None), relay(3, Some("80,443"))];
    let listed = listed(
        &directory.path().join("cache"),
        Some(&list(now() - 60, web, 50)),
    );
    let from = paths(&listed, 1);
    let error = from.path(&ask(&[25], true)).await.expect_err("nobody");
    assert_eq!(error.kind(), ErrorKind::Forbidden);
    assert_eq!(error.reason(), Some(Reason::Policy));
    assert!(error.to_string().contains("last relay"), "{error}");
    let ahead = chosen(&from, &ask(&[80, 25], false)).await;
    assert_eq!(ahead[2].keys.ed25519, key(3).public());
    chosen(&from, &ask(&[25], false)).await;
}

#[tokio::test(start_paused = true)]
async fn an_explicit_path_is_taken_as_it_is_and_one_that_is_wrong_said_at_once() {
    let directory = tempfile::tempdir().expect("directory");
    let listed = listed(
        &directory.path().join("cache"),
        Some(&list(now() - 60, relays(), 50)),
    );
    let named = |names: &[&str]| {
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>()
    };
    let identity = Key(key(1).public()).to_string();
    let given = named(&["relay6", &identity, "relay3"]);
    let from = FromList::new(&listed, &given).expect("possible");
    let path = chosen(&from, &ask(&[25], true)).await;
    let relays: Vec<_> = path.iter().map(|relay| relay.keys.ed25519).collect();
    assert_eq!(relays, [6, 1, 3].map(|n| key(n).public()));
    assert!(
        path.iter().all(|relay| relay.name.is_empty()),
        "errors name nobody"
    );
    let error = FromList::new(&listed, &named(&["relay6", "relay1"])).expect_err("no exit");
    assert!(format!("{error:?}").contains("explicit path"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn no_circuit_is_built_by_a_list_that_is_stale() {
    let directory = tempfile::tempdir().expect("directory");
    let cache = directory.path().join("cache");
    let old = list(now() - 4 * 3600, relays(), 50);
    Store::open(&cache)
        .expect("made")
        .keep_list(&old)
        .expect("kept");
    let from = paths(&listed(&cache, None), 1);
    let error = from.path(&ask(&[443], true)).await.expect_err("stale");
    assert!(
        error.to_string().contains("stale: it could be used until"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn lists_that_are_forged_rolled_back_or_split_leave_the_last_good_one_in_use() {
    let directory = tempfile::tempdir().expect("directory");
    let start = now() - 60;
    let listed = listed(
        &directory.path().join("cache"),
        Some(&list(start, relays(), 50)),
    );
    let from = paths(&listed, 1);
    let forged = listed.hear(&list(start + 1, relays(), STRANGER));
    assert!(
        matches!(forged, Err(Refused::Forged { good: 0, needed: 1 })),
        "{forged:?}"
    );
    let older = listed.hear(&list(start - 1, relays(), 50));
    assert_eq!(older, Err(Refused::RolledBack { by: 1 }));
    assert_eq!(listed.hear(&list(start, relays(), 50)), Ok(Heard::Same));
    chosen(&from, &ask(&[443], true)).await;
    let other = listed.hear(&list(start, vec![relay(7, Some("80"))], 50));
    assert_eq!(other, Err(Refused::Split));
    // There was none before it.
    assert_eq!(listed.split_until(), Some(0));
    let error = from.path(&ask(&[443], true)).await.expect_err("split");
    assert!(error.to_string().contains("two different lists"), "{error}");
    // The next list ends it.
    assert_eq!(
        listed.hear(&list(start + 2, relays(), 50)),
        Ok(Heard::Newer)
    );
    chosen(&from, &ask(&[443], true)).await;
    assert_eq!(listed.split_until(), None);
    // Two for the time after that: the one before serves on.
    let one = listed.hear(&list(start + 3, vec![relay(7, Some("80"))], 50));
    assert_eq!(one, Ok(Heard::Newer));
    from.path(&ask(&[443], true))
        .await
        .expect_err("only port 80");
    let other = listed.hear(&list(start + 3, vec![relay(8, Some("80"))], 50));
    assert_eq!(other, Err(Refused::Split));
    assert_eq!(listed.split_until(), Some(start + 2 + 3 * 3600));
    chosen(&from, &ask(&[443], true)).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_onion_key_of_a_relay_comes_with_the_next_list() {
    let directory = tempfile::tempdir().expect("directory");
    let start = now() - 60;
    let listed = listed(
        &directory.path().join("cache"),
        Some(&list(start, relays(), 50)),
    );
    let from = paths(&listed, 1);
    let before = chosen(&from, &ask(&[443], true)).await;
    let mut rotated = relays();
    for relay in &mut rotated {
        let n = relay.descriptor.addresses[0].to_string();
        let n: u8 = n
            .split('.')
            .nth(1)
            .expect("four")
            .parse()
            .expect("a number");
        let descriptor = Descriptor {
            onion: Some([n + 100; 32]),
            ..relay.descriptor.clone()
        };
        *relay = sign_descriptor(descriptor, &key(n)).expect("signed");
    }
    assert_eq!(listed.hear(&list(start + 1, rotated, 50)), Ok(Heard::Newer));
    let after = chosen(&from, &ask(&[443], true)).await;
    assert_eq!(
        after[0].keys.ed25519, before[0].keys.ed25519,
        "the same guard"
    );
    assert_eq!(after[0].keys.onion[0], before[0].keys.onion[0] + 100);
}

/// Counts who asks, and refuses.
fn nobody() -> Arc<Double> {
    let refusal = Error::new(ErrorKind::EntryUnreachable, "asking nobody");
    Arc::new(Double::failing(refusal))
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_is_refused_has_the_authorities_asked_again_and_once_a_minute_at_most() {
    let directory = tempfile::tempdir().expect("directory");
    let listed = listed(
        &directory.path().join("cache"),
        Some(&list(now() - 60, relays(), 50)),
    );
    let from = paths(&listed, 1);
    let (through, beside) = (nobody(), nobody());
    from.keep(through.clone(), beside.clone());
    sleep(Duration::from_secs(1800)).await;
    assert_eq!(through.asked(), 0, "the list is fresh");
    let path = chosen(&from, &ask(&[443], true)).await;
    for _ in 0..10 {
        from.tried(
            &path,
            Err(Failed {
                hop: 2,
                refused: true,
            }),
        );
    }
    sleep(Duration::from_secs(30)).await;
    let asked = (through.asked(), beside.asked());
    assert_eq!(asked, (1, 1), "through the circuits, then beside them");
}

/// Else an authority could tell him whose circuits he is the last relay of.
#[tokio::test(start_paused = true)]
async fn who_keeps_back_what_is_asked_of_authorities_does_not_have_them_asked_beside_him_at_once() {
    let directory = tempfile::tempdir().expect("directory");
    let listed = listed(
        &directory.path().join("cache"),
        Some(&list(now() - 60, relays(), 50)),
    );
    let refusal = Error::new(ErrorKind::TargetFailed, "asking an authority");
    let (through, beside) = (Arc::new(Double::failing(refusal)), nobody());
    let (keeper, over, under) = (listed.clone(), through.clone(), beside.clone());
    let keeping = tokio::spawn(async move { keeper.keep(over, under, |_| ()).await });
    sleep(Duration::from_secs(120)).await;
    listed.hurry();
    sleep(Duration::from_secs(120)).await;
    assert_eq!((through.asked(), beside.asked()), (1, 0));
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_list_from_which_no_path_can_be_made_is_renewed_soon_and_ever_more_rarely_in_vain() {
    let directory = tempfile::tempdir().expect("directory");
    let cache = |name| directory.path().join(name);
    let ingresses = (1..=6).map(|n| relay(n, None)).collect();
    let lists = [
        ("of use", list(now() - 60, relays(), 50)),
        ("one role", list(now() - 60, ingresses, 50)),
    ];
    let mut asked = Vec::new();
    for (name, text) in lists {
        let listed = listed(&cache(name), Some(&text));
        let (through, beside) = (nobody(), nobody());
        let over = through.clone();
        let keeping = tokio::spawn(async move { listed.keep(over, beside, |_| ()).await });
        let after = |minutes: u64| {
            let through = Arc::clone(&through);
            async move {
                sleep(Duration::from_secs(60 * minutes)).await;
                through.asked()
            }
        };
        asked.push((after(2).await, after(24 * 60).await));
        keeping.abort();
    }
    assert_eq!(asked[0], (0, 0), "it is fresh");
    // Pauses of 1, 2, 4, … 64 minutes, or up to twice as long.
    let (soon, within_a_day) = asked[1];
    assert!(soon == 1 && (12..=28).contains(&within_a_day), "{asked:?}");
}
