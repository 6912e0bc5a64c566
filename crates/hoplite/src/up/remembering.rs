//! Names of relays, and of what is excluded, while the system's own resolver is not to be asked: its questions come to us.
//! `carrier` makes the overlay below the first hop with it.
//!
//! The name of a relay is looked up before anything is taken over. Later its answer is fresh for a while; then the network's name servers
//! are asked by marked sockets, and while they are silent the old answer serves. So a name is never asked through the path that needs it.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hoplite_overlay::{
    Direct, Error, ErrorKind, Opening, Overlay, Reason, Terms,
    direct::{Resolver, resolver::special},
};
use hoplite_wire::HostName;
use tokio::time::Instant;

use super::numbers::MARK;

/// How long an answer is used before it is asked for again; it stays the last resort for ever.
const FRESH: Duration = Duration::from_secs(600);

/// Names that are remembered; one more takes the place of the oldest.
const NAMES: usize = 256;

/// How long asking may take.
const PATIENCE: Duration = Duration::from_secs(8);

/// A resolver of its own.
#[derive(Default)]
pub(crate) struct Remembering {
    servers: Mutex<Vec<SocketAddr>>,
    known: Mutex<HashMap<HostName, Known>>,
}

#[derive(Clone)]
struct Known {
    addresses: Vec<IpAddr>,
    since: Instant,
}

impl Remembering {
    /// Whom to ask from now on, the first one first.
    pub(crate) fn ask(&self, servers: &[SocketAddr]) {
        *lock(&self.servers) = servers.to_vec();
    }

    /// Whom it asks.
    pub(crate) fn servers(&self) -> Vec<SocketAddr> {
        lock(&self.servers).clone()
    }

    /// Remembers an answer that somebody else got.
    pub(crate) fn learn(&self, name: HostName, addresses: Vec<IpAddr>) {
        let since = Instant::now();
        let mut known = lock(&self.known);
        if known.len() >= NAMES && !known.contains_key(&name) {
            forget_oldest(&mut known);
        }
        known.insert(name, Known { addresses, since });
    }

    async fn find(&self, name: &HostName) -> Result<Vec<IpAddr>, Error> {
        let known = lock(&self.known).get(name).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.since.elapsed() < FRESH) {
            return Ok(known.addresses.clone());
        }
        match (self.look_up(name).await, known) {
            (Ok(addresses), _) => {
                self.learn(name.clone(), addresses.clone());
                Ok(addresses)
            }
            (Err(_), Some(old)) => Ok(old.addresses),
            (Err(error), None) => Err(error),
        }
    }

    async fn look_up(&self, name: &HostName) -> Result<Vec<IpAddr>, Error> {
        let servers = self.servers();
        if servers.is_empty() {
            let nobody = Error::new(
                ErrorKind::TargetFailed,
                "resolving a name without any server",
            );
            return Err(nobody.because(Reason::ResolverFailed));
        }
        let direct = Direct::new().name_servers(&servers).mark(MARK);
        let terms = Terms::default().within(PATIENCE);
        direct.resolve(name.as_str(), &terms).await
    }
}

fn forget_oldest(known: &mut HashMap<HostName, Known>) {
    let oldest = known.iter().min_by_key(|(_, known)| known.since);
    if let Some(name) = oldest.map(|(name, _)| name.clone()) {
        known.remove(&name);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Resolver for Remembering {
    fn resolve<'a>(&'a self, name: &'a HostName) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            match special(name) {
                Some(answer) => answer,
                None => self.find(name).await,
            }
        })
    }
}

impl fmt::Debug for Remembering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remembering")
            .field("servers", &lock(&self.servers).len())
            .field("names", &lock(&self.known).len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        HostName::new(text).expect("a name")
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_learnt_before_serves_while_nobody_answers() {
        let resolver = Remembering::default();
        let known = vec![IpAddr::from([192, 0, 2, 1])];
        resolver.learn(name("relay.example"), known.clone());
        for wait in [Duration::ZERO, FRESH * 2] {
            tokio::time::advance(wait).await;
            let found = resolver.resolve(&name("relay.example")).await;
            assert_eq!(found.expect("known"), known);
        }
        let other = resolver.resolve(&name("other.example")).await;
        let reason = other.expect_err("nobody to ask").reason();
        assert_eq!(reason, Some(Reason::ResolverFailed));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_too_many_names_is_forgotten() {
        let resolver = Remembering::default();
        for number in 0..=NAMES {
            resolver.learn(name(&format!("r{number}.example")), Vec::new());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let known = lock(&resolver.known);
        assert!(known.len() == NAMES && !known.contains_key(&name("r0.example")));
    }
}
