//! The authority's clock: it votes when it is time, and asks the other authorities for what is missing, each in a task of its own: who does not
//! answer holds nobody up.

use std::time::Duration;

use futures_util::future::join_all;
use hoplite_directory::{
    Source,
    authority::{Event, Heard, Want, Wanted},
    fetch,
};
use hoplite_overlay::Direct;
use hoplite_wire::directory::Key;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use super::{Shared, moment, now};
use crate::config::directory::Config;

/// The longest pause: a clock that was set is noticed within it.
const PAUSE: Duration = Duration::from_secs(30);
/// The shortest.
const LEAST: Duration = Duration::from_millis(50);

/// Another authority, and how patiently it is asked.
struct Other {
    overlay: Direct,
    source: Source,
    patience: Duration,
    pause: Duration,
}

/// Votes until dropped.
pub(super) async fn run(shared: Shared, config: &Config, own: Key) {
    let slices = u32::try_from(config.trust().threshold.saturating_add(1)).unwrap_or(u32::MAX);
    // Within a slice everybody is to be asked a few times, and a vote to arrive: docs/directory.md, "How authorities agree".
    let slice = config.voting / slices;
    let sources = config.authorities.iter().map(|authority| &authority.0);
    let talking = sources.filter(|source| source.key != own).map(|source| {
        let other = Other {
            overlay: Direct::new(),
            source: source.clone(),
            patience: (slice * 2 / 3).clamp(Duration::from_millis(250), Duration::from_secs(60)),
            pause: (slice / 6).clamp(LEAST, Duration::from_secs(10)),
        };
        talk(shared.clone(), other)
    });
    let talking: Vec<_> = talking.collect();
    tokio::join!(keep_time(&shared), join_all(talking));
}

async fn keep_time(shared: &Shared) {
    loop {
        step(shared);
        tokio::time::sleep(until_next(shared)).await;
    }
}

async fn talk(shared: Shared, other: Other) {
    loop {
        step(&shared);
        let mut wants = shared.lock().authority.wants(moment());
        wants.retain(|want| want.from == other.source.key);
        match wants.is_empty() {
            true => tokio::time::sleep(until_next(&shared)).await,
            false => {
                for want in wants {
                    ask(&shared, &other, want).await;
                }
                tokio::time::sleep(other.pause).await;
            }
        }
    }
}

fn until_next(shared: &Shared) -> Duration {
    let now = moment();
    let next = shared.lock().authority.next(now);
    next.saturating_sub(now).clamp(LEAST, PAUSE)
}

fn step(shared: &Shared) {
    let mut state = shared.lock();
    let gone = state.authority.forget(now());
    if !gone.is_empty()
        && let Err(error) = state.store.forget_descriptors(&gone)
    {
        warn!("old descriptors cannot be removed from the store: {error}");
    }
    let events = state.authority.tick(moment());
    drop(state);
    tell(shared, &events);
}

async fn ask(shared: &Shared, other: &Other, want: Want) {
    // What is small is asked for again soon.
    let patience = match want.what {
        Wanted::Commitments => other.patience / 2,
        Wanted::Vote | Wanted::Signatures => other.patience,
    };
    let (most, address) = (want.what.most(), &other.source.address);
    let answer = fetch(&other.overlay, address, &want.path, most, patience).await;
    // Who is not there, or has none yet, is asked again.
    let Ok(text) = answer else { return };
    let heard = shared.lock().authority.heard(&want, text, moment());
    let heard = match heard {
        Ok(Heard::Done(events)) => Ok(events),
        Ok(Heard::Check(events, unchecked)) => {
            tell(shared, &events);
            // The only thread has others to answer meanwhile.
            let Ok(checked) = spawn_blocking(|| unchecked.check()).await else {
                return;
            };
            shared.lock().authority.checked(checked, moment())
        }
        Err(refused) => Err(refused),
    };
    match heard {
        Ok(events) => tell(shared, &events),
        Err(refused) => warn!("an authority's vote or list does not count: {refused}"),
    }
}

fn tell(shared: &Shared, events: &[Event]) {
    for event in events {
        match event {
            Event::Voted(relays) => info!(relays, "voted"),
            Event::Signed { votes, relays } => info!(votes, relays, "a list is signed"),
            Event::Published(signatures) => {
                info!(signatures, "a list is published");
                keep(shared);
            }
            Event::Failed { signatures, others } => warn!(
                signatures,
                others,
                "there is no new list: too few authorities signed the same; check that they run, have the same `authorities`, `interval` and `voting`, and right clocks"
            ),
            Event::TooFew { votes, needed } => warn!(
                votes,
                needed,
                "too few votes for a list: check that the other authorities run, are reached, and have right clocks"
            ),
            Event::TwoFaced(authority) => warn!(
                authority,
                "this authority, as `authorities` numbers them, has signed two different votes for one time: neither is to count; ask its operator"
            ),
        }
    }
}

fn keep(shared: &Shared) {
    let mut state = shared.lock();
    let list = state.authority.list();
    let text = list.and_then(|list| String::from_utf8(list.to_vec()).ok());
    if let Some(text) = text
        && let Err(error) = state.store.keep_list(&text)
    {
        warn!("the list cannot be stored: {error}");
    }
}
