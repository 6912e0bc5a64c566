//! QUIC handshakes of one shard with addresses that nobody has proven to be at (RFC 9000 §8.1): a small pool, so that forged addresses cost little memory and
//! no honest client its place. Who finds no room is asked to prove its address first (Retry, §8.1.2), which costs it a round trip and us nothing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::ClientKey;
use crate::config::Limits;

/// The pool of one shard.
#[derive(Clone, Debug)]
pub(crate) struct Unproven {
    all: usize,
    of_client: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    all: usize,
    of: HashMap<ClientKey, usize>,
}

/// A handshake's room; it is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    client: ClientKey,
    pool: Unproven,
}

impl Unproven {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            all: limits.handshakes,
            of_client: limits.handshakes_per_client,
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for a handshake with somebody who claims to be this client.
    pub(crate) fn enter(&self, client: ClientKey) -> Option<Room> {
        let mut state = self.state();
        let of_client = state.of.get(&client).copied().unwrap_or(0);
        if state.all >= self.all || of_client >= self.of_client {
            return None;
        }
        state.all += 1;
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
        let pool = Unproven::new(&Limits {
            handshakes: 4,
            handshakes_per_client: 3,
            ..Limits::default()
        });
        let client = ClientKey(0);
        let mut rooms: Vec<_> = (0..3).map(|_| pool.enter(client)).collect();
        assert!(rooms.iter().all(Option::is_some));
        assert!(pool.enter(client).is_none(), "one address has its share");
        rooms.push(pool.enter(ClientKey(1)));
        assert!(pool.enter(ClientKey(2)).is_none(), "all is taken");
        rooms.clear();
        assert!(pool.state().of.is_empty());
        assert!(pool.enter(ClientKey(2)).is_some());
    }
}
