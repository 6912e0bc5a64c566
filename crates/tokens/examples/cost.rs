//! What tokens cost: `cargo run --release -p hoplite-tokens --example cost -- [SPENT]`. One thread unless it says otherwise; SPENT tokens (default
//! 1,000,000) are marked in a file under the directory for temporary files before looking up is timed. `--example cost -- file SPENT` has the file
//! alone, `--example cost -- URL` marks with a server: those marks stay there.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it prints what it measures, and whatever fails ends it"
)]

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use hoplite_tokens::{IssuerKey, KeyDirectory, SpentOptions, SpentServer, SpentTokens};
use hoplite_wire::privacy_pass::{Authenticator, PrivateToken, TokenInput, TokenType};
use tokio::task::JoinSet;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

const TIME: Duration = Duration::from_secs(3);

/// Runs `work` for a while; microseconds for each time.
fn time(mut work: impl FnMut()) -> f64 {
    let (began, mut times) = (Instant::now(), 0u32);
    while began.elapsed() < TIME {
        work();
        times += 1;
    }
    began.elapsed().as_secs_f64() * 1e6 / f64::from(times)
}

fn main() {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    match &*words {
        [] => keys(),
        [file, spent] if file == "file" => return runtime.block_on(store(spent.parse().unwrap())),
        [url] if url.contains("://") => return runtime.block_on(server(url)),
        _ => keys(),
    }
    let spent = words.first();
    runtime.block_on(store(spent.map_or(1_000_000, |text| text.parse().unwrap())));
}

fn keys() {
    TokenType::ALL.into_iter().for_each(keys_of);
}

fn keys_of(token_type: TokenType) {
    println!("type {}", token_type.number());
    let key = Arc::new(IssuerKey::generate(token_type).unwrap());
    let (request, pending) = key.public().request(&[1; 32]).unwrap();
    let answer = key.issue(&request.blinded).unwrap();
    let token = pending.finish(&answer).unwrap();
    println!(
        "blind       {:8.1} us",
        time(|| drop(key.public().request(&[1; 32]).unwrap()))
    );
    println!(
        "issue       {:8.1} us",
        time(|| std::hint::black_box(key.issue(&request.blinded))
            .map(drop)
            .unwrap())
    );
    println!(
        "verify      {:8.1} us",
        time(|| assert!(key.verifies(&token)))
    );
    println!(
        "all of it   {:8.1} us, without verifying",
        time(|| {
            let (request, pending) = key.public().request(&[1; 32]).unwrap();
            let answer = key.issue(&request.blinded).unwrap();
            drop(pending.finish(&answer).unwrap());
        })
    );
    let threads = thread::available_parallelism().unwrap().get();
    let signing = || {
        let (key, request) = (Arc::clone(&key), request.clone());
        thread::spawn(move || {
            1e6 / time(|| {
                std::hint::black_box(key.issue(&request.blinded))
                    .map(drop)
                    .unwrap()
            })
        })
    };
    let signers: Vec<_> = (0..threads).map(|_| signing()).collect();
    let rate: f64 = signers
        .into_iter()
        .map(|signer| signer.join().unwrap())
        .sum();
    println!("issue       {rate:8.0} a second on {threads} threads");
}

/// Whatever else the machine does meanwhile.
fn patient() -> SpentOptions {
    SpentOptions {
        deadline: Duration::from_secs(60),
        ..SpentOptions::default()
    }
}

async fn store(spent: u64) {
    let place = std::env::temp_dir().join(format!("hoplite-spent-{}", std::process::id()));
    let store = SpentTokens::open(&place, &[[7; 32]], 0, patient()).unwrap();
    at_once(&store, 0..spent).await;
    let bytes = std::fs::metadata(&place).unwrap().len();
    println!("file        {:8} MB", bytes >> 20);
    one_by_one(&store, "mark", spent.., true).await;
    // Far apart, as tokens come.
    let known = (0..).map(|number| number * 2_654_435_761 % spent);
    one_by_one(&store, "look up", known, false).await;
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", place.display())).ok();
    }
}

async fn server(url: &str) {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(RootCertStore::empty());
    let tls = Arc::new(builder.with_no_client_auth());
    let keys = KeyDirectory {
        request_uri: "/".into(),
        keys: Vec::new(),
    };
    let server = SpentServer::new(url, &tls).unwrap();
    let store = SpentTokens::share(server, &keys, 2, patient());
    // Another run's are others.
    let start = u64::from(std::process::id()) << 32;
    one_by_one(&store, "mark", start.., true).await;
    let known = start..start + 1000;
    one_by_one(&store, "look up", known.cycle(), false).await;
    at_once(&store, start + (1 << 31)..start + (1 << 31) + 100_000).await;
}

async fn at_once(store: &SpentTokens, numbers: std::ops::Range<u64>) {
    let (began, marks) = (Instant::now(), numbers.end - numbers.start);
    let mut running = JoinSet::new();
    for number in numbers {
        let store = store.clone();
        running.spawn(async move { store.spend(&token(number)).await.unwrap().unwrap() });
        while running.len() > 512 {
            running.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(marked) = running.join_next().await {
        marked.unwrap();
    }
    let each = began.elapsed().as_secs_f64() * 1e6 / u32::try_from(marks).map(f64::from).unwrap();
    println!("mark        {each:8.1} us each, {marks} of them by 512 at once");
}

async fn one_by_one(
    store: &SpentTokens,
    what: &str,
    numbers: impl Iterator<Item = u64>,
    is_fresh: bool,
) {
    let (began, mut times) = (Instant::now(), Vec::new());
    for number in numbers {
        let token = token(number);
        let asked = Instant::now();
        assert_eq!(store.spend(&token).await.unwrap().is_ok(), is_fresh);
        times.push(asked.elapsed());
        if began.elapsed() > TIME {
            break;
        }
    }
    times.sort_unstable();
    let [median, p99] =
        [50, 99].map(|percent| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6);
    println!(
        "{what:11} {median:8.1} us median, {p99:.1} us p99, {} one after the other",
        times.len()
    );
}

/// The nonces of honest clients are random: so are these.
fn token(number: u64) -> PrivateToken {
    let mut nonce = [0; 32];
    for (part, bytes) in (0u64..).zip(nonce.chunks_mut(8)) {
        let mut mixed = number
            .wrapping_add(part << 56)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bytes.copy_from_slice(&(mixed ^ (mixed >> 29)).to_be_bytes());
    }
    let input = TokenInput {
        nonce,
        challenge_digest: [1; 32],
        key_id: [7; 32],
    };
    PrivateToken::new(input, Authenticator::BlindRsa([0; 256]))
}
