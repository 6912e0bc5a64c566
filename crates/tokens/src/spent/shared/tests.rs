//! A shared store seen from a relay: a server that is honest, slow, gone, or out of its mind.

use std::{collections::HashSet, net::SocketAddr, sync::atomic::AtomicU8};

use hoplite_wire::privacy_pass::{Authenticator, PrivateToken, TokenInput, TokenType};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::{super::testing::token, *};
use crate::{AlreadySpent, IssuerKey, ListedKey, SpentOptions, SpentTokens};

const PATIENCE: Duration = Duration::from_secs(30);

/// What a server does with a mark.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
enum Manner {
    Honest,
    /// Keeps it, and closes without a word.
    Loses,
    /// Keeps it, and says nothing.
    Silent,
    Refuses,
    /// Says what it was made to say.
    Mad,
}

/// A server of Redis's protocol, as far as it is asked.
struct Redis {
    address: SocketAddr,
    inside: Arc<Inside>,
}

struct Inside {
    manner: AtomicU8,
    says: Vec<u8>,
    config: &'static str,
    marks: Mutex<HashSet<Vec<u8>>>,
    /// The names of all marks that were asked for.
    asked: Mutex<Vec<Vec<u8>>>,
}

impl Redis {
    async fn start(manner: Manner) -> Self {
        Self::with(manner, b"", "-NOPERM no\r\n").await
    }

    async fn with(manner: Manner, says: &[u8], config: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let inside = Arc::new(Inside {
            manner: AtomicU8::new(manner as u8),
            says: says.to_vec(),
            config,
            marks: Mutex::default(),
            asked: Mutex::default(),
        });
        let shared = Arc::clone(&inside);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&shared).serve(stream));
            }
        });
        Self { address, inside }
    }

    fn is(&self, manner: Manner) {
        self.inside.manner.store(manner as u8, Ordering::Relaxed);
    }

    fn asked(&self) -> usize {
        self.inside.asked.lock().len()
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

impl Inside {
    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let mut read = Vec::new();
        loop {
            while let Some((words, length)) = command(&read) {
                read.drain(..length);
                let Some(answer) = self.answer(&words) else {
                    return;
                };
                if stream.write_all(&answer).await.is_err() {
                    return;
                }
            }
            match stream.read_buf(&mut read).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    fn answer(&self, words: &[Vec<u8>]) -> Option<Vec<u8>> {
        match words[0].as_slice() {
            b"PING" => return Some(b"+PONG\r\n".to_vec()),
            b"CONFIG" => return Some(self.config.into()),
            b"SET" => {}
            _ => return Some(b"-ERR unknown\r\n".to_vec()),
        }
        let name = words[1].clone();
        self.asked.lock().push(name.clone());
        let manner = self.manner.load(Ordering::Relaxed);
        if manner == Manner::Refuses as u8 {
            return Some(b"-OOM command not allowed, secret\r\n".to_vec());
        } else if manner == Manner::Mad as u8 {
            return Some(self.says.clone());
        }
        let is_conditional = words.iter().any(|word| word == b"NX");
        let fresh = self.marks.lock().insert(name) || !is_conditional;
        if manner == Manner::Loses as u8 {
            return None;
        } else if manner == Manner::Silent as u8 {
            return Some(Vec::new());
        }
        Some(if fresh {
            b"+OK\r\n".to_vec()
        } else {
            b"$-1\r\n".to_vec()
        })
    }
}

/// The words of a command that has come whole, and its length.
fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let line = |from: usize| {
        let rest = bytes.get(from..)?;
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let number = std::str::from_utf8(&rest[1..end])
            .expect("text")
            .parse::<usize>();
        Some((number.expect("a number"), from + end + 2))
    };
    let (count, mut at) = line(0)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, from) = line(at)?;
        words.push(bytes.get(from..from + length)?.to_vec());
        at = from + length + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}

fn tls() -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = builder.with_root_certificates(RootCertStore::empty());
    Arc::new(builder.with_no_client_auth())
}

fn no_keys() -> KeyDirectory {
    KeyDirectory {
        request_uri: "/".into(),
        keys: Vec::new(),
    }
}

fn store(url: &str, deadline: Duration, queue: usize) -> SpentTokens {
    let server = SpentServer::new(url, &tls()).expect("a server");
    let options = SpentOptions {
        deadline,
        queue,
        ..SpentOptions::default()
    };
    SpentTokens::share(server, &no_keys(), 2, options)
}

fn patient(url: &str) -> SpentTokens {
    store(url, PATIENCE, 1024)
}

/// Spends fresh tokens until the store knows again.
async fn until_known(store: &SpentTokens) {
    for number in 1_000.. {
        match store.spend(&token(number, 1)).await {
            Ok(fresh) => return assert_eq!(fresh, Ok(())),
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test]
async fn of_many_who_spend_one_token_at_two_relays_at_once_one_is_admitted() {
    let redis = Redis::start(Manner::Honest).await;
    let relays = [patient(&redis.url()), patient(&redis.url())];
    for number in 0..20 {
        let mut asking = JoinSet::new();
        for n in 0..50 {
            let relay = relays[n % 2].clone();
            asking.spawn(async move { relay.spend(&token(number, 1)).await.expect("known") });
        }
        let answers = asking.join_all().await;
        assert_eq!(answers.into_iter().filter(Result::is_ok).count(), 1);
    }
    assert_eq!(redis.asked(), 1000, "one request for each");
}

#[tokio::test]
async fn a_token_whose_answer_is_lost_is_not_asked_for_again_and_was_spent() {
    let redis = Redis::start(Manner::Loses).await;
    let store = patient(&redis.url());
    let lost = store.spend(&token(1, 1)).await;
    assert!(matches!(lost, Err(SpentError::Server(_))), "{lost:?}");
    redis.is(Manner::Honest);
    until_known(&store).await;
    let name = redis.inside.asked.lock()[0].clone();
    let asked = redis
        .inside
        .asked
        .lock()
        .iter()
        .filter(|other| **other == name)
        .count();
    assert_eq!(asked, 1);
    assert_eq!(
        store.spend(&token(1, 1)).await.expect("known"),
        Err(AlreadySpent)
    );
}

#[tokio::test]
async fn a_silent_server_keeps_nobody_beyond_the_deadline_nor_more_than_the_queue() {
    let redis = Redis::start(Manner::Silent).await;
    let store = store(&redis.url(), Duration::from_millis(300), 2);
    let tokens = [token(1, 1), token(2, 1), token(3, 1)];
    let (first, second, third) = tokio::join!(
        store.spend(&tokens[0]),
        store.spend(&tokens[1]),
        store.spend(&tokens[2])
    );
    assert!(matches!(first, Err(SpentError::Late)), "{first:?}");
    assert!(matches!(second, Err(SpentError::Late)), "{second:?}");
    assert!(matches!(third, Err(SpentError::Full)), "{third:?}");
    redis.is(Manner::Honest);
    until_known(&store).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_at_once_and_found_when_it_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let options = SpentOptions {
        deadline: PATIENCE,
        told: Arc::new(move |answers| telling.lock().push(answers.is_ok())),
        ..SpentOptions::default()
    };
    let server = SpentServer::new(&format!("redis://{address}"), &tls()).expect("a server");
    let store = SpentTokens::share(server, &no_keys(), 2, options);
    for number in 0..50 {
        let refused = store
            .spend(&token(number, 1))
            .await
            .expect_err("nobody is there");
        let expected = ServerError::Io(std::io::ErrorKind::ConnectionRefused);
        assert!(
            matches!(&refused, SpentError::Server(why) if *why == expected),
            "{refused}"
        );
    }
    assert_eq!(*told.lock(), [false], "once for the outage");
    let inside = Arc::new(Inside {
        manner: AtomicU8::new(Manner::Honest as u8),
        says: Vec::new(),
        config: "-NOPERM no\r\n",
        marks: Mutex::default(),
        asked: Mutex::default(),
    });
    let listener = TcpListener::bind(address).await.expect("the port");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&inside).serve(stream));
        }
    });
    until_known(&store).await;
}

#[tokio::test]
async fn nonsense_for_an_answer_is_no_admission_and_the_next_token_is_asked_for_anew() {
    let deep = b"*1\r\n".repeat(5000);
    let long = [b"$500000000\r\n".as_slice(), &[b'x'; 8 << 20]].concat();
    let cases: [&[u8]; 12] = [
        b"+FINE\r\n",
        b":1\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"$-2\r\n",
        b"$99999999999999999999\r\n",
        b"*2147483647\r\n",
        b"\xff\xfe\x00\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-\r\n",
        &deep,
        &long,
    ];
    for says in cases {
        let redis = Redis::with(Manner::Mad, says, "-NOPERM no\r\n").await;
        let store = store(&redis.url(), Duration::from_millis(500), 8);
        for number in 0..3 {
            // A null array is what some servers say for nothing.
            let told = store.spend(&token(number, 1)).await;
            assert!(!matches!(told, Ok(Ok(()))), "{says:?}: {told:?}");
        }
        redis.is(Manner::Honest);
        until_known(&store).await;
    }
}

#[tokio::test]
async fn a_server_that_refuses_is_named_by_its_code_alone() {
    let redis = Redis::start(Manner::Refuses).await;
    let error = patient(&redis.url())
        .spend(&token(1, 1))
        .await
        .expect_err("refused");
    assert_eq!(error.to_string(), "the store of spent tokens refuses: OOM");
    assert_eq!(error.cause(), "server");
}

#[tokio::test]
async fn a_server_that_forgets_when_its_memory_is_full_is_not_used() {
    let config = |limit, policy| {
        let text = format!(
            "*4\r\n$9\r\nmaxmemory\r\n${}\r\n{limit}\r\n$16\r\nmaxmemory-policy\r\n${}\r\n{policy}\r\n",
            str::len(limit),
            str::len(policy)
        );
        &*Box::leak(text.into_boxed_str())
    };
    for (config, used) in [
        (config("1000000", "allkeys-lru"), false),
        (config("1000000", "volatile-ttl"), false),
        (config("1000000", "noeviction"), true),
        (config("0", "allkeys-lru"), true),
    ] {
        let redis = Redis::with(Manner::Honest, b"", config).await;
        let told = patient(&redis.url()).spend(&token(1, 1)).await;
        match told {
            Ok(fresh) => assert!(used && fresh.is_ok(), "{config}"),
            Err(error) => assert!(!used && error.to_string().contains("noeviction"), "{error}"),
        }
    }
}

/// Whatever is there, it is not PostgreSQL.
#[tokio::test]
async fn what_answers_a_login_with_nonsense_admits_nobody_and_breaks_nothing() {
    let cases: [&[u8]; 9] = [
        b"",
        b"S",
        b"R\0\0\0\x08\0\0\0\0",
        b"R\x7f\xff\xff\xff\0\0\0\0",
        b"R\0\0\0\0",
        b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05IZ\0\0\0\x05IZ\0\0\0\x05I",
        b"R\0\0\0\x0c\0\0\0\x05abcd",
        b"E\0\0\0\x10SFATAL\0Cxx\0\0",
        b"-ERR wrong protocol\r\n",
    ];
    for says in cases {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    stream.write_all(says).await.ok();
                    let mut rest = Vec::new();
                    stream.read_to_end(&mut rest).await.ok();
                });
            }
        });
        for mode in ["disable", "require"] {
            let url = format!("postgres://user:secret@{address}/db?sslmode={mode}");
            let store = store(&url, Duration::from_millis(200), 8);
            let told = store.spend(&token(1, 1)).await.expect_err("nobody knows");
            let told = format!("{told} {told:?} {store:?}");
            assert!(!told.contains("secret"), "{told}");
        }
    }
}

#[test]
fn a_url_is_read_and_never_shown() {
    let fine = [
        "postgres://hoplite:secret@db.example.org/tokens",
        "postgresql://hoplite:secret@127.0.0.1:5433/tokens?sslmode=require",
        "postgres://hoplite:secret@db.example.org/tokens?sslmode=verify-full",
        "postgres://hoplite@/tokens?host=/run/postgresql",
        "redis://:secret@127.0.0.1/2",
        "valkey://user:secret@db.example.org:6380",
        "rediss://user:secret@db.example.org",
        "redis+unix:///run/redis.sock?pass=secret",
    ];
    for url in fine {
        let server = SpentServer::new(url, &tls()).expect(url);
        assert_eq!(format!("{server:?}"), "SpentServer(hidden)");
    }
    let wrong = [
        "",
        "secret",
        "mysql://user:secret@host/db",
        "postgres://user:secret@host/db?sslmode=prefer",
        "postgres://user:secret@host/db?sslmode=secret",
        "postgres://user:secret@host:port/db",
        "postgres://user:secret@one,two/db",
        "postgres:///db?password=secret",
        "postgres://user:secret@host/db?secret=secret",
        "postgres://user:secret@/db?host=/run&sslmode=require",
        "redis://user:secret@host:port",
        "redis://user:secret@host/db",
        "rediss+unix:///secret",
    ];
    for url in wrong {
        let error = SpentServer::new(url, &tls()).expect_err(url);
        let told = format!("{error} {error:?}");
        assert!(!told.contains("secret"), "{told}");
    }
}

#[test]
fn marks_of_a_key_end_a_month_after_its_tokens_as_the_next_keys_begin() {
    let directory = |starts: &[u64]| {
        let listed = |start: &u64| ListedKey {
            key: IssuerKey::generate(TokenType::Voprf)
                .expect("a key")
                .public()
                .clone(),
            not_before: *start,
        };
        KeyDirectory {
            request_uri: "/".into(),
            keys: starts.iter().map(listed).collect(),
        }
    };
    let told = |starts: &[u64]| {
        let mut ends: Vec<_> = ends(&directory(starts))
            .into_iter()
            .map(|(_, end)| end)
            .collect();
        ends.sort_unstable();
        ends
    };
    assert_eq!(told(&[300, 100, 200]), [300, 400, 500]);
    assert_eq!(told(&[0, 1000, 1100]), [1200, 1300, 2000]);
    assert_eq!(told(&[u64::MAX, 0]), [u64::MAX, u64::MAX]);
    assert_eq!(told(&[100]), [0u64; 0], "nobody knows");
    assert_eq!(told(&[]), [0u64; 0]);
}

#[tokio::test]
async fn a_token_whose_mark_may_be_forgotten_is_spent_without_a_question() {
    let redis = Redis::start(Manner::Honest).await;
    let keys = [0, 1000].map(|not_before| ListedKey {
        key: IssuerKey::generate(TokenType::Voprf)
            .expect("a key")
            .public()
            .clone(),
        not_before,
    });
    let id = *keys[0].key.id();
    let keys = KeyDirectory {
        request_uri: "/".into(),
        keys: keys.to_vec(),
    };
    let server = SpentServer::new(&redis.url(), &tls()).expect("a server");
    let store = SpentTokens::share(server, &keys, 1, SpentOptions::default());
    let input = TokenInput {
        nonce: [1; 32],
        challenge_digest: [0; 32],
        key_id: id,
    };
    let old = PrivateToken::new(input, Authenticator::Voprf([0; 48]));
    assert_eq!(store.spend(&old).await.expect("known"), Err(AlreadySpent));
    assert_eq!(redis.asked(), 0);
}
