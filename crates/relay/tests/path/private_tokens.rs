//! Private tokens as a client spends them: a fresh one for each connection to each relay, none twice, and none thrown after one that was refused.

use std::{
    collections::HashSet,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use hoplite_masque::{Config, Hop, Path, Paths, Relay, TokenSource};
use hoplite_overlay::{
    Batch, Error, ErrorKind, Isolation, Opening, Overlay, Reason, Terms, direct::Direct,
};
use hoplite_relay::{Handle, config::PrivateTokens};
use hoplite_testing::{
    Double,
    path::{direct, known},
    relay::relay,
    targets,
};
use hoplite_tokens::{ChallengeDigests, IssuerKey, KeyDirectory, ListedKey};
use hoplite_wire::privacy_pass::{PrivateToken, TokenType};
use parking_lot::Mutex;
use tempfile::TempDir;

const ISSUER: &str = "issuer.test";

/// Tokens for one relay, and which of them were taken.
#[derive(Debug)]
struct Purse {
    left: Mutex<Vec<PrivateToken>>,
    shown: Mutex<Vec<PrivateToken>>,
}

impl TokenSource for Purse {
    fn take(&self, _: &Isolation) -> Opening<'_, PrivateToken> {
        let taken = self.left.lock().pop();
        let none = || Error::new(ErrorKind::Forbidden, "taking a token: they have run out");
        let taken = taken.ok_or_else(|| none().because(Reason::Authentication));
        self.shown.lock().extend(taken.iter().cloned());
        Box::pin(async move { taken })
    }
}

/// Two relays, each with what it takes and has seen spent.
struct Scene {
    _place: TempDir,
    relays: Vec<Handle>,
    purses: Vec<Arc<Purse>>,
    hops: Vec<Relay>,
    path: Path,
}

impl Scene {
    /// With so many tokens for each, of a key that the relays know or of one that they do not.
    fn new(tokens: usize, is_known: bool) -> Self {
        Self::over(&direct(), Config::default(), tokens, is_known)
    }

    /// The same, where the client reaches them through `below`.
    fn over(below: &Arc<dyn Overlay>, config: Config, tokens: usize, is_known: bool) -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let generate = || IssuerKey::generate(TokenType::BlindRsa).expect("a key");
        let [key, other] = [generate(), generate()];
        let listed = ListedKey {
            key: key.public().clone(),
            not_before: 0,
        };
        let directory = KeyDirectory {
            request_uri: "/".into(),
            keys: vec![listed],
        };
        let keys = place.path().join("keys.json");
        std::fs::write(&keys, directory.to_json()).expect("written");
        let names = ["r0.test", "r1.test"];
        let wants = |name: &&str| {
            let private = PrivateTokens {
                issuer: ISSUER.into(),
                origin: (*name).into(),
                keys: Some(keys.clone()),
                secrets: None,
                directory: None,
                pin: None,
                refresh: Duration::from_secs(86_400),
                spent: Some(place.path().join(format!("{name}.sqlite"))),
                store: None,
                deadline: Duration::from_secs(30),
                queue: 1024,
                again: Duration::ZERO,
                unchecked: 0,
            };
            relay(|config| config.auth.private_tokens = Some(private))
        };
        let relays: Vec<_> = names.iter().map(wants).collect();
        let key = if is_known { key } else { other };
        let purse = |name: &&str| {
            Arc::new(Purse {
                left: Mutex::new((0..tokens).map(|_| token(&key, name)).collect()),
                shown: Mutex::default(),
            })
        };
        let purses: Vec<_> = names.iter().map(purse).collect();
        let hops = relays.iter().zip(&purses).zip(names);
        let hops = hops.map(|((relay, purse), name)| {
            let mut hop = known(name, relay);
            hop.tokens = Some(Arc::clone(purse) as _);
            hop
        });
        let hops: Vec<_> = hops.collect();
        let config = Config {
            spare: false,
            ..config
        };
        let path = Path::new(hops.clone(), below, &Arc::new(config)).expect("a path");
        Self {
            _place: place,
            relays,
            purses,
            hops,
            path,
        }
    }

    async fn open(&self, user: &str) -> Result<impl Sized, Error> {
        let target = targets::tcp_echo().await.into();
        let terms = Terms {
            isolation: Isolation::new(user.into()),
            ..Terms::default()
        };
        hoplite_testing::soon(self.path.open_stream(&target, &terms)).await
    }

    fn shown(&self, relay: usize) -> usize {
        self.purses[relay].shown.lock().len()
    }
}

fn token(key: &IssuerKey, origin: &str) -> PrivateToken {
    let digests = ChallengeDigests::ahead(ISSUER, origin).expect("names");
    let asked = key.public().request(digests.of(TokenType::BlindRsa));
    let (request, pending) = asked.expect("a request");
    let answer = key.issue(&request.blinded).expect("an answer");
    pending.finish(&answer).expect("a token")
}

#[tokio::test]
async fn each_connection_to_each_relay_costs_a_token_of_its_own_and_flows_cost_none() {
    let scene = Scene::new(8, true);
    for _ in 0..5 {
        scene.open("").await.map(drop).expect("opened");
    }
    assert_eq!([scene.shown(0), scene.shown(1)], [1, 1]);
    for user in ["ann", "bob"] {
        for _ in 0..3 {
            scene.open(user).await.map(drop).expect("opened");
        }
    }
    // The first relay sees the client's address anyway: all share a connection to it.
    assert_eq!([scene.shown(0), scene.shown(1)], [1, 3]);
    let shown = scene
        .purses
        .iter()
        .flat_map(|purse| purse.shown.lock().clone());
    let nonces: HashSet<_> = shown.map(|token| *token.nonce()).collect();
    assert_eq!(nonces.len(), 4, "none twice");
}

#[tokio::test]
async fn a_client_whose_tokens_have_run_out_says_so_and_goes_on_where_it_is_connected() {
    let scene = Scene::new(2, true);
    for user in ["", "ann"] {
        scene.open(user).await.map(drop).expect("opened");
    }
    let refused = scene.open("bob").await.map(drop).expect_err("no token");
    assert_eq!(refused.reason(), Some(Reason::Authentication));
    assert!(refused.to_string().contains("run out"), "{refused}");
    scene.open("ann").await.map(drop).expect("opened");
}

#[tokio::test]
async fn tokens_are_not_thrown_after_one_that_was_refused() {
    let scene = Scene::new(20, false);
    for _ in 0..10 {
        let refused = scene.open("").await.map(drop).expect_err("another key's");
        assert_eq!(refused.reason(), Some(Reason::Authentication), "{refused}");
    }
    assert!(scene.shown(0) <= 2, "{}", scene.shown(0));
    assert_eq!(scene.shown(1), 0);
    drop(scene.relays);
}

/// Of a relay that has refused too many.
#[derive(Debug)]
struct GivenUp;

impl TokenSource for GivenUp {
    fn take(&self, _: &Isolation) -> Opening<'_, PrivateToken> {
        let none = Error::new(ErrorKind::Forbidden, "taking a token: it is shown none");
        Box::pin(async move { Err(none.because(Reason::Authentication)) })
    }

    fn is_given_up(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_relay_that_is_shown_no_tokens_costs_those_before_it_none_where_there_is_no_other() {
    let scene = Scene::new(20, true);
    let mut hops = scene.hops.clone();
    hops[1].tokens = Some(Arc::new(GivenUp));
    let choose = Box::new(|_: &[usize], _| Some(vec![0, 1]));
    let paths = Paths::new(hops, direct(), &Arc::new(Config::default()), choose);
    let paths = paths.expect("a path");
    let before = paths.current();
    let target = targets::tcp_echo().await.into();
    for _ in 0..5 {
        let terms = Terms::default();
        let opening = paths.open_stream(&target, &terms);
        let refused = hoplite_testing::soon(opening).await.map(drop);
        let why = refused.expect_err("none is shown").reason();
        assert_eq!(why, Some(Reason::Authentication));
    }
    assert!(paths.current().is_same(&before));
    assert_eq!(scene.shown(0), 1);
}

#[tokio::test]
async fn a_token_that_is_refused_is_noticed_where_flows_are_opened_early_too() {
    let target = targets::tcp_echo().await.into();
    let terms = Terms::default().early(true);
    let scene = Scene::new(8, false);
    let opening = scene.path.open_stream(&target, &terms);
    let refused = hoplite_testing::soon(opening).await.map(drop);
    let why = refused.expect_err("of no key that is known").reason();
    assert_eq!(why, Some(Reason::Authentication));
    let scene = Scene::new(8, true);
    for _ in 0..3 {
        let opening = scene.path.open_stream(&target, &terms);
        hoplite_testing::soon(opening).await.expect("opened");
    }
    assert_eq!([scene.shown(0), scene.shown(1)], [1, 1]);
}

/// Lets QUIC's handshakes pass, which have long headers, and nothing of what follows.
fn swallowing() -> Arc<dyn Overlay> {
    let is_handshake = |packet: &[u8]| packet.first().is_some_and(|first| first & 0x80 != 0);
    let overlay = Double::over(Direct::new()).flows(move |flow| {
        flow.sends(move |below, cx, batch| {
            for packet in batch.payloads().filter(|packet| is_handshake(packet)) {
                ready!(below.poll_send(cx, Batch::one(packet)))?;
            }
            Poll::Ready(Ok(()))
        })
        .receives(move |below, cx, buf| {
            loop {
                let received = ready!(below.poll_recv(cx, buf))?;
                if is_handshake(buf) {
                    return Poll::Ready(Ok(received));
                }
            }
        })
    });
    Arc::new(overlay)
}

#[tokio::test]
async fn a_network_that_swallows_all_but_handshakes_does_not_empty_the_purse() {
    let mut config = Config::default();
    config.link.suspect_after = Duration::from_millis(200);
    config.link.broken_after = Duration::from_secs(1);
    // Streams are not swallowed.
    config.link.head_start = Duration::from_secs(600);
    config.open_limit = Duration::from_secs(2);
    // Whoever waits for this waits for longer than the test takes.
    config.redial_pause = Duration::from_secs(3600);
    let scene = Scene::over(&swallowing(), config, 20, true);
    let announces = || {
        // Whoever sends router advertisements there.
        let hops = scene.path.hops();
        (0..20).for_each(|_| hops.iter().for_each(Hop::network_changed));
    };
    for _ in 0..4 {
        announces();
        let failed = scene.open("").await.map(drop);
        failed.expect_err("nothing is answered");
    }
    // One, one at once when that has shown itself to be of no use, and none before the pause is over.
    assert_eq!(scene.shown(0), 2);
}
