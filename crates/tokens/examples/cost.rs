//! What tokens cost: `cargo run --release -p hoplite-tokens --example cost -- [SPENT]`. One thread unless it says otherwise; SPENT tokens (default
//! 1,000,000) are marked in a file under the directory for temporary files before looking up is timed.
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

use hoplite_tokens::{IssuerKey, SpentOptions, SpentTokens};
use hoplite_wire::privacy_pass::{PrivateToken, SIGNATURE_LEN};
use tokio::task::JoinSet;

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
    let spent = std::env::args()
        .nth(1)
        .map_or(1_000_000, |text| text.parse().unwrap());
    let key = Arc::new(IssuerKey::generate().unwrap());
    let (request, pending) = key.public().request(&[1; 32]).unwrap();
    let answer = key.sign(&request.blinded).unwrap();
    let token = pending.finish(&answer).unwrap();
    println!(
        "blind       {:8.1} us",
        time(|| drop(key.public().request(&[1; 32]).unwrap()))
    );
    println!(
        "sign        {:8.1} us",
        time(|| std::hint::black_box(key.sign(&request.blinded))
            .map(drop)
            .unwrap())
    );
    println!(
        "verify      {:8.1} us",
        time(|| assert!(key.public().verifies(&token)))
    );
    let threads = thread::available_parallelism().unwrap().get();
    let signing = || {
        let (key, request) = (Arc::clone(&key), request.clone());
        thread::spawn(move || {
            1e6 / time(|| {
                std::hint::black_box(key.sign(&request.blinded))
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
    println!("sign        {rate:8.0} a second on {threads} threads");
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    runtime.block_on(store(spent));
}

async fn store(spent: u64) {
    let place = std::env::temp_dir().join(format!("hoplite-spent-{}", std::process::id()));
    let store = SpentTokens::open(&place, &[[7; 32]], 0, SpentOptions::default()).unwrap();
    let began = Instant::now();
    let mut running = JoinSet::new();
    for number in 0..spent {
        let store = store.clone();
        running.spawn(async move { store.spend(&token(number)).await.unwrap().unwrap() });
        while running.len() > 512 {
            running.join_next().await.unwrap().unwrap();
        }
    }
    while running.join_next().await.is_some() {}
    let each = began.elapsed().as_secs_f64() * 1e6 / u32::try_from(spent).map(f64::from).unwrap();
    println!("mark        {each:8.1} us each, {spent} of them by 512 at once");
    let bytes = std::fs::metadata(&place).unwrap().len();
    println!("file        {:8} MB", bytes >> 20);
    let (began, mut number) = (Instant::now(), 0);
    while began.elapsed() < TIME {
        // Far apart, as tokens come.
        let known = token(number * 2_654_435_761 % spent);
        store.spend(&known).await.unwrap().unwrap_err();
        number += 1;
    }
    let each = TIME.as_secs_f64() * 1e6 / u32::try_from(number).map(f64::from).unwrap();
    println!("look up     {each:8.1} us, one after the other, with the way to the writer's thread");
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", place.display())).ok();
    }
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
    PrivateToken::new(
        &PrivateToken::signed_part(&nonce, &[1; 32], &[7; 32]),
        &[0; SIGNATURE_LEN],
    )
}
