//! The authority's clock: it votes when it is time, and asks the other authorities for what is missing.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use hoplite_directory::{
    authority::{Event, Want},
    fetch,
};
use hoplite_overlay::Direct;
use hoplite_wire::{
    Target,
    directory::{Key, LIST},
};
use tracing::{info, warn};

use super::{Shared, now};
use crate::config::directory::Config;

/// Questions to other authorities at once.
const QUESTIONS: usize = 8;
/// The longest pause: a clock that was set is noticed within it.
const PAUSE: Duration = Duration::from_secs(30);

/// Whom to ask, and how patiently.
struct Others {
    overlay: Direct,
    addresses: HashMap<Key, Target>,
    patience: Duration,
    pause: Duration,
}

/// Votes until dropped.
pub(super) async fn run(shared: Shared, config: &Config, own: Key) {
    let sources = config.authorities.iter().map(|authority| &authority.0);
    let others = sources.filter(|source| source.key != own);
    let others = Arc::new(Others {
        overlay: Direct::new(),
        addresses: others
            .map(|source| (source.key, source.address.clone()))
            .collect(),
        patience: (config.voting / 3).clamp(Duration::from_millis(500), Duration::from_secs(20)),
        pause: (config.voting / 10).clamp(Duration::from_millis(100), Duration::from_secs(10)),
    });
    loop {
        step(&shared);
        let wants = shared.lock().authority.wants(now());
        match wants.is_empty() {
            true => tokio::time::sleep(until_next(&shared)).await,
            false => {
                ask(&shared, &others, wants).await;
                tokio::time::sleep(others.pause).await;
            }
        }
    }
}

fn until_next(shared: &Shared) -> Duration {
    let now = now();
    let next = shared.lock().authority.next(now);
    Duration::from_secs(next.saturating_sub(now)).clamp(Duration::from_millis(100), PAUSE)
}

fn step(shared: &Shared) {
    let mut state = shared.lock();
    let gone = state.authority.forget(now());
    if !gone.is_empty()
        && let Err(error) = state.store.forget_descriptors(&gone)
    {
        warn!("old descriptors cannot be removed from the store: {error}");
    }
    let events = state.authority.tick(now());
    drop(state);
    tell(shared, &events);
}

async fn ask(shared: &Shared, others: &Others, wants: Vec<Want>) {
    stream::iter(wants)
        .for_each_concurrent(QUESTIONS, |want| async move {
            let Some(address) = others.addresses.get(&want.from) else {
                return;
            };
            let answer = fetch(&others.overlay, address, &want.path, LIST, others.patience).await;
            // Who is not there, or has none yet, is asked again.
            let Ok(text) = answer else { return };
            let heard = shared.lock().authority.heard(&want, &text, now());
            match heard {
                Ok(events) => tell(shared, &events),
                Err(refused) => warn!("an authority's vote or list does not count: {refused}"),
            }
        })
        .await;
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
            Event::TwoFaced => warn!(
                "an authority has signed two different votes for one time: neither counts; ask its operator"
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
