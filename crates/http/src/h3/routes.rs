//! Which UDP flow a datagram belongs to, and what is kept for flows that do not exist yet.
//! The datagram task asks, exchanges and flows enter themselves.
//! RFC 9297 §2.1: "If a DATAGRAM frame is received and its Quarter Stream ID field maps to a stream that has not yet been created,
//! the receiver SHALL either drop that frame silently or buffer it temporarily".

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;

use super::flow::Inbound;

/// At most this many early datagrams are kept a connection; what comes then is dropped and counted.
const EARLY_COUNT: usize = 32;
/// At most this many octets of them.
const EARLY_OCTETS: usize = 64 * 1024;
/// How far ahead of the newest request a stream id may be to be plausible.
const AHEAD: u64 = 4 * 256;

/// What to do with a datagram.
pub(super) enum Found {
    /// The flow's place among those touched in this batch, and the flow itself the first time.
    Flow {
        slot: usize,
        first: Option<Arc<Inbound>>,
    },
    /// It was kept.
    Kept,
    /// There is no room for early datagrams.
    NoRoom,
    /// No flow will ever want it.
    Nobody,
}

#[derive(Debug, Default)]
pub(super) struct Routes {
    entries: HashMap<u64, Entry>,
    early: VecDeque<(u64, Bytes)>,
    early_octets: usize,
    /// The server's end: the first request that has not arrived.
    next: u64,
    /// The server's end: no more requests are taken.
    draining: bool,
}

#[derive(Debug)]
enum Entry {
    /// The request is not decided yet.
    Waiting,
    /// `batch` and `slot`: where the flow stands among those touched, and in which batch that was.
    Flow {
        inbound: Arc<Inbound>,
        batch: u64,
        slot: usize,
    },
}

impl Routes {
    /// The server's end: a request has arrived. `false` while draining.
    pub(super) fn arrive(&mut self, id: u64) -> bool {
        if !self.draining {
            self.next = self.next.max(id + 4);
            self.entries.insert(id, Entry::Waiting);
        }
        !self.draining
    }

    /// The client's end: a request was made.
    pub(super) fn open(&mut self, id: u64) {
        self.entries.insert(id, Entry::Waiting);
    }

    /// No more requests; the id of the first one that is not taken.
    pub(super) fn drain(&mut self) -> u64 {
        self.draining = true;
        self.next
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining
    }

    /// The request ended, or it is no UDP flow: its datagrams are unwanted.
    /// The flow is returned, to be dropped by the caller when nothing is locked any more.
    #[must_use]
    pub(super) fn close(&mut self, id: u64) -> Option<Arc<Inbound>> {
        drop(self.take_early(id));
        match self.entries.remove(&id)? {
            Entry::Flow { inbound, .. } => Some(inbound),
            Entry::Waiting => None,
        }
    }

    /// The request became a flow; what came early for it.
    pub(super) fn enter(&mut self, id: u64, inbound: Arc<Inbound>) -> Vec<Bytes> {
        self.entries.insert(
            id,
            Entry::Flow {
                inbound,
                batch: 0,
                slot: 0,
            },
        );
        self.take_early(id)
    }

    fn take_early(&mut self, id: u64) -> Vec<Bytes> {
        let mut taken = Vec::new();
        if self.early.iter().any(|(early, _)| *early == id) {
            let (mine, others) = std::mem::take(&mut self.early)
                .into_iter()
                .partition(|(early, _)| *early == id);
            self.early = others;
            self.early_octets = self.early.iter().map(|(_, datagram)| datagram.len()).sum();
            let mine: VecDeque<_> = mine;
            taken.extend(mine.into_iter().map(|(_, datagram)| datagram));
        }
        taken
    }

    /// Where a datagram for stream `id` goes. `batch` counts from 1; `touched` is how many flows it has touched so far.
    pub(super) fn find(&mut self, id: u64, datagram: &Bytes, batch: u64, touched: usize) -> Found {
        match self.entries.get_mut(&id) {
            Some(Entry::Flow {
                inbound,
                batch: seen,
                slot,
            }) => {
                let first = (*seen != batch).then(|| Arc::clone(inbound));
                if first.is_some() {
                    (*seen, *slot) = (batch, touched);
                }
                Found::Flow { slot: *slot, first }
            }
            Some(Entry::Waiting) => self.keep(id, datagram),
            None if !self.draining && (self.next..self.next + AHEAD).contains(&id) => {
                self.keep(id, datagram)
            }
            None => Found::Nobody,
        }
    }

    /// Copies, because the datagram may hold a whole receive buffer.
    fn keep(&mut self, id: u64, datagram: &Bytes) -> Found {
        if self.early.len() == EARLY_COUNT || self.early_octets + datagram.len() > EARLY_OCTETS {
            return Found::NoRoom;
        }
        self.early_octets += datagram.len();
        self.early.push_back((id, Bytes::copy_from_slice(datagram)));
        Found::Kept
    }
}
