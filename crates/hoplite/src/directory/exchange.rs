//! The authority's clock: it votes when it is time, and asks the other authorities for what is missing, each in a task of its own: who does not
//! answer holds nobody up.

use std::{collections::HashSet, time::Duration};

use futures_util::future::join_all;
use hoplite_directory::{
    Change, Source,
    authority::{Event, Heard, Want, Wanted},
    fetch,
};
use hoplite_overlay::{Direct, Overlay, Terms};
use hoplite_wire::{Host, directory::Key};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use super::{Shared, moment, now, rates::client};
use crate::config::directory::Config;

/// The longest pause: a clock that was set is noticed within it.
const PAUSE: Duration = Duration::from_secs(30);
/// The shortest.
const LEAST: Duration = Duration::from_millis(50);

/// How long a name may take to be looked up, and when it is looked up again.
const LOOKUP: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(600);

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
    let talking = sources
        .clone()
        .filter(|source| source.key != own)
        .map(|source| {
            let other = Other {
                overlay: Direct::new(),
                source: source.clone(),
                patience: (slice * 2 / 3)
                    .clamp(Duration::from_millis(250), Duration::from_secs(60)),
                pause: (slice / 6).clamp(LEAST, Duration::from_secs(10)),
            };
            talk(shared.clone(), other)
        });
    let talking: Vec<_> = talking.collect();
    let others: Vec<_> = sources
        .filter(|source| source.key != own)
        .cloned()
        .collect();
    tokio::join!(
        keep_time(&shared),
        locate(&shared, &others),
        join_all(talking)
    );
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
        let mut wants = shared.lock().wants(moment());
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
    let next = shared.lock().next(now);
    next.saturating_sub(now).clamp(LEAST, PAUSE)
}

fn step(shared: &Shared) {
    let mut authority = shared.lock();
    let gone = authority.forget(now());
    let events = authority.tick(moment());
    drop(authority);
    let gone = gone.into_iter().map(Change::Forget);
    shared.writer().write(gone.collect());
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
    let heard = shared.lock().heard(&want, text, moment());
    let heard = match heard {
        Ok(Heard::Done(events)) => Ok(events),
        Ok(Heard::Check(events, unchecked)) => {
            tell(shared, &events);
            // The only thread has others to answer meanwhile.
            let Ok(checked) = spawn_blocking(|| unchecked.check()).await else {
                return;
            };
            shared.lock().checked(checked, moment())
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
            Event::Promised(until) => warn!(
                until,
                "nothing is signed: this authority has signed another vote or list for this time before, or one for a later time (`until`, in seconds since 1970); check its clock. If it was ahead then, and only then, stop this authority and remove the file beside its key that ends in .signed"
            ),
            Event::NotKept => warn!(
                "nothing is signed: what this authority signs must be noted first in the file beside its key that ends in .signed; make room on the disk, and let this user write the key's directory"
            ),
            Event::TwoFaced(authority) => warn!(
                authority,
                "this authority, as `authorities` numbers them, has signed two different votes for one time: neither is to count; ask its operator"
            ),
        }
    }
}

fn keep(shared: &Shared) {
    let list = shared.lock().list();
    let text = list.and_then(|list| String::from_utf8(list.to_vec()).ok());
    let change = text.map(Change::List);
    shared.writer().write(change.into_iter().collect());
}

/// Finds out from where the other authorities ask, again and again.
async fn locate(shared: &Shared, others: &[Source]) {
    let overlay = Direct::new();
    loop {
        let mut found = HashSet::new();
        for Source { address, .. } in others {
            match &address.host {
                Host::Ip(ip) => found.extend([client(*ip)]),
                Host::Name(name) => {
                    let terms = Terms::default().within(LOOKUP);
                    let addresses = overlay.resolve(name.as_str(), &terms).await;
                    found.extend(addresses.into_iter().flatten().map(client));
                }
            }
        }
        *shared.others() = found;
        tokio::time::sleep(AGAIN).await;
    }
}
