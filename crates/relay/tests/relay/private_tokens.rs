//! Tokens that nobody can link, over the wire: what admits, what is refused, and what a restart, a rotation or a broken disk changes.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use hoplite_relay::{
    Handle,
    config::{PrivateTokens, SpentStore},
};
use hoplite_testing::{
    relay::{number, relay},
    targets,
};
use hoplite_tokens::{
    ChallengeDigests, IssuerKey, KeyDirectory, ListedKey, SpentOptions, SpentTokens, VerifierKeys,
};
use hoplite_wire::privacy_pass::{PrivateToken, TokenType, challenges};
use tempfile::TempDir;

use crate::support::{connect, tcp, udp};

const ISSUER: &str = "issuer.test";
const FLEET: &str = "relays.test";

/// An issuer, and where relays find its keys and what is spent.
struct Scene {
    place: TempDir,
    key: Arc<IssuerKey>,
}

fn generate(token_type: TokenType) -> Arc<IssuerKey> {
    Arc::new(IssuerKey::generate(token_type).expect("a key"))
}

impl Scene {
    fn new() -> Self {
        Self::of(TokenType::BlindRsa)
    }

    /// With tokens of this type.
    fn of(token_type: TokenType) -> Self {
        let scene = Self {
            place: tempfile::tempdir().expect("a directory"),
            key: generate(token_type),
        };
        scene.publish(&[&scene.key]);
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// To everybody, and with the secrets to its own relays.
    fn publish(&self, keys: &[&Arc<IssuerKey>]) {
        let listed = |key: &&Arc<IssuerKey>| ListedKey {
            key: key.public().clone(),
            not_before: 0,
        };
        let directory = KeyDirectory {
            request_uri: "/token-request".into(),
            keys: keys.iter().map(listed).collect(),
        };
        fs::write(self.path("keys.json"), directory.to_json()).expect("written");
        let secrets = keys.iter().map(|key| Arc::clone(key)).collect();
        let secrets = VerifierKeys::new(directory, secrets).expect("all of them");
        fs::write(self.path("secrets.json"), secrets.to_json()).expect("written");
        self.open_secrets(0o600);
    }

    fn open_secrets(&self, mode: u32) {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.path("secrets.json"), permissions).expect("set");
    }

    fn config(&self) -> PrivateTokens {
        let is_public = self.key.public().token_type() == TokenType::BlindRsa;
        PrivateTokens {
            issuer: ISSUER.into(),
            origin: FLEET.into(),
            keys: is_public.then(|| self.path("keys.json")),
            secrets: (!is_public).then(|| self.path("secrets.json")),
            directory: None,
            pin: None,
            refresh: Duration::from_secs(86_400),
            spent: Some(self.path("spent.sqlite")),
            store: None,
            deadline: Duration::from_secs(30),
            queue: 1024,
            again: Duration::ZERO,
            unchecked: 0,
        }
    }

    fn relay(&self, change: impl Fn(&mut PrivateTokens)) -> Handle {
        let mut private = self.config();
        change(&mut private);
        relay(|config| config.auth.private_tokens = Some(private))
    }

    fn token(&self) -> PrivateToken {
        token(&self.key, ISSUER, FLEET)
    }
}

fn token(key: &IssuerKey, issuer: &str, origin: &str) -> PrivateToken {
    let digests = ChallengeDigests::ahead(issuer, origin).expect("names");
    let digest = digests.of(key.public().token_type());
    let (request, pending) = key.public().request(digest).expect("a request");
    let answer = key.issue(&request.blinded).expect("an answer");
    pending.finish(&answer).expect("a token")
}

fn refusals(relay: &Handle, cause: &str) -> u64 {
    number(
        relay,
        &format!("hoplite_relay_token_refusals_total{{cause=\"{cause}\"}}"),
    )
}

#[tokio::test]
async fn a_fresh_token_admits_one_connection_and_all_that_is_asked_on_it() {
    for token_type in TokenType::ALL {
        let scene = Scene::of(token_type);
        let relay = scene.relay(|_| ());
        let (stream, datagrams) = (targets::tcp_echo().await, targets::udp_echo().await);
        let field = scene.token().to_field();
        let first = connect(&relay).await;
        assert_eq!(first.status(tcp(stream)).await, 407, "no token");
        // Several at once, of which the first spends it.
        let asked = (0..8).map(|_| first.status(tcp(stream).with("proxy-authorization", &*field)));
        for status in futures_util::future::join_all(asked).await {
            assert_eq!(status, 200);
        }
        assert_eq!(
            first.status(udp(datagrams)).await,
            200,
            "the connection was let in"
        );
        let second = connect(&relay).await;
        let again = second.status(tcp(stream).with("proxy-authorization", &*field));
        assert_eq!(again.await, 407);
        assert_eq!(refusals(&relay, "spent"), 1);
        let fresh = scene.token().to_field();
        assert_eq!(
            second
                .status(udp(datagrams).with("authorization", fresh))
                .await,
            200
        );
    }
}

#[tokio::test]
async fn a_client_without_a_token_is_told_for_what_and_by_whom_one_is_made() {
    for token_type in TokenType::ALL {
        let scene = Scene::of(token_type);
        let relay = scene.relay(|_| ());
        let client = connect(&relay).await;
        let (_, refused) = client.ask(tcp(targets::tcp_echo().await)).await;
        let told = refused.header("proxy-authenticate").expect("a challenge");
        let found = challenges(told);
        let [(challenge, key)] = found.as_slice() else {
            panic!("{told:?}")
        };
        assert_eq!(challenge.token_type, token_type);
        assert_eq!(
            (challenge.issuer.as_str(), challenge.origin_info.as_str()),
            (ISSUER, FLEET)
        );
        assert_eq!(key, scene.key.public().token_key());
    }
}

#[tokio::test]
async fn what_is_forged_or_for_others_admits_nobody() {
    for token_type in TokenType::ALL {
        let scene = Scene::of(token_type);
        let relay = scene.relay(|_| ());
        let target = targets::tcp_echo().await;
        let other = generate(token_type);
        let mut forged = scene.token().encode();
        forged[140] ^= 1;
        let cases = [
            (PrivateToken::decode(&forged).expect("a token"), "forged"),
            (token(&other, ISSUER, FLEET), "unknown_key"),
            (token(&scene.key, "other.test", FLEET), "other_challenge"),
            (token(&scene.key, ISSUER, "other.test"), "other_challenge"),
        ];
        for (number, (token, cause)) in (1..).zip(cases) {
            let client = connect(&relay).await;
            let asked = tcp(target).with("proxy-authorization", token.to_field());
            assert_eq!(client.status(asked).await, 407);
            let before = u64::from(number == 4);
            assert_eq!(refusals(&relay, cause), 1 + before);
        }
        let client = connect(&relay).await;
        for rubbish in [
            "PrivateToken",
            "PrivateToken token=\"AAAA\"",
            "PrivateToken token=\"!\"",
        ] {
            let asked = tcp(target).with("proxy-authorization", rubbish);
            assert_eq!(client.status(asked).await, 407);
        }
    }
}

#[tokio::test]
async fn a_connection_that_shows_one_wrong_token_after_the_other_has_no_more_of_them_verified() {
    for (token_type, verified) in [(TokenType::Voprf, 2), (TokenType::BlindRsa, 8)] {
        let scene = Scene::of(token_type);
        let relay = scene.relay(|_| ());
        let target = targets::tcp_echo().await;
        let mut forged = scene.token().encode();
        forged[140] ^= 1;
        let forged = PrivateToken::decode(&forged).expect("a token").to_field();
        let client = connect(&relay).await;
        for _ in 0..20 {
            let asked = tcp(target).with("proxy-authorization", &*forged);
            assert_eq!(client.status(asked).await, 407);
        }
        assert_eq!(refusals(&relay, "forged"), verified);
        assert_eq!(refusals(&relay, "too_many"), 20 - verified);
    }
}

#[tokio::test]
async fn of_two_relays_of_a_fleet_and_after_a_restart_a_token_is_spent_once() {
    for token_type in TokenType::ALL {
        let scene = Scene::of(token_type);
        let target = targets::tcp_echo().await;
        let relays = [scene.relay(|_| ()), scene.relay(|_| ())];
        for _ in 0..5 {
            let field = scene.token().to_field();
            let clients = [connect(&relays[0]).await, connect(&relays[1]).await];
            let asked = clients
                .iter()
                .map(|client| client.status(tcp(target).with("proxy-authorization", &*field)));
            let mut answers = futures_util::future::join_all(asked).await;
            answers.sort_unstable();
            assert_eq!(answers, [200, 407]);
        }
        let field = scene.token().to_field();
        let asked = || tcp(target).with("proxy-authorization", &*field);
        assert_eq!(connect(&relays[0]).await.status(asked()).await, 200);
        drop(relays);
        let restarted = scene.relay(|_| ());
        assert_eq!(connect(&restarted).await.status(asked()).await, 407);
    }
}

#[tokio::test]
async fn a_reload_takes_the_issuers_next_key_and_tokens_of_one_that_is_gone_no_more() {
    for token_type in TokenType::ALL {
        let scene = Scene::of(token_type);
        let relay = scene.relay(|_| ());
        let target = targets::tcp_echo().await;
        let next = generate(token_type);
        let client = connect(&relay).await;
        let held = scene.token().to_field();
        assert_eq!(
            client
                .status(tcp(target).with("proxy-authorization", held))
                .await,
            200
        );
        scene.publish(&[&next]);
        let auth = hoplite_relay::config::Auth {
            private_tokens: Some(scene.config()),
            ..Default::default()
        };
        relay.reload(&auth, None).expect("reloaded");
        let old = tcp(target).with("proxy-authorization", scene.token().to_field());
        assert_eq!(connect(&relay).await.status(old).await, 407);
        let new = tcp(target).with(
            "proxy-authorization",
            token(&next, ISSUER, FLEET).to_field(),
        );
        assert_eq!(connect(&relay).await.status(new).await, 200);
        assert_eq!(
            client.status(tcp(target)).await,
            200,
            "who was let in stays so"
        );
        let file = scene.config();
        let file = file.keys.or(file.secrets).expect("one of them");
        fs::write(&file, "{}").expect("written");
        let wrong = relay.reload(&auth, None).expect_err("no directory of keys");
        assert!(
            wrong.to_string().contains(&*file.to_string_lossy()),
            "{wrong}"
        );
    }
}

/// Why a relay with these keys and secrets does not take them over.
fn refused(relay: &Handle, private: PrivateTokens) -> String {
    let auth = hoplite_relay::config::Auth {
        private_tokens: Some(private),
        ..Default::default()
    };
    relay.reload(&auth, None).expect_err("refused").to_string()
}

#[tokio::test]
async fn a_relay_takes_no_key_of_type_1_of_which_it_has_no_secret_and_says_what_to_do() {
    let scene = Scene::of(TokenType::Voprf);
    let relay = scene.relay(|_| ());
    let public = PrivateTokens {
        keys: Some(scene.path("keys.json")),
        secrets: None,
        ..scene.config()
    };
    let told = refused(&relay, public);
    for part in [
        "auth.private_tokens.keys",
        "keys.json",
        "number 1",
        "as `secrets` instead",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // The directory in place of what the issuer writes.
    let directory = fs::read(scene.path("keys.json")).expect("a file");
    let secrets = fs::read_to_string(scene.path("secrets.json")).expect("a file");
    fs::write(scene.path("secrets.json"), directory).expect("written");
    let told = refused(&relay, scene.config());
    for part in [
        "auth.private_tokens.secrets",
        "secrets.json",
        "not its directory",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // Another key's secret; and what everybody may read.
    let (_, rest) = secrets.split_once("secret-key\": \"").expect("there");
    let (secret, _) = rest.split_once('"').expect("there");
    let other = secrets.replace(secret, "AAAA");
    fs::write(scene.path("secrets.json"), other).expect("written");
    let told = refused(&relay, scene.config());
    assert!(
        told.contains("is not that key's") && !told.contains(secret),
        "{told}"
    );
    fs::write(scene.path("secrets.json"), &secrets).expect("written");
    for mode in [0o604, 0o644] {
        scene.open_secrets(mode);
        let told = refused(&relay, scene.config());
        assert!(told.contains("everybody on this machine"), "{told}");
    }
    scene.open_secrets(0o640);
    let auth = hoplite_relay::config::Auth {
        private_tokens: Some(scene.config()),
        ..Default::default()
    };
    relay.reload(&auth, None).expect("its group may");
    let asked =
        tcp(targets::tcp_echo().await).with("proxy-authorization", scene.token().to_field());
    assert_eq!(connect(&relay).await.status(asked).await, 200);
}

#[tokio::test]
async fn while_an_issuer_changes_the_type_of_its_tokens_those_of_both_are_taken() {
    let scene = Scene::of(TokenType::Voprf);
    let old = generate(TokenType::BlindRsa);
    scene.publish(&[&scene.key, &old]);
    let relay = scene.relay(|_| ());
    let target = targets::tcp_echo().await;
    for key in [&scene.key, &old] {
        let field = token(key, ISSUER, FLEET).to_field();
        let asked = || tcp(target).with("proxy-authorization", &*field);
        assert_eq!(connect(&relay).await.status(asked()).await, 200);
        assert_eq!(connect(&relay).await.status(asked()).await, 407, "spent");
    }
}

#[tokio::test]
async fn a_program_that_cannot_take_a_fresh_token_shows_one_as_a_password_for_a_while() {
    let scene = Scene::new();
    let relay = scene.relay(|private| private.again = Duration::from_secs(3600));
    let target = targets::tcp_echo().await;
    let text = format!("anybody:{}", scene.token().to_text());
    let field = format!("Basic {}", base64(&text));
    for _ in 0..3 {
        let asked = tcp(target).with("proxy-authorization", &*field);
        assert_eq!(connect(&relay).await.status(asked).await, 200);
    }
    // Spent at another relay it is spent.
    let other = scene.relay(|_| ());
    let asked = tcp(target).with("proxy-authorization", field);
    assert_eq!(connect(&other).await.status(asked).await, 407);
}

/// RFC 4648 §4.
fn base64(text: &str) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(text)
}

#[tokio::test]
async fn while_nobody_can_tell_what_is_spent_nobody_or_a_few_are_let_in() {
    for (unchecked, status) in [(0, 500), (1000, 200)] {
        let scene = Scene::new();
        let relay = scene.relay(|private| private.unchecked = unchecked);
        let target = targets::tcp_echo().await;
        let broken = rusqlite::Connection::open(scene.path("spent.sqlite")).expect("a file");
        broken.execute_batch("DROP TABLE spent").expect("gone");
        let asked = tcp(target).with("proxy-authorization", scene.token().to_field());
        let up = |relay| number(relay, "hoplite_relay_spent_store_up");
        assert_eq!(up(&relay), 1);
        assert_eq!(connect(&relay).await.status(asked).await, status);
        assert_eq!(up(&relay), 0);
        let count = |name: &str| number(&relay, &format!("hoplite_relay_{name}"));
        assert_eq!(
            (
                count("spent_store_failures_total{cause=\"file\"}"),
                count("tokens_unchecked_total"),
            ),
            (1, u64::from(status == 200))
        );
    }
}

#[tokio::test]
async fn a_relay_whose_shared_store_is_not_there_starts_and_lets_nobody_or_a_few_in() {
    for (unchecked, status) in [(0, 500), (1000, 200)] {
        let scene = Scene::new();
        let relay = scene.relay(|private| {
            private.unchecked = unchecked;
            private.spent = None;
            private.store = Some(SpentStore {
                url: Some("redis+unix:///nowhere?pass=secret".to_owned().into()),
                ..SpentStore::default()
            });
        });
        let asked =
            tcp(targets::tcp_echo().await).with("proxy-authorization", scene.token().to_field());
        assert_eq!(connect(&relay).await.status(asked).await, status);
        let failed = "hoplite_relay_spent_store_failures_total{cause=\"server\"}";
        assert_eq!(number(&relay, failed), 1);
    }
}

#[tokio::test]
async fn what_is_spent_elsewhere_on_the_host_is_spent_here() {
    let scene = Scene::new();
    let relay = scene.relay(|_| ());
    let token = scene.token();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since.expect("after 1970").as_secs();
    let other = SpentTokens::open(
        &scene.path("spent.sqlite"),
        &[],
        now,
        SpentOptions::default(),
    )
    .expect("opens");
    assert_eq!(other.spend(&token).await.expect("kept"), Ok(()));
    let asked = tcp(targets::tcp_echo().await).with("proxy-authorization", token.to_field());
    assert_eq!(connect(&relay).await.status(asked).await, 407);
}
