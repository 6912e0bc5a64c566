//! The table of a shard's aliases.
//! The socket looks up in it, the handles of [`super::Forwarder`] change it.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{AliasId, Forward};
use crate::server::ids::Ids;

/// How many aliases are remembered after their end: their last packets are still under way, and QUIC would answer those by a reset.
pub(super) const RETIRED: usize = 1024;

/// All aliases of a shard. Whoever enters them bounds their number; of those that have ended there are at most [`RETIRED`].
pub(in crate::server) struct Aliases {
    /// How many are in force; while there are none, nothing is looked up.
    live: AtomicUsize,
    table: Mutex<Table>,
}

struct Table {
    entries: HashMap<AliasId, Arc<dyn Forward>, Keyed>,
    retired: VecDeque<AliasId>,
    ids: Ids,
}

impl Aliases {
    pub(in crate::server) fn new(ids: Ids) -> Self {
        Self {
            live: AtomicUsize::new(0),
            table: Mutex::new(Table {
                entries: HashMap::with_hasher(Keyed::new()),
                retired: VecDeque::new(),
                ids,
            }),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is to be looked up.
    pub(in crate::server) fn any(&self) -> bool {
        self.live.load(Ordering::Relaxed) > 0
    }

    /// 56 random bits: that QUIC has handed out the same for a connection is left to chance, as among its own ids.
    pub(super) fn mint(&self) -> AliasId {
        let mut table = self.table();
        loop {
            let id = table.ids.next();
            if !table.entries.contains_key(&id) {
                return id;
            }
        }
    }

    pub(super) fn enter(&self, id: AliasId, to: Arc<dyn Forward>) {
        self.table().entries.insert(id, to);
        self.live.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn retire(&self, id: AliasId) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        let mut table = self.table();
        table.retired.push_back(id);
        let gone = match table.retired.len() > RETIRED {
            true => table.retired.pop_front(),
            false => None,
        };
        let gone = gone.and_then(|id| table.entries.remove(&id));
        // What it holds may end with it, and retire aliases of its own.
        drop(table);
        drop(gone);
    }

    pub(super) fn find(&self, id: AliasId) -> Option<Arc<dyn Forward>> {
        self.table().entries.get(&id).map(Arc::clone)
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.table().entries.len()
    }
}

impl fmt::Debug for Aliases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aliases")
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

/// Spreads ids that are random by themselves: nobody but us chooses what is in the table, so one multiplication is enough.
#[derive(Clone)]
struct Keyed(u64);

struct Spread(u64);

impl Keyed {
    fn new() -> Self {
        Self(RandomState::new().hash_one(0_u8))
    }
}

impl BuildHasher for Keyed {
    type Hasher = Spread;

    fn build_hasher(&self) -> Spread {
        Spread(self.0)
    }
}

impl Hasher for Spread {
    fn write(&mut self, octets: &[u8]) {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(octets) {
            *to = *from;
        }
        self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }

    /// The length, which is always the same.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
