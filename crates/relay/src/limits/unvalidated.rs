//! The QUIC handshakes of one shard whose clients' addresses are not validated, which anybody may have forged (RFC 9000 §8.1): a small pool, so that
//! forged addresses cost little memory and no honest client its place. A client that finds no room is asked to prove its address first (Retry,
//! §8.1.2), which costs it a round trip and us nothing.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};

use super::ClientKey;
use crate::config::Limits;

/// The pool of one shard.
#[derive(Clone, Debug)]
pub(crate) struct UnvalidatedHandshakes {
    bounds: Arc<HandshakeBounds>,
    /// Set when a flood is over: its memory can go back to the system.
    fallen: Arc<AtomicBool>,
    state: Arc<Mutex<State>>,
}

/// How many there may be on each shard, as reloads change it.
#[derive(Debug)]
pub(super) struct HandshakeBounds {
    all: AtomicUsize,
    of_client: AtomicUsize,
}

impl HandshakeBounds {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            all: AtomicUsize::new(limits.unvalidated_handshakes),
            of_client: AtomicUsize::new(limits.unvalidated_handshakes_per_client),
        })
    }

    pub(super) fn set(&self, limits: &Limits) {
        let per_client = limits.unvalidated_handshakes_per_client;
        self.all
            .store(limits.unvalidated_handshakes, Ordering::Relaxed);
        self.of_client.store(per_client, Ordering::Relaxed);
    }

    fn all(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct State {
    all: usize,
    /// The most of them since there was none.
    highest: usize,
    of: HashMap<ClientKey, usize>,
}

/// A handshake's room; it is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    client: ClientKey,
    pool: UnvalidatedHandshakes,
}

impl UnvalidatedHandshakes {
    pub(super) fn new(bounds: Arc<HandshakeBounds>, fallen: Arc<AtomicBool>) -> Self {
        Self {
            bounds,
            fallen,
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes room for a handshake with somebody who claims to be this client.
    pub(crate) fn enter(&self, client: ClientKey) -> Option<Room> {
        let mut state = self.state();
        let of_client = state.of.get(&client).copied().unwrap_or(0);
        let most_of_client = self.bounds.of_client.load(Ordering::Relaxed);
        if state.all >= self.bounds.all() || of_client >= most_of_client {
            return None;
        }
        state.all += 1;
        state.highest = state.highest.max(state.all);
        state.of.insert(client, of_client + 1);
        drop(state);
        Some(Room {
            client,
            pool: self.clone(),
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.all -= 1;
        if state.all == 0 && std::mem::take(&mut state.highest) >= self.pool.bounds.all() / 2 {
            self.pool.fallen.store(true, Ordering::Relaxed);
        }
        match state.of.get_mut(&self.client) {
            Some(of) if *of > 1 => *of -= 1,
            _ => drop(state.of.remove(&self.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_addresses_find_no_more_room_than_there_is_and_none_keeps_it() {
        let limits = Limits {
            unvalidated_handshakes: 4,
            unvalidated_handshakes_per_client: 3,
            ..Limits::default()
        };
        let fallen = Arc::default();
        let bounds = HandshakeBounds::new(&limits);
        let pool = UnvalidatedHandshakes::new(Arc::clone(&bounds), Arc::clone(&fallen));
        let client = ClientKey(0);
        let mut rooms: Vec<_> = (0..3).map(|_| pool.enter(client)).collect();
        assert!(rooms.iter().all(Option::is_some));
        assert!(pool.enter(client).is_none(), "one address has its share");
        rooms.push(pool.enter(ClientKey(1)));
        assert!(pool.enter(ClientKey(2)).is_none(), "all is taken");
        bounds.set(&Limits {
            unvalidated_handshakes: 5,
            ..limits
        });
        rooms.push(pool.enter(ClientKey(2)));
        assert!(rooms.iter().all(Option::is_some), "there is more now");
        rooms.clear();
        assert!(pool.state().of.is_empty());
        assert!(fallen.swap(false, Ordering::Relaxed), "the flood is over");
        drop(pool.enter(ClientKey(2)).expect("room"));
        assert!(!fallen.load(Ordering::Relaxed), "one handshake is no flood");
    }
}
