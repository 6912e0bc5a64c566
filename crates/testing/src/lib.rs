//! What tests of several rooms share: an overlay [`Double`], [`targets`], a resolver ([`dns`]), [`namespace`]s, databases of places ([`mmdb`]),
//! [`seeded`] random numbers and one [`PATIENCE`].
//! A dev-dependency of other rooms, and of nothing else.
//!
//! # Where it may be used
//! Without features it knows the seam alone, so that unit tests of every room above `overlay` may use it. The feature `relay` adds
//! relays on loopback, paths over them and [`witness`]es before them, `http` a client of every version, for tests in `tests/`: unit tests of the rooms that these are made of would meet every type
//! of their room twice. So would those of `overlay` and the rooms below, which have no use for this one.
//!
//! # Not in this room
//! The network in memory and the suite of overlays: they are `overlay`'s own, behind its feature `testing`.

pub mod dns;
pub mod double;
#[cfg(feature = "http")]
pub mod http;
pub mod mmdb;
pub mod namespace;
#[cfg(feature = "relay")]
pub mod path;
#[cfg(feature = "relay")]
pub mod relay;
pub mod targets;
#[cfg(feature = "relay")]
pub mod witness;

use std::{future::Future, time::Duration};

pub use double::{Double, DoubleFlow};
use tokio::time::{sleep, timeout};

/// Long enough for a busy machine; nothing waits for it when all is well. It ends before a relay ends what is idle by itself (60 s),
/// so that no test passes by that.
pub const PATIENCE: Duration = Duration::from_secs(50);

/// A test fails rather than hangs.
///
/// # Panics
/// `what` takes longer than [`PATIENCE`].
#[track_caller]
pub fn soon<T>(what: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = std::panic::Location::caller();
    async move {
        let done = timeout(PATIENCE, what).await;
        done.unwrap_or_else(|_| unreachable!("it hangs at {place}"))
    }
}

/// Waits until it is so.
///
/// # Panics
/// That takes longer than [`PATIENCE`].
#[track_caller]
pub fn until(mut is_so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    soon(async move {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    })
}

/// Random numbers of 64 bits that are the same under the same seed: SplitMix64 (Steele, Lea and Flood 2014).
pub fn seeded(mut state: u64) -> impl FnMut() -> u64 + Send {
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A new identity with a certificate for `name`.
#[cfg(feature = "identity")]
pub fn identity(name: &str) -> hoplite_crypto::Identity {
    let made = hoplite_crypto::Identity::generate(&[name.to_owned()]).expect("made");
    let read = hoplite_crypto::Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes());
    read.expect("read")
}
