//! Fetches the directory's list for a relay of circuits, so that its channels know whom the list has. It is kept in memory alone: a relay without a list
//! serves as well, but knows nobody. One that is too old is better than none: who was known stays so until there is a newer one.

use std::time::Duration;

use hoplite_directory::{Client, Heard, Source, Store};
use hoplite_overlay::Direct;
use hoplite_relay::{Config, Handle, Listed, config::Directory};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::{
    config::directory::{Authority, trust},
    directory::now,
    errors::Failure,
};

/// How far this machine's clock may be off.
const SKEW: Duration = Duration::from_secs(60);
/// How long an authority may take to answer.
const WAIT: Duration = Duration::from_secs(20);
/// The longest pause between two looks whether a list is due, and the one after a list could not be had.
const PAUSE: Duration = Duration::from_secs(60);

/// What reads the list.
pub(super) struct Reader {
    client: Client,
    sources: Vec<Source>,
    listed: Listed,
}

/// The authorities that the file names, as all files have them.
pub(crate) fn authorities(directory: &Directory) -> Vec<Authority> {
    let named = directory.authorities.iter();
    let source = |named: &hoplite_relay::config::Authority| Source {
        address: named.address.clone(),
        key: named.key,
    };
    named.map(source).map(Authority).collect()
}

impl Reader {
    /// None if the file names no authority, or the relay serves no circuits.
    pub(super) fn of(config: &Config, handle: &Handle) -> Result<Option<Self>, Failure> {
        let named = authorities(&config.directory);
        let Some(listed) = handle.listed().filter(|_| !named.is_empty()) else {
            return Ok(None);
        };
        let directory = &config.directory;
        let trust = trust(&named, directory.threshold, directory.hostile.into(), SKEW);
        let client = Store::in_memory().and_then(|store| Client::new(trust, store));
        let client = client.map_err(|error| {
            let doing = "making room for the list of relays";
            Failure::new(doing, error, "free some memory")
        })?;
        Ok(Some(Self {
            client,
            sources: named.into_iter().map(|named| named.0).collect(),
            listed,
        }))
    }

    /// Fetches one list after the other until dropped.
    pub(super) async fn run(mut self) {
        loop {
            if self.renew().await {
                let due = self.client.next(now(), &mut below);
                while now() < due {
                    let left = Duration::from_secs(due.saturating_sub(now()));
                    sleep(left.min(PAUSE)).await;
                }
            } else {
                sleep(PAUSE).await;
            }
        }
    }

    /// Whether there is a list that may be used.
    async fn renew(&mut self) -> bool {
        let answers = Client::ask(&Direct::new(), &self.sources, WAIT).await;
        for (authority, answer) in (1..).zip(answers) {
            let heard = match answer {
                Ok(text) => self.client.heard(&text, now()),
                Err(error) => {
                    warn!(authority, "the list of relays cannot be had: {error}");
                    continue;
                }
            };
            match heard {
                Ok(Ok(Heard::Newer)) => self.tell(),
                Ok(Ok(_)) => {}
                Ok(Err(refused)) => warn!(authority, "a list of relays is refused: {refused}"),
                Err(error) => warn!(authority, "a list of relays cannot be kept: {error}"),
            }
        }
        matches!(self.client.list(now()), Ok(Some(_)))
    }

    fn tell(&self) {
        let Ok(Some(list)) = self.client.list(now()) else {
            return;
        };
        let relays = list.list.relays.iter().map(|relay| {
            let relay = &relay.descriptor;
            (relay.identity.0, relay.addresses.clone())
        });
        self.listed.replace(relays);
        let relays = list.list.relays.len();
        info!(relays, "channels know whom the list of relays has");
    }
}

/// A random number below `most`.
fn below(most: u64) -> u64 {
    let mut octets = [0; 8];
    match SystemRandom::new().fill(&mut octets) {
        Ok(()) => u64::from_le_bytes(octets) % most.max(1),
        Err(_) => 0,
    }
}
