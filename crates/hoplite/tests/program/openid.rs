//! An issuer whose accounts are those of an identity provider, as its operator and their holders see it: a provider on loopback, with a certificate,
//! documents and keys of its own, that goes away and takes new keys.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hoplite_crypto::{ALPN_HTTP1, Certificates, Identity, server_tls};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use rustix::process::Signal;
use rustls::{ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::tokens::{Answer, Issuer, requests};

/// What is at which path.
pub(crate) type Documents = Vec<(String, Vec<u8>)>;

/// A provider: its documents by path, or nothing while it is down.
pub(crate) struct Provider {
    pub(crate) address: SocketAddr,
    pub(crate) pin: String,
    /// How often somebody came.
    pub(crate) visits: Arc<AtomicUsize>,
    certificate: String,
    served: Arc<Mutex<Option<Documents>>>,
}

struct Key {
    id: &'static str,
    pair: EcdsaKeyPair,
}

impl Key {
    fn new(id: &'static str) -> Self {
        let (random, by) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let made = EcdsaKeyPair::generate_pkcs8(by, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(by, made.as_ref(), &random).expect("a key");
        Self { id, pair }
    }

    fn jwk(&self) -> Value {
        let point = &self.pair.public_key().as_ref()[1..];
        let (x, y) = (encoded(&point[..32]), encoded(&point[32..]));
        json!({"kty": "EC", "use": "sig", "kid": self.id, "crv": "P-256", "x": x, "y": y})
    }

    fn sign(&self, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": self.id});
        let signed = format!(
            "{}.{}",
            encoded(header.to_string()),
            encoded(claims.to_string())
        );
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes());
        format!("{signed}.{}", encoded(signature.expect("signed")))
    }
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Provider {
    pub(crate) fn start() -> Self {
        let made = Identity::generate(&["127.0.0.1".to_owned()]).expect("an identity");
        let identity = Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes());
        let identity = identity.expect("an identity");
        let certificates = Certificates::new(&identity).expect("its own");
        let tls = Arc::new(server_tls(certificates, &[ALPN_HTTP1]).expect("a configuration"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let served = Arc::new(Mutex::new(None));
        let documents = Arc::clone(&served);
        let visits = Arc::new(AtomicUsize::new(0));
        let visited = Arc::clone(&visits);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let current: Option<Documents> = documents.lock().expect("held").clone();
                let connection = ServerConnection::new(Arc::clone(&tls)).expect("begins");
                // While it is down it hangs up.
                if let Some(documents) = current {
                    answer(StreamOwned::new(connection, stream), &documents);
                }
                visited.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            address,
            pin: identity.pin().to_string(),
            visits,
            certificate: made.certificate.clone(),
            served,
        }
    }

    fn name(&self) -> String {
        format!("https://{}/realm", self.address)
    }

    fn serve(&self, keys: &[&Key]) {
        let keys_uri = format!("https://{}/keys", self.address);
        let discovery = json!({"issuer": self.name(), "jwks_uri": keys_uri});
        let keys: Vec<_> = keys.iter().map(|key| key.jwk()).collect();
        let keys = json!({"keys": keys});
        self.set(Some(vec![
            (
                "/realm/.well-known/openid-configuration".into(),
                discovery.to_string().into(),
            ),
            ("/keys".into(), keys.to_string().into()),
        ]));
    }

    pub(crate) fn set(&self, documents: Option<Documents>) {
        *self.served.lock().expect("held") = documents;
    }

    fn claims(&self, name: &str) -> Value {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since.expect("after 1970").as_secs();
        json!({"iss": self.name(), "aud": ["hoplite", "mail"], "sub": name, "exp": now + 600, "groups": ["relays"]})
    }

    /// An issuer that takes its bearers.
    fn issuer(&self, more: &str) -> Issuer {
        let issuer = Issuer::prepared(&self.table(more));
        fs::write(issuer.path().join("roots.pem"), &self.certificate).expect("written");
        Issuer::of(issuer)
    }

    fn table(&self, more: &str) -> String {
        format!(
            "[oidc]\nissuer = \"{}\"\naudience = \"hoplite\"\nroots = \"roots.pem\"\nretry = 1\n\
             tokens_per_day = 3\n{more}require = {{ claim = \"groups\", value = \"relays\" }}\n",
            self.name()
        )
    }
}

fn answer(
    mut stream: StreamOwned<ServerConnection, std::net::TcpStream>,
    documents: &[(String, Vec<u8>)],
) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && head.len() < 8192 {
        match stream.read(&mut byte) {
            Ok(1) => head.extend(byte),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    // What is asked with it is read, and makes no difference.
    let length = head.split_once("content-length: ");
    let length = length.and_then(|(_, rest)| rest.split("\r\n").next()?.parse().ok());
    drop(stream.read_exact(&mut vec![0; length.unwrap_or(0)]));
    let path = head.split(' ').nth(1).unwrap_or_default();
    let found = documents.iter().find(|(of, _)| of == path);
    let (status, body) = found.map_or(("404 Not Found", &[][..]), |(_, body)| ("200 OK", body));
    let len = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    drop(stream.write_all(&[head.as_bytes(), body].concat()));
    stream.conn.send_close_notify();
    drop(stream.flush());
}

fn asked(issuer: &Issuer, bearer: &str, number: usize) -> (u16, String) {
    let (requests, _) = requests(&issuer.key(), number);
    let Answer(status, _, body) = issuer.batch(&format!("Bearer {bearer}"), &requests);
    (status, String::from_utf8_lossy(&body).into_owned())
}

const READ: &str = "the identity provider's keys were read";

#[test]
fn a_providers_bearer_has_so_many_tokens_a_day_for_whom_it_names_and_nobodys_name_is_kept() {
    let (provider, key) = (Provider::start(), Key::new("one"));
    provider.serve(&[&key]);
    let mut issuer = provider.issuer("");
    issuer.running.line_with(READ);
    let ann = key.sign(&provider.claims("ann.person"));
    assert_eq!(asked(&issuer, &ann, 2).0, 200);
    // Another bearer of the same person has no more of them.
    let mut again = provider.claims("ann.person");
    again["jti"] = json!("another");
    let again = key.sign(&again);
    assert_eq!(asked(&issuer, &again, 1).0, 200);
    assert_eq!(asked(&issuer, &again, 1).0, 429);
    assert_eq!(
        asked(&issuer, &key.sign(&provider.claims("bob.person")), 1).0,
        200
    );
    issuer.running.signal(Signal::TERM);
    issuer.running.wait_for_end();
    for file in fs::read_dir(issuer.path()).expect("a directory") {
        let path = file.expect("a file").path();
        let bytes = fs::read(&path).unwrap_or_default();
        let has = bytes.windows(6).any(|part| part == b"person");
        assert!(!has, "{}", path.display());
    }
    let log = issuer.running.rest();
    assert!(!log.contains("person") && !log.contains(&*ann), "{log}");
}

#[test]
fn a_bearer_that_is_none_of_the_providers_or_for_others_has_no_tokens_and_is_told_why() {
    let (provider, key) = (Provider::start(), Key::new("one"));
    provider.serve(&[&key]);
    let mut issuer = provider.issuer("");
    issuer.running.line_with(READ);
    let with = |name: &str, value: Value| {
        let mut claims = provider.claims("ann");
        claims[name] = value;
        claims
    };
    let one = |bearer: &str| asked(&issuer, bearer, 1);
    for (bearer, status, why) in [
        (
            key.sign(&with("aud", json!("mail"))),
            401,
            "another audience",
        ),
        (
            key.sign(&with("iss", json!("https://a.test"))),
            401,
            "another provider",
        ),
        (key.sign(&with("exp", json!(1000))), 401, "expired"),
        (
            key.sign(&with("nbf", json!(9_999_999_999u64))),
            401,
            "not valid yet",
        ),
        (
            key.sign(&with("groups", json!(["guests"]))),
            403,
            "may not have tokens",
        ),
        (
            Key::new("one").sign(&provider.claims("ann")),
            401,
            "signature is wrong",
        ),
        (
            Key::new("two").sign(&provider.claims("ann")),
            401,
            "not one of the provider's",
        ),
        ("x".repeat(100), 401, "no JSON Web Token"),
        (
            key.sign(&with("more", json!("x".repeat(8192)))),
            401,
            "no JSON Web Token",
        ),
    ] {
        let (found, told) = one(&bearer);
        assert!(
            found == status && told.contains(why),
            "{found} {told}, not {why}"
        );
    }
    let huge = key.sign(&with("more", json!("x".repeat(20_000))));
    assert_eq!(one(&huge).0, 431, "the head is too large");
    // No signature, and one by what is published.
    let parts = key.sign(&provider.claims("ann"));
    let claims = parts.split('.').nth(1).expect("claims");
    for header in [
        json!({"alg": "none"}),
        json!({"alg": "HS256", "kid": "one"}),
    ] {
        let (status, told) = one(&format!("{}.{claims}.", encoded(header.to_string())));
        assert!(status == 401 && told.contains("not signed as"), "{told}");
    }
    assert_eq!(one(&key.sign(&provider.claims("ann"))).0, 200);
}

#[test]
fn a_key_that_comes_is_taken_and_one_that_goes_is_not_and_while_the_provider_is_down_all_stays() {
    let (provider, old, new) = (Provider::start(), Key::new("old"), Key::new("new"));
    let mut issuer = provider.issuer("");
    issuer
        .running
        .line_with("the identity provider's keys that are known stay");
    let bearer = |key: &Key, name: &str| key.sign(&provider.claims(name));
    assert_eq!(
        asked(&issuer, &bearer(&old, "ann"), 1).0,
        503,
        "no keys yet"
    );
    provider.serve(&[&old]);
    issuer.running.line_with(READ);
    assert_eq!(asked(&issuer, &bearer(&old, "ann"), 1).0, 200);
    provider.set(None);
    // A key that nobody knows has the provider asked at once; it does not answer.
    assert_eq!(asked(&issuer, &bearer(&new, "ann"), 1).0, 401);
    issuer
        .running
        .line_with("the identity provider's keys that are known stay");
    assert_eq!(asked(&issuer, &bearer(&old, "bob"), 1).0, 200);
    provider.serve(&[&new]);
    issuer.running.line_with(READ);
    assert_eq!(asked(&issuer, &bearer(&new, "bob"), 1).0, 200);
    assert_eq!(asked(&issuer, &bearer(&old, "bob"), 1).0, 401);
}

#[test]
fn accounts_of_the_file_and_keys_of_a_file_stand_beside_it_and_are_read_again() {
    let (provider, key, other) = (Provider::start(), Key::new("one"), Key::new("two"));
    let both = "[[account]]\nname = \"eve\"\ntoken = \"secret of eve\"\n";
    let table = provider
        .table("")
        .replace("roots = \"roots.pem\"", "keys = \"jwks.json\"");
    let place = Issuer::prepared(&format!("{both}{table}"));
    let jwks = place.path().join("jwks.json");
    let write = |key: &Key| {
        let keys = json!({"keys": [key.jwk()]});
        fs::write(&jwks, keys.to_string()).expect("written");
    };
    write(&key);
    let mut issuer = Issuer::of(place);
    assert_eq!(asked(&issuer, "secret of eve", 1).0, 200);
    assert_eq!(asked(&issuer, &key.sign(&provider.claims("ann")), 1).0, 200);
    write(&other);
    issuer.running.signal(Signal::HUP);
    issuer.running.line_with("the accounts were read again");
    assert_eq!(asked(&issuer, &key.sign(&provider.claims("ann")), 1).0, 401);
    assert_eq!(
        asked(&issuer, &other.sign(&provider.claims("ann")), 1).0,
        200
    );
    fs::write(&jwks, "{}").expect("written");
    issuer.running.signal(Signal::HUP);
    let told = issuer.running.line_with("the file is not used");
    assert!(told.contains("jwks.json"), "{told}");
    assert_eq!(
        asked(&issuer, &other.sign(&provider.claims("ann")), 1).0,
        200
    );
}
